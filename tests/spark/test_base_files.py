"""The front's format of base files: excluded rows are left out, changed cells have their new
values, and added rows are read, in every way that Spark reads Parquet."""

import base64
import random
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import kudulite
import kudulite_spark
from kudulite import NativeLimits, Table
from kudulite_spark import native_read
from kudulite_spark.literals import literal
from kudulite_spark.native_read import quoted
from tests.spark.conftest import FRONT
from tests.support.spark.spark_tables import SHORT_QUERIES, configured
from tests.support.tables.typed_tables import COLUMNS, SCALARS, TypedTable, random_table
from tests.support.tiers import tiered

pytestmark = FRONT

COUNT = 300_000
SCALAR_NAMES = ["key", *(f"a.{name}" for name, _, _ in SCALARS)]  # of the table `cells`
# Row groups have 131,072 rows, and pages 8,192.
RANGES = [
    (0, COUNT + 1000),
    (131_072, 262_144),
    (262_140, COUNT + 1000),
    (131_070, 131_075),
    (150_000, 150_100),
    (COUNT, COUNT + 1000),
]
NEARLY_ALL_FROM_FILES = NativeLimits(excluded_fraction_max=1, bounded_rows_max=8)
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
    table.update({"k": updated, "v": [key * key if key % 5 else 100 for key in updated]})
    texts = [*range(60_000, 60_010), *range(150_030, 150_050), COUNT - 2, COUNT + 20]
    table.update({"k": texts, "s": ["zebra", None] * (len(texts) // 2)})
    table.flush()
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


@pytest.fixture(scope="module", params=["auto", "plain"])
def cells(tmp_path_factory, request) -> Table:
    """Two files in which each column has one value; changes set others, NULL among them.

    Parquet has a dictionary for such columns, but not for plain ones."""
    client = kudulite.connect(tmp_path_factory.mktemp("cells"), background_maintenance=False)
    columns = [kudulite.column("key", kudulite.int32)]
    columns += [
        kudulite.column(f"a.{name}", kudulite.parse_type(str(kind)), encoding=request.param)
        for name, kind, _ in COLUMNS
    ]
    table = client.create_table("t", kudulite.schema(columns, "key"))
    for start in (0, 5000):
        rows = {f"a.{name}": [values[0]] * 5000 for name, _, values in COLUMNS}
        keys = list(range(start, start + 5000))
        table.insert(pa.table({"key": keys} | rows, schema=table.arrow_schema))
    for number, (name, _, values) in enumerate(COLUMNS):
        new = [values[i % len(values)] if i % 4 else None for i in range(9)]
        keys = [number % 7 * i + number for i in range(8)] + [9999 - number]
        field = table.arrow_schema.field(f"a.{name}")
        table.update({"key": sorted(keys), field.name: pa.array(new, field.type)})
    table.delete({"key": [8, 9, 9998]})
    table.flush()
    return table


@pytest.fixture(scope="module")
def cells_rows(cells) -> list[tuple[list[str] | None, pa.Schema, list[str]]]:
    """Names of columns of `cells`, their schema, and the content of a scan of them."""
    scans = [(names, cells.scan(names).to_arrow()) for names in (None, SCALAR_NAMES)]
    return [(names, rows.schema, content(rows, rows.schema)) for names, rows in scans]


def content(frame: DataFrame | pa.Table, schema: pa.Schema) -> list[str]:
    """All rows, bit by bit, in an order."""
    table = frame.toArrow() if isinstance(frame, DataFrame) else frame
    columns = table.select(schema.names).cast(schema).columns
    return sorted(map(repr, zip(*(column.to_pylist() for column in columns), strict=True)))


def plan_of(frame: DataFrame) -> str:
    """The plan of a query, as text."""
    return str(frame._jdf.queryExecution().executedPlan())


def sums_between(rows: pa.Table, low: int, high: int) -> tuple:
    """`SUMS` of the rows with keys from `low` to below `high`, without Spark."""
    found = rows.filter((pc.field("k") >= low) & (pc.field("k") < high))
    texts = found["s"]
    lengths = pc.utf8_length(texts.fill_null(""))
    return (
        found.num_rows,
        *(pc.sum(column).as_py() for column in (found["k"], found["v"], lengths)),
        texts.null_count,
    )


SUMS = ["count(*)", "sum(k)", "sum(v)", "sum(length(coalesce(s, '')))", "count_if(s IS NULL)"]
FILTERS = ["v > 1", "s = 'zebra'", "s = 'zebra' AND k > 140000", "v = 100 AND s IS NULL"]


@pytest.fixture(scope="module")
def expected(big, typed) -> tuple[list[tuple], list[int], list[str]]:
    """Of `big` the sums by range and the counts by filter, and the content of `typed`."""
    rows = big.scan().to_arrow()
    counts = [big.scan(where=text).count() for text in FILTERS]
    assert min(counts) > 0
    whole = typed.table.scan().to_arrow()
    return [sums_between(rows, *each) for each in RANGES], counts, content(whole, whole.schema)


@tiered("name", list(SETTINGS), quick=1)
def test_rows_are_those_of_a_scan_in_every_way_of_reading(
    spark, big, typed, expected, name, monkeypatch
):
    """Batches and rows, splits, skipped row groups and pages."""
    sums, counts, whole = expected
    with configured(spark, SETTINGS[name]):
        frame = kudulite_spark.read_table(spark, str(big.path))
        by_range = [
            frame.filter(f"k >= {low} AND k < {high}").selectExpr(f"{place} AS place", *SUMS)
            for place, (low, high) in enumerate(RANGES)
        ]
        found = reduce(DataFrame.unionAll, by_range).collect()
        assert [tuple(row)[1:] for row in sorted(found)] == sums
        by_filter = [
            frame.filter(text).select(sf.lit(place), sf.count("*"))
            for place, text in enumerate(FILTERS)
        ]
        found = reduce(DataFrame.unionAll, by_filter).collect()
        assert [count for _, count in sorted(found)] == counts
        assert frame.count() == frame.select().count() == sums[0][0]
        monkeypatch.setattr(native_read, "LIMITS", NEARLY_ALL_FROM_FILES)
        read = kudulite_spark.read_table(spark, str(typed.table.path))
        assert content(read, typed.table.arrow_schema) == whole


@tiered("name", list(SETTINGS), quick=1)
def test_cells_of_every_type_are_those_of_a_scan_in_every_way_of_reading(
    spark, cells, cells_rows, name, monkeypatch
):
    """Changed ones, whether the file has a dictionary or not."""
    monkeypatch.setattr(native_read, "LIMITS", NEARLY_ALL_FROM_FILES)
    with configured(spark, SETTINGS[name]):
        for names, schema, rows in cells_rows:
            read = kudulite_spark.read_table(spark, str(cells.path), columns=names)
            assert content(read, schema) == rows


def test_changed_cells_are_part_of_the_scan(spark, cells, monkeypatch):
    """Of every type but arrays, which are added rows; a query finds them by their new values."""
    frame = kudulite_spark.read_table(spark, str(cells.path))
    scalars = kudulite_spark.read_table(spark, str(cells.path), columns=SCALAR_NAMES)
    assert native_read.overlay(cells.native_plan(SCALAR_NAMES, with_overlays=True).files)
    assert native_read.overlay(cells.native_plan(with_overlays=True).files) is None
    assert "Union" not in plan_of(scalars) and len(scalars.inputFiles()) == 2
    plan = cells.native_plan(with_overlays=True)
    assert len(plan.files) == 2 and not plan.tokens and not plan.rows.num_rows
    assert sum(len(file.excluded) for file in plan.files) == 3
    assert "Union" not in plan_of(frame) and len(frame.inputFiles()) == 2
    found, expected = [], []
    for name, _, values in COLUMNS:
        column = quoted(f"a.{name}")
        tests = [column.isNull(), column.isNotNull()]
        kind = cells.schema.column(f"a.{name}").type
        if not kind.is_array:
            tests += [column == literal(value, kind) for value in values]
            tests += [column != literal(values[0], kind)]
        some = frame if kind.is_array else scalars
        found += [some.filter(test).select("key") for test in tests]
        expected += [sf.collect_list(sf.when(test, sf.col("key"))) for test in tests]
    # Each filter with a scan of its own, and all of them over rows that Spark did not scan.
    with configured(spark, SHORT_QUERIES):
        keys = [sorted(row.key for row in part.collect()) for part in found]
        rows = spark.createDataFrame(cells.scan().to_arrow())
        assert keys == [sorted(each) for each in rows.select(*expected).first()]


def test_changed_cells_of_an_altered_table(spark, tmp_path):
    """Of a renamed column they are read with the file; not of a column that it lacks, or has in a
    narrower type."""
    client = kudulite.connect(tmp_path, background_maintenance=False)
    schema = pa.schema([("k", pa.int64()), ("a", pa.int32()), ("b", pa.string())])
    table = client.create_table("t", schema, primary_key=["k"])
    table.insert({"k": list(range(1000)), "a": [1] * 1000, "b": ["x"] * 1000})
    table.update({"k": [1, 2, 3], "a": [10, None, 30]})
    table.flush()
    steps = [
        lambda alterer: alterer.alter_column("a", rename_to="b2"),
        lambda alterer: alterer.add_column("c", kudulite.int64, default=7),
        lambda alterer: alterer.alter_column("b2").type(kudulite.int64),
    ]
    changes = [
        {"k": [2, 4], "b2": [-1, None]},
        {"k": [3, 5], "c": [None, 8]},
        {"k": [4, 6], "b2": [2**40, None]},
    ]
    scans = []
    for step, change in zip(steps, changes, strict=True):
        alterer = client.new_table_alterer(table)
        step(alterer)
        table = alterer.alter()
        table.update(change)
        table.flush()
        frame = kudulite_spark.read_table(spark, str(table.path))
        scans.append("Union" not in plan_of(frame))
        assert content(frame, table.arrow_schema) == content(
            table.scan().to_arrow(), table.arrow_schema
        )
        assert frame.filter("b2 IS NULL").count() == table.scan(where="b2 IS NULL").count()
        assert frame.filter("b2 < 0").select("k").collect() == [(2,)]
    assert scans == [True, False, False]


def test_a_table_with_changes_is_one_scan_with_generated_code(spark, big):
    """No union with the added rows, and no step between the scan and what is above it."""
    frame = kudulite_spark.read_table(spark, str(big.path))
    assert len(frame.inputFiles()) > 1
    text = plan_of(frame.filter("v > 1").groupBy("s").count())
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


def test_changes_do_not_move_the_size_that_spark_estimates(spark, tmp_path):
    """It plans joins by it; and two scans of one snapshot are the same, so Spark may run one."""
    client = kudulite.connect(tmp_path, background_maintenance=False)
    rows = pa.table({"k": range(10_000), "v": [0.5] * 10_000, "s": [str(n) for n in range(10_000)]})
    table = client.create_table("t", rows.schema, primary_key=["k"])
    table.insert(rows)

    def plans() -> list:
        frame = kudulite_spark.read_table(spark, str(table.path))
        frames = [frame, frame.select("k", "v"), frame.select("s"), frame.filter("v > 1")]
        return [each._jdf.queryExecution() for each in frames]

    def sizes(found: list) -> list[int]:
        return [int(plan.optimizedPlan().stats().sizeInBytes()) for plan in found]

    clean = plans()
    table.update({"k": [5, 7], "v": [1.5, 2.5]})
    table.delete({"k": [9]})
    changed, again = plans(), plans()
    assert "_tmp_metadata_row_index" in changed[0].toString()
    assert sizes(changed) == pytest.approx(sizes(clean), abs=2)
    for first, second in zip(changed, again, strict=True):
        assert first.executedPlan().sameResult(second.executedPlan())


def test_an_overlay_that_is_too_large_is_left_to_other_means(spark, big, monkeypatch):
    """First the added rows are a part of a union, then rows with changed cells are added rows, too,
    at last the positions are an array of bits."""
    added = range(COUNT + 10_005, COUNT + 19_005, 10)
    big.upsert({"k": added, "v": [7] * len(added), "s": [f"new {key * key}" for key in added]})
    expected = sums_between(big.scan().to_arrow(), 0, COUNT + 20_000)
    plans = [big.native_plan(with_overlays=with_overlays) for with_overlays in (True, False)]
    assert plans[0].rows.num_rows > 800
    texts = [
        native_read.overlay(plans[0].files, plans[0].rows),
        *(native_read.overlay(plan.files) for plan in plans),
    ]
    sizes = [len(base64.b64decode(text.partition(":")[2])) for text in texts]
    assert sizes[0] > sizes[1] + 500 and sizes[1] > sizes[2] + 500
    found = []
    for limit in (sizes[1] + 250, sizes[2] + 250, 10):
        monkeypatch.setattr(native_read, "_OVERLAY_BYTES_MAX", limit)
        frame = kudulite_spark.read_table(spark, str(big.path))
        assert tuple(frame.selectExpr(*SUMS).first()) == expected
        text = plan_of(frame)
        found.append((text.count("Union"), "Subquery" in text))
    assert found == [(1, False), (1, False), (1, True)]
