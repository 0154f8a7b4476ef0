"""Sixteen processes on one table for minutes: sessions, bulk writers, scanners, and a Spark job.

    python benchmarks/many_processes.py [--seconds 300] [--spark] [--sessions 7] [--bulks 3]
        [--scanners 6] [--maintainers 0] [--collectors 0] [--purgers 0] [--mortals 0] [--pause 1.0]
        [--folder …]

Ends with an error if an acknowledged row is missing or doubled, if a scan saw a part of a batch, or
if a process had an error. The writers and the checks are in tests/support/machines/crowd.py.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pyarrow as pa

from tests.support.machines.crowd import (
    BULK_ROWS,
    RING,
    ROLES,
    SECOND,
    Crowd,
    Told,
    batch_rows,
    batch_size,
    create,
    problems_at_end,
)

SPARK_WRITER = 400
JOIN_SECONDS = 300.0  # how long processes may take to end when their time is over


def spark_session() -> Any:
    """Start Spark, with the connector."""
    # Only who asks for it needs pyspark.
    import kudulite_spark

    spark = kudulite_spark.local_session("kudulite many processes")
    return spark


def run_spark(spark: Any, path: Path, sessions: int, seconds: float) -> Told:
    """Read and check all rows, then upsert a batch for two writers, in turns."""
    told = Told("spark", SPARK_WRITER)
    begin = time.perf_counter()
    try:
        while time.perf_counter() - begin < seconds:
            told.rows += _check_with_spark(spark, path, sessions)
            parts = [
                pa.table(batch_rows(writer, told.batches + 1, BULK_ROWS))
                for writer in (SPARK_WRITER, SPARK_WRITER + SECOND)
            ]
            frame = spark.createDataFrame(pa.concat_tables(parts))
            frame = frame.withColumn("writer", frame["writer"].cast("int"))
            wait = time.perf_counter()
            frame.write.format("kudulite").mode("append").save(str(path))
            told.ends.append(time.perf_counter())
            told.waits.append(told.ends[-1] - wait)
            told.batches += 1
    except Exception:
        told.problem = traceback.format_exc()
    told.seconds = time.perf_counter() - begin
    return told


def _check_with_spark(spark: Any, path: Path, sessions: int) -> int:
    """Count rows and keys of each writer in one snapshot; returns the number of rows."""
    frame = spark.read.format("kudulite").load(str(path))
    frame.createOrReplaceTempView("crowd")
    found = spark.sql(
        "select writer, count(*) as found, count(distinct number) as keys,"
        " min(if(number < 0, batch, null)) as low, max(if(number < 0, batch, null)) as high"
        " from crowd group by writer"
    ).collect()
    for row in found:
        assert row.found == row["keys"], f"a key twice: {row}"
        if row.writer >= 0:
            expected = RING + row.low * batch_size(row.writer, sessions)
            assert row.low == row.high and row.found == expected, f"a torn batch: {row}"
    return sum(row.found for row in found)


def print_results(results: list[Told]) -> None:
    """One line for each role."""
    head = ("role", "processes", "turns", "rows", "rows/s", "median ms", "99 % ms", "longest ms")
    print("".join(f"{name:>12}" for name in head))
    for role in (*ROLES, "spark"):
        told = [result for result in results if result.role == role]
        waits = sorted(wait * 1e3 for result in told for wait in result.waits)
        if not waits:
            continue
        rows = sum(result.rows for result in told)
        seconds = max(result.seconds for result in told)
        figures = (
            f"{len(told):,}",
            f"{len(waits):,}",
            f"{rows:,}",
            f"{rows / seconds:,.0f}",
            f"{statistics.median(waits):,.1f}",
            f"{waits[int(len(waits) * 0.99)]:,.1f}",
            f"{waits[-1]:,.0f}",
        )
        print(f"{role:>12}" + "".join(f"{figure:>12}" for figure in figures))


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--sessions", type=int, default=7)
    parser.add_argument("--bulks", type=int, default=3)
    parser.add_argument("--scanners", type=int, default=6)
    parser.add_argument("--maintainers", type=int, default=0)
    parser.add_argument("--collectors", type=int, default=0, help="remove files without grace")
    parser.add_argument("--purgers", type=int, default=0, help="write rows and purge them")
    parser.add_argument("--mortals", type=int, default=0, help="of the sessions, to be killed")
    parser.add_argument("--pause", type=float, default=1.0, help="after a batch and after a scan")
    parser.add_argument("--spark", action="store_true", help="a Spark job beside them")
    parser.add_argument("--folder", help="where the table is made (default: the system's)")
    args = parser.parse_args()
    spark = spark_session() if args.spark else None
    process_count = args.sessions + args.bulks + args.scanners + args.maintainers
    process_count += args.collectors + args.purgers
    print(f"{process_count} processes, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="kudulite-crowd-", dir=args.folder) as folder:
        path = create(Path(folder)).path
        crowd = Crowd(
            Path(folder),
            sessions=args.sessions,
            bulks=args.bulks,
            scanners=args.scanners,
            maintainers=args.maintainers,
            collectors=args.collectors,
            purgers=args.purgers,
            mortals=args.mortals,
            seconds=args.seconds,
            pause_seconds=args.pause,
        )
        crowd.start()
        results = []
        if spark is not None:
            results.append(run_spark(spark, path, args.sessions, args.seconds))
            spark.stop()
        results += crowd.join(args.seconds + JOIN_SECONDS)
        # Spark's writes are those of a bulk writer, under another name in the table of figures.
        print_results(results)
        for told in results:
            told.role = "bulk" if told.role == "spark" else told.role
        problems = problems_at_end(Path(folder), results, args.sessions)
    writers = [told for told in results if told.role in ("session", "bulk")]
    ends = np.sort([end for told in writers for end in told.ends])
    longest = turns = 0.0
    for told in writers:
        until = np.array(told.ends)
        begins = until - told.waits
        longest = max(longest, *told.waits, 0.0)
        passed = np.searchsorted(ends, until) - np.searchsorted(ends, begins)
        turns = max(turns, *passed.tolist(), 0)
    print(f"longest wait of a writer: {longest * 1e3:,.0f} ms; {turns:,.0f} turns of others")
    if args.mortals:
        print(f"kills of session writers: {crowd.kills:,}")
    print(
        "\n".join(problems) or "every acknowledged row is there once; no scan saw part of a batch"
    )
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
