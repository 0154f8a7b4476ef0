"""One append to the log: the flushes that share a commit, and the outcome of each."""

from dataclasses import astuple, replace

import pytest

from kudulite.client.table import Table
from kudulite.errors import ConflictError, RetryableError, RowError
from kudulite.model.encoded_key import encode_key
from kudulite.table.write_queue import groups_of
from kudulite.tablet.row_effects import RowOperation
from kudulite.wal.log_reader import read_log
from kudulite.wal.segment import LOG_BEGIN
from kudulite.writes.batch_commit import BatchRequest
from kudulite.writes.log_commit import LogCommit
from kudulite.writes.row_write import TabletRows, TableWrite, WriteRequest
from tests.support.tables.core_tables import CoreTables, stored
from tests.support.tables.row_writes import (
    MIDDLE,
    NotingStorage,
    new_table,
    op,
    put,
    store_of,
    unflushed,
)

UNWRITTEN = RetryableError("not written")


def flush_of(table: Table, *operations: RowOperation) -> WriteRequest:
    """A flush that was planned for the table as it is now."""
    manifest = store_of(table).newest()
    made = WriteRequest(store_of(table), manifest, error=UNWRITTEN)
    for position, operation in enumerate(operations):
        key = encode_key([operation.values["k"]], manifest.schema.key_types)
        number = manifest.partition.tablet_of_key(operation.values, key)
        rows = made.tablets.setdefault(manifest.placed_tablets[number].id, TabletRows())
        rows.positions.append(position)
        rows.operations.append(operation)
        rows.keys.append(key)
    return made


def refusals(flush: WriteRequest) -> list[tuple[int, str]]:
    """The refused operations: the position of each in the caller's list, and why."""
    return sorted((f.row, f.reason) for f in flush.failures("t"))


def run(table: Table, *flushes: WriteRequest) -> None:
    """Write flushes as one commit."""
    store = store_of(table)
    with store.turn() as lock:
        TableWrite(store, lock).run(flushes)


@pytest.mark.parametrize(
    ("kinds", "sizes"),
    [("", []), ("aaa", [3]), ("X", [1]), ("aXa", [1, 1, 1]), ("aaXXaa", [2, 2, 2])],
)
def test_writes_of_a_kind_are_together_with_their_neighbours(kinds: str, sizes: list[int]):
    """In order; batches are an X."""
    make = {
        "a": lambda: WriteRequest(None, None),
        "X": lambda: BatchRequest(None, None, None, None),
    }
    writes = [make[kind]() for kind in kinds]
    groups = groups_of(writes)
    assert [len(group) for group in groups] == sizes
    assert [write for group in groups for write in group] == writes


def test_each_flush_is_told_of_its_own_operations(core: CoreTables):
    """One record at one timestamp; a later flush sees what an earlier one did."""
    table = new_table(core.client())
    put(table, 1)
    first = flush_of(table, op("insert", 1), op("insert", 2, v=2), op("delete", 1))
    second = flush_of(table, op("delete", 3), op("update", 2, v=3), op("insert_ignore", 2))
    run(table, first, second)
    assert (first.error, second.error, first.is_done, second.is_done) == (None, None, True, True)
    assert refusals(first) == [(0, RowError.REASON_ALREADY_PRESENT)]
    assert refusals(second) == [(0, RowError.REASON_NOT_FOUND)]
    counts = [astuple(flush.counts) for flush in (first, second)]
    assert counts == [(1, 0, 1, 0, 0), (0, 1, 0, 1, 0)]
    assert first.timestamp == second.timestamp == unflushed(table)[-1].timestamp
    assert len(unflushed(table)) == 2
    assert stored(table) == [(2, 3, 7)]


def test_flushes_of_several_tablets_are_one_commit(core: CoreTables):
    """Each flush gets the outcome of its own operations, in whichever tablets they are."""
    table = new_table(core.client(), 2)
    high = MIDDLE + 1
    first = flush_of(table, op("insert", high, v=1), op("insert", 1, v=1), op("delete", 2))
    second = flush_of(table, op("insert", 1), op("update", high, v=2))
    run(table, first, second)
    assert refusals(first) == [(2, RowError.REASON_NOT_FOUND)]
    assert refusals(second) == [(0, RowError.REASON_ALREADY_PRESENT)]
    assert [astuple(flush.counts)[:2] for flush in (first, second)] == [(2, 0), (0, 1)]
    assert first.timestamp == second.timestamp
    assert stored(table) == [(1, 1, 7), (high, 2, 7)]
    assert (
        len(
            read_log(
                store_of(table).storage,
                store_of(table).log.folder,
                first.planned.table_id,
                LOG_BEGIN,
                None,
            ).commits
        )
        == 1
    )


def test_memory_before_and_after_is_told_once(core: CoreTables):
    """So one of the writers looks whether it is to be flushed."""
    table = new_table(core.client())
    flushes = [flush_of(table, op("insert", k)) for k in range(3)]
    run(table, *flushes)
    (before, after), *others = (flush.memory_bytes for flush in flushes)
    assert (before, others) == (0, [(0, 0), (0, 0)])
    assert after > 0
    unchanged = flush_of(table, op("insert_ignore", 1))
    run(table, unchanged)
    assert (unchanged.memory_bytes, unchanged.error) == ((0, 0), None)


def test_a_flush_planned_for_another_table_is_refused_and_the_others_written(core: CoreTables):
    """Altered, or made again under its name, since it was planned."""
    client = core.client()
    table = new_table(client)
    altered, again, good = (flush_of(table, op("insert", k)) for k in range(3))
    altered.planned = replace(altered.planned, partition=None)
    again.planned = replace(again.planned, table_id="of another")
    run(table, altered, again, good)
    assert [flush.is_done for flush in (altered, again, good)] == [True] * 3
    assert isinstance(altered.error, ConflictError) and "altered" in str(altered.error)
    assert isinstance(again.error, ConflictError) and "created again" in str(again.error)
    assert good.error is None
    assert stored(table) == [(2, None, 7)]


def test_a_group_of_refused_flushes_takes_no_look_at_the_tablet(core: CoreTables):
    """Nothing is appended."""
    disk = NotingStorage()
    table = new_table(core.client(storage=disk))
    refused = flush_of(table, op("insert", 1))
    refused.planned = replace(refused.planned, table_id="of another")
    disk.steps.clear()
    run(table, refused)
    assert (disk.steps, unflushed(table)) == ([], [])
    assert refused.error is not UNWRITTEN


def test_a_flush_is_not_written_until_somebody_says_so(core: CoreTables, monkeypatch):
    """Whatever ends the append, before or after it: the caller is not told that all went well."""
    table = new_table(core.client())
    flush = flush_of(table, op("insert", 1))

    def ends(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LogCommit, "_append", ends)
    with pytest.raises(KeyboardInterrupt):
        run(table, flush)
    assert (flush.error, flush.is_done, flush.timestamp) == (UNWRITTEN, False, 0)
