"""The dictionary model of a table: what every write must leave, at every commit timestamp.

A write is a list of rows `(operation, {column: value})` applied one after the other; a row error
of any refuses the whole write. Columns that a row does not name are not provided by the write.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import kudulite
from kudulite.errors import RowError
from kudulite.model.types import ColumnType
from tests.support.oracle.version_model import Key, Row, Version, VersionModel

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

    A row that is left without a value for a `required` column refuses the write, and so does one
    that sets an `immutable` column where it may not.
    """

    key_names: Sequence[str]
    value_names: Sequence[str]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    immutable: frozenset = frozenset()
    rows: dict[Key, Row] = field(default_factory=dict)
    versions: list[tuple[int, dict[Key, Row]]] = field(default_factory=list)
    tombstones: dict[Key, Any] = field(default_factory=dict)

    def write(
        self,
        operations: Sequence[tuple[str, Row]],
        *,
        ignore_null: bool = False,
        overwrite: bool = False,
        unchanged: str | None = None,
    ) -> Counts:
        """Apply all rows or raise RowError and change nothing.

        `unchanged` makes no difference: it only says what a table stores.
        """
        rows = {} if overwrite else {key: dict(row) for key, row in self.rows.items()}
        counts = Counts()
        for operation, row in operations:
            self._apply(rows, operation, row, ignore_null, counts)
        self._check_required(rows)
        self.rows = rows
        return counts

    def write_ordered(
        self,
        operations: Sequence[tuple[str, Row]],
        ordering: str,
        *,
        overwrite: bool = False,
    ) -> Counts:
        """Apply a mixed write with an ordering column: the newest change of each key wins.

        The highest value is; of equal ones a delete; of equal upserts that with the greater cells.
        """
        rows = {} if overwrite else {key: dict(row) for key, row in self.rows.items()}
        if overwrite:
            self.tombstones = {}
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
        given = {} if operation in DELETES else self._set(operation, row, ignore_null, is_present)
        if operation in DELETES and is_present:
            del rows[key]
            counts.deleted += 1
        elif operation in (*UPSERTS, *UPDATES) and is_present:
            rows[key].update(given)
            counts.updated += 1
        elif operation in (*INSERTS, *UPSERTS) and not is_present:
            blank = {name: self.defaults.get(name) for name in self.value_names}
            blank |= dict.fromkeys(self.required, MISSING)
            rows[key] = {**blank, **given}
            counts.inserted += 1
        elif operation.endswith("_ignore"):
            counts.ignored += 1
        else:
            raise RowError(f"{operation} of {key}: {'present' if is_present else 'absent'}")

    def _check_required(self, rows: Mapping[Key, Row]) -> None:
        for key, row in rows.items():
            if MISSING in row.values():
                raise RowError(f"{key} without a value for a required column")

    def _set(self, operation: str, row: Row, ignore_null: bool, is_present: bool) -> Row:
        """The cells that an operation sets; RowError for an immutable one that it may not set."""
        given = self._given(row, ignore_null)
        if self.immutable.isdisjoint(given):
            return given
        if operation == "update" or (operation == "upsert" and is_present):
            raise RowError(f"{operation} of an immutable cell", reason=RowError.REASON_IMMUTABLE)
        if operation == "update_ignore" or (operation == "upsert_ignore" and is_present):
            return {name: cell for name, cell in given.items() if name not in self.immutable}
        return given

    def _given(self, row: Row, ignore_null: bool) -> Row:
        return {
            name: row[name]
            for name in self.value_names
            if name in row and not (ignore_null and row[name] is None)
        }


def sort_key(row: Sequence[Any]) -> list:
    """Order tuples with None first in each place."""
    return [(value is not None, value) for value in row]


@dataclass
class RowModel(ModelTable):
    """A ModelTable whose rows can also be written one by one; no tablet owns `uncovered` keys."""

    uncovered: frozenset[Key] = frozenset()

    def write(self, operations: Sequence[tuple[str, Row]], **options: Any) -> Counts:
        """Apply all rows or raise RowError and change nothing."""
        self.expect_covered(operations)
        return super().write(operations, **options)

    def expect_covered(self, operations: Sequence[tuple[str, Row]]) -> None:
        """Raise RowError for a key that no tablet owns."""
        if any(self.key(row) in self.uncovered for _, row in operations):
            raise RowError("a key that no tablet owns", reason=RowError.REASON_NO_PARTITION)

    def write_each(self, operations: Sequence[tuple[str, Row]]) -> tuple[Counts, dict[int, str]]:
        """Apply each row that can be; returns counts, and {position: reason} of the others."""
        counts, failures = Counts(), {}
        for number, (operation, row) in enumerate(operations):
            reason = self._reason(operation, row)
            if reason is None:
                self._apply(self.rows, operation, row, False, counts)
            else:
                failures[number] = reason
        return counts, failures

    def _reason(self, operation: str, row: Row) -> str | None:
        """Why the table cannot take a row now, or None."""
        key = self.key(row)
        is_present = key in self.rows
        if key in self.uncovered:
            return RowError.REASON_NO_PARTITION
        if operation in (*UPDATES, *UPSERTS):
            try:
                given = self._set(operation, row, False, is_present)
            except RowError as error:
                return error.reason
            if operation == "update_ignore" and not given:
                return RowError.REASON_NO_FIELDS
        if operation == "insert" and is_present:
            return RowError.REASON_ALREADY_PRESENT
        if operation in ("update", "delete") and not is_present:
            return RowError.REASON_NOT_FOUND
        makes_row = not is_present and operation not in ("update_ignore", *DELETES)
        if makes_row and not self.required <= row.keys():
            return RowError.REASON_MISSING
        return None

    def expect_complete(self) -> None:
        """No row lacks a required value: the model itself is right."""
        assert not any(MISSING in row.values() for row in self.rows.values())


Shown = dict[Key, tuple]
# (change type, commit timestamp, row or None at the start, row or None at the end)
Change = tuple[str, int, tuple | None, tuple | None]


@dataclass(frozen=True)
class ModelColumn:
    """A column that is no key column; `id` is the model's own number."""

    id: int
    name: str
    type: ColumnType
    nullable: bool = True
    read_default: Any = None
    write_default: Any = None
    mutable: bool = True


@dataclass
class HistoryModel(RowModel):
    """A RowModel whose value names are column ids, and which knows every version of every key.

    It also knows the columns of every moment, and when each column was added.
    """

    columns: list[ModelColumn] = field(default_factory=list)
    schemas: list[tuple[int, list[ModelColumn]]] = field(default_factory=list)
    added: dict[int, int] = field(default_factory=dict)
    histories: VersionModel = field(default_factory=VersionModel)
    timestamps: list[int] = field(default_factory=list)
    _touched: dict[Key, set[int] | None] = field(default_factory=dict)

    def set_columns(self, columns: Sequence[ModelColumn], since: int = 0) -> None:
        """Go on with other columns, which moments from `since` have; rows keep what they have."""
        known = {column.id for column in self.columns}
        self.added |= {column.id: since for column in columns if column.id not in known}
        is_seen = _seen(columns) != _seen(self.columns)
        self.columns = list(columns)
        if is_seen:
            assert not self.timestamps or self.timestamps[-1] < since, "altered before a commit"
            self.schemas.append((since, self.columns))
            if since:
                self._note_moment(since)
        else:
            self.schemas[-1] = self.schemas[-1][0], self.columns
        self.value_names = [column.id for column in columns]
        self.defaults = {column.id: column.write_default for column in columns}
        self.immutable = frozenset(column.id for column in columns if not column.mutable)

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
        self.histories.remove(keys)

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
                touched.update(self._set(operation, row, ignore_null, True))

    def changed_keys(self) -> list[Key]:
        """The keys that the last write changed."""
        return [key for key, touched in self._touched.items() if self._is_changed(key, touched)]

    def _is_changed(self, key: Key, touched: set[int] | None) -> bool:
        was_live, is_live = self.histories.row(key) is not None, key in self.rows
        return was_live != is_live or (is_live and (touched is None or bool(touched)))

    def commit(self, timestamp_of: Callable[[Key], int]) -> None:
        """Make what the last write changed the newest versions of their keys."""
        for key in self.changed_keys():
            touched, row = self._touched[key], self.rows.get(key)
            is_all = touched is None or row is None or self.histories.row(key) is None
            timestamp = timestamp_of(key)
            versions = self.histories.by_key.get(key)
            assert not versions or timestamp > versions[-1].timestamp, (key, timestamp, versions)
            copied = None if row is None else dict(row)
            columns = None if is_all else frozenset(touched)
            self.histories.add(key, Version(timestamp, copied, columns))
            self._note_moment(timestamp)
        self._touched = {}

    def _note_moment(self, timestamp: int) -> None:
        at = bisect_right(self.timestamps, timestamp)
        if not at or self.timestamps[at - 1] != timestamp:
            insort(self.timestamps, timestamp)

    # -- reading

    def at(self, timestamp: int | None) -> Shown:
        """The rows at a moment (None: now), by key, as a scan of all columns shows them."""
        rows = self.rows if timestamp is None else self.histories.at(timestamp)
        columns = self.columns_at(timestamp)
        return {key: shown(key, row, columns) for key, row in rows.items()}

    def columns_at(self, timestamp: int | None) -> list[ModelColumn]:
        """The columns of a moment (None: now)."""
        found = self.columns
        for since, columns in reversed(self.schemas):
            found = columns
            if timestamp is None or since <= timestamp:
                break
        return found

    def shown_until(self, key: Key, row: Row, end: int) -> tuple:
        """A row that ended at a moment, with the columns of now: null in those added since."""
        cells = shown(key, row, self.columns)[len(key) :]
        pairs = zip(self.columns, cells, strict=True)
        return (*key, *(None if end <= self.added[c.id] else cell for c, cell in pairs))

    def changes(self, start: int, end: int) -> dict[Key, Change]:
        """The changes in (start, end], by key, with the columns of the end."""
        found, columns = {}, self.columns_at(end)
        for key in self.histories.by_key:
            counted = self._counted(key, columns)
            stamps = [v.timestamp for v in counted if start < v.timestamp <= end]
            before, after = self.histories.row(key, start), self.histories.row(key, end)
            if not stamps or (before is None and after is None):
                continue
            name = "insert" if before is None else "delete" if after is None else "update_postimage"
            rows = (None if row is None else shown(key, row, columns) for row in (before, after))
            found[key] = (name, stamps[-1], *rows)
        return found

    def history(self, key: Key, mark: int) -> list[Version]:
        """The versions of a key after `mark`, oldest first."""
        return [v for v in self._counted(key, self.columns) if v.timestamp > mark]

    def _counted(self, key: Key, columns: Sequence[ModelColumn]) -> list[Version]:
        """The versions of a key that are changes under these columns."""
        ids = {column.id for column in columns}
        versions = self.histories.by_key.get(key, [])
        return [v for v in versions if v.columns is None or not ids.isdisjoint(v.columns)]

    def prune(self, mark: int) -> None:
        """Forget what no legal read can show."""
        self.histories.prune(mark)
        del self.timestamps[: bisect_right(self.timestamps, mark - 1)]


def _seen(columns: Sequence[ModelColumn]) -> list[tuple]:
    """The past keeps the parts of a column that reads use; defaults of writes are none of them."""
    return [(column.id, column.name, column.type) for column in columns]


def shown(key: Key, row: Row, columns: Sequence[ModelColumn]) -> tuple:
    """A row as a tuple of its key and some columns."""
    return (*key, *(row.get(column.id, column.read_default) for column in columns))


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda found, value: found == value,
    "!=": lambda found, value: found != value,
    "<": lambda found, value: found < value,
    ">=": lambda found, value: found >= value,
}


def predicate_of(column: kudulite.ColumnExpression, how: str, value: Any) -> kudulite.Predicate:
    """The predicate `column how value`; for "in" the value is a list."""
    made = {
        "=": lambda: column == value,
        "!=": lambda: column != value,
        "<": lambda: column < value,
        ">=": lambda: column >= value,
        "null": column.is_null,
        "not null": column.is_not_null,
        "in": lambda: column.in_list(value),
    }
    return made[how]()


def holds(found: Any, how: str, value: Any) -> bool:
    """Whether a cell meets a condition: null only "null", texts as bytes."""
    if how == "null":
        return found is None
    if how == "not null" or found is None:
        return found is not None
    if how == "in":
        return found in value
    if isinstance(found, str):
        found, value = found.encode(), value.encode()
    return COMPARISONS[how](found, value)
