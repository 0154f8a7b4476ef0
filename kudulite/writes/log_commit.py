"""Commits through the table's log: the turn of a thread, the append, and what becomes visible.

    1  wait for the turn among the threads of this process; begin one of the table's turns
    2  for each write of the threads that wait: make its changes of the newest state
    3  timestamp = max(now, safe timestamp + 1), one for each commit
    4  append the commit with the rows of all tablets    durable, and visible to readers
    5  apply it to memory                                visible in this process, too

Where another writer comes first, steps 2 to 4 are done again on the state that it has left.

**Threads**: group commit: among threads that wait for the same table, the first to get the turn
does all their writes, in the order of arrival (table/write_queue.py).

**Source**: Kudu ops/write_op.cc; for group commit, the append thread of its log (consensus/log.cc).
"""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from kudulite.chain.manifest import TabletEntry
from kudulite.errors import (
    CorruptionError,
    KuduliteError,
    LockTimeoutError,
    StorageError,
    TableNotFoundError,
)
from kudulite.model.key_array import KeyArray
from kudulite.table.metrics import SLOW_LOG_SECONDS, warn_of_slow
from kudulite.table.present import Present
from kudulite.table.table_log import LostRaceError, Turn
from kudulite.table.table_memory import SupersededError
from kudulite.table.table_store import TableStore
from kudulite.table.write_queue import QueuedWrite, WriteQueue, groups_of
from kudulite.tablet.mem_stores import AppendedRecord, Location, MemStores
from kudulite.upkeep.maintenance_schedule import flush_when_needed
from kudulite.wal.commit_format import CommitInfo, LoggedCommit, encode_commit
from kudulite.wal.record_format import Record, encode_rows
from kudulite.wal.segment import LogPosition


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
        kept = queue.table_turn
        turn = kept or store.turn(stays_open=True)
        queue.table_turn = None  # until all is written: an interrupt must not leave a taken lock
        try:
            turn.timeout_seconds = max(0.0, deadline - time.monotonic())
            with turn:
                turn.announce("row write")
                taken = queue.take_all()
                for group in groups_of(taken):
                    _write_group(turn, group)
        except BaseException:
            turn.close()
            raise
        # Rows in memory will be flushed, which drops the queue and closes the lock's file.
        if kept or any(each.memory_bytes[1] for each in taken):
            queue.table_turn = turn
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


def _write_group(turn: Turn, group: Sequence[QueuedWrite]) -> None:
    """Write a group, in further turns where another process comes first."""
    while left := [write for write in group if not write.is_done]:
        try:
            _attempt(turn, left)
            return
        except (LostRaceError, SupersededError):
            turn.renew()


def _attempt(turn: Turn, left: Sequence[QueuedWrite]) -> None:
    try:
        left[0].write(turn, left)
    except (CorruptionError, StorageError) as error:
        # Files may be missing where another writer came first.
        if isinstance(error, CorruptionError) or error.errno == errno.ENOENT:
            turn.check_is_first()
        raise


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
    """A commit on the state `found`, in a turn."""

    store: TableStore
    turn: Turn
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
        end = self._append([commit.content for commit in commits], commits[-1].timestamp)
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
        # Another thread may have given memory up between two commits of a group. Stores that have
        # not all of a tablet's changes read them from the log's rows when they are next used.
        for_tablet = Counter(stores.base.id for stores in appended)
        whole = [stores for stores in appended if for_tablet[stores.base.id] == 1]
        for stores in whole:
            stores.apply(appended[stores], end)
        return memory.growth(whole)

    def _append(self, contents: Sequence[bytes], timestamp: int) -> LogPosition:
        """Append commits to the table's log, durably; return where the log ends then."""
        metrics, begin = self.store.metrics, time.perf_counter()
        end = self.store.log.append(self.turn, self.found.memory, contents, timestamp)
        seconds = time.perf_counter() - begin
        metrics.log_writes += 1
        metrics.log_bytes += sum(map(len, contents))
        metrics.log_write_seconds += seconds
        if seconds > SLOW_LOG_SECONDS:
            warn_of_slow(self.store.name, "an append to the log with its fsync", seconds)
        return end
