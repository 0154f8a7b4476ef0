"""Rows from files: CSV with a header line, JSON lines, Parquet.

Files are read in pieces. For a table that is there, CSV and JSON take its columns' types; for a new
one they are inferred from the first block. In CSV an empty cell is null and `""` an empty text. In
JSON bytes are base64, days and moments ISO 8601, and decimals may be text. So what `scan` prints
can be loaded.
"""

from __future__ import annotations

import base64
import enum
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from kudulite.errors import OptionError
from kudulite.model.schema import Schema

BATCH_ROWS = 1 << 16
_JSON_BLOCK_BYTES = 16 << 20


class FileFormat(enum.StrEnum):
    """How the rows of a file are written."""

    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


_ENDINGS = {
    ".csv": FileFormat.CSV,
    ".json": FileFormat.JSON,
    ".jsonl": FileFormat.JSON,
    ".ndjson": FileFormat.JSON,
    ".parquet": FileFormat.PARQUET,
}


def format_of(path: Path, given: FileFormat | None) -> FileFormat:
    """Return the format given, or that of the file's name. Raises OptionError."""
    found = given or _ENDINGS.get(path.suffix.lower())
    if found is None:
        raise OptionError(f"{path}: give --format csv, json or parquet; its name does not tell")
    return found


def schema_of_files(paths: Sequence[Path], given: FileFormat | None) -> pa.Schema:
    """Return the columns of the first file. Raises OptionError where it cannot be read."""
    with _reading(paths[0]):
        file_format = format_of(paths[0], given)
        if file_format == FileFormat.PARQUET:
            return pa.parquet.read_schema(paths[0]).remove_metadata()
        if file_format == FileFormat.CSV:
            with pa.csv.open_csv(paths[0]) as reader:
                return reader.schema
        return _json_schema(paths[0])


def read_rows(path: Path, given: FileFormat | None, schema: Schema | None) -> Iterator[pa.Table]:
    """Yield the rows of a file, in the types of a table's `schema` where it has the column.

    Raises OptionError for a file that cannot be read, naming it.
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
            # Columns of the schema that the file does not have come as nulls.
            chosen = batch.select([name for name in batch.schema.names if name in names])
            yield _decoded(chosen, texts)


def _is_text_in_json(kind: pa.DataType) -> bool:
    """Whether Arrow reads the type from JSON otherwise than `scan` writes it: as text."""
    return pa.types.is_binary(kind) or pa.types.is_temporal(kind)


def _json_schema(path: Path) -> pa.Schema:
    """Return the columns of the first block of a file."""
    reading = pa.json.ReadOptions(block_size=_JSON_BLOCK_BYTES)
    with pa.json.open_json(path, read_options=reading) as reader:
        return reader.schema


def _decoded(batch: pa.RecordBatch, texts: dict[str, pa.DataType]) -> pa.RecordBatch:
    """Return a batch with texts as what they stand for: moments in ISO 8601, bytes in base64."""
    for name in texts.keys() & {*batch.schema.names}:
        place, kind = batch.schema.get_field_index(name), texts[name]
        column = batch.column(place)
        if pa.types.is_binary(kind):
            # Arrow has no base64.
            cells = [None if c is None else base64.b64decode(c) for c in column.to_pylist()]
            column = pa.array(cells, kind)
        batch = batch.set_column(place, name, column.cast(kind))
    return batch


class _reading:
    """Turns what a bad file raises into an OptionError that names it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, pa.ArrowException | OSError | ValueError):
            raise OptionError(f"cannot read {self._path}: {error}") from error
