"""An UPDATE does not read cells that stay as they are, and some MERGEs do not read the table."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kudulite
import kudulite_spark
from tests.spark.conftest import FRONT

pytestmark = FRONT

Rows = dict[int, tuple[str | None, float | None]]

ROWS: Rows = {k: (f"h{k}", k / 2) for k in range(10)}
BOUNDS = json.dumps({"columns": ["id"], "bounds": [[None, 5], [5, 100]]})
# Of another integer type, nullable, and with a NULL among the values.
SOURCE = "VALUES (3, 'x', 30D), (4, NULL, 40D), (10, 'y', NULL) AS s(id, host, v)"
UPDATED: Rows = {3: ("x", 30.0), 4: (None, 40.0)}
NEW: Rows = {10: ("y", None)}
OUTSIDE = "SELECT * FROM VALUES (3, 1D), (777, 2D), (CAST(NULL AS BIGINT), 3D) AS s(id, v)"


@pytest.fixture
def t(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A table (id, host, v) with ten rows in a catalog of its own."""
    catalog = f"c{uuid.uuid4().hex}"
    kudulite_spark.register(spark, warehouse=tmp_path, catalog=catalog)
    name = f"{catalog}.t"
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, host STRING, v DOUBLE, PRIMARY KEY (id))"
        f" PARTITIONED BY (bucket(2, id)) TBLPROPERTIES ('rangePartitions'='{BOUNDS}')"
    )
    values = ", ".join(f"({k}, '{host}', {v}D)" for k, (host, v) in ROWS.items())
    spark.sql(f"INSERT INTO {name} VALUES {values}")
    yield name


def is_read(spark: SparkSession, text: str) -> bool:
    """Whether the plan of a statement reads a table."""
    return "BatchScan" in spark.sql(f"EXPLAIN {text}").first()[0]


def stored(folder: Path) -> Rows:
    """The rows, without Spark."""
    found = kudulite.open_table(folder / "t").scan().to_pylist()
    return {row["id"]: (row["host"], row["v"]) for row in found}


ALL = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
UNREAD = {
    "all": (SOURCE, ALL, "upsert", UPDATED | NEW),
    "all, named": (
        SOURCE,
        "WHEN MATCHED THEN UPDATE SET v = s.v + 1, host = 'u'"
        " WHEN NOT MATCHED THEN INSERT (v, id, host) VALUES (s.v + 1, s.id, 'u')",
        "upsert",
        {3: ("u", 31.0), 4: ("u", 41.0), 10: ("u", None)},
    ),
    "all of the matched": (SOURCE, "WHEN MATCHED THEN UPDATE SET *", "update_ignore", UPDATED),
    "a column of the matched": (
        f"({OUTSIDE})",
        "WHEN MATCHED THEN UPDATE SET v = s.v",
        "update_ignore",
        {3: ("h3", 1.0)},
    ),
    "rows that match none, twice": (
        "VALUES (3, 7D), (55, 1D), (55, 2D), (777, 1D), (777, 1D) AS s(id, v)",
        "WHEN MATCHED THEN UPDATE SET v = s.v",
        "update_ignore",
        {3: ("h3", 7.0)},
    ),
    "the matched away": (
        f"({OUTSIDE} UNION ALL SELECT 3, 9D)",
        "WHEN MATCHED THEN DELETE",
        "delete_ignore",
        {3: None},
    ),
}


@pytest.mark.parametrize("case", UNREAD)
def test_a_merge_by_key_does_not_read_the_table(spark, t, tmp_path, case):
    """One operation of the engine does what the clauses say, and unchanged rows stay."""
    source, clauses, operation, changes = UNREAD[case]
    text = f"MERGE INTO {t} t USING (SELECT * FROM {source}) s ON s.id = t.id {clauses}"
    assert not is_read(spark, text)
    spark.sql(text)
    expected = {k: row for k, row in (ROWS | changes).items() if row is not None}
    assert stored(tmp_path) == expected
    assert kudulite.open_table(tmp_path / "t").versions()[0].operation == operation


READ = {
    "a condition": (
        "ON t.id = s.id WHEN MATCHED AND s.v < 35 THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        {3: ("x", 30.0)} | NEW,
    ),
    "a condition that is NULL": (
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED AND s.v < 0 THEN INSERT *",
        UPDATED,
    ),
    "a value of the row": ("ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = t.v + s.v", None),
    "other values of a new row": (
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET *"
        " WHEN NOT MATCHED THEN INSERT (id, host, v) VALUES (s.id, s.host, -1D)",
        UPDATED | {10: ("y", -1.0)},
    ),
    "another key of a new row": (
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v, host = s.host"
        " WHEN NOT MATCHED THEN INSERT (id, host, v) VALUES (s.id + 1, s.host, s.v)",
        UPDATED | {11: ("y", None)},
    ),
    "more than the key": (
        "ON t.id = s.id AND t.v < 2 WHEN MATCHED THEN UPDATE SET host = s.host",
        {3: ("x", 1.5)},
    ),
    "another column": (
        "ON t.v * 20 = s.v WHEN MATCHED THEN UPDATE SET host = s.host",
        {3: ("x", 1.5), 4: (None, 2.0)},
    ),
    "rows without a source": (
        f"ON t.id = s.id {ALL} WHEN NOT MATCHED BY SOURCE AND t.id = 0 THEN DELETE",
        UPDATED | NEW | {0: None},
    ),
    "a value that is an error for a row that matches none": (
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = CAST(1 / (s.id - 10) AS DOUBLE)",
        {3: ("h3", 1 / -7), 4: ("h4", 1 / -6)},
    ),
}


@pytest.mark.parametrize("case", READ)
def test_any_other_merge_reads_the_table(spark, t, tmp_path, case):
    """Its rows decide which clause holds, or they give values."""
    clauses, changes = READ[case]
    text = f"MERGE INTO {t} t USING (SELECT * FROM {SOURCE}) s {clauses}"
    assert is_read(spark, text)
    spark.sql(text)
    if changes is None:
        changes = {3: ("h3", 31.5), 4: ("h4", 42.0)}
    expected = {k: row for k, row in (ROWS | changes).items() if row is not None}
    assert stored(tmp_path) == expected


@pytest.mark.parametrize("task_count", [1, 2])
@pytest.mark.parametrize(
    ("clauses", "key", "message"),
    [
        (ALL, 3, "more than one source row matches the row"),
        (ALL, 50, "key already present"),
        ("WHEN MATCHED THEN UPDATE SET *", 3, "more than one source row matches the row"),
    ],
)
def test_two_source_rows_of_one_row_are_refused(
    spark, t, tmp_path, clauses, key, message, task_count
):
    """In one task or in two, and nothing is written."""
    newest = kudulite.open_table(tmp_path / "t").newest_change()
    twice = spark.createDataFrame([(key, "a", 1.0)], "id LONG, host STRING, v DOUBLE")
    other = spark.createDataFrame([(key, "a", 1.0), (4, "b", 2.0)], twice.schema)
    twice.union(other).coalesce(task_count).createOrReplaceTempView("twice")
    with pytest.raises(PySparkException, match=message):
        spark.sql(f"MERGE INTO {t} t USING twice s ON t.id = s.id {clauses}")
    assert kudulite.open_table(tmp_path / "t").newest_change() == newest
    assert stored(tmp_path) == ROWS


@pytest.mark.parametrize("key", [3, 50])
def test_a_merge_fails_if_one_of_its_keys_has_changed_meanwhile(spark, t, tmp_path, key):
    """Also if the other writer has inserted it."""
    path = str(tmp_path / "t")

    def late(value: float) -> float:
        """Run in the task, after the snapshot is fixed."""
        kudulite.open_table(path).upsert([{"id": key, "v": 100.0}])
        return value

    spark.udf.register("late", late, "double")
    source = f"SELECT {key}L AS id, 'm' AS host, late(1D) AS v"
    with pytest.raises(PySparkException, match="ConflictError"):
        spark.sql(f"MERGE INTO {t} t USING ({source}) s ON t.id = s.id {ALL}")
    assert stored(tmp_path)[key][1] == 100.0
    source = "SELECT 7L AS id, 'm' AS host, late(1D) AS v"  # another row
    spark.sql(f"MERGE INTO {t} t USING ({source}) s ON t.id = s.id {ALL}")
    assert stored(tmp_path)[7] == ("m", 1.0)


def test_a_key_of_several_columns(spark, t, tmp_path):
    """All of them must be in the condition, in any order."""
    other = t.removesuffix(".t") + ".two"
    spark.sql(f"CREATE TABLE {other} (a STRING, b DATE, v INT, PRIMARY KEY (a, b))")
    day = "DATE '2020-01-01'"
    spark.sql(f"INSERT INTO {other} VALUES ('x', {day}, 1), ('y', {day}, 2)")
    source = f"SELECT * FROM VALUES (9, {day}, 'x'), (9, {day}, 'z') AS s(v, b, a)"
    text = f"MERGE INTO {other} t USING ({source}) s ON {{}} {ALL}"
    assert not is_read(spark, text.format("s.b = t.b AND t.a = s.a"))
    assert is_read(spark, text.format("t.a = s.a"))
    spark.sql(text.format("s.b = t.b AND t.a = s.a"))
    found = kudulite.open_table(tmp_path / "two").scan(columns=["a", "v"]).to_pylist()
    assert {row["a"]: row["v"] for row in found} == {"x": 9, "y": 2, "z": 9}


def test_tables_with_immutable_columns_are_read(spark, t, tmp_path):
    """An update of such a column must be refused, and not ignored."""
    columns = [
        kudulite.column("id", "int64"),
        kudulite.column("made", "string", mutable=False),
        kudulite.column("v", "double"),
    ]
    table = kudulite.connect(tmp_path).create_table("fixed", kudulite.schema(columns, "id"))
    table.insert([{"id": 1, "made": "m", "v": 1.0}])
    name = t.removesuffix(".t") + ".fixed"
    source = "SELECT 1L AS id, 'm' AS made, 2D AS v"
    text = f"MERGE INTO {name} t USING ({{}}) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *"
    assert is_read(spark, text.format(source))
    spark.sql(text.format(source))
    assert table.scan().to_pylist() == [{"id": 1, "made": "m", "v": 2.0}]
    with pytest.raises(PySparkException, match="immutable"):
        spark.sql(text.format(source.replace("'m'", "'n'")))


UPDATES = {
    "of the row": (
        "v = v + 1 WHERE id > 7",
        "id:bigint,v:double",
        {8: ("h8", 5.0), 9: ("h9", 5.5)},
    ),
    "a condition on another column": (
        "v = 1 WHERE host = 'h4'",
        "id:bigint,host:string",
        {4: ("h4", 1.0)},
    ),
    "to NULL": ("host = NULL, v = v WHERE v = 2", "id:bigint,v:double", {4: (None, 2.0)}),
    "one to another": (
        "host = CAST(v AS STRING) WHERE id = 2",
        "id:bigint,v:double",
        {2: ("1.0", 1.0)},
    ),
    "no row": ("v = 1 WHERE id = 99", "id:bigint", {}),
    "nothing": ("v = v WHERE id = 1", "id:bigint,host:string,v:double", {}),
    "all": (
        "v = 7, host = 'all' WHERE id = 1",
        "id:bigint,host:string,v:double",
        {1: ("all", 7.0)},
    ),
}


@pytest.mark.parametrize("case", UPDATES)
def test_an_update_does_not_read_cells_that_stay_as_they_are(spark, t, tmp_path, case):
    """It reads the key, and the columns of its condition and of its values."""
    text, read, changed = UPDATES[case]
    plan = spark.sql(f"EXPLAIN UPDATE {t} SET {text}").first()[0]
    if case != "all":  # its columns are pruned by Spark as it likes
        assert f"ReadSchema: struct<{read}>" in plan
    spark.sql(f"UPDATE {t} SET {text}")
    assert stored(tmp_path) == ROWS | changed


def test_a_column_that_must_not_be_null_is_read(spark, t, tmp_path):
    """NULL cannot stand for it in Spark's plan; its cells stay as they are."""
    name = t.replace(".t", ".n")
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, s STRING NOT NULL, a ARRAY<INT>, v INT, PRIMARY KEY (id))"
    )
    spark.sql(f"INSERT INTO {name} VALUES (1, 'one', array(1, NULL), 1), (2, 'two', NULL, 2)")
    spark.sql(
        f"UPDATE {name} SET v = v * 10 WHERE EXISTS (SELECT 1 FROM {t} WHERE {t}.id = {name}.id)"
    )
    spark.sql(f"UPDATE {name} SET v = v + 1 WHERE id = 2")
    found = kudulite.open_table(tmp_path / "n").scan(ordered=True).to_pylist()
    assert [tuple(row.values()) for row in found] == [
        (1, "one", [1, None], 10),
        (2, "two", None, 21),
    ]
