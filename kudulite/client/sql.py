"""SQL over the tables of a directory, in DuckDB.

    client.sql("SELECT … FROM metrics JOIN hosts …")
       │ named_tables: which tables the text names              (sql_query.py)
       │ common_present: one moment, settled in all of them
       │ one native scan for each, and a view of its name       (native_scan.py)
    SqlResult: a query of a DuckDB connection of its own

DuckDB reads base files itself, with the columns and the conditions of the query; rows in memory,
and those of tables on a store, are handed to it. Each call looks at the tables anew.

The connection is closed to everything else before it sees the query: it reads only the folders of
the tables that the query names, installs nothing, and its settings are locked. Its time zone is
UTC.

**Invariants**: (1) all tables of a query are read at one moment; (2) the text of a query changes
nothing.

**Damage**: DuckDB does not compare base files with their checksums, as in `Scan.to_duckdb`.

**Threads**: a result is for one thread at a time.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from kudulite import errors
from kudulite.client.table import Table
from kudulite.errors import (
    KuduliteError,
    OutOfMemoryError,
    SchemaError,
    StorageError,
    TableNotFoundError,
    UsageError,
)
from kudulite.model.aliases import Moment
from kudulite.model.hybrid_time import Timestamp
from kudulite.model.values import python_rows
from kudulite.reads.pandas_frames import frame_of
from kudulite.reads.sql_query import NamedTables, TableName, named_tables, quoted
from kudulite.shown.html import ROWS_SHOWN, html_rows
from kudulite.table.present import present
from kudulite.table.snapshot import common_present, moment_of

if TYPE_CHECKING:
    import duckdb
    import polars as pl

_BATCH_ROWS = 1 << 17
# An error of a reader, in the text of DuckDB's error.
_OWN_ERROR = re.compile(r"kudulite\.errors\.(\w+): (.*)", re.DOTALL)

T = TypeVar("T")


class Directory(Protocol):
    """A directory of tables, which is a `Client`."""

    root: Path

    def table(self, table_name: str) -> Table:
        """Open a table."""

    def list_tables(self) -> list[str]:
        """Return the names of the tables."""

    def _below(self, name: str) -> Directory:
        """Return a directory in this one."""


class SqlResult:
    """The rows of a query; see `Client.sql`.

    The query runs when one of the methods is called, anew at each call, always on the tables as
    they were at `timestamp`.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        relation: duckdb.DuckDBPyRelation,
        timestamp: Timestamp | None,
    ) -> None:
        self._connection = connection
        self._relation = relation
        self.timestamp = timestamp
        """The moment of all tables, None if the query names none."""

    def __repr__(self) -> str:
        return self._run(lambda: str(self._relation))

    def _repr_html_(self) -> str:
        """Return the first rows as an HTML table, for notebooks."""
        rows = self._run(self._relation.limit(ROWS_SHOWN).to_arrow_table)
        return html_rows(rows.rename_columns(self.columns))

    @property
    def columns(self) -> list[str]:
        """The names of the columns; of several of one name, the second has `_1` added."""
        return _told_apart(self._relation.columns)

    def to_arrow(self) -> pa.Table:
        """Return all rows as one table.

        A HUGEINT, as the sum of integers is, becomes int64 if all its values fit, and
        decimal128(38, 0) otherwise.
        """
        found = self._run(self._relation.to_arrow_table)
        for place, kind in enumerate(self._relation.types):
            if str(kind) in ("HUGEINT", "UHUGEINT"):
                found = found.set_column(place, found.column_names[place], _small(found[place]))
        return found.rename_columns(self.columns)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader that runs the query while it is read; a HUGEINT is a decimal."""
        reader = self._run(lambda: self._relation.to_arrow_reader(_BATCH_ROWS))
        names = self.columns
        schema = reader.schema.empty_table().rename_columns(names).schema

        def batches() -> Iterator[pa.RecordBatch]:
            while (batch := self._run(lambda: next(reader, None))) is not None:
                yield batch.rename_columns(names)

        return pa.RecordBatchReader.from_batches(schema, batches())

    def to_pandas(self, dtype_backend: str | None = None, **options: Any) -> Any:
        """Return a pandas DataFrame; the types and the parameters are those of `Scan.to_pandas`."""
        return frame_of(self.to_arrow(), dtype_backend, options)

    def to_polars(self) -> pl.DataFrame:
        """Return a Polars DataFrame. Raises NotSupportedError if Polars is not installed."""
        try:
            import polars as pl
        except ImportError as error:
            raise errors.NotSupportedError(
                "Polars is not installed; run: pip install polars"
            ) from error
        found = pl.from_arrow(self.to_arrow())
        assert isinstance(found, pl.DataFrame)
        return found

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return all rows as dicts."""
        return python_rows(self.to_arrow())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rows as dicts, as `to_pylist` gives them."""
        return iter(self.to_pylist())

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows as tuples of DuckDB's Python values."""
        return self._run(self._relation.fetchall)

    def show(self) -> None:
        """Print the first and the last rows as a table, as DuckDB does."""
        self._run(self._relation.show)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows as an Arrow C stream, for Polars, pandas and others."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def _run(self, read: Callable[[], T]) -> T:
        """Run a read in a thread: DuckDB itself would notice Ctrl-C in some of its calls only."""
        with errors_of_duckdb(), ThreadPoolExecutor(1, "kudulite-sql") as threads:
            running = threads.submit(read)
            try:
                return running.result()
            except KeyboardInterrupt:
                self._connection.interrupt()
                raise


def _told_apart(names: Sequence[str]) -> list[str]:
    """Return names of which no two are equal."""
    found: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(1))
        free = (other for other in numbered if other not in names and other not in found)
        found.append(next(free) if name in found else name)
    return found


def _small(column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return pc.cast(column, pa.int64())
    except pa.ArrowInvalid:
        return column


def run_sql(
    directory: Directory,
    query: str,
    at: Moment | None,
    parameters: Sequence[object] | Mapping[str, object] | None,
    on_connection: Callable[[duckdb.DuckDBPyConnection], object] = lambda connection: None,
) -> SqlResult:
    """Plan a query over the tables of a directory; see `Client.sql`.

    `on_connection` is given the connection first, so that another thread can interrupt it: some
    queries, such as EXPLAIN ANALYZE, run while they are planned.
    """
    connection = _new_connection()
    on_connection(connection)
    with errors_of_duckdb():
        named = named_tables(connection, query)
        tables = opened_tables(directory) if named.is_list else _named_in(directory, named)
        relation_at = relation_or_error if named.is_list else relation_of
        timestamp = moment_of_tables(list(tables.values()), at)
        check_apart(tables)
        for name, table in tables.items():
            schema = quoted(name.directory or "main")
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            connection.execute(f"USE memory.{schema}")
            relation_at(connection, table, timestamp).create_view(name.name)
        connection.execute("USE memory.main")
        _close_to_others(connection, [t for t in tables.values() if isinstance(t, Table)])
        # The types of DuckDB name no parameter of a mapping.
        relation = connection.sql(query, params=parameters or None)  # type: ignore[arg-type]
    return SqlResult(connection, relation, timestamp)


def _new_connection() -> duckdb.DuckDBPyConnection:
    connection: duckdb.DuckDBPyConnection = duckdb_module().connect(
        config={"autoinstall_known_extensions": False}
    )
    # Part of DuckDB's wheels: functions of moments with a zone.
    connection.execute("LOAD icu")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _close_to_others(connection: duckdb.DuckDBPyConnection, tables: Sequence[Table]) -> None:
    """Let a connection read nothing but the files of some tables, for good."""
    folders = [str(table.path) for table in tables if table._store.storage.has_paths]
    connection.execute("SET allowed_directories = ?", [folders])
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _named_in(directory: Directory, named: NamedTables) -> dict[TableName, Table | KuduliteError]:
    """Return the tables that a query names. Raises TableNotFoundError, CorruptionError."""
    found: dict[TableName, Table | KuduliteError] = {}
    for name in sorted(named.names):
        place = directory._below(name.directory) if name.directory else directory
        try:
            found[name] = place.table(name.name)
        except (TableNotFoundError, SchemaError) as error:
            if name.directory or name.name not in named.defined:
                found[name] = _similar_table(place, name.name, error)
    return found


def _similar_table(directory: Directory, name: str, error: KuduliteError) -> Table:
    """Return the table whose name differs in case only. Raises TableNotFoundError with advice."""
    listed = directory.list_tables()
    same = [other for other in listed if other.lower() == name.lower()]
    if len(same) == 1:
        return directory.table(same[0])
    near = difflib.get_close_matches(name, listed, n=2, cutoff=0.6)
    advice = f"; did you mean {' or '.join(same or near)}?" if same or near else ""
    raise TableNotFoundError(f"{error}{advice}") from error


def opened_tables(directory: Directory) -> dict[TableName, Table | KuduliteError]:
    """Return all tables of a directory, and the errors of those that cannot be opened."""
    found: dict[TableName, Table | KuduliteError] = {}
    for name in directory.list_tables():
        try:
            table = directory.table(name)
            present(table._store)
            found[TableName("", name)] = table
        except KuduliteError as error:
            found[TableName("", name)] = error
    return found


def check_apart(tables: Mapping[TableName, object]) -> None:
    """Raise UsageError for two tables that SQL cannot tell apart."""
    lowered: dict[tuple[str, str], TableName] = {}
    for name in tables:
        other = lowered.setdefault((name.directory.lower(), name.name.lower()), name)
        if other is not name:
            raise UsageError(
                f"tables {other.name!r} and {name.name!r} differ in the case of letters only, and"
                " SQL does not tell them apart; rename one with client.rename_table(…)"
            )


def moment_of_tables(
    tables: Sequence[Table | KuduliteError], at: Moment | None
) -> Timestamp | None:
    """Return the moment at which all tables are read, settled if it is the present."""
    stores = [table._store for table in tables if isinstance(table, Table)]
    if not stores:
        return None
    if at is None:
        return Timestamp(common_present(stores))
    return Timestamp(moment_of(stores[0], stores[0].newest(), at))


def relation_of(
    connection: duckdb.DuckDBPyConnection,
    table: Table | KuduliteError,
    timestamp: Timestamp | None,
) -> duckdb.DuckDBPyRelation:
    """Return the rows of a table at a moment. Raises the error of one that cannot be opened."""
    if isinstance(table, KuduliteError):
        raise table
    return table.scan(at=timestamp).to_duckdb(connection)


def relation_or_error(
    connection: duckdb.DuckDBPyConnection,
    table: Table | KuduliteError,
    timestamp: Timestamp | None,
) -> duckdb.DuckDBPyRelation:
    """Return the rows of a table at a moment, or a relation that raises its error when read."""
    try:
        return relation_of(connection, table, timestamp)
    except KuduliteError as error:
        text = f"kudulite.errors.{type(error).__name__}: {error}".replace("'", "''")
        return connection.sql(f"SELECT error('{text}') AS error")


def duckdb_module() -> Any:
    """Return the module duckdb. Raises NotSupportedError."""
    # Imported here, so that the package works without it.
    try:
        import duckdb
    except ImportError as error:
        raise errors.NotSupportedError(
            "SQL needs DuckDB, which is not installed; run: pip install 'kudulite[sql]'"
        ) from error
    return duckdb


@contextmanager
def errors_of_duckdb() -> Iterator[None]:
    """Raise errors of this library in place of those of DuckDB."""
    module = duckdb_module()
    try:
        yield
    except module.Error as error:
        raise _own_error(module, error) from error


def _own_error(module: Any, error: Exception) -> KuduliteError:
    text = str(error)
    if found := _OWN_ERROR.search(text):  # of a table's reader, with all that it says
        kind: type[KuduliteError] = getattr(errors, found[1], KuduliteError)
        return kind(found[2].strip())
    if isinstance(error, module.OutOfMemoryException):
        return OutOfMemoryError(text)
    if isinstance(error, module.PermissionException):
        return UsageError(
            f"{text}; sql reads the tables of the directory only: load other files into a table,"
            " or query both with client.to_duckdb(connection)"
        )
    if isinstance(error, module.IOException):
        return StorageError(
            f"{text}; if the query is older than an hour, its files may have been compacted and"
            " removed: call sql again; otherwise table.check() says what is damaged"
        )
    return UsageError(text)
