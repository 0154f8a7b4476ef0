"""Memory flush of a tablet: what its log holds beyond the rowsets, to the files of a superblock.

    MemRowSet          -> new DiskRowSets: newest image, UNDO back to each insert, REDO of deletes
    DeltaMemStore      -> one REDO file of its DiskRowSet
    superblock'        =  these files + `wal_start` at the log position that memory had reached

Files are built without the tablet's lock, while readers and writers continue; the lock is held to
write the superblock and to publish. Records appended meanwhile stay in the log, behind the new
`wal_start`. A crash leaves unreferenced files, which garbage collection removes.

A commit, which holds the lock, flushes the rest of the log into its own version.

**Source**: Kudu tablet.cc, "FlushMRS" and "FlushDMS"; here both at once, so that one log position
says what is on disk.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kudulite.delta.delta_file import create_delta_file
from kudulite.fs.lock import TabletLock
from kudulite.model.schema import Schema
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.row_versions import flush_image
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.rowset.rowset_writer import write_rowsets
from kudulite.table.manifest import Manifest, TabletEntry
from kudulite.table.table_store import TableStore, are_there, publish_next
from kudulite.table.wal_tail import caught_up_memory, make_durable, recover
from kudulite.tablet.mem_stores import MemStores
from kudulite.tablet.tablet import ROWSET_FOLDER, Tablet
from kudulite.wal.log import WalPosition, WalWriter

# Each lost race means that another process published the tablet, and so flushed it too.
FLUSH_ATTEMPTS_MAX = 5


@dataclass(frozen=True)
class _FlushedTablet:
    """The files of a flush: the tablet's rowsets with them, and the log's position they reach."""

    rowsets: tuple[RowSetMeta, ...]
    position: WalPosition
    timestamp: int


def flush_table(store: TableStore) -> int:
    """Flush every tablet; returns how many had something to flush."""
    return sum(flush_tablet(store, entry.id) for entry in store.newest().tablets)


def flush_tablet(store: TableStore, tablet_id: str) -> bool:
    """Flush one tablet's memory and publish it; False when there was nothing to flush.

    Raises LockTimeoutError, StorageError, CorruptionError; the table is then as it was.
    """
    for _ in range(FLUSH_ATTEMPTS_MAX):
        entry = store.newest().entry(tablet_id)
        if entry is None:
            return False
        _, memory = caught_up_memory(store, entry)
        if memory is None or not memory.row_count:
            return False
        flushed = _write_files(store, memory)
        with store.lock(tablet_id) as lock:
            lock.announce("flush")
            if _publish(store, memory.base, flushed, lock):
                return True
    return False


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
    """Publish a flush, unless the tablet has got another superblock since it was begun.

    Nor if its files are missing: a garbage collection with a short grace time removes them.
    """
    newest = store.newest()
    now = newest.entry(base.id)
    if now is None or store.tablet(now).superblock != base.superblock:
        return False
    if not are_there(flushed.rowsets, base):
        return False
    new = _flushed_entry(store, now, flushed, recover(store, now, lock), lock)
    commit_id = uuid.uuid4().hex

    def build(manifest: Manifest) -> Manifest:
        return manifest.with_entry(new).successor(commit_id)

    return publish_next(store, newest, build) is not None


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
        with WalWriter(store.environment.file_system, folder, memory.end) as log:
            start = log.roll()
        lock.set_wal_end(start.segment, start.offset)
    old = memory.base.superblock
    superblock = replace(old, rowsets=flushed.rowsets, wal_start=start)
    ref = store.write_superblock(superblock)
    store.environment.file_system.sync_directory(store.tablet_folder(entry.id))
    timestamp = max(entry.timestamp, flushed.timestamp)
    return entry.with_superblock(ref, flushed.rowsets, timestamp)


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
    file_system = store.environment.file_system
    redo = create_delta_file(file_system, folder, "redo", rowset.dms.to_rows())
    file_system.sync_directory(folder)
    return rowset.meta.with_redo((redo,))


def _write_memrowset(store: TableStore, tablet: Tablet, schema: Schema) -> Sequence[RowSetMeta]:
    if tablet.memrowset is None:
        return ()
    image = flush_image(tablet.memrowset)
    folder = tablet.folder / ROWSET_FOLDER
    file_system = store.environment.file_system
    metas = list(write_rowsets(file_system, folder, schema, image))
    file_system.sync_directory(folder)
    return metas
