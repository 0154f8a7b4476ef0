"""Commands that write to a table: load, upsert, delete, loadgen.

The first three read rows from files, in pieces: CSV with a header line, JSON lines, or Parquet. CSV
and JSON get the types of an existing table's columns; for a new table, types are inferred from the
first block. In CSV an empty cell is null and `""` an empty text. In JSON bytes are base64, days and
moments ISO 8601, and decimals may be text. Rows printed by `scan` can therefore be loaded.

`loadgen` makes a synthetic load: random upserts and deletes of one table, at a given rate. Rows
have an id, a host, a moment, a value and a note, drawn from a seed. They are written as whole
batches, or row by row through a session that is flushed once per batch.
"""

from __future__ import annotations

import base64
import enum
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
import typer

import kudulite
from kudulite.errors import OptionError, TableNotFoundError
from kudulite.fs.progress import Progress
from kudulite.model.schema import Schema
from kudulite.table.folder import path_of
from kudulite.tools.output import AsJson, TablePath, names_of, print_fields, print_json

Files = Annotated[
    list[Path], typer.Argument(metavar="FILE…", exists=True, dir_okay=False, readable=True)
]

BATCH_ROWS = 1 << 16
_JSON_BLOCK_BYTES = 16 << 20
_DATE_LENGTH = len("2026-11-21")

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("host", pa.string()),
        pa.field("moment", pa.timestamp("us", "UTC")),
        pa.field("value", pa.float64()),
        pa.field("note", pa.string()),
    ]
)


class FileFormat(enum.StrEnum):
    """The formats of files with rows."""

    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def format_of(path: Path, given: FileFormat | None) -> FileFormat:
    """Return the format given, or that of the file's name. Raises OptionError."""
    ending = path.suffix.lower().removeprefix(".")
    try:
        return given or FileFormat("json" if ending in ("jsonl", "ndjson") else ending)
    except ValueError:
        raise OptionError(
            f"{path}: unknown file name ending; give --format csv, json or parquet"
        ) from None


def schema_of_files(paths: Sequence[Path], given: FileFormat | None) -> pa.Schema:
    """Return the columns of the first file. Raises OptionError if it cannot be read."""
    with _reading(paths[0]):
        file_format = format_of(paths[0], given)
        if file_format == FileFormat.PARQUET:
            return pa.parquet.read_schema(paths[0]).remove_metadata()
        if file_format == FileFormat.CSV:
            with pa.csv.open_csv(paths[0]) as reader:
                return reader.schema
        return _typed_json_schema(paths[0])


def read_rows(path: Path, given: FileFormat | None, schema: Schema | None) -> Iterator[pa.Table]:
    """Yield the rows of a file; columns of the table's `schema` get its types.

    Raises OptionError that names the file if it cannot be read.
    """
    with _reading(path):
        for batch in _batches(path, format_of(path, given), schema):
            yield pa.Table.from_batches([batch])


def _batches(
    path: Path, file_format: FileFormat, schema: Schema | None
) -> Iterator[pa.RecordBatch]:
    types = {} if schema is None else {column.name: column.type.arrow for column in schema}
    if file_format == FileFormat.PARQUET:
        with pa.parquet.ParquetFile(path) as file:
            yield from file.iter_batches(BATCH_ROWS)
    elif file_format == FileFormat.CSV:
        options = pa.csv.ConvertOptions(
            column_types=types,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        with pa.csv.open_csv(path, convert_options=options) as reader:
            yield from reader
    else:
        yield from _json_batches(path, types)


def _json_batches(path: Path, types: dict[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    texts = {name: kind for name, kind in types.items() if _is_text_in_json(kind)}
    fields = [(name, pa.string() if name in texts else kind) for name, kind in types.items()]
    parsing = pa.json.ParseOptions(explicit_schema=pa.schema(fields))
    reading = pa.json.ReadOptions(block_size=_JSON_BLOCK_BYTES)
    names = set(_json_schema(path).names)
    with pa.json.open_json(path, read_options=reading, parse_options=parsing) as reader:
        for batch in reader:
            # Arrow adds columns of the schema that the file does not have.
            chosen = batch.select([name for name in batch.schema.names if name in names])
            yield _decoded(chosen, texts)


def _is_text_in_json(kind: pa.DataType) -> bool:
    """Whether `scan` writes the type as text that Arrow reads in another way."""
    return bool(pa.types.is_binary(kind) or pa.types.is_temporal(kind))


def _json_schema(path: Path) -> pa.Schema:
    """Return the columns of the first block of a file."""
    reading = pa.json.ReadOptions(block_size=_JSON_BLOCK_BYTES)
    with pa.json.open_json(path, read_options=reading) as reader:
        return reader.schema


def _typed_json_schema(path: Path) -> pa.Schema:
    """Return the same with the types of texts that are dates or moments in all rows of the block.

    Arrow finds only some of these, and drops their zone.
    """
    found = _json_schema(path)
    is_text = {pa.string().id, pa.timestamp("s").id}
    texts = [field.name for field in found if field.type.id in is_text]
    parsing = pa.json.ParseOptions(pa.schema([(name, pa.string()) for name in texts]))
    reading = pa.json.ReadOptions(block_size=_JSON_BLOCK_BYTES)
    with pa.json.open_json(path, read_options=reading, parse_options=parsing) as reader:
        batch = reader.read_next_batch()
    for name in texts:
        field = pa.field(name, _type_of_texts(batch.column(name).drop_null()))
        found = found.set(found.get_field_index(name), field)
    return found


def _type_of_texts(values: pa.Array) -> pa.DataType:
    """Return the type of which all texts are values, if there are any."""
    for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()):
        try:
            values.cast(kind)
        except pa.ArrowInvalid:
            continue
        is_date = pc.all(pc.equal(pc.utf8_length(values), _DATE_LENGTH)).as_py()
        return pa.date32() if is_date else kind if len(values) else pa.string()
    return pa.string()


def _decoded(batch: pa.RecordBatch, texts: dict[str, pa.DataType]) -> pa.RecordBatch:
    """Return a batch with decoded texts: moments from ISO 8601, bytes from base64."""
    for name in texts.keys() & {*batch.schema.names}:
        place, kind = batch.schema.get_field_index(name), texts[name]
        column = batch.column(place)
        if pa.types.is_binary(kind):
            # Arrow has no base64.
            cells = [None if c is None else base64.b64decode(c) for c in column.to_pylist()]
            column = pa.array(cells, kind)
        batch = batch.set_column(place, name, column.cast(kind))
    return batch


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise the errors of a bad file as OptionError that names it."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise OptionError(f"cannot read {path}: {error}") from error


GivenFormat = Annotated[
    FileFormat | None, typer.Option("--format", help="By default by the file name's ending.")
]
PrimaryKey = Annotated[
    str | None, typer.Option(help="Make the table with this key: names, separated by commas.")
]
HashPartitions = Annotated[
    str | None,
    typer.Option("--hash-partitions", "--hash", help="Of the new table: `a:4; b,c:8`."),
]
RangePartitions = Annotated[
    str | None,
    typer.Option(
        "--range-partitions",
        "--range",
        help='Of the new table: {"columns": ["t"], "bounds": [["2026-01-01", null]]}.',
    ),
]


def load(
    path: TablePath,
    files: Files,
    file_format: GivenFormat = None,
    primary_key: PrimaryKey = None,
    hash_partitions: HashPartitions = None,
    range_partitions: RangePartitions = None,
    as_json: AsJson = False,
) -> None:
    """Insert the rows of files, all or none; an existing key is an error.

    A table that was made for the rows is deleted if they cannot be loaded.
    """
    if primary_key is None:
        if hash_partitions is not None or range_partitions is not None:
            raise OptionError("partitions are for a new table, which needs --primary-key")
        _write(kudulite.open_table(path), "insert", files, file_format, as_json)
        return
    place = path_of(path)
    client = kudulite.connect(place.parent, background_maintenance=False)
    table = client.create_table(
        place.name,
        schema_of_files(files, file_format),
        primary_key=names_of(primary_key),
        hash_partitions=hash_partitions_of(hash_partitions),
        range_partitions=range_partitions_of(range_partitions),
    )
    try:
        _write(table, "insert", files, file_format, as_json)
    except BaseException:
        client.delete_table(table.name, if_version=1)  # unless another process has written to it
        raise


def upsert(
    path: TablePath, files: Files, file_format: GivenFormat = None, as_json: AsJson = False
) -> None:
    """Insert the rows of files, or update the rows with existing keys, all or none."""
    _write(kudulite.open_table(path), "upsert", files, file_format, as_json)


def delete(
    path: TablePath,
    files: Files,
    file_format: GivenFormat = None,
    ignore: Annotated[bool, typer.Option(help="Absent keys are no error.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the rows whose keys are in files, all or none; other columns are ignored."""
    operation = "delete_ignore" if ignore else "delete"
    _write(kudulite.open_table(path), operation, files, file_format, as_json)


def loadgen(
    path: TablePath,
    seconds: Annotated[float, typer.Option(help="The duration.", min=0)] = 10.0,
    rows: Annotated[int | None, typer.Option(help="The most rows to write.", min=1)] = None,
    rate: Annotated[
        float, typer.Option(help="The most rows per second; 0 is no limit.", min=0)
    ] = 0.0,
    batch_rows: Annotated[int, typer.Option(help="Rows per write.", min=1)] = 1000,
    keys: Annotated[int, typer.Option(help="The number of different keys.", min=1)] = 1_000_000,
    deletes: Annotated[float, typer.Option(help="The share of deletes.", min=0, max=1)] = 0.05,
    sessions: Annotated[
        bool, typer.Option(help="Write row by row, and flush after --batch-rows.")
    ] = False,
    tablets: Annotated[int, typer.Option(help="The tablets of a new table.", min=1)] = 4,
    seed: Annotated[int, typer.Option(help="The seed of the random rows.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Write random rows for a while and report the rate; makes the table if there is none."""
    with Progress(f"load of table {path}") as progress:
        table = _table(path, tablets)
        session = kudulite.Session("manual") if sessions else None
        random = np.random.default_rng(seed)
        begin = time.perf_counter()
        latencies: list[float] = []
        row_count = delete_count = 0
        while time.perf_counter() - begin < seconds and (rows is None or row_count < rows):
            count = batch_rows if rows is None else min(batch_rows, rows - row_count)
            dead_count = int(random.binomial(count, deletes))
            made = _rows(random, count - dead_count, keys)
            dead = pa.table({"id": random.integers(0, keys, dead_count)})
            start = time.perf_counter()
            _write_batches(table, session, made, dead)
            spent = time.perf_counter() - begin
            latencies.append(begin + spent - start)
            row_count, delete_count = row_count + count, delete_count + dead_count
            progress.add(count)
            if rate:
                time.sleep(max(0.0, min(row_count / rate, seconds) - spent))
        found = _figures(latencies, time.perf_counter() - begin, row_count, delete_count)
    found["table_row_count"] = table.scan().count()
    if as_json:
        print_json(found)
    else:
        print_fields({n: f"{v:,.6g}" if isinstance(v, float) else v for n, v in found.items()})


def range_partitions_of(text: str | None) -> dict[str, Any] | None:
    """Return the range partitions in a JSON text. Raises OptionError."""
    try:
        found: dict[str, Any] | None = None if text is None else json.loads(text)
    except ValueError as error:
        raise OptionError(f"--range-partitions {text!r} is not JSON: {error}") from None
    return found


def hash_partitions_of(text: str | None) -> list[tuple[list[str], int]] | None:
    """Return `a:4; b,c:8` as a list of columns and bucket counts. Raises OptionError."""
    if text is None:
        return None
    found = []
    for part in text.split(";"):
        names, _, count = part.rpartition(":")
        if not names.strip() or not count.strip().isdigit():
            raise OptionError(f"--hash-partitions {text!r}: expected `a:4` or `a:4; b,c:8`")
        found.append((names_of(names) or [], int(count)))
    return found


def _write(
    table: kudulite.Table,
    operation: str,
    files: Sequence[Path],
    file_format: FileFormat | None,
    as_json: bool,
) -> None:
    """Write all files in one commit."""
    schema = table.schema
    first = schema_of_files(files, file_format).names
    is_delete = operation.startswith("delete")
    columns = [name for name in first if not is_delete or name in schema.key_names]
    write = table.new_bulk_write(operation, columns=columns)
    try:
        with Progress(f"write to table {table.name!r}"):
            staged = [
                write.stage(read_rows(path, file_format, schema), index)
                for index, path in enumerate(files)
            ]
            result = write.commit(staged)
    except BaseException:
        write.abort()
        raise
    print_result(result, as_json)


def print_result(result: kudulite.WriteResult, as_json: bool) -> None:
    """Print the row counts of a write and its version."""
    counts: dict[str, Any] = {
        name: getattr(result, name) for name in ("inserted", "updated", "deleted", "ignored")
    }
    if as_json:
        print_json({**counts, "timestamp": result.timestamp, "version": result.version})
    else:
        said = [f"{count:,} {name}" for name, count in counts.items() if count]
        print(f"{', '.join(said) or 'nothing changed'}; version {result.version}")


_HOSTS = np.array([f"host-{number:03d}" for number in range(200)], object)


def _figures(
    latencies: Sequence[float], seconds: float, row_count: int, delete_count: int
) -> dict[str, float]:
    """Return counts, the rate, and the milliseconds of one write until it was durable."""
    found = 1000 * np.array(latencies or [0.0])
    return {
        "seconds": seconds,
        "write_count": len(latencies),
        "row_count": row_count,
        "delete_count": delete_count,
        "rows_per_second": row_count / seconds if seconds else 0.0,
        "milliseconds_median": float(np.median(found)),
        "milliseconds_p99": float(np.quantile(found, 0.99)),
        "milliseconds_max": float(found.max()),
    }


def _table(path: str, tablet_count: int) -> kudulite.Table:
    try:
        return kudulite.open_table(path)
    except TableNotFoundError:
        place = path_of(path)
        client = kudulite.connect(place.parent, background_maintenance=False)
        hashed = [(["id"], tablet_count)] if tablet_count > 1 else None
        return client.create_table(place.name, SCHEMA, primary_key="id", hash_partitions=hashed)


def _rows(random: np.random.Generator, count: int, key_count: int) -> pa.Table:
    now = time.time_ns() // 1000
    columns = [
        pa.array(random.integers(0, key_count, count)),
        pa.array(_HOSTS[random.integers(0, len(_HOSTS), count)], pa.string()),
        pa.array(now - random.integers(0, 1_000_000, count)).cast(SCHEMA.field("moment").type),
        pa.array(random.normal(100, 15, count)),
        pa.array(random.integers(0, 1 << 40, count)).cast(pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _write_batches(
    table: kudulite.Table, session: kudulite.Session | None, made: pa.Table, deleted: pa.Table
) -> None:
    if session is None:
        if made.num_rows:
            table.upsert(made)
        if deleted.num_rows:
            table.delete_ignore(deleted)
        return
    for row in made.to_pylist():
        session.apply(table.new_upsert(row))
    for row in deleted.to_pylist():
        session.apply(table.new_delete_ignore(row))
    session.flush()
