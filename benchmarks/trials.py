"""Long runs of the random machines and of kills, by name.

    python benchmarks/trials.py backups [--seeds 50] [--first-seed 100]
    python benchmarks/trials.py changes [--seeds 500] [--first-seed 100000] [--deliveries 2]
    python benchmarks/trials.py history [--operations 1000000] [--each 2000] [--first-seed 1000]
        [--processes 2] [--shrink 300]
    python benchmarks/trials.py killed-backups [--each 1]
    python benchmarks/trials.py killed-streams [--kills 50] [--first-seed 1]
    python benchmarks/trials.py killed-writer [--kills 500] [--first-seed 1]
    python benchmarks/trials.py read-matrix [--filters 1000] [--first-seed 1] [--each 40]

All take --folder, the place for the tables. Each ends with an error at the first difference, and
names its seed. The machines in tests/support do the work and the checks.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

# Processes that a trial starts import this file again, so each trial imports its own machine.
SHOWN_EVERY = 50


def backups(args: argparse.Namespace, folder: Path) -> None:
    """Random chains of backups with all types and alterations; each is restored exactly."""
    from tests.support.machines.backup_chain import check_random_chain

    count = 0
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            count += check_random_chain(Path(place), seed)
    print(f"{args.seeds} seeds, {count} backups restored exactly")


def changes(args: argparse.Namespace, folder: Path) -> None:
    """Random change sets, delivered in random ways; every delivery leaves the same table."""
    from tests.support.machines.change_capture import Capture
    from tests.support.tables.core_tables import CoreTables

    count = 0
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            core = CoreTables(Path(place))
            capture = Capture(core, seed)
            for number in range(args.deliveries):
                found, expected = capture.deliver(f"t{number}"), capture.expected()
                if found != expected:
                    sys.exit("\n".join([*capture.log, f"expected {expected}", str(found)]))
            core.check_all()
            count += len(capture.changes)
    print(f"{args.seeds} seeds, {count} changes, {args.deliveries} deliveries each, no difference")


def history_of(job: tuple[int, int, float, Path]) -> tuple[int, int, float, Counter, str]:
    """Run the steps of one seed; returns (seed, operations, seconds, counts of steps, failure)."""
    from tests.support.machines.history_steps import Steps, setup_of, shrunk, take

    seed, operation_count, shrink_seconds, folder = job
    setup, begin, done = setup_of(seed), time.perf_counter(), Counter()
    made, root = Steps(setup, seed), folder / str(seed)
    steps = made.make(operation_count)
    error = take(root, setup, steps, lambda machine: done.update(machine.counted))
    failure = "" if error is None else str(shrunk(root, setup, steps, error, shrink_seconds))
    return seed, made.operation_count, time.perf_counter() - begin, done, failure


def history(args: argparse.Namespace, folder: Path) -> None:
    """Random operations and maintenance on 5 to 50 keys; every read equals a dictionary.

    A difference is shrunk to the few steps that cause it, as a call of `replay`.
    """
    total, done = 0, Counter()
    # Not more jobs than needed: a pool takes all that an iterator gives.
    count = -(-args.operations // args.each)
    seeds = itertools.islice(itertools.count(args.first_seed), count)
    jobs = ((seed, args.each, args.shrink, folder) for seed in seeds)
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        for seed, operations, seconds, counted, failure in pool.imap_unordered(history_of, jobs):
            total += operations
            done += counted
            print(f"seed {seed}: {operations:,} operations in {seconds:.0f} s", flush=True)
            if failure:
                sys.exit(failure)
    print(f"{total:,} operations of {count:,} seeds from {args.first_seed}, no difference")
    print(", ".join(f"{name}: {number:,}" for name, number in sorted(done.items())))


def killed_backups(args: argparse.Namespace, folder: Path) -> None:
    """Backups, restores and copies killed before each durable step: nothing, or the whole."""
    from tests.support.machines.killed_backups import (
        HOWS,
        kill_backups,
        kill_copies,
        kill_restores,
    )

    kinds = (("full", kill_backups), ("overwrite", kill_restores), ("with_past", kill_copies))
    for how, flag, (name, kill) in itertools.product(HOWS, (True, False), kinds):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            count = kill(Path(place), how, each=args.each, **{name: flag})
        print(f"{kill.__name__} {how} {name}={flag}: {count} killed", flush=True)


def killed_streams(args: argparse.Namespace, folder: Path) -> None:
    """A stream from one table into another, killed again and again: no row lost or doubled."""
    from tests.support.spark.killed_stream import StreamReport, kill_again_and_again

    def show(report: StreamReport, found: str) -> None:
        print(f"{report.kills.total():>4} kills, batch {report.batches:>4}; {found}", flush=True)

    report = kill_again_and_again(folder, args.kills, args.first_seed, show)
    for (target, phase), count in sorted(report.phases.items()):
        print(f"{f'killed: {target}, {phase}:':<66}{count:>3}")
    for module, count in sorted(report.parts.items()):
        print(f"{f'killed: {module}:':<66}{count:>3}")
    print(f"queries that failed and went on:     {report.failures:,}")
    print(f"commits in the source:               {report.commits:,}")
    print(f"batches of the stream:               {report.batches:,}")
    print(f"batches that were run again:         {report.replays:,}")
    print(f"of these, committed before the kill: {report.replays_committed:,}")
    print(f"batches compared with the source:    {report.batches_compared:,}")
    print(f"rows of the source at the end:       {report.rows:,}")
    print(f"rows lost:                           {report.lost:,}")
    print(f"rows too many:                       {report.surplus:,}")
    print(f"rows that differ:                    {report.different:,}")
    print(f"records of writes left:              {report.staged:,}")
    if report.lost or report.surplus or report.different:
        sys.exit("the target is not the source")


def killed_writer(args: argparse.Namespace, folder: Path) -> None:
    """A writer of single rows, killed at random moments: no acknowledged flush is lost."""
    from tests.support.machines.killed_writer import KillReport, kill_again_and_again

    def show(report: KillReport) -> None:
        if report.kills % SHOWN_EVERY == 0:
            print(
                f"{report.kills:>5} kills, {report.acknowledged:,} acknowledged steps", flush=True
            )

    report = kill_again_and_again(folder, args.kills, args.first_seed, show)
    print(f"acknowledged steps, all there:                 {report.acknowledged:,}")
    print(f"steps whole in both tablets, not acknowledged: {report.ahead:,}")
    longest = report.seconds_to_open_max * 1e3
    print(f"longest opening and first scan after a kill:   {longest:.0f} ms")


def read_matrix(args: argparse.Namespace, folder: Path) -> None:
    """Every way of reading a table, with many random filters, compared with plain Python."""
    from kudulite_spark import local_session
    from tests.support.spark.read_matrix import run

    spark, total, seed = local_session("read matrix"), Counter(), args.first_seed
    while total["source"] < args.filters:
        # Generated code is compiled for each filter, which takes longer than the rows do.
        spark.conf.set("spark.sql.codegen.wholeStage", str(seed % 4 == 0).lower())
        with tempfile.TemporaryDirectory(dir=folder) as place:
            total.update(run(spark, Path(place) / "t", seed, args.each))
        print(f"seed {seed}: reads {dict(total)}", flush=True)
        seed += 1
    print(f"{total['source']} filters, {sum(total.values())} reads, no difference")
    spark.stop()


# With the options of each and what they are if they are not given.
TRIALS: dict[str, tuple[Callable[[argparse.Namespace, Path], None], dict[str, float]]] = {
    "backups": (backups, {"seeds": 50, "first-seed": 100}),
    "changes": (changes, {"seeds": 500, "first-seed": 100_000, "deliveries": 2}),
    "history": (
        history,
        {
            "operations": 1_000_000,
            "each": 2_000,
            "first-seed": 1_000,
            "processes": 2,
            "shrink": 300.0,
        },
    ),
    "killed-backups": (killed_backups, {"each": 1}),
    "killed-streams": (killed_streams, {"kills": 50, "first-seed": 1}),
    "killed-writer": (killed_writer, {"kills": 500, "first-seed": 1}),
    "read-matrix": (read_matrix, {"filters": 1000, "first-seed": 1, "each": 40}),
}


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, (run, options) in TRIALS.items():
        summary = str(run.__doc__).splitlines()[0]
        one = names.add_parser(name, help=summary, description=summary)
        for option, default in options.items():
            one.add_argument(f"--{option}", type=type(default), default=default)
        one.add_argument("--folder", help="where the tables are made (default: the system's)")
    args = parser.parse_args()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="kudulite-trials-", dir=args.folder) as folder:
        TRIALS[args.name][0](args, Path(folder))
    print(f"{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
