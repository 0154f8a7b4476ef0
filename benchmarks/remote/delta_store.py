"""Delta Lake by delta-rs, with its change data feed; its own SQL engine reads it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import CommitFailedError
from stores.workload import SCHEMA, Aggregate

from remote.store import ChangedRows, RemoteStore

_AGGREGATE = "SELECT mode, count(*), sum(quantity), sum(price) FROM t GROUP BY mode"


class DeltaStore(RemoteStore):
    """A table without partitions."""

    title = "delta-rs"
    packages = ("deltalake",)
    settings = "change data feed on; read by its own SQL"

    def load(self, name: str, rows: pa.Table) -> None:
        write_deltalake(
            self.place.table(name),
            rows,
            configuration={"delta.enableChangeDataFeed": "true"},
            storage_options=self.place.storage_options,
        )

    def open(self, name: str, *, is_maintained: bool = False) -> None:
        self.table = DeltaTable(self.place.table(name), storage_options=self.place.storage_options)

    def look(self) -> int:
        self.table.update_incremental()
        return self.table.version()

    def scan(self, columns: Sequence[str] | None = None) -> pa.Table:
        return self._query(f"SELECT {', '.join(columns or SCHEMA.names)} FROM t")

    def aggregate(self) -> Aggregate:
        rows = zip(*self._query(_AGGREGATE).to_pydict().values(), strict=True)
        return {mode: (count, quantity, price) for mode, count, quantity, price in rows}

    def rows_of_keys(self, keys: np.ndarray) -> pa.Table:
        return self._query(f"SELECT * FROM t WHERE key IN ({', '.join(map(str, keys.tolist()))})")

    def rows_of_range(self, low: int, high: int) -> pa.Table:
        return self._query(f"SELECT * FROM t WHERE key >= {low} AND key < {high}")

    def row(self, key: int) -> pa.Table:
        return self._query(f"SELECT * FROM t WHERE key = {key}")

    def upsert(self, rows: pa.Table) -> None:
        merge = self.table.merge(
            rows, "t.key = s.key", source_alias="s", target_alias="t", streamed_exec=False
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def append(self, rows: pa.Table) -> None:
        write_deltalake(self.table, rows, mode="append")

    def is_conflict(self, error: Exception) -> bool:
        return isinstance(error, CommitFailedError)

    def changes(self, start: int) -> pa.Table:
        feed = self.table.load_cdf(start + 1, predicate="_change_type != 'update_preimage'")
        return pa.table(feed)

    def changed_rows(self, changes: pa.Table) -> ChangedRows:
        changes = _with_plain_texts(changes)
        is_delete = pc.equal(changes["_change_type"], "delete")
        written = changes.filter(pc.invert(is_delete)).select(SCHEMA.names)
        return ChangedRows(written, changes.num_rows - written.num_rows)

    def _query(self, sql: str) -> pa.Table:
        """Run SQL on the table `t`."""
        return _with_plain_texts(pa.table(QueryBuilder().register("t", self.table).execute(sql)))


def _with_plain_texts(found: pa.Table) -> pa.Table:
    """Return texts that are not views, which pyarrow cannot do much with."""
    fields = [
        field.with_type(pa.string()) if pa.types.is_string_view(field.type) else field
        for field in found.schema
    ]
    return found.cast(pa.schema(fields))
