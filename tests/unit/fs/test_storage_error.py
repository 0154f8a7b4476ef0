"""The wording of a failed file operation: what, where, why, and what to do."""

import errno

import pytest

from kudulite.errors import StorageError
from kudulite.fs.file_system import storage_error, storage_errors


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
