"""Commands that write to a table: load, upsert, delete, loadgen.

The first three read rows from files (reads/row_files.py), in pieces, with the types of an existing
table's columns. A new table gets the types that all rows show (reads/row_types.py). Rows printed by
`scan` can therefore be loaded.

`loadgen` makes a synthetic load: random upserts and deletes of one table, at a given rate. Rows
have an id, a host, a moment, a value and a note, drawn from a seed. They are written as whole
batches, or row by row through a session that is flushed once per batch.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer

import kudulite
from kudulite.errors import OptionError, SchemaError, TableExistsError, TableNotFoundError
from kudulite.model.types import ColumnType, parse_type
from kudulite.reads.row_files import (
    Advice,
    FileFormat,
    FileOptions,
    RowFile,
    columns_of_files,
    row_file,
)
from kudulite.reads.row_types import columns_of_new_table
from kudulite.shown.progress import Progress
from kudulite.tablet.operation import mask_of, parse_operation
from kudulite.tools.addresses import connect_beside, open_table
from kudulite.tools.output import AsJson, TablePath, names_of, print_fields, print_json

Files = Annotated[
    list[Path], typer.Argument(metavar="FILE…", exists=True, dir_okay=False, readable=True)
]

ADVICE = Advice(
    unknown_ending="give --format csv, json or parquet",
    encoding="give the encoding of the file, as in --encoding latin-1",
    leave_out="leave the column out with --skip '{name}'",
    rename="rename one in the file, or leave both out with --skip '{name}'",
    name="name it in the file, or leave it out with --skip ''",
    one_kind=(
        "load texts and numbers as text with --types '{name}=string', or leave the column out with"
        " --skip '{name}'"
    ),
    give_type="give it as in --types '{name}=array(string)'",
    several="write files with other columns by a command of their own",
)

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("host", pa.string()),
        pa.field("moment", pa.timestamp("us", "UTC")),
        pa.field("value", pa.float64()),
        pa.field("note", pa.string()),
    ]
)


GivenFormat = Annotated[
    FileFormat | None, typer.Option("--format", help="By default by the file name's ending.")
]
Encoding = Annotated[
    str | None,
    typer.Option(help="The encoding of CSV and JSON, as latin-1. UTF-8 and UTF-16 are found out."),
]
Skip = Annotated[
    str | None, typer.Option(help="Columns of the files to leave out, separated by commas.")
]
Types = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=TYPE", help="Types of columns of the new table: code=string."),
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
Unchanged = Annotated[
    str | None,
    typer.Option(
        metavar="skip", help="Leave out cells and rows that are equal to those of the table."
    ),
]


def load(
    path: TablePath,
    files: Files,
    file_format: GivenFormat = None,
    encoding: Encoding = None,
    skip: Skip = None,
    types: Types = None,
    primary_key: PrimaryKey = None,
    hash_partitions: HashPartitions = None,
    range_partitions: RangePartitions = None,
    overwrite: Annotated[
        bool, typer.Option(help="Replace all rows of the table by those of the files.")
    ] = False,
    unchanged: Unchanged = None,
    as_json: AsJson = False,
) -> None:
    """Insert the rows of files, all or none; an existing key is an error.

    With --overwrite the table has these rows only, in one version. Add --unchanged skip for a
    full snapshot of which little differs.
    A new table gets the types that all rows show; a text of digits such as 007 is a text. A table
    that was made for the rows is deleted if they cannot be loaded.
    """
    rows = files_of(files, file_format, encoding, skip)
    if unchanged is not None and not overwrite:
        raise OptionError("--unchanged is for --overwrite: an insert changes no row that is there")
    if primary_key is None:
        if hash_partitions is not None or range_partitions is not None:
            raise OptionError("partitions are for a new table, which needs --primary-key")
        if types:
            raise OptionError(
                "--types are for a new table, which needs --primary-key; a table that exists has"
                " types, which `kudulite describe` shows"
            )
        options = {"overwrite": overwrite, "unchanged": unchanged}
        _write(open_table(path), "insert", rows, as_json, **options)
        return
    if overwrite:
        raise OptionError("--overwrite is for a table that exists, --primary-key for a new one")
    client, name = connect_beside(path)
    if client.table_exists(name):
        raise TableExistsError(f"table {name!r} exists already; load without --primary-key")
    table = client.create_table(
        name,
        schema_of_files(rows, names_of(primary_key) or [], types),
        hash_partitions=hash_partitions_of(hash_partitions),
        range_partitions=range_partitions_of(range_partitions),
    )
    try:
        _write(table, "insert", rows, as_json)
    except BaseException:
        client.delete_table(table.name, if_version=1)  # unless another process has written to it
        raise


def upsert(
    path: TablePath,
    files: Files,
    file_format: GivenFormat = None,
    encoding: Encoding = None,
    skip: Skip = None,
    unchanged: Unchanged = None,
    as_json: AsJson = False,
) -> None:
    """Insert the rows of files, or update the rows with existing keys, all or none.

    A JSON object sets the columns whose keys it has.
    """
    rows = files_of(files, file_format, encoding, skip)
    _write(open_table(path), "upsert", rows, as_json, unchanged=unchanged)


def delete(
    path: TablePath,
    files: Files,
    file_format: GivenFormat = None,
    encoding: Encoding = None,
    ignore: Annotated[bool, typer.Option(help="Absent keys are no error.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the rows whose keys are in files, all or none; other columns are ignored."""
    operation = "delete_ignore" if ignore else "delete"
    rows = files_of(files, file_format, encoding, None)
    _write(open_table(path), operation, rows, as_json)


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
        row_count_max = sys.maxsize if rows is None else rows
        if rate:
            row_count_max = min(row_count_max, math.ceil(rate * seconds))
        while time.perf_counter() - begin < seconds and row_count < row_count_max:
            count = min(batch_rows, row_count_max - row_count)
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


def files_of(
    paths: Sequence[Path], file_format: FileFormat | None, encoding: str | None, skip: str | None
) -> list[RowFile]:
    """Return the files of paths. Raises OptionError for one that cannot be read."""
    skipped = frozenset() if skip is None else frozenset(map(str.strip, skip.split(",")))
    options = FileOptions(file_format, encoding, skipped, ADVICE)
    return [row_file(path, options) for path in paths]


def schema_of_files(
    files: Sequence[RowFile], key: Sequence[str], types: Sequence[str] | None
) -> kudulite.Schema:
    """Return the schema, with the key `key`, of a new table that holds all rows of the files.

    `types` are texts such as `code=string,price=decimal(9,2)`. Raises OptionError for one of them,
    for a file that cannot be read, and for a column without a type.
    """
    columns = columns_of_new_table(files, _types_of(types))
    missing = [name for name in key if name not in columns]
    if missing:
        raise OptionError(
            f"--primary-key names {missing[0]!r}, which is no column; the columns are"
            f" {', '.join(columns)}"
        )
    described = [
        kudulite.column(name, columns[name][0], nullable=columns[name][1])
        for name in dict.fromkeys([*key, *columns])
    ]
    return kudulite.schema(described, key)


def _types_of(texts: Sequence[str] | None) -> dict[str, ColumnType]:
    found = {}
    for text in texts or ():
        for part in re.split(r",(?![^(]*\))", text):
            name, mark, kind = part.rpartition("=")
            if not mark or not name.strip():
                raise OptionError(f"--types {part!r}: expected NAME=TYPE, as in code=string")
            try:
                found[name.strip()] = parse_type(kind)
            except SchemaError as error:
                raise OptionError(f"--types {part!r}: {error}") from error
    return found


def _write(
    table: kudulite.Table,
    operation: str,
    files: Sequence[RowFile],
    as_json: bool,
    **options: Any,
) -> None:
    """Write all files in one commit."""
    schema = table.schema
    columns, masked = _columns(files, operation, schema)
    types = {column.name: column.type for column in schema}
    names = [*columns, *map(mask_of, masked)]
    write = table.new_bulk_write(operation, columns=names, **options)
    try:
        with Progress(f"write to table {table.name!r}"):
            staged = [
                write.stage(file.batches(types, columns, masked), index)
                for index, file in enumerate(files)
            ]
            result = write.commit(staged)
    except BaseException:
        write.abort()
        raise
    print_result(result, as_json)


def _columns(
    files: Sequence[RowFile], operation: str, schema: kudulite.Schema
) -> tuple[list[str], list[str]]:
    """Return the columns that the files set, and those that not all JSON objects set.

    The second ones matter where a column that is left has another value than NULL. Raises
    OptionError for a column that the table, or a file other than JSON, does not have.
    """
    kind = parse_operation(operation)
    candidates = {
        column.name
        for column in schema.value_columns
        if not kind.is_delete and (kind.is_upsert or column.write_default is not None)
    }
    columns, masked = columns_of_files(files, schema, candidates)
    if kind.is_delete:
        columns = [name for name in columns if name in schema.key_names]
    for name in columns:
        if name not in schema.names:
            file = next(file for file in files if name in file.names())
            raise OptionError(
                f"{file.path}: column {name!r} is none of the table's, which are"
                f" {', '.join(schema.names)}; {file.advice.leave_out.format(name=name)}"
            )
    return columns, masked


_COUNTS = ("inserted", "updated", "deleted", "ignored", "unchanged")


def print_result(result: kudulite.WriteResult, as_json: bool) -> None:
    """Print the row counts of a write and its moment."""
    form = result_form(result)
    if as_json:
        print_json(form)
    else:
        said = [f"{form[name]:,} {name}" for name in _COUNTS if form[name]]
        print(f"{', '.join(said) or 'nothing changed'}, at {result.timestamp}")


def result_form(result: kudulite.WriteResult) -> dict[str, Any]:
    """Return the outcome of a write as JSON has it."""
    names = (*_COUNTS, "timestamp", "version")
    return {name: getattr(result, name) for name in names}


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
        return open_table(path)
    except TableNotFoundError:
        client, name = connect_beside(path)
        hashed = [(["id"], tablet_count)] if tablet_count > 1 else None
        return client.create_table(name, SCHEMA, primary_key="id", hash_partitions=hashed)


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
