"""Change tokens: the pieces of a diff scan together are the changes, wherever they are read."""

import pickle

import numpy as np
import pyarrow as pa
import pytest

import kudulite
from kudulite.basefile.base_data import ROW_GROUP_ROWS
from kudulite.client.table import Table
from kudulite.errors import ConflictError
from tests.support.tables.core_tables import CoreTables, altered, in_order, tuples

LARGE_ROWS = 300_000


@pytest.fixture
def large(core: CoreTables) -> Table:
    """One tablet of 300,000 rows in one rowset of three row groups, and a rowset across them."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = core.client().create_table("large", schema, primary_key="k")
    keys = np.arange(LARGE_ROWS) * 2
    table.insert(pa.table({"k": keys, "v": keys % 1000}))
    table.insert(pa.table({"k": keys[::50] + 1, "v": np.zeros(len(keys[::50]), np.int64)}))
    return table


def read(tokens: list[kudulite.ChangeToken]) -> list[tuple]:
    """The changes of tokens, in their order."""
    return [row for token in tokens for batch in token.open() for row in tuples(batch)]


def test_tokens_cut_a_large_tablet_by_keys(large):
    """Each key is told by one of them, in key order over all; without changes there is no token."""
    start = large.current_timestamp()
    assert large.change_tokens(start) == []
    keys = np.arange(0, 2 * LARGE_ROWS, 3000)
    large.update(pa.table({"k": keys, "v": keys}))
    removed = np.arange(2 * ROW_GROUP_ROWS - 10, 2 * ROW_GROUP_ROWS + 10, 2)
    large.delete(pa.table({"k": removed}))
    tokens = large.change_tokens(start, split_size_bytes=1)
    assert len(tokens) >= 3
    rows = read(tokens)
    assert [row[0] for row in rows] == sorted([*keys.tolist(), *removed.tolist()])
    assert rows == tuples(large.changes(start).to_arrow())
    assert len(large.change_tokens(start)) == 1
    assert all(len(group) == 1 for group in kudulite.pack_tokens(tokens, 1))


def test_a_window_from_before_the_first_row_tells_all_rows(core):
    """In batches of at most a row group, however large the table."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = core.client().create_table("t", schema, primary_key="k")
    start = table.current_timestamp()
    keys = np.arange(LARGE_ROWS)
    written = table.insert(pa.table({"k": keys, "v": keys})).timestamp
    batches = list(table.changes(start).to_batches())
    assert max(batch.num_rows for batch in batches) <= ROW_GROUP_ROWS
    found = pa.Table.from_batches(batches)
    assert (found["k"].to_numpy() == keys).all()
    assert found["_change_type"].unique().to_pylist() == ["insert"]
    assert found["_commit_version"].unique().to_pylist() == [written]


def test_a_token_shows_its_window_for_ever(core, large):
    """It travels as bytes, and later writes, flushes and collections do not reach it."""
    start = large.current_timestamp()
    large.delete([{"k": 0}])
    tokens = large.change_tokens(start, images="both")
    before = in_order(read(tokens))
    large.truncate()
    large.insert([{"k": 1, "v": 1}])
    large.maintain(grace_seconds=0)
    copies = [pickle.loads(pickle.dumps(token)) for token in tokens]
    assert in_order(read(copies)) == before
    assert [kudulite.ChangeToken.from_bytes(token.to_bytes()) for token in tokens] == tokens
    with pytest.raises(TypeError, match="expected a ChangeToken, found int"):
        kudulite.ChangeToken.from_bytes(pickle.dumps(1))


def test_a_token_of_a_table_that_is_gone_says_so(core, large):
    """Also when a table of the same name has taken its place; a dropped column is read."""
    start = large.current_timestamp()
    large.delete([{"k": 0}])
    tokens = large.change_tokens(start)
    client = core.client()
    altered(client, "large", lambda alterer: alterer.alter_column("v", rename_to="w"))
    assert read(tokens)[0][:3] == (0, 0, "delete")
    altered(client, "large", lambda alterer: alterer.drop_column("w"))
    assert read(tokens)[0][:3] == (0, 0, "delete")
    client.delete_table("large")
    client.create_table("large", pa.schema([("k", pa.int64())]), primary_key="k")
    with pytest.raises(ConflictError, match="table 'large': tablet .* of a change token is gone"):
        read(tokens)
