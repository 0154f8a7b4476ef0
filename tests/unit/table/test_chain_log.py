"""Turns in the chain: one that has lost is taken again, on the entries that the winner has left."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kudulite.chain import entry_chain
from kudulite.chain.entry_chain import EntryChain
from kudulite.errors import KuduliteError, LockTimeoutError, StorageError
from kudulite.table.chain_log import RECORDS_MAX, ChainLog, ChainTurn
from kudulite.table.table_log import LostRaceError
from tests.support.tables.core_tables import ManualClock, stored
from tests.support.tables.object_tables import ObjectTables, rows


@pytest.fixture
def objects() -> ObjectTables:
    """A store in memory."""
    return ObjectTables()


def test_a_turn_that_lost_is_taken_again(objects: ObjectTables):
    """Its body sees what came first, and its own entries do not stop it."""
    table = objects.new_table()
    other = objects.client().table("t")
    seen = []

    def body(turn: ChainTurn) -> int:
        seen.append(turn.newest().version)
        if len(seen) < 3:
            other.upsert(rows(len(seen)))
        turn.advance_safe_timestamp(turn.safe_timestamp + 1)
        turn.advance_safe_timestamp(turn.safe_timestamp + 1)
        return turn.entries.number

    assert table._store.in_turn("test", body) == 5
    assert seen == [1, 2, 3]


def test_an_error_of_a_turn_that_lost_is_not_reported(objects: ObjectTables):
    """Its reason may not hold any more; an error of the newest state is reported."""
    table, count = objects.new_table(), 0
    other = objects.client().table("t")

    def body(turn: ChainTurn) -> str:
        nonlocal count
        count += 1
        if count == 1:
            other.upsert(rows(1))
            raise KuduliteError("of the past")
        return "done"

    assert table._store.in_turn("test", body) == "done"

    def failing(turn: ChainTurn) -> None:
        raise KuduliteError("of the present")

    with pytest.raises(KuduliteError, match="of the present"):
        table._store.in_turn("test", failing)


def test_a_turn_gives_up_after_its_time(objects: ObjectTables):
    """The error says how often others were faster."""
    table = objects.new_table()

    def body(turn: ChainTurn) -> None:
        raise LostRaceError

    with pytest.raises(LockTimeoutError, match=r"'t': in 0.01 s other writers were faster \d+ tim"):
        table._store.in_turn("test", body, 0.01)


Write = Callable[[ObjectTables], object]


@pytest.mark.parametrize("small", [0, 1000])
def test_what_others_wrote_counts_for_row_errors(objects: ObjectTables, small: int):
    """A refusal appends nothing, so the turn looks before it reports."""
    one = objects.client(small_write_rows_max=small)
    table = objects.new_table(one)
    table.insert(rows(1, 2))
    other = objects.client(small_write_rows_max=small).table("t")
    other.delete(rows(1).select(["k"]))
    table.insert(rows(1, v=5))
    assert other.insert_ignore(rows(1, v=7)).ignored == 1
    table.delete(rows(2).select(["k"]))
    assert other.update_ignore(rows(2, v=7)).ignored == 1
    assert stored(table) == stored(other) == [(1, 5)]


def test_sessions_of_two_processes_see_each_other(objects: ObjectTables):
    """Row by row, also where an operation is refused by what the other wrote."""
    clients = [objects.client(), objects.client()]
    tables = [objects.new_table(clients[0]), clients[1].table("t")]
    sessions = [client.new_session() for client in clients]
    for number in range(6):
        which = number % 2
        sessions[which].apply(tables[which].new_insert({"k": number // 2, "v": which}))
        try:
            sessions[which].flush()
        except KuduliteError:
            assert which == 1
            assert len(sessions[1].get_pending_errors()[0]) == 1
        else:
            assert which == 0
    assert stored(tables[1]) == [(0, 0), (1, 0), (2, 0)]


def test_records_are_folded_by_one_of_the_writers(objects: ObjectTables):
    """After one append in sixteen, from a number on."""
    table = objects.new_table()
    log = table._store.log
    assert isinstance(log, ChainLog)
    grown = []
    for number in range(1, RECORDS_MAX + 17):
        table._store.in_turn("test", log.fence)
        grown += [number] if log.has_grown_long() else []
    assert grown == [RECORDS_MAX, RECORDS_MAX + 16]
    assert log.nbytes == 0


def test_a_process_that_has_won_lets_the_others_go_first(
    objects: ObjectTables, monkeypatch: pytest.MonkeyPatch
):
    """One that is alone waits for nobody."""
    table = objects.new_table()
    chain = table._store.chain
    assert isinstance(chain, EntryChain)

    def append(writer: str) -> None:
        monkeypatch.setattr(entry_chain, "new_record_id", lambda: writer * 32)
        entries = chain.entries()
        chain.append(entries, b"", entries.timestamp + (100_000 << 12))

    monkeypatch.setattr(entry_chain, "record_writer", lambda: "a" * 12)
    for _ in range(3):
        append("a")
    assert chain.seconds_to_wait() <= 0
    for writer in "bca":
        append(writer)
    assert 0.1 < chain.seconds_to_wait() < 0.3


def test_a_turn_that_loses_again_and_again_asks_others_to_wait(
    objects: ObjectTables, monkeypatch: pytest.MonkeyPatch
):
    """For longer than its attempt took; those that append rows do, until a version is there."""
    table = objects.new_table()
    other = objects.client().table("t")
    chain = other._store.chain
    assert isinstance(chain, EntryChain)
    waits = []

    def body(turn: ChainTurn) -> None:
        monkeypatch.setattr(entry_chain, "record_writer", lambda: "a" * 12)
        waits.append(chain.entries().asked_until - time.monotonic())
        if len(waits) < 5:
            other.upsert(rows(len(waits)))
            time.sleep(0.02)
        monkeypatch.undo()
        turn.advance_safe_timestamp(turn.safe_timestamp + 1)

    table._store.in_turn("test", body)
    assert max(waits[:3]) < 0 and min(waits[3:]) > 0.02
    assert chain.seconds_to_wait() > 0.02
    other.compact()
    assert chain.entries().asked_until > 0
    other.upsert(rows(9))
    assert chain.entries().asked_until == 0.0


def test_deleted_tables_refuse_those_who_have_them_open(objects: ObjectTables):
    """Until they are recalled; one of the same name is another table."""
    client = objects.client()
    table = objects.new_table(client)
    table.upsert(rows(1))
    other = objects.client().table("t")
    deleted = client.soft_delete_table("t", 1000)
    for action in (lambda: other.upsert(rows(2)), lambda: other.scan().count()):
        with pytest.raises(KuduliteError, match=r"was deleted; .*recall_table"):
            action()
    recalled = client.recall_table(deleted.id)
    other.upsert(rows(2))
    assert stored(recalled) == [(1, 0), (2, 0)]
    client.delete_table("t")
    made = objects.new_table(client)
    with pytest.raises(KuduliteError, match="'t' at .* was deleted"):
        other.upsert(rows(3))
    assert stored(made) == []


def test_a_new_process_lists_the_tables(objects: ObjectTables):
    """As its first call."""
    objects.new_table()
    client = objects.client()
    assert client.list_tables() == ["t"]
    assert objects.client().list_soft_deleted_tables() == []


def test_readers_of_moments_ahead_leave_no_long_log(objects: ObjectTables):
    """Each settles its moment with a record; some of them fold these, though nobody writes."""
    clock = ManualClock()
    client = objects.client(clock=clock)
    table = objects.new_table(client)
    table.upsert(rows(1))
    chain = table._store.chain
    assert isinstance(chain, EntryChain)
    longest = 0
    for _ in range(3 * RECORDS_MAX):
        clock.microseconds += 1_000_000
        assert stored(table, clock.now()) == [(1, 0)]
        longest = max(longest, len(chain.last_entries().records))
    assert RECORDS_MAX - 1 <= longest <= RECORDS_MAX + 16
    assert stored(objects.client(clock=clock).table("t")) == [(1, 0)]


def test_two_objects_of_a_table_in_one_process_write_by_turns(objects: ObjectTables):
    """Beside another process, each finds what the others have written."""
    client = objects.client(small_write_rows_max=1000, lock_timeout_seconds=5.0)
    one = objects.new_table(client)
    two, foreign = client.table("t"), objects.client(small_write_rows_max=1000).table("t")
    for number in range(4):
        for place, table in enumerate((two, foreign, one, foreign)):
            table.insert(rows(10 * number + place))
    assert len(stored(one)) == len(stored(two)) == len(stored(foreign)) == 16


def test_one_that_is_behind_finds_the_end_of_a_deleted_table(objects: ObjectTables):
    """Though it has not seen the last entries, of which only the newest ones are kept."""
    client = objects.client(small_write_rows_max=1000)
    table = objects.new_table(client)
    behind = objects.client(small_write_rows_max=1000).table("t")
    assert stored(behind) == []
    for number in range(3):
        table.insert(rows(number))
    client.delete_table("t")
    objects.new_table(client)
    for action in (lambda: behind.upsert(rows(9)), lambda: stored(behind)):
        with pytest.raises(KuduliteError, match="'t' at .* was deleted"):
            action()


def test_a_publication_of_unknown_outcome_is_not_tried_again(
    objects: ObjectTables, monkeypatch: pytest.MonkeyPatch
):
    """Its files stay, because the version may be there."""
    client = objects.client(small_write_rows_max=1000)
    table = objects.new_table(client)
    table.insert(rows(1, 2))
    storage = table._store.storage
    real = storage.put_if_absent

    def unanswered(path: Path, content: bytes) -> bool:
        real(path, content)
        if path.parent.name == "manifest":
            raise StorageError(errno.EIO, "no answer")
        return True

    monkeypatch.setattr(storage, "put_if_absent", unanswered)
    with pytest.raises(StorageError, match="no answer"):
        table.flush()
    monkeypatch.undo()
    assert stored(objects.client().table("t")) == stored(table) == [(1, 0), (2, 0)]
    assert table.check().problems == ()
