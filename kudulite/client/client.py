"""Client: a directory of tables, the way into the library.

    client = kudulite.connect("/data/warehouse")
    client.create_table(…), client.table("metrics")     a Table: the reads and writes of one table
    client.new_session()                                rows one by one, of any of the tables
    client.new_table_alterer(table)                     columns, ranges, retention, in one version
    client.new_staging()                                tables that are filled before they are seen

    <root>/<name>/             a table; the list of tables is the list of these folders
    <root>/.soft-deleted-…/    hidden folders: table_names.py

There is no server and no catalog file. Programs that use the same directory see the same tables,
and the locks of the tablets keep their writers apart. A client keeps no list of tables, so another
process may create, rename or delete one at any moment.

**Threads**: any. All tables of a client share one `Environment`: the block cache, and the threads
that flush and maintain the tables in the background.
"""

from __future__ import annotations

import errno
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, NoReturn

import pyarrow as pa

from kudulite.chain.folder import (
    SoftDeletedTable,
    how_to_copy,
    how_to_recall,
    listed_versions,
    soft_deleted_tables,
)
from kudulite.chain.manifest import checked_comment, checked_owner
from kudulite.chain.partitioning import Partitioning, partitioning_of
from kudulite.client.session import Session
from kudulite.client.sql import SqlResult, run_sql
from kudulite.client.sql_views import make_views
from kudulite.client.table import Table
from kudulite.client.table_alterer import TableAlterer
from kudulite.client.view_files import delete_view, list_views, read_view, write_view
from kudulite.client.write_plan import unknown_option
from kudulite.errors import (
    ConflictError,
    CorruptionError,
    KuduliteError,
    SchemaError,
    StorageError,
    TableExistsError,
    TableNotFoundError,
    UsageError,
)
from kudulite.model.aliases import Moment, Rows
from kudulite.model.hybrid_time import Timestamp, physical_microseconds
from kudulite.model.new_schema import schema_from_arrow
from kudulite.model.schema import Schema
from kudulite.reads.row_sources import arrow_schema, opened, source_of
from kudulite.shown.html import html_table, html_title
from kudulite.storage.address import parse_address
from kudulite.storage.names import is_trash, staged_of
from kudulite.storage.storage import as_path, is_there
from kudulite.table.environment import Environment, environment_at
from kudulite.table.present import present
from kudulite.table.removal import remove_trash
from kudulite.table.table_list import list_tables
from kudulite.table.table_names import (
    RESERVE_SECONDS_MAX,
    new_staging_folder,
    publish_table,
    recall_table,
    rename_table,
    replaced_table,
    set_table_aside,
    soft_delete_table,
    sync_moved,
    table_folder,
)
from kudulite.table.table_store import TableStore
from kudulite.upkeep.maintenance_schedule import flush_below

if TYPE_CHECKING:
    import duckdb

_CREATE_PARAMETERS = (
    "partitioning",
    "data",
    "nested",
    "exist_ok",
    "primary_key",
    "hash_partitions",
    "range_partitions",
    "owner",
    "comment",
)
# Parameters of kudu-python, and the way here.
_OTHER_WORDS = {
    **dict.fromkeys(("n_replicas", "num_replicas"), "tables are not replicated; leave it out"),
    "name": "it is called table_name",
    **dict.fromkeys(("if_not_exists", "mode"), "write exist_ok=True for a table that may be there"),
}


def connect(
    root: str | PathLike[str],
    *,
    lock_timeout_seconds: float = 60.0,
    background_maintenance: bool = True,
    storage_options: Mapping[str, str] | None = None,
    create: bool = True,
) -> Client:
    """Open a directory of tables, made if it is not there.

    In a store, which has no directories, it is made with its first table. Without `create`, one
    that is not there is a TableNotFoundError.

    `root` is a path, which may begin with `~`, a file: URL, or the address of an object store, as
    in s3://bucket/prefix, gs:// or az://. The `storage_options` of a store are those of Delta and
    Polars, as in {"aws_region": "eu-west-1"}; what is not given is found in the environment. With
    `cache_dir` among them, processes of this machine keep objects in a folder, up to `cache_bytes`.
    A writer that waits for another one longer than `lock_timeout_seconds` gives up with
    LockTimeoutError. Tables that are written to are maintained in the background; without
    `background_maintenance` only `Table.maintain` and `Table.compact` do so. Raises UsageError for
    another URL and for the folder of a table, and OptionError for an option.
    """
    address = parse_address(root, storage_options)
    environment = replace(
        environment_at(address.storage),
        lock_timeout_seconds=lock_timeout_seconds,
        is_maintaining=background_maintenance,
    )
    if not create and not environment.storage.is_root(address.path):
        raise TableNotFoundError(
            f"there is no directory of tables at {address.path}; connect without create=False"
            " makes it"
        )
    return Client(address.path, environment)


def _refuse_unknown(table: str, unknown: Mapping[str, object]) -> None:
    """Raise OptionError for a parameter that `create_table` does not have."""
    for name in unknown:
        what = f"parameter {name!r} of create_table"
        raise unknown_option(table, what, _CREATE_PARAMETERS, _OTHER_WORDS.get(name))


def _schema_of(
    schema: Schema | pa.Schema | Rows, primary_key: Sequence[str] | str | None, table: str
) -> Schema:
    """Return the schema of a new table. Raises SchemaError."""
    if isinstance(schema, Schema):
        if primary_key is not None:
            raise SchemaError(f"table {table!r}: a kudulite schema has its primary key already")
        return schema
    fields = arrow_schema(schema, table)
    if primary_key is None:
        given = "an Arrow schema" if isinstance(schema, pa.Schema) else "a table of a frame"
        raise SchemaError(
            f"table {table!r}: {given} needs primary_key=[…], the columns that identify a row; the"
            f" columns are {', '.join(fields.names)}"
        )
    keys = [primary_key] if isinstance(primary_key, str) else list(primary_key)
    return schema_from_arrow(fields, keys, table)


def _checked_texts(
    table: str, owner: str | None, comment: str | None
) -> tuple[str | None, str | None]:
    """Return an owner and a comment. Raises SchemaError for one that is too long."""
    try:
        return (
            None if owner is None else checked_owner(owner),
            None if comment is None else checked_comment(comment),
        )
    except SchemaError as error:
        raise SchemaError(f"table {table!r}: {error}") from error


def open_table(
    path: str | PathLike[str],
    *,
    table_id: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Table:
    """Open a table by its own folder; nothing is maintained in the background.

    `path` and `storage_options` are as in `connect`. With `table_id`, the table of that id: also
    one that `publish_table` has replaced since, as long as it can be recalled. Raises
    TableNotFoundError that says what is there, ConflictError for another table, UsageError for
    another URL, OptionError, CorruptionError.
    """
    address = parse_address(path, storage_options)
    store = TableStore(address.path, environment_at(address.storage))
    if table_id is not None:
        store = replaced_table(store, table_id)
    found = store.newest().table_id
    if table_id not in (None, found):
        raise ConflictError(
            f"table {store.name!r} at {store.folder} has id {found}, expected {table_id}: another"
            " table has taken its name; read it again"
        )
    return Table(store)


class Client:
    """The tables under one directory; several clients and processes may share it."""

    def __init__(self, root: Path, environment: Environment) -> None:
        self.root = root
        self._environment = environment
        if environment.storage.is_directory and listed_versions(environment.storage, self.root):
            raise UsageError(
                f"{self.root} is the folder of a table, not a directory of tables; open the table"
                f" with kudulite.open_table({str(self.root)!r}), or connect to {self.root.parent}"
            )
        environment.storage.make_root(self.root)

    def __repr__(self) -> str:
        return f"<kudulite client at {self.root}>"

    def close(self) -> None:
        """Flush the memory that rows of this process take; the client stays usable.

        Rows that a session has flushed are durable without it. Raises UsageError if a manual
        session holds rows of a table that it has not flushed, LockTimeoutError, StorageError.
        """
        flush_below(self._environment, self.root)
        if unflushed := self._unflushed():
            raise UsageError(f"{self.root}: {unflushed}")

    def _unflushed(self) -> str:
        """Return which rows are in sessions that were not flushed, as text; empty if none are."""
        counts: Counter[str] = Counter()
        for reference in self._environment.sessions.valuerefs():
            session = reference()
            if isinstance(session, Session):
                counts += session.unflushed_tables()
        found = [
            f"{count} of table {as_path(folder).name!r}"
            for folder, count in sorted(counts.items())
            if as_path(folder).parent == self.root
        ]
        if not found:
            return ""
        return (
            f"a session holds operations that were not flushed: {', '.join(found)}; call"
            " session.flush() before client.close(), or give them up with `del session`"
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None:
            self.close()
            return
        flush_below(self._environment, self.root)
        if unflushed := self._unflushed():
            error.add_note(unflushed)

    if not TYPE_CHECKING:  # a type checker reports unknown names itself

        def __getattr__(self, name: str) -> NoReturn:
            if name == "schema_builder":
                raise AttributeError(
                    "a kudulite client has no schema_builder, a method of kudu-python's clients;"
                    " use kudulite.schema([kudulite.column(…), …], primary_key=…), or connect with"
                    " kudulite.kudu"
                )
            return super().__getattribute__(name)  # which raises, also what a property raised

    # The class itself, so that its signature and its docstring spell the options out once.
    new_session = Session

    def list_tables(self, match_substring: str | None = None) -> list[str]:
        """Return the names of the tables, sorted; of those that contain `match_substring`.

        A table whose manifest is lost is left out with a UserWarning, and so is a folder that one
        has no right to list. Raises StorageError.
        """
        found = list_tables(self._environment, self.root, match_substring or "")
        for problem in found.values():
            if problem is not None:
                warnings.warn(f"left out of the list of tables: {problem}", stacklevel=2)
        return [name for name, problem in found.items() if problem is None]

    def list_directories(self) -> list[str]:
        """Return the names of the directories in this one that are no tables, sorted.

        Raises StorageError.
        """
        storage, tables = self._environment.storage, set(self.list_tables())
        places = [
            place
            for place in storage.entries(self.root)
            if place.name not in tables and not place.name.startswith(".")
        ]
        found = storage.side_by_side(storage.is_root, places)
        return [place.name for place, is_there in zip(places, found, strict=True) if is_there]

    def create_directory(self, name: str) -> Client:
        """Make a directory of tables in this one, and return its client.

        In a store, too, it is there before its first table. Raises UsageError, TableExistsError for
        anything else of this name, StorageError.
        """
        storage, place = self._environment.storage, self._directory(name)
        if is_there(storage, place):
            raise TableExistsError(f"{place} exists")
        storage.new_root(place)
        return Client(place, self._environment)

    def delete_directory(self, name: str) -> None:
        """Remove a directory in this one that is empty, or one of `new_staging`.

        Raises UsageError that lists what is in it, StorageError.
        """
        storage, place = self._environment.storage, self._directory(name)
        if staged_of(name) is not None:
            storage.delete_below(place)
            return
        try:
            storage.delete_root(place)
        except StorageError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            found = [path.name for path in storage.entries(place) if is_there(storage, path)]
            listed = ", ".join(name for name in found if not is_trash(name))
            raise UsageError(f"{place} is not empty, and so not removed: {listed}") from error

    def list_views(self) -> list[str]:
        """Return the names of the views of Spark SQL in this directory, sorted.

        A view is a text, which only the catalog of Spark SQL understands. Raises StorageError.
        """
        return list_views(self._environment.storage, self.root)

    def read_view(self, name: str) -> str:
        """Return the text of a view. Raises TableNotFoundError, CorruptionError, StorageError."""
        return read_view(self._environment.storage, self.root, name)

    def write_view(self, name: str, text: str, *, replace: bool = False) -> None:
        """Store the text of a view, durably and in one step; with `replace`, in place of another.

        Raises TableExistsError for a view that is there, SchemaError for a name that no table can
        have, StorageError.
        """
        write_view(self._environment.storage, self.root, name, text, replace=replace)

    def delete_view(self, name: str) -> None:
        """Remove a view. Raises TableNotFoundError, StorageError."""
        delete_view(self._environment.storage, self.root, name)

    def _below(self, name: str) -> Client:
        """Return the client of a directory in this one. Raises TableNotFoundError."""
        place = self._directory(name)
        if not self._environment.storage.is_root(place):
            listed = ", ".join(self.list_directories()) or "none"
            raise TableNotFoundError(
                f"no directory {name!r} of tables in {self.root}; directories: {listed}"
            )
        return Client(place, self._environment)

    def _directory(self, name: str) -> Path:
        if not name or "/" in name or name in (".", ".."):
            raise UsageError(
                f"{name!r} is no name of a directory in {self.root}: it is a text without '/'"
            )
        return self.root / name

    def table_exists(self, table_name: str) -> bool:
        """Whether there is a table of this name."""
        return self._store(table_name).chain.exists()

    def __getitem__(self, table_name: str) -> Table:
        """Open a table, as `table` does."""
        return self.table(table_name)

    def __contains__(self, table_name: object) -> bool:
        """Whether there is a table of this name."""
        return isinstance(table_name, str) and self.table_exists(table_name)

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the tables."""
        return iter(self.list_tables())

    def _repr_html_(self) -> str:
        """Return the tables as an HTML table, for notebooks."""
        rows: list[tuple[object, ...]] = []
        for name in self.list_tables():
            try:
                table = self.table(name)
                rows.append((name, *table.shape, table.comment))
            except KuduliteError as error:  # damaged, or deleted meanwhile
                rows.append((name, None, None, str(error)))
        title = html_title(f"kudulite client of {self.root}")
        return title + html_table(("table", "rows", "columns", "comment"), rows)

    def table(self, table_name: str) -> Table:
        """Open a table. Raises TableNotFoundError listing the tables that are there.

        The object stands for this table: it is refused when the table is deleted, also if another
        one is created under its name. Raises CorruptionError.
        """
        store = self._store(table_name)
        if not store.is_there():
            listed = ", ".join(self.list_tables()) or "none"
            advice = how_to_recall(store.storage, self.root, table_name)
            advice += how_to_copy(store.storage, self.root, table_name)
            raise TableNotFoundError(
                f"no table {table_name!r} in {self.root}; tables: {listed}{advice}"
            )
        with suppress(CorruptionError):  # each use of the table raises it
            store.chain.last_seen()
        return Table(store)

    def sql(
        self,
        query: str,
        at: Moment | None = None,
        parameters: Sequence[object] | Mapping[str, object] | None = None,
    ) -> SqlResult:
        """Plan one SELECT over tables of this directory, which DuckDB runs.

        Tables are named as they are called, `"directory"."name"` is one of a directory in this one,
        and SQL does not tell apart the case of letters. All tables are read at one moment, now or
        `at`, which is as in `Table.scan`. `parameters` are the values of `?`, `$1` or `$name` in
        the query. WITH, VALUES, FROM, DESCRIBE, SHOW, SUMMARIZE and EXPLAIN are possible, too.

        A query cannot write, or read other files, or change a setting. Raises UsageError for a
        query that DuckDB refuses, NotSupportedError for one that writes and if DuckDB is not
        installed, TableNotFoundError that lists the tables, TimestampError, CorruptionError.
        """
        return run_sql(self, query, at, parameters)

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection, at: Moment | None = None
    ) -> Timestamp | None:
        """Make a temporary view of each table in a DuckDB connection; return their moment.

        All views are of one moment. Views of the present do not grow old in silence: a query that
        reads a table with a newer version fails, and says to make the views again. Views of a
        moment `at` stay. DuckDB reads base files itself, for which the same holds as in
        `Scan.to_duckdb`. A view of a table that cannot be read raises its error.

        Cursors of the connection do not see the views. Raises UsageError where the connection has a
        table or view of such a name, NotSupportedError if DuckDB is not installed.
        """
        return make_views(self, connection, at)

    def create_table(
        self,
        table_name: str,
        schema: Schema | pa.Schema | Rows | None = None,
        partitioning: Partitioning | None = None,
        *,
        data: Rows | None = None,
        nested: str | None = None,
        exist_ok: bool = False,
        primary_key: Sequence[str] | str | None = None,
        hash_partitions: Sequence[tuple[Sequence[str], int]] | None = None,
        range_partitions: Mapping[str, Any] | None = None,
        owner: str | None = None,
        comment: str | None = None,
        **unknown: Never,
    ) -> Table:
        """Create an empty table of a kudulite schema, or of an Arrow schema with its `primary_key`.

        In place of an Arrow schema, rows may be given in any form that a write takes; only their
        column names and types are used. Timestamps of any unit become microseconds. With `data`,
        the table is there with these rows or not at all, and has their columns if there is no
        `schema`; `nested` is as in a write. With `exist_ok`, a table of the name is returned as it
        is, without the data.

        Partitions are given by `partitioning`, or as `hash_partitions` [(columns, buckets), …] and
        `range_partitions` {"columns": […], "bounds": [[lower, upper], …]}.

        `owner` (at most 128 bytes) and `comment` (256 bytes) are shown and not enforced: the
        permissions of the directory say who may read and write. Raises SchemaError, and
        TableExistsError.
        """
        _refuse_unknown(table_name, unknown)
        if exist_ok and self.table_exists(table_name):
            return self.table(table_name)
        if data is not None:
            data = opened(source_of(data, nested, table_name))
            schema = data if schema is None else schema
        if schema is None:
            raise SchemaError(f"table {table_name!r}: give a schema, or data with its columns")
        schema = _schema_of(schema, primary_key, table_name)
        partitioning = partitioning_of(table_name, partitioning, hash_partitions, range_partitions)
        owner, comment = _checked_texts(table_name, owner, comment)
        try:
            if data is None:
                store = self._store(table_name)
                store.create(schema, partitioning.build(schema), owner, comment)
                remove_trash(self.root, self._environment)
                return Table(store)
            store = self.new_staging()._store(table_name)
            store.create(schema, partitioning.build(schema), owner, comment)
            Table(store).insert(data)
            return self.publish_table(Table(store))
        except TableExistsError:
            if not exist_ok:
                raise
            return self.table(table_name)

    def latest_observed_timestamp(self) -> datetime:
        """Return a moment that shows all that was written to the tables so far, by anybody.

        For `at=`, which is inclusive. `WriteResult.timestamp` and
        `Table.current_timestamp` are exact, for one table.
        """
        latest = self._environment.clock.now()
        for name in self.list_tables():
            with suppress(TableNotFoundError):  # deleted meanwhile
                latest = max(latest, present(self._store(name)).timestamp)
        return datetime.fromtimestamp(0, UTC) + timedelta(
            microseconds=physical_microseconds(latest)
        )

    def rename_table(self, name: str, new_name: str) -> Table:
        """Rename a table, once no commit is under way.

        Raises TableNotFoundError, TableExistsError, LockTimeoutError.
        """
        return Table(rename_table(self.table(name)._store, new_name))

    def new_table_alterer(self, table: Table) -> TableAlterer:
        """Return an alterer of the table: columns, range partitions, name, retention."""
        return TableAlterer(table)

    def delete_table(self, table_name: str, *, if_version: int | None = None) -> None:
        """Delete a table with all its history, once no commit is under way.

        With `if_version`, only while that is the newest version, and nothing was written to the log
        after it. Raises TableNotFoundError, UsageError for a table behind a symbolic link,
        ConflictError, LockTimeoutError.
        """
        table = self.table(table_name)
        set_table_aside(table._store, f"deletion of {table_name!r}", if_version=if_version)
        sync_moved(self._environment.storage, self.root, f"table {table_name!r} is deleted")
        remove_trash(self.root, self._environment)

    def soft_delete_table(
        self, table_name: str, reserve_seconds: int, *, if_version: int | None = None
    ) -> SoftDeletedTable:
        """Delete a table, and keep it for `reserve_seconds`, in which it can be recalled by its id.

        Its name is free at once. Nobody can read or write the table until it is recalled. After the
        reserve its files go when a table of the directory is created, deleted or maintained next.

        With `if_version`, only while that is the newest version, and nothing was written to the log
        after it. Raises TableNotFoundError, UsageError, ConflictError, LockTimeoutError.
        """
        store = self.table(table_name)._store
        deleted = soft_delete_table(store, reserve_seconds, if_version=if_version)
        remove_trash(self.root, self._environment)
        return deleted

    def list_soft_deleted_tables(self, match_substring: str = "") -> list[SoftDeletedTable]:
        """Return the tables that can be recalled, by name, the last deleted first.

        Of those whose names contain `match_substring`. Raises StorageError.
        """
        listed = soft_deleted_tables(self._environment.storage, self.root)
        return [table for table in listed if match_substring in table.name]

    def recall_table(self, table_id: str, new_table_name: str | None = None) -> Table:
        """Bring a soft-deleted table back, with all its history, under its name or another one.

        Also after its reserve, as long as it is listed. Raises TableNotFoundError that lists the
        soft-deleted tables, TableExistsError, SchemaError, LockTimeoutError.
        """
        return Table(recall_table(self.root, table_id, new_table_name, self._environment))

    def new_staging(self, reserve_seconds: int = 24 * 3600) -> Client:
        """Return a client of a new hidden directory, for tables that nobody should see yet.

        `publish_table` gives such a table its name here. A table that was not published after
        `reserve_seconds`, because its writer was killed, is removed as a soft-deleted one is.
        """
        if not 1 <= reserve_seconds <= RESERVE_SECONDS_MAX:
            raise UsageError(
                f"{self.root}: reserve_seconds={reserve_seconds!r}: expected 1 to"
                f" {RESERVE_SECONDS_MAX}"
            )
        folder = new_staging_folder(self.root, reserve_seconds, self._environment)
        return Client(folder, self._environment)

    def publish_table(
        self, table: Table, *, overwrite: bool = False, reserve_seconds: int = 24 * 3600
    ) -> Table:
        """Give a table of `new_staging` its name in this directory, and return it.

        With `overwrite`, a table of that name is replaced in one step, and soft-deleted for
        `reserve_seconds`. Raises UsageError for any other table, TableExistsError,
        LockTimeoutError, ConflictError where others publish under that name again and again.
        """
        reserve = reserve_seconds if overwrite else None
        published = publish_table(table._store, replaced_reserve_seconds=reserve)
        remove_trash(self.root, self._environment)
        return Table(published)

    def _store(self, name: str) -> TableStore:
        return TableStore(table_folder(self.root, name), self._environment)


def environment_of(client: Client) -> Environment:
    """Return the environment below a client, for layers above this one; users do not need it."""
    return client._environment
