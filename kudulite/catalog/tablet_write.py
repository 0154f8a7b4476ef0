"""One append to one tablet's log: the requests of one or several threads, as one record.

Runs under the tablet's lock. Brings memory up to the end of the log, looks the keys up, applies the
operations, appends the changes to the log, and applies them to memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from kudulite.catalog.manifest import Manifest
from kudulite.catalog.row_queue import WriteRequest
from kudulite.catalog.table_store import TableStore
from kudulite.catalog.wal_tail import recover
from kudulite.errors import ConflictError
from kudulite.fs.lock import TabletLock
from kudulite.tablet.mem_stores import Location, MemStores
from kudulite.tablet.row_effects import RowApplier, RowEffects
from kudulite.wal.record_format import Record, encode_record
from kudulite.wal.wal_writer import WalWriter

_PADDING_BYTES = 64 << 10


def groups_of(requests: Sequence[WriteRequest]) -> list[list[WriteRequest]]:
    """Put requests together that may share a record: an atomic one stands alone."""
    groups: list[list[WriteRequest]] = []
    for request in requests:
        if not groups or request.is_atomic or groups[-1][0].is_atomic:
            groups.append([])
        groups[-1].append(request)
    return groups


def altered_error(table: str) -> ConflictError:
    """Return the error of rows that were planned for the table before an alteration."""
    return ConflictError(f"table {table!r} was altered during a write; write again")


@dataclass(frozen=True)
class TabletWrite:
    """Writes to one tablet while its lock is held."""

    store: TableStore
    tablet_id: str
    lock: TabletLock

    def run(self, group: Sequence[WriteRequest]) -> None:
        """Write a group as one record. Raises StorageError, CorruptionError: nothing is written."""
        manifest = self.store.newest()
        requests = [request for request in group if self._is_current(request, manifest)]
        if not requests:
            return
        entry = manifest.entry(self.tablet_id)
        assert entry is not None
        memory = recover(self.store, entry, self.lock)
        operations = [operation for request in requests for operation in request.operations]
        keys = [key for request in requests for key in request.keys]
        locations = memory.locate(keys)
        exists = [location is not None for location in locations]
        used = max(self.lock.last_timestamp, entry.timestamp, memory.timestamp_max)
        applier = memory.applier
        effects = applier.apply(operations, keys, exists)
        try:
            encoded = self._record(applier, effects, used)
        except (pa.ArrowException, ValueError):
            effects = applier.apply(operations, keys, exists, applier.misfits(operations))
            encoded = self._record(applier, effects, used)
        is_refused = requests[0].is_atomic and effects.refusals(0, len(operations))
        if encoded is None or is_refused:
            _set_results(requests, effects, used, is_written=not is_refused)
            return
        record, content = encoded
        self._append(memory, record, content, effects, keys, locations)
        requests[0].memory_bytes = memory.growth()
        _set_results(requests, effects, record.timestamp, is_written=True)

    def _is_current(self, request: WriteRequest, newest: Manifest) -> bool:
        """Whether the request was planned for the table as it is; else it is refused."""
        planned = request.planned
        if newest is planned:
            return True
        if newest.table_id != planned.table_id:
            request.error = ConflictError(
                f"table {self.store.name!r} was deleted and created again; open it again"
            )
        elif (
            newest.partition != planned.partition
            or newest.schema != planned.schema
            or newest.entry(self.tablet_id) is None  # its range was dropped and added again
        ):
            request.error = altered_error(self.store.name)
        else:
            return True
        request.is_done = request.is_stale = True
        return False

    def _record(
        self, applier: RowApplier, effects: RowEffects, used: int
    ) -> tuple[Record, bytes] | None:
        """Return what to append, with a timestamp above `used`; None where nothing changes."""
        if not effects.changes:
            return None
        record = applier.record(effects, self.store.next_timestamp(used))
        return record, encode_record(record)

    def _append(
        self,
        memory: MemStores,
        record: Record,
        content: bytes,
        effects: RowEffects,
        keys: Sequence[bytes],
        locations: Sequence[Location | None],
    ) -> None:
        if memory.log is None or memory.log.end != memory.end:
            folder = memory.base.wal_folder
            file_system = self.store.environment.file_system
            memory.log = WalWriter(file_system, folder, memory.end, padding_bytes=_PADDING_BYTES)
        end = memory.log.append([content])
        self.lock.set_wal_end(end.segment, end.offset)
        self.lock.lift_last_timestamp(record.timestamp)
        changed = [position for _, _, position in effects.changes]
        memory.apply(
            record,
            [keys[position] for position in changed],
            [locations[position] for position in changed],
            end,
        )


def _set_results(
    requests: Sequence[WriteRequest], effects: RowEffects, timestamp: int, *, is_written: bool
) -> None:
    """Give each request of a group the outcome of its own operations."""
    start = 0
    for request in requests:
        stop = start + len(request.operations)
        request.timestamp = timestamp
        request.refusals = effects.refusals(start, stop)
        if is_written:
            request.counts = effects.counts(start, stop)
        request.error = None
        request.is_done = True
        start = stop
