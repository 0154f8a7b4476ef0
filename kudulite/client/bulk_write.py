"""A write in pieces, for those who spread it over processes: stage on workers, commit once.

    write = table.new_bulk_write(operation="upsert", columns=["id", "name"])
    parts = [write.stage(batches, task_index=i) for i, batches in enumerate(tasks)]
    result = write.commit(parts)

Every object here is picklable. Any number of attempts of a task may stage; only those handed to
`commit` count. `abort` leaves nothing behind.

Small Arrow batches: a few rows of one tablet are written through its write-ahead log.

    up to `small_write_rows_max` rows, and up to 64 MiB,
    all of one tablet                                       one record in the tablet's log
    everything else                                         a bulk write

Either way the write is all or nothing, durable and visible when it returns. A bulk write makes new
files for each tablet that it touches. A record costs one append and one fsync, but is atomic in one
tablet only.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kudulite.client.lookup import joined_batches
from kudulite.errors import ConflictError, KuduliteError, OptionError, RowError, StorageError
from kudulite.model.hybrid_time import Timestamp
from kudulite.model.schema import Schema
from kudulite.model.types import is_unicode
from kudulite.table.environment import default_environment
from kudulite.table.metrics import SLOW_COMMIT_SECONDS, warn_of_slow
from kudulite.table.open_writes import (
    base_of,
    begin_write,
    check_write_is_open,
    end_write,
    of_open_write,
)
from kudulite.table.table_store import TableStore
from kudulite.table.write_state import StagedTask, WriteState, columns_of, is_committed
from kudulite.tablet.operation import Operation, WriteSpec, raise_row_error
from kudulite.tablet.resolve import cells_set
from kudulite.tablet.row_effects import RowOperation, RowWriteResult, WriteCounts
from kudulite.upkeep.alter import alter_table
from kudulite.upkeep.garbage_collection import (
    VERSIONS_PER_COLLECTION,
    collect_aborted_write,
    collect_after_write,
)
from kudulite.upkeep.maintenance_schedule import maintain_soon
from kudulite.writes.commit import Commit, CommitResult, Reread
from kudulite.writes.row_write import RowWriter, altered_error
from kudulite.writes.stager import Stager

Batches = Iterable[pa.RecordBatch | pa.Table]
_SMALL_WRITE_BYTES_MAX = 64 << 20
# All rows of an operation that depend on the key's presence are refused for the same reason.
_KEY_REASONS = (RowError.REASON_ALREADY_PRESENT, RowError.REASON_NOT_FOUND)


@dataclass(frozen=True, kw_only=True)
class WriteResult(WriteCounts):
    """The outcome of a write: its row counts, and the `timestamp` to read it at.

    `skipped` is true for a write whose application version was committed before.
    """

    timestamp: Timestamp
    version: int
    skipped: bool = False


def check_application(table: str, application_id: object, version: Any) -> None:
    """Raise OptionError unless a text and a number below 2^63 name a version, or nothing does."""
    if application_id is None and version is None:
        return
    is_text = isinstance(application_id, str) and is_unicode(application_id)
    is_number = isinstance(version, int) and not isinstance(version, bool)
    if not is_text or not is_number or not -(1 << 63) <= version < 1 << 63:
        raise OptionError(
            f"table {table!r}: a write has an application_id, a text, and an application_version, a"
            f" whole number of 64 bits, or neither; found {application_id!r} and {version!r}"
        )


class BulkWrite:
    """One write to one table, all or nothing; made by `Table.new_bulk_write`."""

    def __init__(self, store: TableStore, state: WriteState, reread: Reread | None = None) -> None:
        self._store = store
        self._state = state
        self._reread = reread

    def __reduce__(self) -> tuple[Callable[..., BulkWrite], tuple[Path, float, WriteState]]:
        timeout = self._store.environment.lock_timeout_seconds
        return _opened_write, (self._store.folder, timeout, self._state)

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
        given = [batches] if isinstance(batches, pa.Table | pa.RecordBatch) else batches
        with of_open_write(self._store, self._state):
            stager = Stager(self._store, self._state, base_of(self._store, self._state))
            staged = stager.stage(given, task_index)
            try:
                check_write_is_open(self._store, self._state)
            except ConflictError:
                # Aborted meanwhile: the abort could not see all files of this task.
                collect_aborted_write(self._store, self._state.write_id)
                raise
            return staged

    def for_application(self, application_id: str, application_version: int) -> BulkWrite:
        """Return the write as that of an application's version, which is committed once only.

        For those who learn both when it has begun; see `Table.new_bulk_write`.
        """
        check_application(self._store.name, application_id, application_version)
        state = replace(
            self._state, application_id=application_id, application_version=application_version
        )
        return BulkWrite(self._store, state)

    def labelled(self, label: str) -> BulkWrite:
        """Return the write under another name in the list of versions than its operation's."""
        return BulkWrite(self._store, replace(self._state, label=label))

    def restoring(self) -> BulkWrite:
        """Return the write as one that brings rows back as they were: it sets all their cells."""
        spec = replace(self._state.spec, immutable_columns=(), brings_back=True)
        return BulkWrite(self._store, replace(self._state, spec=spec))

    def merging(self) -> BulkWrite:
        """Return the write, which has a `read_at`, as that of a MERGE.

        Its rows have no order. Those of a mixed write insert, update, update_ignore or
        delete_ignore; tasks resolve them, and no longer the commit. An insert of a key that was
        there at `read_at` is a RowError, even if the write deletes it, and so is a key that is
        inserted twice. Of a write with one operation, a row that is updated twice is a RowError.
        """
        spec = self._state.spec
        assert spec.read_at is not None
        return BulkWrite(self._store, replace(self._state, spec=replace(spec, is_merge=True)))

    def settled(self) -> BulkWrite:
        """Return the write on a version that has all rows of one moment, which is its `read_at`.

        This version is published for it. Raises ConflictError if the table was altered meanwhile.
        """
        begun = base_of(self._store, self._state)
        end_write(self._store, self._state)
        while True:
            base = alter_table(self._store, [])
            if base.schema != begun.schema or base.table_id != begun.table_id:
                raise altered_error(self._store.name)
            state = replace(
                self._state,
                base_version=base.version,
                base_crc32=base.file_crc32,
                spec=replace(self._state.spec, read_at=base.versions.timestamp),
            )
            if begin_write(self._store, state):
                return BulkWrite(self._store, state)

    def rereading(self, reread: Reread) -> BulkWrite:
        """Return the write, which is `settled`, as one that computes changed rows again.

        It has no conflicts with writes of rows. In this process only.
        """
        return BulkWrite(self._store, self._state, reread)

    @property
    def read_at(self) -> int | None:
        """The HybridTime of the rows that the write is computed from."""
        return self._state.spec.read_at

    @property
    def is_committed(self) -> bool:
        """Whether the write's application version, or a later one, is in the table by now."""
        return is_committed(self._state, self._store.newest())

    def commit(self, tasks: Sequence[StagedTask]) -> WriteResult:
        """Publish all tasks at one timestamp. On any error the table is as it was."""
        begin = time.perf_counter()
        with of_open_write(self._store, self._state):
            base = base_of(self._store, self._state)
            result = Commit(self._store, self._state, base, tasks, self._reread).run()
        self._count(result, time.perf_counter() - begin)
        with contextlib.suppress(StorageError):  # it is committed, whatever is left of it
            end_write(self._store, self._state)
        maintain_soon(self._store, {tablet_id for task in tasks for tablet_id in task.tablet_ids})
        if result.version % VERSIONS_PER_COLLECTION == 0:
            collect_after_write(self._store)
        return WriteResult(
            **vars(result.counts),
            timestamp=Timestamp(result.timestamp),
            version=result.version,
            skipped=result.is_skipped,
        )

    def _count(self, result: CommitResult, seconds: float) -> None:
        metrics, counts = self._store.metrics, result.counts
        metrics.bulk_writes += not result.is_skipped
        metrics.bulk_write_seconds += seconds
        metrics.rows_inserted += counts.inserted
        metrics.rows_updated += counts.updated
        metrics.rows_deleted += counts.deleted
        metrics.rows_ignored += counts.ignored
        if seconds > SLOW_COMMIT_SECONDS:
            work = f"commit of write {self._state.write_id} ({self._state.operation_name})"
            warn_of_slow(self._store.name, work, seconds)

    def abort(self) -> None:
        """Remove everything that was staged; safe to call at any time, by any process."""
        end_write(self._store, self._state)
        collect_aborted_write(self._store, self._state.write_id)


def _opened_write(folder: Path, lock_timeout_seconds: float, state: WriteState) -> BulkWrite:
    """Return a write that another process has begun."""
    environment = replace(default_environment(), lock_timeout_seconds=lock_timeout_seconds)
    store = TableStore(folder, environment)
    # It is mostly the version that the write began on, which is then read only once.
    with contextlib.suppress(KuduliteError):
        store.newest()
    return BulkWrite(store, state)


@dataclass(frozen=True)
class SmallWrite:
    """Writes batches of one operation if they are small enough."""

    store: TableStore
    operation: Operation
    names: Sequence[str]
    ignore_null: bool

    def write(self, batches: Batches) -> tuple[WriteResult | None, Batches]:
        """Return (result, batches); the result is None when the batches need a bulk write.

        Raises RowError and SchemaError as a bulk write does; the table is then as it was.
        """
        rows, batches = self._collect(batches)
        if rows is None:
            return None, batches
        manifest = self.store.newest()
        spec = WriteSpec.build(
            manifest.schema,
            list(self.names),
            table=self.store.name,
            operation=self.operation,
            ignore_null=self.ignore_null,
        )
        stager = Stager(self.store, WriteState("", manifest.version, "", spec), manifest)
        checked = stager.checked_rows(columns_of(rows))
        codes = np.full(rows.num_rows, int(self.operation), dtype=np.uint8)
        stager.check_nulls(checked, codes)
        if self.operation.is_insert and manifest.schema.auto_incrementing is not None:
            checked = checked.drop_columns([manifest.schema.auto_incrementing])
        names = [name for name in manifest.schema.key_names if name in checked.column_names]
        keys = {name: checked.column(name).chunk(0) for name in names}
        index = manifest.partition.tablet_index(keys, rows.num_rows)
        if index[0] < 0 or (index != index[0]).any():  # of no tablet, or of several
            return None, [rows]
        operations = self._operations(manifest.schema, checked, spec)
        result = RowWriter(self.store).write(operations, is_atomic=True)
        self._raise_failures(manifest.schema, checked, result)
        if result.failures:
            return None, [rows]
        version = self.store.newest().version
        moment = Timestamp(result.timestamp)
        return WriteResult(**vars(result.counts), timestamp=moment, version=version), []

    def _collect(self, batches: Batches) -> tuple[pa.Table | None, Batches]:
        """Return all rows and no batches, or None and all batches when they exceed the limit."""
        limit = self.store.environment.small_write_rows_max
        taken: list[pa.RecordBatch | pa.Table] = []
        count = size = 0
        waiting = iter(batches)
        for batch in waiting:
            taken.append(batch)
            count += batch.num_rows
            size += batch.nbytes
            if count > limit or size > _SMALL_WRITE_BYTES_MAX:
                return None, itertools.chain(taken, waiting)
        if not count:
            return None, taken
        return joined_batches(taken), ()

    def _operations(self, schema: Schema, rows: pa.Table, spec: WriteSpec) -> list[RowOperation]:
        keys = [name for name in schema.key_names if name in rows.column_names]
        names = [*keys, *spec.value_columns]
        columns = [_cells(rows.column(name), schema, name) for name in names]
        found = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        for name in spec.value_columns if spec.ignore_null or spec.partial_columns else ():
            for number in np.flatnonzero(~cells_set(rows, name, spec)).tolist():
                del found[number][name]
        return [RowOperation(self.operation, row) for row in found]

    def _raise_failures(self, schema: Schema, rows: pa.Table, result: RowWriteResult) -> None:
        """Raise the error of a bulk write, if its error would be the same.

        Other failures are left to a bulk write. It checks the combined rows of each key, so a value
        that is missing in one row may be set by a later one.
        """
        failures = result.failures
        for failure in failures:
            if failure.error is not None:
                raise failure.error
        if failures and all(failure.reason in _KEY_REASONS for failure in failures):
            refused = np.array([failure.row for failure in failures])
            reason = failures[0].reason
            raise_row_error(self.store.name, self.operation.label, reason, rows, schema, refused)


def _cells(column: pa.ChunkedArray, schema: Schema, name: str) -> list[object]:
    """Return a column's cells as Python values; moments as whole microseconds."""
    if schema.column(name).type.is_timestamp:  # Python's datetime ends with the year 9999
        column = column.cast(pa.int64())
    cells: list[object] = column.to_pylist()
    return cells
