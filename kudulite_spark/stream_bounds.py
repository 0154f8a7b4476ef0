"""Where a batch of a stream ends that is to have about so many rows.

    snapshot   the place of a row: exactly so many rows of the table come before it
    changes    a moment: at most so many keys changed in (start, end], or one commit did it alone

Both are found on the driver before the batch is planned, by reading as few columns as tell: keys of
the snapshot, commit timestamps of the changes.

A window of changes has one row per key, told at its newest change; a shorter window may tell of
more keys per moment than the longer one showed. So what the counts of a long window suggest is
counted again, until it holds.

Where a stream is: the offsets that Spark keeps in a checkpoint, as JSON.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kudulite import Predicate, ScanToken, Table, parse_timestamp
from kudulite.errors import TimestampError, UsageError
from kudulite_spark.types import COMMIT_TIMESTAMP

# So often the counts are trusted before the window is halved instead.
_TRUSTED_STEPS = 3

SNAPSHOT, NOW = "snapshot", "now"

# An offset as Spark keeps it.
OffsetJson = dict[str, str | int]

# The tablet and the encoded key of a row; an empty key is before all rows of the tablet.
RowPlace = tuple[str, bytes]


@dataclass(frozen=True)
class CommitCounts:
    """How many keys changed last at which moment of (start, end]; moments ascending."""

    start: int
    end: int
    timestamps: np.ndarray
    row_counts: np.ndarray

    @property
    def total(self) -> int:
        """The number of keys that changed in the window."""
        return int(self.row_counts.sum())

    def after(self, start: int) -> CommitCounts:
        """Return the counts of the part of the window after a moment."""
        kept = self.timestamps > start
        return CommitCounts(start, self.end, self.timestamps[kept], self.row_counts[kept])

    def moment_of(self, row_count: int) -> int:
        """Return the last moment up to which at most so many rows are counted, or the first."""
        fitting = int(np.searchsorted(np.cumsum(self.row_counts), row_count, side="right"))
        return int(self.timestamps[max(fitting, 1) - 1])


def count_commits(
    table: Table, start: int, end: int, where: Sequence[Predicate] = ()
) -> CommitCounts:
    """Count the changes of a window by the moment of their commit."""
    found = [
        np.unique(batch.column(COMMIT_TIMESTAMP).to_numpy(zero_copy_only=False), return_counts=True)
        for batch in table.changes(start, end, columns=[], where=where).to_batches()
    ]
    if not found:
        return CommitCounts(start, end, np.empty(0, np.int64), np.empty(0, np.int64))
    stamps = np.concatenate([stamps for stamps, _ in found]).astype(np.int64)
    timestamps, places = np.unique(stamps, return_inverse=True)
    row_counts = np.zeros(len(timestamps), np.int64)
    np.add.at(row_counts, places, np.concatenate([counts for _, counts in found]))
    return CommitCounts(start, end, timestamps, row_counts)


def changes_end(
    counts: CommitCounts, row_count_max: int, count: Callable[[int, int], CommitCounts]
) -> int:
    """Return the end of a window that begins as that of `counts` and has at most so many rows.

    It has more where a single commit has, or all keys changed last in one. `count` counts the
    changes of another window.
    """
    start, nothing_until, step = counts.start, counts.start, 0
    while counts.total > row_count_max and len(counts.timestamps) > 1:
        end = counts.moment_of(row_count_max)
        if step >= _TRUSTED_STEPS:
            # The same keys change again and again: what a window shows is all near its end.
            end = min(end, max(nothing_until + 1, (nothing_until + counts.end) // 2))
        step += 1
        found = count(start, end)
        if found.total:
            counts = found
        else:
            nothing_until = end
    return counts.end


def snapshot_end(
    table: Table,
    timestamp: int,
    first: RowPlace | None,
    row_count: int,
    where: Sequence[Predicate] = (),
) -> RowPlace | None:
    """Return the place of the row that so many rows of a snapshot come before, counted from
    `first` on; None where the snapshot has no more.

    Rows are counted before the predicates, but for tablets and key ranges that they rule out.
    """
    tokens = snapshot_tokens(table.scan_tokens(columns=[], where=where, at=timestamp), first, None)
    left = row_count
    for token in tokens:
        if not left:
            return token.tablet_id, token.lower or b""
        if first is not None and token.lower == first[1] and token.tablet_id == first[0]:
            estimate = row_count + 1  # of the piece before it was cut
        else:
            estimate = token.row_count_estimate
        if estimate <= left:
            left -= estimate
            continue
        key, passed = token.of_columns(()).key_after(left)
        if key is not None:
            return token.tablet_id, key
        left -= passed
    return None


def snapshot_tokens(
    tokens: Sequence[ScanToken], first: RowPlace | None, end: RowPlace | None
) -> list[ScanToken]:
    """Return the tokens of one plan cut to the rows in [first, end), in the order of places."""
    found = []
    for token in sorted(tokens, key=lambda token: (token.tablet_id, token.lower or b"")):
        lower, upper = token.lower, token.upper
        if first is not None:
            if token.tablet_id < first[0]:
                continue
            if token.tablet_id == first[0]:
                lower = max(lower or b"", first[1])
        if end is not None:
            if token.tablet_id > end[0]:
                break
            if token.tablet_id == end[0]:
                upper = end[1] if upper is None else min(upper, end[1])
        if upper is None or (lower or b"") < upper:
            found.append(replace(token, lower=lower or None, upper=upper))
    return found


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

    def to_json(self) -> OffsetJson:
        """Return the offset as Spark keeps it."""
        return {"start": self.moment}


@dataclass(frozen=True)
class StreamOffset:
    """Up to where a stream has read: all until `timestamp`, or a snapshot's rows before `row`."""

    table_id: str
    timestamp: int  # HybridTime
    row: RowPlace | None = None

    def to_json(self) -> OffsetJson:
        """Return the offset as Spark keeps it; equal offsets have equal texts."""
        value: OffsetJson = {"table": self.table_id, "timestamp": self.timestamp}
        if self.row is not None:
            value["tablet"], value["key"] = self.row[0], self.row[1].hex()
        return value


def parse_offset(value: OffsetJson) -> StreamStart | StreamOffset:
    """Return the offset of its JSON form. Raises UsageError for what is none of ours."""
    try:
        if "start" in value:
            return StreamStart(value["start"])
        row = (
            (str(value["tablet"]), bytes.fromhex(str(value["key"]))) if "tablet" in value else None
        )
        return StreamOffset(str(value["table"]), int(value["timestamp"]), row)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"the checkpoint's offset {dict(value)!r} is not one of a kudulite stream; give each"
            " stream a checkpoint of its own, or start with a new one"
        ) from error
