"""Files that nobody refers to: after a sweep without grace there are none."""

from __future__ import annotations

from pathlib import Path

from core_tables import environment, files_below

from kudulite.catalog.manifest import manifest_name
from kudulite.catalog.sweep import sweep
from kudulite.catalog.table_store import TableStore
from kudulite.client.client import Client
from kudulite.mvcc.hybrid_time import Clock
from kudulite.tablet.tablet import MAINTENANCE_LOCK_NAME


def referenced_files(store: TableStore) -> set[Path]:
    """The files of a table of which only the newest version is left, and no log."""
    manifest = store.newest()
    folder = store.folder / "manifest"
    files = {folder / manifest_name(manifest.version), folder / "hint"}
    for entry in manifest.readable_tablets:
        tablet = store.tablet_folder(entry.id)
        files |= {tablet / "lock", tablet / entry.superblock.name}
        superblock = store.tablet(entry).superblock
        files |= {tablet / meta.ref.name for meta in superblock.tombstones}
        for meta in superblock.rowsets:
            files |= {tablet / "rowset" / meta.id / name for name in meta.file_names}
    return files


def expect_clean(root: Path, clock: Clock | None = None) -> None:
    """After a sweep without grace nothing is there that nobody refers to, but logs and locks."""
    client = Client(root, environment(clock=clock))
    expected: set[Path] = set()
    for name in client.list_tables():
        sweep(client.table(name)._store, 0, 0)
        expected |= referenced_files(TableStore(root / name, environment(clock=clock)))
    found = {path for path in files_below(root) if path.parent.name != "wal"}
    # Of a tablet that was maintained once: it stays, as the lock does.
    found = {path for path in found if path.name != MAINTENANCE_LOCK_NAME}
    assert found == expected, sorted(str(p.relative_to(root)) for p in found ^ expected)
    assert {path.name for path in root.iterdir()} == set(client.list_tables())
    for name in client.list_tables():
        assert list((root / name / "staging").iterdir()) == []
