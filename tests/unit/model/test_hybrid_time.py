"""HybridTime: what a person may give as a moment, and what is refused."""

import datetime
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudulite.errors import TimestampError
from kudulite.model.hybrid_time import (
    LOGICAL_MASK,
    MICROSECONDS_BOUND,
    Clock,
    format_timestamp,
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
        MOMENT.replace(tzinfo=None),
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


def test_a_date_is_its_first_moment():
    """Midnight, UTC."""
    expected = parse_timestamp("2026-11-21T00:00:00Z")
    assert parse_timestamp(datetime.date(2026, 11, 21)) == expected


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
