"""Schemas of new tables, described column by column, or taken from Arrow.

    schema([column("id", "int64"), column("n", "int32", default=0)], primary_key="id")
    schema_from_arrow(frame.schema, ["id"])

Both make key columns NOT NULL. Those of an Arrow schema, whose rows have names, move to the front.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from kudulite.errors import SchemaError
from kudulite.model.schema import (
    AUTO_INCREMENTING_ID,
    NEW_COLUMN_ID,
    Column,
    Schema,
    auto_incrementing_column,
)
from kudulite.model.types import ColumnType, parse_type, type_from_arrow


def column(
    name: str,
    type_: ColumnType | str,
    *,
    nullable: bool = True,
    default: Any = None,
    encoding: str = "auto",
    compression: str = "default",
    comment: str = "",
    mutable: bool = True,
) -> Column:
    """Return a column for `schema`; its type is an object or text, as in "decimal(9, 2)".

    An insert that leaves the cell unset stores `default`. `encoding` and `compression` are those of
    pages on disk: compression "default" is zstd where that makes the column a fifth smaller. Cells
    of a column that is not `mutable` keep the value that the insert of their row gave them: an
    `update` or `upsert` that sets one is refused, `update_ignore` and `upsert_ignore` leave it as
    it is. A comment has at most 256 bytes. Raises SchemaError.
    """
    return Column(
        id=NEW_COLUMN_ID,
        name=name,
        type=_type_of(name, type_),
        nullable=nullable,
        read_default=default,
        write_default=default,
        encoding=encoding,
        compression=compression,
        comment=comment,
        mutable=mutable,
    )


def _type_of(name: str, given: object) -> ColumnType:
    if isinstance(given, ColumnType):
        return given
    try:
        if isinstance(given, str):
            return parse_type(given)
    except SchemaError as error:
        raise SchemaError(f"column {name!r}: {error}") from error
    raise SchemaError(
        f"column {name!r}: the type is {given!r}, expected a kudulite.ColumnType or its name, such"
        " as kudulite.int64 or 'decimal(9, 2)'"
    )


def schema(
    columns: Sequence[Column], primary_key: Sequence[str] | str, *, is_unique: bool = True
) -> Schema:
    """Return the schema of a new table, of columns that `column` made.

    Key columns must be the first, in the order of the key: a row that is given as a tuple then has
    its values in the order of `columns`. They become NOT NULL. Several rows may have the same key
    if it is not unique: the column `auto_incrementing_id` then follows it in the key. The engine
    numbers new rows of each tablet in it from 1, and an insert leaves it out. Raises SchemaError.
    """
    for each in columns:
        if not isinstance(each, Column):
            raise SchemaError(
                f"{each!r} is no column of a schema; make one with kudulite.column('id', 'int64')"
            )
    key = [primary_key] if isinstance(primary_key, str) else list(primary_key)
    made = [replace(each, nullable=each.nullable and each.name not in key) for each in columns]
    whole = key
    if key and not is_unique:
        made.insert(len(key), auto_incrementing_column())
        whole = [*key, AUTO_INCREMENTING_ID]
    built = Schema.build(made, whole)
    if built.names != [each.name for each in made]:
        first = ", ".join(each.name for each in columns[: len(key)])
        raise SchemaError(
            f"primary key ({', '.join(key)}): its columns must be the first of the schema, in the"
            f" order of the key; the schema begins with {first}: list the columns of the key first"
        )
    return built


def schema_from_arrow(
    arrow_schema: pa.Schema, primary_key: Sequence[str], table: str = ""
) -> Schema:
    """Return the schema of a new table for data of `arrow_schema`.

    Key columns move to the front in the order given and become NOT NULL; order and nullability of
    the others stay. SchemaError names `table` and the field that cannot be a column."""
    columns = []
    for item in arrow_schema:
        try:
            column_type = type_from_arrow(item.type)
        except SchemaError as error:
            where = f"table {table!r}, " if table else ""
            raise SchemaError(f"{where}column {item.name!r}: {error}") from error
        nullable = item.nullable and item.name not in primary_key
        columns.append(Column(NEW_COLUMN_ID, item.name, column_type, nullable=nullable))
    return Schema.build(columns, primary_key)
