"""The files that a process keeps open, of which it may need more than the usual 1024."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress
from pathlib import Path


class DescriptorOwner:
    """What has one file open, or none; gives it back at the latest when it is dropped."""

    _descriptor = -1

    def close(self) -> None:
        """Give the descriptor back; twice does no harm."""
        # Forgotten first: it is given back whatever `close` raises, and may be another file's then.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def open_descriptor(path: str | Path, flags: int) -> int:
    """Open a file; a process that has many open may from now on have as many as it is allowed.

    A commit holds the locks of all tablets that it touches, and a process keeps lock and log of
    each tablet open that has unflushed rows. Half of the limit is left to everything else. Raises
    OSError.
    """
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        _raise_limit()
        return os.open(path, flags)
    # The kernel gives the lowest number that is free.
    if 2 * descriptor > resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
        _raise_limit()
    return descriptor


def _raise_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # not everywhere may a process have its hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
