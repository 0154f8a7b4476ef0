"""Where a table is: from an option's path to the open table, and to its catalog and name.

A table is addressed by its own directory, `<root>/<table>`. Spark passes a path as it was typed,
and each of its Python processes has a directory of its own. The driver-side ones (planning, commit)
share that in which the JVM was started, so a relative path is made absolute there, before it
travels.
"""

from __future__ import annotations

import os
from pathlib import Path

import kudulite
from kudulite import Client, Table
from kudulite.errors import TableNotFoundError, UsageError
from kudulite_spark.options import local_path


def absolute_path(path: str | os.PathLike[str], base: str | None = None) -> str:
    """Return the absolute form of a path or file: URL, seen from `base` (default: this process)."""
    return os.path.abspath(os.path.join(base or os.getcwd(), local_path(os.fspath(path))))


def open_table(path: str) -> Table:
    """Open the table in the directory `path`; TableNotFoundError says what is there instead."""
    return kudulite.open_table(path)


def find_table(path: str) -> Table | None:
    """Open the table at `path`, or return None where one may be made: nothing, or an empty folder.

    UsageError when something else is there that a new table must not mix with."""
    try:
        return kudulite.open_table(path)
    except TableNotFoundError as error:
        place = Path(path)
        if place.is_dir() and not any(place.iterdir()):
            return None
        if place.exists() or place.is_symlink():
            raise UsageError(f"{path}: no table is made here: {error}") from error
        return None


def catalog_of(path: str) -> tuple[Client, str]:
    """Return the catalog that holds, or would hold, the table at `path`, and the table's name."""
    root, name = os.path.split(path)
    if not name:
        raise UsageError(f"path {path!r} is the root directory; a table needs one of its own")
    # What runs in the background is lost when a process of Spark's ends: see `maintain`.
    return kudulite.connect(root, background_maintenance=False), name
