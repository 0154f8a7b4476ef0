"""The tombstones of a tablet together: looked up by ordered writes, joined as they come.

    newest      t8    t7    t6      each commit with ordered deletes adds one file …
    joined      └──t9──┘    t6      … and takes in those before it that are at most twice as long

So there are few files, each more than twice as long as all newer ones, and a delete is written
again only some times. A tombstone is kept for the table's history retention: whoever joins files
leaves out what was deleted at or before the ancient history mark, and files that are wholly behind
it go with the next ordered delete or history collection.

Threads: any; nothing here is changed after it is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.cfile.block_cache import BlockCache
from kudulite.fs.file_system import FileSystem
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Column, Schema
from kudulite.tablet.tombstone_file import (
    TIMESTAMP_OF_COMMIT,
    TombstoneFileMeta,
    TombstoneRows,
    read_tombstones,
    write_tombstones,
)
from kudulite.tablet.total_order import compare, last_of_runs, sort_keys, sorted_positions

_STEP = 2


@dataclass(frozen=True)
class StagedTombstones:
    """A new file of a write, and the names of those that the write takes out."""

    meta: TombstoneFileMeta
    replaced: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Tombstones:
    """The files that one superblock lists, oldest first; `folder` is the tablet's."""

    metas: Sequence[TombstoneFileMeta]
    folder: Path
    cache: BlockCache

    def values_of(self, keys: KeyArray, column: Column) -> pa.Array:
        """Return the highest value that each of ascending `keys` was deleted with, null: never."""
        highest = pa.nulls(len(keys), column.type.arrow)
        for meta in self.metas:
            if meta.column_id != column.id:
                continue
            rows = self._rows(meta, column)
            at = rows.keys.find(keys)
            values = rows.values.take(pa.array(at, mask=at < 0))
            is_higher = compare([values], [highest], exact=False) > 0
            highest = pc.if_else(pa.array(is_higher), values, highest)
        return highest

    def stage(
        self,
        keys: KeyArray,
        values: pa.Array,
        *,
        column: Column,
        schema: Schema,
        mark: int,
        file_system: FileSystem,
        folder: Path,
    ) -> StagedTombstones:
        """Write that a commit deletes ascending `keys` (at least one) to a new file in `folder`.

        Takes out the files that it joins with the new one, and those that nobody needs: behind the
        ancient history mark, or of a column that was dropped.
        """
        stamps = np.full(len(keys), TIMESTAMP_OF_COMMIT, np.uint64)
        parts = [TombstoneRows(keys, values, stamps)]
        known = {each.id for each in schema.columns}
        replaced = {
            meta.ref.name
            for meta in self.metas
            if is_ancient(meta, mark) or meta.column_id not in known
        }
        row_count = len(keys)
        for meta in reversed(self.metas):
            if meta.column_id != column.id or meta.ref.name in replaced:
                continue
            if meta.row_count > _STEP * row_count:
                break
            parts.append(_after(self._rows(meta, column), mark))
            row_count += meta.row_count
            replaced.add(meta.ref.name)
        joined = _joined(parts[::-1])
        new = write_tombstones(file_system, folder, column.id, joined)
        return StagedTombstones(new, frozenset(replaced))

    def without(self, file_system: FileSystem, keys: KeyArray) -> tuple[TombstoneFileMeta, ...]:
        """Write the files that hold any of ascending `keys` again, into the tablet's folder,
        without these; returns the entries of all files then.
        """
        metas = []
        for meta in self.metas:
            rows = self._read(meta)
            left = np.flatnonzero(keys.find(rows.keys) < 0)
            if len(left) == len(rows):
                metas.append(meta)
            elif len(left):
                rest = rows.take(left)
                metas.append(write_tombstones(file_system, self.folder, meta.column_id, rest))
        return tuple(metas)

    def _rows(self, meta: TombstoneFileMeta, column: Column) -> TombstoneRows:
        """Return a file's rows, values in the column's type: it may have been widened since."""
        rows = self._read(meta)
        if rows.values.type.equals(column.type.arrow):
            return rows
        return TombstoneRows(rows.keys, rows.values.cast(column.type.arrow), rows.timestamps)

    def _read(self, meta: TombstoneFileMeta) -> TombstoneRows:
        path = self.folder / meta.ref.name

        def load() -> tuple[TombstoneRows, int]:
            rows = read_tombstones(path, meta)
            return rows, rows.nbytes

        rows: TombstoneRows = self.cache.get_or_load(str(path), load)
        return rows


def is_ancient(meta: TombstoneFileMeta, mark: int) -> bool:
    """Whether all deletes of a file are behind the ancient history mark."""
    return meta.timestamp_max <= mark


def _after(rows: TombstoneRows, mark: int) -> TombstoneRows:
    is_young = rows.timestamps > mark
    return rows if is_young.all() else rows.take(np.flatnonzero(is_young))


def _joined(parts: Sequence[TombstoneRows]) -> TombstoneRows:
    """Return the highest value of each key; of equal ones that of the newest part, the last."""
    if len(parts) == 1:
        return parts[0]
    keys = KeyArray.concat([part.keys for part in parts])
    order = keys.sort_order()
    repeats = keys.take(order).equals_previous()
    rows = TombstoneRows(
        keys,
        pa.concat_arrays([part.values for part in parts]),
        np.concatenate([part.timestamps for part in parts]),
    )
    if not repeats.any():
        return rows.take(order)
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(~repeats) - 1
    by_value = sorted_positions(
        [pa.array(group), *sort_keys(rows.values, exact=False), pa.array(np.arange(len(rows)))]
    )
    return rows.take(by_value[last_of_runs(group[by_value])])
