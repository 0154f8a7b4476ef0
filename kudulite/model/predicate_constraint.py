"""The values of one column that conditions allow, as a set: exact under AND, OR and NOT.

A constraint is a set of domain keys, and whether NULL is allowed as well. The set is written as its
ascending edges: a key is in it if an odd number of edges is at or below the key.

    (3, 5, 9)     3 ≤ key < 5, or 9 ≤ key
    (3, 4)        the key 3 alone
    ()            no key

A domain key is a value as an int or as bytes that compare as the value does:

    bytes    string, varchar (their UTF-8), binary
    int      whole numbers, days, microseconds, unscaled decimals, 0 and 1 for bool; for floats a
             number that rises with the value: -inf .. -0.0 = 0.0 .. inf < NaN

Every key has a successor, so every comparison becomes a half-open range. A literal that is no value
of the column (5.5 or 2^40 for an int32) still has a place between two keys. The literal of a FLOAT
column is first rounded to the nearest 32-bit float, as a cell is when it is written.

**Invariants**: (1) edges are strictly ascending and within the domain: the set of all values is
(least key,), and no edge is above the greatest key; (2) a NOT NULL column allows no NULL.

**Source**: Kudu common/column_predicate.h, "Simplify" and "Merge".
"""

from __future__ import annotations

import bisect
import decimal
import itertools
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np

from kudulite.errors import SchemaError
from kudulite.model.condition import Predicate
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
Edges = tuple[DomainKey, ...]

_INFINITY_KEY = 0x7FF0_0000_0000_0000  # the bits of +inf as a double
NAN_KEY = _INFINITY_KEY + 1
_BITS, _DOUBLE = struct.Struct("<q"), struct.Struct("<d")
# Up to so many keys of a range are listed, to find the hash buckets that they are in.
_LISTED_MAX = 256
_NEGATED = {"!=": "=", "not_in": "in", "not_starts_with": "starts_with"}


@dataclass(frozen=True)
class ColumnConstraint:
    """The allowed values of one column: the keys within `edges`, and NULL if `has_null`."""

    column: Column
    edges: Edges
    has_null: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is allowed."""
        return not self.edges and not self.has_null

    @property
    def is_null(self) -> bool:
        """Whether NULL is allowed and nothing else."""
        return self.has_null and not self.edges

    @property
    def has_all_values(self) -> bool:
        """Whether every value but NULL is allowed."""
        return self.edges == _all_values(self.column.type)

    @property
    def is_trivial(self) -> bool:
        """Whether everything that the column may hold is allowed."""
        return self.has_all_values and (self.has_null or not self.column.nullable)

    @property
    def rank(self) -> int:
        """The order of evaluation, from the constraint that rejects most."""
        if not self.edges:
            return RANK_NULL if self.has_null else RANK_EMPTY
        if self.has_all_values:
            return RANK_NOT_NULL
        return RANK_RANGE if self.spans else RANK_VALUES

    @cached_property
    def _ranges(self) -> list[tuple[DomainKey, DomainKey]]:
        """The ranges lower ≤ key < upper, ascending; the last may have None for its upper bound."""
        return list(itertools.zip_longest(self.edges[::2], self.edges[1::2]))

    @cached_property
    def points(self) -> tuple[DomainKey, ...]:
        """The keys of the ranges that have one key, ascending."""
        return tuple(lower for lower, upper in self._ranges if self._is_point(lower, upper))

    @cached_property
    def spans(self) -> tuple[tuple[DomainKey, DomainKey], ...]:
        """The ranges lower ≤ key < upper that have more keys, ascending; None is no bound."""
        bottom, _ = _domain_range(self.column.type)
        return tuple(
            (None if lower == bottom else lower, upper)
            for lower, upper in self._ranges
            if not self._is_point(lower, upper)
        )

    @property
    def range_count(self) -> int:
        """How many ranges there are, with one key or more."""
        return len(self._ranges)

    @cached_property
    def without(self) -> ColumnConstraint:
        """The values that are not allowed, without NULL."""
        return ColumnConstraint(self.column, _complement(self.edges, self.column.type))

    def _is_point(self, lower: DomainKey, upper: DomainKey) -> bool:
        if upper is None:
            return bool(lower == _domain_range(self.column.type)[1])
        return bool(upper == domain_successor(lower))

    @cached_property
    def keys(self) -> tuple[DomainKey, ...] | None:
        """The allowed keys, ascending, if they are few enough to be listed; None otherwise."""
        if not self.spans:
            return self.points
        _, top = _domain_range(self.column.type)
        if top is None:
            return None
        ranges = [(lower, top + 1 if upper is None else upper) for lower, upper in self._ranges]
        if sum(upper - lower for lower, upper in ranges) > max(_LISTED_MAX, 2 * len(ranges)):
            return None
        return tuple(key for lower, upper in ranges for key in range(lower, upper))

    @property
    def least(self) -> DomainKey:
        """The smallest allowed key, None if there is no bound."""
        lower, upper = self._ranges[0]
        return lower if self._is_point(lower, upper) else self.spans[0][0]

    @property
    def upper(self) -> DomainKey:
        """The key that all allowed keys are below, None if there is no bound."""
        return self._ranges[-1][1]

    @property
    def greatest(self) -> DomainKey:
        """The greatest allowed key, None if there is no bound or no key just below it."""
        lower, upper = self._ranges[-1]
        if upper is None:
            return lower if self._is_point(lower, upper) else None
        if isinstance(upper, int):
            return upper - 1
        return upper[:-1] if upper.endswith(b"\0") else None

    def overlaps(self, low: DomainKey, high: DomainKey) -> bool:
        """Return whether any key within low..high, both included, is allowed."""
        place = bisect.bisect_right(self.edges, low)
        return place % 2 == 1 or (place < len(self.edges) and self.edges[place] <= high)

    def may_match(
        self, minimum: Any, maximum: Any, null_count: int | None, row_count: int | None
    ) -> bool:
        """Return False only if no row can match, given statistics of which each may be None.

        Parquet's minimum and maximum ignore NaN.
        """
        if self.has_null and (null_count is None or null_count > 0):
            return True
        if not self.edges or (row_count is not None and null_count == row_count):
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


def constraint_of(predicate: Predicate, column: Column) -> ColumnConstraint:
    """Return the values that one predicate allows. SchemaError names column and literal."""
    column_type = column.type
    if predicate.op == "is_null":
        return ColumnConstraint(column, (), column.nullable)
    if predicate.op == "is_not_null":
        return ColumnConstraint(column, _all_values(column_type))
    if column_type.is_array:
        raise SchemaError(
            f"predicate on column {column.name!r}: {predicate.op} cannot be used on"
            f" {column_type}; possible: is_null, is_not_null"
        )
    op = _NEGATED.get(predicate.op, predicate.op)
    if op == "in":
        # A list with NULL is never proved not to have a value.
        if op != predicate.op and any(value is None for value in predicate.value):
            return ColumnConstraint(column, ())
        edges = _points(predicate.value, column)
    else:
        edges = _edges(*_interval(op, predicate.value, column), column_type)
    if op != predicate.op:
        edges = _complement(edges, column_type)
    return ColumnConstraint(column, edges)


def all_of(constraints: Sequence[ColumnConstraint]) -> ColumnConstraint:
    """Return the constraint that all constraints on one column make together."""
    return _combined(constraints, len(constraints))


def any_of(constraints: Sequence[ColumnConstraint]) -> ColumnConstraint:
    """Return the constraint that allows what any constraint on one column allows."""
    return _combined(constraints, 1)


def _combined(constraints: Sequence[ColumnConstraint], least_count: int) -> ColumnConstraint:
    """Return what at least so many of the constraints allow; O(n log n) of all edges."""
    if len(constraints) == 1:
        return constraints[0]
    null_count = sum(constraint.has_null for constraint in constraints)
    steps = sorted(
        (
            (edge, 1 - 2 * (place % 2))
            for constraint in constraints
            for place, edge in enumerate(constraint.edges)
        ),
        key=itemgetter(0),
    )
    edges, count = [], 0
    for edge, found in itertools.groupby(steps, key=itemgetter(0)):
        is_in = count >= least_count
        count += sum(step for _, step in found)
        if (count >= least_count) != is_in:
            edges.append(edge)
    return ColumnConstraint(constraints[0].column, tuple(edges), null_count >= least_count)


def _all_values(column_type: ColumnType) -> Edges:
    return (_domain_range(column_type)[0],)


def _complement(edges: Edges, column_type: ColumnType) -> Edges:
    bottom, _ = _domain_range(column_type)
    return edges[1:] if edges and edges[0] == bottom else (bottom, *edges)


def _edges(lower: DomainKey, upper: DomainKey, column_type: ColumnType) -> Edges:
    """Return the edges of lower ≤ key < upper within the domain; None is no bound."""
    bottom, top = _domain_range(column_type)
    first = bottom if lower is None else max(lower, bottom)
    if top is not None and first > top:
        return ()
    if upper is None or (top is not None and upper > top):
        return (first,)
    return (first, upper) if first < upper else ()


def _points(values: Iterable[Any], column: Column) -> Edges:
    """Return the edges of the keys of some values; the column cannot hold what is not exact."""
    bottom, top = _domain_range(column.type)
    floors = [literal_floor(v, column.type, column.name) for v in values if v is not None]
    keys = {key for key, is_exact in floors if is_exact}
    edges: list[DomainKey] = []
    for key in sorted(key for key in keys if bottom <= key and (top is None or key <= top)):
        if edges and edges[-1] == key:
            edges.pop()
        else:
            edges.append(key)
        if key != top:
            edges.append(domain_successor(key))
    return tuple(edges)


def _interval(op: str, value: Any, column: Column) -> tuple[DomainKey, DomainKey]:
    """Return (lower, upper) of one comparison, lower ≤ key < upper; None is no bound."""
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
    if column_type.is_bytes or column_type.is_array:  # arrays have no order, and no key is used
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
        if isinstance(value, np.generic):
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
        if column_type.is_float:
            return _float_floor(_nearest_float(value) if column_type.name == "float" else value)
        return _exact_floor(value, column_type)
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


def _nearest_float(value: Any) -> Any:
    """Return the 32-bit float that a cell of this value has; the value where there is none."""
    try:
        with np.errstate(over="ignore"):
            rounded = float(np.float32(float(value)))
    except OverflowError:
        return value
    return value if math.isinf(rounded) else rounded


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
