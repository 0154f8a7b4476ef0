"""Writers: many processes that commit small batches to one table, and none of whose rows is lost.

Each writer has numbers of its own, those that leave its own number as the remainder of the division
by the count of writers. A batch upserts 1 to 100 rows, about half of them rows that it has written
before. The writer notes the version of each row when the commit has returned. At the end a new
process reads all rows and compares them with what all writers have noted: a row that is missing,
doubled, older than its acknowledged version or nobody's is an error. A commit that the store
refuses because of another one is repeated, and its wait is that of all tries.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from remote.model import ABSENT, Model, rows_of
from remote.proxy import ProxyControl
from remote.steps import TABLE, store_class
from remote.store import Place
from remote.traffic import STANDARD, Traffic

BATCH_ROWS_MAX = 100
TRIES_MAX = 1_000
_START_SECONDS = 300.0  # the time that all writers have to open the table
_NUMBERS_PER_WRITER = 200_000


@dataclass
class Written:
    """The acknowledged commits of one writer."""

    versions: np.ndarray  # by number / count of writers
    waits: list[float] = field(default_factory=list)
    rows: int = 0
    conflicts: int = 0
    begin: float = 0.0
    ends: list[float] = field(default_factory=list)
    error: str | None = None


@dataclass(frozen=True)
class Crowd:
    """The arguments that all writers have; picklable."""

    store: str
    place: Place
    count: int
    seconds: float


_barrier: Barrier | None = None


def _keep_barrier(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def _write(crowd: Crowd, number: int, first: int) -> Written:
    """Commit batches until the time is over; an error ends the writer, and is in the result."""
    store, random = store_class(crowd.store)(crowd.place), np.random.default_rng(number)
    written = Written(np.full(_NUMBERS_PER_WRITER, ABSENT, np.int32))
    store.open(TABLE, is_maintained=True)
    used, version = 0, 0
    assert _barrier is not None
    _barrier.wait(_START_SECONDS)
    written.begin = time.monotonic()
    while time.monotonic() - written.begin < crowd.seconds:
        version += 1
        count = int(random.integers(1, BATCH_ROWS_MAX + 1))
        old = random.choice(used, min(used, count // 2), replace=False)
        places = np.concatenate([old, np.arange(used, used + count - len(old))]).astype(np.int64)
        rows = rows_of(first + places * crowd.count + number, version)
        try:
            wait = _commit(store.upsert, store.is_conflict, store.look, rows, written)
        except Exception as error:
            written.error = f"writer {number}, commit {version}: {type(error).__name__}: {error}"
            return written
        used = max(used, int(places.max()) + 1)
        written.versions[places] = version
        written.waits.append(wait)
        written.ends.append(time.monotonic())
        written.rows += count
    store.close()
    return written


def _commit(
    write: Callable[[pa.Table], None],
    is_conflict: Callable[[Exception], bool],
    look: Callable[[], Any],
    rows: pa.Table,
    written: Written,
) -> float:
    """Write until it is done; returns the seconds."""
    begin = time.monotonic()
    for _ in range(TRIES_MAX):
        try:
            write(rows)
            return time.monotonic() - begin
        except Exception as error:
            if not is_conflict(error):
                raise
            written.conflicts += 1
            look()
    raise TimeoutError(f"refused {TRIES_MAX:,} times because of other commits")


def _verify(crowd: Crowd, model_path: Path) -> int:
    """Compare all rows with the model, in a process that has not written; returns their number."""
    store, model = store_class(crowd.store)(crowd.place), Model(model_path)
    store.open(TABLE)
    model.check(store.scan(), model.present)
    return len(model.present)


def load_for(crowd: Crowd, model_path: Path, row_count: int) -> Model:
    """Load a table of so many rows, whose numbers are below those of the writers."""
    size = row_count + _NUMBERS_PER_WRITER * crowd.count
    model, numbers = Model.create(model_path, size), np.arange(row_count)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(_load, crowd, row_count).result()
    model.note(numbers, 0)
    return model


def _load(crowd: Crowd, row_count: int) -> None:
    store_class(crowd.store)(crowd.place).load(TABLE, rows_of(np.arange(row_count), 0))


def run_writers(crowd: Crowd, model: Model, control: ProxyControl | None) -> dict[str, Any]:
    """Run the writers on a table that is loaded; return the figures."""
    spawn = multiprocessing.get_context("spawn")
    barrier, first = spawn.Barrier(crowd.count), len(model.present)
    if control is not None:
        control.take()
    with ProcessPoolExecutor(crowd.count, spawn, _keep_barrier, (barrier,)) as pool:
        jobs = [pool.submit(_write, crowd, number, first) for number in range(crowd.count)]
        found = [job.result() for job in jobs]
    traffic = Traffic.of([] if control is None else control.take())
    for number, written in enumerate(found):
        places = np.flatnonzero(written.versions != ABSENT)
        model.versions[first + places * crowd.count + number] = written.versions[places]
    np.save(model.path, model.versions)
    with ProcessPoolExecutor(1, spawn) as pool:
        rows = pool.submit(_verify, crowd, model.path).result()
    return _figures(found, traffic) | {"rows_verified": rows}


def _figures(found: list[Written], traffic: Traffic) -> dict[str, Any]:
    waits = sorted(wait for written in found for wait in written.waits)
    if not waits:
        return {"commits": 0, "errors": [written.error for written in found if written.error]}
    ends = np.sort([end for written in found for end in written.ends])
    turns = 0
    for written in found:
        until = np.array(written.ends)
        passed = np.searchsorted(ends, until) - np.searchsorted(ends, until - written.waits)
        turns = max(turns, *passed.tolist(), 0)
    median = statistics.median(waits)
    # The last commits may end long after the time is over.
    seconds = float(ends[-1]) - min(written.begin for written in found)
    return {
        "commits": len(waits),
        "seconds": seconds,
        "commits_per_second": len(waits) / seconds,
        "rows_per_second": sum(written.rows for written in found) / seconds,
        "wait_median": median,
        "wait_99": waits[int(len(waits) * 0.99)],
        "wait_longest": waits[-1],
        "wait_longest_by_median": waits[-1] / median,
        "turns_of_others": turns,
        "commits_of_slowest_writer": min(len(written.waits) for written in found),
        "commits_of_fastest_writer": max(len(written.waits) for written in found),
        "conflicts": sum(written.conflicts for written in found),
        "requests_per_commit": traffic.requests / len(waits),
        "kinds": traffic.kinds,
        "dollars_per_1000": traffic.dollars(STANDARD) / len(waits) * 1_000,
        "errors": [written.error for written in found if written.error],
    }
