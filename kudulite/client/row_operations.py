"""Write operations on single rows, as kudu-python has them; a session applies them.

    op = table.new_upsert({"host": "a", "ts": now})     a dict, tuple or list; or nothing, and then
    op["value"] = 1.0                                   columns one by one, by name
    op[2] = 1.0                                         or by index
    session.apply(op)

A value is checked and made canonical when it is set, the operation as a whole when it is applied.
A column that is not set keeps what it holds, or takes its default in a new row; None is null.

Threads: one at a time may fill an operation. Once applied it is fixed, unless it failed: then
it may be changed and applied again.
"""

from __future__ import annotations

import datetime
from functools import cached_property
from typing import Any, ClassVar

from kudulite.catalog.row_write import RowWriter
from kudulite.catalog.table_store import TableStore
from kudulite.client.row_layout import RowLayout
from kudulite.errors import ColumnNotFoundError, SchemaError, UsageError
from kudulite.tablet.operation import Operation
from kudulite.tablet.row_operation import RowOperation


class RowTarget:
    """One table as its operations see it: the layout of its rows, and the writer of its rows.

    Threads: any; `layout` is replaced, never changed.
    """

    __slots__ = ("_store", "layout", "name", "path", "writer")

    def __init__(self, store: TableStore) -> None:
        self._store = store
        self.name = store.name
        self.path = str(store.folder)
        self.writer = RowWriter(store)
        self.layout = RowLayout(self.name, store.newest().schema)

    def refresh(self) -> bool:
        """Read the schema again; whether it has changed."""
        schema = self._store.newest().schema
        if schema == self.layout.schema:
            return False
        self.layout = RowLayout(self.name, schema)
        return True


class WriteOperation(RowOperation):
    """One operation on one row; made by `Table.new_insert` and its seven siblings."""

    __slots__ = ("is_applied", "target")

    kind: ClassVar[Operation]

    def __init__(self, target: RowTarget, record: Any = None) -> None:
        self.operation = self.kind
        self.target = target
        self.is_applied = False
        if not record:
            self.values = {}
            return
        try:
            self.values = target.layout.convert(record)
        except ColumnNotFoundError:
            # Another process may have added the column.
            if not target.refresh():
                raise
            self.values = target.layout.convert(record)

    def __setitem__(self, column: str | int, value: Any) -> None:
        """Set a column by name or index. Raises ColumnNotFoundError, SchemaError, UsageError."""
        if self.is_applied:
            raise UsageError(f"{self}: it was applied already; make a new operation")
        try:
            name, convert = self.target.layout.column(column)
        except ColumnNotFoundError:
            if not self.target.refresh():
                raise
            name, convert = self.target.layout.column(column)
        self.values[name] = convert(value)

    def __str__(self) -> str:
        """Return it as Kudu shows one: `INSERT int32 key=1, string name="a"`."""
        schema = self.target.layout.schema
        cells = [
            f"{column.type} {column.name}={_value_text(self.values[column.name])}"
            for column in schema.columns
            if column.name in self.values
        ]
        return f"{self.operation.name} {', '.join(cells)}"

    def __repr__(self) -> str:
        return f"<{self} of table {self.target.name!r}>"

    @property
    def key(self) -> tuple[object, ...]:
        """The primary key."""
        return tuple(self.values[name] for name in self.target.layout.schema.key_names)

    def complete(self) -> int:
        """Check it as a whole; return its size in a buffer, in bytes.

        Raises SchemaError when the key is not whole, or when an update changes nothing. A delete
        drops what is set beside the key.
        """
        layout, values = self.target.layout, self.values
        if not layout.key_names <= values.keys():
            key = ", ".join(layout.schema.key_names)
            raise SchemaError(
                f"table {layout.table!r}: Key not specified: {self}; the primary key is ({key})"
            )
        if self.operation >= Operation.UPDATE:
            self._complete_change(layout)
        return layout.size(self.values)

    def _complete_change(self, layout: RowLayout) -> None:
        has_more = len(self.values) > layout.key_count
        if self.operation.is_delete and has_more:
            self.values = {name: self.values[name] for name in layout.schema.key_names}
        elif self.operation.is_update and not has_more:
            raise SchemaError(f"table {layout.table!r}: No fields updated: {self}")


def _value_text(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return f'"{value}"'
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


class Insert(WriteOperation):
    """A new row; a row error if the key is there."""

    __slots__ = ()
    kind = Operation.INSERT


class InsertIgnore(WriteOperation):
    """A new row; ignored if the key is there."""

    __slots__ = ()
    kind = Operation.INSERT_IGNORE


class Upsert(WriteOperation):
    """A new row, or new values for the columns that are set."""

    __slots__ = ()
    kind = Operation.UPSERT


class UpsertIgnore(WriteOperation):
    """As Upsert; there are no immutable columns to ignore."""

    __slots__ = ()
    kind = Operation.UPSERT_IGNORE


class Update(WriteOperation):
    """New values for the columns that are set; a row error if the key is absent."""

    __slots__ = ()
    kind = Operation.UPDATE


class UpdateIgnore(WriteOperation):
    """As Update; ignored if the key is absent."""

    __slots__ = ()
    kind = Operation.UPDATE_IGNORE


class Delete(WriteOperation):
    """No row of this key any more; a row error if it is absent."""

    __slots__ = ()
    kind = Operation.DELETE


class DeleteIgnore(WriteOperation):
    """As Delete; ignored if the key is absent."""

    __slots__ = ()
    kind = Operation.DELETE_IGNORE


class RowOperations:
    """The part of a table that makes row operations; mixed into `Table`.

    `record` is a dict from column names or indexes, or a tuple or list of the first columns'
    values; without one the columns are set one by one.
    """

    _store: TableStore

    @cached_property
    def _row_target(self) -> RowTarget:
        return RowTarget(self._store)

    def new_insert(self, record: Any = None) -> Insert:
        """Return an operation that adds a row."""
        return Insert(self._row_target, record)

    def new_insert_ignore(self, record: Any = None) -> InsertIgnore:
        """Return an operation that adds a row unless its key is there."""
        return InsertIgnore(self._row_target, record)

    def new_upsert(self, record: Any = None) -> Upsert:
        """Return an operation that adds a row or sets the given columns of the one there."""
        return Upsert(self._row_target, record)

    def new_upsert_ignore(self, record: Any = None) -> UpsertIgnore:
        """Return an operation that does as `new_upsert`."""
        return UpsertIgnore(self._row_target, record)

    def new_update(self, record: Any = None) -> Update:
        """Return an operation that sets the given columns of a row."""
        return Update(self._row_target, record)

    def new_update_ignore(self, record: Any = None) -> UpdateIgnore:
        """Return an operation that sets the given columns of a row if its key is there."""
        return UpdateIgnore(self._row_target, record)

    def new_delete(self, record: Any = None) -> Delete:
        """Return an operation that deletes the row of a key."""
        return Delete(self._row_target, record)

    def new_delete_ignore(self, record: Any = None) -> DeleteIgnore:
        """Return an operation that deletes the row of a key if it is there."""
        return DeleteIgnore(self._row_target, record)
