"""Store: the writes and reads that every store of the comparison has.

A store keeps its files in one folder. Rows are passed and returned as Arrow, except by `get`. Each
method is the way that the documents of the store recommend, with its durable settings. A method
that a store does not have raises NotImplementedError.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from stores.workload import SCHEMA, Aggregate


class ChangedTables(NamedTuple):
    """Changes of a window: rows as they are at its end, and deleted rows; they have a key."""

    written: pa.Table
    deleted: pa.Table


class Store(ABC):
    """One store, in an empty folder of its own."""

    title: str
    packages: tuple[str, ...]
    settings: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def versions(cls) -> str:
        """Return the versions of its packages. Raises PackageNotFoundError."""
        return ", ".join(f"{package} {version(package)}" for package in cls.packages)

    @abstractmethod
    def open(self) -> None:
        """Open the store, or make it if the folder is empty."""

    def close(self) -> None:  # noqa: B027 - most stores have nothing to close
        """Let another process open the store."""

    # -- writes

    @abstractmethod
    def load(self, rows: pa.Table) -> None:
        """Create the table with these rows, and with the index that reads by key need."""

    @abstractmethod
    def upsert(self, rows: pa.Table) -> None:
        """Replace the rows whose key is present, insert the others."""

    def upsert_few(self, rows: pa.Table) -> None:
        """Upsert about a hundred rows, where another way than that of many is faster."""
        self.upsert(rows)

    @abstractmethod
    def update(self, rows: pa.Table) -> None:
        """Set the price of the rows of some keys."""

    @abstractmethod
    def delete(self, keys: pa.Table) -> None:
        """Delete the rows of some keys."""

    def write_one(self, row: dict[str, Any]) -> None:
        """Upsert one row, in a transaction of its own."""
        self.upsert(pa.Table.from_pylist([row], SCHEMA))

    # -- reads

    @abstractmethod
    def everything(self) -> pa.Table:
        """Return all rows; not measured."""

    @abstractmethod
    def rows_of_range(self, low: int, high: int) -> pa.Table:
        """Return the rows of the keys from `low` to `high`, exclusive."""

    @abstractmethod
    def rows_of_keys(self, keys: pa.Array) -> pa.Table:
        """Return the rows of these keys, in any order."""

    def get(self, key: int) -> dict[str, Any]:
        """Return the row of one key."""
        return self.rows_of_range(key, key + 1).to_pylist()[0]

    @abstractmethod
    def aggregate(self, moment: Any = None) -> Aggregate:
        """Return count, sum of quantity and sum of price for each mode, now or at a moment."""

    # -- the past

    def moment(self) -> Any:
        """Return the present as later reads of the past take it."""
        raise NotImplementedError

    def changes(self, start: Any, end: Any) -> Any:
        """Return the changed rows between two moments, in the form that the store has for them."""
        raise NotImplementedError

    def changed_tables(self, changes: Any) -> ChangedTables:
        """Return what `changes` returned, one row for each key; not measured."""
        raise NotImplementedError

    # -- the second table, whose key is (series, time)

    def load_series(self, rows: pa.Table) -> None:
        """Create the second table with these rows."""
        raise NotImplementedError

    def rows_of_series(self, series: int, start: int, end: int) -> pa.Table:
        """Return the rows of a series from `start` to `end`, exclusive."""
        raise NotImplementedError
