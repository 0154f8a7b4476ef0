"""A writer in a process of its own that stops itself (SIGSTOP) in the middle of a write.

It holds the locks of the tablets that it writes to, as a process does whose machine is suspended,
whose container is paused, or whom a debugger or an overfull memory holds.

    STOPS: unpublished   a commit, right before its version is published
           published     a commit, right after, before the safe timestamps advance
           appended      a session's flush, right before the fsync of its record in the log
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa

import kudulite
from kudulite.client.client import Client
from kudulite.storage.file_system import FileSystem
from tests.support.doubles.pausing_file_system import gap_of
from tests.support.tables.core_tables import environment

STOPS = ("unpublished", "published", "appended")
_GAPS = {"unpublished": "before", "published": "after", "appended": ""}
SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int64())])
ROW_COUNT = 20
_WAIT_SECONDS_MAX = 60.0


def rows(value: int) -> pa.Table:
    """All rows, of one value."""
    return pa.table({"k": [*range(ROW_COUNT)], "v": [value] * ROW_COUNT}, SCHEMA)


def create(folder: Path) -> kudulite.Table:
    """A table of two tablets with rows of value 0."""
    client = Client(folder, environment())
    table = client.create_table("t", SCHEMA, primary_key="k", hash_partitions=[(["k"], 2)])
    table.upsert(rows(0))
    return table


class _StoppingFileSystem(FileSystem):
    """Stops the process at the first step in a gap."""

    def __init__(self, gap: str) -> None:
        self._gap = gap

    def before(self, operation: str, path: Path) -> None:
        """Stop once."""
        if self._gap and gap_of(operation, path) == self._gap:
            self._gap = ""
            os.kill(os.getpid(), signal.SIGSTOP)


class StoppedWriter:
    """A process that writes value 1 to all rows; `start` returns when it stands still."""

    def __init__(self, folder: Path, stop: str) -> None:
        self._command = [sys.executable, "-m", __name__, str(folder), stop]
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> StoppedWriter:
        self.process = subprocess.Popen(self._command)
        deadline = time.monotonic() + _WAIT_SECONDS_MAX
        while not os.waitid(
            os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
        ):
            assert time.monotonic() < deadline, "the writer does not stop"
            time.sleep(0.01)
        assert self.process.poll() is None, "the writer ended and did not stop"
        return self

    def __exit__(self, *_exc: object) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    @property
    def pid(self) -> int:
        """The number of the process."""
        assert self.process is not None
        return self.process.pid

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


def _write(folder: Path, stop: str) -> None:
    client = Client(folder, environment(_StoppingFileSystem(_GAPS[stop])))
    table = client.table("t")
    if stop != "appended":
        table.upsert(rows(1))
        return
    fsync = os.fsync

    def stopping(descriptor: int) -> None:
        os.fsync = os.fdatasync = fsync
        os.kill(os.getpid(), signal.SIGSTOP)
        fsync(descriptor)

    with client.new_session() as session:
        for row in rows(1).to_pylist():
            session.apply(table.new_upsert(row))
        os.fsync = os.fdatasync = stopping


if __name__ == "__main__":
    _write(Path(sys.argv[1]), sys.argv[2])
