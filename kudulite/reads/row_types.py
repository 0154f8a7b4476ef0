"""The columns of a new table, from all rows of the files that it is made for.

    all cells of a column are            type of the column
    true, false                          bool
    whole numbers                        int64, or decimal where one has more than 64 bits
    other numbers                        double where it has the value of each, else decimal
    dates; moments; moments with a zone  date, timestamp_ntz, unixtime_micros
    anything else, or nothing            string

A text of digits is a number only if the number has the same digits: `007`, `+49` and numbers of
more than 38 digits make a column of texts. In JSON, texts are never numbers. Types that are given
(`--types`) are not looked for.

**Invariants**: every cell of the files has exactly the value of its text in the type that is found.

**Threads**: none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from kudulite.errors import OptionError, SchemaError
from kudulite.model import types as t
from kudulite.model.types import ColumnType, type_from_arrow
from kudulite.reads.row_files import Advice, FileFormat, NumberText, RowFile

_WHOLE = r"^(0|-?[1-9][0-9]*)$"
_PLAIN = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$"
_NUMBER = r"^-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$"
_NO_NUMBERS = pa.array(["nan", "NaN", "inf", "-inf", "Infinity", "-Infinity"])
_BOOLS = pa.array(["true", "false", "True", "False", "TRUE", "FALSE"])
_DOUBLE_DIGITS = 15  # so many significant digits always come back from a double
_DATE_LENGTH = len("2026-11-21")
_ALL_KINDS = ("bool", "int64", "double", "decimal", "date", "timestamp_ntz", "unixtime_micros")
_NUMBER_KINDS = ("int64", "double", "decimal")
_TIME_KINDS = ("date", "timestamp_ntz", "unixtime_micros")


class _Texts:
    """The kinds of which all texts added so far are exact values."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = list(kinds)
        self._is_whole = self._has_number = False
        self._is_empty = True
        self._digits = self._scale = 0  # before and after the point

    def add(self, values: pa.Array) -> None:
        """Drop the kinds of which not all texts, some of them null, are values."""
        values = values.drop_null()
        if not len(values):
            return
        if self._is_empty:
            self._is_empty, self._is_whole = False, True
        self._is_whole = self._is_whole and _all(pc.match_substring_regex(values, _WHOLE))
        for part in (values.slice(0, 1), values):  # one cell is quick, and rules out most kinds
            self._kinds = [kind for kind in self._kinds if _TESTS[kind](self, part)]

    def type(self) -> ColumnType:
        """The type of the column."""
        found = set() if self._is_empty else set(self._kinds)
        if not self._has_number:
            found.discard("double")
        if self._is_whole and "int64" not in found:
            found.discard("double")
        for kind in _ALL_KINDS:
            if kind in found and kind == "decimal":
                precision = 20 if self._digits <= 20 and not self._scale else 38
                return t.decimal(precision, self._scale)
            if kind in found:
                return t.parse_type(kind)
        return t.string

    def _are_decimals(self, values: pa.Array) -> bool:
        if not _all(pc.match_substring_regex(values, _PLAIN)):
            return False
        parts = pc.split_pattern(pc.utf8_ltrim(values, "-"), ".")
        self._digits = max(self._digits, pc.max(pc.utf8_length(pc.list_element(parts, 0))).as_py())
        with_point = parts.filter(pc.greater(pc.list_value_length(parts), 1))
        if len(with_point):
            length = pc.max(pc.utf8_length(pc.list_element(with_point, 1))).as_py()
            self._scale = max(self._scale, length)
        return self._digits + self._scale <= t.DECIMAL_PRECISION_MAX

    def _are_doubles(self, values: pa.Array) -> bool:
        values = values.filter(pc.invert(pc.is_in(values, _NO_NUMBERS)))
        if not _all(pc.match_substring_regex(values, _NUMBER)):
            return False
        self._has_number = self._has_number or len(values) > 0
        digits = pc.replace_substring_regex(values, r"[eE].*$", "")
        digits = pc.utf8_ltrim(pc.replace_substring_regex(digits, r"[-.]", ""), "0")
        is_doubtful = pc.or_(
            pc.greater(pc.utf8_length(digits), _DOUBLE_DIGITS),
            pc.match_substring_regex(values, "[eE]"),
        )
        return all(map(_is_double, values.filter(is_doubtful).to_pylist()))


def _is_double(text: str) -> bool:
    """Whether the nearest double has the digits of a text."""
    exact, number = Decimal(text), float(text)
    count = len(exact.as_tuple().digits)
    return abs(number) != float("inf") and Decimal(f"{number:.{count - 1}e}") == exact


def _all(found: pa.Array) -> bool:
    return bool(pc.all(found, min_count=0).as_py())


def _casts_to(kind: pa.DataType) -> Callable[[_Texts, pa.Array], bool]:
    def casts(_: _Texts, values: pa.Array) -> bool:
        try:
            values.cast(kind)
        except pa.ArrowInvalid:
            return False
        return True

    return casts


def _are_bools(_: _Texts, values: pa.Array) -> bool:
    return _all(pc.is_in(values, _BOOLS))


def _are_int64s(texts: _Texts, values: pa.Array) -> bool:
    return _all(pc.match_substring_regex(values, _WHOLE)) and _casts_to(pa.int64())(texts, values)


def _are_dates(texts: _Texts, values: pa.Array) -> bool:
    is_long = _all(pc.equal(pc.utf8_length(values), _DATE_LENGTH))
    return is_long and _casts_to(pa.date32())(texts, values)


_TESTS: dict[str, Callable[[_Texts, pa.Array], bool]] = {
    "bool": _are_bools,
    "int64": _are_int64s,
    "double": _Texts._are_doubles,
    "decimal": _Texts._are_decimals,
    "date": _are_dates,
    "timestamp_ntz": _casts_to(pa.timestamp("us")),
    "unixtime_micros": _casts_to(pa.timestamp("us", "UTC")),
}


class _JsonCells:
    """The cells of a JSON column, or of its arrays, by the kind of their JSON."""

    def __init__(self) -> None:
        self._firsts: dict[str, str] = {}  # where the first cell of each kind is
        self._numbers, self._texts = _Texts(_NUMBER_KINDS), _Texts(_TIME_KINDS)
        self._elements: _JsonCells | None = None

    def add(self, cells: Sequence[Any], rows: Sequence[int], file: str) -> None:
        """Add cells of a file; `rows` are the numbers of their rows."""
        by_kind: dict[str, list[Any]] = {}
        for cell, row in zip(cells, rows, strict=True):
            if cell is not None:
                kind = _kind_of(cell)
                self._firsts.setdefault(kind, f"row {row} of {file}")
                by_kind.setdefault(kind, []).append(cell)
        self._numbers.add(pa.array(map(str, by_kind.get("number", ())), pa.string()))
        self._texts.add(pa.array(by_kind.get("text", ()), pa.string()))
        if "array" in by_kind:
            self._elements = self._elements or _JsonCells()
            pairs = [
                (element, row)
                for cell, row in zip(cells, rows, strict=True)
                if isinstance(cell, list)
                for element in cell
            ]
            self._elements.add([each for each, _ in pairs], [row for _, row in pairs], file)

    def type(self, name: str, advice: Advice) -> ColumnType:
        """Return the type of the column `name`. Raises OptionError if it has none."""
        kinds = list(self._firsts)
        if "object" in kinds:
            raise OptionError(
                f"column {name!r}, {self._firsts['object']}: an object within an object has no type"
                f" of column; {advice.leave_out.format(name=name)}"
            )
        if len(kinds) > 1:
            found = " and ".join(f"{kind} in {first}" for kind, first in self._firsts.items())
            raise OptionError(
                f"column {name!r} has values of several kinds: {found};"
                f" {advice.one_kind.format(name=name)}"
            )
        if kinds == ["array"]:
            assert self._elements is not None
            if not self._elements._firsts:
                raise OptionError(
                    f"column {name!r}, {self._firsts['array']}: all arrays are empty, so that"
                    f" nothing shows their type; {advice.give_type.format(name=name)}"
                )
            return t.array(self._elements.type(name, advice))
        if kinds == ["bool"]:
            return t.bool_
        return self._numbers.type() if kinds == ["number"] else self._texts.type()


def _kind_of(cell: Any) -> str:
    if isinstance(cell, NumberText):
        return "number"
    if isinstance(cell, bool):
        return "bool"
    if isinstance(cell, str):
        return "text"
    return "array" if isinstance(cell, list) else "object"


# name: (type, whether it may be null)
FileColumns = dict[str, tuple[ColumnType, bool]]


def columns_of_new_table(
    files: Sequence[RowFile], given: Mapping[str, ColumnType] | None = None
) -> FileColumns:
    """Return the columns of a new table that holds all rows of the files, at least one.

    `given` are types by the name of the column. Raises OptionError for a file that cannot be read,
    and for a column without a type.
    """
    given = given or {}
    advice = files[0].advice
    found: FileColumns = {}
    texts: dict[str, _Texts] = {}
    cells: dict[str, _JsonCells] = {}
    for file in files:
        if file.file_format is FileFormat.PARQUET:
            _add_parquet(file, given, found)
        elif file.file_format is FileFormat.CSV:
            _add_csv(file, given, texts)
        else:
            _add_json(file, given, cells)
    for name, column in texts.items():
        found.setdefault(name, (column.type(), True))
    for name, column_cells in cells.items():
        found.setdefault(name, (given.get(name) or column_cells.type(name, advice), True))
    unknown = [name for name in given if name not in found and name not in texts]
    if unknown:
        raise OptionError(
            f"a type is given of column {unknown[0]!r}, which the files do not have; their columns"
            f" are {', '.join(found)}"
        )
    return {name: (given.get(name, kind), is_null) for name, (kind, is_null) in found.items()}


def _add_parquet(file: RowFile, given: Mapping[str, ColumnType], found: FileColumns) -> None:
    names = file.names()
    for field in pa.parquet.read_schema(file.path):
        if field.name not in names or field.name in found:
            continue
        try:
            kind = given.get(field.name) or type_from_arrow(field.type)
        except SchemaError as error:
            raise OptionError(
                f"{file.path}, column {field.name!r}: {error};"
                f" {file.advice.leave_out.format(name=field.name)}"
            ) from error
        found[field.name] = kind, field.nullable


def _add_csv(file: RowFile, given: Mapping[str, ColumnType], texts: dict[str, _Texts]) -> None:
    names = file.names()
    for name in names:
        texts.setdefault(name, _Texts(_ALL_KINDS))
    with file.reading():
        for table in file.csv_tables(dict.fromkeys(names, t.string)):
            for name in names:
                if name not in given:
                    texts[name].add(table.column(name).combine_chunks())


def _add_json(file: RowFile, given: Mapping[str, ColumnType], cells: dict[str, _JsonCells]) -> None:
    row_count = 0
    with file.reading():
        for lines in file.json_lines():
            objects = file.objects(lines, row_count)
            rows = range(row_count + 1, row_count + len(lines) + 1)
            for name in dict.fromkeys(key for each in objects for key in each):
                if name in file.skipped:
                    continue
                column = cells.setdefault(name, _JsonCells())
                if name not in given:
                    column.add([each.get(name) for each in objects], rows, str(file.path))
            row_count += len(lines)
