"""Files with rows: CSV with a header line, JSON, Parquet; their names, and their rows as batches.

    x.csv x.json x.jsonl x.ndjson x.parquet      the format; the first four also as x.csv.gz, .bz2,
                                                 .zst, .lz4
    UTF-8, with or without a mark; UTF-16 with   CSV and JSON; others by `FileOptions`
    one
    one object in a line, objects one after      JSON
    the other, or one array of them

CSV and JSON are read in blocks with the types of the table's columns: exactly, or not at all. An
error names the file, the column and the row, which is counted from 1 without the header. In CSV an
empty cell is null and `""` an empty text. In JSON bytes are base64, days and moments ISO 8601, and
decimals may be text. A JSON object sets the columns whose keys it has.

**Invariants**: no value is rounded, and no row, column or key is left out but those to be skipped.

**Threads**: none.
"""

from __future__ import annotations

import base64
import codecs
import csv
import enum
import io
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from kudulite.errors import OptionError
from kudulite.model.schema import Schema
from kudulite.model.types import ColumnType
from kudulite.tablet.operation import mask_of

BATCH_ROWS = 1 << 16
BLOCK_BYTES = 16 << 20
Types = Mapping[str, ColumnType]

_COMPRESSIONS = (".gz", ".bz2", ".zst", ".lz4")
_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BETWEEN_VALUES = re.compile(r"[\s,]*")
_READ_OTHERWISE = "or read the file with pandas or pyarrow, and give the frame"


class FileFormat(enum.StrEnum):
    """The formats of files with rows."""

    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


class NumberText(str):
    """A number of a JSON file, as it is written there."""

    __slots__ = ()


@dataclass(frozen=True)
class Advice:
    """Advice about a file that is refused, in the words of the interface that reads it.

    `{name}` is the name of a column.
    """

    unknown_ending: str = f"name it .csv, .json or .parquet, {_READ_OTHERWISE}"
    encoding: str = f"write it as UTF-8, {_READ_OTHERWISE}"
    leave_out: str = "leave the column out: read the file with pandas or pyarrow, and drop it"
    rename: str = f"rename one in the file, {_READ_OTHERWISE}"
    name: str = f"name it in the file, {_READ_OTHERWISE}"
    one_kind: str = "read the file with pandas, and give the column one type"
    give_type: str = "create the table with a schema that has its type, and write the file then"
    several: str = "write files with other columns by a call of their own"


@dataclass(frozen=True)
class FileOptions:
    """How files are read; None is found out from the file."""

    file_format: FileFormat | None = None
    encoding: str | None = None
    skipped: frozenset[str] = frozenset()
    advice: Advice = Advice()


def _format_of(path: Path, options: FileOptions) -> FileFormat:
    name = path.name.lower()
    for ending in _COMPRESSIONS:
        name = name.removesuffix(ending)
    ending = name.rpartition(".")[2]
    try:
        named = "json" if ending in ("jsonl", "ndjson") else ending
        return options.file_format or FileFormat(named)
    except ValueError:
        raise OptionError(
            f"{path}: unknown file name ending; {options.advice.unknown_ending}"
        ) from None


@dataclass(frozen=True)
class RowFile:
    """One file with rows; made by `row_file`."""

    path: Path
    file_format: FileFormat
    encoding: str
    skipped: frozenset[str]
    advice: Advice

    def names(self) -> list[str]:
        """Return the columns that the file has. Raises OptionError for bad names."""
        with self.reading():
            if self.file_format is FileFormat.JSON:
                return self.keys(())[0]
            if self.file_format is FileFormat.PARQUET:
                found = pa.parquet.read_schema(self.path).names
            else:
                found = self._header()
        kept = [name for name in found if name not in self.skipped]
        if "" in kept:
            raise OptionError(
                f"{self.path}: column {found.index('') + 1} has no name, as an index that pandas"
                f" writes; {self.advice.name}"
            )
        for name in kept:
            if kept.count(name) > 1:
                raise OptionError(
                    f"{self.path}: two columns have the name {name!r};"
                    f" {self.advice.rename.format(name=name)}"
                )
        return kept

    def keys(self, masked: Collection[str]) -> tuple[list[str], set[str]]:
        """Return the keys of a JSON file in their order, and those of `masked` that some lack."""
        names: dict[str, None] = {}
        lacking: set[str] = set()
        row_count = 0
        for lines in self.json_lines():
            found = _columns_of(lines)
            keys = dict.fromkeys(() if found is None else found.column_names)
            doubtful = set(masked) - lacking
            if found is not None:
                doubtful = {key for key in doubtful & keys.keys() if found[key].null_count}
                lacking |= set(masked) - keys.keys()
            if found is None or doubtful:
                objects = self.objects(lines, row_count)
                keys |= dict.fromkeys(key for each in objects for key in each)
                lacking |= {key for key in doubtful if not all(key in each for each in objects)}
            names |= keys
            row_count += len(lines)
        kept = [name for name in names if name not in self.skipped]
        return kept, lacking & names.keys()

    def batches(
        self, types: Types, names: Sequence[str], masked: Collection[str] = ()
    ) -> Iterator[pa.Table]:
        """Yield the rows with the columns `names`, and a mask of each column that is `masked`.

        Columns in `types` get their types. Raises OptionError that names the file, and the column
        and the row of a value that does not fit.
        """
        chosen = {name: types[name] for name in names}
        with self.reading():
            if self.file_format is FileFormat.JSON:
                yield from self._json_tables(chosen, masked)
                return
            for table in self._csv_or_parquet(chosen):
                for name in masked:
                    mask = pa.repeat(pa.scalar(True), table.num_rows)
                    table = table.append_column(mask_of(name), mask)
                yield table

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise the errors of a bad file as OptionError that names it."""
        try:
            yield
        except OptionError:
            raise
        except (pa.ArrowException, OSError, ValueError, LookupError) as error:
            raise OptionError(f"cannot read {self.path}: {error}") from error

    def _bad(self, where: str, what: object) -> OptionError:
        return OptionError(f"cannot read {self.path}: {where}: {what}")

    def _stream(self) -> pa.NativeFile:
        return pa.input_stream(str(self.path), compression="detect")

    def _csv_or_parquet(self, types: Types) -> Iterator[pa.Table]:
        if self.file_format is FileFormat.CSV:
            yield from self.csv_tables(types)
            return
        with pa.parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=list(types)):
                yield pa.Table.from_batches([batch])

    # -- CSV

    def _text_rows(self) -> Iterator[list[str]]:
        """Yield the records of a CSV file, the header too; bytes of no text are surrogates."""
        with self._stream() as stream:
            text = io.TextIOWrapper(stream, self.encoding, errors="surrogateescape", newline="")
            yield from csv.reader(text)

    def _header(self) -> list[str]:
        names = next(self._text_rows(), None)
        if names is None:
            raise OptionError(f"{self.path} is empty: a CSV file begins with the names of columns")
        for name in names:
            if not _is_text(name):
                raise self._bad("the header", f"{_raw(name)!r} is no UTF-8; {self.advice.encoding}")
        return names

    def csv_tables(self, types: Types) -> Iterator[pa.Table]:
        """Yield the rows of a CSV file with the columns of `types`."""
        converting = _converting(types)
        encoding = "utf8" if self.encoding == "utf-8-sig" else self.encoding
        reading = pa.csv.ReadOptions(block_size=BLOCK_BYTES, encoding=encoding)
        parsing = pa.csv.ParseOptions(newlines_in_values=True)
        try:
            with (
                self._stream() as stream,
                pa.csv.open_csv(stream, reading, parsing, converting) as reader,
            ):
                for batch in reader:
                    yield pa.Table.from_batches([batch])
        except pa.ArrowInvalid as error:
            raise self._csv_error(types) or error from error

    def _csv_error(self, types: Types) -> OptionError | None:
        """Return the error of the first row that does not have the columns, or a value's type."""
        rows = self._text_rows()
        header = next(rows)
        row_count = 0
        while block := [row for row in itertools.islice(rows, BATCH_ROWS) if row]:
            widths = [len(row) == len(header) for row in block]
            whole = widths.index(False) if False in widths else len(block)
            bad = []
            for name, kind in types.items():
                place = header.index(name)
                cells = [row[place] for row in block[:whole]]
                found = _first_bad(cells, partial(_as_csv, kind=kind))
                if found is not None:
                    bad.append((found, name, cells[found]))
            if bad:
                at, name, cell = min(bad)
                where = f"column {name!r}, row {row_count + at + 1}"
                if not _is_text(cell):
                    return self._bad(where, f"{_raw(cell)!r} is no UTF-8; {self.advice.encoding}")
                return self._bad(where, f"{cell[:80]!r} is no {types[name]}")
            if whole < len(block):
                found_count = f"{len(block[whole])} cells, and the header has {len(header)}"
                return self._bad(f"row {row_count + whole + 1}", found_count)
            row_count += len(block)
        return None

    # -- JSON

    def json_lines(self) -> Iterator[list[str]]:
        """Yield the objects of a JSON file as text without line ends, in blocks."""
        rest, is_lines = "", None
        for text in self._texts():
            rest += text
            if is_lines is None and "\n" in rest.lstrip():
                is_lines = _is_lines(rest)
            if is_lines:
                complete, _, rest = rest.rpartition("\n")
                if lines := [line for line in complete.split("\n") if line.strip()]:
                    yield lines
        if rest.strip():
            yield [rest] if is_lines else _values_of(rest)

    def _texts(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder(self.encoding)()
        line_count = 0
        with self._stream() as stream:
            while True:
                data = stream.read(BLOCK_BYTES)
                try:
                    yield decoder.decode(data, not data)
                except UnicodeDecodeError as error:
                    row = line_count + data[: error.start].count(b"\n") + 1
                    raise self._bad(f"line {row}", f"{error}; {self.advice.encoding}") from error
                line_count += data.count(b"\n")
                if not data:
                    return

    def objects(self, lines: Sequence[str], row_count: int) -> list[dict[str, Any]]:
        """Return the objects in Python's types, their numbers as NumberText."""
        found = []
        for number, line in enumerate(lines, row_count + 1):
            try:
                value = json.loads(
                    line,
                    parse_int=NumberText,
                    parse_float=NumberText,
                    parse_constant=NumberText,
                    object_pairs_hook=_once,
                )
            except ValueError as error:
                raise self._bad(f"row {number}", error) from error
            if not isinstance(value, dict):
                raise self._bad(f"row {number}", f"expected an object, found {line[:80]}")
            found.append(value)
        return found

    def _json_tables(self, types: Types, masked: Collection[str]) -> Iterator[pa.Table]:
        row_count = 0
        for lines in self.json_lines():
            try:
                table = _as_json(lines, types)
            except (pa.ArrowException, ValueError) as error:
                found = self._with_number_texts(lines, row_count, types)
                if found is None:
                    raise self._json_error(lines, row_count, types) or error from error
                table = found
            doubtful = [name for name in masked if table[name].null_count]
            objects = self.objects(lines, row_count) if doubtful else []
            for name in masked:
                mask = pa.repeat(pa.scalar(True), table.num_rows)
                if name in doubtful:
                    mask = pa.array([name in each for each in objects])
                table = table.append_column(mask_of(name), mask)
            row_count += len(lines)
            yield table

    def _with_number_texts(
        self, lines: Sequence[str], row_count: int, types: Types
    ) -> pa.Table | None:
        """Return the rows with the digits of numbers in columns of texts; None where none is."""
        objects = self.objects(lines, row_count)
        texts = {}
        for name, kind in types.items():
            if kind.is_text and any(isinstance(each.get(name), NumberText) for each in objects):
                cells = [each.get(name) for each in objects]
                if not all(cell is None or isinstance(cell, str) for cell in cells):
                    return None
                texts[name] = pa.array(map(_plain, cells), pa.string())
        if not texts:
            return None
        others = {name: kind for name, kind in types.items() if name not in texts}
        try:
            found = _as_json(lines, others) if others else pa.table({})
        except (pa.ArrowException, ValueError):
            return None
        columns = {name: texts[name] if name in texts else found[name] for name in types}
        return pa.table(columns)

    def _json_error(self, lines: Sequence[str], row_count: int, types: Types) -> OptionError | None:
        """Return the error of the first object that has not the types."""
        at = _first_bad(lines, partial(_as_json, types=types))
        if at is None:
            return None
        cells = self.objects(lines[at : at + 1], row_count + at)[0]
        for name, kind in types.items():
            try:
                _as_json(lines[at : at + 1], {name: kind})
            except (pa.ArrowException, ValueError):
                cell = cells.get(name)
                is_number = isinstance(cell, NumberText)
                shown = str(cell) if is_number else json.dumps(cell, ensure_ascii=False)
                where = f"column {name!r}, row {row_count + at + 1}"
                return self._bad(where, f"{shown[:80]} is no {kind}")
        return None


def row_file(path: Path, options: FileOptions) -> RowFile:
    """Return the file of a path. Raises OptionError for an unknown format or encoding."""
    file_format, encoding = _format_of(path, options), options.encoding
    if encoding is None:
        file = RowFile(path, file_format, "", options.skipped, options.advice)
        with file.reading(), pa.input_stream(str(path), compression="detect") as stream:
            mark = stream.read(2)
        encoding = "utf-16" if mark in _UTF_16_MARKS else "utf-8-sig"
    try:
        name = codecs.lookup(encoding).name
    except LookupError:
        raise OptionError(
            f"--encoding {encoding!r} is unknown; some are utf-8, utf-16, latin-1, cp1252"
        ) from None
    name = "utf-8-sig" if name == "utf-8" else name
    return RowFile(path, file_format, name, options.skipped, options.advice)


def columns_of_files(
    files: Sequence[RowFile], schema: Schema, candidates: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return the columns that files set, and those of `candidates` that some JSON objects lack.

    Raises OptionError for a column that a file other than JSON does not have, and others have.
    """
    given: list[list[str]] = []
    masked: set[str] = set()
    for file in files:
        if file.file_format is FileFormat.JSON:
            with file.reading():
                names, lacking = file.keys(candidates)
            given.append(names)
            masked |= lacking & set(candidates)
        else:
            given.append(file.names())
    columns = list(dict.fromkeys(name for names in given for name in names))
    for file, names in zip(files, given, strict=True):
        for name in columns:
            if name in names:
                continue
            if file.file_format is not FileFormat.JSON and name in schema.names:
                raise OptionError(
                    f"{file.path} has no column {name!r}, and other files have;"
                    f" {file.advice.several}"
                )
            masked |= {name} & set(candidates)
    return columns, [name for name in columns if name in masked]


def _is_text(cell: str) -> bool:
    return cell.isascii() or not any("\udc80" <= letter <= "\udcff" for letter in cell)


def _raw(cell: str) -> bytes:
    return cell.encode("utf-8", "surrogateescape")[:80]


def _first_bad(cells: Sequence[Any], convert: Callable[[Sequence[Any]], object]) -> int | None:
    """Return the first of the cells that `convert` refuses, by bisection; None where none is."""

    def is_bad(start: int, stop: int) -> bool:
        try:
            convert(cells[start:stop])
        except (pa.ArrowException, ValueError):
            return True
        return False

    start, stop = 0, len(cells)
    if not is_bad(start, stop):
        return None
    while stop - start > 1:
        middle = (start + stop) // 2
        if is_bad(start, middle):
            stop = middle
        else:
            start = middle
    return start


def _converting(types: Types) -> pa.csv.ConvertOptions:
    return pa.csv.ConvertOptions(
        column_types={name: kind.arrow for name, kind in types.items()},
        include_columns=list(types),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )


def _as_csv(cells: Sequence[str], kind: ColumnType) -> None:
    """Raise ArrowInvalid, or ValueError, unless all cells of a CSV file are of a type."""
    given = ['"' + cell.replace('"', '""') + '"' for cell in cells if cell]
    text = "\n".join(["c", *given]).encode()
    reading = pa.csv.ReadOptions(block_size=len(text) + 1)
    parsing = pa.csv.ParseOptions(newlines_in_values=True)
    pa.csv.read_csv(io.BytesIO(text), reading, parsing, _converting({"c": kind}))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises ValueError for a key that it has twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is there twice")
    return found


def _plain(cell: str | None) -> str | None:
    return None if cell is None else str(cell)


def _columns_of(lines: Sequence[str]) -> pa.Table | None:
    """Return objects as rows in types that Arrow finds; None if it finds none."""
    text = "\n".join(lines).encode()
    reading = pa.json.ReadOptions(block_size=len(text) + 1)
    try:
        return pa.json.read_json(io.BytesIO(text), reading)
    except pa.ArrowInvalid:
        return None


def _as_json(lines: Sequence[str], types: Types) -> pa.Table:
    """Return objects as rows with the columns of `types`. Raises ArrowInvalid and ValueError."""
    texts = {name for name, kind in types.items() if _is_text_in_json(kind.arrow)}
    fields = [(n, pa.string() if n in texts else kind.arrow) for n, kind in types.items()]
    text = "\n".join(lines).encode()
    parsing = pa.json.ParseOptions(pa.schema(fields), unexpected_field_behavior="ignore")
    reading = pa.json.ReadOptions(block_size=len(text) + 1)
    table = pa.json.read_json(io.BytesIO(text), reading, parsing).select(list(types))
    for name in texts:
        place, kind = table.schema.get_field_index(name), types[name].arrow
        column = table.column(place)
        if pa.types.is_binary(kind):
            # Arrow has no base64.
            cells = [None if c is None else base64.b64decode(c) for c in column.to_pylist()]
            column = pa.chunked_array([pa.array(cells, kind)])
        table = table.set_column(place, name, column.cast(kind))
    return table


def _is_text_in_json(kind: pa.DataType) -> bool:
    """Whether `scan` writes the type as text that Arrow reads in another way."""
    return bool(pa.types.is_binary(kind) or pa.types.is_temporal(kind))


def _is_lines(text: str) -> bool:
    """Whether a JSON file has one object in each line, from how it begins."""
    first = text.lstrip().partition("\n")[0]
    if first.startswith("["):
        return False
    try:
        json.loads(first)
    except ValueError:
        return False
    return True


def _values_of(text: str) -> list[str]:
    """Return the values of one array, or values one after the other, as text without line ends.

    Raises ValueError for what is no JSON.
    """
    decoder, found = json.JSONDecoder(), []
    text = text.strip()
    is_array = text.startswith("[")
    end = len(text) - is_array
    if is_array and not text.endswith("]"):
        raise ValueError("the array of rows does not end with ]")
    at = _BETWEEN_VALUES.match(text, int(is_array), end).end()  # type: ignore[union-attr]
    while at < end:
        start = at
        _, at = decoder.raw_decode(text, start)
        found.append(text[start:at].replace("\r", " ").replace("\n", " "))
        at = _BETWEEN_VALUES.match(text, at, end).end()  # type: ignore[union-attr]
    return found
