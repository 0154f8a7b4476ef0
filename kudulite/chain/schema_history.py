"""Schemas of the past: the columns of a table at an earlier moment.

    schema        id 0 "id"   id 2 "a"              now
    change        until T2: columns {1: id 1 "a"}, added (2,)
    before T2     id 0 "id"   id 1 "a"              a was dropped and added again at T2

An alteration of the columns at T keeps how the schema before differs: its columns that were
dropped, renamed or widened at T, each with its place, and the ids of those that were added. So a
change is small, however many columns the table has. Other attributes of columns (defaults for
inserts, comments, encodings) are not part of the past.

The cells of a dropped column stay in the table as long as a moment before the drop can be read.
Files hold columns by id, so the column has no name among the columns of now.

**Invariants**: (1) changes are in the order of their moments; (2) columns that stay keep their
order, and added ones follow; (3) a change never changes.

**Threads**: any.

**Source**: schemas with ids of their own, as in the table metadata of Apache Iceberg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kudulite.errors import SchemaError
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.model.schema import Column, Schema
from kudulite.storage.json_form import JsonForm


@dataclass(frozen=True)
class PlacedColumn:
    """A column, and its place in the schema."""

    place: int
    column: Column

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `from_json` gives an equal one back."""
        return {"place": self.place, **self.column.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PlacedColumn:
        """Return what `to_json` stored. Raises one of `WRONG_STRUCTURE`, or SchemaError."""
        fields = dict(value)
        place = fields.pop("place")
        if type(place) is not int or place < 0:
            raise ValueError(f"place {place!r} of a column")
        return cls(place, Column.from_json(fields))


@dataclass(frozen=True)
class SchemaChange(JsonForm):
    """How the schema of the moments before `until` differs from the one after it.

    `columns` were dropped or altered, `added` are the ids of columns that were not there.
    """

    until: int
    columns: tuple[PlacedColumn, ...]
    added: tuple[int, ...]

    @staticmethod
    def of(old: Schema, new: Schema, until: int) -> SchemaChange | None:
        """Return the change from `old` to `new`, None if reads see the same columns."""
        columns = tuple(
            PlacedColumn(place, column)
            for place, column in enumerate(old.columns)
            if not _is_same(column, new.column_by_id(column.id))
        )
        added = tuple(c.id for c in new.columns if old.column_by_id(c.id) is None)
        return SchemaChange(until, columns, added) if columns or added else None

    def before(self, newer: Schema) -> Schema:
        """Return the schema before the change, given the one after it. Raises SchemaError."""
        gone = {*self.added, *(placed.column.id for placed in self.columns)}
        columns = [column for column in newer.columns if column.id not in gone]
        for placed in self.columns:
            columns.insert(placed.place, placed.column)
        first_added = min(self.added, default=newer.next_column_id)
        return Schema(tuple(columns), newer.key_count, first_added)


def _is_same(column: Column, newer: Column | None) -> bool:
    return newer is not None and (column.name, column.type) == (newer.name, newer.type)


def schemas_before(changes: Sequence[SchemaChange], newest: Schema) -> list[tuple[int, Schema]]:
    """Return each earlier schema with the moment at which it ended, the newest first."""
    found, schema = list[tuple[int, Schema]](), newest
    for change in reversed(changes):
        schema = change.before(schema)
        found.append((change.until, schema))
    return found


def moved_names(old: Schema, new: Schema) -> dict[str, str]:
    """Return the names of `old` that mean no column or another one in `new`, each with the reason.

    The reasons are predicates of a sentence: "was dropped".
    """
    moved = {}
    for column in old.columns:
        now = new.column_by_id(column.id)
        if now is None:
            moved[column.name] = "was dropped"
        elif now.name != column.name:
            moved[column.name] = f"is named {now.name!r} now"
        if column.name in moved and column.name in new:
            moved[column.name] += ", and its name is that of another column"
    return moved


def check_changes(changes: Sequence[SchemaChange], newest: Schema) -> None:
    """Raise ValueError for changes that were read and do not lead to schemas."""
    stamps = [change.until for change in changes]
    if stamps != sorted(set(stamps)) or max(stamps, default=0) > TIMESTAMP_MAX:
        raise ValueError(f"changes of the schema at {stamps}, expected ascending moments")
    try:
        schemas = schemas_before(changes, newest)
        with_dropped(changes, newest)
    except SchemaError as error:
        raise ValueError(f"changes of the schema: {error}") from error
    for change, (_, schema) in zip(reversed(changes), schemas, strict=True):
        found = dict(enumerate(schema.columns))
        if any(found.get(placed.place) is not placed.column for placed in change.columns):
            raise ValueError(f"the change of the schema at {change.until} has wrong places")


def with_dropped(changes: Sequence[SchemaChange], newest: Schema) -> Schema:
    """Return the schema of all columns that files hold for reads: those of now and dropped ones.

    A dropped column follows the others, as it was before the drop, under a name of no other.
    """
    dropped: dict[int, Column] = {}
    for change in changes:
        for placed in change.columns:
            if newest.column_by_id(placed.column.id) is None:
                dropped[placed.column.id] = placed.column
    if not dropped:
        return newest
    names, columns = set(newest.names), list(newest.columns)
    for column in dropped.values():
        name = f"dropped {column.id}"
        while name in names:
            name += "'"
        names.add(name)
        # Rows that were written after the drop have no value.
        columns.append(replace(column, name=name, nullable=True))
    return Schema(tuple(columns), newest.key_count, newest.next_column_id)
