"""Times that SQL writes without a zone: they are in that of the session.

Spark does not pass the session's time zone to a Python source, but the catalog adds it to each
question. Options of reads and writes come without it; there a time without a zone is UTC. It stands
alone because the answers about tables, procedures and defaults all need it.

A time that the clocks of the zone skip is moved on by as much as they were, and of one that they
show twice the first is meant, as in Spark.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from kudulite.errors import UsageError

_OFFSET = re.compile(r"([+-])(\d\d):(\d\d)(?::(\d\d))?")


def session_zone(name: str) -> tzinfo:
    """Return the zone of a session; `name` is in Java's normal form, a region or an offset."""
    if name == "Z":
        return UTC
    found = _OFFSET.fullmatch(name)
    if found is None:
        try:
            return ZoneInfo(name)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"Python has no time zone {name!r}, which is spark.sql.session.timeZone: set one"
                " that it knows, such as UTC, or install the package tzdata"
            ) from error
    hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
    offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    return timezone(-offset if found[1] == "-" else offset)


def in_zone(text: str, zone: str) -> str:
    """Return a text for a moment: a time without a zone gets this one, all others stay."""
    moment = _time_without_zone(text)
    return text if moment is None else moment.replace(tzinfo=session_zone(zone)).isoformat()


def is_shown_twice(text: str, zone: str) -> bool:
    """Whether a text is a time without a zone at which clocks of the zone were, and were set to."""
    moment = _time_without_zone(text)
    if moment is None:
        return False
    own = session_zone(zone)
    first, second = (moment.replace(tzinfo=own, fold=fold).utcoffset() for fold in (0, 1))
    assert first is not None and second is not None
    return first > second


def _time_without_zone(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    # Digits alone are a number of microseconds or a HybridTime.
    return None if moment.tzinfo is not None or text.strip().isdigit() else moment
