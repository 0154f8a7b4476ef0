"""Lance by pylance, with a BTREE index on the key and stable row ids, which its changes need."""

from __future__ import annotations

from typing import Any

import duckdb
import lance
import pyarrow as pa

from stores.engines import SERIES_ORDER, duckdb_aggregate
from stores.store import ChangedTables, Store
from stores.workload import KEY, Aggregate


class LanceStore(Store):
    """A data set; aggregates run in DuckDB on its scanner. The index is not optimized later."""

    title = "Lance"
    packages = ("pylance", "duckdb")
    settings = "BTREE index on the key, stable row ids; files are not synced"

    def open(self) -> None:
        self.path = self.folder / "rows"
        if self.path.exists():
            self.data = lance.dataset(self.path)

    def load(self, rows: pa.Table) -> None:
        self.data = lance.write_dataset(rows, self.path, enable_stable_row_ids=True)
        self.data.create_scalar_index(KEY, "BTREE")

    def upsert(self, rows: pa.Table) -> None:
        merge = self.data.merge_insert(KEY)
        merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def update(self, rows: pa.Table) -> None:
        self.data.merge_insert(KEY).when_matched_update_all().execute(rows)

    def delete(self, keys: pa.Table) -> None:
        self.data.merge_insert(KEY).when_matched_delete().execute(keys)

    def everything(self) -> pa.Table:
        return self.data.to_table()

    def rows_of_range(self, low: int, high: int) -> pa.Table:
        return self.data.to_table(filter=f"key >= {low} AND key < {high}")

    def rows_of_keys(self, keys: pa.Array) -> pa.Table:
        return self.data.to_table(filter=f"key IN ({', '.join(map(str, keys.to_pylist()))})")

    def get(self, key: int) -> dict[str, Any]:
        return self.data.to_table(filter=f"key = {key}").to_pylist()[0]

    def aggregate(self, moment: Any = None) -> Aggregate:
        found = self.data if moment is None else self.data.checkout_version(moment)
        return duckdb_aggregate(duckdb.from_arrow(found))

    def moment(self) -> int:
        return self.data.version

    def changes(self, start: int, end: int) -> tuple[pa.Table, pa.Table]:
        delta = self.data.checkout_version(end).delta(begin_version=start, end_version=end)
        written = [delta.get_updated_rows().read_all(), delta.get_inserted_rows().read_all()]
        row_ids = delta.get_deleted_row_ids().read_all()["_rowid"].to_pylist()
        # Lance returns the row ids of deleted rows. Their keys are those of the older version.
        keys = self.data.checkout_version(start)._take_rows(row_ids, columns=[KEY])
        return pa.concat_tables(written), keys

    def changed_tables(self, changes: tuple[pa.Table, pa.Table]) -> ChangedTables:
        return ChangedTables(*changes)

    def load_series(self, rows: pa.Table) -> None:
        ordered = rows.sort_by(SERIES_ORDER)
        self.series = lance.write_dataset(ordered, self.folder / "series")
        self.series.create_scalar_index("series", "BTREE")
        self.series.create_scalar_index("time", "BTREE")

    def rows_of_series(self, series: int, start: int, end: int) -> pa.Table:
        return self.series.to_table(
            filter=f"series = {series} AND time >= {start} AND time < {end}"
        )
