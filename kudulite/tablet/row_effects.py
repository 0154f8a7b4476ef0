"""The effects of write operations on rows: at most one change per key, and the refused operations.

    RowApplier        operations of a session flush, one at a time   -> changes of a log record
    collapse          operations of a batch, as arrays               -> effects on keys, by column

Operations on one key apply in row order, each to the state that the previous one left; `OUTCOMES`
(operation.py) defines each effect. A session's rows are made one by one in Python, so `RowApplier`
loops over them, and a refused row does not stop the others.

`collapse` works in rounds: round i applies the i-th operation of every key at once, so the cost
grows with the longest chain and not with the number of rows. `collapse_uniform` needs no rounds: if
all rows have one operation and set the same columns, the state of a key does not change after its
first operation.

A cell of an immutable column keeps the value of its row's insert. Of the operations that set one,
UPDATE is refused, and so is UPSERT where the row is there, whatever the value; UPDATE_IGNORE and
UPSERT_IGNORE leave it and set the other cells.

**Invariants**: (1) a key has at most one change, which takes the state before the write to the
state after it; (2) a live row that was deleted and inserted again becomes an UPDATE of all columns.

**Threads**: any; a `RowApplier` is immutable.

**Source**: Kudu common/row_operations.cc, tablet.cc.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.errors import KuduliteError, RowError, SchemaError
from kudulite.model.schema import Schema
from kudulite.model.values import canonical_value
from kudulite.tablet.operation import (
    DELETED,
    IGNORED,
    INSERTED,
    OUTCOMES,
    UPDATED,
    Operation,
    Outcome,
)
from kudulite.wal.record_format import Record
from kudulite.wal.row_codec import (
    CHANGE_DELETE,
    CHANGE_INSERT,
    CHANGE_UPDATE,
    RowChanges,
    RowCodec,
    RowList,
)

# Canonical values (model/values.py) by column name, None for null.
Cells: TypeAlias = dict[str, Any]

# Records with at most this many changes are written row by row: columns have a fixed cost.
ROW_LIST_MAX = 16
_COUNTED = (INSERTED, UPDATED, DELETED, IGNORED)
# (CHANGE_ constant, cells by name, position)
Change = tuple[int, Cells, int]

ACTION_NONE, ACTION_INSERT, ACTION_UPDATE, ACTION_DELETE = range(4)
SOURCE_KEEP, SOURCE_DEFAULT = -1, -2
# The action on a key by its state before and after the write: uint8[2 * exists + is_live].
_ACTIONS = np.array([ACTION_NONE, ACTION_INSERT, ACTION_DELETE, ACTION_UPDATE], np.uint8)

_REASONS = (
    RowError.REASON_ALREADY_PRESENT,
    RowError.REASON_NOT_FOUND,
    RowError.REASON_IMMUTABLE,
)
_REFUSED = IGNORED + 1  # the code of the first of _REASONS


class RowEffects(NamedTuple):
    """The effects of a flush on one tablet.

    `changes` has one (op, cells by name, position) per changed key; `position` is the position of
    the key's first operation. `outcomes` has one Outcome per operation.
    """

    changes: Sequence[Change]
    outcomes: Sequence[Outcome]

    def counts(self, start: int, stop: int) -> WriteCounts:
        """Count the operations [start, stop) by outcome."""
        part = self.outcomes[start:stop]
        return WriteCounts(*map(part.count, _COUNTED))

    def refusals(self, start: int, stop: int) -> list[tuple[int, str]]:
        """Return (position counted from `start`, reason) of each refused one of [start, stop)."""
        part = self.outcomes[start:stop]
        return [(at, reason) for at, reason in enumerate(part) if isinstance(reason, str)]


class RowApplier:
    """Applies flushes under one schema; immutable."""

    def __init__(self, schema: Schema) -> None:
        self._key_names = schema.key_names
        values = schema.value_columns
        self._defaults = {column.name: column.write_default for column in values}
        self._not_null = tuple(column.name for column in values if not column.nullable)
        self._immutable = frozenset(column.name for column in values if not column.mutable)
        self._columns = {column.name: column for column in schema.columns}
        self._codec = RowCodec(schema)

    def apply(
        self,
        operations: Sequence[RowOperation],
        keys: Sequence[bytes],
        exists: Sequence[bool],
        misfits: Collection[int] = (),
    ) -> RowEffects:
        """Apply n operations to their encoded `keys`; `exists[i]`: key i is live before the flush.

        Operations at the positions `misfits` are refused.
        """
        changes: dict[bytes, Change | None] = {}  # None: the row is as it was
        firsts: dict[bytes, int] = {}
        outcomes: list[Outcome] = []
        for position, (operation, key) in enumerate(zip(operations, keys, strict=True)):
            earlier = changes.setdefault(key)
            is_live = exists[position] if earlier is None else earlier[0] != CHANGE_DELETE
            outcome, change = self._apply(firsts.setdefault(key, position), operation, is_live)
            if position in misfits:
                outcome, change = RowError.REASON_INVALID, None
            outcomes.append(outcome)
            if change is not None:
                changes[key] = change if earlier is None else _joined(earlier, change)
        return RowEffects([c for c in changes.values() if c is not None], outcomes)

    def _apply(
        self, position: int, operation: RowOperation, is_live: bool
    ) -> tuple[Outcome, Change | None]:
        """Return the outcome of one operation, and its change of the row if there is one.

        `position` is that of the key's first operation.
        """
        values = operation.values
        outcome = OUTCOMES[operation.operation][is_live]
        if self._immutable and not self._immutable.isdisjoint(values):
            outcome, values = self._with_rule(operation, outcome)
        if outcome == DELETED:
            key = {name: values[name] for name in self._key_names}
            return outcome, (CHANGE_DELETE, key, position)
        if outcome not in (INSERTED, UPDATED):
            return outcome, None
        if refused := self._refusal(values, not is_live):
            return refused, None
        if outcome == INSERTED:
            # Cells are shared, not copied: the caller no longer changes them.
            cells = values if len(values) == len(self._columns) else self._defaults | values
            return outcome, (CHANGE_INSERT, cells, position)
        is_change = len(values) > len(self._key_names)
        return outcome, (CHANGE_UPDATE, values, position) if is_change else None

    def _with_rule(self, operation: RowOperation, outcome: Outcome) -> tuple[Outcome, Cells]:
        """Return the outcome of an operation that sets immutable cells, and the cells it may set.

        As in Kudu, an UPDATE is refused before its row is looked for.
        """
        kind, values = operation.operation, operation.values
        if kind == Operation.UPDATE or (kind == Operation.UPSERT and outcome == UPDATED):
            return RowError.REASON_IMMUTABLE, values
        if kind == Operation.UPDATE_IGNORE or outcome == UPDATED:  # of an UPSERT_IGNORE
            values = {name: cell for name, cell in values.items() if name not in self._immutable}
            if kind == Operation.UPDATE_IGNORE and len(values) == len(self._key_names):
                return RowError.REASON_NO_FIELDS, values
        return outcome, values

    def misfits(self, operations: Sequence[RowOperation]) -> set[int]:
        """Return the positions of operations with a value that its column cannot hold.

        Values were checked when the session accepted them, but the table may have been altered
        since: a column dropped, and another added under its name.
        """
        return {at for at, operation in enumerate(operations) if not self._fits(operation)}

    def _fits(self, operation: RowOperation) -> bool:
        for name, value in operation.values.items():
            column = self._columns.get(name)
            if column is None:
                return False
            if value is not None:
                try:
                    fitting = canonical_value(value, column.type, name)
                except SchemaError:
                    return False
                if type(fitting) is not type(value):  # canonical for the dropped column
                    return False
        return True

    def _refusal(self, given: Cells, is_new: bool) -> str | None:
        if not given.keys() <= self._columns.keys():  # the table was altered since
            return RowError.REASON_INVALID
        for name in self._not_null:
            if name in given:
                if given[name] is None:
                    return RowError.REASON_NULL
            elif is_new and self._defaults[name] is None:
                return RowError.REASON_MISSING
        return None

    def record(self, effects: RowEffects, timestamp: int) -> Record:
        """Return the changes (at least one) as a record: a few row by row, many as columns.

        Raises pa.ArrowException for a value that does not fit its column; see `misfits`.
        """
        if len(effects.changes) <= ROW_LIST_MAX:
            rows = [(op, cells) for op, cells, _ in effects.changes]
            return RowList(timestamp, rows, self._codec)
        columns, is_set = self._codec.columns([cells for _, cells, _ in effects.changes])
        ops = np.array([op for op, _, _ in effects.changes], dtype=np.uint8)
        return RowChanges(timestamp, ops, columns, is_set)


def _joined(earlier: Change, change: Change) -> Change | None:
    """Return two changes of one row as one, None if they leave it absent.

    A row that was deleted and inserted again gets an UPDATE of all columns.
    """
    op, cells, position = change
    if op == CHANGE_DELETE:
        return None if earlier[0] == CHANGE_INSERT else change
    if op == CHANGE_INSERT:
        return CHANGE_UPDATE, cells, position
    return earlier[0], earlier[1] | cells, earlier[2]


def _code(outcome: Outcome) -> int:
    return outcome if isinstance(outcome, int) else _REFUSED + _REASONS.index(outcome)


# Beside the operations: an UPDATE and an UPSERT that set an immutable cell; never stored.
_IMMUTABLE_UPDATE, _IMMUTABLE_UPSERT = len(OUTCOMES), len(OUTCOMES) + 1
_IMMUTABLE = RowError.REASON_IMMUTABLE
_ALL_OUTCOMES = (*OUTCOMES, (_IMMUTABLE, _IMMUTABLE), (INSERTED, _IMMUTABLE))
# The outcome table as codes, flat: uint8[2 * operation + is_live].
_OUTCOMES = np.array([_code(outcome) for pair in _ALL_OUTCOMES for outcome in pair], np.uint8)


@dataclass(frozen=True)
class WriteCounts:
    """The number of rows of a write by outcome.

    `unchanged` are rows that would have been updated to what they were, of a write that skips them.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    ignored: int = 0
    unchanged: int = 0

    def __add__(self, other: WriteCounts) -> WriteCounts:
        return WriteCounts(
            self.inserted + other.inserted,
            self.updated + other.updated,
            self.deleted + other.deleted,
            self.ignored + other.ignored,
            self.unchanged + other.unchanged,
        )


NO_COUNTS = WriteCounts()


@dataclass(frozen=True)
class KeyedOperations:
    """n operations in key order; operations on one key are in row order.

    `rows` int64[n] are row numbers, `group` int64[n] the index of each operation's key among the
    k distinct keys, `operations` uint8[n].
    """

    rows: np.ndarray
    group: np.ndarray
    operations: np.ndarray
    key_count: int

    def inserts_first(self) -> KeyedOperations:
        """Return the operations with the inserts of each key before its others.

        The rows of a MERGE have no order. An insert of a key that is there is refused in whichever
        task it is, also where the write deletes the row.
        """
        order = np.lexsort((self.operations != Operation.INSERT, self.group))
        return replace(self, rows=self.rows[order], operations=self.operations[order])

    def first_rows(self) -> np.ndarray:
        """Return int64[k]: a row that has each key, to read the key columns from."""
        firsts = np.zeros(self.key_count, dtype=np.int64)
        firsts[self.group[::-1]] = self.rows[::-1]
        return firsts


@dataclass(frozen=True)
class RowFailure:
    """Row numbers int64[m] that the tablet refuses, all for one reason of RowError."""

    reason: str
    rows: np.ndarray


@dataclass(frozen=True)
class KeyEffects:
    """The effects of a write on each of k keys.

    `action` uint8[k]. `sources` has an int64[k] per value column of the write: the row number whose
    value the column takes, SOURCE_KEEP, or SOURCE_DEFAULT. `is_replaced` bool[k]: the row was
    deleted and inserted again, so columns that the write does not provide get their defaults.
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
    immutable: Collection[int] = (),
    keeps_cells: np.ndarray | None = None,
) -> KeyEffects:
    """Return the effect of all operations; `exists` bool[k]: which keys exist before them.

    `is_set` is None if every row sets all `column_count` columns, else a bool array per column
    indexed by row number. `immutable` are the numbers of the immutable columns, and `keeps_cells`
    bool[n] the operations that give these columns the values that their row has.
    """
    if immutable:
        keyed = _marked(keyed, is_set, immutable, keeps_cells)
    operations = keyed.operations
    if is_set is None and len(operations) and (operations == operations[0]).all():
        operation = int(operations[0])
        if not immutable or operation not in (Operation.UPSERT_IGNORE, Operation.UPDATE_IGNORE):
            return collapse_uniform(operation, keyed, exists, column_count)
    return collapse_rounds(keyed, exists, column_count, is_set, immutable)


def _marked(
    keyed: KeyedOperations,
    is_set: Sequence[np.ndarray] | None,
    immutable: Collection[int],
    keeps_cells: np.ndarray | None,
) -> KeyedOperations:
    """Return the operations with those marked that are refused for the immutable cells they set."""
    operations = keyed.operations.copy()
    is_refusable = np.ones(len(operations), dtype=bool)
    if is_set is not None:
        is_refusable = np.logical_or.reduce([is_set[index][keyed.rows] for index in immutable])
    if keeps_cells is not None:
        is_refusable &= ~keeps_cells
    operations[is_refusable & (operations == Operation.UPDATE)] = _IMMUTABLE_UPDATE
    operations[is_refusable & (operations == Operation.UPSERT)] = _IMMUTABLE_UPSERT
    return replace(keyed, operations=operations)


def collapse_uniform(
    operation: int, keyed: KeyedOperations, exists: np.ndarray, column_count: int
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
    # If the operation updates present keys, the values of the key's last row win.
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
    """Return the action on each key from its states before and after the write."""
    action: np.ndarray = _ACTIONS.take(np.uint8(2) * exists + is_live)
    action[(action == ACTION_UPDATE) & ~is_changed] = ACTION_NONE
    return action


def _counts_and_failures(
    outcomes: np.ndarray, rows: np.ndarray
) -> tuple[WriteCounts, list[RowFailure]]:
    """Count the outcome codes uint8[n] of n rows, and group the refused rows by reason."""
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
    immutable: Collection[int] = (),
) -> KeyEffects:
    """Collapse any mixture of operations: one round per position in the chains of operations."""
    state = _Rounds(exists, column_count, is_set, immutable)
    outcomes = np.empty(len(keyed.rows), np.uint8)
    for at in _rounds(keyed.group):
        outcomes[at] = state.apply(keyed.rows[at], keyed.group[at], keyed.operations[at])
    return state.effects(*_counts_and_failures(outcomes, keyed.rows))


def _rounds(group: np.ndarray) -> list[np.ndarray]:
    """Return the positions of the operations of each round; `group` is ascending."""
    if not len(group):
        return []
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    rank = np.arange(len(group)) - starts[group]
    order = np.argsort(rank, kind="stable")
    return np.split(order, np.cumsum(np.bincount(rank))[:-1])


class _Rounds:
    """The state of all keys between rounds."""

    def __init__(
        self,
        exists: np.ndarray,
        column_count: int,
        is_set: Sequence[np.ndarray] | None,
        immutable: Collection[int],
    ) -> None:
        self._exists = exists
        self._alive = exists.copy()
        self._is_replaced = np.zeros(len(exists), dtype=bool)
        self._is_changed = np.zeros(len(exists), dtype=bool)
        self._is_set = is_set
        self._immutable = immutable
        # Rows that set all columns share one array of sources.
        distinct = 1 if is_set is None and not immutable else column_count
        self._sources = [np.full(len(exists), SOURCE_KEEP, np.int64) for _ in range(distinct)]
        self._column_count = column_count

    def apply(self, rows: np.ndarray, keys: np.ndarray, operations: np.ndarray) -> np.ndarray:
        """Apply one operation to each of `keys` (all different); return the outcome codes."""
        outcomes: np.ndarray = _OUTCOMES.take(2 * operations + self._alive[keys])
        creates, changes, deletes = (outcomes == code for code in (INSERTED, UPDATED, DELETED))
        for index, source in enumerate(self._sources):
            source[keys[creates]] = SOURCE_DEFAULT
            written = creates if index in self._immutable else creates | changes
            if self._is_set is not None:
                written = written & self._is_set[index][rows]
            source[keys[written]] = rows[written]
            source[keys[deletes]] = SOURCE_KEEP
        created = keys[creates]
        self._is_replaced[created] |= self._exists[created]
        self._alive[created] = True
        self._is_changed[keys[changes]] = True
        self._alive[keys[deletes]] = False
        return outcomes

    def effects(self, counts: WriteCounts, failures: Sequence[RowFailure]) -> KeyEffects:
        """Return the effects of all rounds."""
        is_changed = self._is_changed | self._is_replaced
        action = _actions(self._exists, self._alive, is_changed)
        is_shared = self._is_set is None and not self._immutable
        sources = self._sources * self._column_count if is_shared else self._sources
        return KeyEffects(action, sources, self._is_replaced, counts, failures)


def cells_differ(left: pa.Array, right: pa.Array) -> np.ndarray:
    """Return bool[n]: which cells of two arrays of one type differ.

    Nulls are equal, floats are if their bits are, lists if all their elements are.
    """
    if pa.types.is_list(left.type):
        return _lists_differ(left, right)
    if pa.types.is_floating(left.type):
        bits = pa.int64() if left.type.bit_width == 64 else pa.int32()
        left, right = left.view(bits), right.view(bits)
    differ: np.ndarray = pc.fill_null(pc.not_equal(left, right), False).to_numpy(False)
    if left.null_count or right.null_count:
        differ = differ | (_is_null(left) != _is_null(right))
    return differ


def _lists_differ(left: pa.Array, right: pa.Array) -> np.ndarray:
    lengths, others = (
        pc.fill_null(pc.list_value_length(array), -1).to_numpy(False) for array in (left, right)
    )
    differ: np.ndarray = lengths != others
    same = np.flatnonzero(~differ & (lengths > 0))
    elements = cells_differ(left.take(same).flatten(), right.take(same).flatten())
    differ[np.repeat(same, lengths[same])[elements]] = True
    return differ


def _is_null(array: pa.Array) -> np.ndarray:
    nulls: np.ndarray = array.is_null().to_numpy(False)
    return nulls


@dataclass(slots=True)
class RowOperation:
    """`operation` on the row with the key columns in `values`.

    `values` maps names of columns to canonical values (`model/values.py`), None for null: exactly
    the columns that the row sets, including all key columns. An operation that has been handed to
    a write must not be changed unless it fails, because the memory stores share it. The names are
    those of `schema`; None is the schema of now.
    """

    operation: Operation
    values: Cells
    schema: Schema | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RowWriteFailure:
    """Operation number `row` of a write was not applied.

    `reason` is one of RowError's REASON_ constants. If `error` is set, the row is not at fault: its
    tablet could not be written at all.
    """

    row: int
    reason: str
    error: KuduliteError | None = None


class RowWriteResult(NamedTuple):
    """The outcome of a write: all operations except `failures` are applied and durable.

    `timestamp` is the highest of the tablets' timestamps, 0 if nothing was written. `outcomes` has
    for each tablet the positions of its operations, and their outcomes.
    """

    timestamp: int
    counts: WriteCounts
    failures: list[RowWriteFailure]
    outcomes: list[tuple[Sequence[int], Sequence[Outcome]]] = []  # replaced, never changed
