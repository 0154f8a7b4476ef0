"""Storage: the few verbs by which the engine keeps files, and what only a directory can do.

    put, open_sink      a new file, whole or as a stream; its content is durable
    open_replacing_sink an export, which may replace a file
    put_if_absent       a new file in one durable step, of which one of several writers wins
    sync                the names of new files are durable
    read, read_ranges, length, exists, identity, is_folder, entries, files_below, names_below
    open, open_whole, open_ranges, kept_bytes, requests_at_once, side_by_side, prefetch
    delete, delete_folder, delete_below
    hold, is_held, mark_used     a file that shows that an operation is under way
    place_of, new_place, name_place, move, exchange, link_target     the folders of tables
    make_root, is_root, new_root, delete_root     the directories that these are in
    directory           an open file that grows

A path is a name: the layers above join and compare paths, and only a `Storage` looks at what is
there. LocalStorage keeps files in directories, and ObjectStorage objects in a store, which has no
folders and no `Directory`. Both pass the same contract (tests/features/storage/test_contract.py).

**Invariants**: (1) a file is put once under its name and never changes, except that a file of
`open_append` grows, and is cut back only to a length that was durable before; (2) a `FileRef`
exists only for a file whose content is durable; (3) a name is durable only after `sync`, and after
`put_if_absent`.

**Threads**: any, and any process; a `Sink` or an open file belongs to one thread at a time.
"""

from __future__ import annotations

import errno
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar, cast

import pyarrow as pa

from kudulite.errors import CorruptionError, StorageError
from kudulite.storage.address import StorageAddress
from kudulite.storage.checked_json import check_crc32
from kudulite.storage.json_form import JsonForm, Stored
from kudulite.storage.object_path import ObjectPath
from kudulite.storage.open_file import AppendFile

# A longer file is mapped where that is possible: opening it then reads and keeps nothing.
MAPPED_BYTES_MIN = 64 << 10
_READ_BYTES = 4 << 20

S = TypeVar("S")
T = TypeVar("T")
# (Start, stop) of bytes in a file.
Range = tuple[int, int]


@dataclass(frozen=True)
class FileRef(JsonForm):
    """The metadata of a file: its name (without folder), length in bytes, and CRC-32."""

    name: Annotated[str, Stored(name="file name")]
    length: int
    crc32: int


@dataclass(frozen=True)
class Listed:
    """A file that was listed: its length in bytes, and the seconds since it was put."""

    path: Path
    length: int
    age_seconds: float


class Sink(Protocol):
    """A new file that is being written: a binary file object, as pyarrow needs one.

    Leaving the `with` block before `finish` removes the file.
    """

    path: Path
    closed: bool

    def write(self, data: Any) -> int:
        """Append bytes; return their number. Raises StorageError when the disk refuses."""

    def tell(self) -> int:
        """Return the number of bytes written so far."""

    def finish(self) -> FileRef:
        """Make the content durable; return the file's reference.

        The name is durable after `sync`.
        """

    def abort(self) -> None:
        """Close and remove the file, if `finish` has not been reached."""

    def __enter__(self) -> Sink: ...

    def __exit__(self, *_exc: object) -> None: ...


class Held(Protocol):
    """A file that a process holds until it lets go of it, or dies."""

    def let_go(self, content: bytes) -> None:
        """Leave the file to nobody, with another content that is as long."""

    def close(self) -> None:
        """Hold it no longer."""


class Folder(Protocol):
    """A folder that is open; a context manager."""

    def is_at_its_path(self) -> bool:
        """Whether the folder still has the path at which it was opened."""

    def delete(self, name: str) -> None:
        """Remove a file of it, if it is there."""

    def __enter__(self) -> Folder: ...

    def __exit__(self, *_exc: object) -> None: ...


class Source(Protocol):
    """An opened file, which never changes; any number of threads read it."""

    is_map: bool
    """Whether it takes a map of the process, of which there are not many, and no memory."""

    def content(self) -> pa.Buffer:
        """Return the whole content."""

    def read(self, ranges: Sequence[Range]) -> list[pa.Buffer]:
        """Return the bytes of each (start, stop), fewer where the file ends."""

    def file(self, ranges: Sequence[Range]) -> pa.NativeFile:
        """Return the file for Arrow to read; the ranges are all that it is expected to read."""

    def release(self) -> None:
        """Give back the memory of the pages that were read, if the file is mapped."""


class Storage(Protocol):
    """The verbs. All raise StorageError, with ENOENT where something is missing.

    CorruptionError stands for a file that is none of the engine's, such as a symbolic link.
    """

    @property
    def is_directory(self) -> bool:
        """Whether it has the part that only a directory has, and locks."""

    @property
    def has_paths(self) -> bool:
        """Whether other programs open its files by their paths."""

    @property
    def directory(self) -> Directory:
        """The part that only a directory has."""

    @property
    def address(self) -> StorageAddress:
        """The address by which another process finds the storage, with its options."""

    def put(self, path: Path, content: bytes) -> FileRef:
        """Write a whole new file; its content is durable, and its name after `sync`."""

    def open_sink(self, path: Path) -> Sink:
        """Open a new file for writing. Its folder is made if it is missing, but none above that.

        So a late file never brings back the folder of a table that was deleted.
        """

    def open_replacing_sink(self, path: Path) -> Sink:
        """Open a file of a user for writing, in a folder that is there.

        `finish` puts it in the place of any other of its name, in one durable step.
        """

    def put_if_absent(self, path: Path, content: bytes) -> bool:
        """Create `path` with all of `content`, durably, in one step; return False if it exists.

        A folder is not made. True also where the answer to an earlier try of this call was lost.
        Raises StorageError with EINPROGRESS where the file may be there all the same, or come late.
        """

    def check_refuses(self, path: Path) -> None:
        """Check, once in a process, that `put_if_absent` of a file that is there is refused.

        Raises NotSupportedError for a storage that replaces it, which then has its old content.
        """

    def put_hint(self, path: Path, content: bytes) -> None:
        """Replace a file's content in one step, not durably."""

    def make_folder(self, path: Path) -> None:
        """Make a folder, where there are folders; it may exist, its parent must."""

    def make_folders(self, path: Path) -> None:
        """Make a folder and all above it, durably, where there are folders."""

    def make_root(self, path: Path) -> None:
        """Make a directory of tables as `make_folders` does, and know it as such."""

    def is_root(self, path: Path) -> bool:
        """Whether there is a directory of tables, or of anything else."""

    def new_root(self, path: Path) -> None:
        """Make a directory of tables that is there without a table, durably; it may exist."""

    def delete_root(self, path: Path) -> None:
        """Remove a directory of tables. Raises StorageError with ENOTEMPTY if it has content."""

    def sync(self, folders: Iterable[Path]) -> None:
        """Make the names in these folders durable, those of files and of folders."""

    def read(self, path: Path) -> bytes:
        """Return a file's content."""

    def read_ranges(
        self, path: Path, ranges: Sequence[tuple[int, int | None]]
    ) -> tuple[int, list[bytes]]:
        """Return (the file's length, the bytes of each (offset, length)).

        There are fewer bytes where the file ends; length None means up to the end. A negative
        offset counts from the end, and means the beginning if the file is shorter.
        """

    def open(self, path: Path, ref: FileRef) -> pa.NativeFile:
        """Open a file for Arrow; the errors are those of `open_whole`."""

    def open_whole(self, path: Path, ref: FileRef) -> Source:
        """Open a file all of which will be read; a small one, or one that can be mapped.

        Raises CorruptionError when its length is not the one in `ref`, OutOfMemoryError when it
        cannot be mapped. The caller checks `ref.crc32` where it reads the whole file.
        """

    def open_ranges(self, path: Path, ref: FileRef) -> Source:
        """Open a file of which parts will be read, its end among the first.

        The errors are those of `open_whole`, but may come from the first read.
        """

    def kept_bytes(self, ref: FileRef) -> int:
        """Return the memory that a file of `open_whole` takes while it is open."""

    @property
    def requests_at_once(self) -> int:
        """How many requests should be under way together: more than one where they wait."""

    def side_by_side(self, work: Callable[[S], T], items: Sequence[S]) -> list[T]:
        """Return `work` of each item, in their order; in threads where reads wait for a network.

        The first error is raised when all work has ended.
        """

    def prefetch(self, loads: Iterable[Callable[[], object]]) -> None:
        """Run `loads` in threads where reads wait for a network, else none of them.

        Each load keeps its result in a cache, where it is asked for later, one after the other.
        `loads` are not even asked for where none is run.
        """

    def length(self, path: str | Path) -> int:
        """Return a file's length in bytes."""

    def exists(self, path: str | Path) -> bool:
        """Whether there is a file at `path`; in a directory also a folder, or a link, not followed.

        `is_taken` looks for a folder everywhere.
        """

    def identity(self, path: str | Path) -> object:
        """Return the identity of a file, which no later one of its name has; None without one."""

    def is_folder(self, path: Path) -> bool:
        """Whether there is a folder at `path`, also through a link."""

    def entries(self, folder: Path) -> list[Path]:
        """Return the files and folders in `folder`, sorted; none without it."""

    def files_below(self, folder: Path, *, is_fresh: bool = False) -> Iterator[Listed]:
        """Yield the files below a folder; others may remove some meanwhile.

        With `is_fresh` no file in the folder itself is missing that any host had put before the
        call, whatever this one remembers of a network file system.
        """

    def names_below(self, folder: Path) -> dict[Path, list[str]]:
        """Return a folder and all below it, each with the names in it that are no folders."""

    def table_names(self, root: Path) -> list[str] | None:
        """Return the names of the tables in a directory of tables, sorted.

        None where each folder has to be looked at.
        """

    def place_of(self, folder: Path) -> Path:
        """Return where the files of a table's folder are: there, where folders can be moved.

        Elsewhere a folder is a name of a place. That of no table has a place without files.
        """

    def new_place(self, folder: Path) -> Path:
        """Return where the files of a new table are to be, which gets its folder later."""

    def name_place(self, folder: Path, place: Path) -> bool:
        """Give a new table its folder, durably; return False where another table has it."""

    def adopt_abandoned(self, root: Path) -> None:
        """Give the places of new tables whose creation was killed a folder that is trash.

        Where a folder is a name of a place; elsewhere such a table has its folder already.
        """

    def move(self, source: Path, target: Path, place: Path | None = None) -> None:
        """Give the folder of a table, or a local file, a name that does not exist.

        Only if the table's files are at `place`, where folders are names of places. It is durable
        after `sync` of its folder.
        """

    def exchange(self, one: Path, other: Path) -> bool:
        """Let the folders of two tables change names in one step.

        It is durable after `sync` of both parents. False where the file system cannot.
        """

    def link_target(self, path: Path) -> Path | None:
        """Return the place that a symbolic link leads to, None where `path` is none."""

    def hold(self, path: Path, content: bytes) -> Held:
        """Make a file that this process holds, in a folder that is there; see held_file.py."""

    def lease(self, path: Path, timeout_seconds: float, work: str) -> AbstractContextManager[bool]:
        """Keep others from the same work, where that can be done; give whether it is.

        Raises LockTimeoutError, which names the holder.
        """

    def is_held(self, path: Path) -> bool:
        """Whether a process holds a file, as far as is known; False where there is none."""

    def mark_used(self, path: Path) -> bool:
        """Note that a file is in use, by its age; return False where there is none."""

    def remove_hidden(self, folder: Path) -> None:
        """Remove what processes that died have left of files to be held."""

    def open_folder(self, path: Path) -> Folder:
        """Open a folder to delete files of it, and of no other one that gets its path."""

    def free_bytes(self, folder: Path) -> int | None:
        """Return the bytes that a program may still write below a folder; None if not known."""

    def check_folder(self, path: str | Path) -> None:
        """Raise CorruptionError for a folder that is a symbolic link; it need not exist."""

    def delete(self, path: Path) -> None:
        """Remove a file, if it exists."""

    def delete_folder(self, path: Path) -> None:
        """Remove a folder, if it is there and empty."""

    def delete_below(self, folder: Path) -> None:
        """Remove a folder and all in it; another process may remove parts of it meanwhile."""


class Directory(Protocol):
    """The part that only a directory has: files that grow.

    Locks (table_lock.py) are files of a directory as well.
    """

    def open_append(self, path: Path) -> AppendFile:
        """Open an existing file to append to it."""

    def is_writable(self, path: str | Path) -> bool:
        """Whether this process may write to a file that is there."""


def as_path(text: str) -> Path:
    """Return the path of a text that a path has given: of a directory, or of a bucket."""
    # The layers above use nothing of a Path that a pure path does not have.
    return cast(Path, ObjectPath(text)) if "://" in text else Path(text)


def is_taken(storage: Storage, path: Path) -> bool:
    """Return whether there is a file or a folder at `path`, or a link, which is not followed."""
    return storage.exists(path) or storage.is_folder(path)


def is_there(storage: Storage, path: Path) -> bool:
    """Return whether there is a file, or a directory of tables or of other things, at `path`."""
    return storage.exists(path) or storage.is_root(path)


def read_if_there(storage: Storage, path: Path) -> bytes | None:
    """Return a file's content, None without one. Raises StorageError, CorruptionError."""
    try:
        return storage.read(path)
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        return None


def read_verified(storage: Storage, path: Path, ref: FileRef) -> bytes:
    """Return a file's content. Raises StorageError; CorruptionError unless it matches `ref`."""
    content = storage.read(path)
    check_content(path, content, ref)
    return content


def verify_file(storage: Storage, path: Path, ref: FileRef) -> None:
    """Read a whole file and check it against `ref`, in constant memory."""
    length, _ = storage.read_ranges(path, [])
    check_same_length(path, length, ref)
    found = 0
    for offset in range(0, ref.length, _READ_BYTES):
        _, (content,) = storage.read_ranges(path, [(offset, _READ_BYTES)])
        found = zlib.crc32(content, found)
    check_crc32(f"{path}: CRC", found, ref.crc32)


def check_content(path: Path, content: Any, ref: FileRef) -> None:
    """Raise CorruptionError unless bytes-like `content`, read from `path`, matches `ref`."""
    check_same_length(path, memoryview(content).nbytes, ref)
    check_crc32(f"{path}: CRC", zlib.crc32(content), ref.crc32)


def check_length(storage: Storage, path: Path, ref: FileRef) -> None:
    """Raise StorageError or CorruptionError unless the file exists with the length of `ref`."""
    check_same_length(path, storage.length(path), ref)


def check_same_length(path: Path, length: int, ref: FileRef) -> None:
    """Raise CorruptionError unless a file's `length` is that of `ref`."""
    if length != ref.length:
        raise CorruptionError(f"{path}: {length} bytes on disk, expected {ref.length}")
