"""Bloom filter over the encoded keys of one DiskRowSet: "this key is surely not here".

A split block filter: one hash, one block of 32 bytes, one bit in each of its 8 words. A probe
touches one cache line, and both build and probe are whole-array operations, one word at a time.
Kudu's own filter files hold a tree of 4 KB filters by key range instead, so that one can be read
without the others; ours is 2 bytes per key and read whole.

**Threads** any; a filter never changes once loaded. Format: `bloom_format`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kudulite.cfile.bloom_format import (
    BLOCK_BYTES,
    HEADER_BYTES,
    SALTS,
    WORDS_PER_BLOCK,
    block_count_for,
    decode_file,
    encode_file,
)
from kudulite.fs.file_system import FileRef, Sink, check_content, read_file
from kudulite.model.key_array import KeyArray
from kudulite.model.key_hash import hash64_one

_CHUNK_ROWS = 32768  # the arrays of one chunk stay in the processor's cache
_WORD_BITS = 32


def build_bloom(keys: KeyArray) -> bytes:
    """The file content of the filter of `keys`; equal keys count once each."""
    block_count = block_count_for(len(keys))
    hashes = keys.hash64()
    first_bit = _block_of(hashes, block_count) * _WORD_BITS
    low = hashes.astype(np.uint32)
    words = np.empty((block_count, WORDS_PER_BLOCK), "<u4")
    for i, salt in enumerate(SALTS):
        # A byte per bit: a scatter of single bits would need a slow read-modify-write each.
        is_set = np.zeros(block_count * _WORD_BITS, np.uint8)
        for start in range(0, len(low), _CHUNK_ROWS):
            rows = slice(start, start + _CHUNK_ROWS)
            is_set[first_bit[rows] + _bit_of(low[rows], salt)] = 1
        words[:, i] = np.packbits(is_set, bitorder="little").view("<u4")
    return encode_file(words.tobytes(), len(keys))


def write_bloom(sink: Sink, keys: KeyArray) -> None:
    """Write the filter of `keys`; the sink is not finished."""
    sink.write(build_bloom(keys))


class BloomFilter:
    """One filter, from a file (read and verified at the first use) or from its content."""

    def __init__(self, path: Path, source: FileRef | bytes) -> None:
        """`source` is the reference of the file at `path`, or its content already in memory."""
        self.path = Path(path)
        self._ref = source if isinstance(source, FileRef) else None
        self._loaded = None if isinstance(source, FileRef) else self._decode(source)

    @property
    def key_count(self) -> int:
        """Keys that the filter was built of."""
        return self._filter.key_count

    @property
    def nbytes(self) -> int:
        """Bytes of the filter in memory; 0 before its first use."""
        return self._loaded.words.nbytes if self._loaded is not None else 0

    def may_contain(self, keys: KeyArray) -> np.ndarray:
        """bool[n]: False where a key is surely not in the rowset."""
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
        """Whether one key may be in the rowset; about 5 µs. `width` has no effect: the hash is of
        the key's bytes, however they are stored."""
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

    @property
    def _filter(self) -> _LoadedFilter:
        # Two threads may both load it; the results are equal and one is dropped.
        loaded = self._loaded
        if loaded is None:
            assert self._ref is not None
            content = read_file(self.path)
            check_content(self.path, content, self._ref)
            loaded = self._loaded = self._decode(content)
        return loaded

    def _decode(self, content: bytes) -> _LoadedFilter:
        return _LoadedFilter(content, decode_file(content, self.path))


class _LoadedFilter:
    """The content of a filter file, checked."""

    __slots__ = ("content", "key_count", "words")

    def __init__(self, content: bytes, counts: tuple[int, int]) -> None:
        self.content = content
        block_count, self.key_count = counts
        flat = np.frombuffer(content, "<u4", block_count * WORDS_PER_BLOCK, HEADER_BYTES)
        self.words = flat.reshape(block_count, WORDS_PER_BLOCK)


def _block_of(hashes: np.ndarray, block_count: int) -> np.ndarray:
    """int64[n]: the block of each hash, from its high half."""
    return ((hashes >> np.uint64(32)) * np.uint64(block_count) >> np.uint64(32)).astype(np.int64)


def _bit_of(low: np.ndarray, salt: int | np.ndarray) -> np.ndarray:
    """uint32: the bit that the low half of each hash sets in the word of `salt`."""
    return low * np.asarray(salt, np.uint32) >> np.uint32(27)
