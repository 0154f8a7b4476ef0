"""Column types: the fourteen that a table can have, and how Arrow data is fitted to them.

A type is a name and, for some, parameters: `int32`, `decimal(10, 2)`, `varchar(20)`. Each has
exactly one Arrow type, in which its values live everywhere above the files. `cast_to_column` brings
a user's array to it, exactly or with an error: never a rounded, wrapped or truncated value.

Source: Kudu docs/schema_design.adoc, "Column types"; common/types.h for the physical widths.
"""

from __future__ import annotations

import decimal as decimal_module
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.errors import ConflictError, RowError, SchemaError

DECIMAL_PRECISION_MAX = 38
VARCHAR_LENGTH_MAX = 65535
BAD_ROWS_MAX, BAD_VALUES_SHOWN = 1000, 3  # of values that do not fit: counted, and named
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
_TYPE_TEXT = re.compile(r"\s*([a-z_0-9]+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*")


@dataclass(frozen=True)
class ColumnType:
    """One column type; compare with `==`, print with `str`; see the constants below."""

    name: str
    precision: int | None = None
    scale: int | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        if self.name == "decimal":
            _check_decimal(self.precision, self.scale)
        elif self.name == "varchar":
            if self.length is None or not 1 <= self.length <= VARCHAR_LENGTH_MAX:
                raise SchemaError(
                    f"varchar length {self.length} is not within 1..{VARCHAR_LENGTH_MAX}"
                )
        elif self.name not in _PLAIN_ARROW:
            raise SchemaError(f"unknown column type {self.name!r}; known: {', '.join(TYPE_NAMES)}")

    def __str__(self) -> str:
        if self.name == "decimal":
            return f"decimal({self.precision}, {self.scale})"
        return f"varchar({self.length})" if self.name == "varchar" else self.name

    @property
    def arrow(self) -> pa.DataType:
        """The one Arrow type of this column's arrays."""
        return _arrow_type(self)

    @property
    def is_key_type(self) -> bool:
        """Whether a primary key column may have this type."""
        return self.name not in ("bool", "float", "double")

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
        """Whether every value of this type is one of `new`, with the same meaning and order.

        int8 to int16 to int32 to int64; float to double; decimal to more digits of the same scale;
        varchar to a longer one or string; and each type to itself.
        """
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
    if precision is None or not 1 <= precision <= DECIMAL_PRECISION_MAX:
        raise SchemaError(f"decimal precision {precision} is not within 1..{DECIMAL_PRECISION_MAX}")
    if scale is None or not 0 <= scale <= precision:
        raise SchemaError(f"decimal scale {scale} is not within 0..{precision} (the precision)")


@functools.cache
def _arrow_type(column_type: ColumnType) -> pa.DataType:
    if column_type.name == "decimal":
        return pa.decimal128(column_type.precision, column_type.scale)
    return pa.string() if column_type.name == "varchar" else _PLAIN_ARROW[column_type.name]


TYPE_NAMES = (*_PLAIN_ARROW, "decimal(p, s)", "varchar(n)")

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
    """The exact number type with `precision` digits, `scale` of them after the point."""
    return ColumnType("decimal", precision=precision, scale=scale)


def varchar(length: int) -> ColumnType:
    """The string type of at most `length` characters (code points, not bytes)."""
    return ColumnType("varchar", length=length)


def parse_type(text: str) -> ColumnType:
    """The type whose `str` is `text`, in any case and spacing; SchemaError lists the known ones."""
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
    """The column type that holds every value of `arrow_type`; SchemaError where there is none."""
    if pa.types.is_dictionary(arrow_type) or pa.types.is_run_end_encoded(arrow_type):
        return type_from_arrow(arrow_type.value_type)
    if pa.types.is_timestamp(arrow_type) and arrow_type.unit != "ns":
        return timestamp_ntz if arrow_type.tz is None else unixtime_micros
    if pa.types.is_decimal(arrow_type) and arrow_type.precision <= DECIMAL_PRECISION_MAX:
        return decimal(arrow_type.precision, arrow_type.scale)
    if pa.types.is_date(arrow_type):
        return date
    if _is_arrow_text(arrow_type):
        return string
    if _is_arrow_bytes(arrow_type):
        return binary
    for name, plain in _PLAIN_ARROW.items():
        if plain == arrow_type:
            return ColumnType(name)
    raise SchemaError(
        f"Arrow type {arrow_type} has no column type; known: {', '.join(TYPE_NAMES)}"
        + (" (timestamps are in microseconds)" if pa.types.is_timestamp(arrow_type) else "")
    )


def _is_arrow_text(arrow_type: pa.DataType) -> bool:
    t = pa.types
    return t.is_string(arrow_type) or t.is_large_string(arrow_type) or t.is_string_view(arrow_type)


def _is_arrow_bytes(arrow_type: pa.DataType) -> bool:
    t = pa.types
    return (
        t.is_binary(arrow_type)
        or t.is_large_binary(arrow_type)
        or t.is_binary_view(arrow_type)
        or t.is_fixed_size_binary(arrow_type)
    )


def is_widened(stored: pa.DataType, arrow_type: pa.DataType) -> bool:
    """Whether values of `stored`, as a file has them, may be those of a column of `arrow_type`.

    They are of this type, or were written before the column's type was widened.
    """
    t = pa.types
    if stored.equals(arrow_type):
        return True
    if t.is_decimal(stored) and t.is_decimal(arrow_type):
        return stored.scale == arrow_type.scale and stored.precision < arrow_type.precision
    both_integers = t.is_signed_integer(stored) and t.is_signed_integer(arrow_type)
    both_floats = t.is_floating(stored) and t.is_floating(arrow_type)
    return (both_integers or both_floats) and stored.bit_width < arrow_type.bit_width


def widened(values: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Return stored values in the type that a column has now; no copy if they have it.

    Raises ConflictError for values of a wider type: the column was widened after the caller looked
    at the schema.
    """
    if values.type.equals(arrow_type):
        return values
    if not is_widened(values.type, arrow_type):
        raise ConflictError(
            f"a column was altered from {arrow_type} to {values.type} while it was read; read again"
        )
    return values.cast(arrow_type)


# --- casts: each takes an Arrow array that is not yet of the column's type, and raises ArrowInvalid
# --- for a value that has no exact counterpart


def _cast_number(array: pa.Array, column_type: ColumnType) -> pa.Array:
    if column_type.is_float and pa.types.is_integer(array.type):
        return _exact_floats(array, column_type.arrow)
    if column_type.is_float and pa.types.is_decimal(array.type):
        array = _exact_doubles(array)
    result = array.cast(column_type.arrow)
    if pa.types.is_float64(array.type) and column_type.name == "float":
        back = result.cast(pa.float64())
        same = pc.or_kleene(pc.equal(back, array), pc.is_nan(array))
        if not pc.all(same).as_py() and pc.any(pc.invert(same)).as_py():
            raise pa.ArrowInvalid("no float has this value")
    return result


def _exact_floats(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Integers as floating point of exactly the same value; Arrow itself refuses large ones."""
    result = array.cast(wanted, safe=False)
    limit = 2.0 ** (array.type.bit_width - pa.types.is_signed_integer(array.type))
    is_inside = pc.less(result, pa.scalar(limit, wanted))
    back = pc.if_else(is_inside, result, pa.scalar(0, wanted)).cast(array.type, safe=False)
    if pc.any(pc.or_(pc.invert(is_inside), pc.not_equal(back, array))).as_py():
        raise pa.ArrowInvalid(f"no {wanted} has this value")
    return result


def _exact_doubles(array: pa.Array) -> pa.Array:
    """Decimals as doubles of exactly the same value: n / 10^s is one if n / 5^s is whole."""
    scale = max(array.type.scale, 0)
    power = pa.scalar(decimal_module.Decimal(2**scale))
    power = power.cast(pa.decimal256(power.type.precision, 0))
    wide = array.cast(pa.decimal256(75 - power.type.precision, scale))
    whole = pc.multiply(wide, power).cast(pa.decimal256(76, 0))
    result = whole.cast(pa.float64())
    if pc.any(pc.not_equal(result.cast(pa.decimal256(76, 0)), whole)).as_py():
        raise pa.ArrowInvalid("no double has this value")
    return pc.divide(result, float(2**scale))


def _cast_decimal(array: pa.Array, column_type: ColumnType) -> pa.Array:
    # Through 76 digits: widening 128-bit decimals within 38 digits can overflow unnoticed.
    scale = column_type.scale or 0
    if pa.types.is_integer(array.type):
        wide = array.cast(pa.decimal256(76, scale))
    else:
        wide = array.cast(pa.decimal256(76, max(array.type.scale, scale)))
    return wide.cast(column_type.arrow)


def _cast_plain(array: pa.Array, column_type: ColumnType) -> pa.Array:
    return array.cast(column_type.arrow)


def _is_exact_source(source: pa.DataType, column_type: ColumnType) -> bool:
    """Whether values of `source` have an exact meaning in `column_type`, if they fit at all."""
    t = pa.types
    if column_type.is_integer:
        return t.is_integer(source) or t.is_floating(source) or t.is_decimal(source)
    if column_type.is_float:
        return t.is_integer(source) or t.is_floating(source) or t.is_decimal(source)
    if column_type.name == "decimal":
        return t.is_integer(source) or t.is_decimal(source)
    if column_type.name == "date":
        return t.is_date(source)
    if column_type.is_timestamp:
        has_zone = column_type.name == "unixtime_micros"
        return t.is_timestamp(source) and (source.tz is not None) == has_zone
    if column_type.is_bytes:
        return _is_arrow_text(source) or _is_arrow_bytes(source)
    return source == column_type.arrow


def _check_values(array: pa.Array, column_type: ColumnType) -> None:
    """Raise ArrowInvalid where an array of the right Arrow type holds a value that is not legal."""
    if column_type.is_text:
        array.validate(full=True)
    if column_type.name == "date":
        bounds = pc.min_max(array.view(pa.int32())).as_py()
        if bounds["min"] is not None and (bounds["min"] < DATE_MIN or bounds["max"] > DATE_MAX):
            raise pa.ArrowInvalid("dates go from 0001-01-01 to 9999-12-31")
    if column_type.name == "varchar":
        assert column_type.length is not None
        longest = pc.max(pc.binary_length(array)).as_py()
        if longest is not None and longest > column_type.length:  # bytes are at least characters
            longest = pc.max(pc.utf8_length(array)).as_py()
            if longest > column_type.length:
                raise pa.ArrowInvalid(f"longer than {column_type.length} characters")


def cast_to_column(
    array: pa.Array | pa.ChunkedArray, column_type: ColumnType, *, column: str, table: str
) -> pa.Array:
    """One array of exactly `column_type.arrow` with the same values; no copy if it has it already.

    RowError names the first values that do not fit, the first's row, and how many there are;
    SchemaError says that the Arrow type has no exact meaning in the column. Nulls pass: whether
    they may is not decided here."""
    array = _plain_array(array, column, table)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), column_type.arrow)
    if not _is_exact_source(array.type, column_type):
        hint = ""
        if column_type.is_timestamp and pa.types.is_timestamp(array.type):
            hint = (
                "; give the timestamps a time zone, or make the column timestamp_ntz"
                if array.type.tz is None
                else "; convert to local time without a zone, or make the column unixtime_micros"
            )
        raise SchemaError(
            f"table {table!r}, column {column!r}: Arrow type {array.type} has no exact meaning in "
            f"{column_type}{hint}"
        )

    def fit(part: pa.Array) -> pa.Array:
        """`part` in the column's type, all values checked; ArrowInvalid if one does not fit."""
        result = part
        if part.type != column_type.arrow:
            result = _caster(column_type)(part, column_type)
        _check_values(result, column_type)
        return result

    try:
        return fit(array)
    except pa.ArrowInvalid as error:
        rows = _bad_rows(array, fit)
        others = ""
        if len(rows) > 1:
            shown = ", ".join(_show(array, row) for row in rows[1:BAD_VALUES_SHOWN])
            more = ", …" if len(rows) > BAD_VALUES_SHOWN else ""
            at_least = "at least " if len(rows) == BAD_ROWS_MAX else ""
            others = f"; {at_least}{len(rows)} rows do not fit, the next with {shown}{more}"
        raise RowError(
            f"table {table!r}, column {column!r}: row {rows[0]}: value {_show(array, rows[0])} does"
            f" not fit {column_type}: {error}{others}",
            reason=RowError.REASON_INVALID,
            row_count=len(rows),
        ) from error


def _caster(column_type: ColumnType) -> Callable[[pa.Array, ColumnType], pa.Array]:
    if column_type.is_integer or column_type.is_float:
        return _cast_number
    return _cast_decimal if column_type.name == "decimal" else _cast_plain


def _plain_array(array: pa.Array | pa.ChunkedArray, column: str, table: str) -> pa.Array:
    """`array` as one piece without dictionary, run-end, or extension wrapping."""
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            raise SchemaError(
                f"table {table!r}, column {column!r}: the batch holds more than 2 GiB of "
                f"{array.type} values; write it in smaller batches"
            )
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    elif pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    return array


def _bad_rows(array: pa.Array, fit: Callable[[pa.Array], pa.Array]) -> list[int]:
    """The first rows, at most BAD_ROWS_MAX, that do not fit, by bisection; `fit(array)` fails."""
    found: list[int] = []
    pending = [(0, len(array))]  # ranges to look at, the next one last
    while pending and len(found) < BAD_ROWS_MAX:
        start, end = pending.pop()
        try:
            fit(array.slice(start, end - start))
        except pa.ArrowInvalid:
            middle = (start + end) // 2
            if middle == start:
                found.append(start)
            else:
                pending += [(middle, end), (start, middle)]
    return found


def _show(array: pa.Array, row: int) -> str:
    """The value for a message: readable also when Python has no object for it."""
    cell = array.slice(row, 1)
    try:
        text = repr(cell[0].as_py())
    except (ValueError, OverflowError, UnicodeDecodeError):
        if pa.types.is_date32(cell.type):
            text = f"day {cell.view(pa.int32())[0].as_py()}"
        elif cell.type.id in (pa.timestamp("us").id, pa.date64().id):
            text = f"{np.asarray(cell.view(pa.int64()))[0]} {cell.type}"
        else:
            text = "that is no UTF-8"
    return text if len(text) <= 80 else text[:77] + "..."


def value_text(value: Any) -> str:
    """A value as messages show it, at most 80 letters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
