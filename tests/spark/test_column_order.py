"""Spark shows the columns of a table in the order in which they were given, wherever the key is."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import kudulite
import kudulite_spark
from tests.spark.conftest import FRONT
from tests.spark.test_named_columns import catalog

pytestmark = FRONT

__all__ = ["catalog"]

NAMES = ["a", "id", "b"]


def some(spark: SparkSession, first: int) -> DataFrame:
    """Rows (100 * id, id, 10 * id), so that columns of one type can be swapped."""
    return spark.range(first, first + 2).selectExpr("id * 100 AS a", "id", "id * 10 AS b")


def stored(path: Path) -> list[tuple[int, int, int]]:
    """The rows as (id, a, b), without Spark."""
    rows = kudulite.open_table(path).scan(["id", "a", "b"], ordered=True).to_pylist()
    return [(row["id"], row["a"], row["b"]) for row in rows]


def expected(*ids: int) -> list[tuple[int, int, int]]:
    """What `stored` returns for these ids."""
    return [(number, number * 100, number * 10) for number in ids]


@pytest.mark.parametrize("front", ["true", "false"])
def test_rows_by_position_are_those_of_the_dataframe(spark, catalog, tmp_path, front):
    """SELECT * of a table can be inserted into it, by name, by path and through a view."""
    spark.conf.set("spark.kudulite.front", front)
    path, t, v = tmp_path / "d", f"{catalog}.d", f"v{catalog}"
    some(spark, 1).write.format("kudulite").mode("append").option("primaryKey", "id").save(
        str(path)
    )
    spark.sql(f"CREATE TEMPORARY VIEW {v} USING kudulite OPTIONS (path '{path}')")
    some(spark, 5).createOrReplaceTempView(f"s{v}")
    some(spark, 3).write.insertInto(t)
    spark.sql(f"INSERT INTO {t} SELECT * FROM s{v}")
    spark.sql(f"INSERT INTO {v} VALUES (700L, 7L, 70L)")
    spark.sql(f"INSERT INTO {t} WITH (operation = 'upsert') SELECT * FROM {t}")
    assert stored(path) == expected(1, 2, 3, 4, 5, 6, 7)
    spark.sql(f"INSERT OVERWRITE {t} SELECT * FROM s{v}")
    spark.sql(f"UPDATE {t} SET b = b + 1 WHERE id = 5")
    spark.sql(
        f"MERGE INTO {t} t USING (SELECT 800L AS a, 8L AS id, 80L AS b) s ON t.id = s.id"
        " WHEN NOT MATCHED THEN INSERT *"
    )
    assert stored(path) == [(5, 500, 51), *expected(6, 8)]
    for dropped in (v, f"s{v}"):
        spark.catalog.dropTempView(dropped)


@pytest.mark.parametrize("front", ["true", "false"])
def test_every_way_to_read_has_one_order(spark, catalog, tmp_path, front):
    """load, read_table, SQL, DESCRIBE, changes and a stream; ALTER TABLE adds at the end."""
    spark.conf.set("spark.kudulite.front", front)
    path, t = str(tmp_path / "d"), f"{catalog}.d"
    some(spark, 1).write.format("kudulite").mode("append").option("primaryKey", "id").save(path)
    for names in (NAMES, [*NAMES, "z"]):
        loaded = spark.read.format("kudulite").load(path)
        assert loaded.columns == names
        assert kudulite_spark.read_table(spark, path).columns == names
        assert spark.table(t).columns == names
        assert [row[0] for row in spark.sql(f"DESCRIBE {t}").collect()][: len(names)] == names
        start = str(int(kudulite.open_table(path).versions()[-1].timestamp))
        changes = spark.read.format("kudulite").option("startTimestamp", start).load(path)
        assert changes.columns[: len(names)] == names
        stream = spark.readStream.format("kudulite").load(path)
        assert stream.columns == names
        row = tuple(loaded.where("id = 2").first())
        assert row == tuple(kudulite_spark.read_table(spark, path).where("id = 2").first())
        assert row[:3] == (200, 2, 20)
        if "z" not in names:
            spark.sql(f"ALTER TABLE {t} ADD COLUMN z INT")
    assert kudulite.open_table(path).schema.names == ["id", "a", "b", "z"]


def test_a_table_of_sql_has_its_columns_in_the_order_typed(spark, catalog, tmp_path):
    """CREATE TABLE, AS SELECT, REPLACE and saveAsTable; SHOW CREATE TABLE makes the same again."""
    c = catalog
    spark.sql(f"CREATE TABLE {c}.d (a BIGINT, id BIGINT, b BIGINT, PRIMARY KEY (id))")
    spark.sql(f"INSERT INTO {c}.d VALUES (100, 1, 10)")
    ((text,),) = spark.sql(f"SHOW CREATE TABLE {c}.d").collect()
    spark.sql(text.replace(f"{c}.d ", f"{c}.e "))
    tables = [kudulite.open_table(tmp_path / name) for name in "de"]
    assert tables[0].schema == tables[1].schema
    spark.sql(f"INSERT INTO {c}.e SELECT * FROM {c}.d")
    some(spark, 1).limit(1).writeTo(f"{c}.w").tableProperty("primaryKey", "id").create()
    spark.sql(f"REPLACE TABLE {c}.w TBLPROPERTIES ('primaryKey' = 'id') AS SELECT * FROM {c}.d")
    for name in "dew":
        assert stored(tmp_path / name) == expected(1)
        assert spark.table(f"{c}.{name}").columns == NAMES
    keys = spark.table(f"{c}.d").withColumn("b", sf.lit(None).cast("long"))
    keys.writeTo(f"{c}.d").option("operation", "upsert").append()
    assert stored(tmp_path / "d") == [(1, 100, None)]
