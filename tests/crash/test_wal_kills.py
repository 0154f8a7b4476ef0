"""A writer of single rows that dies before any durable step, or by kill -9: what was acknowledged.

A flush of a session is whole or absent in all tablets, and so is a batch; moving rows from the log
to rowsets changes nothing that anybody reads. Every case runs once for
each step, where the process ends at once; for each third step, where an error comes up through
everything that handles errors; and, where the step is an append, with a part of it in the file.
After it: reopen, compare now and then, check, write again.
"""

import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.table_lock import TableLock
from kudulite.upkeep.garbage_collection import collect_garbage
from tests.support.doubles.killing_storage import (
    KilledError,
    KillingStorage,
    TearingStorage,
    ran_to_its_end,
)
from tests.support.machines.killed_writer import kill_again_and_again
from tests.support.tables.core_tables import CoreTables, environment, in_order, stored, tuples
from tests.support.tiers import by_tier, tiered

Rows = list[tuple]

MIDDLE = 100  # the first key of the second tablet
END_OFFSET = 220  # of the cell with the end of the log, in a lock file
BASE = [{"k": k, "v": k} for k in (*range(8), *range(100, 108))]
KEYS = (0, 1, 8, 9, 100, 101, 108, 109)
TORN = {"one byte": 0.0, "half": 0.5, "all": 1.0}
WAYS = ("exit", "error", *TORN)
ERROR_EACH = 3


def create(client: Client) -> Table:
    """An empty table of two tablets."""
    columns = [kudulite.column("k", kudulite.int32), kudulite.column("v", kudulite.int32)]
    bounds = [[None, MIDDLE], [MIDDLE, None]]
    return client.create_table(
        "t", kudulite.schema(columns, "k"), range_partitions={"columns": ["k"], "bounds": bounds}
    )


def flush_rows(client: Client, value: int, keys=KEYS) -> int:
    """Upsert keys, delete the one after each, in both tablets; returns the flush's timestamp."""
    table, session = client.table("t"), client.new_session()
    for key in keys:
        session.apply(table.new_upsert({"k": key, "v": value}))
        session.apply(table.new_delete_ignore({"k": key + 2}))
    session.flush()
    return session.last_timestamp


def empty(client: Client) -> None:
    """A table without rows and without a log."""
    create(client)


def base(client: Client) -> None:
    """A table with base data and without a log."""
    create(client).insert(BASE)


def tail(client: Client) -> None:
    """Base data, and a log with new rows, changes of rows on disk, and changes of new rows."""
    base(client)
    flush_rows(client, 1000)
    flush_rows(client, 2000, (0, 8, 10, 100))


def flushed(client: Client) -> None:
    """Base data, rowsets that were flushed from a log, and a log behind them."""
    tail(client)
    client.table("t").flush()
    flush_rows(client, 3000, (1, 9, 100, 110))


def through_the_log(client: Client) -> Client:
    """The same client, but its small batches are no bulk writes."""
    return Client(client.root, replace(client._environment, small_write_rows_max=len(KEYS)))


def batch(client: Client) -> None:
    """A small batch in both tablets: new rows, and changes of rows on disk and in memory."""
    through_the_log(client).table("t").upsert([{"k": k, "v": 7000} for k in KEYS])


def bulk(client: Client) -> None:
    """The same rows staged by a task, and committed apart."""
    table = client.table("t")
    write = table.new_bulk_write("upsert")
    rows = [{"k": k, "v": 7000} for k in KEYS]
    write.commit([write.stage(table_of(table, rows).to_batches())])


def table_of(table: Table, rows: list[dict]):
    """Rows as Arrow."""
    return table.arrow_schema.empty_table().from_pylist(rows, table.arrow_schema)


CASES: dict[str, tuple[Callable[[Client], None], Callable[[Client], object]]] = {
    "the first flush": (empty, lambda client: flush_rows(client, 5000)),
    "a flush over base data": (base, lambda client: flush_rows(client, 5000)),
    "a flush over a log": (flushed, lambda client: flush_rows(client, 5000)),
    "two flushes": (tail, lambda client: [flush_rows(client, 5000), flush_rows(client, 6000)]),
    "a flush of the table": (tail, lambda client: client.table("t").flush()),
    "the next flush of the table": (flushed, lambda client: client.table("t").flush()),
    "a close": (tail, lambda client: [client.table("t").get(0), client.close()]),
    "a small batch": (flushed, batch),
    "the first small batch": (empty, batch),
    "a small staged batch": (flushed, lambda client: bulk(through_the_log(client))),
    "a bulk commit": (flushed, bulk),
    "an overwrite": (flushed, lambda client: client.table("t").overwrite([{"k": 1, "v": 1}])),
    "a collection": (flushed, lambda client: collect_garbage(client.table("t")._store, 0, 0)),
}
# Session flushes; the last has two of them.
FLUSHES = ("the first flush", "a flush over base data", "a flush over a log", "two flushes")


def opened(root: Path, storage=None) -> Client:
    """A client that has seen nothing."""
    return Client(root, environment(storage))


class RecordingStorage(LocalStorage):
    """Remembers the names of durable steps."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def before(self, operation: str, path: Path) -> None:
        """Note a step."""
        self.steps.append(operation)


def run_killed(root: Path, write: Callable[[Client], object], steps: int, way: str) -> bool:
    """Run `write` with `steps` steps to live; returns whether it came to its end."""
    in_child = way == "exit"
    dying = (
        TearingStorage(steps, TORN[way]) if way in TORN else KillingStorage(steps, exits=in_child)
    )
    return ran_to_its_end(lambda: write(opened(root, dying)), in_child=in_child)


def states_of(
    case: str, root: Path, write: Callable[[Client], object]
) -> tuple[list[Rows], list[str]]:
    """The states that a reader may find, oldest first, and the steps of the write."""
    states = [stored(opened(root).table("t"))]
    recording = RecordingStorage()
    if case == "two flushes":
        client = opened(root, recording)
        flush_rows(client, 5000)
        states.append(stored(opened(root).table("t")))
        flush_rows(client, 6000)
    else:
        write(opened(root, recording))
    states.append(stored(opened(root).table("t")))
    return states, recording.steps


QUICK = [*(("the first flush", way) for way in WAYS), ("two flushes", "half")]


@pytest.mark.both
@tiered(("case", "way"), itertools.product(CASES, WAYS), quick=QUICK)
def test_a_writer_killed_at_any_step_leaves_whole_flushes(core: CoreTables, case: str, way: str):
    """All tablets are as before, or after; acknowledged rows are there; the past stays."""
    prepare, write = CASES[case]
    origin, new = core.root / "origin", core.root / "new"
    prepare(opened(origin))
    before = opened(origin).table("t").current_timestamp()
    shutil.copytree(origin, new)
    states, steps = states_of(case, new, write)
    for number, step in enumerate([*steps, "the end"]):
        is_end = number == len(steps)
        if way in TORN and step != "append":
            continue
        if way == "error" and not is_end and number % ERROR_EACH != len(case) % ERROR_EACH:
            continue
        if way == "exit" and not is_end and number % by_tier(4, 1):
            continue
        root = core.root / f"killed-{number}"
        shutil.copytree(origin, root)
        is_done = run_killed(root, write, number, way)
        assert is_done == is_end
        assert stored(opened(root).table("t")) in (states[-1:] if is_done else states)
        assert stored(opened(root).table("t"), before) == states[0], (number, step)
        expect_whole_and_writable(root)
        shutil.rmtree(root)


def expect_whole_and_writable(root: Path) -> None:
    """Check what is there; a snapshot taken now stays as it is, whatever is written after it."""
    client = opened(root)
    table = client.table("t")
    scan = table.scan()
    found = sorted(zip(*scan.to_arrow().to_pydict().values(), strict=True))
    table.check().raise_if_bad()
    expected = dict(found) | {5: 55, 105: 55}
    session = client.new_session()
    for key in (5, 105):
        session.apply(table.new_upsert({"k": key, "v": 55}))
    session.flush()
    for reader in (table, opened(root).table("t")):
        assert stored(reader) == sorted(expected.items())
        assert stored(reader, scan.timestamp) == found
    table.flush()
    fresh = opened(root).table("t")
    assert stored(fresh) == sorted(expected.items())
    assert stored(fresh, scan.timestamp) == found
    fresh.check().raise_if_bad()


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("method", ["set_log_end", "advance_safe_timestamp"])
@tiered("case", FLUSHES, quick=1)
def test_a_writer_killed_at_the_lock_file_leaves_whole_flushes(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch, case: str, method: str, is_after: bool
):
    """A frame that is durable while the lock file does not say so is there for all, or for none."""
    prepare, write = CASES[case]
    origin, new = core.root / "origin", core.root / "new"
    prepare(opened(origin))
    shutil.copytree(origin, new)
    states, _ = states_of(case, new, write)
    for call in range(2 if case == FLUSHES[-1] else 1):
        root = core.root / f"killed-{call}"
        shutil.copytree(origin, root)
        with monkeypatch.context() as patch:
            calls = itertools.count()
            kept = getattr(TableLock, method)

            def dies(*arguments, call=call, calls=calls, kept=kept, **options):
                if next(calls) != call:
                    return kept(*arguments, **options)
                if is_after:
                    kept(*arguments, **options)
                raise KilledError(method)

            patch.setattr(TableLock, method, dies)
            with pytest.raises(KilledError):
                write(opened(root))
        assert stored(opened(root).table("t")) in states
        expect_whole_and_writable(root)


LOOKS: dict[str, Callable[[Table], Rows]] = {
    "scan": stored,
    "ordered": lambda table: tuples(table.scan(ordered=True).to_arrow()),
    "tokens": lambda table: in_order(
        row for token in table.scan_tokens() for batch in token.open() for row in tuples(batch)
    ),
    "count": lambda table: [()] * table.scan().count(),
    "get": lambda table: [tuple(row.values()) for k in range(120) if (row := table.get(k))],
    "get_many": lambda table: tuples(table.get_many([{"k": k} for k in range(120)])),
}


def lost_cells(now: bytes, before: bytes, damage: str) -> bytes:
    """A lock file as a power failure may leave it, of its content and that of an earlier time."""
    return {
        "older": before,
        "torn": now[:-1] + bytes([now[-1] ^ 1]),
        "older timestamp": before[:END_OFFSET] + now[END_OFFSET:],
        "torn timestamp": now[:8] + bytes([now[8] ^ 1]) + now[9:],
        "older end": now[:END_OFFSET] + before[END_OFFSET:],
        "short": now[:7],
    }[damage]


DAMAGES = ("older", "torn", "older timestamp", "torn timestamp", "older end", "short")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("look", LOOKS)
def test_what_was_acknowledged_outlives_the_lock_file(core: CoreTables, look: str, damage: str):
    """After a power failure the lock file may be behind the log, or torn: it is not fsynced."""
    root = core.root / "table"
    base(opened(root))
    (path,) = root.rglob("lock")
    before = path.read_bytes()
    flush_rows(opened(root), 5000)
    expected = stored(opened(root).table("t"))
    path.write_bytes(lost_cells(path.read_bytes(), before, damage))
    found = LOOKS[look](opened(root).table("t"))
    assert found == ([()] * len(expected) if look == "count" else expected)
    expect_whole_and_writable(root)


@tiered("kills", [2, 8], quick=1)
def test_a_writer_killed_at_random_moments_loses_nothing(core: CoreTables, kills: int):
    """A process that is killed by the system, again and again on one table, while it writes."""
    report = kill_again_and_again(core.root / "killed", kills=kills, seed=1)
    assert report.kills == kills
    assert report.acknowledged > kills
