"""kudu-python's conversions of times, dates and decimals, as functions of their own.

Text and datetimes without a zone are UTC here, as in kudu-python; elsewhere in kudulite a datetime
without a zone is refused.

**Source**: Kudu python/kudu/util.py.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Context, Decimal, getcontext
from typing import Any

from kudulite.model.hybrid_time import physical_microseconds
from kudulite.model.types import unixtime_micros as _unixtime_micros
from kudulite.model.values import date_from_days, timestamp_from_micros, to_days, to_micros

TEXT_FORMAT = "%Y-%m-%dT%H:%M:%S.%f"


def to_utc(timestamp: Any, format: str | None = None) -> datetime.datetime:
    """Return a moment as a datetime in UTC: from a datetime, text, or (text, format).

    Text is in `format` (as in `strptime`), by default as in 2016-01-01T00:00:00.000000. Raises
    ValueError for text in another format, and for any other value.
    """
    if isinstance(timestamp, Sequence) and not isinstance(timestamp, str | bytes):
        timestamp, format = timestamp
    if isinstance(timestamp, str):
        timestamp = datetime.datetime.strptime(timestamp, format or TEXT_FORMAT)
    if not isinstance(timestamp, datetime.datetime):
        raise ValueError(
            f"Invalid timestamp type: {timestamp!r}. You must provide a datetime.datetime or a"
            " string."
        )
    if timestamp.utcoffset() is None:
        return timestamp.replace(tzinfo=datetime.UTC)
    return timestamp.astimezone(datetime.UTC)


def to_unixtime_micros(timestamp: Any, format: str = TEXT_FORMAT) -> int:
    """Return the microseconds from 1970 to a moment; see `to_utc`."""
    return to_micros(to_utc(timestamp, format), _unixtime_micros)


def from_unixtime_micros(unixtime_micros: int) -> datetime.datetime:
    """Return the datetime in UTC that is so many microseconds after 1970. Raises ValueError."""
    if isinstance(unixtime_micros, int):
        moment = timestamp_from_micros(unixtime_micros, _unixtime_micros)
        if isinstance(moment, datetime.datetime):
            return moment
    raise ValueError(
        f"Invalid unixtime_micros value: {unixtime_micros!r}. You must provide an integer value"
        " of the years 1 to 9999."
    )


def from_hybridtime(hybridtime: int) -> datetime.datetime:
    """Return the first microsecond after a HybridTime: a snapshot that shows its write."""
    return from_unixtime_micros(physical_microseconds(int(hybridtime)) + 1)


def get_decimal_scale(decimal: Decimal) -> int:
    """Return the number of digits after the point."""
    exponent = decimal.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def to_unscaled_decimal(decimal: Decimal, context: Context | None = None) -> int:
    """Return the value without its point: 12345 for 123.45. `context` limits the digits."""
    context = context or getcontext()
    scaled = decimal.scaleb(get_decimal_scale(decimal), context)
    return int(scaled.to_integral_exact(None, context))


def from_unscaled_decimal(
    unscaled_decimal: int, scale: int, context: Context | None = None
) -> Decimal:
    """Return 123.45 for 12345 of scale 2; `context` limits the digits."""
    return Decimal(unscaled_decimal).scaleb(-scale, context or getcontext())


def unix_epoch_days_to_date(ndays: int) -> datetime.date:
    """Return the date that is so many days after 1970-01-01."""
    return date_from_days(ndays)


def date_to_unix_epoch_days(date: datetime.date) -> int:
    """Return the days from 1970-01-01 to a date."""
    return to_days(date)
