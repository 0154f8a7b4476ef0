"""Views of all tables of a directory in a DuckDB connection of the user's own.

    temp.main.metrics                          the view that queries name
      ├─ "kudulite:/data".main."rows of metrics"      the native scan
      └─ "kudulite:/data".main."check of metrics"     one row, or an error

A native scan is one snapshot, so views of the present grow old. DuckDB begins to read the check at
each query that reads the view, before it reads the rows, and the check looks whether the table has
a newer version or row. If so, the query fails with what to call. Views of a moment have no check.

The scans are in an attached database in memory, which is dropped with the connection: views in a
file would outlive them, and SHOW TABLES would list them.

**Invariants**: (1) all views are of one moment; (2) a query never returns rows of an old view of
the present; (3) no table or view of the user is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kudulite.client.sql import (
    Directory,
    check_apart,
    errors_of_duckdb,
    moment_of_tables,
    opened_tables,
    relation_or_error,
)
from kudulite.client.table import Table
from kudulite.errors import ConflictError, UsageError
from kudulite.model.aliases import Moment
from kudulite.model.hybrid_time import Timestamp
from kudulite.reads.sql_query import quoted
from kudulite.table.present import newest_commit

if TYPE_CHECKING:
    import duckdb

_CHECK = pa.schema([pa.field("is_current", pa.bool_())])


def make_views(
    directory: Directory, connection: duckdb.DuckDBPyConnection, at: Moment | None
) -> Timestamp | None:
    """Make the views, or replace those of an earlier call; see `Client.to_duckdb`."""
    with errors_of_duckdb():
        tables = opened_tables(directory)
        check_apart(tables)
        home = f"kudulite:{directory.root}"
        old = _views_of(connection, home)
        names = {name.name for name in tables}
        _check_own_names(connection, names - old)
        timestamp = moment_of_tables(list(tables.values()), at)
        connection.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {quoted(home)}")
        for gone in old - names:
            connection.execute(f"DROP VIEW temp.main.{quoted(gone)}")
        for (_, name), table in tables.items():
            with _using(connection, home):
                found = relation_or_error(connection, table, timestamp)
                found.create_view(f"rows of {name}", replace=True)
                if at is None and isinstance(table, Table):
                    check = connection.from_arrow(_check_of(table, timestamp))
                    check.create_view(f"check of {name}", replace=True)
            text = f"SELECT * FROM {quoted(home)}.main.{quoted(f'rows of {name}')}"
            if at is None and isinstance(table, Table):
                check_name = f"{quoted(home)}.main.{quoted(f'check of {name}')}"
                text += f" WHERE (SELECT is_current FROM {check_name})"
            connection.execute(f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS {text}")
    return timestamp


def _views_of(connection: duckdb.DuckDBPyConnection, home: str) -> set[str]:
    """Return the names of views that an earlier call has made."""
    found = connection.execute(
        "SELECT view_name FROM duckdb_views() WHERE database_name = 'temp' AND contains(sql, ?)",
        [f"FROM {quoted(home)}.main."],
    )
    return {name for (name,) in found.fetchall()}


def _check_own_names(connection: duckdb.DuckDBPyConnection, names: set[str]) -> None:
    """Raise UsageError for a name that the connection has for a table or view of its own."""
    listed = connection.execute(
        "SELECT table_name FROM ("
        " SELECT table_name, database_name, schema_name FROM duckdb_tables() UNION ALL"
        " SELECT view_name, database_name, schema_name FROM duckdb_views() WHERE NOT internal)"
        " WHERE database_name = 'temp'"
        " OR (database_name = current_database() AND schema_name = current_schema())"
    )
    own = {name.lower(): name for (name,) in listed.fetchall()}
    if taken := [own[name.lower()] for name in names if name.lower() in own]:
        raise UsageError(
            f"the connection has {', '.join(sorted(taken))} already, which views of the same name"
            " would hide; rename them, or give another connection"
        )


@contextmanager
def _using(connection: duckdb.DuckDBPyConnection, database: str) -> Iterator[None]:
    """Make a database the current one for a while."""
    [[current, schema, path]] = connection.execute(
        "SELECT current_database(), current_schema(), current_setting('search_path')"
    ).fetchall()
    connection.execute(f"USE {quoted(database)}.main")
    try:
        yield
    finally:
        connection.execute(f"USE {quoted(current)}.{quoted(schema)}")
        if path:
            connection.execute("SET search_path = ?", [path])


def _check_of(table: Table, timestamp: Timestamp | None) -> Any:
    """Return one row as a dataset that cannot be read once the table is newer than a moment."""
    # Imported here, because it imports pandas where that is installed.
    import pyarrow.dataset as ds

    class Check(ds.Dataset):  # type: ignore[misc]
        @property
        def schema(self) -> pa.Schema:
            return _CHECK

        def scanner(self, columns: Sequence[str] | None = None, **options: Any) -> Any:
            if timestamp is None or newest_commit(table._store) > timestamp:
                raise ConflictError(
                    f"table {table.name!r} has a newer version than the views of this connection,"
                    f" which show it as of {timestamp}; call client.to_duckdb(connection) again, or"
                    " give it at=… for views that stay"
                )
            rows = pa.record_batch([[True]], _CHECK)
            return ds.Scanner.from_batches([rows], schema=_CHECK, columns=columns)

    # Dataset has no constructor for Python.
    return Check.__new__(Check)
