"""Delta Lake by delta-rs, with its change data feed; Polars reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from stores.engines import (
    SERIES_ORDER,
    polars_aggregate,
    polars_series,
)
from stores.polars_store import PolarsStore
from stores.store import ChangedTables
from stores.workload import KEY, SCHEMA, Aggregate


class DeltaStore(PolarsStore):
    """A table without partitions. The feed makes a merge up to a third slower."""

    title = "delta-rs"
    packages = ("deltalake", "polars")
    settings = "change data feed on; read by Polars; files are not synced"

    def open(self) -> None:
        path = self.path = str(self.folder / "rows")
        if DeltaTable.is_deltatable(path):
            self.table = DeltaTable(path)

    def load(self, rows: pa.Table) -> None:
        write_deltalake(self.path, rows, configuration={"delta.enableChangeDataFeed": "true"})
        self.table = DeltaTable(self.path)

    def upsert(self, rows: pa.Table) -> None:
        self._merge(rows).when_matched_update_all().when_not_matched_insert_all().execute()

    def update(self, rows: pa.Table) -> None:
        self._merge(rows).when_matched_update({"price": "s.price"}).execute()

    def delete(self, keys: pa.Table) -> None:
        self._merge(keys).when_matched_delete().execute()

    def everything(self) -> pa.Table:
        return self._frame().collect().to_arrow()

    def aggregate(self, moment: Any = None) -> Aggregate:
        frame = self._frame() if moment is None else pl.scan_delta(self.path, version=moment)
        return polars_aggregate(frame)

    def moment(self) -> int:
        return self.table.version()

    def changes(self, start: int, end: int) -> pa.Table:
        feed = self.table.load_cdf(start + 1, end, predicate="_change_type != 'update_preimage'")
        return pa.table(feed)

    def changed_tables(self, changes: pa.Table) -> ChangedTables:
        # The feed has every change of a key; the last one counts.
        keys, versions = changes[KEY].to_numpy(), changes["_commit_version"].to_numpy()
        order = np.lexsort((versions, keys))
        is_last = np.append(keys[order][1:] != keys[order][:-1], True)
        rows = changes.select(SCHEMA.names).cast(SCHEMA)
        kinds = changes["_change_type"].cast(pa.string())
        last = rows.append_column("kind", kinds).take(pa.array(order[is_last]))
        is_delete = pc.equal(last["kind"], "delete")
        return ChangedTables(last.filter(pc.invert(is_delete)), last.filter(is_delete))

    def load_series(self, rows: pa.Table) -> None:
        self.series = str(self.folder / "series")
        write_deltalake(self.series, rows.sort_by(SERIES_ORDER))

    def rows_of_series(self, series: int, start: int, end: int) -> pa.Table:
        return polars_series(pl.scan_delta(self.series), series, start, end)

    def _frame(self) -> pl.LazyFrame:
        return pl.scan_delta(self.table)

    def _merge(self, rows: pa.Table) -> Any:
        return self.table.merge(
            rows, "t.key = s.key", source_alias="s", target_alias="t", streamed_exec=False
        )
