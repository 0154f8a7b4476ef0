"""Two columns of a table of 200, compared with Spark reading them from Parquet.

    python benchmarks/wide_table.py [--rows 1000000] [--columns 200] [--repeat 9] [--tablets 2]

The columns are read by read_table, by format("kudulite") with the option `columns`, and with the
front. A time is measured from the call that makes the DataFrame to the result. The ways take turns
after a round that is not counted, and the median is printed. The Parquet files have the same rows,
are as many, and were written by pyarrow.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import kudulite
import kudulite_spark


def make_rows(row_count: int, column_count: int) -> pa.Table:
    """Return an int64 key `id`, then integers, doubles and texts in turn, `c1`, `c2`, …"""
    random = np.random.default_rng(7)
    texts = pa.array([f"text {i:06d}" for i in range(5000)])
    columns: dict[str, pa.Array] = {"id": pa.array(np.arange(row_count))}
    for number in range(1, column_count):
        drawn = random.integers(0, 5000, row_count)
        kinds = [
            lambda d: pa.array(d.astype(np.int32)),
            lambda d: pa.array(d / 7),
            lambda d: texts.take(pa.array(d)),
        ]
        columns[f"c{number}"] = kinds[number % 3](drawn)
    return pa.table(columns)


def write_parquet(rows: pa.Table, folder: Path, file_count: int) -> None:
    """Write the rows as zstd Parquet, in files of the same size."""
    folder.mkdir()
    each = -(-rows.num_rows // file_count)
    for number in range(file_count):
        part = rows.slice(number * each, each)
        pq.write_table(part, folder / f"{number}.parquet", compression="zstd")


def ways(spark: SparkSession, path: str, parquet: str) -> dict[str, Callable[[], DataFrame]]:
    """Return what makes a DataFrame of c1 and c2, by the name of the way."""
    source = spark.read.format("kudulite")

    def front() -> DataFrame:
        spark.conf.set("spark.kudulite.front", "true")
        return source.load(path).select("c1", "c2")

    def option() -> DataFrame:
        spark.conf.set("spark.kudulite.front", "false")
        return spark.read.format("kudulite").option("columns", "c1,c2").load(path)

    def native() -> DataFrame:
        spark.conf.set("spark.kudulite.front", "true")
        return kudulite_spark.read_table(spark, path).select("c1", "c2")

    return {
        "parquet": lambda: spark.read.parquet(parquet).select("c1", "c2"),
        "read_table": native,
        "read_table, columns": lambda: kudulite_spark.read_table(spark, path, columns=["c1", "c2"]),
        "columns": option,
        "front": front,
    }


def measure(made: dict[str, Callable[[], DataFrame]], repeat: int) -> dict[str, list[float]]:
    """Return the seconds of each way; every second round is in the other order."""
    seconds: dict[str, list[float]] = {name: [] for name in made}
    plan_seconds: dict[str, list[float]] = {name: [] for name in made}
    answers = set()
    for number in range(repeat + 1):
        for name in list(made)[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            frame = made[name]()
            planned = time.perf_counter()
            found = frame.agg({"c1": "sum", "c2": "max"}).collect()[0]
            end = time.perf_counter()
            answers.add(tuple(str(value)[:12] for value in sorted(found.asDict().items())))
            if number:
                seconds[name].append(end - start)
                plan_seconds[name].append(planned - start)
    assert len(answers) == 1, answers
    first = statistics.median(seconds["parquet"])
    for name, found in seconds.items():
        median, plan = statistics.median(found), statistics.median(plan_seconds[name])
        print(f"{name:20} {median:6.3f} s   ratio {median / first:5.2f}   to plan {plan:6.3f} s")
    return seconds


def main() -> None:
    """Make the table, measure it clean and with deltas."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=200)
    parser.add_argument("--tablets", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=9)
    arguments = parser.parse_args()
    spark = kudulite_spark.local_session(options={"spark.driver.memory": "3g"})
    with tempfile.TemporaryDirectory(prefix="kudulite-wide-") as folder:
        work = Path(folder)
        rows = make_rows(arguments.rows, arguments.columns)
        client = kudulite.connect(work, background_maintenance=False)
        hashed = [(["id"], arguments.tablets)] if arguments.tablets > 1 else None
        table = client.create_table("t", rows.schema, primary_key=["id"], hash_partitions=hashed)
        table.insert(rows)
        write_parquet(rows, work / "parquet", arguments.tablets)
        made = ways(spark, str(work / "t"), str(work / "parquet"))
        print(f"{arguments.rows} rows of {arguments.columns} columns, clean")
        measure(made, arguments.repeat)
        changed = rows.select(["id", "c5"]).slice(0, arguments.rows // 100)
        table.update(changed)
        print("after an update of another column in 1 % of the rows")
        measure(made, arguments.repeat)
    spark.stop()


if __name__ == "__main__":
    main()
