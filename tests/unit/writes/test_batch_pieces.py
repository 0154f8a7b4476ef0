"""Batches of a write in pieces: each fits Arrow's arrays, whatever form its columns have."""

import mmap

import numpy as np
import pyarrow as pa
import pytest

from kudulite.model import types as t
from kudulite.model.column_cast import cast_to_column
from kudulite.reads import lookup
from kudulite.tablet import resolve, row_gather
from kudulite.writes import batch_pieces
from kudulite.writes.batch_pieces import chunks, row_sizes
from tests.support.tables.core_tables import CoreTables, stored

TEXTS = [None if n % 7 == 3 else str(n % 5) * (n * n % 400) for n in range(90)]
PLAIN = pa.array(TEXTS)
LISTS = [None if n % 5 == 1 else TEXTS[n : n + n % 4] for n in range(90)]
FORMS = {
    "string": PLAIN,
    "large_string": PLAIN.cast(pa.large_string()),
    "string_view": PLAIN.cast(pa.string_view()),
    "binary": PLAIN.cast(pa.binary()),
    "dictionary": PLAIN.dictionary_encode(),
    "large dictionary": PLAIN.cast(pa.large_string()).dictionary_encode(),
    "list": pa.array(LISTS, pa.list_(pa.string())),
    "large_list": pa.array(LISTS, pa.large_list(pa.large_string())),
    "list of views": pa.array(LISTS, pa.list_(pa.string_view())),
}


def size_of(cell) -> int:
    """The bytes of a cell's texts."""
    return sum(map(size_of, cell)) if isinstance(cell, list) else len(cell or "")


@pytest.mark.parametrize("form", FORMS)
def test_the_size_of_a_row_is_that_of_its_value(form: str):
    """Not of its buffers: in slices, views and dictionaries, too."""
    values = FORMS[form]
    expected = [size_of(cell) for cell in values.to_pylist()]
    assert row_sizes(values).tolist() == expected
    assert row_sizes(values.slice(20, 30)).tolist() == expected[20:50]
    assert row_sizes(values.slice(3, 0)).tolist() == []
    assert batch_pieces._array_size(pa.chunked_array([values])) >= sum(expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_batch", [True, False])
def test_pieces_have_at_most_the_limit_or_one_row(monkeypatch, form: str, is_batch: bool):
    """And all rows, in their order."""
    limit = 1000
    monkeypatch.setattr(batch_pieces, "PART_BYTES_MAX", limit)
    monkeypatch.setattr(batch_pieces, "STAGE_BYTES_MAX", limit)
    rows = pa.table({"id": range(90), "v": FORMS[form]})
    given = rows.to_batches() if is_batch else [rows.slice(0, 7), rows.slice(7)]
    found: list[pa.Table] = []
    for pieces in chunks(given):
        found += pieces
        pieces.clear()
    assert pa.concat_tables(found).to_pylist() == rows.to_pylist()
    assert len(found) > 10
    for piece in found:
        assert piece.num_rows == 1 or sum(row_sizes(piece["v"].combine_chunks())) <= limit


def beyond_two_gib(kind: pa.DataType) -> pa.Array:
    """A slice of two cells, whose offsets need more than 32 bits; it takes no memory."""
    space = mmap.mmap(-1, (1 << 31) + 100)  # pages that nobody touches do not exist
    space[(1 << 31) + 10 : (1 << 31) + 13] = b"abc"
    offsets = np.array([0, (1 << 31) + 10, (1 << 31) + 13, (1 << 31) + 13, (1 << 31) + 13])
    validity = pa.py_buffer(b"\x0b")  # the third of four is null
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(space)]
    return pa.Array.from_buffers(kind, 4, buffers).slice(1)


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary()])
def test_a_slice_of_more_than_two_gib_is_cast(kind: pa.DataType):
    """Arrow's own cast refuses it for the offsets of the whole; data are not copied."""
    values = beyond_two_gib(kind)
    target = t.string if kind == pa.large_string() else t.binary
    with pytest.raises(pa.ArrowInvalid):
        values.cast(target.arrow)
    found = cast_to_column(values, target, column="v", table="t")
    found.validate(full=True)
    expected = ["abc", None, ""] if target is t.string else [b"abc", None, b""]
    assert (found.type, found.to_pylist()) == (target.arrow, expected)
    lists = pa.LargeListArray.from_arrays([0, 2, 3], values)
    cells = cast_to_column(lists, t.array(target), column="v", table="t").to_pylist()
    assert cells == [expected[:2], expected[2:]]
    empty = cast_to_column(values.slice(0, 0), target, column="v", table="t")
    assert (empty.type, len(empty)) == (target.arrow, 0)


@pytest.fixture
def low_limits(monkeypatch):
    """Limits of bytes that the small tables here exceed many times."""
    monkeypatch.setattr(batch_pieces, "PART_BYTES_MAX", 3000)
    monkeypatch.setattr(batch_pieces, "STAGE_BYTES_MAX", 2000)
    monkeypatch.setattr(lookup, "FIRST_ROWS", 2)
    monkeypatch.setattr(lookup, "READ_BYTES", 1000)
    monkeypatch.setattr(row_gather, "GATHERED_BYTES_MAX", 700)
    monkeypatch.setattr(resolve, "_GATHERED_ROWS", 4)


@pytest.mark.parametrize("form", FORMS)
def test_large_columns_are_written_and_read_in_pieces(core: CoreTables, low_limits, form: str):
    """Inserted, looked up in any order, changed as one operation and as a mixture, restored."""
    values = FORMS[form]
    keys = pa.array(np.random.default_rng(5).permutation(90))
    rows = pa.table({"id": keys, "v": values})
    table = core.client().create_table("t", rows, primary_key="id")
    assert table.insert(rows).inserted == 90
    expected = dict(zip(keys.to_pylist(), values.to_pylist(), strict=True))
    assert dict(stored(table)) == expected
    wanted = [*range(89, -1, -2), 1000, *range(0, 90, 2)]
    found = table.get_many(wanted).to_pylist()
    assert [(row["id"], row["v"]) for row in found] == [(k, expected[k]) for k in wanted if k < 90]
    before = table.current_timestamp()
    changed = pa.table({"id": keys.take(pa.array(range(89, -1, -1))), "v": values})
    table.upsert(changed)
    operations = pa.array(["U", "D", "U"] * 30)
    table.apply(changed.append_column("op", operations))
    left = {
        row["id"]: row["v"]
        for row, op in zip(changed.to_pylist(), operations.to_pylist(), strict=True)
        if op == "U"
    }
    assert dict(stored(table)) == left
    table.restore(before)
    assert dict(stored(table)) == expected
    assert table.get_many([]).num_rows == 0
