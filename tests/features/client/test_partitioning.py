"""Range partitions in kudu-python's words: splits, and inclusive and exclusive bounds."""

import datetime

import pyarrow as pa
import pytest

from kudulite import Partitioning
from kudulite.errors import SchemaError
from kudulite.model.new_schema import schema_from_arrow

SCHEMA = schema_from_arrow(pa.schema([("k", pa.int64())]), ["k"])


def by_k() -> Partitioning:
    """A partitioning by ranges of k."""
    return Partitioning().set_range_partition_columns("k")


def bounds(partitioning: Partitioning) -> list[tuple]:
    """The (lower, upper) of each range that is built."""
    return [(r.lower, r.upper) for r in partitioning.build(SCHEMA).ranges]


def test_a_split_row_belongs_to_the_upper_part():
    """Splits cut the whole key space where no range is given."""
    split = by_k().add_range_partition_split(20).add_range_partition_split(10)
    assert bounds(split) == [(None, (10,)), ((10,), (20,)), ((20,), None)]


@pytest.mark.parametrize("row", [10, 20, 25])
def test_a_split_lies_inside_one_range_and_differs_from_its_ends(row: int):
    """The lower end, the upper end and a row in a gap are refused."""
    with pytest.raises(SchemaError, match="inside one range"):
        by_k().add_range_partition(10, 20).add_range_partition_split(row).build(SCHEMA)


def test_exclusive_lower_and_inclusive_upper_become_half_open():
    """(1, 9] is [2, 10)."""
    assert bounds(by_k().add_range_partition(1, 9, "exclusive", "inclusive")) == [((2,), (10,))]


def test_a_bound_that_includes_the_last_value_is_refused():
    """No half-open range ends behind the last day."""
    schema = schema_from_arrow(pa.schema([("d", pa.date32())]), ["d"])
    days = Partitioning().set_range_partition_columns("d")
    days.add_range_partition(None, datetime.date.max, upper_bound_type="inclusive")
    with pytest.raises(SchemaError, match="'d' has no greater value"):
        days.build(schema)
