"""RowSetWriter: rows in key order become new DiskRowSets, a row group at a time.

    rows, in pieces of any size ─ one row group ─ base data ──────────────────────┐
    their keys and deltas ─ all of one rowset ─ key index, bloom filter, deltas ──┴ a rowset's entry

A new rowset begins where a row group would take the open one over `ROWSET_ROWS_MAX` rows or
`ROWSET_BYTES_MAX` Arrow bytes, deltas included. The rowsets of one writer have disjoint key ranges.

The first rows of a rowset decide how many rows its row groups have: ROW_GROUP_ROWS, or fewer if
these have more than ROW_GROUP_BYTES. A new rowset also begins where rows become so wide that a row
group would have more than twice as many bytes.

**Invariants**: (1) memory holds the rows of less than one row group and of one piece, and the keys
and deltas of one rowset; (2) all row groups of a rowset but its last have the same number of rows.

**Threads**: one per writer; no other thread sees the files before a superblock lists them.

**Source**: Kudu diskrowset.cc, RollingDiskRowSetWriter.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from kudulite.basefile.base_data import (
    ROW_GROUP_BYTES,
    ROW_GROUP_ROWS,
    BaseDataWriter,
    group_rows_of,
)
from kudulite.basefile.bloom import write_bloom
from kudulite.basefile.key_index import write_key_index
from kudulite.delta.delta_file import OP_DELETE, DeltaRows, write_deltas
from kudulite.model.schema import Schema
from kudulite.rowset.row_images import RowImages
from kudulite.rowset.rowset_meta import BaseFileMeta, RowSetMeta
from kudulite.storage.new_files import NewFiles

ROWSET_ROWS_MAX = 1 << 20
ROWSET_BYTES_MAX = 256 << 20


class RowSetWriter:
    """Writes rows with all columns and strictly ascending keys to new rowsets under `folder`.

    Leaving the `with` block before `finish` removes the file that is being written. Files that are
    complete by then are garbage.
    """

    def __init__(self, files: NewFiles, folder: Path, schema: Schema) -> None:
        self._files = files
        self._folder = folder
        self._schema = schema
        self._written: list[RowSetMeta] = []
        self._open: _OpenRowSet | None = None
        self._waiting: list[RowImages] = []
        self._row_count = 0
        self._nbytes = 0

    def add(self, rows: RowImages) -> None:
        """Add rows with keys above all added before; whole row groups are written at once.

        Raises StorageError.
        """
        assert len(rows) == rows.rows.num_rows
        self._waiting.append(rows)
        self._row_count += len(rows)
        self._nbytes += rows.nbytes
        while self._row_count >= (group_rows := self._group_rows()):
            self._write(self._taken(group_rows), group_rows)

    def finish(self) -> tuple[RowSetMeta, ...]:
        """Write the remaining rows; return the entries of all rowsets in order of keys.

        Their files are durable, and the names once the `files` are synced. Raises StorageError.
        """
        if self._row_count:
            group_rows = self._group_rows()
            self._write(self._taken(self._row_count), group_rows)
        self._close()
        return tuple(self._written)

    def __enter__(self) -> RowSetWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open is not None:
            self._open.sinks.__exit__(kind, error, trace)

    def _group_rows(self) -> int:
        """Return the rows of the next row group: those of the open rowset, or what fits in one."""
        row_bytes = self._nbytes // max(1, self._row_count)
        if self._open is not None:
            next_rows = min(self._row_count, self._open.group_rows)
            if next_rows * row_bytes > 2 * ROW_GROUP_BYTES:
                self._close()  # the rows that wait now are wider than its first ones
        if self._open is not None:
            return self._open.group_rows
        if self._nbytes <= ROW_GROUP_BYTES:
            return ROW_GROUP_ROWS
        return group_rows_of(row_bytes)

    def _taken(self, count: int) -> list[RowImages]:
        """Remove the first `count` waiting rows and return them."""
        taken: list[RowImages] = []
        self._row_count -= count
        while count:
            part = self._waiting.pop(0)
            if len(part) > count:
                self._waiting.insert(0, part.cut(count, len(part)))
                part = part.cut(0, count)
            taken.append(part)
            count -= len(part)
        return taken

    def _write(self, group: list[RowImages], group_rows: int) -> None:
        """Write a row group, to a new rowset where the open one is full."""
        row_count, nbytes = sum(map(len, group)), sum(part.nbytes for part in group)
        self._nbytes = sum(part.nbytes for part in self._waiting)
        if self._open is not None and not self._open.has_room(row_count, nbytes):
            self._close()
        if self._open is None:
            self._open = _OpenRowSet(self._files, self._folder, self._schema, group_rows)
        self._open.write(group, row_count, nbytes)

    def _close(self) -> None:
        if self._open is not None:
            self._written.append(self._open.close())
            self._open = None


class _OpenRowSet:
    """A rowset whose base data is being written; `sinks` closes what is open."""

    def __init__(
        self,
        files: NewFiles,
        folder: Path,
        schema: Schema,
        group_rows: int,
    ) -> None:
        self._files = files
        self._schema = schema
        self.group_rows = group_rows
        self._folder = files.new_rowset(folder)
        self._parts: list[RowImages] = []  # with `_no_rows` as their rows
        self._no_rows = schema.arrow_schema().empty_table()
        self._row_count = 0
        self._nbytes = 0
        self.sinks = ExitStack()
        self._sink = self.sinks.enter_context(files.sink(self._folder, "base"))
        base = BaseDataWriter(self._sink, schema.columns, group_rows)
        self._base = self.sinks.enter_context(base)

    def has_room(self, row_count: int, nbytes: int) -> bool:
        """Return whether so many more rows and bytes are within the limits of a rowset."""
        has_rows = self._row_count + row_count <= ROWSET_ROWS_MAX
        return has_rows and self._nbytes + nbytes <= ROWSET_BYTES_MAX

    def write(self, group: Sequence[RowImages], row_count: int, nbytes: int) -> None:
        """Append a row group; its keys and deltas are kept."""
        self._base.write(pa.concat_tables([part.rows for part in group]))
        # A slice of no rows would keep the memory of all.
        self._parts += [replace(part, rows=self._no_rows) for part in group]
        self._row_count += row_count
        self._nbytes += nbytes

    def close(self) -> RowSetMeta:
        """Write the other files; return the rowset's entry."""
        self._base.close()
        images = RowImages.concat(self._parts)
        keys = images.keys
        key_sink = self.sinks.enter_context(self._files.sink(self._folder, "key"))
        write_key_index(key_sink, keys)
        bloom_sink = self.sinks.enter_context(self._files.sink(self._folder, "bloom"))
        write_bloom(bloom_sink, keys)
        sinks = [self._sink, key_sink, bloom_sink]
        storage = self._files.storage
        base, key_index, bloom = storage.side_by_side(lambda sink: sink.finish(), sinks)
        self.sinks.close()
        meta = RowSetMeta(
            id=self._folder.name,
            row_count=len(keys),
            key_min=keys[0],
            key_max=keys[len(keys) - 1],
            base=(BaseFileMeta(base, tuple(column.id for column in self._schema.columns)),),
            key_index=key_index,
            bloom=bloom,
            group_rows=None if self.group_rows == ROW_GROUP_ROWS else self.group_rows,
        )
        return _write_history(self._files, self._folder, meta, images)


def write_rowsets(
    files: NewFiles, folder: Path, schema: Schema, images: RowImages
) -> tuple[RowSetMeta, ...]:
    """Write rows at once, as a RowSetWriter does."""
    with RowSetWriter(files, folder, schema) as writer:
        writer.add(images)
        return writer.finish()


def _write_history(files: NewFiles, target: Path, meta: RowSetMeta, part: RowImages) -> RowSetMeta:
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
            *write_deltas(files, target, "undo", part.undo),
            *write_deltas(files, target, "undo", absent),
        ),
        redo=write_deltas(files, target, "redo", part.redo),
    )
