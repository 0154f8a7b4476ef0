"""TPC-H with kudulite_spark.read_table, compared with Spark over Parquet, before and after changes.

    pip install tpchgen-cli duckdb
    python benchmarks/tpch.py --scale 1 [--only dirty] [--queries 1 6 14]

tpchgen-cli generates the data as Parquet files.

    clean    the 22 queries over tables loaded from these files, and over the files themselves
    dirty    the same after 0.1 % of orders and lineitem were inserted, 1 % updated and 0.1 %
             deleted through the connector; DuckDB makes the same changes to the Parquet files

All results must be equal. Prints the seconds of opening the tables and of each query, and the
geometric means of the ratios.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from tpch_queries import QUERIES

import kudulite
import kudulite_spark

KEYS = {
    "nation": ["n_nationkey"],
    "region": ["r_regionkey"],
    "part": ["p_partkey"],
    "supplier": ["s_suppkey"],
    "partsupp": ["ps_partkey", "ps_suppkey"],
    "customer": ["c_custkey"],
    "orders": ["o_orderkey"],
    "lineitem": ["l_orderkey", "l_linenumber"],
}
# Orders have one key in four, in runs of eight: a hash spreads what is chosen over all of them.
CHOSEN = {
    "orders": "(o_orderkey * 2654435761) % 1000003 % 1000",
    "lineitem": "(l_orderkey * 2654435761) % 1000003 % 1000",
}
INSERTED = {
    "orders": "o_orderkey + 100000000 AS o_orderkey",
    "lineitem": "l_orderkey + 100000000 AS l_orderkey",
}
UPDATED = {
    "orders": [
        "CAST(o_totalprice + 1 AS DECIMAL(15, 2)) AS o_totalprice",
        "'1-URGENT' AS o_orderpriority",
    ],
    "lineitem": [
        "CAST(l_extendedprice + 1 AS DECIMAL(15, 2)) AS l_extendedprice",
        "'AIR' AS l_shipmode",
    ],
}


def generate(folder: Path, scale: float) -> None:
    """Write the tables as Parquet, unless they are there."""
    if not (folder / "lineitem.parquet").exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Beside the interpreter, or elsewhere if the environment is an active one.
        beside = Path(sys.executable).parent
        found = shutil.which("tpchgen-cli", path=f"{beside}{os.pathsep}{os.environ['PATH']}")
        if found is None:
            sys.exit("tpchgen-cli is not installed; run: pip install tpchgen-cli")
        options = ["parquet", "-s", f"{scale:g}", f"--output-dir={folder}"]
        subprocess.run([found, *options], check=True)


def load(source: Path, root: Path) -> float:
    """Load the Parquet files into kudulite tables; returns the seconds."""
    client = kudulite.connect(root)
    start = time.perf_counter()
    for name, keys in KEYS.items():
        data = pq.read_table(source / f"{name}.parquet")
        fields = [pa.field(f.name, _plain(f.type), f.name not in keys) for f in data.schema]
        data = data.cast(pa.schema(fields))
        client.create_table(name, data.schema, primary_key=keys).insert(data)
    return time.perf_counter() - start


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_string_view(kind) or pa.types.is_large_string(kind) else kind


def change(spark: SparkSession, source: Path, root: Path) -> float:
    """Insert, update and delete through the connector; returns the seconds."""
    start = time.perf_counter()
    for name, keys in KEYS.items():
        if name not in CHOSEN:
            continue
        frame = spark.read.parquet(str(source / f"{name}.parquet"))
        rest = [column for column in frame.columns if column != keys[0]]
        chosen = {n: frame.filter(f"{CHOSEN[name]} {test}") for n, test in _tests().items()}
        _save(chosen["inserted"].selectExpr(INSERTED[name], *rest), root / name, "insert")
        updated = chosen["updated"].selectExpr(*keys, *UPDATED[name])
        _save(updated, root / name, "update")
        _save(chosen["deleted"].select(*keys), root / name, "delete")
    return time.perf_counter() - start


def _tests() -> dict[str, str]:
    return {"inserted": "= 500", "updated": "BETWEEN 10 AND 19", "deleted": "= 900"}


def _save(frame: DataFrame, path: Path, operation: str) -> None:
    options = {"operation": operation}
    frame.write.format("kudulite").mode("append").options(**options).save(str(path))


def change_parquet(source: Path, target: Path) -> None:
    """Make the same changes in DuckDB, into new Parquet files; other tables stay as they are."""
    target.mkdir(parents=True, exist_ok=True)
    tests = _tests()
    for name, keys in KEYS.items():
        place = target / f"{name}.parquet"
        if name not in CHOSEN:
            if not place.exists():
                place.symlink_to((source / f"{name}.parquet").resolve())
            continue
        file, chosen = f"'{source / name}.parquet'", CHOSEN[name]
        replaced = ", ".join(UPDATED[name])
        query = f"""
            SELECT * FROM {file}
              WHERE NOT ({chosen} {tests["updated"]} OR {chosen} {tests["deleted"]})
            UNION ALL SELECT * REPLACE ({replaced}) FROM {file} WHERE {chosen} {tests["updated"]}
            UNION ALL SELECT * REPLACE ({INSERTED[name]}) FROM {file}
              WHERE {chosen} {tests["inserted"]}
            ORDER BY {", ".join(keys)}"""
        duckdb.sql(f"COPY ({query}) TO '{place}' (FORMAT parquet, COMPRESSION zstd)")


def open_tables(
    spark: SparkSession, label: str, folders: tuple[Path, Path]
) -> dict[str, dict[str, DataFrame]]:
    """Open the tables by both readers, twice, and print the seconds."""
    parquet, root = folders
    openers: dict[str, Callable[[str], DataFrame]] = {
        "parquet": lambda name: spark.read.parquet(str(parquet / f"{name}.parquet")),
        "read_table": lambda name: kudulite_spark.read_table(spark, str(root / name)),
    }
    tables = {}
    for reader, opener in openers.items():
        times = []
        for _ in range(2):
            start = time.perf_counter()
            tables[reader] = {name: opener(name) for name in KEYS}
            times.append(time.perf_counter() - start)
        print(
            f"{label} the eight tables open by {reader}: {times[0]:.2f} s, again {times[1]:.2f} s"
        )
    return tables


def compare(
    spark: SparkSession, label: str, folders: tuple[Path, Path], arguments: argparse.Namespace
) -> float:
    """Run queries over Parquet files and tables; returns the geometric mean of the ratios.

    They are of the best times. Each query runs once over both before it is timed; then they take
    turns in being the first.
    """
    readers = open_tables(spark, label, folders)
    logs = []
    for number in arguments.queries:
        text = QUERIES[number]
        best = dict.fromkeys(readers, math.inf)
        answers = {}
        for turn in range(arguments.repeat + 1):
            for reader in list(readers)[:: 1 if turn % 2 else -1]:
                for name, frame in readers[reader].items():
                    frame.createOrReplaceTempView(name)
                start = time.perf_counter()
                answers[reader] = spark.sql(text).collect()
                if turn:
                    best[reader] = min(time.perf_counter() - start, best[reader])
        assert answers["parquet"] == answers["read_table"], f"query {number} differs"
        ratio = best["read_table"] / best["parquet"]
        logs.append(math.log(ratio))
        print(
            f"{label} q{number:<2} parquet {best['parquet']:7.3f} s   read_table"
            f" {best['read_table']:7.3f} s   ratio {ratio:5.2f}   {len(answers['parquet'])} rows",
            flush=True,
        )
    return math.exp(sum(logs) / len(logs))


def prepare(spark: SparkSession, folder: Path, scale: float) -> None:
    """Generate the data, load it, and make the changes, unless that was done before."""
    source = folder / "source"
    generate(source, scale)
    if not (folder / "clean").exists():
        print(f"load: {load(source, folder / 'clean'):.1f} s")
    if not (folder / "changed").exists():
        shutil.copytree(folder / "clean", folder / "dirty")
        print(f"changes: {change(spark, source, folder / 'dirty'):.1f} s")
        change_parquet(source, folder / "changed")


def main() -> None:
    """Prepare, compare clean and changed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--folder", type=Path, help="of all data, to be used again")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--queries", type=int, nargs="*", choices=QUERIES, default=list(QUERIES))
    parser.add_argument("--only", nargs="*", choices=["clean", "dirty"], default=["clean", "dirty"])
    parser.add_argument("--only-prepare", action="store_true")
    arguments = parser.parse_args()
    options = {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "4"}
    spark = kudulite_spark.local_session(cores=os.cpu_count() or 2, options=options)
    with tempfile.TemporaryDirectory(prefix="kudulite-tpch-") as own:
        folder = arguments.folder or Path(own)
        prepare(spark, folder, arguments.scale)
        if not arguments.only_prepare:
            sides = {
                "clean": (folder / "source", folder / "clean"),
                "dirty": (folder / "changed", folder / "dirty"),
            }
            for label in arguments.only:
                mean = compare(spark, label, sides[label], arguments)
                print(f"{label}: geometric mean of the ratios {mean:.3f}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
