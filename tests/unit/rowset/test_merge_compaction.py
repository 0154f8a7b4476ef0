"""Merging compactions show at every moment what their inputs showed."""

import sys

import pytest
from merge_machine import MergeMachine

from kudulite.rowset import merge_compaction, rowset_writer


def small_limits(patch: pytest.MonkeyPatch, group: int, rowset: int, window: int) -> None:
    """Row groups, rowsets and windows of a few rows each."""
    for name, module in list(sys.modules.items()):
        if name.startswith("kudulite.") and hasattr(module, "ROW_GROUP_ROWS"):
            patch.setattr(module, "ROW_GROUP_ROWS", group)
    patch.setattr(rowset_writer, "ROWSET_ROWS_MAX", rowset)
    patch.setattr(merge_compaction, "_WINDOW_ROWS", window)


@pytest.mark.parametrize("seed", range(16))
def test_merged_rowsets_read_the_same_at_every_moment(seed, tmp_path, monkeypatch):
    """Random histories, merged again and again: each legal past and the present stay the same."""
    small_limits(monkeypatch, *[(1, 1, 1), (2, 4, 3), (3, 3, 5), (100, 100, 100)][seed % 4])
    machine = MergeMachine(tmp_path, seed)
    machine.run(40)
