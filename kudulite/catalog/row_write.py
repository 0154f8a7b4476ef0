"""Small writes: the operations of a flush, row by row, through each tablet's write-ahead log.

    1  take the tablet's lock, catch up on what other processes appended
    2  look the keys up in memory and on disk; play the operations: one change per key
    3  timestamp = max(now, `last` + 1), one for the whole flush in this tablet
    4  append one frame, fsync                        durable
    5  lift the durable end and `last`, apply to memory    visible

A refused row leaves the others applied. Each tablet is written for itself: there is no atomicity
over tablets here, bulk writes have it (commit.py).

Threads: any number may use one `RowWriter`. Those that wait for the same tablet are written by the
first of them together, in the order in which they came: one timestamp, one frame, one fsync
(row_queue.py).

Source: Kudu ops/write_op.cc; for group commit, its log's append thread (consensus/log.cc).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from kudulite.catalog.flush_policy import flush_when_needed
from kudulite.catalog.manifest import Manifest
from kudulite.catalog.row_queue import RowQueue
from kudulite.catalog.table_store import TableStore
from kudulite.catalog.wal_tail import recover
from kudulite.errors import ConflictError, KuduliteError, RowError, TimestampError
from kudulite.fs.lock import TabletLock
from kudulite.model.encoded_key import encode_key, encode_keys
from kudulite.mvcc.hybrid_time import TIMESTAMP_MAX
from kudulite.tablet.collapse import WriteCounts
from kudulite.tablet.mem_stores import LOCATE_ARRAY_MIN, MemStores
from kudulite.tablet.row_effects import RowEffects, RowPlayer
from kudulite.tablet.row_operation import RowOperation, RowWriteFailure, RowWriteResult
from kudulite.wal.wal_writer import WalWriter


@dataclass
class _Flush:
    """The operations of one flush in one tablet, and what became of them."""

    positions: list[int]
    operations: list[RowOperation]
    keys: list[bytes]
    is_atomic: bool
    is_done: bool = False
    timestamp: int = 0
    counts: WriteCounts = field(default_factory=WriteCounts)
    refusals: list[tuple[int, str]] = field(default_factory=list)
    error: KuduliteError | None = None
    memory_bytes: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class RowWriter:
    """Writes row operations to one table."""

    store: TableStore

    def write(
        self,
        operations: Sequence[RowOperation],
        *,
        timeout_seconds: float | None = None,
        is_atomic: bool = False,
    ) -> RowWriteResult:
        """Write the operations, in order; what is not among the failures is durable and visible.

        `timeout_seconds` is how long to wait for each tablet (default: the client's). With
        `is_atomic` a tablet takes all of its rows or none. Raises nothing for single rows or
        tablets: they are failures of the result.
        """
        manifest = self.store.newest()
        flushes, failures = _split(manifest, operations)
        timestamp, counts = 0, WriteCounts()
        for tablet_id in sorted(flushes):
            flush = flushes[tablet_id]
            flush.is_atomic = is_atomic
            self._write(manifest, tablet_id, flush, timeout_seconds)
            if flush.memory_bytes[1]:
                flush_when_needed(self.store, tablet_id, *flush.memory_bytes)
            timestamp = max(timestamp, flush.timestamp)
            counts += flush.counts
            if flush.error is not None:
                reason = str(flush.error)
                failures += [RowWriteFailure(row, reason, flush.error) for row in flush.positions]
            failures += [RowWriteFailure(flush.positions[at], why) for at, why in flush.refusals]
        return RowWriteResult(timestamp, counts, sorted(failures, key=lambda f: f.row))

    def _write(
        self, manifest: Manifest, tablet_id: str, flush: _Flush, timeout_seconds: float | None
    ) -> None:
        """Have the flush written: by this thread, or by the one whose turn it is."""
        queues = self.store.environment.row_queues
        queue = queues.setdefault((str(self.store.folder), tablet_id), RowQueue())
        queue.add(flush)
        with queue.turn:
            if flush.is_done:
                return
            waiting = queue.take_all()
            try:
                with self.store.lock(tablet_id, timeout_seconds=timeout_seconds) as lock:
                    lock.announce("row write")
                    for group in _groups(waiting):
                        _TabletWrite(self.store, manifest, tablet_id, lock).run(group)
            except KuduliteError as error:
                for one in waiting:
                    one.error = None if one.is_done else error
            finally:
                for one in waiting:
                    one.is_done = True


def _groups(flushes: Sequence[_Flush]) -> list[list[_Flush]]:
    """Put flushes together that may share a record: an atomic one stands alone."""
    groups: list[list[_Flush]] = []
    for flush in flushes:
        if not groups or flush.is_atomic or groups[-1][0].is_atomic:
            groups.append([])
        groups[-1].append(flush)
    return groups


@dataclass(frozen=True)
class _TabletWrite:
    """One append to one tablet, under its lock."""

    store: TableStore
    planned: Manifest
    tablet_id: str
    lock: TabletLock

    def run(self, flushes: Sequence[_Flush]) -> None:
        """Write flushes as one record. Raises ConflictError, StorageError; nothing is written."""
        manifest = self._checked_newest()
        entry = manifest.entry(self.tablet_id)
        assert entry is not None
        memory = recover(self.store, entry, self.lock)
        operations = [operation for flush in flushes for operation in flush.operations]
        keys = [key for flush in flushes for key in flush.keys]
        locations = memory.locate(keys)
        player = memory.player
        effects = player.play(operations, keys, [place is not None for place in locations])
        is_refused = flushes[0].is_atomic and effects.refusals(0, len(operations))
        memory_bytes = memory.nbytes
        timestamp = max(self.lock.last_timestamp, entry.timestamp, memory.timestamp_max)
        if effects.changes and not is_refused:
            timestamp = self._next_timestamp(timestamp)
            self._append(memory, player, effects, timestamp, keys, locations)
            flushes[0].memory_bytes = memory_bytes, memory.nbytes
        _report(flushes, effects, timestamp, is_written=not is_refused)

    def _append(
        self,
        memory: MemStores,
        player: RowPlayer,
        effects: RowEffects,
        timestamp: int,
        keys: Sequence[bytes],
        locations: Sequence,
    ) -> None:
        record = player.encode(effects, timestamp)
        if memory.log is None or memory.log.end != memory.end:
            folder = memory.base.wal_folder
            memory.log = WalWriter(self.store.environment.file_system, folder, memory.end)
        end = memory.log.append([record])
        self.lock.set_wal_end(end.segment, end.offset)
        self.lock.lift_last_timestamp(timestamp)
        changed = [position for _, _, position in effects.changes]
        memory.apply(
            record,
            [keys[position] for position in changed],
            [locations[position] for position in changed],
            end,
        )

    def _checked_newest(self) -> Manifest:
        newest = self.store.newest()
        if newest.table_id != self.planned.table_id:
            raise ConflictError(
                f"table {self.store.name!r} was deleted and created again; open it again"
            )
        if newest.partition != self.planned.partition or newest.schema != self.planned.schema:
            raise ConflictError(
                f"table {self.store.name!r} was altered during a write; write again"
            )
        return newest

    def _next_timestamp(self, used: int) -> int:
        timestamp = max(self.store.environment.clock.now(), used + 1)
        if timestamp > TIMESTAMP_MAX:
            raise TimestampError(
                f"table {self.store.name!r}: no timestamp is left above {used}; some machine's"
                " clock was far ahead when it wrote or read here"
            )
        return timestamp


def _report(
    flushes: Sequence[_Flush], effects: RowEffects, timestamp: int, *, is_written: bool
) -> None:
    """Tell each flush of a group what became of its rows."""
    start = 0
    for flush in flushes:
        stop = start + len(flush.operations)
        flush.timestamp = timestamp
        flush.refusals = effects.refusals(start, stop)
        if is_written:
            flush.counts = effects.counts(start, stop)
        flush.is_done = True
        start = stop


def _split(
    manifest: Manifest, operations: Sequence[RowOperation]
) -> tuple[dict[str, _Flush], list[RowWriteFailure]]:
    """Encode the keys and sort the operations by tablet, keeping their order."""
    keys, numbers = _keys_and_tablets(manifest, operations)
    flushes: dict[str, _Flush] = {}
    failures = []
    for position, number in enumerate(numbers):
        if number < 0:
            failures.append(RowWriteFailure(position, RowError.REASON_NO_PARTITION))
            continue
        tablet_id = manifest.tablets[number].id
        flush = flushes.get(tablet_id)
        if flush is None:
            flush = flushes[tablet_id] = _Flush([], [], [], is_atomic=False)
        flush.positions.append(position)
        flush.operations.append(operations[position])
        flush.keys.append(keys[position])
    return flushes, failures


def _keys_and_tablets(
    manifest: Manifest, operations: Sequence[RowOperation]
) -> tuple[list[bytes], list[int]]:
    schema, partition = manifest.schema, manifest.partition
    names = schema.key_names
    if len(operations) < LOCATE_ARRAY_MIN:
        cells = [[operation.values[name] for name in names] for operation in operations]
        keys = [encode_key(row, schema.key_types) for row in cells]
        places = [partition.tablet_of_key(dict(zip(names, r, strict=True))) for r in cells]
        return keys, places
    fields = [(column.name, column.type.arrow) for column in schema.key_columns]
    array = pa.array([operation.values for operation in operations], pa.struct(fields))
    columns = {name: array.field(at) for at, name in enumerate(names)}
    encoded = encode_keys(list(columns.values()), schema.key_types)
    return list(encoded), partition.tablet_index(columns, len(operations)).tolist()
