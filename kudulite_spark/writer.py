"""Writing: each task stages its rows, the commit publishes all of them at once.

    planner: checked options + schema → writer with a PlannedWrite (may make the table)
    task:    write() → a message with the staged files    any number of attempts, invisible
    commit:  the messages of the attempts that won → one version of the table
    abort:   removes the staged files, and a table that this very write made

Planner, tasks and commit are different processes. Each gets the PlannedWrite, a picklable value.

`TableWriter` writes a DataFrame. Only the JVM extension can ask Spark to send the rows of a tablet
to one task (java/Tablets.java). Without it, `repartition=true` has no effect on the tasks, and the
commit logs a warning if one tablet's rows came from several of them. The rows are the same either
way.

`StreamTableWriter` writes each micro-batch of a stream as one version, **exactly once**. The
version names the query and the number of its batch. Spark runs a batch again if it was killed
before it logged the commit; that batch is then skipped. Only tasks can ask Spark for the query's
id, and the instance that commits is not the one that planned. Therefore the messages contain the id
and the PlannedWrite.

Staged files of a killed driver are removed when the query is started again, if the query has the
option `checkpointLocation`, and otherwise by a later garbage collection.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from kudulite.errors import ConflictError, OptionError, TableNotFoundError
from kudulite_spark.options import WriteOptions, catalog_of
from kudulite_spark.python_worker import end_work
from kudulite_spark.spark_versions import DataSourceStreamArrowWriter

if TYPE_CHECKING:
    from kudulite import BulkWrite, StagedTask

logger = logging.getLogger("kudulite.spark")

_ROWS = "kudulite rows"
# A setting of the session, which Spark hands to tasks.
_OVERWRITE_SETTING = "spark.sql.sources.partitionOverwriteMode"
QUERY_PROPERTY, BATCH_PROPERTY = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True)
class PlannedWrite:
    """A checked write that has begun.

    `columns` are the DataFrame's columns that are written, each with its name in the table.
    `created_version` is the version of a table that was made for the write.
    `replaces_partitions` says whether it is an overwrite of a table that has partitions.
    """

    bulk_write: BulkWrite
    path: str
    options: WriteOptions
    is_overwrite: bool
    columns: Mapping[str, str]
    replaces_partitions: bool
    created_version: int | None = None

    def stage(self, batches: Iterator[pa.RecordBatch], context: TaskContext) -> StagedTask:
        """Stage the rows of one task."""
        given, own = list(self.columns), list(self.columns.values())
        renamed = (batch.select(given).rename_columns(own) for batch in _rows(batches))
        return self.bulk_write.stage(renamed, context.partitionId())


def refuse_dynamic_overwrite(planned: PlannedWrite, setting: str | None = None) -> None:
    """Raise OptionError if only the partitions of the written rows are to be replaced.

    The option says so, or else the session's setting."""
    option = planned.options.partition_overwrite_mode
    mode = option or setting or ""
    if planned.replaces_partitions and mode.lower() == "dynamic":
        given = _OVERWRITE_SETTING if option is None else "option 'partitionOverwriteMode'"
        raise OptionError(
            f"table {planned.path!r}: {given} is dynamic, and an overwrite that replaces only the"
            " partitions of the written rows is not possible; delete the rows of these partitions"
            " and append, or give option('partitionOverwriteMode', 'static') to replace all rows"
        )


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a task's rows; with the JVM extension each batch is a cell (java/RowBatches.java)."""
    for batch in batches:
        if batch.schema.names != [_ROWS]:
            yield batch
            continue
        for cell in batch.column(0):
            yield from pa.ipc.open_stream(cell.as_buffer())


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """The files that one task attempt has staged."""

    staged: StagedTask


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedTask]:
    staged = [message.staged for message in messages if isinstance(message, StagedMessage)]
    assert len(staged) == len(messages), "Spark commits only when every task has succeeded"
    return staged


class TableWriter(DataSourceArrowWriter):
    """Carries a planned write from the planner to the tasks and to the commit."""

    def __init__(self, planned: PlannedWrite) -> None:
        self.planned = planned

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        context = TaskContext.get()
        assert context is not None
        # Planning is not given the session's settings.
        refuse_dynamic_overwrite(self.planned, context.getLocalProperty(_OVERWRITE_SETTING))
        message = StagedMessage(self.planned.stage(iterator, context))
        end_work()
        return message

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the staged rows as one version of the table."""
        staged = _staged(messages)
        if self.planned.options.repartition:
            self._report_scattered(staged)
        self.planned.bulk_write.commit(staged)
        end_work()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove everything of this write, even if some of its tasks still run."""
        self.planned.bulk_write.abort()
        if self.planned.created_version is not None:
            self._drop_created()

    def _drop_created(self) -> None:
        path = self.planned.path
        client, name = catalog_of(path, self.planned.options.storage_options)
        try:
            client.delete_table(name, if_version=self.planned.created_version)
        except ConflictError:
            logger.info("%s was made by a write that failed; another write uses it", path)
        except TableNotFoundError:
            pass  # an earlier call of abort deleted it

    def _report_scattered(self, staged: Sequence[StagedTask]) -> None:
        tasks_of = Counter(tablet for task in staged for tablet in task.tablet_ids)
        scattered = sum(1 for count in tasks_of.values() if count > 1)
        if scattered:
            logger.warning(
                "repartition=true: %d of %d tablets of %s got rows from more than one task; "
                "write kudulite_spark.repartition_for(df, path) to send each tablet's rows to one",
                scattered,
                len(tasks_of),
                self.planned.path,
            )


@dataclass(frozen=True)
class StreamMessage(StagedMessage):
    """The files that one task attempt has staged, and the write of its query and batch."""

    planned: PlannedWrite
    application_id: str
    batch_id: int


class StreamTableWriter(DataSourceStreamArrowWriter):
    """Carries a planned write to the tasks, and commits the writes of their messages."""

    def __init__(self, planned: PlannedWrite | None = None) -> None:
        """`planned` is None in the process that commits."""
        self._planned = planned

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        context = TaskContext.get()
        assert context is not None and self._planned is not None
        refuse_dynamic_overwrite(self._planned)
        query, batch = (context.getLocalProperty(n) for n in (QUERY_PROPERTY, BATCH_PROPERTY))
        assert query is not None and batch is not None, "Spark names both in tasks of a stream"
        application_id, batch_id = self._planned.options.application_id or query, int(batch)
        bulk_write = self._planned.bulk_write.for_application(application_id, batch_id)
        planned = replace(self._planned, bulk_write=bulk_write)
        staged = planned.stage(iterator, context)
        end_work()
        return StreamMessage(staged, planned, application_id, batch_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish a batch as one version of the table, unless it was committed before."""
        staged, first = _staged(messages), messages[0]
        assert isinstance(first, StreamMessage)
        assert first.batch_id == batchId, f"tasks wrote batch {first.batch_id}, not {batchId}"
        planned, bulk_write = first.planned, first.planned.bulk_write
        if bulk_write.is_committed:
            logger.warning(
                "batch %d of %s is skipped: it was committed to %s before",
                batchId,
                first.application_id,
                planned.path,
            )
            bulk_write.abort()
        elif planned.is_overwrite or any(task.has_rows for task in staged):
            bulk_write.commit(staged)
        else:
            bulk_write.abort()  # an empty batch is no version

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove everything of this batch, even if some of its tasks still run."""
        for message in messages:
            if isinstance(message, StreamMessage):
                message.planned.bulk_write.abort()
                return
