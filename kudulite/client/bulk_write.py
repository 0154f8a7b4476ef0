"""A write in pieces, for those who spread it over processes: stage on workers, commit once.

    write = table.new_bulk_write(operation="upsert", columns=["id", "name"])
    parts = [write.stage(batches, task_index=i) for i, batches in enumerate(tasks)]
    result = write.commit(parts)

Every object here is picklable. Any number of attempts of a task may stage; only those handed to
`commit` count. `abort` leaves nothing behind. A write that was not pickled ends with its process.

A task of few rows writes no file: it hands over its rows. If all tasks together have few rows, the
write is a commit in the table's log.

    up to `small_write_rows_max` rows, and up to 8 MiB    one commit in the table's log
    everything else                                       a version of the table, with files

Either way the write is all or nothing, durable and visible when it returns. A bulk write makes new
files for each rowset that it touches. A commit in the log costs one append and one fsync.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from kudulite.chain.manifest import Manifest
from kudulite.client.write_plan import check_application
from kudulite.errors import KuduliteError, StorageError
from kudulite.model.hybrid_time import Timestamp
from kudulite.model.schema import Schema
from kudulite.storage.address import StorageAddress
from kudulite.storage.new_files import NewFiles
from kudulite.table.environment import environment_at
from kudulite.table.metrics import SLOW_COMMIT_SECONDS, warn_of_slow
from kudulite.table.open_writes import (
    OpenWrite,
    base_of,
    check_write_is_open,
    is_write_open,
    of_open_write,
)
from kudulite.table.present import listing
from kudulite.table.table_store import TableStore
from kudulite.table.write_state import (
    StagedTask,
    WriteState,
    check_tasks,
    is_committed,
    joined_rows,
)
from kudulite.tablet.row_effects import WriteCounts
from kudulite.upkeep.alter import alter_table
from kudulite.upkeep.garbage_collection import (
    VERSIONS_PER_COLLECTION,
    collect_after_write,
    collect_ended_writes,
)
from kudulite.upkeep.maintenance_schedule import maintain_soon
from kudulite.writes.batch_commit import BatchRequest
from kudulite.writes.commit import Commit, CommitResult, Reread
from kudulite.writes.log_commit import write_in_turn
from kudulite.writes.row_write import altered_error
from kudulite.writes.stager import Stager

Batches = Iterable[pa.RecordBatch | pa.Table]


@dataclass(frozen=True, kw_only=True)
class WriteResult(WriteCounts):
    """The outcome of a write: its row counts, and the `timestamp` to read it at.

    `version` is the newest version of the table then; a write through the log makes none. `skipped`
    is true for a write whose application version was committed before.
    """

    timestamp: Timestamp
    version: int
    skipped: bool = False

    @staticmethod
    def of(result: CommitResult) -> WriteResult:
        """Return the outcome of a commit."""
        return WriteResult(
            **vars(result.counts),
            timestamp=Timestamp(result.timestamp),
            version=result.version,
            skipped=result.is_skipped,
        )


class BulkWrite:
    """One write to one table, all or nothing; made by `Table.new_bulk_write`."""

    def __init__(
        self,
        store: TableStore,
        state: WriteState,
        opened: OpenWrite,
        reread: Reread | None = None,
    ) -> None:
        self._store = store
        self._state = state
        self._open = opened
        self._reread = reread
        self._written: set[Path] = set()  # files of tasks that were staged here

    def _with(self, state: WriteState) -> BulkWrite:
        return BulkWrite(self._store, state, self._open)

    def __reduce__(self) -> tuple[Callable[..., BulkWrite], tuple[Any, ...]]:
        self._open.leave_to_others()
        timeout = self._store.environment.lock_timeout_seconds
        address = self._store.storage.address
        return _opened_write, (address, self._store.folder, timeout, self._state)

    def __repr__(self) -> str:
        return f"<kudulite bulk write {self._state.write_id} to table {self._store.name!r}>"

    @property
    def schema(self) -> Schema:
        """The table's schema."""
        return base_of(self._store, self._state).schema

    def stage(self, batches: Batches, task_index: int = 0) -> StagedTask:
        """Prepare the rows of one task; nothing is visible.

        Rows of a lower `task_index` count as earlier. Of a write whose application version was
        committed before they are read and left. Raises RowError for rows that the table
        cannot take, SchemaError for columns that do not fit, ConflictError after an abort.
        """
        return self._staged(batches, task_index, is_checked=True)

    def run(self, batches: Batches) -> WriteResult:
        """Stage the rows of the whole write and commit them. Raises as both do."""
        return self.commit([self._staged(batches, 0, is_checked=False)])

    def _staged(self, batches: Batches, task_index: int, *, is_checked: bool) -> StagedTask:
        """Prepare rows; unless a commit follows, check that the write was not aborted meanwhile."""
        given = [batches] if isinstance(batches, pa.Table | pa.RecordBatch) else batches
        with of_open_write(self._store, self._state):
            files = NewFiles(self._store.storage, self._state.write_id)
            base = base_of(self._store, self._state)
            stager = Stager(self._store, self._state, base, files)
            rows_max = self._store.environment.small_write_rows_max
            try:
                staged = stager.stage(given, task_index, rows_max if self._reread is None else None)
                if is_checked:
                    check_write_is_open(self._store, self._state.write_id)
            except BaseException:
                # An abort meanwhile could not see all files of this task.
                with contextlib.suppress(KuduliteError):
                    if not is_write_open(self._store, self._state.write_id):
                        self._remove_files()
                raise
            self._written.update(files.made)
            return staged

    def for_application(self, application_id: str, application_version: int) -> BulkWrite:
        """Return the write as that of an application's version, which is committed once only.

        For those who learn both when it has begun; see `Table.new_bulk_write`.
        """
        check_application(self._store.name, application_id, application_version)
        state = replace(
            self._state, application_id=application_id, application_version=application_version
        )
        return self._with(state)

    def changed(self, change: Callable[[WriteState], WriteState]) -> BulkWrite:
        """Return the write with another state."""
        return self._with(change(self._state))

    def labelled(self, label: str) -> BulkWrite:
        """Return the write under another name in the list of versions than its operation's."""
        return self._with(self._state.labelled(label))

    def restoring(self) -> BulkWrite:
        """Return the write as one that brings rows back as they were: it sets all their cells."""
        return self._with(self._state.restoring())

    def merging(self) -> BulkWrite:
        """Return the write, which has a `read_at`, as that of a MERGE.

        Its rows have no order. Those of a mixed write insert, update, update_ignore or
        delete_ignore; tasks resolve them, and no longer the commit. An insert of a key that was
        there at `read_at` is a RowError, even if the write deletes it, and so is a key that is
        inserted twice. Of a write with one operation, a row that is updated twice is a RowError.
        """
        return self._with(self._state.merging())

    def settled(self) -> BulkWrite:
        """Return the write on a version that has all rows of one moment, which is its `read_at`.

        This version is published for it. Raises ConflictError if the table was altered meanwhile.
        """
        begun = base_of(self._store, self._state)
        base = alter_table(self._store, [])
        if base.schema != begun.schema or base.table_id != begun.table_id:
            raise altered_error(self._store.name)
        state = replace(
            self._state,
            base_version=base.version,
            base_crc32=base.file_crc32,
            spec=replace(self._state.spec, read_at=base.versions.timestamp),
        )
        return self._with(state)

    def rereading(self, reread: Reread) -> BulkWrite:
        """Return the write, which is `settled`, as one that computes changed rows again.

        It has no conflicts with writes of rows. In this process only.
        """
        return BulkWrite(self._store, self._state, self._open, reread)

    @property
    def read_at(self) -> int | None:
        """The HybridTime of the rows that the write is computed from."""
        return self._state.spec.read_at

    @property
    def is_committed(self) -> bool:
        """Whether the write's application version, or a later one, is in the table by now."""
        return is_committed(self._state, listing(self._store))

    def commit(self, tasks: Sequence[StagedTask]) -> WriteResult:
        """Publish all tasks at one timestamp.

        On an error the table is as it was, unless a StorageError says that the version can be read.
        """
        with of_open_write(self._store, self._state):
            base = base_of(self._store, self._state)
            check_tasks(self._store.name, self._state, tasks)
            rows_max = self._store.environment.small_write_rows_max
            checked = None if self._reread is not None else joined_rows(tasks, rows_max)
            if checked is not None:
                result = write_few(self._store, self._state, base, checked, has_record=True)
                if result is not None:
                    self._open.end()
                    return result
            return self._commit_files(base, tasks)

    def _commit_files(self, base: Manifest, tasks: Sequence[StagedTask]) -> WriteResult:
        begin = time.perf_counter()
        commit = Commit(self._store, self._state, base, tasks, self._reread, self._written)
        result = commit.run()
        seconds = time.perf_counter() - begin
        count_write(self._store, self._state, result, seconds)
        self._store.metrics.bulk_writes += not result.is_skipped
        self._store.metrics.bulk_write_seconds += seconds
        self._open.end()
        with contextlib.suppress(StorageError):  # it is committed, whatever is left of it
            for rows in (rows for task in commit.tasks for rows in task.operations):
                folder = self._store.tablet_folder(rows.tablet_id)
                self._store.storage.delete(folder / rows.ref.name)
        tablet_ids = {tablet_id for task in commit.tasks for tablet_id in task.tablet_ids}
        maintain_soon(self._store, tablet_ids)
        if result.version % VERSIONS_PER_COLLECTION == 0:
            collect_after_write(self._store)
        return WriteResult.of(result)

    def abort(self) -> None:
        """Remove everything that was staged; safe to call at any time, by any process."""
        self._open.abort()
        self._remove_files()

    def _remove_files(self) -> None:
        # A version that has them was published on the one that the write began on, or later.
        since = self._state.base_version + 1
        collect_ended_writes(self._store, [self._state.write_id], since)


def _opened_write(
    address: StorageAddress, folder: Path, lock_timeout_seconds: float, state: WriteState
) -> BulkWrite:
    """Return a write that another process has begun; the one that commits it maintains the table.

    Nobody else may: the table of a Spark job has no process that stays.
    """
    environment = replace(
        environment_at(address), lock_timeout_seconds=lock_timeout_seconds, is_maintaining=True
    )
    store = TableStore(folder, environment)
    # It is mostly the version that the write began on, which is then read only once.
    with contextlib.suppress(KuduliteError):
        store.newest()
    return BulkWrite(store, state, OpenWrite(store, state.write_id, state.table_id))


def write_few(
    store: TableStore,
    state: WriteState,
    base: Manifest,
    checked: pa.Table,
    has_record: bool = False,
    reread: Reread | None = None,
) -> WriteResult | None:
    """Write few rows through the log; None where they need a bulk write. Raises as a commit."""
    request = BatchRequest(store, state, base, checked, has_record, reread)
    begin = time.perf_counter()
    write_in_turn(store, request, store.environment.lock_timeout_seconds)
    error = request.failure(store.name)
    if error is not None:
        raise error
    if request.result is None:
        return None
    count_write(store, state, request.result, time.perf_counter() - begin)
    return WriteResult.of(request.result)


def count_write(store: TableStore, state: WriteState, result: CommitResult, seconds: float) -> None:
    """Count a commit in the metrics of its table."""
    metrics, counts = store.metrics, result.counts
    metrics.rows_inserted += counts.inserted
    metrics.rows_updated += counts.updated
    metrics.rows_deleted += counts.deleted
    metrics.rows_ignored += counts.ignored
    if seconds > SLOW_COMMIT_SECONDS:
        work = f"commit of write {state.write_id} ({state.operation_name})"
        warn_of_slow(store.name, work, seconds)
