"""df.writeStream: every batch once, in every mode and operation; nothing is left of what failed."""

import json
import os

import kudulite
from tests.spark.conftest import BOTH
from tests.support.spark.spark_tables import (
    error_of,
    given,
    last_batch_is_not_noted,
    make_source,
    run,
    staged_files,
    start,
    stored,
    writes,
)

pytestmark = BOTH

FIRST_FILE_SECONDS = 1_700_000_000


def source_of(spark, folder, *batches):
    """A stream of JSON files, one batch each."""
    folder.mkdir()
    add(folder, *batches)
    reader = spark.readStream.format("json").schema("k bigint, s string, op string")
    return reader.option("maxFilesPerTrigger", 1).load(str(folder))


def add(folder, *batches):
    """Add a file for each batch."""
    for rows in batches:
        number = len(list(folder.iterdir()))
        text = "\n".join(json.dumps(dict(zip("kso", row, strict=False))) for row in rows)
        path = folder / f"{number:03}.json"
        path.write_text(text.replace('"o"', '"op"'))
        os.utime(path, (FIRST_FILE_SECONDS + number,) * 2)  # Spark takes the oldest first


def test_batches_are_committed_once(spark, tmp_path):
    """An insert that is run again after its commit is neither refused nor doubled; the table is
    made with the first batch; an empty batch is no version; the user's id wins."""
    frame = source_of(spark, tmp_path / "in", [(1, "a"), (2, "b")], [(3, "c")]).drop("op")
    target, checkpoint = tmp_path / "t", tmp_path / "checkpoint"
    options = {"operation": "insert", "primaryKey": "k", "hashPartitions": "k:2"}
    assert run(frame, target, checkpoint, **options) == [2, 1]
    table = kudulite.open_table(target)
    assert writes(table) == 3
    assert last_batch_is_not_noted(checkpoint) == 1
    run(frame, target, checkpoint, **options)
    assert stored(target) == [(1, "a"), (2, "b"), (3, "c")]
    assert writes(table) == 3
    add(tmp_path / "in", [(2, "again")])
    run(frame.filter("k > 2"), target, checkpoint, **options)
    assert writes(table) == 3

    # A query with a new checkpoint and the same id of the user's begins at batch 0 again.
    named = {**options, "applicationId": "mine"}
    other = tmp_path / "named"
    for checkpoint in (tmp_path / "c1", tmp_path / "c2"):
        run(frame.filter("k < 3 AND s <> 'again'"), other, checkpoint, **named)
    assert stored(other) == [(1, "a"), (2, "b")]
    assert staged_files(target) == staged_files(other) == []


def test_operations_in_a_column_and_alone(spark, tmp_path):
    """As in a batch write."""
    make_source(tmp_path, 3, "t")
    rows = [(0, None, "D"), (1, "u", "U"), (7, "i", "I")]
    frame = source_of(spark, tmp_path / "in", rows)
    run(frame, tmp_path / "t", tmp_path / "c1", operationColumn="op")
    assert stored(tmp_path / "t") == [(1, "u"), (2, "first"), (7, "i")]
    gone = frame.filter("op = 'U'").drop("op")
    run(gone, tmp_path / "t", tmp_path / "c2", operation="delete")
    assert stored(tmp_path / "t") == [(2, "first"), (7, "i")]


def test_a_batch_that_fails_leaves_nothing(spark, tmp_path):
    """Neither rows nor files, also of the tasks that succeeded; the query may be repaired."""
    table = make_source(tmp_path, 3, "t")
    frame = source_of(spark, tmp_path / "in", [(1, "twice"), (8, "new")]).drop("op")
    before = stored(tmp_path / "t")
    query = start(frame.repartition(2), tmp_path / "t", tmp_path / "c", operation="insert")
    message = error_of(query)
    assert "key already present" in message and "= 1" in message
    assert stored(tmp_path / "t") == before
    table.delete(given([1], ""))
    run(frame.repartition(2), tmp_path / "t", tmp_path / "c", operation="insert")
    assert (1, "twice") in stored(tmp_path / "t")
    assert staged_files(tmp_path / "t") == []
    message = error_of(
        start(frame, tmp_path / "t", tmp_path / "d", applicationId="a", applicationVersion="1")
    )
    assert "'applicationVersion' ('1') belongs to a batch" in message


def test_complete_mode_replaces_the_table_by_each_result(spark, tmp_path):
    """One version per batch; the results before are in the past."""
    frame = source_of(spark, tmp_path / "in", [(1, "a"), (2, "a")], [(3, "b"), (4, "a")])
    counts = frame.groupBy("s").count()
    target = tmp_path / "counts"
    options = {"mode": "complete", "primaryKey": "s"}
    run(counts, target, tmp_path / "c", **options)
    assert stored(target) == [("a", 3), ("b", 1)]
    table = kudulite.open_table(target)
    assert writes(table) == 3
    assert table.changes(table.newest_change() - 1).count() == 2
    last_batch_is_not_noted(tmp_path / "c")
    run(counts, target, tmp_path / "c", **options)
    assert writes(table) == 3


def test_each_batch_adds_the_columns_that_the_table_lacks(spark, tmp_path):
    """schemaEvolution: also those that were dropped between two batches, or that a query has only
    since it was started anew; without the option the query ends with an error that names it."""
    table = make_source(tmp_path, 1, "t")
    frame = source_of(spark, tmp_path / "in", [(1, "a", "x")])
    checkpoint = tmp_path / "c"
    assert "option schemaEvolution adds" in error_of(start(frame, table.path, checkpoint))
    run(frame, table.path, checkpoint, schemaEvolution="true")
    assert stored(table.path) == [(0, "first", None), (1, "a", "x")]
    table = kudulite.open_table(table.path)
    alterer = kudulite.connect(tmp_path, background_maintenance=False).new_table_alterer(table)
    alterer.drop_column("op").alter()
    add(tmp_path / "in", [(2, "b", "y")])
    run(frame, table.path, checkpoint, schemaEvolution="true")
    assert stored(table.path) == [(0, "first", None), (1, "a", None), (2, "b", "y")]

    # The same query, started anew with a column more; the last batch is not added to again.
    written = writes(kudulite.open_table(table.path))
    assert last_batch_is_not_noted(checkpoint) == 1
    add(tmp_path / "in", [(3, "c", "z")])
    wider = frame.selectExpr("*", "k * 0.5D AS half")
    run(wider, table.path, checkpoint, schemaEvolution="true")
    assert stored(table.path)[1:] == [
        (1, "a", None, None), (2, "b", "y", None), (3, "c", "z", 1.5)
    ]  # fmt: skip
    assert writes(kudulite.open_table(table.path)) == written + 2  # the column, and the batch
