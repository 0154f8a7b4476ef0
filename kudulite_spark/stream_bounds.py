"""Where a stream is, and where its next batch ends.

Spark keeps offsets of a stream in a checkpoint, as JSON:

    {"start": "snapshot"}                   before the first batch: from a snapshot on,
    {"start": "now"}                        from the moment that the first batch chooses,
    {"start": 7353563194737692672}          or with the changes after a moment
    {"table": id, "timestamp": T, "tablet": id, "key": hex}
                                            in the snapshot at T: all rows before this one are read
    {"table": id, "timestamp": T}           everything up to T is read

The last two have "columns": {name: column id, …} as well: the columns of the table that the query
reads. A query that is started again, after an alteration, may find another column under a name.

Spark logs where batches end, but not where the first one starts: it asks for that again when the
batch is replayed. The start therefore depends on the options alone, and the end of a batch names
the moment of its snapshot. A row of a snapshot is addressed by tablet id and encoded key, which
never change. So two offsets alone determine the rows of a batch.

A batch of at most n rows ends

    in a snapshot    at a row: exactly n rows of the table are before it
    in changes       at a moment: at most n rows are changes in (start, end], with preimages, or
                     those of a single commit are more

The driver finds both before the batch is planned. It reads only the keys of the snapshot, or the
commit versions of the changes. A window of changes has each key once, at its newest change. A
shorter window may have more keys per moment than the longer one showed, so an end that the counts
of a longer window suggest is counted again until it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import numpy as np

from kudulite import ReadRequest, ScanToken, Table, parse_timestamp
from kudulite.errors import TimestampError, UsageError
from kudulite_spark.options import STREAM_STARTS
from kudulite_spark.types import COMMIT_VERSION

# After so many steps by counts the window is halved instead.
_TRUSTED_STEPS = 3

NOW, SNAPSHOT = STREAM_STARTS
ALL_ROWS = ReadRequest()

# An offset as Spark keeps it.
OffsetJson = dict[str, str | int | dict[str, int]]

# The tablet and the encoded key of a row; the empty key is before all rows of the tablet.
RowPlace = tuple[str, bytes]


@dataclass(frozen=True)
class CommitCounts:
    """The rows of changes by the moment of their key's newest change in (start, end], ascending."""

    start: int
    end: int
    timestamps: np.ndarray
    row_counts: np.ndarray

    @property
    def total(self) -> int:
        """The number of rows of the window."""
        return int(self.row_counts.sum())

    def after(self, start: int) -> CommitCounts:
        """Return the counts of the part of the window after a moment."""
        kept = self.timestamps > start
        return CommitCounts(start, self.end, self.timestamps[kept], self.row_counts[kept])

    def moment_of(self, row_count: int) -> int:
        """Return the last moment with at most `row_count` rows up to it, or the first moment."""
        fitting = int(np.searchsorted(np.cumsum(self.row_counts), row_count, side="right"))
        return int(self.timestamps[max(fitting, 1) - 1])


def count_commits(
    table: Table, start: int, end: int, request: ReadRequest = ALL_ROWS
) -> CommitCounts:
    """Count the changes of a window that a request reads, by the moment of their commit."""
    window = replace(request, columns=(), start=start, at=end)
    found = [
        np.unique(batch.column(COMMIT_VERSION).to_numpy(zero_copy_only=False), return_counts=True)
        for token in table.tokens(window)
        for batch in token.open()
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
    """Return the end of a window with the start of `counts` and at most `row_count_max` rows.

    The window has more rows if a single commit has. `count` counts the changes of another window.
    """
    start, nothing_until, step = counts.start, counts.start, 0
    while counts.total > row_count_max and len(counts.timestamps) > 1:
        end = counts.moment_of(row_count_max)
        if step >= _TRUSTED_STEPS:
            # The same keys change again and again, so all counts of a window are near its end.
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
    request: ReadRequest = ALL_ROWS,
) -> RowPlace | None:
    """Return the place of the row that follows `row_count` rows of a snapshot from `first` on.

    None if the snapshot has no such row. Predicates of the request only rule out tablets and key
    ranges: rows are counted whether they match or not.
    """
    rows = replace(request, columns=(), start=None, at=timestamp)
    tokens = snapshot_tokens(cast(list[ScanToken], table.tokens(rows)), first, None)
    left = row_count
    for token in tokens:
        if not left:
            return token.tablet_id, token.lower or b""
        if first is not None and token.lower == first[1] and token.tablet_id == first[0]:
            estimate = row_count + 1  # the token's own estimate is of the piece before the cut
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
    """Return the tokens of a plan, cut to the rows in [first, end), in the order of places."""
    found = []
    for token in sorted(tokens, key=lambda token: (token.tablet_id, token.lower or b"")):
        tablet_id, lower = max((token.tablet_id, token.lower or b""), first or ("", b""))
        if tablet_id != token.tablet_id:
            continue  # all rows of the tablet are before `first`
        upper = token.upper
        if end is not None:
            if (tablet_id, lower) >= end:
                break
            if tablet_id == end[0]:
                upper = end[1] if upper is None else min(upper, end[1])
        if upper is None or lower < upper:
            found.append(replace(token, lower=lower or None, upper=upper))
    return found


@dataclass(frozen=True)
class StreamStart:
    """The start of a stream that has read nothing: SNAPSHOT, NOW, or a HybridTime."""

    moment: str | int
    row: ClassVar[RowPlace | None] = None

    @staticmethod
    def of_option(text: str | None) -> StreamStart:
        """Return the start of the option `startTimestamp`. Raises TimestampError."""
        text = SNAPSHOT if text is None else text.strip()
        if text.lower() in STREAM_STARTS:
            return StreamStart(text.lower())
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
    """The end of a batch: all up to `moment` is read, or its snapshot's rows before `row`."""

    table_id: str
    moment: int  # HybridTime
    row: RowPlace | None = None
    column_ids: Mapping[str, int] = field(default_factory=dict, compare=False)

    def to_json(self) -> OffsetJson:
        """Return the offset as Spark keeps it; equal offsets have equal texts."""
        value: OffsetJson = {"table": self.table_id, "timestamp": self.moment}
        if self.column_ids:
            value["columns"] = dict(self.column_ids)
        if self.row is not None:
            value["tablet"], value["key"] = self.row[0], self.row[1].hex()
        return value


Offset = StreamStart | StreamOffset


def is_in_snapshot(offset: Offset) -> bool:
    """Whether rows of a snapshot follow."""
    return offset.row is not None or offset.moment == SNAPSHOT


def parse_offset(value: OffsetJson) -> Offset:
    """Return the offset of its JSON form. Raises UsageError for any other JSON."""
    try:
        if "start" in value:
            return StreamStart(cast(str | int, value["start"]))
        row = (
            (str(value["tablet"]), bytes.fromhex(str(value["key"]))) if "tablet" in value else None
        )
        given = cast(Mapping[str, Any], value)
        columns = {str(name): int(number) for name, number in given.get("columns", {}).items()}
        return StreamOffset(str(given["table"]), int(given["timestamp"]), row, columns)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"the checkpoint's offset {dict(value)!r} is not one of a kudulite stream; give each"
            " stream a checkpoint of its own, or start with a new one"
        ) from error
