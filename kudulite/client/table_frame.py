"""A table as a frame to read: the ways to its rows of now that the frames people know have.

    table.to_pandas(), to_arrow(), to_polars(), to_duckdb(), to_parquet(path)
    pl.DataFrame(table), pa.table(table), duckdb.sql("FROM table")     the Arrow stream interface
    table[["id", "city"]]                                              a scan of some columns
    for row in table                                                   rows as dicts
    table.shape, columns, head(), sample(n), describe()

Each is a new scan of the newest rows. `scan` has conditions, moments and limits.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.errors import OptionError, UsageError
from kudulite.model.schema import Schema
from kudulite.reads.native_scan import Scan
from kudulite.shown.html import ROWS_SHOWN

if TYPE_CHECKING:
    import duckdb
    import polars as pl

SUMMARY = pa.schema(
    [
        ("column", pa.string()),
        ("type", pa.string()),
        ("count", pa.int64()),
        ("nulls", pa.int64()),
        ("min", pa.string()),
        ("max", pa.string()),
        ("mean", pa.float64()),
        ("std", pa.float64()),
    ]
)


class TableFrame:
    """The part of a table that reads all rows of now; mixed into `Table`."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The newest schema."""

    @property
    @abstractmethod
    def live_row_count(self) -> int:
        """The number of rows."""

    @abstractmethod
    def scan(self) -> Scan:
        """Plan a scan; see `Table.scan`."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in their order."""
        return list(self.schema.names)

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and of columns now."""
        return self.live_row_count, len(self.schema.names)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of now as dicts, while they are read; see `Scan.to_pylist`."""
        return iter(self.scan())

    def __contains__(self, value: object) -> NoReturn:
        """Refuse `value in table`, which would compare it with each row."""
        raise UsageError(
            f"{value!r} in table: write {value!r} in table.columns, or table.get(key) is not None"
        )

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows of now as an Arrow C stream, for DuckDB, Polars, pandas and others."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Return the columns as an Arrow C schema."""
        return self.schema.arrow_schema().__arrow_c_schema__()

    def to_arrow(self) -> pa.Table:
        """Return the rows of now as one Arrow table."""
        return self.scan().to_arrow()

    def to_pandas(self, dtype_backend: str | None = None, **options: Any) -> Any:
        """Return the rows of now as a pandas DataFrame; see `Scan.to_pandas`."""
        return self.scan().to_pandas(dtype_backend, **options)

    def to_polars(self) -> pl.LazyFrame:
        """Return the rows of now as a Polars LazyFrame; see `Scan.to_polars`."""
        return self.scan().to_polars()

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        """Return the rows of now as a DuckDB relation, a snapshot; see `Scan.to_duckdb`."""
        return self.scan().to_duckdb(connection)

    def to_parquet(
        self, path: str | PathLike[str], *, storage_options: Mapping[str, str] | None = None
    ) -> int:
        """Write the rows of now to a Parquet file; return their number; see `Scan.to_parquet`."""
        return self.scan().to_parquet(path, storage_options=storage_options)

    def sample(self, n: int = ROWS_SHOWN, seed: int | None = None) -> pa.Table:
        """Return `n` rows, each with the same chance, or all if the table has fewer.

        The same `seed` gives the same rows while the table is not changed or compacted. All rows
        are read; the result is all that is in memory of them.
        """
        if n < 0:
            raise OptionError(f"sample: n is {n}, expected 0 or more")
        scan, random = self.scan(), np.random.default_rng(seed)
        rows, marks = pa.Table.from_batches([], scan.schema), np.empty(0)
        for batch in scan.to_batches():
            found = pa.concat_tables([rows, pa.Table.from_batches([batch])])
            marks = np.concatenate([marks, random.random(batch.num_rows)])
            kept = np.sort(np.argpartition(marks, n - 1)[:n]) if n < len(marks) else None
            rows, marks = (found, marks) if kept is None else (found.take(kept), marks[kept])
        return rows

    def describe(self) -> pa.Table:
        """Return a row for each column: type, count, NULLs, minimum, maximum, mean, deviation.

        Minimum and maximum are text, and are not of booleans and lists. Mean and standard
        deviation, that of a sample, are of numbers. All rows are read once.
        """
        scan = self.scan()
        return summary_of(scan.schema, scan.to_batches())


def summary_of(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return the SUMMARY of the columns of batches."""
    columns = [_ColumnSummary(field) for field in schema]
    for batch in batches:
        for column, cells in zip(columns, batch.columns, strict=True):
            column.add(cells)
    return pa.Table.from_pylist([column.row() for column in columns], SUMMARY)


class _ColumnSummary:
    """The summary of a column's cells so far."""

    def __init__(self, field: pa.Field) -> None:
        self._field = field
        self._is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        self._is_number |= pa.types.is_decimal(field.type)
        self._is_ordered = not pa.types.is_nested(field.type) and not pa.types.is_boolean(
            field.type
        )
        self._count = self._nulls = 0
        self._least = self._greatest = pa.scalar(None, field.type)
        self._mean = self._squares = 0.0  # the sum of squared deviations from the mean

    def add(self, cells: pa.Array) -> None:
        """Add the cells of a batch."""
        self._nulls += cells.null_count
        count = len(cells) - cells.null_count
        if not count:
            return
        if self._is_ordered:
            found = pc.min_max(cells)
            ends = [self._least, self._greatest, found["min"], found["max"]]
            found = pc.min_max(pa.array(ends, self._field.type))
            self._least, self._greatest = found["min"], found["max"]
        if self._is_number:
            numbers = cells.drop_null().cast(pa.float64(), safe=False).to_numpy()
            mean = float(numbers.mean())
            delta, total = mean - self._mean, self._count + count
            self._squares += float(((numbers - mean) ** 2).sum())
            self._squares += delta * delta * self._count * count / total
            self._mean += delta * count / total
        self._count += count

    def row(self) -> dict[str, Any]:
        """Return the row of the summary."""
        deviation = (self._squares / (self._count - 1)) ** 0.5 if self._count > 1 else None
        return {
            "column": self._field.name,
            "type": str(self._field.type),
            "count": self._count,
            "nulls": self._nulls,
            "min": _text(self._least),
            "max": _text(self._greatest),
            "mean": self._mean if self._is_number and self._count else None,
            "std": deviation if self._is_number else None,
        }


def _text(value: pa.Scalar) -> str | None:
    """Return a minimum or maximum as text, also a moment outside the years of Python."""
    if not value.is_valid:
        return None
    return str(value.as_py()) if pa.types.is_binary(value.type) else str(value.cast(pa.string()))
