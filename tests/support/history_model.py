"""The dictionary model of a table with a history: per key its versions, each with its timestamp.

    key -> [(timestamp, row or None, ids of the columns that it set or None for all), …]

A row is {column id: value}; a column that was added after the row shows its read default, now and
in the past. A version that set only columns which were dropped since is no change any more. What is
before the ancient history mark may be forgotten (`prune`), but for the state at the mark.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from model_table import UPDATES, UPSERTS, Counts, Key, Row
from row_model import RowModel

from kudulite.model.types import ColumnType

Columns = frozenset[int] | None
Version = tuple[int, Row | None, Columns]
Shown = dict[Key, tuple]
# (change type, commit timestamp, row or None at the start, row or None at the end)
Change = tuple[str, int, tuple | None, tuple | None]
_timestamp = itemgetter(0)


@dataclass(frozen=True)
class ModelColumn:
    """A column that is no key column; `id` is the model's own number."""

    id: int
    name: str
    type: ColumnType
    nullable: bool = True
    read_default: Any = None
    write_default: Any = None


@dataclass
class HistoryModel(RowModel):
    """A RowModel whose value names are column ids, and which knows every version of every key."""

    columns: list[ModelColumn] = field(default_factory=list)
    histories: dict[Key, list[Version]] = field(default_factory=dict)
    timestamps: list[int] = field(default_factory=list)
    _touched: dict[Key, set[int] | None] = field(default_factory=dict)

    def set_columns(self, columns: Sequence[ModelColumn]) -> None:
        """Go on with other columns; rows keep what they have."""
        self.columns = list(columns)
        self.value_names = [column.id for column in columns]
        self.defaults = {column.id: column.write_default for column in columns}

    # -- writing

    def write(self, operations: Sequence[tuple[str, Row]], **options: Any) -> Counts:
        """Apply all rows, or raise RowError and change nothing; `commit` makes it a version."""
        self._touched = dict.fromkeys(self.rows) if options.get("overwrite") else {}
        try:
            return super().write(operations, **options)
        except BaseException:
            self._touched = {}
            raise

    def write_each(self, operations: Sequence[tuple[str, Row]]) -> tuple[Counts, dict[int, str]]:
        """Apply each row that can be; `commit` makes it a version."""
        self._touched = {}
        return super().write_each(operations)

    def delete_all(self, keys: Collection[Key]) -> None:
        """Delete keys, as a dropped range does; `commit` makes it a version."""
        self._touched = {key: None for key in keys if key in self.rows}
        for key in self._touched:
            del self.rows[key]

    def purge(self, keys: Collection[Key]) -> None:
        """Forget that keys ever were."""
        for key in keys:
            self.rows.pop(key, None)
            self.histories.pop(key, None)

    def _apply(
        self, rows: dict[Key, Row], operation: str, row: Row, ignore_null: bool, counts: Counts
    ) -> None:
        key = self.key(row)
        was_live = key in rows
        super()._apply(rows, operation, row, ignore_null, counts)
        if (key in rows) != was_live:
            # A row that is deleted and comes back in one write has an UPDATE of all its columns.
            has_all = key in self._touched and self._touched[key] is None
            self._touched[key] = None if has_all else set(self.value_names)
        elif was_live and operation in (*UPSERTS, *UPDATES):
            touched = self._touched.setdefault(key, set())
            if touched is not None:
                touched.update(self._given(row, ignore_null))

    def changed_keys(self) -> list[Key]:
        """The keys that the last write changed."""
        return [key for key, touched in self._touched.items() if self._is_changed(key, touched)]

    def _is_changed(self, key: Key, touched: set[int] | None) -> bool:
        was_live, is_live = self._newest(key) is not None, key in self.rows
        return was_live != is_live or (is_live and (touched is None or bool(touched)))

    def commit(self, timestamp_of: Callable[[Key], int]) -> None:
        """Make what the last write changed the newest versions of their keys."""
        for key in self.changed_keys():
            touched, row = self._touched[key], self.rows.get(key)
            is_all = touched is None or row is None or self._newest(key) is None
            timestamp = timestamp_of(key)
            versions = self.histories.setdefault(key, [])
            assert not versions or timestamp > versions[-1][0], (key, timestamp, versions[-1])
            copied = None if row is None else dict(row)
            versions.append((timestamp, copied, None if is_all else frozenset(touched)))
            at = bisect_right(self.timestamps, timestamp)
            if not at or self.timestamps[at - 1] != timestamp:
                insort(self.timestamps, timestamp)
        self._touched = {}

    def _newest(self, key: Key) -> Row | None:
        versions = self.histories.get(key)
        return versions[-1][1] if versions else None

    # -- reading

    def at(self, timestamp: int | None) -> Shown:
        """The rows at a moment (None: now), by key, as a scan of all columns shows them."""
        if timestamp is None:
            return {key: self.shown(key, row) for key, row in self.rows.items()}
        found = {key: _state(v, timestamp) for key, v in self.histories.items()}
        return {key: self.shown(key, row) for key, row in found.items() if row is not None}

    def shown(self, key: Key, row: Row) -> tuple:
        """A row as a tuple of all columns."""
        return (*key, *(row.get(column.id, column.read_default) for column in self.columns))

    def changes(self, start: int, end: int) -> dict[Key, Change]:
        """What changed in (start, end], by key."""
        found = {}
        for key, versions in self.histories.items():
            stamps = [v[0] for v in self._counted(versions) if start < v[0] <= end]
            before, after = _state(versions, start), _state(versions, end)
            if not stamps or (before is None and after is None):
                continue
            name = "insert" if before is None else "delete" if after is None else "update"
            rows = (None if row is None else self.shown(key, row) for row in (before, after))
            found[key] = (name, stamps[-1], *rows)
        return found

    def history(self, key: Key, mark: int) -> list[tuple[int, tuple | None]]:
        """(timestamp, row or None) of what a key went through after `mark`, oldest first."""
        return [
            (timestamp, None if row is None else self.shown(key, row))
            for timestamp, row, _ in self._counted(self.histories.get(key, []))
            if timestamp > mark
        ]

    def _counted(self, versions: Sequence[Version]) -> list[Version]:
        """The versions that still are changes under today's columns."""
        ids = set(self.value_names)
        return [v for v in versions if v[2] is None or not ids.isdisjoint(v[2])]

    def prune(self, mark: int) -> None:
        """Forget what no legal read can show."""
        for versions in self.histories.values():
            # What is at the mark is needed whole, what is before it is not.
            del versions[: max(0, bisect_right(versions, mark, key=_timestamp) - 1)]
        for key, (*_, (timestamp, row, _)) in list(self.histories.items()):
            if row is None and timestamp <= mark:
                del self.histories[key]
        del self.timestamps[: bisect_right(self.timestamps, mark - 1)]


def _state(versions: Sequence[Version], timestamp: int) -> Row | None:
    at = bisect_right(versions, timestamp, key=_timestamp)
    return versions[at - 1][1] if at else None
