"""A purge erases rows so that no file holds their bytes; all others keep their past."""

import pyarrow as pa
import pytest

import kudulite
from kudulite.client.table import Table
from kudulite.errors import SchemaError
from kudulite.tablet.operation import Operation
from kudulite.tablet.row_effects import RowOperation
from kudulite.upkeep import purge
from tests.support.tables.core_tables import CoreTables, files_below, stored
from tests.support.tables.row_writes import write

SECRET = "K9-whom-nobody-shall-find-again-7f3a"
PAST = "Q4-what-was-there-before-the-other-b81c"


def new_table(core: CoreTables) -> Table:
    """A table whose files hold strings as they are; `name` is a part of the key."""
    columns = [
        kudulite.column("name", "string", compression="none", encoding="plain"),
        kudulite.column("k", "int64"),
        kudulite.column("note", "string", compression="none", encoding="plain"),
        kudulite.column("v", "int64"),
    ]
    ranges = {"columns": ["k"], "bounds": [[0, 100], [100, 200]]}
    return core.client().create_table(
        "t", kudulite.schema(columns, ["name", "k"]), range_partitions=ranges
    )


def row(name: str, k: int, note: str, v: int) -> dict[str, object]:
    """One row."""
    return {"name": name, "k": k, "note": note, "v": v}


def files_with(table: Table, text: str) -> list[str]:
    """Names of all files of a table that hold a text as it is."""
    found = [path for path in files_below(table.path) if text.encode() in path.read_bytes()]
    return sorted(path.name for path in found)


def with_history(table: Table) -> dict[int, list[tuple]]:
    """Rows in every kind of file, and what each moment shows of those that are not purged."""
    stamps = [table.insert([row(f"n{i}", i, f"note {i}", i) for i in range(9)]).timestamp]
    stamps.append(table.insert([row(SECRET, 5, PAST, 0), row("a", 5, "a", 1)]).timestamp)
    stamps.append(table.update([row(SECRET, 5, PAST + "2", 1), row("a", 5, "b", 2)]).timestamp)
    stamps.append(table.delete([{"name": SECRET, "k": 5}]).timestamp)
    stamps.append(table.overwrite([row(SECRET, 5, "x", 3), row("b", 5, "b", 3)]).timestamp)
    stamps.append(table.upsert([row(SECRET, 150, PAST + "3", 4), row("c", 6, "c", 4)]).timestamp)
    table.flush()
    for note in ("log", PAST + "4"):
        made = write(table, op_of("upsert", SECRET, 5, note), op_of("upsert", "b", 5, note[:3]))
        stamps.append(made.timestamp)
    return {at: without_secret(table, at) for at in stamps}


def op_of(operation: str, name: str, k: int, note: str) -> RowOperation:
    """A row operation."""
    return RowOperation(Operation[operation.upper()], {"name": name, "k": k, "note": note})


def without_secret(table: Table, at: int | None = None) -> list[tuple]:
    """The rows of a moment that are not to be purged."""
    return [found for found in stored(table, at) if found[0] != SECRET]


KEYS = [{"name": SECRET, "k": 5}, {"name": SECRET, "k": 150}, {"name": "nobody", "k": 1}]


def test_no_file_holds_the_bytes_and_others_keep_their_past(core: CoreTables):
    """Base data, key index, deltas, log, superblocks, old versions."""
    table = new_table(core)
    versions = with_history(table)
    assert files_with(table, SECRET)
    assert files_with(table, PAST)
    report = table.purge(KEYS)
    assert files_with(table, SECRET) == []
    assert files_with(table, PAST) == []
    assert report.is_complete
    assert report.key_count == 3
    assert report.row_count >= 3
    assert report.file_count > 0
    assert {at: stored(table, at) for at in versions} == versions
    assert table.get((SECRET, 5)) is None
    table.check().raise_if_bad()


def test_a_purge_of_rows_that_are_not_there_changes_no_version(core: CoreTables):
    """Nothing is written again for it."""
    table = new_table(core)
    table.insert([row("a", 1, "a", 1)])
    version = table.version
    report = table.purge([{"name": "b", "k": 1}])
    assert (report.row_count, report.rowset_count) == (0, 0)
    assert table.version == version


def test_a_rowset_of_purged_rows_alone_is_gone(core: CoreTables):
    """No empty rowset stays."""
    table = new_table(core)
    table.insert([row(SECRET, 1, "a", 1)])
    table.purge([{"name": SECRET, "k": 1}])
    assert stored(table) == []
    assert table.statistics.rowset_count == 0
    table.insert([row(SECRET, 1, "again", 1)])
    assert stored(table) == [(SECRET, 1, "again", 1)]


def test_a_dropped_range_is_purged_too(core: CoreTables):
    """Its past is readable, so it holds the bytes."""
    client = core.client()
    table = new_table(core)
    before = table.insert([row(SECRET, 150, "a", 1), row("b", 160, "b", 1)]).timestamp
    alterer = client.new_table_alterer(client.table("t"))
    alterer.drop_range_partition({"k": 100}, {"k": 200})
    alterer.alter()
    assert len(stored(table, before)) == 2
    table.purge([{"name": SECRET, "k": 150}])
    assert files_with(table, SECRET) == []
    assert stored(table, before) == [("b", 160, "b", 1)]
    table.check().raise_if_bad()


def test_a_staged_write_that_keeps_old_files_is_named(core: CoreTables):
    """When it has ended, the purge that is run again finds no file any more."""
    table = new_table(core)
    table.insert([row(SECRET, 1, "a", 1), row("b", 1, "b", 1)])
    staged = table.new_bulk_write("upsert")
    report = table.purge([{"name": SECRET, "k": 1}])
    assert not report.is_complete
    assert len(report.pinned_by) == 1
    assert files_with(table, SECRET)
    staged.abort()
    assert table.purge([{"name": SECRET, "k": 1}]).is_complete
    assert files_with(table, SECRET) == []


def test_what_is_written_during_a_purge_is_purged_or_whole(core: CoreTables, monkeypatch):
    """Rows of other keys that came between building and publishing are all there."""
    table = new_table(core)
    table.insert([row(SECRET, 1, "a", 1), row("b", 1, "b", 1)])
    build = purge._TabletPurge.build

    def build_then_write(work, rowsets):
        built = build(work, rowsets)
        monkeypatch.undo()
        table.update([row("b", 1, "c", 2)])
        write(table, op_of("upsert", "d", 1, "d"), op_of("upsert", SECRET, 1, PAST))
        return built

    monkeypatch.setattr(purge._TabletPurge, "build", build_then_write)
    table.purge([{"name": SECRET, "k": 1}])
    assert stored(table) == [("b", 1, "c", 2), ("d", 1, "d", None)]
    assert files_with(table, SECRET) == []
    table.check().raise_if_bad()


def test_keys_of_another_shape_are_refused(core: CoreTables):
    """The error names what is missing; nothing is touched."""
    table = new_table(core)
    with pytest.raises(SchemaError, match="name"):
        table.purge(pa.table({"k": [1]}))
