"""Columns that are renamed, dropped and added again: DataFrames, SQL, streams, and the past."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import kudulite
import kudulite_spark
from kudulite import Table
from tests.spark.conftest import FRONT
from tests.support.spark.spark_tables import error_of, load, rows, run, start, stored, stream
from tests.support.tables.core_tables import altered
from tests.support.tables.moved_columns import ROWS, renewed, rows_table, swapped

ALTERATIONS = [swapped, renewed]
COPY = {"primaryKey": "k", "operationColumn": "_change_type"}
THEN = sorted(tuple(row.values()) for row in ROWS)


@pytest.fixture
def warehouse(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A catalog of its own, with the folder of the tests as its warehouse."""
    catalog = f"c{random.getrandbits(60):x}"
    spark.conf.set("spark.kudulite.front", "true")
    kudulite_spark.register(spark, warehouse=tmp_path, catalog=catalog)
    yield catalog
    spark.conf.set("spark.kudulite.front", "false")


@pytest.fixture
def client(tmp_path: Path) -> kudulite.Client:
    """A client of the warehouse."""
    return kudulite.connect(tmp_path, background_maintenance=False)


@pytest.fixture
def table(client: kudulite.Client) -> Table:
    """Rows of k, a and b."""
    return rows_table(client)


@FRONT
@pytest.mark.parametrize("alter", ALTERATIONS)
def test_a_dataframe_keeps_the_columns_of_its_load(spark, warehouse, client, table, alter):
    """By load, by read_table, and of the catalog; also with a filter that comes later."""
    path, name = str(table.path), f"{warehouse}.t"
    frames = [load(spark, path), kudulite_spark.read_table(spark, path)]
    frames += [load(spark, path, columns="b,a,k", filter="a >= 0").select("k", "a", "b")]
    of_catalog = spark.table(name)
    cached = spark.table(name).where("k < 100").cache()
    assert rows(cached) == THEN
    alter(client)
    client.table("t").upsert([{"k": 0, "b": 77}])
    client.table("t").compact()
    for frame in frames:
        assert rows(frame) == THEN
        assert rows(frame.where("a = 2").select("k")) == [(2,)]
        assert frame.where("b = 20 AND a < 4").count() == 1
    # Spark looks tables of a catalog up again, or refuses the DataFrame.
    found = of_catalog.select("k", "a", "b")
    assert _rows_or_error(found, "column") in (THEN, None)
    cached.unpersist()


def _rows_or_error(frame: DataFrame, text: str) -> list[tuple] | None:
    try:
        return rows(frame)
    except Exception as error:
        assert text in str(error).lower()
        return None


@FRONT
@pytest.mark.parametrize("alter", ALTERATIONS)
def test_the_past_has_the_columns_of_then(spark, warehouse, client, table, alter):
    """In every read that takes a moment."""
    before = table.current_timestamp()
    text = before.to_datetime().isoformat()
    table = alter(client)
    table.upsert([{"k": 0, "b": 77}])
    table.compact()
    path, name = str(table.path), f"{warehouse}.t"
    frames = {
        "load": load(spark, path, snapshotTimestamp=str(int(before))),
        "read_table": kudulite_spark.read_table(spark, path, snapshot=before),
        "where": kudulite_spark.read_table(spark, path, snapshot=before, where="a >= 0"),
        "version": spark.sql(f"SELECT * FROM {name} VERSION AS OF {int(before)}"),
        "timestamp": spark.sql(f"SELECT * FROM {name} TIMESTAMP AS OF '{text}'"),
    }
    for how, frame in frames.items():
        assert frame.columns == ["k", "a", "b"], how
        assert rows(frame) == THEN, how
        assert rows(frame.where("a = 3").select("b")) == [(30,)], how
    changes = load(spark, path, startTimestamp="0", endTimestamp=str(int(before)))
    assert rows(changes.select("k", "a", "b")) == THEN
    sql = spark.sql(  # likewise, and the values are those of the columns of now
        f"SELECT * FROM {name}.changes WITH (startTimestamp = '0', endTimestamp = '{int(before)}')"
    )
    b = "a" if alter is swapped else "b"
    assert rows(sql.select("k", b)) == [(k, b) for k, _, b in THEN]
    # The columns of the DataFrame are those of now, before Spark shows its option to the source.
    option = spark.read.option("snapshotTimestamp", str(int(before))).table(name)
    with pytest.raises(Exception, match="it cannot be read as string|the schema given says NOT"):
        option.collect()
    now = spark.table(name)
    assert now.columns == table.schema.names
    assert now.where("k = 0").select("b").collect() == [(77,)]


def test_the_past_has_the_types_of_then(spark, client, table):
    """Also by read_table, which reads files that may have the wider type by now."""
    before = table.current_timestamp()
    table = altered(client, "t", lambda a: a.alter_column("a").type(kudulite.int64))
    for _ in range(2):
        for frame in (
            load(spark, table.path, snapshotTimestamp=str(int(before))),
            kudulite_spark.read_table(spark, str(table.path), snapshot=before),
        ):
            assert dict(frame.dtypes)["a"] == "int"
            assert rows(frame) == THEN
        table.upsert([{"k": 1, "a": 1 << 40, "b": 0}])
        table.compact()


@pytest.mark.parametrize("alter", ALTERATIONS)
def test_a_running_stream_keeps_its_columns_or_says_which_is_gone(
    spark, tmp_path, client, table, alter
):
    """Values of another column never pass under a name of the query."""
    changes = stream(spark, table.path, startTimestamp="snapshot").select("k", "a", "_change_type")
    writer = changes.writeStream.format("kudulite").options(**COPY)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start(str(tmp_path / "copy"))
    try:
        query.processAllAvailable()
        table = alter(client)
        if alter is swapped:
            table.upsert([{"k": 1, "a": 5000, "b": 41}])
            query.processAllAvailable()
            assert stored(tmp_path / "copy") == [(0, 0), (1, 41), (2, 2), (3, 3), (4, 4), (5, 5)]
        else:
            table.upsert([{"k": 1, "a": "no number", "b": 41}])
            with pytest.raises(Exception, match="the column 'a' of id 1, which was dropped"):
                query.processAllAvailable()
    finally:
        query.stop()


@pytest.mark.parametrize("alter", ALTERATIONS)
def test_a_query_that_is_started_again_does_not_read_another_column_by_an_old_name(
    spark, tmp_path, client, table, alter
):
    """The checkpoint knows the ids of the columns; a query that reads others goes on."""
    place = tmp_path / "copy", tmp_path / "checkpoint"

    def frame(*names: str) -> DataFrame:
        read = stream(spark, table.path, startTimestamp="snapshot", columns=",".join(names))
        return read.drop("_commit_version", "_commit_timestamp")

    run(frame("k", "a"), *place, **COPY)
    alter(client).update([{"k": 1, "b": 50}])
    text = error_of(start(frame("k", "a"), *place, **COPY))
    assert "the checkpoint is of a query that read column 'a' of id 1" in text
    assert "start the query with a new checkpoint" in text
    if alter is swapped:
        run(frame("k", "b").withColumnRenamed("b", "a"), *place, **COPY)
        assert stored(tmp_path / "copy")[1] == (1, 50)
