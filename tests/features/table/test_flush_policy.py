"""When memory is flushed: at each multiple of `flush_bytes`, by age, and at once when too large."""

from pathlib import Path

import pyarrow as pa
import pytest

from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import LockTimeoutError
from kudulite.table.background_work import RETRY_SECONDS
from kudulite.table.table_store import TableStore
from kudulite.tablet.operation import Operation
from kudulite.tablet.row_effects import RowOperation
from kudulite.upkeep.garbage_collection import GRACE_SECONDS
from kudulite.upkeep.maintenance_schedule import (
    FLUSH,
    FLUSH_AGE_SECONDS,
    flush_below,
    flush_when_needed,
)
from kudulite.writes.row_write import RowWriter
from tests.support.doubles.killing_storage import FailingStorage
from tests.support.doubles.planned_work import Planned
from tests.support.tables.core_tables import CoreTables, environment, stored

SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int32())])


def new_store(core: CoreTables, **options) -> tuple[TableStore, Planned]:
    """A table whose flushes are only planned, and the plan."""
    planned = Planned()
    made = environment(background=planned, flush_bytes=1000, **options)
    table = Client(core.root / "root", made).create_table("t", SCHEMA, primary_key="k")
    store = TableStore(table.path, made)
    return store, planned


def write(store: TableStore, *keys: int) -> None:
    """Upsert rows through the log."""
    rows = [RowOperation(Operation.UPSERT, {"k": key, "v": key}) for key in keys]
    assert RowWriter(store).write(rows).failures == []


@pytest.mark.parametrize(
    ("before", "after", "delay"),
    [
        (0, 999, FLUSH_AGE_SECONDS),
        (0, 1, FLUSH_AGE_SECONDS),
        (999, 1000, 0.0),
        (0, 3999, 0.0),
        (1000, 1999, FLUSH_AGE_SECONDS),
        (1999, 2000, 0.0),
        (2999, 3001, 0.0),
        (3001, 3999, FLUSH_AGE_SECONDS),
    ],
)
def test_a_write_that_passes_a_multiple_has_it_flushed_soon(
    core: CoreTables, before: int, after: int, delay: float
):
    """Only the one that passes it: others that write to the tablet leave it to that process."""
    store, planned = new_store(core)
    flush_when_needed(store, before, after)
    assert [(key, due) for key, _, due in planned.pieces] == [((store.folder, FLUSH), delay)]


def test_the_planned_work_flushes_the_table(core: CoreTables):
    """A flush writes all rows that are in the log then; a second one finds nothing."""
    store, planned = new_store(core)
    write(store, 1, 2)
    write(store, 3)
    assert len(planned.pieces) == 2
    for _, work, _ in planned.pieces:
        work()
    assert store.newest().version == 2
    assert store.newest().tablets[0].live_row_count == 3


def test_a_table_that_is_gone_needs_no_flush(core: CoreTables):
    """Deleted, or renamed: what is planned for it does nothing."""
    store, planned = new_store(core)
    write(store, 1)
    core.client().rename_table("t", "u")
    planned.pieces[0][1]()
    assert stored(core.client().table("u")) == [(1, 1)]
    core.client().delete_table("u")
    planned.pieces[0][1]()


@pytest.mark.parametrize("is_made_again", [False, True])
def test_what_is_in_memory_of_a_table_that_another_process_deleted_goes(
    core: CoreTables, is_made_again: bool
):
    """With its open log and lock file, which would keep their space on disk."""
    store, planned = new_store(core)
    write(store, 1)
    assert store.environment.memories and store.environment.write_queues
    other = core.client()
    other.delete_table("t")
    if is_made_again:
        other.create_table("t", SCHEMA, primary_key="k")
    (_, work, _) = planned.pieces[0]
    work()
    assert (store.environment.memories, store.environment.write_queues) == ({}, {})


def test_memory_far_too_large_is_flushed_by_the_writer(core: CoreTables):
    """It waits for the disk, so memory is bounded however fast rows come."""
    store, planned = new_store(core)
    write(store, 1)
    planned.pieces.clear()
    flush_when_needed(store, 3999, 4000)
    assert (store.newest().version, planned.pieces) == (2, [])


def test_a_process_whose_background_never_comes_flushes_as_it_writes(core: CoreTables):
    """All is in rowsets but less than four times the limit."""
    store, planned = new_store(core)
    counts = []
    for key in range(100):
        write(store, key)
        counts.append(key + 1 - store.newest().tablets[0].live_row_count)
    assert store.newest().version > 2
    assert 1 < max(counts) < 50
    assert 0.0 in planned.delays
    assert len(stored(core.client().table("t"))) == 100


def test_a_writer_whose_flush_fails_has_it_tried_again_later(core: CoreTables):
    """Its rows are in the log; it is not told of it."""
    store, planned = new_store(core)
    write(store, 1)
    planned.pieces.clear()
    failing = environment(FailingStorage(0), background=planned, flush_bytes=1000)
    flush_when_needed(TableStore(store.folder, failing), 0, 4000)
    assert planned.delays == [RETRY_SECONDS]
    assert store.newest().version == 1
    assert stored(core.client().table("t")) == [(1, 1)]


def test_a_client_that_closes_flushes_its_own_tables(core: CoreTables):
    """Those below its folder, not those beside it that its name is a part of."""
    made = environment()
    clients = [Client(core.root / name, made) for name in ("a", "ab")]
    tables = [client.create_table("t", SCHEMA, primary_key="k") for client in clients]
    for table in tables:
        write(TableStore(table.path, made), 1)
    clients[0].close()
    assert [table.version for table in tables] == [2, 1]
    clients[0].close()
    assert [table.version for table in tables] == [2, 1]
    clients[1].close()
    assert [table.version for table in tables] == [2, 2]


def test_what_a_close_cannot_flush_it_raises_and_the_next_one_flushes(core: CoreTables):
    """The rows are in the log all the time."""
    made = environment(lock_timeout_seconds=0.0)
    client = Client(core.root / "root", made)
    table = client.create_table("t", SCHEMA, primary_key="k")
    store = TableStore(table.path, made)
    write(store, 1)
    with store.turn(), pytest.raises(LockTimeoutError):
        client.close()
    client.close()
    assert table.version == 2


def test_work_of_other_kinds_is_left_alone():
    """A process's background work may have other keys than (folder, tablet)."""
    made, done = environment(), []
    made.background.schedule("other", lambda: done.append(True), 1000)
    flush_below(made, Path("/"))
    assert done == []


def test_what_a_flush_supersedes_is_removed_when_the_grace_time_is_over(core: CoreTables):
    """Once for a table, an hour later; a client that is closed does not wait for it."""
    store, planned = new_store(core)
    write(store, 1)
    ((_, flush, _),) = planned.pieces
    planned.pieces.clear()
    flush()
    ((key, collect, delay),) = planned.pieces
    assert (key, delay) == ((store.folder, "collection"), GRACE_SECONDS)
    collect()
    assert stored(Table(store)) == [(1, 1)]
