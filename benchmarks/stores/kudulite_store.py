"""kudulite, with eight tablets or with one; and its native scans beside plain Parquet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import kudulite
from stores.engines import duckdb_aggregate, polars_aggregate
from stores.store import ChangedTables, Store
from stores.workload import KEY, Aggregate, aggregate_of

AGGREGATED = ["mode", "quantity", "price"]
# Of kudulite's base data, which the plain files are compared with.
ROW_GROUP_ROWS = 131_072


class KuduliteStore(Store):
    """A table with eight hash tablets; aggregates run in DuckDB."""

    title = "kudulite"
    packages = ("kudulite", "pyarrow", "duckdb", "polars")
    settings = "8 tablets, no background maintenance"
    tablets = 8

    def open(self) -> None:
        client = self.client = kudulite.connect(self.folder, background_maintenance=False)
        self.session = client.new_session()
        if client.table_exists("rows"):
            self.table = client.table("rows")

    def load(self, rows: pa.Table) -> None:
        self.table = self._created("rows", rows.schema, [KEY], KEY)
        self.table.insert(rows)

    def upsert(self, rows: pa.Table) -> None:
        self.table.upsert(rows)

    def update(self, rows: pa.Table) -> None:
        self.table.update(rows)

    def delete(self, keys: pa.Table) -> None:
        self.table.delete(keys)

    def write_one(self, row: dict[str, Any]) -> None:
        self.session.apply(self.table.new_upsert(row))
        self.session.flush()

    def everything(self) -> pa.Table:
        return self.table.scan().to_arrow()

    def rows_of_range(self, low: int, high: int) -> pa.Table:
        table = self.table
        return table.scan(where=[table[KEY] >= low, table[KEY] < high]).to_arrow()

    def rows_of_keys(self, keys: pa.Array) -> pa.Table:
        return self.table.get_many(pa.table({KEY: keys}))

    def get(self, key: int) -> dict[str, Any]:
        found = self.table.get(key)
        assert found is not None
        return found

    def aggregate(self, moment: Any = None) -> Aggregate:
        return duckdb_aggregate(self.table.scan(at=moment).to_duckdb())

    def moment(self) -> int:
        return self.table.current_timestamp()

    def changes(self, start: int, end: int) -> pa.Table:
        return self.table.changes(start, end).to_arrow()

    def changed_tables(self, changes: pa.Table) -> ChangedTables:
        is_delete = pc.equal(changes["_change_type"], "delete")
        return ChangedTables(changes.filter(pc.invert(is_delete)), changes.filter(is_delete))

    def load_series(self, rows: pa.Table) -> None:
        self.series = self._created("series", rows.schema, ["series", "time"], "series")
        self.series.insert(rows)

    def rows_of_series(self, series: int, start: int, end: int) -> pa.Table:
        table = self.series
        where = [table["series"] == series, table["time"] >= start, table["time"] < end]
        return table.scan(where=where).to_arrow()

    def _created(self, name: str, schema: pa.Schema, key: list[str], hashed: str) -> kudulite.Table:
        buckets = [([hashed], self.tablets)] if self.tablets > 1 else []
        return self.client.create_table(name, schema, primary_key=key, hash_partitions=buckets)

    def native_works(self, folder: Path, moment: int | None) -> dict[str, Callable[[], Aggregate]]:
        """Return the same aggregate in five ways; the last of each pair reads plain Parquet.

        The plain files have the rows of the moment, and are written to `folder`.
        """
        import duckdb
        import polars as pl

        parquet = self._write_parquet(folder, moment)

        def scan() -> kudulite.Scan:
            return self.table.scan(at=moment)

        return {
            "arrow": lambda: aggregate_of(self.table.scan(AGGREGATED, at=moment).to_arrow()),
            "to_duckdb": lambda: duckdb_aggregate(scan().to_duckdb()),
            "read_parquet": lambda: duckdb_aggregate(duckdb.read_parquet(parquet)),
            "to_polars": lambda: polars_aggregate(scan().to_polars()),
            "scan_parquet": lambda: polars_aggregate(pl.scan_parquet(parquet)),
        }

    def _write_parquet(self, folder: Path, moment: int | None) -> list[str]:
        """Write sorted rows as plain Parquet, in as many files as there are tablets."""
        folder.mkdir()
        rows = self.table.scan(at=moment).to_arrow().sort_by(KEY)
        step, paths = -(-rows.num_rows // self.tablets), []
        for number in range(self.tablets):
            paths.append(str(folder / f"{number}.parquet"))
            part = rows.slice(number * step, step)
            pq.write_table(part, paths[-1], compression="zstd", row_group_size=ROW_GROUP_ROWS)
        return paths


class OneTabletStore(KuduliteStore):
    """A table with one tablet."""

    title = "kudulite, one tablet"
    settings = "1 tablet, no background maintenance"
    tablets = 1
