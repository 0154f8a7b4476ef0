"""Delta compactions of one DiskRowSet: minor ones merge delta files, major ones rewrite columns.

A minor compaction joins adjacent DeltaFiles into one, in their place:

    REDO   a b [c d e] f g   ->   a b [cde] f g        oldest first
    UNDO   x [y z]           ->   x [yz]               newest first; ancient changes may be dropped

Every change is kept, so each read returns the same rows and opens fewer files.

A major compaction writes new base data of some columns, with their REDO applied:

    base  {k, a, b, c}                       base  {k, a, c}  {b'}
    REDO  1: b   2: a, b   3: DELETE   ->    REDO  2: a   3: DELETE
    UNDO  x                                  UNDO  b before 1 and 2,  x

- Old base files stay for their other columns. A file that would keep only key columns is replaced:
  its key columns are rewritten too.
- A column that base data does not have yet is written with its read default and its changes.
- Columns that were dropped from the schema are removed from the entry and from the REDO files that
  are rewritten anyway. No read needs them: a plan that names one is refused.
- DELETEs stay REDO, and base data keeps the last image of a ghost row for readers of the past.
- REDO files that set none of the columns stay unchanged, in their place.
- The new UNDO file is in front. Its changes may be older than some entries of other columns behind
  it. Each column is in order over all files, and reads need no more; `merge_undo` brings a row's
  entries in order.
- Memory holds one row group of the columns, and the rowset's REDO.

The rowset keeps its id, row ids, key index and bloom filter. Deltas that are appended to it
meanwhile are newer than all its files, so they fit the new entry too.

**Threads**: any; no existing file is changed. New files and their names are durable when a function
returns. They are garbage until a superblock lists the returned entry.

**Source**: Kudu delta_compaction.cc, MajorDeltaCompaction; delta_tracker.cc, CompactStores;
design-docs/tablet.md, "Delta Compactions".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa

from kudulite.basefile.base_data import BaseDataWriter
from kudulite.delta.delta_file import (
    DeltaFileMeta,
    DeltaRows,
    concat_rows,
    slice_rows,
    write_deltas,
)
from kudulite.delta.delta_history import (
    apply_updates,
    invert_changes,
    merge_redo,
    merge_undo,
    read_deltas,
    split_columns,
    without_ancient,
)
from kudulite.model.schema import Schema
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.rowset import Block
from kudulite.rowset.rowset_meta import BaseFileMeta, RowSetMeta
from kudulite.storage.new_files import NewFiles


def compact_columns(
    files: NewFiles,
    rowset: DiskRowSet,
    schema: Schema,
    column_ids: Iterable[int],
    mark: int,
) -> RowSetMeta:
    """Return the rowset with new base data for `column_ids`; UNDO up to `mark` is left out.

    `schema` is the table's at the rowset's version. It shows which columns were dropped, and the
    read defaults of added ones. `rowset` has no changes in memory. Raises StorageError,
    CorruptionError; no superblock then refers to the files written so far.
    """
    assert rowset.dms is None, "changes in memory are flushed first, or carried over"
    compaction = _ColumnCompaction(files, rowset, schema, frozenset(column_ids))
    return compaction.run(mark)


class _ColumnCompaction:
    """One compaction of columns; one method makes each part of the new entry."""

    def __init__(
        self,
        files: NewFiles,
        rowset: DiskRowSet,
        schema: Schema,
        column_ids: frozenset[int],
    ) -> None:
        self._files = files
        self._rowset = rowset
        self._known = frozenset(column.id for column in schema.columns)
        keys = frozenset(column.id for column in schema.key_columns)
        # Key columns never change: they are rewritten only to replace a file that has nothing else.
        wanted = _with_remaining_keys(
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
        new_undo = write_deltas(self._files, self._rowset.folder, "undo", undo)
        return replace(
            meta, base=(*self._kept_base(), *base), redo=redo, undo=(*new_undo, *meta.undo)
        )

    def _kept_base(self) -> list[BaseFileMeta]:
        """Return the old files with the columns that they keep."""
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
        for is_rewritten, run in groupby(meta.redo, self._needs_rewrite):
            if not is_rewritten:
                redo += run
                continue
            rows = merge_redo(read_deltas(self._files.storage, folder, list(run), meta.row_count))
            rows = _only_columns(rows, self._known)
            moved, rest = split_columns(rows, self._ids)
            taken.append(moved)
            redo += write_deltas(self._files, folder, "redo", rest)
        taken = [part for part in taken if len(part.rowids)]
        return merge_redo(taken) if taken else None, tuple(redo)

    def _needs_rewrite(self, delta: DeltaFileMeta) -> bool:
        return any(c in self._ids or c not in self._known for c in delta.update_counts)

    def _write_base(
        self, moved: DeltaRows | None
    ) -> tuple[Sequence[BaseFileMeta], DeltaRows | None]:
        """Write the columns with `moved` applied; return their file and the UNDO of `moved`."""
        if not self._columns:
            return (), None
        undo: list[DeltaRows] = []
        group_rows = self._rowset.meta.rows_per_group
        with (
            self._files.sink(self._rowset.folder, "base") as sink,
            BaseDataWriter(sink, self._columns, group_rows) as writer,
        ):
            for block in self._rowset.base.row_groups():
                old = self._rowset.base.read(block, self._columns)
                new, inverse = self._forward(block, old, moved)
                undo += inverse
                names = [column.name for column in self._columns]
                writer.write(pa.Table.from_arrays(new, names=names))
            writer.close()
            ref = sink.finish()
        ids = tuple(column.id for column in self._columns)
        return (BaseFileMeta(ref, ids),), concat_rows(undo) if undo else None

    def _forward(
        self, block: Block, old: list[pa.Array], moved: DeltaRows | None
    ) -> tuple[list[pa.Array], list[DeltaRows]]:
        """Return a block's columns with the updates of its rows applied, and the UNDO of these."""
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


def _with_remaining_keys(
    base: Sequence[BaseFileMeta],
    column_ids: frozenset[int],
    key_ids: frozenset[int],
    known_ids: frozenset[int],
) -> frozenset[int]:
    """Return `column_ids` and the key columns of base files that would keep only key columns."""
    if not column_ids:
        return column_ids  # only dropped columns are removed from deltas: no base data is written
    for file in base:
        left = (known_ids & frozenset(file.column_ids)) - column_ids
        if left <= key_ids:
            column_ids |= left
    return column_ids


def _only_columns(rows: DeltaRows, column_ids: frozenset[int]) -> DeltaRows:
    """Return REDO with only these columns, without updates that set none of them."""
    others = [c for c in rows.columns if c not in column_ids]
    if not others:
        return rows
    rest = split_columns(rows, others)[1]
    return slice_rows(rows, 0, 0) if rest is None else rest


def merge_redo_files(
    files: NewFiles, folder: Path, meta: RowSetMeta, start: int, stop: int
) -> RowSetMeta:
    """Return the rowset with its REDO files start..stop (not included) as one new file.

    `folder` is the rowset's folder. Memory: the changes of these files. Raises StorageError.
    """
    assert 0 <= start < stop <= len(meta.redo)
    parts = read_deltas(files.storage, folder, meta.redo[start:stop], meta.row_count)
    rows = merge_redo(parts)
    merged = write_deltas(files, folder, "redo", rows)
    return replace(meta, redo=(*meta.redo[:start], *merged, *meta.redo[stop:]))


def merge_undo_files(
    files: NewFiles, folder: Path, meta: RowSetMeta, start: int, stop: int, *, mark: int
) -> RowSetMeta:
    """Return the rowset with its UNDO files start..stop (not included) as one new file, or none.

    If the range includes the oldest file, changes at or before the ancient history `mark` are left
    out. In front of older files they stay: a gap in the history of a row would look like damage.
    `folder` is the rowset's folder. Raises StorageError.
    """
    assert 0 <= start < stop <= len(meta.undo)
    parts = read_deltas(files.storage, folder, meta.undo[start:stop], meta.row_count)
    rows = merge_undo(parts)
    if stop == len(meta.undo):
        rows = without_ancient(rows, mark)
    merged = write_deltas(files, folder, "undo", rows)
    return replace(meta, undo=(*meta.undo[:start], *merged, *meta.undo[stop:]))
