"""Rows taken out of a table whose columns may be in chunks: some of them, in any order.

A write gathers the rows of each tablet and rowset from its batches, and a lookup puts the rows of
several rowsets into the order of its keys.

**Invariants**: chunks are not joined, which would copy the whole table; the result of one call is
one array per column, of at most 2 GiB: the caller takes fewer rows at once where they are large.

**Threads**: one at a time; a `RowGather` remembers the places of the last rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kudulite.basefile.block_cache import taken

# Half of the 2 GiB that one array holds, since some rows are larger than others.
GATHERED_BYTES_MAX = 1 << 30


class RowGather:
    """Takes rows out of a table whose columns may be in chunks, which are not joined.

    Each chunk is read in the order of its rows, then the values are put into the wanted order.
    Joining the chunks would copy the whole table.
    """

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self._places: _Places | None = None  # the last ones: columns are taken at the same rows

    @property
    def chunk_count(self) -> int:
        """The number of chunks of the column that has the most."""
        counts: list[int] = [column.num_chunks for column in self.rows.columns]
        return max(counts)

    @property
    def rows_at_once(self) -> int:
        """How many rows of about GATHERED_BYTES_MAX may be taken at once, at least one."""
        row_count: int = self.rows.num_rows
        nbytes: int = max(GATHERED_BYTES_MAX, self.rows.nbytes)
        return max(1, row_count * GATHERED_BYTES_MAX // nbytes)

    def take(self, name: str, numbers: np.ndarray) -> pa.Array:
        """Return a column at int64[m] row numbers; consecutive rows of a chunk are not copied."""
        column = self.rows.column(name)
        if not len(numbers):
            return pa.nulls(0, column.type)
        if column.num_chunks == 1:
            return taken([column.chunk(0)], numbers)[0]
        lengths = tuple(map(len, column.chunks))
        places = self._places
        if (
            places is None
            or places.lengths != lengths
            or not np.array_equal(places.numbers, numbers)
        ):
            places = self._places = _Places.of(numbers, lengths)
        return places.take(column)


@dataclass(frozen=True)
class _Places:
    """Rows `numbers` (int64[m]) of columns whose chunks have `lengths` rows.

    `in_chunks` has the ascending rows of each chunk, or None; `order` int64[m] brings the values of
    all these, one chunk after the other, into the order of `numbers`, None if they are in it.
    """

    numbers: np.ndarray
    lengths: tuple[int, ...]
    in_chunks: Sequence[pa.Array | None]
    order: pa.Array | None

    @staticmethod
    def of(numbers: np.ndarray, lengths: tuple[int, ...]) -> _Places:
        ascending, order = numbers, None
        if (numbers[1:] < numbers[:-1]).any():
            by_row = np.argsort(numbers)
            ascending, places = numbers[by_row], np.empty_like(by_row)
            places[by_row] = np.arange(len(numbers))
            order = pa.array(places)
        bounds = np.cumsum([0, *lengths])
        cuts = np.searchsorted(ascending, bounds).tolist()
        in_chunks = [
            pa.array(ascending[low:high] - start) if low < high else None
            for start, low, high in zip(bounds, cuts, cuts[1:], strict=False)
        ]
        return _Places(numbers, lengths, in_chunks, order)

    def take(self, column: pa.ChunkedArray) -> pa.Array:
        parts = [
            chunk.take(at)
            for chunk, at in zip(column.chunks, self.in_chunks, strict=True)
            if at is not None
        ]
        values = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        return values if self.order is None else values.take(self.order)
