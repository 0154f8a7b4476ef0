"""Scan: rows of a table at one moment, as Arrow.

A scan is planned when it is made: columns and predicates are checked, and the snapshot is settled.
It is read when a result is asked for, anew each time. A few threads read blocks ahead of the
consumer; memory is bounded by the blocks in flight.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from kudulite.catalog.history import tablet_at
from kudulite.catalog.manifest import TabletEntry
from kudulite.catalog.planned_columns import in_schema
from kudulite.catalog.read_request import Read, ReadRequest, plan_rows
from kudulite.catalog.scan_plan import entries_to_scan
from kudulite.catalog.table_store import TableStore
from kudulite.client.arrow_result import ArrowResult
from kudulite.model.schema import Column
from kudulite.rowset.merge import merge_ordered
from kudulite.rowset.scan_spec import ScanSpec
from kudulite.tablet.tablet_scan import BlockRead, block_reads, count_rows, scan_ordered

READ_THREADS = min(8, os.cpu_count() or 1)
BLOCKS_AHEAD = 2 * READ_THREADS


class Scan(ArrowResult):
    """The rows that match, at one settled timestamp; see `Table.scan`."""

    def __init__(self, store: TableStore, request: ReadRequest) -> None:
        self._read = plan_rows(store, request)

    @property
    def timestamp(self) -> int:
        """The HybridTime of the snapshot, inclusive."""
        return self._read.plan.timestamp

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the result."""
        return self._read.schema

    @property
    def columns(self) -> list[Column]:
        """The columns of the result, as the table had them when the scan was planned."""
        return self._read.columns

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches, none empty, of at most a row group each."""
        read = self._read.newest()
        schema = self.schema
        left = read.plan.request.limit
        for batch in row_batches(read, entries_to_scan(read.store, read.manifest, read.spec)):
            if left is not None:
                batch = batch.slice(0, left)
                left -= batch.num_rows
            if batch.num_rows:
                yield in_schema(batch, schema)
            if left is not None and left <= 0:
                return

    def count(self) -> int:
        """Return the number of rows; without predicates no column is read."""
        read = self._read.newest()
        store, spec = read.store, read.spec
        entries = entries_to_scan(store, read.manifest, spec)
        total = sum(count_rows(tablet_at(store, e, spec.timestamp), spec) for e in entries)
        limit = read.plan.request.limit
        return total if limit is None else min(total, limit)


def row_batches(read: Read[ScanSpec], entries: Iterable[TabletEntry]) -> Iterator[pa.RecordBatch]:
    """Return the rows of some tablets, in key order over all of them where the read asks for it."""
    spec = read.spec
    tablets = (tablet_at(read.store, entry, spec.timestamp) for entry in entries)
    if read.plan.request.ordered:
        return (rows.batch for rows in merge_ordered([scan_ordered(t, spec) for t in tablets]))
    return read_ahead(block for tablet in tablets for block in block_reads(tablet, spec))


def read_ahead(reads: Iterable[BlockRead]) -> Iterator[pa.RecordBatch]:
    """Run block reads in threads, a few ahead of the consumer; yields in order."""
    waiting = iter(reads)
    first = list(itertools.islice(waiting, 2))
    if len(first) < 2 or READ_THREADS == 1:
        for read in itertools.chain(first, waiting):
            batch = read.run()
            if batch is not None:
                yield batch
        return
    pending: deque[Future[pa.RecordBatch | None]] = deque()
    with ThreadPoolExecutor(READ_THREADS, thread_name_prefix="kudulite-scan") as pool:
        try:
            for read in itertools.chain(first, waiting):
                pending.append(pool.submit(read.run))
                if (
                    len(pending) >= BLOCKS_AHEAD
                    and (done := pending.popleft().result()) is not None
                ):
                    yield done
            while pending:
                if (done := pending.popleft().result()) is not None:
                    yield done
        finally:
            for future in pending:
                future.cancel()
