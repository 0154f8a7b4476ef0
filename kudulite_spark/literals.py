"""Values of kudulite columns as exact Spark literals, and conditions made of them.

PySpark's own conversion of dates and times uses the session's time zone and, for old days, another
calendar. Here they are text that Spark casts, which its optimiser treats as a constant.
"""

from __future__ import annotations

import datetime
import decimal
import operator
import re
from collections.abc import Callable, Collection
from functools import reduce
from typing import Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as sf

from kudulite import ColumnType, NativeCondition, NativeDisjunction
from kudulite_spark.types import spark_type

_MICROSECOND = datetime.timedelta(microseconds=1)
_DAY_MICROS = 86_400_000_000
_SECONDS = "decimal(18,6)"  # the seconds of Spark's intervals
# Text without quotes, escapes and parameters of SQL.
_PLAIN_TEXT = re.compile(r"[\w .,:;/+@#%&()=<>*-]*")
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
    found: NativeCondition | NativeDisjunction, quoted: Callable[[str], str]
) -> SparkColumn:
    """Return the condition on Spark columns of the same types and values.

    `quoted` returns the name of a column in SQL."""
    if isinstance(found, NativeDisjunction):
        return reduce(
            operator.or_,
            (
                reduce(operator.and_, (condition(part, quoted) for part in branch))
                for branch in found.branches
            ),
        )
    name, column_type = quoted(found.column.name), found.column.type
    column = sf.col(name)
    if found.is_null:
        return column.isNull()
    if found.values is not None:
        return _is_in(name, found.values, column_type)
    parts = [column.isNotNull()]
    if column_type.is_bytes:
        parts += _byte_bounds(found, column)
    else:
        if found.lower is not None:
            parts.append(column >= _bound(found.lower, column_type))
        if found.upper is not None:
            parts.append(column <= _bound(found.upper, column_type))
    if found.excluded:
        parts.append(~_is_in(name, found.excluded, column_type))
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


def _is_in(name: str, values: Collection[Any], column_type: ColumnType) -> SparkColumn:
    """Return whether a column has one of the values.

    As SQL, if the values have a plain text: Spark parses thousands of them in the time that ten
    Columns take, each of which costs up to twenty calls into the JVM, or five as a plain value."""
    texts = [_text(value, column_type) for value in values]
    if values and None not in texts:
        return sf.expr(f"{name} IN ({', '.join(text for text in texts if text is not None)})")
    is_plain = column_type.is_float or column_type.is_text or column_type.name == "bool"
    return sf.col(name).isin([v if is_plain else _bound(v, column_type) for v in values])


def _text(value: Any, column_type: ColumnType) -> str | None:
    """Return a literal of SQL that means the same with all settings; None if that is not plain."""
    kind = column_type.name
    if kind.startswith("int"):
        return str(value)
    if column_type.is_text:
        text = value.decode() if isinstance(value, bytes) else value
        return f"'{text}'" if _PLAIN_TEXT.fullmatch(text) else None
    if kind == "date":
        return f"DATE '{value.isoformat()}'"
    if kind == "unixtime_micros":
        return f"timestamp_micros({_micros(value)})"
    if kind == "decimal":
        return f"CAST('{value}' AS {spark_type(column_type).simpleString()})"
    return None


def _bound(value: Any, column_type: ColumnType) -> SparkColumn:
    # A bound of a float column may lie between two floats; as a double it is compared exactly.
    return sf.lit(value) if column_type.is_float else literal(value, column_type)
