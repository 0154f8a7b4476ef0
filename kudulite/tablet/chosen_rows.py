"""Scans of some rows of DiskRowSets, chosen by position: those that deltas touch, or all but some.

Who reads base files by himself needs the other rows from here: where a delta touches a row at the
snapshot, base data does not show it as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.rowset import Block
from kudulite.rowset.scan_spec import ScanSpec
from kudulite.tablet.tablet_scan import BlockRead


@dataclass(frozen=True)
class ChosenRows:
    """Rows of one rowset: all, or those that deltas touch; but never those in `without`.

    `without` holds int64 row ids, strictly ascending, as bytes.
    """

    rowset_id: str
    only_changed: bool
    without: bytes = b""

    def positions(self, rowset: DiskRowSet, timestamp: int) -> np.ndarray | None:
        """Return int64[m], ascending: the row ids that are chosen; None: all of them."""
        without = np.frombuffer(self.without, np.int64)
        if self.only_changed:
            changed = rowset.overlay(timestamp).changed
            return np.setdiff1d(changed, without, assume_unique=True)
        if not len(without):
            return None
        return np.setdiff1d(np.arange(rowset.meta.row_count), without, assume_unique=True)


@dataclass(frozen=True)
class ChosenRead(BlockRead):
    """The chosen rows of one block, not read yet; `chosen` is bool[n] or None for all."""

    rowset: DiskRowSet
    chosen: np.ndarray | None = None

    def run(self) -> pa.RecordBatch | None:
        """Return the matching rows, or None when there are none."""
        found = self.rowset.read_block(self.block, self.spec, self.chosen)
        return None if found is None else found.batch


def chosen_reads(
    rowset: DiskRowSet, rows: np.ndarray | None, spec: ScanSpec
) -> Iterator[ChosenRead]:
    """Yield the reads of int64[m] ascending row ids of a rowset (None: all) that match `spec`."""
    if spec.predicates.is_empty or not rowset.is_visible(spec.timestamp):
        return
    for block in rowset.blocks(spec):
        if rows is None:
            yield ChosenRead(rowset=rowset, block=block, spec=spec)
            continue
        mask = _mask(block, rows)
        if mask is not None:
            yield ChosenRead(rowset=rowset, block=block, spec=spec, chosen=mask)


def _mask(block: Block, rows: np.ndarray) -> np.ndarray | None:
    low, high = np.searchsorted(rows, [block.start, block.stop])
    if low == high:
        return None
    mask = np.zeros(block.row_count, dtype=bool)
    mask[rows[low:high] - block.start] = True
    return mask
