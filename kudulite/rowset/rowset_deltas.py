"""The delta files of one DiskRowSet, folded for the snapshots that ask.

The fold for the newest state is kept, and that of one past moment: a scan asks for it once per
block. Changes in memory are not among them, so that all versions of a DeltaMemStore share a fold.

Threads: any; a fold done twice gives the same.
"""

from __future__ import annotations

from pathlib import Path

from kudulite.cfile.block_cache import BlockCache
from kudulite.delta.delta_file import DeltaFile, DeltaFileMeta
from kudulite.delta.delta_overlay import DeltaOverlay
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

    def _file(self, meta: DeltaFileMeta) -> DeltaFile:
        path = self._folder / meta.ref.name
        return self._cache.get_or_load(
            str(path), lambda: (DeltaFile(path, meta, self._meta.row_count), 2 * meta.ref.length)
        )
