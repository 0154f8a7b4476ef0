"""A DataFrame used more than once: every query of it gives the right rows.

Spark keeps what it planned for a DataFrame and serves later queries with it. Each pattern of
`reuse_patterns` makes one `load()` (or view) and asks it several things; all answers are compared
with plain Python. Without the front, Spark's filter pushdown for Python sources is once off and
once on; the front pushes filters by itself and is tested with the setting on.
"""

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support.spark.reuse_patterns import PATTERNS, ROWS, Row, Table, where
from tests.support.spark.spark_tables import configured, load, make_table, rows, save
from tests.support.tiers import tiered

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """The table, in four tablets."""
    types = {"k": pa.int32(), "b": pa.int64(), "s": pa.string(), "x": pa.float64()}
    place = tmp_path_factory.mktemp("reuse") / "t"
    layout = {"primary_key": ["k"], "hash_partitions": [(["k"], 4)]}
    return Table(spark, make_table(place, ROWS, types, **layout))


@pytest.fixture(params=["false", "true"], ids=["pushdown_off", "pushdown_on"])
def _pushdown(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    with configured(spark, {PUSHDOWN: request.param}):
        yield


@pytest.fixture(
    params=[("false", "false"), ("false", "true"), ("true", "true")],
    ids=["source", "source_with_pushdown", "front"],
)
def _way(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    front, pushdown = request.param
    with configured(spark, {"spark.kudulite.front": front, PUSHDOWN: pushdown}):
        yield


@pytest.mark.quick
@tiered("pattern", PATTERNS, ids=lambda pattern: pattern.__name__)
@pytest.mark.usefixtures("_way")
def test_every_query_of_a_reused_dataframe_is_right(pattern, table):
    """Whatever was asked of the DataFrame before, and whatever the setting says."""
    for number, (found, expected) in enumerate(pattern(table)):
        assert found == expected, f"answer {number}"


# With pushdown=true a DataFrame must serve one query; these ask each load() one thing.
SINGLE_QUERIES: list[tuple[str, Callable[[Row], bool]]] = [
    ("b = 2", lambda r: r.b == 2),
    ("k = 3000", lambda r: False),
    ("k BETWEEN 3 AND 7 AND s IS NOT NULL", lambda r: 3 <= r.k <= 7 and r.s is not None),
    ("k IN (1, 5, 99, NULL)", lambda r: r.k in (1, 5)),
    ("s LIKE 's1%' AND b <> 0", lambda r: r.s == "s1" and r.b != 0),
    ("s IS NULL", lambda r: r.s is None),
    ("NOT s <=> 's1'", lambda r: r.s != "s1"),
    ("b = 1 OR k = 3", lambda r: r.b == 1 or r.k == 3),
    ("x >= 9.25 AND k % 2 = 0", lambda r: r.x >= 9.25 and r.k % 2 == 0),
    ("true", lambda r: True),
]


@pytest.mark.parametrize(("text", "test"), SINGLE_QUERIES, ids=[q[0] for q in SINGLE_QUERIES])
@pytest.mark.usefixtures("_pushdown")
def test_option_pushdown_is_right_for_one_query_of_each_load(text, test, table):
    """With the setting off nothing is pushed and nothing fails; with it on, Spark filters again."""
    assert rows(table.load(pushdown="true").filter(text)) == where(test)


@pytest.mark.usefixtures("_pushdown")
def test_a_dataframe_stays_at_its_load_while_the_table_changes(spark, tmp_path):
    """Reuse after a write; a new load() sees the write.

    The moment is that of load(), or where the user gave a schema that of the first action."""
    path = str(tmp_path / "t")
    first = spark.range(10).selectExpr("id AS k", "id % 2 AS b")
    save(first, path, primaryKey="k")
    planned = load(spark, path)
    assert planned.filter("b = 1").count() == 5
    unplanned = load(spark, path)
    with_schema = spark.read.format("kudulite").schema("k long, b long").load(path)
    assert with_schema.count() == 10  # Spark asks nothing of the source before
    view = f"CREATE OR REPLACE TEMPORARY VIEW at_load USING kudulite OPTIONS (path '{path}')"
    spark.sql(view)
    more = spark.range(5, 20).selectExpr("id AS k", "CAST(1 AS LONG) AS b")
    save(more, path)
    for frame in (planned, unplanned, with_schema, spark.table("at_load")):
        assert frame.filter("b = 1").count() == 5
        assert frame.count() == 10
        assert frame.filter("k >= 10").count() == 0
    fresh = load(spark, path)
    assert (fresh.count(), fresh.filter("b = 1").count()) == (20, 17)
    # A DataFrame may also be written back into the table that it was read from.
    save(fresh.selectExpr("k", "b + 1 AS b"), path)
    assert fresh.filter("b = 2").count() == 0
    assert load(spark, path).filter("b = 2").count() == 17
    spark.sql("DROP VIEW at_load")
