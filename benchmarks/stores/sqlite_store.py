"""SQLite, of Python's own library, with a write-ahead log that is synced at each commit."""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from stores.duckdb_store import column_list
from stores.engines import AGGREGATE_SQL, SERIES_ORDER, aggregate_of_rows
from stores.store import Store
from stores.workload import KEY, SCHEMA, UPDATED, Aggregate

SQL_TYPES = {
    pa.int64(): "INTEGER",
    pa.int32(): "INTEGER",
    pa.float64(): "REAL",
    pa.string(): "TEXT",
    pa.date32(): "INTEGER",
}
BATCH_ROWS = 20_000
EPOCH = datetime.date(1970, 1, 1)


class SqliteStore(Store):
    """A table whose rowid is the key; dates are stored as days."""

    title = "SQLite"
    packages = ()
    settings = "write-ahead log, synchronous=FULL, cache of 256 MB"

    @classmethod
    def versions(cls) -> str:
        return f"sqlite {sqlite3.sqlite_version}"

    def open(self) -> None:
        self.connection = sqlite3.connect(self.folder / "database", isolation_level=None)
        for setting in ("journal_mode=WAL", "synchronous=FULL", "cache_size=-256000"):
            self.connection.execute(f"PRAGMA {setting}")

    def close(self) -> None:
        self.connection.close()

    def load(self, rows: pa.Table) -> None:
        columns = column_list(SCHEMA, SQL_TYPES).replace("NOT NULL", "PRIMARY KEY", 1)
        self.connection.execute(f"CREATE TABLE t ({columns})")
        self.upsert(rows)

    def upsert(self, rows: pa.Table) -> None:
        # In the order of keys, each page of the tree is written once.
        marks = ", ".join("?" * rows.num_columns)
        self._execute_many(f"INSERT OR REPLACE INTO t VALUES ({marks})", rows.sort_by(KEY))

    def update(self, rows: pa.Table) -> None:
        given = rows.sort_by(KEY).select([UPDATED, KEY])
        self._execute_many("UPDATE t SET price = ? WHERE key = ?", given)

    def delete(self, keys: pa.Table) -> None:
        self._execute_many("DELETE FROM t WHERE key = ?", keys.sort_by(KEY))

    def write_one(self, row: dict[str, Any]) -> None:
        marks = ", ".join("?" * len(row))
        values = (row | {"shipped": (row["shipped"] - EPOCH).days}).values()
        self.connection.execute(f"INSERT OR REPLACE INTO t VALUES ({marks})", list(values))

    def everything(self) -> pa.Table:
        cursor = self.connection.execute("SELECT * FROM t")
        parts = iter(lambda: cursor.fetchmany(BATCH_ROWS), [])
        return pa.concat_tables(_arrow(rows, SCHEMA) for rows in parts)

    def rows_of_range(self, low: int, high: int) -> pa.Table:
        query = "SELECT * FROM t WHERE key >= ? AND key < ?"
        return _arrow(self.connection.execute(query, (low, high)).fetchall(), SCHEMA)

    def rows_of_keys(self, keys: pa.Array) -> pa.Table:
        query = "SELECT t.* FROM json_each(?) JOIN t ON t.key = value"
        found = self.connection.execute(query, (json.dumps(keys.to_pylist()),))
        return _arrow(found.fetchall(), SCHEMA)

    def get(self, key: int) -> dict[str, Any]:
        row = self.connection.execute("SELECT * FROM t WHERE key = ?", (key,)).fetchone()
        return dict(zip(SCHEMA.names, row, strict=True))

    def aggregate(self, moment: Any = None) -> Aggregate:
        if moment is not None:
            raise NotImplementedError
        return aggregate_of_rows(self.connection.execute(AGGREGATE_SQL.format("t")).fetchall())

    def load_series(self, rows: pa.Table) -> None:
        self.series_schema = rows.schema
        columns = column_list(rows.schema, SQL_TYPES)
        key = "PRIMARY KEY (series, time)"
        self.connection.execute(f"CREATE TABLE s ({columns}, {key}) WITHOUT ROWID")
        given = rows.sort_by(SERIES_ORDER)
        self._execute_many("INSERT INTO s VALUES (?, ?, ?, ?)", given)

    def rows_of_series(self, series: int, start: int, end: int) -> pa.Table:
        query = "SELECT * FROM s WHERE series = ? AND time >= ? AND time < ?"
        found = self.connection.execute(query, (series, start, end)).fetchall()
        return _arrow(found, self.series_schema)

    def _execute_many(self, statement: str, rows: pa.Table) -> None:
        self.connection.execute("BEGIN")
        self.connection.executemany(statement, _tuples(rows))
        self.connection.execute("COMMIT")


def _tuples(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Yield the rows in batches, so that Python objects of few rows exist at a time."""
    for batch in rows.to_batches(max_chunksize=BATCH_ROWS):
        columns = [
            (column.cast(pa.int32()) if pa.types.is_date(column.type) else column).to_pylist()
            for column in batch.columns
        ]
        yield from zip(*columns, strict=True)


def _arrow(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    return pa.table(arrays, schema=schema)
