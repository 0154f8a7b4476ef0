"""Definitions of tables in Spark SQL: made and replaced whole, altered, and shown again."""

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import kudulite
from tests.spark.test_catalog import made, rows, stored, warehouse

__all__ = ["warehouse"]

KEY = "TBLPROPERTIES ('primaryKey'='id')"


def hidden(root: Path) -> list[str]:
    """What a directory of tables holds beside tables."""
    return sorted(path.name.split("-")[0] for path in root.glob(".*"))


def client_of(tmp_path: Path) -> kudulite.Client:
    """A client of the warehouse."""
    return kudulite.connect(tmp_path / "warehouse")


def failing(spark: SparkSession) -> None:
    """Define watched(id): it fails after some rows."""

    def watched(number: int) -> int:
        """Fail in the task."""
        if number > 3:
            raise ValueError("no more rows")
        return number

    spark.udf.register("watched", watched, "bigint")


def test_a_table_of_a_query_is_seen_when_it_is_filled(spark, warehouse, tmp_path):
    """While the rows are written there is none; a failed statement leaves nothing."""
    made(spark, f"{warehouse}.t")
    client = client_of(tmp_path)
    folder, note = str(client.root), str(tmp_path / "listed")

    def seen(number: int) -> int:
        """Note which tables there are while a task writes."""
        with open(note, "a") as file:
            file.write(f"{kudulite.connect(folder).list_tables()}\n")
        return number

    spark.udf.register("seen", seen, "bigint")
    spark.sql(f"CREATE TABLE {warehouse}.c {KEY} AS SELECT seen(id) AS id, v FROM {warehouse}.t")
    assert set(Path(note).read_text().splitlines()) == {"['t']"}
    assert rows(spark, f"SELECT count(*), sum(id) FROM {warehouse}.c") == [(10, 45)]
    failing(spark)
    with pytest.raises(PySparkException, match="no more rows"):
        spark.sql(
            f"CREATE TABLE {warehouse}.d {KEY} AS SELECT watched(id) AS id FROM {warehouse}.t"
        )
    assert (client.list_tables(), hidden(client.root)) == (["c", "t"], [])
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        spark.sql(f"CREATE TABLE {warehouse}.c {KEY} AS SELECT id FROM {warehouse}.t")
    spark.sql(f"CREATE TABLE IF NOT EXISTS {warehouse}.c {KEY} AS SELECT id FROM {warehouse}.t")
    assert rows(spark, f"SELECT count(*) FROM {warehouse}.c") == [(10,)]


def test_a_replaced_table_of_the_same_definition_keeps_its_history(spark, warehouse, tmp_path):
    """Its rows are replaced in one version, also by a query of itself."""
    t = f"{warehouse}.t"
    model = made(spark, t)
    table = client_of(tmp_path).table("t")
    table.tag("before")
    version = table.version
    layout = "PRIMARY KEY (id)) PARTITIONED BY (bucket(2, id))"
    definition = f"(id BIGINT, host STRING, v DOUBLE, {layout}"
    spark.table(t).where("id < 4").writeTo(t).tableProperty("primaryKey", "id").tableProperty(
        "hashPartitions", "id:2"
    ).createOrReplace()
    assert (table.version, stored(spark, t)) == (version + 1, {k: model[k] for k in range(4)})
    spark.sql(f"REPLACE TABLE {t} {definition}")
    assert stored(spark, t) == {}
    assert stored(spark, f"{t} VERSION AS OF 'before'") == model
    assert hidden(client_of(tmp_path).root) == []


def test_a_table_of_another_definition_takes_the_name(spark, warehouse, tmp_path):
    """A statement that fails leaves the old table; the replaced one can be recalled."""
    t = f"{warehouse}.t"
    model = made(spark, t)
    client = client_of(tmp_path)
    failing(spark)
    with pytest.raises(PySparkException, match="no more rows"):
        spark.sql(f"CREATE OR REPLACE TABLE {t} {KEY} AS SELECT watched(id) AS id FROM {t}")
    assert (stored(spark, t), hidden(client.root)) == (model, [])
    spark.sql(f"CREATE OR REPLACE TABLE {t} {KEY} AS SELECT id, id * 2 AS w FROM {t} WHERE id < 3")
    assert rows(spark, f"SELECT * FROM {t} ORDER BY id") == [(0, 0), (1, 2), (2, 4)]
    (replaced,) = client.list_soft_deleted_tables()
    client.recall_table(replaced.id, "old")
    assert stored(spark, f"{warehouse}.old") == model
    spark.sql(f"CREATE OR REPLACE TABLE {warehouse}.n (id BIGINT, PRIMARY KEY (id))")
    spark.sql(f"REPLACE TABLE {warehouse}.n (id STRING, PRIMARY KEY (id))")
    assert rows(spark, f"DESCRIBE {warehouse}.n")[0][1] == "string"
    spark.sql(f"CREATE NAMESPACE {warehouse}.db")
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql(f"REPLACE TABLE {warehouse}.db.nix (id BIGINT, PRIMARY KEY (id))")


def test_a_dataframe_is_written_to_a_table_by_its_name(spark, warehouse):
    """create, append, overwrite of all rows; what would overwrite a part is refused."""
    made(spark, f"{warehouse}.t")
    w = f"{warehouse}.w"
    df = spark.table(f"{warehouse}.t")
    df.writeTo(w).tableProperty("primaryKey", "id").create()
    df.withColumn("id", df.id + 100).writeTo(w).append()
    assert rows(spark, f"SELECT count(*) FROM {w}") == [(20,)]
    df.writeTo(w).overwrite(sf.lit(True))
    assert stored(spark, w) == stored(spark, f"{warehouse}.t")
    for refused in (
        lambda: df.writeTo(w).overwrite(sf.col("id") > 3),
        lambda: df.writeTo(w).overwritePartitions(),
    ):
        with pytest.raises(AnalysisException, match="UNSUPPORTED_FEATURE"):
            refused()
