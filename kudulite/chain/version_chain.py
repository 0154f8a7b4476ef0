"""The chain of versions of one table: finding the newest, reading one, publishing the next.

    fit version n + 1 on the newest, n ──> name is free: published
               ↑                       └── name is taken: another version came first
               └───────────────────────────────────┘

A name of a removed version can be created again: by a publication that was built on version n,
stood still, and went on after n and n + 1 were removed. Such a stray file is not a version. Three
rules follow from the first invariant below:

    publishing   version n + 1 is published if n, as it was built on, is still there after n + 1 was
                 created; or, without n, if n + 2 was built on it or n + 1 is the highest number.
                 Otherwise the new file is taken back, and the writer looks for the newest again
    finding      a walk upwards from version n counts if n is still there at its end; otherwise the
                 folder is listed, and the highest number is the newest version
    reading      a file names its own version and the CRC of the version before, and both are
                 compared; the hint names a version that was published, so the newest version is
                 never below it

`TableChain` is what this chain and that of storage without a lock (entry_chain.py) share.

**Invariants**: (1) versions are numbered without gaps and removed from the oldest on, so version
n + 1 has never been removed while version n is there; (2) a manifest refers only to durable files.

**Threads**: any. `_seen` is replaced, never changed; two threads that find the same version agree.
"""

from __future__ import annotations

import errno
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from kudulite.chain.folder import (
    check_folders,
    check_has_no_lost_table,
    contents,
    hinted_version,
    how_to_copy,
    how_to_recall,
    listed_versions,
)
from kudulite.chain.manifest import Manifest, crc32_at_end
from kudulite.errors import ConflictError, CorruptionError, StorageError, TableNotFoundError
from kudulite.model.hybrid_time import format_timestamp
from kudulite.storage.checked_json import stored_crc32
from kudulite.storage.names import HINT_NAME, MANIFEST_FOLDER, version_name
from kudulite.storage.storage import Storage

# Each lost race is another writer's success; so many in a row mean that something is wrong.
ATTEMPTS_MAX = 1000
# So many without a newer version mean the same. A network file system may show one seconds late.
UNSEEN_ATTEMPTS_MAX = 250


@dataclass
class TableChain(ABC):
    """The chain of the table in `folder`.

    `table_folder` is the folder that leads there, if that is another one. `on_newest` is called
    with each newest version that this object finds or publishes.
    """

    folder: Path
    storage: Storage
    on_newest: Callable[[Manifest], None]
    table_folder: Path | None = None
    _table_id: str | None = field(default=None, repr=False)  # of the table that was seen first

    @property
    def name(self) -> str:
        """The table's name: that of its folder."""
        return (self.table_folder or self.folder).name

    @abstractmethod
    def newest(self) -> Manifest:
        """Return the newest version. Raises TableNotFoundError where there is none."""

    @property
    @abstractmethod
    def known(self) -> Manifest | None:
        """The version that `newest` gave last, None before its first call."""

    @abstractmethod
    def newest_at(self, timestamp: int) -> Manifest:
        """Return a version that shows all up to a settled moment. Raises as `newest`."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether the folder holds a table."""

    @abstractmethod
    def crc32_of(self, version: int) -> int | None:
        """Return the CRC that the file of a number ends with, None where there is no such file."""

    # -- versions

    def last_seen(self) -> Manifest:
        """Return what `newest` gave last, without looking for a newer version."""
        return self.known or self.newest()

    def at(self, version: int) -> Manifest:
        """Read one version. Raises StorageError; CorruptionError, also for another version."""
        path = self.path(version)
        manifest = Manifest.decode(self.storage.read(path), str(path))
        if manifest.version != version:
            raise CorruptionError(
                f"{path}: holds version {manifest.version}, expected version {version}; files were"
                " swapped or an older one was copied over it: restore the manifest folder"
            )
        return manifest

    def pinned(self, version: int, crc32: int | None) -> Manifest:
        """Read a version, unless the file on disk has `crc32` and is the one that was seen last."""
        seen = self.known
        if seen and seen.version == version and seen.file_crc32 == crc32 == self.crc32_of(version):
            return seen
        return self.at(version)

    def newest_of(self, table_id: str) -> Manifest:
        """Return the newest version. Raises ConflictError where it is of another table."""
        try:
            newest = self.newest()
            is_same = newest.table_id == table_id
        except TableNotFoundError:
            if not self.exists():
                raise
            is_same = False
        if not is_same:
            raise ConflictError(
                f"table {self.name!r} was deleted and created again during a write; open it again"
            )
        return newest

    def _check_is_same_table(self, found: Manifest) -> None:
        self._table_id = self._table_id or found.table_id
        if found.table_id != self._table_id:
            raise TableNotFoundError(
                f"table {self.name!r} at {self.table_folder or self.folder} was deleted, and a"
                f" table of the same name was created again, at {format_timestamp(found.created)};"
                " this object stands for the deleted one: open the table again"
            )

    # -- files

    def has(self, version: int) -> bool:
        """Whether there is a file of this number."""
        return self.storage.exists(self._version_path(version))

    def numbers(self) -> list[int]:
        """Return the numbers in the names of manifest files, ascending, strays too."""
        return listed_versions(self.storage, self.folder)

    @cached_property
    def manifest_folder(self) -> str:
        """The path of the folder of versions."""
        return str(self.folder / MANIFEST_FOLDER)

    def path(self, version: int) -> Path:
        """Return the path of a version's file."""
        return self.folder / MANIFEST_FOLDER / version_name(version)

    def _version_path(self, version: int) -> str:
        return f"{self.manifest_folder}/{version_name(version)}"

    def _listed_version(self) -> int:
        published = hinted_version(self.storage, self.folder)  # first, because versions only rise
        versions = self.numbers()
        if versions and versions[-1] < published:
            # The table may have been deleted and created again in between.
            published, versions = hinted_version(self.storage, self.folder), self.numbers()
        if not versions:
            check_has_no_lost_table(self.storage, self.folder)
            folder = self.table_folder or self.folder
            advice = how_to_recall(self.storage, folder.parent, self.name, self._table_id)
            advice += how_to_copy(self.storage, folder.parent, self.name)
            found = contents(self.storage, folder)
            raise TableNotFoundError(f"{folder} is not a kudulite table: {found}{advice}")
        if versions[-1] < published:
            raise self._missing_version(versions[-1], published)
        return versions[-1]

    def _missing_version(self, newest: int, published: int, advice: str = "") -> CorruptionError:
        return CorruptionError(
            f"{self.folder}: the newest version is {newest}, but version {published} was published:"
            f" {self._version_path(published)} or a later version is missing; restore it from a"
            f" copy of the table{advice}"
        )


class _Seen(NamedTuple):
    """The newest version that was found, its file with its identity, and the next file."""

    manifest: Manifest
    identity: object
    path: str
    next_path: str


@dataclass
class VersionChain(TableChain):
    """The versions of the table in the directory `folder`."""

    _seen: _Seen | None = field(default=None, repr=False)

    # -- finding and reading

    def newest(self) -> Manifest:
        """Return the newest version. Raises TableNotFoundError where there is none.

        Also where the table that this object saw first was deleted, and another one was created in
        its folder.
        """
        seen = self._seen
        if seen is not None and not self.storage.exists(seen.next_path):
            # The file's identity too: a table may have been deleted and created again meanwhile.
            if self.storage.identity(seen.path) == seen.identity:
                return seen.manifest
        return self._look_for_newest(seen)

    def newest_at(self, timestamp: int) -> Manifest:
        """Return a version that shows all up to a settled moment. Raises as `newest`."""
        return self.newest()

    def _look_for_newest(self, before: _Seen | None) -> Manifest:
        start = before
        check_folders(self.storage, self.folder)
        while True:
            version = None if start is None else self._walked_version(start)
            if version is None:
                version = self._listed_version()
            identity = self.storage.identity(self._version_path(version))
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
                raise self._missing_version(
                    known.version,
                    before.manifest.version,
                    "; if an older copy was put in its place on purpose, open the table again",
                )
        found = self._seen_as(known, identity)
        seen = self._seen
        # A newer version that another thread found is never replaced by an older one. No function
        # call may stand between this check and the assignment: a call could switch threads.
        if seen is before or seen is None or seen.manifest.version < version:
            self._seen = found
            self.on_newest(known)
        return known

    def _read_unchanged(self, version: int, identity: object) -> Manifest | None:
        """Read a version, None where its file was removed since it was identified."""
        try:
            manifest = self.at(version)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return manifest if self.storage.identity(self._version_path(version)) == identity else None

    def _walked_version(self, before: _Seen) -> int | None:
        """Return the highest version above `before`, None where `before` is not there any more."""
        version = before.manifest.version
        while self.has(version + 1):
            version += 1
        return version if self.storage.identity(before.path) == before.identity else None

    def check_previous(self, manifest: Manifest) -> None:
        """Raise CorruptionError where the version before is not the one that `manifest` names.

        A stray file (see the head) at that number is no damage. It is always the lowest number, or
        its own predecessor is not the one that it names.
        """
        version, expected = manifest.version, manifest.previous_crc32
        found = None if expected is None else self.crc32_of(version - 1)
        if found is None or found == expected:
            return
        with suppress(StorageError):
            earlier = self.at(version - 1)
            named = earlier.previous_crc32
            if named is not None and named == self.crc32_of(version - 2):
                raise CorruptionError(
                    f"{self._version_path(version)}: follows a version {version - 1} with CRC"
                    f" {expected:#010x}, but {version_name(version - 1)} has CRC {found:#010x};"
                    " files of two tables or of two copies were mixed: restore the manifest folder"
                )

    def check_entry(self, version: int) -> None:
        """Read a version and check that it follows the one before. Raises CorruptionError."""
        self.check_previous(self.at(version))

    def crc32_of(self, version: int) -> int | None:
        """Return the CRC that a version's file ends with, None where there is no such file."""
        return crc32_at_end(self.storage, self.path(version))

    def _seen_as(self, manifest: Manifest, identity: object) -> _Seen:
        path, next_path = map(self._version_path, (manifest.version, manifest.version + 1))
        return _Seen(manifest, identity, path, next_path)

    @property
    def known(self) -> Manifest | None:
        """The version that `newest` gave last, None before its first call."""
        return None if self._seen is None else self._seen.manifest

    def before(self, manifest: Manifest) -> Manifest | None:
        """Read the version before one, None if there is none: it was removed, or is a stray."""
        try:
            found = self.at(manifest.version - 1)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return found if manifest.previous_crc32 in (None, found.file_crc32) else None

    def remove(
        self,
        ages_seconds: Mapping[int, float],
        must_stay_before: Callable[[int], bool],
        delete: Callable[[str], None],
    ) -> int:
        """Remove versions from the oldest on, up to one that is needed; return how many.

        `ages_seconds` has all numbers, ascending, and how long each has been there. A version is
        needed where it `must_stay_before` its successor. `delete` removes a file of the folder.
        """
        count = 0
        for version, successor in itertools.pairwise(ages_seconds):
            if must_stay_before(successor):
                break
            delete(version_name(version))
            count += 1
        return count

    def oldest(self) -> int:
        """Return the number of the oldest version that is there."""
        return self.numbers()[0]

    def exists(self) -> bool:
        """Whether the folder holds a table."""
        return bool(self.numbers())

    # -- publishing

    def update(
        self, fit: Callable[[Manifest], Manifest | None], newest: Manifest
    ) -> Manifest | None:
        """Publish `fit(newest)`, and again on each newer version that came first.

        `fit` returns the version that follows the one it is given, or None to give up; so does
        this. The caller holds the table's lock, so another version comes first only where a network
        file system has given the lock to two.
        Raises ConflictError where the table was deleted and created again, or too many others were
        faster; CorruptionError, StorageError.
        """
        table_id, changed = newest.table_id, 0
        for attempt in range(ATTEMPTS_MAX):
            manifest = fit(newest)
            if manifest is None:
                return None
            assert manifest.previous_crc32 == newest.file_crc32
            published = self._attempt(manifest)
            if published is not None:
                return published
            newest = self.newest_of(table_id)
            if newest.version >= manifest.version:
                changed = attempt
            elif attempt - changed == UNSEEN_ATTEMPTS_MAX:
                raise CorruptionError(
                    f"{self.folder / MANIFEST_FOLDER}: {version_name(manifest.version)} cannot be"
                    f" created, because the name is taken, but the newest version is"
                    f" {newest.version}; look at that file, and restore the manifest folder from a"
                    " copy of the table"
                )
            time.sleep(min(0.02, 0.0005 * attempt))
        raise ConflictError(
            f"table {self.name!r}: {ATTEMPTS_MAX} other versions were published meanwhile; write"
            " again"
        )

    def _attempt(self, manifest: Manifest) -> Manifest | None:
        if self.newest_of(manifest.table_id).version >= manifest.version:
            return None
        return self._publish(manifest)

    def begin(self, manifest: Manifest) -> Manifest | None:
        """Publish version 1 of a new table; None where another one was created meanwhile."""
        return self._publish(manifest)

    def _publish(self, manifest: Manifest) -> Manifest | None:
        """Make `manifest` the newest version and return it; None where another version is newer."""
        path = self.path(manifest.version)
        content = manifest.encode()
        manifest = replace(manifest, file_crc32=stored_crc32(content))
        try:
            is_created = self.storage.put_if_absent(path, content)
        except StorageError as error:
            if self.crc32_of(manifest.version) != manifest.file_crc32:
                raise
            raise StorageError(
                error.errno,
                f"{error.strerror}; version {manifest.version} can be read all the same, and a"
                " power failure may take it back: look at the table before you write again",
            ) from error
        if not is_created:
            return None
        if not self._is_published(manifest):
            self.storage.delete(path)
            return None
        self._table_id = manifest.table_id
        identity = self.storage.identity(self._version_path(manifest.version))
        # It may have been superseded and removed already.
        self._seen = None if identity is None else self._seen_as(manifest, identity)
        self.on_newest(manifest)
        try:
            self.storage.put_hint(path.with_name(HINT_NAME), b"%d" % manifest.version)
        except StorageError:
            pass  # without the hint a missing newest version may stay unnoticed
        return manifest

    def _is_published(self, manifest: Manifest) -> bool:
        """Whether the file that was just created is a version, and not a stray; see the head."""
        before = self.crc32_of(manifest.version - 1)
        if before is not None:
            return before == manifest.previous_crc32
        # The version before was removed: after this one was created, or long before that.
        try:
            return self.at(manifest.version + 1).previous_crc32 == manifest.file_crc32
        except StorageError:
            return self.numbers()[-1:] == [manifest.version]
