"""Operations beside a purge, or a garbage collection without grace time, at each of their steps.

Both remove files that are in no version, but not those of an open write, nor those that it reads.
"""

import contextlib
import errno
import itertools
import pickle
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from kudulite.chain.manifest import Manifest
from kudulite.client.table import Table
from kudulite.errors import ConflictError, LockTimeoutError, StorageError
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.merge_compaction import merge_rowsets
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.new_files import NewFiles
from kudulite.storage.storage import Sink
from kudulite.table.open_writes import OpenWrites, WriteRecord, begin_write
from kudulite.table.table_store import TableStore
from kudulite.tablet.maintenance_policy import CompactRowSets
from kudulite.upkeep import purge
from kudulite.upkeep.compaction import OperationResult, run_operation
from kudulite.upkeep.garbage_collection import collect_garbage
from tests.support.doubles.faulty_storage import FaultyStorage
from tests.support.doubles.interrupted_storage import Interrupted
from tests.support.doubles.killing_storage import KillingStorage, ran_to_its_end
from tests.support.tables.core_tables import (
    CoreTables,
    expect_clean,
    files_below,
    referenced_files,
    stored,
)
from tests.support.tables.table_operations import KEYS, OPERATIONS, PURGED, copied, new_table
from tests.support.tiers import tiered

MARK = b"a text that is in no other row"


def removal(table: Table, is_purge: bool) -> None:
    """Remove files without grace as another process does, unless the operation has the lock."""
    try:
        table.purge(KEYS) if is_purge else collect_garbage(table._store, 0.0)
    except LockTimeoutError:
        pass


REMOVALS = ["collection", "purge", "collection by a host that lists late"]


@pytest.mark.parametrize("kind", REMOVALS)
@tiered("name", OPERATIONS, quick=["flush", "purge"])
def test_an_operation_survives_removals_ahead_of_each_of_its_steps(
    core: CoreTables, name: str, kind: str
):
    """Its outcome is the same, nothing is lost, and the table is whole."""
    is_purge = kind == "purge"
    new_table(core.client("made"))
    alone = copied(core, "alone").table("t")
    OPERATIONS[name](alone)
    expected = [row[:2] for row in stored(alone) if row[0] != PURGED]
    for at in itertools.count(int(is_purge), 2):
        storage = Interrupted(at)
        table = copied(core, "beside", storage=storage).table("t")
        seen_by_other = FaultyStorage(LocalStorage())
        other = core.client("beside", storage=seen_by_other, lock_timeout_seconds=0.0).table("t")
        if "late" in kind:
            seen_by_other.listed_until = ("writes", time.time_ns())
        storage.action = partial(removal, other, is_purge)
        OPERATIONS[name](table)
        found = [row[:2] for row in stored(core.client("beside").table("t"))]
        assert [row for row in found if row[0] != PURGED] == expected, at
        assert table.check().problems == ()
        if storage.steps_left >= 0:
            return


def records(table: Table) -> list[WriteRecord]:
    """The open writes of a table."""
    return list(OpenWrites.of(table._store))


def purged_bytes(table: Table) -> list[Path]:
    """The files of a table's tablets that hold a value which is only in the purged row."""
    return [
        path
        for path in (table.path / "tablet").rglob("*")
        if path.suffix in (".parquet", ".arrow", ".log") and MARK in path.read_bytes()
    ]


def with_mark(core: CoreTables, **options: object) -> Table:
    """A table whose row PURGED has a text that is found in the bytes of its files."""
    schema = pa.schema([("k", pa.int32()), ("s", pa.string())])
    table = core.client(**options).create_table("t", schema, primary_key="k")
    for first in (0, 20, 40):
        keys = range(first, first + 20)
        texts = [MARK.decode() if k == PURGED else str(k) for k in keys]
        table.insert(pa.table({"k": pa.array(keys, pa.int32()), "s": texts}))
    return table


def merge_all(table: Table, hook: Callable[[str], None]) -> OperationResult | None:
    """Merge all rowsets of the table's tablet."""
    store = table._store
    (entry,) = store.newest().tablets
    ids = tuple(meta.id for meta in store.tablet(entry).superblock.rowsets)
    return run_operation(store, entry.id, CompactRowSets(ids), hook)


@pytest.mark.parametrize("is_first", [True, False], ids=["ahead of files", "behind them"])
@pytest.mark.parametrize("name", ["flush", "compact", "purge"])
def test_what_upkeep_has_built_is_not_built_again(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch, name: str, is_first: bool
):
    """A collection without grace, ahead of each file or behind them, takes nothing of it."""
    new_table(core.client("made"))
    made: list[str] = []
    sink, sync = NewFiles.sink, NewFiles.sync
    other: list[Table] = []

    def collect() -> None:
        with contextlib.suppress(LockTimeoutError):
            collect_garbage(other[0]._store, 0.0)

    def noted(self: NewFiles, folder: Path, kind: str) -> Sink:
        if folder.is_relative_to(core.root):  # not what another test has left to do in background
            if other and is_first:
                collect()
            made.append(kind)
        return sink(self, folder, kind)

    def synced(self: NewFiles) -> None:
        sync(self)
        if other and not is_first:
            collect()

    monkeypatch.setattr(NewFiles, "sink", noted)
    monkeypatch.setattr(NewFiles, "sync", synced)
    alone = copied(core, "alone").table("t")
    OPERATIONS[name](alone)
    alone_made, made[:] = list(made), []
    table = copied(core, "beside").table("t")
    other.append(core.client("beside", lock_timeout_seconds=0.0).table("t"))
    OPERATIONS[name](table)
    monkeypatch.undo()
    assert made == alone_made != []
    assert stored(core.client("beside").table("t")) == stored(alone)
    assert records(table) == []
    expect_clean(core.root / "beside")


def test_a_record_says_what_works_on_which_version(core: CoreTables):
    """And whose it is; it is held as long as its process works."""
    table = new_table(core.client())
    version, found = table.version, []
    merge_all(table, lambda at: found.extend(records(table)) if at == "built" else None)
    (record,) = found
    assert (record.base_version, record.work, record.owner) == (version, "compaction", None)
    assert record.is_held
    write = table.new_bulk_write("upsert", owner="me")
    (record,) = records(table)
    assert (record.work, record.owner) == ("upsert", "me")
    assert (record.is_held, record.is_dead) == (True, False)
    pickle.dumps(write)
    (record,) = records(table)
    assert (record.work, record.owner) == ("upsert", "me")
    assert (record.is_held, record.is_dead) == (False, False)
    write.abort()
    pickle.dumps(write)
    assert records(table) == []


def test_a_purge_waits_for_upkeep_that_reads_older_versions(core: CoreTables):
    """Nothing of the purged row is left then, also not in what the other has built."""
    table = with_mark(core)
    other, reports = core.client().table("t"), []

    def purge() -> None:
        reports.append(other.purge(KEYS))

    thread = threading.Thread(target=purge)

    def purge_beside(at: str) -> None:
        if at == "built":
            version = table.version
            thread.start()
            while table.version == version:
                time.sleep(0.001)
            thread.join(0.05)
            assert thread.is_alive()
            assert purged_bytes(table)

    assert merge_all(table, purge_beside) is None
    thread.join()
    (report,) = reports
    assert (report.is_complete, report.row_count) == (True, 1)
    assert purged_bytes(table) == []


def test_a_purge_names_upkeep_that_lasts_too_long(core: CoreTables):
    """Purged again when that has ended, the row is gone."""
    table = with_mark(core)
    other, reports = core.client(lock_timeout_seconds=0.0).table("t"), []

    def purge_beside(at: str) -> None:
        if at == "built":
            reports.append((records(table)[0].id, other.purge(KEYS)))

    assert merge_all(table, purge_beside) is None
    ((write_id, report),) = reports
    assert report.pinned_by == (write_id,)
    assert purged_bytes(table)
    assert other.purge(KEYS).is_complete
    assert purged_bytes(table) == []


def test_a_purge_does_not_wait_for_the_dead(core: CoreTables):
    """Of a process that was killed in the middle of a compaction."""
    table = with_mark(core)
    store = table._store
    (entry,) = store.newest().tablets
    write = begin_write(store, "compaction")
    rowsets = store.tablet(entry).disk_rowsets
    folder = rowsets[0].folder.parent
    merge_rowsets(write.files, folder, table._store.newest().stored_schema, rowsets, 0)
    write.made.close()
    begin = time.monotonic()
    assert core.client(lock_timeout_seconds=30.0).table("t").purge(KEYS).is_complete
    assert time.monotonic() - begin < 10
    assert (purged_bytes(table), records(table)) == ([], [])


def test_two_purges_at_once_do_not_wait_for_each_other(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch
):
    """Of the same rows, each begun ahead of the other's publication."""
    table = with_mark(core)
    both, reports = threading.Barrier(2), []
    build = purge._TabletPurge.build

    def together(self: purge._TabletPurge, rowsets: Sequence[DiskRowSet]) -> list:
        built = build(self, rowsets)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(5)
        return built

    def run() -> None:
        reports.append(core.client(lock_timeout_seconds=30.0).table("t").purge(KEYS))

    monkeypatch.setattr(purge._TabletPurge, "build", together)
    begin = time.monotonic()
    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - begin < 25
    assert [report.is_complete for report in reports] == [True, True]
    assert sorted(report.row_count for report in reports)[-1] == 1
    assert (purged_bytes(table), records(table)) == ([], [])
    assert PURGED not in [row[0] for row in stored(core.client().table("t"))]


def purged_beside(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch, action: Callable[[Table], object]
) -> list[tuple[int, int]]:
    """Purge a row while `action` comes after the first build, and check the table.

    Returns, for each build, how many rowsets it was given and how many it has written.
    """
    table = with_mark(core)
    expected = [row for row in stored(table) if row[0] != PURGED]
    build, counts = purge._TabletPurge.build, list[tuple[int, int]]()

    def noted(self: purge._TabletPurge, rowsets: Sequence[DiskRowSet]) -> list:
        built = build(self, rowsets)
        counts.append((len(rowsets), len(built)))
        if len(counts) == 1:
            action(core.client().table("t"))
        return built

    monkeypatch.setattr(purge._TabletPurge, "build", noted)
    assert table.purge(KEYS).row_count == 1
    assert stored(core.client().table("t")) == expected
    assert purged_bytes(table) == []
    return counts


def test_a_purge_whose_record_is_gone_rewrites_all_under_the_lock(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch
):
    """Its files may be gone by then."""

    def end(other: Table) -> None:
        for record in (other.path / "writes").iterdir():
            record.unlink()
        collect_garbage(other._store)

    counts = purged_beside(core, monkeypatch, end)
    assert [built for _, built in counts] == [1, 1]


def test_a_purge_that_a_compaction_outruns_rewrites_what_has_changed(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch
):
    """Under the lock, and no more than that."""

    def outrun(other: Table) -> None:
        assert merge_all(other, lambda at: None) is not None

    counts = purged_beside(core, monkeypatch, outrun)
    assert [given for given, _ in counts] == [3, 1]


@pytest.mark.parametrize("work", ["flush", "compact", "purge", "upsert", "apply"])
def test_what_a_killed_operation_leaves_goes_with_the_next_collection(core: CoreTables, work: str):
    """Whatever its age, and whatever the grace times."""
    new_table(core.client("made"))
    left = 0
    for steps in itertools.count(0, 2):
        storage = KillingStorage(steps)
        table = copied(core, "killed", storage=storage).table("t")
        is_over = ran_to_its_end(partial(OPERATIONS[work], table), in_child=False)
        del table
        fresh = core.client("killed").table("t")
        left += len(records(fresh))
        fresh.maintain()
        assert records(fresh) == []
        known = referenced_files(fresh._store) | versions_files(fresh)
        unknown = files_below(fresh.path / "tablet") - known
        assert {p for p in unknown if p.parent.name != "wal" and "lock" not in p.name} == set()
        if is_over:
            break
    assert left > 0


def versions_files(table: Table) -> set[Path]:
    """The files of all versions that are there."""
    store, found = table._store, set()
    for number in store.chain.numbers():
        for entry in store.chain.at(number).readable_tablets:
            tablet = store.tablet(entry)
            refs = (*tablet.superblock.base_refs, *tablet.superblock.tablet_file_refs)
            found |= {tablet.folder / ref.name for ref in (entry.superblock, *refs)}
            for meta in tablet.superblock.rowsets:
                found |= {tablet.folder / "rowset" / meta.id / name for name in meta.file_names}
    return found


def test_software_of_an_older_format_is_shut_out_before_the_first_record(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch
):
    """It would take the files of open writes for garbage."""
    table = new_table(core.client())
    upgraded, seen = TableStore.upgraded, []

    def noted(store: TableStore) -> Manifest:
        seen.append(records(table))
        return upgraded(store)

    monkeypatch.setattr(TableStore, "upgraded", noted)
    with begin_write(table._store, "copy"):
        assert len(records(table)) == 1
    assert seen == [[]]


def test_a_missing_file_of_the_newest_version_is_damage(core: CoreTables):
    """The error of an operation names the file."""
    client = core.client("damaged")
    table = new_table(client)
    table.flush()
    folder = table._store.tablet_folder(table.tablet_ids[0])
    lost = next(folder.rglob("redo-*"))
    content = lost.read_bytes()
    lost.unlink()
    with pytest.raises(StorageError, match=lost.name):
        core.client("damaged").table("t").compact()
    lost.write_bytes(content)  # for the check at the end


def test_two_copies_to_one_place_are_one_copy(core: CoreTables, monkeypatch: pytest.MonkeyPatch):
    """The second removes what the first has copied, which then publishes nothing."""
    table = new_table(core.client())
    path, begin = table.path.with_name("copy"), TableStore.begin

    def begin_late(self: TableStore, manifest: Manifest) -> Manifest | None:
        if self.name != ".copy-copy":
            return begin(self, manifest)
        monkeypatch.setattr(TableStore, "begin", begin)
        core.client().table("t").copy_to(path)
        shutil.copytree(path, self.folder, ignore=lambda folder, names: ["tablet"])
        return begin(self, manifest)

    monkeypatch.setattr(TableStore, "begin", begin_late)
    with pytest.raises((ConflictError, StorageError)):
        table.copy_to(path)
    shutil.rmtree(path.with_name(".copy-copy"))
    assert stored(core.client().table("copy")) == stored(table)


def test_a_record_that_cannot_be_read_stops_a_collection(core: CoreTables, monkeypatch):
    """It may pin a version. A torn one is of a write that a power failure has ended."""
    table = new_table(core.client())
    store = table._store
    with begin_write(store, "copy") as write:
        path = store.folder / "writes" / f"{write.id}.json"
        real = LocalStorage.read

        def read(storage: LocalStorage, asked: Path) -> bytes:
            if asked == path:
                raise StorageError(errno.EMFILE, f"cannot read {asked}: too many open files")
            return real(storage, asked)

        before = files_below(table.path)
        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, "read", read)
            with pytest.raises(StorageError, match="too many open files"):
                collect_garbage(store, 0.0)
        assert files_below(table.path) == before
        path.write_bytes(b'{"base_ver')
        (record,) = records(table)
        assert (record.base_version, record.is_held) == (None, False)


def test_a_write_that_is_over_keeps_no_record(core: CoreTables, monkeypatch: pytest.MonkeyPatch):
    """Where that cannot be deleted, the write has succeeded, and the next look deletes it."""
    table = core.client().create_table("t", pa.schema([("k", pa.int64())]), primary_key="k")
    aborted, delete = table.new_bulk_write("upsert"), LocalStorage.delete

    def refused(storage: LocalStorage, path: Path) -> None:
        if path.parent.name == "writes":
            raise StorageError(errno.EIO, "no answer")
        delete(storage, path)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "delete", refused)
        table.upsert(pa.table({"k": range(10)}))
        with pytest.raises(StorageError, match="no answer"):
            aborted.abort()
    assert len(table._store.environment.ended_writes) == 1
    assert len(files_below(table.path / "writes")) == 2
    assert len(OpenWrites.of(table._store)) == 1
    assert table._store.environment.ended_writes == set()
    aborted.abort()
    expect_clean(table.path.parent)
