"""Columns of a scan that was planned before the table was altered.

A plan names columns, and keeps their ids. Between plan and read a column may be renamed, dropped,
or dropped and added again under its name. A renamed column is read under the name that it had; a
dropped one is an error; another column's values are never read in its place. A column whose type
was widened is read in the wider type, because files may have it, and returned in the type that it
had: at the plan's moment every value fitted that type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from kudulite.errors import ConflictError
from kudulite.model.predicate import Predicate
from kudulite.model.schema import Column, Schema
from kudulite.model.types import ColumnType


class PlannedColumn(NamedTuple):
    """What a name meant when the scan was planned."""

    name: str
    id: int
    type: ColumnType


ColumnIds = tuple[PlannedColumn, ...]


def planned_columns(
    schema: Schema, names: Sequence[str], predicates: Sequence[Predicate]
) -> ColumnIds:
    """Return the key columns and those that a scan projects or compares, as they are."""
    wanted = {*schema.key_names, *names, *(predicate.column for predicate in predicates)}
    return tuple(PlannedColumn(c.name, c.id, c.type) for c in schema.columns if c.name in wanted)


def check_still_there(table: str, columns: ColumnIds, now: Schema) -> None:
    """Raise ConflictError when a planned column was dropped."""
    for column in columns:
        if now.column_by_id(column.id) is None:
            raise ConflictError(
                f"table {table!r}: column {column.name!r} was dropped after the scan was planned;"
                " scan again"
            )


def schema_as_planned(table: str, columns: ColumnIds, now: Schema) -> Schema:
    """Return the schema of planned columns under the names they had, in the types they have.

    Raises ConflictError.
    """
    check_still_there(table, columns, now)
    found = [(planned.name, now.column_by_id(planned.id)) for planned in columns]
    if all(column is not None and column.name == name for name, column in found):
        return now
    # Key columns are planned always, so that no other column can have an old name of theirs.
    renamed = tuple(replace(column, name=name) for name, column in found if column is not None)
    return Schema(renamed, now.key_count, now.next_column_id)


def with_planned_types(now: Schema, columns: ColumnIds) -> Schema:
    """Return the schema with the types that planned columns had; the others stay as they are.

    It is for reading: a default of what is written may not fit the narrower type by now.
    """
    planned = {column.id: column.type for column in columns}
    found = tuple(_with_type(column, planned.get(column.id)) for column in now.columns)
    return now if found == now.columns else replace(now, columns=found)


def _with_type(column: Column, planned: ColumnType | None) -> Column:
    if planned is None or planned == column.type:
        return column
    return replace(column, type=planned, write_default=None)


def in_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch in the types of `schema`, which has the same columns, maybe none."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    if not batch.num_columns:  # a cast would lose the number of rows
        return batch.replace_schema_metadata(schema.metadata)
    return batch.cast(schema)
