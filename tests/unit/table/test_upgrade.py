"""The upgrade of a table whose tablets have logs: the log, lock file and version that it makes.

How such tables are read and first written is in tests/features/table/test_old_tables.py, and what a
kill leaves of an upgrade in tests/crash/test_upgrade_kills.py.
"""

from pathlib import Path

import pytest

import kudulite
from kudulite.errors import LockTimeoutError
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.table_lock import TableLock, read_lock_file
from kudulite.table import upgrade
from kudulite.wal.commit_format import LoggedCommit
from kudulite.wal.log_reader import LogTail, read_log
from kudulite.wal.record_format import RecordDecoder
from kudulite.wal.row_codec import RowList
from kudulite.wal.segment import LOG_BEGIN
from kudulite.wal.tablet_log import TabletLogTail
from tests.support.tables.core_tables import CoreTables, stored
from tests.support.tables.old_tables import (
    LOGGED,
    WITHOUT_LOG,
    client_of,
    contents_of,
    moment,
    rows_of,
    tuples_of,
    unpacked,
)


@pytest.fixture
def logged(core: CoreTables) -> kudulite.Table:
    """A table with rows in the logs of three tablets."""
    return unpacked(core.root, LOGGED)


def log_of(table: kudulite.Table) -> LogTail:
    """All that the table's log has."""
    table_id = table._store.newest().table_id
    return read_log(LocalStorage(), table.path / "log", table_id, LOG_BEGIN, None)


def keys_of(table: kudulite.Table, commit: LoggedCommit) -> list[int]:
    """The keys of the only part of a commit."""
    (content,) = commit.parts.values()
    record = RecordDecoder(table._store.newest().schema).decode_rows(commit.timestamp, content)
    assert isinstance(record, RowList)
    return [cells["k"] for _, cells in record.rows]


def test_the_log_has_a_commit_for_each_record_in_order_of_time(logged: kudulite.Table):
    """Of one tablet each, with the record's own time."""
    logged._store.upgraded()
    commits = log_of(logged).commits
    assert [commit.timestamp for commit in commits] == sorted(c.timestamp for c in commits)
    assert {commit.timestamp for commit in commits} == {moment(9), moment(10), moment(11)}
    assert all(len(commit.parts) == 1 and commit.info is None for commit in commits)
    found = {(c.timestamp, key) for c in commits for key in keys_of(logged, c)}
    ninth, tenth = {(moment(9), k) for k in (5, 6, 7)}, {(moment(10), k) for k in (5, 7)}
    assert found == ninth | tenth | {(moment(11), 21)}
    tablets = {entry.id for entry in logged._store.newest().tablets}
    assert {tablet_id for commit in commits for tablet_id in commit.parts} == tablets


def test_commits_of_all_tablets_are_in_order_of_time(
    logged: kudulite.Table, monkeypatch: pytest.MonkeyPatch
):
    """The first tablet that is read has the last change."""
    real = upgrade.read_tablet_log

    def read_tablet_log(*arguments) -> TabletLogTail:
        monkeypatch.setattr(upgrade, "read_tablet_log", real)
        records, end = real(*arguments)
        last = records[-1]
        assert isinstance(last, RowList)
        return TabletLogTail([*records[:-1], RowList(moment(12), last.rows, last.codec)], end)

    monkeypatch.setattr(upgrade, "read_tablet_log", read_tablet_log)
    logged._store.upgraded()
    times = [commit.timestamp for commit in log_of(logged).commits]
    assert times == sorted(times)
    assert times[-1] == moment(12)


@pytest.mark.parametrize("frame_bytes", [0, 400, 4 << 20])
def test_commits_share_frames_of_a_bounded_size(
    logged: kudulite.Table, monkeypatch: pytest.MonkeyPatch, frame_bytes: int
):
    """One that is longer has a frame of its own; the log is the same."""
    monkeypatch.setattr(upgrade, "_FRAME_BYTES", frame_bytes)
    logged._store.upgraded()
    commits = log_of(logged).commits
    frame_count = len({commit.end for commit in commits})
    assert frame_count == len(commits) if frame_bytes == 0 else frame_count < len(commits)
    assert (frame_count == 1) == (frame_bytes > 400)
    assert stored(client_of(logged.path.parent).table("t")) == tuples_of(rows_of(LOGGED))


def test_the_lock_file_and_the_version_say_where_the_log_ends(logged: kudulite.Table):
    """And the safe timestamp is the highest of the tablets."""
    locks = [read_lock_file(path) for path in logged.path.glob("tablet/*/lock")]
    newest = logged._store.upgraded()
    state, end = read_lock_file(logged.path / "lock"), log_of(logged).end
    assert state.log_end == newest.log_end == end > LOG_BEGIN
    assert newest.log_start == LOG_BEGIN
    assert state.safe_timestamp == max(lock.safe_timestamp for lock in locks) == moment(11)
    assert state.is_of_this_boot


def test_nothing_but_the_log_the_lock_and_a_version_is_made(logged: kudulite.Table):
    """No file of a tablet is touched, but for the holder in its lock file."""
    before = contents_of(logged.path)
    version = logged.version
    logged._store.upgraded()
    after = contents_of(logged.path)
    made = {"log", f"log/{1:020d}.log", "lock", f"manifest/{version + 1:020d}.json"}
    assert after.keys() - before.keys() == made
    changed = {name for name in before if before[name] != after.get(name, b"removed")}
    assert {Path(name).name for name in changed} == {"lock", "hint"}
    for name in changed - {"manifest/hint"}:
        assert (after[name][:20], after[name][220:]) == (before[name][:20], before[name][220:])


def test_a_table_without_rows_in_logs_has_an_empty_log(core: CoreTables):
    """And no folder for it."""
    table = unpacked(core.root, WITHOUT_LOG)
    newest = table._store.upgraded()
    assert (newest.log_start, newest.log_end) == (LOG_BEGIN, LOG_BEGIN)
    assert read_lock_file(table.path / "lock").log_end == LOG_BEGIN
    assert not (table.path / "log").exists()
    assert stored(client_of(core.root).table("t")) == tuples_of(rows_of(WITHOUT_LOG))


def test_a_table_of_today_is_left_as_it_is(logged: kudulite.Table):
    """Also by a call of the upgrade itself."""
    store = logged._store
    store.upgraded()
    before = contents_of(logged.path)
    store.upgraded()
    upgrade.upgrade(store.chain, store.cache, 0.0, store.next_timestamp)
    assert contents_of(logged.path) == before


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("is_shared", [False, True])
def test_an_upgrade_waits_for_the_lock_of_each_tablet(
    logged: kudulite.Table, number: int, is_shared: bool
):
    """Of older software, which may be about to publish; a read waits for a writer only."""
    ids = sorted(entry.id for entry in logged._store.newest().tablets)
    path, store = logged.path / "tablet" / ids[number] / "lock", logged._store
    with TableLock(path, 0.0, is_shared=is_shared):
        before = contents_of(logged.path)
        with pytest.raises(LockTimeoutError, match=f"table 't', tablet {ids[number]}: waited"):
            upgrade.upgrade(store.chain, store.cache, 0.0, store.next_timestamp)
        assert contents_of(logged.path).keys() == before.keys()
        if is_shared:
            assert upgrade.read_tablet_logs(store.chain, store.cache, 0.0)[0] == store.newest()
        else:
            with pytest.raises(LockTimeoutError):
                upgrade.read_tablet_logs(store.chain, store.cache, 0.0)
    assert store.upgraded().format_version == 8
