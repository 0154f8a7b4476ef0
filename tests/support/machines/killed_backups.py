"""Backups, restores and copies that die before one of their durable steps, and are run again.

A reader of the set finds the backup whole or not at all, a reader of the directory the table whole
or not at all (with overwrite: the old one, the new one, or for a moment none). The next run ends
with what an undisturbed one leaves, and nothing else is left behind.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa

import kudulite
from kudulite.backups.backup_job import begin_backup
from kudulite.backups.backup_set import BackupSet
from kudulite.backups.restore_job import RestoreJob
from kudulite.client.client import Client
from kudulite.errors import TableExistsError
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.names import is_trash
from tests.support.doubles.base_storage import BaseStorage
from tests.support.doubles.killing_storage import KillingStorage, ran_to_its_end
from tests.support.tables.core_tables import altered, environment, files_below, stored

HOWS = ("exit", "error")


class World:
    """A folder with a table, a backup set, and a place to restore to."""

    def __init__(self, root: Path, storage: LocalStorage | None = None) -> None:
        self.root = root
        self.set = root / "set"
        self.place = root / "db" / "copy"
        self.environment = environment(storage)
        self.client = Client(root / "db", self.environment)

    def prepare(self) -> None:
        """A full backup of two ranges, and an increment after one of them was emptied."""
        bounds = [[0, 10], [10, 20]]
        schema = pa.schema([("k", pa.int32()), ("v", pa.string())])
        table = self.client.create_table(
            "t", schema, primary_key="k", range_partitions={"columns": ["k"], "bounds": bounds}
        )
        table.insert({"k": [1, 2, 3, 11, 12], "v": ["a", None, "c", "d", "e"]})
        kudulite.backup(table, self.set)
        table.update({"k": [1], "v": ["x"]})
        table.delete({"k": [3]})
        altered(self.client, "t", lambda a: a.drop_range_partition({"k": 10}, {"k": 20}))
        altered(self.client, "t", lambda a: a.add_range_partition({"k": 10}, {"k": 20}))
        altered(self.client, "t", lambda a: a.alter_column("v", rename_to="w"))
        table.insert({"k": [12], "w": ["new"]})

    def names(self) -> list[str]:
        """The files in the directory of tables, without the last entries of deleted ones.

        Objects that are files leave empty folders.
        """
        storage = self.environment.storage
        found = storage.entries(self.client.root)
        if BaseStorage is not LocalStorage:
            found = [path for path in found if storage.is_folder(path) and not is_trash(path.name)]
        return [path.name for path in found]

    def backup(self, full: bool) -> None:
        """Take one."""
        with begin_backup(self.client.table("t"), self.set, full=full) as job:
            for piece in job.pieces:
                piece.run()
            job.finish()

    def restore(self, overwrite: bool = False) -> None:
        """Restore the newest."""
        chain = BackupSet(self.set, self.environment.storage).chain()
        with RestoreJob(chain, self.place, self.environment, overwrite=overwrite) as job:
            for step in job.steps():
                step.commit([step.stage(index) for index in range(step.task_count)])
            job.finish()


def is_child(how: str) -> bool:
    """Whether a forked child dies: one whose parent has used a store cannot use any."""
    return how == "exit" and BaseStorage is LocalStorage


def killed_worlds(
    base: Path, work: Callable[[World], None], how: str, each: int, first: int
) -> Iterator[tuple[int, World]]:
    """Yield (steps, world) for the places to die in: `first`, and every `each` after it."""
    shutil.copytree(base, base.with_name("counted"))
    work(World(base.with_name("counted"), counting := KillingStorage()))
    for steps in range(first, counting.count, each):
        root = base.with_name(f"killed-{steps}")
        shutil.copytree(base, root)
        dying = KillingStorage(steps, exits=is_child(how))
        dead = World(root, dying)
        assert not ran_to_its_end(partial(work, dead), in_child=is_child(how)), steps
        yield steps, World(root)
        shutil.rmtree(root)


def kill_backups(folder: Path, how: str, *, full: bool, each: int = 1, first: int = 0) -> int:
    """Kill backups, and expect a whole one after the next run; returns how many were killed."""
    base = World(folder / "base")
    base.prepare()
    before = [backup.id for backup in kudulite.list_backups(base.set)]
    expected, count = stored(base.client.table("t")), 0
    for steps, world in killed_worlds(base.root, lambda w: w.backup(full), how, each, first):
        count += 1
        found = kudulite.list_backups(world.set)
        assert [backup.id for backup in found[: len(before)]] == before, steps
        if len(found) == len(before):
            world.backup(full)
            found = kudulite.list_backups(world.set)
        assert len(found) == len(before) + 1 and found[-1].is_full == full, steps
        assert stored(kudulite.restore(world.set, world.place)) == expected, steps
        # What a kill after the manifest left goes with the next backup.
        world.backup(False)
        names = {path.relative_to(world.set) for path in files_below(world.set)}
        listed = {
            Path(backup.id) / name
            for backup in kudulite.list_backups(world.set)
            for name in ["manifest.json", *(file.ref.name for file in backup.files)]
        }
        locks = {Path("lock")} if BaseStorage is LocalStorage else set()
        assert names == {*locks, *listed}, steps
    return count


def kill_restores(folder: Path, how: str, *, overwrite: bool, each: int = 1, first: int = 0) -> int:
    """Kill restores, and expect the table after the next run; returns how many were killed."""
    base = World(folder / "base")
    base.prepare()
    base.backup(False)
    expected, old, count = stored(base.client.table("t")), [(1, 1)], 0
    if overwrite:
        schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
        made = base.client.create_table("copy", schema, primary_key="k")
        made.insert({"k": [1], "v": [1]})
    whole = (old, expected) if overwrite else (expected,)
    for steps, world in killed_worlds(base.root, lambda w: w.restore(overwrite), how, each, first):
        count += 1
        if world.client.table_exists("copy"):
            assert stored(world.client.table("copy")) in whole, steps
        try:
            world.restore(overwrite)
        except TableExistsError:
            assert not overwrite and stored(world.client.table("copy")) == expected, steps
        table = kudulite.open_table(world.place)
        assert stored(table) == expected, steps
        table.check().raise_if_bad()
        world.client.create_table("other", table.arrow_schema, primary_key="k")  # removes trash
        assert world.names() == ["copy", "other", "t"], steps
        if BaseStorage is LocalStorage:  # elsewhere a dead process is known by its age
            assert not list((world.place / "writes").iterdir()), steps
    return count


def kill_copies(folder: Path, how: str, *, with_past: bool, each: int = 1, first: int = 0) -> int:
    """Kill copies, and expect the table after the next run; returns how many were killed."""
    base, count = World(folder / "base"), 0
    base.prepare()
    expected = stored(base.client.table("t"))

    def copy(world: World) -> None:
        world.client.table("t").copy_to(world.place, with_past=with_past)

    for steps, world in killed_worlds(base.root, copy, how, each, first):
        count += 1
        assert stored(world.client.table("t")) == expected, steps
        if not world.client.table_exists("copy"):
            copy(world)
        table = kudulite.open_table(world.place)
        assert stored(table) == expected, steps
        table.check().raise_if_bad()
        assert world.names() == ["copy", "t"], steps
    return count
