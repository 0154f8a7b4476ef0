"""Values of kudulite columns as exact Spark literals, and conditions made of them.

PySpark's own conversion of dates and times uses the session's time zone and, for old days, another
calendar. Here they are text that Spark casts, which its optimiser treats as a constant.
"""

from __future__ import annotations

import datetime
import decimal
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as sf

from kudulite import ColumnType, NativeCondition, NativeDisjunction
from kudulite_spark.types import spark_type

_MICROSECOND = datetime.timedelta(microseconds=1)
_DAY_MICROS = 86_400_000_000
_SECONDS = "decimal(18,6)"  # the seconds of Spark's intervals
# Spark takes these values as literals of their type, or of a narrower one that compares exactly.
_PLAIN = frozenset({"bool", "int8", "int16", "int32", "int64", "string", "varchar"})
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def literal(value: Any, column_type: ColumnType) -> SparkColumn:
    """Return a value, in its canonical Python form, as a literal of the column's Spark type."""
    wanted = spark_type(column_type)
    name = column_type.name
    if value is None:
        return sf.lit(None).cast(wanted)
    if name == "unixtime_micros":
        return sf.timestamp_micros(sf.lit(_micros(value)))
    if name == "timestamp_ntz" and isinstance(value, int):
        return _naive_moment(value)
    if name in ("date", "timestamp_ntz"):
        return sf.lit(value.isoformat()).cast(wanted)
    if name == "decimal":
        return sf.lit(str(value)).cast(wanted)
    return sf.lit(value).cast(wanted)


def _micros(value: datetime.datetime | int) -> int:
    """Return microseconds since the epoch; an int, for years Python does not have, is that."""
    if isinstance(value, int):
        return value
    moment = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
    return (moment - _EPOCH) // _MICROSECOND


def _naive_moment(micros: int) -> SparkColumn:
    """Return a moment without a zone outside the years 1 to 9999, which has no text."""
    days, rest = divmod(abs(micros), _DAY_MICROS)
    seconds = decimal.Decimal(rest).scaleb(-6)
    sign = -1 if micros < 0 else 1
    since = sf.make_dt_interval(
        sf.lit(sign * days), sf.lit(0), sf.lit(0), sf.lit(str(sign * seconds)).cast(_SECONDS)
    )
    return sf.lit("1970-01-01").cast("timestamp_ntz") + since


def condition(
    found: NativeCondition | NativeDisjunction, column_of: Callable[[str], SparkColumn]
) -> SparkColumn:
    """Return the condition on Spark columns of the same types and values, by their names."""
    if isinstance(found, NativeDisjunction):
        return reduce(
            operator.or_,
            (
                reduce(operator.and_, (condition(part, column_of) for part in branch))
                for branch in found.branches
            ),
        )
    column, column_type = column_of(found.column.name), found.column.type
    if found.is_null:
        return column.isNull()
    if found.values is not None:
        return column.isin([_member(value, column_type) for value in found.values])
    parts = [column.isNotNull()]
    if column_type.is_bytes:
        parts += _byte_bounds(found, column)
    else:
        if found.lower is not None:
            parts.append(column >= _bound(found.lower, column_type))
        if found.upper is not None:
            parts.append(column <= _bound(found.upper, column_type))
    if found.excluded:
        parts.append(~column.isin([_member(value, column_type) for value in found.excluded]))
    return reduce(operator.and_, parts)


def _byte_bounds(found: NativeCondition, column: SparkColumn) -> list[SparkColumn]:
    """Return bounds of strings or binary; a prefix's upper bound may be no text, only bytes."""
    parts = []
    for value, is_lower in ((found.lower, True), (found.upper, False)):
        if value is None:
            continue
        one, other = column, sf.lit(value)
        if found.column.type.is_text:
            try:
                other = sf.lit(value.decode())
            except UnicodeDecodeError:
                one = column.cast("binary")
        parts.append(one >= other if is_lower else one < other)
    return parts


def _member(value: Any, column_type: ColumnType) -> Any:
    # A literal costs some twenty calls into the JVM, a plain value five; lists may be long.
    is_plain = column_type.is_float or column_type.name in _PLAIN
    return value if is_plain else _bound(value, column_type)


def _bound(value: Any, column_type: ColumnType) -> SparkColumn:
    # A bound of a float column may lie between two floats; as a double it is compared exactly.
    return sf.lit(value) if column_type.is_float else literal(value, column_type)
