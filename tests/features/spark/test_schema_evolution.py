"""schemaEvolution: what a table lacks for a DataFrame, and that it gets it once."""

import threading

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

import kudulite
from kudulite import ColumnType, varchar
from kudulite.errors import SchemaError
from kudulite_spark.options import WriteOptions
from kudulite_spark.types import CHAR_VARCHAR_KEY
from kudulite_spark.write_plan import columns_to_store, plan_write


@pytest.fixture
def path(tmp_path) -> str:
    """A table (k int32 | n int32, f float, s varchar(5))."""
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("n", kudulite.int32),
        kudulite.column("f", kudulite.float_),
        kudulite.column("s", varchar(5)),
    ]
    kudulite.connect(tmp_path).create_table("t", kudulite.schema(columns, "k"))
    return str(tmp_path / "t")


def struct(**types) -> StructType:
    """A struct of the given columns, all nullable."""
    return StructType([StructField(name, kind) for name, kind in types.items()])


def evolved(path: str, *fields: StructField) -> kudulite.Table:
    """The table, after it has got what it lacks for some fields."""
    table = kudulite.open_table(path)
    table.extend_schema(columns_to_store(table.schema, path, fields))
    return table


def types_of(table: kudulite.Table) -> dict[str, str]:
    """The types of the columns."""
    return {column.name: str(column.type) for column in table.schema}


def test_missing_columns_and_wider_types_are_what_is_needed(path):
    """Never in the key; a STRING without a length widens no varchar; narrower types do nothing."""
    fields = struct(K=LongType(), N=LongType(), f=DoubleType(), s=StringType(), x=LongType())
    table = evolved(path, *fields)
    expected = {"k": "int32", "n": "int64", "f": "double", "s": "varchar(5)", "x": "int64"}
    assert types_of(table) == expected
    noted = StructField("s", StringType(), metadata={CHAR_VARCHAR_KEY: "varchar(9)"})
    assert types_of(evolved(path, noted)) == {**expected, "s": "varchar(9)"}
    version = table.version
    assert evolved(path, StructField("s", VarcharType(3))).version == version


def test_an_added_column_is_nullable_and_keeps_its_comment(path):
    """Also where the DataFrame says NOT NULL: rows that are there have no value."""
    field = StructField("x", LongType(), nullable=False, metadata={"comment": "how many"})
    column = evolved(path, field).schema.column("x")
    assert (column.type, column.nullable, column.comment) == (ColumnType("int64"), True, "how many")
    version = kudulite.open_table(path).version
    assert evolved(path, field).version == version


def test_a_type_that_no_column_has_is_refused_by_name(path):
    """Nothing is altered then."""
    fields = struct(k=LongType(), x=LongType(), m=MapType(StringType(), StringType()))
    with pytest.raises(SchemaError, match="schemaEvolution cannot add column 'm'.*map"):
        plan_write(WriteOptions(path, schema_evolution=True), fields, overwrite=False)
    assert kudulite.open_table(path).schema.names == ["k", "n", "f", "s"]


def test_the_column_of_operations_is_not_added(path):
    """It is no data; the column of the order is."""
    options = WriteOptions(
        path, schema_evolution=True, operation_column="OP", ordering_column="seq"
    )
    fields = struct(k=LongType(), op=StringType(), seq=LongType(), x=StringType())
    plan_write(options, fields, overwrite=False).bulk_write.abort()
    assert kudulite.open_table(path).schema.names == ["k", "n", "f", "s", "seq", "x"]


def test_many_writes_evolve_a_table_at_once(path):
    """Each column is there once; no write that was planned is lost."""
    failures = []
    start = threading.Barrier(4)

    def write(number: int) -> None:
        fields = struct(k=LongType(), x=LongType(), **{f"own{number}": LongType()})
        try:
            start.wait()
            options = WriteOptions(path, schema_evolution=True)
            planned = plan_write(options, fields, overwrite=False)
            rows = {"k": [number], "x": [number], f"own{number}": [7]}
            start.wait()
            bulk = planned.bulk_write
            bulk.commit([bulk.stage([pa.table(rows)])])
        except Exception as error:  # handed to the test
            failures.append(error)
            start.abort()
            raise

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    table = kudulite.open_table(path)
    assert sorted(table.schema.names[4:]) == ["own0", "own1", "own2", "own3", "x"]
    found = table.scan(columns=["k", "x", "own2"]).to_arrow().sort_by("k").to_pydict()
    assert found == {"k": [0, 1, 2, 3], "x": [0, 1, 2, 3], "own2": [None, None, 7, None]}
