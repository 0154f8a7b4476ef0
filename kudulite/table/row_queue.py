"""RowQueue: the first thread that gets the turn writes the requests of all that wait.

    add(mine); with turn: if mine still waits, take_all() and write them together
    discard(mine) at the end, in case an error or an interrupt came before the turn

**Threads**: any may call. A queue's `turn` is taken before the tablet's lock and held while
writing; its mutex protects the list and is a leaf. A queue may be replaced while threads use it:
the threads of each queue have a tablet lock of their own, and so take turns as processes do.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from kudulite.chain.manifest import Manifest
from kudulite.errors import KuduliteError, RetryableError
from kudulite.storage.tablet_lock import TabletLock
from kudulite.tablet.operation import Outcome
from kudulite.tablet.row_effects import NO_COUNTS, RowOperation, RowWriteFailure, WriteCounts


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
