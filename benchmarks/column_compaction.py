"""Bytes read and written by a major delta compaction of one column, changed in 5 % of the rows.

    python benchmarks/column_compaction.py [--rows 1000000] [--fraction 0.05] [--seed 1]

Ends with an error if a row is wrong after the compaction, now or as of before the update, or if
more is read or written than the column takes. The counts are defined in
tests/support/machines/column_costs.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.machines.column_costs import COLUMN, ColumnCosts, measured


def show(costs: ColumnCosts, rows: int, fraction: float) -> None:
    """Print the figures."""
    print(f"{rows:,} rows of 10 columns, {fraction:.0%} of them with a new value in {COLUMN!r};")
    print(f"{costs.rowset_count} rowsets compacted in {costs.seconds:.2f} s; bytes:")
    lines = {
        "base data, all columns": costs.base,
        f"  of it the column {COLUMN!r}": costs.column,
        "REDO of the update": costs.redo,
        "read of base data": costs.read_base,
        "read of REDO": costs.read_redo,
        "read of anything else": costs.read_other,
        "written: base data of the column": costs.written_base,
        "written: UNDO of the update": costs.written_undo,
        "written: anything else of the rowsets": costs.written_other,
    }
    for name, count in lines.items():
        print(f"  {name:<40}{count:>14,}{count / costs.base:>9.1%} of base data")


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--fraction", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="where the table is made (default: the system's)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kudulite-column-", dir=args.folder) as folder:
        costs = measured(Path(folder), args.rows, args.fraction, args.seed)
    show(costs, args.rows, args.fraction)
    costs.check()


if __name__ == "__main__":
    main()
