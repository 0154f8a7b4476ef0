"""Runs one maintenance operation on a tablet: built beside readers and writers, then published.

    1  read the newest superblock, the ancient history mark               no lock
    2  write the new files                                                no lock: takes long
    3  carry over REDO that arrived meanwhile, until little is left       no lock
    4  carry over the rest; superblock; put-if-absent of the manifest     the table's lock

    read:   a b c d          at the version that the operation began with
    built:  a [bc] d         one rowset for b and c, say
    now:    a b' c d e       b has got a REDO file meanwhile, e is new
    result: a [bc]' d e      the REDO of b, on the row ids of [bc]

REDO that arrived keeps its row ids where rows did not move (delta compactions); after a merge it is
mapped by the operation's row id map. The log needs no change: its records are logical and are
replayed onto the new rowsets, so `log_start` stays.

Open readers keep the old files, which stay for the grace time. The operation is an open write, so
the files that it reads and writes stay until it ends (open_writes.py). A crash leaves the old
version and files that garbage collection removes. If two operations run on one tablet, the second
to publish finds its inputs changed, removes its files and gives up.

**Invariants**: (1) a version without history before a mark has `history_start` at or above the
mark; publication gives up if a tag holds an older moment; (2) a replacement is valid only while
each rowset that it read is there with all files that it read: REDO may be appended, nothing else;
(3) what arrived is newer than all that was read.

**Source**: Kudu tablet.cc, "DoMergeCompactionOrFlush"; without a DuplicatingRowSet, because what
arrives is in files or in a log of logical records.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kudulite.chain.manifest import Manifest, Origin
from kudulite.delta.delta_file import DeltaFile, DeltaFileMeta, DeltaRows, create_delta_file
from kudulite.delta.delta_history import merge_redo, stamped
from kudulite.errors import StorageError
from kudulite.model.schema import Schema
from kudulite.rowset.delta_compaction import compact_columns, merge_redo_files, merge_undo_files
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.merge_compaction import RowIdMap, merge_rowsets
from kudulite.rowset.rowset_meta import RowSetMeta, is_fully_ancient, without_ancient_undo
from kudulite.storage.names import ROWSET_FOLDER
from kudulite.storage.new_files import NewFiles
from kudulite.table.open_writes import COMPACTION, OpenWrite, begin_write
from kudulite.table.publication import version_timestamp
from kudulite.table.snapshot import ancient_history_mark, is_mark_still_valid
from kudulite.table.table_log import Turn
from kudulite.table.table_store import TableStore
from kudulite.tablet.maintenance_policy import (
    CollectHistory,
    CompactColumns,
    CompactDeltas,
    CompactRowSets,
    MaintenanceOperation,
)
from kudulite.tablet.superblock import Superblock
from kudulite.tablet.tablet import Tablet
from kudulite.tablet.tombstones import is_ancient

# REDO of so many rows is carried over while the lock is held; more, without it first.
CARRIED_ROWS_MAX = 10_000
_CARRY_ROUNDS_MAX = 10

Hook = Callable[[str], None]


@dataclass(frozen=True)
class OperationResult:
    """The outcome of an operation: its version, and the tablet's rowsets and bytes around it.

    `bytes_written` is the size of the new files.
    """

    version: int
    rowset_count_before: int
    rowset_count_after: int
    bytes_before: int
    bytes_after: int
    bytes_written: int


def run_operation(
    store: TableStore,
    tablet_id: str,
    operation: MaintenanceOperation,
    hook: Hook = lambda gap: None,
) -> OperationResult | None:
    """Run one operation and publish it; None if it had nothing to do, or its inputs changed.

    `hook` is called in each gap: "read", "built", "carried", "locked", "published". Raises
    LockTimeoutError, StorageError, CorruptionError; the table is then as it was.
    """
    if isinstance(operation, CollectHistory):
        manifest = store.newest()
        mark = ancient_history_mark(store, manifest)
        hook("read")
        if manifest.entry(tablet_id) is None:
            return None
        return _collect(store, tablet_id, mark, hook)
    with begin_write(store, COMPACTION) as write:
        manifest, base = store.newest_tablet(tablet_id)
        if base is None or manifest.entry(tablet_id) is None:
            return None
        mark = ancient_history_mark(store, manifest)
        hook("read")
        replacement = _build(store, write.files, base, manifest.stored_schema, operation, mark)
        if replacement is None:
            return None
        hook("built")
        found = _publish_replacement(store, write, base, replacement, operation.label, hook)
    hook("published")
    return found


def _publish_replacement(
    store: TableStore,
    write: OpenWrite,
    base: Tablet,
    replacement: Replacement,
    label: str,
    hook: Hook,
) -> OperationResult | None:
    """Publish rowsets that the operation `label` built from the version `base` of a tablet.

    None if their inputs have changed; the files of the operation are then removed.
    """
    entry = store.newest().entry(base.id)
    rounds = 0
    while entry is not None and rounds < _CARRY_ROUNDS_MAX:
        carried = carry_over(write.files, store.tablet(entry), replacement)
        if carried is None:
            break
        replacement, row_count = carried
        if row_count <= CARRIED_ROWS_MAX:
            break
        entry, rounds = store.newest().entry(base.id), rounds + 1
    hook("carried")

    def publish(turn: Turn) -> OperationResult | None:
        hook("locked")
        return _publish(store, write, base, replacement, label, turn)

    found = store.in_turn("compaction", publish)
    if found is None:
        write.files.remove()
    return found


def _build(
    store: TableStore,
    files: NewFiles,
    base: Tablet,
    schema: Schema,
    operation: MaintenanceOperation,
    mark: int,
) -> Replacement | None:
    """Write the files of an operation; None where the tablet lacks one of its rowsets."""
    ids = operation.rowset_ids
    found = [base.rowset(rowset_id) for rowset_id in ids]
    inputs = [rowset for rowset in found if rowset is not None]
    metas = tuple(rowset.meta for rowset in inputs)
    if not inputs or len(inputs) < len(ids) or any(m.delete_timestamp is not None for m in metas):
        return None
    if isinstance(operation, CompactRowSets):
        _check_free_space(store, base, metas)
        merged = merge_rowsets(files, base.folder / ROWSET_FOLDER, schema, inputs, mark)
        files.sync()
        return Replacement(metas, merged.rowsets, mark, merged.row_map)
    (rowset,) = inputs
    if isinstance(operation, CompactColumns):
        output = compact_columns(files, rowset, schema, operation.column_ids, mark)
    else:
        assert isinstance(operation, CompactDeltas)
        output = _joined_deltas(files, rowset, operation, mark)
    files.sync()
    return None if output == rowset.meta else Replacement(metas, (output,), mark)


def _check_free_space(store: TableStore, base: Tablet, metas: Sequence[RowSetMeta]) -> None:
    """Raise StorageError before a merge that would fill the disk: its inputs stay beside it."""
    free = store.storage.free_bytes(base.folder)
    needed = sum(meta.bytes_on_disk for meta in metas)
    if free is not None and free < needed:
        raise StorageError(
            errno.ENOSPC,
            f"table {store.name!r}: the merge of {len(metas)} rowsets of tablet {base.id} needs"
            f" about {needed:,} bytes in {base.folder}, and {free:,} are free; nothing was changed:"
            " free some space, then maintain the table again",
        )


def _joined_deltas(
    files: NewFiles, rowset: DiskRowSet, operation: CompactDeltas, mark: int
) -> RowSetMeta:
    meta, start, stop = rowset.meta, operation.start, operation.stop
    if stop > len(meta.undo if operation.is_undo else meta.redo):
        return meta
    if operation.is_undo:
        return merge_undo_files(files, rowset.folder, meta, start, stop, mark=mark)
    return merge_redo_files(files, rowset.folder, meta, start, stop)


def carry_over(
    files: NewFiles, now: Tablet, replacement: Replacement
) -> tuple[Replacement, int] | None:
    """Return the replacement with the REDO that has arrived, and how many rows that was.

    None where its inputs have changed.
    """
    newer = replacement.arrived(now.superblock)
    if newer is None:
        return None
    if replacement.row_map is None or not any(newer.values()):
        return replacement, 0
    folder = now.folder / ROWSET_FOLDER
    parts: list[list[DeltaRows]] = [[] for _ in replacement.outputs]
    row_count = 0
    for meta in replacement.inputs:
        for delta in newer[meta.id]:
            path = folder / meta.id / delta.ref.name
            file = DeltaFile(files.storage, path, delta, meta.row_count)
            row_count += delta.row_count
            mapped = replacement.row_map.map_deltas(meta.id, stamped(file))
            for index, rows in mapped.items():
                parts[index].append(rows)
    written: list[DeltaFileMeta | None] = []
    for output, found in zip(replacement.outputs, parts, strict=True):
        if not found:
            written.append(None)
            continue
        rows = merge_redo(found)
        written.append(create_delta_file(files, folder / output.id, "redo", rows))
    files.sync()
    return replacement.with_redo(newer, written), row_count


def _publish(
    store: TableStore,
    write: OpenWrite,
    base: Tablet,
    replacement: Replacement,
    label: str,
    turn: Turn,
) -> OperationResult | None:
    """Publish a replacement; None where its inputs have changed."""
    newest = turn.newest()
    entry = newest.entry(base.id)
    if entry is None:
        return None
    now = store.tablet(entry)
    carried = carry_over(write.files, now, replacement)
    superblock = None if carried is None else carried[0].applied_to(now.superblock)
    if superblock is None or not write.may_publish():
        return None
    return publish_superblock(store, newest, superblock, replacement.mark, label, turn)


def _collect(store: TableStore, tablet_id: str, mark: int, hook: Hook) -> OperationResult | None:
    """Drop the history behind the mark that fills whole files: no data file is written."""

    def publish(turn: Turn) -> OperationResult | None:
        hook("locked")
        newest = turn.newest()
        entry = newest.entry(tablet_id)
        if entry is None:
            return None
        superblock = store.tablet(entry).superblock
        alive = [meta for meta in superblock.rowsets if not is_fully_ancient(meta, mark)]
        rowsets = tuple(without_ancient_undo(meta, mark) for meta in alive)
        tombstones = tuple(m for m in superblock.tombstones if not is_ancient(m, mark))
        collected = replace(superblock, rowsets=rowsets, tombstones=tombstones)
        if collected == superblock:
            return None
        return publish_superblock(store, newest, collected, mark, CollectHistory.label, turn)

    found = store.in_turn("history collection", publish)
    hook("published")
    return found


def publish_superblock(
    store: TableStore,
    newest: Manifest,
    superblock: Superblock,
    mark: int,
    operation: str,
    turn: Turn,
    *,
    is_maintenance: bool = True,
) -> OperationResult | None:
    """Publish a tablet's superblock that lacks history before `mark`, under the table's lock.

    `operation` made it, as the list of versions names it. None where a tag needs that history.
    """
    old = newest.readable_entry(superblock.tablet_id)
    assert old is not None
    before = store.tablet(old).superblock.rowsets
    new = store.with_superblock(old, superblock, old.timestamp)

    def build(manifest: Manifest) -> Manifest | None:
        if not is_mark_still_valid(manifest, mark):
            return None
        start = max(manifest.history_start, mark)
        timestamp = version_timestamp(store, manifest, turn)
        origin = Origin(operation, timestamp, is_maintenance=is_maintenance)
        return manifest.with_entry(new).successor(origin, history_start=start)

    published = store.update(build, newest, turn)
    if published is None:
        return None
    known = {ref.name for meta in before for ref in meta.file_refs}
    refs = [ref for meta in superblock.rowsets for ref in meta.file_refs]
    return OperationResult(
        version=published.version,
        rowset_count_before=len(before),
        rowset_count_after=len(superblock.rowsets),
        bytes_before=old.bytes_on_disk,
        bytes_after=new.bytes_on_disk,
        bytes_written=sum(ref.length for ref in refs if ref.name not in known),
    )


@dataclass(frozen=True)
class Replacement:
    """Rowsets `outputs` for the rowsets `inputs`, as they were when the operation began.

    Without a `row_map` the rows stayed where they were: outputs[i] stands for inputs[i], by the
    same id. `mark` is the ancient history mark behind which the operation dropped history.
    """

    inputs: tuple[RowSetMeta, ...]
    outputs: tuple[RowSetMeta, ...]
    mark: int
    row_map: RowIdMap | None = None

    def arrived(self, now: Superblock) -> dict[str, tuple[DeltaFileMeta, ...]] | None:
        """Return the newer REDO files of each input, by id; None if an input changed otherwise."""
        found = {meta.id: meta for meta in now.rowsets}
        newer = {}
        for meta in self.inputs:
            current = found.get(meta.id)
            if current is None or not _has_grown(meta, current):
                return None
            if self.row_map is not None and current.delete_timestamp != meta.delete_timestamp:
                return None
            newer[meta.id] = current.redo[len(meta.redo) :]
        return newer

    def with_redo(
        self, newer: dict[str, tuple[DeltaFileMeta, ...]], mapped: Sequence[DeltaFileMeta | None]
    ) -> Replacement:
        """Return it with REDO that arrived: `newer` of each input, `mapped` for each output."""
        inputs = tuple(meta.with_redo(newer.get(meta.id, ())) for meta in self.inputs)
        outputs = tuple(
            meta if redo is None else meta.with_redo((redo,))
            for meta, redo in zip(self.outputs, mapped, strict=True)
        )
        return replace(self, inputs=inputs, outputs=outputs)

    def applied_to(self, now: Superblock) -> Superblock | None:
        """Return `now` with the outputs in it; None where an input has changed.

        With a row map all that arrived must have been mapped before.
        """
        newer = self.arrived(now)
        if newer is None or (self.row_map is not None and any(newer.values())):
            return None
        current = {meta.id: meta for meta in now.rowsets}
        outputs = list(self.outputs)
        if self.row_map is None:
            outputs = [
                replace(
                    output.with_redo(newer[output.id]),
                    delete_timestamp=current[output.id].delete_timestamp,
                )
                for output in outputs
            ]
        gone = {meta.id for meta in self.inputs}
        first = min(at for at, meta in enumerate(now.rowsets) if meta.id in gone)
        kept = [meta for meta in now.rowsets if meta.id not in gone]
        return replace(now, rowsets=tuple(kept[:first] + outputs + kept[first:]))


def _has_grown(before: RowSetMeta, now: RowSetMeta) -> bool:
    """Whether `now` is `before` with nothing but newer REDO, or an end."""
    is_same = now.base == before.base and now.undo == before.undo
    return is_same and now.redo[: len(before.redo)] == before.redo
