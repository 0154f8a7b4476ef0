"""Random filters over typed columns: as SQL, as kudulite predicates, and what they mean to a row.

    filter  := test | NOT filter | filter AND filter | filter OR filter
    test    := column with literals, or with another column

What a filter means is said here by itself, over plain Python rows: three-valued (None is unknown),
NaN equals NaN and is above all numbers, -0.0 equals 0.0, text is compared as its UTF-8 bytes.
"""

from __future__ import annotations

import datetime
import functools
import math
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from kudulite import ColumnType, Condition, Predicate, Schema
from tests.support.oracle.condition_model import COMPARISONS

Row = Mapping[str, Any]
Truth = bool | None
UTC = datetime.UTC

INTEGERS = {"int8", "int16", "int32", "int64"}
_FAR = 10**9  # days: after all dates that Python knows


@dataclass(frozen=True)
class Literal:
    """A value: in Spark's SQL, in the option `filter` (None: not allowed there), and as it is."""

    sql: str
    option: str | None
    value: Any
    rank: Any  # compares as Spark compares it with a column


@dataclass(frozen=True)
class Filter:
    """A filter; `conjuncts` are those that it is the conjunction of."""

    sql: str
    holds: Callable[[Row], Truth]
    option: str | None = None
    predicates: tuple[Condition, ...] | None = None
    conjuncts: tuple[Filter, ...] = ()

    @property
    def parts(self) -> tuple[Filter, ...]:
        """The filters whose conjunction this is."""
        return self.conjuncts or (self,)

    @property
    def condition(self) -> Condition:
        """All predicates as one condition."""
        return functools.reduce(operator.and_, self.predicates or ())

    @property
    def pushable(self) -> list[Condition]:
        """Conditions that hold wherever the filter does."""
        return [found for part in self.parts for found in part.predicates or ()]


def both(one: Filter, other: Filter) -> Filter:
    """Return `one AND other`."""
    is_exact = None not in (one.predicates, other.predicates)
    options = None not in (one.option, other.option)
    return Filter(
        f"({one.sql} AND {other.sql})",
        lambda row: _and(one.holds(row), other.holds(row)),
        f"{one.option} AND {other.option}" if options else None,
        (*(one.predicates or ()), *(other.predicates or ())) if is_exact else None,
        (*one.parts, *other.parts),
    )


def either(one: Filter, other: Filter) -> Filter:
    """Return `one OR other`."""
    is_exact = None not in (one.predicates, other.predicates)
    options = None not in (one.option, other.option)
    return Filter(
        f"({one.sql} OR {other.sql})",
        lambda row: _not(_and(_not(one.holds(row)), _not(other.holds(row)))),
        f"({one.option} OR {other.option})" if options else None,
        (one.condition | other.condition,) if is_exact else None,
    )


def negated(one: Filter) -> Filter:
    """Return `NOT one`."""
    return Filter(
        f"NOT ({one.sql})",
        lambda row: _not(one.holds(row)),
        None if one.option is None else f"NOT ({one.option})",
        None if one.predicates is None else (~one.condition,),
    )


def _and(one: Truth, other: Truth) -> Truth:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _not(one: Truth) -> Truth:
    return None if one is None else not one


def rank(value: Any, column_type: ColumnType) -> Any:
    """Return what compares as Spark compares values of the column; None for NULL."""
    if value is None:
        return None
    name = column_type.name
    if name in ("float", "double"):
        return (1, 0.0) if math.isnan(value) else (0, value + 0.0)
    if name in ("string", "varchar"):
        return value.encode()
    if name == "date":
        return value.toordinal()
    return value


class FilterMaker:
    """Makes filters for one schema; `values` are what its columns hold."""

    def __init__(self, schema: Schema, values: Mapping[str, Sequence[Any]], seed: int) -> None:
        self._random = random.Random(seed)
        self._types = {name: schema.column(name).type for name in values}
        self._values = values

    def filter(self, depth: int = 3) -> Filter:
        """Return a random filter of so many levels at most."""
        kind = self._random.random()
        if depth == 0 or kind < 0.4:
            return self._test()
        if kind < 0.5:
            return negated(self.filter(depth - 1))
        join = both if kind < 0.8 else either
        return join(self.filter(depth - 1), self.filter(depth - 1))

    def _test(self) -> Filter:
        name = self._random.choice(sorted(self._values))
        column_type = self._types[name]
        if column_type.is_array:
            return self._null_test(name, column_type)
        tests = [self._comparison] * 5 + [self._in_list] * 2
        tests += [self._null_test, self._null_safe, self._between, self._two_columns]
        if column_type.name in ("string", "varchar"):
            tests += [self._prefix] * 3 + [self._pattern]
        return self._random.choice(tests)(name, column_type)

    def _comparison(self, name: str, column_type: ColumnType) -> Filter:
        op = self._random.choice(sorted(COMPARISONS))
        literal = self._literal(name, column_type)
        is_mirrored = self._random.random() < 0.2
        mirrored = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(op, op)

        def text(side: str) -> str:
            return f"{side} {mirrored} {name}" if is_mirrored else f"{name} {op} {side}"

        return Filter(
            text(literal.sql),
            self._compared(name, op, literal.rank),
            text(literal.option) if literal.option else None,
            self._predicates(name, op, literal),
        )

    def _compared(self, name: str, op: str, wanted: Any) -> Callable[[Row], Truth]:
        column_type, compare = self._types[name], COMPARISONS[op]

        def holds(row: Row) -> Truth:
            found = rank(row[name], column_type)
            return None if found is None or wanted is None else compare(found, wanted)

        return holds

    @staticmethod
    def _predicates(name: str, op: str, *literals: Literal) -> tuple[Predicate, ...] | None:
        if any(literal.value is ... or literal.value is None for literal in literals):
            return None
        return tuple(Predicate(name, op, literal.value) for literal in literals)

    def _between(self, name: str, column_type: ColumnType) -> Filter:
        low, high = self._literal(name, column_type), self._literal(name, column_type)
        options = None not in (low.option, high.option)
        at_least, at_most = (
            self._compared(name, op, literal.rank) for op, literal in ((">=", low), ("<=", high))
        )
        above, below = self._predicates(name, ">=", low), self._predicates(name, "<=", high)
        return Filter(
            f"{name} BETWEEN {low.sql} AND {high.sql}",
            lambda row: _and(at_least(row), at_most(row)),
            f"{name} BETWEEN {low.option} AND {high.option}" if options else None,
            None if above is None or below is None else above + below,
        )

    def _in_list(self, name: str, column_type: ColumnType) -> Filter:
        literals = [self._literal(name, column_type) for _ in range(self._random.randint(1, 4))]
        if self._random.random() < 0.2:
            literals.append(_NULL)
        options = ["NULL" if literal is _NULL else literal.option for literal in literals]
        tests = [self._compared(name, "=", literal.rank) for literal in literals]

        def holds(row: Row) -> Truth:
            found = [test(row) for test in tests]
            return True if True in found else None if None in found else False

        values = tuple(literal.value for literal in literals)
        is_exact = not any(value is ... for value in values)
        test = Filter(
            f"{name} IN ({', '.join(literal.sql for literal in literals)})",
            holds,
            f"{name} IN ({', '.join(map(str, options))})" if None not in options else None,
            (Predicate(name, "in", values),) if is_exact else None,
        )
        return negated(test) if self._random.random() < 0.2 else test

    def _null_test(self, name: str, column_type: ColumnType) -> Filter:
        is_negated = self._random.random() < 0.5
        text = f"{name} IS {'NOT ' if is_negated else ''}NULL"
        op = "is_not_null" if is_negated else "is_null"
        return Filter(
            text,
            lambda row: (row[name] is None) != is_negated,
            text,
            (Predicate(name, op, None),),
        )

    def _null_safe(self, name: str, column_type: ColumnType) -> Filter:
        literal = self._literal(name, column_type)
        wanted = literal.rank
        return Filter(
            f"{name} <=> {literal.sql}",
            lambda row: rank(row[name], column_type) == wanted,
            None if literal.option is None else f"{name} <=> {literal.option}",
            self._null_safe_predicates(name, literal),
        )

    def _null_safe_predicates(self, name: str, literal: Literal) -> tuple[Predicate, ...] | None:
        found = self._predicates(name, "=", literal)
        return None if found is None else (*found, Predicate(name, "is_not_null"))

    def _two_columns(self, name: str, column_type: ColumnType) -> Filter:
        others = [n for n, found in self._types.items() if found == column_type]
        other, op = self._random.choice(others), self._random.choice(sorted(COMPARISONS))
        compare = COMPARISONS[op]

        def holds(row: Row) -> Truth:
            pair = rank(row[name], column_type), rank(row[other], column_type)
            return None if None in pair else compare(*pair)

        return Filter(f"{name} {op} {other}", holds)

    def _prefix(self, name: str, column_type: ColumnType) -> Filter:
        value = self._random.choice(self._values[name]) or "zq"
        prefix = value[: self._random.randint(0, len(value))] + self._random.choice(["", "%", "_"])
        escaped = prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        text = f"{name} LIKE {_quoted(escaped + '%')}"
        if self._random.random() < 0.3:
            text = f"startswith({name}, {_quoted(prefix)})"

        def holds(row: Row) -> Truth:
            return None if row[name] is None else row[name].startswith(prefix)

        return Filter(text, holds, text, (Predicate(name, "starts_with", prefix),))

    def _pattern(self, name: str, column_type: ColumnType) -> Filter:
        value = self._random.choice(self._values[name]) or "b"
        piece = value[-1:]
        is_end = self._random.random() < 0.5

        def holds(row: Row) -> Truth:
            found = row[name]
            return None if found is None else found.endswith(piece) if is_end else piece in found

        return Filter(f"{name} LIKE {_quoted('%' + piece + ('' if is_end else '%'))}", holds)

    def _literal(self, name: str, column_type: ColumnType) -> Literal:
        if self._random.random() < 0.03:
            return _NULL
        if self._random.random() < 0.25:
            return self._random.choice(_strangers(column_type) or [_NULL])
        values = [value for value in self._values[name] if value is not None]
        return _of_value(self._random.choice(values), column_type)


_NULL = Literal("NULL", None, None, None)


def _of_value(value: Any, column_type: ColumnType) -> Literal:
    """Return the literal of a value that the column may hold."""
    name, wanted = column_type.name, rank(value, column_type)
    if name == "bool":
        text = str(value).lower()
    elif name in INTEGERS or name == "decimal":
        text = f"{value:f}" if isinstance(value, Decimal) else str(value)
    elif name in ("float", "double"):
        if math.isnan(value) or math.isinf(value):
            word = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
            return Literal(f"double('{word}')", None, value, wanted)
        text = f"{value!r}D"
    elif name in ("string", "varchar"):
        text = _quoted(value)
    elif name == "binary":
        text = f"X'{value.hex()}'"
    elif name == "date":
        text = f"DATE '{value.isoformat()}'"
    elif name == "unixtime_micros":
        text = f"TIMESTAMP '{value.astimezone(UTC).replace(tzinfo=None).isoformat()}Z'"
    else:
        assert name == "timestamp_ntz", name
        text = f"TIMESTAMP_NTZ '{value.isoformat()}'"
    return Literal(text, text, value, wanted)


def _strangers(column_type: ColumnType) -> list[Literal]:
    """Literals between, outside and beside the values that a column of the type may hold."""
    name = column_type.name
    if name in INTEGERS or name == "decimal":
        # None beyond a BIGINT: Spark says TRUE to `NULL_integer < 1e19BD`, before it sees a row.
        texts = ["2.5", "-0.5", "300", "0.00005", "9223372036854775807"]
        return [Literal(text, text, Decimal(text), Decimal(text)) for text in texts]
    if name in ("float", "double"):
        single = float(np.float32(1.1))
        found = [Literal("-3", "-3", -3.0, (0, -3.0))]
        # On a FLOAT column Spark compares the double; kudulite rounds it to a FLOAT.
        is_exact = name == "double"
        for text in ("1.1", "1e30"):
            value = float(text) if is_exact else ...
            found.append(Literal(text, text if is_exact else None, value, (0, float(text))))
        return [*found, Literal("CAST(1.1 AS FLOAT)", None, single, (0, single))]
    if name in ("string", "varchar"):
        return [_of_value(v, column_type) for v in ("a'b", "\U0001f5ff", "zzzzzzzzz", "a\\", "\t%")]
    if name == "binary":
        return [_of_value(v, column_type) for v in (b"\0\0", b"\xff", b"ab")]
    if name == "date":
        far = [Literal("DATE '+12024-03-15'", None, ..., _FAR)]
        days = datetime.date(2, 1, 1), datetime.date(1970, 1, 1)
        return far + [_of_value(day, column_type) for day in days]
    if name == "unixtime_micros":
        latest = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)
        moments = latest, datetime.datetime(1, 1, 1, tzinfo=UTC), latest.replace(1970)
        return [_of_value(moment, column_type) for moment in moments]
    if name == "timestamp_ntz":
        latest = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999)
        return [_of_value(latest, column_type), _of_value(latest.replace(1600), column_type)]
    return []


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
