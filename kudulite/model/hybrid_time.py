"""HybridTime: timestamps that are wall time and order in one integer.

    timestamp := physical microseconds since 1970 << 12 | logical

A timestamp fits 64 bits, without a sign, until the year 2112. A wall time stands for its whole
microsecond, so a snapshot at a wall time (inclusive) sees every commit of that microsecond.

    text := ISO 8601 ["+" logical]     2026-11-21T10:00:00.000000Z+3; without "+" the logical part
                                       is the highest, 4095: the whole microsecond

Users get a HybridTime as a `Timestamp`, and the engine calculates with plain integers.

**Source**: Kudu, "hybrid clock"; a snapshot is exclusive there, and inclusive here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kudulite.errors import TimestampError

LOGICAL_BITS = 12
LOGICAL_MASK = (1 << LOGICAL_BITS) - 1
# An integer below this is microseconds (until 2112), at or above it a HybridTime (since
# 1970-01-13).
MICROSECONDS_BOUND = 1 << 52
# Fewer microseconds are a moment before 1979, and more likely seconds, milliseconds or a version.
MICROSECONDS_MIN = 1 << 48
TIMESTAMP_MAX = (1 << 64) - 1
NAIVE_DATETIME = (
    "it has no time zone; write datetime.now(timezone.utc) for the present, or value.astimezone()"
    " if it is in local time"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# Python reads no number of thousands of digits, and counts other characters as digits, too.
_NUMBER_TEXT = re.compile(r"-?[0-9]{1,40}")
# The end of a text with a logical part. An offset, as in +01:00, has a time before it and no zone.
_LOGICAL_TEXT = re.compile(r"(.*(?:[Zz]|[+-]\d\d:?\d\d))\+(\d{1,4})")
_AGO = re.compile(r"(\d{1,9})\s+(second|minute|hour|day|week)s?\s+ago", re.IGNORECASE)


class Clock:
    """Reads the wall clock; a test replaces it with a clock that it controls."""

    def now(self) -> int:
        """Return the present as a HybridTime with logical part 0."""
        return time.time_ns() // 1000 << LOGICAL_BITS


class Timestamp(int):
    """A HybridTime that prints and compares as a time; see `WriteResult.timestamp`.

    `int(ts)` is the HybridTime, arithmetic gives integers, and every `at=` takes it as it is. Its
    text is ISO 8601 in UTC, with `+n` for the logical part n unless it stands for a whole
    microsecond. `Timestamp(text)` and `at=text` read the same HybridTime from it.

    An aware datetime is compared with the wall time, by microseconds. A timestamp has the hash of
    its integer, so do not mix both in a set. Raises TimestampError for a text that is no moment and
    for an integer out of range.

    >>> ts = Timestamp("2026-11-21T10:00:00.000000Z+3")
    >>> ts
    Timestamp('2026-11-21T10:00:00.000000Z+3')
    >>> int(ts)
    7353365299200000003
    """

    __slots__ = ()

    def __new__(cls, value: int | str | datetime = 0) -> Timestamp:
        """Make one of a HybridTime, of a text as it prints, or of an aware datetime."""
        if not isinstance(value, int):
            value = parse_timestamp(value)
        elif not 0 <= value <= TIMESTAMP_MAX:
            raise _out_of_range(value)
        return super().__new__(cls, value)

    @classmethod
    def from_datetime(cls, moment: datetime) -> Timestamp:
        """Return the end of a datetime's microsecond. Raises TimestampError without a zone."""
        return cls(parse_timestamp(moment))

    def to_datetime(self) -> datetime:
        """Return the wall time as a datetime in UTC, without the logical part."""
        return _EPOCH + timedelta(microseconds=physical_microseconds(self))

    @staticmethod
    def array(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Return a column of HybridTimes, as `_commit_version`, as timestamp[us, UTC].

        The logical part is left out. The result is chunked if the column is.
        """
        if isinstance(column, pa.ChunkedArray):
            wall = [Timestamp.array(chunk) for chunk in column.chunks]
            return pa.chunked_array(wall, pa.timestamp("us", "UTC"))
        micros = pc.shift_right(column.cast(pa.uint64()), pa.scalar(LOGICAL_BITS, pa.uint64()))
        return micros.cast(pa.int64()).cast(pa.timestamp("us", "UTC"))

    def __repr__(self) -> str:
        return f"Timestamp({str(self)!r})"

    def __str__(self) -> str:
        logical = self & LOGICAL_MASK
        wall = f"{self.to_datetime():%Y-%m-%dT%H:%M:%S.%fZ}"
        return wall if logical == LOGICAL_MASK else f"{wall}+{logical}"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, datetime):
            return other.tzinfo is not None and self.to_datetime() == other
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        if isinstance(other, datetime):
            return not self == other
        return super().__ne__(other)

    def __lt__(self, other: Any) -> bool:
        return self.to_datetime() < other if isinstance(other, datetime) else super().__lt__(other)

    def __le__(self, other: Any) -> bool:
        return self.to_datetime() <= other if isinstance(other, datetime) else super().__le__(other)

    def __gt__(self, other: Any) -> bool:
        return self.to_datetime() > other if isinstance(other, datetime) else super().__gt__(other)

    def __ge__(self, other: Any) -> bool:
        return self.to_datetime() >= other if isinstance(other, datetime) else super().__ge__(other)

    __hash__ = int.__hash__


def physical_microseconds(timestamp: int) -> int:
    """Return the wall part of a HybridTime, in microseconds since 1970."""
    return timestamp >> LOGICAL_BITS


def format_timestamp(timestamp: int) -> str:
    """Return `2026-11-21T10:00:00.000000Z (HybridTime 7…)`, the form in error messages."""
    try:
        moment = _EPOCH + timedelta(microseconds=physical_microseconds(timestamp))
    except OverflowError:
        return f"HybridTime {timestamp}"
    return f"{moment.strftime('%Y-%m-%dT%H:%M:%S.%fZ')} (HybridTime {int(timestamp)})"


def parse_timestamp(value: object) -> int:
    """Turn a user's moment into a HybridTime.

    Accepts a datetime with a time zone, ISO 8601 text (UTC where no zone is given), and an integer
    (or its text): a HybridTime as in `WriteResult.timestamp`, or microseconds since 1970 when below
    2**52. Also takes a `Timestamp`, and the text that it prints as. `timedelta(hours=-1)` and the
    text "1 hour ago" are that long before now, by the clock of this machine. A datetime without a
    zone is refused, because most programs mean local time by it.
    """
    if isinstance(value, str):
        text = value.strip()
        if _NUMBER_TEXT.fullmatch(text):
            return _from_integer(int(text))
        if (ago := _AGO.fullmatch(text)) is not None:
            return _before_now(value, {f"{ago[2]}s".lower(): int(ago[1])})
        found = _LOGICAL_TEXT.fullmatch(text)
        try:
            if found is not None and int(found[2]) <= LOGICAL_MASK:
                return parse_timestamp(found[1]) & ~LOGICAL_MASK | int(found[2])
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise TimestampError(
                f"{value!r} is not a moment; give ISO 8601 as in 2026-11-21T10:00:00Z,"
                " '1 hour ago', microseconds since 1970, or a HybridTime"
            ) from error
        return _from_datetime(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    if isinstance(value, Timestamp):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return _from_integer(value)
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise TimestampError(f"{value!r} is not a moment: {NAIVE_DATETIME}")
        return _from_datetime(value)
    if isinstance(value, timedelta):
        return _before_now(value, {"microseconds": -(value // _MICROSECOND)})
    if isinstance(value, date):
        raise TimestampError(
            f"{value!r} is a day, not a moment; give the moment in the day that you mean, as in"
            f" datetime({value.year}, {value.month}, {value.day}, tzinfo=timezone.utc)"
        )
    raise TimestampError(
        f"{value!r} is not a moment; give a datetime, an ISO 8601 text, or a HybridTime integer"
    )


def _before_now(given: object, duration: Mapping[str, int]) -> int:
    """Return the moment that is so long ago. Raises TimestampError for one that is ahead."""
    if min(duration.values()) < 0:
        raise TimestampError(f"{given!r} is ahead of the clock; timedelta(hours=-1) is an hour ago")
    try:
        return _from_datetime(datetime.now(UTC) - timedelta(**duration))
    except OverflowError as error:
        raise TimestampError(f"{given!r} is before 1970") from error


def misread_number(value: object) -> str:
    """Return how a number was read as a moment that nobody means, for the end of a message.

    Empty for all other moments.
    """
    text = str(value).strip() if isinstance(value, int | str) else ""
    if not _NUMBER_TEXT.fullmatch(text) or not 0 < int(text) < MICROSECONDS_MIN:
        return ""
    return (
        f"; {text} was read as microseconds since 1970. Seconds, milliseconds and version numbers"
        " are not moments: give a datetime with a time zone, or a timestamp of this table; scan and"
        " restore take a version number as version=…"
    )


def _from_datetime(aware: datetime) -> int:
    # A moment after 2112 has so many microseconds that they would look like a HybridTime.
    microseconds = (aware - _EPOCH) // _MICROSECOND
    if not 0 <= microseconds < MICROSECONDS_BOUND:
        raise TimestampError(
            f"{aware.isoformat()} is outside the moments of a HybridTime, which are from 1970 to"
            " 2112"
        )
    return microseconds << LOGICAL_BITS | LOGICAL_MASK


def _from_integer(value: int) -> int:
    if value < 0 or value > TIMESTAMP_MAX:
        raise _out_of_range(value)
    if value < MICROSECONDS_BOUND:
        return value << LOGICAL_BITS | LOGICAL_MASK
    return value


def _out_of_range(value: int) -> TimestampError:
    return TimestampError(f"{value} is outside the HybridTime range 0 … {TIMESTAMP_MAX}")
