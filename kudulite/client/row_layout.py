"""What a table asks of one row: a converter for each column, and what a row takes in a buffer.

A converter gives what `canonical_value` gives. Values that are canonical already, which most are,
pass after a test or two; all others take the long way, which also says what is wrong with them.
Source: Kudu client/batcher.cc for the size of an operation.
"""

from __future__ import annotations

import datetime
import decimal
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

from kudulite.errors import ColumnNotFoundError, SchemaError
from kudulite.model.schema import Column, Schema
from kudulite.model.types import ColumnType
from kudulite.model.values import INT_RANGES, canonical_value

Converter = Callable[[Any], Any]

# What a value takes in a row: a reference and a length for those that have no width of their own.
_VALUE_BYTES = {"bool": 1, "int8": 1, "int16": 2, "int32": 4, "float": 4, "date": 4}
_REFERENCE_BYTES = 16
_FLOAT = struct.Struct("<f")  # the native form gives infinity for what is too large


class RowLayout:
    """The columns of one version of a table's schema, prepared for rows that come one by one.

    Never changed once made: any number of threads may use it.
    """

    def __init__(self, table: str, schema: Schema) -> None:
        self.table = table
        self.schema = schema
        self.key_names = frozenset(schema.key_names)
        self.key_count = schema.key_count
        self._positions = tuple((c.name, converter_of(c, table)) for c in schema.columns)
        self._columns: dict[Any, tuple[str, Converter]] = dict(enumerate(self._positions))
        self._columns |= {name: (name, convert) for name, convert in self._positions}
        # The operation's type, the cells of all columns, and two bits per column: set, and null.
        self._fixed_bytes = 1 + sum(_value_bytes(column.type) for column in schema.columns)
        self._fixed_bytes += 2 * ((len(schema.columns) + 7) // 8)
        self._array_names = tuple(c.name for c in schema.columns if c.type.is_array)
        self._bytes_names = tuple(c.name for c in schema.columns if c.type.is_bytes)

    def column(self, key: Any) -> tuple[str, Converter]:
        """Return name and converter of the column of a name or an index from 0.

        Raises ColumnNotFoundError.
        """
        found = self._columns.get(key) if isinstance(key, str | int) else None
        if found is None:
            raise self._no_column(key)
        return found

    def convert(self, record: Any) -> dict[str, Any]:
        """Return the canonical values of a record by name, in the order they were given.

        A record is a mapping from names or indexes, or a tuple or list of the first columns'
        values. Raises ColumnNotFoundError, SchemaError.
        """
        if type(record) is dict or isinstance(record, Mapping):  # the abstract class costs more
            columns, values = self._columns, {}
            try:
                for key, value in record.items():
                    name, convert = columns[key]
                    values[name] = convert(value)
            except KeyError:
                raise self._no_column(key) from None
            return values
        if isinstance(record, tuple | list):
            if len(record) > len(self._positions):
                raise self._no_column(len(self._positions))
            pairs = zip(self._positions, record, strict=False)
            return {name: convert(value) for (name, convert), value in pairs}
        raise SchemaError(
            f"table {self.table!r}: a row is a dict, tuple or list, not {type(record).__name__}"
        )

    def size(self, values: Mapping[str, Any]) -> int:
        """Return the bytes that a row of these values takes in a buffer."""
        size = self._fixed_bytes
        for name in self._bytes_names:
            value = values.get(name)
            if value is not None:
                size += len(value)
                # Bytes have isascii, too; text outside ASCII has more bytes than letters.
                if not value.isascii() and isinstance(value, str):
                    size += len(value.encode()) - len(value)
        for name in self._array_names:
            size += sum(map(_element_bytes, values.get(name) or ()))
        return size

    def _no_column(self, key: Any) -> ColumnNotFoundError:
        what = f"no column {key!r}" if isinstance(key, str) else f"column index {key} out of bounds"
        names = ", ".join(self.schema.names)
        return ColumnNotFoundError(f"table {self.table!r}: {what}; columns: {names}")


def _value_bytes(column_type: ColumnType) -> int:
    if column_type.is_bytes or column_type.is_array:
        return _REFERENCE_BYTES
    if column_type.name == "decimal":
        return column_type.key_width or _REFERENCE_BYTES
    return _VALUE_BYTES.get(column_type.name, 8)


def _element_bytes(value: Any) -> int:
    """What an element of an array takes, near enough."""
    return _REFERENCE_BYTES + (len(value) if isinstance(value, str | bytes) else 0)


def converter_of(column: Column, table: str) -> Converter:
    """Return a function that gives a value's canonical form; null stays None.

    It raises SchemaError for a value that the column cannot hold, None in a NOT NULL column too.
    """

    def convert(value: Any) -> Any:
        if value is not None:
            try:
                return canonical_value(value, column.type, column.name)
            except SchemaError as error:
                raise SchemaError(f"table {table!r}: {error}") from error
        if not column.nullable:
            raise SchemaError(f"table {table!r}: column {column.name!r} is NOT NULL; got None")
        return None

    shortcut = _SHORTCUTS.get(column.type.name)
    return convert if shortcut is None else shortcut(column.type, convert)


def _of_exactly(python_type: type) -> Callable[[ColumnType, Converter], Converter]:
    """Return the shortcut for values that are canonical if they are of one type."""

    def shortcut(_: ColumnType, convert: Converter) -> Converter:
        return lambda value: value if type(value) is python_type else convert(value)

    return shortcut


def _integer(column_type: ColumnType, convert: Converter) -> Converter:
    low, high = INT_RANGES[column_type.name]

    def convert_integer(value: Any) -> Any:
        return value if type(value) is int and low <= value <= high else convert(value)

    return convert_integer


def _double(_: ColumnType, convert: Converter) -> Converter:
    def convert_double(value: Any) -> Any:
        if type(value) is float:
            return value if value == value else math.nan
        return convert(value)

    return convert_double


def _float(_: ColumnType, convert: Converter) -> Converter:
    pack, unpack = _FLOAT.pack, _FLOAT.unpack

    def convert_float(value: Any) -> Any:
        if type(value) is float and value == value:
            try:
                return unpack(pack(value))[0]
            except OverflowError:
                pass  # the long way says so
        return convert(value)

    return convert_float


def _text(column_type: ColumnType, convert: Converter) -> Converter:
    length_max = math.inf if column_type.length is None else column_type.length

    def convert_text(value: Any) -> Any:
        # Other text may hold what has no UTF-8 form.
        if type(value) is str and value.isascii() and len(value) <= length_max:
            return value
        return convert(value)

    return convert_text


def _datetime(column_type: ColumnType, convert: Converter) -> Converter:
    has_zone = column_type.name == "unixtime_micros"
    utc, moment = datetime.UTC, datetime.datetime

    def convert_datetime(value: Any) -> Any:
        if type(value) is not moment:
            return convert(value)
        zone = value.tzinfo
        if zone is (utc if has_zone else None) and not value.fold:
            return value
        if has_zone and zone not in (None, utc) and value.utcoffset() is not None:
            try:
                return value.astimezone(utc)
            except OverflowError:
                pass  # the long way knows what lies outside the years 1 to 9999
        return convert(value)

    return convert_datetime


def _decimal(column_type: ColumnType, convert: Converter) -> Converter:
    assert column_type.scale is not None and column_type.precision is not None
    exponent, digits_max = -column_type.scale, column_type.precision

    def convert_decimal(value: Any) -> Any:
        if type(value) is decimal.Decimal:
            sign, digits, value_exponent = value.as_tuple()
            # A negative zero is none in its canonical form.
            if value_exponent == exponent and len(digits) <= digits_max and (value or not sign):
                return value
        return convert(value)

    return convert_decimal


_SHORTCUTS: dict[str, Callable[[ColumnType, Converter], Converter]] = {
    "bool": _of_exactly(bool),
    "int8": _integer,
    "int16": _integer,
    "int32": _integer,
    "int64": _integer,
    "float": _float,
    "double": _double,
    "decimal": _decimal,
    "date": _of_exactly(datetime.date),
    "unixtime_micros": _datetime,
    "timestamp_ntz": _datetime,
    "string": _text,
    "varchar": _text,
    "binary": _of_exactly(bytes),
}
