"""Hands the operations of one flush to their tables, and says what became of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kudulite.client.pending_errors import PendingError
from kudulite.client.row_operations import WriteOperation
from kudulite.tablet.collapse import NO_COUNTS, WriteCounts
from kudulite.tablet.row_operation import RowWriteResult


@dataclass(slots=True)
class FlushOutcome:
    """What became of the operations of one flush; all but those of `errors` are applied.

    `timestamp` is the highest that they got, 0 when none was applied.
    """

    counts: WriteCounts = NO_COUNTS
    timestamp: int = 0
    errors: list[PendingError] = field(default_factory=list)

    def add(self, operations: Sequence[WriteOperation], result: RowWriteResult) -> None:
        """Count what a table's writer returned."""
        for failure in result.failures:
            self._fail(operations[failure.row], failure.reason, failure.error)
        self.counts = result.counts if self.counts is NO_COUNTS else self.counts + result.counts
        self.timestamp = max(self.timestamp, result.timestamp)

    def add_failed(self, operations: Iterable[WriteOperation], error: BaseException) -> None:
        """Count operations of which none was applied."""
        for operation in operations:
            self._fail(operation, "", error)

    def _fail(
        self, operation: WriteOperation, reason: str, error: BaseException | None = None
    ) -> None:
        operation.is_applied = False  # the caller may apply it again
        self.errors.append(PendingError(operation, reason, error))


def write_operations(
    operations: Sequence[WriteOperation], timeout_seconds: float | None, outcome: FlushOutcome
) -> None:
    """Write operations of any tables; those of one table in their order, in one call.

    A table that cannot be written does not keep the others from it. Whatever happens, `outcome`
    has every operation that was not applied; raises only what is no Exception.
    """
    groups = list(_by_table(operations).values())
    while groups:
        group = groups[0]
        try:
            writer = group[0].target.writer
            outcome.add(group, writer.write(group, timeout_seconds=timeout_seconds))
        # Told as a pending error of each operation, and raised by whoever reads the outcome.
        except Exception as error:
            outcome.add_failed(group, error)
        except BaseException as error:
            outcome.add_failed((operation for rest in groups for operation in rest), error)
            raise
        groups.pop(0)


def _by_table(operations: Sequence[WriteOperation]) -> dict[str, list[WriteOperation]]:
    groups: dict[str, list[WriteOperation]] = {}
    for operation in operations:
        # Two handles of a table are one table: operations on one row stay in order.
        groups.setdefault(operation.target.path, []).append(operation)
    return groups
