"""Tablet: the rowsets of one superblock, opened for reading, with lookups by key.

A `Tablet` is one version and never changes; a newer superblock is another `Tablet`, which shares
the opened files through the cache. `with_memory` returns the tablet together with the records in
its log after the superblock: a DeltaMemStore on top of each changed DiskRowSet, and the MemRowSet
as the last rowset.

**Threads**: any number may read. Lock order (a writer takes the locks from first to last): the
queue of a tablet's row writers within the process (writes/row_write.py); the tablet locks between
processes, in tablet-id order (storage/table_lock.py); the mutex of a tablet's memory
(mem_stores.py); then the block cache's lock and the mutexes of single stores, which are leaves.
Readers take only the last three.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from kudulite.basefile.block_cache import BlockCache
from kudulite.delta.delta_mem_store import DeltaMemSnapshot
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.model.key_array import KeyArray
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.memrowset import MemRowSetSnapshot
from kudulite.rowset.rowset import RowSet
from kudulite.rowset.rowset_diff import NewestChanges
from kudulite.rowset.rowset_tree import RowSetTree
from kudulite.storage.names import ROWSET_FOLDER
from kudulite.storage.storage import FileRef
from kudulite.tablet.superblock import Superblock
from kudulite.tablet.tombstones import Tombstones

# The memory of an opened rowset, beside its files.
_ROWSET_BYTES = 2048
# Merged deltas: numbers take 2 to 3 times their size in lz4 files, text once to twice.
_MERGED_FACTOR = 2


@dataclass(frozen=True)
class RowLocations:
    """The locations of n keys: `rowset_index` int32[n] into `Tablet.rowsets`, `rowid` int64[n].

    Both are -1 for a key that is not live in the tablet.
    """

    rowset_index: np.ndarray
    rowid: np.ndarray

    @property
    def is_found(self) -> np.ndarray:
        """bool[n]: whether each key is live."""
        return self.rowid >= 0

    def take(self, indices: np.ndarray) -> RowLocations:
        """Return the locations of some of the keys."""
        return RowLocations(self.rowset_index[indices], self.rowid[indices])

    def slice(self, start: int, stop: int) -> RowLocations:
        """Return the locations [start, stop), without a copy."""
        return RowLocations(self.rowset_index[start:stop], self.rowid[start:stop])

    @staticmethod
    def nowhere(count: int) -> RowLocations:
        """Return the locations of `count` keys that are not live."""
        return RowLocations(np.full(count, -1, np.int32), np.full(count, -1, np.int64))


class Tablet:
    """One tablet as one superblock describes it; `folder` is the tablet's folder."""

    def __init__(
        self,
        superblock: Superblock,
        folder: Path,
        disk_rowsets: Sequence[DiskRowSet],
        tombstones: Tombstones,
        memrowset: MemRowSetSnapshot | None = None,
    ) -> None:
        self.superblock = superblock
        self.id = superblock.tablet_id
        self.folder = folder
        self.disk_rowsets = tuple(disk_rowsets)
        self.tombstones = tombstones
        self.memrowset = memrowset
        self.rowsets: tuple[RowSet, ...] = self.disk_rowsets
        current: list[RowSet] = [r for r in self.disk_rowsets if r.meta.delete_timestamp is None]
        if memrowset is not None:
            self.rowsets = (*self.disk_rowsets, memrowset)
            current.append(memrowset)
        self._index_of = {rowset: index for index, rowset in enumerate(self.rowsets)}
        self._disk_index = {rowset.meta.id: at for at, rowset in enumerate(self.disk_rowsets)}
        self.current: RowSetTree[RowSet] = RowSetTree(current)

    @staticmethod
    def open(superblock: Superblock, folder: Path, cache: BlockCache) -> Tablet:
        """Return the tablet without the rows of its log; files are opened when they are needed."""
        disk = [DiskRowSet(m, folder / ROWSET_FOLDER / m.id, cache) for m in superblock.rowsets]
        return Tablet(superblock, folder, disk, Tombstones(superblock.tombstones, folder, cache))

    def with_memory(
        self, memrowset: MemRowSetSnapshot | None, deltas: Mapping[str, DeltaMemSnapshot]
    ) -> Tablet:
        """Return the tablet with a MemRowSet, and DeltaMemStores by rowset id, on top."""
        disk = [
            rowset.with_dms(deltas[rowset.meta.id]) if rowset.meta.id in deltas else rowset
            for rowset in self.disk_rowsets
        ]
        return Tablet(self.superblock, self.folder, disk, self.tombstones, memrowset)

    @property
    def nbytes(self) -> int:
        """Approximate memory of the tablet and its merged deltas, without opened files."""
        redo_bytes = sum(d.ref.length for r in self.disk_rowsets for d in r.meta.redo)
        return _ROWSET_BYTES * (1 + len(self.rowsets)) + _MERGED_FACTOR * redo_bytes

    def rowset(self, rowset_id: str) -> DiskRowSet | None:
        """Return a DiskRowSet by id, or None if this version does not have it."""
        index = self._disk_index.get(rowset_id)
        return None if index is None else self.disk_rowsets[index]

    def files(self) -> Iterator[tuple[Path, FileRef]]:
        """Yield the files of the superblock, with their paths, and its own."""
        own = [] if self.superblock.file is None else [self.superblock.file]
        for ref in (*own, *self.superblock.tablet_file_refs):
            yield self.folder / ref.name, ref
        for rowset in self.disk_rowsets:
            for ref in rowset.meta.file_refs:
                yield rowset.folder / ref.name, ref

    def replaced_files(self, before: Superblock) -> set[str]:
        """Return the paths of the rowset files of an earlier superblock that are not in this."""
        kept = {meta.id: meta.file_names for meta in self.superblock.rowsets}
        return {
            str(self.folder / ROWSET_FOLDER / meta.id / name)
            for meta in before.rowsets
            for name in set(meta.file_names).difference(kept.get(meta.id, ()))
        }

    def visible(self, timestamp: int) -> RowSetTree[RowSet]:
        """Return the rowsets that a snapshot at `timestamp` sees."""
        if timestamp >= self.timestamp_max:
            return self.current
        return RowSetTree([r for r in self.rowsets if r.is_visible(timestamp)])

    def locate(self, keys: KeyArray, timestamp: int) -> RowLocations:
        """Look up ascending `keys` at a snapshot by bounds, bloom filter, key index and deletes.

        O(height of the tablet) array operations over the keys.
        """
        locations = RowLocations.nowhere(len(keys))
        visible = self.visible(timestamp)
        if self._waits:
            self._prefetch(
                partial(rowset.find, keys.slice(start, stop), timestamp)
                for rowset, start, stop in visible.probe_ranges(keys)
                if not rowset.is_key_index_open()
            )
        for rowset, start, stop in visible.probe_ranges(keys):
            rowids = rowset.find(keys.slice(start, stop), timestamp)
            hits = np.flatnonzero(rowids >= 0)
            locations.rowset_index[start + hits] = self._index_of[rowset]
            locations.rowid[start + hits] = rowids[hits]
        return locations

    def locate_one(
        self, key: bytes, width: int | None, timestamp: int
    ) -> tuple[RowSet, int] | None:
        """Look up one key; returns its rowset and row id, or None."""
        visible = self.visible(timestamp)
        if self._waits:
            self._prefetch(_loads_of_key(visible, key, width, timestamp))
        for rowset in visible.covering(key):
            rowid = rowset.find_one(key, width, timestamp)
            if rowid >= 0:
                return rowset, rowid
        return None

    @cached_property
    def _waits(self) -> bool:
        """Whether files are waited for, as in a store, and are therefore opened side by side."""
        return bool(self.disk_rowsets) and self.disk_rowsets[0].storage.requests_at_once > 1

    def _prefetch(self, loads: Iterable[Callable[[], object]]) -> None:
        self.disk_rowsets[0].storage.prefetch(loads)

    def changed_since(
        self, keys: KeyArray, timestamp: int, column_ids: Collection[int]
    ) -> np.ndarray:
        """Return bool[n]: which of ascending `keys` have a change on disk after `timestamp`.

        Every insert, update and delete counts, also of a key that is not live before or after it.
        History after `timestamp` must not have been collected. `column_ids` are the columns of the
        table.
        """
        changed = np.zeros(len(keys), dtype=bool)
        newer = [rowset for rowset in self.disk_rowsets if rowset.meta.timestamp_max > timestamp]
        tree = RowSetTree(newer)
        if self._waits:
            self._prefetch(
                partial(rowset.find_any, keys.slice(start, stop))
                for rowset, start, stop in tree.probe_ranges(keys)
                if not rowset.is_key_index_open()
            )
        for rowset, start, stop in tree.probe_ranges(keys):
            rowids = rowset.find_any(keys.slice(start, stop))
            hits = np.flatnonzero(rowids >= 0)
            if len(hits):
                changes = NewestChanges(rowset, timestamp, TIMESTAMP_MAX, column_ids)
                changed[start + hits] |= changes.of(rowids[hits]) > 0
        return changed

    @property
    def live_row_count(self) -> int:
        """The number of rows in the newest state, from metadata and memory alone."""
        live = 0 if self.memrowset is None else self.memrowset.live_row_count(TIMESTAMP_MAX)
        for rowset in self.disk_rowsets:
            live += rowset.meta.live_row_count
            if rowset.dms is not None and rowset.meta.delete_timestamp is None:
                live -= rowset.dms.meta.delete_count
        return live

    @property
    def memory_row_count(self) -> int:
        """The rows in memory: new ones, and those of DiskRowSets that a DeltaMemStore changes."""
        changed = sum(len(rowset.dms) for rowset in self.disk_rowsets if rowset.dms is not None)
        return changed + (0 if self.memrowset is None else self.memrowset.row_count)

    @cached_property
    def timestamp_max(self) -> int:
        """The newest timestamp of any change in the tablet."""
        newest = 0 if self.memrowset is None else self.memrowset.timestamp_max
        for rowset in self.disk_rowsets:
            newest = max(newest, rowset.meta.timestamp_max)
            if rowset.dms is not None:
                newest = max(newest, rowset.dms.meta.timestamp_max)
        return newest


def _loads_of_key(
    visible: RowSetTree[RowSet], key: bytes, width: int | None, timestamp: int
) -> Iterator[Callable[[], object]]:
    """Yield what opens the files that the lookup of a key waits for.

    Where one rowset may have it, the key index is opened beside the bloom filter: the key that one
    asks for is mostly there.
    """
    closed = [rowset for rowset in visible.covering(key) if not rowset.is_key_index_open()]
    if len(closed) == 1:
        yield from closed[0].key_loads(timestamp)
    else:
        yield from (partial(rowset.find_one, key, width, timestamp) for rowset in closed)
