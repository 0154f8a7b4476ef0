"""Adoption: moves what a write has staged into a tablet and lists it in a new superblock.

Everything here is invisible until a manifest names the new superblock. Order: files and folders to
their places, their folders fsynced, then the superblock. A crash anywhere leaves files that nobody
refers to, which the sweep removes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kudulite.catalog.manifest import TabletEntry
from kudulite.catalog.table_store import TableStore
from kudulite.delta.delta_file import DeltaFileMeta
from kudulite.errors import StorageError
from kudulite.fs.file_system import check_length
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.tablet.staged import StagedTablet
from kudulite.tablet.tablet import ROWSET_FOLDER
from kudulite.tablet.tombstone_file import TombstoneFileMeta


@dataclass(frozen=True)
class Adopter:
    """Adopts parts of one write at its commit timestamp, under the locks of their tablets.

    `is_overwrite` also ends every rowset that is there.
    """

    store: TableStore
    timestamp: int
    is_overwrite: bool
    _moved: list[tuple[Path, Path]] = field(default_factory=list)
    _written: list[Path] = field(default_factory=list)

    def undo(self) -> None:
        """Put everything back where it was staged, after a commit that did not come to be.

        What cannot be put back is an unreferenced file, which the sweep removes.
        """
        file_system = self.store.environment.file_system
        with contextlib.suppress(StorageError):
            for source, target in reversed(self._moved):
                file_system.rename(target, source)
            for path in self._written:
                file_system.remove(path)

    def adopt(self, entry: TabletEntry, parts: Sequence[StagedTablet]) -> TabletEntry:
        """Return the tablet's entry with the parts in it, oldest first."""
        old = self.store.tablet(entry).superblock
        self._move(entry.id, parts)
        rowsets = [self._changed(meta, parts) for meta in old.rowsets]
        rowsets += [self._stamped(meta) for part in parts for meta in part.rowsets]
        tombstones = self._tombstones(() if self.is_overwrite else old.tombstones, parts)
        superblock = replace(old, rowsets=tuple(rowsets), tombstones=tombstones)
        ref = self.store.write_superblock(superblock)
        self._written.append(self.store.tablet_folder(entry.id) / ref.name)
        self.store.environment.file_system.sync_directory(self.store.tablet_folder(entry.id))
        return entry.with_superblock(ref, rowsets, self.timestamp)

    def _changed(self, meta: RowSetMeta, parts: Sequence[StagedTablet]) -> RowSetMeta:
        """Return a rowset that was there with this write's deltas, or ended by it."""
        if self.is_overwrite:
            if meta.delete_timestamp is None:
                return replace(meta, delete_timestamp=self.timestamp)
            return meta
        deltas = [d.meta for part in parts for d in part.deltas if d.rowset_id == meta.id]
        return meta.with_redo(tuple(delta.stamped(self.timestamp) for delta in deltas))

    def _stamped(self, meta: RowSetMeta) -> RowSetMeta:
        redo: tuple[DeltaFileMeta, ...] = tuple(d.stamped(self.timestamp) for d in meta.redo)
        return replace(meta, insert_timestamp=self.timestamp, redo=redo)

    def _tombstones(
        self, old: Sequence[TombstoneFileMeta], parts: Sequence[StagedTablet]
    ) -> tuple[TombstoneFileMeta, ...]:
        """Return the tablet's tombstones with those of the parts, each instead of what it joins."""
        found = tuple(old)
        for part in parts:
            if part.tombstones is not None:
                replaced = part.tombstones.replaced
                kept = [meta for meta in found if meta.ref.name not in replaced]
                found = (*kept, part.tombstones.meta.stamped(self.timestamp))
        return found

    def _move(self, tablet_id: str, parts: Sequence[StagedTablet]) -> None:
        target = self.store.tablet_folder(tablet_id) / ROWSET_FOLDER
        to_sync: set[Path] = set()
        for part in parts:
            source = self.store.folder / part.folder
            for meta in part.rowsets:
                self._rename(source / meta.id, target / meta.id)
                for ref in meta.file_refs:
                    check_length(target / meta.id / ref.name, ref)
                to_sync.add(target)
                if meta.redo:
                    to_sync.add(target / meta.id)
            for delta in part.deltas:
                name = f"{delta.rowset_id}/{delta.meta.ref.name}"
                self._rename(source / name, target / name)
                check_length(target / name, delta.meta.ref)
                to_sync.add(target / delta.rowset_id)
            if part.tombstones is not None:
                # The tablet's folder is synced with the superblock.
                ref = part.tombstones.meta.ref
                self._rename(source / ref.name, target.parent / ref.name)
                check_length(target.parent / ref.name, ref)
        for folder in sorted(to_sync):
            self.store.environment.file_system.sync_directory(folder)

    def _rename(self, source: Path, target: Path) -> None:
        self.store.environment.file_system.rename(source, target)
        self._moved.append((source, target))
