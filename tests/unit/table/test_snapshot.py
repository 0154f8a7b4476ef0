"""A snapshot time is settled: it shows the same rows for ever, whatever clocks do."""

import datetime
import errno
from collections.abc import Callable

import pyarrow as pa
import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import LockTimeoutError, StorageError, TimestampError
from kudulite.storage.table_lock import TableLock
from tests.support.doubles.killing_storage import KilledError
from tests.support.doubles.pausing_storage import PausingStorage
from tests.support.tables.core_tables import CoreTables, ManualClock, altered, stored
from tests.support.tables.row_writes import op, write

DAY = 24 * 3600 * 1_000_000
SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int32())])


@pytest.fixture
def clock() -> ManualClock:
    """The clock of the table's first client."""
    return ManualClock()


@pytest.fixture
def table(core: CoreTables, clock: ManualClock) -> Table:
    """An empty table of three tablets."""
    columns = [kudulite.column("k", kudulite.int32), kudulite.column("v", kudulite.int32)]
    client = core.client(clock=clock)
    return client.create_table("t", kudulite.schema(columns, "k"), hash_partitions=[(["k"], 3)])


def rows(value: int) -> list[dict]:
    """Six rows in all tablets."""
    return [{"k": k, "v": value} for k in range(6)]


def uniform(table: Table, at=None) -> set:
    """The values that the rows of a snapshot have."""
    return {v for _, v in stored(table, at)}


def test_a_snapshot_at_t_includes_the_commit_at_t(table):
    """And one tick before does not."""
    first, second = table.upsert(rows(1)), table.upsert(rows(2))
    assert uniform(table, first.timestamp) == {1}
    assert uniform(table, second.timestamp - 1) == {1}
    assert uniform(table, second.timestamp) == {2}
    assert stored(table, first.timestamp - 1) == []


def test_a_read_time_is_never_written_to_later(table):
    """With a clock that stands still, each commit and each read has its place."""
    table.upsert(rows(0))
    reads = []
    for value in range(1, 4):
        reads.append((table.current_timestamp(), value - 1))
        result = table.upsert(rows(value))
        assert result.timestamp > reads[-1][0]
    assert [uniform(table, at) for at, _ in reads] == [{value} for _, value in reads]


def test_a_clock_that_steps_back_does_not_reorder_commits(table, clock):
    """Timestamps go on rising from the last one, and the present shows them."""
    first = table.upsert(rows(1))
    clock.microseconds -= 3600 * 1_000_000
    second = table.upsert(rows(2))
    assert second.timestamp == first.timestamp + 1
    assert uniform(table) == {2}
    assert uniform(table, first.timestamp) == {1}
    assert table.scan().timestamp == second.timestamp


def test_a_writer_behind_another_machines_clock_comes_after_it(core, table, clock):
    """Two processes with clocks an hour apart."""
    ahead = core.client(clock=ManualClock(clock.microseconds + 3600 * 1_000_000)).table("t")
    first = ahead.upsert(rows(1))
    second = table.upsert(rows(2))
    assert second.timestamp > first.timestamp
    assert uniform(table) == uniform(ahead) == {2}


def test_more_commits_than_logical_ticks_fit(core, table, clock, monkeypatch):
    """The logical part carries into the physical one."""
    first = table.upsert(rows(1))
    with table._store.turn() as lock:
        lock.advance_safe_timestamp(first.timestamp | 0xFFF)
    second = table.upsert(rows(2))
    assert second.timestamp == (first.timestamp | 0xFFF) + 1
    assert uniform(table, second.timestamp - 1) == {1}


def test_a_time_ahead_of_the_clock_is_refused_and_named(table):
    """With the time asked for and the clock's."""
    table.upsert(rows(1))
    expected = r"table 't': snapshot 2099-01-01T00:00:00.* is ahead of the clock, .*2023-11-14"
    with pytest.raises(TimestampError, match=expected):
        table.scan(at="2099-01-01")


def test_a_time_before_history_is_refused_and_named(table, clock):
    """Seven days are kept; the newest state can always be read."""
    first = table.upsert(rows(1))
    second = table.upsert(rows(2))
    clock.microseconds += 8 * DAY
    with pytest.raises(TimestampError, match=r"before the ancient history mark 2023.*604800 s"):
        table.scan(at=first.timestamp)
    assert uniform(table, second.timestamp) == uniform(table) == {2}


def test_a_wall_time_shows_the_whole_microsecond(table, clock):
    """All commits of one microsecond, however many."""
    table.upsert(rows(1))
    table.upsert(rows(2))
    moment = datetime.datetime.fromtimestamp(clock.microseconds / 1e6, datetime.UTC)
    assert uniform(table, moment) == {2}
    clock.microseconds += 1
    assert table.upsert(rows(3)).timestamp > kudulite.parse_timestamp(moment)
    assert uniform(table, moment) == {2}


def test_a_read_of_the_present_or_the_past_takes_no_lock(core, table, clock):
    """A moment that a commit may still get waits for it; the error says for whom."""
    before = table.upsert(rows(0)).timestamp
    past = table.upsert(rows(1)).timestamp
    reader = core.client(clock=clock, lock_timeout_seconds=0.05).table("t")
    with table._store.turn() as lock:
        lock.announce("commit of write 7")
        assert (reader.scan().timestamp, uniform(reader)) == (past, {1})
        assert uniform(reader, past) == {1}
        assert uniform(reader, before) == {0}
        assert reader.get(1) == {"k": 1, "v": 1}
        with pytest.raises(LockTimeoutError, match="held by commit of write 7 of process"):
            reader.scan(at=past + 1)


def test_a_table_that_is_safe_up_to_just_before_a_snapshot_is_advanced(table, clock):
    """Otherwise a write could still get the time that was read."""
    clock.microseconds += 1
    with table._store.turn() as lock:
        lock.advance_safe_timestamp(clock.now() - 1)
    assert table.scan().timestamp == clock.now() - 1
    scan = table.scan(at=clock.now())
    assert scan.timestamp == clock.now() == table.scan().timestamp
    assert table.upsert(rows(1)).timestamp == scan.timestamp + 1
    assert scan.count() == 0


def test_a_commit_is_published_before_its_time_is_safe(core, clock):
    """A reader in between waits for nobody; its moment is before the commit's, and stays empty."""
    pausing = PausingStorage()
    client = core.client(storage=pausing, clock=clock)
    writer = client.create_table("c", SCHEMA, primary_key="k")
    reader = core.client(clock=clock, lock_timeout_seconds=0.0).table("c")
    clock.microseconds += 1
    moments = []

    def read() -> None:
        scan = reader.scan()
        assert scan.count() == 0
        moments.append(scan.timestamp)
        with pytest.raises(LockTimeoutError):
            reader.scan(at=clock.now())

    write = writer.new_bulk_write("insert")
    staged = write.stage([pa.table({"k": [1], "v": [1]}, schema=SCHEMA)])
    pausing.pause_at("before", read)
    timestamp = write.commit([staged]).timestamp
    assert pausing.pause_count == 1
    assert timestamp == reader.scan().timestamp == clock.now()
    assert reader.scan(at=timestamp).count() == 1
    assert moments[0] < timestamp
    assert reader.scan(at=moments[0]).count() == 0


def test_the_end_of_the_log_is_noted_before_its_time_is_safe(core, clock, monkeypatch):
    """A reader in between has the row, at its own moment; one before both has not."""
    client = core.client(clock=clock)
    table = client.create_table("c", SCHEMA, primary_key="k")
    reader = core.client(clock=clock, lock_timeout_seconds=0.0).table("c")
    clock.microseconds += 1
    note, advance, scans, ends = TableLock.set_log_end, TableLock.advance_safe_timestamp, [], []

    def look(lock: TableLock) -> None:
        scans.append(reader.scan())
        assert scans[-1].count() == len(ends) == len(reader.get_many([{"k": 1}]))
        assert (reader.get(1) is not None) == (len(ends) == 1)
        ends.append(lock.log_end)
        with pytest.raises(LockTimeoutError):
            reader.scan(at=clock.now() + len(ends) - 1)

    def look_first(lock: TableLock, segment: int, offset: int) -> None:
        look(lock)
        note(lock, segment, offset)

    def look_between(lock: TableLock, timestamp: int) -> None:
        look(lock)
        advance(lock, timestamp)

    with monkeypatch.context() as patch:
        patch.setattr(TableLock, "set_log_end", look_first)
        patch.setattr(TableLock, "advance_safe_timestamp", look_between)
        session = client.new_session()
        session.apply(table.new_insert({"k": 1, "v": 1}))
        session.flush()
    assert [segment for segment, _ in ends] == [0, 1]
    assert session.last_timestamp == reader.scan().timestamp == clock.now()
    assert reader.scan(at=session.last_timestamp).count() == 1
    assert [scan.count() for scan in scans] == [0, 1]
    assert scans[1].timestamp == session.last_timestamp


# Each publishes a version.
PUBLICATIONS: dict[str, Callable[[Table], object]] = {
    "flush": lambda table: table.flush(),
    "tag": lambda table: table.tag("now"),
    "alter": lambda table: altered(
        Client(table.path.parent, table._store.environment), "t", lambda a: a.set_comment("c")
    ),
    "bulk write": lambda table: table.upsert([{"k": 9, "v": 9}]),
    "row write": lambda table: write(table, op("upsert", 9)),
}


@pytest.mark.parametrize("name", PUBLICATIONS)
def test_a_commit_whose_writer_died_before_its_time_was_safe_is_before_what_follows(
    core: CoreTables, table: Table, monkeypatch: pytest.MonkeyPatch, name: str
):
    """The writer's clock was ahead; its commit was seen by readers, so nothing is put before it."""
    ahead = ManualClock()
    ahead.microseconds += 5_000_000
    writer = core.client(clock=ahead)
    session = writer.new_session()
    session.apply(writer.table("t").new_upsert({"k": 1, "v": 1}))
    with monkeypatch.context() as patch:
        patch.setattr(TableLock, "advance_safe_timestamp", dies)
        with pytest.raises(KilledError):
            session.flush()
    seen = core.client(clock=ManualClock()).table("t")
    before, moment = stored(seen), seen.current_timestamp()
    assert before == [(1, 1)]
    assert moment == ahead.now()
    PUBLICATIONS[name](core.client(clock=ManualClock()).table("t"))
    after = core.client(clock=ManualClock()).table("t")
    assert stored(after, moment) == before
    assert after.current_timestamp() > moment
    if name != "row write":
        assert after.versions()[0].timestamp > moment


def dies(*_arguments: object) -> None:
    """The process ends here."""
    raise KilledError


def test_where_locks_cannot_be_had_the_present_is_the_newest_commit(table, monkeypatch):
    """A read-only directory: settling fails, reading works, and stays as it was."""
    first = table.upsert(rows(1))
    enter = TableLock.__enter__

    def refuse(self):
        if not getattr(self, "_is_shared", False):
            raise StorageError(errno.EROFS, "read-only")
        return enter(self)

    monkeypatch.setattr(TableLock, "__enter__", refuse)
    scan = table.scan()
    assert scan.timestamp == first.timestamp
    assert scan.count() == 6
    monkeypatch.undo()
    table.upsert(rows(2))
    assert uniform(table, first.timestamp) == {1}


def test_where_locks_cannot_be_had_the_present_has_what_logs_hold(core, table, clock, monkeypatch):
    """Rows that were written one by one are there, though no version has them yet."""
    clock.microseconds += 1
    session = kudulite.Session()
    for k in range(6):
        session.apply(table.new_insert({"k": k, "v": 1}))
    session.flush()
    enter = TableLock.__enter__

    def refuse(self):
        if not self._is_shared:
            raise StorageError(errno.EROFS, "read-only")
        return enter(self)

    monkeypatch.setattr(TableLock, "__enter__", refuse)
    scan = core.client().table("t").scan()
    assert scan.timestamp == session.last_timestamp
    assert scan.count() == 6


def test_where_locks_cannot_be_had_a_later_moment_still_waits_for_a_writer(
    core, table, clock, monkeypatch
):
    """A shared lock needs no right to write, and a commit that is under way may be older."""
    past = table.upsert(rows(1)).timestamp
    reader = core.client(lock_timeout_seconds=0.0).table("t")
    enter = TableLock.__enter__

    def refuse(self):
        if not self._is_shared:
            raise StorageError(errno.EROFS, "read-only")
        return enter(self)

    with table._store.turn(), monkeypatch.context() as patch:
        patch.setattr(TableLock, "__enter__", refuse)
        with pytest.raises(LockTimeoutError):
            reader.scan(at=past + 1)
        assert reader.scan().count() == 6
    monkeypatch.setattr(TableLock, "__enter__", refuse)
    assert reader.scan(at=past + 1).count() == 6
