"""df.write.format("kudulite"): every operation and option, on tables and on paths without one."""

import datetime
import os
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import functions as sf

import kudulite
import kudulite_spark
from tests.spark.conftest import BOTH
from tests.support.spark.spark_tables import load, make_table, rows, save, staged_files, stored
from tests.support.tiers import tiered

pytestmark = BOTH

OLD = [(1, "a", 1.0), (2, "b", 2.0), (3, "c", 3.0)]


@pytest.fixture
def path(spark, tmp_path) -> str:
    """A table (k, s, x) with the rows OLD, in four tablets."""
    return make_table(
        tmp_path / "t",
        OLD,
        {"k": pa.int32(), "s": pa.string(), "x": pa.float64()},
        primary_key=["k"],
        hash_partitions=[(["k"], 4)],
    )


@pytest.mark.quick
def test_the_first_write_makes_the_table_as_the_options_say(spark, tmp_path):
    """Key first and NOT NULL, hash and range partitions, nullability of the DataFrame."""
    place = tmp_path / "made"
    frame = spark.range(6).selectExpr("'x' AS s", "CAST(id AS int) AS day", "id AS host", "id AS v")
    save(
        frame,
        place,
        primaryKey="host, day",
        hashPartitions="host:3",
        rangePartitions='{"columns": ["day"], "bounds": [[null, 3], [3, null]]}',
    )
    table = kudulite.open_table(str(place))
    assert table.schema.key_names == ["host", "day"]
    assert [c.nullable for c in table.schema.columns] == [False, False, False, False]
    assert table.partition_schema.tablet_count == 6
    assert stored(place) == [(k, k, "x", k) for k in range(6)]
    assert staged_files(place) == []


@pytest.mark.quick
@tiered(
    ("operation", "rows_written", "expected"),
    [
        ("insert", [(4, "d", 4.0)], [*OLD, (4, "d", 4.0)]),
        ("insert_ignore", [(3, "z", 9.0), (4, "d", 4.0)], [*OLD, (4, "d", 4.0)]),
        ("upsert", [(3, "z", 9.0), (4, "d", 4.0)], [*OLD[:2], (3, "z", 9.0), (4, "d", 4.0)]),
        ("upsert_ignore", [(3, "z", 9.0), (4, "d", 4.0)], [*OLD[:2], (3, "z", 9.0), (4, "d", 4.0)]),
        ("update", [(3, "z", 9.0)], [*OLD[:2], (3, "z", 9.0)]),
        ("update_ignore", [(3, "z", 9.0), (4, "d", 4.0)], [*OLD[:2], (3, "z", 9.0)]),
        ("delete", [(3, "ignored", 0.0)], OLD[:2]),
        ("delete_ignore", [(3, "ignored", 0.0), (4, "d", 4.0)], OLD[:2]),
    ],
    quick=4,
)
def test_each_operation_does_what_its_name_says(spark, path, operation, rows_written, expected):
    """delete* takes the key columns and ignores the others."""
    frame = spark.createDataFrame(rows_written, "k int, s string, x double")
    save(frame, path, operation=operation)
    assert stored(path) == expected
    assert rows(load(spark, path)) == expected


def test_upsert_of_some_columns_leaves_the_others(spark, path):
    """Unset columns keep their values; of new rows they are NULL."""
    save(spark.createDataFrame([(9.0, 3), (4.5, 4)], "x double, k int"), path)
    assert stored(path) == [*OLD[:2], (3, "c", 9.0), (4, None, 4.5)]


@pytest.mark.quick
def test_rows_of_a_key_that_is_not_unique_are_numbered(spark, tmp_path):
    """By the tasks of an insert and an overwrite; a read shows the column, an upsert needs it."""
    columns = [kudulite.column("k", "int32"), kudulite.column("v", "int64")]
    table = kudulite.connect(tmp_path).create_table(
        "t", kudulite.schema(columns, "k", is_unique=False), hash_partitions=[(["k"], 2)]
    )
    place = str(tmp_path / "t")
    frame = spark.range(60).selectExpr("CAST(id % 3 AS int) AS k", "id AS v").repartition(4)
    save(frame, place, operation="insert")
    save(kudulite_spark.repartition_for(frame, place), place, operation="insert")
    found = rows(load(spark, place))
    assert sorted(row[2] for row in found) == sorted([*range(60), *range(60)])
    numbers = dict(enumerate(table.tablet_index([{"k": k} for k in range(3)]).to_pylist()))
    seen = {(numbers[k], i) for k, i, _ in found}
    assert len(seen) == 120 and min(i for _, i in seen) == 1
    with pytest.raises(Exception, match="upsert: the key is not unique, so auto_incrementing_id"):
        save(frame, place)
    changed = load(spark, place).where("v = 7").selectExpr("k", "auto_incrementing_id", "-1 AS v")
    save(changed.selectExpr("k", "auto_incrementing_id", "CAST(v AS long) AS v"), place)
    assert load(spark, place).where("v = -1").count() == 2
    frame.limit(5).write.format("kudulite").mode("overwrite").save(place)
    assert len(stored(place)) == 5
    assert all(i > max(j for t, j in seen if t == numbers[k]) for k, i, _ in stored(place))


def test_a_write_makes_a_table_whose_key_is_not_unique(spark, tmp_path):
    """The last name of `primaryKey` says so; a DataFrame that has the column keeps its ids."""
    place, copy, key = str(tmp_path / "t"), str(tmp_path / "copy"), "k, auto_incrementing_id"
    frame = spark.range(60).selectExpr("id AS v", "CAST(id % 3 AS int) AS k")
    for _ in range(2):
        save(frame, place, primaryKey=key, hashPartitions="k:2", operation="insert")
    assert kudulite.open_table(place).schema.names == ["k", "auto_incrementing_id", "v"]
    assert len(stored(place)) == 120
    save(load(spark, place), copy, primaryKey=key)
    assert stored(copy) == stored(place)
    made = kudulite_spark.create_table(spark, str(tmp_path / "u"), "v LONG, k INT", key.split(", "))
    assert made.schema.key_names == ["k", "auto_incrementing_id"]
    for wrong in ("auto_incrementing_id", "auto_incrementing_id, k"):
        with pytest.raises(Exception, match="stands after the columns of a key that is not unique"):
            save(frame, tmp_path / "w", primaryKey=wrong, operation="insert")
    with pytest.raises(Exception, match="option 'primaryKey' says"):
        save(frame, place, primaryKey="k", operation="insert")


def test_immutable_cells_are_left_by_upsert_ignore_only(spark, path):
    """The default, upsert, is refused for rows that are there; an overwrite replaces rows."""
    alterer = kudulite.connect(os.path.dirname(path)).new_table_alterer(kudulite.open_table(path))
    alterer.alter_column("s").mutable(False)
    alterer.alter()
    frame = spark.createDataFrame([(3, "z", 9.0), (4, "d", 4.0)], "k int, s string, x double")
    for operation in ("upsert", "update"):
        with pytest.raises(Exception, match="UPDATE not allowed for immutable column"):
            save(frame, path, operation=operation)
    assert stored(path) == OLD
    save(frame, path, operation="upsert_ignore")
    save(frame.drop("s"), path)
    expected = [*OLD[:2], (3, "c", 9.0), (4, "d", 4.0)]
    assert stored(path) == expected == rows(load(spark, path))
    frame.write.format("kudulite").mode("overwrite").save(path)
    assert stored(path) == [(3, "z", 9.0), (4, "d", 4.0)]


def test_ignore_null_leaves_cells_alone(spark, path):
    """Without it NULL is written; with it NULL means unset."""
    frame = spark.createDataFrame([(2, None, 9.0), (3, "z", None)], "k int, s string, x double")
    save(frame, path, ignoreNull="true")
    assert stored(path) == [OLD[0], (2, "b", 9.0), (3, "z", 3.0)]
    save(frame, path)
    assert stored(path) == [OLD[0], (2, None, 9.0), (3, "z", None)]


def test_rows_that_are_equal_are_left_out(spark, path):
    """Two tasks, one of which has a row that differs; an overwrite deletes the row it lacks."""
    table = kudulite.open_table(path)
    moment = table.current_timestamp()
    frame = spark.createDataFrame([*OLD[:2], (3, "c", 9.0)], "k int, s string, x double")
    save(frame.repartition(2), path, unchanged="skip")
    assert [row["k"] for row in table.changes(moment).to_pylist()] == [3]
    assert stored(path) == [*OLD[:2], (3, "c", 9.0)]
    with pytest.raises(Exception, match="'unchanged' is 'skip' or left out, found 'true'"):
        save(frame, path, unchanged="true")
    moment = table.current_timestamp()
    less = frame.where("k <> 2").write.format("kudulite")
    less.option("unchanged", "skip").mode("overwrite").save(path)
    assert [row["k"] for row in table.changes(moment).to_pylist()] == [2]
    assert stored(path) == [OLD[0], (3, "c", 9.0)]


@pytest.mark.quick
def test_mixed_batch_with_operation_and_ordering_column(spark, tmp_path):
    """The highest ordering value of a key wins, in the batch and against the table."""
    place = tmp_path / "cdc"
    changes = [
        ("I", 1, 1, "one"),
        ("U", 1, 3, "three"),
        ("U", 1, 2, "two"),
        ("I", 2, 1, "gone"),
        ("D", 2, 2, None),
        ("upsert", 3, 5, "five"),
    ]
    schema = "op string, k int, seq long, s string"
    options = {"operationColumn": "op", "orderingColumn": "seq", "primaryKey": "k"}
    save(spark.createDataFrame(changes, schema).repartition(3), place, **options)
    assert stored(place) == [(1, 3, "three"), (3, 5, "five")]
    late = [("U", 3, 4, "late"), ("U", 1, 4, "four"), ("D", 3, 3, None)]
    save(spark.createDataFrame(late, schema), place, **options)
    assert stored(place) == [(1, 4, "four"), (3, 5, "five")]


@pytest.mark.quick
def test_overwrite_is_one_version_and_keeps_the_past(spark, path):
    """Readers see all old rows or all new ones; the time before stays readable."""
    before = kudulite.open_table(path).current_timestamp()
    save(spark.createDataFrame([(7, "n", 7.0)], "k int, s string, x double"), path, "overwrite")
    assert stored(path) == [(7, "n", 7.0)]
    assert rows(load(spark, path, snapshotTimestamp=before)) == OLD


def test_overwrite_by_the_rows_of_the_table_itself(spark, path):
    """The read is a snapshot, so a table can be overwritten by a query of itself."""
    save(load(spark, path).filter("k > 1").withColumn("x", sf.col("x") * 2), path, "overwrite")
    assert stored(path) == [(2, "b", 4.0), (3, "c", 6.0)]


def test_a_version_already_committed_for_an_application_is_skipped(spark, path):
    """Exactly-once sinks rely on this; another version or another id is a new write."""
    for identity, version, key in [("job", 1, 4), ("job", 1, 5), ("job", 2, 6), ("other", 1, 7)]:
        frame = spark.createDataFrame([(key,)], "k int")
        save(frame, path, applicationId=identity, applicationVersion=version)
    assert [row[0] for row in stored(path)] == [1, 2, 3, 4, 6, 7]
    assert staged_files(path) == []


def test_the_layout_may_be_given_again(spark, path):
    """A script that makes its table at the first run can be run again."""
    frame = spark.createDataFrame([(4, "d", 4.0)], "k int, s string, x double")
    save(frame, path, primaryKey="k", hashPartitions="k:4")
    assert stored(path) == [*OLD, (4, "d", 4.0)]


def test_an_empty_dataframe_makes_an_empty_table(spark, tmp_path):
    """One task without rows still commits."""
    place = tmp_path / "empty"
    save(spark.createDataFrame([], "k int, s string"), place, primaryKey="k")
    assert stored(place) == []
    assert load(spark, place).count() == 0


def test_types_survive_the_round_trip_in_any_session_zone(spark, tmp_path):
    """Spark hands timestamps over in the session's zone; the instant is what counts."""
    text = """SELECT CAST(1 AS byte) AS i8, CAST(2 AS short) AS i16, 3 AS i32, 4L AS i64,
        true AS b, 1.5F AS f, 2.5D AS d, 3.25BD AS dec, DATE '2013-07-01' AS day, X'00FF' AS bin,
        'Ä\U0001f600' AS s,
        TIMESTAMP '2013-07-01 12:00:00.123456Z' AS ts,
        TIMESTAMP_NTZ '2013-07-01 12:00:00.123456' AS ntz, CAST(NULL AS int) AS n"""
    expected = {
        "i8": 1,
        "i16": 2,
        "i32": 3,
        "i64": 4,
        "b": True,
        "f": 1.5,
        "d": 2.5,
        "dec": Decimal("3.25"),
        "day": datetime.date(2013, 7, 1),
        "bin": b"\x00\xff",
        "s": "Ä\U0001f600",
        "ts": datetime.datetime(2013, 7, 1, 12, 0, 0, 123456, datetime.UTC),
        "ntz": datetime.datetime(2013, 7, 1, 12, 0, 0, 123456),
        "n": None,
    }
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = spark.sql(text)
        save(frame, tmp_path / "types", primaryKey="i32")
        (found,) = kudulite.open_table(str(tmp_path / "types")).scan().to_arrow().to_pylist()
        assert found == expected
        again = load(spark, tmp_path / "types")
        assert dict(again.dtypes) == dict(frame.dtypes)
        assert again.exceptAll(frame.select(again.columns)).count() == 0
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.quick
def test_create_table_from_ddl_and_insert_by_sql(spark, tmp_path):
    """A view with options is read and written by SQL; lengths of varchar are checked by Spark."""
    place = str(tmp_path / "sql")
    kudulite_spark.create_table(
        spark,
        place,
        "k BIGINT, v VARCHAR(3), c VARCHAR(2)",
        primary_key=["k"],
        hash_partitions=[(["k"], 2)],
    )
    types = [str(column.type) for column in kudulite.open_table(place).schema.columns]
    assert types == ["int64", "varchar(3)", "varchar(2)"]
    spark.sql(f"CREATE TEMPORARY VIEW w USING kudulite OPTIONS (path '{place}')")
    spark.sql("INSERT INTO w VALUES (1, 'abc', 'x'), (2, NULL, NULL)")
    assert stored(place) == [(1, "abc", "x"), (2, None, None)]
    with pytest.raises(Exception, match="EXCEED_LIMIT_LENGTH"):
        spark.sql("INSERT INTO w VALUES (3, 'abcd', 'x')")
    spark.sql("INSERT OVERWRITE w VALUES (5, 'new', 'y')")
    assert stored(place) == [(5, "new", "y")]
    # The note of the length travels with the column into a new table.
    save(load(spark, place), tmp_path / "copy", primaryKey="k")
    copy = kudulite.open_table(str(tmp_path / "copy"))
    assert str(copy.schema.column("v").type) == "varchar(3)"
    spark.sql("DROP VIEW w")


def test_a_view_with_a_schema_makes_the_table_at_its_first_insert(spark, tmp_path):
    """The options of the view are those of the write."""
    place = str(tmp_path / "late")
    spark.sql(
        "CREATE TEMPORARY VIEW late (k INT, s STRING) USING kudulite"
        f" OPTIONS (path '{place}', primaryKey 'k', operation 'insert')"
    )
    spark.sql("INSERT INTO late VALUES (1, 'a')")
    assert stored(place) == [(1, "a")]
    spark.sql("DROP VIEW late")


def test_repartition_for_sends_each_tablet_to_one_task(spark, path):
    """The rows are the same; with it a tablet's rows come from one task."""
    frame = spark.range(100, 200, 1, 8).selectExpr("CAST(id AS int) AS k", "'r' AS s", "0D AS x")
    routed = kudulite_spark.repartition_for(frame, path)
    assert routed.schema == frame.schema
    assert routed.rdd.getNumPartitions() == 4
    save(routed, path, repartition="true")
    assert len(stored(path)) == 103


def test_relative_and_file_paths_are_the_same_table(spark, path, tmp_path):
    """Relative ones start where the JVM did, on the driver and not in some worker's directory."""
    start = spark.sparkContext._jvm.java.lang.System.getProperty("user.dir")
    relative = os.path.relpath(path, start)
    for place in (relative, f"file:{path}", f"file://{path}", path + "/"):
        assert load(spark, place).count() == 3
        save(spark.createDataFrame([(1, "a", 1.0)], "k int, s string, x double"), place)
    assert stored(path) == OLD


def test_only_append_and_overwrite_are_modes(spark, path):
    """Spark itself refuses the others for a Python source; nothing happens."""
    frame = spark.createDataFrame([(4, "d", 4.0)], "k int, s string, x double")
    for mode in ("error", "ignore"):
        with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            save(frame, path, mode)
    assert stored(path) == OLD
