"""All predicates on one column, merged into one constraint on its values.

A constraint is IS NULL, or NOT NULL together with a half-open interval of domain keys or a list of
keys. Merging is exact: a contradiction becomes an empty constraint, `a >= 5 and a <= 5` an
equality.

A domain key is a value as an int or as bytes that compare as the value does:

    bytes    string, varchar (their UTF-8), binary
    int      whole numbers, days, microseconds, unscaled decimals, 0 and 1 for bool; for floats a
             number that rises with the value: -inf .. -0.0 = 0.0 .. inf < NaN

Every key has a successor, so every comparison becomes a half-open interval. A literal that is no
value of the column (5.5 or 2^40 for an int32) still has a place between two keys.

**Source** Kudu common/column_predicate.h, "Simplify" and "Merge".
"""

from __future__ import annotations

import bisect
import decimal
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from kudulite.errors import SchemaError
from kudulite.model.encoded_key import prefix_successor, value_of_number
from kudulite.model.schema import Column
from kudulite.model.types import DATE_MAX, DATE_MIN, ColumnType, value_text
from kudulite.model.values import (
    INT_RANGES,
    python_value,
    to_bytes,
    to_days,
    to_micros,
    to_text,
)

RANK_EMPTY, RANK_NULL, RANK_VALUES, RANK_RANGE, RANK_NOT_NULL = range(5)

DomainKey = Any  # int or bytes, by the type of the column; None where there is none

_INFINITY_KEY = 0x7FF0_0000_0000_0000  # the bits of +inf as a double
NAN_KEY = _INFINITY_KEY + 1
_BITS, _DOUBLE = struct.Struct("<q"), struct.Struct("<d")


@dataclass(frozen=True)
class ColumnConstraint:
    """The allowed values of one column.

    `keys`, if given, are the allowed keys, ascending. Otherwise lower ≤ key < upper, where None is
    no bound. IS NULL (`is_null`) and IS NOT NULL have neither.
    """

    column: Column
    is_null: bool = False
    is_empty: bool = False
    lower: DomainKey = None
    upper: DomainKey = None
    keys: tuple[DomainKey, ...] | None = None

    @property
    def rank(self) -> int:
        """The order of evaluation, from the constraint that rejects most."""
        if self.is_empty:
            return RANK_EMPTY
        if self.is_null:
            return RANK_NULL
        if self.keys is not None:
            return RANK_VALUES
        return RANK_NOT_NULL if self.lower is None and self.upper is None else RANK_RANGE

    @property
    def is_trivial(self) -> bool:
        """Whether every value that the column may hold matches."""
        return self.rank == RANK_NOT_NULL and not self.column.nullable

    def overlaps(self, low: DomainKey, high: DomainKey) -> bool:
        """Return whether any key within low..high, both included, matches."""
        if self.is_empty or self.is_null:
            return False
        if self.keys is not None:
            place = bisect.bisect_left(self.keys, low)
            return place < len(self.keys) and self.keys[place] <= high
        return (self.lower is None or high >= self.lower) and (
            self.upper is None or low < self.upper
        )

    def may_match(
        self, minimum: Any, maximum: Any, null_count: int | None, row_count: int | None
    ) -> bool:
        """Return False only if no row can match, given statistics of which each may be None.

        Parquet's minimum and maximum ignore NaN.
        """
        if self.is_empty:
            return False
        if self.is_null:
            return null_count is None or null_count > 0
        if row_count is not None and null_count == row_count:
            return False
        if minimum is None or maximum is None:
            return True
        column_type = self.column.type
        if column_type.is_float and (self.overlaps(NAN_KEY, NAN_KEY) or minimum != minimum):
            return True
        try:
            low, _ = literal_floor(minimum, column_type, self.column.name)
            high, _ = literal_floor(maximum, column_type, self.column.name)
        except SchemaError:
            return True  # a foreign file's statistics of another type prove nothing
        return self.overlaps(low, high)


def build_constraint(column: Column, comparisons: Iterable[tuple[str, Any]]) -> ColumnConstraint:
    """Return the constraint that all (operator, literal) pairs on `column` make together."""
    if column.type.is_array:
        return _null_test(column, comparisons)
    has_null = has_value = False
    bottom, top = _domain_range(column.type)
    lower = bottom
    upper: DomainKey = None if top is None else domain_successor(top)
    allowed: set[DomainKey] | None = None
    for op, value in comparisons:
        if op == "is_null":
            has_null = True
            continue
        has_value = True
        if op == "in":  # NULL matches nothing, and the column cannot hold what is not exact
            floors = [literal_floor(v, column.type, column.name) for v in value if v is not None]
            keys = {key for key, is_exact in floors if is_exact}
            allowed = keys if allowed is None else allowed & keys
            continue
        low, high = _interval(op, value, column)
        if low is not None:
            lower = max(lower, low)
        if high is not None:
            upper = high if upper is None else min(upper, high)
    if has_null:
        return ColumnConstraint(column, is_null=True, is_empty=has_value or not column.nullable)
    if allowed is not None:
        allowed = {key for key in allowed if lower <= key and (upper is None or key < upper)}
    elif upper is not None and lower < upper and domain_successor(lower) >= upper:
        allowed = {lower}
    if (upper is not None and lower >= upper) or (allowed is not None and not allowed):
        return ColumnConstraint(column, is_empty=True)
    if allowed is not None:
        return ColumnConstraint(column, keys=tuple(sorted(allowed)))
    return ColumnConstraint(
        column,
        lower=None if lower <= bottom else lower,
        upper=None if top is not None and upper > top else upper,
    )


def _null_test(column: Column, comparisons: Iterable[tuple[str, Any]]) -> ColumnConstraint:
    """Return the constraint on a column of arrays, which have no order."""
    operators = {op for op, _ in comparisons}
    if unknown := operators - {"is_null", "is_not_null"}:
        raise SchemaError(
            f"predicate on column {column.name!r}: {sorted(unknown)[0]} cannot be used on"
            f" {column.type}; possible: is_null, is_not_null"
        )
    if "is_null" in operators:
        is_empty = len(operators) > 1 or not column.nullable
        return ColumnConstraint(column, is_null=True, is_empty=is_empty)
    return ColumnConstraint(column)


def _interval(op: str, value: Any, column: Column) -> tuple[DomainKey, DomainKey]:
    """Return (lower, upper) of one comparison, lower ≤ key < upper; None is no bound."""
    if op == "is_not_null":
        return None, None
    if op == "starts_with":
        return _prefix_interval(value, column)
    floor, is_exact = literal_floor(value, column.type, column.name)
    above = domain_successor(floor)
    at_or_above = floor if is_exact else above
    if op == "=":
        return at_or_above, above  # empty if not exact
    if op in ("<", "<="):
        return None, above if op == "<=" else at_or_above
    assert op in (">", ">="), op
    return (above if op == ">" else at_or_above), None


def _prefix_interval(value: Any, column: Column) -> tuple[bytes, bytes | None]:
    if not column.type.is_bytes:
        raise SchemaError(
            f"predicate on column {column.name!r}: starts_with is for strings and binary, "
            f"not for {column.type}"
        )
    try:
        prefix = _bytes_literal(value, column.type)
    except (TypeError, ValueError) as error:
        raise SchemaError(
            f"predicate on column {column.name!r}: starts_with {value!r}: {error}"
        ) from error
    return prefix, prefix_successor(prefix)


def _domain_range(column_type: ColumnType) -> tuple[DomainKey, DomainKey]:
    """Return the smallest and the greatest key of the type; bytes have no greatest."""
    if column_type.is_bytes:
        return b"", None
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
    """Return the smallest key above `key`."""
    return key + b"\0" if isinstance(key, bytes) else key + 1


def literal_floor(value: Any, column_type: ColumnType, column: str) -> tuple[DomainKey, bool]:
    """Return the greatest key ≤ the literal, and whether it is the literal itself.

    The key may be outside the type's range. SchemaError names column and literal if they cannot be
    compared.
    """
    is_exact = True
    if isinstance(value, np.datetime64) and column_type.is_timestamp:
        micros = value.astype("datetime64[us]")  # rounds down
        value, is_exact = micros, bool(micros == value)
    try:
        value = python_value(value, column_type)
        if column_type.is_bytes:
            return _bytes_literal(value, column_type), True
        if column_type.name == "bool":
            if not isinstance(value, bool):
                raise TypeError("expected a bool")
            return int(value), True
        if column_type.name == "date":
            return to_days(value), True
        if column_type.is_timestamp:
            is_int = isinstance(value, int) and not isinstance(value, bool)
            return (value if is_int else to_micros(value, column_type)), is_exact
        if isinstance(value, bool) or not isinstance(value, (int, float, decimal.Decimal)):
            raise TypeError("expected a number")
        return _float_floor(value) if column_type.is_float else _exact_floor(value, column_type)
    except (TypeError, ValueError, OverflowError, decimal.DecimalException) as error:
        raise SchemaError(
            f"predicate on column {column!r}: {value_text(value)} cannot be compared with "
            f"{column_type}: {error}"
        ) from error


def _bytes_literal(value: Any, column_type: ColumnType) -> bytes:
    return to_bytes(value) if column_type.name == "binary" else to_text(value).encode()


def _exact_floor(value: Any, column_type: ColumnType) -> tuple[int, bool]:
    """Return the floor for integers and decimals; a float stands for the number it prints as."""
    if not isinstance(value, int) and not math.isfinite(value):
        lowest, highest = _domain_range(column_type)
        return (lowest - 1 if value < 0 else highest), False  # NaN is above all
    number = Fraction(repr(value) if isinstance(value, float) else value)
    number *= 10 ** (column_type.scale or 0)
    return math.floor(number), number.denominator == 1


def _float_floor(value: Any) -> tuple[int, bool]:
    """Return the floor for floats: an int compares exactly, a Decimal as the nearest double."""
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
    """Return the key of a float."""
    if value != value:
        return NAN_KEY
    bits: int = _BITS.unpack(_DOUBLE.pack(value))[0]
    return bits if bits >= 0 else -(bits & 0x7FFF_FFFF_FFFF_FFFF)


def float_of_key(key: int) -> float:
    """Return the float with this key."""
    if key >= NAN_KEY:
        return math.nan
    value: float = _DOUBLE.unpack(_BITS.pack(abs(key)))[0]
    return -value if key < 0 else value


def domain_value(key: DomainKey, column_type: ColumnType) -> Any:
    """Return the canonical Python value with this key."""
    if column_type.is_text:
        return key.decode()
    if column_type.is_float:
        return float_of_key(key)
    return bool(key) if column_type.name == "bool" else value_of_number(key, column_type)
