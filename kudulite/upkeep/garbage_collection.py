"""Garbage collection: removes files that no reader or writer can need, after the grace time.

    bulk writes        that ended without cleaning up, after a day: a job may compute for hours
                       before its first task writes
    versions           superseded for longer than the grace time
    files of tablets   that no remaining version refers to
    log segments       that all remaining versions have flushed
    tablets            of a creation that was killed, or lost to another one
    other tables       soft-deleted in the same directory, whose reserve has passed

A version that a write under way pins stays, with its files, and so do the files of the write: their
names say whose they are (open_writes.py). Files are listed first, then the writes under way. Each
tablet is collected under its lock, so that no commit is between looking whether its files are there
and publishing them (new_files.py). Files that flushes and upkeep build without the lock, and their
folders, are removed like those of killed ones once they are older than the grace time.

**Invariants**: versions are removed from the oldest on, without gaps (table_store.py relies on it).
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import stat
import time
from collections.abc import Collection, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kudulite.chain.folder import remove_expired_tables
from kudulite.chain.manifest import (
    Manifest,
    TabletEntry,
    changed_entries,
    crc32_at_end,
)
from kudulite.errors import KuduliteError, StorageError
from kudulite.model.hybrid_time import physical_microseconds
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.storage.file_system import entries_of
from kudulite.storage.names import (
    LOCK_NAME,
    MAINTENANCE_LOCK_NAME,
    MANIFEST_FOLDER,
    ROWSET_FOLDER,
    STAGING_FOLDER,
    TABLET_FOLDER,
    WAL_FOLDER,
    version_name,
    write_of,
    write_prefix,
)
from kudulite.storage.storage_error import storage_error
from kudulite.storage.tablet_lock import TabletLock
from kudulite.table.open_writes import (
    end_write_of,
    files_are_of_open_write,
    owner_of,
    read_pinned_version,
)
from kudulite.table.table_store import TableStore
from kudulite.tablet.superblock import read_superblock
from kudulite.wal.segment import list_segments, segment_path

GRACE_SECONDS = 3600.0
STAGING_GRACE_SECONDS = 24 * 3600.0
# A network file system may show so much later that a write has begun.
_LATE_SECONDS = 60.0
# So long an abort waits for the lock of a tablet that it has files in.
_ABORT_SECONDS = 1.0
# The versions of bulk writes after which garbage is collected in the writer's thread: its process
# may end long before a background thread does it.
VERSIONS_PER_COLLECTION = 256

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GarbageResult:
    """Counts of what a garbage collection removed."""

    staging_folder_count: int = 0
    version_count: int = 0
    file_count: int = 0
    byte_count: int = 0


def collect_garbage(
    store: TableStore,
    grace_seconds: float = GRACE_SECONDS,
    staging_grace_seconds: float = STAGING_GRACE_SECONDS,
) -> GarbageResult:
    """Remove everything that is superseded or abandoned for longer than the grace times."""
    horizon = time.time() - grace_seconds
    staging_folder_count = end_abandoned_writes(store, staging_grace_seconds)
    _collect_temporaries(store, horizon)
    version_count = _collect_versions(store, grace_seconds)
    file_count = byte_count = 0
    versions = _KeptVersions(store)
    all_removed: set[str] = set()
    for entry in store.newest().readable_tablets:
        versions.read()  # most of them, ahead of the lock
        with store.locked(entry.id, "garbage collection"):
            versions.read()
            # Another collection may have removed versions, and their files of this tablet.
            versions.forget_removed()
            kept = _referenced(store, entry.id, versions.entries(entry.id))
            removed = set()
            for path, found in _garbage(store, entry.id, kept, horizon):
                byte_count += found.st_size
                file_count += 1
                store.file_system.remove(path)
                removed.add(path)
            all_removed.update(map(str, removed))
            emptied = {path.parent for path in removed}
            _remove_empty_folders(store, entry.id, emptied, horizon)
    store.cache.remove_files(all_removed)  # a map would keep the space on disk
    _collect_tablets(store, versions, horizon)
    now = physical_microseconds(store.environment.clock.now())
    remove_expired_tables(store.folder.parent, now, store.file_system)
    store.metrics.garbage_files_removed += file_count
    store.metrics.garbage_bytes_removed += byte_count
    return GarbageResult(staging_folder_count, version_count, file_count, byte_count)


def _garbage(
    store: TableStore, tablet_id: str, kept: Set[Path], horizon: float
) -> list[tuple[Path, os.stat_result]]:
    """Return the files of a tablet, whose lock is held, that are in no version, and of nobody.

    Those of a write are of nobody as soon as it is over. Flushes and upkeep are not known by their
    files, so that these are left alone until the `horizon`.
    """
    found = [each for each in _files(store.tablet_folder(tablet_id)) if each[0] not in kept]
    is_under_way = files_are_of_open_write(store)  # after the files were listed
    late = max(horizon, time.time() - _LATE_SECONDS)
    return [
        (path, status)
        for path, status in found
        if status.st_mtime < (horizon if write_of(path.name) is None else late)
        and not is_under_way(path.name)
    ]


def collect_aborted_write(store: TableStore, write_id: str) -> None:
    """Remove the files of a write that is over and was not committed, as far as that can be done.

    It ends at the first tablet whose lock another process holds: an abort must not wait for many.
    The next collection removes the rest. Files that are in a version after all stay.
    """
    prefix = write_prefix(write_id)
    versions: _KeptVersions | None = None
    with suppress(KuduliteError):
        for entry in store.newest().readable_tablets:
            folder = store.tablet_folder(entry.id)
            if not any(write_of(path.name) == prefix for path, _ in _files(folder)):
                continue
            with TabletLock(store.lock_path(entry.id), _ABORT_SECONDS):
                versions = versions or _KeptVersions(store)
                versions.read()
                kept = _referenced(store, entry.id, versions.entries(entry.id))
                for path, _ in _files(folder):
                    if write_of(path.name) == prefix and path not in kept:
                        store.file_system.remove(path)
            for path in entries_of(folder / ROWSET_FOLDER):
                if write_of(path.name) == prefix:
                    with suppress(OSError):  # not empty
                        path.rmdir()


def end_writes_of_owner(store: TableStore, owner: str) -> None:
    """End the writes of an owner: those that were killed, and one under way."""
    for folder in entries_of(store.folder / STAGING_FOLDER):
        if owner_of(folder) == owner:
            end_write_of(store, folder)
            collect_aborted_write(store, folder.name)


def end_abandoned_writes(store: TableStore, grace_seconds: float = STAGING_GRACE_SECONDS) -> int:
    """End the writes that have written nothing during the grace time; return how many.

    Their files go with them.
    """
    horizon = time.time() - grace_seconds
    count = 0
    for folder in entries_of(store.folder / STAGING_FOLDER):
        if is_older(folder, horizon) and not _has_written(store, folder.name, horizon):
            end_write_of(store, folder)
            collect_aborted_write(store, folder.name)
            count += 1
    return count


def _has_written(store: TableStore, write_id: str, since: float) -> bool:
    """Whether a file of a write is younger than `since`."""
    prefix = write_prefix(write_id)
    files = _files(store.folder / TABLET_FOLDER)
    return any(write_of(path.name) == prefix and status.st_mtime >= since for path, status in files)


def collect_after_write(store: TableStore) -> None:
    """Collect garbage if any version is superseded for the grace time.

    A table that only short processes write to is never maintained, and would keep all versions. An
    error is logged: the version of the write is published.
    """
    try:
        successors = store.chain.numbers()[1:2]
        horizon = time.time() - GRACE_SECONDS
        if any(is_older(store.chain.path(found), horizon) for found in successors):
            collect_garbage(store)
    except (KuduliteError, FileNotFoundError) as error:
        _log.warning("table %r, garbage collection: %s", store.name, error)


def superseded_bytes(store: TableStore) -> int:
    """Return the size of the files of all tablets that the newest version does not refer to.

    Garbage collection removes them once they are old enough and no version that is kept needs them.
    """
    manifest = store.newest()
    total = 0
    for folder in entries_of(store.folder / TABLET_FOLDER):
        entry = manifest.readable_entry(folder.name)
        kept = _referenced(store, folder.name, [] if entry is None else [entry])
        found = [(path.name, status) for path, status in _files(folder) if path not in kept]
        is_under_way = files_are_of_open_write(store)
        total += sum(status.st_size for name, status in found if not is_under_way(name))
    return total


def _collect_versions(store: TableStore, grace_seconds: float) -> int:
    """Remove versions from the oldest on, up to one that is needed."""
    horizon = time.time() - grace_seconds
    versions = store.chain.numbers()
    # Read after the versions: a write that begins meanwhile pins one that is listed.
    pins = [read_pinned_version(folder) for folder in entries_of(store.folder / STAGING_FOLDER)]
    oldest_pinned = min((pin for pin in pins if pin is not None), default=None)
    count = 0
    for version, successor in itertools.pairwise(versions):
        is_pinned = oldest_pinned is not None and version >= oldest_pinned
        path = store.chain.path(successor)
        try:
            is_young = stat_of(path).st_mtime >= horizon
        except FileNotFoundError:
            break  # removed by another process
        if is_pinned or is_young:
            break
        store.file_system.remove(path.with_name(version_name(version)))
        count += 1
    return count


class _KeptVersions:
    """The versions that are there, and the superblocks that each tablet has in them.

    Neighbours share most superblocks, so only the newest version and what others have had instead
    is kept. A version that was removed meanwhile only keeps files longer.
    """

    def __init__(self, store: TableStore) -> None:
        """Read all versions."""
        self._store = store
        self._crc32s: dict[int, int | None] = {}  # of their files, by version
        # By tablet and superblock: an entry with it, and the last version that has that.
        self._superseded: dict[str, dict[str, tuple[TabletEntry, int]]] = {}
        self._newest = store.newest()
        self._follow(self._newest)

    def read(self) -> None:
        """Add new versions."""
        newest = self._store.newest()
        if newest.file_crc32 != self._newest.file_crc32:
            self._newest = newest
            self._follow(newest)

    def _follow(self, newest: Manifest) -> None:
        """Add the versions from the newest one down: strays (version_chain.py) are left out.

        It ends at a version that is known, and so are those before it.
        """
        manifest = newest
        while self._crc32s.get(manifest.version) != manifest.file_crc32:
            self._crc32s[manifest.version] = manifest.file_crc32
            if manifest.version == 1:
                return
            expected = manifest.previous_crc32
            try:
                before = self._version(manifest.version - 1)
            except StorageError as error:
                if error.errno == errno.ENOENT:
                    return
                raise
            if expected is not None and before.file_crc32 != expected:
                return
            for old, new in changed_entries(before, manifest):
                if old is not None and (new is None or new.superblock != old.superblock):
                    superseded = self._superseded.setdefault(old.id, {})
                    superseded[old.superblock.name] = old, before.version
            manifest = before

    def _version(self, version: int) -> Manifest:
        """Read a version, unless the file on disk is one that this process has published."""
        path = self._store.chain.path(version)
        published: Manifest | None = self._store.cache.get((str(path), crc32_at_end(path)))
        return self._store.chain.at(version) if published is None else published

    def forget_removed(self) -> None:
        """Forget versions that another collection has removed: all before the oldest one there."""
        newest = self._newest.version
        while (oldest := min(self._crc32s)) < newest:
            if crc32_at_end(self._store.chain.path(oldest)) == self._crc32s[oldest]:
                break  # there, and not a stray of its number
            del self._crc32s[oldest]

    def entries(self, tablet_id: str) -> list[TabletEntry]:
        """Return an entry with each superblock that a tablet has in any version."""
        newest, oldest = self._newest.readable_entry(tablet_id), min(self._crc32s)
        earlier = self._superseded.get(tablet_id, {}).values()
        found = [entry for entry, last in earlier if last >= oldest]
        return found if newest is None else [newest, *found]

    def unknown_tablets(self) -> list[Path]:
        """Return the folders of tablets that no version has."""
        known = {entry.id for entry in self._newest.readable_tablets} | self._superseded.keys()
        folders = entries_of(self._store.folder / TABLET_FOLDER)
        return [folder for folder in folders if folder.name not in known]


def _referenced(store: TableStore, tablet_id: str, entries: Sequence[TabletEntry]) -> set[Path]:
    """Return the files of a tablet that any of its entries refers to."""
    folder = store.tablet_folder(tablet_id)
    kept = {folder / LOCK_NAME, folder / MAINTENANCE_LOCK_NAME}
    log_starts = []
    names: set[tuple[str, str]] = set()  # most files are of many versions
    # Superblocks share the rowsets that they have from one base.
    known: dict[int, RowSetMeta] = {}
    for entry in entries:
        superblock = read_superblock(store.file_system, folder, entry.superblock, store.cache)
        log_starts.append(superblock.wal_start.segment)
        kept.add(folder / entry.superblock.name)
        refs = (*superblock.base_refs, *superblock.tablet_file_refs)
        kept.update(folder / ref.name for ref in refs)
        for meta in superblock.rowsets:
            if id(meta) not in known:
                known[id(meta)] = meta
                names.update((meta.id, name) for name in meta.file_names)
    kept |= {folder / ROWSET_FOLDER / rowset_id / name for rowset_id, name in names}
    for segment in list_segments(folder / WAL_FOLDER):
        if segment >= min(log_starts, default=0):
            kept.add(segment_path(folder / WAL_FOLDER, segment))
    return kept


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files below a folder, with their sizes and times; others may remove some."""
    for parent, names in _walk(folder):
        for name in names:
            try:
                found = stat_of(parent / name)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(found.st_mode):
                yield parent / name, found


def is_older(folder: Path, horizon: float) -> bool:
    """Whether nothing in a tree changed since `horizon`, stopping at the first that did.

    A tree that is removed meanwhile is not older: there is nothing left to do.
    """
    try:
        if folder.stat().st_mtime >= horizon:
            return False
        return all(path.stat().st_mtime < horizon for path in folder.rglob("*"))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_error("read", folder, error) from error


def folders_below(folder: Path) -> list[Path]:
    """Return a folder and all below it; others may remove some."""
    return [parent for parent, _ in _walk(folder)]


def _walk(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield each folder below one, itself first, with the names of its files."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise storage_error("list", error.filename, error) from error

    for parent, _, names in os.walk(folder, onerror=refuse):
        yield Path(parent), names


def stat_of(path: Path) -> os.stat_result:
    """Return the file's size and times. Raises FileNotFoundError, StorageError for other errors."""
    try:
        return path.stat()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise storage_error("read", path, error) from error


def _collect_tablets(store: TableStore, versions: _KeptVersions, horizon: float) -> None:
    """Remove the folders of tablets that no version has.

    Under the lock of a tablet: an alteration, which holds all of them, may have made a tablet whose
    version it is about to publish.
    """
    if not versions.unknown_tablets():
        return
    with store.lock_any("garbage collection"):
        versions.read()
        for folder in versions.unknown_tablets():
            if is_older(folder, horizon):
                store.file_system.remove_tree(folder)


def _remove_empty_folders(
    store: TableStore, tablet_id: str, emptied: Collection[Path], horizon: float
) -> None:
    """Remove folders of rowsets that were just emptied, and old ones.

    A rowset may begin in a new one, and in any of a write under way.
    """
    folders = entries_of(store.tablet_folder(tablet_id) / ROWSET_FOLDER)
    is_under_way = files_are_of_open_write(store)  # after they were listed
    for path in folders:
        with suppress(OSError):  # not empty, just filled, or removed meanwhile
            is_old = path in emptied or path.stat().st_mtime < horizon
            if is_old and not is_under_way(path.name):
                path.rmdir()


def _collect_temporaries(store: TableStore, horizon: float) -> None:
    """Remove temporary files of killed publications beside the versions.

    Never sooner than the usual grace time: one that is under way needs its file.
    """
    horizon = min(horizon, time.time() - GRACE_SECONDS)
    for path in entries_of(store.folder / MANIFEST_FOLDER):
        if path.name.startswith(".") and is_older(path, horizon):
            store.file_system.remove(path)
