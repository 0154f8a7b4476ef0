"""Histories as a MemRowSet, and flushed to DiskRowSets."""

from __future__ import annotations

from pathlib import Path

import pytest
from row_histories import Versions, apply_changes

from kudulite.cfile.block_cache import BlockCache
from kudulite.fs.file_system import FileSystem
from kudulite.rowset import rowset_writer
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.flush_image import flush_image
from kudulite.rowset.memrowset import MemRowSet
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.rowset.rowset_writer import RowHistory, write_rowsets


def in_memory(versions: Versions) -> MemRowSet:
    """A MemRowSet with all changes, applied in one call."""
    memory = MemRowSet(versions.schema)
    apply_changes(memory, versions, versions.changes)
    return memory


def flushed(memory: MemRowSet, folder: Path, rows_max: int) -> list[RowSetMeta]:
    """Write a MemRowSet to rowsets of at most so many rows."""
    image = flush_image(memory.snapshot())
    history = RowHistory(image.insert_timestamps, image.undo, image.redo)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rowset_writer, "ROW_GROUP_ROWS", rows_max)
        patch.setattr(rowset_writer, "ROWSET_ROWS_MAX", rows_max)
        metas = list(
            write_rowsets(FileSystem(), folder, memory.schema, image.keys, image.rows, history)
        )
    assert all(RowSetMeta.from_json(meta.to_json()) == meta for meta in metas)
    for meta in metas:
        assert {path.name for path in (folder / meta.id).iterdir()} == set(meta.file_names)
    return metas


def opened(metas: list[RowSetMeta], folder: Path) -> list[DiskRowSet]:
    """The rowsets, each with its own cache."""
    return [DiskRowSet(meta, folder / meta.id, BlockCache(1 << 20)) for meta in metas]
