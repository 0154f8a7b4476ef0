"""`df.writeStream`: each micro-batch is one version of the table, committed exactly once.

    driver, planning    StreamTableWriter with a BulkWrite      made anew for every batch
    tasks               write → StreamMessage                   knows the query and the batch
    driver, commit      messages → one version of the table     another process, another instance
    driver, abort       the staging folder goes

Exactly once: the version of the table names the query and the number of the batch that it is of. A
batch that Spark runs again, because it was killed before it noted the commit, is not committed
again. Only tasks can ask Spark for the query's id, and the instance that commits is not the one
that planned; so both travel in the messages.

What a killed driver has staged goes when the query is started again, where it has the option
`checkpointLocation`; otherwise, and for good measure, with the next sweep.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from kudulite import BulkWrite, StagedTask

QUERY_PROPERTY, BATCH_PROPERTY = "sql.streaming.queryId", "streaming.sql.batchId"

logger = logging.getLogger("kudulite.spark")


@dataclass(frozen=True)
class StreamMessage(WriterCommitMessage):
    """What one task attempt has staged; the write knows for which batch of which query."""

    bulk_write: BulkWrite
    application_id: str
    batch_id: int
    staged: StagedTask


class StreamTableWriter(DataSourceStreamArrowWriter):
    """Carries a planned write to the tasks; commits what their messages say."""

    def __init__(
        self,
        bulk_write: BulkWrite | None,
        *,
        path: str,
        columns: Mapping[str, str],
        is_overwrite: bool,
        application_id: str | None,
    ) -> None:
        """`bulk_write` is None in the process that commits, `columns` are those of the DataFrame
        with their names in the table, `application_id` is the user's own."""
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
        """Publish a batch as one version of the table, or nothing where it was before."""
        found = [message for message in messages if isinstance(message, StreamMessage)]
        assert len(found) == len(messages) > 0, "Spark commits only when every task has succeeded"
        first = found[0]
        assert first.batch_id == batchId, f"tasks wrote batch {first.batch_id}, not {batchId}"
        staged = [message.staged for message in found]
        if first.bulk_write.is_committed:
            logger.warning(
                "batch %d of %s was committed to %s before; it is skipped",
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
        """Leave nothing of this batch, also when some of its tasks still run."""
        for message in messages:
            if isinstance(message, StreamMessage):
                message.bulk_write.abort()
                return
