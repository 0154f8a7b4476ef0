"""The ancient history mark: what may be read, what may be collected, and who checks when."""

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from kudulite.chain.manifest import Manifest, Origin
from kudulite.client.table import Table
from kudulite.errors import TimestampError
from kudulite.kudu.errors import KuduInvalidArgument
from kudulite.kudu.scanner import Scanner
from kudulite.kudu.tokens import TokenScanner
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.table.snapshot import ancient_history_mark, is_mark_still_valid, tablet_at
from kudulite.table.table_store import TableStore
from tests.support.tables.core_tables import CoreTables, ManualClock, environment, stored

SECOND = 1_000_000 << 12


@pytest.fixture
def clock() -> ManualClock:
    """The clock of all clients of a test."""
    return ManualClock()


@pytest.fixture
def table(core: CoreTables, clock: ManualClock) -> Table:
    """Table t (k | v) with two tablets and a history of 100 s; a row was written 10 s ago."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    client = core.client(clock=clock)
    table = client.create_table("t", schema, primary_key="k", hash_partitions=[(["k"], 2)])
    table = client.new_table_alterer(table).set_history_retention(100).alter()
    table.insert([{"k": k, "v": 0} for k in range(10)])
    clock.microseconds += 10_000_000
    return table


def publish(store: TableStore, **changes) -> Manifest:
    """The next version with some fields set, as a collection would publish it."""

    def build(manifest: Manifest) -> Manifest:
        return manifest.successor(Origin("test", 1), "changes", **changes)

    published = store.chain.update(build, store.newest())
    assert published is not None
    return published


def test_the_mark_follows_the_clock_up_to_the_newest_commit(table: Table, clock: ManualClock):
    """The newest state is no history, however old it is."""
    store = table._store
    manifest = store.newest()
    assert ancient_history_mark(store, manifest) == clock.now() - 100 * SECOND
    clock.microseconds += 10**9
    assert ancient_history_mark(store, manifest) == manifest.timestamp
    assert stored(table, at=manifest.timestamp) == [(k, 0) for k in range(10)]


def test_a_tag_holds_the_mark_back_but_not_below_the_start_of_history(
    table: Table, clock: ManualClock
):
    """All moments from the oldest tag on stay readable."""
    store, now = table._store, clock.now()
    manifest = replace(store.newest(), tags={"old": now - 500 * SECOND, "new": now})
    assert ancient_history_mark(store, manifest) == now - 500 * SECOND
    start = now - 400 * SECOND
    assert ancient_history_mark(store, replace(manifest, history_start=start)) == start


def test_a_mark_that_passed_a_tag_is_not_valid(table: Table):
    """The tag was made after the mark was found; a tag at the mark keeps what it needs."""
    manifest = replace(table._store.newest(), tags={"a": 5, "b": 9})
    assert [is_mark_still_valid(manifest, mark) for mark in (4, 5, 6, 9)] == [
        True, True, False, False,
    ]  # fmt: skip
    assert is_mark_still_valid(replace(manifest, tags={}), 10)


def test_a_manifest_never_is_older_than_the_start_of_its_history(table: Table):
    """The default snapshot of a directory that cannot be written is its timestamp."""
    manifest = replace(table._store.newest(), history_start=TIMESTAMP_MAX - 1)
    assert manifest.timestamp == TIMESTAMP_MAX - 1


def readings(table: Table, at: int) -> dict[str, Callable[[], object]]:
    """Every way of reading, planned now and run later."""
    scan, ordered = table.scan(at=at), table.scan(at=at, ordered=True)
    tokens = table.scan_tokens(at=at)
    scanner = Scanner(table).set_snapshot(at)
    return {
        "scan": scan.to_arrow,
        "where": table.scan(where=table["v"] == 0, at=at).to_arrow,
        "ordered": ordered.to_arrow,
        "count": scan.count,
        "tokens": lambda: [list(token.open()) for token in tokens],
        "token_scanner": lambda: [TokenScanner(t).read_all_tuples() for t in tokens],
        "scanner": lambda: scanner.open().read_all_tuples(),
        "get": lambda: table.get(3, at=at),
        "get_many": lambda: table.get_many([3, 4], at=at),
    }


WAYS = "scan where ordered count tokens token_scanner scanner get get_many".split()


@pytest.mark.parametrize("name", WAYS)
def test_what_was_collected_after_the_plan_is_refused(name: str, table: Table, clock: ManualClock):
    """Never a part of it; up to the moment from which history is whole it is read."""
    moment = table.insert([{"k": 100, "v": 0}]).timestamp
    clock.microseconds += 1
    later = table.insert([{"k": 101, "v": 0}]).timestamp
    read = {at: readings(table, at)[name] for at in (moment, later)}
    publish(TableStore(table.path, environment(clock=clock)), history_start=later)
    kind = KuduInvalidArgument if "scanner" in name else TimestampError
    with pytest.raises(kind, match="table 't': snapshot .* is before the ancient hist"):
        read[moment]()
    read[later]()


def test_a_collection_between_plan_and_opening_is_seen(table: Table, monkeypatch):
    """The check comes after the tablet was opened, and looks for the newest version."""
    moment = int(table.current_timestamp())
    entry = table._store.newest().tablets[0]
    other = TableStore(table.path, environment())
    opened = tablet_at.__globals__["read_tablet"]

    def open_then_collect(store, entry, until):
        tablet = opened(store, entry, until)
        publish(other, history_start=moment + 1)
        return tablet

    monkeypatch.setitem(tablet_at.__globals__, "read_tablet", open_then_collect)
    with pytest.raises(TimestampError, match=f"HybridTime {moment}.*HybridTime {moment + 1}"):
        tablet_at(table._store, entry, moment)
    monkeypatch.undo()
    assert tablet_at(table._store, entry, moment + 1).live_row_count > 0
    assert tablet_at(table._store, entry, TIMESTAMP_MAX).live_row_count > 0


def test_a_read_whose_files_went_with_their_history_says_so(table: Table):
    """Not that a file is missing."""
    moment = table.current_timestamp()
    entry = table._store.newest().tablets[0]
    other = TableStore(table.path, environment())
    publish(other, history_start=moment + 1)
    gone = replace(entry, id="0" * 32)
    with pytest.raises(TimestampError, match="before the ancient history mark"):
        tablet_at(other, gone, moment)
