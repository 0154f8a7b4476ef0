"""Conditions: what a user writes to choose rows; they know no schema.

    table["host"] == "a"              Predicate    one column compared with a constant
    (table["v"] > 3) & ~(…)           And, Or      of conditions, by &, | and ~
    "host = 'a' OR v != 1"            Text         SQL, parsed as soon as the schema is known
    ("host = ? OR v != ?", ["a", 1])               the same with values in the place of each ?
    ("host", "=", "a")                             a predicate as a tuple
    [("host", "=", "a"), …]                        a sequence: all must hold
    [[("host", "=", "a")], [("v", ">", 3)]]        a list of lists: all of at least one list

Conditions have the three-valued logic of SQL. A comparison with a NULL cell is unknown, NOT unknown
is unknown, and a row is returned only if the condition is true. So neither `v = 1` nor `NOT v = 1`
returns a row whose `v` is NULL.

There is no NOT in the tree: ~ negates predicates and swaps And and Or. That is exact, because every
operator has another one that is true where it is false, and unknown where it is unknown.

**Threads**: any; conditions never change and can be pickled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from kudulite.errors import OptionError, UsageError
from kudulite.model.expression import Arithmetic
from kudulite.model.types import value_text

OPERATORS = (
    *("=", "!=", "<", "<=", ">", ">=", "in", "not_in"),
    *("is_null", "is_not_null", "starts_with", "not_starts_with"),
)
_NULL_OPERATORS = ("is_null", "is_not_null")
_LIST_OPERATORS = ("in", "not_in")
_NEGATED = {
    "=": "!=",
    "<": ">=",
    ">": "<=",
    "in": "not_in",
    "is_null": "is_not_null",
    "starts_with": "not_starts_with",
}
_NEGATED |= {negated: op for op, negated in _NEGATED.items()}
# The operators of tuples, as pyarrow and deltalake have them.
_OF_TUPLES = {"=": "=", "==": "=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_OF_TUPLES |= {"in": "in", "not in": "not_in"}
_NULL_TESTS = {"=": "is_null", "!=": "is_not_null"}

_PARENTHESES = "put each comparison in parentheses: (table['a'] > 1) & (table['b'] == 2)"
_FORMS = (
    "give text as in \"city = 'Rome' OR v > 1\", text with values as in ('city = ?', ['Rome']),"
    " predicates as in table['city'] == 'Rome', or tuples as in ('city', '=', 'Rome')"
)


class Condition(ABC):
    """A condition on rows: a predicate, or conditions joined by `&` and `|` and negated by `~`.

    `table.scan(where=(table["v"] > 3) | (table["v"] == None))`. Logic is three-valued, as in SQL:
    a row is returned only if the condition is true, and a comparison with NULL is not.
    """

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that are compared, each once."""

    @abstractmethod
    def __invert__(self) -> Condition: ...

    def __and__(self, other: Condition) -> Condition:
        return And((self, _operand(other)))

    def __or__(self, other: Condition) -> Condition:
        return Or((self, _operand(other)))

    def __rand__(self, other: object) -> NoReturn:
        raise _no_condition(other)

    __ror__ = __rand__

    def __bool__(self) -> NoReturn:
        """Refuse `a < column < b` and `p and q`, which would silently drop the first half."""
        raise UsageError(
            f"condition ({self}) has no truth value; join conditions with & and |, negate them with"
            f" ~, and {_PARENTHESES}"
        )


def _operand(value: Any) -> Condition:
    if isinstance(value, Condition):
        return value
    raise _no_condition(value)


def _no_condition(value: Any) -> UsageError:
    return UsageError(f"{value!r} is no condition; {_PARENTHESES}")


@dataclass(frozen=True)
class Predicate(Condition):
    """One comparison: `column op value`; `value` is a tuple for lists, None for the null tests."""

    column: str
    op: str
    value: Any = None

    def __post_init__(self) -> None:
        if self.op not in OPERATORS:
            raise UsageError(f"unknown operator {self.op!r}; known: {', '.join(OPERATORS)}")
        if self.op in _LIST_OPERATORS:
            if isinstance(self.value, (str, bytes)) or not isinstance(self.value, Iterable):
                raise UsageError(
                    f"column {self.column!r}: {_shown(self.op).upper()} needs a list of values, got"
                    f" {self.value!r}"
                )
            object.__setattr__(self, "value", tuple(self.value))
        elif self.value is None and self.op not in _NULL_OPERATORS:
            raise UsageError(
                f"column {self.column!r}: a comparison with None is never true; "
                "use is_null() or is_not_null()"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The one column."""
        return (self.column,)

    def __invert__(self) -> Predicate:
        return replace(self, op=_NEGATED[self.op])

    def __str__(self) -> str:
        if self.op in _NULL_OPERATORS:
            return f"{self.column} {self.op.replace('_', ' ').upper()}"
        return f"{self.column} {_shown(self.op)} {value_text(self.value)}"


def _shown(op: str) -> str:
    return op.replace("not_", "not ")


@dataclass(frozen=True)
class Junction(Condition):
    """Conditions joined by the same word; those of a junction of the same kind are its own."""

    parts: tuple[Condition, ...]

    def __post_init__(self) -> None:
        own: list[Condition] = []
        for part in self.parts:
            own += part.parts if isinstance(part, type(self)) else (part,)
        object.__setattr__(self, "parts", tuple(own))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of all parts."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.columns))

    def __str__(self) -> str:
        texts = [f"({p})" if isinstance(p, Junction) else str(p) for p in self.parts]
        return f" {type(self).__name__.upper()} ".join(texts)


class And(Junction):
    """All parts hold; true without parts."""

    def __invert__(self) -> Condition:
        return Or(tuple(~part for part in self.parts))


class Or(Junction):
    """At least one part holds; false without parts."""

    def __invert__(self) -> Condition:
        return And(tuple(~part for part in self.parts))


@dataclass(frozen=True)
class Text(Condition):
    """SQL text, with a value for each `?`; `parse_where` replaces it by what it says."""

    text: str
    parameters: tuple[Any, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Not known without a schema."""
        raise AssertionError("text is parsed before its columns are asked for")

    def __invert__(self) -> NoReturn:
        raise AssertionError("text is parsed before it is negated")

    def __str__(self) -> str:
        return self.text


def conditions_of(where: Any) -> tuple[Condition, ...]:
    """Return the conditions that must all hold, for any form in which users give `where`.

    Raises OptionError for anything else.
    """
    if isinstance(where, And):
        return where.parts
    if isinstance(where, str | Condition) or _is_comparison(where) or _has_parameters(where):
        return (_condition(where),)
    if isinstance(where, bytes | Mapping):
        raise _refused(where)
    try:
        parts = list(where)
    except TypeError:
        raise _refused(where) from None
    if parts and all(isinstance(part, list) for part in parts):
        return (Or(tuple(_conjunction(part) for part in parts)),)
    return tuple(_condition(part) for part in parts)


def _conjunction(comparisons: list[Any]) -> Condition:
    if not comparisons:
        raise OptionError(f"where: an empty list in a list of lists says nothing; {_FORMS}")
    return And(tuple(_condition(item) for item in comparisons))


def _is_comparison(value: Any) -> bool:
    """Return whether this is a tuple of a column, an operator and a value, not three texts."""
    if not isinstance(value, tuple) or len(value) != 3:
        return False
    if not isinstance(value[0], str) or not isinstance(value[1], str):
        return False
    return value[1] in _OF_TUPLES or value[0].isidentifier()


def _has_parameters(value: Any) -> bool:
    """Return whether this is a text and the values of its parameters."""
    if not isinstance(value, tuple) or len(value) != 2 or not isinstance(value[0], str):
        return False
    return isinstance(value[1], list) or (isinstance(value[1], tuple) and "?" in value[0])


def _condition(value: Any) -> Condition:
    if isinstance(value, Condition):
        return value
    if _has_parameters(value):
        return Text(value[0], tuple(value[1]))
    if isinstance(value, str):
        return Text(value)
    if not _is_comparison(value):
        raise _refused(value)
    column, op, literal = value
    if op not in _OF_TUPLES:
        raise OptionError(
            f"where: {value!r} has an unknown operator; known: {', '.join(_OF_TUPLES)}"
        )
    return _compared(column, _OF_TUPLES[op], literal)


def _refused(value: Any) -> OptionError:
    return OptionError(f"where: {value!r} is no predicate; {_FORMS}")


def _compared(column: str, op: str, value: Any) -> Predicate:
    """Return a predicate; `= None` is IS NULL and `!= None` is IS NOT NULL."""
    if value is None and op in _NULL_TESTS:
        return Predicate(column, _NULL_TESTS[op])
    return Predicate(column, op, value)


class ColumnExpression(Arithmetic):
    """A column to compare: `==`, `!=`, `<`, `<=`, `>`, `>=` and the methods return a Predicate.

    `== None` means IS NULL, `!= None` means IS NOT NULL. `+`, `-`, `*`, `/` and `%` return a value
    to set, which each row computes.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"ColumnExpression({self.name!r})"

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def sql(self) -> str:
        """The column's name, quoted."""
        return f"`{self.name.replace('`', '``')}`"

    def _value(self, value: Any) -> Any:
        """Return what the column is compared with; a subclass may convert what was given."""
        return value

    def __eq__(self, value: Any) -> Predicate:  # type: ignore[override]
        return _compared(self.name, "=", self._value(value))

    def __ne__(self, value: Any) -> Predicate:  # type: ignore[override]
        return _compared(self.name, "!=", self._value(value))

    def __lt__(self, value: Any) -> Predicate:
        return Predicate(self.name, "<", self._value(value))

    def __le__(self, value: Any) -> Predicate:
        return Predicate(self.name, "<=", self._value(value))

    def __gt__(self, value: Any) -> Predicate:
        return Predicate(self.name, ">", self._value(value))

    def __ge__(self, value: Any) -> Predicate:
        return Predicate(self.name, ">=", self._value(value))

    def _refuse(self, *_: object) -> NoReturn:
        """Refuse `table["a"] == 1 & table["b"] == 2`, which Python reads as `1 & table["b"]`."""
        raise UsageError(f"column {self.name!r} is no condition; {_PARENTHESES}")

    __and__: Callable[..., NoReturn] = _refuse
    __rand__ = __or__ = __ror__ = __invert__ = __bool__ = __and__

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
