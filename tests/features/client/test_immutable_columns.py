"""Immutable columns: what each operation does with their cells, as in Kudu."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

import kudulite
from kudulite.backups.backup_job import backup
from kudulite.backups.restore_job import restore
from kudulite.errors import OptionError, RowError, SchemaError
from tests.support.tables.core_tables import CoreTables

IMMUTABLE = "UPDATE not allowed for immutable column"


def created(core: CoreTables, **options) -> kudulite.Table:
    """A table of an immutable column `i` and a mutable one `m`, with the row (1, "i1", "m1")."""
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("i", kudulite.string, mutable=False),
        kudulite.column("m", kudulite.string),
    ]
    table = core.client(**options).create_table(
        "t", kudulite.schema(columns, "k"), hash_partitions=[(["k"], 2)]
    )
    table.insert([{"k": 1, "i": "i1", "m": "m1"}])
    return table


@pytest.fixture(params=[0, 100], ids=["bulk", "log"])
def table(core: CoreTables, request) -> kudulite.Table:
    """The table, whose small batches are staged or go through the log."""
    return created(core, small_write_rows_max=request.param)


def rows(table: kudulite.Table) -> list[tuple]:
    """All rows as tuples, in the order of their keys."""
    return [tuple(row.values()) for row in table.scan(ordered=True).to_pylist()]


def test_the_schema_says_it():
    """The column, the text; never a key column."""
    columns = [
        kudulite.column("k", kudulite.int64),
        kudulite.column("a", "double", mutable=True),
        kudulite.column("b", "double", mutable=False),
    ]
    schema = kudulite.schema(columns, "k")
    assert [column.mutable for column in schema] == [True, True, False]
    assert repr(schema["b"]) == 'double "b" IMMUTABLE' and repr(schema["a"]) == 'double "a"'
    with pytest.raises(SchemaError, match="column 'x': a key column never changes"):
        kudulite.schema([kudulite.column("x", "int8", mutable=False)], "x")


def test_an_insert_sets_the_cell(table):
    """With and without a value, alone and in a mixed batch."""
    table.insert([{"k": 2, "m": "m2"}])
    table.insert_ignore([{"k": 1, "i": "new"}, {"k": 3, "i": "i3"}])
    assert rows(table) == [(1, "i1", "m1"), (2, None, "m2"), (3, "i3", None)]


@pytest.mark.parametrize("key", [1, 9], ids=["present", "absent"])
@pytest.mark.parametrize("value", ["i1", "new", None])
def test_an_update_that_sets_it_is_refused(table, key, value):
    """Whatever the value, and before the row is looked for."""
    with pytest.raises(RowError, match=f"update: 1 row refused: {IMMUTABLE}; \\(k\\) = {key}"):
        table.update([{"k": key, "i": value, "m": "x"}])
    table.update([{"k": 1, "m": "m2"}])
    assert rows(table) == [(1, "i1", "m2")]


def test_an_upsert_sets_it_in_a_new_row_only(table):
    """All rows of a batch are refused for one that is there; without the cell it is updated."""
    table.upsert([{"k": 2, "i": "i2", "m": "m2"}])
    with pytest.raises(RowError, match=IMMUTABLE) as caught:
        table.upsert([{"k": 3, "i": "i3", "m": "m3"}, {"k": 2, "i": "i2", "m": "x"}])
    assert caught.value.reason == RowError.REASON_IMMUTABLE and caught.value.keys == ((2,),)
    with pytest.raises(RowError, match=IMMUTABLE):  # the second row of a key finds the first
        table.upsert([{"k": 4, "i": "i4", "m": "a"}, {"k": 4, "i": "i4", "m": "b"}])
    table.upsert([{"k": 1, "m": "m1b"}, {"k": 5, "m": "m5"}])
    assert rows(table) == [(1, "i1", "m1b"), (2, "i2", "m2"), (5, None, "m5")]


def test_the_ignore_operations_leave_it(table):
    """An update_ignore changes the other cells; an upsert_ignore inserts all of them too."""
    table.update_ignore([{"k": 1, "i": "x", "m": "m2"}, {"k": 9, "i": "x", "m": "x"}])
    assert rows(table) == [(1, "i1", "m2")]
    result = table.upsert_ignore(
        [{"k": k, "i": f"new{k}", "m": f"new{k}"} for k in (1, 2, 2)], message="a bulk write"
    )
    assert (result.inserted, result.updated) == (1, 2)
    table.upsert_ignore([{"k": 1, "i": "only"}, {"k": 3, "i": "i3"}])
    assert rows(table) == [(1, "i1", "new1"), (2, "new2", "new2"), (3, "i3", None)]
    with pytest.raises(SchemaError, match="no fields updated; give at least one of m"):
        table.update_ignore([{"k": 1, "i": "x"}])


def test_nulls_that_are_ignored_are_not_set(table):
    """So an upsert with a null in the immutable column updates the rest."""
    table.upsert([{"k": 1, "i": None, "m": "m2"}], ignore_null=True)
    table.update([{"k": 1, "i": None, "m": "m3"}], ignore_null=True)
    assert rows(table) == [(1, "i1", "m3")]
    with pytest.raises(RowError, match=IMMUTABLE):
        table.upsert([{"k": 1, "i": "i1", "m": None}], ignore_null=True)


def test_a_mixed_batch_has_the_rule_of_each_operation(table):
    """Of change capture; a row that is deleted and inserted again is a new one."""
    with pytest.raises(RowError, match=IMMUTABLE):
        table.apply([{"op": "U", "k": 1, "i": "x", "m": "x"}])
    table.apply(
        [
            {"op": "D", "k": 1, "i": None, "m": None},
            {"op": "I", "k": 1, "i": "again", "m": "m2"},
            {"op": "upsert_ignore", "k": 1, "i": "lost", "m": "m3"},
            {"op": "upsert", "k": 2, "i": "i2", "m": "m2"},
            {"op": "update_ignore", "k": 2, "i": "lost", "m": "m4"},
        ]
    )
    assert rows(table) == [(1, "again", "m3"), (2, "i2", "m4")]


def test_an_ordered_write_leaves_it_with_the_ignore_operations(core):
    """The newest change wins for the other columns; an upsert of a row that is there is refused."""
    table = created(core)
    changes = [
        {"op": "upsert_ignore", "k": k, "i": "late", "m": m} for k, m in ((1, "z"), (2, "a"))
    ]
    table.apply(changes, ordering_column="m")
    assert rows(table) == [(1, "i1", "z"), (2, "late", "a")]
    with pytest.raises(RowError, match=IMMUTABLE):
        table.apply([{"op": "U", "k": 2, "i": "late", "m": "b"}], ordering_column="m")


def test_sessions_report_kudus_status(table):
    """As kudu-python's own test of immutable columns expects it."""
    session = kudulite.Session()

    def failed(operation) -> str:
        session.apply(operation)
        with pytest.raises(RowError):
            session.flush()
        errors, overflowed = session.get_pending_errors()
        assert len(errors) == 1 and not overflowed
        return errors[0].status

    assert failed(table.new_update({"k": 1, "i": "x"})) == f"Immutable: {IMMUTABLE}"
    assert failed(table.new_upsert({"k": 1, "i": "x", "m": "x"})) == f"Immutable: {IMMUTABLE}"
    status = failed(table.new_update_ignore({"k": 1, "i": "x"}))
    assert status == "Invalid argument: No fields updated"
    for operation in (
        table.new_update_ignore({"k": 1, "i": "x", "m": "m2"}),
        table.new_upsert({"k": 2, "i": "i2"}),
        table.new_upsert({"k": 2, "m": "m2"}),
        table.new_upsert_ignore({"k": 2, "i": "x", "m": "m3"}),
        table.new_upsert_ignore({"k": 3, "i": "i3"}),
        table.new_upsert_ignore({"k": 3, "i": "x"}),
    ):
        session.apply(operation)
    session.flush()
    assert rows(table) == [(1, "i1", "m2"), (2, "i2", "m3"), (3, "i3", None)]


@pytest.mark.parametrize("operation", ["upsert", "upsert_ignore"])
def test_staged_rows_meet_rows_that_came_in_between(core, operation):
    """A row that was absent when it was staged, and one that was deleted since."""
    table = created(core)
    write = table.new_bulk_write(operation)
    batch = pa.RecordBatch.from_pylist(
        [{"k": 2, "i": "staged", "m": "staged"}], schema=table.arrow_schema
    )
    staged = write.stage([batch])
    table.insert([{"k": 2, "i": "i2", "m": "m2"}])
    if operation == "upsert":
        with pytest.raises(RowError, match=IMMUTABLE):
            write.commit([staged])
        write.abort()
        assert rows(table) == [(1, "i1", "m1"), (2, "i2", "m2")]
        return
    write.commit([staged])
    assert rows(table) == [(1, "i1", "m1"), (2, "i2", "staged")]
    write = table.new_bulk_write(operation)
    staged = write.stage([batch])
    table.delete([{"k": 2}])
    write.commit([staged])
    assert rows(table) == [(1, "i1", "m1"), (2, "staged", "staged")]


def test_it_is_altered_to_and_from(table):
    """Rows stay as they are; the next write has the new rule, also by a handle that is older."""
    alterer = core_alterer(table)
    alterer.alter_column("i").mutable(True)
    alterer.alter_column("m").mutable(False)
    alterer.add_column("n", "int8", mutable=False)
    alterer.alter()
    table.update([{"k": 1, "i": "i2"}])
    with pytest.raises(RowError, match=IMMUTABLE):
        table.update([{"k": 1, "m": "x"}])
    with pytest.raises(RowError, match=IMMUTABLE):
        table.upsert([{"k": 1, "n": 5}])
    assert rows(table) == [(1, "i2", "m1", None)]
    alterer = core_alterer(table)
    alterer.alter_column("k").mutable(False)
    with pytest.raises(SchemaError, match="table 't': column 'k': a key column never changes"):
        alterer.alter()


def core_alterer(table: kudulite.Table):
    """An alterer of a table that was opened by itself."""
    client = kudulite.connect(table.path.parent, background_maintenance=False)
    return client.new_table_alterer(table)


def test_a_write_by_condition_refuses_it(table):
    """Before a row is read, as for a key column."""
    with pytest.raises(OptionError, match="column 'i' is immutable: its cells keep the values"):
        table.update(where=(), set={"i": "x"})
    table.update(where=table["i"] == "i1", set={"m": "m2"})
    assert rows(table) == [(1, "i1", "m2")]


def test_a_restore_and_an_overwrite_bring_other_values(table):
    """They replace rows: the cells become those of then, and those of the new rows."""
    then = table.current_timestamp()
    table.delete([{"k": 1}])
    table.insert([{"k": 1, "i": "other", "m": "m1"}, {"k": 2, "i": "i2"}])
    table.restore(then)
    assert rows(table) == [(1, "i1", "m1")]
    table.overwrite([{"k": 1, "i": "new", "m": "new"}])
    assert rows(table) == [(1, "new", "new")]
    with pytest.raises(RowError, match=IMMUTABLE):
        table.overwrite([{"k": 3, "i": "a", "m": "a"}, {"k": 3, "i": "b", "m": "b"}])
    assert rows(table) == [(1, "new", "new")]


def test_changes_history_tokens_and_upkeep_show_it_like_any_column(table):
    """Over a flush, a compaction and the past."""
    start = table.current_timestamp()
    table.update([{"k": 1, "m": "m2"}])
    table.insert([{"k": 2, "i": "i2", "m": "m2"}])
    table.flush()
    table.update_ignore([{"k": 2, "i": "x", "m": "m3"}])
    changes = table.changes(start).to_arrow().sort_by("k").to_pylist()
    assert [(c["k"], c["i"], c["m"]) for c in changes] == [(1, "i1", "m2"), (2, "i2", "m3")]
    table.compact()
    assert rows(table) == [(1, "i1", "m2"), (2, "i2", "m3")]
    assert [row["m"] for row in table.history(1).to_pylist()] == ["m1", "m2"]
    found = [b for token in table.scan_tokens() for b in token.open()]
    assert pa.Table.from_batches(found).sort_by("k").column("i").to_pylist() == ["i1", "i2"]


def test_a_backup_keeps_rule_and_cells(table, tmp_path: Path):
    """Over increments in which a row was replaced, and the rule was altered."""
    backup(table, tmp_path / "set")
    table.delete([{"k": 1}])
    table.insert([{"k": 1, "i": "other", "m": "m2"}])
    backup(table, tmp_path / "set")
    restored = restore(tmp_path / "set", tmp_path / "again")
    assert rows(restored) == [(1, "other", "m2")] and not restored.schema["i"].mutable
    with pytest.raises(RowError, match=IMMUTABLE):
        restored.update([{"k": 1, "i": "x"}])


def test_only_a_backup_of_a_table_with_one_has_a_newer_format(table, tmp_path):
    """Software that knows nothing of immutable columns restores all others, and refuses these."""
    saved = backup(table, tmp_path / "set").path / "manifest.json"
    assert json.loads(saved.read_bytes().splitlines()[0])["format_version"] == 2
    alterer = core_alterer(table)
    alterer.alter_column("i").mutable()
    alterer.alter()
    saved = backup(table, tmp_path / "set").path / "manifest.json"
    assert json.loads(saved.read_bytes().splitlines()[0])["format_version"] == 1
