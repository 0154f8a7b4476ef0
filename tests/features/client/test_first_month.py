"""The calls that people tried in their first month have the results that they expected."""

from __future__ import annotations

import pickle
import threading
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest

import kudulite
from kudulite.errors import ConflictError, RowError, TableNotFoundError
from tests.support.command_line import error, output

ROWS = [{"id": n, "city": "ab"[n % 2], "x": float(n)} for n in range(10)]


@pytest.fixture
def client(tmp_path) -> kudulite.Client:
    return kudulite.connect(tmp_path / "wh", background_maintenance=False)


@pytest.fixture
def table(client) -> kudulite.Table:
    return client.create_table("t", data=ROWS, primary_key="id")


def test_the_greatest_float_is_right_in_duckdb(client):
    """Of floats without NaN, in memory and in files."""
    pytest.importorskip("duckdb")
    values = np.random.default_rng(0).normal(size=2000)
    made = client.create_table("f", data={"id": range(2000), "x": values}, primary_key="id")
    for _ in range(2):
        assert made.to_duckdb().aggregate("max(x)").fetchall() == [(values.max(),)]
        assert client.sql("SELECT max(x) FROM f").fetchall() == [(values.max(),)]
        made.flush()


def test_a_counter_loses_no_update(client):
    """By one call, or by read_at and a ConflictError."""
    counter = client.create_table("c", data=[{"id": 1, "n": 0}], primary_key="id")

    def count() -> None:
        for _ in range(10):
            counter.update(where="id = 1", set={"n": counter["n"] + 1})

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.get(1) == {"id": 1, "n": 30}
    moment = counter.current_timestamp()
    counter.update(where="id = 1", set={"n": "n + 1"})
    with pytest.raises(ConflictError):
        counter.update([{"id": 1, "n": 31}], read_at=moment)


def test_every_batch_is_a_version_with_its_writer(table):
    table.delete([{"id": 1}])
    deleted = table.versions()[0]
    assert (deleted.operation, deleted.deleted) == ("delete", 1)
    assert "@" in deleted.writer
    assert table.history(1)["_commit_writer"].to_pylist()[-1] == deleted.writer


def test_a_directory_is_looked_after_in_one_command(client, table, tmp_path):
    """One damaged table is a row of its own; the healthy ones are done, and the status is 1."""
    client.create_table("u", data=ROWS, primary_key="id")
    root = tmp_path / "wh"
    for command in ("check", "maintain", "sizes", "metrics", "list"):
        assert "t" in output(command, root)
    folder = next(path for path in (root / "u").iterdir() if path.name == "manifest")
    folder.rename(tmp_path / "gone")
    for command in ("check", "maintain", "sizes", "list"):
        assert "u" in error(command, root)


def test_a_frame_of_another_engine_says_when_it_is_old(client, table):
    """Views of `client.to_duckdb` are made again; a LazyFrame is one snapshot."""
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    client.to_duckdb(connection)
    count = "SELECT count(*) FROM t"
    assert connection.sql(count).fetchall() == [(10,)]
    table.insert([{"id": 99}])
    client.to_duckdb(connection)
    assert connection.sql(count).fetchall() == [(11,)]


def test_moments_are_said_as_people_say_them(table):
    """A version, its number, a result, an age."""
    before = table.upsert([{"id": 5, "x": 50.0}])
    table.delete(where="id = 5")
    for at in (before, before.timestamp, table.versions()[1]):
        assert table.get(5, at=at) == {"id": 5, "city": "b", "x": 50.0}
    table.flush()
    version = max(one.version for one in table.versions() if one.version is not None)
    assert table.scan(version=version).count() == 9
    for at in ("1 hour ago", timedelta(hours=-1)):
        with pytest.raises(kudulite.TimestampError, match="before the table was created"):
            table.scan(at=at)


def test_a_table_is_a_frame(client, table):
    polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
    assert (
        pa.table(table).num_rows == polars.DataFrame(table).height == len(pandas.DataFrame(table))
    )
    assert table.columns == ["id", "city", "x"] and table.shape == (10, 3)
    assert table.sample(3).num_rows == 3 and table.to_arrow().num_rows == 10
    assert [row["id"] for row in table] == sorted(row["id"] for row in table)
    assert "t" in client and client["t"].name == "t"
    assert pickle.loads(pickle.dumps(table.scan())).count() == 10
    assert table.scan(where=("city = ?", ["a"])).count() == 5
    assert table[["id", "x"]].schema.names == ["id", "x"]


def test_every_start_of_a_program_creates_its_table(client):
    """With exist_ok; the error has its name in `kudulite`."""
    for _ in range(2):
        client.create_table("s", data=ROWS, primary_key="id", exist_ok=True)
    with pytest.raises(kudulite.TableExistsError):
        client.create_table("s", data=ROWS, primary_key="id")
    assert len(client["s"]) == 10


def test_messages_say_what_is_wrong(client, table, tmp_path):
    with pytest.raises(RowError, match="batch"):
        client.create_table("d", ROWS, primary_key="id").insert([{"id": 1}, {"id": 1}])
    client.rename_table("t", "renamed")
    with pytest.raises(TableNotFoundError):
        table.scan().to_arrow()
    assert "does not exist" in error("backups", tmp_path / "nothing")


def test_a_layout_has_axes_and_sizes(table):
    table.flush()
    svg = table.plot_layout().to_svg()
    assert "<svg" in svg and "rows" in svg


def test_structs_can_be_kept(client):
    made = client.create_table(
        "n", data=[{"id": 1, "a": {"b": [1]}}], nested="json", primary_key="id"
    )
    assert made.get(1)["a"] == '{"b":[1]}'
