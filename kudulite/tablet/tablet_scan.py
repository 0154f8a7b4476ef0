"""Scans of one tablet: its blocks one by one, or merged in key order.

A block is the unit of work: it is read, brought to the snapshot and filtered without any other, so
blocks of a tablet may be read in any number of threads. Memory is bounded by the blocks in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from kudulite.rowset.merge import OrderedStream, merge_ordered
from kudulite.rowset.rowset import Block, RowSet, ScannedRows
from kudulite.rowset.scan_spec import ScanSpec
from kudulite.tablet.tablet import Tablet


@dataclass(frozen=True)
class BlockRead:
    """One block of a scan, not read yet; `wanted` is bool[n], which of its rows, None for all."""

    rowset: RowSet
    block: Block
    spec: ScanSpec
    wanted: np.ndarray | None = None

    def run(self) -> pa.RecordBatch | None:
        """Return the block's matching rows, or None when there are none."""
        rows = self.rowset.read_block(self.block, self.spec, self.wanted)
        return None if rows is None else rows.batch


def block_reads(tablet: Tablet, spec: ScanSpec) -> Iterator[BlockRead]:
    """Yield the reads that together make an unordered scan of the tablet."""
    if spec.predicates.is_empty:
        return
    for rowset in tablet.visible(spec.timestamp).overlapping(spec.lower, spec.upper):
        for block in rowset.blocks(spec):
            yield BlockRead(rowset, block, spec)


def scan_ordered(tablet: Tablet, spec: ScanSpec) -> OrderedStream[ScannedRows]:
    """Return the tablet's matching rows as one stream in key order."""
    with_keys = replace(spec, with_keys=True)
    rowsets = (
        []
        if spec.predicates.is_empty
        else list(tablet.visible(spec.timestamp).overlapping(spec.lower, spec.upper))
    )
    streams = [_rowset_stream(rowset, with_keys) for rowset in rowsets]
    key_min = min((rowset.key_min for rowset in rowsets), default=b"")
    return OrderedStream(key_min, lambda: merge_ordered(streams))


def _rowset_stream(rowset: RowSet, spec: ScanSpec) -> OrderedStream[ScannedRows]:
    def read() -> Iterator[ScannedRows]:
        for block in rowset.blocks(spec):
            found = rowset.read_block(block, spec)
            if found is not None:
                yield found

    return OrderedStream(rowset.key_min, read)


def count_rows(tablet: Tablet, spec: ScanSpec) -> int:
    """Return the number of matching rows; without predicates and bounds nothing is read."""
    if spec.predicates.is_empty:
        return 0
    if not spec.predicates.columns and spec.lower is None and spec.upper is None:
        visible = tablet.visible(spec.timestamp).items
        return sum(rowset.live_row_count(spec.timestamp) for rowset in visible)
    reads = block_reads(tablet, replace(spec, names=()))
    return sum(batch.num_rows for read in reads if (batch := read.run()) is not None)
