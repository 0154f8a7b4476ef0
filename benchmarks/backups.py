"""Backup and restore of a generated table, compared with pyarrow and Parquet for the same rows.

    python benchmarks/backups.py [--rows 5000000] [--tablets 8] [--changed 0.05] [--spark]

The steps: a full backup, changes to a part of the rows (updates of one column, inserts, deletes),
an increment, a restore of the chain with its hash checked, and a copy. `peak` is the highest memory
use of the process so far, in MB.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from main_job import make_rows

import kudulite
import kudulite_spark

T = TypeVar("T")


def timed(name: str, work: Callable[[], T]) -> T:
    """Do the work, print its seconds."""
    begin = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name:<46}{seconds:8.2f} s   peak {peak:6.0f}", flush=True)
    return result


def change(table: kudulite.Table, count: int, share: float) -> None:
    """Update one column of a share of the rows, delete a tenth of that, insert as many."""
    random = np.random.default_rng(3)
    ids = random.choice(count, int(count * share), replace=False)
    table.update(pa.table({"id": ids, "amount": random.random(len(ids))}))
    table.delete(pa.table({"id": ids[: len(ids) // 10]}))
    fresh = np.arange(count, count + len(ids) // 10)
    table.insert(make_rows(len(fresh), fresh, 4))


def run(root: Path, count: int, tablets: int, share: float, with_spark: bool) -> None:
    """Print all figures."""
    rows = make_rows(count, np.arange(count), 1)
    client = kudulite.connect(root / "db", background_maintenance=False)
    table = client.create_table(
        "t", rows.schema, primary_key="id", hash_partitions=[("id", tablets)]
    )
    table.insert(rows)
    print(f"{count:,} rows of 10 columns in {tablets} tablets, {rows.nbytes >> 20} MiB in memory")
    file = root / "peer.parquet"
    timed("pyarrow: write as zstd Parquet", lambda: pq.write_table(rows, file, compression="zstd"))
    timed("pyarrow: read it", lambda: pq.read_table(file))
    full = timed("full backup", lambda: kudulite.backup(table, root / "set"))
    hashed = root / "hashed"
    timed(
        "full backup with content hash", lambda: kudulite.backup(table, hashed, content_hash=True)
    )
    print(f"   {full.byte_count >> 20} MiB, Parquet {file.stat().st_size >> 20} MiB")
    change(table, count, share)
    part = timed("incremental backup", lambda: kudulite.backup(table, root / "set"))
    print(f"   {part.written_row_count:,} changes, {part.byte_count >> 20} MiB")
    timed("the same with content hash", lambda: kudulite.backup(table, hashed, content_hash=True))
    timed("verify both", lambda: [b.verify() for b in kudulite.list_backups(root / "set")])
    restored = timed("restore", lambda: kudulite.restore(root / "set", root / "db" / "r"))
    timed("restore, hash checked", lambda: kudulite.restore(hashed, root / "db" / "h"))
    assert restored.scan().count() == table.scan().count()
    timed("copy with the past", lambda: table.copy_to(root / "db" / "copy"))
    timed("copy of the present", lambda: table.copy_to(root / "db" / "present", with_past=False))
    if with_spark:
        spark_figures(root)


def spark_figures(root: Path) -> None:
    """The same work as Spark jobs, after one small job."""
    spark = kudulite_spark.local_session()
    spark.range(10).count()
    path = str(root / "db" / "t")
    timed("Spark: full backup", lambda: kudulite_spark.backup(spark, path, str(root / "spark")))
    copy = str(root / "db" / "s")
    timed("Spark: restore", lambda: kudulite_spark.restore(spark, str(root / "set"), copy))
    spark.stop()


def main() -> None:
    """Run with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--tablets", type=int, default=8)
    parser.add_argument("--changed", type=float, default=0.05, help="share of the rows")
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--folder", default=None, help="where the files go; default: /tmp")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        run(Path(folder), options.rows, options.tablets, options.changed, options.spark)


if __name__ == "__main__":
    main()
