"""Row operations: made from records or filled column by column, checked as a whole when applied."""

import datetime

import pyarrow as pa
import pytest

from kudulite.errors import ColumnNotFoundError, SchemaError, UsageError
from kudulite.model.new_schema import schema_from_arrow
from kudulite.tablet.operation import OPERATION_NAMES, Operation
from tests.support.doubles.memory_table import SCHEMA, MemoryTable

WIDER = schema_from_arrow(
    pa.schema([("k", pa.int32()), ("v", pa.int64()), ("s", pa.string()), ("w", pa.int8())]), ["k"]
)


@pytest.mark.parametrize("name", OPERATION_NAMES)
def test_a_table_makes_all_eight_operations(name):
    """From a record, or empty to be filled by name and index."""
    table = MemoryTable()
    new = getattr(table, f"new_{name}")
    operation = new({"k": 1, "v": 2})
    assert operation.operation is Operation[name.upper()]
    assert operation.values == {"k": 1, "v": 2}
    assert operation.key == (1,)
    filled = new()
    filled["k"] = 1
    filled[1] = 2
    assert filled.values == operation.values
    assert not filled.is_applied


def test_an_operation_reads_as_kudu_shows_it():
    """Type, name and value of the columns that are set, in the table's order."""
    table = MemoryTable()
    assert str(table.new_insert({"k": 1})) == "INSERT int32 k=1"
    operation = table.new_upsert_ignore({"s": "x", "v": None, "k": 1})
    assert str(operation) == 'UPSERT_IGNORE int32 k=1, int64 v=NULL, string s="x"'
    assert repr(operation) == f"<{operation} of table 't'>"
    times = schema_from_arrow(pa.schema([("t", pa.timestamp("us", "UTC"))]), ["t"])
    moment = datetime.datetime(2026, 11, 21, 10, tzinfo=datetime.UTC)
    operation = MemoryTable(schema=times).new_delete([moment])
    assert str(operation) == "DELETE unixtime_micros t=2026-11-21T10:00:00+00:00"


def test_a_wrong_value_leaves_the_operation_as_it_was():
    """The error comes when the value is set, not when the row is written."""
    operation = MemoryTable().new_insert({"k": 1, "v": 2})
    for column, value in (("v", "x"), ("k", None), ("w", 1), (3, 1), (-1, 1)):
        with pytest.raises(SchemaError):
            operation[column] = value
    assert operation.values == {"k": 1, "v": 2}


def test_a_whole_key_is_needed():
    """The message shows the operation and the key."""
    table = MemoryTable()
    for operation in (table.new_insert(), table.new_delete({"v": 1})):
        with pytest.raises(SchemaError, match=r"Key not specified: .*; the primary key is \(k\)"):
            operation.complete()


def test_an_update_must_change_something():
    """Key columns alone are no update; for an upsert they are enough."""
    table = MemoryTable()
    for operation in (table.new_update({"k": 1}), table.new_update_ignore({"k": 1})):
        with pytest.raises(SchemaError, match="No fields updated: UPDATE"):
            operation.complete()
    assert table.new_upsert({"k": 1}).complete() > 0


def test_a_delete_is_of_the_key_alone():
    """Other columns are ignored, as in a batch, but they must be columns."""
    table = MemoryTable()
    operation = table.new_delete({"v": 2, "k": 1})
    operation.complete()
    assert operation.values == {"k": 1}
    with pytest.raises(ColumnNotFoundError):
        table.new_delete({"k": 1, "w": 2})


def test_a_column_that_was_added_meanwhile_is_found():
    """The schema is read again only when a column is unknown."""
    table = MemoryTable()
    first = table.new_insert({"k": 1})
    table.rows.schema = WIDER
    assert table.new_insert({"k": 1, "w": 3}).values == {"k": 1, "w": 3}
    first["w"] = 4
    assert first.values == {"k": 1, "w": 4}
    second = table.new_insert({"k": 2})
    table.rows.schema = SCHEMA
    second["v"] = 1
    with pytest.raises(ColumnNotFoundError, match="columns: k, v, s$"):
        second["x"] = 1


def test_an_applied_operation_is_fixed():
    """The session may be writing it."""
    operation = MemoryTable().new_insert({"k": 1})
    operation.is_applied = True
    with pytest.raises(UsageError, match="INSERT int32 k=1: it was applied already"):
        operation["v"] = 1
