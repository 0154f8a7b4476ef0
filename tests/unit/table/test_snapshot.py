"""A snapshot time is settled: it shows the same rows for ever, whatever clocks do."""

import datetime
import errno

import pyarrow as pa
import pytest

import kudulite
from kudulite.client.table import Table
from kudulite.errors import LockTimeoutError, StorageError, TimestampError
from kudulite.storage import tablet_lock as lock_module
from kudulite.storage.tablet_lock import TabletLock
from tests.support.doubles.pausing_file_system import PausingFileSystem
from tests.support.tables.core_tables import CoreTables, ManualClock, stored

DAY = 24 * 3600 * 1_000_000
SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int32())])


@pytest.fixture
def clock() -> ManualClock:
    """The clock of the table's first client."""
    return ManualClock()


@pytest.fixture
def table(core: CoreTables, clock: ManualClock) -> Table:
    """An empty table of three tablets."""
    builder = kudulite.schema_builder()
    builder.add_column("k", kudulite.int32, nullable=False)
    builder.add_column("v", kudulite.int32)
    builder.set_primary_keys(["k"])
    client = core.client(clock=clock)
    return client.create_table("t", builder.build(), hash_partitions=[(["k"], 3)])


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
    entry = table._store.newest().tablets[0]
    with table._store.lock(entry.id) as lock:
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


def test_a_reader_waits_for_a_commit_that_may_be_before_its_time(core, table):
    """It says for whom; the past that is settled needs no lock."""
    past = table.upsert(rows(1)).timestamp
    entry = table._store.newest().tablets[0]
    reader = core.client(lock_timeout_seconds=0.05).table("t")
    with table._store.lock(entry.id) as lock:
        lock.announce("commit of write 7")
        with pytest.raises(LockTimeoutError, match="held by commit of write 7 of process"):
            reader.scan()
        assert uniform(reader, past) == {1}
        assert reader.get(1) == {"k": 1, "v": 1}


def test_a_tablet_that_is_safe_up_to_just_before_a_snapshot_is_advanced(table, clock):
    """Otherwise a write could still get the time that was read."""
    clock.microseconds += 1
    for entry in table._store.newest().tablets:
        with table._store.lock(entry.id) as lock:
            lock.advance_safe_timestamp(clock.now() - 1)
    scan = table.scan()
    assert scan.timestamp == clock.now()
    assert table.upsert(rows(1)).timestamp == scan.timestamp + 1
    assert scan.count() == 0


def test_a_commit_is_published_before_its_time_is_safe(core, clock):
    """A reader in between waits: it would miss the commit, and find it in the same moment later."""
    pausing = PausingFileSystem()
    client = core.client(file_system=pausing, clock=clock)
    writer = client.create_table("c", SCHEMA, primary_key="k")
    reader = core.client(clock=clock, lock_timeout_seconds=0.0).table("c")
    clock.microseconds += 1

    def read() -> None:
        with pytest.raises(LockTimeoutError):
            reader.scan()

    write = writer.new_bulk_write("insert")
    staged = write.stage([pa.table({"k": [1], "v": [1]}, schema=SCHEMA)])
    pausing.pause_at("before", read)
    timestamp = write.commit([staged]).timestamp
    assert pausing.pause_count == 1
    assert timestamp == reader.scan().timestamp == clock.now()
    assert reader.scan(at=timestamp).count() == 1


def test_the_end_of_the_log_is_noted_before_its_time_is_safe(core, clock, monkeypatch):
    """A reader in between waits: it would read the log only up to the end before."""
    client = core.client(clock=clock)
    table = client.create_table("c", SCHEMA, primary_key="k")
    reader = core.client(clock=clock, lock_timeout_seconds=0.0).table("c")
    clock.microseconds += 1
    note, notes = TabletLock.set_wal_end, []

    def read_first(lock: TabletLock, segment: int, offset: int) -> None:
        with pytest.raises(LockTimeoutError):
            reader.scan()
        notes.append(segment)
        note(lock, segment, offset)

    monkeypatch.setattr(TabletLock, "set_wal_end", read_first)
    session = client.new_session()
    session.apply(table.new_insert({"k": 1, "v": 1}))
    session.flush()
    assert notes == [1]
    assert session.last_timestamp == reader.scan().timestamp == clock.now()
    assert reader.scan(at=session.last_timestamp).count() == 1


def test_where_locks_cannot_be_had_the_present_is_the_newest_commit(table, monkeypatch):
    """A read-only directory: settling fails, reading works, and stays as it was."""
    first = table.upsert(rows(1))
    enter = TabletLock.__enter__

    def refuse(self):
        if not getattr(self, "_is_shared", False):
            raise StorageError(errno.EROFS, "read-only")
        return enter(self)

    monkeypatch.setattr(lock_module.TabletLock, "__enter__", refuse)
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
    enter = TabletLock.__enter__

    def refuse(self):
        if not self._is_shared:
            raise StorageError(errno.EROFS, "read-only")
        return enter(self)

    monkeypatch.setattr(lock_module.TabletLock, "__enter__", refuse)
    scan = core.client().table("t").scan()
    assert scan.timestamp == session.last_timestamp
    assert scan.count() == 6


def test_where_locks_cannot_be_had_a_read_still_waits_for_a_writer(core, table, monkeypatch):
    """A shared lock needs no right to write, and a commit that is under way may be older."""
    table.upsert(rows(1))
    reader = core.client(lock_timeout_seconds=0.0).table("t")
    enter = TabletLock.__enter__

    def refuse(self):
        if not self._is_shared:
            raise StorageError(errno.EROFS, "read-only")
        return enter(self)

    for entry in table._store.newest().tablets:
        with table._store.lock(entry.id), monkeypatch.context() as patch:
            patch.setattr(TabletLock, "__enter__", refuse)
            with pytest.raises(LockTimeoutError):
                reader.scan()
    monkeypatch.setattr(TabletLock, "__enter__", refuse)
    assert reader.scan().count() == 6
