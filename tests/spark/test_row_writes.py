"""Rows that a session has written and nobody has flushed: Spark, in its own processes, has them."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kudulite
from kudulite_spark.spark_versions import HAS_ROWS_WITHOUT_COLUMNS
from tests.support.spark.spark_tables import in_order, load, make_table, rows, save, stored
from tests.support.tiers import tiered

TYPES = {"k": pa.int32(), "s": pa.string(), "x": pa.int64()}
LAYOUT = {"primary_key": ["k"], "hash_partitions": [(["k"], 3)]}
BASE = [(k, "disk", k) for k in range(0, 40, 2)]


class Written:
    """A table with rows on disk and changes in its logs, and what it holds at three moments."""

    def __init__(self, folder: Path) -> None:
        self.path = make_table(folder / "t", BASE, TYPES, **LAYOUT)
        self.table = kudulite.open_table(self.path)
        self.version = self.table.version
        model = {row[0]: row for row in BASE}
        self.moments = [(self.table.current_timestamp(), in_order(model.values()))]
        session = kudulite.Session()
        for k in range(1, 40, 2):
            session.apply(self.table.new_insert({"k": k, "s": "log", "x": k}))
            model[k] = (k, "log", k)
        session.flush()
        self.moments.append((session.last_timestamp, in_order(model.values())))
        for k in range(0, 40, 5):
            session.apply(self.table.new_update({"k": k, "s": None}))
            model[k] = (k, None, k)
        for k in range(3, 40, 10):
            session.apply(self.table.new_delete({"k": k}))
            del model[k]
        session.apply(self.table.new_upsert({"k": 100, "x": 100}))
        model[100] = (100, None, 100)
        session.flush()
        self.rows = in_order(model.values())
        self.moments.append((session.last_timestamp, self.rows))


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Made once; tests of this module only read it."""
    return Written(tmp_path_factory.mktemp("row_writes"))


@pytest.mark.quick
def test_spark_reads_what_is_only_in_a_log(spark, written):
    """All of it, in tasks that have never heard of the session; no version is needed for it."""
    assert rows(load(spark, written.path)) == written.rows
    assert load(spark, written.path).count() == len(written.rows)
    assert written.table.version == written.version


@pytest.mark.quick
@tiered(
    ("text", "test"),
    [
        ("k = 1", lambda k, s, x: k == 1),
        ("k = 3 OR k = 4", lambda k, s, x: k == 4),  # 3 is deleted
        ("s IS NULL", lambda k, s, x: s is None),
        ("s = 'log' AND x >= 20", lambda k, s, x: s == "log" and x >= 20),
        ("s = 'disk'", lambda k, s, x: s == "disk"),
        ("k IN (5, 13, 100)", lambda k, s, x: k in (5, 100)),
    ],
    quick=1,
)
@pytest.mark.parametrize("how", ["of Spark", "option", "pushdown"])
def test_filters_look_at_the_newest_cells(spark, written, how: str, text: str, test):
    """Whether Spark filters, or the source does, by rows in memory as by rows on disk."""
    if how == "option" and " OR " in text:
        text = "k BETWEEN 3 AND 4"
    options = {"option": {"filter": text}, "pushdown": {"pushdown": "true"}}.get(how, {})
    frame = load(spark, written.path, **options)
    found = rows(frame if how == "option" else frame.filter(text))
    assert found == [row for row in written.rows if test(*row)]


def test_the_past_is_read_at_each_moment(spark, written):
    """Before the log, between its flushes, and after them."""
    for timestamp, expected in written.moments:
        assert rows(load(spark, written.path, snapshotTimestamp=str(timestamp))) == expected


def test_columns_and_order_and_splits(spark, written):
    """Some columns, none at all, key order, and tablets in as small pieces as can be."""
    narrow = load(spark, written.path, columns="x")
    assert rows(narrow) == in_order((x,) for _, _, x in written.rows)
    counted = load(spark, written.path, columns="")
    if HAS_ROWS_WITHOUT_COLUMNS:
        assert counted.count() == len(written.rows)
    else:
        with pytest.raises(PySparkException, match="a read without columns needs PySpark 4.1"):
            counted.count()
    for options in ({"splitSizeBytes": "1"}, {"faultTolerantScan": "true"}):
        assert rows(load(spark, written.path, **options)) == written.rows


def test_spark_writes_over_rows_in_a_log(spark, tmp_path):
    """An upsert of some of them and an insert that skips those that are there; the past stays."""
    written = Written(tmp_path)
    expected = {row[0]: row for row in written.rows}
    changes = [(k, "spark", -k) for k in (0, 1, 2, 3, 100, 200)]
    frame = spark.createDataFrame(changes, "k int, s string, x long")
    save(frame, written.path)
    expected |= {row[0]: row for row in changes}
    save(frame.selectExpr("k + 1 AS k", "s", "x"), written.path, operation="insert_ignore")
    expected |= {k + 1: (k + 1, "spark", -k) for k in (100, 200)}
    assert stored(written.path) == rows(load(spark, written.path)) == in_order(expected.values())
    for timestamp, content in written.moments:
        assert stored(written.path, timestamp) == content


def test_a_session_goes_on_after_a_write_of_spark(spark, tmp_path):
    """It sees Spark's rows, and Spark sees its own; a DataFrame read before stays as it was."""
    written = Written(tmp_path)
    before = load(spark, written.path)
    assert before.count() == len(written.rows)
    save(spark.createDataFrame([(300, "spark", 1)], "k int, s string, x long"), written.path)
    session = kudulite.Session()
    session.apply(written.table.new_update({"k": 300, "x": 2}))
    session.apply(written.table.new_delete({"k": 1}))
    session.flush()
    assert before.count() == len(written.rows)
    expected = [row for row in written.rows if row[0] != 1] + [(300, "spark", 2)]
    assert rows(load(spark, written.path)) == in_order(expected)
    kudulite.open_table(written.path).check().raise_if_bad()
