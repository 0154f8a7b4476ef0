"""Replacing and selecting cells of a column block: as Python lists do it, for each kind of type."""

import random

import numpy as np
import pyarrow as pa
import pytest

from kudulite.delta.scatter import bool_array, scatter, select, spread

VALUES = {
    pa.bool_(): (True, False),
    pa.int16(): (0, -5, 7),
    pa.float64(): (0.0, 1.5, float("inf")),
    pa.decimal128(9, 2): (None,),
    pa.string(): ("", "a", "𝄞 long enough to be no prefix", "ä"),
    pa.binary(): (b"", b"\0", b"xyz" * 9),
    pa.list_(pa.int32()): ([], [1, None], [2, 3, 4]),
}


def some(chance: random.Random, arrow_type: pa.DataType, count: int, nulls: bool) -> pa.Array:
    """A slice from the middle of an array, so that offsets do not begin at 0."""
    values = list(VALUES[arrow_type]) + [None] * nulls
    before, after = chance.randrange(3), chance.randrange(3)
    whole = pa.array(chance.choices(values, k=before + count + after), arrow_type)
    return whole.slice(before, count)


@pytest.mark.parametrize("arrow_type", VALUES, ids=str)
@pytest.mark.parametrize("is_selected", [False, True])
def test_cells_are_replaced_and_selected(arrow_type: pa.DataType, is_selected: bool):
    """With nulls on either side, both, and none; of any number of rows."""
    chance = random.Random(7)
    for _ in range(60):
        count = chance.choice([1, 2, 9, 70])
        base = some(chance, arrow_type, count, chance.random() < 0.5)
        where = sorted(chance.sample(range(count), chance.randint(1, count)))
        values = some(chance, arrow_type, len(where), chance.random() < 0.5)
        selected = sorted(chance.sample(range(count), chance.randint(0, count)))
        expected = base.to_pylist()
        for at, value in zip(where, values.to_pylist(), strict=True):
            expected[at] = value
        chosen = np.array(selected, np.int64) if is_selected else None
        found = scatter(base, np.array(where), values, chosen)
        found.validate(full=True)
        if is_selected:
            expected = [expected[at] for at in selected]
            assert select(base, chosen).to_pylist() == [base[at].as_py() for at in selected]
        assert found.type == arrow_type
        assert found.to_pylist() == expected


def test_text_that_is_all_null_replaces_text():
    """Its array may have no bytes at all."""
    base = pa.array(["a", "b", None, "d"])
    found = scatter(base, np.array([1, 3]), pa.nulls(2, pa.string()))
    found.validate(full=True)
    assert found.to_pylist() == ["a", None, None, None]


@pytest.mark.parametrize("make", [pa.nulls, lambda n, kind: pa.repeat(pa.scalar(None, kind), n)])
def test_a_base_of_ones_own_that_is_all_null_stays_null_elsewhere(make):
    """Its values and its validity may be one buffer."""
    base = make(50, pa.int32())
    found = scatter(base, np.array([0, 49]), pa.array([5, 6], pa.int32()), is_own=True)
    assert found.to_pylist() == [5, *[None] * 48, 6]


OWN_VALUES = VALUES | {
    pa.string(): ("abc", "xyz", "ä!"),  # three bytes each
    pa.binary(): (b"\0\1", b"ab", b"cd"),
    pa.timestamp("us", "UTC"): (0, 1, -1),
}


@pytest.mark.parametrize("arrow_type", OWN_VALUES, ids=str)
def test_a_base_of_ones_own_gives_the_same_cells(arrow_type: pa.DataType):
    """It may be overwritten; one that others read never is. Text of one width, too."""
    chance = random.Random(11)
    for _ in range(60):
        count = chance.choice([1, 2, 9, 70])
        values = [*OWN_VALUES[arrow_type], *[None] * chance.randrange(2)]
        base = pa.array(chance.choices(values, k=count + 3), arrow_type).slice(2, count)
        where = np.array(sorted(chance.sample(range(count), chance.randint(1, count))))
        new = pa.array(chance.choices(values, k=len(where) + 1), arrow_type).slice(1)
        chosen = None
        if chance.random() < 0.5:
            chosen = np.array(sorted(chance.sample(range(count), chance.randint(0, count))), int)
        before = base.to_pylist()
        shared = scatter(base, where, new, chosen)
        assert base.to_pylist() == before
        own = pa.concat_arrays([base])
        found = scatter(own, where, new, chosen, is_own=True)
        found.validate(full=True)
        assert found.to_pylist() == shared.to_pylist()
        expected = [*before]
        for at, value in zip(where.tolist(), new.to_pylist(), strict=True):
            expected[at] = value
        assert found.to_pylist() == [
            expected[at] for at in (range(count) if chosen is None else chosen)
        ]


@pytest.mark.parametrize("arrow_type", VALUES, ids=str)
def test_values_are_spread_over_rows(arrow_type: pa.DataType):
    """Each value is at its position, with nulls and without; the other cells do not matter."""
    chance = random.Random(5)
    for _ in range(30):
        count = chance.choice([1, 2, 9, 70])
        where = sorted(chance.sample(range(count), chance.randint(0, count)))
        values = some(chance, arrow_type, len(where), chance.random() < 0.5)
        found = spread(values, np.array(where, np.int64), count)
        found.validate(full=True)
        assert len(found) == count and found.type == arrow_type
        assert found.take(pa.array(where, pa.int64())).equals(values)


def test_flags_become_an_array():
    """As `pa.array` makes it, of any length."""
    for count in (0, 1, 8, 13):
        flags = np.arange(count) % 3 == 0
        assert bool_array(flags).equals(pa.array(flags))
