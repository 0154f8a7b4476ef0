"""The catalog of Spark SQL: every statement against a dictionary, or against what Spark shows."""

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

import kudulite
import kudulite_spark
from kudulite.errors import NotSupportedError, UsageError
from kudulite_spark import session
from tests.spark.conftest import FRONT
from tests.support.spark.sql_statements import made, rows, run_random_statements, stored

pytestmark = FRONT

CHANGES_OF_ANOTHER = """
import sys, kudulite
client = kudulite.connect(sys.argv[1])
client.new_table_alterer(client.table("a")).set_comment("altered").alter()
client.delete_table("b")
client.create_table("b", {"k": [1]}, primary_key="k", comment="replaced")
client.delete_table("c c")
client.create_table("e", {"k": [1]}, primary_key="k", comment="new")
"""


@pytest.fixture
def warehouse(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A catalog of its own for each test; Spark keeps one for a name."""
    catalog = f"c{random.getrandbits(60):x}"
    kudulite_spark.register(spark, warehouse=tmp_path / "warehouse", catalog=catalog)
    yield catalog


def test_a_key_that_is_not_unique_is_a_property(spark: SparkSession, warehouse: str):
    """UPDATE, DELETE and SELECT work. New rows are written by path: SQL asks for all columns."""
    table = f"{warehouse}.lines"
    spark.sql(
        f"CREATE TABLE {table} (k INT, v BIGINT)"
        " TBLPROPERTIES ('primaryKey' = 'k, auto_incrementing_id')"
    )
    described = dict(row[:2] for row in rows(spark, f"DESCRIBE TABLE EXTENDED {table}"))
    assert described["auto_incrementing_id"] == "bigint"
    ((text,),) = rows(spark, f"SHOW CREATE TABLE {table}")
    spark.sql(text.replace(table, f"{table}_again"))
    folder = described["Location"]
    assert kudulite.open_table(f"{folder}_again").schema == kudulite.open_table(folder).schema
    frame = spark.range(4).selectExpr("1 AS k", "id AS v")
    writer = frame.write.format("kudulite").mode("append").option("operation", "insert")
    writer.save(folder)
    with pytest.raises(AnalysisException, match="auto_incrementing_id"):
        spark.sql(f"INSERT INTO {table} (k, v) VALUES (1, 2)")
    spark.sql(f"UPDATE {table} SET v = 9 WHERE v = 3")
    spark.sql(f"DELETE FROM {table} WHERE v < 2")
    assert sorted(v for _, _, v in rows(spark, f"SELECT * FROM {table}")) == [2, 9]


@pytest.mark.quick
def test_namespaces_and_tables_are_directories(spark, warehouse, tmp_path):
    """SQL, `connect` and `load` see the same tables."""
    spark.sql(f"CREATE NAMESPACE {warehouse}.db")
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {warehouse}.db")
    assert rows(spark, f"SHOW NAMESPACES IN {warehouse}") == [("db",)]
    model = made(spark, f"{warehouse}.db.t")
    client = kudulite.connect(tmp_path / "warehouse" / "db")
    table = client.table("t")
    assert (client.list_tables(), len(table)) == (["t"], len(model))
    assert table.schema.key_names == ["id"]
    table.upsert([{"id": 3, "v": 9.0}])
    model[3] = ("h0", 9.0)
    assert stored(spark, f"{warehouse}.`db`.t") == model
    assert stored(spark, f"{warehouse}.`{table.path}`") == model
    assert [row[1] for row in rows(spark, f"SHOW TABLES IN {warehouse}.db")] == ["t"]
    with pytest.raises(AnalysisException, match="SCHEMA_NOT_EMPTY"):
        spark.sql(f"DROP NAMESPACE {warehouse}.db")
    spark.sql(f"DROP TABLE {warehouse}.db.t")
    spark.sql(f"DROP TABLE IF EXISTS {warehouse}.db.t")
    spark.sql(f"DROP NAMESPACE {warehouse}.db")
    assert rows(spark, f"SHOW NAMESPACES IN {warehouse}") == []


def test_spark_lists_the_tables_and_comments_that_are_there_now(spark, warehouse, tmp_path):
    """Also those that others made, altered, replaced and dropped since the listing before."""
    spark.sql(f"CREATE NAMESPACE {warehouse}.db")
    folder = str(tmp_path / "warehouse" / "db")
    model = {"a": "one", "b": "two", "c c": "three", "d": None}
    for name, comment in model.items():
        made(spark, f"{warehouse}.db.`{name}`")
        if comment is not None:
            spark.sql(f"COMMENT ON TABLE {warehouse}.db.`{name}` IS '{comment}'")

    def listed() -> dict[str, str | None]:
        """Return the comments; all tables are of the namespace and managed."""
        found = spark.catalog.listTables(f"{warehouse}.db")
        persistent = [table for table in found if not table.isTemporary]
        kinds = {(t.catalog, *(t.namespace or ()), t.tableType) for t in persistent}
        assert kinds == {(warehouse, "db", "MANAGED")}
        assert [t.name for t in persistent] == [r[1] for r in shown() if not r[2]]
        return {table.name: table.description for table in persistent}

    def shown() -> list[tuple]:
        return rows(spark, f"SHOW TABLES IN {warehouse}.db")

    assert listed() == listed() == model
    subprocess.run([sys.executable, "-c", CHANGES_OF_ANOTHER, folder], check=True)
    model = {"a": "altered", "b": "replaced", "d": None, "e": "new"}
    assert listed() == model


def test_a_local_session_has_the_catalog_of_a_directory_and_keeps_it(spark, tmp_path):
    """As after `register`; a second directory under the same name is refused."""
    catalog = f"c{random.getrandbits(60):x}"
    own = kudulite_spark.local_session(warehouse=tmp_path / "a", catalog=catalog)
    model = made(own, f"{catalog}.t")
    assert len(kudulite.open_table(tmp_path / "a" / "t")) == len(model)
    kudulite_spark.register(own, warehouse=tmp_path / "a", catalog=catalog)
    for taken in (catalog, "spark_catalog"):
        with pytest.raises(UsageError, match=f"'{taken}' cannot be .*/b: the session has a cat"):
            kudulite_spark.register(own, warehouse=tmp_path / "b", catalog=taken)
    for name, place, message in (
        ("a.b", "w", "Spark takes a name of letters"),
        ("empty", "", "is an empty text; give a directory"),
    ):
        with pytest.raises(UsageError, match=message):
            kudulite_spark.register(own, warehouse=place, catalog=name)
    assert stored(own, f"{catalog}.t") == model


def test_without_the_jar_a_catalog_is_refused_with_the_reason(spark, tmp_path, monkeypatch):
    """It says which ways are left; without a warehouse the session is registered."""
    monkeypatch.setattr(session, "JAR", tmp_path / "no.jar")
    kudulite_spark.register(spark)
    with pytest.raises(NotSupportedError, match=r"no\.jar is missing\. Without it use spark\.read"):
        kudulite_spark.register(spark, warehouse=tmp_path / "w", catalog="refused")


def test_a_table_is_altered_described_renamed_and_made_of_a_query(spark, warehouse):
    """Columns, comments and properties."""
    t = f"{warehouse}.t"
    model = made(spark, t)
    spark.sql(f"CREATE TABLE {warehouse}.c TBLPROPERTIES ('primaryKey'='id') AS SELECT * FROM {t}")
    assert stored(spark, f"{warehouse}.c") == model
    for change in (
        "ADD COLUMN w INT COMMENT 'new'",
        "RENAME COLUMN v TO vv",
        "ALTER COLUMN w TYPE BIGINT",
        "DROP COLUMN host",
        "SET TBLPROPERTIES ('comment'='a table')",
        "RENAME TO d",
    ):
        spark.sql(f"ALTER TABLE {warehouse}.c {change}")
    described = rows(spark, f"DESCRIBE TABLE {warehouse}.d")
    assert described == [("id", "bigint", None), ("vv", "double", None), ("w", "bigint", "new")]
    extended = dict(row[:2] for row in rows(spark, f"DESCRIBE TABLE EXTENDED {warehouse}.d"))
    assert extended["Comment"] == "a table"
    assert "primaryKey=id" in extended["Table Properties"]
    assert rows(spark, f"SELECT count(*), sum(vv), max(w) FROM {warehouse}.d") == [
        (10, sum(v for _, v in model.values()), None)
    ]


def test_rows_are_inserted_overwritten_and_read_as_of_the_past(spark, warehouse, tmp_path):
    """INSERT is strict; a tag, a HybridTime and a time name the past."""
    t = f"{warehouse}.t"
    model = made(spark, t)
    table = kudulite.connect(tmp_path / "warehouse").table("t")
    table.tag("before")
    moment = table.current_timestamp()
    with pytest.raises(PySparkException, match="key already present"):
        spark.sql(f"INSERT INTO {t} VALUES (1, 'x', 0D)")
    assert stored(spark, t) == model
    spark.sql(f"INSERT INTO {t} WITH (operation='upsert') VALUES (1, 'x', 0D)")
    assert stored(spark, t) == {**model, 1: ("x", 0.0)}
    spark.sql(f"INSERT OVERWRITE {t} VALUES (77, 'y', 1D)")
    assert stored(spark, t) == {77: ("y", 1.0)}
    spark.sql(f"TRUNCATE TABLE {t}")
    assert stored(spark, t) == {}
    for past in ("VERSION AS OF 'before'", f"VERSION AS OF '{int(moment)}'"):
        assert stored(spark, f"{t} {past}") == model


REFUSED = {
    "another format": (
        "CREATE TABLE {c}.x (id BIGINT, PRIMARY KEY (id)) USING delta",
        "USING delta: all tables of this catalog are kudulite's; leave USING out",
    ),
    "one bucket": (
        "CREATE TABLE {c}.x (id BIGINT, PRIMARY KEY (id)) PARTITIONED BY (bucket(1, id))",
        "PARTITIONED BY (bucket(1, id)): write bucket(4, column) for 4 hash partitions, at least 2",
    ),
    "an unknown key": (
        "CREATE TABLE {c}.x (id BIGINT, PRIMARY KEY (key))",
        "primary key column 'key' is none of the given columns: id",
    ),
    "a change of NOT NULL": (
        "ALTER TABLE {c}.t ALTER COLUMN v DROP NOT NULL",
        "Client.new_table_alterer alters ranges and encodings",
    ),
    "no key": ("CREATE TABLE {c}.x (id BIGINT)", "has no primary key: write PRIMARY KEY"),
    "another order": (
        "CREATE TABLE {c}.x (v INT, b INT, a INT)"
        " TBLPROPERTIES ('primaryKey' = 'a, b, auto_incrementing_id')",
        "the columns of a key that is not unique must be the first, as in a, b, v",
    ),
    "a property": (
        "CREATE TABLE {c}.x (id BIGINT, PRIMARY KEY (id)) TBLPROPERTIES ('colour'='red')",
        "unknown table property 'colour'; known: comment, hashPartitions",
    ),
    "a location": (
        "CREATE TABLE {c}.x (id BIGINT, PRIMARY KEY (id)) LOCATION '/nowhere'",
        "leave LOCATION out",
    ),
    "an identity partition": (
        "CREATE TABLE {c}.x (id BIGINT, PRIMARY KEY (id)) PARTITIONED BY (id)",
        "write bucket",
    ),
    "a check": (
        "CREATE TABLE {c}.x (id BIGINT, PRIMARY KEY (id), CHECK (id > 1))",
        "no constraint",
    ),
    "an existing table": ("CREATE TABLE {c}.t (id BIGINT)", "TABLE_OR_VIEW_ALREADY_EXISTS"),
    "no namespace": ("CREATE TABLE {c}.nix.t (id BIGINT, PRIMARY KEY (id))", "SCHEMA_NOT_FOUND"),
    "no table": ("SELECT * FROM {c}.nix", "TABLE_OR_VIEW_NOT_FOUND"),
    "a hidden name": ("SELECT * FROM {c}.`.t`", "is the name of no table"),
    "no moment": ("SELECT * FROM {c}.t VERSION AS OF 'x'", "'x' is not a moment"),
    "before the table": (
        "SELECT * FROM {c}.t TIMESTAMP AS OF '1999-01-01'",
        "before the table was created",
    ),
    "a first column": ("ALTER TABLE {c}.t ADD COLUMN z INT FIRST", "a new column is the last one"),
    "a fixed property": ("ALTER TABLE {c}.t SET TBLPROPERTIES ('x'='y')", "cannot be changed"),
    "another namespace": ("ALTER TABLE {c}.t RENAME TO other.t", "another namespace"),
    "a changed key": ("UPDATE {c}.t SET id = 77 WHERE id = 1", "part of the primary key"),
    "one key twice": (
        "MERGE INTO {c}.t t USING (SELECT explode(array(77L, 77L)) AS id) s ON t.id = s.id"
        " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 1D)",
        "key already present",
    ),
    "one key twice, and no other clause": (
        "MERGE INTO {c}.t t USING (SELECT explode(array(77L, 77L)) AS id) s ON t.id = s.id"
        " WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 1D)",
        "key already present",
    ),
    "one key of many": (
        "MERGE INTO {c}.t t USING (SELECT * FROM range(100, 140)) s ON t.id = s.id"
        " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id) VALUES (100 + s.id % 39)",
        "key already present",
    ),
    "two source rows": (
        "MERGE INTO {c}.t t USING (SELECT * FROM VALUES (1), (1) AS s(id)) s ON t.id = s.id"
        " WHEN MATCHED THEN UPDATE SET v = 0D",
        "more than one source row matches the row",
    ),
    "two source rows, and a condition": (
        "MERGE INTO {c}.t t USING (SELECT * FROM VALUES (1), (1) AS s(id)) s ON t.id = s.id"
        " WHEN MATCHED AND t.v > 0 THEN UPDATE SET v = 0D",
        "MERGE_CARDINALITY_VIOLATION",
    ),
}


def test_what_cannot_be_done_is_refused_and_changes_nothing(spark, warehouse):
    """With a message that says what to do."""
    model = made(spark, f"{warehouse}.t")
    for case, (text, message) in REFUSED.items():
        with pytest.raises(PySparkException) as refused:
            spark.sql(text.format(c=warehouse)).collect()
        assert message in str(refused.value), case
        assert stored(spark, f"{warehouse}.t") == model, case


def test_a_statement_fails_if_one_of_its_rows_has_changed_meanwhile(spark, warehouse, tmp_path):
    """The other writer's value stays: no update is lost."""
    t = f"{warehouse}.t"
    model = made(spark, t)
    table = kudulite.connect(tmp_path / "warehouse").table("t")
    path = str(table.path)

    def late(value: float) -> float:
        """Run in the task, after the snapshot is fixed and before the commit."""
        kudulite.open_table(path).upsert([{"id": 1, "v": 100.0}])
        return value + 1

    spark.udf.register("late", late, "double")
    with pytest.raises(PySparkException, match="ConflictError"):
        spark.sql(f"UPDATE {t} SET v = late(v) WHERE id = 1")
    assert stored(spark, t) == {**model, 1: ("h1", 100.0)}
    spark.sql(f"UPDATE {t} SET v = late(v) WHERE id = 2")  # of another row
    assert stored(spark, t)[2] == ("h2", 2.0)


def redo_bytes(folder: Path) -> int:
    """The size of a table's REDO files."""
    return sum(path.stat().st_size for path in folder.rglob("redo-*"))


def test_a_statement_writes_only_the_cells_that_change(spark, warehouse, tmp_path):
    """Spark gives whole rows: texts that stay are not written, and rows that stay are no change."""
    t, folder = f"{warehouse}.t", tmp_path / "warehouse" / "t"
    columns = [
        kudulite.column("id", "int64"),
        kudulite.column("made", "string", mutable=False),
        kudulite.column("text", "string"),
        kudulite.column("v", "double"),
    ]
    table = kudulite.connect(tmp_path / "warehouse").create_table(
        "t", kudulite.schema(columns, "id")
    )
    rng = random.Random(0)
    rows = {k: (f"m{k}", rng.randbytes(90).hex(), float(k)) for k in range(2000)}
    names = ("id", "made", "text", "v")
    table.insert([dict(zip(names, (k, *row), strict=True)) for k, row in rows.items()])
    spark.sql(f"UPDATE {t} SET v = v + 1")
    assert 0 < redo_bytes(folder) < 40_000
    spark.sql(
        f"MERGE INTO {t} t USING (SELECT id FROM {t}) s ON t.id = s.id"
        " WHEN MATCHED AND t.id < 10 THEN UPDATE SET text = 'x'"
        " WHEN MATCHED THEN UPDATE SET v = t.v + 1"
    )
    assert redo_bytes(folder) < 80_000
    version = table.version
    spark.sql(f"UPDATE {t} SET v = v + 0, made = concat('m', id)")
    assert table.version == version
    with pytest.raises(PySparkException, match="not allowed for immutable column"):
        spark.sql(f"UPDATE {t} SET made = 'other' WHERE id = 7")
    expected = [
        (k, made, "x" if k < 10 else text, v + 1 if k < 10 else v + 2)
        for k, (made, text, v) in rows.items()
    ]
    assert [tuple(row.values()) for row in table.scan(ordered=True).to_pylist()] == expected


def test_rows_that_match_twice_may_be_deleted(spark, warehouse):
    """As in Spark, which refuses only updates that would be ambiguous."""
    model = made(spark, f"{warehouse}.t")
    spark.sql(
        f"MERGE INTO {warehouse}.t t USING (SELECT * FROM VALUES (1), (1), (77) AS s(id)) s"
        " ON t.id = s.id WHEN MATCHED THEN DELETE"
    )
    assert stored(spark, f"{warehouse}.t") == {k: row for k, row in model.items() if k != 1}


@pytest.mark.parametrize("seed", range(3))
def test_random_statements_equal_the_model(spark, warehouse, tmp_path, seed):
    """UPDATE, DELETE, all clauses of MERGE, upserts and overwrites; the past stays readable."""
    run_random_statements(spark, warehouse, tmp_path / "warehouse", seed, 12)
