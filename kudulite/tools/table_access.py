"""Opening a table by its folder, for commands that look below what `Table` shows."""

from __future__ import annotations

import os
from pathlib import Path

from kudulite.catalog.table_store import Environment, TableStore
from kudulite.cfile.block_cache import BlockCache
from kudulite.fs.file_system import FileSystem
from kudulite.mvcc.hybrid_time import Clock

_CACHE_BYTES = 256 << 20


def open_store(path: str) -> TableStore:
    """Open the table in the folder `path`. Raises TableNotFoundError that says what is there."""
    environment = Environment(FileSystem(), Clock(), BlockCache(_CACHE_BYTES))
    store = TableStore(Path(os.path.abspath(path)), environment)
    store.newest()
    return store
