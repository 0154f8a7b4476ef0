"""Random chains of backups with all types and alterations; each must be restored exactly.

    python benchmarks/random_backups.py [--seeds 50] [--first-seed 100] [--folder /dev/shm]

Ends with an error that names the seed at the first difference.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.machines.backup_chain import check_random_chain


def main() -> None:
    """Run all seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--folder", default="/dev/shm", help="where the tables are made")
    options = parser.parse_args()
    begin, count = time.perf_counter(), 0
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            count += check_random_chain(Path(folder), seed)
    seconds = time.perf_counter() - begin
    print(f"{options.seeds} seeds, {count} backups restored exactly, {seconds:.0f} s")


if __name__ == "__main__":
    main()
