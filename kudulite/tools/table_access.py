"""Opening a table by its folder, for commands that look below what `Table` shows."""

from __future__ import annotations

import os
from pathlib import Path

from kudulite.catalog.environment import default_environment
from kudulite.catalog.table_store import TableStore


def open_store(path: str) -> TableStore:
    """Open the table in the folder `path`. Raises TableNotFoundError that says what is there."""
    store = TableStore(Path(os.path.abspath(path)), default_environment())
    store.newest()
    return store
