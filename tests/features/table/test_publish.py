"""Publishing the next version: put-if-absent, tried again after each lost race."""

import dataclasses
import errno
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import kudulite
from kudulite.basefile.block_cache import BlockCache
from kudulite.chain import version_chain
from kudulite.chain.manifest import Manifest, Origin
from kudulite.chain.version_chain import VersionChain
from kudulite.client.table import Table
from kudulite.errors import ConflictError, CorruptionError, StorageError
from kudulite.storage.held_file import HeldFile
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.names import version_name
from kudulite.table.table_store import TableStore
from kudulite.tablet import superblock
from kudulite.tablet.superblock import read_superblock
from kudulite.upkeep.garbage_collection import collect_garbage
from tests.support.doubles.raced_publication import before_publication
from tests.support.tables.core_tables import CoreTables, environment

SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int32())])


@pytest.fixture
def store(core: CoreTables) -> TableStore:
    """A table without rows, version 1."""
    table = core.client().create_table("t", SCHEMA, primary_key="k")
    return TableStore(table.path, environment())


def named(commit_id: str):
    """Build the next version under a name."""
    return lambda m: m.successor(Origin("test", 1), commit_id)


def other(store: TableStore, commit_id: str) -> Manifest | None:
    """Publish a version as another process would."""
    elsewhere = TableStore(store.folder, environment())
    return elsewhere.chain.update(named(commit_id), elsewhere.newest())


def test_a_version_is_published_after_the_one_it_was_built_on(store):
    """And is what everybody finds."""
    made = store.chain.update(named("mine"), store.newest())
    assert (made.version, made.commit_id) == (2, "mine")
    assert TableStore(store.folder, environment()).newest() == made


def test_a_lost_race_is_built_again_on_the_winner(store):
    """The versions that others published meanwhile stay, below the new one."""
    newest = store.newest()
    for name in ("a", "b"):
        other(store, name)
    made = store.chain.update(named("mine"), newest)
    assert [store.chain.at(v).commit_id for v in (2, 3, 4)] == ["a", "b", "mine"]
    assert made == store.newest()


def test_who_builds_may_give_up_after_a_lost_race(store):
    """Nothing is published then."""
    newest = store.newest()
    other(store, "a")
    seen = []

    def build(manifest: Manifest) -> Manifest | None:
        seen.append(manifest.version)
        return named("mine")(manifest) if manifest.version == 1 else None

    assert store.chain.update(build, newest) is None
    assert (seen, store.newest().version) == ([1, 2], 2)


def test_a_version_that_may_be_lost_again_is_an_error_that_says_so(store, monkeypatch):
    """Its name could not be made durable, but everybody sees it."""

    def fails(self: LocalStorage, folders: Iterable[Path]) -> None:
        raise StorageError(errno.EIO, f"cannot fsync folder {folders}: Input/output error")

    newest = store.newest()
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "sync", fails)
        with pytest.raises(StorageError, match="version 2 can be read all the same") as caught:
            store.chain.update(named("mine"), newest)
    assert caught.value.errno == errno.EIO
    assert TableStore(store.folder, environment()).newest().commit_id == "mine"


def test_a_table_that_was_made_again_takes_no_version_of_the_old_one(core, store):
    """Its tablets are others, though its number is the same."""
    newest = store.newest()
    client = core.client()
    client.delete_table("t")
    made = client.create_table("t", SCHEMA, primary_key="k")
    made.insert([{"k": 1, "v": 1}])
    with pytest.raises(ConflictError, match="deleted and created again"):
        store.chain.update(named("mine"), newest)
    assert made.version == 2


def test_a_name_that_is_taken_without_a_newer_version_is_damage(
    store, monkeypatch: pytest.MonkeyPatch
):
    """The lock is not held for long, and the error names the file."""
    monkeypatch.setattr(version_chain, "UNSEEN_ATTEMPTS_MAX", 3)
    monkeypatch.setattr(store.environment.storage, "put_if_absent", lambda path, content: False)
    built = []

    def build(manifest: Manifest) -> Manifest:
        built.append(manifest.version)
        return named("mine")(manifest)

    with pytest.raises(CorruptionError, match=rf"{version_name(2)} cannot be created"):
        store.chain.update(build, store.newest())
    assert built == [1] * 4


def test_races_that_are_lost_for_ever_end_in_an_error(store, monkeypatch: pytest.MonkeyPatch):
    """Something else is wrong then, and the message says how often it was tried."""
    monkeypatch.setattr(version_chain, "ATTEMPTS_MAX", 3)

    def build(manifest: Manifest) -> Manifest:
        other(store, "faster")
        return named("mine")(manifest)

    with pytest.raises(ConflictError, match="3 other versions were published meanwhile"):
        store.chain.update(build, store.newest())
    assert {store.chain.at(v).commit_id for v in (2, 3, 4)} == {"faster"}


# -- numbers of versions that were removed


HALVES = {"columns": ["k"], "bounds": [[0, 100_000], [100_000, 200_000]]}
WIDE = pa.schema([pa.field("k", pa.int64(), nullable=False)])


def rows(start: int) -> pa.Table:
    """2,000 rows from a key on."""
    return pa.table({"k": range(start, start + 2000)}, schema=WIDE)


@pytest.fixture
def halves(core: CoreTables) -> Table:
    """A table of two ranges; the first has two rowsets, so there is something to compact."""
    table = core.client().create_table("h", WIDE, primary_key="k", range_partitions=HALVES)
    for start in (0, 2000, 100_000):
        table.upsert(rows(start))
    return table


def three_writes(table: Table) -> Callable[[], None]:
    """Begin three writes to the second range as another process does; return how to commit them."""
    other = kudulite.open_table(table.path)
    writes = [other.new_bulk_write("upsert") for _ in range(3)]
    staged = [
        (write, write.stage([rows(start)]))
        for write, start in zip(writes, (110_000, 120_000, 130_000), strict=True)
    ]

    def commit() -> None:
        for write, part in staged:
            write.commit([part])

    return commit


def three_commits(table: Table) -> None:
    """Commit to the second range as another process does."""
    three_writes(table)()


def remove_superseded(table: Table) -> None:
    """Remove all superseded versions and files of the second range, as a purge does."""
    other = TableStore(table.path, environment())
    numbers = other.chain.numbers()
    for number in numbers[:-1]:
        (table.path / "manifest" / version_name(number)).unlink()


@pytest.mark.parametrize("is_stray_below", [False, True])
def test_a_removed_number_is_not_taken_again(halves, monkeypatch, is_stray_below):
    """A publication that stood still while its number was created and removed hides no version.

    Nor does it if another one that stood still has just taken the number below. The lock of the
    table keeps publishers apart, unless a network file system has given it to two.
    """
    store = TableStore(halves.path, environment())
    before = store.newest()

    def others() -> None:
        for name in ("a", "b", "c"):
            other(store, name)
        remove_superseded(halves)
        if is_stray_below:
            path = halves.path / "manifest" / version_name(before.version)
            path.write_bytes(manifest_with(before, commit_id="stray").encode())

    before_publication(monkeypatch, others)
    store.chain.update(named("mine"), before)
    newest = TableStore(halves.path, environment()).newest()
    assert (newest.version, newest.commit_id) == (before.version + 4, "mine")
    assert newest.previous_crc32 == store.chain.at(before.version + 3).file_crc32
    assert halves.scan().count() == 6000
    assert halves.check().problems == ()


def test_a_version_whose_predecessor_is_removed_at_once_is_published(halves, monkeypatch):
    """A purge may come between the creation of the file and the look at the one before."""
    original = VersionChain._is_published

    def removed_first(chain: VersionChain, manifest: Manifest) -> bool:
        remove_superseded(halves)
        return original(chain, manifest)

    monkeypatch.setattr(VersionChain, "_is_published", removed_first)
    halves.upsert(rows(140_000))
    assert TableStore(halves.path, environment()).chain.numbers() == [halves.version]
    assert halves.scan().count() == 8000


def test_a_version_that_was_superseded_at_once_is_published(halves, monkeypatch):
    """Its successor names it, although the version before is gone."""
    original = VersionChain._is_published

    def superseded_first(chain: VersionChain, manifest: Manifest) -> bool:
        monkeypatch.setattr(VersionChain, "_is_published", original)
        other(TableStore(halves.path, environment()), "next")
        (halves.path / "manifest" / version_name(manifest.version - 1)).unlink()
        return original(chain, manifest)

    monkeypatch.setattr(VersionChain, "_is_published", superseded_first)
    version = halves.version
    halves.upsert(rows(4000))
    assert halves.version == version + 2
    assert halves.scan().count() == 8000


def test_a_stray_file_is_no_version(halves):
    """A publication that was killed before it took its file back leaves one behind."""
    stale = TableStore(halves.path, environment())
    before = stale.newest()
    reader = TableStore(halves.path, environment())
    reader.newest()
    three_commits(halves)
    remove_superseded(halves)
    stray = halves.path / "manifest" / version_name(before.version + 1)
    stray.write_bytes(before.successor(Origin("test", 1), "stray").encode())
    for store in (reader, stale, TableStore(halves.path, environment())):
        assert store.newest().version == before.version + 3
    assert kudulite.open_table(halves.path).check().problems == ()
    collect_garbage(TableStore(halves.path, environment()), 0)
    assert not stray.exists()
    assert kudulite.open_table(halves.path).scan().count() == 12_000


def test_a_write_whose_version_was_removed_is_refused(halves):
    """Another file under its number is not taken for it either; once it is over, that is said."""
    write = halves.new_bulk_write("upsert")
    three_commits(halves)
    first = halves.path / "manifest" / version_name(write._state.base_version)
    first.unlink()
    with pytest.raises(StorageError, match=f"{first.name}: it does not exist"):
        write.stage([rows(0)])
    path = halves.path / "manifest" / version_name(write._state.base_version)
    store = TableStore(halves.path, environment())
    path.write_bytes(replace_version(store.newest(), write._state.base_version))
    with pytest.raises(CorruptionError, match=r"not the version that write \w+ has read"):
        write.stage([rows(0)])
    shutil.rmtree(halves.path / "writes")
    with pytest.raises(ConflictError, match="was aborted, or removed"):
        write.stage([rows(0)])
    path.unlink()
    with pytest.raises(ConflictError, match="was aborted, or removed"):
        write.stage([rows(0)])


def replace_version(manifest: Manifest, version: int) -> bytes:
    """The content of a file that says it is another version."""
    return manifest_with(manifest, version=version).encode()


def manifest_with(manifest: Manifest, **changes) -> Manifest:
    """The version with some fields changed."""
    return dataclasses.replace(manifest, **changes)


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
def test_a_write_begins_on_a_version_that_stays(halves, monkeypatch, is_before: bool):
    """Whatever others publish and remove before its record is there, or right after that."""
    original, calls = HeldFile.__init__, []

    def raced(self: HeldFile, *arguments) -> None:
        if is_before:
            others()
        original(self, *arguments)
        if not is_before:
            others()

    def others() -> None:
        monkeypatch.setattr(HeldFile, "__init__", original)
        three_commits(halves)
        collect_garbage(TableStore(halves.path, environment()), 0)
        calls.append(None)

    store = TableStore(halves.path, environment())
    store.newest()
    monkeypatch.setattr(HeldFile, "__init__", raced)
    write = kudulite.open_table(halves.path).new_bulk_write("upsert")
    assert calls
    collect_garbage(store, 0)
    write.commit([write.stage([rows(0)])])
    assert halves.scan().count() == 12_000


# -- files that are not what their names say


def publish_three(root: Path) -> Path:
    """A table of three writes that were flushed; its manifest folder."""
    table = kudulite.connect(root, background_maintenance=False).create_table(
        "m", SCHEMA, primary_key="k"
    )
    for key in range(3):
        write = table.new_bulk_write("insert")
        batch = pa.table({"k": [key], "v": [key]}, schema=SCHEMA)
        write.commit([write.stage([batch])])
        table.flush()
    return table.path / "manifest"


def test_the_bytes_of_another_version_are_found_out(tmp_path):
    """An older copy that was put back is refused by reads, by the check and by writes, at once."""
    folder = publish_three(tmp_path)
    names = sorted(folder.glob("*.json"))
    shutil.copy(names[-3], names[-1])
    with pytest.raises(CorruptionError, match="holds version 2, expected version 4"):
        kudulite.open_table(folder.parent)
    shutil.copy(names[-2], names[-1].with_name("kept"))
    table = kudulite.connect(tmp_path, background_maintenance=False).table("m")
    for use in (
        table.check,
        lambda: table.scan().to_arrow(),
        lambda: table.upsert([{"k": 9, "v": 9}]),
    ):
        with pytest.raises(CorruptionError, match="holds version 2, expected version 4"):
            use()


def test_a_version_of_a_mixed_up_folder_is_found_out(tmp_path):
    """Versions of two copies of a table do not follow each other."""
    folder = publish_three(tmp_path)
    copy = folder.parent.with_name("copy")
    shutil.copytree(folder.parent, copy)
    for path in (copy, folder.parent):
        kudulite.open_table(path).insert([{"k": 5, "v": len(str(path))}])
        kudulite.open_table(path).flush()
        kudulite.open_table(path).insert([{"k": 6, "v": 6}])
        kudulite.open_table(path).flush()
    newest = max((copy / "manifest").glob("*.json")).name
    shutil.copy(folder / newest, copy / "manifest" / newest)
    with pytest.raises(CorruptionError, match="follows a version 5 with CRC"):
        kudulite.open_table(copy)


def test_a_newest_version_that_is_missing_is_found_out(tmp_path):
    """By the hint, and by a process that has seen it."""
    folder = publish_three(tmp_path)
    seen = kudulite.connect(tmp_path, background_maintenance=False).table("m")
    assert seen.version == 4
    newest = max(folder.glob("*.json"))
    newest.rename(folder.parent / "elsewhere")
    for use in (
        lambda: kudulite.open_table(folder.parent),
        seen.check,
        lambda: seen.scan().to_arrow(),
    ):
        with pytest.raises(CorruptionError, match=f"version 4 was published: {newest}"):
            use()
    (folder / "hint").unlink()
    with pytest.raises(CorruptionError, match="the newest version is 3, but version 4"):
        seen.upsert([{"k": 9, "v": 9}])
    (folder.parent / "elsewhere").rename(newest)
    assert seen.scan().count() == 3


def test_the_check_follows_the_versions(tmp_path):
    """An older version that is not the one its successor names is a problem."""
    folder = publish_three(tmp_path)
    table = kudulite.connect(tmp_path, background_maintenance=False).table("m")
    assert table.check().problems == ()
    path = folder / version_name(2)
    store = TableStore(table.path, environment())
    path.write_bytes(manifest_with(store.chain.at(2), commit_id="other").encode())
    (problem,) = table.check().problems
    assert "follows a version 2 with CRC" in problem


def test_a_pinned_version_is_read_again_unless_its_file_is_the_one_seen(store):
    """Equal to the version that the file holds; a removed or changed file is noticed."""
    seen = store.newest()
    path = store.folder / "manifest" / version_name(seen.version)
    content, crc32 = path.read_bytes(), seen.file_crc32
    assert store.chain.pinned(seen.version, crc32) is seen
    elsewhere = TableStore(store.folder, environment())
    assert elsewhere.chain.pinned(seen.version, crc32) == seen
    changed = dataclasses.replace(seen, history_seconds=7)
    path.write_bytes(changed.encode())
    assert store.chain.pinned(seen.version, crc32) == changed
    path.unlink()
    with pytest.raises(StorageError):
        store.chain.pinned(seen.version, crc32)
    path.write_bytes(content)
    other(store, "next")
    assert store.newest().version == seen.version + 1
    assert store.chain.pinned(seen.version, crc32) == seen


def test_a_writer_keeps_the_tablet_as_a_reader_finds_it_on_disk(core, monkeypatch):
    """Rowsets, base and file of each superblock, after each kind of operation."""
    monkeypatch.setattr(superblock, "BASE_BYTES_MIN", 0)
    client = core.client()
    table = client.create_table("t", SCHEMA, primary_key="k", hash_partitions=[(["k"], 2)])
    session = client.new_session()
    depths = set()

    def by_row() -> None:
        session.apply(table.new_upsert({"k": 5, "v": 0}))
        session.flush()
        table.flush()

    def insert(first: int) -> None:
        table.insert([{"k": k, "v": 0} for k in range(first, 100, 30)])

    steps = [partial(insert, first) for first in range(20)]
    steps += [lambda: table.update([{"k": 3, "v": 1}, {"k": 4, "v": 1}]), by_row, table.compact]
    for step in (*steps, lambda: table.delete([{"k": 3}]), lambda: table.maintain(0, 0)):
        step()
        manifest = table._store.newest()
        for entry in manifest.tablets:
            kept = table._store.cache.get(table._store._cache_key(entry.superblock)).superblock
            folder = table._store.tablet_folder(entry.id)
            read = read_superblock(
                LocalStorage(), folder, entry.superblock, BlockCache(LocalStorage(), 1 << 20)
            )
            assert (kept, kept.file, kept.base_refs) == (read, read.file, read.base_refs)
            depths.add(len(kept.base_refs))
    assert max(depths) >= 2
