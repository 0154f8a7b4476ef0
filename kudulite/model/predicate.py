"""Predicates: comparisons of columns with constants, of which a scan's rows must meet all.

    table["host"] == "a"   →  Predicate        what a user writes; knows no schema
    bind_predicates(…)     →  BoundPredicates  checked against a schema; evaluates and prunes

Meaning, for every type: NULL matches IS NULL only; NaN equals NaN and is above every number;
-0.0 equals 0.0; strings and binary compare as unsigned bytes. Literals are compared by value: one
that the column cannot hold is legal, and `x < 2**40` is true for every int32.

**Threads**: everything here is immutable. All of it can be pickled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from kudulite.errors import SchemaError, UsageError
from kudulite.model.predicate_bounds import encoded_bounds
from kudulite.model.predicate_constraint import ColumnConstraint, build_constraint
from kudulite.model.predicate_domain import domain_value
from kudulite.model.predicate_evaluate import evaluate_constraint
from kudulite.model.schema import Schema
from kudulite.model.types import value_text

OPERATORS = ("=", "<", "<=", ">", ">=", "in", "is_null", "is_not_null", "starts_with")
_NULL_OPERATORS = ("is_null", "is_not_null")


@dataclass(frozen=True)
class Predicate:
    """One comparison: `column op value`; `value` is a tuple for "in", None for the null tests."""

    column: str
    op: str
    value: Any = None

    def __post_init__(self) -> None:
        if self.op not in OPERATORS:
            raise UsageError(f"unknown operator {self.op!r}; known: {', '.join(OPERATORS)}")
        if self.op == "in":
            if isinstance(self.value, (str, bytes)) or not isinstance(self.value, Iterable):
                raise UsageError(
                    f"column {self.column!r}: IN needs a list of values, got {self.value!r}"
                )
            object.__setattr__(self, "value", tuple(self.value))
        elif self.value is None and self.op not in _NULL_OPERATORS:
            raise UsageError(
                f"column {self.column!r}: a comparison with None is never true; "
                "use is_null() or is_not_null()"
            )

    def __bool__(self) -> NoReturn:
        """Refuse `a < column < b` and `p and q`, which would silently drop the first half."""
        raise UsageError(f"predicate ({self}) has no truth value; pass predicates as a list")

    def __str__(self) -> str:
        if self.op in _NULL_OPERATORS:
            return f"{self.column} {self.op.replace('_', ' ').upper()}"
        return f"{self.column} {self.op} {value_text(self.value)}"


def conjunction(where: Sequence[Predicate] | Predicate) -> list[Predicate]:
    """Return what a user gives as a condition as a list: one predicate or several.

    Text is none, and is refused as a whole when predicates are bound.
    """
    return [where] if isinstance(where, Predicate | str) else list(where)


class ColumnExpression:
    """A column to compare: `==`, `<`, `<=`, `>`, `>=` and the methods give a Predicate."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"ColumnExpression({self.name!r})"

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, value: Any) -> Predicate:  # type: ignore[override]
        return Predicate(self.name, "=", value)

    def __ne__(self, value: Any) -> NoReturn:  # type: ignore[override]
        hint = "use is_not_null()" if value is None else "use < and >, or filter the result"
        raise UsageError(f"column {self.name!r}: != is no predicate; {hint}")

    def __lt__(self, value: Any) -> Predicate:
        return Predicate(self.name, "<", value)

    def __le__(self, value: Any) -> Predicate:
        return Predicate(self.name, "<=", value)

    def __gt__(self, value: Any) -> Predicate:
        return Predicate(self.name, ">", value)

    def __ge__(self, value: Any) -> Predicate:
        return Predicate(self.name, ">=", value)

    def in_list(self, values: Iterable[Any]) -> Predicate:
        """Equal to one of `values`; none of them means no row."""
        return Predicate(self.name, "in", values)

    def is_null(self) -> Predicate:
        """The cell is NULL."""
        return Predicate(self.name, "is_null")

    def is_not_null(self) -> Predicate:
        """The cell has a value."""
        return Predicate(self.name, "is_not_null")

    def starts_with(self, prefix: str | bytes) -> Predicate:
        """The string or binary value begins with `prefix`."""
        return Predicate(self.name, "starts_with", prefix)


@dataclass(frozen=True)
class BoundPredicates:
    """A conjunction of predicates that fits `schema`, merged to one constraint per column."""

    schema: Schema
    predicates: tuple[Predicate, ...]
    constraints: dict[str, ColumnConstraint] = field(compare=False)

    @property
    def is_empty(self) -> bool:
        """Whether no row of any table with this schema can match."""
        return any(constraint.is_empty for constraint in self.constraints.values())

    @property
    def columns(self) -> list[str]:
        """Columns that `evaluate` needs, the most selective kind of constraint first."""
        if self.is_empty:
            return []
        needed = [name for name, c in self.constraints.items() if not c.is_trivial]
        return sorted(
            needed, key=lambda name: (self.constraints[name].rank, self.schema.index_of(name))
        )

    def evaluate(self, batch: pa.RecordBatch | pa.Table) -> np.ndarray:
        """bool[n]: which rows match; `batch` has at least `columns`, of exactly their types."""
        if self.is_empty:
            return np.zeros(batch.num_rows, bool)
        result: np.ndarray | None = None
        for name in self.columns:
            match = evaluate_constraint(self.constraints[name], batch.column(name))
            result = match if result is None else result & match
            if not result.any():
                return result
        return np.ones(batch.num_rows, bool) if result is None else result

    def may_match_statistics(
        self,
        column: str,
        minimum: Any,
        maximum: Any,
        null_count: int | None,
        row_count: int | None,
    ) -> bool:
        """False only if these statistics of `column` prove that no row matches; None is unknown."""
        constraint = self.constraints.get(column)
        if constraint is None:
            return True
        return constraint.may_match(minimum, maximum, null_count, row_count)

    def key_bounds(self) -> tuple[bytes | None, bytes | None]:
        """(lower inclusive, upper exclusive) on the encoded primary key; None is no bound."""
        return self.range_bounds(self.schema.key_names)

    def range_bounds(self, columns: Sequence[str]) -> tuple[bytes | None, bytes | None]:
        """The same over any list of key columns, encoded with the last of them as last."""
        if self.is_empty:
            return b"", b""
        return encoded_bounds(
            [self.constraints.get(name) for name in columns],
            [self.schema.column(name).type for name in columns],
        )

    def equality_values(self, column: str) -> list[Any] | None:
        """All values that `column` may have, ascending; None if they cannot be listed."""
        if self.is_empty:
            return []
        constraint = self.constraints.get(column)
        if constraint is None or constraint.keys is None:
            return None
        return [domain_value(key, constraint.column.type) for key in constraint.keys]


def bind_predicates(
    predicates: Predicate | Iterable[Predicate] | None, schema: Schema
) -> BoundPredicates:
    """Check predicates against a schema and merge them.

    ColumnNotFoundError for an unknown column; SchemaError, naming column and value, for a literal
    that cannot be compared with it. Ints, floats and Decimals compare with every number; ISO
    strings with dates and timestamps; a naive datetime with unixtime_micros as UTC."""
    if isinstance(predicates, Predicate):
        predicates = (predicates,)
    given: tuple[Predicate, ...] = tuple(predicates or ())
    grouped: dict[str, list[tuple[str, Any]]] = {}
    for predicate in given:
        if not isinstance(predicate, Predicate):
            raise SchemaError(f"{predicate!r} is no predicate; write table['column'] == value")
        schema.column(predicate.column)
        grouped.setdefault(predicate.column, []).append((predicate.op, predicate.value))
    constraints = {
        name: build_constraint(schema.column(name), comparisons)
        for name, comparisons in grouped.items()
    }
    return BoundPredicates(schema, given, constraints)
