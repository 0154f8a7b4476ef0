"""Every Spark type comes back exactly, on each way of reading, or is refused by its name."""

import math
import struct
from decimal import Decimal

import pyarrow as pa
import pytest

import kudulite
import kudulite_spark
from kudulite_spark.types import spark_schema
from tests.support.spark.spark_tables import load, save
from tests.support.tiers import tiered

SECOND = 1_000_000
# 0001-01-01, before and after the calendars' gap in 1582, a gap and a fold of New York's clocks.
MOMENTS = [
    -62_135_596_800 * SECOND,
    -12_219_292_800 * SECOND - 1,
    -12_219_292_800 * SECOND,
    -1,
    0,
    1_615_707_000 * SECOND,
    1_615_703_400 * SECOND + 1,
    1_636_264_800 * SECOND,
    1_636_268_400 * SECOND + 999_999,
    253_402_300_799 * SECOND + 999_999,
]
FLOATS = [0.0, -0.0, math.nan, math.inf, -math.inf]
COLUMNS = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [-128, 127, 0]),
    "int16": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "float": (pa.float32(), [*FLOATS, 2.0**-149, -(2.0**-149), 3.4028234663852886e38]),
    "double": (pa.float64(), [*FLOATS, 5e-324, -5e-324, 1.7976931348623157e308, 0.1]),
    "date": (pa.date32(), [-719_162, -141_428, -141_427, -1, 0, 2_932_896]),
    "unixtime_micros": (pa.timestamp("us", "UTC"), MOMENTS),
    "timestamp_ntz": (pa.timestamp("us"), MOMENTS),
    "string": (pa.string(), ["", " ", "\0", "\U0001f600\u0301", "e\u0301", "\uffff", "x" * 70_000]),
    "binary": (pa.binary(), [b"", b"\0", b"\0\xff\xfe", bytes(range(256))]),
    "decimal(9, 2)": (pa.decimal128(9, 2), [Decimal("-9999999.99"), Decimal("0.01")]),
    "decimal(38, 0)": (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(1 - 10**38)]),
    "decimal(38, 38)": (pa.decimal128(38, 38), [Decimal("0." + "9" * 38), Decimal(0)]),
    "decimal(20, 18)": (pa.decimal128(20, 18), [Decimal("99.999999999999999999"), None]),
}
ROW_COUNT = 12
COLUMNS |= {
    f"array({name})": (pa.list_(kind), [[], [None], values, values[:1], None, [*values, None]])
    for name, (kind, values) in COLUMNS.items()
}


def bits(column: pa.ChunkedArray) -> list:
    """Values such that equal means the same bits; NaN equals NaN."""
    kind = column.type
    if pa.types.is_list(kind):
        flat = iter(bits(pa.chunked_array([column.combine_chunks().flatten()])))
        return [row if row is None else [next(flat) for _ in row] for row in column.to_pylist()]
    if pa.types.is_date(kind):
        return column.cast(pa.int32()).to_pylist()
    if pa.types.is_timestamp(kind):
        return column.cast(pa.int64()).to_pylist()
    if pa.types.is_floating(kind):
        found = column.to_pylist()
        return [v if v is None or math.isnan(v) else struct.pack("d", v) for v in map(nan, found)]
    return column.to_pylist()


def nan(value):
    """One NaN object for all, since NaN is not equal to itself."""
    return math.nan if value is not None and math.isnan(value) else value


def edge_rows() -> pa.Table:
    """One column per type, its edge values and then nulls; the key is k."""
    arrays = {"k": pa.array(range(ROW_COUNT), pa.int32())}
    for name, (kind, values) in COLUMNS.items():
        padded = [*values, *[None] * (ROW_COUNT - len(values))]
        scalar = kind.value_type if pa.types.is_list(kind) else kind
        whole = scalar
        if pa.types.is_date(scalar) or pa.types.is_timestamp(scalar):
            whole = pa.int32() if pa.types.is_date(scalar) else pa.int64()
        given = pa.list_(whole) if pa.types.is_list(kind) else whole
        arrays[name] = pa.array(padded, given).cast(kind)
    return pa.table(arrays)


def own_schema() -> kudulite.Schema:
    """The table's schema."""
    types = {"k": "int32"} | {name: name for name in COLUMNS}
    columns = [
        kudulite.Column(0, name, kudulite.parse_type(kind), nullable=name != "k")
        for name, kind in types.items()
    ]
    return kudulite.Schema.build(columns, ["k"])


@pytest.fixture(scope="module")
def path(spark, tmp_path_factory) -> str:
    """The edge rows, written by Spark in one time zone; half of them written again as deltas."""
    place = str(tmp_path_factory.mktemp("types") / "t")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = spark.createDataFrame(edge_rows(), spark_schema(own_schema()))
        save(frame.coalesce(1), place, primaryKey="k")
        save(frame.where("k % 4 = 1").coalesce(1), place)
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    return place


@pytest.mark.quick
def test_columns_have_the_types_of_the_data_frame(path):
    """The names of the columns are those of the types."""
    schema = kudulite.open_table(path).schema
    assert [str(column.type) for column in schema.value_columns] == list(COLUMNS)


@pytest.mark.quick
@tiered("zone", ["UTC", "America/New_York", "Asia/Kolkata"], quick=1)
def test_every_value_comes_back_on_each_way_of_reading(spark, path, zone):
    """Whatever the session's time zone is when it is written, and when it is read."""
    wanted = edge_rows()
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        readings = {
            "kudulite": load(spark, path).orderBy("k").toArrow(),
            "read_table": kudulite_spark.read_table(spark, path).orderBy("k").toArrow(),
            "embedded": kudulite.open_table(path).scan().to_arrow().sort_by("k"),
        }
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    for way, found in readings.items():
        for name in wanted.column_names:
            assert bits(found[name]) == bits(wanted[name]), (way, name)


def test_lengths_of_varchar_count_characters(spark, tmp_path):
    """Not bytes and not UTF-16 units; a value that is longer is refused."""
    place = tmp_path / "t"
    kudulite_spark.create_table(spark, str(place), "k INT, v VARCHAR(2), c VARCHAR(2)", ["k"])
    save(spark.createDataFrame([(1, "\U0001f600é", "a ")], "k int, v string, c string"), place)
    assert [tuple(row) for row in load(spark, place).collect()] == [(1, "\U0001f600é", "a ")]
    with pytest.raises(Exception, match=r"column 'v'.*'abc' does not fit varchar\(2\)"):
        save(spark.createDataFrame([(2, "abc")], "k int, v string"), place)


@pytest.mark.parametrize("type_, values", [("decimal(10,2)", "1.5, 1.25"), ("double", "1.5, 0.1")])
def test_numbers_are_written_where_exact(spark, tmp_path, type_, values):
    """The first value has an exact counterpart in each column, the second has not."""
    place = tmp_path / "t"
    kudulite_spark.create_table(spark, str(place), "k BIGINT, f FLOAT, n INT", ["k"])
    good, bad = (f"CAST({value} AS {type_})" for value in values.split(", "))
    save(spark.sql(f"SELECT CAST(1 AS decimal(20)) AS k, {good} AS f, 2D AS n"), place)
    assert [tuple(row) for row in load(spark, place).collect()] == [(1, 1.5, 2)]
    with pytest.raises(Exception, match=r"column 'n'.*row 0: value .* does not fit int32"):
        save(spark.sql(f"SELECT 2 AS k, {bad} AS n"), place)


REFUSED = {
    "interval year to month": "INTERVAL '1-2' YEAR TO MONTH",
    "interval day to second": "INTERVAL '1 02:03:04' DAY TO SECOND",
    "map<string,int>": "map('a', 1)",
    "struct<x:int>": "named_struct('x', 1)",
    "variant": "parse_json('1')",
    "void": "NULL",
    "array<array<int>>": "array(array(1))",
    "array<struct<x:int>>": "array(named_struct('x', 1))",
    "array<void>": "array()",
    "string collate UNICODE": "'a' COLLATE UNICODE",
    "time(6)": "TIME'01:02:03'",
}


@pytest.mark.quick
@tiered("type_", REFUSED, quick=1)
def test_any_other_type_is_refused_by_name(spark, tmp_path, type_):
    """Before a table is made; the message names the column and its type."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    frame = spark.sql(f"SELECT 1 AS k, {REFUSED[type_]} AS other")
    with pytest.raises(Exception) as caught:
        save(frame, tmp_path / "t", primaryKey="k")
    message = str(caught.value)
    assert type_.lower() in message.lower(), message
    assert "other" in message
    assert not (tmp_path / "t").exists()
