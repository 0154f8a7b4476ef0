"""Removal of tables that were deleted: of their files, once nobody can write to them any more.

A deletion gives a table the name of trash, and then ends its log. Where it was killed in between, a
process that has the table open can still write to it. So the log is ended before the files are
removed. A file of its own, because clients and garbage collections remove tables.

**Threads**: any. Several processes may remove one table.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from kudulite.errors import StorageError
from kudulite.model.hybrid_time import physical_microseconds
from kudulite.storage.names import new_trash_name, soft_deleted_of, staged_of
from kudulite.table.environment import Environment
from kudulite.table.table_store import TableStore


def remove_expired_tables(root: Path, environment: Environment) -> None:
    """Remove soft-deleted and staged tables whose reserve has passed.

    One that cannot be removed, or is removed by another process, is left to the next call.
    """
    storage, now = environment.storage, physical_microseconds(environment.clock.now())
    for folder in storage.entries(root):
        hidden = soft_deleted_of(folder.name) or staged_of(folder.name)
        if hidden is not None and hidden.expires <= now:
            trash = root / new_trash_name()
            with suppress(StorageError):
                storage.move(folder, trash)
                # Else a power failure could bring the name back to a table without some files.
                storage.sync([root])
                remove_tables(trash, environment)


def remove_tables(trash: Path, environment: Environment) -> None:
    """Remove the table whose folder is `trash`, or those whose folders are in it."""
    storage = environment.storage
    for folder in (trash, *storage.entries(trash)):
        TableStore(folder, environment).log.refuse_all()
    storage.delete_below(trash)
