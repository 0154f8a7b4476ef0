"""Delta applier: the deltas of one rowset that a snapshot at T sees, merged and applied to blocks.

    base ──UNDO files, newest first, changes after T──REDO files, oldest first, up to T──┐ files
         └──────────────────────────── then the DeltaMemStore, up to T ──────────────────┘ memory

All visible changes of a layer are merged into at most one new value per (row, column) and one last
operation per row that is deleted or reinserted. Merging costs O(changes), once. Bringing a block of
base data to the snapshot is then one array operation per changed column, however many files there
are. Memory is a layer of its own, so that a new change in memory does not merge the files again.

**Invariants**: (1) the last change, in the order drawn above, that sets a cell or that deletes or
reinserts a row decides; an UNDO DELETE means that the row did not exist before, and a REINSERT sets
every column; (2) row ids of merged deltas are strictly ascending; (3) an UNDO file without a change
after the snapshot, and a REDO file without one up to it, are never opened.

**Threads**: any. Threads that merge the same deltas at once get equal results.

**Source**: Kudu tablet.md, "Delta tracking"; delta_applier.cc.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from kudulite.delta.delta_file import OP_DELETE, OP_UPDATE, DeltaColumn, concat_values
from kudulite.delta.delta_mem_store import DeltaMemSnapshot
from kudulite.delta.delta_source import DeltaSource
from kudulite.delta.scatter import DeltaCells, as_rows, laid_over, scatter, select
from kudulite.model.types import widened

# With up to so many row ids per change a table over all ids is cheaper than sorting.
_DENSE_FACTOR = 2
# As many cells of all sources are in memory at once while several columns are merged.
_MERGED_CELLS_MAX = 1 << 20
# Up to so many row ids per probe, and per number, places are found in a table and not by searching.
_IDS_PER_PROBE = 32
_IDS_PER_NUMBER = 256


@dataclass(frozen=True)
class ColumnApplier:
    """The newest visible values of one column: m values, `rowids` int64[m] strictly ascending."""

    rowids: np.ndarray
    values: pa.Array

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        nbytes: int = self.rowids.nbytes + self.values.nbytes
        return nbytes

    def places(self, rowids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return int64[n] places of row ids in any order, and bool[n]: which row ids are here."""
        first, count = int(self.rowids[0]), len(self.rowids)
        if int(self.rowids[-1]) - first + 1 == count:  # no gaps: nothing to search
            at = rowids - first
            hit = (at >= 0) & (at < count)
            return np.where(hit, at, 0), hit
        return places_in(self.rowids, rowids)

    def find(self, rowid: int) -> pa.Scalar | None:
        """Return one row's value, or None if it has none here."""
        at = _place_of(self.rowids, rowid)
        return None if at < 0 else self.values[at]


@dataclass(frozen=True)
class ChangeSplit:
    """The changed rows of a rowset, int64 and ascending, for some columns.

    `whole` are dead, or a change sets all the columns of them. The cells of the rows in `partial`
    are those of base data, except in columns of `column_ids`.
    """

    whole: np.ndarray
    partial: np.ndarray
    column_ids: tuple[int, ...]


class _Visible:
    """A source, and which of its changes a snapshot sees (REDO) or undoes (UNDO)."""

    def __init__(self, source: DeltaSource, timestamp: int, is_undo: bool) -> None:
        self.source = source
        self._timestamp = timestamp
        self._is_undo = is_undo

    @cached_property
    def mask(self) -> np.ndarray | None:
        """bool[n], or None for all changes; timestamps are read only if `meta` does not decide."""
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
        """Return bool[n]: which of the `chosen` changes are in the mask."""
        return chosen if self.mask is None else chosen & self.mask


class DeltaApplier:
    """The deltas of one rowset that a snapshot sees, merged at first use."""

    def __init__(
        self,
        redo: Sequence[DeltaSource],
        snapshot_timestamp: int,
        undo: Sequence[DeltaSource] = (),
        memory: DeltaMemSnapshot | None = None,
    ) -> None:
        """`redo` is oldest first, `undo` newest first, `memory` newer than all of them."""
        self._timestamp = snapshot_timestamp
        self._below: DeltaApplier | None = None
        self._memory: DeltaMemSnapshot | None = None
        before = [f for f in undo if f.meta.timestamp_max > snapshot_timestamp]
        after = [f for f in redo if f.meta.timestamp_min <= snapshot_timestamp]
        self._sources = [_Visible(f, snapshot_timestamp, True) for f in before]
        self._sources += [_Visible(f, snapshot_timestamp, False) for f in after]
        self._columns: dict[int, ColumnApplier | None] = {}
        # Columns whose type was widened later; readers of the older type may still be running.
        self._widened: dict[tuple[int, pa.DataType], ColumnApplier] = {}
        self._split: tuple[tuple[int, ...], ChangeSplit] | None = None  # the last one
        if memory is not None and len(memory) and memory.meta.timestamp_min <= snapshot_timestamp:
            if self._sources:
                self._below = DeltaApplier(after, snapshot_timestamp, before)
            self._memory = memory
            self._sources = [_Visible(memory, snapshot_timestamp, False)]

    def with_memory(self, memory: DeltaMemSnapshot, snapshot_timestamp: int) -> DeltaApplier:
        """Return this applier of files with a DeltaMemStore on top; merged files are shared.

        This applier may be of another timestamp at which the same changes of the files are visible.
        """
        assert self._memory is None, "a rowset has one DeltaMemStore"
        applier = DeltaApplier((), snapshot_timestamp, memory=memory)
        if applier.is_empty:
            return self
        applier._below = None if self.is_empty else self
        return applier

    @property
    def is_empty(self) -> bool:
        """Whether the snapshot sees base data unchanged."""
        return not self._sources

    def changes_column(self, column_id: int) -> bool:
        """Whether any visible source sets the column; base data statistics are then invalid."""
        if any(column_id in visible.source.meta.update_counts for visible in self._sources):
            return True
        return self._below is not None and self._below.changes_column(column_id)

    # -- live rows

    @cached_property
    def deleted(self) -> np.ndarray:
        """int64[d]: the row ids of rows that are not live, strictly ascending."""
        rowids, is_dead = self._merge_liveness()
        dead = rowids if is_dead is None else rowids[is_dead]
        if self._below is None:
            return dead
        below = self._below.deleted
        if is_dead is not None:
            below = difference(below, rowids[~is_dead])
        return distinct(np.concatenate([below, dead])) if len(dead) else below

    def _merge_liveness(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the rows that this layer deletes or reinserts, and which are dead; None is all."""
        if self._below is None and not any(v.source.meta.delete_count for v in self._sources):
            return np.empty(0, np.int64), None  # no DELETE, so no row for a REINSERT to revive
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
            return distinct(rowids), None
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
        return places_in(self.deleted, rowids)[1]

    def is_row_deleted(self, rowid: int) -> bool:
        """Return whether one row is not live, without merging the changes in memory."""
        if self._memory is not None:
            op = self._memory.newest_op(rowid, self._timestamp)
            if op is not None:
                # A row with changes is live unless its last change is a DELETE.
                return op == OP_DELETE
            return self._below is not None and self._below.is_row_deleted(rowid)
        return _place_of(self.deleted, rowid) >= 0

    @cached_property
    def changed(self) -> np.ndarray:
        """int64[m]: the row ids with any visible change, strictly ascending.

        All other rows are live, with the values of base data.
        """
        parts = [] if self._below is None else [self._below.changed]
        for visible in self._sources:
            rowids, mask = visible.source.rowids, visible.mask
            parts.append(rowids if mask is None else rowids[mask])
        return distinct(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    # -- cells

    def apply_range(
        self,
        base: pa.Array,
        column_id: int,
        start: int,
        selected: np.ndarray | None = None,
        *,
        is_own: bool = False,
    ) -> pa.Array:
        """Bring `base`, the column's values of rows start, start + 1, …, to the snapshot.

        Then keep the int64[m] ascending positions `selected`; None keeps all. `base` is overwritten
        if `is_own` says that nobody else reads it.
        """
        if self._below is not None:
            base = self._below.apply_range(base, column_id, start, is_own=is_own)
        applier = self._column(column_id, base.type)
        if applier is None:
            return select(base, selected)
        low, high = np.searchsorted(applier.rowids, [start, start + len(base)])
        if low == high:
            return select(base, selected)
        positions = applier.rowids[low:high] - start
        values = applier.values.slice(low, high - low)
        return scatter(base, positions, values, selected, is_own=is_own)

    def apply_few(
        self,
        base: Sequence[pa.Array],
        column_ids: Sequence[int],
        start: int,
        selected: np.ndarray | None = None,
    ) -> list[pa.Array]:
        """Do as `apply_range` for few rows of several columns; the arrays are copies.

        Columns that the same changes set are gathered together. Each call of Arrow and numpy takes
        longer than moving the few cells.
        """
        if self._below is not None:
            base = self._below.apply_few(base, column_ids, start)
        self.merge_columns(column_ids)
        # By the array of row ids that columns share: positions, places in it, columns, new values.
        changed: dict[int, tuple[np.ndarray, int, int, list[int], list[pa.Array]]] = {}
        count, unchanged = len(base[0]), list[int]()
        for place, (values, column_id) in enumerate(zip(base, column_ids, strict=True)):
            cells = self._column(column_id, values.type)
            if cells is None:
                unchanged.append(place)
                continue
            key = id(cells.rowids)
            if key not in changed:
                low, high = np.searchsorted(cells.rowids, [start, start + count]).tolist()
                changed[key] = cells.rowids[low:high] - start, low, high - low, [], []
            _, low, length, places, new = changed[key]
            places.append(place)
            new.append(cells.values.slice(low, length))
        found: dict[int, pa.Array] = {}
        for positions, _, length, places, new in changed.values():
            if not length:
                unchanged += places
                continue
            source = np.arange(count)
            source[positions] = np.arange(count, count + length)
            found |= _gathered(base, places, source if selected is None else source[selected], new)
        found |= _gathered(base, unchanged, selected)
        return [found[place] for place in range(len(base))]

    def apply_rows(
        self, base: Sequence[pa.Array], column_ids: Sequence[int], rowids: np.ndarray
    ) -> list[pa.Array]:
        """Bring the columns' values of int64[n] row ids, in any order, to the snapshot."""
        types = {c: values.type for c, values in zip(column_ids, base, strict=True)}
        cells = self.cells(types, rowids)
        return laid_over([cells[column_id] for column_id in column_ids], base)

    def cells(self, types: Mapping[int, pa.DataType], rowids: np.ndarray) -> dict[int, DeltaCells]:
        """Return what the deltas set in columns of int64[n] row ids, by column id."""
        if self._below is None:
            found = {c: DeltaCells(arrow_type, len(rowids)) for c, arrow_type in types.items()}
        else:
            found = self._below.cells(types, rowids)
        if len(rowids):
            self.merge_columns(types)
        placed: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for column_id, arrow_type in types.items() if len(rowids) else ():
            applier = self._column(column_id, arrow_type)
            if applier is None or not len(applier.rowids):
                continue
            # Columns that the same changes set share an array of row ids, which is searched once.
            known = next((known for known in placed if known[0] is applier.rowids), None)
            if known is None:
                at, hit = applier.places(rowids)
                positions = np.flatnonzero(hit)
                known = applier.rowids, positions, at[positions]
                placed.append(known)
            found[column_id] = found[column_id].under(known[1], applier.values, known[2])
        return found

    def split(self, column_ids: Collection[int]) -> ChangeSplit:
        """Return which changed rows are dead or have new cells in all columns, and which in some.

        Changes that set all columns are found by the statistics of their source, as a whole.
        Memory must not have any changes.
        """
        key = tuple(column_ids)
        if self._split is None or self._split[0] != key:
            self._split = key, self._split_changes(key)
        return self._split[1]

    def _split_changes(self, column_ids: Sequence[int]) -> ChangeSplit:
        assert self._memory is None, "changes in memory may set other columns"
        parts, partial_ids = [self.deleted], set[int]()
        for visible in self._sources:
            source, counts = visible.source, visible.source.meta.update_counts
            is_set = source.ops != OP_DELETE
            count = np.count_nonzero(is_set)
            if column_ids and all(counts.get(column_id) == count for column_id in column_ids):
                parts.append(source.rowids[visible.positions(is_set)])
            else:
                partial_ids.update(counts)
        whole = distinct(np.concatenate(parts))
        partial = tuple(column_id for column_id in column_ids if column_id in partial_ids)
        return ChangeSplit(whole, difference(self.changed, whole), partial)

    def column(self, column_id: int, arrow_type: pa.DataType) -> ColumnApplier | None:
        """Return a column's newest visible values, or None. Memory must not have any changes."""
        assert self._memory is None, "changes in memory hide those of files"
        return self._column(column_id, arrow_type)

    def complete_cells(
        self, types: Mapping[int, pa.DataType], rowids: np.ndarray
    ) -> list[tuple[pa.Array, np.ndarray]] | None:
        """Return an array for each column, and the places in it of the rows that are live.

        `rowids` is int64[n], ascending. Returns None if a row has a cell from base data or memory.
        """
        if self._memory is not None or not all(map(self.changes_column, types)):
            return None
        is_wanted = np.zeros(int(rowids.max(initial=-1)) + 1, dtype=bool)
        is_wanted[rowids] = True
        is_wanted[self.deleted[: np.searchsorted(self.deleted, len(is_wanted))]] = False
        count = np.count_nonzero(is_wanted)
        self.merge_columns(types)
        found: list[tuple[pa.Array, np.ndarray]] = []
        placed: list[tuple[np.ndarray, np.ndarray]] = []
        for column_id, arrow_type in types.items():
            cells = self._column(column_id, arrow_type)
            if cells is None:
                return None
            # Columns that the same changes set share an array of row ids, which is searched once.
            places = next((at for known, at in placed if known is cells.rowids), None)
            if places is None:
                near = cells.rowids[: np.searchsorted(cells.rowids, len(is_wanted))]
                places = np.flatnonzero(is_wanted[near])
                placed.append((cells.rowids, places))
            if len(places) != count:
                return None
            found.append((cells.values, places))
        return found

    def changes_row(self, rowid: int) -> bool:
        """Return whether the row has any visible change."""
        if self._memory is None:
            return _place_of(self.changed, rowid) >= 0
        if self._memory.newest_op(rowid, self._timestamp) is not None:
            return True
        return self._below is not None and self._below.changes_row(rowid)

    def cell(self, rowid: int, column_id: int) -> pa.Scalar | None:
        """Return one cell's newest visible value, or None if base data has it."""
        if self._memory is not None:
            value = self._memory.newest_cell(rowid, column_id, self._timestamp)
        else:
            applier = self._column(column_id)
            value = None if applier is None else applier.find(rowid)
        if value is None and self._below is not None:
            return self._below.cell(rowid, column_id)
        return value

    def _column(
        self, column_id: int, arrow_type: pa.DataType | None = None
    ) -> ColumnApplier | None:
        """Return this layer's newest visible values of a column, or None if it has none.

        Their type is `arrow_type`, or else the widest type of the sources.
        """
        if column_id not in self._columns:
            found = (visible.source.column(column_id) for visible in self._sources)
            self._columns[column_id] = self._merge_column(found)
        applier = self._columns[column_id]
        if applier is None or arrow_type is None or applier.values.type.equals(arrow_type):
            return applier
        key = column_id, arrow_type
        if key not in self._widened:
            self._widened[key] = replace(applier, values=widened(applier.values, arrow_type))
        return self._widened[key]

    def merge_columns(self, column_ids: Iterable[int]) -> None:
        """Merge columns that are not merged yet, several at once.

        A file is opened for each group of them, and has the values of one group in memory.
        """
        if self._below is not None:
            self._below.merge_columns(column_ids)
        missing = [column_id for column_id in column_ids if column_id not in self._columns]
        if not missing:
            return
        row_count = sum(visible.source.meta.row_count for visible in self._sources)
        width = max(1, _MERGED_CELLS_MAX // max(1, row_count))
        for start in range(0, len(missing), width):
            group = missing[start : start + width]
            found = [visible.source.columns(group) for visible in self._sources]
            for column_id in group:
                parts = [columns.get(column_id) for columns in found]
                self._columns[column_id] = self._merge_column(parts)

    def _merge_column(self, columns: Iterable[DeltaColumn | None]) -> ColumnApplier | None:
        """Merge what each source has of a column."""
        rowid_parts, value_parts = [], []
        for visible, column in zip(self._sources, columns, strict=True):
            if column is None:
                continue
            rowids, chosen = visible.source.rowids, column.is_set
            chosen = visible.mask if chosen is None else visible.positions(chosen)
            if chosen is None or chosen.all():
                rowid_parts.append(rowids)
                value_parts.append(column.values)
            elif chosen.any():
                at = np.flatnonzero(chosen)
                rowid_parts.append(rowids[at])
                value_parts.append(select(column.values, at))
        if not rowid_parts:
            return None
        known = [column.rowids for column in list(self._columns.values()) if column is not None]
        if len(rowid_parts) == 1 and any(rowids is rowid_parts[0] for rowids in known):
            return ColumnApplier(rowid_parts[0], value_parts[0])
        merged = _newest_of_each_row(rowid_parts, value_parts)
        for rowids in known:
            if np.array_equal(rowids, merged.rowids):
                return replace(merged, rowids=rowids)
        return merged


def _gathered(
    base: Sequence[pa.Array],
    places: Sequence[int],
    source: np.ndarray | None,
    new: Sequence[pa.Array] = (),
) -> Iterable[tuple[int, pa.Array]]:
    """Return copies of arrays of `base`, with those of `new` behind them, at int64[m] positions."""
    if not places:
        return ()
    rows = as_rows([base[place] for place in places])
    if new:
        rows = pa.concat_batches([rows, as_rows(new)])
    rows = pa.concat_batches([rows]) if source is None else rows.take(pa.array(source))
    return zip(places, rows.columns, strict=True)


def _newest_of_each_row(
    rowid_parts: list[np.ndarray], value_parts: list[pa.Array]
) -> ColumnApplier:
    """Keep the last value of each row of parts in order of time."""
    rowids = rowid_parts[0] if len(rowid_parts) == 1 else np.concatenate(rowid_parts)
    values = concat_values(value_parts)
    if len(rowids) > 1 and not (rowids[1:] > rowids[:-1]).all():
        last = _last_of_each_row(rowids)
        rowids, values = rowids[last], select(values, last)
    return ColumnApplier(rowids, values)


def _last_of_each_row(rowids: np.ndarray) -> np.ndarray:
    """Return int64[m]: the last position of each row id, in ascending order of row ids."""
    if not len(rowids):
        return np.empty(0, np.int64)
    first, last = int(rowids.min()), int(rowids.max())
    if last - first < _DENSE_FACTOR * len(rowids):
        newest = np.full(last - first + 1, -1)
        newest[rowids - first] = np.arange(len(rowids))  # a repeated index keeps its last value
        return newest[newest >= 0]
    order = np.argsort(rowids, kind="stable")
    ordered = rowids[order]
    return order[np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))]


def places_in(ascending: np.ndarray, probes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of n probes in m ascending numbers, and bool[n]: which were found.

    The place of a missing probe is any number.
    """
    if not len(probes) or not len(ascending):
        return np.zeros(len(probes), np.int64), np.zeros(len(probes), dtype=bool)
    first, last = int(probes.min()), int(probes.max())
    span, few = last - first, _IDS_PER_NUMBER * len(ascending)
    if span < _DENSE_FACTOR * len(probes) or span < min(_IDS_PER_PROBE * len(probes), few):
        low, high = np.searchsorted(ascending, [first, last + 1])
        table = np.full(last - first + 1, -1, np.int32)
        table[ascending[low:high] - first] = np.arange(low, high)
        place = table[probes - first]
        return place, place >= 0
    at = np.searchsorted(ascending, probes)
    at[at == len(ascending)] = 0
    hit: np.ndarray = ascending[at] == probes
    return at, hit


def distinct(rowids: np.ndarray) -> np.ndarray:
    """Return row ids strictly ascending; those of a few sources are a few ascending runs.

    Merging the runs takes a thirtieth of the time of `np.unique`, which hashes.
    """
    found = np.sort(rowids, kind="stable")
    is_first = np.ones(len(found), dtype=bool)
    np.not_equal(found[1:], found[:-1], out=is_first[1:])
    return found[is_first]


def difference(rowids: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the row ids that are not among `others`, both strictly ascending, in their order.

    A table over all row ids takes a tenth of the time of `np.setdiff1d`, which sorts both. It is
    not searched for what is left: there are several times as many rows as changes.
    """
    if not len(rowids) or not len(others):
        return rowids
    is_other = np.zeros(int(rowids[-1]) + 1, dtype=bool)
    low, high = np.searchsorted(others, [0, len(is_other)])
    is_other[others[low:high]] = True
    return rowids[~is_other[rowids]]


def _place_of(ascending: np.ndarray, probe: int) -> int:
    """Return the place of one number in ascending ones, or -1."""
    at = int(ascending.searchsorted(probe))
    return at if at < len(ascending) and ascending[at] == probe else -1
