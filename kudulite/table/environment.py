"""The environment of a table: the parts that all tables of a client share.

A client makes one `Environment` and hands it down; `default_environment` is the one of the process.
Two parts are threads that work for others. `BackgroundWork` runs each piece once, when it is due.
`RowQueue` lets the first thread that gets the turn write the requests of all that wait:

    add(mine); with turn: if mine still waits, take_all() and write them together
    discard(mine) at the end, in case an error or an interrupt came before the turn

**Threads**: any may call. One daemon thread runs while pieces wait, so nothing may rely on work
being done before the process ends. The lock of its condition protects the pieces; it is a leaf and
is not held while a piece runs. After a fork the child begins with no pieces: the parent does what
the parent has scheduled. A queue's `turn` is taken before the tablet's lock and held while writing;
its mutex protects the list and is a leaf. A queue may be replaced while threads use it: the threads
of each queue have a tablet lock of their own, and so take turns as processes do.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from kudulite.basefile.block_cache import BlockCache, block_cache_bytes
from kudulite.errors import KuduliteError, RetryableError
from kudulite.fs.file_system import FileSystem
from kudulite.fs.lock import TabletLock
from kudulite.model.hybrid_time import Clock
from kudulite.table.manifest import Manifest
from kudulite.table.metrics import TableMetrics
from kudulite.tablet.mem_stores import MemStores
from kudulite.tablet.operation import Outcome
from kudulite.tablet.row_effects import NO_COUNTS, RowOperation, RowWriteFailure, WriteCounts
from kudulite.tablet.tablet import Superblock

RETRY_SECONDS = 10.0
SMALL_WRITE_ROWS_MAX = 1000
FLUSH_BYTES = 64 << 20

TabletKey = tuple[str, str, int]

_log = logging.getLogger(__name__)


@dataclass
class _Piece:
    """Work that is due at `due`, in seconds of the monotonic clock."""

    work: Callable[[], object]
    due: float


class BackgroundWork:
    """Pieces of work by key; the same key is the same piece, at the earlier of its times."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """`now` returns seconds; a test that advances it calls `schedule` to wake the thread."""
        self._now = now
        self._begin()

    def _begin(self) -> None:
        self._process_id = os.getpid()
        self._changed = threading.Condition()
        self._pieces: dict[Hashable, _Piece] = {}
        self._running: Hashable | None = None
        self._thread: threading.Thread | None = None

    def schedule(self, key: Hashable, work: Callable[[], object], delay_seconds: float) -> None:
        """Have `work` called in `delay_seconds`.

        An error is logged and the work is tried again later.
        """
        due = self._now() + delay_seconds
        with self._of_this_process():
            known = self._pieces.get(key)
            if known is None or due < known.due:
                self._pieces[key] = _Piece(work, due)
                self._changed.notify_all()
            if self._thread is None:
                self._thread = self._started()

    def _started(self) -> threading.Thread | None:
        """Start the thread, under the lock; if it cannot start, the next piece starts it.

        The caller has done its own work, which must not fail because of this.
        """
        thread = threading.Thread(target=self._run, name="kudulite", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the limit is reached, or the interpreter ends
            _log.info("background work waits for a thread: %s", error)
            return None
        return thread

    def is_scheduled(self, key: Hashable) -> bool:
        """Whether a thread waits for the piece's time, as far as is known without the lock."""
        is_waited_for = self._thread is not None and key in self._pieces
        return is_waited_for and self._process_id == os.getpid()

    def run_now(self, is_wanted: Callable[[Hashable], bool]) -> None:
        """Do the pieces with such keys in the caller's thread; one that runs already is waited for.

        Raises the error of the first piece that fails; it and those behind it stay scheduled.
        A piece must not call this.
        """
        with self._of_this_process():
            self._changed.wait_for(lambda: self._running is None or not is_wanted(self._running))
            wanted = {key: piece for key, piece in self._pieces.items() if is_wanted(key)}
            for key in wanted:
                del self._pieces[key]
        try:
            while wanted:
                key = next(iter(wanted))
                wanted[key].work()
                del wanted[key]
        finally:
            for key, piece in wanted.items():
                self.schedule(key, piece.work, RETRY_SECONDS)

    def _of_this_process(self) -> threading.Condition:
        """Return the condition; a fork takes the list along, but not the thread, and any lock."""
        if self._process_id != os.getpid():
            self._begin()
        return self._changed

    def _run(self) -> None:
        while (found := self._next()) is not None:
            key, piece = found
            try:
                piece.work()
            # Whatever the error is, this thread must still run the other pieces.
            except Exception as error:
                _log.warning("background work, tried again in %g s: %s", RETRY_SECONDS, error)
                self.schedule(key, piece.work, RETRY_SECONDS)
            finally:
                with self._changed:
                    self._running = None
                    self._changed.notify_all()

    def _next(self) -> tuple[Hashable, _Piece] | None:
        """Wait for the next piece that is due and take it off the list; None ends the thread."""
        with self._changed:
            while self._pieces:
                key, piece = min(self._pieces.items(), key=lambda item: item[1].due)
                wait_seconds = piece.due - self._now()
                if wait_seconds <= 0:
                    self._running = key
                    return key, self._pieces.pop(key)
                self._changed.wait(wait_seconds)
            self._thread = None
            return None


@dataclass(eq=False, slots=True)
class WriteRequest:
    """The operations of one caller on one tablet, as `planned` has it, and their result.

    `positions` are the operations' positions in the caller's list, `refusals` are (position here,
    RowError reason). `is_done`: there is a result or an error. A request that was taken off the
    queue and has neither was interrupted. `is_stale`: nothing was written because the table is not
    as it was planned for. An atomic request is written whole or not at all.
    """

    planned: Manifest
    is_atomic: bool
    error: KuduliteError | None = None
    positions: list[int] = field(default_factory=list)
    operations: list[RowOperation] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    is_done: bool = False
    is_stale: bool = False
    timestamp: int = 0
    counts: WriteCounts = NO_COUNTS
    outcomes: Sequence[Outcome] = ()
    refusals: Sequence[tuple[int, str]] = ()
    memory_bytes: tuple[int, int] = (0, 0)

    def failures(self, table: str) -> list[RowWriteFailure]:
        """Return the operations that were not written, by their positions in the caller's list."""
        error = self.error
        if error is None and not self.is_done:
            error = RetryableError(
                f"table {table!r}: the thread that wrote these rows together with its own was"
                " interrupted; read them to see whether they are there"
            )
        if error is not None:
            return [RowWriteFailure(row, str(error), error) for row in self.positions]
        return [RowWriteFailure(self.positions[at], reason) for at, reason in self.refusals]


class RowQueue:
    """Requests of the threads of one process to write to one tablet."""

    def __init__(self) -> None:
        # An RLock knows its owner: a thread may release it after an interrupt without knowing
        # whether it was acquired.
        self.turn = threading.RLock()
        # The lock of this process's last write, its file still open; used by the turn's holder.
        self.lock: TabletLock | None = None
        self._mutex = threading.Lock()
        self._waiting: list[WriteRequest] = []

    def __contains__(self, request: WriteRequest) -> bool:
        """Whether the request still waits."""
        with self._mutex:
            return request in self._waiting

    def add(self, request: WriteRequest) -> None:
        """Put a request at the end."""
        with self._mutex:
            self._waiting.append(request)

    def take_all(self) -> list[WriteRequest]:
        """Take all waiting requests, in order."""
        with self._mutex:
            taken, self._waiting = self._waiting, []
            return taken

    def discard(self, request: WriteRequest) -> bool:
        """Take a request off the list; False when another thread has taken it."""
        if not self._waiting:  # the usual case; the list never becomes empty in place
            return False
        with self._mutex:
            left = [other for other in self._waiting if other is not request]
            was_waiting = len(left) < len(self._waiting)
            self._waiting = left
        return was_waiting


@dataclass(frozen=True)
class Environment:
    """The parts that a client hands down to all tables it opens."""

    file_system: FileSystem
    clock: Clock
    cache: BlockCache
    lock_timeout_seconds: float = 60.0
    # Arrow batches up to this many rows, all of one tablet, go through its log (bulk_write.py).
    small_write_rows_max: int = SMALL_WRITE_ROWS_MAX
    # Memory of a tablet's unflushed rows from which on it is flushed.
    flush_bytes: int = FLUSH_BYTES
    # By `TableStore.tablet_key`: the newest memory with its superblock's name, and the threads
    # that wait to write rows. `TableStore.forget` removes both with the superblock.
    memories: dict[TabletKey, tuple[str, MemStores | None]] = field(default_factory=dict)
    row_queues: dict[TabletKey, RowQueue] = field(default_factory=dict)
    metrics: dict[str, TableMetrics] = field(default_factory=dict)
    # By the folder of its manifests: the newest version of a table that any of its objects has
    # seen. By `TableStore.tablet_key`: the last opened superblock of a tablet that changed since.
    manifests: dict[str, Manifest] = field(default_factory=dict)
    replaced: dict[TabletKey, Superblock] = field(default_factory=dict)
    # Sessions of this process that have held rows of its tables, by `id`.
    sessions: WeakValueDictionary[int, object] = field(default_factory=WeakValueDictionary)
    background: BackgroundWork = field(default_factory=BackgroundWork)
    # Whether tablets are maintained after this process wrote to them, and the thread that does it.
    is_maintaining: bool = False
    maintenance: BackgroundWork = field(default_factory=BackgroundWork)


@functools.cache
def default_environment() -> Environment:
    """Return the process's environment, made at first use.

    Scan tokens and bulk writes that arrive from another process open their table with it.
    """
    return Environment(FileSystem(), Clock(), BlockCache(block_cache_bytes()))
