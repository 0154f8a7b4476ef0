"""A backup set: the directory that holds the backups of one table, and the chains they make.

    full ◀── incremental ◀── incremental          full ◀── incremental

A folder counts as a backup once its manifest is there; others are being made, or were left behind
by whoever was killed.

Threads: any may read. Whoever writes holds the set's lock.

What a backup and a restore have in common: work under a lock, until its `with` block ends.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from kudulite.backups.format import (
    LOCK_NAME,
    MANIFEST_NAME,
    BackupHead,
    ContentSum,
    DataFile,
    content_crc32,
    decode_body,
    moment_of_id,
    readable,
)
from kudulite.errors import CorruptionError, NotFoundError, StorageError
from kudulite.fs.file_system import FileSystem, read_file, verify_file
from kudulite.fs.json_form import Stored
from kudulite.fs.lock import TabletLock, create_lock_file
from kudulite.model.hybrid_time import format_timestamp, parse_timestamp
from kudulite.table.partition import placed_schema
from kudulite.table.table_store import default_environment


@dataclass(frozen=True)
class Backup(BackupHead):
    """A backup that is whole. `content_hash` is of the table at `moment`, None if not asked for.

    `crc32` is that of its manifest.
    """

    path: Annotated[Path, Stored(is_kept=False)] = Path()
    content_hash: int | None = None
    files: tuple[DataFile, ...] = ()
    crc32: Annotated[int, Stored(is_kept=False)] = 0

    @property
    def byte_count(self) -> int:
        """Bytes of its data files."""
        return sum(file.ref.length for file in self.files)

    @property
    def written_row_count(self) -> int:
        """Rows of its data files: of the table, or changes."""
        return sum(file.row_count for file in self.files)

    @property
    def delete_count(self) -> int:
        """How many of its changes are deletes."""
        return sum(file.delete_count for file in self.files)

    @property
    def content(self) -> ContentSum | None:
        """What the rows of the table at `moment` sum up to, None where that is not recorded."""
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
        body = decode_body(content, source, "a backup's manifest")
        with readable(source, "a backup's manifest"):
            crc32 = content_crc32(content)
            found = Backup.from_json(body, path=path, crc32=crc32, **placed_schema(body))
        if found.id != path.name:
            raise CorruptionError(f"{source}: of backup {found.id}, in a folder of another name")
        return found


def check_data_file(folder: Path, file: DataFile) -> None:
    """Read a file whole. Raises CorruptionError or StorageError unless it is as `file` says."""
    path = folder / file.ref.name
    verify_file(path, file.ref)
    try:
        found = pq.read_metadata(path).num_rows
    except pa.ArrowException as error:
        raise CorruptionError(f"{path}: not a Parquet file: {error}") from error
    if found != file.row_count:
        raise CorruptionError(f"{path}: {found} rows, expected {file.row_count}")


class BackupSet:
    """The backups in one directory."""

    def __init__(self, folder: Path, file_system: FileSystem) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.file_system = file_system

    def folders(self) -> list[Path]:
        """Return the folders of backups, also unfinished ones, the oldest first."""
        try:
            found = [path for path in self.folder.iterdir() if moment_of_id(path.name) is not None]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found)

    def ids(self) -> list[str]:
        """Return the ids of whole backups, the oldest first."""
        return [path.name for path in self.folders() if (path / MANIFEST_NAME).exists()]

    def read(self, backup: str) -> Backup:
        """Read one backup's manifest. Raises NotFoundError listing the backups, CorruptionError."""
        path = self.folder / backup
        if moment_of_id(backup) is None or not (path / MANIFEST_NAME).exists():
            raise NotFoundError(f"{self.folder} has no backup {backup!r}; {self._listed()}")
        return Backup.decode(read_file(path / MANIFEST_NAME), path)

    def newest(self) -> Backup | None:
        """Return the newest backup, None where there is none."""
        ids = self.ids()
        return self.read(ids[-1]) if ids else None

    def chain(self, at: Any = None) -> list[Backup]:
        """Return a full backup and the increments up to the one asked for.

        `at` is a backup's id, or a moment: the newest backup at or before it; None is the newest.
        Raises NotFoundError listing the backups, CorruptionError where the chain is broken.
        """
        chain = [self.read(self._id_at(at))]
        while (parent := chain[0].parent) is not None:
            child = chain[0]
            try:
                older = self.read(parent)
            except NotFoundError as error:
                raise StorageError(
                    0, f"backup {child.id} in {self.folder} needs backup {parent}: {error}"
                ) from error
            if (older.crc32, older.table_id) != (child.parent_crc32, child.table_id) or (
                older.moment != child.start
            ):
                raise CorruptionError(
                    f"{older.path / MANIFEST_NAME}: not the backup that {child.id} was made upon:"
                    f" CRC {older.crc32:#010x} of table {older.table_id}, expected"
                    f" {child.parent_crc32 or 0:#010x} of table {child.table_id}"
                )
            chain.insert(0, older)
        return chain

    def _id_at(self, at: Any) -> str:
        ids = self.ids()
        if not ids:
            raise NotFoundError(f"{self.folder} holds no backup; take one with kudulite.backup")
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

    def lock(self, timeout_seconds: float = 0.0) -> TabletLock:
        """Return an acquisition of the set's lock, for a `with`; makes the directory."""
        self.file_system.make_directory(self.folder, parents=True)
        create_lock_file(self.folder / LOCK_NAME)
        return TabletLock(self.folder / LOCK_NAME, timeout_seconds)


def list_backups(target: str | os.PathLike[str]) -> list[Backup]:
    """Return the whole backups in the directory `target`, the oldest first.

    Raises CorruptionError for a manifest that is damaged, FormatVersionError for a newer one.
    """
    backups = BackupSet(Path(target), default_environment().file_system)
    return [backups.read(name) for name in backups.ids()]


class LockedJob:
    """Work that is under way; closed by leaving its `with`. What is not finished stays, to go on.

    `held` is what it has taken: the lock, which keeps others from the same work.
    """

    def __init__(self, held: ExitStack) -> None:
        self._held = held

    def close(self) -> None:
        """Give the lock back; twice does no harm."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
