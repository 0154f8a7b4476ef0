"""A tablet's rows in memory: read from its log, and recovered after a crash.

    superblock.wal_start ──── memory's `end` ──── durable end (lock file) ──── end of the file
         in rowsets | in memory, catches up    | an append under way, or of a writer that died

A reader reads up to the durable end and needs no lock. While the tablet's lock is held no append is
under way, so whole frames beyond the durable end are of a writer that died before it recorded them
as durable. They are fsynced and count as written; the next append cuts a torn frame off. So any
process, after any crash, finds the same rows.

**Invariants**: (1) the durable end advances after the fsync and before the safe timestamp, so all
records up to a safe timestamp lie before it; (2) memory is never ahead of the durable end, but
where the lock file could not be written.

**Threads**: any.
"""

import errno
import logging
import os
from pathlib import Path

from kudulite.chain.manifest import TabletEntry
from kudulite.errors import CorruptionError, StorageError, TableNotFoundError
from kudulite.model.schema import Schema
from kudulite.storage.file_system import exists, read_ranges
from kudulite.storage.tablet_lock import TabletLock, read_lock_file
from kudulite.table.table_store import TableStore
from kudulite.tablet.mem_stores import MemStores
from kudulite.tablet.tablet import Tablet
from kudulite.wal.record_format import FRAME_HEADER_BYTES
from kudulite.wal.segment import WalPosition, segment_path
from kudulite.wal.wal_reader import read_wal

# A file that is missing each time was not just superseded.
_LOOKS_MAX = 3

_log = logging.getLogger(__name__)


def read_tablet(store: TableStore, entry: TabletEntry) -> Tablet:
    """Return a tablet with the durable rows of its log; usually takes no lock.

    It may be of a newer version: up to the safe timestamp both show the same rows. Raises as
    `caught_up_memory`.
    """
    entry, memory = caught_up_memory(store, entry)
    return store.tablet(entry) if memory is None else memory.tablet()


def caught_up_memory(
    store: TableStore, entry: TabletEntry, *, is_still: bool = False
) -> tuple[TabletEntry, MemStores | None]:
    """Return the tablet's newest entry, and its memory up to the durable end, or None if empty.

    `is_still`: no append is under way, so the whole log is read, even if its end could not be noted
    in the lock file. Raises CorruptionError for a damaged log, TableNotFoundError where the table
    was moved meanwhile.
    """
    for left in reversed(range(_LOOKS_MAX)):
        try:
            return _caught_up_memory(store, entry, is_still=is_still)
        except (CorruptionError, StorageError) as error:
            if not store.chain.exists():
                raise TableNotFoundError(
                    f"table {store.name!r} was moved or deleted during the call: {store.folder}"
                    " does not hold it any more"
                ) from error
            # A file is missing where the log or the superblock was superseded and removed, or the
            # table renamed and renamed back. Damage is found again.
            is_missing = isinstance(error, CorruptionError) or error.errno == errno.ENOENT
            if not left or not is_missing:
                raise
    raise AssertionError("the last look returns or raises")


def _caught_up_memory(
    store: TableStore, entry: TabletEntry, *, is_still: bool
) -> tuple[TabletEntry, MemStores | None]:
    """Look once for what `caught_up_memory` returns.

    Every change of a tablet's rowsets or schema flushes its log. So the records between the newest
    `wal_start` and an end that was read before it belong to this version.
    """
    _, wal_end = read_lock_file(store.lock_path(entry.id))
    found = None if wal_end is None else WalPosition(*wal_end)
    manifest = store.newest()
    entry = manifest.readable_entry(entry.id) or entry
    is_known, memory = _known_memory(store, entry, manifest.schema)
    base = store.tablet(entry)
    start = base.superblock.wal_start
    end = start if found is None else max(start, found)
    reached = end if memory is None else max(end, memory.end)
    if found is None or ((is_still or not is_known) and _is_longer(base.wal_folder, reached)):
        return _recovered_by_reader(store, entry)
    if memory is None:
        if end == start:
            if not is_known:
                store.forget(entry.id)  # of an older superblock
            store.environment.memories[store.tablet_key(entry.id)] = entry.superblock.name, None
            return entry, None
        memory = _new_memory(store, entry, manifest.schema)
    _catch_up(store, memory, end)
    return entry, memory


def make_durable(store: TableStore, entry: TabletEntry, lock: TabletLock) -> WalPosition:
    """Return where the tablet's log ends, everything before it durable; under the tablet's lock.

    Advances the durable end and the safe timestamp over records of a writer that died.
    Raises CorruptionError, StorageError.
    """
    base = store.tablet(entry)
    folder = base.wal_folder
    known = WalPosition(*lock.wal_end)
    end = max(known, base.superblock.wal_start)
    if not _is_longer(folder, end):
        return end
    tail = read_wal(folder, end, None, store.chain.last_seen().schema, durable_end=end)
    if (
        tail.end > end
    ):  # without records, too: a process may have died right after it rolled the log
        for segment in range(max(end.segment, 1), tail.end.segment + 1):
            with store.file_system.open_append(segment_path(folder, segment)) as file:
                file.sync()
        store.file_system.sync_directory(folder)
    if tail.end > known:
        lock.set_wal_end(tail.end.segment, tail.end.offset)
        _log.info(
            "table %r, tablet %s: %d records recovered from the log, behind the end that their"
            " writer noted",
            store.name,
            entry.id,
            len(tail.records),
        )
    if tail.records:
        lock.advance_safe_timestamp(tail.records[-1].timestamp)
    return tail.end


def recover(store: TableStore, entry: TabletEntry, lock: TabletLock) -> MemStores:
    """Return the tablet's memory with all that the log holds; the caller has the tablet's lock.

    Raises CorruptionError, StorageError.
    """
    schema = store.chain.last_seen().schema
    known = _known_memory(store, entry, schema)[1]
    if known is not None and known.log is not None and known.end == known.log.end:
        if lock.wal_end == known.end and known.log.is_current:
            return known  # no other process has appended since
    end = make_durable(store, entry, lock)
    memory = _known_memory(store, entry, schema)[1] or _new_memory(store, entry, schema)
    _catch_up(store, memory, end)
    return memory


def _recovered_by_reader(store: TableStore, entry: TabletEntry) -> tuple[TabletEntry, MemStores]:
    """Recover under the lock, or read the log where the lock file is not writable."""
    try:
        with store.locked(entry.id, "recovery") as lock:
            entry = store.newest().readable_entry(entry.id) or entry
            return entry, recover(store, entry, lock)
    except StorageError:
        if os.access(store.lock_path(entry.id), os.W_OK):
            raise
    with store.lock(entry.id, is_shared=True):
        manifest = store.newest()
        entry = manifest.readable_entry(entry.id) or entry
        memory = _new_memory(store, entry, manifest.schema)
        tail = read_wal(memory.base.wal_folder, memory.end, None, memory.schema)
    _catch_up(store, memory, tail.end)
    return entry, memory


def _is_longer(folder: Path, end: WalPosition) -> bool:
    """Whether there is more of the log behind `end` than zeros."""
    if not os.path.exists(folder):  # most tablets have no log, and every scan asks for each
        return False
    if exists(segment_path(folder, end.segment + 1)):
        return True
    path = segment_path(folder, end.segment)
    if not exists(path):
        return False
    _, (behind,) = read_ranges(path, [(end.first_frame.offset, FRAME_HEADER_BYTES)])
    return any(behind)


def _known_memory(
    store: TableStore, entry: TabletEntry, schema: Schema
) -> tuple[bool, MemStores | None]:
    """Return whether this process has looked for the log of this superblock, and its memory."""
    name, memory = store.environment.memories.get(store.tablet_key(entry.id), ("", None))
    if name != entry.superblock.name:
        return False, None
    if memory is not None and (
        memory.is_torn or (memory.schema is not schema and memory.schema != schema)
    ):
        return True, None  # altered since; its log was empty then
    return True, memory


def _new_memory(store: TableStore, entry: TabletEntry, schema: Schema) -> MemStores:
    memory = MemStores(store.tablet(entry), schema)
    store.environment.memories[store.tablet_key(entry.id)] = entry.superblock.name, memory
    return memory


def _catch_up(store: TableStore, memory: MemStores, end: WalPosition) -> None:
    """Replay the log up to `end`; the file is read before the mutex is taken."""
    folder = memory.base.wal_folder
    while (start := memory.end).first_frame < end.first_frame:
        tail = read_wal(folder, start, end, memory.decoder)
        with memory.mutex:
            if memory.end == start:
                memory.replay(tail.records, tail.end)
