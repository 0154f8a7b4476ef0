"""Column types: names, Arrow types."""

import pyarrow as pa
import pytest

from kudulite.errors import SchemaError
from kudulite.model import types as t

ALL_TYPES = [
    t.bool_, t.int8, t.int16, t.int32, t.int64, t.float_, t.double, t.date, t.unixtime_micros,
    t.timestamp_ntz, t.string, t.binary, t.decimal(9, 2), t.decimal(18, 0), t.decimal(38, 38),
    t.varchar(1), t.varchar(65535), t.array(t.int32), t.array(t.decimal(38, 1)), t.array("binary"),
]  # fmt: skip


@pytest.mark.parametrize("column_type", ALL_TYPES, ids=str)
def test_the_name_of_a_type_parses_to_it(column_type):
    """str and parse_type are inverse, in any case."""
    assert t.parse_type(str(column_type)) == column_type
    assert t.parse_type(str(column_type).upper().replace(" ", "")) == column_type


@pytest.mark.parametrize("column_type", ALL_TYPES, ids=str)
def test_the_arrow_type_of_a_type_leads_back_to_it(column_type):
    """type_from_arrow inverts .arrow, but varchar comes back as string."""
    expected = t.string if column_type.name == "varchar" else column_type
    assert t.type_from_arrow(column_type.arrow) == expected


@pytest.mark.parametrize("text", ["uint8", "decimal", "decimal(39)", "decimal(4, 5)", "varchar(0)",
                                  "varchar(65536)", "int32(4)", "", "varchar(1, 2)", "array",
                                  "array(array(int8))", "array(map)", "array()"])  # fmt: skip
def test_an_unknown_type_name_is_refused(text):
    """Types outside the list, and parameters outside their range."""
    with pytest.raises(SchemaError):
        t.parse_type(text)


@pytest.mark.parametrize(
    "arrow_type, expected",
    [
        (pa.large_string(), t.string),
        (pa.string_view(), t.string),
        (pa.large_binary(), t.binary),
        (pa.binary(4), t.binary),
        (pa.dictionary(pa.int8(), pa.int64()), t.int64),
        (pa.timestamp("ms"), t.timestamp_ntz),
        (pa.timestamp("s", "Asia/Tokyo"), t.unixtime_micros),
        (pa.decimal32(5, 1), t.decimal(5, 1)),
        (pa.decimal256(38, 3), t.decimal(38, 3)),
        (pa.date64(), t.date),
        (pa.list_(pa.int8()), t.array(t.int8)),
        (pa.large_list(pa.large_string()), t.array(t.string)),
        (pa.list_(pa.float64(), 3), t.array(t.double)),
    ],
)
def test_arrow_types_with_an_equal_meaning_are_taken(arrow_type, expected):
    """Other layouts of a known meaning map to the type of that meaning."""
    assert t.type_from_arrow(arrow_type) == expected


@pytest.mark.parametrize("arrow_type", [pa.uint8(), pa.uint64(), pa.list_(pa.uint8()),
                                        pa.decimal256(39, 0), pa.null(),
                                        pa.struct([]), pa.float16(), pa.time64("us")])  # fmt: skip
def test_arrow_types_without_a_column_type_are_refused_by_name(arrow_type):
    """The message names the Arrow type."""
    with pytest.raises(
        SchemaError,
        match=str(getattr(arrow_type, "value_type", arrow_type)).split("[")[0].split("(")[0],
    ):
        t.type_from_arrow(arrow_type)


def test_key_widths_are_those_of_kudu():
    """Decimals take 4, 8 or 16 bytes by precision; bytes-like types have no width."""
    widths = {str(c): c.key_width for c in ALL_TYPES if c.is_key_type}
    assert widths == {
        "int8": 1, "int16": 2, "int32": 4, "int64": 8, "date": 4, "unixtime_micros": 8,
        "timestamp_ntz": 8, "string": None, "binary": None, "decimal(9, 2)": 4,
        "decimal(18, 0)": 8, "decimal(38, 38)": 16, "varchar(1)": None, "varchar(65535)": None,
    }  # fmt: skip
    assert [str(c) for c in ALL_TYPES if not c.is_key_type] == [
        "bool", "float", "double", "array(int32)", "array(decimal(38, 1))", "array(binary)",
    ]  # fmt: skip


def test_an_array_of_arrays_is_refused_by_name():
    """Elements are scalars."""
    with pytest.raises(SchemaError, match=r"array elements are scalars, not array\(int8\)"):
        t.type_from_arrow(pa.list_(pa.list_(pa.int8())))
