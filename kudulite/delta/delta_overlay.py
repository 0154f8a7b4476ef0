"""What deltas make of the base data of one rowset at one snapshot.

    base ──UNDO files, newest first, changes after T──REDO files, oldest first, up to T──┐ files
         └──────────────────────────── then the DeltaMemStore, up to T ──────────────────┘ memory

All visible changes of a layer are folded into at most one new value per (row, column) and one last
word on whether a row is there. Folding costs O(changes) once; bringing a block of base data to the
snapshot is then one array operation per changed column, whatever number of files there are. Memory
is a layer of its own, so that a new change in it does not fold the files again.

Invariants: (1) the last change in this order that sets a cell, or deletes or reinserts a row, wins;
an UNDO DELETE says that the row was not there before, a REINSERT sets every column; (2) row ids of
a fold are strictly ascending; (3) an UNDO file with no change after the snapshot, and a REDO file
with none up to it, are never opened.

Threads: any; a fold done twice gives the same.

Source: Kudu tablet.md, "Delta tracking"; delta_applier.cc.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa

from kudulite.delta.delta_file import OP_DELETE, OP_UPDATE, DeltaColumn
from kudulite.delta.delta_mem_store import DeltaMemSnapshot
from kudulite.delta.delta_rows import concat_values
from kudulite.delta.scatter import scatter, select
from kudulite.model.types import widened

# A table over so many row ids per change is cheaper than sorting, even of a few sorted runs.
_DENSE_FACTOR = 2


class SourceStatistics(Protocol):
    """What is known of a source of deltas before it is opened."""

    @property
    def timestamp_min(self) -> int:
        """The oldest change."""

    @property
    def timestamp_max(self) -> int:
        """The newest change."""

    @property
    def delete_count(self) -> int:
        """Number of DELETEs."""

    @property
    def reinsert_count(self) -> int:
        """Number of REINSERTs."""

    @property
    def update_counts(self) -> Mapping[int, int]:
        """How many changes set a column, by its id."""


class DeltaSource(Protocol):
    """A DeltaFile or a snapshot of a DeltaMemStore."""

    @property
    def meta(self) -> SourceStatistics:
        """What it holds."""

    @property
    def rowids(self) -> np.ndarray:
        """int64[n]."""

    @property
    def ops(self) -> np.ndarray:
        """uint8[n]."""

    def timestamps(self) -> np.ndarray | None:
        """uint64[n], or None when all have that of `meta`."""

    def column(self, column_id: int) -> DeltaColumn | None:
        """Return a column's new values."""


@dataclass(frozen=True)
class ColumnOverlay:
    """The newest visible values of one column: `rowids` int64[m] strictly ascending, m values."""

    rowids: np.ndarray
    values: pa.Array

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.rowids.nbytes + self.values.nbytes

    def places(self, rowids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return int64[n] places of row ids in any order, and bool[n] whether they are right."""
        first, count = int(self.rowids[0]), len(self.rowids)
        if int(self.rowids[-1]) - first + 1 == count:  # no gaps: nothing to search
            at = rowids - first
            hit = (at >= 0) & (at < count)
            return np.where(hit, at, 0), hit
        at = np.searchsorted(self.rowids, rowids)
        at[at == count] = 0
        return at, self.rowids[at] == rowids

    def find(self, rowid: int) -> pa.Scalar | None:
        """Return one row's value, or None when it has none here."""
        at = int(self.rowids.searchsorted(rowid))
        if at < len(self.rowids) and self.rowids[at] == rowid:
            return self.values[at]
        return None


class _Visible:
    """A source and which of its changes a snapshot takes."""

    def __init__(self, source: DeltaSource, timestamp: int, is_undo: bool) -> None:
        self.source = source
        self._timestamp = timestamp
        self._is_undo = is_undo

    @cached_property
    def mask(self) -> np.ndarray | None:
        """bool[n], or None when all are taken; timestamps are read only if it takes them."""
        meta = self.source.meta
        if self._is_undo:
            if meta.timestamp_min > self._timestamp:
                return None
        elif meta.timestamp_max <= self._timestamp:
            return None
        stamps = self.source.timestamps()
        if stamps is None:
            return None
        taken = stamps > self._timestamp if self._is_undo else stamps <= self._timestamp
        return None if taken.all() else taken

    def positions(self, chosen: np.ndarray) -> np.ndarray:
        """Return bool[n]: which of the `chosen` changes are taken."""
        return chosen if self.mask is None else chosen & self.mask


class DeltaOverlay:
    """The fold of the deltas of one rowset that a snapshot sees."""

    def __init__(
        self,
        redo: Sequence[DeltaSource],
        snapshot_timestamp: int,
        undo: Sequence[DeltaSource] = (),
        memory: DeltaMemSnapshot | None = None,
    ) -> None:
        """`redo` is oldest first, `undo` newest first, `memory` newer than all of them."""
        self._timestamp = snapshot_timestamp
        self._below: DeltaOverlay | None = None
        self._memory: DeltaMemSnapshot | None = None
        before = [f for f in undo if f.meta.timestamp_max > snapshot_timestamp]
        after = [f for f in redo if f.meta.timestamp_min <= snapshot_timestamp]
        self._sources = [_Visible(f, snapshot_timestamp, True) for f in before]
        self._sources += [_Visible(f, snapshot_timestamp, False) for f in after]
        self._columns: dict[int, ColumnOverlay | None] = {}
        # Of columns whose type was widened since; readers from before may still be under way.
        self._widened: dict[tuple[int, pa.DataType], ColumnOverlay] = {}
        if memory is not None and len(memory) and memory.meta.timestamp_min <= snapshot_timestamp:
            if self._sources:
                self._below = DeltaOverlay(after, snapshot_timestamp, before)
            self._memory = memory
            self._sources = [_Visible(memory, snapshot_timestamp, False)]

    def with_memory(self, memory: DeltaMemSnapshot, snapshot_timestamp: int) -> DeltaOverlay:
        """Return this overlay of files with a DeltaMemStore on top; folds of files are shared.

        The files may have been folded for another moment at which they look the same.
        """
        assert self._memory is None, "there is one DeltaMemStore to a rowset"
        overlay = DeltaOverlay((), snapshot_timestamp, memory=memory)
        if overlay.is_empty:
            return self
        overlay._below = None if self.is_empty else self
        return overlay

    @property
    def is_empty(self) -> bool:
        """Whether the snapshot sees base data as it is."""
        return not self._sources

    def changes_column(self, column_id: int) -> bool:
        """Whether any visible source sets the column; statistics of base data then do not hold."""
        if any(column_id in visible.source.meta.update_counts for visible in self._sources):
            return True
        return self._below is not None and self._below.changes_column(column_id)

    # -- which rows are there

    @cached_property
    def deleted(self) -> np.ndarray:
        """int64[d]: the row ids that are not there, strictly ascending."""
        rowids, is_dead = self._fold_liveness()
        dead = rowids if is_dead is None else rowids[is_dead]
        if self._below is None:
            return dead
        below = self._below.deleted
        if is_dead is not None:
            below = np.setdiff1d(below, rowids[~is_dead], assume_unique=True)
        return np.union1d(below, dead) if len(dead) else below

    def _fold_liveness(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the rows that this layer decides on and which of them are dead; None: all."""
        if self._below is None and not any(v.source.meta.delete_count for v in self._sources):
            return np.empty(0, np.int64), None  # nothing is dead that a REINSERT could revive
        parts = []
        for visible in self._sources:
            source = visible.source
            if source.meta.delete_count or source.meta.reinsert_count:
                at = np.flatnonzero(visible.positions(source.ops != OP_UPDATE))
                parts.append((source.rowids[at], source.ops[at]))
        if not parts:
            return np.empty(0, np.int64), None
        rowids = np.concatenate([part[0] for part in parts])
        ops = np.concatenate([part[1] for part in parts])
        if (ops == OP_DELETE).all():
            return np.unique(rowids), None
        last = _last_of_each_row(rowids)
        return rowids[last], ops[last] == OP_DELETE

    def selection(self, start: int, stop: int) -> np.ndarray | None:
        """Return bool[stop - start]: which of the rows are live; None when all are."""
        low, high = np.searchsorted(self.deleted, [start, stop])
        if low == high:
            return None
        live = np.ones(stop - start, dtype=bool)
        live[self.deleted[low:high] - start] = False
        return live

    def is_deleted(self, rowids: np.ndarray) -> np.ndarray:
        """Return bool[n] for int64[n] row ids in any order."""
        return _is_member(self.deleted, rowids)

    def is_row_deleted(self, rowid: int) -> bool:
        """Whether one row is not there; changes in memory are not folded for it."""
        if self._memory is not None:
            op = self._memory.newest_op(rowid, self._timestamp)
            if op is not None:
                # Whatever changes a row is there: only a DELETE as the last word says otherwise.
                return op == OP_DELETE
            return self._below is not None and self._below.is_row_deleted(rowid)
        deleted = self.deleted
        if not len(deleted):
            return False
        at = int(deleted.searchsorted(rowid))
        return at < len(deleted) and bool(deleted[at] == rowid)

    @cached_property
    def changed(self) -> np.ndarray:
        """int64[m]: the row ids that any visible change touches, strictly ascending.

        All other rows are there, and as base data has them.
        """
        parts = [] if self._below is None else [self._below.changed]
        for visible in self._sources:
            rowids, mask = visible.source.rowids, visible.mask
            parts.append(rowids if mask is None else rowids[mask])
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    # -- cells

    def apply_range(
        self, base: pa.Array, column_id: int, start: int, selected: np.ndarray | None = None
    ) -> pa.Array:
        """Bring `base`, the column's values of rows start, start + 1, …, to the snapshot.

        Then keep the int64[m] ascending positions `selected`; None keeps all.
        """
        if self._below is not None:
            base = self._below.apply_range(base, column_id, start)
        overlay = self._column(column_id, base.type)
        if overlay is None:
            return select(base, selected)
        low, high = np.searchsorted(overlay.rowids, [start, start + len(base)])
        if low == high:
            return select(base, selected)
        positions = overlay.rowids[low:high] - start
        return scatter(base, positions, overlay.values.slice(low, high - low), selected)

    def apply_rows(self, base: pa.Array, column_id: int, rowids: np.ndarray) -> pa.Array:
        """Bring `base`, the column's values of the given rows (any order), to the snapshot."""
        if self._below is not None:
            base = self._below.apply_rows(base, column_id, rowids)
        overlay = self._column(column_id, base.type)
        if overlay is None or not len(overlay.rowids):
            return base
        at, hit = overlay.places(rowids)
        if hit.all():
            return overlay.values.take(pa.array(at))
        positions = np.flatnonzero(hit)
        if not len(positions):
            return base
        return scatter(base, positions, overlay.values.take(pa.array(at[positions])))

    def changes_row(self, rowid: int) -> bool:
        """Whether any visible source changes the row."""
        if self._memory is not None:
            if self._memory.newest_op(rowid, self._timestamp) is not None:
                return True
        else:
            touched = self._touched
            at = int(touched.searchsorted(rowid))
            if at < len(touched) and touched[at] == rowid:
                return True
        return self._below is not None and self._below.changes_row(rowid)

    @cached_property
    def _touched(self) -> np.ndarray:
        parts = [visible.source.rowids for visible in self._sources]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def cell(self, rowid: int, column_id: int) -> pa.Scalar | None:
        """Return one cell's newest visible value, or None when base data holds it."""
        if self._memory is not None:
            found = self._memory.newest_cell(rowid, column_id, self._timestamp)
        else:
            overlay = self._column(column_id)
            found = None if overlay is None else overlay.find(rowid)
        if found is None and self._below is not None:
            return self._below.cell(rowid, column_id)
        return found

    def _column(
        self, column_id: int, arrow_type: pa.DataType | None = None
    ) -> ColumnOverlay | None:
        """Return this layer's newest visible values of a column, or None when it has none.

        They are in the widest type that the sources have, or in `arrow_type`.
        """
        if column_id not in self._columns:
            self._columns[column_id] = self._fold(column_id)
        found = self._columns[column_id]
        if found is None or arrow_type is None or found.values.type.equals(arrow_type):
            return found
        key = column_id, arrow_type
        if key not in self._widened:
            self._widened[key] = replace(found, values=widened(found.values, arrow_type))
        return self._widened[key]

    def _fold(self, column_id: int) -> ColumnOverlay | None:
        rowid_parts, value_parts = [], []
        for visible in self._sources:
            column = visible.source.column(column_id)
            if column is None:
                continue
            rowids, chosen = visible.source.rowids, column.is_set
            chosen = visible.mask if chosen is None else visible.positions(chosen)
            if chosen is None or chosen.all():
                rowid_parts.append(rowids)
                value_parts.append(column.values)
            elif chosen.any():
                rowid_parts.append(rowids[chosen])
                value_parts.append(column.values.filter(pa.array(chosen)))
        if not rowid_parts:
            return None
        return _newest_of_each_row(rowid_parts, value_parts)


def _newest_of_each_row(
    rowid_parts: list[np.ndarray], value_parts: list[pa.Array]
) -> ColumnOverlay:
    """Keep the last value of each row of parts in order of time."""
    rowids = np.concatenate(rowid_parts)
    values = concat_values(value_parts)
    if len(rowids) > 1 and not (rowids[1:] > rowids[:-1]).all():
        last = _last_of_each_row(rowids)
        rowids, values = rowids[last], values.take(pa.array(last))
    return ColumnOverlay(rowids, values)


def _last_of_each_row(rowids: np.ndarray) -> np.ndarray:
    """Return int64[m]: the last position of each row id, in ascending order of row ids."""
    if not len(rowids):
        return np.empty(0, np.int64)
    first, last = int(rowids.min()), int(rowids.max())
    if last - first < _DENSE_FACTOR * len(rowids):
        newest = np.full(last - first + 1, -1)
        newest[rowids - first] = np.arange(len(rowids))  # of a repeated index the last one stays
        return newest[newest >= 0]
    order = np.argsort(rowids, kind="stable")
    ordered = rowids[order]
    return order[np.append(ordered[1:] != ordered[:-1], True)]


def _is_member(ascending: np.ndarray, probes: np.ndarray) -> np.ndarray:
    if not len(ascending):
        return np.zeros(len(probes), dtype=bool)
    at = np.searchsorted(ascending, probes)
    at[at == len(ascending)] = 0
    return ascending[at] == probes
