"""Answers to the catalog: the window of changes that the bounds of CHANGES FROM … TO … mean."""

import json

import pytest

import kudulite
from kudulite_spark.catalog import answered

PER_MICROSECOND = 4096
NOW = 1_700_000_000_000_000


def window(path, has_start: bool, has_end: bool, **bounds: int | str) -> dict[str, str]:
    """The options of the read."""
    question = {"call": "window", "zone": "UTC", "hasStart": has_start, "hasEnd": has_end}
    return answered(str(path), json.dumps(question | bounds))[0].metadata


def moments_of(start: range, end: range, has_start: bool, has_end: bool) -> tuple[int, int]:
    """The window (a, b] that holds the moments of the bounds that belong to the range."""
    inside = range(start[0] if has_start else start[-1] + 1, end[-1] + 1 if has_end else end[0])
    return inside[0] - 1, inside[-1]


@pytest.mark.parametrize("has_start", [True, False])
@pytest.mark.parametrize("has_end", [True, False])
def test_a_bound_belongs_to_the_range_or_not(has_start, has_end, tmp_path):
    """A timestamp of Spark is all HybridTimes of its microsecond, and a version is one."""
    table = kudulite.connect(tmp_path).create_table("t", {"k": [1]}, primary_key="k")
    microseconds = {"startMicroseconds": NOW, "endMicroseconds": NOW + 5}
    start, end = (
        range(moment * PER_MICROSECOND, (moment + 1) * PER_MICROSECOND)
        for moment in microseconds.values()
    )
    found = window(table.path, has_start, has_end, **microseconds)
    expected = moments_of(start, end, has_start, has_end)
    assert (int(found["startTimestamp"]), int(found["endTimestamp"])) == expected

    versions = {"startVersion": str(start[7]), "endVersion": str(end[9])}
    found = window(table.path, has_start, has_end, **versions)
    expected = moments_of(start[7:8], end[9:10], has_start, has_end)
    assert (int(found["startTimestamp"]), int(found["endTimestamp"])) == expected


def test_a_window_may_be_open_and_its_end_beyond_all_times(tmp_path):
    """Without an end there is no option for it; a late timestamp still fits into 63 bits."""
    table = kudulite.connect(tmp_path).create_table("t", {"k": [1]}, primary_key="k")
    assert window(table.path, True, True, startMicroseconds=0) == {"startTimestamp": "-1"}
    late = window(table.path, True, True, startMicroseconds=NOW, endMicroseconds=(1 << 63) - 1)
    assert int(late["endTimestamp"]) == (1 << 63) - PER_MICROSECOND - 1
    assert window(table.path, True, True) == {}
