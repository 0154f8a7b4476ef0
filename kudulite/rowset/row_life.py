"""One row of a rowset through time: when it changed, whether it was there, what it was.

Threads: any number may read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from kudulite.delta.changed_rows import changes_within
from kudulite.delta.delta_overlay import DeltaOverlay
from kudulite.delta.one_row import OneRowSource
from kudulite.model.schema import Column
from kudulite.mvcc.hybrid_time import TIMESTAMP_MAX
from kudulite.rowset.rowset import Block, RowSet
from kudulite.rowset.scan_spec import ScanSpec


class RowLife:
    """The row at `block`, which is of one row, dead or alive."""

    def __init__(self, rowset: RowSet, block: Block) -> None:
        self._rowset = rowset
        self._block = block
        self._rowids = rowset.rowids_of(block)
        undo, redo = rowset.delta_sources()
        rowid = int(self._rowids[0])
        self._undo = [row for source in undo if len(row := OneRowSource(source, rowid))]
        self._redo = [row for source in redo if len(row := OneRowSource(source, rowid))]
        self._overlays: dict[int, DeltaOverlay] = {}

    def moments(self, start: int, column_ids: Collection[int]) -> set[int]:
        """Return when the row changed after `start`; `column_ids` are those of the table."""
        inserted, deleted = self._rowset.lifetime
        moments: set[int] = set()
        for source in (*self._undo, *self._redo):
            stamps = changes_within(source, start, TIMESTAMP_MAX, column_ids)[1]
            moments.update(stamps.tolist())
        # What happened when all rows were inserted is told by whether the row is there then.
        moments.discard(inserted)
        if inserted > start and self.is_there(inserted):
            moments.add(inserted)
        if deleted is not None and deleted > start and self.is_there(deleted - 1):
            moments.add(deleted)
        return moments

    def is_there(self, timestamp: int) -> bool:
        """Whether a snapshot at `timestamp` sees the row."""
        overlay = self._overlay(timestamp)
        return bool(self._rowset.are_there(self._rowids, timestamp, overlay)[0])

    def images(
        self, columns: Sequence[Column], timestamps: Sequence[int]
    ) -> dict[int, list[pa.Array]]:
        """Return the columns of the row, one value each, at each of some moments."""
        first = np.zeros(1, np.int64)
        views: list[tuple[DeltaOverlay, np.ndarray | None]] = [
            (self._overlay(timestamp), first) for timestamp in timestamps
        ]
        found = self._rowset.read_images(self._block, columns, views)
        return dict(zip(timestamps, found, strict=True))

    def _overlay(self, timestamp: int) -> DeltaOverlay:
        if timestamp not in self._overlays:
            self._overlays[timestamp] = DeltaOverlay(self._redo, timestamp, self._undo)
        return self._overlays[timestamp]


def find_row(rowset: RowSet, key_scan: ScanSpec) -> RowLife | None:
    """Return the row of the one key inside the bounds of a scan, None when there was never one."""
    if rowset.key_max < (key_scan.lower or b"") or rowset.key_min > (key_scan.lower or b""):
        return None
    return next((RowLife(rowset, block) for block in rowset.blocks(key_scan)), None)
