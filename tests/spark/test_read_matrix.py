"""Every way of reading gives the same rows, under random filters (benchmarks/trials.py: many).

The expected rows are those of a dictionary, and what a filter means is said in plain Python.
"""

from tests.support.spark.read_matrix import run
from tests.support.spark.spark_tables import configured


def test_every_way_of_reading_gives_the_same_rows(spark, tmp_path):
    """With all types, NULL, NaN, -0.0, odd texts and days, projections, limits, now and before."""
    # Compiling a filter takes longer than its few rows.
    with configured(spark, {"spark.sql.codegen.wholeStage": "false"}):
        counts = run(spark, tmp_path / "t", 1, 12)
    assert {"source", "front", "read_table", "scan", "tokens"} <= set(counts)
