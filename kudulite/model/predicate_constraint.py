"""All predicates on one column, merged: what a value must be for the row to match.

A constraint is IS NULL, or NOT NULL together with a half-open interval of domain keys or a list of
keys. Merging is exact: a contradiction shows as an empty constraint, `a >= 5 and a <= 5` as an
equality.

Source: Kudu common/column_predicate.h, "Simplify" and "Merge"."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kudulite.errors import SchemaError
from kudulite.model.predicate_domain import (
    NAN_KEY,
    DomainKey,
    domain_max,
    domain_min,
    domain_successor,
    literal_floor,
)
from kudulite.model.schema import Column
from kudulite.model.values import to_bytes, to_text

RANK_EMPTY, RANK_NULL, RANK_VALUES, RANK_RANGE, RANK_NOT_NULL = range(5)


@dataclass(frozen=True)
class ColumnConstraint:
    """What the predicates on one column allow.

    `keys`, ascending, are all that is allowed if given; otherwise lower ≤ key < upper, None
    being no bound. Neither is given for IS NULL (`is_null`) and IS NOT NULL."""

    column: Column
    is_null: bool = False
    is_empty: bool = False
    lower: DomainKey = None
    upper: DomainKey = None
    keys: tuple[DomainKey, ...] | None = None

    @property
    def rank(self) -> int:
        """Order of evaluation: what rejects most goes first."""
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

    def contains(self, key: DomainKey) -> bool:
        """Whether a row with this key matches."""
        if self.is_empty or self.is_null:
            return False
        if self.keys is not None:
            return key in self.keys
        return (self.lower is None or self.lower <= key) and (
            self.upper is None or key < self.upper
        )

    def overlaps(self, low: DomainKey, high: DomainKey) -> bool:
        """Whether any key within low..high, both included, matches."""
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
        """False only if no row can match, given statistics of which each may be None.

        Parquet leaves NaN out of minimum and maximum."""
        if self.is_empty:
            return False
        if self.is_null:
            return null_count is None or null_count > 0
        if row_count is not None and null_count == row_count:
            return False
        if minimum is None or maximum is None:
            return True
        column_type = self.column.type
        if column_type.is_float and (self.contains(NAN_KEY) or minimum != minimum):
            return True
        try:
            low, _ = literal_floor(minimum, column_type, self.column.name)
            high, _ = literal_floor(maximum, column_type, self.column.name)
        except SchemaError:
            return True  # a foreign file's statistics of another type prove nothing
        return self.overlaps(low, high)


def build_constraint(column: Column, comparisons: Iterable[tuple[str, Any]]) -> ColumnConstraint:
    """The constraint that all (operator, literal) pairs on `column` make together."""
    if column.type.is_array:
        return _null_test(column, comparisons)
    has_null = has_value = False
    lower: DomainKey = domain_min(column.type)
    top = domain_max(column.type)
    upper: DomainKey = None if top is None else domain_successor(top)
    allowed: set[DomainKey] | None = None
    for op, value in comparisons:
        if op == "is_null":
            has_null = True
            continue
        has_value = True
        if op == "in":
            keys = _keys_of(value, column)
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
        lower=None if lower <= domain_min(column.type) else lower,
        upper=None if top is not None and upper > top else upper,
    )


def _null_test(column: Column, comparisons: Iterable[tuple[str, Any]]) -> ColumnConstraint:
    """The constraint on a column of arrays, which have no order."""
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


def _keys_of(values: Iterable[Any], column: Column) -> set[DomainKey]:
    """Keys of an IN list; NULL in it matches nothing, nor does a value the column cannot hold."""
    floors = [
        literal_floor(value, column.type, column.name) for value in values if value is not None
    ]
    return {key for key, is_exact in floors if is_exact}


def _interval(op: str, value: Any, column: Column) -> tuple[DomainKey, DomainKey]:
    """lower ≤ key < upper for one comparison; None is no bound."""
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
        prefix = to_bytes(value) if column.type.name == "binary" else to_text(value).encode()
    except (TypeError, ValueError) as error:
        raise SchemaError(
            f"predicate on column {column.name!r}: starts_with {value!r}: {error}"
        ) from error
    stem = prefix.rstrip(b"\xff")
    return prefix, stem[:-1] + bytes([stem[-1] + 1]) if stem else None
