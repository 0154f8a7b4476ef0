"""The changed rows of one rowset in a window of time, and one row at all its timestamps.

A diff scan reads batches of changed rows with their images at both ends of the window:

    batch := _live_start _live_end _timestamp  a0 a1 …  [b0 b1 …]      columns of the spec's images
                     │          │         │      │         └ the row at `start`, null if not live
                     │          │         │      └ the row at `end`; if not live, as at `start`
                     └──────────┴ bool    └ uint64, the newest change in the window

A key that is dead at both ends in one rowset may be live in another. Such rows are therefore
returned as well: the merge by key needs their timestamps.

All rows of a rowset that one commit wrote have one insert timestamp. A row that the same commit
inserted and deleted (it has a DELETE at that timestamp) is not returned, because no snapshot ever
saw it.

`OneRow` reads one row at any number of timestamps, for the history of a key. It cuts the row's
deltas out of their sources once, so that merging them at many timestamps costs only its own.

**Threads**: any number may read, also the blocks of one rowset.

**Source**: Kudu design-docs/scan-optimization-diff-scan, tablet/delta_store.cc.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from kudulite.delta.delta_applier import DeltaApplier
from kudulite.delta.delta_history import ChangedRows, OneRowSource, changed_rows, changes_within
from kudulite.delta.scatter import as_rows, select
from kudulite.model.encoded_key import decode_keys
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Column
from kudulite.rowset.merge import RowsRead
from kudulite.rowset.rowset import Block, RowSet, ScannedRows
from kudulite.rowset.scan_spec import DiffSpec, ScanSpec, View

LIVE_START, LIVE_END, TIMESTAMP = range(3)  # columns of a batch
IMAGE_START = 3  # the first column of the images


def may_have_changed(rowset: RowSet, spec: DiffSpec) -> bool:
    """Whether any row of a rowset may have a change in the window, without reading a file."""
    inserted, deleted = rowset.lifetime
    if inserted > spec.end or (deleted is not None and deleted <= spec.start):
        return False
    if spec.lower is not None and rowset.key_max < spec.lower:
        return False
    if spec.upper is not None and rowset.key_min >= spec.upper:
        return False
    if inserted > spec.start or (deleted is not None and deleted <= spec.end):
        return True
    undo, redo = rowset.delta_sources()
    return any(
        source.meta.timestamp_max > spec.start and source.meta.timestamp_min <= spec.end
        for source in (*undo, *redo)
    )


def block_diffs(rowset: RowSet, spec: DiffSpec) -> Iterator[RowsRead]:
    """Yield the reads of the changed rows of a rowset, in key order, with their keys."""
    diff = _RowSetDiff(rowset, spec)
    for block in rowset.blocks(spec.key_scan):
        yield RowsRead(partial(diff.read, block), block.row_count)


class NewestChanges:
    """The newest change in (`start`, `end`] of each row of one rowset.

    `column_ids` are the columns of the table: an update of a dropped column is no change.
    """

    def __init__(self, rowset: RowSet, start: int, end: int, column_ids: Collection[int]) -> None:
        self._rowset = rowset
        inserted, deleted = rowset.lifetime
        self._inserted = inserted if start < inserted <= end else 0
        self._deleted = deleted if deleted and start < deleted <= end else 0
        undo, redo = rowset.delta_sources()
        # Changes at the common insert timestamp are left out: `of` adds it to rows live then.
        self._changed: ChangedRows = changed_rows(
            (*undo, *redo), start, end, column_ids, not_at=self._inserted
        )
        self._at_insert = rowset.applier(self._inserted)
        self._before_delete = rowset.applier(max(0, self._deleted - 1))

    def in_block(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        """Return int64[m], ascending: the positions of a block's changed rows; and uint64[m]: when.

        Takes the time of the changed rows, unless all rows of the rowset have changed together.
        """
        if not self._inserted and not self._deleted:
            positions, places = self._rowset.places_in(block, self._changed.rowids)
            return positions, self._changed.timestamps[places]
        newest = self.of(self._rowset.rowids_of(block))
        positions = np.flatnonzero(newest)
        return positions, newest[positions]

    def of(self, rowids: np.ndarray) -> np.ndarray:
        """Return uint64[n]: the newest change in the window of each row, 0 where there is none."""
        newest = self._changed.newest_of(rowids)
        for timestamp, live_at, applier in (
            (self._inserted, self._inserted, self._at_insert),
            (self._deleted, self._deleted - 1, self._before_delete),
        ):
            if timestamp:
                is_live = self._rowset.are_live(rowids, live_at, applier)
                newest[is_live] = np.maximum(newest[is_live], np.uint64(timestamp))
        return newest


class _RowSetDiff:
    """Reads the changed rows of one rowset, with the appliers of both ends of the window."""

    def __init__(self, rowset: RowSet, spec: DiffSpec) -> None:
        self._rowset = rowset
        self._spec = spec
        self._changes = NewestChanges(rowset, spec.start, spec.end, spec.column_ids)
        self._at_start = rowset.applier(spec.start)
        self._at_end = rowset.applier(spec.end)

    def read(self, block: Block) -> ScannedRows | None:
        """Return the changed rows of a block, None when there are none."""
        rowset, spec = self._rowset, self._spec
        at, newest = self._changes.in_block(block)
        if spec.key_scan.predicates.columns and len(at):
            is_match = self._matches(block, at)
            at, newest = at[is_match], newest[is_match]
        if not len(at):
            return None
        rowids = rowset.rowids_of(block)[at]
        live_start = rowset.are_live(rowids, spec.start, self._at_start)
        live_end = rowset.are_live(rowids, spec.end, self._at_end)
        arrays = [pa.array(live_start), pa.array(live_end), pa.array(newest)]
        keys = rowset.keys_of(block, at)
        arrays += self._images(block, at, keys, live_start, live_end)
        names = [str(number) for number in range(len(arrays))]
        return ScannedRows(pa.RecordBatch.from_arrays(arrays, names=names), keys)

    def _matches(self, block: Block, at: np.ndarray) -> np.ndarray:
        """Return bool[m]: which of the rows match the predicates on the key."""
        predicates = self._spec.key_scan.predicates
        columns = [self._spec.schema.column(name) for name in predicates.columns]
        # No delta ever sets a key column.
        values = self._rowset.read_images(block, columns, [(self._at_end, at)])[0]
        return predicates.evaluate(pa.RecordBatch.from_arrays(values, predicates.columns))

    def _images(
        self,
        block: Block,
        at: np.ndarray,
        keys: KeyArray,
        live_start: np.ndarray,
        live_end: np.ndarray,
    ) -> list[pa.Array]:
        """Return the columns of the rows at `end` (or else `start`), then those at `start`."""
        spec = self._spec
        if not live_start.any() and not live_end.any():
            sides = 2 if spec.reads_before else 1
            return [pa.nulls(len(at), column.type.arrow) for column in spec.image_columns] * sides
        old = live_start if spec.reads_before else live_start & ~live_end
        ends, starts = self._read(block, at, keys, live_end, old)
        end_count = int(np.count_nonzero(live_end))
        null_at = end_count + int(np.count_nonzero(old))
        old_at = np.where(old, end_count + np.cumsum(old) - 1, null_at)
        new_at = np.where(live_end, np.cumsum(live_end) - 1, old_at)
        images = ends if end_count == len(at) else _gather(ends, starts, new_at)
        return [*images, *_gather(ends, starts, old_at)] if spec.reads_before else images

    def _read(
        self, block: Block, at: np.ndarray, keys: KeyArray, new: np.ndarray, old: np.ndarray
    ) -> list[list[pa.Array]]:
        """Return the columns of the `new` rows at `end`, and of the `old` ones at `start`.

        Both are bool[m], of the rows `at`. Key columns are taken from the keys, which no delta
        changes.
        """
        schema, columns = self._spec.schema, self._spec.image_columns
        others = [column for column in columns if column.name not in schema.key_names]
        in_key: dict[str, pa.Array] = {}
        if len(others) < len(columns):
            in_key |= zip(schema.key_names, decode_keys(keys, schema.key_types), strict=True)
        sides = [(self._at_end, new), (self._at_start, old)]
        views: list[View] = [(applier, at[rows]) for applier, rows in sides if rows.any()]
        read = iter(self._rowset.read_images(block, others, views))
        found = []
        for _, rows in sides:
            values = next(read) if rows.any() else [pa.nulls(0, c.type.arrow) for c in others]
            chosen = None if rows.all() else np.flatnonzero(rows)
            known = {name: select(array, chosen) for name, array in in_key.items()}
            known |= zip((column.name for column in others), values, strict=True)
            found.append([known[column.name] for column in columns])
        return found


def _gather(ends: Sequence[pa.Array], starts: Sequence[pa.Array], at: np.ndarray) -> list[pa.Array]:
    """Return the values at `at` in `ends`, `starts` and one null, in a row."""
    nulls = [pa.nulls(1, array.type) for array in ends]
    rows = pa.concat_batches([as_rows(arrays) for arrays in (ends, starts, nulls)])
    gathered: list[pa.Array] = rows.take(pa.array(at)).columns
    return gathered


class OneRow:
    """The row of a `block` of one row, live or ghost, at any timestamps."""

    def __init__(self, rowset: RowSet, block: Block) -> None:
        self._rowset = rowset
        self._block = block
        self._rowids = rowset.rowids_of(block)
        undo, redo = rowset.delta_sources()
        rowid = int(self._rowids[0])
        self._undo = [row for source in undo if len(row := OneRowSource(source, rowid))]
        self._redo = [row for source in redo if len(row := OneRowSource(source, rowid))]
        self._appliers: dict[int, DeltaApplier] = {}

    def moments(self, start: int, column_ids: Collection[int]) -> set[int]:
        """Return the timestamps after `start` at which the row changed.

        `column_ids` are the columns of the table.
        """
        inserted, deleted = self._rowset.lifetime
        moments: set[int] = set()
        for source in (*self._undo, *self._redo):
            stamps = changes_within(source, start, TIMESTAMP_MAX, column_ids)[1]
            moments.update(stamps.tolist())
        # The common insert timestamp counts only if the row is live then.
        moments.discard(inserted)
        if inserted > start and self.is_live(inserted):
            moments.add(inserted)
        if deleted is not None and deleted > start and self.is_live(deleted - 1):
            moments.add(deleted)
        return moments

    def is_live(self, timestamp: int) -> bool:
        """Whether a snapshot at `timestamp` sees the row."""
        applier = self._applier(timestamp)
        return bool(self._rowset.are_live(self._rowids, timestamp, applier)[0])

    def images(
        self, columns: Sequence[Column], timestamps: Sequence[int]
    ) -> dict[int, list[pa.Array]]:
        """Return the columns of the row, one value each, at each of the timestamps."""
        first = np.zeros(1, np.int64)
        views: list[View] = [(self._applier(timestamp), first) for timestamp in timestamps]
        images = self._rowset.read_images(self._block, columns, views)
        return dict(zip(timestamps, images, strict=True))

    def _applier(self, timestamp: int) -> DeltaApplier:
        if timestamp not in self._appliers:
            self._appliers[timestamp] = DeltaApplier(self._redo, timestamp, self._undo)
        return self._appliers[timestamp]


def find_row(rowset: RowSet, key_scan: ScanSpec) -> OneRow | None:
    """Return the row of the one key inside the bounds of a scan, or None without such a row."""
    if rowset.key_max < (key_scan.lower or b"") or rowset.key_min > (key_scan.lower or b""):
        return None
    return next((OneRow(rowset, block) for block in rowset.blocks(key_scan)), None)
