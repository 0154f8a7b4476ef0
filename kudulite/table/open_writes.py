"""Writes that are under way: each has a staging folder, which pins the version that it read.

    staging/<write id>/write.json        {"base_version": V, "owner": "…" or null}: pins version V
                                         and its files; a new write of an owner ends the old ones
    staging/<write id>/<part id>/…       one folder per part of each attempt of each task

Tasks never create the folder of the write itself: after an abort, a task that is still running
fails at its next file and leaves nothing behind. A new write removes the folders of writes that
ended without cleaning up, after a day: a job may compute for hours before its first task writes.
"""

import contextlib
import errno
import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kudulite.chain.manifest import Manifest
from kudulite.errors import ConflictError, KuduliteError, StorageError
from kudulite.storage.file_system import entries_of, exists, read_file
from kudulite.storage.names import STAGING_FOLDER, WRITE_FILE
from kudulite.storage.storage_error import storage_error
from kudulite.table.table_store import TableStore
from kudulite.table.write_state import WriteState

STAGING_GRACE_SECONDS = 24 * 3600.0


def begin_write(store: TableStore, state: WriteState) -> bool:
    """Make the staging folder of a write, pinning its base version; end others of its owner.

    False where the base version was removed before it was pinned: the write is ended, and may begin
    again on the newest version.
    """
    if state.owner is not None:  # of its writes that were killed, and of one under way
        for staged in entries_of(store.folder / STAGING_FOLDER):
            if _read_pin(staged).get("owner") == state.owner:
                _end(store, staged)
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


def new_part_folder(store: TableStore, state: WriteState) -> str:
    """Make a folder for one part of a write; returns it relative to the table's folder.

    Raises ConflictError when the write was aborted, or removed as abandoned.
    """
    check_write_is_open(store, state)
    part = f"{state.folder}/{uuid.uuid4().hex}"
    store.file_system.make_directory(store.folder / part)
    return part


def check_write_is_open(store: TableStore, state: WriteState) -> None:
    """Raise ConflictError unless the staging folder of a write is there."""
    if not exists(store.folder / state.folder / WRITE_FILE):
        raise ConflictError(
            f"table {store.name!r}: write {state.write_id} was aborted, or removed as abandoned;"
            " write again"
        )


def end_write(store: TableStore, state: WriteState) -> None:
    """Remove what a write has staged and not yet moved into the table.

    The folder is renamed first, so that a task that is still running fails at its next file
    instead of leaving one behind.
    """
    _end(store, store.folder / state.folder)


def _end(store: TableStore, folder: Path) -> None:
    ended = folder.with_name(f".ended-{folder.name}")
    with contextlib.suppress(StorageError):  # it does not exist any more
        store.file_system.rename(folder, ended)
    store.file_system.remove_tree(ended)


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


def collect_staging_garbage(store: TableStore, grace_seconds: float = STAGING_GRACE_SECONDS) -> int:
    """Remove staging folders in which nothing was written during the grace time."""
    horizon = time.time() - grace_seconds
    count = 0
    for folder in entries_of(store.folder / STAGING_FOLDER):
        if is_older(folder, horizon):
            store.file_system.remove_tree(folder)
            count += 1
    return count


def open_writes(store: TableStore) -> list[str]:
    """Return the ids of the writes that have a staging folder: neither committed nor aborted.

    Each pins the version that it read, with its files.
    """
    folders = entries_of(store.folder / STAGING_FOLDER)
    return [folder.name for folder in folders if read_pinned_version(folder) is not None]


def is_older(folder: Path, horizon: float) -> bool:
    """Whether nothing in a tree changed since `horizon`, stopping at the first that did.

    A tree that is removed meanwhile is not older: there is nothing left to do.
    """
    try:
        if folder.stat().st_mtime >= horizon:
            return False
        return all(path.stat().st_mtime < horizon for path in folder.rglob("*"))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_error("read", folder, error) from error
