"""A MemRowSet as a flush writes it: base data, UNDO and REDO.

    insert@10  update@20  delete@30  insert@40  update@50           one row's changes
                                                    └── base: the newest image
    UNDO, newest first: 50 set the values before · 40 DELETE · 30 REINSERT of the row as it was then
                        20 set the values before
    first insert: 10

A flush is a merge of row versions with the MemRowSet as its only input. Each change after a row's
first insert becomes one UNDO of the same timestamp. The exception is a DELETE that is the row's
last change: it stays REDO, and the base keeps the row's last image for readers of the past.

Invariants: (1) a row's first change is its insert, which sets all columns; (2) base row ids follow
the keys' order; (3) UNDO is sorted by row id, newest first within a row, REDO has at most one
change a row; neither sets a key column.

Source: Kudu tablet.cc, DoMergeCompactionOrFlush; compaction.cc, MemRowSetCompactionInput.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kudulite.delta.delta_file import DeltaRows
from kudulite.model.key_array import KeyArray
from kudulite.rowset.memrowset import MemRowSetSnapshot
from kudulite.rowset.row_versions import memrowset_lives, merge_row_versions


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
    merged = merge_row_versions([memrowset_lives(snapshot)], snapshot.schema)
    history = merged.history(mark=0, oldest=0)
    return FlushImage(
        keys=merged.keys,
        rows=merged.table(snapshot.schema),
        insert_timestamps=history.insert_timestamps,
        undo=_unless_empty(history.undo),
        redo=_unless_empty(history.redo),
    )


def _unless_empty(rows: DeltaRows | None) -> DeltaRows | None:
    return None if rows is None or not len(rows.rowids) else rows
