"""A list that grows by small parts and is read as a few large ones.

    level 0   parts as they were appended         64 of a level or below become one of the next
    level 1   about 64 rows and more
    level 2   about 4,096 rows and more
    level 3   about 262,144 rows and more; never joined again

Each row is copied at most three times, and there are at most 3 × 63 parts beside those of level 3,
so that an append costs O(1) and whoever reads joins few parts.

Threads: one appends at a time; any number read `parts`, which is replaced and never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

FAN_IN = 64
_LEVEL_MAX = 3

T = TypeVar("T")


class ChunkLog(Generic[T]):
    """Parts in order of arrival; `join` makes one of several neighbours."""

    def __init__(self, join: Callable[[Sequence[T]], T]) -> None:
        self.parts: tuple[T, ...] = ()
        self._join = join
        # How many parts at the end are of this level or below.
        self._counts = [0] * _LEVEL_MAX

    def append(self, part: T, row_count: int) -> None:
        """Add a part at the end."""
        parts = (*self.parts, part)
        level = _level_of(row_count)
        counts = self._counts
        for at in range(_LEVEL_MAX):
            counts[at] = counts[at] + 1 if level <= at else 0
            count = counts[at]
            if count >= FAN_IN:
                parts = (*parts[:-count], self._join(parts[-count:]))
                level = at + 1
                counts[: at + 1] = [0] * (at + 1)
                for above in range(at + 1, _LEVEL_MAX):
                    # All but the newest counted there; the one part of them counts in its turn.
                    counts[above] -= count - 1
        self.parts = parts


def _level_of(row_count: int) -> int:
    level = 0
    while row_count >= FAN_IN and level < _LEVEL_MAX:
        row_count //= FAN_IN
        level += 1
    return level
