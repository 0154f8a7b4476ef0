"""One append to one tablet's log: the flushes of one or several threads, as one record.

Runs under the tablet's lock. Sees the tablet as it is (memory caught up with the log), looks the
keys up, plays the operations, appends what changes, and applies it to memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from kudulite.catalog.manifest import Manifest
from kudulite.catalog.table_store import TableStore
from kudulite.catalog.wal_tail import recover
from kudulite.errors import ConflictError, KuduliteError
from kudulite.fs.lock import TabletLock
from kudulite.tablet.collapse import NO_COUNTS, WriteCounts
from kudulite.tablet.mem_stores import Location, MemStores
from kudulite.tablet.row_effects import RowApplier, RowEffects
from kudulite.tablet.row_operation import RowOperation
from kudulite.wal.record_format import Record, encode_record
from kudulite.wal.wal_writer import WalWriter

_PADDING_BYTES = 64 << 10


@dataclass(eq=False, slots=True)
class Flush:
    """The operations of one flush in one tablet, as `planned` has it, and what became of them.

    `positions` are the operations' in the caller's list, `refusals` are (position here, RowError
    reason). One that is done and neither told what became of it nor has an error was interrupted.
    `is_stale`: nothing was written because the table is not as it was planned for.
    """

    planned: Manifest
    is_atomic: bool
    error: KuduliteError | None = None
    positions: list[int] = field(default_factory=list)
    operations: list[RowOperation] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    is_done: bool = False
    is_told: bool = False
    is_stale: bool = False
    timestamp: int = 0
    counts: WriteCounts = NO_COUNTS
    refusals: Sequence[tuple[int, str]] = ()
    memory_bytes: tuple[int, int] = (0, 0)


def groups_of(flushes: Sequence[Flush]) -> list[list[Flush]]:
    """Put flushes together that may share a record: an atomic one stands alone."""
    groups: list[list[Flush]] = []
    for flush in flushes:
        if not groups or flush.is_atomic or groups[-1][0].is_atomic:
            groups.append([])
        groups[-1].append(flush)
    return groups


def altered_error(table: str) -> ConflictError:
    """Return the error of rows that were planned for a table as it is no more."""
    return ConflictError(f"table {table!r} was altered during a write; write again")


@dataclass(frozen=True)
class TabletWrite:
    """Writes to one tablet while its lock is held."""

    store: TableStore
    tablet_id: str
    lock: TabletLock

    def run(self, group: Sequence[Flush]) -> None:
        """Write flushes as one record. Raises StorageError, CorruptionError: nothing is written."""
        manifest = self.store.newest()
        flushes = [flush for flush in group if self._is_current(flush, manifest)]
        if not flushes:
            return
        entry = manifest.entry(self.tablet_id)
        assert entry is not None
        memory = recover(self.store, entry, self.lock)
        operations = [operation for flush in flushes for operation in flush.operations]
        keys = [key for flush in flushes for key in flush.keys]
        locations = memory.locate(keys)
        exists = [place is not None for place in locations]
        used = max(self.lock.last_timestamp, entry.timestamp, memory.timestamp_max)
        applier = memory.applier
        effects = applier.apply(operations, keys, exists)
        try:
            found = self._record(applier, effects, used)
        except (pa.ArrowException, ValueError):
            effects = applier.apply(operations, keys, exists, applier.misfits(operations))
            found = self._record(applier, effects, used)
        is_refused = flushes[0].is_atomic and effects.refusals(0, len(operations))
        if found is None or is_refused:
            _report(flushes, effects, used, is_written=not is_refused)
            return
        record, content = found
        self._append(memory, record, content, effects, keys, locations)
        flushes[0].memory_bytes = memory.growth()
        _report(flushes, effects, record.timestamp, is_written=True)

    def _is_current(self, flush: Flush, newest: Manifest) -> bool:
        """Whether the flush was planned for the table as it is; else it is refused."""
        planned = flush.planned
        if newest is planned:
            return True
        if newest.table_id != planned.table_id:
            flush.error = ConflictError(
                f"table {self.store.name!r} was deleted and created again; open it again"
            )
        elif (
            newest.partition != planned.partition
            or newest.schema != planned.schema
            or newest.entry(self.tablet_id) is None  # its range was dropped and added again
        ):
            flush.error = altered_error(self.store.name)
        else:
            return True
        flush.is_done = flush.is_stale = True
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


def _report(
    flushes: Sequence[Flush], effects: RowEffects, timestamp: int, *, is_written: bool
) -> None:
    """Tell each flush of a group what became of its rows."""
    start = 0
    for flush in flushes:
        stop = start + len(flush.operations)
        flush.timestamp = timestamp
        flush.refusals = effects.refusals(start, stop)
        if is_written:
            flush.counts = effects.counts(start, stop)
        flush.error = None
        flush.is_done = flush.is_told = True
        start = stop
