"""Purge: erases rows for good, from base data, every delta, the log and the past.

    1  flush the tablet; rewrite its rowsets that hold any of the keys, without them     no lock
    2  the tablet's lock: rewrite rowsets that arrived meanwhile; publish, or begin again at 1 where
       files of 1 were superseded or removed by others; the last attempt rewrites all here
    3  remove superseded files, log segments and versions at once

A key may be in many rowsets, mostly as a dead row. All of them are rewritten, also those ended by
an overwrite or a dropped range, and tombstones too. Other rows keep their past. A reader of an
older version whose files are removed gets a StorageError, and reads again.

A write that is staged and not committed pins the version that it read, and its files; the report
names it. Rows written while a purge runs may be ordered before or after it.

**Invariants**: no grace time holds purged rows; after a crash before 3 they are purged again.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from kudulite.chain.manifest import Manifest, TabletEntry
from kudulite.chain.new_files import RemovedFilesError
from kudulite.errors import ConflictError, StorageError
from kudulite.model.key_array import KeyArray
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.merge_compaction import merge_rowsets
from kudulite.storage.names import MANIFEST_FOLDER
from kudulite.table.memory_flush import flush_tablet, flush_under_lock
from kudulite.table.open_writes import open_writes
from kudulite.table.snapshot import ancient_history_mark
from kudulite.table.table_store import TableStore
from kudulite.upkeep.compaction import Replacement, carry_over, publish_superblock
from kudulite.upkeep.garbage_collection import collect_garbage, folders_below

# Each lost race means that another process compacted the tablet, or removed files of this purge.
_ATTEMPTS_MAX = 5


@dataclass(frozen=True)
class PurgeReport:
    """Counts of what a purge erased.

    `row_count` counts rows of rowsets, so a key that was deleted and inserted again counts more
    than once; `rowset_count` is how many were written again. Files and bytes are those removed.
    `pinned_by` are writes that are staged and keep older files: when they have ended, purge again.
    """

    key_count: int
    row_count: int
    rowset_count: int
    file_count: int
    byte_count: int
    pinned_by: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether no file holds the keys any more."""
        return not self.pinned_by


def purge_keys(store: TableStore, keys: Mapping[str, KeyArray]) -> PurgeReport:
    """Erase the rows of ascending `keys`, by tablet id, with all their history.

    Raises LockTimeoutError, StorageError, CorruptionError, ConflictError. A tablet is purged whole
    or stays as it was; a purge that failed may be run again.
    """
    row_count = rowset_count = 0
    for tablet_id in sorted(keys):
        rows, rowsets = _purge_tablet(store, tablet_id, keys[tablet_id])
        row_count, rowset_count = row_count + rows, rowset_count + rowsets
    garbage = collect_garbage(store, grace_seconds=0.0)
    _make_removals_durable(store, keys)
    return PurgeReport(
        key_count=sum(len(found) for found in keys.values()),
        row_count=row_count,
        rowset_count=rowset_count,
        file_count=garbage.file_count,
        byte_count=garbage.byte_count,
        pinned_by=tuple(open_writes(store)),
    )


def _make_removals_durable(store: TableStore, tablet_ids: Iterable[str]) -> None:
    """Fsync the folders of removed files: a power failure must not bring erased rows back."""
    folders = [store.folder / MANIFEST_FOLDER]
    for tablet_id in tablet_ids:
        folder = store.tablet_folder(tablet_id)
        folders += folders_below(folder)
    for folder in folders:
        try:
            store.file_system.sync_directory(folder)
        except StorageError as error:
            if error.errno != errno.ENOENT:  # else the folder was removed meanwhile
                raise


def _purge_tablet(store: TableStore, tablet_id: str, keys: KeyArray) -> tuple[int, int]:
    """Purge one tablet; returns how many rows were erased, of how many rowsets."""
    for left in reversed(range(_ATTEMPTS_MAX)):
        flush_tablet(store, tablet_id)
        manifest, tablet = store.newest_tablet(tablet_id)
        if tablet is None:
            return 0, 0
        work = _TabletPurge(store, manifest, keys)
        # The last attempt builds all under the lock, where no other process removes files.
        rowsets = tablet.disk_rowsets if left else ()
        with suppress(RemovedFilesError), store.building(tablet):
            built = work.build(rowsets)
            with store.locked(tablet_id, "purge") as lock:
                newest = store.newest()
                entry = newest.readable_entry(tablet_id)
                if entry is None:
                    return 0, 0
                entry = flush_under_lock(store, entry, lock)
                counts = work.publish(newest.with_entry(entry), entry, rowsets, built)
            if counts is not None:
                return counts
    raise ConflictError(
        f"table {store.name!r}: tablet {tablet_id} was compacted {_ATTEMPTS_MAX} times while rows"
        " were purged; purge again"
    )


@dataclass(frozen=True)
class _TabletPurge:
    """Rewrites rowsets of one tablet without `keys`, by the schema of `manifest`."""

    store: TableStore
    manifest: Manifest
    keys: KeyArray

    @property
    def mark(self) -> int:
        return ancient_history_mark(self.store, self.manifest)

    def build(self, rowsets: Sequence[DiskRowSet]) -> list[tuple[Replacement, int]]:
        """Write those that hold any of the keys again; returns each with its rows erased."""
        built = []
        for rowset in rowsets:
            found = np.flatnonzero(rowset.key_index.find(self.keys) >= 0)
            if len(found):
                built.append((self._rewrite(rowset, self.keys.take(found)), len(found)))
        return built

    def _rewrite(self, rowset: DiskRowSet, keys: KeyArray) -> Replacement:
        meta, folder = rowset.meta, rowset.folder.parent
        # An ended rowset is rewritten as if it had not ended, then ended at its moment.
        ongoing = DiskRowSet(replace(meta, delete_timestamp=None), rowset.folder, self.store.cache)
        file_system = self.store.file_system
        merged = merge_rowsets(
            file_system, folder, self.manifest.stored_schema, [ongoing], self.mark, without=keys
        )
        file_system.sync_directory(folder)
        outputs = [replace(m, delete_timestamp=meta.delete_timestamp) for m in merged.rowsets]
        return Replacement((meta,), tuple(outputs), self.mark, merged.row_map)

    def publish(
        self,
        newest: Manifest,
        entry: TabletEntry,
        before: Sequence[DiskRowSet],
        built: Sequence[tuple[Replacement, int]],
    ) -> tuple[int, int] | None:
        """Publish under the lock of the tablet of `entry`, also for rowsets not in `before`."""
        now = self.store.tablet(entry)
        known = {rowset.meta.id for rowset in before}
        arrived = [rowset for rowset in now.disk_rowsets if rowset.meta.id not in known]
        built = [*built, *self.build(arrived)]
        superblock = now.superblock
        for replacement, _ in built:
            carried = carry_over(self.store, now, replacement)
            superseding = None if carried is None else carried[0].applied_to(superblock)
            if superseding is None:
                return None
            superblock = superseding
        tombstones = now.tombstones.without(self.store.file_system, self.keys)
        superblock = replace(superblock, tombstones=tombstones)
        if superblock != now.superblock:
            published = publish_superblock(
                self.store, newest, superblock, self.mark, "purge", is_maintenance=False
            )
            if published is None:
                return None
        return sum(count for _, count in built), len(built)
