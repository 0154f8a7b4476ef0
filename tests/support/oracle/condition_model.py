"""Random conditions, what they mean to a row, and the forms in which a user may write them.

    tree := ("test", column, op, literal) | ("not", tree) | ("and", trees) | ("or", trees)

The truth of a tree is True, False or None (unknown), as in SQL. It is said here by itself, over
plain Python rows: NaN equals NaN and is above all numbers, text is compared as its UTF-8 bytes.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

import kudulite

Tree = tuple[Any, ...]
Truth = bool | None

NAN = math.nan
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
# Values by column: of rows, and of literals. Some literals are no value of the column.
VALUES: dict[str, Sequence[Any]] = {
    "h": ["a", "ab", "b", "é"],
    "k": [0, 1, 2, 3, 7, 40, 41],
    "n": [None, -3, 0, 1, 2, 5, 2**31 - 1],
    "x": [None, NAN, -1.5, 0.0, 2.0, math.inf],
    "f": [None, NAN, 0.5, 1.5],
    "s": [None, "", "a", "ab", "b"],
    "b": [None, False, True],
}
_STRANGERS = {"k": [-1, 100, 2**40], "n": [2**40, 1.5], "x": [0.25], "f": [-1.0], "s": ["aa"]}
TYPES = {
    "h": kudulite.string,
    "k": kudulite.int64,
    "n": kudulite.int32,
    "x": kudulite.double,
    "f": kudulite.float_,
    "s": kudulite.string,
    "b": kudulite.bool_,
}
KEY = ["h", "k"]


def trees(columns: Sequence[str] = tuple(VALUES)) -> st.SearchStrategy[Tree]:
    """Conditions of a few levels on these columns."""
    return st.recursive(
        _tests(columns),
        lambda inner: st.one_of(
            st.tuples(st.just("not"), inner),
            st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3)),
        ),
        max_leaves=6,
    )


@st.composite
def _tests(draw: st.DrawFn, columns: Sequence[str]) -> Tree:
    column = draw(st.sampled_from(columns))
    ops = [*COMPARISONS, "=", "!=", "in", "not_in", "is_null", "is_not_null"]
    op = draw(st.sampled_from(ops + ["starts_with"] * (column in "hs")))
    values = [value for value in VALUES[column] if value is not None]
    literals = st.sampled_from([*values, *_STRANGERS.get(column, [])])
    if op in ("in", "not_in"):
        # A long list is looked up in another way than a short one.
        long = [value for value in range(0, 40, 2) if column in "kn"]
        literal: Any = draw(st.lists(literals | st.none(), min_size=1, max_size=4))
        return "test", column, op, tuple(literal + long * draw(st.booleans()))
    if op in ("is_null", "is_not_null"):
        return "test", column, op, None
    return "test", column, op, draw(literals)


def truth(tree: Tree, row: Mapping[str, Any]) -> Truth:
    """Whether a row meets a condition; None is unknown."""
    if tree[0] == "not":
        return _not(truth(tree[1], row))
    if tree[0] in ("and", "or"):
        found = [truth(part, row) for part in tree[1]]
        decisive = tree[0] == "or"
        return decisive if decisive in found else None if None in found else not decisive
    _, column, op, literal = tree
    if op in ("is_null", "is_not_null"):
        return (row[column] is None) == (op == "is_null")
    if op == "not_in":
        return _not(truth(("test", column, "in", literal), row))
    if op == "in":
        tests = [truth(("test", column, "=", value), row) for value in literal]
        return True if True in tests else None if None in tests else False
    if row[column] is None or literal is None:
        return None
    if op == "starts_with":
        return bool(row[column].startswith(literal))
    return COMPARISONS[op](_rank(row[column], column), _rank(literal, column))


def _not(found: Truth) -> Truth:
    return None if found is None else not found


def _rank(value: Any, column: str) -> Any:
    if isinstance(value, str):
        return value.encode()
    if column == "f":
        value = float(np.float32(value))
    return (1, 0.0) if value != value else (0, value)


def condition_of(tree: Tree) -> kudulite.Condition:
    """The condition, as operators of Python make it."""
    if tree[0] == "not":
        return ~condition_of(tree[1])
    if tree[0] in ("and", "or"):
        join = operator.and_ if tree[0] == "and" else operator.or_
        return functools.reduce(join, map(condition_of, tree[1]))
    _, column, op, literal = tree
    found = kudulite.ColumnExpression(column)
    made: dict[str, Callable[[], kudulite.Predicate]] = {
        "in": lambda: found.in_list(literal),
        "not_in": lambda: ~found.in_list(literal),
        "is_null": lambda: found == None,  # noqa: E711
        "is_not_null": lambda: found != None,  # noqa: E711
        "starts_with": lambda: found.starts_with(literal),
    }
    return made[op]() if op in made else COMPARISONS[op](found, literal)


def text_of(tree: Tree) -> str | None:
    """The condition as text; None where a literal has no text."""
    if tree[0] == "not":
        inner = text_of(tree[1])
        return None if inner is None else f"NOT ({inner})"
    if tree[0] in ("and", "or"):
        parts = [text_of(part) for part in tree[1]]
        if None in parts:
            return None
        return f" {tree[0]} ".join(f"({part})" for part in parts)
    _, column, op, literal = tree
    if op in ("is_null", "is_not_null"):
        return f"{column} {op.replace('_', ' ')}"
    texts = [_literal(value, column) for value in (literal if "in" in op else [literal])]
    if None in texts:
        return None
    if "in" in op:
        return f"{column} {op.replace('_', ' ')} ({', '.join(map(str, texts))})"
    if op == "starts_with":
        return f"{column} LIKE '{literal}%'"
    return f"{column} {op} {texts[0]}"


def _literal(value: Any, column: str) -> str | None:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value).lower()


def lists_of(tree: Tree) -> list[list[tuple[str, str, Any]]] | None:
    """The condition as lists of tuples; None where it has another form."""
    branches = tree[1] if tree[0] == "or" else [tree]
    found = []
    for branch in branches:
        tests = branch[1] if branch[0] == "and" else [branch]
        if any(t[0] != "test" or t[2] == "starts_with" for t in tests):
            return None
        found.append([_tuple(test) for test in tests])
    return found


def _tuple(test: Tree) -> tuple[str, str, Any]:
    _, column, op, literal = test
    words = {"is_null": "=", "is_not_null": "!=", "not_in": "not in", "=": "=="}
    return column, words.get(op, op), literal
