"""docs/phrasebook.md, the table of Delta on Spark: each call of kudulite runs on a small table."""

import re
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

import kudulite
import kudulite_spark

PAGE = (Path(__file__).parents[2] / "docs" / "phrasebook.md").read_text()
CODE = re.compile(r"`([^`]+)`")


def test_the_calls_beside_those_of_delta_run(spark, tmp_path):
    """In their order; the table has the new row twice, once inserted and once overwritten."""
    path = str(tmp_path / "cities")
    rows = pa.table({"city": ["Lima", "Rome"], "people": [10_000_000, 2_750_000]})
    table = kudulite.connect(tmp_path).create_table("cities", rows, primary_key="city")
    table.insert(rows)
    names = {
        "kudulite": kudulite,
        "kudulite_spark": kudulite_spark,
        "spark": spark,
        "path": path,
        "moment": table.current_timestamp(),
        "df": spark.createDataFrame([("Bern", 134_000)], "city STRING, people LONG"),
    }
    section = PAGE.partition("## Delta on Spark\n")[2].partition("\n## ")[0]
    calls = [line.split(" | ")[1] for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(calls) > 8
    counts = []
    for call in calls:
        value = eval(CODE.search(call)[1], names)
        if isinstance(value, DataFrame):
            value.collect()
        counts.append(len(table))
    assert counts[2:] == [2, 3, 1, 1, 1, 1, 2, 2]
