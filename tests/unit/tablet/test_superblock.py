"""Superblocks with a base: they read as whole ones, stay small, and keep nothing removed."""

import itertools
import json
import math
import random
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

import kudulite
from kudulite.basefile.block_cache import BlockCache
from kudulite.client.table import Table
from kudulite.delta.delta_file import DeltaFileMeta
from kudulite.errors import CorruptionError, StorageError
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.storage import FileRef
from kudulite.tablet import superblock
from kudulite.tablet.superblock import Superblock, read_superblock
from kudulite.tablet.tombstones import TombstoneFileMeta
from kudulite.upkeep.garbage_collection import collect_garbage
from kudulite.wal.segment import LogPosition
from tests.support.tables.core_tables import CoreTables, expect_clean, files_below, stored
from tests.support.tiers import tiered


class Superblocks:
    """The superblock files of one tablet, each written in the place of the one before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = BlockCache(LocalStorage(), 1 << 24)
        self.newest: Superblock | None = None
        self.lengths: list[int] = []

    def write(self, superblock: Superblock) -> Superblock:
        """Write the next one; return it as it is read, now and then by one that knows nothing."""
        name = f"superblock-{len(self.lengths)}.json"
        content, _ = superblock.encode(self.newest)
        (self.folder / name).write_bytes(content)
        ref = FileRef(name, len(content), zlib.crc32(content))
        self.lengths.append(len(content))
        self.newest = self.read(ref, self.cache)
        assert self.newest == superblock
        if len(self.lengths) % 16 == 0:
            assert superblock == self.read(ref, BlockCache(LocalStorage(), 1 << 24))
        return self.newest

    def read(self, ref: FileRef, cache: BlockCache) -> Superblock:
        """Read one."""
        return read_superblock(LocalStorage(), self.folder, ref, cache)


@pytest.fixture
def files(tmp_path: Path) -> Superblocks:
    """No superblocks yet."""
    (tmp_path / "t").mkdir()
    return Superblocks(tmp_path / "t")


def ref(name: str) -> FileRef:
    """A reference to a file."""
    return FileRef(name, 1000, 0xFFFF_FFFF)


def rowset(number: int) -> RowSetMeta:
    """A rowset, all of whose names end in its number."""
    key = f"key-{number}".encode()
    return RowSetMeta(f"r-{number}", 9, key, key, (), ref(f"key-{number}"), ref(f"bloom-{number}"))


def redo(number: int) -> DeltaFileMeta:
    """A delta file."""
    return DeltaFileMeta(ref(f"redo-{number}"), number, number, number, 3, 1, 0, {4: 2})


def changed(rng: random.Random, block: Superblock, number: int) -> Superblock:
    """One commit, memory flush or compaction later."""
    rowsets = list(block.rowsets)
    what = rng.choice(
        ["add"] * 8 + ["redo"] * 4 + ["undo", "remove", "merge", "end", "log", "tomb"]
    )
    place = rng.randrange(len(rowsets)) if rowsets else 0
    if what == "add" or not rowsets:
        rowsets.insert(rng.choice([0, len(rowsets)]), rowset(number))
    elif what == "redo":
        for at in rng.sample(range(len(rowsets)), rng.randint(1, min(3, len(rowsets)))):
            rowsets[at] = rowsets[at].with_redo((redo(number),))
    elif what == "undo":
        rowsets[place] = replace(rowsets[place], undo=(redo(number),), redo=())
    elif what == "remove":
        del rowsets[place]
    elif what == "merge":
        rowsets[place : place + rng.randint(1, 6)] = [rowset(number)]
    elif what == "end":
        rowsets = [replace(m, delete_timestamp=m.delete_timestamp or number) for m in rowsets]
    elif what == "log":
        return replace(block, log_start=LogPosition(number, 32))
    else:
        tombstones = (TombstoneFileMeta(ref(f"tombstone-{number}"), 4, 2, 5, 6),)
        return replace(block, tombstones=tombstones)
    return replace(block, rowsets=tuple(rowsets))


@tiered("seed", range(20))
def test_a_superblock_with_a_base_reads_as_a_whole_one(files, seed, monkeypatch):
    """Random histories; a base has nothing that the superblock has not, and is twice as long."""
    monkeypatch.setattr(superblock, "BASE_BYTES_MIN", 0)
    rng = random.Random(seed)
    newest = files.write(Superblock("t"))
    depths = set()
    for number in range(100):
        newest = files.write(changed(rng, newest, number))
        refs = newest.base_refs
        lengths = [files.lengths[-1], *(each.length for each in refs)]
        assert all(2 * short < long for short, long in itertools.pairwise(lengths))
        ids = {meta.id for meta in newest.rowsets}
        base = newest.base
        while base is not None:
            assert {meta.id for meta in base.rowsets} <= ids
            base = base.base
        depths.add(len(refs))
    assert max(depths) >= 2, seed


@pytest.mark.parametrize("kind", ["rows", "updates", "ends"])
def test_many_commits_take_little_more_than_their_own_entries(files, kind, monkeypatch):
    """n log n instead of n²: new rowsets, REDO of one rowset, and rowsets ended by overwrites."""
    monkeypatch.setattr(superblock, "BASE_BYTES_MIN", 0)
    newest = files.write(Superblock("t", (rowset(0),)))
    count = 200
    for number in range(1, count):
        if kind == "updates":
            rowsets = (newest.rowsets[0].with_redo((redo(number),)),)
        elif kind == "ends":
            *ended, last = newest.rowsets
            rowsets = (*ended, replace(last, delete_timestamp=number), rowset(number))
        else:
            rowsets = (*newest.rowsets, rowset(number))
        newest = files.write(replace(newest, rowsets=rowsets))
    whole = len(newest.encode()[0])
    assert sum(files.lengths) < whole * math.log2(count)
    assert len(newest.base_refs) <= math.log2(count)


def test_a_small_superblock_is_written_whole(files):
    """Older software reads it."""
    newest = files.write(Superblock("t", (rowset(0),)))
    for number in range(1, 20):
        newest = files.write(replace(newest, rowsets=(*newest.rowsets, rowset(number))))
        assert newest.base is None
    assert files.lengths[-1] < superblock.BASE_BYTES_MIN


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"rowsets": [[0, 81]]}, "rowsets 0 to 81 of a base with 80"),
        ({"rowsets": [[-1, 2]]}, "rowsets -1 to 2"),
        ({"rowsets": [[2, 1]]}, "rowsets 2 to 1"),
        ({"rowsets": [[1]]}, "not a superblock"),
        ({"rowsets": [{"of": 80, "redo": []}]}, "rowset 80 of a base with 80"),
        ({"rowsets": [{"of": -1, "redo": []}]}, "rowset -1 of a base"),
        ({"base": {"name": "../x", "length": 99999, "crc32": 0}}, "file name '../x'"),
        ({"base": {"name": "x", "length": 10, "crc32": 0}}, "base x of 10 bytes, expected more"),
    ],
)
def test_a_damaged_superblock_with_a_base_is_corruption(files, damage, message):
    """Whatever it says of its base."""
    newest = files.write(Superblock("t", tuple(map(rowset, range(80)))))
    files.write(replace(newest, rowsets=(*newest.rowsets, rowset(80))))
    path = files.folder / "superblock-1.json"
    content = json.dumps({**json.loads(path.read_bytes()), **damage}).encode()
    with pytest.raises(CorruptionError, match=message):
        Superblock.decode(content, str(path), lambda base: newest)


def test_a_base_that_is_missing_or_changed_is_an_error(files):
    """The error names the file of the base."""
    newest = files.write(Superblock("t", tuple(map(rowset, range(80)))))
    file = files.write(replace(newest, rowsets=(*newest.rowsets, rowset(80)))).file
    path = files.folder / "superblock-0.json"
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(StorageError, match=r"superblock-0\.json: it does not exist"):
        files.read(file, BlockCache(LocalStorage(), 0))
    path.write_bytes(content[:-1] + b" ")
    with pytest.raises(CorruptionError, match=r"superblock-0\.json: CRC"):
        files.read(file, BlockCache(LocalStorage(), 0))


def many_commits(core: CoreTables, count: int) -> Table:
    """A table of one tablet and `count` rowsets."""
    columns = [kudulite.column("k", kudulite.string), kudulite.column("v", kudulite.int32)]
    table = core.client().create_table("t", kudulite.schema(columns, "k"))
    for number in range(count):
        table.insert([{"k": f"key-{number:03}", "v": number}])
    return table


def test_a_collection_keeps_the_bases_of_the_newest_version(core, monkeypatch):
    """And removes all other superblocks; a process that knows nothing reads the table after it."""
    monkeypatch.setattr(superblock, "BASE_BYTES_MIN", 0)
    table = many_commits(core, 12)
    before = stored(table)
    newest = table._store.tablet(table._store.newest().tablets[0]).superblock
    assert newest.base_refs
    collect_garbage(table._store, 0.0, 0.0)
    expect_clean(core.root / "root")
    again = core.client().table("t")
    assert stored(again) == before
    assert again.check().problems == ()


def test_a_check_reads_the_bases(core, monkeypatch):
    """From the disk, even if the process has them in its cache."""
    monkeypatch.setattr(superblock, "BASE_BYTES_MIN", 0)
    table = many_commits(core, 12)
    newest = table._store.tablet(table._store.newest().tablets[0]).superblock
    path = table._store.tablet_folder(newest.tablet_id) / newest.base_refs[-1].name
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b" ")
    assert any(path.name in problem for problem in table.check().problems)
    path.write_bytes(content)


def test_a_purge_leaves_no_key_in_a_base(core, monkeypatch):
    """Bounds of rowsets are keys, and stand in superblocks as hexadecimal digits."""
    monkeypatch.setattr(superblock, "BASE_BYTES_MIN", 0)
    table = many_commits(core, 12)
    key = b"key-001".hex().encode()

    def files_with_key() -> list[str]:
        found = files_below(table.path / "tablet")
        return [path.name for path in found if key in path.read_bytes()]

    assert files_with_key()
    table.purge([("key-001",)])
    assert not files_with_key()
    assert len(stored(table)) == 11
