"""A DeltaMemStore equals a list of changes: as a whole, cut at any count, and row by row."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudulite.delta import delta_mem_store
from kudulite.delta.delta_file import OP_DELETE, OP_REINSERT, OP_UPDATE, DeltaColumn, DeltaRows
from kudulite.delta.delta_mem_store import DeltaMemSnapshot, DeltaMemStore

TYPES = {1: pa.int64(), 2: pa.string(), 3: pa.bool_()}
VALUES = {
    1: st.none() | st.integers(-5, 5),
    2: st.none() | st.sampled_from(["", "a", "bb"]),
    3: st.none() | st.booleans(),
}


@dataclass(frozen=True)
class Change:
    """One change; `cells` by column id."""

    rowid: int
    timestamp: int
    op: int
    cells: dict


@st.composite
def batches(draw: Callable) -> list[list[Change]]:
    """Appends in order of time; rows are deleted and come back in turn."""
    dead: set[int] = set()
    timestamp = 5
    result = []
    for size in draw(st.lists(st.integers(0, 4), max_size=12)):
        batch = []
        for _ in range(size):
            rowid = draw(st.integers(0, 5))
            timestamp += draw(st.integers(0, 2))
            if rowid in dead:
                op, chosen = OP_REINSERT, set(TYPES)
                dead.discard(rowid)
            elif draw(st.integers(0, 3)):
                op, chosen = OP_UPDATE, draw(st.sets(st.sampled_from(sorted(TYPES))))
            else:
                op, chosen = OP_DELETE, set()
                dead.add(rowid)
            batch.append(Change(rowid, timestamp, op, {c: draw(VALUES[c]) for c in sorted(chosen)}))
        result.append(batch)
    return result


def delta_rows(changes: Sequence[Change]) -> DeltaRows:
    """Changes as arrays, in their order."""
    columns = {}
    for column_id, arrow_type in TYPES.items():
        is_set = np.array([column_id in change.cells for change in changes], bool)
        if is_set.any():
            values = pa.array([change.cells.get(column_id) for change in changes], arrow_type)
            columns[column_id] = DeltaColumn(values, None if is_set.all() else is_set)
    return DeltaRows(
        rowids=np.array([change.rowid for change in changes], np.int64),
        ops=np.array([change.op for change in changes], np.uint8),
        columns=columns,
        timestamps=np.array([change.timestamp for change in changes], np.uint64),
    )


def changes_of(rows: DeltaRows | DeltaMemSnapshot) -> list[Change]:
    """Arrays as changes again."""
    if isinstance(rows, DeltaRows):
        found = {c: rows.columns.get(c) for c in TYPES}
        stamps = rows.timestamps
    else:
        found = {c: rows.column(c) for c in TYPES}
        stamps = rows.timestamps()
    assert stamps is not None
    result = []
    for at, (rowid, op) in enumerate(zip(rows.rowids.tolist(), rows.ops.tolist(), strict=True)):
        cells = {
            c: column.values[at].as_py()
            for c, column in found.items()
            if column is not None and (column.is_set is None or column.is_set[at])
        }
        result.append(Change(rowid, int(stamps[at]), op, cells))
    return result


def check(snapshot: DeltaMemSnapshot, changes: Sequence[Change]) -> None:
    """Compare a snapshot with the changes that it should hold."""
    assert changes_of(snapshot) == list(changes)
    assert changes_of(snapshot.to_rows()) == sorted(changes, key=lambda change: change.rowid)
    meta = snapshot.meta
    assert (len(snapshot), meta.row_count) == (len(changes), len(changes))
    assert meta.timestamp_min == min((c.timestamp for c in changes), default=0)
    assert meta.timestamp_max == max((c.timestamp for c in changes), default=0)
    assert meta.delete_count == sum(c.op == OP_DELETE for c in changes)
    assert meta.reinsert_count == sum(c.op == OP_REINSERT for c in changes)
    for column_id in TYPES:
        count = sum(column_id in change.cells for change in changes)
        assert meta.update_counts.get(column_id, 0) == count
    for timestamp in {0, 1 << 60, *(change.timestamp for change in changes)}:
        for rowid in range(6):
            own = [c for c in changes if c.rowid == rowid and c.timestamp <= timestamp]
            assert snapshot.newest_op(rowid, timestamp) == (own[-1].op if own else None)
            for column_id in TYPES:
                values = [c.cells[column_id] for c in own if column_id in c.cells]
                cell = snapshot.newest_cell(rowid, column_id, timestamp)
                assert (cell is None) == (not values)
                assert cell is None or cell.as_py() == values[-1]


@given(batches(), st.data())
def test_a_store_equals_a_list_of_changes_at_every_count(appended: list[list[Change]], data):
    """Parts are joined while snapshots of them are held; a snapshot may end inside an append."""
    store = DeltaMemStore()
    changes: list[Change] = []
    held = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_mem_store, "FAN_IN", 3)
        for batch in appended:
            store.append(delta_rows(batch))
            changes += batch
            held.append((store.snapshot(), list(changes)))
            for rowid in range(6):
                last = next((c for c in reversed(changes) if c.rowid == rowid), None)
                assert store.is_deleted(rowid) == (last is not None and last.op == OP_DELETE)
        assert store.row_count == len(changes)
        assert changes_of(store.snapshot().to_rows()) == sorted(
            changes, key=lambda change: change.rowid
        )
        for snapshot, expected in held:
            check(snapshot, expected)
        count = data.draw(st.integers(0, len(changes) + 1))
        check(store.snapshot(count), changes[:count])


def test_timestamps_must_not_fall():
    """Time is the order of the log; a change older than the newest is a broken invariant."""
    store = DeltaMemStore()
    store.append(delta_rows([Change(0, 7, OP_UPDATE, {1: 1})]))
    with pytest.raises(AssertionError, match="6 after 7"):
        store.append(delta_rows([Change(0, 6, OP_UPDATE, {1: 2})]))
    assert store.row_count == 1


def test_readers_meanwhile_see_a_prefix():
    """Whatever the moment, a snapshot is the first so many changes, its index included."""
    store = DeltaMemStore()
    problems: list[str] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            snapshot = store.snapshot()
            column = snapshot.column(1)
            values = [] if column is None else column.values.to_pylist()
            if values != list(range(len(snapshot))):
                problems.append(f"{len(values)} of {len(snapshot)}")
            if len(snapshot):
                newest = len(snapshot) - 1
                cell = snapshot.newest_cell(newest % 10, 1, 1 << 60)
                if cell is None or cell.as_py() != newest:
                    problems.append(f"row {newest % 10}: {cell}, expected {newest}")

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(6000):
        store.append(delta_rows([Change(i % 10, i + 1, OP_UPDATE, {1: i})]))
    done.set()
    for thread in threads:
        thread.join()
    assert not problems, problems[:3]


def test_nbytes_follows_the_values():
    """The size by which memory is flushed includes long strings and the index."""
    store = DeltaMemStore()
    for i in range(200):
        store.append(delta_rows([Change(i, i + 1, OP_UPDATE, {2: "x" * 1000})]))
    assert 200_000 < store.nbytes < 500_000
