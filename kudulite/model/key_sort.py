"""Stable sort order of rows by several numbers, most significant first, without comparing rows.

Rows are given as digits: functions that return one uint64 per row. As many leading digits as fit
are packed, each reduced to the bits in which it varies, together with the row number, into one
uint64. Sorting those as plain numbers (numpy does it with SIMD, five times faster than an argsort)
gives the order and keeps it stable. Rows that are still equal are refined by the digits that did
not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

# digit(rows) -> uint64[len(rows)]; None means all rows
Digit = Callable[[np.ndarray | None], np.ndarray]
_ALL_BITS = 2**64 - 1


def stable_order(row_count: int, digits: Sequence[Digit]) -> np.ndarray:
    """int64[row_count]: row numbers in ascending order of their digits, equal ones in row order."""
    if row_count < 2:
        return np.arange(row_count, dtype=np.int64)
    return _order(None, row_count, None, list(digits), _ALL_BITS)


def _order(
    rows: np.ndarray | None,
    row_count: int,
    rank: np.ndarray | None,
    digits: list[Digit],
    first_mask: int,
) -> np.ndarray:
    """Order of `rows` by (rank, digits); of the first digit only the bits in `first_mask` count."""
    index_bits = (row_count - 1).bit_length()
    room = 64 - index_bits
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
            # Only the upper bits fit; the lower ones come in the next round.
            bits = (int(digit.max())).bit_length()
            mask = (1 << (bits - room)) - 1
            packed = (packed << np.uint64(room)) | (digit >> np.uint64(bits - room))
            room = 0
            break
        if bits:
            packed = (packed << np.uint64(bits)) | digit
        room -= bits
        used, mask = used + 1, _ALL_BITS
    order = _order_of_packed(packed, index_bits)
    if used < len(digits):
        _refine(order, packed, rows, digits[used:], mask)
    return order


def _order_of_packed(packed: np.ndarray, index_bits: int) -> np.ndarray:
    keyed = packed << np.uint64(index_bits)
    keyed |= np.arange(len(packed), dtype=np.uint64)
    keyed.sort()
    keyed &= np.uint64((1 << index_bits) - 1)
    return keyed.view(np.int64)


def _refine(
    order: np.ndarray,
    packed: np.ndarray,
    rows: np.ndarray | None,
    digits: list[Digit],
    mask: int,
) -> None:
    """Put rows that are equal in `packed` into the order of the remaining digits, in place."""
    ordered = packed[order]
    same = ordered[1:] == ordered[:-1]
    if not same.any():
        return
    tied = np.zeros(len(order), bool)
    tied[1:] |= same
    tied[:-1] |= same
    places = np.flatnonzero(tied)
    is_first = np.ones(len(places), bool)
    is_first[1:] = ordered[places[1:]] != ordered[places[:-1]]
    rank = np.cumsum(is_first) - 1
    tied_order = order[places]
    tied_rows = tied_order if rows is None else rows[tied_order]
    order[places] = tied_order[_order(tied_rows, len(places), rank, digits, mask)]
