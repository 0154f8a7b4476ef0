"""Spark reads only the tablets that a predicate leaves, and only the columns asked for."""

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

import kudulite
import kudulite_spark
from kudulite import ScanToken
from kudulite_spark.datasource import KuduliteDataSource
from kudulite_spark.reader import BATCH_ROWS_MAX, fitted_batches
from tests.support.spark.spark_tables import configured, load, save
from tests.support.tiers import tiered

DAYS = 10


@pytest.fixture(scope="module")
def path(spark, tmp_path_factory) -> str:
    """Key (host, day): hash of host in 4 buckets × ranges of day [0, 5) and [5, 10)."""
    place = str(tmp_path_factory.mktemp("pruning") / "t")
    frame = spark.range(0, 400, 1, 2).selectExpr(
        "concat('h', CAST(id % 40 AS string)) AS host",
        "CAST(id / 40 AS int) AS day",
        "id AS a",
        "id * 2 AS b",
    )
    save(
        frame,
        place,
        primaryKey="host, day",
        hashPartitions="host:4",
        rangePartitions='{"columns": ["day"], "bounds": [[0, 5], [5, 10]]}',
    )
    return place


def partition_count(spark, path, **options) -> int:
    """Input partitions when tablets are not packed together."""
    return load(spark, path, splitSizeBytes=1, **options).rdd.getNumPartitions()


@pytest.mark.quick
@tiered(
    ("text", "tablets"),
    [
        (None, 8),
        ("day < 5", 4),
        ("day >= 7", 4),
        ("day >= 4 AND day <= 5", 8),
        ("host = 'h1'", 2),
        ("host = 'h1' AND day = 3", 1),
        ("host IN ('h1') AND day BETWEEN 0 AND 9", 2),
        ("a = 3", 8),
        ("host IS NOT NULL", 8),
    ],
    quick=3,
)
def test_input_partitions_are_the_tablets_left(spark, path, text, tablets):
    """By range bounds and by the hash of values that are equal to something."""
    options = {} if text is None else {"filter": text}
    assert partition_count(spark, path, **options) == tablets


def test_a_range_may_have_hash_partitions_of_its_own(spark, tmp_path):
    """Given as the third value of the range; a later write may repeat it."""
    place = str(tmp_path / "t")
    frame = spark.range(0, 400, 1, 2).selectExpr(
        "concat('h', CAST(id % 40 AS string)) AS host", "CAST(id / 40 AS int) AS day", "id AS a"
    )
    bounds = '[[0, 5], [5, 10, [["HOST", 7]]]]'
    layout = {
        "hashPartitions": "host:4",
        "rangePartitions": f'{{"columns": ["day"], "bounds": {bounds}}}',
    }
    save(frame, place, primaryKey="host, day", **layout)
    table = kudulite.open_table(place)
    assert table.partition_schema.describe_all() == [
        "hash(host) × 4",
        "day: [0, 5)",
        "day: [5, 10) hash(host) × 7",
    ]
    table.check().raise_if_bad()
    counts = {None: 11, "day < 5": 4, "day >= 5": 7, "host = 'h1'": 2, "host = 'h1' AND day = 7": 1}
    for text, tablets in counts.items():
        options = {} if text is None else {"filter": text}
        assert partition_count(spark, place, **options) == tablets
        expected = frame if text is None else frame.filter(text)
        found = load(spark, place, **options)
        assert sorted(map(tuple, found.collect())) == sorted(map(tuple, expected.collect()))
    save(frame.selectExpr("host", "day", "a + 1 AS a"), place, operation="upsert", **layout)
    save(frame, place, operation="upsert", rangePartitions=layout["rangePartitions"])
    assert load(spark, place).count() == 400
    with pytest.raises(
        PySparkException, match=r"exists with .*hash\(host\) × 7; option 'rangePart"
    ):
        other = layout["rangePartitions"].replace("7", "6")
        save(frame, place, operation="upsert", rangePartitions=other)
    kudulite_spark.register(spark)
    routed = kudulite_spark.repartition_for(frame, place)
    save(routed, place, operation="upsert")
    assert load(spark, place).count() == 400


def test_nothing_is_read_where_no_tablet_is_left(spark, path):
    """A gap, a contradiction: Spark makes one empty partition of none."""
    for text in ("day >= 10", "day < 3 AND day > 7", "host IS NULL"):
        frame = load(spark, path, filter=text, splitSizeBytes=1)
        assert (frame.rdd.getNumPartitions(), frame.count()) == (1, 0)


@pytest.mark.spark_since("4.1", "a Python source that takes filters")
@pytest.mark.quick
def test_pushed_filters_prune_the_same_way(spark, path):
    """With pushdown=true and the setting on, without a filter option."""
    pushdown = "spark.sql.python.filterPushdown.enabled"
    with configured(spark, {pushdown: "true", "spark.kudulite.front": "false"}):
        frame = load(spark, path, splitSizeBytes=1, pushdown="true")
        assert frame.filter("day = 3 AND host = 'h1'").rdd.getNumPartitions() == 1
        plain = load(spark, path, splitSizeBytes=1)
        assert plain.filter("day = 3 AND host = 'h1'").rdd.getNumPartitions() == 8


def test_small_tablets_share_a_task(spark, path):
    """A Python partition costs Spark about 30 ms: eight tiny tablets are one task by default."""
    assert load(spark, path).rdd.getNumPartitions() == 1


@pytest.mark.quick
def test_tokens_ask_only_for_the_columns_wanted(path):
    """The scanner gets the projection and the predicate's columns, nothing else."""
    source = KuduliteDataSource({"path": path, "columns": "b", "filter": "a < 10"})
    reader = source.reader(source.schema())
    tokens = [ScanToken.from_bytes(t) for p in reader.partitions() for t in p.tokens]
    assert {tuple(token.columns) for token in tokens} == {("b",)}
    assert {batch.schema.names[0] for token in tokens for batch in token.open()} == {"b"}
    source = KuduliteDataSource({"path": path})
    (partition,) = source.reader(StructType([])).partitions()
    counted = sum(
        batch.num_rows for t in partition.tokens for batch in ScanToken.from_bytes(t).open()
    )
    assert counted == 400


def test_all_tokens_of_a_load_share_its_timestamp(spark, path):
    """Also when planned later, after the table has changed."""
    source = KuduliteDataSource({"path": path, "splitSizeBytes": "1"})
    schema = source.schema()
    reader = source.reader(schema)
    stamps = {ScanToken.from_bytes(t).timestamp for p in reader.partitions() for t in p.tokens}
    again = source.reader(schema)
    stamps |= {ScanToken.from_bytes(t).timestamp for p in again.partitions() for t in p.tokens}
    assert len(stamps) == 1


@pytest.mark.quick
def test_batches_are_cut_and_joined_to_the_right_size():
    """Never over the limit, near it where the input is finer; the exact schema, or none."""
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False)])
    sizes = [10, 20, BATCH_ROWS_MAX - 5, 0, 3 * BATCH_ROWS_MAX + 7, 1]
    given = [pa.record_batch({"k": pa.array(range(n), pa.int32())}) for n in sizes]
    cut = list(fitted_batches(iter(given), schema))
    assert all(batch.schema == schema and batch.num_rows <= BATCH_ROWS_MAX for batch in cut)
    assert pa.Table.from_batches(cut)["k"].to_pylist() == [i for n in sizes for i in range(n)]
    assert len(cut) == 6
    bare = list(fitted_batches(iter(given), pa.schema([])))
    assert sum(batch.num_rows for batch in bare) == sum(sizes)
    assert {batch.num_columns for batch in bare} == {0}
