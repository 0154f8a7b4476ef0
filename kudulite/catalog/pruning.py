"""Partition pruning: which tablets may hold a row that matches the predicates.

A range partition is pruned by the bounds that the predicates put on the range columns; a hash
bucket when every column of its dimension has a list of possible values and none hashes to it.
Pruning never filters rows: a tablet that stays is still scanned with all predicates.

Source: Kudu common/partition_pruner.cc.
"""

from __future__ import annotations

import itertools

import numpy as np

from kudulite.catalog.partition import HashDimension, PartitionSchema
from kudulite.model.encoded_key import encode_key
from kudulite.model.hashing import hash_bucket
from kudulite.model.predicate import BoundPredicates

# Above this many combinations of values hashing them costs more than scanning a few tablets.
COMBINATIONS_MAX = 10_000


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
    lower, upper = predicates.range_bounds(partition.range_columns)
    kept = []
    for number in range(len(partition.ranges)):
        start, stop = partition.encoded_range(number)
        below = upper is not None and start is not None and start >= upper
        above = lower is not None and stop is not None and stop <= lower
        if not below and not above:
            kept.append(number)
    return kept


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
