"""Row writes: the operations of a session flush, through the table's log (log_commit.py).

    1  plan: encode the keys, and sort the operations by tablet            without the lock
    2  in each tablet: number the inserts of a key that is not unique (row_ids.py); look the keys
       up in memory and on disk; apply the operations: one change per key
    3  one commit with the rows of all tablets

A refused row leaves the others applied. All that are applied are one commit: a reader finds the
rows of all tablets, or none.

**Threads**: any number may use one `RowWriter`. The operations of several threads that wait for
the same table are one commit, with one timestamp and one fsync.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from kudulite.chain.manifest import Manifest, TabletEntry
from kudulite.chain.schema_history import moved_names
from kudulite.errors import (
    ConflictError,
    KuduliteError,
    RowError,
    SchemaError,
    UsageError,
)
from kudulite.model.encoded_key import encode_keys, with_id
from kudulite.model.schema import Schema
from kudulite.table.present import Present, recover
from kudulite.table.row_ids import last_id_of, next_id
from kudulite.table.table_log import Turn
from kudulite.table.table_store import TableStore
from kudulite.table.write_queue import QueuedWrite
from kudulite.tablet.mem_stores import LOCATE_ARRAY_MIN, Location, MemStores
from kudulite.tablet.operation import Outcome
from kudulite.tablet.row_effects import (
    NO_COUNTS,
    RowEffects,
    RowOperation,
    RowWriteFailure,
    RowWriteResult,
    WriteCounts,
)
from kudulite.wal.record_format import encode_rows
from kudulite.wal.row_codec import RecordSizeError
from kudulite.writes.log_commit import EncodedCommit, LogCommit, TabletChanges, write_in_turn

_PADDING_BYTES = 64 << 10


@dataclass(eq=False, slots=True)
class TabletRows:
    """The operations of a request on one tablet.

    `positions` are the operations' positions in the caller's list, `refusals` are (position here,
    RowError reason).
    """

    positions: list[int] = field(default_factory=list)
    operations: list[RowOperation] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    outcomes: Sequence[Outcome] = ()
    refusals: Sequence[tuple[int, str]] = ()


@dataclass(eq=False)
class WriteRequest(QueuedWrite):
    """The operations of one caller, by tablet of the version `planned`, and their result."""

    store: TableStore
    planned: Manifest
    tablets: dict[str, TabletRows] = field(default_factory=dict)
    error: KuduliteError | None = None
    timestamp: int = 0
    counts: WriteCounts = NO_COUNTS

    def write(self, turn: Turn, group: Sequence[WriteRequest]) -> None:
        """Write the operations of all requests of a group as one commit."""
        TableWrite(self.store, turn).run(group)

    @property
    def positions(self) -> list[int]:
        """The positions of all operations in the caller's list."""
        return [at for rows in self.tablets.values() for at in rows.positions]

    @property
    def row_count(self) -> int:
        """The number of operations."""
        return sum(len(rows.positions) for rows in self.tablets.values())

    def failures(self, table: str) -> list[RowWriteFailure]:
        """Return the operations that were not written, by their positions in the caller's list."""
        error = self.failure(table)
        if error is not None:
            return [RowWriteFailure(row, str(error), error) for row in self.positions]
        return [
            RowWriteFailure(rows.positions[at], reason)
            for rows in self.tablets.values()
            for at, reason in rows.refusals
        ]


@dataclass(frozen=True)
class RowWriter:
    """Writes row operations to one table."""

    store: TableStore

    def write(
        self,
        operations: Sequence[RowOperation],
        *,
        timeout_seconds: float | None = None,
    ) -> RowWriteResult:
        """Write the operations, in order; all but the failures are durable and visible.

        `timeout_seconds` is how long to wait for the table (default: the client's). Errors of rows
        are failures of the result. Operations whose plan was stale are planned once more.
        """
        if timeout_seconds is None:
            timeout_seconds = self.store.environment.lock_timeout_seconds
        manifest = self.store.chain.last_seen()  # the lock's holder checks whether it is the newest
        if manifest.has_tablet_logs:
            manifest = self.store.upgraded()
        rows: Sequence[int] = range(len(operations))
        timestamp, counts = 0, NO_COUNTS
        failures: list[RowWriteFailure] = []
        outcomes: list[tuple[Sequence[int], Sequence[Outcome]]] = []
        for is_last in (False, True):
            request, failed = self._plan(manifest, operations, rows)
            stale = {failure.row for failure in failed}
            if request.tablets:
                write_in_turn(self.store, request, timeout_seconds)
                timestamp = max(timestamp, request.timestamp)
                counts = request.counts if counts is NO_COUNTS else counts + request.counts
                failed += request.failures(self.store.name)
                outcomes += [
                    (r.positions, r.outcomes) for r in request.tablets.values() if r.outcomes
                ]
                if request.is_stale:
                    stale.update(request.positions)
            newest = manifest
            if stale and not is_last:
                newest = self._newest(manifest, must_exist=len(stale) == len(operations))
            if newest is manifest:
                failures += failed
                break
            failures = [failure for failure in failed if failure.row not in stale]
            manifest, rows = newest, sorted(stale)
        failures.sort(key=lambda failure: failure.row)
        self.store.metrics.rows_inserted += counts.inserted
        self.store.metrics.rows_updated += counts.updated
        self.store.metrics.rows_deleted += counts.deleted
        self.store.metrics.rows_ignored += counts.ignored
        return RowWriteResult(timestamp, counts, failures, outcomes)

    def _newest(self, planned: Manifest, *, must_exist: bool) -> Manifest:
        try:
            return self.store.newest()
        except KuduliteError:
            if must_exist:
                raise
            return planned

    def _plan(
        self,
        manifest: Manifest,
        operations: Sequence[RowOperation],
        rows: Sequence[int],
    ) -> tuple[WriteRequest, list[RowWriteFailure]]:
        """Encode the keys of some operations and sort them by tablet, keeping their order.

        Also return the operations that have no place in `manifest`.
        """
        schema = manifest.schema
        failures = _moved_rows(self.store.name, schema, operations, rows)
        if failures:
            rows = sorted(set(rows).difference(failure.row for failure in failures))
        required = set(schema.key_names)
        of_insert = required - {schema.auto_incrementing}  # the tablet's lock holder numbers it
        # An operation lacks a key column that was renamed since it was made.
        if schema.auto_incrementing is None:
            fitting = [row for row in rows if required <= operations[row].values.keys()]
        else:
            fitting = [
                row
                for row in rows
                if (of_insert if operations[row].operation.is_insert else required)
                <= operations[row].values.keys()
            ]
        failures += [
            RowWriteFailure(row, RowError.REASON_INVALID) for row in set(rows).difference(fitting)
        ]
        keys, numbers = _keys_and_tablets(manifest, [operations[row] for row in fitting])
        request = WriteRequest(self.store, manifest)
        for row, key, number in zip(fitting, keys, numbers, strict=True):
            if number < 0:
                failures.append(RowWriteFailure(row, RowError.REASON_NO_PARTITION))
                continue
            tablet_id = manifest.placed_tablets[number].id
            tablet = request.tablets.get(tablet_id)
            if tablet is None:
                tablet = request.tablets[tablet_id] = TabletRows()
            tablet.positions.append(row)
            tablet.operations.append(operations[row])
            tablet.keys.append(key)
        return request, failures


def _moved_rows(
    table: str, schema: Schema, operations: Sequence[RowOperation], rows: Sequence[int]
) -> list[RowWriteFailure]:
    """Return the failures of operations of which a name means no column or another one now."""
    given = (operations[row].schema for row in rows)
    schemas = {id(s): s for s in given if s is not None and s is not schema}
    moved = {number: names for number, s in schemas.items() if (names := moved_names(s, schema))}
    failures = []
    for row in rows if moved else ():
        names = moved.get(id(operations[row].schema), {})
        name = next((name for name in operations[row].values if name in names), None)
        if name is not None:
            error = SchemaError(
                f"table {table!r}: column {name!r} of a row {names[name]}; nothing of the row was"
                " written: make the operation again"
            )
            failures.append(RowWriteFailure(row, str(error), error))
    return failures


def _keys_and_tablets(
    manifest: Manifest, operations: Sequence[RowOperation]
) -> tuple[list[bytes], list[int]]:
    schema, partition = manifest.schema, manifest.partition
    names = schema.key_names
    if len(operations) < LOCATE_ARRAY_MIN:
        keys, places, encode = [], [], schema.key_encoder
        for operation in operations:
            values = operation.values
            key = encode([values.get(name, 0) for name in names])  # 0: an id that is to come
            keys.append(key)
            places.append(partition.tablet_of_key(values, key))
        return keys, places
    fields = [(column.name, column.type.arrow) for column in schema.key_columns]
    array = pa.array([operation.values for operation in operations], pa.struct(fields))
    columns = {name: array.field(at) for at, name in enumerate(names)}
    if schema.auto_incrementing is not None:
        columns[names[-1]] = columns[names[-1]].fill_null(0)
    encoded = encode_keys(list(columns.values()), schema.key_types)
    return encoded.to_list(), partition.tablet_index(columns, len(operations)).tolist()


def altered_error(table: str) -> ConflictError:
    """Return the error of rows that were planned for the table before an alteration."""
    return ConflictError(f"table {table!r} was altered during a write; write again")


@dataclass
class _TabletWrite:
    """The operations of a group of requests on one tablet, and what they change."""

    entry: TabletEntry
    memory: MemStores
    parts: Sequence[TabletRows]
    operations: list[RowOperation]
    keys: list[bytes]
    locations: Sequence[Location | None] = field(init=False)
    effects: RowEffects = field(init=False)

    def __post_init__(self) -> None:
        """Look the keys up and apply the operations."""
        self.locations = self.memory.locate(self.keys)
        self._apply()

    def _apply(self, misfits: Collection[int] = ()) -> None:
        exists = [location is not None for location in self.locations]
        self.effects = self.memory.applier.apply(self.operations, self.keys, exists, misfits)

    def changes(self, timestamp: int) -> TabletChanges | None:
        """Return the changes at a timestamp, None where there are none.

        Rows with a value that does not fit its column are refused. Raises RecordSizeError.
        """
        if not self.effects.changes:
            return None
        applier = self.memory.applier
        try:
            record = applier.record(self.effects, timestamp)
            content = encode_rows(record)
        except (RecordSizeError, pa.ArrowCapacityError):
            raise
        except (pa.ArrowException, ValueError):
            self._apply(applier.misfits(self.operations))
            if not self.effects.changes:
                return None
            record = applier.record(self.effects, timestamp)
            content = encode_rows(record)
        changed = [position for _, _, position in self.effects.changes]
        keys = [self.keys[position] for position in changed]
        locations = [self.locations[position] for position in changed]
        return TabletChanges(self.entry, self.memory, record, content, keys, locations)


@dataclass(frozen=True)
class TableWrite:
    """Writes to one table while its lock is held."""

    store: TableStore
    turn: Turn

    def run(self, group: Sequence[WriteRequest]) -> None:
        """Write a group as one commit. Raises StorageError, CorruptionError: nothing is written."""
        found = recover(self.store, self.turn)
        manifest = found.manifest
        requests = [request for request in group if self._is_current(request, manifest)]
        if not requests:
            return
        writes = self._tablet_writes(found, requests)
        commit = LogCommit(self.store, self.turn, found)
        used = commit.used_timestamp([(write.entry, write.memory) for write in writes])
        timestamp = self.store.next_timestamp(used)
        try:
            made = [write.changes(timestamp) for write in writes]
            changes = [each for each in made if each is not None]
            encoded = EncodedCommit.of(changes, timestamp) if changes else None
        except (RecordSizeError, pa.ArrowCapacityError) as error:
            self._write_apart(requests, error)
            return
        if encoded is None:
            self.turn.check_is_first()  # no append shows it
            _set_results(requests, writes, used)
            return
        requests[0].memory_bytes = commit.write([encoded])
        _set_results(requests, writes, timestamp)

    def _tablet_writes(
        self, found: Present, requests: Sequence[WriteRequest]
    ) -> list[_TabletWrite]:
        """Put the operations of each tablet together, in the order of the requests."""
        by_tablet: dict[str, list[TabletRows]] = {}
        for request in requests:
            for tablet_id, rows in request.tablets.items():
                by_tablet.setdefault(tablet_id, []).append(rows)
        writes = []
        for tablet_id, parts in by_tablet.items():
            entry = found.manifest.entry(tablet_id)
            assert entry is not None
            memory = found.memory.writable_stores(self.store.tablet(entry), found.manifest)
            operations = [operation for rows in parts for operation in rows.operations]
            keys = [key for rows in parts for key in rows.keys]
            if found.manifest.schema.auto_incrementing is not None:
                last = last_id_of(entry, memory)
                name = found.manifest.schema.auto_incrementing
                self._number(tablet_id, name, last, operations, keys)
            writes.append(_TabletWrite(entry, memory, parts, operations, keys))
        return writes

    def _write_apart(self, requests: Sequence[WriteRequest], error: Exception) -> None:
        """Write requests that are too large for one record one by one; refuse one that is alone."""
        if len(requests) > 1:
            for request in requests:
                self.run([request])
            return
        requests[0].is_done = True
        requests[0].error = UsageError(
            f"table {self.store.name!r}: {requests[0].row_count} operations are too large for one"
            f" write to its log: {error}; nothing of them is written: flush fewer rows at once, and"
            " write larger rows with `Table.upsert` of a batch, which does not use the log"
        )

    def _number(
        self,
        tablet_id: str,
        name: str,
        last: int,
        operations: list[RowOperation],
        keys: list[bytes],
    ) -> None:
        """Put ids into the inserts among `operations` and their `keys`, after the id `last`.

        Operations are replaced, not changed: one that fails may be written again.
        """
        for position, operation in enumerate(operations):
            if operation.operation.is_insert:
                last = next_id(last, self.store.name, tablet_id)
                values = operation.values | {name: last}
                operations[position] = RowOperation(operation.operation, values)
                keys[position] = with_id(keys[position], last)
            elif operation.operation.is_upsert:
                last = max(last, operation.values[name])

    def _is_current(self, request: WriteRequest, newest: Manifest) -> bool:
        """Whether the request was planned for the table as it is; else it is refused."""
        planned = request.planned
        if newest is planned:
            return True
        if newest.table_id != planned.table_id:
            request.error = ConflictError(
                f"table {self.store.name!r} was deleted and created again; open it again"
            )
        elif (
            newest.partition != planned.partition
            or newest.schema != planned.schema
            # A range was dropped and added again.
            or any(newest.entry(tablet_id) is None for tablet_id in request.tablets)
        ):
            request.error = altered_error(self.store.name)
        else:
            return True
        self.turn.check_is_first()  # else the request may be planned for a newer version
        request.is_done = request.is_stale = True
        return False


def _set_results(
    requests: Sequence[WriteRequest], writes: Sequence[_TabletWrite], timestamp: int
) -> None:
    """Give each request of a group the outcome of its own operations."""
    counts: dict[int, WriteCounts] = {}
    for write in writes:
        start = 0
        for rows in write.parts:
            stop = start + len(rows.operations)
            rows.refusals = write.effects.refusals(start, stop)
            found = write.effects.counts(start, stop)
            known = counts.get(id(rows))
            counts[id(rows)] = found if known is None else known + found
            rows.outcomes = write.effects.outcomes[start:stop]
            start = stop
    for request in requests:
        request.timestamp = timestamp
        for rows in request.tablets.values():
            own = counts[id(rows)]
            request.counts = own if request.counts is NO_COUNTS else request.counts + own
        request.error = None
        request.is_done = True
