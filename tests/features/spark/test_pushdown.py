"""Spark's pushed filters as predicates: equal meaning or left out."""

import datetime
import zoneinfo
from decimal import Decimal

import pytest
from pyspark.sql import datasource as spark

from kudulite import Predicate
from kudulite_spark.reader import DAYS_INEXACT, pushed_predicate, pushed_predicates

if not hasattr(spark, "Filter"):
    pytest.skip("PySpark 4.0 has no filters of data sources", allow_module_level=True)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (spark.EqualTo(("a",), 1), ("a", "=", 1)),
        (spark.EqualNullSafe(("a",), 1), ("a", "=", 1)),
        (spark.GreaterThan(("a",), 1), ("a", ">", 1)),
        (spark.GreaterThanOrEqual(("a",), 1), ("a", ">=", 1)),
        (spark.LessThan(("a",), 1), ("a", "<", 1)),
        (spark.LessThanOrEqual(("a",), Decimal("1.5")), ("a", "<=", Decimal("1.5"))),
        (spark.In(("a",), [1, None, 2]), ("a", "in", (1, 2))),
        (spark.IsNull(("a",)), ("a", "is_null", None)),
        (spark.IsNotNull(("a",)), ("a", "is_not_null", None)),
        (spark.StringStartsWith(("a",), "x"), ("a", "starts_with", "x")),
    ],
)
def test_filters_with_an_equal_predicate(given, expected):
    """One filter, one predicate."""
    assert pushed_predicate(given) == Predicate(*expected)


@pytest.mark.parametrize(
    "given",
    [
        spark.Not(spark.EqualTo(("a",), 1)),
        spark.StringEndsWith(("a",), "x"),
        spark.StringContains(("a",), "x"),
        spark.EqualTo(("a", "b"), 1),
        spark.EqualTo(("a",), None),
        spark.EqualTo(("a",), [1, None]),
        spark.In(("a",), [[1], [2]]),
        # PySpark has rounded it on the way: its digits are not to be trusted.
        spark.EqualTo(("a",), Decimal("1234567890123456789012345678")),
        spark.In(("a",), [Decimal("1234567890123456789012345678")]),
        # Java's old calendar has made another day of it, or may have.
        spark.EqualTo(("a",), datetime.date(1582, 10, 20)),
        spark.GreaterThan(("a",), datetime.datetime(1582, 10, 20, tzinfo=datetime.UTC)),
        # In Samoa's zone it stands for the day before, too.
        spark.EqualTo(("a",), datetime.date(2011, 12, 31)),
        spark.In(("a",), [datetime.date(2011, 12, 31), datetime.date(2011, 12, 1)]),
    ],
)
def test_filters_left_to_spark(given):
    """Leaving a filter out is always right: Spark applies all of them again."""
    assert pushed_predicate(given) is None
    assert pushed_predicates([given, spark.IsNull(("z",))]) == [Predicate("z", "is_null", None)]


def test_every_day_after_a_skipped_one_is_left_to_spark():
    """No zone of the machine's tables has skipped another day since 1901, and none plans to."""
    step, most_of_a_day = datetime.timedelta(400), datetime.timedelta(hours=20)
    found = set()
    for name in zoneinfo.available_timezones():
        zone = zoneinfo.ZoneInfo(name)
        low = datetime.datetime(1901, 1, 1)
        while low.year < 2100:
            before, high = zone.utcoffset(low), low + step
            if zone.utcoffset(high) - before > most_of_a_day:
                days = (low + datetime.timedelta(shift) for shift in range(step.days + 1))
                after = (day for day in days if zone.utcoffset(day) - before > most_of_a_day)
                found.add(next(after).date())
            low = high
    assert found <= DAYS_INEXACT and found
