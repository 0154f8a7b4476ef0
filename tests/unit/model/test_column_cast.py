"""Arrow arrays fitted to column types: exactly, or refused with what does not fit."""

import datetime
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from kudulite.errors import RowError, SchemaError
from kudulite.model import types as t
from kudulite.model.column_cast import cast_chunks, cast_to_column


def cast(array, column_type):
    """The array as a column `c` of table `tab`."""
    return cast_to_column(array, column_type, column="c", table="tab")


def test_an_array_that_fits_already_is_not_copied():
    """The same buffers come back."""
    array = pa.array([1, 2, None])
    assert cast(array, t.int64) is array
    chunked = cast(pa.chunked_array([array]), t.int64)
    assert chunked.buffers()[1].address == array.buffers()[1].address


UTC = datetime.UTC
GOOD = [
    (pa.array([1, None, 127], pa.int64()), t.int8, [1, None, 127]),
    (pa.array([255], pa.uint8()), t.int16, [255]),
    (pa.array([3.0, None]), t.int32, [3, None]),
    (pa.array([Decimal("7.00")]), t.int32, [7]),
    (pa.array([2**53, -(2**53)]), t.double, [2.0**53, -(2.0**53)]),
    (pa.array([0.5, None, float("inf")], pa.float32()), t.double, [0.5, None, float("inf")]),
    (pa.array([0.5, None]), t.float_, [0.5, None]),
    (pa.array([Decimal("1.50"), None, Decimal("-0.25")]), t.double, [1.5, None, -0.25]),
    (pa.array([Decimal(2**62), Decimal("0.125")], pa.decimal128(38, 10)), t.double,
     [2.0**62, 0.125]),
    (pa.array([Decimal("0.5")], pa.decimal256(76, 40)), t.float_, [0.5]),
    (pa.array([Decimal(3 * 2**120)], pa.decimal128(38, 0)), t.double, [3 * 2.0**120]),
    (pa.array([Decimal(1200)]).cast(pa.decimal128(4, -2)), t.double, [1200.0]),
    (pa.array([12, None]), t.decimal(4, 2), [Decimal("12.00"), None]),
    (pa.array([1, 2**63 - 1]), t.decimal(38, 0), [Decimal(1), Decimal(2**63 - 1)]),
    (pa.array([Decimal("1.50")]), t.decimal(3, 1), [Decimal("1.5")]),
    (pa.array([Decimal("0.5")], pa.decimal256(60, 30)), t.decimal(38, 38), [Decimal("0.5")]),
    (pa.array([None, None]), t.string, [None, None]),
    (pa.array([None, None], pa.float64()), t.string, [None, None]),
    (pa.array([None], pa.timestamp("ns")), t.unixtime_micros, [None]),
    (pa.array(["ab", None]).dictionary_encode(), t.varchar(2), ["ab", None]),
    (pa.array(["\U0001f600" * 3], pa.large_string()), t.varchar(3), ["\U0001f600" * 3]),
    (pa.array(["ä"], pa.string_view()), t.binary, [b"\xc3\xa4"]),
    (pa.array([b"xy"], pa.binary(2)), t.binary, [b"xy"]),
    (pa.chunked_array([[1], [2]], pa.int32()), t.int64, [1, 2]),
    (pa.chunked_array([], pa.int32()), t.int64, []),
    (pa.array([1], pa.timestamp("s")), t.timestamp_ntz, [datetime.datetime(1970, 1, 1, 0, 0, 1)]),
    (pa.array([2000], pa.timestamp("ns", "Europe/Berlin")), t.unixtime_micros,
     [datetime.datetime(1970, 1, 1, 0, 0, 0, 2, tzinfo=UTC)]),
    (pa.array([86400000]).view(pa.date64()), t.date, [datetime.date(1970, 1, 2)]),
    (pa.array([[1, None], None, [], [127]]), t.array(t.int8), [[1, None], None, [], [127]]),
    (pa.array([[9], [1, None], None, []])[1:], t.array(t.int8), [[1, None], None, []]),
    (pa.array([["a"], None], pa.large_list(pa.string_view())), t.array("varchar(1)"),
     [["a"], None]),
    (pa.array([[1.5, 2.0], None], pa.list_(pa.float64(), 2)), t.array(t.float_),
     [[1.5, 2.0], None]),
    (pa.array([[None], []]), t.array(t.date), [[None], []]),
    (pa.chunked_array([[[1]], [[2]]]), t.array(t.decimal(3, 1)), [[Decimal(1)], [Decimal(2)]]),
]  # fmt: skip


@pytest.mark.parametrize("array, column_type, expected", GOOD, ids=lambda v: str(v)[:30])
def test_values_with_an_exact_counterpart_are_cast(array, column_type, expected):
    """The result has exactly the column's Arrow type."""
    result = cast(array, column_type)
    assert result.type == column_type.arrow and result.to_pylist() == expected


def _invalid_utf8() -> pa.Array:
    offsets = pa.py_buffer(np.array([0, 1, 2], np.int32).tobytes())
    return pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"a\xff"))


BAD = [
    (pa.array([1, None, 128, 200]), t.int8, 2, "128"),
    (pa.array([1.0, 1.5]), t.int32, 1, "1.5"),
    (pa.array([1.0, float("nan")]), t.int64, 1, "nan"),
    (pa.array([2**53 + 1]), t.double, 0, "9007199254740993"),
    (pa.array([0.5, None, 0.1]), t.float_, 2, "0.1"),
    (pa.array([1e300]), t.float_, 0, "1e"),
    (pa.array([Decimal("0.5"), Decimal("0.1")]), t.double, 1, "0.1"),
    (pa.array([Decimal(2**53 + 1)]), t.double, 0, "9007199254740993"),
    (pa.array([Decimal("1.5"), Decimal(2**24 + 1)], pa.decimal128(20, 2)), t.float_, 1, "16777217"),
    (pa.array([1, 100]), t.decimal(4, 2), 1, "100"),
    (pa.array([2**62]), t.decimal(38, 30), 0, "4611686018427387904"),
    (pa.array([Decimal("1.25")]), t.decimal(9, 1), 0, "1.25"),
    (pa.array([Decimal(2**63)], pa.decimal128(20, 0)), t.decimal(38, 30), 0, "92233"),
    (pa.array(["ab", "abc"]), t.varchar(2), 1, "abc"),
    (_invalid_utf8(), t.string, 1, "UTF-8"),
    (pa.array([0, 2932897], pa.int32()).view(pa.date32()), t.date, 1, "2932897"),
    (pa.array([[1], [2, 128], None]), t.array(t.int8), 1, "128"),
    (pa.array([[], ["ab"]]), t.array(t.varchar(1)), 1, "ab"),
    (pa.array([1001], pa.timestamp("ns")), t.timestamp_ntz, 0, "lose data"),
    (pa.array([0, 2**62], pa.timestamp("s", "UTC")), t.unixtime_micros, 1, "4611686018427387904"),
]  # fmt: skip


@pytest.mark.parametrize("array, column_type, row, text", BAD, ids=lambda v: str(v)[:30])
def test_a_value_that_does_not_fit_is_named_with_its_row(array, column_type, row, text):
    """Nothing is rounded, wrapped or truncated; the message names table, column, row, value."""
    with pytest.raises(RowError) as caught:
        cast(array, column_type)
    message = str(caught.value)
    assert f"table 'tab', column 'c': row {row}:" in message and text in message
    assert str(column_type) in message and caught.value.reason == RowError.REASON_INVALID


def test_all_values_that_do_not_fit_are_counted_and_the_first_shown():
    """Also where there are very many, and wherever they stand."""
    values = [1, 300, None, -129, 5, 400, 500, 6]
    with pytest.raises(RowError) as caught:
        cast(pa.array(values), t.int8)
    assert "row 1: value 300 does not fit int8" in str(caught.value)
    assert str(caught.value).endswith("; 4 rows do not fit, the next with -129, 400, …")
    assert caught.value.row_count == 4
    with pytest.raises(RowError, match="at least 1000 rows do not fit, the next with 1001, 1002"):
        cast(pa.array(range(1000, 500_000)), t.int8)


@pytest.mark.parametrize("seed", range(3))
def test_numbers_are_cast_exactly_or_refused(seed):
    """Random numbers between all numeric types: Python's exact numbers are the judge."""
    rng = np.random.default_rng(seed)
    sources = [
        pa.array(rng.integers(-(2**63), 2**63 - 1, 200) >> rng.integers(0, 64, 200)),
        pa.array(rng.integers(-128, 127, 200), pa.int8()),
        pa.array(np.ldexp(rng.integers(-999, 999, 200), rng.integers(-8, 60, 200))),
        pa.array(rng.normal(size=200).astype(np.float32)),
        pa.array([Decimal(int(n)) / 8 for n in rng.integers(-9999, 9999, 200)]),
        pa.array([Decimal(int(n)) * 10**19 for n in rng.integers(-(10**8), 10**8, 200)]),
    ]
    targets = [t.int8, t.int32, t.int64, t.float_, t.double, t.decimal(9, 2), t.decimal(38, 12)]
    for source in sources:
        for target in targets:
            if pa.types.is_floating(source.type) and target.name == "decimal":
                continue  # refused by type
            for value in source[:60]:
                one = pa.array([value.as_py()], source.type)
                try:
                    result = cast(one, target)[0].as_py()
                except RowError:
                    assert not is_exact(value.as_py(), target)
                else:
                    assert Fraction(result) == Fraction(value.as_py())


def is_exact(value, target) -> bool:
    """Whether `target` has a number of exactly this value, told by Python's fractions.

    A double of 2^53 or more may stand for several integers, and is none.
    """
    number = Fraction(value)
    if target.is_integer and isinstance(value, float) and abs(value) >= 2**53:
        return False
    if target.is_integer:
        bits = 8 * (target.key_width or 0) - 1
        return number.denominator == 1 and -(2**bits) <= number < 2**bits
    if target.name == "decimal":
        scaled = number * 10**target.scale
        return scaled.denominator == 1 and abs(scaled) < 10**target.precision
    kind = np.float32 if target.name == "float" else np.float64
    with np.errstate(over="ignore"):
        near = kind(value) if not isinstance(value, Decimal) else kind(float(value))
    return bool(np.isfinite(near)) and Fraction(float(near)) == number


@pytest.mark.parametrize(
    "array, column_type",
    [
        (pa.array(["1"]), t.int32),
        (pa.array([True]), t.int32),
        (pa.array([1]), t.bool_),
        (pa.array([1]), t.string),
        (pa.array([b"a"]), t.string),
        (pa.array([b"a"]).dictionary_encode(), t.varchar(4)),
        (pa.array([], pa.float64()), t.string),
        (pa.array([1.5]), t.decimal(4, 2)),
        (pa.array([1]), t.unixtime_micros),
        (pa.array([1], pa.date32()), t.unixtime_micros),
        (pa.array([1], pa.timestamp("us")), t.date),
        (pa.array([1], pa.timestamp("us")), t.unixtime_micros),
        (pa.array([1], pa.timestamp("us", "UTC")), t.timestamp_ntz),
        (pa.array([[1]]), t.int32),
        (pa.array([1]), t.array(t.int32)),
        (pa.array([["a"]]), t.array(t.int32)),
        (pa.array([[[1]]]), t.array(t.int32)),
    ],
)
def test_a_type_without_an_exact_meaning_is_refused(array, column_type):
    """It is the batch's schema that is wrong, not a row."""
    with pytest.raises(SchemaError, match="no exact meaning"):
        cast(array, column_type)


def test_chunks_are_cast_one_by_one_and_stay():
    """Those that fit already are not copied; empty ones are dropped."""
    whole = pa.array([1, 2, 3, 4])
    chunked = pa.chunked_array([whole.slice(0, 3), whole.slice(3, 0), whole.slice(3)])
    found = cast_chunks(chunked, t.int64, column="c", table="tab")
    assert [chunk.to_pylist() for chunk in found.chunks] == [[1, 2, 3], [4]]
    assert found.chunk(1).buffers()[1].address == whole.buffers()[1].address
    narrow = cast_chunks(chunked, t.int8, column="c", table="tab")
    assert (narrow.type, narrow.to_pylist()) == (pa.int8(), [1, 2, 3, 4])


def test_a_misfit_in_a_chunk_is_named_by_its_row_in_the_column():
    """The message is that of the joined column."""
    chunked = pa.chunked_array([[1, 2], [3, 400], [500]], pa.int64())
    with pytest.raises(RowError) as of_chunks:
        cast_chunks(chunked, t.int8, column="c", table="tab")
    with pytest.raises(RowError, match="row 3: value 400") as of_column:
        cast(chunked, t.int8)
    assert str(of_chunks.value) == str(of_column.value)
