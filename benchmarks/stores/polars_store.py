"""PolarsStore: a store whose rows are read by key through a Polars LazyFrame."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import polars as pl
import pyarrow as pa

from stores.store import Store
from stores.workload import KEY


class PolarsStore(Store):
    """Reads of the newest rows by Polars."""

    @abstractmethod
    def _frame(self) -> pl.LazyFrame:
        """Return the newest rows."""

    def rows_of_range(self, low: int, high: int) -> pa.Table:
        return (
            self._frame().filter((pl.col(KEY) >= low) & (pl.col(KEY) < high)).collect().to_arrow()
        )

    def rows_of_keys(self, keys: pa.Array) -> pa.Table:
        # A semi join takes twice the time.
        return self._frame().filter(pl.col(KEY).is_in(pl.Series(keys))).collect().to_arrow()

    def get(self, key: int) -> dict[str, Any]:
        return self._frame().filter(pl.col(KEY) == key).collect().row(0, named=True)
