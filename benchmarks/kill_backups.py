"""Kill backups, restores and copies before each of their durable steps, and check what is left.

    python benchmarks/kill_backups.py [--each 1] [--folder /dev/shm]

Ends with an error at the first step after which a reader sees a part of a result, or after which
the result of the next run differs from that of an undisturbed run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.machines.killed_backups import HOWS, kill_backups, kill_copies, kill_restores

KINDS = (("full", kill_backups), ("overwrite", kill_restores), ("with_past", kill_copies))


def main() -> None:
    """Run all cases, and print how many were killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=1, help="only every so many steps")
    parser.add_argument("--folder", default="/dev/shm", help="where the tables are made")
    options = parser.parse_args()
    for how in HOWS:
        for flag in (True, False):
            for name, kill in KINDS:
                begin = time.perf_counter()
                with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                    count = kill(Path(folder), how, each=options.each, **{name: flag})
                seconds = time.perf_counter() - begin
                print(f"{kill.__name__} {how} {name}={flag}: {count} killed, {seconds:.0f} s")


if __name__ == "__main__":
    main()
