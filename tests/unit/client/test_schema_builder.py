"""The schema builder takes what kudu-python's takes."""

import pytest

import kudulite as kudu

OPTIONS = [
    ("int32", kudu.int32, {}),
    (kudu.bool, kudu.bool_, {}),
    (kudu.float, kudu.float_, {}),
    (kudu.decimal, kudu.decimal(9, 0), {"precision": 9}),
    ("decimal", kudu.decimal(9, 2), {"precision": 9, "scale": 2}),
    (kudu.varchar, kudu.varchar(5), {"length": 5}),
    (kudu.decimal(9, 2), kudu.decimal(9, 2), {}),
]


def name_of(value: object) -> str:
    """A test's id: a function by its name, not by its address."""
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("given", "expected", "options"), OPTIONS, ids=name_of)
def test_a_type_is_a_name_or_an_object(given, expected, options):
    """With its attributes as arguments or by the spec."""
    builder = kudu.schema_builder()
    builder.add_column("k", "int64", False, primary_key=True)
    builder.add_column("v", given, **options)
    spec = builder.add_column("w").type(given).block_size(1 << 20).mutable()
    for name, value in options.items():
        getattr(spec, name)(value)
    schema = builder.build()
    assert schema["v"].type == schema["w"].type == expected


def test_storage_is_said_by_constants_or_names():
    """In kudu-python's order of arguments, too."""
    builder = kudu.schema_builder()
    builder.add_column("k").type(kudu.int64).nullable(False).primary_key()
    builder.add_column("a", "string", None, kudu.COMPRESSION_LZ4, kudu.ENCODING_PREFIX)
    builder.add_column("b", "int64").compression(kudu.COMPRESSION_ZLIB).encoding("BITSHUFFLE")
    builder.add_column("c", "bool").compression(None).encoding(kudu.ENCODING_RLE).comment("c")
    found = [(c.compression, c.encoding, c.comment) for c in builder.build()]
    assert found == [
        ("default", "auto", ""), ("lz4", "prefix", ""), ("gzip", "bitshuffle", ""),
        ("none", "rle", "c"),
    ]  # fmt: skip


def test_a_column_is_copied_with_all_that_it_has():
    """Into another schema, where it may be refined."""
    builder = kudu.schema_builder()
    builder.add_column("k", "int64", nullable=False, primary_key=True, default=5)
    builder.add_column("v", "string", compression="lz4", comment="text")
    schema = builder.build()
    builder = kudu.schema_builder()
    for column in schema:
        builder.copy_column(column)
    builder.set_primary_keys(["k"])
    assert builder.build().equals(schema)
    builder.copy_column(schema["v"]).encoding("plain")
    with pytest.raises(kudu.KuduInvalidArgument, match="name 'v' is given more than once"):
        builder.build()


WRONG = [
    (lambda b: b.add_column("x", "string", encoding="rle"), "invalid encoding for column 'x'"),
    (lambda b: b.add_column("x", "string", encoding="new"), "invalid encoding for column 'x'"),
    (lambda b: b.add_column("x", "string", compression="new"), "invalid compression"),
    (lambda b: b.add_column("x"), "column 'x' has no type"),
    (lambda b: b.add_column("x", "decimal"), "column 'x': decimal needs a precision"),
    (lambda b: b.add_column("x", "varchar"), "column 'x': varchar needs a length"),
]


@pytest.mark.parametrize(("add", "problem"), WRONG, ids=[problem for _, problem in WRONG])
def test_a_wrong_column_is_refused(add, problem):
    """When the schema is built, as a ValueError that kudu-python's users catch too."""
    builder = kudu.schema_builder()
    builder.add_column("k", "int64").primary_key()
    add(builder)
    with pytest.raises(kudu.KuduInvalidArgument, match=problem) as caught:
        builder.build()
    assert isinstance(caught.value, ValueError)


UNSUPPORTED = [
    (lambda b: b.add_column("x", "int8").rename("y"), "rename and remove_default are for"),
    (lambda b: b.add_column("x", "int8").remove_default(), "rename and remove_default are for"),
    (lambda b: b.add_column("x", "int8", non_unique_primary_key=True), "add a column that makes"),
    (lambda b: b.set_non_unique_primary_keys(["k"]), "primary key k: a key that is not unique"),
    (lambda b: b.add_column("x", "int8").mutable(False), "immutable columns are not supported"),
]


@pytest.mark.parametrize(("use", "problem"), UNSUPPORTED)
def test_what_is_not_supported_says_so(use, problem):
    """With the error that kudu-python has for it."""
    builder = kudu.schema_builder()
    builder.add_column("k", "int64").primary_key()
    with pytest.raises(kudu.KuduNotSupported, match=problem):
        use(builder)
        builder.build()
