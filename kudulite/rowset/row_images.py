"""RowImages: rows with their history, in the form that new rowsets store.

**Threads**: any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kudulite.delta.delta_file import DeltaRows, concat_moved, rows_between
from kudulite.model.key_array import KeyArray


@dataclass(frozen=True)
class RowImages:
    """n rows as rowsets store them: ascending `keys`, the newest image of each row, its history.

    `insert_timestamps` is uint64[n], or None for the rows of one commit, which have no history.
    Row ids of `undo` and `redo` are positions in `rows`, and each change has its own timestamp.
    `undo` takes a row back to its first insert and is newest first within a row; the inserts are
    not part of it. None and no changes mean the same.
    """

    keys: KeyArray
    rows: pa.Table
    insert_timestamps: np.ndarray | None = None
    undo: DeltaRows | None = None
    redo: DeltaRows | None = None

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Approximate bytes of the cells of images and deltas."""
        deltas = [changes for changes in (self.undo, self.redo) if changes is not None]
        columns = [column for changes in deltas for column in changes.columns.values()]
        cells: int = self.rows.nbytes + sum(column.values.nbytes for column in columns)
        return cells + sum(changes.rowids.nbytes for changes in deltas)

    def cut(self, start: int, stop: int) -> RowImages:
        """Return rows start..stop, the row ids of their deltas from 0."""
        stamps = self.insert_timestamps
        return RowImages(
            self.keys.slice(start, stop),
            self.rows.slice(start, stop - start),
            None if stamps is None else stamps[start:stop],
            None if self.undo is None else rows_between(self.undo, start, stop),
            None if self.redo is None else rows_between(self.redo, start, stop),
        )

    @staticmethod
    def concat(parts: Sequence[RowImages]) -> RowImages:
        """Return parts with ascending keys, one after the other.

        All or none of them have insert timestamps.
        """
        starts = np.cumsum([0, *(len(part) for part in parts)])
        stamps = [part.insert_timestamps for part in parts if part.insert_timestamps is not None]
        assert len(stamps) in (0, len(parts)), "only some parts have history"
        return RowImages(
            KeyArray.concat([part.keys for part in parts]),
            pa.concat_tables([part.rows for part in parts]),
            np.concatenate(stamps) if stamps else None,
            concat_moved([part.undo for part in parts], starts),
            concat_moved([part.redo for part in parts], starts),
        )
