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

To publish a table in place of another one, both change names in one step, so that a reader that
opens the name finds one of them at all times:

    1  under both tables' locks    <root>/.staged-…/<name> → <root>/.soft-deleted-…/<name>
    2                              <root>/.soft-deleted-…/<name> ⇄ <root>/<name>

A crash between the two leaves the new table as a soft-deleted one, and the old one in its place. So
does an object store that does not answer in between.
Where the file system cannot exchange names, the step is three renames, and the name is free for a
moment. A read that began on the replaced table finds it by its id among the soft-deleted ones. Of
two processes that publish under one name, each replaces the table that is there when it has the
locks.

**Threads**: any.

**Source**: Kudu's soft deletion, master/catalog_manager.cc. There the name stays taken, and clients
that have the table open can still read and write it.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from kudulite.chain.folder import (
    SoftDeletedTable,
    soft_deleted_tables,
    staged_root,
)
from kudulite.errors import (
    ConflictError,
    SchemaError,
    StorageError,
    TableExistsError,
    TableNotFoundError,
    UsageError,
)
from kudulite.model.hybrid_time import physical_microseconds
from kudulite.model.types import is_unicode
from kudulite.storage.names import new_staged_name, new_trash_name, soft_deleted_name
from kudulite.storage.storage import Storage, is_taken
from kudulite.table.environment import Environment
from kudulite.table.table_log import LostRaceError, Turn
from kudulite.table.table_store import TableStore
from kudulite.wal.segment import LogPosition

NAME_BYTES_MAX = 200
RESERVE_SECONDS_MAX = (1 << 32) - 1  # as in Kudu, 136 years
# Each time, another process has published or deleted a table of the name, or is creating one.
_PUBLICATIONS_MAX, _WAIT_SECONDS = 50, 0.02


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
    storage = store.storage
    with ExitStack() as stack:
        turn = stack.enter_context(store.locked(f"renaming of {store.name!r}"))
        taken = TableExistsError(
            f"cannot rename {store.name!r}: {target.name!r} is in {target.folder.parent}"
        )
        if is_taken(storage, target.folder):
            raise taken
        has_ended = store.log.resume(turn)
        try:
            storage.move(store.folder, target.folder, store.place)
        except StorageError as error:
            if has_ended:
                store.log.end(turn, is_first=False)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise taken from error  # created by another process just now
            raise
        store.forget_all()
    sync_moved(storage, target.folder.parent, f"table {store.name!r} is {target.name!r} now")
    return target


def sync_moved(storage: Storage, folder: Path, done: str) -> None:
    """Make names in a folder durable; an error says what is `done` without that."""
    try:
        storage.sync([folder])
    except StorageError as error:
        raise StorageError(
            error.errno,
            f"{error.strerror}; {done} all the same, and a power failure may take that back: do not"
            " call again, and look at the table after a restart of the machine",
        ) from error


def set_table_aside(store: TableStore, work: str, *, if_version: int | None = None) -> None:
    """Make a table's folder trash, once no commit is under way; its name is free then.

    With `if_version`, only while that is the newest version and nothing was written to the log
    after it. The names are durable after
    `sync` of the parent. Raises ConflictError, LockTimeoutError.
    """
    _check_is_no_link(store)
    with store.locked(work) as turn:
        _check_version(store, turn, if_version)
        _move_away(store, turn, store.folder.parent / new_trash_name(), if_version)


def _move_away(store: TableStore, turn: Turn, target: Path, if_version: int | None) -> None:
    """Give a table that is deleted another folder, and refuse all later turns of it."""
    store.storage.move(store.folder, target, store.place)
    try:
        store.log.end(turn, is_first=if_version is not None)
    except LostRaceError as error:
        store.storage.move(target, store.folder)
        raise ConflictError(
            f"table {store.name!r} was written to after version {if_version}; not deleted"
        ) from error
    store.forget_all()


def _check_version(store: TableStore, turn: Turn, if_version: int | None) -> None:
    """Raise ConflictError unless a table is at a version, without a commit after it."""
    if if_version is None:
        return
    newest = turn.newest()
    if newest.version != if_version:
        raise ConflictError(
            f"table {store.name!r} is at version {newest.version}, not {if_version}; not deleted"
        )
    if not newest.has_tablet_logs and LogPosition(*turn.log_end) > newest.log_end:
        raise ConflictError(
            f"table {store.name!r} is at version {if_version}, but rows were written to its log"
            " after it; not deleted"
        )


def _check_is_no_link(store: TableStore) -> None:
    """Raise UsageError where the table is elsewhere: only the link to it would be moved."""
    place = store.storage.link_target(store.folder)
    if place is not None:
        raise UsageError(
            f"table {store.name!r}: {store.folder} is a symbolic link to {place}; delete the table"
            " there, or remove the link"
        )


def soft_delete_table(
    store: TableStore, reserve_seconds: int, *, if_version: int | None = None
) -> SoftDeletedTable:
    """Set a table aside for `reserve_seconds`, durably, once no commit is under way.

    Raises UsageError, ConflictError, LockTimeoutError, StorageError.
    """
    _check_reserve(store, reserve_seconds)
    root, storage = store.folder.parent, store.storage
    _check_is_no_link(store)
    with store.locked(f"soft deletion of {store.name!r}") as turn:
        _check_version(store, turn, if_version)
        holder = _new_holder(store, reserve_seconds)
        _move_away(store, turn, holder / store.name, if_version)
    sync_moved(storage, holder, f"table {store.name!r} is deleted")
    listed = soft_deleted_tables(storage, root)
    return next(found for found in listed if found.path.parent == holder)


def _check_reserve(store: TableStore, reserve_seconds: int) -> None:
    is_number = isinstance(reserve_seconds, int) and not isinstance(reserve_seconds, bool)
    if not is_number or not 1 <= reserve_seconds <= RESERVE_SECONDS_MAX:
        raise UsageError(
            f"table {store.name!r}: reserve_seconds={reserve_seconds!r}: expected a whole number"
            f" from 1 to {RESERVE_SECONDS_MAX}; delete_table keeps nothing"
        )


def recall_table(
    root: Path, table_id: str, new_name: str | None, environment: Environment
) -> TableStore:
    """Give a soft-deleted table its name again, or another one; durable.

    Raises TableNotFoundError listing those that are there, TableExistsError, LockTimeoutError.
    """
    listed = soft_deleted_tables(environment.storage, root)
    found = max((t for t in listed if t.id == table_id), key=lambda t: t.deleted, default=None)
    if found is None:
        texts = ", ".join(f"{table.id} ({table.name!r})" for table in listed) or "none"
        raise TableNotFoundError(
            f"no soft-deleted table with id {table_id!r} in {root}; soft-deleted tables: {texts}"
        )
    target = TableStore(table_folder(root, new_name or found.name), environment)
    if is_taken(environment.storage, target.folder):
        raise TableExistsError(
            f"cannot recall table {found.name!r}: {target.name!r} is in {root}; give another name,"
            f" as in client.recall_table({table_id!r}, 'new name')"
        )
    try:
        move_table(TableStore(found.path, environment), target)
    except (TableNotFoundError, StorageError) as error:
        if is_taken(environment.storage, found.path):
            raise
        raise TableNotFoundError(
            f"table {found.name!r}, id {table_id!r}, has just been recalled, or removed after its"
            " reserve, by another process"
        ) from error
    environment.storage.delete_below(found.path.parent)
    return target


def new_staging_folder(root: Path, reserve_seconds: int, environment: Environment) -> Path:
    """Return the name of a new folder for staged tables; nothing is made."""
    now = physical_microseconds(environment.clock.now())
    return root / new_staged_name(now, now + reserve_seconds * 10**6)


def publish_table(store: TableStore, *, replaced_reserve_seconds: int | None) -> TableStore:
    """Give a staged table its name; durable.

    With `replaced_reserve_seconds`, a table of that name is soft-deleted for so long. Raises
    UsageError for a table that is not staged, TableExistsError, LockTimeoutError, ConflictError.
    """
    root = staged_root(store.folder)
    if root is None:
        raise UsageError(
            f"table {store.name!r} at {store.folder} is not staged: create it with a client of"
            " new_staging()"
        )
    target = TableStore(root / store.name, store.environment)
    if replaced_reserve_seconds is None:
        move_table(store, target)
    else:
        _check_reserve(store, replaced_reserve_seconds)
        _move_over(store, target.folder, replaced_reserve_seconds)
    store.storage.delete_below(store.folder.parent)
    return target


def replaced_table(store: TableStore, table_id: str) -> TableStore:
    """Return where the table of an id is that a publication has replaced at the store's folder.

    The store itself where it has that table, or where the replaced one cannot be recalled.
    """
    if store.newest().table_id != table_id:
        for found in soft_deleted_tables(store.storage, store.folder.parent):
            if (found.id, found.name) == (table_id, store.name):
                return TableStore(found.path, store.environment)
    return store


def _move_over(store: TableStore, folder: Path, reserve_seconds: int) -> None:
    """Give a staged table its folder, also if there is a table, which is soft-deleted then."""
    for attempt in range(_PUBLICATIONS_MAX):
        target = TableStore(folder, store.environment)
        try:
            if target.chain.exists():
                _replace_table(store, target, reserve_seconds)
            else:
                move_table(store, target)
            return
        except (TableExistsError, TableNotFoundError):
            # Another process has created, published or deleted a table of this name meanwhile. A
            # folder that stays without a version is that of a creation that was killed.
            is_last = attempt == _PUBLICATIONS_MAX - 1
            if not store.chain.exists() or (is_last and not target.chain.exists()):
                raise
            time.sleep(_WAIT_SECONDS)
    raise ConflictError(
        f"cannot publish table {store.name!r}: tables of this name were published or deleted"
        f" {_PUBLICATIONS_MAX} times meanwhile; call again"
    )


def _replace_table(store: TableStore, target: TableStore, reserve_seconds: int) -> None:
    """Put a staged table in the place of another one, which is soft-deleted, in one step."""
    replace_table(store, target, lambda: _new_holder(target, reserve_seconds))


def replace_table(store: TableStore, target: TableStore, new_holder: Callable[[], Path]) -> None:
    """Put a table in the place of another one, which is in the holder then, in one step.

    `new_holder` makes a new folder for that, durable, when both tables are locked. Raises
    UsageError, TableNotFoundError, LockTimeoutError, StorageError.
    """
    root, storage = target.folder.parent, store.storage
    _check_is_no_link(target)
    with ExitStack() as stack:
        replaced = stack.enter_context(target.locked(f"replacement of {target.name!r}"))
        stack.enter_context(store.locked(f"publication of {store.name!r}"))
        holder = new_holder()
        made, moved = holder / target.name, list[tuple[Path, Path]]()

        def move(source: Path, place: Path, of: TableStore | None = None) -> None:
            storage.move(source, place, None if of is None else of.place)
            moved.append((source, place))

        try:
            move(store.folder, made, store)
            storage.sync([holder])
            if not storage.exchange(made, target.folder):
                move(target.folder, store.folder)
                move(made, target.folder)
                move(store.folder, made)
        except StorageError as error:
            if error.errno == errno.EINPROGRESS:
                raise  # it may be done, or be done yet: left as a crash leaves it
            with suppress(StorageError):
                for source, place in reversed(moved):
                    storage.move(place, source)
                storage.delete_below(holder)
            raise
        target.log.end(replaced, is_first=False)
        target.forget_all()
        store.forget_all()
    for each in (holder, root):
        sync_moved(storage, each, f"table {target.name!r} is replaced")


def _new_holder(store: TableStore, reserve_seconds: int) -> Path:
    """Make the folder, durable, in which a table is to be soft-deleted; its lock is taken."""
    root, storage = store.folder.parent, store.storage
    deleted = physical_microseconds(store.environment.clock.now())
    expires = deleted + reserve_seconds * 10**6
    holder = root / soft_deleted_name(deleted, expires, store.newest().table_id)
    storage.make_folder(holder)
    # The folder's own name must be durable before the table is in it.
    storage.sync([root])
    return holder
