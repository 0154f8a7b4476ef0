"""Descriptors that are kept: each is given back once."""

import errno
import os
from pathlib import Path

import pytest

from kudulite.errors import StorageError
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.open_file import AppendFile


@pytest.mark.parametrize("error", [OSError(errno.EIO, "late write error"), KeyboardInterrupt()])
def test_a_close_that_raises_is_not_done_again(tmp_path: Path, monkeypatch, error: BaseException):
    """The kernel has taken the number back by then, and gives it to the next file."""
    (tmp_path / "log").touch()
    file = AppendFile(LocalStorage(), tmp_path / "log")
    close = os.close

    def fails(descriptor: int) -> None:
        close(descriptor)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", fails)
        with pytest.raises(type(error)):
            file.close()
    with (tmp_path / "other").open("wb") as other:
        file.close()
        other.write(b"still open")
    with pytest.raises(StorageError):
        file.size()
