"""The present is read without a lock: whole, at one moment, whatever is done between its steps.

Another client works meanwhile, ahead of and behind each step of a read.
"""

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kudulite.chain.version_chain import VersionChain
from kudulite.client.table import Table
from kudulite.errors import LockTimeoutError
from kudulite.storage import table_lock
from kudulite.storage.table_lock import TableLock
from kudulite.table import directory_log
from kudulite.table import present as present_module
from kudulite.table.directory_log import DirectoryLog
from kudulite.table.present import present, read_tablets
from kudulite.table.table_store import TableStore
from kudulite.upkeep.garbage_collection import collect_garbage
from kudulite.wal.commit_format import encode_commit
from kudulite.wal.record_format import encode_rows
from tests.support.doubles.interrupted_storage import Interrupted
from tests.support.tables import table_operations
from tests.support.tables.core_tables import CoreTables, environment, in_order, stored, tuples
from tests.support.tables.row_writes import MIDDLE, new_table, op, put, write
from tests.support.tables.table_operations import OPERATIONS, copied
from tests.support.tiers import tiered

CELL_OFFSET = 220  # of the log's end in a lock file
ROWS_SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int32())])
Rows = list[tuple]
Looks = list[tuple[int, Rows]]


class Writer:
    """A client that writes to a table of two tablets, and remembers its rows at each moment."""

    def __init__(self, core: CoreTables) -> None:
        self.table = new_table(core.client(), 2)
        self.rows: dict[int, tuple] = {}
        self.moments: Looks = [(self.table.current_timestamp(), [])]
        self._number = 0
        self._staged: tuple[Any, Any, dict[int, tuple]] | None = None

    def _remember(self, timestamp: int) -> None:
        self.moments.append((timestamp, sorted(self.rows.values())))

    def append(self) -> None:
        """Change rows of both tablets in one commit of the log."""
        self._number += 1
        at, gone = self._number % 3, (self._number + 1) % 3
        operations = []
        for first in (0, MIDDLE):
            operations.append(op("upsert", first + at, v=self._number))
            operations.append(op("delete_ignore", first + gone))
            self.rows[first + at] = (first + at, self._number, 7)
            self.rows.pop(first + gone, None)
        result = write(self.table, *operations)
        assert not result.failures
        self._remember(result.timestamp)

    def stage(self) -> None:
        """Begin a bulk write of rows of one tablet, in the place of one that was not committed."""
        self.abort()
        rows = [{"k": k, "v": -self._number} for k in (MIDDLE + 1, MIDDLE + 3)]
        bulk = self.table.new_bulk_write("upsert", columns=["k", "v"])
        staged = bulk.stage([pa.RecordBatch.from_pylist(rows, ROWS_SCHEMA)])
        self._staged = bulk, staged, {row["k"]: (row["k"], row["v"], 7) for row in rows}

    def abort(self) -> None:
        """End a bulk write that was not committed."""
        if self._staged is not None:
            self._staged[0].abort()
            self._staged = None

    def bulk(self) -> None:
        """Commit the bulk write; rows that the log has of the other tablet stay there."""
        assert self._staged is not None
        (bulk, staged, rows), self._staged = self._staged, None
        timestamp = bulk.commit([staged]).timestamp
        self.rows |= rows
        self._remember(timestamp)

    def flush(self) -> None:
        """Move the rows of the log to rowsets."""
        self.table.flush()

    def collect(self) -> None:
        """Remove all that no version needs: log segments, superblocks, versions."""
        collect_garbage(self.table._store, 0.0, 0.0)

    def at(self, timestamp: int) -> Rows:
        """The rows at a moment."""
        return next(rows for moment, rows in reversed(self.moments) if moment <= timestamp)


ACTIONS: dict[str, list[Callable[[Writer], None]]] = {
    "append": [Writer.append],
    "commit": [Writer.bulk],
    "flush": [Writer.flush],
    "collection": [Writer.flush, Writer.collect],
    "flush between appends": [Writer.append, Writer.flush, Writer.append],
    "commit between appends": [Writer.append, Writer.bulk, Writer.append],
    "all": [
        *(Writer.append, Writer.flush, Writer.bulk, Writer.append),
        *(Writer.collect, Writer.append, Writer.flush, Writer.collect),
    ],
}


class Pauses:
    """Has something done once, ahead of or behind a step of a read; steps are counted.

    Only steps of the thread that made it: background work of other tests takes them, too.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._thread = threading.get_ident()
        self._action: Callable[[], None] | None = None
        self._left = 0
        self._inside: list[str] = []
        self.passed: set[str] = set()
        for owner, name in (
            (directory_log, "read_lock_file"),
            (DirectoryLog, "is_longer"),
            (directory_log, "read_log"),
            (VersionChain, "newest"),
            (os, "pread"),  # between the safe timestamp and the end of the log, too
        ):
            monkeypatch.setattr(owner, name, self._paused(name, getattr(owner, name)))

    def _paused(self, name: str, plain: Callable) -> Callable:
        def step(*arguments: Any, **options: Any) -> Any:
            if threading.get_ident() != self._thread:
                return plain(*arguments, **options)
            if name == "pread" and self._inside[-1:] != ["read_lock_file"]:
                return plain(*arguments, **options)
            self._pause(name)
            self._inside.append(name)
            try:
                result = plain(*arguments, **options)
            finally:
                self._inside.pop()
            self._pause(name)
            return result

        return step

    def _pause(self, name: str) -> None:
        action = self._action
        if action is None:
            return
        self.passed.add(name)
        self._left -= 1
        if self._left < 0:
            self._action = None
            action()

    def arm(self, count: int, action: Callable[[], None]) -> None:
        """Let `count` pauses pass, and act in the next one."""
        self._action, self._left = action, count

    def is_over(self) -> bool:
        """Whether the read had fewer pauses."""
        is_left, self._action = self._action is not None, None
        return is_left


def rows_of_tablets(table: Table) -> tuple[int, Rows]:
    """The time of the present, and its rows at that time, of what one look has found."""
    found, tablets = read_tablets(table._store)
    columns, rows = found.manifest.schema.value_columns, []
    for tablet in tablets:
        for k in (*range(4), *range(MIDDLE, MIDDLE + 4)):
            key = found.manifest.schema.key_encoder([k])
            place = tablet.locate_one(key, None, found.timestamp)
            if place is not None:
                rowset, rowid = place
                rows.append((k, *rowset.read_row(rowid, columns, found.timestamp)))
    return found.timestamp, sorted(rows)


def rows_of_scan(table: Table) -> tuple[int, Rows]:
    """The time and the rows of a scan: it chooses its time, then looks at each tablet."""
    scan = table.scan()
    return scan.timestamp, in_order(tuples(scan.to_arrow()))


@pytest.mark.parametrize("is_first", [True, False], ids=["first look", "later look"])
@pytest.mark.parametrize("reading", [rows_of_tablets, rows_of_scan])
@tiered("action", ACTIONS, quick=["append", "commit between appends"])
def test_the_present_is_whole_whatever_comes_between_its_steps(
    core: CoreTables,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
    reading: Callable[[Table], tuple[int, Rows]],
    is_first: bool,
):
    """It has all that was acknowledged before; its rows are those of its time, and stay so."""
    writer, pauses, looks = Writer(core), Pauses(monkeypatch), Looks()

    def act() -> None:
        for each in ACTIONS[action]:
            each(writer)

    for count in itertools.count():
        table = core.client(lock_timeout_seconds=0.0).table("t")
        if Writer.bulk in ACTIONS[action]:
            writer.stage()
        writer.append()
        if not is_first:
            reading(table)
        writer.append()
        acknowledged = writer.moments[-1][0]
        pauses.arm(count, act)
        timestamp, rows = reading(table)
        is_over = pauses.is_over()
        assert timestamp >= acknowledged
        assert rows == writer.at(timestamp), count
        looks.append((timestamp, rows))
        if is_over:
            break
    writer.abort()
    assert pauses.passed >= {"read_lock_file", "newest", "read_log", "pread"}
    assert ("is_longer" in pauses.passed) == is_first
    writer.append()
    for timestamp, rows in looks:
        assert stored(core.client().table("t"), timestamp) == rows


QUIET = [name for name in OPERATIONS if name not in ("purge", "alter")]  # the past stays as it is


@tiered("name", QUIET, quick=["session", "upsert"])
def test_a_read_beside_each_step_of_an_operation_waits_for_nobody(core: CoreTables, name: str):
    """Also while the lock is held; the rows at its time stay the same."""
    table_operations.new_table(core.client("made"))
    for step in itertools.count():
        storage, looks = Interrupted(step), Looks()
        table = copied(core, "beside", storage=storage).table("t")
        impatient = partial(core.client, "beside", lock_timeout_seconds=0.0)
        known = impatient().table("t")
        start = rows_of_scan(known)

        def look(known: Table = known, looks: Looks = looks, impatient: Any = impatient) -> None:
            looks += [rows_of_scan(known), rows_of_scan(impatient().table("t"))]

        storage.action = look
        OPERATIONS[name](table)
        fresh = core.client("beside").table("t")
        for timestamp, rows in [start, *looks]:
            assert timestamp >= start[0]
            assert stored(fresh, timestamp) == rows, step
        if storage.steps_left >= 0:
            break
    assert step > 1


# -- the lock


def test_no_lock_is_taken_where_the_log_ends_as_it_was_noted(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch
):
    """On a first look, and on one that catches up; after a flush, and where there was no log."""

    def refuse(lock: TableLock) -> TableLock:
        raise AssertionError("a reader has taken the lock")

    table = new_table(core.client(), 2)
    known = core.client().table("t")
    for change in (list, lambda: put(table, 1), lambda: put(table, 2), table.flush):
        change()
        expected = stored(table)
        with monkeypatch.context() as patch:
            patch.setattr(TableLock, "__enter__", refuse)
            for reader in (known, core.client().table("t")):
                assert rows_of_scan(reader)[1] == rows_of_tablets(reader)[1] == expected


UNDER_WAY = """
import sys
from pathlib import Path
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.table_lock import TableLock
from kudulite.wal.log_writer import LogWriter
from kudulite.wal.segment import LogPosition
folder, table_id, segment, offset, commit = sys.argv[1:]
with TableLock(Path(folder) / "lock", 5) as lock:
    lock.announce("row write")
    end = LogPosition(int(segment), int(offset))
    log = LogWriter(LocalStorage(), Path(folder) / "log", table_id, end)
    log.append([bytes.fromhex(commit)])
    print("appended", flush=True)
    sys.stdin.readline()
"""


class AppendUnderWay:
    """Another process that has appended a commit, holds the lock, and has noted nothing yet."""

    def __init__(self, table: Table) -> None:
        store = table._store
        with store.turn() as lock:
            found = present_module.recover(store, lock)
        entry = found.manifest.tablets[0]
        memory = found.memory.writable_stores(store.tablet(entry), found.manifest)
        key = found.manifest.schema.key_encoder([5])
        effects = memory.applier.apply([op("insert", 5, v=5)], [key], [False])
        self.timestamp = found.timestamp + 1
        record = memory.applier.record(effects, self.timestamp)
        commit = encode_commit(self.timestamp, {entry.id: encode_rows(record)})
        arguments = [store.folder, found.manifest.table_id, *found.memory.end, commit.hex()]
        self._process = subprocess.Popen(
            [sys.executable, "-c", UNDER_WAY, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"appended\n"

    def die(self) -> None:
        """End as in a crash; the lock is free then."""
        self._process.kill()
        self._process.communicate()


def test_an_append_of_another_process_that_holds_the_lock_is_not_waited_for(core: CoreTables):
    """On a first look, too. When it has died, its commit counts, behind all that was shown."""
    table = new_table(core.client(), 2)
    put(table, 1, MIDDLE)
    known = core.client(lock_timeout_seconds=0.0).table("t")
    looks = [rows_of_scan(known)]
    append = AppendUnderWay(table)
    try:
        for reader in (known, core.client(lock_timeout_seconds=0.0).table("t")):
            for _ in range(2):
                looks += [rows_of_scan(reader), rows_of_tablets(reader)]
    finally:
        append.die()
    assert {(timestamp, str(rows)) for timestamp, rows in looks} == {
        (append.timestamp - 1, str([(1, 0, 7), (MIDDLE, 0, 7)]))
    }
    timestamp, rows = rows_of_scan(core.client(lock_timeout_seconds=0.0).table("t"))
    assert (timestamp, rows) == (append.timestamp, [(1, 0, 7), (5, 5, 7), (MIDDLE, 0, 7)])
    assert rows_of_scan(known) == (timestamp, rows)
    assert stored(table, timestamp - 1) == looks[0][1]


@pytest.mark.parametrize("lost", ["noted before a start of the machine", "torn"])
def test_an_end_that_may_be_behind_the_log_is_waited_for(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch, lost: str
):
    """Acknowledged rows may be behind it: the reader takes the lock, and finds them."""
    table = new_table(core.client(), 2)
    put(table, 1)
    end = present(table._store).memory.end
    put(table, 2)
    expected = rows_of_scan(table)
    path = Path(table._store.log.lock_path)
    content = bytearray(path.read_bytes())
    if lost == "torn":
        content[-1] ^= 1
    else:
        content[CELL_OFFSET:] = table_lock._pack_log_end(*end)
        monkeypatch.setattr(table_lock, "_this_boot", lambda: 12345)
    path.write_bytes(content)
    with table._store.turn():
        reader = core.client(lock_timeout_seconds=0.0).table("t")
        with pytest.raises(LockTimeoutError):
            reader.scan()
    assert rows_of_scan(reader) == expected
    assert table_lock.read_lock_file(table._store.log.lock_path).is_of_this_boot


def test_a_process_looks_once_behind_the_noted_end(core: CoreTables):
    """Later frames there are of appends under way, until the next holder of the lock."""
    table = new_table(core.client(), 2)
    put(table, 1)
    known = core.client().table("t")
    assert len(rows_of_scan(known)[1]) == 1
    append = AppendUnderWay(table)
    append.die()
    assert len(rows_of_scan(known)[1]) == 1
    store = TableStore(table.path, environment())
    assert present(store).timestamp == append.timestamp
    assert len(rows_of_scan(known)[1]) == 2


def test_the_whole_log_is_read_where_nobody_can_append(core: CoreTables):
    """`is_still`: the caller keeps writers out, and the end could not be noted."""
    table = new_table(core.client(), 2)
    put(table, 1)
    known = core.client().table("t")._store
    before = present(known).timestamp
    append = AppendUnderWay(table)
    append.die()
    assert present(known).timestamp == before
    assert present(known, is_still=True).timestamp == append.timestamp == before + 1
