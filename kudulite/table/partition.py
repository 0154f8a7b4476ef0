"""Partition schema: which tablet owns a row, and which tablets a scan can skip.

    tablets = range partitions × buckets of each hash dimension, in that order

A hash dimension is MurmurHash3 (x86, 32 bits) over the encoded bytes of its columns, with its own
seed, modulo its bucket count. The hash decides which tablet holds a row and so reaches the disk: do
not change it.

A range partition is [lower, upper) over the encoded range columns; gaps are allowed, and a row in a
gap has no tablet.

Pruning skips a range partition that is outside the bounds that predicates put on the range columns,
and a hash bucket if every column of its dimension has a list of possible values and none hashes to
it. Pruning never filters rows: the remaining tablets are scanned with all predicates.

**Source** Kudu common/partition.cc, common/partition_pruner.cc; docs/schema_design.adoc,
"Partitioning".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import mmh3
import numpy as np
import pyarrow as pa

from kudulite.errors import SchemaError
from kudulite.fs.json_form import JsonForm
from kudulite.model.encoded_key import KeyEncoder, encode_key, encode_keys
from kudulite.model.key_array import KeyArray
from kudulite.model.predicate import BoundPredicates
from kudulite.model.schema import Column, Schema
from kudulite.model.types import ColumnType
from kudulite.model.values import canonical_value, value_from_json, value_to_json

BUCKETS_MIN = 2
TABLETS_MAX = 10_000

# Above this many combinations of values hashing them costs more than scanning a few tablets.
COMBINATIONS_MAX = 10_000

# Values of the first range columns.
Bound = tuple[Any, ...]
# [lower, upper) as encoded keys; None is unbounded.
KeyBounds = tuple[bytes | None, bytes | None]


@dataclass(frozen=True)
class HashDimension(JsonForm):
    """Rows go to `bucket_count` buckets by murmur3 of `columns` with `seed`."""

    columns: tuple[str, ...]
    bucket_count: int
    seed: int = 0


@dataclass(frozen=True)
class RangePartition:
    """Rows with range columns in [lower, upper); a bound is a tuple of values, None is
    unbounded.
    """

    lower: Bound | None = None
    upper: Bound | None = None


@dataclass(frozen=True)
class TabletPartition(JsonForm):
    """One tablet's place: the number of its range and its bucket in each hash dimension."""

    range_index: int
    buckets: tuple[int, ...]


@dataclass(frozen=True)
class PartitionSchema:
    """How a table is cut into tablets; build with `PartitionSchema.build`."""

    hash_dimensions: tuple[HashDimension, ...]
    range_columns: tuple[str, ...]
    ranges: tuple[RangePartition, ...]
    schema: Schema

    @staticmethod
    def build(
        schema: Schema,
        hash_dimensions: Sequence[HashDimension] = (),
        range_columns: Sequence[str] = (),
        ranges: Sequence[RangePartition] = (),
    ) -> PartitionSchema:
        """Check a partitioning against the schema, put ranges in order. Raises SchemaError."""
        _check_hash(schema, hash_dimensions)
        _check_columns(schema, range_columns, "range partitioning")
        if ranges and not range_columns:
            raise SchemaError("range partitions are given, but no range columns")
        columns = [schema.column(name) for name in range_columns]
        found = tuple(_canonical_range(r, columns) for r in ranges) or (RangePartition(),)
        partition = PartitionSchema(tuple(hash_dimensions), tuple(range_columns), found, schema)
        ordered = tuple(found[number] for number in partition._checked_order())
        partition = replace(partition, ranges=ordered)
        if partition.tablet_count > TABLETS_MAX:
            raise SchemaError(
                f"{partition.tablet_count} tablets; at most {TABLETS_MAX} are possible"
            )
        return partition

    @cached_property
    def bucket_combinations(self) -> int:
        """Number of tablets of each range."""
        return math.prod(dimension.bucket_count for dimension in self.hash_dimensions)

    @property
    def tablet_count(self) -> int:
        """Number of tablets."""
        return len(self.ranges) * self.bucket_combinations

    def tablets(self) -> list[TabletPartition]:
        """Return all tablets in order: by range, then by bucket, the last dimension fastest."""
        shape = tuple(dimension.bucket_count for dimension in self.hash_dimensions)
        return [
            TabletPartition(index, tuple(int(b) for b in buckets))
            for index in range(len(self.ranges))
            for buckets in (np.ndindex(shape) if shape else [()])
        ]

    def tablet_index(self, columns: dict[str, pa.Array], count: int) -> np.ndarray:
        """Return int32[n]: the tablet of each of `count` rows, -1 where no range covers it.

        `columns` holds the key columns with their exact types.
        """
        index = self._range_index(columns, count).astype(np.int32)
        uncovered = index < 0
        for dimension in self.hash_dimensions:
            types = [self.schema.column(name).type for name in dimension.columns]
            keys = encode_keys([columns[name] for name in dimension.columns], types)
            buckets = hash_buckets(keys, dimension.seed, dimension.bucket_count)
            index = index * dimension.bucket_count + buckets.astype(np.int32)
        index[uncovered] = -1
        return index

    def tablet_of_key(self, values: dict[str, Any], encoded: bytes | None = None) -> int:
        """Return the tablet of one row given by its key values, -1 where no range covers it.

        `encoded` is the row's encoded key, where it is known already.
        """
        index = 0
        if self.range_columns:
            key = self._range_encoder([values[name] for name in self.range_columns])
            index = next((n for n in range(len(self.ranges)) if self._is_in_range(key, n)), -1)
            if index < 0:
                return -1
        for dimension, encode, is_whole_key in self._hashed:
            if encoded is not None and is_whole_key:
                key = encoded
            else:
                key = encode([values[name] for name in dimension.columns])
            bucket = hash_bucket(key, dimension.seed, dimension.bucket_count)
            index = index * dimension.bucket_count + bucket
        return index

    @cached_property
    def _range_encoder(self) -> KeyEncoder:
        return KeyEncoder(self.range_types)

    @cached_property
    def _hashed(self) -> list[tuple[HashDimension, KeyEncoder, bool]]:
        """Each hash dimension with its columns' encoder, and whether they are the whole key."""
        return [
            (
                dimension,
                KeyEncoder([self.schema.column(name).type for name in dimension.columns]),
                list(dimension.columns) == self.schema.key_names,
            )
            for dimension in self.hash_dimensions
        ]

    def _is_in_range(self, key: bytes, number: int) -> bool:
        lower, upper = self.encoded_ranges[number]
        return (lower is None or lower <= key) and (upper is None or key < upper)

    def _range_index(self, columns: dict[str, pa.Array], count: int) -> np.ndarray:
        if not self.range_columns:
            return np.zeros(count, dtype=np.int32)
        keys = encode_keys([columns[name] for name in self.range_columns], self.range_types)
        order = keys.sort_order()
        ascending = keys.take(order)
        index = np.full(count, -1, dtype=np.int32)
        for number, (lower, upper) in enumerate(self.encoded_ranges):
            start = 0 if lower is None else ascending.locate(lower, "left")
            stop = count if upper is None else ascending.locate(upper, "left")
            index[order[start:stop]] = number
        return index

    @property
    def range_types(self) -> list[ColumnType]:
        """Types of the range columns."""
        return [self.schema.column(name).type for name in self.range_columns]

    @cached_property
    def encoded_ranges(self) -> list[KeyBounds]:
        """[lower, upper) of each range as encoded range columns; None is unbounded."""
        return [(self._encode(r.lower), self._encode(r.upper)) for r in self.ranges]

    def _encode(self, bound: Bound | None) -> bytes | None:
        # Missing trailing columns are at their minimum, and every encoding of a minimum compares at
        # or above the bare prefix, so the prefix itself is the bound.
        return None if bound is None else self._range_encoder.prefix(bound)

    def _checked_order(self) -> list[int]:
        order = sorted(range(len(self.ranges)), key=lambda i: self.encoded_ranges[i][0] or b"")
        previous: int | None = None
        for number in order:
            lower, upper = self.encoded_ranges[number]
            if lower is not None and upper is not None and lower >= upper:
                raise SchemaError(
                    f"range partition {self.describe_range(number)}: the lower bound must be below"
                    " the upper bound"
                )
            if previous is not None:
                end = self.encoded_ranges[previous][1]
                if end is None or lower is None or lower < end:
                    raise SchemaError(
                        f"range partitions {self.describe_range(previous)} and"
                        f" {self.describe_range(number)} overlap"
                    )
            previous = number
        return order

    def describe_range(self, number: int) -> str:
        """Return a range as people read it: `ts: [2013-01-01, 2013-07-01)`."""
        bounds = self.ranges[number]
        names = ", ".join(self.range_columns)
        return f"{names}: [{_show(bounds.lower, '-∞')}, {_show(bounds.upper, '+∞')})"

    def describe_all(self) -> list[str]:
        """Return the hash dimensions and the ranges as people read them; empty for one tablet."""
        hashed = [f"hash({', '.join(d.columns)}) × {d.bucket_count}" for d in self.hash_dimensions]
        range_count = len(self.ranges) if self.range_columns else 0
        return hashed + [self.describe_range(number) for number in range(range_count)]

    def describe(self, tablet: TabletPartition) -> str:
        """Return a tablet's place as people read it."""
        parts = [
            f"hash({', '.join(d.columns)}) bucket {bucket} of {d.bucket_count}"
            for d, bucket in zip(self.hash_dimensions, tablet.buckets, strict=True)
        ]
        if self.range_columns:
            parts.append(self.describe_range(tablet.range_index))
        return "; ".join(parts) or "the whole table"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that the manifest keeps."""
        return {
            "hash": [dimension.to_json() for dimension in self.hash_dimensions],
            "range_columns": list(self.range_columns),
            "ranges": [self.range_to_json(given) for given in self.ranges],
        }

    @staticmethod
    def from_json(value: dict[str, Any], schema: Schema) -> PartitionSchema:
        """Build a partition schema from `to_json`'s form."""
        dimensions = tuple(HashDimension.from_json(dimension) for dimension in value["hash"])
        bare = PartitionSchema(dimensions, tuple(value["range_columns"]), (), schema)
        _check_hash(schema, dimensions)
        _check_columns(schema, bare.range_columns, "range partitioning")
        found = replace(bare, ranges=tuple(bare.range_from_json(r) for r in value["ranges"]))
        if found.tablet_count > TABLETS_MAX:
            raise ValueError(f"{found.tablet_count} tablets, expected at most {TABLETS_MAX}")
        return found

    def range_to_json(self, given: RangePartition) -> dict[str, Any]:
        """Return the JSON form of a range over the range columns."""
        columns = [self.schema.column(name) for name in self.range_columns]
        return {
            "lower": _bound_to_json(given.lower, columns),
            "upper": _bound_to_json(given.upper, columns),
        }

    def range_from_json(self, value: dict[str, Any]) -> RangePartition:
        """Build a range from `range_to_json`'s form."""
        columns = [self.schema.column(name) for name in self.range_columns]
        return RangePartition(
            _bound_from_json(value["lower"], columns), _bound_from_json(value["upper"], columns)
        )

    def of_range(self, only: RangePartition) -> PartitionSchema:
        """Return the same partitioning with one range, which need not be among those here."""
        return replace(self, ranges=(only,))


def placed_schema(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `schema` and the `partition` that the JSON object of a metadata file holds."""
    schema = Schema.from_json(body["schema"])
    return {"schema": schema, "partition": PartitionSchema.from_json(body["partition"], schema)}


def _canonical_range(given: RangePartition, columns: Sequence[Column]) -> RangePartition:
    return RangePartition(
        _canonical_bound(given.lower, columns), _canonical_bound(given.upper, columns)
    )


def _canonical_bound(bound: Bound | None, columns: Sequence[Column]) -> Bound | None:
    """Return a bound with values in canonical form; an empty one is unbounded."""
    if not bound:
        return None
    if len(bound) > len(columns):
        raise SchemaError(
            f"range bound {bound} has {len(bound)} values for {len(columns)} range columns"
            f" ({', '.join(column.name for column in columns)})"
        )
    pairs = zip(bound, columns, strict=False)
    return tuple(canonical_value(value, column.type, column.name) for value, column in pairs)


def _bound_to_json(bound: Bound | None, columns: Sequence[Column]) -> list[Any] | None:
    if bound is None:
        return None
    return [value_to_json(v, c.type) for v, c in zip(bound, columns, strict=False)]


def _bound_from_json(stored: list[Any] | None, columns: Sequence[Column]) -> Bound | None:
    if stored is None:
        return None
    return tuple(value_from_json(v, c.type, c.name) for v, c in zip(stored, columns, strict=False))


def _show(bound: Bound | None, unbounded: str) -> str:
    if bound is None:
        return unbounded
    return str(bound[0]) if len(bound) == 1 else str(bound)


def _check_columns(schema: Schema, names: Sequence[str], what: str) -> None:
    for name in names:
        schema.column(name)
        if name not in schema.key_names:
            raise SchemaError(
                f"{what} by column {name!r}, which is not in the primary key"
                f" ({', '.join(schema.key_names)})"
            )
    if len(set(names)) != len(names):
        raise SchemaError(f"{what} names a column twice: {', '.join(names)}")


def _check_hash(schema: Schema, dimensions: Sequence[HashDimension]) -> None:
    used: set[str] = set()
    for dimension in dimensions:
        if not dimension.columns:
            raise SchemaError("hash partitioning needs at least one column")
        _check_columns(schema, dimension.columns, "hash partitioning")
        if dimension.bucket_count < BUCKETS_MIN:
            raise SchemaError(
                f"hash partitioning by {', '.join(dimension.columns)} into"
                f" {dimension.bucket_count} buckets; at least {BUCKETS_MIN} are needed"
            )
        if not 0 <= dimension.seed < 1 << 32:
            raise SchemaError(f"hash seed {dimension.seed} is outside 0 … 2**32 - 1")
        twice = used & set(dimension.columns)
        if twice:
            raise SchemaError(f"column {min(twice)!r} is in two hash dimensions")
        used |= set(dimension.columns)


def overlap(first: KeyBounds, second: KeyBounds) -> bool:
    """Whether a key may be in both of two ranges [lower, upper)."""
    (first_lower, first_upper), (second_lower, second_upper) = first, second
    is_below = first_upper is not None and second_lower is not None and first_upper <= second_lower
    is_above = first_lower is not None and second_upper is not None and first_lower >= second_upper
    return not is_below and not is_above


def tablets_to_scan(partition: PartitionSchema, predicates: BoundPredicates) -> list[int]:
    """Return the indexes of the tablets that may hold a matching row, ascending."""
    if predicates.is_empty:
        return []
    axes = [_ranges_to_scan(partition, predicates)]
    axes += [_buckets_to_scan(partition, d, predicates) for d in partition.hash_dimensions]
    shape = [len(partition.ranges), *(d.bucket_count for d in partition.hash_dimensions)]
    keep = np.ones(shape, dtype=bool)
    for axis, allowed in enumerate(axes):
        mask = np.zeros(shape[axis], dtype=bool)
        mask[allowed] = True
        keep &= mask.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return [int(index) for index in np.flatnonzero(keep)]


def _ranges_to_scan(partition: PartitionSchema, predicates: BoundPredicates) -> list[int]:
    if not partition.range_columns:
        return [0]
    bounds = predicates.range_bounds(partition.range_columns)
    ranges = enumerate(partition.encoded_ranges)
    return [number for number, encoded in ranges if overlap(encoded, bounds)]


def _buckets_to_scan(
    partition: PartitionSchema, dimension: HashDimension, predicates: BoundPredicates
) -> list[int]:
    everything = list(range(dimension.bucket_count))
    values = [predicates.equality_values(name) for name in dimension.columns]
    if any(v is None for v in values):
        return everything
    known = [v for v in values if v is not None]
    if np.prod([len(v) for v in known], dtype=float) > COMBINATIONS_MAX:
        return everything
    types = [partition.schema.column(name).type for name in dimension.columns]
    buckets = set()
    for combination in itertools.product(*known):
        key = encode_key(combination, types)
        buckets.add(hash_bucket(key, dimension.seed, dimension.bucket_count))
    return sorted(buckets)


def hash_bucket(key: bytes, seed: int, bucket_count: int) -> int:
    """Return the bucket of one encoded key: murmur3 of it, unsigned, modulo `bucket_count`."""
    return mmh3.hash(key, seed, signed=False) % bucket_count


def hash_buckets(keys: KeyArray, seed: int, bucket_count: int) -> np.ndarray:
    """Return the bucket of every key, as uint16[n] (uint32[n] for more than 65536 buckets)."""
    assert bucket_count >= 1
    hashes = keys.murmur3(seed)
    quotient = hashes // np.uint32(bucket_count)  # numpy has SIMD division by a scalar, not modulo
    quotient *= np.uint32(bucket_count)
    hashes -= quotient
    return hashes.astype(np.uint16) if bucket_count <= 65536 else hashes
