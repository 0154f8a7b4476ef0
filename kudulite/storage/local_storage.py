"""LocalStorage: a Storage of files in directories, on a POSIX file system.

One `LocalStorage` is handed down from the client to all parts, so that a test double can stop
before the n-th durable step (`before`) and look at the files that a crash would have left.

**Invariants**: (1) those of storage.py; (2) a name or id that metadata gives passes
`json_form.checked_name` before it becomes part of a path, and files are opened only if they are
regular ones and no symbolic links, so no file outside the folder of its table or backup set is
opened, moved or removed. The folder itself may be reached through a symbolic link.

**Threads**: a `LocalStorage` has no state, so any thread may use it; a `LocalSink` belongs to one
thread at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import shutil
import stat
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from kudulite.errors import CorruptionError, StorageError
from kudulite.storage.address import DIRECTORIES, StorageAddress
from kudulite.storage.held_file import HeldFile, is_held, remove_hidden, touch
from kudulite.storage.open_file import READ_FLAGS, AppendFile, DurableSteps, OpenFolder, read_range
from kudulite.storage.storage import (
    MAPPED_BYTES_MIN,
    FileRef,
    Listed,
    Range,
    S,
    T,
    check_same_length,
)
from kudulite.storage.storage_error import arrow_errors, storage_error, storage_errors
from kudulite.storage.table_lock import TableLock, create_lock_file

# Linux's, for renameat2.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
# More folders, of several tablets, are synced side by side: a disk joins what waits.
_SYNCED_IN_TURN_MAX, _SYNC_THREADS = 4, 4


class LocalSink:
    """A new file that is being written; counts and checksums its bytes."""

    def __init__(self, storage: DurableSteps, path: Path, *, makes_folder: bool = True) -> None:
        self._storage = storage
        self.path = path
        self._length = 0
        self._crc32 = 0
        self._finished = False
        # An attribute, because pyarrow asks for it where an interrupt would be lost: a property is
        # Python code, in which signal handlers run.
        self.closed = False
        with storage_errors("create", path, is_unchanged=True):
            try:
                self._file = path.open("xb", buffering=0)
            except FileNotFoundError:
                if not makes_folder:
                    raise
                # None above it: the folder of a table that was deleted stays away.
                path.parent.mkdir(exist_ok=True)
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
        """Sync and close the file; return its reference. Its name is durable after `sync`."""
        self._storage.before("fsync", self.path)
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

    def __enter__(self) -> LocalSink:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.abort()


class ReplacingSink(LocalSink):
    """A new file that replaces any other one of its name when it is complete."""

    def __init__(self, storage: LocalStorage, path: Path) -> None:
        self._place, self._local = path, storage
        hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        super().__init__(storage, hidden, makes_folder=False)

    def finish(self) -> FileRef:
        """Sync the file and give it its name, durably; return its reference."""
        found = super().finish()
        self._local.move(self.path, self._place)
        self._local.sync([self._place.parent])
        return replace(found, name=self._place.name)


class LocalSource:
    """A file whose content is in memory, or mapped.

    Memory that is not a map is never given back.
    """

    def __init__(self, content: pa.Buffer, *, is_map: bool) -> None:
        self._content = content
        self.is_map = is_map

    def content(self) -> pa.Buffer:
        """Return the whole content."""
        return self._content

    def read(self, ranges: Sequence[Range]) -> list[pa.Buffer]:
        """Return the bytes of each (start, stop), without a copy."""
        content, end = self._content, self._content.size
        # Arrow does not check the bounds of a slice.
        bounds = [(min(start, end), min(stop, end)) for start, stop in ranges]
        return [content.slice(start, stop - start) for start, stop in bounds]

    def file(self, ranges: Sequence[Range]) -> pa.NativeFile:
        """Return the file for Arrow to read."""
        return pa.BufferReader(self._content)

    def release(self) -> None:
        """Give back the memory of the pages that were read, if the file is mapped.

        Other threads may be reading them. The pages of a file are only unmapped, but those of other
        memory would be lost.
        """
        if self.is_map and _madvise is not None:
            _madvise(self._content.address, self._content.size, mmap.MADV_DONTNEED)


class LocalStorage:
    """The real file system. Stateless, so any thread or process may share one."""

    def before(self, operation: str, path: Path) -> None:
        """Do nothing. Every durable step calls this first; a test double raises here."""

    @property
    def directory(self) -> LocalStorage:
        """Return itself: it is a directory."""
        return self

    @property
    def address(self) -> StorageAddress:
        """Return the address of all directories of this machine."""
        return DIRECTORIES

    # -- putting

    def put(self, path: Path, content: bytes) -> FileRef:
        """Write a whole new file; its content is durable, and its name after `sync`."""
        with self.open_sink(path) as sink:
            sink.write(content)
            return sink.finish()

    def open_sink(self, path: Path) -> LocalSink:
        """Create a new file for writing; its folder is made if it is missing, but none above."""
        self.before("create", path)
        return LocalSink(self, path)

    def open_replacing_sink(self, path: Path) -> ReplacingSink:
        """Open a hidden file, which gets its name at the end; its folder must be there."""
        if not self.exists(path.parent):
            raise StorageError(errno.ENOENT, f"cannot create {path}: its folder does not exist")
        self.before("create", path)
        return ReplacingSink(self, path)

    def put_if_absent(self, path: Path, content: bytes) -> bool:
        """Create `path` with all of `content`, durably, in one step; return False if it exists."""
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        self.before("create", temporary)
        try:
            with LocalSink(self, temporary, makes_folder=False) as sink:
                sink.write(content)
                sink.finish()
            self.before("link", path)
            with storage_errors("publish", path, is_unchanged=True):
                try:
                    os.link(temporary, path)
                except OSError as error:
                    # A network file system may have linked it and lost the reply, and tried again.
                    if temporary.stat().st_nlink < 2:
                        if isinstance(error, FileExistsError):
                            return False
                        raise
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        self.sync([path.parent])
        return True

    def check_refuses(self, path: Path) -> None:
        """Do nothing: a link never replaces a file."""

    def put_hint(self, path: Path, content: bytes) -> None:
        """Replace a file's content in one step, not durably."""
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        with storage_errors("replace", path):
            try:
                temporary.write_bytes(content)
                os.replace(temporary, path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise

    def make_folder(self, path: Path) -> None:
        """Make a folder, which may exist; its parent must. Its name is durable after `sync`."""
        with storage_errors("create folder", path, is_unchanged=True):
            try:
                path.mkdir(exist_ok=True)
            except FileExistsError as error:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error

    def make_root(self, path: Path) -> None:
        """Make a directory of tables and all above it that are missing, durably."""
        self.make_folders(path)

    def make_folders(self, path: Path) -> None:
        """Make a folder and all above it that are missing, durably."""
        if not self.exists(path.parent):
            self.make_folders(path.parent)
        is_new = not self.exists(path)
        self.make_folder(path)
        if is_new:
            self.sync([path.parent])

    def is_root(self, path: Path) -> bool:
        """Whether there is a folder at `path`, also through a link."""
        return self.is_folder(path)

    def new_root(self, path: Path) -> None:
        """Make a folder and all above it that are missing, durably."""
        self.make_root(path)

    def delete_root(self, path: Path) -> None:
        """Remove an empty folder."""
        self.before("remove", path)
        with storage_errors("remove", path):
            path.rmdir()

    def sync(self, folders: Iterable[Path]) -> None:
        """Make the names in these folders durable."""
        ordered = sorted(folders)
        if len(ordered) <= _SYNCED_IN_TURN_MAX:
            for path in ordered:
                self._sync(path)
            return
        with ThreadPoolExecutor(_SYNC_THREADS, "sync") as threads:
            list(threads.map(self._sync, ordered))

    def _sync(self, path: Path) -> None:
        self.before("fsync", path)
        with storage_errors("fsync folder", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    # -- reading

    def read(self, path: Path) -> bytes:
        """Return a file's content."""
        return self.read_ranges(path, [(0, None)])[1][0]

    def read_ranges(
        self, path: Path, ranges: Sequence[tuple[int, int | None]]
    ) -> tuple[int, list[bytes]]:
        """Open a file once; return (its length, the bytes of each (offset, length))."""
        with storage_errors("read", path):
            descriptor = os.open(path, READ_FLAGS)
            try:
                size = _regular_size(path, os.fstat(descriptor))
                parts = []
                for offset, length in ranges:
                    offset = offset if offset >= 0 else max(size + offset, 0)
                    left = max(size - offset, 0)
                    length = left if length is None else min(left, length)
                    parts.append(read_range(descriptor, offset, length) if length else b"")
                return size, parts
            finally:
                os.close(descriptor)

    def open(self, path: Path, ref: FileRef) -> pa.NativeFile:
        """Open a file for Arrow."""
        return pa.BufferReader(self.open_whole(path, ref).content())

    def open_whole(self, path: Path, ref: FileRef) -> LocalSource:
        """Open a file of `ref`, mapped if it is longer than MAPPED_BYTES_MIN."""
        try:
            check_same_length(path, self._own_length(path), ref)
            if ref.length <= MAPPED_BYTES_MIN:
                return LocalSource(pa.py_buffer(path.read_bytes()), is_map=False)
            with arrow_errors(path, "it cannot be mapped"), pa.memory_map(str(path), "r") as file:
                return LocalSource(file.read_buffer(), is_map=True)
        except OSError as error:
            raise storage_error("open", path, error) from error

    def open_ranges(self, path: Path, ref: FileRef) -> LocalSource:
        """Open a file of `ref` as `open_whole` does."""
        return self.open_whole(path, ref)

    def kept_bytes(self, ref: FileRef) -> int:
        """Return the size of a file in memory, or what a map counts as: there are not many."""
        return min(ref.length, MAPPED_BYTES_MIN)

    @property
    def requests_at_once(self) -> int:
        """Return 1: a read of a map keeps its processor busy."""
        return 1

    def side_by_side(self, work: Callable[[S], T], items: Sequence[S]) -> list[T]:
        """Return `work` of each item; one after the other, because nothing waits for a network."""
        return [work(item) for item in items]

    def prefetch(self, loads: Iterable[Callable[[], object]]) -> None:
        """Do nothing: the system's cache and its read-ahead are as fast."""

    def length(self, path: str | Path) -> int:
        """Return a file's length. Raises CorruptionError where it or its folder is a link."""
        with storage_errors("find", path):
            return self._own_length(path)

    def _own_length(self, path: str | Path) -> int:
        size = _regular_size(path, os.lstat(path))
        self.check_folder(os.path.dirname(path))
        return size

    def exists(self, path: str | Path) -> bool:
        """Whether there is a file, a folder or a link at `path`."""
        return self._found(path) is not None

    def identity(self, path: str | Path) -> tuple[int, int] | None:
        """Return the identity of a file, which no later one of its name has; None without one."""
        found = self._found(path)
        return None if found is None else (found.st_ino, found.st_mtime_ns)

    def _found(self, path: str | Path) -> os.stat_result | None:
        try:
            return os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error("read", path, error) from error

    def entries(self, folder: Path) -> list[Path]:
        """Return the files and folders in `folder`, sorted; none without it."""
        try:
            return sorted(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise storage_error("list", folder, error) from error

    def is_folder(self, path: Path) -> bool:
        """Whether there is a folder at `path`, also through a link."""
        return os.path.isdir(path)

    def files_below(self, folder: Path, *, is_fresh: bool = False) -> Iterator[Listed]:
        """Yield the regular files below a folder; others may remove some meanwhile."""
        if is_fresh:
            # A client of NFS keeps a listing for up to a minute, but not of a folder it changes.
            with contextlib.suppress(OSError):
                os.utime(folder)
        for parent, names in self._walk(folder):
            for name in names:
                path = parent / name
                found = self._found(path)
                if found is not None and stat.S_ISREG(found.st_mode):
                    yield Listed(path, found.st_size, time.time() - found.st_mtime)

    def names_below(self, folder: Path) -> dict[Path, list[str]]:
        """Return a folder and all below it, each with the names in it that are no folders."""
        return dict(self._walk(folder))

    def _walk(self, folder: Path) -> Iterator[tuple[Path, list[str]]]:
        """Yield each folder below one, itself first, with the names of its files."""

        def refuse(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise storage_error("list", error.filename, error) from error

        for parent, _, names in os.walk(folder, onerror=refuse):
            yield Path(parent), names

    def check_folder(self, path: str | Path) -> None:
        """Raise CorruptionError for a folder that is a symbolic link; it need not exist."""
        if os.path.islink(path):
            raise CorruptionError(
                f"{path}: a symbolic link, which no folder inside of a table is; put the folder in"
                " its place"
            )

    # -- deleting

    def delete(self, path: Path) -> None:
        """Remove a file, if it exists."""
        self.before("remove", path)
        with storage_errors("remove", path), contextlib.suppress(FileNotFoundError):
            path.unlink()

    def delete_folder(self, path: Path) -> None:
        """Remove a folder, if it is there and empty."""
        with contextlib.suppress(OSError):
            path.rmdir()

    def delete_below(self, folder: Path) -> None:
        """Remove a folder and all in it; another process may remove parts of it meanwhile."""
        self.before("remove", folder)
        shutil.rmtree(folder, ignore_errors=True)

    # -- folders of tables

    def table_names(self, root: Path) -> list[str] | None:
        """Return None."""
        return None

    def place_of(self, folder: Path) -> Path:
        """Return the folder itself."""
        return folder

    def new_place(self, folder: Path) -> Path:
        """Return the folder itself."""
        return folder

    def name_place(self, folder: Path, place: Path) -> bool:
        """Return True: the table is in its folder."""
        return True

    def adopt_abandoned(self, root: Path) -> None:
        """Do nothing: what a killed creation has left is in the table's folder."""

    def move(self, source: Path, target: Path, place: Path | None = None) -> None:
        """Give a file or folder a name that does not exist; durable after `sync` of its folder."""
        self.before("rename", target)
        with storage_errors("rename", source, is_unchanged=True):
            os.rename(source, target)

    def exchange(self, one: Path, other: Path) -> bool:
        """Let two folders change names in one step; durable after `sync` of both parents.

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

    def link_target(self, path: Path) -> Path | None:
        """Return the place that a symbolic link leads to, None where `path` is none."""
        with storage_errors("look at", path):
            return path.resolve() if path.is_symlink() else None

    # -- operations under way

    def hold(self, path: Path, content: bytes) -> HeldFile:
        """Make a file that this process holds, in a folder that is there."""
        return HeldFile(self, path, content)

    @contextlib.contextmanager
    def lease(self, path: Path, timeout_seconds: float, work: str) -> Iterator[bool]:
        """Hold the lock of a file, which is made if it is missing."""
        create_lock_file(path)
        with TableLock(path, timeout_seconds) as lock:
            lock.announce(work)
            yield True

    def is_held(self, path: Path) -> bool:
        """Whether a process of any host that shares the locks holds a file."""
        return is_held(path)

    def mark_used(self, path: Path) -> bool:
        """Note that a file is in use, by its time of change; return False where there is none."""
        return touch(path)

    def remove_hidden(self, folder: Path) -> None:
        """Remove what processes that died have left of files to be held."""
        remove_hidden(folder)

    # -- what only a directory can do

    @property
    def is_directory(self) -> bool:
        """Return True."""
        return True

    @property
    def has_paths(self) -> bool:
        """Whether other programs open its files by their paths."""
        return True

    def open_append(self, path: Path) -> AppendFile:
        """Open an existing file to append to it."""
        return AppendFile(self, path)

    def open_folder(self, path: Path) -> OpenFolder:
        """Open a folder to delete files of it, and of no other one that gets its path."""
        return OpenFolder(self, path)

    def is_writable(self, path: str | Path) -> bool:
        """Whether this process may write to a file that is there."""
        return os.access(path, os.W_OK)

    def free_bytes(self, folder: Path) -> int | None:
        """Return the bytes that a program may still write below a folder; None if not known."""
        try:
            found = os.statvfs(folder)
        except OSError:
            return None
        # Some network file systems do not say.
        return found.f_bavail * found.f_frsize if found.f_blocks else None


def _found_madvise() -> Callable[[int, int, int], int] | None:
    found = getattr(ctypes.CDLL(None), "madvise", None)
    if found is None or not hasattr(mmap, "MADV_DONTNEED"):
        return None
    found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return found  # type: ignore[no-any-return]


_madvise = _found_madvise()


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


def _regular_size(path: str | Path, found: os.stat_result) -> int:
    if not stat.S_ISREG(found.st_mode):
        raise CorruptionError(
            f"{path}: {stat.filemode(found.st_mode)[0]!r} in place of a regular file (l: a symbolic"
            " link, p: a pipe, d: a folder); put the file in its place"
        )
    return found.st_size
