"""A small file that stands for an operation under way, and that its process holds until it dies.

    create .<name> ─ lock ─ write ─ rename to <name>       nobody finds the name unlocked
    remove <name> ─ close                                  the operation has ended

The lock is a `flock`, like that of a tablet. `is_held` asks for a shared one, so that two callers
do not take each other for the holder. Nothing is fsynced: a power failure ends the operation too.

**Threads**: any. A forked child closes the file, and the parent still holds it.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from kudulite.storage.open_file import DescriptorOwner, DurableSteps, open_descriptor
from kudulite.storage.storage_error import storage_error, storage_errors
from kudulite.storage.table_lock import close_in_child, try_lock


class HeldFile(DescriptorOwner):
    """A file at `path`, held until this object is closed or dropped."""

    def __init__(self, storage: DurableSteps, path: Path, content: bytes) -> None:
        """Make the file, in a folder that is there. Raises StorageError."""
        close_in_child(self)
        hidden = path.with_name(f".{path.name}")
        storage.before("create", path)
        with storage_errors("create", path, is_unchanged=True):
            while self._descriptor < 0:
                # `remove_hidden` may find it before it is locked.
                with hidden.open("xb", buffering=0) as file, suppress(FileNotFoundError):
                    fcntl.flock(file, fcntl.LOCK_EX)
                    file.write(content)
                    os.rename(hidden, path)
                    self._descriptor = os.dup(file.fileno())

    def let_go(self, content: bytes) -> None:
        """Leave the file to nobody, with another content that is as long."""
        if self._descriptor >= 0:
            os.pwrite(self._descriptor, content, 0)
            self.close()


def is_held(path: Path) -> bool:
    """Whether a process holds a file; False where there is none. Raises StorageError."""
    try:
        descriptor = open_descriptor(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_error("open", path, error) from error
    try:
        if not try_lock(descriptor, path, is_shared=True):
            return True
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may have the open file too
        return False
    finally:
        os.close(descriptor)


def remove_hidden(folder: Path) -> None:
    """Remove what processes that died have left of files that had no name yet."""
    with storage_errors("list", folder):
        hidden = list(folder.glob(".*"))
    for path in hidden:
        if not is_held(path):
            with storage_errors("remove", path):
                path.unlink(missing_ok=True)


def touch(path: Path) -> bool:
    """Note that a file is in use, by its time of change; return False where there is none."""
    try:
        os.utime(path)
    except PermissionError:
        return True  # of another user
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_error("touch", path, error) from error
    return True
