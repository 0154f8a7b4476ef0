"""Statistics: what a table holds, and its debt, from metadata alone."""

import pyarrow as pa
import pytest

from tests.support.tables.core_tables import CoreTables, ManualClock, files_below

SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int32())])


def rows(keys, value=0) -> pa.Table:
    """Rows of these keys, all of one value."""
    return pa.table({"k": list(keys), "v": [value] * len(keys)}, SCHEMA)


@pytest.fixture
def table(core: CoreTables):
    """A table of one tablet."""
    return core.client(clock=ManualClock()).create_table("t", SCHEMA, primary_key="k")


def test_an_empty_table_has_no_debt(table):
    """Version 1, and nothing else but its tablets."""
    found = table.statistics
    assert (found.version, found.tablet_count, found.live_row_count) == (1, 1, 0)
    assert (found.rowset_count, found.rowset_height, found.bytes_on_disk) == (0, 0.0, 0)
    assert (found.redo_file_count, found.redo_bytes, found.undo_file_count) == (0, 0, 0)
    assert (found.undo_bytes, found.dead_row_count, found.ancient_bytes) == (0, 0, 0)
    assert found.superseded_bytes == 0


def test_rowsets_over_one_another_raise_the_height(table):
    """Each bulk write of new keys is a rowset; the second lies over the first."""
    table.insert(rows(range(0, 100, 2)))
    assert table.statistics.rowset_height == 1.0
    table.insert(rows(range(1, 100, 2)))
    found = table.statistics
    assert found.rowset_count == 2
    assert 1.9 < found.rowset_height <= 2.0


def test_updates_and_deletes_are_redo(table):
    """Deleted rows are stored as long as the past needs them."""
    table.insert(rows(range(10)))
    table.update(rows(range(5), 1))
    table.delete(rows(range(3)))
    found = table.statistics
    assert (found.redo_file_count, found.dead_row_count, found.live_row_count) == (2, 3, 7)
    redo = [path for path in files_below(table.path) if path.name.startswith("redo-")]
    assert found.redo_bytes == sum(path.stat().st_size for path in redo)
    assert found.bytes_on_disk > found.redo_bytes


def test_history_is_undo_and_what_is_behind_the_mark_of_it(core: CoreTables):
    """A rowset that ended is all history; behind the mark it may be collected."""
    clock = ManualClock()
    table = core.client(clock=clock).create_table("t", SCHEMA, primary_key="k")
    table.insert(rows(range(10)))
    size = table.statistics.bytes_on_disk
    table.truncate()
    found = table.statistics
    assert (found.rowset_count, found.dead_row_count, found.ancient_bytes) == (0, 10, 0)
    clock.microseconds += 30 * 24 * 3600 * 1_000_000
    table.insert(rows([1]))
    clock.microseconds += 30 * 24 * 3600 * 1_000_000
    table.insert(rows([2]))
    assert table.statistics.ancient_bytes == size
    assert table.statistics.ancient_history_mark < table.current_timestamp()


def test_rows_that_were_flushed_have_undo(core: CoreTables):
    """The rows of one flush were inserted at several moments."""
    table = core.client(small_write_rows_max=100).create_table("t", SCHEMA, primary_key="k")
    for key in range(3):
        table.upsert(rows([key]))
    table.flush()
    found = table.statistics
    undo = [path for path in files_below(table.path) if path.name.startswith("undo-")]
    assert found.undo_file_count == len(undo) == 1
    assert found.undo_bytes == undo[0].stat().st_size


def test_what_no_newest_version_needs_is_superseded(core: CoreTables):
    """Superseded superblocks and log segments; after a collection without grace nothing is."""
    table = core.client(small_write_rows_max=100).create_table("t", SCHEMA, primary_key="k")
    table.upsert(rows([1]))
    assert table.statistics.superseded_bytes == 0
    old = [p for p in files_below(table.path) if "superblock" in p.name or p.suffix == ".log"]
    table.flush()
    expected = sum(path.stat().st_size for path in old)
    assert table.statistics.superseded_bytes == expected > 0
    table.maintain(0, 0)
    assert table.statistics.superseded_bytes == 0
