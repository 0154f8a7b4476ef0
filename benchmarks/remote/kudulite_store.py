"""kudulite: eight hash tablets, on an object store or in a directory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from stores.workload import KEY, SCHEMA, Aggregate, aggregate_of

import kudulite

# Named here, because a process imports the parts of kudulite when it first uses them.
import kudulite.client.client
import kudulite.storage.object_storage
from remote.model import AGGREGATED
from remote.store import ChangedRows, RemoteStore


class KuduliteStore(RemoteStore):
    """A table of eight tablets; pyarrow aggregates."""

    title = "kudulite"
    packages = ("kudulite", "pyarrow")
    settings = "8 hash tablets, no background maintenance"

    def _connect(self, *, is_maintained: bool = False) -> kudulite.Client:
        options: dict[str, Any] = {"background_maintenance": is_maintained}
        if self.place.endpoint is not None:
            options["storage_options"] = self.place.storage_options
        return kudulite.connect(self.place.url, **options)

    def load(self, name: str, rows: pa.Table) -> None:
        with self._connect() as client:
            table = client.create_table(
                name, rows.schema, primary_key=[KEY], hash_partitions=[([KEY], 8)]
            )
            table.insert(rows)

    def open(self, name: str, *, is_maintained: bool = False) -> None:
        self.client = self._connect(is_maintained=is_maintained)
        self.table = self.client.table(name)

    def close(self) -> None:
        self.client.close()

    def look(self) -> Any:
        return self.table.newest_change()

    def scan(self, columns: Sequence[str] | None = None) -> pa.Table:
        return self.table.scan(columns).to_arrow()

    def aggregate(self) -> Aggregate:
        return aggregate_of(self.scan(AGGREGATED))

    def row(self, key: int) -> pa.Table:
        found = self.table.get(key)
        return pa.Table.from_pylist([] if found is None else [dict(found)], SCHEMA)

    def rows_of_keys(self, keys: np.ndarray) -> pa.Table:
        return self.table.get_many(pa.table({KEY: keys}))

    def rows_of_range(self, low: int, high: int) -> pa.Table:
        table = self.table
        return table.scan(where=[table[KEY] >= low, table[KEY] < high]).to_arrow()

    def upsert(self, rows: pa.Table) -> None:
        self.table.upsert(rows)

    def append(self, rows: pa.Table) -> None:
        self.table.insert(rows)

    def flush_one(self, row: dict[str, Any]) -> None:
        session = self.client.new_session()
        session.apply(self.table.new_upsert(row))
        session.flush()

    def changes(self, start: Any) -> pa.Table:
        return self.table.changes(start).to_arrow()

    def changed_rows(self, changes: pa.Table) -> ChangedRows:
        is_delete = pc.equal(changes["_change_type"], "delete")
        written = changes.filter(pc.invert(is_delete)).select(SCHEMA.names)
        return ChangedRows(written, changes.num_rows - written.num_rows)

    def make_tables(self, count: int, rows: pa.Table) -> None:
        with self._connect() as client:
            for number in range(count):
                made = client.create_table(f"many-{number}", rows.schema, primary_key=[KEY])
                made.insert(rows)

    def list_tables(self) -> list[str]:
        with self._connect() as client:
            return client.list_tables()
