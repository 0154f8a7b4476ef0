"""Spark's types and kudulite's, in both directions."""

import inspect

import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from kudulite import ColumnType, array, decimal, varchar
from kudulite.errors import ColumnNotFoundError, SchemaError
from kudulite_spark.types import (
    CHAR_VARCHAR_KEY,
    arrow_schema,
    column_type,
    is_exactly_readable,
    is_writable,
    spark_schema,
    spark_type,
    table_schema,
)

PAIRS = [
    (BooleanType(), ColumnType("bool")),
    (ByteType(), ColumnType("int8")),
    (ShortType(), ColumnType("int16")),
    (IntegerType(), ColumnType("int32")),
    (LongType(), ColumnType("int64")),
    (FloatType(), ColumnType("float")),
    (DoubleType(), ColumnType("double")),
    (DecimalType(38, 10), decimal(38, 10)),
    (DateType(), ColumnType("date")),
    (TimestampType(), ColumnType("unixtime_micros")),
    (TimestampNTZType(), ColumnType("timestamp_ntz")),
    (StringType(), ColumnType("string")),
    (BinaryType(), ColumnType("binary")),
    (ArrayType(DecimalType(5, 2)), array(decimal(5, 2))),
]


@pytest.mark.parametrize(("spark", "own"), PAIRS)
def test_types_map_one_to_one(spark, own):
    """A Spark type maps to one column type and back, and is both readable and writable."""
    assert column_type(StructField("c", spark)) == own
    assert spark_type(own) == spark
    assert is_exactly_readable(own, spark)
    assert is_writable(spark, own)


@pytest.mark.parametrize(
    "field",
    [
        StructField("c", CharType(3)),
        StructField("c", StringType(), metadata={CHAR_VARCHAR_KEY: "char(3)"}),
        StructField("c", ArrayType(StringType()), metadata={CHAR_VARCHAR_KEY: "array<char(3)>"}),
    ],
)
def test_a_char_is_refused(field):
    """Its blanks are Spark's; the message says what to write."""
    with pytest.raises(SchemaError, match=r"CHAR\(3\) is not supported.*declare VARCHAR\(3\)"):
        column_type(field)


def test_the_length_of_a_varchar_is_kept():
    """Spark reports it as STRING with a note; the note makes a varchar again."""
    assert column_type(StructField("c", VarcharType(7))) == varchar(7)
    table = table_schema(
        StructType([StructField("k", LongType()), StructField("v", VarcharType(7))]), ["k"], "/t"
    )
    field = spark_schema(table)["v"]
    assert field.dataType == StringType()
    assert field.metadata == {CHAR_VARCHAR_KEY: "varchar(7)"}
    assert column_type(field) == varchar(7)


@pytest.mark.parametrize(
    "spark", [ArrayType(ArrayType(LongType())), NullType(), StringType("UNICODE_CI"), VectorUDT()]
)
def test_types_without_a_counterpart_are_refused_by_name(spark):
    """The message has the column and the type as Spark writes it."""
    with pytest.raises(SchemaError, match="column 'c'") as caught:
        column_type(StructField("c", spark))
    assert spark.simpleString() in str(caught.value)


def test_a_table_made_from_a_dataframe_has_its_key_first_and_not_null():
    """Nullability and comments of the other columns are the DataFrame's."""
    struct = StructType(
        [
            StructField("v", DoubleType(), False, {"comment": "a value"}),
            StructField("b", StringType()),
            StructField("a", LongType()),
        ]
    )
    table = table_schema(struct, ["a", "b"], "/t")
    assert [(c.name, c.nullable, c.comment) for c in table.columns] == [
        ("a", False, ""),
        ("b", False, ""),
        ("v", False, "a value"),
    ]
    assert spark_schema(table, ["v", "a"]) == StructType(
        [
            StructField("v", DoubleType(), False, {"comment": "a value"}),
            StructField("a", LongType(), False),
        ]
    )


def test_a_key_given_as_text_is_one_column():
    """As in `Client.create_table`, and not a column for each letter."""
    struct = StructType([StructField("key", LongType())])
    assert list(table_schema(struct, "key", "/t").key_names) == ["key"]


def test_a_key_column_that_is_not_there_is_named():
    """Before anything is made."""
    struct = StructType([StructField("a", LongType())])
    with pytest.raises(ColumnNotFoundError, match="'/t': primary key column 'z'.*columns: a"):
        table_schema(struct, ["z"], "/t")


@pytest.mark.parametrize(
    ("own", "wanted", "exact"),
    [
        (ColumnType("int8"), ShortType(), True),
        (ColumnType("int32"), LongType(), True),
        (ColumnType("int64"), IntegerType(), False),
        (ColumnType("int32"), DoubleType(), True),
        (ColumnType("int64"), DoubleType(), False),
        (ColumnType("int32"), DecimalType(10, 0), True),
        (ColumnType("int32"), DecimalType(10, 1), False),
        (ColumnType("float"), DoubleType(), True),
        (ColumnType("double"), FloatType(), False),
        (decimal(10, 2), DecimalType(12, 4), True),
        (decimal(10, 2), DecimalType(11, 4), False),
        (decimal(10, 2), DoubleType(), False),
        (varchar(3), StringType(), True),
        (ColumnType("string"), StringType("UNICODE_CI"), False),
        (ColumnType("string"), BinaryType(), False),
        (ColumnType("date"), TimestampType(), False),
        (ColumnType("unixtime_micros"), TimestampNTZType(), False),
    ],
)
def test_only_exact_types_may_be_asked_for(own, wanted, exact):
    """A user's schema may widen, never lose or reinterpret."""
    assert is_exactly_readable(own, wanted) is exact


@pytest.mark.parametrize(
    ("spark", "own", "writable"),
    [
        (LongType(), ColumnType("int8"), True),  # values are range-checked
        (DoubleType(), ColumnType("int32"), True),
        (StringType(), ColumnType("int32"), False),
        (BooleanType(), ColumnType("int32"), False),
        (IntegerType(), decimal(5, 2), True),
        (DoubleType(), decimal(5, 2), False),
        (DecimalType(5, 2), ColumnType("double"), True),
        (NullType(), ColumnType("double"), True),
        (TimestampType(), ColumnType("timestamp_ntz"), False),
        (DateType(), ColumnType("unixtime_micros"), False),
        (LongType(), ColumnType("string"), False),
        (BinaryType(), ColumnType("string"), True),
        (ArrayType(LongType()), array("int8"), True),
        (ArrayType(StringType()), array("int8"), False),
        (LongType(), array("int8"), False),
        (ArrayType(LongType()), ColumnType("int8"), False),
    ],
)
def test_writable_is_what_has_an_exact_meaning(spark, own, writable):
    """The same rule as the core's, said before a task starts."""
    assert is_writable(spark, own) is writable


def test_batches_have_the_schema_that_spark_checks():
    """Names, order, types and nullability, for every type that a table can have."""
    struct = StructType(
        [StructField(f"c{i}", spark, i % 2 == 0) for i, (spark, _) in enumerate(PAIRS)]
    )
    has_zone = "timezone" in inspect.signature(to_arrow_schema).parameters  # not in Spark 4.1
    expected = to_arrow_schema(struct, **({"timezone": "UTC"} if has_zone else {}))
    assert arrow_schema(struct) == expected
