"""Writes of whole batches: eight operations, mixed batches, and bulk writes staged in pieces.

    table.upsert(batch)                      all rows or none, in one version
    table.apply(changes)                     an operation in each row
    table.update(where=…, set={…})           rows that match a condition, by a scan inside
    table.restore(version=7)                 the rows of then, by the changes since
    table.new_bulk_write("insert")           staged in pieces by several tasks, committed once

A write of few rows is a commit in the table's log, whatever its operation and options, unless it is
an overwrite. All others are staged as files and committed.

**Threads**: any number may write to one table; each write is a transaction of its own.
"""

from __future__ import annotations

import itertools
import random
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from inspect import getdoc
from typing import Any, TypeVar, Unpack, overload

import pyarrow as pa

from kudulite.client.bulk_write import (
    Batches,
    BulkWrite,
    WriteResult,
    write_few,
)
from kudulite.client.computed_rows import (
    MatchingRows,
    RestoredRows,
    read_names,
    undone,
    with_cells,
)
from kudulite.client.row_operations import RowLayout
from kudulite.client.schema_evolution import columns_to_store, evolved, extend_schema
from kudulite.client.write_plan import WritePlan, check_flags, check_options
from kudulite.errors import ColumnNotFoundError, ConflictError, OptionError, SchemaError
from kudulite.model.aliases import Columns, Moment, Rows, Where, WriteOptions
from kudulite.model.cell import Cell, ConstantCell, computed_cell
from kudulite.model.expression import Arithmetic
from kudulite.model.hybrid_time import Timestamp
from kudulite.model.schema import Column, Schema
from kudulite.reads.row_sources import arrow_batches, source_of
from kudulite.reads.scan import Changes, RowScan
from kudulite.shown.progress import Progress
from kudulite.storage.new_files import NewFiles
from kudulite.table.memory_flush import flush_table
from kudulite.table.open_writes import begin_write
from kudulite.table.read_request import ReadRequest
from kudulite.table.snapshot import check_readable, moment_of
from kudulite.table.table_store import TableStore
from kudulite.table.tags import moment_or_version
from kudulite.table.write_state import WriteState
from kudulite.tablet.tablet_scan import CHANGE_COLUMNS, CHANGE_TYPE
from kudulite.upkeep.garbage_collection import end_writes
from kudulite.writes.batch_pieces import few_rows, without_preimages
from kudulite.writes.stager import Stager

CONDITION_OPTIONS = ("application_id", "application_version", "message")
# How often a write by condition reads its rows, while other writers change them.
ATTEMPTS_MAX = 10
_PAUSE_SECONDS = 0.005
_ALTERED = (
    "the table was altered, or history that it needs was collected, each time; try again later"
)
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
            table.update(where=table["v"] > 9, set={"v": 9})    values, one for each column
            table.update(where="id = 1", set={"n": "n + 1"})    SQL of the row's own cells
            table.update(where=(), set={"n": table["n"] * 2})   the same; expr("…") for text columns

        RowError if a key of `data` is absent. `where` is as in `scan`; `()` is every row. The rows
        are those that match at one moment, and they change in one version. If another writer
        changes rows meanwhile, those rows are read again, so no update is lost. The options are
        then `application_id`, `application_version` and `message`. Raises OptionError, and
        SchemaError for a column or a value that does not fit.
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

    def transform(
        self,
        change: Callable[[pa.Table], Rows],
        where: Where = (),
        columns: Columns | None = None,
        *,
        operation: str = "update",
        attempts_max: int = ATTEMPTS_MAX,
        message: str | None = None,
    ) -> WriteResult:
        """Write what a function makes of rows, and call it again where they change meanwhile.

            table.transform(lambda rows: scored(rows.to_pandas()), where="score IS NULL")

        `change` gets the rows that match `where` at one moment, and returns rows of the same keys
        for `operation`, in any form that `update` takes. If another
        writer changes one of these rows before they are written, nothing is written, and `change`
        gets the rows of then. Raises ConflictError after `attempts_max` calls, and as `update`. For
        what SQL can compute, `update(where=…, set=…)` is faster and is not in the way of others.
        """
        if attempts_max < 1:
            raise OptionError(f"transform: attempts_max is {attempts_max}, expected at least 1")

        def attempt(_is_settled: bool) -> WriteResult:
            scan = RowScan(self._store, ReadRequest.of(columns, where))
            rows = scan.to_arrow()
            options: WriteOptions = {"read_at": scan.timestamp, "message": message}
            return self._write(operation, change(rows), options)

        why = "other writers changed its rows each time"
        return self._until_unchanged("transform", attempt, why, attempts_max)

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
        self, data: Rows, operation_column: str = "op", **options: Unpack[WriteOptions]
    ) -> WriteResult:
        """Apply a mixed batch, e.g. of change capture, in one commit.

        `operation_column` holds I, U, D or operation names. Rows of a key apply in batch order,
        unless there is an `ordering_column`.
        """
        data = self._source_of(data, options, "apply", {operation_column})
        names, batches = arrow_batches(data, self._store.newest().schema, self._store.name)
        names = [name for name in names if name != operation_column]
        return self._run(batches, columns=names, operation_column=operation_column, **options)

    @_with_write_options
    def overwrite(self, data: Rows, **options: Unpack[WriteOptions]) -> WriteResult:
        """Replace all rows in one version; the past stays readable."""
        return self._write("upsert", data, {**options, "overwrite": True})

    def truncate(self) -> WriteResult:
        """Delete all rows in one version; the past stays readable."""
        write = self.new_bulk_write("upsert", overwrite=True)
        return self._run_bulk(write.labelled("truncate"), ())

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
        start, manifest = moment_or_version(self._store, moment, version), self._store.newest()
        # Changes may begin before there was a table; its rows of then would be none.
        check_readable(self._store, manifest, moment_of(self._store, manifest, start), start)

        def as_restore(state: WriteState) -> WriteState:  # each row is that of another key
            return state.labelled("restore").restoring().merging()

        def attempt(is_settled: bool) -> WriteResult:
            write = None
            if is_settled:
                write = self.new_bulk_write(operation_column=CHANGE_TYPE, message=message).settled()
            at = None if write is None else write.read_at
            changes = Changes(self._store, ReadRequest.of(start=start, at=at, images="both"))
            names = [name for name in changes.schema.names if name not in CHANGE_COLUMNS]
            batches = (undone(batch, names) for batch in changes.to_batches())
            found = (batch for batch in batches if batch.num_rows)
            if write is not None:
                again = RestoredRows(self._store, changes.start, names)
                return self._run_bulk(write.changed(as_restore).rereading(again), found)
            first = next(found, None)
            if first is None:
                return self._unchanged(changes.end)
            return self._run(
                itertools.chain((first,), found),
                change=as_restore,
                columns=names,
                operation_column=CHANGE_TYPE,
                read_at=changes.end,
                message=message,
            )

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
        planned = WritePlan.of(
            self._store,
            operation,
            columns=columns,
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
        return self._begun(planned, owner)

    def _begun(
        self, planned: WritePlan, owner: str | None = None, *, is_large: bool = False
    ) -> BulkWrite:
        """Begin a bulk write; if it `is_large`, on a version that has all rows of the log.

        Others would end the log for a write that may be small.
        """
        end_writes(self._store, owner=owner)
        if is_large:
            flush_table(self._store, has_looked=True)
        opened = begin_write(self._store, planned.name, owner)
        with ExitStack() as on_error:
            on_error.callback(opened.end)
            state = planned.state(self._store, self._store.newest(), opened.id, owner)
            on_error.pop_all()
        return BulkWrite(self._store, state, opened)

    def _write(self, operation: str, data: Rows, options: WriteOptions) -> WriteResult:
        check_flags(self._store.name, ignore_null=options.get("ignore_null", False))
        data = self._source_of(data, options, operation)
        schema = self._store.newest().schema
        if isinstance(data, list | tuple) and not data and operation.startswith("update"):
            data = schema.arrow_schema().empty_table()  # no row names a column to set
        names, batches = arrow_batches(data, schema, self._store.name)
        total = sum(batch.num_rows for batch in batches) if isinstance(batches, list) else None
        return self._run(batches, total, operation=operation, columns=names, **options)

    def _source_of(
        self, data: Rows, options: WriteOptions, operation: str, others: Collection[str] = ()
    ) -> Rows:
        """Return rows to write, and take the options about their columns out of `options`.

        The table has the columns for them then. `others` are no columns of the table.
        """
        name, is_evolving = self._store.name, options.pop("schema_evolution", False)
        check_options(name, options)
        check_flags(name, schema_evolution=is_evolving)
        data = source_of(data, options.pop("nested", None), name)
        if is_evolving and operation.startswith("delete"):
            raise OptionError(
                f"table {name!r}: schema_evolution is for columns that a write sets, and a delete"
                " sets none"
            )
        return evolved(self._store, data, others=others) if is_evolving else data

    def extend_schema(self, columns: pa.Schema | Sequence[Column]) -> None:
        """Add the columns that the table lacks, nullable, and widen types, in one alteration.

        So it can store rows of these columns. The `columns` are those of an Arrow schema, or made
        by `kudulite.column`. Nothing is done if the table has all of them; nothing is dropped,
        renamed or narrowed, and the key stays. `schema_evolution=True` of a write does this first.
        Raises SchemaError, LockTimeoutError, StorageError.
        """
        if isinstance(columns, pa.Schema):
            name, schema = self._store.name, self._store.newest().schema
            columns = columns_to_store(columns, schema, name, has_types=True)
        extend_schema(self._store, columns)

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
        check_options(self._store.name, options)
        for name in options:
            if name not in CONDITION_OPTIONS:
                raise OptionError(
                    f"table {self._store.name!r}: option {name!r} is for writes of rows; with"
                    f" where=… there are {', '.join(CONDITION_OPTIONS)}"
                )

        labels: dict[str, Any] = {**options}

        def attempt(is_settled: bool) -> WriteResult:
            schema = self._store.newest().schema
            keys, computed = schema.key_names, _cells(self._store.name, schema, cells)
            names, read = [*keys, *computed], read_names(keys, computed)
            if is_settled:
                write = self.new_bulk_write(operation, columns=names, **labels).settled()
                request = ReadRequest.of(read, where, at=write.read_at)
                scan = RowScan(self._store, request)
                write = write.rereading(MatchingRows(self._store, scan.predicates, computed))
                return self._run_bulk(write, with_cells(scan.to_batches(), keys, computed))
            scan = RowScan(self._store, ReadRequest.of(read, where))
            batches = scan.to_batches()
            first = next(batches, None)
            if first is None and options.get("application_id") is None:
                return self._unchanged(scan.timestamp)
            found = itertools.chain(() if first is None else (first,), batches)
            given: WriteOptions = {**options, "read_at": scan.timestamp}
            rows = with_cells(found, keys, computed)
            return self._run(rows, operation=operation, columns=names, **given)

        return self._until_unchanged(operation, attempt)

    def _unchanged(self, timestamp: Timestamp) -> WriteResult:
        """Return the result of a write that has nothing to change at a moment."""
        return WriteResult(timestamp=timestamp, version=self._store.newest().version)

    def _until_unchanged(
        self,
        what: str,
        attempt: Callable[[bool], WriteResult],
        why: str = _ALTERED,
        attempts_max: int = ATTEMPTS_MAX,
    ) -> WriteResult:
        """Return the first result of `attempt` that no other writer was in the way of.

        `attempt` is called with whether it is to be settled: on a version of one moment, with rows
        that change meanwhile read again, which all attempts but the first are. That version costs a
        flush under all locks. Only an alteration, or history that was collected, is in its way.
        `why` says what was in the way each time.
        """
        for number in range(1, attempts_max):
            try:
                return attempt(number > 1)
            except ConflictError:
                time.sleep(random.uniform(0, number * _PAUSE_SECONDS))
        try:
            return attempt(True)
        except ConflictError as error:
            raise ConflictError(
                f"table {self._store.name!r}: {what} was tried {attempts_max} times, and {why};"
                f" the last time: {error}"
            ) from error

    def _run(
        self,
        batches: Batches,
        total: int | None = None,
        change: Callable[[WriteState], WriteState] | None = None,
        **options: Any,
    ) -> WriteResult:
        """Write batches with the options of `new_bulk_write`, few rows through the log.

        `change` is made of the state of the write.
        """
        planned = WritePlan.of(self._store, **options)
        rows_max = 0 if planned.overwrite else self._store.environment.small_write_rows_max
        batches = without_preimages(batches, planned.operation_column)
        few, batches = few_rows(batches, rows_max)
        if few is not None:
            result = self._write_few(few, planned, change)
            if result is not None:
                return result
            batches = [few]
        write = self._begun(planned, is_large=True)
        return self._run_bulk(write if change is None else write.changed(change), batches, total)

    def _write_few(
        self,
        few: pa.Table,
        planned: WritePlan,
        change: Callable[[WriteState], WriteState] | None,
    ) -> WriteResult | None:
        """Write few rows through the log; None where they need a bulk write.

        If the table was altered meanwhile, the rows are checked once more.
        """
        write_id = uuid.uuid4().hex
        for is_last in (False, True):
            base = self._store.chain.last_seen()
            if is_last or base.has_tablet_logs:
                base = self._store.upgraded()
            state = planned.state(self._store, base, write_id)
            state = state if change is None else change(state)
            stager = Stager(self._store, state, base, NewFiles(self._store.storage))
            try:
                return write_few(self._store, state, base, stager.checked(few))
            except ConflictError:
                if is_last or self._store.newest().schema == base.schema:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _run_bulk(
        self, write: BulkWrite, batches: Batches, total: int | None = None
    ) -> WriteResult:
        try:
            with Progress(f"write to table {self._store.name!r}", total):
                return write.run(batches)
        except BaseException:
            write.abort()
            raise


def _cells(table: str, schema: Schema, cells: Mapping[str, Any]) -> dict[str, Cell]:
    """Return checked cells by column: values, and expressions, which may be text.

    Raises OptionError for a key column or an immutable one and for an expression that is not
    possible, ColumnNotFoundError, and SchemaError for a value.
    """
    if not isinstance(cells, Mapping):
        raise OptionError(
            f"table {table!r}: set is a dict of values by column, not {type(cells).__name__}"
        )
    layout = RowLayout(table, schema)
    values = {
        layout.columns.get(name, (name,))[0]: _cell(layout, name, value)
        for name, value in cells.items()
    }
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
    return values


def _cell(layout: RowLayout, name: str | int, value: Any) -> Cell:
    """Return a value to set, or what computes it: text is an expression where it is no value."""
    if name not in layout.columns:
        raise layout.no_column(name)
    column = layout.schema.column(layout.columns[name][0])
    if isinstance(value, Arithmetic):
        return computed_cell(value.sql, column, layout.schema)
    try:
        [found] = layout.convert({name: value}).values()
    except SchemaError as error:
        if not isinstance(value, str) or column.type.is_array:
            raise
        try:
            return computed_cell(value, column, layout.schema)
        except ColumnNotFoundError as other:
            if value.isidentifier():
                raise SchemaError(f"{error}; nor is it an expression: {other}") from None
            raise
    return ConstantCell(pa.scalar(found, column.type.arrow))
