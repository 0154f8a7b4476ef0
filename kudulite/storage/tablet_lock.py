"""The lock of one tablet between processes, with its safe timestamp and the end of its log.

    lock file := magic:4 "KLCK"  format_version:u32le  safe_timestamp:u64le  crc:u32le
                 holder:text[200]  wal_segment:u64le  wal_offset:u64le  wal_crc:u32le

`flock` on the file is the lock; the kernel releases it when its process ends. The three cells:

    safe_timestamp   the highest HybridTime timestamp that a commit of this tablet has used or to
                     which a reader has advanced it. If `crc` differs (torn by a power failure), it
                     reads as 0. That costs one acquisition and loses nothing, because the
                     timestamps of commits are in the manifest.
    holder           which process holds the lock, for what and since when, for the error of a
                     process that waits; never used for anything else.
    wal_…            where the durable part of the tablet's write-ahead log ends, (0, 0) without a
                     log. The cell is not fsynced: after a power failure it may be behind the log,
                     or torn, which reads as not known. Files written before kudulite had a log end
                     after `holder` and read as (0, 0).

A shared acquisition needs no right to write: it waits for the committer and keeps writers out.

**Invariants**: (1) the safe timestamp only rises, and only the holder of the lock writes it; (2) it
is written last: after the manifest (commit), or after the log's end (row write). Hence a safe
timestamp ≥ T, read without the lock, proves that no later commit can get a timestamp ≤ T, and a log
end read afterwards includes all records up to T.

**Threads**: an instance is one acquisition at a time and belongs to one thread. Instances exclude
each other also within a process, because flock belongs to the open file. A forked child closes the
files that stay open between acquisitions, because it would share the lock of its parent.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import random
import socket
import struct
import time
import weakref
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kudulite.errors import CorruptionError, FormatVersionError, LockTimeoutError
from kudulite.storage.file_system import DescriptorOwner, open_descriptor
from kudulite.storage.storage_error import storage_error

_HEADER = struct.Struct("<4sIQI")
_MAGIC = b"KLCK"
_FORMAT_VERSION = 1
_TIMESTAMP_OFFSET, _TIMESTAMP = 8, struct.Struct("<QI")
_HOLDER_BYTES = 200
_WAL_END, _WAL_POSITION = struct.Struct("<QQI"), struct.Struct("<QQ")
_WAL_END_OFFSET = _HEADER.size + _HOLDER_BYTES
_FILE_BYTES = _WAL_END_OFFSET + _WAL_END.size
_WAL_END_READS_MAX = 5
_FILE_OFFSET_END = 1 << 63
# As those of `open_descriptor`.
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_WAIT_SECONDS_FIRST, _WAIT_SECONDS_MOST = 0.0005, 0.02


def create_lock_file(path: Path) -> None:
    """Write a new lock file with the safe timestamp 0; an existing file stays unchanged."""
    try:
        with path.open("xb") as file:
            file.write(_HEADER.pack(_MAGIC, _FORMAT_VERSION, 0, _checksum(0)))
            file.write(b" " * _HOLDER_BYTES)  # so that `announce` needs no space later
            file.write(_pack_wal_end(0, 0))
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        return
    except OSError as error:
        raise storage_error("create", path, error) from error


def read_safe_timestamp(path: str | Path) -> int:
    """Return the safe timestamp without taking the lock, 0 without a file."""
    return read_lock_file(path)[0]


def highest_safe_timestamp(paths: Iterable[str]) -> int:
    """Return the highest of what `read_safe_timestamp` returns for each path, 0 without any.

    Each version of a table reads that of all its tablets, so most of this is three system calls for
    a file.
    """
    headers: dict[bytes, str] = {}
    highest = 0
    for path in paths:
        try:
            descriptor = os.open(path, _READ_FLAGS)
            try:
                headers[os.pread(descriptor, _HEADER.size, 0)] = path
            finally:
                os.close(descriptor)
        except OSError:
            # There is no file, or the error is raised again with its path.
            highest = max(highest, read_safe_timestamp(path))
    found = (_unpack_safe_timestamp(path, content) for content, path in headers.items())
    return max(highest, *found, 0)


def read_lock_file(path: str | Path) -> tuple[int, tuple[int, int] | None]:
    """Return the safe timestamp and the log's end (segment, offset) without taking the lock.

    The end is None where it is torn; a holder of the lock finds it in the log. Both are 0 without a
    file. Raises StorageError for a file that cannot be read.
    """
    try:
        descriptor = open_descriptor(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Two reads, in this order: the holder writes the log's end first.
            timestamp = _unpack_safe_timestamp(path, os.pread(descriptor, _HEADER.size, 0))
            return timestamp, _read_wal_end(descriptor)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return 0, (0, 0)
    except OSError as error:
        raise storage_error("read", path, error) from error


def _pack_wal_end(segment: int, offset: int) -> bytes:
    position = _WAL_POSITION.pack(segment, offset)
    return position + zlib.crc32(position).to_bytes(4, "little")


def _read_wal_end(descriptor: int) -> tuple[int, int] | None:
    """Return the log's end, None where its CRC differs in several reads."""
    for _ in range(_WAL_END_READS_MAX):
        end = _unpack_wal_end(os.pread(descriptor, _WAL_END.size, _WAL_END_OFFSET))
        if end is not None:
            return end
    return None


def _unpack_wal_end(cell: bytes) -> tuple[int, int] | None:
    """Return the log's end, (0, 0) for a file without the cell, None where it is torn."""
    if not cell:
        return 0, 0
    if len(cell) == _WAL_END.size:
        segment, offset, _ = _WAL_END.unpack(cell)
        if cell == _pack_wal_end(segment, offset) and max(segment, offset) < _FILE_OFFSET_END:
            return segment, offset
    return None


def _unpack_safe_timestamp(path: str | Path, content: bytes) -> int:
    if len(content) < _HEADER.size:
        return 0
    timestamp: int
    magic, version, timestamp, stored = _HEADER.unpack_from(content)
    if magic != _MAGIC:
        raise CorruptionError(f"{path}: not a lock file: begins with {magic!r}, not {_MAGIC!r}")
    if version > _FORMAT_VERSION:
        raise FormatVersionError(
            f"{path}: lock file of version {version}, known: {_FORMAT_VERSION};"
            " upgrade kudulite to open it"
        )
    return timestamp if stored == _checksum(timestamp) else 0


def _checksum(timestamp: int) -> int:
    return zlib.crc32(timestamp.to_bytes(8, "little"))


class TabletLock(DescriptorOwner):
    """The lock of a tablet, for one acquisition after another; use as a context manager.

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
        self._read: _Cells | None = None  # the file's content when it was last read
        self._known: _Cells | None = None  # the content during this acquisition
        if stays_open:
            _kept_open.add(self)

    def __enter__(self) -> TabletLock:
        self._known = None
        while True:
            is_kept = self._descriptor >= 0
            if not is_kept:
                self._open()
            try:
                self._acquire()
            except BaseException:
                self.close()
                raise
            # A file that stayed open may have been removed since, and created again.
            if not is_kept or os.fstat(self._descriptor).st_nlink:
                return self
            self.close()

    def __exit__(self, *_exc: object) -> None:
        # Closing is not enough, because a forked child may have the open file too.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        if not self._stays_open:
            self.close()

    def _open(self) -> None:
        flags = (os.O_RDONLY if self._is_shared else os.O_RDWR) | os.O_CLOEXEC
        try:
            self._descriptor = open_descriptor(self._path, flags)
        except OSError as error:
            raise storage_error("open", f"{self._path} to lock it", error) from error

    def _acquire(self) -> None:
        deadline = time.monotonic() + self.timeout_seconds
        wait_seconds = _WAIT_SECONDS_FIRST
        while not self._try_acquire():
            if time.monotonic() > deadline:
                raise LockTimeoutError(
                    f"{self._owner}waited {self.timeout_seconds:g} s for {self._path}, held by"
                    f" {self.holder()}; try again later, or wait longer (lock_timeout_seconds); if"
                    " that process stands still, let it go on (kill -CONT) or end it: its lock is"
                    " free when it ends, and a write that it has not published is not there"
                )
            # At random times, because waiters in step could keep one of them out for long.
            time.sleep(wait_seconds * random.uniform(0.5, 1.0))
            wait_seconds = min(wait_seconds * 2, _WAIT_SECONDS_MOST)

    def _try_acquire(self) -> bool:
        try:
            kind = fcntl.LOCK_SH if self._is_shared else fcntl.LOCK_EX
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise storage_error("lock", self._path, error) from error
        return True

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
        """The tablet's safe timestamp."""
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
    def wal_end(self) -> tuple[int, int]:
        """The end of the log's durable part: (segment, offset), (0, 0) where it is not known."""
        return self._cells.wal_end

    def set_wal_end(self, segment: int, offset: int) -> None:
        """Write the end of the log's durable part, before the safe timestamp; not fsynced.

        The end never moves back.
        """
        cells, end = self._cells, (segment, offset)
        assert end >= cells.wal_end
        self._write(_pack_wal_end(segment, offset), _WAL_END_OFFSET)
        cells.wal_end = end

    @property
    def _cells(self) -> _Cells:
        if self._known is None:
            try:
                content = os.pread(self._descriptor, _FILE_BYTES, 0)
            except OSError as error:
                raise storage_error("read", self._path, error) from error
            if self._read is None or content != self._read.content:
                self._read = _Cells(
                    content=bytearray(content),
                    safe_timestamp=_unpack_safe_timestamp(self._path, content),
                    holder=content[_HEADER.size : _WAL_END_OFFSET],
                    wal_end=_unpack_wal_end(content[_WAL_END_OFFSET:]) or (0, 0),
                )
            self._known = self._read
        return self._known

    def _write(self, cell: bytes, offset: int) -> None:
        """Change a part of the file; the caller changes the decoded cell."""
        self._cells.content[offset : offset + len(cell)] = cell
        try:
            os.pwrite(self._descriptor, cell, offset)
        except OSError as error:
            raise storage_error("write", self._path, error) from error


@dataclass(slots=True)
class _Cells:
    """A lock file's content; `wal_end` is (0, 0) where it is not known."""

    content: bytearray
    safe_timestamp: int
    holder: bytes
    wal_end: tuple[int, int]


# Locks whose files stay open between acquisitions.
_kept_open: weakref.WeakSet[TabletLock] = weakref.WeakSet()


def _close_kept() -> None:
    """Close them in a forked child, which would otherwise share the parent's locks."""
    for lock in list(_kept_open):
        lock.close()
    _kept_open.clear()


os.register_at_fork(after_in_child=_close_kept)


@functools.lru_cache
def _announcement(work: str, process_id: int, second: int) -> bytes:
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(second))
    text = f"{work} of process {process_id} on {socket.gethostname()} since {since}".encode()
    return text[:_HOLDER_BYTES].ljust(_HOLDER_BYTES)
