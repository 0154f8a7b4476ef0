"""Kill -9 a stream from one table into another, again and again; no row may be lost or doubled.

    python benchmarks/kill_streams.py [--kills 50] [--seed 1] [--folder /dev/shm]

Another process writes to the source all the time. Each kill ends the driver with its children, one
of its Python processes, or the writer of the source. Most kills fall into a running batch, and some
between its commit and its entry in the checkpoint. Ends with an error if the target differs from
the source, now or as of any batch, or if a row arrived more than once. The writer and the checks
are in tests/support/spark/killed_stream.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.spark.killed_stream import StreamReport, kill_again_and_again


def show(report: StreamReport, found: str) -> None:
    """Print a line for each kill."""
    print(f"{report.kills.total():>4} kills, batch {report.batches:>4}; {found}", flush=True)


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="where the tables are made (default: the system's)")
    args = parser.parse_args()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="kudulite-streams-", dir=args.folder) as folder:
        report = kill_again_and_again(Path(folder), args.kills, args.seed, show)
    seconds = time.perf_counter() - begin
    print(f"{report.kills.total()} kills in {seconds:.0f} s, seed {args.seed}")
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
    print(f"staging folders left:                {report.staged:,}")
    if report.lost or report.surplus or report.different:
        sys.exit("the target is not the source")


if __name__ == "__main__":
    main()
