"""Schema evolution: what a table lacks to store some columns, added in one alteration.

    table.upsert(rows, schema_evolution=True)
    table.extend_schema(frame.schema)

Columns that are missing are added, nullable; rows that are there have NULL in them. Types are
widened where every value keeps its meaning: int32 to int64, float to double, decimal to more
digits, varchar to a longer one. Key columns are not. Nothing is dropped, renamed or narrowed, and
no row is rewritten.

The turn of the alteration looks once more for columns that are missing, so several writers add a
column once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from kudulite.errors import SchemaError
from kudulite.model.new_schema import column
from kudulite.model.schema import Column, Schema
from kudulite.model.types import ColumnType, type_from_arrow
from kudulite.reads.row_sources import arrow_schema, read_once
from kudulite.table.table_store import TableStore
from kudulite.upkeep.alter import TableDraft, alter_table


def extend_schema(store: TableStore, columns: Sequence[Column]) -> None:
    """Add and widen columns of the table where it cannot store `columns`; nothing else is changed.

    Raises SchemaError, LockTimeoutError, StorageError.
    """
    schema = store.newest().schema
    if _missing(schema, columns) or _wider(schema, columns):
        alter_table(store, [partial(_extended, columns=columns)])


def evolved(store: TableStore, data: Any, *, others: Collection[str] = ()) -> Any:
    """Return rows to write, after the table has got the columns that it lacks for them.

    `others` are no columns of the table. Raises SchemaError, LockTimeoutError, StorageError.
    """
    schema = store.newest().schema
    data, has_types = read_once(data, store.name)
    fields = pa.schema([f for f in arrow_schema(data, store.name) if f.name not in others])
    extend_schema(store, columns_to_store(fields, schema, store.name, has_types=has_types))
    return data


def _extended(draft: TableDraft, columns: Sequence[Column]) -> TableDraft:
    for name, wider in _wider(draft.schema, columns):
        draft = draft.change_column(name, {"type": wider})
    for missing in _missing(draft.schema, columns):
        draft = draft.add_column(replace(missing, nullable=True))
    return draft


def _missing(schema: Schema, columns: Sequence[Column]) -> list[Column]:
    return [given for given in columns if given.name not in schema.names]


def _wider(schema: Schema, columns: Sequence[Column]) -> list[tuple[str, ColumnType]]:
    """Return columns that have narrower types than the given ones, with the new types."""
    found = []
    for given in columns:
        if given.name not in schema.names or given.name in schema.key_names:
            continue
        old = schema.column(given.name).type
        # Arrow's and Spark's plain texts have no length, so they do not ask for a longer one.
        if given.type != old and given.type.name != "string" and old.can_widen_to(given.type):
            found.append((given.name, given.type))
    return found


def columns_to_store(
    fields: pa.Schema, schema: Schema, table: str, *, has_types: bool
) -> list[Column]:
    """Return the columns that a table needs for rows of some Arrow fields.

    Without types of their own, as in dicts of Python, rows need only columns that are missing.
    Raises SchemaError for a field that no column can be made of.
    """
    found = []
    for field in fields:
        is_there = field.name in schema.names
        if is_there and not has_types:
            continue
        try:
            found.append(column(field.name, type_from_arrow(field.type)))
        except SchemaError as error:
            if not is_there:  # the write says which values it cannot store
                where = f"table {table!r}: cannot add column {field.name!r}"
                raise SchemaError(f"{where}: {error}") from error
    return found
