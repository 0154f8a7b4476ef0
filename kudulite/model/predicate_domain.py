"""The ordered domain of a column type: every value as an int or as bytes that compare as it does.

    bytes    string, varchar (their UTF-8), binary
    int      whole numbers, days, microseconds, unscaled decimals, 0 and 1 for bool; for floats a
             number that rises with the value: -inf .. -0.0 = 0.0 .. inf < NaN

In both a key has a next one, so every comparison becomes a half-open interval, and a literal that
is no value of the column (5.5 for an int32, 2^40 too) still has its place between two keys."""

from __future__ import annotations

import decimal
import math
import struct
from fractions import Fraction
from typing import Any

import numpy as np

from kudulite.errors import SchemaError
from kudulite.model.types import DATE_MAX, DATE_MIN, ColumnType, value_text
from kudulite.model.values import (
    INT_RANGES,
    date_from_days,
    decimal_from_unscaled,
    timestamp_from_micros,
    to_bytes,
    to_days,
    to_micros,
    to_text,
)

DomainKey = Any  # int or bytes, by the type of the column; None where there is none

_INFINITY_KEY = 0x7FF0_0000_0000_0000  # the bits of +inf as a double
NAN_KEY = _INFINITY_KEY + 1


def domain_min(column_type: ColumnType) -> DomainKey:
    """The smallest key of the type."""
    return b"" if column_type.is_bytes else _number_range(column_type)[0]


def domain_max(column_type: ColumnType) -> int | None:
    """The greatest key of the type, None for bytes, which have none."""
    return None if column_type.is_bytes else _number_range(column_type)[1]


def _number_range(column_type: ColumnType) -> tuple[int, int]:
    if column_type.name == "bool":
        return 0, 1
    if column_type.is_float:
        return -_INFINITY_KEY, NAN_KEY
    if column_type.name == "decimal":
        greatest = 10 ** (column_type.precision or 0) - 1
        return -greatest, greatest
    if column_type.name == "date":
        return DATE_MIN, DATE_MAX
    return INT_RANGES["int64" if column_type.is_timestamp else column_type.name]


def domain_successor(key: DomainKey) -> DomainKey:
    """The next key: nothing lies between."""
    return key + b"\0" if isinstance(key, bytes) else key + 1


def literal_floor(value: Any, column_type: ColumnType, column: str) -> tuple[DomainKey, bool]:
    """The greatest key ≤ the literal, and whether it is the literal itself.

    The key may be outside the type's range. SchemaError names column and literal if they cannot be
    compared."""
    if isinstance(value, np.generic):
        value = value.item() if not isinstance(value, np.datetime64) else value.astype(object)
    try:
        if column_type.is_bytes:
            return (to_bytes(value) if column_type.name == "binary" else _text(value)), True
        if column_type.name == "bool":
            if not isinstance(value, bool):
                raise TypeError("expected a bool")
            return int(value), True
        if column_type.name == "date":
            return to_days(value), True
        if column_type.is_timestamp:
            is_int = isinstance(value, int) and not isinstance(value, bool)
            return (value if is_int else to_micros(value, column_type)), True
        if column_type.is_float:
            return _float_floor(value)
        return _exact_floor(value, column_type)
    except (TypeError, ValueError, OverflowError, decimal.DecimalException) as error:
        raise SchemaError(
            f"predicate on column {column!r}: {value_text(value)} cannot be compared with "
            f"{column_type}: {error}"
        ) from error


def _text(value: Any) -> bytes:
    return to_text(value).encode()


def _exact_floor(value: Any, column_type: ColumnType) -> tuple[int, bool]:
    """For whole numbers and decimals. A float means the number it prints as: 0.1 is a tenth."""
    if isinstance(value, bool) or not isinstance(value, (int, float, decimal.Decimal)):
        raise TypeError("expected a number")
    if not isinstance(value, int) and not math.isfinite(value):
        lowest, highest = _number_range(column_type)
        return (lowest - 1 if value < 0 else highest), False  # NaN is above all
    number = Fraction(repr(value) if isinstance(value, float) else value)
    number *= 10 ** (column_type.scale or 0)
    return math.floor(number), number.denominator == 1


def _float_floor(value: Any) -> tuple[int, bool]:
    """For floats: ints are compared exactly, a Decimal means the nearest double."""
    if isinstance(value, bool) or not isinstance(value, (int, float, decimal.Decimal)):
        raise TypeError("expected a number")
    if not isinstance(value, int):
        return float_key(float(value)), True
    try:
        nearest = float(value)
    except OverflowError:
        return (_INFINITY_KEY - 1 if value > 0 else -_INFINITY_KEY), False
    if nearest == value:  # Python compares int and float exactly
        return float_key(nearest), True
    return float_key(nearest) - (nearest > value), False


def float_key(value: float) -> int:
    """The key of a float."""
    if value != value:
        return NAN_KEY
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return bits if bits >= 0 else -(bits & 0x7FFF_FFFF_FFFF_FFFF)


def float_of_key(key: int) -> float:
    """The float with this key."""
    if key >= NAN_KEY:
        return math.nan
    (value,) = struct.unpack("<d", struct.pack("<q", abs(key)))
    return -value if key < 0 else value


def domain_value(key: DomainKey, column_type: ColumnType) -> Any:
    """The canonical Python value with this key."""
    if column_type.is_text:
        return key.decode()
    if column_type.is_float:
        return float_of_key(key)
    if column_type.name == "bool":
        return bool(key)
    if column_type.name == "decimal":
        return decimal_from_unscaled(key, column_type.scale or 0)
    if column_type.name == "date":
        return date_from_days(key)
    return timestamp_from_micros(key, column_type) if column_type.is_timestamp else key
