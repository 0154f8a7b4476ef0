"""Random operations and maintenance on 5 to 50 keys, many seeds in parallel; every read is checked.

    python benchmarks/random_history.py [--operations 1000000] [--each 2000] [--first-seed 1000]
        [--processes 2] [--shrink 300] [--folder /dev/shm]

Each seed is a table of its own, which is compared with a dictionary: now, at every legal moment of
the past, over random windows of changes, and after every kind of maintenance. Ends at the first
difference with an error and the few steps that cause it, as a call of `replay`. The steps are in
tests/support/machines/history_machine.py.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.machines.history_machine import HistoryMachine
from tests.support.machines.history_steps import Steps, setup_of, shrunk, take

SeedResult = tuple[int, int, float, Counter, str]


def run_seed(job: tuple[int, int, float, str]) -> SeedResult:
    """Run the steps of one seed; returns (seed, operations, seconds, counts of steps, failure)."""
    seed, operation_count, shrink_seconds, folder = job
    setup, begin = setup_of(seed), time.perf_counter()
    made = Steps(setup, seed)
    steps = made.make(operation_count)
    root = Path(folder) / str(seed)
    done: Counter = Counter()

    def count(machine: HistoryMachine) -> None:
        done.update(machine.counted)

    error = take(root, setup, steps, count)
    failure = "" if error is None else str(shrunk(root, setup, steps, error, shrink_seconds))
    return seed, made.operation_count, time.perf_counter() - begin, done, failure


def main() -> None:
    """Parse arguments, run seeds until enough operations are done, print a summary."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--each", type=int, default=2_000, help="operations of a seed")
    parser.add_argument("--first-seed", type=int, default=1_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--shrink", type=float, default=300.0, help="seconds to shrink a failure")
    parser.add_argument("--folder", help="where the tables are made (default: the system's)")
    args = parser.parse_args()
    total, done, begin = 0, Counter(), time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="kudulite-history-", dir=args.folder) as folder,
        multiprocessing.get_context("spawn").Pool(args.processes) as pool,
    ):
        # Not more jobs than needed: a pool takes all that an iterator gives.
        count = -(-args.operations // args.each)
        seeds = itertools.islice(itertools.count(args.first_seed), count)
        jobs = ((seed, args.each, args.shrink, folder) for seed in seeds)
        for seed, operations, seconds, counted, failure in pool.imap_unordered(run_seed, jobs):
            total += operations
            done += counted
            print(f"seed {seed}: {operations:,} operations in {seconds:.0f} s", flush=True)
            if failure:
                print(failure)
                sys.exit(1)
    minutes = (time.perf_counter() - begin) / 60
    print(f"{total:,} operations of {count:,} seeds from {args.first_seed} in {minutes:.0f} min")
    print(", ".join(f"{name}: {number:,}" for name, number in sorted(done.items())))
    print("no difference")


if __name__ == "__main__":
    main()
