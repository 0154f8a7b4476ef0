"""Fitting staged parts to a newer version: what a serial run in commit order would give."""

import pyarrow as pa
import pytest

import kudulite
from kudulite.errors import RowError
from tests.support.tables.core_tables import CoreTables, stored


@pytest.fixture
def table(core: CoreTables) -> kudulite.Table:
    """Key k, a nullable column, and one with a default."""
    builder = kudulite.schema_builder()
    builder.add_column("k", kudulite.int32, nullable=False)
    builder.add_column("a", kudulite.int32)
    builder.add_column("d", kudulite.int32, default=7)
    builder.set_primary_keys(["k"])
    table = core.client().create_table("t", builder.build())
    table.insert(rows([(1, 10, 10), (2, 20, 20)]))
    return table


def rows(found, names=("k", "a", "d")) -> pa.Table:
    """Rows as Arrow."""
    columns = zip(*found, strict=True)
    return pa.table({n: pa.array(c, pa.int32()) for n, c in zip(names, columns, strict=True)})


def test_a_null_under_ignore_null_does_not_bring_the_default_to_a_row_inserted_meanwhile(table):
    """The staged insert held the default; the row that is there now keeps its own value."""
    write = table.new_bulk_write("upsert", columns=["k", "d"], ignore_null=True)
    staged = write.stage([rows([(5, None)], ("k", "d"))])
    table.insert(rows([(5, 50, 51)]))
    write.commit([staged])
    assert stored(table)[-1] == (5, 50, 51)


def test_a_null_under_ignore_null_does_not_bring_the_default_over_an_earlier_task(table):
    """Two tasks insert the key; the later one leaves the cell alone."""
    write = table.new_bulk_write("upsert", columns=["k", "a", "d"], ignore_null=True)
    parts = [
        write.stage([rows([(5, 50, 51)])], 0),
        write.stage([rows([(5, 52, None)])], 1),
    ]
    result = write.commit(parts)
    assert stored(table)[-1] == (5, 52, 51)
    assert (result.inserted, result.updated) == (1, 1)


def test_a_key_only_upsert_inserts_a_row_that_was_deleted_meanwhile(table):
    """Upsert promises that the key is there when it is done."""
    write = table.new_bulk_write("upsert", columns=["k"])
    staged = write.stage([rows([(1,), (2,)], ("k",))])
    table.delete(rows([(1,)], ("k",)))
    result = write.commit([staged])
    assert stored(table) == [(1, None, 7), (2, 20, 20)]
    assert (result.inserted, result.updated) == (1, 1)


def test_an_all_null_upsert_inserts_a_row_that_was_deleted_meanwhile(table):
    """As above, for rows that set nothing because null leaves a cell alone."""
    write = table.new_bulk_write("upsert", columns=["k", "a"], ignore_null=True)
    staged = write.stage([rows([(1, None), (2, 21)], ("k", "a"))])
    table.delete(rows([(1,)], ("k",)))
    write.commit([staged])
    assert stored(table) == [(1, None, 7), (2, 21, 20)]


def test_an_all_null_update_of_a_row_that_was_deleted_meanwhile_is_refused(table):
    """Update of an absent key is a row error, whatever it would have set."""
    write = table.new_bulk_write("update", columns=["k", "a"], ignore_null=True)
    staged = write.stage([rows([(1, None)], ("k", "a"))])
    table.delete(rows([(1,)], ("k",)))
    with pytest.raises(RowError, match="not found"):
        write.commit([staged])
    write.abort()
