"""Keys grown by merging equal keys sorted at once."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kudulite.model.key_array import KeyArray
from kudulite.rowset.memrowset import SortedKeys

FIXED = st.binary(min_size=4, max_size=4)
WIDE = st.binary(min_size=9, max_size=9)
VARIABLE = st.binary(max_size=6)


def check(keys: list[bytes], width: int | None, cuts: list[int]) -> None:
    """Grow in steps, compare after each, and cut every earlier state out again."""
    stops = sorted({min(cut, len(keys)) for cut in cuts} | {0, len(keys)})
    grown = SortedKeys.of(KeyArray.from_bytes([], width))
    states = []
    for start, stop in itertools.pairwise(stops):
        grown = grown.grown(KeyArray.from_bytes(keys[start:stop], width))
        states.append(stop)
    for stop in states:
        expected = sorted((key, rowid) for rowid, key in enumerate(keys[:stop]))
        found = grown.first(stop)
        assert list(zip(found.keys, found.rowids.tolist(), strict=True)) == expected


@given(
    st.one_of(
        st.tuples(st.lists(FIXED, unique=True), st.just(4)),
        st.tuples(st.lists(WIDE, unique=True), st.just(9)),
        st.tuples(st.lists(VARIABLE, unique=True), st.none()),
    ),
    st.lists(st.integers(0, 20), max_size=4),
)
def test_growing_equals_sorting(keys_and_width, cuts):
    """In whatever steps keys come, the order is that of all of them, each with its row id."""
    check(*keys_and_width, cuts)
