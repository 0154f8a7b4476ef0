"""Reads by Polars and DuckDB, and writes by pyarrow, that several stores share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from stores.workload import KEY, UPDATED, Aggregate

if TYPE_CHECKING:
    import polars as pl

AGGREGATE_SQL = "SELECT mode, count(*), sum(quantity), sum(price) FROM {} GROUP BY mode"
SERIES_ORDER = [("series", "ascending"), ("time", "ascending")]


def duckdb_aggregate(relation: Any) -> Aggregate:
    """Return the aggregate of a DuckDB relation, by DuckDB."""
    return aggregate_of_rows(relation.query("source", AGGREGATE_SQL.format("source")).fetchall())


def aggregate_of_rows(rows: list[tuple[Any, ...]]) -> Aggregate:
    """Return the aggregate whose rows an engine returned."""
    return {mode: (count, quantity, price) for mode, count, quantity, price in rows}


def polars_aggregate(frame: pl.LazyFrame) -> Aggregate:
    """Return the aggregate of a Polars LazyFrame, by Polars."""
    import polars as pl

    grouped = frame.group_by("mode").agg(pl.len(), pl.sum("quantity"), pl.sum("price"))
    return aggregate_of_rows(grouped.collect().rows())


def polars_series(frame: pl.LazyFrame, series: int, start: int, end: int) -> pa.Table:
    """Return the rows of a series in a range of time, by Polars."""
    import polars as pl

    is_in_time = (pl.col("time") >= start) & (pl.col("time") < end)
    return frame.filter((pl.col("series") == series) & is_in_time).collect().to_arrow()


def upserted(rows: pa.Table, given: pa.Table) -> pa.Table:
    """Return the rows after an upsert, by pyarrow."""
    kept = rows.filter(pc.invert(pc.is_in(rows[KEY], given[KEY])))
    return pa.concat_tables([kept, given])


def updated(rows: pa.Table, given: pa.Table) -> pa.Table:
    """Return the rows after an update of the price, by pyarrow."""
    places = pc.index_in(rows[KEY], given[KEY]).combine_chunks()
    values = given[UPDATED].combine_chunks().take(places.drop_null())
    prices = pc.replace_with_mask(rows[UPDATED].combine_chunks(), places.is_valid(), values)
    return rows.set_column(rows.column_names.index(UPDATED), UPDATED, prices)


def deleted(rows: pa.Table, keys: pa.Table) -> pa.Table:
    """Return the rows after a delete, by pyarrow."""
    return rows.filter(pc.invert(pc.is_in(rows[KEY], keys[KEY])))
