"""Tablet: the rowsets of one superblock, opened for reading, with lookups by key.

A `Tablet` is one version and never changes; a newer superblock is another `Tablet`, which shares
the opened files through the cache.

Threads: any number may read.

Lock order (a writer takes them top down): the tablet locks between processes, in tablet-id order
(fs/lock.py); then the block cache's lock, a leaf. Readers take the cache's lock alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from kudulite.cfile.block_cache import BlockCache
from kudulite.model.key_array import KeyArray
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.rowset_tree import RowSetTree
from kudulite.tablet.superblock import Superblock

ROWSET_FOLDER = "rowset"
LOCK_NAME = "lock"


@dataclass(frozen=True)
class RowLocations:
    """Where n keys are live: `rowset_index` int32[n] into `Tablet.rowsets` and `rowid` int64[n].

    Both are -1 for a key that is not in the tablet.
    """

    rowset_index: np.ndarray
    rowid: np.ndarray

    @property
    def is_found(self) -> np.ndarray:
        """bool[n]."""
        return self.rowid >= 0

    def take(self, indices: np.ndarray) -> RowLocations:
        """Return the locations of some of the keys."""
        return RowLocations(self.rowset_index[indices], self.rowid[indices])

    @staticmethod
    def nowhere(count: int) -> RowLocations:
        """Return the locations of `count` keys that are not there."""
        return RowLocations(np.full(count, -1, np.int32), np.full(count, -1, np.int64))


class Tablet:
    """One tablet as one superblock describes it; `folder` is the tablet's own."""

    def __init__(self, superblock: Superblock, folder: Path, cache: BlockCache) -> None:
        self.superblock = superblock
        self.id = superblock.tablet_id
        self.folder = folder
        self.rowsets = tuple(
            DiskRowSet(meta, folder / ROWSET_FOLDER / meta.id, cache) for meta in superblock.rowsets
        )
        self._index_of = {rowset.meta.id: index for index, rowset in enumerate(self.rowsets)}
        current = [rowset for rowset in self.rowsets if rowset.meta.delete_timestamp is None]
        self.current = RowSetTree(current)

    def rowset(self, rowset_id: str) -> DiskRowSet | None:
        """Return a rowset by id, or None when this version does not have it."""
        index = self._index_of.get(rowset_id)
        return None if index is None else self.rowsets[index]

    def visible(self, timestamp: int) -> RowSetTree[DiskRowSet]:
        """Return the rowsets that a snapshot at `timestamp` sees."""
        if timestamp >= self.timestamp_max:
            return self.current
        return RowSetTree([r for r in self.rowsets if r.meta.is_visible(timestamp)])

    def locate(self, keys: KeyArray, timestamp: int) -> RowLocations:
        """Look up ascending `keys` at a snapshot: bounds, bloom filter, key index, deletes.

        O(height of the tablet) array operations over the keys.
        """
        locations = RowLocations.nowhere(len(keys))
        for rowset, start, stop in self.visible(timestamp).probe_ranges(keys):
            rowids = rowset.find(keys.slice(start, stop), timestamp)
            found = np.flatnonzero(rowids >= 0)
            locations.rowset_index[start + found] = self._index_of[rowset.meta.id]
            locations.rowid[start + found] = rowids[found]
        return locations

    def locate_one(
        self, key: bytes, width: int | None, timestamp: int
    ) -> tuple[DiskRowSet, int] | None:
        """Look up one key; returns its rowset and row id, or None."""
        for rowset in self.visible(timestamp).covering(key):
            rowid = rowset.find_one(key, width, timestamp)
            if rowid >= 0:
                return rowset, rowid
        return None

    @property
    def live_row_count(self) -> int:
        """Rows of the newest state, from metadata alone."""
        return sum(rowset.meta.live_row_count for rowset in self.rowsets)

    @cached_property
    def timestamp_max(self) -> int:
        """The newest timestamp of any change in the tablet."""
        newest = 0
        for meta in self.superblock.rowsets:
            stamps = [meta.insert_timestamp, meta.delete_timestamp or 0]
            newest = max(newest, *stamps, *(delta.timestamp_max for delta in meta.redo))
        return newest
