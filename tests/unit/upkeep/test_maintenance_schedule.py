"""Maintenance by the writers themselves: which tablets, when, and who does not want it."""

import logging

import pyarrow as pa
import pytest

from kudulite.client.client import Client, connect
from kudulite.client.session import Session
from kudulite.client.table import Table
from kudulite.errors import StorageError
from kudulite.tablet.maintenance_policy import CollectHistory
from kudulite.upkeep import maintenance_schedule
from kudulite.upkeep.garbage_collection import GRACE_SECONDS
from kudulite.upkeep.maintenance import MaintenanceResult, PerformedOperation
from kudulite.upkeep.maintenance_schedule import MAINTENANCE_DELAY_SECONDS, flush_when_needed
from tests.support.doubles.planned_work import Planned
from tests.support.tables.core_tables import CoreTables, ManualClock, environment, stored

SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int32())])


def new_table(core: CoreTables, **options) -> tuple[Table, Planned, Planned]:
    """A table of four tablets with a plan of its flushes and one of its maintenance."""
    flushes, maintenance = Planned(), Planned()
    made = environment(background=flushes, maintenance=maintenance, **options)
    table = Client(core.root / "root", made).create_table(
        "t", SCHEMA, primary_key="k", hash_partitions=[("k", 4)]
    )
    return table, flushes, maintenance


def rows(*keys: int) -> pa.Table:
    """Rows of these keys."""
    return pa.table({"k": keys, "v": keys}, SCHEMA)


@pytest.fixture
def maintained(monkeypatch) -> list:
    """The tablets that would be maintained; each time one operation was worthwhile."""
    calls: list = []

    def maintain(store, tablet_ids, *, is_flushing):
        assert not is_flushing, "memory is flushed when it is due"
        calls.extend((store.folder, tablet_id) for tablet_id in tablet_ids)
        done = PerformedOperation(tablet_ids[0], CollectHistory(), None)
        return MaintenanceResult(operations=(done,))

    monkeypatch.setattr(maintenance_schedule, "maintain_tablets", maintain)
    return calls


def test_a_commit_has_the_tablets_it_touched_maintained_a_while_later(core, maintained):
    """Only those; and what that supersedes is removed when the grace time is over."""
    table, flushes, maintenance = new_table(core, is_maintaining=True)
    table.upsert(rows(1))
    ((key, work, delay),) = maintenance.pieces
    (owner,) = [table.tablet_ids[n] for n in table.tablet_index(rows(1)).to_pylist()]
    assert (key, delay) == ((table.path, owner), MAINTENANCE_DELAY_SECONDS)
    work()
    assert maintained == [(table.path, owner)]
    assert [(key, delay) for key, _, delay in flushes.pieces] == [
        ((table.path, "collection"), GRACE_SECONDS)
    ]


def test_a_flush_has_its_tablet_maintained(core, maintained):
    """In the thread of maintenance, not in that of flushes."""
    table, flushes, maintenance = new_table(
        core, is_maintaining=True, flush_bytes=1000, small_write_rows_max=10
    )
    table.upsert(rows(1))
    ((_, flush, _),) = flushes.pieces
    assert maintenance.pieces == []
    flush()
    assert [delay for _, _, delay in maintenance.pieces] == [MAINTENANCE_DELAY_SECONDS]


def test_a_writer_that_flushes_by_itself_has_the_tablet_maintained(core, maintained):
    """Where memory has grown far too large."""
    table, _, maintenance = new_table(core, is_maintaining=True, flush_bytes=1000)
    session = Session()
    session.apply(table.new_insert({"k": 1, "v": 1}))
    session.flush()
    flush_when_needed(table._store, 4000, 4001)
    assert len(maintenance.pieces) == 1


def test_nobody_maintains_who_does_not_want_to(core):
    """The option of `connect`; environments of tests and of workers are without it."""
    table, _, maintenance = new_table(core)
    table.upsert(rows(1, 2, 3))
    assert maintenance.pieces == []
    assert not environment().is_maintaining
    for wanted in (True, False):
        client = connect(core.root / "other", background_maintenance=wanted)
        assert client._environment.is_maintaining == wanted
    assert connect(core.root / "other")._environment.is_maintaining


def test_a_table_or_tablet_that_is_gone_is_not_maintained(core, maintained):
    """It may be deleted before its time comes."""
    table, _, maintenance = new_table(core, is_maintaining=True)
    table.upsert(rows(1))
    ((_, work, _),) = maintenance.pieces
    Client(core.root / "root", table._store.environment).delete_table("t")
    work()
    maintenance_schedule.maintain_soon(table._store, ["no such tablet"])
    maintenance.pieces[-1][1]()
    assert maintained == []


def test_maintenance_that_fails_is_logged_and_left_until_the_next_write(core, monkeypatch, caplog):
    """An operation that fails after much work would fail each time."""
    table, _, maintenance = new_table(core, is_maintaining=True)
    table.upsert(rows(1))

    def fail(*_, **__):
        raise StorageError(28, "no space left")

    monkeypatch.setattr(maintenance_schedule, "maintain_tablets", fail)
    with caplog.at_level(logging.WARNING):
        maintenance.pieces[0][1]()
    assert "no space left" in caplog.text and "'t'" in caplog.text
    assert len(maintenance.pieces) == 1


def test_maintenance_goes_on_while_a_client_closes(core, maintained):
    """Closing flushes what is in memory and waits for nothing else."""
    table, _, maintenance = new_table(core, is_maintaining=True)
    table.upsert(rows(1))
    Client(core.root / "root", table._store.environment).close()
    assert len(maintenance.pieces) == 1 and maintained == []


@pytest.mark.parametrize("is_maintaining", [True, False])
def test_processes_that_end_at_once_keep_the_table_in_bounds(core, is_maintaining):
    """Each commits and ends, a minute after the one before: no thread of theirs does anything."""
    clock, expected = ManualClock(), {}

    def opened() -> Table:
        planned = {"background": Planned(), "maintenance": Planned()}
        options = {"is_maintaining": is_maintaining, "small_write_rows_max": 10}
        return Client(core.root / "root", environment(None, clock, **planned, **options)).table("t")

    new_table(core, clock=clock)
    lengths, deltas = [], []
    for number in range(120):
        table = opened()
        clock.microseconds += 61_000_000
        keys = [number % 7, 50 + number]
        table.upsert(pa.table({"k": keys, "v": [number] * 2}, SCHEMA))
        expected |= dict.fromkeys(keys, number)
        lengths.append(table.statistics.unflushed_row_count)
        deltas.append(table.statistics.redo_file_count)
    assert max(lengths) <= 12, lengths
    assert stored(opened()) == sorted(expected.items())
    assert len([v for v in opened().versions() if v.operation == "upsert"]) == 100
    assert (max(deltas) <= 20) == is_maintaining, deltas
    assert opened().check().problems == ()
