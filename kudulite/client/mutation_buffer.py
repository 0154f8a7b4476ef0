"""Mutation buffer: the unwritten operations of a session, and those that a flush could not apply.

    apply ──add──▶ fresh ──take──▶ being written ──written──▶ applied, or a PendingError
                   └────── pending: never more than the space ──────┘

The buffer decides when the session's flusher must write: at a watermark, or an interval after the
oldest operation. A flush adds its result to a `FlushOutcome`. Every operation that failed becomes a
`PendingError`, which an `ErrorBuffer` keeps until `Session.get_pending_errors` returns it.
`FailureSummary` puts many of them into one exception.

**Threads**: any; `_lock` protects every field of a `MutationBuffer` and is held briefly, never
while files are written. The session's write lock ensures that at most one thread writes at a time.
Readers of `settings`, `is_closed` and the counts need no lock.

**Source**: Kudu client/session-internal.cc, error_collector.cc; util/status.h for the texts.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from kudulite.client.row_operations import WriteOperation
from kudulite.errors import (
    CorruptionError,
    KuduliteError,
    LockTimeoutError,
    RowError,
    StorageError,
    TableNotFoundError,
    UsageError,
)
from kudulite.tablet.row_effects import NO_COUNTS, Cells, RowWriteResult, WriteCounts

# A flusher without work ends after this time; the next operation asks for another.
IDLE_SECONDS = 2.0

# Kudu keeps them without a bound.
ERROR_BYTES_MAX = 16 << 20
KEYS_SHOWN_MAX = 5
REASONS_SHOWN_MAX = 5

_NOT_FOUND, _INVALID = "Not found", "Invalid argument"
_ROW_STATUS = {
    RowError.REASON_ALREADY_PRESENT: "Already present",
    RowError.REASON_NOT_FOUND: _NOT_FOUND,
    RowError.REASON_NO_PARTITION: _NOT_FOUND,
    RowError.REASON_IMMUTABLE: "Immutable",
}
_ERROR_STATUS: tuple[tuple[type[BaseException], str], ...] = (
    (LockTimeoutError, "Timed out"),
    (StorageError, "IO error"),
    (TableNotFoundError, _NOT_FOUND),
    (CorruptionError, "Corruption"),
    (UsageError, _INVALID),
    (KuduliteError, "Service unavailable"),
)


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

    def tables(self) -> Counter[str]:
        """Return the number of operations that no flush has begun to write, by table's folder."""
        with self._lock:
            return Counter(operation.target.path for operation in self._fresh)

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
        if self.settings.mode is not FlushMode.AUTO_BACKGROUND:
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
        return not (must_wait and settings.mode is FlushMode.AUTO_BACKGROUND)

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
            if self._has_flusher or self.settings.mode is FlushMode.AUTO_BACKGROUND:
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


@dataclass(eq=False, repr=False, slots=True)
class PendingError:
    """One operation that was not applied, as far as is known: see `error`.

    `operation` may be applied again. `reason` is one of RowError's REASON_ constants, or empty when
    `error`, which is no row error, says why. After a StorageError with EINPROGRESS, which only an
    object store has, the operation may have been applied.
    """

    operation: WriteOperation
    reason: str
    error: BaseException | None

    @property
    def table(self) -> str:
        """Name of the operation's table."""
        return self.operation.target.name

    @property
    def row(self) -> Cells:
        """The values that the operation sets, by column."""
        return dict(self.operation.values)

    @property
    def status(self) -> str:
        """The reason of the failure in Kudu's words: "Already present: key already present"."""
        if self.error is None:
            return f"{_ROW_STATUS.get(self.reason, _INVALID)}: {self.reason}"
        for kind, status in _ERROR_STATUS:
            if isinstance(self.error, kind):
                return f"{status}: {self.error}"
        return f"Runtime error: {type(self.error).__name__}: {self.error}"

    def failed_op(self) -> str:
        """Return the operation as text: "INSERT int32 key=1"."""
        return str(self.operation)

    def was_possibly_successful(self) -> bool:
        """Whether the operation may have been applied all the same: something unforeseen failed."""
        return self.error is not None and not isinstance(self.error, KuduliteError)

    def __str__(self) -> str:
        return f"table {self.table!r}: {self.failed_op()}: {self.status}"

    def __repr__(self) -> str:
        return f"PendingError({str(self)!r})"


@dataclass(slots=True)
class FlushOutcome:
    """The outcome of a flush of `operation_count` operations; all but the `errors` are applied.

    `timestamp` is the highest that they got, 0 when none was applied.
    """

    operation_count: int = 0
    counts: WriteCounts = NO_COUNTS
    timestamp: int = 0
    errors: list[PendingError] = field(default_factory=list)

    def add(self, operations: Sequence[WriteOperation], result: RowWriteResult) -> None:
        """Add the result of a table's writer."""
        for failure in result.failures:
            reason = failure.reason if failure.error is None else ""
            self._fail(operations[failure.row], reason, failure.error)
        self.counts = result.counts if self.counts is NO_COUNTS else self.counts + result.counts
        self.timestamp = max(self.timestamp, result.timestamp)

    def add_failed(self, operations: Iterable[WriteOperation], error: BaseException) -> None:
        """Add operations of which none was applied."""
        for operation in operations:
            self._fail(operation, "", error)

    def _fail(self, operation: WriteOperation, reason: str, error: BaseException | None) -> None:
        operation.is_applied = False  # the caller may apply it again
        self.errors.append(PendingError(operation, reason, error))


class ErrorBuffer:
    """The newest pending errors, oldest first, of a limited size.

    The session's report lock protects it.
    """

    def __init__(self) -> None:
        self._errors: deque[tuple[PendingError, int]] = deque()
        self._bytes = 0
        self._has_overflowed = False

    def __len__(self) -> int:
        return len(self._errors)

    def add(self, error: PendingError, buffer_bytes: int) -> None:
        """Keep an error, and drop the oldest ones when the limit is reached.

        All errors of a full buffer of `buffer_bytes` fit, so that no operation that a flush could
        not write is lost.
        """
        operation = error.operation
        size = operation.layout.size(operation.values)
        self._errors.append((error, size))
        self._bytes += size
        bytes_max = max(ERROR_BYTES_MAX, buffer_bytes)
        while self._bytes > bytes_max and len(self._errors) > 1:
            self._bytes -= self._errors.popleft()[1]
            self._has_overflowed = True

    def take(self) -> tuple[list[PendingError], bool]:
        """Remove and return all errors, and whether older ones were dropped."""
        errors, overflowed = [error for error, _ in self._errors], self._has_overflowed
        self._errors.clear()
        self._bytes, self._has_overflowed = 0, False
        return errors, overflowed


class FailureSummary:
    """One exception for the failures of one or several flushes; of constant size.

    The session's report lock protects it.
    """

    def __init__(self) -> None:
        self._operation_count = 0
        self._count = 0
        self._statuses: Counter[str] = Counter()
        self._keys: list[tuple[object, ...]] = []
        self._first: PendingError | None = None
        self._error: BaseException | None = None

    def __bool__(self) -> bool:
        """Whether there is a failure to raise."""
        return self._first is not None

    def add(self, outcome: FlushOutcome) -> None:
        """Add the failures of a flush; a flush without failures does not count."""
        if not outcome.errors:
            return
        self._operation_count += outcome.operation_count
        self._count += len(outcome.errors)
        self._first = self._first or outcome.errors[0]
        for error in outcome.errors:
            if error.status in self._statuses or len(self._statuses) < REASONS_SHOWN_MAX:
                self._statuses[error.status] += 1
            if error.error is not None:
                self._error = self._error or error.error
                continue
            if len(self._keys) < KEYS_SHOWN_MAX:
                self._keys.append(error.operation.key)

    def raise_if_any(self) -> None:
        """Raise the first error that is not a row's, else a RowError for all failed rows."""
        if self._first is None:
            return
        if self._error is None:
            raise RowError(
                self._text(),
                reason=self._first.reason,
                row_count=self._count,  # no failure is of another kind
                keys=tuple(self._keys),
            )
        is_ours = isinstance(self._error, KuduliteError)
        # Other threads may be raising the same object, with notes of their own.
        error = copy.copy(self._error) if is_ours else self._error
        error.__notes__ = [*getattr(self._error, "__notes__", ()), self._text()]
        if not is_ours:
            raise error
        raise error from self._error

    def _text(self) -> str:
        if self._count == 1:
            return f"Some errors occurred: {self._first}"
        statuses = "; ".join(f"{count} × {status}" for status, count in self._statuses.items())
        applied_count = self._operation_count - self._count
        applied = f" The other {applied_count} were applied." if applied_count else ""
        return (
            f"{self._count} of {self._operation_count} operations failed ({statuses})."
            f" First failure: {self._first}.{applied} See session.get_pending_errors()."
        )
