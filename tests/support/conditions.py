"""Conditions of a scan: as predicates for a table, and as plain comparisons for a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kudulite

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda found, value: found == value,
    "<": lambda found, value: found < value,
    ">=": lambda found, value: found >= value,
}


def predicate_of(column: kudulite.ColumnExpression, how: str, value: Any) -> kudulite.Predicate:
    """The predicate `column how value`; for "in" the value is a list."""
    made = {
        "=": lambda: column == value,
        "<": lambda: column < value,
        ">=": lambda: column >= value,
        "null": column.is_null,
        "not null": column.is_not_null,
        "in": lambda: column.in_list(value),
    }
    return made[how]()


def holds(found: Any, how: str, value: Any) -> bool:
    """Whether a cell meets a condition: null only "null", texts as bytes."""
    if how == "null":
        return found is None
    if how == "not null" or found is None:
        return found is not None
    if how == "in":
        return found in value
    if isinstance(found, str):
        found, value = found.encode(), value.encode()
    return COMPARISONS[how](found, value)
