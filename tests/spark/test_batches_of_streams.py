"""Batches of a stream: other tables show newer rows to them, and their SQL writes happen once."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import kudulite
import kudulite_spark
from tests.spark.conftest import FRONT
from tests.support.spark.spark_tables import (
    configured,
    given,
    last_batch_is_not_noted,
    load,
    make_source,
    rows,
    run,
    stored,
    stream,
    writes,
)

pytestmark = FRONT

SETTINGS = "spark.kudulite.applicationId", "spark.kudulite.applicationVersion"


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> str:
    """A catalog of the folder of the test."""
    name = f"b{uuid.uuid4().hex}"
    kudulite_spark.register(spark, warehouse=tmp_path, catalog=name)
    return name


def test_the_static_side_of_a_join_may_be_of_each_batch(spark, catalog, tmp_path):
    """With snapshotTimestamp=query; without it, the rows are those of the load()."""
    source = make_source(tmp_path, 1)
    names = make_source(tmp_path, 1, "names")
    anew = {"snapshotTimestamp": "query"}
    fixed = load(spark, names.path).selectExpr("k", "s AS fixed")
    newest = load(spark, names.path, **anew).selectExpr("k", "s AS newest")
    named = spark.read.options(**anew).table(f"{catalog}.names").selectExpr("k", "s AS named")
    joined = stream(spark, source.path)
    for side in (fixed, newest, named):
        joined = joined.join(side, "k", "left")
    query = (
        joined.writeStream.format("kudulite").option("primaryKey", "k")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "t"))
    )  # fmt: skip
    try:
        query.processAllAvailable()
        names.upsert(given([0, 1], "newer"))
        source.insert(given([1], "second"))
        query.processAllAvailable()
    finally:
        query.stop()
    assert stored(tmp_path / "t") == [
        (0, "first", "first", "first", "first"),
        (1, "second", None, "newer", "newer"),
    ]


def test_each_query_of_a_view_may_have_a_moment_of_its_own(spark, tmp_path):
    """Also counts and sizes are of that moment; stock Spark plans a DataFrame once, and says so."""
    table = make_source(tmp_path, 5)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW newest USING kudulite"
        f" OPTIONS (path '{table.path}', snapshotTimestamp 'query')"
    )
    frame = load(spark, table.path, snapshotTimestamp="QUERY")
    for count in (5, 6, 7):
        assert spark.sql("SELECT count(*), count(s) FROM newest").first() == (count, count)
        assert frame.count() == frame.filter("k >= 0").count() == count
        table.insert(given([count], "more"))
    big = spark.range(1 << 40).selectExpr("id AS k").join(frame, "k")
    assert "BroadcastHashJoin" in big._jdf.queryExecution().executedPlan().toString()
    with configured(spark, {"spark.kudulite.front": "false"}):
        needs = r"\('query'\) needs the JVM extension.*register"
        with pytest.raises(PySparkException, match=needs):
            load(spark, table.path, snapshotTimestamp="query").count()
    with pytest.raises(PySparkException, match="belongs to a batch read"):
        run(stream(spark, table.path, snapshotTimestamp="query"), tmp_path / "t", tmp_path / "c")
    spark.catalog.dropTempView("newest")


Statement = Callable[[DataFrame, int], None]


def merged_by_sql(target: str, view: str) -> Statement:
    """The recipe of docs/spark_streams.md: the settings of the batch's session."""

    def work(batch: DataFrame, number: int) -> None:
        session = batch.sparkSession
        session.conf.set(SETTINGS[0], "counts")
        session.conf.set(SETTINGS[1], str(number))
        batch.createOrReplaceTempView(view)
        session.sql(
            f"MERGE INTO {target} t USING {view} s ON t.k = s.k WHEN MATCHED THEN UPDATE"
            " SET n = t.n + 1 WHEN NOT MATCHED THEN INSERT (k, n) VALUES (s.k, 1)"
        )

    return work


def merged_by_builder(path: Path) -> Statement:
    """The same without the catalog."""

    def work(batch: DataFrame, number: int) -> None:
        merge = kudulite_spark.merge(batch, path).when_matched_update({"n": "target.n + 1"})
        merge = merge.when_not_matched_insert({"k": "source.k", "n": "1"})
        merge.execute(application_id="counts", application_version=number)

    return work


@pytest.mark.parametrize("way", ["sql", "builder"])
def test_a_merge_of_a_batch_that_is_repeated_counts_once(spark, catalog, tmp_path, way):
    """As after a kill between the table's commit and the checkpoint's."""
    source = make_source(tmp_path, 3)
    target, checkpoint = tmp_path / "counts", tmp_path / "checkpoint"
    spark.sql(f"CREATE TABLE {catalog}.counts (k BIGINT, n BIGINT, PRIMARY KEY (k))")
    view = f"batch_{way}"
    work = merged_by_sql(f"{catalog}.counts", view) if way == "sql" else merged_by_builder(target)

    def follow() -> None:
        writer = stream(spark, source.path).writeStream.foreachBatch(work)
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        assert writer.start().awaitTermination(120)

    follow()
    source.upsert(given([1, 9], "second"))
    follow()
    counted = [(0, 1), (1, 2), (2, 1), (9, 1)]
    assert stored(target) == counted
    written = writes(kudulite.open_table(target))
    assert last_batch_is_not_noted(checkpoint) == 1
    follow()
    assert stored(target) == counted
    assert writes(kudulite.open_table(target)) == written
    assert spark.conf.get(SETTINGS[0], None) is None


def test_every_statement_may_have_an_application(spark, catalog, tmp_path):
    """INSERT, UPDATE, DELETE and MERGE by settings; INSERT and writeTo by options, which win."""
    t = f"{catalog}.t"
    spark.sql(f"CREATE TABLE {t} (k BIGINT, n BIGINT, PRIMARY KEY (k))")
    spark.sql(f"INSERT INTO {t} VALUES (1, 0), (2, 0), (3, 0)")
    insert = f"INSERT INTO {t} WITH (applicationId = 'own', applicationVersion = '5')"
    statements = [
        f"INSERT INTO {t} SELECT max(k) + 1, 0 FROM {t}",
        f"UPDATE {t} SET n = n + 1 WHERE k = 2",
        f"DELETE FROM {t} WHERE k = (SELECT min(k) FROM {t})",
        f"MERGE INTO {t} t USING (SELECT 3L AS k) s ON t.k = s.k WHEN MATCHED THEN UPDATE"
        " SET n = t.n + 10",
        f"{insert} SELECT max(k) + 10, 0 FROM {t}",
    ]
    expected = [(2, 1), (3, 10), (4, 0), (14, 0)]
    for _ in range(2):
        for number, statement in enumerate(statements):
            with configured(spark, {SETTINGS[0]: f"job {number}", SETTINGS[1]: "7"}):
                spark.sql(statement)
        assert rows(spark.table(t)) == expected
    with configured(spark, {SETTINGS[0]: "job 1", SETTINGS[1]: "8"}):
        spark.sql(statements[1])
    spark.sql(statements[1])
    assert rows(spark.table(t))[0] == (2, 3)
    options = {"applicationId": "own", "applicationVersion": "5"}
    spark.sql("SELECT 100L AS k, 0L AS n").writeTo(t).options(**options).append()
    assert rows(spark.table(t))[-1] == (14, 0)
    with configured(spark, {SETTINGS[0]: "alone"}):
        with pytest.raises(PySparkException, match=r"need each other.*applicationVersion"):
            spark.sql(statements[1])
    # A stream has its own: the query's id and the number of each batch.
    with configured(spark, {SETTINGS[0]: "job 1", SETTINGS[1]: "8"}):
        source = make_source(tmp_path, 1)
        frame = stream(spark, source.path).selectExpr("k + 50 AS k", "0L AS n")
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).toTable(t).awaitTermination(120)
    assert (50, 0) in rows(spark.table(t))
