"""The front: Spark prunes columns, pushes filters and knows sizes, and the answers stay right."""

import contextlib
import datetime
import io
import logging
import zipfile
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

import kudulite
from kudulite_spark import session
from kudulite_spark.reader import BATCH_ROWS_MAX
from tests.spark.conftest import FRONT
from tests.support import front_build
from tests.support.spark.spark_tables import load, make_table, rows, save, staged_files, stored
from tests.support.tables.typed_tables import random_table

pytestmark = FRONT

ROWS = [(k, f"s{k % 3}", k / 2) for k in range(50)]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    """A table (k, s, x) in four tablets; read only."""
    types = {"k": pa.int32(), "s": pa.string(), "x": pa.float64()}
    layout = {"primary_key": ["k"], "hash_partitions": [(["k"], 4)]}
    return make_table(tmp_path_factory.mktemp("front") / "t", ROWS, types, **layout)


def explained(frame) -> str:
    """The output of `explain`."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        frame.explain("cost")
        frame.explain()
    return printed.getvalue()


@pytest.mark.quick
def test_the_jar_is_made_of_the_source():
    """After a change of the source, tests/support/front_build.py builds the jar."""
    with zipfile.ZipFile(front_build.JAR) as jar:
        assert jar.read(front_build.MANIFEST).decode() == front_build.manifest()


@pytest.mark.quick
def test_columns_are_pruned_and_filters_pushed(spark, path):
    """The plan shows the columns and filters of the Python source; a count reads no column."""
    frame = load(spark, path)
    plan = explained(frame.filter("k = 7 AND s <> 'a'").select("x"))
    assert "ReadSchema: struct<k:int,s:string,x:double>" in plan
    assert "EqualTo(k,7)" in plan
    assert "ReadSchema: struct<>" in explained(frame.limit(60).groupBy().count())
    assert "Statistics(sizeInBytes=2000.0 B" in explained(frame)  # 50 rows of 40 bytes
    assert rows(frame.filter("k = 7 AND s <> 'a'").select("x")) == [(3.5,)]
    assert frame.count() == 50


def test_a_count_of_all_rows_reads_none(spark, path, tmp_path):
    """It is known at load(), at any snapshot; all other counts are of the rows that remain."""
    types = {"k": pa.int32(), "s": pa.string(), "x": pa.float64()}
    place = make_table(tmp_path / "t", ROWS, types, primary_key=["k"])
    table = kudulite.open_table(place)
    before = table.current_timestamp()
    table.delete({"k": [1, 2]})
    table.flush()
    table.insert({"k": [100], "s": ["new"], "x": [None]})  # in memory
    frame = load(spark, place)
    # A scan of no column is one batch of empty rows from the front, and no task for each tablet.
    wide = load(spark, path, splitSizeBytes="1")
    assert wide.select("s").rdd.getNumPartitions() == 4
    assert wide.select().rdd.getNumPartitions() == 1
    assert wide.count() == 50
    assert frame.count() == frame.select("s").count() == 49
    assert load(spark, place, snapshotTimestamp=str(before)).count() == 50
    assert load(spark, place, columns="x").count() == 49
    table.delete({"k": [3]})
    assert (frame.count(), load(spark, place).count()) == (49, 48)
    frame.createOrReplaceTempView("counted")
    counts = {
        "count(*) FROM counted WHERE k < 10": 8,
        "count(x) FROM counted": 48,
        "count(DISTINCT s) FROM counted": 4,
        "count(*) FILTER (WHERE k < 10) FROM counted": 8,
        "count(*) FROM (SELECT * FROM counted LIMIT 5)": 5,
        "count(*) FROM counted GROUP BY x IS NULL HAVING x IS NULL": 1,
        "count(*) + 1 FROM counted": 50,
        "count(*) FROM counted a JOIN counted b USING (k)": 49,
        "(SELECT count(*) FROM counted) FROM counted WHERE k = 4": 49,
        "sum(1) FROM counted": 49,
        "count(*) FROM counted a CROSS JOIN counted b": 49 * 49,
    }
    for text, expected in counts.items():
        assert spark.sql(f"SELECT {text}").collect() == [(expected,)], text
    assert load(spark, place, filter="k < 10").count() == 7
    spark.catalog.dropTempView("counted")


def test_values_outlive_the_batch_that_they_came_in(spark, tmp_path):
    """Spark reads Python's batches as columns, and each batch replaces the one before it."""
    count, step = 150_000, 25_000
    types = {"k": pa.int32(), "s": pa.string(), "b": pa.binary(), "d": pa.decimal128(30, 2)}
    types["l"] = pa.list_(pa.string())
    texts = [f"{-k % count:08}" for k in range(count)]
    given = [(k, t, t.encode(), Decimal(k), [t, None]) for k, t in enumerate(texts)]
    frame = load(spark, make_table(tmp_path / "t", given, types, primary_key=["k"]))
    assert "ColumnarToRow" in explained(frame)
    sizes = frame.rdd.mapPartitions(lambda part: [sum(1 for _ in part)]).collect()
    assert max(sizes) > 2 * BATCH_ROWS_MAX, "one task reads several batches"

    assert rows(frame.orderBy(sf.desc("s")).limit(3)) == given[1:4]
    extremes = [sf.max("s"), sf.min("s"), sf.max("b"), sf.max("d"), sf.max_by("l", "k")]
    found = rows(frame.agg(*extremes, sf.first("s"), sf.last("l")))
    greatest, least = texts[1], texts[0]
    last = given[-1]
    assert found == [(greatest, least, given[1][2], last[3], last[4], texts[0], last[4])]
    chosen = frame.filter(f"k % {step} = 0").sort("k")
    kept = rows(chosen.agg(*(sf.collect_list(name) for name in types)))
    assert [tuple(column) for column in kept[0]] == list(zip(*given[::step], strict=True))
    other = spark.createDataFrame([(texts[k],) for k in range(0, count, step)], "s string")
    for hint in ("broadcast", "merge", "shuffle_hash"):
        joined = frame.join(other.hint(hint), "s").select(*types).sort("k")
        assert rows(joined) == given[::step]


def test_a_filter_on_the_key_opens_one_tablet(spark, path):
    """The partitions of a scan are of the tablets that its filters leave."""
    frame = load(spark, path, splitSizeBytes="1")
    assert frame.rdd.getNumPartitions() == 4
    assert frame.filter("k = 7").rdd.getNumPartitions() == 1


def test_a_dataframe_stays_at_its_load(spark, tmp_path):
    """All its scans are of one snapshot, with a schema of the user, too."""
    place = str(tmp_path / "t")
    save(spark.range(10).selectExpr("id AS k", "id % 2 AS b"), place, primaryKey="k")
    frame, other = load(spark, place), load(spark, place)
    given = spark.read.format("kudulite").schema("b long").load(place)
    assert (frame.count(), given.filter("b = 1").count()) == (10, 5)
    save(spark.range(5, 20).selectExpr("id AS k", "CAST(1 AS LONG) AS b"), place)
    for found in (frame, other):
        assert (found.count(), found.filter("b = 1").count()) == (10, 5)
    assert (given.count(), given.filter("b = 1").count()) == (10, 5)
    assert load(spark, place).filter("b = 1").count() == 17


def test_dates_that_python_or_java_does_not_have(spark, tmp_path):
    """A filter with one is left to Spark: Python would fail, Java's old calendar would move it."""
    day = datetime.date(1582, 10, 10)
    noon = datetime.datetime(1582, 10, 10, 12, tzinfo=datetime.UTC)
    types = {"k": pa.int32(), "d": pa.date32(), "t": pa.timestamp("us", "UTC")}
    place = make_table(tmp_path / "t", [(1, day, noon)], types, primary_key=["k"])
    frame = load(spark, place)
    for text in (
        "d < DATE '+12024-03-15'",
        "d > DATE '-0044-03-15' AND k = 1",
        "d IN (DATE '1582-10-10', DATE '+12024-03-15')",
        "NOT (d = DATE '+12024-03-15' OR k = 2)",
        "t < TIMESTAMP '9999-12-31 23:59:59.999999Z'",
        "t >= TIMESTAMP '0001-01-01 00:00:00+14:00'",
        "d = DATE '1582-10-10'",
        "d >= DATE '1582-10-10'",
        "t = TIMESTAMP '1582-10-10 12:00:00Z'",
    ):
        assert frame.filter(text).count() == 1, text


def test_a_write_is_planned_committed_and_aborted(spark, tmp_path):
    """A write through the front adds or replaces rows; one that fails changes nothing."""
    place = str(tmp_path / "t")
    save(spark.range(4).selectExpr("id AS k", "id AS v"), place, primaryKey="k")
    save(spark.range(3, 6).selectExpr("id AS k", "-id AS v"), place)
    expected = [(0, 0), (1, 1), (2, 2), (3, -3), (4, -4), (5, -5)]
    assert stored(place) == expected
    with pytest.raises(PySparkException, match="already present"):
        save(spark.range(5, 9, 1, 2).selectExpr("id AS k", "id AS v"), place, operation="insert")
    with pytest.raises(PySparkException, match="has no column 'other'"):
        save(spark.range(1).selectExpr("id AS k", "id AS other"), place)
    assert (stored(place), staged_files(place)) == (expected, [])
    save(spark.range(2).selectExpr("id AS k", "id AS v"), place, mode="overwrite")
    assert rows(load(spark, place)) == [(0, 0), (1, 1)]


@pytest.mark.quick
def test_rows_of_every_type_are_written(spark, tmp_path):
    """Of a table, and of values of Python; NULL among them."""
    typed = random_table(tmp_path / "given", 7, step_count=3)
    given = typed.table.scan(ordered=True).to_arrow()
    options = {"primaryKey": "group,id", "hashPartitions": "id:2"}
    schema = load(spark, typed.path).schema
    local = spark.createDataFrame(given.to_pylist(), schema)
    for number, frame in enumerate((load(spark, typed.path), local)):
        place = tmp_path / f"t{number}"
        save(frame, place, **options)
        found = kudulite.open_table(place).scan(ordered=True).to_arrow()
        found = found.select(given.column_names).cast(given.schema)
        assert list(map(repr, found.to_pylist())) == list(map(repr, given.to_pylist()))


def test_large_rows_are_written_in_several_batches(spark, tmp_path):
    """A batch has at most a mebibyte, and the row that exceeds it."""
    length = "CAST(pow(10, id % 8) AS INT)"  # up to 10 MB
    given = spark.range(0, 50_000, 1, 2).selectExpr(
        "id AS k",
        f"CASE WHEN id % 2500 < 8 THEN repeat('x', {length}) ELSE concat('s', id) END AS s",
        "CAST(id - 25000 AS DECIMAL(18, 9)) * -1 AS d",
        "IF(id % 3 = 0, NULL, CAST(id AS DECIMAL(38, 1))) AS e",
    )
    save(given, tmp_path / "t", primaryKey="k", hashPartitions="k:2")
    sums = ["sum(k)", "sum(length(s))", "sum(d)", "sum(crc32(concat_ws('|', k, s, d, e)))"]
    assert load(spark, tmp_path / "t").selectExpr(*sums).first() == given.selectExpr(*sums).first()


@pytest.mark.spark_since("4.2", "one daemon for all steps")
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes")
def test_all_steps_are_planned_by_one_daemon(spark, tmp_path):
    """Creating the source, planning, filters and commits do not start a daemon for each."""
    before = _daemon_modules(spark)
    place = str(tmp_path / "t")
    save(spark.range(4).selectExpr("id AS k"), place, primaryKey="k")
    assert rows(load(spark, place).filter("k > 1")) == [(2,), (3,)]
    started = _daemon_modules(spark) - before
    assert started <= {"pyspark_kudulite", "pyspark.worker", ""}
    assert "pyspark_kudulite" in before | started


def _daemon_modules(spark) -> set[str]:
    """The worker modules of the Python daemons that the session's JVM has started."""
    java = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            arguments = (place / "cmdline").read_text().rstrip("\0").split("\0")
            if parent == java and "pyspark.daemon" in arguments:
                found.add(arguments[-1])
    return found


def test_a_small_table_is_broadcast(spark, path):
    """Its size is known when the query is planned."""
    frame = load(spark, path)
    joined = spark.range(1 << 40).withColumnRenamed("id", "k").join(frame, "k")
    assert "BroadcastHashJoin" in explained(joined)


def test_where_it_cannot_be_one_line_says_why(spark, path, monkeypatch, caplog):
    """Of `register` and of each local session; plain Python serves."""
    monkeypatch.setattr(session, "EXTENSION_VERSIONS", ("3.4", "3.5"))
    for register in (session.register, lambda _: session.local_session()):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="kudulite.spark"):
            register(spark)
        (line,) = caplog.messages
        assert f"it needs Spark 3.4 to 3.5, and this is Spark {spark.version}" in line
    assert load(spark, path).count() == 50


def test_a_local_session_has_it(spark, path):
    """Without a warehouse, too: the first session of a process, and one that is running."""
    assert session.has_front(spark)
    assert "PushedFilters: [EqualTo(k,7)]" in explained(load(spark, path).filter("k = 7"))
    assert session.local_session() is spark
