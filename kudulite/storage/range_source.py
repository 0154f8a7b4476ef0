"""RangeSource: an opened object of which parts are fetched when they are read.

    object    │ column chunks, pages …                    │ tail: places of pages, footer │
              fetched, forgotten after the read             fetched once, kept

A reader names all the parts that it needs next in one call, so that the store can send them side by
side. Parts that are less than GAP_BYTES apart are fetched together: the bytes between them take
less time than another request. Arrow reads a file object that has the parts in memory.

The tail is kept because readers of a Parquet file begin with its footer, and with the places of its
pages, which are in front of the footer. A small object is all tail.

**Invariants**: (1) a part is never longer than it was asked for, and shorter only where the object
ends.

**Threads**: any.
"""

from __future__ import annotations

import bisect
import io
from collections.abc import Callable, Sequence

import pyarrow as pa

from kudulite.storage.storage import Range

# Fetches ranges, each within the file, side by side.
Fetch = Callable[[Sequence[Range]], list[pa.Buffer]]

# Footers of most files are shorter, together with the places of all pages.
TAIL_BYTES = 64 << 10
GAP_BYTES = 256 << 10


class RangeSource:
    """An object that is read by parts, or whole."""

    is_map = False

    def __init__(
        self,
        length: int,
        fetch: Fetch,
        fetch_tail: Callable[[int], pa.Buffer],
        tail_bytes: int = TAIL_BYTES,
    ) -> None:
        """`fetch_tail` fetches the bytes from a place on, and checks that the length is right."""
        self._length = length
        self._fetch = fetch
        self._fetch_tail = fetch_tail
        self._tail_start = max(0, length - tail_bytes)
        self._tail: pa.Buffer | None = None

    def content(self) -> pa.Buffer:
        """Return the whole content, which is fetched."""
        return self.read([(0, self._length)])[0]

    def read(self, ranges: Sequence[Range]) -> list[pa.Buffer]:
        """Return the bytes of each (start, stop); those before the tail are fetched together."""
        bounds = [(min(start, self._length), min(stop, self._length)) for start, stop in ranges]
        found: dict[Range, pa.Buffer] = {}
        for start, stop in bounds:
            if start >= self._tail_start:
                found[start, stop] = self._kept_tail().slice(start - self._tail_start, stop - start)
        missing = sorted({bound for bound in bounds if bound not in found and bound[0] < bound[1]})
        if missing:
            found |= zip(missing, self._fetch(missing), strict=True)
        return [found.get(bound, _NOTHING) for bound in bounds]

    def _kept_tail(self) -> pa.Buffer:
        # Two threads may both fetch it; one of the equal results is dropped.
        tail = self._tail
        if tail is None:
            tail = self._tail = self._fetch_tail(self._tail_start)
        return tail

    def file(self, ranges: Sequence[Range]) -> pa.NativeFile:
        """Return the file for Arrow to read; the ranges are fetched before."""
        if not self._tail_start:
            return pa.BufferReader(self._kept_tail())
        parts = dict(zip(ranges, self.read(ranges), strict=True))
        return pa.PythonFile(_PartsFile(self, self._length, parts), "r")

    def release(self) -> None:
        """Do nothing: nothing is mapped."""


_NOTHING = pa.py_buffer(b"")


class _PartsFile:
    """A binary file of which some parts are in memory; others are fetched when they are read."""

    def __init__(self, source: RangeSource, length: int, parts: dict[Range, pa.Buffer]) -> None:
        self._source = source
        self._length = length
        self._bounds = sorted(parts)
        self._parts = parts
        self._at = 0
        # An attribute, because pyarrow asks for it where an interrupt would be lost.
        self.closed = False

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place of the file."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Return the place of the next read."""
        return self._at

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes, all of them if there is no count."""
        return bytes(self.read_buffer(count))

    def read_buffer(self, count: int = -1) -> pa.Buffer:
        """Return the next bytes without a copy."""
        start = self._at
        stop = self._length if count < 0 else min(start + count, self._length)
        self._at = max(start, stop)
        number = bisect.bisect_right(self._bounds, (start, self._length)) - 1
        if number >= 0:
            first, last = self._bounds[number]
            if stop <= last:
                return self._parts[first, last].slice(start - first, max(0, stop - start))
        return self._source.read([(start, stop)])[0]

    def close(self) -> None:
        """Do nothing: nothing is open."""
        self.closed = True
