"""History of a DiskRowSet's rows as arrays: deltas joined, ordered, split, inverted and cut.

    REDO   by (rowid, timestamp)              takes base data forward
    UNDO   by (rowid, timestamp descending)   takes it back

Compactions are made of these steps:

    minor    merge_redo(files)                                 one REDO file in their place
    major    split_columns(merge_redo(files), columns)         moved, rest (stays REDO)
             apply_updates(moved, old)                         new base data
             without_ancient(invert_changes(moved, old), mark) one more UNDO file, in front
    UNDO     without_ancient(merge_undo(files), mark)          one UNDO file in their place

Changes of one row at one timestamp keep their order: ascending in REDO, reversed in UNDO. No two
changes are combined into one: readers of the past and diff scans need each of them.

A change is ancient when its timestamp is at or before the ancient history mark. Reads are at the
mark or later, and an UNDO is applied only by reads before its timestamp, so an ancient UNDO is
never applied.

Diff scans read the changes of a window of time from the same deltas, without base data:

    changed in (start, end] = has an UNDO, REDO or memory entry with start < timestamp ≤ end

UNDO and REDO entries both have the timestamp of their change, so the result does not depend on how
far compactions have moved base data. An UPDATE that sets only dropped columns is no change: a
compaction loses it, and the result must not depend on compactions.

**Threads**: any: pure functions that change no argument.

**Source**: Kudu deltafile.cc and compaction.cc, ApplyMutationsAndGenerateUndos; delta_relevancy.h,
for diff scans; design-docs/tablet.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from kudulite.delta.delta_applier import places_in
from kudulite.delta.delta_file import (
    OP_DELETE,
    OP_REINSERT,
    OP_UPDATE,
    DeltaColumn,
    DeltaFile,
    DeltaFileMeta,
    DeltaRows,
    concat_rows,
    concat_values,
    take_rows,
    without_unset,
)
from kudulite.delta.delta_source import DeltaSource
from kudulite.delta.scatter import scatter
from kudulite.storage.storage import Storage

# (column id, int64[m] strictly ascending row ids) -> the m values of base data.
BaseValues = Callable[[int, np.ndarray], pa.Array]

_UNDO_OF = np.empty(3, np.uint8)
_UNDO_OF[[OP_UPDATE, OP_DELETE, OP_REINSERT]] = [OP_UPDATE, OP_REINSERT, OP_DELETE]


def stamped(file: DeltaFile) -> DeltaRows:
    """Return a whole file with a timestamp for each change."""
    rows = file.read()
    return rows if rows.timestamps is not None else replace(rows, timestamps=timestamps_of(file))


def read_deltas(
    storage: Storage, folder: Path, entries: Sequence[DeltaFileMeta], row_count: int
) -> list[DeltaRows]:
    """Return whole files of a rowset with `row_count` rows, each change with its timestamp.

    The files are read once and not kept in a cache. Raises CorruptionError, StorageError.
    """
    files = [DeltaFile(storage, folder / e.ref.name, e, row_count) for e in entries]
    return [stamped(file) for file in files]


def timestamps_of(source: DeltaSource) -> np.ndarray:
    """Return uint64[n]: the timestamp of each change of a source."""
    stamps = source.timestamps()
    if stamps is None:
        return np.full(len(source.rowids), source.meta.timestamp_max, np.uint64)
    return stamps


def merge_redo(parts: Sequence[DeltaRows]) -> DeltaRows:
    """Return the changes of parts, oldest first (at least one), by (rowid, timestamp).

    Parts may set different columns. Changes of a row at equal timestamps keep their order.
    """
    rows = concat_rows(parts)
    assert rows.timestamps is not None, "each change has a timestamp of its own"
    return _by_row_and(rows.timestamps, rows)


def merge_undo(parts: Sequence[DeltaRows]) -> DeltaRows:
    """Return the changes of parts, newest first (at least one), by (rowid, timestamp descending).

    Parts may set different columns. A column compaction keeps older updates of other columns behind
    newer ones, so the UNDO of one row may be in order only within each part; the result is in order
    over all parts.
    """
    rows = concat_rows(parts)
    assert rows.timestamps is not None, "each change has a timestamp of its own"
    return _by_row_and(~rows.timestamps, rows)


def without_ancient(undo: DeltaRows, mark: int) -> DeltaRows:
    """Return the changes after the ancient history `mark`, maybe none."""
    assert undo.timestamps is not None, "each change has a timestamp of its own"
    keep = undo.timestamps > mark
    if keep.all():
        return undo
    return without_unset(take_rows(undo, np.flatnonzero(keep)))


def split_columns(
    redo: DeltaRows, column_ids: Collection[int]
) -> tuple[DeltaRows, DeltaRows | None]:
    """Return the updates of `column_ids`, maybe none, and all other changes, None without any.

    The first has the updates of any of these columns, with only these columns. The second has the
    DELETEs, and the updates that set other columns.
    """
    inside = {c: column for c, column in redo.columns.items() if c in column_ids}
    outside = {c: column for c, column in redo.columns.items() if c not in column_ids}
    moved = _setting_any(redo, inside)
    rest = _setting_any(redo, outside) | (redo.ops != OP_UPDATE)
    first = _rows_with_columns(redo, inside, moved)
    assert (first.ops == OP_UPDATE).all(), "in REDO only an UPDATE sets columns"
    return first, _rows_with_columns(redo, outside, rest) if rest.any() else None


def invert_changes(redo: DeltaRows, base: BaseValues) -> DeltaRows:
    """Return the UNDO of changes by (rowid, timestamp), by (rowid, timestamp descending).

    An UPDATE becomes the UPDATE that sets the same cells to their older values, a DELETE becomes
    the REINSERT of the row with all columns of `redo`, and a REINSERT becomes a DELETE. The older
    value of a cell is in the row's newest earlier change that sets the column, or else in `base`.
    O(changes), one gather per column.
    """
    count = len(redo.rowids)
    # Rows ascend, and the changes of each row are reversed, also within one timestamp.
    newest_first = count - 1 - np.argsort(redo.rowids[::-1], kind="stable")
    columns: dict[int, DeltaColumn] = {}
    full: _UndoCells | None = None  # the same for all columns that every change sets
    for column_id, column in redo.columns.items():
        cells = full if column.is_set is None else None
        if cells is None:
            cells = _UndoCells.of(redo, column, newest_first)
        if column.is_set is None:
            full = cells
        if cells is not None:
            columns[column_id] = cells.take(column_id, column, base)
    stamps = None if redo.timestamps is None else redo.timestamps[newest_first]
    ops = _UNDO_OF[redo.ops[newest_first]]
    return DeltaRows(redo.rowids[newest_first], ops, columns, stamps)


def apply_updates(redo: DeltaRows, column_id: int, start: int, base: pa.Array) -> pa.Array:
    """Return `base`, one column of rows start, start + 1, …, with its changes applied.

    `redo` is by (rowid, timestamp) and has changes of these rows only. The result has the type of
    `base`.
    """
    column = redo.columns.get(column_id)
    if column is None:
        return base
    setters = _setters(column, len(redo.rowids))
    if not len(setters):
        return base
    rowids = redo.rowids[setters]
    newest = setters[np.append(rowids[1:] != rowids[:-1], True)]
    values = column.values
    if len(newest) != len(values):
        values = values.take(pa.array(newest))
    if not values.type.equals(base.type):
        values = values.cast(base.type)
    if len(newest) == len(base):  # every row is changed
        return values
    return scatter(base, redo.rowids[newest] - start, values)


def _by_row_and(second: np.ndarray, rows: DeltaRows) -> DeltaRows:
    """Sort rows by (row id, uint64[n] `second`), stable."""
    steps, after = rows.rowids[1:] - rows.rowids[:-1], second[1:] >= second[:-1]
    if ((steps > 0) | ((steps == 0) & after)).all():
        return rows
    return take_rows(rows, np.lexsort((second, rows.rowids)))


def _setters(column: DeltaColumn, count: int) -> np.ndarray:
    """Return the positions of the changes, of `count`, that set the column."""
    return np.arange(count) if column.is_set is None else np.flatnonzero(column.is_set)


def _setting_any(rows: DeltaRows, columns: dict[int, DeltaColumn]) -> np.ndarray:
    """Return bool[n]: which rows set any of the columns."""
    sets_any = np.zeros(len(rows.rowids), dtype=bool)
    for column in columns.values():
        sets_any |= True if column.is_set is None else column.is_set
    return sets_any


def _rows_with_columns(
    rows: DeltaRows, columns: dict[int, DeltaColumn], keep: np.ndarray
) -> DeltaRows:
    chosen = replace(rows, columns=columns)
    return without_unset(chosen if keep.all() else take_rows(chosen, np.flatnonzero(keep)))


@dataclass(frozen=True)
class _UndoCells:
    """The sources of the n cells of one column's UNDO.

    `at` has places in a pool, null where UNDO sets no cell. The pool is the cells that the changes
    `setters` set, then the base values of `base_rowids`. `is_set` is bool[n], None for all.
    """

    setters: np.ndarray
    base_rowids: np.ndarray
    at: pa.Array
    is_set: np.ndarray | None

    @staticmethod
    def of(redo: DeltaRows, column: DeltaColumn, newest_first: np.ndarray) -> _UndoCells | None:
        """Return the sources of the cells that updates set, and of all cells of deleted rows.

        None if there are no such cells.
        """
        count = len(redo.rowids)
        setters = _setters(column, count)
        is_update = redo.ops == OP_UPDATE
        if is_update.all():  # each setter is undone to the one before
            undone, before = setters, np.arange(-1, len(setters) - 1)
        else:
            if column.is_set is not None:
                is_update &= column.is_set
            undone = np.flatnonzero(is_update | (redo.ops == OP_DELETE))
            before = np.searchsorted(setters, undone) - 1
        if not len(undone):
            return None
        rowids = redo.rowids[undone]
        in_base = np.append(redo.rowids[setters], -1)[before] != rowids
        rowids = rowids[in_base]
        is_first = np.append(True, rowids[1:] != rowids[:-1])[: len(rowids)]
        before[in_base] = len(setters) - 1 + np.cumsum(is_first)
        if len(undone) == count:
            return _UndoCells(setters, rowids[is_first], pa.array(before[newest_first]), None)
        at = np.full(count, -1)
        at[undone] = before
        at = at[newest_first]
        return _UndoCells(setters, rowids[is_first], pa.array(at, mask=at < 0), at >= 0)

    def take(self, column_id: int, column: DeltaColumn, base: BaseValues) -> DeltaColumn:
        """Return the cells for a column that the same changes set."""
        values = (
            column.values if column.is_set is None else column.values.take(pa.array(self.setters))
        )
        pool = concat_values([values, base(column_id, self.base_rowids)])
        return DeltaColumn(pool.take(self.at), self.is_set)


@dataclass(frozen=True)
class ChangedRows:
    """m changed rows: int64[m] `rowids`, strictly ascending, and uint64[m] newest changes."""

    rowids: np.ndarray
    timestamps: np.ndarray

    def newest_of(self, rowids: np.ndarray) -> np.ndarray:
        """Return uint64[n]: the newest change of each of int64[n] row ids, 0 without a change."""
        newest = np.zeros(len(rowids), np.uint64)
        at, hit = places_in(self.rowids, rowids)
        newest[hit] = self.timestamps[at[hit]]
        return newest


def changed_rows(
    sources: Iterable[DeltaSource],
    start: int,
    end: int,
    column_ids: Collection[int],
    not_at: int = 0,
) -> ChangedRows:
    """Return the rows with a change in (start, end], ignoring changes at timestamp `not_at`.

    `column_ids` are the columns of the table. O(changes of the sources).
    """
    parts = [changes_within(source, start, end, column_ids) for source in sources]
    rowids = np.concatenate([np.empty(0, np.int64), *(part[0] for part in parts)])
    stamps = np.concatenate([np.empty(0, np.uint64), *(part[1] for part in parts)])
    if not_at:
        kept = stamps != not_at
        rowids, stamps = rowids[kept], stamps[kept]
    order = np.lexsort((stamps, rowids))
    rowids, stamps = rowids[order], stamps[order]
    is_newest = np.append(rowids[1:] != rowids[:-1], True)[: len(rowids)]
    return ChangedRows(rowids[is_newest], stamps[is_newest])


def changes_within(
    source: DeltaSource, start: int, end: int, column_ids: Collection[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return row ids and timestamps of a source's changes in (start, end], in its order."""
    meta = source.meta
    if meta.timestamp_max <= start or meta.timestamp_min > end:
        return np.empty(0, np.int64), np.empty(0, np.uint64)
    rowids, stamps = source.rowids, timestamps_of(source)
    taken = _is_change(source, column_ids)
    if meta.timestamp_min <= start:
        taken &= stamps > start
    if meta.timestamp_max > end:
        taken &= stamps <= end
    return rowids[taken], stamps[taken]


def _is_change(source: DeltaSource, column_ids: Collection[int]) -> np.ndarray:
    """Return bool[n]: which entries change a column of the table, or insert or delete a row."""
    changes: np.ndarray = source.ops != OP_UPDATE
    counts = source.meta.update_counts
    known = [column_id for column_id in counts if column_id in column_ids]
    # DELETEs set no column: if all other entries set one, its mask need not be read.
    if any(counts[column_id] >= len(changes) - source.meta.delete_count for column_id in known):
        return np.ones(len(changes), dtype=bool)
    for column_id in known:
        column = source.column(column_id)
        if column is not None and column.is_set is not None:
            changes = changes | column.is_set
    return changes


class OneRowSource:
    """The changes of row `rowid` in `source`, in its order; read like the source itself."""

    def __init__(self, source: DeltaSource, rowid: int) -> None:
        at = np.flatnonzero(source.rowids == rowid)
        # A source without the row is not read any further.
        ids = source.meta.update_counts if len(at) else ()
        columns = source.columns(ids)
        stamps = timestamps_of(source) if len(at) else np.empty(0, np.uint64)
        self.meta = take_rows(DeltaRows(source.rowids, source.ops, columns, stamps), at)
        self._timestamps = stamps[at]

    def __len__(self) -> int:
        return len(self.meta.rowids)

    @property
    def rowids(self) -> np.ndarray:
        """int64[n], all the same."""
        return self.meta.rowids

    @property
    def ops(self) -> np.ndarray:
        """uint8[n], OP_ constants."""
        return self.meta.ops

    def timestamps(self) -> np.ndarray:
        """uint64[n], one for each change."""
        return self._timestamps

    def columns(self, column_ids: Collection[int]) -> dict[int, DeltaColumn]:
        """Return the new values of columns, of those that the source sets."""
        return {c: column for c in column_ids if (column := self.column(c)) is not None}

    def column(self, column_id: int) -> DeltaColumn | None:
        """Return a column's new values, or None if the source never sets it."""
        return self.meta.columns.get(column_id)
