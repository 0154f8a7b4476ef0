"""Playing the operations of a flush one by one: one change per key, and who was refused why."""

from dataclasses import astuple
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kudulite
from kudulite.errors import RowError
from kudulite.model.encoded_key import encode_key
from kudulite.model.schema import Schema
from kudulite.tablet.operation import Operation
from kudulite.tablet.row_effects import (
    ACTION_DELETE,
    ACTION_INSERT,
    ACTION_UPDATE,
    ROW_LIST_MAX,
    SOURCE_DEFAULT,
    SOURCE_KEEP,
    KeyedOperations,
    KeyEffects,
    RowApplier,
    RowEffects,
    RowOperation,
    WriteCounts,
    collapse,
)
from kudulite.wal.record_format import encode_rows
from kudulite.wal.row_codec import CHANGE_DELETE, CHANGE_INSERT, CHANGE_UPDATE
from tests.support.tables.wal_changes import round_trip

PRESENT, NOT_FOUND = RowError.REASON_ALREADY_PRESENT, RowError.REASON_NOT_FOUND
MISSING, NULL = RowError.REASON_MISSING, RowError.REASON_NULL
INSERTED, UPDATED, DELETED, IGNORED = range(4)
DEFAULT_W = -7


def new_schema(*, required: bool = False) -> Schema:
    """Key k; v; w with a default, NOT NULL; with `required` r, which has to be given."""
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("v", kudulite.int32),
        kudulite.column("w", kudulite.int32, nullable=False, default=DEFAULT_W),
    ]
    if required:
        columns.append(kudulite.column("r", "decimal(5, 2)", nullable=False))
    return kudulite.schema(columns, "k")


SCHEMA = new_schema()


def op(name: str, k: int = 0, **values) -> RowOperation:
    """An operation on the row of key `k`."""
    return RowOperation(Operation[name.upper()], {"k": k, **values})


def play(schema: Schema, exists: dict[int, bool], *operations: RowOperation) -> RowEffects:
    """Play operations; `exists` says of some keys that they are live."""
    keys = [encode_key([operation.values["k"]], schema.key_types) for operation in operations]
    live = [exists.get(operation.values["k"], False) for operation in operations]
    return RowApplier(schema).apply(operations, keys, live)


# -- one operation


@pytest.mark.parametrize(
    ("name", "absent", "present"),
    [
        ("insert", (INSERTED, CHANGE_INSERT), (PRESENT, None)),
        ("insert_ignore", (INSERTED, CHANGE_INSERT), (IGNORED, None)),
        ("upsert", (INSERTED, CHANGE_INSERT), (UPDATED, CHANGE_UPDATE)),
        ("upsert_ignore", (INSERTED, CHANGE_INSERT), (UPDATED, CHANGE_UPDATE)),
        ("update", (NOT_FOUND, None), (UPDATED, CHANGE_UPDATE)),
        ("update_ignore", (IGNORED, None), (UPDATED, CHANGE_UPDATE)),
        ("delete", (NOT_FOUND, None), (DELETED, CHANGE_DELETE)),
        ("delete_ignore", (IGNORED, None), (DELETED, CHANGE_DELETE)),
    ],
)
def test_each_operation_on_a_key_that_is_absent_or_present(name: str, absent, present):
    """The eight operations of Kudu; an insert has all columns, an update only those given."""
    values = {} if name.startswith("delete") else {"v": 5}
    for is_there, (outcome, change) in ((False, absent), (True, present)):
        effects = play(SCHEMA, {0: is_there}, op(name, **values))
        assert effects.outcomes == [outcome]
        cells = {
            CHANGE_INSERT: {"k": 0, "v": 5, "w": DEFAULT_W},
            CHANGE_UPDATE: {"k": 0, "v": 5},
            CHANGE_DELETE: {"k": 0},
        }
        assert effects.changes == ([] if change is None else [(change, cells[change], 0)])


# -- several


@given(
    operations=st.lists(
        st.tuples(st.sampled_from(Operation), st.integers(0, 3), st.sets(st.sampled_from("vw"))),
        max_size=14,
    ),
    live=st.sets(st.integers(0, 3)),
)
def test_effects_equal_those_of_a_collapsed_batch(operations, live):
    """The loop over single rows and the array operations over batches are the same function.

    Counts, refusals, what happens to each key, and where each cell of it comes from.
    """
    made = [
        op(kind.name, key, **({} if kind.is_delete else dict.fromkeys(sorted(names), number)))
        for number, (kind, key, names) in enumerate(operations)
    ]
    found = play(SCHEMA, dict.fromkeys(live, True), *made)
    keys, batch = collapsed(made, live)
    assert astuple(found.counts(0, len(made))) == astuple(batch.counts)
    refused = {(row, failure.reason) for failure in batch.failures for row in failure.rows.tolist()}
    assert set(found.refusals(0, len(made))) == refused
    assert changes_of(found) == effects_of(keys, batch)
    first = {operation.values["k"]: at for at, operation in reversed(list(enumerate(made)))}
    assert all(first[cells["k"]] == position for _, cells, position in found.changes)


def collapsed(operations: list[RowOperation], live: set[int]) -> tuple[list[int], KeyEffects]:
    """The keys, and what `collapse` makes of the operations."""
    keys = sorted({operation.values["k"] for operation in operations})
    order = sorted(range(len(operations)), key=lambda at: (operations[at].values["k"], at))
    keyed = KeyedOperations(
        np.array(order, np.int64),
        np.array([keys.index(operations[at].values["k"]) for at in order], np.int64),
        np.array([operations[at].operation for at in order], np.uint8),
        len(keys),
    )
    is_set = [np.array([name in o.values for o in operations], bool) for name in "vw"]
    return keys, collapse(keyed, np.array([key in live for key in keys], bool), 2, is_set)


def changes_of(effects: RowEffects) -> dict[int, tuple]:
    """By key: the change, and each cell's value, None where the change does not set it."""
    return {
        cells["k"]: (change, cells.get("v", "kept"), cells.get("w", "kept"))
        for change, cells, _ in effects.changes
    }


def effects_of(keys: list[int], effects: KeyEffects) -> dict[int, tuple]:
    """The same of a collapsed batch, where each row's cells hold its row number."""
    actions = {
        ACTION_INSERT: CHANGE_INSERT,
        ACTION_UPDATE: CHANGE_UPDATE,
        ACTION_DELETE: CHANGE_DELETE,
    }
    found = {}
    for at, key in enumerate(keys):
        change = actions.get(int(effects.action[at]))
        cells = [
            {SOURCE_KEEP: "kept", SOURCE_DEFAULT: default}.get(int(source[at]), int(source[at]))
            for source, default in zip(effects.sources, (None, DEFAULT_W), strict=True)
        ]
        if change == CHANGE_DELETE:
            cells = ["kept", "kept"]
        if change is None or (change == CHANGE_UPDATE and cells == ["kept", "kept"]):
            continue  # an update of no column changes nothing
        found[key] = (change, *cells)
    return found


def test_a_row_replaced_within_a_flush_is_an_update_of_all_columns():
    """It was there before and is there after: nobody ever sees it gone."""
    effects = play(SCHEMA, {0: True}, op("delete"), op("insert", v=3), op("update", w=4))
    assert effects.changes == [(CHANGE_UPDATE, {"k": 0, "v": 3, "w": 4}, 0)]
    effects = play(SCHEMA, {0: True}, op("delete"), op("upsert"))
    assert effects.changes == [(CHANGE_UPDATE, {"k": 0, "v": None, "w": DEFAULT_W}, 0)]
    assert effects.outcomes == [DELETED, INSERTED]


def test_a_row_that_comes_and_goes_within_a_flush_is_no_change():
    """It is counted as inserted and deleted."""
    effects = play(SCHEMA, {}, op("insert", v=1), op("update", v=2), op("delete"))
    assert (effects.changes, effects.outcomes) == ([], [INSERTED, UPDATED, DELETED])


def test_an_update_of_no_column_is_counted_and_changes_nothing():
    """An upsert of the key alone, too, where the row is there."""
    effects = play(SCHEMA, {0: True}, op("update"), op("upsert"))
    assert (effects.changes, effects.outcomes) == ([], [UPDATED, UPDATED])


# -- refusals


def test_a_null_is_refused_where_there_may_be_none():
    """The row stays as the operations before left it."""
    effects = play(
        SCHEMA, {1: True}, op("insert", w=None), op("update", 1, w=None), op("update", 1, v=None)
    )
    assert effects.outcomes == [NULL, NULL, UPDATED]
    assert effects.changes == [(CHANGE_UPDATE, {"k": 1, "v": None}, 1)]


def test_a_new_row_needs_all_that_has_no_default():
    """An update of a row that is there does not. A refused insert leaves the key absent."""
    one = Decimal(1)
    effects = play(
        new_schema(required=True),
        {1: True},
        op("upsert", v=1),
        op("update", v=1),
        op("upsert", 1, v=1),
        op("insert", r=None),
        op("insert", r=one),
        op("insert", r=one),
    )
    assert effects.outcomes == [MISSING, NOT_FOUND, UPDATED, NULL, INSERTED, PRESENT]
    assert effects.changes == [
        (CHANGE_INSERT, {"k": 0, "v": None, "w": DEFAULT_W, "r": one}, 0),
        (CHANGE_UPDATE, {"k": 1, "v": 1}, 2),
    ]


def test_presence_is_told_before_the_faults_of_a_row():
    """As Kudu does: an insert of a key that is there is that, whatever else is wrong with it."""
    operations = [op("insert", w=None), op("insert_ignore", w=None), op("update", 1, w=None)]
    assert play(SCHEMA, {0: True}, *operations).outcomes == [PRESENT, IGNORED, NOT_FOUND]


def test_a_column_that_the_table_has_no_more_is_refused():
    """The operation was made before it was dropped."""
    effects = play(SCHEMA, {1: True}, op("insert", x=1), op("update", 1, x=1), op("delete", 1))
    assert effects.outcomes == [RowError.REASON_INVALID, RowError.REASON_INVALID, DELETED]


@pytest.mark.parametrize("filler", [0, ROW_LIST_MAX])
def test_values_that_do_not_fit_are_found_and_refused(filler):
    """Row by row or as columns; those at the positions that `misfits` tells are left out."""
    operations = [op("insert", v="text"), op("insert", 1, v=1), op("insert", 2, v=1 << 40)]
    operations += [op("insert", 3, v=0.0)]  # what a column of floats took
    operations += [op("insert", k, v=k) for k in range(4, 4 + filler)]
    applier = RowApplier(SCHEMA)
    keys = [encode_key([o.values["k"]], SCHEMA.key_types) for o in operations]
    absent = [False] * len(operations)
    with pytest.raises((pa.ArrowException, ValueError)):
        encode_rows(applier.record(applier.apply(operations, keys, absent), 5))
    misfits = applier.misfits(operations)
    assert misfits == {0, 2, 3}
    effects = applier.apply(operations, keys, absent, misfits)
    invalid = RowError.REASON_INVALID
    assert effects.outcomes == [invalid, INSERTED, invalid, invalid, *[INSERTED] * filler]
    assert applier.record(effects, 5).row_count == 1 + filler


# -- counts and records


def test_counts_and_refusals_of_a_part():
    """Each of several flushes that were played together is told of its own operations."""
    operations = [op("insert"), op("insert"), op("delete"), op("delete_ignore"), op("upsert")]
    effects = play(SCHEMA, {}, *operations)
    assert effects.refusals(0, 5) == [(1, PRESENT)]
    assert effects.refusals(1, 3) == [(0, PRESENT)]
    assert effects.refusals(2, 5) == []
    assert effects.counts(0, 2) == WriteCounts(inserted=1)
    assert effects.counts(2, 5) == WriteCounts(inserted=1, deleted=1, ignored=1)


def test_changes_become_a_record_of_the_columns_that_are_set():
    """With a mask for each column that not every change sets; the log reads it back the same."""
    applier, live = RowApplier(SCHEMA), {0: True, 1: True, 2: True}
    operations = [op("update", 0, v=1), op("update", 1, w=2), op("delete", 2), op("insert", 3)]
    keys = [encode_key([o.values["k"]], SCHEMA.key_types) for o in operations]
    effects = applier.apply(operations, keys, [live.get(k, False) for k in range(4)])
    made = applier.record(effects, 5)
    for record in (made, round_trip(made, SCHEMA)):
        assert record.timestamp == 5
        assert record.ops.tolist() == [CHANGE_UPDATE, CHANGE_UPDATE, CHANGE_DELETE, CHANGE_INSERT]
        assert {at: a.to_pylist() for at, a in record.columns.items()} == {
            0: [0, 1, 2, 3],
            1: [1, None, None, None],
            2: [None, 2, None, DEFAULT_W],
        }
        masks = {at: mask.tolist() for at, mask in record.is_set.items()}
        assert masks == {1: [True, False, False, True], 2: [False, True, False, True]}


def test_a_record_has_no_column_that_nobody_sets():
    """Nor masks where all set the same."""
    applier = RowApplier(SCHEMA)
    operations = [op("update", k, v=k) for k in range(2)]
    keys = [encode_key([o.values["k"]], SCHEMA.key_types) for o in operations]
    record = applier.record(applier.apply(operations, keys, [True, True]), 5)
    assert (list(record.columns), record.is_set) == ([0, 1], {})
    deletes = applier.apply([op("delete", 1)], keys[1:], [True])
    assert list(applier.record(deletes, 6).columns) == [0]
