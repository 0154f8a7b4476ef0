"""A table in memory that sessions can write to, and whose writer can be made to fail or to wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from kudulite.client.row_operations import RowOperations, RowTarget
from kudulite.errors import KuduliteError, RowError
from kudulite.model.new_schema import schema_from_arrow
from kudulite.model.schema import Schema
from kudulite.tablet.operation import Operation
from kudulite.tablet.row_effects import RowOperation, RowWriteFailure, RowWriteResult, WriteCounts
from tests.support.tables.core_tables import environment

SCHEMA = schema_from_arrow(
    pa.schema([("k", pa.int32()), ("v", pa.int64()), ("s", pa.string())]), ["k"]
)
WAIT_SECONDS = 60.0


class MemoryRows:
    """The rows of one table as `{key: {column: value}}`, and every batch that was written.

    `unwritable` maps keys to what keeps their tablet from being written. `before_write` is called
    with each batch before it is applied, and may raise or wait.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.rows: dict[tuple, dict[str, Any]] = {}
        self.batches: list[list[tuple[Operation, dict[str, Any]]]] = []
        self.timeouts: list[float | None] = []
        self.unwritable: dict[tuple, KuduliteError] = {}
        self.before_write: Callable[[Sequence[RowOperation]], None] | None = None
        self._lock = threading.Lock()

    def write(
        self, operations: Sequence[RowOperation], *, timeout_seconds: float | None = None
    ) -> RowWriteResult:
        """Apply operations in their order; the timestamp is the batch's number."""
        if self.before_write is not None:
            self.before_write(operations)
        with self._lock:
            self.timeouts.append(timeout_seconds)
            self.batches.append([(each.operation, dict(each.values)) for each in operations])
            failures, outcomes = [], []
            for row, operation in enumerate(operations):
                key = tuple(operation.values[name] for name in self.schema.key_names)
                if key in self.unwritable:
                    failures.append(RowWriteFailure(row, "", self.unwritable[key]))
                    continue
                outcome = self._apply(operation.operation, key, operation.values)
                if outcome in ("inserted", "updated", "deleted", "ignored"):
                    outcomes.append(outcome)
                else:
                    failures.append(RowWriteFailure(row, outcome))
            counts = WriteCounts(**{name: outcomes.count(name) for name in set(outcomes)})
            timestamp = len(self.batches) if outcomes else 0
            return RowWriteResult(timestamp, counts, failures)

    def _apply(self, operation: Operation, key: tuple, values: dict[str, Any]) -> str:
        is_there = key in self.rows
        is_insert = operation in (Operation.INSERT, Operation.INSERT_IGNORE)
        if (is_insert and is_there) or (not is_there and operation >= Operation.UPDATE):
            if operation.label.endswith("_ignore"):
                return "ignored"
            return RowError.REASON_ALREADY_PRESENT if is_insert else RowError.REASON_NOT_FOUND
        if operation.is_delete:
            del self.rows[key]
            return "deleted"
        self.rows[key] = {**self.rows.get(key, {}), **values}
        return "updated" if is_there else "inserted"


class MemoryTarget(RowTarget):
    """A table in memory as its operations see it."""

    __slots__ = ()

    def __init__(self, table: MemoryTable) -> None:
        super().__init__(table)
        self.writer = table.rows


class MemoryTable(RowOperations):
    """A handle of a table in memory; several may share its rows."""

    def __init__(
        self, name: str = "t", rows: MemoryRows | None = None, schema: Schema = SCHEMA
    ) -> None:
        self.name = name
        self.folder = Path("/memory") / name
        self.rows = rows or MemoryRows(schema)
        self.environment = environment()

    @property
    def schema(self) -> Schema:
        """The newest schema."""
        return self.rows.schema

    def newest(self) -> MemoryTable:
        """The newest version: the table itself has its schema."""
        return self

    @property
    def chain(self) -> MemoryTable:
        """Its versions: there is one."""
        return self

    def last_seen(self) -> MemoryTable:
        """The version that was seen last: the newest, as there are no other processes."""
        return self

    @cached_property
    def _row_target(self) -> MemoryTarget:
        return MemoryTarget(self)

    def values(self, column: str = "v") -> dict[Any, Any]:
        """One column's values by the first key column."""
        return {key[0]: row.get(column) for key, row in self.rows.rows.items()}


class Gate:
    """Stops whoever passes until it is opened; `reached` tells that somebody waits."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def __call__(self, *_: Any) -> None:
        """Wait until the gate is open."""
        self.reached.set()
        assert self._open.wait(WAIT_SECONDS), "nobody opened the gate"

    def wait_until_reached(self) -> None:
        """Wait until somebody stands before the gate."""
        assert self.reached.wait(WAIT_SECONDS), "nobody came to the gate"

    def open(self) -> None:
        """Let everybody pass from now on."""
        self._open.set()
