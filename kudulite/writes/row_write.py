"""Row writes: the operations of a session flush, through the write-ahead log of each tablet.

    1  take the tablet's lock, catch up on records that other processes appended
    2  number the inserts of a key that is not unique (tablet_memory.py); look the keys up in memory
       and on disk; apply the operations: one change per key
    3  timestamp = max(now, safe timestamp + 1), one for the whole flush in this tablet
    4  append one record, fsync                                      durable
    5  advance the durable end and the safe timestamp, apply to memory   visible

If the durable end cannot be advanced, the record is cut off again, so the caller may write the rows
again. If that is impossible, too, the error says that the rows are durable.

A refused row leaves the others applied. Each tablet is written on its own: only bulk writes
(commit.py) are atomic across tablets.

**Threads**: any number may use one `RowWriter`. Group commit: among threads that wait for the same
tablet, the first to get the turn writes all their requests, in the order of arrival, with one
timestamp, one record, one fsync (table/row_queue.py).

**Source**: Kudu ops/write_op.cc; for group commit, the append thread of its log (consensus/log.cc).
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from kudulite.chain.manifest import Manifest
from kudulite.chain.schema_history import moved_names
from kudulite.errors import (
    ConflictError,
    KuduliteError,
    LockTimeoutError,
    RowError,
    SchemaError,
    StorageError,
    UsageError,
)
from kudulite.model.encoded_key import encode_keys, with_id
from kudulite.model.schema import Schema
from kudulite.storage.tablet_lock import TabletLock
from kudulite.table.metrics import SLOW_LOG_SECONDS, warn_of_slow
from kudulite.table.row_ids import last_id_of, next_id
from kudulite.table.row_queue import RowQueue, WriteRequest
from kudulite.table.table_store import TableStore
from kudulite.table.tablet_memory import recover
from kudulite.tablet.mem_stores import LOCATE_ARRAY_MIN, MemStores
from kudulite.tablet.operation import Outcome
from kudulite.tablet.row_effects import (
    NO_COUNTS,
    RowApplier,
    RowEffects,
    RowOperation,
    RowWriteFailure,
    RowWriteResult,
)
from kudulite.upkeep.maintenance_schedule import flush_when_needed
from kudulite.wal.record_format import Record, encode_record
from kudulite.wal.row_codec import RecordSizeError
from kudulite.wal.segment import WalPosition
from kudulite.wal.wal_writer import WalWriter

_PADDING_BYTES = 64 << 10


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
        """Write the operations, in order; all but the failures are durable and visible.

        `timeout_seconds` is how long to wait for each tablet (default: the client's). With
        `is_atomic` all are written or none; they must be of one tablet. Errors of single rows or
        tablets are failures of the result. Operations whose plan was stale are planned once more.
        """
        manifest = self.store.chain.last_seen()  # the lock's holder checks whether it is the newest
        rows: Sequence[int] = range(len(operations))
        timestamp, counts = 0, NO_COUNTS
        failures: list[RowWriteFailure] = []
        outcomes: list[tuple[Sequence[int], Sequence[Outcome]]] = []
        for is_last in (False, True):
            requests, failed = self._plan(manifest, operations, rows, is_atomic)
            stale = {failure.row for failure in failed}
            for tablet_id, request in sorted(requests.items()):
                self._write(tablet_id, request, timeout_seconds)
                if request.memory_bytes[1]:
                    flush_when_needed(self.store, tablet_id, *request.memory_bytes)
                timestamp = max(timestamp, request.timestamp)
                counts = request.counts if counts is NO_COUNTS else counts + request.counts
                failed += request.failures(self.store.name)
                if request.outcomes:
                    outcomes.append((request.positions, request.outcomes))
                if request.is_stale:
                    stale.update(request.positions)
            newest = manifest
            if stale and not is_last:
                newest = self._newest(manifest, must_exist=len(stale) == len(operations))
            if newest is manifest:
                failures += failed
                break
            failures = [failure for failure in failed if failure.row not in stale]
            manifest, rows = newest, sorted(stale)
        failures.sort(key=lambda failure: failure.row)
        self.store.metrics.rows_inserted += counts.inserted
        self.store.metrics.rows_updated += counts.updated
        self.store.metrics.rows_deleted += counts.deleted
        self.store.metrics.rows_ignored += counts.ignored
        return RowWriteResult(timestamp, counts, failures, outcomes)

    def _newest(self, planned: Manifest, *, must_exist: bool) -> Manifest:
        try:
            return self.store.newest()
        except KuduliteError:
            if must_exist:
                raise
            return planned

    def _write(self, tablet_id: str, request: WriteRequest, timeout_seconds: float | None) -> None:
        """Write the request in this thread's turn, unless another thread has written it by then.

        The holder of the turn takes all waiting requests and writes them under the tablet's lock.
        An error is that of all requests taken; before any is taken, it is that of its own request
        alone, because the others may have longer to wait.
        """
        environment, key = self.store.environment, self.store.tablet_key(tablet_id)
        if timeout_seconds is None:
            timeout_seconds = environment.lock_timeout_seconds
        deadline = time.monotonic() + timeout_seconds
        queues = environment.row_queues
        queue = queues.get(key) or queues.setdefault(key, RowQueue())
        taken: list[WriteRequest] = []
        queue.add(request)
        try:
            self._wait_for_turn(queue, request, timeout_seconds)
            if request not in queue:
                return
            kept_lock = queue.lock
            lock = kept_lock or self.store.lock(tablet_id, stays_open=True)
            queue.lock = None  # until all is written: an interrupt must not leave a taken lock
            try:
                lock.timeout_seconds = max(0.0, deadline - time.monotonic())
                with lock:
                    lock.announce("row write")
                    taken = queue.take_all()
                    tablet_write = TabletWrite(self.store, tablet_id, lock)
                    for group in groups_of(taken):
                        tablet_write.run(group)
            except BaseException:
                lock.close()
                raise
            # Rows in memory will be flushed, which drops the queue and closes the lock's file.
            if kept_lock or any(each.memory_bytes[1] for each in taken):
                queue.lock = lock
        except KuduliteError as error:
            for each in taken or [request]:
                each.error = each.error if each.is_done else error
            # Without a lock file the tablet does not exist: its range or the table was dropped.
            is_gone = isinstance(error, StorageError) and error.errno == errno.ENOENT
            request.is_stale = request.is_stale or (is_gone and not taken)
        finally:
            # Only the lock knows whether this thread holds it; KeyboardInterrupt may arrive between
            # acquire and here.
            try:
                queue.turn.release()
            except RuntimeError:
                pass
            queue.discard(request)

    def _wait_for_turn(
        self, queue: RowQueue, request: WriteRequest, timeout_seconds: float
    ) -> None:
        if queue.turn.acquire(timeout=min(timeout_seconds, threading.TIMEOUT_MAX)):
            return
        if queue.discard(request):
            raise LockTimeoutError(
                f"table {self.store.name!r}: waited {timeout_seconds:g} s for other threads of this"
                " process that write to the same tablet; try again later, or wait longer"
            )
        queue.turn.acquire()  # another thread is writing it

    def _plan(
        self,
        manifest: Manifest,
        operations: Sequence[RowOperation],
        rows: Sequence[int],
        is_atomic: bool,
    ) -> tuple[dict[str, WriteRequest], list[RowWriteFailure]]:
        """Encode the keys of some operations and sort them by tablet, keeping their order.

        Also return the operations that have no place in `manifest`.
        """
        schema = manifest.schema
        failures = _moved_rows(self.store.name, schema, operations, rows)
        if failures:
            rows = sorted(set(rows).difference(failure.row for failure in failures))
        required = set(schema.key_names)
        of_insert = required - {schema.auto_incrementing}  # the tablet's lock holder numbers it
        # An operation lacks a key column that was renamed since it was made.
        if schema.auto_incrementing is None:
            fitting = [row for row in rows if required <= operations[row].values.keys()]
        else:
            fitting = [
                row
                for row in rows
                if (of_insert if operations[row].operation.is_insert else required)
                <= operations[row].values.keys()
            ]
        failures += [
            RowWriteFailure(row, RowError.REASON_INVALID) for row in set(rows).difference(fitting)
        ]
        keys, numbers = _keys_and_tablets(manifest, [operations[row] for row in fitting])
        requests: dict[str, WriteRequest] = {}
        for row, key, number in zip(fitting, keys, numbers, strict=True):
            if number < 0:
                failures.append(RowWriteFailure(row, RowError.REASON_NO_PARTITION))
                continue
            tablet_id = manifest.placed_tablets[number].id
            request = requests.get(tablet_id)
            if request is None:
                request = requests[tablet_id] = WriteRequest(manifest, is_atomic)
            request.positions.append(row)
            request.operations.append(operations[row])
            request.keys.append(key)
        if is_atomic and len(requests) + bool(failures) > 1:
            # They were of one tablet when the caller looked.
            error = altered_error(self.store.name)
            return {}, [RowWriteFailure(row, str(error), error) for row in rows]
        return requests, failures


def _moved_rows(
    table: str, schema: Schema, operations: Sequence[RowOperation], rows: Sequence[int]
) -> list[RowWriteFailure]:
    """Return the failures of operations of which a name means no column or another one now."""
    given = (operations[row].schema for row in rows)
    schemas = {id(s): s for s in given if s is not None and s is not schema}
    moved = {number: names for number, s in schemas.items() if (names := moved_names(s, schema))}
    failures = []
    for row in rows if moved else ():
        names = moved.get(id(operations[row].schema), {})
        name = next((name for name in operations[row].values if name in names), None)
        if name is not None:
            error = SchemaError(
                f"table {table!r}: column {name!r} of a row {names[name]}; nothing of the row was"
                " written: make the operation again"
            )
            failures.append(RowWriteFailure(row, str(error), error))
    return failures


def _keys_and_tablets(
    manifest: Manifest, operations: Sequence[RowOperation]
) -> tuple[list[bytes], list[int]]:
    schema, partition = manifest.schema, manifest.partition
    names = schema.key_names
    if len(operations) < LOCATE_ARRAY_MIN:
        keys, places, encode = [], [], schema.key_encoder
        for operation in operations:
            values = operation.values
            key = encode([values.get(name, 0) for name in names])  # 0: an id that is to come
            keys.append(key)
            places.append(partition.tablet_of_key(values, key))
        return keys, places
    fields = [(column.name, column.type.arrow) for column in schema.key_columns]
    array = pa.array([operation.values for operation in operations], pa.struct(fields))
    columns = {name: array.field(at) for at, name in enumerate(names)}
    if schema.auto_incrementing is not None:
        columns[names[-1]] = columns[names[-1]].fill_null(0)
    encoded = encode_keys(list(columns.values()), schema.key_types)
    return encoded.to_list(), partition.tablet_index(columns, len(operations)).tolist()


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
        if manifest.schema.auto_incrementing is not None:
            last = last_id_of(entry, memory)
            self._number(manifest.schema.auto_incrementing, last, operations, keys)
        locations = memory.locate(keys)
        exists = [location is not None for location in locations]
        stamps = entry.timestamp, memory.timestamp_max, manifest.schema_since
        used = max(self.lock.safe_timestamp, manifest.versions.timestamp, *stamps)
        applier = memory.applier
        effects = applier.apply(operations, keys, exists)
        try:
            encoded = self._record(applier, effects, used)
        except (RecordSizeError, pa.ArrowCapacityError) as error:
            self._write_apart(requests, error)
            return
        except (pa.ArrowException, ValueError):
            effects = applier.apply(operations, keys, exists, applier.misfits(operations))
            encoded = self._record(applier, effects, used)
        is_refused = requests[0].is_atomic and effects.refusals(0, len(operations))
        if encoded is None or is_refused:
            _set_results(requests, effects, used, is_written=not is_refused)
            return
        record, content = encoded
        end = self._append(memory, content)
        self._note_end(memory, end)
        with suppress(StorageError):  # a reader that needs it advances it under the lock
            self.lock.advance_safe_timestamp(record.timestamp)
        changed = [position for _, _, position in effects.changes]
        memory.apply(
            record,
            [keys[position] for position in changed],
            [locations[position] for position in changed],
            end,
        )
        requests[0].memory_bytes = memory.growth()
        _set_results(requests, effects, record.timestamp, is_written=True)

    def _write_apart(self, requests: Sequence[WriteRequest], error: Exception) -> None:
        """Write requests that are too large for one record one by one; refuse one that is alone."""
        if len(requests) > 1:
            for request in requests:
                self.run([request])
            return
        requests[0].is_done = True
        requests[0].error = UsageError(
            f"table {self.store.name!r}: {len(requests[0].operations)} operations on tablet"
            f" {self.tablet_id} are too large for one write to its log: {error}; nothing of them is"
            " written: flush fewer rows at once, and write larger rows with `Table.upsert` of a"
            " batch, which does not use the log"
        )

    def _number(
        self, name: str, last: int, operations: list[RowOperation], keys: list[bytes]
    ) -> None:
        """Put ids into the inserts among `operations` and their `keys`, after the id `last`.

        Operations are replaced, not changed: one that fails may be written again.
        """
        for position, operation in enumerate(operations):
            if operation.operation.is_insert:
                last = next_id(last, self.store.name, self.tablet_id)
                values = operation.values | {name: last}
                operations[position] = RowOperation(operation.operation, values)
                keys[position] = with_id(keys[position], last)
            elif operation.operation.is_upsert:
                last = max(last, operation.values[name])

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

    def _append(self, memory: MemStores, content: bytes) -> WalPosition:
        """Append a record to the tablet's log, durably; return where the log ends then."""
        if memory.log is None or memory.log.end != memory.end:
            folder = memory.base.wal_folder
            memory.log = WalWriter(
                self.store.file_system, folder, memory.end, padding_bytes=_PADDING_BYTES
            )
        metrics, begin = self.store.metrics, time.perf_counter()
        end = memory.log.append([content])
        seconds = time.perf_counter() - begin
        metrics.log_writes += 1
        metrics.log_bytes += len(content)
        metrics.log_write_seconds += seconds
        if seconds > SLOW_LOG_SECONDS:
            warn_of_slow(self.store.name, "an append to the log with its fsync", seconds)
        return end

    def _note_end(self, memory: MemStores, end: WalPosition) -> None:
        """Advance the durable end over the record just appended, or take the record back.

        Raises StorageError, which says whether the rows are written.
        """
        try:
            self.lock.set_wal_end(end.segment, end.offset)
        except StorageError as error:
            assert memory.log is not None
            try:
                memory.log.take_back()
            except StorageError as second:
                raise StorageError(
                    error.errno or 0,
                    f"table {self.store.name!r}: the rows are durable in the log of tablet"
                    f" {self.tablet_id}, but {error.strerror}; nor can they be taken back:"
                    f" {second.strerror}; they are there when the disk is: read before you write"
                    " them again",
                ) from error
            raise


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
            request.outcomes = effects.outcomes[start:stop]
        request.error = None
        request.is_done = True
        start = stop
