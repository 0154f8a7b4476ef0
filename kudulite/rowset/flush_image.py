"""Turns the history of a MemRowSet into base data, UNDO and REDO: what a flush writes.

    insert@10  update@20  delete@30  insert@40  update@50           one row's changes
                                                    └── base: the newest image
    UNDO, newest first: 50 set the values before · 40 DELETE · 30 REINSERT of the row as it was then
                        20 set the values before
    first insert: 10

So each change after the first has one UNDO of the same moment, but for a DELETE that is the row's
last change: it stays REDO, and the base keeps the row's last image for readers of the past.

All of it is array operations over the changes in order of (row, time): the value that a change
found is the newest one set before it, a running maximum of positions.

Invariants: (1) a row's first change is its insert, which sets all columns; (2) base row ids follow
the keys' order; (3) UNDO is sorted by row id, newest first within a row, REDO has at most one
change a row; neither sets a key column.

Source: Kudu compaction.cc, ApplyMutationsAndGenerateUndos.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kudulite.delta.delta_file import OP_DELETE, OP_REINSERT, OP_UPDATE, DeltaColumn, DeltaRows
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Column
from kudulite.rowset.memrowset_snapshot import MemRowSetSnapshot

_UNDO_OF = np.empty(3, np.uint8)
_UNDO_OF[[OP_UPDATE, OP_DELETE, OP_REINSERT]] = [OP_UPDATE, OP_REINSERT, OP_DELETE]


@dataclass(frozen=True)
class FlushImage:
    """n rows in key order: `keys`, the newest image of each, uint64[n] when it was first inserted.

    `undo` takes the rows back to any moment since, `redo` deletes those that are dead now; their
    row ids are positions in `rows`. None: there is none.
    """

    keys: KeyArray
    rows: pa.Table
    insert_timestamps: np.ndarray
    undo: DeltaRows | None
    redo: DeltaRows | None


def flush_image(snapshot: MemRowSetSnapshot) -> FlushImage:
    """Return what the rows of a snapshot are on disk; O(changes) memory, sorted once."""
    order = snapshot.sorted_keys
    history = _History(snapshot)
    arrays, undo_columns = [], {}
    for column in snapshot.schema.columns:
        cells = _Cells(snapshot, column, history)
        arrays.append(cells.newest())
        if column not in snapshot.schema.key_columns:
            found = cells.undo()
            if found is not None:
                undo_columns[column.id] = found
    rows = pa.Table.from_arrays(arrays, schema=snapshot.schema.arrow_schema())
    return FlushImage(
        keys=order.keys,
        rows=rows,
        insert_timestamps=snapshot.insert_timestamps[order.rowids],
        undo=history.undo_rows(undo_columns),
        redo=history.redo_rows(),
    )


class _History:
    """All changes by (row, time); m of them, of n rows."""

    def __init__(self, snapshot: MemRowSetSnapshot) -> None:
        slots = snapshot.sorted_keys.rowids
        base_rowids = np.empty(len(slots), np.int64)
        base_rowids[slots] = np.arange(len(slots))
        rowids = base_rowids[snapshot.changes.rowids]
        self.positions = np.argsort(rowids, kind="stable")  # in the log, by (row, time)
        self.rowids = rowids[self.positions]
        self.ops = snapshot.changes.ops[self.positions]
        self.timestamps = snapshot.changes.timestamps()[self.positions]
        is_last = np.append(self.rowids[1:] != self.rowids[:-1], True)[: len(self.rowids)]
        self.last = np.flatnonzero(is_last)
        # A change in front of which its row begins.
        self.row_starts = np.append(0, self.last[:-1] + 1)[self.rowids]
        self._stays_redo = is_last & (self.ops == OP_DELETE)
        # UNDO order: rows ascending, the newest first; what is undone by nothing is left out.
        newest_first = np.argsort(self.rowids[::-1], kind="stable")
        undone = len(self.rowids) - 1 - newest_first
        is_undone = (self.row_starts != np.arange(len(self.rowids))) & ~self._stays_redo
        self.undone = undone[is_undone[undone]]

    def undo_rows(self, columns: dict[int, DeltaColumn]) -> DeltaRows | None:
        """Return the UNDO of changes after the first, with the values made by `_Cells.undo`."""
        if not len(self.undone):
            return None
        ops = _UNDO_OF[self.ops[self.undone]]
        return DeltaRows(self.rowids[self.undone], ops, columns, self.timestamps[self.undone])

    def redo_rows(self) -> DeltaRows | None:
        """Return the DELETE of each row that is dead now."""
        at = np.flatnonzero(self._stays_redo)
        if not len(at):
            return None
        return DeltaRows(self.rowids[at], self.ops[at], {}, self.timestamps[at])


class _Cells:
    """One column's cells in the order of a history."""

    def __init__(self, snapshot: MemRowSetSnapshot, column: Column, history: _History) -> None:
        self._history = history
        found = snapshot.changes.column(column.id)
        default = pa.array([column.read_default], column.type.arrow)
        count = len(history.rowids)
        # Changes that set nothing point behind the cells, to what rows without a value show.
        self._values = default if found is None else pa.concat_arrays([found.values, default])
        self._default_at = len(self._values) - 1
        if found is None:
            self._is_set = np.zeros(count, dtype=bool)
        elif found.is_set is None:
            self._is_set = history.ops != OP_DELETE
        else:
            self._is_set = found.is_set[history.positions] & (history.ops != OP_DELETE)
        setters = np.where(self._is_set, np.arange(count), -1)
        self._setter = np.maximum.accumulate(setters) if count else setters

    def newest(self) -> pa.Array:
        """Return each row's newest value, n of them."""
        return self._values.take(pa.array(self._cells_at(self._history.last)))

    def undo(self) -> DeltaColumn | None:
        """Return the value that each undone change found, null where its UNDO sets none."""
        history = self._history
        at = history.undone
        ops = history.ops[at]
        is_set = ((ops == OP_UPDATE) & self._is_set[at]) | (ops == OP_DELETE)
        if not is_set.any():
            return None
        before = self._cells_at(at - 1)
        values = self._values.take(pa.array(before, mask=~is_set))
        return DeltaColumn(values, None if is_set.all() else is_set)

    def _cells_at(self, at: np.ndarray) -> np.ndarray:
        """Return where in the values the cell of each change's row is, just after the change."""
        setter = self._setter[at]
        has_value = setter >= self._history.row_starts[at]
        return np.where(has_value, self._history.positions[setter], self._default_at)
