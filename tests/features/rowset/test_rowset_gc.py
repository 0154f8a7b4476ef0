"""A rowset's entry alone shows exactly which files no read at the mark or later needs."""

from dataclasses import replace
from pathlib import Path

import pytest

from kudulite.delta.delta_file import DeltaFileMeta
from kudulite.rowset.rowset_meta import is_fully_ancient, without_ancient_undo
from kudulite.storage.storage import FileRef
from tests.support.machines.delta_machine import DeltaMachine
from tests.support.tables.small_rowsets import SmallRowSet, schema_of
from tests.support.tiers import tiered


def undo(name: str, oldest: int, newest: int) -> DeltaFileMeta:
    """An entry of an UNDO file."""
    return DeltaFileMeta(FileRef(name, 10, 1), None, oldest, newest, 2, 0, 0, {1: 2})


@pytest.fixture
def rowset(tmp_path: Path) -> SmallRowSet:
    """Two rows."""
    return SmallRowSet.write(tmp_path, schema_of(a="int64"), {"a": [1, 2]})


def test_a_file_leaves_when_its_newest_change_is_at_the_mark(rowset: SmallRowSet):
    """Its oldest does not count; and a file in the middle may leave."""
    files = (undo("0", 30, 40), undo("1", 12, 20), undo("2", 11, 21))
    meta = replace(rowset.meta, undo=files)
    assert without_ancient_undo(meta, 19).undo == files
    assert without_ancient_undo(meta, 20).undo == (files[0], files[2])
    assert without_ancient_undo(meta, 39).undo == (files[0],)
    assert without_ancient_undo(meta, 40).undo == ()
    assert without_ancient_undo(meta, 5) is meta


def test_a_rowset_that_was_ended_is_dead_from_then_on(rowset: SmallRowSet):
    """A snapshot at its end does not see it any more, one before does."""
    ended = replace(rowset.meta, delete_timestamp=30)
    assert [is_fully_ancient(ended, mark) for mark in (29, 30, 31)] == [False, True, True]
    assert not is_fully_ancient(rowset.meta, 1 << 60)


def test_a_rowset_is_dead_when_all_rows_were_deleted_by_the_mark(rowset: SmallRowSet):
    """Updates of a row are not newer than its DELETE, so that files' newest moments are exact."""
    rowset.add_redo((0, 20, {"a": 5}), (0, 21, None))
    assert not is_fully_ancient(rowset.meta, 1 << 60)
    rowset.add_redo((1, 25, {"a": 7}), (1, 30, None))
    assert [is_fully_ancient(rowset.meta, mark) for mark in (21, 29, 30)] == [False, False, True]


@tiered("seed", range(20))
def test_dead_means_that_no_read_finds_a_row(seed: int, tmp_path: Path):
    """And the other way round: at the first mark of which it is said, not one before."""
    machine = DeltaMachine(seed, tmp_path)
    for _ in range(4):
        machine.redo()
    for mark in range(10, machine.now + 2):
        live = any(machine.model.row(key, mark) is not None for key in machine.keys)
        later = any(timestamp > mark for timestamp in machine.model.timestamps())
        if is_fully_ancient(machine.meta, mark):
            assert not live
        else:
            assert live or later
