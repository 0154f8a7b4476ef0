"""A file system that stops the world before its n-th durable step."""

import itertools
import os
from pathlib import Path

from kudulite.fs.file_system import FileSystem


class KilledError(BaseException):
    """The process is dead from here on; not an Exception, so that nobody handles it."""


class KillingFileSystem(FileSystem):
    """Lets `steps` durable steps pass; at the next one, and ever after, the process is dead.

    `exits` ends the process for good, which is for a forked child. Steps are counted in `count`.
    """

    def __init__(self, steps: int | None = None, *, exits: bool = False) -> None:
        self._left = itertools.count(0 if steps is None else -steps)
        self._is_limited = steps is not None
        self._exits = exits
        self.count = 0

    def before(self, operation: str, path: Path) -> None:
        """Count a step, or die."""
        # next() of a counter is atomic: steps come from several threads.
        number = next(self._left)
        self.count += 1
        if self._is_limited and number >= 0:
            if self._exits:
                os._exit(9)
            raise KilledError(f"{operation} {path}")
