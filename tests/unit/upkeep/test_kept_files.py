"""Kept files: those of all versions that are there, each superblock read once."""

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import kudulite
from kudulite.client.table import Table
from kudulite.errors import StorageError
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.names import kind_of, segment_of, version_name, version_of
from kudulite.table.table_store import TableStore
from kudulite.tablet.superblock import read_superblock
from kudulite.upkeep.garbage_collection import collect_garbage
from kudulite.upkeep.kept_files import KeptFiles
from tests.support.tables.core_tables import CoreTables, environment, files_below, group_rows_of
from tests.support.tiers import tiered

HOUR = 3600.0
ROWS = 24


def new_table(core: CoreTables) -> Table:
    """A table of two tablets with a rowset each, all in one version."""
    columns = [kudulite.column("k", kudulite.int32), kudulite.column("v", kudulite.int32)]
    table = core.client().create_table(
        "t", kudulite.schema(columns, "k"), hash_partitions=[(["k"], 2)]
    )
    upsert(table, range(ROWS), 0)
    return table


def upsert(table: Table, keys, value: int) -> None:
    """Write rows of one value."""
    table.upsert([{"k": k, "v": value} for k in keys])


def fresh(table: Table) -> TableStore:
    """A store of a process that has seen nothing."""
    return TableStore(table.path, environment())


def is_superblock(name: str) -> bool:
    """Whether a file of this name is one."""
    return kind_of(name) == "superblock"


class Reads:
    """How often each file of a kind was read, by its name."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, is_counted: Callable[[str], object]
    ) -> None:
        self.counts = Counter[str]()
        read = LocalStorage.read

        def counted(storage: LocalStorage, path: Path) -> bytes:
            if is_counted(path.name):
                self.counts[path.name] += 1
            return read(storage, path)

        monkeypatch.setattr(LocalStorage, "read", counted)

    def take(self) -> Counter[str]:
        """The reads since the last call."""
        found = Counter(self.counts)
        self.counts.clear()
        return found


def superblocks(table: Table) -> set[str]:
    """The names of all superblocks on disk."""
    return {path.name for path in files_below(table.path / "tablet") if is_superblock(path.name)}


def test_a_superblock_is_read_once(core: CoreTables, monkeypatch: pytest.MonkeyPatch):
    """By the first collection of a process; the next ones read those that are new. Bases, too."""
    with group_rows_of(64):
        table = new_table(core)
        for value in range(10):
            upsert(table, range(ROWS), value)
        store, reads = fresh(table), Reads(monkeypatch, is_superblock)
        collect_garbage(store, HOUR)
        assert reads.take() == dict.fromkeys(superblocks(table), 1)
        collect_garbage(store, HOUR)
        assert reads.take() == {}
        before = superblocks(table)
        upsert(table, range(ROWS), 10)
        upsert(table, range(ROWS), 11)
        newest = {entry.superblock.name for entry in table._store.newest().tablets}
        reads.take()
        collect_garbage(store, HOUR)
        # Those that were the newest ones before were open, and are read as earlier ones.
        assert reads.take() == dict.fromkeys(
            newest_before(table, 2) | superblocks(table) - before, 1
        )
        assert newest <= superblocks(table)
        collect_garbage(store, 0)
        assert reads.take() == {}
        assert superblocks(table) >= newest


def newest_before(table: Table, count: int) -> set[str]:
    """The names of the superblocks of so many versions before the newest one."""
    manifest = table._store.chain.at(table.version - count)
    return {entry.superblock.name for entry in manifest.tablets}


def test_versions_of_this_process_are_not_read(core: CoreTables, monkeypatch: pytest.MonkeyPatch):
    """They are in the block cache; another process reads each once."""
    table = new_table(core)
    for value in range(3):
        upsert(table, [1], value)
    reads = Reads(monkeypatch, version_of)
    KeptFiles(table._store)
    assert reads.take() == {}
    store = fresh(table)
    for expected in (dict.fromkeys(map(version_name, range(1, 6)), 1), {}):
        KeptFiles(store)
        assert reads.take() == expected


def test_a_superblock_that_another_collection_has_removed_is_not_missed(core: CoreTables):
    """Nor is the newest one that was; one that is missing all the same is an error."""
    table = new_table(core)
    for value in range(3):
        upsert(table, range(ROWS), value)
    slow, tablet_id = fresh(table), table._store.newest().tablets[0].id
    kept = KeptFiles(slow)
    upsert(table, range(ROWS), 3)
    collect_garbage(fresh(table), 0)
    folder = slow.tablet_folder(tablet_id)
    found = LocalStorage().names_below(folder)
    assert not any(kept.of_tablet(tablet_id).others(found).values())
    kept = KeptFiles(fresh(table))
    (superblock,) = folder.glob("superblock-*")
    content = superblock.read_bytes()
    superblock.unlink()
    with pytest.raises(StorageError, match=superblock.name):
        kept.of_tablet(tablet_id)
    superblock.write_bytes(content)


def test_versions_that_another_collection_has_removed_are_forgotten(core: CoreTables):
    """Read or not. A stray file of such a number does not count."""
    table = new_table(core)
    upsert(table, range(ROWS), 1)
    manifests, slow = table.path / "manifest", fresh(table)
    KeptFiles(slow)
    upsert(table, range(ROWS), 2)
    upsert(table, range(ROWS), 3)
    KeptFiles(slow)
    age_versions(table, 2)
    assert collect_garbage(fresh(table), HOUR).version_count == 1
    (manifests / version_name(1)).write_bytes((manifests / version_name(2)).read_bytes())
    kept = KeptFiles(slow)
    (manifests / version_name(1)).unlink()
    for entry in slow.newest().tablets:
        names = kept.of_tablet(entry.id).names[slow.tablet_folder(entry.id)]
        found = {name for name in names if is_superblock(name)}
        assert found == {superblock_of(table, version, entry.id) for version in (2, 3, 4, 5)}


def superblock_of(table: Table, version: int, tablet_id: str) -> str:
    """The name of a tablet's superblock in a version."""
    entry = table._store.chain.at(version).readable_entry(tablet_id)
    assert entry is not None
    return entry.superblock.name


def age_versions(table: Table, count: int) -> None:
    """Make the oldest versions old. The last one of them stays, because its successor is young."""
    when = time.time() - 2 * HOUR
    for number in table._store.chain.numbers()[:count]:
        os.utime(table.path / "manifest" / version_name(number), (when, when))


def test_files_go_with_the_last_version_that_has_them(core: CoreTables):
    """Version by version, when all of them were read: data, superblocks, and segments of the log.

    A compaction was the last step, so that no file of an earlier version is of the newest one.
    """
    with group_rows_of(64):
        table = new_table(core)
        for value in range(5):
            session = kudulite.Session()
            session.apply(table.new_upsert({"k": 0, "v": value}))
            session.flush()
            table.flush()
            upsert(table, range(ROWS), value)
        table.compact()
        store, removed = fresh(table), []
        assert collect_garbage(store, HOUR).file_count == 0
        while len(store.chain.numbers()) > 1:
            age_versions(table, 2)
            removed.append(collect(store, table))
        assert min(removed) > 0


def files_of_tablets(table: Table) -> set[Path]:
    """All files of tablets but for locks."""
    return {path for path in files_below(table.path / "tablet") if not path.name.endswith("lock")}


def test_what_is_known_of_versions_that_were_all_removed_is_nothing(core: CoreTables):
    """Others have published since, and have removed the newest one that this process had seen."""
    table = new_table(core)
    slow = fresh(table)
    collect_garbage(slow, HOUR)
    for value in range(3):
        upsert(table, range(ROWS), value)
    age_versions(table, 4)
    collect_garbage(fresh(table), HOUR)
    assert table._store.chain.numbers()[0] > 2
    upsert(table, range(ROWS), 3)
    collect(slow, table)


def test_versions_that_are_not_followed_by_the_newest_one_do_not_count(core: CoreTables):
    """A table was deleted, and another one was created in its folder: all is read again."""
    client = core.client()
    table = new_table(core)
    environment = table._store.environment
    for value in range(3):
        upsert(table, range(ROWS), value)
    collect_garbage(table._store, HOUR)
    client.delete_table("t")
    table = new_table(core)
    for value in range(5):
        upsert(table, range(ROWS), value)
    collect(TableStore(table.path, environment), table)


def collect(store: TableStore, table: Table) -> int:
    """Collect garbage; returns how many files that was. Those that are needed are left, no more."""
    before = files_of_tablets(table)
    removed = collect_garbage(store, HOUR).file_count
    assert files_of_tablets(table) == needed_files(table, before)
    return removed


def needed_files(table: Table, found: set[Path]) -> set[Path]:
    """Those of the files that were found that any version needs, but for locks; read afresh."""
    store, needed = fresh(table), set[Path]()
    log_starts: dict[Path, int] = {}
    for number in store.chain.numbers():
        for entry in store.chain.at(number).readable_tablets:
            folder = store.tablet_folder(entry.id)
            superblock = read_superblock(store.storage, folder, entry.superblock, store.cache)
            refs = [entry.superblock, *superblock.base_refs, *superblock.tablet_file_refs]
            needed |= {folder / ref.name for ref in refs}
            for meta in superblock.rowsets:
                needed |= {folder / "rowset" / meta.id / name for name in meta.file_names}
            start = superblock.wal_start.segment
            log_starts[folder / "wal"] = min(start, log_starts.get(folder / "wal", start))
    for path in found:
        segment = segment_of(path.name)
        if segment is not None and segment >= log_starts[path.parent]:
            needed.add(path)
    return needed


class Random:
    """Random steps of two processes that remember, and of one that does not, on one table."""

    def __init__(self, core: CoreTables, seed: int) -> None:
        self.random = random.Random(seed)
        self.tables = [new_table(core), *(core.client().table("t") for _ in range(2))]

    def step(self) -> None:
        """One of a few operations, by one of the processes."""
        table, choose = self.random.choice(self.tables), self.random.random()
        keys = self.random.sample(range(2 * ROWS), self.random.randint(1, ROWS))
        if choose < 0.35:
            upsert(table, keys, self.random.randint(0, 99))
        elif choose < 0.45:
            table.delete_ignore([{"k": k} for k in keys])
        elif choose < 0.55:
            session = kudulite.Session()
            session.apply(table.new_upsert({"k": keys[0], "v": 1}))
            session.flush()
            table.flush()
        elif choose < 0.6:
            table.truncate()
        elif choose < 0.7:
            table.compact()
        elif choose < 0.75:
            table._store.environment.cache.clear()
        else:
            self._collect(fresh(table) if choose < 0.8 else table._store)

    def _collect(self, store: TableStore) -> None:
        """Remove some versions; then the files are those that the others need, no more or less."""
        age_versions(self.tables[0], self.random.randint(0, len(store.chain.numbers())))
        collect(store, self.tables[0])


@tiered("seed", range(12))
def test_a_collection_leaves_what_the_versions_need(core: CoreTables, seed: int):
    """Whatever it remembers of earlier ones, and whatever others have removed since."""
    with group_rows_of(64):
        machine = Random(core, seed)
        for _ in range(60):
            machine.step()
