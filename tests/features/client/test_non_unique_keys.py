"""Keys that are not unique: `auto_incrementing_id`, by whom it is given, and who may give it."""

import json
import threading

import pyarrow as pa
import pytest

import kudulite
from kudulite.backups.backup_job import backup
from kudulite.backups.restore_job import restore
from kudulite.chain.manifest import Manifest
from kudulite.errors import ConflictError, RowError, SchemaError
from kudulite.kudu.scanner import Scanner
from kudulite.kudu.tokens import ScanTokenBuilder
from kudulite.storage.names import version_name
from tests.support.machines.id_machine import ID, arrow, create, rows_of
from tests.support.tables.core_tables import CoreTables, altered


@pytest.fixture(params=[0, 100], ids=["bulk", "log"])
def table(core: CoreTables, request) -> kudulite.Table:
    """An empty table of one tablet, whose small batches are staged or go through the log."""
    return create(core.client(small_write_rows_max=request.param))


def ids(table: kudulite.Table) -> list[int]:
    """The ids of all rows, ascending."""
    return sorted(number for _, number in rows_of(table))


def keyed(*columns: tuple, keys: list[str]) -> kudulite.Schema:
    """A schema of columns (name, type), whose key is not unique."""
    made = [kudulite.column(name, column_type, nullable=False) for name, column_type in columns]
    return kudulite.schema(made, keys, is_unique=False)


def test_the_schema_has_the_column_behind_the_key():
    """In the key and among the columns."""
    assert ID == "auto_incrementing_id"
    schema = keyed(("a", "int8"), ("b", "string"), ("v", "double"), keys=["a", "b"])
    assert schema.names == ["a", "b", ID, "v"] and schema.primary_keys() == ["a", "b", ID]
    assert schema[ID].type == kudulite.int64 and not schema[ID].nullable


WRONG = [
    (
        lambda: keyed(("v", "int8"), ("k", "int8"), keys=["k"]),
        "must be the first of the schema",
    ),
    (lambda: keyed(("a", "int8"), ("k", "int8"), keys=["k", "a"]), "must be the first"),
    (lambda: keyed(("k", "double"), keys=["k"]), "double may not be part of a primary key"),
    (lambda: keyed(("k", "int8"), keys=["k", "k"]), "'k' is given more than once"),
    (lambda: keyed(("k", "int8"), keys=["j"]), "primary key column 'j' is not in the schema"),
    (lambda: keyed(("k", "int8"), keys=[]), "needs a primary key of at least one"),
    (lambda: keyed(("k", "int8"), (ID, "int64"), keys=["k"]), "is a reserved column name"),
    (lambda: keyed(("k", "int8"), (ID.upper(), "int8"), keys=["k"]), "is a reserved column"),
]


@pytest.mark.parametrize(("make", "problem"), WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_a_wrong_key_is_refused(make, problem):
    """Also a column of the reserved name, in any case of letters."""
    with pytest.raises(kudulite.UsageError, match=problem):
        make()


def test_rows_are_numbered_from_1_in_each_tablet(core):
    """As kudu-python's own test of it: the ids are in the second place of each tuple."""
    table = create(core.client(), "hashed")
    session = kudulite.Session()
    for number in range(10):
        session.apply(table.new_insert({"k": 1, "v": number}))
    session.flush()
    table.insert([{"k": 2, "v": 0}, {"k": 2, "v": 1}])
    tuples = Scanner(table).add_predicate(table["k"] == 1).open().read_all_tuples()
    assert [(row[1], row[2]) for row in tuples] == [(n + 1, n) for n in range(10)]
    numbers = table.tablet_index([{"k": 1}, {"k": 2}]).to_pylist()
    first = 11 if numbers[0] == numbers[1] else 1
    assert [row[ID] for row in table.scan(where="k = 2").to_pylist()] == [first, first + 1]


def test_a_scan_shows_the_column_unless_others_are_asked_for(table):
    """As kudu-python's scanners and tokens do."""
    table.insert([{"k": 1, "v": 5}])
    assert table.scan().to_pylist() == [{"k": 1, ID: 1, "v": 5}]
    assert table.scan(["k", "v"]).to_pylist() == [{"k": 1, "v": 5}]
    assert table.scan([ID], where=table[ID] == 1).to_pylist() == [{ID: 1}]
    for columns, expected in ((None, ["k", ID, "v"]), (["k"], ["k"]), ([ID], [ID])):
        builder = ScanTokenBuilder(table)
        if columns is not None:
            builder.set_projected_column_names(columns)
        (token,) = builder.build()
        assert token.into_kudu_scanner().get_projection_schema().names == expected


def test_who_may_give_an_id(table):
    """No insert; an update, an upsert and a delete must."""
    table.insert([{"k": 1, "v": 1}, {"k": 1, "v": 2}])
    with pytest.raises(RowError, match="auto-incrementing column should not be set for INSERT"):
        table.insert([{"k": 1, ID: 9, "v": 3}])
    with pytest.raises(RowError, match="auto-incrementing column should not be set for INSERT"):
        table.apply([{"op": "I", "k": 1, ID: 9, "v": 3}])
    for name in ("upsert", "upsert_ignore", "update", "update_ignore", "delete", "delete_ignore"):
        with pytest.raises(SchemaError, match=f"{name}: the key is not unique, so {ID} should be"):
            getattr(table, name)([{"k": 1, "v": 3}])
        with pytest.raises(RowError, match=f"key column '{ID}': 1 row refused: null"):
            table.apply([{"op": name, "k": 1, "v": 3}])
    with pytest.raises(RowError, match="whose values begin with 1"):
        table.upsert([{"k": 1, ID: 0, "v": 3}])
    assert rows_of(table) == {(1, 1): 1, (1, 2): 2}
    table.update([{"k": 1, ID: 1, "v": 10}])
    table.delete([{"k": 1, ID: 2}])
    table.upsert([{"k": 1, ID: 1, "v": 11}, {"k": 1, ID: 7, "v": 7}])
    table.insert([{"k": 1, ID: None, "v": 8}])
    assert rows_of(table) == {(1, 1): 11, (1, 7): 7, (1, 8): 8}
    assert table.get((1, 7)) == {"k": 1, ID: 7, "v": 7}
    assert table.delete(where="v < 10").deleted == 2 and rows_of(table) == {(1, 1): 11}


def test_sessions_check_it_when_an_operation_is_applied(table):
    """With the words of Kudu's client."""
    session = kudulite.Session()
    with pytest.raises(SchemaError, match="should not be specified for Insert operation"):
        session.apply(table.new_insert({"k": 1, ID: 1}))
    for make in (table.new_upsert, table.new_upsert_ignore):
        with pytest.raises(SchemaError, match=f"{ID} should be set for UPSERT/UPSERT_IGNORE"):
            session.apply(make({"k": 1, "v": 1}))
    for make in (table.new_update, table.new_delete):
        with pytest.raises(SchemaError, match="Key not specified"):
            session.apply(make({"k": 1, "v": 1}))
    with pytest.raises(SchemaError, match="column 'auto_incrementing_id'"):
        table.new_insert((1, "text"))
    insert = table.new_insert({"k": 1, "v": 1})
    session.apply(insert)
    session.apply(table.new_upsert({"k": 1, ID: 5, "v": 5}))
    session.apply(table.new_insert({"k": 1, "v": 6}))
    session.apply(table.new_update({"k": 2, ID: 1, "v": 6}))
    with pytest.raises(RowError, match="key not found"):
        session.flush()
    assert rows_of(table) == {(1, 1): 1, (1, 5): 5, (1, 6): 6} and ID not in insert.values
    session.apply(table.new_delete({"k": 1, ID: 5}))
    session.apply(table.new_insert_ignore({"k": 1}))
    session.flush()
    assert ids(table) == [1, 6, 7]


def test_ids_go_on_over_everything_that_happens_to_a_table(table):
    """Deletes, flush, compaction, another client, overwrite, truncate, restore, an alteration."""
    moment, folder = table.current_timestamp(), table.path.parent
    steps = (
        lambda: table.flush(),
        lambda: table.delete(where=()),
        lambda: table.compact(),
        lambda: table.truncate(),
        lambda: table.restore(moment),
        lambda: altered(kudulite.connect(folder), "t", lambda a: a.set_history_retention(700_000)),
    )
    for number, step in enumerate(steps):
        table.insert([{"k": 1, "v": number}])
        assert ids(table)[-1] == number + 1
        step()
    table.overwrite([{"k": 1, "v": 1}, {"k": 1, "v": 2}])
    assert ids(table) == [7, 8]
    table.overwrite([{"k": 3, ID: 2, "v": 1}])
    assert rows_of(table) == {(3, 2): 1}
    table.insert([{"k": 3}])
    assert ids(kudulite.open_table(table.path)) == [2, 9]
    kudulite.open_table(table.path).copy_to(folder / "copy")
    copy = kudulite.open_table(folder / "copy")
    copy.insert([{"k": 3}])
    assert ids(copy) == [2, 9, 10]


def test_a_restore_to_a_moment_brings_the_ids_back(table):
    """And numbers on from the highest."""
    table.insert([{"k": 1, "v": 1}, {"k": 2, "v": 2}])
    moment = table.current_timestamp()
    table.delete([{"k": 1, ID: 1}])
    table.update([{"k": 2, ID: 2, "v": 3}])
    table.insert([{"k": 2, "v": 4}])
    table.restore(moment)
    assert rows_of(table) == {(1, 1): 1, (2, 2): 2}
    table.insert([{"k": 1, "v": 5}])
    assert rows_of(table) == {(1, 1): 1, (2, 2): 2, (1, 4): 5}


def test_changes_and_history_have_the_whole_key(table):
    """Changes of rows that were added can be applied to another table by upsert."""
    start = table.current_timestamp()
    table.insert([{"k": 1, "v": 1}, {"k": 1, "v": 2}])
    table.delete([{"k": 1, ID: 1}])
    changes = table.changes(start).to_pylist()
    assert [(c[ID], c["v"], c["_change_type"]) for c in changes] == [(2, 2, "insert")]
    assert table.history((1, 1)).column("_change_type").to_pylist() == ["insert", "delete"]
    other = create(kudulite.connect(table.path.parent), name="other")
    other.upsert(table.changes(start).to_arrow().select(["k", ID, "v"]))
    other.insert([{"k": 1}])
    assert ids(other) == [2, 3]


def test_backups_keep_ids_and_their_count(table, tmp_path):
    """Also of a row that was deleted before the backup, and over an increment."""
    table.insert([{"k": 1, "v": v} for v in range(3)])
    backup(table, tmp_path / "set")
    table.insert([{"k": 2, "v": 9}])
    table.delete(where=table[ID] >= 3)
    saved = backup(table, tmp_path / "set")
    assert not saved.is_full and saved.last_ids == (4,)
    restored = restore(tmp_path / "set", tmp_path / "again")
    assert rows_of(restored) == {(1, 1): 0, (1, 2): 1}
    restored.insert([{"k": 1}])
    assert ids(restored) == [1, 2, 5]
    restored = restore(
        tmp_path / "set", tmp_path / "first", at=kudulite.list_backups(tmp_path / "set")[0].id
    )
    assert ids(restored) == [1, 2, 3]


def test_tasks_that_run_again_leave_gaps(table):
    """An application's version that was committed reserves nothing; nor does a task of few rows."""
    options = {"columns": ["k", "v"], "application_id": "a", "application_version": 1}
    write = table.new_bulk_write("insert", **options)
    batch = arrow([{"k": 1, "v": 1}, {"k": 1, "v": 2}])
    write.stage([batch], 0)
    tasks = [write.stage([batch], 0), write.stage([batch], 1)]
    write.commit(tasks)
    last = 4 if table._store.environment.small_write_rows_max else 6
    assert ids(table) == list(range(last - 3, last + 1))
    write = table.new_bulk_write("insert", **options)
    assert write.commit([write.stage([batch], 0)]).skipped
    table.insert([{"k": 1}])
    assert ids(table)[-1] == last + 1


def test_a_refused_batch_may_leave_a_gap_and_nothing_else(table):
    """A retry with a row corrected."""
    rows = [{"op": "I", "k": 1, ID: None, "v": 1}, {"op": "U", "k": 9, ID: 9, "v": 1}]
    with pytest.raises(RowError, match="key not found"):
        table.apply(rows)
    assert rows_of(table) == {}
    table.apply(rows[:1])
    assert len(ids(table)) == 1


def test_the_last_id_of_all(table):
    """Then inserts are refused, and nothing else."""
    last = (1 << 63) - 1
    table.upsert([{"k": 1, ID: last - 1, "v": 1}])
    table.insert([{"k": 1, "v": 2}])
    reason = "max auto-incrementing column value reached"
    with pytest.raises(RowError, match=reason):
        table.insert([{"k": 1, "v": 3}])
    session = kudulite.Session()
    session.apply(table.new_insert({"k": 1, "v": 3}))
    with pytest.raises(RowError, match=reason):
        session.flush()
    table.update([{"k": 1, ID: last, "v": 4}])
    assert rows_of(table) == {(1, last - 1): 1, (1, last): 4}


def test_partitions_are_not_by_the_id(core):
    """A row's tablet is known before its number."""
    columns = [kudulite.column("k", "int32")]
    schema = kudulite.schema(columns, "k", is_unique=False)
    for partitioning in (
        kudulite.Partitioning().add_hash_partitions(["k", ID], 2),
        kudulite.Partitioning().set_range_partition_columns([ID]),
    ):
        with pytest.raises(SchemaError, match=f"partitioning by column '{ID}'"):
            core.client().create_table("t", schema, partitioning)


def test_the_column_cannot_be_altered(core):
    """With the words of Kudu's client; and no other column may get its name."""
    client = core.client()
    table = create(client)
    for change, problem in (
        (lambda a: a.drop_column(ID), f"can't drop column: {ID}"),
        (lambda a: a.add_column(ID, "int64"), f"can't add a column with reserved name: {ID}"),
        (lambda a: a.alter_column(ID, "n"), f"can't change name for column: {ID}"),
        (lambda a: a.alter_column(ID).remove_default(), f"can't change default for column: {ID}"),
        (lambda a: a.alter_column(ID).mutable(False), f"can't change mutable for column: {ID}"),
        (lambda a: a.alter_column("k").mutable(False), "a key column never changes"),
    ):
        alterer = client.new_table_alterer(table)
        change(alterer)
        with pytest.raises(kudulite.UsageError, match=problem):
            alterer.alter()
    alterer = client.new_table_alterer(table)
    alterer.alter_column(ID).comment("numbered").encoding("plain").compression("zlib")
    alterer.alter_column("k", "key")
    table = alterer.alter()
    table.insert([{"key": 1}])
    assert table.scan().to_pylist() == [{"key": 1, ID: 1, "v": None}]


def test_a_dropped_range_ends_a_write_that_was_to_reserve(core):
    """The tablet is not there any more."""
    client = core.client()
    table = create(client, "ranges")
    write = table.new_bulk_write("insert", columns=["k", "v"])
    alterer = client.new_table_alterer(table).drop_range_partition(3, None)
    alterer.add_range_partition(3, None).alter()
    with pytest.raises(ConflictError):
        write.commit([write.stage([arrow([{"k": 5, "v": 1}])])])
    write.abort()
    table.insert([{"k": 5, "v": 1}, {"k": 0, "v": 1}])
    assert sorted(rows_of(table)) == [(0, 1), (5, 1)]


@pytest.mark.parametrize("rows_max", [0, 100])
def test_threads_share_the_count(core, rows_max):
    """Each row has an id of its own."""
    table = create(core.client(small_write_rows_max=rows_max), "hashed")
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for turn in range(8):
                table.insert([{"k": k, "v": number * 100 + turn} for k in range(5)])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    found = rows_of(table)
    assert len(found) == 4 * 8 * 5
    numbers = dict(enumerate(table.tablet_index([{"k": k} for k in range(5)]).to_pylist()))
    assert len({(numbers[k], i) for k, i in found}) == len(found)


def test_only_such_a_table_has_last_ids(table):
    """Its entries have the last ids; a damaged one that is too low is found."""
    table.insert([{"k": 1}, {"k": 1}])
    table.flush()
    path = table.path / "manifest" / version_name(table.version)
    body = json.loads(path.read_bytes().splitlines()[0])
    assert body["tablets"][0]["last_id"] == 2
    assert body["schema"]["columns"][1]["auto_incrementing"] is True
    assert Manifest.decode(path.read_bytes(), "x").tablets[0].last_id == 2
    plain = kudulite.connect(table.path.parent).create_table(
        "plain", pa.schema([("k", pa.int32())]), primary_key="k"
    )
    content = (plain.path / "manifest" / version_name(1)).read_bytes()
    assert b"last_id" not in content
