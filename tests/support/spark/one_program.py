"""One program of Spark, for tables anywhere: only the address and the session's settings differ.

`answers` runs it and returns what it has read, without names of places. As a program,
`python -m tests.support.spark.one_program ADDRESS SCRATCH SETTINGS` does so with Spark Connect, and
writes the answers into a file in SCRATCH.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote

import kudulite_spark

Answers = dict[str, Any]
ANSWERS = "answers.json"


def answers(
    spark: SparkSession, root: str, scratch: Path, options: Mapping[str, str] | None = None
) -> Answers:
    """Run all parts on tables below `root`; `options` are those of each read and write."""
    place = _Place(spark, f"{root}/frames", scratch, options or {})
    found: Answers = {}
    for part in (_frames, _past, _merges, _streams, _context):
        part(place, found)
    catalog = f"c{random.getrandbits(60):x}"
    kudulite_spark.register(spark, warehouse=f"{root}/warehouse", catalog=catalog)
    try:
        for statements in (_namespaces, _tables, _statements, _procedures):
            statements(_Sql(spark, catalog, f"{root}/warehouse", scratch), found)
    finally:
        spark.sql("USE spark_catalog.default")  # others go on in the session
    return found


def _rows(found: DataFrame) -> list[list[Any]]:
    return sorted([list(row) for row in found.collect()], key=str)


class _Place:
    """A directory of tables that are read and written by their paths."""

    def __init__(
        self, spark: SparkSession, root: str, scratch: Path, options: Mapping[str, str]
    ) -> None:
        self.spark, self.root, self.scratch, self.options = spark, root, scratch, options

    def path(self, name: str = "t") -> str:
        return f"{self.root}/{name}"

    def read(self, name: str = "t", **options: str) -> DataFrame:
        reader = self.spark.read.format("kudulite").options(**self.options, **options)
        return reader.load(self.path(name))

    def save(self, frame: DataFrame, name: str = "t", mode: str = "append", **more: str) -> None:
        writer = frame.write.format("kudulite").mode(mode).options(**self.options, **more)
        writer.save(self.path(name))

    def rows(self, name: str = "t") -> list[list[Any]]:
        return _rows(self.read(name))

    def ids(self, first: int, last: int, text: str) -> DataFrame:
        return self.spark.range(first, last).selectExpr("id", f"'{text} ' || id AS s")


def _frames(place: _Place, found: Answers) -> None:
    """All modes and operations of writes, and reads with filters and of columns."""
    key = {"primaryKey": "id", "hashPartitions": "id:2"}
    place.save(place.ids(0, 6, "first"), **key)
    place.save(place.ids(4, 8, "upserted"))
    place.save(place.ids(8, 9, "inserted"), operation="insert")
    place.save(place.ids(8, 10, "ignored"), operation="insert_ignore")
    place.save(place.ids(0, 1, "updated"), operation="update")
    place.save(place.spark.range(1, 3), operation="delete")
    mixed = place.ids(3, 5, "mixed").selectExpr("*", "if(id = 3, 'D', 'U') AS op")
    place.save(mixed, operationColumn="op")
    found["operations"] = place.rows()
    found["a filter"] = _rows(place.read().where("id > 5").select("s"))
    found["a count"] = place.read().count()
    place.save(place.ids(0, 3, "wider").selectExpr("*", "1.5D AS v"), schemaEvolution="true")
    found["a new column"] = place.rows()
    place.save(place.ids(0, 4, "x"), "overwritten", **key)
    place.save(place.ids(2, 5, "y"), "overwritten", mode="overwrite")
    found["overwritten"] = place.rows("overwritten")
    sent = kudulite_spark.repartition_for(place.ids(10, 14, "sent"), place.path("overwritten"))
    place.save(sent, "overwritten")
    found["sent to tablets"] = place.rows("overwritten")
    try:
        place.save(place.ids(2, 3, "twice"), "overwritten", operation="insert")
    except Exception as error:
        found["a key twice"] = "key already present" in str(error)


def _past(place: _Place, found: Answers) -> None:
    """A snapshot, changes, `read_table`, maintenance, versions."""
    spark, path = place.spark, place.path("past")
    kudulite_spark.create_table(spark, path, "id BIGINT, s STRING", "id", [(["id"], 2)])
    place.save(place.ids(0, 6, "old"), "past")
    before = str(kudulite_spark.versions(spark, path).first().hybridTime)
    place.save(place.ids(4, 8, "new"), "past")
    place.save(spark.range(2), "past", operation="delete")
    found["before"] = _rows(place.read("past", snapshotTimestamp=before))
    changes = place.read("past", startTimestamp=before, changeImages="both")
    found["changes"] = _rows(changes.drop("_commit_version", "_commit_timestamp"))
    found["read_table"] = _rows(kudulite_spark.read_table(spark, path, where="id >= 4"))
    found["read_table before"] = _rows(kudulite_spark.read_table(spark, path, snapshot=int(before)))
    assert not kudulite_spark.maintain(spark, path).busy_tablet_ids
    found["maintained"] = place.rows("past")
    written = kudulite_spark.versions(spark, path).where("operation IN ('upsert', 'delete')")
    found["versions"] = _rows(written.select("operation", "operationMetrics"))
    found["backup"] = kudulite_spark.backup(spark, path, place.scratch / "backups").row_count


def _merges(place: _Place, found: Answers) -> None:
    source = place.ids(3, 6, "source")
    merge = kudulite_spark.merge(source, place.path("overwritten"))
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    found["merged"] = place.rows("overwritten")


def _streams(place: _Place, found: Answers) -> None:
    """Out of a table and into another one, in two runs of a query."""
    for number in range(2):
        reader = place.spark.readStream.format("kudulite").options(**place.options)
        changes = reader.option("startTimestamp", "snapshot").load(place.path("past"))
        writer = changes.writeStream.format("kudulite")
        writer = writer.options(**place.options, primaryKey="id", operationColumn="_change_type")
        writer = writer.option("checkpointLocation", str(place.scratch / "checkpoint"))
        query = writer.trigger(availableNow=True).start(place.path("copy"))
        query.awaitTermination()
        found[f"stream {number}"] = place.rows("copy")
        place.save(place.ids(100, 102, "later"), "past")
        place.save(place.spark.range(4, 5), "past", operation="delete_ignore")


def _context(place: _Place, found: Answers) -> None:
    if is_remote():
        return  # it has RDDs
    context = kudulite_spark.KuduContext(place.spark, place.root)
    context.upsertRows(place.ids(20, 22, "context"), "t")
    context.deleteRows(place.spark.range(3), "t")
    found["context"] = [context.tableExists("t"), context.tableExists("u"), place.rows()]
    found["rdd"] = context.kuduRDD("t").count()


class _Sql:
    """Statements in which `{c}` is the catalog, and answers without the names of places."""

    def __init__(self, spark: SparkSession, catalog: str, warehouse: str, scratch: Path) -> None:
        self.spark, self.scratch = spark, scratch
        self.names = {"c": catalog, "w": warehouse, "scratch": scratch}

    def __call__(self, text: str) -> list[list[Any]]:
        rows = _rows(self.spark.sql(text.format(**self.names)))
        texts = json.dumps(rows, default=str)
        for name in ("w", "c"):
            texts = texts.replace(str(self.names[name]), name.upper())
        found: list[list[Any]] = json.loads(texts)
        return found

    def error(self, text: str) -> str:
        try:
            self(text)
        except Exception as error:
            return str(error).partition("]")[0]
        return "none"


def _namespaces(sql: _Sql, found: Answers) -> None:
    for text in ("CREATE NAMESPACE {c}.db", "CREATE NAMESPACE {c}.db.inner", "USE {c}.db"):
        sql(text)
    sql("CREATE NAMESPACE IF NOT EXISTS {c}.db")
    found["a namespace twice"] = sql.error("CREATE NAMESPACE {c}.db")
    found["namespaces"] = [sql("SHOW NAMESPACES IN {c}"), sql("SHOW NAMESPACES IN {c}.db")]
    sql("CREATE TABLE {c}.db.inner.t (id BIGINT, PRIMARY KEY (id))")
    found["not empty"] = [sql.error(f"DROP NAMESPACE {{c}}.{name}") for name in ("db", "db.inner")]
    sql("DROP NAMESPACE {c}.db.inner CASCADE")
    found["dropped"] = sql("SHOW NAMESPACES IN {c}.db")
    found["no namespace"] = [
        sql.error("SHOW TABLES IN {c}.db.inner"),
        sql.error("CREATE TABLE {c}.nix.t (id BIGINT, PRIMARY KEY (id))"),
    ]
    sql("CREATE NAMESPACE {c}.db.inner")
    found["made again"] = [sql("SHOW NAMESPACES IN {c}.db"), sql("SHOW TABLES IN {c}.db.inner")]


def _tables(sql: _Sql, found: Answers) -> None:
    """Definitions, changes of them, and their end."""
    sql(
        "CREATE TABLE {c}.db.t (id BIGINT, s STRING DEFAULT 'none', v DOUBLE, PRIMARY KEY (id))"
        " PARTITIONED BY (bucket(2, id)) COMMENT 'a table'"
    )
    found["a table twice"] = sql.error("CREATE TABLE {c}.db.t (id BIGINT, PRIMARY KEY (id))")
    sql("INSERT INTO {c}.db.t VALUES (1, 'a', 0.5), (2, 'b', 1.5), (3, 'c', 2.5)")
    sql("CREATE NAMESPACE {c}.kept")
    query = "TBLPROPERTIES ('primaryKey' = 'id') AS SELECT id, v FROM {c}.db.t WHERE id > {{}}"
    sql(f"CREATE TABLE {{c}}.kept.made {query}".replace("{{}}", "1"))
    sql(f"CREATE OR REPLACE TABLE {{c}}.kept.made {query}".replace("{{}}", "2"))
    sql("CREATE OR REPLACE TABLE {c}.kept.made (id BIGINT, w INT, PRIMARY KEY (id))")
    sql("INSERT INTO {c}.kept.made VALUES (7, 8)")
    failing = "CREATE TABLE {c}.db.failed TBLPROPERTIES ('primaryKey' = 'id') AS"
    found["a query that fails"] = "none" != sql.error(f"{failing} SELECT raise_error('x') AS id")
    found["replaced"] = sql("SELECT * FROM {c}.kept.made")
    for change in (
        "ADD COLUMN x INT COMMENT 'new'",
        "RENAME COLUMN w TO y",
        "ALTER COLUMN y TYPE BIGINT",
        "DROP COLUMN x",
        "SET TBLPROPERTIES ('comment' = 'changed')",
        "RENAME TO kept.renamed",
    ):
        sql(f"ALTER TABLE {{c}}.kept.made {change}")
    found["tables"] = [sql("SHOW TABLES IN {c}.db"), sql("SHOW TABLES IN {c}.kept")]
    found["created"] = sql("SHOW CREATE TABLE {c}.kept.renamed")
    described = sql("DESCRIBE TABLE EXTENDED {c}.db.t")
    found["described"] = [row for row in described if row[0] not in ("Owner", "Created By")]
    sql("TRUNCATE TABLE {c}.kept.renamed")
    found["truncated"] = sql("SELECT * FROM {c}.kept.renamed")
    sql("DROP TABLE {c}.kept.renamed")
    sql("DROP TABLE IF EXISTS {c}.kept.renamed")
    found["no table"] = [
        sql.error("DROP TABLE {c}.kept.renamed"),
        sql.error("TABLE {c}.kept.renamed"),
    ]
    found["a replaced table is kept"] = sql.error("DROP NAMESPACE {c}.kept CASCADE")


def _rows_of(sql: _Sql) -> list[list[Any]]:
    return sql("SELECT * FROM {c}.db.t")


def _statements(sql: _Sql, found: Answers) -> None:
    """Rows that are changed, and read as of the past."""
    ((before,),) = sql("CALL {c}.tag('db.t', 'before')")
    sql("UPDATE {c}.db.t SET v = v + 1 WHERE id = 1")
    sql("DELETE FROM {c}.db.t WHERE id = 2")
    sql("INSERT INTO {c}.db.t WITH (operation = 'upsert') (id, v) VALUES (3, 9D), (4, 4D)")
    found["changed"] = _rows_of(sql)
    sql(
        "MERGE INTO {c}.db.t t USING (SELECT * FROM VALUES (1, 'A', 9D), (3, 'C', 0D), (5, 'E', 5D)"
        " AS s(id, s, v)) s ON t.id = s.id WHEN MATCHED AND s.v < 1 THEN DELETE WHEN MATCHED THEN"
        " UPDATE SET * WHEN NOT MATCHED THEN INSERT * WHEN NOT MATCHED BY SOURCE THEN UPDATE SET"
        " s = 'alone'"
    )
    found["merged by SQL"] = _rows_of(sql)
    past = ["VERSION AS OF 'before'", f"VERSION AS OF '{before}'"]
    moment = f"TIMESTAMP AS OF timestamp_micros({int(before) // 4096 + 1})"
    found["as of"] = [sql(f"SELECT * FROM {{c}}.db.t {text}") for text in (*past, moment)]
    options = f"WITH (startTimestamp = '{before}')"
    found["changes by SQL"] = sql(f"SELECT _change_type, id FROM {{c}}.db.t.changes {options}")
    found["by path"] = [
        sql("SELECT * FROM {c}.`{w}/db/t`"),
        sql("SELECT name FROM {c}.`{w}/db/t`.tags"),
        sql("SELECT * FROM {c}.`{w}/db/t` VERSION AS OF 'before'"),
    ]
    sql("INSERT OVERWRITE {c}.db.t VALUES (6, 'f', 6D)")
    found["overwritten by SQL"] = _rows_of(sql)
    for name, columns in (
        ("versions", "operation, inserted, updated, deleted"),
        ("tags", "name"),
        ("tablets", "partition, live_row_count"),
    ):
        where = " WHERE operation <> 'memory flush'" if name == "versions" else ""
        found[name] = sql(f"SELECT {columns} FROM {{c}}.db.t.{name}{where}")
    found["rowsets"] = sql("SELECT count(*) > 0, sum(live_row_count) FROM {c}.db.t.rowsets")
    frame = sql.spark.range(8, 10).selectExpr("id", "'w' AS s", "1D AS v")
    frame.writeTo("{c}.db.t".format(**sql.names)).append()
    sql.spark.conf.set("spark.kudulite.repartition", "true")
    frame.selectExpr("id + 10 AS id", "s", "v").writeTo("{c}.db.t".format(**sql.names)).append()
    sql.spark.conf.unset("spark.kudulite.repartition")
    found["writeTo"] = _rows_of(sql)


def _procedures(sql: _Sql, found: Answers) -> None:
    found["maintain"] = len(sql("CALL {c}.maintain('db.t')"))
    found["compact"] = len(sql("CALL {c}.compact(table => '{w}/db/t')"))
    ((identifier, size),) = sql("CALL {c}.backup('db.t', '{scratch}/sql backups')")
    found["backed up"] = [bool(identifier), int(size) > 0]
    sql("CALL {c}.restore('{scratch}/restored', '{scratch}/sql backups')")
    found["restored"] = sql("SELECT * FROM {c}.`{scratch}/restored`")
    ((version,),) = sql("SELECT max(version) FROM {c}.db.t.versions")
    sql("DELETE FROM {c}.db.t")
    sql("CACHE TABLE {c}.db.t")
    found["undone"] = sql(f"CALL {{c}}.restore(table => 'db.t', version => {version})")[0][1:]
    found["back"] = _rows_of(sql)
    sql("UNCACHE TABLE {c}.db.t")
    found["tags left"] = sql("CALL {c}.delete_tag('db.t', 'before')")
    bounds = '{{"columns": ["n"], "bounds": [[0, 10]]}}'
    sql(
        "CREATE TABLE {c}.r (n INT, PRIMARY KEY (n))"
        f" TBLPROPERTIES ('rangePartitions' = '{bounds}')"
    )
    found["ranges"] = [
        sql("CALL {c}.add_range_partition('r', '10', '20')"),
        sql("CALL {c}.drop_range_partition('{c}.r', '0', '10')"),
    ]
    found["no procedure"] = sql.error("CALL {c}.nix('r')")
    for text in ("TABLE {c}.r", "NAMESPACE {c}.db.inner", "NAMESPACE {c}.db CASCADE"):
        sql(f"DROP {text}")
    found["at the end"] = [sql("SHOW NAMESPACES IN {c}"), sql("SHOW TABLES IN {c}")]


def _main(address: str, scratch: Path, settings: Mapping[str, str]) -> None:
    kudulite_spark.ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    for name, value in {"spark.sql.shuffle.partitions": "2", **settings}.items():
        spark.conf.set(name, value)
    kudulite_spark.register(spark)
    found = answers(spark, address, scratch)
    (scratch / ANSWERS).write_text(json.dumps(found, default=str))
    spark.stop()


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
