"""Scans of tablets: blocks, rows in key order, chosen rows, diff scans, and one key's history.

A block is the unit of work: it is read, brought to the snapshot and filtered without any other, so
any number of threads may read the blocks of a tablet. Memory is bounded by the blocks in flight.

`ChosenRows` selects rows of a DiskRowSet by position: the rows that deltas change, or all rows
except some. A reader that reads base files directly needs the changed rows from here, because base
data does not show their state at the snapshot.

A diff scan returns the changes within a window of time, one of each key:

    rowset ─ changed rows, by key ─┐
    rowset ─ changed rows, by key ─┼─ windows of keys ─ one change a key ─ filter ─ batches
    rowset ─ changed rows, by key ─┘

    live at start   live at end
         no             yes        insert
         yes            yes        update_postimage: the row at `end`, also with the same values, or
                                   after a delete and an insert; with both images, the row before
                                   it is its update_preimage: the row at `start`
         yes            no         delete: the row as it was at `start`
         no             no         nothing: a row inserted and deleted inside the window is omitted

The words are those of Delta Lake and of Spark's clause CHANGES. `_commit_version` is the HybridTime
of the newest change, which a read at a moment takes back, and `_commit_timestamp` its wall time.

A key may have rows in several rowsets. All of them fall into the same window, so they are compared
together, wherever the key is live at the start or the end. Memory is bounded by a block of each
rowset that the window reaches, and by the blocks that the caller reads ahead.

`key_history` applies the rules of a diff scan between all timestamps at which one key changed.

**Threads**: any number may scan.

**Source**: Kudu tablet.md and generic_iterators.cc, diff scans; Kudu's window is [start, end), its
deletes have keys only, and it does not distinguish inserts from updates. Kudu has no counterpart of
`key_history`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import pyarrow as pa

from kudulite.basefile.base_data import CUT_ROWS_MAX, ROW_GROUP_ROWS
from kudulite.basefile.page_range import PAGE_ROWS
from kudulite.delta.delta_applier import difference
from kudulite.delta.scatter import select
from kudulite.errors import UsageError
from kudulite.model.hybrid_time import TIMESTAMP_MAX, Timestamp
from kudulite.model.predicate import bind_predicates
from kudulite.model.schema import Schema
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.merge import (
    OrderedStream,
    RowsRead,
    Runner,
    in_order,
    in_turn,
    merge_windows,
)
from kudulite.rowset.rowset import Block, RowSet, ScannedRows
from kudulite.rowset.rowset_diff import (
    IMAGE_START,
    LIVE_END,
    LIVE_START,
    TIMESTAMP,
    OneRow,
    block_diffs,
    find_row,
    may_have_changed,
)
from kudulite.rowset.scan_spec import DiffSpec, ScanSpec
from kudulite.storage.json_form import JsonForm
from kudulite.storage.storage import Storage
from kudulite.tablet.operation import UPDATE_POSTIMAGE, UPDATE_PREIMAGE
from kudulite.tablet.tablet import Tablet

CHANGE_TYPE, COMMIT_VERSION = "_change_type", "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"
CHANGE_COLUMNS = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)
INSERT, PREIMAGE, POSTIMAGE, DELETE = range(4)
CHANGE_TYPES = ("insert", UPDATE_PREIMAGE, UPDATE_POSTIMAGE, "delete")
# The first block of a rowset in a scan with a limit, and how much larger the next ones are.
_FIRST_ROWS, _ROWS_FACTOR = 1024, 4


@dataclass(frozen=True)
class BlockRead:
    """One block of a scan, not read yet; `wanted` int64[m] are positions in it, None means all."""

    rowset: RowSet
    block: Block
    spec: ScanSpec
    wanted: np.ndarray | None = None

    @property
    def is_short(self) -> bool:
        """Whether the read takes so little time that another thread would not make it faster."""
        return self.block.row_count <= PAGE_ROWS

    def run(self) -> pa.RecordBatch | None:
        """Return the block's matching rows, or None if there are none."""
        rows = self.rowset.read_block(self.block, self.spec, self.wanted)
        return None if rows is None else rows.batch


@dataclass(frozen=True)
class DeltaRead:
    """Rows of which deltas set all cells: arrays, and int64[n] places in each."""

    cells: Sequence[tuple[pa.Array, np.ndarray]]
    spec: ScanSpec
    # numpy gathers the cells, and keeps the interpreter's lock while it does.
    is_short: ClassVar[bool] = True

    def run(self) -> pa.RecordBatch:
        """Return the rows; no base data is read."""
        arrays = [select(values, at) for values, at in self.cells]
        return pa.RecordBatch.from_arrays(arrays, schema=self.spec.fields)


def block_reads(tablet: Tablet, spec: ScanSpec) -> Iterator[BlockRead]:
    """Yield the reads that together are an unordered scan of the tablet."""
    for rowset in _rowsets_to_read(tablet, spec):
        for block in _blocks(rowset, spec):
            yield BlockRead(rowset, block, spec)


def open_for_scan(storage: Storage, tablets: Iterable[Tablet], spec: ScanSpec) -> None:
    """Open the files with which a scan begins side by side, where a store must be waited for."""
    storage.prefetch(_loads(tablets, spec, partial(_rowsets_to_read, spec=spec)))


def open_for_diff(storage: Storage, tablets: Iterable[Tablet], spec: DiffSpec) -> None:
    """Do as `open_for_scan` for a diff scan, which reads deltas of both ends of its window."""

    def changed(tablet: Tablet) -> Iterator[RowSet]:
        return (rowset for rowset in tablet.rowsets if may_have_changed(rowset, spec))

    names = tuple(column.name for column in spec.image_columns)
    images = replace(spec.key_scan, names=names, with_keys=True)
    storage.prefetch(_loads(tablets, images, changed, spec.start))


def _loads(
    tablets: Iterable[Tablet],
    spec: ScanSpec,
    chosen: Callable[[Tablet], Iterable[RowSet]],
    *others: int,
) -> Iterator[Callable[[], None]]:
    for tablet in tablets:
        for rowset in chosen(tablet):
            if isinstance(rowset, DiskRowSet):
                yield partial(rowset.open_for, spec, *others)


def _blocks(rowset: RowSet, spec: ScanSpec) -> Iterator[Block]:
    """Yield the blocks of a rowset; those of a scan with a limit are small at first."""
    if spec.limit is None:
        yield from rowset.blocks(spec)
        return
    row_count = max(spec.limit, _FIRST_ROWS)
    for block in rowset.blocks(spec):
        start = block.start
        while row_count <= CUT_ROWS_MAX and start < block.stop:
            stop = min(start + row_count, block.stop)
            yield replace(block, start=start, stop=stop)
            start, row_count = stop, row_count * _ROWS_FACTOR
        if start < block.stop:
            yield replace(block, start=start)


def _rowsets_to_read(tablet: Tablet, spec: ScanSpec) -> Sequence[RowSet]:
    if spec.predicates.is_empty:
        return ()
    return list(tablet.visible(spec.timestamp).overlapping(spec.lower, spec.upper))


@dataclass(frozen=True)
class WindowRead:
    """The rows of one window of keys, read and not merged yet."""

    parts: Sequence[ScannedRows]

    @property
    def is_short(self) -> bool:
        """Whether the window has few rows, so that a thread of its own would not pay."""
        return _row_count(self.parts) < CUT_ROWS_MAX

    def rows(self) -> ScannedRows:
        """Return the rows in key order, with their keys."""
        return in_order(self.parts)

    def run(self) -> pa.RecordBatch:
        """Return the rows in key order."""
        return self.rows().batch


def ordered_reads(
    tablets: Iterable[Tablet], spec: ScanSpec, run: Runner = in_turn
) -> Iterator[WindowRead]:
    """Yield the reads that together are the matching rows of all tablets in key order.

    The blocks of each rowset are read by `run`, and cut to windows while the reads are yielded.
    """
    with_keys = replace(spec, with_keys=True)

    def reads(rowset: RowSet) -> Iterator[RowsRead]:
        for block in _blocks(rowset, with_keys):
            yield RowsRead(partial(rowset.read_block, block, with_keys), block.row_count)

    # One merge of all rowsets: rows of a merge inside of another one would be copied twice.
    rowsets = [rowset for tablet in tablets for rowset in _rowsets_to_read(tablet, spec)]
    return map(WindowRead, _windows(rowsets, reads, run))


def _windows(
    rowsets: Sequence[RowSet], reads: Callable[[RowSet], Iterator[RowsRead]], run: Runner
) -> Iterator[list[ScannedRows]]:
    """Yield the rows of each window of keys, by rowset; `run` runs the `reads` of a rowset."""

    def stream(rowset: RowSet) -> OrderedStream[ScannedRows]:
        return OrderedStream(rowset.key_min, lambda: run(reads(rowset)))

    for window in merge_windows([stream(rowset) for rowset in rowsets], _rows_of_each):
        yield [rows for _, rows in window]


def _row_count(parts: Sequence[ScannedRows]) -> int:
    return sum(part.batch.num_rows for part in parts)


def _rows_of_each(parts: Sequence[ScannedRows]) -> int:
    """Return how many rows of each rowset a window has, so that all have at most a row group."""
    return max(1, ROW_GROUP_ROWS // len(parts))


def count_rows(storage: Storage, tablet: Tablet, spec: ScanSpec) -> int:
    """Return the number of matching rows; without predicates and bounds no file is read."""
    if spec.predicates.is_empty:
        return 0
    if not spec.has_conditions:
        visible = tablet.visible(spec.timestamp).items
        return sum(rowset.live_row_count(spec.timestamp) for rowset in visible)

    def count(read: BlockRead) -> int:
        batch = read.run()
        return 0 if batch is None else batch.num_rows

    reads = list(block_reads(tablet, replace(spec, names=())))
    return sum(storage.side_by_side(count, reads))


@dataclass(frozen=True)
class ChosenRows(JsonForm):
    """Rows of one rowset: all, or the rows that deltas change; in both cases except `without`.

    `without` holds int64 row ids, strictly ascending, as bytes.
    """

    rowset_id: str
    only_changed: bool
    without: bytes = b""

    def positions(self, rowset: DiskRowSet, timestamp: int) -> np.ndarray | None:
        """Return int64[m], ascending: the chosen row ids, or None for all."""
        without = np.frombuffer(self.without, np.int64)
        if len(without) and (without[0] < 0 or (np.diff(without) <= 0).any()):
            raise UsageError(f"a token of rowset {self.rowset_id!r} has row ids in no order")
        if self.only_changed:
            changed = rowset.applier(timestamp).changed
            return difference(changed, without)
        if not len(without):
            return None
        return difference(np.arange(rowset.meta.row_count), without)


def chosen_reads(
    rowset: DiskRowSet, rows: np.ndarray | None, spec: ScanSpec
) -> Iterator[BlockRead | DeltaRead]:
    """Yield the reads of int64[m] ascending row ids of a rowset (None: all) that match `spec`."""
    if spec.predicates.is_empty or not rowset.is_visible(spec.timestamp):
        return
    cells = None if rows is None else _complete_cells(rowset, rows, spec)
    if cells is not None:
        for start in range(0, len(cells[0][1]), ROW_GROUP_ROWS):
            part = slice(start, start + ROW_GROUP_ROWS)
            yield DeltaRead([(values, at[part]) for values, at in cells], spec)
        return
    for block in rowset.blocks(spec):
        if rows is None:
            yield BlockRead(rowset, block, spec)
            continue
        low, high = np.searchsorted(rows, [block.start, block.stop])
        if low < high:
            yield BlockRead(rowset, block, spec, rows[low:high] - block.start)


def _complete_cells(
    rowset: DiskRowSet, rows: np.ndarray, spec: ScanSpec
) -> list[tuple[pa.Array, np.ndarray]] | None:
    """Return the cells of the live rows if deltas set all of them, else None."""
    if not spec.names or spec.with_keys or spec.has_conditions:
        return None
    types = {c.id: c.type.arrow for c in map(spec.schema.column, spec.names)}
    return rowset.applier(spec.timestamp).complete_cells(types, rows)


def diff_schema(spec: DiffSpec) -> pa.Schema:
    """Return the Arrow schema of a diff scan: the projection, then the columns of the change."""
    fields = list(spec.schema.result_schema(spec.names))
    return pa.schema([*fields, *change_fields(nullable=False)])


def change_fields(nullable: bool) -> list[pa.Field]:
    """Return the fields of the columns that changes, and versions of a row, have themselves."""
    types = (pa.string(), pa.uint64(), pa.timestamp("us", "UTC"))
    return [pa.field(*field, nullable) for field in zip(CHANGE_COLUMNS, types, strict=True)]


def change_columns(types: pa.Array, versions: pa.Array) -> list[pa.Array]:
    """Return the columns of `change_fields`: of places in CHANGE_TYPES, and of HybridTimes."""
    return [pa.array(CHANGE_TYPES).take(types), versions, Timestamp.array(versions)]


@dataclass(frozen=True)
class DiffRead:
    """A part of a diff scan, not finished yet; `rows` has all changed rows of its keys."""

    rows: Callable[[], ScannedRows | None]
    spec: DiffSpec
    is_short: bool

    def run(self) -> pa.RecordBatch | None:
        """Return the changes, a batch of `diff_schema`, or None if there are none."""
        rows = self.rows()
        batch = None if rows is None else _changes_of_keys(rows, self.spec)
        return batch if batch is not None and batch.num_rows else None


def diff_reads(
    tablets: Sequence[Tablet], spec: DiffSpec, run: Runner = in_turn
) -> Iterator[DiffRead]:
    """Yield the reads that together are a diff scan of some tablets, in key order.

    A key may be in several tablets: one of a dropped range, and one of the range that replaced it.
    The blocks of a single rowset are read when the reads run; those of several rowsets are read by
    `run` and cut to windows while the reads are yielded.
    """
    if spec.predicates.is_empty:
        return
    rowsets = [r for tablet in tablets for r in tablet.rowsets if may_have_changed(r, spec)]
    if len(rowsets) == 1:
        for read in block_diffs(rowsets[0], spec):
            yield DiffRead(read.run, spec, read.row_count <= PAGE_ROWS)
        return
    for parts in _windows(rowsets, lambda rowset: block_diffs(rowset, spec), run):
        yield DiffRead(partial(in_order, parts), spec, _row_count(parts) < CUT_ROWS_MAX)


def _changes_of_keys(rows: ScannedRows, spec: DiffSpec) -> pa.RecordBatch:
    """Join the rows of each key in a window of ascending keys into one change.

    With both images an update is two rows, of which the first is the preimage.
    """
    assert rows.keys is not None
    batch = rows.batch
    was_live = batch.column(LIVE_START).to_numpy(zero_copy_only=False)
    is_live = batch.column(LIVE_END).to_numpy(zero_copy_only=False)
    stamps = batch.column(TIMESTAMP).to_numpy()
    before_at = after_at = starts = np.flatnonzero(~rows.keys.equals_previous())
    if len(starts) < batch.num_rows:
        before_at, after_at = _rows_of_ends(starts, was_live, is_live)
        was_live = np.logical_or.reduceat(was_live, starts)
        is_live = np.logical_or.reduceat(is_live, starts)
        stamps = np.maximum.reduceat(stamps, starts)
    kept = was_live | is_live
    if spec.value_predicates.columns:
        kept &= _matches(batch, spec, after_at, before_at, was_live)
    before_at, after_at = before_at[kept], after_at[kept]
    was_live, is_live = was_live[kept], is_live[kept]
    types = np.where(was_live, np.where(is_live, POSTIMAGE, DELETE), INSERT)
    places, image_count = _image_places(spec), len(spec.image_columns)
    images = [batch.column(IMAGE_START + places[name]) for name in spec.names]
    stamps = stamps[kept]
    if spec.with_before and (updates := np.flatnonzero(types == POSTIMAGE)).size:
        first = IMAGE_START + image_count
        olds = [batch.column(first + places[name]) for name in spec.names]
        pairs = [pa.concat_arrays(pair) for pair in zip(images, olds, strict=True)]
        at = np.insert(after_at, updates, batch.num_rows + before_at[updates])
        arrays = [pair.take(pa.array(at)) for pair in pairs]
        types = np.insert(types, updates, PREIMAGE)
        stamps = np.insert(stamps, updates, stamps[updates])
    else:
        arrays = [_rows_at(image, after_at) for image in images]
    arrays += change_columns(pa.array(types), pa.array(stamps))
    return pa.RecordBatch.from_arrays(arrays, schema=diff_schema(spec))


def _rows_at(array: pa.Array, at: np.ndarray) -> pa.Array:
    """Return the values at int64[k] strictly ascending positions; all of them are not copied."""
    return array if len(at) == len(array) else array.take(pa.array(at))


def _rows_of_ends(
    starts: np.ndarray, live_start: np.ndarray, live_end: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the position of each key's row before and after; its first row is at `starts`.

    At each end a key is live in at most one row. If it is not live, any row stands in, unused.
    """
    is_first = np.zeros(len(live_start), dtype=bool)
    is_first[starts] = True
    key = np.cumsum(is_first) - 1
    for_start, for_end = np.flatnonzero(live_start), np.flatnonzero(live_end)
    before_at, after_at = starts.copy(), starts.copy()
    before_at[key[for_start]] = for_start
    after_at[key[for_start]] = for_start
    after_at[key[for_end]] = for_end
    return before_at, after_at


def _image_places(spec: DiffSpec) -> dict[str, int]:
    return {column.name: place for place, column in enumerate(spec.image_columns)}


def _matches(
    batch: pa.RecordBatch,
    spec: DiffSpec,
    after_at: np.ndarray,
    before_at: np.ndarray,
    was_live: np.ndarray,
) -> np.ndarray:
    """Return bool[k]: whether each key matches the predicates at either end of the window."""
    names = spec.value_predicates.columns
    places = _image_places(spec)
    first, width = IMAGE_START, len(spec.image_columns)

    def evaluate(offset: int, at: np.ndarray) -> np.ndarray:
        arrays = [batch.column(offset + places[name]).take(pa.array(at)) for name in names]
        return spec.value_predicates.evaluate(pa.RecordBatch.from_arrays(arrays, names))

    # The "after" image of a deleted row is its "before" image.
    is_match: np.ndarray = evaluate(first, after_at)
    is_match = is_match | (evaluate(first + width, before_at) & was_live)
    return is_match


@dataclass(frozen=True)
class KeyVersion:
    """One row version, current from `timestamp` on; None: since before the requested start.

    `change_type` is a place in CHANGE_TYPES. `cells` has an array of one value for each column; for
    a delete, the values of the deleted row.
    """

    timestamp: int | None
    change_type: int | None
    cells: list[pa.Array]

    @property
    def is_delete(self) -> bool:
        """Whether this version is a delete."""
        return self.change_type == DELETE


def key_history(
    tablets: Sequence[Tablet], key: bytes, schema: Schema, start: int
) -> list[KeyVersion]:
    """Return the versions of an encoded key, first the one at `start` if it was live then."""
    spec = ScanSpec(
        schema, (), bind_predicates((), schema), TIMESTAMP_MAX, key, key + b"\0", with_keys=True
    )
    found = (find_row(rowset, spec) for tablet in tablets for rowset in tablet.rowsets)
    rows = [row for row in found if row is not None]
    column_ids = {column.id for column in schema.columns}
    timestamps = _timestamps(rows, start, column_ids)
    holders = [next((row for row in rows if row.is_live(at)), None) for at in timestamps]
    shown: list[tuple[int | None, int | None, OneRow, int]] = []
    for number, (at, holder) in enumerate(zip(timestamps, holders, strict=True)):
        if number == 0:
            if holder is not None:
                shown.append((None, None, holder, at))
            continue
        before = holders[number - 1]
        if holder is not None:
            shown.append((at, INSERT if before is None else POSTIMAGE, holder, at))
        elif before is not None:
            shown.append((at, DELETE, before, timestamps[number - 1]))
    images = {
        row: row.images(schema.columns, sorted({at for _, _, other, at in shown if other is row}))
        for row in dict.fromkeys(row for _, _, row, _ in shown)
    }
    return [KeyVersion(stamp, kind, images[row][at]) for stamp, kind, row, at in shown]


def _timestamps(rows: Sequence[OneRow], start: int, column_ids: Collection[int]) -> list[int]:
    """Return `start` and all later timestamps at which one of the rows changed, ascending."""
    changed: set[int] = set()
    for row in rows:
        changed |= row.moments(start, column_ids)
    return [start, *sorted(changed)]
