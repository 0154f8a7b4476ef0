"""Major delta compaction: some columns of one DiskRowSet get new base data with their REDO applied.

    base  {k, a, b, c}                       base  {k, a, c}  {b'}
    REDO  1: b   2: a, b   3: DELETE   ->    REDO  2: a   3: DELETE
    UNDO  x                                  UNDO  b before 1 and 2,  x

The rowset keeps its id, row ids, key index and bloom filter, so that deltas which arrive meanwhile
fit what comes out: they are newer than all that is here and are appended to the entry.

- Old base files stay for the columns that are left in them; one in which nothing but key columns
  would be left is given up, and its key columns are rewritten too.
- A column that base data does not have yet gets its read default there, with what was changed.
- Columns that are no longer in the schema leave the entry, and with the REDO files that are
  rewritten anyway their values. No read asks for them: a plan that names one is refused.
- DELETEs stay REDO, and base data has the last image of a dead row: readers of the past need it.
- REDO files that set none of the columns stay as they are, at their place.

Order of UNDO: the new file is in front. What it holds may be older than some entries of other
columns behind it; each column is in order over all files, and reads need no more. `merge_undo`
brings a row's entries in order.

The rowset is gone through by row groups: memory holds one of the columns, and the rowset's REDO.

Threads: any; nothing that is there is changed. Files are durable when `compact_columns` returns,
their folder's names too; they are garbage until a superblock lists the entry that it returned.

Source: Kudu delta_compaction.cc, MajorDeltaCompaction; design-docs/tablet.md, "Delta Compactions".

Minor delta compaction: adjacent DeltaFiles of one DiskRowSet become one, in their place.

    REDO   a b [c d e] f g   ->   a b [cde] f g        oldest first
    UNDO   x [y z]           ->   x [yz]               newest first; what is ancient may leave

Every change stays as it was, so each read gives the same; only fewer files are opened for it. Base
data, row ids and the other files are not touched, nor what is appended to the rowset meanwhile.

Files are durable when a function returns, their folder's names too; they become part of the tablet
when a superblock lists the entry that was returned. Before that, nobody refers to them.

Threads: any; nothing that is there is changed.

Source: Kudu delta_compaction.cc and delta_tracker.cc, "CompactStores".
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa

from kudulite.basefile.base_data import BaseDataWriter
from kudulite.delta.delta_file import DeltaFileMeta, DeltaRows, concat_rows, slice_rows
from kudulite.delta.delta_history import (
    apply_updates,
    invert_changes,
    merge_redo,
    merge_undo,
    split_columns,
    without_ancient,
)
from kudulite.fs.file_system import FileSystem
from kudulite.model.schema import Schema
from kudulite.rowset.disk_rowset import DiskRowSet, read_deltas, write_deltas
from kudulite.rowset.rowset import Block
from kudulite.rowset.rowset_meta import BaseFileMeta, RowSetMeta


def compact_columns(
    file_system: FileSystem,
    rowset: DiskRowSet,
    schema: Schema,
    column_ids: Iterable[int],
    mark: int,
) -> RowSetMeta:
    """Return the rowset with new base data for `column_ids`; UNDO up to `mark` is left out.

    `schema` is the table's at the rowset's version: it says which columns were dropped, and what
    rows from before a column show. `rowset` has no changes in memory. Raises StorageError,
    CorruptionError; nothing then refers to what was written.
    """
    assert rowset.dms is None, "changes in memory are flushed first, or carried over"
    compaction = _ColumnCompaction(file_system, rowset, schema, frozenset(column_ids))
    return compaction.run(mark)


class _ColumnCompaction:
    """One compaction; each part of the new entry is made by one method."""

    def __init__(
        self,
        file_system: FileSystem,
        rowset: DiskRowSet,
        schema: Schema,
        column_ids: frozenset[int],
    ) -> None:
        self._file_system = file_system
        self._rowset = rowset
        self._known = frozenset(column.id for column in schema.columns)
        keys = frozenset(column.id for column in schema.key_columns)
        # Key columns never change: they are rewritten only to give a file up.
        wanted = _with_left_keys(
            rowset.meta.base, self._known & column_ids - keys, keys, self._known
        )
        self._columns = [column for column in schema.columns if column.id in wanted]
        self._ids = wanted

    def run(self, mark: int) -> RowSetMeta:
        meta = self._rowset.meta
        moved, redo = self._split_redo()
        base, undo = self._write_base(moved)
        if undo is not None:
            undo = without_ancient(undo, mark)
        new_undo = write_deltas(self._file_system, self._rowset.folder, "undo", undo)
        self._file_system.sync_directory(self._rowset.folder)
        return replace(
            meta, base=(*self._left_base(), *base), redo=redo, undo=(*new_undo, *meta.undo)
        )

    def _left_base(self) -> list[BaseFileMeta]:
        """Return the old files with the columns that stay in them."""
        left = []
        for base in self._rowset.meta.base:
            stay = tuple(c for c in base.column_ids if c in self._known and c not in self._ids)
            if stay:
                left.append(replace(base, column_ids=stay))
        return left

    def _split_redo(self) -> tuple[DeltaRows | None, tuple[DeltaFileMeta, ...]]:
        """Return the updates of the compacted columns, None without any, and the REDO files left.

        A REDO file with such updates is replaced by a new one with its other changes.
        """
        meta, folder = self._rowset.meta, self._rowset.folder
        taken: list[DeltaRows] = []
        redo: list[DeltaFileMeta] = []
        # Neighbours that are rewritten become one file.
        for is_touched, run in groupby(meta.redo, self._is_touched):
            if not is_touched:
                redo += run
                continue
            rows = merge_redo(read_deltas(folder, list(run), meta.row_count))
            rows = _only_columns(rows, self._known)
            moved, rest = split_columns(rows, self._ids)
            taken.append(moved)
            redo += write_deltas(self._file_system, folder, "redo", rest)
        taken = [part for part in taken if len(part.rowids)]
        return merge_redo(taken) if taken else None, tuple(redo)

    def _is_touched(self, delta: DeltaFileMeta) -> bool:
        return any(c in self._ids or c not in self._known for c in delta.update_counts)

    def _write_base(
        self, moved: DeltaRows | None
    ) -> tuple[Sequence[BaseFileMeta], DeltaRows | None]:
        """Write the columns with `moved` applied; return their file and what takes it back."""
        if not self._columns:
            return (), None
        undo: list[DeltaRows] = []
        path = self._rowset.folder / f"base-{uuid.uuid4().hex}.parquet"
        with (
            self._file_system.open_sink(path) as sink,
            BaseDataWriter(sink, self._columns) as writer,
        ):
            for block in self._rowset.base.row_groups():
                old = self._rowset.base.read(block, self._columns)
                new, taken_back = self._forward(block, old, moved)
                undo += taken_back
                names = [column.name for column in self._columns]
                writer.write(pa.Table.from_arrays(new, names=names))
            writer.close()
            ref = sink.finish()
        ids = tuple(column.id for column in self._columns)
        return (BaseFileMeta(ref, ids),), concat_rows(undo) if undo else None

    def _forward(
        self, block: Block, old: list[pa.Array], moved: DeltaRows | None
    ) -> tuple[list[pa.Array], list[DeltaRows]]:
        """Return a block's columns with the updates of its rows, and these turned round, if any."""
        if moved is None:
            return old, []
        low, high = np.searchsorted(moved.rowids, [block.start, block.stop]).tolist()
        if low == high:
            return old, []
        redo = slice_rows(moved, low, high)
        by_id = {column.id: values for column, values in zip(self._columns, old, strict=True)}

        def base_values(column_id: int, rowids: np.ndarray) -> pa.Array:
            return by_id[column_id].take(pa.array(rowids - block.start))

        new = [apply_updates(redo, c, block.start, values) for c, values in by_id.items()]
        return new, [invert_changes(redo, base_values)]


def _with_left_keys(
    base: Sequence[BaseFileMeta],
    column_ids: frozenset[int],
    key_ids: frozenset[int],
    known_ids: frozenset[int],
) -> frozenset[int]:
    """Return `column_ids` and the key columns that would be all that is left in a base file."""
    if not column_ids:
        return column_ids  # only deltas are cleared of dropped columns: no base data is written
    for file in base:
        left = (known_ids & frozenset(file.column_ids)) - column_ids
        if left <= key_ids:
            column_ids |= left
    return column_ids


def _only_columns(rows: DeltaRows, column_ids: frozenset[int]) -> DeltaRows:
    """Return REDO without the other columns and the updates that set nothing then."""
    others = [c for c in rows.columns if c not in column_ids]
    if not others:
        return rows
    rest = split_columns(rows, others)[1]
    return slice_rows(rows, 0, 0) if rest is None else rest


def merge_redo_files(
    file_system: FileSystem, folder: Path, meta: RowSetMeta, start: int, stop: int
) -> RowSetMeta:
    """Return the rowset with its REDO files start..stop (not included) as one new file.

    `folder` is the rowset's own. Memory: the changes of these files. Raises StorageError.
    """
    assert 0 <= start < stop <= len(meta.redo)
    rows = merge_redo(read_deltas(folder, meta.redo[start:stop], meta.row_count))
    merged = write_deltas(file_system, folder, "redo", rows)
    file_system.sync_directory(folder)
    return replace(meta, redo=(*meta.redo[:start], *merged, *meta.redo[stop:]))


def merge_undo_files(
    file_system: FileSystem, folder: Path, meta: RowSetMeta, start: int, stop: int, *, mark: int
) -> RowSetMeta:
    """Return the rowset with its UNDO files start..stop (not included) as one new file, or none.

    Where `stop` is behind the oldest file, changes at or before the ancient history mark `mark`
    leave. In front of older files they stay: a gap in what happened to a row would look like
    damage. `folder` is the rowset's own. Raises StorageError.
    """
    assert 0 <= start < stop <= len(meta.undo)
    rows = merge_undo(read_deltas(folder, meta.undo[start:stop], meta.row_count))
    if stop == len(meta.undo):
        rows = without_ancient(rows, mark)
    merged = write_deltas(file_system, folder, "undo", rows)
    file_system.sync_directory(folder)
    return replace(meta, undo=(*meta.undo[:start], *merged, *meta.undo[stop:]))
