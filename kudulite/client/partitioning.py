"""How a new table is partitioned, in kudu-python's words or as plain lists."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from typing import Any

from kudulite.catalog.partition import HashDimension, PartitionSchema, RangePartition
from kudulite.client.kudu_names import (
    BOUND_TYPES,
    EXCLUSIVE_BOUND,
    INCLUSIVE_BOUND,
    checked_choice,
)
from kudulite.errors import SchemaError
from kudulite.model.schema import Column, Schema
from kudulite.model.types import ColumnType
from kudulite.model.values import canonical_value


class Partitioning:
    """Builder of a partitioning; every method returns the builder."""

    def __init__(self) -> None:
        self._hash: list[HashDimension] = []
        self._range_columns: list[str] = []
        self._ranges: list[tuple[Any, Any, str, str]] = []
        self._splits: list[Any] = []

    def __repr__(self) -> str:
        parts = [f"hash ({', '.join(h.columns)}) in {h.bucket_count} buckets" for h in self._hash]
        if self._range_columns:
            ranges = [f"{lower!r} to {upper!r}" for lower, upper, *_ in self._ranges]
            ranges += [f"split at {split!r}" for split in self._splits]
            parts.append(f"range ({', '.join(self._range_columns)}): {', '.join(ranges) or 'all'}")
        return f"Partitioning({'; '.join(parts) or 'none'})"

    def add_hash_partitions(
        self, column_names: str | Sequence[str], num_buckets: int, seed: int = 0
    ) -> Partitioning:
        """Add a hash dimension over key columns, with `num_buckets` buckets (at least 2)."""
        names = (column_names,) if isinstance(column_names, str) else tuple(column_names)
        self._hash.append(HashDimension(names, int(num_buckets), int(seed)))
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
        lower_bound_type: str = INCLUSIVE_BOUND,
        upper_bound_type: str = EXCLUSIVE_BOUND,
    ) -> Partitioning:
        """Add a range; a bound is a value, a tuple, or a dict by column, None is unbounded."""
        self._ranges.append((lower_bound, upper_bound, lower_bound_type, upper_bound_type))
        return self

    def add_range_partition_split(self, split_row: Any) -> Partitioning:
        """Cut the range that `split_row` lies in at it; it belongs to the upper part."""
        self._splits.append(split_row)
        return self

    def build(self, schema: Schema) -> PartitionSchema:
        """Return the partition schema of a table. Raises SchemaError."""
        columns = [schema.column(name) for name in self._range_columns]
        if (self._ranges or self._splits) and not columns:
            raise SchemaError(
                "range partitions without range columns; call set_range_partition_columns first"
            )
        ranges = [range_of(columns, *given) for given in self._ranges]
        splits = [range_of(columns, split).lower for split in self._splits]
        ranges = _split_ranges(schema, self._range_columns, ranges, [s for s in splits if s])
        return PartitionSchema.build(schema, self._hash, self._range_columns, ranges)


def partitioning_of(
    hash_partitions: Sequence[tuple[Sequence[str], int]] | None,
    range_partitions: Mapping[str, Any] | None,
) -> Partitioning:
    """Return the builder of `create_table`'s plain arguments.

    `hash_partitions` is a list of (columns, buckets) or (columns, buckets, seed);
    `range_partitions` is {"columns": […], "bounds": [[lower, upper], …]}.
    """
    partitioning = Partitioning()
    for entry in hash_partitions or ():
        if len(entry) not in (2, 3):
            raise SchemaError(f"hash partition {entry!r}: expected (columns, buckets[, seed])")
        partitioning.add_hash_partitions(*entry)
    if range_partitions is not None:
        unknown = sorted(set(range_partitions) - {"columns", "bounds"})
        if unknown or "columns" not in range_partitions:
            raise SchemaError(
                f"range partitions {dict(range_partitions)!r}: expected 'columns' and 'bounds'"
            )
        partitioning.set_range_partition_columns(range_partitions["columns"])
        for pair in range_partitions.get("bounds", ()):
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise SchemaError(f"range bounds {pair!r}: expected [lower, upper]")
            partitioning.add_range_partition(pair[0], pair[1])
    return partitioning


def range_of(
    columns: Sequence[Column],
    lower: Any = None,
    upper: Any = None,
    lower_type: str = INCLUSIVE_BOUND,
    upper_type: str = EXCLUSIVE_BOUND,
) -> RangePartition:
    """Return the half-open range over `columns` between two bounds as `add_range_partition` takes
    them. Raises SchemaError.
    """
    names = [column.name for column in columns]
    types = [column.type for column in columns]

    def bound(given: Any, is_upper: bool, kind: str) -> tuple | None:
        kind = checked_choice("range bound type", kind, BOUND_TYPES)
        row = _bound_tuple(given, names)
        if row is None:
            return None
        if len(row) > len(columns):
            raise SchemaError(f"range bound {row!r}; the range columns are {', '.join(names)}")
        pairs = zip(row, columns, strict=False)
        canonical = tuple(canonical_value(v, c.type, c.name) for v, c in pairs)
        return _half_open(canonical, types, is_upper=is_upper, kind=kind)

    return RangePartition(bound(lower, False, lower_type), bound(upper, True, upper_type))


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


def _half_open(bound: tuple, types: Sequence[ColumnType], *, is_upper: bool, kind: str) -> tuple:
    """Turn an inclusive upper or exclusive lower bound into its half-open twin."""
    if (kind == INCLUSIVE_BOUND) == (not is_upper):
        return bound
    if len(bound) < len(types):
        raise SchemaError(f"bound {bound!r} must name every range column to be {kind}")
    return (*bound[:-1], _next_value(bound[-1], types[len(bound) - 1]))


def _next_value(value: Any, column_type: ColumnType) -> Any:
    """Return the smallest value of the type above `value`."""
    if isinstance(value, str):
        return value + "\0"
    if isinstance(value, bytes):
        return value + b"\0"
    if isinstance(value, datetime.datetime):
        return value + datetime.timedelta(microseconds=1)
    if isinstance(value, datetime.date):
        return value + datetime.timedelta(days=1)
    if isinstance(value, decimal.Decimal):
        return value + decimal.Decimal(1).scaleb(-(column_type.scale or 0))
    return value + 1


def _split_ranges(
    schema: Schema, names: Sequence[str], ranges: list[RangePartition], splits: list[tuple]
) -> list[RangePartition]:
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
        ranges += [RangePartition(cut.lower, split), RangePartition(split, cut.upper)]
    return ranges
