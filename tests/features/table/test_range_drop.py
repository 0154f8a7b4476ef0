"""Ranges that are dropped with rows: gone from now on, whole in every read of the past."""

import random
import threading
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import kudulite
from kudulite.chain.manifest import Manifest, Origin
from kudulite.chain.partition import RangeWithHashSchema
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import ConflictError, RowError, SchemaError, TimestampError
from kudulite.kudu.scanner import Scanner
from kudulite.table.memory_flush import flush_table
from kudulite.table.snapshot import ancient_history_mark
from kudulite.table.table_log import Turn
from kudulite.table.table_store import TableStore
from kudulite.upkeep import maintenance
from kudulite.upkeep.alter import TableDraft, alter_table, forget_alterations
from tests.support.tables.core_tables import CoreTables, ManualClock, environment, stored
from tests.support.tables.readings import every_reading, rows_of_tokens
from tests.support.tiers import tiered

ROWS = [{"a": i % 3, "b": i, "v": i} for i in range(0, 100, 7)]


def make_table(client: Client) -> Table:
    """Table t (a, b | v): hash on a, ranges on b from 0 to 50 and to 100; 15 rows."""
    schema = pa.schema([(name, pa.int64()) for name in "abv"])
    bounds = {"columns": ["b"], "bounds": [[0, 50], [50, 100]]}
    table = client.create_table(
        "t", schema, primary_key=["a", "b"], hash_partitions=[(["a"], 2)], range_partitions=bounds
    )
    table.insert(ROWS)
    return table


@pytest.fixture
def client(core: CoreTables) -> Client:
    """A client with the table."""
    client = core.client()
    make_table(client)
    return client


def span(lower: int | None, upper: int | None) -> RangeWithHashSchema:
    """A range of b."""
    ends = [None if end is None else (end,) for end in (lower, upper)]
    return RangeWithHashSchema(*ends)


def alter(table: Table, *steps: tuple[str, int | None, int | None]) -> None:
    """Drop and add ranges in one alteration."""
    made = [partial(getattr(TableDraft, f"{name}_range"), **{
        {"add": "added", "drop": "dropped"}[name]: span(lower, upper)
    }) for name, lower, upper in steps]  # fmt: skip
    alter_table(table._store, made)


@pytest.mark.both
def test_every_reading_of_the_past_shows_the_rows(client: Client):
    """Up to the drop; from its timestamp on, none does."""
    table = client.table("t")
    moment = table.current_timestamp()
    table.update([{"a": 0, "b": 0, "v": 77}])
    alter(table, ("drop", 0, 50))
    (dropped,) = table._store.newest().dropped
    high = [row for row in ROWS if row["b"] >= 50]
    assert every_reading(table) == sorted(high, key=lambda r: (r["a"], r["b"]))
    assert every_reading(table, dropped.timestamp) == every_reading(table)
    assert every_reading(table, moment) == sorted(ROWS, key=lambda r: (r["a"], r["b"]))
    just_before = every_reading(table, dropped.timestamp - 1)
    assert len(just_before) == len(ROWS)
    assert just_before[0]["v"] == 77
    assert table.get((0, 0)) is None
    assert table.get((0, 0), at=moment) == ROWS[0]


@pytest.mark.both
def test_a_key_lives_in_the_dropped_tablet_then_and_in_the_added_one_now(client: Client):
    """Also where the new ranges have other bounds, and when they are dropped in their turn."""
    table = client.table("t")
    first = table.current_timestamp()
    alter(table, ("drop", 0, 50))
    nothing = table.current_timestamp()
    alter(table, ("add", None, 7), ("add", 7, 30))
    assert every_reading(table) == every_reading(table, nothing)
    table.insert([{"a": 0, "b": 0, "v": 1}, {"a": 1, "b": 7, "v": 1}])
    second = table.current_timestamp()
    alter(table, ("drop", None, 7))
    alter(table, ("drop", 7, 30), ("add", 0, 50))
    table.insert([{"a": 1, "b": 7, "v": 2}])
    seen = [[table.get(key, at=at) for key in ((0, 0), (1, 7))] for at in (
        first, nothing, second, None,
    )]  # fmt: skip
    values = [[row and row["v"] for row in rows] for rows in seen]
    assert values == [[0, 7], [None, None], [1, 1], [None, 2]]
    assert [len(every_reading(table, at)) for at in (first, nothing, second, None)] == [15, 7, 9, 8]


def test_predicates_prune_dropped_tablets_by_their_own_ranges(client: Client):
    """Not by the ranges that are at their place in the newest partitioning."""
    table = client.table("t")
    moment = table.current_timestamp()
    alter(table, ("drop", 0, 50), ("drop", 50, 100), ("add", 200, 300), ("add", 300, 400))
    for low, high in ((0, 7), (40, 60), (70, 100), (200, 400)):
        where = [table["b"] >= low, table["b"] < high]
        expected = [row["b"] for row in ROWS if low <= row["b"] < high]
        for ordered in (False, True):
            found = table.scan(["b"], where, at=moment, ordered=ordered).to_pylist()
            assert sorted(row["b"] for row in found) == expected
        tokens = table.scan_tokens(["b"], where, at=moment)
        assert sorted(row["b"] for row in rows_of_tokens(tokens)) == expected
        assert {token.tablet_id for token in tokens}.isdisjoint(
            entry.id for entry in table._store.newest().tablets
        )
    assert len(table.scan_tokens(where=[table["a"] == 1, table["b"] == 7], at=moment)) == 1


def test_scans_that_were_planned_before_a_drop_keep_their_moment(client: Client):
    """Their tablets moved to the past, and another one has their range."""
    table = client.table("t")
    where = [table["b"] < 50]
    expected = stored(table)[:]
    scans = [table.scan(), table.scan(ordered=True), table.scan(at=table.current_timestamp())]
    some, tokens = table.scan(where=where), table.scan_tokens()
    scanner = Scanner(table)
    scanner.set_snapshot(table.current_timestamp())
    alter(table, ("drop", 0, 50), ("add", 0, 50))
    table.insert([{"a": 9, "b": 9, "v": 9}])
    for scan in scans:
        assert sorted(tuple(row.values()) for row in scan.to_pylist()) == expected
        assert scan.count() == 15
    assert some.count() == 8
    assert sorted(tuple(row.values()) for row in rows_of_tokens(tokens)) == expected
    assert sorted(scanner.open().read_all_tuples()) == expected
    alterer = client.new_table_alterer(table)
    alterer.alter_column("b", "c")
    alterer.alter_column("v", "b")
    alterer.alter()
    assert scans[0].count() == 15
    assert some.count() == 8
    assert table.scan(where=table["b"] < 50, at=scans[0].timestamp).count() == 8


@pytest.mark.both
def test_a_range_that_is_dropped_and_added_in_one_alteration_is_empty(client: Client):
    """As in Kudu; an added range that is dropped again leaves nothing."""
    table = client.table("t")
    alter(table, ("drop", 0, 50), ("add", 0, 50), ("add", 100, 200), ("drop", 100, 200))
    assert table.partition_schema.ranges == (span(0, 50), span(50, 100))
    assert [d.range for d in table._store.newest().dropped] == [span(0, 50)]
    assert len(every_reading(table)) == 7
    table.insert([{"a": 0, "b": 0, "v": 5}])
    assert table.get((0, 0))["v"] == 5


def test_a_table_without_ranges_has_none_to_drop(core: CoreTables):
    """Not even to get an empty one."""
    schema = pa.schema([("k", pa.int64())])
    table = core.client().create_table("u", schema, primary_key="k")
    table.insert([{"k": 1}])
    with pytest.raises(SchemaError, match="no range partition columns"):
        alter(table, ("drop", None, None), ("add", None, None))
    assert table.scan().count() == 1


def test_a_drop_is_above_all_that_was_settled(core: CoreTables):
    """Even when the clock of who drops, and of who adds again, is behind the reader's."""
    ahead, behind = ManualClock(1_700_000_060_000_000), ManualClock()
    table = make_table(core.client(clock=ahead))
    moment = table.current_timestamp()
    expected = stored(table, moment)
    late = core.client(clock=behind).table("t")
    alter(late, ("drop", 0, 50))
    alter(late, ("drop", 50, 100), ("add", 50, 100))
    alter(late, ("add", 0, 50))
    stamps = [dropped.timestamp for dropped in late._store.newest().dropped]
    assert moment < stamps[0] < stamps[1]
    assert late.insert([{"a": 1, "b": 7, "v": 0}]).timestamp > stamps[1]
    assert late.insert([{"a": 1, "b": 70, "v": 0}]).timestamp > stamps[1]
    assert stored(table, moment) == expected
    assert len(stored(table)) == 2


@pytest.mark.both
def test_writes_that_were_prepared_before_a_drop_are_refused(client: Client):
    """Of sessions and in bulk, also when the range was added again; the next ones work."""
    table = client.table("t")
    batch = pa.RecordBatch.from_pylist([{"a": 1, "b": 8, "v": 1}], table.arrow_schema)
    write = table.new_bulk_write()
    staged = write.stage([batch])
    session = client.new_session()
    session.apply(table.new_upsert({"a": 1, "b": 9, "v": 1}))
    alter(table, ("drop", 0, 50))
    with pytest.raises(ConflictError, match="altered during a write"):
        write.commit([staged])
    write.abort()
    with pytest.raises(kudulite.KuduliteError):
        session.flush()
    assert "no range partition covers" in str(session.get_pending_errors()[0][0])
    with pytest.raises(RowError, match="no range partition covers"):
        table.upsert(batch)
    alter(table, ("add", 0, 50))
    table.upsert(batch)
    session.apply(table.new_upsert({"a": 1, "b": 9, "v": 1}))
    session.flush()
    assert len(every_reading(table)) == 9


@pytest.mark.both
def test_rows_of_the_log_are_dropped_too(core: CoreTables):
    """They are flushed by the alteration, and stay in the past."""
    table = make_table(core.client(small_write_rows_max=1000))
    table.upsert([{"a": 1, "b": 8, "v": 8}])
    moment = table.current_timestamp()
    alter(table, ("drop", 0, 50))
    other = core.client().table("t")
    for reader in (table, other):
        assert reader.get((1, 8)) is None
        assert reader.get((1, 8), at=moment)["v"] == 8
        assert len(every_reading(reader, moment)) == 16


@pytest.mark.both
def test_a_table_with_dropped_ranges_is_renamed_and_deleted(client: Client):
    """They move with it, and go with it."""
    table = client.table("t")
    moment = table.current_timestamp()
    alter(table, ("drop", 0, 50))
    table = client.rename_table("t", "u")
    assert len(every_reading(table, moment)) == 15
    table.truncate()
    table.maintain(0, 0)
    assert len(every_reading(table, moment)) == 15
    client.delete_table("u")
    assert list(client.root.iterdir()) == []


def test_a_dropped_range_goes_when_it_is_ancient(core: CoreTables):
    """Not before; its folders with the collection; reads before it say that they are too old."""
    clock = ManualClock()
    client = core.client(clock=clock)
    table = make_table(client)
    table = client.new_table_alterer(table).set_history_retention(60).alter()
    moment = table.current_timestamp()
    tokens = table.scan_tokens()
    clock.microseconds += 10**6
    alter(table, ("drop", 0, 50))
    (dropped,) = table._store.newest().dropped
    clock.microseconds += 1
    table.insert([{"a": 0, "b": 99, "v": 99}])
    clock.microseconds += 60 * 10**6 - 3
    table.update([{"a": 0, "b": 99, "v": 100}])
    assert ancient_history_mark(table._store, table._store.newest()) == dropped.timestamp - (
        2 << 12
    )
    assert forget_alterations(table._store) == 0
    table.maintain(0, 0)
    assert table.scan(at=dropped.timestamp - 1).count() == 15
    clock.microseconds += 2
    scan = table.scan(at=dropped.timestamp)
    assert forget_alterations(table._store) == 1
    assert forget_alterations(table._store) == 0
    manifest = table._store.newest()
    assert (manifest.dropped, manifest.history_start) == ((), dropped.timestamp)
    table.maintain(0, 0)
    folders = {path.name for path in (table.path / "tablet").iterdir()}
    assert folders == {entry.id for entry in manifest.tablets}
    assert scan.count() == 7
    with pytest.raises(TimestampError, match="before the ancient history mark"):
        table.scan(at=moment)
    with pytest.raises(TimestampError, match="before the ancient history mark"):
        rows_of_tokens(tokens)
    table.check().raise_if_bad()


def test_a_range_that_was_dropped_just_after_the_mark_stays(core: CoreTables):
    """A tag holds the mark at the moment before, while an older drop is forgotten."""
    clock = ManualClock()
    client = core.client(clock=clock)
    table = client.new_table_alterer(make_table(client)).set_history_retention(60).alter()
    alter(table, ("add", 100, 150))
    for lower in (0, 50):
        clock.microseconds += 10**6
        alter(table, ("drop", lower, lower + 50))
    kept = table._store.newest().dropped[-1]
    moment = table.tag("held", kept.timestamp - 1)
    clock.microseconds += 100 * 10**6
    assert ancient_history_mark(table._store, table._store.newest()) == moment
    assert forget_alterations(table._store) == 1
    assert table._store.newest().dropped == (kept,)
    assert table.scan(at=moment).count() == 7


def test_a_scan_that_was_planned_before_its_range_became_ancient_is_refused(core: CoreTables):
    """It would lack the rows of the range, and nothing would tell."""
    clock = ManualClock()
    client = core.client(clock=clock)
    table = make_table(client)
    table = client.new_table_alterer(table).set_history_retention(0).alter()
    scan, where = table.scan(), table.scan(where=table["b"] < 50)
    clock.microseconds += 10**6
    alter(table, ("drop", 0, 50))
    assert scan.count() == 15
    assert forget_alterations(table._store) == 1
    for read in (scan.count, scan.to_arrow, where.to_arrow, where.count):
        with pytest.raises(TimestampError, match="before the ancient history mark"):
            read()


def test_a_lost_race_drops_nothing_that_a_tag_needs(core: CoreTables, monkeypatch):
    """The tag was made between the mark and the publication."""
    client = core.client()
    table = make_table(client)
    table = client.new_table_alterer(table).set_history_retention(0).alter()
    moment = table.current_timestamp()
    alter(table, ("drop", 0, 50))

    locked = TableStore.locked

    def tag_first(store: TableStore, *given: Any, **options: Any) -> AbstractContextManager[Turn]:
        monkeypatch.undo()
        other = TableStore(table.path, environment())
        with other.locked("tag") as lock:
            tagged = other.newest().successor(Origin("test", 1), "tag", tags={"x": moment})
            assert other.update(lambda _: tagged, other.newest(), lock)
        return locked(store, *given, **options)

    monkeypatch.setattr(TableStore, "locked", tag_first)
    assert forget_alterations(table._store) == 0
    assert table.scan(at=moment).count() == 15


def test_manifests_keep_dropped_ranges(client: Client):
    """With the bounds in the form of the range columns."""
    table = client.table("t")
    alter(table, ("drop", 0, 50), ("add", None, 0))
    manifest = table._store.newest()
    assert Manifest.decode(manifest.encode(), "x") == manifest
    (dropped,) = manifest.dropped
    assert dropped.range == span(0, 50)
    assert [entry.partition.range_index for entry in dropped.tablets] == [0, 0]
    assert manifest.entry(dropped.tablets[0].id) is None
    assert manifest.readable_entry(dropped.tablets[0].id) == dropped.tablets[0]
    assert manifest.timestamp >= dropped.timestamp


@tiered(("seed", "count"), [(0, 12), (1, 12), *((seed, 30) for seed in range(4))])
def test_random_drops_against_a_dictionary(core: CoreTables, seed: int, count: int):
    """Rows in a dictionary, ranges in a list: now, and at every past moment."""
    rng = random.Random(seed)
    client = core.client(small_write_rows_max=rng.choice([0, 1000]))
    table = make_table(client)
    rows = {(row["a"], row["b"]): row["v"] for row in ROWS}
    ranges = [(0, 50), (50, 100)]
    moments = [(table.current_timestamp(), dict(rows))]
    for number in range(count):
        choice = rng.choice(["upsert", "upsert", "delete", "drop", "add", "split", "flush"])
        if choice == "upsert":
            keys = [(rng.randrange(4), rng.randrange(100)) for _ in range(5)]
            keys = [key for key in keys if any(low <= key[1] < high for low, high in ranges)]
            if keys:
                table.upsert([{"a": a, "b": b, "v": number} for a, b in set(keys)])
            rows |= dict.fromkeys(keys, number)
        elif choice == "delete" and rows:
            a, b = rng.choice(sorted(rows))
            table.delete([{"a": a, "b": b}])
            del rows[a, b]
        elif choice == "flush":
            table.flush()
        else:
            steps = random_steps(rng, choice, ranges)
            if steps and ranges:
                alter(table, *steps)
            for name, low, high in steps:
                if name == "drop":
                    rows = {key: v for key, v in rows.items() if not low <= key[1] < high}
        moments.append((table.current_timestamp(), dict(rows)))
    for at, past in [*rng.sample(moments, 4), (None, rows)]:
        expected = [{"a": a, "b": b, "v": v} for (a, b), v in sorted(past.items())]
        assert every_reading(table, at) == expected
        for key in {(rng.randrange(4), rng.randrange(100)) for _ in range(10)}:
            found = table.get(key, at=at)
            assert (found and found["v"]) == past.get(key)
    for at, past in moments:
        assert stored(table, at) == sorted((a, b, v) for (a, b), v in past.items())


def random_steps(rng: random.Random, choice: str, ranges: list[tuple[int, int]]) -> list[tuple]:
    """Steps that drop a range, add one in a gap, or replace one by two; `ranges` follows."""
    steps: list[tuple] = []
    if choice == "add":
        low = rng.randrange(0, 100, 10)
        high = low + rng.choice([10, 20, 50])
        if not any(low < stop and start < high for start, stop in ranges):
            ranges.append((low, high))
            steps.append(("add", low, high))
    elif len(ranges) > 1 or choice == "split":
        low, high = rng.choice(ranges)
        ranges.remove((low, high))
        steps.append(("drop", low, high))
        if choice == "split":
            middle = rng.randrange(low + 1, high)
            for part in ((low, middle), (middle, high)):
                ranges.append(part)
                steps.append(("add", *part))
    return steps


def test_readers_beside_drops_see_all_of_a_range_or_nothing(core: CoreTables):
    """Each write fills the range in one commit; each reader looks at one moment."""
    table = make_table(core.client())
    table.truncate()
    keys = [{"a": a, "b": b} for a in range(3) for b in range(0, 50, 10)]
    whole = [(row["a"], row["b"]) for row in keys]
    done, looks, wrong = threading.Event(), threading.Semaphore(0), []

    def look() -> None:
        mine = core.client().table("t")
        while not done.is_set():
            at = mine.current_timestamp()
            found = [
                mine.scan(at=at).to_pylist(),
                mine.scan(where=mine["b"] < 50, at=at, ordered=True).to_pylist(),
                rows_of_tokens(mine.scan_tokens(at=at)),
                mine.get_many(keys, at=at).to_pylist(),
            ]
            for rows in found:
                places = sorted((row["a"], row["b"]) for row in rows)
                if places not in ([], whole) or len({row["v"] for row in rows}) > 1:
                    wrong.append((at, rows))
            if len({str(sorted(map(str, rows))) for rows in found}) > 1:
                wrong.append((at, found))
            looks.release()

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(8):
        table.upsert([{**key, "v": number} for key in keys])
        assert looks.acquire(timeout=60)
        alter(table, ("drop", 0, 50), ("add", 0, 50))
        assert looks.acquire(timeout=60)
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(table._store.newest().dropped) == 8


@pytest.mark.both
def test_maintenance_leaves_a_range_that_is_dropped_meanwhile(client: Client, monkeypatch):
    """Between its look at the tablets and the work on them; the others are looked after."""
    table, other = client.table("t"), client.table("t")
    table.upsert([{"a": 0, "b": b, "v": 5} for b in (1, 60)])

    def drop_first(store: TableStore, tablet_ids: Collection[str]) -> list[str]:
        monkeypatch.undo()
        alter(other, ("drop", 0, 50))
        return flush_table(store, tablet_ids)

    monkeypatch.setattr(maintenance, "flush_table", drop_first)
    done = table.maintain()
    assert not done.busy_tablet_ids
    assert done.dropped_range_count == 0
    assert len(every_reading(table)) == 8


def test_the_check_reads_dropped_tablets(client: Client):
    """Their files, their rows' places, and that nothing of them outlives the drop."""
    table = client.table("t")
    alter(table, ("drop", 0, 50))
    store, manifest = table._store, table._store.newest()
    files = table.check().raise_if_bad().file_count
    (dropped,) = manifest.dropped

    def publish(name: str, **changes) -> None:
        newest = store.newest()
        with store.locked("test") as lock:
            build = partial(Manifest.successor, origin=Origin("test", 1), commit_id=name, **changes)
            assert store.update(build, newest, lock)

    def problems(**changes) -> str:
        publish("bad", **changes)
        found = "\n".join(table.check().problems)
        before = {name: getattr(manifest, name) for name in changes}
        publish("good", **before)
        return found

    earlier = replace(dropped, timestamp=dropped.timestamp - 1)
    assert "but 1 rowsets end later" in problems(dropped=(earlier,))
    elsewhere = replace(dropped, range=span(0, 10))
    assert "rows belong to another tablet" in problems(dropped=(elsewhere,))
    half = replace(dropped, tablets=dropped.tablets[:1])
    assert "not those of its partitioning" in problems(dropped=(half,))
    twice = replace(dropped, tablets=manifest.tablets)
    assert "a tablet is listed twice" in problems(dropped=(twice,))
    assert problems(dropped=()) == ""
    folder = table.path / "tablet" / dropped.tablets[0].id / "rowset"
    path = next(folder.rglob("base-*"))
    content = path.read_bytes()
    path.write_bytes(content[:-9] + b"x" + content[-8:])
    assert str(path) in "\n".join(table.check().problems)
    path.write_bytes(content)
    assert table.check().raise_if_bad().file_count == files
