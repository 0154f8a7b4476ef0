"""The timestamp of a version: its rows can be read and restored at it, whatever the clocks say."""

import random
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import kudulite
from kudulite.chain.manifest import Origin, VersionList
from kudulite.errors import LockTimeoutError, NotFoundError, OptionError, TimestampError
from tests.support.doubles.raced_publication import before_publication
from tests.support.tables.core_tables import CoreTables, ManualClock, altered, environment, stored
from tests.support.tiers import tiered

SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int64())])
RANGES = {"columns": ["k"], "bounds": [[0, 100], [100, 200], [200, 300]]}
SECOND = 1_000_000
OLD_TABLES = Path(__file__).parents[1] / "table" / "golden" / "tables"


def rows(keys, value: int = 0) -> pa.Table:
    """Rows of one value."""
    return pa.table({"k": [*keys], "v": [value] * len(keys)}, SCHEMA)


def put(client: kudulite.Client, table: kudulite.Table, keys, value: int = 0) -> None:
    """Write rows to the logs of their tablets, as a session does."""
    with client.new_session() as session:
        for key in keys:
            session.apply(table.new_upsert({"k": key, "v": value}))


@pytest.fixture
def clock() -> ManualClock:
    """The clock of the machine that the tests call slow or fast."""
    return ManualClock()


@pytest.fixture
def client(core: CoreTables, clock: ManualClock) -> kudulite.Client:
    """A client whose small batches are versions."""
    return core.client(clock=clock, small_write_rows_max=0)


@pytest.fixture
def table(client: kudulite.Client) -> kudulite.Table:
    """100 rows of the first of three ranges."""
    table = client.create_table("t", SCHEMA, primary_key="k", range_partitions=RANGES)
    table.insert(rows(range(100)))
    return table


def test_the_undo_of_the_newest_version_keeps_rows_of_all_tablets(client, table):
    """The version before is the flush of one tablet, and rows of another tablet are newer."""
    for key in (5, 105, 205, 6, 106, 206, 7):
        put(client, table, [key], 1)
    before = stored(table)
    table.delete(where="k < 50")
    assert table.versions()[1].operation == "memory flush"
    assert stored(table, table.versions()[1].timestamp) == before
    table.restore(table.versions()[1].timestamp)
    assert stored(table) == before
    table.delete(where="k < 50")
    table.restore(version=table.version - 1)
    assert stored(table) == before


def flush(table: kudulite.Table) -> None:
    """Flush a row that was written a moment ago."""
    put(kudulite.connect(table.path.parent), table, [150])
    table.flush()


def drop_and_forget(table: kudulite.Table) -> None:
    """Drop a range and remove it from the versions, when it is ancient."""
    client = kudulite.connect(table.path.parent, background_maintenance=False)
    altered(client, "t", lambda a: a.drop_range_partition(100, 200).set_history_retention(0))
    table.upsert(rows([299]))
    table.maintain(grace_seconds=3600)


STEPS: dict[str, Callable[[kudulite.Table], object]] = {
    "alter": lambda t: altered(
        kudulite.connect(t.path.parent), "t", lambda a: a.add_column("w", "int64")
    ),
    "tag": lambda t: t.tag("x"),
    "delete_tag": lambda t: (t.tag("x"), t.delete_tag("x")),
    "compact": lambda t: (t.upsert(rows(range(50), 2)), t.compact()),
    "purge": lambda t: t.purge([{"k": 250}]),
    "flush": flush,
    "drop a range": lambda t: altered(
        kudulite.connect(t.path.parent), "t", lambda a: a.drop_range_partition(100, 200)
    ),
    "history collection": drop_and_forget,
    "upsert": lambda t: t.upsert(rows([110])),
    "overwrite": lambda t: t.overwrite(rows([110])),
    "truncate": lambda t: t.truncate(),
    "restore": lambda t: t.restore(version=2),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_version_of_a_slow_clock_is_later_than_all_that_it_shows(core, client, table, step):
    """Also than rows in the logs of other tablets, which a fast clock has stamped."""
    table.upsert(rows([250]))
    fast = core.client(clock=ManualClock(1_700_000_000_000_000 + 60 * SECOND))
    put(fast, fast.table("t"), [260], 7)
    number = table.version
    step(table)
    added = [version for version in table.versions() if version.version > number]
    assert added
    stamps = [version.timestamp for version in reversed(table.versions())]
    assert stamps == sorted(set(stamps))
    newest = [(row["k"], row["v"]) for row in table.scan(["k", "v"]).to_pylist()]
    if step is not STEPS["purge"]:
        moment = added[0].timestamp
        shown = [(row["k"], row["v"]) for row in table.scan(["k", "v"], at=moment).to_pylist()]
        assert sorted(shown) == sorted(newest)
    table.insert_ignore(rows([270]))
    assert table.get(270, at=added[0].timestamp) is None


def test_rows_that_are_logged_after_a_version_are_later_than_it(core, client, table, clock):
    """Its clock was fast; the row's clock is slow."""
    fast = core.client(clock=ManualClock(clock.microseconds + 60 * SECOND))
    fast.table("t").tag("x")
    put(client, table, [150])
    assert not table.scan(version=table.version).to_arrow().filter(pa.compute.field("k") == 150)
    table.restore(version=table.version)
    assert table.get(150) is None


def test_no_version_comes_between_a_commit_and_its_own(core, table, clock, monkeypatch):
    """Another commit waits for the table's lock, and is later, though its rows were staged then."""
    faster = ManualClock(clock.microseconds + SECOND)
    other = core.client(clock=faster, small_write_rows_max=0, lock_timeout_seconds=0.0)
    write = other.table("t").new_bulk_write("insert")
    staged = write.stage(rows([250]).to_batches())

    def commit() -> None:
        with pytest.raises(LockTimeoutError):
            write.commit([staged])

    before_publication(monkeypatch, commit)
    result = table.insert(rows([150, 151]))
    won = table.versions()[0]
    assert (won.version, won.timestamp, won.inserted) == (result.version, result.timestamp, 2)
    later = write.commit([staged])
    assert (later.version, later.inserted) == (won.version + 1, 1)
    assert later.timestamp > won.timestamp
    assert len(stored(table, won.timestamp)) == 102
    table.restore(version=won.version)
    assert [row[0] for row in stored(table)] == [*range(100), 150, 151]


def test_no_version_comes_between_an_alteration_and_its_own(core, table, clock, monkeypatch):
    """Nor that of a purge of a range that was dropped before."""
    table.insert(rows([150, 250]))
    client = core.client(clock=clock)
    altered(client, "t", lambda alterer: alterer.drop_range_partition(200, 300))
    faster = ManualClock(clock.microseconds + SECOND)
    other = core.client(clock=faster, lock_timeout_seconds=0.0).table("t")
    refused = []

    def purge() -> None:
        with pytest.raises(LockTimeoutError) as error:
            other.purge([{"k": 250}])
        refused.append(error)

    before_publication(monkeypatch, purge)
    altered(client, "t", lambda a: a.drop_range_partition(100, 200).add_range_partition(200, 300))
    dropped = table.versions()[0]
    assert (dropped.operation, len(refused)) == ("alter", 1)
    other.purge([{"k": 250}])
    purged = table.versions()[0]
    assert purged.operation == "purge" and purged.timestamp > dropped.timestamp
    assert len(stored(table, dropped.timestamp - 1)) == 101
    assert len(stored(table, dropped.timestamp)) == len(stored(table)) == 100
    client.table("t").insert(rows([210]))
    assert len(stored(table, purged.timestamp)) == 100


@tiered("seed", range(12))
def test_every_version_shows_the_rows_that_it_was_published_with(core, seed):
    """Random writes of three machines, whose clocks are wrong and are set forwards and back."""
    choose = random.Random(seed)
    clocks = [ManualClock(1_700_000_000_000_000 + n * 7 * SECOND) for n in range(3)]
    clients = [core.client(clock=clock, small_write_rows_max=0) for clock in clocks]
    clients[0].create_table("t", SCHEMA, primary_key="k", range_partitions=RANGES)
    tables = [client.table("t") for client in clients]
    shown: dict[int, list[tuple]] = {}
    for step in range(25):
        number = choose.randrange(3)
        client, table = clients[number], tables[number]
        clocks[number].microseconds += choose.choice([0, 1, SECOND, -9 * SECOND])
        keys, version = choose.sample(range(300), 20), table.version
        match choose.choice(
            ["put", "put", "upsert", "delete", "flush", "compact", "tag", "restore"]
        ):
            case "put":
                put(client, table, keys[:5], step)
            case "upsert":
                low = choose.choice([0, 100, 200])
                table.upsert(rows(range(low, low + choose.randint(1, 60)), step))
            case "delete":
                table.delete(where=f"k >= {keys[0]} and k < {keys[0] + 60}")
            case "flush":
                table.flush()
            case "compact":
                table.compact()
            case "tag":
                table.tag(f"tag {step}")
            case "restore" if shown:
                back = choose.choice(list(shown))
                table.restore(version=back)
                assert stored(table) == shown[back], seed
        if table.version > version:
            shown[table.version] = stored(table)
    found = tables[0].versions()
    assert [version.timestamp for version in found] == sorted(
        {version.timestamp for version in found}, reverse=True
    )
    listed = {version.version for version in found}
    for version, expected in shown.items():
        if version in listed:
            rows_then = tables[0].scan(version=version).to_arrow().to_pylist()
            assert sorted(tuple(row.values()) for row in rows_then) == expected, (seed, version)


def test_a_version_is_given_instead_of_a_moment(table):
    """By the number that `versions` lists; by both, neither, or another number it is refused."""
    table.delete(where="k < 50")
    assert table.scan(version=2).count() == 100 and table.scan(version=1).count() == 0
    with pytest.raises(OptionError, match=r"table 't': .* and version 2: give one of them"):
        table.restore(table.current_timestamp(), version=2)
    with pytest.raises(OptionError, match="restore takes a moment, or version=…"):
        table.restore()
    for bad in (0, 4, True, "2"):
        with pytest.raises(NotFoundError, match=r"lists no version .*: 1 to 3; give a number"):
            table.restore(version=bad)
    with pytest.raises(TimestampError, match="restore take a version number as version=…"):
        table.restore(2)
    result = table.restore(version=2, message="undo")
    assert (result.inserted, result.version) == (50, 4) and len(table) == 100
    assert table.restore(version=4).version == 4


def listed(table: kudulite.Table, *versions: tuple[int, str]) -> None:
    """Publish a version as older software lists them: these timestamps and operations."""
    store = table._store
    newest, old = store.newest(), VersionList()
    for number, (timestamp, operation) in enumerate(versions, newest.version + 2 - len(versions)):
        old = old.with_version(number, Origin(operation, int(timestamp)))
    old = replace(old, ordered_from=None)
    made = replace(newest.successor(Origin("test", 1)), versions=old)
    with store.turn() as lock:
        assert store.update(lambda _: made, newest, lock)


def test_a_version_that_older_software_listed_is_right_or_refused(table, clock):
    """Its clock may have been slow, and a memory flush had the time of a row of one tablet."""
    start = table.versions()[0].timestamp
    one = kudulite.Timestamp(start + 1)
    for end in (50, 60, 70):
        clock.microseconds += SECOND
        table.delete(where=f"k < {end}")
    deleted = [version.timestamp for version in reversed(table.versions())][2:]
    plain = [(start, "insert"), (deleted[0], "delete"), (deleted[1], "delete")]
    listed(table, *plain, (deleted[1] + 1, "alter"), (start + 1, "memory flush"))
    numbers = [version.version for version in reversed(table.versions())]
    counts = [table.scan(version=number).count() for number in numbers[:4]]
    assert counts == [100, 50, 40, 40]
    with pytest.raises(TimestampError, match=r"version \d+ \(memory flush\) are not known by"):
        table.restore(version=numbers[4])
    listed(table, *plain, (one, "alter"), (deleted[2], "delete"))
    numbers = [version.version for version in reversed(table.versions())]
    with pytest.raises(TimestampError, match=r"version \d+ \(alter\) are not known by"):
        table.scan(version=numbers[3])
    with pytest.raises(TimestampError, match=r"\(delete\) are not known by"):
        table.scan(version=numbers[1])
    assert table.scan(version=numbers[0]).count() == 100
    assert table.scan(version=numbers[4]).count() == 30
    table.insert(rows([150]))
    newest = table.versions()[0]
    assert table._store.newest().versions.ordered_from == newest.version
    assert table.scan(version=newest.version).count() == 31


@pytest.mark.parametrize("name", ["manifest-4-superblock-3", "manifest-5-superblock-3"])
def test_versions_of_an_older_table_are_restored_or_refused(core, name):
    """A list that software before `ordered_from` has written, as it is on disk."""
    with tarfile.open(OLD_TABLES / f"{name}.tar.xz") as archive:
        archive.extractall(core.root / "db" / "t", filter="data")
    opened = environment(clock=ManualClock(1_795_600_000_000_000))
    table = kudulite.Client(core.root / "db", opened).table("t")
    assert table._store.newest().versions.ordered_from is None
    for version in table.versions():
        try:
            shown = stored(table, version.timestamp)
            table.restore(version=version.version)
        except TimestampError as error:
            assert "are not known by" in str(error) and version.operation == "memory flush"
        else:
            assert stored(table) == shown
