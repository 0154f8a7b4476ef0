"""maintain(spark, path): the tablets of a table over the executors, each maintained once."""

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import kudulite
import kudulite_spark
from tests.support.spark.spark_tables import load, make_table, rows, stored

TYPES = {"k": pa.int64(), "v": pa.int64()}
LAYOUT = {"primary_key": ["k"], "hash_partitions": [(["k"], 3)]}


@pytest.fixture
def neglected(tmp_path) -> kudulite.Table:
    """A table of three tablets, several rowsets and REDO files in each."""
    path = make_table(tmp_path / "t", [(k, 0) for k in range(0, 600, 7)], TYPES, **LAYOUT)
    table = kudulite.open_table(path)
    table.flush()
    for step in range(1, 7):
        write = table.new_bulk_write("upsert")
        keys = list(range(step, 600, 7)) + list(range(0, 600, 14))
        batch = pa.table({"k": keys, "v": [step] * len(keys)}, table.arrow_schema)
        write.commit([write.stage(batch.to_batches())])
        table.flush()
    return table


def test_every_tablet_is_maintained_and_the_rows_are_the_same(spark: SparkSession, neglected):
    """In one task for each tablet; the past stays as it was."""
    before, moment = stored(neglected.path), neglected.current_timestamp()
    assert neglected.statistics.rowset_height > 3
    result = kudulite_spark.maintain(spark, str(neglected.path))
    assert {done.tablet_id for done in result.operations} == set(neglected.tablet_ids)
    assert result.busy_tablet_ids == () and result.bytes_written > 0
    assert neglected.statistics.rowset_height == 1.0
    assert rows(load(spark, neglected.path)) == before
    assert rows(load(spark, neglected.path, snapshotTimestamp=str(moment))) == before
    again = kudulite_spark.maintain(spark, str(neglected.path), task_count=1)
    assert again.operations == ()
    neglected.check().raise_if_bad()


def test_what_is_left_behind_is_removed_after_the_grace_time(spark: SparkSession, neglected):
    """By the driver, when all tasks have ended."""
    result = kudulite_spark.maintain(spark, str(neglected.path), 0.0, 0.0)
    assert result.garbage.file_count > 0
    assert neglected.statistics.superseded_bytes == 0


def test_a_tablet_that_is_dropped_meanwhile_has_nothing_to_do(
    spark: SparkSession, neglected, monkeypatch
):
    """The driver lists a tablet that its task does not find any more."""
    known = neglected.tablet_ids
    # Tasks are other processes and see the tablets that are there.
    monkeypatch.setattr(kudulite.Table, "tablet_ids", property(lambda _: ["dropped", *known]))
    result = kudulite_spark.maintain(spark, str(neglected.path))
    assert {done.tablet_id for done in result.operations} == set(known)


def test_the_versions_are_in_the_columns_of_describe_history(spark: SparkSession, neglected):
    """Newest first; the exact moment reads the table as of that version."""
    neglected.delete([{"k": 0}], message="a note")
    found = kudulite_spark.versions(spark, str(neglected.path)).collect()
    newest, first = found[0], found[-1]
    assert (newest.operation, newest.userMetadata) == ("delete", "a note")
    assert newest.operationMetrics["numDeletedRows"] == "1"
    assert newest.userId.startswith(f"{newest.userName}@") and newest.operationParameters == {}
    assert (first.version, first.operation, first.userMetadata) == (1, "create", None)
    listed = neglected.versions()
    assert [row.version for row in found] == [version.version for version in listed]
    assert newest.timestamp.timestamp() == listed[0].timestamp.to_datetime().timestamp()
    before = load(spark, neglected.path, snapshotTimestamp=str(found[1].hybridTime))
    assert before.filter("k = 0").count() == 1


def test_a_write_without_a_mode_is_told_which_to_take(spark: SparkSession, tmp_path):
    """Spark refuses its default mode for sources without a catalog, before kudulite is asked."""
    frame = spark.createDataFrame([(1,)], "k INT")
    writer = frame.write.format("kudulite").option("primaryKey", "k")
    with pytest.raises(AnalysisException, match='use either the "Append" or "Overwrite" mode'):
        writer.save(str(tmp_path / "t"))
    writer.mode("append").save(str(tmp_path / "t"))
    assert stored(tmp_path / "t") == [(1,)]
