"""Steps: the writes and reads of one store, in a process of its own, measured and verified.

    process of a store     load · reads · three writes · reads · past · rows · commits · series
    ├─ its own process     reads single rows of a store that it has just opened
    └─ its own process     aggregates by other engines, whose memory is not that of the store

A step is a line of JSON on stdout: {"step", "seconds", "cpu_seconds", "repeats", "peak_bytes"}, or
{"step", "error"}. A result that differs from the plan is an error. Verification is not part of the
seconds. Peak memory is the high-water mark of the process, which Linux can reset, so that
verification is not part of it either.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from stores.store import Store
from stores.workload import (
    COMMIT_ROWS,
    KEY,
    SCHEMA,
    SERIES_SCHEMA,
    Aggregate,
    Content,
    Plan,
    Workload,
    content_of,
)

# Reads are repeated until they took so long together; never more often than REPEATS times.
SECONDS_PER_STEP = 4.0
REPEATS = 7
NATIVE = "native"
READS_CLEAN = ("get_clean", "keys_clean", "range_clean", "aggregate_clean", f"{NATIVE}_clean")
READS_DIRTY = ("get_dirty", "keys_dirty", "range_dirty", "aggregate_dirty", f"{NATIVE}_dirty")
READS_PAST = ("aggregate_past", f"{NATIVE}_past", "changes_update", "changes_all")
WRITES = ("upsert", "update", "delete")
# As in the options of the command; "load" is always done.
STEPS = ("load", *READS_CLEAN, *WRITES, *READS_DIRTY, *READS_PAST, "single", "commits", "series")


class WrongResultError(Exception):
    """A store returned something else than the plan says."""


class StepRun:
    """Measures the chosen steps of one store."""

    def __init__(self, store: Store, workload: Workload, steps: Sequence[str], seconds: float):
        self.store, self.tables, self.plan = store, workload.tables, workload.plan
        self.steps = frozenset(steps)
        self.seconds = seconds
        self.moments: dict[str, Any] = {}

    def run(self, command: list[str]) -> None:
        """Run all steps; `command` with an option does reads in a process of its own."""
        self.store.open()
        self.command = command
        emit("caller", bytes=sum(table.nbytes for table in self.tables.values()))
        emit("start", peak_bytes=resident_bytes())
        rows = self.tables["rows"]
        if not self.measure("load", lambda: self.store.load(rows), self.whole("loaded")):
            return
        emit("size_clean", bytes=bytes_below(self.store.folder))
        self.reads("clean", "loaded")
        if self.steps & {*WRITES, *READS_DIRTY, *READS_PAST}:
            self.writes()
            self.reads("dirty", "deleted")
            self.past()
        if "single" in self.steps:
            self.single_rows()
        if "commits" in self.steps:
            self.commits()
        if "series" in self.steps:
            self.series()

    # -- groups of steps

    def reads(self, name: str, state_name: str) -> None:
        """Read by key, by range, and three columns of all rows."""
        state = self.plan.states[state_name]
        if f"get_{name}" in self.steps:
            self.gets(name)
        if f"keys_{name}" in self.steps:
            keys = pa.array(self.plan.keys, pa.int64())
            self.repeat(
                f"keys_{name}",
                lambda: self.store.rows_of_keys(keys),
                lambda found: check_rows(found, state.of_keys),
            )
        if f"range_{name}" in self.steps:
            for again in ("", "_again"):
                self.one_after_another(
                    f"range_{name}{again}",
                    [lambda r=r: self.store.rows_of_range(*r) for r in self.plan.ranges],
                    state.of_ranges,
                )
        if f"aggregate_{name}" in self.steps:
            self.repeat(
                f"aggregate_{name}",
                self.store.aggregate,
                lambda found: check_aggregate(found, state.aggregate),
            )
        self.native(name, state_name, None)

    def gets(self, name: str) -> None:
        """Read single rows in a new process: each key for the first time, then again."""
        self.in_process(f"get_{name}_cold", "--cold", "loaded" if name == "clean" else "deleted")

    def native(self, name: str, state: str, moment: Any) -> None:
        """Aggregate the same rows by other engines in a new process."""
        step = f"{NATIVE}_{name}"
        if step in self.steps and hasattr(self.store, "native_works"):
            self.in_process(step, "--native", name, state, json.dumps(moment))

    def in_process(self, step: str, *options: str) -> None:
        """Do reads in a process of its own, which prints their figures."""
        self.store.close()
        output = subprocess.run([*self.command, *options], capture_output=True, text=True)
        self.store.open()
        print(output.stdout, end="", flush=True)
        if output.returncode:
            emit(step, error=output.stderr.strip().splitlines()[-1])

    def writes(self) -> None:
        """Upsert, update and delete; a moment before and after each."""
        for write, state in zip(WRITES, ("upserted", "updated", "deleted"), strict=True):
            self.keep_moment(f"before {write}")
            work, rows = getattr(self.store, write), self.tables[write]
            self.measure(write, lambda work=work, rows=rows: work(rows), self.whole(state))
        self.keep_moment("end")
        emit("size_dirty", bytes=bytes_below(self.store.folder))

    def keep_moment(self, name: str) -> None:
        """Note the moment, if the store has moments."""
        try:
            self.moments[name] = self.store.moment()
        except NotImplementedError:
            self.moments[name] = None

    def past(self) -> None:
        """Read as of before the upsert, and the changes of the update and of all three writes."""
        before, loaded = self.moments["before upsert"], self.plan.states["loaded"]
        if before is None:
            return
        if "aggregate_past" in self.steps:
            self.repeat(
                "aggregate_past",
                lambda: self.store.aggregate(before),
                lambda found: check_aggregate(found, loaded.aggregate),
            )
        self.native("past", "loaded", before)
        windows = {
            "update": (self.moments["before update"], self.moments["before delete"]),
            "all": (before, self.moments["end"]),
        }
        for name, window in windows.items():
            if f"changes_{name}" in self.steps:
                self.repeat(
                    f"changes_{name}",
                    lambda window=window: self.store.changes(*window),
                    lambda found, name=name: self.check_changes(found, name),
                )

    def check_changes(self, found: Any, name: str) -> None:
        """Compare changes with the plan."""
        tables = self.store.changed_tables(found)
        check_rows(tables.written, self.plan.changes[name].written)
        check_rows(tables.deleted, self.plan.changes[name].deleted, pa.schema([SCHEMA.field(KEY)]))

    def single_rows(self) -> None:
        """Write rows one by one, each durable before the next, and read them back."""
        rows = self.tables["single"].to_pylist()
        works = [lambda row=row: self.store.write_one(row) for row in rows]
        count = self.one_after_another("single", works, None)
        self.read_back("single", self.tables["single"].slice(0, count))

    def commits(self) -> None:
        """Upsert a few random rows again and again, and read them back."""
        rows = self.tables["commits"]
        parts = [rows.slice(n, COMMIT_ROWS) for n in range(0, rows.num_rows, COMMIT_ROWS)]
        works = [lambda part=part: self.store.upsert_few(part) for part in parts]
        # The first one may import an engine, and pay for the load.
        count = self.one_after_another("commits", works, None, warm_ups=1)
        self.read_back("commits", rows.slice(0, count * COMMIT_ROWS))

    def read_back(self, step: str, written: pa.Table) -> None:
        """Compare the rows of some keys with those that were written last."""
        keys = written[KEY].combine_chunks()
        self.verify(step, lambda: check_rows(self.store.rows_of_keys(keys), content_of(written)))

    def series(self) -> None:
        """Load a table whose key is (series, time), and read ranges of time of some series."""
        rows, times = self.tables["series"], self.plan.times
        self.measure("load_series", lambda: self.store.load_series(rows), lambda _: None)
        works = [lambda s=s: self.store.rows_of_series(s, *times) for s in self.plan.series]
        self.one_after_another("series", works, self.plan.of_series, SERIES_SCHEMA)

    # -- measuring

    def whole(self, state: str) -> Callable[[object], None]:
        """Return the check of all rows of the store."""
        return lambda _: check_rows(self.store.everything(), self.plan.states[state].whole)

    def measure(
        self,
        step: str,
        work: Callable[[], Any],
        check: Callable[[Any], None],
        repeats: int = 1,
        warm_ups: int = 0,
    ) -> bool:
        """Run and time a step up to `repeats` times, then check the result; False on failure."""
        times = Times()
        try:
            reset_peak()
            for _ in range(warm_ups):
                work()
            while len(times.elapsed) < repeats and sum(times.elapsed) < self.seconds:
                found = None  # a result is freed before the next one
                found = times.run(work)
            peak = high_water_bytes()
        except NotImplementedError:
            return False
        except Exception as error:
            emit(step, error=f"{type(error).__name__}: {str(error)[:200]}")
            return False
        emit(step, **times.figures(), peak_bytes=peak)
        return self.verify(step, lambda: check(found))

    def repeat(self, step: str, work: Callable[[], Any], check: Callable[[Any], None]) -> None:
        """Measure a read several times, after an uncounted one, which may import an engine."""
        self.measure(step, work, check, REPEATS, warm_ups=1)

    def one_after_another(
        self,
        step: str,
        works: Iterable[Callable[[], Any]],
        expected: list[Content] | None,
        schema: pa.Schema = SCHEMA,
        warm_ups: int = 0,
    ) -> int:
        """Measure works that differ, each once; returns how many there was time for."""
        waiting, found = iter(works), []

        def run_next() -> None:
            found.append(next(waiting)())

        def check(_: None) -> None:
            for rows, content in zip(found, expected or (), strict=False):
                check_rows(rows, content, schema)

        self.measure(step, run_next, check, len(list(works)) - warm_ups, warm_ups)
        return len(found)

    def verify(self, step: str, check: Callable[[], None]) -> bool:
        """Report a wrong result of a step; whether it was right."""
        try:
            check()
        except Exception as error:
            emit(step, error=f"wrong result: {type(error).__name__}: {str(error)[:200]}")
            return False
        return True


def read_single_rows(store: Store, plan: Plan, state: str, seconds: float) -> None:
    """Open the store and read single rows by key, cold and then warm; prints their figures.

    Raises WrongResultError.
    """
    times = {"open": Times(), "cold": Times(), "warm": Times()}
    times["open"].run(store.open)
    rows: list[dict[str, Any]] = []
    for key in plan.get_keys:
        rows.append(times["cold"].run(lambda key=key: store.get(key)))
        if sum(times["cold"].elapsed) > seconds:
            break
    for _ in range(2):
        for key in plan.get_keys[: len(rows)]:
            times["warm"].run(lambda key=key: store.get(key))
    for row, expected in zip(rows, plan.states[state].of_gets, strict=False):
        check_rows(pa.Table.from_pylist([row], SCHEMA), expected)
    name = "clean" if state == "loaded" else "dirty"
    for step, found in times.items():
        emit(f"get_{name}_{step}", **found.figures())


def run_native(store: Store, plan: Plan, names: Sequence[str], seconds: float) -> None:
    """Aggregate by other engines, in turn with plain Parquet files of the same rows.

    `names` are those of the reads and of the state, and the moment; prints the figures. Raises
    WrongResultError.
    """
    name, state, moment = names
    store.open()
    folder = store.folder.parent / f"plain_{name}"
    works = store.native_works(folder, json.loads(moment))
    times = {work: Times() for work in works}
    # The first turn is not counted: one would pay for memory that another finds warm.
    for turn in range(REPEATS + 1):
        for work, run in works.items():
            found = times[work].run(run) if turn else run()
            check_aggregate(found, plan.states[state].aggregate)
        if turn and sum(sum(found.elapsed) for found in times.values()) > seconds * 5:
            break
    for work, found in times.items():
        emit(f"{NATIVE}_{name}_{work}", **found.figures())


class Times:
    """Elapsed seconds of runs of one step, and processor seconds of all threads."""

    def __init__(self) -> None:
        self.elapsed: list[float] = []
        self.processor: list[float] = []

    def run(self, work: Callable[[], Any]) -> Any:
        """Run and time; returns the result."""
        begin, used = time.perf_counter(), time.process_time()
        found = work()
        self.elapsed.append(time.perf_counter() - begin)
        self.processor.append(time.process_time() - used)
        return found

    def figures(self) -> dict[str, Any]:
        """Return the medians."""
        return {
            "seconds": statistics.median(self.elapsed),
            "cpu_seconds": statistics.median(self.processor),
            "repeats": len(self.elapsed),
        }


# -- checks


def check_rows(found: pa.Table, expected: Content, schema: pa.Schema = SCHEMA) -> None:
    """Raise WrongResultError if a table has other rows than it should."""
    content = content_of(found.select(schema.names).cast(schema))
    if content != expected:
        raise WrongResultError(f"{content.row_count:,} rows, expected {expected.row_count:,}")


def check_aggregate(found: Aggregate, expected: Aggregate) -> None:
    """Raise WrongResultError unless all sums agree, up to the rounding of their order."""
    if found.keys() != expected.keys():
        raise WrongResultError(f"groups {sorted(found)}, expected {sorted(expected)}")
    for mode, row in expected.items():
        if not all(map(lambda a, b: math.isclose(a, b, rel_tol=1e-9), found[mode], row)):
            raise WrongResultError(f"{mode}: {found[mode]}, expected {row}")


# -- the process


def emit(step: str, **figures: Any) -> None:
    """Print one line for the process that compares the stores."""
    print(json.dumps({"step": step, **figures}), flush=True)


def reset_peak() -> None:
    """Let the high-water mark begin at the memory of now."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def high_water_bytes() -> int:
    return _status("VmHWM")


def resident_bytes() -> int:
    return _status("VmRSS")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise AssertionError(f"no {name} in /proc/self/status")


def bytes_below(folder: Path) -> int:
    """Return the size of all files in a tree."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
