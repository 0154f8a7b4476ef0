"""spark.read.format("kudulite"): every option, alone and together."""

import datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, ShortType, StringType, StructField, StructType

import kudulite
from tests.spark.conftest import BOTH
from tests.support.spark.spark_tables import (
    configured,
    in_order,
    load,
    make_table,
    rows,
    save,
    stored,
)
from tests.support.tiers import tiered

pytestmark = BOTH

ROWS = [(k, None if k % 4 == 3 else f"s{k % 3}", k / 2) for k in range(50)]


@pytest.fixture(scope="module")
def path(spark, tmp_path_factory) -> str:
    """A table (k, s, x) in three tablets; read only."""
    return make_table(
        tmp_path_factory.mktemp("read") / "t",
        ROWS,
        {"k": pa.int32(), "s": pa.string(), "x": pa.float64()},
        primary_key=["k"],
        hash_partitions=[(["k"], 3)],
    )


@pytest.mark.quick
def test_the_schema_is_the_tables(spark, path):
    """Types, order and nullability; the key is NOT NULL."""
    assert load(spark, path).schema.simpleString() == "struct<k:int,s:string,x:double>"
    assert [field.nullable for field in load(spark, path).schema] == [False, True, True]
    assert rows(load(spark, path)) == in_order(ROWS)


def test_found_without_register(spark, path):
    """Spark looks for pyspark_kudulite itself, in a session that nobody has registered."""
    other = spark.newSession()
    with configured(other, {"spark.kudulite.front": "false"}):
        assert other.read.format("kudulite").load(path).count() == 50


@pytest.mark.quick
def test_columns_narrow_and_order(spark, path):
    """Names, not types, are spelled; none at all still counts."""
    frame = load(spark, path, columns="x, k")
    assert frame.columns == ["x", "k"]
    assert rows(frame) == in_order((x, k) for k, _, x in ROWS)
    assert load(spark, path, columns="").count() == 50
    expected = sum(s == "s1" for _, s, _ in ROWS)
    assert load(spark, path, columns="", filter="s = 's1'").count() == expected


@pytest.mark.quick
@tiered(
    ("text", "test"),
    [
        ("k = 7", lambda k, s, x: k == 7),
        ("10 <= k AND 12 > k", lambda k, s, x: 10 <= k < 12),
        ("k BETWEEN 5 AND 7 AND s IS NOT NULL", lambda k, s, x: 5 <= k <= 7 and s is not None),
        ("k IN (1, 3, 400)", lambda k, s, x: k in (1, 3)),
        ("s IS NULL", lambda k, s, x: s is None),
        ("s LIKE 's1%'", lambda k, s, x: s == "s1"),
        ("S = 's2' AND x >= 20.25", lambda k, s, x: s == "s2" and x >= 20.25),
        ("k > 5.5 AND k < 8000000000", lambda k, s, x: k > 5.5),
        ("k = 5.5", lambda k, s, x: False),
        ("k < 3 OR s = 's2'", lambda k, s, x: k < 3 or s == "s2"),
        ("NOT (k >= 3 AND s != 's2')", lambda k, s, x: k < 3 or s == "s2"),
        ("s NOT LIKE 's1%'", lambda k, s, x: s is not None and s != "s1"),
        ("k < -1 OR_NOT", None),
    ],
    quick=2,
)
def test_filter_gives_what_spark_gives(spark, path, text, test):
    """The same text as a filter of Spark gives the same rows."""
    if test is None:
        with pytest.raises(Exception, match="option 'filter'"):
            load(spark, path, filter=text).count()
        return
    expected = in_order(row for row in ROWS if test(*row))
    assert rows(load(spark, path, filter=text)) == expected
    assert rows(load(spark, path).filter(text)) == expected


def test_filter_on_columns_that_are_not_asked_for(spark, path):
    """Projection and filter are independent."""
    frame = load(spark, path, columns="x", filter="k < 3")
    assert rows(frame) == [(0.0,), (0.5,), (1.0,)]


def test_schema_of_the_user_selects_and_widens(spark, path):
    """Exact wider types, another order; nullability as given."""
    wanted = StructType([StructField("s", StringType()), StructField("k", LongType(), False)])
    frame = spark.read.format("kudulite").schema(wanted).load(path)
    assert frame.schema == wanted
    assert rows(frame) == in_order((s, k) for k, s, _ in ROWS)
    assert spark.read.format("kudulite").schema(StructType([])).load(path).count() == 50
    frame = spark.read.format("kudulite").schema("k decimal(12,2), x double").load(path)
    assert frame.filter("k = 3.00").count() == 1


@pytest.mark.quick
def test_snapshot_timestamp_in_each_form(spark, tmp_path):
    """ISO text, microseconds and HybridTime name the same moment, which is included."""
    place = str(tmp_path / "t")
    save(spark.createDataFrame([(1, "a")], "k int, s string"), place, primaryKey="k")
    first = kudulite.open_table(place).current_timestamp()
    micros = first >> 12
    save(spark.createDataFrame([(1, "b"), (2, "b")], "k int, s string"), place)
    moment = datetime.datetime.fromtimestamp(micros / 1e6, datetime.UTC)
    forms = [first, micros, moment.isoformat(), moment.strftime("%Y-%m-%d %H:%M:%S.%f+00:00")]
    for form in forms:
        assert rows(load(spark, place, snapshotTimestamp=form)) == [(1, "a")]
        view = f"CREATE OR REPLACE TEMPORARY VIEW past USING kudulite OPTIONS (path '{place}',"
        spark.sql(f"{view} snapshotTimestamp '{form}')")
        assert rows(spark.table("past")) == [(1, "a")]
    spark.sql("DROP VIEW past")
    assert rows(load(spark, place)) == [(1, "b"), (2, "b")]


def test_a_dropped_range_is_read_as_of_before_it(spark, tmp_path):
    """By a DataFrame that was loaded before, and by one of a tagged moment, which has its types."""
    ranges = {"columns": ["k"], "bounds": [[0, 10], [10, 20]]}
    path = make_table(
        tmp_path / "t",
        [(k, k) for k in range(20)],
        {"k": pa.int32(), "v": pa.int16()},
        primary_key=["k"],
        range_partitions=ranges,
    )
    table = kudulite.open_table(path)
    before, low = load(spark, path), load(spark, path, filter="k < 12")
    table.tag("x")
    client = kudulite.connect(tmp_path)
    alterer = client.new_table_alterer(table).drop_range_partition(0, 10)
    table = alterer.add_range_partition(5, 10).alter()
    table.insert([{"k": 7, "v": -7}])
    assert rows(before) == [(k, k) for k in range(20)]
    assert low.count() == 12
    assert rows(load(spark, path)) == [(7, -7), *((k, k) for k in range(10, 20))]
    alterer = client.new_table_alterer(table)
    alterer.alter_column("v").type("int64")
    table = alterer.alter()
    table.update([{"k": 10, "v": 1 << 40}])
    past = load(spark, path, snapshotTimestamp=table.tags["x"], filter="v < 3")
    assert rows(past) == [(0, 0), (1, 1), (2, 2)]
    assert past.schema["v"].dataType == ShortType()
    assert load(spark, path).schema["v"].dataType == LongType()
    assert load(spark, path).filter("v > 100").count() == 1


def test_fault_tolerant_scan_is_in_key_order_inside_a_tablet(spark, tmp_path):
    """Also where rowsets overlap after several writes."""
    place = str(tmp_path / "t")
    for start in range(3):
        frame = spark.range(start, 300, 3, 2).selectExpr("id AS k", f"{start} AS n")
        save(frame, place, primaryKey="k")
    frame = load(spark, place, faultTolerantScan="true")
    assert frame.rdd.getNumPartitions() == 1
    assert [row.k for row in frame.collect()] == list(range(300))


def test_large_reads_come_whole(spark, tmp_path):
    """More rows than a batch holds, in several row groups, batches and partitions."""
    place = str(tmp_path / "t")
    frame = spark.range(0, 300_000, 1, 2).selectExpr("id AS k", "id * 2 AS v", "'text' AS s")
    save(frame, place, primaryKey="k", hashPartitions="k:2")
    again = load(spark, place, splitSizeBytes="100000")
    assert again.selectExpr("sum(k)", "sum(v)", "count(s)").first() == (
        44_999_850_000,
        89_999_700_000,
        300_000,
    )
    assert again.rdd.getNumPartitions() >= 2
    assert stored(place)[-1] == (299_999, 599_998, "text")
