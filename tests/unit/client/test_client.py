"""The directory of tables: create, list, rename, delete, and handles that outlive it."""

import datetime
import errno
import os
from functools import partial

import pandas as pd
import pyarrow as pa
import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.errors import (
    ColumnNotFoundError,
    ConflictError,
    KuduliteError,
    LockTimeoutError,
    OptionError,
    StorageError,
    TableNotFoundError,
)
from kudulite.storage.table_lock import TableLock
from tests.support.tables.core_tables import CoreTables, ManualClock, environment, stored

SCHEMA = pa.schema([("v", pa.string()), ("k", pa.int32())])


def test_tables_are_listed_renamed_and_deleted(core: CoreTables):
    """Other folders and hidden ones are no tables."""
    client = core.client()
    (client.root / "other").mkdir()
    (client.root / ".deleted-x").mkdir()
    for name in ("b", "a", "ä ö"):
        client.create_table(name, SCHEMA, primary_key="k")
    assert client.list_tables() == ["a", "b", "ä ö"]
    client.table("a").insert([{"k": 1, "v": "x"}])
    renamed = client.rename_table("a", "c")
    assert stored(renamed) == [(1, "x")]
    assert not client.table_exists("a")
    client.delete_table("c")
    client.delete_table("ä ö")
    assert client.list_tables() == ["b"]
    assert sorted(path.name for path in client.root.iterdir()) == ["b", "other"]
    with pytest.raises(TableNotFoundError, match="no table 'c' in .*; tables: b"):
        client.delete_table("c")


@pytest.mark.parametrize("name", [b"not UTF-8 \xff", b"x" * 201])
def test_a_folder_whose_name_no_table_can_have_is_no_table(core: CoreTables, name: bytes):
    """It is not listed, and the others are."""
    client = core.client()
    client.create_table("t", SCHEMA, primary_key="k")
    os.mkdir(os.path.join(os.fsencode(client.root), name))
    assert client.list_tables() == ["t"]
    client.latest_observed_timestamp()
    with pytest.raises(TableNotFoundError, match="tables: t"):
        client.table("u")


def test_a_table_that_is_deleted_meanwhile_has_no_newest_moment(core: CoreTables, monkeypatch):
    """It is left out of the newest moment of all tables."""
    client = core.client()
    client.create_table("t", SCHEMA, primary_key="k")
    monkeypatch.setattr(Client, "list_tables", lambda self: ["deleted", "t"])
    assert client.latest_observed_timestamp().year > 2000


def test_key_columns_come_first(core: CoreTables):
    """Whatever their place in the Arrow schema, which then are NOT NULL."""
    table = core.client().create_table("t", SCHEMA, primary_key="k")
    assert table.schema.names == ["k", "v"]
    assert table.arrow_schema == pa.schema([pa.field("k", pa.int32(), False), ("v", pa.string())])


def test_a_handle_of_a_deleted_table_says_so(core: CoreTables):
    """Also when a table of the name was created again: the handle stands for the deleted one."""
    client = core.client()
    table = client.create_table("t", SCHEMA, primary_key="k")
    table.insert([{"k": 1, "v": "x"}])
    other = core.client()
    other.delete_table("t")
    for use in (table.scan, lambda: table.get(1), lambda: table.upsert([{"k": 1, "v": "y"}])):
        with pytest.raises(TableNotFoundError, match="the folder does not exist"):
            use()
    again = other.create_table("t", SCHEMA, primary_key="k")
    again.insert([{"k": 2, "v": "z"}])
    session = client.new_session()
    for use in (
        table.scan,
        lambda: table.get(1),
        lambda: table.upsert([{"k": 1, "v": "y"}]),
        lambda: (session.apply(table.new_upsert({"k": 3})), session.flush()),
    ):
        with pytest.raises(TableNotFoundError, match="'t' .* was created again, at .*; .*open the"):
            use()
    assert stored(again) == stored(client.table("t")) == [(2, "z")]


def test_a_table_is_deleted_only_while_it_is_at_a_version(core: CoreTables):
    """For whoever created it and may have been overtaken."""
    client = core.client()
    client.create_table("t", SCHEMA, primary_key="k").insert([{"k": 1}])
    with pytest.raises(ConflictError, match="'t' is at version 2, not 1; not deleted"):
        client.delete_table("t", if_version=1)
    client.delete_table("t", if_version=2)


@pytest.mark.parametrize("soft", [False, True])
def test_a_table_with_rows_after_a_version_is_not_deleted_at_it(core: CoreTables, soft: bool):
    """Rows of a batch or a session, which make no version."""
    client = core.client(small_write_rows_max=10)
    delete = partial(client.soft_delete_table, reserve_seconds=60) if soft else client.delete_table
    table = client.create_table("t", SCHEMA, primary_key="k")
    table.insert([{"k": 1}])
    with pytest.raises(ConflictError, match="rows were written to its log after it"):
        delete("t", if_version=1)
    assert stored(table) == [(1, None)]
    table.flush()
    delete("t", if_version=table.version)
    client.create_table("t", SCHEMA, primary_key="k")
    delete("t", if_version=1)
    assert client.list_tables() == []


def test_a_deletion_waits_for_commits(core: CoreTables):
    """A table that is locked is in use."""
    client = core.client(lock_timeout_seconds=0.02)
    table = client.create_table("t", SCHEMA, primary_key="k")
    with table._store.turn() as lock:
        lock.announce("commit of write 9")
        with pytest.raises(LockTimeoutError, match="held by commit of write 9"):
            client.delete_table("t")
        with pytest.raises(LockTimeoutError, match="held by commit of write 9"):
            client.rename_table("t", "u")
    assert client.list_tables() == ["t"]


class Stream:
    """Something else that speaks Arrow."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


ROWS = pa.table({"k": pa.array([1, 2], pa.int32()), "v": ["a", None]})


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        ROWS.to_batches()[0],
        ROWS.to_reader(),
        ROWS.to_pylist(),
        {"k": [1, 2], "v": ["a", None]},
        {"v": pa.array(["a", None]), "k": pa.array([1, 2])},
        [{"k": 1, "v": "a"}, {"k": 2}],
        ROWS.to_pandas(),
        pd.DataFrame({"v": ["a", None], "k": [1, 2]}, index=["x", "y"]),
        Stream(ROWS),
        pa.table({"k": ROWS["k"].dictionary_encode(), "v": ROWS["v"].cast(pa.large_string())}),
    ],
)
def test_whatever_speaks_arrow_can_be_written(core: CoreTables, data):
    """The same rows from all of them."""
    table = core.client().create_table("t", SCHEMA, primary_key="k")
    assert table.upsert(data).inserted == 2
    assert stored(table) == [(1, "a"), (2, None)]


def test_scans_come_in_every_form(core: CoreTables):
    """Arrow, batches, reader, pandas, list, C stream; again each time; with no column too."""
    table = core.client().create_table("t", SCHEMA, primary_key="k")
    table.upsert(ROWS)
    scan = table.scan(["v", "k"], ordered=True)
    expected = ROWS.select(["v", "k"]).to_pylist()
    assert scan.to_arrow().to_pylist() == expected == scan.to_pylist()
    assert scan.to_reader().read_all().to_pylist() == expected
    assert [row for batch in scan.to_batches() for row in batch.to_pylist()] == expected
    assert scan.to_pandas()["k"].tolist() == [1, 2]
    assert pa.table(scan).to_pylist() == expected
    assert [scan.count(), table.scan(limit=1).count(), table.scan(limit=0).count()] == [2, 1, 0]
    assert table.scan([]).to_arrow().num_rows == 2
    assert table.scan([], ordered=True, where=table["k"] > 1).to_arrow().num_rows == 1
    assert len(table.scan(limit=1, ordered=True).to_arrow()) == 1


def test_corrupt_files_are_refused_by_readers(core: CoreTables, tmp_path):
    """Scan and lookup raise a kudulite error with the file's path, never wrong rows."""
    root = tmp_path / "bad"
    for pattern in ("base-*", "key-*", "bloom-*", "redo-*"):
        client = kudulite.connect(root / pattern.strip("-*"))
        table = client.create_table("t", SCHEMA, primary_key="k")
        table.insert(ROWS)
        table.flush()
        table.update([{"k": 1, "v": "b"}])
        table.flush()
        (path,) = table.path.rglob(pattern)
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        reader = Client(client.root, environment())  # nothing of the file is in its cache
        with pytest.raises(KuduliteError, match=path.name):
            reader.table("t").get(1)  # first: an open key index makes the bloom filter needless
            reader.table("t").scan(ordered=True).to_arrow()


def test_the_latest_timestamp_shows_what_was_written(core: CoreTables):
    """By clients whose clocks are ahead, too; it is a datetime, as in kudu-python."""
    clock = ManualClock()
    client = core.client(clock=clock)
    assert client.latest_observed_timestamp() == datetime.datetime(
        2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC
    )
    table = client.create_table("t", SCHEMA, primary_key="k")
    ahead = ManualClock(clock.microseconds + 5_000_000)
    core.client(clock=ahead).table("t").insert([{"k": 1}])
    moment = client.latest_observed_timestamp()
    assert moment.second == 25
    assert table.scan(at=moment).count() == 1


def test_the_latest_timestamp_shows_a_row_whose_time_was_not_noted(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch
):
    """The disk refused the safe timestamp, and the writer's clock is ahead: the log has it."""
    clock = ManualClock()
    client = core.client(clock=clock)
    table = client.create_table("t", SCHEMA, primary_key="k")
    ahead = core.client(clock=ManualClock(clock.microseconds + 5_000_000))
    session = ahead.new_session()

    def refused(_lock: TableLock, _timestamp: int) -> None:
        raise StorageError(errno.EIO, "refused")

    with monkeypatch.context() as patch:
        patch.setattr(TableLock, "advance_safe_timestamp", refused)
        session.apply(ahead.table("t").new_insert({"k": 1}))
        session.flush()
    moment = client.latest_observed_timestamp()
    assert table.scan(at=moment).count() == 1


def test_parameters_have_the_names_of_kudu_python(core: CoreTables):
    """A program that gives each argument by name runs."""
    client = core.client()
    columns = [kudulite.column("k", "int64"), kudulite.column("v", "string")]
    partitioning = kudulite.Partitioning().add_hash_partitions(
        column_names=["k"], num_buckets=2, seed=None
    )
    client.create_table(
        table_name="t", schema=kudulite.schema(columns, "k"), partitioning=partitioning
    )
    assert client.list_tables(match_substring=None) == client.list_tables() == ["t"]
    assert client.table_exists(table_name="t")
    table = client.table(table_name="t")
    assert table.schema.at(i=1) == table.schema["v"]
    session = client.new_session(flush_mode="manual", timeout_ms=1000)
    session.set_mutation_buffer_flush_watermark(watermark_pct=0.3)
    session.apply(op=table.new_insert(record={"k": 1, "v": "a"}))
    session.flush()
    assert table.scan(where=table["k"] == 1).to_pylist() == [{"k": 1, "v": "a"}]
    with pytest.raises(OptionError, match="'name' of create_table.* it is called table_name"):
        client.create_table("t", table.schema, name="t")
    client.delete_table(table_name="t")


def test_a_method_of_kudu_python_says_what_to_use(core: CoreTables):
    """Any other name is an error as of any object."""
    table = core.client().create_table("t", pa.schema([("k", pa.int64())]), primary_key="k")
    with pytest.raises(AttributeError, match=r"no scanner, .*use table\.scan\(…\), or open"):
        table.scanner()
    with pytest.raises(AttributeError, match=r"use table\.scan_tokens\(…\)"):
        table.scan_token_builder()
    with pytest.raises(AttributeError, match="^'Table' object has no attribute 'scannner'$"):
        table.scannner()
    assert not hasattr(table, "scanner")
    with pytest.raises(AttributeError, match=r"no schema_builder, .*kudulite\.schema\(\["):
        core.client().schema_builder()
    with pytest.raises(AttributeError, match="^'Client' object has no attribute 'tabel'$"):
        core.client().tabel("t")


def test_an_error_in_a_property_of_a_table_is_shown(core: CoreTables):
    """And not that the table has no such property."""

    class Faulty(kudulite.Table):
        @property
        def faulty(self) -> object:
            return object().nothing  # type: ignore[attr-defined]

    core.client().create_table("t", pa.schema([("k", pa.int64())]), primary_key="k")
    with pytest.raises(AttributeError, match="'object' object has no attribute 'nothing'"):
        Faulty(core.client().table("t")._store).faulty  # noqa: B018


def test_a_column_that_is_not_there_is_a_key_or_index_error(core: CoreTables):
    """Whichever a program catches; the text stands without quotes."""
    schema = pa.schema([("k1", pa.int32()), ("k2", pa.string()), ("v", pa.int64())])
    table = core.client().create_table("t", schema, primary_key=["k1", "k2"])
    for key, kind in (("x", KeyError), (4, IndexError), ("x", kudulite.NotFoundError)):
        with pytest.raises(kind, match=r"^table 't' has no column .*; its columns are k1, k2, v"):
            table[key]
    with pytest.raises(ColumnNotFoundError):
        table.schema.new_row({"x": 1})


def test_a_table_has_an_id_and_a_number_of_columns(core: CoreTables):
    """A table that is created again under its name has another id."""
    client = core.client()
    schema = pa.schema([("k", pa.int64())])
    first = client.create_table("a", schema, primary_key="k").id
    client.delete_table("a")
    again = client.create_table("a", schema, primary_key="k")
    assert (again.id != first, again.num_columns) == (True, 1)
    client.create_table("bc", schema, primary_key="k")
    assert client.list_tables("c") == ["bc"]
