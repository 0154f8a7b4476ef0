"""Batches of a stream: pieces of a snapshot and windows of changes of at most so many rows."""

import itertools
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudulite import ReadRequest
from kudulite.client.table import Table
from kudulite_spark.stream_bounds import (
    CommitCounts,
    changes_end,
    count_commits,
    snapshot_end,
    snapshot_tokens,
)
from tests.support.tables.core_tables import CoreTables
from tests.support.tiers import examples


@pytest.fixture
def table(core: CoreTables) -> Table:
    """3,000 rows in four tablets, in two rowsets each, with updates and deletes."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = core.client().create_table("t", schema, primary_key="k", hash_partitions=[(["k"], 4)])
    keys = np.arange(3_200)
    for half in (keys[::2], keys[1::2]):
        table.insert(pa.table({"k": half, "v": half}))
    table.update(pa.table({"k": keys[::7], "v": keys[::7] * 2}))
    table.delete(pa.table({"k": keys[::16]}))
    return table


def keys_of(tokens) -> list[int]:
    """The keys that tokens read."""
    return [k for token in tokens for batch in token.open() for k in batch.column(0).to_pylist()]


def pieces_of(table: Table, timestamp: int, row_count: int) -> list[list[int]]:
    """The keys of a snapshot, batch by batch."""
    batches, first = [], None
    while True:
        end = snapshot_end(table, timestamp, first, row_count)
        tokens = snapshot_tokens(table.scan_tokens(columns=["k"], at=timestamp), first, end)
        batches.append(sorted(keys_of(tokens)))
        if end is None:
            return batches
        first = end


@pytest.mark.parametrize("row_count", [1_000, 257, 5_000])
def test_pieces_of_a_snapshot_are_all_rows_once_and_of_the_size_asked_for(table, row_count):
    """Only the last has fewer; and all are the same after the table was compacted."""
    at = table.newest_change()
    expected = sorted(table.scan(["k"]).to_arrow().column(0).to_pylist())
    batches = pieces_of(table, at, row_count)
    assert sorted(itertools.chain(*batches)) == expected
    # A piece that ends with a tablet may be short of the deleted rows, which count as rows there.
    assert all(0.9 * row_count <= len(batch) <= row_count for batch in batches[:-1])
    first = snapshot_end(table, at, None, row_count)
    assert first == snapshot_end(table, at, None, row_count)

    def read() -> list[int]:
        tokens = snapshot_tokens(table.scan_tokens(columns=["k"], at=at), None, first)
        return sorted(keys_of(tokens))

    before = read()
    table.delete(pa.table({"k": np.arange(1, 100, 16)}))
    table.compact()
    assert read() == before == batches[0]


def test_an_empty_snapshot_has_no_piece(core):
    """It ends where it begins."""
    table = core.client().create_table("e", pa.schema([("k", pa.int64())]), primary_key="k")
    assert snapshot_end(table, table.newest_change(), None, 10) is None


def test_changes_are_counted_by_commit(table):
    """The moment is that of a key's newest change."""
    start = table.newest_change()
    one = table.update(pa.table({"k": [1, 2, 3], "v": [0, 0, 0]})).timestamp
    two = table.upsert(pa.table({"k": [3, 9_001], "v": [1, 1]})).timestamp
    counts = count_commits(table, start, table.newest_change())
    assert counts.timestamps.tolist() == [one, two]
    assert counts.row_counts.tolist() == [2, 2]
    assert count_commits(table, start, one).row_counts.tolist() == [3]
    assert count_commits(table, two, two).total == 0
    where = [table["k"] > 100]
    assert count_commits(table, start, two, ReadRequest.of(where=where)).row_counts.tolist() == [1]


@dataclass
class Log:
    """Commits of a table without its rows: (moment, keys) ascending."""

    commits: list[tuple[int, list[int]]]
    asked: int = 0

    def count(self, start: int, end: int) -> CommitCounts:
        """As `count_commits` does."""
        self.asked += 1
        newest = {k: at for at, keys in self.commits if start < at <= end for k in keys}
        stamps, row_counts = np.unique(
            np.array(list(newest.values()), np.int64), return_counts=True
        )
        return CommitCounts(start, end, stamps, row_counts.astype(np.int64))


LOGS = st.lists(
    st.tuples(st.integers(1, 1_000), st.lists(st.integers(0, 12), min_size=1, max_size=6)),
    min_size=1,
    max_size=30,
    unique_by=lambda commit: commit[0],
)


@given(LOGS, st.integers(1, 8))
@settings(max_examples=examples(300))
def test_windows_have_so_many_rows_or_one_commit(commits, row_count):
    """And one after the other they reach the end."""
    log = Log(sorted(commits))
    start, last = 0, max(moment for moment, _ in commits)
    while start < last:
        end = changes_end(log.count(start, last), row_count, log.count)
        assert start < end <= last
        window = log.count(start, end)
        assert window.total <= row_count or len(window.timestamps) == 1
        start = end


def test_keys_that_change_all_the_time_are_found_quickly():
    """A window shows only their last change: it is halved, not shrunk commit by commit."""
    rotating = Log([(moment, [moment % 1_000]) for moment in range(1, 5_000)])
    assert changes_end(rotating.count(0, 4_999), 100, rotating.count) >= 50
    assert rotating.asked < 30
    # One look cannot tell that 50 keys change in each commit, and one batch of them does for all.
    log = Log([(moment, list(range(50))) for moment in range(1, 5_000)])
    assert changes_end(log.count(0, 4_999), 10, log.count) == 4_999
