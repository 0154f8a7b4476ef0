"""A cell that a write sets in each row: a value, or what SQL text computes.

The module stands alone because conditions need expressions, expressions as text need conditions,
and both the write and its parts need the cell. It imports the parser only when there is a text.

**Threads**: any; a `Cell` never changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from kudulite.model.schema import Column, Schema


class Cell(Protocol):
    """A value to set in a column of each row."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it is computed from."""

    @property
    def nbytes(self) -> int:
        """How many bytes it has in each row, where that is known before."""

    def of(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the value of each row. Raises SchemaError for one that does not fit."""


@dataclass(frozen=True)
class ConstantCell:
    """The same value in each row."""

    scalar: pa.Scalar
    columns: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """The bytes of the value."""
        return int(pa.repeat(self.scalar, 1).nbytes)

    def of(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the value once for each row."""
        return pa.repeat(self.scalar, rows.num_rows)


def computed_cell(text: str, column: Column, schema: Schema) -> Cell:
    """Return the value of `column` that SQL text computes; raises what `parse_cell` raises."""
    # Imported here, because it imports sqlglot: most processes set no expression.
    from kudulite.model.expression_text import parse_cell

    return parse_cell(text, column, schema)
