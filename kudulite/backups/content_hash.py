"""Content hash of a table: 64 bits that do not depend on where a row lies or when it is met.

    cell = mix of its bytes, 8 at a time      row = mix of its cells, in the order of columns
    content = the sum of all rows, modulo 2**64

Sums over tablets or key ranges add up, so the work can be spread. Equal tables have equal sums;
two tables that differ in any cell have equal ones with a chance of 2**-64. It is no defence against
who forges rows on purpose.

Whole columns throughout. Floats count by their bits, so NaN equals itself and -0.0 is not 0.0.

Source: the mixing is splitmix64's (Steele, Lea, Flood: Fast splittable pseudorandom number
generators, 2014).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.backups.format import ContentSum
from kudulite.model.ragged_bytes import RaggedBytes

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0x5851F42D4C957F2D)


def content_sum(batches: Iterable[pa.RecordBatch]) -> ContentSum:
    """Return the sum over all rows of the batches, which have the same columns."""
    total = ContentSum(0, 0)
    for batch in batches:
        total += batch_sum(batch)
    return total


def batch_sum(batch: pa.RecordBatch) -> ContentSum:
    """Return the sum over the rows of one batch."""
    rows = np.zeros(batch.num_rows, np.uint64)
    for column in batch.columns:
        rows = _mixed(rows ^ _cells(column))
    return ContentSum(batch.num_rows, int(rows.sum(dtype=np.uint64)))


def _mixed(words: np.ndarray) -> np.ndarray:
    """Return splitmix64 of every word."""
    words = words + _STEP
    words ^= words >> np.uint64(30)
    words *= _FIRST
    words ^= words >> np.uint64(27)
    words *= _SECOND
    words ^= words >> np.uint64(31)
    return words


def _cells(array: pa.Array) -> np.ndarray:
    """Return uint64[n], one hash per cell; null is a value of its own."""
    if pa.types.is_list(array.type):
        hashes = _lists(array)
    elif pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        hashes = _strings(RaggedBytes.from_arrow(array.cast(pa.binary())))
    else:
        hashes = np.zeros(len(array), np.uint64)
        for words in _words(array):
            hashes = _mixed(hashes ^ words)
    if array.null_count:
        hashes[pc.is_null(array).to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _words(array: pa.Array) -> list[np.ndarray]:
    """Return the cells of a type of fixed width as columns of uint64; anything for null."""
    kind, count = array.type, len(array)
    if pa.types.is_boolean(kind):
        return [array.fill_null(False).cast(pa.uint8()).to_numpy().astype(np.uint64)]
    width = kind.byte_width
    values = array.buffers()[1]
    if values is None or count == 0:
        return [np.zeros(count, np.uint64)]
    if width % 8 == 0:
        each = width // 8
        found = np.frombuffer(values, "<u8", count * each, array.offset * width)
        return [found[place::each] for place in range(each)]
    return [np.frombuffer(values, f"<u{width}", count, array.offset * width).astype(np.uint64)]


def _strings(strings: RaggedBytes) -> np.ndarray:
    hashes = _mixed(strings.lengths.astype(np.uint64))
    longest = int(strings.lengths.max(initial=0))
    for position in range(0, longest, 8):
        rows = np.flatnonzero(strings.lengths > position)
        hashes[rows] = _mixed(hashes[rows] ^ strings.words(position, rows))
    return hashes


def _lists(array: pa.Array) -> np.ndarray:
    """Return the hash of each list: of its length and its elements with their places."""
    offsets = array.offsets.to_numpy().astype(np.int64)
    lengths = np.diff(offsets)
    elements = _cells(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
    starts = offsets[:-1] - offsets[0]
    places = np.arange(len(elements)) - np.repeat(starts, lengths)
    elements = _mixed(elements ^ _mixed(places.astype(np.uint64)))
    # A list that is empty ends where the next begins, so sums are differences of running sums.
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(elements, dtype=np.uint64)])
    return _mixed(lengths.astype(np.uint64)) ^ (running[starts + lengths] - running[starts])
