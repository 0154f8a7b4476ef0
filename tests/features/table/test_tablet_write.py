"""One append to one tablet: the flushes that share a record, and what each is told of it."""

from dataclasses import astuple, replace

import pytest

from kudulite.client.table import Table
from kudulite.errors import ConflictError, RetryableError, RowError
from kudulite.model.encoded_key import encode_key
from kudulite.table.row_queue import WriteRequest
from kudulite.tablet.row_effects import RowOperation
from kudulite.writes.row_write import TabletWrite, groups_of
from tests.support.tables.core_tables import CoreTables, stored
from tests.support.tables.row_writes import (
    NotingFileSystem,
    entry_of,
    new_table,
    op,
    put,
    store_of,
    unflushed,
)

UNWRITTEN = RetryableError("not written")


def flush_of(table: Table, *operations: RowOperation, is_atomic: bool = False) -> WriteRequest:
    """A flush that was planned for the table as it is now."""
    manifest = store_of(table).newest()
    made = WriteRequest(manifest, is_atomic, UNWRITTEN)
    for position, operation in enumerate(operations):
        made.positions.append(position)
        made.operations.append(operation)
        made.keys.append(encode_key([operation.values["k"]], manifest.schema.key_types))
    return made


def run(table: Table, *flushes: WriteRequest) -> None:
    """Write flushes as one record."""
    store, tablet_id = store_of(table), entry_of(table).id
    with store.lock(tablet_id) as lock:
        TabletWrite(store, tablet_id, lock).run(flushes)


@pytest.mark.parametrize(
    ("kinds", "sizes"),
    [("", []), ("aaa", [3]), ("X", [1]), ("aXa", [1, 1, 1]), ("aaXXaa", [2, 1, 1, 2])],
)
def test_an_atomic_flush_shares_its_record_with_none(kinds: str, sizes: list[int]):
    """The others are together with their neighbours, in order. Atomic ones are an X here."""
    flushes = [WriteRequest(None, kind == "X", None) for kind in kinds]
    groups = groups_of(flushes)
    assert [len(group) for group in groups] == sizes
    assert [flush for group in groups for flush in group] == flushes


def test_each_flush_is_told_of_its_own_operations(core: CoreTables):
    """One record at one timestamp; a later flush sees what an earlier one did."""
    table = new_table(core.client())
    put(table, 1)
    first = flush_of(table, op("insert", 1), op("insert", 2, v=2), op("delete", 1))
    second = flush_of(table, op("delete", 3), op("update", 2, v=3), op("insert_ignore", 2))
    run(table, first, second)
    assert (first.error, second.error, first.is_done, second.is_done) == (None, None, True, True)
    assert first.refusals == [(0, RowError.REASON_ALREADY_PRESENT)]
    assert second.refusals == [(0, RowError.REASON_NOT_FOUND)]
    counts = [astuple(flush.counts) for flush in (first, second)]
    assert counts == [(1, 0, 1, 0, 0), (0, 1, 0, 1, 0)]
    assert first.timestamp == second.timestamp == unflushed(table)[-1].timestamp
    assert len(unflushed(table)) == 2
    assert stored(table) == [(2, 3, 7)]


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
    disk = NotingFileSystem()
    table = new_table(core.client(file_system=disk))
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

    monkeypatch.setattr(TabletWrite, "_append", ends)
    with pytest.raises(KeyboardInterrupt):
        run(table, flush)
    assert (flush.error, flush.is_done, flush.timestamp) == (UNWRITTEN, False, 0)
