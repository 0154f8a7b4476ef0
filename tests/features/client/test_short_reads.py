"""Short reads: ranges and limited scans equal the same rows of a whole scan, and read little."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

import kudulite.reads.scan
from kudulite.basefile.base_data import ROW_GROUP_ROWS, BaseDataFile
from kudulite.basefile.page_range import PAGE_ROWS
from kudulite.client.table import Table
from kudulite.reads.lookup import PARALLEL_KEYS_MIN
from tests.support.tables.core_tables import CoreTables, group_rows_of, tuples

ROWS = 2 * ROW_GROUP_ROWS
TABLETS = 2


def make_rows(keys: np.ndarray, seed: int) -> pa.Table:
    """Rows with a number, text with nulls, text with few values, and a list."""
    rng = np.random.default_rng(seed)
    texts = [
        None if number % 7 == 0 else f"{seed}:{number}" for number in rng.permutation(len(keys))
    ]
    lists = [[int(key), seed] for key in keys]
    few = np.array(["a", "bc", "def"])[rng.integers(0, 3, len(keys))]
    columns = {"k": keys, "real": rng.random(len(keys)), "text": texts, "few": few, "list": lists}
    return pa.table(columns)


def dirty_table(core: CoreTables, count: int) -> Table:
    """Two tablets with base data, UNDO, a second rowset, REDO, and rows in memory."""
    rng = np.random.default_rng(count)
    keys = np.arange(0, 3 * count, 3)
    schema = make_rows(keys[:9], 1).schema
    hashed = [(["k"], TABLETS)]
    client = core.client()
    table = client.create_table("t", schema, primary_key="k", hash_partitions=hashed)
    table.insert(make_rows(keys, 1))
    table.upsert(make_rows(rng.choice(keys, count // 5, replace=False), 2))
    table.maintain()
    table.insert(make_rows(rng.choice(keys + 1, count // 5, replace=False), 3))
    table.delete(pa.table({"k": rng.choice(keys, count // 9, replace=False)}))
    session = client.new_session()
    for row in make_rows(rng.choice(keys + 2, count // 9, replace=False), 4).to_pylist():
        session.apply(table.new_upsert(row))
    session.flush()
    return table


@pytest.fixture(params=[16, 40])
def group_rows(request: pytest.FixtureRequest) -> Iterator[int]:
    """Row groups of so many rows, until the tables of the test were checked."""
    with group_rows_of(request.param):
        yield request.param


@pytest.mark.both
def test_short_ranges_equal_the_rows_of_a_whole_scan(group_rows: int, core: CoreTables):
    """At pages in any order, of any columns, first decoded in part and later as a whole."""
    table = dirty_table(core, 300)
    rows = table.scan(ordered=True).to_arrow()
    keys = rows["k"].to_numpy()
    rng = np.random.default_rng(group_rows)
    for _ in range(30):
        low, span = int(rng.integers(-3, 900)), int(rng.integers(1, 90))
        columns = list(rng.permutation(rows.column_names)[: int(rng.integers(1, 6))])
        where = [table["k"] >= low, table["k"] < low + span]
        ordered = bool(rng.integers(0, 2))
        limit = int(rng.integers(0, 50)) if rng.integers(0, 2) else None
        found = tuples(table.scan(columns, where, ordered=ordered, limit=limit).to_arrow())
        is_inside = pa.array((keys >= low) & (keys < low + span))
        inside = tuples(rows.filter(is_inside).select(columns))
        if ordered:
            assert found == inside[:limit]
        elif limit is None:
            assert sorted(map(repr, found)) == sorted(map(repr, inside))
        else:
            assert len(found) == min(limit, len(inside))
            assert set(map(repr, found)) <= set(map(repr, inside))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows that each read of a base file decodes, in order."""
    found: list[int] = []
    cut, whole = BaseDataFile._cut, BaseDataFile.read

    def counted_cut(file, group, start, stop, *args):
        values = cut(file, group, start, stop, *args)
        found.append(stop - start // PAGE_ROWS * PAGE_ROWS)
        return values

    def counted_whole(file, row_groups, columns, *args, **options):
        table = whole(file, row_groups, columns, *args, **options)
        found.append(table.num_rows)
        return table

    monkeypatch.setattr(BaseDataFile, "_cut", counted_cut)
    monkeypatch.setattr(BaseDataFile, "read", counted_whole)
    return found


def large_table(core: CoreTables) -> Table:
    """Two tablets, each of one rowset with a full row group; every second row has n = 1.0."""
    keys = np.arange(ROWS)
    rows = pa.table({"k": keys, "n": (keys % 2).astype(float)})
    hashed = [(["k"], TABLETS)]
    table = core.client().create_table(
        "large", rows.schema, primary_key="k", hash_partitions=hashed
    )
    table.insert(rows)
    return table


def test_limited_scans_stop_early(core: CoreTables, decoded: list[int]):
    """The number of decoded rows depends on the limit, not on the size of the table or range."""
    table = large_table(core)
    some = [table["k"] >= 1000, table["k"] < ROWS - 1000]
    for where in ([], some, [table["n"] == 1], [*some, table["n"] == 1]):
        for ordered in (False, True):
            table._store.cache.clear()
            decoded.clear()
            scan = table.scan(where=where, ordered=ordered, limit=20)
            assert scan.to_arrow().num_rows == 20
            assert 0 < sum(decoded) <= TABLETS * 2 * PAGE_ROWS
            assert sum(decoded) < ROW_GROUP_ROWS // 4


def test_a_limited_scan_that_finds_nothing_reads_little_twice(core: CoreTables, decoded: list[int]):
    """Its blocks grow, so that it costs hardly more than a scan without a limit."""
    table = large_table(core)
    between = table["n"] > 0.2, table["n"] < 0.8
    assert table.scan("k", between, limit=3).to_arrow().num_rows == 0
    assert sum(decoded) > ROWS // 2
    assert sum(decoded) <= ROWS * 3 // 2


def test_a_short_range_decodes_pages_up_to_its_last_row(core: CoreTables, decoded: list[int]):
    """Then the same rows again without decoding, and the rest of the page as a whole."""
    table = large_table(core)

    def read(first: int) -> list[int]:
        decoded.clear()
        where = [table["k"] >= first, table["k"] < first + 200]
        assert sorted(table.scan("k", where).to_arrow()["k"].to_pylist()) == [
            *range(first, first + 200)
        ]
        return list(decoded)

    first = read(2000)
    assert len(first) == TABLETS
    assert sum(first) < 2 * 2200
    assert read(2000) == read(1000) == []
    assert read(4000) == [PAGE_ROWS] * TABLETS


def test_a_short_range_is_read_in_the_thread_of_the_consumer(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch
):
    """Threads would only wait for each other; a longer range has some, where there are cores."""
    table = large_table(core)
    pools = []

    def counted(*args, **options):
        pools.append(args)
        return ThreadPoolExecutor(*args, **options)

    monkeypatch.setattr(kudulite.reads.scan, "READ_THREADS", 2)
    monkeypatch.setattr(kudulite.reads.scan, "ThreadPoolExecutor", counted)

    def read(first: int, count: int) -> None:
        where = [table["k"] >= first, table["k"] < first + count]
        assert table.scan("n", where).to_arrow().num_rows == count

    read(2000, 300)
    assert not pools
    read(2000, 8 * PAGE_ROWS)
    assert len(pools) == 1


def scan_threads() -> set[str]:
    """The names of the threads that read, in this process."""
    found = {thread.name for thread in threading.enumerate()}
    return {name for name in found if name.startswith("kudulite-scan")}


def test_merged_blocks_are_decoded_by_threads(core: CoreTables, monkeypatch: pytest.MonkeyPatch):
    """Rows are in order, batches have at most a row group, and an early end leaves no thread."""
    table = large_table(core)
    table.upsert(pa.table({"k": [-1, 5], "n": [7.0, 8.0]}))
    monkeypatch.setattr(kudulite.reads.scan, "READ_THREADS", 2)
    readers: set[str] = set()
    whole = BaseDataFile.read

    def noted(*args, **options):
        readers.add(threading.current_thread().name)
        return whole(*args, **options)

    monkeypatch.setattr(BaseDataFile, "read", noted)
    batches = list(table.scan(ordered=True).to_batches())
    assert max(batch.num_rows for batch in batches) <= ROW_GROUP_ROWS
    rows = pa.Table.from_batches(batches)
    assert rows["k"].to_pylist() == list(range(-1, ROWS))
    assert rows["n"].to_pylist()[:8] == [7.0, 0.0, 1.0, 0.0, 1.0, 0.0, 8.0, 0.0]
    assert any(name.startswith("kudulite-scan") for name in readers)
    stream = table.scan(ordered=True).to_batches()
    assert next(stream).num_rows
    stream.close()
    assert not scan_threads()


def test_changes_decode_no_column_that_the_cache_has(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch
):
    """Rows by key keep columns of a row group decoded, as codes where that is smaller."""
    rng = np.random.default_rng(5)
    rows = make_rows(np.arange(ROW_GROUP_ROWS), 1).drop_columns(["list"])
    table = core.client().create_table("t", rows.schema, primary_key="k")
    start = table.insert(rows).timestamp
    numbers = rng.choice(ROW_GROUP_ROWS, 9_000, replace=False)
    changed = pa.table({"k": numbers, "real": rng.random(len(numbers))})
    end = table.update(changed).timestamp
    table.delete(pa.table({"k": rng.choice(ROW_GROUP_ROWS, 9_000, replace=False)}))
    read_columns: list[str] = []
    read = BaseDataFile.read

    def noted(file, row_groups, columns, *args, **options):
        read_columns.extend(columns)
        return read(file, row_groups, columns, *args, **options)

    monkeypatch.setattr(BaseDataFile, "read", noted)
    before = [tuples(table.changes(*w).to_arrow()) for w in ((start, end), (start, None))]
    assert {"text", "few"} <= set(read_columns)
    table.get_many(pa.table({"k": rng.choice(ROW_GROUP_ROWS, 1_000, replace=False)}))
    read_columns.clear()
    after = [tuples(table.changes(*w).to_arrow()) for w in ((start, end), (start, None))]
    assert not read_columns
    assert after == before
    assert len(after[0]) == len(numbers)


def test_many_keys_are_looked_up_in_threads_in_their_order(core: CoreTables):
    """From several tablets and rowsets, and memory; absent keys are left out, others repeated."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    client = core.client(small_write_rows_max=10)
    table = client.create_table("t", schema, primary_key="k", hash_partitions=[(["k"], 3)])
    for start in (0, 1):
        keys = np.arange(start, 6_000, 2)
        table.insert(pa.table({"k": keys, "v": keys * 7}))
    table.update([{"k": 4, "v": -4}])
    rng = np.random.default_rng(3)
    wanted = rng.choice(9_000, 3 * PARALLEL_KEYS_MIN)
    found = table.get_many(pa.table({"k": wanted}))
    there = wanted[wanted < 6_000]
    assert found["k"].to_pylist() == there.tolist()
    assert found["v"].to_pylist() == np.where(there == 4, -4, there * 7).tolist()
