"""ObjectReader: the requests by which whole objects and parts of them are read.

    a whole object, up to 8 MiB     one request              a longer one    one for each 8 MiB
    a range, and the length         one request
    parts of a large object         one call of get_ranges for each 8 MiB, which joins near parts

Requests that do not need each other are made side by side, in threads that end with the call: a
store answers many at once, and one connection brings 50 to 100 MB in a second.

The length of each answer is compared with that of the request, because the library does not.

**Threads**: any.

**Source**: obstore, which is object_store of Apache Arrow's Rust project.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
import pyarrow as pa
from obstore.store import ObjectStore

from kudulite.errors import StorageError
from kudulite.storage.file_cache import CachedSource, FileCache
from kudulite.storage.object_errors import store_errors
from kudulite.storage.range_source import GAP_BYTES, RangeSource
from kudulite.storage.storage import FileRef, Range, S, Source, T, check_same_length

if TYPE_CHECKING:
    from obstore import GetOptions

_REQUEST_BYTES = 8 << 20
REQUESTS_AT_ONCE = 16


class ObjectReader:
    """Reads objects of `store`, and keeps them in `cache` if there is one."""

    def __init__(
        self, store: ObjectStore, name_of: Callable[[Path], str], cache: FileCache | None = None
    ) -> None:
        """`name_of` gives the name of the object at a path."""
        self._store = store
        self._name_of = name_of
        self._cache = cache

    def _length(self, path: Path) -> int:
        with store_errors("find", path):
            return int(obstore.head(self._store, self._name_of(path))["size"])

    def read(self, path: Path) -> bytes:
        """Return an object's content."""
        return bytes(self._got(path, None)[1])

    def _got(self, path: Path, options: GetOptions | None) -> tuple[int, Any]:
        """Return (an object's length, the bytes of it that one request is for)."""
        with store_errors("read", path):
            found = obstore.get(self._store, self._name_of(path), options=options)
            (start, stop), length, content = found.range, int(found.meta["size"]), found.bytes()
        _check_received(path, content, stop - start)
        return length, content

    def read_ranges(
        self, path: Path, ranges: Sequence[tuple[int, int | None]]
    ) -> tuple[int, list[bytes]]:
        """Return (an object's length, the bytes of each (offset, length)), side by side."""
        found = side_by_side(partial(self._read_range, path), ranges)
        return found[0][0], [content for _, content in found]

    def _read_range(self, path: Path, wanted: tuple[int, int | None]) -> tuple[int, bytes]:
        """Return (an object's length, the bytes of an (offset, length)).

        The answer to a range has the length, too. It is asked for alone only where the range is
        empty or behind the end, or where a store (Azure) knows no range at the end.
        """
        offset, count = wanted
        if count == 0:
            return self._length(path), b""
        try:
            length, content = self._got(path, _options(offset, count))
        except StorageError as error:
            if error.errno != errno.EIO:
                raise
            length = self._length(path)
            if 0 <= offset < length:
                raise
            if offset >= length:
                return length, b""
            return self._read_range(path, (max(length + offset, 0), count))
        return length, bytes(memoryview(content)[:count])

    def open_whole(self, path: Path, ref: FileRef) -> Source:
        """Read a whole object, a large one by several requests; from the cache if it is there."""
        cache = self._cache
        if cache is not None and (kept := cache.get(path, ref, is_verified=True)) is not None:
            return kept
        source = RangeSource(
            ref.length, partial(self._fetched, path), partial(self._end, path, ref), ref.length
        )
        content = source.content()
        if cache is not None and cache.takes(ref) and cache.put(path, ref, [content]):
            return cache.get(path, ref, is_verified=False) or source
        return source

    def open_ranges(self, path: Path, ref: FileRef) -> Source:
        """Return what fetches parts of an object, or all of it if it is in the cache."""
        source = RangeSource(
            ref.length, partial(self._fetched, path), partial(self._end, path, ref)
        )
        cache = self._cache
        if cache is None:
            return source
        if (kept := cache.get(path, ref, is_verified=False)) is not None:
            return kept
        return CachedSource(source, ref.length, partial(self._fill, cache, path, ref))

    def _fill(self, cache: FileCache, path: Path, ref: FileRef) -> Source | None:
        """Keep a whole object in the cache; return it, None if that cannot be or the program ends.

        Another process may have kept it meanwhile.
        """
        with cache.fills:
            is_kept = cache.get(path, ref, is_verified=False) is not None
            if not is_kept and cache.takes(ref):
                is_kept = cache.put(path, ref, self._parts(path, ref))
            return cache.get(path, ref, is_verified=False) if is_kept else None

    def _parts(self, path: Path, ref: FileRef) -> Iterator[Any]:
        """Yield the content of an object, nothing more once the program has come to its end."""
        for start in range(0, ref.length, _REQUEST_BYTES):
            if not threading.main_thread().is_alive():
                return
            count = min(_REQUEST_BYTES, ref.length - start)
            yield self._got(path, _options(start, count))[1]

    def _end(self, path: Path, ref: FileRef, start: int) -> pa.Buffer:
        """Return the bytes of an object from a place on. Raises CorruptionError for its length."""
        count = ref.length - start
        wanted = [_options(start, count if start else None)]
        if count > _REQUEST_BYTES:
            starts = range(start, ref.length, _REQUEST_BYTES)
            wanted = [_options(at, min(_REQUEST_BYTES, ref.length - at)) for at in starts]
        parts = side_by_side(partial(self._got, path), wanted)
        for length, _ in parts:
            check_same_length(path, length, ref)
        content = parts[0][1] if len(parts) == 1 else b"".join([part for _, part in parts])
        return pa.py_buffer(content)

    def _fetched(self, path: Path, ranges: Sequence[Range]) -> list[pa.Buffer]:
        """Return the bytes of ascending ranges; a request brings those that are near each other."""
        lots, nbytes = list[list[Range]](), _REQUEST_BYTES
        for start, stop in ranges:
            if nbytes >= _REQUEST_BYTES:
                lots.append([])
                nbytes = 0
            lots[-1].append((start, stop))
            nbytes += stop - start
        found = side_by_side(partial(self._fetched_lot, path), lots)
        return [part for parts in found for part in parts]

    def _fetched_lot(self, path: Path, ranges: Sequence[Range]) -> list[pa.Buffer]:
        starts, stops = zip(*ranges, strict=True)
        with store_errors("read", path):
            parts = obstore.get_ranges(
                self._store, self._name_of(path), starts=starts, ends=stops, coalesce=GAP_BYTES
            )
        for (start, stop), part in zip(ranges, parts, strict=True):
            _check_received(path, part, stop - start)
        return [pa.py_buffer(part) for part in parts]


def side_by_side(work: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """Return `work` of each item, in their order, in threads that end with the call."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(len(items), REQUESTS_AT_ONCE), "kudulite-read") as threads:
        return list(threads.map(work, items))


def _check_received(path: Path, content: Any, expected: int) -> None:
    """Raise StorageError unless a request has brought as many bytes as it should have."""
    if len(content) != expected:
        raise StorageError(
            errno.EIO,
            f"cannot read {path}: the store sent {len(content)} bytes where there are {expected};"
            " read again",
        )


def _options(offset: int, count: int | None) -> GetOptions | None:
    """Return the options of a request for some bytes, at least one; None for all of them."""
    if offset < 0:
        return {"range": {"suffix": -offset}}
    if count is not None:
        return {"range": (offset, offset + count)}
    return {"range": {"offset": offset}} if offset else None
