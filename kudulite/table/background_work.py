"""BackgroundWork: work that nobody waits for, in a thread of its own, and work shared by threads.

`BackgroundWork` runs each piece once, when it is due. `in_threads` runs one function over many
items, for a caller that waits.

**Threads**: any may call. One daemon thread runs while pieces wait, so nothing may rely on work
being done before the process ends. The lock of its condition protects the pieces; it is a leaf and
is not held while a piece runs. After a fork the child begins with no pieces: the parent does what
the parent has scheduled.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count, getpid
from typing import TypeVar

from kudulite.storage.storage import Storage

_log = logging.getLogger(__name__)
THREAD_COUNT = min(4, cpu_count() or 1)

Item = TypeVar("Item")
Result = TypeVar("Result")


def threads_for(storage: Storage) -> int:
    """Return how many threads should read and write files: more where they wait for a network."""
    return max(THREAD_COUNT, storage.requests_at_once)


def in_threads(
    purpose: str,
    work: Callable[[Item], Result],
    items: Collection[Item],
    thread_count: int = THREAD_COUNT,
    report: Callable[[int], None] = lambda done: None,
) -> list[Result]:
    """Return `work` of each item, in order; several run in parallel. `report` gets the number done.

    After an error no further item begins.
    """
    results: list[Result] = []
    with ThreadPoolExecutor(thread_count, thread_name_prefix=f"kudulite-{purpose}") as pool:
        for result in pool.map(work, items) if len(items) > 1 else map(work, items):
            results.append(result)
            report(len(results))
    return results


# After an error, then twice as long each time.
RETRY_SECONDS, _RETRY_SECONDS_MAX = 10.0, 640.0

TableKey = tuple[str, int]


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
        self._process_id = getpid()
        self._changed = threading.Condition()
        self._pieces: dict[Hashable, _Piece] = {}
        # How long pieces that fail wait before they are tried again.
        self._failed: dict[Hashable, float] = {}
        self._running: Hashable | None = None
        self._thread: threading.Thread | None = None

    def schedule(self, key: Hashable, work: Callable[[], object], delay_seconds: float) -> None:
        """Have `work` called in `delay_seconds`.

        After an error the work is tried again later, until it succeeds. The log has the first error
        and the success: what fails for an hour is one problem.
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
        return is_waited_for and self._process_id == getpid()

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
                self._note_success(key)
        finally:
            for key, piece in wanted.items():
                self.schedule(key, piece.work, RETRY_SECONDS)

    def _of_this_process(self) -> threading.Condition:
        """Return the condition; a fork takes the list along, but not the thread, and any lock."""
        if self._process_id != getpid():
            self._begin()
        return self._changed

    def _run(self) -> None:
        while (found := self._next()) is not None:
            key, piece = found
            try:
                piece.work()
                self._note_success(key)
            # Whatever the error is, this thread must still run the other pieces.
            except Exception as error:
                delay_seconds = min(
                    2 * self._failed.get(key, RETRY_SECONDS / 2), _RETRY_SECONDS_MAX
                )
                level = logging.INFO if key in self._failed else logging.WARNING
                self._failed[key] = delay_seconds
                text = "background work of %s, tried again in %g s: %s"
                _log.log(level, text, _shown(key), delay_seconds, error)
                self.schedule(key, piece.work, delay_seconds)
            finally:
                with self._changed:
                    self._running = None
                    self._changed.notify_all()

    def _note_success(self, key: Hashable) -> None:
        if self._failed.pop(key, None) is not None:
            _log.warning("background work of %s succeeds again", _shown(key))

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


def _shown(key: Hashable) -> str:
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)
