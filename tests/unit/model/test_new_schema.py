"""Schemas that are described column by column, or taken from Arrow."""

import pyarrow as pa
import pytest

import kudulite
from kudulite.errors import SchemaError

TYPES = [
    ("int32", kudulite.int32),
    ("bool", kudulite.bool_),
    ("decimal(9, 2)", kudulite.decimal(9, 2)),
    ("VARCHAR(5)", kudulite.varchar(5)),
    ("array(int8)", kudulite.array("int8")),
    (kudulite.float_, kudulite.float_),
]


@pytest.mark.parametrize(("given", "expected"), TYPES, ids=str)
def test_a_type_is_an_object_or_its_name(given, expected):
    """In any case of letters."""
    schema = kudulite.schema([kudulite.column("k", "int64"), kudulite.column("v", given)], "k")
    assert schema["v"].type == expected


def test_a_column_has_what_it_was_given():
    """And is nullable and mutable, without a default, if nothing is said."""
    column = kudulite.column("a", "int64")
    assert (column.nullable, column.mutable, column.write_default) == (True, True, None)
    assert (column.compression, column.encoding, column.comment) == ("default", "auto", "")
    column = kudulite.column(
        "b", "int64", nullable=False, default=7, encoding="BIT_SHUFFLE", compression="zlib",
        comment="c", mutable=False,
    )  # fmt: skip
    assert (column.nullable, column.mutable, column.write_default) == (False, False, 7)
    assert (column.read_default, column.comment) == (7, "c")
    assert (column.compression, column.encoding) == ("gzip", "bitshuffle")


def test_key_columns_are_not_null():
    """Whether or not it is said; the columns that were given stay as they are."""
    columns = [kudulite.column(name, "int64") for name in ("a", "b", "v")]
    schema = kudulite.schema(columns, ["a", "b"])
    found = [(column.name, column.nullable, column.id) for column in schema]
    assert found == [("a", False, 0), ("b", False, 1), ("v", True, 2)]
    assert schema.key_names == ["a", "b"]
    assert kudulite.schema(columns, "a").key_names == ["a"]
    arrow = pa.schema([(name, pa.int64()) for name in ("a", "b", "v")])
    assert kudulite.schema_from_arrow(arrow, ["a", "b"]).equals(schema)
    assert all(column.nullable for column in columns)


def test_a_schema_of_a_tables_columns_is_that_of_the_table():
    """Columns of one schema may be taken into another, with all that they have."""
    columns = [
        kudulite.column("k", "int64", default=5),
        kudulite.column("v", "string", compression="lz4", comment="text", mutable=False),
    ]
    schema = kudulite.schema(columns, "k")
    assert kudulite.schema(list(schema), "k").equals(schema)


WRONG = [
    (("x", "string", {"encoding": "rle"}), "invalid encoding for column 'x'"),
    (("x", "string", {"encoding": "new"}), "invalid encoding for column 'x'"),
    (("x", "string", {"compression": "new"}), "invalid compression"),
    (("x", None, {}), "column 'x': the type is None, expected a kudulite.ColumnType or its name"),
    (("x", kudulite.decimal, {}), "column 'x': the type is <function decimal .*'decimal.9, 2.'"),
    (("x", "decimal", {}), "column 'x': .*decimal"),
    (("x", "varchar(0)", {}), "column 'x': varchar length 0 is not within 1..65535"),
    (("x", "nothing", {}), "column 'x': .*nothing"),
    (("x", "int8", {"default": 300}), "column 'x'.*300"),
]


@pytest.mark.parametrize(("given", "problem"), WRONG, ids=[problem for _, problem in WRONG])
def test_a_wrong_column_is_refused(given, problem):
    """When it is made, by its name."""
    name, column_type, options = given
    with pytest.raises(SchemaError, match=problem):
        kudulite.column(name, column_type, **options)


WRONG_KEYS = [
    ([], "a table needs a primary key of at least one of its columns"),
    (["a", "a"], "primary key column 'a' is given more than once"),
    ("z", "primary key column 'z' is not in the schema; columns: .*a, .*b"),
    (["a", "d"], "column 'd': double may not be part of a primary key"),
    ("b", r"primary key \(b\): its columns must be the first of the schema, .* begins with a:"),
    (["b", "a"], r"primary key \(b, a\): its columns must be the first .* begins with a, b:"),
]


@pytest.mark.parametrize("is_unique", [True, False], ids=["unique", "repeated"])
@pytest.mark.parametrize(("key", "problem"), WRONG_KEYS, ids=[p for _, p in WRONG_KEYS])
def test_a_key_that_cannot_be_is_refused(key, problem, is_unique):
    """Whether or not several rows may have it."""
    kinds = {"a": "int64", "d" if "d" in key else "b": "double" if "d" in key else "int8"}
    columns = [kudulite.column(name, kind) for name, kind in kinds.items()]
    with pytest.raises(SchemaError, match=problem):
        kudulite.schema(columns, key, is_unique=is_unique)


@pytest.mark.parametrize("given", ["v", ("v", "int8"), pa.field("v", pa.int8())], ids=str)
def test_anything_but_a_column_is_refused(given):
    """With how one is made."""
    with pytest.raises(SchemaError, match=r"is no column of a schema; .*kudulite\.column\('id', "):
        kudulite.schema([kudulite.column("k", "int8"), given], "k")


def test_a_name_is_given_once():
    """Also if the columns are alike."""
    with pytest.raises(SchemaError, match="name 'v' is given more than once"):
        kudulite.schema([kudulite.column(name, "int8") for name in ("k", "v", "v")], "k")


def test_a_schema_from_arrow_makes_the_key_not_null():
    """Key first, not null; other fields keep their nullability."""
    arrow = pa.schema([pa.field("v", pa.float64(), nullable=False), ("w", pa.utf8()),
                       ("b", pa.int8()), ("a", pa.timestamp("ms", "UTC"))])  # fmt: skip
    schema = kudulite.schema_from_arrow(arrow, ["a", "b"])
    assert [(c.name, str(c.type), c.nullable) for c in schema.columns] == [
        ("a", "unixtime_micros", False), ("b", "int8", False), ("v", "double", False),
        ("w", "string", True),
    ]  # fmt: skip
    with pytest.raises(SchemaError, match="table 'tab', column 'u'.*uint8"):
        kudulite.schema_from_arrow(pa.schema([("u", pa.uint8())]), ["u"], "tab")
