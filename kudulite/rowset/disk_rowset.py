"""DiskRowSet: base data with its key index, bloom filter and deltas, read at a snapshot.

    rowid = position of a row in base data = position of its key in the key index

A scan goes block by block (a row group, or the part of it inside the key bounds): predicate columns
first, each brought forward by the deltas; then, only when rows survive, the other columns.

Invariants: (1) statistics of base data exclude a block only for columns that no visible delta
touches; (2) opened files are shared through the cache under their path, since a file never changes.

Threads: any number may read; nothing here is changed after it is made.

Source: Kudu tablet.md, "DiskRowSet" and "Delta tracking".
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from kudulite.cfile.base_data import ROW_GROUP_ROWS
from kudulite.cfile.block_cache import BlockCache
from kudulite.cfile.bloom import BloomFilter
from kudulite.cfile.key_index import KeyIndex
from kudulite.cfile.mapped_file import kept_bytes
from kudulite.delta.delta_mem_store import DeltaMemSnapshot
from kudulite.delta.delta_overlay import DeltaOverlay, DeltaSource
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Column
from kudulite.rowset.base_columns import BaseColumns
from kudulite.rowset.overlay_memo import OverlayMemo
from kudulite.rowset.rowset import Block, RowSet, cell_value
from kudulite.rowset.rowset_deltas import RowSetDeltas
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.rowset.scan_spec import ScanSpec

_KEY_BYTES = 12
# Fewer keys than this are searched in an index that is in memory sooner than in the bloom filter.
_BLOOM_KEYS_MIN = 500


class DiskRowSet(RowSet):
    """One rowset as a superblock describes it, reading its files from `folder`, its own.

    `base` is its base data as it is, without deltas.
    """

    def __init__(
        self,
        meta: RowSetMeta,
        folder: Path,
        cache: BlockCache,
        dms: DeltaMemSnapshot | None = None,
    ) -> None:
        """`dms` holds the changes that are newer than all REDO files."""
        self.meta = meta
        self.folder = folder
        self.key_min, self.key_max = meta.key_min, meta.key_max
        self.lifetime = meta.insert_timestamp, meta.delete_timestamp
        self.base = BaseColumns(meta, folder, cache)
        self._cache = cache
        self._deltas = RowSetDeltas(meta, folder, cache)
        self._dms = dms
        self._overlays: OverlayMemo | None = None  # with memory, made when one is asked for
        # Paths as text: building and hashing a Path costs more than the lookup that it is for.
        self._key_index_path = str(folder / meta.key_index.name)
        self._bloom_path = str(folder / meta.bloom.name)

    def with_dms(self, dms: DeltaMemSnapshot | None) -> DiskRowSet:
        """Return the same rowset with other changes in memory; opened files are shared."""
        other = copy.copy(self)
        other._dms = dms
        other._overlays = None
        return other

    @property
    def dms(self) -> DeltaMemSnapshot | None:
        """The changes that are newer than all REDO files."""
        return self._dms

    @property
    def key_index(self) -> KeyIndex:
        """The encoded keys in row order."""
        return self._cache.get_or_load(self._key_index_path, self._load_key_index)

    def is_visible(self, timestamp: int) -> bool:
        """Whether a snapshot at `timestamp` (inclusive) sees the rowset at all."""
        return self.meta.is_visible(timestamp)

    def overlay(self, timestamp: int) -> DeltaOverlay:
        """Return the fold of the deltas that a snapshot at `timestamp` sees."""
        dms = self._dms
        if dms is None or not len(dms):
            return self._deltas.overlay(timestamp)
        if self._overlays is None:
            newest = max(dms.meta.timestamp_max, self._deltas.timestamp_max)
            self._overlays = OverlayMemo(newest)
        return self._overlays.at(timestamp, self._fold)

    def _fold(self, timestamp: int) -> DeltaOverlay:
        assert self._dms is not None
        return self._deltas.overlay(timestamp).with_memory(self._dms, timestamp)

    def live_row_count(self, timestamp: int) -> int:
        """Number of rows that a snapshot sees, from deltas alone."""
        return self.meta.row_count - len(self.overlay(timestamp).deleted)

    # -- lookups by key

    def find(self, keys: KeyArray, timestamp: int) -> np.ndarray:
        """Return int64[n]: the row ids of ascending `keys` live at `timestamp`, else -1."""
        index = self._cache.get(self._key_index_path)
        if len(keys) < _BLOOM_KEYS_MIN and index is not None and index.is_whole:
            rowids = index.find(keys)
        else:
            rowids = np.full(len(keys), -1, dtype=np.int64)
            maybe = np.flatnonzero(self._bloom().may_contain(keys))
            if len(maybe):
                rowids[maybe] = self.key_index.find(keys.take(maybe))
        if (rowids >= 0).any():
            overlay = self.overlay(timestamp)
            if not overlay.is_empty and len(overlay.deleted):
                rowids[(rowids >= 0) & overlay.is_deleted(rowids)] = -1
        return rowids

    def find_one(self, key: bytes, width: int | None, timestamp: int) -> int:
        """Return the row id of `key` if it is live at `timestamp`, else -1."""
        # The bloom filter saves loading keys; searching those in memory costs no more than it.
        index = self._cache.get(self._key_index_path)
        rowid = None if index is None else index.find_loaded(key)
        if rowid is None:
            if not self._bloom().may_contain_one(key, width):
                return -1
            rowid = self.key_index.find_one(key)
        if rowid >= 0 and self.overlay(timestamp).is_row_deleted(rowid):
            return -1
        return rowid

    def read_rows(
        self, rowids: np.ndarray, columns: Sequence[Column], timestamp: int
    ) -> list[pa.Array]:
        """Return each column's values of int64[n] row ids in any order, as of `timestamp`.

        Decoded blocks are kept in the cache: the next reader of a near row pays no decoding.
        """
        overlay = self.overlay(timestamp)
        base = self.base.gather(rowids, columns)
        return [
            overlay.apply_rows(values, column.id, rowids)
            for values, column in zip(base, columns, strict=True)
        ]

    # -- scans

    def blocks(self, spec: ScanSpec) -> Iterator[Block]:
        """Yield the blocks that may hold a matching row, in row order."""
        start, stop = self._rowid_range(spec.lower, spec.upper)
        if start >= stop:
            return
        overlay = self.overlay(spec.timestamp)
        checked = [
            (name, column.id)
            for name in spec.predicates.columns
            if not overlay.changes_column((column := spec.schema.column(name)).id)
        ]
        for group in range(start // ROW_GROUP_ROWS, (stop - 1) // ROW_GROUP_ROWS + 1):
            group_start = group * ROW_GROUP_ROWS
            group_stop = min(group_start + ROW_GROUP_ROWS, self.meta.row_count)
            if all(self._may_match(spec, name, cid, group) for name, cid in checked):
                yield Block(group, max(start, group_start), min(stop, group_stop))

    def rowids_of(self, block: Block) -> np.ndarray:
        """Return int64[n]: the row ids of a block's rows."""
        return np.arange(block.start, block.stop)

    def keys_of(self, block: Block, positions: np.ndarray | None) -> KeyArray:
        """Return the keys of a block's rows at int64[m] `positions`; None is all of them."""
        keys = self.key_index.slice(block.start, block.stop)
        return keys if positions is None else keys.take(positions)

    def live_in(self, block: Block, timestamp: int) -> np.ndarray | None:
        """Return bool[n]: which of a block's rows are not deleted; None when none is."""
        return self.overlay(timestamp).selection(block.start, block.stop)

    def read_images(
        self,
        block: Block,
        columns: Sequence[Column],
        views: Sequence[tuple[DeltaOverlay, np.ndarray | None]],
    ) -> list[list[pa.Array]]:
        """Return, for each view, the columns' values of the block's rows at its positions."""
        base = list(zip(self.base.read(block, columns), columns, strict=True))
        return [
            [overlay.apply_range(values, c.id, block.start, at) for values, c in base]
            for overlay, at in views
        ]

    def _rowid_range(self, lower: bytes | None, upper: bytes | None) -> tuple[int, int]:
        start, stop = 0, self.meta.row_count
        if lower is not None and lower > self.meta.key_min:
            start = self.key_index.locate(lower, "left")
        if upper is not None and upper <= self.meta.key_max:
            stop = self.key_index.locate(upper, "left")
        return start, stop

    def _may_match(self, spec: ScanSpec, name: str, column_id: int, group: int) -> bool:
        statistics = self.base.statistics(column_id, group)
        if statistics is None:
            return True
        low, high, null_count = statistics
        start = group * ROW_GROUP_ROWS
        stop = min(start + ROW_GROUP_ROWS, self.meta.row_count)
        return spec.predicates.may_match_statistics(name, low, high, null_count, stop - start)

    def read_row(self, rowid: int, columns: Sequence[Column], timestamp: int) -> list[object]:
        """Return one row's cells as Python values, as of `timestamp`."""
        overlay = self.overlay(timestamp)
        is_changed = not overlay.is_empty and overlay.changes_row(rowid)
        return [self._read_cell(rowid, c, overlay if is_changed else None) for c in columns]

    def _read_cell(self, rowid: int, column: Column, overlay: DeltaOverlay | None) -> object:
        changed = None if overlay is None else overlay.cell(rowid, column.id)
        if changed is not None:
            return cell_value(changed, column)
        return self.base.cell(rowid, column)

    # -- what changed

    def delta_sources(self) -> tuple[Sequence[DeltaSource], Sequence[DeltaSource]]:
        """Return the sources of UNDO, newest first, and of REDO, oldest first, not opened yet."""
        undo, redo = self._deltas.files()
        return undo, redo if self._dms is None else [*redo, self._dms]

    def are_there(self, rowids: np.ndarray, timestamp: int, overlay: DeltaOverlay) -> np.ndarray:
        """Return bool[n]: which of int64[n] row ids are live; `overlay` is that of `timestamp`."""
        if not self.is_visible(timestamp):
            return np.zeros(len(rowids), dtype=bool)
        return ~overlay.is_deleted(rowids)

    # -- files

    def _load_key_index(self) -> tuple[KeyIndex, int]:
        index = KeyIndex(Path(self._key_index_path), self.meta.key_index)
        return index, _KEY_BYTES * self.meta.row_count + kept_bytes(self.meta.key_index)

    def _bloom(self) -> BloomFilter:
        return self._cache.get_or_load(self._bloom_path, self._load_bloom)

    def _load_bloom(self) -> tuple[BloomFilter, int]:
        bloom = BloomFilter(Path(self._bloom_path), self.meta.bloom)
        return bloom, self.meta.bloom.length
