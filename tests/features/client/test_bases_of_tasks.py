"""Tasks of one write that are staged on different versions, because rows came to the log between.

A write of few rows leaves the log alone. A task of many flushes it first if its rows may be judged
by those of the log.
"""

import pickle
from typing import Any

import pyarrow as pa
import pytest

from kudulite.client.bulk_write import BulkWrite
from kudulite.client.table import Table
from kudulite.errors import ConflictError, RowError
from tests.support.tables.core_tables import CoreTables

LIMIT = 20
SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int32()), ("w", pa.int32())])
NAMES = ["k", "v"]
OLD, NEW, LOG, LAST = -1, -2, -3, -4


def table_of(core: CoreTables, *keys: int) -> Table:
    """Two tablets of rows in files; up to LIMIT rows take the log from then on."""
    client = core.client("small", small_write_rows_max=LIMIT)
    table = client.create_table("t", SCHEMA, primary_key="k", hash_partitions=[(["k"], 2)])
    table.upsert(rows_of(*keys, v=OLD))
    table.flush()
    return table


def rows_of(*keys: int, v: int = NEW) -> pa.Table:
    rows = {"k": pa.array(keys, pa.int32()), "v": pa.array([v] * len(keys), pa.int32())}
    return pa.table(rows)


def content(table: Table) -> dict[int, int]:
    found = table.scan(columns=NAMES).to_arrow().to_pydict()
    return dict(zip(found["k"], found["v"], strict=True))


def begun(table: Table, operation: str, **options: Any) -> BulkWrite:
    return table.new_bulk_write(operation, columns=NAMES, **options)


@pytest.mark.parametrize("operation", ["insert", "update", "delete", "upsert", "update_ignore"])
def test_a_write_of_few_rows_does_not_end_the_log(core: CoreTables, operation: str):
    """Whatever its operation is: it is judged at the commit."""
    table = table_of(core, *range(100))
    table.upsert(rows_of(500, v=LOG))
    version = table.version
    key = 600 if operation == "insert" else 500
    names = ["k"] if operation == "delete" else NAMES
    write = table.new_bulk_write(operation, columns=names)
    write = pickle.loads(pickle.dumps(write))
    write.commit([write.stage(rows_of(key).select(names))])
    assert table.version == version
    assert table.statistics.unflushed_row_count
    found = content(table)
    assert (500 in found, 600 in found) == (operation != "delete", operation == "insert")


def test_tasks_of_different_versions_give_one_write(core: CoreTables):
    """Rows change between the tasks; a later task has the last word on a key."""
    table = table_of(core, *range(200))
    write = begun(table, "upsert", unchanged="skip")
    staged = []
    for number in range(4):
        keys = range(number * 50, number * 50 + 70)
        staged.append(write.stage(rows_of(*keys, v=number), number))
        gone = range(number * 50, number * 50 + 10)
        table.delete(pa.table({"k": pa.array(gone, pa.int32())}))
        table.upsert(rows_of(1000 + number, v=LOG))
    assert len({task.base_version for task in staged}) == 4
    result = write.commit(staged[::-1])
    # Each task writes 70 keys; 20 of them the next task writes, too, of which 10 are deleted first.
    expected = {key: min(key // 50, 3) for key in range(220)}
    expected |= {1000 + number: LOG for number in range(4)}
    assert content(table) == expected
    assert (result.inserted, result.updated) == (60, 220)


@pytest.mark.parametrize("first", [0, 1])
def test_a_key_inserted_by_two_tasks_of_different_versions_is_refused(core: CoreTables, first: int):
    """As it is if both are of one version."""
    table = table_of(core, *range(100))
    write = begun(table, "insert")
    one = write.stage(rows_of(*range(1000, 1030)), first)
    table.upsert(rows_of(5, v=LOG))
    two = write.stage(rows_of(*range(1029, 1060)), 1 - first)
    assert one.base_version != two.base_version
    before = content(table)
    with pytest.raises(RowError, match="1029"):
        write.commit([one, two])
    assert content(table) == before


def test_an_insert_of_a_row_of_the_log_is_refused_by_its_task(core: CoreTables):
    """And one that came to the log after the task by the commit."""
    table = table_of(core, *range(100))
    write = begun(table, "insert")
    table.upsert(rows_of(1000))
    with pytest.raises(RowError, match="1000"):
        write.stage(rows_of(*range(1000, 1030)))
    task = write.stage(rows_of(*range(1001, 1031)), 1)
    table.upsert(rows_of(1001))
    with pytest.raises(RowError, match="1001"):
        write.commit([task])


def test_rows_of_few_that_are_many_together_see_the_log(core: CoreTables):
    """The commit stages what tasks have handed over."""
    table = table_of(core, *range(100))
    write = begun(table, "update")
    tasks = [write.stage(rows_of(*range(n * 15, n * 15 + 15)), n) for n in range(3)]
    tasks.append(write.stage(rows_of(700, v=LAST), 3))
    table.upsert(rows_of(700, v=LOG))
    assert write.commit(tasks).updated == 46
    assert content(table)[700] == LAST


def test_a_column_that_is_added_before_a_task_is_null_in_its_rows(core: CoreTables):
    """The rows are resolved on the version with the column, and have the write's own columns."""
    table = table_of(core, *range(100))
    write = begun(table, "insert")
    alterer = core.client("small").new_table_alterer(table)
    alterer.add_column("x", "int32")
    alterer.alter()
    write.commit([write.stage(rows_of(*range(1000, 1030)))])
    found = core.client("small").table("t").scan(columns=["k", "x"]).to_arrow().sort_by("k")
    assert (found.num_rows, found["x"].null_count) == (130, 130)


def test_a_column_that_is_dropped_before_a_task_is_a_conflict(core: CoreTables):
    """The task says so, and not only the commit."""
    table = table_of(core, *range(100))
    write = begun(table, "insert")
    alterer = core.client("small").new_table_alterer(table)
    alterer.drop_column("w")
    alterer.alter()
    with pytest.raises(ConflictError, match="altered"):
        write.stage(rows_of(*range(1000, 1030)))
