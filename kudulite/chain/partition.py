"""Partition schema: which tablet owns a row, and which tablets a scan can skip.

    tablets = range partitions × buckets of each hash dimension, in that order

A range partition may have hash dimensions of its own, as many as the table's. The other ranges have
the table's.

A hash dimension is MurmurHash3 (x86, 32 bits) over the encoded bytes of its columns, with its own
seed, modulo its bucket count. The hash decides which tablet holds a row and so reaches the disk: do
not change it.

A range partition is [lower, upper) over the encoded range columns; gaps are allowed, and a row in a
gap has no tablet.

Pruning skips a range partition that is outside the bounds that predicates put on the range columns,
and a hash bucket if every column of its dimension has a list of possible values and none hashes to
it. Pruning never filters rows: the remaining tablets are scanned with all predicates.

**Source**: Kudu common/partition.cc, common/partition_pruner.cc; docs/schema_design.adoc,
"Partitioning".
"""

from __future__ import annotations

import itertools
import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import mmh3
import numpy as np
import pyarrow as pa

from kudulite.errors import NotSupportedError, SchemaError
from kudulite.model.encoded_key import KeyEncoder, encode_key, encode_keys
from kudulite.model.key_array import KeyArray
from kudulite.model.predicate import BoundPredicates
from kudulite.model.schema import Column, Schema
from kudulite.model.types import ColumnType
from kudulite.model.values import canonical_value, value_from_json, value_to_json
from kudulite.storage.json_form import JsonForm, JsonText

BUCKETS_MIN = 2
TABLETS_MAX = 10_000

# Above this many combinations of values hashing them costs more than scanning a few tablets.
COMBINATIONS_MAX = 10_000

# Values of the first range columns.
Bound = tuple[Any, ...]
RangeBounds = tuple[Bound | None, Bound | None]
# [lower, upper) as encoded keys; None is unbounded.
KeyBounds = tuple[bytes | None, bytes | None]


@dataclass(frozen=True)
class HashDimension(JsonForm):
    """Rows go to `bucket_count` buckets by murmur3 of `columns` with `seed`."""

    columns: tuple[str, ...]
    bucket_count: int
    seed: int = 0

    def renamed(self, names: Mapping[str, str]) -> HashDimension:
        """Return the dimension with columns that have new names."""
        return replace(self, columns=tuple(names.get(name, name) for name in self.columns))


HashSchema = tuple[HashDimension, ...]


@dataclass(frozen=True)
class RangeWithHashSchema:
    """Rows with range columns in [lower, upper), and how they are hashed.

    A bound is a tuple of values, None is unbounded. `hash_dimensions` None means those of the
    table.
    """

    lower: Bound | None = None
    upper: Bound | None = None
    hash_dimensions: HashSchema | None = None

    @property
    def bounds(self) -> RangeBounds:
        """Both bounds, which identify a range in its table."""
        return self.lower, self.upper

    def renamed(self, names: Mapping[str, str]) -> RangeWithHashSchema:
        """Return the range with hash columns that have new names."""
        if self.hash_dimensions is None:
            return self
        dimensions = tuple(dimension.renamed(names) for dimension in self.hash_dimensions)
        return replace(self, hash_dimensions=dimensions)


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
    ranges: tuple[RangeWithHashSchema, ...]
    schema: Schema

    @staticmethod
    def build(
        schema: Schema,
        hash_dimensions: Sequence[HashDimension] = (),
        range_columns: Sequence[str] = (),
        ranges: Sequence[RangeWithHashSchema] = (),
    ) -> PartitionSchema:
        """Check a partitioning against the schema, put ranges in order.

        Raises SchemaError, and NotSupportedError for a range with another number of hash
        dimensions than the table.
        """
        _check_hash(schema, hash_dimensions)
        _check_columns(schema, range_columns, "range partitioning")
        if ranges and not range_columns:
            raise SchemaError("range partitions are given, but no range columns")
        columns = [schema.column(name) for name in range_columns]
        table_wide = tuple(hash_dimensions)
        found = tuple(_canonical_range(r, columns, table_wide) for r in ranges)
        found = found or (RangeWithHashSchema(),)
        partition = PartitionSchema(table_wide, tuple(range_columns), found, schema)
        partition._check_hash_schemas()
        ordered = tuple(found[number] for number in partition._checked_order())
        partition = replace(partition, ranges=ordered)
        if partition.tablet_count > TABLETS_MAX:
            raise SchemaError(
                f"{partition.tablet_count} tablets; at most {TABLETS_MAX} are possible"
            )
        return partition

    def _check_hash_schemas(self) -> None:
        """Check the ranges' own hash dimensions."""
        for number, given in enumerate(self.ranges):
            if given.hash_dimensions is None:
                continue
            _check_hash(self.schema, given.hash_dimensions)
            found, expected = len(given.hash_dimensions), len(self.hash_dimensions)
            if found != expected:
                raise NotSupportedError(
                    f"range partition {self._range_text(number)} has {found} hash dimensions and"
                    f" the table {expected}: a range needs as many as the table"
                )

    @property
    def has_custom_hash_schemas(self) -> bool:
        """Whether a range has hash dimensions of its own."""
        return len(self.hash_schemas) > 1

    @cached_property
    def hash_schemas(self) -> tuple[HashSchema, ...]:
        """The different hash dimensions of ranges; the table's come first."""
        own = (given.hash_dimensions for given in self.ranges)
        return tuple(dict.fromkeys((self.hash_dimensions, *(d for d in own if d is not None))))

    @cached_property
    def hash_schema_numbers(self) -> tuple[int, ...]:
        """For each range, the index of its hash dimensions in `hash_schemas`."""
        numbers = {dimensions: number for number, dimensions in enumerate(self.hash_schemas)}
        own = (given.hash_dimensions for given in self.ranges)
        return tuple(0 if dimensions is None else numbers[dimensions] for dimensions in own)

    @cached_property
    def first_tablets(self) -> tuple[int, ...]:
        """The index of each range's first tablet, and after them the number of all tablets."""
        counts = [math.prod(d.bucket_count for d in schema) for schema in self.hash_schemas]
        each = (counts[number] for number in self.hash_schema_numbers)
        return tuple(itertools.accumulate(each, initial=0))

    @property
    def tablet_count(self) -> int:
        """Number of tablets."""
        return self.first_tablets[-1]

    def hash_dimensions_of(self, number: int) -> HashSchema:
        """Return the hash dimensions of a range."""
        return self.hash_schemas[self.hash_schema_numbers[number]]

    def tablets(self) -> list[TabletPartition]:
        """Return all tablets in order: by range, then by bucket, the last dimension fastest."""
        found = []
        for index in range(len(self.ranges)):
            shape = [range(d.bucket_count) for d in self.hash_dimensions_of(index)]
            found += [TabletPartition(index, buckets) for buckets in itertools.product(*shape)]
        return found

    def tablet_index(self, columns: dict[str, pa.Array], count: int) -> np.ndarray:
        """Return int32[n]: the tablet of each of `count` rows, -1 where no range covers it.

        `columns` holds the key columns with their exact types.
        """
        ranges = self._range_index(columns, count)
        index = np.array(self.first_tablets, np.int32)[ranges]
        if not self.has_custom_hash_schemas:
            index += self._bucket_index(columns, count, self.hash_dimensions)
        else:
            schema_numbers = np.array(self.hash_schema_numbers)[ranges]
            for number, dimensions in enumerate(self.hash_schemas):
                rows = np.flatnonzero(schema_numbers == number)
                names = {name for dimension in dimensions for name in dimension.columns}
                own = {name: columns[name].take(pa.array(rows)) for name in names}
                index[rows] += self._bucket_index(own, len(rows), dimensions)
        index[ranges < 0] = -1
        return index

    def _bucket_index(
        self, columns: dict[str, pa.Array], count: int, dimensions: HashSchema
    ) -> np.ndarray:
        """Return int32[n]: which of a range's tablets each of `count` rows is in."""
        index = np.zeros(count, np.int32)
        for dimension in dimensions:
            types = [self.schema.column(name).type for name in dimension.columns]
            keys = encode_keys([columns[name] for name in dimension.columns], types)
            buckets = hash_buckets(keys, dimension.seed, dimension.bucket_count)
            index *= dimension.bucket_count
            index += buckets.astype(np.int32)
        return index

    def tablet_of_key(self, values: dict[str, Any], encoded: bytes | None = None) -> int:
        """Return the tablet of one row given by its key values, -1 where no range covers it.

        `encoded` is the row's encoded key, where it is known already.
        """
        number = index = 0
        if self.range_columns:
            key = self._range_encoder([values[name] for name in self.range_columns])
            lowers, numbers = self._by_lower_bound
            place = bisect_right(lowers, key) - 1
            if place < 0 or not self._is_in_range(key, numbers[place]):
                return -1
            number = numbers[place]
        for dimension, encode, is_whole_key in self._hashed[self.hash_schema_numbers[number]]:
            if encoded is not None and is_whole_key:
                key = encoded
            else:
                key = encode([values[name] for name in dimension.columns])
            bucket = hash_bucket(key, dimension.seed, dimension.bucket_count)
            index = index * dimension.bucket_count + bucket
        return self.first_tablets[number] + index

    @cached_property
    def _range_encoder(self) -> KeyEncoder:
        return KeyEncoder(self.range_types)

    @cached_property
    def _hashed(self) -> list[list[tuple[HashDimension, KeyEncoder, bool]]]:
        """The dimensions of each of `hash_schemas`.

        With their columns' encoder, and whether the columns are the whole key.
        """
        return [
            [
                (
                    dimension,
                    KeyEncoder([self.schema.column(name).type for name in dimension.columns]),
                    list(dimension.columns) == self.schema.key_names,
                )
                for dimension in dimensions
            ]
            for dimensions in self.hash_schemas
        ]

    @cached_property
    def _by_lower_bound(self) -> tuple[list[bytes], list[int]]:
        """The lower bounds of all ranges, ascending, and the number of each range."""
        lowers = [lower or b"" for lower, _ in self.encoded_ranges]
        order = sorted(range(len(lowers)), key=lowers.__getitem__)
        return [lowers[number] for number in order], order

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
        """Return a range as people read it: `ts: [2013-01-01, 2013-07-01)`.

        One with hash dimensions of its own ends with them: `… hash(id) × 8`.
        """
        own = self.ranges[number].hash_dimensions
        return " ".join([self._range_text(number), *map(_hash_text, own or ())])

    def _range_text(self, number: int) -> str:
        bounds = self.ranges[number]
        names = ", ".join(self.range_columns)
        return f"{names}: [{_show(bounds.lower, '-∞')}, {_show(bounds.upper, '+∞')})"

    def describe_all(self) -> list[str]:
        """Return the hash dimensions and the ranges as people read them; empty for one tablet."""
        hashed = [_hash_text(dimension) for dimension in self.hash_dimensions]
        range_count = len(self.ranges) if self.range_columns else 0
        return hashed + [self.describe_range(number) for number in range(range_count)]

    def describe(self, tablet: TabletPartition) -> str:
        """Return a tablet's place as people read it."""
        parts = [
            f"hash({', '.join(d.columns)}) bucket {bucket} of {d.bucket_count}"
            for d, bucket in zip(
                self.hash_dimensions_of(tablet.range_index), tablet.buckets, strict=True
            )
        ]
        if self.range_columns:
            parts.append(self._range_text(tablet.range_index))
        return "; ".join(parts) or "the whole table"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that the manifest keeps."""
        return {
            "hash": [dimension.to_json() for dimension in self.hash_dimensions],
            "range_columns": list(self.range_columns),
            "ranges": [self.range_to_json(given) for given in self.ranges],
        }

    @cached_property
    def json_text(self) -> JsonText:
        """The JSON form as text."""
        return JsonText.of(self.to_json())

    @staticmethod
    def from_json(value: dict[str, Any], schema: Schema) -> PartitionSchema:
        """Build a partition schema from `to_json`'s form."""
        dimensions = tuple(HashDimension.from_json(dimension) for dimension in value["hash"])
        bare = PartitionSchema(dimensions, tuple(value["range_columns"]), (), schema)
        _check_hash(schema, dimensions)
        _check_columns(schema, bare.range_columns, "range partitioning")
        found = replace(bare, ranges=tuple(bare.range_from_json(r) for r in value["ranges"]))
        found._check_hash_schemas()
        if found.tablet_count > TABLETS_MAX:
            raise ValueError(f"{found.tablet_count} tablets, expected at most {TABLETS_MAX}")
        return found

    def range_to_json(self, given: RangeWithHashSchema) -> dict[str, Any]:
        """Return the JSON form of a range over the range columns."""
        columns = [self.schema.column(name) for name in self.range_columns]
        form: dict[str, Any] = {
            "lower": _bound_to_json(given.lower, columns),
            "upper": _bound_to_json(given.upper, columns),
        }
        if given.hash_dimensions is not None:
            form["hash"] = [dimension.to_json() for dimension in given.hash_dimensions]
        return form

    def range_from_json(self, value: dict[str, Any]) -> RangeWithHashSchema:
        """Build a range from `range_to_json`'s form."""
        columns = [self.schema.column(name) for name in self.range_columns]
        own = value.get("hash")
        return RangeWithHashSchema(
            _bound_from_json(value["lower"], columns),
            _bound_from_json(value["upper"], columns),
            None if own is None else tuple(HashDimension.from_json(each) for each in own),
        )

    def of_range(self, only: RangeWithHashSchema) -> PartitionSchema:
        """Return the same partitioning with one range, which need not be among those here."""
        return replace(self, ranges=(only,))


def placed_schema(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `schema` and the `partition` that the JSON object of a metadata file holds.

    Most versions of a table have those of the version before, and share them.
    """
    schema, partition = _placed_schema(JsonText.of([body["schema"], body["partition"]]))
    return {"schema": schema, "partition": partition}


@lru_cache(maxsize=8)
def _placed_schema(text: JsonText) -> tuple[Schema, PartitionSchema]:
    schema_form, partition_form = json.loads(text)
    schema = Schema.from_json(schema_form)
    return schema, PartitionSchema.from_json(partition_form, schema)


def _canonical_range(
    given: RangeWithHashSchema, columns: Sequence[Column], table_wide: HashSchema
) -> RangeWithHashSchema:
    """Return a range with values in canonical form, and no hash dimensions equal to the table's."""
    return RangeWithHashSchema(
        _canonical_bound(given.lower, columns),
        _canonical_bound(given.upper, columns),
        None if given.hash_dimensions == table_wide else given.hash_dimensions,
    )


def _hash_text(dimension: HashDimension) -> str:
    return f"hash({', '.join(dimension.columns)}) × {dimension.bucket_count}"


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
        if name == schema.auto_incrementing:
            raise SchemaError(
                f"{what} by column {name!r}: rows are numbered within a tablet, so the numbers"
                " cannot choose it; leave the column out"
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
    numbers = np.array(_ranges_to_scan(partition, predicates), np.int64)
    starts = np.array(partition.first_tablets)[numbers]
    schema_numbers = np.array(partition.hash_schema_numbers)[numbers]
    found = [
        starts[schema_numbers == number, None] + _tablets_of_range(partition, schema, predicates)
        for number, schema in enumerate(partition.hash_schemas)
    ]
    return sorted(np.concatenate([indexes.ravel() for indexes in found]).tolist())


def _tablets_of_range(
    partition: PartitionSchema, dimensions: HashSchema, predicates: BoundPredicates
) -> np.ndarray:
    """Return int64[n]: which tablets of a range with these hash dimensions may hold a match."""
    index = np.zeros(1, np.int64)
    for dimension in dimensions:
        buckets = np.array(_buckets_to_scan(partition, dimension, predicates), np.int64)
        index = (index[:, None] * dimension.bucket_count + buckets).ravel()
    return index


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
