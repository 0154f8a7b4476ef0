"""spark.readStream: snapshot, changes, restarts, bounded batches, and what may happen meanwhile."""

import pytest

import kudulite
from kudulite_spark.datasource import KuduliteDataSource
from kudulite_spark.options import ReadOptions
from kudulite_spark.stream_bounds import StreamStart
from kudulite_spark.stream_reader import HAS_READ_LIMITS
from tests.spark.conftest import BOTH
from tests.support.spark.spark_tables import (
    error_of,
    given,
    last_batch_is_not_noted,
    make_source,
    run,
    same,
    start,
    stream,
    writes,
)

pytestmark = BOTH

COPY = {"primaryKey": "k", "operationColumn": "_change_type"}


def test_a_copy_follows_from_a_snapshot_on(spark, tmp_path):
    """The snapshot in pieces, then each window of changes; a restart goes on where it was.

    The commit timestamps of the changes are left out by the sink, which has no such column.
    """
    source = make_source(tmp_path, 100)
    limit = {"maxRowsPerTrigger": 60} if HAS_READ_LIMITS else {}
    changes = stream(spark, source.path, startTimestamp="snapshot", **limit)
    assert changes.schema.names == [
        "k",
        "s",
        "_change_type",
        "_commit_version",
        "_commit_timestamp",
    ]
    target, checkpoint = tmp_path / "copy", tmp_path / "checkpoint"
    assert run(changes, target, checkpoint, **COPY) == ([60, 40] if limit else [100])
    copy = kudulite.open_table(target)
    assert copy.schema.names == ["k", "s"]
    assert same(source, copy)
    source.delete(given(range(10), ""))
    source.upsert(given(range(50, 130), "second"))
    session = kudulite.connect(tmp_path, background_maintenance=False).new_session()
    session.apply(source.new_upsert({"k": 5, "s": "back"}))
    session.flush()
    # One commit is never cut; in one window with the deletes, the reinserted row is an update.
    assert run(changes, target, checkpoint, **COPY) == ([10, 80, 1] if limit else [90])
    assert same(source, copy)
    source.compact()
    assert run(changes, target, checkpoint, **COPY) == []
    # As after a kill between the table's commit and the checkpoint's: the same rows, once.
    last_batch_is_not_noted(checkpoint)
    written = writes(copy)
    assert run(changes, target, checkpoint, **COPY) == ([1] if limit else [90])
    assert writes(copy) == written
    assert same(source, copy)


def test_from_a_moment_and_from_now(spark, tmp_path):
    """Only what changes after it; with images of before, projection and filter as in a batch."""
    source = make_source(tmp_path, 10)
    begin = source.newest_change()
    source.update(given([1, 2], "second"))
    source.delete(given([2, 3], ""))
    shown = stream(
        spark, source.path, startTimestamp=begin, changeImages="both", columns="k", filter="k < 3"
    )
    now = stream(spark, source.path, startTimestamp="now")
    one = shown.writeStream.format("memory").queryName("shown").trigger(availableNow=True)
    two = now.writeStream.format("memory").queryName("now").trigger(processingTime="0 seconds")
    queries = [writer.start() for writer in (one, two)]
    queries[0].awaitTermination(120)
    found = spark.table("shown").collect()
    assert [(r["k"], r["_change_type"]) for r in found] == [
        (1, "update_preimage"),
        (1, "update_postimage"),
        (2, "delete"),
    ]
    queries[1].processAllAvailable()
    source.update(given([7], "third"))
    queries[1].processAllAvailable()
    queries[1].stop()
    assert [(r["k"], r["s"]) for r in spark.table("now").collect()] == [(7, "third")]


def test_rows_alone_tell_no_delete(spark, tmp_path):
    """Without a start a stream has the table's columns: inserts and updates, and an error."""
    source = make_source(tmp_path, 3)
    rows = stream(spark, source.path)
    assert rows.schema.names == ["k", "s"]
    target, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"
    run(rows, target, checkpoint, primaryKey="k")
    source.upsert(given([1, 9], "second"))
    run(rows, target, checkpoint)
    assert same(source, kudulite.open_table(target))
    source.delete(given([9], ""))
    message = error_of(start(rows, target, checkpoint))
    assert "a row was deleted" in message and "startTimestamp" in message


def test_what_may_have_happened_to_the_table_is_said(spark, tmp_path):
    """History that is gone, another table of the name, a column that is gone; new ones are left."""
    client = kudulite.connect(tmp_path, background_maintenance=False)
    source = make_source(tmp_path, 3)
    changes = stream(spark, source.path, startTimestamp="snapshot")
    target, checkpoint = tmp_path / "copy", tmp_path / "checkpoint"
    run(changes, target, checkpoint, **COPY)
    alterer = client.new_table_alterer(source)
    alterer.add_column("more", kudulite.int32, nullable=True)
    alterer.alter()
    source.upsert([{"k": 1, "s": "a", "more": 5}])
    run(changes, target, checkpoint, **COPY)
    assert kudulite.open_table(target).get(1) == {"k": 1, "s": "a"}

    source.upsert([{"k": 2, "s": "b", "more": 6}])
    client.new_table_alterer(source).set_history_retention(0).alter()
    source.upsert([{"k": 2, "s": "c", "more": 7}])
    message = error_of(start(changes, target, checkpoint, **COPY))
    assert "ancient history mark" in message and "set_history_retention" in message
    assert "new checkpoint" in message
    # Yet the options may name a start that is long gone.
    assert stream(spark, source.path, startTimestamp="2001-01-01").schema.names[0] == "k"

    client.delete_table("source")
    again = make_source(tmp_path, 1)
    message = error_of(start(changes, target, checkpoint, **COPY))
    assert "deleted and created again, or the checkpoint is of another stream" in message
    assert again.id in message


def test_options_that_a_stream_or_a_batch_cannot_have(spark, tmp_path):
    """Each is refused where it means nothing."""
    source = make_source(tmp_path, 1)
    for options, text in (
        ({"endTimestamp": "2030-01-01", "startTimestamp": "now"}, "'endTimestamp'"),
        ({"snapshotTimestamp": source.newest_change()}, "'snapshotTimestamp'"),
    ):
        with pytest.raises(Exception, match=text):
            ReadOptions.check_stream({"path": "p", **options})
    reader = spark.read.format("kudulite")
    for options in ({"startTimestamp": "now"}, {"maxRowsPerTrigger": "5"}):
        with pytest.raises(Exception, match=r"belongs to a stream \(spark.readStream\)"):
            reader.options(**options).load(str(source.path)).count()


def test_a_reader_without_starts_and_limits_reads_all_there_is(spark, tmp_path):
    """As Spark 4.1 asks: only where the newest offset is."""
    source = make_source(tmp_path, 20)
    schema = stream(spark, source.path, startTimestamp="snapshot").schema
    options = {"path": str(source.path), "startTimestamp": "now"}
    reader = KuduliteDataSource(options).streamReader(schema)

    def read(first: dict, last: dict) -> int:
        found = [reader.read(partition) for partition in reader.partitions(first, last)]
        return sum(batch.num_rows for batches in found for batch in batches)

    first = reader.latestOffset()
    assert read(StreamStart("snapshot").to_json(), first) == 20
    assert read(StreamStart("now").to_json(), first) == 0
    assert reader.latestOffset() == first
    source.delete(given([3], ""))
    assert read(first, reader.latestOffset()) == 1
    assert read(StreamStart("snapshot").to_json(), first) == 20
