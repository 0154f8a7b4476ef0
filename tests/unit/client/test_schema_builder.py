"""The schema builder takes what kudu-python's takes."""

import pytest

import kudulite
import kudulite.kudu as kudu_python

OPTIONS = [
    ("int32", kudulite.int32, {}),
    ("bool", kudulite.bool_, {}),
    (kudulite.float_, kudulite.float_, {}),
    (kudulite.decimal, kudulite.decimal(9, 0), {"precision": 9}),
    ("decimal", kudulite.decimal(9, 2), {"precision": 9, "scale": 2}),
    (kudulite.varchar, kudulite.varchar(5), {"length": 5}),
    (kudulite.decimal(9, 2), kudulite.decimal(9, 2), {}),
]


def name_of(value: object) -> str:
    """A test's id: a function by its name, not by its address."""
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("given", "expected", "options"), OPTIONS, ids=name_of)
def test_a_type_is_a_name_or_an_object(given, expected, options):
    """With its attributes as arguments or by the spec."""
    builder = kudulite.schema_builder()
    builder.add_column("k", "int64", False, primary_key=True)
    builder.add_column("v", given, **options)
    spec = builder.add_column("w").type(given).block_size(1 << 20).mutable()
    for name, value in options.items():
        getattr(spec, name)(value)
    schema = builder.build()
    assert schema["v"].type == schema["w"].type == expected


@pytest.mark.parametrize("module", [kudulite, kudu_python], ids=lambda module: module.__name__)
def test_an_unknown_argument_of_a_column_is_refused(module):
    """As by any function, although parameters of types are passed on together."""
    with pytest.raises(TypeError, match="add_column.. got an unexpected keyword argument 'lenght'"):
        module.schema_builder().add_column("v", "varchar", lenght=10)


def test_storage_is_said_by_names():
    """In kudu-python's order of arguments, too."""
    builder = kudulite.schema_builder()
    builder.add_column("k").type(kudulite.int64).nullable(False).primary_key()
    builder.add_column("a", "string", None, "lz4", "prefix")
    builder.add_column("b", "int64").compression("zlib").encoding("BITSHUFFLE")
    builder.add_column("c", "bool").compression(None).encoding("rle").comment("c")
    found = [(c.compression, c.encoding, c.comment) for c in builder.build()]
    assert found == [
        ("default", "auto", ""), ("lz4", "prefix", ""), ("gzip", "bitshuffle", ""),
        ("none", "rle", "c"),
    ]  # fmt: skip


def test_a_column_is_copied_with_all_that_it_has():
    """Into another schema, where it may be refined."""
    builder = kudulite.schema_builder()
    builder.add_column("k", "int64", nullable=False, primary_key=True, default=5)
    builder.add_column("v", "string", compression="lz4", comment="text")
    schema = builder.build()
    builder = kudulite.schema_builder()
    for column in schema:
        builder.copy_column(column)
    builder.set_primary_keys(["k"])
    assert builder.build().equals(schema)
    builder.copy_column(schema["v"]).encoding("plain")
    with pytest.raises(kudulite.KuduInvalidArgument, match="name 'v' is given more than once"):
        builder.build()


WRONG = [
    (lambda b: b.add_column("x", "string", encoding="rle"), "invalid encoding for column 'x'"),
    (lambda b: b.add_column("x", "string", encoding="new"), "invalid encoding for column 'x'"),
    (lambda b: b.add_column("x", "string", compression="new"), "invalid compression"),
    (lambda b: b.add_column("x"), "column 'x' has no type"),
    (lambda b: b.add_column("x", "decimal"), "column 'x': decimal needs a precision"),
    (lambda b: b.add_column("x", "varchar"), "column 'x': varchar needs a length"),
    (lambda b: b.add_column("x", "int32").precision(9), "precision 9: int32 has no precision"),
    (lambda b: b.add_column("x", "varchar(3)", scale=2), "scale 2: varchar.3. has no scale"),
    (lambda b: b.add_column("x", "decimal", precision=4, length=2), "length 2: decimal.4, 0. has"),
    (lambda b: b.add_column("x", "varchar", length=0), "varchar length 0 is not within 1..65535"),
    (lambda b: b.add_column("x", kudulite.decimal(4, 1)).scale(2), "scale 2: the type dec"),
    (lambda b: b.add_column("x", kudulite.array("int8"), length=3), "length 3: array.int8. has"),
]


@pytest.mark.parametrize(("add", "problem"), WRONG, ids=[problem for _, problem in WRONG])
def test_a_wrong_column_is_refused(add, problem):
    """When the schema is built, as a ValueError that kudu-python's users catch too."""
    builder = kudulite.schema_builder()
    builder.add_column("k", "int64").primary_key()
    add(builder)
    with pytest.raises(kudulite.KuduInvalidArgument, match=problem) as caught:
        builder.build()
    assert isinstance(caught.value, ValueError)


WRONG_KEYS = [
    (lambda b: b.set_primary_keys(["b", "a"]), "must be the first of the schema, .* with a, b"),
    (lambda b: b.set_primary_keys(["b"]), r"primary key \(b\): its columns must be the first"),
    (lambda b: b.set_primary_keys(["a", "a"]), "primary key column 'a' is given more than once"),
    (lambda b: b.set_primary_keys(["z"]), "primary key column 'z' is not in the schema"),
    (lambda b: b.add_column("k", "int8").primary_key(), r"primary key \(k\): its columns must be"),
    (lambda b: b.spec.primary_key() and b.set_primary_keys(["a"]), "key is given twice: by"),
    (lambda b: b.spec.primary_key() and b.add_column("k", "int8", primary_key=True),
     r"primary_key\(\) of the columns a, k: it makes one .* set_primary_keys\(\['a', 'k'\]\)"),
]  # fmt: skip


@pytest.mark.parametrize(("give", "problem"), WRONG_KEYS, ids=[p for _, p in WRONG_KEYS])
def test_a_key_that_is_not_clear_is_refused(give, problem):
    """A key given twice, and one whose order would change what the values of a tuple mean."""
    builder = kudulite.schema_builder()
    builder.spec = builder.add_column("a", "int64", nullable=False)
    builder.add_column("b", "string", nullable=False)
    give(builder)
    with pytest.raises(kudulite.KuduInvalidArgument, match=problem):
        builder.build()


def test_a_parameter_that_repeats_the_type_is_no_contradiction():
    """The same number may be given in the type and beside it."""
    builder = kudulite.schema_builder()
    builder.add_column("k", kudulite.decimal(9, 2), precision=9, scale=2, primary_key=True)
    builder.add_column("v", "varchar(7)").length(7)
    assert [str(column.type) for column in builder.build()] == ["decimal(9, 2)", "varchar(7)"]


UNSUPPORTED = [
    (lambda b: b.add_column("x", "int8").rename("y"), "rename and remove_default are for"),
    (lambda b: b.add_column("x", "int8").remove_default(), "rename and remove_default are for"),
]


@pytest.mark.parametrize(("use", "problem"), UNSUPPORTED)
def test_what_is_not_supported_says_so(use, problem):
    """With the error that kudu-python has for it."""
    builder = kudulite.schema_builder()
    builder.add_column("k", "int64").primary_key()
    with pytest.raises(kudulite.KuduNotSupported, match=problem):
        use(builder)
        builder.build()
