"""Scatter: new values laid over an array of cells, in as few passes over the bytes as possible.

    result = (base with values[i] at positions[i])[selected]

Fixed-width columns are written in place through numpy, with nulls as a separate bool array, and so
is text of which all values have one width; a base that others may read is copied before. Other text
without a selection is chosen row by row between the base and the new values, which are spread over
the rows without copying their bytes. Other text with a selection, and lists, are gathered once from
both together. This is two to four times faster than a masked replace followed by a filter.

Few rows of many columns are gathered column by column in one call of Arrow (`laid_over`), which
other threads do not wait for.

**Threads**: any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# numpy types that move 1, 2, 4, 8 and 16 bytes at once; the meaning of the bytes does not matter.
_CARRIER_OF_BITS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64, 128: np.complex128}
# By type id, because a type's width is slow to ask for: Arrow raises an error where it has none.
_CARRIERS = {
    arrow_type.id: _CARRIER_OF_BITS[arrow_type.bit_width]
    for arrow_type in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
        *(pa.uint64(), pa.float32(), pa.float64(), pa.date32(), pa.timestamp("us")),
        pa.decimal128(1),
    )
}


def select(base: pa.Array, selected: np.ndarray | None) -> pa.Array:
    """Return `base` at the int64[m] positions `selected`; None is all of it."""
    if selected is None:
        return base
    if _carrier(base) is None or base.null_count:
        return base.take(pa.array(selected))
    return _from_numpy(base.type, _values(base)[selected], None)


def scatter(
    base: pa.Array,
    positions: np.ndarray,
    values: pa.Array,
    selected: np.ndarray | None = None,
    *,
    is_own: bool = False,
) -> pa.Array:
    """Return `base` with `values[i]` at `positions[i]` (strictly ascending), then `selected`.

    `base` itself is changed if `is_own` allows it.
    """
    carrier = _carrier(base)
    if carrier is not None:
        return _scatter_fixed(base, positions, values, selected, is_own)
    width = _text_width(base)
    if width and width == _text_width(values):
        return select(_scatter_text(base, positions, values, width, is_own), selected)
    if pa.types.is_boolean(base.type):
        is_new = pa.array(_flags(positions, len(base)))
        return select(pc.replace_with_mask(base, is_new, values), selected)
    if selected is None and _is_text(base.type):
        is_new = bool_array(_flags(positions, len(base)))
        return pc.if_else(is_new, _spread_text(values, positions, len(base)), base)
    source = np.arange(len(base), dtype=np.int64)
    source[positions] = len(base) + np.arange(len(positions))
    if selected is not None:
        source = source[selected]
    return pa.concat_arrays([base, values]).take(pa.array(source))


def spread(values: pa.Array, positions: np.ndarray, count: int) -> pa.Array:
    """Return `count` cells with `values[i]` at `positions[i]`; the other cells are undefined."""
    carrier = _carrier(values)
    if carrier is not None:
        cells: np.ndarray = np.zeros(count, carrier)
        cells[positions] = _values(values)
        valid = None
        if values.null_count:
            valid = np.ones(count, dtype=bool)
            valid[positions] = _validity(values)
        return _from_numpy(values.type, cells, valid)
    if _is_text(values.type):
        return _spread_text(values, positions, count)
    places = np.full(count, -1)
    places[positions] = np.arange(len(positions))
    return values.take(pa.array(places, mask=places < 0))


def _scatter_fixed(
    base: pa.Array,
    positions: np.ndarray,
    values: pa.Array,
    selected: np.ndarray | None,
    is_own: bool,
) -> pa.Array:
    cells = _values(base)
    # Arrow makes the values and the validity of an array of nulls from one buffer.
    if not is_own or base.null_count or not cells.flags.writeable:
        cells = cells.copy()
    cells[positions] = _values(values)
    valid = None
    if base.null_count or values.null_count:
        valid = _validity(base)
        valid[positions] = _validity(values)
    if selected is not None:
        cells = cells[selected]
        valid = None if valid is None else valid[selected]
    return _from_numpy(base.type, cells, valid)


def _is_text(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(arrow_type) or pa.types.is_binary(arrow_type))


def _text_width(array: pa.Array) -> int:
    """Return how many bytes each value of an array has, 0 if that differs, and for other types."""
    if not _is_text(array.type) or array.null_count or not len(array):
        return 0
    ends = _text_ends(array)
    width = int(ends[1] - ends[0])
    if int(ends[-1] - ends[0]) != width * len(array) or (np.diff(ends) != width).any():
        return 0
    return width


def _text_ends(array: pa.Array) -> np.ndarray:
    offsets = array.buffers()[1]
    return np.frombuffer(offsets, np.int32, array.offset + len(array) + 1)[array.offset :]


def _scatter_text(
    base: pa.Array, positions: np.ndarray, values: pa.Array, width: int, is_own: bool
) -> pa.Array:
    """Do as `scatter` where all values have `width` bytes."""
    cells = _text_cells(base, width)
    is_changed = is_own and cells.flags.writeable
    if not is_changed:
        cells = cells.copy()
    cells[positions] = _text_cells(values, width)
    if is_changed:
        return base
    ends = np.arange(len(base) + 1, dtype=np.int32) * width
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(cells.view(np.uint8))]
    return pa.Array.from_buffers(base.type, len(base), buffers)


def _text_cells(array: pa.Array, width: int) -> np.ndarray:
    """Return the bytes of values of one width, as an array of them."""
    first = int(_text_ends(array)[0])
    return np.frombuffer(array.buffers()[2], np.dtype((np.void, width)), len(array), first)


def _spread_text(values: pa.Array, positions: np.ndarray, count: int) -> pa.Array:
    """Return `count` texts with `values[i]` at `positions[i]`; the other texts are undefined."""
    ends = _text_ends(values)
    spread = np.zeros(count + 1, np.int32)
    spread[0] = ends[0]
    spread[positions + 1] = np.diff(ends)
    np.cumsum(spread, out=spread)
    valid = None
    if values.null_count:
        valid = np.zeros(count, dtype=bool)
        valid[positions] = _validity(values)
    buffers = [_bitmap(valid), pa.py_buffer(spread), values.buffers()[2]]
    return pa.Array.from_buffers(values.type, count, buffers)


def _flags(positions: np.ndarray, count: int) -> np.ndarray:
    """Return bool[count], true at `positions`."""
    flags = np.zeros(count, dtype=bool)
    flags[positions] = True
    return flags


def bool_array(flags: np.ndarray) -> pa.Array:
    """Return bool[n] as Arrow has it; faster than `pa.array`."""
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, _bitmap(flags)])


def _bitmap(flags: np.ndarray | None) -> pa.Buffer | None:
    """Return bool[n] packed into bits like Arrow does; None stays None."""
    return None if flags is None else pa.py_buffer(np.packbits(flags, bitorder="little"))


def _carrier(array: pa.Array) -> type | None:
    """Return the numpy type that moves the array's cells; None for bool and variable width."""
    return _CARRIERS.get(array.type.id)


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


@dataclass(frozen=True)
class DeltaCells:
    """The cells that deltas set in one column of n rows, in layers, the newest last.

    A layer has int64[m] ascending positions, an array, and the m places of the values in it.
    """

    arrow_type: pa.DataType
    row_count: int
    layers: tuple[tuple[np.ndarray, pa.Array, np.ndarray], ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether no row has its value from base data."""
        return not self.row_count or any(len(layer[0]) == self.row_count for layer in self.layers)

    def under(self, positions: np.ndarray, values: pa.Array, at: np.ndarray) -> DeltaCells:
        """Return these cells under the newer `values` at places `at`."""
        if not len(positions):
            return self
        kept = () if len(positions) == self.row_count else self.layers
        return replace(self, layers=(*kept, (positions, values, at)))


def laid_over(
    cells: Sequence[DeltaCells], base: Sequence[pa.Array | None], places: np.ndarray | None = None
) -> list[pa.Array]:
    """Return columns of n rows: `base`, or its values at int64[n] places, under their cells.

    A base that is None has no value that is needed. Columns that the same changes set are gathered
    together: each call of Arrow and numpy takes longer than moving few cells.
    """
    found: dict[int, pa.Array] = {}
    alike: dict[tuple[int, ...], list[int]] = {}
    for number, column in enumerate(cells):
        kind = column.is_complete, *(id(positions) for positions, _, _ in column.layers)
        alike.setdefault(kind, []).append(number)
    for numbers in alike.values():
        layers = list(zip(*(cells[number].layers for number in numbers), strict=True))
        if not cells[numbers[0]].is_complete:
            rows = as_rows([base[number] for number in numbers])
            rows = rows if places is None else rows.take(pa.array(places))
        elif layers:
            rows = _new_rows(layers.pop(0))
        else:
            rows = as_rows([pa.nulls(0, cells[number].arrow_type) for number in numbers])
        for layer in layers:
            positions, new = layer[0][0], _new_rows(layer)
            source = np.arange(rows.num_rows)
            source[positions] = np.arange(rows.num_rows, rows.num_rows + len(positions))
            rows = pa.concat_batches([rows, new]).take(pa.array(source))
        found |= zip(numbers, rows.columns, strict=True)
    return [found[number] for number in range(len(cells))]


def _new_rows(layer: Sequence[tuple[np.ndarray, pa.Array, np.ndarray]]) -> pa.RecordBatch:
    """Return the new values of columns that the same changes set."""
    return as_rows([values for _, values, _ in layer]).take(pa.array(layer[0][2]))


def as_rows(columns: Sequence[pa.Array | None]) -> pa.RecordBatch:
    """Return columns as one batch, so that one call of Arrow gathers all of them."""
    return pa.RecordBatch.from_arrays(columns, list(map(str, range(len(columns)))))
