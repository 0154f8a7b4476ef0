"""Memory flush: what a tablet has in memory becomes files of a new superblock.

    MemRowSet          -> new DiskRowSets: newest image, UNDO back to each insert, REDO of deletes
    DeltaMemStore      -> one REDO file of its DiskRowSet
    superblock'        =  these files + `wal_start` at the log position that memory had reached

Files are built without the tablet's lock, while readers and writers continue; the lock is held to
write the superblock and to publish. Records appended meanwhile stay in the log, behind the new
`wal_start`. A crash leaves unreferenced files, which garbage collection removes. A commit, which
holds the lock, flushes the rest of the log into its own version.

**Threads**: any.

**Source**: Kudu tablet.cc, "FlushMRS" and "FlushDMS"; here both at once, so that one log position
says what is on disk.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from kudulite.chain.manifest import Manifest, Origin, TabletEntry
from kudulite.chain.new_files import RemovedFilesError, remove_built
from kudulite.delta.delta_file import create_delta_file
from kudulite.model.schema import Schema
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.row_versions import flush_image
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.rowset.rowset_writer import write_rowsets
from kudulite.shown.progress import Progress
from kudulite.storage.names import ROWSET_FOLDER
from kudulite.storage.tablet_lock import TabletLock
from kudulite.table.publication import version_timestamp
from kudulite.table.row_ids import last_id_of
from kudulite.table.table_store import TableStore
from kudulite.table.tablet_memory import caught_up_memory, make_durable, recover
from kudulite.tablet.mem_stores import MemStores
from kudulite.tablet.tablet import Tablet
from kudulite.wal.segment import WalPosition
from kudulite.wal.wal_writer import WalWriter

# Each lost race means that another process published the tablet, and so flushed it too, or that it
# removed files of this flush.
FLUSH_ATTEMPTS_MAX = 5


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

    store.update(build, newest)


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
