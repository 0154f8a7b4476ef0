"""Rows as bytes: exact in every type, refused where they do not fit, and damage is found."""

import datetime
import decimal
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kudulite
from kudulite.errors import CorruptionError
from kudulite.model.schema import Schema
from kudulite.wal.record_format import encode_rows
from kudulite.wal.row_codec import CHANGE_DELETE, CHANGE_INSERT, CHANGE_UPDATE, RowCodec, RowList
from tests.support.tables.wal_changes import decode_record

UTC = datetime.UTC
TYPES = {
    "k": kudulite.int32,
    "bool": kudulite.bool_,
    "int8": kudulite.int8,
    "int16": kudulite.int16,
    "int64": kudulite.int64,
    "float": kudulite.float_,
    "double": kudulite.double,
    "date": kudulite.date,
    "moment": kudulite.unixtime_micros,
    "naive": kudulite.timestamp_ntz,
    "money": kudulite.decimal(38, 6),
    "text": kudulite.string,
    "short": kudulite.varchar(3),
    "blob": kudulite.binary,
}
ROW = {
    "k": -1,
    "bool": True,
    "int8": -128,
    "int16": 32767,
    "int64": -(1 << 63),
    "float": 0.5,
    "double": -0.0,
    "date": datetime.date(1, 1, 1),
    "moment": datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    "naive": datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
    "money": decimal.Decimal("-99999999999999999999999999999999.999999"),
    "text": "é🜁\0",
    "short": "äöü",
    "blob": b"\x00\xff",
}


def make_schema() -> Schema:
    """A table with a column of every type."""
    columns = [
        kudulite.column(name, column_type, nullable=name != "k")
        for name, column_type in TYPES.items()
    ]
    return kudulite.schema(columns, "k")


SCHEMA = make_schema()
CODEC = RowCodec(SCHEMA)


def round_trip(*rows: tuple[int, dict]) -> list[tuple[int, dict]]:
    """Encode rows as a record and return the decoded rows."""
    record = decode_record(encode_rows(RowList(7, rows, CODEC)), SCHEMA, 7)
    assert isinstance(record, RowList)
    assert record.timestamp == 7
    return list(record.rows)


def test_every_type_comes_back_as_it_was():
    """With their extremes, and text beyond ASCII."""
    ((op, cells),) = round_trip((CHANGE_INSERT, ROW))
    assert (op, cells) == (CHANGE_INSERT, ROW)
    assert math.copysign(1, cells["double"]) == -1
    assert [type(value) for value in cells.values()] == [type(value) for value in ROW.values()]


def test_null_and_not_set_are_told_apart():
    """A column that a row does not set is not among its cells."""
    rows = [
        (CHANGE_UPDATE, {"k": 1, "text": None}),
        (CHANGE_UPDATE, {"k": 2, "text": ""}),
        (CHANGE_DELETE, {"k": 3}),
    ]
    assert round_trip(*rows) == rows


def test_a_moment_after_the_year_9999_is_kept_in_microseconds():
    """Python has no datetime for it."""
    cells = {"k": 1, "moment": (1 << 63) - 1}
    assert round_trip((CHANGE_UPDATE, cells)) == [(CHANGE_UPDATE, cells)]


@given(value=st.floats(), number=st.integers(-(1 << 63), (1 << 63) - 1), blob=st.binary())
def test_any_value_comes_back(value, number, blob):
    """NaN and infinities as well."""
    row = {"k": 0, "double": value, "int64": number, "blob": blob}
    ((_, cells),) = round_trip((CHANGE_UPDATE, row))
    assert cells["double"] == value or (math.isnan(value) and math.isnan(cells["double"]))
    assert (cells["int64"], cells["blob"]) == (number, blob)


def test_rows_are_the_same_as_columns():
    """Columns and masks that memory takes are those of the rows."""
    record = RowList(7, [(CHANGE_INSERT, ROW), (CHANGE_UPDATE, {"k": 5, "int8": None})], CODEC)
    ids = {column.name: column.id for column in SCHEMA.columns}
    assert record.ops.tolist() == [CHANGE_INSERT, CHANGE_UPDATE]
    assert record.columns[ids["k"]].to_pylist() == [-1, 5]
    assert record.columns[ids["text"]].to_pylist() == ["é🜁\0", None]
    assert record.is_set[ids["text"]].tolist() == [True, False]
    assert ids["int8"] not in record.is_set


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("int8", 128),
        ("int8", True),
        ("int64", 1 << 63),
        ("int64", 1.0),
        ("bool", 1),
        ("double", 1),
        ("text", b"a"),
        ("blob", "a"),
        ("short", "abcd"),
        ("date", datetime.datetime(2020, 1, 1)),
        ("moment", "2020-01-01"),
        ("money", decimal.Decimal("0.0000001")),
        ("money", decimal.Decimal(10) ** 33),
        ("money", 1),
    ],
)
def test_a_value_that_does_not_fit_is_refused(name, value):
    """Nothing gets into the log that a reader could not put into the column."""
    with pytest.raises(ValueError):
        encode_rows(RowList(7, [(CHANGE_UPDATE, {"k": 1, name: value})], CODEC))


def test_damage_is_a_corruption_error_or_a_row():
    """Each byte changed, each length cut: never another exception."""
    content = encode_rows(RowList(7, [(CHANGE_INSERT, ROW), (CHANGE_DELETE, {"k": 2})], CODEC))
    damaged = [content[:length] for length in range(len(content))]
    damaged += [
        content[:at] + bytes((content[at] ^ flip,)) + content[at + 1 :]
        for at in range(len(content))
        for flip in (0x01, 0x80, 0xFF)
    ]
    refused = 0
    for one in damaged:
        try:
            decode_record(one, SCHEMA)
        except CorruptionError:
            refused += 1
    assert refused > len(content)


def test_the_worked_example():
    """As the module's first lines have it."""
    columns = [kudulite.column("k", kudulite.int8), kudulite.column("v", kudulite.string)]
    rows = [(CHANGE_UPDATE, {"k": 7, "v": "a"}), (CHANGE_DELETE, {"k": 8})]
    assert RowCodec(kudulite.schema(columns, "k")).encode(rows) == bytes.fromhex(
        "010300070100000061 02010008"
    )
