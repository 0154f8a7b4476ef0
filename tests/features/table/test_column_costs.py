"""A column compaction costs what its column takes on disk, and not what the others take."""

from pathlib import Path

from tests.support.machines.column_costs import measured


def test_only_the_column_and_its_deltas_are_read_and_written(tmp_path: Path):
    """Two row groups of ten columns, of which one got new values in 5 % of the rows."""
    costs = measured(tmp_path, row_count=150_000, fraction=0.05, seed=1)
    assert costs.rowset_count == 1
    assert costs.base > 4 * costs.column
    costs.check()
