"""Type aliases for what users pass and get; they are for signatures and check nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from os import PathLike
from typing import Any, Protocol, TypedDict

import numpy as np
import pyarrow as pa

from kudulite.model.condition import Condition
from kudulite.model.hybrid_time import Timestamp


class ArrowStream(Protocol):
    """Anything with the Arrow C stream interface: Polars, DuckDB, pandas, and scans."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a PyCapsule with an ArrowArrayStream."""


class Stamped(Protocol):
    """A version of a table or the result of a write, which stands for its moment."""

    @property
    def timestamp(self) -> Timestamp:
        """The moment."""


# A HybridTime as in `WriteResult.timestamp`, microseconds since 1970, a datetime with a time zone,
# ISO 8601 text (UTC where it has no zone), "1 hour ago", timedelta(hours=-1), or what is stamped.
Moment = int | str | datetime | timedelta | Stamped
# A cell in a form that its column's type takes; None is null.
Cell = bool | int | float | str | bytes | Decimal | date | datetime | np.generic | None
# A primary key: its one value, a tuple or list of its values, or a dict by column.
Key = Cell | Sequence[Any] | Mapping[str, Any]
# Rows as whole batches: Arrow, whatever speaks Arrow, a dict of columns, or a list of dicts, where
# each dict sets its own columns; or the path of a file with rows, or several.
Rows = (
    pa.Table
    | pa.RecordBatch
    | pa.RecordBatchReader
    | ArrowStream
    | Mapping[str, Any]
    | Sequence[Mapping[str, Any]]
    | str
    | PathLike[str]
    | Sequence[str | PathLike[str]]
)
# Many primary keys: a list of them, or rows with the key columns.
Keys = Sequence[Key] | Rows
# One row as a dict of Python values by column.
Row = dict[str, Any]
# Columns to read, in order; text is the name of one.
Columns = Sequence[str] | str
# A predicate as a tuple: ("v", ">", 1); operators are = == != < <= > >= in, not in.
Comparison = tuple[str, str, Any]
# Conditions that rows must meet: SQL text, text with the values of its `?`, predicates joined by
# & | ~, or tuples. All of a sequence must hold; of a list of lists of tuples, all of at least one.
Where = (
    str
    | Condition
    | Comparison
    | tuple[str, list[Any]]
    | Sequence[str | Condition | Comparison]
    | Sequence[list[Comparison]]
)


class WriteOptions(TypedDict, total=False):
    """Options of a write:

    ignore_null=False         whether a null leaves the cell as it is
    ordering_column=None      the column whose highest value decides which row of a key counts
    overwrite=False           whether all other rows are deleted in the same version
    application_id=None       the name of the series of writes that this write belongs to
    application_version=None  its number in the series; the write is skipped when this number, or
                              a higher one, was committed before under the same name
    read_at=None              the moment at which the rows were read that this write was computed
                              from; ConflictError if a key of the write has changed since
    message=None              a note of up to 500 bytes for the list of versions
    unchanged=None            with "skip", cells and rows that are equal to those of the table, bit
                              for bit, are left out; WriteResult.unchanged counts the rows. With
                              `overwrite`, all other rows are changed or deleted
    schema_evolution=False    whether columns that the table lacks are added first, and types
                              widened; see `extend_schema`. They stay if the write fails
    nested=None               with "json", structs, maps and lists of them become JSON text

    With `ordering_column`, the row with the highest value wins, regardless of arrival order and
    also against the row in the table. Deletes are remembered for the retention period. Applying the
    same changes in any order or batching gives the same table. Insert and update both mean upsert
    then. Of equal values a delete wins, otherwise the row with the greater cells.
    """

    ignore_null: bool
    ordering_column: str | None
    overwrite: bool
    application_id: str | None
    application_version: int | None
    read_at: Moment | None
    message: str | None
    unchanged: str | None
    schema_evolution: bool
    nested: str | None
