"""Minor delta compaction: adjacent DeltaFiles of one DiskRowSet become one, in their place.

    REDO   a b [c d e] f g   ->   a b [cde] f g        oldest first
    UNDO   x [y z]           ->   x [yz]               newest first; what is ancient may leave

Every change stays as it was, so each read gives the same; only fewer files are opened for it. Base
data, row ids and the other files are not touched, nor what is appended to the rowset meanwhile.

Files are durable when a function returns, their folder's names too; they become part of the tablet
when a superblock lists the entry that was returned. Before that, nobody refers to them.

Threads: any; nothing that is there is changed.

Source: Kudu delta_compaction.cc and delta_tracker.cc, "CompactStores".
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kudulite.delta.delta_history import merge_redo, merge_undo, without_ancient
from kudulite.fs.file_system import FileSystem
from kudulite.rowset.rowset_deltas import read_deltas, write_deltas
from kudulite.rowset.rowset_meta import RowSetMeta


def merge_redo_files(
    file_system: FileSystem, folder: Path, meta: RowSetMeta, start: int, stop: int
) -> RowSetMeta:
    """Return the rowset with its REDO files start..stop (not included) as one new file.

    `folder` is the rowset's own. Memory: the changes of these files. Raises StorageError.
    """
    assert 0 <= start < stop <= len(meta.redo)
    rows = merge_redo(read_deltas(folder, meta.redo[start:stop], meta.row_count))
    merged = write_deltas(file_system, folder, "redo", rows)
    file_system.sync_directory(folder)
    return replace(meta, redo=(*meta.redo[:start], *merged, *meta.redo[stop:]))


def merge_undo_files(
    file_system: FileSystem, folder: Path, meta: RowSetMeta, start: int, stop: int, *, mark: int
) -> RowSetMeta:
    """Return the rowset with its UNDO files start..stop (not included) as one new file, or none.

    Where `stop` is behind the oldest file, changes at or before the ancient history mark `mark`
    leave. In front of older files they stay: a gap in what happened to a row would look like
    damage. `folder` is the rowset's own. Raises StorageError.
    """
    assert 0 <= start < stop <= len(meta.undo)
    rows = merge_undo(read_deltas(folder, meta.undo[start:stop], meta.row_count))
    if stop == len(meta.undo):
        rows = without_ancient(rows, mark)
    merged = write_deltas(file_system, folder, "undo", rows)
    file_system.sync_directory(folder)
    return replace(meta, undo=(*meta.undo[:start], *merged, *meta.undo[stop:]))
