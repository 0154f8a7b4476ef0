"""Names of tables: each is the name of the table's folder, so renaming a table renames that."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from kudulite.catalog.table_store import TableStore
from kudulite.errors import SchemaError, TableExistsError

NAME_BYTES_MAX = 200


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
    root = store.folder.parent
    target = TableStore(table_folder(root, new_name), store.environment)
    file_system = store.environment.file_system
    with ExitStack() as stack:
        store.lock_all(stack, f"renaming of {store.name!r}")
        if target.folder.exists():
            raise TableExistsError(f"cannot rename {store.name!r}: {new_name!r} is in {root}")
        file_system.rename(store.folder, target.folder)
    file_system.sync_directory(root)
    return target
