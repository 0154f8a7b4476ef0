"""kudu-python's conversions of times, dates and decimals."""

import datetime
from decimal import Context, Decimal

import pytest

from kudulite.kudu import util

UTC = datetime.UTC
DIGITS = Context(prec=38)
DECIMALS = [
    ("0", 0, 0), ("123.45", 12345, 2), ("-123.45", -12345, 2), ("12345", 12345, 0),
    ("0.10000", 10000, 5), ("0.1", 1, 1), ("0.01", 1, 2), ("0.999999999999999999", 10**18 - 1, 18),
    ("0." + "9" * 38, 10**38 - 1, 38),
]  # fmt: skip


@pytest.mark.parametrize(("text", "unscaled", "scale"), DECIMALS)
def test_a_decimal_is_its_digits_and_its_scale(text, unscaled, scale):
    """In both directions, for up to 38 digits."""
    value = Decimal(text)
    assert util.get_decimal_scale(value) == scale
    assert util.to_unscaled_decimal(value, DIGITS) == unscaled
    assert util.from_unscaled_decimal(unscaled, scale, DIGITS) == value


def test_a_moment_is_microseconds_since_1970():
    """Without a zone it is UTC; text is in a format."""
    moment = datetime.datetime(2016, 1, 1, 0, 0, 0, 5)
    micros = 1_451_606_400_000_005
    east = datetime.timezone(datetime.timedelta(hours=2))
    for given in (moment, moment.replace(tzinfo=UTC), moment.replace(hour=2, tzinfo=east),
                  "2016-01-01T00:00:00.000005"):  # fmt: skip
        assert util.to_unixtime_micros(given) == micros
    assert util.to_unixtime_micros("2016-01-01", "%Y-%m-%d") == micros - 5
    assert util.to_unixtime_micros(("2016-01-01", "%Y-%m-%d")) == micros - 5
    assert util.from_unixtime_micros(micros) == moment.replace(tzinfo=UTC)
    assert util.from_hybridtime((micros - 1) << 12 | 7) == moment.replace(tzinfo=UTC)
    for wrong in (5, None, b"2016"):
        with pytest.raises(ValueError, match="Invalid timestamp type"):
            util.to_unixtime_micros(wrong)
    for wrong in ("5", 1 << 62):
        with pytest.raises(ValueError, match="Invalid unixtime_micros value"):
            util.from_unixtime_micros(wrong)


def test_a_date_is_days_since_1970():
    """Before it, too."""
    for days, date in ((0, "1970-01-01"), (-1, "1969-12-31"), (18262, "2020-01-01")):
        assert util.unix_epoch_days_to_date(days) == datetime.date.fromisoformat(date)
        assert util.date_to_unix_epoch_days(datetime.date.fromisoformat(date)) == days
