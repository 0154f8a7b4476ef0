"""The parts that every table of a process shares: file system, clock, block cache."""

from __future__ import annotations

import functools

from kudulite.catalog.table_store import Environment
from kudulite.cfile.block_cache import BlockCache
from kudulite.fs.file_system import FileSystem
from kudulite.mvcc.hybrid_time import Clock

BLOCK_CACHE_BYTES = 512 << 20


@functools.cache
def default_environment() -> Environment:
    """Return the process's environment, made at first use.

    Scan tokens and bulk writes that arrive from another process open their table with it.
    """
    return Environment(FileSystem(), Clock(), BlockCache(BLOCK_CACHE_BYTES))
