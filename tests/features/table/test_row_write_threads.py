"""Threads that write rows to one table: written together, each told of its own; and forks."""

import errno
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple

import pytest

from kudulite.client.table import Table
from kudulite.errors import LockTimeoutError, RetryableError, RowError, StorageError
from kudulite.storage import table_lock
from kudulite.storage.table_lock import TableLock
from kudulite.table.write_queue import WriteQueue
from kudulite.tablet.row_effects import RowOperation, RowWriteResult
from kudulite.writes.row_write import RowWriter, TableWrite
from tests.support.doubles.killing_storage import HalfStorage
from tests.support.tables.core_tables import CoreTables, stored
from tests.support.tables.row_writes import (
    NotingStorage,
    entry_of,
    new_table,
    op,
    put,
    reasons,
    store_of,
    unflushed,
    write,
)

WAIT_SECONDS = 60.0
PRESENT = RowError.REASON_ALREADY_PRESENT


class Crowd:
    """Threads that all wait for one table, whose lock the test holds until all have come."""

    def __init__(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table = table
        self.results: dict[int, RowWriteResult | BaseException] = {}
        self._came = threading.Semaphore(0)
        add = WriteQueue.add

        def noticed(queue: WriteQueue, item: object) -> None:
            add(queue, item)
            self._came.release()

        monkeypatch.setattr(WriteQueue, "add", noticed)

    def write(self, *flushes: list[RowOperation] | Callable[[], object]) -> None:
        """Write each flush in a thread of its own; they come to the queue in this order."""
        with self.table._store.turn():
            threads = []
            for number, flush in enumerate(flushes):
                threads.append(threading.Thread(target=self._write, args=(number, flush)))
                threads[-1].start()
                assert self._came.acquire(timeout=WAIT_SECONDS)
        for thread in threads:
            thread.join()

    def _write(self, number: int, flush: list[RowOperation] | Callable[[], object]) -> None:
        try:
            self.results[number] = flush() if callable(flush) else write(self.table, *flush)
        except BaseException as error:
            self.results[number] = error


def test_who_waits_for_a_table_is_written_together(core: CoreTables, monkeypatch):
    """One frame for all, at one timestamp; each gets its own counts and refusals."""
    disk = NotingStorage()
    table = new_table(core.client(storage=disk))
    put(table, 0)
    disk.steps.clear()
    crowd = Crowd(table, monkeypatch)
    crowd.write(*([op("insert", k), op("insert", 0), op("upsert", 0, v=k)] for k in range(1, 6)))
    assert disk.count("append") == 1
    for result in crowd.results.values():
        assert astuple(result.counts) == (1, 1, 0, 0, 0)
        assert reasons(result) == [(1, PRESENT)]
        assert result.timestamp == unflushed(table)[-1].timestamp
    assert stored(table) == [(0, 5, 7), *((k, None, 7) for k in range(1, 6))]


def test_of_threads_that_insert_one_key_one_does(core: CoreTables, monkeypatch):
    """The first that came; the others are told that it is there."""
    table = new_table(core.client())
    crowd = Crowd(table, monkeypatch)
    crowd.write(*([op("insert", 1, v=number)] for number in range(4)))
    assert [reasons(crowd.results[n]) for n in range(4)] == [[], *[[(0, PRESENT)]] * 3]
    assert stored(table) == [(1, 0, 7)]


def test_a_batch_stands_alone(core: CoreTables, monkeypatch):
    """A refusal takes all of its rows back, and none of those that waited with it."""
    disk = NotingStorage()
    table = new_table(core.client(storage=disk, small_write_rows_max=10))
    put(table, 0)
    disk.steps.clear()
    crowd = Crowd(table, monkeypatch)
    pairs = [[op("insert", 10 * n), op("insert", 10 * n + 1)] for n in range(4)]
    refused, fine = ([{"k": k, "v": 0} for k in keys] for keys in ((0, 1), (20, 21)))
    crowd.write(
        [*pairs[1], op("insert", 0)],
        lambda: table.insert(refused),
        lambda: table.insert(fine),
        pairs[3],
    )
    assert [reasons(crowd.results[n]) for n in (0, 3)] == [[(2, PRESENT)], []]
    assert isinstance(crowd.results[1], RowError)
    assert disk.count("append") == 3
    assert [row[0] for row in stored(table)] == [0, 10, 11, 20, 21, 30, 31]
    stamps = [crowd.results[n].timestamp for n in (0, 2, 3)]
    assert stamps == sorted(set(stamps))


@pytest.mark.parametrize("seconds", [float("inf"), 1e30, 0.0])
def test_any_wait_may_be_asked_for(core: CoreTables, seconds: float):
    """Also one without an end."""
    table = new_table(core.client())
    assert write(table, op("insert", 1), timeout_seconds=seconds).failures == []


def test_a_thread_waits_for_other_threads_no_longer_than_it_was_told(core: CoreTables):
    """Its rows are refused as not written, and are not written later either."""
    table = new_table(core.client())
    put(table, 0)
    store = store_of(table)
    key = store.memory_key
    results = []

    def insert() -> None:
        results.append(RowWriter(store).write([op("insert", 1)], timeout_seconds=0.0))

    with store.environment.write_queues[key].turn:
        thread = threading.Thread(target=insert)
        thread.start()
        thread.join()
    (result,) = results
    assert [type(failure.error) for failure in result.failures] == [LockTimeoutError]
    put(table, 2)
    assert [row[0] for row in stored(table)] == [0, 2]


def test_an_error_of_the_group_is_everybodys(core: CoreTables, monkeypatch):
    """The disk is full: each caller has it for each of its rows, and nothing is written."""
    disk = HalfStorage(None)
    table = new_table(core.client(storage=disk))
    put(table, 0)
    disk.error = StorageError(errno.ENOSPC, "disk full; free some space")
    crowd = Crowd(table, monkeypatch)
    crowd.write([op("insert", 1)], [op("insert", 2), op("delete", 0)], [op("insert", 3)])
    disk.error = None
    failures = {number: result.failures for number, result in crowd.results.items()}
    assert {number: len(found) for number, found in failures.items()} == {0: 1, 1: 2, 2: 1}
    assert all(f.error.errno == errno.ENOSPC for found in failures.values() for f in found)
    assert stored(table) == [(0, 0, 7)]


def test_a_thread_that_fails_unexpectedly_acknowledges_nothing(core: CoreTables, monkeypatch):
    """It raises its error; those that it wrote for are told to look."""
    table = new_table(core.client())
    run = TableWrite.run
    errors = [ZeroDivisionError("a bug")]

    def fails_once(*arguments) -> None:
        if errors:
            raise errors.pop()
        run(*arguments)

    monkeypatch.setattr(TableWrite, "run", fails_once)
    crowd = Crowd(table, monkeypatch)
    crowd.write(*([op("insert", k)] for k in range(3)))
    found = list(crowd.results.values())
    assert [str(result) for result in found if isinstance(result, Exception)] == ["a bug"]
    told = [f.error for r in found if isinstance(r, RowWriteResult) for f in r.failures]
    assert [type(error) for error in told] == [RetryableError] * 2
    assert "interrupted; read them to see" in str(told[0])
    assert stored(table) == []
    assert reasons(write(table, op("insert", 1))) == []


class InterruptedTurn:
    """A turn whose first acquisition is followed by Ctrl-C, before anybody is told of it."""

    def __init__(self, turn: threading.RLock) -> None:
        self._turn = turn
        self.is_due = True

    def acquire(self, timeout: float) -> bool:
        """Acquire the turn, and be interrupted if that is due."""
        found = self._turn.acquire(timeout=timeout)
        if self.is_due:
            self.is_due = False
            raise KeyboardInterrupt
        return found

    def release(self) -> None:
        """Let go of the turn."""
        self._turn.release()


def test_an_interrupt_right_after_the_wait_gives_the_turn_back(core: CoreTables):
    """Other threads write on; the rows of the interrupted write are not written, then or later."""
    table = new_table(core.client())
    put(table, 0)
    store = store_of(table)
    queue = store.environment.write_queues[store.memory_key]
    queue.turn = InterruptedTurn(queue.turn)
    with pytest.raises(KeyboardInterrupt):
        put(table, 1)
    assert not queue.turn.is_due
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(write, table, op("insert", 2), timeout_seconds=0.0).result()
    assert result.failures == []
    assert [row[0] for row in stored(table)] == [0, 2]


@pytest.mark.parametrize(
    ("owner", "name"), [(table_lock, "path_identity"), (TableLock, "__exit__")]
)
def test_an_interrupt_leaves_the_table_to_others(core: CoreTables, monkeypatch, owner, name: str):
    """Right after its lock was taken, or right before it is given back, with the file kept open."""
    table = new_table(core.client())
    put(table, 0)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        # What the error refers to lives on, as in a notebook.
        with pytest.raises(KeyboardInterrupt) as kept:
            put(table, 1)
    with TableLock(store_of(table).log.lock_path, 0.0):
        assert kept.value is not None
    put(table, 2)
    assert {row[0] for row in stored(table)} >= {0, 2}


def test_a_forked_child_has_a_queue_and_a_memory_of_its_own(core: CoreTables):
    """A thread of the parent may be writing at the moment of the fork: nobody in the child gives
    its turn and its mutex back, and the parent writes what waits in the parent."""
    table = new_table(core.client())
    put(table, 1)
    store = store_of(table)
    key = store.memory_key
    queue, memory = store.environment.write_queues[key], store.environment.memories[key]
    _, stores = memory._stores[entry_of(table).id]
    waiting = object()
    with queue.turn, memory._mutex, stores.mutex:
        queue.add(waiting)
        child = os.fork()
        if child == 0:
            signal.alarm(int(WAIT_SECONDS))
            try:
                is_right = write(table, op("insert", 1), op("insert", 2)).counts.inserted == 1
                os._exit(0 if is_right else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert queue.take_all() == [waiting]
    assert write(table, op("insert", 2), op("insert", 3)).counts.inserted == 1
    assert stored(table) == [(1, 0, 7), (2, None, 7), (3, None, 7)]
