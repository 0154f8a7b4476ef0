"""What a DiskRowSet costs its readers beyond clean base data, from its superblock entry alone.

    REDO     updates and deletes that every read applies; updates can become base data
    UNDO     history: the bytes that only reads of the past touch, and those that no legal read does
    dead     rows that are deleted: kept for the past, dropped once their DELETE is ancient

A change is ancient when its timestamp is at or before the ancient history mark. Where a file holds
changes on both sides of the mark, its share behind it is estimated: as if they came evenly between
its oldest and its newest.

Threads: any; all functions are pure.
"""

from __future__ import annotations

from collections.abc import Collection

from kudulite.cfile.base_data import ROW_GROUP_ROWS
from kudulite.delta.delta_file import DeltaFileMeta
from kudulite.rowset.rowset_gc import is_dead_for_ever, without_ancient_undo
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.rowset.rowset_writer import ROWSET_ROWS_MAX

# A rowset of so many bytes is not worth joining with its neighbours; Kudu's size of a rowset.
FULL_ROWSET_BYTES = 32 << 20


def collectable_bytes(meta: RowSetMeta, mark: int) -> int:
    """Return the size of the files that no legal read needs: all of them, or whole UNDO files."""
    if is_dead_for_ever(meta, mark):
        return meta.bytes_on_disk
    return meta.bytes_on_disk - without_ancient_undo(meta, mark).bytes_on_disk


def ancient_bytes(meta: RowSetMeta, mark: int) -> int:
    """Estimate the bytes of a rowset's history that no legal read needs."""
    if is_dead_for_ever(meta, mark):
        return meta.bytes_on_disk
    return sum(int(delta.ref.length * _ancient_share(delta, mark)) for delta in meta.undo)


def dead_row_count(meta: RowSetMeta) -> int:
    """Return how many rows are deleted but still stored."""
    return meta.row_count - meta.live_row_count


def ancient_row_count(meta: RowSetMeta, mark: int) -> int:
    """Estimate how many rows are deleted behind the mark: a merging compaction drops them."""
    return sum(int(delta.delete_count * _ancient_share(delta, mark)) for delta in meta.redo)


def update_bytes(meta: RowSetMeta, column_ids: Collection[int]) -> dict[int, int]:
    """Estimate the bytes of REDO by column, for those of `column_ids` that any update sets.

    The bytes of a file are spread evenly over its row ids and cells. Deletes are not counted: they
    stay REDO whatever columns are compacted.
    """
    sizes: dict[int, int] = {}
    for delta in meta.redo:
        cell_count = delta.row_count + sum(delta.update_counts.values())
        for column_id, count in delta.update_counts.items():
            if column_id in column_ids and count:
                size = delta.ref.length * count // max(1, cell_count)
                sizes[column_id] = sizes.get(column_id, 0) + size
    return sizes


def updated_cell_count(meta: RowSetMeta, column_id: int) -> int:
    """Return how many updates of a column REDO holds."""
    return sum(delta.update_counts.get(column_id, 0) for delta in meta.redo)


def column_bytes(meta: RowSetMeta, column_id: int) -> int:
    """Estimate the bytes of a column's base data: its part of the file if all were alike.

    For a column that was added later it is what a bit per row would take.
    """
    for base in meta.base:
        if column_id in base.column_ids:
            return max(1, base.ref.length // len(base.column_ids))
    return max(1, meta.row_count // 8)


def fullness(meta: RowSetMeta) -> float:
    """Return how full a rowset is, between 0 and 1; a full one is not joined with its neighbours.

    A writer rolls over to the next rowset at a row group's border, for reasons of size that the
    entry does not tell: so a whole number of row groups is full.
    """
    if meta.row_count % ROW_GROUP_ROWS == 0:
        return 1.0
    return min(1.0, max(meta.bytes_on_disk / FULL_ROWSET_BYTES, meta.row_count / ROWSET_ROWS_MAX))


def _ancient_share(delta: DeltaFileMeta, mark: int) -> float:
    if delta.timestamp_max <= mark:
        return 1.0
    if delta.timestamp_min > mark:
        return 0.0
    return (mark - delta.timestamp_min) / (delta.timestamp_max - delta.timestamp_min)
