"""RowReader: the rows of a scan batch by batch as Python tuples, in kudu-python's words.

For programs that were written for kudu-python; `Table.scan` gives the same rows as Arrow, without
making a Python object of each cell.

Threads: one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self, overload

import pyarrow as pa

from kudulite.model.partial_row import column_at
from kudulite.model.schema import Column
from kudulite.model.values import timestamp_from_micros

BATCH_BYTES_DEFAULT = 1 << 20
# One row, in the order of the projection.
RowTuple = tuple[Any, ...]


class Projection(Sequence[Column]):
    """The columns of a scan's rows, by number or name."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)

    def __repr__(self) -> str:
        return f"Projection({', '.join(f'{c.name} {c.type}' for c in self.columns)})"

    @property
    def names(self) -> list[str]:
        """The columns' names, in order."""
        return [column.name for column in self.columns]

    def __len__(self) -> int:
        return len(self.columns)

    @overload
    def __getitem__(self, key: int | str) -> Column: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Column, ...]: ...
    def __getitem__(self, key: int | str | slice) -> Column | tuple[Column, ...]:
        """Return a column; ColumnNotFoundError lists the columns."""
        if isinstance(key, slice):
            return self.columns[key]
        if isinstance(key, int) and key < 0:
            key += len(self.columns)
        return self.columns[self.names.index(column_at(self.columns, key).name)]

    def at(self, index: int) -> Column:
        """Return a column by number."""
        return self[index]


class RowBatch(Sequence[RowTuple]):
    """Some rows of a scan; a row is a tuple in the order of the projection."""

    def __init__(self, batch: pa.RecordBatch, columns: Sequence[Column]) -> None:
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

    def __init__(self) -> None:
        self._batch_bytes = BATCH_BYTES_DEFAULT
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._next: pa.RecordBatch | None = None

    def __repr__(self) -> str:
        state = "open" if self.is_open else "not open"
        return f"<kudulite {type(self).__name__}, {state}>"

    def _open_batches(self) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError

    def _projected(self) -> Sequence[Column]:
        raise NotImplementedError

    @property
    def is_open(self) -> bool:
        """Whether the scan has begun and was not closed."""
        return self._batches is not None

    def get_projection_schema(self) -> Projection:
        """Return the columns of the rows."""
        return Projection(self._projected())

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
        floats.
        """
        batches = []
        while self.has_more_rows():
            batches.append(self.next_batch().to_arrow())
        columns = self._projected()
        fields = pa.schema([pa.field(c.name, c.type.arrow, c.nullable) for c in columns])
        table = pa.Table.from_batches(batches, fields) if columns else pa.table({})
        if coerce_float:
            table = table.cast(pa.schema([_as_float(field) for field in table.schema]))
        frame = table.to_pandas()
        return frame if index is None else frame.set_index(index)

    def keep_alive(self) -> Self:
        """Do nothing: a scan that is under way keeps its files, however slow its reader is."""
        return self

    def close(self) -> None:
        """End the scan; `open` begins it anew."""
        if self._batches is not None:
            close = getattr(self._batches, "close", None)
            if close is not None:
                close()
        self._batches = self._next = None


def _in_pieces(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of about `size` bytes, at least a row each."""
    for batch in batches:
        rows = max(1, batch.num_rows * size // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _python_values(array: pa.Array, column: Column) -> list[Any]:
    if column.type.is_timestamp:
        micros = array.cast(pa.int64()).to_pylist()
        return [None if m is None else timestamp_from_micros(m, column.type) for m in micros]
    return list(array.to_pylist())


def _as_float(field: pa.Field) -> pa.Field:
    return field.with_type(pa.float64()) if pa.types.is_decimal(field.type) else field
