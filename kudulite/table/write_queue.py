"""WriteQueue: the first thread that gets the turn does the writes of all that wait.

    add(mine); with turn: if mine still waits, take_all() and write them together
    discard(mine) at the end, in case an error or an interrupt came before the turn

**Threads**: any may call. A queue's `turn` is taken before the table's lock and held while
writing; its mutex protects the list and is a leaf. A queue may be replaced while threads use it:
the threads of each queue have a table lock of their own, and so take turns as processes do.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from kudulite.errors import KuduliteError, RetryableError
from kudulite.table.table_log import Turn


class QueuedWrite(ABC):
    """A write of one thread through the log, which another thread may do for it.

    `is_done`: there is a result or an error. One that was taken off the queue and has neither was
    interrupted. `is_stale`: nothing was written because the table is not as it was planned for.
    `memory_bytes` are those of the table's memory before and after it, where it has grown.
    """

    error: KuduliteError | None = None
    is_done = False
    is_stale = False
    memory_bytes = (0, 0)

    def failure(self, table: str) -> KuduliteError | None:
        """Return the error of the whole write, None where it has a result."""
        if self.error is None and not self.is_done:
            return RetryableError(
                f"table {table!r}: the thread that wrote these rows together with its own was"
                " interrupted; read them to see whether they are there"
            )
        return self.error

    @abstractmethod
    def write(self, turn: Turn, group: Sequence[Any]) -> None:
        """Write those of a group that are not done, of which this is the first, in a turn.

        Raises StorageError, CorruptionError, which are those of all writes that wait, and
        LostRaceError, after which the rest may be written in another turn.
        """


def groups_of(writes: Sequence[QueuedWrite]) -> list[list[QueuedWrite]]:
    """Put writes of a kind together where they follow each other: they may share an append."""
    return [list(group) for _, group in groupby(writes, key=type)]


class WriteQueue:
    """Writes of the threads of one process to one table."""

    def __init__(self) -> None:
        # An RLock knows its owner: a thread may release it after an interrupt without knowing
        # whether it was acquired.
        self.turn = threading.RLock()
        # That of this process's last write, its file still open; used by the holder of `turn`.
        self.table_turn: Turn | None = None
        self._mutex = threading.Lock()
        self._waiting: list[QueuedWrite] = []

    def __contains__(self, request: QueuedWrite) -> bool:
        """Whether the request still waits."""
        with self._mutex:
            return request in self._waiting

    def add(self, request: QueuedWrite) -> None:
        """Put a request at the end."""
        with self._mutex:
            self._waiting.append(request)

    def take_all(self) -> list[QueuedWrite]:
        """Take all waiting requests, in order."""
        with self._mutex:
            taken, self._waiting = self._waiting, []
            return taken

    def discard(self, request: QueuedWrite) -> bool:
        """Take a request off the list; False when another thread has taken it."""
        if not self._waiting:  # the usual case; the list never becomes empty in place
            return False
        with self._mutex:
            left = [other for other in self._waiting if other is not request]
            was_waiting = len(left) < len(self._waiting)
            self._waiting = left
        return was_waiting
