"""Purge: erases rows for good, from base data, every delta, the log and the past.

    1  flush the table; rewrite its rowsets that hold any of the keys, without them     no lock
    2  the table's lock: rewrite rowsets that arrived or changed meanwhile; publish
    3  wait for flushes and upkeep of others that read earlier versions
    4  remove superseded files, log segments and versions at once

A key may be in many rowsets, mostly as a dead row. All of them are rewritten, also those ended by
an overwrite or a dropped range, and tombstones too. Other rows keep their past. A reader of an
older version whose files are removed gets a StorageError, and reads again.

Steps 1 and 2 of each tablet are an open write (open_writes.py), which has ended before 3: two
purges do not wait for each other. A bulk write or a copy that read an earlier version, and upkeep
that lasts longer than the lock timeout, keep it with its files; the report names them. Rows written
while a purge runs may be ordered before or after it.

**Invariants**: no grace time holds purged rows; after a crash before 4 they are purged again.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kudulite.chain.manifest import Manifest, TabletEntry
from kudulite.errors import StorageError
from kudulite.model.key_array import KeyArray
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.merge_compaction import merge_rowsets
from kudulite.storage.names import LOG_FOLDER, MANIFEST_FOLDER
from kudulite.storage.new_files import NewFiles
from kudulite.table.memory_flush import flush_table, flushed_under_lock
from kudulite.table.open_writes import PURGE, UPKEEP, OpenWrites, begin_write
from kudulite.table.snapshot import ancient_history_mark
from kudulite.table.table_log import Turn
from kudulite.table.table_store import TableStore
from kudulite.upkeep.compaction import Replacement, carry_over, publish_superblock
from kudulite.upkeep.garbage_collection import collect_garbage

_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.005, 0.5


@dataclass(frozen=True)
class PurgeReport:
    """Counts of what a purge erased.

    `row_count` counts rows of rowsets, so a key that was deleted and inserted again counts more
    than once; `rowset_count` is how many were written again. Files and bytes are those removed.
    `pinned_by` are writes that keep older files: when they have ended, purge again.
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
    version = store.newest().version
    deadline = time.monotonic() + store.environment.lock_timeout_seconds
    file_count = byte_count = 0
    while True:
        _wait_for_upkeep(store, version, deadline)
        garbage = collect_garbage(store, grace_seconds=0.0)
        file_count, byte_count = file_count + garbage.file_count, byte_count + garbage.byte_count
        pinning = OpenWrites.of(store).pinning(version)
        # Upkeep that has begun meanwhile may pin the version before for a moment.
        is_pinned = any(record.work not in UPKEEP for record in pinning)
        if is_pinned or store.chain.oldest() >= version or time.monotonic() > deadline:
            break
    _make_removals_durable(store, keys)
    return PurgeReport(
        key_count=sum(len(found) for found in keys.values()),
        row_count=row_count,
        rowset_count=rowset_count,
        file_count=file_count,
        byte_count=byte_count,
        pinned_by=tuple(record.id for record in pinning),
    )


def _make_removals_durable(store: TableStore, tablet_ids: Iterable[str]) -> None:
    """Fsync the folders of removed files: a power failure must not bring erased rows back."""
    folders = [store.place / MANIFEST_FOLDER, store.place / LOG_FOLDER]
    for tablet_id in tablet_ids:
        folder = store.tablet_folder(tablet_id)
        folders += store.storage.names_below(folder)
    for folder in folders:
        try:
            store.storage.sync([folder])
        except StorageError as error:
            if error.errno != errno.ENOENT:  # else the folder was removed meanwhile
                raise


def _wait_for_upkeep(store: TableStore, version: int, deadline: float) -> None:
    """Wait until no flush or upkeep of a living process reads a version before `version`."""

    def is_read() -> bool:
        pinning = OpenWrites.of(store).pinning(version)
        return any(record.work in UPKEEP and not record.is_dead for record in pinning)

    pause_seconds = _PAUSE_SECONDS
    while is_read() and time.monotonic() < deadline:
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)


def _purge_tablet(store: TableStore, tablet_id: str, keys: KeyArray) -> tuple[int, int]:
    """Purge one tablet; returns how many rows were erased, of how many rowsets."""
    flush_table(store)
    with begin_write(store, PURGE) as write:
        manifest, tablet = store.newest_tablet(tablet_id)
        if tablet is None:
            return 0, 0
        before = tablet.disk_rowsets
        work = _TabletPurge(store, write.files, manifest, keys)
        built = work.build(before)

        def publish(turn: Turn) -> tuple[int, int]:
            newest = flushed_under_lock(store, turn.newest(), turn)
            entry = newest.readable_entry(tablet_id)
            if entry is None:
                return 0, 0
            counts = None
            if write.may_publish():
                counts = work.publish(newest, entry, before, built, turn)
            while counts is None:
                # Its files may be gone, or a new tag needs history that was left out: all again.
                again = _TabletPurge(store, NewFiles(store.storage), newest, keys)
                counts = again.publish(newest, entry, (), (), turn)
            return counts

        return store.in_turn("purge", publish)


@dataclass(frozen=True)
class _TabletPurge:
    """Rewrites rowsets of one tablet without `keys`, by the schema of `manifest`."""

    store: TableStore
    files: NewFiles
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
        schema = self.manifest.stored_schema
        merged = merge_rowsets(self.files, folder, schema, [ongoing], self.mark, without=keys)
        outputs = [replace(m, delete_timestamp=meta.delete_timestamp) for m in merged.rowsets]
        return Replacement((meta,), tuple(outputs), self.mark, merged.row_map)

    def publish(
        self,
        newest: Manifest,
        entry: TabletEntry,
        before: Sequence[DiskRowSet],
        built: Sequence[tuple[Replacement, int]],
        turn: Turn,
    ) -> tuple[int, int] | None:
        """Publish under the table's lock; None where a tag needs older history.

        Rowsets that are not in `before`, or are not as they were built from, are built now.
        """
        now = self.store.tablet(entry)
        known, fitting = {rowset.meta.id for rowset in before}, []
        for replacement, count in built:
            carried = carry_over(self.files, now, replacement)
            if carried is None:
                known -= {meta.id for meta in replacement.inputs}
            else:
                fitting.append((carried[0], count))
        arrived = [rowset for rowset in now.disk_rowsets if rowset.meta.id not in known]
        # Those may have columns that were added meanwhile.
        built = [*fitting, *replace(self, manifest=newest).build(arrived)]
        superblock = now.superblock
        for replacement, _ in built:
            superseding = replacement.applied_to(superblock)
            assert superseding is not None
            superblock = superseding
        tombstones = now.tombstones.without(self.files, self.keys)
        self.files.sync()
        superblock = replace(superblock, tombstones=tombstones)
        has_log = newest.log_start != turn.newest().log_start
        if superblock != now.superblock or has_log:
            published = publish_superblock(
                self.store, newest, superblock, self.mark, "purge", turn, is_maintenance=False
            )
            if published is None:
                return None
        return sum(count for _, count in built), len(built)
