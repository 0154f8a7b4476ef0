"""Builders of a new table's partitioning.

    Partitioning      add_hash_partitions(…), add_range_partition(…)   taken by `create_table`
    RangePartition    a range that may have hash partitions of its own

`partitioning_of` makes a Partitioning from plain lists, the other way in which `create_table` takes
one. The columns that a Partitioning names are checked against the schema when the table is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from kudulite.chain.partition import HashDimension, PartitionSchema, RangeWithHashSchema
from kudulite.errors import OptionError, SchemaError
from kudulite.model.predicate_constraint import domain_successor, domain_value, literal_floor
from kudulite.model.schema import Column, Schema
from kudulite.model.values import canonical_value

BOUND_TYPES = ("exclusive", "inclusive")


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
    ) -> Self:
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
    ) -> Self:
        """Add a hash dimension over key columns, with `num_buckets` buckets (at least 2)."""
        self._hash.append(_hash_dimension(column_names, num_buckets, seed))
        return self

    def set_range_partition_columns(self, column_names: str | Sequence[str]) -> Self:
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
    ) -> Self:
        """Add a range; a bound is a value, a tuple, or a dict by column, None is unbounded."""
        self._ranges.append((lower_bound, upper_bound, lower_bound_type, upper_bound_type))
        return self

    def add_custom_range_partition(self, range_partition: RangePartition) -> Self:
        """Add a range that has hash partitions of its own."""
        self._custom_ranges.append(checked_range(range_partition))
        return self

    def add_range_partition_split(self, split_row: Any) -> Self:
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


def _checked_builder(table: str, given: Any, *others: object) -> Partitioning:
    """Return a builder. Raises SchemaError for what is none, and if there are others."""
    if any(other is not None for other in others):
        raise SchemaError(f"table {table!r}: give partitioning, or hash and range partitions")
    if not isinstance(given, Partitioning):
        raise SchemaError(
            f"table {table!r}: partitioning is {given!r}, expected a kudulite.Partitioning;"
            " for buckets write hash_partitions=[(['id'], 4)]"
        )
    return given


def partitioning_of(
    table: str,
    given: Partitioning | None,
    hash_partitions: Sequence[tuple[Sequence[str], int]] | None,
    range_partitions: Mapping[str, Any] | None,
) -> Partitioning:
    """Return the builder that is given, or that of `create_table`'s plain arguments.

    `hash_partitions` is a list of (columns, buckets) or (columns, buckets, seed);
    `range_partitions` is {"columns": […], "bounds": [[lower, upper], …]}, where a range with hash
    partitions of its own is [lower, upper, [(columns, buckets), …]].
    """
    if given is not None:
        return _checked_builder(table, given, hash_partitions, range_partitions)
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
