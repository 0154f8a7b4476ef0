"""Steps: the reads and writes of one store, each in a fresh process or in one that is warm.

    process        cold (opens the table, then)      warm, in the same process
    opening        open                              look for a newer version: there is none, or
                                                     another process has committed
    scanning       scan of 3 columns                 the same scan
    aggregating    aggregate                         the same aggregate
    finding        one key                           other keys
    finding many   10,000 keys                       other 10,000 keys
    ranging        1,000 neighbouring keys           other ranges
    committing     upsert of 100 random rows         others; changes of the last; appends; one row
    upserting                                        upsert of a tenth of the rows
    scanning, finding again, of the table as the upsert leaves it
    listing        list of 100 tables

A cold step begins in a process that has imported its packages and has not used the store. A warm
one comes after the cold one of its process, and so has what that has cached. Steps that read are
repeated in several fresh processes. Every answer is compared with the model (model.py), all rows
after the commits and after the upsert, and none of this is measured.

A process is a `Worker`; its other half, `StoreSteps`, measures. A step's figures have its name, its
seconds and its traffic, or its error; another step does not fail because of it.
"""

from __future__ import annotations

import importlib
import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from stores.workload import KEY_STEP

from remote.model import SCANNED, Model, WrongAnswerError, rows_of
from remote.proxy import ProxyControl
from remote.store import Place, RemoteStore
from remote.traffic import Traffic, figures

# name: module and class
STORES = {
    "kudulite": ("kudulite_store", "KuduliteStore"),
    "delta": ("delta_store", "DeltaStore"),
    "lance": ("lance_store", "LanceStore"),
}
TABLE = "rows"
COMMIT_ROWS = 100
MANY_KEYS = 10_000
RANGE_ROWS = 1_000
TABLE_COUNT = 100

# step: label
STEPS = {
    "load": "load, rows in random order",
    "open_cold": "open, cold",
    "look": "look for a newer version",
    "look_found": "the same, after commits of another process",
    "scan_cold": "scan of 3 columns, cold",
    "scan_warm": "the same scan, warm",
    "aggregate_cold": "aggregate of 3 columns, cold",
    "aggregate_warm": "the same aggregate, warm",
    "key_cold": "one key, cold",
    "key_warm": "one other key, warm",
    "keys_cold": "10,000 keys, cold",
    "keys_warm": "10,000 other keys, warm",
    "range_cold": "1,000 neighbouring keys, cold",
    "range_warm": "1,000 other neighbouring keys, warm",
    "commit_cold": "commit of 100 upserted random rows, cold",
    "commit_warm": "commit of 100 upserted random rows, warm",
    "changes": "changes of the last commit",
    "append": "append of 100 rows",
    "flush_one": "one row through a session",
    "upsert": "upsert of 10 %",
    "scan_dirty_cold": "scan of 3 columns after the upsert, cold",
    "scan_dirty_warm": "the same scan, warm",
    "key_dirty_cold": "one key after the upsert, cold",
    "key_dirty_warm": "one other key, warm",
    "list": "list of 100 tables, cold",
}


def store_class(name: str) -> type[RemoteStore]:
    """Return the class of a store. Raises ImportError if a package of it is not installed."""
    module, class_name = STORES[name]
    return getattr(importlib.import_module(f"remote.{module}"), class_name)


@dataclass(frozen=True)
class Setup:
    """The arguments of a process; picklable."""

    store: str
    place: Place
    model_path: Path
    row_count: int
    repeat: int
    control_port: int | None  # of the proxy; None for a directory


@dataclass
class Runs:
    """The runs of one step so far."""

    seconds: list[float] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    error: str | None = None

    def add(self, other: Runs) -> None:
        """Add the runs of another process."""
        self.seconds += other.seconds
        self.traffic += other.traffic
        self.error = self.error or other.error

    def figures(self) -> dict[str, Any]:
        """Return the figures of all runs, or the first error."""
        if self.error is not None or not self.seconds:
            return {"error": self.error or "was not run"}
        return figures(self.seconds, self.traffic)


class StoreSteps:
    """The steps of a store, in a process that has not used it before."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._store = store_class(setup.store)(setup.place)
        self._model = Model(setup.model_path)
        self._runs: dict[str, Runs] = {}
        port = setup.control_port
        self._control = None if port is None else ProxyControl(port)
        # pyarrow imports pandas, where it is, at the first conversion of Python objects.
        pa.array([0])

    # -- groups of steps, each a method that a Worker names

    def load(self) -> None:
        """Load all rows, in random order."""
        numbers = np.random.default_rng(7).permutation(self._setup.row_count)
        rows = rows_of(numbers, 0)
        if self._measure("load", lambda: self._store.load(TABLE, rows)):
            self._model.note(numbers, 0)

    def open(self) -> None:
        """Open the table, and look for a newer version, of which there is none."""
        self._measure("open_cold", self._open)
        self._version = self._store.look()
        for _ in range(self._setup.repeat * 3):
            self._measure("look", self._store.look, partial(_check_equal, self._version))

    def look_found(self, seed: int) -> None:
        """Look for a newer version after `commit` in another process, and read a row of it."""
        self._model = Model(self._setup.model_path)
        numbers = np.random.default_rng(seed).choice(
            self._setup.row_count, COMMIT_ROWS, replace=False
        )

        def check(version: Any) -> None:
            if version == self._version:
                raise WrongAnswerError(f"version {version} as before, expected a newer one")
            self._model.check(self._row(numbers[:1]), numbers[:1])

        self._measure("look_found", self._store.look, check)

    def scan(self, name: str = "scan") -> None:
        """Scan three columns, then again."""
        work, check = partial(self._store.scan, SCANNED), self._check_scan
        self._measure(f"{name}_cold", lambda: (self._open(), work())[1], check)
        for _ in range(self._setup.repeat):
            self._measure(f"{name}_warm", work, check)

    def aggregate(self) -> None:
        """Aggregate, then again."""
        work, check = self._store.aggregate, self._model.check_aggregate
        self._measure("aggregate_cold", lambda: (self._open(), work())[1], check)
        for _ in range(self._setup.repeat):
            self._measure("aggregate_warm", work, check)

    def key(self, name: str, seed: int) -> None:
        """Read the rows of some keys, one after the other."""
        self._reads(f"key{name}", seed, 1, self._setup.repeat * 3, self._row)

    def keys(self, seed: int) -> None:
        """Read the rows of many keys, then of others."""
        count = min(MANY_KEYS, self._setup.row_count // 10)
        read = self._store.rows_of_keys
        self._reads("keys", seed, count, self._setup.repeat, lambda found: read(found * KEY_STEP))

    def _reads(
        self,
        name: str,
        seed: int,
        count: int,
        repeat: int,
        read: Callable[[np.ndarray], pa.Table],
    ) -> None:
        """Read rows of random numbers, first in the process and then others."""
        random = np.random.default_rng(seed)
        for number in range(1 + repeat):
            numbers = random.choice(self._setup.row_count, count, replace=False)
            self._measure(
                f"{name}_{'warm' if number else 'cold'}",
                lambda n=numbers, is_cold=not number: (is_cold and self._open(), read(n))[1],
                lambda found, n=numbers: self._model.check(found, n),
            )

    def _row(self, numbers: np.ndarray) -> pa.Table:
        return self._store.row(int(numbers[0]) * KEY_STEP)

    def range(self, seed: int) -> None:
        """Read rows of neighbouring keys, then of others."""
        random = np.random.default_rng(seed)
        for number in range(1 + self._setup.repeat):
            low = int(random.integers(self._setup.row_count - RANGE_ROWS))
            bounds = low * KEY_STEP, (low + RANGE_ROWS) * KEY_STEP
            self._measure(
                f"range_{'warm' if number else 'cold'}",
                lambda b=bounds, is_cold=not number: (
                    is_cold and self._open(),
                    self._store.rows_of_range(*b),
                )[1],
                lambda found, n=low: self._model.check(found, np.arange(n, n + RANGE_ROWS)),
            )

    def commit(self, seed: int, warm_count: int) -> None:
        """Upsert a few random rows, first in the process and then others."""
        random = np.random.default_rng(seed)
        for number in range(1 + warm_count):
            numbers = random.choice(self._setup.row_count, COMMIT_ROWS, replace=False)
            version, step = seed + number, f"commit_{'warm' if number else 'cold'}"
            before = self._store.look() if number else None
            if not self._write(step, self._store.upsert, numbers, version, is_cold=not number):
                return
            if number:
                self._changes(before, numbers)

    def _changes(self, before: Any, numbers: np.ndarray) -> None:
        """Read the changes of the last commit."""

        def check(changes: Any) -> None:
            found = self._store.changed_rows(changes)
            self._model.check(found.written, numbers)
            _check_equal(0, found.deleted_count)

        self._measure("changes", lambda: self._store.changes(before), check)

    def append(self, version: int) -> None:
        """Append a few rows with new keys, and write one row through a session."""
        self._open()
        next_number = int(self._model.present[-1]) + 1
        for _ in range(self._setup.repeat):
            numbers = np.arange(next_number, next_number + COMMIT_ROWS)
            next_number += COMMIT_ROWS
            if not self._write("append", self._store.append, numbers, version):
                return
        random = np.random.default_rng(version)
        for number in range(self._setup.repeat):
            numbers = random.choice(self._setup.row_count, 1)
            flush = lambda rows: self._store.flush_one(rows.to_pylist()[0])  # noqa: E731
            if not self._write("flush_one", flush, numbers, version + 1 + number):
                return

    def upsert(self, version: int) -> None:
        """Upsert a tenth of the rows; a tenth of these are new."""
        self._open()
        random, count = np.random.default_rng(version), self._setup.row_count
        old = random.choice(count, count * 9 // 100, replace=False)
        new = int(self._model.present[-1]) + 1 + np.arange(count // 100)
        numbers = random.permutation(np.concatenate([old, new]))
        self._write("upsert", self._store.upsert, numbers, version)

    def verify(self, step: str) -> None:
        """Compare all rows with the model; an error is one of a step."""
        try:
            self._open()
            self._model.check(self._store.scan(), self._model.present)
        except Exception as error:
            self._runs.setdefault(step, Runs()).error = f"afterwards: {_text_of(error)}"

    def make_tables(self) -> None:
        """Make the tables that are listed, without a delay."""
        delay = None if self._control is None else self._control.set_delay(0.0)
        self._store.make_tables(TABLE_COUNT, rows_of(np.arange(10), 0))
        if self._control is not None and delay is not None:
            self._control.set_delay(delay)

    def list(self) -> None:
        """List the tables."""
        expected = {f"many-{number}" for number in range(TABLE_COUNT)}

        def check(found: list[str]) -> None:
            names = {name.removesuffix(".lance") for name in found}
            _check_equal(expected, names - {TABLE})

        self._measure("list", self._store.list_tables, check)

    # -- one step

    def _open(self) -> None:
        self._store.open(TABLE)

    def _check_scan(self, found: pa.Table) -> None:
        self._model.check(found, self._model.present, SCANNED)

    def _write(
        self,
        step: str,
        write: Callable[[pa.Table], None],
        numbers: np.ndarray,
        version: int,
        *,
        is_cold: bool = False,
    ) -> bool:
        """Write rows of a version; a row of them is read back, not measured."""
        rows = rows_of(numbers, version)

        def work() -> None:
            if is_cold:
                self._open()
            write(rows)

        def check(_found: None) -> None:
            self._model.note(numbers, version)
            self._model.check(self._row(numbers[:1]), numbers[:1])

        return self._measure(step, work, check)

    def _measure(
        self, step: str, work: Callable[[], Any], check: Callable[[Any], object] | None = None
    ) -> bool:
        """Run and note a step, and check its answer; returns whether it was right."""
        runs = self._runs.setdefault(step, Runs())
        if runs.error is not None:
            return False
        if self._control is not None:
            self._control.take()
        begin = time.perf_counter()
        try:
            found = work()
            runs.seconds.append(time.perf_counter() - begin)
            if self._control is not None:
                runs.traffic.append(Traffic.of(self._control.take()))
            if check is not None:
                check(found)
        except Exception as error:
            runs.error = _text_of(error)
        return runs.error is None

    def taken_runs(self) -> dict[str, Runs]:
        """Return the runs since the last call."""
        runs, self._runs = self._runs, {}
        return runs


def _check_equal(expected: object, found: object) -> None:
    if found != expected:
        raise WrongAnswerError(f"{str(found)[:200]}, expected {str(expected)[:200]}")


def _text_of(error: Exception) -> str:
    """Return the first line of an error, or the trace of one that the benchmark has made."""
    if isinstance(error, AssertionError | AttributeError | NameError | TypeError):
        return traceback.format_exc(limit=-3)
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


# -- processes

_steps: StoreSteps | None = None


def _begin(setup: Setup) -> None:
    global _steps
    _steps = StoreSteps(setup)


def _run(method: str, arguments: tuple[Any, ...]) -> dict[str, Runs]:
    assert _steps is not None
    getattr(_steps, method)(*arguments)
    return _steps.taken_runs()


class Worker:
    """A process with a store that it has not used; its runs are added to those of all processes."""

    def __init__(self, pool: ProcessPoolExecutor, all_runs: dict[str, Runs]) -> None:
        self._pool, self._all_runs = pool, all_runs

    def run(self, method: str, *arguments: Any) -> None:
        """Run a method of StoreSteps in the process."""
        for step, runs in self._pool.submit(_run, method, arguments).result().items():
            self._all_runs.setdefault(step, Runs()).add(runs)


@contextmanager
def worker(setup: Setup, all_runs: dict[str, Runs]) -> Iterator[Worker]:
    """Start a process and end it."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, _begin, (setup,)) as pool:
        yield Worker(pool, all_runs)


def run_all(setup: Setup, note: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    """Run all steps of a store in new processes; return their figures by step."""
    runs: dict[str, Runs] = {}

    def run(method: str, *arguments: Any, process: Worker | None = None) -> None:
        note(method)
        try:
            if process is not None:
                process.run(method, *arguments)
                return
            with worker(setup, runs) as new:
                new.run(method, *arguments)
        except BrokenProcessPool:
            runs.setdefault(method, Runs()).error = "the process ended"

    run("load")
    if runs["load"].error is None:
        for seed in range(setup.repeat):
            run("scan")
            run("aggregate")
            run("key", "", seed)
            run("keys", seed)
            run("range", seed)
        for seed in range(1_000, 1_000 * (setup.repeat + 1), 1_000):
            with worker(setup, runs) as reader:
                run("open", process=reader)
                run("commit", seed, setup.repeat)
                run("look_found", seed, process=reader)
        run("verify", "commit_warm")
        run("append", 100_000)
        run("verify", "append")
        run("upsert", 200_000)
        run("verify", "upsert")
        for seed in range(setup.repeat):
            run("scan", "scan_dirty")
            run("key", "_dirty", 100 + seed)
        run("make_tables")
        for _ in range(setup.repeat):
            run("list")
    # A group of steps that ended with its process is not one of them.
    return {step: runs[step].figures() for step in (*STEPS, *runs) if step in runs}
