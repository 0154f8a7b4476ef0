"""Open an immutable file by memory map and check what can be checked without reading it.

A map outlives the file's name: a reader that holds one is not disturbed when a file sweep removes
the file. Files are never shortened in place, so touching the map cannot fault.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa

from kudulite.errors import CorruptionError, StorageError
from kudulite.fs.file_system import FileRef


def open_mapped(path: Path, ref: FileRef) -> pa.NativeFile:
    """Map `path` for reading; any number of threads may read the result at given offsets.

    Raises StorageError when the file is missing or unreadable, CorruptionError when its length is
    not the one in `ref`. Checksums are the caller's: who reads everything checks `ref.crc32`.
    """
    try:
        length = os.stat(path).st_size
        if length != ref.length:
            raise CorruptionError(f"{path}: {length} bytes on disk, expected {ref.length}")
        return pa.memory_map(str(path), "r")
    except FileNotFoundError as error:
        raise StorageError(errno.ENOENT, f"cannot open {path}: it does not exist") from error
    except OSError as error:
        raise StorageError(error.errno or 0, f"cannot open {path}: {error}") from error
