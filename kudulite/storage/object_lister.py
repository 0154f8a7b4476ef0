"""ObjectLister: what is in a store below a path, and how old it is by the clock of the store.

    below(folder)      all objects          list, a request for each 1,000
    inside(folder)     those in it, and the next parts of longer names

Other tools put empty objects as marks of folders, whose names end with a slash: consoles of stores,
Hadoop. The library gives their names without it. They are left out, because an object with the name
of a folder would be a file beside the folder to the layers above.

The clock of the store is asked for at most once, with an object of our own, where an age is needed.

**Threads**: any.

**Source**: obstore, which is object_store of Apache Arrow's Rust project.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
from obstore.store import ObjectStore

from kudulite.errors import StorageError
from kudulite.storage.object_errors import store_errors

# path, size, last_modified and more of an object, as the store says them.
Facts = Any


class ObjectLister:
    """Lists objects of `store`."""

    def __init__(self, store: ObjectStore, name_of: Callable[[Path], str]) -> None:
        """`name_of` gives the name of the object at a path."""
        self._store = store
        self._name_of = name_of
        self._clock_seconds: float | None = None  # the store's clock minus ours

    def _prefix(self, folder: Path) -> str | None:
        name = self._name_of(folder)
        return None if name == "." else name

    def is_above(self, path: Path) -> bool:
        """Whether a path is in front of the name of an object."""
        prefix = self._prefix(path)
        with store_errors("list", path):
            stream = obstore.list(self._store, prefix=prefix, chunk_size=2)
            return any(found["path"] != prefix for found in itertools.chain.from_iterable(stream))

    def below(self, folder: Path) -> list[Facts]:
        """Return the objects below a folder."""
        prefix = self._prefix(folder)
        with store_errors("list", folder):
            found = list(itertools.chain.from_iterable(obstore.list(self._store, prefix=prefix)))
        folders = {prefix, ""}
        for each in found:
            parent = each["path"].rpartition("/")[0]
            while parent not in folders:
                folders.add(parent)
                parent = parent.rpartition("/")[0]
        return [each for each in found if each["size"] or each["path"] not in folders]

    def inside(self, folder: Path) -> tuple[list[Facts], list[str]]:
        """Return the objects in a folder, and the names up to the next slash of all others."""
        prefix = self._prefix(folder)
        with store_errors("list", folder):
            found = obstore.list_with_delimiter(self._store, prefix=prefix)
        objects = [each for each in found["objects"] if each["path"] != prefix]
        return objects, list(found["common_prefixes"])

    def ages(self, folder: Path, objects: list[Facts], now: float) -> list[float]:
        """Return the seconds since each object was put, at a time by our clock."""
        if objects:
            now += self._clock_difference(folder)
        return [now - each["last_modified"].timestamp() for each in objects]

    def _clock_difference(self, folder: Path) -> float:
        """Return the seconds by which the store's clock is ahead of ours, found with an object.

        The object is put into `folder`. A process that may not put one gets 0.
        """
        if self._clock_seconds is None:
            found = 0.0
            path = folder / f".clock-{uuid.uuid4().hex}"
            name = self._name_of(path)
            with contextlib.suppress(StorageError), store_errors("create", path):
                before = time.time()
                obstore.put(self._store, name, b"")
                put_at = obstore.head(self._store, name)["last_modified"].timestamp()
                found = put_at - before
                obstore.delete(self._store, name)
            self._clock_seconds = found
        return self._clock_seconds
