"""A file system that stops the world before its n-th durable step."""

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path

from kudulite.errors import StorageError
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.open_file import AppendFile
from tests.support.doubles.base_storage import BaseStorage


class KilledError(BaseException):
    """The process is dead from here on; not an Exception, so that nobody handles it."""


class KillingStorage(BaseStorage):
    """Lets `steps` durable steps pass; at the next one, and ever after, the process is dead.

    `exits` ends the process for good, which is for a forked child. Steps are counted in `count`.
    """

    def __init__(self, steps: int | None = None, *, exits: bool = False) -> None:
        super().__init__()
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


def ran_to_its_end(work: Callable[[], object], *, in_child: bool) -> bool:
    """Do work that may die on the way, in a forked child or by a KilledError; whether it did not.

    The file system of the work must be of the same kind.
    """
    if not in_child:
        try:
            work()
        except KilledError:
            return False
        return True
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # not back into pytest, whatever happened
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 0


class TearingStorage(KillingStorage):
    """Where the last step is an append, `part` (0 to 1) of its bytes reach the file before it."""

    def __init__(self, steps: int, part: float) -> None:
        super().__init__(steps)
        self._part = part

    def open_append(self, path: Path) -> AppendFile:
        """Open a file that can be torn."""
        return _TornFile(self, path, self._part)


class _TornFile(AppendFile):
    def __init__(self, storage: TearingStorage, path: Path, part: float) -> None:
        super().__init__(storage, path)
        self._part = part
        self._is_torn = False

    def append(self, content: bytes, offset: int) -> None:
        """Append, or die after a part."""
        try:
            super().append(content, offset)
        except KilledError:
            if not self._is_torn:
                length = max(1, int(len(content) * self._part))
                os.pwrite(self._descriptor, content[:length], offset)
            self._is_torn = True
            raise


class FailingStorage(BaseStorage):
    """Refuses one durable step, number `step` from 0, with a disk error, after `meanwhile` ran."""

    def __init__(self, step: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._left = itertools.count(-step)
        self._meanwhile = meanwhile

    def before(self, operation: str, path: Path) -> None:
        """Pass, or raise StorageError."""
        if next(self._left) == 0:
            self._meanwhile()
            raise StorageError(errno.EIO, f"cannot {operation} {path}: the disk has a bad day")


class HalfStorage(LocalStorage):
    """Writes only a part of what is appended, then raises `error`; whole again when that is None.

    `part` says how much of it: from 0 for nothing to 1 for all.
    """

    def __init__(self, error: BaseException | None, part: float = 0.5) -> None:
        self.error = error
        self.part = part

    def open_append(self, path: Path) -> AppendFile:
        """Open a file whose appends stop half way."""
        return _HalfFile(self, path)


class _HalfFile(AppendFile):
    """An AppendFile whose double says when it stops."""

    def _write(self, rest: memoryview, offset: int) -> int:
        double = self._storage
        assert isinstance(double, HalfStorage)
        if double.error is not None:
            super()._write(rest[: int(len(rest) * double.part)], offset)
            raise double.error
        # Short writes are legal, and the rest follows.
        return super()._write(rest[: max(1, len(rest) // 3)], offset)
