"""The ordered merge gives what sorting everything gives, and opens streams late."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudulite.errors import CorruptionError
from kudulite.model.encoded_key import encode_keys
from kudulite.model.types import int32
from kudulite.rowset.merge import OrderedStream, in_order, merge_windows
from kudulite.rowset.rowset import ScannedRows


def merged_rows(streams: Sequence[OrderedStream]) -> Iterator[ScannedRows]:
    """All rows, window by window."""
    return (in_order([rows for _, rows in window]) for window in merge_windows(streams))


def rows(keys: list[int]) -> ScannedRows:
    """Rows whose only column is the key."""
    array = pa.array(keys, pa.int32())
    return ScannedRows(pa.record_batch({"k": array}), encode_keys([array], [int32]))


@st.composite
def streams(draw) -> list[list[list[int]]]:
    """Streams of ascending batches, some empty; each key in one stream."""
    owners = draw(st.dictionaries(st.integers(-9, 30), st.integers(0, 4), max_size=40))
    result = []
    for owner in range(5):
        keys = sorted(key for key, of in owners.items() if of == owner)
        cuts = sorted(draw(st.lists(st.integers(0, len(keys)), max_size=4)))
        edges = [0, *cuts, len(keys)]
        result.append([keys[a:b] for a, b in pairwise(edges)])
    return result


def stream(batches: list[list[int]], opened: list[int], number: int) -> OrderedStream:
    """A stream whose bound may be below its first key."""
    keys = [key for batch in batches for key in batch]
    first = min(keys, default=-100)
    key_min = encode_keys([pa.array([first - number % 2], pa.int32())], [int32])[0]

    def read():
        opened.append(number)
        return iter([rows(batch) for batch in batches])

    return OrderedStream(key_min, read)


@given(streams())
def test_a_merge_equals_a_sort(found):
    """Rows and their encoded keys, whatever the batches."""
    opened: list[int] = []
    merged = list(merged_rows([stream(b, opened, n) for n, b in enumerate(found)]))
    expected = sorted(key for batches in found for batch in batches for key in batch)
    assert [key for part in merged for key in part.batch.column(0).to_pylist()] == expected
    encoded = [key for part in merged for key in part.keys]
    assert encoded == list(encode_keys([pa.array(expected, pa.int32())], [int32]))
    assert sorted(opened) == list(range(len(found)))


def test_streams_side_by_side_are_read_one_after_another():
    """A stream is not opened before the rows ahead of it are delivered."""
    opened: list[int] = []
    merged = merged_rows([stream([[20, 21]], opened, 2), stream([[1, 2]], opened, 0)])
    assert next(merged).batch.column(0).to_pylist() == [1, 2]
    assert opened == [0]
    assert next(merged).batch.column(0).to_pylist() == [20, 21]
    assert opened == [0, 2]


def test_keys_out_of_order_are_damage():
    """They would leave windows without rows, and a merge without an end."""
    merged = merged_rows([stream([[9, 8, 1]], [], 0), stream([[3, 4]], [], 2)])
    with pytest.raises(CorruptionError, match="not in ascending order"):
        list(merged)
