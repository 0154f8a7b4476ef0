"""DeltaMemStore: changes to one rowset's rows that are in the log and not yet in a file.

Changes stay in the order of their timestamps: the position of a change is its number. An index by
row id leads from each row's newest change to the change before it:

    row id → newest position → position before → …

so that reading one row costs its own changes and not all of them.

The changes are kept as columns in a `ChunkLog`, a list that grows by small parts and is read as a
few large ones:

    level 0   parts as they were appended         64 parts of a level or below are joined into one
    level 1   about 64 rows and more              of the next level
    level 2   about 4,096 rows and more
    level 3   about 262,144 rows and more; never joined again

Each row is copied at most three times, and there are at most 3 × 63 parts below level 3. An append
costs O(1), and a reader joins few parts.

**Invariants**: (1) timestamps never fall from one position to the next; (2) a snapshot never
changes: appends add parts and index entries behind its end, or replace parts by one equal part.

**Threads**: one writer at a time; any number take snapshots and read them at any moment, without a
lock. The writer replaces a tuple of parts, and readers ignore index entries newer than their
snapshot. This relies on single operations of dict, bytearray and array being atomic.

**Source**: Kudu deltamemstore.cc, which keeps a tree by (row id, timestamp, sequence number).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa

from kudulite.delta.delta_file import (
    OP_DELETE,
    DeltaColumn,
    DeltaRows,
    concat_columns,
    concat_rows,
    nbytes_of,
    slice_rows,
    sort_rows,
)

# Memory of the index per change: a dict entry, two Python numbers, and the array cells.
_INDEX_ROW_BYTES = 180

FAN_IN = 64
_LEVEL_MAX = 3

T = TypeVar("T")


@dataclass
class _Chunk:
    """Changes at positions start, start + 1, …"""

    start: int
    rows: DeltaRows
    nbytes: int = 0

    @property
    def row_count(self) -> int:
        return len(self.rows.rowids)


class _RowIndex:
    """Leads from a row id to the positions of its changes, newest first."""

    def __init__(self) -> None:
        self.newest: dict[int, int] = {}
        self.before = array("q")
        self.ops = bytearray()
        self.timestamps = array("Q")

    def append(self, rowids: list[int], ops: bytes, timestamps: list[int]) -> None:
        position = len(self.ops)
        self.timestamps.extend(timestamps)
        self.ops += ops
        newest = self.newest
        for rowid in rowids:
            # `before` grows first: a reader that finds a position in `newest` looks it up there.
            self.before.append(newest.get(rowid, -1))
            newest[rowid] = position
            position += 1

    def newest_visible(self, rowid: int, row_count: int, timestamp: int) -> int:
        """Return the newest position < `row_count` of a row at or before `timestamp`, or -1."""
        position = self.newest.get(rowid, -1)
        while position >= 0 and (position >= row_count or self.timestamps[position] > timestamp):
            position = self.before[position]
        return position


class DeltaMemSnapshot:
    """The first `row_count` changes of a store, immutable; read like a DeltaFile.

    Unlike in a file, changes are in order of time and not of row id. Arrays are joined when they
    are first needed, column by column.
    """

    def __init__(self, chunks: tuple[_Chunk, ...], row_count: int, index: _RowIndex) -> None:
        self._row_count = row_count
        self._chunks = _cut(chunks, row_count)
        self._index = index
        self._columns: dict[int, DeltaColumn | None] = {}

    def __len__(self) -> int:
        return self._row_count

    @property
    def meta(self) -> DeltaMemSnapshot:
        """The statistics of the changes, which a DeltaFile has in its entry."""
        return self

    @property
    def row_count(self) -> int:
        """Number of changes."""
        return self._row_count

    @property
    def timestamp_min(self) -> int:
        """The oldest change, 0 without changes."""
        return self._index.timestamps[0] if self._row_count else 0

    @property
    def timestamp_max(self) -> int:
        """The newest change, 0 without changes."""
        return self._index.timestamps[self._row_count - 1] if self._row_count else 0

    @cached_property
    def delete_count(self) -> int:
        """Number of DELETEs."""
        return sum(chunk.rows.delete_count for chunk in self._chunks)

    @cached_property
    def reinsert_count(self) -> int:
        """Number of REINSERTs."""
        return sum(chunk.rows.reinsert_count for chunk in self._chunks)

    @cached_property
    def update_counts(self) -> Mapping[int, int]:
        """How many changes set a column, by its id."""
        counts: dict[int, int] = {}
        for chunk in self._chunks:
            for column_id, count in chunk.rows.update_counts.items():
                counts[column_id] = counts.get(column_id, 0) + count
        return counts

    @cached_property
    def rowids(self) -> np.ndarray:
        """int64[n], in order of time."""
        return _joined([chunk.rows.rowids for chunk in self._chunks], np.int64)

    @cached_property
    def ops(self) -> np.ndarray:
        """uint8[n], OP_ constants."""
        return _joined([chunk.rows.ops for chunk in self._chunks], np.uint8)

    def timestamps(self) -> np.ndarray:
        """Return uint64[n], never falling."""
        return self._timestamps

    @cached_property
    def _timestamps(self) -> np.ndarray:
        parts = [c.rows.timestamps for c in self._chunks if c.rows.timestamps is not None]
        return _joined(parts, np.uint64)

    def columns(self, column_ids: Collection[int]) -> dict[int, DeltaColumn]:
        """Return the new values of columns, of those that the changes set."""
        return {c: column for c in column_ids if (column := self.column(c)) is not None}

    def column(self, column_id: int) -> DeltaColumn | None:
        """Return the new values of one column, or None if no change sets it."""
        if column_id not in self._columns:
            self._columns[column_id] = concat_columns(
                [chunk.rows.columns.get(column_id) for chunk in self._chunks],
                [chunk.row_count for chunk in self._chunks],
            )
        return self._columns[column_id]

    def to_rows(self) -> DeltaRows:
        """Return all changes in the order of a REDO file: by row id, then in order of time."""
        if not self._chunks:
            return DeltaRows(self.rowids, self.ops, {}, self.timestamps())
        return sort_rows(concat_rows([chunk.rows for chunk in self._chunks]))

    # -- one row

    def newest_op(self, rowid: int, timestamp: int) -> int | None:
        """Return the newest OP_ of a row at or before `timestamp`, or None without a change."""
        position = self._index.newest_visible(rowid, self._row_count, timestamp)
        return None if position < 0 else self._index.ops[position]

    def newest_cell(self, rowid: int, column_id: int, timestamp: int) -> pa.Scalar | None:
        """Return the newest value of a cell at or before `timestamp`, or None without any."""
        position = self._index.newest_visible(rowid, self._row_count, timestamp)
        while position >= 0:
            chunk = self._chunks[bisect_right(self._starts, position) - 1]
            column = chunk.rows.columns.get(column_id)
            at = position - chunk.start
            if column is not None and (column.is_set is None or column.is_set[at]):
                return column.values[at]
            position = self._index.before[position]
        return None

    @cached_property
    def _starts(self) -> list[int]:
        return [chunk.start for chunk in self._chunks]


class DeltaMemStore:
    """The changes of one rowset since its newest REDO file, in memory."""

    def __init__(self) -> None:
        self._log: ChunkLog[_Chunk] = ChunkLog(self._join)
        self._index = _RowIndex()
        self._row_count = 0
        self._nbytes = 0
        self._timestamp_max = 0

    @property
    def row_count(self) -> int:
        """Number of changes; a row may have several."""
        return self._row_count

    @property
    def nbytes(self) -> int:
        """Approximate memory in bytes, for the flush policy."""
        return self._nbytes

    @property
    def timestamp_max(self) -> int:
        """The newest timestamp, 0 without changes."""
        return self._timestamp_max

    def append(self, rows: DeltaRows) -> None:
        """Add changes with row ids in any order; a row may have several, and later ones are newer.

        `timestamps` are needed and never fall, also not from call to call. A deleted row can only
        be reinserted. The arrays are kept and must not be changed.
        """
        count = len(rows.rowids)
        if not count:
            return
        assert rows.timestamps is not None, "each change has a timestamp of its own"
        stamps = rows.timestamps.tolist()
        assert stamps[0] >= self._timestamp_max, f"{stamps[0]} after {self._timestamp_max}"
        assert count == 1 or (rows.timestamps[1:] >= rows.timestamps[:-1]).all()
        self._index.append(rows.rowids.tolist(), rows.ops.tobytes(), stamps)
        nbytes = nbytes_of(rows)
        self._nbytes += nbytes + count * _INDEX_ROW_BYTES
        self._log.append(_Chunk(self._row_count, rows, nbytes), count)
        self._timestamp_max = stamps[-1]
        # Last: a snapshot reads up to this count.
        self._row_count += count

    def _join(self, chunks: Sequence[_Chunk]) -> _Chunk:
        rows = concat_rows([chunk.rows for chunk in chunks])
        nbytes = nbytes_of(rows)
        self._nbytes += nbytes - sum(chunk.nbytes for chunk in chunks)
        return _Chunk(chunks[0].start, rows, nbytes)

    def is_deleted(self, rowid: int) -> bool:
        """Whether the newest change of a row deletes it; O(1)."""
        position = self._index.newest.get(rowid, -1)
        return position >= 0 and self._index.ops[position] == OP_DELETE

    def snapshot(self, row_count: int | None = None) -> DeltaMemSnapshot:
        """Return all changes up to now, or only the first `row_count`."""
        count = self._row_count if row_count is None else min(row_count, self._row_count)
        return DeltaMemSnapshot(self._log.parts, count, self._index)


def _cut(chunks: tuple[_Chunk, ...], row_count: int) -> tuple[_Chunk, ...]:
    """Return the chunks up to a position; the last one is cut there."""
    if not chunks or chunks[-1].start + chunks[-1].row_count == row_count:
        return chunks
    kept = [chunk for chunk in chunks if chunk.start < row_count]
    if kept:
        last = kept[-1]
        kept[-1] = _Chunk(last.start, slice_rows(last.rows, 0, row_count - last.start))
    return tuple(kept)


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    if not parts:
        return np.empty(0, dtype)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class ChunkLog(Generic[T]):
    """Parts in order of arrival; `join` makes one part of several adjacent ones."""

    def __init__(self, join: Callable[[Sequence[T]], T]) -> None:
        self.parts: tuple[T, ...] = ()
        self._join = join
        # How many parts at the end are of each level or below.
        self._counts = [0] * _LEVEL_MAX

    def append(self, part: T, row_count: int) -> None:
        """Add a part at the end."""
        parts = (*self.parts, part)
        level = _level_of(row_count)
        counts = self._counts
        for at in range(_LEVEL_MAX):
            counts[at] = counts[at] + 1 if level <= at else 0
            count = counts[at]
            if count >= FAN_IN:
                parts = (*parts[:-count], self._join(parts[-count:]))
                level = at + 1
                counts[: at + 1] = [0] * (at + 1)
                for above in range(at + 1, _LEVEL_MAX):
                    # The joined parts count as one there, which the next turn adds.
                    counts[above] -= count - 1
        self.parts = parts


def _level_of(row_count: int) -> int:
    level = 0
    while row_count >= FAN_IN and level < _LEVEL_MAX:
        row_count //= FAN_IN
        level += 1
    return level
