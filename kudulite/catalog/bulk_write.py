"""A bulk write before its commit: what all its tasks share, and its staging folder.

    staging/<write id>/write.json        {"base_version": V, "owner": "…" or null}: pins version V's
                                         files for the write; a new write of an owner ends the old
    staging/<write id>/<part id>/…       one folder for each part of each attempt of each task

Tasks never make the folder of the write itself: after an abort a task that is still running fails
at its next file, and nothing of it stays.
"""

from __future__ import annotations

import contextlib
import errno
import json
import uuid
from dataclasses import dataclass
from pathlib import Path

from kudulite.catalog.manifest import Manifest
from kudulite.catalog.table_store import STAGING_FOLDER, TableStore
from kudulite.errors import ConflictError, StorageError
from kudulite.tablet.operation import WriteSpec
from kudulite.tablet.staged import StagedTablet

WRITE_FILE = "write.json"


@dataclass(frozen=True)
class WriteState:
    """What every task and the commit of one write agree on; picklable.

    `base_version` is the version that all rows are resolved against, whose file ends with
    `base_crc32`. `operation_column` names the
    batch's column of operations in a mixed write.
    """

    table_id: str
    base_version: int
    write_id: str
    spec: WriteSpec
    operation_column: str | None = None
    application_id: str | None = None
    application_version: int | None = None
    owner: str | None = None
    base_crc32: int | None = None

    @property
    def folder(self) -> str:
        """The write's staging folder, relative to the table's."""
        return f"{STAGING_FOLDER}/{self.write_id}"

    @property
    def is_resolved_at_commit(self) -> bool:
        """Whether tasks only split rows by tablet, since what a staged row meant could not be told
        from what it left: in mixed and ordered writes, and where a null may become a default.
        """
        spec = self.spec
        return spec.operation is None or spec.ordering_column is not None or spec.hides_nulls


@dataclass(frozen=True)
class StagedOperations:
    """Rows of one tablet in a mixed write, not resolved yet, in an Arrow IPC file."""

    tablet_id: str
    path: str


@dataclass(frozen=True)
class StagedTask:
    """What one attempt of one task of write `write_id` has staged; small and picklable."""

    write_id: str
    task_index: int
    tablets: tuple[StagedTablet, ...] = ()
    operations: tuple[StagedOperations, ...] = ()

    @property
    def tablet_ids(self) -> tuple[str, ...]:
        """The tablets that the task has rows for."""
        found = {part.tablet_id for part in self.tablets}
        return tuple(sorted(found | {part.tablet_id for part in self.operations}))


def begin_write(store: TableStore, state: WriteState) -> bool:
    """Make the staging folder of a write, pinning its base version; end others of its owner.

    False where the base version was removed before it was pinned: the write is ended, and may begin
    again on the newest version.
    """
    if state.owner is not None:
        end_writes_of(store, state.owner)
    folder = store.folder / state.folder
    file_system = store.environment.file_system
    file_system.make_directory(folder)
    pin = json.dumps({"base_version": state.base_version, "owner": state.owner}).encode()
    try:
        file_system.write_file(folder / WRITE_FILE, pin)
    except StorageError:
        file_system.remove_tree(folder)
        raise
    if store.has_version(state.base_version):
        return True
    end_write(store, state)
    return False


def base_of(store: TableStore, state: WriteState) -> Manifest:
    """Return the version that a write is resolved against.

    Raises ConflictError where the write is over or that version is gone, StorageError.
    """
    try:
        base = store.at_version(state.base_version)
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


def is_committed(state: WriteState, manifest: Manifest) -> bool:
    """Whether the write's application version, or a later one, is in `manifest` already."""
    if state.application_id is None or state.application_version is None:
        return False
    committed = manifest.applications.get(state.application_id)
    return committed is not None and committed >= state.application_version


def new_part_folder(store: TableStore, state: WriteState) -> str:
    """Make a folder for one part of a write; returns it relative to the table's folder.

    Raises ConflictError when the write was aborted, or swept as abandoned.
    """
    check_write_is_open(store, state)
    part = f"{state.folder}/{uuid.uuid4().hex}"
    store.environment.file_system.make_directory(store.folder / part)
    return part


def check_write_is_open(store: TableStore, state: WriteState) -> None:
    """Raise ConflictError unless the staging folder of a write is there."""
    if not (store.folder / state.folder / WRITE_FILE).exists():
        raise ConflictError(
            f"table {store.name!r}: write {state.write_id} was aborted, or swept as abandoned;"
            " write again"
        )


def end_write(store: TableStore, state: WriteState) -> None:
    """Remove what a write has staged and not yet moved into the table.

    The folder is renamed first, so that a task which is still running fails at its next file
    instead of leaving one behind.
    """
    _end(store, store.folder / state.folder)


def end_writes_of(store: TableStore, owner: str) -> None:
    """Remove what writes of an owner have staged: those that were killed, and one under way."""
    for folder in (store.folder / STAGING_FOLDER).iterdir():
        if _read_pin(folder).get("owner") == owner:
            _end(store, folder)


def _end(store: TableStore, folder: Path) -> None:
    ended = folder.with_name(f".ended-{folder.name}")
    file_system = store.environment.file_system
    with contextlib.suppress(StorageError):  # it is gone already
        file_system.rename(folder, ended)
    file_system.remove_tree(ended)


def read_pinned_version(folder: Path) -> int | None:
    """Return the base version that a staging folder pins, None where it cannot be read."""
    version = _read_pin(folder).get("base_version")
    return version if isinstance(version, int) else None


def _read_pin(folder: Path) -> dict:
    """Return what a staging folder says of its write, empty where it cannot be read."""
    try:
        pin = json.loads((folder / WRITE_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return pin if isinstance(pin, dict) else {}
