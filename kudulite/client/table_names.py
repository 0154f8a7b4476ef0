"""Names of tables in a directory: renaming, deleting, soft-deleting and recalling a table.

The name of a table is that of its folder, so each of these is one rename of the folder, once no
commit is under way: a crash leaves the table under its old place or its new one.

    rename         <root>/<name> → <root>/<new name>
    delete         <root>/<name> → <root>/.deleted-…                   removed at once
    soft-delete    <root>/<name> → <root>/.soft-deleted-…/<name>       removed after its reserve
    recall         <root>/.soft-deleted-…/<name> → <root>/<name>
    publish        <root>/.staged-…/<name>       → <root>/<name>

A soft-deleted table is no table of the directory: its name is free, and objects that stand for it
raise TableNotFoundError until it is recalled. Its history grows older meanwhile.
`Client.soft_delete_table` says which calls remove it after its reserve. The same calls remove a
staged table that was not published by then: its writer was killed.

To publish a table in place of another one is two renames: the other one is soft-deleted first, so a
crash in between leaves both. For that moment the name is free.

**Threads** any.

**Source** Kudu's soft deletion, master/catalog_manager.cc. There the name stays taken, and clients
that have the table open can still read and write it.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from kudulite.errors import (
    ConflictError,
    SchemaError,
    StorageError,
    TableExistsError,
    TableNotFoundError,
    UsageError,
)
from kudulite.fs.file_system import entries_of, exists
from kudulite.model.hybrid_time import physical_microseconds
from kudulite.model.types import is_unicode
from kudulite.table.environment import Environment
from kudulite.table.folder import (
    TRASH_PREFIX,
    SoftDeletedTable,
    remove_expired_tables,
    soft_deleted_folder,
    soft_deleted_tables,
    staged_root,
    staging_folder,
    trash_folder,
)
from kudulite.table.table_store import TableStore

NAME_BYTES_MAX = 200
RESERVE_SECONDS_MAX = (1 << 32) - 1  # as in Kudu, 136 years


def table_folder(root: Path, name: str) -> Path:
    """Return the folder of a table. Raises SchemaError for a name that no table can have."""
    if (
        not isinstance(name, str)
        or not name
        or name.startswith(".")
        or "/" in name
        or "\0" in name
        or not is_unicode(name)
        or len(name.encode()) > NAME_BYTES_MAX
    ):
        raise SchemaError(
            f"table name {name!r}: a name has 1 to {NAME_BYTES_MAX} bytes of UTF-8, no '/', and"
            " does not begin with a dot"
        )
    return root / name


def rename_table(store: TableStore, new_name: str) -> TableStore:
    """Rename a table in its directory, once no commit is under way; return it under its new name.

    Raises TableNotFoundError, TableExistsError, LockTimeoutError.
    """
    target = TableStore(table_folder(store.folder.parent, new_name), store.environment)
    return move_table(store, target)


def move_table(store: TableStore, target: TableStore) -> TableStore:
    """Give a table another folder on the same file system, once no commit is under way.

    Returns `target`. Raises TableNotFoundError, TableExistsError, LockTimeoutError.
    """
    file_system = store.file_system
    with ExitStack() as stack:
        store.lock_all(stack, f"renaming of {store.name!r}")
        if exists(target.folder):
            raise TableExistsError(
                f"cannot rename {store.name!r}: {target.name!r} is in {target.folder.parent}"
            )
        file_system.rename(store.folder, target.folder)
        store.forget_all()
    file_system.sync_directory(target.folder.parent)
    return target


def set_table_aside(store: TableStore, work: str, *, if_version: int | None = None) -> None:
    """Make a table's folder trash, once no commit is under way; its name is free then.

    With `if_version`, only while that is the newest version. The names are durable after
    `sync_directory` of the parent. Raises ConflictError, LockTimeoutError.
    """
    with ExitStack() as stack:
        _lock_at(stack, store, work, if_version)
        store.file_system.rename(store.folder, trash_folder(store.folder.parent))
        store.forget_all()


def _lock_at(stack: ExitStack, store: TableStore, work: str, if_version: int | None) -> None:
    """Take the locks of all tablets of a table that is at a version, or at any."""
    store.lock_all(stack, work)
    version = store.newest().version
    if if_version is not None and version != if_version:
        raise ConflictError(
            f"table {store.name!r} is at version {version}, not {if_version}; not deleted"
        )


def soft_delete_table(
    store: TableStore, reserve_seconds: int, *, if_version: int | None = None
) -> SoftDeletedTable:
    """Set a table aside for `reserve_seconds`, durably, once no commit is under way.

    Raises UsageError, ConflictError, LockTimeoutError, StorageError.
    """
    is_number = isinstance(reserve_seconds, int) and not isinstance(reserve_seconds, bool)
    if not is_number or not 1 <= reserve_seconds <= RESERVE_SECONDS_MAX:
        raise UsageError(
            f"table {store.name!r}: reserve_seconds={reserve_seconds!r}: expected a whole number"
            f" from 1 to {RESERVE_SECONDS_MAX}; delete_table keeps nothing"
        )
    root, file_system = store.folder.parent, store.file_system
    with ExitStack() as stack:
        _lock_at(stack, store, f"soft deletion of {store.name!r}", if_version)
        table_id = store.newest().table_id
        deleted = physical_microseconds(store.environment.clock.now())
        holder = soft_deleted_folder(root, deleted, deleted + reserve_seconds * 10**6, table_id)
        file_system.make_directory(holder)
        # The folder's own name must be durable before the table is in it.
        file_system.sync_directory(root)
        file_system.rename(store.folder, holder / store.name)
        store.forget_all()
    file_system.sync_directory(holder)
    return next(found for found in soft_deleted_tables(root) if found.path.parent == holder)


def recall_table(
    root: Path, table_id: str, new_name: str | None, environment: Environment
) -> TableStore:
    """Give a soft-deleted table its name again, or another one; durable.

    Raises TableNotFoundError listing those that are there, TableExistsError, LockTimeoutError.
    """
    listed = soft_deleted_tables(root)
    found = max((t for t in listed if t.id == table_id), key=lambda t: t.deleted, default=None)
    if found is None:
        texts = ", ".join(f"{table.id} ({table.name!r})" for table in listed) or "none"
        raise TableNotFoundError(
            f"no soft-deleted table with id {table_id!r} in {root}; soft-deleted tables: {texts}"
        )
    target = TableStore(table_folder(root, new_name or found.name), environment)
    if exists(target.folder):
        raise TableExistsError(
            f"cannot recall table {found.name!r}: {target.name!r} is in {root}; give another name,"
            f" as in client.recall_table({table_id!r}, 'new name')"
        )
    try:
        move_table(TableStore(found.path, environment), target)
    except (TableNotFoundError, StorageError) as error:
        if exists(found.path):
            raise
        raise TableNotFoundError(
            f"table {found.name!r}, id {table_id!r}, has just been recalled, or removed after its"
            " reserve, by another process"
        ) from error
    environment.file_system.remove_tree(found.path.parent)
    return target


def new_staging_folder(root: Path, reserve_seconds: int, environment: Environment) -> Path:
    """Return the name of a new folder for staged tables; nothing is made."""
    now = physical_microseconds(environment.clock.now())
    return staging_folder(root, now, now + reserve_seconds * 10**6)


def publish_table(store: TableStore, *, replaced_reserve_seconds: int | None) -> TableStore:
    """Give a staged table its name; durable.

    With `replaced_reserve_seconds`, a table of that name is soft-deleted for so long. Raises
    UsageError for a table that is not staged, TableExistsError, LockTimeoutError.
    """
    root = staged_root(store.folder)
    if root is None:
        raise UsageError(
            f"table {store.name!r} at {store.folder} is not staged: create it with a client of"
            " new_staging()"
        )
    target = TableStore(root / store.name, store.environment)
    replaced = None
    if replaced_reserve_seconds is not None and target.exists():
        replaced = soft_delete_table(target, replaced_reserve_seconds)
    target = TableStore(target.folder, store.environment)
    try:
        move_table(store, target)
    except BaseException:
        if replaced is not None and not exists(target.folder):
            recall_table(root, replaced.id, None, store.environment)
        raise
    store.file_system.remove_tree(store.folder.parent)
    return target


def remove_trash(root: Path, environment: Environment) -> None:
    """Remove deleted tables, also those whose deletion was killed half way, and soft-deleted ones
    whose reserve has passed.
    """
    file_system = environment.file_system
    remove_expired_tables(root, physical_microseconds(environment.clock.now()), file_system)
    for path in entries_of(root):
        if path.name.startswith(TRASH_PREFIX):
            file_system.remove_tree(path)
