"""Copying a table to another folder, as it is at one moment.

    with its past      files of one version, which is published while no commit is under way, byte
                       by byte and checked; superblocks anew, since a copy begins with empty logs
    the present only   rows of a settled moment, inserted by one bulk write

The copy is built in `<root>/.copy-<name>` and renamed when it is whole. It is a table of its own,
with another id; where it has the past, moments mean the same in both, up to that of the copy.

**Invariants**: the version that is copied is pinned like that of a write, so its files are not
collected.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from kudulite.chain.folder import make_table_folders
from kudulite.chain.manifest import Manifest, Origin, TabletEntry, VersionList
from kudulite.client.table_names import move_table, table_folder
from kudulite.errors import CorruptionError, TableExistsError
from kudulite.shown.progress import Progress
from kudulite.storage.file_system import FileRef, exists
from kudulite.storage.names import LOCK_NAME, ROWSET_FOLDER, TABLET_FOLDER
from kudulite.storage.storage_error import storage_errors
from kudulite.storage.tablet_lock import create_lock_file
from kudulite.table.memory_flush import flush_table
from kudulite.table.open_writes import begin_write, end_write, of_same_table
from kudulite.table.snapshot import choose_snapshot
from kudulite.table.table_store import TableStore
from kudulite.table.write_state import WriteState
from kudulite.tablet.operation import Operation, WriteSpec
from kudulite.upkeep.alter import alter_table
from kudulite.wal.segment import WAL_BEGIN

_READ_BYTES = 1 << 20


def copy_with_past(source: TableStore, path: Path) -> int:
    """Copy a table whole; returns the HybridTime of its newest state in the copy.

    Raises TableExistsError, CorruptionError where a file is not as it was written, StorageError.
    """
    hidden, target = _places(source, path)
    flush_table(source)  # most of it, ahead of the locks
    settled = choose_snapshot(source, None)
    manifest, pin = _pinned_version(source)
    moment = max(manifest.timestamp, settled)
    try:
        make_table_folders(hidden.file_system, hidden.folder)
        entries = manifest.readable_tablets
        total = sum(entry.bytes_on_disk for entry in entries)
        with (
            of_same_table(source, pin),
            Progress(f"copy of table {source.name!r}", total, "bytes") as progress,
        ):
            copied = {e.id: _copy_tablet(source, hidden, e, moment, progress) for e in entries}
    finally:
        end_write(source, pin)
    made = replace(
        manifest,
        table_id=uuid.uuid4().hex,
        version=1,
        versions=VersionList().with_version(1, Origin("copy", moment)),
        previous_crc32=None,
        commit_id=uuid.uuid4().hex,
        tablets=tuple(copied[entry.id] for entry in manifest.tablets),
        dropped=tuple(
            replace(dropped, tablets=tuple(copied[entry.id] for entry in dropped.tablets))
            for dropped in manifest.dropped
        ),
    )
    file_system = hidden.file_system
    file_system.sync_directory(hidden.folder / TABLET_FOLDER)
    file_system.sync_directory(hidden.folder)
    hidden.begin(made)
    move_table(hidden, target)
    return moment


def empty_copy(source: TableStore, path: Path) -> tuple[TableStore, TableStore, int]:
    """Make an empty, hidden table like the source; returns it, its place, and a settled moment.

    Every row of the source at the moment has a tablet in it.
    """
    hidden, target = _places(source, path)
    while True:
        moment = choose_snapshot(source, None)
        manifest = source.newest()
        if len(manifest.partitions_at(moment)) == 1 and manifest.schema_since <= moment:
            break  # else a range was dropped since, with rows, or a column altered
    hidden.create(manifest.schema, manifest.partition, manifest.owner, manifest.comment)
    seconds = manifest.history_seconds
    alter_table(hidden, [lambda draft: draft.keep_history(seconds)])
    return hidden, target, moment


def _places(source: TableStore, path: Path) -> tuple[TableStore, TableStore]:
    """Return where the copy is built, empty, and where it will be."""
    place = Path(os.path.abspath(path))
    target = TableStore(table_folder(place.parent, place.name), source.environment)
    if exists(place):
        raise TableExistsError(f"cannot copy {source.name!r} to {place}: it is there")
    hidden = TableStore(place.with_name(f".copy-{place.name}"), source.environment)
    source.file_system.remove_tree(hidden.folder)
    return hidden, target


def _pinned_version(store: TableStore) -> tuple[Manifest, WriteState]:
    """Publish a version with all logs flushed into it, and pin it as a write does."""
    while True:
        manifest = alter_table(store, [])  # flushes the logs while no commit is under way
        schema = manifest.schema
        spec = WriteSpec.build(schema, schema.names, table=store.name, operation=Operation.UPSERT)
        pin = WriteState(manifest.table_id, manifest.version, uuid.uuid4().hex, spec)
        if begin_write(store, pin):
            return manifest, pin


def _copy_tablet(
    source: TableStore, target: TableStore, entry: TabletEntry, moment: int, progress: Progress
) -> TabletEntry:
    file_system = target.file_system
    tablet, folder = source.tablet(entry), target.tablet_folder(entry.id)
    file_system.make_directory(folder)
    file_system.make_directory(folder / ROWSET_FOLDER)
    create_lock_file(folder / LOCK_NAME)
    for meta in tablet.superblock.rowsets:
        place = folder / ROWSET_FOLDER / meta.id
        file_system.make_directory(place)
        for ref in meta.file_refs:
            _copy_file(target, tablet.folder / ROWSET_FOLDER / meta.id, place, ref)
            progress.add(ref.length)
        file_system.sync_directory(place)
    for ref in tablet.superblock.tablet_file_refs:
        _copy_file(target, tablet.folder, folder, ref)
    ref = target.write_superblock(replace(tablet.superblock, wal_start=WAL_BEGIN))
    with target.lock(entry.id) as lock:
        lock.advance_safe_timestamp(moment)
    file_system.sync_directory(folder / ROWSET_FOLDER)
    file_system.sync_directory(folder)
    return replace(entry, superblock=ref)


def _chunks(path: Path) -> Iterator[bytes]:
    with storage_errors("read", path), path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            yield chunk


def _copy_file(target: TableStore, folder: Path, place: Path, ref: FileRef) -> None:
    open_sink = target.file_system.open_sink
    with open_sink(place / ref.name) as sink:
        for chunk in _chunks(folder / ref.name):
            sink.write(chunk)
        found = sink.finish()
    if found != ref:
        raise CorruptionError(
            f"{folder / ref.name}: {found.length} bytes with CRC {found.crc32:#010x}, expected"
            f" {ref.length} with {ref.crc32:#010x}"
        )
