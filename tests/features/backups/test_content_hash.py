"""The content hash: the same for the same rows in any order and any pieces, else another one."""

import decimal
import random

import numpy as np
import pyarrow as pa
import pytest

import kudulite
from kudulite.backups.format import ContentSum, batch_sum, content_sum
from tests.support.tables.typed_tables import COLUMNS

TYPES = {
    name: (kudulite.parse_type(kind) if isinstance(kind, str) else kind).arrow
    for name, kind, _ in COLUMNS
}
VALUES = {name: values for name, _, values in COLUMNS}


def batch(count: int, seed: int = 1) -> pa.RecordBatch:
    """Random rows with a column of every type, and nulls."""
    choose = random.Random(seed)
    cells = {name: [choose.choice([*VALUES[name], None]) for _ in range(count)] for name in VALUES}
    cells["id"] = list(range(count))
    return pa.record_batch(cells, pa.schema([*TYPES.items(), ("id", pa.int64())]))


def test_neither_order_nor_pieces_matter():
    """Sums of slices, and of rows in another order, are the sum of the whole."""
    rows = batch(500)
    whole = batch_sum(rows)
    assert whole.row_count == 500
    assert content_sum([rows.slice(0, 123), rows.slice(123, 0), rows.slice(123)]) == whole
    order = pa.array(np.random.default_rng(2).permutation(500))
    assert batch_sum(rows.take(order)) == whole
    assert content_sum([]) == ContentSum(0, 0)


@pytest.mark.parametrize("name", list(VALUES))
def test_every_cell_counts(name: str):
    """Any two values of a column, null included, make another sum."""
    values = [*VALUES[name], None]
    sums = {batch_sum(pa.record_batch({name: pa.array([v], TYPES[name])})) for v in values}
    assert len(sums) == len(values)


def test_where_a_value_stands_counts():
    """In another row's cell, in another column, twice instead of once."""
    int64 = pa.int64()
    rows = [([1, 2], [3, 4]), ([1, 2], [4, 3]), ([3, 4], [1, 2]), ([1, 1], [3, 3])]
    sums = {
        batch_sum(pa.record_batch({"a": pa.array(a, int64), "b": pa.array(b, int64)}))
        for a, b in rows
    }
    assert len(sums) == len(rows)


def test_lists_are_hashed_by_their_elements():
    """Empty ones, null ones, and what is cut off a longer array."""
    values = [[], None, [0], [None], [1, 2], [2, 1], [1], [1, 2, 0], [0, 0]]
    lists = pa.array(values, pa.list_(pa.int32()))
    sums = [batch_sum(pa.record_batch({"a": lists.slice(n, 1)})) for n in range(len(values))]
    assert len(set(sums)) == len(values)
    assert sum(sums, ContentSum(0, 0)) == batch_sum(pa.record_batch({"a": lists}))
    texts = pa.array([["a", "b"], ["ab"], ["", "ab"]], pa.list_(pa.string()))
    assert len({batch_sum(pa.record_batch({"a": texts.slice(n, 1)})) for n in range(3)}) == 3


def test_what_a_null_hides_does_not_count():
    """The bytes below a null may be anything."""
    hidden = pa.array([decimal.Decimal(5), decimal.Decimal(7)], pa.decimal128(9, 0))
    masked = pa.Array.from_buffers(
        hidden.type, 2, [pa.array([False, True]).buffers()[1], hidden.buffers()[1]], null_count=1
    )
    plain = pa.array([None, decimal.Decimal(7)], hidden.type)
    sums = {batch_sum(pa.record_batch({"a": array})) for array in (masked, plain)}
    assert len(sums) == 1
