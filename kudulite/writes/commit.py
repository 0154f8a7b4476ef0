"""Commit of a bulk write: all its tablets at one timestamp, in one version, or nothing.

    1  flush the log of its tablets, check conflicts, rebase all parts   no lock: files are written
    2  begin a turn of the table; flush the rest of the log of its tablets
    3  check again what has changed since 1                              usually nothing
    4  sync the files of 1 and 3                                         invisible
    5  timestamp, above all that can be seen; superblocks with it        invisible
    6  put-if-absent of the next manifest                                the commit
    7  advance the safe timestamp, end the turn

The files are where they stay from the start (resolve.py). Their names are durable before the
superblock that lists them is written: tasks sync those that they make. A crash leaves unreferenced
files, which garbage collection removes once the write is over (open_writes.py).

Tasks that need the rows of the log have staged on versions of their own. The parts of each version
are rebased to the newest one first, and compared with each other then.

Where another writer comes first in 6, the turn is taken again from step 2 on.

A write that was computed from rows of the table fails if one of them has changed since. One that
can be computed again, row by row, gives the commit a `Reread`. Then the rows that changed leave the
staged parts, and are read and staged again: before step 2, to the moment of a version that is
published for it, and in step 3, for the little that has changed since.

**Invariants**: (1) the timestamp is above that of the version before, every timestamp used in the
table, and the table's safe timestamp; (2) the safe timestamp advances only after the version is
published; (3) before step 6 nothing is visible, and an error leaves the table as it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from kudulite.chain.manifest import Manifest, Origin, TabletEntry
from kudulite.delta.delta_file import DeltaFileMeta
from kudulite.errors import ConflictError, TimestampError
from kudulite.model.hybrid_time import format_timestamp
from kudulite.model.key_array import KeyArray
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.storage.new_files import NewFiles
from kudulite.storage.storage import check_length
from kudulite.table.background_work import in_threads, threads_for
from kudulite.table.memory_flush import flush_table, flushed_under_lock
from kudulite.table.open_writes import base_of, check_write_is_open
from kudulite.table.present import listing, present, recover
from kudulite.table.publication import version_timestamp
from kudulite.table.table_log import Turn
from kudulite.table.table_store import TableStore
from kudulite.table.write_state import (
    StagedOperations,
    StagedTask,
    WriteState,
    check_history,
    check_same_schema,
    is_committed,
)
from kudulite.tablet.conflict_check import ConflictCheck
from kudulite.tablet.operation import WriteSpec
from kudulite.tablet.row_effects import WriteCounts
from kudulite.tablet.staged_tablet import StagedTablet
from kudulite.tablet.tombstones import TombstoneFileMeta
from kudulite.upkeep.alter import alter_table
from kudulite.writes.stager import Stager

Parts = dict[str, list[StagedTablet]]


class Reread(Protocol):
    """Computes the rows of a write again whose keys have changed."""

    def __call__(
        self, since: int, until: int
    ) -> tuple[Mapping[str, KeyArray], Iterable[pa.RecordBatch]]:
        """Return the keys that changed in (since, until], and the write's rows of them at `until`.

        The keys are ascending, by tablet id. Both moments are settled. Raises TimestampError if
        the history in between was collected.
        """


def read_again(
    reread: Reread, since: int, until: int
) -> tuple[Mapping[str, KeyArray], Iterable[pa.RecordBatch]]:
    """Return what `reread` does. Raises ConflictError where the history was collected."""
    try:
        return reread(since, until)
    except TimestampError as error:
        raise ConflictError(f"{error}; read the rows again and write again") from error


@dataclass(frozen=True)
class CommitResult:
    """The outcome of a commit. `is_skipped`: its application version was committed before."""

    version: int
    timestamp: int
    counts: WriteCounts
    is_skipped: bool = False


@dataclass
class Commit:
    """One commit of checked `tasks`; `base` is the version that the write pinned."""

    store: TableStore
    state: WriteState
    base: Manifest
    tasks: Sequence[StagedTask]
    reread: Reread | None = None
    written: Collection[Path] = ()  # files of tasks that this process has put, whole
    _bases: dict[int, Manifest] = field(default_factory=dict)
    # All parts that tasks or a rebase have made, by identity; a later one may replace them.
    _made: dict[int, StagedTablet] = field(default_factory=dict)

    def run(self) -> CommitResult:
        """Publish the write. Raises RowError, ConflictError, LockTimeoutError, StorageError."""
        if self.state.application_id is not None and is_committed(self.state, listing(self.store)):
            found = present(self.store)
            return skipped(found.manifest, found.timestamp)
        runs = self._staged_runs()
        flush_table(self.store, self._touched(joined(parts for _, parts in runs)))
        newest = self._checked(self.store.chain.last_seen())  # the flush has looked
        if self.reread is None:
            parts = self._first_rebased(runs, newest)
        else:
            newest = alter_table(self.store, [])  # a version of one moment, with all rows of then
            self._check_same_schema(newest)
            [(base, staged)] = runs or [(self.base, {})]
            parts = self._reread(self.reread, staged, base, newest, newest.versions.timestamp)
        self._noted(parts)
        state = self.state

        def publish(turn: Turn) -> CommitResult:
            self.state = state
            return self._publish({**parts}, newest, turn)

        work = f"commit of write {state.write_id}"
        return self.store.in_turn(work, publish, has_looked=True)

    def _publish(self, parts: Parts, rebased_to: Manifest, turn: Turn) -> CommitResult:
        newest = self._checked(turn.newest_of(self.state.table_id))
        found = recover(self.store, turn)
        if is_committed(self.state, found.memory.listing(newest)):
            return skipped(newest, found.timestamp)
        newest = flushed_under_lock(self.store, newest, turn, self._touched(parts))
        self._check_is_first(newest, parts)
        self._check_overwritten(newest)
        if self.reread is None:
            current = self._rebased(parts, rebased_to, newest, is_first=False)
        else:
            until = version_timestamp(self.store, newest, turn)
            turn.advance_safe_timestamp(until)  # so that reads up to it need no lock
            current = self._reread(self.reread, parts, rebased_to, newest, until)
        if self.state.spec.replaces_rows:
            current = self._with_deletes(current, newest)
        self._noted(current)
        parts = {t: [part.without_no_ops() for part in found] for t, found in current.items()}
        counts = sum((p.counts for ps in parts.values() for p in ps), WriteCounts())
        changed = self._changed(newest, parts)
        if not (changed or self.state.spec.ends_rows) and self.state.application_id is None:
            return CommitResult(newest.version, newest.timestamp, counts)
        installer = Installer(self.store, self.state.spec, changed)
        checks: list[Callable[[], None]] = [
            partial(check_write_is_open, self.store, self.state.write_id),  # its files stay now
            self._files.sync,
            partial(installer.check_files, {*self.written, *self._files.made}),
        ]
        self.store.storage.side_by_side(lambda check: check(), checks)
        manifest = self._publish_next(newest, installer, counts, turn)
        if manifest is None:
            newest = self.store.newest()
            return skipped(newest, newest.timestamp)
        # The version is published: from here nothing may fail.
        with suppress(OSError):
            turn.advance_safe_timestamp(installer.timestamp)
            self._remove_replaced(installer.parts)
        return CommitResult(manifest.version, installer.timestamp, counts)

    def _publish_next(
        self, newest: Manifest, installer: Installer, counts: WriteCounts, turn: Turn
    ) -> Manifest | None:
        """Publish the next version; None if another write committed the application version."""
        name, message = self.state.operation_name, self.state.message
        installed: Mapping[str, TabletEntry] = {}

        def build(manifest: Manifest) -> Manifest | None:
            nonlocal installed
            if is_committed(self.state, manifest):
                return None
            self._check_same_schema(manifest)
            if manifest.versions.timestamp >= installer.timestamp:
                timestamp = version_timestamp(self.store, manifest, turn)
                installed = installer.install(timestamp, newest)
            origin = Origin(name, installer.timestamp, counts, message)
            return self._next(manifest, installed, origin)

        return self.store.update(build, newest, turn)

    # -- what the version must be

    def _checked(self, newest: Manifest) -> Manifest:
        self._check_same_schema(newest)
        check_history(self.store, self.state, newest)
        return newest

    def _check_is_first(self, newest: Manifest, parts: Parts) -> None:
        """Raise ConflictError where another commit of this write has just published its files.

        If a compaction has replaced them since, its rows are those of another writer.
        """
        for entry in newest.tablets:
            tablet = self.store.tablet(entry)
            for part in parts.get(entry.id, []):
                is_listed = any(tablet.rowset(meta.id) is not None for meta in part.rowsets)
                for delta in part.deltas:
                    rowset = tablet.rowset(delta.rowset_id)
                    redo = () if rowset is None else rowset.meta.redo
                    is_listed |= any(known.ref.name == delta.meta.ref.name for known in redo)
                if is_listed:
                    raise ConflictError(
                        f"table {self.store.name!r}: write {self.state.write_id} was committed"
                        " already, by a call at the same time"
                    )

    def _check_overwritten(self, newest: Manifest) -> None:
        """Raise ConflictError if a computed overwrite would delete a row that it has not read."""
        spec = self.state.spec
        changed = max((entry.timestamp for entry in newest.tablets), default=0)
        if spec.is_overwrite and spec.read_at is not None and changed > spec.read_at:
            raise ConflictError(
                f"table {self.store.name!r}: rows changed at {format_timestamp(changed)}, after the"
                f" rows of this overwrite were read at {format_timestamp(spec.read_at)}; nothing"
                " was written: read them again and write again"
            )

    def _check_same_schema(self, newest: Manifest) -> None:
        check_same_schema(self.store.name, self.state, self.base, newest)

    def _next(
        self, newest: Manifest, installed: Mapping[str, TabletEntry], origin: Origin
    ) -> Manifest:
        applications = dict(newest.applications)
        if self.state.application_id is not None and self.state.application_version is not None:
            applications[self.state.application_id] = self.state.application_version
        return newest.successor(
            origin,
            self.state.write_id,
            tablets=tuple(installed.get(entry.id, entry) for entry in newest.tablets),
            applications=applications,
        )

    def _noted(self, parts: Parts) -> Parts:
        self._made.update((id(part), part) for found in parts.values() for part in found)
        return parts

    def _remove_replaced(self, installed: Parts) -> None:
        """Remove the files of parts that were not installed, or only in part."""
        kept = [part for found in installed.values() for part in found]
        replaced = self._made.keys() - {id(part) for part in kept}
        if replaced:
            listed = {(part.tablet_id, path) for part in kept for path, _ in part.files()}
            for part in (self._made[each] for each in replaced):
                for path, _ in part.files():
                    if (part.tablet_id, path) not in listed:
                        file = self.store.tablet_folder(part.tablet_id) / path
                        self.store.storage.delete(file)

    # -- rebasing parts

    @property
    def _base_stager(self) -> Stager:
        return self._stager(self.base)

    def _stager(self, manifest: Manifest) -> Stager:
        return Stager(self.store, self.state, manifest, self._files)

    @cached_property
    def _files(self) -> NewFiles:
        """The files that the commit itself makes of what tasks have staged."""
        return NewFiles(self.store.storage, self.state.write_id)

    def _staged_runs(self) -> list[tuple[Manifest, Parts]]:
        """Return the parts of tasks in order, by runs that are valid for the same version."""
        self.tasks = [self._with_files(task) for task in self.tasks]
        runs: list[tuple[Manifest, Parts]] = []
        for task in sorted(self.tasks, key=lambda task: task.task_index):
            if not task.tablets and not task.operations:
                continue
            base = self._base_of(task)
            if not runs or runs[-1][0] is not base:
                runs.append((base, defaultdict(list)))
            parts = runs[-1][1]
            for part in task.tablets:
                parts[part.tablet_id].append(part)
            for operations in task.operations:
                parts[operations.tablet_id]  # a tablet of the write, resolved below
        for _, parts in runs:
            self._noted(parts)
        return runs

    def _base_of(self, task: StagedTask) -> Manifest:
        """Return the version that a task's parts are valid for."""
        version, crc32 = task.base_version, task.base_crc32
        if version is None or version == self.base.version:
            return self.base
        if version not in self._bases:
            state = replace(self.state, base_version=version, base_crc32=crc32)
            self._bases[version] = base_of(self.store, state)
        return self._bases[version]

    def _first_rebased(self, runs: Sequence[tuple[Manifest, Parts]], newest: Manifest) -> Parts:
        """Return all parts, valid for `newest` and compared with each other."""
        rebased = [self._rebased(parts, base, newest, is_first=True) for base, parts in runs]
        if len(rebased) == 1:
            return rebased[0]
        for parts in rebased:
            self._noted(parts)
        return self._rebased(joined(rebased), newest, newest, is_first=True)

    def _with_files(self, task: StagedTask) -> StagedTask:
        """Return a task whose rows are in files, also those that it has handed over."""
        if task.rows is None:
            return task
        return self._base_stager.stage_checked(task.rows, task.task_index)

    def _rebased(self, parts: Parts, before: Manifest, now: Manifest, *, is_first: bool) -> Parts:
        """Return the parts rebased to `now`, tablets in parallel.

        The first time, the parts of a tablet have not been compared with each other yet.
        """
        old = {entry.id: entry for entry in before.tablets}
        new = {entry.id: entry for entry in now.tablets}

        def must_be(tablet_id: str) -> bool:
            if old[tablet_id].superblock != new[tablet_id].superblock:
                return True
            return is_first and (self.state.is_resolved_at_commit or len(parts[tablet_id]) > 1)

        def rebased(tablet_id: str) -> list[StagedTablet]:
            return self._rebased_tablet(parts[tablet_id], old[tablet_id], new[tablet_id], now)

        chosen = [tablet_id for tablet_id in parts if must_be(tablet_id)]
        found = in_threads("rebase", rebased, chosen, threads_for(self.store.storage))
        return {**parts, **dict(zip(chosen, found, strict=True))}

    def _rebased_tablet(
        self, parts: list[StagedTablet], old: TabletEntry, new: TabletEntry, now: Manifest
    ) -> list[StagedTablet]:
        if self.state.is_resolved_at_commit:
            operations = self._operations(new.id)
            if not operations:
                return parts
            # A row that is deleted and inserted again loses its values of columns added since.
            return self._stager(now).resolve_operations(operations, new.id)
        conflict_check = ConflictCheck(self._base_stager.resolver, self.store.cache)
        before, current = self.store.tablet(old), self.store.tablet(new)
        return conflict_check.rebase(parts, before, current)

    def _reread(
        self, reread: Reread, parts: Parts, before: Manifest, now: Manifest, until: int
    ) -> Parts:
        """Return parts that are valid for `now`, with the rows of the moment `until`.

        Those of `parts` are valid for `before`, with the rows of the write's `read_at`, which
        becomes `until`.
        """
        spec = self.state.spec
        assert spec.read_at is not None
        keys, rows = read_again(reread, spec.read_at, until)
        self.state = replace(self.state, spec=replace(spec, read_at=until))
        conflict_check = ConflictCheck(self._base_stager.resolver, self.store.cache)
        for entry in before.tablets:
            if entry.id in keys and entry.id in parts:
                own, tablet = keys[entry.id], self.store.tablet(entry)
                parts[entry.id] = conflict_check.without_keys(parts[entry.id], own, tablet)
        rebased = defaultdict(list, self._rebased(parts, before, now, is_first=False))
        staged = self._stager(now).stage(rows, len(self.tasks))
        for part in staged.tablets:
            rebased[part.tablet_id].append(part)
        return rebased

    def _with_deletes(self, parts: Parts, now: Manifest) -> Parts:
        """Return the parts of an overwrite that compares rows, with deletes of all other rows."""
        conflict_check = ConflictCheck(self._base_stager.resolver, self.store.cache)

        def completed(entry: TabletEntry) -> list[StagedTablet]:
            own, tablet = parts.get(entry.id, []), self.store.tablet(entry)
            return conflict_check.with_deletes(own, tablet)

        found = in_threads("deletes", completed, now.tablets, threads_for(self.store.storage))
        return {entry.id: own for entry, own in zip(now.tablets, found, strict=True)}

    def _operations(self, tablet_id: str) -> list[StagedOperations]:
        ordered = sorted(self.tasks, key=lambda task: task.task_index)
        return [o for task in ordered for o in task.operations if o.tablet_id == tablet_id]

    # -- under the lock

    def _touched(self, parts: Parts) -> list[str]:
        """Return the tablets that may change.

        An empty part stays empty, except that rows resolved at commit may then have an effect.
        """
        if self.state.spec.is_overwrite or self.reread is not None:
            return [entry.id for entry in self.base.tablets]
        if self.state.is_resolved_at_commit:
            return list(parts)
        return [t for t, ps in parts.items() if not all(p.is_empty for p in ps)]

    def _changed(self, newest: Manifest, parts: Parts) -> Parts:
        """Return the parts of the tablets that get a new superblock."""
        return {
            entry.id: found
            for entry in newest.tablets
            for found in [parts.get(entry.id, [])]
            if self._is_changed(entry, found)
        }

    def _is_changed(self, entry: TabletEntry, parts: Sequence[StagedTablet]) -> bool:
        spec = self.state.spec
        if spec.ends_rows or not all(part.is_empty for part in parts):
            return True
        return spec.is_overwrite and bool(self.store.tablet(entry).superblock.tombstones)


def joined(runs: Iterable[Parts]) -> Parts:
    """Return the parts of all runs by tablet, in order."""
    parts: Parts = defaultdict(list)
    for run in runs:
        for tablet_id, found in run.items():
            parts[tablet_id] += found
    return parts


def skipped(newest: Manifest, timestamp: int) -> CommitResult:
    """Return the result of a write whose application version was committed before a moment."""
    return CommitResult(newest.version, timestamp, WriteCounts(), is_skipped=True)


@dataclass
class Installer:
    """Lists the parts of one write in their tablets, under the table's lock.

    A write that `ends_rows` also ends all existing rowsets.
    """

    store: TableStore
    spec: WriteSpec
    parts: Parts
    timestamp: int = -1  # of the superblocks that were written last

    def check_files(self, written: Collection[Path]) -> None:
        """Raise StorageError or CorruptionError unless the files of all parts are there, whole.

        Those that this process has `written` are, while the write is open.
        """
        storage = self.store.storage
        files = [
            (self.store.tablet_folder(tablet_id) / name, ref)
            for tablet_id, parts in self.parts.items()
            for part in parts
            for name, ref in part.files()
        ]
        others = [(path, ref) for path, ref in files if path not in written]
        storage.side_by_side(lambda file: check_length(storage, *file), others)

    def install(self, timestamp: int, newest: Manifest) -> dict[str, TabletEntry]:
        """Write superblocks of `newest` with the parts in them, committed at `timestamp`.

        Return the entries of their tablets. Superblocks of an earlier timestamp become garbage.
        """
        self.timestamp = timestamp
        entries = [entry for entry in newest.tablets if entry.id in self.parts]
        threads = threads_for(self.store.storage)
        installed = in_threads("install", self._installed, entries, threads)
        return {entry.id: entry for entry in installed}

    def _installed(self, entry: TabletEntry) -> TabletEntry:
        """Return the tablet's entry with the parts in it, oldest first."""
        old, parts = self.store.tablet(entry).superblock, self.parts[entry.id]
        rowsets = [self._changed(meta, parts) for meta in old.rowsets]
        rowsets += [self._stamped(meta) for part in parts for meta in part.rowsets]
        tombstones = self._tombstones(() if self.spec.is_overwrite else old.tombstones, parts)
        superblock = replace(old, rowsets=tuple(rowsets), tombstones=tombstones)
        ref = self.store.write_superblock(superblock, entry)
        return entry.with_superblock(ref, rowsets, self.timestamp)

    def _changed(self, meta: RowSetMeta, parts: Sequence[StagedTablet]) -> RowSetMeta:
        """Return an existing rowset with this write's deltas, or ended by it."""
        if self.spec.ends_rows:
            if meta.delete_timestamp is None:
                return replace(meta, delete_timestamp=self.timestamp)
            return meta
        deltas = [d.meta for part in parts for d in part.deltas if d.rowset_id == meta.id]
        return meta.with_redo(tuple(delta.stamped(self.timestamp) for delta in deltas))

    def _stamped(self, meta: RowSetMeta) -> RowSetMeta:
        redo: tuple[DeltaFileMeta, ...] = tuple(d.stamped(self.timestamp) for d in meta.redo)
        return replace(meta, insert_timestamp=self.timestamp, redo=redo)

    def _tombstones(
        self, old: Sequence[TombstoneFileMeta], parts: Sequence[StagedTablet]
    ) -> tuple[TombstoneFileMeta, ...]:
        """Return the tablet's tombstones with those of the parts, which replace the merged ones."""
        found = tuple(old)
        for part in parts:
            if part.tombstones is not None:
                replaced = part.tombstones.replaced
                kept = [meta for meta in found if meta.ref.name not in replaced]
                found = (*kept, part.tombstones.meta.stamped(self.timestamp))
        return found
