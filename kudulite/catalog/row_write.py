"""Small writes: the operations of a flush, row by row, through each tablet's write-ahead log.

    1  take the tablet's lock, catch up on what other processes appended
    2  look the keys up in memory and on disk; play the operations: one change per key
    3  timestamp = max(now, `last` + 1), one for the whole flush in this tablet
    4  append one frame, fsync                        durable
    5  lift the durable end and `last`, apply to memory    visible

A refused row leaves the others applied. Each tablet is written for itself: there is no atomicity
over tablets here, bulk writes have it (commit.py).

Threads: any number may use one `RowWriter`. Those that wait for the same tablet are written by the
first of them that gets its lock, together, in the order in which they came: one timestamp, one
frame, one fsync (row_queue.py).

Source: Kudu ops/write_op.cc; for group commit, its log's append thread (consensus/log.cc).
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from kudulite.catalog.flush_policy import flush_when_needed
from kudulite.catalog.manifest import Manifest
from kudulite.catalog.row_queue import RowQueue
from kudulite.catalog.table_store import TableStore
from kudulite.catalog.tablet_write import Flush, TabletWrite, altered_error, groups_of
from kudulite.errors import (
    KuduliteError,
    LockTimeoutError,
    RetryableError,
    RowError,
    StorageError,
)
from kudulite.model.encoded_key import encode_keys
from kudulite.tablet.collapse import NO_COUNTS
from kudulite.tablet.mem_stores import LOCATE_ARRAY_MIN
from kudulite.tablet.row_operation import RowOperation, RowWriteFailure, RowWriteResult


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
        `is_atomic` all are written or none; they must be of one tablet. Raises nothing for single
        rows or tablets: they are failures of the result.
        """
        planned = self.store.last_seen()  # whether it is the newest, is seen under the lock
        result, stale = self._write_planned(planned, operations, timeout_seconds, is_atomic)
        if not stale:
            return result
        try:
            newest = self.store.newest()
        except KuduliteError:
            if len(stale) == len(operations):
                raise
            return result
        if newest is planned:
            return result
        left = [operations[at] for at in stale]
        again, _ = self._write_planned(newest, left, timeout_seconds, is_atomic)
        return _joined(result, again, stale)

    def _write_planned(
        self,
        manifest: Manifest,
        operations: Sequence[RowOperation],
        timeout_seconds: float | None,
        is_atomic: bool,
    ) -> tuple[RowWriteResult, list[int]]:
        """Write as planned for `manifest`; also return which rows another plan might write."""
        flushes, failures = self._split(manifest, operations, is_atomic)
        stale = [failure.row for failure in failures]
        if is_atomic and len(flushes) + bool(failures) > 1:
            # They were of one tablet when the caller looked.
            error = altered_error(self.store.name)
            rows = range(len(operations))
            failures = [RowWriteFailure(row, str(error), error) for row in rows]
            return RowWriteResult(0, NO_COUNTS, failures), list(rows)
        timestamp, counts = 0, NO_COUNTS
        for tablet_id in sorted(flushes) if len(flushes) > 1 else flushes:
            flush = flushes[tablet_id]
            self._write(tablet_id, flush, timeout_seconds)
            if flush.memory_bytes[1]:
                flush_when_needed(self.store, tablet_id, *flush.memory_bytes)
            timestamp = max(timestamp, flush.timestamp)
            counts = flush.counts if counts is NO_COUNTS else counts + flush.counts
            if flush.is_stale:
                stale += flush.positions
            if flush.error is None and not flush.is_told:
                flush.error = _interrupted(self.store.name)
            if flush.error is not None:
                reason = str(flush.error)
                failures += [RowWriteFailure(row, reason, flush.error) for row in flush.positions]
            failures += [RowWriteFailure(flush.positions[at], why) for at, why in flush.refusals]
        failures.sort(key=lambda failure: failure.row)
        return RowWriteResult(timestamp, counts, failures), sorted(stale)

    def _write(self, tablet_id: str, flush: Flush, timeout_seconds: float | None) -> None:
        """Have the flush written: by this thread, or by the one whose turn it is."""
        if timeout_seconds is None:
            timeout_seconds = self.store.environment.lock_timeout_seconds
        deadline = time.monotonic() + timeout_seconds
        queues, key = self.store.environment.row_queues, self.store.tablet_key(tablet_id)
        queue = queues.get(key) or queues.setdefault(key, RowQueue())
        queue.add(flush)
        try:
            self._wait_for_turn(queue, flush, timeout_seconds)
            if not flush.is_done:
                self._write_waiting(queue, tablet_id, deadline)
        except KuduliteError as error:
            flush.error = error  # of the wait; the others wait as long as they were told to
            # Without a lock file the tablet is gone: its range was dropped, or the table.
            is_gone = isinstance(error, StorageError) and error.errno == errno.ENOENT
            flush.is_stale = is_gone and not flush.is_done
        finally:
            # Whether it was this thread's only the turn knows: an interrupt may come right after.
            try:
                queue.turn.release()
            except RuntimeError:
                pass
            queue.discard(flush)

    def _write_waiting(self, queue: RowQueue[Flush], tablet_id: str, deadline: float) -> None:
        """Write all that waits, in this thread's turn. Raises LockTimeoutError, StorageError."""
        lock = queue.lock or self.store.lock(tablet_id, stays_open=True)
        is_kept = queue.lock is not None
        queue.lock = None  # until all went well: an interrupt must not leave it taken
        try:
            lock.timeout_seconds = max(0.0, deadline - time.monotonic())
            with lock:
                lock.announce("row write")
                flushes = queue.take_all()
                self._write_all(TabletWrite(self.store, tablet_id, lock), flushes)
        except BaseException:
            lock.close()
            raise
        # What is in memory now will be flushed, and the lock's file closed with the queue.
        if is_kept or any(flush.memory_bytes[1] for flush in flushes):
            queue.lock = lock

    def _wait_for_turn(self, queue: RowQueue, flush: Flush, timeout_seconds: float) -> None:
        if queue.turn.acquire(timeout=min(timeout_seconds, threading.TIMEOUT_MAX)):
            return
        if queue.discard(flush):
            raise LockTimeoutError(
                f"table {self.store.name!r}: waited {timeout_seconds:g} s for other threads of this"
                " process that write to the same tablet; try again later, or wait longer"
            )
        queue.turn.acquire()  # somebody is writing it

    def _write_all(self, write: TabletWrite, flushes: Sequence[Flush]) -> None:
        """Write the flushes under the lock; each one is written, or keeps or gets its error."""
        try:
            for group in groups_of(flushes):
                write.run(group)
        except KuduliteError as error:
            for flush in flushes:
                flush.error = flush.error if flush.is_done else error
        finally:
            for flush in flushes:
                flush.is_done = True

    def _split(
        self, manifest: Manifest, operations: Sequence[RowOperation], is_atomic: bool
    ) -> tuple[dict[str, Flush], list[RowWriteFailure]]:
        """Encode the keys and sort the operations by tablet, keeping their order."""
        required = set(manifest.schema.key_names)
        fitting, failures = list(range(len(operations))), []
        if not all(required <= operation.values.keys() for operation in operations):
            # A key column was renamed since the operation was made.
            fitting = [at for at in fitting if required <= operations[at].values.keys()]
            odd = sorted(set(range(len(operations))) - set(fitting))
            failures = [RowWriteFailure(at, RowError.REASON_INVALID) for at in odd]
            operations_left = [operations[at] for at in fitting]
            keys, numbers = _keys_and_tablets(manifest, operations_left)
        else:
            keys, numbers = _keys_and_tablets(manifest, operations)
        flushes: dict[str, Flush] = {}
        for position, key, number in zip(fitting, keys, numbers, strict=True):
            if number < 0:
                failures.append(RowWriteFailure(position, RowError.REASON_NO_PARTITION))
                continue
            tablet_id = manifest.tablets[number].id
            flush = flushes.get(tablet_id)
            if flush is None:
                flush = Flush(manifest, is_atomic)
                flushes[tablet_id] = flush
            flush.positions.append(position)
            flush.operations.append(operations[position])
            flush.keys.append(key)
        return flushes, failures


def _joined(
    first: RowWriteResult, again: RowWriteResult, positions: Sequence[int]
) -> RowWriteResult:
    """Return the outcome of a write whose operations at `positions` were written once more."""
    repeated = set(positions)
    failures = [failure for failure in first.failures if failure.row not in repeated]
    failures += [replace(failure, row=positions[failure.row]) for failure in again.failures]
    return RowWriteResult(
        max(first.timestamp, again.timestamp),
        first.counts + again.counts,
        sorted(failures, key=lambda failure: failure.row),
    )


def _interrupted(table: str) -> RetryableError:
    return RetryableError(
        f"table {table!r}: the thread that wrote these rows together with its own was interrupted;"
        " read them to see whether they are there"
    )


def _keys_and_tablets(
    manifest: Manifest, operations: Sequence[RowOperation]
) -> tuple[list[bytes], list[int]]:
    schema, partition = manifest.schema, manifest.partition
    names = schema.key_names
    if len(operations) < LOCATE_ARRAY_MIN:
        keys, places, encode = [], [], schema.key_encoder
        for operation in operations:
            values = operation.values
            key = encode([values[name] for name in names])
            keys.append(key)
            places.append(partition.tablet_of_key(values, key))
        return keys, places
    fields = [(column.name, column.type.arrow) for column in schema.key_columns]
    array = pa.array([operation.values for operation in operations], pa.struct(fields))
    columns = {name: array.field(at) for at, name in enumerate(names)}
    encoded = encode_keys(list(columns.values()), schema.key_types)
    return encoded.to_list(), partition.tablet_index(columns, len(operations)).tolist()
