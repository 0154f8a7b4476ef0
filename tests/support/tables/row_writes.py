"""Small tables that are written row by row, without sessions: operations, logs, steps on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kudulite
from kudulite.chain.manifest import TabletEntry
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.names import LOG_FOLDER
from kudulite.table.table_store import TableStore
from kudulite.tablet.operation import Operation
from kudulite.tablet.row_effects import RowOperation, RowWriteResult
from kudulite.wal.log_reader import read_log
from kudulite.wal.record_format import Record, RecordDecoder
from kudulite.wal.segment import list_segments, segment_path
from kudulite.writes.row_write import RowWriter

MIDDLE = 100  # the first key of the second tablet, where there are two


class NotingStorage(LocalStorage):
    """Notes each durable step as (operation, file name)."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []

    def before(self, operation: str, path: Path) -> None:
        """Note a step."""
        self.steps.append((operation, Path(path).name))

    def count(self, operation: str) -> int:
        """How many steps were of this kind."""
        return sum(1 for name, _ in self.steps if name == operation)


def new_table(client: Client, tablets: int = 1, *, required: bool = False) -> Table:
    """An empty table `t` (k | v, w = 7): one tablet, or two that meet at MIDDLE.

    With `required` there is a column `r`, NOT NULL and without a default.
    """
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("v", kudulite.int32),
        kudulite.column("w", kudulite.int32, nullable=False, default=7),
    ]
    if required:
        columns.append(kudulite.column("r", kudulite.int32, nullable=False))
    bounds = [[None, MIDDLE], [MIDDLE, 2 * MIDDLE]]
    layout: dict[str, Any] = {"range_partitions": {"columns": ["k"], "bounds": bounds}}
    return client.create_table(
        "t", kudulite.schema(columns, "k"), **(layout if tablets == 2 else {})
    )


def op(name: str, k: int, **values: Any) -> RowOperation:
    """An operation on the row of key `k`."""
    return RowOperation(Operation[name.upper()], {"k": k, **values})


def write(target: Table | TableStore, *operations: RowOperation, **options: Any) -> RowWriteResult:
    """Write operations in one flush."""
    return RowWriter(store_of(target)).write(operations, **options)


def put(target: Table | TableStore, *keys: int, v: int = 0) -> int:
    """Upsert keys in one flush, all with the value `v`; returns its timestamp."""
    result = write(target, *(op("upsert", k, v=v) for k in keys))
    assert result.failures == []
    return result.timestamp


def reasons(result: RowWriteResult) -> list[tuple[int, str]]:
    """Position and reason of each failure."""
    return [(failure.row, failure.reason) for failure in result.failures]


def store_of(target: Table | TableStore) -> TableStore:
    """The store of a table, in its environment."""
    return target._store if isinstance(target, Table) else target


def entry_of(target: Table | TableStore, number: int = 0) -> TabletEntry:
    """The newest entry of a tablet."""
    return store_of(target).newest().tablets[number]


def log_folder(target: Table | TableStore) -> Path:
    """Where a table's log is."""
    return store_of(target).folder / LOG_FOLDER


def log_bytes(target: Table | TableStore) -> dict[int, bytes]:
    """The whole log, by segment, without the zeros at the end of each."""
    folder = log_folder(target)
    return {
        s: segment_path(folder, s).read_bytes().rstrip(b"\0")
        for s in list_segments(LocalStorage(), folder)
    }


def unflushed(target: Table | TableStore, number: int = 0) -> Sequence[Record]:
    """The records of a tablet in the log that no rowset has."""
    store = store_of(target)
    with store.turn():
        manifest, entry = store.newest(), entry_of(store, number)
        start = max(manifest.log_start, store.tablet(entry).superblock.log_start)
        tail = read_log(LocalStorage(), log_folder(store), manifest.table_id, start, None)
    decoder = RecordDecoder(manifest.schema)
    return [
        decoder.decode_rows(commit.timestamp, commit.parts[entry.id])
        for commit in tail.commits
        if entry.id in commit.parts
    ]
