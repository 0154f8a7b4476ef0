"""Builders of a partitioning, whose bounds are given as in kudu-python.

A bound is a PartialRow, a dict of range columns, or the values of the schema's first columns. Types
of bounds are names or numbers. The engine's builders take bounds as dicts of columns.

**Source**: Kudu python/kudu/client.pyx.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from kudulite.chain import partitioning as engine
from kudulite.chain.partition import PartitionSchema
from kudulite.kudu.cells import choice
from kudulite.kudu.schema import PartialRow
from kudulite.model.schema import Column, Schema

EXCLUSIVE_BOUND, INCLUSIVE_BOUND = 0, 1
_BOUND_TYPES = {EXCLUSIVE_BOUND: "exclusive", INCLUSIVE_BOUND: "inclusive"}


def bound_type(given: object) -> str:
    """Return the name of a bound's type. Raises ValueError."""
    return choice(given, "range partition bound type", _BOUND_TYPES)


class RangePartition(engine.RangePartition):
    """A range with hash partitions of its own, for `add_custom_range_partition`."""

    def __init__(
        self,
        lower_bound: Any = None,
        upper_bound: Any = None,
        lower_bound_type: str | int = "inclusive",
        upper_bound_type: str | int = "exclusive",
    ) -> None:
        kinds = bound_type(lower_bound_type), bound_type(upper_bound_type)
        super().__init__(lower_bound, upper_bound, *kinds)

    def of_columns(self, columns: Sequence[Column]) -> engine.RangePartition:
        """Return the range with bounds as dicts of the columns of a table."""
        lower, upper, *kinds = self.bounds
        plain = engine.RangePartition(bound_of(columns, lower), bound_of(columns, upper), *kinds)
        plain.hash_dimensions = self.hash_dimensions
        return plain


class Partitioning(engine.Partitioning):
    """Builder of a partitioning; every method returns the builder.

    A bound is a PartialRow, a dict of range columns, or the values of the schema's first columns.
    """

    def add_range_partition(
        self,
        lower_bound: Any = None,
        upper_bound: Any = None,
        lower_bound_type: str | int = "inclusive",
        upper_bound_type: str | int = "exclusive",
    ) -> Partitioning:
        """Add a range; without a bound it has no end on that side."""
        self._check_columns("a range partition")
        kinds = bound_type(lower_bound_type), bound_type(upper_bound_type)
        super().add_range_partition(lower_bound, upper_bound, *kinds)
        return self

    def add_range_partition_split(self, split_row: Any) -> Partitioning:
        """Cut the range that `split_row` lies in at it."""
        self._check_columns("a range partition split")
        super().add_range_partition_split(split_row)
        return self

    def add_custom_range_partition(self, range_partition: Any) -> Partitioning:
        """Add a range that has hash partitions of its own, a RangePartition."""
        self._check_columns("a range partition")
        super().add_custom_range_partition(range_partition)
        return self

    def _check_columns(self, what: str) -> None:
        if not self._range_columns:
            raise ValueError(f"Range Partition Columns must be set before adding {what}.")

    def build(self, schema: Schema) -> PartitionSchema:
        """Return the partition schema of a table. Raises KuduInvalidArgument."""
        plain = engine.Partitioning()
        plain._hash, plain._range_columns = self._hash, self._range_columns
        bounds = functools.partial(bound_of, schema.columns)
        plain._ranges = [
            (bounds(lower), bounds(upper), lower_type, upper_type)
            for lower, upper, lower_type, upper_type in self._ranges
        ]
        plain._splits = [bounds(split) for split in self._splits]
        plain._custom_ranges = [custom_range(each, schema.columns) for each in self._custom_ranges]
        return plain.build(schema)


def custom_range(given: engine.RangePartition, columns: Sequence[Column]) -> engine.RangePartition:
    """Return a range with hash partitions of its own as the engine takes it."""
    return given.of_columns(columns) if isinstance(given, RangePartition) else given


def bound_of(columns: Sequence[Column], given: Any) -> dict[str, Any] | None:
    """Return a bound as a dict by column, None without one."""
    row = given if isinstance(given, PartialRow) else PartialRow(columns, given or None)
    return dict(row) or None
