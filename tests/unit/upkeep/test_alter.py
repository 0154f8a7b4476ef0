"""Alterations beside writers and readers of other processes, and what is left when they fail."""

import functools
import threading
from contextlib import nullcontext

import pyarrow as pa
import pytest

import kudulite
from kudulite.chain.partition import RangeWithHashSchema
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import ConflictError, LockTimeoutError, RowError
from kudulite.model.hybrid_time import Timestamp
from kudulite.table.table_store import TableStore
from kudulite.tablet.operation import Operation
from kudulite.tablet.row_effects import RowOperation
from kudulite.upkeep.alter import TableDraft, alter_table
from kudulite.writes import row_write
from kudulite.writes.row_write import RowWriter
from tests.support.tables.core_tables import CoreTables, ManualClock, environment, stored


def make_table(client: Client) -> Table:
    """Table t (k | v) with the range 0 to 100 and a row."""
    columns = [kudulite.column("k", kudulite.int64), kudulite.column("v", kudulite.int64)]
    part = kudulite.Partitioning().set_range_partition_columns("k").add_range_partition(0, 100)
    table = client.create_table("t", kudulite.schema(columns, "k"), part)
    table.insert([{"k": 1, "v": 1}])
    return table


def add_range(draft: TableDraft) -> TableDraft:
    """One more range, above the other."""
    return draft.add_range(RangeWithHashSchema((100,), (200,)))


def test_an_added_tablet_begins_after_all_that_was_settled(core: CoreTables):
    """A moment that was read before the alteration shows no row of the new tablet later, even when
    the writer's clock is behind the reader's."""
    ahead, behind = ManualClock(1_700_000_060_000_000), ManualClock()
    table = make_table(core.client(clock=ahead))
    moment = table.current_timestamp()
    store = TableStore(table.path, environment(clock=behind))
    alter_table(store, [add_range])
    late = core.client(clock=behind).table("t")
    assert late.insert([{"k": 150}]).timestamp > moment
    assert table.scan(at=moment).count() == 1


def test_a_moment_that_was_read_keeps_rows_of_added_tablets_out(core: CoreTables):
    """Also where the clock of the writer is behind that of the reader."""
    clock = ManualClock()
    table = make_table(core.client(clock=clock))
    other = core.client(clock=ManualClock(clock.microseconds - 10**6)).table("t")
    clock.microseconds += 10**6
    moment = clock.now()
    before = table.scan(at=Timestamp(moment)).to_pylist()
    alter_table(other._store, [add_range])
    other.insert([{"k": 150, "v": 1}])
    assert table.scan(at=Timestamp(moment)).to_pylist() == before
    assert other.newest_change() > moment


def test_a_lock_on_all_tablets_sees_those_added_while_it_waited(core: CoreTables):
    """A rename, a deletion or an alteration then holds the locks of the newest version."""
    table = make_table(core.client())
    first, second = (TableStore(table.path, environment()) for _ in range(2))
    assert second.newest().version == 2
    started, found = threading.Event(), []

    def alter_too() -> None:
        started.set()
        found.append(
            alter_table(second, [lambda d: d.add_range(RangeWithHashSchema((200,), None))])
        )

    thread = threading.Thread(target=alter_too)

    def wait_inside(draft: TableDraft) -> TableDraft:
        thread.start()
        started.wait()
        return add_range(draft)

    alter_table(first, [wait_inside])
    thread.join()
    assert len(found[0].tablets) == 3
    assert [table.insert([{"k": k}]).inserted for k in (150, 250)] == [1, 1]


def test_alterations_wait_for_a_lock_and_give_up(core: CoreTables):
    """As every writer does, naming the holder."""
    table = make_table(core.client())
    with table._store.turn() as lock:
        lock.announce("a test")
        store = TableStore(table.path, environment(lock_timeout_seconds=0.01))
        with pytest.raises(LockTimeoutError, match="held by a test"):
            alter_table(store, [add_range])


def test_row_writes_are_flushed_by_an_alteration(core: CoreTables):
    """Their records have the schema of their time; what they wrote is read under the new one."""
    client = core.client()
    table = make_table(client)
    session = client.new_session()
    session.apply(table.new_insert({"k": 5, "v": 7}))
    session.flush()
    alter_table(table._store, [add_range, lambda draft: draft.change_column("v", {"name": "w"})])
    session.apply(table.new_update({"k": 5, "w": 8}))
    session.flush()
    assert table.get(5)["w"] == 8
    assert table.statistics.rowset_count == 2


def test_a_write_to_a_tablet_that_was_dropped_is_refused(core: CoreTables):
    """It says that the table was altered."""
    client = core.client()
    table = make_table(client)
    alter_table(table._store, [add_range])
    write = table.new_bulk_write()
    staged = write.stage([pa.RecordBatch.from_pylist([{"k": 150, "v": 1}], table.arrow_schema)])
    alter_table(table._store, [lambda draft: draft.drop_range(RangeWithHashSchema((100,), (200,)))])
    with pytest.raises(ConflictError, match="altered during a write"):
        write.commit([staged])
    write.abort()


def test_a_write_to_a_tablet_that_was_dropped_and_made_again_is_refused(core: CoreTables):
    """The range is there, in another tablet."""
    client = core.client()
    table = make_table(client)
    alter_table(table._store, [add_range])
    write = table.new_bulk_write()
    staged = write.stage([pa.RecordBatch.from_pylist([{"k": 150, "v": 1}], table.arrow_schema)])
    alter_table(table._store, [lambda draft: draft.drop_range(RangeWithHashSchema((100,), (200,)))])
    alter_table(table._store, [add_range])
    with pytest.raises(ConflictError, match="altered during a write"):
        write.commit([staged])
    write.abort()


def test_a_row_made_again_by_a_write_loses_what_a_column_added_meanwhile_holds(core: CoreTables):
    """The write was staged without the column; the row that it inserts was never set in it."""
    client = core.client()
    table = make_table(client)
    write = table.new_bulk_write(operation_column="op")
    rows = [{"k": 1, "v": 2, "op": "delete"}, {"k": 1, "v": 3, "op": "insert"}]
    staged = write.stage([pa.RecordBatch.from_pylist(rows)])
    alterer = client.new_table_alterer(table)
    alterer.add_column("x", "int32")
    alterer.alter()
    table.upsert([{"k": 1, "v": 1, "x": 9}, {"k": 6, "v": 1, "x": 8}])
    write.commit([staged])
    assert stored(table) == [(1, 3, None), (6, 1, 8)]


def test_row_writes_to_a_tablet_that_was_dropped_and_made_again_find_the_new_one(
    core: CoreTables, monkeypatch
):
    """They are planned again, and go where they would have gone a moment later."""
    table = make_table(core.client())
    alter_table(table._store, [add_range])
    write = row_write.write_in_turn

    def later(*arguments):
        monkeypatch.undo()
        drop = [lambda draft: draft.drop_range(RangeWithHashSchema((100,), (200,)))]
        alter_table(table._store, drop)
        alter_table(table._store, [add_range])
        write(*arguments)

    monkeypatch.setattr(row_write, "write_in_turn", later)
    rows = [RowOperation(Operation.INSERT, {"k": 150, "v": 1})]
    writer = RowWriter(table._store)
    assert writer.write(rows).failures == []
    assert stored(table) == [(1, 1), (150, 1)]
    table.check().raise_if_bad()


def test_a_small_batch_is_one_commit_of_all_tablets(core: CoreTables):
    """With a row that no tablet takes, nothing is written."""
    table = make_table(core.client(small_write_rows_max=10))
    alter_table(table._store, [add_range])
    for other, count in ((250, 0), (150, 2)):  # in none, in the next tablet
        refused = nullcontext() if count else pytest.raises(RowError, match="no range partition")
        with refused:
            assert table.insert([{"k": k, "v": 1} for k in (2, other)]).inserted == count
    assert stored(table) == [(1, 1), (2, 1), (150, 1)]


def test_writers_and_readers_go_on_beside_alterations(core: CoreTables):
    """A write is applied whole or refused; a scan shows each row once."""
    table = make_table(core.client())
    done, attempts = threading.Event(), threading.Semaphore(0)
    written, doubled, errors = [], [], []

    def write() -> None:
        mine = core.client().table("t")
        for k in range(2, 100):
            if done.is_set():
                return
            try:
                mine.insert([{"k": k}])
                written.append(k)
            except ConflictError as error:
                errors.append(str(error))
            attempts.release()

    def read() -> None:
        mine = core.client().table("t")
        while not done.is_set():
            keys = [row["k"] for row in mine.scan(["k"]).to_pylist()]
            doubled.extend(keys if len(keys) != len(set(keys)) else [])

    threads = [threading.Thread(target=work) for work in (write, read)]
    for thread in threads:
        thread.start()
    names = ["v", "w"]
    for lower in range(100, 1100, 100):
        assert attempts.acquire(timeout=60)
        bounds = RangeWithHashSchema((lower,), (lower + 100,))
        change = functools.partial(
            TableDraft.change_column, name=names[0], fields={"name": names[1]}
        )
        alter_table(table._store, [functools.partial(TableDraft.add_range, added=bounds), change])
        names.reverse()
    done.set()
    for thread in threads:
        thread.join()
    assert doubled == []
    assert all("altered during a write" in error for error in errors)
    assert sorted(row["k"] for row in table.scan().to_pylist()) == sorted([1, *written])
