"""The cost of one operation on a small and a large table, and of plans over many parts.

    python benchmarks/scale.py [--rows 1000000 20000000] [--tablets 8] [--only PART …]

    operations   the same operations on tables of different sizes, and the ratio of their costs
    lookups      rows by random keys, of a table with overlapping rowsets that is in the page cache
    memory       the highest memory of a load from a reader and of a compaction
    planning     plans of a table with 1,000 tablets, and of one with 10,000 rowsets

Each table has a process of its own. A load and a scan are given for each million rows.
Processor time is printed beside elapsed time, because other processes do not change it much.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from stores.report import time_text
from stores.steps import Times, high_water_bytes, reset_peak
from stores.workload import KEY, KEY_STEP, RANGE_KEYS, SCHEMA, UPDATED, make_rows

import kudulite
from kudulite.chain.manifest import Origin
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.reads.lookup import KeyLookup
from kudulite.table.environment import default_environment
from kudulite.table.table_store import TableStore

PARTS = ("operations", "lookups", "memory", "planning")
PLANNED = ("tablets", "rowsets")
READER_ROWS = 250_000
BATCH = {"upsert": 100_000, "update": 50_000, "delete": 10_000}
AGGREGATED = ["mode", "quantity", "price"]
LOADS = 8  # of interleaved keys; each makes a rowset in each tablet
FOUND_KEYS = 100
TABLETS_MANY = 1_000
ROWSET_TABLETS, ROWSETS_EACH = 100, 100


def reader(row_count: int) -> pa.RecordBatchReader:
    """Return rows in random order that exist while they are read, unlike a table of them."""

    # A permutation in an array would need memory of its own.
    factor = next(
        f for f in itertools.count(row_count * 618 // 1000) if math.gcd(f, row_count) == 1
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, row_count, READER_ROWS):
            numbers = np.arange(start, min(start + READER_ROWS, row_count))
            yield from make_rows(numbers * factor % row_count * KEY_STEP, start).to_batches()

    return pa.RecordBatchReader.from_batches(SCHEMA, batches())


def connect(folder: Path) -> kudulite.Client:
    """Return a client without maintenance in the background."""
    return kudulite.connect(folder, background_maintenance=False)


def create(folder: Path, tablets: int) -> kudulite.Table:
    """Return a new table in hash tablets."""
    return connect(folder).create_table(
        "rows", SCHEMA, primary_key=KEY, hash_partitions=[([KEY], tablets)]
    )


# -- operations on one table


class Figures:
    """The medians of the operations of one table."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, float]] = {}

    def measure(
        self,
        name: str,
        works: list[Callable[[], Any]],
        millions: float = 1.0,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        """Run works one after the other and keep their medians, divided by `millions`.

        `before` runs before each of them and is not measured.
        """
        times = Times()
        for work in works:
            before()
            times.run(work)
        found = times.figures()
        self.found[name] = {key: found[key] / millions for key in ("seconds", "cpu_seconds")}


def run_operations(folder: Path, row_count: int, tablets: int) -> dict[str, Any]:
    """Return the figures of one table by operation."""
    figures, millions = Figures(), row_count / 1e6
    table = create(folder, tablets)
    random = np.random.default_rng(9)
    rows = list(reader(row_count))
    given = pa.RecordBatchReader.from_batches(SCHEMA, rows)
    figures.measure("load, each million rows", [lambda: table.insert(given)], millions)
    del rows
    figures.measure("maintenance after it, each million rows", [table.maintain], millions)
    read_all(figures, table, "clean", millions)
    read_little(figures, table, "clean", random, row_count)
    keys = [some_keys(random, row_count, sum(BATCH.values())) for _ in range(3)]
    bounds = np.cumsum(list(BATCH.values()))[:-1]
    parts = [np.split(some, bounds) for some in keys]
    writes: dict[str, list[Callable[[], Any]]] = {name: [] for name in BATCH}
    for upserted, updated, deleted in parts:
        new = upserted + random.integers(0, 2, len(upserted))
        batch, prices = make_rows(new, 6), pa.table({KEY: updated, UPDATED: updated * 0.5})
        writes["upsert"].append(lambda batch=batch: table.upsert(batch))
        writes["update"].append(lambda prices=prices: table.update_ignore(prices))
        gone = pa.table({KEY: deleted})
        writes["delete"].append(lambda gone=gone: table.delete_ignore(gone))
    for name, works in writes.items():
        figures.measure(f"{name} of {BATCH[name]:,} rows", works)
    session = table_session(folder)
    singles = make_rows(random.integers(0, row_count, 200) * KEY_STEP + 2, 7).to_pylist()

    def write(row: dict[str, Any]) -> None:
        session.apply(table.new_upsert(row))
        session.flush()

    figures.measure("one row, durable", [lambda row=row: write(row) for row in singles])
    read_all(figures, table, "dirty", millions)
    read_little(figures, table, "dirty", random, row_count)
    return figures.found


def table_session(folder: Path) -> kudulite.Session:
    """Return a session of the client of a folder."""
    return connect(folder).new_session()


def some_keys(random: np.random.Generator, row_count: int, count: int) -> np.ndarray:
    """Return different keys of loaded rows."""
    return random.choice(row_count, count, replace=False) * KEY_STEP


def read_all(figures: Figures, table: kudulite.Table, name: str, millions: float) -> None:
    """Measure scans of three columns of all rows."""
    works = [lambda: table.scan(AGGREGATED).to_arrow()] * 4
    works[0]()
    figures.measure(f"scan of 3 columns, {name}, each million rows", works[1:], millions)


def read_little(
    figures: Figures, table: kudulite.Table, name: str, random: np.random.Generator, row_count: int
) -> None:
    """Measure reads by key, each of other rows; first without base data in the block cache.

    The small table fits into the cache and the large one does not. So the reads that find their
    rows there are not the same work in both.
    """
    cache = default_environment().cache
    files = {str(path) for path in table.path.glob("tablet/*/rowset/*/base-*.parquet")}

    def forget() -> None:
        cache.remove_files(files)

    firsts = random.integers(0, row_count - RANGE_KEYS, 20) * KEY_STEP
    ends = firsts + RANGE_KEYS * KEY_STEP

    def read(low: int, high: int) -> pa.Table:
        return table.scan(where=[table[KEY] >= low, table[KEY] < high]).to_arrow()

    ranges = [(int(low), int(high)) for low, high in zip(firsts, ends, strict=True)]
    works = [lambda r=r: read(*r) for r in ranges]
    figures.measure(f"range of 1,000 keys, {name}", works, before=forget)
    gets = [int(key) for key in some_keys(random, row_count, 200)]
    works = [lambda key=key: table.get(key) for key in gets]
    for work in works:
        work()  # key indexes are in the cache from here on
    figures.measure(f"get, first read of base data, {name}", works, before=forget)
    figures.measure(f"get, again, {name}", works[-1:] * 200)
    many = [pa.table({KEY: some_keys(random, row_count, 10_000)}) for _ in range(5)]
    works = [lambda keys=keys: table.get_many(keys) for keys in many]
    figures.measure(f"10,000 rows by key, first read of base data, {name}", works, before=forget)
    figures.measure(f"10,000 rows by key, {name}", works)


# -- lookups in a table that is larger than the block cache


def run_lookups(folder: Path, row_count: int, tablets: int) -> dict[str, Any]:
    """Make the table; in the next process, return the figures of lookups in it."""
    if not connect(folder).table_exists("rows"):
        table, each = create(folder, tablets), row_count // LOADS
        for load in range(LOADS):
            firsts = range(0, each, READER_ROWS)
            numbers = (np.arange(first, min(first + READER_ROWS, each)) for first in firsts)
            parts = [make_rows((n * LOADS + load) * KEY_STEP, load) for n in numbers]
            table.insert(pa.concat_tables(parts))
        return {}
    table, random = connect(folder).table("rows"), np.random.default_rng(9)
    for path in table.path.glob("tablet/*/rowset/*/*"):
        path.read_bytes()
    figures, cache = Figures(), default_environment().cache

    def gets(count: int, add: int = 0) -> list[Callable[[], Any]]:
        keys = random.integers(0, row_count, count) * KEY_STEP + add
        return [lambda key=key: table.get(key) for key in keys.tolist()]

    figures.measure("get, the first of a process", gets(200))
    figures.measure("get", gets(1000))
    figures.measure("get of an absent key", gets(1000, 1))
    figures.measure("get, nothing in the block cache", gets(100), before=cache.clear)
    many = [pa.table({KEY: some_keys(random, row_count, 10_000)}) for _ in range(3)]
    works = [lambda keys=keys: table.get_many(keys) for keys in many]
    figures.measure("10,000 rows by key", works)
    few = [some_keys(random, row_count, FOUND_KEYS) for _ in range(40)]
    works = [lambda keys=keys: find(table, keys + keys % 2) for keys in few]
    figures.measure(f"find {FOUND_KEYS} keys, half of them there", works)
    batches = [make_rows(keys + keys % 2, 6) for keys in few]
    works = [lambda batch=batch: table.upsert(batch) for batch in batches]
    figures.measure(f"upsert of {FOUND_KEYS} rows", works)
    return figures.found


def find(table: kudulite.Table, keys: np.ndarray) -> int:
    """Return how many keys there are, found as a write does."""
    store = TableStore(table.path, default_environment())
    entries, count = {entry.id: entry for entry in store.newest().tablets}, 0
    for tablet_id, own in KeyLookup(store).keys_by_tablet(pa.table({KEY: keys})).items():
        found = store.tablet(entries[tablet_id]).locate(own, TIMESTAMP_MAX)
        count += int(np.count_nonzero(found.is_found))
    return count


# -- memory


def run_memory(folder: Path, row_count: int, tablets: int) -> dict[str, Any]:
    """Return the highest memory of the process in a load; in the next process, in a compaction."""
    if connect(folder).table_exists("rows"):
        table = connect(folder).table("rows")
        reset_peak()
        table.compact()
        return {"compaction after an upsert of 10 %": {"bytes": high_water_bytes()}}
    table = create(folder, tablets)
    reset_peak()
    table.insert(reader(row_count))
    found = {"load from a reader": {"bytes": high_water_bytes()}}
    random = np.random.default_rng(9)
    table.upsert(make_rows(some_keys(random, row_count, row_count // 10), 6))
    return found


# -- planning


def make_planned(folder: Path, name: str) -> None:
    """Create a table with many tablets, or with many rowsets, of 20 rows in each tablet."""
    tablets = TABLETS_MANY if name == "tablets" else ROWSET_TABLETS
    table = create(folder, tablets)
    table.insert(make_rows(np.random.default_rng(5).permutation(tablets * 20) * KEY_STEP, 8))
    if name == "rowsets":
        multiply_rowsets(TableStore(table.path, default_environment()))


def multiply_rowsets(store: TableStore) -> None:
    """Publish a version in which each rowset is there many times, under other ids.

    It can be planned, and not be read: the rowsets of a tablet have the same keys. Writing as many
    would take minutes.
    """
    newest = store.newest()
    entries = []
    for entry in newest.tablets:
        superblock, found = store.tablet(entry).superblock, []
        for meta in superblock.rowsets:
            copies = [replace(meta, id=f"{meta.id}-{number}") for number in range(ROWSETS_EACH)]
            for copy in copies:
                folder = store.tablet_folder(entry.id) / "rowset"
                shutil.copytree(folder / meta.id, folder / copy.id, copy_function=os.link)
            found += copies
        many = replace(superblock, rowsets=tuple(found))
        entries.append(store.with_superblock(entry, many, entry.timestamp))
    made = newest.successor(Origin("benchmark", 1), tablets=tuple(entries))
    assert store.update(lambda _: made, newest) is not None


def run_planning(folder: Path, name: str) -> dict[str, Any]:
    """Return the figures of plans; the process has not seen the table before."""
    figures = Figures()

    def open_and_plan() -> object:
        return connect(folder).table("rows").scan_tokens()

    figures.measure("open the table and make scan tokens, first", [open_and_plan])
    figures.measure("the same again", [open_and_plan] * 5)
    table = connect(folder).table("rows")
    middle = table.live_row_count // 2 * KEY_STEP
    where = [table[KEY] >= middle, table[KEY] < middle + 10 * KEY_STEP]
    figures.measure("plan a scan", [table.scan] * 5)
    figures.measure("scan tokens of a range of keys", [lambda: table.scan_tokens(where=where)] * 5)
    figures.measure("native plan, first", [lambda: table.native_plan(AGGREGATED)])
    figures.measure("native plan, again", [lambda: table.native_plan(AGGREGATED)] * 5)
    figures.measure("count", [lambda: table.scan().count()] * 5)
    if name == "tablets":
        figures.measure("range of 10 keys, first", [lambda: table.scan(where=where).to_arrow()])
        figures.measure("range of 10 keys, again", [lambda: table.scan(where=where).to_arrow()] * 5)
        figures.measure("get, again", [lambda: table.get(0)] * 20)
        some = make_rows(np.arange(1_000) * KEY_STEP, 9)
        figures.measure("upsert of 1,000 rows", [lambda: table.upsert(some)] * 3)
    return figures.found


# -- processes and report


def in_process(*commands: list[str]) -> dict[str, Any]:
    """Run commands on one folder, which is removed; return the figures of all."""
    figures: dict[str, Any] = {}
    folder = tempfile.mkdtemp(prefix="kudulite-scale-")
    try:
        for command in commands:
            whole = [sys.executable, __file__, "--folder", folder, *command]
            output = subprocess.run(whole, stdout=subprocess.PIPE, text=True, check=True).stdout
            figures |= json.loads(output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return figures


def print_table(head: list[str], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    for cells in [head, ["---"] * len(head), *rows]:
        print(f"| {' | '.join(cells)} |")
    print(flush=True)


def cell(figures: dict[str, float]) -> str:
    """Return elapsed and processor time, or memory."""
    if "bytes" in figures:
        return f"{figures['bytes'] / 1e6:,.0f} MB"
    return f"{time_text(figures['seconds'])} (CPU {time_text(figures['cpu_seconds'])})"


def compare(part: str, names: list[str], found: list[dict[str, Any]]) -> None:
    """Print the figures of several tables, and the ratio of the last to the first one."""
    rows = []
    for name, first in found[0].items():
        cells = [name, *(cell(figures[name]) for figures in found)]
        for unit in ("seconds", "cpu_seconds"):
            if unit in first:
                cells.append(f"{found[-1][name][unit] / first[unit]:.2f} ×")
        rows.append(cells)
    ratios = ["ratio", "ratio of CPU"] if part != "memory" else []
    print_table([part, *names, *ratios], rows)


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 20_000_000])
    parser.add_argument("--tablets", type=int, default=8)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--make", choices=PLANNED, help=argparse.SUPPRESS)
    parser.add_argument("--plan", choices=PLANNED, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.folder:
        run_part(args)
        return
    names = [f"{rows:,} rows" for rows in args.rows]
    for part in ("operations", "lookups", "memory"):
        if part in args.only:
            options = ["--tablets", str(args.tablets), "--only", part]
            times = 1 if part == "operations" else 2
            found = [in_process(*[[*options, "--rows", str(rows)]] * times) for rows in args.rows]
            compare(part, names, found)
    if "planning" in args.only:
        found = [in_process(["--make", name], ["--plan", name]) for name in PLANNED]
        heads = [f"{TABLETS_MANY:,} tablets", f"{ROWSET_TABLETS * ROWSETS_EACH:,} rowsets"]
        rows = [[name, *(cell(f[name]) if name in f else "–" for f in found)] for name in found[0]]
        print_table(["planning", *heads], rows)


def run_part(args: argparse.Namespace) -> None:
    """Run the part of a process of its own; prints its figures as JSON."""
    found: dict[str, Any] = {}
    if args.make:
        make_planned(args.folder, args.make)
    elif args.plan:
        found = run_planning(args.folder, args.plan)
    elif "lookups" in args.only:
        found = run_lookups(args.folder, args.rows[0], args.tablets)
    elif "memory" in args.only:
        found = run_memory(args.folder, args.rows[0], args.tablets)
    else:
        found = run_operations(args.folder, args.rows[0], args.tablets)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
