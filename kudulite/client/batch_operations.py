"""Writes of whole batches: eight operations, mixed batches, and bulk writes staged in pieces.

    table.upsert(batch)                      all rows or none, in one version
    table.apply(changes)                     an operation in each row
    table.update(where=…, set={…})           rows that match a condition, by a scan inside
    table.restore(version=7)                 the rows of then, by the changes since
    table.new_bulk_write("insert")           staged in pieces by several tasks, committed once

batch_writer.py says how a write is done, computed_writes.py how those are that are computed from
rows of the table.

**Threads**: any number may write to one table; each write is a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import getdoc
from typing import Any, TypeVar, Unpack, overload

import pyarrow as pa

from kudulite.client.batch_writer import BatchWriter
from kudulite.client.bulk_write import BulkWrite, WriteResult
from kudulite.client.computed_writes import ATTEMPTS_MAX, ComputedWrites, until_unchanged
from kudulite.client.schema_evolution import columns_to_store, evolved, extend_schema
from kudulite.client.write_plan import WritePlan, check_flags, check_options
from kudulite.errors import OptionError
from kudulite.model.aliases import Columns, Moment, Rows, Where, WriteOptions
from kudulite.model.schema import Column
from kudulite.reads.row_sources import arrow_batches, source_of
from kudulite.reads.scan import RowScan
from kudulite.table.read_request import ReadRequest
from kudulite.table.table_store import TableStore

Write = TypeVar("Write", bound=Callable[..., object])


def _with_write_options(write: Write) -> Write:
    """Explain the options that all writes share in the docstring, which `help` shows."""
    write.__doc__ = f"{getdoc(write)}\n\n{getdoc(WriteOptions)}"
    return write


class BatchOperations:
    """The part of a table that writes batches; mixed into `Table`."""

    _store: TableStore

    @property
    def _writer(self) -> BatchWriter:
        return BatchWriter(self._store)

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
        return ComputedWrites(self._store).where("update", where, set, options)

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
        return until_unchanged(self._store, "transform", attempt, why, attempts_max)

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
        return ComputedWrites(self._store).where("delete", where, {}, options)

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
        return self._writer.run(
            batches, columns=names, operation_column=operation_column, **options
        )

    @_with_write_options
    def overwrite(self, data: Rows, **options: Unpack[WriteOptions]) -> WriteResult:
        """Replace all rows in one version; the past stays readable."""
        return self._write("upsert", data, {**options, "overwrite": True})

    def truncate(self) -> WriteResult:
        """Delete all rows in one version; the past stays readable."""
        write = self.new_bulk_write("upsert", overwrite=True)
        return self._writer.run_bulk(write.labelled("truncate"), ())

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
        return ComputedWrites(self._store).restore(moment, version, message)

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
        return self._writer.begin(planned, owner)

    def _write(self, operation: str, data: Rows, options: WriteOptions) -> WriteResult:
        check_flags(self._store.name, ignore_null=options.get("ignore_null", False))
        data = self._source_of(data, options, operation)
        schema = self._store.newest().schema
        if isinstance(data, list | tuple) and not data and operation.startswith("update"):
            data = schema.arrow_schema().empty_table()  # no row names a column to set
        names, batches = arrow_batches(data, schema, self._store.name)
        total = sum(batch.num_rows for batch in batches) if isinstance(batches, list) else None
        return self._writer.run(batches, total, operation=operation, columns=names, **options)

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
