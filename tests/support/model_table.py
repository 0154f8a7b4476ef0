"""The dictionary model of a table: what every write must leave, at every commit timestamp.

A write is a list of rows `(operation, {column: value})` applied one after the other; a row error
of any refuses the whole write. Columns that a row does not name are not provided by the write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kudulite.errors import RowError

Key = tuple
Row = dict[str, Any]
INSERTS = ("insert", "insert_ignore")
UPSERTS = ("upsert", "upsert_ignore")
UPDATES = ("update", "update_ignore")
DELETES = ("delete", "delete_ignore")
MISSING = object()
OPERATIONS = (*INSERTS, *UPSERTS, *UPDATES, *DELETES)


@dataclass
class Counts:
    """How many rows of a write had which outcome."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    ignored: int = 0


@dataclass
class ModelTable:
    """Rows by key, now and after each commit; `defaults` are the write defaults of columns.

    A row that is left without a value for a `required` column refuses the write.
    """

    key_names: Sequence[str]
    value_names: Sequence[str]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    rows: dict[Key, Row] = field(default_factory=dict)
    versions: list[tuple[int, dict[Key, Row]]] = field(default_factory=list)
    tombstones: dict[Key, Any] = field(default_factory=dict)

    def write(
        self,
        operations: Sequence[tuple[str, Row]],
        *,
        ignore_null: bool = False,
        overwrite: bool = False,
    ) -> Counts:
        """Apply all rows or raise RowError and change nothing."""
        rows = {} if overwrite else {key: dict(row) for key, row in self.rows.items()}
        counts = Counts()
        for operation, row in operations:
            self._apply(rows, operation, row, ignore_null, counts)
        self._check_required(rows)
        self.rows = rows
        return counts

    def write_ordered(self, operations: Sequence[tuple[str, Row]], ordering: str) -> Counts:
        """Apply a mixed write with an ordering column: the newest change of each key wins.

        The highest value is; of equal ones a delete; of equal upserts that with the greater cells.
        """
        rows = {key: dict(row) for key, row in self.rows.items()}
        newest: dict[Key, tuple[str, Row]] = {}
        counts = Counts()

        def rank(row: Row, given: Row, is_delete: bool) -> list:
            names = [] if is_delete else [name for name in self.value_names if name in given]
            return sort_key([row[ordering], is_delete, *(row[name] for name in names)])

        for operation, row in operations:
            key = self.key(row)
            best = newest.get(key)
            is_delete = operation in DELETES
            if best is None or rank(row, row, is_delete) >= rank(
                best[1], best[1], best[0] in DELETES
            ):
                newest[key] = operation, row
        counts.ignored = len(operations) - len(newest)
        for key, (operation, row) in newest.items():
            is_delete = operation in DELETES
            held = None
            if key in rows:
                held = rank(rows[key], row, is_delete=False)
            elif key in self.tombstones:
                held = rank({ordering: self.tombstones[key]}, {}, is_delete=True)
            if held is not None and held >= rank(row, row, is_delete):
                counts.ignored += 1
                continue
            if is_delete:
                self.tombstones[key] = row[ordering]
            effective = "delete_ignore" if operation in DELETES else "upsert"
            self._apply(rows, effective, row, False, counts)
        self._check_required(rows)
        self.rows = rows
        return counts

    def committed(self, timestamp: int) -> None:
        """Remember the rows as those of a commit at `timestamp`."""
        self.versions.append((timestamp, {key: dict(row) for key, row in self.rows.items()}))

    def key(self, row: Row) -> Key:
        """The key of a row."""
        return tuple(row[name] for name in self.key_names)

    def tuples(self, rows: Mapping[Key, Row] | None = None) -> list[tuple]:
        """All rows as tuples in schema order, in the order of `sort_key`."""
        found = self.rows if rows is None else rows
        return sorted(
            ((*key, *(row[name] for name in self.value_names)) for key, row in found.items()),
            key=sort_key,
        )

    def _apply(
        self, rows: dict[Key, Row], operation: str, row: Row, ignore_null: bool, counts: Counts
    ) -> None:
        key = self.key(row)
        is_present = key in rows
        if operation in DELETES and is_present:
            del rows[key]
            counts.deleted += 1
        elif operation in (*UPSERTS, *UPDATES) and is_present:
            rows[key].update(self._given(row, ignore_null))
            counts.updated += 1
        elif operation in (*INSERTS, *UPSERTS) and not is_present:
            blank = {name: self.defaults.get(name) for name in self.value_names}
            blank |= dict.fromkeys(self.required, MISSING)
            rows[key] = {**blank, **self._given(row, ignore_null)}
            counts.inserted += 1
        elif operation.endswith("_ignore"):
            counts.ignored += 1
        else:
            raise RowError(f"{operation} of {key}: {'present' if is_present else 'absent'}")

    def _check_required(self, rows: Mapping[Key, Row]) -> None:
        for key, row in rows.items():
            if MISSING in row.values():
                raise RowError(f"{key} without a value for a required column")

    def _given(self, row: Row, ignore_null: bool) -> Row:
        return {
            name: row[name]
            for name in self.value_names
            if name in row and not (ignore_null and row[name] is None)
        }


def sort_key(row: Sequence[Any]) -> list:
    """Order tuples with None first in each place."""
    return [(value is not None, value) for value in row]
