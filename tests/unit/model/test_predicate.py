"""Predicates against a per-row oracle in plain Python, for every type; bounds and statistics."""

import datetime
import itertools
import math
import operator
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudulite.errors import ColumnNotFoundError, SchemaError, UsageError
from kudulite.model import types as t
from kudulite.model.condition import ColumnExpression, Predicate
from kudulite.model.encoded_key import encode_key
from kudulite.model.predicate import bind_predicates, evaluate_constraint
from kudulite.model.schema import Column, Schema
from kudulite.model.values import canonical_value
from tests.support.tiers import examples

UTC = datetime.UTC
NAN = math.nan
D = Decimal
DAY, MOMENT = datetime.date(2013, 1, 2), datetime.datetime(2013, 1, 2, 3)

# Values and literals that meet at the edges of each type; literals may be no value of the column.
INTS = [-(2**63), -(2**31) - 1, -129, -128, -1, 0, 1, 5, 127, 128, 2**31 - 1, 2**40, 2**63 - 1]
NUMBER_LITERALS = [*INTS, 2**63, -(10**400), 10**400, 5.5, -0.5, 0.1, -0.0, NAN, math.inf,
                   -math.inf,
                   2.0**53, 2**53 + 1, D("5.05"), D("-0.001"), D("5.5"), D(5), 1e300]  # fmt: skip
FLOATS = [NAN, -NAN, math.inf, -math.inf, 0.0, -0.0, 0.5, -0.5, 5.5, 5e-324, 2.0**53, 1e300, 5.0]
FLOAT_MAX = float(np.finfo(np.float32).max)
TEXTS = ["", "a", "a\0", "a\0b", "ab", "b", "ä", "\uffff", "\U0001f600", "\U0010ffff"]
BLOBS = [b"", b"\0", b"a", b"a\0", b"a\xff", b"b", b"\x80", b"\xff", b"\xff\xff"]
MOMENTS = [MOMENT, MOMENT.replace(microsecond=1), datetime.datetime(1, 1, 1)]
MOMENTS += [datetime.datetime.max, datetime.datetime(1970, 1, 1)]
ZONED = [m.replace(tzinfo=UTC) for m in MOMENTS]
CASES = {
    t.bool_: ([True, False], [True, False]),
    t.int8: ([v for v in INTS if -128 <= v < 128], NUMBER_LITERALS),
    t.int16: ([-(2**15), 0, 5, 2**15 - 1], NUMBER_LITERALS),
    t.int32: ([v for v in INTS if -(2**31) <= v < 2**31], NUMBER_LITERALS),
    t.int64: (INTS, NUMBER_LITERALS),
    t.float_: ([float(np.float32(v)) for v in FLOATS if v != 1e300], NUMBER_LITERALS),
    t.double: (FLOATS, NUMBER_LITERALS),
    t.decimal(4, 2): ([D(v).scaleb(-2) for v in (-9999, -1, 0, 10, 505, 550, 9999)],
                      NUMBER_LITERALS),
    t.decimal(38, 0): ([D(v) for v in (0, 5, 10**37, -(2**63))], NUMBER_LITERALS),
    t.date: ([DAY, datetime.date(1, 1, 1), datetime.date(9999, 12, 31)], [DAY, "9999-12-31"]),
    t.unixtime_micros: (ZONED, [*ZONED, "2013-01-02", "2013-01-02T05+02:00", 0, 2**70, -(2**70)]),
    t.timestamp_ntz: (MOMENTS, [*MOMENTS, "2013-01-02", 0, 1, -(2**70)]),
    t.string: (TEXTS, TEXTS),
    t.varchar(3): (TEXTS, [*TEXTS, "too long"]),
    t.binary: (BLOBS, BLOBS),
}  # fmt: skip


def oracle_key(value, column_type):
    """(is NaN, value) that Python compares as the engine must; numbers exactly."""
    if column_type.is_text:
        return (0, value.encode())
    if column_type.is_timestamp or column_type.name == "date":
        if isinstance(value, str):
            kind = datetime.date if column_type.name == "date" else datetime.datetime
            value = kind.fromisoformat(value)
        if isinstance(value, datetime.datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            delta = aware - datetime.datetime(1970, 1, 1, tzinfo=UTC)
            value = delta // datetime.timedelta(microseconds=1)
        return (0, value)
    if isinstance(value, bytes):
        return (0, value)
    if value != value:
        return (2, 0)
    if value in (math.inf, -math.inf):
        return (1 if value > 0 else -1, 0)
    if column_type.is_float and isinstance(value, Decimal):
        value = float(value)
    if column_type.name == "float" and abs(value) < FLOAT_MAX:
        value = float(np.float32(value))  # as a cell of this value is
    if not column_type.is_float and isinstance(value, float):
        return (0, Fraction(repr(value)))
    return (0, Fraction(value))


def oracle(value, op, literal, column_type):
    """Does one value match? The rule, said once more and slowly."""
    if op == "is_null" or value is None:
        return op == "is_null" and value is None
    if op == "is_not_null":
        return True
    if op == "starts_with":
        return value.startswith(literal)
    left = oracle_key(value, column_type)
    if op == "in":
        return any(left == oracle_key(x, column_type) for x in literal if x is not None)
    right = oracle_key(literal, column_type)
    return {"=": left == right, "<": left < right, "<=": left <= right, ">": left > right,
            ">=": left >= right}[op]  # fmt: skip


@st.composite
def predicates_on(draw, column_type, column="v"):
    """One predicate on a column of this type."""
    literals = st.sampled_from(CASES[column_type][1])
    ops = ["=", "<", "<=", ">", ">=", "<", ">=", "in", "is_null", "is_not_null"]
    op = draw(st.sampled_from(ops + ["starts_with"] * column_type.is_bytes))
    if op in ("is_null", "is_not_null"):
        return Predicate(column, op)
    if op == "in":
        return Predicate(column, op, draw(st.lists(literals | st.none(), max_size=7)))
    return Predicate(column, op, draw(literals))


def schema_of(column_type, nullable=True):
    key = Column(-1, "k", t.int64, nullable=False)
    return Schema.build([key, Column(-1, "v", column_type, nullable=nullable)], ["k"])


@pytest.mark.parametrize("column_type", list(CASES), ids=str)
def test_every_literal_is_compared_with_every_value_as_the_oracle_does(column_type):
    """One predicate at a time."""
    values, literals = CASES[column_type]
    rows = pa.record_batch({"v": pa.array(values, column_type.arrow)})
    for literal, op in itertools.product(literals, ["=", "<", "<=", ">", ">=", "in"]):
        predicate = Predicate("v", op, [literal] if op == "in" else literal)
        found = bind_predicates([predicate], schema_of(column_type)).evaluate(rows)
        expected = [oracle(value, op, predicate.value, column_type) for value in values]
        assert found.tolist() == expected, predicate


@pytest.mark.parametrize("column_type", list(CASES), ids=str)
@settings(max_examples=examples(40))
@given(data=st.data())
def test_evaluate_agrees_with_the_oracle(column_type, data):
    """Conjunctions of up to three predicates on one column, with nulls and slices."""
    given_values = CASES[column_type][0]
    values = data.draw(st.lists(st.sampled_from(given_values) | st.none(), max_size=30))
    predicates = data.draw(st.lists(predicates_on(column_type), min_size=1, max_size=3))
    bound = bind_predicates(predicates, schema_of(column_type))
    array = pa.array([None, *values], column_type.arrow).slice(1)
    expected = [all(oracle(v, p.op, p.value, column_type) for p in predicates) for v in values]
    assert bound.evaluate(pa.record_batch({"v": array})).tolist() == expected
    table = pa.table({"v": pa.chunked_array([array.slice(0, 2), array.slice(2)])})
    assert pickle.loads(pickle.dumps(bound)).evaluate(table).tolist() == expected
    assert evaluate_constraint(bound.constraints["v"], array).tolist() == expected
    assert not (bound.is_empty and any(expected))
    allowed = bound.equality_values("v")
    if allowed is not None:
        keys = [oracle_key(value, column_type) for value in allowed]
        matched = [v for v, e in zip(values, expected, strict=True) if e]
        assert all(oracle_key(v, column_type) in keys for v in matched) and keys == sorted(keys)
    check_statistics(bound, values, column_type, any(expected))


def check_statistics(bound, values, column_type, has_match):
    """Statistics as Parquet makes them never exclude a match."""
    present = [v for v in values if v is not None and v == v]
    low = high = None
    if present:
        low = min(present, key=lambda v: oracle_key(v, column_type))
        high = max(present, key=lambda v: oracle_key(v, column_type))
    nulls = values.count(None)
    if has_match:
        assert bound.may_match_statistics("v", low, high, nulls, len(values))
        assert bound.may_match_statistics("v", None, None, None, None)
        assert bound.may_match_statistics("v", low, high, None, None)


KEY_TYPES = [c for c in CASES if c.is_key_type]


@settings(max_examples=examples(150))
@given(data=st.data())
def test_every_matching_key_is_within_the_bounds(data):
    """And a point predicate on all key columns bounds exactly its key."""
    types = data.draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=3))
    names = [f"c{i}" for i in range(len(types))]
    columns = [Column(-1, n, c, nullable=False) for n, c in zip(names, types, strict=True)]
    schema = Schema.build(columns, names)
    predicates = [p for n, c in zip(names, types, strict=True)
                  for p in data.draw(st.lists(predicates_on(c, n), max_size=2))]  # fmt: skip
    bound = bind_predicates(predicates, schema)
    lower, upper = bound.key_bounds()
    by_name = dict(zip(names, types, strict=True))
    for _ in range(6):
        row = dict(
            zip(names, (data.draw(st.sampled_from(CASES[c][0])) for c in types), strict=True)
        )
        key = encode_key([row[n] for n in names], types) if valid(row, by_name) else None
        if key is None:
            continue
        matches = all(oracle(row[p.column], p.op, p.value, by_name[p.column]) for p in predicates)
        within = (lower is None or lower <= key) and (upper is None or key < upper)
        assert within or not matches
        point = bind_predicates([Predicate(n, "=", row[n]) for n in names], schema)
        assert point.key_bounds() == (key or None, key + b"\0")


def valid(row, by_name):
    """Texts longer than the varchar are no rows, but every encoding takes them."""
    return all(c.name != "varchar" or len(row[n]) <= c.length for n, c in by_name.items())


def bounds(*predicates):
    """Bounds over (a int8, s string, b int8) in hex."""
    columns = [Column(-1, "a", t.int8, nullable=False), Column(-1, "s", t.string, nullable=False),
               Column(-1, "b", t.int8, nullable=False)]  # fmt: skip
    found = bind_predicates(predicates, Schema.build(columns, ["a", "s", "b"])).key_bounds()
    return tuple(None if edge is None else edge.hex() for edge in found)


def test_key_bounds_follow_the_columns():
    """The walk of Kudu: on through equalities and closed ranges, stop at the first open column."""
    a, s, b = ColumnExpression("a"), ColumnExpression("s"), ColumnExpression("b")
    assert bounds() == (None, None)
    assert bounds(s == "x") == (None, None)
    assert bounds(a == 1) == ("81", "82")
    assert bounds(a <= 127) == (None, None) and bounds(a == 127) == ("ff", None)
    assert bounds(a > 1, a < 5) == ("82", "85")
    assert bounds(a == 1, s >= "x") == ("81780000", "82")
    assert bounds(a == 1, s < "x") == ("81", "81780000")
    assert bounds(a == 1, s <= "x") == ("81", "81780001")
    assert bounds(a == 1, s.starts_with("x")) == ("81780000", "81790000")
    assert bounds(a == 1, s == "x\0", b.in_list([3, 1])) == ("81780001000081", "8178000100008300")
    assert bounds(a >= 1, s == "x", b < 5) == ("81780000", None)
    assert bounds(a == 1, a == 2) == ("", "") and bounds(a.in_list([])) == ("", "")


def test_merging_proves_what_it_can():
    """Contradictions, collapsed ranges, tests that are always true."""
    v = ColumnExpression("v")

    def bind(*predicates, column_type=t.int32, nullable=True):
        return bind_predicates(predicates, schema_of(column_type, nullable))

    assert bind(v >= 5, v <= 5).equality_values("v") == [5]
    assert bind(v > 4.5, v < 5.5).equality_values("v") == [5]
    assert bind(v >= "a", v <= "a", column_type=t.string).equality_values("v") == ["a"]
    assert bind(v.in_list([1, 2, 3]), v.in_list([3, 1, 9]), v < 3).equality_values("v") == [1]
    assert bind(v > 1).equality_values("v") is None and bind().equality_values("v") is None
    for contradiction in ([v == 2**40], [v == 5.5], [v < 1, v > 1], [v.is_null(), v == 1],
                          [v.in_list([])], [v.is_null(), v.is_not_null()], [v > 2**31 - 1],
                          [v < -(2**31)]):  # fmt: skip
        bound = bind(*contradiction)
        assert bound.is_empty and bound.columns == [] and bound.key_bounds() == (b"", b"")
        assert bound.evaluate(pa.record_batch({"x": [1, 2]})).tolist() == [False, False]
    assert bind(v.is_null(), nullable=False).is_empty
    for certain in ([v < 2**40], [v.is_not_null()], [v >= -(2**31)], []):
        assert bind(*certain, nullable=False).columns == []
    assert bind(v < 2**40).columns == ["v"]


def test_the_most_selective_column_is_read_first():
    """Equality before range before IS NOT NULL."""
    names = ["k", "a", "b", "c"]
    schema = Schema.build([Column(-1, n, t.int8, nullable=n != "k") for n in names], ["k"])
    a, b, c = (ColumnExpression(n) for n in "abc")
    assert bind_predicates([a.is_not_null(), b > 1, c == 1], schema).columns == ["c", "b", "a"]


def test_statistics_exclude_what_they_can():
    """And NaN, which Parquet leaves out of them, is never excluded."""
    v = ColumnExpression("v")

    def may(predicate, low, high, nulls=0, column_type=t.int32):
        bound = bind_predicates([predicate], schema_of(column_type))
        return bound.may_match_statistics("v", low, high, nulls, 10)

    assert not may(v > 9, 1, 9) and may(v >= 9, 1, 9) and not may(v < 1, 1, 9)
    assert not may(v.in_list([0, 10]), 1, 9) and may(v.in_list([0, 5]), 1, 9)
    assert not may(v.is_null(), 1, 9) and may(v.is_null(), 1, 9, 1)
    assert not may(v == 5, None, None, 10) and not may(v.is_not_null(), None, None, 10)
    for predicate in (v > 9, v >= 9.5, v == NAN, v > math.inf):
        assert may(predicate, 1.0, 2.0, column_type=t.double)
    assert not may(v < 1, 1.0, 2.0, column_type=t.double)
    assert may(v == 0.0, -1.0, -0.0, column_type=t.double)
    assert may(v == 1, "odd", "statistics")
    assert bind_predicates([v == 1], schema_of(t.int32)).may_match_statistics("k", 1, 1, 0, 1)


@pytest.mark.parametrize(
    "column_type, literal",
    [(t.int32, "1"), (t.int32, True), (t.bool_, 1), (t.string, 1), (t.string, b"a"),
     (t.binary, 1), (t.date, MOMENT), (t.date, "2013-02-30"), (t.double, "1"),
     (t.decimal(4, 2), "1"), (t.timestamp_ntz, ZONED[0]), (t.unixtime_micros, 1.5),
     (t.unixtime_micros, MOMENT), (t.unixtime_micros, np.datetime64(0, "s")),
     (t.string, "\ud800")],
)  # fmt: skip
def test_a_literal_that_cannot_be_compared_is_refused(column_type, literal):
    """The message names the column, and the value."""
    with pytest.raises(SchemaError, match="predicate on column 'v'"):
        bind_predicates([Predicate("v", "<", literal)], schema_of(column_type))


@pytest.mark.parametrize("nanoseconds", [-1_000_001, -1_000_000, 0, 1, 999, 1_000, 1_001])
def test_a_numpy_time_is_compared_to_the_nanosecond(nanoseconds):
    """Its digits below a microsecond decide, although the column has none."""
    literal = np.datetime64(nanoseconds, "ns")
    stored = [-1_001, -1_000, 0, 1, 2]
    comparisons = {
        "<": operator.lt, "<=": operator.le, "=": operator.eq, ">=": operator.ge, ">": operator.gt
    }  # fmt: skip
    for how, compare in comparisons.items():
        bound = bind_predicates([Predicate("v", how, literal)], schema_of(t.timestamp_ntz))
        array = pa.array(stored, pa.timestamp("us"))
        found = bound.evaluate(pa.record_batch({"v": array})).tolist()
        assert found == [compare(micros * 1000, nanoseconds) for micros in stored], how


def test_a_numpy_time_is_stored_only_if_it_is_exact():
    """Nothing is cut without a word."""
    exact = np.datetime64(5_000, "ns")
    assert canonical_value(exact, t.timestamp_ntz, "v") == canonical_value(
        np.datetime64(5, "us"), t.timestamp_ntz, "v"
    )
    with pytest.raises(SchemaError, match="digits below a microsecond"):
        canonical_value(np.datetime64(5_001, "ns"), t.timestamp_ntz, "v")


def test_wrong_predicates_say_what_to_do():
    """None, chains, unknown columns, prefixes of numbers."""
    v = ColumnExpression("v")
    wrong_ones = (
        lambda: v < None,
        lambda: 1 < v < 5,
        lambda: (v == 1) and (v == 2),
        lambda: v.in_list("abc"),
        lambda: Predicate("v", "~"),
    )
    for wrong in wrong_ones:
        with pytest.raises(UsageError):
            wrong()
    with pytest.raises(UsageError, match="is_null"):
        Predicate("v", "=", None)
    with pytest.raises(ColumnNotFoundError, match="columns: k, v"):
        bind_predicates([ColumnExpression("x") == 1], schema_of(t.int8))
    with pytest.raises(SchemaError, match="starts_with"):
        bind_predicates([v.starts_with("a")], schema_of(t.int8))
    assert str(v == "a") == "v = 'a'" and str(v.is_null()) == "v IS NULL"
