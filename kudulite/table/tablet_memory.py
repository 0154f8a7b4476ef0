"""A tablet's rows in memory: read from its log, recovered after a crash, and flushed to rowsets.

    superblock.wal_start ──── memory's `end` ──── durable end (lock file) ──── end of the file
         in rowsets | in memory, catches up    | an append under way, or of a writer that died

A reader reads up to the durable end and needs no lock. While the tablet's lock is held no append is
under way, so whole frames beyond the durable end are of a writer that died before it recorded them
as durable. They are fsynced and count as written; the next append cuts a torn frame off. So any
process, after any crash, finds the same rows.

A memory flush writes what memory holds to files of a new superblock:

    MemRowSet          -> new DiskRowSets: newest image, UNDO back to each insert, REDO of deletes
    DeltaMemStore      -> one REDO file of its DiskRowSet
    superblock'        =  these files + `wal_start` at the log position that memory had reached

Files are built without the tablet's lock, while readers and writers continue; the lock is held to
write the superblock and to publish. Records appended meanwhile stay in the log, behind the new
`wal_start`. A crash leaves unreferenced files, which garbage collection removes. A commit, which
holds the lock, flushes the rest of the log into its own version.

Rows of a key that is not unique have an `auto_incrementing_id`, counted from 1 in each tablet. The
last id of a tablet is the highest of what two durable places hold, read under the tablet's lock:

    the manifest's entry, `last_id`     at least every id in rowsets, and every id of a reservation
    the log from `wal_start` on         the ids of the rows inserted there

    row write      ids follow the last one; the record that it appends makes them durable
    bulk write     each task reserves ids for its rows as it stages them, by a version of the table
                   whose entries have a higher `last_id`; rows may carry them from then on
    flush          a new superblock's entry has the last id that its log reached
    upsert         a given id above the last one becomes the last one, by its record, or reserved

A tablet's ids are never lowered: no commit, compaction, overwrite, restore or alteration changes
`last_id` but by these steps, and a backup keeps it. Ids that were reserved and never committed are
a gap.

**Invariants**: (1) the durable end advances after the fsync and before the safe timestamp, so all
records up to a safe timestamp lie before it; (2) memory is never ahead of the durable end, but
where the lock file could not be written; (3) an id is given to one row of a tablet at most, also
after a crash at any step: it is above all ids that a durable place has named, and such a place
names it before its row can be seen.

**Threads**: any.

**Source**: Kudu tablet.cc, "FlushMRS" and "FlushDMS"; here both at once, so that one log position
says what is on disk.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from kudulite.delta.delta_file import create_delta_file
from kudulite.errors import (
    ConflictError,
    CorruptionError,
    RowError,
    StorageError,
    TableNotFoundError,
)
from kudulite.fs.file_system import exists, read_ranges
from kudulite.fs.lock import TabletLock, read_lock_file
from kudulite.fs.progress import Progress
from kudulite.model.schema import Schema
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.row_versions import flush_image
from kudulite.rowset.rowset import RowSetMeta
from kudulite.rowset.rowset_writer import write_rowsets
from kudulite.table.manifest import Manifest, Origin, TabletEntry
from kudulite.table.new_files import RemovedFilesError, remove_built
from kudulite.table.publication import publish_next, version_timestamp
from kudulite.table.table_store import TableStore, newest_of
from kudulite.tablet.mem_stores import MemStores
from kudulite.tablet.tablet import ROWSET_FOLDER, Tablet
from kudulite.wal.log import WalPosition, WalWriter, read_wal, segment_path
from kudulite.wal.record_format import FRAME_HEADER_BYTES

ID_MAX = (1 << 63) - 1
# Each lost race means that another process published the tablet, and so flushed it too, or that it
# removed files of this flush.
FLUSH_ATTEMPTS_MAX = 5
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
            if not store.exists():
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
    tail = read_wal(folder, end, None, store.last_seen().schema, durable_end=end)
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
    schema = store.last_seen().schema
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


@dataclass(frozen=True)
class _FlushedTablet:
    """The files of a flush: the tablet's rowsets with them, and the log's position they reach."""

    rowsets: tuple[RowSetMeta, ...]
    position: WalPosition
    timestamp: int


def flush_table(store: TableStore) -> int:
    """Flush every tablet; returns how many had something to flush."""
    entries = store.newest().tablets
    with Progress(f"flush of table {store.name!r}", len(entries), "tablets") as progress:
        return sum(flush_tablet(store, e.id) for e in progress.counted(entries, lambda e: 1))


def flush_tablet(store: TableStore, tablet_id: str) -> bool:
    """Flush one tablet's memory and publish it; False when there was nothing to flush.

    The last attempt builds its files under the tablet's lock. Raises LockTimeoutError,
    StorageError, CorruptionError; the table is then as it was.
    """
    for _ in range(FLUSH_ATTEMPTS_MAX):
        entry = store.newest().entry(tablet_id)
        if entry is None:
            return False
        _, memory = caught_up_memory(store, entry)
        if memory is None or not memory.row_count:
            return False
        begin = time.perf_counter()
        with suppress(RemovedFilesError), store.building(memory.base):
            flushed = _write_files(store, memory)
            with store.locked(tablet_id, "flush") as lock:
                if _publish(store, memory.base, flushed, lock):
                    _count_flush(store, begin)
                    return True
            remove_built(store.file_system, memory.base, flushed.rowsets)
    begin = time.perf_counter()
    with store.locked(tablet_id, "flush") as lock:
        newest = store.newest()
        old = newest.entry(tablet_id)
        new = None if old is None else flush_under_lock(store, old, lock)
        if new is None or new is old:
            return False
        _publish_entry(store, newest, new)
    _count_flush(store, begin)
    return True


def _count_flush(store: TableStore, begin: float) -> None:
    store.metrics.flushes += 1
    store.metrics.flush_seconds += time.perf_counter() - begin


def flush_under_lock(store: TableStore, entry: TabletEntry, lock: TabletLock) -> TabletEntry:
    """Return the tablet's entry with its whole log flushed, not published; for a committer.

    Its superblock is on disk and refers to durable files. Without a log this is `entry`.
    """
    end = make_durable(store, entry, lock)
    if end.first_frame == store.tablet(entry).superblock.wal_start.first_frame:
        return entry
    memory = recover(store, entry, lock)
    flushed = _write_files(store, memory)
    return _flushed_entry(store, entry, flushed, memory, lock)


def flushed_under_locks(
    store: TableStore, newest: Manifest, locks: Mapping[str, TabletLock]
) -> Manifest:
    """Return the version with the logs of the locked tablets flushed; not published yet."""
    tablets = tuple(
        flush_under_lock(store, entry, locks[entry.id]) if entry.id in locks else entry
        for entry in newest.tablets
    )
    return replace(newest, tablets=tablets)


def _publish(store: TableStore, base: Tablet, flushed: _FlushedTablet, lock: TabletLock) -> bool:
    """Publish a flush, unless the tablet has got another superblock since it was begun."""
    newest = store.newest()
    now = newest.entry(base.id)
    if now is None or store.tablet(now).superblock != base.superblock:
        return False
    memory = recover(store, now, lock)
    _publish_entry(store, newest, _flushed_entry(store, now, flushed, memory, lock))
    return True


def _publish_entry(store: TableStore, newest: Manifest, new: TabletEntry) -> None:
    def build(manifest: Manifest) -> Manifest:
        flushed = manifest.with_entry(new)
        timestamp = version_timestamp(store, flushed)
        return flushed.successor(Origin("memory flush", timestamp, is_maintenance=True))

    publish_next(store, newest, build)


def _flushed_entry(
    store: TableStore,
    entry: TabletEntry,
    flushed: _FlushedTablet,
    memory: MemStores,
    lock: TabletLock,
) -> TabletEntry:
    """Write the superblock of a flush, under the tablet's lock, with `memory` caught up.

    If nothing was appended meanwhile the log continues in a new segment; the old one is superseded.
    """
    start = flushed.position
    if start == memory.end:
        folder = memory.base.wal_folder
        with WalWriter(store.file_system, folder, memory.end) as log:
            start = log.roll()
        lock.set_wal_end(start.segment, start.offset)
    old = memory.base.superblock
    superblock = replace(old, rowsets=flushed.rowsets, wal_start=start)
    if memory.schema.auto_incrementing is not None:
        entry = replace(entry, last_id=last_id_of(entry, memory))
    return store.with_superblock(entry, superblock, max(entry.timestamp, flushed.timestamp))


def last_id_of(entry: TabletEntry, memory: MemStores | None) -> int:
    """Return the last id of a tablet, whose lock the caller has, with its recovered memory.

    Without the lock it is the last id at some moment of the call.
    """
    return max(entry.last_id or 0, 0 if memory is None else memory.last_id)


def next_id(last: int, table: str, tablet_id: str, count: int = 1) -> int:
    """Return the first of `count` ids after `last`. Raises RowError where there are none left."""
    if last > ID_MAX - count:
        raise RowError(
            f"table {table!r}: tablet {tablet_id}: {RowError.REASON_NO_ID_LEFT}: the last id is"
            f" {last}; copy the rows into a new table",
            reason=RowError.REASON_NO_ID_LEFT,
            row_count=count,
        )
    return last + 1


def numbered(
    store: TableStore, manifest: Manifest, rows: pa.Table, creates: np.ndarray
) -> pa.Table:
    """Return the rows of a batch with an id in the place of each null one, in row order.

    `creates` bool[n]: which rows may be new, so that their tablets' last ids must not be below
    theirs. Raises as `reserve_ids`.
    """
    schema, tablets = manifest.schema, manifest.placed_tablets
    name = schema.auto_incrementing
    assert name is not None
    given = rows.column(name).combine_chunks()
    is_new = given.is_null().to_numpy(zero_copy_only=False)
    ids = given.fill_null(0).to_numpy().copy()
    columns = {key: rows.column(key).combine_chunks() for key in schema.key_names if key != name}
    index = manifest.partition.tablet_index(columns, len(ids))
    is_covered = index >= 0
    highest = np.zeros(len(tablets), np.int64)
    lifts = creates & is_covered
    np.maximum.at(highest, index[lifts], ids[lifts])
    new = np.flatnonzero(is_new & is_covered)
    counts = np.bincount(index[new], minlength=len(tablets))
    wanted = {
        tablets[n].id: (int(counts[n]), int(highest[n])) for n in np.flatnonzero(counts + highest)
    }
    firsts = reserve_ids(store, manifest.table_id, wanted)
    starts = np.array([firsts.get(entry.id, 0) for entry in tablets], np.int64)
    starts -= np.cumsum(counts) - counts
    in_order = new[np.argsort(index[new], kind="stable")]
    ids[in_order] = np.repeat(starts, counts) + np.arange(len(new))
    return rows.set_column(rows.column_names.index(name), name, pa.array(ids))


def reserve_ids(
    store: TableStore, table_id: str, wanted: Mapping[str, tuple[int, int]]
) -> dict[str, int]:
    """Reserve ids for each tablet in `wanted`: how many, all above a given id; return the first.

    Durable when it returns. Raises ConflictError, LockTimeoutError, StorageError, RowError.
    """
    newest = newest_of(store, table_id)
    known = {entry.id: entry.last_id or 0 for entry in newest.tablets}
    if not any(count or given > known.get(t, 0) for t, (count, given) in wanted.items()):
        return {}  # nothing to reserve: no lock, no version
    with ExitStack() as stack:
        locks = {t: stack.enter_context(store.locked(t, "ids of a write")) for t in sorted(wanted)}
        newest = newest_of(store, table_id)
        firsts, lasts = {}, {}
        for tablet_id, (count, given) in wanted.items():
            entry = newest.entry(tablet_id)
            if entry is None:
                raise ConflictError(
                    f"table {store.name!r}: the range of tablet {tablet_id} was dropped during a"
                    " write; write again"
                )
            last = max(given, last_id_of(entry, recover(store, entry, locks[tablet_id])))
            firsts[tablet_id] = next_id(last, store.name, tablet_id, count)
            lasts[tablet_id] = last + count

        def build(manifest: Manifest) -> Manifest:
            lifted = manifest
            for tablet_id, last in lasts.items():
                entry = manifest.entry(tablet_id)
                assert entry is not None  # a drop takes the locks of all tablets
                lifted = lifted.with_entry(replace(entry, last_id=last))
            timestamp = version_timestamp(store, manifest)
            return lifted.successor(Origin("reservation of ids", timestamp, is_maintenance=True))

        publish_next(store, newest, build)
    return firsts


def _write_files(store: TableStore, memory: MemStores) -> _FlushedTablet:
    """Write everything that memory holds now to files in the tablet's folder."""
    position, timestamp, tablet = memory.view()
    rowsets = [_with_redo(store, tablet, rowset) for rowset in tablet.disk_rowsets]
    rowsets += _write_memrowset(store, tablet, memory.schema)
    return _FlushedTablet(tuple(rowsets), position, timestamp)


def _with_redo(store: TableStore, tablet: Tablet, rowset: DiskRowSet) -> RowSetMeta:
    """Write a rowset's DeltaMemStore as its newest REDO file."""
    if rowset.dms is None:
        return rowset.meta
    folder = tablet.folder / ROWSET_FOLDER / rowset.meta.id
    redo = create_delta_file(store.file_system, folder, "redo", rowset.dms.to_rows())
    store.file_system.sync_directory(folder)
    return rowset.meta.with_redo((redo,))


def _write_memrowset(store: TableStore, tablet: Tablet, schema: Schema) -> Sequence[RowSetMeta]:
    if tablet.memrowset is None:
        return ()
    image = flush_image(tablet.memrowset)
    folder = tablet.folder / ROWSET_FOLDER
    metas = write_rowsets(store.file_system, folder, schema, image)
    store.file_system.sync_directory(folder)
    return metas
