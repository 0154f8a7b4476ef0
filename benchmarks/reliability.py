"""All machines that try to break a table, each with a count; the figures of docs/reliability.md.

    python benchmarks/reliability.py --quick | --full [--only NAME] [--seed 1] [--folder /dev/shm]
    python benchmarks/reliability.py --mutations [TEXT]

Ends with an error at the first acknowledged row that is lost, at the first wrong row, and at the
first error that is not the engine's own. The quick run takes about eight minutes on two cores, the
full run hours. `--mutations` puts faults into a copy of the sources and prints the tests that find
them (tests/support/mutations.txt).
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.crash import test_kill_points as kill_points
from tests.crash import test_power_loss as power_loss
from tests.support.doubles.killing_file_system import KillingFileSystem
from tests.support.machines.file_mutations import mutate_apart
from tests.support.machines.history_steps import Steps, setup_of, take
from tests.support.machines.killed_writer import kill_again_and_again
from tests.support.machines.linear_histories import check_history
from tests.support.machines.sqlite_machine import SqliteMachine
from tests.support.mutations import listed_mutations, run_mutations
from tests.support.tables.core_tables import environment

HISTORY_CALLS, SQLITE_STEPS, MODEL_OPERATIONS = 40, 300, 300

# Runs until it has reached a count; returns what it has reached.
Machine = Callable[[Path, int, int], int]


def repeated(one: Callable[[Path, int], int]) -> Machine:
    """A machine that runs `one` for seed after seed, each in a folder of its own."""

    def run(folder: Path, seed: int, count: int) -> int:
        done = 0
        for number in itertools.count(seed):
            place = folder / str(number)
            place.mkdir(parents=True)
            done += one(place, number)
            shutil.rmtree(place)
            if done >= count:
                return done
        raise AssertionError

    return run


def lose_power(folder: Path, seed: int) -> int:
    """Some states of one operation after the other."""
    names = list(power_loss.CASES)
    return power_loss.lose_power(
        power_loss.CASES[names[seed % len(names)]], folder, count=30, seed=seed
    )


def lose_power_after_kill(folder: Path, seed: int) -> int:
    """A process is killed at an event, another one writes, power is lost."""
    pairs = list(itertools.product(power_loss.KILLED_CASES, power_loss.NEXT))
    case, following = pairs[seed % len(pairs)]
    return power_loss.lose_power_after_kill(case, following, folder, every=11, first=seed % 11)


def die_at_steps(folder: Path, seed: int) -> int:
    """One operation is killed before durable steps, by an exit or by an error."""
    names = list(kill_points.CASES)
    name = names[seed % len(names)]
    prepare, write = kill_points.CASES[name]
    base, new = folder / "base", folder / "new"
    prepare(kill_points.Client(base, environment()))
    shutil.copytree(base, new)
    counting = KillingFileSystem()
    write(kill_points.Client(new, environment(counting)))
    states, count = [kill_points.state(base), kill_points.state(new)], 0
    for steps in range(counting.count):
        root = folder / "killed"
        shutil.copytree(base, root)
        kill_points.run_killed(root, write, steps, ("exit", "error")[(steps + seed) % 2])
        assert kill_points.state(root) in states, (name, steps)
        kill_points.expect_whole_and_writable(root)
        shutil.rmtree(root)
        count += 1
    return count


def kill(folder: Path, seed: int, count: int) -> int:
    """A writer is killed by the system at random moments."""
    return kill_again_and_again(folder, count, seed).kills


def model(folder: Path, seed: int) -> int:
    """Random writes, maintenance, alterations and reads of the past equal a dictionary."""
    made = Steps(setup_of(seed), seed)
    steps = made.make(MODEL_OPERATIONS)
    error = take(folder / "table", setup_of(seed), steps, lambda machine: None)
    assert error is None, f"seed {seed}: {error}"
    return made.operation_count


def linear(folder: Path, seed: int) -> int:
    """Eight processes on six keys."""
    check_history(folder / "db", seed, HISTORY_CALLS)
    return 1


def sqlite(folder: Path, seed: int) -> int:
    """Operations and queries that SQLite takes as well."""
    return SqliteMachine(folder / "db", seed).run(SQLITE_STEPS)


def mutate_raw(folder: Path, seed: int, count: int) -> int:
    """Bytes of files change: equal rows, or an error of kudulite."""
    return mutate_apart(folder, seed, count, is_sealed=False)


def mutate_sealed(folder: Path, seed: int, count: int) -> int:
    """Files change, and all checksums are made right: some rows, or an error of kudulite."""
    return mutate_apart(folder, seed, count, is_sealed=True)


# Name -> (machine, count of the quick run, count of the full run)
MACHINES: dict[str, tuple[Machine, int, int]] = {
    "power-loss states": (repeated(lose_power), 500, 20_000),
    "power-loss states after a kill": (repeated(lose_power_after_kill), 100, 5_000),
    "fault points": (repeated(die_at_steps), 300, 50_000),
    "kills": (kill, 20, 1_000),
    "linearizable histories": (repeated(linear), 10, 500),
    "model operations": (repeated(model), 3_000, 1_000_000),
    "differential operations": (repeated(sqlite), 5_000, 1_000_000),
    "raw mutations": (mutate_raw, 5_000, 1_000_000),
    "sealed mutations": (mutate_sealed, 5_000, 200_000),
}


def run_machines(args: argparse.Namespace) -> None:
    """Run all machines and print a line for each."""
    place = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{place}, seed {args.seed}")
    begin = time.perf_counter()
    for name, (machine, quick, full) in MACHINES.items():
        if args.only not in name:
            continue
        with tempfile.TemporaryDirectory(prefix="kudulite-reliability-", dir=args.folder) as folder:
            start = time.perf_counter()
            done = machine(Path(folder), args.seed, full if args.full else quick)
        print(f"{name:<34}{done:>12,}   {time.perf_counter() - start:>7,.0f} s", flush=True)
    print(f"nothing lost, nothing wrong, in {time.perf_counter() - begin:,.0f} s")


def mutate(only: str) -> int:
    """Run the faults that have a text in their name; returns how many survived."""
    chosen = listed_mutations(only)
    survived = 0
    for number, verdict in enumerate(run_mutations(chosen), 1):
        survived += not verdict.caught_by
        print(f"{number}/{len(chosen)} {verdict.mutation.name}")
        found = f"caught by {verdict.caught_by}" if verdict.caught_by else "SURVIVED"
        print(f"    {found} ({verdict.seconds:.0f} s)", flush=True)
    print(f"{len(chosen)} faults, {len(chosen) - survived} caught, {survived} survived")
    return survived


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--quick", action="store_true")
    length.add_argument("--full", action="store_true")
    length.add_argument("--mutations", nargs="?", const="", metavar="TEXT")
    parser.add_argument("--only", default="", help="a text in the names of the machines to run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="where the tables are made (default: the system's)")
    args = parser.parse_args()
    if args.mutations is not None:
        sys.exit(mutate(args.mutations) > 0)
    run_machines(args)


if __name__ == "__main__":
    main()
