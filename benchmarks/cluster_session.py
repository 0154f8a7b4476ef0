"""A session on the cluster of benchmarks/cluster.py, tables with dictionaries, and figures.

Runs on the client, with the installed packages only; cluster_parts.py has the parts that use it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import kudulite
import kudulite_spark

# A directory that all hosts share, or an address with the options that reach it.
WAREHOUSE = os.environ["WAREHOUSE"]
OPTIONS: dict[str, str] = json.loads(os.environ["STORAGE_OPTIONS"])
WORKERS = ("worker1", "worker2")
SCHEMA = "k BIGINT, v BIGINT, s STRING"
TABLETS = 4
SETTINGS = {
    "spark.master": "spark://master:7077",
    "spark.driver.host": "client",
    "spark.driver.memory": "768m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    # A second session of a process would inherit them.
    "spark.speculation": "false",
    "spark.dynamicAllocation.enabled": "false",
    "spark.log.level": "WARN",
    # A lost worker is noticed after seconds, and not after the two minutes of the default.
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "2s",
    **{f"spark.kudulite.storage.{name}": value for name, value in OPTIONS.items()},
}

Rows = dict[int, tuple[int, str | None]]


class Part:
    """A table of a part, with the dictionary that it has to equal."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.spark, self.name = spark, name
        self.path = f"{WAREHOUSE}/{name}"
        self.model: Rows = {}
        kudulite_spark.create_table(
            spark, self.path, SCHEMA, primary_key=["k"], hash_partitions=[(["k"], TABLETS)]
        )

    @property
    def table(self) -> kudulite.Table:
        """The table as the driver's host sees it, opened again."""
        return opened(self.path)

    def frame(self, rows: Rows, parts: int = 4) -> DataFrame:
        """The rows as a DataFrame."""
        columns = list(zip(*((k, *cells) for k, cells in rows.items()), strict=True))
        types = (pa.int64(), pa.int64(), pa.string())
        arrays = [pa.array(c, t) for c, t in zip(columns, types, strict=True)]
        frame = self.spark.createDataFrame(pa.table(arrays, names=["k", "v", "s"]))
        return frame.repartition(parts)

    def save(self, frame: DataFrame, mode: str = "append", **options: str) -> None:
        """Write a frame."""
        writer = frame.write.format("kudulite").mode(mode).options(**OPTIONS, **options)
        writer.save(self.path)

    def write(self, operation: str, rows: Rows) -> None:
        """Write rows by an operation, to the table and to the dictionary."""
        frame = self.frame(rows)
        self.save(frame.select("k") if "delete" in operation else frame, operation=operation)
        for key, cells in rows.items():
            is_there = key in self.model
            assert operation not in ("update", "delete") or is_there
            assert operation != "insert" or not is_there
            if operation in ("delete", "delete_ignore"):
                self.model.pop(key, None)
            elif (
                operation in ("insert", "upsert", "upsert_ignore", "update")
                or (operation == "insert_ignore" and not is_there)
                or (operation == "update_ignore" and is_there)
            ):
                self.model[key] = cells

    def read(self) -> DataFrame:
        """The table through the source."""
        return load(self.spark, self.path)

    def check(self, model: Rows | None = None) -> None:
        """Compare all rows with the dictionary: by the source, by read_table, and without Spark."""
        model = self.model if model is None else model
        compare(self.read(), model)
        compare(kudulite_spark.read_table(self.spark, self.path), model)
        found = self.table.scan(["k", "v", "s"]).to_arrow()
        assert as_rows(found) == model, f"{self.name}: without Spark"


def opened(path: str) -> kudulite.Table:
    """Open a table without Spark."""
    return kudulite.open_table(path, storage_options=OPTIONS)


def load(spark: SparkSession, path: str, **options: str) -> DataFrame:
    """Read a table; with all options, because without the front no settings are handed on."""
    return spark.read.format("kudulite").options(**OPTIONS, **options).load(path)


def as_rows(table: pa.Table) -> Rows:
    """Rows of k, v, s as a dictionary; AssertionError for a key twice."""
    keys, *cells = (column.to_pylist() for column in table.columns)
    rows = dict(zip(keys, zip(*cells, strict=True), strict=True))
    assert len(rows) == table.num_rows, "a key twice"
    return rows


def compare(frame: DataFrame, model: Rows) -> None:
    """Compare a frame with a dictionary."""
    found = as_rows(frame.select("k", "v", "s").toArrow())
    if found != model:
        lost, extra = model.keys() - found.keys(), found.keys() - model.keys()
        other = [k for k in model.keys() & found.keys() if model[k] != found[k]]
        raise AssertionError(
            f"{len(lost)} rows lost, {len(extra)} too many, {len(other)} different:"
            f" {sorted(lost)[:3]} {sorted(extra)[:3]} {other[:3]}"
        )


def made(keys: Iterable[int], tag: str) -> Rows:
    """Rows for keys; every seventh text is null."""
    return {k: (k * 3 + len(tag), None if k % 7 == 0 else f"{tag} {k}") for k in keys}


def session(name: str, **options: str) -> SparkSession:
    """A new session on the cluster, with the connector."""
    builder = SparkSession.builder.appName(name)
    for key, value in {**SETTINGS, **options}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    kudulite_spark.register(spark)
    return spark


@contextlib.contextmanager
def front(spark: SparkSession, is_on: bool) -> Iterator[None]:
    """With or without the front, for frames loaded in the block."""
    spark.conf.set("spark.kudulite.front", str(is_on).lower())
    try:
        yield
    finally:
        spark.conf.unset("spark.kudulite.front")


def ask(**request: Any) -> None:
    """Ask cluster.py for something; `answer` waits until it is done."""
    print(json.dumps(request), flush=True)


def answer() -> dict[str, Any]:
    """The answer to the oldest question."""
    return json.loads(sys.stdin.readline())


def slowly(frame: DataFrame, seconds: float) -> DataFrame:
    """The frame, of which each task takes so long."""

    def wait(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.sleep(seconds)
        yield from batches

    return frame.mapInArrow(wait, frame.schema)


class Memory:
    """The largest memory of the driver's processes during a block, sampled from /proc."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._peaks: dict[str, float] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.text = ""

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._end.wait(0.3):
            now = {"JVM": 0.0, "Python": 0.0}
            for place in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError, StopIteration):
                    words = (place / "cmdline").read_bytes().split(b"\0")
                    lines = (place / "smaps_rollup").read_text().splitlines()
                    pss = int(next(li for li in lines if li.startswith("Pss:")).split()[1]) / 1e3
                    kind = "JVM" if words[0].endswith(b"java") else "Python"
                    now[kind] += pss if b"python" in words[0] or kind == "JVM" else 0.0
            for kind, pss in now.items():
                self._peaks[kind] = max(self._peaks.get(kind, 0.0), pss)

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        self._thread.join()
        jvm: Any = self._spark.sparkContext._jvm
        jvm.java.lang.System.gc()
        beans = jvm.java.lang.management.ManagementFactory
        heap = beans.getMemoryMXBean().getHeapMemoryUsage().getUsed() / 1e6
        self.text = (
            f"heap in use {heap:.0f} MB, PSS at most JVM {self._peaks['JVM']:.0f} MB,"
            f" all Python processes {self._peaks['Python']:.0f} MB"
        )
