"""Calls of a table in a store: how many rounds of requests each waits for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.storage.object_storage import ObjectStorage
from tests.support.doubles.counting_library import CountingLibrary
from tests.support.tables.core_tables import environment

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), ("a", pa.int64()), ("b", pa.int64())])


def rows(count: int, step: int = 1) -> pa.Table:
    """Rows of even numbers."""
    keys = list(range(0, 2 * count, 2 * step))
    return pa.table([keys, [7 * key for key in keys], keys], schema=SCHEMA)


class Place:
    """A directory of tables in the memory of this process."""

    def __init__(self) -> None:
        self._store = MemoryStore()

    def client(self) -> Client:
        """A client that knows nothing."""
        storage = ObjectStorage(self._store, Path("memory:/bucket"))
        return Client(Path("memory:/bucket/d"), environment(storage, small_write_rows_max=100))


@pytest.fixture
def place() -> Place:
    """A table `t` of eight tablets, with a rowset in each."""
    place = Place()
    options = {"primary_key": "k", "hash_partitions": [(["k"], 8)]}
    place.client().create_table("t", SCHEMA, **options).insert(rows(4_000))
    return place


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], int]:
    """How many rounds a call waits for."""
    library = CountingLibrary.installed(monkeypatch)

    def counted(call: Callable[[], object]) -> int:
        library.clear()
        call()
        return library.round_count

    return counted


def warm(place: Place) -> Table:
    """The table in a process that has read and written all of it."""
    table = place.client().table("t")
    assert table.scan().to_arrow().num_rows == 4_000
    table.upsert(rows(100))
    return table


def test_a_table_is_opened_in_three_rounds(place: Place, rounds: Callable):
    """The names, the hint of the versions, and the newest version."""
    assert rounds(lambda: place.client().table("t")) == 3


def test_a_read_looks_once_for_a_newer_version(place: Place, rounds: Callable):
    """One row: one more round, none when its tablet is known. All rows: one for their columns."""
    table = place.client().table("t")
    assert rounds(lambda: table.get(2)) == 2  # its superblock beside the look, then its files
    assert rounds(lambda: table.get(2)) == 1
    table.scan(columns=["a"]).to_arrow()
    assert rounds(lambda: table.get(12)) == 1  # its filter beside the look
    table = warm(place)
    assert rounds(lambda: table.get_many([(4,), (6,)])) <= 3
    assert rounds(lambda: table.get_many([(4,), (6,)])) == 1
    assert rounds(lambda: table.scan(columns=["k"]).to_arrow()) == 1
    assert rounds(table._store.newest) == rounds(table.newest_change) == 1


def test_a_row_in_the_past_is_read_in_as_few(place: Place, rounds: Callable):
    """The moment is checked with the look."""
    table = warm(place)
    moment = table.current_timestamp()
    table.upsert(rows(10))
    assert rounds(lambda: table.get(2, at=moment)) == 1
    assert table.get(2, at=moment) == {"k": 2, "a": 14, "b": 2}


def test_the_changes_of_a_commit_are_found_by_one_look(place: Place, rounds: Callable):
    """Its rows are in memory; with an end there is a look for the moment's version, too."""
    table = warm(place)
    moment = table.current_timestamp()
    table.upsert(rows(90))
    assert rounds(lambda: table.changes(moment, images="both").to_arrow()) <= 2
    assert rounds(lambda: table.changes(moment).to_arrow()) == 1
    assert rounds(lambda: table.changes(moment, table.current_timestamp()).to_arrow()) <= 3


def test_a_small_commit_is_a_look_and_a_put(place: Place, rounds: Callable):
    """Whatever number of tablets has its rows; the first one reads them side by side."""
    table = place.client().table("t")
    table.scan().to_arrow()
    assert rounds(lambda: table.upsert(rows(90))) <= 6
    assert rounds(lambda: table.upsert(rows(90))) == 2


def test_a_bulk_write_waits_as_long_for_one_tablet_as_for_eight(place: Place, rounds: Callable):
    """Files of all tablets are put side by side."""
    table = warm(place)
    narrow = place.client().create_table("narrow", SCHEMA, primary_key="k")
    narrow.insert(rows(4_000))
    waits = []
    for each in (table, narrow):
        for _ in range(2):  # a process looks at the clock of its store once
            each.upsert(rows(100))
            waits.append(rounds(partial(each.upsert, rows(4_000))))
    assert waits[1] == waits[3]
    assert table.scan().to_arrow().sort_by("k").equals(narrow.scan().to_arrow().sort_by("k"))
