"""A write in Spark leaves the cells of a column that it does not name, in every way to write."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import kudulite
import kudulite_spark
from tests.spark.conftest import FRONT

pytestmark = FRONT

# Of a row with a = 1, b = 1, c = 'x' and of a new one; b has the default 7 in new rows.
LEFT = [(1, 10, 1, "x"), (2, 20, 7, None)]


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A catalog with a table t of one row, and a view v of it."""
    name = f"c{uuid.uuid4().hex}"
    kudulite_spark.register(spark, warehouse=tmp_path, catalog=name)
    spark.sql(
        f"CREATE TABLE {name}.t (id BIGINT, a INT, b INT DEFAULT 7, c STRING, PRIMARY KEY (id))"
    )
    kudulite.open_table(tmp_path / "t").insert([{"id": 1, "a": 1, "b": 1, "c": "x"}])
    yield name
    spark.conf.unset("spark.kudulite.front")


def stored(path: Path) -> list[tuple]:
    """All rows in the order of their keys, without Spark."""
    return [tuple(row.values()) for row in kudulite.open_table(path).scan(ordered=True).to_pylist()]


def some(spark: SparkSession) -> DataFrame:
    """Rows of the columns id and a."""
    return spark.sql("SELECT id, CAST(id AS INT) * 10 AS a FROM range(1, 3)")


UPSERT = "WITH (operation = 'upsert')"
STATEMENTS = {
    "by name": f"INSERT INTO {{t}} {UPSERT} BY NAME"
    " SELECT id, CAST(id * 10 AS INT) AS a FROM range(1, 3)",
    "columns of values": f"INSERT INTO {{t}} {UPSERT} (a, id) VALUES (10, 1), (20, 2)",
    "columns of a query": f"INSERT INTO {{t}} {UPSERT} (id, a) SELECT id, id * 10 FROM range(1, 3)",
    "a distribution": "INSERT INTO {t} WITH (operation = 'upsert', repartition = 'true') (id, a)"
    " SELECT id, id * 10 FROM range(1, 3)",
}


@pytest.mark.parametrize("case", STATEMENTS)
def test_an_insert_in_sql_leaves_columns_that_it_does_not_name(spark, catalog, tmp_path, case):
    """Cells of rows that are there stay, and new rows have the defaults."""
    spark.sql(STATEMENTS[case].format(t=f"{catalog}.t"))
    assert stored(tmp_path / "t") == LEFT


def test_a_dataframe_written_by_name_leaves_columns_that_it_lacks(spark, catalog, tmp_path):
    """writeTo and saveAsTable do what df.write does."""
    t, path, df = f"{catalog}.t", tmp_path / "t", some(spark)
    for write in (
        lambda: df.writeTo(t).option("operation", "upsert").append(),
        lambda: df.writeTo(f"{catalog}.`{path}`").option("operation", "upsert").append(),
        lambda: df.write.mode("append").option("operation", "upsert").saveAsTable(t),
        lambda: df.write.format("kudulite").mode("append").save(str(path)),
    ):
        write()
        assert stored(path) == LEFT
        kudulite.open_table(path).delete([{"id": 2}])
        kudulite.open_table(path).update([{"id": 1, "a": 1}])
    df.writeTo(t).option("operation", "update_ignore").append()
    assert stored(path) == LEFT[:1]
    df.select("id").writeTo(t).option("operation", "delete_ignore").append()
    assert stored(path) == []


def test_a_named_null_and_a_named_default_are_written(spark, catalog, tmp_path):
    """A constant of the statement or the DataFrame is named, whatever its value."""
    t, path, df = f"{catalog}.t", tmp_path / "t", some(spark)
    whole = df.withColumn("b", sf.lit(None).cast("int")).withColumn("c", sf.lit("y"))
    expected = [(1, 10, None, "y"), (2, 20, None, "y")]
    for write in (
        lambda: whole.write.format("kudulite").mode("append").save(str(path)),
        lambda: (
            spark.range(1, 3)
            .selectExpr("id", "int(id * 10) AS a", "int(NULL) AS b", "'y' AS c")
            .write.format("kudulite")
            .mode("append")
            .save(str(path))
        ),
        lambda: whole.writeTo(t).option("operation", "upsert").append(),
        lambda: whole.to(spark.table(t).schema).writeTo(t).option("operation", "upsert").append(),
        lambda: whole.write.option("operation", "upsert").insertInto(t),
        lambda: spark.sql(
            f"INSERT INTO {t} {UPSERT} BY NAME SELECT id, CAST(id * 10 AS INT) AS a,"
            " CAST(NULL AS INT) AS b, 'y' AS c FROM range(1, 3)"
        ),
    ):
        write()
        assert stored(path) == expected
        kudulite.open_table(path).upsert([{"id": 1, "b": 1, "c": "x"}])
    spark.sql(f"INSERT INTO {t} {UPSERT} (id, b) VALUES (1, DEFAULT), (2, NULL)")
    assert stored(path) == [(1, 10, 7, "x"), (2, 20, None, "y")]


def test_a_plain_insert_has_the_defaults_of_columns_that_it_does_not_name(spark, catalog, tmp_path):
    """Also a MERGE that only inserts."""
    t = f"{catalog}.t"
    spark.sql(f"INSERT INTO {t} (id, a) VALUES (2, 20)")
    spark.sql(
        f"MERGE INTO {t} t USING (SELECT 3L AS id) s ON t.id = s.id"
        " WHEN NOT MATCHED THEN INSERT (id, a) VALUES (s.id, 30)"
    )
    assert stored(tmp_path / "t") == [(1, 1, 1, "x"), (2, 20, 7, None), (3, 30, 7, None)]
    plan = spark.sql(f"EXPLAIN INSERT INTO {t} (id, a) VALUES (9, 9)").collect()[0][0]
    assert "Error" not in plan


def viewed(spark: SparkSession, source: str, view: str, path: Path) -> None:
    """Make a view of the table: by SQL, of a load(), or with a schema that the user gives."""
    reader = spark.read.format("kudulite")
    if source == "sql":
        spark.sql(f"CREATE TEMPORARY VIEW {view} USING kudulite OPTIONS (path '{path}')")
    elif source == "load":
        reader.load(str(path)).createOrReplaceTempView(view)
    else:
        schema = "id BIGINT, a INT, b INT, c STRING"
        reader.schema(schema).load(str(path)).createOrReplaceTempView(view)


@pytest.mark.parametrize("front", ["true", "false"])
@pytest.mark.parametrize("source", ["sql", "load", "schema"])
def test_an_insert_into_a_view_leaves_columns_that_it_does_not_name(
    spark, catalog, tmp_path, front, source
):
    """With the front on or off; constants that the statement names are written."""
    path, v = tmp_path / "t", f"v{catalog}"
    spark.conf.set("spark.kudulite.front", front)
    viewed(spark, source, v, path)
    for statement in (
        f"INSERT INTO {v} (a, id) VALUES (10, 1), (20, 2)",
        f"INSERT INTO {v} BY NAME SELECT id, CAST(id * 10 AS INT) AS a FROM range(1, 3)",
        f"FROM range(1, 3) INSERT INTO {v} (id, a) SELECT id, CAST(id * 10 AS INT)",
    ):
        spark.sql(statement)
        assert stored(path) == LEFT
        kudulite.open_table(path).delete([{"id": 2}])
    spark.sql(f"INSERT INTO {v} BY NAME SELECT id, 5 AS a, 6 AS b, 'y' AS c FROM range(1, 3)")
    assert stored(path) == [(1, 5, 6, "y"), (2, 5, 6, "y")]
    spark.catalog.dropTempView(v)


@pytest.mark.parametrize("front", ["true", "false"])
@pytest.mark.parametrize("source", ["sql", "load", "schema"])
def test_a_dataframe_written_to_a_view_names_all_columns(spark, catalog, tmp_path, front, source):
    """Constants are written; a missing column, or a constant with metadata, is refused."""
    path, v = tmp_path / "t", f"v{catalog}"
    spark.conf.set("spark.kudulite.front", front)
    viewed(spark, source, v, path)
    lacking = some(spark).withColumn("b", sf.lit(5))
    whole = lacking.withColumn("c", sf.lit(None).cast("string"))
    constants = spark.range(1).selectExpr("1L AS id", "10 AS a", "5 AS b", "string(NULL) AS c")
    added = lacking.to(spark.table(v).schema)
    for rows in (whole, constants, added, whole.select("c", "b", "id", "a")):
        rows.writeTo(v).append()
        assert stored(path)[0] == (1, 10, 5, None)
        kudulite.open_table(path).upsert([{"id": 1, "a": 1, "b": 1, "c": "x"}])
    before = stored(path)
    noted = lacking.withColumn("c", sf.lit(None).cast("string").alias("c", metadata={"x": 1}))
    for rows in (lacking, noted):
        with pytest.raises(AnalysisException, match="column c is missing, or a constant"):
            rows.writeTo(v).append()
    assert stored(path) == before
    # Nothing is missing in a write by path, whose rows are the schema.
    noted.write.format("kudulite").mode("append").save(str(path))
    assert stored(path)[0] == (1, 10, 5, None)
    spark.catalog.dropTempView(v)
