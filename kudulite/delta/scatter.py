"""Replaces and selects cells of a column block in as few passes over the bytes as there can be.

    result = (base with values[i] at positions[i])[selected]

Fixed-width columns are copied once and written in place through numpy, nulls as a separate bool
array. Text is chosen row by row between base and the new values, which are spread over as many rows
without a copy of their bytes; with a selection, and in lists, it is gathered once from both
together. That is two to four times faster than a masked replace and a filter one after the other.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# numpy types that move 1, 2, 4, 8 and 16 bytes at once; what the bytes mean does not matter.
_CARRIERS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64, 128: np.complex128}


def select(base: pa.Array, selected: np.ndarray | None) -> pa.Array:
    """Return `base` at the int64[m] ascending positions `selected`; None is all of it."""
    if selected is None:
        return base
    if _carrier(base) is None or base.null_count:
        return base.take(pa.array(selected))
    return _from_numpy(base.type, _values(base)[selected], None)


def scatter(
    base: pa.Array, positions: np.ndarray, values: pa.Array, selected: np.ndarray | None = None
) -> pa.Array:
    """Return `base` with `values[i]` at `positions[i]` (strictly ascending), then `selected`."""
    carrier = _carrier(base)
    if carrier is not None:
        return _scatter_fixed(base, positions, values, selected)
    if pa.types.is_boolean(base.type):
        is_new = pa.array(_flags(positions, len(base)))
        return select(pc.replace_with_mask(base, is_new, values), selected)
    if selected is None and (pa.types.is_string(base.type) or pa.types.is_binary(base.type)):
        # Quicker than `pa.array`.
        bits = _bitmap(_flags(positions, len(base)))
        is_new = pa.Array.from_buffers(pa.bool_(), len(base), [None, bits])
        return pc.if_else(is_new, _spread(values, positions, len(base)), base)
    source = np.arange(len(base), dtype=np.int64)
    source[positions] = len(base) + np.arange(len(positions))
    if selected is not None:
        source = source[selected]
    return pa.concat_arrays([base, values]).take(pa.array(source))


def _scatter_fixed(
    base: pa.Array, positions: np.ndarray, values: pa.Array, selected: np.ndarray | None
) -> pa.Array:
    cells = _values(base).copy()
    cells[positions] = _values(values)
    valid = None
    if base.null_count or values.null_count:
        valid = _validity(base)
        valid[positions] = _validity(values)
    if selected is not None:
        cells = cells[selected]
        valid = None if valid is None else valid[selected]
    return _from_numpy(base.type, cells, valid)


def _spread(values: pa.Array, positions: np.ndarray, count: int) -> pa.Array:
    """Return `count` texts with `values[i]` at `positions[i]`; what the others are, is open."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32, values.offset + len(values) + 1)[values.offset :]
    spread = np.zeros(count + 1, np.int32)
    spread[0] = ends[0]
    spread[positions + 1] = np.diff(ends)
    np.cumsum(spread, out=spread)
    valid = None
    if values.null_count:
        valid = np.zeros(count, dtype=bool)
        valid[positions] = _validity(values)
    buffers = [_bitmap(valid), pa.py_buffer(spread), data]
    return pa.Array.from_buffers(values.type, count, buffers)


def _flags(positions: np.ndarray, count: int) -> np.ndarray:
    """Return bool[count], true at `positions`."""
    flags = np.zeros(count, dtype=bool)
    flags[positions] = True
    return flags


def _bitmap(flags: np.ndarray | None) -> pa.Buffer | None:
    """Return bool[n] as Arrow packs it; None stays None."""
    return None if flags is None else pa.py_buffer(np.packbits(flags, bitorder="little"))


def _carrier(array: pa.Array) -> type | None:
    """Return the numpy type that moves the array's cells, None for bool and variable width."""
    if pa.types.is_boolean(array.type):
        return None
    try:
        return _CARRIERS.get(array.type.bit_width)
    except ValueError:  # no fixed width
        return None


def _values(array: pa.Array) -> np.ndarray:
    """Return the cells' bytes as numbers, null cells included."""
    carrier = _carrier(array)
    assert carrier is not None
    buffer = array.buffers()[1]
    if buffer is None:  # all null, and never written
        return np.zeros(len(array), carrier)
    return np.frombuffer(buffer, carrier, array.offset + len(array))[array.offset :]


def _validity(array: pa.Array) -> np.ndarray:
    """Return bool[n], a copy: which cells are not null."""
    if not array.null_count:
        return np.ones(len(array), dtype=bool)
    return np.array(array.is_valid().to_numpy(zero_copy_only=False))


def _from_numpy(arrow_type: pa.DataType, cells: np.ndarray, valid: np.ndarray | None) -> pa.Array:
    return pa.Array.from_buffers(arrow_type, len(cells), [_bitmap(valid), pa.py_buffer(cells)])
