"""A backup set: the directory that holds the backups of one table, and the chains they make.

    full ◀── incremental ◀── incremental          full ◀── incremental

A folder is a backup once it has a manifest. A folder without one belongs to a backup that is being
made, or that was interrupted.

**Threads**: any thread may read. A process that writes holds the set's lock (`LockedJob`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from os.path import abspath
from pathlib import Path
from typing import Annotated, Self

import pyarrow.parquet as pq

from kudulite.backups.format import (
    LOCK_NAME,
    MANIFEST_NAME,
    BackupHead,
    ContentSum,
    DataFile,
    moment_of_id,
    readable_body,
)
from kudulite.chain.partition import placed_schema
from kudulite.errors import CorruptionError, FormatVersionError, NotFoundError, StorageError
from kudulite.model.aliases import Moment
from kudulite.model.hybrid_time import format_timestamp, parse_timestamp
from kudulite.shown.progress import Progress
from kudulite.storage.address import path_of
from kudulite.storage.json_form import Stored
from kudulite.storage.storage import Storage, verify_file
from kudulite.storage.storage_error import arrow_errors
from kudulite.table.environment import default_environment

_DAMAGE = (CorruptionError, FormatVersionError, StorageError)


@dataclass(frozen=True)
class Backup(BackupHead):
    """A finished backup.

    `content_hash` is of the table at `moment`, None if it was not asked for. `crc32` is the
    checksum of the backup's manifest.
    """

    path: Annotated[Path, Stored(is_kept=False)] = Path()
    content_hash: int | None = None
    files: tuple[DataFile, ...] = ()
    crc32: Annotated[int, Stored(is_kept=False)] = 0

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
            check_data_file(self.path, file)

    def encode(self) -> bytes:
        """Return the content of manifest.json."""
        return self.encode_head(self.to_json())

    @staticmethod
    def decode(content: bytes, path: Path) -> Backup:
        """Build the backup in the folder `path` from its manifest's content.

        Raises FormatVersionError, CorruptionError.
        """
        source = str(path / MANIFEST_NAME)
        with readable_body(content, source, "a backup's manifest") as body:
            crc32 = zlib.crc32(content)
            found = Backup.from_json(body, path=path, crc32=crc32, **placed_schema(body))
        if found.id != path.name:
            raise CorruptionError(
                f"{source}: the manifest is of backup {found.id}, expected {path.name}"
            )
        return found


def check_data_file(folder: Path, file: DataFile) -> None:
    """Read a whole file. Raises CorruptionError or StorageError unless it matches `file`."""
    path, storage = folder / file.ref.name, default_environment().storage
    verify_file(storage, path, file.ref)
    with arrow_errors(path, "not a Parquet file"):
        found = pq.read_metadata(storage.open(path, file.ref)).num_rows
    if found != file.row_count:
        raise CorruptionError(f"{path}: {found} rows, expected {file.row_count}")


class BackupSet:
    """The backups in one directory."""

    def __init__(self, folder: Path, storage: Storage) -> None:
        self.folder = Path(abspath(folder))
        self.storage = storage

    def folders(self) -> list[Path]:
        """Return the folders of all backups, the oldest first, unfinished ones included."""
        found = self.storage.entries(self.folder)
        return [path for path in found if moment_of_id(path.name) is not None]

    def ids(self) -> list[str]:
        """Return the ids of the finished backups, the oldest first."""
        exists = self.storage.exists
        return [path.name for path in self.folders() if exists(path / MANIFEST_NAME)]

    def read(self, backup: str) -> Backup:
        """Read one backup's manifest. Raises NotFoundError listing the backups, CorruptionError."""
        path = self.folder / backup
        if moment_of_id(backup) is None or not self.storage.exists(path / MANIFEST_NAME):
            raise NotFoundError(f"{self.folder} has no backup {backup!r}; {self._listed()}")
        return Backup.decode(self.storage.read(path / MANIFEST_NAME), path)

    def newest(self) -> Backup | None:
        """Return the newest backup, None where there is none."""
        ids = self.ids()
        return self.read(ids[-1]) if ids else None

    def chain(self, at: Moment | None = None) -> list[Backup]:
        """Return a full backup and its increments up to the backup `at`.

        `at` is a backup's id, or a moment, which means the newest backup at or before it; None is
        the newest. Raises NotFoundError listing the backups, CorruptionError for a broken chain.
        """
        chain = [self.read(self._id_at(at))]
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
                check_data_file(found.path, file)
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

    def _id_at(self, at: Moment | None) -> str:
        ids = self.ids()
        if not ids:
            raise NotFoundError(f"{self.folder} has no backup; take one with kudulite.backup")
        if at is None:
            return ids[-1]
        if isinstance(at, str) and moment_of_id(at) is not None:
            return at
        moment = parse_timestamp(at)
        found = [name for name in ids if (moment_of_id(name) or 0) <= moment]
        if not found:
            raise NotFoundError(
                f"{self.folder} has no backup at or before {format_timestamp(moment)};"
                f" {self._listed()}"
            )
        return found[-1]

    def _listed(self) -> str:
        return f"backups: {', '.join(self.ids()) or 'none'}"


def list_backups(target: str | PathLike[str]) -> list[Backup]:
    """Return the finished backups in the directory `target`, the oldest first.

    Raises CorruptionError for a damaged manifest, FormatVersionError for one of a newer version.
    """
    backups = BackupSet(path_of(target), default_environment().storage)
    return [backups.read(name) for name in backups.ids()]


def verify_backups(
    target: str | PathLike[str], report: Callable[[str], None] = lambda backup: None
) -> dict[str, list[str]]:
    """Read all backups in the directory `target`; return the problems of each damaged one by id.

    Lengths, checksums and row counts of all files are compared with the manifests, and each
    manifest with that of its parent. `report` is called with the id of each backup before it is
    read. Raises NotFoundError if there is no backup.
    """
    backups = BackupSet(path_of(target), default_environment().storage)
    found: dict[str, list[str]] = {}
    if not backups.ids():
        raise NotFoundError(f"{backups.folder} has no backup to verify")
    with Progress(f"verification of {backups.folder}", len(backups.ids()), "backups") as progress:
        for name in progress.counted(backups.ids(), lambda name: 1):
            report(name)
            if problems := backups.problems_of(name):
                found[name] = problems
    return found


class LockedJob:
    """A backup or restore in progress; it holds the lock of a folder until its `with` block ends.

    Unfinished work stays on disk, and the next job of the same kind continues it.
    """

    def __init__(self, folder: Path, storage: Storage, announcement: str) -> None:
        storage.make_root(folder)
        with ExitStack() as held:
            held.enter_context(storage.lease(folder / LOCK_NAME, 0.0, announcement))
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
