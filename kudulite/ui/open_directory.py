"""OpenDirectory: the tables of one directory as the pages see them, and nothing outside of it.

It is a `Client` without the means to leave the directory: a name with a slash is refused as
everywhere, and so is a table behind a symbolic link, which may lead anywhere. SQL runs over this
directory and not over the client, so a query reaches no more than the pages do.

**Threads**: any.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from kudulite.client.client import Client, environment_of
from kudulite.client.sql import SqlResult, run_sql
from kudulite.client.table import Table
from kudulite.errors import (
    CorruptionError,
    FormatVersionError,
    KuduliteError,
    StorageError,
    TableNotFoundError,
    UsageError,
)
from kudulite.table.table_list import list_tables
from kudulite.table.table_names import table_folder

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

T = TypeVar("T")


class OpenDirectory:
    """The tables of a client's directory that lie in it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.root = client.root
        self._environment = environment_of(client)

    def listed(self) -> dict[str, KuduliteError | None]:
        """Return the names of the tables, sorted, with the error of each that cannot be opened.

        Raises StorageError if the directory cannot be listed.
        """
        found: dict[str, KuduliteError | None] = dict(list_tables(self._environment, self.root))
        return {name: error or self._error_of_link(name) for name, error in found.items()}

    def list_tables(self) -> list[str]:
        """Return the names of the tables that can be opened, sorted. Raises StorageError."""
        return [name for name, error in self.listed().items() if error is None]

    def table(self, table_name: str) -> Table:
        """Open a table. Raises TableNotFoundError, SchemaError, CorruptionError.

        Raises UsageError for a table behind a symbolic link.
        """
        error = self._error_of_link(table_name)
        if error is not None:
            raise error
        known = list_tables(self._environment, self.root, table_name).get(table_name)
        if known is not None:
            raise known
        return self.client.table(table_name)

    def sql(
        self, query: str, at: str | None, on_connection: Callable[[DuckDBPyConnection], object]
    ) -> SqlResult:
        """Plan one query over the tables; `on_connection` is given its connection first.

        Raises as `Client.sql`.
        """
        return run_sql(self, query, at, None, on_connection)

    def _below(self, name: str) -> OpenDirectory:
        """Return a directory in this one, for names of SQL such as `"directory"."name"`."""
        target = self._environment.storage.link_target(self.root / name)
        if target is not None:
            raise _outside(f"directory {name!r}", target)
        return OpenDirectory(self.client._below(name))

    def _error_of_link(self, table_name: str) -> UsageError | None:
        target = self._environment.storage.link_target(table_folder(self.root, table_name))
        return None if target is None else _outside(f"table {table_name!r}", target)


def _outside(what: str, target: Path) -> UsageError:
    return UsageError(
        f"{what} is a symbolic link to {target}; these pages open nothing outside their directory:"
        f" run `kudulite ui {target.parent}` to see it"
    )


def read_or_error(read: Callable[[], T]) -> T | KuduliteError:
    """Return what a read gives, or the error that it ends with, to be shown in its place.

    Files may be damaged in ways that Arrow is the first to notice; that is a CorruptionError. A
    table that is not there any more is no part of a page: TableNotFoundError is raised.
    """
    try:
        return read()
    except TableNotFoundError:
        raise
    except KuduliteError as error:
        return error
    except (pa.ArrowException, OSError) as error:
        return damage_of(error)


def what_to_do(error: KuduliteError) -> str:
    """Return what an operator does about an error that a table has, empty if its text says so."""
    if isinstance(error, FormatVersionError):
        return "Show the table with the version of kudulite that has written it, or a later one."
    if isinstance(error, CorruptionError):
        return (
            "Its page of checks lists the damaged files. Put them back from a copy, or restore the"
            " table from its newest backup with `kudulite restore`. Other tables are not affected."
        )
    if isinstance(error, StorageError):
        return (
            "See that the file system or the object store can be reached, and load the page anew."
        )
    return ""


def damage_of(error: Exception) -> CorruptionError:
    """Return an error of Arrow or the system, met in a table's file, as one of this library."""
    return CorruptionError(f"a file of the table cannot be read: {error}; run `kudulite check`")
