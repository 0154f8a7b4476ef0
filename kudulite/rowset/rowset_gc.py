"""What of a DiskRowSet no legal read can see any more, told from its entry alone.

A read is at the ancient history mark or later, and a snapshot at T shows changes up to and
including T. So an UNDO of a change at or before the mark is never applied, and a row whose DELETE
is at or before the mark is in no snapshot.

Nothing is removed here: who publishes a superblock without the files leaves them to the sweep.
"""

from __future__ import annotations

from dataclasses import replace

from kudulite.rowset.rowset_meta import RowSetMeta


def without_ancient_undo(meta: RowSetMeta, mark: int) -> RowSetMeta:
    """Return the rowset without the UNDO files that hold ancient changes only; opens no file."""
    undo = tuple(delta for delta in meta.undo if delta.timestamp_max > mark)
    return meta if len(undo) == len(meta.undo) else replace(meta, undo=undo)


def is_dead_for_ever(meta: RowSetMeta, mark: int) -> bool:
    """Whether no snapshot at `mark` or later sees a row of the rowset.

    It was ended by then, or each of its rows was deleted by then. In the second case no REDO is
    newer than the newest DELETE, for a deleted row changes no more: the files' newest moments say
    exactly whether all DELETEs are ancient.
    """
    if meta.delete_timestamp is not None and meta.delete_timestamp <= mark:
        return True
    deleted = sum(delta.delete_count for delta in meta.redo)
    return deleted == meta.row_count and all(delta.timestamp_max <= mark for delta in meta.redo)
