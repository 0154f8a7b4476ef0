"""Names of tables: each is the name of the table's folder, so renaming a table renames that."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from pathlib import Path

from kudulite.catalog.table_store import TableStore
from kudulite.errors import ConflictError, SchemaError, TableExistsError
from kudulite.fs.file_system import FileSystem

NAME_BYTES_MAX = 200
TRASH_PREFIX = ".deleted-"


def table_folder(root: Path, name: str) -> Path:
    """Return the folder of a table. Raises SchemaError for a name that no table can have."""
    if (
        not isinstance(name, str)
        or not name
        or name.startswith(".")
        or "/" in name
        or "\0" in name
        or len(name.encode()) > NAME_BYTES_MAX
    ):
        raise SchemaError(
            f"table name {name!r}: a name has 1 to {NAME_BYTES_MAX} bytes, no '/', and does not"
            " begin with a dot"
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
    file_system = store.environment.file_system
    with ExitStack() as stack:
        store.lock_all(stack, f"renaming of {store.name!r}")
        if target.folder.exists():
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
        store.lock_all(stack, work)
        version = store.newest().version
        if if_version is not None and version != if_version:
            raise ConflictError(
                f"table {store.name!r} is at version {version}, not {if_version}; not deleted"
            )
        trash = store.folder.with_name(f"{TRASH_PREFIX}{uuid.uuid4().hex}")
        store.environment.file_system.rename(store.folder, trash)
        store.forget_all()


def remove_trash(root: Path, file_system: FileSystem) -> None:
    """Remove deleted tables, also those whose deletion was killed half way."""
    for path in list(root.glob(f"{TRASH_PREFIX}*")):
        file_system.remove_tree(path)
