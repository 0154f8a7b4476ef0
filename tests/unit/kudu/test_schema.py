"""Schemas as kudu-python's programs build, print and read them, with Kudu's texts for mistakes."""

import datetime
from decimal import Decimal

import pytest

import kudulite.kudu as kudu
from kudulite.kudu import schema as kinds

UTC = datetime.UTC
SCALARS = (
    kudu.int8, kudu.int16, kudu.int32, kudu.int64, kudu.float, kudu.double, kudu.bool,
    kudu.string, kudu.binary, kudu.unixtime_micros, kudu.date,
)  # fmt: skip


def builder_of(*columns: tuple, keys=None) -> kudu.SchemaBuilder:
    """A builder with these columns, given as the positional arguments of `add_column`."""
    builder = kudu.schema_builder()
    for column in columns:
        builder.add_column(*column)
    if keys is not None:
        builder.set_primary_keys(keys)
    return builder


@pytest.fixture
def schema() -> kudu.Schema:
    """Four columns, the first two of them the key."""
    columns = ("one", "int32", False), ("two", "int8", False), ("three", "double", True)
    return builder_of(*columns, ("four", "string", False), keys=["one", "two"]).build()


def test_a_schema_is_read_by_name_and_number(schema):
    """From the end too; what is not there is a KeyError or an IndexError."""
    assert (len(schema), schema.names) == (4, ["one", "two", "three", "four"])
    assert (schema.primary_keys(), schema.primary_key_indices()) == (["one", "two"], [0, 1])
    assert schema["three"].equals(schema[2])
    assert schema[-1].equals(schema.at(3))
    assert not schema[0].equals(schema[1])
    assert [column.nullable for column in schema] == [False, False, True, False]
    with pytest.raises(IndexError, match="^Column index 4 is not in range"):
        schema[4]
    with pytest.raises(KeyError, match="^absent; the columns are one, two"):
        schema["absent"]


def test_a_schema_prints_one_aligned_line_for_each_column(schema):
    """And a line for the key; a column has kudu-python's repr."""
    assert repr(schema) == str(schema) == (
        "kudu.Schema {\n"
        "  one    INT32 NOT NULL\n"
        "  two    INT8 NOT NULL\n"
        "  three  DOUBLE NULLABLE\n"
        "  four   STRING NOT NULL\n"
        "  PRIMARY KEY (one, two)\n"
        "}"
    )  # fmt: skip
    assert repr(schema[0]) == "ColumnSchema(name=one, type=int32, nullable=False)"


def test_schemas_are_equal_if_their_columns_and_keys_are(schema):
    """Of another key, or other columns, they are not."""
    assert schema.equals(schema)
    key = ("one", "int32", False)
    assert builder_of(key, keys=["one"]).build().equals(builder_of(key, keys=["one"]).build())
    assert not schema.equals(builder_of(key, keys=["one"]).build())
    with pytest.raises(TypeError, match="expected a Schema, got str"):
        schema.equals("schema")


@pytest.mark.parametrize("kind", SCALARS, ids=repr)
def test_a_type_is_given_as_object_name_or_number(kind):
    """It has Kudu's number."""
    for given in (kind, kind.name, kind.type):
        column = builder_of(("k", "int8", False), ("v", given), keys=["k"]).build()["v"]
        assert (column.type.name, column.type.type) == (kind.name, kind.type)
    assert repr(kind) == f"KuduType({kind.name})"


def test_the_numbers_are_those_of_kudu():
    """As in schema.h and client.h of its client."""
    types = (kudu.int8, kudu.bool, kudu.decimal, kudu.varchar, kudu.date)
    assert [kind.type for kind in types] == [0, 5, 10, 11, 12]
    assert (kinds.NESTED, kudu.ENCODING_RLE, kudu.ENCODING_DICT, kudu.ENCODING_BIT_SHUFFLE) == (
        14, 4, 5, 6,
    )  # fmt: skip
    assert (kudu.COMPRESSION_NONE, kudu.COMPRESSION_LZ4, kudu.COMPRESSION_ZLIB) == (1, 3, 4)
    assert (kudu.FLUSH_AUTO_SYNC, kudu.FLUSH_AUTO_BACKGROUND, kudu.FLUSH_MANUAL) == (0, 1, 2)
    assert (kudu.READ_LATEST, kudu.READ_AT_SNAPSHOT, kudu.READ_YOUR_WRITES) == (0, 1, 2)
    assert (kudu.LEADER_ONLY, kudu.CLOSEST_REPLICA, kudu.FIRST_REPLICA) == (0, 1, 2)
    assert (kudu.EXCLUSIVE_BOUND, kudu.INCLUSIVE_BOUND) == (0, 1)


def test_parameters_of_types_are_of_the_column():
    """Precision, scale and length are type attributes; 0 where there is none."""
    builder = kudu.schema_builder()
    builder.add_column("key").type("decimal").primary_key().nullable(False).precision(9).scale(2)
    builder.add_column("v", kudu.varchar, length=10)
    schema = builder.build()
    assert repr(schema[0].type_attributes) == "ColumnTypeAttributes(precision=9, scale=2, length=0)"
    assert schema[1].type_attributes.length == 10
    assert [column.type_to_string() for column in schema] == [
        "DECIMAL(9, 2) NOT NULL",
        "VARCHAR(10) NULLABLE",
    ]


MISTAKES = [
    ("decimal", {}, "no precision provided for DECIMAL column: x"),
    ("decimal", {"length": 10}, "no precision provided for DECIMAL column: x"),
    ("decimal", {"precision": 0}, "precision must be between 1 and 38: x"),
    ("decimal", {"precision": 5, "scale": 6}, "scale is greater than the precision value of 5: x"),
    ("decimal", {"precision": 5, "length": 6}, "length is not applicable to DECIMAL column: x"),
    ("int32", {"precision": 9, "scale": 2}, "precision is not applicable to INT32 column: x"),
    ("int32", {"scale": 2}, "scale is not applicable to INT32 column: x"),
    ("string", {"length": 2}, "length is not applicable to STRING column: x"),
    ("varchar", {}, "no length provided for VARCHAR column: x"),
    ("varchar", {"length": 0}, "length must be between 1 and 65535: x"),
    (None, {}, "no type provided for column: x"),
]


@pytest.mark.parametrize(("kind", "parameters", "text"), MISTAKES)
def test_a_mistake_in_a_column_has_the_text_of_kudu(kind, parameters, text):
    """When the schema is built; as KuduInvalidArgument."""
    builder = builder_of(("k", "int64", False), keys=["k"])
    builder.add_column("x", kind, **parameters)
    with pytest.raises(kudu.KuduInvalidArgument, match=f"^{text}$"):
        builder.build()


def mark(builder: kudu.SchemaBuilder, *names: str) -> None:
    """Call `primary_key` of these columns."""
    for spec in builder._specs:
        if spec.name in names:
            spec.primary_key()


KEYS = [
    (lambda b: b.set_primary_keys(["b", "a"]), "primary key columns must be listed first .*: b"),
    (lambda b: b.set_primary_keys(["b"]), "primary key columns must be listed first .*: b"),
    (lambda b: b.set_primary_keys(["a", "a"]), "primary key columns must be listed first .*: a"),
    (lambda b: b.set_primary_keys(["z"]), "primary key column not defined: z"),
    (lambda b: None, "no primary key or non-unique primary key specified"),
    (lambda b: mark(b, "b"), "primary key column must be the first column"),
    (lambda b: mark(b, "a", "b"), "multiple columns specified for primary key: a, b"),
    (lambda b: (mark(b, "a"), b.set_primary_keys(["a"])),
     r"primary key specified by both SetPrimaryKey\(\) and on a specific column: a"),
    (lambda b: (mark(b, "a"), b.set_non_unique_primary_keys(["a"])),
     r"primary key specified by both SetNonUniquePrimaryKey\(\) and on a specific column: a"),
    (lambda b: b.set_non_unique_primary_keys(["b", "a"]),
     "primary key columns must be listed first in the schema: b"),
    (lambda b: (mark(b, "b"), b._specs[0].non_unique_primary_key()),
     "multiple columns specified for primary key: a, b"),
    (lambda b: (b.add_column("v", "int8"), b.set_primary_keys(["a", "b", "v"])),
     "Nullable key columns are not supported: v"),
    (lambda b: (mark(b, "a"), b.add_column("auto_incrementing_id", "int64")),
     "auto_incrementing_id is a reserved column name"),
]  # fmt: skip


@pytest.mark.parametrize(("give", "text"), KEYS, ids=[text for _, text in KEYS])
def test_a_mistake_in_the_key_has_the_text_of_kudu(give, text):
    """When the schema is built; as KuduInvalidArgument."""
    builder = builder_of(("a", "int64", False), ("b", "string", False))
    give(builder)
    with pytest.raises(kudu.KuduInvalidArgument, match=f"^{text}"):
        builder.build()


ID = kudu.schema.Schema.get_auto_incrementing_column_name()
NOT_UNIQUE = [
    (lambda b: b._specs[0].primary_key().non_unique_primary_key(), ["a", ID]),
    (lambda b: b._specs[0].non_unique_primary_key().primary_key(), ["a"]),
    (lambda b: b.set_primary_keys(["a"]).set_non_unique_primary_keys(["a", "b"]), ["a", "b", ID]),
    (lambda b: b.set_non_unique_primary_keys(["a", "b"]).set_primary_keys(["a", "b"]), ["a", "b"]),
]


@pytest.mark.parametrize(("give", "keys"), NOT_UNIQUE)
def test_the_last_call_says_whether_the_key_is_unique(give, keys):
    """If it is not, the schema has one column more, the last of the key."""
    builder = builder_of(("a", "int64", False), ("b", "string", False))
    give(builder)
    schema = builder.build()
    assert schema.primary_keys() == keys
    assert len(schema) == 2 + (ID in keys)


def test_what_is_for_existing_columns_only_is_not_supported():
    """In a new table nothing can be renamed, and no default removed."""
    for change, text in (("rename", "rename a column"), ("remove_default", "remove default")):
        builder = kudu.schema_builder()
        spec = builder.add_column("x", "int64")
        getattr(spec, change)(*["y"] * (change == "rename"))
        with pytest.raises(kudu.KuduNotSupported, match=f"cannot {text} during CreateTable: x"):
            builder.build()


def test_an_unknown_argument_of_a_column_is_refused():
    """As by any function, although parameters of types are passed on together."""
    with pytest.raises(TypeError, match="add_column.. got an unexpected keyword argument 'lenght'"):
        kudu.schema_builder().add_column("v", "varchar", lenght=10)


def test_a_builder_prints_its_columns_and_its_key():
    """However the key was given."""
    builder = kudu.schema_builder()
    assert repr(builder) == "<kudulite schema builder: no columns; key >"
    builder.add_column("k", kudu.int64, block_size=1 << 20).primary_key().block_size(1 << 20)
    shown = "ColumnSpec('k', type=int64, nullable=False)"
    assert repr(builder) == f"<kudulite schema builder: {shown}; key k>"
    builder.set_primary_keys(["a", "b"])
    assert repr(builder) == f"<kudulite schema builder: {shown}; key a, b>"


def test_storage_is_given_by_name_or_number():
    """An unknown one is a ValueError at once; None is no compression."""
    builder = builder_of(("k", "int64", False), keys=["k"])
    columns = [
        builder.add_column("a", "string", compression="lz4", encoding="prefix"),
        builder.add_column("b", "int64").compression(kudu.COMPRESSION_ZLIB).encoding("BITSHUFFLE"),
        builder.add_column("c", "string").compression(None).encoding(kudu.ENCODING_DICT),
    ]
    found = [(spec.build().compression, spec.build().encoding) for spec in columns]
    assert found == [("lz4", "prefix"), ("gzip", "bitshuffle"), ("none", "dict")]
    for wrong in ("unknown", 9):
        with pytest.raises(ValueError, match=f"Invalid compression type: {wrong}"):
            builder.add_column("x", "string", compression=wrong)
        with pytest.raises(ValueError, match=f"Invalid encoding type: {wrong}"):
            builder.add_column("x", "string", encoding=wrong)
    assert builder.build().names == ["k", "a", "b", "c"]


def test_a_default_needs_the_type_first():
    """It is converted as a cell is."""
    builder = builder_of(("k", "int64", False), keys=["k"])
    with pytest.raises(ValueError, match="set the Column type before"):
        builder.add_column("x").default(1)
    at = builder.add_column("y", "unixtime_micros", default=datetime.datetime(2020, 1, 1)).build()
    assert at.write_default == datetime.datetime(2020, 1, 1, tzinfo=UTC)


def test_a_comment_and_nullability_are_kept():
    """A column without a comment has an empty one."""
    builder = kudu.schema_builder()
    builder.add_column("k", "int64", nullable=False).primary_key().comment("the key")
    builder.add_column("a", "double").nullable(True)
    builder.add_column("b", "double").nullable(False)
    found = [(column.comment, column.nullable, column.mutable) for column in builder.build()]
    assert found == [("the key", False, True), ("", True, True), ("", False, True)]


def test_a_column_of_a_schema_is_copied_into_another(schema):
    """With its name, type and nullability."""
    builder = kudu.schema_builder()
    for column in schema:
        builder.copy_column(column).compression("lz4")
    builder.set_primary_keys(["one", "two"])
    copied = builder.build()
    assert repr(copied) == repr(schema)
    arrays = builder_of(("k", "int8", False), keys=["k"])
    arrays.add_column("v").nested_type(kudu.array_type(kudu.decimal)).precision(5).scale(1)
    again = builder_of(("k", "int8", False), keys=["k"])
    again.copy_column(arrays.build()["v"])
    assert again.build().equals(arrays.build())


def test_array_types_have_descriptors():
    """A descriptor of anything else is a TypeError."""
    descriptor = kudu.array_type(kudu.int64)
    assert descriptor.is_array()
    assert str(descriptor) == "NestedTypeDescriptor(type=array)"
    assert (descriptor.array.element_type, repr(descriptor.array)) == (
        kinds.INT64, "ArrayTypeDescriptor(element_type=int64)",
    )  # fmt: skip
    with pytest.raises(TypeError, match="Expected NestedTypeDescriptor"):
        kudu.schema_builder().add_column("x").nested_type(kudu.int64)
    with pytest.raises(TypeError, match="Expected ArrayTypeDescriptor"):
        kinds.NestedTypeDescriptor(kudu.int64)
    with pytest.raises(ValueError, match="Invalid type: 'text'"):
        kudu.array_type("text")


def array_schema() -> kudu.Schema:
    """A key and an array of each scalar type."""
    builder = builder_of(("id", "int32", False), keys=["id"])
    for kind in SCALARS:
        builder.add_column(f"arr_{kind.name}").nested_type(kudu.array_type(kind))
    builder.add_column("arr_varchar").nested_type(kudu.array_type("varchar")).length(50)
    numbers = builder.add_column("arr_decimal").nested_type(kudu.array_type(kudu.decimal))
    numbers.precision(8).scale(2)
    return builder.build()


def test_a_schema_of_arrays_prints_the_types_of_their_elements():
    """Their columns are nested; parameters are those of the elements."""
    schema = array_schema()
    lines = str(schema).splitlines()
    assert lines[1:4] == [
        "  id                   INT32 NOT NULL",
        "  arr_int8             INT8 1D-ARRAY NULLABLE",
        "  arr_int16            INT16 1D-ARRAY NULLABLE",
    ]
    assert lines[12:15] == [
        "  arr_date             DATE 1D-ARRAY NULLABLE",
        "  arr_varchar          VARCHAR(50) 1D-ARRAY NULLABLE",
        "  arr_decimal          DECIMAL(8, 2) 1D-ARRAY NULLABLE",
    ]
    assert {column.type.name for column in schema} == {"int32", "nested"}
    assert schema["arr_varchar"].type_attributes.length == 50
    assert schema["arr_decimal"].type_attributes.scale == 2
    builder = builder_of(("id", "int32", False), keys=["id"])
    builder.add_column("x").nested_type(kudu.array_type(kudu.varchar))
    with pytest.raises(kudu.KuduInvalidArgument, match="no length provided for VARCHAR column: x"):
        builder.build()
    builder._specs[1] = builder.add_column("x", precision=4).nested_type(kudu.array_type("int8"))
    with pytest.raises(kudu.KuduInvalidArgument, match="precision is not applicable to NESTED"):
        builder.build()


CELLS = [
    ("int8", True, 1),
    ("int32", 7.0, 7),
    ("bool", 1, True),
    ("bool", "x", True),
    ("bool", 0, False),
    ("float", 3, 3.0),
    ("double", Decimal("0.5"), 0.5),
    ("string", b"\xce\x99", "Ι"),
    ("string", "a", "a"),
    ("binary", bytearray(b"ab"), b"ab"),
    ("date", datetime.date(2020, 1, 2), datetime.date(2020, 1, 2)),
    ("unixtime_micros", datetime.datetime(2016, 1, 1), datetime.datetime(2016, 1, 1, tzinfo=UTC)),
    (
        "unixtime_micros",
        "2016-01-01T00:00:00.5",
        datetime.datetime(2016, 1, 1, 0, 0, 0, 500_000, UTC),
    ),
    ("unixtime_micros", ("2016-01-01", "%Y-%m-%d"), datetime.datetime(2016, 1, 1, tzinfo=UTC)),
    (
        "unixtime_micros",
        datetime.datetime(2016, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=-5))),
        datetime.datetime(2016, 1, 1, 5, tzinfo=UTC),
    ),
]


@pytest.mark.parametrize(("kind", "given", "kept"), CELLS)
def test_a_cell_is_taken_as_kudu_python_takes_it(kind, given, kept):
    """Also by number, and as an element of an array."""
    builder = builder_of(("k", "int8", False), ("v", kind), keys=["k"])
    builder.add_column("a").nested_type(kudu.array_type(kind))
    row = builder.build().new_row((1, given))
    assert (row["v"], type(row["v"])) == (kept, type(kept))
    row.set_loc(1, None)
    assert row["v"] is None
    row.set_field("v", given)
    row["a"] = [given, None]
    assert (row[1], row[2]) == (kept, [kept, None])


WRONG_CELLS = [
    ("int32", "x", TypeError, "an integer is required, got str"),
    ("int32", 1.5, TypeError, "an integer is required"),
    ("int8", 128, OverflowError, "value too large to convert to int8_t"),
    ("int64", -(2**63) - 1, OverflowError, "value too large to convert to int64_t"),
    ("double", "1.5", TypeError, "must be real number, not str"),
    ("string", 1, TypeError, "expected bytes, int found"),
    ("binary", "text", TypeError, "must be explicitly encoded"),
    ("binary", 1, TypeError, "expected bytes, int found"),
    ("date", "2020-01-01", TypeError, "a datetime.date is required, got str"),
    ("unixtime_micros", "yesterday", ValueError, "does not match format"),
    ("unixtime_micros", 5, ValueError, "Invalid timestamp type"),
]


@pytest.mark.parametrize(("kind", "given", "error", "text"), WRONG_CELLS)
def test_a_cell_of_a_wrong_type_is_a_type_error(kind, given, error, text):
    """One that is too large an OverflowError; also in an array."""
    builder = builder_of(("k", "int8", False), ("v", kind), keys=["k"])
    builder.add_column("a").nested_type(kudu.array_type(kind))
    row = builder.build().new_row()
    with pytest.raises(error, match=text):
        row["v"] = given
    with pytest.raises(error, match=text):
        row["a"] = [given]
    with pytest.raises(TypeError, match="Array values must be a list or tuple"):
        row["a"] = given if isinstance(given, str) else "x"


def test_a_varchar_is_cut_to_its_length_and_a_decimal_is_exact():
    """Characters are counted, not bytes. A value with too many digits is refused."""
    builder = builder_of(("k", "int8", False), keys=["k"])
    builder.add_column("v", kudu.varchar, length=3)
    builder.add_column("d", kudu.decimal, precision=5, scale=2)
    row = builder.build().new_row({"v": "测试二四", "d": Decimal("1.5")})
    assert (row["v"], row["d"]) == ("测试二", Decimal("1.50"))
    with pytest.raises(TypeError, match="a decimal.Decimal is required, got float"):
        row["d"] = 1.5
    with pytest.raises(kudu.KuduInvalidArgument, match="more than 2 digits after the point"):
        row["d"] = Decimal("1.234")


def test_a_row_of_arrays_takes_values_nulls_and_nothing():
    """An array may be empty, null, or hold null elements."""
    row = array_schema().new_row()
    cells = {
        "arr_int8": [1, 2, None],
        "arr_binary": [b"data", None],
        "arr_unixtime_micros": [datetime.datetime(2020, 1, 1), None],
        "arr_varchar": ["short", None],
        "arr_decimal": [Decimal("1.23"), None],
    }
    for name, value in cells.items():
        row[name] = value
        row[name] = []
        assert row[name] == []
        row[name] = None
        assert row[name] is None
