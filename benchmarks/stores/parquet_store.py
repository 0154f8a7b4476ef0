"""Parquet without a table format: each write rewrites the file, sorted by key, and syncs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from stores.engines import (
    SERIES_ORDER,
    deleted,
    duckdb_aggregate,
    polars_series,
    updated,
    upserted,
)
from stores.polars_store import PolarsStore
from stores.workload import KEY, Aggregate

# Of kudulite's base data.
ROW_GROUP_ROWS = 131_072


class ParquetStore(PolarsStore):
    """One file for each version; older versions stay. Polars reads rows, DuckDB aggregates."""

    title = "rewritten Parquet"
    packages = ("pyarrow", "polars", "duckdb")
    settings = "one sorted zstd file, rewritten and synced by each write; all versions are kept"
    version = 0

    def open(self) -> None:
        numbers = [int(path.stem) for path in self.folder.glob("[0-9]*.parquet")]
        self.version = max(numbers, default=0)

    def load(self, rows: pa.Table) -> None:
        self._publish(rows.sort_by(KEY))

    def upsert(self, rows: pa.Table) -> None:
        self._publish(upserted(self.everything(), rows).sort_by(KEY))

    def update(self, rows: pa.Table) -> None:
        self._publish(updated(self.everything(), rows))

    def delete(self, keys: pa.Table) -> None:
        self._publish(deleted(self.everything(), keys))

    def everything(self) -> pa.Table:
        return pq.read_table(self._path(self.version))

    def aggregate(self, moment: Any = None) -> Aggregate:
        path = self._path(self.version if moment is None else moment)
        return duckdb_aggregate(duckdb.read_parquet(str(path)))

    def moment(self) -> int:
        return self.version

    def load_series(self, rows: pa.Table) -> None:
        self.series = self.folder / "series.parquet"
        ordered = rows.sort_by(SERIES_ORDER)
        _write(ordered, self.series)

    def rows_of_series(self, series: int, start: int, end: int) -> pa.Table:
        return polars_series(pl.scan_parquet(self.series), series, start, end)

    def _frame(self) -> pl.LazyFrame:
        return pl.scan_parquet(self._path(self.version))

    def _publish(self, rows: pa.Table) -> None:
        _write(rows, self._path(self.version + 1))
        self.version += 1

    def _path(self, version: int) -> Path:
        return self.folder / f"{version:06d}.parquet"


def _write(rows: pa.Table, path: Path) -> None:
    """Write a file, synced and complete under its name."""
    hidden = path.with_suffix(".new")
    pq.write_table(rows, hidden, compression="zstd", row_group_size=ROW_GROUP_ROWS)
    with hidden.open("rb") as file:
        os.fsync(file.fileno())
    hidden.rename(path)
