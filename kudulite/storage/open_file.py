"""Open files: descriptors, folders, and a log's file, which grows and is cut back.

**Threads**: an open file belongs to one thread at a time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from pathlib import Path
from typing import Protocol

from kudulite.storage.storage_error import storage_error, storage_errors

# Without O_NONBLOCK, opening a named pipe would wait for its writer.
READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


# Device and number: which file it is, whatever it is called.
FileIdentity = tuple[int, int]


class DescriptorOwner:
    """An object that has one file open, or none; it closes the file at the latest when dropped."""

    _descriptor = -1

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        # Forgotten first: even if `close` raises, the number may belong to another file afterwards.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def open_descriptor(path: str | Path, flags: int) -> int:
    """Open a file; raise the process's soft limit of open files when half of it is in use.

    A commit holds the locks of all tablets that it touches, and a process keeps the lock file and
    the log of each tablet with unflushed rows open, which may need more than the usual 1024. The
    other half of the limit is left to the rest of the process. Raises OSError.
    """
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK  # as READ_FLAGS
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        _raise_limit()
        return os.open(path, flags)
    # The kernel assigns the lowest free number.
    if 2 * descriptor > resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
        _raise_limit()
    return descriptor


def _raise_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some systems refuse the hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptor_identity(descriptor: int) -> FileIdentity:
    """Return the identity of an open file. Raises OSError."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def path_identity(path: str | Path) -> FileIdentity | None:
    """Return the identity of the file at a path, None where there is none. Raises OSError."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def read_range(descriptor: int, offset: int, length: int) -> bytes:
    """Return `length` bytes at `offset`, fewer where the file ends. Raises OSError."""
    content = os.pread(descriptor, length, offset)
    while len(content) < length:  # the kernel returns at most 2 GiB at once
        more = os.pread(descriptor, length - len(content), offset + len(content))
        if not more:
            break
        content += more
    return content


class DurableSteps(Protocol):
    """The call ahead of every durable step, at which a test double raises."""

    def before(self, operation: str, path: Path) -> None:
        """Do nothing, or stop."""


class OpenFolder(DescriptorOwner):
    """A folder that is open: it stays the same one, whatever its path leads to meanwhile."""

    def __init__(self, storage: DurableSteps, path: Path) -> None:
        self._storage = storage
        self.path = path
        with storage_errors("open", path):
            self._descriptor = open_descriptor(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def is_at_its_path(self) -> bool:
        """Whether the path still leads to this folder."""
        with storage_errors("look at", self.path):
            return path_identity(self.path) == descriptor_identity(self._descriptor)

    def delete(self, name: str) -> None:
        """Remove a file of this folder, if it exists."""
        path = self.path / name
        self._storage.before("remove", path)
        with storage_errors("remove", path), contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def __enter__(self) -> OpenFolder:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class AppendFile(DescriptorOwner):
    """An existing file, opened to grow and to be cut back.

    One process at a time may change it, under a lock that the caller holds.
    """

    def __init__(self, storage: DurableSteps, path: Path) -> None:
        self._storage = storage
        self.path = path
        with storage_errors("open", path):
            self._descriptor = open_descriptor(path, os.O_RDWR | os.O_CLOEXEC)
            self._identity = descriptor_identity(self._descriptor)

    def is_at_its_path(self) -> bool:
        """Whether the path still leads to this file."""
        try:
            return path_identity(self.path) == self._identity
        except OSError as error:
            raise storage_error("look at", self.path, error) from error

    def size(self) -> int:
        """Return the length of the file in bytes."""
        with storage_errors("look at", self.path):
            return os.fstat(self._descriptor).st_size

    # A small write consists of `read`, `append` and `sync`, so these avoid a context manager.

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes at `offset`, fewer where the file ends."""
        try:
            return read_range(self._descriptor, offset, length)
        except OSError as error:
            raise storage_error("read", self.path, error) from error

    def append(self, content: bytes, offset: int) -> None:
        """Write `content` at `offset`, the end of the file; durable after `sync`.

        Raises StorageError when the disk refuses; a part of `content` may have been written.
        """
        self._storage.before("append", self.path)
        try:
            written = self._write(content, offset)
            while written < len(content):
                written += self._write(memoryview(content)[written:], offset + written)
        except OSError as error:
            raise storage_error("append to", self.path, error, is_unchanged=True) from error

    def _write(self, rest: bytes | memoryview, offset: int) -> int:
        """Write some of `rest` and return the number of bytes; a test double fails half way."""
        return os.pwrite(self._descriptor, rest, offset)

    def cut(self, length: int) -> None:
        """Shorten the file to `length`; durable after `sync`."""
        self._storage.before("truncate", self.path)
        with storage_errors("truncate", self.path):
            os.ftruncate(self._descriptor, length)

    def sync(self) -> None:
        """Make bytes and length durable."""
        self._storage.before("fsync", self.path)
        try:
            # Without the file's times, which would cost a write of their own.
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise storage_error("fsync", self.path, error) from error

    def __enter__(self) -> AppendFile:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
