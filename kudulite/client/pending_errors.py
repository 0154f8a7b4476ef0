"""The outcome of a session's flush, and the operations that it could not apply.

Every failed operation becomes a `PendingError`, kept until `Session.get_pending_errors` returns it.
`FailureSummary` puts many of them into one exception. Source: Kudu client/error_collector.cc; the
texts are those of Kudu's status codes.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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
from kudulite.tablet.collapse import NO_COUNTS, WriteCounts
from kudulite.tablet.row_operation import Cells, RowWriteResult

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
    def row(self) -> Cells:
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
            self._fail(operations[failure.row], failure.reason, failure.error)
        self.counts = result.counts if self.counts is NO_COUNTS else self.counts + result.counts
        self.timestamp = max(self.timestamp, result.timestamp)

    def add_failed(self, operations: Iterable[WriteOperation], error: BaseException) -> None:
        """Add operations of which none was applied."""
        for operation in operations:
            self._fail(operation, "", error)

    def _fail(
        self, operation: WriteOperation, reason: str, error: BaseException | None = None
    ) -> None:
        operation.is_applied = False  # the caller may apply it again
        self.errors.append(PendingError(operation, reason, error))


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
        """Keep an error, and drop the oldest ones when the limit is reached.

        All errors of a full buffer of `buffer_bytes` fit, so that no operation that a flush could
        not write is lost.
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
        """Remove and return all errors, and whether older ones were dropped."""
        errors, overflowed = [error for error, _ in self._errors], self._has_overflowed
        self._errors.clear()
        self._bytes, self._has_overflowed = 0, False
        return errors, overflowed


class FailureSummary:
    """One exception for the failures of one or several flushes; of constant size.

    Threads: none; the session's report lock protects it.
    """

    def __init__(self) -> None:
        self._operation_count = 0
        self._count = 0
        self._row_count = 0
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
            self._row_count += 1
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
        statuses = "; ".join(f"{count} × {status}" for status, count in self._statuses.items())
        applied_count = self._operation_count - self._count
        applied = f" The other {applied_count} were applied." if applied_count else ""
        return (
            f"{self._count} of {self._operation_count} operations failed ({statuses})."
            f" First failure: {self._first}.{applied} See session.get_pending_errors()."
        )
