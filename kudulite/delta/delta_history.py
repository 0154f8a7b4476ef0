"""History of a DiskRowSet's rows as arrays: deltas are joined, ordered, split, turned round, cut.

    REDO   by (rowid, timestamp)              takes base data forward
    UNDO   by (rowid, timestamp descending)   takes it back

These are the steps of which compactions are made:

    minor    merge_redo(files)                                 one REDO file in their place
    major    split_columns(merge_redo(files), columns)         moved, rest (stays REDO)
             apply_updates(moved, old)                         new base data
             without_ancient(invert_changes(moved, old), mark) one more UNDO file, in front
    UNDO     without_ancient(merge_undo(files), mark)          one UNDO file in their place

Changes of one row at one timestamp keep their order: ascending in REDO, reversed in UNDO. Nothing
is coalesced: each change stays for readers of the past, and for who asks which changes there were.

A change is ancient when its timestamp is at or below the ancient history mark. Reads are at the
mark or later, and an UNDO is applied to go back before its timestamp: an ancient one never is.

Threads: pure functions; nothing that is given is changed.

Source: Kudu deltafile.cc and compaction.cc, ApplyMutationsAndGenerateUndos; design-docs/tablet.md.

Which rows of a rowset changed in a window of time, and when last, from its deltas alone.

    changed in (start, end] = has an UNDO, REDO or memory entry with start < timestamp ≤ end

An entry tells the moment of its change whichever way it takes the row, so it does not matter here
how far base data has moved forward in time. What a row was at either end of the window is the
business of the overlays at these moments.

An UPDATE that sets no column of the table (only dropped ones) is no change: a compaction loses it,
and the answer must not depend on compactions.

Source: Kudu delta_relevancy.h, for diff scans.

The deltas of one row, cut out of a source: folding them at many moments costs only their own.

Threads: what is read twice is equal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from kudulite.delta.delta_applier import DeltaSource, places_in, scatter
from kudulite.delta.delta_file import (
    OP_DELETE,
    OP_REINSERT,
    OP_UPDATE,
    DeltaColumn,
    DeltaFile,
    DeltaRows,
    concat_rows,
    concat_values,
    take_rows,
    without_unset,
)

# (column id, int64[m] strictly ascending row ids) -> the m values of base data.
BaseValues = Callable[[int, np.ndarray], pa.Array]

_UNDO_OF = np.empty(3, np.uint8)
_UNDO_OF[[OP_UPDATE, OP_DELETE, OP_REINSERT]] = [OP_UPDATE, OP_REINSERT, OP_DELETE]


def stamped(file: DeltaFile) -> DeltaRows:
    """Return a whole file with a timestamp for each change."""
    rows = file.read()
    return rows if rows.timestamps is not None else replace(rows, timestamps=timestamps_of(file))


def timestamps_of(source: DeltaSource) -> np.ndarray:
    """Return uint64[n]: the timestamp of each change of a source."""
    stamps = source.timestamps()
    if stamps is None:
        return np.full(len(source.rowids), source.meta.timestamp_max, np.uint64)
    return stamps


def merge_redo(parts: Sequence[DeltaRows]) -> DeltaRows:
    """Return the changes of parts, oldest first (at least one), by (rowid, timestamp).

    Parts may set different columns. At equal timestamps a row's changes keep the order they have.
    """
    rows = concat_rows(parts)
    assert rows.timestamps is not None, "each change has a timestamp of its own"
    return _by_row_and(rows.timestamps, rows)


def merge_undo(parts: Sequence[DeltaRows]) -> DeltaRows:
    """Return the changes of parts, newest first (at least one), by (rowid, timestamp descending).

    Parts may set different columns. A column compaction leaves older updates of other columns
    behind, so that UNDO of one row may be in order within each part and not over all: here it is.
    """
    rows = concat_rows(parts)
    assert rows.timestamps is not None, "each change has a timestamp of its own"
    return _by_row_and(~rows.timestamps, rows)


def without_ancient(undo: DeltaRows, mark: int) -> DeltaRows:
    """Return the changes after `mark`, maybe none; only the others are never applied."""
    assert undo.timestamps is not None, "each change has a timestamp of its own"
    keep = undo.timestamps > mark
    if keep.all():
        return undo
    return without_unset(take_rows(undo, np.flatnonzero(keep)))


def split_columns(
    redo: DeltaRows, column_ids: Collection[int]
) -> tuple[DeltaRows, DeltaRows | None]:
    """Return the updates of `column_ids`, maybe none, and all other changes, None without any.

    The first has the rows that set any of these columns, and only these. In the second are the
    DELETEs, and the updates that still set something.
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

    An UPDATE becomes the UPDATE that sets the same cells to what they were before, a DELETE the
    REINSERT of the row with all columns of `redo`, a REINSERT a DELETE. What a cell was before is
    in the row's newest change before that sets the column, else in `base`. O(changes), one gather
    per column.
    """
    count = len(redo.rowids)
    # Rows ascend and the changes of each are reversed, those of one timestamp as well.
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
    """Return `base`, one column of rows start, start + 1, …, with the newest of its changes.

    `redo` is by (rowid, timestamp) and within these rows. The result has the type of `base`.
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
    if len(newest) == len(base):  # every row is changed, nothing of `base` stays
        return values
    return scatter(base, redo.rowids[newest] - start, values)


def _by_row_and(second: np.ndarray, rows: DeltaRows) -> DeltaRows:
    """Order rows by (row id, uint64[n] `second`), where equal in the order they have."""
    steps, after = rows.rowids[1:] - rows.rowids[:-1], second[1:] >= second[:-1]
    if ((steps > 0) | ((steps == 0) & after)).all():
        return rows
    return take_rows(rows, np.lexsort((second, rows.rowids)))


def _setters(column: DeltaColumn, count: int) -> np.ndarray:
    """Return the positions of those of `count` rows that set the column."""
    return np.arange(count) if column.is_set is None else np.flatnonzero(column.is_set)


def _setting_any(rows: DeltaRows, columns: dict[int, DeltaColumn]) -> np.ndarray:
    """Return bool[n]: which rows set any of the columns."""
    found = np.zeros(len(rows.rowids), dtype=bool)
    for column in columns.values():
        found |= True if column.is_set is None else column.is_set
    return found


def _rows_with_columns(
    rows: DeltaRows, columns: dict[int, DeltaColumn], keep: np.ndarray
) -> DeltaRows:
    chosen = replace(rows, columns=columns)
    return without_unset(chosen if keep.all() else take_rows(chosen, np.flatnonzero(keep)))


@dataclass(frozen=True)
class _UndoCells:
    """Where one column's UNDO takes its n cells from.

    `at` are places, null where UNDO sets none, in a pool of the cells that the changes `setters`
    set and then the base values of the rows `base_rowids`. `is_set` is bool[n], None for all.
    """

    setters: np.ndarray
    base_rowids: np.ndarray
    at: pa.Array
    is_set: np.ndarray | None

    @staticmethod
    def of(redo: DeltaRows, column: DeltaColumn, newest_first: np.ndarray) -> _UndoCells | None:
        """Return None where UNDO sets no cell.

        It sets the cells that an UPDATE has set, and all cells of a row that was deleted.
        """
        count = len(redo.rowids)
        setters = _setters(column, count)
        is_update = redo.ops == OP_UPDATE
        if is_update.all():  # each setter is undone, and comes after the setter before it
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
        """Return the cells, of a column that the same changes set."""
        values = (
            column.values if column.is_set is None else column.values.take(pa.array(self.setters))
        )
        pool = concat_values([values, base(column_id, self.base_rowids)])
        return DeltaColumn(pool.take(self.at), self.is_set)


@dataclass(frozen=True)
class ChangedRows:
    """m changed rows: `rowids` int64[m] strictly ascending, uint64[m] newest change of each."""

    rowids: np.ndarray
    timestamps: np.ndarray

    def newest_of(self, rowids: np.ndarray) -> np.ndarray:
        """Return uint64[n]: the newest change of each of int64[n] row ids, 0: there is none."""
        newest = np.zeros(len(rowids), np.uint64)
        if len(self.rowids) and len(rowids):
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
    """Return the rows with a change in (start, end], but for changes at the moment `not_at`.

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
    """Return bool[n]: which entries change a column of the table, or whether a row is there."""
    changes: np.ndarray = source.ops != OP_UPDATE
    counts = source.meta.update_counts
    known = [column_id for column_id in counts if column_id in column_ids]
    # DELETEs set nothing: a column that all other entries set needs no look at its cells.
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
        ids = source.meta.update_counts if len(at) else ()
        columns = {c: column for c in ids if (column := source.column(c)) is not None}
        stamps = timestamps_of(source)
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

    def column(self, column_id: int) -> DeltaColumn | None:
        """Return a column's new values, None when the source never sets it."""
        return self.meta.columns.get(column_id)
