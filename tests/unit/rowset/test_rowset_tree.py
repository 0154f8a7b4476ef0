"""The interval tree gives what comparing every interval gives."""

from dataclasses import dataclass

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kudulite.model.key_array import KeyArray
from kudulite.rowset.rowset_tree import RowSetTree

KEYS = st.binary(max_size=3)


@dataclass(frozen=True)
class Interval:
    """Inclusive bounds; `number` tells equal ones apart."""

    number: int
    key_min: bytes
    key_max: bytes


@st.composite
def interval_lists(draw) -> list[Interval]:
    """Overlapping, nested, equal and single-key intervals."""
    pairs = draw(st.lists(st.tuples(KEYS, KEYS), max_size=12))
    return [Interval(n, *sorted(pair)) for n, pair in enumerate(pairs)]


def numbers(found) -> list[int]:
    """The intervals found, each once."""
    result = [interval.number for interval in found]
    assert len(set(result)) == len(result)
    return sorted(result)


@given(interval_lists(), KEYS)
def test_covering_equals_brute_force(intervals, key):
    """Both bounds are inclusive."""
    expected = [i.number for i in intervals if i.key_min <= key <= i.key_max]
    assert numbers(RowSetTree(intervals).covering(key)) == expected


@given(interval_lists(), st.none() | KEYS, st.none() | KEYS)
def test_overlapping_equals_brute_force(intervals, lower, upper):
    """The range is half open; None is unbounded."""
    expected = [
        i.number
        for i in intervals
        if (upper is None or i.key_min < upper) and (lower is None or i.key_max >= lower)
    ]
    assert numbers(RowSetTree(intervals).overlapping(lower, upper)) == expected


@given(interval_lists(), st.lists(KEYS))
def test_probe_ranges_equal_brute_force(intervals, keys):
    """Each interval with the slice of the keys that it contains, none of them empty."""
    ascending = sorted(keys)
    array = KeyArray.from_arrow(pa.array(ascending, pa.binary()), None)
    found = {i.number: ascending[a:b] for i, a, b in RowSetTree(intervals).probe_ranges(array)}
    inside = {i.number: [k for k in ascending if i.key_min <= k <= i.key_max] for i in intervals}
    assert found == {number: keys for number, keys in inside.items() if keys}
