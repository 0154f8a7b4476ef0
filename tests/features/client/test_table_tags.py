"""Tags: a moment with a name is readable, and all after it, until the tag is deleted."""

import threading
from contextlib import suppress

import pyarrow as pa
import pytest

from kudulite.chain.manifest import Manifest
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import LockTimeoutError, NotFoundError, TimestampError, UsageError
from kudulite.table.memory_flush import flush_table
from kudulite.table.snapshot import ancient_history_mark
from kudulite.upkeep.alter import forget_alterations
from kudulite.upkeep.garbage_collection import collect_garbage
from tests.support.doubles.pausing_storage import PausingStorage
from tests.support.tables.core_tables import CoreTables, ManualClock, environment, stored
from tests.support.tables.readings import every_reading

SECOND = 10**6


@pytest.fixture
def clock() -> ManualClock:
    """The clock of the client."""
    return ManualClock()


@pytest.fixture
def client(core: CoreTables, clock: ManualClock) -> Client:
    """A client with table t (k | v), range 0 to 10, history of 60 s, one row."""
    client = core.client(clock=clock)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    ranges = {"columns": ["k"], "bounds": [[0, 10], [10, 20]]}
    table = client.create_table("t", schema, primary_key="k", range_partitions=ranges)
    client.new_table_alterer(table).set_history_retention(60).alter()
    table.insert([{"k": 1, "v": 1}])
    return client


def mark(table: Table) -> int:
    """The ancient history mark now."""
    return ancient_history_mark(table._store, table._store.newest())


def test_a_tag_is_a_moment_by_name(client: Client, clock: ManualClock):
    """Now, or any moment that can be read; the same one again is no error."""
    table = client.table("t")
    first = table.tag("first")
    clock.microseconds += SECOND
    table.update([{"k": 1, "v": 2}])
    table.tag("of now")
    assert table.tag("moment", at=first + 1) == first + 1
    assert table.tag("first", at=first) == first
    assert list(table.tags) == ["first", "moment", "of now"]
    assert stored(table, at=table.tags["first"]) == [(1, 1)]
    assert stored(table, at=table.tags["of now"]) == [(1, 2)]
    assert client.table("t").tags == table.tags


def test_what_a_tag_shows_never_changes(client: Client, clock: ManualClock):
    """It is settled: a later commit, by a clock that is behind, is above it."""
    table = client.table("t")
    clock.microseconds += SECOND
    moment = table.tag("x")
    clock.microseconds -= SECOND
    assert table.insert([{"k": 2, "v": 2}]).timestamp > moment
    assert stored(table, at=moment) == [(1, 1)]


@pytest.mark.both
def test_a_tag_holds_all_moments_after_it_past_the_retention(client: Client, clock: ManualClock):
    """Dropped ranges too; when it is deleted they go."""
    table = client.table("t")
    moment = table.tag("x")
    before = moment - 1
    clock.microseconds += 1
    client.new_table_alterer(table).drop_range_partition(0, 10).alter()
    clock.microseconds += 3600 * SECOND
    table.insert([{"k": 11, "v": 1}])
    assert mark(table) == moment
    assert forget_alterations(table._store) == 0
    table.maintain(0, 0)
    assert every_reading(table, moment) == [{"k": 1, "v": 1}]
    assert every_reading(table, moment + 1) == [{"k": 1, "v": 1}]
    with pytest.raises(TimestampError, match="before the ancient history mark"):
        table.scan(at=before)
    table.delete_tag("x")
    assert mark(table) > moment
    assert forget_alterations(table._store) == 1
    with pytest.raises(TimestampError, match="before the ancient history mark"):
        table.scan(at=moment)
    assert stored(table) == [(11, 1)]


def test_a_moment_that_cannot_be_read_gets_no_tag(client: Client, clock: ManualClock):
    """Before the mark, or ahead of the clock."""
    table = client.table("t")
    moment = table.current_timestamp()
    clock.microseconds += 100 * SECOND
    table.update([{"k": 1, "v": 2}])
    version = table.version
    with pytest.raises(TimestampError, match="before the ancient history mark"):
        table.tag("x", at=moment)
    with pytest.raises(TimestampError, match="ahead of the clock"):
        table.tag("x", at=clock.microseconds + 1)
    assert (table.tags, table.version) == ({}, version)


def test_a_tag_is_refused_when_its_moment_became_ancient_meanwhile(
    client: Client, clock: ManualClock, monkeypatch
):
    """Between its choice and the publication; the present is then chosen again."""
    table = client.table("t")
    client.new_table_alterer(table).set_history_retention(0).alter()
    other = client.table("t")
    moment = table.current_timestamp()
    made = Table.tag.__globals__["make_tag"].__globals__
    original = made["publish_alone"]

    def write_first(*arguments):
        monkeypatch.undo()
        clock.microseconds += 1
        other.upsert([{"k": 1, "v": 9}])
        clock.microseconds += 1
        return original(*arguments)

    monkeypatch.setitem(made, "publish_alone", write_first)
    with pytest.raises(TimestampError, match="before the ancient history mark"):
        table.tag("x", at=moment)
    monkeypatch.setitem(made, "publish_alone", write_first)
    assert stored(table, at=table.tag("x")) == [(1, 9)]


def test_wrong_tags_are_refused(client: Client, clock: ManualClock):
    """The message names what is there."""
    table = client.table("t")
    table.tag("a")
    clock.microseconds += 1
    with pytest.raises(UsageError, match="table 't': tag 'a' is at .*; delete it first"):
        table.tag("a")
    with pytest.raises(NotFoundError, match="table 't' has no tag 'b'; tags: a"):
        table.delete_tag("b")
    for name in ("", "x" * 201, 5, None):
        with pytest.raises(UsageError, match="a name is a text of 1 to 200 bytes"):
            table.tag(name)
    table.delete_tag("a")
    with pytest.raises(NotFoundError, match="tags: none"):
        table.delete_tag("a")


def test_a_deletion_whose_version_is_superseded_and_removed_at_once_succeeds(core: CoreTables):
    """Its version cannot be looked for any more; the tag is gone, which is what was asked for."""
    storage = PausingStorage()
    client = Client(core.root / "root", environment(storage))
    schema = pa.schema([("k", pa.int64())])
    table = client.create_table("t", schema, primary_key="k", hash_partitions=[(["k"], 4)])
    table.tag("x")
    session = client.new_session()
    for k in range(9):
        session.apply(table.new_insert((k,)))
    session.flush()
    other = core.client(lock_timeout_seconds=0.0).table("t")._store

    def overtake() -> None:
        with suppress(LockTimeoutError):  # while the deletion holds the lock
            flush_table(other)
        with suppress(LockTimeoutError):
            collect_garbage(other, grace_seconds=0.0)

    storage.pause_at("after", overtake)
    table.delete_tag("x")
    assert storage.pause_count
    assert table.tags == {}
    with pytest.raises(NotFoundError, match="no tag 'x'"):
        table.delete_tag("x")


def test_tags_outlive_alterations_and_writes(client: Client):
    """They are in every later version, and move with the table's name."""
    table = client.table("t")
    moment = table.tag("x")
    table.upsert([{"k": 2, "v": 2}])
    table.truncate()
    alterer = client.new_table_alterer(table).drop_range_partition(0, 10)
    table = alterer.add_range_partition(-10, 10).rename("u").alter()
    table.flush()
    manifest = table._store.newest()
    assert Manifest.decode(manifest.encode(), "x").tags == table.tags == {"x": moment}
    assert stored(table, at=moment) == [(1, 1)]


def test_tags_made_side_by_side_are_all_there(core: CoreTables, client: Client):
    """Each lost race is tried again."""

    def make(number: int) -> None:
        core.client().table("t").tag(f"tag {number}", at=moment)

    moment = client.table("t").current_timestamp()
    client.new_table_alterer(client.table("t")).set_history_retention(10**9).alter()
    threads = [threading.Thread(target=make, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(client.table("t").tags) == [f"tag {number}" for number in range(6)]
