"""Base data of one DiskRowSet, read by column id from the files that hold it now.

    column id -> the one base file that the superblock lists it for -> row group, name in that file
    no file                                                         -> the column's read default
    a file from before the column's type was widened                -> its values, cast

A rowset begins with one file; a major compaction of some columns writes another with just these.
A column that was added after the rowset was written is in none until a compaction materialises it.

Invariants: (1) all files of a rowset have the same rows, so a row id is the same row in each;
(2) no delta is applied here: what is read is the newest image that base data has, of dead rows too.

Threads: any number may read; opened files are shared through the cache under their path.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kudulite.cfile.base_data import ROW_GROUP_ROWS, BaseDataFile
from kudulite.cfile.block_cache import BlockCache
from kudulite.cfile.mapped_file import kept_bytes
from kudulite.model.schema import Column
from kudulite.model.types import widened
from kudulite.rowset.rowset import Block, cell_value, constant
from kudulite.rowset.rowset_meta import BaseFileMeta, RowSetMeta

# What an opened file costs in the cache beside its content or map: metadata and handles.
_OPEN_FILE_BYTES = 16 << 10


class BaseColumns:
    """The columns of a rowset's base files in `folder`, the rowset's own."""

    def __init__(self, meta: RowSetMeta, folder: Path, cache: BlockCache) -> None:
        self._meta = meta
        self._folder = folder
        self._cache = cache
        # By column id; weak, so that the cache alone decides how many files stay open.
        self._files: dict[int, Callable[[], BaseDataFile | None]] = {}

    def row_groups(self) -> Iterator[Block]:
        """Yield all rows, a row group at a time."""
        for start in range(0, self._meta.row_count, ROW_GROUP_ROWS):
            stop = min(start + ROW_GROUP_ROWS, self._meta.row_count)
            yield Block(start // ROW_GROUP_ROWS, start, stop)

    def statistics(self, column_id: int, row_group: int) -> tuple[Any, Any, int] | None:
        """(minimum, maximum, null count) of a column in a row group, None where not known."""
        file = self._file(column_id)
        return None if file is None else file.statistics(row_group, file.name_by_id[column_id])

    def only_file(self, columns: Sequence[Column]) -> BaseDataFile | None:
        """Return the file that has all of `columns` that any file has; None where several do.

        None, too, where no file has any of them.
        """
        found = {id(file): file for c in columns if (file := self._file(c.id)) is not None}
        return next(iter(found.values())) if len(found) == 1 else None

    def read(self, block: Block, columns: Sequence[Column]) -> list[pa.Array]:
        """Return the values of columns in a block; nothing of it stays in the cache."""
        found: dict[int, pa.Array] = {}
        by_file: dict[Path, tuple[BaseDataFile, list[Column]]] = {}
        for column in columns:
            file = self._file(column.id)
            if file is None:
                found[column.id] = constant(column, block.row_count)
            else:
                by_file.setdefault(file.path, (file, []))[1].append(column)
        offset = block.start - block.row_group * ROW_GROUP_ROWS
        for file, in_file in by_file.values():
            table = file.read([block.row_group], [file.name_by_id[c.id] for c in in_file])
            if table.num_rows != block.row_count:
                table = table.slice(offset, block.row_count)
            for index, column in enumerate(in_file):
                found[column.id] = widened(_combined(table.column(index)), column.type.arrow)
        return [found[column.id] for column in columns]

    def gather(self, rowids: np.ndarray, columns: Sequence[Column]) -> list[pa.Array]:
        """Return each column's values of int64[n] row ids in any order.

        Decoded blocks are kept in the cache: the next reader of a near row pays no decoding.
        """
        groups = rowids // ROW_GROUP_ROWS
        return [self._gather(rowids, groups, column) for column in columns]

    def cell(self, rowid: int, column: Column) -> object:
        """Return one cell as a Python value; its decoded block is kept in the cache."""
        file = self._file(column.id)
        if file is None:
            return column.read_default
        block = self._decoded(file, rowid // ROW_GROUP_ROWS, column)
        return cell_value(block[rowid % ROW_GROUP_ROWS], column)

    def _gather(self, rowids: np.ndarray, groups: np.ndarray, column: Column) -> pa.Array:
        file = self._file(column.id)
        if file is None:
            return constant(column, len(rowids))
        parts, positions = [], []
        for group in np.unique(groups):
            at = np.flatnonzero(groups == group)
            block = self._decoded(file, int(group), column)
            parts.append(block.take(pa.array(rowids[at] - int(group) * ROW_GROUP_ROWS)))
            positions.append(at)
        if len(parts) == 1:
            return widened(parts[0], column.type.arrow)
        back = np.empty(len(rowids), dtype=np.int64)
        back[np.concatenate(positions)] = np.arange(len(rowids))
        return widened(pa.concat_arrays(parts).take(pa.array(back)), column.type.arrow)

    def _decoded(self, file: BaseDataFile, group: int, column: Column) -> pa.Array:
        key = (file.ref.name, group, column.id)
        found = self._cache.get(key)
        if found is None:
            found = self._cache.get_or_load(key, lambda: _decode(file, group, column.id))
        return found

    def _file(self, column_id: int) -> BaseDataFile | None:
        """Return the file with a column's base data; None for a column added after it."""
        file = self._files.get(column_id, _no_file)()
        return self._opened(column_id) if file is None else file

    def _opened(self, column_id: int) -> BaseDataFile | None:
        base = next((b for b in self._meta.base if column_id in b.column_ids), None)
        if base is None:
            return None
        file = self._open(base)
        self._files[column_id] = weakref.ref(file)
        return file

    def _open(self, base: BaseFileMeta) -> BaseDataFile:
        path = self._folder / base.ref.name
        nbytes = _OPEN_FILE_BYTES + kept_bytes(base.ref)
        return self._cache.get_or_load(str(path), lambda: (BaseDataFile(path, base.ref), nbytes))


def _no_file() -> None:
    """Stand for a reference to a file that is not open."""


def _decode(file: BaseDataFile, group: int, column_id: int) -> tuple[pa.Array, int]:
    block = _combined(file.read([group], [file.name_by_id[column_id]]).column(0))
    return block, block.nbytes


def _combined(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
