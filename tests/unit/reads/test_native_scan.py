"""Polars and DuckDB give the rows of the scan, whatever they read themselves."""

import datetime
import math
import random
import sys
from decimal import Decimal

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import kudulite
from kudulite import Scan, Table
from kudulite.errors import ColumnNotFoundError, NotSupportedError, OptionError, TimestampError
from tests.support.tables.typed_tables import TypedTable, random_table
from tests.support.tiers import by_tier, tiered


def multiset(rows: pa.Table) -> list[str]:
    """Rows that may hold NaN, in an order, to be compared; names and types are part of them."""
    return sorted(map(repr, rows.to_pylist()))


def both(scan: Scan, columns: list[str] | None = None) -> list[pa.Table]:
    """The rows of a scan by Polars' two engines and by DuckDB, in the types of the scan."""
    frame, relation = scan.to_polars(), scan.to_duckdb(duckdb.connect())
    names = scan.schema.names if columns is None else columns
    wanted = pa.schema([scan.schema.field(name) for name in names])
    found = [frame.select(names).collect(engine=engine) for engine in ("in-memory", "streaming")]
    tables = [part.to_arrow() for part in found]
    quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
    tables.append(relation.project(quoted).to_arrow_table())
    return [table.cast(wanted) for table in tables]


@tiered("seed", range(4), quick=1)
def test_engines_give_the_snapshot(tmp_path, seed):
    """At several moments, with any columns."""
    made = random_table(tmp_path / "t", seed)
    made.overwrite()
    made.step()
    made.step()
    for moment in [*made.random.sample(made.moments, by_tier(2, 5)), None]:
        scan = made.table.scan(at=moment)
        expected = multiset(scan.to_arrow())
        assert all(multiset(found) == expected for found in both(scan)), (seed, moment)
        names = made.random.sample(scan.schema.names, 3)
        expected = multiset(made.table.scan(names, at=moment).to_arrow())
        assert all(multiset(found) == expected for found in both(scan, names)), (seed, moment)
        assert all(multiset(found) == expected for found in both(made.table.scan(names, at=moment)))
        assert scan.to_duckdb(duckdb.connect()).count("*").fetchall() == [(scan.count(),)]
        assert scan.to_polars().select(pl.len()).collect().item() == scan.count()


@tiered("seed", range(4), quick=1)
def test_filters_of_the_engine_find_the_rows_of_a_scan(tmp_path, seed):
    """NaN, NULL, extremes: a filter that Parquet statistics or the rest apply loses no row."""
    made = random_table(tmp_path / "t", seed)
    choice = random.Random(seed)
    for moment in (None, choice.choice(made.moments)):
        relation = made.table.scan(at=moment).to_duckdb(duckdb.connect())
        frame = made.table.scan(at=moment).to_polars()
        for name, values in made.values.items():
            if made.table.schema.column(name).type.is_array:
                continue
            value = choice.choice([item for item in values if item is not None])
            for sign in choice.sample(["==", "<", ">="], by_tier(1, 3)):
                test = {"==": "__eq__", "<": "__lt__", ">=": "__ge__"}[sign]
                where = getattr(made.table[name], test)(value)
                expected = made.table.scan(["id"], where, at=moment).to_arrow()
                wanted = sorted(expected.column(0).to_pylist())
                literal = pl.lit(value, frame.collect_schema()[name])
                compared = frame.filter(getattr(pl.col(name), test)(literal)).select("id")
                assert sorted(compared.collect()["id"].to_list()) == wanted, (name, sign, value)
                constant = duckdb.ConstantExpression(value).cast(
                    dict(zip(relation.columns, relation.types, strict=True))[name]
                )
                column = duckdb.ColumnExpression(name)
                found = relation.filter(getattr(column, test)(constant)).project("id")
                assert sorted(row[0] for row in found.fetchall()) == wanted, (name, sign, value)


ADDED = {
    "sum": (kudulite.decimal(9, 2), Decimal("1.50")),
    "empty": (kudulite.array(kudulite.int32), None),
    "text 2": (kudulite.string, "it's\0"),
    "raw 2": (kudulite.binary, b"\0'\xff"),
    "nan": (kudulite.double, math.nan),
    "on": (kudulite.date, datetime.date(1, 1, 1)),
    "zoned": (kudulite.unixtime_micros, datetime.datetime(1500, 1, 1, 3, tzinfo=datetime.UTC)),
    "plain": (kudulite.timestamp_ntz, datetime.datetime(2024, 1, 1, microsecond=999_999)),
}


def altered(table: Table, client: kudulite.Client) -> Table:
    """The table with columns added, renamed, widened and dropped."""
    alterer = client.new_table_alterer(table)
    for name, (kind, default) in ADDED.items():
        alterer.add_column(name, kind, default=default)
    alterer.alter_column("i32", rename_to="I 32")
    for name, kind in (("i8", "int64"), ("f32", "double"), ("d9", "decimal(18, 2)")):
        alterer.alter_column(name).type(kudulite.parse_type(kind))
    alterer.drop_column("i16")
    return alterer.alter()


def test_columns_are_known_by_id(tmp_path):
    """Added columns show their default, renamed and widened ones their values, in old and new
    files; a LazyFrame that was made before keeps its names and types."""
    made = random_table(tmp_path / "t", 3, step_count=4)
    made.table.flush()
    names = [name for name in made.table.schema.names if name != "i16"]
    before = made.table.scan(names)
    planned = multiset(before.to_arrow())
    frame = before.to_polars()
    table = altered(made.table, made.client)
    for _ in range(2):
        scan = table.scan()
        expected = multiset(scan.to_arrow())
        assert all(multiset(found) == expected for found in both(scan))
        for names in (["empty", "nan", "I 32", "i8"], ["on"]):
            expected = multiset(table.scan(names).to_arrow())
            assert all(multiset(found) == expected for found in both(scan, names))
        table.upsert(scan.to_arrow().slice(0, 20))
    table.compact()
    assert multiset(frame.collect().to_arrow().cast(before.schema)) == planned
    older = table.scan(["id", "i32"], at=before.timestamp)
    assert all(multiset(found) == multiset(older.to_arrow()) for found in both(older))
    assert multiset(before.to_polars().collect().to_arrow().cast(before.schema)) == planned
    assert multiset(before.to_duckdb().to_arrow_table().cast(before.schema)) == planned


@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0)])
def test_files_may_have_columns_that_others_do_not_have(tmp_path, order, is_changed):
    """One that was dropped, and another one of its name and of another type."""
    count, client = 40_000, kudulite.connect(tmp_path, background_maintenance=False)
    first = [start * count for start in order]
    schema = pa.schema([pa.field("k", pa.int64(), False), ("a", pa.int64()), ("b", pa.int64())])
    client.create_table("t", schema, primary_key=["k"])
    for number, texts in enumerate((None, None, "x")):
        table = client.table("t")
        rows = {"k": range(first[number], first[number] + count), "a": [number] * count}
        if number == 0:
            rows["b"] = range(count)
        elif texts is not None:
            rows["b"] = [texts] * count
        table.insert(pa.table(rows))
        alterer = client.new_table_alterer(table)
        if number == 0:
            alterer.drop_column("b")
            alterer.alter()
        elif number == 1:
            alterer.add_column("b", kudulite.string)
            alterer.alter()
    table = client.table("t")
    if is_changed:
        table.update({"k": [first[0] + 3, first[1] + 5], "a": [7, 8]})
    assert len(table.native_plan().files) == 3
    for names in (["k", "a", "b"], ["a"], ["b", "k"]):
        scan = table.scan(names)
        expected = scan.to_arrow().sort_by([(name, "ascending") for name in names])
        for found in both(scan):
            assert found.sort_by([(name, "ascending") for name in names]).equals(expected)


def test_a_native_scan_stays_as_it_is_while_the_table_changes(tmp_path):
    """Writes, compactions and maintenance after it was made do not change its rows."""
    made = random_table(tmp_path / "t", 5)
    scan = made.table.scan()
    expected = multiset(scan.to_arrow())
    frame, relation = scan.to_polars(), scan.to_duckdb(duckdb.connect())
    for _ in range(4):
        made.step()
    made.overwrite()
    made.compact()
    made.table.maintain()
    for _ in range(2):
        assert multiset(frame.collect().to_arrow().cast(scan.schema)) == expected
        assert multiset(relation.to_arrow_table().cast(scan.schema)) == expected


def big_table(path) -> Table:
    """1,000 rows in two tablets, a tenth of them changed."""
    rows = pa.table(
        {"id": range(1000), "price": [i / 4 for i in range(1000)], "note": ["x"] * 1000}
    )
    client = kudulite.connect(path)
    table = client.create_table("t", rows.schema, primary_key="id", hash_partitions=[(["id"], 2)])
    table.insert(rows)
    table.flush()
    table.upsert(rows.slice(100, 100))
    table.flush()
    return table


def test_engines_read_the_columns_and_rows_of_a_query_only(tmp_path, monkeypatch):
    """The plans name the files and the columns of the query; the rest is read of these, too."""
    table = big_table(tmp_path)
    asked = []
    monkeypatch.setattr(
        "kudulite.reads.native_scan.read_tokens",
        lambda tokens, names, read=kudulite.reads.native_scan.read_tokens: (
            asked.append(list(names)) or read(tokens, names)
        ),
    )
    query = table.to_polars().filter(pl.col("price") < 30).select(pl.col("price").sum())
    plan = query.explain()
    assert "Parquet SCAN" in plan and "PROJECT 1/3 COLUMNS" in plan
    assert "note" not in plan and '"id"' not in plan
    relation = table.to_duckdb(duckdb.connect()).filter("price < 30").aggregate("sum(price)")
    plan = relation.explain()
    assert "PARQUET" in plan.upper() and "note" not in plan and "id" not in plan.split()
    expected = sum(table.scan(["price"], table["price"] < 30).to_arrow()["price"].to_pylist())
    assert query.collect().item() == expected
    assert relation.fetchall() == [(expected,)]
    assert asked == [["price"], ["price"]]
    clean = table.scan(at=table.current_timestamp())
    table.compact()
    plan = table.to_polars().filter(pl.col("price") < 30).select("price").explain()
    assert "SELECTION" in plan and "FILTER" not in plan
    plan = table.to_duckdb(duckdb.connect()).filter("price < 30").project("price").explain()
    assert "Filters" in plan
    assert clean.count() == 1000


def test_conditions_order_and_limit_of_the_scan_hold(tmp_path):
    """Such a scan is read by kudulite, of the columns of the query."""
    table = big_table(tmp_path)
    where = [table["id"] >= 100, table["price"] < 40.0]
    scan = table.scan(where=where)
    expected = multiset(table.scan(["note"], where).to_arrow())
    assert all(multiset(found) == expected for found in both(scan, ["note"]))
    ordered = table.scan(["id", "note"], ordered=True, limit=150)
    assert all(found.column("id").to_pylist() == list(range(150)) for found in both(ordered))
    assert ordered.to_polars().head(7).collect().height == 7
    assert table.scan(where=table["id"] < 0).to_polars().collect().height == 0
    assert table.scan(where=table["id"] < 0).to_duckdb().fetchall() == []


def test_names_that_duckdb_cannot_tell_apart(tmp_path):
    """Patterns in a path, names that are equal but for their case, quotes in names."""
    rows = pa.table({"k": range(50), 'a"b': range(50), "A": range(50, 100), "a": range(100, 150)})
    client = kudulite.connect(tmp_path / "a[1]*")
    table = client.create_table("t", rows.schema, primary_key="k")
    table.insert(rows)
    table.upsert(rows.slice(0, 3))
    expected = multiset(rows)
    assert multiset(table.to_polars().collect().to_arrow().select(rows.column_names)) == expected
    found = table.to_duckdb(duckdb.connect()).to_arrow_table()
    assert multiset(found.rename_columns(rows.column_names)) == expected


def test_the_default_connection_is_used_unless_one_is_given(tmp_path):
    """A relation can be named in SQL on its connection."""
    rows = big_table(tmp_path).to_duckdb()
    assert duckdb.sql("SELECT count(*) FROM rows").fetchall() == [(1000,)] and rows is not None


def test_what_cannot_be_read_is_refused_when_the_native_scan_is_made(tmp_path, monkeypatch):
    """The same errors as those of a scan; an engine that is missing names its package."""
    made = TypedTable(tmp_path / "t", 1)
    for name in ("to_polars", "to_duckdb"):
        with pytest.raises(OptionError, match="without columns"):
            getattr(made.table.scan([]), name)()
        with pytest.raises(ColumnNotFoundError):
            getattr(made.table.scan(["nothing"]), name)()
        with pytest.raises(TimestampError):
            getattr(made.table.scan(at="2999-01-01"), name)()
    monkeypatch.setitem(sys.modules, "polars", None)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(NotSupportedError, match="pip install polars"):
        made.table.to_polars()
    with pytest.raises(NotSupportedError, match="pip install duckdb"):
        made.table.to_duckdb()


def test_filters_on_columns_with_odd_names(tmp_path):
    """A filter that DuckDB hands over names its columns in a text, and they are read."""
    odd = ['a"b', "x.y", "$ (z", "é\u2028", "==", "true", "1"]
    rows = pa.table({"k": range(20)} | {name: range(20) for name in odd})
    table = kudulite.connect(tmp_path).create_table("t", rows.schema, primary_key="k")
    session = kudulite.connect(tmp_path).new_session()
    for row in rows.to_pylist():  # all rows are in memory
        session.apply(table.new_insert(row))
    session.flush()
    for name in odd:
        found = table.to_duckdb(duckdb.connect()).filter(duckdb.ColumnExpression(name) > 17)
        assert sorted(found.project("k").fetchall()) == [(18,), (19,)], name
        query = table.to_polars().filter(pl.col(name) > 17).select("k")
        assert sorted(query.collect()["k"].to_list()) == [18, 19], name
