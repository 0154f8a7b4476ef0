"""Every way to use the source, in one session: the cells of the matrix of sessions.

The sessions are of classic Spark and of Spark Connect, with the front and without. PySpark knows
one of both kinds in a process, so a process of its own runs the cells of Spark Connect:

    python -m tests.support.spark.session_matrix FOLDER FILE

It writes the error of each cell of both states, or null, into the file as JSON. Spark 4.0 has no
front and so one state. Without the front,
the session has not called `register`, so its server does not have the jar.
"""

import json
import os
import sys
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

import kudulite
import kudulite_spark
from kudulite_spark.session import has_front
from kudulite_spark.spark_versions import EXTENSION_VERSIONS
from tests.support.spark.spark_tables import (
    given,
    load,
    make_source,
    make_table,
    rows,
    run,
    save,
    stored,
    stream,
)

NULLS_SETTING = "spark.sql.defaultColumn.useNullsForMissingDefaultValues"
TYPES = {"k": pa.int64(), "s": pa.string(), "a": pa.list_(pa.float32())}
ROWS = [(k, f"s{k % 3}", None if k == 5 else [k / 2, None]) for k in range(20)]


def made(folder: Path) -> str:
    """A table (k, s, a) of two tablets."""
    return make_table(folder / "t", ROWS, TYPES, primary_key=["k"], hash_partitions=[(["k"], 2)])


def catalog_of(spark: SparkSession, folder: Path) -> str | None:
    """A catalog of the folder, which a session has with the front only."""
    if not has_front(spark):
        return None
    name = f"m{uuid.uuid4().hex}"
    kudulite_spark.register(spark, warehouse=folder, catalog=name)
    return name


def read(spark: SparkSession, folder: Path) -> None:
    """Rows, columns, filters, and one moment for all actions."""
    path = made(folder)
    frame = load(spark, path)
    assert rows(frame) == ROWS
    assert rows(frame.filter("k IN (3, 5)").select("s")) == [("s0",), ("s2",)]
    texts = frame.filter("k = 3").selectExpr("transform(a, x -> cast(x AS string)) AS a")
    assert rows(texts) == [(["1.5", None],)]
    fixed = load(spark, path, snapshotTimestamp=kudulite.open_table(path).current_timestamp())
    for count in (19, 18):  # Spark Connect plans it anew each time
        kudulite.open_table(path).delete([{"k": count}])
        assert (fixed.count(), rows(fixed)) == (20, ROWS)
        assert load(spark, path).count() == count


def write(spark: SparkSession, folder: Path) -> None:
    """A table is made, added to, replaced; what fails changes nothing."""
    path = folder / "t"
    columns = "CAST(id AS STRING) AS s", "array(CAST(id AS FLOAT), NULL) AS a"
    layout = {"primaryKey": "k", "hashPartitions": "k:2"}
    save(spark.range(3).selectExpr("id AS k", *columns), path, **layout)
    save(spark.range(2, 5).selectExpr("id AS k", *columns), path)
    expected = [(k, str(k), [k, None]) for k in range(5)]
    assert stored(path) == expected
    try:
        save(spark.range(4, 9).selectExpr("id AS k", *columns), path, operation="insert")
    except Exception as error:
        assert "already present" in str(error), error
    assert stored(path) == expected
    save(spark.range(2).selectExpr("id AS k", *columns), path, mode="overwrite")
    assert stored(path) == expected[:2]


def stream_source(spark: SparkSession, folder: Path) -> None:
    """A snapshot and the changes after it; also of a table of the catalog, and of arrays."""
    source = make_source(folder, 30)
    options = {"primaryKey": "k", "operationColumn": "_change_type"}

    def follow() -> None:
        changes = stream(spark, source.path, startTimestamp="snapshot")
        run(changes, folder / "copy", folder / "checkpoint", **options)

    follow()
    assert stored(folder / "copy") == stored(source.path)
    source.delete(given([3, 4], ""))
    source.upsert(given([5, 31], "new"))
    follow()
    assert stored(folder / "copy") == stored(source.path)
    run(stream(spark, made(folder)), folder / "arrays", folder / "checkpoint2", primaryKey="k")
    assert stored(folder / "arrays") == ROWS
    name = catalog_of(spark, folder)
    if name is not None:
        changes = spark.readStream.table(f"{name}.source").filter("k > 25")
        run(changes, folder / "few", folder / "checkpoint3", primaryKey="k")
        expected = [(k, "new" if k == 31 else "first") for k in (*range(26, 30), 31)]
        assert stored(folder / "few") == expected


def stream_sink(spark: SparkSession, folder: Path) -> None:
    """Each batch is one version, once; also into a table of the catalog."""
    (folder / "in").mkdir()
    reader = spark.readStream.format("json").schema("k bigint, s string")
    frame = reader.option("maxFilesPerTrigger", 1).load(str(folder / "in"))
    target, options = folder / "t", {"operation": "insert", "primaryKey": "k"}
    for number in range(2):
        text = json.dumps({"k": number, "s": "a"})
        (folder / "in" / str(number)).write_text(text)
        run(frame, target, folder / "checkpoint", **options)
    assert stored(target) == [(0, "a"), (1, "a")]
    operations = [v.operation for v in kudulite.open_table(target).versions()]
    assert [name for name in operations if name != "memory flush"][:2] == ["insert"] * 2
    counts = frame.groupBy("s").count()
    run(counts, folder / "counts", folder / "checkpoint2", mode="complete", primaryKey="s")
    assert stored(folder / "counts") == [("a", 2)]
    name = catalog_of(spark, folder)
    if name is not None:
        writer = frame.selectExpr("k + 2 AS k", "s").writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint3"))
        writer.toTable(f"{name}.t").awaitTermination(120)
        assert [k for k, _ in stored(target)] == [0, 1, 2, 3]


def changes(spark: SparkSession, folder: Path) -> None:
    """Of a window; also as tables and the clause of SQL."""
    path = made(folder)
    table = kudulite.open_table(path)
    start = int(table.current_timestamp())
    table.delete([{"k": 3}])
    table.upsert([{"k": 4, "s": "new"}])
    columns = ["k", "s", "_change_type"]
    frame = load(spark, path, startTimestamp=start, changeImages="both")
    updated = [(4, "new", "update_postimage"), (4, "s1", "update_preimage")]
    expected = [(3, "s0", "delete"), *updated]
    assert rows(frame.select(*columns)) == expected
    name = catalog_of(spark, folder)
    if name is not None:
        found = f"SELECT k, s, _change_type FROM {name}.t.changes"
        window = f"WITH (startTimestamp = '{start}', changeImages = 'both')"
        assert rows(spark.sql(f"{found} {window}")) == expected
        if spark.version >= "4.2":
            found = f"SELECT k, s, _change_type FROM {name}.t CHANGES FROM VERSION '{start}'"
            assert rows(spark.sql(f"{found} EXCLUSIVE")) == expected


def sql(spark: SparkSession, folder: Path) -> None:
    """Views of paths; statements of the catalog, or the builder of MERGE."""
    path = made(folder)
    view = f"v{uuid.uuid4().hex}"
    spark.sql(f"CREATE TEMPORARY VIEW {view} USING kudulite OPTIONS (path '{path}')")
    spark.sql(f"INSERT INTO {view} VALUES (100, 'sql', NULL)")
    assert stored(path)[-1] == (100, "sql", None)
    counted = f"SELECT s, count(*) FROM {view} WHERE k < 9 GROUP BY s"
    assert rows(spark.sql(counted)) == [("s0", 3), ("s1", 3), ("s2", 3)]
    source = spark.sql("SELECT 100L AS k, 'merged' AS s UNION ALL SELECT 101L, 'merged'")
    name = catalog_of(spark, folder)
    if name is None:
        merge = kudulite_spark.merge(source, path).when_matched_update({"s": "source.s"})
        merge.when_not_matched_insert({"k": "source.k", "s": "source.s"}).execute()
        expected = [(100, "merged", None), (101, "merged", None)]
    else:
        source.createOrReplaceTempView(f"{view}_source")
        spark.sql(
            f"MERGE INTO {name}.t t USING {view}_source s ON t.k = s.k WHEN MATCHED THEN UPDATE"
            " SET s = s.s WHEN NOT MATCHED THEN INSERT (k, s, a) VALUES (s.k, s.s, NULL)"
        )
        spark.sql(f"UPDATE {name}.t SET s = 'sql' WHERE k = 101")
        spark.sql(f"DELETE FROM {name}.t WHERE k = 100")
        spark.sql(f"INSERT INTO {name}.t VALUES (102, 'sql', NULL)")
        expected = [(101, "sql", None), (102, "sql", None)]
        assert rows(spark.sql(f"SELECT k FROM {name}.t WHERE s = 'sql'")) == [(101,), (102,)]
        at = kudulite.open_table(path).current_timestamp()
        fixed = spark.read.option("snapshotTimestamp", at).table(f"{name}.t")
        version = spark.sql(f"SELECT * FROM {name}.t VERSION AS OF '{int(at)}'")
        assert (fixed.count(), version.count()) == (22, 22)
        kudulite.open_table(path).delete([{"k": 19}])
        assert rows(fixed) == rows(version) == [*ROWS, *expected]
        kudulite.open_table(path).upsert([dict(zip(TYPES, ROWS[19], strict=True))])
    assert stored(path)[20:] == expected


def named_columns(spark: SparkSession, folder: Path) -> None:
    """Columns that a write does not name stay; without the jar, Spark fills those of a view."""
    path = made(folder)
    some, before = spark.sql("SELECT 1L AS k, 'new' AS s UNION ALL SELECT 2L, 'new'"), ROWS[:3]
    after = [before[0], *((k, "new", a) for k, _, a in before[1:])]

    def check(write: Callable[[], object], expected: list[tuple[Any, ...]] = after) -> None:
        write()
        assert stored(path)[:3] == expected
        kudulite.open_table(path).upsert([dict(zip(TYPES, row, strict=True)) for row in before])

    check(lambda: save(some, path))
    name = catalog_of(spark, folder)
    if name is not None:
        upsert = "WITH (operation = 'upsert')"
        written = f"INSERT INTO {name}.t {upsert}"
        check(lambda: spark.sql(f"{written} (s, k) VALUES ('new', 1), ('new', 2)"))
        check(lambda: spark.sql(f"{written} BY NAME SELECT id AS k, 'new' AS s FROM range(1, 3)"))
        check(lambda: some.writeTo(f"{name}.t").option("operation", "upsert").append())
        writer = some.write.mode("append").option("operation", "upsert")
        check(lambda: writer.saveAsTable(f"{name}.t"))
    view = f"v{uuid.uuid4().hex}"
    spark.sql(f"CREATE TEMPORARY VIEW {view} USING kudulite OPTIONS (path '{path}')")
    statements = (
        f"INSERT INTO {view} (s, k) VALUES ('new', 1), ('new', 2)",
        f"INSERT INTO {view} BY NAME SELECT id AS k, 'new' AS s FROM range(1, 3)",
    )
    has_extension = spark.version.startswith(EXTENSION_VERSIONS)
    # On classic Spark a setting turns the front off.
    has_jar = name is not None or (has_extension and not is_remote())
    # Spark 4.0 refuses them.
    for statement in statements if has_jar or spark.version >= "4.1" else ():
        nulls = [before[0], *((k, "new", None) for k, _, _ in before[1:])]
        check(lambda text=statement: spark.sql(text), after if has_jar else nulls)
    # Spark then adds no NULL, and says which column has no data.
    spark.conf.set(NULLS_SETTING, "false")
    try:
        for write in (
            *(lambda text=text: spark.sql(text) for text in statements),
            lambda: some.writeTo(view).append(),
        ):
            try:
                write()
            except Exception as error:
                assert "Cannot find data for the output column `a`" in str(error), error
            else:
                raise AssertionError("a write that lacks a column was not refused")
        check(
            lambda: spark.sql(f"INSERT INTO {view} VALUES (1, 'new', NULL)"),
            [before[0], (1, "new", None), before[2]],
        )
    finally:
        spark.conf.unset(NULLS_SETTING)
    assert stored(path)[:3] == before


def read_table(spark: SparkSession, folder: Path) -> None:
    """Base data with deleted, changed and new rows; a moment in the past."""
    path = made(folder)
    table = kudulite.open_table(path)
    table.flush()
    before = table.current_timestamp()
    table.delete([{"k": 3}])
    table.update([{"k": 4, "s": "new"}])
    table.insert([{"k": 30, "s": "more", "a": [None]}])
    expected = [(4, "new", [2, None]), *ROWS[5:], (30, "more", [None])]
    frame = kudulite_spark.read_table(spark, path)
    assert rows(frame.filter("k > 3")) == expected
    texts = frame.filter("k = 30").selectExpr("transform(a, x -> cast(x AS string)) AS a")
    assert rows(texts) == [([None],)]
    assert rows(kudulite_spark.read_table(spark, path, snapshot=before)) == ROWS


Cell = Callable[[SparkSession, Path], None]
CELLS: dict[str, Cell] = {
    cell.__name__: cell
    for cell in (read, write, stream_source, stream_sink, changes, sql, named_columns, read_table)
}


def outcomes(spark: SparkSession, folder: Path) -> dict[str, str | None]:
    """Run all cells; returns the error of each that failed."""
    found: dict[str, str | None] = {}
    for name, cell in CELLS.items():
        place = folder / name
        place.mkdir(parents=True)
        try:
            cell(spark, place)
            found[name] = None
        except Exception:
            found[name] = traceback.format_exc()
    return found


def _main(folder: Path, file: Path) -> None:
    kudulite_spark.ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark: Any = SparkSession.builder.remote("local[2]").getOrCreate()
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert not has_front(spark)
    found = {"without": outcomes(spark, folder / "without")}
    kudulite_spark.register(spark)
    if spark.version.startswith(EXTENSION_VERSIONS):
        assert has_front(spark)
        found["with the front"] = outcomes(spark, folder / "with")
    file.write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
