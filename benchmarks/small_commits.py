"""Small commits: how long they take, the files they leave, and reads of a table after many.

    python benchmarks/small_commits.py commit [--rows 5000000] [--loads 1] [--tablets 8]
        [--commits 200] [--batch 100] [--stores kudulite kudulite-1 sqlite]
    python benchmarks/small_commits.py maintained [--rows 1000000] [--commits 1000] [--settle 15]
    python benchmarks/small_commits.py stream [--rows 3000000] [--loads 8] [--commits 1000]
        [--background]
    python benchmarks/small_commits.py log [--rows 3000000] [--log-mib 64] [--batch 1000]
    python benchmarks/small_commits.py processes [--rows 1000000] [--processes 8] [--seconds 10]

    commit        random rows into a maintained table, in turn with one tablet and with SQLite
    maintained    the files that commits leave while background maintenance is running
    stream        commits of one writer, tenth by tenth; then scans, compared with a model
    log           a scan, and reads of a new process, with rows that are not flushed
    processes     sessions in many processes: one, on different tablets, and on the same tablet

A commit is an upsert of `--batch` random rows that exist, of the ten columns of
stores/workload.py. The table is loaded in `--loads` parts, each of which becomes a rowset in each
tablet: ranges of keys, in `stream` every n-th key, so that all rowsets overlap. Processor time,
of all threads, is printed beside elapsed time, because other processes do not change it much.
Works that are compared take turns. All steps take --folder, the place for the tables.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from stores.kudulite_store import KuduliteStore, OneTabletStore
from stores.steps import Times, bytes_below, resident_bytes
from stores.store import Store
from stores.workload import KEY, KEY_STEP, SCHEMA, make_rows

import kudulite
from kudulite.client.client import Client
from kudulite.table.environment import default_environment

VALUE = "part"  # the column that is scanned and compared with the model
WARM_UP = 5
STORES = ("kudulite", "kudulite-1", "sqlite")
READS = ("first row", "all rows", "one key")
NEVER_FLUSHED_BYTES = 1 << 40
SPAWN = multiprocessing.get_context("spawn")


# -- tables and commits


def keys_of_load(number: int, args: argparse.Namespace, is_overlapping: bool) -> np.ndarray:
    """Return the keys of a part of the table, in random order."""
    bounds = np.linspace(0, args.rows, args.loads + 1, dtype=np.int64)
    numbers = (
        np.arange(number, args.rows, args.loads)
        if is_overlapping
        else np.arange(bounds[number], bounds[number + 1])
    )
    return np.random.default_rng(number).permutation(numbers) * KEY_STEP


def load(store: Store, args: argparse.Namespace) -> None:
    """Load a store, part by part, and maintain it."""
    for number in range(args.loads):
        rows = make_rows(keys_of_load(number, args, is_overlapping=False), number)
        (store.upsert if number else store.load)(rows)
    if isinstance(store, KuduliteStore):
        store.table.maintain(grace_seconds=0.0)


class ModelledTable:
    """A loaded table beside the last values of its rows: int64[rows], by key / KEY_STEP."""

    def __init__(
        self,
        folder: Path,
        args: argparse.Namespace,
        *,
        is_overlapping: bool = False,
        is_maintained: bool = False,
        is_flushed: bool = True,
    ) -> None:
        environment = replace(default_environment(), is_maintaining=is_maintained)
        if not is_flushed:
            environment = replace(environment, flush_bytes=NEVER_FLUSHED_BYTES)
        client = Client(folder, environment)
        buckets = [([KEY], args.tablets)] if args.tablets > 1 else []
        self.table = client.create_table("t", SCHEMA, primary_key=KEY, hash_partitions=buckets)
        self.values = np.full(args.rows, -1)
        self.random = np.random.default_rng(11)
        for number in range(args.loads):
            rows = make_rows(keys_of_load(number, args, is_overlapping), number)
            self.table.insert(rows)
            self._note(rows)
        if not is_overlapping:
            self.table.maintain(grace_seconds=0.0)

    def commit(self, numbers: np.ndarray, times: Times) -> None:
        """Upsert the rows of some numbers, which are keys divided by KEY_STEP."""
        rows = make_rows(numbers * KEY_STEP, int(self.random.integers(1 << 40)))
        times.run(lambda: self.table.upsert(rows))
        self._note(rows)

    def commit_random(self, count: int, batch: int) -> Times:
        """Upsert random rows `count` times."""
        times = Times()
        for _ in range(count):
            self.commit(self.random.choice(len(self.values), batch, replace=False), times)
        return times

    def check(self) -> None:
        """Exit unless a scan has exactly the rows of the model."""
        rows = self.table.scan([KEY, VALUE]).to_arrow()
        found = np.full_like(self.values, -1)
        found[rows[KEY].to_numpy() // KEY_STEP] = rows[VALUE].to_numpy()
        if rows.num_rows != len(found) or not np.array_equal(found, self.values):
            sys.exit(f"{rows.num_rows:,} rows, {np.sum(found != self.values):,} of them wrong")
        print("the scan equals the model")

    def _note(self, rows: pa.Table) -> None:
        self.values[rows[KEY].to_numpy() // KEY_STEP] = rows[VALUE].to_numpy()


# -- figures


def line(name: str, figure: str, note: str = "") -> None:
    """Print one figure."""
    print(f"{name:<52}{figure:>14}   {note}".rstrip(), flush=True)


def milliseconds(name: str, times: Times, note: str = "") -> float:
    """Print the median of works, the median of their processor time as well; returns seconds."""
    found = times.figures()
    note = f"processor {found['cpu_seconds'] * 1e3:,.2f} ms   {note}"
    line(name, f"{found['seconds'] * 1e3:,.2f} ms", note)
    return statistics.median(times.elapsed)


def slowest_hundredth(elapsed: list[float]) -> float:
    """Return the 99th percentile."""
    return sorted(elapsed)[int(len(elapsed) * 0.99)]


def repeated(work: Callable[[], object], repeat: int) -> Times:
    """Measure a work several times, after an uncounted one."""
    times = Times()
    work()
    for _ in range(repeat):
        times.run(work)
    return times


def once(work: Callable[[], object]) -> Times:
    """Measure a work that cannot be repeated."""
    times = Times()
    times.run(work)
    return times


def file_count(folder: Path) -> int:
    """Return the number of files in a tree, from which other processes may remove folders."""
    return sum(len(names) for _, _, names in os.walk(folder))


def layout_of(table: kudulite.Table) -> str:
    """Return the rowsets and files of a table, and its disk space, in a few words."""
    found = table.statistics
    size = f"{bytes_below(table.path) / 1e6:,.0f} MB"
    return (
        f"{found.rowset_count} rowsets, {found.rowset_height:.1f} high,"
        f" {file_count(table.path):,} files, {size}"
    )


# -- steps


def commit(args: argparse.Namespace, folder: Path) -> None:
    """Commits of random rows into a maintained table, in turn with one tablet and SQLite."""
    # Here, so that the other steps do not need DuckDB, whose store shares code with SQLite's.
    from stores.sqlite_store import SqliteStore

    made: tuple[Callable[[Path], Store], ...] = (KuduliteStore, OneTabletStore, SqliteStore)
    stores: dict[str, Store] = {}
    for name in args.stores:
        (folder / name).mkdir()
        store = stores[name] = made[STORES.index(name)](folder / name)
        if isinstance(store, KuduliteStore) and name == "kudulite":
            store.tablets = args.tablets
        store.open()
        load(store, args)
        if isinstance(store, KuduliteStore):
            line(f"{name}, loaded", f"{args.rows:,}", layout_of(store.table))
    commit_in_turn(stores, WARM_UP, args)
    before = {name: file_count(folder / name) for name in stores}
    times = commit_in_turn(stores, args.commits, args)
    medians, slow = {}, {}
    for name in stores:
        medians[name] = milliseconds(f"{name}, median of {args.commits} commits", times[name])
        slow[name] = slowest_hundredth(times[name].elapsed)
        line(f"{name}, 99 %", f"{slow[name] * 1e3:,.2f} ms")
        files = (file_count(folder / name) - before[name]) / args.commits
        line(f"{name}, files left per commit", f"{files:,.2f}")
    for name in args.stores[1:]:
        line(f"{args.stores[0]} / {name}, median", f"{medians[args.stores[0]] / medians[name]:.2f}")
        line(f"{args.stores[0]} / {name}, 99 %", f"{slow[args.stores[0]] / slow[name]:.2f}")


def commit_in_turn(
    stores: dict[str, Store], count: int, args: argparse.Namespace
) -> dict[str, Times]:
    """Upsert the same random rows into each store, so many times; returns the times of each."""
    random, times = np.random.default_rng(count), {name: Times() for name in stores}
    for number in range(count):
        rows = make_rows(random.choice(args.rows, args.batch, replace=False) * KEY_STEP, number)
        for name, store in stores.items():
            times[name].run(partial(store.upsert, rows))
    return times


def maintained(args: argparse.Namespace, folder: Path) -> None:
    """Commits while background maintenance is running: the files that they leave."""
    made = ModelledTable(folder, args, is_maintained=True)
    before = file_count(made.table.path)
    line("loaded", f"{args.rows:,}", layout_of(made.table))
    begin = time.perf_counter()
    times = Times()
    for _ in range(args.commits):
        made.commit(made.random.choice(args.rows, args.batch, replace=False), times)
        time.sleep(args.pause)
    seconds = time.perf_counter() - begin
    line(f"{args.commits:,} commits", f"{seconds:,.1f} s", layout_of(made.table))
    milliseconds("one commit, median", times)
    line("one commit, 99 %", f"{slowest_hundredth(times.elapsed) * 1e3:,.2f} ms")
    end = file_count(made.table.path)
    line("files left per commit", f"{(end - before) / args.commits:,.3f}")
    time.sleep(args.settle)
    end = file_count(made.table.path)
    line(f"the same, {args.settle:g} s later", f"{(end - before) / args.commits:,.3f}")
    made.check()


def stream(args: argparse.Namespace, folder: Path) -> None:
    """Commits of one writer, tenth by tenth; then scans, compared with a model."""
    made = ModelledTable(folder, args, is_overlapping=True, is_maintained=args.background)
    table = made.table

    def scan() -> Times:
        return repeated(lambda: table.scan([VALUE]).to_arrow(), args.repeat)

    line("loaded", f"{args.rows:,}", layout_of(table))
    milliseconds("scan of one column before", scan())
    made.commit_random(WARM_UP, args.batch)
    tenths, counts, memory = [], [file_count(table.path)], []
    for number in range(10):
        times = made.commit_random(args.commits // 10, args.batch)
        tenths.append(times)
        counts.append(file_count(table.path))
        memory.append(resident_bytes())
        note = f"{memory[-1] / 1e6:,.0f} MB, {counts[-1]:,} files"
        milliseconds(f"commits {(number + 1) * len(times.elapsed):,}, median", times, note)
    first, last = tenths[0], tenths[-1]
    ratio = statistics.median(last.elapsed) / statistics.median(first.elapsed)
    line("last tenth / first, median", f"{ratio:.2f}")
    line("last tenth / first, all seconds", f"{sum(last.elapsed) / sum(first.elapsed):.2f}")
    ratio = sum(last.processor) / sum(first.processor)
    line("last tenth / first, processor", f"{ratio:.2f}")
    line("memory after the last tenth / the first", f"{memory[-1] / memory[0]:.2f}")
    files = (counts[-1] - counts[0]) / sum(len(times.elapsed) for times in tenths)
    line("files left per commit", f"{files:,.3f}")

    dirty = milliseconds("scan of one column", scan(), layout_of(table))
    # Without a budget, maintenance does little but flush and collect garbage: soon, nothing.
    while (done := table.maintain(budget_bytes=0)).operations or done.garbage.file_count:
        pass
    collection = once(lambda: table.maintain(budget_bytes=0))
    milliseconds("garbage collection with nothing to do", collection)
    milliseconds("maintain", once(table.maintain), layout_of(table))
    middle = milliseconds("scan after maintain", scan())
    made.check()
    milliseconds("compact", once(table.compact))
    clean = milliseconds("scan of the compacted table", scan(), layout_of(table))
    made.check()
    line("scan / compacted", f"{dirty / clean:.2f}")
    line("scan after maintain / compacted", f"{middle / clean:.2f}")


def log(args: argparse.Namespace, folder: Path) -> None:
    """A scan, and reads of a new process, with rows that are not flushed."""
    made = ModelledTable(folder, args, is_flushed=False)
    table = made.table
    tablets = numbers_by_tablet(table, args.rows)
    times = Times()
    # A commit of rows of one tablet is in the log in every version of the engine.
    while (found := table.statistics).log_bytes < args.log_mib << 20:
        for numbers in tablets:
            made.commit(made.random.choice(numbers, args.batch, replace=False), times)
    rows = found.unflushed_row_count
    note = f"{rows:,} rows, {len(times.elapsed):,} commits of {args.batch:,}"
    line("log", f"{found.log_bytes / 2**20:.1f} MiB", note)
    seconds: dict[tuple[str, str], float] = {}
    for state in ("with the log", "flushed"):
        if state == "flushed":
            milliseconds("flush", once(table.flush))
        assert (table.statistics.unflushed_row_count == 0) == (state == "flushed")
        for name in READS:
            opened = new_processes(table.path, name, int(tablets[0][0]) * KEY_STEP, args.repeat)
            step = f"new process, {name}"
            seconds[step, state] = milliseconds(f"{step}, {state}", opened)
        scan = repeated(lambda: table.scan([VALUE]).to_arrow(), args.repeat)
        seconds["scan", state] = milliseconds(f"scan of one column, {state}", scan)
    for step in dict.fromkeys(step for step, _ in seconds):
        ratio = seconds[step, "with the log"] / seconds[step, "flushed"]
        line(f"{step}, log / flushed", f"{ratio:.2f}")
    made.check()


def new_processes(path: Path, name: str, key: int, repeat: int) -> Times:
    """Open the table in new processes, and do one of READS."""
    times = Times()
    for _ in range(repeat):
        with SPAWN.Pool(1) as pool:
            elapsed, processor = pool.apply(opened_and_read, (path, name, key))
        times.elapsed.append(elapsed)
        times.processor.append(processor)
    return times


def opened_and_read(path: Path, name: str, key: int) -> tuple[float, float]:
    """Open the table and do one of READS; returns elapsed and processor seconds."""
    # pyarrow imports pandas, where it is, at the first conversion of Python objects.
    pa.array([0])

    def read() -> None:
        table = kudulite.open_table(path)
        where = table[KEY] == key if name == "one key" else ()
        batches = table.scan([VALUE], where).to_batches()
        counts = (batch.num_rows for batch in batches)
        assert sum(counts) if name == "all rows" else next(filter(None, counts))

    times = once(read)
    return times.elapsed[0], times.processor[0]


def numbers_by_tablet(table: kudulite.Table, row_count: int) -> list[np.ndarray]:
    """Return the numbers of the rows of each tablet."""
    owners = table.tablet_index(pa.table({KEY: np.arange(row_count) * KEY_STEP})).to_numpy()
    return [np.flatnonzero(owners == tablet) for tablet in range(table.tablet_count)]


# -- many processes

_barrier: Barrier | None = None


def _keep_barrier(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def processes(args: argparse.Namespace, folder: Path) -> None:
    """Sessions in many processes: one alone, all on different tablets, all on the same."""
    table = ModelledTable(folder, args).table
    line("loaded", f"{args.rows:,}", layout_of(table))
    rates = {}
    every = list(range(args.processes))
    works = {
        "one process": [0],
        f"{args.processes} processes, different tablets": [n % args.tablets for n in every],
        f"{args.processes} processes, the same tablet": [0 for _ in every],
    }
    for name, tablets in works.items():
        barrier = SPAWN.Barrier(len(tablets))
        with SPAWN.Pool(len(tablets), _keep_barrier, (barrier,)) as pool:
            jobs = [(table.path, number, tablet, args) for number, tablet in enumerate(tablets)]
            found = pool.starmap(write_rows, jobs, chunksize=1)
        rates[name] = sum(rate for rate, _, _ in found)
        elapsed = [seconds for _, times, _ in found for seconds in times.elapsed]
        processor = sum(sum(times.processor) for _, times, _ in found) / len(elapsed) / args.batch
        line(f"{name}, rows/s", f"{rates[name]:,.0f}", f"processor {processor * 1e6:,.0f} µs a row")
        line(f"{name}, flush, median", f"{statistics.median(elapsed) * 1e3:,.2f} ms")
        line(f"{name}, flush, 99 %", f"{slowest_hundredth(elapsed) * 1e3:,.2f} ms")
        if len(tablets) > 1:
            turns = turns_of_others(np.array(elapsed), np.concatenate([ends for *_, ends in found]))
            worst, usual = int(turns.max()), statistics.median(turns)
            line(f"{name}, longest wait", f"{worst} turns of others", f"median {usual:.0f}")
    one, different, same = rates.values()
    line("different tablets / one process, rows/s", f"{different / one:.2f}")
    line("the same tablet / different tablets, rows/s", f"{same / different:.2f}")


def turns_of_others(elapsed: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return how many other flushes ended during each one; `ends` are moments of one clock."""
    in_order = np.sort(ends)
    begun = np.searchsorted(in_order, ends - elapsed, side="right")
    return np.searchsorted(in_order, ends, side="left") - begun


def write_rows(
    path: Path, number: int, tablet: int, args: argparse.Namespace
) -> tuple[float, Times, list[float]]:
    """Flush `batch` rows of a tablet again and again through a session, for some seconds.

    Returns the rows of a second, and the times and ends of flushes, with the buffering before them.
    """
    client = kudulite.connect(path.parent, background_maintenance=False)
    table, session, times = client.table(path.name), client.new_session(), Times()
    numbers = numbers_by_tablet(table, args.rows)[tablet]
    random = np.random.default_rng(number)
    made = make_rows(np.zeros(args.batch, np.int64), number).to_pylist()
    ends: list[float] = []

    def flush(keys: list[int]) -> None:
        for row, key in zip(made, keys, strict=True):
            session.apply(table.new_upsert(row | {KEY: key}))
        session.flush()

    def next_keys() -> list[int]:
        return [int(n) * KEY_STEP for n in random.choice(numbers, args.batch, replace=False)]

    flush(next_keys())
    assert _barrier is not None
    _barrier.wait()
    begin = time.perf_counter()
    while (seconds := time.perf_counter() - begin) < args.seconds:
        times.run(partial(flush, next_keys()))
        ends.append(time.monotonic())
    return len(times.elapsed) * args.batch / seconds, times, ends


# With the options of each and what they are if they are not given.
STEPS: dict[str, tuple[Callable[[argparse.Namespace, Path], None], dict[str, Any]]] = {
    "commit": (commit, {"rows": 5_000_000, "loads": 1, "commits": 200, "batch": 100}),
    "maintained": (
        maintained,
        {
            "rows": 1_000_000,
            "loads": 1,
            "commits": 1_000,
            "batch": 100,
            "pause": 0.0,
            "settle": 15.0,
        },
    ),
    "stream": (
        stream,
        {"rows": 3_000_000, "loads": 8, "commits": 1_000, "batch": 100, "repeat": 5},
    ),
    "log": (log, {"rows": 3_000_000, "loads": 1, "batch": 1_000, "log-mib": 64, "repeat": 5}),
    "processes": (
        processes,
        {"rows": 1_000_000, "loads": 1, "batch": 100, "processes": 8, "seconds": 10.0},
    ),
}


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = parser.add_subparsers(dest="name", required=True, metavar="STEP")
    for name, (run, options) in STEPS.items():
        summary = str(run.__doc__).splitlines()[0]
        one = names.add_parser(name, help=summary, description=summary)
        for option, default in options.items():
            one.add_argument(f"--{option}", type=type(default), default=default)
        one.add_argument("--tablets", type=int, default=8)
        one.add_argument("--folder", help="where the tables are made (default: the system's)")
        if name == "stream":
            help_ = "maintain the table meanwhile, as `connect` does"
            one.add_argument("--background", action="store_true", help=help_)
        if name == "commit":
            one.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kudulite-commits-", dir=args.folder) as folder:
        STEPS[args.name][0](args, Path(folder))


if __name__ == "__main__":
    main()
