"""Encoded keys: Kudu's vectors, order, and arrays against the scalar functions."""

import datetime
import functools
from decimal import Context, Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudulite.errors import CorruptionError, RowError, SchemaError
from kudulite.model import types as t
from kudulite.model.encoded_key import (  # fmt: skip
    KeyEncoder,
    decode_key,
    decode_keys,
    encode_key,
    encode_keys,
    key_successor,
    key_width,
    prefix_successor,
)
from kudulite.model.key_array import KeyArray
from tests.support.tiers import examples

UTC = datetime.UTC
D = Decimal


@pytest.mark.parametrize(
    "values, types, encoded",
    [
        ((0,), (t.int32,), "80000000"),
        ((-1,), (t.int32,), "7fffffff"),
        ((12345,), (t.int32,), "80003039"),
        ((-128,), (t.int8,), "00"),
        ((2**15 - 1,), (t.int16,), "ffff"),
        ((-(2**63),), (t.int64,), "0000000000000000"),
        (("a\0b", ""), (t.string, t.string), "610001620000"),
        (("", "a\0"), (t.string, t.string), "00006100"),
        (("a\0b",), (t.string,), "610062"),
        ((b"\xff", 1), (t.binary, t.int8), "ff000081"),
        ((12345, "a", -1), (t.int32, t.varchar(1), t.int8), "800030396100007f"),
        ((datetime.date(1970, 1, 2),), (t.date,), "80000001"),
        ((datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),), (t.unixtime_micros,),
         "80000000000f4240"),
        ((5,), (t.timestamp_ntz,), "8000000000000005"),
        ((D("-0.01"),), (t.decimal(9, 2),), "7fffffff"),
        ((D(1),), (t.decimal(18, 2),), "8000000000000064"),
        ((3,), (t.decimal(19, 0),), "80000000000000000000000000000003"),
        ((-(10**38) + 1,), (t.decimal(38, 0),), f"{2**127 - 10**38 + 1:032x}"),
    ],
)  # fmt: skip
def test_keys_are_encoded_as_kudu_does(values, types, encoded):
    """Sign bit flipped, big-endian; strings escaped and terminated unless last."""
    assert encode_key(values, types).hex() == encoded


VALUES = {
    t.int8: st.integers(-128, 127),
    t.int16: st.integers(-(2**15), 2**15 - 1),
    t.int32: st.integers(-(2**31), 2**31 - 1),
    t.int64: st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2),
    t.date: st.dates(),
    t.unixtime_micros: st.datetimes(timezones=st.just(UTC)),
    t.timestamp_ntz: st.datetimes(),
    t.decimal(9, 3): st.decimals(-999999, 999999, places=3),
    t.decimal(18, 0): st.decimals(-(10**18) + 1, 10**18 - 1, places=0),
    t.decimal(38, 1): st.integers(-(10**38) + 1, 10**38 - 1).map(lambda i: D(i).scaleb(-1, _WIDE)),
    t.string: st.text(st.sampled_from("\0\1ab\U0001f600\uffff"), max_size=6),
    t.varchar(6): st.text(max_size=6),
    t.binary: st.binary(max_size=3) | st.sampled_from([b"\0\0", b"\0\1", b"\0", b"", b"\xff\0"]),
}
_WIDE = Context(prec=60)


@st.composite
def key_tables(draw):
    """Types of a key and some rows of it."""
    types = tuple(draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4)))
    rows = draw(st.lists(st.tuples(*[VALUES[c] for c in types]), max_size=8))
    return types, rows


def compare_rows(types, a, b):
    """Column by column, strings as unsigned bytes."""
    raw = [[v.encode() if isinstance(v, str) else v for v in row] for row in (a, b)]
    return (raw[0] > raw[1]) - (raw[0] < raw[1])


@settings(max_examples=examples(150))
@given(key_tables())
def test_arrays_and_scalars_encode_alike_and_come_back(case):
    """encode_keys equals encode_key row by row; both decoders invert them."""
    types, rows = case
    columns = [pa.array([r[i] for r in rows], c.arrow) for i, c in enumerate(types)]
    keys = encode_keys(columns, types)
    assert list(keys) == [encode_key(row, types) for row in rows]
    assert keys.width == key_width(types)
    decoded = decode_keys(keys, types)
    for array, column in zip(decoded, columns, strict=True):
        array.validate(full=True)
        assert array.equals(column)
    assert [decode_key(key, types) for key in keys] == rows
    sliced = encode_keys([column.slice(1) for column in columns], types)
    assert list(sliced) == list(keys)[1:]
    assert [array.to_pylist() for array in decode_keys(keys.slice(1, 99), types)] == [
        column.to_pylist()[1:] for column in columns
    ]


@settings(max_examples=examples(60))
@given(key_tables())
def test_byte_order_is_column_order(case):
    """Sorting encoded keys sorts the tuples, strings by unsigned bytes."""
    types, rows = case
    compare = functools.partial(compare_rows, types)
    by_value = sorted(
        range(len(rows)), key=functools.cmp_to_key(lambda i, j: compare(rows[i], rows[j]))
    )
    columns = [pa.array([r[i] for r in rows], c.arrow) for i, c in enumerate(types)]
    assert encode_keys(columns, types).sort_order().tolist() == by_value


@settings(max_examples=examples(60))
@given(key_tables(), st.integers(0, 4))
def test_a_prefix_is_the_start_of_its_keys(case, count):
    """And prefix_successor is above all of them, and not above anything larger."""
    types, rows = case
    for row in rows:
        key, prefix = encode_key(row, types), KeyEncoder(types).prefix(row[:count])
        assert key.startswith(prefix)
        above = prefix_successor(prefix)
        assert above is None or (above > key and not above.startswith(prefix))


def test_successors():
    """The next key, and the next that does not start alike."""
    assert key_successor(b"a") == b"a\0"
    assert prefix_successor(b"a") == b"b" and prefix_successor(b"a\xff\xff") == b"b"
    assert prefix_successor(b"") is None and prefix_successor(b"\xff\xff") is None


@pytest.mark.parametrize(
    "values, types",
    [
        ((128,), (t.int8,)), (("1",), (t.int8,)), ((True,), (t.int8,)), ((None,), (t.int8,)),
        ((1.0,), (t.int64,)), ((1,), (t.string,)), (("a",), (t.binary,)), ((2**63,), (t.int64,)),
        (("x",), (t.date,)), ((D("1.234"),), (t.decimal(9, 2),)), ((D("NaN"),), (t.decimal(9, 2),)),
        ((10**9,), (t.decimal(9, 0),)), (("\ud800",), (t.string,)), ((1, 2), (t.int8,)),
        ((), (t.int8,)),
        ((1.0,), (t.double,)), ((datetime.datetime(2013, 1, 1, tzinfo=UTC),), (t.timestamp_ntz,)),
    ],
)  # fmt: skip
def test_a_value_that_is_not_of_its_column_is_refused(values, types):
    """A wrong count too."""
    with pytest.raises(SchemaError):
        encode_key(values, types)


def test_null_in_a_key_column_is_a_row_error():
    """The reason is the one of every null in a NOT NULL column."""
    with pytest.raises(RowError) as caught:
        encode_keys([pa.array([1, None])], (t.int64,))
    assert caught.value.reason == RowError.REASON_NULL


@pytest.mark.parametrize("key, types", [(b"ab", (t.string, t.int8)),
                                        (b"ab\0\0", (t.string, t.int8)),
                                        (b"a\0\0\x80\0", (t.string, t.int8)),
                                        (b"\x80", (t.int8, t.string, t.string))])  # fmt: skip
def test_bytes_that_are_no_key_are_corruption(key, types):
    """Missing terminator, missing bytes, bytes left over."""
    with pytest.raises(CorruptionError):
        decode_key(key, types)
    with pytest.raises(CorruptionError):
        decode_keys(KeyArray.from_bytes([key, key], None), types)
