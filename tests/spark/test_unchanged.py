"""Full snapshots of which little differs, in each way to write with Spark; see the option."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import kudulite
import kudulite_spark
from tests.spark.conftest import BOTH, FRONT
from tests.support.spark.spark_tables import make_table, save, stored

pytestmark = BOTH

OLD = [(k, float(k), "x") for k in range(20)]
# Row 0 is gone, row 1 has another cell, row 20 is new, and row 2 has a NULL.
NEW = [(1, 1.0, "y"), (2, 2.0, None), *OLD[3:], (20, float("nan"), "z")]
SKIP = {"unchanged": "skip"}
WITH = "WITH (unchanged = 'skip')"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table with the rows OLD, in two tablets."""
    types = {"k": pa.int32(), "v": pa.float64(), "s": pa.string()}
    layout = {"primary_key": ["k"], "hash_partitions": [(["k"], 2)]}
    return Path(make_table(tmp_path / "t", OLD, types, **layout))


def snapshot(spark: SparkSession) -> DataFrame:
    """The rows NEW, in two tasks."""
    return spark.createDataFrame(NEW, "k int, v double, s string").repartition(2)


def expect_changes(path: Path, write: Callable[[], object], expected: dict[int, str]) -> None:
    """The write makes these changes and no other, and another time none at all."""
    table = kudulite.open_table(path)
    moment = table.current_timestamp()
    write()
    changes = {row["k"]: row["_change_type"] for row in table.changes(moment).to_pylist()}
    assert changes == expected
    then = table.current_timestamp()
    write()
    assert table.changes(then).to_pylist() == []


REPLACED = {0: "delete", 1: "update_postimage", 2: "update_postimage", 20: "insert"}
MERGED = {1: "update_postimage", 2: "update_postimage", 20: "insert"}


@pytest.mark.quick
def test_an_overwrite_changes_what_differs(spark, path):
    """By path: equal rows stay, absent ones are deleted."""
    expect_changes(path, lambda: save(snapshot(spark), path, "overwrite", **SKIP), REPLACED)
    assert repr(stored(path)) == repr(NEW)


def test_an_upsert_leaves_cells_of_ignored_nulls_and_equal_ones(spark, path):
    """Row 2 differs by its NULL only, which leaves the cell."""
    options = {**SKIP, "ignoreNull": "true", "operation": "upsert"}
    changes = {1: "update_postimage", 20: "insert"}
    expect_changes(path, lambda: save(snapshot(spark), path, **options), changes)


def test_an_ordered_upsert_writes_newer_rows_only(spark, path):
    """Of equal ordering values, greater cells are newer: NULL is the least."""
    options = {**SKIP, "orderingColumn": "v", "operation": "upsert"}
    changes = {1: "update_postimage", 20: "insert"}
    expect_changes(path, lambda: save(snapshot(spark), path, **options), changes)


@FRONT
def test_tables_of_a_catalog_take_the_option(spark, path, front):
    """INSERT, INSERT OVERWRITE and writeTo; the parser of WITH is that of Spark."""
    name = f"c{uuid.uuid4().hex}"
    kudulite_spark.register(spark, warehouse=path.parent, catalog=name)
    spark.conf.set("spark.kudulite.front", str(front).lower())
    snapshot(spark).createOrReplaceTempView("snapshot")
    before = kudulite.open_table(path).current_timestamp()

    def as_before() -> None:
        kudulite.open_table(path).restore(before)

    overwrite = f"INSERT OVERWRITE {name}.t {WITH} SELECT * FROM snapshot"
    expect_changes(path, lambda: spark.sql(overwrite), REPLACED)
    as_before()
    upsert = f"{WITH[:-1]}, operation = 'upsert')"
    expect_changes(
        path,
        lambda: spark.sql(f"INSERT INTO {name}.t {upsert} SELECT * FROM snapshot"),
        MERGED,
    )
    as_before()
    to = snapshot(spark).writeTo(f"{name}.t").options(**SKIP)
    expect_changes(path, lambda: to.overwrite(sf.lit(True)), REPLACED)
    as_before()
    merge = snapshot(spark).writeTo(f"{name}.t").options(operation="upsert", **SKIP)
    expect_changes(path, merge.append, MERGED)
    assert repr(stored(path)) == repr([OLD[0], *NEW])


def test_batches_of_streams_take_the_option(spark, path, tmp_path):
    """The sink upserts or, in complete mode, overwrites; so may a function of batches."""
    save(snapshot(spark), tmp_path / "source", primaryKey="k")
    checkpoints = iter(range(10))

    def source() -> DataFrame:
        return spark.readStream.format("kudulite").load(str(tmp_path / "source"))

    def run(writer) -> None:
        place = str(tmp_path / f"checkpoint{next(checkpoints)}")
        query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    def into(frame: DataFrame, mode: str):
        options = {"path": str(path), "operation": "upsert", **SKIP}
        return frame.writeStream.format("kudulite").outputMode(mode).options(**options)

    def batch(frame: DataFrame, _number: int) -> None:
        save(frame.select("k", "v", "s"), path, "overwrite", **SKIP)

    expect_changes(path, lambda: run(into(source(), "append")), MERGED)
    expect_changes(path, lambda: run(source().writeStream.foreachBatch(batch)), {0: "delete"})
    kudulite.open_table(path).delete(where="k > 10")
    back = dict.fromkeys(range(11, 21), "insert")
    whole = source().groupBy("k").agg(sf.max("v").alias("v"), sf.max("s").alias("s"))
    expect_changes(path, lambda: run(into(whole, "complete")), back)
