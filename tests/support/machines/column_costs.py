"""Bytes that a major compaction of one column reads and writes, beside the column's size on disk.

A table of ten columns is loaded, a part of its rows gets new values in one column, then that column
is compacted. Used by a test on few rows and by `benchmarks/column_compaction.py` on many.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import kudulite
from kudulite.basefile import base_data
from kudulite.client.table import Table
from kudulite.delta.delta_file import DeltaFile
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.names import ROWSET_FOLDER
from kudulite.storage.storage import FileRef, Range, Source
from kudulite.table.table_store import TableStore
from kudulite.tablet.maintenance_policy import CompactColumns
from kudulite.upkeep.compaction import run_operation


@contextmanager
def counted_reads() -> Iterator[Counter[str]]:
    """Count, for files that are opened from here on, how many bytes are asked of them, by name.

    Delta files count whole: their checksum is, whatever columns are wanted.
    """
    counts: Counter[str] = Counter()

    real, load = LocalStorage.open_whole, DeltaFile._open

    def opened(storage: LocalStorage, path: Path, ref: FileRef) -> Source:
        source = real(storage, path, ref)
        if not path.name.startswith(("base", "key")):
            return source
        return _CountedSource(source, path.name, counts)

    def loaded(file: DeltaFile) -> pa.Buffer:
        if not file._is_checked:
            counts[file.path.name] += file.meta.ref.length
        return load(file)

    with (
        mock.patch.object(LocalStorage, "open_whole", opened),
        # It looks at the footer, but is given the whole file.
        mock.patch.object(base_data, "check_chunks", mock.Mock()),
        mock.patch.object(DeltaFile, "_open", loaded),
    ):
        yield counts


class _CountedSource:
    """A source that counts what is read."""

    is_map = False

    def __init__(self, inner: Source, name: str, counts: Counter[str]) -> None:
        self._inner = inner
        self._name = name
        self._counts = counts

    def content(self) -> pa.Buffer:
        found = self._inner.content()
        self._counts[self._name] += found.size
        return found

    def read(self, ranges: Sequence[Range]) -> list[pa.Buffer]:
        found = self._inner.read(ranges)
        self._counts[self._name] += sum(part.size for part in found)
        return found

    def file(self, ranges: Sequence[Range]) -> pa.NativeFile:
        file = _CountedFile(self._inner.file(ranges), self._name, self._counts)
        return pa.PythonFile(file, mode="r")

    def release(self) -> None:
        self._inner.release()


class _CountedFile:
    """A file object as pyarrow wants it, which counts what is read."""

    def __init__(self, source: pa.NativeFile, name: str, counts: Counter[str]) -> None:
        self._source = source
        self._name = name
        self._counts = counts

    @property
    def closed(self) -> bool:
        return self._source.closed

    def read(self, size: int = -1) -> bytes:
        found = self._source.read(None if size < 0 else size)
        self._counts[self._name] += len(found)
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        return self._source.tell()

    def size(self) -> int:
        return self._source.size()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._source.close()


COLUMN = "amount"
# What Parquet reads of a file's end at once, and the few bytes around it.
FOOTER_BYTES_MAX = 2 * (64 << 10)


def make_rows(count: int, seed: int) -> pa.Table:
    """Return ten columns: a key, five integers, two doubles, two strings."""
    random = np.random.default_rng(seed)
    names = pa.array([f"customer-{i:05d}" for i in range(20_000)])
    integers = {f"n{i}": pa.array(random.integers(0, 1 << (8 * i + 8), count)) for i in range(5)}
    texts = {t: names.take(pa.array(random.integers(0, len(names), count))) for t in ("name", "by")}
    return pa.table(
        {
            "id": pa.array(np.arange(count) * 3),
            COLUMN: pa.array(random.random(count) * 1000),
            "tax": pa.array(np.round(random.random(count) * 100, 2)),
            **integers,
            **texts,
        }
    )


@dataclass
class ColumnCosts:
    """Bytes, summed over all rowsets; `seconds` is the compactions' time."""

    base: int = 0
    column: int = 0
    redo: int = 0
    read_base: int = 0
    read_redo: int = 0
    read_other: int = 0
    written_base: int = 0
    written_undo: int = 0
    written_other: int = 0
    rowset_count: int = 0
    seconds: float = 0.0

    def check(self) -> None:
        """Raise AssertionError if more was read or written than the column and its deltas take."""
        footers = FOOTER_BYTES_MAX * self.rowset_count
        assert self.column <= self.read_base <= self.column + footers, self
        assert (self.read_redo, self.read_other) == (self.redo, 0), self
        # New values may compress a little less; UNDO is about what REDO was.
        assert self.written_base <= 1.1 * self.column + footers, self
        assert self.written_undo <= 1.1 * self.redo + footers, self
        assert self.written_other == 0, self


def measured(folder: Path, row_count: int, fraction: float, seed: int) -> ColumnCosts:
    """Make the table, update, compact the column everywhere; check all rows; return the costs."""
    rows = make_rows(row_count, seed)
    updated = _updated(rows, fraction, seed)
    with kudulite.connect(folder, background_maintenance=False) as client:
        table = client.create_table("costs", rows.schema, primary_key="id")
        table.insert(rows)
        before = table.current_timestamp()
        table.update(updated)
    # Opened anew, so that nothing that was read before goes uncounted.
    with kudulite.connect(folder, background_maintenance=False) as client:
        table = client.table("costs")
        costs = _compacted(table)
        _check_rows(table.scan(ordered=True).to_arrow(), _with_updates(rows, updated))
        _check_rows(table.scan(ordered=True, at=before).to_arrow(), rows)
        table.check().raise_if_bad()
    return costs


def _check_rows(found: pa.Table, expected: pa.Table) -> None:
    assert found.column_names == expected.column_names
    for name in expected.column_names:
        assert found[name].equals(expected[name]), name


def _updated(rows: pa.Table, fraction: float, seed: int) -> pa.Table:
    random = np.random.default_rng(seed + 1)
    count = int(rows.num_rows * fraction)
    at = np.sort(random.choice(rows.num_rows, count, replace=False))
    return pa.table(
        {"id": rows["id"].take(pa.array(at)), COLUMN: pa.array(random.random(count) * -1000)}
    )


def _with_updates(rows: pa.Table, updated: pa.Table) -> pa.Table:
    values = rows[COLUMN].to_numpy().copy()
    values[updated["id"].to_numpy() // 3] = updated[COLUMN].to_numpy()
    at = rows.schema.get_field_index(COLUMN)
    return rows.set_column(at, rows.schema.field(COLUMN), pa.array(values))


def _compacted(table: Table) -> ColumnCosts:
    store: TableStore = table._store
    column = table.schema.column(COLUMN)
    costs = ColumnCosts()
    for entry in store.newest().tablets:
        folder = store.tablet_folder(entry.id) / ROWSET_FOLDER
        for old in store.tablet(entry).superblock.rowsets:
            _add_sizes(costs, folder / old.id, old)
            with counted_reads() as reads:
                begin = time.perf_counter()
                operation = CompactColumns(rowset_ids=(old.id,), column_ids=(column.id,))
                assert run_operation(store, entry.id, operation) is not None
                costs.seconds += time.perf_counter() - begin
            now = store.newest().entry(entry.id)
            assert now is not None
            new = store.tablet(now).rowset(old.id)
            assert new is not None
            _add_flow(costs, old, new.meta, dict(reads))
    return costs


def _add_sizes(costs: ColumnCosts, folder: Path, meta: RowSetMeta) -> None:
    costs.rowset_count += 1
    costs.base += meta.base_bytes
    costs.redo += sum(delta.ref.length for delta in meta.redo)
    for base in meta.base:
        metadata = pq.read_metadata(folder / base.ref.name)
        at = metadata.schema.names.index(COLUMN)
        groups = range(metadata.num_row_groups)
        costs.column += sum(metadata.row_group(g).column(at).total_compressed_size for g in groups)


def _add_flow(costs: ColumnCosts, old: RowSetMeta, new: RowSetMeta, reads: dict[str, int]) -> None:
    known = set(old.file_names)
    costs.read_base += sum(reads.pop(base.ref.name, 0) for base in old.base)
    costs.read_redo += sum(reads.pop(delta.ref.name, 0) for delta in old.redo)
    costs.read_other += sum(reads.values())
    base = sum(file.ref.length for file in new.base if file.ref.name not in known)
    undo = sum(delta.ref.length for delta in new.undo if delta.ref.name not in known)
    costs.written_base += base
    costs.written_undo += undo
    written = sum(ref.length for ref in new.file_refs if ref.name not in known)
    costs.written_other += written - base - undo
