"""Cuts, joins and orders the rows of deltas, each as a few array operations.

A column that a part does not set at all is null there, with `is_set` false.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from kudulite.delta.delta_file import DeltaColumn, DeltaRows

# What an Arrow array takes beside its cells: the Python and C++ objects around the buffers.
_ARRAY_OVERHEAD_BYTES = 300


def slice_rows(rows: DeltaRows, start: int, stop: int) -> DeltaRows:
    """Return rows start..stop without a copy."""
    if start == 0 and stop >= len(rows.rowids):
        return rows
    columns = {
        column_id: DeltaColumn(
            column.values.slice(start, stop - start),
            None if column.is_set is None else column.is_set[start:stop],
        )
        for column_id, column in rows.columns.items()
    }
    stamps = None if rows.timestamps is None else rows.timestamps[start:stop]
    return DeltaRows(rows.rowids[start:stop], rows.ops[start:stop], columns, stamps)


def rows_between(rows: DeltaRows, start: int, stop: int) -> DeltaRows:
    """Return the changes of rows start..stop of ascending `rows`, their row ids from 0."""
    low, high = np.searchsorted(rows.rowids, [start, stop]).tolist()
    found = slice_rows(rows, low, high)
    return replace(found, rowids=found.rowids - start)


def take_rows(rows: DeltaRows, at: np.ndarray) -> DeltaRows:
    """Return the rows at int64[m] positions `at`, in that order."""
    indices = pa.array(at)
    columns = {
        column_id: DeltaColumn(
            column.values.take(indices), None if column.is_set is None else column.is_set[at]
        )
        for column_id, column in rows.columns.items()
    }
    stamps = None if rows.timestamps is None else rows.timestamps[at]
    return DeltaRows(rows.rowids[at], rows.ops[at], columns, stamps)


def without_unset(rows: DeltaRows) -> DeltaRows:
    """Return the same rows without the columns that none of them sets; masks that say all go."""
    columns = {}
    for column_id, column in rows.columns.items():
        if column.is_set is None or column.is_set.all():
            columns[column_id] = DeltaColumn(column.values)
        elif column.is_set.any():
            columns[column_id] = column
    return DeltaRows(rows.rowids, rows.ops, columns, rows.timestamps)


def sort_rows(rows: DeltaRows) -> DeltaRows:
    """Return rows that come in order of time by row id, each row's own still in order of time."""
    if len(rows.rowids) < 2 or (rows.rowids[1:] >= rows.rowids[:-1]).all():
        return rows
    return take_rows(rows, np.argsort(rows.rowids, kind="stable"))


def concat_rows(parts: Sequence[DeltaRows]) -> DeltaRows:
    """Return the rows of all parts (at least one, all with timestamps), one after the other."""
    if len(parts) == 1:
        return parts[0]
    stamps = [part.timestamps for part in parts if part.timestamps is not None]
    assert len(stamps) == len(parts), "parts without timestamps of their own cannot be joined"
    column_ids = dict.fromkeys(column_id for part in parts for column_id in part.columns)
    lengths = [len(part.rowids) for part in parts]
    columns = {}
    for column_id in column_ids:
        column = concat_columns([part.columns.get(column_id) for part in parts], lengths)
        assert column is not None
        columns[column_id] = column
    return DeltaRows(
        rowids=np.concatenate([part.rowids for part in parts]),
        ops=np.concatenate([part.ops for part in parts]),
        columns=columns,
        timestamps=np.concatenate(stamps),
    )


def concat_columns(
    parts: Sequence[DeltaColumn | None], lengths: Sequence[int]
) -> DeltaColumn | None:
    """Return the cells of parts with so many rows each; None where no part sets any.

    Where the column's type was widened between parts the cells have the widest.
    """
    arrow_type = next((part.values.type for part in parts if part is not None), None)
    if arrow_type is None:
        return None
    values = concat_values(
        [
            pa.nulls(length, arrow_type) if part is None else part.values
            for part, length in zip(parts, lengths, strict=True)
        ]
    )
    if all(part is not None and part.is_set is None for part in parts):
        return DeltaColumn(values)
    is_set = np.ones(len(values), dtype=bool)
    stop = 0
    for part, length in zip(parts, lengths, strict=True):
        start, stop = stop, stop + length
        if part is None:
            is_set[start:stop] = False
        elif part.is_set is not None:
            is_set[start:stop] = part.is_set
    return DeltaColumn(values, is_set)


def concat_values(parts: Sequence[pa.Array]) -> pa.Array:
    """Return the values of parts of one column, in the widest of their types."""
    first = parts[0].type
    if all(part.type.equals(first) for part in parts):
        return pa.concat_arrays(parts) if len(parts) > 1 else parts[0]
    widest = max((part.type for part in parts), key=_width)
    return pa.concat_arrays([part.cast(widest) for part in parts])


def _width(arrow_type: pa.DataType) -> tuple[int, int]:
    """Return what grows when a column's type is widened."""
    precision = arrow_type.precision if pa.types.is_decimal(arrow_type) else 0
    return arrow_type.bit_width, precision


def nbytes_of(rows: DeltaRows) -> int:
    """Memory in bytes, near enough: buffers and what is around them."""
    total = rows.rowids.nbytes + rows.ops.nbytes
    for column in rows.columns.values():
        total += column.values.get_total_buffer_size() + _ARRAY_OVERHEAD_BYTES
        if column.is_set is not None:
            total += column.is_set.nbytes
    return total + (0 if rows.timestamps is None else rows.timestamps.nbytes)
