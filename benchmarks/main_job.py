"""Load, upsert, update, delete, scan and look up generated rows, compared with pyarrow's Parquet.

    python benchmarks/main_job.py [--rows 5000000] [--tablets 8] [--repeat 3] [--spark]

Every figure is printed with the pyarrow (or Spark Parquet) figure of the same data and run. Compare
the ratios, because machines differ. Repeated work shows its median.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import kudulite

SCANNED = ["amount", "quantity", "name"]


def make_rows(count: int, ids: np.ndarray, seed: int) -> pa.Table:
    """Return ten columns: an int64 key, four integers, two doubles, two strings, a timestamp."""
    random = np.random.default_rng(seed)
    names = pa.array([f"customer-{i:05d}" for i in range(20_000)])
    cities = pa.array([f"city {i}" for i in range(300)])
    return pa.table(
        {
            "id": pa.array(ids),
            "customer": pa.array(random.integers(0, 1 << 40, count)),
            "quantity": pa.array(random.integers(0, 100, count).astype(np.int32)),
            "status": pa.array(random.integers(0, 6, count).astype(np.int16)),
            "amount": pa.array(random.random(count) * 1000),
            "tax": pa.array(np.round(random.random(count) * 100, 2)),
            "name": names.take(pa.array(random.integers(0, len(names), count))),
            "city": cities.take(pa.array(random.integers(0, len(cities), count))),
            "ordered": pa.array(
                1_700_000_000_000_000 + random.integers(0, 10**13, count), pa.timestamp("us", "UTC")
            ),
            "flags": pa.array(random.integers(0, 1 << 20, count)),
        }
    )


class Report:
    """Figures as they come, one line each."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def measure(self, name: str, work: Callable[[], object], repeat: int = 1) -> object:
        """Run `work` and keep the median of its seconds under `name`."""
        times = []
        for _ in range(repeat):
            start = time.perf_counter()
            result = work()
            times.append(time.perf_counter() - start)
        self.seconds[name] = statistics.median(times)
        return result

    def measure_in_turn(self, works: dict[str, Callable[[], object]], repeat: int) -> None:
        """Measure works that are compared, in turn."""
        self.seconds |= seconds_in_turn(works, repeat)

    def line(self, name: str, against: str | None = None, budget: str = "") -> None:
        """Print one figure, with its ratio to another."""
        text = f"{name:<44}{self.seconds[name]:>10.3f} s"
        if against is not None:
            ratio = self.seconds[name] / self.seconds[against]
            text += f"{ratio:>8.2f} × {against}"
        print(f"{text}   {budget}".rstrip(), flush=True)


def seconds_in_turn(works: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Return the median seconds of works that are compared, A B A B …, after one uncounted round.

    One after the other, the first would pay for memory that the second finds warm.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for count in range(repeat + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if count:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in times.items()}


def run_core(report: Report, root: Path, args: argparse.Namespace) -> None:
    """Measure the embedded engine."""
    ids = np.random.default_rng(7).permutation(args.rows).astype(np.int64) * 3
    loaded = run_load(report, root, ids, args)
    run_clean_scans(report, loaded, args)
    before = loaded.current_timestamp()
    run_changes(report, loaded, ids)
    report.measure("scan, dirty", lambda: loaded.scan(SCANNED).to_arrow(), args.repeat)
    report.line("scan, dirty", "scan, clean", "budget 1.5")
    report.measure("scan all columns, dirty", lambda: loaded.scan().to_arrow(), args.repeat)
    report.line("scan all columns, dirty", "scan all columns, clean", "budget 1.5")
    report.measure(
        "scan before the upsert", lambda: loaded.scan(SCANNED, at=before).to_arrow(), args.repeat
    )
    report.line("scan before the upsert", "scan, clean", "budget 1.5")
    run_lookups(report, loaded, ids)


def run_load(
    report: Report, root: Path, ids: np.ndarray, args: argparse.Namespace
) -> kudulite.Table:
    """Measure loads beside Parquet writes; the peer writes rows that are in key order already."""
    table = make_rows(args.rows, ids, seed=1)
    in_order = table.take(pa.array(np.argsort(ids)))
    parquet = root / "peer.parquet"

    def write(rows: pa.Table) -> None:
        pq.write_table(rows, parquet, compression="zstd")

    report.measure("pyarrow write", lambda: write(in_order))
    report.line("pyarrow write")
    report.measure("pyarrow sort + write", lambda: write(table.sort_by("id")))
    report.line("pyarrow sort + write")
    client = kudulite.connect(root / "tables", background_maintenance=False)
    hashed = [(["id"], args.tablets)]
    loaded = client.create_table("load", table.schema, primary_key="id", hash_partitions=hashed)
    report.measure("load", lambda: loaded.insert(table))
    report.line("load", "pyarrow write", "budget 1.5")
    other = client.create_table("sorted", table.schema, primary_key="id", hash_partitions=hashed)
    report.measure("load, rows sorted by key", lambda: other.insert(in_order))
    report.line("load, rows sorted by key", "pyarrow write")
    client.delete_table("sorted")
    return loaded


def run_clean_scans(report: Report, loaded: kudulite.Table, args: argparse.Namespace) -> None:
    """Measure scans of clean data beside pyarrow reading the same files, as many threads."""
    files = sorted((loaded.path / "tablet").rglob("base-*.parquet"))

    def read_files(columns: list[str] | None) -> pa.Table:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            parts = pool.map(lambda f: pq.read_table(f, columns=columns, use_threads=False), files)
            return pa.concat_tables(parts)

    report.measure_in_turn(
        {
            "pyarrow read": lambda: read_files(SCANNED),
            "scan, clean": lambda: loaded.scan(SCANNED).to_arrow(),
        },
        args.repeat,
    )
    report.line("pyarrow read")
    report.line("scan, clean", "pyarrow read", "budget 1.2")
    report.measure_in_turn(
        {
            "pyarrow read, all columns": lambda: read_files(None),
            "scan all columns, clean": lambda: loaded.scan().to_arrow(),
        },
        args.repeat,
    )
    report.line("pyarrow read, all columns")
    report.line("scan all columns, clean", "pyarrow read, all columns", "budget 1.2")


def run_changes(report: Report, loaded: kudulite.Table, ids: np.ndarray) -> None:
    """Measure an upsert of random keys, nine in ten present, an update and a delete."""
    random = np.random.default_rng(8)
    rows, tenth = len(ids), len(ids) // 10
    present = random.choice(ids, tenth * 9 // 10, replace=False)
    absent = random.permutation(tenth - len(present)).astype(np.int64) * 3 + 1
    upsert = make_rows(tenth, random.permutation(np.concatenate([present, absent])), seed=2)
    report.measure("upsert of 10 % random keys", lambda: loaded.upsert(upsert))
    report.line("upsert of 10 % random keys", "load", "budget 0.20")
    twentieth = random.choice(ids, rows // 20, replace=False)
    update = pa.table({"id": twentieth, "amount": random.random(len(twentieth))})
    report.measure("update of one column, 5 %", lambda: loaded.update(update))
    report.line("update of one column, 5 %", "upsert of 10 % random keys", "budget 0.5")
    dead = pa.table({"id": random.choice(ids, rows // 100, replace=False)})
    report.measure("delete of 1 %", lambda: loaded.delete(dead))
    report.line("delete of 1 %", "upsert of 10 % random keys")


def run_lookups(report: Report, table: kudulite.Table, ids: np.ndarray) -> None:
    """Measure lookups by key, warm."""
    random = np.random.default_rng(11)
    keys = random.choice(ids[: len(ids) // 20], 2000)
    for key in keys:
        table.get(int(key))
    times = []
    for key in keys:
        start = time.perf_counter()
        table.get(int(key))
        times.append(time.perf_counter() - start)
    print(f"{'get, warm, median':<44}{statistics.median(times) * 1e6:>10.0f} µs  budget 150")
    many = pa.table({"id": random.choice(ids, 10_000, replace=False)})
    table.get_many(many)
    start = time.perf_counter()
    table.get_many(many)
    seconds = time.perf_counter() - start
    print(f"{'get_many of 10,000 keys, warm':<44}{seconds * 1e3:>10.1f} ms  budget 100")


def run_spark(report: Report, root: Path, args: argparse.Namespace) -> None:
    """Measure Spark's load, read and upsert beside Spark's own Parquet."""
    import kudulite_spark

    spark = kudulite_spark.local_session("kudulite benchmark")
    try:
        _run_spark(report, root, args, spark)
    finally:
        spark.stop()


def _run_spark(report: Report, root: Path, args: argparse.Namespace, spark) -> None:
    source, copy, target = str(root / "source"), str(root / "copy"), str(root / "spark")
    Path(source).mkdir()
    table = make_rows(args.rows, np.random.default_rng(3).permutation(args.rows), seed=4)
    step = -(-args.rows // 4)
    for number in range(4):
        part = table.slice(number * step, step)
        pq.write_table(part, f"{source}/{number}.parquet", compression="zstd")
    del table
    frame = spark.read.parquet(source)
    frame.write.format("noop").mode("overwrite").save()

    def write_parquet(data) -> None:
        data.write.mode("overwrite").option("compression", "zstd").parquet(copy)

    def write_kudulite(data, path: str = target) -> None:
        writer = data.write.format("kudulite").mode("append")
        writer = writer.option("primaryKey", "id").option("hashPartitions", f"id:{args.tablets}")
        writer.save(path)

    write_parquet(frame.limit(1000))
    write_kudulite(frame.limit(1000), str(root / "warm"))
    report.measure("Spark write Parquet", lambda: write_parquet(frame))
    report.line("Spark write Parquet")
    report.measure("Spark load", lambda: write_kudulite(frame))
    report.line("Spark load", "Spark write Parquet")

    def consume(data) -> None:
        data.write.format("noop").mode("overwrite").save()

    wanted = [*SCANNED, "ordered"]

    def read_kudulite() -> None:
        reader = spark.read.format("kudulite").option("columns", ",".join(wanted))
        consume(reader.load(target))

    report.measure_in_turn(
        {
            "Spark read Parquet": lambda: consume(frame.select(*wanted)),
            "ready-made batches": lambda: consume(_floor(spark, args.rows)),
            "Spark read": read_kudulite,
        },
        args.repeat,
    )
    report.line("Spark read Parquet")
    report.line("ready-made batches")
    report.line("Spark read", "ready-made batches", "budget 1.25 (0.8 of its rows/s)")
    report.line("Spark read", "Spark read Parquet")
    tenth = frame.sample(0.1, seed=5)
    report.measure("Spark write Parquet, 10 %", lambda: write_parquet(tenth))
    report.measure("Spark upsert, 10 %", lambda: write_kudulite(tenth))
    report.line("Spark upsert, 10 %", "Spark write Parquet, 10 %", "budget 1.5")


def _floor(spark, rows: int):
    """Return a DataFrame of a Python source that yields ready-made batches of the same columns."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    parts = 4

    class Reader(DataSourceReader):
        def partitions(self):
            return [InputPartition(i) for i in range(parts)]

        def read(self, partition):
            import numpy as np
            import pyarrow as pa

            count = 65536
            random = np.random.default_rng(1)
            batch = pa.record_batch(
                {
                    "amount": pa.array(random.random(count)),
                    "quantity": pa.array(random.integers(0, 100, count).astype(np.int32)),
                    "name": pa.array([f"customer-{i % 20000:05d}" for i in range(count)]),
                    "ordered": pa.array(
                        random.integers(0, 10**15, count), pa.timestamp("us", "UTC")
                    ),
                }
            )
            left = rows // parts
            while left > 0:
                yield batch.slice(0, left)
                left -= count

    class Source(DataSource):
        @classmethod
        def name(cls):
            return "floor"

        def schema(self):
            return "amount double, quantity int, name string, ordered timestamp"

        def reader(self, schema):
            return Reader()

    spark.dataSource.register(Source)
    return spark.read.format("floor").load()


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--tablets", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--spark", action="store_true", help="measure Spark as well")
    parser.add_argument("--no-core", action="store_true", help="leave the embedded part out")
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="kudulite-benchmark-"))
    print(f"{args.rows:,} rows × 10 columns, {args.tablets} tablets, {os.cpu_count()} cores")
    report = Report()
    try:
        if not args.no_core:
            run_core(report, root, args)
        if args.spark:
            run_spark(report, root, args)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
