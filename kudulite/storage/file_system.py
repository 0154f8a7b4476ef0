"""Every durable step of the engine: create, append, truncate, fsync, link, rename, remove.

One `FileSystem` is handed down from the client to all parts, so that a test double can stop before
the n-th step (`before`) and look at the files that a crash would have left.

**Invariants**: (1) a `FileRef` exists only for a file whose bytes are fsynced; (2) a published file
never changes, except that a file of `open_append` grows, and is cut back only to a length that was
durable before; (3) a name in a directory is durable only after `sync_directory` of that directory;
(4) a name or id that metadata gives passes `json_form.checked_name` before it becomes part of a
path, and files are opened only if they are regular ones and no symbolic links, so no file outside
the folder of its table or backup set is opened, moved or removed. The folder itself may be reached
through a symbolic link.

**Threads**: a `FileSystem` has no state, so any thread may use it; a `Sink` or an `AppendFile`
belongs to one thread at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import shutil
import stat
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from kudulite.errors import CorruptionError
from kudulite.storage.checked_json import check_crc32
from kudulite.storage.json_form import JsonForm, Stored
from kudulite.storage.storage_error import storage_error, storage_errors

_READ_BYTES = 1 << 20
# Linux's, for renameat2.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
# Without O_NONBLOCK, opening a named pipe would wait for its writer.
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


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
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK  # as _READ_FLAGS
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


@dataclass(frozen=True)
class FileRef(JsonForm):
    """The metadata of a file: its name (without folder), length in bytes, and CRC-32."""

    name: Annotated[str, Stored(name="file name")]
    length: int
    crc32: int


class Sink:
    """A new file that is being written; counts and checksums its bytes.

    It is a binary file object, as pyarrow needs one. `finish` makes the bytes durable and returns
    their reference; leaving the `with` block without it removes the file.
    """

    def __init__(self, file_system: FileSystem, path: Path) -> None:
        self._file_system = file_system
        self.path = path
        self._length = 0
        self._crc32 = 0
        self._finished = False
        # An attribute, because pyarrow asks for it where an interrupt would be lost: a property is
        # Python code, in which signal handlers run.
        self.closed = False
        with storage_errors("create", path, is_unchanged=True):
            self._file = path.open("xb", buffering=0)

    def write(self, data: Any) -> int:
        """Append bytes; return their number. Raises StorageError when the disk refuses."""
        view = memoryview(data).cast("B")
        with storage_errors("write", self.path, is_unchanged=True):
            rest = view
            while rest:
                rest = rest[self._file.write(rest) :]
        self._crc32 = zlib.crc32(view, self._crc32)
        self._length += len(view)
        return len(view)

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._length

    def flush(self) -> None:
        """Do nothing: writes are not buffered; `finish` makes them durable."""

    def close(self) -> None:
        """Do nothing: pyarrow closes what it wraps, but only `finish` or `abort` end a sink."""

    def finish(self) -> FileRef:
        """Sync and close the file; return its reference. The caller syncs the directory."""
        self._file_system.before("fsync", self.path)
        with storage_errors("fsync", self.path, is_unchanged=True):
            os.fsync(self._file.fileno())
            self._file.close()
        self._finished = self.closed = True
        return FileRef(self.path.name, self._length, self._crc32)

    def abort(self) -> None:
        """Close and remove the file, if `finish` has not been reached."""
        if self._finished:
            return
        self._file.close()
        self.closed = True
        with contextlib.suppress(OSError):
            self.path.unlink()

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.abort()


class AppendFile(DescriptorOwner):
    """An existing file, opened to grow and to be cut back.

    One process at a time may change it, under a lock that the caller holds.
    """

    def __init__(self, file_system: FileSystem, path: Path) -> None:
        self._file_system = file_system
        self.path = path
        with storage_errors("open", path):
            self._descriptor = open_descriptor(path, os.O_RDWR | os.O_CLOEXEC)

    def size(self) -> int:
        """Return the length of the file in bytes."""
        with storage_errors("look at", self.path):
            return os.fstat(self._descriptor).st_size

    # A small write consists of `read`, `append` and `sync`, so these avoid a context manager.

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes at `offset`, fewer where the file ends."""
        try:
            return _read_range(self._descriptor, offset, length)
        except OSError as error:
            raise storage_error("read", self.path, error) from error

    def append(self, content: bytes, offset: int) -> None:
        """Write `content` at `offset`, the end of the file; durable after `sync`.

        Raises StorageError when the disk refuses; a part of `content` may have been written.
        """
        self._file_system.before("append", self.path)
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
        self._file_system.before("truncate", self.path)
        with storage_errors("truncate", self.path):
            os.ftruncate(self._descriptor, length)

    def sync(self) -> None:
        """Make bytes and length durable."""
        self._file_system.before("fsync", self.path)
        try:
            # Without the file's times, which would cost a write of their own.
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise storage_error("fsync", self.path, error) from error

    def __enter__(self) -> AppendFile:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class FileSystem:
    """The real file system. Stateless, so any thread or process may share one."""

    def before(self, operation: str, path: Path) -> None:
        """Do nothing. Every durable step calls this first; a test double raises here."""

    def open_sink(self, path: Path) -> Sink:
        """Create a new file for writing; its folder must exist."""
        self.before("create", path)
        return Sink(self, path)

    def open_append(self, path: Path) -> AppendFile:
        """Open an existing file to append to it. Raises StorageError."""
        return AppendFile(self, path)

    def write_file(self, path: Path, content: bytes) -> FileRef:
        """Write a whole new file and fsync it."""
        with self.open_sink(path) as sink:
            sink.write(content)
            return sink.finish()

    def publish(self, path: Path, content: bytes) -> bool:
        """Create `path` with all of `content`, durably, in one step; return False if it exists."""
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            self.write_file(temporary, content)
            self.before("link", path)
            with storage_errors("publish", path, is_unchanged=True):
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    # A network file system may have linked it, lost the reply, and tried again.
                    if temporary.stat().st_nlink < 2:
                        return False
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        self.sync_directory(path.parent)
        return True

    def replace_file(self, path: Path, content: bytes) -> None:
        """Replace a file's content in one step, not durably: only for hints."""
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        with storage_errors("replace", path):
            try:
                temporary.write_bytes(content)
                os.replace(temporary, path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise

    def rename(self, source: Path, target: Path) -> None:
        """Move a file or folder to a name that does not exist; durable after sync_directory."""
        self.before("rename", target)
        with storage_errors("rename", source, is_unchanged=True):
            os.rename(source, target)

    def exchange(self, one: Path, other: Path) -> bool:
        """Let two folders change names in one step; durable after sync_directory of both parents.

        False where the system or the file system cannot.
        """
        self.before("exchange", other)
        with storage_errors("exchange", f"{one} and {other}", is_unchanged=True):
            try:
                exchange_names(one, other)
            except OSError as error:
                if error.errno not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
                    raise
                return False
        return True

    def make_directory(self, path: Path, *, parents: bool = False) -> None:
        """Create a folder (it may exist); without `parents` its parent must exist.

        With `parents` the missing folders above it are created as well, and the names of all that
        are created are durable. Otherwise the caller syncs the parent.
        """
        with storage_errors("create folder", path, is_unchanged=True):
            if not parents or path.is_dir():
                path.mkdir(exist_ok=True)
                return
            if not path.parent.is_dir():
                self.make_directory(path.parent, parents=True)
            path.mkdir(exist_ok=True)
            self.sync_directory(path.parent)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a folder durable."""
        self.before("fsync", path)
        with storage_errors("fsync folder", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def free_bytes(self, folder: Path) -> int | None:
        """Return the bytes that a program may still write below a folder; None if not known."""
        try:
            found = os.statvfs(folder)
        except OSError:
            return None
        # Some network file systems do not say.
        return found.f_bavail * found.f_frsize if found.f_blocks else None

    def remove(self, path: Path) -> None:
        """Remove a file, if it exists."""
        self.before("remove", path)
        with storage_errors("remove", path), contextlib.suppress(FileNotFoundError):
            path.unlink()

    def remove_tree(self, path: Path) -> None:
        """Remove a folder and all in it; another process may remove parts of it meanwhile."""
        self.before("remove", path)
        shutil.rmtree(path, ignore_errors=True)

    def read_verified(self, path: Path, ref: FileRef) -> bytes:
        """Return a file's bytes. Raises CorruptionError unless they match `ref`."""
        content = read_file(path)
        check_content(path, content, ref)
        return content


def exchange_names(one: Path, other: Path) -> None:
    """Let two files or folders change names in one step. Raises OSError."""
    # Only Linux has it, and Python's `os` does not.
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    number = errno.ENOSYS
    if renameat2 is not None:
        names = os.fsencode(one), os.fsencode(other)
        if renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
            return
        number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


def exists(path: str | Path) -> bool:
    """Whether there is a file or a folder at `path`. Raises StorageError."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise storage_error("read", path, error) from error
    return True


def entries_of(folder: Path) -> list[Path]:
    """Return the files and folders in `folder`, sorted; none without it. Raises StorageError."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise storage_error("list", folder, error) from error


def read_file(path: Path) -> bytes:
    """Return a file's bytes; StorageError when it is missing or unreadable."""
    return read_ranges(path, [(0, None)])[1][0]


def read_ranges(path: Path, ranges: Sequence[tuple[int, int | None]]) -> tuple[int, list[bytes]]:
    """Open a file once; return (its length, the bytes of each (offset, length)).

    There are fewer bytes where the file ends; length None means up to the end. StorageError when
    the file is missing or unreadable.
    """
    with storage_errors("read", path):
        descriptor = os.open(path, _READ_FLAGS)
        try:
            size = _regular_size(path, os.fstat(descriptor))
            parts = []
            for offset, length in ranges:
                left = max(size - offset, 0)
                length = left if length is None else min(left, length)
                parts.append(_read_range(descriptor, offset, length) if length else b"")
            return size, parts
        finally:
            os.close(descriptor)


def _read_range(descriptor: int, offset: int, length: int) -> bytes:
    content = os.pread(descriptor, length, offset)
    while len(content) < length:  # the kernel returns at most 2 GiB at once
        more = os.pread(descriptor, length - len(content), offset + len(content))
        if not more:
            break
        content += more
    return content


def own_size(path: str | Path) -> int:
    """Return the length of a file in a table's folder. Raises OSError.

    Raises CorruptionError where the file, or the folder that it is in, is a symbolic link.
    """
    size = _regular_size(path, os.lstat(path))
    check_is_own(os.path.dirname(path))
    return size


def check_is_own(folder: str | Path) -> None:
    """Raise CorruptionError for a folder that is a symbolic link; it need not exist."""
    if os.path.islink(folder):
        raise CorruptionError(
            f"{folder}: a symbolic link, which no folder inside of a table is; put the folder in"
            " its place"
        )


def _regular_size(path: str | Path, found: os.stat_result) -> int:
    if not stat.S_ISREG(found.st_mode):
        raise CorruptionError(
            f"{path}: {stat.filemode(found.st_mode)[0]!r} in place of a regular file (l: a symbolic"
            " link, p: a pipe, d: a folder); put the file in its place"
        )
    return found.st_size


def check_content(path: Path, content: Any, ref: FileRef) -> None:
    """Raise CorruptionError unless bytes-like `content`, read from `path`, matches `ref`."""
    _check_length(path, memoryview(content).nbytes, ref)
    check_crc32(f"{path}: CRC", zlib.crc32(content), ref.crc32)


def check_length(path: Path, ref: FileRef) -> None:
    """Raise StorageError or CorruptionError unless the file exists with the length of `ref`."""
    with storage_errors("find", path):
        length = own_size(path)
    _check_length(path, length, ref)


def verify_file(path: Path, ref: FileRef) -> None:
    """Read a whole file and check it against `ref`, in constant memory."""
    found, length = 0, 0
    with storage_errors("read", path), open(os.open(path, _READ_FLAGS), "rb") as file:
        while chunk := file.read(_READ_BYTES):
            found = zlib.crc32(chunk, found)
            length += len(chunk)
    _check_length(path, length, ref)
    check_crc32(f"{path}: CRC", found, ref.crc32)


def _check_length(path: Path, length: int, ref: FileRef) -> None:
    if length != ref.length:
        raise CorruptionError(f"{path}: {length} bytes on disk, expected {ref.length}")
