"""Where a stream is: the offsets that Spark keeps in a checkpoint, as JSON.

    {"start": "snapshot"}                   before the first batch: from a snapshot on,
    {"start": "now"}                        from whatever moment the first batch settles,
    {"start": 7353563194737692672}          or with the changes after a moment
    {"table": id, "timestamp": T, "tablet": id, "key": hex}
                                            in the snapshot at T: all rows before this one are read
    {"table": id, "timestamp": T}           everything up to T is read

Spark logs where batches end, and not where the first one starts: that is asked for again when it is
replayed. So a start is what the options say, nothing that moves, and the end of a batch names the
moment of the snapshot that the batch is of.

A row of a snapshot has its place by tablet id and encoded key, which are the same for ever. So any
two offsets, and nothing else, say what a batch reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kudulite import parse_timestamp
from kudulite.errors import TimestampError, UsageError

SNAPSHOT, NOW = "snapshot", "now"

# The tablet and the encoded key of a row; an empty key is before all rows of the tablet.
RowPlace = tuple[str, bytes]


@dataclass(frozen=True)
class StreamStart:
    """Where a stream begins that has read nothing: SNAPSHOT, NOW, or a HybridTime."""

    moment: str | int

    @staticmethod
    def of_option(text: str | None) -> StreamStart:
        """Return what the option `startTimestamp` says. Raises TimestampError."""
        if text is None or text.strip().lower() == SNAPSHOT:
            return StreamStart(SNAPSHOT)
        if text.strip().lower() == NOW:
            return StreamStart(NOW)
        try:
            return StreamStart(parse_timestamp(text))
        except TimestampError as error:
            raise TimestampError(
                f"option 'startTimestamp' of a stream is {SNAPSHOT}, {NOW} or a moment: {error}"
            ) from error

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark keeps it."""
        return {"start": self.moment}


@dataclass(frozen=True)
class StreamOffset:
    """Up to where a stream has read: all until `timestamp`, or a snapshot's rows before `row`."""

    table_id: str
    timestamp: int  # HybridTime
    row: RowPlace | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark keeps it; equal offsets have equal texts."""
        value: dict[str, Any] = {"table": self.table_id, "timestamp": self.timestamp}
        if self.row is not None:
            value["tablet"], value["key"] = self.row[0], self.row[1].hex()
        return value


def parse_offset(value: Mapping[str, Any]) -> StreamStart | StreamOffset:
    """Return the offset of its JSON form. Raises UsageError for what is none of ours."""
    try:
        if "start" in value:
            return StreamStart(value["start"])
        row = (str(value["tablet"]), bytes.fromhex(value["key"])) if "tablet" in value else None
        return StreamOffset(str(value["table"]), int(value["timestamp"]), row)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"the checkpoint's offset {dict(value)!r} is not one of a kudulite stream; give each"
            " stream a checkpoint of its own, or start with a new one"
        ) from error
