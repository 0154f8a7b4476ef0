"""HybridTime: timestamps that are wall time and order in one integer.

    timestamp := physical microseconds since 1970 << 12 | logical

A timestamp fits 64 bits, without a sign, until the year 2112. A wall time stands for its whole
microsecond, so a snapshot at a wall time (inclusive) sees every commit of that microsecond.

**Source** Kudu, "hybrid clock"; a snapshot is exclusive there, and inclusive here.
"""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta

from kudulite.errors import TimestampError

LOGICAL_BITS = 12
LOGICAL_MASK = (1 << LOGICAL_BITS) - 1
# An integer below this is microseconds (until 2112), at or above it a HybridTime (since
# 1970-01-13).
MICROSECONDS_BOUND = 1 << 52
TIMESTAMP_MAX = (1 << 64) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock:
    """Reads the wall clock; a test replaces it with a clock that it controls."""

    def now(self) -> int:
        """Return the present as a HybridTime with logical part 0."""
        return time.time_ns() // 1000 << LOGICAL_BITS


def physical_microseconds(timestamp: int) -> int:
    """Return the wall part of a HybridTime, in microseconds since 1970."""
    return timestamp >> LOGICAL_BITS


def format_timestamp(timestamp: int) -> str:
    """Return `2026-11-21T10:00:00.000000Z (HybridTime 7…)`, the form in error messages."""
    try:
        moment = _EPOCH + timedelta(microseconds=physical_microseconds(timestamp))
    except OverflowError:
        return f"HybridTime {timestamp}"
    return f"{moment.strftime('%Y-%m-%dT%H:%M:%S.%fZ')} (HybridTime {timestamp})"


def parse_timestamp(value: object) -> int:
    """Turn a user's moment into a HybridTime.

    Accepts a datetime or ISO 8601 text (UTC where no zone is given), and an integer (or its text):
    a HybridTime as in `WriteResult.timestamp`, or microseconds since 1970 when below 2**52.
    """
    if isinstance(value, str):
        text = value.strip()
        if text.lstrip("-").isdigit():
            return _from_integer(int(text))
        try:
            return parse_timestamp(datetime.fromisoformat(text))
        except ValueError as error:
            raise TimestampError(
                f"{value!r} is not a moment; give ISO 8601 as in 2026-11-21T10:00:00Z,"
                " microseconds since 1970, or a HybridTime"
            ) from error
    if isinstance(value, int) and not isinstance(value, bool):
        return _from_integer(value)
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return _from_integer((aware - _EPOCH) // timedelta(microseconds=1))
    if isinstance(value, date):
        return parse_timestamp(datetime(value.year, value.month, value.day))
    raise TimestampError(
        f"{value!r} is not a moment; give a datetime, an ISO 8601 text, or a HybridTime integer"
    )


def _from_integer(value: int) -> int:
    if value < 0 or value > TIMESTAMP_MAX:
        raise TimestampError(f"{value} is outside the HybridTime range 0 … {TIMESTAMP_MAX}")
    if value < MICROSECONDS_BOUND:
        return value << LOGICAL_BITS | LOGICAL_MASK
    return value
