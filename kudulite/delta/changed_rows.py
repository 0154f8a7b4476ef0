"""Which rows of a rowset changed in a window of time, and when last, from its deltas alone.

    changed in (start, end] = has an UNDO, REDO or memory entry with start < timestamp ≤ end

An entry tells the moment of its change whichever way it takes the row, so it does not matter here
how far base data has moved forward in time. What a row was at either end of the window is the
business of the overlays at these moments.

An UPDATE that sets no column of the table (only dropped ones) is no change: a compaction loses it,
and the answer must not depend on compactions.

Source: Kudu delta_relevancy.h, for diff scans.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from kudulite.delta.delta_file import OP_UPDATE
from kudulite.delta.delta_overlay import DeltaSource


@dataclass(frozen=True)
class ChangedRows:
    """m changed rows: `rowids` int64[m] strictly ascending, uint64[m] newest change of each."""

    rowids: np.ndarray
    timestamps: np.ndarray

    def newest_of(self, rowids: np.ndarray) -> np.ndarray:
        """Return uint64[n]: the newest change of each of int64[n] row ids, 0: there is none."""
        newest = np.zeros(len(rowids), np.uint64)
        if len(self.rowids) and len(rowids):
            at = np.searchsorted(self.rowids, rowids)
            at[at == len(self.rowids)] = 0
            hit = self.rowids[at] == rowids
            newest[hit] = self.timestamps[at[hit]]
        return newest


def changed_rows(
    sources: Iterable[DeltaSource],
    start: int,
    end: int,
    column_ids: Collection[int],
    not_at: int = 0,
) -> ChangedRows:
    """Return the rows with a change in (start, end], but for changes at the moment `not_at`.

    `column_ids` are the columns of the table. O(changes of the sources).
    """
    parts = [changes_within(source, start, end, column_ids) for source in sources]
    rowids = np.concatenate([np.empty(0, np.int64), *(part[0] for part in parts)])
    stamps = np.concatenate([np.empty(0, np.uint64), *(part[1] for part in parts)])
    if not_at:
        kept = stamps != not_at
        rowids, stamps = rowids[kept], stamps[kept]
    order = np.lexsort((stamps, rowids))
    rowids, stamps = rowids[order], stamps[order]
    is_newest = np.append(rowids[1:] != rowids[:-1], True)[: len(rowids)]
    return ChangedRows(rowids[is_newest], stamps[is_newest])


def changes_within(
    source: DeltaSource, start: int, end: int, column_ids: Collection[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return row ids and timestamps of a source's changes in (start, end], in its order."""
    meta = source.meta
    if meta.timestamp_max <= start or meta.timestamp_min > end:
        return np.empty(0, np.int64), np.empty(0, np.uint64)
    rowids = source.rowids
    stamps = source.timestamps()
    if stamps is None:
        stamps = np.full(len(rowids), meta.timestamp_max, np.uint64)
    taken = _is_change(source, column_ids)
    if meta.timestamp_min <= start:
        taken &= stamps > start
    if meta.timestamp_max > end:
        taken &= stamps <= end
    return rowids[taken], stamps[taken]


def _is_change(source: DeltaSource, column_ids: Collection[int]) -> np.ndarray:
    """Return bool[n]: which entries change a column of the table, or whether a row is there."""
    changes = source.ops != OP_UPDATE
    counts = source.meta.update_counts
    known = [column_id for column_id in counts if column_id in column_ids]
    # DELETEs set nothing: a column that all other entries set needs no look at its cells.
    if any(counts[column_id] >= len(changes) - source.meta.delete_count for column_id in known):
        return np.ones(len(changes), dtype=bool)
    for column_id in known:
        column = source.column(column_id)
        if column is not None and column.is_set is not None:
            changes = changes | column.is_set
    return changes
