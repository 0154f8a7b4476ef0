"""Writes that are under way: each has a folder, which pins the version that it read.

    staging/<write id>/write.json        {"base_version": V, "owner": "…" or null}: pins version V
                                         and its files; a new write of an owner ends the old ones
    staging/<write id>/operations-…      rows that its commit resolves

The files that a write makes are in the tablets, where they will stay, and bear its id. While the
write is open, no garbage collection removes them. When it is over, they are in a version, or are
garbage at once. A write that ended without cleaning up is over when it has written nothing for a
day: a job may compute for hours before its first task writes.

A task of a write that is over fails before its next part, and at the commit if it is late.
"""

import contextlib
import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kudulite.chain.manifest import Manifest
from kudulite.errors import ConflictError, KuduliteError, StorageError
from kudulite.storage.file_system import entries_of, exists, read_file
from kudulite.storage.names import STAGING_FOLDER, WRITE_FILE, write_of, write_prefix
from kudulite.table.table_store import TableStore
from kudulite.table.write_state import WriteState


def begin_write(store: TableStore, state: WriteState) -> bool:
    """Make the folder of a write, pinning its base version.

    False where the base version was removed before it was pinned: the write is ended, and may begin
    again on the newest version.
    """
    folder = store.folder / state.folder
    pin = json.dumps({"base_version": state.base_version, "owner": state.owner}).encode()
    try:
        with of_same_table(store, state):
            store.file_system.make_directory(folder)
            store.file_system.write_file(folder / WRITE_FILE, pin)
    except KuduliteError:
        store.file_system.remove_tree(folder)
        raise
    if store.chain.has(state.base_version):
        return True
    end_write(store, state)
    return False


@contextlib.contextmanager
def of_same_table(store: TableStore, state: WriteState) -> Iterator[None]:
    """Raise TableNotFoundError or ConflictError for a missing file of a table that was moved.

    A StorageError is left where the table of the write is still there.
    """
    try:
        yield
    except StorageError as error:
        if error.errno == errno.ENOENT:
            store.chain.newest_of(state.table_id)
        raise


@contextlib.contextmanager
def of_open_write(store: TableStore, state: WriteState) -> Iterator[None]:
    """Do as `of_same_table`, and raise ConflictError where the write was aborted."""
    with of_same_table(store, state):
        try:
            yield
        except StorageError as error:
            if error.errno == errno.ENOENT and store.chain.exists():
                check_write_is_open(store, state)
            raise


def base_of(store: TableStore, state: WriteState) -> Manifest:
    """Return the version that a write is resolved against.

    Raises ConflictError where the write is over or that version was removed, StorageError.
    """
    try:
        base = store.chain.pinned(state.base_version, state.base_crc32)
    except StorageError as error:
        check_write_is_open(store, state)
        if error.errno == errno.ENOENT:
            raise _base_is_gone(store, state) from error
        raise
    if base.file_crc32 != state.base_crc32:
        raise _base_is_gone(store, state)
    return base


def _base_is_gone(store: TableStore, state: WriteState) -> ConflictError:
    return ConflictError(
        f"table {store.name!r}: version {state.base_version}, which write {state.write_id} was"
        " begun on, was removed by a garbage collection without grace time; write again"
    )


def check_write_is_open(store: TableStore, state: WriteState) -> None:
    """Raise ConflictError unless the staging folder of a write is there."""
    if not exists(store.folder / state.folder / WRITE_FILE):
        raise ConflictError(
            f"table {store.name!r}: write {state.write_id} was aborted, or removed as abandoned;"
            " write again"
        )


def end_write(store: TableStore, state: WriteState) -> None:
    """End a write, committed or not: its files that are in no version are garbage from now on."""
    end_write_of(store, store.folder / state.folder)


def end_write_of(store: TableStore, folder: Path) -> None:
    """End the write whose folder this is."""
    store.file_system.remove(folder / WRITE_FILE)  # first, so that it is over in one step
    store.file_system.remove_tree(folder)


def owner_of(folder: Path) -> object:
    """Return the owner of the write whose folder this is, None without one."""
    return _read_pin(folder).get("owner")


def read_pinned_version(folder: Path) -> int | None:
    """Return the base version that a staging folder pins, None where it cannot be read."""
    version = _read_pin(folder).get("base_version")
    return version if isinstance(version, int) else None


def _read_pin(folder: Path) -> dict[str, Any]:
    """Return the content of a write's pin file, empty where it cannot be read."""
    try:
        pin = json.loads(read_file(folder / WRITE_FILE))
    except (KuduliteError, ValueError, RecursionError):
        return {}
    return pin if isinstance(pin, dict) else {}


def open_writes(store: TableStore) -> list[str]:
    """Return the ids of the writes that have a staging folder: neither committed nor aborted.

    Each pins the version that it read, with its files.
    """
    folders = entries_of(store.folder / STAGING_FOLDER)
    return [folder.name for folder in folders if read_pinned_version(folder) is not None]


def files_are_of_open_write(store: TableStore) -> Callable[[str], bool]:
    """Return whether the name of a file, or of a rowset's folder, is of a write under way.

    The names must have been listed before: a write is open before it makes its first file. One that
    is not open any more has published before, if it was committed.
    """
    folders = entries_of(store.folder / STAGING_FOLDER)
    under_way = {write_prefix(path.name) for path in folders if exists(path / WRITE_FILE)}
    return lambda name: write_of(name) in under_way
