"""Bad input through Spark: a message that says what to correct, and the table as it was."""

import json
import shutil
import zlib
from pathlib import Path

import pytest

from kudulite.tablet.operation import OPERATION_NAMES
from kudulite_spark.options import KNOWN_NAMES
from tests.support.spark.spark_tables import load, save, staged_files, stored
from tests.support.tiers import tiered

OLD = [("a", 1, 10, "x"), ("b", 2, 20, None)]
SCHEMA = "host string, day int, n int, s string"


@pytest.fixture(scope="module")
def path(spark, tmp_path_factory) -> str:
    """A table (host, day | n, s varchar(3)) with ranges of day [0, 100) and [200, 300).

    One for all tests: none of them may change it."""
    place = str(tmp_path_factory.mktemp("bad") / "events")
    frame = spark.createDataFrame(OLD, SCHEMA)
    save(
        frame.withMetadata("s", {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}),
        place,
        primaryKey="host, day",
        hashPartitions="host:2",
        rangePartitions='{"columns": ["day"], "bounds": [[0, 100], [200, 300]]}',
    )
    return place


def refused(action) -> str:
    """The message of the error that `action` ends with."""
    with pytest.raises(Exception) as caught:
        action()
    return str(caught.value)


BAD_WRITES = {
    "unknown option": (
        [("c", 3, 1, "y")],
        SCHEMA,
        {"opration": "insert"},
        ["unknown option 'opration'", ", ".join(KNOWN_NAMES)],
    ),
    "unknown operation": (
        [("c", 3, 1, "y")],
        SCHEMA,
        {"operation": "merge"},
        ["unknown operation 'merge'", ", ".join(OPERATION_NAMES)],
    ),
    "unknown column": (
        [("c", 3, 1)],
        "host string, day int, nn int",
        {},
        ["events", "no column 'nn'", "host, day, n, s"],
    ),
    "column of another type": (
        [("c", 3, "one")],
        "host string, day int, n string",
        {},
        ["events", "column 'n'", "has string", "is int32"],
    ),
    "no key column": (
        [(3, 1)],
        "day int, n int",
        {},
        ["events", "lacks key column 'host'", "(host, day)"],
    ),
    "null key": (
        [("c", None, 1)],
        "host string, day int, n int",
        {},
        ["events", "key column 'day'", "null", "'c'"],
    ),
    "duplicate key under insert": (
        [("c", 3, 1), ("c", 3, 2)],
        "host string, day int, n int",
        {"operation": "insert"},
        ["events", "key already present", "'c', 3"],
    ),
    "key already there under insert": (
        [("a", 1, 1)],
        "host string, day int, n int",
        {"operation": "insert"},
        ["events", "key already present", "'a', 1"],
    ),
    "key not there under update": (
        [("q", 1, 1)],
        "host string, day int, n int",
        {"operation": "update"},
        ["events", "key not found", "'q', 1"],
    ),
    "key not there under delete": (
        [("q", 1)],
        "host string, day int",
        {"operation": "delete"},
        ["events", "key not found", "'q', 1"],
    ),
    "value out of range": (
        [("c", 3, 3_000_000_000)],
        "host string, day int, n long",
        {},
        ["events", "column 'n'", "3000000000", "int32"],
    ),
    "value too long": (
        [("c", 3, "abcd")],
        "host string, day int, s string",
        {},
        ["events", "column 's'", "abcd", "varchar(3)"],
    ),
    "fraction in an integer": (
        [("c", 3, 1.5)],
        "host string, day int, n double",
        {},
        ["events", "column 'n'", "1.5", "int32"],
    ),
    "key outside every range": (
        [("c", 150, 1)],
        "host string, day int, n int",
        {},
        ["events", "no range partition", "'c', 150"],
    ),
    "primary key of another table": (
        [("c", 3, 1)],
        "host string, day int, n int",
        {"primaryKey": "host"},
        ["events", "(host, day)", "'primaryKey' says (host)"],
    ),
    "hash partitions of another table": (
        [("c", 3, 1)],
        "host string, day int, n int",
        {"hashPartitions": "host:3"},
        ["events", "hash(host) into 2", "'hashPartitions'"],
    ),
    "range partitions of another table": (
        [("c", 3, 1)],
        "host string, day int, n int",
        {"rangePartitions": '{"columns": ["day"], "bounds": [[0, 99]]}'},
        ["events", "'rangePartitions'", "[0, 100)"],
    ),
    "operation column that is not there": (
        [("c", 3, 1)],
        "host string, day int, n int",
        {"operationColumn": "op"},
        ["events", "'operationColumn' names 'op'", "host, day, n"],
    ),
    "operation in a mixed batch": (
        [("c", 3, 1, "X")],
        "host string, day int, n int, op string",
        {"operationColumn": "op"},
        ["unknown operation 'X'"],
    ),
    "repeated column": (
        [("c", 3, 1, 2)],
        "host string, day int, n int, n int",
        {},
        ["events", "more than one column n"],
    ),
    "nothing to update": (
        [("a", 1)],
        "host string, day int",
        {"operation": "update"},
        ["events", "no fields updated"],
    ),
    "a write into the past": (
        [("c", 3, 1)],
        "host string, day int, n int",
        {"snapshotTimestamp": "2026-01-01"},
        ["'snapshotTimestamp' belongs to a read"],
    ),
}


@pytest.mark.quick
@tiered("case", BAD_WRITES)
def test_a_bad_write_is_refused_and_changes_nothing(spark, path, case):
    """The message names the table, the column and the value; nothing is staged or visible."""
    data, schema, options, parts = BAD_WRITES[case]
    names = [field.split()[0] for field in schema.split(", ")]
    if len(set(names)) < len(names):
        frame = spark.sql("SELECT 'c' AS host, 3 AS day, 1 AS n, 2 AS n")
    else:
        frame = spark.createDataFrame(data, schema).coalesce(1)
    message = refused(lambda: save(frame, path, **options))
    assert [part for part in parts if part not in message] == []
    assert stored(path) == OLD
    assert staged_files(path) == []


def test_a_bad_overwrite_is_refused_and_changes_nothing(spark, path):
    """Overwrite truncates only when everything else has worked."""
    frame = spark.createDataFrame([("c", 150, 1)], "host string, day int, n int")
    assert "no range partition" in refused(lambda: save(frame, path, "overwrite"))
    message = refused(lambda: save(frame, path, "overwrite", operation="delete"))
    assert "mode overwrite empties the table first" in message
    assert stored(path) == OLD


def test_duplicate_keys_in_two_tasks_under_insert(spark, path):
    """Only the commit can see them; it refuses the whole write."""
    frame = spark.range(2).selectExpr("'c' AS host", "3 AS day", "CAST(id AS int) AS n")
    message = refused(lambda: save(frame.repartition(2, "n"), path, operation="insert"))
    assert "key already present" in message
    assert stored(path) == OLD
    assert staged_files(path) == []


def test_no_table_at_the_path(spark, tmp_path):
    """A read says that there is none, a write says how to make one; neither makes anything."""
    place = tmp_path / "nowhere"
    frame = spark.createDataFrame([(1, "a")], "k int, s string")
    message = refused(lambda: load(spark, place))
    assert "nowhere" in message and "does not exist" in message
    message = refused(lambda: save(frame, place))
    assert "no table at" in message and "'primaryKey'" in message
    assert not place.exists()


@pytest.mark.parametrize(
    ("schema", "options", "part"),
    [
        ("k int, s string", {"primaryKey": "id"}, "primary key column 'id'"),
        ("k double, s string", {"primaryKey": "k"}, "double may not be part of a primary key"),
        (
            "k int, s array<array<int>>",
            {"primaryKey": "k"},
            "column 's': Spark type array<array<int>>",
        ),
        ("k int, s string", {"primaryKey": "k", "hashPartitions": "s:4"}, "not in the primary key"),
        (
            "k int, s string",
            {
                "primaryKey": "k",
                "rangePartitions": '{"columns": ["k"], "bounds": [[0, 5], [4, 9]]}',
            },
            "overlap",
        ),
    ],
)
def test_a_table_that_cannot_be_made_is_not(spark, tmp_path, schema, options, part):
    """Said before a task starts; the directory stays free for the corrected call."""
    place = tmp_path / "new"
    frame = spark.createDataFrame([], schema)
    assert part in refused(lambda: save(frame, place, **options))
    assert not place.exists()


def test_a_path_that_holds_something_else(spark, tmp_path):
    """Neither read, nor mixed with a table."""
    frame = spark.createDataFrame([(1, "a")], "k int, s string")
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    (folder / "data.csv").write_text("1,2")
    file.write_text("no table")
    for place, found in ((folder, "data.csv"), (file, "it is a file")):
        assert found in refused(lambda place=place: load(spark, place))
        assert found in refused(lambda place=place: save(frame, place, primaryKey="k"))
    assert [entry.name for entry in folder.iterdir()] == ["data.csv"]


def test_a_newer_format_is_refused(spark, path, tmp_path):
    """By name of file and version, for reads and writes."""
    newer = tmp_path / "newer"
    shutil.copytree(path, newer)
    manifest = max(Path(newer, "manifest").glob("*.json"))
    body = json.loads(manifest.read_bytes().splitlines()[0])
    line = json.dumps({**body, "format_version": 99}).encode()
    manifest.write_bytes(line + b'\n{"crc32":%d}\n' % zlib.crc32(line))
    frame = spark.createDataFrame([("c", 3, 1)], "host string, day int, n int")
    for action in (lambda: load(spark, newer), lambda: save(frame, newer)):
        message = refused(action)
        assert "99" in message and manifest.name in message and "upgrade" in message


@pytest.mark.quick
@tiered(
    ("options", "parts"),
    [
        ({"snapshotTs": "1"}, ["unknown option 'snapshotts'", ", ".join(KNOWN_NAMES)]),
        ({"columns": "host,nn"}, ["no column 'nn'", "host, day, n, s"]),
        ({"filter": "nn = 1"}, ["no column 'nn'", "host, day, n, s"]),
        ({"filter": "n + 1 = 2"}, ["'n + 1 = 2' is not supported", "BETWEEN"]),
        ({"snapshotTimestamp": "soon"}, ["'soon' is not a moment"]),
        ({"snapshotTimestamp": "2100-01-01"}, ["events", "ahead of the clock"]),
        ({"snapshotTimestamp": "2001-01-01"}, ["events", "before the table was created"]),
        ({"splitSizeBytes": "many"}, ["'splitSizeBytes'", "'many'"]),
        ({"pushdown": "maybe"}, ["'pushdown' is true or false"]),
        ({"operation": "merge"}, ["unknown operation 'merge'"]),
    ],
    quick=2,
)
def test_a_bad_read_is_refused_at_load(spark, path, options, parts):
    """Not at the first action, which may be far away."""
    message = refused(lambda: load(spark, path, **options))
    assert [part for part in parts if part not in message] == []


@pytest.mark.parametrize(
    ("schema", "parts"),
    [
        ("host string, nn int", ["events", "no column 'nn'"]),
        ("n short", ["events", "column 'n' is int32", "smallint"]),
        ("n int not null", ["column 'n' may be NULL", "NOT NULL"]),
        ("s binary", ["column 's'", "binary"]),
    ],
)
def test_a_schema_that_the_table_cannot_be_read_as(spark, path, schema, parts):
    """Names and types must be there exactly; Spark asks for nothing before the first action."""
    frame = spark.read.format("kudulite").schema(schema).load(path)
    message = refused(frame.collect)
    assert [part for part in parts if part not in message] == []


def test_no_path(spark):
    """The message has the ways out for a catalog table, to which Spark gives no options."""
    message = refused(lambda: spark.read.format("kudulite").load())
    assert "'path' is missing" in message and "CREATE TEMPORARY VIEW" in message
