"""What a MemRowSet held at one moment, read as a DiskRowSet is.

    blocks     positions in key order, whose row ids are slots in order of arrival
    a value    the newest change of the slot that sets the column, up to the timestamp

Arrays are joined, sorted and folded when they are asked for, and kept. A point read does none of
that: it follows one row's changes.

Threads: any number may read; what is made twice is equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kudulite.cfile.base_data import ROW_GROUP_ROWS
from kudulite.delta.delta_file import OP_DELETE
from kudulite.delta.delta_mem_store import DeltaMemSnapshot
from kudulite.delta.delta_overlay import DeltaOverlay, DeltaSource
from kudulite.model.encoded_key import key_width
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Column, Schema
from kudulite.rowset.overlay_memo import OverlayMemo
from kudulite.rowset.rowset import Block, RowSet, cell_value, constant
from kudulite.rowset.scan_spec import ScanSpec
from kudulite.rowset.sorted_keys import SortedKeys

# Looking so many keys up one by one costs less than putting one more in order.
_PROBES_PER_SORTED_ROW = 1 / 16


class KeyChunk(NamedTuple):
    """Keys of the slots start, start + 1, … and when each was first inserted."""

    start: int
    keys: list[bytes] | KeyArray
    timestamps: np.ndarray


class OrderHint:
    """The longest order of keys that any snapshot of a MemRowSet made: the next one grows it.

    Threads: any; the reference is replaced, and a lost one costs a sort.
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
        slot_count: int,
        changes: DeltaMemSnapshot,
        key_bounds: tuple[bytes, bytes],
        timestamp_bounds: tuple[int, int],
        order: OrderHint,
    ) -> None:
        """`slots` and `key_chunks` may hold more than `slot_count`, which is passed over."""
        self.schema = schema
        self.changes = changes
        self.lifetime = 0, None
        self.row_count = slot_count
        self.key_min, self.key_max = key_bounds
        self.timestamp_min, self.timestamp_max = timestamp_bounds
        self._slots = slots
        self._key_chunks = key_chunks
        self._key_width = key_width(schema.key_types)
        self._order = order
        self._overlays = OverlayMemo(self.timestamp_max)

    def is_visible(self, timestamp: int) -> bool:
        """Whether a snapshot at `timestamp` (inclusive) may see any row."""
        return self.row_count > 0 and self.timestamp_min <= timestamp

    def overlay(self, timestamp: int) -> DeltaOverlay:
        """Return the fold of the changes up to `timestamp`; of rows inserted later it is silent."""
        return self._overlays.at(timestamp, self._fold)

    def _fold(self, timestamp: int) -> DeltaOverlay:
        return DeltaOverlay((), timestamp, memory=self.changes)

    def live_row_count(self, timestamp: int) -> int:
        """Number of rows that a snapshot sees."""
        return self._inserted_count(timestamp) - len(self.overlay(timestamp).deleted)

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
        """Return the keys of the slots start … row_count - 1, in order of slots."""
        parts = []
        for chunk in self._key_chunks:
            first = max(0, start - chunk.start)
            stop = min(len(chunk.keys), self.row_count - chunk.start)
            if first < stop:
                keys = chunk.keys
                cut = keys.slice(first, stop) if isinstance(keys, KeyArray) else keys[first:stop]
                parts.append(KeyChunk(0, cut, chunk.timestamps))
        return _joined_keys(parts, self._key_width)

    def _inserted_count(self, timestamp: int) -> int:
        """Return how many rows were ever inserted up to a moment: those of the first slots."""
        if timestamp >= self.timestamp_max:
            return self.row_count
        return int(np.searchsorted(self.insert_timestamps, np.uint64(timestamp), "right"))

    # -- lookups by key

    def find(self, keys: KeyArray, timestamp: int) -> np.ndarray:
        """Return int64[n]: the slots of ascending `keys` live at `timestamp`, else -1."""
        hint = self._order.sorted
        is_sorted = hint is not None and len(hint) >= self.row_count
        if not is_sorted and len(keys) < self.row_count * _PROBES_PER_SORTED_ROW:
            found = [self.find_one(key, keys.width, timestamp) for key in keys]
            return np.array(found, np.int64)
        order = self.sorted_keys
        places = order.keys.find(keys)
        slots = np.where(places >= 0, order.rowids[places], -1) if len(order) else places
        slots[slots >= self._inserted_count(timestamp)] = -1
        overlay = self.overlay(timestamp)
        if len(overlay.deleted):
            slots[(slots >= 0) & overlay.is_deleted(slots)] = -1
        return slots

    def find_one(self, key: bytes, width: int | None, timestamp: int) -> int:
        """Return the slot of `key` if it is live at `timestamp`, else -1; `width` is not used."""
        slot = self._slots.get(key, -1)
        if slot < 0:
            return -1
        op = self.changes.newest_op(slot, timestamp)
        return -1 if op is None or op == OP_DELETE else slot

    def read_rows(
        self, rowids: np.ndarray, columns: Sequence[Column], timestamp: int
    ) -> list[pa.Array]:
        """Return each column's values of int64[n] slots in any order, as of `timestamp`."""
        overlay = self.overlay(timestamp)
        return [_values(column, rowids, overlay) for column in columns]

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
        overlay = self.overlay(timestamp)
        if not len(overlay.deleted) and self._inserted_count(timestamp) == self.row_count:
            return None
        return self.are_there(self.rowids_of(block), timestamp, overlay)

    def keys_of(self, block: Block, positions: np.ndarray | None) -> KeyArray:
        """Return the keys of a block's rows at int64[m] `positions`; None is all of them."""
        keys = self.sorted_keys.keys.slice(block.start, block.stop)
        return keys if positions is None else keys.take(positions)

    # -- what changed

    def delta_sources(self) -> tuple[Sequence[DeltaSource], Sequence[DeltaSource]]:
        """Return no UNDO, and all changes, inserts included, as REDO."""
        return [], [self.changes]

    def rowids_of(self, block: Block) -> np.ndarray:
        """Return int64[n]: the slots of a block's rows, in key order."""
        return self.sorted_keys.rowids[block.start : block.stop]

    def are_there(self, rowids: np.ndarray, timestamp: int, overlay: DeltaOverlay) -> np.ndarray:
        """Return bool[n]: which of int64[n] slots are live; `overlay` is that of `timestamp`."""
        return (rowids < self._inserted_count(timestamp)) & ~overlay.is_deleted(rowids)

    def read_images(
        self,
        block: Block,
        columns: Sequence[Column],
        views: Sequence[tuple[DeltaOverlay, np.ndarray | None]],
    ) -> list[list[pa.Array]]:
        """Return, for each view, the columns' values of the block's rows at its positions."""
        slots = self.rowids_of(block)
        chosen = [(overlay, slots if at is None else slots[at]) for overlay, at in views]
        return [[_values(column, at, overlay) for column in columns] for overlay, at in chosen]


def _values(column: Column, slots: np.ndarray, overlay: DeltaOverlay) -> pa.Array:
    # What no change sets is of a row that is older than the column.
    return overlay.apply_rows(constant(column, len(slots)), column.id, slots)


def join_keys(chunks: Sequence[KeyChunk], width: int | None) -> KeyChunk:
    """Return one chunk of neighbours."""
    stamps = np.concatenate([chunk.timestamps for chunk in chunks])
    return KeyChunk(chunks[0].start, _joined_keys(chunks, width), stamps)


def _joined_keys(chunks: Sequence[KeyChunk], width: int | None) -> KeyArray:
    parts: list[KeyArray] = []
    run: list[bytes] = []  # keys as bytes, not in an array yet
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
