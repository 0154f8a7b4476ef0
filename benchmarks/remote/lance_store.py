"""Lance by pylance, with a BTREE index on the key and stable row ids, which its changes need."""

from __future__ import annotations

from collections.abc import Sequence

import lance
import lance.namespace
import numpy as np
import pyarrow as pa
from stores.workload import KEY, Aggregate

from remote.store import ChangedRows, RemoteStore

_AGGREGATE = "SELECT mode, count(*) AS n, sum(quantity) AS q, sum(price) AS p FROM dataset"


class LanceStore(RemoteStore):
    """A data set; its own SQL aggregates. The index is not optimized after writes."""

    title = "Lance"
    packages = ("pylance",)
    settings = "BTREE index on the key, stable row ids"

    def _address(self, name: str) -> str:
        # A namespace lists the folders that end so.
        return f"{self.place.table(name)}.lance"

    def load(self, name: str, rows: pa.Table) -> None:
        options = self.place.storage_options
        data = lance.write_dataset(
            rows, self._address(name), enable_stable_row_ids=True, storage_options=options
        )
        data.create_scalar_index(KEY, "BTREE")

    def open(self, name: str, *, is_maintained: bool = False) -> None:
        options = self.place.storage_options
        self.data = lance.dataset(self._address(name), storage_options=options)

    def look(self) -> int:
        self.data.checkout_latest()
        return self.data.version

    def scan(self, columns: Sequence[str] | None = None) -> pa.Table:
        return self.data.to_table(None if columns is None else list(columns))

    def aggregate(self) -> Aggregate:
        batches = self.data.sql(f"{_AGGREGATE} GROUP BY mode").build().to_batch_records()
        rows = zip(*pa.Table.from_batches(batches).to_pydict().values(), strict=True)
        return {mode: (count, quantity, price) for mode, count, quantity, price in rows}

    def rows_of_keys(self, keys: np.ndarray) -> pa.Table:
        return self.data.to_table(filter=f"key IN ({', '.join(map(str, keys.tolist()))})")

    def rows_of_range(self, low: int, high: int) -> pa.Table:
        return self.data.to_table(filter=f"key >= {low} AND key < {high}")

    def row(self, key: int) -> pa.Table:
        return self.data.to_table(filter=f"key = {key}")

    def upsert(self, rows: pa.Table) -> None:
        merge = self.data.merge_insert(KEY)
        merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def append(self, rows: pa.Table) -> None:
        self.data.insert(rows)

    def is_conflict(self, error: Exception) -> bool:
        return any(text in str(error).lower() for text in ("conflict", "concurrent writers"))

    def changes(self, start: int) -> tuple[pa.Table, int]:
        delta = self.data.delta(begin_version=start, end_version=self.data.version)
        written = [delta.get_updated_rows().read_all(), delta.get_inserted_rows().read_all()]
        deleted = delta.get_deleted_row_ids().read_all().num_rows
        return pa.concat_tables(written), deleted

    def changed_rows(self, changes: tuple[pa.Table, int]) -> ChangedRows:
        written, deleted_count = changes
        names = [name for name in written.column_names if not name.startswith("_")]
        return ChangedRows(written.select(names), deleted_count)

    def list_tables(self) -> list[str]:
        options = {f"storage.{k}": v for k, v in self.place.storage_options.items()}
        space = lance.namespace.DirectoryNamespace(root=self.place.url, **options)
        return list(space.list_tables(lance.namespace.ListTablesRequest(id=[])).tables)
