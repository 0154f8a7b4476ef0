"""The number of files that a process keeps open is bounded, however many tables it has used."""

import gc
import random
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import kudulite
from kudulite.basefile.block_cache import BlockCache
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.storage.local_storage import LocalStorage
from kudulite.table.table_store import TableStore
from tests.support.tables.core_tables import (
    CoreTables,
    altered,
    descriptors_below,
    maps_below,
    stored,
)
from tests.support.tiers import tiered

TABLES = 25


def create(client: Client, name: str, **options) -> Table:
    """An empty table with a key and text."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    return client.create_table(name, schema, primary_key="k", **options)


def put(table: Table, *keys: int, value: str = "x") -> None:
    """Upsert rows through the log."""
    session = kudulite.Session()
    for key in keys:
        session.apply(table.new_upsert({"k": key, "v": value}))
    session.flush()


def in_memory(table: Table) -> int:
    """How many tables with rows in memory, and queues of row writers, its process keeps."""
    environment = table._store.environment
    with_rows = [memory for memory in environment.memories.values() if memory.log or memory._rows]
    return len(with_rows) + len(environment.write_queues)


def open_below(root: Path) -> tuple[int, int]:
    """(maps, descriptors) of files below a folder."""
    return maps_below(root), descriptors_below(root)


def test_a_flush_gives_back_the_log_and_the_lock(core: CoreTables):
    """Only tables with unflushed rows hold descriptors: two each."""
    client = core.client()
    tables = [create(client, f"t{number}") for number in range(TABLES)]
    for table in tables:
        put(table, 1, 2)
    assert descriptors_below(core.root) == 2 * TABLES
    for table in tables:
        table.flush()
    assert (descriptors_below(core.root), in_memory(tables[0])) == (0, 0)
    put(tables[0], 3)
    assert descriptors_below(core.root) == 2
    assert stored(tables[0]) == [(key, "x") for key in (1, 2, 3)]


@pytest.mark.parametrize("publish", ["commit", "alter", "compact", "purge", "other client"])
def test_whatever_supersedes_the_log_gives_its_memory_back(core: CoreTables, publish: str):
    """Also when another process did, as soon as this one looks at the table."""
    client = core.client()
    table = create(client, "t")
    put(table, 1)
    if publish == "commit":
        table.upsert(pa.table({"k": [1, 2], "v": ["y", "y"]}))
    elif publish == "alter":
        altered(client, "t", lambda alterer: alterer.add_column("w", kudulite.int32))
    elif publish == "compact":
        table.compact()
    elif publish == "purge":
        table.purge({"k": [1]})
    else:
        core.client().table("t").flush()
        stored(table)
    assert (descriptors_below(core.root), in_memory(table)) == (0, 0)


@pytest.mark.parametrize("is_flushed", [False, True])
def test_nothing_is_kept_of_tables_that_are_deleted_or_renamed(core: CoreTables, is_flushed: bool):
    """Neither memory nor descriptors nor maps, with unflushed rows too."""
    client = core.client()
    for number in range(TABLES):
        name = f"t{number}"
        table = create(client, name)
        put(table, *range(5))
        if is_flushed:
            table.flush()
        put(table, 5, value="x" * 100_000)
        stored(table)
        if number % 2:
            client.delete_table(name)
        else:
            client.rename_table(name, f"r{number}")
    assert in_memory(table) == 0
    del table
    assert open_below(core.root) == (0, 0)
    assert len(client.table("r0").scan().to_arrow()) == 6


def test_nothing_is_kept_of_a_range_that_is_dropped(core: CoreTables):
    """One log and one lock file are open for all that stay."""
    client = core.client()
    bounds = [[number, number + 1] for number in range(4)]
    ranges = {"columns": ["k"], "bounds": bounds}
    table = create(client, "t", range_partitions=ranges)
    for key in range(4):
        put(table, key)
    altered(client, "t", lambda alterer: alterer.drop_range_partition({"k": 1}, {"k": 2}))
    for key in (0, 2, 3):
        put(table, key, value="y")
    (memory,) = table._store.environment.memories.values()
    assert memory._rows.keys() == set(client.table("t").tablet_ids)
    assert descriptors_below(core.root) == 2


def test_small_files_have_no_maps(core: CoreTables):
    """Base data, key index and deltas of each of many tables are read."""
    client = core.client()
    for number in range(TABLES):
        table = create(client, f"t{number}")
        table.upsert(pa.table({"k": list(range(100)), "v": ["x"] * 100}))
        put(table, 7, value="y")
        table.flush()
        assert table.scan().to_arrow().num_rows == 100
        assert table.get(7)["v"] == "y"
    assert open_below(core.root) == (0, 0)


def test_the_cache_bounds_the_maps_of_large_files(core: CoreTables):
    """A map counts for 64 KiB at least, and nothing but the cache keeps one."""
    capacity = 1 << 20
    client = core.client()
    client._environment = kept = replace(
        client._environment, cache=BlockCache(LocalStorage(), capacity)
    )
    tables, counts = [], []
    for number in range(16):
        table = create(client, f"t{number}")
        words = random.Random(number)
        values = [words.randbytes(40).hex() for _ in range(2000)]
        table.upsert(pa.table({"k": list(range(2000)), "v": values}))
        tables.append(table)
    for table in tables * 2:
        assert table.scan().to_arrow().num_rows == 2000
        counts.append(maps_below(core.root))
    assert 5 < max(counts) <= capacity // (64 << 10)
    assert kept.cache.statistics.eviction_count > 0
    kept.cache.clear()
    gc.collect()
    assert open_below(core.root) == (0, 0)


def test_a_collection_gives_back_the_space_of_what_it_removes(core: CoreTables):
    """A map would keep the bytes on disk as long as the process lives."""
    client = core.client()
    table = create(client, "t")
    words = random.Random(1)
    for _ in range(2):
        values = [words.randbytes(40).hex() for _ in range(2000)]
        table.upsert(pa.table({"k": list(range(2000)), "v": values}))
        table.scan().to_arrow()
    table.get(1999)
    before = maps_below(core.root)
    table.purge({"k": [1]})
    table.scan().to_arrow()
    lines = Path("/proc/self/maps").read_text().splitlines()
    assert before > 0
    assert [line for line in lines if str(core.root) in line and "(deleted)" in line] == []


@tiered("count", [8, 40], quick=1)
def test_writes_are_right_while_memory_is_forgotten(core: CoreTables, count: int):
    """Threads that have the old queue and those that have the new one exclude each other."""
    client = core.client()
    table = create(client, "t")
    store = TableStore(table._store.folder, table._store.environment)
    failures = []
    is_over = threading.Event()

    def write(thread: int) -> None:
        handle = client.table("t")
        for number in range(count):
            session = kudulite.Session()
            session.apply(handle.new_insert({"k": 1000 * thread + number, "v": "x"}))
            try:
                session.flush()
            except kudulite.KuduliteError as error:
                failures.append(error)

    def forget() -> None:
        while not is_over.is_set():
            store.forget()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    forgetting = threading.Thread(target=forget)
    forgetting.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    is_over.set()
    forgetting.join()
    assert failures == []
    expected = [1000 * thread + number for thread in range(4) for number in range(count)]
    assert [row[0] for row in stored(table)] == expected


MANY = """
import resource, sys
import pyarrow as pa
import kudulite

resource.setrlimit(resource.RLIMIT_NOFILE, (100, 4096))
client = kudulite.connect(sys.argv[1], background_maintenance=False)
table = client.create_table(
    "t", pa.schema([("k", pa.int64())]), primary_key="k", hash_partitions=[(["k"], 120)]
)
session = client.new_session()
for key in range(1000):
    session.apply(table.new_insert({"k": key}))
session.flush()
print(table.scan().count())
"""


def test_more_tablets_may_have_unflushed_rows_than_a_process_may_open_files(core: CoreTables):
    """Its soft limit is raised, as far as the hard one allows."""
    command = [sys.executable, "-c", MANY, str(core.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "1000", done.stderr[-2000:]
