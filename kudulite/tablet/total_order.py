"""A total order over the values of any column, as arrays that other code can sort and compare.

    null  <  false < true  <  numbers  <  NaN      strings and binary by unsigned bytes
    arrays by their elements, a shorter one before those that it begins

Each column becomes one or several *sort keys*, arrays which compare one after the other and hold
no float. Loosely -0.0 equals 0.0 and every NaN every other, as comparisons have it everywhere;
exactly, only equal bits are equal, so that of two different rows one is always greater.

Threads: pure functions over immutable values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# The integers of a float's size, and the greatest of them.
_INTEGERS = {2: (np.int16, 0x7FFF), 4: (np.int32, 0x7FFFFFFF), 8: (np.int64, (1 << 63) - 1)}


def sort_keys(values: pa.Array, *, exact: bool) -> list[pa.Array]:
    """Return arrays of `len(values)` that compare, the first that differs deciding, as values do.

    Those of different arrays compare with each other only if they were made in one call.
    """
    keys = []
    if values.null_count:
        keys.append(values.is_valid().cast(pa.uint8()))
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return keys + _element_keys(values, exact)
    if pa.types.is_floating(values.type):
        return [*keys, _float_key(values, exact)]
    if pa.types.is_boolean(values.type):
        return [*keys, values.cast(pa.uint8())]
    return [*keys, values]


def sorted_positions(keys: Sequence[pa.Array]) -> np.ndarray:
    """Return int64[n]: the positions of rows in the order of sort keys, which compare in turn."""
    names = [str(number) for number in range(len(keys))]
    table = pa.Table.from_arrays(list(keys), names=names)
    order: pa.Array = pc.sort_indices(table, [(name, "ascending") for name in names])
    return np.asarray(order.to_numpy(), np.int64)


def last_of_runs(groups: np.ndarray) -> np.ndarray:
    """Return int64[m]: the last position of each run of equal numbers."""
    return np.flatnonzero(np.append(groups[1:] != groups[:-1], True)[: len(groups)])


def compare(left: Sequence[pa.Array], right: Sequence[pa.Array], *, exact: bool) -> np.ndarray:
    """Return int8[n]: -1, 0 or 1 where row i of the columns `left` is less than that of `right`,
    equal, or greater; the first column that differs decides.
    """
    count = len(left[0])
    sign = np.zeros(count, np.int8)
    for ours, theirs in zip(left, right, strict=True):
        for key in sort_keys(pa.concat_arrays([ours, theirs]), exact=exact):
            if sign.all():
                return sign
            first, second = key.slice(0, count), key.slice(count)
            open_rows = sign == 0
            sign[open_rows & _is_true(pc.greater(first, second))] = 1
            sign[open_rows & _is_true(pc.less(first, second))] = -1
    return sign


def equals_previous(keys: Sequence[pa.Array]) -> np.ndarray:
    """Return bool[n]: whether a row of the sort keys is equal to the row before it."""
    count = len(keys[0])
    equal = np.ones(count, dtype=bool)
    equal[:1] = False
    for key in keys:
        before, after = key.slice(0, max(0, count - 1)), key.slice(1)
        both_null = pc.and_(before.is_null(), after.is_null())
        equal[1:] &= _is_true(pc.equal(before, after)) | _is_true(both_null)
    return equal


def _is_true(flags: pa.Array) -> np.ndarray:
    return np.asarray(pc.fill_null(flags, False).to_numpy(zero_copy_only=False))


def _float_key(values: pa.Array, exact: bool) -> pa.Array:
    """Return integers whose order is that of floats."""
    numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False)
    if not exact:
        numbers = np.where(np.isnan(numbers), np.array(np.nan, numbers.dtype), numbers)
        numbers = numbers + np.array(0.0, numbers.dtype)  # -0.0 + 0.0 is 0.0
    integer, greatest = _INTEGERS[numbers.dtype.itemsize]
    bits = np.ascontiguousarray(numbers).view(integer)
    # The greater a negative float, the smaller its bits; all but the sign are turned round.
    return pa.array(np.where(bits < 0, bits ^ integer(greatest), bits))


def _element_keys(lists: pa.Array, exact: bool) -> list[pa.Array]:
    """Return the keys of the first elements of lists, then of the second ones, …; their lengths
    go between: a list that has ended is less than one that goes on.
    """
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    starts = lists.offsets.to_numpy(zero_copy_only=False)[:-1]
    keys: list[pa.Array] = []
    for place in range(int(lengths.max(initial=0))):
        goes_on = lengths > place
        keys.append(pa.array(goes_on.astype(np.uint8)))
        at = pa.array(starts + place, mask=~goes_on)
        keys += sort_keys(lists.values.take(at), exact=exact)
    return keys or [pa.array(np.zeros(len(lists), np.uint8))]
