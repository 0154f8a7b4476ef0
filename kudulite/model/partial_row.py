"""PartialRow: a row of which only some cells are set, by column name or number.

What a scan's bound or a range partition's bound is in kudu-python. A cell that is not set is not
null: in a bound it is the least value of its column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from kudulite.errors import ColumnNotFoundError, SchemaError
from kudulite.model.types import ColumnType
from kudulite.model.values import canonical_value


class RowColumn(Protocol):
    """What a row has to know of a column."""

    @property
    def name(self) -> str:
        """The column's name."""

    @property
    def type(self) -> ColumnType:
        """The type of its cells."""

    @property
    def nullable(self) -> bool:
        """Whether a cell may be null."""


def column_at(columns: Sequence[RowColumn], key: str | int) -> RowColumn:
    """Return a column by name, or by number from 0. Raises ColumnNotFoundError."""
    if isinstance(key, str):
        for column in columns:
            if column.name == key:
                return column
    elif isinstance(key, int) and 0 <= key < len(columns):
        return columns[key]
    listed = ", ".join(column.name for column in columns)
    raise ColumnNotFoundError(f"no column {key!r}; columns: {listed}")


class PartialRow(Mapping[str, Any]):
    """Cells by column name, in canonical form, in the order in which they were set."""

    __slots__ = ("_cells", "_columns")

    def __init__(self, columns: Sequence[RowColumn], record: Any = None) -> None:
        self._columns = columns
        self._cells: dict[str, Any] = {}
        if record is not None:
            self.from_record(record)

    def __repr__(self) -> str:
        return f"PartialRow({self._cells!r})"

    def __setitem__(self, key: str | int, value: Any) -> None:
        """Set a cell. Raises ColumnNotFoundError, and SchemaError for a value that does not fit."""
        column = column_at(self._columns, key)
        if value is None and not column.nullable:
            raise SchemaError(f"column {column.name!r} is NOT NULL and was given None")
        self._cells[column.name] = canonical_value(value, column.type, column.name)

    def __getitem__(self, key: str | int) -> Any:
        return self._cells[column_at(self._columns, key).name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def from_record(self, record: Any) -> PartialRow:
        """Set cells from a tuple or list, in column order, or a dict by name or number."""
        if isinstance(record, Mapping):
            cells = list(record.items())
        elif isinstance(record, list | tuple):
            cells = list(enumerate(record))
        else:
            raise SchemaError(f"{record!r} is no row; give a tuple, a list, or a dict")
        for key, value in cells:
            self[key] = value
        return self
