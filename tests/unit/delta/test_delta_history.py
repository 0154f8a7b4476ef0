"""Joining, ordering, splitting and turning round deltas changes nothing that a read can see."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kudulite.delta.delta_file import (
    OP_DELETE,
    OP_REINSERT,
    OP_UPDATE,
    DeltaColumn,
    DeltaFile,
    DeltaRows,
    create_delta_file,
    without_unset,
)
from kudulite.delta.delta_history import (
    apply_updates,
    invert_changes,
    merge_redo,
    merge_undo,
    split_columns,
    stamped,
    without_ancient,
)
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.new_files import NewFiles

TYPES = {1: pa.int64(), 2: pa.string(), 3: pa.bool_()}
VALUES = {
    1: st.none() | st.integers(-5, 5),
    2: st.none() | st.sampled_from(["", "a", "bb", "\0"]),
    3: st.none() | st.booleans(),
}
ROWS = 5


@dataclass(frozen=True)
class Change:
    """One change of one row; `cells` by column id."""

    rowid: int
    timestamp: int
    op: int
    cells: dict


def to_rows(changes: Sequence[Change]) -> DeltaRows:
    """Changes as arrays, in their order."""
    columns = {}
    for column_id, arrow_type in TYPES.items():
        values = pa.array([c.cells.get(column_id) for c in changes], arrow_type)
        columns[column_id] = DeltaColumn(values, np.array([column_id in c.cells for c in changes]))
    return without_unset(
        DeltaRows(
            np.array([c.rowid for c in changes], np.int64),
            np.array([c.op for c in changes], np.uint8),
            columns,
            np.array([c.timestamp for c in changes], np.uint64),
        )
    )


def to_changes(rows: DeltaRows | None) -> list[Change]:
    """The same back from arrays."""
    if rows is None:
        return []
    assert rows.timestamps is not None
    cells: list[dict] = [{} for _ in rows.rowids]
    for column_id, column in rows.columns.items():
        assert len(column.values) == len(cells)
        is_set = np.ones(len(cells), bool) if column.is_set is None else column.is_set
        for at in np.flatnonzero(is_set).tolist():
            cells[at][column_id] = column.values[at].as_py()
    return [
        Change(*fields)
        for fields in zip(
            rows.rowids.tolist(), rows.timestamps.tolist(), rows.ops.tolist(), cells, strict=True
        )
    ]


def with_parts(changes: list[Change], cuts: list[int], key: Callable) -> list[DeltaRows]:
    """Changes in order of time cut at some places, each part ordered by `key`."""
    bounds = [0, *sorted(cuts), len(changes)]
    parts = [changes[a:b] for a, b in itertools.pairwise(bounds)]
    return [to_rows(sorted(part, key=key)) for part in parts if part] or [to_rows([])]


def backwards(changes: list[Change]) -> list[Change]:
    """Changes in order of time as UNDO has them: by row, the last one first."""
    newest_first = changes[::-1]
    return sorted(newest_first, key=lambda c: c.rowid)


@st.composite
def redo_changes(draw, deletes: bool = True) -> list[Change]:
    """Changes in order of time, several of a row at a moment, none after a row's DELETE."""
    changes: list[Change] = []
    timestamp, dead = 10, set()
    for _ in range(draw(st.integers(0, 14))):
        timestamp += draw(st.integers(0, 2))
        rowid = draw(st.integers(0, ROWS - 1))
        if rowid in dead:
            continue
        if deletes and draw(st.integers(0, 5)) == 0:
            dead.add(rowid)
            changes.append(Change(rowid, timestamp, OP_DELETE, {}))
        else:
            ids = draw(st.sets(st.sampled_from(sorted(TYPES)), min_size=1))
            cells = {c: draw(VALUES[c]) for c in sorted(ids)}
            changes.append(Change(rowid, timestamp, OP_UPDATE, cells))
    return changes


def drawn_base(draw) -> dict[int, list]:
    """Base values of all rows by column id."""
    return {c: draw(st.lists(VALUES[c], min_size=ROWS, max_size=ROWS)) for c in TYPES}


@given(redo_changes(), st.lists(st.integers(0, 14), max_size=3))
def test_merged_redo_is_the_same_changes_by_row_then_time(changes, cuts):
    """Stable: what happened to a row at one moment keeps its order; no change is lost or joined."""
    cuts = [min(cut, len(changes)) for cut in cuts]
    merged = merge_redo(with_parts(changes, cuts, key=lambda c: c.rowid))
    assert to_changes(merged) == sorted(changes, key=lambda c: (c.rowid, c.timestamp))


@given(redo_changes(), st.lists(st.integers(0, 14), max_size=3))
def test_merged_undo_is_the_same_changes_by_row_newest_first(changes, cuts):
    """Parts come newest first; at one moment the newer part's changes stay in front."""
    changes = changes[::-1]
    cuts = [min(cut, len(changes)) for cut in cuts]
    merged = merge_undo(with_parts(changes, cuts, key=lambda c: c.rowid))
    assert to_changes(merged) == sorted(changes, key=lambda c: (c.rowid, -c.timestamp))


def test_undo_that_a_subset_of_columns_left_out_of_order_is_brought_in_order():
    """x was set at 24 and y at 25; y was compacted first, so that x's UNDO is in the newer file."""
    x = to_rows([Change(0, 24, OP_UPDATE, {1: 7})])
    y = to_rows([Change(0, 25, OP_UPDATE, {2: "a"}), Change(0, 3, OP_DELETE, {})])
    merged = merge_undo([x, y])
    assert merged.timestamps is not None
    assert merged.timestamps.tolist() == [25, 24, 3]
    assert to_changes(without_ancient(merged, 24)) == [Change(0, 25, OP_UPDATE, {2: "a"})]


def test_a_column_that_was_widened_between_parts_has_its_widest_type():
    """Also where the wide part is not the first, and where a part does not set the column."""
    narrow = DeltaRows(
        np.array([1]),
        np.array([OP_UPDATE], np.uint8),
        {1: DeltaColumn(pa.array([5], pa.int8())), 2: DeltaColumn(pa.array(["1"]))},
        np.array([3], np.uint64),
    )
    wide = DeltaRows(
        np.array([0]),
        np.array([OP_UPDATE], np.uint8),
        {1: DeltaColumn(pa.array([1 << 40]))},
        np.array([4], np.uint64),
    )
    merged = merge_redo([narrow, wide])
    assert merged.columns[1].values.equals(pa.array([1 << 40, 5]))
    assert to_changes(merged) == [
        Change(0, 4, OP_UPDATE, {1: 1 << 40}),
        Change(1, 3, OP_UPDATE, {1: 5, 2: "1"}),
    ]


@given(redo_changes(), st.integers(5, 40))
def test_only_what_is_newer_than_the_mark_stays(changes, mark):
    """A change at the mark is ancient; columns that nothing sets any more are gone."""
    undo = backwards(changes)
    kept = without_ancient(to_rows(undo), mark)
    assert to_changes(kept) == [c for c in undo if c.timestamp > mark]
    for column in kept.columns.values():
        assert column.is_set is None or column.is_set.any()


@given(redo_changes(), st.sets(st.sampled_from([0, 1, 2, 3])))
def test_split_changes_together_are_what_was_split(changes, column_ids):
    """Updates of the chosen columns on one side; DELETEs and other columns on the other."""
    redo = sorted(changes, key=lambda c: c.rowid)
    moved, rest = split_columns(to_rows(redo), column_ids)

    def cut(change: Change, ids: set[int]) -> Change:
        cells = {c: v for c, v in change.cells.items() if c in ids}
        return Change(change.rowid, change.timestamp, change.op, cells)

    assert to_changes(moved) == [new for c in redo if (new := cut(c, column_ids)).cells]
    others = set(TYPES) - column_ids
    expected = [new for c in redo if (new := cut(c, others)).cells or c.op == OP_DELETE]
    assert to_changes(rest) == expected
    assert (rest is None) == (not expected)


def test_an_update_of_nothing_but_moved_columns_leaves_no_trace_behind():
    """And a mask that says all is no mask."""
    redo = to_rows(
        [
            Change(0, 5, OP_UPDATE, {1: 1}),
            Change(1, 5, OP_UPDATE, {1: 1, 2: "x"}),
            Change(2, 5, OP_UPDATE, {2: "y"}),
        ]
    )
    moved, rest = split_columns(redo, [1])
    assert (moved.rowids.tolist(), sorted(moved.columns)) == ([0, 1], [1])
    assert moved.columns[1].is_set is None
    assert rest is not None
    assert (rest.rowids.tolist(), sorted(rest.columns)) == ([1, 2], [2])
    assert rest.columns[2].is_set is None


@given(st.data())
def test_base_with_inverted_updates_shows_every_past_moment(data):
    """For each T: new base, changes after T undone newest first = old base, changes up to T."""
    changes = data.draw(redo_changes(deletes=False))
    base = drawn_base(data.draw)

    def base_values(column_id: int, rowids: np.ndarray) -> pa.Array:
        assert (np.diff(rowids) > 0).all()
        return pa.array([base[column_id][r] for r in rowids.tolist()], TYPES[column_id])

    redo = sorted(changes, key=lambda c: c.rowid)
    undo = to_changes(invert_changes(to_rows(redo), base_values))
    assert [(c.rowid, c.timestamp, sorted(c.cells)) for c in undo] == [
        (c.rowid, c.timestamp, sorted(c.cells)) for c in backwards(changes)
    ]
    newest = played(base, changes)
    for column_id, arrow_type in TYPES.items():
        start = data.draw(st.integers(0, 1)) if all(c.rowid for c in changes) else 0
        old = pa.array(base[column_id][start:], arrow_type)
        new = apply_updates(to_rows(redo), column_id, start, old)
        assert new.equals(pa.array(newest[column_id][start:], arrow_type))
    for moment in range(9, 45):
        expected = played(base, [c for c in changes if c.timestamp <= moment])
        assert played(newest, [c for c in undo if c.timestamp > moment]) == expected


@given(st.data())
def test_inverted_deletes_and_reinserts_show_every_past_moment(data):
    """A DELETE becomes the REINSERT of the whole row before it, a REINSERT becomes a DELETE."""
    changes: list[Change] = []
    base, dead = drawn_base(data.draw), set()
    for timestamp in range(10, 10 + data.draw(st.integers(0, 14))):
        rowid = data.draw(st.integers(0, ROWS - 1))
        every = {c: data.draw(VALUES[c]) for c in sorted(TYPES)}
        if rowid in dead:
            dead.remove(rowid)
            changes.append(Change(rowid, timestamp, OP_REINSERT, every))
        elif data.draw(st.booleans()):
            dead.add(rowid)
            changes.append(Change(rowid, timestamp, OP_DELETE, {}))
        else:
            ids = data.draw(st.sets(st.sampled_from(sorted(TYPES)), min_size=1))
            changes.append(Change(rowid, timestamp, OP_UPDATE, {c: every[c] for c in ids}))

    def base_values(column_id: int, rowids: np.ndarray) -> pa.Array:
        assert (np.diff(rowids) > 0).all()
        return pa.array([base[column_id][r] for r in rowids.tolist()], TYPES[column_id])

    redo = to_rows(sorted(changes, key=lambda c: c.rowid))
    unset = DeltaColumn(pa.nulls(len(changes), pa.int64()), np.zeros(len(changes), dtype=bool))
    unset_columns = {
        c: DeltaColumn(unset.values.cast(arrow_type), unset.is_set)
        for c, arrow_type in TYPES.items()
    }
    redo = replace(redo, columns=unset_columns | dict(redo.columns))
    undo = to_changes(invert_changes(redo, base_values))
    assert [(c.rowid, c.timestamp) for c in undo] == [
        (c.rowid, c.timestamp) for c in backwards(changes)
    ]
    assert all(c.cells.keys() == TYPES.keys() for c in undo if c.op == OP_REINSERT)
    assert all(not c.cells for c in undo if c.op == OP_DELETE)
    newest, alive = played(base, changes), set(range(ROWS)) - dead
    for moment in range(9, 25):
        then, live = played(newest, [c for c in undo if c.timestamp > moment]), set(alive)
        for change in undo:
            if change.timestamp > moment and change.op != OP_UPDATE:
                (live.add if change.op == OP_REINSERT else live.remove)(change.rowid)
        expected = played(base, [c for c in changes if c.timestamp <= moment])
        for rowid in live:
            assert [then[c][rowid] for c in TYPES] == [expected[c][rowid] for c in TYPES]
        was = {r for r in range(ROWS) if last_op(changes, r, moment) != OP_DELETE}
        assert live == was


def last_op(changes: list[Change], rowid: int, moment: int) -> int | None:
    """The newest change of a row up to a moment."""
    ops = [c.op for c in changes if c.rowid == rowid and c.timestamp <= moment]
    return ops[-1] if ops else None


@given(redo_changes(deletes=False), st.data())
def test_updates_of_every_row_give_what_single_updates_give(changes, data):
    """Where no base value stays, none is looked at."""
    every = [
        Change(rowid, 9, OP_UPDATE, {c: data.draw(VALUES[c]) for c in TYPES})
        for rowid in range(ROWS)
    ]
    newest = played({c: [None] * ROWS for c in TYPES}, [*every, *changes])
    redo = to_rows(sorted([*every, *changes], key=lambda c: c.rowid))
    for column_id, arrow_type in TYPES.items():
        base = pa.array(data.draw(st.lists(VALUES[column_id], min_size=ROWS, max_size=ROWS)))
        applied = apply_updates(redo, column_id, 0, base.cast(arrow_type))
        assert applied.equals(pa.array(newest[column_id], arrow_type))


def played(base: dict[int, list], changes: Sequence[Change]) -> dict[int, list]:
    """Base values with the cells of changes set, one after the other."""
    rows = {c: list(values) for c, values in base.items()}
    for change in changes:
        for column_id, value in change.cells.items():
            rows[column_id][change.rowid] = value
    return rows


def test_updates_from_before_a_column_was_widened_fit_its_base():
    """Base data and UNDO have the column's type of now."""
    redo = DeltaRows(
        np.array([1, 1]),
        np.array([OP_UPDATE] * 2, np.uint8),
        {1: DeltaColumn(pa.array([5, 6], pa.int8()))},
        np.array([3, 4], np.uint64),
    )
    base = pa.array([1 << 40, 1 << 41])
    assert apply_updates(redo, 1, 0, base).equals(pa.array([1 << 40, 6]))
    undo = invert_changes(redo, lambda _, rowids: base.take(pa.array(rowids)))
    assert undo.columns[1].values.equals(pa.array([5, 1 << 41]))


def test_inverted_updates_without_timestamps_have_none():
    """A file with one timestamp keeps it in its entry."""
    redo = DeltaRows(
        np.array([2, 4]),
        np.array([OP_UPDATE] * 2, np.uint8),
        {1: DeltaColumn(pa.array([1, 2]))},
    )
    undo = invert_changes(redo, lambda _, rowids: pa.array([10 * int(r) for r in rowids]))
    assert undo.timestamps is None
    assert undo.columns[1].values.to_pylist() == [20, 40]


def test_stamped_rows_have_a_timestamp_each(tmp_path: Path):
    """Whether the file keeps them per row, or its entry keeps one for all."""
    rows = to_rows([Change(1, 5, OP_REINSERT, {1: 2}), Change(1, 4, OP_DELETE, {})])
    meta = create_delta_file(NewFiles(LocalStorage()), tmp_path, "undo", rows)
    assert to_changes(
        stamped(DeltaFile(LocalStorage(), tmp_path / meta.ref.name, meta, 2))
    ) == to_changes(rows)
    one = DeltaRows(np.array([0, 3]), np.array([OP_DELETE] * 2, np.uint8), {})
    meta = create_delta_file(NewFiles(LocalStorage()), tmp_path, "redo", one).stamped(9)
    found = stamped(DeltaFile(LocalStorage(), tmp_path / meta.ref.name, meta, 4))
    assert found.timestamps is not None
    assert (found.timestamps.dtype, found.timestamps.tolist()) == (np.uint64, [9, 9])
