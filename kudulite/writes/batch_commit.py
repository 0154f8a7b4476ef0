"""Batch commit: a batch of few rows as one commit in the table's log (log_commit.py).

    1  check the rows, as a task of a bulk write does (stager.py)           without the lock
    2  under the lock: check what may have changed since; look the keys up in memory and on disk,
       and resolve all operations of a key to one change (tablet/resolve.py)
    3  one commit with the changes of all tablets, and what the list of versions says of it

So a small write has the rules and the errors of a bulk write, and costs what its rows cost: no file
is made. Whatever has no form in the log is left to a bulk write: a delete by an ordered write,
which leaves a tombstone, and rows that are too large for one record.

**Invariants**: all rows are written, or none.

**Threads**: any. The batches of threads that wait for the same table are commits of their own, and
those that have no key in common are appended together, with one fsync.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.chain.manifest import Manifest, TabletEntry, writer_name
from kudulite.errors import ConflictError, CorruptionError, KuduliteError, StorageError
from kudulite.model.encoded_key import encode_keys
from kudulite.model.key_array import KeyArray
from kudulite.storage.new_files import NewFiles
from kudulite.storage.storage import Storage
from kudulite.table.open_writes import check_write_is_open, end_settled_write
from kudulite.table.present import recover
from kudulite.table.row_ids import last_id_of, next_id
from kudulite.table.table_log import Turn
from kudulite.table.table_store import TableStore
from kudulite.table.write_queue import QueuedWrite
from kudulite.table.write_state import (
    WriteState,
    check_history,
    check_same_schema,
    is_committed,
)
from kudulite.tablet.mem_stores import IN_MEMROWSET, Location, MemStores
from kudulite.tablet.operation import Operation, raise_changed_keys
from kudulite.tablet.operation_batch import OperationBatch
from kudulite.tablet.resolve import ResolvedRows, Resolver
from kudulite.tablet.row_effects import WriteCounts
from kudulite.tablet.tablet import RowLocations
from kudulite.wal.commit_format import CommitInfo
from kudulite.wal.row_codec import RecordSizeError
from kudulite.writes.batch_pieces import FEW_BYTES_MAX
from kudulite.writes.commit import CommitResult, Reread, read_again, skipped
from kudulite.writes.log_commit import EncodedCommit, LogCommit, TabletChanges
from kudulite.writes.stager import Stager, split_codes


class _NeedsFilesError(Exception):
    """A batch has no form in the log."""


@dataclass(eq=False)
class BatchRequest(QueuedWrite):
    """A batch of few rows, `checked` against the version `base`, and its result.

    The result is None where a bulk write must do it. The record of a write that `has_record` is
    deleted under the lock, so that it is committed once. Rows that were computed from rows of the
    table are computed again by `reread` where those have changed.
    """

    store: TableStore
    state: WriteState
    base: Manifest
    checked: pa.Table
    has_record: bool = False
    reread: Reread | None = None
    result: CommitResult | None = None

    def write(self, turn: Turn, group: Sequence[BatchRequest]) -> None:
        """Write the batches of a group, in order."""
        batches = _Turn(self.store, turn)
        for request in group:
            batches.take(request)
        batches.append()


@dataclass
class _Turn:
    """The batches that are written in one turn; those that are made wait for one append."""

    store: TableStore
    turn: Turn
    commit: LogCommit = field(init=False)
    made: list[tuple[BatchRequest, CommitResult, EncodedCommit]] = field(default_factory=list)
    keys: set[bytes] = field(default_factory=set)  # of the rows of those
    timestamp: int = 0  # of the last one that was made

    def take(self, request: BatchRequest) -> None:
        """Make the changes of a batch, or note its error. Raises StorageError, CorruptionError."""
        try:
            self._take(request)
        except (StorageError, CorruptionError):
            raise
        except _NeedsFilesError:
            request.is_done = True
        except KuduliteError as error:
            self.turn.check_is_first()
            request.error, request.is_done = error, True

    def _take(self, request: BatchRequest) -> None:
        store, state = self.store, request.state
        if state.application_id is not None:
            self.append()  # so that its version is listed
        found = recover(store, self.turn)
        self.commit, manifest = LogCommit(store, self.turn, found), found.manifest
        if manifest.table_id != state.table_id:
            store.chain.newest_of(state.table_id)  # raises the error of another table
        check_same_schema(store.name, state, request.base, manifest)
        check_history(store, state, manifest)
        is_versioned = state.application_id is not None
        if is_versioned and is_committed(state, found.memory.listing(manifest)):
            request.result, request.is_done = skipped(manifest, found.timestamp), True
            return
        if request.has_record:
            check_write_is_open(store, state.write_id)
        stager = Stager(store, state, manifest, NewFiles(store.storage))
        try:
            batch = _Batch(request, self.commit, stager)
            try:
                self._make(request, batch)
            except ConflictError:
                if request.reread is None:
                    raise
                self._make(request, self._computed_again(batch, request.reread))
        except (RecordSizeError, pa.ArrowCapacityError) as error:
            raise _NeedsFilesError from error

    def _computed_again(self, batch: _Batch, reread: Reread) -> _Batch:
        """Compute the rows of a batch whose keys have changed again, from the newest rows.

        Nobody else changes these in this turn. Raises RowError, SchemaError, ConflictError.
        """
        self.append()  # the rows that it reads are those of the batches before, too
        found, request = recover(self.store, self.turn), batch.request
        spec = request.state.spec
        assert spec.read_at is not None
        keys, batches = read_again(reread, spec.read_at, found.timestamp)
        request.state = replace(request.state, spec=replace(spec, read_at=found.timestamp))
        stager = replace(batch.stager, state=request.state, manifest=found.manifest)
        changed = {key for own in keys.values() for key in own.to_list()}
        kept = [at for at, key in enumerate(batch.all_keys) if key not in changed]
        parts = [request.checked.take(pa.array(kept, pa.int64()))]
        parts += [stager.checked(pa.Table.from_batches([rows])) for rows in batches]
        request.checked = pa.concat_tables(parts).combine_chunks()
        self.commit = LogCommit(self.store, self.turn, found)
        return _Batch(request, self.commit, stager)

    def _make(self, request: BatchRequest, batch: _Batch) -> None:
        keys = batch.keys()
        if keys is None or not self.keys.isdisjoint(keys):
            self.append()  # the rows that it finds, and the ids that are used, are in memory then
        result, encoded = batch.write(self.timestamp)
        if encoded is None:
            self.turn.check_is_first()  # no append shows it
            request.result, request.is_done = result, True
            return
        if sum(len(commit.content) for *_, commit in self.made) > FEW_BYTES_MAX:
            self.append()
        self.timestamp = encoded.timestamp
        self.made.append((request, result, encoded))
        self.keys.update(keys or ())

    def append(self) -> None:
        """Append what is made, durably. Raises StorageError, CorruptionError."""
        if not self.made:
            return
        made, self.made, self.keys = self.made, [], set()
        memory_bytes = self.commit.write([encoded for *_, encoded in made])
        made[0][0].memory_bytes = memory_bytes
        for request, result, _ in made:
            request.result, request.is_done = result, True
            if request.has_record:
                end_settled_write(self.store, request.state.write_id)


@dataclass
class _Part:
    """The rows of a batch in one tablet."""

    entry: TabletEntry
    memory: MemStores
    row_numbers: np.ndarray


@dataclass
class _Batch:
    """One batch while the table's lock is held."""

    request: BatchRequest
    commit: LogCommit
    stager: Stager

    @cached_property
    def resolver(self) -> Resolver:
        """The resolver of the rows of all tablets."""
        return self.stager.resolver

    @property
    def _storage(self) -> Storage:
        return self.commit.store.storage

    @cached_property
    def _split(self) -> tuple[OperationBatch, list[_Part]]:
        """The rows with their operations, and those of each tablet."""
        schema, spec = self.stager.manifest.schema, self.request.state.spec
        rows, codes = split_codes(self.request.checked)
        numbers, given = schema.auto_incrementing, rows
        if numbers is not None:
            given = _with_column(rows, numbers, pc.fill_null(rows.column(numbers), 0))
        splits = list(self.stager.split(given))
        parts = self._storage.side_by_side(lambda split: self._part(*split), splits)
        if numbers is not None:
            rows = self._numbered(rows, numbers, codes, parts)
        return OperationBatch.of(rows, codes, schema, spec), parts

    def keys(self) -> list[bytes] | None:
        """Return the keys of the rows, None where they depend on the ids that are used."""
        if self.stager.manifest.schema.auto_incrementing is not None:
            return None
        return self.all_keys

    @property
    def all_keys(self) -> list[bytes]:
        """The keys of the rows, with ids of this turn."""
        return self._split[0].keys.to_list()

    def write(self, after: int) -> tuple[CommitResult, EncodedCommit | None]:
        """Return the result, and the commit if there is one, at a timestamp after `after`.

        Raises RowError, ConflictError, RecordSizeError.
        """
        commit, state, manifest = self.commit, self.request.state, self.stager.manifest
        batch, parts = self._split
        used = commit.used_timestamp([(part.entry, part.memory) for part in parts])
        timestamp = self.request.store.next_timestamp(max(used, after))
        if self._needs_rows:
            counts, found = self._one_by_one(parts, batch, timestamp)
        else:
            counts, found = self._together(parts, batch, timestamp)
        if not found and state.application_id is None:
            return CommitResult(manifest.version, used, counts), None
        encoded = EncodedCommit.of(found, timestamp, self._info(counts))
        return CommitResult(manifest.version, timestamp, counts), encoded

    @property
    def _needs_rows(self) -> bool:
        """Whether changes depend on the stored rows, and not just on whether a key is there."""
        spec = self.request.state.spec
        is_compared = spec.read_at is not None or spec.leaves_equal_cells
        return is_compared or spec.ordering_column is not None

    def _together(
        self, parts: Sequence[_Part], batch: OperationBatch, timestamp: int
    ) -> tuple[WriteCounts, list[TabletChanges]]:
        """Return the counts and changes of all tablets, which are resolved in one go."""
        tablets = np.zeros(len(batch.keys), np.int64)
        for number, part in enumerate(parts):
            tablets[part.row_numbers] = number

        def locate(keys: KeyArray, rows: np.ndarray) -> RowLocations:
            def of_run(run: tuple[_Part, int, int]) -> RowLocations:
                part, start, stop = run
                return _located(part.memory, keys.slice(start, stop))

            runs = list(_runs(parts, tablets[rows]))
            found = self._storage.side_by_side(of_run, runs)
            rowset_index = np.concatenate([each.rowset_index for each in found])
            return RowLocations(rowset_index, np.concatenate([each.rowid for each in found]))

        whole = replace(batch, tablets=tablets)
        resolved = self.resolver.effects(whole, parts[0].memory.base, locate)
        made = self.resolver.changes(resolved, timestamp)
        if made is None:
            return resolved.counts, []
        record, at = made
        keys, locations = resolved.keys.take(at), resolved.locations.take(at)
        return resolved.counts, [
            TabletChanges.of(
                part.entry,
                part.memory,
                record.slice(start, stop),
                keys.slice(start, stop),
                _listed(part.memory, locations.slice(start, stop)),
            )
            for part, start, stop in _runs(parts, tablets[resolved.firsts[at]])
        ]

    def _one_by_one(
        self, parts: Sequence[_Part], batch: OperationBatch, timestamp: int
    ) -> tuple[WriteCounts, list[TabletChanges]]:
        """Return the counts and changes of all tablets, with the rows that are there."""
        counts, found = WriteCounts(), list[TabletChanges]()
        for part in parts:
            resolved = self._resolved(part, batch.of_tablet(part.row_numbers))
            counts += resolved.counts
            made = self.resolver.changes(resolved, timestamp)
            if made is not None:
                record, at = made
                locations = _listed(part.memory, resolved.locations.take(at))
                keys = resolved.keys.take(at)
                found.append(TabletChanges.of(part.entry, part.memory, record, keys, locations))
        return counts, found

    def _part(self, number: int, row_numbers: np.ndarray) -> _Part:
        found, store = self.commit.found, self.commit.store
        entry = found.manifest.placed_tablets[number]
        memory = found.memory.writable_stores(store.tablet(entry), found.manifest)
        return _Part(entry, memory, row_numbers)

    def _numbered(
        self, rows: pa.Table, name: str, codes: np.ndarray, parts: Sequence[_Part]
    ) -> pa.Table:
        """Return the rows with an id in the place of each null one; see row_ids.py."""
        given = rows.column(name).combine_chunks()
        is_new = given.is_null().to_numpy(zero_copy_only=False)
        ids = given.fill_null(0).to_numpy().copy()
        for part in parts:
            own = part.row_numbers
            lifts = own[codes[own] <= Operation.UPSERT_IGNORE]
            last = max(last_id_of(part.entry, part.memory), ids[lifts].max(initial=0))
            new = own[is_new[own]]
            if len(new):
                first = next_id(int(last), self.commit.store.name, part.entry.id, len(new))
                ids[new] = first + np.arange(len(new))
        return _with_column(rows, name, pa.chunked_array([ids]))

    def _resolved(self, part: _Part, batch: OperationBatch) -> ResolvedRows:
        """Return the effects of the rows of a tablet on its newest state."""
        read_at = self.request.state.spec.read_at
        if read_at is not None:
            self._check_unchanged(part, batch.keys, read_at)
        resolved = self.resolver.effects(batch, part.memory.tablet())
        if resolved.deletes is not None:
            raise _NeedsFilesError
        return resolved

    def _check_unchanged(self, part: _Part, keys: KeyArray, read_at: int) -> None:
        """Raise ConflictError if a key has a change in memory after `read_at`."""
        schema, memory = self.stager.manifest.schema, self.commit.found.memory
        changed: set[bytes] = set()
        for record in memory.changes(part.entry.id, read_at):
            columns = record.columns
            arrays = [columns[column.id] for column in schema.key_columns]
            changed.update(encode_keys(arrays, schema.key_types).to_list())
        if changed:
            at = [number for number, key in enumerate(keys.to_list()) if key in changed]
            if at:
                found = keys.take(np.array(at))
                found = found.take(found.sort_order())
                raise_changed_keys(self.commit.store.name, schema, found, read_at)

    def _info(self, counts: WriteCounts) -> CommitInfo:
        state = self.request.state
        return CommitInfo(
            state.write_id,
            state.operation_name,
            state.message or None,
            state.application_id,
            state.application_version,
            counts.inserted,
            counts.updated,
            counts.deleted,
            counts.ignored,
            writer_name(),
        )


def _with_column(rows: pa.Table, name: str, column: pa.ChunkedArray) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, column)


def _runs(parts: Sequence[_Part], numbers: np.ndarray) -> Iterator[tuple[_Part, int, int]]:
    """Yield each part that has some of `numbers`, which ascend, and where these begin and end."""
    bounds = np.searchsorted(numbers, np.arange(len(parts) + 1)).tolist()
    for part, start, stop in zip(parts, bounds, bounds[1:], strict=False):
        if start < stop:
            yield part, start, stop


def _located(memory: MemStores, keys: KeyArray) -> RowLocations:
    """Return where keys are live, without applying what is buffered in memory.

    Rows of the MemRowSet, behind the DiskRowSets, have no row id: all of them have 0.
    """
    index = {rowset.meta.id: at for at, rowset in enumerate(memory.base.disk_rowsets)}
    index[IN_MEMROWSET[0]] = len(index)
    places = [
        (-1, -1) if place is None else (index[place[0]], max(0, place[1]))
        for place in memory.locate(keys.to_list())
    ]
    found = np.array(places, np.int64).reshape(-1, 2)
    return RowLocations(found[:, 0].astype(np.int32), found[:, 1])


def _listed(memory: MemStores, locations: RowLocations) -> list[Location | None]:
    """Return locations as `MemStores.apply` takes them."""
    ids = [rowset.meta.id for rowset in memory.base.disk_rowsets]
    places = zip(locations.rowset_index.tolist(), locations.rowid.tolist(), strict=True)
    return [
        None if rowid < 0 else IN_MEMROWSET if at == len(ids) else (ids[at], rowid)
        for at, rowid in places
    ]
