"""Encoded keys of one DiskRowSet, ascending; the position of a key is its rowid.

    key → batch, by the first keys in memory → row in the batch, which is loaded at its first use

Only the batches that probes fall into are loaded, and they stay in memory. Once all of them are
there, probes are searched for in all keys at once. Keys of one width have their places in one
array, and integers that span less than 2^32 take four bytes: what is added to the first key. The
array is made with the index and not copied later, because memory that is new to the process takes
longer than decoding the keys. The owner of many indexes bounds its memory by dropping indexes
(`nbytes` is the size of one).

The file is an Arrow IPC file of the encoded keys with a sparse index in its schema:

    file      := Arrow IPC file, lz4, one column "key"
                   width w      → fixed_size_binary(w)
                   width "none" → binary, or large_binary over 2 GiB
    batch i   := keys with the rowids i * BATCH_ROWS .. (every batch but the last has BATCH_ROWS)
    metadata  := kudulite.key_index = JSON {format_version, width, key_count,
                   first_keys: [hex of the first key of each batch], last_key: hex or null}

Worked example, the int32 keys 1 and 2 (encoded 80000001, 80000002):

    {"format_version": 1, "width": 4, "key_count": 2, "first_keys": ["80000001"],
     "last_key": "80000002"}

An index of no keys has no batch, no first keys, and null as its last key. Kudu keeps a tree of
4 KB blocks in place of the first keys; at 64 Ki keys per batch a rowset has too few batches for
that. The file's CRC is verified once by a process, at the first use.

**Invariants**: (1) keys ascend strictly; (2) loaded keys never change, they are only replaced by
equal keys.

**Threads**: any. There is no lock: two threads that miss the same batch both load it, to the same
place or one result is dropped. Loading reads from a memory map through a reader of its own.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from kudulite.basefile.block_cache import VerifiedParts
from kudulite.errors import CorruptionError
from kudulite.model.key_array import KeyArray, Side, fitted_bound, searched_in_order
from kudulite.storage.checked_json import check_format_version
from kudulite.storage.storage import FileRef, Sink, Source, Storage
from kudulite.storage.storage_error import arrow_errors

FORMAT_VERSION = 1  # on disk: a change of meaning raises it
METADATA_KEY = b"kudulite.key_index"
BATCH_ROWS = 65536  # on disk: rowid // BATCH_ROWS is the batch
KEY_COUNT_MAX = 1 << 32  # a rowid is uint32
_VARIABLE_BYTES = 12  # a key of variable length, on average
_NARROW_MAX = (1 << 32) - 1


def write_key_index(sink: Sink, keys: KeyArray) -> None:
    """Write the index of strictly ascending `keys`; the sink is not finished."""
    assert keys.is_sorted(strict=True), "keys of a DiskRowSet ascend strictly"
    header = KeyIndexHeader(
        width=keys.width,
        key_count=len(keys),
        first_keys=tuple(keys[row] for row in range(0, len(keys), BATCH_ROWS)),
        last_key=keys[len(keys) - 1] if len(keys) else None,
    )
    array = keys.to_arrow()
    schema = pa.schema([pa.field("key", array.type, nullable=False)])
    schema = schema.with_metadata({METADATA_KEY: header.encode()})
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.ipc.new_file(pa.PythonFile(sink, "w"), schema, options=options) as writer:
        for start in range(0, len(keys), BATCH_ROWS):
            writer.write_batch(pa.record_batch([array.slice(start, BATCH_ROWS)], schema=schema))


@dataclass(frozen=True)
class _OpenedIndex:
    """The checked parts of an index file, made at its first use; immutable but for `loaded`."""

    source: Source  # its CRC is verified
    header: KeyIndexHeader
    first_keys: KeyArray
    loaded: LoadedKeys


class KeyIndex:
    """One key index file, opened at its first use."""

    def __init__(
        self,
        storage: Storage,
        path: Path,
        ref: FileRef,
        row_count: int | None = None,
        verified: VerifiedParts | None = None,
    ) -> None:
        """`row_count` is that of the rowset, if it is known: the index must have as many keys.

        A file of `verified` is not verified again.
        """
        self._storage = storage
        self.path, self._path_text = path, str(path)
        self.ref = ref
        self._row_count_expected = row_count
        self._verified = VerifiedParts() if verified is None else verified
        self._opened_index: _OpenedIndex | None = None

    @property
    def row_count(self) -> int:
        """The number of keys in the index."""
        return self._opened.header.key_count

    @property
    def width(self) -> int | None:
        """Bytes of each key, or None when they differ."""
        return self._opened.header.width

    @property
    def is_whole(self) -> bool:
        """Whether all keys are in memory."""
        return self._opened.loaded.is_whole

    @property
    def nbytes(self) -> int:
        """Bytes that all keys take in memory."""
        return self._opened.loaded.nbytes

    def find(self, probes: KeyArray) -> np.ndarray:
        """Return int64[m], the rowid of each probe, or -1. Sorted probes are the fast case."""
        opened = self._opened
        if len(probes) == 0 or opened.header.key_count == 0:
            return np.full(len(probes), -1, np.int64)
        if not probes.is_sorted():
            return searched_in_order(probes, self.find)
        if opened.loaded.is_whole:
            return opened.loaded.find(probes, 0, opened.header.key_count)
        batch_of_probe = opened.first_keys.search_sorted(probes, side="right") - 1
        batches, starts = np.unique(batch_of_probe, return_index=True)
        rowids = np.full(len(probes), -1, np.int64)
        stops = [*starts[1:].tolist(), len(probes)]
        for batch, start, stop in zip(batches.tolist(), starts.tolist(), stops, strict=True):
            if batch < 0:  # below the first key
                continue
            self._load(opened, batch)
            found = opened.loaded.find(probes.slice(start, stop), *opened.header.rowids(batch))
            rowids[start:stop] = found
        return rowids

    def locate(self, key: bytes, side: Side = "left") -> int:
        """Return how many keys are < `key` (left) or ≤ it (right); `key` may be any bytes."""
        opened = self._opened
        batch = bisect_right(opened.header.first_keys, key) - 1
        if batch < 0:
            return 0
        self._load(opened, batch)
        return opened.loaded.locate(key, side, *opened.header.rowids(batch))

    def find_one(self, key: bytes) -> int:
        """Return the rowid of one key, or -1; about 5 µs once its batch is loaded."""
        rowid = self.find_loaded(key)
        if rowid is None:
            opened = self._opened
            batch = bisect_right(opened.header.first_keys, key) - 1
            self._load(opened, batch)
            rowid = opened.loaded.find_one(key, *opened.header.rowids(batch))
        return rowid

    def find_loaded(self, key: bytes) -> int | None:
        """Return the rowid of one key, or -1; None where its batch is not in memory."""
        opened = self._opened
        header, loaded = opened.header, opened.loaded
        batch = bisect_right(header.first_keys, key) - 1
        if batch < 0 or (header.width is not None and len(key) != header.width):
            return -1
        return loaded.find_one(key, *header.rowids(batch)) if loaded.has(batch) else None

    def keys(self, rowids: np.ndarray) -> KeyArray:
        """Return the keys of `rowids` (int64[m], any order). IndexError for an unknown rowid."""
        opened = self._opened
        if len(rowids) == 0:
            return opened.first_keys.slice(0, 0)
        smallest, greatest, count = int(rowids.min()), int(rowids.max()), opened.header.key_count
        if smallest < 0 or greatest >= count:
            raise IndexError(f"{self.path}: rowids {smallest}..{greatest} of {count}")
        if not opened.loaded.is_whole:
            for batch in np.flatnonzero(np.bincount(rowids // BATCH_ROWS)).tolist():
                self._load(opened, batch)
        return opened.loaded.take(rowids)

    def slice(self, start: int, stop: int) -> KeyArray:
        """Return the keys of the rowids start .. stop - 1, fewer where the index ends."""
        opened = self._opened
        start, stop, _ = slice(start, stop).indices(opened.header.key_count)
        if start >= stop:
            return opened.first_keys.slice(0, 0)
        first, last = start // BATCH_ROWS, (stop - 1) // BATCH_ROWS
        if stop - start == 1 and start % BATCH_ROWS == 0:
            return opened.first_keys.slice(first, first + 1)
        for batch in range(first, last + 1):
            self._load(opened, batch)
        return opened.loaded.slice(start, stop)

    def batches(self) -> Iterator[KeyArray]:
        """Yield all keys in order, one batch after the other; what is read is not kept."""
        opened = self._opened
        for batch in range(len(opened.header.first_keys)):
            if opened.loaded.has(batch):
                yield opened.loaded.slice(*opened.header.rowids(batch))
            else:
                yield self._read_batch(opened, batch)

    # --- loading

    @property
    def _opened(self) -> _OpenedIndex:
        opened = self._opened_index
        if opened is None:
            opened = self._opened_index = self._open()
        return opened

    def _open(self) -> _OpenedIndex:
        source = self._storage.open_whole(self.path, self.ref)
        content = source.content()
        if self._verified.check_whole(self._path_text, self.ref, content):
            source.release()
        with arrow_errors(self.path, "not a key index"):
            reader = pa.ipc.open_file(content)
        stored = (reader.schema.metadata or {}).get(METADATA_KEY)
        # Not by `names`: a name that is not UTF-8 cannot be read.
        if stored is None or len(reader.schema) != 1 or reader.schema.get_field_index("key") != 0:
            raise CorruptionError(f"{self.path}: an Arrow file, but not a key index")
        header = decode_header(stored, path=self.path, batch_count=reader.num_record_batches)
        if self._row_count_expected not in (None, header.key_count):
            raise CorruptionError(
                f"{self.path}: {header.key_count} keys, the superblock says"
                f" {self._row_count_expected}"
            )
        if not is_key_type(reader.schema.field(0).type, header.width):
            raise CorruptionError(
                f"{self.path}: keys of Arrow type {reader.schema.field(0).type}, but of width"
                f" {header.width}"
            )
        first_keys = KeyArray.from_bytes(header.first_keys, header.width)
        if not first_keys.is_sorted(strict=True):
            raise CorruptionError(f"{self.path}: the first keys of the batches do not ascend")
        bounds = header.first_keys[0] if header.first_keys else b"", header.last_key or b""
        with arrow_errors(self.path, "its keys have no place in memory"):
            loaded = loaded_keys(header.key_count, header.width, bounds, BATCH_ROWS)
        return _OpenedIndex(source, header, first_keys, loaded)

    def _load(self, opened: _OpenedIndex, batch: int) -> None:
        """Load the keys of a batch, unless they are in memory."""
        if not opened.loaded.has(batch):
            opened.loaded.add(batch, self._read_batch(opened, batch))

    def _read_batch(self, opened: _OpenedIndex, batch: int) -> KeyArray:
        with arrow_errors(self.path, f"cannot read batch {batch}"):
            # The threads of pyarrow would cost four times as much as reading a batch.
            options = pa.ipc.IpcReadOptions(use_threads=False)
            reader = pa.ipc.open_file(opened.source.content(), options=options)
            column = reader.get_batch(batch).column(0)
            column.validate(full=True)
        opened.source.release()
        expected = min(BATCH_ROWS, opened.header.key_count - batch * BATCH_ROWS)
        if len(column) != expected or column.null_count:
            raise CorruptionError(f"{self.path}: batch {batch} has not {expected} keys")
        try:
            keys = KeyArray.from_arrow(column, opened.header.width)
        except CorruptionError as error:
            raise CorruptionError(f"{self.path}: batch {batch}: {error}") from error
        if keys[0] != opened.header.first_keys[batch]:
            raise CorruptionError(f"{self.path}: batch {batch} starts with another key")
        if opened.header.last_key is None or keys[len(keys) - 1] > opened.header.last_key:
            raise CorruptionError(f"{self.path}: batch {batch} ends behind the last key")
        return keys


def is_key_type(arrow_type: pa.DataType, width: int | None) -> bool:
    """Return whether keys of `width` are stored as that type."""
    if width is None:
        return arrow_type in (pa.binary(), pa.large_binary())
    return isinstance(width, int) and width > 0 and arrow_type == pa.binary(width)


@dataclass(frozen=True)
class KeyIndexHeader:
    """The sparse index: everything but the batches."""

    width: int | None
    key_count: int
    first_keys: tuple[bytes, ...]
    last_key: bytes | None

    def rowids(self, batch: int) -> tuple[int, int]:
        """Return (first, after the last) of the rowids of a batch."""
        start = batch * BATCH_ROWS
        return start, min(start + BATCH_ROWS, self.key_count)

    def encode(self) -> bytes:
        """Return the metadata value."""
        return json.dumps(
            {
                "format_version": FORMAT_VERSION,
                "width": self.width,
                "key_count": self.key_count,
                "first_keys": [key.hex() for key in self.first_keys],
                "last_key": None if self.last_key is None else self.last_key.hex(),
            }
        ).encode()


def decode_header(content: bytes, *, path: str | Path, batch_count: int) -> KeyIndexHeader:
    """Decode the metadata value of the file at `path`, which has `batch_count` batches.

    Raises FormatVersionError, or CorruptionError when it is malformed or contradicts the file.
    """
    with arrow_errors(path, "malformed key index metadata"):
        fields = json.loads(content)
        check_format_version(f"{path}: key index", fields["format_version"], FORMAT_VERSION)
        last_key = fields["last_key"]
        header = KeyIndexHeader(
            width=None if fields["width"] is None else int(fields["width"]),
            key_count=int(fields["key_count"]),
            first_keys=tuple(bytes.fromhex(key) for key in fields["first_keys"]),
            last_key=None if last_key is None else bytes.fromhex(last_key),
        )
    problem = _contradiction(header, batch_count)
    if problem:
        raise CorruptionError(f"{path}: key index metadata: {problem}")
    return header


def _contradiction(header: KeyIndexHeader, batch_count: int) -> str:
    """Return the first contradiction in a header, or an empty text."""
    keys = [*header.first_keys, *([] if header.last_key is None else [header.last_key])]
    if not 0 <= header.key_count <= KEY_COUNT_MAX:
        return f"{header.key_count} keys"
    if batch_count != -(-header.key_count // BATCH_ROWS):
        return f"{batch_count} batches for {header.key_count} keys"
    if len(header.first_keys) != batch_count:
        return f"{len(header.first_keys)} first keys for {batch_count} batches"
    if (header.last_key is None) != (header.key_count == 0):
        return f"last key {header.last_key!r} for {header.key_count} keys"
    if header.width is not None and (
        header.width < 1 or any(len(key) != header.width for key in keys)
    ):
        return f"keys that are not of {header.width} bytes"
    return ""


class LoadedKeys(Protocol):
    """The keys of an index in memory; row ids in arguments are of batches that are loaded."""

    nbytes: int  # when all are loaded

    @property
    def is_whole(self) -> bool:
        """Whether all keys are loaded."""

    def has(self, batch: int) -> bool:
        """Whether a batch is loaded."""

    def add(self, batch: int, keys: KeyArray) -> None:
        """Keep the keys of a batch."""

    def find(self, probes: KeyArray, start: int, stop: int) -> np.ndarray:
        """Return int64[m], the rowid of each of ascending probes in start .. stop - 1, or -1."""

    def find_one(self, key: bytes, start: int, stop: int) -> int:
        """Return the rowid of one key of the right width in start .. stop - 1, or -1."""

    def locate(self, key: bytes, side: Side, start: int, stop: int) -> int:
        """Return `start` and how many keys from there are < `key` (left) or ≤ it (right)."""

    def take(self, rowids: np.ndarray) -> KeyArray:
        """Return the keys of int64[m] row ids, m ≥ 1."""

    def slice(self, start: int, stop: int) -> KeyArray:
        """Return the keys of the rowids start .. stop - 1, at least one."""


def loaded_keys(
    key_count: int, width: int | None, bounds: tuple[bytes, bytes], batch_rows: int
) -> LoadedKeys:
    """Return room for the keys of an index; `bounds` are the least and the greatest of them."""
    if width is None:
        return _VariableKeys(key_count, batch_rows)
    if width <= 8:
        base, greatest = (int.from_bytes(key, "big") for key in bounds)
        if greatest - base <= _NARROW_MAX:
            return _NarrowKeys(key_count, batch_rows, width, base)
    return _FixedKeys(key_count, batch_rows, width)


class _Batches:
    """The numbers of the loaded batches of `key_count` keys."""

    def __init__(self, key_count: int, batch_rows: int) -> None:
        self._batch_rows, self._batch_count = batch_rows, -(-key_count // batch_rows)
        self._loaded: set[int] = set()

    @property
    def is_whole(self) -> bool:
        return len(self._loaded) == self._batch_count

    def has(self, batch: int) -> bool:
        return batch in self._loaded


class _FixedKeys(_Batches):
    """Keys of one width."""

    def __init__(self, key_count: int, batch_rows: int, width: int) -> None:
        super().__init__(key_count, batch_rows)
        dtype = np.dtype(np.uint64 if width <= 8 else f"S{width}")
        self._keys = KeyArray(np.empty(key_count, dtype), width)
        self.nbytes = self._keys.nbytes

    def add(self, batch: int, keys: KeyArray) -> None:
        start = batch * self._batch_rows
        self._keys.values[start : start + len(keys)] = keys.values
        self._loaded.add(batch)

    def find(self, probes: KeyArray, start: int, stop: int) -> np.ndarray:
        found = self._keys.slice(start, stop).find(probes)
        return np.where(found < 0, -1, found + start)

    def find_one(self, key: bytes, start: int, stop: int) -> int:
        keys = self._keys.slice(start, stop)
        row = keys.locate(key)
        return start + row if row < len(keys) and keys[row] == key else -1

    def locate(self, key: bytes, side: Side, start: int, stop: int) -> int:
        return start + self._keys.slice(start, stop).locate(key, side)

    def take(self, rowids: np.ndarray) -> KeyArray:
        return self._keys.take(rowids)

    def slice(self, start: int, stop: int) -> KeyArray:
        return self._keys.slice(start, stop)


class _NarrowKeys(_Batches):
    """Keys of up to eight bytes, as unsigned integers above `base`."""

    def __init__(self, key_count: int, batch_rows: int, width: int, base: int) -> None:
        super().__init__(key_count, batch_rows)
        self._values = np.empty(key_count, np.uint32)
        self._width, self._base = width, base
        self.nbytes = self._values.nbytes

    def add(self, batch: int, keys: KeyArray) -> None:
        start = batch * self._batch_rows
        np.subtract(
            keys.values,
            np.uint64(self._base),
            out=self._values[start : start + len(keys)],
            casting="unsafe",
        )
        self._loaded.add(batch)

    def find(self, probes: KeyArray, start: int, stop: int) -> np.ndarray:
        # A probe below the base becomes a large number, as one far above it is.
        above = probes.values - np.uint64(self._base)
        narrow = np.minimum(above, np.uint64(_NARROW_MAX)).astype(np.uint32)
        values = self._values[start:stop]
        places = np.minimum(values.searchsorted(narrow), len(values) - 1)
        is_hit = values[places] == above
        return np.where(is_hit, places + start, -1)

    def find_one(self, key: bytes, start: int, stop: int) -> int:
        above = int.from_bytes(key, "big") - self._base
        if not 0 <= above <= _NARROW_MAX:
            return -1
        values = self._values[start:stop]
        row = int(values.searchsorted(np.uint32(above)))
        return start + row if row < len(values) and values[row] == above else -1

    def locate(self, key: bytes, side: Side, start: int, stop: int) -> int:
        key, side = fitted_bound(key, self._width, side)
        above = int.from_bytes(key, "big") - self._base
        if not 0 <= above <= _NARROW_MAX:
            return start if above < 0 else stop
        return start + int(self._values[start:stop].searchsorted(np.uint32(above), side))

    def take(self, rowids: np.ndarray) -> KeyArray:
        return self._keys_of(self._values[rowids])

    def slice(self, start: int, stop: int) -> KeyArray:
        return self._keys_of(self._values[start:stop])

    def _keys_of(self, values: np.ndarray) -> KeyArray:
        return KeyArray(values + np.uint64(self._base), self._width)


class _VariableKeys(_Batches):
    """Keys of any length."""

    def __init__(self, key_count: int, batch_rows: int) -> None:
        super().__init__(key_count, batch_rows)
        self._batches: dict[int, KeyArray] = {}
        self._whole: KeyArray | None = None
        self.nbytes = _VARIABLE_BYTES * key_count

    def add(self, batch: int, keys: KeyArray) -> None:
        self._batches[batch] = keys
        self._loaded.add(batch)
        if self.is_whole and self._whole is None:
            numbers = range(self._batch_count)
            self._whole = whole = KeyArray.concat([self._batches[n] for n in numbers])
            starts = [number * self._batch_rows for number in numbers]
            self._batches = {
                n: whole.slice(at, at + self._batch_rows) for n, at in enumerate(starts)
            }

    def find(self, probes: KeyArray, start: int, stop: int) -> np.ndarray:
        found = self.slice(start, stop).find(probes)
        return np.where(found < 0, -1, found + start)

    def find_one(self, key: bytes, start: int, stop: int) -> int:
        keys = self.slice(start, stop)
        row = keys.locate(key)
        return start + row if row < len(keys) and keys[row] == key else -1

    def locate(self, key: bytes, side: Side, start: int, stop: int) -> int:
        return start + self.slice(start, stop).locate(key, side)

    def take(self, rowids: np.ndarray) -> KeyArray:
        whole = self._whole
        if whole is not None:
            return whole.take(rowids)
        numbers = np.flatnonzero(np.bincount(rowids // self._batch_rows))
        parts = [self._batches[number] for number in numbers.tolist()]
        starts = np.zeros(numbers[-1] + 1, np.int64)
        starts[numbers] = np.cumsum([0, *map(len, parts[:-1])])
        return KeyArray.concat(parts).take(
            rowids % self._batch_rows + starts[rowids // self._batch_rows]
        )

    def slice(self, start: int, stop: int) -> KeyArray:
        first, last = start // self._batch_rows, (stop - 1) // self._batch_rows
        keys, base = self._whole, 0
        if first == last or keys is None:
            base = first * self._batch_rows
            keys = KeyArray.concat([self._batches[n] for n in range(first, last + 1)])
        # A batch as a whole keeps the parts that a search makes of it.
        return keys if len(keys) == stop - start else keys.slice(start - base, stop - base)
