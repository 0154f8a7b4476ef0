"""Writes sorted rows as new DiskRowSets: base data, key index, bloom filter.

Rows roll over to another rowset at `ROWSET_ROWS_MAX` rows or `ROWSET_BYTES_MAX` Arrow bytes, always
at a row group's border, so that rowsets of one call have disjoint key ranges.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from kudulite.cfile.base_data import ROW_GROUP_ROWS, write_base_data
from kudulite.cfile.bloom import write_bloom
from kudulite.cfile.key_index import write_key_index
from kudulite.fs.file_system import FileRef, FileSystem
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Schema
from kudulite.rowset.rowset_meta import BaseFileMeta, RowSetMeta

ROWSET_ROWS_MAX = 1 << 20
ROWSET_BYTES_MAX = 256 << 20


def write_rowsets(
    file_system: FileSystem, folder: Path, schema: Schema, keys: KeyArray, rows: pa.Table
) -> Iterator[RowSetMeta]:
    """Write `rows` (all columns, strictly ascending `keys`) to new rowsets under `folder`.

    Yields each rowset's entry when its files and its folder are durable; the name of the rowset in
    `folder` is for the caller to make durable. Raises StorageError.
    """
    assert len(keys) == rows.num_rows
    step = _rows_per_rowset(rows)
    for start in range(0, rows.num_rows, step):
        stop = min(start + step, rows.num_rows)
        part = rows.slice(start, stop - start)
        yield _write_rowset(file_system, folder, schema, keys.slice(start, stop), part)


def _rows_per_rowset(rows: pa.Table) -> int:
    row_bytes = max(1, rows.nbytes // max(1, rows.num_rows))
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
    file_system.sync_directory(target)
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
