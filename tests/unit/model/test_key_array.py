"""KeyArray against Python's own bytes: every storage, every operation."""

import bisect
import itertools
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudulite.errors import CorruptionError
from kudulite.model.key_array import KeyArray
from kudulite.model.key_hash import hash64_one
from tests.support.tiers import examples

WIDTHS = [None, 1, 2, 3, 5, 8, 9, 11, 12, 13, 16, 20]
letters = st.sampled_from([0, 0, 1, 97, 127, 128, 255])


@st.composite
def key_lists(draw):
    """A width and some keys of it, with repeats, NULs and shared prefixes."""
    width = draw(st.sampled_from(WIDTHS))
    sizes = {"min_size": width or 0, "max_size": width or 20}
    keys = st.lists(letters, **sizes).map(bytes)
    pool = draw(st.lists(keys, min_size=1, max_size=8))
    chosen = draw(st.lists(st.sampled_from(pool), max_size=20))
    return width, chosen, draw(st.lists(keys, max_size=6)) + pool[:2]


@given(key_lists())
def test_keys_survive_every_form(case):
    """bytes, Arrow (also sliced), pickle, concat and slice give the same keys."""
    width, keys, _ = case
    array = KeyArray.from_bytes(keys, width)
    assert list(array) == keys and len(array) == len(keys)
    assert list(KeyArray.from_arrow(array.to_arrow(), width)) == keys
    assert list(KeyArray.from_arrow(array.to_arrow().slice(1), width)) == keys[1:]
    assert list(KeyArray.from_arrow(pa.array(keys, pa.large_binary()).slice(1), width)) == keys[1:]
    chunks = pa.chunked_array([array.to_arrow(), array.to_arrow().slice(1)])
    assert list(KeyArray.from_arrow(chunks, width)) == keys + keys[1:]
    assert list(pickle.loads(pickle.dumps(array))) == keys
    assert list(KeyArray.concat([array, array.slice(1, 3), array])) == keys + keys[1:3] + keys
    assert list(array.slice(2, 10**9)) == keys[2:] and list(array.slice(3, 1)) == []


@given(key_lists())
def test_order_is_that_of_python_bytes(case):
    """sort_order is stable; is_sorted and equals_previous agree with comparisons one by one."""
    width, keys, _ = case
    array = KeyArray.from_bytes(keys, width)
    assert array.sort_order().tolist() == sorted(range(len(keys)), key=keys.__getitem__)
    assert array.sort_order().dtype == np.int64
    ordered = array.take(array.sort_order())
    assert list(ordered) == sorted(keys) and ordered.is_sorted()
    assert array.is_sorted() == (keys == sorted(keys))
    assert ordered.is_sorted(strict=True) == (len(set(keys)) == len(keys))
    pairs = itertools.pairwise(keys)
    assert array.equals_previous().tolist() == [False] * bool(keys) + [a == b for a, b in pairs]


@given(key_lists())
def test_searches_agree_with_bisect(case):
    """Array probes in any order, and single bounds longer or shorter than a key."""
    width, keys, probes = case
    unique, ordered = sorted(set(keys)), sorted(keys)
    needles = KeyArray.from_bytes(probes, width)
    found = KeyArray.from_bytes(unique, width).find(needles).tolist()
    assert found == [unique.index(probe) if probe in unique else -1 for probe in probes]
    array = KeyArray.from_bytes(ordered, width)
    bounds = [*probes, b"", b"\xff" * 30, *[p[:1] for p in probes], *[p + b"\0" for p in probes]]
    for side, search in (("left", bisect.bisect_left), ("right", bisect.bisect_right)):
        expected = [search(ordered, probe) for probe in probes]
        assert array.search_sorted(needles, side).tolist() == expected
        for bound in bounds:
            assert array.locate(bound, side) == search(ordered, bound), (bound, side)


@settings(max_examples=examples(60))
@given(key_lists(), st.integers(0, 2**64 - 1))
def test_the_array_hash_is_the_scalar_hash(case, seed):
    """Whatever the storage, the hash is of the bytes and the seed."""
    width, keys, _ = case
    hashes = KeyArray.from_bytes(keys, width).hash64(seed)
    assert hashes.dtype == np.uint64 and hashes.tolist() == [hash64_one(k, seed) for k in keys]


def test_the_hash_of_a_key_never_changes():
    """These values are on disk in bloom filters."""
    assert hash64_one(b"\x80\0\0\0\0\0\0\1") == 0x1579E09CE504374D
    distinct = {hash64_one(key, seed) for key in (b"", b"\0", b"\0\0", b"a") for seed in (0, 1)}
    assert len(distinct) == 8


@pytest.mark.parametrize("width", [4, 8, 12, 16, 30, None])
@pytest.mark.parametrize("distinct_bytes", [2, 256])
def test_order_of_many_keys_with_few_and_many_ties(width, distinct_bytes):
    """Enough rows that several rounds of refinement are needed."""
    random = np.random.default_rng(7)
    raw = random.integers(0, distinct_bytes, (5000, width or 25), dtype=np.uint8)
    raw[:2500, : (width or 25) * 2 // 3] = 9
    lengths = random.integers(0, 26, 5000) if width is None else np.full(5000, width)
    keys = [row.tobytes()[:size] for row, size in zip(raw, lengths, strict=True)]
    array = KeyArray.from_bytes(keys, width)
    assert array.sort_order().tolist() == sorted(range(5000), key=keys.__getitem__)


def test_long_keys_that_differ_at_their_end_are_ordered():
    """Pairs with a long beginning of their own: each word of 8 bytes leaves both pairs tied."""
    rng = np.random.default_rng(5)
    begins = [rng.bytes(16_000) for _ in range(3)]
    keys = [begin + end for begin in begins for end in (b"2", b"1", b"", b"2")]
    order = KeyArray.from_bytes(keys, None).sort_order()
    assert order.tolist() == sorted(range(len(keys)), key=keys.__getitem__)


def test_keys_of_another_width_are_corruption():
    """A file that promises a width is checked against it."""
    for bad in (
        pa.array([b"abc", b"ab"]),
        pa.array([b"ab"], pa.binary(2)),
        pa.array([b"abc", None]),
    ):
        with pytest.raises(CorruptionError):
            KeyArray.from_arrow(bad, 3)
