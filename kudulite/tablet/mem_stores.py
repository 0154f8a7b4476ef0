"""A tablet's unflushed rows, in memory: one MemRowSet and the DeltaMemStores.

    change of a key that the MemRowSet has, or an INSERT    -> MemRowSet
    UPDATE or DELETE of a row of a DiskRowSet               -> that rowset's DeltaMemStore

Every process that writes to or reads from the tablet builds the same memory from the same rows of
the table's log (table_memory.py). The stores only grow; a newer superblock starts new ones. Records
that a writer appends are buffered until a read needs them or a limit is reached, because applying
several costs little more than applying one.

**Invariants**: (1) the stores and the buffer hold exactly the tablet's rows in the log from the
`start` that they were made for up to `end`; (2) a key is live in at most one store; once it is in
the MemRowSet, all later changes of it are applied there; (3) a deleted row of a DiskRowSet never
becomes live there again.

**Threads**: one `apply` at a time, under the mutex; any thread may call `tablet`, which returns an
immutable view. Only the lookups of a replay read from disk under the mutex.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.delta.delta_file import OP_DELETE, OP_UPDATE, DeltaColumn, DeltaRows, concat_columns
from kudulite.delta.delta_mem_store import DeltaMemStore
from kudulite.errors import CorruptionError
from kudulite.model.encoded_key import encode_keys, id_of_key
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Schema
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.memrowset import MemRowSet
from kudulite.tablet.row_effects import RowApplier
from kudulite.tablet.tablet import RowLocations, Tablet
from kudulite.wal.record_format import Record
from kudulite.wal.row_codec import CHANGE_DELETE, CHANGE_INSERT, RowList
from kudulite.wal.segment import LogPosition

# A key that is live in the MemRowSet; any other location is (rowset id, row id).
IN_MEMROWSET = ("", -1)
Location = tuple[str, int]
# Records are buffered up to these limits before they are applied, so that the fixed cost per rowset
# is paid once for several flushes.
WAITING_ROWS_MAX = 1024
_WAITING_BYTES_MAX = 1 << 20
_WAITING_ROW_BYTES = 500  # memory of a buffered row beyond the bytes of its record
# Fewer keys than this are looked up one by one: array operations have a higher fixed cost.
LOCATE_ARRAY_MIN = 12


class AppendedRecord(NamedTuple):
    """A record just appended to the log; `locate` returned the `locations` of its `keys`.

    `byte_count` is its length.
    """

    record: Record
    keys: Sequence[bytes]
    locations: Sequence[Location | None]
    byte_count: int


@dataclass(frozen=True)
class TimedChanges:
    """n changes in order of time: `RowChanges` with ascending `timestamps` uint64[n]."""

    timestamps: np.ndarray
    ops: np.ndarray
    columns: Mapping[int, pa.Array]
    is_set: Mapping[int, np.ndarray]

    @staticmethod
    def of(records: Sequence[Record], schema: Schema) -> TimedChanges:
        """Concatenate records that are in order of time."""
        if isinstance(records[0], RowList) and all(isinstance(r, RowList) for r in records):
            return TimedChanges._of_rows([r for r in records if isinstance(r, RowList)])
        counts = [len(record.ops) for record in records]
        columns, is_set = {}, {}
        for column in schema.columns:
            joined = concat_columns([_column_of(r, column.id) for r in records], counts)
            if joined is not None:
                columns[column.id] = joined.values
                if joined.is_set is not None:
                    is_set[column.id] = joined.is_set
        ops = np.concatenate([record.ops for record in records])
        return TimedChanges(_timestamps_of(records), ops, columns, is_set)

    @staticmethod
    def _of_rows(records: Sequence[RowList]) -> TimedChanges:
        """Convert the rows of all records into columns at once."""
        rows = [row for record in records for row in record.rows]
        columns, is_set = records[0].codec.columns([cells for _, cells in rows])
        ops = np.array([op for op, _ in rows], np.uint8)
        return TimedChanges(_timestamps_of(records), ops, columns, is_set)

    def slice(self, start: int, stop: int) -> TimedChanges:
        """Return the changes [start, stop), without a copy."""
        return TimedChanges(
            self.timestamps[start:stop],
            self.ops[start:stop],
            {column_id: a.slice(start, stop - start) for column_id, a in self.columns.items()},
            {column_id: mask[start:stop] for column_id, mask in self.is_set.items()},
        )

    def take(self, rows: np.ndarray) -> TimedChanges:
        """Return the changes at positions `rows`, in that order."""
        at = pa.array(rows)
        return TimedChanges(
            self.timestamps[rows],
            self.ops[rows],
            {column_id: array.take(at) for column_id, array in self.columns.items()},
            {column_id: mask[rows] for column_id, mask in self.is_set.items()},
        )


def _ops_of(record: Record) -> list[int]:
    if isinstance(record, RowList):
        return [op for op, _ in record.rows]
    ops: list[int] = record.ops.tolist()
    return ops


def _timestamps_of(records: Sequence[Record]) -> np.ndarray:
    """Return the timestamps of all rows, uint64: a record's timestamp repeated for each row."""
    stamps = np.array([record.timestamp for record in records], np.uint64)
    return np.repeat(stamps, [record.row_count for record in records])


def _column_of(record: Record, column_id: int) -> DeltaColumn | None:
    values = record.columns.get(column_id)
    return None if values is None else DeltaColumn(values, record.is_set.get(column_id))


class MemStores:
    """The memory of one tablet on top of `base`, the tablet of its superblock."""

    def __init__(self, base: Tablet, schema: Schema, start: LogPosition) -> None:
        self.base = base
        self.schema = schema
        self.applier = RowApplier(schema)
        self.end = start
        self.mutex = threading.Lock()
        self.timestamp_max = 0
        self.timestamp_min = 0
        self.row_count = 0
        self.last_id = 0  # the highest auto-incrementing id in the log
        self.is_torn = False  # an error left part of a change in the stores: discard them
        self._memrowset = MemRowSet(schema)
        self._waiting: list[tuple[Record, Sequence[bytes], Sequence[Location | None]]] = []
        self._waiting_locations: dict[bytes, Location | None] = {}
        self._waiting_count = self._waiting_bytes = 0
        self._stores_bytes = 0
        self._deltas: dict[str, DeltaMemStore] = {}
        self._key_ids = [column.id for column in schema.key_columns]
        self._value_ids = [column.id for column in schema.value_columns]
        self._view: tuple[LogPosition, int, Tablet] = (self.end, 0, base)

    @property
    def nbytes(self) -> int:
        """An estimate of the memory in bytes."""
        waiting = _WAITING_ROW_BYTES * self._waiting_count + self._waiting_bytes
        return self._stores_bytes + waiting

    def tablet(self) -> Tablet:
        """Return the tablet with all changes that are in memory now."""
        return self.view()[2]

    def view(self) -> tuple[LogPosition, int, Tablet]:
        """Return the log position that memory has reached, its newest timestamp, and the tablet."""
        if self._view[0] == self.end:
            return self._view
        with self.mutex:
            self._apply_waiting()
            deltas = {rowset_id: store.snapshot() for rowset_id, store in self._deltas.items()}
            memrowset = self._memrowset.snapshot() if self._memrowset.row_count else None
            tablet = self.base.with_memory(memrowset, deltas)
            self._view = (self.end, self.timestamp_max, tablet)
            return self._view

    # -- lookups

    def locate(self, keys: Sequence[bytes]) -> list[Location | None]:
        """Return the live locations of n keys (any order, repeats allowed), None if not live."""
        locations: list[Location | None] = [None] * len(keys)
        unknown = []
        waiting = self._waiting_locations  # a reader's thread may apply them to the stores now
        for position, key in enumerate(keys):
            if key in waiting:
                locations[position] = waiting[key]
            elif key not in self._memrowset:
                unknown.append(position)
            elif self._memrowset.find_one(key) >= 0:
                locations[position] = IN_MEMROWSET
        if len(unknown) < LOCATE_ARRAY_MIN:
            for position in unknown:
                locations[position] = self._locate_on_disk(keys[position])
        else:
            array = KeyArray.from_bytes(
                [keys[position] for position in unknown], self.schema.key_width
            )
            for position, location in zip(unknown, self._locate_all_on_disk(array), strict=True):
                locations[position] = location
        return locations

    def _locate_on_disk(self, key: bytes) -> Location | None:
        place = self.base.locate_one(key, self.schema.key_width, TIMESTAMP_MAX)
        if place is None:
            return None
        rowset, rowid = place
        assert isinstance(rowset, DiskRowSet)
        return self._unless_deleted(rowset.meta.id, rowid)

    def _locate_all_on_disk(self, keys: KeyArray) -> list[Location | None]:
        order = keys.sort_order()
        locations = self._located_on_disk(keys.take(order))
        result: list[Location | None] = [None] * len(keys)
        ids = [rowset.meta.id for rowset in self.base.disk_rowsets]
        hits = np.flatnonzero(locations.is_found)
        where = zip(
            order[hits].tolist(),
            locations.rowset_index[hits].tolist(),
            locations.rowid[hits].tolist(),
            strict=True,
        )
        for position, index, rowid in where:
            result[position] = (ids[index], rowid)
        return result

    def _unless_deleted(self, rowset_id: str, rowid: int) -> Location | None:
        store = self._deltas.get(rowset_id)
        return None if store is not None and store.is_deleted(rowid) else (rowset_id, rowid)

    # -- applying changes

    def replay(self, records: Sequence[Record], end: LogPosition) -> None:
        """Apply records read from the log up to `end`; under the mutex.

        Raises CorruptionError for a change of a row that does not exist.
        """
        self._apply_waiting()
        if records:
            changes = TimedChanges.of(records, self.schema)
            arrays = [changes.columns[column_id] for column_id in self._key_ids]
            keys = encode_keys(arrays, self.schema.key_types)
            targets = self._targets(changes.ops, keys)
            try:
                self._apply(changes, lambda at: keys.take(at).to_list(), targets)
                self._count(changes.timestamps[0], changes.timestamps[-1], len(keys))
                if self.schema.auto_incrementing is not None:
                    self.last_id = max(self.last_id, pc.max(arrays[-1]).as_py())
                self.end = end
            except BaseException as error:
                self.is_torn = True
                if not isinstance(error, ValueError):
                    raise
                raise CorruptionError(
                    f"{self.base.folder}: the log does not fit the tablet: {error}"
                ) from error
        self.end = end

    def apply(self, appended: Sequence[AppendedRecord], end: LogPosition) -> None:
        """Apply the records of a frame just appended to the log, up to `end`, oldest first."""
        with self.mutex:
            if self.end >= end:
                return  # a reader's thread has already read it from the log, and maybe more
            try:
                for each in appended:
                    self._add_waiting(each)
                self.end = end
            except BaseException:
                self.is_torn = True
                raise
            is_large = self._waiting_bytes >= _WAITING_BYTES_MAX
            if is_large or self._waiting_count >= WAITING_ROWS_MAX:
                self._apply_waiting()

    def _add_waiting(self, appended: AppendedRecord) -> None:
        record, keys, locations, byte_count = appended
        self._waiting.append((record, keys, locations))
        for key, op, place in zip(keys, _ops_of(record), locations, strict=True):
            is_gone = op == CHANGE_DELETE
            self._waiting_locations[key] = None if is_gone else place or IN_MEMROWSET
        self._waiting_count += len(keys)
        self._waiting_bytes += byte_count
        self._count(record.timestamp, record.timestamp, len(keys))
        if self.schema.auto_incrementing is not None:
            self.last_id = max(self.last_id, *map(id_of_key, keys))

    def _count(self, first: int, last: int, row_count: int) -> None:
        self.timestamp_min = self.timestamp_min or int(first)
        self.timestamp_max = int(last)
        self.row_count += row_count

    def _apply_waiting(self) -> None:
        """Apply the buffered records to the stores; under the mutex."""
        if not self._waiting:
            return
        changes = TimedChanges.of([record for record, _, _ in self._waiting], self.schema)
        keys = [key for _, record_keys, _ in self._waiting for key in record_keys]
        places = [place or IN_MEMROWSET for *_, locations in self._waiting for place in locations]
        index = {rowset.meta.id: at for at, rowset in enumerate(self.base.disk_rowsets)}
        targets = RowLocations(
            np.array([index.get(rowset_id, -1) for rowset_id, _ in places], np.int32),
            np.array([rowid for _, rowid in places], np.int64),
        )
        try:
            self._apply(changes, lambda at: [keys[position] for position in at.tolist()], targets)
            self._waiting, self._waiting_locations = [], {}
            self._waiting_count = self._waiting_bytes = 0
        except BaseException:
            self.is_torn = True
            raise

    def _targets(self, ops: np.ndarray, keys: KeyArray) -> RowLocations:
        """Return the location of each change of a replay; rowset_index -1 stands for the MemRowSet.

        That has what the log inserts: the changes of a key from its first INSERT on. Those before
        are of a row on disk, of which the last one may be a DELETE.
        """
        order = keys.sort_order()
        keys, ops = keys.take(order), ops[order]
        is_first = ~keys.equals_previous()
        starts, group = np.flatnonzero(is_first), np.cumsum(is_first) - 1
        is_insert = ops == CHANGE_INSERT
        on_disk = _count_in_group(is_insert, starts, group) == 0
        if self._memrowset.row_count:
            is_known = [key in self._memrowset for key in keys.take(starts)]
            on_disk &= ~np.array(is_known)[group]
        is_delete = on_disk & (ops == CHANGE_DELETE)
        is_after_delete = _count_in_group(is_delete, starts, group) > is_delete
        if (on_disk & is_after_delete).any():
            raise self._misfit(keys[int(np.argmax(on_disk & is_after_delete))])
        wanted = np.flatnonzero(on_disk[starts])
        found = self._located_on_disk(keys.take(starts[wanted]))
        if not found.is_found.all():
            raise self._misfit(keys[int(starts[wanted[np.argmin(found.is_found)]])])
        of_group = RowLocations.nowhere(len(starts))
        of_group.rowset_index[wanted], of_group.rowid[wanted] = found.rowset_index, found.rowid
        targets = RowLocations.nowhere(len(ops))
        at = order[on_disk]
        targets.rowset_index[at] = of_group.rowset_index[group[on_disk]]
        targets.rowid[at] = of_group.rowid[group[on_disk]]
        return targets

    def _located_on_disk(self, keys: KeyArray) -> RowLocations:
        """Return the live locations of ascending keys, rowset_index of `base.disk_rowsets`."""
        found = self.base.locate(keys, TIMESTAMP_MAX)
        if not self._deltas:
            return found
        stores = [self._deltas.get(rowset.meta.id) for rowset in self.base.disk_rowsets]
        hits = np.flatnonzero(found.is_found)
        where = zip(found.rowset_index[hits].tolist(), found.rowid[hits].tolist(), strict=True)
        is_gone = [
            (store := stores[index]) is not None and store.is_deleted(rowid)
            for index, rowid in where
        ]
        gone = hits[np.array(is_gone, bool)]
        found.rowset_index[gone] = found.rowid[gone] = -1
        return found

    def _misfit(self, key: bytes) -> CorruptionError:
        return CorruptionError(
            f"{self.base.folder}: the log changes a row that does not exist:"
            f" encoded key {key.hex()}"
        )

    def _apply(
        self,
        changes: TimedChanges,
        keys_at: Callable[[np.ndarray], list[bytes]],
        targets: RowLocations,
    ) -> None:
        """Apply changes to their stores; `targets` as `_targets` returns them."""
        order = np.argsort(targets.rowset_index, kind="stable")
        indexes, starts = np.unique(targets.rowset_index[order], return_index=True)
        if len(indexes) > 1:
            # One take for all rowsets, because there may be many with few rows each.
            changes = changes.take(order)
        stops = [*starts[1:].tolist(), len(order)]
        for index, start, stop in zip(indexes.tolist(), starts.tolist(), stops, strict=True):
            part = changes.slice(start, stop) if len(indexes) > 1 else changes
            at = order[start:stop]
            if index < 0:
                inserted = keys_at(at)
                self._memrowset.apply(
                    inserted, part.ops, part.columns, part.is_set, part.timestamps
                )
                continue
            rowset_id = self.base.disk_rowsets[index].meta.id
            store = self._deltas.setdefault(rowset_id, DeltaMemStore())
            store.append(self._delta_rows(part, targets.rowid[at]))
        deltas_bytes = sum(store.nbytes for store in self._deltas.values())
        self._stores_bytes = self._memrowset.nbytes + deltas_bytes

    def _delta_rows(self, changes: TimedChanges, rowids: np.ndarray) -> DeltaRows:
        columns = {}
        for column_id in self._value_ids:
            values = changes.columns.get(column_id)
            mask = changes.is_set.get(column_id)
            if values is not None and (mask is None or mask.any()):
                columns[column_id] = DeltaColumn(values, None if mask is None else mask)
        ops = np.where(changes.ops == CHANGE_DELETE, OP_DELETE, OP_UPDATE).astype(np.uint8)
        return DeltaRows(rowids, ops, columns, changes.timestamps)


def _count_in_group(flags: np.ndarray, starts: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return int64[n]: how many of `flags` are set in the group of each place, up to it."""
    counts = np.cumsum(flags)
    before = counts[starts] - flags[starts]
    found: np.ndarray = counts - before[group]
    return found
