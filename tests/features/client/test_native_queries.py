"""Queries of DuckDB and Polars over a native scan give what they give over the same rows in memory.

An engine answers some queries from the statistics of the files, which leave NaN out, are of rows
that the snapshot does not have, and are rounded or missing for some types.
"""

import datetime
import math
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import kudulite
from kudulite import Table
from kudulite.basefile import base_data
from kudulite.basefile import footer as footer_format
from tests.support.tables.object_tables import ObjectTables
from tests.support.tiers import by_tier, tiered

NAN, INF = math.nan, math.inf
DAY, MOMENT = datetime.date, datetime.datetime

# Name, type, plain values and the values that statistics may spoil. Sums of floats are exact.
COLUMNS = (
    ("x", pa.float64(), [0.25, 1.5, -2.75, 100.5], [NAN, -0.0, 0.0, INF, -INF]),
    ("f", pa.float32(), [0.25, 1.5, -2.75, 100.5], [NAN, -0.0, 0.0, INF, -INF]),
    ("i", pa.int64(), [1, 2, 300], [-(2**63), 2**63 - 1]),
    ("flag", pa.bool_(), [True], [False]),
    ("text", pa.string(), ["a", "b"], ["", "z" * 5000, "z" * 70 + "\U0001f600", "\0"]),
    ("raw", pa.binary(), [b"a", b"b"], [b"", b"\xff" * 5000, b"\xff\x80", b"\x80"]),
    ("day", pa.date32(), [DAY(2024, 1, 2)], [DAY(1, 1, 1), DAY(9999, 12, 31)]),
    (
        "moment",
        pa.timestamp("us", "UTC"),
        [MOMENT(2024, 1, 2, tzinfo=datetime.UTC)],
        [
            MOMENT(1, 1, 2, tzinfo=datetime.UTC),
            MOMENT(9999, 12, 30, 0, 0, 0, 1, tzinfo=datetime.UTC),
        ],
    ),
    (
        "sum",
        pa.decimal128(20, 2),
        [Decimal("1.50"), Decimal("-2.25")],
        [Decimal("999999999999999999.99"), Decimal("-999999999999999999.99")],
    ),
)
ARRAY = pa.list_(pa.float64())
NAMES = [name for name, *_ in COLUMNS]
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        *(pa.field(name, kind) for name, kind, *_ in COLUMNS),
        pa.field("xs", ARRAY),
    ]
)
FLOATS = ("x", "f")

Query = Callable[[Any], Any]


def random_rows(choice: random.Random, keys: list[int]) -> pa.Table:
    """Rows in which each column is plain, has odd values and NULL, or is all NULL or all odd."""
    columns: dict[str, pa.Array] = {"k": pa.array(keys, pa.int64())}
    for name, kind, plain, odd in COLUMNS:
        pool = choice.choice([plain, plain, [*plain, None], [*plain, *odd, None], [None], odd[:1]])
        columns[name] = pa.array([choice.choice(pool) for _ in keys], kind)
    pool = choice.choice([[[1.5]], [[1.5], [2.5, NAN], None, [], [NAN]]])
    columns["xs"] = pa.array([choice.choice(pool) for _ in keys], ARRAY)
    return pa.table(columns, schema=SCHEMA)


def random_table(path, choice: random.Random) -> Table:
    """A table of several files, some of them with changes, and perhaps rows in memory."""
    client = kudulite.connect(path, background_maintenance=False)
    table = client.create_table("t", SCHEMA, primary_key="k")
    for number in range(choice.randint(1, 3)):
        table.insert(random_rows(choice, list(range(number * 40, number * 40 + 40))))
    for _ in range(choice.randint(0, 2)):
        change = choice.choice(["upsert", "update", "delete", "clean"])
        keys = sorted(choice.sample(range(40), 15))
        if change == "upsert":
            table.upsert(random_rows(choice, keys))
        elif change == "update":
            name = choice.choice([*NAMES, "xs"])
            table.update_ignore(random_rows(choice, keys).select(["k", name]))
        elif change == "delete":
            table.delete_ignore({"k": keys})
        else:
            # Files keep the NaN of rows that the snapshot does not have.
            odd = [r["k"] for r in table.scan().to_arrow().to_pylist() if r["x"] != r["x"]]
            table.delete_ignore({"k": pa.array(odd, pa.int64())})
    choice.choice([table.flush, table.compact, table.current_timestamp])()
    if choice.random() < 0.3:
        session = client.new_session()
        for row in random_rows(choice, [7, 500]).to_pylist():
            session.apply(table.new_upsert(row))
        session.flush()
    return table


def comparable(value):
    """Equal for equal results: zeros have no sign, NaN equals itself."""
    if isinstance(value, (list, tuple)):
        return tuple(map(comparable, value))
    if isinstance(value, float):
        return repr(value + 0.0)
    return repr(value)


def conditions(choice: random.Random, name: str, kind: pa.DataType, pool: list) -> list[str]:
    """Conditions of each form on a column, in DuckDB's SQL; ? is a literal."""
    first, second = (duck_literal(choice.choice(pool), kind) for _ in range(2))
    found = [f"{name} {sign} {first}" for sign in ("<", "<=", ">", ">=", "=", "!=")]
    found += [
        f"{name} IN ({first}, {second})",
        f"{name} NOT IN ({first}, {second})",
        f"{name} BETWEEN {first} AND {second}",
        f"{name} NOT BETWEEN {first} AND {second}",
        f"NOT {name} <= {first}",
        f"{name} IS NULL",
        f"{name} IS NOT NULL",
        f"{name} IS DISTINCT FROM {first}",
        f"{name} IN ({first}, NULL)",
        f"{name} < {first} OR {name} > {second}",
    ]
    return found + ([f"isnan({name})", f"isinf({name})"] if name in FLOATS else [])


def duck_literal(value, kind: pa.DataType) -> str:
    """A value as DuckDB's SQL has it."""
    if pa.types.is_binary(kind):
        return "'" + "".join(f"\\x{byte:02x}" for byte in value) + "'::BLOB"
    names = {"double": "DOUBLE", "float": "FLOAT", "int64": "BIGINT", "bool": "BOOLEAN"}
    names |= {"string": "VARCHAR", "date32[day]": "DATE", "timestamp[us, tz=UTC]": "TIMESTAMPTZ"}
    if isinstance(value, str) and "\0" in value:
        return "chr(0)"
    return f"CAST('{value}' AS {names.get(str(kind), 'DECIMAL(20, 2)')})"


def turn(found: list, seed: int) -> list:
    """The part of all queries that a seed asks: three seeds ask all of them, in the full tier."""
    count = by_tier(9, 3)
    random.Random(0).shuffle(found)
    return found[seed % count :: count]


def queries(choice: random.Random) -> list[str]:
    """Queries over `t` of which the result, as a multiset of rows, is determined."""
    found = ["SELECT count(*) FROM t", "SELECT count(*) FROM t WHERE xs[1] > 100"]
    found += ["SELECT max(xs), min(xs), max(xs[1]) FROM t", "SELECT k FROM t WHERE xs > [100]"]
    found += [f"SELECT max({name}) FROM t" for name in NAMES]
    found += [f"SELECT min({name}) FROM t" for name in NAMES]
    found += [f"SELECT min({name}), max({name}), count({name}) FROM t" for name in NAMES]
    found.append("SELECT " + ", ".join(f"max({name}), min({name})" for name in NAMES) + " FROM t")
    found += [f"SELECT sum({name}), avg({name}) FROM t" for name in ("x", "f", "sum")]
    found += [f"SELECT k, nullif({name}, 'NaN') FROM t WHERE {name} / 2 > 9" for name in FLOATS]
    for name, kind, plain, odd in COLUMNS:
        tests = conditions(choice, name, kind, [*plain, *odd, *odd])
        for test in tests:
            found.append(f"SELECT k FROM t WHERE {test}")
            found.append(f"SELECT max({name}), min(x), count(*) FROM t WHERE {test}")
        found += [
            f"SELECT {name} FROM t ORDER BY {name} DESC NULLS LAST LIMIT 3",
            f"SELECT {name} FROM t ORDER BY {name} NULLS LAST LIMIT 3",
            f"SELECT {name} FROM t ORDER BY {name} DESC NULLS FIRST LIMIT 3",
            f"SELECT {name} FROM t QUALIFY row_number() OVER (ORDER BY {name}) <= 3",
            f"SELECT {name}, count(*), max(x), min(f) FROM t GROUP BY {name}",
            f"SELECT DISTINCT {name} FROM t",
            f"SELECT max({name}) FROM t GROUP BY k % 2",
            f"SELECT k, rank() OVER (ORDER BY {name} NULLS LAST) FROM t",
            f"SELECT k, max({name}) OVER (PARTITION BY k % 3) FROM t",
            f"SELECT a.k FROM t a JOIN t b ON a.{name} = b.{name} AND a.k = b.k",
        ]
    return found


@tiered("seed", range(16), quick=3)
def test_duckdb_gives_what_it_gives_over_the_same_rows_in_memory(tmp_path, seed):
    """Aggregates, filters, orders, groups, windows and joins, whatever the files hold."""
    choice = random.Random(seed)
    table = random_table(tmp_path, choice)
    connection = duckdb.connect()
    connection.sql("SET TimeZone = 'UTC'")
    connection.register("rows", table.scan().to_arrow())
    connection.sql("CREATE TABLE t AS FROM rows")
    native = table.to_duckdb(connection)
    for query in turn(queries(choice), seed):
        expected = connection.sql(query)
        found = native.query(
            "native", query.replace("FROM t", "FROM native").replace("JOIN t", "JOIN native")
        )
        wanted, got = (sorted(map(comparable, it.fetchall())) for it in (expected, found))
        assert got == wanted, (seed, query)


def polars_conditions(
    choice: random.Random, name: str, pool: list
) -> Iterator[tuple[str, pl.Expr]]:
    """Conditions of each form on a column, and their names."""
    column, first, second = pl.col(name), choice.choice(pool), choice.choice(pool)
    kind = pl.from_arrow(SCHEMA.empty_table())[name].dtype
    low, high = pl.lit(first, kind), pl.lit(second, kind)
    tests = {
        "<": column < low,
        "<=": column <= low,
        ">": column > low,
        ">=": column >= low,
        "=": column == low,
        "!=": column != low,
        "= or both NULL": column.eq_missing(low),
        "in": column.is_in([first, second]),
        "not in": ~column.is_in([first, second]),
        "between": column.is_between(low, high),
        "not between": ~column.is_between(low, high),
        "not <=": ~(column <= low),
        "is NULL": column.is_null(),
        "is not NULL": column.is_not_null(),
        "< or >": (column < low) | (column > high),
    }
    if name in FLOATS:
        tests["is NaN"], tests["is not NaN"] = column.is_nan(), column.is_not_nan()
        tests["is infinite"] = column.is_infinite()
    for sign, test in tests.items():
        yield f"{name} {sign} {first} {second}", test


def polars_queries(choice: random.Random) -> list[tuple[str, Query]]:
    """Functions from a frame to a frame whose rows, as a multiset, are determined, with names."""
    found: list[tuple[str, Query]] = []
    other, third = pl.col("x").max().alias("m"), pl.col("k") % 3
    for name, _, plain, odd in COLUMNS:
        c = pl.col(name)
        for text, test in polars_conditions(choice, name, [*plain, *odd, *odd]):
            found += [
                (text, lambda t, test=test: t.filter(test).select("k")),
                (f"max, {text}", lambda t, test=test, c=c: t.filter(test).select(c.max(), other)),
            ]
        found += [
            (f"{name}: max", lambda t, c=c: t.select(c.max())),
            (f"{name}: min", lambda t, c=c: t.select(c.min())),
            (f"{name}: count", lambda t, c=c: t.select(c.count())),
            (f"{name}: least", lambda t, c=c: t.sort(c, nulls_last=True).head(3).select(c)),
            (
                f"{name}: greatest",
                lambda t, c=c: t.sort(c, descending=True, nulls_last=True).head(3).select(c),
            ),
            (f"{name}: group", lambda t, c=c: t.group_by(c).agg(pl.len(), other)),
            (f"{name}: max of groups", lambda t, c=c: t.group_by(third).agg(c.max())),
            (f"{name}: window", lambda t, c=c: t.select("k", c.max().over(third))),
            (f"{name}: unique", lambda t, c=c: t.select(c).unique()),
        ]
        if name in FLOATS:
            sums = c.nan_max(), c.sum().alias("sum"), c.mean().alias("mean")
            found.append((f"{name}: sums", lambda t, sums=sums: t.select(sums)))
    return found


@tiered("seed", range(16), quick=3)
def test_polars_gives_what_it_gives_over_the_same_rows_in_memory(tmp_path, seed):
    """The same of a LazyFrame, by both of Polars' engines."""
    choice = random.Random(seed)
    table = random_table(tmp_path, choice)
    native = table.to_polars()
    frame = pl.DataFrame(table.scan().to_arrow())
    for name, query in turn(polars_queries(choice), seed):
        wanted = sorted(map(comparable, query(frame).rows()))
        for engine in ("in-memory", "streaming"):
            found = query(native).collect(engine=engine)
            assert sorted(map(comparable, found.rows())) == wanted, (seed, name, engine)


def table_of(path, columns: dict, **options) -> Table:
    """A table of a column `k` and these, in base files without a change."""
    count = len(next(iter(columns.values())))
    rows = pa.table({"k": pa.array(range(count), pa.int64()), **columns})
    table = kudulite.connect(path, background_maintenance=False).create_table(
        "t", rows.schema, primary_key="k", **options
    )
    table.insert(rows)
    table.flush()
    return table


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("count", [10, 200_000])
def test_the_greatest_float_is_not_nan_where_there_is_none(tmp_path, kind, count):
    """Of a relation, of a view over it, and beside a column that has a NaN in the same file."""
    values = pa.array([number / 4 for number in range(count)], kind)
    table = table_of(tmp_path / "plain", {"x": values})
    relation = table.to_duckdb(duckdb.connect())
    greatest = (count - 1) / 4
    assert relation.aggregate("max(x)").fetchall() == [(greatest,)]
    assert relation.query("v", "SELECT max(x), min(x) FROM v").fetchall() == [(greatest, 0.0)]
    beside = table_of(tmp_path / "beside", {"x": values, "y": pa.array([NAN] * count)})
    relation = beside.to_duckdb(duckdb.connect())
    assert relation.aggregate("max(x)").fetchall() == [(greatest,)]
    assert repr(relation.aggregate("max(y)").fetchall()) == "[(nan,)]"


@pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.float64())])
def test_rows_with_nan_are_found_although_statistics_leave_it_out(tmp_path, kind):
    """NaN is greater than all: in a row group among others, and only as long as a row has it."""
    values = [float(number % 7) for number in range(200_000)]
    values[150_000] = NAN
    is_array = pa.types.is_list(kind)
    cells = pa.array([[value] for value in values] if is_array else values, kind)
    table, x = table_of(tmp_path, {"x": cells}), "x[1]" if is_array else "x"
    for tests in (f"{x} > 100", f"{x} NOT BETWEEN 0 AND 9", f"{x} = 'NaN'", f"isnan({x})"):
        found = table.to_duckdb(duckdb.connect()).filter(tests).project("k").fetchall()
        assert found == [(150_000,)], tests
    assert repr(table.to_duckdb(duckdb.connect()).aggregate(f"max({x})").fetchall()) == "[(nan,)]"
    table.delete({"k": [150_000]})
    assert table.to_duckdb(duckdb.connect()).aggregate(f"max({x})").fetchall() == [(6.0,)]
    table.upsert({"k": pa.array([3]), "x": cells[150_000:150_001]})
    found = table.to_duckdb(duckdb.connect()).filter(f"{x} > 100").project("k").fetchall()
    assert found == [(3,)]


def test_filters_skip_row_groups_of_files_without_nan(tmp_path):
    """Of the files of one table, one without a NaN keeps its filters in its scan."""
    table = table_of(tmp_path, {"x": pa.array([1.0, 2.0])})
    table.insert({"k": [7, 8], "x": [NAN, 1.5]})
    table.flush()
    said = [file.columns[1].may_have_nan for file in table.native_plan().files]
    assert sorted(said) == [False, True]
    plan = table.to_duckdb(duckdb.connect()).filter("x < 2").explain()
    assert plan.count("Filters: x < 2.0") == 1, plan


def test_files_of_older_software_may_have_nan(tmp_path, monkeypatch):
    """They do not say whether they do."""
    stamps = base_data.footer_stamps

    def without_nan(path, **options):
        return {
            k: v for k, v in stamps(path, **options).items() if k != footer_format.NAN_COLUMNS_KEY
        }

    with monkeypatch.context() as patch:
        patch.setattr(base_data, "footer_stamps", without_nan)
        columns = {"x": pa.array([1.0, NAN]), "y": pa.array([1.0, 2.0])}
        table = table_of(tmp_path, {**columns, "i": pa.array([1, 2])})
    (file,) = table.native_plan().files
    assert [column.may_have_nan for column in file.columns] == [False, True, True, False]
    relation = table.to_duckdb(duckdb.connect())
    assert relation.filter("x > 100").project("k").fetchall() == [(1,)]
    assert relation.aggregate("max(y), max(i)").fetchall() == [(2.0, 2)]


def test_a_table_on_a_store_is_queried_as_one_in_a_directory():
    """The engines open no object themselves: they are given the rows."""
    table = ObjectTables().new_table()
    table.upsert({"k": range(100), "v": range(100)})
    table.update(where="k < 10", set={"v": 1000})
    table.flush()
    expected = sum(range(10, 100)) + 10 * 1000
    relation = table.scan().to_duckdb(duckdb.connect())
    assert relation.aggregate("sum(v)").fetchall() == [(expected,)]
    assert table.scan().to_polars().select(pl.col("v").sum()).collect().item() == expected
