"""The lock of one tablet between processes, and the highest timestamp settled in it.

    lock file := magic:4 "KLCK"  format_version:u32le  last:u64le  holder:text

`flock` on the file is the lock; it goes away with its process. `last` is the highest HybridTime
timestamp that a commit of this tablet has used or that a reader has settled. `holder` says who has
the lock, for the error of whoever waits; it is never trusted for anything else.

Invariants: (1) `last` only rises and is written only by the holder; (2) a committer writes it after
its version is published, so a `last` ≥ T read without the lock proves that T is settled.

Threads: an instance is one acquisition and belongs to one thread; instances exclude each other also
within a process, because flock belongs to the open file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import time
from pathlib import Path

from kudulite.errors import FormatVersionError, LockTimeoutError, StorageError

_HEADER = struct.Struct("<4sIQ")
_MAGIC = b"KLCK"
_FORMAT_VERSION = 1
_LAST_OFFSET = 8
_HOLDER_BYTES = 200
_WAIT_SECONDS_FIRST, _WAIT_SECONDS_MOST = 0.0005, 0.02


def create_lock_file(path: Path) -> None:
    """Write a fresh lock file with `last` 0; an existing one stays as it is."""
    try:
        with path.open("xb") as file:
            file.write(_HEADER.pack(_MAGIC, _FORMAT_VERSION, 0))
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        return
    except OSError as error:
        raise StorageError(error.errno or 0, f"cannot create {path}: {error.strerror}") from error


def read_last_timestamp(path: Path) -> int:
    """Return `last` without taking the lock (0 for a file that is not there)."""
    try:
        with path.open("rb", buffering=0) as file:
            return _unpack_last(path, file.read(_HEADER.size))
    except FileNotFoundError:
        return 0


def _unpack_last(path: Path, header: bytes) -> int:
    if len(header) < _HEADER.size:
        return 0
    magic, version, last = _HEADER.unpack(header)
    if magic != _MAGIC or version > _FORMAT_VERSION:
        raise FormatVersionError(
            f"{path}: lock file of version {version}, known: {_FORMAT_VERSION}"
        )
    return last


class TabletLock:
    """One acquisition of a tablet's lock; use as a context manager.

    Raises LockTimeoutError after `timeout_seconds`, naming the holder, and StorageError where the
    file cannot be opened for writing (a read-only directory).
    """

    def __init__(self, path: Path, timeout_seconds: float) -> None:
        self._path = path
        self._timeout_seconds = timeout_seconds
        self._descriptor = -1

    def __enter__(self) -> TabletLock:
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(
                error.errno or 0, f"cannot open {self._path} to lock it: {error.strerror}"
            ) from error
        try:
            self._acquire()
        except BaseException:
            os.close(self._descriptor)
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._descriptor)  # the lock goes with the open file

    def _acquire(self) -> None:
        deadline = time.monotonic() + self._timeout_seconds
        wait_seconds = _WAIT_SECONDS_FIRST
        while not self._try_acquire():
            if time.monotonic() > deadline:
                raise LockTimeoutError(
                    f"waited {self._timeout_seconds:g} s for {self._path}, held by"
                    f" {self.holder()}; write again later, or wait longer (lock_timeout_seconds)"
                )
            time.sleep(wait_seconds)
            wait_seconds = min(wait_seconds * 2, _WAIT_SECONDS_MOST)

    def _try_acquire(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise StorageError(
                error.errno or 0, f"cannot lock {self._path}: {error.strerror}"
            ) from error
        return True

    def announce(self, work: str) -> None:
        """Write who holds the lock and for what, for those who wait."""
        text = f"{work} of process {os.getpid()} on {socket.gethostname()}".encode()
        padded = text[:_HOLDER_BYTES].ljust(_HOLDER_BYTES)
        os.pwrite(self._descriptor, padded, _HEADER.size)

    def holder(self) -> str:
        """Return what the holder announced last."""
        text = os.pread(self._descriptor, _HOLDER_BYTES, _HEADER.size)
        return text.decode(errors="replace").strip(" \0") or "an unknown process"

    @property
    def last_timestamp(self) -> int:
        """The highest timestamp used or settled in this tablet."""
        return _unpack_last(self._path, os.pread(self._descriptor, _HEADER.size, 0))

    def lift_last_timestamp(self, timestamp: int) -> None:
        """Raise `last` to `timestamp`; not fsynced: committed timestamps are in the manifest."""
        if timestamp > self.last_timestamp:
            os.pwrite(self._descriptor, struct.pack("<Q", timestamp), _LAST_OFFSET)
