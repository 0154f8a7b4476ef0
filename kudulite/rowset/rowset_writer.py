"""Writes sorted rows as new DiskRowSets: base data, key index, bloom filter, deltas.

Rows roll over to another rowset at `ROWSET_ROWS_MAX` rows or `ROWSET_BYTES_MAX` Arrow bytes, their
history included, always at a row group's border, so that rowsets of one call have disjoint key
ranges. Deltas of the rows go with them, into files of each rowset.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from kudulite.basefile.base_data import ROW_GROUP_ROWS, write_base_data
from kudulite.basefile.bloom import write_bloom
from kudulite.basefile.key_index import write_key_index
from kudulite.delta.delta_file import OP_DELETE, DeltaRows, rows_between
from kudulite.fs.file_system import FileRef, FileSystem
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Schema
from kudulite.rowset.disk_rowset import write_deltas
from kudulite.rowset.rowset_meta import BaseFileMeta, RowSetMeta

ROWSET_ROWS_MAX = 1 << 20
ROWSET_BYTES_MAX = 256 << 20


@dataclass(frozen=True)
class RowHistory:
    """When n rows were inserted (uint64[n]), and the deltas beside their newest image.

    Row ids count over all n rows. `undo` takes the image back to each row's first insert and is
    newest first within a row; the inserts are not among it. Both have timestamps of their own.
    """

    insert_timestamps: np.ndarray
    undo: DeltaRows | None = None
    redo: DeltaRows | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the cells of the deltas, near enough."""
        parts = [rows for rows in (self.undo, self.redo) if rows is not None]
        columns = [column for rows in parts for column in rows.columns.values()]
        cells: int = sum(column.values.nbytes for column in columns)
        return cells + sum(rows.rowids.nbytes for rows in parts)

    def cut(self, start: int, stop: int) -> RowHistory:
        """Return the history of rows start..stop, their row ids from 0."""
        return RowHistory(
            self.insert_timestamps[start:stop],
            None if self.undo is None else rows_between(self.undo, start, stop),
            None if self.redo is None else rows_between(self.redo, start, stop),
        )


def write_rowsets(
    file_system: FileSystem,
    folder: Path,
    schema: Schema,
    keys: KeyArray,
    rows: pa.Table,
    history: RowHistory | None = None,
) -> Iterator[RowSetMeta]:
    """Write `rows` (all columns, strictly ascending `keys`) to new rowsets under `folder`.

    Without a `history` the rows are those of one commit, which stamps them later. Yields each
    rowset's entry when its files and its folder are durable; the name of the rowset in `folder` is
    for the caller to make durable. Raises StorageError.
    """
    assert len(keys) == rows.num_rows
    step = rows_per_rowset(len(keys), rows.nbytes + (0 if history is None else history.nbytes))
    for start in range(0, rows.num_rows, step):
        stop = min(start + step, rows.num_rows)
        part = rows.slice(start, stop - start)
        meta = _write_rowset(file_system, folder, schema, keys.slice(start, stop), part)
        if history is not None:
            meta = _write_history(file_system, folder / meta.id, meta, history.cut(start, stop))
        file_system.sync_directory(folder / meta.id)
        yield meta


def _write_history(
    file_system: FileSystem, target: Path, meta: RowSetMeta, history: RowHistory
) -> RowSetMeta:
    inserted = int(history.insert_timestamps.min())
    # The rowset as a whole is not there before its first insert. What says so of rows inserted
    # later is oldest of all, and in a file of its own: readers of old values do not need it.
    later = np.flatnonzero(history.insert_timestamps > inserted)
    ops = np.full(len(later), OP_DELETE, np.uint8)
    absent = DeltaRows(later, ops, {}, history.insert_timestamps[later])
    return replace(
        meta,
        insert_timestamp=inserted,
        undo=(
            *write_deltas(file_system, target, "undo", history.undo),
            *write_deltas(file_system, target, "undo", absent),
        ),
        redo=write_deltas(file_system, target, "redo", history.redo),
    )


def rows_per_rowset(row_count: int, nbytes: int) -> int:
    """Return how many rows fill a rowset if so many of them have `nbytes`."""
    row_bytes = max(1, nbytes // max(1, row_count))
    groups = min(ROWSET_ROWS_MAX, ROWSET_BYTES_MAX // row_bytes) // ROW_GROUP_ROWS
    return max(1, groups) * ROW_GROUP_ROWS


def _write_rowset(
    file_system: FileSystem, folder: Path, schema: Schema, keys: KeyArray, rows: pa.Table
) -> RowSetMeta:
    rowset_id = uuid.uuid4().hex
    target = folder / rowset_id
    file_system.make_directory(target)
    with file_system.open_sink(target / f"base-{uuid.uuid4().hex}.parquet") as sink:
        write_base_data(sink, rows, schema.columns)
        base = sink.finish()
    with file_system.open_sink(target / f"key-{uuid.uuid4().hex}.arrow") as sink:
        write_key_index(sink, keys)
        key_index = sink.finish()
    bloom = _write_bloom(file_system, target, keys)
    return RowSetMeta(
        id=rowset_id,
        row_count=rows.num_rows,
        key_min=keys[0],
        key_max=keys[len(keys) - 1],
        base=(BaseFileMeta(base, tuple(column.id for column in schema.columns)),),
        key_index=key_index,
        bloom=bloom,
    )


def _write_bloom(file_system: FileSystem, target: Path, keys: KeyArray) -> FileRef:
    with file_system.open_sink(target / f"bloom-{uuid.uuid4().hex}.bin") as sink:
        write_bloom(sink, keys)
        return sink.finish()
