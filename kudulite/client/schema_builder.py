"""Builders for a new table, in kudu-python's words: its columns, its key and its partitioning.

    SchemaBuilder     add_column(…), set_primary_keys(…), build()      makes a Schema
    ColumnSpec        one column that is being described, or altered by a `TableAlterer`
    Partitioning      add_hash_partitions(…), add_range_partition(…)   taken by `create_table`
    RangePartition    a range that may have hash partitions of its own

`partitioning_of` makes a Partitioning from plain lists, the other way in which `create_table` takes
one. The columns that a Partitioning names are checked against the schema when the table is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from kudulite.chain.partition import HashDimension, PartitionSchema, RangeWithHashSchema
from kudulite.errors import NotSupportedError, OptionError, SchemaError
from kudulite.model.aliases import TypeParameters
from kudulite.model.predicate_constraint import domain_successor, domain_value, literal_floor
from kudulite.model.schema import (
    AUTO_INCREMENTING_ID,
    NEW_COLUMN_ID,
    Column,
    Schema,
    auto_incrementing_column,
)
from kudulite.model.types import ColumnType, parse_type
from kudulite.model.types import decimal as decimal_type
from kudulite.model.types import varchar as varchar_type
from kudulite.model.values import canonical_value

BOUND_TYPES = ("exclusive", "inclusive")


class ColumnSpec:
    """One column that is being described or altered; every method returns the spec.

    `options` holds what was said, None standing for nothing.
    """

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self.options = options
        self.is_primary_key = False
        self.is_unique = True

    def __repr__(self) -> str:
        said = {key: value for key, value in self.options.items() if value is not None}
        options = "".join(f", {key}={value}" for key, value in said.items())
        return f"ColumnSpec({self.name!r}{options})"

    def type(self, type_: ColumnType | str) -> ColumnSpec:
        """Set the column's type, by object or name."""
        self.options["type"] = type_
        return self

    def nullable(self, is_nullable: bool = True) -> ColumnSpec:
        """Say whether cells may be null."""
        self.options["nullable"] = is_nullable
        return self

    def primary_key(self) -> ColumnSpec:
        """Make the column the whole primary key."""
        self.is_primary_key = self.is_unique = True
        return self.nullable(False)

    def non_unique_primary_key(self) -> ColumnSpec:
        """Make the column the whole primary key, of which several rows may have the same value.

        The column `auto_incrementing_id` follows it in the key: the engine numbers new rows of each
        tablet from 1, and an insert leaves it out. The last call of this and `primary_key` counts.
        """
        self.primary_key().is_unique = False
        return self

    def default(self, value: Any) -> ColumnSpec:
        """Set what an insert that leaves the cell unset stores."""
        self.options["default"] = value
        return self

    def remove_default(self) -> ColumnSpec:
        """Take the default of an existing column away."""
        self.options["default"] = None
        self.options["remove_default"] = True
        return self

    def rename(self, new_name: str) -> ColumnSpec:
        """Rename an existing column."""
        self.options["rename"] = new_name
        return self

    def encoding(self, encoding: str) -> ColumnSpec:
        """Set how values are laid out on disk."""
        self.options["encoding"] = encoding
        return self

    def compression(self, compression: str | None) -> ColumnSpec:
        """Set how pages are compressed on disk; None is not at all.

        "default" is zstd where that makes the column a fifth smaller.
        """
        self.options["compression"] = "none" if compression is None else compression
        return self

    def precision(self, precision: int) -> ColumnSpec:
        """Set the number of digits of a decimal column, 1 to 38."""
        self.options["precision"] = precision
        return self

    def scale(self, scale: int) -> ColumnSpec:
        """Set the number of digits of a decimal column after the point; 0 if it is not said."""
        self.options["scale"] = scale
        return self

    def length(self, length: int) -> ColumnSpec:
        """Set the number of characters that a varchar column may hold."""
        self.options["length"] = length
        return self

    def comment(self, comment: str) -> ColumnSpec:
        """Set a comment of at most 256 bytes."""
        self.options["comment"] = comment
        return self

    def block_size(self, block_size: int) -> ColumnSpec:
        """Do nothing: pages of base data have one size for all columns."""
        return self

    def mutable(self, is_mutable: bool = True) -> ColumnSpec:
        """Say whether updates may change cells; else they keep the value of their row's insert.

        `update` and `upsert` of a row that is there are refused if they set such a cell, whatever
        the value; `update_ignore` and `upsert_ignore` leave it as it is.
        """
        self.options["mutable"] = is_mutable
        return self

    def build(self) -> Column:
        """Return the new column. Raises SchemaError."""
        options = self.options
        if options.get("rename") is not None or options.get("remove_default"):
            raise NotSupportedError(
                f"column {self.name!r}: rename and remove_default are for the columns of a table"
                " that exists; see Client.new_table_alterer"
            )
        column_type = described_type(self.name, options)
        nullable, mutable = options.get("nullable"), options.get("mutable")
        return Column(
            id=NEW_COLUMN_ID,
            name=self.name,
            type=column_type,
            nullable=True if nullable is None else nullable,
            read_default=options.get("default"),
            write_default=options.get("default"),
            encoding=options.get("encoding") or "auto",
            compression=options.get("compression") or "default",
            comment=options.get("comment") or "",
            mutable=True if mutable is None else mutable,
        )


# Parameters of types that may be given beside the type, and the type that has each.
_TYPE_PARAMETERS = {"precision": "decimal", "scale": "decimal", "length": "varchar"}


def checked_parameters(given: TypeParameters) -> TypeParameters:
    """Return parameters of a type. Raises TypeError as Python does for a name that is not known."""
    for name in given:
        if name not in _TYPE_PARAMETERS:
            raise TypeError(f"add_column() got an unexpected keyword argument {name!r}")
    return given


def altered_type(name: str, options: dict[str, Any], old: ColumnType) -> ColumnType:
    """Return the type of an existing column that is altered; `old` if nothing is said of it."""
    said = {key: options[key] for key in _TYPE_PARAMETERS if options.get(key) is not None}
    given = options.get("type")
    if given is None and not said:
        return old
    if given is None:
        given = old.name
        options = {**options, "type": given}
    if old.name == "decimal" and (given is decimal_type or given == "decimal"):
        options = {**options, "precision": old.precision, "scale": old.scale} | said
    return described_type(name, options)


def described_type(name: str, options: dict[str, Any]) -> ColumnType:
    """Return the type that a column's options describe.

    Raises SchemaError for a parameter that is missing, and for one that the type does not have.
    """
    given = options.get("type")
    if given is None:
        raise SchemaError(f"column {name!r} has no type")
    # kudu.decimal and kudu.varchar are functions here, and types in kudu-python.
    text = str(given).lower()
    if given is decimal_type or text == "decimal":
        if options.get("precision") is None:
            raise SchemaError(f"column {name!r}: decimal needs a precision")
        column_type = decimal_type(options["precision"], options.get("scale") or 0)
    elif given is varchar_type or text == "varchar":
        if options.get("length") is None:
            raise SchemaError(f"column {name!r}: varchar needs a length")
        column_type = varchar_type(options["length"])
    else:
        column_type = given if isinstance(given, ColumnType) else parse_type(text)
    for parameter, owner in _TYPE_PARAMETERS.items():
        value = options.get(parameter)
        if value is not None and value != getattr(column_type, parameter):
            reason = (
                f"the type {column_type} says another one; leave the {parameter} out"
                if column_type.name == owner
                else f"{column_type} has no {parameter}, only {owner} has"
            )
            raise SchemaError(f"column {name!r}: {parameter} {value}: {reason}")
    return column_type


class SchemaBuilder:
    """Collects columns and the primary key of a new table."""

    def __init__(self) -> None:
        self._specs: list[ColumnSpec] = []
        self._key_names: list[str] | None = None
        self._is_unique = True

    @property
    def _keys(self) -> list[str]:
        if self._key_names is not None:
            return self._key_names
        return [spec.name for spec in self._specs if spec.is_primary_key]

    def __repr__(self) -> str:
        columns = ", ".join(map(repr, self._specs))
        return f"<kudulite schema builder: {columns or 'no columns'}; key {', '.join(self._keys)}>"

    def add_column(
        self,
        name: str,
        type_: ColumnType | str | None = None,
        nullable: bool | None = None,
        compression: str | None = None,
        encoding: str | None = None,
        primary_key: bool = False,
        non_unique_primary_key: bool = False,
        block_size: int | None = None,
        default: Any = None,
        *,
        comment: str | None = None,
        mutable: bool | None = None,
        **parameters: Unpack[TypeParameters],
    ) -> ColumnSpec:
        """Add a column, nullable and mutable unless said otherwise; returns its spec to refine.

        Arguments stand in kudu-python's order. `block_size` has no effect. The `parameters` are
        `precision` and `scale` of a decimal and `length` of a varchar, unless the type has them.
        """
        options = {
            "type": type_,
            "nullable": nullable,
            "default": default,
            "encoding": encoding,
            "compression": compression,
            "comment": comment,
            "mutable": mutable,
            **checked_parameters(parameters),
        }
        spec = ColumnSpec(name, options)
        if primary_key:
            spec.primary_key()
        if non_unique_primary_key:
            spec.non_unique_primary_key()
        self._specs.append(spec)
        return spec

    def copy_column(self, colschema: Column) -> ColumnSpec:
        """Add a column like one of another schema; returns its spec to refine."""
        return self.add_column(
            colschema.name,
            colschema.type,
            colschema.nullable,
            colschema.compression,
            colschema.encoding,
            default=colschema.write_default,
            comment=colschema.comment,
            mutable=colschema.mutable,
        )

    def set_primary_keys(self, key_names: Sequence[str]) -> SchemaBuilder:
        """Set the key columns: the first columns of the schema, in their order, and NOT NULL."""
        self._key_names, self._is_unique = list(key_names), True
        return self

    def set_non_unique_primary_keys(self, key_names: Sequence[str]) -> SchemaBuilder:
        """Set the key columns as `set_primary_keys`, of a key that several rows may have.

        See `ColumnSpec.non_unique_primary_key`.
        """
        self._key_names, self._is_unique = list(key_names), False
        return self

    def build(self) -> Schema:
        """Return the schema, with `auto_incrementing_id` if the key is not unique.

        Raises SchemaError. The key columns must be the first ones, in the order of the key: a row
        that is given as a tuple then has its values in the order in which the columns were added.
        """
        columns = [spec.build() for spec in self._specs]
        self._check_key()
        keys, is_unique = self._keys, self._is_unique
        if self._key_names is None:
            is_unique = all(spec.is_unique for spec in self._specs)
        if keys and not is_unique:
            columns.insert(len(keys), auto_incrementing_column())
            keys = [*keys, AUTO_INCREMENTING_ID]
        schema = Schema.build(columns, keys)
        if schema.names != [column.name for column in columns]:
            key = ", ".join(self._keys)
            first = ", ".join(column.name for column in columns[: len(self._keys)])
            raise SchemaError(
                f"primary key ({key}): its columns must be the first of the schema, in the order of"
                f" the key; the schema begins with {first}: add the columns in the order of the key"
            )
        return schema

    def _check_key(self) -> None:
        """Raise SchemaError for a key that is given in two places."""
        marked = [spec.name for spec in self._specs if spec.is_primary_key]
        if self._key_names is not None and marked:
            raise SchemaError(
                f"the primary key is given twice: by primary_key() of column {marked[0]!r} and by"
                f" set_primary_keys({self._key_names!r}); leave one of them out"
            )
        if len(marked) > 1:
            raise SchemaError(
                f"primary_key() of the columns {', '.join(marked)}: it makes one column the whole"
                f" key; for a key of several columns call set_primary_keys({marked!r})"
            )


class RangePartition:
    """A range with hash partitions of its own, for `add_custom_range_partition`.

    A bound is a value, a tuple, or a dict by column, None is unbounded. It needs as many hash
    dimensions as the table has; their columns, buckets and seeds may differ.
    """

    def __init__(
        self,
        lower_bound: Any = None,
        upper_bound: Any = None,
        lower_bound_type: str = "inclusive",
        upper_bound_type: str = "exclusive",
    ) -> None:
        self.bounds = lower_bound, upper_bound, lower_bound_type, upper_bound_type
        self.hash_dimensions: list[HashDimension] = []

    def __repr__(self) -> str:
        lower, upper, *_ = self.bounds
        return f"RangePartition({lower!r} to {upper!r}{_hash_text(self.hash_dimensions, ' ')})"

    def add_hash_partitions(
        self, column_names: str | Sequence[str], num_buckets: int, seed: int | None = None
    ) -> RangePartition:
        """Add a hash dimension over key columns, with `num_buckets` buckets (at least 2)."""
        self.hash_dimensions.append(_hash_dimension(column_names, num_buckets, seed))
        return self

    def build(self, columns: Sequence[Column]) -> RangeWithHashSchema:
        """Return the range over the range columns of a table. Raises SchemaError."""
        dimensions = tuple(self.hash_dimensions)
        return replace(range_of(columns, *self.bounds), hash_dimensions=dimensions)


def checked_range(given: object) -> RangePartition:
    """Return a range with its own hash partitions. Raises SchemaError for anything else."""
    if isinstance(given, RangePartition):
        return given
    raise SchemaError(
        f"custom range partition {given!r}: expected a kudulite.RangePartition, as in"
        " RangePartition(0, 10).add_hash_partitions(['id'], 4)"
    )


def _hash_dimension(
    column_names: str | Sequence[str], num_buckets: int, seed: int | None
) -> HashDimension:
    names = (column_names,) if isinstance(column_names, str) else tuple(column_names)
    return HashDimension(names, int(num_buckets), int(seed or 0))


def _hash_text(dimensions: Sequence[HashDimension], before: str = "") -> str:
    texts = [f"hash ({', '.join(d.columns)}) in {d.bucket_count} buckets" for d in dimensions]
    return f"{before}{'; '.join(texts)}" if texts else ""


class Partitioning:
    """Builder of a partitioning; every method returns the builder."""

    def __init__(self) -> None:
        self._hash: list[HashDimension] = []
        self._range_columns: list[str] = []
        self._ranges: list[tuple[Any, Any, str, str]] = []
        self._custom_ranges: list[RangePartition] = []
        self._splits: list[Any] = []

    def __repr__(self) -> str:
        parts = [_hash_text(self._hash)] if self._hash else []
        if self._range_columns:
            ranges = [f"{lower!r} to {upper!r}" for lower, upper, *_ in self._ranges]
            ranges += [repr(given) for given in self._custom_ranges]
            ranges += [f"split at {split!r}" for split in self._splits]
            parts.append(f"range ({', '.join(self._range_columns)}): {', '.join(ranges) or 'all'}")
        return f"Partitioning({'; '.join(parts) or 'none'})"

    def add_hash_partitions(
        self, column_names: str | Sequence[str], num_buckets: int, seed: int | None = None
    ) -> Partitioning:
        """Add a hash dimension over key columns, with `num_buckets` buckets (at least 2)."""
        self._hash.append(_hash_dimension(column_names, num_buckets, seed))
        return self

    def set_range_partition_columns(self, column_names: str | Sequence[str]) -> Partitioning:
        """Set the key columns that range partitions are over."""
        names = [column_names] if isinstance(column_names, str) else list(column_names)
        self._range_columns = names
        return self

    def add_range_partition(
        self,
        lower_bound: Any = None,
        upper_bound: Any = None,
        lower_bound_type: str = "inclusive",
        upper_bound_type: str = "exclusive",
    ) -> Partitioning:
        """Add a range; a bound is a value, a tuple, or a dict by column, None is unbounded."""
        self._ranges.append((lower_bound, upper_bound, lower_bound_type, upper_bound_type))
        return self

    def add_custom_range_partition(self, range_partition: RangePartition) -> Partitioning:
        """Add a range that has hash partitions of its own."""
        self._custom_ranges.append(checked_range(range_partition))
        return self

    def add_range_partition_split(self, split_row: Any) -> Partitioning:
        """Cut the range that `split_row` lies in at it; it belongs to the upper part.

        Not together with ranges that have hash partitions of their own.
        """
        self._splits.append(split_row)
        return self

    def build(self, schema: Schema) -> PartitionSchema:
        """Return the partition schema of a table. Raises SchemaError, NotSupportedError."""
        columns = [schema.column(name) for name in self._range_columns]
        if self._splits and self._custom_ranges:
            raise SchemaError(
                "splits and ranges with hash partitions of their own cannot be combined; give each"
                " range by its bounds"
            )
        if (self._ranges or self._splits or self._custom_ranges) and not columns:
            raise SchemaError(
                "range partitions without range columns; call set_range_partition_columns first"
            )
        ranges = [range_of(columns, *given) for given in self._ranges]
        splits = [range_of(columns, split).lower for split in self._splits]
        ranges = _split_ranges(schema, self._range_columns, ranges, [s for s in splits if s])
        ranges += [given.build(columns) for given in self._custom_ranges]
        return PartitionSchema.build(schema, self._hash, self._range_columns, ranges)


def partitioning_of(
    table: str,
    hash_partitions: Sequence[tuple[Sequence[str], int]] | None,
    range_partitions: Mapping[str, Any] | None,
) -> Partitioning:
    """Return the builder of `create_table`'s plain arguments.

    `hash_partitions` is a list of (columns, buckets) or (columns, buckets, seed);
    `range_partitions` is {"columns": […], "bounds": [[lower, upper], …]}, where a range with hash
    partitions of its own is [lower, upper, [(columns, buckets), …]].
    """
    partitioning = Partitioning()
    if hash_partitions is not None:
        if not _are_hash_entries(hash_partitions):
            raise SchemaError(
                f"table {table!r}: hash_partitions={hash_partitions!r}: expected a list of"
                " (columns, buckets), as in hash_partitions=[(['id'], 4)]"
            )
        for entry in hash_partitions:
            partitioning.add_hash_partitions(*entry)
    if range_partitions is not None:
        is_dict = isinstance(range_partitions, Mapping)
        if not is_dict or not {"columns"} <= set(range_partitions) <= {"columns", "bounds"}:
            raise SchemaError(
                f"table {table!r}: range_partitions={range_partitions!r}: expected 'columns' and"
                " 'bounds', as in {'columns': ['day'], 'bounds': [[None, 10], [10, 20]]}"
            )
        partitioning.set_range_partition_columns(range_partitions["columns"])
        for given in range_partitions.get("bounds", ()):
            if not isinstance(given, list | tuple) or len(given) not in (2, 3):
                raise SchemaError(
                    f"table {table!r}: range bounds {given!r}: expected [lower, upper], or [lower,"
                    " upper, [(columns, buckets), …]] for a range with its own hash partitions"
                )
            lower, upper, *own = given
            if not own:
                partitioning.add_range_partition(lower, upper)
                continue
            if not _are_hash_entries(own[0]):
                raise SchemaError(
                    f"table {table!r}: range bounds {given!r}: expected a list of (columns,"
                    " buckets) as the third value, as in [0, 10, [(['id'], 4)]]"
                )
            custom = RangePartition(lower, upper)
            for entry in own[0]:
                custom.add_hash_partitions(*entry)
            partitioning.add_custom_range_partition(custom)
    return partitioning


def _are_hash_entries(given: object) -> bool:
    return isinstance(given, list | tuple) and all(map(_is_hash_entry, given))


def _is_hash_entry(entry: object) -> bool:
    """Whether it is (columns, buckets) or (columns, buckets, seed)."""
    if not isinstance(entry, list | tuple) or len(entry) not in (2, 3):
        return False
    columns, *numbers = entry
    are_names = isinstance(columns, str) or (
        isinstance(columns, list | tuple) and all(isinstance(name, str) for name in columns)
    )
    return are_names and all(isinstance(n, int) and not isinstance(n, bool) for n in numbers)


def range_of(
    columns: Sequence[Column],
    lower: Any = None,
    upper: Any = None,
    lower_type: str = "inclusive",
    upper_type: str = "exclusive",
) -> RangeWithHashSchema:
    """Return the half-open range over `columns` between two bounds as `add_range_partition` takes
    them. Raises SchemaError.
    """
    names = [column.name for column in columns]

    def bound(given: Any, is_upper: bool, kind: str) -> tuple | None:
        name = kind.lower() if isinstance(kind, str) else kind
        if name not in BOUND_TYPES:
            raise OptionError(f"range bound type {kind!r}; known: {', '.join(BOUND_TYPES)}")
        row = _bound_tuple(given, names)
        if row is None:
            return None
        if len(row) > len(columns):
            raise SchemaError(f"range bound {row!r}; the range columns are {', '.join(names)}")
        pairs = zip(row, columns, strict=False)
        canonical = tuple(canonical_value(v, c.type, c.name) for v, c in pairs)
        if (name == "inclusive") != is_upper:
            return canonical
        # Its half-open twin begins or ends at the next value.
        if len(canonical) < len(columns):
            raise SchemaError(f"bound {canonical!r} must name every range column to be {name}")
        last = columns[-1]
        key, _ = literal_floor(canonical[-1], last.type, last.name)
        try:
            return (*canonical[:-1], domain_value(domain_successor(key), last.type))
        except ValueError as error:
            raise SchemaError(
                f"range bound {canonical!r}: column {last.name!r} has no greater value; leave the"
                " bound out"
            ) from error

    return RangeWithHashSchema(bound(lower, False, lower_type), bound(upper, True, upper_type))


def _bound_tuple(given: Any, names: Sequence[str]) -> tuple | None:
    """Return a bound as the values of leading range columns, None for unbounded."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise SchemaError(
                f"range bound names column {unknown[0]!r}; range columns are {', '.join(names)}"
            )
        values = [given[name] for name in names if name in given]
        if list(names[: len(values)]) != [name for name in names if name in given]:
            raise SchemaError(f"range bound {dict(given)!r} skips a leading range column")
        return tuple(values) or None
    return tuple(given) or None if isinstance(given, list | tuple) else (given,)


def _split_ranges(
    schema: Schema, names: Sequence[str], ranges: list[RangeWithHashSchema], splits: list[tuple]
) -> list[RangeWithHashSchema]:
    """Cut ranges at the splits. A split must lie inside one range and differ from its ends."""
    for split in splits:
        whole = PartitionSchema.build(schema, (), names, ranges)
        values = dict(zip(names, split, strict=False))
        if len(values) < len(names):
            raise SchemaError(f"split {split!r} must name every range column")
        number = whole.tablet_of_key(values)
        if number < 0 or whole.ranges[number].lower == split:
            raise SchemaError(f"split {split!r} must lie inside one range and differ from its ends")
        cut = whole.ranges[number]
        ranges = [r for i, r in enumerate(whole.ranges) if i != number]
        ranges += [RangeWithHashSchema(cut.lower, split), RangeWithHashSchema(split, cut.upper)]
    return ranges
