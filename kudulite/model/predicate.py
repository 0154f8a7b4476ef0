"""Predicates: comparisons of columns with constants, of which a scan's rows must meet all.

    table["host"] == "a"   →  Predicate        what a user writes; knows no schema
    bind_predicates(…)     →  BoundPredicates  checked against a schema; evaluates and prunes

Meaning, for every type: NULL matches IS NULL only; NaN equals NaN and is above every number;
-0.0 equals 0.0; strings and binary compare as unsigned bytes. Literals are compared by value: one
that the column cannot hold is legal, and `x < 2**40` is true for every int32.

A constraint is evaluated on a column's array by whole-array comparisons: one bool per row.

Bounds on encoded keys follow from the constraints on the key columns, in key order, as long as each
column is bounded. The lower bound is the smallest allowed value of each column; a prefix sorts
before all keys that start with it, so the columns after it need no value. The upper bound is the
greatest allowed value of each column and includes all keys that start with these values. It ends at
a column without a greatest value below its bound.

**Threads** any; everything here is immutable and can be pickled.

**Source** Kudu common/key_util.cc, scan_spec.cc.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.errors import SchemaError, UsageError
from kudulite.model.encoded_key import key_successor, prefix_successor
from kudulite.model.predicate_constraint import (
    NAN_KEY,
    RANK_NOT_NULL,
    ColumnConstraint,
    DomainKey,
    build_constraint,
    domain_value,
    float_of_key,
)
from kudulite.model.schema import Schema
from kudulite.model.types import ColumnType, joined, value_text

OPERATORS = ("=", "<", "<=", ">", ">=", "in", "is_null", "is_not_null", "starts_with")
_NULL_OPERATORS = ("is_null", "is_not_null")

_FEW_KEYS = 4  # up to here, comparisons one by one are faster than a set lookup


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


class ColumnExpression:
    """A column to compare: `==`, `<`, `<=`, `>`, `>=` and the methods return a Predicate."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"ColumnExpression({self.name!r})"

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, value: Any) -> Predicate:  # type: ignore[override]
        return Predicate(self.name, "=", value)

    def __ne__(self, value: Any) -> NoReturn:
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
        """Return the predicate "equal to one of `values`"; no row matches an empty list."""
        return Predicate(self.name, "in", values)

    def is_null(self) -> Predicate:
        """Return the predicate "the cell is NULL"."""
        return Predicate(self.name, "is_null")

    def is_not_null(self) -> Predicate:
        """Return the predicate "the cell has a value"."""
        return Predicate(self.name, "is_not_null")

    def starts_with(self, prefix: str | bytes) -> Predicate:
        """Return the predicate "the string or binary value begins with `prefix`"."""
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
        """Return bool[n], which rows match; `batch` has `columns`, of exactly their types."""
        result = np.full(batch.num_rows, not self.is_empty)
        for name in self.columns:
            result &= evaluate_constraint(self.constraints[name], batch.column(name))
            if not result.any():
                break
        return result

    def may_match_statistics(
        self,
        column: str,
        minimum: Any,
        maximum: Any,
        null_count: int | None,
        row_count: int | None,
    ) -> bool:
        """Return False only if statistics of `column` (None: unknown) prove that no row matches."""
        constraint = self.constraints.get(column)
        if constraint is None:
            return True
        return constraint.may_match(minimum, maximum, null_count, row_count)

    def key_bounds(self) -> tuple[bytes | None, bytes | None]:
        """Return (lower inclusive, upper exclusive) on the encoded key; None is no bound."""
        return self.range_bounds(self.schema.key_names)

    def within(self, lower: bytes | None, upper: bytes | None) -> BoundPredicates:
        """Return the predicates that are left to evaluate for keys in [lower, upper).

        Those on the first key columns are left out where the bounds imply them: any number of
        equalities, then one range.
        """
        least, end = self.key_bounds()
        if (least is not None and (lower is None or lower < least)) or (
            end is not None and (upper is None or upper > end)
        ):
            return self
        rest = dict(self.constraints)
        for name in self.schema.key_names:
            constraint = rest.get(name)
            if constraint is None or (constraint.keys is not None and len(constraint.keys) > 1):
                break
            del rest[name]
            if constraint.keys is None:
                break
        return BoundPredicates(self.schema, self.predicates, rest)

    def range_bounds(self, columns: Sequence[str]) -> tuple[bytes | None, bytes | None]:
        """Return the bounds over any list of key columns, the last of them encoded as last."""
        constraints = [self.constraints.get(name) for name in columns]
        if self.is_empty or any(c is not None and c.is_null for c in constraints):
            return b"", b""  # key columns are NOT NULL: nothing matches
        types = [self.schema.column(name).type for name in columns]
        return _lower_bound(constraints, types), _upper_bound(constraints, types)

    def equality_values(self, column: str) -> list[Any] | None:
        """Return all values that `column` may have, ascending; None if they cannot be listed."""
        if self.is_empty:
            return []
        constraint = self.constraints.get(column)
        if constraint is None or constraint.keys is None:
            return None
        return [domain_value(key, constraint.column.type) for key in constraint.keys]


def bind_predicates(predicates: Iterable[Predicate], schema: Schema) -> BoundPredicates:
    """Check predicates against a schema and merge them.

    ColumnNotFoundError for an unknown column; SchemaError, naming column and value, for a literal
    that cannot be compared with it. Ints, floats and Decimals compare with every number; ISO
    strings with dates and timestamps, and with unixtime_micros as UTC if they have no zone. A
    datetime without a zone cannot be compared with unixtime_micros.
    """
    given = tuple(predicates)
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


def _encode(key: DomainKey, column_type: ColumnType, is_last: bool) -> bytes:
    width = column_type.key_width
    if width is not None:
        return int(key + (1 << (8 * width - 1))).to_bytes(width, "big")
    return bytes(key if is_last else key.replace(b"\0", b"\0\1") + b"\0\0")


def _lower_bound(
    constraints: Sequence[ColumnConstraint | None], types: Sequence[ColumnType]
) -> bytes | None:
    result, last = b"", len(types) - 1
    for i, constraint in enumerate(constraints):
        if constraint is None:
            break
        least = constraint.keys[0] if constraint.keys else constraint.lower
        if least is None:
            break
        result += _encode(least, types[i], i == last)
    return result or None


def _upper_bound(
    constraints: Sequence[ColumnConstraint | None], types: Sequence[ColumnType]
) -> bytes | None:
    result, last = b"", len(types) - 1
    for i, constraint in enumerate(constraints):
        greatest = None if constraint is None else _greatest(constraint)
        if greatest is None:
            if constraint is not None and constraint.upper is not None:
                return result + _encode(constraint.upper, types[i], i == last)
            return prefix_successor(result) if i else None
        result += _encode(greatest, types[i], i == last)
    return key_successor(result)


def _greatest(constraint: ColumnConstraint) -> DomainKey | None:
    """Return the greatest allowed key, or None if there is no bound or no key just below it."""
    if constraint.keys:
        return constraint.keys[-1]
    upper = constraint.upper
    if upper is None or isinstance(upper, int):
        return upper if upper is None else upper - 1
    return upper[:-1] if upper.endswith(b"\0") else None


def evaluate_constraint(
    constraint: ColumnConstraint, array: pa.Array | pa.ChunkedArray
) -> np.ndarray:
    """Return bool[n], which values match. `array` has exactly the column's Arrow type."""
    array = joined(array)
    if isinstance(array, pa.ChunkedArray):  # over 2 GiB of strings
        parts = [evaluate_constraint(constraint, chunk) for chunk in array.chunks]
        return np.concatenate(parts)
    count, column_type = len(array), constraint.column.type
    if constraint.is_empty or count == 0:
        return np.zeros(count, bool)
    if constraint.is_null or constraint.rank == RANK_NOT_NULL:
        if array.null_count == 0:
            return np.full(count, not constraint.is_null)
        return _as_numpy(array.is_null() if constraint.is_null else array.is_valid())
    if column_type.is_bytes or column_type.name == "decimal":
        return _match_arrow(constraint, array)
    values = _numbers(array)
    if column_type.is_float:
        match = _match_floats(constraint, values)
    else:
        match = _match_integers(constraint, values)
    if array.null_count:
        match &= _as_numpy(array.is_valid())
    return match


def _as_numpy(array: pa.Array) -> np.ndarray:
    """Return a bool array without nulls, writable."""
    return np.array(array.to_numpy(zero_copy_only=False), bool)


def _numbers(array: pa.Array) -> np.ndarray:
    """Return the values as numpy numbers; anything where they are null."""
    if pa.types.is_boolean(array.type):
        return np.asarray(pc.fill_null(array, False)).view(np.int8)
    if pa.types.is_floating(array.type):
        dtype = np.dtype(array.type.to_pandas_dtype())
    else:
        dtype = np.dtype(f"i{array.type.bit_width // 8}")
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def _match_integers(constraint: ColumnConstraint, values: np.ndarray) -> np.ndarray:
    match: np.ndarray
    keys = constraint.keys
    if keys is not None:
        if len(keys) > _FEW_KEYS:
            return np.isin(values, np.array(keys, values.dtype))
        match = values == keys[0]
        for key in keys[1:]:
            match |= values == key
        return match
    if constraint.lower is None:
        match = values <= constraint.upper - 1
        return match
    match = values >= constraint.lower
    if constraint.upper is not None:
        match &= values <= constraint.upper - 1
    return match


def _match_floats(constraint: ColumnConstraint, values: np.ndarray) -> np.ndarray:
    """Match floats: NaN is the greatest key and equals itself; bounds are always doubles."""
    keys = constraint.keys
    if keys is not None:
        wanted = [float_of_key(key) for key in keys if key != NAN_KEY]
        match = np.isin(values.astype(np.float64, copy=False), wanted)
        if keys[-1] == NAN_KEY:
            match |= np.isnan(values)
        return match
    if constraint.lower is None:
        match = np.ones(len(values), bool)
    elif constraint.lower == NAN_KEY:
        match = np.isnan(values)
    else:
        match = ~(values < np.float64(float_of_key(constraint.lower)))  # true for NaN as well
    if constraint.upper is not None:
        if constraint.upper == NAN_KEY:
            match &= ~np.isnan(values)
        else:
            match &= values <= np.float64(float_of_key(constraint.upper - 1))
    return match


def _match_arrow(constraint: ColumnConstraint, array: pa.Array) -> np.ndarray:
    """Match bytes, compared unsigned, and decimals by Arrow's comparisons with scalars."""
    column_type = constraint.column.type
    is_bytes = column_type.is_bytes
    if is_bytes:
        large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
        array = array.view(pa.large_binary() if large else pa.binary())

    def scalar(key: Any) -> pa.Scalar:
        """Return the key as a scalar of the array's type."""
        return pa.scalar(key if is_bytes else domain_value(key, column_type), array.type)

    conditions = []
    if constraint.keys is not None and len(constraint.keys) > 1:
        wanted = pa.array([scalar(key).as_py() for key in constraint.keys], array.type)
        conditions.append(pc.is_in(array, value_set=wanted))
    elif constraint.keys is not None:
        conditions.append(pc.equal(array, scalar(constraint.keys[0])))
    if constraint.lower is not None:
        conditions.append(pc.greater_equal(array, scalar(constraint.lower)))
    if constraint.upper is not None and is_bytes:
        conditions.append(pc.less(array, scalar(constraint.upper)))
    elif constraint.upper is not None:
        # The greatest allowed number, because the bound itself may have one digit too many.
        conditions.append(pc.less_equal(array, scalar(constraint.upper - 1)))
    match = functools.reduce(pc.and_, conditions)
    if match.null_count:
        match = pc.fill_null(match, False)
    return _as_numpy(match)
