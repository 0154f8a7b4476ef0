"""DiskRowSet: base data with key index, bloom filter and deltas, read at a snapshot.

    row id = position of a row in base data = position of its key in the key index

A scan reads block by block, a row group or the part of one inside the key bounds: first the
predicate columns with their deltas applied, then, only when rows match, the other columns.

Base data is read by column id from the file that has the column now:

    column id -> the one base file that the superblock lists it for -> row group, name in that file
    no file                                                         -> the column's read default
    a file from before the column's type was widened                -> its values, cast

A rowset begins with one base file. A major compaction of some columns writes another file with just
these. The merged delta files are kept for the newest state and for one past timestamp, because a
scan asks for them once per block. Changes in memory are merged on top.

**Invariants**: (1) statistics of base data exclude a block only for columns that no visible delta
changes; (2) opened files are shared through the cache under their path, since a file never changes;
(3) all base files of a rowset have the same rows, so a row id is the same row in each; (4) base
data includes the last image of each ghost row.

**Threads**: any number may read; nothing here is changed after it is made.

**Source**: Kudu tablet.md, "DiskRowSet" and "Delta tracking".
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kudulite.basefile.base_data import CUT_ROWS_MAX, ROW_GROUP_ROWS, BaseDataFile
from kudulite.basefile.block_cache import (
    BlockCache,
    Keeps,
    always,
    compacted,
    plain,
    taken,
)
from kudulite.basefile.bloom import BloomFilter
from kudulite.basefile.key_index import KeyIndex
from kudulite.basefile.page_range import PAGE_ROWS
from kudulite.delta.delta_applier import DeltaApplier, distinct
from kudulite.delta.delta_mem_store import DeltaMemSnapshot
from kudulite.delta.delta_source import DeltaSource
from kudulite.delta.scatter import laid_over
from kudulite.errors import CorruptionError
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.model.key_array import KeyArray
from kudulite.model.predicate import Statistics
from kudulite.model.schema import Column
from kudulite.model.types import widened
from kudulite.rowset.rowset import Block, RowSet, cell_value, constant
from kudulite.rowset.rowset_deltas import ApplierMemo, RowSetDeltas
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.rowset.scan_spec import ScanSpec, View
from kudulite.storage.storage import Storage

# Bytes that are counted in the block cache.
_KEPT_VALUE_BYTES = 8  # a decoded value seldom takes more

# Searching fewer keys than this in an index in memory is faster than asking the bloom filter.
_BLOOM_KEYS_MIN = 500

# Which a store sends in about the time of a request.
_SMALL_BYTES = 1 << 20

# Each page is read by a call of its own, so rows in more pages of a row group than this, on
# average, are read by row group.
_FEW_PAGES = 4

# Reading a block row by row pays when at most one row in so many is read.
_FEW_ROWS = 4


class DiskRowSet(RowSet):
    """One rowset as a superblock describes it; its files are in `folder`.

    `base` is its base data without deltas.
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
        self._appliers: ApplierMemo | None = None  # with memory; made at first use
        # Paths as text: building and hashing a Path costs more than the lookup by it.
        self._key_index_path = str(folder / meta.key_index.name)
        self._bloom_path = str(folder / meta.bloom.name)

    def with_dms(self, dms: DeltaMemSnapshot | None) -> DiskRowSet:
        """Return the same rowset with other changes in memory; opened files are shared."""
        other = copy.copy(self)
        other._dms = dms
        other._appliers = None
        return other

    @property
    def dms(self) -> DeltaMemSnapshot | None:
        """The changes that are newer than all REDO files."""
        return self._dms

    @property
    def key_index(self) -> KeyIndex:
        """The encoded keys in row order."""
        index: KeyIndex = self._cache.get_or_load(self._key_index_path, self._load_key_index)
        return index

    def is_visible(self, timestamp: int) -> bool:
        """Whether a snapshot at `timestamp` (inclusive) sees the rowset at all."""
        return self.meta.is_visible(timestamp)

    def applier(self, timestamp: int) -> DeltaApplier:
        """Return the applier of the deltas that a snapshot at `timestamp` sees."""
        dms = self._dms
        if dms is None or not len(dms):
            return self._deltas.applier(timestamp)
        if self._appliers is None:
            newest = max(dms.meta.timestamp_max, self._deltas.timestamp_max)
            self._appliers = ApplierMemo(newest)
        return self._appliers.at(timestamp, self._make_applier)

    def _make_applier(self, timestamp: int) -> DeltaApplier:
        assert self._dms is not None
        return self._deltas.applier(timestamp).with_memory(self._dms, timestamp)

    def live_row_count(self, timestamp: int) -> int:
        """Return the number of rows that a snapshot sees, from deltas alone."""
        return self.meta.row_count - len(self.applier(timestamp).deleted)

    def find(self, keys: KeyArray, timestamp: int) -> np.ndarray:
        """Return int64[n]: the row ids of ascending `keys` live at `timestamp`, else -1."""
        rowids = self.find_any(keys)
        if (rowids >= 0).any():
            applier = self.applier(timestamp)
            if not applier.is_empty and len(applier.deleted):
                rowids[(rowids >= 0) & applier.is_deleted(rowids)] = -1
        return rowids

    def find_any(self, keys: KeyArray) -> np.ndarray:
        """Return int64[n]: the row ids of ascending `keys`, live or deleted, else -1."""
        index: KeyIndex | None = self._cache.get(self._key_index_path)
        if len(keys) < _BLOOM_KEYS_MIN and index is not None and index.is_whole:
            return index.find(keys)
        rowids = np.full(len(keys), -1, dtype=np.int64)
        maybe = np.flatnonzero(self._bloom(TIMESTAMP_MAX).may_contain(keys))
        if len(maybe):
            self.storage.prefetch(self._loads([TIMESTAMP_MAX], None, with_keys=True))
            rowids[maybe] = self.key_index.find(keys.take(maybe))
        return rowids

    def find_one(self, key: bytes, width: int | None, timestamp: int) -> int:
        """Return the row id of `key` if it is live at `timestamp`, else -1."""
        # The bloom filter saves loading keys; a search of loaded keys costs no more than it does.
        index = self._cache.get(self._key_index_path)
        rowid = None if index is None else index.find_loaded(key)
        if rowid is None:
            if not self._bloom(timestamp).may_contain_one(key, width):
                return -1
            self.storage.prefetch(self._loads([timestamp], None, with_keys=True))
            rowid = self.key_index.find_one(key)
        if rowid >= 0 and self.applier(timestamp).is_row_deleted(rowid):
            return -1
        return rowid

    def read_rows(
        self,
        rowids: np.ndarray,
        columns: Sequence[Column],
        timestamp: int,
        *,
        keeps: Keeps = always,
    ) -> list[pa.Array]:
        """Return each column's values of int64[n] row ids in any order, as of `timestamp`.

        Decoded pages are kept in the cache: the next reader of a near row pays no decoding. Whole
        row groups are kept if `keeps` says so, which a lookup of many rows refuses before its row
        groups begin to evict each other.
        """
        applier = self.applier(timestamp)
        base = self.base.gather(rowids, columns, keeps)
        return applier.apply_rows(base, [column.id for column in columns], rowids)

    # -- opening files that a store would have to be waited for

    def open_for(self, spec: ScanSpec, *others: int) -> None:
        """Open the files with which a scan begins, at its timestamp and `others`, side by side."""
        names = dict.fromkeys((*spec.predicates.columns, *spec.names))
        ids = {spec.schema.column(name).id for name in names}
        is_cut = self._is_below(spec.lower) or self._is_above(spec.upper)
        loads = self._loads((spec.timestamp, *others), ids, with_keys=is_cut or spec.with_keys)
        self.storage.side_by_side(lambda load: load(), list(loads))

    def _loads(
        self, timestamps: Sequence[int], column_ids: Set[int] | None, *, with_keys: bool
    ) -> Iterator[Callable[[], object]]:
        """Yield what opens the deltas and base data of some columns or of all, and the key index.

        Files that are open are left out.
        """
        yield from self._deltas.loads(timestamps, column_ids)
        yield from self.base.loads(column_ids)
        if with_keys and not self.is_key_index_open():
            yield lambda: self.key_index

    def is_key_index_open(self) -> bool:
        """Whether lookups wait neither for the key index nor for the bloom filter."""
        return self._cache.get(self._key_index_path) is not None

    # -- scans

    def blocks(self, spec: ScanSpec) -> Iterator[Block]:
        """Yield the blocks that may hold a matching row, in row order."""
        start, stop = self.rowids_between(spec.lower, spec.upper)
        if start >= stop:
            return
        applier = self.applier(spec.timestamp)
        # By name: the ids of the columns whose statistics are of the values at the timestamp.
        checked = {
            name: column.id
            for name in spec.row_predicates.columns
            if not applier.changes_column((column := spec.schema.column(name)).id)
        }
        group_rows = self.meta.rows_per_group
        for group in range(start // group_rows, (stop - 1) // group_rows + 1):
            if not checked or self._may_match(spec, checked, group):
                first = group * group_rows
                end = first + self.meta.rows_in_group(group)
                yield Block(group, max(start, first), min(stop, end))

    def rowids_between(self, lower: bytes | None, upper: bytes | None) -> tuple[int, int]:
        """Return the first row id whose key is ≥ `lower`, and the first whose key is ≥ `upper`."""
        start, stop = 0, self.meta.row_count
        if lower is not None and self._is_below(lower):
            start = self.key_index.locate(lower, "left")
        if upper is not None and self._is_above(upper):
            stop = self.key_index.locate(upper, "left")
        return start, stop

    def _is_below(self, lower: bytes | None) -> bool:
        """Return whether there are keys below a bound."""
        return lower is not None and lower > self.meta.key_min

    def _is_above(self, upper: bytes | None) -> bool:
        """Return whether there are keys from a bound on."""
        return upper is not None and upper <= self.meta.key_max

    def _is_short(self, block: Block) -> bool:
        """Return whether a block is a small part of its row group."""
        group_rows = self.meta.rows_in_group(block.row_group)
        return block.row_count <= min(PAGE_ROWS, group_rows // 2)

    def rowids_of(self, block: Block) -> np.ndarray:
        """Return int64[n]: the row ids of a block's rows."""
        return np.arange(block.start, block.stop)

    def places_in(self, block: Block, rowids: np.ndarray) -> tuple[np.ndarray, np.ndarray | slice]:
        """Return the positions of a block's rows whose ids are given, and their places there."""
        low, high = np.searchsorted(rowids, [block.start, block.stop])
        return rowids[low:high] - block.start, slice(low, high)

    def keys_of(self, block: Block, positions: np.ndarray | None) -> KeyArray:
        """Return the keys of a block's rows at int64[m] `positions`; None is all of them."""
        keys = self.key_index.slice(block.start, block.stop)
        return keys if positions is None else keys.take(positions)

    def live_in(self, block: Block, timestamp: int) -> np.ndarray | None:
        """Return bool[n]: which of a block's rows are not deleted; None when none is."""
        return self.applier(timestamp).selection(block.start, block.stop)

    def read_images(
        self, block: Block, columns: Sequence[Column], views: Sequence[View]
    ) -> list[list[pa.Array]]:
        """Return, for each view, the columns' values of the block's rows at its positions."""
        few = [(applier, at) for applier, at in views if at is not None]
        row_count = sum(len(at) for _, at in few)
        if len(few) == len(views) and 0 < row_count * _FEW_ROWS <= block.row_count:
            return self._read_few(block, columns, few)
        own, start = len(views) == 1, block.start
        if columns and self._is_short(block):
            values, ids = self.base.read_shared(block, columns), [column.id for column in columns]
            return [applier.apply_few(values, ids, start, at) for applier, at in views]
        for applier, _ in views:
            applier.merge_columns([column.id for column in columns])
        base = list(zip(self.base.read(block, columns), columns, strict=True))
        return [
            [applier.apply_range(values, c.id, start, at, is_own=own) for values, c in base]
            for applier, at in views
        ]

    def _read_few(
        self,
        block: Block,
        columns: Sequence[Column],
        views: Sequence[tuple[DeltaApplier, np.ndarray]],
    ) -> list[list[pa.Array]]:
        """Do as `read_images`; base data is read of columns that deltas do not set in all rows."""
        types = {column.id: column.type.arrow for column in columns}
        cells = [applier.cells(types, block.start + at) for applier, at in views]
        in_base = [c for c in columns if not all(found[c.id].is_complete for found in cells)]
        chosen = distinct(np.concatenate([at for _, at in views]))
        arrays = self.base.read_some(block, in_base, chosen) if in_base else []
        base = {column.id: array for column, array in zip(in_base, arrays, strict=True)}
        # Base data is read once, at the rows of all views. None is for a view that has all these.
        places = [None if len(at) == len(chosen) else chosen.searchsorted(at) for _, at in views]
        return [
            laid_over([found[c.id] for c in columns], [base.get(c.id) for c in columns], at)
            for found, at in zip(cells, places, strict=True)
        ]

    def _may_match(self, spec: ScanSpec, column_ids: Mapping[str, int], group: int) -> bool:
        row_count = self.meta.rows_in_group(group)

        def statistics(name: str) -> Statistics | None:
            column_id = column_ids.get(name)
            found = None if column_id is None else self.base.statistics(column_id, group)
            return None if found is None else (*found, row_count)

        return spec.row_predicates.may_match(statistics)

    def read_row(self, rowid: int, columns: Sequence[Column], timestamp: int) -> list[object]:
        """Return one row's cells as Python values, as of `timestamp`."""
        applier = self.applier(timestamp)
        if applier.is_empty or not applier.changes_row(rowid):
            return self.base.cells(rowid, columns)
        changed = {column.id: applier.cell(rowid, column.id) for column in columns}
        rest = [column for column in columns if changed[column.id] is None]
        base = iter(self.base.cells(rowid, rest))
        return [
            next(base) if (cell := changed[c.id]) is None else cell_value(cell, c) for c in columns
        ]

    # -- changes, for diff scans

    def delta_sources(self) -> tuple[Sequence[DeltaSource], Sequence[DeltaSource]]:
        """Return the sources of UNDO, newest first, and of REDO, oldest first, not opened yet."""
        undo, redo = self._deltas.files()
        return undo, redo if self._dms is None else [*redo, self._dms]

    def are_live(self, rowids: np.ndarray, timestamp: int, applier: DeltaApplier) -> np.ndarray:
        """Return bool[n]: which of int64[n] row ids are live; `applier` is that of `timestamp`."""
        if not self.is_visible(timestamp):
            return np.zeros(len(rowids), dtype=bool)
        return ~applier.is_deleted(rowids)

    # -- files

    @property
    def storage(self) -> Storage:
        """Where the files are."""
        return self._cache.storage

    def _load_key_index(self) -> tuple[KeyIndex, int]:
        path, ref = self.folder / self.meta.key_index.name, self.meta.key_index
        index = KeyIndex(self.storage, path, ref, self.meta.row_count, self._cache.verified)
        return index, index.nbytes + self.storage.kept_bytes(ref)

    def key_loads(self, timestamp: int) -> Iterator[Callable[[], object]]:
        """Yield what opens all that the lookup of a key may need."""
        yield partial(self._cache.get_or_load, self._bloom_path, self._load_bloom)
        yield from self._loads([timestamp], None, with_keys=True)

    def _bloom(self, timestamp: int) -> BloomFilter:
        """Return the filter; with a small key index, all that may be needed then is read beside."""
        if self.meta.key_index.length <= _SMALL_BYTES:
            self.storage.prefetch(self.key_loads(timestamp))
        found: BloomFilter = self._cache.get_or_load(self._bloom_path, self._load_bloom)
        return found

    def _load_bloom(self) -> tuple[BloomFilter, int]:
        path, ref = self.folder / self.meta.bloom.name, self.meta.bloom
        bloom = BloomFilter.load(self.storage, path, ref, self._cache.verified)
        return bloom, self.storage.kept_bytes(ref)


class BaseColumns:
    """The columns of a rowset's base files, which are in the rowset's `folder`."""

    def __init__(self, meta: RowSetMeta, folder: Path, cache: BlockCache) -> None:
        self._meta = meta
        self._folder = folder
        self._cache = cache
        # By column id. The references are weak, because the cache decides which files stay open.
        self._files: dict[int, Callable[[], BaseDataFile | None]] = {}
        self._short_units: dict[int, int] = {}
        self._types: dict[int, pa.DataType] = {}

    def row_groups(self) -> Iterator[Block]:
        """Yield all rows, a row group at a time."""
        group_rows = self._meta.rows_per_group
        for start in range(0, self._meta.row_count, group_rows):
            stop = min(start + group_rows, self._meta.row_count)
            yield Block(start // group_rows, start, stop)

    def parts(self, columns: Sequence[Column]) -> Iterator[Block]:
        """Yield all rows in parts of row groups, if the pages of `columns` can be read alone."""
        is_whole = any(unit > PAGE_ROWS for _, unit, _ in self._by_file(columns))
        for block in self.row_groups():
            step = block.row_count if is_whole or block.row_count % CUT_ROWS_MAX else CUT_ROWS_MAX
            for start in range(block.start, block.stop, step):
                yield replace(block, start=start, stop=start + step)

    def statistics(self, column_id: int, row_group: int) -> tuple[Any, Any, int] | None:
        """Return (minimum, maximum, null count) of a column in a row group, or None if unknown."""
        file = self._file(column_id)
        return None if file is None else file.statistics(row_group, file.name_by_id[column_id])

    def loads(self, column_ids: Set[int] | None) -> Iterator[Callable[[], object]]:
        """Yield what opens the files that are not open, of some columns or of all."""
        for base in self._meta.base:
            own = [c for c in base.column_ids if column_ids is None or c in column_ids]
            known = self._files.get(own[0]) if own else None
            if own and (known is None or known() is None):
                yield partial(self._opened, own[0])

    def only_file(self, columns: Sequence[Column]) -> BaseDataFile | None:
        """Return the one file with the base data of `columns`; columns without any are ignored.

        None if several files have some of `columns`, or if no file has any.
        """
        files = {id(file): file for c in columns if (file := self._file(c.id)) is not None}
        return next(iter(files.values())) if len(files) == 1 else None

    def read(self, block: Block, columns: Sequence[Column]) -> list[pa.Array]:
        """Return the values of columns in a block, in arrays that nobody else reads."""
        values: dict[int, pa.Array] = {}
        for file, _, in_file in self._by_file(columns):
            names = [file.name_by_id[column.id] for column in in_file]
            arrays = file.read_rows(block.start, block.stop, names)
            values |= {column.id: array for column, array in zip(in_file, arrays, strict=True)}
        return [_of_column(values, column, block.row_count) for column in columns]

    def read_shared(self, block: Block, columns: Sequence[Column]) -> list[pa.Array]:
        """Return the values of columns in a short block, whose pages are kept in the cache.

        A page is decoded only up to the last of the rows. The arrays are parts of those in the
        cache, and each keeps its page in memory, so the caller copies what it returns.
        """
        start, stop = block.start, block.stop
        values: dict[int, pa.Array] = {}
        for file, unit, in_file in self._by_file(columns):
            types, parts = [self._types[c.id] for c in in_file], []
            for number in range(start // unit, (stop - 1) // unit + 1):
                low, high = max(start - number * unit, 0), min(stop - number * unit, unit)
                page = self._decoded(file, unit, number, in_file, high)
                parts.append(plain((page[c.id].slice(low, high - low) for c in in_file), types))
            joined = (
                arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
                for arrays in zip(*parts, strict=True)
            )
            values |= {c.id: array for c, array in zip(in_file, joined, strict=True)}
        return [_of_column(values, column, stop - start) for column in columns]

    def read_some(self, block: Block, columns: Sequence[Column], at: np.ndarray) -> list[pa.Array]:
        """Return the values of columns at int64[m] positions of a block, m ≥ 1."""
        rowids = block.start + at
        if block.row_count <= CUT_ROWS_MAX and not _are_in_few_pages(rowids):
            return taken(self.read(block, columns), at)
        return self.gather(rowids, columns, keeps=lambda _: False, use_threads=False)

    def gather(
        self,
        rowids: np.ndarray,
        columns: Sequence[Column],
        keeps: Keeps = always,
        use_threads: bool = True,
    ) -> list[pa.Array]:
        """Return each column's values of int64[n] row ids in any order.

        Decoded pages are kept in the cache, or row groups where the rows are in many pages: the
        next reader of a near row pays no decoding. Row groups that `keeps` refuses are decoded, by
        several threads if allowed, and forgotten.
        """
        values: dict[int, pa.Array] = {}
        is_short = _are_in_few_pages(rowids)
        for file, short_unit, in_file in self._by_file(columns):
            unit = short_unit if is_short else self._meta.rows_per_group
            numbers = rowids // unit
            # The numbers that occur, ascending, by counting: they are few and small.
            occurring = np.flatnonzero(np.bincount(numbers)).tolist()
            positions = [np.flatnonzero(numbers == number) for number in occurring]
            each = [(n, rowids[at] - n * unit) for n, at in zip(occurring, positions, strict=True)]
            read = partial(self._gathered, file, unit, in_file, keeps, is_short, use_threads)
            parts = self._cache.storage.side_by_side(read, each)
            if len(parts) > 1:
                joined = [pa.concat_arrays(arrays) for arrays in zip(*parts, strict=True)]
                parts = [taken(joined, np.argsort(np.concatenate(positions)))]
            values |= {c.id: array for c, array in zip(in_file, parts[0], strict=True)}
        return [_of_column(values, column, len(rowids)) for column in columns]

    def _gathered(
        self,
        file: BaseDataFile,
        unit: int,
        columns: Sequence[Column],
        keeps: Keeps,
        is_short: bool,
        use_threads: bool,
        chosen: tuple[int, np.ndarray],
    ) -> list[pa.Array]:
        """Return each column's values at places of a unit; `chosen` is (its number, int64[m])."""
        number, places = chosen
        if is_short:
            page = self._decoded(file, unit, number, columns, unit)
        else:
            page = self._kept_group(file, number, columns, keeps)
        found = self._chosen(page, columns, places)
        unknown = [c for c in columns if c.id not in page]
        if unknown:
            names = [file.name_by_id[c.id] for c in unknown]
            arrays = file.read_some(number, names, places, use_threads)
            found |= {c.id: array for c, array in zip(unknown, arrays, strict=True)}
        return [found[c.id] for c in columns]

    def _kept_group(
        self, file: BaseDataFile, number: int, columns: Sequence[Column], keeps: Keeps
    ) -> Mapping[int, pa.Array]:
        """Return the columns of a row group that are in the cache or may stay there."""
        unit = self._meta.rows_per_group
        page: dict[int, pa.Array] = self._cache.get((file.path_text, unit, number)) or {}
        missing = sum(column.id not in page for column in columns)
        if missing and keeps(missing * unit * _KEPT_VALUE_BYTES):
            return self._decoded(file, unit, number, columns, unit)
        return page

    def _chosen(
        self, page: Mapping[int, pa.Array], columns: Sequence[Column], at: np.ndarray
    ) -> dict[int, pa.Array]:
        """Return the values at int64[m] positions, m ≥ 1, of those columns that a page has."""
        known = [c for c in columns if c.id in page]
        values = taken([page[c.id] for c in known], at)
        arrays = plain(values, [self._types[c.id] for c in known])
        return {c.id: array for c, array in zip(known, arrays, strict=True)}

    def cells(self, rowid: int, columns: Sequence[Column]) -> list[object]:
        """Return cells of one row as Python values; what is decoded is kept in the cache."""
        values: dict[int, object] = {}
        for file, unit, in_file in self._by_file(columns):
            number, place = divmod(rowid, unit)
            page = self._decoded(file, unit, number, in_file, place + 1)
            for column in in_file:
                values[column.id] = cell_value(page[column.id][place], column)
        return [values.get(column.id, column.read_default) for column in columns]

    def _by_file(
        self, columns: Sequence[Column]
    ) -> Iterable[tuple[BaseDataFile, int, list[Column]]]:
        """Return files with columns, and the number of rows that a short read of these decodes."""
        found: dict[tuple[int, int], tuple[BaseDataFile, int, list[Column]]] = {}
        for column in columns:
            file = self._file(column.id)
            if file is not None:
                unit = self._short_units[column.id]
                found.setdefault((id(file), unit), (file, unit, []))[2].append(column)
        for file, _, _ in found.values():
            self._cache.get(file.path_text)  # that it is used
        return found.values()

    def _decoded(
        self, file: BaseDataFile, unit: int, number: int, columns: Sequence[Column], count: int
    ) -> Mapping[int, pa.Array]:
        """Return the first `count` values or more of the `number`-th `unit` rows, by column id.

        They are kept in the cache. A column that has fewer there is decoded as a whole. Those of a
        row group are `compacted`.
        """
        key = file.path_text, unit, number
        page: dict[int, pa.Array] = self._cache.get(key) or {}
        start, whole = number * unit, min(unit, self._meta.row_count - number * unit)
        count = min(count, whole)
        missing = [c for c in columns if len(page.get(c.id, ())) < count]
        if missing:
            # A row group is decoded once, for all that follows. A page whose first values were not
            # enough for the second read would be decoded again and again as reads move on in it.
            if unit == self._meta.rows_per_group or any(c.id in page for c in missing):
                count = whole
            names = [file.name_by_id[c.id] for c in missing]
            read = file.read_rows(start, start + count, names, is_coded=unit <= PAGE_ROWS)
            arrays = map(compacted, read)
            page = page | {c.id: array for c, array in zip(missing, arrays, strict=True)}
            self._cache.put(key, page, sum(array.nbytes for array in page.values()))
        return page

    def _file(self, column_id: int) -> BaseDataFile | None:
        """Return the file with a column's base data, or None if no file has the column."""
        known = self._files.get(column_id)
        file = None if known is None else known()
        return self._opened(column_id) if file is None else file

    def _opened(self, column_id: int) -> BaseDataFile | None:
        base = next((b for b in self._meta.base if column_id in b.column_ids), None)
        if base is None:
            return None
        path, ref = self._folder / base.ref.name, base.ref
        cache = self._cache

        def load() -> tuple[BaseDataFile, int]:
            file = BaseDataFile(cache.storage, path, ref, cache.verified)
            return file, file.kept_bytes

        file: BaseDataFile = cache.get_or_load(str(path), load)
        group_rows = self._meta.rows_per_group
        if file.row_count != self._meta.row_count or column_id not in file.name_by_id:
            raise CorruptionError(
                f"{path}: {file.row_count} rows of columns {sorted(file.name_by_id)}, the"
                f" superblock says {self._meta.row_count} rows, with column {column_id}"
            )
        _, found = file.row_group_rows(0)
        if found > group_rows or (file.row_group_count > 1 and found != group_rows):
            raise CorruptionError(f"{path}: row groups of {found} rows, expected {group_rows}")
        # A file with one row group does not know how many rows others of the rowset have.
        self._short_units[column_id] = min(file.short_unit(column_id), group_rows)
        self._types[column_id] = file.schema.field(file.name_by_id[column_id]).type
        self._files[column_id] = weakref.ref(file)
        return file


def _are_in_few_pages(rowids: np.ndarray) -> bool:
    """Return whether int64[n] row ids are in so few pages that reading these alone pays."""
    pages = np.count_nonzero(np.bincount(rowids // PAGE_ROWS))
    groups = np.count_nonzero(np.bincount(rowids // ROW_GROUP_ROWS))
    return bool(0 < pages <= groups * _FEW_PAGES)


def _of_column(values: Mapping[int, pa.Array], column: Column, count: int) -> pa.Array:
    array = values.get(column.id)
    return constant(column, count) if array is None else widened(array, column.type.arrow)
