"""Folding DeltaFiles and applying them equals changing the cells of a dictionary one by one."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudulite.delta import delta_applier
from kudulite.delta.delta_applier import DeltaApplier, difference, distinct
from kudulite.delta.delta_file import (
    OP_DELETE,
    OP_UPDATE,
    DeltaColumn,
    DeltaFile,
    DeltaRows,
    create_delta_file,
)
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.new_files import NewFiles

COLUMNS = {1: pa.int64(), 2: pa.string(), 3: pa.bool_(), 4: pa.decimal128(9, 2)}
VALUES = {
    1: st.none() | st.integers(-5, 5),
    2: st.none() | st.sampled_from(["", "a", "bb", "\0"]),
    3: st.none() | st.booleans(),
    4: st.none() | st.integers(-5, 5).map(lambda i: i),
}


@dataclass
class Change:
    """One delta: `cells` by column id; None in place of them is a DELETE."""

    rowid: int
    timestamp: int
    cells: dict | None


@dataclass
class History:
    """Base rows and files of changes, oldest first."""

    row_count: int
    base: dict[int, list]
    files: list[list[Change]]
    has_timestamps: list[bool]


@st.composite
def histories(draw) -> History:
    """Any sequence of files in which a deleted row is not changed again."""
    row_count = draw(st.integers(1, 9))
    base = {c: draw(st.lists(VALUES[c], min_size=row_count, max_size=row_count)) for c in COLUMNS}
    dead: set[int] = set()
    files, has_timestamps, timestamp = [], [], 10
    for _ in range(draw(st.integers(0, 4))):
        each_has_its_own = draw(st.booleans())
        changes: list[Change] = []
        for _ in range(draw(st.integers(1, 8))):
            rowid = draw(st.integers(0, row_count - 1))
            if rowid in dead or (
                not each_has_its_own and rowid in {change.rowid for change in changes}
            ):
                continue
            timestamp += draw(st.integers(0, 1)) if each_has_its_own else 0
            cells = None
            if draw(st.integers(0, 3)):
                chosen = draw(st.sets(st.sampled_from(sorted(COLUMNS))))
                cells = {c: draw(VALUES[c]) for c in chosen}
            else:
                dead.add(rowid)
            changes.append(Change(rowid, timestamp, cells))
        timestamp += 1
        if changes:
            files.append(changes)
            has_timestamps.append(each_has_its_own)
    return History(row_count, base, files, has_timestamps)


def write(folder: Path, changes: list[Change], has_timestamps: bool, count: int):
    """Write the changes of one file, sorted by row id, then order of time."""
    ordered = sorted(changes, key=lambda change: change.rowid)
    columns = {}
    for c, arrow in COLUMNS.items():
        is_set = np.array([change.cells is not None and c in change.cells for change in ordered])
        if is_set.any():
            values = pa.array([(change.cells or {}).get(c) for change in ordered], arrow)
            columns[c] = DeltaColumn(values, None if is_set.all() else is_set)
    ops = [OP_DELETE if change.cells is None else OP_UPDATE for change in ordered]
    stamps = np.array([change.timestamp for change in ordered]) if has_timestamps else None
    rowids = np.array([change.rowid for change in ordered], np.int64)
    rows = DeltaRows(rowids, np.array(ops, np.uint8), columns, stamps)
    meta = create_delta_file(NewFiles(LocalStorage()), folder, "redo", rows)
    if not has_timestamps:
        meta = meta.stamped(changes[0].timestamp)
    assert type(meta).from_json(meta.to_json()) == meta
    return DeltaFile(LocalStorage(), folder / meta.ref.name, meta, count)


def expected(history: History, snapshot: int) -> tuple[dict[int, list], set[int]]:
    """The cells and the deleted rows that a snapshot shows."""
    cells = {c: list(values) for c, values in history.base.items()}
    dead = set()
    for changes in history.files:
        for change in changes:
            if change.timestamp > snapshot:
                continue
            if change.cells is None:
                dead.add(change.rowid)
                continue
            for c, value in change.cells.items():
                cells[c][change.rowid] = value
    return cells, dead


@pytest.mark.parametrize("factor", [0, 9], ids=["by sorting", "by a table"])
@given(history=histories(), data=st.data())
def test_an_overlay_equals_a_dictionary_at_every_snapshot(factor, history: History, data):
    """Whole files or single rows may be after the snapshot; any range or rows may be asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_applier, "_DENSE_FACTOR", factor)
        patch.setattr(delta_applier, "_IDS_PER_PROBE", factor)
        check_every_snapshot(history, data)


@pytest.mark.parametrize("first", [0, 7_000_000])
@pytest.mark.parametrize("span", [1, 10, 100_000])
@pytest.mark.parametrize("number_count", [0, 1, 30, 400])
def test_places_are_found_among_many_numbers_and_few(first, span, number_count):
    """Dense probes and scattered ones, near row 0 and far from it, and none at all."""
    rng = np.random.default_rng(span)
    count = 400 * span
    numbers = first + np.sort(rng.choice(count, min(number_count, count), replace=False))
    for probe_count in (0, 1, 400):
        probes = first + rng.integers(0, count, probe_count)
        at, is_found = delta_applier.places_in(numbers, probes)
        assert is_found.tolist() == np.isin(probes, numbers).tolist()
        assert numbers[at[is_found]].tolist() == probes[is_found].tolist()


def check_every_snapshot(history: History, data) -> None:
    """Compare all that an overlay answers with a dictionary."""
    moments = {change.timestamp for changes in history.files for change in changes}
    with tempfile.TemporaryDirectory() as folder:
        files = [
            write(Path(folder), changes, own, history.row_count)
            for changes, own in zip(history.files, history.has_timestamps, strict=True)
        ]
        for snapshot in sorted({0, *moments, *(m - 1 for m in moments), 1 << 60}):
            applier = DeltaApplier(files, snapshot)
            cells, dead = expected(history, snapshot)
            assert applier.deleted.tolist() == sorted(dead)
            start = data.draw(st.integers(0, history.row_count - 1))
            stop = data.draw(st.integers(start + 1, history.row_count))
            live = applier.selection(start, stop)
            found = [True] * (stop - start) if live is None else live.tolist()
            assert found == [row not in dead for row in range(start, stop)]
            rowids = np.array(
                data.draw(st.lists(st.integers(0, history.row_count - 1), min_size=1)), np.int64
            )
            assert applier.is_deleted(rowids).tolist() == [row in dead for row in rowids]
            check_few(applier, history, cells, start, stop)
            whole = [pa.array(history.base[c], arrow) for c, arrow in COLUMNS.items()]
            of_rows = [base.take(pa.array(rowids)) for base in whole]
            in_rows = applier.apply_rows(of_rows, list(COLUMNS), rowids)
            for base, found, (c, arrow) in zip(whole, in_rows, COLUMNS.items(), strict=True):
                assert found.equals(pa.array([cells[c][row] for row in rowids], arrow))
                in_range = applier.apply_range(base.slice(start, stop - start), c, start)
                assert in_range.equals(pa.array(cells[c][start:stop], arrow))
                chosen = np.flatnonzero(np.arange(stop - start) % 2 == 0)
                picked = applier.apply_range(base.slice(start, stop - start), c, start, chosen)
                assert picked.equals(pa.array(cells[c][start:stop:2], arrow))
                # What a predicate may be checked against statistics for is really unchanged.
                if not applier.changes_column(c):
                    assert cells[c] == history.base[c]
            if applier.is_empty:
                assert cells == history.base
                assert not dead


def check_few(applier: DeltaApplier, history: History, cells: dict, start: int, stop: int) -> None:
    """All columns together, of all rows of a range and of every second one, as copies."""
    types = COLUMNS.items()
    base = [pa.array(history.base[c], arrow).slice(start, stop - start) for c, arrow in types]
    for step in (1, 2):
        chosen = None if step == 1 else np.arange(0, stop - start, step)
        found = applier.apply_few(base, list(COLUMNS), start, chosen)
        for array, before, (c, arrow) in zip(found, base, types, strict=True):
            assert array.equals(pa.array(cells[c][start:stop:step], arrow))
            assert not set(addresses(array)) & set(addresses(before))


def addresses(array: pa.Array) -> list[int]:
    return [buffer.address for buffer in array.buffers() if buffer is not None and buffer.size]


@given(st.lists(st.integers(0, 40)), st.lists(st.integers(0, 60)))
def test_row_ids_are_made_distinct_and_subtracted(some: list[int], others: list[int]):
    """As sets of Python, in ascending order; `others` may be above all row ids."""
    rowids, without = (distinct(np.array(ids, np.int64)) for ids in (some, others))
    assert rowids.tolist() == sorted(set(some))
    assert difference(rowids, without).tolist() == sorted(set(some) - set(others))
