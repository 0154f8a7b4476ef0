"""Readers beside a writer that stands still with the table's lock; see stopped_writer.py.

A read of the present takes no lock: it returns all that was acknowledged, at once. So is a moment
before it read. A moment after it waits, as a write does: the writer that stands still may have
chosen a timestamp up to there.
"""

import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.errors import LockTimeoutError
from tests.support.machines.stopped_writer import (
    ANYWHERE,
    STOPS,
    WORKS,
    StoppedWriter,
    create,
    rows,
)
from tests.support.tables.core_tables import CoreTables, environment, stored, tuples
from tests.support.tiers import tiered

TIMEOUT_SECONDS = 0.5
AT_ONCE_SECONDS = 1.0
# A busy machine may add so much to a wait.
SLACK_SECONDS = 2.0

OLD, NEW = ([tuple(row.values()) for row in rows(value).to_pylist()] for value in (0, 1))
KEYS = [{"k": row[0]} for row in OLD]
WRITES = ("rows", "small", "bulk")
stops = pytest.mark.parametrize("stop", STOPS)


@pytest.fixture
def folder(core: CoreTables) -> Path:
    """A catalog with the table, which has a tag and whose present was read."""
    folder = core.root / "stopped"
    table = create(folder)
    table.tag("before")
    assert stored(table) == OLD
    return folder


def opened(folder: Path, timeout_seconds: float = TIMEOUT_SECONDS) -> kudulite.Table:
    """The table, of a client that has nothing in memory."""
    return Client(folder, environment(lock_timeout_seconds=timeout_seconds)).table("t")


def timed(action: Callable[[], object]) -> tuple[float, object]:
    """The seconds of an action, and what it returns."""
    begin = time.monotonic()
    result = action()
    return time.monotonic() - begin, result


def _of_tokens(table: kudulite.Table) -> list[tuple]:
    tokens = table.scan_tokens(split_size_bytes=1)
    return [row for token in tokens for batch in token.open() for row in tuples(batch)]


def _of_count(table: kudulite.Table) -> list[tuple]:
    """The rows that counts stand for: all are old, or all are new."""
    old, new = (table.scan(where=table["v"] == value).count() for value in (0, 1))
    assert table.scan().count() == len(OLD)
    return OLD if old == len(OLD) else NEW if new == len(NEW) else []


def _of_changes(table: kudulite.Table, since: int) -> list[tuple]:
    """The rows that a table with the old ones has after its changes."""
    found = {row[0]: row for row in OLD}
    listed = table.changes(since).to_pylist()
    assert len({(row.pop("_commit_version"), row.pop("_commit_timestamp")) for row in listed}) <= 1
    for row in listed:
        assert row.pop("_change_type") == "update_postimage"
        found[row["k"]] = tuple(row.values())
    return list(found.values())


def _last_version(table: kudulite.Table, key: int) -> tuple:
    row = table.history(key).to_pylist()[-1]
    return tuple(cell for name, cell in row.items() if not name.startswith("_"))


# Every kind of read of the present; `since` is a moment before the writer began.
READS: dict[str, Callable[[kudulite.Table, int], list[tuple]]] = {
    "scan": lambda table, since: tuples(table.scan().to_arrow()),
    "ordered scan": lambda table, since: tuples(table.scan(ordered=True).to_arrow()),
    "tokens": lambda table, since: _of_tokens(table),
    "get": lambda table, since: [tuple(table.get(key["k"]).values()) for key in KEYS],
    "get_many": lambda table, since: tuples(table.get_many(KEYS)),
    "count": lambda table, since: _of_count(table),
    "changes": _of_changes,
    "history": lambda table, since: [_last_version(table, key["k"]) for key in KEYS],
}


def _written(found: list[tuple]) -> bool:
    """Whether rows are the new ones, or the old ones; of other columns the first three count.

    AssertionError for anything else.
    """
    cut = sorted(row[:2] for row in found)
    for row in found:
        assert len(row) < 3 or row[1] == row[2], f"a row of two writes: {row}"
    assert cut in ([row[:2] for row in OLD], [row[:2] for row in NEW]), found
    return cut == [row[:2] for row in NEW]


@tiered("work", WORKS, quick=("rows", "bulk"))
def test_a_read_of_the_present_waits_for_nobody_wherever_a_writer_stands_still(core, work):
    """In a process that has the table open and in a fresh one, before every durable step.

    A write is there as a whole or not at all, and does not go away again.
    """
    folder = core.root / "stopped"
    create(folder, has_log=True)
    known = opened(folder, timeout_seconds=0.0)
    since = known.current_timestamp()
    assert stored(known) == OLD
    is_written = False
    with StoppedWriter(folder, ANYWHERE, work) as writer:
        for number in writer.stops():
            for name, read in READS.items():
                for who, table in (("known", known), ("fresh", opened(folder, 0.0))):
                    found = _written(read(table, since))
                    assert found >= is_written, f"stop {number}: {name} ({who}) is of the past"
                    is_written = found
            known = Client(folder, known._store.environment).table("t")
        assert number > 3
    assert is_written is False or work in WRITES
    found = [_written(read(opened(folder), since)) for read in READS.values()]
    assert found == [work in WRITES] * len(READS)


@pytest.mark.quick
@stops
def test_a_write_waits_for_the_timeout_and_names_the_holder(folder, stop):
    """The table, the process, its host, since when, and what to do; so for a later moment."""
    with StoppedWriter(folder, stop) as writer:
        table = opened(folder)
        for wait in (
            lambda: table.upsert(rows(2)),
            lambda: table.scan(at=table._store.environment.clock.now()).to_arrow(),
        ):
            begin = time.monotonic()
            with pytest.raises(LockTimeoutError) as error:
                wait()
            assert TIMEOUT_SECONDS <= time.monotonic() - begin < TIMEOUT_SECONDS + SLACK_SECONDS
            text = str(error.value)
            assert re.match(r"table 't': waited 0\.5 s for \S+/t/lock, held by", text)
            work = "row write" if stop == "appended" else r"commit of write \w+"
            host = re.escape(socket.gethostname())
            since = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"
            holder = f"held by {work} of process {writer.pid} on {host} since {since};"
            assert re.search(holder, text)
            assert "lock_timeout_seconds" in text and "kill -CONT" in text


@pytest.mark.quick
@stops
def test_reads_of_settled_moments_answer_at_once(folder, stop):
    """By `at`, `version` and a tag, with rows, counts, keys, changes and history."""
    moment, version = opened(folder).current_timestamp(), opened(folder).version
    with StoppedWriter(folder, stop):
        for read in (
            lambda table: stored(table, table.tags["before"]),
            lambda table: stored(table, moment),
            lambda table: sorted(map(tuple, _cells(table.scan(version=version).to_arrow()))),
        ):
            table = opened(folder)
            seconds, found = timed(lambda table=table, read=read: read(table))
            assert found == OLD and seconds < AT_ONCE_SECONDS
        table = opened(folder)
        seconds, found = timed(lambda: table.scan(at=moment).count())
        assert found == len(OLD) and seconds < AT_ONCE_SECONDS
        seconds, found = timed(lambda: table.changes(table.tags["before"], moment).to_pylist())
        assert found == [] and seconds < AT_ONCE_SECONDS
        seconds, _ = timed(lambda: (table.versions(), table.tags, table.schema))
        assert seconds < AT_ONCE_SECONDS


def _cells(table) -> list[list]:
    return [list(row.values()) for row in table.to_pylist()]


@stops
def test_a_writer_that_goes_on_writes_all_of_its_rows(folder, stop):
    """Whatever timeouts others had meanwhile."""
    moment = opened(folder).current_timestamp()
    with StoppedWriter(folder, stop) as writer:
        for _ in range(2):
            with pytest.raises(LockTimeoutError):
                opened(folder).upsert(rows(2))
        writer.go_on()
        assert stored(opened(folder)) == NEW
    assert stored(opened(folder), moment) == OLD
    assert len(opened(folder).changes(moment).to_pylist()) == len(NEW)


@stops
def test_readers_go_on_at_once_when_the_writer_is_killed(folder, stop):
    """Its write is there as a whole or not at all."""
    with StoppedWriter(folder, stop) as writer:
        table = opened(folder, timeout_seconds=60.0)
        writer.kill()
        seconds, found = timed(lambda: stored(table))
        assert seconds < AT_ONCE_SECONDS + SLACK_SECONDS
    expected = {"unpublished": [OLD], "published": [NEW], "appended": [OLD, NEW]}
    assert found in expected[stop]
    assert opened(folder).upsert(rows(3)).updated == len(OLD)


@pytest.mark.quick
@stops
def test_a_read_of_the_present_returns_what_was_acknowledged_at_once(folder, stop):
    """A writer that stands still has acknowledged nothing, and is in nobody's way."""
    with StoppedWriter(folder, stop):
        found = stored(opened(folder, timeout_seconds=AT_ONCE_SECONDS))
    assert found == (NEW if stop == "published" else OLD)
