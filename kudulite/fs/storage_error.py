"""OSError to StorageError: the one place that words a failed file operation.

It stands alone because the file system, the locks and the mapped files all use it.

A message says what failed, on which file, why, and what to do. "Nothing was changed" is promised
only where the caller passes `is_unchanged`, because only the caller knows: a lock file, for
example, is written after the rows that it speaks of are durable in the log.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from kudulite.errors import StorageError

_ADVICE = {
    errno.EROFS: "the directory is read-only",
    errno.EACCES: "check the permissions of the folder",
}
_ADVICE_SPACE = {errno.ENOSPC: "free some space", errno.EDQUOT: "raise the quota"}


def storage_error(
    action: str, target: str | Path, error: OSError, *, is_unchanged: bool = False
) -> StorageError:
    """Return the StorageError of `error`, which ended `action` on the file `target`.

    `is_unchanged` says that the operation left the table as it was.
    """
    if isinstance(error, FileNotFoundError):
        return StorageError(errno.ENOENT, f"cannot {action} {target}: it does not exist")
    if isinstance(error, FileExistsError):
        return StorageError(errno.EEXIST, f"cannot {action} {target}: it exists")
    number = error.errno or 0
    advice = _ADVICE.get(number, "")
    if number in _ADVICE_SPACE:
        rest = " and write again, nothing was changed" if is_unchanged else ""
        advice = f"{_ADVICE_SPACE[number]}{rest}"
    reason = os.strerror(number) if number else str(error)
    return StorageError(
        number, f"cannot {action} {target}: {reason}{'; ' if advice else ''}{advice}"
    )


class storage_errors:
    """Turns an OSError of its `with` block into the StorageError of `storage_error`.

    A class of its own, since contextlib's way costs as much as a system call.
    """

    __slots__ = ("_action", "_is_unchanged", "_target")

    def __init__(self, action: str, target: str | Path, *, is_unchanged: bool = False) -> None:
        self._action, self._target, self._is_unchanged = action, target, is_unchanged

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            raise storage_error(
                self._action, self._target, error, is_unchanged=self._is_unchanged
            ) from error
