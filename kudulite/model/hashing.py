"""The hash that chooses a row's bucket: MurmurHash3 (x86, 32 bits) of the encoded key bytes.

The bytes are the hash dimension's columns, in the dimension's order, encoded as in encoded_key.py.
Arrays are hashed by whole-array arithmetic, some thousand rows at a time so that they stay in the
processor's cache; the result is bit-equal to `mmh3.hash(key, seed, signed=False)`.

The hash decides which tablet holds a row and so reaches the disk: do not change it.
"""

from __future__ import annotations

import mmh3
import numpy as np

from kudulite.model.key_array import KeyArray
from kudulite.model.key_hash import RaggedBytes

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_CHUNK_ROWS = 16384
_SAMPLE_ROWS = 1024
_DICTIONARY_BYTES_MIN = 24  # shorter keys hash faster than a dictionary is built


def hash_bucket(key: bytes, seed: int, bucket_count: int) -> int:
    """Return the bucket of one encoded key: murmur3 of it, unsigned, modulo `bucket_count`."""
    return mmh3.hash(key, seed, signed=False) % bucket_count


def hash_buckets(keys: KeyArray, seed: int, bucket_count: int) -> np.ndarray:
    """Return the bucket of every key, as uint16[n] (uint32[n] for more than 65536 buckets)."""
    assert bucket_count >= 1
    hashes = murmur3(keys, seed)
    quotient = hashes // np.uint32(bucket_count)  # numpy has SIMD division by a scalar, not modulo
    quotient *= np.uint32(bucket_count)
    hashes -= quotient
    return hashes.astype(np.uint16) if bucket_count <= 65536 else hashes


def murmur3(keys: KeyArray, seed: int) -> np.ndarray:
    """Return uint32[n], `mmh3.hash(key, seed, signed=False)` of every key."""
    seed &= 0xFFFFFFFF
    if keys.width is not None:
        return _murmur3_fixed(keys, keys.width, seed)
    if _dictionary_pays(keys):
        encoded = keys.values.dictionary_encode()
        distinct = KeyArray(encoded.dictionary, None)
        hashes: np.ndarray = _murmur3_ragged(distinct.ragged(), seed)[encoded.indices.to_numpy()]
        return hashes
    return _murmur3_ragged(keys.ragged(), seed)


def _dictionary_pays(keys: KeyArray) -> bool:
    count = len(keys)
    if count < 8 * _SAMPLE_ROWS or keys.nbytes < (_DICTIONARY_BYTES_MIN + 4) * count:
        return False
    sample = keys.take(np.linspace(0, count - 1, _SAMPLE_ROWS).astype(np.int64))
    return len(sample.values.unique()) < _SAMPLE_ROWS // 4


def _murmur3_fixed(keys: KeyArray, width: int, seed: int) -> np.ndarray:
    state = np.full(len(keys), seed, np.uint32)
    for start in range(0, len(keys), _CHUNK_ROWS):
        rows = slice(start, min(start + _CHUNK_ROWS, len(keys)))
        part = state[rows]
        for index in range((width + 7) // 8):
            for half, block in enumerate(_blocks(keys.left_words(index, rows))):
                left = width - 8 * index - 4 * half
                if left >= 4:
                    _add_block(part, block)
                elif left > 0:
                    part ^= _scramble(block)
        part ^= np.uint32(width)
        _finish(part)
    return state


def _murmur3_ragged(keys: RaggedBytes, seed: int) -> np.ndarray:
    state = np.full(len(keys), seed, np.uint32)
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
