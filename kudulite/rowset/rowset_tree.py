"""RowSetTree: an interval tree over rowsets, which finds those that may hold a key.

    node: centre key c; the intervals that contain c, once by rising minimum and once by falling
          maximum; `left`, the intervals wholly below c; `right`, those wholly above

A lookup of one key walks one path and stops in each node at the first interval that misses, so it
costs O(log n + hits). The number of hits is the tablet's height at that key.

**Invariants**: (1) bounds are inclusive encoded keys; (2) a tree is never changed, it is replaced.

**Threads**: any.

**Source**: Kudu rowset_tree.cc and interval_tree.h.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kudulite.model.key_array import KeyArray


class KeyInterval(Protocol):
    """Anything with inclusive encoded key bounds."""

    @property
    def key_min(self) -> bytes:
        """The smallest key."""

    @property
    def key_max(self) -> bytes:
        """The largest key."""


T = TypeVar("T", bound=KeyInterval)


@dataclass(frozen=True)
class _Node(Generic[T]):
    centre: bytes
    by_min: tuple[T, ...]
    by_max: tuple[T, ...]
    left: _Node[T] | None
    right: _Node[T] | None


class RowSetTree(Generic[T]):
    """Static centred interval tree; queries return items in no particular order."""

    def __init__(self, items: Sequence[T]) -> None:
        self.items = tuple(items)
        self._root = _build(self.items)

    def covering(self, key: bytes) -> Iterator[T]:
        """Yield the items whose bounds contain `key`."""
        node = self._root
        while node is not None:
            if key < node.centre:
                for item in node.by_min:
                    if item.key_min > key:
                        break
                    yield item
                node = node.left
            elif key > node.centre:
                for item in node.by_max:
                    if item.key_max < key:
                        break
                    yield item
                node = node.right
            else:
                yield from node.by_min
                return

    def overlapping(self, lower: bytes | None, upper: bytes | None) -> Iterator[T]:
        """Yield the items that may hold a key in [lower, upper); None is unbounded."""
        pending = [self._root]
        while pending:
            node = pending.pop()
            if node is None:
                continue
            for item in node.by_min:
                if upper is not None and item.key_min >= upper:
                    break
                if lower is None or item.key_max >= lower:
                    yield item
            if lower is None or lower < node.centre:
                pending.append(node.left)
            if upper is None or upper > node.centre:
                pending.append(node.right)

    def probe_ranges(self, keys: KeyArray) -> Iterator[tuple[T, int, int]]:
        """Yield (item, start, stop): the slice of ascending `keys` inside an item's bounds."""
        if not len(keys):
            return
        for item in self.overlapping(keys[0], keys[len(keys) - 1] + b"\0"):
            start = keys.locate(item.key_min, "left")
            stop = keys.locate(item.key_max, "right")
            if start < stop:
                yield item, start, stop


def _build(items: Sequence[T]) -> _Node[T] | None:
    if not items:
        return None
    ends = sorted(end for item in items for end in (item.key_min, item.key_max))
    centre = ends[len(ends) // 2]
    here = [item for item in items if item.key_min <= centre <= item.key_max]
    return _Node(
        centre=centre,
        by_min=tuple(sorted(here, key=lambda item: item.key_min)),
        by_max=tuple(sorted(here, key=lambda item: item.key_max, reverse=True)),
        left=_build([item for item in items if item.key_max < centre]),
        right=_build([item for item in items if item.key_min > centre]),
    )
