"""Group commit within a process: who waits for the same tablet is written by the first of them.

    add(mine); with turn: if mine is not done yet, take_all() and write them together
    discard(mine) at the end, in case that an error or an interrupt came before the turn

Threads: any. `turn` is held while writing and comes before the tablet's lock; the mutex protects
the list and is a leaf. A queue may be replaced by a new one while threads use it: those of each
have a tablet lock of their own, and so take turns as processes do.
"""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from kudulite.fs.lock import TabletLock

T = TypeVar("T")


class RowQueue(Generic[T]):
    """What the threads of one process want written to one tablet."""

    def __init__(self) -> None:
        # One that knows its thread: who was interrupted may let go of it without having it.
        self.turn = threading.RLock()
        # Of this process's last write, its file still open; taken away by whose turn it is.
        self.lock: TabletLock | None = None
        self._mutex = threading.Lock()
        self._waiting: list[T] = []

    def add(self, item: T) -> None:
        """Put an item at the end."""
        with self._mutex:
            self._waiting.append(item)

    def take_all(self) -> list[T]:
        """Take all waiting items, in order."""
        with self._mutex:
            found, self._waiting = self._waiting, []
            return found

    def discard(self, item: T) -> bool:
        """Take an item off the list; False when somebody has taken it."""
        if not self._waiting:  # as mostly: it is replaced, never changed to be empty
            return False
        with self._mutex:
            rest = [other for other in self._waiting if other is not item]
            was_there = len(rest) < len(self._waiting)
            self._waiting = rest
        return was_there
