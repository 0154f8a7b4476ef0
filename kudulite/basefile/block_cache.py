"""Least-recently-used cache of parsed file parts, bounded by bytes.

Holds opened files, decoded column chunks of point reads, and the changed rows beside the files of
native plans, so that a warm read touches no file.
Values are immutable and shared: no caller may change one. In a directory, files are opened so:

    up to 64 KiB    is read: its content is in memory and counts in full
    larger          is mapped, without a descriptor that stays open

A process may have 65,530 maps (vm.max_map_count) and often only 1,024 descriptors; tables of many
small rowsets would use up both. An owner that keeps a file open counts `Storage.kept_bytes` in the
block cache, so the cache's capacity bounds the number of maps: 384 MiB allow 6,144. Objects of a
store are in memory and count in full, but for base data, of which the end is kept.

The pages of a map that were touched count as memory of the process. `Source.release` gives them
back after a read: they stay in the system's page cache, and a later read maps them again.

`compacted` gives decoded columns a form that takes less memory; `plain` undoes it. Of rows with
ten columns like TPC-H's lineitem it takes 55 instead of 95 bytes.

`VerifiedParts` remembers which parts of files this process has verified. A file never changes, so a
part is verified when it is read first, and not again when the cache has lost what was read.

A map outlives the file's name, so garbage collection may remove a file while a reader has it
mapped. Files are never shortened in place, so touching the map cannot fault.

**Invariants**: (1) the sizes of the kept values never sum to more than the capacity; (2) a value
larger than a quarter of the capacity is returned but not kept, so that one scan of a wide column
cannot push out everything else.

**Threads**: any. One lock protects the map and the counters; it is a leaf of the lock order and is
never held while a value is loaded. Threads that miss the same key at once load it once each, and
the first result is kept: waiting for another thread's file I/O would cost more than it saves. A
forked child begins with empty caches, because another thread of the parent may have held the lock.

**Source**: Kudu's block cache (util/cache.h), without its shards and its FIFO policy.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from os import register_at_fork, sysconf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.basefile.page_range import PAGE_ROWS
from kudulite.storage.storage import FileRef, Storage, check_content

VALUE_CAPACITY_FRACTION = 4  # a value may take at most this part (1/4) of the capacity
# Says whether so many bytes may stay in the cache.
Keeps = Callable[[int], bool]

# The next work takes returned memory again, page by page. For less work that would be a large part.
RETURN_BYTES_MIN = 128 << 20

# A slice of an array keeps all of the array's memory; one that is so much larger is not kept.
_SLICE_BYTES_FACTOR = 1.25
# As many codes as a signed byte has. The types of which values are kept as codes, with the type
# that shows their bits.
_CODES_MAX = 128
_CODED_TYPES = {
    pa.float32(): pa.int32(),
    pa.float64(): pa.int64(),
    pa.string(): pa.string(),
    pa.binary(): pa.binary(),
}

# If the decoded pages of point reads exceed the cache, random lookups decode a page almost every
# time. Key indexes, bloom filters and merged deltas need less.
BLOCK_CACHE_MEMORY_FRACTION = 16
BLOCK_CACHE_BYTES_MAX = 384 << 20


# A container's limit, which its processes see here; "max" or a huge number where there is none.
_MEMORY_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def block_cache_bytes() -> int:
    """Return a process's capacity: a sixteenth of the memory it may use, at most 384 MiB."""
    return min(_memory_bytes() // BLOCK_CACHE_MEMORY_FRACTION, BLOCK_CACHE_BYTES_MAX)


def _memory_bytes() -> int:
    """Return the memory of the machine, or that of the container if it has less."""
    memory = sysconf("SC_PAGE_SIZE") * sysconf("SC_PHYS_PAGES")
    for place in _MEMORY_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            memory = min(memory, int(place.read_text()))
    return memory


WHOLE = 1  # the part that is all of a file
# A file takes 300 bytes. With more files, all are verified anew.
_VERIFIED_FILES_MAX = 1 << 16


class VerifiedParts:
    """Parts of files that were verified; a set of parts is the bits of an integer.

    The reader of a file numbers its parts. A file is known by its path, which has a name that no
    other file ever gets, and by the length and the CRC of its FileRef. There is no lock: of two
    threads that add parts of one file at once, those of one may be lost, and are verified again.
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[str, int, int], int] = {}

    def has(self, path: str, ref: FileRef, parts: int = WHOLE) -> bool:
        """Return whether all of these parts of the file of `ref` at `path` were verified."""
        return self._parts.get((path, ref.length, ref.crc32), 0) & parts == parts

    def add(self, path: str, ref: FileRef, parts: int = WHOLE) -> None:
        """Note that these parts were verified."""
        if len(self._parts) >= _VERIFIED_FILES_MAX:
            self._parts.clear()
        key = path, ref.length, ref.crc32
        self._parts[key] = self._parts.get(key, 0) | parts

    def check_whole(self, path: str, ref: FileRef, content: pa.Buffer) -> bool:
        """Compare a file with its CRC, unless that was done; return whether it was done now.

        Raises CorruptionError.
        """
        if self.has(path, ref):
            return False
        check_content(Path(path), content, ref)
        self.add(path, ref)
        return True


class PageParts(NamedTuple):
    """The numbers of the parts of a file of base data with so many columns and rows.

    A column chunk is a part: its pages and its values. The pages of PAGE_ROWS rows of it are
    another one, of which only the checksums are known to be right, because a short read decodes no
    more values than it needs.
    """

    column_count: int
    group_rows: int  # of each row group but the last
    row_count: int

    def of_chunks(self, row_groups: Iterable[int], columns: Sequence[int]) -> int:
        """Return the parts that are column chunks."""
        return _shifted(1, [self._first(group, c) for group in row_groups for c in columns])

    def of_pages(
        self, row_group: int, columns: Iterable[int], rows: Iterable[tuple[int, int]]
    ) -> tuple[int, int]:
        """Return the parts that pages with these rows overlap, and those that the pages fill."""
        end = min(self.group_rows, self.row_count - row_group * self.group_rows)
        overlapped = filled = 0
        for start, stop in rows:
            low, up = start // PAGE_ROWS, -(-start // PAGE_ROWS)
            high, down = -(-stop // PAGE_ROWS), stop // PAGE_ROWS
            overlapped |= (1 << high) - (1 << low)
            filled |= (1 << max(up, high if stop == end else down)) - (1 << up)
        firsts = [self._first(row_group, column) + 1 for column in columns]
        return _shifted(overlapped, firsts), _shifted(filled, firsts)

    def _first(self, row_group: int, column: int) -> int:
        chunk = row_group * self.column_count + column
        return chunk * (1 + -(-self.group_rows // PAGE_ROWS))


def _shifted(parts: int, places: Iterable[int]) -> int:
    found = 0
    for place in places:
        found |= parts << place
    return found


@dataclass(frozen=True)
class CacheStatistics:
    """The size of a cache, and its counters since it was made; sizes in bytes."""

    entry_count: int
    size_bytes: int
    capacity_bytes: int
    hit_count: int
    miss_count: int
    eviction_count: int


def always(nbytes: int) -> bool:
    """Let everything stay in the cache."""
    return True


@dataclass(slots=True)
class _Entry:
    value: Any
    nbytes: int
    turn: int  # the newest operation when it was last used


class BlockCache:
    """Map of hashable keys to immutable values; the least recently used leave first."""

    def __init__(self, storage: Storage, capacity_bytes: int) -> None:
        """The owners of opened files read them from `storage`."""
        if capacity_bytes < 0:
            raise ValueError(f"block cache: capacity {capacity_bytes} is negative")
        self.storage = storage
        self.capacity_bytes = capacity_bytes
        self.verified = VerifiedParts()  # not forgotten with the values
        self._begin()
        _caches.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._keys_of: dict[object, set[Hashable]] = {}  # by what `_path_of` says
        self._size_bytes = 0
        self._turn = 0
        self._hit_count = 0
        self._miss_count = 0
        self._eviction_count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Any | None:
        """Return the value of `key`, which becomes the most recently used, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._miss_count += 1
                return None
            self._entries.move_to_end(key)
            self._hit_count += 1
            entry.turn = self._turn
            return entry.value

    def begin_turn(self) -> Keeps:
        """Begin an operation that uses many values; return what says whether one may stay.

        It may if nothing is evicted for it that was used since the operation began. If more stayed
        than fits, each value would evict another, and the same operation would find none again.
        """
        with self._lock:
            self._turn += 1
            turn = self._turn

        def has_room(nbytes: int) -> bool:
            with self._lock:
                room = self.capacity_bytes - self._size_bytes
                for entry in self._entries.values():
                    if room >= nbytes or entry.turn >= turn:
                        break
                    room += entry.nbytes
                return room >= nbytes

        return has_room

    def put(self, key: Hashable, value: Any, nbytes: int) -> None:
        """Keep `value` of `nbytes` bytes under `key`, in place of an earlier value."""
        if value is None:
            raise ValueError(f"block cache: the value of {key!r} is None, which means a miss")
        if nbytes < 0:
            raise ValueError(f"block cache: the value of {key!r} has {nbytes} bytes")
        with self._lock:
            self._remove(key)
            if nbytes * VALUE_CAPACITY_FRACTION > self.capacity_bytes:
                return
            while self._size_bytes + nbytes > self.capacity_bytes:
                self._remove(next(iter(self._entries)))
                self._eviction_count += 1
            self._entries[key] = _Entry(value, nbytes, self._turn)
            self._keys_of.setdefault(_path_of(key), set()).add(key)
            self._size_bytes += nbytes

    def get_or_load(self, key: Hashable, load: Callable[[], tuple[Any, int]]) -> Any:
        """Return the value of `key`; on a miss keep that of `load()`, a pair (value, bytes).

        An error of `load` is raised to the caller, and nothing is kept.
        """
        value = self.get(key)
        if value is not None:
            return value
        value, nbytes = load()
        with self._lock:
            entry = self._entries.get(key)
        if entry is not None:
            return entry.value
        self.put(key, value, nbytes)
        return value

    def remove(self, key: Hashable) -> None:
        """Forget `key`, if the cache has it."""
        with self._lock:
            self._remove(key)

    def take(self, key: Hashable) -> Any | None:
        """Forget `key` and return its value, or None; this is neither a hit nor a miss."""
        with self._lock:
            entry = self._entries.get(key)
            self._remove(key)
            return None if entry is None else entry.value

    def remove_below(self, folder: str) -> None:
        """Forget what belongs to paths beginning with `folder`."""
        with self._lock:
            paths = [p for p in self._keys_of if isinstance(p, str) and p.startswith(folder)]
        self.remove_files(paths)

    def remove_files(self, paths: Iterable[str]) -> None:
        """Forget what belongs to some files: their paths, and tuples that begin with one."""
        for path in paths:
            with self._lock:
                for key in list(self._keys_of.get(path, ())):
                    self._remove(key)

    def clear(self) -> None:
        """Forget everything; the counters stay."""
        with self._lock:
            self._entries.clear()
            self._keys_of.clear()
            self._size_bytes = 0

    @property
    def statistics(self) -> CacheStatistics:
        """The counters, all read under one lock."""
        with self._lock:
            return CacheStatistics(
                entry_count=len(self._entries),
                size_bytes=self._size_bytes,
                capacity_bytes=self.capacity_bytes,
                hit_count=self._hit_count,
                miss_count=self._miss_count,
                eviction_count=self._eviction_count,
            )

    def _remove(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size_bytes -= entry.nbytes
            keys = self._keys_of[_path_of(key)]
            keys.discard(key)
            if not keys:
                del self._keys_of[_path_of(key)]


def _path_of(key: Hashable) -> object:
    """Return the path that a key is or begins with, by which `remove_files` finds it."""
    return key[0] if isinstance(key, tuple) else key


_caches: weakref.WeakSet[BlockCache] = weakref.WeakSet()


def _begin_all() -> None:
    for cache in list(_caches):
        cache._begin()


register_at_fork(after_in_child=_begin_all)


def return_memory(worked_bytes: int) -> None:
    """Return free memory to the system after work on so many bytes, if they are many.

    Arrow's pool and the C library keep most of what is freed, in parts that each thread had, and a
    next operation finds only some of it.
    """
    if worked_bytes >= RETURN_BYTES_MIN:
        pa.default_memory_pool().release_unused()
        if _malloc_trim is not None:
            _malloc_trim(0)


# Of glibc only.
_malloc_trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)


def compacted(array: pa.Array) -> pa.Array:
    """Return an array as the cache keeps it; `plain` gives the values back.

    A slice that is a small part of its array, whose memory it keeps, is copied. In a row group,
    integers have the narrowest type that holds them, and few distinct texts or floating-point
    numbers become codes of one byte.
    """
    if array.get_total_buffer_size() > _SLICE_BYTES_FACTOR * array.nbytes:
        array = pa.concat_arrays([array])
    if len(array) <= PAGE_ROWS:
        return array
    if array.type in (pa.int32(), pa.int64()):
        return array.cast(_narrowest(array))
    bits = _CODED_TYPES.get(array.type)
    if bits is None:
        return array
    values = array.view(bits)  # whether numbers are equal is not asked: -0.0 is not 0.0
    sample = np.linspace(0, len(array) - 1, _CODES_MAX).astype(np.int64)
    if len(values.take(pa.array(sample)).unique()) > _CODES_MAX // 2:
        return array
    coded = values.dictionary_encode()
    if len(coded.dictionary) > _CODES_MAX:
        return array
    return pa.DictionaryArray.from_arrays(
        coded.indices.cast(pa.int8()), coded.dictionary.view(array.type)
    )


def _narrowest(array: pa.Array) -> pa.DataType:
    """Return the narrowest integer type that has the values of an array of integers."""
    bounds = pc.min_max(array)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is None:  # all null
        return array.type
    for narrow, bits in ((pa.int8(), 7), (pa.int16(), 15), (pa.int32(), 31)):
        if -1 << bits <= low and high < 1 << bits:
            return narrow
    return array.type


def plain(arrays: Iterable[pa.Array], types: Iterable[pa.DataType]) -> list[pa.Array]:
    """Return arrays of the cache as they were decoded."""
    return [
        array
        if array.type == arrow_type
        else array.dictionary_decode()
        if pa.types.is_dictionary(array.type)
        else array.cast(arrow_type)
        for array, arrow_type in zip(arrays, types, strict=True)
    ]


def taken(arrays: Sequence[pa.Array], positions: np.ndarray) -> list[pa.Array]:
    """Return arrays at int64[n] positions; a run of positions is a slice, without a copy."""
    first, count = int(positions[0]), len(positions)
    if positions[-1] - first == count - 1 and (np.diff(positions) == 1).all():
        return [array.slice(first, count) for array in arrays]
    rows = pa.RecordBatch.from_arrays(arrays, list(map(str, range(len(arrays)))))
    return rows.take(pa.array(positions)).columns
