"""schemaEvolution: the table gets what a DataFrame has and it lacks, before the rows are written.

Missing columns are added, nullable, with the DataFrame's type and comment. Columns whose type the
DataFrame's is a widening of (INT to BIGINT, FLOAT to DOUBLE, more digits of a DECIMAL, a longer
VARCHAR) are widened, except in the key. Nothing is dropped, renamed or narrowed, and no row is
rewritten. All of it is one alteration, made once by the planner of the write.

The alteration stays when the write fails: another write may use the columns already, and a column
that shows only NULL does no harm. Several writes may do this at once: who comes second finds the
columns there, and a write that was prepared before columns were added commits all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql.types import StructField

from kudulite import Column, ColumnType, Schema, Table
from kudulite.errors import NotSupportedError, SchemaError
from kudulite_spark.column_names import find_name
from kudulite_spark.table_path import catalog_of, open_table
from kudulite_spark.types import column_comment, column_type


@dataclass(frozen=True)
class Evolution:
    """What a table lacks for some fields: new columns (type and comment), and wider types."""

    added: dict[str, tuple[ColumnType, str]] = field(default_factory=dict)
    widened: dict[str, ColumnType] = field(default_factory=dict)


def evolved_table(path: str, fields: Sequence[StructField]) -> Table:
    """Return the table at `path` with room for `fields`, altered if need be.

    Raises SchemaError for a Spark type that no column can have, LockTimeoutError."""
    table = open_table(path)
    while True:
        schema = table.schema
        evolution = needed_evolution(schema, path, fields)
        if evolution == Evolution():
            return table
        alterer = catalog_of(path)[0].new_table_alterer(table)
        for name, (added, comment) in evolution.added.items():
            alterer.add_column(name, added, nullable=True).comment(comment)
        for name, wider in evolution.widened.items():
            alterer.alter_column(name).type(wider)
        try:
            return alterer.alter()
        except (SchemaError, NotSupportedError):
            # Another write has added or widened the same: look again at what is still missing.
            if table.schema == schema:
                raise


def needed_evolution(schema: Schema, path: str, fields: Sequence[StructField]) -> Evolution:
    """Return what a table of this schema lacks for `fields`."""
    evolution = Evolution()
    for given in fields:
        name = find_name(given.name, schema.names, f"table {path!r}")
        try:
            wanted = column_type(given)
        except SchemaError as error:
            if name is not None:
                continue  # whether its values can be written is for the write to say
            raise SchemaError(f"table {path!r}: schemaEvolution cannot add {error}") from error
        if name is None:
            evolution.added[given.name] = (wanted, column_comment(given))
        elif name not in schema.key_names and _is_wider(wanted, schema.column(name)):
            evolution.widened[name] = wanted
    return evolution


def _is_wider(wanted: ColumnType, column: Column) -> bool:
    # A plain STRING says nothing of lengths: every expression of a VARCHAR is one.
    if wanted == column.type or wanted.name == "string":
        return False
    return column.type.can_widen_to(wanted)
