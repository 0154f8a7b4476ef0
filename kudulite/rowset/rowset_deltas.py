"""The delta files of one DiskRowSet, folded for the snapshots that ask.

The fold for the newest state is kept, and that of one past moment: a scan asks for it once per
block. Changes in memory are not among them, so that all versions of a DeltaMemStore share a fold.

Threads: any; a fold done twice gives the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kudulite.cfile.block_cache import BlockCache
from kudulite.cfile.mapped_file import kept_bytes
from kudulite.delta.delta_file import DeltaFile, DeltaFileMeta, DeltaRows, create_delta_file
from kudulite.delta.delta_history import stamped
from kudulite.delta.delta_overlay import DeltaOverlay
from kudulite.delta.delta_rows import without_unset
from kudulite.fs.file_system import FileSystem
from kudulite.rowset.overlay_memo import OverlayMemo
from kudulite.rowset.rowset_meta import RowSetMeta


class RowSetDeltas:
    """The UNDO and REDO files that a superblock lists for a rowset in `folder`."""

    def __init__(self, meta: RowSetMeta, folder: Path, cache: BlockCache) -> None:
        self._meta = meta
        self._folder = folder
        self._cache = cache
        self.timestamp_max = max((m.timestamp_max for m in (*meta.redo, *meta.undo)), default=0)
        self._overlays = OverlayMemo(self.timestamp_max)

    def overlay(self, timestamp: int) -> DeltaOverlay:
        """Return the fold of the files that a snapshot at `timestamp` sees."""
        return self._overlays.at(timestamp, self._fold)

    def _fold(self, timestamp: int) -> DeltaOverlay:
        undo = [self._file(m) for m in self._meta.undo if m.timestamp_max > timestamp]
        redo = [self._file(m) for m in self._meta.redo if m.timestamp_min <= timestamp]
        return DeltaOverlay(redo, timestamp, undo)

    def files(self) -> tuple[list[DeltaFile], list[DeltaFile]]:
        """Return the UNDO files, newest first, and the REDO files, oldest first, not read yet."""
        return [self._file(m) for m in self._meta.undo], [self._file(m) for m in self._meta.redo]

    def _file(self, meta: DeltaFileMeta) -> DeltaFile:
        path = self._folder / meta.ref.name
        nbytes = 2 * meta.ref.length + kept_bytes(meta.ref)
        return self._cache.get_or_load(
            str(path), lambda: (DeltaFile(path, meta, self._meta.row_count), nbytes)
        )


def read_deltas(folder: Path, entries: Sequence[DeltaFileMeta], row_count: int) -> list[DeltaRows]:
    """Return whole files of a rowset with `row_count` rows, each row with its timestamp.

    They are read once and not kept in a cache. Raises CorruptionError, StorageError.
    """
    return [stamped(DeltaFile(folder / entry.ref.name, entry, row_count)) for entry in entries]


def write_deltas(
    file_system: FileSystem, folder: Path, kind: str, rows: DeltaRows | None
) -> tuple[DeltaFileMeta, ...]:
    """Write rows to a new file of the rowset in `folder`, "redo" or "undo"; no file without rows.

    The file is durable, its name after the folder is synced.
    """
    if rows is None or not len(rows.rowids):
        return ()
    return (create_delta_file(file_system, folder, kind, without_unset(rows)),)
