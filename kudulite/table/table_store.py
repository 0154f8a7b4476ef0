"""One table's folder: finding its newest version, opening its tablets, publishing the next version.

    <table>/manifest/<n>.json    versions; `hint` holds the number of one that was published
    <table>/tablet/<id>/         superblock-….json, lock, rowset/
    <table>/staging/<write id>/  files of uncommitted writes

A name of a removed version can be created again: by a publication that was built on version n,
stood still, and went on after n and n + 1 were removed. Such a stray file is not a version. Three
rules follow from the first invariant below:

    publishing   version n + 1 is published if n is still there after n + 1 was created; otherwise
                 the new file is taken back and the writer looks for the newest version again
    finding      a walk upwards from version n counts if n is still there at its end; otherwise the
                 folder is listed, and the highest number is the newest version
    reading      a file names its own version and the CRC of the version before, and both are
                 compared; the hint names a version that was published, so the newest version is
                 never below it

**Invariants**: (1) versions are numbered without gaps and removed from the oldest on, so version
n + 1 has never been removed while version n is there; (2) a manifest refers only to durable files;
(3) files that a version names newly are there when it is published, see new_files.py.

**Threads**: any. `_seen` is replaced, never changed; two threads that find the same version agree.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from kudulite.basefile.block_cache import BlockCache
from kudulite.chain.folder import (
    check_folders,
    check_has_no_lost_table,
    contents,
    hinted_version,
    how_to_recall,
    listed_versions,
    make_table_folders,
)
from kudulite.chain.manifest import (
    Manifest,
    Origin,
    TabletEntry,
    VersionList,
    changed_entries,
    crc32_at_end,
)
from kudulite.chain.new_files import building, check_new_files
from kudulite.chain.partition import PartitionSchema, TabletPartition
from kudulite.errors import (
    ConflictError,
    CorruptionError,
    StorageError,
    TableExistsError,
    TableNotFoundError,
    TimestampError,
)
from kudulite.model.hybrid_time import TIMESTAMP_MAX, format_timestamp
from kudulite.model.schema import Schema
from kudulite.storage.checked_json import stored_crc32
from kudulite.storage.file_system import FileRef, FileSystem, read_file
from kudulite.storage.names import (
    HINT_NAME,
    LOCK_NAME,
    MANIFEST_FOLDER,
    ROWSET_FOLDER,
    TABLET_FOLDER,
    new_file_name,
    version_name,
)
from kudulite.storage.storage_error import storage_error
from kudulite.storage.tablet_lock import TabletLock, create_lock_file, read_safe_timestamp
from kudulite.table.background_work import TabletKey
from kudulite.table.environment import Environment
from kudulite.table.metrics import TableMetrics
from kudulite.tablet.superblock import Superblock, read_superblock
from kudulite.tablet.tablet import Tablet

# Versions share the entries of tablets that did not change; each has its own tuple and index.
_ENTRY_BYTES = 100


class _Seen(NamedTuple):
    """The newest version that was found, its file with its identity, and the next file."""

    manifest: Manifest
    identity: tuple[int, int]
    path: str
    next_path: str


@dataclass
class TableStore:
    """The files of one table. `folder` is the table's own."""

    folder: Path
    environment: Environment
    _seen: _Seen | None = field(default=None, repr=False)
    _table_id: str | None = field(default=None, repr=False)  # of the table that was seen first

    @property
    def name(self) -> str:
        """The table's name: that of its folder."""
        return self.folder.name

    @property
    def file_system(self) -> FileSystem:
        """The file system, which makes all durable steps."""
        return self.environment.file_system

    @property
    def cache(self) -> BlockCache:
        """The cache of opened files and decoded blocks."""
        return self.environment.cache

    @cached_property
    def metrics(self) -> TableMetrics:
        """The work that this process has done with the table."""
        return self.environment.metrics.setdefault(self._tablet_folder, TableMetrics())

    # -- versions

    def newest(self) -> Manifest:
        """Return the newest version. Raises TableNotFoundError where there is none.

        Also where the table that this object saw first was deleted, and another one was created in
        its folder.
        """
        seen = self._seen
        if seen is not None and not os.access(seen.next_path, os.F_OK, follow_symlinks=False):
            # The file's identity too: a table may have been deleted and created again meanwhile.
            if self._identity(seen.path) == seen.identity:
                return seen.manifest
        return self._look_for_newest(seen)

    def _look_for_newest(self, before: _Seen | None) -> Manifest:
        start = before
        check_folders(self.folder)
        while True:
            version = None if start is None else self._walked_version(start)
            if version is None:
                version = self._listed_version()
            identity = self._identity(self._version_path(version))
            seen = self._seen
            if seen is not None and (seen.manifest.version, seen.identity) == (version, identity):
                return seen.manifest
            known = None if identity is None else self._read_unchanged(version, identity)
            if known is not None and identity is not None:
                break
            start = None  # superseded and removed meanwhile
        self._check_is_same_table(known)
        self.check_previous(known)
        if before is not None and known.table_id == before.manifest.table_id:
            if known.version < before.manifest.version:
                raise _missing_version(self.folder, known.version, before.manifest.version)
        found = self._seen_as(known, identity)
        seen = self._seen
        # A newer version that another thread found is never replaced by an older one. No function
        # call may stand between this check and the assignment: a call could switch threads.
        if seen is before or seen is None or seen.manifest.version < version:
            self._seen = found
            self._forget_opened(known)
        return known

    def _check_is_same_table(self, found: Manifest) -> None:
        self._table_id = self._table_id or found.table_id
        if found.table_id != self._table_id:
            raise TableNotFoundError(
                f"table {self.name!r} at {self.folder} was deleted, and a table of the same name"
                f" was created again, at {format_timestamp(found.created)}; this object stands for"
                " the deleted one: open the table again"
            )

    def _read_unchanged(self, version: int, identity: tuple[int, int]) -> Manifest | None:
        """Read a version, None where its file was removed since it was identified."""
        try:
            manifest = self.at_version(version)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return manifest if self._identity(self._version_path(version)) == identity else None

    def _walked_version(self, before: _Seen) -> int | None:
        """Return the highest version above `before`, None where `before` is not there any more."""
        version = before.manifest.version
        while self.has_version(version + 1):
            version += 1
        return version if self._identity(before.path) == before.identity else None

    def check_previous(self, manifest: Manifest) -> None:
        """Raise CorruptionError where the version before is not the one that `manifest` names.

        A stray file (see the head) at that number is no damage. It is always the lowest number, or
        its own predecessor is not the one that it names.
        """
        version, expected = manifest.version, manifest.previous_crc32
        found = None if expected is None else self._crc32_of(version - 1)
        if found is None or found == expected:
            return
        with suppress(StorageError):
            earlier = self.at_version(version - 1)
            named = earlier.previous_crc32
            if named is not None and named == self._crc32_of(version - 2):
                raise CorruptionError(
                    f"{self._version_path(version)}: follows a version {version - 1} with CRC"
                    f" {expected:#010x}, but {version_name(version - 1)} has CRC {found:#010x};"
                    " files of two tables or of two copies were mixed: restore the manifest folder"
                )

    def _crc32_of(self, version: int) -> int | None:
        """Return the CRC that a version's file ends with, None where there is no such file."""
        return crc32_at_end(Path(self._version_path(version)))

    def _seen_as(self, manifest: Manifest, identity: tuple[int, int]) -> _Seen:
        path, next_path = map(self._version_path, (manifest.version, manifest.version + 1))
        return _Seen(manifest, identity, path, next_path)

    def last_seen(self) -> Manifest:
        """Return what `newest` gave last, without looking for a newer version."""
        return self.newest() if self._seen is None else self._seen.manifest

    def at_version(self, version: int) -> Manifest:
        """Read one version. Raises StorageError; CorruptionError, also for another version."""
        path = Path(self._version_path(version))
        manifest = Manifest.decode(read_file(path), str(path))
        if manifest.version != version:
            raise CorruptionError(
                f"{path}: holds version {manifest.version}, expected version {version}; files were"
                " swapped or an older one was copied over it: restore the manifest folder"
            )
        return manifest

    def pinned_version(self, version: int, crc32: int | None) -> Manifest:
        """Read a version, unless the file on disk has `crc32` and is the one that was seen last."""
        seen = None if self._seen is None else self._seen.manifest
        if seen and seen.version == version and seen.file_crc32 == crc32 == self._crc32_of(version):
            return seen
        return self.at_version(version)

    def has_version(self, version: int) -> bool:
        """Whether there is a file of this number."""
        return os.access(self._version_path(version), os.F_OK, follow_symlinks=False)

    def versions(self) -> list[int]:
        """Return the numbers in the names of manifest files, ascending; see the head on strays."""
        return listed_versions(self.folder)

    def exists(self) -> bool:
        """Whether the folder holds a table."""
        return bool(self.versions())

    @staticmethod
    def _identity(path: str) -> tuple[int, int] | None:
        """Return the identity of a version's file, None when it does not exist."""
        try:
            found = os.lstat(path)  # a link is found here, and refused when it is opened
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error("read", path, error) from error
        return found.st_ino, found.st_mtime_ns

    @cached_property
    def _manifest_folder(self) -> str:
        return str(self.folder / MANIFEST_FOLDER)

    def _version_path(self, version: int) -> str:
        return f"{self._manifest_folder}/{version_name(version)}"

    def _listed_version(self) -> int:
        published = hinted_version(self.folder)  # first, because versions only rise
        versions = self.versions()
        if versions and versions[-1] < published:
            # The table may have been deleted and created again in between.
            published, versions = hinted_version(self.folder), self.versions()
        if not versions:
            check_has_no_lost_table(self.folder)
            advice = how_to_recall(self.folder.parent, self.name, self._table_id)
            raise TableNotFoundError(
                f"{self.folder} is not a kudulite table: {contents(self.folder)}{advice}"
            )
        if versions[-1] < published:
            raise _missing_version(self.folder, versions[-1], published)
        return versions[-1]

    # -- tablets

    def tablet(self, entry: TabletEntry) -> Tablet:
        """Open a tablet as its entry's superblock describes it."""

        def load() -> tuple[Tablet, int]:
            folder = self.tablet_folder(entry.id)
            superblock = read_superblock(self.file_system, folder, entry.superblock, self.cache)
            tablet = Tablet.open(superblock, folder, self.cache)
            self._forget_replaced(tablet)
            return tablet, tablet.nbytes

        opened: Tablet = self.cache.get_or_load(self._cache_key(entry.superblock), load)
        return opened

    def newest_tablet(self, tablet_id: str) -> tuple[Manifest, Tablet | None]:
        """Return the newest version and a tablet of it, or of a dropped range, or None.

        A purge may remove a superblock as soon as there is a newer one. Raises as `newest`.
        """
        while True:
            manifest = self.newest()
            entry = manifest.readable_entry(tablet_id)
            try:
                return manifest, None if entry is None else self.tablet(entry)
            except StorageError as error:
                if error.errno != errno.ENOENT or self.newest().version == manifest.version:
                    raise

    def building(self, base: Tablet) -> AbstractContextManager[None]:
        """Raise RemovedFilesError where others remove files of a block that works on `base`."""
        return building(self.name, base, lambda: self.newest_tablet(base.id)[1])

    def _cache_key(self, superblock: FileRef) -> tuple[str, str]:
        return self._manifest_folder, superblock.name

    def tablet_folder(self, tablet_id: str) -> Path:
        """Return a tablet's folder."""
        return self.folder / TABLET_FOLDER / tablet_id

    def lock_path(self, tablet_id: str) -> str:
        """Return the path of a tablet's lock file; as text, since every row written asks."""
        return f"{self._tablet_folder}/{tablet_id}/{LOCK_NAME}"

    def tablet_key(self, tablet_id: str) -> TabletKey:
        """Return the key of what this process has in memory of a tablet.

        It names the process: a fork may happen while a thread of the parent changes that memory.
        """
        return self._tablet_folder, tablet_id, os.getpid()

    @cached_property
    def _tablet_folder(self) -> str:
        return str(self.folder / TABLET_FOLDER)

    def lock(
        self, tablet_id: str, *, is_shared: bool = False, stays_open: bool = False
    ) -> TabletLock:
        """Return a tablet's lock, for a `with`; it waits up to the client's lock timeout."""
        path, timeout_seconds = self.lock_path(tablet_id), self.environment.lock_timeout_seconds
        owner = f"table {self.name!r}, tablet {tablet_id}: "
        return TabletLock(
            path, timeout_seconds, is_shared=is_shared, stays_open=stays_open, owner=owner
        )

    @contextmanager
    def locked(self, tablet_id: str, work: str) -> Iterator[TabletLock]:
        """Hold a tablet's lock, announced as `work`. Raises LockTimeoutError, StorageError.

        Raises TableNotFoundError where the table was moved meanwhile, ConflictError where the
        tablet was dropped.
        """
        with ExitStack() as stack:
            try:
                lock = stack.enter_context(self.lock(tablet_id))
            except StorageError as error:
                if error.errno != errno.ENOENT or self.newest().readable_entry(tablet_id):
                    raise
                raise ConflictError(
                    f"table {self.name!r}: the range of tablet {tablet_id} was dropped during the"
                    " call; call again"
                ) from error
            lock.announce(work)
            yield lock

    def lock_all(self, stack: ExitStack, work: str) -> dict[str, TabletLock]:
        """Take the locks of all tablets into `stack`; return them by tablet id.

        While they are held no commit or alteration is under way.
        """
        while True:
            ids = sorted(entry.id for entry in self.newest().tablets)
            with ExitStack() as taken:
                locks = {each: taken.enter_context(self.locked(each, work)) for each in ids}
                # An alteration that was waited for may have added or dropped tablets.
                if ids == sorted(entry.id for entry in self.newest().tablets):
                    stack.enter_context(taken.pop_all())
                    return locks

    @contextmanager
    def lock_any(self, work: str) -> Iterator[tuple[Manifest, TabletLock]]:
        """Hold the lock of one tablet, any of them; give the newest version under it.

        Meanwhile the table is not altered, deleted, or created again. Raises LockTimeoutError,
        TableNotFoundError, StorageError.
        """
        while True:
            tablet_id = self.newest().tablets[0].id
            with self.locked(tablet_id, work) as lock:
                newest = self.newest()
                # An alteration that was waited for may have dropped the tablet.
                if newest.entry(tablet_id) is not None:
                    yield newest, lock
                    return

    def safe_timestamp(self, tablet_id: str) -> int:
        """Return the highest safe timestamp of a tablet, read without its lock."""
        return read_safe_timestamp(self.lock_path(tablet_id))

    def next_timestamp(self, used: int) -> int:
        """Return a timestamp for a write: the present, above `used`. Raises TimestampError."""
        timestamp = max(self.environment.clock.now(), used + 1)
        if timestamp > TIMESTAMP_MAX:
            raise TimestampError(
                f"table {self.name!r}: no timestamp is left above {used}; some machine's"
                " clock was far ahead when it wrote or read here"
            )
        return timestamp

    # -- what is in memory

    def forget(self, tablet_id: str) -> None:
        """Give up what this process has in memory of a tablet, with its open log and lock file.

        Always correct, because the log has it: current users keep it, the next one reads the log.
        """
        key = self.tablet_key(tablet_id)
        self.environment.memories.pop(key, None)
        self.environment.row_queues.pop(key, None)

    def forget_all(self) -> None:
        """Give up what this process has in memory of the table, whose folder was removed."""
        if self._seen is not None:
            for entry in self._seen.manifest.readable_tablets:
                self.forget(entry.id)
        self.environment.manifests.pop(self._manifest_folder, None)
        self.cache.remove_below(f"{self.folder}{os.sep}")

    def _forget_superseded(self, newest: Manifest) -> None:
        """Forget tablets that have another superblock now."""
        folder, _, process_id = self.tablet_key("")
        for entry in newest.readable_tablets:
            known = self.environment.memories.get((folder, entry.id, process_id))
            if known is not None and known[0] != entry.superblock.name:
                self.forget(entry.id)

    def _forget_opened(self, newest: Manifest) -> None:
        """Forget what this process has opened of tablets that changed: they keep merged deltas."""
        environment, folder = self.environment, self._manifest_folder
        before = environment.manifests.get(folder, newest)
        if before.table_id == newest.table_id and before.version > newest.version:
            return
        environment.manifests[folder] = newest
        for old, new in changed_entries(before, newest):
            if old is None:
                continue
            if new is None:
                self.forget(old.id)
                self.cache.remove_below(f"{self.tablet_folder(old.id)}{os.sep}")
            elif new.superblock.name != old.superblock.name:
                if (opened := self.cache.take(self._cache_key(old.superblock))) is not None:
                    environment.replaced.setdefault(self.tablet_key(old.id), opened.superblock)
                if (written := self.cache.get(self._cache_key(new.superblock))) is not None:
                    self._forget_replaced(written)

    def _forget_replaced(self, tablet: Tablet) -> None:
        """Forget blocks of files that a tablet has no more; a scan still reads them if it must."""
        if (before := self.environment.replaced.pop(self.tablet_key(tablet.id), None)) is not None:
            self.cache.remove_files(tablet.replaced_files(before))

    # -- creating and publishing

    def create(
        self,
        schema: Schema,
        partition: PartitionSchema,
        owner: str | None = None,
        comment: str | None = None,
    ) -> Manifest:
        """Create the table: empty tablets and version 1. Raises TableExistsError."""
        if self.exists():
            raise TableExistsError(f"table {self.name!r} exists already at {self.folder}")
        check_has_no_lost_table(self.folder)
        make_table_folders(self.file_system, self.folder)
        entries = tuple(self.create_tablet(place) for place in partition.tablets())
        for folder in (self.folder / TABLET_FOLDER, self.folder, self.folder.parent):
            self.file_system.sync_directory(folder)
        manifest = Manifest(
            table_id=uuid.uuid4().hex,
            version=1,
            schema=schema,
            partition=partition,
            tablets=entries,
            created=(now := self.environment.clock.now()),
            commit_id=uuid.uuid4().hex,
            versions=VersionList().with_version(1, Origin("create", now)),
            owner=owner,
            comment=comment,
        )
        published = self.publish(manifest)
        if published is None:
            for entry in entries:
                self.file_system.remove_tree(self.tablet_folder(entry.id))
            raise TableExistsError(f"table {self.name!r} was just created by another process")
        return published

    def create_tablet(self, place: TabletPartition) -> TabletEntry:
        """Make an empty tablet, durable but for its folder's name; in no version yet."""
        tablet_id = uuid.uuid4().hex
        folder = self.tablet_folder(tablet_id)
        self.file_system.make_directory(folder)
        self.file_system.make_directory(folder / ROWSET_FOLDER)
        create_lock_file(folder / LOCK_NAME)
        entry = TabletEntry(tablet_id, place, self.write_superblock(Superblock(tablet_id)))
        self.file_system.sync_directory(folder)
        return entry

    def write_superblock(self, superblock: Superblock, old: TabletEntry | None = None) -> FileRef:
        """Write a superblock, durable but for its name; its base may be that of `old`, durable.

        The tablet that it describes is kept in the cache, as the next operation will want it.
        """
        content, base = superblock.encode(None if old is None else self.tablet(old).superblock)
        folder = self.tablet_folder(superblock.tablet_id)
        ref = self.file_system.write_file(folder / new_file_name("superblock"), content)
        written = replace(superblock, file=ref, base=base)
        tablet = Tablet.open(written, folder, self.cache)
        self.cache.put(self._cache_key(ref), tablet, tablet.nbytes)
        return ref

    def with_superblock(
        self, entry: TabletEntry, superblock: Superblock, timestamp: int
    ) -> TabletEntry:
        """Write a newer superblock of a tablet, durable; return the tablet's entry with it."""
        ref = self.write_superblock(superblock, entry)
        self.file_system.sync_directory(self.tablet_folder(entry.id))
        return entry.with_superblock(ref, superblock.rowsets, timestamp)

    def publish(self, manifest: Manifest) -> Manifest | None:
        """Make `manifest` the newest version and return it; None where another version is newer.

        The caller holds the locks of the tablets that it changes. Raises RemovedFilesError,
        ConflictError where the table was deleted and created again, StorageError.
        """
        if not self._has_new_files(manifest):
            return None
        path = Path(self._version_path(manifest.version))
        content = manifest.encode()
        manifest = replace(manifest, file_crc32=stored_crc32(content))
        if not self.file_system.publish(path, content):
            return None
        if not self._is_published(manifest):
            self.file_system.remove(path)
            return None
        self._table_id = manifest.table_id
        identity = self._identity(self._version_path(manifest.version))
        # It may have been superseded and removed already.
        self._seen = None if identity is None else self._seen_as(manifest, identity)
        self._forget_superseded(manifest)
        self._forget_opened(manifest)
        # A garbage collection wants all versions of the grace time.
        nbytes = len(manifest.readable_tablets) * _ENTRY_BYTES
        self.cache.put((str(path), manifest.file_crc32), manifest, nbytes)
        try:
            self.file_system.replace_file(path.with_name(HINT_NAME), b"%d" % manifest.version)
        except StorageError:
            pass  # without the hint a missing newest version may stay unnoticed
        return manifest

    def _has_new_files(self, manifest: Manifest) -> bool:
        """Whether all files are there that `manifest` names newly; False if it is not the next."""
        newest = None
        if manifest.version > 1:
            newest = newest_of(self, manifest.table_id)
            if newest.version >= manifest.version:
                return False
        for old, entry in changed_entries(newest, manifest):
            if entry is not None and (old is None or old.superblock != entry.superblock):
                known = None if old is None else self.tablet(old)
                check_new_files(self.name, self.tablet(entry), known)
        return True

    def _is_published(self, manifest: Manifest) -> bool:
        """Whether the file that was just created is a version, and not a stray; see the head."""
        before = self._crc32_of(manifest.version - 1)
        if before is not None:
            return before == manifest.previous_crc32
        # The version before was removed: after this one was created, or long before that.
        try:
            return self.at_version(manifest.version + 1).previous_crc32 == manifest.file_crc32
        except StorageError:
            return self.versions()[-1:] == [manifest.version]


def newest_of(store: TableStore, table_id: str) -> Manifest:
    """Return the newest version. Raises ConflictError where it is of another table of this name."""
    try:
        newest = store.newest()
        is_same = newest.table_id == table_id
    except TableNotFoundError:
        if not store.exists():
            raise
        is_same = False
    if not is_same:
        raise ConflictError(
            f"table {store.name!r} was deleted and created again during a write; open it again"
        )
    return newest


def _missing_version(folder: Path, newest: int, published: int) -> CorruptionError:
    path = folder / MANIFEST_FOLDER / version_name(published)
    return CorruptionError(
        f"{folder}: the newest version is {newest}, but version {published} was published: {path}"
        " or a later version is missing; restore it from a copy of the table"
    )
