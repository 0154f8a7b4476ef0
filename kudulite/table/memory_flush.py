"""Memory flush: what the log holds becomes files of new superblocks, all in one version.

    MemRowSet          -> new DiskRowSets: newest image, UNDO back to each insert, REDO of deletes
    DeltaMemStore      -> one REDO file of its DiskRowSet
    superblock'        =  these files + `log_start` at the position in the log that they reach
    version'           =  these superblocks + `log_start`, once no tablet has rows before it

Files are built without the table's lock, while readers and writers continue; the lock is held to
write the superblocks and to publish. Records appended meanwhile stay in the log, behind the new
`log_start`. The flush is an open write meanwhile (open_writes.py). Rows in memory of a tablet
that another process has published first are flushed under the lock. A commit, which holds the lock,
flushes the rest of the log of its tablets into its own version.

**Threads**: any.

**Source**: Kudu tablet.cc, "FlushMRS" and "FlushDMS"; here both at once, so that one log position
says what is on disk.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial

from kudulite.chain.manifest import Manifest, Origin, TabletEntry
from kudulite.delta.delta_file import create_delta_files
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.rowset.row_versions import flush_image
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.rowset.rowset_writer import write_rowsets
from kudulite.shown.progress import Progress
from kudulite.storage.names import ROWSET_FOLDER
from kudulite.storage.new_files import NewFiles
from kudulite.table.background_work import in_threads, threads_for
from kudulite.table.open_writes import FLUSH, OpenWrite, begin_write
from kudulite.table.present import Present, of_present, recover
from kudulite.table.publication import version_timestamp
from kudulite.table.row_ids import last_id_of
from kudulite.table.table_log import Turn
from kudulite.table.table_store import TableStore
from kudulite.tablet.mem_stores import MemStores
from kudulite.tablet.tablet import Tablet
from kudulite.wal.segment import LogPosition


@dataclass(frozen=True)
class _FlushedTablet:
    """The files of a flush: the rowsets of a tablet's `base` with them, and how far they reach."""

    base: Tablet
    rowsets: tuple[RowSetMeta, ...]
    position: LogPosition
    timestamp: int

    @property
    def bytes_written(self) -> int:
        """The bytes of the files that the flush adds."""
        before = sum(meta.bytes_on_disk for meta in self.base.superblock.rowsets)
        return sum(meta.bytes_on_disk for meta in self.rowsets) - before


def flush_table(
    store: TableStore, tablet_ids: Collection[str] | None = None, *, has_looked: bool = False
) -> list[str]:
    """Flush the memory of some tablets, or of all, and publish it as one version.

    A caller that `has_looked` for the newest state just now spares looks for what came since: rows
    of others may then stay in the log. Returns the ids of those that had something to flush. Raises
    LockTimeoutError, StorageError, CorruptionError; the table is then as it was.
    """
    if not _unflushed(store, tablet_ids, 0 if has_looked else TIMESTAMP_MAX)[1]:
        if store.log.has_grown_long():
            store.in_turn("flush", partial(_publish_log_start, store))
        return []
    begin = time.perf_counter()
    with begin_write(store, FLUSH) as write:
        # Of a version that stays until the flush ends.
        position, unflushed = _unflushed(store, tablet_ids)

        def files_of(memory: MemStores) -> _FlushedTablet:
            return _write_files(write.files, memory)

        count = len(unflushed)
        with Progress(f"flush of table {store.name!r}", count, "tablets") as progress:
            report = partial(progress.report, total=count)
            threads = threads_for(store.storage)
            done = in_threads("flush", files_of, unflushed, threads, report)
        flushed = {each.base.id: each for each in done}
        write.files.sync()
        tablet_ids = []
        if flushed:
            publish = partial(_publish, store, flushed, position, write)
            tablet_ids = store.in_turn("flush", publish, has_looked=has_looked)
    seconds = time.perf_counter() - begin
    store.metrics.flushes += len(tablet_ids)
    store.metrics.flush_seconds += seconds
    if tablet_ids:
        written = sum(flushed[each].bytes_written for each in tablet_ids)
        more = f"wrote {written} bytes"
        store.log_operation("memory flush", tablet_ids, seconds, written, more)
    return tablet_ids


def _publish_log_start(store: TableStore, turn: Turn) -> None:
    """Publish a version that has all of a log that is long without rows."""

    def build(manifest: Manifest) -> Manifest:
        timestamp = version_timestamp(store, manifest, turn)
        return manifest.successor(Origin("memory flush", timestamp, is_maintenance=True))

    store.update(build, flushed_under_lock(store, turn.newest(), turn), turn)


def _unflushed(
    store: TableStore, tablet_ids: Collection[str] | None, until: int = TIMESTAMP_MAX
) -> tuple[LogPosition, list[MemStores]]:
    """Return what is in memory of some tablets, or of all, and how far memory has read the log.

    That is at least up to a moment, as in `present`.
    """

    def of(found: Present) -> tuple[LogPosition, list[MemStores]]:
        position = found.memory.end
        chosen = [e for e in found.manifest.tablets if tablet_ids is None or e.id in tablet_ids]
        stores = store.storage.side_by_side(partial(found.stores, store), chosen)
        return position, [memory for memory in stores if memory is not None]

    return of_present(store, of, until)


def _publish(
    store: TableStore,
    flushed: dict[str, _FlushedTablet],
    position: LogPosition,
    write: OpenWrite,
    turn: Turn,
) -> list[str]:
    """Publish what was flushed of the log up to `position`; return the tablets' ids."""
    now = recover(store, turn)
    may_publish = write.may_publish()
    starts = _starts(store, now, now.manifest)
    unflushed = {each for each, start in starts.items() if now.memory.has_rows(each, start)}
    if position == now.memory.end and unflushed <= flushed.keys():
        _roll(store, now, turn)

    def published(files: _FlushedTablet) -> tuple[bool, list[TabletEntry]]:
        """Return whether the files are those of the tablet's entry, and that entry, if any."""
        old = now.manifest.entry(files.base.id)
        if old is None:
            return False, []
        if may_publish and store.tablet(old).superblock == files.base.superblock:
            memory = now.stores(store, old)
            assert memory is not None
            return True, [_flushed_entry(store, old, files, memory, turn)]
        new = _entry_under_lock(store, now, old, turn)
        return False, [] if new is old else [new]

    made = store.storage.side_by_side(published, list(flushed.values()))
    if not any(is_used for is_used, _ in made):  # another process has flushed the same rows first
        write.files.remove()
    entries = [entry for _, found in made for entry in found]
    if not entries:
        return []

    def build(manifest: Manifest) -> Manifest:
        for entry in entries:
            manifest = manifest.with_entry(entry)
        manifest = now.memory.flushed(manifest, _flushed_end(store, now, manifest))
        timestamp = version_timestamp(store, manifest, turn)
        return manifest.successor(Origin("memory flush", timestamp, is_maintenance=True))

    store.update(build, now.manifest, turn)
    return [entry.id for entry in entries]


def _roll(store: TableStore, now: Present, turn: Turn) -> None:
    """Continue the log in a new segment, so that the one before can be removed."""
    if now.memory.end.first_frame != now.manifest.log_start.first_frame:
        store.log.roll(turn, now.memory)


def _flushed_end(store: TableStore, now: Present, manifest: Manifest) -> LogPosition:
    """Return the position before which all rows of the log are in rowsets of `manifest`."""
    return now.memory.flushed_end(_starts(store, now, manifest))


def _starts(store: TableStore, now: Present, manifest: Manifest) -> dict[str, LogPosition]:
    """Return up to where rowsets have the rows of each tablet of a version that the log has."""
    return {
        entry.id: store.tablet(entry).superblock.log_start
        for entry in manifest.tablets
        if now.memory.has_rows(entry.id, manifest.log_start)
    }


def flushed_under_lock(
    store: TableStore,
    newest: Manifest,
    turn: Turn,
    tablet_ids: Collection[str] | None = None,
) -> Manifest:
    """Return `newest` with the log of some tablets, or of all, flushed; for a committer.

    It is not published. Its superblocks are on disk and refer to durable files.
    """
    now = recover(store, turn)
    if tablet_ids is None:
        _roll(store, now, turn)
    for entry in newest.tablets:
        if tablet_ids is None or entry.id in tablet_ids:
            new = _entry_under_lock(store, now, entry, turn)
            newest = newest if new is entry else newest.with_entry(new)
    return now.memory.flushed(newest, _flushed_end(store, now, newest))


def _entry_under_lock(
    store: TableStore, now: Present, entry: TabletEntry, turn: Turn
) -> TabletEntry:
    """Return a tablet's entry with all its rows in the log flushed; `entry` if there are none."""
    memory = now.stores(store, entry)
    if memory is None:
        return entry
    files = NewFiles(store.storage)
    flushed = _write_files(files, memory)
    files.sync()
    return _flushed_entry(store, entry, flushed, memory, turn)


def _flushed_entry(
    store: TableStore,
    entry: TabletEntry,
    flushed: _FlushedTablet,
    memory: MemStores,
    turn: Turn,
) -> TabletEntry:
    """Write the superblock of a flush, under the table's lock, with `memory` caught up."""
    start = LogPosition(*turn.log_end) if flushed.position == memory.end else flushed.position
    superblock = replace(memory.base.superblock, rowsets=flushed.rowsets, log_start=start)
    if memory.schema.auto_incrementing is not None:
        entry = replace(entry, last_id=last_id_of(entry, memory))
    return store.with_superblock(entry, superblock, max(entry.timestamp, flushed.timestamp))


def _write_files(files: NewFiles, memory: MemStores) -> _FlushedTablet:
    """Write everything that memory holds now to files in the tablet's folder; not durable yet."""
    position, timestamp, tablet = memory.view()
    rowsets = _with_redo(files, tablet)
    if tablet.memrowset is not None:
        image, folder = flush_image(tablet.memrowset), tablet.folder / ROWSET_FOLDER
        rowsets += write_rowsets(files, folder, memory.schema, image)
    return _FlushedTablet(memory.base, tuple(rowsets), position, timestamp)


def _with_redo(files: NewFiles, tablet: Tablet) -> list[RowSetMeta]:
    """Write the DeltaMemStore of each rowset as its newest REDO file; return all rowsets."""
    changed = {rowset.meta.id: rowset.dms for rowset in tablet.disk_rowsets if rowset.dms}
    folder = tablet.folder / ROWSET_FOLDER
    parts = [(folder / rowset_id, dms.to_rows()) for rowset_id, dms in changed.items()]
    redo = dict(zip(changed, create_delta_files(files, "redo", parts), strict=True))
    metas = [rowset.meta for rowset in tablet.disk_rowsets]
    return [meta.with_redo((redo[meta.id],)) if meta.id in redo else meta for meta in metas]
