"""The front's format of base files: excluded rows are left out, and added rows read, in every way
that Spark reads Parquet."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest
from pyspark.sql import functions as sf

import kudulite
import kudulite_spark
from kudulite import NativeLimits, Table
from kudulite_spark import native_read
from kudulite_spark.session import install_front
from tests.support.tables.typed_tables import TypedTable, random_table
from tests.support.tiers import tiered

COUNT = 300_000
# Row groups have 131,072 rows, and pages 8,192.
RANGES = [
    (0, COUNT + 1000),
    (131_072, 262_144),
    (262_140, COUNT + 1000),
    (131_070, 131_075),
    (150_000, 150_100),
    (COUNT, COUNT + 1000),
]
SETTINGS = {
    "as they are": {},
    "small batches": {"spark.sql.parquet.columnarReaderBatchSize": "999"},
    "files in splits": {"spark.sql.files.maxPartitionBytes": "200000"},
    "single rows": {"spark.sql.parquet.enableVectorizedReader": "false"},
    "rows of batches": {"spark.sql.codegen.maxFields": "1"},
    "no code generation": {"spark.sql.codegen.wholeStage": "false"},
    "off the heap": {"spark.sql.columnVector.offheap.enabled": "true"},
    "no filters pushed": {"spark.sql.parquet.filterPushdown": "false"},
    "nested by rows": {"spark.sql.parquet.enableNestedColumnVectorizedReader": "false"},
}


@pytest.fixture(autouse=True)
def _front(spark) -> Iterator[None]:
    assert install_front(spark)
    spark.conf.set("spark.kudulite.front", "true")
    yield
    spark.conf.set("spark.kudulite.front", "false")


@contextmanager
def settings(spark, given: dict[str, str]) -> Iterator[None]:
    """Set, and unset after."""
    for key, value in given.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in given:
            spark.conf.unset(key)


@pytest.fixture(scope="module")
def big(tmp_path_factory) -> Table:
    """Two files of several row groups; every kind of change, all over them and in runs."""
    chosen = random.Random(5)
    client = kudulite.connect(tmp_path_factory.mktemp("base"), background_maintenance=False)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("s", pa.string())])
    table = client.create_table("t", schema, primary_key=["k"])
    for start, step in ((0, 1), (COUNT, 10)):
        keys = range(start, start + (COUNT if step == 1 else 1000), step)
        texts = [None if key % 5 == 0 else f"s{key % 7}" for key in keys]
        table.insert(pa.table([keys, [1] * len(keys), texts], schema=schema))
    runs = [*range(131_000, 131_200), *range(150_040, 150_060), 0, COUNT - 1]
    updated = sorted({*chosen.sample(range(COUNT), 3000), *runs})
    table.update({"k": updated, "v": [100] * len(updated)})
    table.delete({"k": [*chosen.sample(range(COUNT), 300), 131_071, 131_072, COUNT + 10]})
    table.insert({"k": [COUNT + 5], "v": [7], "s": ["new"]})
    return table


@pytest.fixture(scope="module")
def typed(tmp_path_factory) -> TypedTable:
    """A random table with every type, changed in every way."""
    found = random_table(tmp_path_factory.mktemp("typed") / "t", 12, step_count=8)
    found.overwrite()
    found.step()
    found.rows()
    found.stand_still()
    return found


def of_scan(table: Table, low: int, high: int) -> tuple:
    """What `of_spark` asks for, of a scan without Spark."""
    found = table.scan(where=[table["k"] >= low, table["k"] < high]).to_pylist()
    return (
        len(found),
        sum(row["k"] for row in found),
        sum(row["v"] for row in found),
        sum(len(row["s"] or "") for row in found),
        sum(row["s"] is None for row in found),
    )


SUMS = ["count(*)", "sum(k)", "sum(v)", "sum(length(coalesce(s, '')))", "count_if(s IS NULL)"]


@tiered("name", list(SETTINGS), quick=1)
def test_rows_are_those_of_a_scan_in_every_way_of_reading(spark, big, typed, name, monkeypatch):
    """Batches and rows, splits, skipped row groups and pages, and arrays of every type."""
    with settings(spark, SETTINGS[name]):
        frame = kudulite_spark.read_table(spark, str(big.path))
        for low, high in RANGES:
            found = frame.filter(f"k >= {low} AND k < {high}").selectExpr(*SUMS).first()
            assert tuple(found) == of_scan(big, low, high), (low, high)
        expected = big.scan(where=[big["v"] > 1]).to_arrow().num_rows
        assert frame.filter("v > 1").count() == expected
        assert frame.count() == frame.select().count() == big.scan().to_arrow().num_rows
        limits = NativeLimits(excluded_fraction_max=1, bounded_rows_max=8)
        monkeypatch.setattr(native_read, "LIMITS", limits)
        schema = typed.table.arrow_schema
        read = kudulite_spark.read_table(spark, typed.path)
        contents = [
            sorted(map(repr, found.select(schema.names).cast(schema).to_pylist()))
            for found in (read.toArrow(), typed.table.scan().to_arrow())
        ]
        assert contents[0] == contents[1]


def test_a_table_with_changes_is_one_scan_with_generated_code(spark, big):
    """No union with the added rows, and no step between the scan and what is above it."""
    frame = kudulite_spark.read_table(spark, str(big.path))
    assert len(frame.inputFiles()) > 1
    plan = frame.filter("v > 1").groupBy("s").count()._jdf.queryExecution().executedPlan()
    text = str(plan)
    assert "Union" not in text and "LocalTableScan" not in text and "Subquery" not in text
    assert text.count("FileScan parquet") == 1 and "Batched: true" in text


def test_snapshots_of_the_same_files_are_different_plans(spark, tmp_path):
    """Spark runs equal parts of a query once; scans of different excluded rows are not equal."""
    client = kudulite.connect(tmp_path, background_maintenance=False)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = client.create_table("t", schema, primary_key=["k"])
    table.insert({"k": list(range(1000)), "v": [0] * 1000})
    moments = []
    for number in range(3):
        keys = list(range(number, 1000, 100))
        table.update({"k": keys, "v": [number + 1] * len(keys)})
        moments.append(table.current_timestamp())
    table.delete({"k": [500]})
    frames = [
        kudulite_spark.read_table(spark, str(table.path), snapshot=moment).alias(f"t{place}")
        for place, moment in enumerate([*moments, None])
    ]
    sums = [frame.groupBy("v").count() for frame in frames]
    joined = sums[0].alias("a")
    for place in range(1, 4):
        joined = joined.join(sums[place].alias(f"b{place}"), sf.expr(f"a.v = b{place}.v"))
    # Ten rows are changed by each update; the row 500 is of the first.
    assert sorted(map(tuple, joined.collect())) == [
        (0, 990, 0, 980, 0, 970, 0, 970),
        (1, 10, 1, 10, 1, 10, 1, 9),
    ]
    same = [frame._jdf.queryExecution().executedPlan() for frame in (frames[0], frames[0])]
    assert same[0].sameResult(same[1])
    assert not same[0].sameResult(frames[1]._jdf.queryExecution().executedPlan())
    rows = frames[0].unionAll(frames[3]).groupBy("v").agg(sf.count("*")).collect()
    assert sorted(map(tuple, rows)) == [(0, 1960), (1, 19), (2, 10), (3, 10)]


def test_an_overlay_that_is_too_large_is_left_to_other_means(spark, big, monkeypatch):
    """First the added rows are a part of a union, then the positions are an array of bits."""
    expected = of_scan(big, *RANGES[0])
    whole = len(native_read.overlay(big.native_plan().files))
    for limit, scans, has_subquery in ((whole, 1, False), (10, 1, True)):
        monkeypatch.setattr(native_read, "_OVERLAY_BYTES_MAX", limit)
        frame = kudulite_spark.read_table(spark, str(big.path))
        assert tuple(frame.selectExpr(*SUMS).first()) == expected
        text = str(frame._jdf.queryExecution().executedPlan())
        assert text.count("Union") == scans and ("Subquery" in text) == has_subquery
