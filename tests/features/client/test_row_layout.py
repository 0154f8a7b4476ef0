"""Rows that come one by one: canonical values, columns by name and index, sizes in bytes."""

import datetime
import decimal
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudulite.client.row_operations import RowLayout, converter_of
from kudulite.errors import ColumnNotFoundError, SchemaError
from kudulite.model import types
from kudulite.model.schema import NEW_COLUMN_ID, Column, Schema
from kudulite.model.values import canonical_value

COLUMN_TYPES = [
    types.bool_,
    types.int8,
    types.int16,
    types.int32,
    types.int64,
    types.float_,
    types.double,
    types.decimal(5, 2),
    types.decimal(38, 0),
    types.date,
    types.unixtime_micros,
    types.timestamp_ntz,
    types.string,
    types.varchar(3),
    types.binary,
]
ZONES = st.sampled_from([None, datetime.UTC, datetime.timezone(datetime.timedelta(hours=2))])
VALUES = st.one_of(
    st.booleans(),
    st.integers(-300, 300),
    st.integers(-(1 << 65), 1 << 65),
    st.floats(),
    st.floats(width=32),
    st.decimals(places=2, min_value=-1100, max_value=1100),
    st.decimals(),
    st.dates(),
    st.datetimes(timezones=ZONES),
    st.datetimes().map(lambda time: time.replace(fold=1)),
    st.text(max_size=5),
    st.sampled_from(["\ud800", "2026-11-21", "2026-11-21T10:00:00Z", decimal.Decimal("-0.00")]),
    st.binary(max_size=5),
)


def outcome(function, *arguments):
    """The result of a function with its type, or the text of its error."""
    try:
        value = function(*arguments)
    except SchemaError as error:
        return str(error)
    if isinstance(value, float) and math.isnan(value):
        return "nan", value is math.nan
    extra = (value.tzinfo, value.fold) if isinstance(value, datetime.datetime) else None
    return type(value), repr(value), extra


@pytest.mark.parametrize("column_type", COLUMN_TYPES, ids=str)
@given(value=VALUES)
def test_a_converter_gives_the_canonical_value(column_type, value):
    """The shortcut only skips work: same value, same error."""
    column = Column(0, "c", column_type)
    found = outcome(converter_of(column, "t"), value)
    expected = outcome(canonical_value, value, column_type, "c")
    if isinstance(expected, str):
        expected = f"table 't': {expected}"
    assert found == expected


def layout(*columns: Column, key_count: int = 1) -> RowLayout:
    """The layout of a table t."""
    names = [column.name for column in columns[:key_count]]
    return RowLayout("t", Schema.build(columns, names))


def column(name: str, column_type: types.ColumnType, nullable: bool = True) -> Column:
    """A column of a new table."""
    return Column(NEW_COLUMN_ID, name, column_type, nullable=nullable)


K, V, S = (
    column("k", types.int32, nullable=False),
    column("v", types.int64),
    column("s", types.string),
)


def test_records_are_dicts_by_name_or_index_tuples_and_lists():
    """A tuple or list gives the first columns; the others are not set."""
    rows = layout(K, V, S)
    for record in ({"k": 1, "v": 2}, {0: 1, 1: 2}, {0: 1, "v": 2}, (1, 2), [1, 2]):
        assert rows.convert(record) == {"k": 1, "v": 2}
    assert rows.convert((1, None, "x")) == {"k": 1, "v": None, "s": "x"}


def test_a_column_that_is_not_there_is_named():
    """With the columns that are; indexes count from 0 and not from the end."""
    rows = layout(K, V)
    for record in ({"k": 1, "w": 2}, {"k": 1, 2: 2}, {-1: 2}, (1, 2, 3)):
        with pytest.raises(ColumnNotFoundError, match="table 't': .*; columns: k, v"):
            rows.convert(record)
    for key in ("w", 2, -1, None, 0.5):
        with pytest.raises(ColumnNotFoundError, match="columns: k, v"):
            rows.convert({key: 2})


def test_what_does_not_fit_is_refused_with_column_and_value():
    """Null only where the column is nullable, and values only of the column's range."""
    rows = layout(K, V)
    with pytest.raises(SchemaError, match="table 't': column 'k' is NOT NULL; got None"):
        rows.convert({"k": None})
    with pytest.raises(SchemaError, match="table 't': column 'k': 2147483648 is no int32"):
        rows.convert({"k": 1 << 31})
    with pytest.raises(SchemaError, match="a row is a dict, tuple or list, not str"):
        rows.convert("k")


def test_a_row_counts_the_width_of_all_columns_and_the_bytes_of_its_text():
    """Whether they are set or not, as in Kudu; letters outside ASCII have more bytes."""
    rows = layout(K, V, S)
    empty = rows.size({"k": 1})
    assert empty == 1 + (4 + 8 + 16) + 2
    assert rows.size({"k": 1, "v": 5, "s": None}) == empty
    assert rows.size({"k": 1, "s": "abc"}) == empty + 3
    assert rows.size({"k": 1, "s": "äß€"}) == empty + 7
    both = layout(K, column("b", types.binary), column("d", types.decimal(38, 2)))
    assert both.size({"k": 1, "b": b"\xff\x00"}) == 1 + (4 + 16 + 16) + 2 + 2
