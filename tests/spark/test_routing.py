"""`repartition`: Spark sends the rows of each tablet to one task, in SQL and in `df.write`."""

import json
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import kudulite
import kudulite_spark
from kudulite import Partitioning, RangePartition, Table
from kudulite_spark.write_plan import described_partitioning
from tests.spark.conftest import FRONT
from tests.support.spark.spark_tables import configured
from tests.support.spark.sql_statements import rows, run_random_statements

pytestmark = FRONT

SETTING = "spark.kudulite.repartition"
TASKS = 8
# A task of fewer rows than a small batch has writes no rowset.
COUNT = TASKS * 1200


@pytest.fixture
def warehouse(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A catalog of its own for each test, whose writes send rows to their tablets."""
    catalog = f"c{random.getrandbits(60):x}"
    kudulite_spark.register(spark, warehouse=tmp_path, catalog=catalog)
    spark.conf.set(SETTING, "true")
    yield catalog
    spark.conf.unset(SETTING)


def scattered(spark: SparkSession, start: int = 0) -> DataFrame:
    """Rows in eight tasks; each task has rows of every tablet."""
    return spark.range(start, start + COUNT, 1, TASKS).selectExpr("id", "id * 0.5D AS v")


def rowset_count(path: Path) -> int:
    """How many rowsets a table has: one for each task and tablet of its writes."""
    return kudulite.open_table(path).statistics.rowset_count


def save(frame: DataFrame, path: Path, mode: str = "append", **options: str) -> None:
    frame.write.format("kudulite").mode(mode).options(**options).save(str(path))


def test_each_tablet_gets_the_rows_of_a_statement_from_one_task(spark, warehouse, tmp_path):
    """INSERT, INSERT OVERWRITE, CTAS and the inserts of MERGE; the option overrides the setting."""
    scattered(spark).createOrReplaceTempView("source")
    table, path = f"{warehouse}.t", tmp_path / "t"
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, v DOUBLE, PRIMARY KEY (id))"
        " PARTITIONED BY (bucket(4, id))"
    )
    spark.sql(f"INSERT INTO {table} SELECT * FROM source")
    assert rowset_count(path) == 4
    scattered(spark, COUNT).writeTo(table).append()
    assert rowset_count(path) == 8
    spark.sql(f"INSERT OVERWRITE {table} SELECT * FROM source")
    assert rowset_count(path) == 4
    spark.sql(
        f"MERGE INTO {table} t USING (SELECT id + 4000 AS id, -1D AS v FROM source) s"
        " ON t.id = s.id WHEN MATCHED AND s.id < 6000 THEN DELETE"
        " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    assert rowset_count(path) == 8
    expected = [(k, k / 2) for k in range(4000)]
    expected += [(k, -1.0) for k in range(6000, COUNT + 4000)]
    assert sorted(rows(spark, f"SELECT * FROM {table}")) == expected
    spark.sql(
        f"CREATE TABLE {warehouse}.c TBLPROPERTIES ('primaryKey' = 'id', 'hashPartitions' = 'id:4')"
        " AS SELECT * FROM source"
    )
    assert rowset_count(tmp_path / "c") == 4
    spark.sql(f"TRUNCATE TABLE {table}")
    spark.sql(f"INSERT INTO {table} WITH (repartition = 'false') SELECT * FROM source")
    assert rowset_count(path) == 4 * TASKS
    spark.conf.unset(SETTING)
    spark.sql(f"INSERT OVERWRITE {table} WITH (repartition = 'true') SELECT * FROM source")
    assert rowset_count(path) == 4
    assert sorted(rows(spark, f"SELECT * FROM {table}")) == [(k, k / 2) for k in range(COUNT)]


def test_each_tablet_gets_the_rows_of_a_dataframe_from_one_task(spark, warehouse, tmp_path):
    """Appended and overwritten, with names in another case; only the option counts."""
    path = tmp_path / "t"
    save(scattered(spark).limit(0), path, primaryKey="id", hashPartitions="id:4")
    save(scattered(spark), path)
    assert rowset_count(path) == 4 * TASKS
    save(scattered(spark), path, "overwrite", repartition="true")
    assert rowset_count(path) == 4
    renamed = scattered(spark, COUNT).selectExpr("v", "CAST(id AS INT) AS ID")
    save(renamed, path, repartition=" TRUE ", operation="insert")
    assert rowset_count(path) == 8
    # A write that makes its table finds no tablets yet.
    options = {"primaryKey": "id", "hashPartitions": "id:4", "repartition": "true"}
    save(scattered(spark), tmp_path / "new", **options)
    assert rowset_count(tmp_path / "new") == 4 * TASKS
    found = kudulite.open_table(path).scan().to_arrow().sort_by("id").to_pydict()
    assert found == {"id": list(range(2 * COUNT)), "v": [k / 2 for k in range(2 * COUNT)]}


def test_a_setting_that_is_neither_true_nor_false_is_refused(spark, warehouse, tmp_path):
    """Before anything is written."""
    spark.sql(f"CREATE TABLE {warehouse}.t (id BIGINT, PRIMARY KEY (id))")
    with configured(spark, {SETTING: "yes"}):
        with pytest.raises(PySparkException, match="repartition is 'yes', expected true or false"):
            spark.sql(f"INSERT INTO {warehouse}.t VALUES (1)")
    with configured(spark, {"spark.kudulite.front": "0"}):
        with pytest.raises(PySparkException, match="front is '0', expected true or false"):
            spark.read.format("kudulite").load(str(tmp_path / "t"))
    assert len(kudulite.open_table(tmp_path / "t")) == 0


def test_the_setting_leaves_views_as_they_are(spark, warehouse, tmp_path):
    """INSERT INTO a view of a table, which has no catalog, works with the setting."""
    save(scattered(spark), tmp_path / "t", primaryKey="id")
    spark.sql(f"CREATE TEMPORARY VIEW v{warehouse} USING kudulite OPTIONS (path '{tmp_path}/t')")
    spark.sql(f"INSERT INTO v{warehouse} VALUES ({COUNT}, 2D)")
    assert len(kudulite.open_table(tmp_path / "t")) == COUNT + 1


def test_errors_are_those_of_the_write(spark, warehouse, tmp_path):
    """A missing key column, a NULL in the key, another type, an unknown option, another mode."""
    path = tmp_path / "t"
    save(scattered(spark).limit(0), path, primaryKey="id", hashPartitions="id:4")
    frame = scattered(spark)
    for wrong, text in [
        (frame.select("v"), "lacks key column 'id'"),
        (frame.selectExpr("nullif(id, 7) AS id", "v"), "(?i)null"),
        (frame.selectExpr("CAST(id AS STRING) AS id", "v"), "the DataFrame has string"),
        (frame.selectExpr("id", "v", "v AS w"), "no column 'w'"),
    ]:
        with pytest.raises(Exception, match=text):
            save(wrong, path, repartition="true")
    with pytest.raises(Exception, match="nonsense"):
        save(frame, path, repartition="true", nonsense="1")
    with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        save(frame, path, "error", repartition="true")
    assert len(kudulite.open_table(path)) == 0


def test_random_statements_are_right_with_rows_sent_to_tablets(spark, warehouse, tmp_path):
    run_random_statements(spark, warehouse, tmp_path, seed=18, count=8)


# Every type of a key column, with values at its bounds and where the encoding changes.
TEXTS = ["", "a", "a\0", "a\0b", "\0\0", "ab", "é", "z" * 40]
KEY_TYPES = [
    (pa.int8(), [-128, -1, 0, 127]),
    (pa.int16(), [-32768, -1, 0, 32767]),
    (pa.int32(), [-(2**31), -1, 0, 2**31 - 1]),
    (pa.int64(), [-(2**63), -1, 0, 2**63 - 1]),
    (pa.string(), TEXTS),
    (pa.binary(), [text.encode() + b"\xff" for text in TEXTS]),
    (pa.date32(), [date(1, 1, 2), date(1969, 12, 31), date(2024, 2, 29), date(9999, 1, 1)]),
    (
        pa.timestamp("us", tz="UTC"),
        [datetime(1969, 12, 31, tzinfo=UTC) + timedelta(microseconds=n) for n in (-1, 0, 10**15)],
    ),
    (pa.decimal128(9, 2), [Decimal("-9999999.99"), Decimal("-0.01"), Decimal("12.30")]),
    (pa.decimal128(18, 2), [Decimal("-9999999999999999.99"), Decimal("0.00"), Decimal("1.00")]),
    (pa.decimal128(38, 2), [Decimal(n) * 10**34 + Decimal("0.01") for n in (-50, -1, 0, 1, 77)]),
]


def made(path: Path, rng: random.Random) -> tuple[Table, pa.Table]:
    """A table with a random key, hash and range partitions, and rows for all of its tablets."""
    chosen = rng.sample(KEY_TYPES, 4)
    names = [f"c{number}" for number in range(len(chosen))]
    fields = [pa.field(n, kind, nullable=False) for n, (kind, _) in zip(names, chosen, strict=True)]
    columns = [[rng.choice(values) for _ in range(200)] for _, values in chosen]
    by_range, first, second, third = range_and_hash = rng.sample(names, 4)
    bound = sorted(set(columns[names.index(by_range)]))[1]
    partitioning = (
        Partitioning()
        .add_hash_partitions([first, second], rng.choice([2, 3]), seed=rng.choice([0, 2**32 - 1]))
        .add_hash_partitions([third], 5)
        .set_range_partition_columns([by_range])
        .add_range_partition(None, {by_range: bound})
    )
    custom = RangePartition({by_range: bound}, None)
    custom.add_hash_partitions([second], 4).add_hash_partitions([first, third], 3, seed=9)
    partitioning.add_custom_range_partition(custom)
    assert len(set(range_and_hash)) == 4
    client = kudulite.connect(path.parent)
    table = client.create_table(path.name, pa.schema(fields), partitioning, primary_key=names)
    return table, pa.table(columns, schema=pa.schema(fields))


@pytest.mark.parametrize("seed", range(6))
def test_java_finds_the_tablet_that_python_finds(spark, warehouse, tmp_path, seed):
    """The value of a row's tablet is one that Spark's shuffle sends to that tablet's partition."""
    table, given = made(tmp_path / "t", random.Random(seed))
    described = described_partitioning(table)
    names = [field["name"] for field in json.loads(described["schema"])["fields"]]
    spark.createDataFrame(given).createOrReplaceTempView("given")
    function = f"{warehouse}.`{json.dumps(described)}`({', '.join(names)})"
    found = rows(spark, f"SELECT pmod(hash({function}), {table.tablet_count}) FROM given")
    expected = table.tablet_index(given).to_numpy()
    assert len(np.unique(expected)) > table.tablet_count // 2
    assert [tablet for (tablet,) in found] == expected.tolist()


def test_only_the_function_of_a_partitioning_exists(spark, warehouse):
    for name in ("nix", "{", '{"tabletCount": 1}'):
        with pytest.raises(Exception, match="UNRESOLVED_ROUTINE"):
            spark.sql(f"SELECT {warehouse}.`{name}`(1)")


def test_a_key_that_is_not_unique_and_one_tablet(spark, warehouse, tmp_path):
    """The engine's numbers choose no tablet, so rows need not have them."""
    key = ["k", "auto_incrementing_id"]
    table = kudulite_spark.create_table(spark, tmp_path / "t", "k BIGINT, v BIGINT", key)
    described = described_partitioning(table)
    assert (described["tabletCount"], "hash" in described["ranges"][0]) == (1, False)
    frame = spark.range(0, COUNT, 1, TASKS).selectExpr("id % 3 AS k", "id AS v")
    save(frame, tmp_path / "t", operation="insert", repartition="true")
    assert (rowset_count(tmp_path / "t"), len(table)) == (1, COUNT)
