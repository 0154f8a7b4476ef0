"""Copying a table to another folder, as it is at one moment.

    with its past      files of one version, which is published while no commit is under way, byte
                       by byte and checked; superblocks anew, since a copy begins with an empty log
    the present only   rows of a settled moment, inserted by one bulk write

The copy is built in `<root>/.copy-<name>` and renamed when it is whole. It is a table of its own,
with another id; where it has the past, moments mean the same in both, up to that of the copy.

**Invariants**: the version that is copied is pinned like that of a write, so its files are not
collected.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

from kudulite.chain.manifest import Origin, TabletEntry, VersionList
from kudulite.errors import CorruptionError, TableExistsError
from kudulite.shown.progress import Progress
from kudulite.storage.names import ROWSET_FOLDER, TABLET_FOLDER
from kudulite.storage.storage import FileRef, is_taken
from kudulite.table.environment import Environment
from kudulite.table.memory_flush import flush_table
from kudulite.table.open_writes import begin_write
from kudulite.table.removal import discard_folder
from kudulite.table.snapshot import choose_snapshot
from kudulite.table.table_names import move_table, table_folder
from kudulite.table.table_store import TableStore
from kudulite.upkeep.alter import alter_table
from kudulite.wal.segment import LOG_BEGIN

_READ_BYTES = 4 << 20


def copy_with_past(source: TableStore, path: Path, environment: Environment) -> int:
    """Copy a table whole; returns the HybridTime of its newest state in the copy.

    Raises TableExistsError, CorruptionError where a file is not as it was written, StorageError.
    """
    hidden, target = _places(source, path, environment)
    flush_table(source)  # most of it, ahead of the lock
    settled = choose_snapshot(source, None)
    with begin_write(source, "copy"):
        manifest = alter_table(source, [])  # flushes the log while no commit is under way
        moment = max(manifest.timestamp, settled)
        hidden.make_folders()
        hidden.log.create(moment)
        entries = manifest.readable_tablets
        total = sum(entry.bytes_on_disk for entry in entries)
        with Progress(f"copy of table {source.name!r}", total, "bytes") as progress:
            copied = {e.id: _copy_tablet(source, hidden, e, progress) for e in entries}
    made = replace(
        manifest,
        table_id=uuid.uuid4().hex,
        version=1,
        versions=VersionList().with_version(1, Origin("copy", moment)),
        previous_crc32=None,
        log_start=LOG_BEGIN,
        log_end=LOG_BEGIN,
        commit_id=uuid.uuid4().hex,
        tablets=tuple(copied[entry.id] for entry in manifest.tablets),
        dropped=tuple(
            replace(dropped, tablets=tuple(copied[entry.id] for entry in dropped.tablets))
            for dropped in manifest.dropped
        ),
    )
    storage = hidden.storage
    storage.sync([hidden.place / TABLET_FOLDER])
    storage.sync([hidden.place])
    if hidden.begin(made) is None:
        raise TableExistsError(
            f"cannot copy {source.name!r} to {target.folder}: another copy is made"
        )
    move_table(hidden, target)
    return moment


def empty_copy(
    source: TableStore, path: Path, environment: Environment
) -> tuple[TableStore, TableStore, int]:
    """Make an empty, hidden table like the source; returns it, its place, and a settled moment.

    Every row of the source at the moment has a tablet in it.
    """
    hidden, target = _places(source, path, environment)
    while True:
        moment = choose_snapshot(source, None)
        manifest = source.newest()
        if len(manifest.partitions_at(moment)) == 1 and manifest.schema_since <= moment:
            break  # else a range was dropped since, with rows, or a column altered
    hidden.create(manifest.schema, manifest.partition, manifest.owner, manifest.comment)
    seconds = manifest.history_seconds
    alter_table(hidden, [lambda draft: draft.keep_history(seconds)])
    return hidden, target, moment


def _places(
    source: TableStore, place: Path, environment: Environment
) -> tuple[TableStore, TableStore]:
    """Return where the copy is built, empty, and where it will be."""
    target = TableStore(table_folder(place.parent, place.name), environment)
    if target.chain.exists() or is_taken(target.storage, place):
        raise TableExistsError(f"cannot copy {source.name!r} to {place}: it is there")
    hidden = TableStore(place.with_name(f".copy-{place.name}"), environment)
    if is_taken(hidden.storage, hidden.folder):
        discard_folder(hidden.folder, place.parent, environment)
        hidden = TableStore(hidden.folder, environment)
    return hidden, target


def _copy_tablet(
    source: TableStore, target: TableStore, entry: TabletEntry, progress: Progress
) -> TabletEntry:
    storage = target.storage
    tablet, folder = source.tablet(entry), target.tablet_folder(entry.id)
    storage.make_folder(folder)
    storage.make_folder(folder / ROWSET_FOLDER)
    for meta in tablet.superblock.rowsets:
        place = folder / ROWSET_FOLDER / meta.id
        for ref in meta.file_refs:
            _copy_file(source, target, tablet.folder / ROWSET_FOLDER / meta.id, place, ref)
            progress.add(ref.length)
        storage.sync([place])
    for ref in tablet.superblock.tablet_file_refs:
        _copy_file(source, target, tablet.folder, folder, ref)
    ref = target.write_superblock(replace(tablet.superblock, log_start=LOG_BEGIN))
    storage.sync([folder / ROWSET_FOLDER])  # the names in `folder` are, with the superblock
    return replace(entry, superblock=ref)


def _copy_file(
    source: TableStore, target: TableStore, folder: Path, place: Path, ref: FileRef
) -> None:
    storage = source.storage
    with target.storage.open_sink(place / ref.name) as sink:
        for offset in range(0, ref.length + 1, _READ_BYTES):  # one byte more would be found
            sink.write(storage.read_ranges(folder / ref.name, [(offset, _READ_BYTES)])[1][0])
        found = sink.finish()
    if found != ref:
        raise CorruptionError(
            f"{folder / ref.name}: {found.length} bytes with CRC {found.crc32:#010x}, expected"
            f" {ref.length} with {ref.crc32:#010x}"
        )
