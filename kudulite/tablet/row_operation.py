"""Write operations on single rows, as a session passes them down, and their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from kudulite.errors import KuduliteError
from kudulite.tablet.collapse import WriteCounts
from kudulite.tablet.operation import Operation

# Canonical values (model/values.py) by column name, None for null.
Cells: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class RowOperation:
    """`operation` on the row whose key columns stand in `values`.

    `values` maps names of columns to canonical values (`model/values.py`), None for null: exactly
    the columns that the row sets, all key columns among them. Once the operation is passed down, it
    must not be changed unless it fails, because memory shares it.
    """

    operation: Operation
    values: Cells


@dataclass(frozen=True, slots=True)
class RowWriteFailure:
    """Operation number `row` of a write was not applied.

    `reason` is one of RowError's REASON_ constants. With `error` set it was no fault of the row:
    its tablet could not be written at all.
    """

    row: int
    reason: str
    error: KuduliteError | None = None


class RowWriteResult(NamedTuple):
    """A write's outcome: all operations but the `failures` are applied and durable.

    `timestamp` is the highest of the tablets' timestamps, 0 when nothing was written.
    """

    timestamp: int
    counts: WriteCounts
    failures: list[RowWriteFailure]
