"""Files that a version names newly: they must be there when it is published.

    operation    read version n ──── write files, no lock ────┐ lock: check, publish version n + 1
    removal                          lock: remove what no version names

Files of an operation under way are in no version. A purge, and a garbage collection without grace
time, remove them: they look like those of an operation that was killed, and may hold rows that were
purged. So the operation notices. `TableStore.publish` checks every version, in one place, and the
operation builds its files again. Its last attempt builds them under the lock.

The check holds until the version is published, because of the tablet's lock. The publisher of a
tablet's new files holds it, and a garbage collection holds it while it looks for the files of the
tablet that are in no version and removes them. Files that are already in a version stay meanwhile:
nobody else can supersede them. Version 1 of a table needs no lock, as its folder is collected only
once it has a version; the check finds a folder that another creation has made anew.

Inputs may go, too: once another process has published a tablet, the files that an operation still
reads are superseded. It then begins again at the new superblock, or gives up.

**Threads**: any.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kudulite.errors import ConflictError, StorageError
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.storage.file_system import FileSystem, exists
from kudulite.storage.names import ROWSET_FOLDER
from kudulite.tablet.superblock import Superblock
from kudulite.tablet.tablet import Tablet


class RemovedFilesError(ConflictError):
    """Files of an operation under way were removed: nothing was published, build them again."""


def check_new_files(table: str, made: Tablet, before: Tablet | None) -> None:
    """Raise RemovedFilesError if a file is missing that `made` has and `before` has not.

    `before` is of the newest version, so the files that it names are there.
    """
    for path in _new_paths(made.superblock, made.folder, before):
        if not exists(path):
            raise _removed(table, f"{path} does not exist")


@contextmanager
def building(table: str, base: Tablet, newest: Callable[[], Tablet | None]) -> Iterator[None]:
    """Raise RemovedFilesError in the place of a StorageError for a file that others removed.

    The block reads files of `base` and writes new ones, without the tablet's lock. A file of `base`
    that is missing while the `newest` tablet has its superblock is damage, and stays an error.
    """
    try:
        yield
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        now = newest()
        if now is not None and now.superblock == base.superblock:
            if not all(map(exists, _new_paths(now.superblock, now.folder, None))):
                raise
        raise _removed(table, str(error.strerror)) from error


def remove_built(file_system: FileSystem, base: Tablet, rowsets: Iterable[RowSetMeta]) -> None:
    """Remove the files of `rowsets` that `base` has not: they were built on it and not published.

    They may hold rows that a purge has erased meanwhile. Garbage collection removes the rest.
    """
    had = {name for meta in base.superblock.rowsets for name in meta.file_names}
    folder = base.folder / ROWSET_FOLDER
    with suppress(StorageError):
        for meta in rowsets:
            for name in meta.file_names:
                if name not in had:
                    file_system.remove(folder / meta.id / name)


def _removed(table: str, found: str) -> RemovedFilesError:
    return RemovedFilesError(
        f"table {table!r}: {found}: a purge, or a garbage collection without grace time, removed"
        " files of an operation under way; nothing was changed: call again"
    )


def _new_paths(made: Superblock, folder: Path, before: Tablet | None) -> Iterator[Path]:
    """Yield the files of a superblock that `before` has not, with its own."""
    old = None if before is None else before.superblock
    known = {} if old is None else {meta.id: meta for meta in old.rowsets}
    if made.file is not None and (old is None or old.file != made.file):
        yield folder / made.file.name
    for meta in made.rowsets:
        earlier = known.get(meta.id)
        if earlier is not meta:
            had = [] if earlier is None else earlier.file_names
            for name in set(meta.file_names).difference(had):
                yield folder / ROWSET_FOLDER / meta.id / name
    had = [] if old is None else [ref.name for ref in old.tablet_file_refs]
    for name in {ref.name for ref in made.tablet_file_refs}.difference(had):
        yield folder / name
