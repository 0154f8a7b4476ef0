"""Writing: each task stages its rows, the commit publishes all of them at once.

    planner: checked options + schema → writer with a BulkWrite (may make the table)
    task:    write() → a message with the staged files    any number of attempts, invisible
    commit:  the messages of the attempts that won → one version of the table
    abort:   removes the staging folder, and a table that this very write made

Planner, tasks and commit are different processes. Each gets the BulkWrite, a picklable value.

`TableWriter` writes a DataFrame. Spark cannot be asked to route rows, so `repartition=true` has no
effect on the tasks: the commit logs a warning if one tablet's rows came from several tasks. See
`kudulite_spark.repartition_for`, which routes. The rows of the table are the same either way.

`StreamTableWriter` writes each micro-batch of a stream as one version, **exactly once**. The
version names the query and the number of its batch. Spark runs a batch again if it was killed
before it logged the commit; that batch is then skipped. Only tasks can ask Spark for the query's
id, and the instance that commits is not the one that planned. Therefore the messages contain the id
and the BulkWrite.

Staged files of a killed driver are removed when the query is started again, if the query has the
option `checkpointLocation`, and otherwise by a later garbage collection.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from kudulite import BulkWrite, StagedTask
from kudulite.errors import ConflictError, TableNotFoundError
from kudulite_spark.options import catalog_of

logger = logging.getLogger("kudulite.spark")

QUERY_PROPERTY, BATCH_PROPERTY = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """The files that one task attempt has staged."""

    staged: StagedTask


class TableWriter(DataSourceArrowWriter):
    """Carries a planned write from the planner to the tasks and to the commit."""

    def __init__(
        self,
        bulk_write: BulkWrite,
        *,
        path: str,
        columns: Mapping[str, str],
        created_version: int | None,
        expects_routed: bool,
    ) -> None:
        """`columns` are the DataFrame's columns that are written, each with its name in the table.
        `created_version` is the version of a table that this write made. `expects_routed` is the
        option `repartition`."""
        self._bulk_write = bulk_write
        self._path = path
        self._columns = dict(columns)
        self._created_version = created_version
        self._expects_routed = expects_routed

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        context = TaskContext.get()
        assert context is not None
        own, names = list(self._columns), list(self._columns.values())
        batches = (batch.select(own).rename_columns(names) for batch in iterator)
        return StagedMessage(self._bulk_write.stage(batches, context.partitionId()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the staged rows as one version of the table."""
        staged = [message.staged for message in messages if isinstance(message, StagedMessage)]
        assert len(staged) == len(messages), "Spark commits only when every task has succeeded"
        if self._expects_routed:
            self._report_scattered(staged)
        self._bulk_write.commit(staged)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove everything of this write, even if some of its tasks still run."""
        self._bulk_write.abort()
        if self._created_version is not None:
            self._drop_created()

    def _drop_created(self) -> None:
        client, name = catalog_of(self._path)
        try:
            client.delete_table(name, if_version=self._created_version)
        except ConflictError:
            logger.info("%s was made by a write that failed; another write uses it", self._path)
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
                self._path,
            )


@dataclass(frozen=True)
class StreamMessage(WriterCommitMessage):
    """The files that one task attempt has staged, and the write of its query and batch."""

    bulk_write: BulkWrite
    application_id: str
    batch_id: int
    staged: StagedTask


class StreamTableWriter(DataSourceStreamArrowWriter):
    """Carries a planned write to the tasks, and commits the writes of their messages."""

    def __init__(
        self,
        bulk_write: BulkWrite | None,
        *,
        path: str,
        columns: Mapping[str, str],
        is_overwrite: bool,
        application_id: str | None,
    ) -> None:
        """`bulk_write` is None in the process that commits. `columns` are the DataFrame's, with
        their names in the table. `application_id` is the user's option."""
        self._bulk_write = bulk_write
        self._path = path
        self._columns = dict(columns)
        self._is_overwrite = is_overwrite
        self._application_id = application_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        context = TaskContext.get()
        assert context is not None and self._bulk_write is not None
        query, batch = (context.getLocalProperty(n) for n in (QUERY_PROPERTY, BATCH_PROPERTY))
        assert query is not None and batch is not None, "Spark names both in tasks of a stream"
        given, own = list(self._columns), list(self._columns.values())
        batches = (found.select(given).rename_columns(own) for found in iterator)
        application_id, batch_id = self._application_id or query, int(batch)
        write = self._bulk_write.for_application(application_id, batch_id)
        staged = write.stage(batches, context.partitionId())
        return StreamMessage(write, application_id, batch_id, staged)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish a batch as one version of the table, unless it was committed before."""
        found = [message for message in messages if isinstance(message, StreamMessage)]
        assert len(found) == len(messages) > 0, "Spark commits only when every task has succeeded"
        first = found[0]
        assert first.batch_id == batchId, f"tasks wrote batch {first.batch_id}, not {batchId}"
        staged = [message.staged for message in found]
        if first.bulk_write.is_committed:
            logger.warning(
                "batch %d of %s is skipped: it was committed to %s before",
                batchId,
                first.application_id,
                self._path,
            )
            first.bulk_write.abort()
        elif self._is_overwrite or any(task.tablet_ids for task in staged):
            first.bulk_write.commit(staged)
        else:
            first.bulk_write.abort()  # an empty batch is no version

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove everything of this batch, even if some of its tasks still run."""
        for message in messages:
            if isinstance(message, StreamMessage):
                message.bulk_write.abort()
                return
