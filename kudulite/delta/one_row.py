"""The deltas of one row, cut out of a source: folding them at many moments costs only their own.

Threads: what is read twice is equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from kudulite.delta.delta_file import OP_DELETE, OP_REINSERT, DeltaColumn
from kudulite.delta.delta_overlay import DeltaSource


class OneRowSource:
    """The changes of row `rowid` in `source`, in its order; read like the source itself."""

    def __init__(self, source: DeltaSource, rowid: int) -> None:
        self._source = source
        self._at = np.flatnonzero(source.rowids == rowid)
        self._columns: dict[int, DeltaColumn | None] = {}
        self.rowids = source.rowids[self._at]
        self.ops = source.ops[self._at]

    def __len__(self) -> int:
        return len(self.rowids)

    @property
    def meta(self) -> OneRowSource:
        """What there is of the row; named as in a DeltaFile's entry."""
        return self

    @cached_property
    def _timestamps(self) -> np.ndarray:
        stamps = self._source.timestamps()
        if stamps is None:
            return np.full(len(self), self._source.meta.timestamp_max, np.uint64)
        return stamps[self._at]

    def timestamps(self) -> np.ndarray:
        """uint64[n], one for each change."""
        return self._timestamps

    @property
    def timestamp_min(self) -> int:
        """The oldest change; there must be one."""
        return int(self._timestamps.min())

    @property
    def timestamp_max(self) -> int:
        """The newest change; there must be one."""
        return int(self._timestamps.max())

    @property
    def delete_count(self) -> int:
        """Number of DELETEs."""
        return int(np.count_nonzero(self.ops == OP_DELETE))

    @property
    def reinsert_count(self) -> int:
        """Number of REINSERTs."""
        return int(np.count_nonzero(self.ops == OP_REINSERT))

    @cached_property
    def update_counts(self) -> Mapping[int, int]:
        """How many changes of the row set a column, by its id."""
        counts = {}
        for column_id in self._source.meta.update_counts:
            column = self.column(column_id)
            is_set = None if column is None else column.is_set
            count = len(self) if is_set is None else int(np.count_nonzero(is_set))
            if count:
                counts[column_id] = count
        return counts

    def column(self, column_id: int) -> DeltaColumn | None:
        """Return a column's new values, None when the source never sets it."""
        if column_id not in self._columns:
            found = self._source.column(column_id)
            if found is not None:
                is_set = None if found.is_set is None else found.is_set[self._at]
                found = DeltaColumn(found.values.take(self._at), is_set)
            self._columns[column_id] = found
        return self._columns[column_id]
