"""Every way of reading a table, with many random filters, compared with plain Python.

    python benchmarks/read_matrix.py [--filters 1000] [--seed 1] [--each 40]

Each seed is a random table, read as of now and as of a moment of its past in these ways:
format("kudulite") with and without the front, and with the options `filter` and `columns`;
read_table, filtered by Spark and by `where`; a scan; scan tokens. Ends with an error at the first
difference. The tables and filters are in tests/support/spark/read_matrix.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kudulite_spark import local_session
from tests.support.spark.read_matrix import run


def main() -> None:
    """Parse arguments, run seeds until there were enough filters, print what was read."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--filters", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="of the first table")
    parser.add_argument("--each", type=int, default=40, help="filters of one table")
    arguments = parser.parse_args()
    spark = local_session("read matrix")
    total: Counter = Counter()
    seed, begin = arguments.seed, time.perf_counter()
    while total["source"] < arguments.filters:
        # Generated code is compiled for each filter, which takes longer than the rows do.
        spark.conf.set("spark.sql.codegen.wholeStage", str(seed % 4 == 0).lower())
        with tempfile.TemporaryDirectory(prefix="kudulite-matrix-") as folder:
            total.update(run(spark, Path(folder) / "t", seed, arguments.each))
        print(f"seed {seed}: {time.perf_counter() - begin:.0f} s, reads {dict(total)}", flush=True)
        seed += 1
    print(f"{total['source']} filters, {sum(total.values())} reads, no difference")
    spark.stop()


if __name__ == "__main__":
    main()
