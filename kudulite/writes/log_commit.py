"""Commits through the table's log: the turn of a thread, the append, and what becomes visible.

    1  wait for the turn among the threads of this process; take the table's lock
    2  for each write of the threads that wait: make its changes of the newest state
    3  timestamp = max(now, safe timestamp + 1), one for each commit
    4  append the commit with the rows of all tablets, fsync            durable
    5  advance the durable end and the safe timestamp, apply to memory  visible

If the durable end cannot be advanced, the commit is cut off again, so the caller may write the rows
again. If that is impossible, too, the error says that the rows are durable.

**Threads**: group commit: among threads that wait for the same table, the first to get the turn
does all their writes, in the order of arrival (table/write_queue.py).

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

from kudulite.chain.manifest import TabletEntry
from kudulite.errors import KuduliteError, LockTimeoutError, StorageError, TableNotFoundError
from kudulite.model.key_array import KeyArray
from kudulite.storage.table_lock import TableLock
from kudulite.table.metrics import SLOW_LOG_SECONDS, warn_of_slow
from kudulite.table.present import Present
from kudulite.table.table_log import log_folder
from kudulite.table.table_memory import TableMemory
from kudulite.table.table_store import TableStore
from kudulite.table.write_queue import QueuedWrite, WriteQueue, groups_of
from kudulite.tablet.mem_stores import AppendedRecord, Location, MemStores
from kudulite.upkeep.maintenance_schedule import flush_when_needed
from kudulite.wal.commit_format import CommitInfo, LoggedCommit, encode_commit
from kudulite.wal.log_writer import LogWriter
from kudulite.wal.record_format import Record, encode_rows
from kudulite.wal.segment import LogPosition

_PADDING_BYTES = 64 << 10


def write_in_turn(store: TableStore, mine: QueuedWrite, timeout_seconds: float) -> None:
    """Do a write in this thread's turn, unless another thread has done it by then.

    The holder of the turn takes all waiting writes and does them under the table's lock. An error
    is that of all writes taken; before any is taken, it is that of its own write alone, because
    the others may have longer to wait.
    """
    _write_in_turn(store, mine, timeout_seconds)
    if mine.memory_bytes[1]:
        flush_when_needed(store, *mine.memory_bytes)


def _write_in_turn(store: TableStore, mine: QueuedWrite, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    queues, key = store.environment.write_queues, store.memory_key
    queue = queues.get(key) or queues.setdefault(key, WriteQueue())
    taken: list[QueuedWrite] = []
    queue.add(mine)
    try:
        _wait_for_turn(store, queue, mine, timeout_seconds)
        if mine not in queue:
            return
        kept_lock = queue.lock
        lock = kept_lock or store.lock(stays_open=True)
        queue.lock = None  # until all is written: an interrupt must not leave a taken lock
        try:
            lock.timeout_seconds = max(0.0, deadline - time.monotonic())
            with lock:
                lock.announce("row write")
                taken = queue.take_all()
                for group in groups_of(taken):
                    group[0].write(lock, group)
        except BaseException:
            lock.close()
            raise
        # Rows in memory will be flushed, which drops the queue and closes the lock's file.
        if kept_lock or any(each.memory_bytes[1] for each in taken):
            queue.lock = lock
    except KuduliteError as error:
        # Without a lock file the table is not there any more.
        has_no_lock = isinstance(error, StorageError) and error.errno == errno.ENOENT
        is_gone = (has_no_lock and not taken) or isinstance(error, TableNotFoundError)
        for each in taken or [mine]:
            if not each.is_done:
                each.error, each.is_stale = error, is_gone
    finally:
        # Only the lock knows whether this thread holds it; KeyboardInterrupt may arrive between
        # acquire and here.
        try:
            queue.turn.release()
        except RuntimeError:
            pass
        queue.discard(mine)


def _wait_for_turn(
    store: TableStore, queue: WriteQueue, mine: QueuedWrite, timeout_seconds: float
) -> None:
    if queue.turn.acquire(timeout=min(timeout_seconds, threading.TIMEOUT_MAX)):
        return
    if queue.discard(mine):
        raise LockTimeoutError(
            f"table {store.name!r}: waited {timeout_seconds:g} s for other threads of this"
            " process that write to the table; try again later, or wait longer"
        )
    queue.turn.acquire()  # another thread is writing it


@dataclass(frozen=True)
class TabletChanges:
    """The changes of a commit in one tablet: one for each of `keys`, which are at `locations`.

    `content` is the record as the log has it.
    """

    entry: TabletEntry
    memory: MemStores
    record: Record
    content: bytes
    keys: Sequence[bytes]
    locations: Sequence[Location | None]

    @staticmethod
    def of(
        entry: TabletEntry,
        memory: MemStores,
        record: Record,
        keys: KeyArray,
        locations: Sequence[Location | None],
    ) -> TabletChanges:
        """Return the changes of a record. Raises RecordSizeError."""
        return TabletChanges(entry, memory, record, encode_rows(record), keys.to_list(), locations)


@dataclass(frozen=True)
class EncodedCommit:
    """A commit as the log has it: the changes of all tablets at a timestamp."""

    content: bytes
    changes: Sequence[TabletChanges]
    timestamp: int
    info: CommitInfo | None

    @staticmethod
    def of(
        changes: Sequence[TabletChanges], timestamp: int, info: CommitInfo | None = None
    ) -> EncodedCommit:
        """Encode a commit. Raises RecordSizeError."""
        content = encode_commit(timestamp, {c.entry.id: c.content for c in changes}, info)
        return EncodedCommit(content, changes, timestamp, info)


@dataclass(frozen=True)
class LogCommit:
    """A commit on the state `found`, while the table's lock is held."""

    store: TableStore
    lock: TableLock
    found: Present

    def used_timestamp(self, tablets: Sequence[tuple[TabletEntry, MemStores]]) -> int:
        """Return the newest timestamp that these tablets, or the table, have used."""
        stamps = [max(entry.timestamp, memory.timestamp_max) for entry, memory in tablets]
        return max(self.found.timestamp, self.found.manifest.schema_since, *stamps)

    def write(self, commits: Sequence[EncodedCommit]) -> tuple[int, int]:
        """Append commits in the order of their timestamps, durably, and make them visible.

        Returns the bytes of the table's memory before and after them. Raises StorageError,
        CorruptionError.
        """
        memory = self.found.memory
        begin = memory.end
        end = self._append([commit.content for commit in commits])
        self._note_end(memory, end)
        with suppress(StorageError):  # a reader that needs it advances it under the lock
            self.lock.advance_safe_timestamp(commits[-1].timestamp)
        logged = []
        for commit in commits:
            parts = {c.entry.id: pa.py_buffer(c.content) for c in commit.changes}
            logged.append(LoggedCommit(commit.timestamp, commit.info, parts, end))
        memory.add(logged, begin, end)
        appended: dict[MemStores, list[AppendedRecord]] = {}
        for commit in commits:
            for c in commit.changes:
                record = AppendedRecord(c.record, c.keys, c.locations, len(c.content))
                appended.setdefault(c.memory, []).append(record)
        for stores, records in appended.items():
            stores.apply(records, end)
        return memory.growth(appended)

    def _append(self, contents: Sequence[bytes]) -> LogPosition:
        """Append commits to the table's log, durably; return where the log ends then."""
        memory = self.found.memory
        if memory.log is None or memory.log.end != memory.end:
            memory.log = LogWriter(
                self.store.storage,
                log_folder(self.store.folder),
                self.found.manifest.table_id,
                memory.end,
                padding_bytes=_PADDING_BYTES,
            )
        metrics, begin = self.store.metrics, time.perf_counter()
        end = memory.log.append(contents)
        seconds = time.perf_counter() - begin
        metrics.log_writes += 1
        metrics.log_bytes += sum(map(len, contents))
        metrics.log_write_seconds += seconds
        if seconds > SLOW_LOG_SECONDS:
            warn_of_slow(self.store.name, "an append to the log with its fsync", seconds)
        return end

    def _note_end(self, memory: TableMemory, end: LogPosition) -> None:
        """Advance the durable end over the commit just appended, or take the commit back.

        Raises StorageError, which says whether the rows are written.
        """
        try:
            self.lock.set_log_end(*end)
        except StorageError as error:
            assert memory.log is not None
            try:
                memory.log.take_back()
            except StorageError as second:
                raise StorageError(
                    error.errno or 0,
                    f"table {self.store.name!r}: the rows are durable in the log, but"
                    f" {error.strerror}; nor can they be taken back: {second.strerror}; they are"
                    " there when the disk is: read before you write them again",
                ) from error
            raise
