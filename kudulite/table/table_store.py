"""One table as this process has it: its versions, opened tablets, locks, and what is in memory.

**Invariants**: files that a version names newly are there when it is published (new_files.py).

**Threads**: any.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from kudulite.basefile.block_cache import BlockCache
from kudulite.chain.folder import (
    check_has_no_lost_table,
    make_table_folders,
)
from kudulite.chain.manifest import Manifest, Origin, TabletEntry, VersionList, changed_entries
from kudulite.chain.new_files import building, check_new_files
from kudulite.chain.partition import PartitionSchema, TabletPartition
from kudulite.chain.version_chain import VersionChain
from kudulite.errors import (
    ConflictError,
    StorageError,
    TableExistsError,
    TimestampError,
)
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.model.schema import Schema
from kudulite.storage.file_system import FileRef, FileSystem
from kudulite.storage.names import (
    LOCK_NAME,
    ROWSET_FOLDER,
    TABLET_FOLDER,
    new_file_name,
)
from kudulite.storage.tablet_lock import TabletLock, create_lock_file, read_safe_timestamp
from kudulite.table.background_work import TabletKey
from kudulite.table.environment import Environment
from kudulite.table.metrics import TableMetrics
from kudulite.tablet.superblock import Superblock, read_superblock
from kudulite.tablet.tablet import Tablet

# Versions share the entries of tablets that did not change; each has its own tuple and index.
_ENTRY_BYTES = 100


@dataclass
class TableStore:
    """The files of one table. `folder` is the table's own."""

    folder: Path
    environment: Environment

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

    @cached_property
    def chain(self) -> VersionChain:
        """The table's versions."""
        return VersionChain(self.folder, self.file_system, self._forget_opened)

    def newest(self) -> Manifest:
        """Return the newest version. Raises TableNotFoundError where there is none.

        Also where the table that this object saw first was deleted, and another one was created in
        its folder.
        """
        return self.chain.newest()

    def update(
        self, fit: Callable[[Manifest], Manifest | None], newest: Manifest
    ) -> Manifest | None:
        """Publish the next version as `VersionChain.update` does, if all its new files are there.

        Raises RemovedFilesError, and as it does.
        """
        published = self.chain.update(fit, newest, self._check_new_files)
        return None if published is None else self._kept(published)

    def begin(self, manifest: Manifest) -> Manifest | None:
        """Publish version 1 of a new table; None where another one was created meanwhile."""
        self._check_new_files(None, manifest)
        published = self.chain.begin(manifest)
        return None if published is None else self._kept(published)

    def _kept(self, published: Manifest) -> Manifest:
        """Forget what a version of this process supersedes; keep it for garbage collections.

        They want all versions of the grace time.
        """
        self._forget_superseded(published)
        key = str(self.chain.path(published.version)), published.file_crc32
        self.cache.put(key, published, len(published.readable_tablets) * _ENTRY_BYTES)
        return published

    def _check_new_files(self, before: Manifest | None, manifest: Manifest) -> None:
        for old, entry in changed_entries(before, manifest):
            if entry is not None and (old is None or old.superblock != entry.superblock):
                opened = None if old is None else self.tablet(old)
                check_new_files(self.name, self.tablet(entry), opened)

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
        return self.chain.manifest_folder, superblock.name

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
        if (known := self.chain.known) is not None:
            for entry in known.readable_tablets:
                self.forget(entry.id)
        self.environment.manifests.pop(self.chain.manifest_folder, None)
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
        environment, folder = self.environment, self.chain.manifest_folder
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
        if self.chain.exists():
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
        published = self.begin(manifest)
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
