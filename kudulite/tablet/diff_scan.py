"""Diff scan: what changed in a window of time, one row for each key.

    rowset ─ changed rows, by key ─┐
    rowset ─ changed rows, by key ─┼─ windows of keys ─ one row a key ─ type, filter ─ batches
    rowset ─ changed rows, by key ─┘

    live at start   live at end
         no             yes        insert
         yes            yes        update, also to the same values, or by a delete and an insert
         yes            no         delete: the row as it was at `start`
         no             no         nothing: a row inserted and deleted inside the window is omitted

A key may have rows in several rowsets. All of them fall into the same window, so they are compared
together, wherever the key is live at the start or the end. Memory is bounded by a block of each
rowset that the window reaches.

Threads: any number may scan.

Source: Kudu tablet.md and generic_iterators.cc, diff scans; there a window is [start, end), deletes
have keys only, and inserts are not distinguished from updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from kudulite.model.key_array import KeyArray
from kudulite.rowset.diff_spec import DiffSpec
from kudulite.rowset.merge import OrderedStream, merge_ordered
from kudulite.rowset.rowset import ScannedRows
from kudulite.rowset.rowset_diff import (
    IMAGE_START,
    LIVE_END,
    LIVE_START,
    TIMESTAMP,
    diff_blocks,
    may_have_changed,
)
from kudulite.tablet.tablet import Tablet

CHANGE_TYPE, COMMIT_TIMESTAMP, BEFORE = "_change_type", "_commit_timestamp", "_before"
CHANGE_COLUMNS = (CHANGE_TYPE, COMMIT_TIMESTAMP, BEFORE)
CHANGE_TYPES = ("insert", "update", "delete")
INSERT, UPDATE, DELETE = range(3)


def diff_schema(spec: DiffSpec) -> pa.Schema:
    """Return the Arrow schema of a diff scan: the projection, then what is said of the change."""
    fields = [field.remove_metadata() for field in spec.schema.arrow_schema(spec.names)]
    added = [
        pa.field(CHANGE_TYPE, pa.string(), nullable=False),
        pa.field(COMMIT_TIMESTAMP, pa.uint64(), nullable=False),
    ]
    if spec.with_before:
        inner = [field.with_nullable(True) for field in fields]
        added.append(pa.field(BEFORE, pa.struct(inner)))
    return pa.schema([*fields, *added])


def diff_scan(tablets: Sequence[Tablet], spec: DiffSpec) -> Iterator[pa.RecordBatch]:
    """Yield the changes of some tablets together in key order, of `diff_schema`, none empty.

    A key may be in several of them: in a dropped range, and in one that came in its place.
    """
    if spec.predicates.is_empty:
        return
    streams = [
        OrderedStream(rowset.key_min, partial(diff_blocks, rowset, spec))
        for tablet in tablets
        for rowset in tablet.rowsets
        if may_have_changed(rowset, spec)
    ]
    for rows in merge_ordered(streams):
        batch = _one_row_per_key(rows, spec)
        if batch.num_rows:
            yield batch


def _one_row_per_key(rows: ScannedRows, spec: DiffSpec) -> pa.RecordBatch:
    """Join the lives of each key in a window of ascending keys, and say what became of it."""
    assert rows.keys is not None
    batch, keys = rows.batch, rows.keys
    live_start = batch.column(LIVE_START).to_numpy(zero_copy_only=False)
    live_end = batch.column(LIVE_END).to_numpy(zero_copy_only=False)
    starts, group = _groups(keys)
    # At each end a key is live in one place at most; what is in no place gets any row, unused.
    before_at, after_at = starts.copy(), starts.copy()
    for_start, for_end = np.flatnonzero(live_start), np.flatnonzero(live_end)
    before_at[group[for_start]] = for_start
    after_at[group[for_start]] = for_start
    after_at[group[for_end]] = for_end
    was_live = np.logical_or.reduceat(live_start, starts)
    is_live = np.logical_or.reduceat(live_end, starts)
    stamps = np.maximum.reduceat(batch.column(TIMESTAMP).to_numpy(), starts)
    kept = was_live | is_live
    if spec.value_predicates.columns:
        kept &= _matches(batch, spec, after_at, before_at, was_live)
    before_at, after_at = pa.array(before_at[kept]), pa.array(after_at[kept])
    was_live, is_live = was_live[kept], is_live[kept]
    types = np.where(was_live, np.where(is_live, UPDATE, DELETE), INSERT)
    count = len(spec.names)
    places = _image_places(spec)
    arrays = [batch.column(IMAGE_START + places[name]).take(after_at) for name in spec.names]
    arrays += [pa.array(CHANGE_TYPES).take(pa.array(types)), pa.array(stamps[kept])]
    schema = diff_schema(spec)
    if spec.with_before:
        first = IMAGE_START + len(spec.image_columns)
        inner = [batch.column(first + places[name]).take(before_at) for name in spec.names]
        fields = list(schema.field(count + 2).type)
        arrays.append(_struct(inner, fields, was_live))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _groups(keys: KeyArray) -> tuple[np.ndarray, np.ndarray]:
    """Return where each key begins, and int64[n]: which of the keys each row has."""
    is_first = ~keys.equals_previous()
    return np.flatnonzero(is_first), np.cumsum(is_first) - 1


def _image_places(spec: DiffSpec) -> dict[str, int]:
    return {column.name: place for place, column in enumerate(spec.image_columns)}


def _matches(
    batch: pa.RecordBatch,
    spec: DiffSpec,
    after_at: np.ndarray,
    before_at: np.ndarray,
    was_live: np.ndarray,
) -> np.ndarray:
    """Return bool[k]: which keys meet the predicates on values at either end of the window."""
    names = spec.value_predicates.columns
    places = _image_places(spec)
    first, width = IMAGE_START, len(spec.image_columns)

    def evaluate(offset: int, at: np.ndarray) -> np.ndarray:
        arrays = [batch.column(offset + places[name]).take(pa.array(at)) for name in names]
        return spec.value_predicates.evaluate(pa.RecordBatch.from_arrays(arrays, names))

    # A deleted row's image "after" is the one before.
    is_match: np.ndarray = evaluate(first, after_at)
    is_match = is_match | (evaluate(first + width, before_at) & was_live)
    return is_match


def _struct(arrays: list[pa.Array], fields: list[pa.Field], is_there: np.ndarray) -> pa.Array:
    """Return a struct array, null where nothing is there; fields may be none."""
    if fields:
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(~is_there))
    values: list[dict[str, object] | None] = [{} if there else None for there in is_there.tolist()]
    return pa.array(values, pa.struct([]))
