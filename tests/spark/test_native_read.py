"""read_table: the rows of format("kudulite") and of the embedded scan, whoever reads them."""

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from spark_tables import load
from typed_tables import TypedTable, random_table

import kudulite_spark
from kudulite import NativeLimits
from kudulite_spark import native_read

# Nearly all rows from Parquet; and nearly none.
NATIVE = NativeLimits(excluded_fraction_max=1)
TOKENS = NativeLimits(excluded_fraction_max=1, handed_bytes_max=0)
WHOLE = NativeLimits(excluded_rows_max=0, handed_bytes_max=0)


def content(found: DataFrame | pa.Table, schema: pa.Schema) -> list[str]:
    """All rows, bit by bit, in an order."""
    table = found.toArrow() if isinstance(found, DataFrame) else found
    return sorted(map(repr, table.select(schema.names).cast(schema).to_pylist()))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> TypedTable:
    """A random table with every type, changed in every way."""
    found = random_table(tmp_path_factory.mktemp("native") / "t", 11, step_count=8)
    found.overwrite()
    found.step()
    found.rows()
    found.moments.append(found.table.current_timestamp())
    return found


@pytest.mark.parametrize("limits", [NATIVE, NativeLimits(), TOKENS, WHOLE], ids=range(4))
def test_rows_are_those_of_the_source_and_of_a_scan(spark, made, limits, monkeypatch):
    """At several moments, with all types, NULL, NaN, -0.0 and days of an older calendar."""
    monkeypatch.setattr(native_read, "LIMITS", limits)
    schema = made.table.arrow_schema
    for moment in made.moments[1::3] if limits is NATIVE else made.moments[-1:]:
        expected = content(made.table.scan(at=moment).to_arrow(), schema)
        frame = kudulite_spark.read_table(spark, made.path, snapshot=moment)
        assert content(frame, schema) == expected, moment
        if limits is NATIVE:
            source = load(spark, made.path, snapshotTimestamp=str(moment))
            assert content(source, schema) == expected
            assert frame.schema.simpleString() == source.schema.simpleString()
            assert [field.metadata for field in frame.schema] == [
                field.metadata for field in source.schema
            ]


def test_altered_columns_are_read_by_their_ids(spark, tmp_path, monkeypatch):
    """Files of several layouts: renamed, added, dropped and added again."""
    monkeypatch.setattr(native_read, "LIMITS", NATIVE)
    altered = random_table(tmp_path / "t", 21, step_count=3)
    before = altered.table.current_timestamp()
    altered.alter()
    altered.table.upsert(altered.table.scan(limit=15).to_arrow())
    schema = altered.table.arrow_schema
    for moment in (before, None):
        expected = content(altered.table.scan(at=moment).to_arrow(), schema)
        frame = kudulite_spark.read_table(spark, altered.path, snapshot=moment)
        assert content(frame, schema) == expected
    assert frame.filter("added = 17 AND i16 IS NULL").count() == len(
        [row for row in altered.table.scan().to_pylist() if row["added"] == 17 and not row["i16"]]
    )
