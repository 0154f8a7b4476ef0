"""Operations beside the renaming, deletion, or creation of their table, at each of their steps.

An operation is done, or says that the table is gone or has changed: its files are not damaged, and
a file that it does not find is no error of the disk.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import pyarrow as pa
import pytest

from kudulite.chain.manifest import TabletEntry
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import (
    LockTimeoutError,
    RetryableError,
    TableExistsError,
    TableNotFoundError,
)
from kudulite.table.table_store import TableStore
from kudulite.tablet.tablet import Tablet
from tests.support.doubles.interrupted_storage import Interrupted
from tests.support.tables.core_tables import CoreTables
from tests.support.tables.table_operations import OPERATIONS, copied, new_table
from tests.support.tiers import tiered

MOVES: dict[str, Callable[[Client], object]] = {
    "rename": lambda client: client.rename_table("t", "moved"),
    "delete": lambda client: client.delete_table("t"),
    "soft delete": lambda client: client.soft_delete_table("t", 60),
    "create again": lambda client: (client.delete_table("t"), new_table(client)),
    "rename back": lambda client: (
        client.rename_table("t", "moved"),
        client.rename_table("moved", "t"),
    ),
}
ALSO = {
    "scan": lambda table: table.scan().to_arrow(),
    "get": lambda table: table.get(11),
    "bulk write": lambda table: table.new_bulk_write("upsert").abort(),
}
SCHEMA = pa.schema([("k", pa.int32())])
QUICK = [("flush", "rename"), ("update where", "create again")]


def moved(client: Client, move: str) -> None:
    """Move the table as another process does, unless the operation has a lock."""
    try:
        MOVES[move](client)
    except LockTimeoutError:
        pass


@tiered(("name", "move"), itertools.product([*OPERATIONS, *ALSO], MOVES), quick=QUICK)
def test_an_operation_survives_moves_ahead_of_each_of_its_steps(
    core: CoreTables, name: str, move: str
):
    """Every third step of the operation is tried, and its beginning."""
    new_table(core.client("made"))
    for at in itertools.count(0, 3):
        storage = Interrupted(at)
        table = copied(core, "beside", storage=storage).table("t")
        table.schema  # noqa: B018 - opened
        other = core.client("beside", lock_timeout_seconds=0.0)
        storage.action = partial(moved, other, move)
        try:
            (OPERATIONS | ALSO)[name](table)
        except (TableNotFoundError, RetryableError):
            assert storage.steps_left < 0
        if storage.steps_left >= 0:
            return


READS: dict[str, Callable[[Table], Iterator[pa.RecordBatch]]] = {
    "scan": lambda table: table.scan().to_batches(),
    "ordered scan": lambda table: table.scan(ordered=True).to_batches(),
    "changes": lambda table: table.changes(0).to_batches(),
}
TOKENS: dict[str, Callable[[Table], Iterator[pa.RecordBatch]]] = {
    "scan token": lambda table: table.scan_tokens()[0].open(),
    "change token": lambda table: table.change_tokens(0)[0].open(),
}


@pytest.mark.parametrize("move", ["rename", "delete", "soft delete", "create again"])
@pytest.mark.parametrize("name", READS)
def test_a_read_ends_or_says_that_its_table_is_gone(core: CoreTables, name: str, move: str):
    """Not that a file is missing, though it opens files as it needs them."""
    table = core.client().create_table("t", SCHEMA, primary_key="k", hash_partitions=[("k", 8)])
    for first in range(4):
        table.insert({"k": range(first, 4000, 4)})
    batches = READS[name](core.client().table("t"))
    found = next(batches).num_rows
    MOVES[move](core.client())
    try:
        found += sum(batch.num_rows for batch in batches)
        assert found == 4000
    except TableNotFoundError:
        assert found < 4000


@tiered("move", [*MOVES, "create"], quick=["delete"])
def test_a_creation_survives_tables_of_its_name_ahead_of_each_of_its_steps(
    core: CoreTables, move: str
):
    """It makes its table, or says that there is one; what another process has made stays."""
    for at in itertools.count():
        storage = Interrupted(at)
        name = f"beside{at}"
        other = core.client(name)

        def act(other: Client = other) -> None:
            with suppress(TableExistsError):  # at the last steps, when it is created
                new_table(other)
                if move != "create":
                    MOVES[move](other)

        storage.action = act
        try:
            table = core.client(name, storage=storage).create_table("t", SCHEMA, primary_key="k")
            assert table.scan().count() == 0
        except TableExistsError:
            assert move in ("create", "create again", "rename back")
        for found in other.list_tables():
            assert other.table(found).scan().count() in (0, 60)
        if storage.steps_left >= 0:
            return


@pytest.mark.parametrize("name", [*READS, *TOKENS])
def test_a_read_outlives_the_files_of_its_version(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch, name: str
):
    """It reads the newest one where all files were purged after it had opened the tablet."""
    table = core.client().create_table("t", SCHEMA, primary_key="k")
    table.upsert(pa.table({"k": range(100)}, schema=SCHEMA))
    batches = (READS | TOKENS)[name](core.client().table("t"))
    original, other = TableStore.tablet, core.client().table("t")

    def opened_before_a_purge(store: TableStore, entry: TabletEntry) -> Tablet:
        tablet = original(store, entry)
        monkeypatch.setattr(TableStore, "tablet", original)
        other.purge({"k": [7]})
        return tablet

    monkeypatch.setattr(TableStore, "tablet", opened_before_a_purge)
    found = [key for batch in batches for key in batch.column("k").to_pylist()]
    assert TableStore.tablet is original
    assert sorted(found) == [key for key in range(100) if key != 7]
