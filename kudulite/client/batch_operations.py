"""Writes of whole batches: eight operations, mixed batches, and bulk writes staged in pieces.

    table.upsert(batch)                      all rows or none, in one version
    table.apply(changes)                     an operation in each row
    table.new_bulk_write("insert")           staged in pieces by several tasks, committed once

A write of few rows without options is appended to the log, as rows of a session are. All others are
staged as files and committed.

Threads: any number may write to one table; each write is a transaction of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from inspect import getdoc
from typing import Never, TypeVar, Unpack

from kudulite.client.bulk_write import Batches, BulkWrite, SmallWrite, WriteResult
from kudulite.client.lookup import arrow_batches
from kudulite.errors import OptionError
from kudulite.model.aliases import Moment, Rows, WriteOptions
from kudulite.table.garbage_collection import collect_staging_garbage
from kudulite.table.history import choose_snapshot
from kudulite.table.stage import WriteState, begin_write
from kudulite.table.table_store import TableStore
from kudulite.table.tablet_memory import flush_table
from kudulite.tablet.operation import WriteSpec, parse_operation

WRITE_OPTIONS = tuple(sorted(WriteOptions.__annotations__))
Write = TypeVar("Write", bound=Callable[..., object])


def _with_write_options(write: Write) -> Write:
    """Explain the options that all writes share in the docstring, which `help` shows."""
    write.__doc__ = f"{getdoc(write)}\n\n{getdoc(WriteOptions)}"
    return write


class BatchOperations:
    """The part of a table that writes batches; mixed into `Table`."""

    _store: TableStore

    @_with_write_options
    def insert(self, data: Rows, **options: Unpack[WriteOptions]) -> WriteResult:
        """Add rows; RowError if any key is there already."""
        return self._write("insert", data, options)

    @_with_write_options
    def insert_ignore(self, data: Rows, **options: Unpack[WriteOptions]) -> WriteResult:
        """Add rows; those whose key is there already are ignored."""
        return self._write("insert_ignore", data, options)

    @_with_write_options
    def upsert(self, data: Rows, **options: Unpack[WriteOptions]) -> WriteResult:
        """Add rows, or set the given columns where the key is there."""
        return self._write("upsert", data, options)

    @_with_write_options
    def upsert_ignore(self, data: Rows, **options: Unpack[WriteOptions]) -> WriteResult:
        """The same as `upsert`: kudulite has no immutable columns to ignore."""
        return self._write("upsert_ignore", data, options)

    @_with_write_options
    def update(self, data: Rows, **options: Unpack[WriteOptions]) -> WriteResult:
        """Set the given columns; RowError if any key is absent."""
        return self._write("update", data, options)

    @_with_write_options
    def update_ignore(self, data: Rows, **options: Unpack[WriteOptions]) -> WriteResult:
        """Set the given columns; rows whose key is absent are ignored."""
        return self._write("update_ignore", data, options)

    @_with_write_options
    def delete(self, data: Rows, **options: Unpack[WriteOptions]) -> WriteResult:
        """Delete by the key columns of `data`; RowError if any key is absent."""
        return self._write("delete", data, options)

    @_with_write_options
    def delete_ignore(self, data: Rows, **options: Unpack[WriteOptions]) -> WriteResult:
        """Delete by the key columns of `data`; absent keys are ignored."""
        return self._write("delete_ignore", data, options)

    @_with_write_options
    def apply(
        self,
        data: Rows,
        operation_column: str = "op",
        ordering_column: str | None = None,
        *,
        ignore_null: bool = False,
        overwrite: bool = False,
        application_id: str | None = None,
        application_version: int | None = None,
        read_at: Moment | None = None,
        **unknown: Never,
    ) -> WriteResult:
        """Apply a mixed batch, e.g. of change capture, in one commit.

        `operation_column` holds I, U, D or operation names. Rows of a key apply in batch order,
        unless there is an `ordering_column`.
        """
        _check_options(self._store.name, unknown)
        names, batches = arrow_batches(data, self._store.newest().schema, self._store.name)
        write = self.new_bulk_write(
            columns=[name for name in names if name != operation_column],
            operation_column=operation_column,
            ordering_column=ordering_column,
            ignore_null=ignore_null,
            overwrite=overwrite,
            application_id=application_id,
            application_version=application_version,
            read_at=read_at,
        )
        return self._run(write, batches)

    @_with_write_options
    def overwrite(self, data: Rows, **options: Unpack[WriteOptions]) -> WriteResult:
        """Replace all rows in one version; the past stays readable."""
        return self._write("upsert", data, {**options, "overwrite": True})

    def truncate(self) -> WriteResult:
        """Delete all rows in one version; the past stays readable."""
        return self.overwrite(self._store.newest().schema.result_schema().empty_table())

    @_with_write_options
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
        read_at: Moment | None = None,
        owner: str | None = None,
    ) -> BulkWrite:
        """Begin a write that is staged in pieces and committed once; see `BulkWrite`.

        `columns` are those of the batches (default: all). `operation_column` is explained in
        `apply`. An `owner` has one write at a time: beginning one removes what an earlier one has
        staged and not committed. Raises OptionError and SchemaError before anything is written.
        """
        collect_staging_garbage(self._store)
        if read_at is not None:
            read_at = choose_snapshot(self._store, read_at, may_be_ancient=True)
        while True:
            flush_table(self._store)  # so that the pinned version has all rows
            manifest = self._store.newest()
            spec = WriteSpec.build(
                manifest.schema,
                list(manifest.schema.names if columns is None else columns),
                table=self._store.name,
                operation=None if operation_column is not None else parse_operation(operation),
                ignore_null=ignore_null,
                ordering_column=ordering_column,
                is_overwrite=overwrite,
                read_at=read_at,
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
                return BulkWrite(self._store, state)

    def _write(self, operation: str, data: Rows, options: WriteOptions) -> WriteResult:
        _check_options(self._store.name, options)
        names, batches = arrow_batches(data, self._store.newest().schema, self._store.name)
        if options.keys() <= {"ignore_null"}:
            kind = parse_operation(operation)
            small = SmallWrite(self._store, kind, names, options.get("ignore_null", False))
            result, batches = small.write(batches)
            if result is not None:
                return result
        return self._run(self.new_bulk_write(operation, columns=names, **options), batches)

    def _run(self, write: BulkWrite, batches: Batches) -> WriteResult:
        try:
            return write.commit([write.stage(batches)])
        except BaseException:
            write.abort()
            raise


def _check_options(table: str, options: Mapping[str, object]) -> None:
    """Raise OptionError for an option that no write has."""
    for name in options:
        if name not in WRITE_OPTIONS:
            raise OptionError(
                f"table {table!r}: unknown option {name!r} of a write; known:"
                f" {', '.join(WRITE_OPTIONS)}"
            )
