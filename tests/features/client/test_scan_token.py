"""Scan tokens: the pieces of a scan together are the scan, wherever and whenever they are read."""

import dataclasses
import os
import pickle
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

import kudulite
from kudulite.basefile.base_data import ROW_GROUP_ROWS
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import ConflictError
from tests.support.tables.core_tables import CoreTables, in_order, tuples
from tests.support.tiers import tiered

LARGE_ROWS = 300_000


@pytest.fixture
def table(core: CoreTables) -> Table:
    """Four tablets, three rowsets in each, updates and deletes."""
    columns = [kudulite.column("k", kudulite.int32), kudulite.column("v", kudulite.string)]
    table = core.client().create_table(
        "t", kudulite.schema(columns, "k"), hash_partitions=[(["k"], 4)]
    )
    for start in (0, 1, 2):
        table.insert([{"k": k, "v": f"v{k}"} for k in range(start, 90, 3)])
    table.update([{"k": k, "v": None} for k in range(20)])
    table.delete([{"k": k} for k in range(5)])
    return table


@pytest.fixture
def large(core: CoreTables) -> Table:
    """One tablet of 300,000 rows in one rowset of three row groups, and a rowset across them."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = core.client().create_table("large", schema, primary_key="k")
    keys = np.arange(LARGE_ROWS) * 2
    table.insert(pa.table({"k": keys, "v": keys % 1000}))
    table.insert(pa.table({"k": keys[::50] + 1, "v": np.zeros(len(keys[::50]), np.int64)}))
    table.delete(pa.table({"k": keys[ROW_GROUP_ROWS - 5 : ROW_GROUP_ROWS + 5]}))
    return table


def read(tokens) -> list[tuple]:
    """The rows of tokens, in their order."""
    return [row for token in tokens for batch in token.open() for row in tuples(batch)]


def keys_of(tokens) -> np.ndarray:
    """The first column of tokens, in their order."""
    batches = [batch.column(0).to_numpy() for token in tokens for batch in token.open()]
    return np.concatenate(batches) if batches else np.empty(0, np.int64)


@pytest.mark.parametrize("split", [None, 1, 1000])
@pytest.mark.parametrize("ordered", [False, True])
def test_tokens_together_are_the_scan(table, split, ordered):
    """With columns in the order asked for, and predicates."""
    where = [table["k"] >= 10, table["v"].is_not_null()]
    tokens = table.scan_tokens(["v", "k"], where, ordered=ordered, split_size_bytes=split)
    assert in_order(read(tokens)) == in_order((f"v{k}", k) for k in range(20, 90))
    if ordered:
        for token in tokens:
            rows = read([token])
            assert rows == sorted(rows, key=lambda row: row[1])
    assert len({token.timestamp for token in tokens}) == 1
    assert all(token.size_bytes > 0 for token in tokens)


def test_tokens_show_their_moment_for_ever(table):
    """Later writes, garbage collection and truncation do not reach them."""
    tokens = table.scan_tokens()
    before = in_order(read(tokens))
    table.upsert([{"k": k, "v": "later"} for k in range(200)])
    table.truncate()
    table.maintain(0, 0)
    assert in_order(read(tokens)) == before
    assert len(before) == 85


def test_tokens_are_planned_at_a_moment(table):
    """Of the past too: of rowsets that were not there yet nothing is planned."""
    first = table.scan(at=table.current_timestamp())
    table.upsert([{"k": 1000, "v": "new"}])
    assert in_order(read(table.scan_tokens(at=first.timestamp))) == in_order(
        tuples(first.to_arrow())
    )


def test_pruned_tablets_give_no_tokens(table):
    """One key, one tablet; a contradiction or a tablet without rowsets, none."""
    assert len(table.scan_tokens(where=table["k"] == 7)) == 1
    assert table.scan_tokens(where=[table["k"] < 0, table["k"] > 0]) == []
    assert table.scan_tokens(where=table["k"].in_list([])) == []
    table.truncate()
    assert table.scan_tokens() == []


@tiered("how", ["bytes", "pickle"], quick=1)
def test_a_token_is_read_by_another_process(table, how):
    """All it needs travels with it."""
    token = table.scan_tokens(where=table["k"] == 30)[0]
    content = pickle.dumps(token) if how == "pickle" else token.to_bytes()
    load = "pickle.loads" if how == "pickle" else "kudulite.ScanToken.from_bytes"
    code = (
        "import sys, pickle, kudulite;"
        "content = sys.stdin.buffer.read();"
        f"token = {load}(content);"
        "print([batch.to_pylist() for batch in token.open()])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=content,
        capture_output=True,
        check=True,
        env=os.environ,
    )
    assert done.stdout.decode().strip() == "[[{'k': 30, 'v': 'v30'}]]"


def test_bytes_of_something_else_are_refused():
    """Not everything that unpickles is a token."""
    with pytest.raises(TypeError, match="expected a ScanToken, found int"):
        kudulite.ScanToken.from_bytes(pickle.dumps(5))


def test_a_token_of_a_table_that_was_created_again_is_refused(core, table):
    """Its rows are gone, and those of the new table are not what was planned."""
    token = table.scan_tokens()[0]
    client: Client = core.client()
    client.delete_table("t")
    client.create_table("t", table_schema())
    with pytest.raises(ConflictError, match=r"table 't': tablet \w+ of a scan token is gone"):
        list(token.open())


def table_schema() -> kudulite.Schema:
    """Some schema."""
    return kudulite.schema_from_arrow(pa.schema([("k", pa.int32())]), ["k"])


def test_a_large_tablet_is_cut_at_row_groups(large):
    """Every row in one piece, ranges ascending; larger pieces when asked for."""
    expected = np.sort(large.scan(["k"]).to_arrow().column(0).to_numpy())
    assert len(expected) == LARGE_ROWS + LARGE_ROWS // 50 - 10
    tokens = large.scan_tokens(split_size_bytes=1)
    assert len(tokens) == 4
    assert tokens[0].lower is None
    assert tokens[-1].upper is None
    assert [t.upper for t in tokens[:-1]] == [t.lower for t in tokens[1:]]
    parts = [np.sort(keys_of([token])) for token in tokens]
    assert all(len(part) for part in parts)
    assert (np.concatenate(parts) == expected).all()
    assert len(large.scan_tokens(split_size_bytes=1 << 40)) == 1
    whole = large.scan_tokens(split_size_bytes=1 << 40)[0]
    assert abs(whole.row_count_estimate - len(expected)) < 20
    assert sum(token.size_bytes for token in tokens) == whole.size_bytes


def test_ordered_pieces_one_after_another_are_in_key_order(large):
    """Also where rowsets overlap a cut."""
    keys = keys_of(large.scan_tokens(["k"], ordered=True, split_size_bytes=1))
    assert (np.diff(keys) > 0).all()
    assert len(keys) == large.scan().count()


def test_pieces_respect_key_bounds_of_predicates(large):
    """Pieces wholly outside are not planned; the others are narrowed."""
    low, high = 2 * ROW_GROUP_ROWS - 3, 2 * ROW_GROUP_ROWS + 20
    where = [large["k"] >= low, large["k"] < high]
    tokens = large.scan_tokens(["k"], where, split_size_bytes=1)
    assert len(tokens) == 2
    found = keys_of(tokens)
    assert (
        sorted(found.tolist()) == large.scan(["k"], where, ordered=True).to_arrow()["k"].to_pylist()
    )
    assert low <= found.min() <= found.max() < high
    assert len(large.scan_tokens(["k"], large["k"] > 10**9, split_size_bytes=1)) == 0


def test_scans_and_counts_of_several_row_groups(large):
    """Statistics exclude groups only where no delta touches the column."""
    where = large["v"] == 5000
    assert large.scan(where=where).count() == 0
    large.update(pa.table({"k": [2 * ROW_GROUP_ROWS + 100, 0], "v": [5000, 5000]}))
    assert large.scan(where=where, ordered=True).to_pylist() == [
        {"k": 0, "v": 5000},
        {"k": 2 * ROW_GROUP_ROWS + 100, "v": 5000},
    ]
    assert large.scan(where=where).count() == 2
    assert len(large.scan(where=[where, large["k"] > 0]).to_arrow()) == 1
    assert len(large.scan(limit=ROW_GROUP_ROWS + 7).to_arrow()) == ROW_GROUP_ROWS + 7


def test_packing_keeps_order_and_loses_nothing(table):
    """Neighbours go together up to the target; a large one stays alone."""
    tokens = table.scan_tokens(split_size_bytes=1)
    for target in (0, 1, tokens[0].size_bytes * 2 + 1, 1 << 40):
        groups = kudulite.pack_tokens(tokens, target)
        assert [token for group in groups for token in group] == tokens
        assert all(groups)
        assert all(sum(t.size_bytes for t in group) <= target for group in groups if len(group) > 1)
    assert len(kudulite.pack_tokens(tokens, 1 << 40)) == 1
    assert len(kudulite.pack_tokens(tokens, 0)) == len(tokens)
    assert kudulite.pack_tokens([], 100) == []


def test_a_token_names_the_key_that_so_many_rows_come_before(large):
    """In key order, over rowsets and deleted rows; with the key a piece becomes two."""
    (token,) = large.scan_tokens()
    keys = np.sort(keys_of([token]))
    for count in (0, 1, ROW_GROUP_ROWS, len(keys) - 1):
        key, passed = token.key_after(count)
        assert passed == count
        below, above = dataclasses.replace(token, upper=key), dataclasses.replace(token, lower=key)
        assert np.array_equal(np.sort(keys_of([below])), keys[:count])
        assert np.array_equal(np.sort(keys_of([above])), keys[count:])
    assert token.key_after(len(keys)) == (None, len(keys))
