"""Write operations on single rows, as kudu-python has them; a session applies them.

    op = table.new_upsert({"host": "a", "ts": now})     a dict, tuple or list; or nothing, and then
    op["value"] = 1.0                                   columns one by one, by name
    op[2] = 1.0                                         or by index
    session.apply(op)

A value is checked and made canonical when it is set, the operation as a whole when it is applied.
A column that is not set keeps what it holds, or takes its default in a new row; None is null.

`RowLayout` has a converter for each column, which returns the result of `canonical_value`, and the
bytes that a row takes in a buffer. Most values are canonical already and pass after a test or two.
All other values are converted, and the error says what is wrong with them.

**Threads**: one at a time may fill an operation. Once applied it is fixed, unless it failed: then
it may be changed and applied again.

**Source**: Kudu client/batcher.cc for the size of an operation.
"""

from __future__ import annotations

import datetime
import decimal
import math
import struct
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

from kudulite.chain.schema_history import moved_names
from kudulite.errors import ColumnNotFoundError, SchemaError, UsageError
from kudulite.model.schema import Column, Schema
from kudulite.model.types import ColumnType, value_text
from kudulite.model.values import INT_RANGES, canonical_value
from kudulite.table.table_store import TableStore
from kudulite.tablet.operation import Operation
from kudulite.tablet.row_effects import RowOperation
from kudulite.writes.row_write import RowWriter

Converter = Callable[[Any], Any]

# Bytes of a value in a row: a reference and a length for types without a fixed width.
_VALUE_BYTES = {"bool": 1, "int8": 1, "int16": 2, "int32": 4, "float": 4, "date": 4}
_REFERENCE_BYTES = 16
_FLOAT = struct.Struct("<f")  # the native form gives infinity for what is too large
_TEXT_SHOWN_MAX = 80


class RowTarget:
    """One table as its operations see it: the layout of its rows, and the writer of its rows.

    Any thread may use it. Its knowledge of the schema is replaced, never changed.
    """

    __slots__ = ("_known", "_store", "name", "path", "writer")

    def __init__(self, store: TableStore) -> None:
        self._store = store
        self.name = store.name
        self.path = str(store.folder)
        self.writer = RowWriter(store)
        schema = store.newest().schema
        self._known = RowLayout(self.name, schema), schema

    @property
    def sessions(self) -> WeakValueDictionary[int, object]:
        """The sessions of this process that hold rows, or have held some."""
        return self._store.environment.sessions

    @property
    def current(self) -> tuple[RowLayout, Schema]:
        """The schema that this process has seen last, and its layout, which is of an equal one."""
        known = self._known
        schema = self._store.chain.last_seen().schema
        if schema is known[1]:
            return known
        # Each version that was read has an object of its own.
        is_same = schema == known[1]
        self._known = known[0] if is_same else RowLayout(self.name, schema), schema
        return self._known

    def newest(self) -> tuple[RowLayout, Schema]:
        """Return the same of the newest schema, which another process may have altered."""
        self._store.newest()
        return self.current


class WriteOperation(RowOperation):
    """One operation on one row; made by `Table.new_insert` and its seven siblings.

    Its names mean the columns that had them when it was made. If one of them is dropped or renamed
    before the operation is written, the write of it fails.
    """

    __slots__ = ("is_applied", "layout", "target")

    def __init__(self, target: RowTarget, operation: Operation, record: Any = None) -> None:
        self.operation = operation
        self.target = target
        self.is_applied = False
        self.layout, self.schema = target.current
        self.values = {}
        if record:
            try:
                self.values = self.layout.convert(record)
            except ColumnNotFoundError as error:
                self._convert_anew(record, error)

    def _convert_anew(self, record: Any, error: ColumnNotFoundError) -> None:
        """Set cells again if another process has changed the schema; else raise `error`.

        It is also raised if a name that was set before means another column in the newest schema.
        """
        layout, schema = self.target.newest()
        if layout is self.layout or moved_names(self.layout.schema, schema).keys() & (
            self.values.keys()
        ):
            raise error
        self.values |= layout.convert(record)
        self.layout, self.schema = layout, schema

    def __setitem__(self, column: str | int, value: Any) -> None:
        """Set a column by name or index. Raises ColumnNotFoundError, SchemaError, UsageError."""
        if self.is_applied:
            raise UsageError(f"{self}: it was applied already; make a new operation")
        found = self.layout.columns.get(column)
        if found is None:
            self._convert_anew({column: value}, self.layout.no_column(column))
        else:
            name, convert = found
            self.values[name] = convert(value)

    def __str__(self) -> str:
        """Return it as Kudu shows one: `INSERT int32 key=1, string name="a"`."""
        schema = self.layout.schema
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
        """The primary key, without an id that the engine has yet to give."""
        names = self.layout.schema.key_names
        return tuple(self.values[name] for name in names if name in self.values)

    def complete(self) -> int:
        """Check it as a whole; return its size in a buffer, in bytes.

        Raises SchemaError when the key is not whole, or when an update changes nothing. A delete
        drops what is set beside the key.
        """
        layout, values = self.layout, self.values
        if layout.schema.auto_incrementing is not None:
            self._check_id(layout.schema.auto_incrementing)
            if self.operation.is_insert:
                values = {**values, layout.schema.auto_incrementing: 0}
        if not layout.key_names <= values.keys():
            key = ", ".join(layout.schema.key_names)
            raise SchemaError(
                f"table {layout.table!r}: Key not specified: {self}; the primary key is ({key})"
            )
        if self.operation >= Operation.UPDATE:
            has_more = len(values) > len(layout.key_names)
            if self.operation.is_delete and has_more:
                self.values = {name: values[name] for name in layout.schema.key_names}
            elif self.operation.is_update and not has_more:
                raise SchemaError(f"table {layout.table!r}: No fields updated: {self}")
        return layout.size(self.values)

    def _check_id(self, name: str) -> None:
        """Raise SchemaError for an id where the engine gives it, or for none where it is needed."""
        layout, given = self.layout, self.values.get(name)
        if self.operation.is_insert and name in self.values:
            raise SchemaError(
                f"table {layout.table!r}: {name} should not be specified for Insert operation:"
                f" {self}; leave it out: the engine numbers new rows"
            )
        if self.operation.is_upsert and (given is None or given < 1):
            raise SchemaError(
                f"table {layout.table!r}: {name} should be set for UPSERT/UPSERT_IGNORE operations,"
                f" to 1 or more: {self}; to add a row, insert it"
            )


def _value_text(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str | bytes) and len(value) > _TEXT_SHOWN_MAX:
        shown = value_text(value[:_TEXT_SHOWN_MAX])
        return f"{shown}, the first {_TEXT_SHOWN_MAX} of {len(value)}"
    if isinstance(value, str):
        return f'"{value}"'
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


class RowOperations:
    """The part of a table that makes row operations; mixed into `Table`.

    `record` is a dict from column names or indexes, or a tuple or list of the first columns'
    values; without one the columns are set one by one.
    """

    _store: TableStore

    @cached_property
    def _row_target(self) -> RowTarget:
        return RowTarget(self._store)

    def _new_operation(self, operation: Operation, record: Any) -> WriteOperation:
        return WriteOperation(self._row_target, operation, record)

    def new_insert(self, record: Any = None) -> WriteOperation:
        """Return an operation that adds a row."""
        return self._new_operation(Operation.INSERT, record)

    def new_insert_ignore(self, record: Any = None) -> WriteOperation:
        """Return an operation that adds a row unless its key is there."""
        return self._new_operation(Operation.INSERT_IGNORE, record)

    def new_upsert(self, record: Any = None) -> WriteOperation:
        """Return an operation that adds a row or sets the given columns of the one there."""
        return self._new_operation(Operation.UPSERT, record)

    def new_upsert_ignore(self, record: Any = None) -> WriteOperation:
        """Return an upsert that leaves immutable columns of a row that is there as they are."""
        return self._new_operation(Operation.UPSERT_IGNORE, record)

    def new_update(self, record: Any = None) -> WriteOperation:
        """Return an operation that sets the given columns of a row."""
        return self._new_operation(Operation.UPDATE, record)

    def new_update_ignore(self, record: Any = None) -> WriteOperation:
        """Return an operation that sets the given columns of a row if its key is there."""
        return self._new_operation(Operation.UPDATE_IGNORE, record)

    def new_delete(self, record: Any = None) -> WriteOperation:
        """Return an operation that deletes the row of a key."""
        return self._new_operation(Operation.DELETE, record)

    def new_delete_ignore(self, record: Any = None) -> WriteOperation:
        """Return an operation that deletes the row of a key if it is there."""
        return self._new_operation(Operation.DELETE_IGNORE, record)


class RowLayout:
    """The columns of one version of a table's schema, prepared for rows that come one by one.

    Never changed once made: any number of threads may use it.
    """

    def __init__(self, table: str, schema: Schema) -> None:
        self.table = table
        self.schema = schema
        self.key_names = frozenset(schema.key_names)
        self._positions = tuple((c.name, converter_of(c, table)) for c in schema.columns)
        # By name and by index from 0.
        self.columns: dict[Any, tuple[str, Converter]] = dict(enumerate(self._positions))
        self.columns |= {name: (name, convert) for name, convert in self._positions}
        # The operation's type, the cells of all columns, and two bits per column: set, and null.
        self._fixed_bytes = 1 + sum(_value_bytes(column.type) for column in schema.columns)
        self._fixed_bytes += 2 * ((len(schema.columns) + 7) // 8)
        self._array_names = tuple(c.name for c in schema.columns if c.type.is_array)
        self._bytes_names = tuple(c.name for c in schema.columns if c.type.is_bytes)

    def convert(self, record: Any) -> dict[str, Any]:
        """Return the canonical values of a record by name, in the order they were given.

        A record is a mapping from names or indexes from 0, or a tuple or list of the first columns'
        values. Raises ColumnNotFoundError, SchemaError.
        """
        if type(record) is dict or isinstance(record, Mapping):  # the abstract class costs more
            columns, values = self.columns, {}
            try:
                for key, value in record.items():
                    name, convert = columns[key]
                    values[name] = convert(value)
            except KeyError:
                raise self.no_column(key) from None
            return values
        if isinstance(record, tuple | list):
            if len(record) > len(self._positions):
                raise self.no_column(len(self._positions))
            pairs = zip(self._positions, record, strict=False)
            return {name: convert(value) for (name, convert), value in pairs}
        raise SchemaError(
            f"table {self.table!r}: a row is a dict, tuple or list, not {type(record).__name__}"
        )

    def size(self, values: Mapping[str, Any]) -> int:
        """Return the bytes that a row of these values takes in a buffer."""
        size = self._fixed_bytes
        for name in self._bytes_names:
            value = values.get(name)
            if value is not None:
                size += len(value)
                # Bytes have isascii, too; text outside ASCII has more bytes than letters.
                if not value.isascii() and isinstance(value, str):
                    size += len(value.encode()) - len(value)
        for name in self._array_names:
            size += sum(map(_element_bytes, values.get(name) or ()))
        return size

    def no_column(self, key: Any) -> ColumnNotFoundError:
        """Return the error for a column that is not there."""
        what = f"no column {key!r}" if isinstance(key, str) else f"column index {key} out of bounds"
        names = ", ".join(self.schema.names)
        return ColumnNotFoundError(f"table {self.table!r}: {what}; columns: {names}")


def _value_bytes(column_type: ColumnType) -> int:
    if column_type.is_bytes or column_type.is_array:
        return _REFERENCE_BYTES
    if column_type.name == "decimal":
        return column_type.key_width or _REFERENCE_BYTES
    return _VALUE_BYTES.get(column_type.name, 8)


def _element_bytes(value: Any) -> int:
    """Return the approximate size of an element of an array."""
    return _REFERENCE_BYTES + (len(value) if isinstance(value, str | bytes) else 0)


def converter_of(column: Column, table: str) -> Converter:
    """Return a function that gives a value's canonical form; null stays None.

    It raises SchemaError for a value that the column cannot hold, None in a NOT NULL column too.
    """

    def convert(value: Any) -> Any:
        if value is not None:
            try:
                return canonical_value(value, column.type, column.name)
            except SchemaError as error:
                raise SchemaError(f"table {table!r}: {error}") from error
        if not column.nullable:
            raise SchemaError(f"table {table!r}: column {column.name!r} is NOT NULL; got None")
        return None

    shortcut = _SHORTCUTS.get(column.type.name)
    return convert if shortcut is None else shortcut(column.type, convert)


def _of_exactly(python_type: type) -> Callable[[ColumnType, Converter], Converter]:
    """Return the shortcut for values that are canonical if they are of one type."""

    def shortcut(_: ColumnType, convert: Converter) -> Converter:
        return lambda value: value if type(value) is python_type else convert(value)

    return shortcut


def _integer(column_type: ColumnType, convert: Converter) -> Converter:
    low, high = INT_RANGES[column_type.name]

    def convert_integer(value: Any) -> Any:
        return value if type(value) is int and low <= value <= high else convert(value)

    return convert_integer


def _double(_: ColumnType, convert: Converter) -> Converter:
    def convert_double(value: Any) -> Any:
        if type(value) is float:
            return value if value == value else math.nan
        return convert(value)

    return convert_double


def _float(_: ColumnType, convert: Converter) -> Converter:
    pack, unpack = _FLOAT.pack, _FLOAT.unpack

    def convert_float(value: Any) -> Any:
        if type(value) is float and value == value:
            try:
                return unpack(pack(value))[0]
            except OverflowError:
                pass  # the long way says so
        return convert(value)

    return convert_float


def _text(column_type: ColumnType, convert: Converter) -> Converter:
    length_max = math.inf if column_type.length is None else column_type.length

    def convert_text(value: Any) -> Any:
        # Other text may hold what has no UTF-8 form.
        if type(value) is str and value.isascii() and len(value) <= length_max:
            return value
        return convert(value)

    return convert_text


def _datetime(column_type: ColumnType, convert: Converter) -> Converter:
    has_zone = column_type.name == "unixtime_micros"
    utc, moment = datetime.UTC, datetime.datetime

    def convert_datetime(value: Any) -> Any:
        if type(value) is not moment:
            return convert(value)
        zone = value.tzinfo
        if zone is (utc if has_zone else None) and not value.fold:
            return value
        if has_zone and zone not in (None, utc) and value.utcoffset() is not None:
            try:
                return value.astimezone(utc)
            except OverflowError:
                pass  # the long way knows what lies outside the years 1 to 9999
        return convert(value)

    return convert_datetime


def _decimal(column_type: ColumnType, convert: Converter) -> Converter:
    assert column_type.scale is not None and column_type.precision is not None
    exponent, digits_max = -column_type.scale, column_type.precision

    def convert_decimal(value: Any) -> Any:
        if type(value) is decimal.Decimal:
            sign, digits, value_exponent = value.as_tuple()
            # A negative zero is none in its canonical form.
            if value_exponent == exponent and len(digits) <= digits_max and (value or not sign):
                return value
        return convert(value)

    return convert_decimal


_SHORTCUTS: dict[str, Callable[[ColumnType, Converter], Converter]] = {
    "bool": _of_exactly(bool),
    "int8": _integer,
    "int16": _integer,
    "int32": _integer,
    "int64": _integer,
    "float": _float,
    "double": _double,
    "decimal": _decimal,
    "date": _of_exactly(datetime.date),
    "unixtime_micros": _datetime,
    "timestamp_ntz": _datetime,
    "string": _text,
    "varchar": _text,
    "binary": _of_exactly(bytes),
}
