"""Bound predicates: the condition of a scan, checked against a schema; it evaluates and prunes.

    condition   →  a constraint on each column              all hold; see predicate_constraint
                   and disjunctions over several columns    of each, at least one branch holds

A branch is a condition of the same form. Conditions on one column, however they are joined, become
one exact constraint. If all branches of a disjunction constrain a column, then so does the
disjunction, by what any branch allows. Such implied constraints are kept beside the disjunction,
because statistics, keys and partitions are pruned by constraints.

Meaning, for every type: three-valued logic as in SQL (see condition); NaN equals NaN and is above
every number; -0.0 equals 0.0; strings and binary compare as unsigned bytes. Literals are compared
by value: one that the column cannot hold is legal, and `x < 2**40` is true for every int32. The
literal of a FLOAT column is rounded to a 32-bit float, as a cell is when it is written.

A constraint is evaluated on a column's array by whole-array comparisons: one bool per row.

Bounds on encoded keys follow from the constraints on the key columns, in key order, as long as each
column is bounded. The lower bound is the smallest allowed value of each column; a prefix sorts
before all keys that start with it, so the columns after it need no value. The upper bound is the
greatest allowed value of each column and includes all keys that start with these values. It ends at
a column without a greatest value below its bound.

**Threads**: any; everything here is immutable and can be pickled.

**Source**: Kudu common/key_util.cc, scan_spec.cc.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.model.aliases import Where
from kudulite.model.condition import And, Condition, Or, Predicate, Text, conditions_of
from kudulite.model.encoded_key import key_successor, prefix_successor
from kudulite.model.predicate_constraint import (
    NAN_KEY,
    ColumnConstraint,
    DomainKey,
    all_of,
    any_of,
    constraint_of,
    domain_value,
    float_of_key,
)
from kudulite.model.schema import Schema
from kudulite.model.types import ColumnType, joined

_FEW_ROWS = 8  # copying an eighth of the rows costs less than comparing all of them
_FEW_RANGES = 4  # up to here, comparisons one by one are faster than a search

# Minimum, maximum, number of nulls and number of rows of a column's values; each may be None.
Statistics = tuple[Any, Any, int | None, int | None]


@dataclass(frozen=True)
class Disjunction:
    """Conditions over several columns, of which a row must meet one at least."""

    branches: tuple[BoundPredicates, ...]

    @property
    def columns(self) -> list[str]:
        """Columns that the branches need."""
        return list(dict.fromkeys(name for branch in self.branches for name in branch.columns))

    def evaluate(self, batch: pa.RecordBatch | pa.Table) -> np.ndarray:
        """Return bool[n], which rows match."""
        result = np.zeros(batch.num_rows, bool)
        for branch in self.branches:
            result |= branch.evaluate(batch)
        return result


@dataclass(frozen=True)
class BoundPredicates:
    """A condition that fits `schema`: constraints by column, and disjunctions; all must hold."""

    schema: Schema
    constraints: dict[str, ColumnConstraint] = field(hash=False)
    disjunctions: tuple[Disjunction, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no row of any table with this schema can match."""
        return any(constraint.is_empty for constraint in self.constraints.values()) or any(
            not disjunction.branches for disjunction in self.disjunctions
        )

    @cached_property
    def columns(self) -> list[str]:
        """Columns that `evaluate` needs, the most selective kind of constraint first."""
        if self.is_empty:
            return []
        names = [*self._constrained, *(n for found in self.disjunctions for n in found.columns)]
        return list(dict.fromkeys(names))

    @cached_property
    def _constrained(self) -> list[str]:
        needed = [name for name, c in self.constraints.items() if not c.is_trivial]
        return sorted(
            needed, key=lambda name: (self.constraints[name].rank, self.schema.index_of(name))
        )

    def evaluate(self, batch: pa.RecordBatch | pa.Table) -> np.ndarray:
        """Return bool[n], which rows match; `batch` has `columns`, of exactly their types."""
        if self.is_empty:
            return np.zeros(batch.num_rows, bool)
        result = np.ones(batch.num_rows, bool)
        for name in self._constrained:
            result &= evaluate_constraint(self.constraints[name], batch.column(name))
            if not result.any():
                return result
        for disjunction in self.disjunctions:
            if np.count_nonzero(result) * _FEW_ROWS > batch.num_rows:
                result &= disjunction.evaluate(batch)
                continue
            # A list of keys has many branches, and what they all imply leaves few rows.
            left, names = np.flatnonzero(result), disjunction.columns
            rows = [batch.column(name).take(pa.array(left)) for name in names]
            result[left] = disjunction.evaluate(pa.Table.from_arrays(rows, names))
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

    def may_match(self, statistics: Callable[[str], Statistics | None]) -> bool:
        """Return False only if statistics of all columns prove that no row matches.

        `statistics` returns those of a column, None where nothing is known.
        """
        for name in self._constrained:
            found = statistics(name)
            if found is not None and not self.may_match_statistics(name, *found):
                return False
        return all(
            any(branch.may_match(statistics) for branch in disjunction.branches)
            for disjunction in self.disjunctions
        )

    def split(self, names: Collection[str]) -> tuple[BoundPredicates, BoundPredicates]:
        """Return the part that only needs columns among `names`, and the rest; both must hold."""
        parts = []
        for is_wanted in (True, False):
            constraints = {n: c for n, c in self.constraints.items() if (n in names) == is_wanted}
            disjunctions = [
                d for d in self.disjunctions if set(names).issuperset(d.columns) == is_wanted
            ]
            parts.append(BoundPredicates(self.schema, constraints, tuple(disjunctions)))
        return parts[0], parts[1]

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
            if constraint is None or constraint.range_count != 1:
                break
            del rest[name]
            if constraint.spans:
                break
        return replace(self, constraints=rest)

    def range_bounds(self, columns: Sequence[str]) -> tuple[bytes | None, bytes | None]:
        """Return the bounds over any list of key columns, the last of them encoded as last."""
        if self.is_empty:
            return b"", b""
        constraints = [self.constraints.get(name) for name in columns]
        types = [self.schema.column(name).type for name in columns]
        return _lower_bound(constraints, types), _upper_bound(constraints, types)

    def equality_values(self, column: str) -> list[Any] | None:
        """Return all values that `column` may have, ascending; None if they cannot be listed."""
        if self.is_empty:
            return []
        constraint = self.constraints.get(column)
        if constraint is None or constraint.has_null or constraint.keys is None:
            return None
        return [domain_value(key, constraint.column.type) for key in constraint.keys]


def parse_where(where: Where, schema: Schema) -> tuple[Condition, ...]:
    """Return the conditions that `where` means for a table of this schema; all must hold.

    `where` is text, a condition, a tuple, or several of them, as in `Table.scan`. Raises
    OptionError for text or tuples that are not understood, ColumnNotFoundError and SchemaError for
    text with an unknown or ambiguous column. Other columns are checked when the table is read.
    """
    return parsed(conditions_of(where), schema)


def parsed(conditions: tuple[Condition, ...], schema: Schema) -> tuple[Condition, ...]:
    """Return conditions in which text is replaced by what it says."""
    if not any(isinstance(condition, Text) for condition in conditions):
        return conditions
    # Imported here, because it imports sqlglot: 0.15 s of every process, most of which never parse.
    from kudulite.model.condition_text import parse_condition

    return And(
        tuple(
            parse_condition(c.text, schema, c.parameters) if isinstance(c, Text) else c
            for c in conditions
        )
    ).parts


def bind_predicates(conditions: Iterable[Condition], schema: Schema) -> BoundPredicates:
    """Check conditions, which must all hold, against a schema and merge them.

    ColumnNotFoundError for an unknown column; SchemaError, naming column and value, for a literal
    that cannot be compared with it. Ints, floats and Decimals compare with every number; ISO
    strings with dates and timestamps, and with unixtime_micros as UTC if they have no zone. A
    datetime without a zone cannot be compared with unixtime_micros.
    """
    return _conjunction([_bound(condition, schema) for condition in conditions], schema)


def _bound(condition: Condition, schema: Schema) -> BoundPredicates:
    if isinstance(condition, Predicate):
        constraint = constraint_of(condition, schema.column(condition.column))
        return BoundPredicates(schema, {condition.column: constraint})
    assert isinstance(condition, And | Or), condition
    parts = [_bound(part, schema) for part in condition.parts]
    join = _conjunction if isinstance(condition, And) else _disjunction
    return join(parts, schema)


def _conjunction(parts: Sequence[BoundPredicates], schema: Schema) -> BoundPredicates:
    constraints = {name: all_of(found) for name, found in _by_column(parts).items()}
    disjunctions = tuple(found for part in parts for found in part.disjunctions)
    return BoundPredicates(schema, constraints, disjunctions)


def _by_column(parts: Iterable[BoundPredicates]) -> dict[str, list[ColumnConstraint]]:
    grouped: dict[str, list[ColumnConstraint]] = {}
    for part in parts:
        for name, constraint in part.constraints.items():
            grouped.setdefault(name, []).append(constraint)
    return grouped


def _disjunction(parts: Sequence[BoundPredicates], schema: Schema) -> BoundPredicates:
    """Return what any of the parts allows; parts on the same single column become one."""
    parts = [part for part in parts if not part.is_empty]
    simple = [part for part in parts if len(part.constraints) == 1 and not part.disjunctions]
    branches = [
        BoundPredicates(schema, {name: any_of(found)}) for name, found in _by_column(simple).items()
    ]
    branches += [part for part in parts if len(part.constraints) != 1 or part.disjunctions]
    if len(branches) == 1:
        return branches[0]
    if any(not branch.columns for branch in branches):  # it is true of every row
        return BoundPredicates(schema, {})
    implied = {
        name: any_of(found)
        for name, found in _by_column(branches).items()
        if len(found) == len(branches)
    }
    return BoundPredicates(schema, implied, (Disjunction(tuple(branches)),))


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
        least = None if constraint is None else constraint.least
        if least is None:
            break
        result += _encode(least, types[i], i == last)
    return result or None


def _upper_bound(
    constraints: Sequence[ColumnConstraint | None], types: Sequence[ColumnType]
) -> bytes | None:
    result, last = b"", len(types) - 1
    for i, constraint in enumerate(constraints):
        greatest = None if constraint is None else constraint.greatest
        if greatest is None:
            if constraint is not None and constraint.upper is not None:
                return result + _encode(constraint.upper, types[i], i == last)
            return prefix_successor(result) if i else None
        result += _encode(greatest, types[i], i == last)
    return key_successor(result)


def evaluate_constraint(
    constraint: ColumnConstraint, array: pa.Array | pa.ChunkedArray
) -> np.ndarray:
    """Return bool[n], which values match. `array` has exactly the column's Arrow type."""
    array = joined(array)
    if isinstance(array, pa.ChunkedArray):  # over 2 GiB of strings
        parts = [evaluate_constraint(constraint, chunk) for chunk in array.chunks]
        return np.concatenate(parts)
    count = len(array)
    if constraint.is_empty or count == 0:
        return np.zeros(count, bool)
    if not constraint.edges or constraint.has_all_values:
        match = np.full(count, bool(constraint.edges))
    else:
        match = _match_values(constraint, array)
    if array.null_count:
        if constraint.has_null:
            match |= _as_numpy(array.is_null())
        else:
            match &= _as_numpy(array.is_valid())
    return match


def _match_values(constraint: ColumnConstraint, array: pa.Array) -> np.ndarray:
    """Match the values that are not NULL; NULL gives anything."""
    if constraint.without.range_count < constraint.range_count:  # as in `v != 1`
        return ~_match_ranges(constraint.without, array)
    return _match_ranges(constraint, array)


def _match_ranges(constraint: ColumnConstraint, array: pa.Array) -> np.ndarray:
    column_type = constraint.column.type
    if column_type.is_bytes or column_type.name == "decimal":
        return _match_arrow(constraint, array)
    values = _numbers(array)
    if constraint.range_count > _FEW_RANGES:
        return _search_ranges(constraint, values)
    if column_type.is_float:
        matches = [_is_float(values, key) for key in constraint.points]
        matches += [_match_float_span(values, *span) for span in constraint.spans]
    else:
        matches = [values == key for key in constraint.points]
        matches += [_match_integer_span(values, *span) for span in constraint.spans]
    return functools.reduce(np.bitwise_or, matches)


def _search_ranges(constraint: ColumnConstraint, values: np.ndarray) -> np.ndarray:
    """Match numbers by looking for their places among the edges, or for values by a set lookup."""
    edges: Sequence[Any] = constraint.edges
    if constraint.column.type.is_float:
        edges = [float_of_key(key) for key in edges]
        values = values.astype(np.float64, copy=False)  # bounds are always doubles
    elif constraint.keys is not None:
        return np.isin(values, np.array(constraint.keys, values.dtype))
    places = np.searchsorted(np.array(edges, values.dtype), values, "right")
    is_in: np.ndarray = places % 2 == 1
    return is_in


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


def _match_integer_span(values: np.ndarray, lower: DomainKey, upper: DomainKey) -> np.ndarray:
    match: np.ndarray
    if lower is None:
        match = values <= upper - 1
        return match
    match = values >= lower
    if upper is not None:
        match &= values <= upper - 1
    return match


def _is_float(values: np.ndarray, key: DomainKey) -> np.ndarray:
    match: np.ndarray
    match = np.isnan(values) if key == NAN_KEY else values == np.float64(float_of_key(key))
    return match


def _match_float_span(values: np.ndarray, lower: DomainKey, upper: DomainKey) -> np.ndarray:
    """Match floats: NaN is the greatest key; bounds are always doubles."""
    match: np.ndarray
    if lower is None:
        match = np.ones(len(values), bool)
    else:
        match = ~(values < np.float64(float_of_key(lower)))  # true for NaN as well
    if upper == NAN_KEY:
        match &= ~np.isnan(values)
    elif upper is not None:
        match &= values <= np.float64(float_of_key(upper - 1))
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

    def in_span(lower: DomainKey, upper: DomainKey) -> pa.Array:
        """Return which values are in a range of several keys."""
        conditions = []
        if lower is not None:
            conditions.append(pc.greater_equal(array, scalar(lower)))
        if upper is not None and is_bytes:
            conditions.append(pc.less(array, scalar(upper)))
        elif upper is not None:
            # The greatest allowed number, because the bound itself may have one digit too many.
            conditions.append(pc.less_equal(array, scalar(upper - 1)))
        return functools.reduce(pc.and_, conditions)

    points = constraint.points
    matches = [in_span(lower, upper) for lower, upper in constraint.spans]
    if len(points) == 1:
        matches.append(pc.equal(array, scalar(points[0])))
    elif points:
        wanted = pa.array([scalar(key).as_py() for key in points], array.type)
        matches.append(pc.is_in(array, value_set=wanted))
    match = functools.reduce(pc.or_, matches)
    if match.null_count:
        match = pc.fill_null(match, False)
    return _as_numpy(match)
