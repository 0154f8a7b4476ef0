"""From a DataFrame's schema and the options to a checked write.

Spark asks a source for its schema only to read. A write may therefore come with missing or unknown
columns, or with other types. Everything that follows from schema and options is checked here,
before a task starts and before a table is made. Values (ranges, lengths, duplicate keys) are
checked by the tasks and the commit.

**schemaEvolution** adds missing columns and widens types before the rows are written. Added columns
are nullable, with the DataFrame's type and comment. A column is widened if the DataFrame's type is
a widening of its type (INT to BIGINT, FLOAT to DOUBLE, more digits of a DECIMAL, a longer VARCHAR)
and it is not in the key. Nothing is dropped, renamed or narrowed, and no row is rewritten. The
planner makes all changes in one alteration.

The alteration stays if the write fails: another write may use the columns already, and a column
that shows only NULL does no harm. Several writes may do this at once: the later one finds the
columns present. A write that was prepared before columns were added can still be committed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructField, StructType

import kudulite
from kudulite.errors import (
    ColumnNotFoundError,
    OptionError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
)
from kudulite_spark.options import WriteOptions, absolute_path, catalog_of, find_table
from kudulite_spark.types import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    column_comment,
    column_type,
    find_name,
    is_writable,
    spark_schema,
    table_schema,
    with_layout_names,
)
from kudulite_spark.writer import PlannedWrite

if TYPE_CHECKING:
    from kudulite import Partitioning, Schema, Table

_OVERWRITE_OPERATIONS = ("insert", "insert_ignore", "upsert", "upsert_ignore")


def plan_write(
    options: WriteOptions, struct: StructType, overwrite: bool, owner: str | None = None
) -> PlannedWrite:
    """Check a write and begin it; a missing table is made as the options describe it.

    Files that earlier writes of `owner` staged are removed. Raises a UsageError that names the
    table, the option or column, and the expected value."""
    path = absolute_path(options.path)
    if overwrite and options.operation not in _OVERWRITE_OPERATIONS:
        raise OptionError(
            f"table {path!r}: mode overwrite empties the table first, so operation"
            f" {options.operation!r} would find no row; use"
            f" one of {', '.join(_OVERWRITE_OPERATIONS)}"
        )
    _check_unique(path, struct.fieldNames())
    options = _with_column_names(options, struct, path)
    table = find_table(path, options.storage_options)
    created_version = None
    if table is None:
        table, created = _made_table(path, options, struct)
        created_version = table.version if created else None
    _check_layout(table, path, with_layout_names(options, table.schema.names))
    columns = written_columns(table, path, options, struct)
    if options.schema_evolution:
        stored = [f for f in struct if f.name in columns and f.name != options.operation_column]
        table.extend_schema(columns_to_store(table.schema, path, stored))
        columns = written_columns(table, path, options, struct)
    operation_column, ordering_column = options.operation_column, options.ordering_column
    # The application of a stream has a version for each batch, which comes later.
    is_versioned = options.application_version is not None
    bulk_write = table.new_bulk_write(
        operation=options.operation,
        columns=[own for own in columns.values() if own != operation_column],
        operation_column=operation_column,
        ordering_column=columns[ordering_column] if ordering_column is not None else None,
        ignore_null=options.ignore_null,
        overwrite=overwrite,
        read_at=options.read_at,
        application_id=options.application_id if is_versioned else None,
        application_version=options.application_version,
        owner=owner,
        unchanged=options.unchanged,
    )
    if options.read_at is not None:
        bulk_write = bulk_write.merging()
    partition = table.partition_schema
    is_partitioned = bool(partition.range_columns or partition.hash_dimensions)
    return PlannedWrite(
        bulk_write,
        path,
        options,
        overwrite,
        columns,
        overwrite and is_partitioned and created_version is None,
        created_version,
    )


def _with_column_names(options: WriteOptions, struct: StructType, path: str) -> WriteOptions:
    """Return the options with the DataFrame's own names of its columns."""

    def own(option: str, name: str | None) -> str | None:
        where = f"table {path!r}: option {option!r}"
        found = None if name is None else find_name(name, struct.fieldNames(), where)
        if found is None and name is not None:
            raise ColumnNotFoundError(
                f"{where} names {name!r}, which the DataFrame does not have; its columns:"
                f" {', '.join(struct.fieldNames())}"
            )
        return found

    return replace(
        options,
        operation_column=own("operationColumn", options.operation_column),
        ordering_column=own("orderingColumn", options.ordering_column),
    )


def written_columns(
    table: Table, path: str, options: WriteOptions, struct: StructType
) -> dict[str, str]:
    """Return the DataFrame's columns that are written, each with its name in the table.

    Raises a UsageError if they do not match the table."""
    schema = table.schema
    own_names = _own_names(schema, path, options, struct)
    missing = [name for name in schema.key_names if name not in own_names.values()]
    if missing and missing != [schema.auto_incrementing]:  # an insert leaves that one out
        raise SchemaError(
            f"table {path!r}: the DataFrame lacks key column {', '.join(map(repr, missing))}; the"
            f" primary key is ({', '.join(schema.key_names)}), the DataFrame has"
            f" ({', '.join(struct.fieldNames())})"
        )
    written = set(struct.fieldNames()) - _dropped_columns(options, schema.names)
    if options.operation.startswith("delete") and options.operation_column is None:
        # A delete uses the key, and the ordering column if there is one.
        key = {name for name, own in own_names.items() if own in schema.key_names}
        written = {name for name in written if name in key or name == options.ordering_column}
    columns: dict[str, str] = {}
    for struct_field in struct:
        if struct_field.name not in written:
            continue
        own = own_names.get(struct_field.name)
        if own is not None:
            column = schema.column(own)
            if not is_writable(struct_field.dataType, column.type):
                raise SchemaError(
                    f"table {path!r}, column {own!r}: the DataFrame has"
                    f" {struct_field.dataType.simpleString()}, the column is {column.type}; cast it"
                )
        elif not (
            struct_field.name in (options.operation_column, options.ordering_column)
            or options.schema_evolution
        ):
            raise ColumnNotFoundError(
                f"table {path!r} has no column {struct_field.name!r}; its columns:"
                f" {', '.join(schema.names)}; option schemaEvolution adds missing columns"
            )
        columns[struct_field.name] = own or struct_field.name
    return columns


def _own_names(
    schema: Schema, path: str, options: WriteOptions, struct: StructType
) -> dict[str, str]:
    """Return the table's name of each column of the DataFrame that the table has."""
    sources: dict[str, str] = {}
    for name in struct.fieldNames():
        if name == options.operation_column and name not in schema.names:
            continue
        own = find_name(name, schema.names, f"table {path!r}")
        if own is None:
            continue
        if own in sources:
            raise SchemaError(
                f"table {path!r}: the DataFrame's columns {sources[own]!r} and {name!r} both mean"
                f" column {own!r}; drop or rename one"
            )
        sources[own] = name
    return {name: own for own, name in sources.items()}


def _dropped_columns(options: WriteOptions, known: Collection[str]) -> set[str]:
    """Return the columns of changes that are not written.

    With `operationColumn=_change_type` changes are written as they were read. The other columns of
    changes are dropped unless the target table has columns of these names.
    """
    if options.operation_column != CHANGE_TYPE:
        return set()
    return {COMMIT_VERSION, COMMIT_TIMESTAMP} - {options.ordering_column, *known}


def _made_table(path: str, options: WriteOptions, struct: StructType) -> tuple[Table, bool]:
    """Make the table; the flag is False if another writer made it first."""
    if options.primary_key is None:
        raise TableNotFoundError(
            f"no table at {path!r}; to make the table with this write, give option 'primaryKey', as"
            " in option('primaryKey', 'a, b'), or correct the path"
        )
    # The operation column is not stored. The ordering column is: later writes compare with it.
    left_out = {options.operation_column, *_dropped_columns(options, ())}
    data = StructType(
        [struct_field for struct_field in struct.fields if struct_field.name not in left_out]
    )
    options = with_layout_names(options, data.fieldNames())
    schema = table_schema(data, options.primary_key or (), path)
    client, name = catalog_of(path, options.storage_options)
    try:
        return client.create_table(name, schema, partitioning_of(options)), True
    except TableExistsError:
        return kudulite.open_table(path, storage_options=options.storage_options), False


def _check_layout(table: Table, path: str, options: WriteOptions) -> None:
    """Refuse a key or partitions that differ from the table's."""
    if options.primary_key not in (None, tuple(table.schema.key_names)):
        raise OptionError(
            f"table {path!r} exists with primary key ({', '.join(table.schema.key_names)}); option"
            f" 'primaryKey' says ({', '.join(options.primary_key or ())})"
        )
    own = table.partition_schema
    if options.hash_partitions is None:
        # A range's own hash partitions are compared with those of the table.
        dimensions = tuple((d.columns, d.bucket_count) for d in own.hash_dimensions)
        options = replace(options, hash_partitions=dimensions)
    asked = partitioning_of(options).build(table.schema)
    for option, given, text in (
        ("hashPartitions", options.hash_partitions, _hash_text),
        ("rangePartitions", options.range_partitions, _range_text),
    ):
        if given is not None and text(own) != text(asked):
            raise OptionError(
                f"table {path!r} exists with {text(own)}; option {option!r} says {text(asked)}"
            )


def partitioning_of(options: WriteOptions) -> Partitioning:
    """Return the partitioning that the options describe."""
    partitioning = kudulite.Partitioning()
    for names, bucket_count in options.hash_partitions or ():
        partitioning.add_hash_partitions(names, bucket_count)
    if options.range_partitions is not None:
        partitioning.set_range_partition_columns(options.range_partitions["columns"])
        for lower, upper, *hashed in options.range_partitions.get("bounds", ()):
            if not hashed:
                partitioning.add_range_partition(lower, upper)
                continue
            custom = kudulite.RangePartition(lower, upper)
            for names, bucket_count in hashed[0]:
                custom.add_hash_partitions(names, bucket_count)
            partitioning.add_custom_range_partition(custom)
    return partitioning


def described_partitioning(table: Table) -> dict[str, Any]:
    """Return the partition schema as java/Tablets.java reads it, without empty lists.

    Columns are indexes of fields of `schema`. Empty if rows need have no key column."""
    partition = table.partition_schema
    hashed = [d for dimensions in partition.hash_schemas for d in dimensions]
    used = {*partition.range_columns, *(name for d in hashed for name in d.columns)}
    own = [name for name in table.schema.key_names if name != table.schema.auto_incrementing]
    # A function needs a column, even if there is one tablet.
    names = [name for name in own if name in used] or own[:1]
    if not names:
        return {}

    def placed(found: dict[str, Any], option: str, columns: Sequence[str]) -> dict[str, Any]:
        return {**found, option: [names.index(name) for name in columns]} if columns else found

    ranges = []
    for number, (lower, _) in enumerate(partition.encoded_ranges):
        dimensions = [
            placed({"bucketCount": d.bucket_count, "seed": d.seed}, "columns", d.columns)
            for d in partition.hash_dimensions_of(number)
        ]
        first = partition.first_tablets[number]
        found = {"lower": (lower or b"").hex(), "firstTablet": first}
        ranges.append({**found, "hash": dimensions} if dimensions else found)
    whole = {
        "schema": spark_schema(table.schema, names).json(),
        "tabletCount": partition.tablet_count,
        "ranges": ranges,
    }
    return placed(whole, "rangeColumns", partition.range_columns)


def _hash_text(partition: Any) -> str:
    parts = [
        f"hash({', '.join(d.columns)}) into {d.bucket_count}" for d in partition.hash_dimensions
    ]
    return ", ".join(parts) or "no hash partitions"


def _range_text(partition: Any) -> str:
    if not partition.range_columns:
        return "no range partitions"
    return ", ".join(partition.describe_range(n) for n in range(len(partition.ranges)))


def _check_unique(path: str, names: Sequence[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SchemaError(
            f"table {path!r}: the DataFrame has more than one column {', '.join(repeated)}"
        )


def columns_to_store(
    schema: Schema, path: str, fields: Sequence[StructField]
) -> list[kudulite.Column]:
    """Return the columns that a table of this schema needs to store `fields`, under its names.

    Raises SchemaError for a Spark type that no column can have."""
    columns = []
    for given in fields:
        name = find_name(given.name, schema.names, f"table {path!r}")
        try:
            wanted = column_type(given)
        except SchemaError as error:
            if name is not None:
                continue  # the write checks whether its values can be stored
            raise SchemaError(f"table {path!r}: schemaEvolution cannot add {error}") from error
        columns.append(kudulite.column(name or given.name, wanted, comment=column_comment(given)))
    return columns
