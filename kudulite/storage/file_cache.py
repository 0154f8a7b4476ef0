"""FileCache: whole objects of a store, kept as files of a local folder and mapped.

    <cache_dir>/<hash of the path>-<length>-<crc32>      one object
    <cache_dir>/.<random>                                one that is being written

An object never changes and its name is never used again, so a file needs no look at the store. Many
processes may share a folder: a file is written under a name of its own, and gets its name when it
is whole and durable. The files that were used the longest ago are removed when all together have
more bytes than `capacity_bytes`; readers that have one mapped keep it.

Nothing depends on the folder. Its files may be removed at any time, and where the disk is full or
refuses, objects are read from the store as if there were no cache.

**Damage**: the length of a file is compared each time. The CRC is compared when it is written, when
a file is opened that is read as a whole, and when a process first opens one up to 64 MiB. Parts of
larger files have checksums of their own.

**Threads**: any, and any process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from kudulite.errors import KuduliteError
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.range_source import RangeSource
from kudulite.storage.storage import FileRef, Range, Source

# A larger object would push out too much; when some must go, an eighth of the bytes does.
_FILE_FRACTION, _REMOVED_FRACTION = 4, 8
# Other processes add files, too: the folder is listed again after so much of the capacity.
_LISTED_FRACTION = 16
_ABANDONED_SECONDS = 3600.0
# After the disk has refused a file, no other one is written for so long.
_REFUSED_SECONDS = 60.0
_CHECKED_BYTES_MAX = 64 << 20
_CHECKED_FILES_MAX = 1 << 16  # with more, all are compared anew
# Files that are written at once in the background.
_FILLS_MAX = 2


class FileCache:
    """The objects in one folder, which is made at the first use."""

    def __init__(self, folder: Path, capacity_bytes: int) -> None:
        self.folder = folder
        self.capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._size_bytes: int | None = None  # as far as this process knows
        self._unlisted_bytes = 0
        self._refused_until = 0.0
        self._checked: set[str] = set()  # names of files whose CRC this process has compared
        self.fills = threading.BoundedSemaphore(_FILLS_MAX)

    def __reduce__(self) -> tuple[Any, ...]:
        return FileCache, (self.folder, self.capacity_bytes)

    def _file(self, path: Path, ref: FileRef) -> Path:
        digest = hashlib.sha256(str(path).encode()).hexdigest()[:32]
        return self.folder / f"{digest}-{ref.length}-{ref.crc32:08x}"

    def takes(self, ref: FileRef) -> bool:
        """Whether an object may be kept: it is not too large, and the disk has not refused."""
        is_small = ref.length * _FILE_FRACTION <= self.capacity_bytes
        return is_small and time.monotonic() >= self._refused_until

    def get(self, path: Path, ref: FileRef, *, is_verified: bool) -> Source | None:
        """Return the object at `path`, None if it is not here.

        With `is_verified` its CRC is compared. A file that is not as it was written is removed.
        """
        file = self._file(path, ref)
        is_new = ref.length <= _CHECKED_BYTES_MAX and file.name not in self._checked
        try:
            source = LocalStorage().open_whole(file, ref)
            if (is_verified or is_new) and zlib.crc32(source.content()) != ref.crc32:
                _remove(file)
                return None
            if is_new:
                self._note_checked(file)
            with contextlib.suppress(OSError):
                os.utime(file)  # that it is used
        except KuduliteError as error:
            if not isinstance(error, OSError):
                _remove(file)
            return None
        return source

    def put(self, path: Path, ref: FileRef, parts: Iterable[Any]) -> bool:
        """Keep an object of these bytes; return False if that cannot be, or they are not of `ref`.

        Errors of `parts` are raised.
        """
        temporary = self.folder / f".{uuid.uuid4().hex}"
        length = crc32 = 0
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError:
            return self._refused(temporary)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                for part in parts:
                    view = memoryview(part)
                    length, crc32 = length + len(view), zlib.crc32(view, crc32)
                    try:
                        while view:
                            view = view[file.write(view) :]
                    except OSError:
                        return self._refused(temporary)
                if (length, crc32) != (ref.length, ref.crc32):
                    return False
                try:
                    os.fsync(file.fileno())
                    os.rename(temporary, self._file(path, ref))
                except OSError:
                    return self._refused(temporary)
        finally:
            _remove(temporary)
        self._note_checked(self._file(path, ref))
        self._added(length)
        return True

    def _note_checked(self, file: Path) -> None:
        if len(self._checked) >= _CHECKED_FILES_MAX:
            self._checked.clear()
        self._checked.add(file.name)

    def _refused(self, temporary: Path) -> bool:
        self._refused_until = time.monotonic() + _REFUSED_SECONDS
        _remove(temporary)
        return False

    def _added(self, length: int) -> None:
        """Count a new file; remove others if all have too many bytes."""
        with self._lock:
            self._unlisted_bytes += length
            if self._size_bytes is not None:
                self._size_bytes += length
                is_listed = self._unlisted_bytes * _LISTED_FRACTION < self.capacity_bytes
                if is_listed and self._size_bytes <= self.capacity_bytes:
                    return
            self._unlisted_bytes = 0
            self._size_bytes = self._shrink()

    def _shrink(self) -> int:
        """Remove the files that were used the longest ago, if there are too many bytes."""
        found: list[tuple[float, int, Path]] = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # another process has removed it
                    about = entry.stat(follow_symlinks=False)
                    is_temporary = entry.name.startswith(".")
                    if not is_temporary:
                        found.append((about.st_mtime, about.st_size, Path(entry.path)))
                    elif time.time() - about.st_mtime > _ABANDONED_SECONDS:
                        _remove(Path(entry.path))
        size = sum(nbytes for _, nbytes, _ in found)
        if size > self.capacity_bytes:
            left = self.capacity_bytes - self.capacity_bytes // _REMOVED_FRACTION
            for _, nbytes, file in sorted(found):
                if size <= left:
                    break
                _remove(file)
                size -= nbytes
        return size


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink()


class CachedSource:
    """A large object that is fetched by ranges at first, and kept as a whole when that pays.

    That is when half of its bytes have been asked for: it is fetched in the background then, so at
    most as many bytes again are fetched in vain.
    """

    is_map = False

    def __init__(self, ranges: RangeSource, length: int, fill: Callable[[], Source | None]) -> None:
        """`fill` keeps the whole object, and returns it if it could."""
        self._now: Source = ranges
        self._length = length
        self._fill = fill
        self._lock = threading.Lock()
        self._asked_bytes = 0
        self._is_begun = False
        self.thread: threading.Thread | None = None

    def content(self) -> pa.Buffer:
        """Return the whole content."""
        return self.read([(0, self._length)])[0]

    def read(self, ranges: Sequence[Range]) -> list[pa.Buffer]:
        """Return the bytes of each (start, stop)."""
        self._ask(ranges)
        return self._now.read(ranges)

    def file(self, ranges: Sequence[Range]) -> pa.NativeFile:
        """Return the file for Arrow to read."""
        self._ask(ranges)
        return self._now.file(ranges)

    def release(self) -> None:
        """Give back the memory of the pages that were read, if the file is mapped."""
        self._now.release()

    def _ask(self, ranges: Sequence[Range]) -> None:
        with self._lock:
            self._asked_bytes += sum(stop - start for start, stop in ranges)
            if self._is_begun or 2 * self._asked_bytes < self._length:
                return
            self._is_begun = True
        self.thread = threading.Thread(target=self._keep, name="kudulite-cache")
        self.thread.start()

    def _keep(self) -> None:
        with contextlib.suppress(KuduliteError):  # a reader will meet the error, too
            whole = self._fill()
            if whole is not None:
                self._now = whole
