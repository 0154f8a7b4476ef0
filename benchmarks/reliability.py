"""All trials that try to break a table, each with a count; the figures of docs/reliability.md.

    python benchmarks/reliability.py --quick | --full [--only NAME] [--seed 1] [--processes 2]
        [--folder /dev/shm] [--json FILE] [--minutes 60]
    python benchmarks/reliability.py --mutations [TEXT]

Ends with an error at the first acknowledged row that is lost, at the first wrong row, and at the
first error that is not the engine's own. The full run takes hours. With `--json` a file records
the seeds that have ended, and the next run with that file continues behind them; `--minutes` ends a
run early. `--mutations` puts faults into a copy of the sources and notes the tests that find them
(tests/support/mutations.txt).
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

# Processes that trials start import this file again, so it imports little.
sys.path.insert(0, str(Path(__file__).parents[1]))

MEMORY_FOLDER = Path("/dev/shm")
MEMORY_BYTES_MIN = 2 << 30


def memory_folder() -> Path | None:
    """Return a folder in memory if there is one of sufficient size."""
    is_large = MEMORY_FOLDER.is_dir() and shutil.disk_usage(MEMORY_FOLDER).free >= MEMORY_BYTES_MIN
    return MEMORY_FOLDER if is_large else None


def run_all(args: argparse.Namespace) -> None:
    """Run the trials and print a line for each."""
    from tests.support.trials import TRIALS, run_trials

    place = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{place}, {args.processes} processes, seeds from {args.seed} on")
    begin, is_whole = time.monotonic(), True
    for name, trial in TRIALS.items():
        if args.only not in name:
            continue
        start, count = time.monotonic(), trial.full_count if args.full else trial.quick_count
        with tempfile.TemporaryDirectory(prefix="kudulite-trials-", dir=args.folder) as folder:
            run = run_trials(
                name,
                count,
                first_seed=args.seed,
                processes=args.processes,
                folder=Path(folder),
                record=args.json,
                deadline=begin + 60 * args.minutes,
            )
        is_whole = is_whole and run.count >= count
        of = "" if run.count >= count else f" of {count:,}"
        seconds = f"{time.monotonic() - start:>7,.0f} s"
        print(
            f"{name:<32}{run.count:>11,}{of}  {seconds}, {len(run.seeds):,} seeds with"
            f" {run.seconds:,.0f} s of processors",
            flush=True,
        )
    outcome = "" if is_whole else "; not all counts were reached"
    print(f"nothing lost, nothing wrong, in {time.monotonic() - begin:,.0f} s{outcome}")


def mutate(only: str) -> int:
    """Run the faults that have a text in their name; returns how many survived."""
    from tests.support.mutations import listed_mutations, note, run_mutations

    chosen = listed_mutations(only)
    survived = 0
    for number, verdict in enumerate(run_mutations(chosen), 1):
        survived += not verdict.caught_by
        note(verdict)
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
    parser.add_argument("--only", default="", help="a text in the names of the trials to run")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument(
        "--folder",
        default=memory_folder(),
        help="where the tables are made (default: in memory, where an fsync costs nothing)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="record, and continue behind it")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after so long")
    args = parser.parse_args()
    if args.mutations is not None:
        sys.exit(mutate(args.mutations) > 0)
    run_all(args)


if __name__ == "__main__":
    main()
