"""Ordered scan: merges key-ordered streams of rows into one, whole windows at a time.

    window := all rows, of all open streams, up to the smallest last key of their current batches

Within a window rows are put in order by one sort; nothing is compared row by row. A stream is not
opened before the window reaches its smallest key, so rowsets side by side are read one after
another.

Source: Kudu common/generic_iterators.cc, "MergeIterator" (hot and cold sub-iterators).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from kudulite.model.key_array import KeyArray
from kudulite.rowset.disk_rowset import ScannedRows


@dataclass(frozen=True)
class OrderedStream:
    """Rows in key order, none below `key_min`; `open` starts reading them, with their keys."""

    key_min: bytes
    open: Callable[[], Iterator[ScannedRows]]


class _Head:
    """An open stream and what is left of its current batch."""

    def __init__(self, rows: Iterator[ScannedRows]) -> None:
        self._rows = rows
        self.batch: pa.RecordBatch | None = None
        self.keys: KeyArray | None = None
        self.advance()

    def advance(self) -> None:
        """Go to the next batch that has rows; `keys` is None at the end."""
        for rows in self._rows:
            if rows.batch.num_rows:
                self.batch, self.keys = rows.batch, rows.keys
                return
        self.batch = self.keys = None

    def take_up_to(self, last_key: bytes) -> ScannedRows | None:
        """Take the rows with keys ≤ `last_key` off the current batch."""
        assert self.keys is not None and self.batch is not None
        count = self.keys.locate(last_key, "right")
        if not count:
            return None
        taken = ScannedRows(self.batch.slice(0, count), self.keys.slice(0, count))
        if count == len(self.keys):
            self.advance()
        else:
            self.batch = self.batch.slice(count)
            self.keys = self.keys.slice(count, len(self.keys))
        return taken


def merge_ordered(streams: Sequence[OrderedStream]) -> Iterator[ScannedRows]:
    """Yield all rows of `streams` in key order; a key must stand in at most one of them."""
    cold = sorted(streams, key=lambda stream: stream.key_min, reverse=True)
    hot: list[_Head] = []
    while cold or hot:
        window_end = _window_end(hot)
        while cold and (window_end is None or cold[-1].key_min <= window_end):
            head = _Head(cold.pop().open())
            if head.keys is not None:
                hot.append(head)
            window_end = _window_end(hot)
        if window_end is None:
            continue
        taken = [rows for head in hot if (rows := head.take_up_to(window_end)) is not None]
        hot = [head for head in hot if head.keys is not None]
        yield _in_order(taken)


def _window_end(hot: Sequence[_Head]) -> bytes | None:
    ends = [head.keys[len(head.keys) - 1] for head in hot if head.keys is not None]
    return min(ends) if ends else None


def _in_order(parts: Sequence[ScannedRows]) -> ScannedRows:
    if len(parts) == 1:
        return parts[0]
    keys = KeyArray.concat([part.keys for part in parts if part.keys is not None])
    order = keys.sort_order()
    batch = pa.concat_batches([part.batch for part in parts]).take(pa.array(order))
    return ScannedRows(batch, keys.take(order))
