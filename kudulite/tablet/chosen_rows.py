"""Scans of some rows of DiskRowSets, chosen by position: those that deltas touch, or all but some.

Who reads base files by himself needs the other rows from here: where a delta touches a row at the
snapshot, base data does not show it as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

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


def chosen_reads(
    rowset: DiskRowSet, rows: np.ndarray | None, spec: ScanSpec
) -> Iterator[BlockRead]:
    """Yield the reads of int64[m] ascending row ids of a rowset (None: all) that match `spec`."""
    if spec.predicates.is_empty or not rowset.is_visible(spec.timestamp):
        return
    for block in rowset.blocks(spec):
        if rows is None:
            yield BlockRead(rowset, block, spec)
            continue
        mask = _mask(block, rows)
        if mask is not None:
            yield BlockRead(rowset, block, spec, mask)


def _mask(block: Block, rows: np.ndarray) -> np.ndarray | None:
    low, high = np.searchsorted(rows, [block.start, block.stop])
    if low == high:
        return None
    mask = np.zeros(block.row_count, dtype=bool)
    mask[rows[low:high] - block.start] = True
    return mask
