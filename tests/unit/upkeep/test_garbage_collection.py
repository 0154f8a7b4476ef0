"""Garbage collection: what is removed, what stays, and readers that do not know of it."""

import os
import pickle
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

import kudulite
from kudulite.client import bulk_write
from kudulite.client.table import Table
from kudulite.errors import ConflictError, StorageError
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.names import kind_of, new_rowset_id, version_of, write_of
from kudulite.table import memory_flush
from kudulite.table.open_writes import OpenWrites, begin_write
from kudulite.table.table_store import TableStore
from kudulite.upkeep import garbage_collection
from kudulite.upkeep.garbage_collection import collect_garbage, end_writes
from tests.support.tables.core_tables import CoreTables, environment, files_below, stored

HOUR = 3600.0


@pytest.fixture
def table(core: CoreTables) -> Table:
    """A table of two tablets and five versions."""
    columns = [kudulite.column("k", kudulite.int32), kudulite.column("v", kudulite.int32)]
    table = core.client().create_table(
        "t", kudulite.schema(columns, "k"), hash_partitions=[(["k"], 2)]
    )
    for value in range(4):
        table.upsert([{"k": k, "v": value} for k in range(8)])
    return table


def age(folder: Path, seconds: float) -> None:
    """Make everything in a tree older."""
    when = time.time() - seconds
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (when, when))


def store(table: Table) -> TableStore:
    """A store that has seen nothing."""
    return TableStore(table.path, table._store.environment)


def test_superseded_versions_go_and_the_past_stays_readable(table):
    """Time travel needs the newest superblock alone."""
    moments = [table.current_timestamp()]
    table.upsert([{"k": 0, "v": 9}])
    before = stored(table, moments[0])
    age(table.path, 2 * HOUR)
    result = collect_garbage(store(table), HOUR)
    assert result.version_count == 5
    assert result.file_count > 0
    assert store(table).chain.numbers() == [6]
    assert stored(table, moments[0]) == before


def test_young_versions_and_their_files_stay(table):
    """Readers on other machines may still be at them."""
    before = files_below(table.path)
    assert collect_garbage(store(table), HOUR).version_count == 0
    assert files_below(table.path) == before


def test_a_stale_reader_finds_the_newest_version_after_a_collection(table):
    """Its version is gone, and the next ones too; the hint may be gone or old."""
    stale = store(table)
    stale.newest()
    for value in range(4):
        table.upsert([{"k": 1, "v": value}])
    collect_garbage(store(table), 0)
    assert store(table).chain.numbers() == [9]
    assert stale.newest().version == 9
    hint = table.path / "manifest" / "hint"
    for content in (b"1", b"x", b""):
        hint.write_bytes(content)
        assert store(table).newest().version == 9
    hint.unlink()
    assert store(table).newest().version == 9


def test_a_stale_writer_commits_after_a_collection(table, core):
    """A table object that was opened before goes on."""
    stale = core.client().table("t")
    assert stale.version == 5
    table.upsert([{"k": 1, "v": 100}])
    table.maintain(0, 0)
    stale.upsert([{"k": 2, "v": 200}])
    assert dict(stored(table))[1] == 100
    assert dict(stored(table))[2] == 200


def test_a_version_that_a_write_pins_stays(table):
    """With all its files, so that the write can still be fitted and committed."""
    write = table.new_bulk_write("upsert")
    part = write.stage([pack([(0, 50), (100, 51)])])
    table.delete([{"k": 0}])
    table.truncate()
    age(table.path, 2 * HOUR)
    assert collect_garbage(store(table), HOUR).version_count == 4
    assert store(table).chain.numbers()[0] == 5
    write.commit([part])
    assert stored(table) == [(0, 50), (100, 51)]
    age(table.path, 2 * HOUR)
    collect_garbage(store(table), HOUR)
    assert store(table).chain.numbers() == [8]


def test_a_write_collects_garbage_now_and_then(table, monkeypatch):
    """Only when something is old enough, and an error is not that of the write."""
    monkeypatch.setattr(bulk_write, "VERSIONS_PER_COLLECTION", 3)
    table.upsert([{"k": 1, "v": 1}])
    assert store(table).chain.numbers() == [1, 2, 3, 4, 5, 6]
    age(table.path / "manifest", 2 * HOUR)
    table.upsert([{"k": 1, "v": 2}])
    table.upsert([{"k": 1, "v": 3}])
    assert store(table).chain.numbers()[0] == 1
    table.upsert([{"k": 1, "v": 4}])
    assert store(table).chain.numbers() == [6, 7, 8, 9]
    age(table.path / "manifest", 2 * HOUR)

    def refuse(_store) -> None:
        raise StorageError(5, "no disk")

    monkeypatch.setattr(garbage_collection, "collect_garbage", refuse)
    for value in range(3):
        table.upsert([{"k": 1, "v": value}])
    assert dict(stored(table))[1] == 2


def pack(found) -> pa.Table:
    """Rows as Arrow."""
    keys, values = zip(*found, strict=True)
    return pa.table({"k": pa.array(keys, pa.int32()), "v": pa.array(values, pa.int32())})


def test_an_abandoned_write_is_removed_and_cannot_commit(table):
    """It is told so, and the table is as it was."""
    write = pickle.loads(pickle.dumps(table.new_bulk_write("upsert")))
    age(table.path / "writes", 48 * HOUR)
    part = write.stage([pack([(0, 50)])])
    age(table.path / "tablet", 48 * HOUR)
    assert end_writes(store(table)) == 0  # it has just done something
    age(table.path / "writes", 48 * HOUR)
    assert end_writes(store(table)) == 1
    before = stored(table)
    with pytest.raises(ConflictError, match=r"table 't': write \w+ was aborted, or removed"):
        write.commit([part])
    with pytest.raises(ConflictError, match="aborted, or removed"):
        write.stage([pack([(0, 50)])])
    assert stored(table) == before
    assert list((table.path / "writes").iterdir()) == []


def test_an_abandoned_write_is_told_so_when_its_base_version_is_gone_too(table):
    """Not that a file is missing."""
    write = pickle.loads(pickle.dumps(table.new_bulk_write("upsert")))
    part = write.stage([pack([(0, 50)])])
    table.upsert([{"k": 0, "v": 1}])
    collect_garbage(store(table), 0, 0)
    for use in (lambda: write.commit([part]), lambda: write.stage([pack([(0, 50)])])):
        with pytest.raises(ConflictError, match="aborted, or removed"):
            use()


def test_a_later_write_removes_what_abandoned_ones_left(table):
    """No other housekeeping is needed. One whose process has died is not waited for."""
    before = files_below(table.path / "tablet")
    table.new_bulk_write("upsert").stage([pack([(0, 50)])])
    silent = table.new_bulk_write("upsert")
    pickle.dumps(silent)
    silent.stage([pack([(0, 50)])])
    assert len(list((table.path / "writes").iterdir())) == 1
    age(table.path / "writes", 48 * HOUR)
    table.new_bulk_write("upsert").abort()
    assert list((table.path / "writes").iterdir()) == []
    assert files_below(table.path / "tablet") == before


def test_files_of_a_write_under_way_stay_whatever_their_age(table):
    """They are in the tablets, in no version; afterwards they are in one."""
    write = table.new_bulk_write("upsert")
    part = write.stage([pack([(0, 50), (100, 100)])])
    age(table.path / "tablet", 48 * HOUR)
    before = files_below(table.path / "tablet")
    for _ in range(2):
        collect_garbage(store(table), 0)
    assert files_below(table.path / "tablet") >= {p for p in before if write_of(p.name)}
    write.commit([part])
    assert dict(stored(table))[100] == 100
    assert table.check().problems == ()


def at_moment(monkeypatch, moment: str, act) -> None:
    """Let a collection be interrupted once: before it lists a tablet, or just after it has listed
    the tablets and read the records, or before it takes the first lock."""
    begun, is_listed = [], []
    names, records, locked = LocalStorage.names_below, OpenWrites.of, TableStore.locked

    def once() -> None:
        if not begun:
            begun.append(None)
            act()

    def listed(self, folder):
        if moment == "listing":
            once()
        is_listed.append(None)
        return names(self, folder)

    def read(store):
        found = records(store)
        if moment == "records" and is_listed:
            once()
        return found

    def lock(self, work: str, *given, **options):
        if moment == "lock" and work == "garbage collection":
            once()
        return locked(self, work, *given, **options)

    monkeypatch.setattr(LocalStorage, "names_below", listed)
    monkeypatch.setattr(OpenWrites, "of", read)
    monkeypatch.setattr(TableStore, "locked", lock)


MOMENTS = pytest.mark.parametrize("moment", ["listing", "records", "lock"])


@MOMENTS
def test_a_write_that_begins_during_a_collection_loses_nothing(table, monkeypatch, moment):
    """Its files may have been listed, but its record is then read."""
    begun = []

    def begin() -> None:
        write = table.new_bulk_write("upsert")
        begun.append((write, write.stage([pack([(0, 50), (100, 100)])])))

    at_moment(monkeypatch, moment, begin)
    collect_garbage(store(table), 0)
    ((write, part),) = begun
    write.commit([part])
    assert dict(stored(table))[100] == 100
    assert table.check().problems == ()


@MOMENTS
def test_a_version_that_is_published_during_a_collection_loses_nothing(table, monkeypatch, moment):
    """Its files may have been listed, of a write without a record: it is read under the lock."""
    at_moment(monkeypatch, moment, lambda: table.upsert([{"k": k, "v": 50} for k in range(8)]))
    collect_garbage(store(table), 0)
    assert stored(table) == [(k, 50) for k in range(8)]
    assert table.check().problems == ()


def test_a_version_that_is_about_to_be_published_loses_nothing(table, monkeypatch):
    """Its superblocks are listed and in no version, but the collection waits for the locks."""
    is_ready, is_waited_for = threading.Event(), threading.Event()
    update = TableStore.update

    def paused(*arguments):
        is_ready.set()
        assert is_waited_for.wait(20)
        return update(*arguments)

    at_moment(monkeypatch, "lock", is_waited_for.set)
    writer = threading.Thread(target=table.upsert, args=([{"k": k, "v": 50} for k in range(8)],))
    with monkeypatch.context() as patch:
        patch.setattr(TableStore, "update", paused)
        writer.start()
        assert is_ready.wait(20)
    collect_garbage(store(table), 0)
    writer.join()
    assert stored(table) == [(k, 50) for k in range(8)]
    assert table.check().problems == ()


def test_a_collection_with_nothing_to_remove_takes_no_lock(table):
    """Nor for files of a write under way, and those that are none of the engine's."""
    collect_garbage(store(table), 0)
    write = table.new_bulk_write("upsert")
    part = write.stage([pack([(0, 50), (100, 100)])])
    (next((table.path / "tablet").iterdir()) / "notes.txt").write_bytes(b"x")
    with store(table).locked("test"):
        other = TableStore(table.path, environment(lock_timeout_seconds=0.0))
        assert collect_garbage(other, 0).file_count == 0
    write.commit([part])


def test_files_of_a_write_that_is_over_go_at_once(table):
    """Of an abort, of an attempt that the commit was not given, and of a process that died."""
    collect_garbage(store(table), 0)
    before = files_below(table.path)
    write = table.new_bulk_write("upsert")
    write.stage([pack([(0, 50), (100, 100)])])
    assert files_below(table.path) > before
    write.abort()
    assert files_below(table.path) == before
    left = table.new_bulk_write("upsert")
    left.stage([pack([(101, 1)])])
    del left  # as when its process dies
    assert len(list((table.path / "writes").iterdir())) == 1
    collect_garbage(store(table))
    assert files_below(table.path) == before


def test_an_abort_after_the_commit_removes_nothing(table):
    """Also by a process that does not know of it, and of files that the newest version has not."""
    write = table.new_bulk_write("upsert")
    part = write.stage([pack([(0, 50), (100, 100)])])
    late = pickle.loads(pickle.dumps(write))
    write.commit([part])
    for _ in range(2):
        before = files_below(table.path)
        late.abort()
        assert files_below(table.path) == before
        table.compact()
    assert dict(stored(table))[100] == 100


def test_an_abort_reads_no_version_before_the_write(table, monkeypatch):
    """Their superblocks do not have its files."""
    other = elsewhere(table)
    write = other.new_bulk_write("upsert")
    write.stage([pack([(0, 50), (100, 100)])])
    read, found = LocalStorage.read, []

    def noted(self, path: Path) -> bytes:
        found.append(path.name)
        return read(self, path)

    monkeypatch.setattr(LocalStorage, "read", noted)
    write.abort()
    assert [name for name in found if kind_of(name) or version_of(name)] == []
    assert other.version == 5


def elsewhere(table: Table) -> Table:
    """The table as another process sees it."""
    return Table(TableStore(table.path, environment()))


def test_an_abort_waits_only_a_moment_for_a_tablet(table, monkeypatch):
    """The files that it leaves there go with the next collection."""
    monkeypatch.setattr(garbage_collection, "_ABORT_SECONDS", 0.01)
    collect_garbage(store(table), 0)
    before = files_below(table.path)
    write = table.new_bulk_write("upsert")
    write.stage([pack([(100, 100)])])
    with store(table).locked("test"):
        write.abort()
    assert files_below(table.path) > before
    collect_garbage(store(table), 0)
    assert files_below(table.path) == before


def test_files_that_nobody_refers_to_go_whatever_their_age(table):
    """Of tablets, and of whole tablets; those of killed publications once they are old.

    Files that the engine has not made stay.
    """
    tablet = next((table.path / "tablet").iterdir())
    for path in (tablet / ".DS_Store", tablet / "notes.txt", table.path / "tablet" / ".DS_Store"):
        path.write_bytes(b"x")
    before = files_below(table.path)
    assert table.statistics.bytes_on_disk
    rowset = next((tablet / "rowset").iterdir())
    strays = [
        tablet / "superblock-stray.json",
        rowset / "redo-stray.arrow",
        tablet / "rowset" / "stray" / "base-stray.parquet",
        table.path / "tablet" / f"{0:032x}" / "superblock-stray.json",
        table.path / "manifest" / f".00000000000000000009.json.{0:032x}",
    ]
    for path in strays:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    collect_garbage(store(table), HOUR)
    assert files_below(table.path) == before | {strays[4]}
    age(strays[4], 2 * HOUR)
    collect_garbage(store(table), HOUR)
    assert files_below(table.path) == before
    assert not strays[3].parent.exists()
    assert not strays[2].parent.exists()


def test_an_empty_folder_stays_for_the_rowset_of_an_open_write_only(table):
    """A rowset is about to begin in it."""
    rowsets = next((table.path / "tablet").iterdir()) / "rowset"
    write = begin_write(store(table), "compaction")
    own, left = rowsets / new_rowset_id(write.id), rowsets / new_rowset_id()
    own.mkdir()
    left.mkdir()
    collect_garbage(store(table), HOUR)
    assert (own.exists(), left.exists()) == (True, False)
    write.end()
    collect_garbage(store(table), HOUR)
    assert not own.exists()


def test_the_folder_of_an_older_format_goes(table):
    """Nothing of it is known any more."""
    (table.path / "staging" / "0123").mkdir(parents=True)
    (table.path / "staging" / "0123" / "write.json").write_bytes(b"{}")
    collect_garbage(store(table), HOUR)
    assert not (table.path / "staging").exists()


def test_a_scan_planned_before_a_collection_is_read_after_it(table):
    """Tokens are logical: they name no files."""
    tokens = table.scan_tokens()
    for value in range(3):
        table.upsert([{"k": k, "v": value + 50} for k in range(8)])
    table.maintain(0, 0)
    values = [v for token in tokens for b in token.open() for v in b.column("v").to_pylist()]
    assert values == [3] * 8


def test_a_collection_beside_a_flush_leaves_what_it_has_built(core, table, monkeypatch):
    """It is published without being built again."""
    session = kudulite.Session()
    session.apply(table.new_upsert({"k": 0, "v": 9}))
    session.apply(table.new_insert({"k": 100, "v": 9}))
    session.flush()
    write, collections = memory_flush._write_files, []

    def collected(*arguments):
        written = write(*arguments)
        collections.append(collect_garbage(store(table), 0))
        return written

    monkeypatch.setattr(memory_flush, "_write_files", collected)
    before = stored(table)
    assert table.flush() == len(collections) > 0
    assert stored(core.client().table("t")) == before
