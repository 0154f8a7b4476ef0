"""A file system that stops the world before its n-th durable step."""

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path

from kudulite.errors import StorageError
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


class FailingFileSystem(FileSystem):
    """Refuses one durable step, number `step` from 0, with a disk error, after `meanwhile` ran."""

    def __init__(self, step: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        self._left = itertools.count(-step)
        self._meanwhile = meanwhile

    def before(self, operation: str, path: Path) -> None:
        """Pass, or raise StorageError."""
        if next(self._left) == 0:
            self._meanwhile()
            raise StorageError(errno.EIO, f"cannot {operation} {path}: the disk has a bad day")
