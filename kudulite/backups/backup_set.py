"""A backup set: the place that holds the backups of one table, and the chains they make.

    full ◀── incremental ◀── incremental          full ◀── incremental

A folder is a backup once it has a manifest. A folder without one belongs to a backup that is being
made, or that was interrupted.

A job that writes holds the set's lock (`LockedJob`). An object store has no locks, so two jobs may
be at work there. They do no harm to each other:

    the same kind      the second job continues the plan of the first; the first manifest counts
    another kind       the second job gives the first one up, which ends with ConflictError
    both plan at once  two backups, each whole and with its chain

A backup is given up by the manifest that nobody can replace (format.py), before its files are
removed. So no manifest names a file that was removed.

**Threads**: any.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Annotated, Self

import pyarrow.parquet as pq

from kudulite.backups.format import (
    GIVEN_UP,
    LOCK_NAME,
    MANIFEST_NAME,
    PLAN_NAME,
    BackupHead,
    ContentSum,
    DataFile,
    moment_of_id,
    readable_body,
)
from kudulite.chain.partition import placed_schema
from kudulite.errors import (
    ConflictError,
    CorruptionError,
    FormatVersionError,
    NotFoundError,
    StorageError,
)
from kudulite.model.aliases import Moment
from kudulite.model.hybrid_time import format_timestamp, parse_timestamp
from kudulite.shown.progress import Progress
from kudulite.storage.address import parse_address
from kudulite.storage.json_form import Stored
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.storage import Storage, read_if_there, verify_file
from kudulite.storage.storage_error import arrow_errors
from kudulite.table.environment import environment_at

_DAMAGE = (CorruptionError, FormatVersionError, StorageError)


@dataclass(frozen=True)
class Backup(BackupHead):
    """A finished backup.

    `content_hash` is of the table at `moment`, None if it was not asked for. `crc32` is the
    checksum of the backup's manifest, and `storage` has the files below `path`.
    """

    path: Annotated[Path, Stored(is_kept=False)] = Path()
    content_hash: int | None = None
    files: tuple[DataFile, ...] = ()
    crc32: Annotated[int, Stored(is_kept=False)] = 0
    storage: Annotated[Storage, Stored(is_kept=False)] = field(
        default_factory=LocalStorage, repr=False, compare=False
    )

    @property
    def byte_count(self) -> int:
        """Return how many bytes its data files have."""
        return sum(file.ref.length for file in self.files)

    @property
    def written_row_count(self) -> int:
        """Return how many rows its data files have: rows of the table, or changes."""
        return sum(file.row_count for file in self.files)

    @property
    def delete_count(self) -> int:
        """Return how many of its changes are deletes."""
        return sum(file.delete_count for file in self.files)

    @property
    def content(self) -> ContentSum | None:
        """Return the content sum of the table at `moment`, None if it was not recorded."""
        return None if self.content_hash is None else ContentSum(self.row_count, self.content_hash)

    def verify(self) -> None:
        """Read all its files and compare lengths, checksums and row counts with the manifest.

        Raises CorruptionError or StorageError naming the first file that differs.
        """
        for file in self.files:
            check_data_file(self.storage, self.path, file)

    def encode(self) -> bytes:
        """Return the content of manifest.json."""
        return self.encode_head(self.to_json())

    @staticmethod
    def decode(content: bytes, path: Path, storage: Storage) -> Backup:
        """Build the backup in the folder `path` of a storage from its manifest's content.

        Raises FormatVersionError, CorruptionError.
        """
        source = str(path / MANIFEST_NAME)
        with readable_body(content, source, "a backup's manifest") as body:
            crc32 = zlib.crc32(content)
            found = Backup.from_json(
                body, path=path, crc32=crc32, storage=storage, **placed_schema(body)
            )
        if found.id != path.name:
            raise CorruptionError(
                f"{source}: the manifest is of backup {found.id}, expected {path.name}"
            )
        return found


def check_data_file(storage: Storage, folder: Path, file: DataFile) -> None:
    """Read a whole file. Raises CorruptionError or StorageError unless it matches `file`."""
    path = folder / file.ref.name
    verify_file(storage, path, file.ref)
    with arrow_errors(path, "not a Parquet file"):
        found = pq.read_metadata(storage.open_ranges(path, file.ref).file([])).num_rows
    if found != file.row_count:
        raise CorruptionError(f"{path}: {found} rows, expected {file.row_count}")


class BackupSet:
    """The backups in one place."""

    def __init__(self, folder: Path, storage: Storage) -> None:
        self.folder = folder
        self.storage = storage

    @staticmethod
    def at(
        target: str | PathLike[str], storage_options: Mapping[str, str] | None = None
    ) -> BackupSet:
        """Return the set at an address. Raises UsageError, OptionError."""
        address = parse_address(target, storage_options)
        return BackupSet(address.path, environment_at(address.storage).storage)

    def folders(self) -> list[Path]:
        """Return the folders of all backups, the oldest first, unfinished ones included."""
        found = self.storage.entries(self.folder)
        return [path for path in found if moment_of_id(path.name) is not None]

    def unfinished(self) -> list[Path]:
        """Return the folders without a manifest, the oldest first."""
        folders = self.folders()
        manifests = [path / MANIFEST_NAME for path in folders]
        found = self.storage.side_by_side(self.storage.exists, manifests)
        return [path for path, is_there in zip(folders, found, strict=True) if not is_there]

    def ids(self) -> list[str]:
        """Return the ids of the finished backups, the oldest first."""
        folders = self.folders()
        found = self.storage.side_by_side(self._has_manifest, folders)
        return [path.name for path, is_there in zip(folders, found, strict=True) if is_there]

    def _has_manifest(self, path: Path) -> bool:
        """Whether a folder is a backup, perhaps with a manifest that cannot be read."""
        try:
            return self._manifest(path) is not None
        except (CorruptionError, StorageError):
            return True

    def _manifest(self, path: Path) -> bytes | None:
        """Return the content of a backup's manifest, None of one that is not finished."""
        content = read_if_there(self.storage, path / MANIFEST_NAME)
        return None if content == GIVEN_UP else content

    def read(self, backup: str) -> Backup:
        """Read one backup's manifest. Raises NotFoundError listing the backups, CorruptionError."""
        path = self.folder / backup
        content = None if moment_of_id(backup) is None else self._manifest(path)
        if content is None:
            raise NotFoundError(f"{self.folder} has no backup {backup!r}; {self._listed()}")
        return Backup.decode(content, path, self.storage)

    def all(self) -> list[Backup]:
        """Return the finished backups, the oldest first."""

        def read(path: Path) -> Backup | None:
            content = self._manifest(path)
            return None if content is None else Backup.decode(content, path, self.storage)

        found = self.storage.side_by_side(read, self.folders())
        return [backup for backup in found if backup is not None]

    def newest(self, until: int | None = None) -> Backup | None:
        """Return the newest backup, at or before a moment if one is given; None without one."""
        for path in reversed(self.folders()):
            if until is not None and (moment_of_id(path.name) or 0) > until:
                continue
            if (content := self._manifest(path)) is not None:
                return Backup.decode(content, path, self.storage)
        return None

    def ended(self, backup: str) -> Backup | None:
        """Return a backup that has a manifest, None if it is unfinished.

        Raises ConflictError for one that was given up.
        """
        path = self.folder / backup
        content = read_if_there(self.storage, path / MANIFEST_NAME)
        if content == GIVEN_UP:
            raise ConflictError(
                f"{path}: another backup to this set has begun meanwhile and given this one up;"
                " take another backup when it has ended"
            )
        return None if content is None else Backup.decode(content, path, self.storage)

    def clean(self) -> None:
        """Remove what jobs that were killed, or were late, have left beside manifests."""
        found = self.storage.names_below(self.folder)
        for path in self.folders():
            names = found.get(path, [])
            if MANIFEST_NAME in names and sum(name.endswith(".json") for name in names) > 1:
                self.clean_folder(path)

    def clean_folder(self, path: Path) -> None:
        """Remove the files that a finished backup, or one that was given up, does not need.

        The plan is removed last: a folder with a manifest and a plan is cleaned by the next backup.
        """
        content = self.storage.read(path / MANIFEST_NAME)
        kept = {MANIFEST_NAME, PLAN_NAME}
        if content != GIVEN_UP:
            kept |= {file.ref.name for file in Backup.decode(content, path, self.storage).files}
        found = [entry for entry in self.storage.entries(path) if entry.name not in kept]
        self.storage.side_by_side(self.storage.delete, found)
        self.storage.delete(path / PLAN_NAME)

    def remove_unfinished(self, path: Path, *, is_alone: bool) -> None:
        """Remove an unfinished backup; one whose job may still be at work cannot be finished then.

        `is_alone` says that no other job is at work. Raises ConflictError where it has just been
        finished.
        """
        if is_alone:
            self.storage.delete_below(path)
            return
        if not self.storage.put_if_absent(path / MANIFEST_NAME, GIVEN_UP):
            raise ConflictError(
                f"{path}: another process has just finished this backup; take another one"
            )
        self.clean_folder(path)

    def chain(self, at: Moment | None = None) -> list[Backup]:
        """Return a full backup and its increments up to the backup `at`.

        `at` is a backup's id, or a moment, which means the newest backup at or before it; None is
        the newest. Raises NotFoundError listing the backups, CorruptionError for a broken chain.
        """
        chain = [self._at(at)]
        while (older := self._parent_of(chain[0])) is not None:
            chain.insert(0, older)
        return chain

    def problems_of(self, backup: str) -> list[str]:
        """Read a backup whole, and its parent's manifest; return what is damaged or missing."""
        problems = []
        try:
            found = self.read(backup)
        except _DAMAGE as error:
            return [str(error)]
        for file in found.files:
            try:
                check_data_file(self.storage, found.path, file)
            except _DAMAGE as error:
                problems.append(str(error))
        try:
            self._parent_of(found)
        except _DAMAGE as error:
            problems.append(str(error))
        return problems

    def _parent_of(self, child: Backup) -> Backup | None:
        if child.parent is None:
            return None
        try:
            older = self.read(child.parent)
        except NotFoundError as error:
            raise StorageError(
                0, f"backup {child.id} in {self.folder} needs backup {child.parent}: {error}"
            ) from error
        if (older.crc32, older.table_id) != (child.parent_crc32, child.table_id) or (
            older.moment != child.start
        ):
            raise CorruptionError(
                f"{older.path / MANIFEST_NAME}: not the parent of backup {child.id}:"
                f" CRC {older.crc32:#010x} of table {older.table_id}, expected"
                f" {child.parent_crc32 or 0:#010x} of table {child.table_id}"
            )
        return older

    def _at(self, at: Moment | None) -> Backup:
        if isinstance(at, str) and moment_of_id(at) is not None:
            return self.read(at)
        moment = None if at is None else parse_timestamp(at)
        found = self.newest(moment)
        if found is None and (moment is None or not self.ids()):
            raise NotFoundError(f"{self.folder} has no backup; take one with kudulite.backup")
        if found is None:
            raise NotFoundError(
                f"{self.folder} has no backup at or before {format_timestamp(moment or 0)};"
                f" {self._listed()}"
            )
        return found

    def _listed(self) -> str:
        return f"backups: {', '.join(self.ids()) or 'none'}"


def list_backups(
    target: str | PathLike[str], *, storage_options: Mapping[str, str] | None = None
) -> list[Backup]:
    """Return the finished backups at `target`, the oldest first.

    `target` is an address as in `connect`, with the `storage_options` of its store. Raises
    CorruptionError for a damaged manifest, FormatVersionError for one of a newer version.
    """
    backups = BackupSet.at(target, storage_options)
    return backups.all()


def newest_backup(
    target: str | PathLike[str], *, storage_options: Mapping[str, str] | None = None
) -> Backup | None:
    """Return the newest finished backup at `target`, or None; its age is `now - moment`.

    `target` and the errors are those of `list_backups`. No other backup is read.
    """
    return BackupSet.at(target, storage_options).newest()


def verify_backups(
    target: str | PathLike[str],
    report: Callable[[str], None] = lambda backup: None,
    *,
    storage_options: Mapping[str, str] | None = None,
) -> dict[str, list[str]]:
    """Read all backups at `target`; return the problems of each damaged one by its id.

    `target` is an address as in `connect`, with the `storage_options` of its store. Lengths,
    checksums and row counts of all files are compared with the manifests, and each manifest with
    that of its parent. `report` is called with the id of each backup before it is read. Raises
    NotFoundError if there is no backup.
    """
    backups = BackupSet.at(target, storage_options)
    found: dict[str, list[str]] = {}
    ids = backups.ids()
    if not ids:
        raise NotFoundError(f"{backups.folder} has no backup to verify")
    with Progress(f"verification of {backups.folder}", len(ids), "backups") as progress:
        for name in progress.counted(ids, lambda name: 1):
            report(name)
            if problems := backups.problems_of(name):
                found[name] = problems
    return found


class LockedJob:
    """A backup or restore in progress; it holds the lock of a folder until its `with` block ends.

    Unfinished work stays on disk, and the next job of the same kind continues it. Without locks,
    `_is_alone` is False: other jobs may be at work in the folder.
    """

    def __init__(self, folder: Path, storage: Storage, announcement: str) -> None:
        storage.make_folders(folder)
        with ExitStack() as held:
            lease = storage.lease(folder / LOCK_NAME, 0.0, announcement)
            self._is_alone = held.enter_context(lease)
            self._begin()
            self._held = held.pop_all()

    def _begin(self) -> None:
        """Plan the work, under the lock."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
