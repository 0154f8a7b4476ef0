"""Adjacent delta files become one in their place, durable before its entry; no other changes."""

from dataclasses import replace
from pathlib import Path

import pytest

from kudulite.delta.delta_file import OP_UPDATE
from kudulite.rowset.delta_compaction import merge_redo_files, merge_undo_files
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.new_files import NewFiles
from tests.support.doubles.killing_storage import KilledError, KillingStorage
from tests.support.machines.delta_machine import DeltaMachine
from tests.support.tables.small_rowsets import SmallRowSet, schema_of


@pytest.fixture
def rowset(tmp_path: Path) -> SmallRowSet:
    """Three rows and four REDO files, which set different columns."""
    small = SmallRowSet.write(
        tmp_path, schema_of(a="int64", s="string"), {"a": [1, 2, 3], "s": ["x", "y", None]}
    )
    small.add_redo((0, 20, {"a": 10}), (2, 20, {"a": 30}))
    small.add_redo((0, 25, {"s": None}), (0, 25, {"s": "xx"}))
    small.add_redo((0, 30, {"a": 11, "s": "xxx"}), (1, 31, None))
    small.add_redo((2, 40, {"a": None}))
    return small


def test_files_in_the_middle_become_one_at_their_place(rowset: SmallRowSet):
    """The order of REDO files is history: what is before and behind stays so, untouched."""
    old = rowset.meta
    before = {t: rowset.rows(t) for t in range(9, 45)}
    rowset.meta = merge_redo_files(NewFiles(LocalStorage()), rowset.set_folder, old, 1, 3)
    first, merged, last = rowset.meta.redo
    assert (first, last) == (old.redo[0], old.redo[3])
    assert (merged.row_count, merged.delete_count, merged.update_counts) == (4, 1, {1: 1, 2: 3})
    assert (merged.timestamp_min, merged.timestamp_max) == (25, 31)
    assert rowset.meta.live_row_count == old.live_row_count
    assert {t: rowset.rows(t) for t in range(9, 45)} == before


def test_nothing_is_coalesced(rowset: SmallRowSet):
    """Not even two changes of a cell at one moment; they keep their order."""
    rowset.meta = merge_redo_files(NewFiles(LocalStorage()), rowset.set_folder, rowset.meta, 0, 4)
    (merged,) = rowset.meta.redo
    changes = [(rowid, time, cells) for rowid, time, _, cells in rowset.delta(merged)]
    assert changes == [
        (0, 20, {1: 10}),
        (0, 25, {2: None}),
        (0, 25, {2: "xx"}),
        (0, 30, {1: 11, 2: "xxx"}),
        (1, 31, {}),
        (2, 20, {1: 30}),
        (2, 40, {1: None}),
    ]


def test_files_of_one_commit_keep_one_timestamp_for_all(tmp_path: Path):
    """As they came: the timestamp is in the entry, and not per row."""
    small = SmallRowSet.write(tmp_path, schema_of(a="int64"), {"a": [1, 2]})
    small.add_redo((0, 20, {"a": 10}))
    small.add_redo((1, 20, {"a": 20}))
    merged = merge_redo_files(NewFiles(LocalStorage()), small.set_folder, small.meta, 0, 2)
    assert [delta.timestamp for delta in merged.redo] == [20]


def test_undo_up_to_the_mark_leaves_with_the_oldest_file_only(tmp_path: Path):
    """In front of older files all stays, for a row's steps back must not have a gap."""
    seed = next(
        s for s in range(1000) if len(machine_with_undo(s, tmp_path / str(s)).meta.undo) > 2
    )
    machine = machine_with_undo(seed, tmp_path / "again")
    machine.mark = machine.now
    folder, meta = machine.set_folder, machine.meta
    counts = [delta.row_count for delta in meta.undo]
    front = merge_undo_files(NewFiles(LocalStorage()), folder, meta, 0, 2, mark=machine.mark)
    assert [delta.row_count for delta in front.undo] == [counts[0] + counts[1], *counts[2:]]
    assert merge_undo_files(
        NewFiles(LocalStorage()), folder, meta, 1, len(counts), mark=machine.mark
    ).undo == (meta.undo[0],)


def machine_with_undo(seed: int, folder: Path) -> DeltaMachine:
    """A rowset after some compactions of columns."""
    folder.mkdir()
    machine = DeltaMachine(seed, folder)
    for _ in range(4):
        machine.redo()
        machine.major()
    return machine


@pytest.mark.parametrize("kind", ["redo", "undo"])
def test_files_are_durable_before_their_entry_and_a_crash_changes_nothing(
    rowset: SmallRowSet, kind: str
):
    """Stopped before any durable step, the files that were there are as they were."""
    if kind == "undo":
        rowset.meta = replace(rowset.meta, undo=rowset.meta.redo)
    files = {path.name: path.read_bytes() for path in rowset.set_folder.iterdir()}
    for step in range(100):
        new = NewFiles(KillingStorage(step))
        try:
            if kind == "redo":
                merge_redo_files(new, rowset.set_folder, rowset.meta, 1, 3)
            else:
                merge_undo_files(new, rowset.set_folder, rowset.meta, 1, 3, mark=0)
            new.sync()
            break
        except KilledError:
            now = {path.name: path.read_bytes() for path in rowset.set_folder.iterdir()}
            assert files.items() <= now.items()
    assert step == 3  # create, fsync of the file, fsync of the folder


def test_undo_of_several_files_is_brought_in_order_of_time(tmp_path: Path):
    """The hole that compacting columns apart leaves: x was set at 24, y at 25, y came first."""
    small = SmallRowSet.write(tmp_path, schema_of(x="int64", y="int64"), {"x": [1], "y": [2]})
    newer = small.add_redo((0, 24, {"x": 1}))
    older = small.add_redo((0, 25, {"y": 2}))
    small.meta = replace(small.meta, redo=(), undo=(newer, older))
    merged = merge_undo_files(NewFiles(LocalStorage()), small.set_folder, small.meta, 0, 2, mark=0)
    assert small.delta(merged.undo[0]) == [(0, 25, OP_UPDATE, {2: 2}), (0, 24, OP_UPDATE, {1: 1})]
    cut = merge_undo_files(NewFiles(LocalStorage()), small.set_folder, small.meta, 0, 2, mark=24)
    assert small.delta(cut.undo[0]) == [(0, 25, OP_UPDATE, {2: 2})]
