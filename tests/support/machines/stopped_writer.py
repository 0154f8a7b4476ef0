"""A writer in a process of its own that stops itself (SIGSTOP) in the middle of its work.

It may hold the table's lock then, as a process does whose machine is suspended, whose container is
paused, or whom a debugger or an overfull memory holds.

    STOPS: unpublished   a commit, right before its version is published
           published     a commit, right after, before the safe timestamp advances
           appended      a session's flush, right before the fsync of its commit in the log
           anywhere      before each durable step, and before each write to the lock file or the log

    WORKS: rows          a session's flush with rows of all tablets
           small         a batch that is written through the log
           bulk          a commit of a batch
           flush         of the rows in memory, which nobody sees
           alter         a column more
           drop          a column less
           upkeep        compactions, and a removal of superseded files
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

import kudulite
from kudulite.client.client import Client
from kudulite.storage.local_storage import LocalStorage
from tests.support.doubles.pausing_storage import gap_of
from tests.support.tables.core_tables import altered, environment

STOPS = ("unpublished", "published", "appended")
WORKS = ("rows", "small", "bulk", "flush", "alter", "drop", "upkeep")
ANYWHERE = "anywhere"
_GAPS = {"unpublished": "before", "published": "after"}
_WORK_OF = {"unpublished": "bulk", "published": "bulk", "appended": "rows"}
SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int64()), ("w", pa.int64())])
ROW_COUNT = 20
_WAIT_SECONDS_MAX = 60.0


def rows(value: int) -> pa.Table:
    """All rows, of one value."""
    cells = [value] * ROW_COUNT
    return pa.table({"k": [*range(ROW_COUNT)], "v": cells, "w": cells}, SCHEMA)


def create(folder: Path, *, has_log: bool = False) -> kudulite.Table:
    """A table of two tablets with rows of value 0; those may be in the log, with others below."""
    client = Client(folder, environment())
    table = client.create_table("t", SCHEMA, primary_key="k", hash_partitions=[(["k"], 2)])
    table.upsert(rows(-1 if has_log else 0))
    with client.new_session() as session:
        for row in rows(0).to_pylist() if has_log else ():
            session.apply(table.new_upsert(row))
    return table


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


class _StoppingStorage(LocalStorage):
    """Stops the process at the first step in a gap, or at all steps."""

    def __init__(self, stop: str) -> None:
        self.stop = stop

    def before(self, operation: str, path: Path) -> None:
        """Stop, in a gap once."""
        if self.stop == ANYWHERE:
            _stop()
        elif self.stop in _GAPS and gap_of(operation, path) == _GAPS[self.stop]:
            self.stop = ""
            _stop()


class StoppedWriter:
    """A process that works; within the `with` block it stands still."""

    def __init__(self, folder: Path, stop: str, work: str = "") -> None:
        work = work or _WORK_OF[stop]
        self._command = [sys.executable, "-m", __name__, str(folder), stop, work]
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> StoppedWriter:
        self.process = subprocess.Popen(self._command)
        assert self._is_stopped(), "the writer ended and did not stop"
        return self

    def __exit__(self, *_exc: object) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def _is_stopped(self) -> bool:
        """Wait until it stands still, or has ended."""
        assert self.process is not None
        deadline = time.monotonic() + _WAIT_SECONDS_MAX
        flags = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
        while not (found := os.waitid(os.P_PID, self.process.pid, flags)):
            assert time.monotonic() < deadline, "the writer does not stop"
            time.sleep(0.001)
        if found.si_code == os.CLD_STOPPED:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
            return True
        return False

    @property
    def pid(self) -> int:
        """The number of the process."""
        assert self.process is not None
        return self.process.pid

    def stops(self) -> Iterator[int]:
        """Number the places where it stands still, one after the other, until it has ended."""
        assert self.process is not None
        number, is_stopped = 0, True
        while is_stopped:
            yield number
            self.process.send_signal(signal.SIGCONT)
            number, is_stopped = number + 1, self._is_stopped()
        assert self.process.wait(_WAIT_SECONDS_MAX) == 0

    def go_on(self) -> None:
        """Continue it, and wait until it has written."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        assert self.process.wait(_WAIT_SECONDS_MAX) == 0

    def kill(self) -> None:
        """Kill it where it stands, and wait until it is gone."""
        assert self.process is not None
        self.process.kill()
        assert self.process.wait(_WAIT_SECONDS_MAX) == -signal.SIGKILL


def _stopping(function: Callable[..., object], *, is_once: bool) -> Callable[..., object]:
    """A function of the system that stops the process before it does its work."""
    count = itertools.count()

    def called(*arguments: object) -> object:
        if not next(count) or not is_once:
            _stop()
        return function(*arguments)

    return called


def _work(folder: Path, stop: str, work: str) -> None:
    storage = _StoppingStorage("")
    parts = environment(storage, small_write_rows_max=ROW_COUNT if work == "small" else 0)
    client = Client(folder, parts)
    table = client.table("t")
    session = client.new_session()
    if work == "rows":
        for row in rows(1).to_pylist():
            session.apply(table.new_upsert(row))
    works: dict[str, Callable[[], object]] = {
        "rows": session.flush,
        "small": lambda: table.upsert(rows(1)),
        "bulk": lambda: table.upsert(rows(1)),
        "flush": table.flush,
        "alter": lambda: altered(client, "t", lambda a: a.add_column("x", kudulite.int64)),
        "drop": lambda: altered(client, "t", lambda a: a.drop_column("w")),
        "upkeep": lambda: (table.compact(), table.maintain(0)),
    }
    storage.stop = stop
    if stop == ANYWHERE:
        os.pwrite = _stopping(os.pwrite, is_once=False)  # type: ignore[assignment]
    if stop in (ANYWHERE, "appended"):
        is_once = stop == "appended"
        os.fdatasync = _stopping(os.fdatasync, is_once=is_once)  # type: ignore[assignment]
    works[work]()
    storage.stop = ""


if __name__ == "__main__":
    _work(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
