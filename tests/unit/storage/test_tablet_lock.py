"""The lock of a tablet: one holder among threads and processes, and `last` that only rises."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kudulite.errors import CorruptionError, FormatVersionError, LockTimeoutError, StorageError
from kudulite.storage.tablet_lock import (
    TabletLock,
    create_lock_file,
    read_lock_file,
    read_safe_timestamp,
)

HOLDER = """
import sys
from pathlib import Path
from kudulite.storage.tablet_lock import TabletLock
with TabletLock(Path(sys.argv[1]), 5) as lock:
    lock.announce("commit of write 42")
    lock.advance_safe_timestamp(77)
    print("held", flush=True)
    sys.stdin.readline()
"""

FORKING = """
import os, sys, time
from pathlib import Path
from kudulite.storage.tablet_lock import TabletLock
kept = TabletLock(Path(sys.argv[1]), 5, stays_open=True)
with kept:
    pass
read, write = os.pipe()
child = os.fork()
if not child:
    os.write(write, b"x")
    time.sleep(600)
os.read(read, 1)
with kept:
    print(child, flush=True)
    sys.stdin.readline()
"""
HERE = f" of process {os.getpid()} on {socket.gethostname()} since 20"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A fresh lock file."""
    create_lock_file(tmp_path / "lock")
    return tmp_path / "lock"


def test_a_waiting_process_says_for_whom_it_waited(path: Path):
    """The error names the file, the holder's work, process and machine; then the lock is free."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    expected = rf"waited 0.05 s for {path}, held by commit of write 42 of process {process.pid} on"
    with pytest.raises(LockTimeoutError, match=expected), TabletLock(path, 0.05):
        pass
    process.communicate(b"\n")
    with TabletLock(path, 0) as lock:
        assert lock.safe_timestamp == 77


def test_the_lock_of_a_killed_process_is_free(path: Path):
    """flock goes with its process."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.communicate()
    with TabletLock(path, 5):
        pass


def test_locks_exclude_each_other_within_a_process(path: Path):
    """flock belongs to the open file, so two acquisitions in one process wait too."""
    begin = time.monotonic()
    with TabletLock(path, 1), pytest.raises(LockTimeoutError), TabletLock(path, 0.02):
        pass
    assert time.monotonic() - begin < 1


def test_a_lock_that_stays_open_sees_what_others_wrote(path: Path):
    """The lock reads the file again when it is acquired."""
    kept = TabletLock(path, 1, stays_open=True)
    with kept as lock:
        lock.announce("first")
        lock.set_wal_end(1, 64)
        lock.advance_safe_timestamp(5)
    with TabletLock(path, 0) as other:
        other.announce("second")
        other.set_wal_end(1, 80)
        other.advance_safe_timestamp(7)
    with kept as lock:
        assert (lock.safe_timestamp, lock.wal_end) == (7, (1, 80))
        assert lock.holder().startswith("second" + HERE)
        lock.announce("first")
        lock.advance_safe_timestamp(6)
        assert lock.safe_timestamp == 7 and lock.holder().startswith("first" + HERE)
    assert read_lock_file(path) == (7, (1, 80))


def test_a_lock_that_stays_open_excludes_others_only_while_it_is_taken(path: Path):
    """The open file alone holds nothing."""
    kept = TabletLock(path, 0.02, stays_open=True)
    for _ in range(2):
        with kept, pytest.raises(LockTimeoutError), TabletLock(path, 0.02):
            pass
        with TabletLock(path, 0), pytest.raises(LockTimeoutError), kept:
            pass


def test_a_lock_that_stays_open_finds_a_file_that_was_made_again(path: Path):
    """A lock on a removed file would exclude nobody; without a file it is a storage error."""
    kept = TabletLock(path, 0, stays_open=True)
    with kept as lock:
        lock.advance_safe_timestamp(5)
    path.unlink()
    with pytest.raises(StorageError, match="cannot open"), kept:
        pass
    create_lock_file(path)
    with kept as lock, pytest.raises(LockTimeoutError), TabletLock(path, 0):
        assert lock.safe_timestamp == 0


def test_a_forked_child_does_not_keep_its_parents_lock(path: Path):
    """The parent is killed while it has the lock; a child that lives on has nothing of it."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        with pytest.raises(LockTimeoutError), TabletLock(path, 0.02):
            pass
        process.kill()
        process.wait()
        with TabletLock(path, 5):
            os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


def test_last_only_rises(path: Path):
    """A lower timestamp changes nothing; it is read without the lock too."""
    with TabletLock(path, 0) as lock:
        lock.advance_safe_timestamp(5)
        lock.advance_safe_timestamp(3)
        lock.announce("x" * 1000)
        assert lock.safe_timestamp == 5
    assert read_safe_timestamp(path) == 5
    create_lock_file(path)
    assert read_safe_timestamp(path) == 5


def test_no_lock_file_means_nothing_is_settled(tmp_path: Path):
    """Reading gives 0; locking is a storage error with the path."""
    assert read_safe_timestamp(tmp_path / "lock") == 0
    with (
        pytest.raises(StorageError, match=r"cannot open .*/lock to lock it"),
        TabletLock(tmp_path / "lock", 0),
    ):
        pass


def test_a_lock_file_that_the_disk_refuses_is_a_storage_error(path: Path, monkeypatch):
    """It names the file, and keeps the error's number; the lock is free again."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def use() -> None:
        with TabletLock(path, 0) as lock:
            lock.advance_safe_timestamp(5)

    for name, action, message in (
        ("pwrite", use, f"cannot write {path}: Input/output error"),
        ("pread", use, f"cannot read {path}: Input/output error"),
        ("pread", lambda: read_lock_file(path), f"cannot read {path}: Input/output error"),
        ("open", lambda: read_lock_file(path), f"cannot read {path}: Input/output error"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, refuse)
            with pytest.raises(StorageError, match=message) as found:
                action()
        assert found.value.errno == errno.EIO
        assert read_safe_timestamp(path) == 0
        with TabletLock(path, 0) as lock:
            assert lock.safe_timestamp == 0


def test_a_lock_file_of_a_newer_format_is_refused(path: Path):
    """The message names the file and both versions."""
    path.write_bytes(b"KLCK\x09" + path.read_bytes()[5:])
    with pytest.raises(
        FormatVersionError, match=r"lock: lock file of version 9, known: 1; upgrade"
    ):
        read_safe_timestamp(path)


def test_a_file_that_is_no_lock_file_is_refused(path: Path):
    """It has no version that an upgrade would know."""
    path.write_bytes(b"PAR1" + path.read_bytes()[4:])
    with pytest.raises(CorruptionError, match=r"lock: not a lock file: begins with b'PAR1'") as e:
        read_safe_timestamp(path)
    assert not isinstance(e.value, FormatVersionError)


def test_a_full_disk_under_the_lock_file_does_not_promise_that_nothing_was_changed(
    path: Path, monkeypatch
):
    """The lock file is written after the log's fsync: the rows are there."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(StorageError) as found, TabletLock(path, 0) as lock:
        lock.set_wal_end(1, 64)
    assert found.value.strerror == (
        f"cannot write {path}: No space left on device; free some space"
    )


def test_the_end_of_the_log_is_kept_beside_last(path: Path):
    """Read with the lock and without; announcing does not touch it."""
    assert read_lock_file(path) == (0, (0, 0))
    with TabletLock(path, 0) as lock:
        assert lock.wal_end == (0, 0)
        lock.set_wal_end(3, 1 << 40)
        lock.announce("x" * 1000)
        lock.advance_safe_timestamp(9)
        assert lock.wal_end == (3, 1 << 40)
        assert len(lock.holder()) == 200
    assert read_lock_file(path) == (9, (3, 1 << 40))
    with TabletLock(path, 0, is_shared=True) as lock:
        assert lock.wal_end == (3, 1 << 40)


def test_the_end_of_the_log_never_falls(path: Path):
    """By our own mistake it never does."""
    with TabletLock(path, 0) as lock:
        lock.set_wal_end(2, 40)
        for end in ((1, 500), (2, 39)):
            with pytest.raises(AssertionError):
                lock.set_wal_end(*end)
        assert lock.wal_end == (2, 40)


def test_a_lock_file_without_the_end_of_the_log_gets_one(path: Path):
    """Older files stop behind the holder."""
    path.write_bytes(path.read_bytes()[:220])
    assert read_lock_file(path) == (0, (0, 0))
    with TabletLock(path, 0) as lock:
        assert lock.wal_end == (0, 0)
        lock.set_wal_end(1, 64)
    assert read_lock_file(path) == (0, (1, 64))


@pytest.mark.parametrize("offset", range(8, 20))
def test_a_torn_safe_timestamp_is_not_used(path: Path, offset: int):
    """A higher one would settle moments that are still being written; 0 settles none."""
    with TabletLock(path, 1.0) as lock:
        lock.advance_safe_timestamp(77)
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x11
    path.write_bytes(content)
    assert read_safe_timestamp(path) == 0
    with TabletLock(path, 1.0) as lock:
        assert lock.safe_timestamp == 0
        lock.advance_safe_timestamp(5)
    assert read_safe_timestamp(path) == 5


@pytest.mark.parametrize("offset", range(220, 240))
def test_a_torn_end_of_the_log_is_not_known(path: Path, offset: int):
    """Any flipped byte, or one that is missing; `last` is still there, and the holder mends it."""
    with TabletLock(path, 0) as lock:
        lock.set_wal_end(1, 64)
        lock.advance_safe_timestamp(5)
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    for torn in (bytes(content), bytes(content[: max(offset, 221)])):
        path.write_bytes(torn)
        assert read_lock_file(path) == (5, None)
        with TabletLock(path, 0) as lock:
            assert lock.wal_end == (0, 0)
    with TabletLock(path, 0) as lock:
        lock.set_wal_end(1, 80)
    assert read_lock_file(path) == (5, (1, 80))


def test_no_lock_file_means_no_log(tmp_path: Path):
    """As for `last`."""
    assert read_lock_file(tmp_path / "lock") == (0, (0, 0))
