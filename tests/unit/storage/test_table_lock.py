"""The lock of a table: one holder, those that wait in order, and cells that only rise."""

import errno
import fcntl
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from kudulite.errors import CorruptionError, FormatVersionError, LockTimeoutError, StorageError
from kudulite.storage import table_lock
from kudulite.storage.table_lock import (
    LockQueue,
    LockState,
    TableLock,
    create_lock_file,
    read_lock_file,
)

HOLDER = """
import sys
from pathlib import Path
from kudulite.storage.table_lock import TableLock
with TableLock(Path(sys.argv[1]), 5) as lock:
    lock.announce("commit of write 42")
    lock.advance_safe_timestamp(77)
    print("held", flush=True)
    sys.stdin.readline()
"""

FORKING = """
import os, sys, time
from pathlib import Path
from kudulite.storage.table_lock import TableLock
stays_open = sys.argv[2] == "between acquisitions"
lock = TableLock(Path(sys.argv[1]), 5, stays_open=stays_open)
if stays_open:
    with lock:
        pass
else:
    lock.__enter__()
read, write = os.pipe()
child = os.fork()
if not child:
    os.write(write, b"x")
    time.sleep(600)
os.read(read, 1)
if stays_open:
    lock.__enter__()
print(child, flush=True)
sys.stdin.readline()
"""
# Says when it waits; then has the lock a number of times, and notes each in a file.
WAITER = """
import os, sys
from pathlib import Path
from kudulite.storage.table_lock import LockQueue, TableLock
wait = LockQueue.wait
def say(queue, seconds):
    LockQueue.wait = wait
    wait(queue, 0.0)
    print("waits", flush=True)
LockQueue.wait = say
path, name = Path(sys.argv[1]), sys.argv[2].encode()
lock = TableLock(path, 60, stays_open=True)
turns = os.open(path.with_name("turns"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for _ in range(int(sys.argv[3])):
    with lock:
        os.write(turns, name)
"""
needs_queue = pytest.mark.skipif(sys.platform != "linux", reason="waiters have no order")
CELL = 220  # where the end of the log is in a lock file
# Safe timestamp 77, and the end 64 of segment 1 as it was noted in boot 0x1122334455667788.
GOLDEN = bytes.fromhex(
    "4b4c434b 02000000 4d00000000000000 5508bad7" + 200 * "20"
    + "0100000000000000 4000000000000000 8877665544332211 ba778c74"
)  # fmt: skip
# The same as that of a tablet in a table of a format before 8.
GOLDEN_OF_TABLET = bytes.fromhex(
    "4b4c434b 01000000 4d00000000000000 5508bad7" + 200 * "20"
    + "0100000000000000 4000000000000000 29184e6b"
)  # fmt: skip
HEARTBEAT = 1 << 27
ARRIVAL = 1 << 13
HERE = f" of process {os.getpid()} on {socket.gethostname()} since 20"


def safe_timestamp(path: Path) -> int:
    """The cell, read without the lock."""
    return read_lock_file(path).safe_timestamp


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
    with pytest.raises(LockTimeoutError, match=expected), TableLock(path, 0.05):
        pass
    process.communicate(b"\n")
    with TableLock(path, 0) as lock:
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
    with TableLock(path, 5):
        pass


def test_locks_exclude_each_other_within_a_process(path: Path):
    """flock belongs to the open file, so two acquisitions in one process wait too."""
    begin = time.monotonic()
    with TableLock(path, 1), pytest.raises(LockTimeoutError), TableLock(path, 0.02):
        pass
    assert time.monotonic() - begin < 1


def test_a_lock_that_stays_open_sees_what_others_wrote(path: Path):
    """The lock reads the file again when it is acquired."""
    kept = TableLock(path, 1, stays_open=True)
    with kept as lock:
        lock.announce("first")
        lock.set_log_end(1, 64)
        lock.advance_safe_timestamp(5)
    with TableLock(path, 0) as other:
        other.announce("second")
        other.set_log_end(1, 80)
        other.advance_safe_timestamp(7)
    with kept as lock:
        assert (lock.safe_timestamp, lock.log_end) == (7, (1, 80))
        assert lock.holder().startswith("second" + HERE)
        lock.announce("first")
        lock.advance_safe_timestamp(6)
        assert lock.safe_timestamp == 7 and lock.holder().startswith("first" + HERE)
    assert read_lock_file(path) == LockState(7, (1, 80), is_of_this_boot=True)


def test_a_lock_that_stays_open_excludes_others_only_while_it_is_taken(path: Path):
    """The open file alone holds nothing."""
    kept = TableLock(path, 0.02, stays_open=True)
    for _ in range(2):
        with kept, pytest.raises(LockTimeoutError), TableLock(path, 0.02):
            pass
        with TableLock(path, 0), pytest.raises(LockTimeoutError), kept:
            pass


def test_a_lock_that_stays_open_finds_a_file_that_was_made_again(path: Path):
    """A lock on a removed file would exclude nobody; without a file it is a storage error."""
    kept = TableLock(path, 0, stays_open=True)
    with kept as lock:
        lock.advance_safe_timestamp(5)
    path.unlink()
    with pytest.raises(StorageError, match="cannot open"), kept:
        pass
    create_lock_file(path)
    with kept as lock, pytest.raises(LockTimeoutError), TableLock(path, 0):
        assert lock.safe_timestamp == 0


def test_a_lock_excludes_others_from_the_file_that_is_at_its_path(path: Path):
    """The folder of a table, with its lock file, is replaced while a process waits or not."""
    kept = TableLock(path, 5, stays_open=True)
    with kept as lock:
        lock.advance_safe_timestamp(5)
    path.rename(path.with_name("aside"))
    create_lock_file(path)
    with kept as lock, pytest.raises(LockTimeoutError), TableLock(path, 0):
        assert lock.safe_timestamp == 0 and lock.identity == read_lock_file(path).identity
    waiting = TableLock(path, 5)
    with TableLock(path, 0):
        thread = threading.Thread(target=waiting.__enter__)
        thread.start()
        while waiting.identity is None:
            time.sleep(0.01)
        path.rename(path.with_name("aside"))
        create_lock_file(path)
    thread.join()
    with pytest.raises(LockTimeoutError), TableLock(path, 0):
        pass
    waiting.__exit__()


@pytest.mark.parametrize("moment", ["between acquisitions", "while the lock is held"])
def test_a_forked_child_does_not_keep_its_parents_lock(path: Path, moment: str):
    """The parent is killed while it has the lock; a child that lives on has nothing of it."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING, str(path), moment],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        with pytest.raises(LockTimeoutError), TableLock(path, 0.02):
            pass
        process.kill()
        process.wait()
        with TableLock(path, 5):
            os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


class Clock:
    """A monotonic clock that the test moves, and the pauses that it was asked for."""

    def __init__(self) -> None:
        self.now = 1000 * HEARTBEAT
        self.pauses: list[float] = []

    def monotonic_ns(self) -> int:
        """The time, a unit of arrivals later at each look."""
        self.now += ARRIVAL
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The queue's clock."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic_ns", clock.monotonic_ns)
    monkeypatch.setattr(time, "sleep", clock.pauses.append)
    return clock


@pytest.fixture
def enter(tmp_path: Path) -> Iterator[Callable[..., LockQueue]]:
    """A function that comes to the queue, with a file of its own."""
    path = tmp_path / "lock"
    path.touch()
    opened: list[int] = []

    def comes(flags: int = os.O_RDWR) -> LockQueue:
        opened.append(os.open(path, flags))
        return LockQueue(opened[-1])

    yield comes
    for descriptor in opened:
        os.close(descriptor)


@needs_queue
def test_the_first_to_wait_is_next(clock: Clock, enter):
    """Those that wait are next in the order of their arrival, and those that do not, after them."""
    waiting, outside = [enter(), enter(os.O_RDONLY), enter()], enter()
    assert all(each.is_next() for each in waiting)
    for each in waiting:
        each.wait(0.0)
    for first in range(3):
        for _ in range(3):
            assert [each.is_next() for each in waiting[first:]] == [True, *[False] * (2 - first)]
            assert not outside.is_next()
            waiting[-1].wait(0.0)
            clock.now += HEARTBEAT // 4
            for each in waiting[first:]:
                each.wait(0.0)  # in the next heartbeat at some time
        waiting[first].leave()
    assert outside.is_next()


@needs_queue
def test_a_closed_file_gives_up_its_place(clock: Clock, tmp_path: Path, enter):
    """As that of a process that ends."""
    outside, descriptor = enter(), os.open(tmp_path / "lock", os.O_RDWR)
    LockQueue(descriptor).wait(0.0)
    assert not outside.is_next()
    os.close(descriptor)
    assert outside.is_next()


@needs_queue
@pytest.mark.parametrize("start", [1000, (1 << 15) - 2, (1 << 15) - 1, 1 << 15])
def test_one_that_stands_still_loses_its_place_until_it_goes_on(clock: Clock, enter, start: int):
    """After two heartbeats at most; the number of a heartbeat wraps."""
    clock.now = start * HEARTBEAT
    stopped, running, outside = enter(), enter(), enter()
    stopped.wait(0.0)
    running.wait(0.0)
    for is_next in (False, False, True, True):
        assert (running.is_next(), outside.is_next()) == (is_next, False)
        clock.now += HEARTBEAT
        running.wait(0.0)
    stopped.wait(0.0)
    assert (stopped.is_next(), running.is_next(), outside.is_next()) == (True, False, False)
    stopped.leave()
    running.leave()
    assert outside.is_next()


@needs_queue
def test_places_are_not_left_behind(clock: Clock, enter):
    """A waiter has one byte locked, however long it waits."""
    waiting, outside = enter(), enter()
    for _ in range(100):
        waiting.wait(0.0)
        clock.now += HEARTBEAT
    waiting.leave()
    for heartbeat in range(200):
        clock.now = (1000 + heartbeat) * HEARTBEAT
        assert outside.is_next()


@needs_queue
@pytest.mark.parametrize("refused", ["all", "places", "unknown"])
def test_without_a_queue_all_are_next(clock: Clock, enter, monkeypatch, refused: str):
    """As on other systems, and file systems that refuse; pauses become longer all the same."""
    control = fcntl.fcntl

    def refuse(descriptor: int, command: int, *arguments) -> object:
        assert refused != "unknown"
        if refused == "all" or command == fcntl.F_OFD_SETLK:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return control(descriptor, command, *arguments)

    monkeypatch.setattr(table_lock, "_HAS_QUEUE", refused != "unknown")
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    waiting = [enter(), enter()]
    for _ in range(20):
        for each in waiting:
            assert each.is_next()
            each.wait(1.0)
        clock.now += 10_000_000
    assert clock.pauses[0] <= 0.001 and 0.005 <= clock.pauses[-1] <= 0.01
    for each in waiting:
        each.leave()


@needs_queue
def test_a_pause_is_short_beside_the_wait_and_within_the_limit(clock: Clock, enter):
    """One that has become next pauses as at the beginning."""
    first, second = enter(), enter()
    for each in (first, second):
        each.wait(0.0)
    clock.now += 100_000_000
    assert first.is_next() and not second.is_next()
    second.wait(1.0)
    assert 0.005 <= clock.pauses[-1] <= 0.01
    second.wait(0.002)
    assert clock.pauses[-1] == 0.002
    first.leave()
    assert second.is_next()
    second.wait(1.0)
    assert 0.0001 <= clock.pauses[-1] <= 0.0003


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time by which no waiter seems to stand still, however slow this machine is."""
    monkeypatch.setattr(time, "monotonic_ns", itertools.count(1 << 50, 1 << 13).__next__)


def start_waiter(lock: TableLock, work: Callable[[], None], monkeypatch) -> threading.Thread:
    """Start a thread that does `work` when it has the lock; returns when it waits for it."""
    waits, wait = threading.Event(), LockQueue.wait

    def say(queue: LockQueue, seconds_most: float) -> None:
        wait(queue, seconds_most)
        if threading.current_thread() is thread:
            waits.set()

    def run() -> None:
        with lock:
            work()

    thread = threading.Thread(target=run)
    with monkeypatch.context() as patch:
        patch.setattr(LockQueue, "wait", say)
        thread.start()
        assert waits.wait(60)
    return thread


@needs_queue
@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.usefixtures("frozen")
def test_a_lock_is_taken_in_the_order_of_arrival(path: Path, monkeypatch, is_shared: bool):
    """The holder, which takes it again at once, has it after all that waited before."""
    order: list[int] = []
    kept = TableLock(path, 60, stays_open=True)
    for _ in range(5):
        with kept:
            threads = [
                start_waiter(
                    TableLock(path, 60, is_shared=is_shared),
                    partial(order.append, number),
                    monkeypatch,
                )
                for number in range(4)
            ]
        with kept:
            order.append(4)
        for thread in threads:
            thread.join()
    assert order[4::5] == [4] * 5
    if not is_shared:  # those overlap
        assert order == [*range(5)] * 5


@pytest.mark.usefixtures("frozen")
def test_one_whose_time_is_up_takes_a_lock_that_is_free(path: Path):
    """A lock that is free is never reported as held, even if others wait for it."""
    descriptor = os.open(path, os.O_RDWR)
    waiting = LockQueue(descriptor)
    waiting.wait(0.0)
    try:
        for timeout_seconds in (0.0, 0.02):
            for is_shared in (False, True):
                with TableLock(path, timeout_seconds, is_shared=is_shared):
                    assert waiting.is_next()
    finally:
        os.close(descriptor)


def start_process(path: Path, name: str, turns: int) -> subprocess.Popen[bytes]:
    """Start a process of WAITER, and return when it waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITER, str(path), name, str(turns)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"waits\n"
    return process


def waits_anybody(path: Path) -> bool:
    """Whether anybody who is running waits for the lock."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return not LockQueue(descriptor).is_next()
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGSTOP])
def test_a_waiter_that_is_killed_or_stopped_is_passed_over(path: Path, stop: signal.Signals):
    """The others go on, and need not clean up; one that runs again takes the lock then."""
    with TableLock(path, 0):
        process = start_process(path, "a", 1)
        os.kill(process.pid, stop)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    try:
        for _ in range(3):
            with TableLock(path, 60):
                assert not waits_anybody(path)
    finally:
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=60)
    assert (path.parent / "turns").read_bytes() == (b"a" if stop == signal.SIGSTOP else b"")


@needs_queue
@pytest.mark.full
def test_no_process_of_eight_waits_more_than_twenty_turns(path: Path):
    """Each takes the lock again as soon as it has released it."""
    with TableLock(path, 0):
        processes = [start_process(path, name, 50) for name in "abcdefgh"]
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    turns = (path.parent / "turns").read_text()
    assert {name: turns.count(name) for name in "abcdefgh"} == dict.fromkeys("abcdefgh", 50)
    assert max(len(others) for name in "abcdefgh" for others in turns.split(name)[:-1]) <= 20


@pytest.mark.parametrize("stop", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_a_lock_file_is_created_as_a_whole(tmp_path: Path, monkeypatch, stop: BaseException):
    """A creation that fails or is killed leaves nothing that a later one takes for a lock file."""
    path = tmp_path / "lock"

    def fails(_descriptor: int) -> None:
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        patch.setattr(Path, "unlink", lambda *_: None)  # as if killed
        with pytest.raises((StorageError, KeyboardInterrupt)):
            create_lock_file(path)
    assert not path.exists()
    create_lock_file(path)
    with TableLock(path, 0) as lock:
        lock.announce("work")
    with TableLock(path, 0) as lock:
        assert lock.holder().startswith("work" + HERE)


@pytest.mark.parametrize("length", [0, 1, 19])
def test_a_lock_file_that_is_too_short_is_made_whole(path: Path, length: int):
    """It was cut off, or its creation was killed: its timestamp is 0, and it can be used."""
    size = path.stat().st_size
    os.truncate(path, length)
    assert safe_timestamp(path) == 0
    with TableLock(path, 0) as lock:
        lock.announce("first")
    with TableLock(path, 0) as lock:
        assert lock.safe_timestamp == 0 and lock.holder().startswith("first" + HERE)
        lock.advance_safe_timestamp(7)
    assert (safe_timestamp(path), path.stat().st_size) == (7, size)


def test_last_only_rises(path: Path):
    """A lower timestamp changes nothing; it is read without the lock too."""
    with TableLock(path, 0) as lock:
        lock.advance_safe_timestamp(5)
        lock.advance_safe_timestamp(3)
        lock.announce("x" * 1000)
        assert lock.safe_timestamp == 5
    assert safe_timestamp(path) == 5
    create_lock_file(path)
    assert safe_timestamp(path) == 5


def test_no_lock_file_means_nothing_is_settled(tmp_path: Path):
    """Reading gives 0; locking is a storage error with the path."""
    assert safe_timestamp(tmp_path / "lock") == 0
    with (
        pytest.raises(StorageError, match=r"cannot open .*/lock to lock it"),
        TableLock(tmp_path / "lock", 0),
    ):
        pass


def test_a_lock_file_that_the_disk_refuses_is_a_storage_error(path: Path, monkeypatch):
    """It names the file, and keeps the error's number; the lock is free again."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def use() -> None:
        with TableLock(path, 0) as lock:
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
        assert safe_timestamp(path) == 0
        with TableLock(path, 0) as lock:
            assert lock.safe_timestamp == 0


def test_a_lock_file_of_a_newer_format_is_refused(path: Path):
    """The message names the file and both versions."""
    path.write_bytes(b"KLCK\x09" + path.read_bytes()[5:])
    with pytest.raises(
        FormatVersionError, match=r"lock: lock file of version 9, known: 1 to 2; upgrade"
    ):
        safe_timestamp(path)


def test_a_file_that_is_no_lock_file_is_refused(path: Path):
    """It has no version that an upgrade would know."""
    path.write_bytes(b"PAR1" + path.read_bytes()[4:])
    with pytest.raises(CorruptionError, match=r"lock: not a lock file: begins with b'PAR1'") as e:
        safe_timestamp(path)
    assert not isinstance(e.value, FormatVersionError)


def test_a_full_disk_under_the_lock_file_does_not_promise_that_nothing_was_changed(
    path: Path, monkeypatch
):
    """The lock file is written after the log's fsync: the rows are there."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(StorageError) as found, TableLock(path, 0) as lock:
        lock.set_log_end(1, 64)
    assert found.value.strerror == (
        f"cannot write {path}: No space left on device; free some space"
    )


def test_the_end_of_the_log_is_kept_beside_last(path: Path):
    """Read with the lock and without; announcing does not touch it."""
    assert read_lock_file(path) == LockState(0, (0, 0), is_of_this_boot=True)
    with TableLock(path, 0) as lock:
        assert lock.log_end == (0, 0)
        lock.set_log_end(3, 1 << 40)
        lock.announce("x" * 1000)
        lock.advance_safe_timestamp(9)
        assert lock.log_end == (3, 1 << 40)
        assert len(lock.holder()) == 200
    assert read_lock_file(path) == LockState(9, (3, 1 << 40), is_of_this_boot=True)
    with TableLock(path, 0, is_shared=True) as lock:
        assert lock.log_end == (3, 1 << 40)


def test_the_bytes_of_a_lock_file(path: Path, monkeypatch: pytest.MonkeyPatch):
    """Version 2; that of version 1, which a tablet of an older table has, is read as well."""
    monkeypatch.setattr(table_lock, "_this_boot", lambda: 0x1122334455667788)
    with TableLock(path, 0) as lock:
        lock.set_log_end(1, 64)
        lock.advance_safe_timestamp(77)
    assert path.read_bytes() == GOLDEN
    assert read_lock_file(path) == LockState(77, (1, 64), is_of_this_boot=True)
    path.write_bytes(GOLDEN_OF_TABLET)
    assert read_lock_file(path) == LockState(77, (1, 64))
    with TableLock(path, 0, is_shared=True) as lock:
        assert (lock.safe_timestamp, lock.log_end) == (77, (1, 64))
    for content in (GOLDEN, GOLDEN_OF_TABLET):
        for place in range(CELL, len(content)):
            torn = bytearray(content)
            torn[place] ^= 1
            path.write_bytes(torn)
            assert read_lock_file(path) == LockState(77, None), place


@pytest.mark.parametrize("noted", [0, 1, 2])
def test_an_end_of_another_boot_may_be_behind_the_log(path: Path, monkeypatch, noted: int):
    """Nor is one taken for this boot's where the system does not say which boot it is."""
    monkeypatch.setattr(table_lock, "_this_boot", lambda: noted)
    with TableLock(path, 0) as lock:
        lock.set_log_end(1, 64)
    for now in (0, 1, 2):
        monkeypatch.setattr(table_lock, "_this_boot", lambda now=now: now)
        assert read_lock_file(path) == LockState(0, (1, 64), is_of_this_boot=now == noted > 0)


def test_the_end_of_the_log_never_falls(path: Path):
    """By our own mistake it never does."""
    with TableLock(path, 0) as lock:
        lock.set_log_end(2, 40)
        for end in ((1, 500), (2, 39)):
            with pytest.raises(AssertionError):
                lock.set_log_end(*end)
        assert lock.log_end == (2, 40)


def test_a_lock_file_without_the_end_of_the_log_gets_one(path: Path):
    """It was cut off behind the holder."""
    path.write_bytes(path.read_bytes()[:CELL])
    assert read_lock_file(path) == LockState(0, (0, 0))
    with TableLock(path, 0) as lock:
        assert lock.log_end == (0, 0)
        lock.set_log_end(1, 64)
    assert read_lock_file(path) == LockState(0, (1, 64), is_of_this_boot=True)


@pytest.mark.parametrize("offset", range(8, 20))
def test_a_torn_safe_timestamp_is_not_used(path: Path, offset: int):
    """A higher one would settle moments that are still being written; 0 settles none."""
    with TableLock(path, 1.0) as lock:
        lock.advance_safe_timestamp(77)
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x11
    path.write_bytes(content)
    assert safe_timestamp(path) == 0
    with TableLock(path, 1.0) as lock:
        assert lock.safe_timestamp == 0
        lock.advance_safe_timestamp(5)
    assert safe_timestamp(path) == 5


@pytest.mark.parametrize("offset", range(CELL, CELL + 28))
def test_a_torn_end_of_the_log_is_not_known(path: Path, offset: int):
    """Any flipped byte, or one that is missing; `last` is still there, and the holder mends it."""
    with TableLock(path, 0) as lock:
        lock.set_log_end(1, 64)
        lock.advance_safe_timestamp(5)
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    for torn in (bytes(content), bytes(content[: max(offset, CELL + 1)])):
        path.write_bytes(torn)
        assert read_lock_file(path) == LockState(5, None)
        with TableLock(path, 0) as lock:
            assert lock.log_end == (0, 0)
    with TableLock(path, 0) as lock:
        lock.set_log_end(1, 80)
    assert read_lock_file(path) == LockState(5, (1, 80), is_of_this_boot=True)


def test_no_lock_file_means_no_log(tmp_path: Path):
    """As for `last`."""
    assert read_lock_file(tmp_path / "lock") == LockState(0, (0, 0))


def test_a_new_lock_file_that_a_collection_takes_is_made_again(tmp_path, monkeypatch):
    """It looks like what a killed process has left."""
    path, link, left = tmp_path / "lock", os.link, [1, 1]

    def taken_first(source: Path, target: Path) -> None:
        if left:
            left.pop()
            source.unlink()
        link(source, target)

    monkeypatch.setattr(os, "link", taken_first)
    create_lock_file(path)
    assert (list(tmp_path.iterdir()), left) == ([path], [])
    assert safe_timestamp(path) == 0
    with pytest.raises(StorageError, match="does not exist"):
        create_lock_file(tmp_path / "none" / "lock")
