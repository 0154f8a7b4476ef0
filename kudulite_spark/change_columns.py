"""The columns that a read of changes has beside the table's, as Spark sees them.

_change_type       STRING    insert, update or delete
_commit_timestamp  BIGINT    a HybridTime; startTimestamp and snapshotTimestamp take it
_before            STRUCT    with changeImages=both: the row at the window's start, NULL for an
                             insert; the columns are those of the projection
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import LongType, StringType, StructField, StructType

from kudulite import Schema
from kudulite.errors import ColumnNotFoundError, SchemaError
from kudulite_spark.types import spark_schema

CHANGE_TYPE, COMMIT_TIMESTAMP, BEFORE = "_change_type", "_commit_timestamp", "_before"
CHANGE_COLUMNS = (CHANGE_TYPE, COMMIT_TIMESTAMP, BEFORE)


def change_schema(schema: Schema, names: Sequence[str] | None, with_before: bool) -> StructType:
    """Return the Spark schema of changes with the named columns of the table (all by default)."""
    fields = list(spark_schema(schema, names))
    added = [
        StructField(CHANGE_TYPE, StringType(), False),
        StructField(COMMIT_TIMESTAMP, LongType(), False),
    ]
    if with_before:
        inner = [StructField(f.name, f.dataType, True, f.metadata) for f in fields]
        added.append(StructField(BEFORE, StructType(inner), True))
    return StructType([*fields, *added])


def table_columns(wanted: StructType, path: str, own: StructType) -> StructType:
    """Return the table's columns of a schema given by the user, after a look at the others.

    `own` is the schema that the changes have by themselves. Raises ColumnNotFoundError for
    `_before` without changeImages=both, SchemaError for another type of a column of changes.
    """
    for field in wanted.fields:
        if field.name not in CHANGE_COLUMNS:
            continue
        if field.name not in own.names:
            raise ColumnNotFoundError(
                f"table {path!r}: changes have a column {field.name!r} only with the option"
                " changeImages=both"
            )
        if field.dataType != own[field.name].dataType:
            raise SchemaError(
                f"table {path!r}, column {field.name!r} of its changes is"
                f" {own[field.name].dataType.simpleString()}; the schema given says"
                f" {field.dataType.simpleString()}"
            )
        if own[field.name].nullable and not field.nullable:
            raise SchemaError(
                f"table {path!r}, column {field.name!r} of its changes may be NULL; the schema"
                " given says NOT NULL"
            )
    return StructType([field for field in wanted.fields if field.name not in CHANGE_COLUMNS])
