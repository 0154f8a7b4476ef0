"""Removal of tables that were deleted: of their files, once nobody can write to them any more.

A deletion gives a table the name of trash, and then ends its log. Where it was killed in between, a
process that has the table open can still write to it. So the log is ended before the files are
removed. A file of its own, because clients and garbage collections remove tables.

**Threads**: any. Several processes may remove one table.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

from kudulite.errors import StorageError
from kudulite.model.hybrid_time import physical_microseconds
from kudulite.storage.names import is_trash, new_trash_name, soft_deleted_of, staged_of
from kudulite.table.environment import Environment
from kudulite.table.table_store import TableStore


def remove_trash(root: Path, environment: Environment) -> None:
    """Remove deleted tables, also those whose deletion or creation was killed half way, and
    soft-deleted ones whose reserve has passed.
    """
    storage = environment.storage
    remove_expired_tables(root, environment)
    storage.adopt_abandoned(root)
    for path in storage.entries(root):
        if is_trash(path.name):
            _remove_tables(path, environment)


def remove_expired_tables(root: Path, environment: Environment) -> None:
    """Remove soft-deleted and staged tables whose reserve has passed.

    One that cannot be removed is left to the next call.
    """
    now = physical_microseconds(environment.clock.now())
    for folder in environment.storage.entries(root):
        hidden = soft_deleted_of(folder.name) or staged_of(folder.name)
        if hidden is not None and hidden.expires <= now:
            with suppress(StorageError):
                discard_folder(folder, root, environment)


def discard_folder(folder: Path, root: Path, environment: Environment) -> None:
    """Remove the folder of a table, or one with such folders, which is trash at once, durably.

    A table that has got another folder before is not removed, and none gets one later. In a
    directory all that is in the folder is removed with it.
    """
    storage, trash, is_there = environment.storage, root / new_trash_name(), True
    try:
        storage.move(folder, trash)
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        is_there = False  # another process has moved it
    # Else a power failure could bring the name back to a table without some files.
    storage.sync({folder.parent, root})
    if is_there:
        _remove_tables(trash, environment)


def _remove_tables(trash: Path, environment: Environment) -> None:
    """Remove the table whose folder is `trash`, or those whose folders are in it."""
    storage = environment.storage
    for folder in (trash, *storage.entries(trash)):
        TableStore(folder, environment).log.refuse_all()
    storage.delete_below(trash)
