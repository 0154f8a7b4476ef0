"""Client: a directory of tables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from kudulite.client.schema_builder import Partitioning, SchemaBuilder, partitioning_of
from kudulite.client.session import Session
from kudulite.client.table import Table
from kudulite.client.table_alterer import TableAlterer
from kudulite.client.table_copy import remove_trash, rename_table, set_table_aside, table_folder
from kudulite.client.tokens import ScanToken, TokenScanner
from kudulite.errors import SchemaError, TableNotFoundError
from kudulite.model.hybrid_time import physical_microseconds
from kudulite.model.schema import Schema, schema_from_arrow
from kudulite.table.maintenance import flush_below
from kudulite.table.table_store import Environment, TableStore, default_environment


def connect(
    root: str | os.PathLike[str],
    *,
    lock_timeout_seconds: float = 60.0,
    background_maintenance: bool = True,
) -> Client:
    """Open a directory of tables, made if it is not there.

    A writer that waits for another one longer than `lock_timeout_seconds` gives up with
    LockTimeoutError. Tables that are written to are looked after in the background; without
    `background_maintenance` only `Table.maintain` and `Table.compact` do so.
    """
    environment = replace(
        default_environment(),
        lock_timeout_seconds=lock_timeout_seconds,
        is_maintaining=background_maintenance,
    )
    return Client(Path(root), environment)


def open_table(path: str | os.PathLike[str]) -> Table:
    """Open a table by its own folder; nothing is maintained in the background.

    Raises TableNotFoundError that says what is there.
    """
    store = TableStore(Path(os.path.abspath(path)), default_environment())
    store.newest()
    return Table(store)


class Client:
    """The tables under one directory; several clients and processes may share it."""

    def __init__(self, root: Path, environment: Environment) -> None:
        self.root = Path(os.path.abspath(root))
        self._environment = environment
        environment.file_system.make_directory(self.root, parents=True)

    def __repr__(self) -> str:
        return f"<kudulite client at {self.root}>"

    def close(self) -> None:
        """Flush what this process wrote row by row; the client stays usable.

        Rows are durable without it. Raises LockTimeoutError, StorageError.
        """
        flush_below(self._environment, self.root)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # The class itself, so that its signature and its docstring spell the options out once.
    new_session = Session

    def schema_builder(self) -> SchemaBuilder:
        """Return a new schema builder."""
        return SchemaBuilder()

    def list_tables(self, match_substring: str = "") -> list[str]:
        """Return the names of the tables, sorted; of those that contain `match_substring`."""
        names = [path.name for path in self.root.iterdir() if path.is_dir()]
        names = [name for name in names if match_substring in name and not name.startswith(".")]
        return sorted(name for name in names if self._store(name).exists())

    def table_exists(self, name: str) -> bool:
        """Whether there is a table of this name."""
        return self._store(name).exists()

    def table(self, name: str) -> Table:
        """Open a table. Raises TableNotFoundError listing the tables that are there."""
        store = self._store(name)
        if not store.exists():
            listed = ", ".join(self.list_tables()) or "none"
            raise TableNotFoundError(f"no table {name!r} in {self.root}; tables: {listed}")
        return Table(store)

    def create_table(
        self,
        name: str,
        schema: Schema | pa.Schema,
        partitioning: Partitioning | None = None,
        *,
        primary_key: Sequence[str] | str | None = None,
        hash_partitions: Sequence[tuple[Sequence[str], int]] | None = None,
        range_partitions: Mapping[str, Any] | None = None,
    ) -> Table:
        """Create a table of a kudulite schema, or of an Arrow schema with its `primary_key`.

        Partitions are given by `partitioning`, or as `hash_partitions` [(columns, buckets), …] and
        `range_partitions` {"columns": […], "bounds": [[lower, upper], …]}. Raises SchemaError, and
        TableExistsError.
        """
        store = self._store(name)
        if isinstance(schema, pa.Schema):
            if primary_key is None:
                raise SchemaError(f"table {name!r}: an Arrow schema needs primary_key=[…]")
            keys = [primary_key] if isinstance(primary_key, str) else list(primary_key)
            schema = schema_from_arrow(schema, keys, name)
        elif primary_key is not None:
            raise SchemaError(f"table {name!r}: a kudulite schema has its primary key already")
        if partitioning is None:
            partitioning = partitioning_of(hash_partitions, range_partitions)
        elif hash_partitions is not None or range_partitions is not None:
            raise SchemaError(f"table {name!r}: give partitioning, or hash and range partitions")
        store.create(schema, partitioning.build(schema))
        remove_trash(self.root, self._environment.file_system)
        return Table(store)

    def latest_observed_timestamp(self) -> datetime:
        """Return a moment that shows all that was written to the tables so far, by anybody.

        For `set_snapshot` and `at=`, which are inclusive. `WriteResult.timestamp` and
        `Table.current_timestamp` are exact, for one table.
        """
        latest = self._environment.clock.now()
        for name in self.list_tables():
            store = self._store(name)
            manifest = store.newest()
            stamps = [store.safe_timestamp(entry.id) for entry in manifest.tablets]
            latest = max(latest, manifest.timestamp, *stamps)
        return datetime.fromtimestamp(0, UTC) + timedelta(
            microseconds=physical_microseconds(latest)
        )

    def deserialize_token_into_scanner(self, serialized_token: bytes) -> TokenScanner:
        """Return a scanner of `ScanToken.serialize`'s bytes; only from a process that you trust."""
        return ScanToken.from_bytes(serialized_token).into_kudu_scanner()

    def rename_table(self, name: str, new_name: str) -> Table:
        """Rename a table, once no commit is under way.

        Raises TableNotFoundError, TableExistsError, LockTimeoutError.
        """
        return Table(rename_table(self.table(name)._store, new_name))

    def new_table_alterer(self, table: Table) -> TableAlterer:
        """Return an alterer of the table: columns, range partitions, name, retention."""
        return TableAlterer(table)

    def delete_table(self, name: str, *, if_version: int | None = None) -> None:
        """Delete a table with all its history, once no commit is under way.

        With `if_version`, only while that is the newest version. Raises TableNotFoundError,
        ConflictError, LockTimeoutError.
        """
        table = self.table(name)
        set_table_aside(table._store, f"deletion of {name!r}", if_version=if_version)
        self._environment.file_system.sync_directory(self.root)
        remove_trash(self.root, self._environment.file_system)

    def _store(self, name: str) -> TableStore:
        return TableStore(table_folder(self.root, name), self._environment)
