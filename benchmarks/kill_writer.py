"""Kill -9 a writer of single rows at random moments, again and again; check that no flush is lost.

    python benchmarks/kill_writer.py [--kills 500] [--seed 1] [--folder /dev/shm]

Ends with an error at the first acknowledged flush that is missing, and at the first flush of which
only a part is visible. The writer and the checks are in tests/support/machines/killed_writer.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.machines.killed_writer import KillReport, kill_again_and_again

SHOWN_EVERY = 50


def show(report: KillReport) -> None:
    """Print a line for every 50 kills."""
    if report.kills % SHOWN_EVERY == 0:
        print(f"{report.kills:>5} kills, {report.acknowledged:,} acknowledged steps", flush=True)


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="where the tables are made (default: the system's)")
    args = parser.parse_args()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="kudulite-kills-", dir=args.folder) as folder:
        report = kill_again_and_again(Path(folder), args.kills, args.seed, show)
    print(f"{report.kills} kills in {time.perf_counter() - begin:.0f} s, seed {args.seed}")
    print(f"acknowledged steps, all there:               {report.acknowledged:,}")
    print(f"steps whole in a tablet, not acknowledged:   {report.ahead:,}")
    print(f"of these, in one of the two tablets:         {report.halves:,}")
    print(f"longest opening and first scan after a kill: {report.seconds_to_open_max * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
