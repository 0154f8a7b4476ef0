"""The dictionary of row versions: the cells of each key from a moment on, or no row.

Models and machines note a version for each change of a row and compare reads at any moment with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from kudulite.wal.row_codec import CHANGE_DELETE, CHANGE_UPDATE

Key = tuple
Row = dict[Any, Any]  # cells by the name or the id of a column
LAST = 1 << 60  # a moment after all
_timestamp = attrgetter("timestamp")


@dataclass(frozen=True)
class Version:
    """The cells of a row from a moment on, or None for no row."""

    timestamp: int
    row: Row | None
    columns: frozenset[Any] | None = None  # the updated columns; None for all


@dataclass
class VersionModel:
    """Versions by key; those of one key are in order of time."""

    by_key: dict[Key, list[Version]] = field(default_factory=dict)

    def add(self, key: Key, version: Version) -> None:
        """Add the newest version of a key."""
        versions = self.by_key.setdefault(key, [])
        assert not versions or version.timestamp >= versions[-1].timestamp, (key, version)
        versions.append(version)

    def change(self, timestamp: int, key: Key, op: int, values: Row) -> None:
        """Add the version that an INSERT, UPDATE or DELETE makes (CHANGE_… of the row codec)."""
        before = self.row(key) if op == CHANGE_UPDATE else {}
        assert before is not None
        self.add(key, Version(timestamp, None if op == CHANGE_DELETE else before | values))

    def remove(self, keys: Collection[Key]) -> None:
        """Remove all versions of keys."""
        for key in keys:
            self.by_key.pop(key, None)

    def row(self, key: Key, timestamp: int | None = None) -> Row | None:
        """Return the cells of a key at a moment (None: now); None where there is no row."""
        versions = self.by_key.get(key, [])
        at = len(versions)
        if timestamp is not None:
            at = bisect_right(versions, timestamp, key=_timestamp)
        return versions[at - 1].row if at else None

    def at(self, timestamp: int) -> dict[Key, Row]:
        """Return the rows that a snapshot sees."""
        found = {key: self.row(key, timestamp) for key in self.by_key}
        return {key: row for key, row in found.items() if row is not None}

    def timestamps(self) -> Iterator[int]:
        """Yield the timestamp of each version."""
        for versions in self.by_key.values():
            yield from map(_timestamp, versions)

    def moments(self) -> list[int]:
        """Return the timestamp of each version, the moment before it, and one after all."""
        stamps = set(self.timestamps())
        return sorted({*stamps, *(stamp - 1 for stamp in stamps), LAST})

    def prune(self, mark: int) -> None:
        """Remove the versions that no read at the mark or later can see."""
        for versions in self.by_key.values():
            # The version at the mark is needed, older ones are not.
            del versions[: max(0, bisect_right(versions, mark, key=_timestamp) - 1)]
        last = {key: versions[-1] for key, versions in self.by_key.items()}
        self.remove([k for k, v in last.items() if v.row is None and v.timestamp <= mark])
