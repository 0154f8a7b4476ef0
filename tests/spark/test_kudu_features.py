"""A table with features that Kudu got late, through every path of Spark, and a dictionary of it.

Its key is not unique, a column is immutable, a range has hash partitions of its own, and it has an
owner and a comment. The dictionary has rows by (k, id), and learns the ids from a read.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id

import kudulite
import kudulite_spark
from tests.support.spark.spark_tables import load, save
from tests.support.tables.core_tables import altered

ID = kudulite.Schema.get_auto_incrementing_column_name()
BOUNDS = {"columns": ["k"], "bounds": [[None, 10], [10, 20, [["k", 3]]]]}
DEFINITION = {
    "primaryKey": f"k, {ID}",
    "hashPartitions": "k:2",
    "rangePartitions": json.dumps(BOUNDS),
}
Rows = dict[tuple[int, int], tuple[int, str]]


def create(spark: SparkSession, folder: Path) -> kudulite.Table:
    """The table with two rows for each of 20 values of k, which two writes inserted."""
    frame = spark.range(20).selectExpr("CAST(id AS int) AS k", "id AS v", "'first' AS fixed")
    for _ in range(2):
        save(frame, folder / "t", operation="insert", **DEFINITION)
    return altered(
        kudulite.connect(folder, background_maintenance=False),
        "t",
        lambda alterer: (
            alterer.set_owner("ann").set_comment("of Spark").alter_column("fixed").mutable(False)
        ),
    )


def rows_of(frame: DataFrame) -> Rows:
    """The rows of a read by key. Raises AssertionError for a key that is there twice."""
    found = [tuple(row) for row in frame.select("k", ID, "v", "fixed").collect()]
    assert len({row[:2] for row in found}) == len(found)
    return {row[:2]: row[2:] for row in found}


def frame_of(spark: SparkSession, rows: Rows, columns: str) -> DataFrame:
    """Some columns of rows, as a DataFrame."""
    listed = [(*key, *values) for key, values in rows.items()]
    return spark.createDataFrame(listed, f"k int, {ID} long, v long, fixed string").select(
        columns.split()
    )


def change(spark: SparkSession, place: Path, model: Rows) -> None:
    """Updates, upserts and deletes by the whole key; the dictionary has them, too."""
    high = {key: (-values[0], "other") for key, values in model.items() if key[0] >= 10}
    save(frame_of(spark, high, f"k {ID} v"), place)
    low = {key: (1000 + key[0], "second") for key in model if key[0] < 5}
    save(frame_of(spark, low, f"k {ID} v fixed"), place, operation="upsert_ignore")
    with pytest.raises(Exception, match="UPDATE not allowed for immutable column"):
        save(frame_of(spark, low, f"k {ID} v fixed"), place)
    gone = {key: values for key, values in model.items() if key[0] == 19}
    save(frame_of(spark, gone, f"k {ID}"), place, operation="delete")
    model |= {key: (v, "first") for key, (v, _) in (high | low).items()}
    for key in gone:
        del model[key]


def expected_changes(before: Rows, after: Rows) -> dict[tuple[int, int], tuple[Any, ...]]:
    """The change of each key between two moments."""
    found: dict[tuple[int, int], tuple[Any, ...]] = {}
    for key in before.keys() | after.keys():
        if before.get(key) != after.get(key):
            name = "update_postimage" if key in before else "insert"
            name = name if key in after else "delete"
            found[key] = (name, *(after if key in after else before)[key])
    return found


def test_a_table_with_features_of_kudu_is_written_read_and_restored(spark, tmp_path):
    """Rows of now and of then, changes, tasks by tablet, backups, and a recall equal the model."""
    folder, kept = tmp_path / "db", tmp_path / "set"
    place, table = folder / "t", create(spark, folder)
    assert table.tablet_count == 5
    model = rows_of(load(spark, place))
    assert Counter(values for values in model.values()) == {(n, "first"): 2 for n in range(20)}
    numbers = table.tablet_index([{"k": k} for k in range(20)]).to_pylist()
    assert len({(numbers[k], number) for k, number in model}) == 40
    kudulite_spark.backup(spark, str(place), str(kept))
    then, start = dict(model), table.current_timestamp()
    change(spark, place, model)
    assert rows_of(load(spark, place)) == model
    assert rows_of(load(spark, place, snapshotTimestamp=str(int(start)))) == then
    high = rows_of(load(spark, place, filter="k >= 10"))
    assert high == {key: values for key, values in model.items() if key[0] >= 10}
    changes = load(spark, place, startTimestamp=str(int(start))).collect()
    found = {(row.k, row[ID]): (row["_change_type"], row.v, row.fixed) for row in changes}
    assert found == expected_changes(then, model)
    frame = kudulite_spark.repartition_for(spark.range(20).selectExpr("int(id) AS k"), str(place))
    tasks = {row.k: row.task for row in frame.withColumn("task", spark_partition_id()).collect()}
    assert len({(tasks[k], numbers[k]) for k in range(20)}) == len(set(numbers))

    kudulite_spark.backup(spark, str(place), str(kept))
    again = kudulite_spark.restore(spark, str(kept), str(folder / "again"))
    assert rows_of(load(spark, again.path)) == model
    assert again.schema.equals(table.schema) and not again.schema["fixed"].mutable
    assert again.partition_schema.describe_all() == table.partition_schema.describe_all()
    assert (again.owner, again.comment) == ("ann", "of Spark")
    save(spark.sql("SELECT 19 AS k, 7L AS v, 'new' AS fixed"), again.path, operation="insert")
    (new,) = rows_of(load(spark, again.path)).keys() - model.keys()
    assert new[1] > max(number for k, number in then if numbers[k] == numbers[19])

    client = kudulite.connect(folder, background_maintenance=False)
    client.soft_delete_table("t", 3600)
    with pytest.raises(Exception, match="is not a kudulite table"):
        load(spark, place).collect()
    client.recall_table(client.list_soft_deleted_tables()[0].id)
    assert rows_of(load(spark, place)) == model
