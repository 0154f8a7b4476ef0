"""Columns of a scan that was planned before the table was altered.

A plan names columns; what it means are their ids. Between plan and read a column may be renamed,
dropped, or dropped and added again under its name, so whoever reads asks here: a renamed column
is read under the name that it had, a dropped one is an error, and never another column's values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kudulite.errors import ConflictError
from kudulite.model.predicate import Predicate
from kudulite.model.schema import Schema

ColumnIds = tuple[tuple[str, int], ...]


def planned_columns(
    schema: Schema, names: Sequence[str], predicates: Sequence[Predicate]
) -> ColumnIds:
    """Return (name, id) of the key columns and of those that a scan projects or compares."""
    wanted = {*schema.key_names, *names, *(predicate.column for predicate in predicates)}
    return tuple((column.name, column.id) for column in schema.columns if column.name in wanted)


def check_still_there(table: str, columns: ColumnIds, now: Schema) -> None:
    """Raise ConflictError when a planned column was dropped."""
    for name, column_id in columns:
        if now.column_by_id(column_id) is None:
            raise ConflictError(
                f"table {table!r}: column {name!r} was dropped after the scan was planned; scan"
                " again"
            )


def schema_as_planned(table: str, columns: ColumnIds, now: Schema) -> Schema:
    """Return the schema of planned columns under the names they had. Raises ConflictError."""
    check_still_there(table, columns, now)
    found = [(name, now.column_by_id(column_id)) for name, column_id in columns]
    if all(column is not None and column.name == name for name, column in found):
        return now
    # Key columns are planned always, so that no other column can have an old name of theirs.
    renamed = tuple(replace(column, name=name) for name, column in found if column is not None)
    return Schema(renamed, now.key_count, now.next_column_id)
