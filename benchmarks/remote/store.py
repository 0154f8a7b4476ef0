"""RemoteStore: the reads and writes of a store whose tables are at an address.

Each method is the way that the documents of the store recommend. One that a store does not have
raises NotImplementedError, with a text for the report.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from stores.workload import Aggregate

from tests.support.object_server import ObjectServer


@dataclass(frozen=True)
class Place:
    """Where the tables of a store are: a folder, or a prefix of a bucket and its server."""

    url: str
    endpoint: str | None = None

    @property
    def storage_options(self) -> dict[str, str]:
        """Options as object_store, Delta and Lance have them; none of a folder."""
        if self.endpoint is None:
            return {}
        return ObjectServer.at(self.endpoint).signed_options

    def table(self, name: str) -> str:
        """Return the address of a table."""
        return f"{self.url}/{name}"


class ChangedRows(NamedTuple):
    """Changes of a window: rows as they are at its end, and the number of deleted rows."""

    written: pa.Table
    deleted_count: int


class RemoteStore(ABC):
    """One store; `open` comes first, except in `load` and `make_tables`."""

    title: str
    packages: tuple[str, ...]
    settings: str

    def __init__(self, place: Place) -> None:
        self.place = place

    @classmethod
    def versions(cls) -> str:
        """Return the versions of its packages. Raises PackageNotFoundError."""
        return ", ".join(f"{package} {version(package)}" for package in cls.packages)

    @abstractmethod
    def load(self, name: str, rows: pa.Table) -> None:
        """Create a table with these rows, and with the index that reads by key need."""

    @abstractmethod
    def open(self, name: str, *, is_maintained: bool = False) -> None:
        """Open a table; with maintenance in the background, if the store has that."""

    def close(self) -> None:  # noqa: B027 - most stores have nothing to close
        """End what runs in the background."""

    @abstractmethod
    def look(self) -> Any:
        """Look for a newer version of the opened table; return the newest one."""

    # -- reads

    @abstractmethod
    def scan(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows."""

    @abstractmethod
    def aggregate(self) -> Aggregate:
        """Return count, sum of quantity and sum of price by mode."""

    @abstractmethod
    def rows_of_keys(self, keys: np.ndarray) -> pa.Table:
        """Return the rows of these keys, in any order."""

    @abstractmethod
    def rows_of_range(self, low: int, high: int) -> pa.Table:
        """Return the rows of the keys from `low` to `high`, exclusive."""

    def row(self, key: int) -> pa.Table:
        """Return the row of one key."""
        return self.rows_of_range(key, key + 1)

    # -- writes

    @abstractmethod
    def upsert(self, rows: pa.Table) -> None:
        """Replace the rows whose key is present, insert the others."""

    @abstractmethod
    def append(self, rows: pa.Table) -> None:
        """Insert rows whose keys are new."""

    def flush_one(self, row: dict[str, Any]) -> None:
        """Write one row through a session, and flush it."""
        raise NotImplementedError("has no sessions")

    def is_conflict(self, error: Exception) -> bool:
        """Whether a write was refused because of another one, so that it can be repeated."""
        return False

    # -- changes

    @abstractmethod
    def changes(self, start: Any) -> Any:
        """Return what changed since `look` returned `start`, in the form that the store has."""

    @abstractmethod
    def changed_rows(self, changes: Any) -> ChangedRows:
        """Return what `changes` returned as rows; not measured."""

    # -- many tables

    def make_tables(self, count: int, rows: pa.Table) -> None:
        """Create tables with these rows, named `many-0` and so on; not measured."""
        for number in range(count):
            self.load(f"many-{number}", rows)

    def list_tables(self) -> list[str]:
        """Return the names of all tables, by a client that has not used the place before."""
        raise NotImplementedError("has no list of tables without a catalog")
