"""Tables of core tests, which are checked when the test ends, and their rows as tuples."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kudulite
from kudulite.basefile.block_cache import BlockCache
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.client.table_alterer import TableAlterer
from kudulite.model.hybrid_time import Clock
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.names import MAINTENANCE_LOCK_NAME, version_name
from kudulite.storage.storage import Storage
from kudulite.table import environment as environment_module
from kudulite.table.environment import Environment
from kudulite.table.table_store import TableStore
from kudulite.upkeep.garbage_collection import collect_garbage
from tests.support.doubles.base_storage import BaseStorage
from tests.support.doubles.planned_work import StillWork
from tests.support.oracle.table_model import sort_key

CACHE_BYTES = 32 << 20


class ManualClock(Clock):
    """A clock that a test moves by hand; `microseconds` since 1970."""

    def __init__(self, microseconds: int = 1_700_000_000_000_000) -> None:
        self.microseconds = microseconds

    def now(self) -> int:
        """The present as a HybridTime."""
        return self.microseconds << 12


if BaseStorage is not LocalStorage:
    # Tokens and writes that arrive from elsewhere open their tables with it.
    environment_module.LocalStorage = BaseStorage  # type: ignore[misc]


def environment(
    storage: Storage | None = None,
    clock: Clock | None = None,
    lock_timeout_seconds: float = 20.0,
    small_write_rows_max: int = 0,
    **options: Any,
) -> Environment:
    """An environment with a cache of its own: nothing is shared with other tests.

    Small Arrow batches are bulk writes like large ones unless a test says otherwise. The clock of
    background work stands still: nothing is flushed for its age while a test is slow.
    """
    options.setdefault("background", StillWork())
    storage = storage or BaseStorage()
    return Environment(
        storage,
        clock or Clock(),
        BlockCache(storage, CACHE_BYTES),
        lock_timeout_seconds,
        small_write_rows_max,
        **options,
    )


class CoreTables:
    """Clients of one test, over folders below `root`; `check_all` is called at its end."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def client(self, name: str = "root", **options: Any) -> Client:
        """A client whose environment no other test shares; a new one sees only the disk."""
        return Client(self.root / name, environment(**options))

    def check_all(self) -> int:
        """Check every table below the root; returns how many there were."""
        count = 0
        for manifest in sorted(self.root.rglob("manifest")):
            store = TableStore(manifest.parent, environment())
            if store.chain.exists():
                Table(store).check().raise_if_bad()
                count += 1
        return count


@contextlib.contextmanager
def group_rows_of(row_count: int | None) -> Iterator[None]:
    """Base data with row groups of so many rows, so that small tables have many of them.

    A row group has about four pages, so that short reads cut some out, and superblocks have bases.
    """
    if row_count is None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch_group_rows(patch, row_count)
        yield


def patch_group_rows(patch: pytest.MonkeyPatch, row_count: int) -> None:
    """Let row groups have so many rows until `patch` is undone, as `group_rows_of` does."""
    page = next(n for n in range(max(1, row_count // 4), 0, -1) if row_count % n == 0)
    rows = {"ROW_GROUP_ROWS": row_count, "PAGE_ROWS": page, "CUT_ROWS_MAX": 2 * page}
    rows["BASE_BYTES_MIN"] = 0
    for module in [m for name, m in sys.modules.items() if name.startswith("kudulite.")]:
        for name in rows.keys() & vars(module).keys():
            patch.setattr(module, name, rows[name])


def tuples(rows: pa.Table | pa.RecordBatch) -> list[tuple]:
    """Arrow rows as tuples, in their order."""
    columns = [column.to_pylist() for column in rows.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * rows.num_rows


def in_order(rows: Iterable[tuple]) -> list[tuple]:
    """Tuples in the order of the model's."""
    return sorted(rows, key=sort_key)


def stored(table: kudulite.Table, at: Any = None) -> list[tuple]:
    """All rows of a table at a moment, in order."""
    return in_order(tuples(table.scan(at=at).to_arrow()))


def files_below(folder: Path) -> set[Path]:
    """All files in a tree."""
    return {path for path in folder.rglob("*") if path.is_file()}


def altered(client: Client, name: str, change: Callable[[TableAlterer], object]) -> Table:
    """The table after one alteration, made by what `change` asks of an alterer."""
    alterer = client.new_table_alterer(client.table(name))
    change(alterer)
    return alterer.alter()


def referenced_files(store: TableStore, version: int | None = None) -> set[Path]:
    """The files of a table of which only the newest version, or the one given, is left; no log."""
    manifest = store.newest() if version is None else store.chain.at(version)
    folder = store.folder / "manifest"
    files = {folder / version_name(manifest.version), folder / "hint", store.folder / "lock"}
    for entry in manifest.readable_tablets:
        tablet = store.tablet_folder(entry.id)
        files.add(tablet / entry.superblock.name)
        superblock = store.tablet(entry).superblock
        files |= {tablet / ref.name for ref in superblock.base_refs}
        files |= {tablet / meta.ref.name for meta in superblock.tombstones}
        for meta in superblock.rowsets:
            files |= {tablet / "rowset" / meta.id / name for name in meta.file_names}
    return files


def expect_clean(root: Path, clock: Clock | None = None) -> None:
    """After a collection without grace nothing is left that nobody refers to, but logs, locks."""
    client = Client(root, environment(clock=clock))
    expected: set[Path] = set()
    for name in client.list_tables():
        # What a killed publication has left stays for the usual grace time, which is over now.
        for path in (root / name / "manifest").glob(".*"):
            os.utime(path, (0, 0))
        collect_garbage(client.table(name)._store, 0, 0)
        expected |= referenced_files(TableStore(root / name, environment(clock=clock)))
    found = {path for path in files_below(root) if path.parent.name != "log"}
    # Of a tablet that was maintained once: it stays, as the lock does.
    found = {path for path in found if path.name != MAINTENANCE_LOCK_NAME}
    assert found == expected, sorted(str(p.relative_to(root)) for p in found ^ expected)
    assert {path.name for path in root.iterdir()} == set(client.list_tables())
    for name in client.list_tables():
        assert list((root / name / "writes").iterdir()) == []


def maps_below(folder: Path) -> int:
    """How many memory maps there are of files in a tree, also of files that are removed."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(f" {folder}/" in line for line in lines)


def descriptors_below(folder: Path) -> int:
    """How many descriptors are open of files in a tree, also of files that are removed."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            count += os.readlink(f"/proc/self/fd/{name}").startswith(f"{folder}/")
    return count
