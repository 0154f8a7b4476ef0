"""Many encoded keys in one array, compared as unsigned bytes by whole-array operations.

Three storages, chosen by the width of the key:

    width 1..8   uint64[n], the key read as a big-endian number
    width > 8    numpy S{width}[n]; numpy ignores trailing NULs, which equal widths make exact
    None         Arrow binary (or large_binary over 2 GiB): keys with a string, shorter prefix first

Keys are sorted without comparing rows. A row is a list of digits, most significant first: functions
that return one uint64 per row. As many leading digits as fit are packed, each reduced to the bits
in which it varies, together with the row number, into one uint64. Sorting these as plain numbers
(numpy does it with SIMD, five times faster than an argsort) gives the order and keeps it stable.
Rows that are still equal are refined by the digits that did not fit.

**Threads**: any; arrays are immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.errors import CorruptionError
from kudulite.model.key_hash import (
    RaggedBytes,
    binary_parts,
    hash64_fixed,
    hash64_ragged,
    murmur3_fixed,
    murmur3_ragged,
)

Side = Literal["left", "right"]
_BINARY_BYTES_MAX = 2**31 - 1  # what 32-bit offsets reach
_FIRST_KEYS = 1024
_SAMPLE_ROWS = 1024
_DICTIONARY_BYTES_MIN = 24  # shorter keys hash faster than a dictionary is built

# digit(rows) -> uint64[len(rows)]; None means all rows
Digit = Callable[[np.ndarray | None], np.ndarray]
_ALL_BITS = 2**64 - 1


class KeyArray:
    """n encoded keys, all of `width` bytes, or of any length where `width` is None."""

    __slots__ = ("_parts", "values", "width")

    def __init__(self, values: Any, width: int | None) -> None:
        """Wrap storage in its final form: uint64[n], S{width}[n], or a binary array."""
        if width is None:
            assert isinstance(values, (pa.BinaryArray, pa.LargeBinaryArray)), type(values)
        else:
            assert values.dtype == (np.uint64 if width <= 8 else np.dtype(f"S{width}"))
        self.values = values
        self.width = width
        self._parts: tuple[np.ndarray, memoryview] | None = None

    def __reduce__(self) -> tuple[type[KeyArray], tuple[Any, int | None]]:
        """Pickle without the parts that are kept for speed only."""
        return (KeyArray, (self.values, self.width))

    # --- to and from other forms

    @classmethod
    def from_bytes(cls, keys: Sequence[bytes], width: int | None) -> KeyArray:
        """Return keys from Python bytes, each of `width` bytes if that is given."""
        return cls.from_arrow(pa.array(keys, pa.binary()), width)

    @classmethod
    def from_arrow(cls, array: pa.Array | pa.ChunkedArray, width: int | None) -> KeyArray:
        """Return keys from a binary, large_binary or fixed_size_binary array without nulls.

        No copy where width is above 8 or None. CorruptionError if a key has another width.
        """
        if isinstance(array, pa.ChunkedArray):
            parts = [cls.from_arrow(chunk, width) for chunk in array.chunks]
            return cls.concat(parts) if parts else cls.from_bytes([], width)
        if width is None:
            if not isinstance(array, (pa.BinaryArray, pa.LargeBinaryArray)):
                array = array.cast(pa.binary())
            return cls(array, None)
        if array.null_count:
            raise CorruptionError(f"{array.null_count} of {len(array)} encoded keys are null")
        if pa.types.is_fixed_size_binary(array.type):
            found = {array.type.byte_width}
            data = np.zeros(0, np.uint8)
            if len(array):
                data = np.frombuffer(array.buffers()[1], np.uint8)[array.offset * width :]
        else:
            offsets, data = binary_parts(array)
            found = set(np.unique(np.diff(offsets)).tolist())
            data = data[int(offsets[0]) :]
        if found - {width}:
            raise CorruptionError(f"encoded keys of {sorted(found)} bytes, expected {width}")
        data = data[: len(array) * width]
        if width > 8:
            return cls(data.view(f"S{width}"), width)
        if width < 8:
            padded = np.zeros((len(array), 8), np.uint8)
            padded[:, 8 - width :] = data.reshape(-1, width)
            data = padded.reshape(-1)
        return cls(data.view(">u8").astype(np.uint64), width)

    def to_arrow(self) -> pa.Array:
        """Return the keys as fixed_size_binary(width), or (large_)binary."""
        if self.width is None:
            return self.values
        data = np.ascontiguousarray(self._byte_rows())
        return pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(self.width), len(self), [None, pa.py_buffer(data)]
        )

    def _byte_rows(self) -> np.ndarray:
        """Return uint8[n, width], the bytes of fixed-width keys."""
        assert self.width is not None
        if self.width > 8:
            return np.ascontiguousarray(self.values).view(np.uint8).reshape(-1, self.width)
        words: np.ndarray = self.values.astype(">u8")
        return words.view(np.uint8).reshape(-1, 8)[:, 8 - self.width :]

    def ragged(self) -> RaggedBytes:
        """Return the bytes of variable-length keys, for word-wise work."""
        assert self.width is None
        return RaggedBytes.from_arrow(self.values)

    def left_words(self, index: int, rows: slice = slice(None)) -> np.ndarray:
        """Return uint64, bytes 8·index..8·index+8 of fixed-width keys, first highest, 0-padded."""
        assert self.width is not None
        if self.width <= 8:
            words: np.ndarray = self.values[rows] << np.uint64(64 - 8 * self.width)
            return words
        start, stop = 8 * index, min(8 * index + 8, self.width)
        matrix = np.ascontiguousarray(self.values[rows]).view(np.uint8).reshape(-1, self.width)
        if stop - start == 8:
            return _strided(matrix, start, ">u8").astype(np.uint64)
        padded = np.zeros((len(matrix), 8), np.uint8)
        padded[:, : stop - start] = matrix[:, start:stop]
        return padded.view(">u8")[:, 0].astype(np.uint64)

    # --- one key

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> bytes:
        count = len(self.values)
        if not -count <= index < count:
            raise IndexError(f"key {index} of {count}")
        if self.width is None:
            offsets, view = self._variable_parts()
            index %= count
            return bytes(view[offsets.item(index) : offsets.item(index + 1)])
        if self.width <= 8:
            return int(self.values[index]).to_bytes(self.width, "big")
        return bytes(self.values[index]).ljust(self.width, b"\0")

    def to_list(self) -> list[bytes]:
        """Return all keys as Python bytes."""
        if self.width is None:
            return list(self.values.to_pylist())
        data, width = self._byte_rows().tobytes(), self.width
        return [data[start : start + width] for start in range(0, len(data), width)]

    def __iter__(self) -> Iterator[bytes]:
        return (self[i] for i in range(len(self)))

    def _variable_parts(self) -> tuple[np.ndarray, memoryview]:
        if self._parts is None:
            offsets, data = binary_parts(self.values)
            self._parts = (offsets, data.data)
        return self._parts

    @property
    def nbytes(self) -> int:
        """The size of the keys in memory, in bytes."""
        return int(self.values.nbytes)

    # --- many keys

    def take(self, rows: np.ndarray) -> KeyArray:
        """Return the keys at `rows`, in that order."""
        if self.width is not None:
            return KeyArray(self.values[rows], self.width)
        indices = pa.array(rows)
        try:
            return KeyArray(self.values.take(indices), None)
        except pa.ArrowInvalid:  # over 2 GiB
            return KeyArray(self.values.cast(pa.large_binary()).take(indices), None)

    def slice(self, start: int, stop: int) -> KeyArray:
        """Return keys start..stop without a copy; `stop` may be beyond the end."""
        start, stop, _ = slice(start, stop).indices(len(self))
        if self.width is not None:
            return KeyArray(self.values[start:stop], self.width)
        return KeyArray(self.values.slice(start, max(0, stop - start)), None)

    @classmethod
    def concat(cls, parts: Sequence[KeyArray]) -> KeyArray:
        """Return all keys of `parts` (at least one, all of one width), one after the other."""
        width = parts[0].width
        assert all(part.width == width for part in parts)
        if len(parts) == 1:
            return parts[0]
        if width is not None:
            return cls(np.concatenate([part.values for part in parts]), width)
        arrays = [part.values for part in parts]
        large = any(pa.types.is_large_binary(array.type) for array in arrays)
        if large or sum(array.nbytes for array in arrays) > _BINARY_BYTES_MAX:
            arrays = [array.cast(pa.large_binary()) for array in arrays]
        return cls(pa.concat_arrays(arrays), None)

    # --- order

    def is_sorted(self, strict: bool = False) -> bool:
        """Return whether keys ascend; with `strict`, whether no two are equal either."""
        if len(self) < 2:
            return True
        if len(self) > 2 * _FIRST_KEYS and not self.slice(0, _FIRST_KEYS).is_sorted(strict):
            return False  # unsorted keys usually fail here
        if self.width is None:
            earlier, later = self.values.slice(0, len(self) - 1), self.values.slice(1)
            ascending = pc.less(earlier, later) if strict else pc.less_equal(earlier, later)
            return bool(pc.all(ascending).as_py())
        earlier, later = self.values[:-1], self.values[1:]
        return bool((earlier < later).all() if strict else (earlier <= later).all())

    def sort_order(self) -> np.ndarray:
        """Return int64[n], positions in ascending key order; equal keys keep their order."""
        if self.is_sorted():
            return np.arange(len(self), dtype=np.int64)
        return stable_order(len(self), self._digits())

    def _digits(self) -> list[Digit]:
        """Return the keys as numbers to sort by, most significant first."""
        if self.width is None:
            ragged = self.ragged()
            positions = range(0, int(ragged.lengths.max()), 8)
            digits: list[Digit] = [
                lambda rows, position=position: ragged.words(position, rows)  # type: ignore[misc]
                for position in positions
            ]
            # Padding with zeros hides trailing NULs; the shorter key sorts first.
            all_lengths = ragged.lengths.astype(np.uint64)
            return [*digits, lambda rows: all_lengths if rows is None else all_lengths[rows]]
        if self.width <= 8:
            return [lambda rows: self.values if rows is None else self.values[rows]]
        # Four bytes at a time, so that a column's constant upper half takes no room when packed.
        matrix = self._byte_rows()
        return [
            lambda rows, start=start: _four_bytes(matrix, start, rows)  # type: ignore[misc]
            for start in range(0, self.width, 4)
        ]

    def equals_previous(self) -> np.ndarray:
        """Return bool[n], whether key i equals key i - 1; False for the first."""
        result = np.zeros(len(self), bool)
        if len(self) > 1:
            if self.width is None:
                same = pc.equal(self.values.slice(1), self.values.slice(0, len(self) - 1))
                result[1:] = same.to_numpy(zero_copy_only=False)
            elif self.width <= 8:
                result[1:] = self.values[1:] == self.values[:-1]
            else:
                result[1:] = _equal_neighbours(self._byte_rows())
        return result

    # --- search

    def search_sorted(self, probes: KeyArray, side: Side = "left") -> np.ndarray:
        """Return int64[m], each probe's place in these ascending keys, before or after equals."""
        assert probes.width == self.width
        if not probes.is_sorted():
            return searched_in_order(probes, lambda ascending: self.search_sorted(ascending, side))
        if self.width is not None:
            places: np.ndarray = np.searchsorted(self.values, probes.values, side)
            return places
        values, needles = self.values, probes.values
        if values.type != needles.type:
            values, needles = values.cast(pa.large_binary()), needles.cast(pa.large_binary())
        found = pc.search_sorted(values, needles, side=side)
        return np.asarray(found).astype(np.int64)

    def find(self, probes: KeyArray) -> np.ndarray:
        """Return int64[m], where each probe is among these strictly ascending keys, or -1."""
        assert probes.width == self.width
        if len(self) == 0 or len(probes) == 0:
            return np.full(len(probes), -1, np.int64)
        if not probes.is_sorted():
            return searched_in_order(probes, self.find)
        places = self.search_sorted(probes)
        candidates = np.minimum(places, len(self) - 1)
        if self.width is None:
            there = pc.equal(self.take(candidates).values, probes.values)
            hit = there.to_numpy(zero_copy_only=False)
        else:
            hit = self.values[candidates] == probes.values
        return np.where(hit, candidates, -1)

    def locate(self, key: bytes, side: Side = "left") -> int:
        """Return how many of these ascending keys are < `key` (left) or ≤ it (right).

        `key` may have any length: it is a bound, which need not be a whole key.
        """
        if self.width is None:
            return self._locate_variable(key, side)
        key, side = fitted_bound(key, self.width, side)
        if self.width <= 8:
            return int(self.values.searchsorted(np.uint64(int.from_bytes(key, "big")), side))
        return int(self.values.searchsorted(np.array(key, self.values.dtype), side))

    def _locate_variable(self, key: bytes, side: Side) -> int:
        low, high = 0, len(self)
        offsets, view = self._variable_parts()
        offset = offsets.item
        while low < high:
            middle = (low + high) // 2
            found = bytes(view[offset(middle) : offset(middle + 1)])
            if found < key or (found == key and side == "right"):
                low = middle + 1
            else:
                high = middle
        return low

    # --- hash

    def hash64(self, seed: int = 0) -> np.ndarray:
        """Return uint64[n], the hash of bloom filters; key_hash.py defines it."""
        if self.width is None:
            return hash64_ragged(self.ragged(), seed)
        return hash64_fixed(len(self), self.width, self.left_words, seed)

    def murmur3(self, seed: int) -> np.ndarray:
        """Return uint32[n], the hash of hash partitions; key_hash.py defines it."""
        if self.width is not None:
            return murmur3_fixed(len(self), self.width, self.left_words, seed)
        if not self._dictionary_pays():
            return murmur3_ragged(self.ragged(), seed)
        encoded = self.values.dictionary_encode()
        distinct = KeyArray(encoded.dictionary, None)
        hashes: np.ndarray = murmur3_ragged(distinct.ragged(), seed)[encoded.indices.to_numpy()]
        return hashes

    def _dictionary_pays(self) -> bool:
        count = len(self)
        if count < 8 * _SAMPLE_ROWS or self.nbytes < (_DICTIONARY_BYTES_MIN + 4) * count:
            return False
        sample = self.take(np.linspace(0, count - 1, _SAMPLE_ROWS).astype(np.int64))
        return len(sample.values.unique()) < _SAMPLE_ROWS // 4


def fitted_bound(key: bytes, width: int, side: Side) -> tuple[bytes, Side]:
    """Return a bound of `width` bytes, and a side, at the same place among keys of that width."""
    if len(key) < width:
        # Every key that starts with it is above it, for either side.
        return key.ljust(width, b"\0"), "left"
    return (key[:width], "right") if len(key) > width else (key, side)


def searched_in_order(probes: KeyArray, search: Callable[[KeyArray], np.ndarray]) -> np.ndarray:
    """Return int64[m], the results of `search` on the sorted `probes`, in the order of `probes`.

    A search in random order misses the cache at every step, which is 15 times slower.
    """
    order = probes.sort_order()
    result = np.empty(len(probes), np.int64)
    result[order] = search(probes.take(order))
    return result


def _equal_neighbours(matrix: np.ndarray) -> np.ndarray:
    """Return bool[n - 1], whether row i + 1 of uint8[n, width ≥ 8] equals row i."""
    count, width = matrix.shape
    result = np.ones(count - 1, bool)
    for start in {*range(0, width - 7, 8), width - 8}:  # the last word may overlap the one before
        words = _strided(matrix, start, "<u8")
        result &= words[1:] == words[:-1]
    return result


def _strided(matrix: np.ndarray, start: int, dtype: str) -> np.ndarray:
    """Return a view of the `dtype` at byte `start` of each row of uint8[n, width]."""
    return np.ndarray((len(matrix),), dtype, matrix, start, (matrix.strides[0],))


def _four_bytes(matrix: np.ndarray, start: int, rows: np.ndarray | None) -> np.ndarray:
    """Return uint64[n], bytes start..start+4 of each row (fewer at the end), first byte highest."""
    stop = min(start + 4, matrix.shape[1])
    if stop - start == 4 and len(matrix):
        words = _strided(matrix, start, ">u4")
        return (words if rows is None else words[rows]).astype(np.uint64)
    result = np.zeros(len(matrix) if rows is None else len(rows), np.uint64)
    for column in range(start, stop):
        part = matrix[:, column] if rows is None else matrix[rows, column]
        result = (result << np.uint64(8)) | part
    return result


def stable_order(row_count: int, digits: Sequence[Digit]) -> np.ndarray:
    """Return int64[row_count], the rows in ascending order of their digits, stable.

    As many digits as fit 64 bits are sorted at once; rows that are equal in them are sorted by the
    next ones, and so on.
    """
    order: np.ndarray = np.arange(row_count, dtype=np.int64)
    if row_count < 2:
        return order
    left, mask = list(digits), _ALL_BITS
    # Those that are not in order yet; None stands for all.
    places: np.ndarray | None = None
    rows: np.ndarray | None = None
    rank: np.ndarray | None = None
    while left:
        count = row_count if rows is None else len(rows)
        packed, left, mask = _packed(rows, count, rank, left, mask)
        own = _order_of_packed(packed, (count - 1).bit_length())
        if places is None or rows is None:
            order = own
        else:
            order[places] = rows[own]
        ordered = packed[own]
        same = ordered[1:] == ordered[:-1]
        if not same.any():
            break
        tied = np.zeros(count, bool)
        tied[1:] |= same
        tied[:-1] |= same
        at = np.flatnonzero(tied)
        is_first = np.ones(len(at), bool)
        is_first[1:] = ordered[at[1:]] != ordered[at[:-1]]
        places = at if places is None else places[at]
        rows, rank = order[places], np.cumsum(is_first) - 1
    return order


def _packed(
    rows: np.ndarray | None,
    row_count: int,
    rank: np.ndarray | None,
    digits: list[Digit],
    first_mask: int,
) -> tuple[np.ndarray, list[Digit], int]:
    """Return (rank, digits) of `rows` in uint64[n], as far as they fit beside a row's number.

    `first_mask` are the bits of the first digit that count. Also returns the digits that are left,
    and the bits of their first one.
    """
    room = 64 - (row_count - 1).bit_length()
    packed = np.zeros(row_count, np.uint64)
    if rank is not None:
        packed = rank.astype(np.uint64)
        room -= int(rank[-1]).bit_length()  # ranks ascend from 0
    used, mask = 0, first_mask
    while used < len(digits) and room > 0:
        digit = digits[used](rows)
        if mask != _ALL_BITS:
            digit = digit & np.uint64(mask)
        low = int(digit.min())
        bits = (int(digit.max()) - low).bit_length()
        if low and bits <= room:
            digit = digit - np.uint64(low)
        if bits > room:
            # Only the upper bits fit; the next round takes the lower ones.
            bits = (int(digit.max())).bit_length()
            mask = (1 << (bits - room)) - 1
            packed = (packed << np.uint64(room)) | (digit >> np.uint64(bits - room))
            break
        if bits:
            packed = (packed << np.uint64(bits)) | digit
        room -= bits
        used, mask = used + 1, _ALL_BITS
    return packed, digits[used:], mask


def _order_of_packed(packed: np.ndarray, index_bits: int) -> np.ndarray:
    keyed = packed << np.uint64(index_bits)
    keyed |= np.arange(len(packed), dtype=np.uint64)
    keyed.sort()
    keyed &= np.uint64((1 << index_bits) - 1)
    return keyed.view(np.int64)
