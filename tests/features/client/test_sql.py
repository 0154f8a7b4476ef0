"""client.sql: one SELECT over the tables of a directory, at one moment, and nothing else."""

import random

import duckdb
import pytest

import kudulite
from kudulite.errors import (
    ConflictError,
    KuduliteError,
    NotSupportedError,
    TableNotFoundError,
    TimestampError,
)
from tests.support.tiers import tiered


@pytest.fixture
def client(tmp_path):
    found = kudulite.connect(tmp_path / "tables", background_maintenance=False)
    rows = [{"id": 1, "v": 10}, {"id": 2, "v": 20}]
    for name in ("metrics", "hosts"):
        found.create_table(name, rows, primary_key="id").insert(rows)
    return found


@tiered("seed", range(6))
def test_answers_are_those_of_dictionaries_at_each_moment(tmp_path, seed):
    """After any writes, flushes and compactions a join shows all rows, and later the same."""
    choice = random.Random(seed)
    client = kudulite.connect(tmp_path / "tables", background_maintenance=False)
    tables = [client.create_table(n, [{"id": 0, "v": 0}], primary_key="id") for n in "ab"]
    oracle: list[dict[int, int]] = [{}, {}]
    query = "SELECT a.id, a.v, b.v FROM a JOIN b USING (id) ORDER BY 1"
    past = []
    for _ in range(12):
        side = choice.randrange(2)
        table, rows = tables[side], oracle[side]
        keys = choice.sample(range(20), 6)
        if choice.random() < 0.7:
            new = {key: choice.randrange(100) for key in keys}
            table.upsert([{"id": key, "v": value} for key, value in new.items()])
            rows.update(new)
        else:
            table.delete_ignore([{"id": key} for key in keys])
            for key in keys:
                rows.pop(key, None)
        choice.choice([table.flush, table.compact, table.current_timestamp])()
        expected = [(k, oracle[0][k], oracle[1][k]) for k in sorted(oracle[0]) if k in oracle[1]]
        result = client.sql(query)
        assert result.fetchall() == expected
        past.append((result.timestamp, expected))
    for moment, expected in past:
        assert client.sql(query, at=moment).fetchall() == expected


def test_forms_of_a_result(client):
    """A sum is a whole number, and two columns of one name are both there."""
    result = client.sql("SELECT sum(v) AS n, 1 AS n FROM metrics WHERE id > ?", parameters=[0])
    assert result.to_pylist() == [{"n": 30, "n_1": 1}]
    assert result.to_pandas().to_dict("list") == {"n": [30], "n_1": [1]}
    assert result.to_polars().rows() == result.fetchall() == [(30, 1)]


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO metrics VALUES (3, 3)",
        "COPY metrics TO 'out.csv'",
        "EXPLAIN ANALYZE DELETE FROM metrics",
        "SET threads = 1",
        "ATTACH 'x.db'",
        "INSTALL httpfs",
        "SELECT 1; SELECT 2",
        "",
        "FROM read_csv('/etc/passwd')",
        "FROM read_text('/etc/passwd')",
        "FROM '/etc/passwd'",
        "FROM glob('/etc/*')",
        "SELECT nope FROM metrics",
    ],
)
def test_what_is_no_query_of_tables_is_refused(client, query):
    with pytest.raises(KuduliteError):
        client.sql(query).fetchall()
    assert client.sql("SELECT count(*) FROM metrics").fetchall() == [(2,)]


def test_errors_name_tables_and_moments(client):
    with pytest.raises(TableNotFoundError, match="tables: hosts, metrics.*did you mean metrics"):
        client.sql("FROM metrisc")
    with pytest.raises(TimestampError, match="before the table was created"):
        client.sql("FROM metrics", at="2001-01-01")
    with pytest.raises(NotSupportedError, match=r"only reads.*table\.insert"):
        client.sql("DELETE FROM metrics")


def test_names_are_found_as_sql_writes_them(client):
    below = client.create_directory("sub dir")
    below.create_table("x.y", [{"id": 5}], primary_key="id").insert([{"id": 5}])
    assert client.sql('FROM "sub dir"."x.y"').fetchall() == [(5,)]
    assert client.sql("SELECT count(*) FROM METRICS").fetchall() == [(2,)]
    assert client.sql("WITH w AS (FROM hosts) SELECT count(*) FROM w").fetchall() == [(2,)]
    assert client.sql("SHOW TABLES").fetchall() == [("hosts",), ("metrics",)]


def test_views_of_the_present_never_show_old_rows(client):
    connection = duckdb.connect()
    moment = client.to_duckdb(connection)
    query = "SELECT sum(m.v) FROM metrics m JOIN hosts h USING (id)"
    assert connection.sql(query).fetchall() == [(30,)]
    client.table("metrics").upsert([{"id": 1, "v": 11}])
    with pytest.raises(duckdb.Error, match=f"{ConflictError.__name__}.*to_duckdb"):
        connection.sql(query).fetchall()
    client.to_duckdb(connection)
    assert connection.sql(query).fetchall() == [(31,)]
    client.to_duckdb(connection, at=moment)
    assert connection.sql(query).fetchall() == [(30,)]
