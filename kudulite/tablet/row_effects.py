"""Applies the operations of a flush one after the other: one change per key, and the refusals.

`OUTCOMES` (operation.py) says what each operation does to a row. A refused row leaves the others
applied. The rows were made one by one by a program, so a loop over them is right here; whole
batches take collapse.py, which looks up the same table as an array.

Invariants: (1) a key has at most one change, which takes the state before the flush to the state
after it; (2) a live row that was deleted and inserted again is an UPDATE of all columns.

Source: Kudu common/row_operations.cc, tablet.cc.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kudulite.errors import RowError, SchemaError
from kudulite.model.schema import Schema
from kudulite.model.values import canonical_value
from kudulite.tablet.collapse import WriteCounts
from kudulite.tablet.operation import (
    DELETED,
    IGNORED,
    INSERTED,
    OUTCOMES,
    UPDATED,
    Outcome,
)
from kudulite.tablet.row_operation import Cells, RowOperation
from kudulite.wal.record_format import Record
from kudulite.wal.row_changes import CHANGE_DELETE, CHANGE_INSERT, CHANGE_UPDATE, RowChanges
from kudulite.wal.row_codec import RowCodec, RowList

# Up to so many changes a record is written row by row: columns cost more to start.
ROW_LIST_MAX = 16
_COUNTED = (INSERTED, UPDATED, DELETED, IGNORED)
# (CHANGE_ constant, cells by name, position)
Change = tuple[int, Cells, int]


@dataclass(slots=True)
class _Row:
    """A key's row during a flush; `values` are the cells that the flush has set, by name."""

    position: int
    existed: bool
    is_live: bool
    key: Cells
    values: Cells = field(default_factory=dict)
    is_replaced: bool = False


class RowEffects(NamedTuple):
    """The effects of a flush on one tablet.

    `changes` has a (op, cells by name, position) per changed key, position being that of the key's
    first operation. `outcomes` has one Outcome per operation.
    """

    changes: Sequence[Change]
    outcomes: Sequence[Outcome]

    def counts(self, start: int, stop: int) -> WriteCounts:
        """Return how many of the operations [start, stop) had which outcome."""
        part = self.outcomes[start:stop]
        return WriteCounts(*map(part.count, _COUNTED))

    def refusals(self, start: int, stop: int) -> list[tuple[int, str]]:
        """Return (position counted from `start`, reason) of the refused ones of [start, stop)."""
        part = self.outcomes[start:stop]
        return [(at, reason) for at, reason in enumerate(part) if isinstance(reason, str)]


class RowApplier:
    """Applies flushes under one schema; immutable."""

    def __init__(self, schema: Schema) -> None:
        self._key_names = schema.key_names
        values = schema.value_columns
        self._defaults = {column.name: column.write_default for column in values}
        self._not_null = tuple(column.name for column in values if not column.nullable)
        self._columns = {column.name: column for column in schema.columns}
        self._codec = RowCodec(schema)

    def apply(
        self,
        operations: Sequence[RowOperation],
        keys: Sequence[bytes],
        exists: Sequence[bool],
        misfits: Collection[int] = (),
    ) -> RowEffects:
        """Apply n operations to their encoded `keys`; `exists`: which are live before the flush.

        Operations at the positions `misfits` are refused.
        """
        if not misfits and len(set(keys)) == len(keys):
            applied = [
                self._apply_alone(position, operation, is_live)
                for position, (operation, is_live) in enumerate(
                    zip(operations, exists, strict=True)
                )
            ]
            return RowEffects([c for _, c in applied if c is not None], [o for o, _ in applied])
        rows: dict[bytes, _Row] = {}
        outcomes: list[Outcome] = []
        for position, (operation, key) in enumerate(zip(operations, keys, strict=True)):
            row = rows.get(key)
            if row is None:
                cells = {name: operation.values[name] for name in self._key_names}
                row = _Row(position, exists[position], exists[position], cells)
                rows[key] = row
            is_misfit = position in misfits
            outcomes.append(RowError.REASON_INVALID if is_misfit else self._apply(row, operation))
        changes = [c for row in rows.values() if (c := self._change(row)) is not None]
        return RowEffects(changes, outcomes)

    def _apply_alone(
        self, position: int, operation: RowOperation, is_live: bool
    ) -> tuple[Outcome, Change | None]:
        """Apply the only operation on its key; the same as `_apply` and `_change`, in one step."""
        values = operation.values
        outcome = OUTCOMES[operation.operation][is_live]
        if outcome == DELETED:
            key = {name: values[name] for name in self._key_names}
            return outcome, (CHANGE_DELETE, key, position)
        if outcome not in (INSERTED, UPDATED):
            return outcome, None
        if refused := self._refusal(values, not is_live):
            return refused, None
        if outcome == INSERTED:
            # Cells are shared, not copied: the caller does not change them any more.
            cells = values if len(values) == len(self._columns) else self._defaults | values
            return outcome, (CHANGE_INSERT, cells, position)
        is_change = len(values) > len(self._key_names)
        return outcome, (CHANGE_UPDATE, values, position) if is_change else None

    def misfits(self, operations: Sequence[RowOperation]) -> set[int]:
        """Return the positions of operations with a value that its column cannot hold.

        Values were checked when they were applied, but the table may have been altered since: a
        column dropped, and another added under its name.
        """
        return {at for at, operation in enumerate(operations) if not self._fits(operation)}

    def _fits(self, operation: RowOperation) -> bool:
        for name, value in operation.values.items():
            column = self._columns.get(name)
            if column is None:
                return False
            if value is not None:
                try:
                    fitting = canonical_value(value, column.type, name)
                except SchemaError:
                    return False
                if type(fitting) is not type(value):  # canonical, but for the column that was
                    return False
        return True

    def _apply(self, row: _Row, operation: RowOperation) -> Outcome:
        """Apply one operation; return its outcome."""
        outcome = OUTCOMES[operation.operation][row.is_live]
        if outcome == DELETED:
            row.is_live, row.is_replaced, row.values = False, False, {}
        if outcome not in (INSERTED, UPDATED):
            return outcome
        given = {n: v for n, v in operation.values.items() if n not in row.key}
        if refused := self._refusal(given, not row.is_live):
            return refused
        if outcome == UPDATED:
            row.values.update(given)
        else:
            row.is_live, row.is_replaced = True, row.existed
            row.values = self._defaults | given
        return outcome

    def _refusal(self, given: Cells, is_new: bool) -> str | None:
        if not given.keys() <= self._columns.keys():  # the table was altered meanwhile
            return RowError.REASON_INVALID
        for name in self._not_null:
            if name in given:
                if given[name] is None:
                    return RowError.REASON_NULL
            elif is_new and self._defaults[name] is None:
                return RowError.REASON_MISSING
        return None

    def _change(self, row: _Row) -> Change | None:
        if row.is_live and not row.existed:
            return CHANGE_INSERT, row.key | row.values, row.position
        if row.is_live and (row.values or row.is_replaced):
            return CHANGE_UPDATE, row.key | row.values, row.position
        if row.existed and not row.is_live:
            return CHANGE_DELETE, row.key, row.position
        return None

    def record(self, effects: RowEffects, timestamp: int) -> Record:
        """Return the changes (at least one) as a record: few row by row, many as columns.

        Raises pa.ArrowException for a value that does not fit its column; see `misfits`.
        """
        if len(effects.changes) <= ROW_LIST_MAX:
            rows = [(op, cells) for op, cells, _ in effects.changes]
            return RowList(timestamp, rows, self._codec)
        columns, is_set = self._codec.columns([cells for _, cells, _ in effects.changes])
        ops = np.array([op for op, _, _ in effects.changes], dtype=np.uint8)
        return RowChanges(timestamp, ops, columns, is_set)
