"""Columns and schemas: validation, defaults in JSON, Arrow schemas."""

import datetime
import json
import math
import pickle
from dataclasses import astuple, replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from kudulite.errors import ColumnNotFoundError, CorruptionError, SchemaError
from kudulite.model import types as t
from kudulite.model.schema import Column, Schema


def key(name="k", column_type=t.int64, **more):
    return Column(-1, name, column_type, nullable=False, **more)


UTC = datetime.UTC
DEFAULTS = [
    (t.bool_, True, True),
    (t.int8, -128, -128),
    (t.int64, 2**63 - 1, 2**63 - 1),
    (t.int64, -(2**63), -(2**63)),
    (t.double, math.nan, math.nan),
    (t.double, -0.0, -0.0),
    (t.double, math.inf, math.inf),
    (t.float_, 0.5, 0.5),
    (t.decimal(38, 2), Decimal("1E+5"), Decimal("100000.00")),
    (t.decimal(38, 0), 10**38 - 1, Decimal(10**38 - 1)),
    (t.date, datetime.date(1, 1, 1), datetime.date(1, 1, 1)),
    (t.date, "9999-12-31", datetime.date(9999, 12, 31)),
    (t.unixtime_micros, "2013-01-01T00:00:00+01:00",
     datetime.datetime(2012, 12, 31, 23, tzinfo=UTC)),
    (t.unixtime_micros, 2**63 - 1, 2**63 - 1),
    (t.timestamp_ntz, datetime.datetime(1, 1, 1, 0, 0, 0, 1),
     datetime.datetime(1, 1, 1, 0, 0, 0, 1)),
    (t.string, "a\0\U0001f600", "a\0\U0001f600"),
    (t.varchar(2), "", ""),
    (t.binary, bytearray(b"\0\xff"), b"\0\xff"),
]  # fmt: skip


@pytest.mark.parametrize("column_type, given, canonical", DEFAULTS, ids=str)
def test_a_default_of_every_type_survives_json(column_type, given, canonical):
    """The stored schema equals the one before; NaN and -0.0 too."""
    column = Column(-1, "v", column_type, read_default=given, write_default=given)
    schema = Schema.build([key(), column], ["k"])
    stored = schema.columns[1].read_default
    assert (stored, type(stored)) == (canonical, type(canonical)) or math.isnan(stored)

    text = json.dumps(schema.to_json(), allow_nan=False)
    assert Schema.from_json(json.loads(text)) == schema
    assert repr(astuple(Schema.from_json(json.loads(text)))) == repr(astuple(schema))


@pytest.mark.parametrize("name", ["read_default", "write_default"])
@pytest.mark.parametrize("column_type", [t.float_, t.double])
def test_floats_of_a_column_are_equal_if_they_are_written_alike(column_type, name):
    """Any two NaN are; 0.0 and -0.0 are not. Equal columns have one hash."""
    nan, other, zero, minus, half = (
        Schema.build([key(), Column(-1, "v", column_type, **{name: value})], ["k"])
        for value in (float("nan"), np.float64("nan"), 0.0, -0.0, 0.5)
    )
    assert nan == nan and nan == other and nan.columns[1].equals(other.columns[1])
    assert hash(nan) == hash(other) and len({zero, minus, half, nan, other}) == 4
    assert zero != minus and zero != nan and half != zero
    assert pickle.loads(pickle.dumps(nan)) == nan
    assert replace(half.columns[1], **{name: -0.0}) == minus.columns[1]


@pytest.mark.parametrize(
    "column_type, value",
    [
        (t.int8, 128), (t.int32, "1"), (t.int32, True), (t.bool_, 1), (t.int32, 1.5),
        (t.decimal(3, 1), Decimal("1.25")), (t.decimal(3, 1), 100), (t.decimal(3, 1), 1.5),
        (t.date, "2013-02-30"), (t.date, datetime.datetime(2013, 1, 1)), (t.varchar(1), "ab"),
        (t.string, "\ud800"), (t.string, b"a"), (t.binary, 1), (t.double, "x"),
        (t.timestamp_ntz, datetime.datetime(2013, 1, 1, tzinfo=UTC)), (t.unixtime_micros, 2**63),
    ],
)  # fmt: skip
def test_a_default_that_does_not_fit_is_refused(column_type, value):
    """The message names the column and the type."""
    with pytest.raises(SchemaError, match="column 'v'"):
        Column(-1, "v", column_type, read_default=value)


def test_build_moves_the_key_to_the_front_and_gives_out_ids():
    """Key order is that of `primary_key`, the rest keeps its order, and ids are those as given."""
    schema = Schema.build([Column(-1, "v", t.double), key("b"), key("a")], ["a", "b"])
    assert schema.names == ["a", "b", "v"] and schema.key_names == ["a", "b"]
    assert [c.id for c in schema.columns] == [2, 1, 0] and schema.next_column_id == 3
    assert schema.key_types == (t.int64, t.int64) and "v" in schema and "x" not in schema
    assert [c.name for c in schema.value_columns] == ["v"]
    assert schema.index_of("v") == 2 and schema.column_by_id(9) is None
    assert schema.column_by_id(1) is schema.column("b")
    assert pickle.loads(pickle.dumps(schema)) == schema


@pytest.mark.parametrize(
    "columns, primary_key, text",
    [
        ([], [], "primary key"),
        ([key()], [], "primary key"),
        ([key("k", t.double)], ["k"], "double may not be part"),
        ([Column(-1, "k", t.int8)], ["k"], "nullable key columns are not supported"),
        ([key(), key()], ["k"], "more than once"),
        ([key()], ["k", "k"], "more than once"),
        ([key()], ["x"], "'x' is not in the schema; columns: k"),
    ],
)
def test_a_schema_that_breaks_a_rule_is_refused(columns, primary_key, text):
    """Each rule has its message."""
    with pytest.raises(SchemaError, match=text):
        Schema.build(columns, primary_key)


def test_ids_are_unique_and_below_the_next():
    """An id of another column, or one that could be given out again, is refused."""
    first, second = key("a"), key("b")
    for ids, next_id in [((1, 1), 2), ((0, 5), 5), ((-1, 0), 2)]:
        columns = [Column(ids[0], first.name, t.int8, nullable=False),
                   Column(ids[1], second.name, t.int8, nullable=False)]  # fmt: skip
        with pytest.raises(SchemaError, match="id"):
            Schema(tuple(columns), 1, next_id)


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 257, "\ud800", None])
def test_a_name_is_short_utf8_without_nul(name):
    """Kudu's rule for identifiers."""
    with pytest.raises(SchemaError, match="name"):
        Column(-1, name, t.int8)


def test_an_encoding_must_fit_the_type():
    """Kudu's table; names are case-insensitive and zlib means gzip."""
    assert Column(-1, "c", t.string, encoding="DICT", compression="zlib").compression == "gzip"
    assert Column(-1, "c", t.int8, encoding="BIT_SHUFFLE").encoding == "bitshuffle"
    for column_type, encoding in [(t.string, "bitshuffle"), (t.double, "rle"), (t.bool_, "dict"),
                                  (t.int8, "prefix"), (t.decimal(38, 0), "rle")]:  # fmt: skip
        with pytest.raises(SchemaError, match="invalid encoding for column 'c'"):
            Column(-1, "c", column_type, encoding=encoding)
    with pytest.raises(SchemaError, match="invalid compression"):
        Column(-1, "c", t.int8, compression="lzo")
    with pytest.raises(SchemaError, match="comment"):
        Column(-1, "c", t.int8, comment="ä" * 129)


def test_an_unknown_column_is_an_error_that_lists_the_known():
    """For index_of, column, and arrow_schema alike."""
    schema = Schema.build([key(), Column(-1, "v", t.int8)], ["k"])
    with pytest.raises(ColumnNotFoundError, match="no column 'x'; columns: k, v"):
        schema.arrow_schema(["k", "x"])


def test_the_arrow_schema_has_field_ids_and_nullability():
    """A projection keeps the order asked for."""
    schema = Schema.build([Column(-1, "v", t.varchar(3)), key()], ["k"])
    arrow = schema.arrow_schema(["v", "k"])
    assert arrow.names == ["v", "k"] and [f.nullable for f in arrow] == [True, False]
    assert [f.metadata[b"PARQUET:field_id"] for f in arrow] == [b"0", b"1"]
    assert arrow.types == [pa.string(), pa.int64()]


def test_a_damaged_stored_schema_is_corruption():
    """Missing parts and impossible values are not usage errors of the reader."""
    stored = Schema.build([key()], ["k"]).to_json()
    for damage in ({"columns": [{}]}, {"key_count": 2}, {"columns": None}):
        with pytest.raises(CorruptionError):
            Schema.from_json(stored | damage)


def test_a_schema_is_read_as_in_kudu_python():
    """By name and number, from the end too, and in a loop."""
    schema = Schema.build([key("b"), key("a"), Column(-1, "v", t.decimal(5, 2))], ["a", "b"])
    assert (len(schema), schema.names) == (3, ["a", "b", "v"])
    assert (schema.primary_keys(), schema.primary_key_indices()) == (["a", "b"], [0, 1])
    assert [column.name for column in schema] == schema.names
    assert schema[-1] is schema.at(2) is schema["v"] is schema.columns[2]
    assert (schema["v"].type_attributes.precision, schema["v"].type_attributes.scale) == (5, 2)
    assert (schema["v"].type.name, schema["v"].nullable, schema["v"].mutable) == (
        "decimal", True, True,
    )  # fmt: skip
    for absent in (3, -4):
        with pytest.raises(IndexError, match=f"no column {absent}; columns: a, b, v"):
            schema[absent]
    with pytest.raises(KeyError, match="^no column 'x'; columns: a, b, v"):
        schema["x"]


def test_schemas_are_equal_whatever_their_ids_are():
    """Names, types, defaults, storage and the key count."""
    columns = [key(), Column(-1, "v", t.string), Column(-1, "w", t.string, comment="c")]
    schema = Schema.build(columns, ["k"])
    again = Schema.build(columns[:2], ["k"]).with_column(Column(9, "x", t.string))
    again = again.without_column("x").with_column(columns[2])
    assert again != schema
    assert schema.equals(again)
    assert again["w"].id == 3
    for other in (again.without_column("w"), again.with_changed("w", {"name": "y"}), None):
        assert not schema.equals(other)
    assert not schema[1].equals(schema[2])
    assert not schema[1].equals("v")


def test_a_printed_schema_has_an_aligned_line_for_each_column():
    """Name, type and attributes stand in columns; the last line is the key."""
    columns = [
        Column(-1, "host", t.string, nullable=False),
        Column(-1, "at", t.unixtime_micros, nullable=False, encoding="bitshuffle"),
        Column(-1, "a\nb", t.decimal(5, 2), write_default=1, compression="zstd"),
    ]
    assert str(Schema.build(columns, ["host", "at"])).splitlines() == [
        "host    string           NOT NULL",
        "at      unixtime_micros  NOT NULL ENCODING bitshuffle",
        "'a\\nb'  decimal(5, 2)    NULLABLE DEFAULT Decimal('1.00') COMPRESSION zstd",
        "PRIMARY KEY (host, at)",
    ]
