"""Table: rows by primary key; whole batches in, scans and lookups out.

    table.upsert(batch)                      one of eight operations, all rows or none
    table.scan(where=[table["a"] == 1])      as Arrow, at one moment
    table.get(key)                           one row by its primary key

Threads: any number may use one `Table`; each write is a transaction of its own.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from kudulite.catalog.bulk_write import WriteState, begin_write
from kudulite.catalog.flush import flush_table
from kudulite.catalog.partition import PartitionSchema
from kudulite.catalog.read_request import ReadRequest
from kudulite.catalog.snapshot import choose_snapshot
from kudulite.catalog.sweep import sweep_staging
from kudulite.catalog.table_store import TableStore
from kudulite.client.arrow_input import arrow_batches
from kudulite.client.bulk_write import BulkWrite, WriteResult
from kudulite.client.kudu_table import KuduTable
from kudulite.client.lookup import KeyLookup
from kudulite.client.native_plan import (
    NATIVE_LIMITS,
    NativeFile,
    NativeLimits,
    NativePlan,
    plan_native,
)
from kudulite.client.row_operations import RowOperations
from kudulite.client.scan import Scan
from kudulite.client.scan_token import (
    ChangeToken,
    ScanToken,
    make_change_tokens,
    make_scan_tokens,
)
from kudulite.client.small_write import SmallWrite
from kudulite.client.table_copy import copy_with_past, empty_copy
from kudulite.client.table_history import TableHistory
from kudulite.client.table_name import move_table
from kudulite.client.table_purge import TablePurge
from kudulite.client.table_tags import TableTags
from kudulite.client.table_upkeep import TableUpkeep
from kudulite.errors import ColumnNotFoundError, OptionError
from kudulite.model.aliases import Moment
from kudulite.model.predicate import ColumnExpression, Predicate
from kudulite.model.schema import Schema
from kudulite.tablet.operation import WriteSpec, parse_operation

WRITE_OPTIONS = (
    "application_id",
    "application_version",
    "ignore_null",
    "ordering_column",
    "overwrite",
)


class Table(
    RowOperations,
    TableHistory,
    TableUpkeep,
    TableTags,
    TablePurge,
    KuduTable,
):
    """One table; made by `Client.table`, `Client.create_table` and `open_table`."""

    def __init__(self, store: TableStore) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"<kudulite table {self.name!r} at {self.path}>"

    # -- what it is

    @property
    def name(self) -> str:
        """The table's name."""
        return self._store.name

    @property
    def path(self) -> Path:
        """The table's folder."""
        return self._store.folder

    @property
    def version(self) -> int:
        """The newest version's number; 1 is the empty table."""
        return self._store.newest().version

    @property
    def schema(self) -> Schema:
        """Columns, key columns first."""
        return self._store.newest().schema

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of a scan of all columns."""
        return pa.schema([field.remove_metadata() for field in self.schema.arrow_schema()])

    @property
    def partition_schema(self) -> PartitionSchema:
        """How rows are spread over tablets."""
        return self._store.newest().partition

    @property
    def tablet_count(self) -> int:
        """Number of tablets."""
        return len(self._store.newest().tablets)

    def __getitem__(self, column: str | int) -> ColumnExpression:
        """Return a column to compare: `table["host"] == "a"`. Raises ColumnNotFoundError."""
        schema = self.schema
        try:
            return ColumnExpression(schema[column].name)
        except ColumnNotFoundError:
            listed = ", ".join(schema.names)
            raise ColumnNotFoundError(
                f"table {self.name!r} has no column {column!r}; its columns are {listed}"
            ) from None

    # -- writing

    def insert(self, data: Any, **options: Any) -> WriteResult:
        """Add rows; RowError if any key is there already. For `options` see `new_bulk_write`."""
        return self._write("insert", data, options)

    def insert_ignore(self, data: Any, **options: Any) -> WriteResult:
        """Add rows; those whose key is there already are ignored."""
        return self._write("insert_ignore", data, options)

    def upsert(self, data: Any, **options: Any) -> WriteResult:
        """Add rows, or set the given columns where the key is there."""
        return self._write("upsert", data, options)

    def upsert_ignore(self, data: Any, **options: Any) -> WriteResult:
        """Do as `upsert`; there are no immutable columns to ignore."""
        return self._write("upsert_ignore", data, options)

    def update(self, data: Any, **options: Any) -> WriteResult:
        """Set the given columns; RowError if any key is absent."""
        return self._write("update", data, options)

    def update_ignore(self, data: Any, **options: Any) -> WriteResult:
        """Set the given columns; rows whose key is absent are ignored."""
        return self._write("update_ignore", data, options)

    def delete(self, data: Any, **options: Any) -> WriteResult:
        """Delete by the key columns of `data`; RowError if any key is absent."""
        return self._write("delete", data, options)

    def delete_ignore(self, data: Any, **options: Any) -> WriteResult:
        """Delete by the key columns of `data`; absent keys are ignored."""
        return self._write("delete_ignore", data, options)

    def apply(
        self,
        data: Any,
        operation_column: str = "op",
        ordering_column: str | None = None,
        **options: Any,
    ) -> WriteResult:
        """Apply a mixed batch, e.g. of change capture, in one commit.

        `operation_column` holds I, U, D or operation names. Rows of a key apply in batch order;
        with `ordering_column` only the one with the highest value counts, whatever came before it
        and comes later, deletes included (for the history retention): the same changes in any order
        and batches leave the same table. Insert and update both mean upsert then. Of equal values a
        delete wins, else the row with the greater cells.
        """
        _check_options(self.name, options)
        names, batches = arrow_batches(data, self.schema, self.name)
        write = self.new_bulk_write(
            columns=[name for name in names if name != operation_column],
            operation_column=operation_column,
            ordering_column=ordering_column,
            **options,
        )
        return self._run(write, batches)

    def overwrite(self, data: Any, **options: Any) -> WriteResult:
        """Replace all rows in one version; the past stays readable."""
        return self._write("upsert", data, {**options, "overwrite": True})

    def truncate(self) -> WriteResult:
        """Delete all rows in one version; the past stays readable."""
        return self.overwrite(self.arrow_schema.empty_table())

    def new_bulk_write(
        self,
        operation: str = "upsert",
        *,
        columns: Sequence[str] | None = None,
        operation_column: str | None = None,
        ordering_column: str | None = None,
        ignore_null: bool = False,
        overwrite: bool = False,
        application_id: str | None = None,
        application_version: int | None = None,
        owner: str | None = None,
    ) -> BulkWrite:
        """Begin a write that is staged in pieces and committed once; see `BulkWrite`.

        `columns` are those that the batches will have (default: all). `ignore_null` makes null mean
        "leave the cell alone". A write with an application id and version that was committed
        before, or an older one, is skipped. An `owner` has one write at a time: what an earlier one
        has staged and not committed goes. Raises OptionError and SchemaError before anything is
        written.
        """
        sweep_staging(self._store)
        while True:
            flush_table(self._store)  # so that the pinned version has all rows
            manifest = self._store.newest()
            spec = WriteSpec.build(
                manifest.schema,
                list(manifest.schema.names if columns is None else columns),
                table=self.name,
                operation=None if operation_column is not None else parse_operation(operation),
                ignore_null=ignore_null,
                ordering_column=ordering_column,
                is_overwrite=overwrite,
            )
            state = WriteState(
                table_id=manifest.table_id,
                base_version=manifest.version,
                base_crc32=manifest.file_crc32,
                write_id=uuid.uuid4().hex,
                spec=spec,
                operation_column=operation_column,
                application_id=application_id,
                application_version=application_version,
                owner=owner,
            )
            if begin_write(self._store, state):
                return BulkWrite(self.path, state, self._store.environment)

    def _write(self, operation: str, data: Any, options: dict[str, Any]) -> WriteResult:
        _check_options(self.name, options)
        names, batches = arrow_batches(data, self.schema, self.name)
        if options.keys() <= {"ignore_null"}:
            kind = parse_operation(operation)
            ignore_null = options.get("ignore_null", False)
            small = SmallWrite(self._store, kind, names, ignore_null)
            result, batches = small.write(batches)
            if result is not None:
                return result
        return self._run(self.new_bulk_write(operation, columns=names, **options), batches)

    def _run(self, write: BulkWrite, batches: Any) -> WriteResult:
        try:
            return write.commit([write.stage(batches)])
        except BaseException:
            write.abort()
            raise

    # -- reading

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Sequence[Predicate] | Predicate = (),
        at: Any = None,
        ordered: bool = False,
        limit: int | None = None,
    ) -> Scan:
        """Plan a scan at one moment: now, or `at` (datetime, ISO text, HybridTime; inclusive).

        A tagged moment is `at=table.tags["name"]`. `where` is a conjunction. `ordered` gives key
        order over all tablets. Raises ColumnNotFoundError, SchemaError, TimestampError.
        """
        request = ReadRequest.of(columns, where)
        return Scan(self._store, replace(request, at=at, ordered=ordered, limit=limit))

    def scan_tokens(
        self,
        columns: Sequence[str] | None = None,
        where: Sequence[Predicate] | Predicate = (),
        at: Any = None,
        ordered: bool = False,
        split_size_bytes: int | None = None,
    ) -> list[ScanToken]:
        """Plan a scan as picklable pieces, all at one moment; see `ScanToken`.

        Tablets larger than `split_size_bytes` (of the columns asked for, on disk) are cut by key
        range; `pack_tokens` puts small pieces together.
        """
        request = replace(ReadRequest.of(columns, where), at=at, ordered=ordered)
        return make_scan_tokens(self._store, request, split_size_bytes)

    def tokens(
        self, request: ReadRequest, split_size_bytes: int | None = None
    ) -> list[ScanToken] | list[ChangeToken]:
        """Return the change tokens of a request that has a start, the scan tokens of any other."""
        if request.start is None:
            return make_scan_tokens(self._store, request, split_size_bytes)
        return make_change_tokens(self._store, request, split_size_bytes)

    def native_plan(
        self,
        columns: Sequence[str] | None = None,
        where: Sequence[Predicate] | Predicate = (),
        at: Moment | None = None,
        is_readable: Callable[[NativeFile], bool] = lambda file: True,
        limits: NativeLimits = NATIVE_LIMITS,
    ) -> NativePlan:
        """Plan a read whose base data a Parquet reader of the caller reads itself.

        The reader has to apply `where` to the rows of the files; the plan only skips rowsets by it.
        Files that `is_readable` refuses are read through tokens. Raises as `scan` does.
        """
        request = replace(ReadRequest.of(columns, where), at=at)
        return plan_native(self._store, request, is_readable, limits)

    def get(self, key: Any, at: Any = None) -> dict[str, Any] | None:
        """Return one row by primary key (tuple, single value, or dict), or None."""
        return KeyLookup(self._store).get(key, at)

    def get_many(self, keys: Any, at: Any = None) -> pa.Table:
        """Return the rows of the keys that are there, in the order of `keys`."""
        return KeyLookup(self._store).get_many(keys, at)

    def current_timestamp(self) -> int:
        """Return the present, settled: it shows every commit so far and never any later one."""
        return choose_snapshot(self._store, None)

    def copy_to(self, path: str | os.PathLike[str], *, with_past: bool = True) -> int:
        """Copy the table to another folder, as it is at one moment, which is returned.

        The copy is a table of its own. With its past, every moment that can be read here can be
        read there; without, it has the rows only. Writers wait for a moment, while the version to
        copy is made. Raises TableExistsError, CorruptionError, StorageError.
        """
        if with_past:
            return copy_with_past(self._store, Path(path))
        hidden, target, moment = empty_copy(self._store, Path(path))
        write = Table(hidden).new_bulk_write("insert")
        write.commit([write.stage(self.scan(at=moment).to_batches())])
        move_table(hidden, target)
        return moment

    def tablet_index(self, keys: Any) -> pa.Array:
        """Return int32 per row of key columns: which tablet owns it, -1 where no range does."""
        return KeyLookup(self._store).tablet_index(keys)


def _check_options(table: str, options: Mapping[str, Any]) -> None:
    """Raise OptionError for an option that no write has."""
    for name in options:
        if name not in WRITE_OPTIONS:
            raise OptionError(
                f"table {table!r}: unknown option {name!r} of a write; known:"
                f" {', '.join(WRITE_OPTIONS)}"
            )
