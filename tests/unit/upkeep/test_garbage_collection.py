"""Garbage collection: what is removed, what stays, and readers that do not know of it."""

import os
import pickle
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

import kudulite
from kudulite.client import bulk_write
from kudulite.client.table import Table
from kudulite.errors import ConflictError, StorageError
from kudulite.storage.names import write_of
from kudulite.table import memory_flush
from kudulite.table.table_store import TableStore
from kudulite.upkeep import garbage_collection
from kudulite.upkeep.garbage_collection import collect_garbage, end_abandoned_writes
from tests.support.tables.core_tables import CoreTables, files_below, stored

HOUR = 3600.0


@pytest.fixture
def table(core: CoreTables) -> Table:
    """A table of two tablets and five versions."""
    builder = kudulite.schema_builder()
    builder.add_column("k", kudulite.int32, nullable=False)
    builder.add_column("v", kudulite.int32)
    builder.set_primary_keys(["k"])
    table = core.client().create_table("t", builder.build(), hash_partitions=[(["k"], 2)])
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
    write = table.new_bulk_write("upsert")
    part = write.stage([pack([(0, 50)])])
    assert end_abandoned_writes(store(table)) == 0
    age(table.path / "staging", 48 * HOUR)
    assert end_abandoned_writes(store(table)) == 0  # it has just written
    age(table.path / "tablet", 48 * HOUR)
    assert end_abandoned_writes(store(table)) == 1
    before = stored(table)
    with pytest.raises(ConflictError, match=r"table 't': write \w+ was aborted, or removed"):
        write.commit([part])
    with pytest.raises(ConflictError, match="aborted, or removed"):
        write.stage([pack([(0, 50)])])
    assert stored(table) == before
    assert list((table.path / "staging").iterdir()) == []


def test_an_abandoned_write_is_told_so_when_its_base_version_is_gone_too(table):
    """Not that a file is missing."""
    write = table.new_bulk_write("upsert")
    part = write.stage([pack([(0, 50)])])
    table.upsert([{"k": 0, "v": 1}])
    collect_garbage(store(table), 0, 0)
    for use in (lambda: write.commit([part]), lambda: write.stage([pack([(0, 50)])])):
        with pytest.raises(ConflictError, match="aborted, or removed"):
            use()


def test_a_later_write_removes_what_abandoned_ones_left(table):
    """No other housekeeping is needed for staging folders."""
    table.new_bulk_write("upsert").stage([pack([(0, 50)])])
    age(table.path / "staging", 48 * HOUR)
    age(table.path / "tablet", 48 * HOUR)
    table.upsert([{"k": 0, "v": 1}])
    assert list((table.path / "staging").iterdir()) == []


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


@pytest.mark.parametrize("moment", ["_files", "files_are_of_open_write"])
def test_a_write_that_begins_during_a_collection_loses_nothing(table, monkeypatch, moment):
    """Before its files are listed, or between that and the look for writes under way."""
    original, begun = getattr(garbage_collection, moment), []

    def raced(*arguments):
        found = original(*arguments)
        found = list(found) if moment == "_files" else found
        if not begun:
            write = table.new_bulk_write("upsert")
            begun.append((write, write.stage([pack([(0, 50), (100, 100)])])))
            age(table.path / "tablet", 48 * HOUR)  # as on a machine whose clock is behind
        return found

    monkeypatch.setattr(garbage_collection, moment, raced)
    collect_garbage(store(table), 0)
    ((write, part),) = begun
    write.commit([part])
    assert dict(stored(table))[100] == 100
    assert table.check().problems == ()


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
    (folder,) = (table.path / "staging").iterdir()
    shutil.rmtree(folder)  # as a crash in the middle of its end leaves it
    collect_garbage(store(table), 0)
    assert files_below(table.path) == before


def test_an_abort_after_the_commit_removes_nothing(table):
    """Also by a process that does not know of it."""
    write = table.new_bulk_write("upsert")
    part = write.stage([pack([(0, 50), (100, 100)])])
    late = pickle.loads(pickle.dumps(write))
    write.commit([part])
    before = files_below(table.path)
    late.abort()
    assert files_below(table.path) == before
    assert dict(stored(table))[100] == 100


def test_an_abort_waits_only_a_moment_for_a_tablet(table, monkeypatch):
    """The files that it leaves there go with the next collection."""
    monkeypatch.setattr(garbage_collection, "_ABORT_SECONDS", 0.01)
    collect_garbage(store(table), 0)
    before = files_below(table.path)
    write = table.new_bulk_write("upsert")
    write.stage([pack([(100, 100)])])
    with ExitStack() as stack:
        store(table).lock_all(stack, "test")
        write.abort()
    assert files_below(table.path) > before
    collect_garbage(store(table), 0)
    assert files_below(table.path) == before


def test_files_that_nobody_refers_to_go_once_they_are_old(table):
    """Of tablets, of whole tablets, and of killed publications; nothing else."""
    before = files_below(table.path)
    tablet = next((table.path / "tablet").iterdir())
    rowset = next((tablet / "rowset").iterdir())
    strays = [
        tablet / "superblock-stray.json",
        rowset / "redo-stray.arrow",
        tablet / "rowset" / "stray" / "base-stray.parquet",
        table.path / "tablet" / "stray" / "superblock-stray.json",
        table.path / "manifest" / ".00000000000000000009.json.stray",
    ]
    for path in strays:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    collect_garbage(store(table), HOUR)
    assert files_below(table.path) == before | set(strays)
    for path in strays:
        age(path, 2 * HOUR)
    age(strays[2].parent, 2 * HOUR)
    age(strays[3].parent, 2 * HOUR)
    collect_garbage(store(table), HOUR)
    assert files_below(table.path) == before
    assert not strays[3].parent.exists()
    assert not strays[2].parent.exists()


def test_a_new_empty_folder_stays_for_the_rowset_that_begins_in_it(table):
    """Only one that was just emptied, or is old, goes."""
    folder = next((table.path / "tablet").iterdir()) / "rowset" / "new"
    folder.mkdir()
    collect_garbage(store(table), HOUR)
    assert folder.exists()
    age(folder, 2 * HOUR)
    collect_garbage(store(table), HOUR)
    assert not folder.exists()


def test_a_collection_beside_another_forgets_the_versions_that_it_removed(table):
    """Their superblocks may be gone, too. A stray file of such a number does not count."""
    slow, manifests = store(table), table.path / "manifest"
    before = slow.newest().tablets[0]
    first = (manifests / f"{1:020d}.json").read_bytes()
    versions = garbage_collection._KeptVersions(slow)
    assert len(versions.entries(before.id)) == 5
    table.upsert([{"k": k, "v": 9} for k in range(8)])
    versions.read()
    names = {entry.superblock.name for entry in versions.entries(before.id)}
    assert len(names) == 6
    assert collect_garbage(store(table), 0).version_count == 5
    (manifests / f"{2:020d}.json").write_bytes(first)
    versions.read()
    versions.forget_removed()
    newest = store(table).newest().tablets[0]
    assert versions.entries(before.id) == [newest]
    (manifests / f"{2:020d}.json").unlink()


def test_a_scan_planned_before_a_collection_is_read_after_it(table):
    """Tokens are logical: they name no files."""
    tokens = table.scan_tokens()
    for value in range(3):
        table.upsert([{"k": k, "v": value + 50} for k in range(8)])
    table.maintain(0, 0)
    values = [v for token in tokens for b in token.open() for v in b.column("v").to_pylist()]
    assert values == [3] * 8


def test_a_flush_does_not_publish_files_that_were_removed(core, table, monkeypatch):
    """Without a grace time, the files that a flush is making are taken for abandoned ones."""
    session = kudulite.Session()
    session.apply(table.new_upsert({"k": 0, "v": 9}))
    session.apply(table.new_insert({"k": 100, "v": 9}))
    session.flush()
    write, collections = memory_flush._write_files, []

    def removed(*arguments):
        written = write(*arguments)
        if not collections:
            collections.append(collect_garbage(store(table), 0))
        return written

    monkeypatch.setattr(memory_flush, "_write_files", removed)
    before = stored(table)
    assert table.flush() > 0
    assert collections[0].file_count > 0
    assert stored(core.client().table("t")) == before
