"""Open an immutable file and check what can be checked without reading it.

    up to 64 KiB    is read: its content is in memory, and counts there
    larger          is mapped, without a descriptor that stays open

A process may have 65,530 maps (vm.max_map_count) and often only 1,024 descriptors; tables of many
small rowsets would use up both. Whoever keeps a file for longer counts `kept_bytes` in the block
cache, so that its capacity bounds the number of maps: 2 GiB are 32,768.

A map outlives the file's name: a reader that holds one is not disturbed when a file sweep removes
the file. Files are never shortened in place, so touching the map cannot fault.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from kudulite.errors import CorruptionError
from kudulite.fs.file_system import FileRef
from kudulite.fs.storage_error import storage_error

MAPPED_BYTES_MIN = 64 << 10


def is_mapped(ref: FileRef) -> bool:
    """Whether an opened file is a map, and not in memory."""
    return ref.length > MAPPED_BYTES_MIN


def kept_bytes(ref: FileRef) -> int:
    """Return what an opened file counts for in the block cache: its content, or its map."""
    return min(ref.length, MAPPED_BYTES_MIN)


def open_mapped(path: Path, ref: FileRef) -> pa.NativeFile:
    """Open `path`; any number of threads may read the result at given offsets, without a copy.

    Raises StorageError when the file is missing or unreadable, CorruptionError when its length is
    not the one in `ref`. Checksums are the caller's: who reads everything checks `ref.crc32`.
    """
    try:
        length = os.stat(path).st_size
        if length != ref.length:
            raise CorruptionError(f"{path}: {length} bytes on disk, expected {ref.length}")
        if not is_mapped(ref):
            return pa.BufferReader(path.read_bytes())
        with pa.memory_map(str(path), "r") as file:
            return pa.BufferReader(file.read_buffer())
    except OSError as error:
        raise storage_error("open", path, error) from error
