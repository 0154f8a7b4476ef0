"""Operations of a session that were not applied: which, why, and as which exception.

Every failed operation becomes a `PendingError`, kept until `Session.get_pending_errors` hands it
out. `FailureSummary` is the same told in one exception. Source: Kudu client/error_collector.cc;
the texts are those of Kudu's status codes.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
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

# Kudu keeps them without a bound.
ERROR_BYTES_MAX = 16 << 20
KEYS_SHOWN_MAX = 5
REASONS_SHOWN_MAX = 5

_NOT_FOUND, _INVALID = "Not found", "Invalid argument"
_ROW_STATUS = {
    RowError.REASON_ALREADY_PRESENT: "Already present",
    RowError.REASON_NOT_FOUND: _NOT_FOUND,
    RowError.REASON_NO_PARTITION: _NOT_FOUND,
}
_ERROR_STATUS: tuple[tuple[type[BaseException], str], ...] = (
    (LockTimeoutError, "Timed out"),
    (StorageError, "IO error"),
    (TableNotFoundError, _NOT_FOUND),
    (CorruptionError, "Corruption"),
    (UsageError, _INVALID),
    (KuduliteError, "Service unavailable"),
)


class PendingError:
    """One operation that was not applied.

    `operation` may be applied again. `reason` is one of RowError's REASON_ constants, or empty when
    `error`, which is no row error, says why.
    """

    __slots__ = ("error", "operation", "reason")

    def __init__(
        self, operation: WriteOperation, reason: str, error: BaseException | None = None
    ) -> None:
        self.operation = operation
        self.reason = reason if error is None else ""
        self.error = error

    @property
    def table(self) -> str:
        """Name of the operation's table."""
        return self.operation.target.name

    @property
    def row(self) -> dict[str, Any]:
        """The values that the operation sets, by column."""
        return dict(self.operation.values)

    @property
    def status(self) -> str:
        """What went wrong, in Kudu's words: "Already present: key already present"."""
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


class ErrorBuffer:
    """The newest pending errors, oldest first, of a limited size.

    Threads: none; the session's report lock protects it.
    """

    def __init__(self) -> None:
        self._errors: deque[tuple[PendingError, int]] = deque()
        self._bytes = 0
        self._has_overflowed = False

    def __len__(self) -> int:
        return len(self._errors)

    def add(self, error: PendingError, buffer_bytes: int) -> None:
        """Keep an error; the oldest make room.

        All errors of a full buffer of `buffer_bytes` fit, so that nothing is lost that a flush
        could not write.
        """
        operation = error.operation
        size = operation.target.layout.size(operation.values)
        self._errors.append((error, size))
        self._bytes += size
        bytes_max = max(ERROR_BYTES_MAX, buffer_bytes)
        while self._bytes > bytes_max and len(self._errors) > 1:
            self._bytes -= self._errors.popleft()[1]
            self._has_overflowed = True

    def take(self) -> tuple[list[PendingError], bool]:
        """Hand out all errors, and whether older ones were lost; it is empty then."""
        errors, overflowed = [error for error, _ in self._errors], self._has_overflowed
        self._errors.clear()
        self._bytes, self._has_overflowed = 0, False
        return errors, overflowed


class FailureSummary:
    """What one exception tells of many failed operations; of constant size.

    Threads: none; the session's report lock protects it.
    """

    def __init__(self) -> None:
        self._count = 0
        self._row_count = 0
        self._statuses: Counter[str] = Counter()
        self._keys: list[tuple] = []
        self._first: PendingError | None = None
        self._error: BaseException | None = None

    def __bool__(self) -> bool:
        """Whether there is a failure to tell of."""
        return self._first is not None

    def add(self, error: PendingError) -> None:
        """Count a failure."""
        self._count += 1
        self._first = self._first or error
        if error.status in self._statuses or len(self._statuses) < REASONS_SHOWN_MAX:
            self._statuses[error.status] += 1
        if error.error is not None:
            self._error = self._error or error.error
            return
        self._row_count += 1
        if len(self._keys) < KEYS_SHOWN_MAX:
            self._keys.append(error.operation.key)

    def raise_if_any(self) -> None:
        """Raise what went wrong: an error that is none of a row first, else a RowError."""
        if self._first is None:
            return
        if self._error is None:
            raise RowError(
                self._text(),
                reason=self._first.reason,
                row_count=self._row_count,
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
        told = "; ".join(f"{count} × {status}" for status, count in self._statuses.items())
        return (
            f"Some errors occurred: {self._count} operations were not applied ({told}), the first:"
            f" {self._first}; all others were; session.get_pending_errors() tells each"
        )
