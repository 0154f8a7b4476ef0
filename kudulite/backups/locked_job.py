"""What a backup and a restore have in common: work under a lock, until its `with` block ends."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self


class LockedJob:
    """Work that is under way; closed by leaving its `with`. What is not finished stays, to go on.

    `held` is what it has taken: the lock, which keeps others from the same work.
    """

    def __init__(self, held: ExitStack) -> None:
        self._held = held

    def close(self) -> None:
        """Give the lock back; twice does no harm."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
