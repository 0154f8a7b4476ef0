"""MemRowSet: rows that are in the log and in no DiskRowSet yet.

    key → slot        a dict; a slot is the number of keys that came before, and the row id here
    slot → history    a DeltaMemStore: insert = REINSERT of the whole row, then UPDATE, DELETE and,
                      over a ghost, REINSERT again

Kudu keeps a row and a list of REDO changes behind it. Here the row as inserted is the first change
of that list: one structure holds all history, and reading at any moment is one fold of it. The
order of keys is made by readers that need it (sorted_keys.py).

Invariants: (1) timestamps never fall from one change to the next, so the rows that a moment sees
are slots 0 … k - 1; (2) a key keeps its slot for ever, as a ghost too; (3) a reader finds all of an
`apply` or nothing of it.

Threads: one writer at a time; any number take snapshots at any moment, without a lock: one
reference is replaced last, and says how much of everything else it covers.

Source: Kudu memrowset.cc, tablet.md, "MemRowSet".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kudulite.delta.chunk_log import ChunkLog
from kudulite.delta.delta_file import OP_DELETE, OP_REINSERT, OP_UPDATE, DeltaColumn, DeltaRows
from kudulite.delta.delta_mem_store import DeltaMemStore
from kudulite.model.encoded_key import key_width
from kudulite.model.schema import Schema
from kudulite.rowset.memrowset_snapshot import KeyChunk, MemRowSetSnapshot, OrderHint, join_keys
from kudulite.wal.row_changes import CHANGE_DELETE, CHANGE_INSERT, CHANGE_UPDATE

_OP_OF_CHANGE = np.empty(3, np.uint8)
_OP_OF_CHANGE[[CHANGE_INSERT, CHANGE_UPDATE, CHANGE_DELETE]] = [OP_REINSERT, OP_UPDATE, OP_DELETE]

# Of a key: the bytes object and its dict entry with the slot, and its copy in arrays with the slot.
_KEY_ROW_BYTES = 200


class _State(NamedTuple):
    """How much of a MemRowSet is there; replaced as a whole after each `apply`."""

    slot_count: int = 0
    change_count: int = 0
    key_min: bytes = b""
    key_max: bytes = b""
    timestamp_max: int = 0


class MemRowSet:
    """New rows of one tablet, of one schema, with all their history."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._key_width = key_width(schema.key_types)
        self._slots: dict[bytes, int] = {}
        self._keys: ChunkLog[KeyChunk] = ChunkLog(lambda parts: join_keys(parts, self._key_width))
        self._changes = DeltaMemStore()
        self._state = _State()
        self._order = OrderHint()
        self._key_bytes = 0
        self._timestamp_min = 0

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
        """Memory in bytes, Python objects included, near enough to flush by."""
        return self._changes.nbytes + self._key_bytes

    @property
    def timestamp_min(self) -> int:
        """When the first row was inserted, 0 without rows."""
        return self._timestamp_min

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
        """Apply n changes in order, all or, with ValueError, none.

        `ops` uint8[n] are CHANGE_ constants; `columns` and `is_set` are those of RowChanges, an
        INSERT sets all columns; `timestamps` never fall, also from call to call. A key may come
        several times. UPDATE and DELETE must hit a live key, INSERT one that is not.
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
            timestamp_max=self._changes.timestamp_max,
        )

    def _resolve(
        self, keys: Sequence[bytes], ops: Sequence[int], fresh: dict[bytes, int]
    ) -> list[int]:
        """Return the slot of each change; new keys go to `fresh`. Raises ValueError."""
        slots, is_deleted = self._slots, self._changes.is_deleted
        slot_count = self._state.slot_count
        is_live: dict[int, bool] = {}  # what the changes before in this call left
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
                found = "live" if was_live else "not live"
                raise ValueError(f"change {op} of key {key.hex()}, which is {found}")
            if not is_known:
                fresh[key] = slot
            is_live[slot] = op != CHANGE_DELETE
            rowids.append(slot)
        return rowids

    def _add_keys(self, fresh: dict[bytes, int], rows: DeltaRows, slot_count: int) -> None:
        """Add keys that came in order of their slots, the first of them `slot_count`."""
        assert rows.timestamps is not None
        if len(fresh) == len(rows.rowids):
            stamps = rows.timestamps
        else:
            slots, firsts = np.unique(rows.rowids, return_index=True)
            stamps = rows.timestamps[firsts[slots >= slot_count]]
        if not slot_count:
            self._timestamp_min = int(stamps[0])
        self._keys.append(KeyChunk(slot_count, list(fresh), stamps), len(fresh))
        self._slots.update(fresh)
        self._key_bytes += sum(map(len, fresh)) * 2 + len(fresh) * _KEY_ROW_BYTES

    def snapshot(self) -> MemRowSetSnapshot:
        """Return what is here now; it never changes. O(1)."""
        # The state goes first: what is read after it covers at least as much.
        state = self._state
        return MemRowSetSnapshot(
            schema=self.schema,
            slots=self._slots,
            key_chunks=self._keys.parts,
            slot_count=state.slot_count,
            changes=self._changes.snapshot(state.change_count),
            key_bounds=(state.key_min, state.key_max),
            timestamp_bounds=(self._timestamp_min, state.timestamp_max),
            order=self._order,
        )
