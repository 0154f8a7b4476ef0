"""Texts of durations, and of the partitions of a table."""

import pytest

import kudulite
from kudulite.errors import OptionError
from kudulite_spark.sql.table_properties import (
    HISTORY_SECONDS_DEFAULT,
    duration,
    partition_names,
    partition_values,
    shown_properties,
)

DAY = 24 * 3600


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("7 days", 7 * DAY), ("1 day", DAY), ("interval 36 hours", 36 * 3600), ("90m", 5400),
        ("INTERVAL '2' WEEKS", 14 * DAY), (" 3d ", 3 * DAY), ("0", 0), ("604800", 7 * DAY),
        ("5 seconds", 5), ("1 minute", 60),
    ],
)  # fmt: skip
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: int):
    """In full, short, or as an interval; a number alone is seconds."""
    assert duration(text, "p") == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1 days", "1.5 days", "days", "1 month", "7 days 2"])
def test_another_text_is_refused(text: str):
    """With what is expected."""
    with pytest.raises(OptionError, match="property 'p' is .*, expected a number and a unit"):
        duration(text, "p")


@pytest.mark.parametrize("seconds", [0, 1, 59, 3600, 36 * 3600, 7 * DAY, 30 * DAY, 90061])
def test_a_retention_that_is_shown_can_be_set(core, seconds: int):
    """The text stands for the same number of seconds."""
    client = kudulite.connect(core.root)
    table = client.create_table("t", {"k": [1]}, primary_key="k")
    assert table.history_retention == HISTORY_SECONDS_DEFAULT
    client.new_table_alterer(table).set_history_retention(seconds).alter()
    assert table.history_retention == seconds
    assert duration(shown_properties(table)["historyRetention"], "p") == seconds


def test_partitions_are_ranges_and_buckets(core):
    """A row for each tablet; a bound that is a day at midnight in UTC is the day."""
    client = kudulite.connect(core.root)
    columns = kudulite.schema(
        [kudulite.column("host", "string"), kudulite.column("at", "unixtime_micros")],
        primary_key=["host", "at"],
    )
    bounds = [[None, "2020-01-01"], ["2020-01-01", "2020-01-02T12:30:00Z"], ["2021-01-01", None]]
    table = client.create_table(
        "t", columns, hash_partitions=[(["host"], 2)],
        range_partitions={"columns": ["at"], "bounds": bounds},
    )  # fmt: skip
    assert partition_names(table) == ["at", "bucket(2, host)"]
    values = partition_values(table)
    assert list(zip(values[::2], values[1::2], strict=True)) == [
        (text, bucket)
        for text in ("before 2020-01-01", "2020-01-01 to 2020-01-02 12:30:00", "from 2021-01-01")
        for bucket in "01"
    ]
    plain = client.create_table("u", columns)
    assert partition_names(plain) == partition_values(plain) == []
    own = client.create_table(
        "v", columns, hash_partitions=[(["host"], 2)],
        range_partitions={"columns": ["at"], "bounds": [["2020-01-01", None, [(["host"], 3)]]]},
    )  # fmt: skip
    assert partition_names(own) == ["at", "bucket"]
    assert partition_values(own)[1::2] == [f"{n} of bucket(3, host)" for n in range(3)]
