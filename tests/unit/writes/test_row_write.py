"""Rows written one by one: what a flush writes, and which rows fail for what reason."""

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import astuple

import pyarrow as pa
import pytest

import kudulite
from kudulite.errors import (
    ConflictError,
    LockTimeoutError,
    RowError,
    StorageError,
    TableNotFoundError,
    TimestampError,
    UsageError,
)
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.storage.table_lock import TableLock
from kudulite.table.table_store import TableStore
from kudulite.table.write_queue import WriteQueue
from kudulite.tablet.row_effects import RowOperation
from kudulite.wal import record_format, row_codec
from kudulite.writes.row_write import RowWriter, TableWrite
from tests.support.doubles.killing_storage import HalfStorage
from tests.support.tables.core_tables import CoreTables, ManualClock, environment, stored
from tests.support.tables.row_writes import (
    MIDDLE,
    NotingStorage,
    log_bytes,
    new_table,
    op,
    put,
    reasons,
    store_of,
    unflushed,
    write,
)

PRESENT, NOT_FOUND = RowError.REASON_ALREADY_PRESENT, RowError.REASON_NOT_FOUND


# -- one flush


def test_a_flush_is_one_frame_at_one_timestamp(core: CoreTables):
    """One append, one fsync, however many rows; a read just before it shows none of them."""
    disk = NotingStorage()
    table = new_table(core.client(storage=disk))
    put(table, 0)
    disk.steps.clear()
    result = write(table, *(op("insert", k, v=k) for k in range(1, 40)), op("delete", 0))
    assert (disk.count("append"), disk.count("fsync"), len(disk.steps)) == (1, 1, 2)
    assert [record.timestamp for record in unflushed(table)][1:] == [result.timestamp]
    assert astuple(result.counts) == (39, 0, 1, 0, 0)
    assert stored(table, result.timestamp) == [(k, k, 7) for k in range(1, 40)]
    assert stored(table, result.timestamp - 1) == [(0, 0, 7)]


def test_refused_rows_leave_the_others_applied(core: CoreTables):
    """Each one is told by its position and reason, in order of position over all tablets."""
    table = new_table(core.client(), 2)
    put(table, 1, MIDDLE + 1)
    result = write(
        table,
        op("insert", MIDDLE + 1, v=9),
        op("insert", MIDDLE + 2, v=2),
        op("insert", 1, v=9),
        op("update", 2, v=9),
        op("delete", 3),
        op("update_ignore", 3, v=9),
        op("insert", 4, v=4),
    )
    assert reasons(result) == [(0, PRESENT), (2, PRESENT), (3, NOT_FOUND), (4, NOT_FOUND)]
    assert all(failure.error is None for failure in result.failures)
    assert astuple(result.counts) == (2, 0, 0, 1, 0)
    expected = [(1, 0, 7), (4, 4, 7), (MIDDLE + 1, 0, 7), (MIDDLE + 2, 2, 7)]
    assert stored(table) == expected


def test_several_operations_on_one_key_apply_in_order(core: CoreTables):
    """Each on what the one before left; in the log there is one change of the key at most."""
    table = new_table(core.client())
    put(table, 1, 2, 3)
    result = write(
        table,
        *(op("update", 1, v=v) for v in (1, 2, 3)),
        op("delete", 2),
        op("insert", 2, w=5),
        op("delete", 3),
        op("insert", 4, v=1),
        op("insert", 4, v=2),
        op("update", 4, w=2),
        op("insert", 5),
        op("delete", 5),
        op("delete", 5),
    )
    assert reasons(result) == [(7, PRESENT), (11, NOT_FOUND)]
    assert astuple(result.counts) == (3, 4, 3, 0, 0)
    assert stored(table) == [(1, 3, 7), (2, None, 5), (4, 1, 2)]
    assert unflushed(table)[-1].row_count == 4


def test_rows_are_written_where_no_thread_is_to_be_had_to_flush_them(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch
):
    """As at the end of the interpreter: those of all tablets are, and nobody is told otherwise."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    table = new_table(core.client(), tablets=2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        result = write(table, op("insert", 1), op("insert", MIDDLE))
    assert (result.failures, result.counts.inserted) == ([], 2)
    assert [row[0] for row in stored(table)] == [1, MIDDLE]


def test_a_flush_is_one_commit_over_all_tablets(core: CoreTables):
    """One append, one fsync, one timestamp; a reader in between finds all of its rows or none."""
    disk = NotingStorage()
    table = new_table(core.client(storage=disk), tablets=2)
    first = put(table, 1, MIDDLE)
    disk.steps.clear()
    result = write(
        table, op("update", MIDDLE, v=5), op("delete", 1), op("insert", 2), op("insert", MIDDLE + 1)
    )
    assert (disk.count("append"), disk.count("fsync"), len(disk.steps)) == (1, 1, 2)
    stamps = [[record.timestamp for record in unflushed(table, number)] for number in (0, 1)]
    assert stamps == [[first, result.timestamp]] * 2
    assert stored(table, result.timestamp - 1) == [(1, 0, 7), (MIDDLE, 0, 7)]
    expected = [(2, None, 7), (MIDDLE, 5, 7), (MIDDLE + 1, None, 7)]
    assert stored(table, result.timestamp) == stored(core.client().table("t")) == expected


def test_a_lock_file_that_cannot_be_written_fails_all_rows(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch
):
    """Of all tablets: nothing is written."""
    table = new_table(core.client(), tablets=2)
    put(table, 0, MIDDLE + 1)
    announce = TableLock.announce
    pwrite = os.pwrite

    def refuse(descriptor: int, cell: bytes, offset: int) -> int:
        if os.path.sameopenfile(descriptor, file.fileno()):
            raise OSError(errno.EIO, "Input/output error")
        return pwrite(descriptor, cell, offset)

    with open(store_of(table).log.lock_path, "rb") as file, monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        patch.setattr(TableLock, "announce", lambda lock, work: announce(lock, f"{work} again"))
        result = write(table, op("insert", 1), op("insert", MIDDLE))
    assert result.counts.inserted == 0
    found = [(f.row, type(f.error), f.error.errno) for f in result.failures]
    assert found == [(0, StorageError, errno.EIO), (1, StorageError, errno.EIO)]
    assert {row[0] for row in stored(table)} == {0, MIDDLE + 1}


def test_what_changes_nothing_is_not_written(core: CoreTables):
    """No frame; its timestamp is one at which the table is as the flush has seen it."""
    disk = NotingStorage()
    table = new_table(core.client(storage=disk))
    last = put(table, 1)
    disk.steps.clear()
    result = write(table, op("insert_ignore", 1), op("insert", 2), op("delete", 2), op("update", 3))
    assert (disk.steps, result.timestamp) == ([], last)
    assert astuple(result.counts) == (1, 0, 1, 1, 0)
    assert reasons(result) == [(3, NOT_FOUND)]
    assert write(table).timestamp == 0


def test_nulls_and_missing_columns(core: CoreTables):
    """A default fills what an insert does not give; a null is refused where there may be none."""
    table = new_table(core.client(), required=True)
    result = write(
        table,
        op("insert", 1, r=1),
        op("insert", 2, v=2),
        op("upsert", 3, r=3, w=None),
        op("insert", 4, v=None, r=4, w=0),
        op("upsert", 1, v=5),
        op("update", 1, r=None),
        op("update_ignore", 2, r=None),
    )
    missing, null = RowError.REASON_MISSING, RowError.REASON_NULL
    assert reasons(result) == [(1, missing), (2, null), (5, null)]
    assert stored(table) == [(1, 5, 7, 1), (4, None, 0, 4)]


def test_a_key_that_no_range_covers_is_refused(core: CoreTables):
    """Few rows and many, which are looked for in another way."""
    table = new_table(core.client(), 2)
    no_partition = RowError.REASON_NO_PARTITION
    outside = 2 * MIDDLE
    assert reasons(write(table, op("insert", 1), op("insert", outside))) == [(1, no_partition)]
    keys = range(outside - 20, outside + 20)
    result = write(table, *(op("upsert", k) for k in keys))
    assert reasons(result) == [(at, no_partition) for at in range(20, 40)]
    assert len(stored(table)) == 21


@pytest.mark.parametrize("count", [1, 11, 12, 13, 40])
def test_the_number_of_rows_makes_no_difference(core: CoreTables, count: int):
    """Few keys are looked up one by one, many together: in memory, on disk, and deleted there."""
    table = new_table(core.client())
    table.insert([{"k": k, "v": -1} for k in range(0, 40, 2)])
    write(table, *(op("delete", k) for k in range(0, 40, 4)))
    put(table, *range(1, 40, 3), v=-2)
    expected = {row[0]: row for row in stored(table)}
    operations, refused = [], []
    for at in range(count):
        name = ("insert", "update", "delete")[at % 3]
        if (name == "insert") == (at in expected):
            refused.append((at, PRESENT if name == "insert" else NOT_FOUND))
        elif name == "delete":
            del expected[at]
        else:
            expected[at] = (at, at, 7)
        operations.append(op(name, at, **({} if name == "delete" else {"v": at})))
    assert reasons(write(table, *operations)) == refused
    assert stored(table) == sorted(expected.values())


# -- locks


def test_a_lock_that_cannot_be_had_is_a_failure_of_all_rows(core: CoreTables):
    """They have the error, which names the holder; none is written, in no tablet."""
    table = new_table(core.client(), 2)
    with store_of(table).turn() as lock:
        lock.announce("a test")
        operations = [op("insert", k) for k in (1, MIDDLE, 2, MIDDLE + 1)]
        result = write(table, *operations, timeout_seconds=0.0)
    assert [failure.row for failure in result.failures] == [0, 1, 2, 3]
    assert all(isinstance(failure.error, LockTimeoutError) for failure in result.failures)
    assert "held by a test" in str(result.failures[0].error)
    assert (result.counts.inserted, result.timestamp) == (0, 0)
    assert stored(table) == []


def test_who_gave_up_is_not_written_later(core: CoreTables):
    """The next writer of the table finds nothing of it."""
    table = new_table(core.client(lock_timeout_seconds=0.0))
    with store_of(table).turn():
        assert len(write(table, op("insert", 1)).failures) == 1
    assert write(table, op("insert", 2)).counts.inserted == 1
    assert stored(table) == [(2, None, 7)]


def test_who_is_interrupted_in_the_queue_is_not_written_later(core: CoreTables, monkeypatch):
    """A keyboard interrupt while he waits for the lock."""
    table = new_table(core.client())
    with monkeypatch.context() as patch:
        patch.setattr(TableStore, "turn", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            write(table, op("insert", 1))
    write(table, op("insert", 2))
    assert stored(table) == [(2, None, 7)]


# -- the disk


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_a_full_disk_leaves_log_and_table_as_they_were(core: CoreTables, part: float):
    """Also where a part of the frame came to the file, or all of it; then the next write works."""
    disk = HalfStorage(None, part)
    table = new_table(core.client(storage=disk), 2)
    put(table, 1, MIDDLE)
    before, rows = log_bytes(table), stored(table)
    disk.error = StorageError(errno.ENOSPC, "disk full; free some space")
    result = write(table, op("upsert", 1, v=9), op("insert", 2))
    assert [failure.error.errno for failure in result.failures] == [errno.ENOSPC] * 2
    assert "free some space and write again, nothing was changed" in result.failures[0].reason
    assert (result.timestamp, astuple(result.counts)) == (0, (0, 0, 0, 0, 0))
    assert log_bytes(table) == before
    assert stored(table) == stored(core.client().table("t")) == rows
    disk.error = None
    put(table, 2, v=2)
    assert stored(table) == stored(core.client().table("t")) == sorted([*rows, (2, 2, 7)])


# -- time


def test_timestamps_rise_whatever_the_clock_says(core: CoreTables):
    """Above those of other writers whose clocks are ahead, and of readers that settled a time."""
    clock = ManualClock()
    ahead = new_table(core.client(clock=ManualClock(clock.microseconds + 10**9)))
    table = core.client(clock=clock).table("t")
    stamps = [put(ahead, 1), put(table, 2), put(table, 3)]
    clock.microseconds += 2 * 10**9
    settled = table.scan(at=clock.now()).timestamp
    clock.microseconds = 0
    stamps += [put(table, 4), put(ahead, 5)]
    assert stamps == sorted(set(stamps))
    assert stamps[2] < settled == stamps[3] - 1


def test_a_table_without_a_timestamp_left_takes_no_rows(core: CoreTables):
    """Somebody's clock was at the end of time; the error says so."""
    table = new_table(core.client())
    put(table, 1)
    with store_of(table).turn() as lock:
        lock.advance_safe_timestamp(TIMESTAMP_MAX)
    (failure,) = write(table, op("insert", 2)).failures
    assert isinstance(failure.error, TimestampError)
    assert "no timestamp is left" in failure.reason
    assert len(unflushed(table)) == 1


# -- alterations


def meanwhile(monkeypatch: pytest.MonkeyPatch, *last_first: Callable[[], object]) -> None:
    """Have things done, one between each flush's plan and its place in the queue."""
    add, actions = WriteQueue.add, list(last_first)

    def later(queue: WriteQueue, item: object) -> None:
        if actions:
            actions.pop()()
        add(queue, item)

    monkeypatch.setattr(WriteQueue, "add", later)


def altering(client: kudulite.Client, table: kudulite.Table, name: str) -> Callable[[], object]:
    """An alteration that adds a column."""
    alterer = client.new_table_alterer(table)
    alterer.add_column(name, "int32")
    return alterer.alter


def test_a_flush_planned_before_an_alteration_is_planned_again(core: CoreTables, monkeypatch):
    """The schema that the writer saw last may be old; the writer notices it under the lock."""
    client = core.client()
    table = new_table(client)
    meanwhile(monkeypatch, altering(client, table, "x"))
    assert write(table, op("insert", 1)).failures == []
    assert stored(table) == [(1, None, 7, None)]


def test_a_flush_that_meets_two_alterations_is_refused(core: CoreTables, monkeypatch):
    """Its rows fail with a ConflictError; the next one is planned anew."""
    client = core.client()
    table = new_table(client)
    first, second = (altering(client, table, name) for name in ("x", "y"))
    meanwhile(monkeypatch, second, first)
    (failure,) = write(table, op("insert", 1)).failures
    assert isinstance(failure.error, ConflictError)
    assert "altered during a write; write again" in failure.reason
    assert write(table, op("insert", 1)).failures == []
    assert stored(table) == [(1, None, 7, None, None)]


def test_a_flush_finds_a_range_that_was_added_since_its_writer_looked(core: CoreTables):
    """A row that no range had room for is planned again with the newest version."""
    table = new_table(core.client(), 2)
    put(table, 1)
    other = core.client()
    alterer = other.new_table_alterer(other.table("t"))
    alterer.add_range_partition([2 * MIDDLE], [3 * MIDDLE])
    alterer.alter()
    result = write(table, *(op("insert", k) for k in (2, 2 * MIDDLE, 3 * MIDDLE, MIDDLE)))
    assert [failure.row for failure in result.failures] == [2]
    assert result.counts.inserted == 3
    assert [row[0] for row in stored(table)] == [1, 2, MIDDLE, 2 * MIDDLE]


def test_a_flush_of_a_table_that_was_deleted_raises(core: CoreTables, monkeypatch):
    """There is no lock to take; nothing comes back to life."""
    client = core.client()
    table = new_table(client)
    meanwhile(monkeypatch, lambda: client.delete_table("t"))
    with pytest.raises(TableNotFoundError):
        write(table, op("insert", 1))
    assert client.list_tables() == []


def test_a_flush_of_a_table_that_was_made_again_is_refused(core: CoreTables, monkeypatch):
    """Also in the middle of a write: the rows were meant for the deleted table."""
    client = core.client()
    table = new_table(client)

    def again() -> None:
        client.delete_table("t")
        new_table(client)

    meanwhile(monkeypatch, again)
    with pytest.raises(TableNotFoundError, match="'t' .* was created again"):
        write(table, op("insert", 1))
    assert stored(client.table("t")) == []


def test_operations_made_before_an_alteration_are_refused_one_by_one(core: CoreTables):
    """A column that is gone, a key column of another name, a value of the type before."""
    client = core.client()
    table = new_table(client)
    alterer = client.new_table_alterer(table)
    alterer.drop_column("v")
    alterer.alter()
    alterer = client.new_table_alterer(table)
    alterer.add_column("v", "string")
    alterer.drop_column("w")
    alterer.alter()
    result = write(
        table, op("insert", 1, v=5), op("insert", 2, w=5), op("insert", 3, v="x"), op("delete", 4)
    )
    invalid = RowError.REASON_INVALID
    assert reasons(result) == [(0, invalid), (1, invalid), (3, NOT_FOUND)]
    assert stored(table) == [(3, "x")]
    renamed = RowOperation(op("insert", 0).operation, {"key": 5, "v": "y"})
    assert reasons(write(table, renamed, op("insert", 6, v="z"))) == [(0, invalid)]
    assert stored(table) == [(3, "x"), (6, "z")]


@pytest.mark.parametrize("count", [20, 2000])
def test_rows_that_are_too_large_for_the_log_are_refused_as_a_whole(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch, count: int
):
    """Before anything is written; `count` rows are encoded row by row, or as columns."""
    disk = NotingStorage()
    table = new_table(core.client(storage=disk))
    put(table, -1)
    disk.steps.clear()
    with monkeypatch.context() as patch:
        patch.setattr(record_format, "PAYLOAD_BYTES_MAX", 200)
        result = write(table, *(op("upsert", k, v=k) for k in range(count)))
    message = rf"'t': {count} operations are too large for one write"
    for failure in result.failures:
        with pytest.raises(UsageError, match=message):
            raise failure.error
    assert [failure.row for failure in result.failures] == [*range(count)]
    assert (disk.steps, stored(table)) == ([], [(-1, 0, 7)])
    put(table, *range(count))
    assert len(stored(table)) == count + 1


def test_a_record_is_durable_before_the_end_of_the_log_is_noted(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise a reader would find rows that a power failure can take back."""
    disk, note = NotingStorage(), TableLock.set_log_end
    table = new_table(core.client(storage=disk))
    put(table, 1)

    def noted(lock: TableLock, segment: int, offset: int) -> None:
        disk.steps.append(("note", "lock"))
        note(lock, segment, offset)

    monkeypatch.setattr(TableLock, "set_log_end", noted)
    disk.steps.clear()
    put(table, 2)
    assert [step for step, _ in disk.steps] == ["append", "fsync", "note"]


@pytest.mark.parametrize(("kind", "cell"), [("string", "é" * 51), ("binary", b"x" * 101)])
def test_a_cell_whose_length_the_log_cannot_hold_is_refused(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch, kind: str, cell: str | bytes
):
    """In the log it is a number of 32 bits, here of fewer; nothing of the write is there."""
    schema = pa.schema([("k", pa.int32()), ("c", getattr(pa, kind)())])
    table = core.client().create_table("t", schema, primary_key="k")
    monkeypatch.setattr(row_codec, "CELL_BYTES_MAX", 100)
    for cells in ({"c": cell}, {"c": cell[:50]}):
        failures = write(table, op("upsert", 1), op("upsert", 2, **cells)).failures
        for failure in failures:
            with pytest.raises(UsageError, match=r"a cell of 10[12] bytes, at most 100"):
                raise failure.error
        assert len(failures) == (2 if cells["c"] is cell else 0)
    assert stored(table) == [(1, None), (2, cell[:50])]


def test_writers_that_are_too_large_together_are_written_one_by_one(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch
):
    """Each of them is one record; the second one changes rows of the first."""
    table = new_table(core.client())
    store = store_of(table)
    requests = []
    for value in (1, 2):
        operations = [op("upsert", k, v=value) for k in range(10 * value, 20 + 10 * value)]
        planned, _ = RowWriter(store)._plan(store.newest(), operations, range(20))
        requests.append(planned)
    monkeypatch.setattr(record_format, "PAYLOAD_BYTES_MAX", 600)
    with store.turn() as lock:
        TableWrite(store, lock).run(requests)
    assert [(r.error, r.counts.inserted, r.counts.updated) for r in requests] == [
        (None, 20, 0),
        (None, 10, 10),
    ]
    assert [record.row_count for record in unflushed(table)] == [20, 20]
    assert stored(table) == [(k, 1 if k < 20 else 2, 7) for k in range(10, 40)]


def test_writers_of_other_environments_take_turns(core: CoreTables):
    """Two that share nothing but the folder see each other's rows in each flush."""
    table = new_table(core.client())
    stores = [TableStore(table.path, environment()) for _ in range(2)]
    for turn in range(10):
        result = write(stores[turn % 2], op("insert", turn), op("upsert", 0, v=turn))
        assert reasons(result) == []
        assert reasons(write(stores[1 - turn % 2], op("insert", turn))) == [(0, PRESENT)]
    assert stored(table) == [(0, 9, 7), *((k, None, 7) for k in range(1, 10))]
