"""Definitions of tables in Spark SQL: made and replaced whole, altered, and shown again."""

import datetime
import errno
import json
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StructField, StructType

import kudulite
from kudulite.errors import StorageError
from kudulite.storage.local_storage import LocalStorage
from kudulite.table.table_store import TableStore
from kudulite_spark.options import Place
from kudulite_spark.sql.catalog import answered
from tests.spark.conftest import FRONT
from tests.spark.test_catalog import made, rows, stored, warehouse
from tests.support.spark.spark_tables import configured

pytestmark = FRONT

__all__ = ["warehouse"]

KEY = "TBLPROPERTIES ('primaryKey'='id')"


def hidden(root: Path) -> list[str]:
    """Return the entries of a directory of tables that are no tables."""
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


@pytest.mark.parametrize("step", ["stage", "publish"])
def test_a_full_disk_leaves_no_staged_table(tmp_path, monkeypatch, step: str):
    """Neither where the hidden table cannot be made, nor where it cannot get its name."""
    path = str(tmp_path / "t")
    columns = StructType([StructField("id", LongType(), False)])
    question: dict[str, object] = {
        "kind": "createOrReplace",
        "properties": {},
        "partitions": [],
        "key": ["id"],
    }
    question["schema"] = columns.json()

    def ask(call: str, **more: object) -> dict:
        note = json.dumps(question | more | {"call": call})
        return answered(Place(path, {}), note)[0].metadata

    kudulite.connect(tmp_path).create_table("t", {"k": [1]}, primary_key="k")

    def fill_disk(*_: object) -> None:
        raise StorageError(errno.ENOSPC, "the disk is full")

    target = (TableStore, "begin") if step == "stage" else (LocalStorage, "exchange")
    with monkeypatch.context() as patch:
        if step == "stage":
            patch.setattr(*target, fill_disk)
            assert "the disk is full" in ask("stage")["message"]
        else:
            staged = ask("stage")["path"]
            patch.setattr(*target, fill_disk)
            assert "the disk is full" in ask("publish", staged=staged, isWritten=True)["message"]
            assert ask("unstage", staged=staged) == {}  # as Spark does then
    assert hidden(tmp_path) == []
    assert kudulite.connect(tmp_path).table("t").schema.key_names == ["k"]


def test_a_replaced_table_of_the_same_definition_keeps_its_history(spark, warehouse, tmp_path):
    """Its rows are replaced in one version, also by a query of itself."""
    t = f"{warehouse}.t"
    model = made(spark, t)
    table = client_of(tmp_path).table("t")
    table.tag("before")
    table.flush()
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


@pytest.mark.parametrize("by_name", [True, False], ids=["name", "path"])
def test_a_dataframe_of_a_table_that_is_replaced_reads_the_replaced_one(
    spark, warehouse, tmp_path, by_name: bool
):
    """Not the new one at a moment before its rows were written; so do its counts."""
    t, path = f"{warehouse}.t", str(client_of(tmp_path).root / "t")
    model = made(spark, t)
    df = spark.table(t) if by_name else spark.read.format("kudulite").load(path)
    spark.sql(f"CREATE OR REPLACE TABLE {t} {KEY} AS SELECT id, id * 2 AS w FROM {t} WHERE id < 3")
    assert df.count() == len(model)
    assert {row.id for row in df.collect()} == set(model)
    assert rows(spark, f"SELECT count(*) FROM {t}") == [(3,)]


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


LITERALS = {
    "BIGINT": "-5",
    "DOUBLE": "0.1D",
    "DECIMAL(12,2)": "12.50",
    "BOOLEAN": "true",
    "STRING": r"'it\'s a \\ b'",
    "VARCHAR(5)": "'abc'",
    "DATE": "DATE '2026-01-31'",
    "TIMESTAMP": "TIMESTAMP '2026-01-31 10:00:00.25 UTC'",
    "TIMESTAMP_NTZ": "TIMESTAMP_NTZ '2026-01-31 10:00:00'",
    "BINARY": "X'00FF'",
}


def test_a_column_that_an_insert_leaves_out_has_its_default(spark, warehouse, tmp_path):
    """Of every type, in SQL and in Python, and for the rows from before in a new column."""
    t = f"{warehouse}.t"
    columns = ", ".join(f"c{n} {kind} DEFAULT {v}" for n, (kind, v) in enumerate(LITERALS.items()))
    spark.sql(f"CREATE TABLE {t} (id BIGINT, {columns}, PRIMARY KEY (id))")
    spark.sql(f"INSERT INTO {t} (id) VALUES (1)")
    table = client_of(tmp_path).table("t")
    table.insert([{"id": 2}])
    wanted = rows(spark, f"SELECT {', '.join(LITERALS.values())}")[0]
    assert [row[1:] for row in rows(spark, f"SELECT * FROM {t}")] == [wanted, wanted]
    spark.sql(f"INSERT INTO {t} (id, c0) VALUES (3, NULL), (4, DEFAULT)")
    assert rows(spark, f"SELECT id, c0 FROM {t} WHERE id > 2 ORDER BY id") == [(3, None), (4, -5)]
    spark.sql(f"ALTER TABLE {t} ADD COLUMN n INT DEFAULT 7")
    assert rows(spark, f"SELECT DISTINCT n FROM {t}") == [(7,)]
    spark.sql(f"ALTER TABLE {t} ALTER COLUMN n SET DEFAULT 8")
    spark.sql(f"ALTER TABLE {t} ALTER COLUMN c0 DROP DEFAULT")
    spark.sql(f"INSERT INTO {t} (id) VALUES (5)")
    spark.sql(f"UPDATE {t} SET c1 = 2D, n = DEFAULT WHERE id = 4")
    found = rows(spark, f"SELECT id, c0, n FROM {t} WHERE id IN (1, 4, 5) ORDER BY id")
    assert found == [(1, -5, 7), (4, -5, 8), (5, None, 8)]


@pytest.mark.parametrize("kind", ["TIMESTAMP_LTZ", "TIMESTAMP_NTZ"])
def test_a_default_without_a_zone_is_a_time_of_the_session(spark, warehouse, tmp_path, kind):
    """In CREATE and ALTER, for INSERT, UPDATE, MERGE and Python, whichever type TIMESTAMP is."""
    t, literal = f"{warehouse}.t", "TIMESTAMP '2026-07-01 10:00:00'"
    settings = {"spark.sql.session.timeZone": "Europe/Berlin", "spark.sql.timestampType": kind}
    with configured(spark, settings):
        spark.sql(
            f"CREATE TABLE {t} (id BIGINT, a TIMESTAMP_LTZ DEFAULT {literal},"
            " b TIMESTAMP_NTZ DEFAULT TIMESTAMP_NTZ '2026-07-01 10:00:00', PRIMARY KEY (id))"
        )
        spark.sql(f"ALTER TABLE {t} ADD COLUMN c TIMESTAMP_LTZ DEFAULT '2026-07-01 10:00:00'")
        spark.sql(f"ALTER TABLE {t} ADD COLUMN d TIMESTAMP_LTZ")
        spark.sql(f"ALTER TABLE {t} ALTER COLUMN d SET DEFAULT {literal}")
        spark.sql(f"INSERT INTO {t} (id) VALUES (1)")
        spark.sql(f"INSERT INTO {t} VALUES (2, NULL, NULL, NULL, NULL)")
        spark.sql(f"UPDATE {t} SET a = DEFAULT, b = DEFAULT, c = DEFAULT, d = DEFAULT WHERE id = 2")
        spark.sql(
            f"MERGE INTO {t} t USING (SELECT 3L AS id) s ON t.id = s.id"
            " WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
        )
        client_of(tmp_path).table("t").insert([{"id": 4}])
        found = rows(spark, f"SELECT id FROM {t} WHERE a = {literal} AND c = a AND d = a")
        assert sorted(found) == [(1,), (2,), (3,), (4,)]
        spark.sql(
            f"CREATE TABLE {warehouse}.u (id INT, a TIMESTAMP_LTZ DEFAULT"
            " TIMESTAMP '2026-07-01 10:00:00 UTC', PRIMARY KEY (id))"
        )
    table = client_of(tmp_path).table("t")
    noon = datetime.datetime(2026, 7, 1, 8, tzinfo=datetime.UTC)
    naive = datetime.datetime(2026, 7, 1, 10)
    assert {tuple(r.values())[1:] for r in table.scan().to_pylist()} == {(noon, naive, noon, noon)}
    other = client_of(tmp_path).table("u").schema.column("a")
    assert other.write_default == noon.replace(hour=10)


def test_a_default_that_is_no_literal_is_refused(spark, warehouse, tmp_path):
    """Nothing is made or changed."""
    made(spark, f"{warehouse}.t")
    version = client_of(tmp_path).table("t").version
    for text in (
        "CREATE TABLE {c}.x (id BIGINT, d DATE DEFAULT current_date(), PRIMARY KEY (id))",
        "CREATE TABLE {c}.x (id BIGINT, n INT DEFAULT 1 + 1, PRIMARY KEY (id))",
        "ALTER TABLE {c}.t ADD COLUMN d TIMESTAMP DEFAULT now()",
        "ALTER TABLE {c}.t ALTER COLUMN v SET DEFAULT 1D + 1D",
    ):
        with pytest.raises(AnalysisException, match=r"DEFAULT .* is no literal of this type"):
            spark.sql(text.format(c=warehouse))
    table = client_of(tmp_path).table("t")
    assert (table.version, table.schema.names) == (version, ["id", "host", "v"])
    assert client_of(tmp_path).list_tables() == ["t"]


def test_a_table_is_made_again_of_what_spark_shows(spark, warehouse, tmp_path):
    """SHOW CREATE TABLE has columns, defaults, comments, key and partitions."""
    bounds = '["2026-01-01", "2026-02-01", [["id", 3]]], [null, "2026-01-01"]'
    bounds = f'{{"columns": ["day"], "bounds": [{bounds}]}}'
    spark.sql(
        f"CREATE TABLE {warehouse}.t (id BIGINT, day DATE, v DOUBLE DEFAULT 1.5D COMMENT 'it''s',"
        " s STRING NOT NULL DEFAULT 'x', n VARCHAR(5), PRIMARY KEY (id, day))"
        " PARTITIONED BY (bucket(2, id)) COMMENT 'a table'"
        f" TBLPROPERTIES ('rangePartitions'='{bounds}')"
    )
    ((text,),) = rows(spark, f"SHOW CREATE TABLE {warehouse}.t")
    spark.sql(text.replace(f"{warehouse}.t ", f"{warehouse}.u "))
    one, other = (client_of(tmp_path).table(name) for name in "tu")
    assert (one.schema, one.comment) == (other.schema, other.comment)
    assert one.partition_schema == other.partition_schema
    extended = {row[0]: row[1] for row in rows(spark, f"DESCRIBE EXTENDED {warehouse}.u")}
    assert (extended["Comment"], extended["Provider"]) == ("a table", "kudulite")
    assert extended["Statistics"] == "0 bytes, 0 rows"
    assert (
        "hashPartitions=id:2,historyRetention=7 days,primaryKey=id, day,range"
        in extended["Table Properties"]
    )


@pytest.mark.spark_since("4.2", "INSERT WITH SCHEMA EVOLUTION")
def test_columns_are_added_by_an_insert_and_a_merge(spark, warehouse):
    """WITH SCHEMA EVOLUTION adds them, and widens types."""
    t = f"{warehouse}.t"
    spark.sql(f"CREATE TABLE {t} (id BIGINT, n INT, PRIMARY KEY (id))")
    spark.sql(f"INSERT INTO {t} VALUES (1, 1)")
    spark.sql(f"INSERT WITH SCHEMA EVOLUTION INTO {t} SELECT 2L AS id, 2 AS n, 'x' AS w")
    spark.sql(
        f"MERGE WITH SCHEMA EVOLUTION INTO {t} t USING (SELECT 1L AS id, 9 AS m) s ON t.id = s.id"
        " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    assert rows(spark, f"SELECT id, n, w, m FROM {t} ORDER BY id") == [
        (1, 1, None, 9),
        (2, 2, "x", None),
    ]


def test_the_key_of_all_tables_is_a_setting(spark, warehouse, tmp_path):
    """For statements that name none; the refusals say both ways."""
    c = warehouse
    with pytest.raises(AnalysisException, match="'primaryKey'='id'.*SET spark.kudulite.primaryKey"):
        spark.sql(f"CREATE TABLE {c}.t AS SELECT 1 AS id, 'x' AS s")
    with configured(spark, {"spark.kudulite.primaryKey": "ID"}):
        spark.sql(f"CREATE TABLE {c}.t AS SELECT 1 AS id, 'x' AS s")
        spark.sql(f"CREATE OR REPLACE TABLE {c}.t AS SELECT 2 AS id, 'y' AS s")
        spark.sql(f"CREATE TABLE {c}.u TBLPROPERTIES ('primaryKey'='s') AS SELECT * FROM {c}.t")
        spark.sql(f"CREATE TABLE {c}.w (id INT, s STRING, PRIMARY KEY (s, id))")
        spark.range(3).writeTo(f"{c}.x").create()
        with pytest.raises(AnalysisException, match="names 'ID', which is none of the columns k"):
            spark.sql(f"CREATE TABLE {c}.z AS SELECT 1 AS k")
    with configured(spark, {"spark.kudulite.primaryKey": "id, s"}):
        spark.sql(f"CREATE TABLE {c}.y AS SELECT * FROM {c}.t")
    client = kudulite.connect(tmp_path / "warehouse")
    keys = {name: client.table(name).schema.key_names for name in client.list_tables()}
    assert keys == {"t": ["id"], "u": ["s"], "w": ["s", "id"], "x": ["id"], "y": ["id", "s"]}


def test_the_retention_is_a_property(spark, warehouse, tmp_path):
    """It is given, changed, unset, shown, and kept when the rows are replaced."""
    t = f"{warehouse}.t"
    definition = "(id INT, PRIMARY KEY (id)) TBLPROPERTIES ('historyRetention'='{}')"
    spark.sql(f"CREATE TABLE {t} {definition.format('36 hours')}")
    table = kudulite.connect(tmp_path / "warehouse").table("t")

    def shown() -> str:
        ((_, value),) = spark.sql(f"SHOW TBLPROPERTIES {t} ('historyRetention')").collect()
        return value

    assert (shown(), table.history_retention) == ("36 hours", 36 * 3600)
    for text, value in (("interval 30 days", "30 days"), ("2w", "14 days"), ("90", "90 seconds")):
        spark.sql(f"ALTER TABLE {t} SET TBLPROPERTIES ('historyRetention'='{text}', 'comment'='c')")
        assert (shown(), table.comment) == (value, "c")
    ((again,),) = spark.sql(f"SHOW CREATE TABLE {t}").collect()
    spark.sql(again.replace(t, f"{t}2"))
    assert kudulite.connect(tmp_path / "warehouse").table("t2").history_retention == 90
    spark.sql(f"ALTER TABLE {t} UNSET TBLPROPERTIES ('historyRetention')")
    spark.sql(f"ALTER TABLE {t} UNSET TBLPROPERTIES IF EXISTS ('nothing', 'comment')")
    assert (shown(), table.comment) == ("7 days", "")
    version = table.version
    spark.sql(f"ALTER TABLE {t} UNSET TBLPROPERTIES ('nothing')")
    assert table.version == version
    spark.sql(f"CREATE OR REPLACE TABLE {t} {definition.format('3 days')}")
    spark.sql(f"CREATE OR REPLACE TABLE {t} (id INT, PRIMARY KEY (id))")
    assert shown() == "3 days" and table.version > version
    for name, value, message in (
        ("historyRetention", "soon", "'historyRetention' is 'soon', expected a number and a unit"),
        ("historyRetention", "10000000000000", "give a number from 0 to"),
        ("delta.deletedFileRetentionDuration", "interval 3 days", "write 'historyRetention'"),
        ("primaryKey", "s", "only 'comment' and 'historyRetention' can"),
        ("rangePartitions", "{}", "procedures add_range_partition"),
    ):
        with pytest.raises(AnalysisException, match=message):
            spark.sql(f"ALTER TABLE {t} SET TBLPROPERTIES ('{name}'='{value}')")
    with pytest.raises(AnalysisException, match="unknown table property 'nix'; known: comment,"):
        spark.sql(f"CREATE TABLE {t}3 (id INT, PRIMARY KEY (id)) TBLPROPERTIES ('nix'='1')")
    assert shown() == "3 days"


def test_partitions_are_shown_as_ranges_and_buckets(spark, warehouse):
    """All of them, or those of a range or a bucket; statements do not change them."""
    t = f"{warehouse}.t"
    bounds = '{"columns": ["day"], "bounds": [[null, "2020-01-01"], ["2020-01-01", null]]}'
    spark.sql(
        f"CREATE TABLE {t} (k INT, day DATE, PRIMARY KEY (k, day)) PARTITIONED BY (bucket(2, k))"
        f" TBLPROPERTIES ('rangePartitions'='{bounds}')"
    )
    shown = [
        f"day={text}/bucket(2, k)={bucket}"
        for text in ("before 2020-01-01", "from 2020-01-01")
        for bucket in (0, 1)
    ]
    assert [row[0] for row in spark.sql(f"SHOW PARTITIONS {t}").collect()] == shown
    for spec, found in (
        ("day = 'from 2020-01-01'", shown[2:]),
        ("`bucket(2, k)` = 1", shown[1::2]),
        ("day = 'before 2020-01-01', `bucket(2, k)` = 0", shown[:1]),
    ):
        assert [
            r[0] for r in spark.sql(f"SHOW PARTITIONS {t} PARTITION ({spec})").collect()
        ] == found
    change = f"ALTER TABLE {t} DROP PARTITION (day = 'from 2020-01-01', `bucket(2, k)` = 0)"
    with pytest.raises(AnalysisException, match="CALL add_range_partition or drop_range_partition"):
        spark.sql(change)
    spark.sql(f"CREATE TABLE {t}1 (k INT, PRIMARY KEY (k))")
    with pytest.raises(AnalysisException, match="is not partitioned"):
        spark.sql(f"SHOW PARTITIONS {t}1")
    with pytest.raises(AnalysisException, match="ANALYZE TABLE is not supported for v2 tables"):
        spark.sql(f"ANALYZE TABLE {t} COMPUTE STATISTICS")
