"""Tablets in a store: answers are those of the directory, and requests wait for few others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from kudulite.basefile.block_cache import BlockCache
from kudulite.model.encoded_key import encode_keys
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.model.predicate import bind_predicates, parse_where
from kudulite.model.schema import Schema
from kudulite.reads.scan import _Threads, read_ahead
from kudulite.rowset.rowset import RowSet
from kudulite.rowset.scan_spec import DiffSpec, ScanSpec
from kudulite.storage.object_storage import ObjectStorage
from kudulite.storage.storage import Storage
from kudulite.tablet.tablet import Tablet
from kudulite.tablet.tablet_scan import (
    block_reads,
    count_rows,
    diff_reads,
    open_for_diff,
    open_for_scan,
    ordered_reads,
)
from tests.conftest import CoreTables
from tests.support.doubles.counting_library import CountingLibrary
from tests.support.tables.core_tables import patch_group_rows

ROOT = Path("memory:/bucket")
ROWSETS, ROWS = 5, 12_000


@dataclass
class Tablets:
    """The tablets of a table, opened in one storage, with nothing in the cache."""

    storage: Storage
    schema: Schema
    tablets: Sequence[Tablet]
    moments: tuple[int, int]

    def spec(self, *names: str, at: int = TIMESTAMP_MAX, **more: object) -> ScanSpec:
        where = bind_predicates(parse_where(more.pop("where", ()), self.schema), self.schema)
        return ScanSpec(self.schema, names, where, at, **more)

    def scan(self, spec: ScanSpec) -> list[tuple]:
        open_for_scan(self.storage, self.tablets, spec)
        reads = (read for tablet in self.tablets for read in block_reads(tablet, spec))
        return sorted(rows_of(read_ahead(reads, 0, self.storage.requests_at_once)))

    def ordered(self, spec: ScanSpec) -> list[tuple]:
        at_once = self.storage.requests_at_once
        open_for_scan(self.storage, self.tablets, replace(spec, with_keys=True))
        with _Threads(at_once) as threads:
            return list(rows_of(read_ahead(ordered_reads(self.tablets, spec, threads.run_ahead))))

    def diff(self, *names: str) -> list[tuple]:
        start, end = self.moments
        ids = frozenset(column.id for column in self.schema.columns)
        where = bind_predicates((), self.schema)
        spec = DiffSpec(self.schema, names, where, start, end, ids, with_before=True)
        open_for_diff(self.storage, self.tablets, spec)
        with _Threads(self.storage.requests_at_once) as threads:
            reads = diff_reads(self.tablets, spec, threads.run_ahead)
            return sorted(rows_of(read_ahead(reads)), key=repr)

    def rows(self, keys: Sequence[int], *names: str) -> list[object]:
        encoded = encode_keys([pa.array(keys, pa.int64())], self.schema.key_types)
        columns = [self.schema.column(name) for name in names]

        def read(found: tuple[RowSet, np.ndarray]) -> list[tuple]:
            arrays = found[0].read_rows(found[1], columns, TIMESTAMP_MAX)
            return list(zip(*(array.to_pylist() for array in arrays), strict=True))

        places = []
        for tablet in self.tablets:
            at = tablet.locate(encoded, TIMESTAMP_MAX)
            for index in np.unique(at.rowset_index[at.is_found]):
                places.append((tablet.rowsets[index], at.rowid[at.rowset_index == index]))
        return sorted(itertools.chain.from_iterable(self.storage.side_by_side(read, places)))

    def row(self, key: int) -> list[object] | None:
        encoded = encode_keys([pa.array([key], pa.int64())], self.schema.key_types)[0]
        for tablet in self.tablets:
            found = tablet.locate_one(encoded, self.schema.key_width, TIMESTAMP_MAX)
            if found is not None:
                return found[0].read_row(found[1], self.schema.columns, TIMESTAMP_MAX)
        return None


def rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class Table:
    """A table of several rowsets with overlapping keys, updates and deletes, in two tablets."""

    def __init__(self, core: CoreTables) -> None:
        schema = pa.schema(
            [pa.field("k", pa.int64(), False), ("a", pa.int64()), ("b", pa.string())]
        )
        schema = schema.append(pa.field("c", pa.float64()))
        halves = {"columns": ["k"], "bounds": [[0, 1_000_000], [1_000_000, 2_000_000]]}
        client = core.client()
        table = client.create_table("t", schema, primary_key=["k"], range_partitions=halves)
        numbers = np.arange(ROWS) * ROWSETS
        moments, random = [], np.random.default_rng(1)
        for part, start in itertools.product(range(ROWSETS), (0, 1_000_000)):
            keys = numbers + part + start
            columns = [keys, keys * 7, np.char.mod("t%d", keys % 50), random.random(ROWS)]
            table.insert(pa.table(columns, schema=schema))
        moments.append(int(table.current_timestamp()))
        for part in range(ROWSETS):
            table.update(pa.table({"k": numbers[::97] + part, "a": numbers[::97]}))
            table.delete(pa.table({"k": numbers[5::211] + part}))
        moments.append(int(table.current_timestamp()))
        store = table._store
        self.local = []
        for entry in store.newest().readable_tablets:
            self.local.append(store.tablet(entry))
        self.schema = store.newest().schema
        self.moments = moments[0], moments[1]
        self.storage = store.storage
        assert all(len(tablet.disk_rowsets) >= ROWSETS for tablet in self.local)
        assert any(rowset.meta.redo for rowset in self.local[0].disk_rowsets)

    def in_directory(self) -> Tablets:
        return Tablets(self.storage, self.schema, self.local, self.moments)

    def in_store(self) -> Tablets:
        store = MemoryStore()
        storage, tablets = ObjectStorage(store, ROOT), []
        for tablet in self.local:
            folder = ROOT / tablet.id
            for path, ref in tablet.files():
                content = path.read_bytes()
                assert storage.put(folder / path.relative_to(tablet.folder), content) == ref
            cache = BlockCache(storage, 64 << 20)
            tablets.append(Tablet.open(tablet.superblock, folder, cache))
        return Tablets(storage, self.schema, tablets, self.moments)


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several row groups in each rowset, also where the table is checked."""
    patch_group_rows(monkeypatch, 4_096)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> CountingLibrary:
    """The library, which counts."""
    return CountingLibrary.installed(monkeypatch)


@pytest.fixture
def table(core: CoreTables) -> Table:
    """A table in a directory."""
    return Table(core)


def test_answers_of_a_store_are_those_of_a_directory(table: Table):
    """Scans, ordered scans, counts, changes, rows and single rows, now and in the past."""
    here, there = table.in_directory(), table.in_store()
    past = here.moments[0]
    keys = [0, 1, 7, 97, 485, 1_025, 1_000_003, 1_500_000, 999, 14_000]
    for where in ((), [("a", ">", 60_000)], [("k", ">=", 500), ("k", "<", 1_000_700)]):
        for at in (TIMESTAMP_MAX, past):
            names = ("k", "a", "b")
            expected = here.scan(here.spec(*names, at=at, where=where))
            assert there.scan(there.spec(*names, at=at, where=where)) == expected
            found = there.ordered(there.spec(*names, at=at, where=where))
            assert found == here.ordered(here.spec(*names, at=at, where=where)) == expected
            counts = [
                sum(
                    count_rows(t.storage, tablet, t.spec(at=at, where=where))
                    for tablet in t.tablets
                )
                for t in (here, there)
            ]
            assert counts == [len(expected)] * 2
    assert there.diff("k", "a") == here.diff("k", "a") != []
    assert there.rows(keys, "k", "c") == here.rows(keys, "k", "c") != []
    assert [there.row(key) for key in keys] == [here.row(key) for key in keys]


def test_a_cold_scan_waits_for_footers_and_then_for_columns(table: Table, library: CountingLibrary):
    """Footers and deltas of all, then the columns of the row groups, some of them at once."""
    there = table.in_store()
    library.clear()
    rows = there.scan(there.spec("k", "a", "b"))
    assert len(rows) > 2 * ROWSETS * ROWS * 0.98
    rowsets = [rowset for tablet in there.tablets for rowset in tablet.disk_rowsets]
    assert library.round_count == 1 + -(-3 * len(rowsets) // (there.storage.requests_at_once + 2))
    assert library.counts["get"] <= sum(1 + len(rowset.meta.redo) for rowset in rowsets)
    assert library.counts["get_ranges"] <= sum(3 for _ in rowsets)


def test_scans_in_key_order_and_of_changes_wait_as_seldom(table: Table, library: CountingLibrary):
    """All files are opened side by side; a merge looks at its first rowset before the others."""
    there = table.in_store()
    library.clear()
    there.ordered(there.spec("k", "a"))
    assert library.round_count <= 5
    there = table.in_store()
    library.clear()
    there.diff("k", "a")
    assert library.round_count <= 3


def test_one_key_of_many_rowsets_is_found_in_two_rounds(table: Table, library: CountingLibrary):
    """Bloom filters with the key indexes, deltas and footers, which are small; then pages."""
    for key in (7, 485, 1_000_003):
        there = table.in_store()
        library.clear()
        assert there.row(key) == table.in_directory().row(key)
        assert library.round_count <= 2
        library.clear()
        there.row(key)
        assert library.requests == []


def test_keys_of_many_rowsets_are_found_in_few_rounds(table: Table, library: CountingLibrary):
    """However many there are."""
    there, keys = table.in_store(), list(range(0, 2_000, 13))
    library.clear()
    assert there.rows(keys, "k", "c") == table.in_directory().rows(keys, "k", "c")
    assert library.round_count <= 2
    library.clear()
    there.rows(keys, "k", "c")
    assert library.requests == []
