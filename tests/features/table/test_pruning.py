"""Pruning never loses a row, and leaves out what the predicates exclude."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudulite.chain.partition import (
    HashDimension,
    PartitionSchema,
    RangeWithHashSchema,
    tablets_to_scan,
)
from kudulite.model import types
from kudulite.model.condition import ColumnExpression
from kudulite.model.predicate import bind_predicates
from kudulite.model.schema import NEW_COLUMN_ID, Column, Schema

TYPES = {"s": types.string, "k": types.int16, "d": types.date}
SCHEMA = Schema.build(
    [Column(NEW_COLUMN_ID, n, t, nullable=False) for n, t in TYPES.items()]
    + [Column(NEW_COLUMN_ID, "v", types.int32)],
    list(TYPES),
)
DAY = datetime.date(2020, 1, 1)
VALUES = {
    "s": st.sampled_from(["", "a", "a\0", "ab", "b", "é", "\U0001f600"]),
    "k": st.integers(-3, 3) | st.sampled_from([-(1 << 15), (1 << 15) - 1]),
    "d": st.integers(0, 5).map(lambda i: DAY + datetime.timedelta(i)),
}


PARTITIONS = [
    PartitionSchema.build(SCHEMA, [HashDimension(("s",), 5)]),
    PartitionSchema.build(SCHEMA, [HashDimension(("s", "k"), 4, 2), HashDimension(("d",), 3)]),
    PartitionSchema.build(
        SCHEMA, (), ("s",), [RangeWithHashSchema(None, ("ab",)), RangeWithHashSchema(("ab",), None)]
    ),
    PartitionSchema.build(
        SCHEMA,
        [HashDimension(("d",), 3)],
        ("k", "s"),
        [
            RangeWithHashSchema(None, (-1,)),
            RangeWithHashSchema((0,), (0, "b")),
            RangeWithHashSchema((0, "b"), (2,)),
            RangeWithHashSchema((2,), None),
        ],
    ),
    PartitionSchema.build(
        SCHEMA, [HashDimension(("k",), 3)], ("d",), [RangeWithHashSchema((DAY,), None)]
    ),
    PartitionSchema.build(
        SCHEMA,
        [HashDimension(("s",), 3)],
        ("k",),
        [
            RangeWithHashSchema(None, (0,), (HashDimension(("k",), 4),)),
            RangeWithHashSchema((0,), (1,)),
            RangeWithHashSchema((2,), None, (HashDimension(("s", "d"), 5, 1),)),
        ],
    ),
]


@st.composite
def predicates(draw):
    """A conjunction over key columns, with the same in Python."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(TYPES)))
        value = draw(VALUES[name])
        several = draw(st.lists(VALUES[name], max_size=3))
        column = ColumnExpression(name)
        choices = [
            (column == value, lambda v, value=value: v == value),
            (column < value, lambda v, value=value: v < value),
            (column <= value, lambda v, value=value: v <= value),
            (column > value, lambda v, value=value: v > value),
            (column >= value, lambda v, value=value: v >= value),
            (column.in_list(several), lambda v, several=several: v in several),
        ]
        if name == "s":
            prefix = value[:1]
            choices.append((column.starts_with(prefix), lambda v, p=prefix: v.startswith(p)))
        predicate, accepts = draw(st.sampled_from(choices))
        found.append((name, predicate, accepts))
    return found


@pytest.mark.parametrize("number", range(len(PARTITIONS)))
@given(predicates(), st.data())
def test_a_row_that_matches_is_in_a_tablet_that_stays(number, where, data):
    """The property that pruning must have."""
    partition = PARTITIONS[number]
    row = {name: data.draw(VALUES[name]) for name in TYPES}
    kept = tablets_to_scan(partition, bind_predicates([p for _, p, _ in where], SCHEMA))
    assert kept == sorted(set(kept))
    owner = partition.tablet_of_key(row)
    if owner >= 0 and all(accepts(row[name]) for name, _, accepts in where):
        assert owner in kept


def kept(number: int, *where) -> list[int]:
    """The tablets that stay."""
    return tablets_to_scan(PARTITIONS[number], bind_predicates(where, SCHEMA))


S, K, D = ColumnExpression("s"), ColumnExpression("k"), ColumnExpression("d")


def test_equality_leaves_one_bucket():
    """And IN as many as its values hash to."""
    assert len(kept(0, S == "a")) == 1
    assert len(kept(0, S.in_list(["a", "b", "é"]))) <= 3
    assert len(kept(1, S == "a", K == 1)) == 3
    assert len(kept(1, S == "a", K == 1, D == DAY)) == 1


def test_half_of_a_dimension_prunes_nothing():
    """A hash needs all its columns."""
    assert len(kept(1, S == "a")) == 12


def test_each_range_is_pruned_by_its_own_hash():
    """The first by k, the second by s, the third by s and d."""
    assert kept(5) == list(range(12))
    assert len(kept(5, K == -1)) == 1 and kept(5, K == -1)[0] < 4
    assert kept(5, K == 0) == [4, 5, 6]
    assert len(kept(5, S == "a")) == 4 + 1 + 5
    assert len(kept(5, S == "a", D == DAY)) == 4 + 1 + 1
    assert len(kept(5, S == "a", D == DAY, K > 1)) == 1
    assert kept(5, K == 1) == []


def test_ranges_are_pruned_by_bounds():
    """Also by a prefix of the range columns, and through gaps."""
    assert kept(2, S < "ab") == [0]
    assert kept(2, S >= "ab") == [1]
    assert kept(3, K > 1) == [9, 10, 11]
    assert kept(3, K == 0, S == "a") == [3, 4, 5]
    assert len(kept(3, K == 0, S == "b", D == DAY)) == 1
    assert kept(4, D < DAY) == []


def test_a_contradiction_leaves_nothing():
    """An empty IN, or two bounds that exclude each other."""
    assert kept(0, S.in_list([])) == []
    assert kept(0, S < "a", S > "b") == []


def test_value_columns_prune_nothing():
    """They are not in the partitioning."""
    assert len(kept(0, ColumnExpression("v") == 1)) == 5


def test_too_many_combinations_are_not_hashed():
    """Rather every bucket than a long product."""
    values = [f"x{i}" for i in range(200)]
    numbers = list(range(200))
    assert len(kept(1, S.in_list(values), K.in_list(numbers))) == 12
