"""Work that a process does in the background: each piece once, when it is due.

Threads: any may call. One thread runs while there is something to wait for; it is a daemon, so
nothing may rely on the work being done before the process ends. A condition's lock protects the
list of pieces; it is a leaf and is not held while a piece runs.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from kudulite.errors import KuduliteError

RETRY_SECONDS = 10.0

_log = logging.getLogger(__name__)


@dataclass
class _Piece:
    """Work that is due at `due`, in seconds of the monotonic clock."""

    work: Callable[[], object]
    due: float


class BackgroundWork:
    """Pieces of work by key; the same key is the same piece, at the earlier of its times."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pieces: dict[Hashable, _Piece] = {}
        self._thread: threading.Thread | None = None
        self._process_id = os.getpid()

    def schedule(self, key: Hashable, work: Callable[[], object], delay_seconds: float) -> None:
        """Have `work` called in `delay_seconds`.

        Where it raises a KuduliteError, that is logged and the work is tried again later.
        """
        due = time.monotonic() + delay_seconds
        with self._changed:
            if self._process_id != os.getpid():  # a fork takes the list along, but not the thread
                self._process_id, self._thread, self._pieces = os.getpid(), None, {}
            known = self._pieces.get(key)
            if known is None or due < known.due:
                self._pieces[key] = _Piece(work, due)
                self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kudulite", daemon=True)
                self._thread.start()

    def run_now(self, is_wanted: Callable[[Hashable], bool]) -> None:
        """Do the pieces with such keys in the caller's thread; raises what they raise."""
        with self._changed:
            wanted = [key for key in self._pieces if is_wanted(key)]
            pieces = [self._pieces.pop(key) for key in wanted]
        for piece in pieces:
            piece.work()

    def _run(self) -> None:
        while (found := self._next()) is not None:
            key, piece = found
            try:
                piece.work()
            except KuduliteError as error:
                _log.warning("background work, tried again in %g s: %s", RETRY_SECONDS, error)
                with self._changed:
                    piece.due = time.monotonic() + RETRY_SECONDS
                    self._pieces.setdefault(key, piece)

    def _next(self) -> tuple[Hashable, _Piece] | None:
        """Wait for the next piece that is due and take it off the list; None ends the thread."""
        with self._changed:
            while self._pieces:
                key, piece = min(self._pieces.items(), key=lambda item: item[1].due)
                wait_seconds = piece.due - time.monotonic()
                if wait_seconds <= 0:
                    return key, self._pieces.pop(key)
                self._changed.wait(wait_seconds)
            self._thread = None
            return None
