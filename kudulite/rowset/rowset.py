"""RowSet: the interface of a part of a tablet, in memory or on disk, and its superblock entry.

A row id is the row's position in its rowset, as long as the rowset exists. A key may be a deleted
row of many rowsets; it is live in at most one.

Scans and diff scans hand every rowset one immutable value, the same for all tablets and workers:

    ScanSpec   the rows at one timestamp
    DiffSpec   the changes in (start, end]: one at `start` is outside of the window, one at `end` is
               inside. Chained windows, each starting at the end of the last, neither lose nor
               repeat a change.

`RowSetTree` is an interval tree over rowsets, which finds those that may hold a key:

    node: centre key c; the intervals that contain c, once by rising minimum and once by falling
          maximum; `left`, the intervals wholly below c; `right`, those wholly above

A lookup of one key walks one path and stops in each node at the first interval that misses, so it
costs O(log n + hits). The number of hits is the tablet's height at that key.

`RowSetMeta` is a DiskRowSet in the superblock: key bounds, timestamps and files. Rows of one bulk
commit share the insert timestamp of the entry. In a flushed MemRowSet the entry has the oldest one,
and a row inserted later has an UNDO DELETE. Truncate and overwrite give a rowset one delete
timestamp; the rowset stays readable for the past.

`RowImages` are rows with their history, in the form that new rowsets store.

The entry alone shows which history is ancient: no read needs an UNDO at or before the ancient
history mark, or a row whose DELETE is at or before it. Garbage collection removes the files once no
superblock lists them.

**Invariants**: (1) bounds are inclusive encoded keys; (2) a tree is never changed, it is replaced.

**Threads**: any. Two threads that both miss an applier in an `ApplierMemo` make it twice, which
does no harm.

**Source**: Kudu rowset.h, rowset_tree.cc and interval_tree.h.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from kudulite.basefile.base_data import ROW_GROUP_ROWS
from kudulite.basefile.block_cache import Keeps, always
from kudulite.delta.delta_applier import DeltaApplier
from kudulite.delta.delta_file import (
    TIMESTAMP_UNASSIGNED,
    DeltaFileMeta,
    DeltaRows,
    concat_moved,
    rows_between,
)
from kudulite.delta.delta_source import DeltaSource
from kudulite.delta.scatter import select
from kudulite.fs.file_system import FileRef
from kudulite.fs.json_form import JsonForm, Stored
from kudulite.model.key_array import KeyArray
from kudulite.model.predicate import BoundPredicates
from kudulite.model.schema import Column, Schema
from kudulite.model.values import python_values, timestamp_from_micros

# The deltas to apply to a block, and the ascending positions of its rows to read; None is all rows.
View = tuple[DeltaApplier, np.ndarray | None]


@dataclass(frozen=True)
class Block:
    """Rows [start, stop) of a rowset in key order, all in one row group."""

    row_group: int
    start: int
    stop: int

    @property
    def row_count(self) -> int:
        """Number of rows, live or not."""
        return self.stop - self.start


@dataclass(frozen=True)
class ScannedRows:
    """Rows of a scan: the projected columns, and the encoded keys if the scan asks for them."""

    batch: pa.RecordBatch
    keys: KeyArray | None

    def cut(self, start: int, stop: int) -> ScannedRows:
        """Return rows start..stop without a copy."""
        keys = None if self.keys is None else self.keys.slice(start, stop)
        return ScannedRows(self.batch.slice(start, stop - start), keys)


class RowSet(ABC):
    """A DiskRowSet or a snapshot of a MemRowSet; immutable, any number of threads read."""

    key_min: bytes
    """The smallest encoded key."""

    key_max: bytes
    """The largest encoded key."""

    lifetime: tuple[int, int | None]
    """When all rows together were inserted and deleted; 0 and None if the rows differ."""

    @abstractmethod
    def is_visible(self, timestamp: int) -> bool:
        """Whether a snapshot at `timestamp` (inclusive) may see any row."""

    @abstractmethod
    def live_row_count(self, timestamp: int) -> int:
        """Return the number of rows that a snapshot sees, from deltas alone."""

    # -- lookups by key

    @abstractmethod
    def find(self, keys: KeyArray, timestamp: int) -> np.ndarray:
        """Return int64[n]: the row ids of ascending `keys` live at `timestamp`, else -1."""

    @abstractmethod
    def find_one(self, key: bytes, width: int | None, timestamp: int) -> int:
        """Return the row id of `key` if it is live at `timestamp`, else -1."""

    @abstractmethod
    def read_rows(
        self,
        rowids: np.ndarray,
        columns: Sequence[Column],
        timestamp: int,
        *,
        keeps: Keeps = always,
    ) -> list[pa.Array]:
        """Return each column's values of int64[n] row ids in any order, as of `timestamp`.

        `keeps` says whether so many bytes of a decoded row group may stay in the cache.
        """

    @abstractmethod
    def read_row(self, rowid: int, columns: Sequence[Column], timestamp: int) -> list[object]:
        """Return one row's cells as Python values, as of `timestamp`."""

    # -- blocks

    @abstractmethod
    def blocks(self, spec: ScanSpec) -> Iterator[Block]:
        """Yield the blocks that may hold a matching row, in key order."""

    @abstractmethod
    def rowids_of(self, block: Block) -> np.ndarray:
        """Return int64[n]: the row ids of a block's rows, in key order."""

    @abstractmethod
    def places_in(self, block: Block, rowids: np.ndarray) -> tuple[np.ndarray, np.ndarray | slice]:
        """Return int64[m] positions of a block's rows, and their places in ascending `rowids`."""

    @abstractmethod
    def keys_of(self, block: Block, positions: np.ndarray | None) -> KeyArray:
        """Return the keys of a block's rows at int64[m] `positions`; None is all of them."""

    @abstractmethod
    def live_in(self, block: Block, timestamp: int) -> np.ndarray | None:
        """Return bool[n]: which of a block's rows a snapshot sees; None when it sees all."""

    @abstractmethod
    def read_images(
        self, block: Block, columns: Sequence[Column], views: Sequence[View]
    ) -> list[list[pa.Array]]:
        """Return, for each view, the columns' values of the block's rows at int64[m] positions.

        Base data is read once for all views.
        """

    def read_block(
        self, block: Block, spec: ScanSpec, wanted: np.ndarray | None = None
    ) -> ScannedRows | None:
        """Return the matching live rows of a block, in key order, or None when there are none.

        `wanted` is int64[m]: the ascending positions of the rows to choose from. None is all.
        """
        live = self.live_in(block, spec.timestamp)
        if live is not None and not live.any():
            return None
        known: dict[str, pa.Array] = {}
        if spec.row_predicates.columns:
            known = self._read_columns(block, spec, spec.row_predicates.columns, None)
            matches = spec.row_predicates.evaluate(pa.RecordBatch.from_pydict(known))
            live = matches if live is None else live & matches
        selected = wanted
        if live is not None and not live.all():
            selected = np.flatnonzero(live) if wanted is None else wanted[live[wanted]]
        if selected is not None and not len(selected):
            return None
        columns = {name: select(known[name], selected) for name in spec.names if name in known}
        others = [name for name in spec.names if name not in known]
        columns |= self._read_columns(block, spec, others, selected)
        count = block.row_count if selected is None else len(selected)
        batch = record_batch([columns[name] for name in spec.names], spec.fields, count)
        return ScannedRows(batch, self.keys_of(block, selected) if spec.with_keys else None)

    def _read_columns(
        self, block: Block, spec: ScanSpec, names: Sequence[str], selected: np.ndarray | None
    ) -> dict[str, pa.Array]:
        """Read columns of a block as of the snapshot, at the `selected` positions."""
        columns = [spec.schema.column(name) for name in names]
        view = self.applier(spec.timestamp), selected
        return dict(zip(names, self.read_images(block, columns, [view])[0], strict=True))

    # -- changes, for diff scans and the history of a row

    @abstractmethod
    def applier(self, timestamp: int) -> DeltaApplier:
        """Return the applier of the deltas that a snapshot at `timestamp` sees."""

    @abstractmethod
    def delta_sources(self) -> tuple[Sequence[DeltaSource], Sequence[DeltaSource]]:
        """Return the sources of UNDO, newest first, and of REDO, oldest first, not opened yet."""

    @abstractmethod
    def are_live(self, rowids: np.ndarray, timestamp: int, applier: DeltaApplier) -> np.ndarray:
        """Return bool[n]: which of int64[n] row ids are live at `timestamp`, that of `applier`."""


def record_batch(arrays: list[pa.Array], fields: pa.Schema, count: int) -> pa.RecordBatch:
    """Return a batch of `count` rows, also when it has no column."""
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=fields)
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), count, [None]))


def constant(column: Column, count: int) -> pa.Array:
    """Return a column's read default, `count` times: its values in rows older than the column."""
    return pa.repeat(pa.scalar(column.read_default, column.type.arrow), count)


def cell_value(scalar: pa.Scalar, column: Column) -> object:
    """Return one cell as a Python value in canonical form."""
    if not scalar.is_valid:
        return None
    if column.type.is_timestamp:
        # Arrow looks up the time zone for every scalar, and cannot represent years above 9999.
        return timestamp_from_micros(scalar.value, column.type)
    return python_values(scalar.values) if column.type.is_array else scalar.as_py()


@dataclass(frozen=True)
class ScanSpec:
    """Columns `names` (in this order) of the rows in [`lower`, `upper`) that match, at `timestamp`.

    The bounds are encoded keys; None is unbounded. With `with_keys` the scan also returns the
    encoded keys, which an ordered merge needs. A reader that stops after `limit` rows gets small
    blocks first.
    """

    schema: Schema
    names: tuple[str, ...]
    predicates: BoundPredicates
    timestamp: int
    lower: bytes | None = None
    upper: bytes | None = None
    with_keys: bool = False
    limit: int | None = None

    @cached_property
    def fields(self) -> pa.Schema:
        """The projected columns, without column ids."""
        return self.schema.result_schema(self.names)

    @property
    def has_conditions(self) -> bool:
        """Whether there are predicates or bounds."""
        return bool(self.predicates.columns) or self.lower is not None or self.upper is not None

    @cached_property
    def row_predicates(self) -> BoundPredicates:
        """The predicates to evaluate for rows whose keys are within the bounds."""
        return self.predicates.within(self.lower, self.upper)


@dataclass(frozen=True)
class DiffSpec:
    """Columns `names` of the rows of [`lower`, `upper`) that changed in (`start`, `end`].

    `predicates` on key columns choose keys; a row matches all others if its image at either end of
    the window does. `column_ids` are all columns of the table: an update of a
    dropped column is no change. With `with_before` the images at `start` are returned too.
    """

    schema: Schema
    names: tuple[str, ...]
    predicates: BoundPredicates
    start: int
    end: int
    column_ids: frozenset[int]
    with_before: bool = False
    lower: bytes | None = None
    upper: bytes | None = None

    @cached_property
    def key_scan(self) -> ScanSpec:
        """The scan of all keys that may be in the result."""
        return ScanSpec(self.schema, (), self._split[0], self.end, self.lower, self.upper)

    @property
    def value_predicates(self) -> BoundPredicates:
        """The predicates that need columns outside of the key."""
        return self._split[1]

    @cached_property
    def _split(self) -> tuple[BoundPredicates, BoundPredicates]:
        return self.predicates.split(self.schema.key_names)

    @cached_property
    def image_columns(self) -> tuple[Column, ...]:
        """The columns to read: the projection, then the columns of the value predicates."""
        names = dict.fromkeys((*self.names, *self.value_predicates.columns))
        return tuple(self.schema.column(name) for name in names)

    @property
    def reads_before(self) -> bool:
        """Whether the images at `start` of rows that are live at `end` are needed."""
        return self.with_before or bool(self.value_predicates.columns)


@dataclass(frozen=True)
class RowImages:
    """n rows as rowsets store them: ascending `keys`, the newest image of each row, its history.

    `insert_timestamps` is uint64[n], or None for the rows of one commit, which have no history.
    Row ids of `undo` and `redo` are positions in `rows`, and each change has its own timestamp.
    `undo` takes a row back to its first insert and is newest first within a row; the inserts are
    not part of it. None and no changes mean the same.
    """

    keys: KeyArray
    rows: pa.Table
    insert_timestamps: np.ndarray | None = None
    undo: DeltaRows | None = None
    redo: DeltaRows | None = None

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Approximate bytes of the cells of images and deltas."""
        deltas = [changes for changes in (self.undo, self.redo) if changes is not None]
        columns = [column for changes in deltas for column in changes.columns.values()]
        cells: int = self.rows.nbytes + sum(column.values.nbytes for column in columns)
        return cells + sum(changes.rowids.nbytes for changes in deltas)

    def cut(self, start: int, stop: int) -> RowImages:
        """Return rows start..stop, the row ids of their deltas from 0."""
        stamps = self.insert_timestamps
        return RowImages(
            self.keys.slice(start, stop),
            self.rows.slice(start, stop - start),
            None if stamps is None else stamps[start:stop],
            None if self.undo is None else rows_between(self.undo, start, stop),
            None if self.redo is None else rows_between(self.redo, start, stop),
        )

    @staticmethod
    def concat(parts: Sequence[RowImages]) -> RowImages:
        """Return parts with ascending keys, one after the other.

        All or none of them have insert timestamps.
        """
        starts = np.cumsum([0, *(len(part) for part in parts)])
        stamps = [part.insert_timestamps for part in parts if part.insert_timestamps is not None]
        assert len(stamps) in (0, len(parts)), "only some parts have history"
        return RowImages(
            KeyArray.concat([part.keys for part in parts]),
            pa.concat_tables([part.rows for part in parts]),
            np.concatenate(stamps) if stamps else None,
            concat_moved([part.undo for part in parts], starts),
            concat_moved([part.redo for part in parts], starts),
        )


class ApplierMemo:
    """The newest applier of a rowset and one of the past; from `timestamp_max` on all are equal.

    It keeps no reference to the rowset, so that an unused rowset is freed at once.
    """

    def __init__(self, timestamp_max: int) -> None:
        self.timestamp_max = timestamp_max
        self._latest: DeltaApplier | None = None
        self._recent: tuple[int, DeltaApplier] | None = None

    def at(self, timestamp: int, make: Callable[[int], DeltaApplier]) -> DeltaApplier:
        """Return the applier of a snapshot at `timestamp`; `make` makes a missing one."""
        if timestamp >= self.timestamp_max:
            if self._latest is None:
                self._latest = make(timestamp)
            return self._latest
        recent = self._recent
        if recent is None or recent[0] != timestamp:
            recent = self._recent = (timestamp, make(timestamp))
        return recent[1]


class KeyInterval(Protocol):
    """Anything with inclusive encoded key bounds."""

    @property
    def key_min(self) -> bytes:
        """The smallest key."""

    @property
    def key_max(self) -> bytes:
        """The largest key."""


T = TypeVar("T", bound=KeyInterval)


@dataclass(frozen=True)
class _Node(Generic[T]):
    centre: bytes
    by_min: tuple[T, ...]
    by_max: tuple[T, ...]
    left: _Node[T] | None
    right: _Node[T] | None


class RowSetTree(Generic[T]):
    """Static centred interval tree; queries return items in no particular order."""

    def __init__(self, items: Sequence[T]) -> None:
        self.items = tuple(items)
        self._root = _build(self.items)

    def covering(self, key: bytes) -> Iterator[T]:
        """Yield the items whose bounds contain `key`."""
        node = self._root
        while node is not None:
            if key < node.centre:
                for item in node.by_min:
                    if item.key_min > key:
                        break
                    yield item
                node = node.left
            elif key > node.centre:
                for item in node.by_max:
                    if item.key_max < key:
                        break
                    yield item
                node = node.right
            else:
                yield from node.by_min
                return

    def overlapping(self, lower: bytes | None, upper: bytes | None) -> Iterator[T]:
        """Yield the items that may hold a key in [lower, upper); None is unbounded."""
        pending = [self._root]
        while pending:
            node = pending.pop()
            if node is None:
                continue
            for item in node.by_min:
                if upper is not None and item.key_min >= upper:
                    break
                if lower is None or item.key_max >= lower:
                    yield item
            if lower is None or lower < node.centre:
                pending.append(node.left)
            if upper is None or upper > node.centre:
                pending.append(node.right)

    def probe_ranges(self, keys: KeyArray) -> Iterator[tuple[T, int, int]]:
        """Yield (item, start, stop): the slice of ascending `keys` inside an item's bounds."""
        if not len(keys):
            return
        for item in self.overlapping(keys[0], keys[len(keys) - 1] + b"\0"):
            start = keys.locate(item.key_min, "left")
            stop = keys.locate(item.key_max, "right")
            if start < stop:
                yield item, start, stop


def _build(items: Sequence[T]) -> _Node[T] | None:
    if not items:
        return None
    ends = sorted(end for item in items for end in (item.key_min, item.key_max))
    centre = ends[len(ends) // 2]
    here = [item for item in items if item.key_min <= centre <= item.key_max]
    return _Node(
        centre=centre,
        by_min=tuple(sorted(here, key=lambda item: item.key_min)),
        by_max=tuple(sorted(here, key=lambda item: item.key_max, reverse=True)),
        left=_build([item for item in items if item.key_max < centre]),
        right=_build([item for item in items if item.key_min > centre]),
    )


@dataclass(frozen=True)
class BaseFileMeta(JsonForm):
    """One Parquet file of base data and the ids of the columns that it holds."""

    ref: Annotated[FileRef, Stored("file")]
    column_ids: tuple[int, ...]


@dataclass(frozen=True)
class RowSetMeta(JsonForm):
    """One DiskRowSet. `key_min` and `key_max` are inclusive encoded keys.

    REDO files are oldest first, UNDO files newest first. Superblocks of the first format have no
    UNDO files and do not name them. `group_rows` are the rows of the row groups of wide base data.
    """

    id: Annotated[str, Stored(name="rowset id")]
    row_count: int
    key_min: bytes
    key_max: bytes
    base: tuple[BaseFileMeta, ...]
    key_index: FileRef
    bloom: FileRef
    insert_timestamp: int = TIMESTAMP_UNASSIGNED
    delete_timestamp: int | None = None
    redo: tuple[DeltaFileMeta, ...] = ()
    undo: Annotated[tuple[DeltaFileMeta, ...], Stored(may_be_absent=True)] = ()
    group_rows: Annotated[int | None, Stored(may_be_none=True)] = None

    @property
    def rows_per_group(self) -> int:
        """The rows of each row group of base data but the last."""
        return self.group_rows or ROW_GROUP_ROWS

    @property
    def live_row_count(self) -> int:
        """Rows that are not deleted, after all deltas; a rowset never reinserts a deleted row."""
        if self.delete_timestamp is not None:
            return 0
        return self.row_count - sum(delta.delete_count for delta in self.redo)

    @property
    def bytes_on_disk(self) -> int:
        """Size of all files of the rowset."""
        return sum(ref.length for ref in self.file_refs)

    @property
    def base_bytes(self) -> int:
        """Size of the base data."""
        return sum(base.ref.length for base in self.base)

    @property
    def file_refs(self) -> list[FileRef]:
        """All files of the rowset, in its folder."""
        base = [file.ref for file in self.base]
        deltas = [delta.ref for delta in (*self.redo, *self.undo)]
        return [*base, self.key_index, self.bloom, *deltas]

    @property
    def file_names(self) -> list[str]:
        """Names of all files of the rowset."""
        return [ref.name for ref in self.file_refs]

    @property
    def timestamp_max(self) -> int:
        """The newest timestamp of any change of the rowset."""
        deltas = (delta.timestamp_max for delta in (*self.redo, *self.undo))
        return max(self.insert_timestamp, self.delete_timestamp or 0, *deltas)

    def is_visible(self, timestamp: int) -> bool:
        """Whether a snapshot at `timestamp` (inclusive) sees the rowset at all."""
        if self.insert_timestamp > timestamp:
            return False
        return self.delete_timestamp is None or self.delete_timestamp > timestamp

    def with_redo(self, deltas: tuple[DeltaFileMeta, ...]) -> RowSetMeta:
        """Return the rowset with newer REDO files appended."""
        return replace(self, redo=self.redo + deltas)


def without_ancient_undo(meta: RowSetMeta, mark: int) -> RowSetMeta:
    """Return the rowset without the UNDO files that have only ancient changes; opens no file."""
    undo = tuple(delta for delta in meta.undo if delta.timestamp_max > mark)
    return meta if len(undo) == len(meta.undo) else replace(meta, undo=undo)


def is_fully_ancient(meta: RowSetMeta, mark: int) -> bool:
    """Whether no snapshot at `mark` or later sees a row of the rowset.

    Either the rowset or each of its rows was deleted by then. In the second case no REDO is newer
    than the newest DELETE, because a deleted row has no later change. The newest timestamps of the
    files therefore show exactly whether all DELETEs are ancient.
    """
    if meta.delete_timestamp is not None and meta.delete_timestamp <= mark:
        return True
    deleted = sum(delta.delete_count for delta in meta.redo)
    return deleted == meta.row_count and all(delta.timestamp_max <= mark for delta in meta.redo)
