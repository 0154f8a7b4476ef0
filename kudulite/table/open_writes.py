"""Writes that are under way: each has a record, which pins the version that it read.

    writes/<write id>.json    {"base_version": V, "work": "flush", "owner": null, "is_held": true,
                               "began": "2026-11-26T21:30:00Z"}

Every operation that makes files without the table's lock is one: a bulk write, a memory
flush, a compaction, step 1 of a purge, a copy. It makes its record, reads the newest version, and
makes its files, whose names bear its id. Until it deletes the record a garbage collection leaves
alone what it made, version V, and all later versions with their files.

A record of one process is *held* while the operation runs (held_file.py). One that is not held any
more is of a process that died, and the next collection ends it. A bulk write that was pickled may
go on in other processes. Its record is not held. It is over when it has done nothing for a day: a
job may compute for hours before its first task writes. A new write of an owner ends the old ones.

An operation whose record is gone is over: it fails, or gives up. Under the table's lock, before it
publishes, it looks once more. Its files stay from then on until it has published.

**Invariants**: (1) a version that was read as the newest after the record was made stays: a
collection removes only versions with a successor that it has seen before it looks for records; (2)
software of older formats, which knows no records, refuses the table before the first one is made.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kudulite.chain.manifest import Manifest
from kudulite.errors import ConflictError, CorruptionError, StorageError
from kudulite.storage.names import (
    WRITES_FOLDER,
    write_id_of,
    write_name,
    write_of,
    write_prefix,
)
from kudulite.storage.new_files import NewFiles
from kudulite.storage.storage import Held, Listed, Storage
from kudulite.table.table_store import TableStore
from kudulite.table.write_state import WriteState

_log = logging.getLogger(__name__)
FLUSH, COMPACTION, PURGE = UPKEEP = "flush", "compaction", "purge"


@dataclass
class OpenWrite:
    """A write under way by its id; `made` is its record, where this object has made it.

    As a context manager it ends at the end of the block. Files that it made go with it, unless they
    may be in a version. A file that is missing because the table was moved is an error that says
    so.
    """

    store: TableStore
    id: str
    table_id: str
    made: Held | None = None
    _content: bytes = b""
    _may_be_published: bool = False

    @cached_property
    def files(self) -> NewFiles:
        """The files that the write makes here."""
        return NewFiles(self.store.storage, self.id)

    def may_publish(self) -> bool:
        """Whether the write is still open; asked once, under the lock, before it publishes."""
        self._may_be_published = is_write_open(self.store, self.id)
        return self._may_be_published

    def leave_to_others(self) -> None:
        """Let the write go on in other processes, and without this one."""
        if self.made is not None:
            self.made.let_go(self._content)

    def end(self) -> None:
        """End the write: those of its files that are in no version are garbage from now on."""
        self._end(end_settled_write)

    def abort(self) -> None:
        """End the write before it has published. Raises StorageError where its record stays."""
        self._end(end_write)

    def _end(self, end: Callable[[TableStore, str], None]) -> None:
        try:
            end(self.store, self.id)
        finally:
            if self.made is not None:
                self.made.close()

    def __enter__(self) -> OpenWrite:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if not self._may_be_published:
                with contextlib.suppress(StorageError):  # else a collection removes them
                    self.files.remove()
        finally:
            self.end()
        if isinstance(error, StorageError):
            with of_same_table(self.store, self.table_id):
                raise error


def begin_write(store: TableStore, work: str, owner: str | None = None) -> OpenWrite:
    """Make the record of a write. The newest version is read after that, and is pinned then.

    Raises TableNotFoundError, StorageError.
    """
    newest = store.upgraded()
    write_id = uuid.uuid4().hex
    body = {
        "base_version": newest.version,
        "work": work,
        "owner": owner,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    # Of one length, as the one is written over the other.
    held, not_held = (json.dumps({**body, "is_held": is_held}) for is_held in (True, False))
    path = record_path(store, write_id)
    with of_same_table(store, newest.table_id):
        store.storage.make_folder(path.parent)  # a table of an older format has none
        made = store.storage.hold(path, held.ljust(len(not_held)).encode())
    return OpenWrite(store, write_id, newest.table_id, made, not_held.encode())


@contextlib.contextmanager
def of_same_table(store: TableStore, table_id: str) -> Iterator[None]:
    """Raise TableNotFoundError or ConflictError for a missing file of a table that was moved.

    A StorageError is left where the table is still there.
    """
    try:
        yield
    except StorageError as error:
        if error.errno == errno.ENOENT:
            store.chain.newest_of(table_id)
        raise


@contextlib.contextmanager
def of_open_write(store: TableStore, state: WriteState) -> Iterator[None]:
    """Do as `of_same_table`, and raise ConflictError where the write was aborted."""
    with of_same_table(store, state.table_id):
        try:
            yield
        except StorageError as error:
            if error.errno == errno.ENOENT and store.chain.exists():
                check_write_is_open(store, state.write_id)
            raise


def base_of(store: TableStore, state: WriteState) -> Manifest:
    """Return the version that a write is resolved against.

    Raises ConflictError where the write is over, CorruptionError, StorageError.
    """
    try:
        base = store.chain.pinned(state.base_version, state.base_crc32)
    except StorageError:
        check_write_is_open(store, state.write_id)
        raise
    if base.file_crc32 != state.base_crc32:
        check_write_is_open(store, state.write_id)
        raise CorruptionError(
            f"{store.chain.path(state.base_version)}: not the version that write {state.write_id}"
            " has read, though its record is there: restore the manifest folder"
        )
    return base


def is_write_open(store: TableStore, write_id: str) -> bool:
    """Note that a write is still under way; return whether its record is there."""
    return store.storage.mark_used(record_path(store, write_id))


def check_write_is_open(store: TableStore, write_id: str) -> None:
    """Note that a write is still under way. Raises ConflictError unless its record is there."""
    if not is_write_open(store, write_id):
        raise ConflictError(
            f"table {store.name!r}: write {write_id} was aborted, or removed as abandoned, or is"
            " committed already; write again what is not there"
        )


def end_write(store: TableStore, write_id: str) -> None:
    """Delete the record of a write, as anybody may."""
    store.storage.delete(record_path(store, write_id))


def end_settled_write(store: TableStore, write_id: str) -> None:
    """Do as `end_write` for a write whose outcome stands: perhaps later, where that fails now."""
    try:
        end_write(store, write_id)
    except StorageError as error:
        _log.info("table %r: a write is over, its record stays: %s", store.name, error)
        store.environment.ended_writes.add(record_path(store, write_id))


def record_path(store: TableStore, write_id: str) -> Path:
    """Return the path of a write's record."""
    return store.place / WRITES_FOLDER / write_name(write_id)


@dataclass(frozen=True)
class WriteRecord:
    """The record of a write; the content is None, or False, where it is torn.

    `age_seconds` is how long ago the write has last done something. One that `is_dead` is of a
    process that held it and has died.
    """

    id: str
    path: Path
    age_seconds: float
    base_version: int | None
    work: object
    owner: object
    is_held: bool
    is_dead: bool


class OpenWrites(tuple[WriteRecord, ...]):
    """The writes that have a record: neither published nor given up."""

    @staticmethod
    def of(store: TableStore) -> OpenWrites:
        """Read the records.

        To know whose files are, list the files before: a write is open before it makes its first
        one. One that is not open any more has published before, if at all. Records that this
        process could not delete are deleted first.
        """
        folder, ended = store.place / WRITES_FOLDER, store.environment.ended_writes
        for path in list(ended):
            if path.parent == folder:
                with contextlib.suppress(StorageError):  # it stays for the next call
                    store.storage.delete(path)
                    ended.discard(path)
        files = store.storage.files_below(folder, is_fresh=True)
        found = (_read(store.storage, file) for file in files)
        return OpenWrites(record for record in found if record is not None)

    def pinning(self, version: int) -> list[WriteRecord]:
        """Return those that keep versions before `version`."""
        return [r for r in self if r.base_version is not None and r.base_version < version]

    def own(self, name: str) -> bool:
        """Whether a file, or a rowset's folder, of this name was made by one of them."""
        return write_of(name) in self._prefixes

    @cached_property
    def _prefixes(self) -> set[str | None]:
        return {write_prefix(record.id) for record in self}


def _read(storage: Storage, file: Listed) -> WriteRecord | None:
    """Read a record, None for another file, and for one that was deleted meanwhile.

    Raises StorageError for one that cannot be read: it may pin a version.
    """
    write_id = write_id_of(file.path.name)
    if write_id is None:
        return None
    found = None
    try:
        found = json.loads(storage.read(file.path))
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    except (CorruptionError, ValueError, RecursionError):
        pass
    body: dict[str, Any] = found if isinstance(found, dict) else {}
    version, is_held = body.get("base_version"), body.get("is_held") is True
    return WriteRecord(
        id=write_id,
        path=file.path,
        age_seconds=file.age_seconds,
        base_version=version if isinstance(version, int) else None,
        work=body.get("work"),
        owner=body.get("owner"),
        is_held=is_held,
        is_dead=is_held and not storage.is_held(file.path),
    )
