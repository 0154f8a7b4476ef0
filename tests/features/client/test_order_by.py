"""Scans in the order of columns: in every form of the result, at every moment."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from kudulite.errors import ConflictError, OptionError, TimestampError
from tests.support.tables.core_tables import ManualClock

ROWS = [
    {"id": n, "v": None if n % 7 == 0 else n * 37 % 11, "city": "abc"[n % 3]} for n in range(60)
]


@pytest.fixture
def table(core):
    """Rows in four tablets, some of them in memory."""
    made = core.client().create_table(
        "t", data=ROWS[:40], primary_key="id", hash_partitions=[(["id"], 4)]
    )
    made.flush()
    made.upsert(ROWS[40:])
    return made


def expected(limit=None):
    rows = sorted(ROWS, key=lambda r: (r["v"] is not None, -(r["v"] or 0), r["city"], r["id"]))
    return [row["id"] for row in rows][:limit]


ORDER = "v DESC NULLS FIRST, city, id"


@pytest.mark.parametrize("limit", [None, 0, 1, 25, 100])
def test_every_form_of_a_scan_has_the_order(table, limit):
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    scan = table.scan(["id"], order_by=ORDER, limit=limit)
    ids = expected(limit)
    assert scan.to_arrow()["id"].to_pylist() == ids
    assert [row["id"] for row in scan] == ids
    assert scan.to_pandas()["id"].tolist() == ids
    assert pa.table(scan)["id"].to_pylist() == ids
    assert polars.DataFrame(scan)["id"].to_list() == ids
    assert scan.to_polars().collect()["id"].to_list() == ids
    assert [row[0] for row in scan.to_duckdb(duckdb.connect()).fetchall()] == ids
    assert scan.count() == len(ids)
    assert scan.schema.names == ["id"]


def test_conditions_and_moments_hold(table):
    moment = table.current_timestamp()
    table.update(where=(), set={"v": 1})
    scan = table.scan(["id"], where="city = 'a'", order_by=["v DESC NULLS FIRST", "id"], at=moment)
    rows = [row for row in ROWS if row["city"] == "a"]
    rows.sort(key=lambda row: (row["v"] is not None, -(row["v"] or 0), row["id"]))
    assert [row["id"] for row in scan] == [row["id"] for row in rows]


def test_a_renamed_column_of_the_order_is_found(table, core):
    scan = table.scan(["id"], order_by=ORDER)
    alterer = core.client().new_table_alterer(table)
    alterer.alter_column("v", rename_to="w")
    alterer.alter()
    assert scan.to_arrow()["id"].to_pylist() == expected()


def test_two_orders_are_refused(table):
    with pytest.raises(OptionError, match="ordered by the key or has order_by"):
        table.scan(ordered=True, order_by="v")


def test_a_pickled_scan_reads_the_same_rows(table):
    """Whatever is written meanwhile; of changes, too."""
    start = table.current_timestamp()
    table.upsert([{"id": 1, "v": 5}])
    scan = table.scan(["id", "v"], where="id < 50", order_by=ORDER, limit=9)
    changes = table.changes(start, images="both")
    texts = [pickle.dumps(each) for each in (scan, changes)]
    results = [each.to_arrow() for each in (scan, changes)]
    table.delete(where=())
    table.flush()
    table.compact()
    for text, result in zip(texts, results, strict=True):
        again = pickle.loads(text)
        assert again.schema == result.schema
        assert again.to_arrow() == result
        assert pickle.loads(pickle.dumps(again)).to_arrow() == result


def test_a_pickled_scan_of_a_table_that_is_another_one_is_refused(core):
    client = core.client()
    table = client.create_table("t", data=ROWS, primary_key="id")
    text = pickle.dumps(table.scan())
    client.delete_table("t")
    client.create_table("t", data=ROWS, primary_key="id")
    with pytest.raises(ConflictError, match="deleted and created again after the read was planned"):
        pickle.loads(text)


def test_a_pickled_scan_before_the_retention_is_refused(core):
    clock = ManualClock()
    table = core.client(clock=clock).create_table("t", data=ROWS, primary_key="id")
    text = pickle.dumps(table.scan())
    assert len(list(pickle.loads(text))) == len(ROWS)
    core.client(clock=clock).new_table_alterer(table).set_history_retention(0).alter()
    clock.microseconds += 10_000_000
    table.upsert(ROWS[:1])
    table.maintain()
    with pytest.raises(TimestampError):
        pickle.loads(text).to_arrow()
