"""spark.read with startTimestamp: what changed in a window, with every option that goes with it."""

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import kudulite
from tests.spark.conftest import BOTH
from tests.support.spark.spark_tables import configured, load, make_table, rows, save, stored

pytestmark = BOTH


@pytest.fixture(scope="module")
def changed(spark, tmp_path_factory) -> tuple[str, int, int]:
    """A table (k, s, x) in three tablets, a moment, and the end of the changes after it."""
    path = make_table(
        tmp_path_factory.mktemp("changes") / "t",
        [(k, f"s{k}", k / 2) for k in range(30)],
        {"k": pa.int32(), "s": pa.string(), "x": pa.float64()},
        primary_key=["k"],
        hash_partitions=[(["k"], 3)],
    )
    table = kudulite.open_table(path)
    start = table.current_timestamp()
    table.update([{"k": 1, "s": "new"}])
    table.delete([{"k": 2}])
    end = table.insert([{"k": 100, "s": None, "x": 0.5}]).timestamp
    table.delete([{"k": 3}])
    return path, start, end


def told(frame: DataFrame) -> list[tuple]:
    """The changes of a DataFrame without their moments, in order."""
    return rows(frame.drop("_commit_version", "_commit_timestamp"))


@pytest.mark.quick
def test_the_changes_of_a_window(spark, changed):
    """One row per key, with type and moment; the end is inclusive, the start is not."""
    path, start, end = changed
    frame = load(spark, path, startTimestamp=start, endTimestamp=end)
    assert frame.schema.simpleString() == (
        "struct<k:int,s:string,x:double,_change_type:string,_commit_version:bigint,"
        "_commit_timestamp:timestamp>"
    )
    assert [field.nullable for field in frame.schema] == [False, True, True, False, False, False]
    assert told(frame) == [
        (1, "new", 0.5, "update_postimage"),
        (2, "s2", 1.0, "delete"),
        (100, None, 0.5, "insert"),
    ]
    moments = [row[0] for row in frame.select("_commit_version").collect()]
    assert all(start < moment <= end for moment in moments)
    assert max(moments) == end
    assert told(load(spark, path, startTimestamp=end)) == [(3, "s3", 1.5, "delete")]
    assert frame.filter("_change_type = 'delete'").count() == 1
    assert frame.count() == 3


def test_a_dataframe_keeps_its_window(spark, tmp_path):
    """The end is fixed at load(), for all actions; a newer window is a newer load()."""
    path = make_table(
        tmp_path / "t", [(1, "a")], {"k": pa.int32(), "v": pa.string()}, primary_key="k"
    )
    table = kudulite.open_table(path)
    start = table.current_timestamp()
    table.update([{"k": 1, "v": "b"}])
    frame = load(spark, path, startTimestamp=start)
    table.update([{"k": 1, "v": "c"}])
    assert [row["v"] for row in frame.collect()] == ["b"]
    assert [row["v"] for row in load(spark, path, startTimestamp=start).collect()] == ["c"]


def test_the_row_before(spark, changed):
    """changeImages=both adds a row of it to that of an update."""
    path, start, end = changed
    frame = load(
        spark, path, startTimestamp=start, endTimestamp=end, changeImages="both", columns="s,k"
    )
    both = [("new", 1, "update_postimage"), ("s1", 1, "update_preimage")]
    assert told(frame) == [(None, 100, "insert"), *both, ("s2", 2, "delete")]
    assert told(frame.filter("k = 1")) == both
    assert frame.filter("_change_type = 'update_preimage'").select("s").collect() == [("s1",)]
    assert frame.select("s").count() == 4


def test_columns_and_filters(spark, changed):
    """A filter holds for the row at either end; pushed filters lose no row; no column counts."""
    path, start, end = changed
    window = {"startTimestamp": start, "endTimestamp": end}
    assert told(load(spark, path, **window, filter="s = 's1'", columns="k")) == [
        (1, "update_postimage")
    ]
    assert told(load(spark, path, **window, filter="k >= 2 AND k < 50", columns="k")) == [
        (2, "delete")
    ]
    pushed = load(spark, path, **window, pushdown="true")
    condition = "s = 'new' AND _change_type = 'update_postimage' AND _commit_version > 0"
    assert told(pushed.filter(condition)) == [(1, "new", 0.5, "update_postimage")]
    assert told(load(spark, path, **window, columns="")) == (
        [("delete",), ("insert",), ("update_postimage",)]
    )
    assert load(spark, path, **window, splitSizeBytes="1", columns="").count() == 3


@pytest.mark.parametrize("zone", ["UTC", "America/Chicago", "Asia/Kathmandu"])
def test_a_moment_is_compared_with_both_times_of_a_commit(spark, changed, zone):
    """A HybridTime with the version, and a time with the timestamp, in every zone of a session."""
    path, start, end = changed
    frame = load(spark, path, startTimestamp=str(start), endTimestamp=end)
    stamp = F.col("_commit_version")
    assert frame.filter((stamp > start) & (stamp <= F.lit(end))).count() == 3
    moment = kudulite.Timestamp(end).to_datetime().isoformat()
    with configured(spark, {"spark.sql.session.timeZone": zone}):
        same = "shiftright(_commit_version, 12) = unix_micros(_commit_timestamp)"
        assert frame.filter(same).count() == 3
        assert frame.filter(f"_commit_timestamp <= TIMESTAMP'{moment}'").count() == 3
        assert frame.filter(f"_commit_timestamp = TIMESTAMP'{moment}'").select("k").collect() == [
            (100,)
        ]


def test_a_schema_of_the_user(spark, changed):
    """It may leave columns out and widen the table's; those of changes are as they are."""
    path, start, end = changed

    def read(schema: str, **options: object) -> DataFrame:
        reader = spark.read.format("kudulite").schema(schema)
        return reader.options(startTimestamp=start, endTimestamp=end, **options).load(path)

    assert rows(read("_change_type string, k bigint")) == [
        ("delete", 2),
        ("insert", 100),
        ("update_postimage", 1),
    ]
    assert rows(read("k int", changeImages="both")) == [(1,), (1,), (2,), (100,)]
    with pytest.raises(Exception, match="no column '_before' any more.*changeImages=both"):
        read("k int, _before struct<k int, s string, x double>").collect()
    with pytest.raises(Exception, match="'_commit_timestamp' of its changes is timestamp"):
        read("k int, _commit_timestamp bigint").collect()


def test_changes_written_to_a_copy_make_the_source(spark, changed, tmp_path):
    """The change type is an operation column, for which a preimage is nothing to write."""
    path, start, _ = changed
    copy = tmp_path / "copy"
    save(load(spark, path, snapshotTimestamp=start), copy, primaryKey="k")
    changes = load(spark, path, startTimestamp=start, changeImages="both")
    save(changes, copy, operationColumn="_change_type")
    assert stored(copy) == stored(path)


@pytest.mark.quick
def test_wrong_windows_are_refused_at_load(spark, changed):
    """The error names both moments, or what the option needs."""
    path, start, end = changed[0], *map(int, changed[1:])
    with pytest.raises(Exception, match=f"(?s)changes after .*{end}.*{start}.*older moment first"):
        load(spark, path, startTimestamp=end, endTimestamp=start)
    with pytest.raises(Exception, match="ancient history mark"):
        load(spark, path, startTimestamp="1971-01-01").count()
    with pytest.raises(Exception, match="option 'endTimestamp' .* give the moment after which"):
        load(spark, path, endTimestamp=end)
