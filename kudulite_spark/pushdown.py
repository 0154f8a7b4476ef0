"""Spark's pushed filters as kudulite predicates.

Only `pushdown=true` uses this (see `datasource`). What has no exact counterpart is left out: every
filter also stays with Spark, so a predicate only has to be true wherever the filter is.

Meanings proved equal: NULL never matches a comparison, NaN = NaN and above all numbers, -0.0 = 0.0,
strings and binary as unsigned bytes, timestamps as instants in UTC. In an IN list a NULL can only
make the result unknown, never true, so it is dropped.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from kudulite import Predicate

_OPERATORS: dict[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
# PySpark decodes pushed decimals under Python's default context, which rounds to this many digits.
_DECIMAL_DIGITS_EXACT = decimal.DefaultContext.prec
# Older days pass through Java's calendar, which lacks ten of 1582, and local mean times.
_YEAR_EXACT = 1901


def pushed_predicates(filters: Iterable[Filter]) -> list[Predicate]:
    """Return predicates that hold wherever all `filters` do, for those that have a counterpart."""
    found = (pushed_predicate(spark_filter) for spark_filter in filters)
    return [predicate for predicate in found if predicate is not None]


def pushed_predicate(spark_filter: Filter) -> Predicate | None:
    """Return the predicate that means the same as one pushed filter, or None if there is none."""
    path: tuple[str, ...] = getattr(spark_filter, "attribute", ())
    if len(path) != 1:
        return None
    column = path[0]
    if isinstance(spark_filter, IsNull):
        return Predicate(column, "is_null", None)
    if isinstance(spark_filter, IsNotNull):
        return Predicate(column, "is_not_null", None)
    value = getattr(spark_filter, "value", None)
    if isinstance(spark_filter, In):
        values = tuple(item for item in value or () if item is not None)
        return Predicate(column, "in", values) if all(map(_is_exact, values)) else None
    if value is None or not _is_exact(value):
        return None
    if isinstance(spark_filter, StringStartsWith):
        return Predicate(column, "starts_with", value)
    if isinstance(spark_filter, EqualNullSafe):
        return Predicate(column, "=", value)
    operator = _OPERATORS.get(type(spark_filter))
    return None if operator is None else Predicate(column, operator, value)


def _is_exact(value: Any) -> bool:
    if isinstance(value, list | tuple | dict):  # arrays are compared with nothing
        return False
    if isinstance(value, decimal.Decimal):
        return len(value.as_tuple().digits) < _DECIMAL_DIGITS_EXACT
    return not isinstance(value, datetime.date) or value.year >= _YEAR_EXACT
