"""Keys in order, with the row id of each, grown by merging and never by sorting again.

Merging m new keys into n sorted ones costs a sort of the m and a copy of the n, as array
operations. This takes the place of Kudu's concurrent B+-tree of a MemRowSet: a reader asks for the
order after many inserts, and one pass over arrays is then cheaper than a tree that is kept up at
each insert.

Invariants: (1) keys ascend strictly; (2) the row ids are 0 … n - 1, each once, the first n to come.

Threads: immutable, share freely.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kudulite.model.key_array import KeyArray


@dataclass(frozen=True)
class SortedKeys:
    """n keys, ascending, and the int64[n] row ids that they belong to."""

    keys: KeyArray
    rowids: np.ndarray

    def __len__(self) -> int:
        return len(self.rowids)

    @staticmethod
    def of(keys: KeyArray, first_rowid: int = 0) -> SortedKeys:
        """Sort keys that stand in order of their row ids."""
        order = keys.sort_order()
        return SortedKeys(keys.take(order), order + first_rowid)

    def grown(self, newer: KeyArray) -> SortedKeys:
        """Return these and `newer` keys, none of them here, which take the next row ids."""
        if not len(newer):
            return self
        added = SortedKeys.of(newer, len(self))
        total = len(self) + len(added)
        places = self.keys.search_sorted(added.keys) + np.arange(len(added))
        is_old = np.ones(total, dtype=bool)
        is_old[places] = False
        source = np.empty(total, np.int64)
        source[places] = np.arange(len(self), total)
        source[is_old] = np.arange(len(self))
        keys = KeyArray.concat([self.keys, added.keys]).take(source)
        return SortedKeys(keys, np.concatenate([self.rowids, added.rowids])[source])

    def first(self, count: int) -> SortedKeys:
        """Return the keys of the row ids below `count`."""
        if count == len(self):
            return self
        at = np.flatnonzero(self.rowids < count)
        return SortedKeys(self.keys.take(at), self.rowids[at])
