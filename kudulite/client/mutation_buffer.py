"""The unwritten operations of a session, and when its flusher must write them.

    apply ──add──▶ fresh ──take──▶ being written ──written──▶ (gone)
                   └────── pending: never more than the space ──────┘

Threads: any; `_lock` protects every field and is held briefly, never while files are written. The
session's write lock ensures that at most one thread writes at a time. Readers of `settings`,
`is_closed` and the counts need no lock.

Source: Kudu client/session-internal.cc.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from kudulite.client.row_operations import WriteOperation
from kudulite.errors import UsageError

# A flusher without work ends after this time; the next operation asks for another.
IDLE_SECONDS = 2.0


class FlushMode(IntEnum):
    """When a session writes; the numbers are Kudu's."""

    AUTO_SYNC = 0
    AUTO_BACKGROUND = 1
    MANUAL = 2


@dataclass(frozen=True)
class BufferSettings:
    """Settings of a buffer, with Kudu's defaults; `watermark` is a part of `bytes_max`."""

    mode: FlushMode = FlushMode.MANUAL
    bytes_max: int = 7 << 20
    watermark: float = 0.5
    interval_seconds: float = 1.0
    buffer_count_max: int = 2

    @property
    def is_background(self) -> bool:
        """Whether a thread of the session writes the buffer."""
        return self.mode is FlushMode.AUTO_BACKGROUND


class MutationBuffer:
    """Operations in the order in which they were applied, counted in bytes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = threading.Condition(self._lock)
        self.settings = BufferSettings()  # replaced, never changed
        self.is_closed = False
        self._fresh: list[WriteOperation] = []
        self._fresh_bytes = 0
        self._fresh_since = 0.0
        self._pending_bytes = 0  # of the fresh ones and of those being written
        self._is_writing = False
        self._is_room_wanted = False
        self._has_flusher = False

    def __len__(self) -> int:
        return len(self._fresh)

    @property
    def has_pending(self) -> bool:
        """Whether any operation is not written yet."""
        return self._pending_bytes > 0

    def change(self, what: str, **values: Any) -> None:
        """Change settings; UsageError, which names them as `what`, while anything is pending."""
        with self._lock:
            if self._pending_bytes:
                raise UsageError(f"Cannot change {what} when writes are buffered; flush first")
            self.settings = replace(self.settings, **values)

    def close(self) -> None:
        """Take no more operations, and wake all waiting threads."""
        with self._lock:
            self.is_closed = True
            self._state.notify_all()

    # -- for threads that apply

    def claim(self, operation: WriteOperation) -> None:
        """Mark an operation as applied, without keeping it."""
        with self._lock:
            self._check(operation)
            operation.is_applied = True

    def add(self, operation: WriteOperation, size: int) -> bool:
        """Keep an operation of `size` bytes; returns whether the caller must start a flusher.

        In background mode it waits for room. Raises UsageError for an operation that does not fit
        or was applied before, and when the buffer is closed.
        """
        with self._lock:
            self._check(operation)
            if not self._has_room(size):
                self._wait_for_room(operation, size)
            operation.is_applied = True
            self._fresh.append(operation)
            self._fresh_bytes += size
            self._pending_bytes += size
            return self.settings.mode is FlushMode.AUTO_BACKGROUND and self._call_flusher()

    def _call_flusher(self) -> bool:
        """Wake the flusher if it must write or start its interval; return whether there is none."""
        is_first = len(self._fresh) == 1
        if is_first:
            self._fresh_since = time.monotonic()
        if is_first or self._is_over_watermark():
            self._state.notify_all()
        is_missing, self._has_flusher = not self._has_flusher, True
        return is_missing

    def _check(self, operation: WriteOperation) -> None:
        if self.is_closed:
            raise UsageError("the session is closed; make another with client.new_session()")
        if operation.is_applied:
            raise UsageError(f"{operation!r} was applied already; make a new operation")

    def _wait_for_room(self, operation: WriteOperation, size: int) -> None:
        space = self.settings.bytes_max
        table = operation.target.name
        if size > space:
            raise UsageError(
                f"table {table!r}: buffer size limit is too small to fit operation: required"
                f" {size}, size limit {space} bytes; see set_mutation_buffer_space"
            )
        if not self.settings.is_background:
            raise UsageError(
                f"table {table!r}: not enough mutation buffer space remaining for operation:"
                f" required additional {size} when {self._pending_bytes} of {space} already used;"
                " flush the session, or use background mode"
            )
        while not self._has_room(size):
            self._is_room_wanted = True
            self._state.notify_all()
            self._state.wait()
            self._check(operation)

    def _has_room(self, size: int) -> bool:
        settings = self.settings
        if self._pending_bytes + size > settings.bytes_max:
            return False
        must_wait = self._is_writing and settings.buffer_count_max == 1
        return not (must_wait and settings.is_background)

    def _is_over_watermark(self) -> bool:
        return self._fresh_bytes >= self.settings.watermark * self.settings.bytes_max

    # -- for the thread that writes; there is one at a time

    def take(self) -> tuple[list[WriteOperation], int]:
        """Take all fresh operations; they count as pending until `written`."""
        with self._lock:
            operations, size = self._fresh, self._fresh_bytes
            self._fresh, self._fresh_bytes = [], 0
            self._is_room_wanted = False
            self._is_writing = bool(operations)
            return operations, size

    def written(self, size: int) -> None:
        """Free the room of taken operations of `size` bytes, which were written or failed."""
        with self._lock:
            self._pending_bytes -= size
            self._is_writing = False
            if self._has_flusher or self.settings.is_background:
                self._state.notify_all()

    # -- for the flusher

    def wait_for_work(self) -> bool:
        """Wait until the buffer must be written; False when the flusher must end.

        It must be written when the fresh operations reach the watermark, when the first of them
        has waited for the interval, when a thread waits for room, or when the buffer is closed.
        """
        with self._lock:
            while True:
                if not self._fresh:
                    self._state.wait_for(lambda: self._fresh or self.is_closed, IDLE_SECONDS)
                if not self._fresh:
                    self._has_flusher = False
                    return False
                left = self._fresh_since + self.settings.interval_seconds - time.monotonic()
                if left <= 0 or self._is_room_wanted or self.is_closed or self._is_over_watermark():
                    return True
                self._state.wait(left)

    def flusher_failed(self) -> None:
        """Note that the flusher could not be started, or ended by an exception."""
        with self._lock:
            self._has_flusher = False
