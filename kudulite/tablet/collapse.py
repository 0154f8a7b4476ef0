"""Collapses all operations of a write on one key into at most one effect on the tablet.

Operations on one key apply in row order, each on the state that the one before it left; `OUTCOMES`
(operation.py) says what each does. Round i applies the i-th operation of every key at once, so the
cost grows with the longest chain and not with the number of rows. When all rows have one operation
and every row sets the same columns, no rounds are needed: the state of a key does not change after
its first operation.

Source: Kudu common/row_operations.cc, tablet.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kudulite.errors import RowError
from kudulite.tablet.operation import (
    DELETED,
    IGNORED,
    INSERTED,
    OUTCOMES,
    UPDATED,
    Operation,
    Outcome,
)

ACTION_NONE, ACTION_INSERT, ACTION_UPDATE, ACTION_DELETE = range(4)
SOURCE_KEEP, SOURCE_DEFAULT = -1, -2
# The action on a key by how it was and is: uint8[2 * exists + is_live].
_ACTIONS = np.array([ACTION_NONE, ACTION_INSERT, ACTION_DELETE, ACTION_UPDATE], np.uint8)

_REASONS = (RowError.REASON_ALREADY_PRESENT, RowError.REASON_NOT_FOUND)
_REFUSED = IGNORED + 1  # the code of the first of _REASONS


def _code(outcome: Outcome) -> int:
    return outcome if isinstance(outcome, int) else _REFUSED + _REASONS.index(outcome)


# The outcome table as codes, flat: uint8[2 * operation + is_live].
_OUTCOMES = np.array([_code(outcome) for pair in OUTCOMES for outcome in pair], np.uint8)


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
    """The effects of a write on each of k keys.

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
    keyed: KeyedOperations,
    exists: np.ndarray,
    column_count: int,
    is_set: Sequence[np.ndarray] | None,
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
    absent, present = _OUTCOMES[2 * operation : 2 * operation + 2]
    first_outcome = np.where(exists, present, absent)
    is_live = (first_outcome == INSERTED) | (exists & (first_outcome != DELETED))
    was_live = exists[keyed.group]
    is_later = ~is_first
    was_live[is_later] = is_live[keyed.group[is_later]]
    outcomes = np.where(was_live, present, absent)
    # An operation that updates present keys takes the values of a key's last row.
    is_source = np.append(is_first[1:], True) if present == UPDATED else is_first
    counts, failures = _counts_and_failures(outcomes, keyed.rows)
    return KeyEffects(
        action=_actions(exists, is_live, first_outcome == UPDATED),
        sources=[keyed.rows[is_source]] * column_count,
        is_replaced=np.zeros(len(exists), dtype=bool),
        counts=counts,
        failures=failures,
    )


def _actions(exists: np.ndarray, is_live: np.ndarray, is_changed: np.ndarray) -> np.ndarray:
    """Return the action on each key: which exist before the write, and which are live after it."""
    action: np.ndarray = _ACTIONS.take(np.uint8(2) * exists + is_live)
    action[(action == ACTION_UPDATE) & ~is_changed] = ACTION_NONE
    return action


def _counts_and_failures(
    outcomes: np.ndarray, rows: np.ndarray
) -> tuple[WriteCounts, list[RowFailure]]:
    """Sum up the outcome codes uint8[n] of n rows."""
    counts = WriteCounts(*(int(np.count_nonzero(outcomes == code)) for code in range(_REFUSED)))
    failures = [
        RowFailure(reason, rows[is_refused])
        for code, reason in enumerate(_REASONS, _REFUSED)
        if (is_refused := outcomes == code).any()
    ]
    return counts, failures


def collapse_rounds(
    keyed: KeyedOperations,
    exists: np.ndarray,
    column_count: int,
    is_set: Sequence[np.ndarray] | None,
) -> KeyEffects:
    """Collapse any mixture: one round per position in the chains of operations."""
    state = _Rounds(exists, column_count, is_set)
    outcomes = np.empty(len(keyed.rows), np.uint8)
    for at in _rounds(keyed.group):
        outcomes[at] = state.apply(keyed.rows[at], keyed.group[at], keyed.operations[at])
    return state.effects(*_counts_and_failures(outcomes, keyed.rows))


def _rounds(group: np.ndarray) -> list[np.ndarray]:
    """Return, per round, the positions of the operations applied in it; `group` is ascending."""
    if not len(group):
        return []
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    rank = np.arange(len(group)) - starts[group]
    order = np.argsort(rank, kind="stable")
    return np.split(order, np.cumsum(np.bincount(rank))[:-1])


class _Rounds:
    """The state of all keys between rounds."""

    def __init__(
        self, exists: np.ndarray, column_count: int, is_set: Sequence[np.ndarray] | None
    ) -> None:
        self._exists = exists
        self._alive = exists.copy()
        self._is_replaced = np.zeros(len(exists), dtype=bool)
        self._is_changed = np.zeros(len(exists), dtype=bool)
        self._is_set = is_set
        # Rows that set all columns share one array of sources.
        distinct = 1 if is_set is None else column_count
        self._sources = [np.full(len(exists), SOURCE_KEEP, np.int64) for _ in range(distinct)]
        self._column_count = column_count

    def apply(self, rows: np.ndarray, keys: np.ndarray, operations: np.ndarray) -> np.ndarray:
        """Apply one operation to each of `keys` (all different); return the outcome codes."""
        outcomes: np.ndarray = _OUTCOMES.take(2 * operations + self._alive[keys])
        creates, changes, deletes = (outcomes == code for code in (INSERTED, UPDATED, DELETED))
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
        return outcomes

    def effects(self, counts: WriteCounts, failures: Sequence[RowFailure]) -> KeyEffects:
        """Return the sum of all rounds."""
        is_changed = self._is_changed | self._is_replaced
        action = _actions(self._exists, self._alive, is_changed)
        sources = self._sources if self._is_set is not None else self._sources * self._column_count
        return KeyEffects(action, sources, self._is_replaced, counts, failures)
