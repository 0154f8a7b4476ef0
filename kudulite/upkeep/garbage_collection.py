"""Garbage collection: removes files that no reader or writer can need.

    open writes        whose process has died; of several processes, after a day of silence
    versions           superseded for longer than the grace time, and not pinned by an open write
    files of tablets   that no remaining version refers to, and no open write has made
    log segments       that all remaining versions have flushed
    tablets' locks     with their logs, once all remaining versions are of today's format
    tablets            of a creation that was killed, or lost to another one
    other tables       soft-deleted in the same directory, whose reserve has passed

The files of a tablet are listed first, then the open writes, then the lock is taken, and then the
versions are read. A file that was listed is of a write that is still open then, or has published
before, or never will: a publisher holds the lock from its last look at its record on
(open_writes.py). An operation without a record holds the lock all the time. So no time of a file
counts, but that of a version, of a temporary file beside the versions, and of the record of a write
that several processes may go on with.

Most of it needs no lock. The files that versions refer to are read before it (kept_files.py). So
the table is not locked for a tablet with nothing to remove, and for another one only versions that
are new since then are read under the lock. Its files are removed under the lock as well: a copy of
the table has files of the same names, and gets the table's place under the locks of both.

**Invariants**: (1) versions are removed from the oldest on, without gaps (table_store.py relies on
it); (2) a file that no version had under the lock, and no open write before it, is never published.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterable, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kudulite.errors import CorruptionError, KuduliteError, StorageError
from kudulite.storage.names import (
    MANIFEST_FOLDER,
    ROWSET_FOLDER,
    STAGING_FOLDER,
    TABLET_FOLDER,
    WAL_FOLDER,
    WRITES_FOLDER,
    is_of_tablet,
    is_temporary,
    version_of,
    write_of,
    write_prefix,
)
from kudulite.storage.storage import Storage
from kudulite.table.open_writes import OpenWrites, end_write, of_same_table
from kudulite.table.removal import remove_expired_tables
from kudulite.table.table_store import TableStore
from kudulite.upkeep.kept_files import KeptFiles, Names, newest_files

GRACE_SECONDS = 3600.0
STAGING_GRACE_SECONDS = 24 * 3600.0
# An abort waits for the table's lock so long at most, if it has files in any tablet.
_ABORT_SECONDS = 5.0
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
    """Remove what is superseded for longer than the grace time, or of nobody.

    A write that other processes may go on with is over after `staging_grace_seconds` of silence.
    """
    begin = time.perf_counter()
    table_id = store.upgraded().table_id
    ended = _end_writes(store, staging_grace_seconds)
    store.storage.remove_hidden(store.place / WRITES_FOLDER)
    store.storage.delete_below(store.place / STAGING_FOLDER)
    _collect_temporaries(store, grace_seconds)
    with of_same_table(store, table_id):
        version_count = _collect_versions(store, grace_seconds)
    kept = KeptFiles(store)
    ids = [entry.id for entry in store.newest().readable_tablets]
    # In this order: see the head.
    found = {each: kept.of_tablet(each).others(_names(store, each)) for each in ids}
    open_now = OpenWrites.of(store)
    removed: dict[str, int] = {}
    garbage = {tablet_id: _garbage(names, open_now) for tablet_id, names in found.items()}
    if any(garbage.values()):
        store.in_turn("garbage collection", store.log.fence)
    for tablet_id, names in garbage.items():
        if names:
            with store.locked("garbage collection"):
                removed |= _remove(store, tablet_id, names, open_now, kept)
    removed |= _collect_log(store, kept.first_segment)
    store.cache.remove_files(removed.keys())  # a map would keep the space on disk
    _collect_tablets(store, kept)
    remove_expired_tables(store.folder.parent, store.environment)
    file_count, byte_count = len(removed), sum(removed.values())
    store.metrics.garbage_files_removed += file_count
    store.metrics.garbage_bytes_removed += byte_count
    if removed:
        seconds = time.perf_counter() - begin
        more = f"removed {file_count} files, {byte_count} bytes"
        store.log_operation("garbage collection", ids, seconds, byte_count, more)
    return GarbageResult(len(ended), version_count, file_count, byte_count)


def _names(store: TableStore, tablet_id: str) -> Names:
    """Return the names of all files of a tablet, by folder."""
    folder = store.tablet_folder(tablet_id)
    store.storage.check_folder(folder)
    return store.storage.names_below(folder)


def _garbage(found: Names, open_now: OpenWrites, prefixes: Set[str] | None = None) -> Names:
    """Return those of a tablet's names that the engine has made, but no open write, by folder.

    With `prefixes` only those of these writes. Empty folders of rowsets and logs are there, too.
    """

    def is_garbage(name: str) -> bool:
        is_chosen = prefixes is None or write_of(name) in prefixes
        return is_chosen and not open_now.own(name)

    chosen = {
        place: [n for n in names if is_garbage(n) and (is_of_tablet(n) or is_temporary(n))]
        for place, names in found.items()
    }
    return {
        place: names
        for place, names in chosen.items()
        if names or (not found[place] and _is_of_files(place) and is_garbage(place.name))
    }


def _is_of_files(folder: Path) -> bool:
    """Whether a folder of a tablet is that of a rowset, or of the tablet's log."""
    return folder.parent.name == ROWSET_FOLDER or folder.name == WAL_FOLDER


def _remove(
    store: TableStore, tablet_id: str, garbage: Names, open_now: OpenWrites, kept: KeptFiles
) -> dict[str, int]:
    """Remove those files of a tablet, whose lock is held, that no version has published meanwhile.

    Returns the sizes of removed files, by path. Folders that are empty then are removed.
    """
    removed = {}
    kept.read()
    for folder, names in kept.of_tablet(tablet_id).others(garbage).items():
        for path in (folder / name for name in names):
            length = _length(store.storage, path)
            if length is not None:
                store.storage.delete(path)
                removed[str(path)] = length
        if _is_of_files(folder) and not open_now.own(folder.name):
            store.storage.delete_folder(folder)
    return removed


def _collect_log(store: TableStore, first: int) -> dict[str, int]:
    """Remove the segments of the log before `first`, which no version needs, nor a later one."""
    removed = {}
    for file in store.log.files_before(first):
        store.storage.delete(file.path)
        removed[str(file.path)] = file.length
    return removed


def _length(storage: Storage, path: Path) -> int | None:
    """Return the length of a file, None if it is gone, or is a link or a pipe."""
    try:
        return storage.length(path)
    except CorruptionError:
        return None
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return None
        raise


def collect_ended_writes(store: TableStore, write_ids: Iterable[str], since: int = 1) -> None:
    """Remove the files of writes that are over and in no version, as far as that can be done.

    No version before `since` has files of them. It ends at the first tablet whose lock another
    process holds: an abort must not wait for many. The next collection removes the rest. Files that
    are in a version after all stay.
    """
    prefixes = set(map(write_prefix, write_ids))
    if not prefixes:
        return
    kept: KeptFiles | None = None
    timeout_seconds = min(_ABORT_SECONDS, store.environment.lock_timeout_seconds)
    with suppress(KuduliteError):
        ids = [entry.id for entry in store.newest().readable_tablets]
        found = {tablet_id: _names(store, tablet_id) for tablet_id in ids}
        open_now = OpenWrites.of(store)
        for tablet_id, names in found.items():
            if not (made := _garbage(names, open_now, prefixes)):
                continue
            kept = kept or KeptFiles(store, since)
            if garbage := kept.of_tablet(tablet_id).others(made):
                store.in_turn("removal of an ended write's files", store.log.fence, timeout_seconds)
                with store.locked("removal of an ended write's files", timeout_seconds):
                    _remove(store, tablet_id, garbage, open_now, kept)


def end_writes(
    store: TableStore, silent_seconds: float = STAGING_GRACE_SECONDS, owner: str | None = None
) -> int:
    """End the writes of processes that died, those silent for so long, and all of an owner.

    Their files go with them. Returns how many there were.
    """
    ended = _end_writes(store, silent_seconds, owner)
    collect_ended_writes(store, ended)
    return len(ended)


def _end_writes(store: TableStore, silent_seconds: float, owner: str | None = None) -> list[str]:
    """End writes as `end_writes` does, and return their ids."""
    ended = []
    for record in OpenWrites.of(store):
        is_owned = owner is not None and record.owner == owner
        is_over = record.is_dead if record.is_held else record.age_seconds > silent_seconds
        if is_owned or is_over:
            end_write(store, record.id)
            ended.append(record.id)
    return ended


def collect_after_write(store: TableStore) -> None:
    """Collect garbage if any version is superseded for the grace time.

    A table that only short processes write to is never maintained, and would keep all versions. An
    error is logged: the version of the write is published.
    """
    try:
        if any(age > GRACE_SECONDS for age in list(_version_ages(store).values())[1:2]):
            collect_garbage(store)
    except (KuduliteError, FileNotFoundError) as error:
        _log.warning("table %r, garbage collection: %s", store.name, error)


def superseded_bytes(store: TableStore) -> int:
    """Return the size of the files of all tablets that the newest version does not refer to.

    Garbage collection removes them once they are old enough and no version that is kept needs them.
    """
    manifest, storage = store.newest(), store.storage
    paths: list[Path] = []
    for folder in storage.entries(store.place / TABLET_FOLDER):
        others = newest_files(store, manifest, folder.name).others(storage.names_below(folder))
        paths += [place / name for place, names in others.items() for name in names]
    open_now = OpenWrites.of(store)
    size = sum(_length(storage, path) or 0 for path in paths if not open_now.own(path.name))
    return size + sum(f.length for f in store.log.files_before(manifest.log_start.segment))


def _version_ages(store: TableStore) -> dict[int, float]:
    """Return the seconds since each version was published, the oldest first."""
    files = store.storage.files_below(store.place / MANIFEST_FOLDER)
    ages = {version_of(file.path.name): file.age_seconds for file in files}
    return dict(sorted((v, age) for v, age in ages.items() if v is not None))


def _collect_versions(store: TableStore, grace_seconds: float) -> int:
    """Remove versions from the oldest on, up to one that is needed.

    The numbers may soon be those of another table, if this one is deleted and created again.
    """
    with store.storage.open_folder(store.place / MANIFEST_FOLDER) as folder:
        ages = _version_ages(store)
        open_now = OpenWrites.of(store)  # after the versions: see open_writes.py
        if not folder.is_at_its_path():
            return 0

        def must_stay_before(successor: int) -> bool:
            # Without a grace time none is young, whatever the clocks say.
            is_young = max(0.0, ages[successor]) < grace_seconds
            return is_young or bool(open_now.pinning(successor))

        return store.chain.remove(ages, must_stay_before, folder.delete)


def _collect_tablets(store: TableStore, kept: KeptFiles) -> None:
    """Remove the folders of tablets that no version has.

    Under the lock: an alteration may have made a tablet whose version it is about to publish.
    """
    found = kept.unknown_tablets()
    if not found:
        return
    store.in_turn("garbage collection", store.log.fence)
    with store.locked("garbage collection"):
        kept.read()
        for folder in set(found).intersection(kept.unknown_tablets()):
            store.storage.delete_below(folder)


def _collect_temporaries(store: TableStore, grace_seconds: float) -> None:
    """Remove temporary files of killed publications beside the versions.

    Never sooner than the usual grace time: one that is under way needs its file. Those in a tablet
    are made under its lock, but for that of a new lock file, which is made again.
    """
    for path in store.storage.entries(store.place):
        if is_temporary(path.name):  # of the lock file: a creation that needs it makes it again
            store.storage.delete(path)
    for file in store.storage.files_below(store.place / MANIFEST_FOLDER):
        is_old = file.age_seconds > max(grace_seconds, GRACE_SECONDS)
        if is_old and is_temporary(file.path.name):
            store.storage.delete(file.path)
