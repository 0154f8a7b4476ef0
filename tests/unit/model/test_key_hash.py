"""Bucket hashes against the mmh3 library."""

import mmh3
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudulite.chain.partition import hash_bucket, hash_buckets
from kudulite.model.key_array import KeyArray


@given(st.data())
def test_the_array_hash_is_mmh3(data):
    """All widths and lengths, all seeds."""
    width = data.draw(st.sampled_from([None, *range(1, 21)]))
    sizes = {"min_size": width or 0, "max_size": width or 40}
    keys = data.draw(st.lists(st.binary(**sizes), max_size=12))
    seed = data.draw(st.integers(0, 2**32 - 1))
    array = KeyArray.from_bytes(keys, width)
    assert array.murmur3(seed).tolist() == [mmh3.hash(k, seed, signed=False) for k in keys]
    for count in (1, 2, 7, 64, 65536, 100_000):
        expected = [hash_bucket(key, seed, count) for key in keys]
        assert hash_buckets(array, seed, count).tolist() == expected


@pytest.mark.parametrize("length", [3, 30])
def test_many_keys_with_and_without_a_dictionary(length):
    """Long keys that repeat go through a dictionary; the hash is the same."""
    random = np.random.default_rng(3)
    pool = [random.bytes(random.integers(0, 2 * length)) for _ in range(100)]
    keys = [pool[i] for i in random.integers(0, 100, 40_000)]
    expected = [mmh3.hash(key, 42, signed=False) for key in keys]
    assert KeyArray.from_bytes(keys, None).murmur3(42).tolist() == expected


def test_buckets_are_small_integers():
    """uint16 sorts by radix; more buckets than it holds take uint32."""
    keys = KeyArray.from_bytes([b"a"], None)
    assert hash_buckets(keys, 0, 65536).dtype == np.uint16
    assert hash_buckets(keys, 0, 65537).dtype == np.uint32
