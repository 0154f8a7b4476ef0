"""Column types: the fourteen scalar types of Kudu, and arrays of them.

A type is a name, with parameters where needed: `int32`, `decimal(10, 2)`, `varchar(20)`,
`array(int32)`. Each has exactly one Arrow type, which its values have everywhere above the files.
An array may be empty and its elements null. Arrays have no order, so a key cannot contain one.

**Source**: Kudu docs/schema_design.adoc, "Column types"; common/types.h for the physical widths.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.errors import ConflictError, SchemaError

DECIMAL_PRECISION_MAX = 38
VARCHAR_LENGTH_MAX = 65535
DATE_MIN, DATE_MAX = -719162, 2932896  # days since the epoch of 0001-01-01 and 9999-12-31

_PLAIN_ARROW: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "unixtime_micros": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "string": pa.string(),
    "binary": pa.binary(),
}
_KEY_WIDTHS = {"int8": 1, "int16": 2, "int32": 4, "int64": 8, "date": 4}
_KEY_WIDTHS |= {"unixtime_micros": 8, "timestamp_ntz": 8}
# The layouts that Arrow has for one kind of value.
_TEXT_IDS = {pa.string().id, pa.large_string().id, pa.string_view().id}
_BYTES_IDS = {pa.binary().id, pa.large_binary().id, pa.binary_view().id, pa.binary(1).id}
_LIST_IDS = {
    layout(pa.null()).id for layout in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)
} | {pa.list_(pa.null(), 1).id}
_TYPE_TEXT = re.compile(r"\s*([a-z_0-9]+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*")

_ARRAY_TEXT = re.compile(r"\s*array\s*\((.*)\)\s*")


@dataclass(frozen=True)
class ColumnType:
    """One column type; compare with `==`, print with `str`; see the constants below."""

    name: str
    precision: int | None = None
    scale: int | None = None
    length: int | None = None
    element: ColumnType | None = None

    def __post_init__(self) -> None:
        if self.name == "decimal":
            _check_decimal(self.precision, self.scale)
        elif self.name == "varchar":
            _check_within("varchar length", self.length, 1, VARCHAR_LENGTH_MAX)
        elif self.name == "array":
            if not isinstance(self.element, ColumnType) or self.element.is_array:
                raise SchemaError(f"array elements are scalars, not {self.element}")
        elif self.name not in _PLAIN_ARROW:
            raise SchemaError(f"unknown column type {self.name!r}; known: {', '.join(TYPE_NAMES)}")

    def __str__(self) -> str:
        if self.name == "array":
            return f"array({self.element})"
        if self.name == "decimal":
            return f"decimal({self.precision}, {self.scale})"
        return f"varchar({self.length})" if self.name == "varchar" else self.name

    @functools.cached_property
    def arrow(self) -> pa.DataType:
        """The one Arrow type of this column's arrays."""
        return _arrow_type(self)

    @property
    def is_key_type(self) -> bool:
        """Whether a primary key column may have this type."""
        return self.name not in ("bool", "float", "double", "array")

    @property
    def is_array(self) -> bool:
        """Whether values are lists: array."""
        return self.name == "array"

    @property
    def is_bytes(self) -> bool:
        """Whether values have no fixed width: string, varchar, binary."""
        return self.name in ("string", "varchar", "binary")

    @property
    def is_text(self) -> bool:
        """Whether values are `str`: string, varchar."""
        return self.name in ("string", "varchar")

    @property
    def is_integer(self) -> bool:
        """Whether values are whole numbers: int8, int16, int32, int64."""
        return self.name in ("int8", "int16", "int32", "int64")

    @property
    def is_float(self) -> bool:
        """Whether values are binary floating point: float, double."""
        return self.name in ("float", "double")

    @property
    def is_timestamp(self) -> bool:
        """Whether values are microseconds since the epoch: unixtime_micros, timestamp_ntz."""
        return self.name in ("unixtime_micros", "timestamp_ntz")

    def can_widen_to(self, new: ColumnType) -> bool:
        """Return whether every value of this type is one of `new`, with the same meaning and order.

        int8 to int16 to int32 to int64; float to double; decimal to more digits of the same scale;
        varchar to a longer one or string; and each type to itself.
        """
        if self.is_array or new.is_array:
            return self == new
        if self.is_text:
            is_longer = new.name == "varchar" and (new.length or 0) >= (self.length or 0)
            return self == new or (self.name == "varchar" and (is_longer or new.name == "string"))
        return is_widened(self.arrow, new.arrow)

    @property
    def key_width(self) -> int | None:
        """Bytes of an encoded key value, or None where it has no fixed width or is no key type."""
        if self.name == "decimal":
            assert self.precision is not None
            return 4 if self.precision <= 9 else 8 if self.precision <= 18 else 16
        return _KEY_WIDTHS.get(self.name)


def _check_decimal(precision: int | None, scale: int | None) -> None:
    _check_within("decimal precision", precision, 1, DECIMAL_PRECISION_MAX)
    _check_within("decimal scale", scale, 0, precision or 0, " (the precision)")


def _check_within(what: str, found: object, least: int, most: int, hint: str = "") -> None:
    """Raise SchemaError unless a parameter of a type is an int within bounds."""
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
        raise SchemaError(f"{what} {found!r} is not within {least}..{most}{hint}")


@functools.cache
def _arrow_type(column_type: ColumnType) -> pa.DataType:
    if column_type.name == "decimal":
        return pa.decimal128(column_type.precision, column_type.scale)
    if column_type.element is not None:
        return pa.list_(pa.field("element", column_type.element.arrow))  # as Parquet calls it
    return pa.string() if column_type.name == "varchar" else _PLAIN_ARROW[column_type.name]


TYPE_NAMES = (*_PLAIN_ARROW, "decimal(p, s)", "varchar(n)", "array(type)")

bool_ = ColumnType("bool")
int8 = ColumnType("int8")
int16 = ColumnType("int16")
int32 = ColumnType("int32")
int64 = ColumnType("int64")
float_ = ColumnType("float")
double = ColumnType("double")
date = ColumnType("date")
unixtime_micros = ColumnType("unixtime_micros")
timestamp_ntz = ColumnType("timestamp_ntz")
string = ColumnType("string")
binary = ColumnType("binary")


def decimal(precision: int, scale: int = 0) -> ColumnType:
    """Return the exact number type with `precision` digits, `scale` of them after the point."""
    return ColumnType("decimal", precision=precision, scale=scale)


def varchar(length: int) -> ColumnType:
    """Return the string type of at most `length` characters (code points, not bytes)."""
    return ColumnType("varchar", length=length)


def array(element: ColumnType | str) -> ColumnType:
    """Return the type of lists of `element`, a scalar type; lists may be empty, elements null."""
    return ColumnType("array", element=parse_type(element) if isinstance(element, str) else element)


def parse_type(text: str) -> ColumnType:
    """Return the type whose `str` is `text`, in any case and spacing, or raise SchemaError."""
    nested = _ARRAY_TEXT.fullmatch(text.lower())
    if nested is not None:
        return array(nested.group(1))
    match = _TYPE_TEXT.fullmatch(text.lower())
    name, first, second = match.groups() if match else (None, None, None)
    if name == "decimal" and first is not None:
        return decimal(int(first), int(second or 0))
    if name == "varchar" and first is not None and second is None:
        return varchar(int(first))
    if name in _PLAIN_ARROW and first is None:
        return ColumnType(name)
    raise SchemaError(f"unknown column type {text!r}; known: {', '.join(TYPE_NAMES)}")


def type_from_arrow(arrow_type: pa.DataType) -> ColumnType:
    """Return the column type for values of `arrow_type`, or raise SchemaError.

    It holds all of them, but for timestamps with digits below a microsecond.
    """
    if pa.types.is_dictionary(arrow_type) or pa.types.is_run_end_encoded(arrow_type):
        return type_from_arrow(arrow_type.value_type)
    if pa.types.is_timestamp(arrow_type):  # of any unit; nanoseconds are taken where exact
        return timestamp_ntz if arrow_type.tz is None else unixtime_micros
    if pa.types.is_decimal(arrow_type) and arrow_type.precision <= DECIMAL_PRECISION_MAX:
        return decimal(arrow_type.precision, arrow_type.scale)
    if pa.types.is_date(arrow_type):
        return date
    if is_arrow_text(arrow_type):
        return string
    if is_arrow_bytes(arrow_type):
        return binary
    if is_arrow_list(arrow_type):
        return array(type_from_arrow(arrow_type.value_type))
    for name, plain in _PLAIN_ARROW.items():
        if plain == arrow_type:
            return ColumnType(name)
    if pa.types.is_null(arrow_type):
        raise SchemaError("Arrow type null: no value shows the type; give a pyarrow.Schema")
    if pa.types.is_nested(arrow_type):
        raise SchemaError(
            f"Arrow type {arrow_type} has no column type; a write, or create_table of its data,"
            ' with nested="json" stores it as JSON text'
        )
    raise SchemaError(f"Arrow type {arrow_type} has no column type; known: {', '.join(TYPE_NAMES)}")


def is_arrow_text(arrow_type: pa.DataType) -> bool:
    """Return whether values are UTF-8 in any layout."""
    return arrow_type.id in _TEXT_IDS


def is_arrow_list(arrow_type: pa.DataType) -> bool:
    """Return whether values are lists in any layout."""
    return arrow_type.id in _LIST_IDS


def is_arrow_bytes(arrow_type: pa.DataType) -> bool:
    """Return whether values are bytes in any layout."""
    return arrow_type.id in _BYTES_IDS


def is_widened(stored: pa.DataType, arrow_type: pa.DataType) -> bool:
    """Return whether a file may store `stored` for a column of `arrow_type`.

    The types are equal, or the file was written before the column's type was widened.
    """
    t = pa.types
    if stored == arrow_type:
        return True
    if t.is_decimal(stored) and t.is_decimal(arrow_type):
        return bool(stored.scale == arrow_type.scale and stored.precision < arrow_type.precision)
    both_integers = t.is_signed_integer(stored) and t.is_signed_integer(arrow_type)
    both_floats = t.is_floating(stored) and t.is_floating(arrow_type)
    return bool((both_integers or both_floats) and stored.bit_width < arrow_type.bit_width)


def widened(values: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Return stored values in the column's present type; no copy if they have it.

    Raises ConflictError for values of a wider type: the column was widened after the caller read
    the schema.
    """
    if values.type == arrow_type:
        return values
    if not is_widened(values.type, arrow_type):
        raise ConflictError(
            f"a column was altered from {arrow_type} to {values.type} while it was read; read again"
        )
    return values.cast(arrow_type)


def joined(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the chunks as one array, or as several where they hold more than 2 GiB."""
    if not isinstance(array, pa.ChunkedArray):
        return array
    return array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()


def is_unicode(text: str) -> bool:
    """Return whether a text has a UTF-8 form: one with half of a surrogate pair has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_values(table: pa.Table) -> None:
    """Raise ValueError for values that are none of their types, in a table that Parquet decoded.

    Does as `validate(full=True)`, which takes 24 ns for each text; this takes less than 1 ns where
    all letters are ASCII.
    """
    for column in table.columns:
        for chunk in column.chunks:
            is_text = pa.types.is_string(chunk.type)
            chunk.validate(full=not is_text)
            if is_text and len(chunk):
                _check_utf8(chunk)


def _check_utf8(array: pa.Array) -> None:
    """Check all texts as one; the offsets of an array that Parquet decoded are right."""
    _, offsets, values = array.buffers()
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    first, last = int(ends[0]), int(ends[-1])
    if first == last:
        return
    data = np.frombuffer(values, np.uint8)[first:last]
    if data.max() < 0x80:
        return
    data.tobytes().decode()
    starts = ends[:-1] - first
    if ((data[starts[starts < len(data)]] & 0xC0) == 0x80).any():
        raise ValueError("a text begins within a character of UTF-8")


def has_nan(values: pa.ChunkedArray) -> bool:
    """Return whether a floating-point number, or one in an array of them, is NaN."""
    if pa.types.is_list(values.type):
        values = pc.list_flatten(values)
    return pc.any(pc.is_nan(values)).as_py() is True


def is_float(arrow_type: pa.DataType) -> bool:
    """Return whether values of a type, or elements of its arrays, are floating-point numbers."""
    value_type = arrow_type.value_type if pa.types.is_list(arrow_type) else arrow_type
    return bool(pa.types.is_floating(value_type))


def value_text(value: Any) -> str:
    """Return a value as messages show it, at most 80 letters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
