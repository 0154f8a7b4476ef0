"""Every operation that changes a table waits for its lock, and changes nothing without it."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import LockTimeoutError
from kudulite.table.snapshot import advance_safe_timestamp
from kudulite.tablet.maintenance_policy import CollectHistory, CompactRowSets
from kudulite.upkeep.compaction import run_operation
from kudulite.upkeep.garbage_collection import collect_garbage
from tests.support.tables.core_tables import CoreTables, files_below
from tests.support.tables.row_writes import entry_of, new_table, op, put, store_of, write


def bulk_write(table: Table) -> None:
    """Upsert a new key and an old one."""
    made = table.new_bulk_write("upsert")
    cells = [{"k": k, "v": 5, "w": 5} for k in (1, 9)]
    rows = pa.RecordBatch.from_pylist(cells, table.arrow_schema)
    made.commit([made.stage([rows])])


def row_write(table: Table) -> None:
    """Upsert a key through the log."""
    (failure,) = write(table, op("upsert", 3)).failures
    raise failure.error


def maintenance(table: Table, *operations: object) -> None:
    """Run operations on the only tablet."""
    entry = entry_of(table)
    rowsets = store_of(table).tablet(entry).superblock.rowsets
    for operation in operations or [CompactRowSets(tuple(meta.id for meta in rowsets))]:
        run_operation(store_of(table), entry.id, operation)


# The work that the holder of the lock announces -> the operation. It takes no other lock before.
OPERATIONS: dict[str, Callable[[Client, Table], object]] = {
    "row write": lambda _, table: row_write(table),
    "commit of write": lambda _, table: bulk_write(table),
    "snapshot": lambda _, table: advance_safe_timestamp(store_of(table), 1 << 40),
    "compaction": lambda _, table: maintenance(table),
    "history collection": lambda _, table: maintenance(table, CollectHistory()),
    "garbage collection": lambda _, table: collect_garbage(store_of(table), 0, 0),
    "purge": lambda _, table: table.purge([1]),
    "alteration": lambda client, table: client.new_table_alterer(table).drop_column("v").alter(),
    "renaming": lambda client, _: client.rename_table("t", "u"),
    "deletion": lambda client, _: client.delete_table("t"),
    "tag": lambda _, table: table.tag("x", table.versions()[0].timestamp),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_waits_for_the_lock_of_the_table(core: CoreTables, name: str):
    """Of another process, which holds it for longer than the client waits."""
    made = new_table(core.client())
    for _ in range(2):
        bulk_write(made)
    client = core.client(lock_timeout_seconds=0.0)
    table = client.table("t")
    before, version = files_below(table.path / "tablet"), made.version
    with store_of(made).turn(), pytest.raises(LockTimeoutError):
        OPERATIONS[name](client, table)
    assert before <= files_below(table.path / "tablet")
    assert made.version == version
    if name != "row write":
        OPERATIONS[name](client, table)


def test_a_flush_waits_for_the_lock_of_the_table(core: CoreTables):
    """It has rows in memory, which other operations flush before they take the lock themselves."""
    made = new_table(core.client())
    put(made, 1)
    table = core.client(lock_timeout_seconds=0.0).table("t")
    with store_of(made).turn(), pytest.raises(LockTimeoutError):
        table.flush()
    assert table.flush() == 1
