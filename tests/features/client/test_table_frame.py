"""A table as a frame to read."""

import datetime
import statistics
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kudulite

ROWS = [
    {"id": number, "x": number / 3, "city": "abc"[number % 3], "day": datetime.date(2024, 1, 5)}
    for number in range(40)
]
ROWS[7] = {"id": 7, "x": None, "city": None, "day": None}
SCHEMA = pa.schema(
    [("id", pa.int64()), ("x", pa.float64()), ("city", pa.string()), ("day", pa.date32())]
)


@pytest.fixture
def table(core):
    table = core.client().create_table("t", SCHEMA, primary_key="id", hash_partitions=[("id", 3)])
    table.insert(ROWS[:25])
    table.flush()
    table.insert(ROWS[25:])
    return table


def by_id(rows):
    return sorted(rows, key=lambda row: row["id"])


def test_every_way_to_all_rows_gives_the_same_rows(table, tmp_path):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    assert by_id(table) == ROWS
    assert by_id(table.to_arrow().to_pylist()) == ROWS
    assert by_id(pa.table(table).to_pylist()) == ROWS
    assert by_id(polars.DataFrame(table).to_dicts()) == ROWS
    people = table  # noqa: F841 (DuckDB finds it by its name)
    assert by_id(duckdb.connect().sql("FROM people").arrow().read_all().to_pylist()) == ROWS
    assert len(pandas.DataFrame(table)) == len(ROWS)
    assert table.to_parquet(tmp_path / "t.parquet") == len(ROWS)
    assert by_id(pq.read_table(tmp_path / "t.parquet").to_pylist()) == ROWS
    assert pa.schema(table) == SCHEMA.set(0, SCHEMA.field(0).with_nullable(False))


def test_a_table_shows_what_is_in_it_now(table):
    assert table.shape == (40, 4) and len(table) == 40
    assert table.columns == ["id", "x", "city", "day"]
    table.delete([{"id": 0}])
    assert table.shape == (39, 4)
    assert len(list(table)) == 39


def test_a_list_of_columns_is_a_scan(table):
    assert by_id(table[["id", "city"]]) == [{"id": r["id"], "city": r["city"]} for r in ROWS]
    with pytest.raises(kudulite.errors.ColumnNotFoundError):
        table[["id", "town"]]


def test_in_is_refused_with_what_was_meant(table):
    with pytest.raises(kudulite.errors.UsageError, match=r"table\.columns"):
        "id" in table  # noqa: B015


def test_a_notebook_shows_the_first_keys(table):
    shown = table._repr_html_()
    assert all(f">{number}<" in shown for number in range(5)) and ">5<" not in shown


def test_describe_equals_the_statistics_of_the_rows(table):
    found = {row["column"]: row for row in table.describe().to_pylist()}
    numbers = [row["x"] for row in ROWS if row["x"] is not None]
    x = found["x"]
    assert (x["type"], x["count"], x["nulls"]) == ("double", 39, 1)
    assert (float(x["min"]), float(x["max"])) == (min(numbers), max(numbers))
    assert np.isclose(x["mean"], statistics.mean(numbers))
    assert np.isclose(x["std"], statistics.stdev(numbers))
    assert found["city"] | {"count": 39, "nulls": 1, "min": "a", "max": "c"} == found["city"]
    assert found["day"]["min"] == found["day"]["max"] == "2024-01-05"
    assert found["city"]["mean"] is found["day"]["std"] is None


def test_describe_takes_every_type_and_an_empty_table(core):
    columns = {
        "id": pa.int32(), "b": pa.bool_(), "d": pa.decimal128(9, 2), "bin": pa.binary(),
        "at": pa.timestamp("us", "UTC"), "f": pa.float32(), "l": pa.list_(pa.int32()),
    }  # fmt: skip
    client = core.client()
    table = client.create_table("all", pa.schema(list(columns.items())), primary_key="id")
    assert {row["count"] for row in table.describe().to_pylist()} == {0}
    far = pa.array([2**61], pa.int64()).cast(pa.timestamp("us", "UTC"))
    cells = [[1], [True], [1], [b"\xff"], far, [float("nan")], [[1, 2]]]
    rows = [
        pa.array(c, t) if c is not far else far
        for c, t in zip(cells, columns.values(), strict=True)
    ]
    table.insert(pa.table(rows, names=list(columns)))
    found = {row["column"]: row for row in table.describe().to_pylist()}
    assert found["bin"]["min"] == "b'\\xff'" and found["d"]["max"] == "1.00"
    assert found["at"]["min"] and found["l"]["min"] is None


def test_a_sample_is_of_all_rows_alike(table):
    assert by_id(table.sample(100).to_pylist()) == ROWS
    assert table.sample(0).num_rows == 0
    assert table.sample(7, seed=1) == table.sample(7, seed=1)
    counts = Counter(
        each for seed in range(300) for each in table.sample(10, seed=seed)["id"].to_pylist()
    )
    # Each is in a sample with a chance of a quarter: 75 times, with a deviation of 7.5.
    assert (
        set(counts) == set(range(40)) and 40 < min(counts.values()) and max(counts.values()) < 115
    )
    with pytest.raises(kudulite.errors.OptionError, match="0 or more"):
        table.sample(-1)


def test_a_client_is_a_mapping_of_names(core, table):
    client = core.client()
    assert "t" in client and "other" not in client and 5 not in client
    assert list(client) == ["t"] and client["t"].id == table.id
    with pytest.raises(kudulite.errors.TableNotFoundError, match="tables: t"):
        client["other"]
    assert ">t<" in client._repr_html_() and ">40<" in client._repr_html_()


def test_a_notebook_shows_a_damaged_table_beside_the_others(tmp_path):
    client = kudulite.connect(tmp_path, background_maintenance=False)
    for name in ("bad", "good"):
        client.create_table(name, SCHEMA, primary_key="id")
    for file in (tmp_path / "bad" / "manifest").glob("*.json"):
        file.write_bytes(b"{}")
    shown = kudulite.connect(tmp_path)._repr_html_()
    assert ">good<" in shown and ">bad<" in shown and "manifest" in shown
