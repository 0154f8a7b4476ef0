"""Arguments and output that the commands share.

With --json a command prints one JSON value for programs, else text for people. Rows are printed, or
written to a file, as a table, CSV, JSON lines or Parquet.

Results are written to standard output, progress and errors to standard error, so that results can
be piped.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import decimal
import enum
import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, cast

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import typer
from rich.console import Console
from rich.table import Table

from kudulite.errors import OptionError
from kudulite.model.hybrid_time import Timestamp
from kudulite.model.schema import Column
from kudulite.model.types import ColumnType
from kudulite.model.values import python_rows, python_values
from kudulite.shown.progress import Progress
from kudulite.storage.address import DIRECTORIES
from kudulite.table.environment import default_environment
from kudulite.table.table_store import TableStore
from kudulite.tools.addresses import address_of, environment_of

PIPE_WIDTH = 100_000
# A column of texts up to this many characters is never narrower than they are.
_WHOLE_WIDTH_MAX = 12
_MICROSECONDS = re.compile(r"-?\d+")

TablePath = Annotated[
    str, typer.Argument(metavar="PATH", help="The table's folder, or s3://bucket/prefix/table.")
]
TablePaths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH…", help="Tables, directories of tables, or patterns such as 'wh/day_*'."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
ColumnNames = Annotated[str | None, typer.Option("--columns", help="Names, separated by commas.")]


def print_json(value: Any) -> None:
    """Print one value as a line of JSON; see `json_text`.

    A member that is a HybridTime is followed by one with its text: `timestamp` by `time`, any other
    one by its name with `_time`.
    """
    print(json_text(_with_times(value)))


def json_text(value: Any) -> str:
    """Return a value as JSON; dates as ISO 8601, bytes as base64, decimals as their digits."""
    return json.dumps(value, default=_json_value, ensure_ascii=False)


def _with_times(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        found = {}
        for name, member in value.items():
            found[name] = _with_times(member)
            if isinstance(member, Timestamp):
                found["time" if name == "timestamp" else f"{name}_time"] = str(member)
        return found
    return [_with_times(member) for member in value] if isinstance(value, list | tuple) else value


def _json_value(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal | datetime.time):
        return str(value)
    raise TypeError(f"{value!r} has no form in JSON")


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print names and values, one pair per line."""
    print(fields_text(fields))


def fields_text(fields: Mapping[str, Any]) -> str:
    """Return names and values, one pair per line."""
    width = max(map(len, fields))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in fields.items())


def print_rows(
    names: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    thousands: bool = False,
    marked: Collection[int] = (),
) -> None:
    """Print a table with numbers to the right; `thousands` separates groups of three digits.

    A cell without a value is blank. The rows whose numbers are `marked` are red. On a terminal,
    long texts go on in the next line where the table is too wide; nothing is cut off.
    """
    cells = [list(row) for row in rows]
    texts = [[_shown(value, thousands) for value in row] for row in cells]
    table = Table(box=None, pad_edge=False, header_style="bold")
    width_min = 0
    for index, name in enumerate(names):
        is_number = all(
            isinstance(row[index], int | float | None) and not isinstance(row[index], Timestamp)
            for row in cells
        )
        width = max(len(name), *(len(row[index]) for row in texts), 0)
        is_whole = is_number or width <= _WHOLE_WIDTH_MAX
        justify: Literal["left", "right"] = "right" if is_number and cells else "left"
        table.add_column(name, justify=justify, no_wrap=is_whole, overflow="fold")
        width_min += (width if is_whole else _WHOLE_WIDTH_MAX) + 1
    for number, row in enumerate(texts):
        table.add_row(*row, style="red" if number in marked else None)
    console = Console(markup=False, highlight=False)
    # In a pipe, and with too many columns for the terminal, each row is one line.
    if not console.is_terminal or width_min > console.width:
        console = Console(markup=False, highlight=False, width=PIPE_WIDTH)
    console.print(table)


def _shown(value: object, thousands: bool) -> str:
    if value is None:
        return ""
    return f"{value:,}" if thousands and type(value) is int else str(value)


class RowFormat(enum.StrEnum):
    """The forms in which rows are written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def write_rows(
    reader: pa.RecordBatchReader, row_format: RowFormat, output: str | None, about: str
) -> None:
    """Write all rows; a table at once, other formats batch by batch.

    `about` is the text of the progress, which is not shown among rows on a terminal. Raises
    OptionError for Parquet without a file, and for values that CSV cannot hold.
    """
    if row_format == RowFormat.TABLE:
        if output is not None:
            raise OptionError("--output needs --format csv, json or parquet")
        with Progress(about) as progress:
            found = pa.Table.from_batches(progress.counted(reader, len), reader.schema)
        rows = python_rows(found)
        print_rows(reader.schema.names, [[*row.values()] for row in rows])
        return
    nested = [field.name for field in reader.schema if pa.types.is_nested(field.type)]
    if row_format == RowFormat.CSV and nested:
        raise OptionError(
            f"CSV cannot hold rows or arrays within rows: {', '.join(nested)}; leave them out with"
            " --columns, or use --format json or parquet"
        )
    if row_format == RowFormat.PARQUET and output is None:
        raise OptionError("--format parquet needs --output FILE")
    is_seen = output is None and sys.stdout.isatty()
    with (
        output_file(output) as sink,
        contextlib.nullcontext() if is_seen else Progress(about) as shown,
    ):
        batches: Iterable[pa.RecordBatch] = reader if shown is None else shown.counted(reader, len)
        if row_format == RowFormat.PARQUET:
            with pa.parquet.ParquetWriter(sink, reader.schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
        elif row_format == RowFormat.CSV:
            _write_csv(reader.schema, batches, sink)
        else:
            for batch in batches:
                for row in python_rows(batch):
                    sink.write(f"{json_text(row)}\n".encode())


def _write_csv(schema: pa.Schema, batches: Iterable[pa.RecordBatch], sink: BinaryIO) -> None:
    try:
        with pa.csv.CSVWriter(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    except pa.ArrowInvalid as error:
        # Only bytes fail here: every other flat value has a text form.
        binary = [field.name for field in schema if pa.types.is_binary(field.type)]
        raise OptionError(
            f"CSV cannot hold the bytes of column {', '.join(binary)}, which are not text; leave it"
            " out with --columns, or use --format json or parquet"
        ) from error


def key_of_text(columns: Sequence[Column], texts: Sequence[str]) -> tuple[object, ...]:
    """Return a primary key from one text per key column. Raises OptionError."""
    names = ", ".join(column.name for column in columns)
    if len(texts) != len(columns):
        raise OptionError(f"the primary key is ({names}); {len(texts)} values were given")
    pairs = zip(columns, texts, strict=True)
    return tuple(value_of_text(column.name, column.type, text, "key ") for column, text in pairs)


def value_of_text(name: str, column_type: ColumnType, text: str, kind: str = "") -> object:
    """Return the cell that a text stands for. Raises OptionError that names the column.

    The text of a moment is ISO 8601, or an integer of microseconds since the epoch.
    """
    try:
        cell = pa.array([text])
        if column_type.is_timestamp and _MICROSECONDS.fullmatch(text):
            cell = cell.cast(pa.int64())
        cell = cell.cast(column_type.arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise OptionError(f"{kind}column {name!r}: {error}") from error
    return python_values(cell)[0]


@contextlib.contextmanager
def output_file(output: str | None) -> Iterator[BinaryIO]:
    """Open a file or an address for writing; None is standard output."""
    if output is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    address = address_of(output)
    if address.storage == DIRECTORIES:  # perhaps of a pipe or a device
        with address.path.open("wb") as file:
            yield file
        return
    with environment_of(address).storage.open_replacing_sink(address.path) as sink:
        yield cast(BinaryIO, sink)
        sink.finish()


Format = Annotated[RowFormat, typer.Option("--format", help="json prints one object per line.")]
OutputFile = Annotated[
    str | None, typer.Option("--output", help="A file or address instead of standard output.")
]


def names_of(text: str | None) -> list[str] | None:
    """Return the names in a text, which are separated by commas."""
    return None if text is None else [name.strip() for name in text.split(",")]


def is_table(folder: Path) -> bool:
    """Whether a folder is a table's own, whose tables nobody can list."""
    return TableStore(folder, default_environment()).chain.exists()
