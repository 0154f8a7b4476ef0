"""Type aliases for what users pass and get; they are for signatures and check nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Protocol, TypedDict

import numpy as np
import pyarrow as pa

from kudulite.model.predicate import Predicate


class ArrowStream(Protocol):
    """Anything with the Arrow C stream interface: Polars, DuckDB, pandas, and scans."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a PyCapsule with an ArrowArrayStream."""


# A HybridTime as in `WriteResult.timestamp`, microseconds since 1970, a datetime (UTC where it has
# no zone), or ISO 8601 text.
Moment = int | str | datetime | date
# A cell in a form that its column's type takes; None is null.
Cell = bool | int | float | str | bytes | Decimal | date | datetime | np.generic | None
# A primary key: its one value, a tuple or list of its values, or a dict by column.
Key = Cell | Sequence[Any] | Mapping[str, Any]
# Rows as whole batches: Arrow, whatever speaks Arrow, a dict of columns, or a list of dicts.
Rows = (
    pa.Table
    | pa.RecordBatch
    | pa.RecordBatchReader
    | ArrowStream
    | Mapping[str, Any]
    | Sequence[Mapping[str, Any]]
)
# Many primary keys: a list of them, or rows with the key columns.
Keys = Sequence[Key] | Rows
# One row as a dict of Python values by column.
Row = dict[str, Any]
# Columns to read, in order; text is the name of one.
Columns = Sequence[str] | str
# A condition that rows must meet: a predicate, or several that must all hold.
Where = Sequence[Predicate] | Predicate


class WriteOptions(TypedDict, total=False):
    """The options of a bulk write; see `Table.new_bulk_write`."""

    ignore_null: bool
    ordering_column: str | None
    overwrite: bool
    application_id: str | None
    application_version: int | None
