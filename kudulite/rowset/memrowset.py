"""MemRowSet: rows that are in the log and not yet in a DiskRowSet.

    key → slot        a dict; the row id of a key is its slot, the number of keys before it
    slot → changes    a DeltaMemStore: insert = REINSERT of the whole row, then UPDATE, DELETE and,
                      over a ghost, REINSERT again

Kudu keeps a row and a list of its REDO changes. Here the inserted row is the first change of that
list, so one structure has all history, and a read at any timestamp merges its changes.

A `MemRowSetSnapshot` is the state of a MemRowSet at one moment, read like a DiskRowSet:

    blocks     positions in key order, whose row ids are slots
    a value    the newest change of the slot that sets the column, up to the timestamp

Arrays are joined, sorted and merged when a read first needs them, and kept. A point read needs no
arrays: it follows one row's changes.

`SortedKeys` are the keys in order, grown by merging. Merging m new keys into n sorted ones costs a
sort of the m and a copy of the n, as array operations. It replaces the concurrent B+-tree of Kudu's
MemRowSet: readers need the order only after many inserts, and one pass over arrays then costs less
than updating a tree at each insert.

**Invariants**: (1) timestamps never fall from one change to the next, so the rows that a snapshot
sees are slots 0 … k - 1; (2) a key keeps its slot, as a ghost too; (3) a reader finds all changes
of an `apply` or none; (4) sorted keys ascend strictly and have the row ids 0 … n - 1, each once.

**Threads**: one writer at a time; any number take snapshots at any moment, without a lock. The
writer replaces one reference last, and that value limits how much of all else a snapshot reads.

**Source**: Kudu memrowset.cc; tablet.md, "MemRowSet".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kudulite.basefile.base_data import ROW_GROUP_ROWS
from kudulite.basefile.block_cache import Keeps, always
from kudulite.delta.delta_applier import DeltaApplier, places_in
from kudulite.delta.delta_file import OP_DELETE, OP_REINSERT, OP_UPDATE, DeltaColumn, DeltaRows
from kudulite.delta.delta_mem_store import ChunkLog, DeltaMemSnapshot, DeltaMemStore
from kudulite.delta.delta_source import DeltaSource
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Column, Schema
from kudulite.rowset.rowset import Block, RowSet, cell_value, constant
from kudulite.rowset.rowset_deltas import ApplierMemo
from kudulite.rowset.scan_spec import ScanSpec, View
from kudulite.wal.row_codec import CHANGE_DELETE, CHANGE_INSERT, CHANGE_UPDATE

_OP_OF_CHANGE = np.empty(3, np.uint8)
_OP_OF_CHANGE[[CHANGE_INSERT, CHANGE_UPDATE, CHANGE_DELETE]] = [OP_REINSERT, OP_UPDATE, OP_DELETE]

# Per key: the bytes object, its dict entry with the slot, and its copy in arrays with the slot.
_KEY_ROW_BYTES = 200

# Sorting costs less per row of the MemRowSet than looking up this many keys one by one.
_PROBES_PER_SORTED_ROW = 1 / 16


class _State(NamedTuple):
    """How much of a MemRowSet readers may see; replaced as a whole after each `apply`."""

    slot_count: int = 0
    change_count: int = 0
    key_min: bytes = b""
    key_max: bytes = b""
    timestamp_min: int = 0
    timestamp_max: int = 0


class MemRowSet:
    """New rows of one tablet, of one schema, with all their history."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._slots: dict[bytes, int] = {}
        self._keys: ChunkLog[KeyChunk] = ChunkLog(lambda parts: join_keys(parts, schema.key_width))
        self._changes = DeltaMemStore()
        self._state = _State()
        self._order = OrderHint()
        self._key_bytes = 0

    @property
    def row_count(self) -> int:
        """Number of rows, ghosts included."""
        return self._state.slot_count

    @property
    def change_count(self) -> int:
        """Number of changes, inserts included."""
        return self._state.change_count

    @property
    def nbytes(self) -> int:
        """Approximate memory in bytes, Python objects included, for the flush policy."""
        return self._changes.nbytes + self._key_bytes

    @property
    def timestamp_min(self) -> int:
        """When the first row was inserted, 0 without rows."""
        return self._state.timestamp_min

    @property
    def timestamp_max(self) -> int:
        """The newest change, 0 without rows."""
        return self._state.timestamp_max

    def find_one(self, key: bytes) -> int:
        """Return the slot of a key that is live now, else -1."""
        slot = self._slots.get(key, -1)
        return -1 if slot < 0 or self._changes.is_deleted(slot) else slot

    def __contains__(self, key: bytes) -> bool:
        """Whether the key was ever inserted here, deleted or not."""
        return key in self._slots

    def apply(
        self,
        keys: Sequence[bytes],
        ops: np.ndarray,
        columns: Mapping[int, pa.Array],
        is_set: Mapping[int, np.ndarray],
        timestamps: int | np.ndarray,
    ) -> None:
        """Apply n changes in order: all of them, or none if ValueError is raised.

        `ops` uint8[n] are CHANGE_ constants. `columns` and `is_set` are as in RowChanges, and an
        INSERT sets all columns. `timestamps` never fall, also not from call to call. A key may
        have several changes. UPDATE and DELETE need a live key, INSERT a key that is not live.
        """
        count = len(keys)
        if not count:
            return
        state = self._state
        fresh: dict[bytes, int] = {}
        rowids = self._resolve(keys, ops.tolist(), fresh)
        stamps = timestamps
        if not isinstance(stamps, np.ndarray):
            stamps = np.array([stamps] * count, np.uint64)
        cells = {c: DeltaColumn(values, is_set.get(c)) for c, values in columns.items()}
        rows = DeltaRows(np.array(rowids, np.int64), _OP_OF_CHANGE[ops], cells, stamps)
        self._changes.append(rows)
        key_min, key_max = state.key_min, state.key_max
        if fresh:
            self._add_keys(fresh, rows, state.slot_count)
            smallest, greatest = min(fresh), max(fresh)
            key_min = min(key_min, smallest) if state.slot_count else smallest
            key_max = max(key_max, greatest)
        # Last: from here on snapshots cover the changes.
        self._state = _State(
            slot_count=state.slot_count + len(fresh),
            change_count=state.change_count + count,
            key_min=key_min,
            key_max=key_max,
            timestamp_min=state.timestamp_min if state.slot_count else int(stamps[0]),
            timestamp_max=self._changes.timestamp_max,
        )

    def _resolve(
        self, keys: Sequence[bytes], ops: Sequence[int], fresh: dict[bytes, int]
    ) -> list[int]:
        """Return the slot of each change and add new keys to `fresh`. Raises ValueError."""
        slots, is_deleted = self._slots, self._changes.is_deleted
        slot_count = self._state.slot_count
        is_live: dict[int, bool] = {}  # after the changes before this one in the call
        rowids = []
        for key, op in zip(keys, ops, strict=True):
            slot = slots.get(key, -1)
            if slot < 0:
                slot = fresh.get(key, -1)
            is_known = slot >= 0
            if not is_known:
                slot = slot_count + len(fresh)
            was_live = is_known and (is_live[slot] if slot in is_live else not is_deleted(slot))
            if was_live == (op == CHANGE_INSERT):
                state = "live" if was_live else "not live"
                raise ValueError(f"change {op} of key {key.hex()}, which is {state}")
            if not is_known:
                fresh[key] = slot
            is_live[slot] = op != CHANGE_DELETE
            rowids.append(slot)
        return rowids

    def _add_keys(self, fresh: dict[bytes, int], rows: DeltaRows, slot_count: int) -> None:
        """Add keys in order of their slots; the first new slot is `slot_count`."""
        assert rows.timestamps is not None
        if len(fresh) == len(rows.rowids):
            stamps = rows.timestamps
        else:
            slots, firsts = np.unique(rows.rowids, return_index=True)
            stamps = rows.timestamps[firsts[slots >= slot_count]]
        self._keys.append(KeyChunk(slot_count, list(fresh), stamps), len(fresh))
        self._slots.update(fresh)
        self._key_bytes += sum(map(len, fresh)) * 2 + len(fresh) * _KEY_ROW_BYTES

    def snapshot(self) -> MemRowSetSnapshot:
        """Return the rows and changes up to now; the snapshot never changes. O(1)."""
        # Read the state first: all else is then read later and has at least as many rows.
        state = self._state
        return MemRowSetSnapshot(
            schema=self.schema,
            slots=self._slots,
            key_chunks=self._keys.parts,
            changes=self._changes.snapshot(state.change_count),
            state=state,
            order=self._order,
        )


class KeyChunk(NamedTuple):
    """Keys of the slots start, start + 1, … and when each was first inserted."""

    start: int
    keys: list[bytes] | KeyArray
    timestamps: np.ndarray


class OrderHint:
    """The longest sorted keys that any snapshot of a MemRowSet made; the next snapshot grows them.

    Any thread may use it. The reference is replaced, and a lost update costs one sort.
    """

    def __init__(self) -> None:
        self.sorted: SortedKeys | None = None


class MemRowSetSnapshot(RowSet):
    """The first rows and changes of a MemRowSet, immutable."""

    def __init__(
        self,
        *,
        schema: Schema,
        slots: Mapping[bytes, int],
        key_chunks: Sequence[KeyChunk],
        changes: DeltaMemSnapshot,
        state: _State,
        order: OrderHint,
    ) -> None:
        """`slots` and `key_chunks` may hold more keys than `state`; the others are ignored."""
        self.schema = schema
        self.changes = changes
        self.lifetime = 0, None
        self.row_count = state.slot_count
        self.key_min, self.key_max = state.key_min, state.key_max
        self.timestamp_min, self.timestamp_max = state.timestamp_min, state.timestamp_max
        self._slots = slots
        self._key_chunks = key_chunks
        self._order = order
        self._appliers = ApplierMemo(self.timestamp_max)

    def is_visible(self, timestamp: int) -> bool:
        """Whether a snapshot at `timestamp` (inclusive) may see any row."""
        return self.row_count > 0 and self.timestamp_min <= timestamp

    def applier(self, timestamp: int) -> DeltaApplier:
        """Return the applier of the changes up to `timestamp`; it ignores rows inserted later."""
        return self._appliers.at(timestamp, self._make_applier)

    def _make_applier(self, timestamp: int) -> DeltaApplier:
        return DeltaApplier((), timestamp, memory=self.changes)

    def live_row_count(self, timestamp: int) -> int:
        """Return the number of rows that a snapshot sees."""
        return self._inserted_count(timestamp) - len(self.applier(timestamp).deleted)

    @cached_property
    def insert_timestamps(self) -> np.ndarray:
        """uint64[row_count]: when each slot's key was first inserted, never falling."""
        parts = [chunk.timestamps for chunk in self._key_chunks if chunk.start < self.row_count]
        return np.concatenate([*parts, np.empty(0, np.uint64)])[: self.row_count]

    @cached_property
    def sorted_keys(self) -> SortedKeys:
        """All keys in order, with their slots."""
        hint = self._order.sorted
        if hint is not None and len(hint) >= self.row_count:
            return hint.first(self.row_count)
        known = 0 if hint is None else len(hint)
        newer = self._keys_from(known)
        result = SortedKeys.of(newer) if hint is None else hint.grown(newer)
        self._order.sorted = result
        return result

    def _keys_from(self, start: int) -> KeyArray:
        """Return the keys of slots start … row_count - 1, in order of slots."""
        parts = []
        for chunk in self._key_chunks:
            first = max(0, start - chunk.start)
            stop = min(len(chunk.keys), self.row_count - chunk.start)
            if first < stop:
                keys = chunk.keys
                cut = keys.slice(first, stop) if isinstance(keys, KeyArray) else keys[first:stop]
                parts.append(KeyChunk(0, cut, chunk.timestamps))
        return _joined_keys(parts, self.schema.key_width)

    def _inserted_count(self, timestamp: int) -> int:
        """Return how many keys were first inserted up to a timestamp; they have the first slots."""
        if timestamp >= self.timestamp_max:
            return self.row_count
        return int(np.searchsorted(self.insert_timestamps, np.uint64(timestamp), "right"))

    # -- lookups by key

    def find(self, keys: KeyArray, timestamp: int) -> np.ndarray:
        """Return int64[n]: the slots of ascending `keys` live at `timestamp`, else -1."""
        hint = self._order.sorted
        is_sorted = hint is not None and len(hint) >= self.row_count
        if not is_sorted and len(keys) < self.row_count * _PROBES_PER_SORTED_ROW:
            one_by_one = [self.find_one(key, keys.width, timestamp) for key in keys]
            return np.array(one_by_one, np.int64)
        order = self.sorted_keys
        places = order.keys.find(keys)
        slots = np.where(places >= 0, order.rowids[places], -1) if len(order) else places
        slots[slots >= self._inserted_count(timestamp)] = -1
        applier = self.applier(timestamp)
        if len(applier.deleted):
            slots[(slots >= 0) & applier.is_deleted(slots)] = -1
        return slots

    def find_one(self, key: bytes, width: int | None, timestamp: int) -> int:
        """Return the slot of `key` if it is live at `timestamp`, else -1; `width` is not used."""
        slot = self._slots.get(key, -1)
        if slot < 0:
            return -1
        op = self.changes.newest_op(slot, timestamp)
        return -1 if op is None or op == OP_DELETE else slot

    def read_rows(
        self,
        rowids: np.ndarray,
        columns: Sequence[Column],
        timestamp: int,
        *,
        keeps: Keeps = always,
    ) -> list[pa.Array]:
        """Return each column's values of int64[n] slots in any order, as of `timestamp`."""
        applier = self.applier(timestamp)
        return _values(columns, rowids, applier)

    def read_row(self, rowid: int, columns: Sequence[Column], timestamp: int) -> list[object]:
        """Return one row's cells as Python values, as of `timestamp`."""
        cells = []
        for column in columns:
            cell = self.changes.newest_cell(rowid, column.id, timestamp)
            cells.append(column.read_default if cell is None else cell_value(cell, column))
        return cells

    # -- scans

    def blocks(self, spec: ScanSpec) -> Iterator[Block]:
        """Yield the blocks with a key inside the bounds, in key order."""
        if not self.is_visible(spec.timestamp):
            return
        start, stop, keys = 0, self.row_count, self.sorted_keys.keys
        if spec.lower is not None and spec.lower > self.key_min:
            start = keys.locate(spec.lower, "left")
        if spec.upper is not None and spec.upper <= self.key_max:
            stop = keys.locate(spec.upper, "left")
        for number, first in enumerate(range(start, stop, ROW_GROUP_ROWS)):
            yield Block(number, first, min(first + ROW_GROUP_ROWS, stop))

    def live_in(self, block: Block, timestamp: int) -> np.ndarray | None:
        """Return bool[n]: which of a block's rows a snapshot sees; None when it sees all."""
        applier = self.applier(timestamp)
        if not len(applier.deleted) and self._inserted_count(timestamp) == self.row_count:
            return None
        return self.are_live(self.rowids_of(block), timestamp, applier)

    def keys_of(self, block: Block, positions: np.ndarray | None) -> KeyArray:
        """Return the keys of a block's rows at int64[m] `positions`; None is all of them."""
        keys = self.sorted_keys.keys.slice(block.start, block.stop)
        return keys if positions is None else keys.take(positions)

    # -- changes, for diff scans

    def delta_sources(self) -> tuple[Sequence[DeltaSource], Sequence[DeltaSource]]:
        """Return no UNDO, and all changes, inserts included, as REDO."""
        return [], [self.changes]

    def rowids_of(self, block: Block) -> np.ndarray:
        """Return int64[n]: the slots of a block's rows, in key order."""
        return self.sorted_keys.rowids[block.start : block.stop]

    def places_in(self, block: Block, rowids: np.ndarray) -> tuple[np.ndarray, np.ndarray | slice]:
        """Return the positions of a block's rows whose slots are given, and their places there."""
        at, is_given = places_in(rowids, self.rowids_of(block))
        positions = np.flatnonzero(is_given)
        return positions, at[positions]

    def are_live(self, rowids: np.ndarray, timestamp: int, applier: DeltaApplier) -> np.ndarray:
        """Return bool[n]: which of int64[n] slots are live; `applier` is that of `timestamp`."""
        is_live: np.ndarray = rowids < self._inserted_count(timestamp)
        is_live &= ~applier.is_deleted(rowids)
        return is_live

    def read_images(
        self, block: Block, columns: Sequence[Column], views: Sequence[View]
    ) -> list[list[pa.Array]]:
        """Return, for each view, the columns' values of the block's rows at its positions."""
        slots = self.rowids_of(block)
        chosen = [(applier, slots if at is None else slots[at]) for applier, at in views]
        return [_values(columns, at, applier) for applier, at in chosen]


def _values(columns: Sequence[Column], slots: np.ndarray, applier: DeltaApplier) -> list[pa.Array]:
    # A column that no change of a row sets was added after the row's insert.
    base = [constant(column, len(slots)) for column in columns]
    return applier.apply_rows(base, [column.id for column in columns], slots)


def join_keys(chunks: Sequence[KeyChunk], width: int | None) -> KeyChunk:
    """Return one chunk of neighbours."""
    stamps = np.concatenate([chunk.timestamps for chunk in chunks])
    return KeyChunk(chunks[0].start, _joined_keys(chunks, width), stamps)


def _joined_keys(chunks: Sequence[KeyChunk], width: int | None) -> KeyArray:
    parts: list[KeyArray] = []
    run: list[bytes] = []  # keys that are not in an array yet
    for chunk in chunks:
        if isinstance(chunk.keys, KeyArray):
            if run:
                parts.append(KeyArray.from_bytes(run, width))
                run = []
            parts.append(chunk.keys)
        else:
            run += chunk.keys
    if run or not parts:
        parts.append(KeyArray.from_bytes(run, width))
    return KeyArray.concat(parts)


@dataclass(frozen=True)
class SortedKeys:
    """n keys, ascending, and the int64[n] row ids that they belong to."""

    keys: KeyArray
    rowids: np.ndarray

    def __len__(self) -> int:
        return len(self.rowids)

    @staticmethod
    def of(keys: KeyArray, first_rowid: int = 0) -> SortedKeys:
        """Sort keys that are in order of their row ids."""
        order = keys.sort_order()
        return SortedKeys(keys.take(order), order + first_rowid)

    def grown(self, newer: KeyArray) -> SortedKeys:
        """Return these keys and `newer` ones, all different, which get the next row ids."""
        if not len(newer):
            return self
        added = SortedKeys.of(newer, len(self))
        total = len(self) + len(added)
        places = self.keys.search_sorted(added.keys) + np.arange(len(added))
        is_old = np.ones(total, dtype=bool)
        is_old[places] = False
        source = np.empty(total, np.int64)
        source[places] = np.arange(len(self), total)
        source[is_old] = np.arange(len(self))
        keys = KeyArray.concat([self.keys, added.keys]).take(source)
        return SortedKeys(keys, np.concatenate([self.rowids, added.rowids])[source])

    def first(self, count: int) -> SortedKeys:
        """Return the keys of the row ids below `count`."""
        if count == len(self):
            return self
        at = np.flatnonzero(self.rowids < count)
        return SortedKeys(self.keys.take(at), self.rowids[at])
