"""More ways to use one DataFrame more than once: columns and counts in turn, and deeper plans."""

from reuse_patterns import ROWS, Answers, Table, where
from spark_tables import in_order
from spark_tables import rows as rows_of


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


MORE_PATTERNS = [
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
