"""Every way of reading gives the same rows, under random filters (benchmarks/read_matrix.py: many).

The expected rows are those of a dictionary, and what a filter means is said in plain Python."""

import pytest
from read_matrix import run


@pytest.mark.parametrize("seed", [1, 3])
def test_every_way_of_reading_gives_the_same_rows(spark, tmp_path, seed):
    """With all types, NULL, NaN, -0.0, odd texts and days, projections, limits, now and before."""
    counts = run(spark, tmp_path / "t", seed, 20)
    assert set(counts) == {"source", "option", "front", "read_table", "where", "scan", "tokens"}
