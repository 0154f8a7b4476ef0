"""Two executor processes on one folder: write, read, upsert, maintain; and the driver's memory.

    python benchmarks/local_cluster.py [--rows 200000] [--sizes 1000000 20000000]

Every result is checked. Then tables of the two sizes are read by format("kudulite") and by
read_table, and the driver's memory is printed: the heap in use after a collection, and the largest
of its Python processes, which plan. Neither should depend on the number of rows.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

import kudulite
import kudulite_spark


def cluster(executors: int = 2) -> SparkSession:
    """Start a session whose executors are processes of their own."""
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    path = os.pathsep.join([str(Path(kudulite.__file__).parents[1]), *sys.path])
    options = {
        "spark.master": f"local-cluster[{executors},1,1024]",
        "spark.executorEnv.PYTHONPATH": path,
        "spark.executorEnv.PYSPARK_PYTHON": sys.executable,
        "spark.executor.memory": "1g",
    }
    os.environ["PYTHONPATH"] = path
    spark = kudulite_spark.local_session("cluster", options=options)
    return spark


def executor_count(spark: SparkSession) -> int:
    """Return in how many processes tasks ran, of some short ones."""

    def parent(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            time.sleep(0.2)
            grandparent = psutil.Process(os.getppid()).ppid()
            yield pa.record_batch([pa.array([grandparent], pa.int64())], ["pid"])

    return spark.range(0, 8, 1, 8).mapInArrow(parent, "pid long").distinct().count()


def exercise(spark: SparkSession, path: str, row_count: int) -> None:
    """Write, upsert, delete, read in every way, maintain; AssertionError where a row is wrong."""

    def save(frame, **options) -> None:
        frame.write.format("kudulite").mode("append").options(**options).save(path)

    def check(expected: tuple) -> None:
        frames = [
            spark.read.format("kudulite").load(path),
            kudulite_spark.read_table(spark, path),
        ]
        for frame in frames:
            assert tuple(frame.selectExpr("count(*)", "sum(v)").first()) == expected

    kudulite_spark.create_table(
        spark, path, "k BIGINT, v BIGINT", primary_key=["k"], hash_partitions=[(["k"], 4)]
    )
    rows = spark.range(0, row_count, 1, 4).selectExpr("id AS k", "id % 10 AS v")
    save(kudulite_spark.repartition_for(rows, path))
    check((row_count, row_count // 10 * 45))
    save(rows.filter("k % 100 = 7").selectExpr("k", "1000 AS v"))
    save(rows.filter("k % 100 = 8").select("k"), operation="delete")
    left = row_count - row_count // 100
    total = row_count // 10 * 45 + row_count // 100 * (1000 - 7 - 8)
    check((left, total))
    result = kudulite_spark.maintain(spark, path)
    check((left, total))
    assert kudulite.open_table(path).check().raise_if_bad()
    print(f"maintenance: {len(result.operations)} operations")


def make_table(path: str, row_count: int) -> None:
    """Load a table of four columns, a million rows at a time."""
    client = kudulite.connect(Path(path).parent, background_maintenance=False)
    types = {"k": pa.int64(), "a": pa.int64(), "b": pa.float64(), "s": pa.string()}
    client.create_table(
        Path(path).name, pa.schema(types.items()), primary_key=["k"], hash_partitions=[(["k"], 4)]
    )
    texts = pa.array([f"text {i}" for i in range(1000)])
    for start in range(0, row_count, 1_000_000):
        keys = np.arange(start, min(start + 1_000_000, row_count))
        columns = [pa.array(keys), pa.array(keys * 7), pa.array(keys / 3)]
        columns.append(texts.take(pa.array(keys % 1000)))
        client.table(Path(path).name).insert(pa.table(columns, names=list(types)))
    client.close()


def driver_memory(spark: SparkSession, path: str) -> tuple[float, float]:
    """Read a table in both ways; return MB of the driver's heap, and of its largest planner."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    expected = kudulite.open_table(path).statistics.live_row_count
    for frame in (
        spark.read.format("kudulite").load(path),
        kudulite_spark.read_table(spark, path),
    ):
        assert frame.selectExpr("sum(a)", "count(s)").first()[1] == expected
    gc.collect()
    jvm.java.lang.System.gc()
    heap = jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage()
    java = next(p for p in psutil.Process().children() if "java" in p.name())
    # Those of executors run pyspark.worker; what plans runs a module of pyspark.sql.worker.
    workers = java.children(recursive=True)
    planners = [p for p in workers if "pyspark.sql.worker" in " ".join(p.cmdline())]
    return heap.getUsed() / 1e6, max(p.memory_info().rss for p in planners) / 1e6


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1_000_000, 20_000_000])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kudulite-cluster-") as folder:
        for size in arguments.sizes:
            make_table(f"{folder}/t{size}", size)
        begin = time.perf_counter()
        spark = cluster()
        found = executor_count(spark)
        assert found == 2, f"tasks ran in {found} processes"
        exercise(spark, f"{folder}/t", arguments.rows)
        print(
            f"two executors, {arguments.rows} rows: {time.perf_counter() - begin:.0f} s, all right"
        )
        for size in arguments.sizes:
            heap, planner = driver_memory(spark, f"{folder}/t{size}")
            print(f"{size:>9} rows: driver heap {heap:.0f} MB, largest planner {planner:.0f} MB")
        spark.stop()


if __name__ == "__main__":
    main()
