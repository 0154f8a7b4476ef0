"""Rows to standard output or a file: as a table, CSV, JSON lines, or Parquet."""

from __future__ import annotations

import contextlib
import enum
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from kudulite.errors import OptionError
from kudulite.model.schema import Column
from kudulite.tools.output import json_text, print_rows


class RowFormat(enum.StrEnum):
    """How rows are written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def write_rows(reader: pa.RecordBatchReader, row_format: RowFormat, output: Path | None) -> None:
    """Write all rows, batch by batch but for a table. Raises OptionError for Parquet to a pipe."""
    if row_format == RowFormat.TABLE:
        if output is not None:
            raise OptionError("--output needs --format csv, json or parquet")
        rows = reader.read_all()
        print_rows(rows.schema.names, zip(*(c.to_pylist() for c in rows.columns), strict=True))
        return
    nested = [field.name for field in reader.schema if pa.types.is_nested(field.type)]
    if row_format == RowFormat.CSV and nested:
        raise OptionError(
            f"CSV has no rows or arrays within rows: {', '.join(nested)}; leave them out with"
            " --columns, or use --format json or parquet"
        )
    if row_format == RowFormat.PARQUET and output is None:
        raise OptionError("--format parquet needs --output FILE")
    with _sink(output) as sink:
        if row_format == RowFormat.PARQUET:
            with pa.parquet.ParquetWriter(sink, reader.schema) as writer:
                for batch in reader:
                    writer.write_batch(batch)
        elif row_format == RowFormat.CSV:
            _write_csv(reader, sink)
        else:
            for batch in reader:
                sink.writelines(f"{json_text(row)}\n".encode() for row in batch.to_pylist())


def _write_csv(reader: pa.RecordBatchReader, sink: BinaryIO) -> None:
    try:
        with pa.csv.CSVWriter(sink, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
    except pa.ArrowInvalid as error:
        # Nothing but bytes fails here: every other flat value has a text.
        binary = [field.name for field in reader.schema if pa.types.is_binary(field.type)]
        raise OptionError(
            f"CSV has no bytes that are not text, as in column {', '.join(binary)}; leave it out"
            " with --columns, or use --format json or parquet"
        ) from error


def key_of_text(columns: Sequence[Column], texts: Sequence[str]) -> tuple[object, ...]:
    """Return a primary key from what was typed for each of its columns. Raises OptionError."""
    names = ", ".join(column.name for column in columns)
    if len(texts) != len(columns):
        raise OptionError(f"the primary key is ({names}); {len(texts)} values were given")
    values = []
    for column, text in zip(columns, texts, strict=True):
        try:
            values.append(pa.scalar(text).cast(column.type.arrow).as_py())
        except pa.ArrowInvalid as error:
            raise OptionError(f"key column {column.name!r}: {error}") from error
    return tuple(values)


@contextlib.contextmanager
def _sink(output: Path | None) -> Iterator[BinaryIO]:
    if output is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    else:
        with output.open("wb") as file:
            yield file
