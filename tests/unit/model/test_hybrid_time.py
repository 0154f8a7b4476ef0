"""HybridTime: what a person may give as a moment, and what is refused."""

import copy
import datetime
import json
import pickle
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudulite.errors import TimestampError
from kudulite.model.hybrid_time import (
    LOGICAL_MASK,
    MICROSECONDS_BOUND,
    TIMESTAMP_MAX,
    Clock,
    Timestamp,
    format_timestamp,
    misread_number,
    parse_timestamp,
    physical_microseconds,
)

MOMENT = datetime.datetime(2026, 11, 21, 10, 0, 0, 123456, tzinfo=datetime.UTC)
MICROSECONDS = (MOMENT - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // (
    datetime.timedelta(microseconds=1)
)
WHOLE = MICROSECONDS << 12 | LOGICAL_MASK


@pytest.mark.parametrize(
    "given_moment",
    [
        MOMENT,
        MOMENT.astimezone(datetime.timezone(datetime.timedelta(hours=-7))),
        "2026-11-21T10:00:00.123456Z",
        "2026-11-21 10:00:00.123456",
        " 2026-11-21T11:00:00.123456+01:00 ",
        MICROSECONDS,
        str(MICROSECONDS),
    ],
)
def test_a_wall_time_is_the_end_of_its_microsecond(given_moment):
    """So a snapshot at a wall time shows every commit of that microsecond."""
    assert parse_timestamp(given_moment) == WHOLE


@pytest.mark.parametrize("given_moment", [WHOLE - 5, str(WHOLE - 5)])
def test_a_hybrid_time_is_taken_as_it_is(given_moment):
    """Also as text, which is how it travels through options."""
    assert parse_timestamp(given_moment) == WHOLE - 5


@pytest.mark.parametrize(
    ("ambiguous", "advice"),
    [
        (MOMENT.replace(tzinfo=None), "write datetime.now.timezone.utc. .*, or value.astimezone"),
        (MOMENT.date(), "a day, not a moment; .* datetime.2026, 11, 21, tzinfo=timezone.utc."),
    ],
)
def test_a_moment_without_a_zone_is_refused(ambiguous, advice):
    """Most programs mean local time by it; text without a zone is UTC."""
    with pytest.raises(TimestampError, match=advice):
        parse_timestamp(ambiguous)
    assert parse_timestamp("2026-11-21") == parse_timestamp("2026-11-21T00:00:00Z")


@pytest.mark.parametrize("given_moment", ["yesterday", "", -1, 1 << 64, True, 1.5, None, b"2026"])
def test_what_is_no_moment_is_refused_with_its_value(given_moment):
    """The message shows what was given."""
    with pytest.raises(TimestampError) as caught:
        parse_timestamp(given_moment)
    assert str(given_moment) in str(caught.value)


@given(st.integers(0, MICROSECONDS_BOUND - 1))
def test_microseconds_survive(microseconds):
    """The physical part is what was given."""
    assert physical_microseconds(parse_timestamp(microseconds)) == microseconds


def test_the_clock_gives_hybrid_times_of_now():
    """Logical part 0, physical part of the wall clock; it travels between processes."""
    clock = pickle.loads(pickle.dumps(Clock()))
    first, second = clock.now(), clock.now()
    assert first <= second
    assert first & LOGICAL_MASK == 0
    assert format_timestamp(first).startswith(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT}")


@given(st.integers(0, TIMESTAMP_MAX))
def test_the_text_of_a_timestamp_is_exact(hybrid_time):
    """`Timestamp`, `parse_timestamp` and Python itself read from it the integer that printed it."""
    stamp = Timestamp(hybrid_time)
    assert parse_timestamp(str(stamp)) == Timestamp(str(stamp)) == hybrid_time
    again = eval(repr(stamp))
    assert (again, type(again)) == (hybrid_time, Timestamp)
    assert type(parse_timestamp(stamp)) is int and parse_timestamp(stamp) == hybrid_time


def test_a_timestamp_prints_as_a_time():
    """A whole microsecond as ISO 8601 alone; also in text, and with a zone before the part."""
    assert repr(Timestamp.from_datetime(MOMENT)) == "Timestamp('2026-11-21T10:00:00.123456Z')"
    stamp = Timestamp(MICROSECONDS << 12 | 3)
    assert f"{stamp}" == str(stamp) == "2026-11-21T10:00:00.123456Z+3"
    assert f"{stamp:d}" == str(int(stamp))
    assert parse_timestamp("2026-11-21T11:00:00.123456+01:00+3") == stamp
    assert format_timestamp(stamp) == f"2026-11-21T10:00:00.123456Z (HybridTime {int(stamp)})"


@pytest.mark.parametrize("text", ["2026-11-21T10:00:00Z+4096", "2026-11-21+3", "+3", "Z+3", "5+3"])
def test_a_wrong_logical_part_is_refused(text):
    """It has 12 bits and follows a time with its zone."""
    with pytest.raises(TimestampError, match="is not a moment"):
        Timestamp(text)


def test_a_timestamp_is_an_integer_everywhere():
    """In arithmetic, hashes, pickles, copies, JSON, numpy and Arrow, exactly."""
    stamp, number = Timestamp(WHOLE - 5), WHOLE - 5
    assert type(stamp + 1) is type(int(stamp)) is int and hash(stamp) == hash(number)
    for same in (pickle.loads(pickle.dumps(stamp)), copy.deepcopy(stamp)):
        assert (same, type(same)) == (number, Timestamp)
    assert json.dumps([stamp]) == f"[{number}]"
    for kind in (np.uint64, np.int64):
        column = np.array([number, number + 1], kind)
        assert (column <= stamp).tolist() == (column == stamp).tolist() == [True, False]
    assert pa.array([stamp], pa.uint64()).to_pylist() == [number]
    assert pc.equal(pa.array([number, 1], pa.uint64()), stamp).to_pylist() == [True, False]


@pytest.mark.parametrize("out_of_range", [-1, 1 << 64])
def test_a_timestamp_has_64_bits(out_of_range):
    """As everything that is stored."""
    with pytest.raises(TimestampError, match="outside the HybridTime range"):
        Timestamp(out_of_range)


def test_a_timestamp_is_compared_with_a_datetime_by_microseconds():
    """In any zone, from both sides; a datetime without a zone is never equal and has no order."""
    stamp = Timestamp(WHOLE - 5)
    same = MOMENT.astimezone(datetime.timezone(datetime.timedelta(hours=2)))
    assert stamp.to_datetime() == MOMENT and stamp.to_datetime().tzinfo == datetime.UTC
    assert stamp == same and same == stamp and not stamp != same
    assert stamp <= same <= stamp and not stamp < same and not stamp > same
    later = same + datetime.timedelta(microseconds=1)
    assert stamp < later and later > stamp and stamp != later and not stamp >= later
    naive = MOMENT.replace(tzinfo=None)
    assert stamp != naive and not stamp == naive
    with pytest.raises(TypeError, match="offset-naive"):
        assert stamp < naive
    with pytest.raises(TimestampError, match="it has no time zone; write"):
        Timestamp.from_datetime(naive)


def test_a_column_of_hybrid_times_becomes_times():
    """Arrays and chunked arrays, nulls stay; the type is the one of a column of moments."""
    numbers = pa.array([WHOLE, None, WHOLE - 4095], pa.uint64())
    expected = pa.array([MOMENT, None, MOMENT], pa.timestamp("us", "UTC"))
    assert Timestamp.array(numbers).equals(expected)
    chunked = Timestamp.array(pa.chunked_array([numbers, numbers.slice(0, 1)]))
    assert chunked.type == expected.type and chunked.to_pylist() == [MOMENT, None, MOMENT, MOMENT]
    assert Timestamp.array(pa.chunked_array([], pa.uint64())).type == expected.type


@pytest.mark.parametrize("text", ["--7", "²", "-", "9" * 5000, "7 7"])
def test_texts_that_look_like_numbers_are_refused(text: str):
    """Some pass `isdigit`, and Python reads none of them as a number."""
    with pytest.raises(TimestampError, match="is not a moment"):
        parse_timestamp(text)
    assert misread_number(text) == ""
    with pytest.raises(TimestampError, match="outside the HybridTime range"):
        parse_timestamp("-5")


@pytest.mark.parametrize(
    "moment", [datetime.datetime(year, 7, 1, tzinfo=datetime.UTC) for year in (1969, 2113, 2999)]
)
def test_a_time_that_no_hybrid_time_stands_for_is_refused(moment: datetime.datetime):
    """As a datetime and as text: its microseconds are never taken for a HybridTime."""
    for value in (moment, moment.isoformat()):
        with pytest.raises(TimestampError, match="from 1970 to 2112"):
            Timestamp(value) if isinstance(value, str) else Timestamp.from_datetime(value)
        with pytest.raises(TimestampError, match="from 1970 to 2112"):
            parse_timestamp(value)


@pytest.mark.parametrize(
    ("given_moment", "seconds"),
    [
        ("1 second ago", 1),
        ("90 Minutes  ago ", 5400),
        ("2 weeks ago", 14 * 86400),
        (datetime.timedelta(hours=-1), 3600),
        (datetime.timedelta(0), 0),
    ],
)
def test_a_moment_can_be_so_long_ago(given_moment, seconds):
    before = time.time()
    found = physical_microseconds(parse_timestamp(given_moment)) / 1e6
    assert before - 0.001 <= found + seconds <= time.time() + 0.001


@pytest.mark.parametrize(
    ("given_moment", "words"),
    [
        (datetime.timedelta(hours=1), "timedelta\\(hours=-1\\) is an hour ago"),
        ("1 month ago", "'1 hour ago'"),
        ("999999999 weeks ago", "before 1970"),
        (datetime.timedelta.min, "before 1970"),
        ("3000 weeks ago", "from 1970"),
    ],
)
def test_what_is_not_so_long_ago_is_refused(given_moment, words):
    with pytest.raises(TimestampError, match=words):
        parse_timestamp(given_moment)
