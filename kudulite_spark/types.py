"""Spark's types and column names and kudulite's, in both directions.

    bool BOOLEAN · int8 TINYINT · int16 SMALLINT · int32 INT · int64 BIGINT · float FLOAT
    double DOUBLE · decimal(p, s) DECIMAL(p, s) · date DATE · unixtime_micros TIMESTAMP
    timestamp_ntz TIMESTAMP_NTZ · string, varchar(n) STRING · binary BINARY
    array(scalar) ARRAY<scalar>

Spark refuses VARCHAR in a Python source's schema. A varchar is therefore a STRING whose field has
Spark's own note of the length in its metadata: INSERT then checks lengths as for any varchar, and a
table made from a DataFrame with such a column gets a varchar again. CHAR(n), which Spark pads and
compares without the blanks at the end, is refused.

A read of changes has columns beside the table's:

    _change_type       STRING     insert, update_postimage or delete; with changeImages=both also
                                  update_preimage
    _commit_version    BIGINT     a HybridTime; startTimestamp and snapshotTimestamp accept it
    _commit_timestamp  TIMESTAMP  the same, to the microsecond

**Column names** are found in any case, as Spark SQL does. An exact match wins; otherwise the one
name that is equal in any case. A table may have `a` and `A`: then `a` means `a`, and another name
is never guessed. Spark does not pass its setting `spark.sql.caseSensitive` to a Python source, so
there is one rule for both values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

import kudulite
from kudulite.errors import ColumnNotFoundError, OptionError, SchemaError
from kudulite_spark.options import WriteOptions
from kudulite_spark.session_zone import session_zone

if TYPE_CHECKING:
    from kudulite import Column, ColumnType, Schema

# Spark keeps the declared type of a CHAR or VARCHAR column under this key of a field's metadata.
CHAR_VARCHAR_KEY = "__CHAR_VARCHAR_TYPE_STRING"
# Spark keeps a column's DEFAULT, as text of SQL, under these.
CURRENT_DEFAULT, EXISTS_DEFAULT = "CURRENT_DEFAULT", "EXISTS_DEFAULT"
# The note on the first column, which the JVM extension removes; see java/Load.java.
_NOTE = "kudulite.table"
_CHAR, _VARCHAR = re.compile(r"char\((\d+)\)"), re.compile(r"varchar\((\d+)\)")

_SPARK_OF_NAME: dict[str, DataType] = {
    "bool": BooleanType(),
    "int8": ByteType(),
    "int16": ShortType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "date": DateType(),
    "unixtime_micros": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "string": StringType(),
    "varchar": StringType(),
    "binary": BinaryType(),
}

CHANGE_TYPE, COMMIT_VERSION = "_change_type", "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"
CHANGE_COLUMNS = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)


_NAME_OF_SPARK: dict[type[DataType], str] = {
    type(spark): name for name, spark in _SPARK_OF_NAME.items() if name != "varchar"
}
_INTEGER_DIGITS: dict[type[DataType], int] = {
    ByteType: 3,
    ShortType: 5,
    IntegerType: 10,
    LongType: 19,
}
_TEXT = (StringType, VarcharType, CharType)


def spark_type(column_type: ColumnType) -> DataType:
    """Return the Spark type in which values of a kudulite column are read."""
    if column_type.name == "decimal":
        assert column_type.precision is not None and column_type.scale is not None
        return DecimalType(column_type.precision, column_type.scale)
    if column_type.element is not None:
        return ArrayType(spark_type(column_type.element), containsNull=True)
    return _SPARK_OF_NAME[column_type.name]


def spark_schema(schema: Schema, names: Sequence[str] | None = None) -> StructType:
    """Return the Spark schema of the named columns (all by default), in the order named."""
    named = column_names(schema) if names is None else names
    return StructType([_spark_field(schema.column(name)) for name in named])


def column_names(schema: Schema) -> list[str]:
    """Return the names of all columns in the order in which Spark shows them.

    It is that of the DataFrame or the statement that made the table, then of ALTER TABLE, and that
    of the ids. In the schema the key columns are the first."""
    return [column.name for column in sorted(schema.columns, key=lambda column: column.id)]


def with_row_count(struct: StructType, row_count: int, counted_at: str | None) -> StructType:
    """Return the schema with a note for the JVM extension at its first column.

    It has the read's row count, which may be an estimate, and the snapshot at which Python can
    count the rows, if it can.
    """
    counted = {} if counted_at is None else {"countedAt": counted_at}
    return with_note(struct, {"rowCount": row_count, **counted})


def with_note(struct: StructType, note: Mapping[str, object]) -> StructType:
    """Return the schema with more in the JVM extension's note at its first column."""
    if not struct.fields:
        return struct
    first, *rest = struct.fields
    noted = {**first.metadata, _NOTE: {**first.metadata.get(_NOTE, {}), **note}}
    return StructType([StructField(first.name, first.dataType, first.nullable, noted), *rest])


def arrow_schema(struct: StructType) -> pa.Schema:
    """Return the Arrow schema, with nullability, that Spark requires of the batches of a read.

    Spark's own function for it has different parameters in each minor version.
    """
    return pa.schema([_arrow_field(field) for field in struct])


def _arrow_field(field: StructField) -> pa.Field:
    if isinstance(field.dataType, StructType):  # the row before, in changes
        inner = pa.struct([_arrow_field(own) for own in field.dataType])
        return pa.field(field.name, inner, field.nullable)
    return pa.field(field.name, column_type(field).arrow, field.nullable)


def _spark_field(column: Column) -> StructField:
    metadata = {}
    scalar = column.type.element or column.type
    if scalar.name == "varchar":
        note = f"varchar({scalar.length})"
        metadata[CHAR_VARCHAR_KEY] = f"array<{note}>" if column.type.is_array else note
    if column.comment:
        metadata["comment"] = column.comment
    return StructField(column.name, spark_type(column.type), column.nullable, metadata or None)


def column_type(field: StructField) -> ColumnType:
    """Return the kudulite type for a Spark column. Raises SchemaError if there is none."""
    spark = field.dataType
    note = str((field.metadata or {}).get(CHAR_VARCHAR_KEY, ""))
    noted = _VARCHAR.fullmatch(note)
    if isinstance(spark, CharType) or _CHAR.fullmatch(note):
        length = spark.length if isinstance(spark, CharType) else note[5:-1]
        raise SchemaError(
            f"column {field.name!r}: CHAR({length}) is not supported: Spark pads its values with"
            f" blanks and compares them without; declare VARCHAR({length}), or make the column of"
            f" a CHAR with rtrim({field.name})"
        )
    if isinstance(spark, VarcharType):
        return kudulite.varchar(spark.length)
    if isinstance(spark, StringType) and spark != StringType():
        raise SchemaError(
            f"column {field.name!r}: {spark.simpleString()} is not supported; kudulite compares"
            " strings as bytes (UTF8_BINARY)"
        )
    if isinstance(spark, StringType) and noted:
        return kudulite.varchar(int(noted.group(1)))
    if isinstance(spark, DecimalType):
        return kudulite.decimal(spark.precision, spark.scale)
    if isinstance(spark, ArrayType) and not isinstance(spark.elementType, ArrayType):
        metadata = {CHAR_VARCHAR_KEY: note.removeprefix("array<").removesuffix(">")}
        element = StructField(field.name, spark.elementType, metadata=metadata)
        try:
            return kudulite.array(column_type(element))
        except SchemaError as error:
            raise SchemaError(f"{error} (an element of {spark.simpleString()})") from error
    name = _NAME_OF_SPARK.get(type(spark))
    if name is None:
        known = ", ".join(dict.fromkeys(kind.simpleString() for kind in _SPARK_OF_NAME.values()))
        raise SchemaError(
            f"column {field.name!r}: Spark type {spark.simpleString()} has no column type in"
            f" kudulite; supported: {known}, decimal(p,s), varchar(n), array of these"
        )
    return kudulite.ColumnType(name)


def column_comment(field: StructField) -> str:
    """Return the comment of a Spark column, empty if it has none."""
    return str((field.metadata or {}).get("comment", ""))


def table_schema(
    struct: StructType,
    primary_key: str | Sequence[str],
    path: str,
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> Schema:
    """Return the schema of a new table for rows of `struct`: key columns first and NOT NULL.

    With the name `auto_incrementing_id` at its end the key is not unique. Nullability and comments
    of the other columns are kept; `defaults` are by name. SchemaError or ColumnNotFoundError name
    the table's path and the column."""
    names, key = [primary_key] if isinstance(primary_key, str) else list(primary_key), []
    number_name = kudulite.Schema.get_auto_incrementing_column_name()
    is_unique = number_name not in names
    if not is_unique and (names.index(number_name) == 0 or names.pop() != number_name):
        raise SchemaError(
            f"table {path!r}: primary key ({', '.join(primary_key)}): {number_name} stands after"
            " the columns of a key that is not unique"
        )
    for name in names:
        own = find_name(name, struct.fieldNames(), f"table {path!r}: primary key")
        if own is None:
            raise ColumnNotFoundError(
                f"table {path!r}: primary key column {name!r} is none of the given columns:"
                f" {', '.join(struct.fieldNames())}"
            )
        key.append(own)
    columns = [
        kudulite.Column(
            id=index,
            name=field.name,
            type=column_type(field),
            nullable=field.nullable and field.name not in key,
            comment=column_comment(field),
            read_default=defaults.get(field.name),
            write_default=defaults.get(field.name),
        )
        for index, field in enumerate(struct.fields)
        if is_unique or field.name != number_name
    ]
    if is_unique:
        return kudulite.Schema.build(columns, key)
    columns.sort(key=lambda c: key.index(c.name) if c.name in key else len(key))
    return kudulite.schema(columns, key, is_unique=False)


def default_value(name: str, column_type: ColumnType, text: str, zone: str) -> Any:
    """Return the value of a column's DEFAULT, a literal of SQL; None for NULL.

    A time without a zone is in that of the session. Raises SchemaError for other expressions and
    values of another type."""
    if text.strip().upper() == "NULL":
        return None
    try:
        if column_type.name == "unixtime_micros":
            try:
                found = _literal_value(text, kudulite.ColumnType("timestamp_ntz"))
                return found.replace(tzinfo=session_zone(zone))
            except OptionError:
                pass  # it names its zone
        return _literal_value(text, column_type)
    except (OptionError, SchemaError) as error:
        raise SchemaError(
            f"column {name!r} is {column_type}: DEFAULT {text} is no literal of this type; a"
            " default is stored as a value, as in DEFAULT 1, DEFAULT 'text' or DEFAULT DATE"
            " '2026-01-31'"
        ) from error


def _literal_value(text: str, column_type: ColumnType) -> Any:
    """Return the value of a literal, which is read as in a condition on a column of the type."""
    key = kudulite.Column(id=0, name="key", type=kudulite.ColumnType("int8"), nullable=False)
    probe = kudulite.Schema.build(
        [key, kudulite.Column(id=1, name="value", type=column_type)], ["key"]
    )
    found = kudulite.parse_where(f"value = {text}", probe)
    if (
        len(found) != 1
        or not isinstance(found[0], kudulite.Predicate)
        or found[0].column != "value"
    ):
        raise OptionError(f"{text} is no literal")
    return found[0].value


def with_default_notes(struct: StructType, schema: Schema) -> StructType:
    """Return the Spark schema with the defaults of its columns, as Spark notes them."""
    fields = []
    for field in struct.fields:
        column = schema.column(field.name)
        notes = dict(field.metadata)
        if column.write_default is not None:
            notes[CURRENT_DEFAULT] = _default_text(column.write_default, column.type)
            # Spark requires it, for files without the column.
            notes[EXISTS_DEFAULT] = notes[CURRENT_DEFAULT]
        fields.append(StructField(field.name, field.dataType, field.nullable, notes))
    return StructType(fields)


def _default_text(value: Any, column_type: ColumnType) -> str:
    """Return a value as a literal of Spark SQL."""
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, bool | int) and column_type.name not in ("unixtime_micros", "date"):
        return str(value).lower()
    escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
    if column_type.name in ("string", "varchar"):
        return f"'{escaped}'"
    # TIMESTAMP is a type without a zone if spark.sql.timestampType says so.
    is_moment = column_type.name == "unixtime_micros"
    wanted = "timestamp_ltz" if is_moment else spark_type(column_type).simpleString()
    return f"CAST('{escaped}' AS {wanted})"


def is_exactly_readable(column: ColumnType, wanted: DataType) -> bool:
    """Whether every value of the column has an exact counterpart in the Spark type."""
    own = spark_type(column)
    if isinstance(wanted, ArrayType) and column.element is not None:
        return wanted.containsNull and is_exactly_readable(column.element, wanted.elementType)
    if type(own) is type(wanted) and not isinstance(own, DecimalType):
        return not isinstance(own, StringType) or own == wanted
    if column.name == "decimal" and isinstance(wanted, DecimalType):
        assert column.precision is not None and column.scale is not None
        whole = wanted.precision - wanted.scale
        return wanted.scale >= column.scale and whole >= column.precision - column.scale
    if type(own) in _INTEGER_DIGITS:
        digits = _INTEGER_DIGITS[type(own)]
        if type(wanted) in _INTEGER_DIGITS:
            return _INTEGER_DIGITS[type(wanted)] >= digits
        if isinstance(wanted, DecimalType):
            return wanted.precision - wanted.scale >= digits
        return isinstance(wanted, DoubleType) and digits <= 10
    return isinstance(own, FloatType) and isinstance(wanted, DoubleType)


def is_writable(spark: DataType, column: ColumnType) -> bool:
    """Whether values of the Spark type can be written exactly into the column.

    Ranges, lengths and digits of the values are checked when the rows are staged."""
    is_number = type(spark) in _INTEGER_DIGITS
    if isinstance(spark, NullType):
        return True
    if column.element is not None:
        return isinstance(spark, ArrayType) and is_writable(spark.elementType, column.element)
    if column.name in ("int8", "int16", "int32", "int64", "float", "double"):
        return is_number or isinstance(spark, DecimalType | FloatType | DoubleType)
    if column.name == "decimal":
        return is_number or isinstance(spark, DecimalType)
    if column.name in ("string", "varchar", "binary"):
        return isinstance(spark, (*_TEXT, BinaryType))
    return type(spark) is type(spark_type(column))


def change_schema(schema: Schema, names: Sequence[str] | None = None) -> StructType:
    """Return the Spark schema of changes with the named columns of the table (all by default)."""
    types = (StringType(), LongType(), TimestampType())
    own = [StructField(*field, False) for field in zip(CHANGE_COLUMNS, types, strict=True)]
    return StructType([*spark_schema(schema, names), *own])


def table_columns(wanted: StructType, path: str, own: StructType) -> StructType:
    """Return the table's columns of a schema given by the user, and check the columns of changes.

    `own` is the schema of the changes. Raises ColumnNotFoundError for `_before`, which changes had,
    SchemaError for another type of a column of changes.
    """
    for field in wanted.fields:
        if field.name == "_before" and field.name not in own.names:
            raise ColumnNotFoundError(
                f"table {path!r}: changes have no column '_before' any more; with the option"
                " changeImages=both the row before is a row of its own, of _change_type"
                " 'update_preimage'"
            )
        if field.name not in CHANGE_COLUMNS:
            continue
        if field.dataType != own[field.name].dataType:
            raise SchemaError(
                f"table {path!r}, column {field.name!r} of its changes is"
                f" {own[field.name].dataType.simpleString()}; the schema given says"
                f" {field.dataType.simpleString()}"
            )
    return StructType([field for field in wanted.fields if field.name not in CHANGE_COLUMNS])


def find_name(name: str, names: Sequence[str], where: str) -> str | None:
    """Return the one of `names` that `name` means, or None. Raises SchemaError if it is ambiguous.

    `where` begins the message, as in "table 't'"."""
    if name in names:
        return name
    alike = [own for own in names if own.lower() == name.lower()]
    if len(alike) > 1:
        raise SchemaError(
            f"{where}: column {name!r} is ambiguous: it may be {' or '.join(map(repr, alike))};"
            " write one of these names exactly"
        )
    return alike[0] if alike else None


def find_column(name: str, names: Sequence[str], where: str) -> str:
    """Do as `find_name`; ColumnNotFoundError lists `names` if `name` means none of them."""
    own = find_name(name, names, where)
    if own is None:
        raise ColumnNotFoundError(f"{where}: no column {name!r}; columns: {', '.join(names)}")
    return own


def find_all(wanted: Iterable[str], names: Sequence[str], where: str) -> list[str]:
    """Return the ones of `names` that `wanted` mean; ColumnNotFoundError lists `names`."""
    return [find_column(name, names, where) for name in wanted]


def with_layout_names(options: WriteOptions, names: Sequence[str]) -> WriteOptions:
    """Return the options with the columns of key and partitions under their names in `names`.

    An unknown name stays as it is; the check of the layout refuses it."""

    def own(option: str, given: Iterable[str]) -> tuple[str, ...]:
        return tuple(find_name(name, names, f"option {option!r}") or name for name in given)

    def own_hash(given: Iterable[Any]) -> list[Any]:
        each = ((names if isinstance(names, list) else [names], count) for names, count in given)
        return [[list(own("rangePartitions", names)), count] for names, count in each]

    key, hashes, ranges = options.primary_key, options.hash_partitions, options.range_partitions
    if key is not None:
        key = own("primaryKey", key)
    if hashes is not None:
        hashes = tuple((own("hashPartitions", columns), count) for columns, count in hashes)
    if ranges is not None:
        bounds = [[*given[:2], *map(own_hash, given[2:])] for given in ranges.get("bounds", ())]
        columns = list(own("rangePartitions", ranges["columns"]))
        ranges = {"columns": columns, "bounds": bounds}
    return replace(options, primary_key=key, hash_partitions=hashes, range_partitions=ranges)
