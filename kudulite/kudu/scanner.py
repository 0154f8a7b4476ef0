"""Scanner: a scan described by setters and read batch by batch.

    scanner = table.scanner().add_predicate(table["host"] == "a")      ScanSettings
    scanner.open().read_all_tuples()                                   RowReader, over a RowScan

`ScanSettings` are the setters of a scanner and of a scan token builder. Each returns the object
itself, and checks columns and values against the schema that the table had when the object was
made. `RowReader` makes a Python tuple of each row; the engine's `Table.scan` gives the same rows as
Arrow. `Column` makes predicates.

These differ from kudu-python: a snapshot is inclusive, and may also be a HybridTime. A scan with a
snapshot needs no read mode. The latest state always includes one's own writes. A bound needs the
leading key columns only. Settings about servers are accepted and have no effect: replica selection,
cache blocks, timeouts.

**Threads**: one at a time.

**Source**: Kudu python/kudu/client.pyx.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, Self, overload

import pyarrow as pa

from kudulite.client.table import Table, store_of
from kudulite.errors import UsageError
from kudulite.kudu.cells import choice
from kudulite.kudu.errors import KuduInvalidArgument, in_kudu_terms
from kudulite.kudu.schema import ColumnSchema, PartialRow, Schema
from kudulite.kudu.servers import TabletServer
from kudulite.kudu.util import to_utc
from kudulite.model.aliases import Where
from kudulite.model.condition import And, ColumnExpression, Predicate
from kudulite.model.hybrid_time import Timestamp
from kudulite.model.predicate import bind_predicates, parse_where
from kudulite.model.schema import Column as EngineColumn
from kudulite.model.values import timestamp_from_micros
from kudulite.reads.pandas_frames import frame_of
from kudulite.reads.scan import RowScan
from kudulite.table.read_request import ReadRequest
from kudulite.table.scan_plan import tightest
from kudulite.table.snapshot import moment_of

LEADER_ONLY, CLOSEST_REPLICA, FIRST_REPLICA = 0, 1, 2
_REPLICA_SELECTIONS = {LEADER_ONLY: "leader", CLOSEST_REPLICA: "closest", FIRST_REPLICA: "first"}
READ_LATEST, READ_AT_SNAPSHOT, READ_YOUR_WRITES = 0, 1, 2
_READ_MODES = {
    READ_LATEST: "latest",
    READ_AT_SNAPSHOT: "snapshot",
    READ_YOUR_WRITES: "read_your_writes",
}

BATCH_BYTES_DEFAULT = 1 << 20
# One row, in the order of the projection.
RowTuple = tuple[Any, ...]


class NamedTable(Protocol):
    """The part of a table that a column shows; client.py has the class."""

    @property
    def name(self) -> str:
        """The table's name."""


class Column(ColumnExpression):
    """A column of a table, to compare; `spec` is its ColumnSchema, `parent` the table."""

    __slots__ = ("parent", "spec")

    def __init__(self, parent: NamedTable, spec: ColumnSchema) -> None:
        super().__init__(spec.name)
        self.parent = parent
        self.spec = spec

    def __repr__(self) -> str:
        return f"Column({self.name}, parent={self.parent.name}, type={self.spec.type.name})"

    def _value(self, value: Any) -> Any:
        return self.spec.type.new_value(value).value

    def in_list(self, values: Iterable[Any]) -> Predicate:
        """Return the predicate "equal to one of `values`". Raises TypeError."""
        return super().in_list([self._value(value) for value in values])


class ScanSettings:
    """The settings of a scan of one table.

    Names mean the columns of now, when the object is made, or those of the snapshot that is set.
    """

    def __init__(self, table: Table) -> None:
        self._store = store_of(table)
        self._schema = self._store.newest().schema
        self._request = ReadRequest()
        self._read_mode: str | None = None
        self._batch_bytes = BATCH_BYTES_DEFAULT

    def __repr__(self) -> str:
        where = f" where {And(self._request.where)}" if self._request.where else ""
        return (
            f"<kudulite {type(self).__name__} of table {self._store.name!r}:"
            f" {', '.join(column.name for column in ScanSettings._projected(self))}{where}>"
        )

    def _check_may_change(self) -> None:
        """Raise UsageError if the scan has begun; only a scanner can have."""

    def _projected(self) -> Sequence[EngineColumn]:
        names = self._request.columns
        return [self._schema.column(n) for n in (self._schema.names if names is None else names)]

    def _with(self, **changed: Any) -> Self:
        self._request = replace(self._request, **changed)
        return self

    def set_projected_column_names(self, names: str | Sequence[str]) -> Self:
        """Set the columns to read; an empty list gives rows without cells."""
        self._check_may_change()
        given = [names] if isinstance(names, str) else list(names)
        for name in given:
            self._schema.column(name)
        return self._with(columns=tuple(given))

    def set_projected_column_indexes(self, indexes: Sequence[int]) -> Self:
        """Set the columns to read by their index in the table."""
        return self.set_projected_column_names([self._schema.at(index).name for index in indexes])

    def add_predicate(self, pred: Where) -> Self:
        """Read only rows that meet the predicate, as in `table["column"] >= value`.

        Several predicates must all hold. The `where` of `Table.scan` has the same forms.
        """
        self._check_may_change()
        try:
            conditions = parse_where(pred, self._schema)
            bind_predicates(conditions, self._schema)
        except UsageError as error:
            raise type(error)(f"table {self._store.name!r}: {error}") from error
        return self._with(where=(*self._request.where, *conditions))

    def add_predicates(self, preds: Iterable[Where]) -> Self:
        """Read only rows that meet all of the predicates."""
        for pred in preds:
            self.add_predicate(pred)
        return self

    def new_bound(self) -> PartialRow:
        """Return an empty row; set its key columns to use it as a bound."""
        return Schema(self._schema).new_row()

    def add_lower_bound(self, bound: Any) -> Self:
        """Read only keys at or above `bound`: a row, dict or values of the first key columns."""
        self._check_may_change()
        lower, upper = self._request.bounds
        return self._with(bounds=(tightest(max, lower, self._encoded(bound)), upper))

    def add_exclusive_upper_bound(self, bound: Any) -> Self:
        """Read only keys below `bound`."""
        self._check_may_change()
        lower, upper = self._request.bounds
        return self._with(bounds=(lower, tightest(min, upper, self._encoded(bound))))

    def add_upper_bound(self, bound: Any) -> Self:
        """The same as `add_exclusive_upper_bound`; the name of scan token builders for it."""
        return self.add_exclusive_upper_bound(bound)

    def set_read_mode(self, read_mode: str | int) -> Self:
        """Set the read mode, by name or READ_ constant."""
        self._check_may_change()
        self._read_mode = choice(read_mode, "read mode", _READ_MODES)
        return self

    def set_snapshot(self, timestamp: Any, format: str | None = None) -> Self:
        """Read as of a moment, inclusive: a datetime, text in a `format`, or a HybridTime.

        The columns are those of the moment.
        """
        self._check_may_change()
        if isinstance(timestamp, str) and not format:
            raise KuduInvalidArgument(
                "To use a string timestamp you must provide a format. See the strftime(3)"
                " documentation."
            )
        if not isinstance(timestamp, int):
            timestamp = to_utc(timestamp, format)
            if timestamp.year < 1970:
                raise KuduInvalidArgument("Snapshot Timestamps be greater than the unix epoch.")
        newest = self._store.newest()
        self._schema = newest.schema_at(moment_of(self._store, newest, timestamp))
        return self._with(at=timestamp)

    def set_fault_tolerant(self) -> Self:
        """Return the rows in key order."""
        self._check_may_change()
        return self._with(ordered=True)

    def set_batch_size_bytes(self, batch_size: int) -> Self:
        """Set the approximate size of a batch; it has at least one row."""
        self._check_may_change()
        if batch_size < 0:
            raise KuduInvalidArgument(f"batch size of {batch_size} bytes is below 0")
        self._batch_bytes = max(1, batch_size)
        return self

    def set_selection(self, replica_selection: str | int) -> Self:
        """Check the policy, by name or constant: there is one replica."""
        choice(replica_selection, "replica selection policy", _REPLICA_SELECTIONS)
        return self

    def set_cache_blocks(self, cache_blocks: bool) -> Self:
        """Do nothing: short reads use the block cache, and larger ones do not."""
        return self

    def set_timeout_millis(self, millis: int) -> Self:
        """Do nothing: a scan waits only for the disk."""
        return self

    def _checked(self) -> ReadRequest:
        """Return what was set. Raises KuduInvalidArgument for a snapshot in a mode without one."""
        if self._request.at is not None and self._read_mode not in (None, "snapshot"):
            raise KuduInvalidArgument(
                f"table {self._store.name!r}: a scan in read mode {self._read_mode!r} was given a"
                " snapshot; set_read_mode('snapshot'), or leave the snapshot out"
            )
        return replace(self._request, schema=self._schema)

    def _encoded(self, bound: Any) -> bytes | None:
        """Return a bound as an encoded key prefix; None if it has no columns."""
        row = bound if isinstance(bound, PartialRow) else Schema(self._schema).new_row(bound)
        names = self._schema.key_names
        if set(row) != set(names[: len(row)]):
            raise KuduInvalidArgument(
                f"table {self._store.name!r}: a bound has the columns {', '.join(row)}; expected"
                f" the primary key ({', '.join(names)}) or the first columns of it"
            )
        values = [row[name] for name in names[: len(row)]]
        return self._schema.key_encoder.prefix(values) if values else None


class RowBatch(Sequence[RowTuple]):
    """Some rows of a scan; a row is a tuple in the order of the projection."""

    def __init__(self, batch: pa.RecordBatch, columns: Sequence[EngineColumn]) -> None:
        self._batch = batch
        self._columns = columns

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {', '.join(column.name for column in self._columns)}>"

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    @overload
    def __getitem__(self, index: int) -> RowTuple: ...
    @overload
    def __getitem__(self, index: slice) -> list[RowTuple]: ...
    def __getitem__(self, index: int | slice) -> RowTuple | list[RowTuple]:
        """Return a row, or rows."""
        if isinstance(index, slice):
            return self.as_tuples()[index]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"row {index} of a batch of {len(self)} rows")
        return RowBatch(self._batch.slice(position, 1), self._columns).as_tuples()[0]

    def __iter__(self) -> Iterator[RowTuple]:
        return iter(self.as_tuples())

    def as_tuples(self) -> list[RowTuple]:
        """Return the rows as tuples of Python values, as `Table.get` gives them."""
        if not self._columns:
            return [()] * len(self)
        pairs = zip(self._batch.columns, self._columns, strict=True)
        cells = [_python_values(array, column) for array, column in pairs]
        return list(zip(*cells, strict=True))

    def to_arrow(self) -> pa.RecordBatch:
        """Return the rows as they came."""
        return self._batch


class RowReader:
    """Reads what `_open_batches` gives; a subclass says what that is."""

    _server: TabletServer
    _batch_bytes = BATCH_BYTES_DEFAULT
    _batches: Iterator[pa.RecordBatch] | None = None
    _next: pa.RecordBatch | None = None

    def __repr__(self) -> str:
        state = "open" if self.is_open else "not open"
        return f"<kudulite {type(self).__name__}, {state}>"

    def _open_batches(self) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError

    def _projected(self) -> Sequence[EngineColumn]:
        raise NotImplementedError

    @property
    def is_open(self) -> bool:
        """Whether the scan has begun and was not closed."""
        return self._batches is not None

    def get_projection_schema(self) -> Schema:
        """Return the columns of the rows, without a key."""
        return Schema(self._projected())

    def get_current_server(self) -> TabletServer:
        """Return the place that the rows are read from."""
        return self._server

    def open(self) -> Self:
        """Begin the scan, which fixes its moment; without effect when it has begun already."""
        if self._batches is None:
            self._batches = _in_pieces(self._open_batches(), self._batch_bytes)
            self._next = next(self._batches, None)
        return self

    def has_more_rows(self) -> bool:
        """Whether `next_batch` has a batch to give, never an empty one."""
        self.open()
        return self._next is not None

    def next_batch(self) -> RowBatch:
        """Return the next rows. Raises StopIteration after the last."""
        self.open()
        batch = self._next
        if batch is None or self._batches is None:
            raise StopIteration
        self._next = next(self._batches, None)
        return RowBatch(batch, self._projected())

    def read_next_batch_tuples(self) -> list[RowTuple]:
        """Return the next rows as tuples. Raises StopIteration after the last."""
        return self.next_batch().as_tuples()

    def xbatches(self) -> Iterator[list[RowTuple]]:
        """Yield the rows batch by batch, as lists of tuples."""
        while self.has_more_rows():
            yield self.read_next_batch_tuples()

    def read_all_tuples(self) -> list[RowTuple]:
        """Return all rows that are left."""
        return [row for batch in self.xbatches() for row in batch]

    def to_pandas(self, index: Any = None, coerce_float: bool = False) -> Any:
        """Return all rows that are left as a DataFrame with the given index column or columns.

        Columns have the types that `Scan.to_pandas` gives them; with `coerce_float` decimals become
        floats. Times are in nanoseconds, as in kudu-python's frames, if all are in that range.
        """
        import pandas

        batches = []
        while self.has_more_rows():
            batches.append(self.next_batch().to_arrow())
        columns = self._projected()
        fields = pa.schema([pa.field(c.name, c.type.arrow, c.nullable) for c in columns])
        table = pa.Table.from_batches(batches, fields) if columns else pa.table({})
        if coerce_float:
            table = table.cast(pa.schema([_as_float(field) for field in table.schema]))
        frame = frame_of(table, None, {})
        for name in frame.select_dtypes(["datetimetz", "datetime"]):
            try:
                frame[name] = frame[name].dt.as_unit("ns")
            except pandas.errors.OutOfBoundsDatetime:
                continue
        return frame if index is None else frame.set_index(index)

    def keep_alive(self) -> Self:
        """Do nothing: a scan that is under way keeps its files, however slow its reader is."""
        return self

    def close(self) -> None:
        """End the scan; `open` begins it anew."""
        if isinstance(self._batches, Generator):
            self._batches.close()
        self._batches = self._next = None


def _in_pieces(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of about `size` bytes, at least a row each."""
    for batch in batches:
        rows = max(1, batch.num_rows * size // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _python_values(array: pa.Array, column: EngineColumn) -> list[Any]:
    if column.type.is_timestamp:
        micros = array.cast(pa.int64()).to_pylist()
        return [None if m is None else timestamp_from_micros(m, column.type) for m in micros]
    return list(array.to_pylist())


def _as_float(field: pa.Field) -> pa.Field:
    return field.with_type(pa.float64()) if pa.types.is_decimal(field.type) else field


@in_kudu_terms
class Scanner(ScanSettings, RowReader):
    """A scan that is described, opened, and read batch by batch; made by `Table.scanner`."""

    _scan: RowScan | None = None

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._server = TabletServer(table.path.parent)

    def set_limit(self, limit: int) -> Self:
        """Read at most that many rows."""
        self._check_may_change()
        if limit <= 0:
            raise KuduInvalidArgument(
                f"table {self._store.name!r}: limit {limit} of a scan is not above 0"
            )
        return self._with(limit=limit)

    @property
    def timestamp(self) -> Timestamp | None:
        """The HybridTime of the snapshot that is read, inclusive; None until `open`."""
        return None if self._scan is None else self._scan.timestamp

    def _check_may_change(self) -> None:
        if self.is_open:
            raise KuduInvalidArgument(
                f"table {self._store.name!r}: the scanner is open; set it up before, or close it"
            )

    def _projected(self) -> Sequence[EngineColumn]:
        return ScanSettings._projected(self) if self._scan is None else self._scan.columns

    def _open_batches(self) -> Iterator[pa.RecordBatch]:
        self._scan = RowScan(self._store, self._checked())
        return self._scan.to_batches()
