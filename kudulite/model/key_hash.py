"""The two hashes of an encoded key. Both reach the disk: do not change them.

The 64-bit hash is for bloom filters:

    words  = the key's bytes in groups of eight, big-endian numbers, the last padded right with 0
    state  = mix(seed + 0x9e3779b97f4a7c15 * (length + 1))
    state  = mix(state ^ word)                                        for each word
    mix(z) = splitmix64's finaliser: z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27;
             z *= 0x94d049bb133111eb; z ^= z >> 31                     all modulo 2^64

The hash is of the bytes, not of how they are stored. Worked example, seed 0: the key 80 00 00 00
00 00 00 01 (int64 1) hashes to 0x1579e09ce504374d.

The 32-bit hash chooses buckets of a hash dimension. It is MurmurHash3 (x86) and bit-equal to
`mmh3.hash(key, seed, signed=False)`.

Arrays are hashed by whole-array arithmetic, some thousand rows at a time.

Keys of different lengths are `RaggedBytes`: strings in one buffer, read eight bytes at a time for
all rows at once. Numpy has no array of such strings, but it can gather an (unaligned) word at any
byte position, so row i's k-th word is one indexed load. Bytes beyond the end of a string read as
zeros.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

_GOLDEN = 0x9E3779B97F4A7C15
_FACTOR_1, _FACTOR_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = 2**64 - 1
_CHUNK_ROWS = 16384  # the arrays of one chunk stay in the processor's cache

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_PADDING = 8  # so that a word may be loaded at the last byte


def hash64_one(key: bytes, seed: int = 0) -> int:
    """Return the hash of one key; equal to `KeyArray.hash64` of it."""
    state = _mix_one((seed + _GOLDEN * (len(key) + 1)) & _MASK)
    for start in range(0, len(key), 8):
        word = int.from_bytes(key[start : start + 8].ljust(8, b"\0"), "big")
        state = _mix_one(state ^ word)
    return state


def _mix_one(z: int) -> int:
    z = ((z ^ (z >> 30)) * _FACTOR_1) & _MASK
    z = ((z ^ (z >> 27)) * _FACTOR_2) & _MASK
    return z ^ (z >> 31)


def _mix(z: np.ndarray) -> None:
    """Mix in place."""
    z ^= z >> np.uint64(30)
    z *= np.uint64(_FACTOR_1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_FACTOR_2)
    z ^= z >> np.uint64(31)


def hash64_fixed(
    row_count: int, width: int, word: Callable[[int, slice], np.ndarray], seed: int
) -> np.ndarray:
    """Return uint64[row_count] for keys of one width; `word(k, rows)` is the rows' k-th word."""
    state = np.empty(row_count, np.uint64)
    first = np.uint64(_mix_one((seed + _GOLDEN * (width + 1)) & _MASK))
    for start in range(0, row_count, _CHUNK_ROWS):
        rows = slice(start, min(start + _CHUNK_ROWS, row_count))
        part = state[rows]
        np.bitwise_xor(word(0, rows), first, out=part)
        _mix(part)
        for k in range(1, (width + 7) // 8):
            part ^= word(k, rows)
            _mix(part)
    return state


def hash64_ragged(keys: RaggedBytes, seed: int) -> np.ndarray:
    """Return uint64[n] for keys of different lengths."""
    state = (keys.lengths + 1).astype(np.uint64) * np.uint64(_GOLDEN)
    state += np.uint64(seed & _MASK)
    for start in range(0, len(keys), _CHUNK_ROWS):
        stop = min(start + _CHUNK_ROWS, len(keys))
        _hash64_ragged_part(keys.slice(start, stop), state[start:stop])
    return state


def _hash64_ragged_part(keys: RaggedBytes, state: np.ndarray) -> None:
    _mix(state)
    for position in range(0, int(keys.lengths.max()), 8):
        longer = np.flatnonzero(keys.lengths > position)
        rows = None if len(longer) == len(state) else longer
        part = state if rows is None else state[rows]
        part ^= keys.words(position, rows)
        _mix(part)
        if rows is not None:
            state[rows] = part


def murmur3_fixed(
    row_count: int, width: int, word: Callable[[int, slice], np.ndarray], seed: int
) -> np.ndarray:
    """Return uint32[row_count] for keys of one width; `word(k, rows)` is the rows' k-th word."""
    state = np.full(row_count, seed & 0xFFFFFFFF, np.uint32)
    for start in range(0, row_count, _CHUNK_ROWS):
        rows = slice(start, min(start + _CHUNK_ROWS, row_count))
        part = state[rows]
        for index in range((width + 7) // 8):
            for half, block in enumerate(_blocks(word(index, rows))):
                left = width - 8 * index - 4 * half
                if left >= 4:
                    _add_block(part, block)
                elif left > 0:
                    part ^= _scramble(block)
        part ^= np.uint32(width)
        _finish(part)
    return state


def murmur3_ragged(keys: RaggedBytes, seed: int) -> np.ndarray:
    """Return uint32[n] for keys of different lengths."""
    state = np.full(len(keys), seed & 0xFFFFFFFF, np.uint32)
    for start in range(0, len(keys), _CHUNK_ROWS):
        stop = min(start + _CHUNK_ROWS, len(keys))
        _murmur3_ragged_part(keys.slice(start, stop), state[start:stop])
    return state


def _murmur3_ragged_part(keys: RaggedBytes, state: np.ndarray) -> None:
    rows = None  # those with strings longer than `position`; None is all
    left = keys.lengths
    for position in range(0, int(keys.lengths.max()), 8):
        if position:
            rows = np.flatnonzero(keys.lengths > position)
            rows = None if len(rows) == len(state) else rows
            left = (keys.lengths if rows is None else keys.lengths[rows]) - position
        part = state if rows is None else state[rows]
        for half, block in enumerate(_blocks(keys.words(position, rows))):
            _add_block_or_tail(part, block, left - 4 * half)
        if rows is not None:
            state[rows] = part
    state ^= keys.lengths.astype(np.uint32)
    _finish(state)


def _add_block_or_tail(state: np.ndarray, block: np.ndarray, left: np.ndarray) -> None:
    """Take one block per row into the state; only its first `left` bytes (if any) are of the key.

    The other bytes are 0, and scramble(0) is 0, so a missing block changes nothing.
    """
    whole = left >= 4
    if whole.all():
        _add_block(state, block)
        return
    state ^= _scramble(block)
    rotated = state.copy()
    _rotate(rotated)
    np.copyto(state, rotated, where=whole)


def _blocks(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the two little-endian blocks of words of eight bytes, whose first byte is highest."""
    first, second = (words >> np.uint64(32)).astype(np.uint32), words.astype(np.uint32)
    return first.byteswap(inplace=True), second.byteswap(inplace=True)


def _scramble(block: np.ndarray) -> np.ndarray:
    """Mix one block as Murmur does, in place."""
    block *= _C1
    high = block >> np.uint32(17)
    block <<= np.uint32(15)
    block |= high
    block *= _C2
    return block


def _add_block(state: np.ndarray, block: np.ndarray) -> None:
    """Take one whole block of four bytes into the state; both are changed."""
    state ^= _scramble(block)
    _rotate(state)


def _rotate(state: np.ndarray) -> None:
    high = state >> np.uint32(19)
    state <<= np.uint32(13)
    state |= high
    state *= np.uint32(5)
    state += np.uint32(0xE6546B64)


def _finish(state: np.ndarray) -> None:
    state ^= state >> np.uint32(16)
    state *= np.uint32(0x85EBCA6B)
    state ^= state >> np.uint32(13)
    state *= np.uint32(0xC2B2AE35)
    state ^= state >> np.uint32(16)


_KEEP_LEFT = np.array([(2**64 - 1) ^ (2 ** (64 - 8 * n) - 1) for n in range(9)], np.uint64)


def binary_parts(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets (int32 or int64, n + 1) and data of a (large_)binary array, not copied."""
    large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    _, offsets_buffer, data_buffer = array.buffers()
    if offsets_buffer is None or len(array) == 0:
        return np.zeros(1, np.int32), np.zeros(0, np.uint8)
    dtype = np.dtype(np.int64 if large else np.int32)
    offsets = np.frombuffer(
        offsets_buffer, dtype, count=len(array) + 1, offset=array.offset * dtype.itemsize
    )
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return offsets, data


class RaggedBytes:
    """n byte strings: `data` (padded by eight bytes), `starts` int64[n], `lengths` int64[n]."""

    __slots__ = ("_overlapping", "data", "lengths", "starts")

    def __init__(self, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
        self.data = data
        self.starts = starts
        self.lengths = lengths
        # Every byte position as the start of one word.
        self._overlapping = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))

    @classmethod
    def from_arrow(cls, array: pa.Array) -> RaggedBytes:
        """Return a copy of the bytes of a binary or large_binary array."""
        offsets, data = binary_parts(array)
        first, last = int(offsets[0]), int(offsets[-1])
        padded = np.empty(last - first + _PADDING, np.uint8)
        padded[: last - first] = data[first:last]
        padded[last - first :] = 0
        ends = offsets.astype(np.int64)
        return cls(padded, ends[:-1] - first, np.diff(ends))

    def __len__(self) -> int:
        return len(self.starts)

    def slice(self, start: int, stop: int) -> RaggedBytes:
        """Return strings start..stop, over the same bytes."""
        return RaggedBytes(self.data, self.starts[start:stop], self.lengths[start:stop])

    def words(self, position: int, rows: np.ndarray | None = None) -> np.ndarray:
        """Return uint64[n], bytes position..position+8 of each of `rows`, first byte highest."""
        starts = self.starts if rows is None else self.starts[rows]
        lengths = self.lengths if rows is None else self.lengths[rows]
        if position:
            starts = starts + np.minimum(lengths, position)
        words: np.ndarray = self._overlapping[starts]
        words.byteswap(inplace=True)
        left = lengths - position
        if len(left) and left.min() < 8:
            words &= _KEEP_LEFT[np.clip(left, 0, 8, out=left)]
        return words
