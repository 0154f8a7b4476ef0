"""Background work that is only planned: a test does it when it likes, and sees when it is due."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from kudulite.table.background_work import BackgroundWork


class Planned(BackgroundWork):
    """Remembers what is scheduled, and does it when told."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[tuple[Hashable, Callable[[], object], float]] = []

    def schedule(self, key: Hashable, work: Callable[[], object], delay_seconds: float) -> None:
        """Remember a piece."""
        self.pieces.append((key, work, delay_seconds))

    @property
    def delays(self) -> list[float]:
        """When the pieces are due; forgets them."""
        found = [delay for _, _, delay in self.pieces]
        self.pieces.clear()
        return found
