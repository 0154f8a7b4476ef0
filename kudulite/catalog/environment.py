"""The parts that every table of a process shares: file system, clock, block cache."""

from __future__ import annotations

import functools
import os

from kudulite.catalog.table_store import Environment
from kudulite.cfile.block_cache import BlockCache
from kudulite.fs.file_system import FileSystem
from kudulite.mvcc.hybrid_time import Clock

# Decoded blocks of point reads, key indexes, bloom filters and folded deltas. Lookups all over a
# table whose decoded columns do not fit decode a row group at almost every one.
BLOCK_CACHE_MEMORY_FRACTION = 8
BLOCK_CACHE_BYTES_MAX = 2 << 30


def block_cache_bytes() -> int:
    """Return the cache's capacity: an eighth of the machine's memory, at most 2 GiB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(memory // BLOCK_CACHE_MEMORY_FRACTION, BLOCK_CACHE_BYTES_MAX)


@functools.cache
def default_environment() -> Environment:
    """Return the process's environment, made at first use.

    Scan tokens and bulk writes that arrive from another process open their table with it.
    """
    return Environment(FileSystem(), Clock(), BlockCache(block_cache_bytes()))
