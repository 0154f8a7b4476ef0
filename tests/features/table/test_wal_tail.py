"""The tail of a log: every process finds the same rows, after any crash, and nobody owns it."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kudulite.client.table import Table
from kudulite.errors import CorruptionError, RowError, StorageError
from kudulite.model.encoded_key import encode_key
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.names import segment_name
from kudulite.storage.table_lock import TableLock, read_lock_file
from kudulite.table.present import caught_up_memory, present, read_tablet, recover
from kudulite.table.table_store import TableStore
from kudulite.tablet.row_effects import RowOperation
from kudulite.wal.commit_format import encode_commit
from kudulite.wal.log_writer import LogWriter
from kudulite.wal.record_format import encode_rows
from kudulite.wal.segment import LOG_BEGIN, LogPosition, list_segments, segment_path
from tests.support.tables.core_tables import CoreTables, environment, stored, tuples
from tests.support.tables.row_writes import (
    NotingStorage,
    entry_of,
    log_bytes,
    log_folder,
    new_table,
    op,
    put,
    store_of,
    unflushed,
    write,
)
from tests.support.tables.wal_changes import damage

CELL_OFFSET = 220  # of the log's end in a lock file


def fresh(table: Table, **options) -> TableStore:
    """The table as another process has it that has seen nothing."""
    return TableStore(table.path, environment(**options))


def rows_of(store: TableStore, timestamp: int = TIMESTAMP_MAX) -> dict[int, tuple]:
    """The rows that a reader who takes no lock finds, by key."""
    schema, tablet = store.newest().schema, read_tablet(store, entry_of(store))
    found = {}
    for k in range(10):
        key = encode_key([k], schema.key_types)
        place = tablet.locate_one(key, None, timestamp)
        if place is not None:
            rowset, rowid = place
            found[k] = tuple(rowset.read_row(rowid, schema.value_columns, timestamp))
    return found


def keys_of(store: TableStore) -> list[int]:
    """The keys that a reader finds."""
    return list(rows_of(store))


def lock_file(table: Table) -> Path:
    """The lock file of the table."""
    return Path(store_of(table).log.lock_path)


def append_unannounced(table: Table, *operations: RowOperation) -> tuple[int, LogPosition]:
    """Append a durable frame and die before the lock file says so; its timestamp and end."""
    store = fresh(table)
    with store.turn() as lock:
        found = recover(store, lock)
        entry, schema = found.manifest.tablets[0], found.manifest.schema
        memory = found.memory.writable_stores(store.tablet(entry), found.manifest)
        keys = [encode_key([o.values["k"]], schema.key_types) for o in operations]
        exists = [place is not None for place in memory.locate(keys)]
        effects = memory.applier.apply(operations, keys, exists)
        timestamp = max(store.environment.clock.now(), lock.safe_timestamp + 1)
        rows = encode_rows(memory.applier.record(effects, timestamp))
        with writer_of(store, found.memory.end) as log:
            end = log.append([encode_commit(timestamp, {entry.id: rows})])
    return timestamp, end


def writer_of(target: Table | TableStore, end: LogPosition) -> LogWriter:
    """A writer that goes on with the table's log at its end, without a word to anybody."""
    store = store_of(target)
    return LogWriter(LocalStorage(), log_folder(store), store.newest().table_id, end)


def tear(path: Path, end: LogPosition, byte_count: int) -> None:
    """Take so many bytes before `end` away, as if they had not come to the disk."""
    with path.open("r+b") as file:
        file.seek(end.offset - byte_count)
        file.write(bytes(byte_count))


# -- reading


def test_another_process_sees_what_was_written(core: CoreTables):
    """Without the lock, which somebody else may have for as long as he likes."""
    table = new_table(core.client())
    other = fresh(table, lock_timeout_seconds=0.0)
    assert keys_of(other) == []
    put(table, 1, 2)
    with store_of(table).turn():
        assert keys_of(other) == keys_of(fresh(table, lock_timeout_seconds=0.0)) == [1, 2]
    write(table, op("delete", 1), op("update", 2, v=5))
    put(table, 3)
    with store_of(table).turn():
        expected = {2: (5, 7), 3: (0, 7)}
        assert rows_of(other) == rows_of(fresh(table, lock_timeout_seconds=0.0)) == expected


def test_a_reader_who_has_read_the_log_reads_only_what_is_new(core: CoreTables, monkeypatch):
    """And nothing at all where nothing is new."""
    table = new_table(core.client())
    other = fresh(table)
    put(table, 1)
    first = read_tablet(other, entry_of(other))
    assert read_tablet(other, entry_of(other)) is first
    end = caught_up_memory(other, entry_of(other))[1].end
    put(table, 2)
    damage(segment_path(log_folder(table), 1), end.offset - 1)  # read already
    assert keys_of(other) == [1, 2]
    with pytest.raises(CorruptionError):
        keys_of(fresh(table))
    damage(segment_path(log_folder(table), 1), end.offset - 1)


def test_a_tablet_without_a_log_has_no_memory(core: CoreTables):
    """Nor after all of its log was flushed."""
    table = new_table(core.client())
    table.insert([{"k": 1}])
    assert caught_up_memory(store_of(table), entry_of(table)) == (entry_of(table), None)
    put(table, 2)
    table.flush()
    other = fresh(table)
    for store in (other, other, store_of(table)):
        assert caught_up_memory(store, entry_of(store)) == (entry_of(store), None)
    assert keys_of(other) == [1, 2]


def test_an_older_entry_gets_the_newest_rows(core: CoreTables):
    """A scan plans by one version and opens its tablets later: after a flush, a bulk write, or an
    alteration, and row writes under the version that it made."""
    client = core.client()
    table = new_table(client)
    put(table, 1)
    other = fresh(table)
    old = entry_of(other)
    changes: list[Callable[[], object]] = [
        table.flush,
        lambda: table.insert([{"k": 3}]),
        client.new_table_alterer(table).drop_column("v").alter,
    ]
    for change in changes:
        change()
        write(table, op("delete_ignore", 3), op("upsert", 1, w=5))
        tablet = read_tablet(other, old)
        assert tablet.superblock == store_of(table).tablet(entry_of(table)).superblock
        assert (tablet.live_row_count, tablet.memrowset is None) == (1, True)
    assert rows_of(other) == {1: (5,)}


def test_memory_under_another_schema_is_not_used(core: CoreTables):
    """A change of defaults alone keeps the superblock; new rows have the new default."""
    client = core.client()
    table = new_table(client)
    other = fresh(table)
    write(other, op("delete_ignore", 9))
    alterer = client.new_table_alterer(table)
    alterer.alter_column("w").default(8)
    alterer.alter()
    write(table, op("insert", 1))
    assert rows_of(other) == {1: (None, 8)}
    write(other, op("insert", 2))
    assert rows_of(store_of(table)) == {1: (None, 8), 2: (None, 8)}


# -- a writer that died after its fsync


@pytest.mark.parametrize("log", ["none", "some", "flushed"])
def test_frames_beyond_the_durable_end_count_as_written(core: CoreTables, log: str):
    """The first process that opens the table recovers them, for itself and for all others."""
    table = new_table(core.client())
    if log != "none":
        put(table, 1)
    if log == "flushed":
        table.flush()
    timestamp, end = append_unannounced(table, op("upsert", 1, v=5), op("insert", 2))
    assert read_lock_file(lock_file(table)).log_end < (end.segment, end.offset)
    expected = {1: (5, 7), 2: (None, 7)}
    assert rows_of(fresh(table)) == expected
    state = read_lock_file(lock_file(table))
    assert (state.safe_timestamp, state.log_end) == (timestamp, end)
    assert rows_of(store_of(table)) == expected
    assert set(rows_of(fresh(table), timestamp - 1)) == (set() if log == "none" else {1})


def test_a_reader_who_knows_the_log_finds_them_when_he_settles_a_time(core: CoreTables):
    """Until then the dead writer's rows may come at any time; after it they stay as they are."""
    table = new_table(core.client())
    put(table, 1)
    assert keys_of(store_of(table)) == [1]
    append_unannounced(table, op("insert", 2))
    assert keys_of(store_of(table)) == [1]
    moment = table.current_timestamp()
    settled = table.scan(at=store_of(table).environment.clock.now()).timestamp
    assert keys_of(store_of(table)) == [1, 2]
    assert [row[0] for row in stored(table, moment)] == [1]
    assert [row[0] for row in tuples(table.scan(at=settled).to_arrow())] == [1, 2]


def test_the_next_writer_writes_on_top_of_them(core: CoreTables):
    """He sees their keys, and his timestamp is above theirs."""
    table = new_table(core.client())
    put(table, 1)
    timestamp, _ = append_unannounced(table, op("insert", 2))
    result = write(table, op("insert", 2), op("insert", 3))
    assert [(f.row, f.reason) for f in result.failures] == [(0, RowError.REASON_ALREADY_PRESENT)]
    assert result.timestamp > timestamp
    assert keys_of(fresh(table)) == [1, 2, 3]


def test_recovery_makes_them_durable_before_it_says_so(core: CoreTables):
    """The writer may have died between its write and its fsync."""
    table = new_table(core.client())
    put(table, 1)
    append_unannounced(table, op("insert", 2))
    disk = NotingStorage()
    store = fresh(table, storage=disk)
    before = read_lock_file(lock_file(table))
    with store.turn() as lock:
        store.log.settle(lock, store.newest())
    assert disk.steps[:2] == [("append", segment_name(1)), ("fsync", segment_name(1))]
    after = read_lock_file(lock_file(table))
    assert after.log_end > before.log_end and after.safe_timestamp > before.safe_timestamp
    disk.steps.clear()
    with store.turn() as lock:
        store.log.settle(lock, store.newest())
    assert disk.steps == []


def test_a_log_that_was_rolled_by_a_writer_that_died_goes_on_in_the_new_segment(core: CoreTables):
    """The segment before is closed by it: nothing may be appended there any more."""
    table = new_table(core.client())
    put(table, 1)
    with writer_of(table, present(store_of(table)).memory.end) as log:
        rolled = log.roll()
    assert list_segments(LocalStorage(), log_folder(table)) == [1, 2]
    before = log_bytes(table)[1]
    put(table, 2)
    assert keys_of(fresh(table)) == [1, 2]
    assert log_bytes(table)[1] == before
    assert read_lock_file(lock_file(table)).log_end > rolled


def test_recovery_makes_the_name_of_a_new_segment_durable(core: CoreTables):
    """Its writer may have died before the fsync of the folder, and rows are written to it now."""
    table = new_table(core.client())
    put(table, 1)
    with writer_of(table, present(store_of(table)).memory.end) as log:
        log.roll()
    disk = NotingStorage()
    store = fresh(table, storage=disk)
    with store.turn() as lock:
        store.log.settle(lock, store.newest())
    assert disk.steps[-1] == ("fsync", log_folder(table).name)


# -- torn tails and damage


@pytest.mark.parametrize("cut", [10, 30, 50])
def test_a_torn_frame_was_never_written(core: CoreTables, cut: int):
    """Its writer died within the write. The next append takes its place."""
    table = new_table(core.client())
    put(table, 1)
    path = segment_path(log_folder(table), 1)
    _, end = append_unannounced(table, op("insert", 2))
    tear(path, end, cut)
    content = path.read_bytes()
    assert keys_of(fresh(table)) == [1]
    assert path.read_bytes() == content  # a reader changes nothing
    put(table, 3)
    assert keys_of(fresh(table)) == [1, 3]


def test_bytes_that_are_no_frame_are_cut_off_by_the_next_append(core: CoreTables):
    """As some file systems leave them after a power failure."""
    table = new_table(core.client())
    put(table, 1)
    with segment_path(log_folder(table), 1).open("ab") as file:
        file.write(bytes(500))
    assert keys_of(fresh(table)) == [1]
    put(table, 2)
    assert len(unflushed(table)) == 2
    assert keys_of(fresh(table)) == [1, 2]


def test_damage_before_the_durable_end_is_corruption(core: CoreTables):
    """Nobody may take it for a torn frame: those rows were acknowledged."""
    table = new_table(core.client())
    put(table, 1)
    put(table, 2)
    path = segment_path(log_folder(table), 1)
    _, end = read_lock_file(lock_file(table)).log_end
    for offset in (end - 1, 60):
        damage(path, offset)
        with pytest.raises(CorruptionError, match="CRC"):
            keys_of(fresh(table))
        (failure,) = write(fresh(table), op("insert", 3)).failures
        assert isinstance(failure.error, CorruptionError)
        damage(path, offset)
    assert keys_of(fresh(table)) == [1, 2]


def test_a_log_that_is_shorter_than_it_should_be_is_corruption(core: CoreTables):
    """Or gone: a copy that was not complete."""
    table = new_table(core.client())
    put(table, 1)
    path = segment_path(log_folder(table), 1)
    content = path.read_bytes()
    os.truncate(path, read_lock_file(lock_file(table)).log_end[1] - 1)
    with pytest.raises(CorruptionError, match="expected at least"):
        keys_of(fresh(table))
    (failure,) = write(table, op("insert", 3)).failures
    assert isinstance(failure.error, CorruptionError)
    path.unlink()
    with pytest.raises(CorruptionError, match="missing"):
        keys_of(fresh(table))
    path.write_bytes(content)


# -- the lock file, which is not fsynced


@pytest.mark.parametrize("damaged", ["older", "torn", "cut off"])
def test_rows_are_found_whatever_the_lock_file_says(core: CoreTables, damaged: str):
    """After a power failure it may be behind the log, torn, or without the cell."""
    table = new_table(core.client())
    path = lock_file(table)
    put(table, 1)
    older = path.read_bytes()
    put(table, 2)
    timestamp = put(table, 3)
    newest = path.read_bytes()
    content = {
        "older": older,
        "torn": newest[:CELL_OFFSET] + older[CELL_OFFSET:-8] + newest[-8:],
        "cut off": older[:CELL_OFFSET],
    }
    path.write_bytes(content[damaged])
    assert keys_of(fresh(table)) == [1, 2, 3]
    state = read_lock_file(path)
    assert (state.safe_timestamp, state.log_end) == (timestamp, log_end_in(newest, path))
    put(table, 4)
    assert keys_of(fresh(table)) == [1, 2, 3, 4]


def log_end_in(content: bytes, path: Path) -> tuple[int, int] | None:
    """The log's end in the content of a lock file."""
    copy = path.with_name("copy")
    copy.write_bytes(content)
    try:
        return read_lock_file(copy).log_end
    finally:
        copy.unlink()


def test_a_reader_who_knows_the_log_finds_its_end_though_the_cell_is_torn(core: CoreTables):
    """He cannot tell it from the lock file, so he takes the lock."""
    table = new_table(core.client())
    put(table, 1)
    other = fresh(table)
    assert keys_of(other) == [1]
    put(table, 2)
    damage(lock_file(table), CELL_OFFSET)
    assert read_lock_file(lock_file(table)).log_end is None
    assert keys_of(other) == [1, 2]
    assert read_lock_file(lock_file(table)).log_end is not None


def test_the_end_is_never_before_what_a_version_has(core: CoreTables):
    """A lock file of long ago, after a flush: nothing is read twice."""
    table = new_table(core.client())
    old = lock_file(table).read_bytes()
    write(table, op("insert", 1), op("insert", 2))
    write(table, op("delete", 1))
    table.flush()
    lock_file(table).write_bytes(old)
    assert read_lock_file(lock_file(table)).log_end == LOG_BEGIN
    assert keys_of(fresh(table)) == [2]
    put(table, 3)
    assert keys_of(fresh(table)) == keys_of(store_of(table)) == [2, 3]


# -- where nothing may be written


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it: from then on nobody may open a lock file for writing."""
    enter, access = TableLock.__enter__, os.access

    def refuse(lock: TableLock) -> TableLock:
        if not lock._is_shared:
            raise StorageError(errno.EACCES, "not permitted")
        return enter(lock)

    def begin() -> None:
        monkeypatch.setattr(TableLock, "__enter__", refuse)
        monkeypatch.setattr(
            os,
            "access",
            lambda path, mode, **options: mode != os.W_OK and access(path, mode, **options),
        )

    return begin


@pytest.mark.parametrize("tail", ["announced", "unannounced", "torn"])
def test_who_may_not_write_reads_all_that_is_whole(core: CoreTables, read_only, tail: str):
    """Under a shared lock, with which no append is under way; nothing is changed."""
    table = new_table(core.client())
    put(table, 1)
    _, end = append_unannounced(table, op("insert", 2))
    path = segment_path(log_folder(table), 1)
    if tail == "announced":
        assert keys_of(fresh(table)) == [1, 2]
    elif tail == "torn":
        tear(path, end, 10)
    before = path.read_bytes(), lock_file(table).read_bytes()
    read_only()
    disk = NotingStorage()
    store = fresh(table, storage=disk)
    for _ in range(2):
        assert keys_of(store) == ([1] if tail == "torn" else [1, 2])
    assert (path.read_bytes(), lock_file(table).read_bytes(), disk.steps) == (*before, [])


def test_who_may_write_is_told_that_the_lock_cannot_be_had(core: CoreTables, monkeypatch):
    """A disk error is no reason to read less than there is."""
    table = new_table(core.client())
    append_unannounced(table, op("insert", 1))

    def refuse(lock: TableLock) -> TableLock:
        raise StorageError(errno.EIO, "cannot open it")

    with monkeypatch.context() as patch:
        patch.setattr(TableLock, "__enter__", refuse)
        with pytest.raises(StorageError, match="cannot open it"):
            keys_of(fresh(table))
    assert stored(table) == [(1, None, 7)]
