"""Background work under a test's control: only planned, or with a clock that stands still."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Any

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


class StillWork(BackgroundWork):
    """Does what is due at once, and nothing later by itself.

    It starts no thread for later work, whose time never comes. Such a thread would keep the tables,
    files and maps of its client until the process ends, and every fork would copy them.
    """

    def __init__(self) -> None:
        super().__init__(now=lambda: 0.0)

    def is_scheduled(self, key: Hashable) -> bool:
        """Whether the piece is there, with a thread or without."""
        return key in self._pieces and self._process_id == os.getpid()

    def _started(self) -> threading.Thread | None:
        return super()._started() if self._is_any_due() else None

    def _next(self) -> tuple[Hashable, Any] | None:
        with self._changed:
            if self._is_any_due():
                return super()._next()
            self._thread = None
            return None

    def _is_any_due(self) -> bool:
        return any(piece.due <= 0 for piece in self._pieces.values())
