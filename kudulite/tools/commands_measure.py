"""Commands that measure a table, and one for its definition: sizes, perf, locate, schema.

    sizes     what each column takes on disk, with its range of values, from the files' metadata
    perf      how long reading each tablet takes
    locate    the tablet of a primary key, whether or not there is such a row
    schema    columns, key and partitioning as JSON in the form of `kudu table create`, which
              `create --definition` takes

**Source**: Kudu tools/tool.proto, CreateTablePB, for the form of a definition.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pyarrow.parquet as pq
import typer

import kudulite
from kudulite.basefile.base_data import BaseDataFile
from kudulite.chain.manifest import HISTORY_SECONDS_DEFAULT
from kudulite.chain.partition import Bound, HashDimension, RangeWithHashSchema
from kudulite.errors import OptionError, UsageError
from kudulite.model.schema import AUTO_INCREMENTING_ID, Column, Schema
from kudulite.model.types import ColumnType, parse_type
from kudulite.model.values import date_from_days, to_days, value_from_json, value_to_json
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.shown.progress import Progress, byte_text
from kudulite.storage.names import ROWSET_FOLDER
from kudulite.table.table_store import TableStore
from kudulite.tools.addresses import open_store, open_table
from kudulite.tools.choice import chosen_tables
from kudulite.tools.outcomes import FigureProcesses, figure_outcomes, print_outcomes
from kudulite.tools.output import (
    AsJson,
    ColumnNames,
    TablePath,
    TablePaths,
    key_of_text,
    names_of,
    print_fields,
    print_json,
    print_rows,
)

# Kudu's names of encodings and compressions. It has no zstd: its tool refuses that one.
ENCODINGS = {
    "auto": "AUTO_ENCODING",
    "plain": "PLAIN_ENCODING",
    "prefix": "PREFIX_ENCODING",
    "rle": "RLE",
    "dict": "DICT_ENCODING",
    "bitshuffle": "BIT_SHUFFLE",
}
COMPRESSIONS = {
    "default": "DEFAULT_COMPRESSION",
    "none": "NO_COMPRESSION",
    "snappy": "SNAPPY",
    "lz4": "LZ4",
    "gzip": "ZLIB",
    "zstd": "ZSTD",
}
_HISTORY = "kudu.table.history_max_age_sec"


# -- sizes


def sizes(paths: TablePaths, processes: FigureProcesses = None, as_json: AsJson = False) -> None:
    """Show what each column takes on disk, its nulls and its range, and what else takes room.

    Of base data, from its metadata: updates that are not compacted yet are delta files. Of many
    tables, one row for each.
    """
    choice = chosen_tables(paths)
    if not choice.is_one:
        outcomes = figure_outcomes(_sizes_of, choice, "sizes of tables", processes)
        print_outcomes(outcomes, choice, _size_columns, as_json=as_json)
        return
    with Progress(f"reading the metadata of {choice.addresses[0]}"):
        found = _sizes_of(*choice.addresses)
    if as_json:
        print_json(found)
        return
    shown = [
        {**column, "bytes": byte_text(column["bytes"]), "plain": byte_text(column["plain"])}
        for column in found["columns"]
    ]
    if shown:
        print_rows(list(shown[0]), [[*column.values()] for column in shown])
        print()
    others = found["other_bytes"].items()
    print_fields({name.replace("_", " "): byte_text(size) for name, size in others})


def _sizes_of(address: str) -> dict[str, Any]:
    store = open_store(address)
    return {"columns": list(_column_sizes(store)), "other_bytes": _other_sizes(store)}


def _size_columns(found: Mapping[str, Any]) -> dict[str, str]:
    names = ("bytes", "plain")
    base = {name: sum(column[name] for column in found["columns"]) for name in names}
    sizes = {"base data": base["bytes"], "plain": base["plain"]} | found["other_bytes"]
    return {name.replace("_", " "): byte_text(size) for name, size in sizes.items()}


def _column_sizes(store: TableStore) -> Iterator[dict[str, Any]]:
    """Yield the figures of each column; `plain` are its bytes before compression."""
    schema = store.newest().schema
    figures: dict[int, dict[str, Any]] = {
        column.id: {"bytes": 0, "plain": 0, "values": 0, "nulls": 0, "ends": []}
        for column in schema.columns
    }
    for folder, meta in _rowsets(store):
        for base in meta.base:
            path, ref = folder / base.ref.name, base.ref
            file = BaseDataFile(store.storage, path, ref)
            _add_file(figures, file, pq.read_metadata(store.storage.open(path, ref)))
    for column in schema.columns:
        found = figures[column.id]
        low, high = _range(found.pop("ends"))
        yield {
            "column": column.name,
            "type": str(column.type),
            "encoding": column.encoding,
            "compression": column.compression,
            **found,
            "min": low,
            "max": high,
        }


def _rowsets(store: TableStore) -> Iterator[tuple[Path, RowSetMeta]]:
    """Yield the folder of each rowset of the newest version that has rows of now."""
    for entry in store.newest().tablets:
        for meta in store.tablet(entry).superblock.rowsets:
            if meta.delete_timestamp is None:
                yield store.tablet_folder(entry.id) / ROWSET_FOLDER / meta.id, meta


def _add_file(
    figures: dict[int, dict[str, Any]], file: BaseDataFile, metadata: pq.FileMetaData
) -> None:
    """Add the column chunks of a file of base data; an array is one chunk of its elements."""
    for number in range(file.row_group_count):
        group = metadata.row_group(number)
        for place, (column_id, name) in enumerate(file.name_by_id.items()):
            found, chunk = figures.get(column_id), group.column(place)
            if found is None:  # of a column that was dropped
                continue
            found["bytes"] += chunk.total_compressed_size
            found["plain"] += chunk.total_uncompressed_size
            found["values"] += chunk.num_values
            statistics = file.statistics(number, name)
            if statistics is not None:
                found["nulls"] += statistics[2]
                found["ends"] += [end for end in statistics[:2] if end is not None]


def _range(ends: list[Any]) -> tuple[str, str]:
    if not ends:
        return "", ""
    return tuple(_shown(end) for end in (min(ends), max(ends)))  # type: ignore[return-value]


def _shown(end: Any) -> str:
    if isinstance(end, float):
        end += 0.0  # Parquet has -0.0 for a least value of 0.0
    text = repr(end) if isinstance(end, bytes) else str(end)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _other_sizes(store: TableStore) -> dict[str, int]:
    """Return the bytes of all that is not base data."""
    metas = [meta for _, meta in _rowsets(store)]
    figures = open_table(store.folder).statistics
    return {
        "key_indexes": sum(meta.key_index.length for meta in metas),
        "bloom_filters": sum(meta.bloom.length for meta in metas),
        "redo_deltas": figures.redo_bytes,
        "undo_deltas": figures.undo_bytes,
        "logs": figures.log_bytes,
        "superseded_files": figures.superseded_bytes,
    }


# -- perf and locate


def perf(
    path: TablePath,
    columns: ColumnNames = None,
    where: Annotated[str | None, typer.Option(help="A condition, as in `scan`.")] = None,
    ordered: Annotated[bool, typer.Option(help="In the order of the key.")] = False,
    repeat: Annotated[int, typer.Option(help="Read everything so many times.", min=1)] = 1,
    as_json: AsJson = False,
) -> None:
    """Read each tablet, and show how many rows and bytes it gave and how long that took."""
    table = open_table(path)
    condition: Any = () if where is None else where
    found = []
    for run in range(1, repeat + 1):
        for token in table.scan_tokens(names_of(columns), condition, ordered=ordered):
            begin = time.perf_counter()
            row_count = byte_count = 0
            for batch in token.open():
                row_count, byte_count = row_count + batch.num_rows, byte_count + batch.nbytes
            seconds = time.perf_counter() - begin
            found.append(
                {
                    "run": run,
                    "tablet": token.tablet_id,
                    "rows": row_count,
                    "bytes": byte_count,
                    "seconds": round(seconds, 6),
                    "rows_per_second": round(row_count / seconds),
                }
            )
    if as_json:
        print_json(found)
    elif found:
        print_rows(list(found[0]), [[*piece.values()] for piece in found], thousands=True)
    else:
        print("no tablet has rows")


def locate(
    path: TablePath,
    key: Annotated[list[str], typer.Argument(help="The primary key, column by column.")],
    as_json: AsJson = False,
) -> None:
    """Print the tablet that a primary key belongs to, and whether it has such a row."""
    table, manifest = open_table(path), open_store(path).newest()
    values = key_of_text(manifest.schema.key_columns, key)
    (number,) = table.tablet_index([values]).to_pylist()
    if number < 0:
        raise OptionError(f"table {table.name!r}: no range partition covers the key {values!r}")
    entry = manifest.placed_tablets[number]
    found = {
        "tablet": entry.id,
        "place": manifest.partition.describe(entry.partition),
        "has_row": table.get(values) is not None,
    }
    if as_json:
        print_json(found)
    else:
        print_fields(found)


# -- definitions


def schema(path: TablePath) -> None:
    """Print the definition of a table as JSON, in the form that `kudu table create` takes."""
    table = open_table(path)
    print(json.dumps(definition_of(table), indent=2))


def definition_of(table: kudulite.Table) -> dict[str, Any]:
    """Return columns, key and partitioning of a table as Kudu's tool writes them."""
    found, partition = table.schema, table.partition_schema
    columns = {name: found.column(name) for name in partition.range_columns}
    definition: dict[str, Any] = {
        "table_name": table.name,
        "schema": {
            "columns": [_column_form(column) for column in found.columns],
            "key_column_names": found.key_names,
        },
        "partition": {
            "hash_partitions": list(map(_hash_form, partition.hash_dimensions)),
            "range_partition": {
                "columns": list(columns),
                "range_bounds": [
                    _bounds_form(each, columns)
                    for each in partition.ranges
                    if each.hash_dimensions is None and each.bounds != (None, None)
                ],
                "custom_hash_schema_ranges": [
                    {
                        "range_bounds": _bounds_form(each, columns),
                        "hash_schema": list(map(_hash_form, each.hash_dimensions)),
                    }
                    for each in partition.ranges
                    if each.hash_dimensions is not None
                ],
            },
        },
        "num_replicas": 1,
    }
    history_seconds = open_store(str(table.path)).newest().history_seconds
    if history_seconds != HISTORY_SECONDS_DEFAULT:
        definition["extra_configs"] = {"configs": {_HISTORY: str(history_seconds)}}
    texts = {"owner": table.owner, "comment": table.comment}
    return definition | {name: text for name, text in texts.items() if text}


def _column_form(column: Column) -> dict[str, Any]:
    kind = column.type
    form: dict[str, Any] = {
        "column_name": column.name,
        "column_type": str(kind).upper() if kind.is_array else kind.name.upper(),
        "is_nullable": column.nullable,
        "encoding": ENCODINGS[column.encoding],
        "compression": COMPRESSIONS[column.compression],
    }
    said = {name: getattr(kind, name) for name in ("precision", "scale", "length")}
    if attributes := {name: value for name, value in said.items() if value is not None}:
        form["type_attributes"] = attributes
    if column.write_default is not None:
        form["default_value"] = _text_of(column.write_default, kind)
    if not column.mutable:
        form["is_mutable"] = False  # Kudu's tool has no word for it
    return form | ({"comment": column.comment} if column.comment else {})


def _hash_form(given: HashDimension) -> dict[str, Any]:
    return {"columns": list(given.columns), "num_buckets": given.bucket_count, "seed": given.seed}


def _bounds_form(given: RangeWithHashSchema, columns: Mapping[str, Column]) -> dict[str, Any]:
    """Return the bounds of a range; a side without an end has none."""
    ends = (("lower_bound", "INCLUSIVE", given.lower), ("upper_bound", "EXCLUSIVE", given.upper))
    return {
        name: {"bound_type": kind, "bound_values": _texts(bound, columns)}
        for name, kind, bound in ends
        if bound is not None
    }


def _texts(bound: Bound, columns: Mapping[str, Column]) -> list[str]:
    pairs = zip(bound, columns.values(), strict=False)
    return [_text_of(value, column.type) for value, column in pairs]


def _text_of(value: Any, column_type: ColumnType) -> str:
    """Return a value as text: moments are microseconds, dates days, bytes are hexadecimal."""
    stored = to_days(value) if column_type.name == "date" else value_to_json(value, column_type)
    return str(stored).lower() if isinstance(stored, bool) else str(stored)


def _value_of(text: str, column_type: ColumnType, column: str) -> Any:
    """Return the value of a text; a date may be ISO 8601, too. Raises OptionError, SchemaError."""
    given: Any = text
    if column_type.name == "bool" and text in ("true", "false"):
        given = text == "true"
    try:
        if column_type.name == "date" and re.fullmatch(r"-?\d+", text):
            given = date_from_days(int(text))
        return value_from_json(given, column_type, column)
    except UsageError:
        raise
    except (ValueError, ArithmeticError) as error:  # of int, float, Decimal, fromhex
        raise OptionError(f"column {column!r}: {text!r} is no {column_type}") from error


@dataclass(frozen=True)
class Definition:
    """A table to create: its name, schema, options of `create_table`, and retention if given."""

    name: str
    schema: Schema
    options: dict[str, Any]
    history_seconds: int | None


def read_definition(path: Path) -> Definition:
    """Return the definition in a file. Raises OptionError for a file that is none, SchemaError."""
    try:
        form = json.loads(path.read_text())
        found = _schema_of(form["schema"])
        options = {name: form.get(name) for name in ("owner", "comment")}
        options["partitioning"] = _partitioning_of(form.get("partition", {}), found)
        seconds = form.get("extra_configs", {}).get("configs", {}).get(_HISTORY)
        name = str(form.get("table_name") or "")
        return Definition(name, found, options, None if seconds is None else int(seconds))
    except UsageError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise OptionError(
            f"{path}: not the definition of a table, as `kudulite schema` prints it:"
            f" {type(error).__name__} {error}"
        ) from error


def _partitioning_of(form: Mapping[str, Any], schema: Schema) -> kudulite.Partitioning:
    partitioning = kudulite.Partitioning()
    for each in form.get("hash_partitions", []):
        _add_hash(partitioning, each)
    ranges = form.get("range_partition", {})
    columns = [schema.column(name) for name in ranges.get("columns", [])]
    partitioning.set_range_partition_columns([column.name for column in columns])
    for each in ranges.get("range_bounds", []):
        partitioning.add_range_partition(*_bounds_of(each, columns))
    for each in ranges.get("range_splits", []):
        partitioning.add_range_partition_split(_bound_of(each["split_values"], columns))
    for each in ranges.get("custom_hash_schema_ranges", []):
        own = kudulite.RangePartition(*_bounds_of(each["range_bounds"], columns))
        for dimension in each["hash_schema"]:
            _add_hash(own, dimension)
        partitioning.add_custom_range_partition(own)
    return partitioning


def _add_hash(
    target: kudulite.Partitioning | kudulite.RangePartition, form: Mapping[str, Any]
) -> None:
    target.add_hash_partitions(form["columns"], form["num_buckets"], form.get("seed", 0))


def _schema_of(form: Mapping[str, Any]) -> Schema:
    """Return the schema of a definition; a key that is not unique names its last column, too."""
    key = list(form["key_column_names"])
    is_unique = AUTO_INCREMENTING_ID not in key
    if not is_unique:
        key.remove(AUTO_INCREMENTING_ID)
    columns = [
        _column_of(each)
        for each in form["columns"]
        if is_unique or each["column_name"] != AUTO_INCREMENTING_ID
    ]
    return kudulite.schema(columns, key, is_unique=is_unique)


def _column_of(form: Mapping[str, Any]) -> Column:
    names = {text: name for name, text in (ENCODINGS | COMPRESSIONS).items()}
    name = form["column_name"]
    given = dict(form.get("type_attributes", {}))
    kind = str(form["column_type"]).lower()
    kind = {"decimal": "decimal({precision}, {scale})", "varchar": "varchar({length})"}.get(
        kind, kind
    )
    column_type = parse_type(kind.format_map({"scale": 0} | given))
    default = form.get("default_value")
    stored = {
        option: names.get(form[option].upper(), form[option])
        for option in ("encoding", "compression")
        if option in form
    }
    return kudulite.column(
        name,
        column_type,
        nullable=form.get("is_nullable", False),
        default=None if default is None else _value_of(default, column_type, name),
        comment=form.get("comment") or "",
        mutable=form.get("is_mutable", True),
        **stored,
    )


def _bounds_of(form: Mapping[str, Any], columns: list[Column]) -> tuple[Any, Any, str, str]:
    """Return the lower and the upper bound, None without one, and their types."""
    ends: list[Any] = []
    kinds: list[str] = []
    for name, usual in (("lower_bound", "INCLUSIVE"), ("upper_bound", "EXCLUSIVE")):
        end = form.get(name)
        ends.append(None if end is None else _bound_of(end["bound_values"], columns))
        kind = usual if end is None else str(end.get("bound_type", usual))
        if kind.upper() not in ("INCLUSIVE", "EXCLUSIVE"):
            raise OptionError(f"{kind!r} is no bound type; possible: INCLUSIVE, EXCLUSIVE")
        kinds.append(kind.lower())
    return ends[0], ends[1], kinds[0], kinds[1]


def _bound_of(texts: list[str], columns: list[Column]) -> tuple[Any, ...]:
    pairs = zip(texts, columns, strict=True)
    return tuple(_value_of(text, column.type, column.name) for text, column in pairs)
