"""One order over all values: that of Python's, floats by value or by bits, nulls first."""

import functools
import itertools
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from kudulite.tablet.tombstones import compare, equals_previous, sort_keys

NAN = float("nan")
ASCENDING = {
    "int64": pa.array([None, -(2**63), -1, 0, 2**63 - 1], pa.int64()),
    "bool": pa.array([None, False, True]),
    "string": pa.array([None, "", "a", "a\0", "b", "\U0001f600"]),
    "binary": pa.array([None, b"", b"\x7f", b"\x80", b"\xff\x00"]),
    "decimal": pa.array([None, Decimal("-1.50"), Decimal("0.00"), Decimal("1.25")]),
    "double": pa.array([None, -math.inf, -1.5, -5e-324, 0.0, 1e300, math.inf, NAN]),
    "float": pa.array([None, -math.inf, -1.5, 0.0, 1e30, math.inf, NAN], pa.float32()),
    "list": pa.array([None, [], [None], [1], [1, None], [1, 2], [2]], pa.list_(pa.int32())),
    "list of float": pa.array([[-1.0], [0.0], [0.0, 1.0], [NAN]], pa.list_(pa.float64())),
}


@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize("name", ASCENDING)
def test_any_two_values_compare_as_their_places_say(name: str, is_exact: bool):
    """Each with each, by `compare` and by sorting the keys."""
    values = ASCENDING[name]
    pairs = list(itertools.product(range(len(values)), repeat=2))
    left, right = (values.take(pa.array([pair[side] for pair in pairs])) for side in (0, 1))
    signs = compare([left], [right], exact=is_exact)
    assert signs.tolist() == [int(np.sign(a - b)) for a, b in pairs]
    # A slice has another offset into the same buffers.
    assert compare([left.slice(3)], [right.slice(3)], exact=is_exact).tolist() == signs[3:].tolist()


def test_floats_that_compare_equal_differ_exactly():
    """Negative zero and the bits of a NaN."""
    left, right = pa.array([-0.0, 0.0]), pa.array([0.0, 0.0])
    assert compare([left], [right], exact=False).tolist() == [0, 0]
    assert compare([left], [right], exact=True).tolist() == [-1, 0]
    other = np.array([0x7FF8000000000001], np.uint64).view(np.float64)
    assert compare([pa.array(other)], [pa.array([NAN])], exact=False).tolist() == [0]
    assert compare([pa.array(other)], [pa.array([NAN])], exact=True).tolist() == [1]


def test_the_first_column_that_differs_decides():
    """Also where it is null in one or both."""
    left = [pa.array([1, None, None, 1]), pa.array(["a", "b", "a", "a"])]
    right = [pa.array([0, 1, None, 1]), pa.array(["z", "a", "b", "a"])]
    assert compare(left, right, exact=True).tolist() == [1, -1, -1, 0]
    keys = sort_keys(pa.array([1, 1, None, None, 2]), exact=True)
    assert equals_previous(keys).tolist() == [False, True, False, True, False]


def test_sorting_by_the_keys_is_sorting_by_compare():
    """Of random lists with nulls."""
    random = np.random.default_rng(7)
    rows = [random.integers(0, 3, random.integers(4)).tolist() for _ in range(200)]
    rows[::10] = [None] * 20
    values = pa.array(rows, pa.list_(pa.int64()))
    keys = sort_keys(values, exact=False)
    order = sorted(
        range(len(rows)),
        key=functools.cmp_to_key(
            lambda a, b: int(compare([values.slice(a, 1)], [values.slice(b, 1)], exact=False)[0])
        ),
    )
    table = pa.table({str(i): key for i, key in enumerate(keys)})
    found = table.sort_by([(name, "ascending") for name in table.column_names])
    assert found.equals(table.take(order))
