"""Rows by primary key: all key types, moments, and orders of keys."""

import datetime
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kudulite
from kudulite.basefile.block_cache import BlockCache
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.storage.local_storage import LocalStorage
from tests.support.tables.core_tables import CoreTables, environment

MOMENT = datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC)


@pytest.fixture
def table(core: CoreTables) -> Table:
    """A composite key over six tablets with a gap."""
    columns = [
        kudulite.column("s", kudulite.string),
        kudulite.column("t", kudulite.unixtime_micros),
        kudulite.column("d", "decimal(6, 2)"),
        kudulite.column("v", kudulite.int32),
    ]
    table = core.client().create_table(
        "t",
        kudulite.schema(columns, ["s", "t", "d"]),
        hash_partitions=[(["t"], 3)],
        range_partitions={"columns": ["s"], "bounds": [[None, "m"], ["n", None]]},
    )
    table.insert([row(i) for i in range(40)])
    return table


def row(i: int) -> dict:
    """The i-th row."""
    return {
        "s": "az"[i % 2] * (i % 3),
        "t": MOMENT + datetime.timedelta(microseconds=i),
        "d": Decimal(i) / 4 - 2,
        "v": i,
    }


def key(i: int) -> tuple:
    """Its key."""
    return tuple(row(i).values())[:3]


def test_every_row_is_found_by_its_key(table):
    """As tuple or dict, with times as text or datetime; and all columns are in the row."""
    for i in range(40):
        assert table.get(key(i)) == row(i)
        assert table.get({**row(i), "v": None}) == row(i)
    assert table.get(("", "2020-01-01T12:00:00Z", Decimal(-2))) == row(0)
    assert table.get(("", "2020-01-01T13:00:00+01:00", -2)) == row(0)


def test_absent_keys_are_none(table):
    """Not there, deleted, and in a gap between the ranges."""
    table.delete([row(3)])
    assert table.get(key(3)) is None
    assert table.get(("b", MOMENT, Decimal(0))) is None
    assert table.get(("mm", MOMENT, Decimal(0))) is None
    found = table.get_many([key(3), ("mm", MOMENT, 0), ("b", MOMENT, 0), key(4)])
    assert found["v"].to_pylist() == [4]


def test_get_many_keeps_the_order_of_the_keys(table):
    """Also with repeats, over tablets and rowsets."""
    table.insert([row(i) for i in range(40, 80)])
    table.update([{**row(i), "v": -i} for i in range(0, 80, 2)])
    wanted = [77, 3, 3, 40, 0, 79, 41, 2, 40]
    found = table.get_many([key(i) for i in wanted])
    assert found["v"].to_pylist() == [i if i % 2 else -i for i in wanted]
    assert found.schema == table.arrow_schema


def test_get_many_takes_arrow(table):
    """A table with the key columns in any order, and others beside them."""
    keys = pa.Table.from_pylist([row(i) for i in (5, 90, 6)]).select(["v", "t", "d", "s"])
    assert table.get_many(keys)["v"].to_pylist() == [5, 6]


def test_get_many_of_nothing_is_an_empty_table(table):
    """With the table's schema."""
    assert table.get_many([]).num_rows == 0
    assert table.get_many([("x", MOMENT, 1)]).schema == table.arrow_schema


def test_lookups_of_the_past(table):
    """A moment's row, not today's: before the insert, between changes, after a delete."""
    before = table.current_timestamp()
    table.update([{**row(1), "v": 100}])
    middle = table.current_timestamp()
    table.delete([row(1)])
    table.insert([{**row(1), "v": 200}])
    found = [table.get(key(1), at=at) for at in (before, middle, None)]
    assert [r and r["v"] for r in found] == [1, 100, 200]
    many = [table.get_many([key(1), key(2)], at=at)["v"].to_pylist() for at in (before, middle)]
    assert many == [[1, 2], [100, 2]]
    table.truncate()
    assert table.get(key(1)) is None
    assert table.get(key(1), at=middle)["v"] == 100


def test_a_lookup_sees_other_writers_at_once(core, table):
    """Read your writes, and those of other processes that are committed."""
    other = core.client().table("t")
    other.update([{**row(1), "v": 7}])
    assert table.get(key(1))["v"] == 7


def test_tablet_index_says_who_owns_a_key(table):
    """-1 for a gap; the same as the tablets that a scan of the key is planned for."""
    found = table.tablet_index([key(0), key(1), ("mm", MOMENT, 0)]).to_pylist()
    assert found[2] == -1
    for i in (0, 1):
        where = [table["s"] == row(i)["s"], table["t"] == row(i)["t"]]
        (token,) = table.scan_tokens(where=where)
        assert table._store.newest().tablets[found[i]].id == token.tablet_id


def test_scattered_rows_are_those_of_a_scan_also_from_the_cache(core: CoreTables):
    """The cache keeps row groups in narrow types and codes; a short read takes part of one."""
    count = 6 * 8192
    number = np.arange(count)
    odd = pa.array(number % 7 == 0)
    columns = {
        "id": pa.array(number),
        "narrow": pa.array(number % 200 - 100, pa.int64()),
        "wide": pa.array(number * 2**40, pa.int64()),
        "empty": pa.nulls(count, pa.int32()),
        "zero": pa.array(np.where(number % 2, -0.0, 0.0)),
        "real": pa.array(number / 3, pa.float32()),
        "text": pc.if_else(odd, None, pc.cast(pa.array(number % 5), pa.string())),
        "other": pc.cast(pa.array(number), pa.string()),
        "bytes": pa.array([b"x", b""] * (count // 2)),
    }
    rows = pa.table(columns)
    table = core.client().create_table("t", rows.schema, primary_key="id")
    table.insert(rows)
    keys = number[::97]
    for _ in range(2):
        found = table.get_many(pa.table({"id": keys}))
        assert found.equals(rows.take(pa.array(keys)).cast(found.schema))
        assert np.signbit(found["zero"].to_numpy()).tolist() == (keys % 2 == 1).tolist()
    part = table.scan(where=[table["id"] >= 9000, table["id"] < 9100]).to_arrow()
    assert part.equals(rows.slice(9000, 100).cast(part.schema))
    assert table.get(9001) == rows.slice(9001, 1).to_pylist()[0]


@pytest.mark.parametrize("cache_bytes", [64 << 20, 4 << 20])
def test_row_groups_that_do_not_fit_into_the_cache_are_not_kept(core: CoreTables, cache_bytes: int):
    """Many keys at once, in all pages of several row groups, with changes; the rows are equal."""
    count = 300_000
    cache = BlockCache(LocalStorage(), cache_bytes)
    client = Client(core.root, replace(environment(), cache=cache))
    rows = pa.table(
        {
            "k": np.arange(count),
            "v": np.arange(count) * 3,
            "s": pa.array([None, "few", "values"]).take(pa.array(np.arange(count) % 3)),
        }
    )
    table = client.create_table("t", rows.schema, primary_key="k", hash_partitions=[(["k"], 2)])
    table.insert(rows)
    table.update(pa.table({"k": np.arange(0, count, 7), "v": np.full(-(-count // 7), -1)}))
    table.delete(pa.table({"k": np.arange(0, count, 11)}))
    wanted = np.random.default_rng(1).permutation(count + 1000)[:20_000]
    before = cache.statistics
    found = table.get_many({"k": wanted})
    live = wanted[(wanted < count) & (wanted % 11 > 0)]
    expected = rows.take(pa.array(live))
    values = np.where(live % 7 == 0, -1, live * 3)
    assert found.to_pydict() == expected.set_column(1, "v", pa.array(values)).to_pydict()
    after = cache.statistics
    assert after.eviction_count == before.eviction_count
    is_kept = after.size_bytes - before.size_bytes > 1 << 20
    assert is_kept == (cache_bytes > 32 << 20)
