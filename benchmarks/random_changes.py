"""Random change sets, delivered in random ways; every delivery must leave the same table.

    python benchmarks/random_changes.py [--seeds 500] [--first-seed 100000] [--deliveries 2]
        [--folder /dev/shm]

Each seed is a set of changes of few keys. Each delivery permutes it, cuts it into batches, repeats
some, and runs maintenance in between. Ends with an error and the list of steps at the first table
that does not have the newest change of each key. The deliveries are in
tests/support/machines/change_capture.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.machines.change_capture import Capture
from tests.support.tables.core_tables import CoreTables


def main() -> None:
    """Parse arguments, run the seeds, print a summary."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first-seed", type=int, default=100_000)
    parser.add_argument("--deliveries", type=int, default=2, help="of each seed's changes")
    parser.add_argument("--folder", help="where the tables are made (default: the system's)")
    args = parser.parse_args()
    begin, changes = time.perf_counter(), 0
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        with tempfile.TemporaryDirectory(prefix="kudulite-changes-", dir=args.folder) as folder:
            core = CoreTables(Path(folder))
            capture = Capture(core, seed)
            for number in range(args.deliveries):
                found = capture.deliver(f"t{number}")
                if found != capture.expected():
                    sys.exit(
                        "\n".join([*capture.log, f"expected {capture.expected()}", str(found)])
                    )
            core.check_all()
            changes += len(capture.changes)
    seconds = time.perf_counter() - begin
    print(
        f"seeds {args.first_seed} to {args.first_seed + args.seeds - 1}: {changes} changes,"
        f" {args.deliveries} deliveries each, no difference, {seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
