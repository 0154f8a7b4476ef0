"""Errors of file operations: which one failed, on which file, why, and what to do.

Each becomes a StorageError. Its message promises "nothing was changed" only where the caller passes
`is_unchanged`, because only the caller knows. A lock file, for example, is written after the rows
of which it speaks are durable in the log.
"""

import errno
import os
from pathlib import Path

import pyarrow as pa

from kudulite.errors import CorruptionError, KuduliteError, OutOfMemoryError, StorageError
from kudulite.storage.json_form import WRONG_STRUCTURE

_ADVICE = {
    errno.EROFS: "the directory is read-only",
    errno.EACCES: "check the permissions of the folder",
    errno.ENOLCK: "the file system offers no locks now: `kudulite doctor DIRECTORY` tests it",
    errno.ESTALE: "the network file system has another file there: open the table again",
    errno.EISDIR: "a folder is in the place of the file: move it away",
    errno.ENOTDIR: "a file is in the place of a folder: move it away",
    errno.ELOOP: "it is a symbolic link, which no file of a table is: put the file in its place",
}
_OUT_OF_MEMORY = ("memory", "resource temporarily unavailable", "can't start new thread")
_ADVICE_SPACE = {errno.ENOSPC: "free some space", errno.EDQUOT: "raise the quota"}


def storage_error(
    action: str, target: str | Path, error: OSError, *, is_unchanged: bool = False
) -> StorageError:
    """Return the StorageError of `error`, which ended `action` on the file `target`.

    With `is_unchanged` the operation has left the table unchanged.
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

    A class, because a generator-based context manager costs as much as a system call.
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


class arrow_errors:
    """Turns what Arrow raises about the bytes of a file into the CorruptionError of the file.

    `subject` is the file and what is wrong with it. An error of the operating system becomes a
    StorageError, and memory or threads that are not to be had an OutOfMemoryError: the file may be
    as it was written.
    """

    def __init__(self, path: str | Path, problem: str) -> None:
        self._path, self._subject = path, f"{path}: {problem}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, _trace: object) -> None:
        if error is None or isinstance(error, KuduliteError):
            return
        if is_out_of_memory(error):
            raise OutOfMemoryError(
                f"{self._path}: not enough memory to read it: {error}; read fewer rows or columns"
                " at once, or give the process more memory; the file may be good"
            ) from error
        if isinstance(error, OSError) and error.errno:
            raise storage_error("read", self._path, error) from error
        if isinstance(error, (pa.ArrowException, OSError, EOFError, *WRONG_STRUCTURE)):
            raise CorruptionError(f"{self._subject}: {error}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that the process has not enough memory, or can begin no thread."""
    if isinstance(error, MemoryError):
        return True
    # zstd and the threads of Arrow have no error of their own.
    may_be = isinstance(error, (OSError, RuntimeError, pa.ArrowException))
    return may_be and any(text in str(error).lower() for text in _OUT_OF_MEMORY)
