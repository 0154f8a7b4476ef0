"""Which tablet owns a row: whole arrays, single keys and the mmh3 library agree."""

import datetime
import math
from decimal import Decimal

import mmh3
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudulite.chain.partition import HashDimension, PartitionSchema, RangeWithHashSchema
from kudulite.errors import NotSupportedError, SchemaError
from kudulite.model import types
from kudulite.model.encoded_key import encode_key
from kudulite.model.schema import NEW_COLUMN_ID, Column, Schema

TYPES = {
    "a": types.int32,
    "b": types.string,
    "c": types.unixtime_micros,
    "d": types.decimal(9, 2),
}
SCHEMA = Schema.build(
    [Column(NEW_COLUMN_ID, name, t, nullable=False) for name, t in TYPES.items()], list(TYPES)
)
MOMENT = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
KEYS = st.lists(
    st.tuples(
        st.integers(-5, 5),
        st.text(max_size=4),
        st.integers(0, 9).map(lambda i: MOMENT + datetime.timedelta(hours=i)),
        st.integers(-300, 300).map(lambda i: Decimal(i) / 100),
    ),
    min_size=1,
    max_size=20,
)


def ranges(column: str, *bounds: tuple) -> tuple[tuple[str, ...], list[RangeWithHashSchema]]:
    """Range partitions of one column."""
    return (column,), [
        RangeWithHashSchema(None if low is None else (low,), None if high is None else (high,))
        for low, high in bounds
    ]


PARTITIONS = {
    "none": PartitionSchema.build(SCHEMA),
    "hash of the key": PartitionSchema.build(SCHEMA, [HashDimension(tuple(TYPES), 5)]),
    "hash": PartitionSchema.build(SCHEMA, [HashDimension(("b",), 7, 3)]),
    "hash of a middle column": PartitionSchema.build(SCHEMA, [HashDimension(("c",), 4)]),
    "two hashes": PartitionSchema.build(
        SCHEMA, [HashDimension(("a", "b"), 3, 1), HashDimension(("d",), 5, 1 << 31)]
    ),
    "range": PartitionSchema.build(SCHEMA, (), *ranges("a", (None, 0), (0, 3), (3, None))),
    "range with gaps": PartitionSchema.build(SCHEMA, (), *ranges("a", (-4, -2), (1, 3))),
    "hash and range": PartitionSchema.build(
        SCHEMA, [HashDimension(("b", "c"), 3)], *ranges("a", (-3, 1), (2, None))
    ),
    "range of strings": PartitionSchema.build(
        SCHEMA, [HashDimension(("a",), 2)], *ranges("b", (None, "a"), ("a", "é"), ("é", None))
    ),
    "range of two columns": PartitionSchema.build(
        SCHEMA,
        (),
        ("a", "d"),
        [
            RangeWithHashSchema(None, (0,)),
            RangeWithHashSchema((0,), (0, Decimal("1.50"))),
            RangeWithHashSchema((0, Decimal("1.50")), None),
        ],
    ),
    "hashes of ranges": PartitionSchema.build(
        SCHEMA,
        [HashDimension(("b",), 3)],
        ("a",),
        [
            RangeWithHashSchema(None, (-2,), (HashDimension(("b",), 5, 9),)),
            RangeWithHashSchema((-2,), (0,)),
            RangeWithHashSchema((1,), (2,), (HashDimension(("c", "d"), 2),)),
            RangeWithHashSchema((2,), None, (HashDimension(("b",), 5, 9),)),
        ],
    ),
    "two hashes of a range": PartitionSchema.build(
        SCHEMA,
        [HashDimension(("a", "b"), 3, 1), HashDimension(("d",), 5)],
        ("b",),
        [
            RangeWithHashSchema(None, ("a",)),
            RangeWithHashSchema(
                ("a",), None, (HashDimension(("d",), 2), HashDimension(("a", "b", "c"), 7, 4))
            ),
        ],
    ),
}


def owners(partition: PartitionSchema, keys: list[tuple]) -> list[int]:
    """The tablets of keys by the whole-array way."""
    columns = {
        name: pa.array([key[i] for key in keys], t.arrow)
        for i, (name, t) in enumerate(TYPES.items())
    }
    return partition.tablet_index(columns, len(keys)).tolist()


def owner_by_hand(partition: PartitionSchema, key: tuple) -> int:
    """The tablet of a key by comparing Python values and calling mmh3."""
    values = dict(zip(TYPES, key, strict=True))
    index = number = 0
    if partition.range_columns:
        found = tuple(values[name] for name in partition.range_columns)
        inside = [
            n
            for n, r in enumerate(partition.ranges)
            if (r.lower is None or found >= r.lower) and (r.upper is None or found < r.upper)
        ]
        if not inside:
            return -1
        (number,) = inside
    for dimension in hashed_by(partition, number):
        of = [values[name] for name in dimension.columns]
        encoded = encode_key(of, [TYPES[name] for name in dimension.columns])
        bucket = mmh3.hash(encoded, dimension.seed, signed=False) % dimension.bucket_count
        index = index * dimension.bucket_count + bucket
    return index + sum(
        math.prod(dimension.bucket_count for dimension in hashed_by(partition, before))
        for before in range(number)
    )


def hashed_by(partition: PartitionSchema, number: int) -> tuple[HashDimension, ...]:
    """The hash dimensions of a range: its own, or the table's."""
    own = partition.ranges[number].hash_dimensions
    return partition.hash_dimensions if own is None else own


@pytest.mark.parametrize("name", PARTITIONS)
@given(KEYS)
def test_assignment_equals_scalar_and_mmh3(name, keys):
    """Three ways to ask give one tablet, -1 in a gap."""
    partition = PARTITIONS[name]
    found = owners(partition, keys)
    rows = [dict(zip(TYPES, key, strict=True)) for key in keys]
    assert found == [partition.tablet_of_key(row) for row in rows]
    encoded = [encode_key(key, partition.schema.key_types) for key in keys]
    assert found == [partition.tablet_of_key(*of_one) for of_one in zip(rows, encoded, strict=True)]
    assert found == [owner_by_hand(partition, key) for key in keys]
    assert all(-1 <= index < partition.tablet_count for index in found)


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_partition_schema_survives_the_manifest(name):
    """JSON and back, with the same tablets in the same order."""
    partition = PARTITIONS[name]
    again = PartitionSchema.from_json(partition.to_json(), SCHEMA)
    assert again == partition
    assert again.tablets() == partition.tablets()
    assert len(again.tablets()) == partition.tablet_count
    assert len({again.describe(tablet) for tablet in again.tablets()}) == partition.tablet_count


def test_ranges_are_put_in_order():
    """However they are given, tablets follow the key order."""
    given_order = ranges("a", (3, None), (None, 0), (0, 3))
    assert PartitionSchema.build(SCHEMA, (), *given_order) == PARTITIONS["range"]


@pytest.mark.parametrize(
    ("hashes", "range_columns", "bounds", "message"),
    [
        ([(("x",), 2)], (), [], "x"),
        ([(("a",), 1)], (), [], "into 1 buckets; at least 2"),
        ([(("a",), 2), (("b", "a"), 2)], (), [], "'a' is in two hash dimensions"),
        ([((), 2)], (), [], "at least one column"),
        ([(("a",), 2, 1 << 32)], (), [], "seed 4294967296"),
        ([(("a",), 5000), (("b",), 5000)], (), [], "25000000 tablets; at most"),
        ([], ("a",), [((1,), (1,))], r"a: \[1, 1\).*lower bound must be below"),
        ([], ("a",), [((0,), (5,)), ((4,), None)], r"\[0, 5\).*\[4, .*overlap"),
        ([], ("a",), [(None, (5,)), (None, (9,))], "overlap"),
        ([], ("a",), [((0, 1), None)], "2 values for 1 range columns"),
        ([], ("a",), [(("x",), None)], "a"),
        ([], (), [((0,), (1,))], "no range columns"),
        ([], ("a", "a"), [], "twice"),
    ],
)
def test_a_wrong_partitioning_is_refused(hashes, range_columns, bounds, message):
    """The message names the column, or shows the bounds."""
    with pytest.raises(SchemaError, match=message):
        PartitionSchema.build(
            SCHEMA,
            [HashDimension(*h) for h in hashes],
            range_columns,
            [RangeWithHashSchema(low, high) for low, high in bounds],
        )


def test_buckets_are_used_evenly():
    """No bucket of 16 gets less than half or more than double its share of 10,000 keys."""
    partition = PartitionSchema.build(SCHEMA, [HashDimension(("a",), 16)])
    keys = [(i, "", MOMENT, Decimal(0)) for i in range(10_000)]
    counts = np.bincount(owners(partition, keys), minlength=16)
    assert 312 < counts.min() <= counts.max() < 1250


def test_ranges_have_as_many_hash_dimensions_as_the_table():
    """As in Kudu; those that equal the table's are the table's."""
    table_wide = (HashDimension(("b",), 3),)

    def built(own: tuple[HashDimension, ...]) -> PartitionSchema:
        given = [RangeWithHashSchema((0,), (5,), own), RangeWithHashSchema((5,), None)]
        return PartitionSchema.build(SCHEMA, table_wide, ("a",), given)

    for own in ((), (HashDimension(("b",), 2), HashDimension(("c",), 2))):
        with pytest.raises(NotSupportedError, match=rf"a: \[0, 5\) has {len(own)} hash dimensions"):
            built(own)
    for own, problem in (
        (HashDimension(("b",), 1), "at least 2 are needed"),
        (HashDimension((), 2), "at least one column"),
        (HashDimension(("x",), 2), "no column 'x'"),
        (HashDimension(("b", "b"), 2), "names a column twice"),
    ):
        with pytest.raises(SchemaError, match=problem):
            built((own,))
    same = built(table_wide)
    assert not same.has_custom_hash_schemas and same.ranges[0].hash_dimensions is None
    assert "hash" not in str(same.to_json()["ranges"])
    custom = built((HashDimension(("b",), 3, seed=1),))
    assert custom.describe_all() == ["hash(b) × 3", "a: [0, 5) hash(b) × 3", "a: [5, +∞)"]
    assert custom.describe(custom.tablets()[4]) == "hash(b) bucket 1 of 3; a: [5, +∞)"
    stored = custom.to_json()
    stored["ranges"][0]["hash"] = []
    with pytest.raises(NotSupportedError, match="a range needs as many as the table"):
        PartitionSchema.from_json(stored, SCHEMA)
