"""Scan: rows of a table at one moment, as Arrow.

A scan is planned when it is made (columns and predicates are checked, the snapshot is settled) and
read when a result is asked for, again each time. Blocks are read by a few threads ahead of the
consumer; memory is bounded by those in flight.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa

from kudulite.catalog.history import partitions_to_read, tablet_at
from kudulite.catalog.manifest import Manifest, TabletEntry
from kudulite.catalog.planned_columns import in_schema, planned_columns, schema_as_planned
from kudulite.catalog.scan_plan import KeyBounds, entries_to_scan, narrowed, scan_spec
from kudulite.catalog.snapshot import choose_snapshot
from kudulite.catalog.table_store import TableStore
from kudulite.client.arrow_result import ArrowResult
from kudulite.errors import ConflictError, OptionError
from kudulite.model.predicate import Predicate, bind_predicates
from kudulite.model.schema import Column
from kudulite.rowset.merge import merge_ordered
from kudulite.rowset.scan_spec import ScanSpec
from kudulite.tablet.tablet_scan import BlockRead, block_reads, count_rows, scan_ordered

READ_THREADS = min(8, os.cpu_count() or 1)
BLOCKS_AHEAD = 2 * READ_THREADS


class Scan(ArrowResult):
    """The rows that match, at one settled timestamp; see `Table.scan`."""

    def __init__(
        self,
        store: TableStore,
        *,
        columns: Sequence[str] | None,
        where: Sequence[Predicate],
        at: Any,
        ordered: bool,
        limit: int | None,
        bounds: KeyBounds = (None, None),
    ) -> None:
        if limit is not None and limit < 0:
            raise OptionError(f"table {store.name!r}: limit {limit} of a scan is below 0")
        self._store = store
        self._manifest: Manifest
        timestamp = choose_snapshot(store, at)
        self._manifest = store.newest()  # after settling: it shows all up to the timestamp
        spec = scan_spec(store.name, self._manifest, columns, where, timestamp)
        self._spec = narrowed(spec, *bounds)
        self._columns = planned_columns(spec.schema, spec.names, spec.predicates.predicates)
        self._ordered = ordered
        self._limit = limit

    @property
    def timestamp(self) -> int:
        """The HybridTime of the snapshot, inclusive."""
        return self._spec.timestamp

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the result."""
        return _plain(self._spec.schema.arrow_schema(self._spec.names))

    @property
    def columns(self) -> list[Column]:
        """The columns of the result, as the table had them when the scan was planned."""
        return [self._spec.schema.column(name) for name in self._spec.names]

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches, none empty, of at most a row group each."""
        batches = self._ordered_batches() if self._ordered else self._unordered_batches()
        schema = self.schema
        left = self._limit
        for batch in batches:
            if left is not None:
                batch = batch.slice(0, left)
                left -= batch.num_rows
            if batch.num_rows:
                yield in_schema(batch, schema)
            if left is not None and left <= 0:
                return

    def count(self) -> int:
        """Return the number of rows; without predicates no column is read."""
        spec, entries = self._now()
        total = sum(count_rows(tablet_at(self._store, e, spec.timestamp), spec) for e in entries)
        return total if self._limit is None else min(total, self._limit)

    def _now(self) -> tuple[ScanSpec, list[TabletEntry]]:
        """Return the scan as the table's columns are now, and the tablets that it reads.

        Of the newest version, not the one of the plan: its files may have been swept since, and at
        a settled time both show the same rows.
        """
        manifest = self._store.newest()
        if manifest.table_id != self._manifest.table_id:
            raise ConflictError(
                f"table {self._store.name!r} was deleted and created again after the scan was made"
            )
        spec = self._spec
        if manifest.schema is not self._manifest.schema:
            schema = schema_as_planned(self._store.name, self._columns, manifest.schema)
            predicates = bind_predicates(spec.predicates.predicates, schema)
            spec = replace(spec, schema=schema, predicates=predicates)
            if schema is not manifest.schema:
                # The predicates have the names of their time: nothing is pruned by them.
                found = partitions_to_read(self._store, manifest, spec.timestamp)
                return spec, [entry for _, tablets in found for entry in tablets]
        return spec, entries_to_scan(self._store, manifest, spec.predicates, spec.timestamp)

    def _unordered_batches(self) -> Iterator[pa.RecordBatch]:
        spec, entries = self._now()
        opened = (tablet_at(self._store, entry, spec.timestamp) for entry in entries)
        return read_ahead(read for tablet in opened for read in block_reads(tablet, spec))

    def _ordered_batches(self) -> Iterator[pa.RecordBatch]:
        spec, entries = self._now()
        return ordered_batches(self._store, entries, spec)


def ordered_batches(
    store: TableStore, entries: Sequence[TabletEntry], spec: ScanSpec
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all tablets together in key order."""
    streams = [
        scan_ordered(tablet_at(store, entry, spec.timestamp), replace(spec, with_keys=True))
        for entry in entries
    ]
    return (rows.batch for rows in merge_ordered(streams))


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


def _plain(schema: pa.Schema) -> pa.Schema:
    """Return a schema without metadata of fields: column ids mean nothing outside the table."""
    return pa.schema([field.remove_metadata() for field in schema])
