"""The tables of a directory: the list of their names, and what is known to be wrong with some.

A folder that has lost its manifest was a table, and so is listed, with an error that says what is
missing. So is a folder that one has no right to list, since it may be a table. Whatever else lies
in the directory is left out.

It stands alone because `Client` and the command line both need it, and neither imports the other.

**Threads**: any; another process may create, rename or delete a table meanwhile.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

from kudulite.chain.folder import is_refused
from kudulite.errors import CorruptionError, SchemaError, StorageError
from kudulite.table.environment import Environment
from kudulite.table.table_names import table_folder
from kudulite.table.table_store import TableStore

# The folder that fsck makes at the top of a file system, for root alone.
_OF_THE_SYSTEM = "lost+found"


def list_tables(
    environment: Environment, root: Path, match_substring: str = ""
) -> dict[str, CorruptionError | StorageError | None]:
    """Return the names of the tables whose name has a text in it, sorted, with their errors.

    The error of a table that is not known to be damaged is None. Raises StorageError if the
    directory cannot be listed.
    """
    storage = environment.storage
    known = storage.table_names(root)
    if known is not None:
        return {name: None for name in known if match_substring in name}
    if not storage.is_folder(root):
        raise StorageError(errno.ENOENT, f"cannot list {root}: it does not exist")
    found: dict[str, CorruptionError | StorageError | None] = {}
    for place in storage.entries(root):
        if match_substring not in place.name:
            continue
        with suppress(SchemaError):  # no table can have the name
            store = TableStore(table_folder(root, place.name), environment)
            try:
                is_table = store.is_there()
            except (CorruptionError, StorageError) as error:
                if isinstance(error, StorageError) and not is_refused(error):
                    raise
                if place.name != _OF_THE_SYSTEM:
                    found[place.name] = error
            else:
                found |= {place.name: None} if is_table else {}
    return found
