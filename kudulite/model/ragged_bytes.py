"""Byte strings of different lengths in one buffer, read eight bytes at a time for all rows at once.

Numpy cannot hold such strings, but it can gather an (unaligned) word at any byte position: row i's
k-th word is one indexed load. Bytes beyond the end of a string read as zeros."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

_PADDING = 8  # so that a word may be loaded at the last byte
_KEEP_LEFT = np.array([(2**64 - 1) ^ (2 ** (64 - 8 * n) - 1) for n in range(9)], np.uint64)


def binary_parts(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Offsets (int32 or int64, n + 1) and data bytes of a binary or large_binary array, no copy."""
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
        """A copy of the bytes of a binary or large_binary array."""
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
        """Strings start..stop, over the same bytes."""
        return RaggedBytes(self.data, self.starts[start:stop], self.lengths[start:stop])

    def words(self, position: int, rows: np.ndarray | None = None) -> np.ndarray:
        """uint64[n]: bytes position..position+8 of each string (of `rows`), first byte highest."""
        starts = self.starts if rows is None else self.starts[rows]
        lengths = self.lengths if rows is None else self.lengths[rows]
        if position:
            starts = starts + np.minimum(lengths, position)
        words = self._overlapping[starts]
        words.byteswap(inplace=True)
        left = lengths - position
        if len(left) and left.min() < 8:
            words &= _KEEP_LEFT[np.clip(left, 0, 8, out=left)]
        return words
