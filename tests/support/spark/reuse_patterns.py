"""Ways to use one DataFrame or view more than once, each with the answers that are right.

A pattern is a function of a `Table`: it makes its DataFrames, asks them one thing after the other,
and yields pairs (found, expected). `PATTERNS` lists them all.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from tests.support.spark.spark_tables import in_order
from tests.support.spark.spark_tables import rows as rows_of


class Row(NamedTuple):
    """A row of the table: k is the key, b = k % 3, s may be NULL, x a double."""

    k: int
    b: int
    s: str | None
    x: float


ROWS = [Row(k, k % 3, None if k % 7 == 6 else f"s{k % 5}", k / 4) for k in range(40)]


class Table:
    """One table for all patterns, and what they need to ask it."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark = spark
        self.path = path

    def load(self, **options: str) -> DataFrame:
        """A new DataFrame of the table."""
        return self.spark.read.format("kudulite").options(**options).load(self.path)

    def view(self, *, sql: bool = False, extra: str = "") -> str:
        """The name of a new temporary view, made from a DataFrame or by SQL."""
        # A session outlives the table when tests of other modules run in between.
        name = f"reuse_{uuid.uuid4().hex}"
        if sql:
            self.spark.sql(
                f"CREATE TEMPORARY VIEW {name} USING kudulite OPTIONS (path '{self.path}'{extra})"
            )
        else:
            self.load().createOrReplaceTempView(name)
        return name

    def ask(self, text: str) -> list[tuple]:
        """The rows of a SQL query, sorted."""
        return rows_of(self.spark.sql(text))


def where(test: Callable[[Row], bool]) -> list[tuple]:
    """The expected rows that pass a test."""
    return in_order(row for row in ROWS if test(row))


Answers = Iterator[tuple[Any, Any]]


def filter_then_count(t: Table) -> Answers:
    df = t.load()
    yield df.filter("b = 2").count(), len(where(lambda r: r.b == 2))
    yield df.count(), 40


def count_then_filter_then_count(t: Table) -> Answers:
    df = t.load()
    yield df.count(), 40
    yield rows_of(df.filter("k = 1")), where(lambda r: r.k == 1)
    yield df.count(), 40


def two_filters_in_turn(t: Table) -> Answers:
    df = t.load()
    yield rows_of(df.filter("b = 1")), where(lambda r: r.b == 1)
    yield rows_of(df.filter("b = 2")), where(lambda r: r.b == 2)


def filter_then_or_filter(t: Table) -> Answers:
    df = t.load()
    yield df.filter("b = 2").count(), len(where(lambda r: r.b == 2))
    yield rows_of(df.filter("b = 1 OR k = 3")), where(lambda r: r.b == 1 or r.k == 3)


def union_of_two_filters(t: Table) -> Answers:
    df = t.load()
    yield (
        rows_of(df.filter("k = 1").union(df.filter("k = 2"))),
        where(lambda r: r.k in (1, 2)),
    )


def union_of_filter_and_all(t: Table) -> Answers:
    df = t.load()
    yield df.filter("k = 1").union(df).count(), 41
    yield df.union(df.filter("k = 1")).count(), 41


def union_of_three(t: Table) -> Answers:
    df = t.load()
    parts = [df.filter(f"b = {b}") for b in range(3)]
    yield rows_of(parts[0].union(parts[1]).union(parts[2])), in_order(ROWS)


def self_join_of_filters(t: Table) -> Answers:
    df = t.load()
    joined = df.filter("b = 1").alias("p").join(df.filter("k < 9").alias("q"), "k")
    yield rows_of(joined.select("k")), in_order((r.k,) for r in ROWS if r.b == 1 and r.k < 9)


def full_outer_self_join(t: Table) -> Answers:
    df = t.load()
    joined = df.filter("b = 1").join(df.filter("b = 2").select("k", "x"), "k", "full_outer")
    yield joined.count(), len(where(lambda r: r.b in (1, 2)))


def self_join_unfiltered(t: Table) -> Answers:
    df = t.load()
    joined = df.alias("p").join(df.alias("q"), sf.expr("p.k = q.k + 1"))
    yield joined.count(), 39


def semi_join(t: Table) -> Answers:
    df = t.load()
    yield (
        rows_of(df.join(df.filter("b = 0"), "k", "left_semi")),
        where(lambda r: r.b == 0),
    )


def anti_join(t: Table) -> Answers:
    df = t.load()
    yield rows_of(df.join(df.filter("b = 0"), "k", "left_anti")), where(lambda r: r.b != 0)


def cross_join_of_counts(t: Table) -> Answers:
    df = t.load()
    ones, twos = df.filter("b = 1").agg(sf.count("*")), df.filter("b = 2").agg(sf.count("*"))
    expected = [(len(where(lambda r: r.b == 1)), len(where(lambda r: r.b == 2)))]
    yield rows_of(ones.crossJoin(twos)), expected


def explained_before_another_filter(t: Table) -> Answers:
    df = t.load()
    first = df.filter("b = 1")
    first._jdf.queryExecution().executedPlan()
    yield df.filter("b = 2").count(), len(where(lambda r: r.b == 2))
    yield rows_of(first), where(lambda r: r.b == 1)


def temp_view_of_a_dataframe(t: Table) -> Answers:
    name = t.view()
    yield t.ask(f"SELECT * FROM {name} WHERE b = 1"), where(lambda r: r.b == 1)
    yield t.ask(f"SELECT count(*) FROM {name}"), [(40,)]


def temp_view_using(t: Table) -> Answers:
    name = t.view(sql=True)
    yield t.ask(f"SELECT * FROM {name} WHERE b = 1"), where(lambda r: r.b == 1)
    yield t.ask(f"SELECT * FROM {name} WHERE s = 's2'"), where(lambda r: r.s == "s2")
    yield t.ask(f"SELECT count(*) FROM {name}"), [(40,)]


def temp_view_using_with_options(t: Table) -> Answers:
    name = t.view(sql=True, extra=", columns 'k,s', filter 'b = 1 AND k >= 10'")
    expected = in_order((r.k, r.s) for r in ROWS if r.b == 1 and r.k >= 10)
    yield t.ask(f"SELECT * FROM {name}"), expected
    yield t.ask(f"SELECT * FROM {name} WHERE k < 20"), [e for e in expected if e[0] < 20]
    yield t.ask(f"SELECT * FROM {name}"), expected


def spark_table_of_a_view(t: Table) -> Answers:
    df = t.spark.table(t.view(sql=True))
    yield df.filter("b = 1").count(), len(where(lambda r: r.b == 1))
    yield df.count(), 40


def view_joined_with_itself(t: Table) -> Answers:
    name = t.view(sql=True)
    text = f"SELECT p.k FROM {name} p JOIN {name} q ON p.k = q.k WHERE p.b = 1 AND q.k < 9"
    yield t.ask(text), in_order((r.k,) for r in ROWS if r.b == 1 and r.k < 9)


def cached_then_filtered(t: Table) -> Answers:
    df = t.load().cache()
    yield rows_of(df.filter("b = 1")), where(lambda r: r.b == 1)
    yield df.count(), 40
    df.unpersist()


def filtered_then_cached(t: Table) -> Answers:
    df = t.load()
    part = df.filter("b = 1").cache()
    yield part.count(), len(where(lambda r: r.b == 1))
    yield df.count(), 40
    yield rows_of(df.filter("b = 2")), where(lambda r: r.b == 2)
    part.unpersist()


def cached_view(t: Table) -> Answers:
    name = t.view(sql=True)
    t.spark.sql(f"CACHE TABLE {name}_c AS SELECT * FROM {name} WHERE b = 0")
    yield t.ask(f"SELECT count(*) FROM {name}_c"), [(len(where(lambda r: r.b == 0)),)]
    yield t.ask(f"SELECT count(*) FROM {name}"), [(40,)]
    t.spark.sql(f"UNCACHE TABLE {name}_c")


def scalar_subquery(t: Table) -> Answers:
    name = t.view()
    text = f"SELECT k FROM {name} WHERE x = (SELECT max(x) FROM {name} WHERE b = 1)"
    top = max(r.x for r in ROWS if r.b == 1)
    yield t.ask(text), in_order((r.k,) for r in ROWS if r.x == top)


def in_subquery(t: Table) -> Answers:
    name = t.view()
    text = f"SELECT k FROM {name} WHERE k IN (SELECT k + 1 FROM {name} WHERE b = 0)"
    wanted = {r.k + 1 for r in ROWS if r.b == 0}
    yield t.ask(text), in_order((r.k,) for r in ROWS if r.k in wanted)


def not_in_subquery(t: Table) -> Answers:
    name = t.view()
    yield (
        t.ask(f"SELECT * FROM {name} WHERE k NOT IN (SELECT k FROM {name} WHERE b = 0)"),
        where(lambda r: r.b != 0),
    )


def exists_subquery(t: Table) -> Answers:
    name = t.view(sql=True)
    text = (
        f"SELECT k FROM {name} p WHERE b = 2 AND EXISTS"
        f" (SELECT 1 FROM {name} q WHERE q.k = p.k + 1 AND q.b = 0)"
    )
    yield t.ask(text), in_order((r.k,) for r in ROWS if r.b == 2 and r.k + 1 < 40)


def common_table_expression(t: Table) -> Answers:
    name = t.view()
    text = (
        f"WITH w AS (SELECT * FROM {name} WHERE k < 10)"
        " SELECT count(*) FROM w WHERE b = 1 UNION ALL SELECT count(*) FROM w"
    )
    yield t.ask(text), in_order([(len(where(lambda r: r.k < 10 and r.b == 1)),), (10,)])


def except_all(t: Table) -> Answers:
    df = t.load()
    yield rows_of(df.exceptAll(df.filter("b = 1"))), where(lambda r: r.b != 1)


def intersect(t: Table) -> Answers:
    df = t.load()
    yield (
        rows_of(df.filter("b = 1").intersect(df.filter("k < 10"))),
        where(lambda r: r.b == 1 and r.k < 10),
    )


def window(t: Table) -> Answers:
    df = t.load()
    rank = sf.row_number().over(Window.partitionBy("b").orderBy(sf.desc("k")))
    top = df.withColumn("n", rank).filter("n = 1").select("k")
    expected = in_order((max(r.k for r in ROWS if r.b == b),) for b in range(3))
    yield rows_of(top), expected
    yield rows_of(df.filter("b = 1").withColumn("n", rank).filter("n = 1").select("k")), [(37,)]
    yield df.count(), 40


def limit_and_head(t: Table) -> Answers:
    df = t.load()
    yield len(df.filter("b = 1").limit(5).collect()), 5
    yield df.limit(100).count(), 40
    yield len(df.head(3)), 3
    yield df.count(), 40


def order_by_and_limit(t: Table) -> Answers:
    df = t.load()
    yield [r.k for r in df.filter("b = 2").orderBy(sf.desc("k")).limit(2).collect()], [38, 35]
    yield [r.k for r in df.orderBy("k").limit(2).collect()], [0, 1]


def group_by(t: Table) -> Answers:
    df = t.load()
    groups = Counter(r.s for r in ROWS)
    yield rows_of(df.groupBy("s").count()), in_order(groups.items())
    yield rows_of(df.filter("b = 1").groupBy("b").count()), [(1, 13)]
    yield rows_of(df.groupBy("b").count()), in_order(Counter(r.b for r in ROWS).items())


def aggregates(t: Table) -> Answers:
    df = t.load()
    found = df.agg(sf.min("k"), sf.max("k"), sf.sum("b"), sf.avg("x"), sf.count("s"))
    expected = (0, 39, sum(r.b for r in ROWS), sum(r.x for r in ROWS) / 40, 35)
    yield rows_of(found), [expected]
    yield df.filter("k > 30").agg(sf.sum("k")).first()[0], sum(range(31, 40))


def distinct_and_pivot(t: Table) -> Answers:
    df = t.load()
    yield rows_of(df.filter("b = 1").select("b").distinct()), [(1,)]
    yield rows_of(df.select("b").distinct()), [(0,), (1,), (2,)]
    pivoted = df.groupBy("b").pivot("s", ["s0", "s1"]).count().fillna(0)
    counts = Counter((r.b, r.s) for r in ROWS)
    yield rows_of(pivoted), [(b, counts[b, "s0"], counts[b, "s1"]) for b in range(3)]


def pandas_in_turn(t: Table) -> Answers:
    df = t.load()
    yield sorted(df.filter("b = 1").toPandas()["k"]), [r.k for r in ROWS if r.b == 1]
    yield sorted(df.toPandas()["k"]), list(range(40))


def arrow_and_map_in_arrow(t: Table) -> Answers:
    df = t.load()
    yield df.filter("k < 5").toArrow().num_rows, 5
    yield df.mapInArrow(lambda batches: batches, df.schema).count(), 40


def null_tests(t: Table) -> Answers:
    df = t.load()
    yield rows_of(df.filter("s IS NULL")), where(lambda r: r.s is None)
    yield rows_of(df.filter("s IS NOT NULL")), where(lambda r: r.s is not None)
    yield rows_of(df.filter("s <> 's1'")), where(lambda r: r.s not in (None, "s1"))
    yield rows_of(df.filter("NOT s <=> 's1'")), where(lambda r: r.s != "s1")


def ranges_lists_and_prefixes(t: Table) -> Answers:
    df = t.load()
    yield rows_of(df.filter("k BETWEEN 3 AND 7")), where(lambda r: 3 <= r.k <= 7)
    yield rows_of(df.filter("k IN (1, 5, 99)")), where(lambda r: r.k in (1, 5))
    yield rows_of(df.filter("k NOT IN (1, 5)")), where(lambda r: r.k not in (1, 5))
    yield rows_of(df.filter("s LIKE 's1%'")), where(lambda r: r.s == "s1")
    yield rows_of(df.filter("x > 9.5")), where(lambda r: r.x > 9.5)


def projections_in_turn(t: Table) -> Answers:
    df = t.load()
    yield rows_of(df.select("s").filter("s = 's1'")), in_order((r.s,) for r in ROWS if r.s == "s1")
    yield rows_of(df.select("x", "k")), in_order((r.x, r.k) for r in ROWS)
    yield df.select().count(), 40


def schema_given_by_the_user(t: Table) -> Answers:
    df = t.spark.read.format("kudulite").schema("s string, k long").load(t.path)
    yield rows_of(df.filter("k < 3")), in_order((r.s, r.k) for r in ROWS if r.k < 3)
    yield rows_of(df), in_order((r.s, r.k) for r in ROWS)
    yield rows_of(df.filter("k = 1").union(df.filter("k = 2"))), [("s1", 1), ("s2", 2)]


def columns_and_filter_options(t: Table) -> Answers:
    df = t.load(columns="k,b", filter="b IN (0, 1) AND k < 20")
    expected = in_order((r.k, r.b) for r in ROWS if r.b in (0, 1) and r.k < 20)
    yield rows_of(df.filter("b = 1")), [e for e in expected if e[1] == 1]
    yield rows_of(df), expected


def several_loads_joined(t: Table) -> Answers:
    left, right = t.load(filter="b = 1"), t.load(filter="k < 9")
    expected = in_order((r.k,) for r in ROWS if r.b == 1 and r.k < 9)
    yield rows_of(left.join(right, "k").select("k")), expected
    yield rows_of(left.filter("k < 9").select("k")), expected


def broadcast_join(t: Table) -> Answers:
    df = t.load()
    joined = df.join(sf.broadcast(df.filter("b = 2").select("k")), "k")
    yield rows_of(joined), where(lambda r: r.b == 2)
    yield df.count(), 40


def random_split(t: Table) -> Answers:
    df = t.load()
    left, right = df.randomSplit([0.5, 0.5], seed=1)
    yield rows_of(left.union(right)), in_order(ROWS)
    yield df.filter("b = 1").sample(1.0).count(), 13


def count_after_columns(t: Table) -> Answers:
    df = t.load()
    yield rows_of(df.select("s")), in_order((r.s,) for r in ROWS)
    yield df.count(), 40
    yield df.select("x").count(), 40


def columns_after_count(t: Table) -> Answers:
    df = t.load()
    yield df.count(), 40
    yield rows_of(df.select("x", "k")), in_order((r.x, r.k) for r in ROWS)


def filter_column_that_is_not_selected(t: Table) -> Answers:
    df = t.load()
    yield rows_of(df.filter("b = 1").select("s")), in_order((r.s,) for r in ROWS if r.b == 1)
    yield rows_of(df.filter("b = 2").select("s")), in_order((r.s,) for r in ROWS if r.b == 2)
    yield df.filter("b = 2").count(), len(where(lambda r: r.b == 2))


def union_of_other_columns(t: Table) -> Answers:
    df = t.load()
    found = df.filter("k < 5").select("k").union(df.filter("k > 35").select("b"))
    expected = [(r.k,) for r in ROWS if r.k < 5] + [(r.b,) for r in ROWS if r.k > 35]
    yield rows_of(found), in_order(expected)


def union_by_name(t: Table) -> Answers:
    df = t.load()
    found = df.filter("k = 3").select("k", "b").unionByName(df.filter("k = 8").select("b", "k"))
    yield rows_of(found), in_order((r.k, r.b) for r in ROWS if r.k in (3, 8))


def same_filter_twice(t: Table) -> Answers:
    df = t.load()
    part = df.filter("b = 1")
    yield part.union(part).count(), 2 * len(where(lambda r: r.b == 1))
    yield part.join(part.select("k"), "k").count(), len(where(lambda r: r.b == 1))


def filter_of_a_filter(t: Table) -> Answers:
    outer = t.load().filter("b = 1")
    yield rows_of(outer.filter("k > 20")), where(lambda r: r.b == 1 and r.k > 20)
    yield rows_of(outer.filter("k < 9")), where(lambda r: r.b == 1 and r.k < 9)
    yield rows_of(outer), where(lambda r: r.b == 1)


def filter_by_another_query(t: Table) -> Answers:
    df = t.load()
    top = df.agg({"k": "max"}).first()[0]
    yield rows_of(df.filter(df.k == top)), where(lambda r: r.k == 39)
    yield df.count(), 40


def three_way_self_join(t: Table) -> Answers:
    df = t.load()
    one, two, three = (df.filter(f"b = {b}").select("k") for b in range(3))
    total = one.crossJoin(two.withColumnRenamed("k", "p"))
    total = total.crossJoin(three.withColumnRenamed("k", "q"))
    sizes = [len(where(lambda r, b=b: r.b == b)) for b in range(3)]
    yield total.count(), sizes[0] * sizes[1] * sizes[2]


def grouped_halves_joined(t: Table) -> Answers:
    df = t.load()
    low = df.filter("k < 20").groupBy("b").count()
    high = df.filter("k >= 20").groupBy("b").count().withColumnRenamed("count", "above")
    expected = [
        (b, sum(r.b == b for r in ROWS[:20]), sum(r.b == b for r in ROWS[20:])) for b in range(3)
    ]
    yield rows_of(low.join(high, "b")), in_order(expected)


def rollup_then_filter(t: Table) -> Answers:
    df = t.load()
    yield df.rollup("b").count().count(), 4
    yield df.filter("b = 0").rollup("b").count().count(), 2
    yield df.cube("b").count().count(), 4


def correlated_subquery(t: Table) -> Answers:
    name = t.view()
    found = t.ask(f"SELECT k FROM {name} o WHERE k = (SELECT max(k) FROM {name} i WHERE i.b = o.b)")
    yield found, [(37,), (38,), (39,)]
    yield t.ask(f"SELECT count(*) FROM {name} WHERE b = 1"), [(13,)]


def lateral_and_union_in_sql(t: Table) -> Answers:
    name = t.view(sql=True)
    yield (
        t.ask(f"SELECT k FROM {name} WHERE k = 1 UNION ALL SELECT k FROM {name} WHERE k = 2"),
        [(1,), (2,)],
    )
    yield t.ask(f"SELECT count(*), count(s) FROM {name}"), [(40, 35)]


def view_of_a_view(t: Table) -> Answers:
    name = t.view()
    t.spark.table(name).filter("b = 1").createOrReplaceTempView(f"{name}_b")
    yield t.ask(f"SELECT count(*) FROM {name}_b"), [(13,)]
    yield t.ask(f"SELECT count(*) FROM {name}_b WHERE k > 30"), [(3,)]
    yield t.ask(f"SELECT count(*) FROM {name}"), [(40,)]


def derived_column_filters(t: Table) -> Answers:
    df = t.load().selectExpr("k + 1 AS k1", "s", "x")
    yield df.filter("k1 = 5").count(), 1
    yield df.filter("s IS NULL").count(), len(where(lambda r: r.s is None))
    yield df.filter("x < 1 AND k1 > 2").count(), 2


def foreach_over_filters(t: Table) -> Answers:
    df = t.load()
    for b in (2, 0, 1, 2):
        yield df.filter(df.b == b).count(), len(where(lambda r, b=b: r.b == b))


def limit_under_a_filter(t: Table) -> Answers:
    df = t.load()
    yield df.limit(40).filter("b = 1").count(), 13
    yield df.filter("b = 1").limit(5).count(), 5
    yield df.filter("b = 1").count(), 13


def write_between_filters(t: Table) -> Answers:
    df = t.load()
    yield df.filter("k = 1").count(), 1
    df.filter("b = 7").write.format("noop").mode("overwrite").save()
    yield df.count(), 40


PATTERNS = [
    filter_then_count,
    count_then_filter_then_count,
    two_filters_in_turn,
    filter_then_or_filter,
    union_of_two_filters,
    union_of_filter_and_all,
    union_of_three,
    self_join_of_filters,
    full_outer_self_join,
    self_join_unfiltered,
    semi_join,
    anti_join,
    cross_join_of_counts,
    explained_before_another_filter,
    temp_view_of_a_dataframe,
    temp_view_using,
    temp_view_using_with_options,
    spark_table_of_a_view,
    view_joined_with_itself,
    cached_then_filtered,
    filtered_then_cached,
    cached_view,
    scalar_subquery,
    in_subquery,
    not_in_subquery,
    exists_subquery,
    common_table_expression,
    except_all,
    intersect,
    window,
    limit_and_head,
    order_by_and_limit,
    group_by,
    aggregates,
    distinct_and_pivot,
    pandas_in_turn,
    arrow_and_map_in_arrow,
    null_tests,
    ranges_lists_and_prefixes,
    projections_in_turn,
    schema_given_by_the_user,
    columns_and_filter_options,
    several_loads_joined,
    broadcast_join,
    random_split,
    count_after_columns,
    columns_after_count,
    filter_column_that_is_not_selected,
    union_of_other_columns,
    union_by_name,
    same_filter_twice,
    filter_of_a_filter,
    filter_by_another_query,
    three_way_self_join,
    grouped_halves_joined,
    rollup_then_filter,
    correlated_subquery,
    lateral_and_union_in_sql,
    view_of_a_view,
    derived_column_filters,
    foreach_over_filters,
    limit_under_a_filter,
    write_between_filters,
]
