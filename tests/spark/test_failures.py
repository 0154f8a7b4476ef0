"""Tasks, jobs and commits that fail: nothing visible, nothing left behind, the next write works."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.types import StructType

import kudulite
from kudulite.errors import ConflictError
from kudulite_spark.datasource import KuduliteDataSource
from kudulite_spark.writer import StagedMessage, TableWriter
from tests.support.spark.spark_tables import load, make_table, rows, save, staged_files, stored
from tests.support.tiers import tiered

OLD = [(k, "old") for k in range(10)]
# Spark's workers cannot import a test module: its classes travel whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class FailingWriter(TableWriter):
    """The real writer, with one thing going wrong: `trouble` says which."""

    trouble = ""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get().partitionId()

        def batches() -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(iterator):
                if task == 1 and number == 1 and self.trouble == "killed task":
                    os.kill(os.getpid(), signal.SIGKILL)
                if task == 1 and number == 1 and self.trouble == "failing task":
                    raise ValueError("told to fail")
                yield batch
            if task == 0 and self.trouble == "slow twin":
                time.sleep(3)
            if task == 1 and self.trouble == "slow twin":
                raise ValueError("told to fail")

        return super().write(batches())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        records = Path(self.planned.path, "writes")
        if self.trouble == "lost record":
            shutil.rmtree(records)
            records.mkdir()
        staged = [Path(place) for place in staged_files(self.planned.path)]
        if self.trouble == "lost staged rowset":
            shutil.rmtree(next(place.parent for place in staged if place.suffix == ".parquet"))
        if self.trouble == "lost staged file":
            next(place for place in staged if place.suffix == ".parquet").unlink()
        if self.trouble == "killed commit":
            os.kill(os.getpid(), signal.SIGKILL)
        super().commit(messages)


class FailingSource(DataSource):
    """format("failing"): writes as kudulite does, with the trouble that an option names."""

    @classmethod
    def name(cls) -> str:
        return "failing"

    def writer(self, schema: StructType, overwrite: bool) -> FailingWriter:
        options = dict(self.options)
        trouble = options.pop("trouble")
        writer = KuduliteDataSource(options).writer(schema, overwrite)
        writer.__class__ = FailingWriter
        writer.trouble = trouble
        return writer


@pytest.fixture
def path(spark, tmp_path) -> str:
    """A table (k, s) with the rows OLD in two tablets."""
    spark.dataSource.register(FailingSource)
    types = {"k": pa.int64(), "s": pa.string()}
    layout = {"primary_key": ["k"], "hash_partitions": [(["k"], 2)]}
    return make_table(tmp_path / "t", OLD, types, **layout)


def new_rows(spark, count: int = 30_000):
    """Two tasks, of several batches each, that change the old rows and add new ones."""
    return spark.range(0, count, 1, 2).selectExpr("id AS k", "'new' AS s")


TROUBLES = [
    "killed task",
    "failing task",
    "slow twin",
    "lost record",
    "lost staged rowset",
    "lost staged file",
    "killed commit",
]


@tiered("mode", ["append", "overwrite"], quick=1)
@tiered("trouble", TROUBLES, quick=("failing task",))
def test_a_write_that_fails_leaves_nothing(spark, path, trouble, mode):
    """Whatever fails, readers see the table as it was; then a right write works."""
    frame = new_rows(spark)
    with pytest.raises(Exception):  # noqa: B017  Spark wraps each in another class
        frame.write.format("failing").mode(mode).option("trouble", trouble).save(path)
    assert stored(path) == OLD
    assert rows(load(spark, path)) == OLD
    # Spark may kill the other task, or let it go on; what it leaves is garbage.
    deadline = time.monotonic() + 10
    while staged_files(path) and time.monotonic() < deadline:
        kudulite.open_table(path).maintain(grace_seconds=0)
        time.sleep(0.1)
    assert staged_files(path) == []
    save(frame, path, mode)
    assert load(spark, path, filter="s = 'new'").count() == 30_000
    assert load(spark, path).count() == 30_000


def test_a_table_made_by_a_write_that_fails_is_gone(spark, path, tmp_path):
    """As if it had not been asked for."""
    place = tmp_path / "first"
    writer = new_rows(spark).write.format("failing").mode("append").option("primaryKey", "k")
    with pytest.raises(Exception, match="told to fail"):
        writer.option("trouble", "failing task").save(str(place))
    assert not place.exists()


def planned_writer(path: str, **options: str) -> TableWriter:
    """A writer as Spark's planner gets it, for a DataFrame (k long, s string)."""
    source = KuduliteDataSource({"path": path, **options})
    return source.writer(StructType.fromDDL("k long, s string"), False)


def batch(keys: range, text: str) -> pa.RecordBatch:
    """Rows of the table."""
    return pa.record_batch(
        {"k": pa.array(keys, pa.int64()), "s": pa.array([text] * len(keys), pa.string())}
    )


def test_a_table_made_by_a_failing_write_stays_if_another_write_committed(spark, tmp_path):
    """The abort of one job must not take another job's rows."""
    path = str(tmp_path / "shared")
    first, second = planned_writer(path, primaryKey="k"), planned_writer(path, primaryKey="k")
    staged = second.planned.bulk_write.stage([batch(range(3), "second")], 0)
    second.commit([StagedMessage(staged)])
    first.abort([None])
    assert stored(path) == [(k, "second") for k in range(3)]


def test_of_two_attempts_of_a_task_only_the_one_that_won_counts(spark, path):
    """A speculative twin stages the same rows a second time; they must not be there twice."""
    writer = planned_writer(path, operation="insert")
    bulk_write = writer.planned.bulk_write
    many, more = range(100, 2100), range(2100, 2200)
    bulk_write.stage([batch(many, "lost")], 0)
    won = bulk_write.stage([batch(many, "won")], 0)
    other = bulk_write.stage([batch(more, "other")], 1)
    writer.commit([StagedMessage(won), StagedMessage(other)])
    expected = [(k, "won") for k in many] + [(k, "other") for k in more]
    assert stored(path) == [*OLD, *expected]
    assert staged_files(path)  # of the attempts that do not count, until the next collection
    kudulite.open_table(path).maintain(grace_seconds=0)
    assert staged_files(path) == []


def test_abort_while_a_task_still_writes(spark, path):
    """The task that is still running fails at its next step and cleans nothing up by itself."""
    writer = planned_writer(path)

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(range(50), "late")
        writer.abort([None])

    with pytest.raises(ConflictError, match="aborted"):
        writer.planned.bulk_write.stage(batches(), 0)
    assert staged_files(path) == []
    assert stored(path) == OLD


def test_concurrent_writes_from_spark_and_python(spark, path):
    """A write that others overtake between planning and commit is fitted to what they did."""
    writer = planned_writer(path)
    staged = writer.planned.bulk_write.stage([batch(range(5, 15), "planned")], 0)
    kudulite.open_table(path).upsert(pa.Table.from_batches([batch(range(8, 12), "overtook")]))
    save(spark.createDataFrame([(11, "spark")], "k long, s string"), path)
    writer.commit([StagedMessage(staged)])
    expected = {**dict(OLD), **dict.fromkeys(range(5, 15), "planned")}
    assert stored(path) == sorted(expected.items())


RETRIES = """
import os, sys
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource
from kudulite_spark import local_session
from kudulite_spark.datasource import KuduliteDataSource
from kudulite_spark.writer import TableWriter

class Flaky(TableWriter):
    def write(self, iterator):
        context = TaskContext.get()
        message = super().write(iterator)          # all rows of this attempt are staged
        if context.partitionId() == 1 and context.attemptNumber() < self.failures:
            raise ValueError(f"attempt {context.attemptNumber()} fails")
        return message

class Source(DataSource):
    @classmethod
    def name(cls):
        return "flaky"
    def writer(self, schema, overwrite):
        options = dict(self.options)
        failures = int(options.pop("failures"))
        writer = KuduliteDataSource(options).writer(schema, overwrite)
        writer.__class__ = Flaky
        writer.failures = failures
        return writer

spark = local_session("retries", options={"spark.master": "local[2,4]"})
spark.dataSource.register(Source)
frame = spark.range(0, 4000, 1, 2).selectExpr("id AS k", "'new' AS s")
for failures in sys.argv[2:]:
    try:
        frame.write.format("flaky").mode("append").options(failures=failures).save(sys.argv[1])
        print("committed", failures)
    except Exception as error:
        print("failed", failures, "attempt 3 fails" in str(error))
    print("rows", spark.read.format("kudulite").load(sys.argv[1]).count())
"""


def test_a_task_is_retried_until_it_gives_up(spark, path):
    """local[2,4] allows four attempts: four failures fail the job, two are made good."""
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RETRIES), path, "4", "2"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.stdout.split("\n")[:4] == ["failed 4 True", "rows 10", "committed 2", "rows 4000"], (
        run.stderr[-2000:]
    )
    assert stored(path) == [(k, "new") for k in range(4000)]
    assert staged_files(path)  # of the attempts that do not count, until the next collection
    kudulite.open_table(path).maintain(grace_seconds=0)
    assert staged_files(path) == []
