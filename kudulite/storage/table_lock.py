"""The lock of a table between processes, with its safe timestamp and the end of its log.

    lock file := magic:4 "KLCK"  format_version:u32le  safe_timestamp:u64le  crc:u32le
                 holder:text[200]  log_segment:u64le  log_offset:u64le  boot:u64le  log_crc:u32le

`flock` on the file is the lock; the kernel releases it when its process ends. The three cells:

    safe_timestamp   the highest HybridTime timestamp that a commit of the table has used or to
                     which a reader has advanced it. If `crc` differs (torn by a power failure), it
                     reads as 0. That costs one acquisition and loses nothing, because the
                     timestamps of commits are in the manifest and in the log. So does a file that
                     is too short.
    holder           which process holds the lock, for what and since when, for the error of a
                     process that waits; never used for anything else.
    log_…            where the durable part of the table's log ends, (0, 0) without a log, and the
                     boot of the machine that noted it. The cell is not fsynced: after a power
                     failure it may be behind the log, or torn, which reads as not known.

In tables of formats before 8 each tablet has such a file, of format version 1: the end is that of
the tablet's own log, and there is no `boot`. The lock of a folder of backups, and that of a
maintainer, use the lock and the holder only.

A shared acquisition needs no right to write: it waits for the committer and keeps writers out.

Acquisitions that wait are a queue: the first to come is the first to have the lock.

    place := heartbeat:15 bits  arrival:47 bits      the number of a byte of the lock file
    heartbeat   the 2^27 ns (134 ms) in which the waiter was running last, modulo 2^15
    arrival     the time at which it began to wait, in units of 2^13 ns

Both are of the machine's monotonic clock, and last for 36 years after its start. The file ends
before these bytes; they are only locked. A waiter keeps a shared lock on its byte (`F_OFD_SETLK`).
Nobody waits for that lock: others look (`F_OFD_GETLK`) whether a byte of this or the previous
heartbeat with an earlier arrival is locked. If there is none, a waiter is next, and tries to take
the lock. An acquisition that has not waited looks first, too, so it does not overtake. One whose
time is up, or that has none, tries out of order: a lock that is free is not reported as held.

Nobody in the queue can block it, and it needs no cleaning up. The kernel unlocks the byte of a
process that ends. A process that stands still does not move to the byte of the next heartbeat, so
others see it for 268 ms at most; when it runs again, it has its old place. Two can be next at the
same time, for example where both came within 2^13 ns, or where one did not run for a while; then
`flock` decides. A system without such locks, or a file system that refuses one, has no queue: all
that wait are next. NFS is one, where a `flock` locks all bytes.

**Invariants**: (1) the safe timestamp only rises, and only the holder of the lock writes it; (2) it
is written last: after the manifest (commit), or after the log's end (row write). Hence a safe
timestamp ≥ T, read without the lock, proves that no later commit can get a timestamp ≤ T, and a log
end read afterwards includes all records up to T.

**Threads**: an instance is one acquisition at a time and belongs to one thread. Instances exclude
each other also within a process, because flock belongs to the open file. A forked child closes the
files of its parent, because it would share their locks, and keep them when the parent has died.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import os
import random
import socket
import struct
import sys
import time
import uuid
import weakref
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from kudulite.errors import CorruptionError, FormatVersionError, LockTimeoutError, StorageError
from kudulite.storage.open_file import (
    DescriptorOwner,
    FileIdentity,
    descriptor_identity,
    open_descriptor,
    path_identity,
)
from kudulite.storage.storage_error import storage_error

_HEADER = struct.Struct("<4sIQI")
_MAGIC = b"KLCK"
_FORMAT_VERSION = 2
_TIMESTAMP_OFFSET, _TIMESTAMP = 8, struct.Struct("<QI")
_HOLDER_BYTES = 200
_LOG_END, _UNCHECKED_LOG_END = struct.Struct("<QQQI"), struct.Struct("<QQQ")
_LOG_END_OF_TABLET = struct.Struct("<QQI")  # in format version 1
_LOG_END_OFFSET = _HEADER.size + _HOLDER_BYTES
_FILE_BYTES = _LOG_END_OFFSET + _LOG_END.size
_LOG_END_READS_MAX = 5
_FILE_OFFSET_END = 1 << 63
_HAS_QUEUE = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")
_FLOCK = struct.Struct("@hhqqi4x")  # of fcntl(2): type, whence, start, length, process
_HEARTBEAT_SHIFT, _HEARTBEATS = 27, 1 << 15
_ARRIVAL_SHIFT, _ARRIVALS = 13, 1 << 47
# A pause is a part of the time waited so far, so that it is short beside the turns of others.
_PAUSE_PART = 1 / 6
_PAUSE_SECONDS_NEXT, _PAUSE_SECONDS_BEHIND, _PAUSE_SECONDS_MOST = 0.0003, 0.001, 0.01

# Some file systems of user space give a file another identity each time.
_OPENINGS_MAX = 3


def create_lock_file(path: Path) -> None:
    """Write a new lock file with the safe timestamp 0; an existing file stays unchanged.

    The file is there as a whole or not at all. Its name is not durable yet. Raises StorageError.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        while not os.path.lexists(path):
            with temporary.open("xb") as file:
                file.write(_new_content())
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileNotFoundError):  # a garbage collection may take it before it is named
                os.link(temporary, path)
    except FileExistsError:
        return
    except OSError as error:
        raise storage_error("create", path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _new_content() -> bytes:
    header = _HEADER.pack(_MAGIC, _FORMAT_VERSION, 0, _checksum(0))
    return header + b" " * _HOLDER_BYTES + _pack_log_end(0, 0)  # `announce` needs no space later


@dataclass(frozen=True)
class LockState:
    """A lock file's cells, read without the lock.

    `log_end` is (segment, offset), None where it is torn; a holder of the lock finds it in the log.
    `is_of_this_boot`: it was noted on this machine, which has not been started again since.
    `identity` is that of the file (open_file.py), None without one.
    """

    safe_timestamp: int = 0
    log_end: tuple[int, int] | None = (0, 0)
    is_of_this_boot: bool = False
    identity: FileIdentity | None = field(default=None, compare=False)


def read_lock_file(path: str | Path) -> LockState:
    """Return the cells of a lock file, or those of a new one where there is none.

    Raises StorageError for a file that cannot be read, CorruptionError, FormatVersionError.
    """
    try:
        descriptor = open_descriptor(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            identity = descriptor_identity(descriptor)
            # Two reads, in this order: the holder writes the log's end first.
            header = os.pread(descriptor, _HEADER.size, 0)
            version, timestamp = _unpack_header(path, header)
            for _ in range(_LOG_END_READS_MAX):
                cell = os.pread(descriptor, _LOG_END.size, _LOG_END_OFFSET)
                end = _unpack_log_end(cell, version)
                if end is not None:
                    break
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return LockState()
    except OSError as error:
        raise storage_error("read", path, error) from error
    if end is None:
        return LockState(timestamp, None, identity=identity)
    segment, offset, boot = end
    is_of_this_boot = bool(boot) and boot == _this_boot()
    return LockState(timestamp, (segment, offset), is_of_this_boot, identity)


def _pack_log_end(segment: int, offset: int) -> bytes:
    unchecked = _UNCHECKED_LOG_END.pack(segment, offset, _this_boot())
    return unchecked + zlib.crc32(unchecked).to_bytes(4, "little")


def _unpack_log_end(cell: bytes, version: int) -> tuple[int, int, int] | None:
    """Return (segment, offset, boot), all 0 for a file without the cell, None where it is torn."""
    if not cell:
        return 0, 0, 0
    form = _LOG_END_OF_TABLET if version == 1 else _LOG_END
    cell = cell[: form.size]
    if len(cell) < form.size or zlib.crc32(cell[:-4]) != int.from_bytes(cell[-4:], "little"):
        return None
    segment, offset, *boot, _ = form.unpack(cell)
    if max(segment, offset) >= _FILE_OFFSET_END:
        return None
    return segment, offset, boot[0] if boot else 0


@functools.cache
def _this_boot() -> int:
    """Return a number of this machine's present boot, 0 where the system does not say."""
    try:
        found = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return 0
    return int.from_bytes(hashlib.blake2b(found, digest_size=8).digest(), "little")


def _unpack_header(path: str | Path, content: bytes) -> tuple[int, int]:
    """Return (format version, safe timestamp) of a lock file's beginning."""
    if len(content) < _HEADER.size:
        return _FORMAT_VERSION, 0
    version: int
    timestamp: int
    magic, version, timestamp, stored = _HEADER.unpack_from(content)
    if magic != _MAGIC:
        raise CorruptionError(f"{path}: not a lock file: begins with {magic!r}, not {_MAGIC!r}")
    if version > _FORMAT_VERSION:
        raise FormatVersionError(
            f"{path}: lock file of version {version}, known: 1 to {_FORMAT_VERSION};"
            " upgrade kudulite to open it"
        )
    return version, timestamp if stored == _checksum(timestamp) else 0


def _checksum(timestamp: int) -> int:
    return zlib.crc32(timestamp.to_bytes(8, "little"))


def try_lock(descriptor: int, path: str | Path, *, is_shared: bool = False) -> bool:
    """Take the lock of an open file if it is free; return whether it was. Raises StorageError."""
    try:
        kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise storage_error("lock", path, error) from error
    return True


class LockQueue:
    """The queue at an open lock file, for one acquisition: without a place until it waits."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_usable = _HAS_QUEUE
        self._arrival = _ARRIVALS  # after all others
        self._byte = 0  # 0 without a place
        self._since = 0  # in ns: when it began to wait, or became next
        self._is_next = False

    def is_next(self) -> bool:
        """Whether nobody who is running came before; True without a queue."""
        if not self._is_usable:
            return True
        now = time.monotonic_ns()
        heartbeat = now >> _HEARTBEAT_SHIFT
        try:
            is_next = not self._has_earlier(heartbeat)
        except OSError:
            self._is_usable, is_next = False, True
        if is_next and not self._is_next:
            self._since = now
        self._is_next = is_next
        return is_next

    def _has_earlier(self, heartbeat: int) -> bool:
        """Whether another open file has an earlier place, of this heartbeat or the last.

        One without a place comes after all of both, which are mostly side by side.
        """
        last, this = (each % _HEARTBEATS * _ARRIVALS for each in (heartbeat - 1, heartbeat))
        if self._arrival == _ARRIVALS and last < this:
            return self._is_any_locked(last, 2 * _ARRIVALS)
        return any(self._is_any_locked(begin, self._arrival) for begin in (last, this))

    def _is_any_locked(self, begin: int, length: int) -> bool:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, begin, length, 0)
        found = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, asked)
        return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)

    def wait(self, seconds_most: float) -> None:
        """Take a place, or move it to the present heartbeat; then pause."""
        now = time.monotonic_ns()
        if self._arrival == _ARRIVALS:
            self._arrival, self._since = now >> _ARRIVAL_SHIFT, now
        if self._is_usable:
            self._move(now >> _HEARTBEAT_SHIFT)
        least = _PAUSE_SECONDS_NEXT if self._is_next else _PAUSE_SECONDS_BEHIND
        pause = min(max((now - self._since) / 1e9 * _PAUSE_PART, least), _PAUSE_SECONDS_MOST)
        # At random times, because without a queue, waiters in step could keep one out for long.
        time.sleep(min(pause * random.uniform(0.5, 1.0), seconds_most))

    def _move(self, heartbeat: int) -> None:
        """Have the byte of a heartbeat locked, and no other."""
        byte = heartbeat % _HEARTBEATS * _ARRIVALS + self._arrival
        if byte != self._byte:
            try:
                self._lock(fcntl.F_RDLCK, byte)
            except OSError:
                self._is_usable = False
                return
            self.leave()
            self._byte = byte

    def leave(self) -> None:
        """Give up the place, if there is one."""
        if self._byte:
            self._lock(fcntl.F_UNLCK, self._byte)
            self._byte = 0

    def _lock(self, kind: int, byte: int) -> None:
        """Lock or unlock a byte. Shared, because the file may be open for reading only."""
        change = _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0)
        fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, change)


class TableLock(DescriptorOwner):
    """The lock of a table, for one acquisition after another; use as a context manager.

    With `stays_open` the first acquisition opens the file and later ones use it again. Raises
    LockTimeoutError, which names the holder, after `timeout_seconds`, and StorageError when the
    file cannot be opened for writing (a read-only directory), read or written.
    """

    def __init__(
        self,
        path: str | Path,
        timeout_seconds: float,
        *,
        is_shared: bool = False,
        stays_open: bool = False,
        owner: str = "",
    ) -> None:
        """`owner` is what the lock is of, for the error of a process that waits."""
        self.timeout_seconds = timeout_seconds
        self._owner = owner
        self._path = path
        self._is_shared = is_shared
        self._stays_open = stays_open
        self.identity: FileIdentity | None = None  # of the file that was opened last
        self._read: _Cells | None = None  # the file's content when it was last read
        self._known: _Cells | None = None  # the content during this acquisition

    def __enter__(self) -> Self:
        self._known = None
        openings = 0
        while True:
            if self._descriptor < 0:
                self._open()
                openings += 1
            try:
                self._acquire()
                # The file may have been replaced since it was opened, also with the whole folder of
                # the table, by a copy of it. Its lock would exclude nobody.
                if self._is_at_its_path() or openings == _OPENINGS_MAX:
                    return self
            except BaseException:
                self.close()
                raise
            self.close()

    def __exit__(self, *_exc: object) -> None:
        # Closing is not enough: a child of a fork at this moment has not closed the file yet.
        if self._descriptor >= 0:  # it is closed in a child
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        if not self._stays_open:
            self.close()

    def _open(self) -> None:
        flags = (os.O_RDONLY if self._is_shared else os.O_RDWR) | os.O_CLOEXEC
        close_in_child(self)
        try:
            self._descriptor = open_descriptor(self._path, flags)
            self.identity = descriptor_identity(self._descriptor)
        except OSError as error:
            raise self._open_error(error) from error

    def _open_error(self, error: OSError) -> StorageError:
        found = storage_error("open", f"{self._path} to lock it", error)
        if error.errno != errno.ENOENT or not os.path.isdir(os.path.dirname(self._path)):
            return found
        return StorageError(
            errno.ENOENT,
            f"{found.strerror}; if it was lost, make an empty file of this name while no process"
            " has the table open: nothing is lost with it",
        )

    def _is_at_its_path(self) -> bool:
        try:
            return path_identity(self._path) == self.identity
        except OSError as error:
            raise storage_error("look at", self._path, error) from error

    def _acquire(self) -> None:
        deadline = time.monotonic() + self.timeout_seconds
        queue = LockQueue(self._descriptor)
        try:
            while True:
                left = deadline - time.monotonic()
                if (left <= 0 or queue.is_next()) and self._try_acquire():
                    return
                if left <= 0:
                    raise LockTimeoutError(
                        f"{self._owner}waited {self.timeout_seconds:g} s for {self._path}, held by"
                        f" {self.holder()}; try again later, or wait longer"
                        " (lock_timeout_seconds); if that process stands still, let it go on"
                        " (kill -CONT) or end it: its lock is free when it ends, and a write that"
                        " it has not published is not there"
                    )
                queue.wait(left)
        finally:
            queue.leave()

    def _try_acquire(self) -> bool:
        return try_lock(self._descriptor, self._path, is_shared=self._is_shared)

    def announce(self, work: str) -> None:
        """Write which process holds the lock, for what and since when, for those that wait."""
        text = _announcement(work, os.getpid(), int(time.time()))
        self._write(text, _HEADER.size)
        self._cells.holder = text

    def holder(self) -> str:
        """Return the last announcement of a holder."""
        text = os.pread(self._descriptor, _HOLDER_BYTES, _HEADER.size)
        return text.decode(errors="replace").strip(" \0") or "an unknown process"

    @property
    def safe_timestamp(self) -> int:
        """The table's safe timestamp."""
        return self._cells.safe_timestamp

    def advance_safe_timestamp(self, timestamp: int) -> None:
        """Raise the safe timestamp to `timestamp`, if it is lower.

        Not fsynced, because the timestamps of commits are in the manifest.
        """
        cells = self._cells
        if timestamp > cells.safe_timestamp:
            self._write(_TIMESTAMP.pack(timestamp, _checksum(timestamp)), _TIMESTAMP_OFFSET)
            cells.safe_timestamp = timestamp

    @property
    def log_end(self) -> tuple[int, int]:
        """The end of the log's durable part: (segment, offset), (0, 0) where it is not known."""
        return self._cells.log_end

    def set_log_end(self, segment: int, offset: int) -> None:
        """Write the end of the log's durable part, before the safe timestamp; not fsynced.

        The end never moves back.
        """
        cells, end = self._cells, (segment, offset)
        assert end >= cells.log_end
        self._write(_pack_log_end(segment, offset), _LOG_END_OFFSET)
        cells.log_end = end

    @property
    def _cells(self) -> _Cells:
        if self._known is None:
            try:
                content = os.pread(self._descriptor, _FILE_BYTES, 0)
            except OSError as error:
                raise storage_error("read", self._path, error) from error
            if self._read is None or content != self._read.content:
                version, timestamp = _unpack_header(self._path, content)
                end = _unpack_log_end(content[_LOG_END_OFFSET:], version) or (0, 0)
                self._read = _Cells(
                    content=bytearray(content),
                    safe_timestamp=timestamp,
                    holder=content[_HEADER.size : _LOG_END_OFFSET],
                    log_end=end[:2],
                )
            self._known = self._read
        return self._known

    def _write(self, cell: bytes, offset: int) -> None:
        """Change a part of the file; the caller changes the decoded cell."""
        content = self._cells.content
        is_short = len(content) < _HEADER.size  # cut off, or its creation by older software failed
        if is_short:
            content[:] = _new_content()
        content[offset : offset + len(cell)] = cell
        if is_short:
            cell, offset = bytes(content), 0
        try:
            os.pwrite(self._descriptor, cell, offset)
        except OSError as error:
            raise storage_error("write", self._path, error) from error


@dataclass(slots=True)
class _Cells:
    """A lock file's content; `log_end` is (0, 0) where it is not known."""

    content: bytearray
    safe_timestamp: int
    holder: bytes
    log_end: tuple[int, int]


# Those whose files have been opened.
_opened: weakref.WeakSet[DescriptorOwner] = weakref.WeakSet()


def close_in_child(owner: DescriptorOwner) -> None:
    """Have a locked file closed in a forked child; the parent keeps it open."""
    _opened.add(owner)


def _close_opened() -> None:
    """Close them in a forked child, which would otherwise share the parent's locks."""
    for owner in list(_opened):
        owner.close()
    _opened.clear()


os.register_at_fork(after_in_child=_close_opened)


@functools.lru_cache
def _announcement(work: str, process_id: int, second: int) -> bytes:
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(second))
    text = f"{work} of process {process_id} on {socket.gethostname()} since {since}".encode()
    return text[:_HOLDER_BYTES].ljust(_HOLDER_BYTES)
