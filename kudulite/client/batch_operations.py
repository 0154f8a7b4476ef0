"""Writes of whole batches: eight operations, mixed batches, and bulk writes staged in pieces.

    table.upsert(batch)                      all rows or none, in one version
    table.apply(changes)                     an operation in each row
    table.update(where=…, set={…})           rows that match a condition, by a scan inside
    table.restore(version=7)                 the rows of then, by the changes since
    table.new_bulk_write("insert")           staged in pieces by several tasks, committed once

A write of few rows without options is appended to the log, as rows of a session are. All others are
staged as files and committed.

**Threads**: any number may write to one table; each write is a transaction of its own.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import getdoc
from typing import Any, Never, TypeVar, Unpack, overload

import pyarrow as pa

from kudulite.chain.manifest import Manifest
from kudulite.chain.schema_history import moved_names
from kudulite.client.bulk_write import (
    Batches,
    BulkWrite,
    SmallWrite,
    WriteResult,
    check_application,
)
from kudulite.client.computed_rows import (
    MatchingRows,
    RestoredRows,
    undone,
    with_constants,
)
from kudulite.client.lookup import arrow_batches
from kudulite.client.row_operations import RowLayout
from kudulite.client.scan import Changes, RowScan
from kudulite.errors import ConflictError, OptionError
from kudulite.model.aliases import Moment, Rows, Where, WriteOptions
from kudulite.model.hybrid_time import Timestamp, format_timestamp
from kudulite.model.schema import Schema
from kudulite.model.types import is_unicode
from kudulite.shown.progress import Progress
from kudulite.table.memory_flush import flush_table
from kudulite.table.open_writes import begin_write
from kudulite.table.read_request import ReadRequest
from kudulite.table.snapshot import choose_snapshot
from kudulite.table.table_store import TableStore
from kudulite.table.tags import moment_or_version
from kudulite.table.write_state import WriteState
from kudulite.tablet.operation import WriteSpec, parse_operation
from kudulite.tablet.tablet_scan import CHANGE_COLUMNS, CHANGE_TYPE
from kudulite.upkeep.garbage_collection import end_abandoned_writes, end_writes_of_owner

WRITE_OPTIONS = tuple(sorted(WriteOptions.__annotations__))
CONDITION_OPTIONS = ("application_id", "application_version", "message")
MESSAGE_BYTES_MAX = 500
# How often a write by condition reads its rows, while other writers change them.
ATTEMPTS_MAX = 10
_PAUSE_SECONDS = 0.005
# Options of other stores, and the way here.
_ADD_COLUMN = "columns are added by client.new_table_alterer(table).add_column(…)"
_METHODS = "insert, upsert and overwrite are methods"
_PARTITIONS = "partitions are given to create_table"
_OTHER_WORDS = {
    **dict.fromkeys(("schema_mode", "mergeSchema", "merge_schema"), _ADD_COLUMN),
    **dict.fromkeys(("mode", "if_exists"), _METHODS),
    **dict.fromkeys(("partition_by", "partition_cols"), _PARTITIONS),
}
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
        """Add rows, or set the given columns where the key is there.

        RowError if that would set a cell of an immutable column, whatever the value.
        """
        return self._write("upsert", data, options)

    @_with_write_options
    def upsert_ignore(self, data: Rows, **options: Unpack[WriteOptions]) -> WriteResult:
        """Add rows, or set the given columns where the key is there, but no immutable ones."""
        return self._write("upsert_ignore", data, options)

    @overload
    def update(self, data: Rows, **options: Unpack[WriteOptions]) -> WriteResult: ...

    @overload
    def update(
        self,
        *,
        where: Where,
        set: Mapping[str, Any],
        application_id: str | None = None,
        application_version: int | None = None,
        message: str | None = None,
    ) -> WriteResult: ...

    @_with_write_options
    def update(
        self,
        data: Rows | None = None,
        *,
        where: Where | None = None,
        set: Mapping[str, Any] | None = None,
        **options: Unpack[WriteOptions],
    ) -> WriteResult:
        """Set the given columns of rows, or columns of all rows that match a condition.

            table.update(data)                                  rows with their keys
            table.update(where=table["v"] > 9, set={"v": 9})    constants, one for each column

        RowError if a key of `data` is absent. `where` is as in `scan`; `()` is every row. The rows
        are those that match at one moment, and they change in one version. If another writer
        changes rows meanwhile, those rows are read again. The options are then `application_id`,
        `application_version` and `message`. Raises OptionError, and SchemaError for a column or a
        value that does not fit.
        """
        if data is not None:
            self._check_no_condition("update", where=where, set=set)
            return self._write("update", data, options)
        if where is None or not set:
            raise OptionError(
                f"table {self._store.name!r}: update takes rows, or where=… together with"
                " set={column: value, …}"
            )
        return self._write_where("update", where, set, options)

    @_with_write_options
    def update_ignore(self, data: Rows, **options: Unpack[WriteOptions]) -> WriteResult:
        """Set the given columns, but no immutable ones; rows whose key is absent are ignored."""
        return self._write("update_ignore", data, options)

    @overload
    def delete(self, data: Rows, **options: Unpack[WriteOptions]) -> WriteResult: ...

    @overload
    def delete(
        self,
        *,
        where: Where,
        application_id: str | None = None,
        application_version: int | None = None,
        message: str | None = None,
    ) -> WriteResult: ...

    @_with_write_options
    def delete(
        self,
        data: Rows | None = None,
        *,
        where: Where | None = None,
        **options: Unpack[WriteOptions],
    ) -> WriteResult:
        """Delete rows by the key columns of `data`, or all rows that match a condition.

        RowError if a key of `data` is absent. `where`, its options and its errors are those of
        `update`; `table.delete(where=table["v"] > 9)`.
        """
        if data is not None:
            self._check_no_condition("delete", where=where)
            return self._write("delete", data, options)
        if where is None:
            raise OptionError(f"table {self._store.name!r}: delete takes rows, or where=…")
        return self._write_where("delete", where, {}, options)

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
        message: str | None = None,
        unchanged: str | None = None,
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
            message=message,
            unchanged=unchanged,
        )
        return self._run(write, batches)

    @_with_write_options
    def overwrite(self, data: Rows, **options: Unpack[WriteOptions]) -> WriteResult:
        """Replace all rows in one version; the past stays readable."""
        return self._write("upsert", data, {**options, "overwrite": True})

    def truncate(self) -> WriteResult:
        """Delete all rows in one version; the past stays readable."""
        write = self.new_bulk_write("upsert", overwrite=True)
        return self._run(write.labelled("truncate"), ())

    def restore(
        self,
        moment: Moment | None = None,
        *,
        version: int | None = None,
        message: str | None = None,
    ) -> WriteResult:
        """Make the rows of `moment` or of `version`, as in `scan`, the rows of now.

            table.restore(version=7)                   the rows of version 7; see `versions`
            table.restore(result.timestamp - 1)        undo a write and all that was written since

        This makes a new version, and the past stays readable, so a restore can be undone. The rows
        of a version are those that were there when it was published. Rows that sessions wrote
        after it are undone, too, even if no version follows it.

        The cost depends on the number of rows that changed since. Immutable cells become those of
        then, too. Columns and ranges stay as they are: a column that was added since has its
        default, and rows of a range that was dropped since are a RowError. If another writer
        changes rows meanwhile, those rows are read again. Raises TimestampError for a moment that
        cannot be read, NotFoundError for a version that is not listed, and OptionError unless one
        of both is given.
        """
        if moment is None and version is None:
            raise OptionError(
                f"table {self._store.name!r}: restore takes a moment, or version=… with a number"
                " that versions() lists"
            )
        start = moment_or_version(self._store, moment, version)

        def begun(columns: Sequence[str] | None, read_at: int | None) -> BulkWrite:
            return self.new_bulk_write(
                columns=columns, operation_column=CHANGE_TYPE, read_at=read_at, message=message
            )

        def as_restore(write: BulkWrite) -> BulkWrite:  # each row is that of another key
            return write.labelled("restore").restoring().merging()

        def attempt(is_settled: bool) -> WriteResult:
            write = begun(None, None).settled() if is_settled else None
            at = None if write is None else write.read_at
            changes = Changes(self._store, ReadRequest.of(start=start, at=at, images="both"))
            names = [name for name in changes.schema.names if name not in CHANGE_COLUMNS]
            batches = (undone(batch, names) for batch in changes.to_batches())
            found = (batch for batch in batches if batch.num_rows)
            if write is not None:
                again = RestoredRows(self._store, changes.start, names)
                return self._run(as_restore(write).rereading(again), found)
            first = next(found, None)
            if first is None:
                return self._unchanged(changes.end)
            write = as_restore(begun(names, changes.end))
            return self._run(write, itertools.chain((first,), found))

        return self._until_unchanged("restore", attempt)

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
        message: str | None = None,
        owner: str | None = None,
        unchanged: str | None = None,
    ) -> BulkWrite:
        """Begin a write that is staged in pieces and committed once; see `BulkWrite`.

        `columns` are those of the batches (default: all). `operation_column` is explained in
        `apply`. An `owner` has one write at a time: beginning one removes what an earlier one has
        staged and not committed. Raises OptionError and SchemaError before anything is written.
        """
        _check_message(self._store.name, message)
        _check_flags(self._store.name, ignore_null=ignore_null, overwrite=overwrite)
        _check_unchanged(self._store.name, unchanged)
        check_application(self._store.name, application_id, application_version)
        end_abandoned_writes(self._store)
        if owner is not None:
            end_writes_of_owner(self._store, owner)
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
            spec = replace(spec, skips_unchanged=unchanged is not None)
            self._check_not_moved(manifest, spec)
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
                message=message or "",
            )
            if begin_write(self._store, state):
                return BulkWrite(self._store, state)

    def _check_not_moved(self, manifest: Manifest, spec: WriteSpec) -> None:
        """Raise ConflictError for rows that were read when a name meant another column."""
        if spec.read_at is None or spec.read_at >= manifest.schema_since:
            return
        moved = moved_names(manifest.schema_at(spec.read_at), manifest.schema)
        for name in (*manifest.schema.key_names, *spec.value_columns):
            if name in moved:
                raise ConflictError(
                    f"table {self._store.name!r}: the rows to write were read at"
                    f" {format_timestamp(spec.read_at)}, and their column {name!r} {moved[name]};"
                    " read them again and write again"
                )

    def _write(self, operation: str, data: Rows, options: WriteOptions) -> WriteResult:
        _check_options(self._store.name, options)
        _check_flags(self._store.name, ignore_null=options.get("ignore_null", False))
        schema = self._store.newest().schema
        if isinstance(data, list | tuple) and not data and operation.startswith("update"):
            data = schema.arrow_schema().empty_table()  # no row names a column to set
        names, batches = arrow_batches(data, schema, self._store.name)
        total = sum(batch.num_rows for batch in batches) if isinstance(batches, list) else None
        if options.keys() <= {"ignore_null"}:
            kind = parse_operation(operation)
            small = SmallWrite(self._store, kind, names, options.get("ignore_null", False))
            result, batches = small.write(batches)
            if result is not None:
                return result
        write = self.new_bulk_write(operation, columns=names, **options)
        return self._run(write, batches, total)

    def _check_no_condition(self, operation: str, **given: object) -> None:
        for name, value in given.items():
            if value is not None:
                raise OptionError(
                    f"table {self._store.name!r}: {operation} takes rows or {name}=…, not both"
                )

    def _write_where(
        self, operation: str, where: Where, cells: Mapping[str, Any], options: WriteOptions
    ) -> WriteResult:
        """Update (set `cells`) or delete the rows that match a condition, in one version."""
        _check_options(self._store.name, options)
        for name in options:
            if name not in CONDITION_OPTIONS:
                raise OptionError(
                    f"table {self._store.name!r}: option {name!r} is for writes of rows; with"
                    f" where=… there are {', '.join(CONDITION_OPTIONS)}"
                )

        def attempt(is_settled: bool) -> WriteResult:
            schema = self._store.newest().schema
            constants = _constants(self._store.name, schema, cells)
            names = [*schema.key_names, *constants]
            if is_settled:
                write = self.new_bulk_write(operation, columns=names, **options).settled()
                request = ReadRequest.of(schema.key_names, where, at=write.read_at)
                scan = RowScan(self._store, request)
                write = write.rereading(MatchingRows(self._store, scan.predicates, constants))
                return self._run(write, with_constants(scan.to_batches(), constants))
            scan = RowScan(self._store, ReadRequest.of(schema.key_names, where))
            batches = scan.to_batches()
            first = next(batches, None)
            if first is None and options.get("application_id") is None:
                return self._unchanged(scan.timestamp)
            found = itertools.chain(() if first is None else (first,), batches)
            given: WriteOptions = {**options, "read_at": scan.timestamp}
            write = self.new_bulk_write(operation, columns=names, **given)
            return self._run(write, with_constants(found, constants))

        return self._until_unchanged(operation, attempt)

    def _unchanged(self, timestamp: Timestamp) -> WriteResult:
        """Return the result of a write that has nothing to change at a moment."""
        return WriteResult(timestamp=timestamp, version=self._store.newest().version)

    def _until_unchanged(self, what: str, attempt: Callable[[bool], WriteResult]) -> WriteResult:
        """Return the first result of `attempt` that no other writer was in the way of.

        All attempts but the first are on a version of one moment, and read rows that change
        meanwhile again. That version costs a flush under all locks. Only an alteration, or history
        that was collected, is in their way.
        """
        for number in range(1, ATTEMPTS_MAX):
            try:
                return attempt(number > 1)
            except ConflictError:
                time.sleep(number * _PAUSE_SECONDS)
        try:
            return attempt(True)
        except ConflictError as error:
            raise ConflictError(
                f"table {self._store.name!r}: {what} was tried {ATTEMPTS_MAX} times, and the table"
                " was altered, or history that it needs was collected, each time; try again later;"
                f" the last time: {error}"
            ) from error

    def _run(self, write: BulkWrite, batches: Batches, total: int | None = None) -> WriteResult:
        try:
            with Progress(f"write to table {self._store.name!r}", total):
                return write.commit([write.stage(batches)])
        except BaseException:
            write.abort()
            raise


def _check_message(table: str, message: object) -> None:
    """Raise OptionError for a message of a write that a version cannot have."""
    if message is None:
        return
    is_text = isinstance(message, str) and is_unicode(message)
    if not is_text or len(str(message).encode()) > MESSAGE_BYTES_MAX:
        shown = repr(message) if len(repr(message)) < 60 else f"{repr(message)[:60]}…"
        raise OptionError(
            f"table {table!r}: a message is a text of at most {MESSAGE_BYTES_MAX} bytes, not"
            f" {shown}"
        )


def _check_flags(table: str, **flags: object) -> None:
    """Raise OptionError for an option that is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise OptionError(f"table {table!r}: {name} is True or False, not {value!r}")


def _check_unchanged(table: str, unchanged: object) -> None:
    """Raise OptionError for another value than "skip"."""
    if unchanged not in (None, "skip"):
        raise OptionError(f"table {table!r}: unchanged is 'skip' or left out, not {unchanged!r}")


def _check_options(table: str, options: Mapping[str, object]) -> None:
    """Raise OptionError for an option that no write has."""
    for name in options:
        if name not in WRITE_OPTIONS:
            what = f"option {name!r} of a write"
            raise unknown_option(table, what, WRITE_OPTIONS, _OTHER_WORDS.get(name))


def unknown_option(table: str, what: str, known: Iterable[str], advice: str | None) -> OptionError:
    """Return the error for a name that a call does not have; `advice` is the way here."""
    end = f"; {advice}" if advice else ""
    return OptionError(f"table {table!r}: unknown {what}; known: {', '.join(known)}{end}")


def _constants(table: str, schema: Schema, cells: Mapping[str, Any]) -> dict[str, pa.Scalar]:
    """Return checked cells by column as Arrow scalars of the columns' types.

    Raises OptionError for a key column or an immutable one, ColumnNotFoundError, and SchemaError
    for a value.
    """
    if not isinstance(cells, Mapping):
        raise OptionError(
            f"table {table!r}: set is a dict of values by column, not {type(cells).__name__}"
        )
    values = RowLayout(table, schema).convert(cells)
    keys = [name for name in values if name in schema.key_names]
    if keys:
        raise OptionError(
            f"table {table!r}: column {keys[0]!r} is part of the primary key, which never changes;"
            " insert rows with the new keys and delete the old ones"
        )
    fixed = [name for name in values if not schema.column(name).mutable]
    if fixed:
        raise OptionError(
            f"table {table!r}: column {fixed[0]!r} is immutable: its cells keep the values of their"
            " inserts; make it mutable first, with alter_column(…).mutable(True)"
        )
    return {
        name: pa.scalar(value, schema.column(name).type.arrow) for name, value in values.items()
    }
