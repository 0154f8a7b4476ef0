"""One table as this process has it: its versions, opened tablets, its lock, and what is in memory.

**Threads**: any.
"""

from __future__ import annotations

import errno
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from os import getpid
from pathlib import Path
from typing import TypeVar

from kudulite.basefile.block_cache import BlockCache
from kudulite.chain.entry_chain import EntryChain
from kudulite.chain.folder import (
    check_has_no_lost_table,
    make_table_folders,
)
from kudulite.chain.manifest import Manifest, Origin, TabletEntry, VersionList, changed_entries
from kudulite.chain.partition import PartitionSchema, TabletPartition
from kudulite.chain.version_chain import VersionChain
from kudulite.errors import (
    KuduliteError,
    StorageError,
    TableExistsError,
    TimestampError,
)
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.model.schema import Schema
from kudulite.storage.names import ROWSET_FOLDER, TABLET_FOLDER
from kudulite.storage.new_files import NewFiles
from kudulite.storage.storage import FileRef, Storage, check_length
from kudulite.table.background_work import TableKey
from kudulite.table.chain_log import ChainLog
from kudulite.table.directory_log import DirectoryLog
from kudulite.table.environment import Environment
from kudulite.table.metrics import TableMetrics
from kudulite.table.table_log import LostRaceError, TableLog, Turn
from kudulite.table.table_memory import SupersededError
from kudulite.table.upgrade import upgrade
from kudulite.tablet.superblock import Superblock, read_superblock
from kudulite.tablet.tablet import Tablet

_log = logging.getLogger(__name__)

# Versions share the entries of tablets that did not change; each has its own tuple and index.
_ENTRY_BYTES = 100
# Each time, another process has created and deleted a table of the name.
_CREATIONS_MAX = 50

Result = TypeVar("Result")


@dataclass
class TableStore:
    """The files of one table. `folder` is the table's own."""

    folder: Path
    environment: Environment

    @property
    def name(self) -> str:
        """The table's name: that of its folder."""
        return self.folder.name

    @cached_property
    def place(self) -> Path:
        """Where the table's files are; its folder, where folders can be moved."""
        return self.storage.place_of(self.folder)

    @property
    def storage(self) -> Storage:
        """The file system, which makes all durable steps."""
        return self.environment.storage

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
    def chain(self) -> VersionChain | EntryChain:
        """The table's versions."""
        kind = VersionChain if self.storage.is_directory else EntryChain
        return kind(self.place, self.storage, self._forget_opened, self.folder)

    def newest(self) -> Manifest:
        """Return the newest version. Raises TableNotFoundError where there is none.

        Also where the table that this object saw first was deleted, and another one was created in
        its folder.
        """
        return self.chain.newest()

    def update(
        self,
        fit: Callable[[Manifest], Manifest | None],
        newest: Manifest,
        turn: Turn,
    ) -> Manifest | None:
        """Publish the next version as `TableLog.publish` does."""
        published = self.log.publish(turn, fit, newest)
        return None if published is None else self._kept(published)

    def upgraded(self) -> Manifest:
        """Return a version of today's format, perhaps one seen not long ago (`newest_at`).

        A table of an older format is upgraded.
        """
        newest = self.chain.newest_at(0)
        if newest.has_tablet_logs:
            assert isinstance(self.chain, VersionChain)  # older formats were in directories only
            timeout_seconds = self.environment.lock_timeout_seconds
            upgrade(self.chain, self.cache, timeout_seconds, self.next_timestamp)
            newest = self.newest()
        return newest

    def begin(self, manifest: Manifest) -> Manifest | None:
        """Publish version 1 of a new table; None where another one was created meanwhile.

        Raises StorageError where another creation in the folder has removed files of this one.
        """
        for entry in manifest.readable_tablets:
            for path, ref in self.tablet(entry).files():
                check_length(self.storage, path, ref)
        published = self.chain.begin(manifest)
        if published is None or not self.storage.name_place(self.folder, self.place):
            return None
        return self._kept(published)

    def _kept(self, published: Manifest) -> Manifest:
        """Keep a version of this process: garbage collections want all those of the grace time."""
        key = str(self.chain.path(published.version)), published.file_crc32
        self.cache.put(key, published, len(published.readable_tablets) * _ENTRY_BYTES)
        return published

    # -- tablets

    def tablet(self, entry: TabletEntry) -> Tablet:
        """Open a tablet as its entry's superblock describes it."""

        def load() -> tuple[Tablet, int]:
            folder = self.tablet_folder(entry.id)
            superblock = read_superblock(self.storage, folder, entry.superblock, self.cache)
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

    def _cache_key(self, superblock: FileRef) -> tuple[str, str]:
        return self.chain.manifest_folder, superblock.name

    def tablet_folder(self, tablet_id: str) -> Path:
        """Return a tablet's folder."""
        return self.place / TABLET_FOLDER / tablet_id

    @property
    def memory_key(self) -> TableKey:
        """The key of what this process has in memory of the table.

        It names the process: a fork may happen while a thread of the parent changes that memory.
        """
        return self._tablet_folder, getpid()

    @cached_property
    def _tablet_folder(self) -> str:
        return str(self.place / TABLET_FOLDER)

    # -- turns

    @cached_property
    def log(self) -> TableLog:
        """The table's log."""
        if isinstance(self.chain, EntryChain):
            return ChainLog(self.chain, self.environment.clock)
        return DirectoryLog(self.chain)

    def turn(
        self,
        *,
        is_shared: bool = False,
        stays_open: bool = False,
        has_looked: bool = False,
        timeout_seconds: float | None = None,
    ) -> Turn:
        """Return a turn, for a `with`; it waits up to the client's lock timeout."""
        if timeout_seconds is None:
            timeout_seconds = self.environment.lock_timeout_seconds
        return self.log.turn(
            timeout_seconds, is_shared=is_shared, stays_open=stays_open, has_looked=has_looked
        )

    @contextmanager
    def locked(
        self, work: str, timeout_seconds: float | None = None, *, has_looked: bool = False
    ) -> Iterator[Turn]:
        """Hold a turn, announced as `work`; all that is in the log is durable then.

        Meanwhile the table is not written, altered, deleted, or created again. Raises
        LockTimeoutError, TableNotFoundError, StorageError, CorruptionError.
        """
        self.upgraded()
        with ExitStack() as stack:
            try:
                turn = self.turn(timeout_seconds=timeout_seconds, has_looked=has_looked)
                stack.enter_context(turn)
            except StorageError as error:
                if error.errno == errno.ENOENT:
                    self.newest()  # it is missing where the table was moved meanwhile
                raise
            turn.announce(work)
            self.log.settle(turn, turn.newest())
            yield turn

    def in_turn(
        self,
        work: str,
        body: Callable[[Turn], Result],
        timeout_seconds: float | None = None,
        *,
        has_looked: bool = False,
    ) -> Result:
        """Return what `body` does in a turn, which is taken again where another writer came first.

        The first turn of a caller that `has_looked` for the newest state just now may follow that.
        Raises as `locked`, and what `body` raises of a state that nobody has changed meanwhile.
        """

        def attempt(turn: Turn) -> Result:
            try:
                return body(turn)
            except KuduliteError as error:
                # Files may be missing where another writer came first. After another error of the
                # storage this turn may have written, and must not be taken again.
                if not isinstance(error, StorageError) or error.errno == errno.ENOENT:
                    turn.check_is_first()
                raise

        with self.locked(work, timeout_seconds, has_looked=has_looked) as turn:
            while True:
                try:
                    return attempt(turn)
                except (LostRaceError, SupersededError):
                    turn.renew()

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

    def forget(self) -> None:
        """Give up what this process has in memory of the table, with its open log and lock file.

        Always correct, because the log has it: current users keep it, the next one reads the log.
        """
        self.environment.memories.pop(self.memory_key, None)
        self.environment.write_queues.pop(self.memory_key, None)

    def forget_all(self) -> None:
        """Give up what this process has of the table, whose folder was removed."""
        self.forget()
        self.environment.metrics.pop(self._tablet_folder, None)
        self.environment.manifests.pop(self.chain.manifest_folder, None)
        self.cache.remove_below(f"{self.place}/")

    def _forget_opened(self, newest: Manifest) -> None:
        """Forget what this process has opened of tablets that changed: they keep merged deltas."""
        environment, folder = self.environment, self.chain.manifest_folder
        before = environment.manifests.get(folder, newest)
        if before.table_id == newest.table_id and before.version > newest.version:
            return
        environment.manifests[folder] = newest
        memory = environment.memories.get(self.memory_key)
        if memory is not None and memory.is_superseded_by(newest):
            self.forget()  # so that an open log and lock file are of a table with rows in memory
        for old, new in changed_entries(before, newest):
            if old is None:
                continue
            if new is None:
                self.cache.remove_below(f"{self.tablet_folder(old.id)}/")
            elif new.superblock.name != old.superblock.name:
                if (opened := self.cache.take(self._cache_key(old.superblock))) is not None:
                    environment.replaced.setdefault(
                        (self._tablet_folder, old.id), opened.superblock
                    )
                if (written := self.cache.get(self._cache_key(new.superblock))) is not None:
                    self._forget_replaced(written)

    def _forget_replaced(self, tablet: Tablet) -> None:
        """Forget blocks of files that a tablet has no more; a scan still reads them if it must."""
        if (
            before := self.environment.replaced.pop((self._tablet_folder, tablet.id), None)
        ) is not None:
            self.cache.remove_files(tablet.replaced_files(before))

    # -- creating and publishing

    def create(
        self,
        schema: Schema,
        partition: PartitionSchema,
        owner: str | None = None,
        comment: str | None = None,
    ) -> Manifest:
        """Create the table: empty tablets and version 1. Raises TableExistsError.

        It begins again where another process has created and deleted a table of the name meanwhile.
        """
        for _ in range(_CREATIONS_MAX - 1):
            try:
                return self._create(schema, partition, owner, comment)
            except StorageError as error:
                if error.errno != errno.ENOENT:
                    raise
        return self._create(schema, partition, owner, comment)

    def is_there(self) -> bool:
        """Whether the folder holds a table. Raises CorruptionError if it has lost its manifest."""
        if self.chain.exists():
            return True
        check_has_no_lost_table(self.storage, self.folder)
        return False

    def make_folders(self) -> None:
        """Make the folders of a new table; the caller makes their names durable."""
        place = self.storage.new_place(self.folder)
        if place != self.place:
            for name in ("chain", "log", "metrics", "_tablet_folder"):
                self.__dict__.pop(name, None)
            self.place = place
        make_table_folders(self.storage, place)

    def _create(
        self, schema: Schema, partition: PartitionSchema, owner: str | None, comment: str | None
    ) -> Manifest:
        if self.is_there():
            raise TableExistsError(f"table {self.name!r} exists already at {self.folder}")
        self.make_folders()
        self.log.create()
        entries = tuple(self.create_tablet(place) for place in partition.tablets())
        for folder in (self.place / TABLET_FOLDER, self.place, self.place.parent):
            self.storage.sync([folder])
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
                self.storage.delete_below(self.tablet_folder(entry.id))
            raise TableExistsError(f"table {self.name!r} was just created by another process")
        return published

    def create_tablet(self, place: TabletPartition) -> TabletEntry:
        """Make an empty tablet, durable but for its folder's name; in no version yet."""
        tablet_id = uuid.uuid4().hex
        folder = self.tablet_folder(tablet_id)
        self.storage.make_folder(folder)
        self.storage.make_folder(folder / ROWSET_FOLDER)
        return TabletEntry(tablet_id, place, self.write_superblock(Superblock(tablet_id)))

    def write_superblock(self, superblock: Superblock, old: TabletEntry | None = None) -> FileRef:
        """Write a superblock, durable; its base may be that of `old`.

        The tablet that it describes is kept in the cache, as the next operation will want it.
        """
        content, base = superblock.encode(None if old is None else self.tablet(old).superblock)
        folder = self.tablet_folder(superblock.tablet_id)
        files = NewFiles(self.storage)
        ref = files.put(folder, "superblock", content)
        files.sync()
        written = replace(superblock, file=ref, base=base)
        tablet = Tablet.open(written, folder, self.cache)
        self.cache.put(self._cache_key(ref), tablet, tablet.nbytes)
        return ref

    def with_superblock(
        self, entry: TabletEntry, superblock: Superblock, timestamp: int
    ) -> TabletEntry:
        """Write a newer superblock of a tablet, durable; return the tablet's entry with it."""
        ref = self.write_superblock(superblock, entry)
        return entry.with_superblock(ref, superblock.rowsets, timestamp)

    def log_operation(
        self, operation: str, tablet_ids: Sequence[str], seconds: float, nbytes: int, more: str
    ) -> None:
        """Log an operation of upkeep that wrote or removed `nbytes`, as a line and as fields.

        The record has the attributes `table`, `tablet`, `operation`, `seconds` and `bytes`. Several
        tablets are separated by commas in the attribute, and counted in the line.
        """
        is_one = len(tablet_ids) == 1
        tablets = f"tablet {tablet_ids[0]}" if is_one else f"{len(tablet_ids)} tablets"
        fields = {"table": self.name, "tablet": ",".join(tablet_ids), "operation": operation}
        _log.info(
            "table %r, %s: %s took %.2f s, %s",
            self.name,
            tablets,
            operation,
            seconds,
            more,
            extra={**fields, "seconds": seconds, "bytes": nbytes},
        )
