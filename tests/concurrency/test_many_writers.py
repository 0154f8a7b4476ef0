"""Four processes that write to one table at the same time, and readers beside them."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import kudulite
from kudulite.client.table import Table
from kudulite.table.table_store import TableStore
from tests.support.tables.core_tables import CoreTables, environment, stored
from tests.support.tiers import by_tier

PROCESSES = 4
WRITES = by_tier(4, 10)
ROWS = 10
WRITER = "tests.support.machines.upsert_process"


@pytest.fixture
def table(core: CoreTables) -> Table:
    """An empty table of four tablets."""
    columns = [kudulite.column("k", kudulite.int32), kudulite.column("v", kudulite.int32)]
    return core.client().create_table(
        "t", kudulite.schema(columns, "k"), hash_partitions=[(["k"], 4)]
    )


class Reader(threading.Thread):
    """Reads until told to stop: every snapshot twice; `problems` is what it found."""

    def __init__(self, folder: Path, *, is_uniform: bool) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._is_uniform = is_uniform
        self.stop = threading.Event()
        self.problems: list[str] = []
        self.scans: list[tuple[int, list[tuple]]] = []

    def run(self) -> None:
        """Scan with fresh and with used stores."""
        try:
            table = Table(TableStore(self._folder, environment()))
            while not self.stop.is_set():
                scan = table.scan()
                first = sorted(zip(*scan.to_arrow().to_pydict().values(), strict=True))
                again = Table(TableStore(self._folder, environment()))
                if stored(again, scan.timestamp) != first:
                    self.problems.append(f"not the same again at {scan.timestamp}")
                if len({k for k, _ in first}) != len(first):
                    self.problems.append(f"a key twice at {scan.timestamp}")
                if self._is_uniform and len({v for _, v in first}) > 1:
                    self.problems.append(f"parts of two writes at {scan.timestamp}: {first}")
                if len(first) % ROWS:
                    self.problems.append(f"a part of a write at {scan.timestamp}: {first}")
                self.scans.append((scan.timestamp, first))
                self.stop.wait(0.02)  # leave the processors to the writers
        except BaseException as error:
            self.problems.append(f"{type(error).__name__}: {error}")
            raise


def waiting_writers(table: Table, operation: str, keys: str) -> list[subprocess.Popen]:
    """Start four processes, which wait for a word to begin."""
    commands = [
        [sys.executable, "-m", WRITER, str(table.path), f"{writer}", f"{WRITES}", operation, keys]
        for writer in range(PROCESSES)
    ]
    processes = [
        subprocess.Popen(
            c, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for c in commands
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    return processes


def results_of(processes: list[subprocess.Popen]) -> list[dict]:
    """Let them all begin, wait for their end, and return what they print."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [error for _, error in outputs] == [""] * PROCESSES
    return [result for out, _ in outputs for result in json.loads(out)]


def run_writers(table: Table, operation: str, keys: str) -> tuple[list[dict], Reader]:
    """Run four processes beside a reader; returns their results and the reader, stopped."""
    processes = waiting_writers(table, operation, keys)
    reader = Reader(table.path, is_uniform=operation == "upsert" and keys == "same")
    reader.start()
    try:
        return results_of(processes), reader
    finally:
        reader.stop.set()
        reader.join()


def expect_readers_unhurt(table: Table, reader: Reader) -> None:
    """The snapshots that were read beside the writers still show the same rows."""
    assert reader.problems == []
    assert reader.scans
    for timestamp, rows in reader.scans[:: max(1, len(reader.scans) // 10)]:
        assert stored(table, timestamp) == rows


@pytest.mark.both
def test_upserts_of_the_same_keys_all_commit(table: Table):
    """All of them, one after the other: each timestamp shows exactly its own ten rows."""
    results, reader = run_writers(table, "upsert", "same")
    assert len(results) == PROCESSES * WRITES
    assert sum(r["inserted"] for r in results) == ROWS
    assert sum(r["updated"] for r in results) == ROWS * (PROCESSES * WRITES - 1)
    assert len({r["timestamp"] for r in results}) == PROCESSES * WRITES
    for result in results:
        expected = [(k, result["value"]) for k in range(ROWS)]
        assert stored(table, result["timestamp"]) == expected
    listed = [one.timestamp for one in table.versions() if one.operation == "upsert"]
    assert sorted(listed) == sorted(r["timestamp"] for r in results)
    expect_readers_unhurt(table, reader)


@pytest.mark.full
def test_upserts_of_disjoint_keys_all_commit(table: Table):
    """40 of 40; every row is there once, from the timestamp of its commit on."""
    results, reader = run_writers(table, "upsert", "disjoint")
    assert sum(r["inserted"] for r in results) == PROCESSES * WRITES * ROWS
    rows = stored(table)
    assert [k for k, _ in rows] == list(range(PROCESSES * WRITES * ROWS))
    for result in results[::4]:
        here = [v for _, v in stored(table, result["timestamp"])]
        before = [v for _, v in stored(table, result["timestamp"] - 1)]
        assert (here.count(result["value"]), before.count(result["value"])) == (ROWS, 0)
    expect_readers_unhurt(table, reader)


@pytest.mark.full
def test_of_inserts_of_the_same_keys_one_is_accepted(table: Table):
    """Each batch of keys is inserted by one process; the others get a row error."""
    results, reader = run_writers(table, "insert", "same")
    accepted = [r for r in results if "refused" not in r]
    assert len(accepted) == WRITES
    assert {r["refused"] for r in results if "refused" in r} == {"key already present"}
    values = {k: r["value"] for r in accepted for k in range(*_keys(r["value"] % 1000))}
    assert stored(table) == sorted(values.items())
    expect_readers_unhurt(table, reader)


@pytest.mark.full
def test_of_rows_that_processes_number_no_two_have_one_id(core: CoreTables):
    """By batches through the logs and by bulk writes at once; ids rise with the commits."""
    columns = [kudulite.column("k", kudulite.int32), kudulite.column("v", kudulite.int32)]
    table = core.client().create_table(
        "n", kudulite.schema(columns, "k", is_unique=False), hash_partitions=[(["k"], 2)]
    )
    results = results_of(waiting_writers(table, "insert", "repeated"))
    assert sum(r["inserted"] for r in results) == PROCESSES * WRITES * ROWS
    found = table.scan(["k", "auto_incrementing_id", "v"]).to_arrow().to_pylist()
    assert len(found) == PROCESSES * WRITES * ROWS
    tablets = table.tablet_index([{"k": k} for k in range(4)]).to_pylist()
    ids = {(tablets[row["k"]], row["auto_incrementing_id"]) for row in found}
    assert len(ids) == len(found)
    assert {tablet for tablet, number in ids if number == 1} == set(tablets)
    # A row that is inserted now is above all of them.
    for k in range(4):
        table.insert([{"k": k, "v": -1}])
        (new,) = table.scan(["auto_incrementing_id"], where=f"k = {k} AND v = -1").to_arrow()[0]
        assert new.as_py() > max(number for tablet, number in ids if tablet == tablets[k])


def _keys(write: int) -> tuple[int, int]:
    return write * ROWS, write * ROWS + ROWS
