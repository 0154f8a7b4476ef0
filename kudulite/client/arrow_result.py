"""ArrowResult: rows that are read as record batches, and the forms in which users get them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import pyarrow as pa


class ArrowResult(ABC):
    """Rows that are read when one of the methods is called, anew at each call."""

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name} {field.type}" for field in self.schema)
        return f"<kudulite {type(self).__name__}: {columns or 'no columns'}>"

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The Arrow schema of the result."""

    @abstractmethod
    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches, none empty."""

    def to_arrow(self) -> pa.Table:
        """Return all rows as one table."""
        return pa.Table.from_batches(self.to_batches(), self.schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader that scans while it is read."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def to_pandas(self, **options: Any) -> Any:
        """Return a pandas DataFrame; `options` are those of pyarrow's `Table.to_pandas`."""
        return self.to_arrow().to_pandas(**options)

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return all rows as dicts."""
        return list(self.to_arrow().to_pylist())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows as an Arrow C stream, for DuckDB, Polars and others."""
        return self.to_reader().__arrow_c_stream__(requested_schema)
