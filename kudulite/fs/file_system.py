"""Every durable step of the engine: create, append, truncate, fsync, link, rename, remove.

One `FileSystem` is handed down from the client to all parts, so that a test double can stop the
world before the n-th step (`before`) and look at what a crash would have left.

Invariants: (1) a `FileRef` exists only for a file whose bytes are fsynced; (2) a published file is
never changed, except that a file of `open_append` grows, and is cut back only to a length that was
durable before; (3) a name in a directory is durable only after `sync_directory` of that directory;
(4) a name or id that metadata gives passes `checked_name` before it becomes part of a path, so no
file outside the folder of its table or backup set is opened, moved or removed.

The files that a process keeps open, of which it may need more than the usual 1024.

One JSON object with its checksum: what metadata files are made of.

file := body line, then {"crc32": CRC-32 of the body line} line
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import resource
import shutil
import uuid
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kudulite.errors import CorruptionError, FormatVersionError
from kudulite.fs.storage_error import storage_error, storage_errors

_READ_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_NAME_SHOWN_MAX = 60

TRAILER_BYTES_MAX = 32
_TRAILER = re.compile(rb'\n\{"crc32":(\d+)\}\n\Z')


class DescriptorOwner:
    """What has one file open, or none; gives it back at the latest when it is dropped."""

    _descriptor = -1

    def close(self) -> None:
        """Give the descriptor back; twice does no harm."""
        # Forgotten first: it is given back whatever `close` raises, and may be another file's then.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def open_descriptor(path: str | Path, flags: int) -> int:
    """Open a file; a process that has many open may from now on have as many as it is allowed.

    A commit holds the locks of all tablets that it touches, and a process keeps lock and log of
    each tablet open that has unflushed rows. Half of the limit is left to everything else. Raises
    OSError.
    """
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        _raise_limit()
        return os.open(path, flags)
    # The kernel gives the lowest number that is free.
    if 2 * descriptor > resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
        _raise_limit()
    return descriptor


def _raise_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # not everywhere may a process have its hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def checked_name(value: Any, field: str) -> str:
    """Return `value`, which metadata gives as the name or id `field`, if it is one path component.

    It has 1 to 200 ASCII letters, digits, `.`, `_` and `-`, and no dot at the beginning. Raises
    ValueError, which the decoder of the metadata file turns into a CorruptionError of that file.
    """
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    found = ascii(value)
    if len(found) > _NAME_SHOWN_MAX:
        found = f"{found[:_NAME_SHOWN_MAX]}... ({len(found)} characters)"
    raise ValueError(
        f"{field} {found}, expected 1 to 200 ASCII letters, digits, dots, underscores and hyphens,"
        " no dot at the beginning"
    )


@dataclass(frozen=True)
class FileRef:
    """What metadata says of a file: its name (no folder), length in bytes, and CRC-32."""

    name: str
    length: int
    crc32: int

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form: name, length, crc32."""
        return {"name": self.name, "length": self.length, "crc32": self.crc32}

    @staticmethod
    def from_json(value: dict[str, Any]) -> FileRef:
        """Build a reference from `to_json`'s form. Raises ValueError, see `checked_name`."""
        name = checked_name(value["name"], "file name")
        return FileRef(name, int(value["length"]), int(value["crc32"]))


class Sink:
    """A new file that is being written: counts and checksums what passes through.

    It is a binary file object for whom wants one (pyarrow). `finish` makes the bytes durable and
    returns their reference; leaving the `with` block without it removes the file.
    """

    def __init__(self, file_system: FileSystem, path: Path) -> None:
        self._file_system = file_system
        self.path = path
        self._length = 0
        self._crc32 = 0
        self._finished = False
        with storage_errors("create", path, is_unchanged=True):
            self._file = path.open("xb", buffering=0)

    def write(self, data: Any) -> int:
        """Append bytes; returns how many. Raises StorageError when the disk refuses."""
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
        """Do nothing: writes are not buffered here; `finish` makes them durable."""

    def readable(self) -> bool:
        """Return False: a sink only takes bytes."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return False: bytes are only appended."""
        return False

    @property
    def closed(self) -> bool:
        """Whether the file behind the sink is closed."""
        return self._file.closed

    def close(self) -> None:
        """Do nothing: pyarrow closes what it wraps, but only `finish` or `abort` end a sink."""

    def finish(self) -> FileRef:
        """fsync and close the file; return its reference. The directory is synced by the caller."""
        self._file_system.before("fsync", self.path)
        with storage_errors("fsync", self.path, is_unchanged=True):
            os.fsync(self._file.fileno())
            self._file.close()
        self._finished = True
        return FileRef(self.path.name, self._length, self._crc32)

    def abort(self) -> None:
        """Close and remove the file, if `finish` has not been reached."""
        if self._finished:
            return
        self._file.close()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.abort()


class AppendFile(DescriptorOwner):
    """A file that grows and is cut back, opened for that; it must exist.

    One process at a time may change it, under a lock that the caller holds. The descriptor is given
    back at the latest when the object is dropped.
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

    # Reading, appending and syncing are the small write itself: no context manager there.

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes at `offset`, fewer where the file ends."""
        try:
            return _read_range(self._descriptor, offset, length)
        except OSError as error:
            raise storage_error("read", self.path, error) from error

    def append(self, content: bytes, offset: int) -> None:
        """Write `content` at `offset`, which is the end of the file; durable after `sync`.

        StorageError when the disk refuses: a part of it may have been written.
        """
        self._file_system.before("append", self.path)
        try:
            written = self._write(content, offset)
            while written < len(content):
                written += self._write(memoryview(content)[written:], offset + written)
        except OSError as error:
            raise storage_error("append to", self.path, error, is_unchanged=True) from error

    def _write(self, rest: bytes | memoryview, offset: int) -> int:
        """Write some of `rest` and return how much; a test double fails half way."""
        return os.pwrite(self._descriptor, rest, offset)

    def cut(self, length: int) -> None:
        """Take away what is beyond `length`; durable after `sync`."""
        self._file_system.before("truncate", self.path)
        with storage_errors("truncate", self.path):
            os.ftruncate(self._descriptor, length)

    def sync(self) -> None:
        """Make bytes and length durable."""
        self._file_system.before("fsync", self.path)
        try:
            # Without the times of the file, whose change costs a write of its own.
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
        """Be called ahead of every durable step; a test double raises here."""

    def open_sink(self, path: Path) -> Sink:
        """Create a new file for writing; its folder must exist."""
        self.before("create", path)
        return Sink(self, path)

    def open_append(self, path: Path) -> AppendFile:
        """Open a file that exists, to append to it; StorageError where that cannot be."""
        return AppendFile(self, path)

    def write_file(self, path: Path, content: bytes) -> FileRef:
        """Write a whole new file and fsync it."""
        with self.open_sink(path) as sink:
            sink.write(content)
            return sink.finish()

    def publish(self, path: Path, content: bytes) -> bool:
        """Put-if-absent: make `path` appear whole and durable; False when it exists already."""
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            self.write_file(temporary, content)
            self.before("link", path)
            with storage_errors("publish", path, is_unchanged=True):
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    # A network file system may do the link, lose the answer, and try again.
                    if not os.path.samefile(temporary, path):
                        return False
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        self.sync_directory(path.parent)
        return True

    def replace_file(self, path: Path, content: bytes) -> None:
        """Replace a file's content in one step, not durably: for hints that nobody must trust."""
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

    def make_directory(self, path: Path, *, parents: bool = False) -> None:
        """Create a folder (it may exist); without `parents` its parent must exist."""
        with storage_errors("create folder", path, is_unchanged=True):
            path.mkdir(parents=parents, exist_ok=True)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a folder durable."""
        self.before("fsync", path)
        with storage_errors("fsync folder", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def remove(self, path: Path) -> None:
        """Remove a file; it may be gone already."""
        self.before("remove", path)
        with storage_errors("remove", path), contextlib.suppress(FileNotFoundError):
            path.unlink()

    def remove_tree(self, path: Path) -> None:
        """Remove a folder and all in it; what others remove meanwhile is not missed."""
        self.before("remove", path)
        shutil.rmtree(path, ignore_errors=True)

    def read_verified(self, path: Path, ref: FileRef) -> bytes:
        """Return a file's bytes. Raises CorruptionError unless they are as `ref` says."""
        content = read_file(path)
        check_content(path, content, ref)
        return content


def read_file(path: Path) -> bytes:
    """Return a file's bytes; StorageError when it is missing or unreadable."""
    with storage_errors("read", path):
        return path.read_bytes()


def read_ranges(path: Path, ranges: Sequence[tuple[int, int | None]]) -> tuple[int, list[bytes]]:
    """Return (length of the file, bytes of each (offset, length)), with one opening.

    Fewer bytes where the file ends; length None is all that is left. StorageError when the file is
    missing or unreadable.
    """
    with storage_errors("read", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            parts = []
            for offset, length in ranges:
                left = max(size - offset, 0)
                length = left if length is None else min(left, length)
                parts.append(_read_range(descriptor, offset, length))
            return size, parts
        finally:
            os.close(descriptor)


def _read_range(descriptor: int, offset: int, length: int) -> bytes:
    content = os.pread(descriptor, length, offset)
    while len(content) < length:  # the kernel gives at most 2 GiB at once
        more = os.pread(descriptor, length - len(content), offset + len(content))
        if not more:
            break
        content += more
    return content


def check_content(path: Path, content: Any, ref: FileRef) -> None:
    """Compare bytes-like `content`, read from `path`, with what metadata says of it."""
    _check_length(path, memoryview(content).nbytes, ref)
    check_crc32(f"{path}: CRC", zlib.crc32(content), ref.crc32)


def check_length(path: Path, ref: FileRef) -> None:
    """Raise StorageError or CorruptionError unless a file is there with the length of `ref`."""
    with storage_errors("find", path):
        length = path.stat().st_size
    _check_length(path, length, ref)


def verify_file(path: Path, ref: FileRef) -> None:
    """Read a whole file and check it against `ref`, in constant memory."""
    found, length = 0, 0
    with storage_errors("read", path), path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            found = zlib.crc32(chunk, found)
            length += len(chunk)
    _check_length(path, length, ref)
    check_crc32(f"{path}: CRC", found, ref.crc32)


def _check_length(path: Path, length: int, ref: FileRef) -> None:
    if length != ref.length:
        raise CorruptionError(f"{path}: {length} bytes on disk, expected {ref.length}")


def check_crc32(subject: str, found: int, expected: int) -> None:
    """Raise CorruptionError, which begins with `subject`, unless the checksums are equal."""
    if found != expected:
        raise CorruptionError(f"{subject} {found:#010x}, expected {expected:#010x}")


def check_format_version(subject: str, found: int | str, known: int | str) -> None:
    """Raise FormatVersionError, which begins with `subject`, unless this kudulite reads `found`."""
    if found != known:
        raise FormatVersionError(
            f"{subject} of format version {found}, this kudulite reads {known}; upgrade to read it"
        )


def encode_checked_json(body: dict[str, Any]) -> bytes:
    """Return the file's content."""
    line = json.dumps(body, separators=(",", ":")).encode()
    return line + b'\n{"crc32":%d}\n' % zlib.crc32(line)


def stored_crc32(content: bytes) -> int | None:
    """Return the CRC that a file's content, or its last `TRAILER_BYTES_MAX` bytes, ends with.

    None where it ends otherwise.
    """
    found = _TRAILER.search(content)
    return int(found[1]) if found else None


def decode_checked_json(content: bytes, source: str, what: str) -> dict[str, Any]:
    """Return the object in the content of the file `source`, which should be `what`.

    Raises CorruptionError where it is not one, or is not as it was written.
    """
    line, _, trailer = content.partition(b"\n")
    try:
        stored = json.loads(trailer)["crc32"]
        check_crc32(f"{source}: CRC", zlib.crc32(line), stored)
        body = json.loads(line)
        if not isinstance(body, dict):
            raise TypeError(f"a {type(body).__name__}")
        return body
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{source}: not {what}: {error!r}") from error
