"""The first writer of a table of an older format dies at any step: the table is as it was, or new.

The table has rows in the logs of three tablets. Until its first version of today's format is there
it is read as before, and the next writer begins the upgrade anew, whatever the dead one has left.
"""

import itertools
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.storage.table_lock import TableLock, read_lock_file
from kudulite.upkeep.garbage_collection import end_writes
from tests.crash.test_wal_kills import ERROR_EACH, RecordingStorage
from tests.support.doubles.killing_storage import (
    KilledError,
    KillingStorage,
    TearingStorage,
    ran_to_its_end,
)
from tests.support.tables.core_tables import CoreTables, stored
from tests.support.tables.old_tables import (
    LOGGED,
    client_of,
    contents_of,
    logged_moments,
    rows_of,
    tuples_of,
    unpacked,
)
from tests.support.tiers import by_tier

NEW = {5: (77, None), 150: (77, None)}
TORN = {"one byte": 0.0, "half": 0.5, "all": 1.0}
WAYS = ("exit", "error", *TORN)


def write_session(client: Client) -> None:
    """Rows of two tablets."""
    table, session = client.table("t"), client.new_session()
    for key in NEW:
        session.apply(table.new_delete_ignore({"k": key}))
        session.apply(table.new_insert({"k": key, "v": 77}))
    session.flush()


def write_batch(client: Client) -> None:
    """The same rows, by a bulk write."""
    client.table("t").upsert([{"k": key, "v": v, "s": s} for key, (v, s) in NEW.items()])


def tag(client: Client) -> None:
    """Nothing but the upgrade and one version."""
    client.table("t").tag("now")


WRITES: dict[str, tuple[Callable[[Client], None], dict]] = {
    "session": (write_session, NEW),
    "batch": (write_batch, NEW),
    "tag": (tag, {}),
}


def expect_whole(root: Path, states: list[dict]) -> None:
    """All rows and moments are there; nothing of the table is changed by the look."""
    before = contents_of(root / "t")
    found = opened(root)
    assert stored(found) in [tuples_of(rows) for rows in states]
    for moment, rows in logged_moments().items():
        assert stored(found, moment) == tuples_of(rows), moment
    assert found.check().is_good
    if found._store.newest().has_tablet_logs:
        assert contents_of(root / "t") == before


def expect_writable(root: Path) -> None:
    """The next writer upgrades the table, once, and its rows are there; nothing is left over."""
    rows = {row[0]: row[1:] for row in stored(opened(root))} | {151: (78, None)}
    session, table = client_of(root).new_session(), opened(root)
    session.apply(table.new_upsert({"k": 151, "v": 78}))
    session.flush()
    found = opened(root)
    assert stored(found) == tuples_of(rows)
    assert found._store.newest().format_version == 8
    assert [v.operation for v in found.versions()].count("upgrade") == 1
    found.flush()
    expect_whole(root, [rows])
    end_writes(opened(root)._store, 0.0)


def opened(root: Path) -> Table:
    """The table, by a client that has seen nothing."""
    return client_of(root).table("t")


@pytest.mark.both
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WRITES)
def test_a_first_writer_killed_at_any_step_leaves_the_table_whole(
    core: CoreTables, name: str, way: str
):
    """A frame of the new log may be torn; a process may die, or handle the error."""
    write, changes = WRITES[name]
    base, new = core.root / "base", core.root / "new"
    unpacked(base, LOGGED)
    shutil.copytree(base, new)
    recording = RecordingStorage()
    write(client_of(new, recording))
    states = [rows_of(LOGGED), rows_of(LOGGED) | changes]
    expect_whole(new, states[1:])
    step_count, old_count = len(recording.steps), 0
    assert step_count > 10
    if way in TORN:
        # Before every other step the process just dies, as with "error".
        places = [place for place, step in enumerate(recording.steps) if step == "append"]
    elif way == "error":
        places = list(range(len(name) % ERROR_EACH, step_count, by_tier(5, ERROR_EACH)))
    else:
        places = list(range(0, step_count, by_tier(5, 2)))
    for steps in (*places, step_count):
        root = core.root / f"killed-{steps}"
        shutil.copytree(base, root)
        in_child = way == "exit"
        dying = (
            TearingStorage(steps, TORN[way])
            if way in TORN
            else KillingStorage(steps, exits=in_child)
        )
        is_done = ran_to_its_end(partial(write, client_of(root, dying)), in_child=in_child)
        old_count += opened(root)._store.newest().has_tablet_logs
        expect_whole(root, states[is_done:])
        expect_writable(root)
        shutil.rmtree(root)
    assert is_done
    assert old_count


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("method", ["announce", "set_log_end", "advance_safe_timestamp"])
def test_an_upgrade_killed_at_a_lock_file_leaves_the_table_whole(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch, method: str, is_after: bool
):
    """The table's own lock file is there, with some of its cells."""
    unpacked(core.root, LOGGED)
    kept = getattr(TableLock, method)

    def dies(*arguments: object) -> None:
        if is_after:
            kept(*arguments)
        raise KilledError(method)

    with monkeypatch.context() as patch:
        patch.setattr(TableLock, method, dies)
        with pytest.raises(KilledError):
            tag(client_of(core.root))
    assert opened(core.root)._store.newest().has_tablet_logs
    expect_whole(core.root, [rows_of(LOGGED)])
    expect_writable(core.root)


def test_nothing_of_an_upgrade_that_was_killed_is_left_over(core: CoreTables):
    """Its log and lock file are made anew, also where older software has flushed rows meanwhile."""
    base, lock_count = core.root / "base", 0
    unpacked(base, LOGGED)
    for steps in itertools.count():
        root = core.root / str(steps)
        shutil.copytree(base, root)
        ran_to_its_end(partial(tag, client_of(root, KillingStorage(steps))), in_child=False)
        if not opened(root)._store.newest().has_tablet_logs:
            break
        log = root / "t" / "log" / f"{2:020d}.log"
        if log.parent.exists():  # as of a longer log that another version had
            log.write_bytes(b"left over")
        lock = root / "t" / "lock"
        if lock.exists():
            lock_count += 1
            with TableLock(lock, 0.0) as left:
                left.set_log_end(2, 4096)
        tag(client_of(root))
        assert not log.exists()
        assert read_lock_file(lock).log_end == opened(root)._store.newest().log_end
        expect_whole(root, [rows_of(LOGGED)])
        expect_writable(root)
    assert steps > lock_count > 0
