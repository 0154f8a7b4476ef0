"""Merges streams of rows in key order, a window of keys at a time.

    stream a   ├──────────────┤├─────┤     its batches, in key order
    stream b       ├──────┤ ├───────┤
    window         │      │   │      │     the rows of all streams up to a key

A window ends at the smallest last key of the batches in memory, so all rows with the same key are
in the same window. Only whole arrays are cut and sorted; rows are never compared one by one.

Scans, diff scans and merging compactions share `merge_windows`. `in_order` sorts the rows of a
window. Scans and diff scans describe the blocks of a stream as `RowsRead`s, and their caller
decides whether a block is read before the merge asks for it.

**Invariants**: (1) the keys of a window are above those of the windows before it; (2) a window has
rows, and at most one part of each stream; (3) a stream is opened only when a window may reach its
`key_min`, so streams with disjoint keys are read one after another.

**Threads**: one thread reads the result.

**Source**: Kudu common/generic_iterators.cc, "MergeIterator" (hot and cold sub-iterators).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import pyarrow as pa

from kudulite.errors import CorruptionError
from kudulite.model.key_array import KeyArray
from kudulite.rowset.rowset import ScannedRows


class KeyedRows(Protocol):
    """Rows in ascending order of their keys, which may repeat only between streams."""

    @property
    def keys(self) -> KeyArray | None:
        """The encoded keys; a merge needs them."""

    def cut(self, start: int, stop: int) -> Self:
        """Return rows start..stop without a copy."""


Rows = TypeVar("Rows", bound=KeyedRows)


@dataclass(frozen=True)
class OrderedStream(Generic[Rows]):
    """Batches of rows in key order, none below `key_min`.

    `open` returns them. It may begin to read the first one, in another thread.
    """

    key_min: bytes
    open: Callable[[], Iterator[Rows]]


@dataclass(frozen=True)
class RowsRead:
    """A block of a stream, of `row_count` rows, not read yet; any thread may run it."""

    run: Callable[[], ScannedRows | None]
    row_count: int


# Yields what the reads return, in their order, without None.
Runner = Callable[[Iterable[RowsRead]], Iterator[ScannedRows]]


def in_turn(reads: Iterable[RowsRead]) -> Iterator[ScannedRows]:
    """Run each read when its rows are asked for."""
    return (rows for read in reads if (rows := read.run()) is not None)


class _Head(Generic[Rows]):
    """An open stream and the remaining rows of its batch; `rows` is None at the end."""

    def __init__(self, number: int, batches: Iterator[Rows]) -> None:
        self.number = number
        self._batches = batches
        self.rows: Rows | None = None
        self.fill()

    def fill(self) -> None:
        """Read the next batch that has rows, if those of the last one are taken."""
        if self.rows is not None:
            return
        for batch in self._batches:
            assert batch.keys is not None, "a merge reads rows with their keys"
            if len(batch.keys):
                self.rows, self.keys = batch, batch.keys
                return

    def key_at(self, count: int) -> bytes:
        """Return the last key of the first `count` rows, or of all if there are fewer."""
        return self.keys[min(count, len(self.keys)) - 1]

    def take_up_to(self, last_key: bytes) -> Rows | None:
        """Remove the rows with keys ≤ `last_key` from the current batch and return them."""
        rows, keys = self.rows, self.keys
        assert rows is not None
        count = keys.locate(last_key, "right")
        if count == len(keys):
            self.rows = None
            return rows
        if not count:
            return None
        self.rows = rows.cut(count, len(keys))
        self.keys = keys.slice(count, len(keys))
        return rows.cut(0, count)


def _all_rows(batches: Sequence[KeyedRows]) -> int:
    return sys.maxsize


def merge_windows(
    streams: Sequence[OrderedStream[Rows]],
    row_limit: Callable[[Sequence[Rows]], int] = _all_rows,
) -> Iterator[list[tuple[int, Rows]]]:
    """Yield all rows in windows, each a list of (number of the stream, its rows in the window).

    `row_limit` takes the batches in memory and returns how many rows of each (1 or more) the next
    window may take. CorruptionError for keys that are not in order: no window would have rows.
    """
    cold = sorted(enumerate(streams), key=lambda item: item[1].key_min, reverse=True)
    hot: list[_Head[Rows]] = []
    opened: dict[int, Iterator[Rows]] = {}
    while cold or hot:
        end = _window_end(hot, row_limit)
        while cold and (end is None or cold[-1][1].key_min <= end):
            # Before any of them is waited for: each makes the window smaller.
            for number, stream in reversed(cold):
                if stream.key_min > (cold[-1][1].key_min if end is None else end):
                    break
                if number not in opened:
                    opened[number] = stream.open()
            number, stream = cold.pop()
            head = _Head(number, opened.pop(number))
            if head.rows is not None:
                hot.append(head)
                end = _window_end(hot, row_limit)
        if end is None:
            continue
        parts = [(head.number, rows) for head in hot if (rows := head.take_up_to(end)) is not None]
        if not parts:
            raise CorruptionError(
                "the keys of a rowset are not in ascending order; check() names its key index"
            )
        yield parts
        for head in hot:  # not before the window is used, as there may be no other
            head.fill()
        hot = [head for head in hot if head.rows is not None]


def _window_end(
    hot: Sequence[_Head[Rows]], row_limit: Callable[[Sequence[Rows]], int]
) -> bytes | None:
    """Return the last key of the next window; None when no stream is open."""
    if not hot:
        return None
    count = row_limit([head.rows for head in hot if head.rows is not None])
    return min(head.key_at(count) for head in hot)


def in_order(parts: Sequence[ScannedRows]) -> ScannedRows:
    """Return the rows of the parts of one window in key order."""
    if len(parts) == 1:
        return parts[0]
    keys = KeyArray.concat([part.keys for part in parts if part.keys is not None])
    order = keys.sort_order()
    batch = pa.concat_batches([part.batch for part in parts]).take(pa.array(order))
    return ScannedRows(batch, keys.take(order))
