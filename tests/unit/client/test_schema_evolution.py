"""A write with schema_evolution adds columns and widens types, and leaves all others."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import kudulite
from kudulite.errors import ColumnNotFoundError, OptionError, RowError, SchemaError


@pytest.fixture
def table(core) -> kudulite.Table:
    """A table (k int32 | n int32, f float, d decimal(5, 2), s varchar(5)) with a row."""
    columns = [
        kudulite.column("k", "int32"),
        kudulite.column("n", "int32"),
        kudulite.column("f", "float"),
        kudulite.column("d", "decimal(5, 2)"),
        kudulite.column("s", "varchar(5)"),
    ]
    made = core.client().create_table("t", kudulite.schema(columns, "k"))
    made.insert([{"k": 1, "n": 1}])
    return made


def types_of(table: kudulite.Table) -> dict[str, str]:
    return {column.name: str(column.type) for column in table.schema}


OLD = {"k": "int32", "n": "int32", "f": "float", "d": "decimal(5, 2)", "s": "varchar(5)"}


def test_columns_are_added_and_types_widened_before_the_rows_are_written(table):
    rows = pa.table(
        {
            "k": pa.array([2], pa.int32()),
            "n": pa.array([2**40]),
            "f": [0.1],
            "d": pa.array([None], pa.decimal128(9, 2)),
            "s": ["abc"],
            "new": ["x"],
        }
    )
    result = table.upsert(rows, schema_evolution=True)
    assert result.inserted == 1
    assert types_of(table) == {
        "k": "int32", "n": "int64", "f": "double", "d": "decimal(9, 2)", "s": "varchar(5)",
        "new": "string",
    }  # fmt: skip
    assert table.get(2) == {"k": 2, "n": 2**40, "f": 0.1, "d": None, "s": "abc", "new": "x"}
    assert table.get(1) == {"k": 1, "n": 1, "f": None, "d": None, "s": None, "new": None}


def test_rows_of_python_add_columns_and_widen_none(table):
    """Their numbers are as long as they happen to be."""
    table.upsert([{"k": 1, "a": 1}, {"k": 2, "b": "x"}], schema_evolution=True)
    assert types_of(table) == {**OLD, "a": "int64", "b": "string"}
    assert [table.get(k)["a"] for k in (1, 2)] == [1, None]
    table.upsert({"k": [3], "n": [5]}, schema_evolution=True)
    assert types_of(table) == {**OLD, "a": "int64", "b": "string"}
    with pytest.raises(SchemaError, match="column 'n'"):
        table.upsert([{"k": 1, "n": 2**40}], schema_evolution=True)


@pytest.mark.parametrize("method", ["insert", "upsert", "update", "insert_ignore", "overwrite"])
def test_every_write_of_rows_has_the_option(table, method):
    row = [{"k": 1 if method == "update" else 7, "new": 1.5}]
    getattr(table, method)(row, schema_evolution=True)
    assert types_of(table) == {**OLD, "new": "double"}


def test_a_column_of_operations_is_not_added(table):
    rows = [{"k": 1, "new": 3, "what": "U"}]
    table.apply(rows, operation_column="what", schema_evolution=True)
    assert types_of(table) == {**OLD, "new": "int64"}
    assert table.get(1)["new"] == 3


def test_nothing_is_altered_where_nothing_is_missing(table):
    table.upsert([{"k": 1, "n": 2}], schema_evolution=True)
    assert table.versions()[0].operation == "upsert" and types_of(table) == OLD
    version = table.version
    table.extend_schema([kudulite.column("n", "int16"), kudulite.column("k", "int64")])
    assert table.version == version and types_of(table) == OLD


def test_extend_schema_takes_an_arrow_schema(table):
    table.extend_schema(pa.schema([("n", pa.int64()), ("new", pa.list_(pa.string()))]))
    assert types_of(table) == {**OLD, "n": "int64", "new": "array(string)"}
    commented = kudulite.column("noted", "string", comment="why", nullable=False)
    table.extend_schema([commented])
    column = table.schema.column("noted")
    assert (column.nullable, column.comment) == (True, "why")


def test_the_columns_stay_where_the_write_fails(table):
    """Another write may use them already."""
    with pytest.raises(RowError):
        table.insert([{"k": 1, "new": 1}], schema_evolution=True)
    assert types_of(table) == {**OLD, "new": "int64"}
    assert table.get(1)["new"] is None


def test_what_cannot_be_added_is_refused_and_nothing_is_written(table):
    for value, message in ((None, "no value shows the type"), ({"x": 1}, 'nested="json"')):
        with pytest.raises(SchemaError, match=f"cannot add column 'new': .*{message}"):
            table.upsert([{"k": 9, "new": value}], schema_evolution=True)
    with pytest.raises(OptionError, match="a delete sets none"):
        table.delete([{"k": 1, "new": 1}], schema_evolution=True)
    with pytest.raises(OptionError, match="schema_evolution is True or False, not 'yes'"):
        table.upsert([{"k": 1}], schema_evolution="yes")
    with pytest.raises(OptionError, match="schema_evolution=True adds the columns"):
        table.upsert([{"k": 1}], mergeSchema=True)
    with pytest.raises(ColumnNotFoundError):
        table.upsert([{"k": 1, "new": 1}])
    assert types_of(table) == OLD and len(table) == 1


def test_writers_at_once_add_a_column_once(table):
    start = threading.Barrier(4)

    def write(number: int) -> int:
        start.wait()
        row = {"k": 10 + number, "shared": number, f"own{number}": "x"}
        return table.upsert([row], schema_evolution=True).inserted

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(write, range(4))) == [1, 1, 1, 1]
    assert sorted(types_of(table))[-1] == "shared" and len(types_of(table)) == len(OLD) + 5
    assert {table.get(10 + n)["shared"] for n in range(4)} == {0, 1, 2, 3}
