"""What the REDO deltas of one DiskRowSet make of its base data at one snapshot.

All visible DeltaFiles are folded into at most one new value per (row, column) and one set of
deleted rows. Folding costs O(deltas) once; bringing a block of base data forward is then one array
operation per changed column, whatever number of files there are.

Invariants: (1) files are given in order of time, and the last one that sets a cell wins; (2) row
ids of a fold are strictly ascending.

Threads: any; a fold done twice gives the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from kudulite.delta.delta_file import OP_DELETE, DeltaFile
from kudulite.delta.scatter import scatter, select


@dataclass(frozen=True)
class ColumnOverlay:
    """The newest visible values of one column: `rowids` int64[m] strictly ascending, m values."""

    rowids: np.ndarray
    values: pa.Array

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.rowids.nbytes + self.values.nbytes


class DeltaOverlay:
    """The fold of the DeltaFiles of one DiskRowSet that a snapshot sees."""

    def __init__(self, files: Sequence[DeltaFile], snapshot_timestamp: int) -> None:
        """`files` are REDO files, oldest first; those wholly after the snapshot are left out."""
        self._timestamp = snapshot_timestamp
        self._files = [f for f in files if f.meta.timestamp_min <= snapshot_timestamp]
        self._deleted: np.ndarray | None = None
        self._columns: dict[int, ColumnOverlay | None] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the snapshot sees base data as it is."""
        return not self._files

    def changes_column(self, column_id: int) -> bool:
        """Whether any visible file sets the column; statistics of base data then do not hold."""
        return any(column_id in f.meta.update_counts for f in self._files)

    @property
    def deleted(self) -> np.ndarray:
        """int64[d]: the deleted row ids, strictly ascending."""
        if self._deleted is None:
            found = [
                f.rowids[(f.ops == OP_DELETE) & self._is_visible(f)]
                for f in self._files
                if f.meta.delete_count
            ]
            self._deleted = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
        return self._deleted

    def column(self, column_id: int) -> ColumnOverlay | None:
        """Return the newest visible values of one column, or None when no row has any."""
        if column_id not in self._columns:
            self._columns[column_id] = self._fold(column_id)
        return self._columns[column_id]

    def selection(self, start: int, stop: int) -> np.ndarray | None:
        """Return bool[stop - start]: which of the rows are live; None when all are."""
        low, high = np.searchsorted(self.deleted, [start, stop])
        if low == high:
            return None
        live = np.ones(stop - start, dtype=bool)
        live[self.deleted[low:high] - start] = False
        return live

    def is_deleted(self, rowids: np.ndarray) -> np.ndarray:
        """Return bool[n] for int64[n] row ids in any order."""
        return _is_member(self.deleted, rowids)

    def apply_range(
        self, base: pa.Array, column_id: int, start: int, selected: np.ndarray | None = None
    ) -> pa.Array:
        """Bring `base`, the column's values of rows start, start + 1, …, to the snapshot.

        Then keep the int64[m] ascending positions `selected`; None keeps all.
        """
        overlay = self.column(column_id)
        if overlay is None:
            return select(base, selected)
        low, high = np.searchsorted(overlay.rowids, [start, start + len(base)])
        if low == high:
            return select(base, selected)
        positions = overlay.rowids[low:high] - start
        return scatter(base, positions, overlay.values.slice(low, high - low), selected)

    def changes_row(self, rowid: int) -> bool:
        """Whether any visible file changes the row."""
        touched = self._touched
        at = int(touched.searchsorted(rowid))
        return at < len(touched) and bool(touched[at] == rowid)

    @cached_property
    def _touched(self) -> np.ndarray:
        parts = [file.rowids for file in self._files]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def apply_rows(self, base: pa.Array, column_id: int, rowids: np.ndarray) -> pa.Array:
        """Bring `base`, the column's values of the given rows (any order), to the snapshot."""
        overlay = self.column(column_id)
        if overlay is None:
            return base
        at = np.searchsorted(overlay.rowids, rowids)
        at[at == len(overlay.rowids)] = 0
        positions = np.flatnonzero(overlay.rowids[at] == rowids)
        if not len(positions):
            return base
        return scatter(base, positions, overlay.values.take(pa.array(at[positions])))

    def _fold(self, column_id: int) -> ColumnOverlay | None:
        rowid_parts, value_parts = [], []
        for file in self._files:
            column = file.column(column_id)
            if column is None:
                continue
            chosen = self._is_visible(file)
            if column.is_set is not None:
                chosen = chosen & column.is_set
            if chosen.all():
                rowid_parts.append(file.rowids)
                value_parts.append(column.values)
            elif chosen.any():
                rowid_parts.append(file.rowids[chosen])
                value_parts.append(column.values.filter(pa.array(chosen)))
        if not rowid_parts:
            return None
        return _newest_of_each_row(rowid_parts, value_parts)

    def _is_visible(self, file: DeltaFile) -> np.ndarray:
        stamps = file.timestamps()
        if stamps is None:
            return np.ones(len(file.rowids), dtype=bool)
        return stamps <= self._timestamp


def _newest_of_each_row(
    rowid_parts: list[np.ndarray], value_parts: list[pa.Array]
) -> ColumnOverlay:
    """Keep the last value of each row of parts in order of time."""
    rowids = np.concatenate(rowid_parts)
    values = pa.concat_arrays(value_parts) if len(value_parts) > 1 else value_parts[0]
    if len(rowids) > 1 and not (rowids[1:] > rowids[:-1]).all():
        order = np.argsort(rowids, kind="stable")
        ordered = rowids[order]
        is_last = np.append(ordered[1:] != ordered[:-1], True)
        rowids, values = ordered[is_last], values.take(pa.array(order[is_last]))
    return ColumnOverlay(rowids, values)


def _is_member(ascending: np.ndarray, probes: np.ndarray) -> np.ndarray:
    if not len(ascending):
        return np.zeros(len(probes), dtype=bool)
    at = np.searchsorted(ascending, probes)
    at[at == len(ascending)] = 0
    return ascending[at] == probes
