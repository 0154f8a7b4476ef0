"""Writing: each task stages its rows, the commit publishes all of them at once.

    planner: checked options + schema → TableWriter with a BulkWrite (may make the table)
    task:    TableWriter.write → StagedMessage      any number of attempts, invisible
    commit:  the messages of the attempts that won → one version of the table
    abort:   the staging folder goes, and so does a table made by this very write

Planner, tasks and commit are different processes: what travels is the BulkWrite, a value.

Left out: Spark cannot be asked to route rows, so `repartition=true` cannot do so from here. The
result of a write is the same with and without; see `kudulite_spark.repartition_for`, which routes.
With the option set, the commit says in the log where one tablet's rows came from several tasks.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from kudulite import BulkWrite, StagedTask
from kudulite.errors import ConflictError, TableNotFoundError
from kudulite_spark.table_path import catalog_of

logger = logging.getLogger("kudulite.spark")


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """What one task attempt has staged."""

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
        """`columns` are those of the DataFrame that are written, each with its name in the table,
        `created_version` is the version of a table that this write made; `expects_routed` is the
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
        """Publish what the tasks staged as one version of the table."""
        staged = [message.staged for message in messages if isinstance(message, StagedMessage)]
        assert len(staged) == len(messages), "Spark commits only when every task has succeeded"
        if self._expects_routed:
            self._report_scattered(staged)
        self._bulk_write.commit(staged)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave nothing of this write, also when some of its tasks still run."""
        self._bulk_write.abort()
        if self._created_version is not None:
            self._drop_created()

    def _drop_created(self) -> None:
        client, name = catalog_of(self._path)
        try:
            client.delete_table(name, if_version=self._created_version)
        except ConflictError:
            logger.info("%s was made by a write that failed; another one uses it", self._path)
        except TableNotFoundError:
            pass  # an earlier call of abort was here

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
