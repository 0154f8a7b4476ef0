"""Writes sorted rows as new DiskRowSets: base data, key index, bloom filter, deltas.

A new rowset begins after `ROWSET_ROWS_MAX` rows or `ROWSET_BYTES_MAX` Arrow bytes, deltas included.
The border is always that of a row group, and the rowsets of one call have disjoint key ranges. The
deltas of the rows are written to files of the same rowset.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from kudulite.basefile.base_data import ROW_GROUP_ROWS, write_base_data
from kudulite.basefile.bloom import write_bloom
from kudulite.basefile.key_index import write_key_index
from kudulite.delta.delta_file import OP_DELETE, DeltaRows, concat_rows, rows_between
from kudulite.fs.file_system import FileRef, FileSystem
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Schema
from kudulite.rowset.disk_rowset import write_deltas
from kudulite.rowset.rowset_meta import BaseFileMeta, RowSetMeta

ROWSET_ROWS_MAX = 1 << 20
ROWSET_BYTES_MAX = 256 << 20


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
        """Return parts with insert timestamps and ascending keys, one after the other."""
        starts = np.cumsum([0, *(len(part) for part in parts)])
        stamps = [part.insert_timestamps for part in parts if part.insert_timestamps is not None]
        return RowImages(
            KeyArray.concat([part.keys for part in parts]),
            pa.concat_tables([part.rows for part in parts]),
            np.concatenate(stamps),
            _concat_deltas([part.undo for part in parts], starts),
            _concat_deltas([part.redo for part in parts], starts),
        )


def _concat_deltas(parts: Sequence[DeltaRows | None], starts: np.ndarray) -> DeltaRows | None:
    moved = [
        replace(changes, rowids=changes.rowids + start)
        for changes, start in zip(parts, starts, strict=False)
        if changes is not None
    ]
    return concat_rows(moved) if moved else None


def write_rowsets(
    file_system: FileSystem, folder: Path, schema: Schema, images: RowImages
) -> Iterator[RowSetMeta]:
    """Write rows with all columns and strictly ascending keys to new rowsets under `folder`.

    Yields each rowset's entry when its files and its folder are durable; the caller makes the name
    of the rowset in `folder` durable. Raises StorageError.
    """
    assert len(images) == images.rows.num_rows
    step = rows_per_rowset(len(images), images.nbytes)
    for start in range(0, len(images), step):
        part = images.cut(start, min(start + step, len(images)))
        meta = _write_rowset(file_system, folder, schema, part)
        meta = _write_history(file_system, folder / meta.id, meta, part)
        file_system.sync_directory(folder / meta.id)
        yield meta


def _write_history(
    file_system: FileSystem, target: Path, meta: RowSetMeta, part: RowImages
) -> RowSetMeta:
    stamps = part.insert_timestamps
    if stamps is None:
        return meta
    inserted = int(stamps.min())
    # The rowset's insert timestamp is that of its first insert. Rows inserted later need an UNDO
    # DELETE. It gets its own file, the last in the UNDO order, so that reads of older values can
    # skip it.
    later = np.flatnonzero(stamps > inserted)
    absent = DeltaRows(later, np.full(len(later), OP_DELETE, np.uint8), {}, stamps[later])
    return replace(
        meta,
        insert_timestamp=inserted,
        undo=(
            *write_deltas(file_system, target, "undo", part.undo),
            *write_deltas(file_system, target, "undo", absent),
        ),
        redo=write_deltas(file_system, target, "redo", part.redo),
    )


def rows_per_rowset(row_count: int, nbytes: int) -> int:
    """Return how many rows fill a rowset, if `row_count` rows have `nbytes` bytes."""
    row_bytes = max(1, nbytes // max(1, row_count))
    groups = min(ROWSET_ROWS_MAX, ROWSET_BYTES_MAX // row_bytes) // ROW_GROUP_ROWS
    return max(1, groups) * ROW_GROUP_ROWS


def _write_rowset(
    file_system: FileSystem, folder: Path, schema: Schema, part: RowImages
) -> RowSetMeta:
    keys, rows = part.keys, part.rows
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
