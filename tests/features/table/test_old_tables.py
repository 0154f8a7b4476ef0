"""Small tables of every format version: read, checked, upgraded, written to and compacted.

Manifests had format 5 only where older software had to refuse the table, because it does not know
an option that the table uses, and format 6 while a moment before an alteration of columns could be
read. Up to format 7 each tablet has a log of its own. The first writer gives the table one log.
"""

import multiprocessing
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import kudulite
from kudulite.chain import manifest
from kudulite.client.table import Table
from kudulite.errors import CorruptionError, FormatVersionError, KuduliteError, RowError
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.table_lock import TableLock
from kudulite.table import upgrade
from kudulite.table.open_writes import OpenWrites, begin_write
from kudulite.upkeep.garbage_collection import collect_garbage, end_writes
from tests.support.machines.file_mutations import mutated
from tests.support.other_user import as_reader
from tests.support.tables.core_tables import CoreTables, altered, files_below, stored
from tests.support.tables.old_tables import (
    ALTERED,
    GOLDEN,
    LOGGED,
    LOGGED_WRITE,
    NAMES,
    WITH_OPTIONS,
    WITHOUT_TAGS,
    client_of,
    contents_of,
    logged_moments,
    moment,
    rows_of,
    tuples_of,
    unpacked,
    unpacked_archive,
)
from tests.support.tiers import by_tier

NUMBERED = GOLDEN / "table-numbered-5.tar.xz"
# Of a lock file of format version 1: the place of the end of the tablet's log.
END_OFFSET, END_BYTES = 220, 20
PROCESSES = 4


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """A table's formats."""
    return request.param


@pytest.fixture
def table(core: CoreTables, name: str) -> kudulite.Table:
    """The table, by a client that has seen nothing."""
    return unpacked(core.root / "db", name)


@pytest.fixture
def logged(core: CoreTables) -> kudulite.Table:
    """The table whose tablets have rows in their logs."""
    return unpacked(core.root / "db", LOGGED)


# A grace time in which no version of an archive is old.
AGES = 1e12


def test_a_table_of_an_older_format_is_read(name: str, table: kudulite.Table):
    """Its rows now and at its tag, and the history of a row."""
    assert stored(table) == tuples_of(rows_of(name))
    table.check().raise_if_bad()
    if name not in WITHOUT_TAGS:
        assert stored(table, table.tags["monday"]) == tuples_of(rows_of(name, is_tag=True))
    assert table.history(1).column("v").to_pylist() == [1, 2]
    assert table.history(3).column("_change_type").to_pylist()[-1] == "delete"


@pytest.mark.full
def test_a_table_of_an_older_format_is_written_and_compacted(name: str, table: kudulite.Table):
    """By batches and sessions; it has the newest format then, and keeps its past."""
    rows, before = rows_of(name), table.current_timestamp()
    table.upsert([{"k": 1, "v": 5, "s": "new"}, {"k": 150, "v": 5, "s": "new"}])
    session = client_of(table.path.parent).new_session()
    session.apply(table.new_delete({"k": 2}))
    session.flush()
    expected = tuples_of(rows | {1: (5, "new"), 150: (5, "new")})
    expected = [row for row in expected if row[0] != 2]
    for act in (table.flush, table.compact, lambda: table.maintain(0, 0)):
        act()
        again = client_of(table.path.parent).table("t")
        assert stored(again) == expected
        assert stored(again, before) == tuples_of(rows)
        again.check().raise_if_bad()
    newest = max((table.path / "manifest").glob("*.json"))
    assert '"format_version":8' in newest.read_text()


def test_a_collection_gives_a_table_the_newest_format_first(core: CoreTables):
    """Older software then leaves it, and what its bulk writes have left is garbage."""
    table = unpacked(core.root / "db", ALTERED)
    version, before = table.version, files_below(table.path)
    staged = {path for path in before if "1c7494c2c6474868" in str(path)}
    assert len(staged) > 2
    collect_garbage(table._store, AGES)
    assert (table.version, table.versions()[0].operation) == (version + 1, "upgrade")
    assert before - staged <= files_below(table.path)
    assert not staged & files_below(table.path)
    assert not (table.path / "staging").exists()
    collect_garbage(table._store, AGES)
    assert table.version == version + 1
    assert stored(client_of(table.path.parent).table("t")) == tuples_of(rows_of(ALTERED))


def test_a_collection_removes_nothing_of_a_table_that_older_software_may_open(core: CoreTables):
    """Files of writes that have no record may be of one that it is about to commit."""
    table = unpacked(core.root / "db", ALTERED)
    removed = []

    class Watching(LocalStorage):
        def before(self, operation: str, path: Path) -> None:
            if operation == "remove" and "staging" in path.parts:
                assert not client_of(table.path.parent).table("t")._store.newest().has_tablet_logs
                removed.append(path)

    collect_garbage(client_of(table.path.parent, Watching()).table("t")._store, AGES)
    assert removed


def test_a_table_of_an_older_format_has_the_newest_one_before_the_first_record(
    core: CoreTables, name: str, table: kudulite.Table
):
    """Older software would take the files of an open write for garbage."""
    with begin_write(table._store, "flush") as write:
        newest = table.versions()[0]
        assert newest.operation == "upgrade"
        (record,) = (r for r in OpenWrites.of(table._store) if r.id != LOGGED_WRITE)
        assert (record.id, record.base_version) == (write.id, newest.version)


def test_options_of_an_older_table_are_kept(core: CoreTables):
    """Also by what is written to it now."""
    table = unpacked(core.root / "db", WITH_OPTIONS)
    table.upsert([{"k": 1, "v": 5, "s": "new"}])
    table = client_of(table.path.parent).table("t")
    assert (table.owner, table.comment) == ("ann", "rows of then")
    assert table.partition_schema.describe_all() == [
        "hash(k) × 2",
        "k: [-∞, 100)",
        "k: [100, 200) hash(k) × 3",
    ]


def test_an_older_table_with_numbered_rows_and_an_immutable_column_goes_on(core: CoreTables):
    """No id is given again, also none whose row was deleted; some ids are in the log only."""
    table, names = (
        unpacked_archive(core.root / "db", NUMBERED),
        ["k", "auto_incrementing_id", "born"],
    )
    rows = table.scan(names, ordered=True).to_arrow().to_pylist()
    found = [tuple(row.values()) for row in rows]
    first = [(0, 1, 0), (0, 3, 3), (0, 5, 6), (0, 9, 100), (1, 2, 1), (1, 4, 4), (1, 6, 7)]
    assert found == [*first, (1, 10, 100), (2, 1, 2), (2, 2, 5), (2, 3, 8), (2, 5, 100)]
    with pytest.raises(RowError, match="immutable"):
        table.update([{**rows[0], "born": 5}])
    table.insert([{"k": 0, "born": 1}, {"k": 2, "born": 1}])
    new = table.scan(names, where="born = 1", ordered=True).to_arrow().to_pylist()
    assert [(row["k"], row["auto_incrementing_id"]) for row in new] == [(0, 11), (1, 2), (2, 6)]
    table.check().raise_if_bad()


@pytest.mark.parametrize("known", [6, 7])
def test_software_that_does_not_know_a_table_refuses_it(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch, known: int
):
    """It names the file, both versions, and the way out, before it reads anything else."""
    table = unpacked_archive(core.root / "db", NUMBERED)
    table.flush()
    monkeypatch.setattr(manifest, "FORMAT_VERSION", known)
    text = rf"json: table of format version 8, known: 1 to {known}; upgrade kudulite to open it"
    table = client_of(table.path.parent).table("t")
    with pytest.raises(FormatVersionError, match=text):
        table.scan()
    monkeypatch.undo()


# -- tables with a log for each tablet


def readings(table: Table) -> dict[str, object]:
    """All kinds of reads: rows now and then, one by one, their history and the table's."""
    found: dict[str, object] = {
        "now": stored(table),
        "count": table.scan().count(),
        "ordered": table.scan(ordered=True).to_arrow().to_pylist(),
        "tokens": [[b.to_pylist() for b in token.open()] for token in table.scan_tokens()],
        "changes": sorted(map(str, table.changes(0).to_arrow().to_pylist())),
        "versions": [(v.version, v.operation, int(v.timestamp)) for v in table.versions()],
        "tags": table.tags,
        "time": table.current_timestamp(),
    }
    for key in (1, 3, 5, 6, 7, 21, 200):
        found[f"get {key}"] = table.get(key)
        found[f"history {key}"] = table.history(key).to_pylist()
    return found


def expect_past(table: Table, since: int = 0) -> None:
    """All moments of the table LOGGED, or the later ones, are as they were, up to their ends."""
    moments = {at: rows for at, rows in logged_moments().items() if at >= since}
    for at, rows in moments.items():
        assert stored(table, at) == tuples_of(rows), at
        if at > min(moments):
            before = max(each for each in moments if each < at)
            assert stored(table, at - 1) == tuples_of(moments[before]), at


def test_a_table_of_an_older_format_is_read_as_it_is(name: str, table: Table):
    """No file is made, changed, or removed, however it is read."""
    before, times = (
        contents_of(table.path),
        {p: p.stat().st_mtime_ns for p in files_below(table.path)},
    )
    readings(table)
    assert table.check().is_good
    assert stored(client_of(table.path.parent).table("t")) == tuples_of(rows_of(name))
    assert contents_of(table.path) == before
    assert {path: path.stat().st_mtime_ns for path in files_below(table.path)} == times


def test_a_table_with_logs_of_tablets_has_its_past(logged: Table):
    """Its rows at each moment, which the software of then gave them, also of a dropped range."""
    expect_past(logged)
    assert logged.current_timestamp() == moment(11)
    changes = logged.history(5).column("_commit_version").to_pylist()
    assert changes == [moment(1), moment(9), moment(10)]
    assert sum(bool(files_below(path)) for path in logged.path.glob("tablet/*/wal")) == 3


def test_a_table_of_an_older_format_is_read_where_nothing_may_be_written(
    name: str, table: Table, monkeypatch: pytest.MonkeyPatch
):
    """In a read-only directory: locks are shared, and no step is made."""

    def refuse(storage: LocalStorage, operation: str, path: Path) -> None:
        raise AssertionError(f"{operation} {path}")

    enter = TableLock.__enter__

    def shared_only(lock: TableLock) -> TableLock:
        assert lock._is_shared
        return enter(lock)

    monkeypatch.setattr(LocalStorage, "before", refuse)
    monkeypatch.setattr(TableLock, "__enter__", shared_only)
    found = client_of(table.path.parent).table("t")
    assert stored(found) == tuples_of(rows_of(name))
    assert stored(found, found.current_timestamp()) == tuples_of(rows_of(name))
    if name == LOGGED:
        expect_past(found)
    monkeypatch.undo()


def test_an_older_table_is_read_in_a_folder_that_is_closed(logged: Table):
    """By another user, who cannot upgrade it."""
    # Not below `logged`, because the folders above it are closed to other users.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "tables"
        shutil.copytree(logged.path.parent, folder)
        paths = [folder, *folder.rglob("*")]
        for path in paths:
            path.chmod(0o555 if path.is_dir() else 0o444)
        Path(name).chmod(0o755)
        try:
            found = as_reader(lambda: expect_past(client_of(folder).table("t")))
        finally:
            for path in paths:
                path.chmod(0o755 if path.is_dir() else 0o644)
        assert found is None


def damaged_lock(content: bytes, damage: str) -> bytes:
    """A lock file that a power failure has left: none of its cells was fsynced."""
    end = content[END_OFFSET : END_OFFSET + END_BYTES]
    assert len(end) == END_BYTES
    if damage == "torn":
        return content[:END_OFFSET] + end[:-1] + bytes([end[-1] ^ 1])
    if damage == "short":
        return content[: END_OFFSET + 7]
    if damage == "timestamp":
        return content[:8] + bytes(8) + content[16:]
    return content[:END_OFFSET]  # "cut": as of software that noted no end


@pytest.mark.parametrize("damage", ["torn", "short", "timestamp", "cut"])
def test_the_lock_files_of_an_older_table_may_be_torn(logged: Table, damage: str):
    """They are read and upgraded as before: all that the logs hold is there."""
    for path in logged.path.glob("tablet/*/lock"):
        path.write_bytes(damaged_lock(path.read_bytes(), damage))
    before = contents_of(logged.path)
    found = client_of(logged.path.parent).table("t")
    expect_past(found)
    assert contents_of(logged.path) == before
    found.flush()
    expect_past(client_of(logged.path.parent).table("t"))


def log_of(table: Table) -> tuple[Path, int]:
    """A tablet's log, and the byte where its frames end."""
    path = min(table.path.glob("tablet/*/wal/*.log"))
    lock = (path.parent.parent / "lock").read_bytes()
    return path, int.from_bytes(lock[END_OFFSET + 8 : END_OFFSET + 16], "little")


@pytest.mark.parametrize("use", [stored, Table.flush], ids=["read", "upgrade"])
def test_damage_before_the_durable_end_of_an_older_log_is_found(
    logged: Table, use: Callable[[Table], object]
):
    """In its last frame, too: that is no append that was under way. Nothing is changed."""
    path, end = log_of(logged)
    content = path.read_bytes()
    path.write_bytes(content[: end - 2] + bytes([content[end - 2] ^ 1]) + content[end - 1 :])
    before = contents_of(logged.path)
    with pytest.raises(CorruptionError, match=path.name):
        use(client_of(logged.path.parent).table("t"))
    assert "log/" not in str(contents_of(logged.path).keys() - before.keys())
    path.write_bytes(content)
    expect_past(client_of(logged.path.parent).table("t"))


def test_a_frame_of_an_older_log_that_its_writer_left_half_is_left_out(logged: Table):
    """Behind the durable end."""
    path, end = log_of(logged)
    content = path.read_bytes()
    path.write_bytes(content[:end] + content[40:70] + content[end + 30 :])
    expect_past(client_of(logged.path.parent).table("t"))
    logged.flush()
    expect_past(client_of(logged.path.parent).table("t"))


@pytest.mark.both
def test_mutated_logs_and_lock_files_of_an_older_table_are_refused_or_read(logged: Table):
    """All moments of the logs as they were, or a KuduliteError, and the same by an upgrade."""
    root, outcomes = logged.path.parent, set()
    # A record that moves to an earlier moment is seen in this one, too: no log has older records.
    since = moment(8)
    paths = sorted([*logged.path.glob("tablet/*/wal/*"), *logged.path.glob("tablet/*/lock")])
    for seed in range(by_tier(30, 400)):
        chance = random.Random(seed)
        path = chance.choice(paths)
        place = root.with_name(f"mutated-{seed}")
        shutil.copytree(root, place)
        content = path.read_bytes()
        used = content.rstrip(b"\0") if path.suffix == ".log" else content
        changed = mutated(used, chance) + content[len(used) :]
        (place / path.relative_to(root)).write_bytes(changed)
        try:
            found = client_of(place).table("t")
            expect_past(found, since)
            found.tag("now")
            expect_past(client_of(place).table("t"), since)
            outcomes.add("read")
        except KuduliteError:
            outcomes.add("refused")
        shutil.rmtree(place)
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize("use", [stored, Table.flush], ids=["read", "upgrade"])
def test_a_folder_of_an_older_log_that_is_a_link_is_refused(
    logged: Table, use: Callable[[Table], object]
):
    """A copy of the folder stands elsewhere, so that all names and checksums are right."""
    folder = min(logged.path.glob("tablet/*/wal"))
    moved = folder.rename(logged.path.with_name("elsewhere"))
    folder.symlink_to(moved)
    with pytest.raises(CorruptionError, match="symbolic link"):
        use(client_of(logged.path.parent).table("t"))
    folder.unlink()
    moved.rename(folder)
    expect_past(client_of(logged.path.parent).table("t"))


def rename(table: Table) -> None:
    """Away and back."""
    client = client_of(table.path.parent)
    client.rename_table("t", "u")
    client.rename_table("u", "t")


def session(table: Table) -> None:
    """A delete and an upsert of one session flush."""
    writer = client_of(table.path.parent).new_session()
    writer.apply(table.new_delete({"k": 7}))
    writer.apply(table.new_upsert({"k": 150, "v": 1}))
    writer.flush()


def bulk(table: Table) -> None:
    """A batch."""
    table.upsert([{"k": k, "v": 9, "s": "new"} for k in (5, 6, 150, 151)])


WRITERS: dict[str, tuple[Callable[[Table], object], dict[int, tuple | None]]] = {
    "session": (session, {7: None, 150: (1, None)}),
    "bulk": (bulk, dict.fromkeys((5, 6, 150, 151), (9, "new"))),
    "alter": (
        lambda t: altered(client_of(t.path.parent), "t", lambda a: a.set_comment("of now")),
        {},
    ),
    "add a range": (
        lambda t: altered(client_of(t.path.parent), "t", lambda a: a.add_range_partition(200, 250)),
        {},
    ),
    "tag": (lambda t: t.tag("now"), {}),
    "rename": (rename, {}),
    "flush": (Table.flush, {}),
    "compact": (Table.compact, {}),
    "maintain": (lambda t: t.maintain(AGES, AGES), {}),
    "collection": (lambda t: collect_garbage(t._store, AGES, AGES), {}),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_the_first_writer_upgrades_a_table(logged: Table, writer: str):
    """One version more, all rows and moments as before, and a log of the table."""
    before, write = readings(logged), WRITERS[writer][0]
    rows = dict(rows_of(LOGGED))
    for key, row in WRITERS[writer][1].items():
        if row is None:
            del rows[key]
        else:
            rows[key] = row
    write(client_of(logged.path.parent).table("t"))
    found = client_of(logged.path.parent).table("t")
    assert stored(found) == tuples_of(rows)
    expect_past(found)
    versions = found.versions()
    assert [v.operation for v in versions].count("upgrade") == 1
    known = [(v.version, v.operation, int(v.timestamp)) for v in versions]
    count = len(before["versions"])
    assert known[-count:] == before["versions"]
    assert known[-count - 1][1] == "upgrade"
    assert known[-count - 1][2] > moment(11)
    assert {**found.tags, **before["tags"]} == found.tags
    for key in (1, 3, 21):
        assert found.history(key).to_pylist() == before[f"history {key}"]
    until = found.changes(0, moment(11)).to_arrow().to_pylist()
    assert sorted(map(str, until)) == before["changes"]
    assert found._store.newest().format_version == 8
    assert found.check().is_good
    found.flush()
    fresh = client_of(logged.path.parent).table("t")
    assert stored(fresh) == tuples_of(rows)
    expect_past(fresh)


def test_a_purge_upgrades_a_table(logged: Table):
    """The row is in no file any more, neither in a log nor in a version, once no write pins one."""
    keys = [{"k": 5}, {"k": 6}]
    assert logged.purge(keys).pinned_by == (LOGGED_WRITE,)
    end_writes(logged._store, 0.0)
    assert logged.purge(keys).is_complete
    found = client_of(logged.path.parent).table("t")
    expected = {k: row for k, row in rows_of(LOGGED).items() if k not in (5, 6)}
    assert stored(found) == tuples_of(expected)
    assert not found.history(5).num_rows
    assert not [p for p in files_below(found.path) if b"row 5" in p.read_bytes()]
    assert found._store.newest().format_version == 8
    assert found.check().is_good


def test_rows_of_older_logs_are_of_their_tablets_after_an_upgrade(logged: Table):
    """In the table's log until they are flushed; older logs and locks go with the last version."""

    def logs_and_locks() -> set[Path]:
        return {path for name in ("wal", "wal/*", "lock") for path in tablets.glob(f"*/{name}")}

    tablets = logged.path / "tablet"
    before = logs_and_locks()
    assert sum(path.name == "lock" for path in before) == 6
    logged.tag("now")
    found = client_of(logged.path.parent).table("t")
    assert found.flush() == 3
    assert found.flush() == 0
    assert logs_and_locks() == before
    collect_garbage(found._store, AGES, AGES)
    assert logs_and_locks() == before  # a version that is kept needs them
    found.delete_tag("monday")
    collect_garbage(found._store, 0.0, AGES)
    assert logs_and_locks() == before  # the open write pins it
    collect_garbage(found._store, 0.0, 0.0)
    assert not logs_and_locks()
    fresh = client_of(logged.path.parent).table("t")
    assert stored(fresh) == tuples_of(rows_of(LOGGED))
    expect_past(fresh)


def test_an_open_write_of_older_software_keeps_its_files(logged: Table):
    """Until it has been silent for long, as it may go on."""
    made = {path for path in files_below(logged.path) if LOGGED_WRITE[:16] in path.name}
    assert len(made) == 3
    collect_garbage(logged._store, 0.0, AGES)
    assert made <= files_below(logged.path)
    assert [record.id for record in OpenWrites.of(logged._store)] == [LOGGED_WRITE]
    collect_garbage(logged._store, 0.0, 0.0)
    assert not made & files_below(logged.path)
    assert stored(client_of(logged.path.parent).table("t")) == tuples_of(rows_of(LOGGED))


def test_an_upgrade_that_another_process_was_faster_with_is_none(
    logged: Table, monkeypatch: pytest.MonkeyPatch
):
    """A reader or writer has seen the older version, and waits for its locks."""
    for use in (stored, tag_now, upgraded):
        root = logged.path.parent.with_name(use.__name__)
        shutil.copytree(logged.path.parent, root)
        real = upgrade.TableLock

        def first(*arguments: object, root: Path = root, real: type = real, **options: object):
            monkeypatch.setattr(upgrade, "TableLock", real)
            altered(client_of(root), "t", lambda a: a.add_range_partition(200, 250))
            client_of(root).table("t").upsert([{"k": 201, "v": 1}])
            client_of(root).table("t").flush()
            collect_garbage(client_of(root).table("t")._store, 0.0, 0.0)
            write_one(root, 52)
            return real(*arguments, **options)

        table = client_of(root).table("t")
        monkeypatch.setattr(upgrade, "TableLock", first)
        found = use(table)
        expected = rows_of(LOGGED) | {201: (1, None), 202: (52, None)}
        assert found in (None, tuples_of(expected))
        assert stored(table) == stored(client_of(root).table("t")) == tuples_of(expected)
        assert [v.operation for v in table.versions()].count("upgrade") == 1


def tag_now(table: Table) -> None:
    """Publish a version, and nothing else."""
    table.tag("now")


def upgraded(table: Table) -> None:
    """Upgrade it, and nothing else."""
    table._store.upgraded()


def write_one(root: Path, number: int, wait: Callable[[], object] = lambda: None) -> None:
    """Insert a row by a session; `wait` is called before the first look for the newest version."""
    table = client_of(root).table("t")
    writer = client_of(root).new_session()
    wait()
    writer.apply(table.new_insert({"k": 150 + number, "v": number}))
    writer.flush()


def test_processes_that_upgrade_a_table_at_once_upgrade_it_once(logged: Table):
    """All of them write, and a reader finds the rows of all."""
    context = multiprocessing.get_context("fork")
    barrier, root = context.Barrier(PROCESSES), logged.path.parent
    processes = [
        context.Process(target=write_one, args=(root, number, barrier.wait))
        for number in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    found = client_of(root).table("t")
    expected = rows_of(LOGGED) | {150 + number: (number, None) for number in range(PROCESSES)}
    assert stored(found) == tuples_of(expected)
    expect_past(found)
    assert [v.operation for v in found.versions()].count("upgrade") == 1
