"""Operations beside a purge, or a garbage collection without grace time, at each of their steps.

Both remove files that are in no version, and so those of an operation under way. The operation
builds them again, or gives up; it never publishes a version that lacks files, and never fails.
"""

import itertools
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from kudulite.chain.manifest import Manifest, Origin
from kudulite.chain.new_files import RemovedFilesError
from kudulite.client.table import Table
from kudulite.errors import ConflictError, LockTimeoutError, StorageError
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.table.table_store import TableStore
from kudulite.upkeep import purge
from kudulite.upkeep.garbage_collection import collect_garbage
from tests.support.doubles.interrupted_file_system import Interrupted
from tests.support.tables.core_tables import CoreTables, stored
from tests.support.tables.table_operations import KEYS, OPERATIONS, PURGED, copied, new_table
from tests.support.tiers import tiered


def removal(table: Table, is_purge: bool) -> None:
    """Remove files without grace as another process does, unless the operation has the lock."""
    try:
        table.purge(KEYS) if is_purge else collect_garbage(table._store, 0.0)
    except LockTimeoutError:
        pass


@pytest.mark.parametrize("is_purge", [False, True], ids=["collection", "purge"])
@tiered("name", OPERATIONS, quick=["flush", "purge"])
def test_an_operation_survives_removals_ahead_of_each_of_its_steps(
    core: CoreTables, name: str, is_purge: bool
):
    """Its outcome is the same, nothing is lost, and the table is whole."""
    new_table(core.client("made"))
    alone = copied(core, "alone").table("t")
    OPERATIONS[name](alone)
    expected = [row[:2] for row in stored(alone) if row[0] != PURGED]
    for at in itertools.count(int(is_purge), 2):
        file_system = Interrupted(at)
        table = copied(core, "beside", file_system=file_system).table("t")
        other = core.client("beside", lock_timeout_seconds=0.0).table("t")
        file_system.action = partial(removal, other, is_purge)
        OPERATIONS[name](table)
        found = [row[:2] for row in stored(core.client("beside").table("t"))]
        assert [row for row in found if row[0] != PURGED] == expected, at
        assert table.check().problems == ()
        if file_system.steps_left >= 0:
            return


def beside_each_build(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> list[int]:
    """Have something done after each build of a purge but the last; counts them."""
    build, counts = purge._TabletPurge.build, []

    def interrupted(self: purge._TabletPurge, rowsets: Sequence[DiskRowSet]) -> list:
        with monkeypatch.context() as patch:
            patch.setattr(purge._TabletPurge, "build", build)
            built = build(self, rowsets)
            if rowsets and len(counts) < purge._ATTEMPTS_MAX - 1:
                counts.append(len(built))
                action()
            return built

    monkeypatch.setattr(purge._TabletPurge, "build", interrupted)
    return counts


@pytest.mark.parametrize("is_purge", [False, True], ids=["collection", "purge"])
def test_purges_that_never_find_their_files_again_rewrite_all_under_the_lock(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch, is_purge: bool
):
    """A second purge, or a collection, removes the files of each attempt: nothing is lost."""
    table = new_table(core.client())
    other = core.client().table("t")
    expected = [row for row in stored(table) if row[0] != PURGED]
    meanwhile = (
        partial(other.purge, [{"k": 999}])
        if is_purge
        else partial(collect_garbage, other._store, 0.0)
    )
    counts = beside_each_build(monkeypatch, meanwhile)
    report = table.purge(KEYS)
    assert (report.is_complete, report.row_count) == (True, 1)
    assert len(counts) == purge._ATTEMPTS_MAX - 1
    assert stored(core.client().table("t")) == expected


def test_a_version_that_names_a_missing_file_is_refused(core: CoreTables):
    """The newest version stays as it is, and the message says what to do."""
    table = new_table(core.client())
    table.flush()
    store = table._store
    newest = store.newest()
    (entry,) = newest.tablets
    tablet = store.tablet(entry)
    first, *others = tablet.superblock.rowsets
    for named in (replace(first.base[0].ref, name="base-0.parquet"), None):
        meta = first if named is None else replace(first, base=(replace(first.base[0], ref=named),))
        made = store.with_superblock(
            entry, replace(tablet.superblock, rowsets=(meta, *others)), entry.timestamp
        )
        if named is None:
            (tablet.folder / made.superblock.name).unlink()
        version = newest.with_entry(made).successor(Origin("test", entry.timestamp))
        with pytest.raises(RemovedFilesError, match=r"does not exist: a purge.*call again"):
            store.update(lambda _, version=version: version, newest)
        assert store.newest() is newest


def test_a_missing_file_of_the_newest_version_is_no_removal(core: CoreTables):
    """It is damage: the operation does not begin again, and its error names the file."""
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
