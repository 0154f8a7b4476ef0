"""Views of the catalog, which Spark reads from version 4.3 on."""

import json
import random

import pyspark
import pytest
from pyspark.errors import AnalysisException

import kudulite
import kudulite_spark
from tests.spark.test_catalog import made, rows, stored, warehouse

__all__ = ["warehouse"]

with_views = pytest.mark.skipif(pyspark.__version__ < "4.3", reason="Spark 4.3 is the first")


@pytest.fixture
def db(spark, warehouse, tmp_path):
    """A namespace with the table t, whose rows are those of `made`."""
    spark.sql(f"CREATE NAMESPACE {warehouse}.db")
    made(spark, f"{warehouse}.db.t")
    return f"{warehouse}.db"


@with_views
def test_a_view_is_made_read_described_altered_and_dropped(spark, db, tmp_path):
    """It is a text beside the tables, and shows the rows of now."""
    spark.sql(
        f"CREATE VIEW {db}.v (key COMMENT 'a key', v) COMMENT 'of h1' TBLPROPERTIES ('p' = 'q')"
        f" AS SELECT id, v FROM {db}.t WHERE host = 'h1'"
    )
    assert sorted(rows(spark, f"SELECT * FROM {db}.v")) == [(1, 0.5), (4, 2.0), (7, 3.5)]
    spark.sql(f"DELETE FROM {db}.t WHERE id = 4")
    assert sorted(rows(spark, f"SELECT key FROM {db}.v")) == [(1,), (7,)]
    assert rows(spark, f"DESCRIBE {db}.v") == [("key", "bigint", "a key"), ("v", "double", None)]
    described = dict(row[:2] for row in rows(spark, f"DESCRIBE TABLE EXTENDED {db}.v"))
    assert described["Type"] == "VIEW" and described["Comment"] == "of h1"
    assert rows(spark, f"SHOW TBLPROPERTIES {db}.v") == [("p", "q")]
    ((text,),) = rows(spark, f"SHOW CREATE TABLE {db}.v")
    spark.sql(text.replace(f"{db}.v", f"{db}.w", 1))
    assert [row[1] for row in rows(spark, f"SHOW VIEWS IN {db}")] == ["v", "w"]
    assert [row[1] for row in rows(spark, f"SHOW TABLES IN {db}")] == ["t", "v", "w"]
    stored_text = (tmp_path / "warehouse" / "db" / "v.view").read_text()
    assert json.loads(stored_text)["query"] == f"SELECT id, v FROM {db}.t WHERE host = 'h1'"
    spark.sql(f"ALTER VIEW {db}.v AS SELECT 7 AS x")
    spark.sql(f"ALTER VIEW {db}.v SET TBLPROPERTIES ('r' = 's')")
    spark.sql(f"ALTER VIEW {db}.v RENAME TO db.x")
    assert rows(spark, f"SELECT * FROM {db}.x") == [(7,)]
    assert rows(spark, f"SHOW TBLPROPERTIES {db}.x ('r')") == [("r", "s")]
    spark.sql(f"DROP VIEW {db}.x")
    spark.sql(f"DROP VIEW IF EXISTS {db}.x")
    assert [row[1] for row in rows(spark, f"SHOW VIEWS IN {db} LIKE '*'")] == ["w"]
    kinds = {table.name: table.tableType for table in spark.catalog.listTables(db)}
    assert {name: kinds[name] for name in ("t", "w")} == {"t": "MANAGED", "w": "VIEW"}


@with_views
def test_names_are_those_of_where_the_view_was_made(spark, db):
    """Whatever the current namespace is when it is read; SELECT * keeps the columns of then."""
    spark.sql(f"USE {db}")
    try:
        spark.sql("CREATE VIEW a AS SELECT * FROM t")
        spark.sql("CREATE OR REPLACE VIEW b AS WITH big AS (SELECT id FROM a) SELECT id FROM big")
    finally:
        spark.sql("USE spark_catalog.default")
    assert rows(spark, f"SELECT count(*) FROM {db}.b") == [(10,)]
    spark.sql(f"ALTER TABLE {db}.t ADD COLUMN w INT")
    assert spark.table(f"{db}.a").columns == ["id", "host", "v"]
    spark.sql(f"CREATE OR REPLACE VIEW {db}.a AS SELECT * FROM {db}.t")
    assert spark.table(f"{db}.a").columns == ["id", "host", "v", "w"]
    spark.sql(f"ALTER TABLE {db}.t DROP COLUMN w")
    with pytest.raises(AnalysisException, match="INCOMPATIBLE_VIEW_SCHEMA_CHANGE"):
        spark.sql(f"SELECT * FROM {db}.a").collect()


@with_views
def test_a_view_of_the_past_keeps_it(spark, db, tmp_path):
    """So does one of a metadata table."""
    kudulite.connect(tmp_path / "warehouse" / "db").table("t").tag("before")
    spark.sql(f"CREATE VIEW {db}.past AS SELECT * FROM {db}.t VERSION AS OF 'before'")
    spark.sql(f"CREATE VIEW {db}.tagged AS SELECT name FROM {db}.t.tags")
    spark.sql(f"TRUNCATE TABLE {db}.t")
    assert len(stored(spark, f"{db}.past")) == 10 and stored(spark, f"{db}.t") == {}
    assert rows(spark, f"SELECT * FROM {db}.tagged") == [("before",)]


@with_views
def test_tables_and_views_have_one_set_of_names(spark, db):
    """Neither takes the name of the other, nor is dropped as the other."""
    spark.sql(f"CREATE VIEW {db}.v AS SELECT 1 AS id")
    for text, message in {
        f"CREATE TABLE {db}.v (id INT, PRIMARY KEY (id))": "already exists",
        f"CREATE OR REPLACE TABLE {db}.v (id INT, PRIMARY KEY (id))": "already exists",
        f"ALTER TABLE {db}.t RENAME TO db.v": "already exists",
        f"CREATE VIEW {db}.t AS SELECT 1 AS id": "already exists",
        f"CREATE OR REPLACE VIEW {db}.t AS SELECT 1 AS id": "EXPECT_VIEW_NOT_TABLE",
        f"ALTER VIEW {db}.v RENAME TO db.t": "already exists",
        f"CREATE VIEW {db}.v AS SELECT 1 AS id": "already exists",
        f"DROP TABLE {db}.v": "Use DROP VIEW",
        f"DROP VIEW {db}.t": "Use DROP TABLE",
        f"INSERT INTO {db}.v VALUES (2)": "is a view, which is only read",
        f"DELETE FROM {db}.v WHERE id = 1": "is a view, which is only read",
        f"DROP NAMESPACE {db}": "SCHEMA_NOT_EMPTY",
        f"CREATE VIEW {db}.t.v AS SELECT 1 AS id": "SCHEMA_NOT_FOUND",
        f"CREATE TABLE {db}.t.v (id INT, PRIMARY KEY (id))": "SCHEMA_NOT_FOUND",
        f"CREATE VIEW {db.partition('.')[0]}.v AS SELECT 1 AS id": "make one with CREATE NAMESPACE",
        f"CREATE OR REPLACE VIEW {db}.v AS SELECT * FROM {db}.v": "RECURSIVE_VIEW",
    }.items():
        with pytest.raises(AnalysisException, match=message):
            spark.sql(text)
    spark.sql(f"CREATE VIEW IF NOT EXISTS {db}.v AS SELECT 2 AS id")
    assert rows(spark, f"SELECT * FROM {db}.v") == [(1,)] and len(stored(spark, f"{db}.t")) == 10
    spark.sql(f"DROP TABLE {db}.t")
    with pytest.raises(AnalysisException, match="SCHEMA_NOT_EMPTY"):
        spark.sql(f"DROP NAMESPACE {db}")
    spark.sql(f"DROP NAMESPACE {db} CASCADE")


@with_views
def test_a_damaged_view_says_so_and_is_written_again(spark, db, tmp_path):
    """Other names are not affected."""
    file = tmp_path / "warehouse" / "db" / "v.view"
    for content in ("{", "[]", '{"format": 9}', '{"format": 1}'):
        file.write_text(content)
        with pytest.raises(AnalysisException, match="is no view that this kudulite reads") as shown:
            spark.sql(f"SELECT * FROM {db}.v")
        assert "Traceback" not in str(shown.value)
    assert len(rows(spark, f"SHOW TABLES IN {db}")) == 2
    spark.sql(f"CREATE OR REPLACE VIEW {db}.v AS SELECT 3 AS x")
    assert rows(spark, f"SELECT * FROM {db}.v") == [(3,)]


def test_a_catalog_without_views_says_what_has_them(spark, tmp_path):
    """The class without views, of older versions of Spark or named in the settings."""
    catalog = f"c{random.getrandbits(60):x}"
    spark.conf.set(f"spark.sql.catalog.{catalog}", "kudulite.Catalog")
    kudulite_spark.register(spark, warehouse=tmp_path, catalog=catalog)
    with pytest.raises(AnalysisException, match="does not support views"):
        spark.sql(f"CREATE VIEW {catalog}.db.v AS SELECT 1 AS x")
    kudulite.connect(tmp_path / "db").write_view(
        "v", '{"format": 1, "settings": {}, "properties": {}}'
    )
    with pytest.raises(AnalysisException, match="is a view: Spark 4.3 and newer read it"):
        spark.sql(f"SELECT * FROM {catalog}.db.v")
