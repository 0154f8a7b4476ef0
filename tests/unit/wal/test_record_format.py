"""Records: what is encoded comes back; damaged bytes are refused and never crash."""

import random
import re
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudulite.errors import CorruptionError, OutOfMemoryError
from kudulite.wal import record_format
from kudulite.wal.record_format import CODEC_LZ4, CODEC_NONE, encode_rows
from kudulite.wal.row_codec import (
    CHANGE_DELETE,
    CHANGE_UPDATE,
    RowChanges,
    RowCodec,
    RowList,
)
from tests.support.tables.wal_changes import (
    ALL_TYPES,
    TWO_COLUMNS,
    all_types,
    decode_record,
    inserts,
    round_trip,
    same,
)

CODEC_BYTE = 6
DELETE_ONE = RowChanges(5, np.array([CHANGE_DELETE], np.uint8), {0: pa.array([7], pa.int64())}, {})


def test_every_type_comes_back():
    """Nulls, empty, non-ASCII, NaN, -0.0 and the extremes of each type, and one row of each."""
    changes = all_types()
    assert same(round_trip(changes, ALL_TYPES), changes)
    for row in range(6):
        columns = {key: array.slice(row, 1) for key, array in changes.columns.items()}
        one = RowChanges(8, changes.ops[row : row + 1], columns)
        assert same(round_trip(one, ALL_TYPES), one)


@pytest.mark.parametrize("row_count", [1, 2, 7, 8, 9, 63, 64, 65, 1000])
def test_masks_and_operations_come_back(row_count: int):
    """Any subset of rows sets a column, at every alignment, compressed or not."""
    choice = np.random.default_rng(row_count)
    masks = {1: choice.random(row_count) < 0.5, 3: np.zeros(row_count, bool)}
    columns = {0: pa.array(np.arange(row_count))}
    for column_id in (1, 2, 3):
        column_type = ALL_TYPES.columns[column_id].type.arrow
        columns[column_id] = pa.array([None, *[1] * (row_count - 1)], pa.int8()).cast(column_type)
    ops = choice.integers(0, 3, row_count).astype(np.uint8)
    changes = RowChanges((1 << 64) - 1, ops, columns, masks)
    found = round_trip(changes, ALL_TYPES)
    assert same(found, changes)
    assert all(mask.dtype == np.bool_ for mask in found.is_set.values())


@given(st.lists(st.tuples(st.integers(-9, 9), st.one_of(st.none(), st.text())), min_size=1))
def test_any_text_comes_back(rows: list[tuple[int, str | None]]):
    """Including what is compressed: the length decides, not the caller."""
    columns = {0: pa.array([r[0] for r in rows], pa.int64()), 1: pa.array([r[1] for r in rows])}
    columns[1] = columns[1].cast(pa.string())
    changes = RowChanges(1, np.full(len(rows), CHANGE_UPDATE, np.uint8), columns)
    assert same(round_trip(changes, TWO_COLUMNS), changes)


def test_a_slice_of_a_large_batch_is_small():
    """Arrays that are views of larger ones are written without the rest."""
    large = inserts(1, range(10_000))
    one = RowChanges(1, large.ops[77:78], {k: a.slice(77, 1) for k, a in large.columns.items()})
    encoded = encode_rows(one)
    assert len(encoded) < 400
    assert same(decode_record(encoded, TWO_COLUMNS, one.timestamp), one)


def test_rows_end_where_their_part_of_the_commit_does():
    """Bytes behind them are refused."""
    encoded = encode_rows(DELETE_ONE)
    with pytest.raises(CorruptionError, match=rf"rows of {len(encoded)} bytes, expected 2000"):
        decode_record(encoded.ljust(2000, b"\0"), TWO_COLUMNS)


def test_large_records_are_compressed_and_random_ones_are_not():
    """LZ4 from 4 KiB, and only where it gets smaller."""
    repeated = encode_rows(inserts(1, [7] * 1000, "abc" * 10))
    assert repeated[CODEC_BYTE] == CODEC_LZ4
    assert len(repeated) < 5000
    assert encode_rows(inserts(1, [7]))[CODEC_BYTE] == CODEC_NONE
    noise = np.frombuffer(random.Random(1).randbytes(80_000), np.int64)
    changes = RowChanges(1, np.zeros(len(noise), np.uint8), {0: pa.array(noise)})
    noisy = RowChanges(1, changes.ops[:1000], {0: pa.array(noise[:1000])})
    assert len(encode_rows(noisy)) < 8000 + 1500
    assert same(round_trip(changes, TWO_COLUMNS), changes)


def test_the_worked_example_is_the_format():
    """The bytes of the module docstring."""
    changes = RowChanges(5, np.array([2], np.uint8), {0: pa.array([7], pa.int8())})
    text = encode_rows(changes).hex()
    example = re.search(r"\n    01000000.*?\n\n", record_format.__doc__, re.DOTALL)[0]
    begin, end = "".join(example.split()).split("…")
    assert text.startswith(begin)
    assert text.endswith(end)


@pytest.mark.parametrize(
    ("offset", "field", "value", "message"),
    [
        (0, "<I", 0, r"0 rows, 1 columns, byte 7 is 0; expected at least 1"),
        (0, "<I", 2, r"1 rows of columns, expected 2"),
        (0, "<I", 1 << 31, r"160 bytes for 2147483648 rows and 0 masks, expected at least"),
        (4, "<H", 0, r"1 rows, 0 columns"),
        (4, "<H", 9999, r"bytes, expected 40"),
        (4, "<H", 2, r"column ids \[0, 0\], expected each once"),
        (6, "<B", 9, r"codec 9, expected 0 or 1"),
        (6, "<B", 1, r"are not LZ4|in the LZ4 block"),
        (7, "<B", 1, r"byte 7 is 1"),
        (8, "<I", 1 << 31, r"bytes, expected 2147483672"),
        (8, "<I", 8, r"body of 8 bytes, expected"),
        (12, "<I", 1, r"body of \d+ bytes, expected 1"),
        (16, "<I", 3, r"175|masks|no Arrow message|record at byte"),
        (16, "<I", 84, r"column id 42, expected one of 0, 1"),
        (24, "<B", 3, r"change 3, expected 0 to 2"),
    ],
)
def test_each_field_is_checked(offset: int, field: str, value: int, message: str):
    """The error says what was found and what was expected."""
    encoded = bytearray(encode_rows(DELETE_ONE))
    struct.pack_into(field, encoded, offset, value)
    with pytest.raises(CorruptionError, match=message):
        decode_record(bytes(encoded), TWO_COLUMNS)


def test_a_length_cannot_ask_for_all_memory():
    """The uncompressed size is checked against the compressed bytes before memory is allocated."""
    encoded = bytearray(encode_rows(DELETE_ONE))
    struct.pack_into("<B", encoded, 6, 1)
    struct.pack_into("<I", encoded, 12, (1 << 32) - 1)
    with pytest.raises(CorruptionError, match=r"bytes of LZ4 for 4294967295 bytes"):
        decode_record(bytes(encoded), TWO_COLUMNS)


@pytest.mark.parametrize("changes", [DELETE_ONE, inserts(1, range(300))], ids=["plain", "lz4"])
def test_damaged_bytes_never_crash(changes: RowChanges):
    """Without the frame's checksum: an error of ours, or changes whose arrays can be read."""
    encoded = encode_rows(changes)
    for offset in range(len(encoded)):
        for flip in (1, 0x80, 0xFF):
            damaged = bytearray(encoded)
            damaged[offset] ^= flip
            try:
                found = decode_record(bytes(damaged), TWO_COLUMNS)
            except CorruptionError:
                continue
            assert all(
                len(array.to_pylist()) == found.row_count for array in found.columns.values()
            )


@pytest.mark.parametrize("changes", [DELETE_ONE, inserts(1, range(300))], ids=["plain", "lz4"])
def test_a_shortened_record_is_refused(changes: RowChanges):
    """At every length."""
    encoded = encode_rows(changes)
    for length in range(len(encoded)):
        with pytest.raises(CorruptionError):
            decode_record(encoded[:length], TWO_COLUMNS)


@pytest.mark.parametrize("op", [CHANGE_DELETE + 1, 0x80, 0xFF])
def test_an_operation_that_is_none_is_refused(op: int):
    """Also one whose byte is negative; rows are in the format of a session's flush."""
    rows = RowList(5, [(CHANGE_UPDATE, {"k": 7, "s": "a"})], RowCodec(TWO_COLUMNS))
    content = bytearray(encode_rows(rows))
    place = content.index(bytes([CHANGE_UPDATE, 3, 0]), 16)
    content[place] = op
    with pytest.raises(CorruptionError, match=f"change {op}, expected 0 to 2"):
        decode_record(bytes(content), TWO_COLUMNS)


@pytest.mark.parametrize("row_count", [1, 5000])
def test_a_record_for_which_memory_is_lacking_is_no_damage(
    row_count: int, monkeypatch: pytest.MonkeyPatch
):
    """Compressed or not: it can be read later."""
    changes = inserts(5, [*range(row_count)])
    content = encode_rows(changes)
    failing = "pa.decompress" if content[CODEC_BYTE] == CODEC_LZ4 else "pa.ipc.read_record_batch"

    def no_memory(*_args: object, **_options: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    with monkeypatch.context() as patch:
        patch.setattr(f"kudulite.wal.record_format.{failing}", no_memory)
        with pytest.raises(OutOfMemoryError, match="not enough memory to read a record of the log"):
            decode_record(content, TWO_COLUMNS)
    assert same(decode_record(content, TWO_COLUMNS, changes.timestamp), changes)
