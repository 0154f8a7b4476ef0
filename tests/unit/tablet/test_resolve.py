"""Resolving a write: cases of mixed batches that random runs have found."""

import pyarrow as pa
import pytest

import kudulite
from kudulite.errors import RowError
from tests.support.tables.core_tables import CoreTables, stored


@pytest.fixture
def table(core: CoreTables) -> kudulite.Table:
    """Key k; a is nullable, d has a default, r is required."""
    builder = kudulite.schema_builder()
    builder.add_column("k", kudulite.int32, nullable=False)
    builder.add_column("a", kudulite.int32)
    builder.add_column("d", kudulite.int32, default=7)
    builder.add_column("r", kudulite.int32, nullable=False)
    builder.set_primary_keys(["k"])
    table = core.client().create_table("t", builder.build())
    table.insert([{"k": k, "a": k, "d": k, "r": k} for k in range(4)])
    return table


def test_replaced_rows_beside_changed_ones_take_defaults(table):
    """Delete and insert of one key in a batch sets columns that the batch does not provide."""
    table.apply(
        [
            {"op": "delete", "k": 1, "r": 0},
            {"op": "insert", "k": 1, "r": 10},
            {"op": "update", "k": 2, "r": 20},
        ]
    )
    assert stored(table) == [(0, 0, 0, 0), (1, None, 7, 10), (2, 2, 2, 20), (3, 3, 3, 3)]


def test_a_row_deleted_at_last_needs_no_required_value(table):
    """Delete, insert, delete leaves nothing that could lack a value."""
    rows = [{"op": "delete", "k": 1}, {"op": "insert", "k": 1}, {"op": "delete", "k": 1}]
    assert table.apply(rows).deleted == 2
    assert [row[0] for row in stored(table)] == [0, 2, 3]


def test_a_replaced_row_needs_its_required_value(table):
    """Delete and insert without the value of a NOT NULL column is refused like an insert."""
    with pytest.raises(RowError, match=r"'t'.*'r'.*no value provided.*k\) = 1"):
        table.apply([{"op": "delete", "k": 1}, {"op": "insert", "k": 1}])


@pytest.mark.parametrize("operation", ["upsert", "upsert_ignore"])
def test_a_key_only_upsert_of_a_present_row_leaves_no_trace(table, operation):
    """It counts as an update, but publishes no version."""
    version = table.version
    result = getattr(table, operation)(pa.table({"k": pa.array([1, 2], pa.int32())}))
    assert (result.updated, table.version, len(stored(table))) == (2, version, 4)


def test_all_null_rows_under_ignore_null_leave_no_trace(table):
    """Null leaves each cell alone, so nothing is written."""
    version = table.version
    rows = pa.table({"k": pa.array([1], pa.int32()), "a": pa.array([None], pa.int32())})
    assert table.update(rows, ignore_null=True).updated == 1
    assert table.version == version
