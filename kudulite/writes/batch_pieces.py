"""The batches of a write, joined and cut into pieces that a task stages at once.

    large tables                 cut at PART_BYTES_MAX, so that each column fits one Arrow array
    packed ones                  cut at STAGE_BYTES_MAX: categories, for example, take their full
                                 size only when they are staged
    small batches                joined

Arrow's text, binary and list columns have 32-bit offsets, as a table's columns have. A batch may
hold more than 2 GiB in one column all the same: as `large_string`, as the views of Polars, or as
categories. The size of a piece is therefore the size of its values, not of its buffers.

**Invariants**: pieces are in the order of the rows; a piece has more than the limit only if it is a
single row.

**Threads**: any.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.model.types import is_arrow_bytes, is_arrow_list, is_arrow_text
from kudulite.tablet.operation import UPDATE_PREIMAGE

STAGE_BYTES_MAX = 160 << 20
# A table in memory is staged whole up to this, since it is there anyway and makes fewer rowsets.
# Below 2 GiB every column fits one Arrow array with 32-bit offsets.
PART_BYTES_MAX = 3 << 29
# Batches of fewer bytes than this part of STAGE_BYTES_MAX are joined as they arrive.
JOINED_FRACTION = 16
_PACKED_FACTOR = 2
# Of more bytes, rows are not few: the log would hold them in memory until they are flushed.
FEW_BYTES_MAX = 8 << 20

# Arrow does not filter views.
_FILTERED = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}

Batch: TypeAlias = pa.RecordBatch | pa.Table


def without_preimages(batches: Iterable[Batch], operation_column: str | None) -> Iterable[Batch]:
    """Return the batches without preimages of changes, which are nothing to write."""
    if operation_column is None:
        return batches
    return (_without_preimages(batch, operation_column) for batch in batches)


def _without_preimages(batch: Batch, operation_column: str) -> Batch:
    place = batch.schema.get_field_index(operation_column)
    if place < 0:
        return batch  # which is refused where it is checked
    kinds = batch.column(place)
    if pa.types.is_dictionary(kinds.type):
        kinds = kinds.cast(kinds.type.value_type)
    if not is_arrow_text(kinds.type):
        return batch
    is_preimage = pc.fill_null(pc.equal(kinds.cast(pa.large_string()), UPDATE_PREIMAGE), False)
    if not pc.any(is_preimage).as_py():
        return batch
    fields = [field.with_type(_FILTERED.get(field.type, field.type)) for field in batch.schema]
    # Categories would keep the word, which is no operation.
    fields[place] = fields[place].with_type(pa.large_string())
    return batch.cast(pa.schema(fields)).filter(pc.invert(is_preimage))


def few_rows(batches: Iterable[Batch], rows_max: int) -> tuple[pa.Table | None, Iterable[Batch]]:
    """Return all rows and no batches, or None and all batches where they are many, or none."""
    taken: list[pa.Table] = []
    count = size = 0
    waiting = iter(batches)
    for batch in waiting:
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        taken.append(table)
        count += table.num_rows
        if count > rows_max or (size := size + _size(table)) > FEW_BYTES_MAX:
            return None, itertools.chain(taken, waiting)
    return (_joined(taken), ()) if count else (None, taken)


def chunks(batches: Iterable[Batch]) -> Iterator[list[pa.Table]]:
    """Collect pieces of batches up to about STAGE_BYTES_MAX. The consumer empties each list."""
    waiting: list[pa.Table] = []
    size = 0
    for table, nbytes in _pieces(batches):
        waiting.append(table)
        size += nbytes
        if size >= STAGE_BYTES_MAX:
            yield waiting
            size = 0
    if waiting:
        yield waiting


def _pieces(batches: Iterable[Batch]) -> Iterator[tuple[pa.Table, int]]:
    """Yield the rows in tables up to PART_BYTES_MAX, with their sizes; small batches are joined."""
    small: list[pa.Table] = []
    size, small_bytes = 0, STAGE_BYTES_MAX // JOINED_FRACTION
    for batch in batches:
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        nbytes = _size(table)
        if nbytes < small_bytes:
            small.append(table)
            size += nbytes
        if small and max(size, nbytes) >= small_bytes:
            yield _joined(small), size
            size = 0
        if nbytes >= small_bytes:
            yield from _cut(table, nbytes)
    if small:
        yield _joined(small), size


def _joined(tables: list[pa.Table]) -> pa.Table:
    """Return the rows of tables in one, whose columns are in one chunk; empties the list."""
    joined = tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()
    tables.clear()
    return joined


def _cut(table: pa.Table, nbytes: int) -> Iterator[tuple[pa.Table, int]]:
    is_packed = nbytes > _PACKED_FACTOR * table.nbytes
    limit = STAGE_BYTES_MAX if is_packed else PART_BYTES_MAX
    if nbytes <= limit:
        yield table, nbytes
        return
    for start, stop, size in cuts(table_row_sizes(table), limit):
        yield table.slice(start, stop - start), size


def table_row_sizes(table: pa.Table) -> np.ndarray:
    """Return int64[n]: the bytes of the values of each row."""
    sizes: np.ndarray = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        sizes += np.concatenate([row_sizes(chunk) for chunk in column.chunks])
    return sizes


def cuts(sizes: np.ndarray, limit: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, size) of rows in turn that have `limit` bytes at most, or are one row."""
    ends = np.cumsum(sizes)
    start = done = 0
    while start < len(ends):
        stop = max(start + 1, int(np.searchsorted(ends, done + limit, "right")))
        yield start, stop, int(ends[stop - 1]) - done
        start, done = stop, int(ends[stop - 1])


def _size(table: pa.Table) -> int:
    """Return at least the bytes of the values of a table."""
    return sum(_array_size(column) for column in table.columns)


def _array_size(values: pa.Array | pa.ChunkedArray) -> int:
    kind = values.type
    if pa.types.is_dictionary(kind):
        chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
        longest = [row_sizes(c.dictionary).max(initial=0) * len(c) for c in chunks]
        return int(sum(longest))
    if _has_views(kind):
        chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
        return int(sum(row_sizes(chunk).sum() for chunk in chunks))
    if is_arrow_list(kind):
        return _array_size(pc.list_flatten(values)) + 8 * len(values)
    return int(values.nbytes)


def _has_views(kind: pa.DataType) -> bool:
    return bool(kind in (pa.string_view(), pa.binary_view()))


def row_sizes(values: pa.Array) -> np.ndarray:
    """Return int64[n]: the bytes of each value, without offsets and validity."""
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        return row_sizes(values.storage)
    if pa.types.is_dictionary(kind):
        numbers = values.indices.fill_null(0).to_numpy(zero_copy_only=False)
        sizes = np.append(row_sizes(values.dictionary), 0)
        return np.where(values.is_valid().to_numpy(zero_copy_only=False), sizes[numbers], 0)
    if _has_views(kind):
        return _view_sizes(values)
    if is_arrow_text(kind) or is_arrow_bytes(kind):
        lengths = pc.fill_null(pc.binary_length(values), 0)
        return lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    if is_arrow_list(kind):
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        inside = np.concatenate([[0], np.cumsum(row_sizes(pc.list_flatten(values)))])
        ends = np.cumsum(lengths.astype(np.int64))
        found: np.ndarray = inside[ends] - inside[ends - lengths]
        return found
    return np.full(len(values), -(-values.nbytes // max(1, len(values))), np.int64)


def _view_sizes(values: pa.Array) -> np.ndarray:
    """Return the lengths of views: the first of the four numbers that each one has."""
    views = np.frombuffer(values.buffers()[1], np.int32).reshape(-1, 4)
    lengths = views[values.offset : values.offset + len(values), 0].astype(np.int64)
    return np.where(values.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
