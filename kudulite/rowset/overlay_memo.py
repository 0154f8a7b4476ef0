"""Keeps the overlays of a rowset that are asked for again: the newest, and one of the past.

Threads: any; two that find the same missing overlay make it twice, which does no harm.
"""

from __future__ import annotations

from collections.abc import Callable

from kudulite.delta.delta_overlay import DeltaOverlay


class OverlayMemo:
    """Overlays by a snapshot's timestamp; from `timestamp_max` on all are the same.

    It does not keep who makes them: a rowset that nobody uses any more is freed at once.
    """

    def __init__(self, timestamp_max: int) -> None:
        self.timestamp_max = timestamp_max
        self._latest: DeltaOverlay | None = None
        self._recent: tuple[int, DeltaOverlay] | None = None

    def at(self, timestamp: int, fold: Callable[[int], DeltaOverlay]) -> DeltaOverlay:
        """Return the overlay of a snapshot at `timestamp`, which `fold` makes."""
        if timestamp >= self.timestamp_max:
            if self._latest is None:
                self._latest = fold(timestamp)
            return self._latest
        recent = self._recent
        if recent is None or recent[0] != timestamp:
            recent = self._recent = (timestamp, fold(timestamp))
        return recent[1]
