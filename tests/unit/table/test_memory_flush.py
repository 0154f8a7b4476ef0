"""A flush moves what the log holds to rowsets; nobody who reads can tell, now or in the past."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from kudulite.client.table import Table
from kudulite.errors import StorageError, TableNotFoundError
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.names import version_name, write_of
from kudulite.storage.new_files import NewFiles
from kudulite.table import memory_flush
from kudulite.table.memory_flush import flush_table
from kudulite.table.table_store import TableStore
from kudulite.tablet.maintenance_policy import CompactRowSets
from kudulite.tablet.mem_stores import MemStores
from kudulite.tablet.superblock import Superblock
from kudulite.upkeep.compaction import run_operation
from kudulite.upkeep.garbage_collection import collect_garbage
from kudulite.wal.segment import list_segments, segment_path
from tests.support.doubles.killing_storage import (
    FailingStorage,
    KilledError,
    KillingStorage,
)
from tests.support.tables.core_tables import (
    CoreTables,
    environment,
    files_below,
    referenced_files,
    stored,
)
from tests.support.tables.row_writes import (
    MIDDLE,
    NotingStorage,
    entry_of,
    log_folder,
    new_table,
    op,
    put,
    store_of,
    unflushed,
    write,
)
from tests.support.tiers import tiered

Versions = dict[int, list[tuple]]


def remembered(table: Table, versions: Versions, timestamp: int) -> None:
    """Remember the rows as they are at a moment, and just before it."""
    for moment in (timestamp - 1, timestamp):
        versions[moment] = stored(table, moment)


def with_history(table: Table) -> Versions:
    """Rows on disk and in the log, changed in every way; all that was seen at each moment."""
    versions: Versions = {}
    table.insert([{"k": k, "v": k} for k in (0, 2, 4, 6, 8)])
    flushes = [
        [op("insert", 1, v=1), op("insert", 3, v=3), op("insert", 5, v=5)],
        [op("update", 1, v=10), op("update", 0, v=10), op("delete", 2)],
        [op("delete", 3), op("update", 0, w=20), op("delete", 5), op("insert", 2, v=2)],
        [op("insert", 3, v=33), op("upsert", 4, v=44), op("update", 1, w=11)],
    ]
    for operations in flushes:
        result = write(table, *operations)
        assert result.failures == []
        remembered(table, versions, result.timestamp)
    return versions


def superblock_of(table: Table) -> Superblock:
    """The newest superblock of the first tablet."""
    return store_of(table).tablet(entry_of(table)).superblock


def fresh(table: Table, **options) -> Table:
    """The table of a client that has seen nothing."""
    return Table(TableStore(table.path, environment(**options)))


def expect(table: Table, versions: Versions) -> None:
    """Every moment is as it was, for this client and for one that has seen nothing."""
    for reader in (table, fresh(table)):
        for moment, rows in versions.items():
            assert stored(reader, moment) == rows
    fresh(table).check().raise_if_bad()


def expect_clean(table: Table) -> None:
    """After a garbage collection without grace, only what the newest version refers to is there."""
    table = fresh(table)
    collect_garbage(table._store, 0, 0)
    store, manifest = store_of(table), store_of(table).newest()
    files = {store.folder / "manifest" / name for name in (version_name(manifest.version), "hint")}
    files.add(store.folder / "lock")
    first, folder = manifest.log_start.segment, log_folder(store)
    logs = [number for number in list_segments(LocalStorage(), folder) if number >= first]
    files |= {segment_path(folder, number) for number in logs}
    for entry in manifest.tablets:
        folder, superblock = store.tablet_folder(entry.id), store.tablet(entry).superblock
        files.add(folder / entry.superblock.name)
        for meta in superblock.rowsets:
            files |= {folder / "rowset" / meta.id / name for name in meta.file_names}
    assert files_below(store.folder) == files


# -- what it leaves


def test_a_flush_leaves_rowsets_with_history_and_an_empty_log(core: CoreTables):
    """New rows are a rowset with UNDO back to each insert and at most one REDO per row; changes of
    rows on disk are one REDO file of their rowset."""
    table = new_table(core.client())
    versions = with_history(table)
    (before,) = superblock_of(table).rowsets
    version, rows = table.version, stored(table)
    assert table.flush() == 1
    assert (table.version, len(unflushed(table))) == (version + 1, 0)
    changed, made = superblock_of(table).rowsets
    assert (changed.id, changed.undo, len(changed.redo)) == (before.id, (), 1)
    assert changed.base == before.base
    assert (made.row_count, len(made.redo)) == (4, 1)  # the keys 1 2 3 5
    _changes, inserts = made.undo
    assert (inserts.delete_count, inserts.update_counts) == (inserts.row_count, {})
    assert made.redo[0].delete_count == 1
    entry = entry_of(table)
    assert (entry.live_row_count, entry.timestamp) == (len(rows), max(versions))
    assert table.statistics.live_row_count == len(rows)
    assert stored(table) == stored(fresh(table)) == rows
    expect(table, versions)


def test_a_flush_of_nothing_does_nothing(core: CoreTables):
    """Neither an empty table, nor the second time; no version is made."""
    disk = NotingStorage()
    table = new_table(core.client(storage=disk), 2)
    disk.steps.clear()
    assert (table.flush(), disk.steps) == (0, [])
    put(table, 1)
    assert table.flush() == 1
    disk.steps.clear()
    version = table.version
    assert (table.flush(), disk.steps, table.version) == (0, [], version)
    assert flush_table(store_of(table), ["unknown"]) == []


def test_a_flush_names_the_tablets_that_had_something(core: CoreTables):
    """All are one version."""
    table = new_table(core.client(), 2)
    put(table, MIDDLE)
    version = table.version
    assert flush_table(store_of(table)) == [table.tablet_ids[1]]
    assert table.version == version + 1
    put(table, 1, MIDDLE)
    assert flush_table(store_of(table)) == list(table.tablet_ids)
    assert table.version == version + 2
    assert [row[0] for row in stored(table)] == [1, MIDDLE]


@pytest.mark.parametrize("number", [0, 1])
def test_a_flush_of_one_tablet_leaves_the_rows_of_others_in_the_log(core: CoreTables, number: int):
    """They are in the same commits; the log begins where the first of them is."""
    table = new_table(core.client(), 2)
    put(table, number * MIDDLE + 1)
    versions: Versions = {}
    for value in (1, 2):
        remembered(table, versions, put(table, 1, MIDDLE + 1, v=value))
    before = store_of(table).newest().log_start
    assert flush_table(store_of(table), [table.tablet_ids[number]]) == [table.tablet_ids[number]]
    assert [len(unflushed(table, at)) for at in (number, 1 - number)] == [0, 2]
    assert store_of(table).newest().log_start > before
    expect(table, versions)
    remembered(table, versions, put(table, 1, MIDDLE + 1, v=3))
    assert [len(unflushed(table, at)) for at in (number, 1 - number)] == [1, 3]
    assert flush_table(store_of(table), [table.tablet_ids[1 - number]]) != []
    expect(table, versions)
    assert flush_table(store_of(table)) == [table.tablet_ids[number]]
    expect(table, versions)
    expect_clean(table)
    assert list_segments(LocalStorage(), log_folder(table))[1:] == []


def test_any_process_can_flush_what_another_wrote(core: CoreTables):
    """There is no owner; the writer goes on with the new superblock."""
    table = new_table(core.client())
    versions = with_history(table)
    assert fresh(table).flush() == 1
    assert table.flush() == 0
    remembered(table, versions, put(table, 1, 9))
    expect(table, versions)


def test_rows_that_came_and_went_stay_readable_in_the_past(core: CoreTables):
    """A rowset of which nothing is live."""
    table = new_table(core.client())
    first = put(table, 1, 2)
    write(table, op("delete", 1), op("delete", 2))
    table.flush()
    assert (stored(table), table.statistics.live_row_count) == ([], 0)
    assert stored(fresh(table), first) == [(1, 0, 7), (2, 0, 7)]
    put(table, 1)
    table.flush()
    assert stored(fresh(table)) == [(1, 0, 7)]


def test_garbage_collection_removes_the_log_and_what_else_was_superseded(core: CoreTables):
    """Segments that are flushed in every version that is left; the newest one stays."""
    table = new_table(core.client())
    with_history(table)
    rows = stored(table)
    for _ in range(3):
        put(table, 0)
        table.flush()
    segments = list_segments(LocalStorage(), log_folder(table))
    assert len(segments) == 4
    collect_garbage(fresh(table)._store, 3600)
    assert list_segments(LocalStorage(), log_folder(table)) == segments
    collect_garbage(fresh(table)._store, 0)
    assert list_segments(LocalStorage(), log_folder(table)) == segments[-1:]
    expect_clean(table)
    put(table, 0, v=10)
    write(table, op("update", 0, w=20))
    assert stored(table) == stored(fresh(table)) == rows


def test_a_log_that_is_not_flushed_is_not_removed(core: CoreTables):
    """It holds the only copy of acknowledged rows."""
    table = new_table(core.client())
    versions = with_history(table)
    collect_garbage(fresh(table)._store, 0)
    expect(table, versions)


# -- what happens meanwhile


def meanwhile(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Have something done once, after a flush's files were built and before it is published."""
    sync, actions = NewFiles.sync, [action]

    def synced(files: NewFiles) -> None:
        sync(files)
        if actions and files.write_id is not None:
            actions.pop()()

    monkeypatch.setattr(NewFiles, "sync", synced)


@pytest.mark.parametrize("is_other", [False, True], ids=["of this process", "of another"])
def test_writes_beside_a_flush_stay_in_the_log(core: CoreTables, monkeypatch, is_other: bool):
    """Behind the position up to which it flushed: changes of rows that it has moved, too."""
    table = new_table(core.client())
    versions = with_history(table)
    writer = fresh(table) if is_other else table

    def change() -> None:
        for operations in (
            [op("update", 1, v=-1), op("delete", 3), op("insert", 5), op("update", 0, v=-1)],
            [op("insert", 3, v=-3), op("insert", 7), op("delete", 8), op("update", 5, w=1)],
        ):
            result = write(writer, *operations)
            assert result.failures == []
            remembered(writer, versions, result.timestamp)

    meanwhile(monkeypatch, change)
    segments = list_segments(LocalStorage(), log_folder(table))
    assert table.flush() == 1
    assert len(unflushed(table)) == 2
    assert list_segments(LocalStorage(), log_folder(table)) == segments
    expect(table, versions)
    remembered(table, versions, put(writer, 0, 7, 9))
    assert table.flush() == 1
    assert unflushed(table) == []
    expect(table, versions)


def test_a_flush_that_loses_to_a_commit_is_built_again_or_not_needed(core, monkeypatch):
    """The commit has flushed the log into its own version, without what the flush has built."""
    table = new_table(core.client())
    versions = with_history(table)

    def commit() -> None:
        write(table, op("insert", 7))
        remembered(table, versions, table.upsert([{"k": 1, "v": -1}, {"k": 9}]).timestamp)

    meanwhile(monkeypatch, commit)
    assert table.flush() == 0
    expect(table, versions)
    assert [row[0] for row in stored(table)] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    rows = stored(table)
    expect_clean(table)
    assert stored(fresh(table)) == rows


def test_a_flush_that_loses_to_a_commit_flushes_what_came_after_it(core, monkeypatch):
    """Rows that were written behind the commit are in the log of the new superblock."""
    table = new_table(core.client())
    versions = with_history(table)

    def commit() -> None:
        table.delete([{"k": 1}])
        remembered(table, versions, put(table, 1, v=100))

    meanwhile(monkeypatch, commit)
    assert table.flush() == 1
    assert unflushed(table) == []
    expect(table, versions)


def test_of_two_flushes_of_one_log_one_is_published(core: CoreTables, monkeypatch):
    """Two processes may come to it at once. The files of the later one go."""
    table = new_table(core.client())
    versions = with_history(table)
    other, counts = fresh(table), []
    meanwhile(monkeypatch, lambda: counts.append(other.flush()))
    version = table.version
    assert (table.flush(), counts, table.version) == (0, [1], version + 1)
    kept = referenced_files(store_of(table))
    assert [
        p for p in files_below(table.path / "tablet") if write_of(p.name) and p not in kept
    ] == []
    expect(table, versions)
    expect_clean(table)


def test_a_flush_that_loses_to_an_alteration_is_given_up(core: CoreTables, monkeypatch):
    """The alteration has flushed the log under the schema of its rows."""
    client = core.client()
    table = new_table(client)
    write(table, op("insert", 1, v=5))
    alterer = client.new_table_alterer(table)
    alterer.drop_column("v")
    meanwhile(monkeypatch, alterer.alter)
    assert table.flush() == 0
    assert stored(table) == stored(fresh(table)) == [(1, 7)]


def test_a_flush_of_a_table_that_is_deleted_meanwhile_brings_nothing_back(core, monkeypatch):
    """Nobody can publish to it any more."""
    client = core.client()
    table = new_table(client)
    put(table, 1)
    meanwhile(monkeypatch, lambda: client.delete_table("t"))
    with pytest.raises(TableNotFoundError):
        table.flush()
    assert (client.list_tables(), list(client.root.iterdir())) == ([], [])


def test_a_flush_that_a_compaction_outruns_ends_under_the_lock(core: CoreTables, monkeypatch):
    """A compaction does not flush; its rowsets are not those that the flush has read."""
    table = new_table(core.client())
    write_files, counts = memory_flush._write_files, []

    def build(files: NewFiles, memory: MemStores) -> object:
        flushed = write_files(files, memory)
        counts.append(files.write_id is not None)
        if len(counts) == 1:
            store = table._store
            (tablet,) = (store.tablet(entry) for entry in store.newest().tablets)
            ids = tuple(meta.id for meta in tablet.superblock.rowsets)
            assert run_operation(store, tablet.id, CompactRowSets(ids)) is not None
            put(table, 2, v=9)
        return flushed

    for value in range(3):
        table.upsert([{"k": number, "v": value} for number in (1, 3)])
    put(table, 2, v=8)
    monkeypatch.setattr(memory_flush, "_write_files", build)
    assert table.flush() == 1
    assert counts == [True, False]
    assert table.statistics.unflushed_row_count == 0
    monkeypatch.undo()
    assert stored(table) == stored(fresh(table)) == [(1, 2, 7), (2, 9, 7), (3, 2, 7)]
    expect_clean(table)


def test_a_flush_whose_record_is_gone_ends_under_the_lock(core: CoreTables, monkeypatch):
    """Its files may be gone by then."""
    table = new_table(core.client())

    def end() -> None:
        for record in (table.path / "writes").iterdir():
            record.unlink()
        collect_garbage(table._store, 0)

    put(table, 2, v=8)
    meanwhile(monkeypatch, end)
    assert table.flush() == 1
    assert stored(table) == stored(fresh(table)) == [(2, 8, 7)]
    expect_clean(table)


def test_a_commit_flushes_the_log_into_its_own_version(core: CoreTables):
    """One version more, in which both are; the past is as it was."""
    table = new_table(core.client())
    versions = with_history(table)
    bulk = table.new_bulk_write()
    version = table.version
    remembered(table, versions, put(table, 1, 6, v=60))
    rows = [{"k": 6, "v": 66, "w": 6}, {"k": 9, "v": 99, "w": 9}]
    staged = bulk.stage([pa.RecordBatch.from_pylist(rows, table.arrow_schema)])
    remembered(table, versions, bulk.commit([staged]).timestamp)
    assert unflushed(table) == []
    assert table.version <= version + 2
    expect(table, versions)


# -- crashes and errors


@pytest.fixture
def origin(core: CoreTables) -> tuple[Path, Versions]:
    """The folder of a table with a log, closed, and its versions."""
    client = core.client("origin")
    versions = with_history(new_table(client))
    return client.root, versions


def steps_of_a_flush(core: CoreTables, origin: Path) -> int:
    """How many durable steps a flush of the table has."""
    shutil.copytree(origin, core.root / "counted")
    counting = KillingStorage()
    assert core.client("counted", storage=counting).table("t").flush() == 1
    assert counting.count > 10
    return counting.count


@tiered("every", [3, 1], quick=1)
def test_a_flush_that_is_killed_changes_nothing_that_is_read(core: CoreTables, origin, every):
    """At any of its steps; the next one does it, and a collection finds what the first has left."""
    folder, versions = origin
    for step in range(0, steps_of_a_flush(core, folder), every):
        root = core.root / f"killed-{step}"
        shutil.copytree(folder, root)
        with pytest.raises(KilledError):
            core.client(root.name, storage=KillingStorage(step)).table("t").flush()
        table = core.client(root.name).table("t")
        assert {moment: stored(table, moment) for moment in versions} == versions
        later = dict(versions)
        remembered(table, later, put(table, 1, 2, 3, v=step))
        assert table.flush() == 1
        expect(table, later)
        expect_clean(table)


@tiered("every", [3, 1], quick=1)
def test_a_flush_that_the_disk_refuses_is_done_by_the_next_one(core: CoreTables, origin, every):
    """The same client goes on: its memory is as it was, and it takes rows before that."""
    folder, versions = origin
    failed = 0
    steps = range(0, steps_of_a_flush(core, folder), every)
    for step in steps:
        root = core.root / f"failed-{step}"
        shutil.copytree(folder, root)
        table = core.client(root.name, storage=FailingStorage(step)).table("t")
        try:
            table.flush()
        except StorageError:
            failed += 1
        later = dict(versions)
        remembered(table, later, put(table, 1, 2, 3, v=step))
        table.flush()
        assert unflushed(table) == []
        expect(table, later)
    assert failed > 10 // every
