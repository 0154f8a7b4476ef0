"""Bloom filter over the encoded keys of one DiskRowSet: "this key is surely not here".

A split block filter: one hash, one block of 32 bytes, one bit in each of its 8 words. A probe
touches one cache line, and both build and probe are whole-array operations, one word at a time.
Kudu's own filter files hold a tree of 4 KB filters by key range instead, so that one can be read
without the others; this one takes 2 bytes per key and is read whole.

The file has a header of 32 bytes, then the blocks:

    file   := header block[block_count]
    header := magic[8]="kudbloom"  format_version:u32le  block_count:u32le  key_count:u64le
              blocks_crc32:u32le  header_crc32:u32le (of the 28 bytes before it)
    block  := word:u32le[8]

A key with the 64-bit hash h = high:u32 low:u32 (`model.key_hash`, seed 0) belongs to the block
(high * block_count) >> 32 and sets there, in each word i, the bit (low * SALTS[i] mod 2^32) >> 27.
A filter of no keys has one block of zeros. Worked example, one key of int64 1, encoded
8000000000000001, h = 1579e09ce504374d, block 0 of 1:

    6b7564626c6f6f6d 01000000 01000000 0100000000000000 <crc> <crc>
    01000000 02000000 00000040 00080000 00020000 00000001 00002000 00000001

**Threads**: any; a filter never changes once loaded.

**Source**: the split block bloom filter of the Parquet format ("BloomFilter.md") and of Kudu's
block_bloom_filter.cc (Putze, Sanders, Singler: Cache-, Hash- and Space-Efficient Bloom Filters),
whose salts these are.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa

from kudulite.basefile.block_cache import VerifiedParts
from kudulite.errors import CorruptionError
from kudulite.model.key_array import KeyArray
from kudulite.model.key_hash import hash64_one
from kudulite.storage.checked_json import check_crc32, check_format_version
from kudulite.storage.storage import FileRef, Sink, Storage

_CHUNK_ROWS = 32768  # the arrays of one chunk stay in the processor's cache
_WORD_BITS = 32

FORMAT_VERSION = 1  # on disk: a change of meaning raises it
MAGIC = b"kudbloom"
HEADER_BYTES = 32
BLOCK_BYTES = 32
WORDS_PER_BLOCK = 8
BITS_PER_KEY = 16  # not part of the format: about 1 false positive in 750
SALTS = (  # on disk: do not change
    0x47B6137B,
    0x44974D91,
    0x8824AD5B,
    0xA2B7289D,
    0x705495C7,
    0x2DF1424B,
    0x9EFC4947,
    0x5C6BFB31,
)
_HEADER = struct.Struct("<8sIIQI")


def build_bloom(keys: KeyArray) -> bytes:
    """Return the file content of the filter of `keys`; equal keys count once each."""
    block_count = max(1, -(-len(keys) * BITS_PER_KEY // (BLOCK_BYTES * 8)))
    hashes = keys.hash64()
    first_bit = _block_of(hashes, block_count) * _WORD_BITS
    low = hashes.astype(np.uint32)
    words = np.empty((block_count, WORDS_PER_BLOCK), "<u4")
    for i, salt in enumerate(SALTS):
        # A byte per bit, because setting single bits needs a slow read-modify-write for each.
        is_set = np.zeros(block_count * _WORD_BITS, np.uint8)
        for start in range(0, len(low), _CHUNK_ROWS):
            rows = slice(start, start + _CHUNK_ROWS)
            is_set[first_bit[rows] + _bit_of(low[rows], salt)] = 1
        words[:, i] = np.packbits(is_set, bitorder="little").view("<u4")
    blocks = words.tobytes()
    header = _HEADER.pack(MAGIC, FORMAT_VERSION, block_count, len(keys), zlib.crc32(blocks))
    return b"".join((header, zlib.crc32(header).to_bytes(4, "little"), blocks))


def write_bloom(sink: Sink, keys: KeyArray) -> None:
    """Write the filter of `keys`; the sink is not finished."""
    sink.write(build_bloom(keys))


class BloomFilter:
    """One filter, from the content of its file; a map of it is read where probes fall."""

    def __init__(
        self, path: Path, content: bytes | pa.Buffer, *, is_verified: bool = False
    ) -> None:
        """`path` is that of the file, for errors. Raises CorruptionError.

        Every byte is checked, unless `content` was compared with a checksum of the whole file.
        """
        self._filter = _LoadedFilter(memoryview(content), path, is_verified)

    @staticmethod
    def load(storage: Storage, path: Path, ref: FileRef, verified: VerifiedParts) -> BloomFilter:
        """Open a file, whose CRC is compared once in a process. Raises CorruptionError."""
        content = storage.open_whole(path, ref).content()
        verified.check_whole(str(path), ref, content)
        return BloomFilter(path, content, is_verified=True)

    @property
    def key_count(self) -> int:
        """The number of keys in the filter."""
        return self._filter.key_count

    @property
    def block_count(self) -> int:
        """The number of blocks of the filter."""
        return len(self._filter.words)

    @property
    def nbytes(self) -> int:
        """Bytes of the filter in memory."""
        return self._filter.words.nbytes

    def may_contain(self, keys: KeyArray) -> np.ndarray:
        """Return bool[n], False where a key is surely not in the rowset."""
        words = self._filter.words
        if self._filter.key_count == 0:
            return np.zeros(len(keys), bool)
        hashes = keys.hash64()
        result = np.empty(len(keys), bool)
        salts = np.array(SALTS, np.uint32)
        for start in range(0, len(keys), _CHUNK_ROWS):
            chunk = hashes[start : start + _CHUNK_ROWS]
            blocks = words.take(_block_of(chunk, len(words)), axis=0)
            bits = _bit_of(chunk.astype(np.uint32)[:, np.newaxis], salts)
            blocks >>= bits
            result[start : start + _CHUNK_ROWS] = np.bitwise_and.reduce(blocks, axis=1) & 1
        return result

    def may_contain_one(self, key: bytes, width: int | None = None) -> bool:
        """Return whether one key may be in the rowset; about 5 µs.

        `width` has no effect: the hash is of the key's bytes, however they are stored.
        """
        loaded = self._filter
        if loaded.key_count == 0:
            return False
        key_hash = hash64_one(key)
        low = key_hash & 0xFFFFFFFF
        start = HEADER_BYTES + ((key_hash >> 32) * len(loaded.words) >> 32) * BLOCK_BYTES
        block = int.from_bytes(loaded.content[start : start + BLOCK_BYTES], "little")
        for i, salt in enumerate(SALTS):
            if not block >> (_WORD_BITS * i + ((low * salt & 0xFFFFFFFF) >> 27)) & 1:
                return False
        return True


class _LoadedFilter:
    """The content of a filter file."""

    __slots__ = ("content", "key_count", "words")
    key_count: int

    def __init__(self, content: memoryview, path: Path, is_verified: bool) -> None:
        """Raise FormatVersionError, or CorruptionError that names `path` and the difference."""
        if len(content) < HEADER_BYTES or content[:8] != MAGIC:
            found = bytes(content[:8])
            raise CorruptionError(f"{path}: not a bloom filter: it starts with {found!r}")
        _, version, block_count, self.key_count, blocks_crc = _HEADER.unpack_from(content)
        stored = int.from_bytes(content[_HEADER.size : HEADER_BYTES], "little")
        check_crc32(f"{path}: header CRC", zlib.crc32(content[: _HEADER.size]), stored)
        check_format_version(f"{path}: bloom filter", version, FORMAT_VERSION)
        if block_count < 1 or len(content) != HEADER_BYTES + block_count * BLOCK_BYTES:
            raise CorruptionError(f"{path}: {len(content)} bytes for {block_count} blocks")
        blocks = content[HEADER_BYTES:]
        if not is_verified:
            check_crc32(f"{path}: blocks CRC", zlib.crc32(blocks), blocks_crc)
        self.content = content
        self.words = np.frombuffer(blocks, "<u4").reshape(block_count, WORDS_PER_BLOCK)


def _block_of(hashes: np.ndarray, block_count: int) -> np.ndarray:
    """Return int64[n], the block of each hash, from its high half."""
    return ((hashes >> np.uint64(32)) * np.uint64(block_count) >> np.uint64(32)).astype(np.int64)


def _bit_of(low: np.ndarray, salt: int | np.ndarray) -> np.ndarray:
    """Return uint32, the bit that the low half of each hash sets in the word of `salt`."""
    return low * np.asarray(salt, np.uint32) >> np.uint32(27)
