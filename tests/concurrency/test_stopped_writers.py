"""Readers beside a writer that stands still with the locks of its tablets; see stopped_writer.py.

The present is not known while such a writer stands still: it may have chosen a timestamp for rows
that it has not published. Moments that were settled before are known, and need no lock.
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
from tests.support.machines.stopped_writer import STOPS, StoppedWriter, create, rows
from tests.support.tables.core_tables import CoreTables, environment, stored

TIMEOUT_SECONDS = 0.5
AT_ONCE_SECONDS = 1.0
# A busy machine may add so much to a wait.
SLACK_SECONDS = 2.0

OLD, NEW = ([tuple(row.values()) for row in rows(value).to_pylist()] for value in (0, 1))
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


@pytest.mark.quick
@stops
def test_a_read_of_the_present_waits_for_the_timeout_and_names_the_holder(folder, stop):
    """The table, the tablet, the process, its host, since when, and what to do."""
    with StoppedWriter(folder, stop) as writer:
        table = opened(folder)
        begin = time.monotonic()
        with pytest.raises(LockTimeoutError) as error:
            table.scan().to_arrow()
        assert TIMEOUT_SECONDS <= time.monotonic() - begin < TIMEOUT_SECONDS + SLACK_SECONDS
    text = str(error.value)
    assert re.match(r"table 't', tablet \w+: waited 0\.5 s for \S+/t/\S+, held by", text)
    work = "row write" if stop == "appended" else r"commit of write \w+"
    host = re.escape(socket.gethostname())
    since = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    assert re.search(f"held by {work} of process {writer.pid} on {host} since {since};", text)
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
                opened(folder).scan().to_arrow()
            with pytest.raises(LockTimeoutError):
                opened(folder).upsert(rows(2))
        writer.go_on()
        assert stored(opened(folder)) == NEW
    assert stored(opened(folder), moment) == OLD
    assert len(opened(folder).changes(moment).to_pylist()) == len(NEW)


@stops
def test_readers_go_on_at_once_when_the_writer_is_killed(folder, stop):
    """Its write is there as a whole, or, of a session, in whole tablets, or not at all."""
    with StoppedWriter(folder, stop) as writer:
        table = opened(folder, timeout_seconds=60.0)
        writer.kill()
        seconds, found = timed(lambda: stored(table))
        assert seconds < AT_ONCE_SECONDS + SLACK_SECONDS
    expected = {"unpublished": [OLD], "published": [NEW], "appended": [OLD, NEW]}
    assert found in expected[stop] or (stop == "appended" and _is_whole_in_tablets(table, found))
    assert opened(folder).upsert(rows(3)).updated == len(OLD)


def _is_whole_in_tablets(table: kudulite.Table, found: object) -> bool:
    values: dict[str, set[int]] = {}
    for key, value in found:
        values.setdefault(table.locate(key).tablet_id, set()).add(value)
    return all(len(each) == 1 for each in values.values())


@stops
@pytest.mark.xfail(
    strict=True,
    raises=LockTimeoutError,
    reason="a read of the present needs the lock of every tablet that is not settled, and waits for"
    " a writer that stands still with it",
)
def test_a_read_of_the_present_returns_what_was_acknowledged_at_once(folder, stop):
    """The goal: a writer that stands still has acknowledged nothing, and is in nobody's way."""
    with StoppedWriter(folder, stop):
        found = stored(opened(folder, timeout_seconds=AT_ONCE_SECONDS))
    assert found == (NEW if stop == "published" else OLD)
