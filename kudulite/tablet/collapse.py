"""Collapses all operations of a write on one key into at most one effect on the tablet.

    operation              key absent            key present
    insert                 new row               error: already present
    insert_ignore          new row               ignored
    upsert, upsert_ignore  new row               set the given columns
    update                 error: not found      set the given columns
    update_ignore          ignored               set the given columns
    delete                 error: not found      delete
    delete_ignore          ignored               delete

Operations on one key apply in row order, each on what the one before left. They are played in
rounds: round i plays the i-th operation of every key at once, so the cost is in the longest chain
and not in the number of rows. When all rows have one operation and every row sets the same columns,
one formula per operation gives the same without rounds.

Source: Kudu common/row_operations.cc, tablet.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kudulite.errors import RowError
from kudulite.tablet.operation import Operation

ACTION_NONE, ACTION_INSERT, ACTION_UPDATE, ACTION_DELETE = range(4)
SOURCE_KEEP, SOURCE_DEFAULT = -1, -2


@dataclass(frozen=True)
class WriteCounts:
    """How many rows of a write had which outcome."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    ignored: int = 0

    def __add__(self, other: WriteCounts) -> WriteCounts:
        return WriteCounts(
            self.inserted + other.inserted,
            self.updated + other.updated,
            self.deleted + other.deleted,
            self.ignored + other.ignored,
        )


NO_COUNTS = WriteCounts()


@dataclass(frozen=True)
class KeyedOperations:
    """n operations in key order, those of one key in row order.

    `rows` int64[n] are row numbers, `group` int64[n] the index of each one's key among the k
    distinct keys, `operations` uint8[n].
    """

    rows: np.ndarray
    group: np.ndarray
    operations: np.ndarray
    key_count: int


@dataclass(frozen=True)
class RowFailure:
    """Row numbers int64[m] that the tablet refuses, for one reason of RowError."""

    reason: str
    rows: np.ndarray


@dataclass(frozen=True)
class KeyEffects:
    """What a write does to each of k keys.

    `action` uint8[k]. `sources` has an int64[k] per value column of the write: the row number whose
    value the column takes, SOURCE_KEEP, or SOURCE_DEFAULT. `is_replaced` bool[k]: the row was
    deleted and inserted again, so columns that the write does not provide go to their defaults.
    """

    action: np.ndarray
    sources: Sequence[np.ndarray]
    is_replaced: np.ndarray
    counts: WriteCounts
    failures: Sequence[RowFailure]


def collapse(
    keyed: KeyedOperations, exists: np.ndarray, column_count: int, is_set: Sequence | None
) -> KeyEffects:
    """Return the effect of all operations, given which of the k keys exist (bool[k]).

    `is_set` is None when every row sets all `column_count` columns, else a bool array per column
    indexed by row number.
    """
    operations = keyed.operations
    if is_set is None and len(operations) and (operations == operations[0]).all():
        return collapse_uniform(Operation(int(operations[0])), keyed, exists, column_count)
    return collapse_rounds(keyed, exists, column_count, is_set)


def collapse_uniform(
    operation: Operation, keyed: KeyedOperations, exists: np.ndarray, column_count: int
) -> KeyEffects:
    """Collapse rows that all have `operation` and all set the same columns."""
    is_first = np.append(True, keyed.group[1:] != keyed.group[:-1])
    first = keyed.rows[is_first]
    last = keyed.rows[np.append(is_first[1:], True)]
    row_exists = exists[keyed.group]
    total, absent_count = len(keyed.rows), int(np.count_nonzero(~exists))
    inserted = updated = deleted = 0
    refused = np.zeros(total, dtype=bool)
    if operation <= Operation.INSERT_IGNORE:
        action, source = np.where(exists, ACTION_NONE, ACTION_INSERT), first
        inserted = absent_count
        refused = row_exists | ~is_first
    elif operation <= Operation.UPSERT_IGNORE:
        action, source = np.where(exists, ACTION_UPDATE, ACTION_INSERT), last
        inserted, updated = absent_count, total - absent_count
    elif operation <= Operation.UPDATE_IGNORE:
        action, source = np.where(exists, ACTION_UPDATE, ACTION_NONE), last
        updated = int(np.count_nonzero(row_exists))
        refused = ~row_exists
    else:
        action, source = np.where(exists, ACTION_DELETE, ACTION_NONE), first
        deleted = len(exists) - absent_count
        refused = ~row_exists | ~is_first
    failures, ignored = _refusals(operation, keyed.rows[refused])
    return KeyEffects(
        action=action.astype(np.uint8),
        sources=[source] * column_count,
        is_replaced=np.zeros(len(exists), dtype=bool),
        counts=WriteCounts(inserted, updated, deleted, ignored),
        failures=failures,
    )


def _refusals(operation: Operation, rows: np.ndarray) -> tuple[list[RowFailure], int]:
    """Return (failures, ignored count) of rows that an operation cannot apply."""
    if operation not in (Operation.INSERT, Operation.UPDATE, Operation.DELETE):
        return [], len(rows)
    is_insert = operation == Operation.INSERT
    reason = RowError.REASON_ALREADY_PRESENT if is_insert else RowError.REASON_NOT_FOUND
    return ([RowFailure(reason, rows)] if len(rows) else []), 0


def collapse_rounds(
    keyed: KeyedOperations, exists: np.ndarray, column_count: int, is_set: Sequence | None
) -> KeyEffects:
    """Collapse any mixture: one round per position in the chains of operations."""
    state = _Rounds(exists, column_count, is_set)
    for at in _rounds(keyed.group):
        state.play(keyed.rows[at], keyed.group[at], keyed.operations[at])
    return state.effects()


def _rounds(group: np.ndarray) -> list[np.ndarray]:
    """Return, per round, the positions of the operations played in it; `group` is ascending."""
    if not len(group):
        return []
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    rank = np.arange(len(group)) - starts[group]
    order = np.argsort(rank, kind="stable")
    return np.split(order, np.cumsum(np.bincount(rank))[:-1])


class _Rounds:
    """The state of all keys between rounds."""

    def __init__(self, exists: np.ndarray, column_count: int, is_set: Sequence | None) -> None:
        self._exists = exists
        self._alive = exists.copy()
        self._is_replaced = np.zeros(len(exists), dtype=bool)
        self._is_changed = np.zeros(len(exists), dtype=bool)
        self._is_set = is_set
        # Rows that set all columns share one array of sources.
        distinct = 1 if is_set is None else column_count
        self._sources = [np.full(len(exists), SOURCE_KEEP, np.int64) for _ in range(distinct)]
        self._column_count = column_count
        self._counts = WriteCounts()
        self._present: list[np.ndarray] = []
        self._absent: list[np.ndarray] = []

    def play(self, rows: np.ndarray, keys: np.ndarray, operations: np.ndarray) -> None:
        """Apply one operation to each of `keys` (all different)."""
        alive = self._alive[keys]
        creates = ~alive & (operations <= Operation.UPSERT_IGNORE)
        changes = alive & (operations >= Operation.UPSERT) & (operations <= Operation.UPDATE_IGNORE)
        deletes = alive & (operations >= Operation.DELETE)
        present = alive & (operations == Operation.INSERT)
        absent = ~alive & ((operations == Operation.UPDATE) | (operations == Operation.DELETE))
        for index, source in enumerate(self._sources):
            source[keys[creates]] = SOURCE_DEFAULT
            written = creates | changes
            if self._is_set is not None:
                written &= self._is_set[index][rows]
            source[keys[written]] = rows[written]
            source[keys[deletes]] = SOURCE_KEEP
        created = keys[creates]
        self._is_replaced[created] |= self._exists[created]
        self._alive[created] = True
        self._is_changed[keys[changes]] = True
        self._alive[keys[deletes]] = False
        self._present.append(rows[present])
        self._absent.append(rows[absent])
        done = [int(np.count_nonzero(m)) for m in (creates, changes, deletes, present | absent)]
        self._counts += WriteCounts(done[0], done[1], done[2], len(rows) - sum(done))

    def effects(self) -> KeyEffects:
        """Return the sum of all rounds."""
        action = np.where(
            self._exists,
            np.where(self._alive, ACTION_UPDATE, ACTION_DELETE),
            np.where(self._alive, ACTION_INSERT, ACTION_NONE),
        ).astype(np.uint8)
        sources = self._sources
        is_touched = self._is_changed | self._is_replaced
        action[(action == ACTION_UPDATE) & ~is_touched] = ACTION_NONE
        if self._is_set is None:
            sources = sources * self._column_count
        failures = [
            RowFailure(reason, rows)
            for reason, parts in (
                (RowError.REASON_ALREADY_PRESENT, self._present),
                (RowError.REASON_NOT_FOUND, self._absent),
            )
            if parts and len(rows := np.concatenate(parts))
        ]
        return KeyEffects(action, sources, self._is_replaced, self._counts, failures)
