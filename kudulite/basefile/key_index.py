"""Encoded keys of one DiskRowSet, ascending; the position of a key is its rowid.

    key → batch, by the first keys in memory → row in the batch, which is loaded at its first use

A few probes load only the batches they fall into. Many probes load the whole index once, because
one search over one array is fastest. Loaded batches stay in memory, so the owner of many indexes
bounds its memory by dropping indexes (`nbytes` is the size of one).

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
that. The file's CRC is verified once, at the first use.

**Invariants**: (1) keys ascend strictly; (2) loaded keys never change, they are only replaced by
equal keys in fewer arrays.

**Threads**: any. There is no lock: two threads that miss the same part both load it, and one result
is dropped. Loading reads from a memory map through a reader of its own.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from kudulite.basefile.block_cache import open_mapped
from kudulite.errors import CorruptionError
from kudulite.model.key_array import KeyArray, Side, searched_in_order
from kudulite.storage.checked_json import check_crc32, check_format_version
from kudulite.storage.file_system import FileRef, Sink
from kudulite.storage.storage_error import arrow_errors

WHOLE_BATCH_FRACTION = 2  # once 1/2 of the batches is wanted, the rest is loaded with them

FORMAT_VERSION = 1  # on disk: a change of meaning raises it
METADATA_KEY = b"kudulite.key_index"
BATCH_ROWS = 65536  # on disk: rowid // BATCH_ROWS is the batch
KEY_COUNT_MAX = 1 << 32  # a rowid is uint32


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
    """The checked parts of an index file, made at its first use; immutable."""

    content: pa.Buffer  # the whole file, memory-mapped, its CRC verified
    header: KeyIndexHeader
    first_keys: KeyArray


class KeyIndex:
    """One key index file, opened at its first use."""

    def __init__(self, path: Path, ref: FileRef, row_count: int | None = None) -> None:
        """`row_count` is that of the rowset, if it is known: the index must have as many keys."""
        self.path = Path(path)
        self.ref = ref
        self._row_count_expected = row_count
        self._opened_index: _OpenedIndex | None = None
        self._batches: dict[int, KeyArray] = {}  # by batch number; empty once _whole is there
        self._whole: KeyArray | None = None

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
        return self._whole is not None

    @property
    def nbytes(self) -> int:
        """Bytes of keys that are in memory now."""
        whole = self._whole
        if whole is not None:
            return whole.nbytes
        return sum(batch.nbytes for batch in list(self._batches.values()))

    def find(self, probes: KeyArray) -> np.ndarray:
        """Return int64[m], the rowid of each probe, or -1. Sorted probes are the fast case."""
        if len(probes) == 0 or self.row_count == 0:
            return np.full(len(probes), -1, np.int64)
        if not probes.is_sorted():
            return searched_in_order(probes, self.find)
        keys = self._whole
        if keys is not None:
            return keys.find(probes)
        batch_of_probe = self._opened.first_keys.search_sorted(probes, side="right") - 1
        batches, starts = np.unique(batch_of_probe, return_index=True)
        if self._is_most(batches):
            return self._load_whole().find(probes)
        rowids = np.full(len(probes), -1, np.int64)
        stops = [*starts[1:].tolist(), len(probes)]
        for batch, start, stop in zip(batches.tolist(), starts.tolist(), stops, strict=True):
            if batch < 0:  # below the first key
                continue
            found = self._batch(batch).find(probes.slice(start, stop))
            rowids[start:stop] = np.where(found < 0, -1, found + batch * BATCH_ROWS)
        return rowids

    def locate(self, key: bytes, side: Side = "left") -> int:
        """Return how many keys are < `key` (left) or ≤ it (right); `key` may be any bytes."""
        batch = bisect_right(self._opened.header.first_keys, key) - 1
        if batch < 0:
            return 0
        return batch * BATCH_ROWS + self._batch(batch).locate(key, side)

    def find_one(self, key: bytes) -> int:
        """Return the rowid of one key, or -1; about 5 µs once its batch is loaded."""
        rowid = self.find_loaded(key)
        if rowid is None:
            self._batch(bisect_right(self._opened.header.first_keys, key) - 1)
            rowid = self.find_loaded(key)
            assert rowid is not None
        return rowid

    def find_loaded(self, key: bytes) -> int | None:
        """Return the rowid of one key, or -1; None where its batch is not in memory."""
        header = self._opened.header
        whole = self._whole
        if whole is not None:
            if header.width is not None and len(key) != header.width:
                return -1
            return _row_of(key, whole)
        batch = bisect_right(header.first_keys, key) - 1
        if batch < 0 or (header.width is not None and len(key) != header.width):
            return -1
        keys = self._batches.get(batch)
        if keys is None:
            # Another thread may have loaded the whole index in between.
            return None if self._whole is None else _row_of(key, self._whole)
        row = _row_of(key, keys)
        return row if row < 0 else batch * BATCH_ROWS + row

    def keys(self, rowids: np.ndarray) -> KeyArray:
        """Return the keys of `rowids` (int64[m], any order). IndexError for an unknown rowid."""
        if len(rowids) == 0:
            return self._opened.first_keys.slice(0, 0)
        smallest, greatest = int(rowids.min()), int(rowids.max())
        if smallest < 0 or greatest >= self.row_count:
            raise IndexError(f"{self.path}: rowids {smallest}..{greatest} of {self.row_count}")
        whole = self._whole
        if whole is not None:
            return whole.take(rowids)
        batch_of_row = rowids // BATCH_ROWS
        batches, inverse = np.unique(batch_of_row, return_inverse=True)
        if self._is_most(batches):
            return self._load_whole().take(rowids)
        parts = [self._batch(batch) for batch in batches.tolist()]
        part_starts = np.cumsum([0] + [len(part) for part in parts[:-1]])
        return KeyArray.concat(parts).take(rowids % BATCH_ROWS + part_starts[inverse])

    def slice(self, start: int, stop: int) -> KeyArray:
        """Return the keys of the rowids start .. stop - 1, fewer where the index ends."""
        start, stop, _ = slice(start, stop).indices(self.row_count)
        if start >= stop:
            return self._opened.first_keys.slice(0, 0)
        batches = np.arange(start // BATCH_ROWS, (stop - 1) // BATCH_ROWS + 1)
        if stop - start == 1 and start % BATCH_ROWS == 0:
            return self._opened.first_keys.slice(int(batches[0]), int(batches[0]) + 1)
        if self._whole is not None or self._is_most(batches):
            return self._load_whole().slice(start, stop)
        base = int(batches[0]) * BATCH_ROWS
        joined = KeyArray.concat([self._batch(batch) for batch in batches.tolist()])
        return joined.slice(start - base, stop - base)

    def batches(self) -> Iterator[KeyArray]:
        """Yield all keys in order, one batch after the other; what is read is not kept."""
        for batch in range(len(self._opened.header.first_keys)):
            is_here = self._whole is not None or batch in self._batches
            yield self._batch(batch) if is_here else self._read_batch(batch)

    # --- loading

    @property
    def _opened(self) -> _OpenedIndex:
        opened = self._opened_index
        if opened is None:
            opened = self._opened_index = self._open()
        return opened

    def _open(self) -> _OpenedIndex:
        source = open_mapped(self.path, self.ref)
        content = source.read_buffer(self.ref.length)
        check_crc32(f"{self.path}: CRC", zlib.crc32(content), self.ref.crc32)
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
        return _OpenedIndex(content=content, header=header, first_keys=first_keys)

    def _is_most(self, batches: np.ndarray) -> bool:
        """Return whether so many batches are wanted that loading all of them is cheaper."""
        wanted = len(set(batches.tolist()) | self._batches.keys())
        return wanted * WHOLE_BATCH_FRACTION >= len(self._opened.header.first_keys)

    def _batch(self, batch: int) -> KeyArray:
        """Return the keys of one batch, loading it where needed."""
        whole = self._whole
        if whole is not None:
            return whole.slice(batch * BATCH_ROWS, (batch + 1) * BATCH_ROWS)
        keys = self._batches.get(batch)
        if keys is None:
            keys = self._batches[batch] = self._read_batch(batch)
        return keys

    def _load_whole(self) -> KeyArray:
        """Return all keys in one array, loading them where needed."""
        whole = self._whole
        if whole is None:
            count = len(self._opened.header.first_keys)
            whole = self._whole = KeyArray.concat([self._batch(batch) for batch in range(count)])
            self._batches = {}
        return whole

    def _read_batch(self, batch: int) -> KeyArray:
        opened = self._opened
        with arrow_errors(self.path, f"cannot read batch {batch}"):
            # The threads of pyarrow would cost four times as much as reading a batch.
            options = pa.ipc.IpcReadOptions(use_threads=False)
            column = pa.ipc.open_file(opened.content, options=options).get_batch(batch).column(0)
            column.validate(full=True)
        expected = min(BATCH_ROWS, opened.header.key_count - batch * BATCH_ROWS)
        if len(column) != expected or column.null_count:
            raise CorruptionError(f"{self.path}: batch {batch} has not {expected} keys")
        try:
            keys = KeyArray.from_arrow(column, opened.header.width)
        except CorruptionError as error:
            raise CorruptionError(f"{self.path}: batch {batch}: {error}") from error
        if keys[0] != opened.header.first_keys[batch]:
            raise CorruptionError(f"{self.path}: batch {batch} starts with another key")
        return keys


def _row_of(key: bytes, keys: KeyArray) -> int:
    """Return where one whole key is among ascending keys, or -1."""
    if keys.width is None or keys.width > 8:
        row = keys.locate(key)
        return row if row < len(keys) and keys[row] == key else -1
    number, values = int.from_bytes(key, "big"), keys.values
    row = int(values.searchsorted(np.uint64(number)))
    return row if row < len(values) and values[row] == number else -1


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
