"""The wording of a failed file operation: what, where, why, and what to do."""

import errno

import pyarrow as pa
import pytest

from kudulite.errors import CorruptionError, OutOfMemoryError, RetryableError, StorageError
from kudulite.storage.storage_error import arrow_errors, storage_error, storage_errors


@pytest.mark.parametrize(
    ("number", "is_unchanged", "message"),
    [
        (errno.ENOENT, False, "it does not exist"),
        (errno.EEXIST, True, "it exists"),
        (errno.EIO, True, "Input/output error"),
        (errno.ENOSPC, False, "No space left on device; free some space"),
        (
            errno.ENOSPC,
            True,
            "No space left on device; free some space and write again, nothing was changed",
        ),
        (errno.EDQUOT, False, "Disk quota exceeded; raise the quota"),
        (errno.EROFS, True, "Read-only file system; the directory is read-only"),
        (
            errno.ENOLCK,
            False,
            "No locks available; the file system offers no locks now: `kudulite doctor DIRECTORY`"
            " tests it",
        ),
        (
            errno.ESTALE,
            False,
            "Stale file handle; the network file system has another file there: open the table"
            " again",
        ),
        (
            errno.ENOTDIR,
            False,
            "Not a directory; a file is in the place of a folder: move it away",
        ),
        (
            errno.EISDIR,
            False,
            "Is a directory; a folder is in the place of the file: move it away",
        ),
        (errno.EACCES, False, "Permission denied; check the permissions of the folder"),
    ],
)
def test_a_message_says_what_to_do(number: int, is_unchanged: bool, message: str):
    """A promise that nothing was changed is made only where the caller makes it."""
    error = storage_error("write", "/a/b", OSError(number, "x"), is_unchanged=is_unchanged)
    assert (error.errno, error.strerror) == (number, f"cannot write /a/b: {message}")


def test_an_error_without_a_number_keeps_its_text():
    """Libraries raise such."""
    error = storage_error("open", "/a", OSError("map failed"))
    assert (error.errno, error.strerror) == (0, "cannot open /a: map failed")


def test_only_an_os_error_is_turned():
    """It is chained; anything else passes."""
    cause = OSError(errno.EIO, "x")
    with pytest.raises(StorageError) as found, storage_errors("read", "/a"):
        raise cause
    assert found.value.__cause__ is cause
    with pytest.raises(ZeroDivisionError), storage_errors("read", "/a"):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        pa.ArrowMemoryError("malloc of size 64 failed"),
        OSError("ZSTD decompression failed: Allocation error : not enough memory"),
        RuntimeError("can't start new thread"),
        OSError("Resource temporarily unavailable"),
    ],
)
def test_a_lack_of_memory_is_no_damage(error: Exception):
    """It is an error of ours and of Python, and says that the file may be good."""
    with pytest.raises(OutOfMemoryError, match="^/a/b: not enough memory to .* may be good$") as c:
        with arrow_errors("/a/b", "cannot read the footer"):
            raise error
    assert isinstance(c.value, MemoryError) and isinstance(c.value, RetryableError)
    assert c.value.__cause__ is error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (pa.ArrowInvalid("Column cannot have more than one dictionary."), CorruptionError),
        (OSError("Couldn't deserialize thrift"), CorruptionError),
        (IndexError("list index out of range"), CorruptionError),
        (OSError(errno.EIO, "x"), StorageError),
        (RuntimeError("dictionary changed size during iteration"), RuntimeError),
    ],
)
def test_other_errors_of_a_file_are_what_they_were(error: Exception, kind: type):
    """Damage, a lost disk, and our own mistakes."""
    with pytest.raises(kind, match="x" if kind is StorageError else None):
        with arrow_errors("/x", "cannot read the footer"):
            raise error
