"""Trials that try to break a table, by seed: each seed is a process of its own, and gives a count.

    state = run_trials("fault points", 5_000, first_seed=1, processes=2, folder=…, record=file)

A process that ends by a signal, does not end in time, or finds anything wrong is an AssertionError
that names trial and seed. A record is a file with the seeds that have ended, by trial:

    {"fault points": {"count": 113, "seconds": 9.4, "seeds": "1-6, 8"}}

Seeds of the record are not run again, and their counts count. So a long run can be stopped at any
time and continued later, by one run at a time.

**Invariants**: this process starts no thread before its children are forked.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import itertools
import json
import multiprocessing
import os
import random
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path

from kudulite.client.client import Client
from tests.crash import test_kill_points as bulk_cases
from tests.crash import test_power_loss as power_loss
from tests.crash import test_upkeep_kills as upkeep_cases
from tests.crash import test_wal_kills as row_cases
from tests.support.doubles.killing_storage import KillingStorage, ran_to_its_end
from tests.support.machines.file_mutations import FileMutations
from tests.support.machines.history_steps import Steps, setup_of, take
from tests.support.machines.killed_writer import KILLS_ON_ONE_TABLE, kill_again_and_again
from tests.support.machines.linear_histories import check_history
from tests.support.machines.sqlite_machine import SqliteMachine
from tests.support.machines.store_trials import run_on_store
from tests.support.tables.core_tables import environment, expect_clean, stored

# Of one seed.
POWER_STATES, MUTATIONS, SQLITE_STEPS, MODEL_OPERATIONS = 30, 1_000, 1_000, 300
HISTORIES, HISTORY_CALLS = 5, 40
# On an idle machine a seed takes some seconds.
SEED_SECONDS_MAX = 900.0
# Imported late by the engine and by pyarrow: half the time of a short seed, if each one did it.
IMPORTED_LATE = ("kudulite.model.condition_text", "pandas")


def lose_power(folder: Path, seed: int) -> int:
    """Some states of one operation after the other."""
    names = list(power_loss.CASES)
    case = power_loss.CASES[names[seed % len(names)]]
    return power_loss.lose_power(case, folder / "case", count=POWER_STATES, seed=seed)


def lose_power_after_kill(folder: Path, seed: int) -> int:
    """A process is killed at an event, another one writes, power is lost."""
    pairs = list(itertools.product(power_loss.KILLED_CASES, power_loss.NEXT))
    case, following = pairs[seed % len(pairs)]
    return power_loss.lose_power_after_kill(
        case, following, folder / "case", every=11, first=seed % 11
    )


# -- fault points: one operation is killed before each durable step


def more(client: Client, chance: random.Random) -> None:
    """More rows, files and records of the log, with keys that no operation expects to be absent."""
    for _ in range(chance.randrange(6) if client.list_tables() else 0):
        keys = chance.sample(range(40, 95), chance.randrange(1, 6))
        table, value = client.table("t"), chance.randrange(1000)
        step = chance.choice(("rows", "rows", "batch", "flush", "compact"))
        if step == "rows":
            row_cases.flush_rows(client, value, keys)
        elif step == "batch":
            table.upsert([{"k": key, "v": value} for key in keys])
        elif step == "flush":
            table.flush()
        else:
            table.compact()


def kill_bulk(case: str, how: str, folder: Path, chance: random.Random) -> int:
    """A bulk write, or an operation on whole tables; returns the number of steps."""
    prepare, write = bulk_cases.CASES[case]
    base, new = folder / "base", folder / "new"
    prepare(Client(base, environment()))
    more(Client(base, environment()), chance)
    shutil.copytree(base, new)
    counting = KillingStorage()
    write(Client(new, environment(counting)))
    states = [bulk_cases.state(base), bulk_cases.state(new)]
    for steps in range(counting.count):
        root = folder / "killed"
        shutil.copytree(base, root)
        bulk_cases.run_killed(root, write, steps, how)
        assert bulk_cases.state(root) in states, (case, how, steps)
        bulk_cases.expect_whole_and_writable(root)
        expect_clean(root)
        shutil.rmtree(root)
    return counting.count


def kill_rows(case: str, way: str, folder: Path, chance: random.Random) -> int:
    """Rows through the log, or an operation on rows that are in it."""
    prepare, write = row_cases.CASES[case]
    base, new = folder / "base", folder / "new"
    prepare(row_cases.opened(base))
    more(row_cases.opened(base), chance)
    before = row_cases.opened(base).table("t").current_timestamp()
    shutil.copytree(base, new)
    states, steps = row_cases.states_of(case, new, write)
    count = 0
    for number, step in enumerate(steps):
        if way in row_cases.TORN and step != "append":
            continue
        root = folder / "killed"
        shutil.copytree(base, root)
        row_cases.run_killed(root, write, number, way)
        assert stored(row_cases.opened(root).table("t")) in states, (case, way, number)
        assert stored(row_cases.opened(root).table("t"), before) == states[0], (case, way, number)
        row_cases.expect_whole_and_writable(root)
        shutil.rmtree(root)
        count += 1
    return count


def kill_upkeep(case: str, how: str, folder: Path, chance: random.Random) -> int:
    """Maintenance, a purge, a tag, a dropped range."""
    prepare, work = upkeep_cases.CASES[case]
    prepared = upkeep_cases.Prepared(folder / "base")
    prepare(prepared)
    new = folder / "new"
    shutil.copytree(prepared.root, new)
    counting = KillingStorage()
    work(prepared.client(counting, new))
    states = [prepared.state(prepared.root), prepared.state(new)]
    # Many of the later steps remove one file after the other.
    first, every = chance.randrange(3), 1 if counting.count < upkeep_cases.STEPS_ALL else 3
    places = range(first if every > 1 else 0, counting.count, every)
    for steps in places:
        root = folder / "killed"
        shutil.copytree(prepared.root, root)
        dying = prepared.client(KillingStorage(steps, exits=how == "exit"), root)
        ran_to_its_end(partial(work, dying), in_child=how == "exit")
        for part in upkeep_cases.parts_of(case):
            found = [part(rows) for rows in prepared.state(root)]
            assert found in [[part(rows) for rows in state] for state in states], (case, how, steps)
        prepared.client(root=root).table("t").check().raise_if_bad()
        work(prepared.client(root=root))
        expect_clean(root, prepared.clock)
        assert prepared.state(root) == states[1], (case, how, steps)
        shutil.rmtree(root)
    return len(places)


KILLED: list[Callable[[Path, random.Random], int]] = [
    *(partial(kill_bulk, *each) for each in itertools.product(bulk_cases.CASES, ("exit", "error"))),
    *(partial(kill_rows, *each) for each in itertools.product(row_cases.CASES, row_cases.WAYS)),
    *(
        partial(kill_upkeep, *each)
        for each in itertools.product(upkeep_cases.CASES, ("exit", "error"))
    ),
]


def die_at_steps(folder: Path, seed: int) -> int:
    """One operation after the other, on another table each time round."""
    # A stride without a common factor: the kinds of operations alternate.
    return KILLED[seed * 37 % len(KILLED)](folder, random.Random(seed))


# -- processes, models, mutations


def kill(folder: Path, seed: int) -> int:
    """A writer is killed by the system at random moments."""
    return kill_again_and_again(folder, KILLS_ON_ONE_TABLE, seed).kills


def model(folder: Path, seed: int) -> int:
    """Random writes, maintenance, alterations and reads of the past equal a dictionary."""
    made = Steps(setup_of(seed), seed)
    steps = made.make(MODEL_OPERATIONS)
    error = take(folder / "table", setup_of(seed), steps, lambda machine: None)
    assert error is None, error
    return made.operation_count


def linear(folder: Path, seed: int) -> int:
    """Eight processes on six keys."""
    for number in range(HISTORIES):
        check_history(folder / str(number), seed * HISTORIES + number, HISTORY_CALLS)
    return HISTORIES


def sqlite(folder: Path, seed: int) -> int:
    """Operations and queries that SQLite takes as well."""
    return SqliteMachine(folder / "db", seed).run(SQLITE_STEPS)


def mutate(is_sealed: bool, folder: Path, seed: int) -> int:
    """Bytes of files change, or their content with all checksums."""
    FileMutations(folder).run(MUTATIONS, seed=seed, is_sealed=is_sealed)
    return MUTATIONS


@dataclass(frozen=True)
class Trial:
    """The work of one seed in an empty folder, and the counts of a quick and of a full run."""

    run: Callable[[Path, int], int]
    quick_count: int
    full_count: int


TRIALS = {
    "power-loss states": Trial(lose_power, 900, 18_000),
    "power-loss states after a kill": Trial(lose_power_after_kill, 200, 2_000),
    "fault points": Trial(die_at_steps, 2_000, 50_000),
    "kills": Trial(kill, 50, 1_000),
    "linearizable histories": Trial(linear, 50, 500),
    "model operations": Trial(model, 3_000, 30_000),
    "differential operations": Trial(sqlite, 20_000, 1_000_000),
    "raw mutations": Trial(partial(mutate, False), 10_000, 1_000_000),
    "sealed mutations": Trial(partial(mutate, True), 10_000, 200_000),
    "store: histories": Trial(partial(run_on_store, "histories"), 8, 500),
    "store: lost answers": Trial(partial(run_on_store, "lost answers"), 100, 10_000),
    "store: kills before requests": Trial(partial(run_on_store, "killed requests"), 50, 2_000),
    "store: kills": Trial(partial(run_on_store, "kills"), 10, 100),
    "store: linearizable histories": Trial(partial(run_on_store, "linear"), 2, 50),
    "store: batches of 16 processes": Trial(partial(run_on_store, "commits"), 160, 2_000),
}


# -- running them


@dataclass
class Run:
    """The seeds of one trial that have ended, in this run and in those before.

    `seconds` are those of processors: of the seeds, and of processes that they have waited for.
    """

    trial: str
    count: int = 0
    seconds: float = 0.0
    seeds: set[int] = field(default_factory=set)

    def add(self, seed: int, count: int, seconds: float) -> None:
        """Add a seed."""
        self.seeds.add(seed)
        self.count += count
        self.seconds += seconds


def recorded(record: Path | None) -> dict[str, Run]:
    """The runs of a record, by trial."""
    if record is None or not record.exists():
        return {}
    runs = json.loads(record.read_text())
    return {
        trial: Run(trial, run["count"], run["seconds"], _parsed_seeds(run["seeds"]))
        for trial, run in runs.items()
    }


def note(run: Run, record: Path) -> None:
    """Replace a run in a record."""
    runs = recorded(record) | {run.trial: run}
    fields = {
        trial: {
            "count": each.count,
            "seconds": round(each.seconds),
            "seeds": _written_seeds(each.seeds),
        }
        for trial, each in runs.items()
    }
    new = record.with_suffix(".new")
    new.write_text(json.dumps(fields, indent=2) + "\n")
    new.replace(record)


def _written_seeds(seeds: set[int]) -> str:
    """Write seeds as ranges, `1-6, 8`."""
    firsts = sorted(seed for seed in seeds if seed - 1 not in seeds)
    lasts = sorted(seed for seed in seeds if seed + 1 not in seeds)
    return ", ".join(
        f"{first}-{last}" if last > first else f"{first}"
        for first, last in zip(firsts, lasts, strict=True)
    )


def _parsed_seeds(text: str) -> set[int]:
    seeds: set[int] = set()
    for part in filter(None, text.split(", ")):
        first, _, last = part.partition("-")
        seeds.update(range(int(first), int(last or first) + 1))
    return seeds


@dataclass
class _Child:
    seed: int
    place: Path
    process: ForkProcess
    begin: float


def run_trials(
    trial: str,
    count: int,
    *,
    first_seed: int,
    processes: int,
    folder: Path,
    record: Path | None = None,
    deadline: float = float("inf"),
) -> Run:
    """Run seeds from `first_seed` on until `count` is reached, or `time.monotonic` the deadline."""
    run = recorded(record).get(trial, Run(trial))
    seeds = (seed for seed in itertools.count(first_seed) if seed not in run.seeds)
    running: list[_Child] = []
    for module in IMPORTED_LATE:
        importlib.import_module(module)
    gc.freeze()  # a child that collects garbage would copy the pages of all modules
    try:
        # Seeds that run will add about as much as each of those before did.
        while True:
            mean = run.count / len(run.seeds) if run.seeds else 1.0
            wanted = run.count + len(running) * mean < count and time.monotonic() < deadline
            if wanted and len(running) < processes:
                running.append(_started(trial, next(seeds), folder))
            elif running:
                for child in _ended(running, trial):
                    running.remove(child)
                    _take(child, run, record)
            elif not wanted:
                return run
    finally:
        for child in running:
            child.process.kill()
            child.process.join()


def _started(trial: str, seed: int, folder: Path) -> _Child:
    place = folder / f"{trial.replace(' ', '-')}-{seed}"
    (place / "files").mkdir(parents=True)
    process = multiprocessing.get_context("fork").Process(
        target=_run_seed, args=(trial, seed, place)
    )
    process.start()
    return _Child(seed, place, process, time.monotonic())


def _run_seed(trial: str, seed: int, place: Path) -> None:
    faulthandler.enable()
    try:
        count = TRIALS[trial].run(place / "files", seed)
        result: dict[str, float | str] = {"count": count, "seconds": round(sum(os.times()[:4]), 2)}
    except BaseException:
        result = {"error": traceback.format_exc()}
    (place / "result.json").write_text(json.dumps(result))


def _ended(running: list[_Child], trial: str) -> Iterator[_Child]:
    wait([child.process.sentinel for child in running], timeout=1.0)
    for child in list(running):
        if not child.process.is_alive():
            yield child
        elif time.monotonic() - child.begin > SEED_SECONDS_MAX:
            raise AssertionError(
                f"{trial}, seed {child.seed}: no end after {SEED_SECONDS_MAX:g} s{_last(child)}"
            )


def _take(child: _Child, run: Run, record: Path | None) -> None:
    child.process.join()
    path = child.place / "result.json"
    where = f"{run.trial}, seed {child.seed}"
    assert path.exists(), f"{where}: ended with {child.process.exitcode}{_last(child)}"
    result = json.loads(path.read_text())
    assert "count" in result, f"{where}: {result['error']}"
    run.add(child.seed, result["count"], result["seconds"])
    shutil.rmtree(child.place)
    if record is not None:
        note(run, record)


def _last(child: _Child) -> str:
    path = child.place / "files" / "mutation.txt"
    return f": {path.read_text()}" if path.exists() else ""
