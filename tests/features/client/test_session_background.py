"""The thread of a background session, threads that share a session, processes that end."""

import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

from kudulite.client import mutation_buffer
from kudulite.client.session import Session
from kudulite.errors import RowError
from tests.support.doubles.memory_table import WAIT_SECONDS, Gate, MemoryTable

NEVER_MS = 3_600_000.0


def background(**options) -> Session:
    """A background session that writes at its watermark or when told, not by time."""
    chosen = {"mutation_buffer_flush_interval": NEVER_MS, **options}
    return Session("background", **chosen)


def run_python(script: str) -> list[str]:
    """Run a script with the test doubles in another process; its lines of output."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_thread_writes_at_the_watermark_and_after_the_interval():
    """Nobody has to flush."""
    for options in ({"mutation_buffer_watermark": 0.0}, {"mutation_buffer_flush_interval": 0}):
        session, table, written = background(**options), MemoryTable(), Gate()
        table.rows.before_write = written
        session.apply(table.new_insert({"k": 1}))
        written.wait_until_reached()
        written.open()
        session.close()
        assert set(table.values()) == {1}


def test_flush_waits_for_what_the_thread_is_writing():
    """And then writes the rest, in order."""
    session, table, gate = background(mutation_buffer_watermark=0.0), MemoryTable(), Gate()
    table.rows.before_write = gate
    session.apply(table.new_insert({"k": 1}))
    gate.wait_until_reached()
    session.apply(table.new_update({"k": 1, "v": 5}))
    flusher = threading.Thread(target=session.flush)
    flusher.start()
    assert session.has_pending_operations()
    gate.open()
    flusher.join(WAIT_SECONDS)
    assert table.values() == {1: 5}
    assert not session.has_pending_operations()
    session.close()


def test_what_failed_in_the_background_is_raised_once():
    """By the next flush; or never, when somebody fetched the errors."""
    for is_fetched in (False, True):
        session, table, gate = background(mutation_buffer_watermark=0.0), MemoryTable(), Gate()
        table.rows.before_write = gate
        session.apply(table.new_delete({"k": 1}))
        gate.wait_until_reached()
        gate.open()
        with session._write_lock:  # the thread has it until it has told what failed
            assert session.count_pending_errors() == 1
        if is_fetched:
            assert len(session.get_pending_errors()[0]) == 1
        else:
            with pytest.raises(RowError, match="DELETE int32 k=1: Not found"):
                session.flush()
        session.flush()
        session.close()


def test_the_thread_survives_whatever_a_writer_raises():
    """It is a pending error, and the next rows are written."""
    session, table = background(mutation_buffer_watermark=0.0), MemoryTable()
    failed = threading.Event()

    def fail_once(_: Sequence) -> None:
        if not failed.is_set():
            failed.set()
            raise ZeroDivisionError("a bug")

    table.rows.before_write = fail_once
    session.apply(table.new_insert({"k": 1}))
    assert failed.wait(WAIT_SECONDS)
    session.apply(table.new_insert({"k": 2}))
    with pytest.raises(ZeroDivisionError):
        session.close()
    assert set(table.values()) == {2}
    assert [error.row["k"] for error in session.get_pending_errors()[0]] == [1]


def test_apply_waits_for_room():
    """The buffer never holds more than its space, and rows come out in order."""
    table, gate = MemoryTable(), Gate()
    size = table.new_insert({"k": 1}).complete()
    session = background(mutation_buffer_sz=2 * size, mutation_buffer_watermark=1.0)
    table.rows.before_write = gate
    for key in (1, 2):
        session.apply(table.new_insert({"k": key}))
    gate.wait_until_reached()
    third = threading.Thread(target=session.apply, args=(table.new_insert({"k": 3}),))
    third.start()
    assert session.count_buffered_operations() == 0
    gate.open()
    third.join(WAIT_SECONDS)
    session.close()
    assert list(table.values()) == [1, 2, 3]


def test_an_idle_thread_ends_and_another_one_starts(monkeypatch):
    """So a session that nobody uses any more keeps no thread."""
    monkeypatch.setattr(mutation_buffer, "IDLE_SECONDS", 0)
    session, table = background(mutation_buffer_watermark=0.0), MemoryTable()
    for key in (1, 2, 3):
        session.apply(table.new_insert({"k": key}))
        session.flush()
        flusher = session._flusher
        assert flusher is not None and flusher.daemon
        flusher.join(WAIT_SECONDS)
        assert not flusher.is_alive()
    assert set(table.values()) == {1, 2, 3}


def test_without_a_thread_the_caller_writes(monkeypatch):
    """As when the interpreter is about to end; what fails is told by the next flush."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    session, table = background(), MemoryTable()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    session.apply(table.new_insert({"k": 1}))
    session.apply(table.new_insert({"k": 1}))
    assert set(table.values()) == {1}
    with pytest.raises(RowError):
        session.flush()


@pytest.mark.parametrize("mode", ["manual", "background"])
def test_threads_share_a_session(mode):
    """Every row is there once, and each thread's rows in its order."""
    session, table = Session(mode, mutation_buffer_sz=20_000), MemoryTable()

    def work(thread: int) -> None:
        for value in range(50):
            session.apply(table.new_upsert({"k": thread, "v": value}))
            session.apply(table.new_insert({"k": 1000 * (thread + 1) + value}))
            if value % 10 == 9:
                session.flush()

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    session.close()
    assert session.get_pending_errors() == ([], False)
    assert len(table.values()) == 4 + 200
    written = [values for batch in table.rows.batches for _, values in batch]
    for thread in range(4):
        assert [row["v"] for row in written if row["k"] == thread] == list(range(50))


def test_the_end_of_the_interpreter_writes_what_a_background_session_holds():
    """Its thread is a daemon, which alone would lose the rows; a manual session's are dropped."""
    script = """
from tests.support.doubles.memory_table import MemoryTable
from kudulite.client.session import Session
table = MemoryTable()
table.rows.before_write = lambda rows: print([row.values["k"] for row in rows], flush=True)
lazy = dict(mutation_buffer_flush_interval=3_600_000)
background, manual = Session("background", **lazy), Session()
background.apply(table.new_insert({"k": 1}))
manual.apply(table.new_insert({"k": 2}))
"""
    assert run_python(script) == ["[1]"]


def test_a_forked_child_writes_nothing_of_its_parent():
    """It is told to make its own session, and ends like any process."""
    script = """
import os, sys
from tests.support.doubles.memory_table import MemoryTable
from kudulite.client.session import Session
from kudulite.errors import UsageError
table = MemoryTable()
pid = os.getpid()
table.rows.before_write = lambda rows: print("parent" if os.getpid() == pid else "child")
session = Session("background", mutation_buffer_flush_interval=3_600_000)
session.apply(table.new_insert({"k": 1}))
child = os.fork()
if child == 0:
    for use in (session.flush, lambda: session.apply(table.new_insert({"k": 2}))):
        try:
            use()
        except UsageError as error:
            assert "forked child" in str(error)
        else:
            sys.exit("no error")
    session.close()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    assert run_python(script) == ["parent"]
