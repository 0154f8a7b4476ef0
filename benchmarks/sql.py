"""MERGE and UPDATE of Spark SQL beside the same changes by `df.write`, and TPC-H's refreshes.

    pip install tpchgen-cli duckdb psutil
    python benchmarks/sql.py [--sizes 100000 10000000] [--only merge update refresh] [--scale 0.1]
    python benchmarks/sql.py --delta io.delta:delta-spark_4.2_2.13:4.4.0    (PySpark 4.2)

local[2], tables of 8 hash partitions with the columns id, host, v and note.

    merge     MERGE of a tenth of the rows (half of them new), UPDATE SET * and INSERT *, beside an
              upsert of the same DataFrame
    update    UPDATE of one column of 5 % of the rows, beside a load, filter and write of the key
              and this column with operation=update
    refresh   TPC-H's refresh functions on orders and lineitem at `--scale`: RF1 as INSERT, again as
              MERGE, and RF2 as DELETE; the rows are compared with those that DuckDB computes

The ways of `merge` and of `update` must give the same rows. Figures are medians of `--rounds`
rounds, each from a copy of the same table; the ways take turns. `--delta` adds the same statements
on tables of Delta with deletion vectors.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
from pyspark.sql import DataFrame, SparkSession
from spark_steps import delta_options
from tpch import CHOSEN, INSERTED, KEYS, generate, load

import kudulite
import kudulite_spark

TABLETS = 8
STEPS = ["merge", "update", "refresh"]
ROW = ["id", "concat('host', id % 1000) AS host", "id * 0.5D AS v", "concat('note ', id) AS note"]
MERGE = (
    "MERGE INTO {t} t USING source s ON t.id = s.id"
    " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
)
Way = Callable[[], object]


class Tables:
    """A table of `row_count` rows, and copies of it to change."""

    format = "kudulite"

    def __init__(self, spark: SparkSession, folder: Path, row_count: int) -> None:
        self.spark, self.row_count = spark, row_count
        self.first, self.path = str(folder / f"{self.format}-first"), str(folder / self.format)
        self.name = f"{self.format}.`{self.path}`"
        self.fill(spark.range(0, row_count, 1, 8).selectExpr(*ROW))

    def fill(self, rows: DataFrame) -> None:
        """Make the table."""
        kudulite_spark.create_table(
            self.spark,
            self.first,
            "id BIGINT, host STRING, v DOUBLE, note STRING",
            primary_key=["id"],
            hash_partitions=[(["id"], TABLETS)],
        )
        _save(rows, self.first, operation="insert")

    def renew(self) -> None:
        """Make the copy anew."""
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(self.first, self.path)

    def checksum(self) -> tuple:
        """Return the number of rows of the copy, and the sum of their hashes."""
        frame = self.spark.read.format(self.format).load(self.path)
        return tuple(frame.selectExpr("count(*)", "sum(xxhash64(id, host, v, note) % 1e9)").first())


class DeltaTables(Tables):
    """The same in Delta, sorted by the key, in as many files."""

    format = "delta"

    def fill(self, rows: DataFrame) -> None:
        """Make the table."""
        rows.write.format("delta").save(self.first)


def _save(frame: DataFrame, path: str, **options: str) -> None:
    frame.write.format("kudulite").mode("append").options(**options).save(path)


def measure(ways: dict[str, tuple[Tables, Way]], rounds: int) -> None:
    """Print the seconds of each way and their ratio to the first; all must give the same rows."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    found = set()
    for number in range(rounds + 1):
        for name, (tables, way) in ways.items():
            tables.renew()
            begin = time.perf_counter()
            way()
            if number:  # the first round warms the workers up
                seconds[name].append(time.perf_counter() - begin)
            found.add(tables.checksum())
    assert len(found) == 1, found
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    base, *_ = medians
    for name, median in medians.items():
        print(f"    {name:32} {median:7.2f} s   {median / medians[base]:.2f} ×", flush=True)


def statement(tables: Tables, text: str) -> tuple[Tables, Way]:
    """Return the way of a statement."""
    return tables, lambda: tables.spark.sql(text.format(t=tables.name))


def merge(tables: Tables, others: list[Tables], rounds: int) -> None:
    """MERGE beside an upsert."""
    spark, size = tables.spark, tables.row_count
    source = spark.range(size - size // 20, size + size // 20, 1, 4).selectExpr(
        "id", "'new' AS host", "id * 2.0D AS v", "concat('merged ', id) AS note"
    )
    source.createOrReplaceTempView("source")
    print(f"merge: {size // 10} rows into {size}")
    ways = {"df.write, operation=upsert": (tables, lambda: _save(source, tables.path))}
    for each in (tables, *others):
        ways[f"MERGE, {each.format}"] = statement(each, MERGE)
    measure(ways, rounds)


def update(tables: Tables, others: list[Tables], rounds: int) -> None:
    """UPDATE of one column of 5 % of the rows beside a write of it."""
    condition = "id * 2654435761 % 1000003 % 20 = 0"

    def by_hand() -> None:
        frame = tables.spark.read.format("kudulite").load(tables.path).filter(condition)
        _save(frame.selectExpr("id", "v + 1 AS v"), tables.path, operation="update")

    print(f"update: one column of {tables.row_count // 20} rows of {tables.row_count}")
    ways: dict[str, tuple[Tables, Way]] = {"df.write, operation=update": (tables, by_hand)}
    for each in (tables, *others):
        text = f"UPDATE {{t}} SET v = v + 1 WHERE {condition}"
        ways[f"UPDATE, {each.format}"] = statement(each, text)
    measure(ways, rounds)


# The statements of TPC-H's refresh functions, and what DuckDB does to the same rows.
REFRESH = ("INSERT", "MERGE", "DELETE")


def refresh(spark: SparkSession, folder: Path, scale: float) -> None:
    """RF1 as INSERT, then as a MERGE that finds its rows, and RF2 as DELETE."""
    source, root = folder / "tpch", folder / "tpch-tables"
    generate(source, scale)
    load(source, root)
    print(f"refresh: TPC-H at scale {scale:g}")
    with duckdb.connect() as duck:
        for name in CHOSEN:
            key, *others = KEYS[name]
            file = source / f"{name}.parquet"
            spark.read.parquet(str(file)).createOrReplaceTempView("source")
            duck.execute(f"CREATE TABLE {name} AS SELECT * FROM '{file}'")
            # The key comes first in the table, and elsewhere in the file.
            rest = [c for c in spark.table("source").columns if c != key]
            new = f"SELECT {', '.join([INSERTED[name], *rest])} FROM {{}} WHERE {CHOSEN[name]}"
            condition = " AND ".join(f"t.{column} = s.{column}" for column in (key, *others))
            table = f"kudulite.`{root / name}`"
            gone = f"{key} IN (SELECT {key} FROM {{}} WHERE {CHOSEN[name]} = 900)"
            more = new.format("source") + " BETWEEN 500 AND 501"
            statements = {
                "INSERT": f"INSERT INTO {table} BY NAME {new.format('source')} = 500",
                "MERGE": f"MERGE INTO {table} t USING ({more}) s ON {condition}"
                " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
                "DELETE": f"DELETE FROM {table} WHERE {gone.format('source')}",
            }
            same = {
                "INSERT": f"INSERT INTO {name} {new.format(repr(str(file)))} = 500",
                "MERGE": f"INSERT INTO {name} {new.format(repr(str(file)))} = 501",
                "DELETE": f"DELETE FROM {name} WHERE {gone.format(repr(str(file)))}",
            }
            for kind in REFRESH:
                begin = time.perf_counter()
                spark.sql(statements[kind])
                seconds = time.perf_counter() - begin
                duck.execute(same[kind])
                rows = kudulite.open_table(root / name).scan().to_arrow()
                names = ", ".join(rows.column_names)
                assert [(rows.num_rows,)] == duck.execute(f"SELECT count(*) FROM {name}").fetchall()
                for one, other in ((name, "rows"), ("rows", name)):
                    query = f"SELECT {names} FROM {one} EXCEPT ALL SELECT {names} FROM {other}"
                    assert not duck.execute(query).fetchall(), (name, kind)
                print(f"    {name} {kind:8} {seconds:7.2f} s, {rows.num_rows} rows, all right")


def main() -> None:
    """Run the steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[100_000, 10_000_000])
    parser.add_argument("--only", nargs="*", choices=STEPS, default=STEPS)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delta", metavar="PACKAGE", help="also Delta: its Maven coordinates")
    arguments = parser.parse_args()
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="kudulite-sql-", dir=place) as name:
        folder = Path(name)
        options = delta_options(arguments.delta) if arguments.delta else {}
        spark = kudulite_spark.local_session("sql", warehouse=folder / "warehouse", options=options)
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        for size in arguments.sizes:
            own = folder / str(size)
            own.mkdir()
            tables = Tables(spark, own, size)
            others = [DeltaTables(spark, own, size)] if arguments.delta else []
            for step in (merge, update):
                if step.__name__ in arguments.only:
                    step(tables, others, arguments.rounds)
            shutil.rmtree(own)
        if "refresh" in arguments.only:
            refresh(spark, folder, arguments.scale)
        spark.stop()


if __name__ == "__main__":
    main()
