"""A folder as it is found on disk: a table, a table that lost its manifest, or something else.

A creation makes manifest/ first and version 1 last. A folder between the two is no table and no
damage: the next creation under its name completes it. A folder without a version is damaged if a
version was published in it: manifest/ is missing, the hint is there, or a tablet or the log holds
rows.

A directory of tables also holds tables that were deleted or are staged, in hidden folders. One
that holds no table is of a deletion or recall that was killed. Removal renames a whole folder after
its expiry, and a recall moves the table out of it, so that of two at once one fails and changes
nothing. names.py has all names.

**Threads**: any; nothing is kept.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kudulite.errors import CorruptionError, StorageError
from kudulite.storage.names import (
    HINT_NAME,
    LOG_FOLDER,
    MANIFEST_FOLDER,
    ROWSET_FOLDER,
    TABLET_FOLDER,
    WAL_FOLDER,
    WRITES_FOLDER,
    soft_deleted_of,
    staged_of,
    version_of,
)
from kudulite.storage.storage import Storage, is_taken
from kudulite.storage.table_folders import FOLDERS_NAME

_HINT = re.compile(rb"[0-9]{1,20}\s*")
_EPOCH = datetime.fromtimestamp(0, UTC)


def make_table_folders(storage: Storage, folder: Path) -> None:
    """Make a table's folder and those in it; the caller makes their names durable."""
    storage.make_root(folder.parent)
    storage.make_folder(folder)
    storage.make_folder(folder / MANIFEST_FOLDER)
    # A folder with tablets and without this one counts as a table that has lost its versions.
    storage.sync([folder])
    storage.make_folder(folder / TABLET_FOLDER)
    storage.make_folder(folder / WRITES_FOLDER)


def has_table_files(storage: Storage, folder: Path) -> bool:
    """Whether the files of a table are in a folder itself."""
    return all(storage.is_folder(folder / name) for name in (MANIFEST_FOLDER, TABLET_FOLDER))


def listed_versions(storage: Storage, folder: Path) -> list[int]:
    """Return the numbers in the names of manifest files, ascending; strays are included."""
    names = [path.name for path in storage.entries(folder / MANIFEST_FOLDER)]
    return sorted(found for name in names if (found := version_of(name)) is not None)


def hinted_version(storage: Storage, folder: Path) -> int:
    """Return the number in the hint, -1 where it is missing or unreadable."""
    try:
        content = storage.read(folder / MANIFEST_FOLDER / HINT_NAME)
    except StorageError:
        return -1
    return int(content) if _HINT.fullmatch(content) else -1


def check_folders(storage: Storage, folder: Path) -> None:
    """Raise CorruptionError where a folder inside of a table is a symbolic link."""
    for name in (MANIFEST_FOLDER, TABLET_FOLDER, WRITES_FOLDER, LOG_FOLDER):
        storage.check_folder(folder / name)


def check_has_no_lost_table(storage: Storage, folder: Path) -> None:
    """Raise CorruptionError for a folder without a version in which one was published."""
    # Each look is several steps: another process may create, rename or delete the table between
    # them. A table that was lost is found lost again.
    lost = _lost_table(storage, folder) and _lost_table(storage, folder)
    if lost:
        raise CorruptionError(
            f"{folder}: a table without its manifest: {folder / MANIFEST_FOLDER}: {lost}; restore"
            " the folder from a copy of the table, or the table from a backup"
        )


def _lost_table(storage: Storage, folder: Path) -> str:
    """Return what is missing of a table that was in a folder, empty if there was none."""
    tablets, manifest = folder / TABLET_FOLDER, folder / MANIFEST_FOLDER
    if not storage.is_folder(tablets) or listed_versions(storage, folder):
        return ""
    if not storage.is_folder(manifest):
        return "the folder is missing"
    inside = (ROWSET_FOLDER, WAL_FOLDER)
    places = [tablet / name for tablet in storage.entries(tablets) for name in inside]
    places.append(folder / LOG_FOLDER)
    is_lost = any(map(storage.entries, places)) or storage.exists(manifest / HINT_NAME)
    return "the folder has no version" if is_lost else ""


def contents(storage: Storage, folder: Path) -> str:
    """Return what is there instead of a table, for a message."""
    if not is_taken(storage, folder):
        return "the folder does not exist; create the table first"
    if not storage.is_folder(folder):
        return "it is a file"
    names = [path.name for path in storage.entries(folder)][:5]
    return f"expected a folder manifest/ with versions, found {', '.join(names) or 'nothing'}"


@dataclass(frozen=True)
class SoftDeletedTable:
    """A deleted table that `Client.recall_table` can bring back, by its id.

    Its files may be removed from the moment `expires` on.
    """

    id: str
    name: str
    deleted: datetime
    expires: datetime
    path: Path


def staged_root(folder: Path) -> Path | None:
    """Return the directory in which the table of a folder is staged, None if it is not."""
    holder = folder.parent
    return None if staged_of(holder.name) is None else holder.parent


def soft_deleted_tables(storage: Storage, root: Path) -> list[SoftDeletedTable]:
    """Return the soft-deleted tables of a directory, by name, the last deleted first.

    Those that one has no right to list are left out: they cannot be recalled.
    """
    found = [
        SoftDeletedTable(hidden.id, path.name, _moment(hidden.since), _moment(hidden.expires), path)
        for folder in storage.entries(root)
        if (hidden := soft_deleted_of(folder.name)) is not None
        for path in _allowed_entries(storage, folder)
    ]
    found.sort(key=lambda table: table.deleted, reverse=True)
    return sorted(found, key=lambda table: table.name)


def _allowed_entries(storage: Storage, folder: Path) -> list[Path]:
    try:
        return storage.entries(folder)
    except StorageError as error:
        if is_refused(error):
            return []
        raise


def is_refused(error: StorageError) -> bool:
    """Whether an error says that one has no right to a file or folder."""
    return error.errno in (errno.EACCES, errno.EPERM)


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def how_to_recall(storage: Storage, root: Path, name: str, table_id: str | None = None) -> str:
    """Return a sentence about a soft-deleted table of this id, or name, to end a message with."""
    for table in soft_deleted_tables(storage, root):
        if table_id == table.id or (table_id is None and name == table.name):
            return (
                f"; table {table.name!r} was soft-deleted at {table.deleted:%Y-%m-%dT%H:%M:%SZ}:"
                f" client.recall_table({table.id!r}) brings it back"
            )
    return ""


def how_to_copy(storage: Storage, root: Path, name: str) -> str:
    """Return a sentence about tables that were copied by hand from another kind of storage."""
    if storage.table_names(root) is None:
        other, folder = "an object store", root / FOLDERS_NAME
    else:
        other, folder = "a directory", root / name / MANIFEST_FOLDER
    if not storage.is_folder(folder):
        return ""
    return (
        f"; the files here were copied from {other}, whose tables have other files: copy each of"
        " them from there with Table.copy_to, or with kudulite copy"
    )
