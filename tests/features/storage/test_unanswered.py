"""Tables on an object store that gives no answer: what failed may be done, or come late.

Nothing that a late request needs is removed, a process that was killed half way leaves nothing that
somebody can write to, and what one process removes, no other one shows.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import StorageError, TableNotFoundError
from kudulite.storage import object_reader, object_storage
from kudulite.storage.object_storage import HELD_SECONDS
from kudulite.table.chain_log import ChainLog
from kudulite.table.table_store import TableStore
from tests.support.doubles.faulty_library import CREATE, FaultyLibrary, no_faults
from tests.support.doubles.killing_storage import KilledError
from tests.support.tables.object_tables import ROOT, ObjectTables, rows

TABLES = ROOT / "tables"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FaultyLibrary:
    """The library, which fails as it is bidden."""
    double = FaultyLibrary()
    for module in (object_storage, object_reader):
        monkeypatch.setattr(module, "obstore", double)
    return double


@pytest.fixture
def objects() -> ObjectTables:
    """A store in memory."""
    return ObjectTables()


def fault_in(name: str, fault: str) -> Callable[[str, str], str]:
    """The plan of a fault in all creations of objects that have a text in their names."""
    return lambda kind, found: fault if kind == CREATE and name in found else ""


def keys(table: Table, at: int | None = None) -> list[int]:
    """The keys of all rows."""
    return sorted(table.scan(["k"], at=at).to_arrow().column("k").to_pylist())


def new_ranges(client: Client) -> Table:
    """A table of one range."""
    columns = [kudulite.column("k", kudulite.int64), kudulite.column("v", kudulite.int64)]
    bounds = {"columns": ["k"], "bounds": [[[0], [10]]]}
    return client.create_table("t", kudulite.schema(columns, "k"), range_partitions=bounds)


@pytest.mark.parametrize("fault", ["late", "unanswered"])
def test_an_alteration_whose_version_comes_late_has_its_tablets(
    objects: ObjectTables, library: FaultyLibrary, fault: str
):
    """It was an error that it is not known; the version that is there then can be read."""
    client = objects.client()
    table = new_ranges(client)
    table.upsert(rows(1))

    def fail(kind: str, name: str) -> str:
        if kind == CREATE and "/manifest/" in name:
            library.plan, library.next_gets = no_faults, [library.no_answer()]
            return fault
        return ""

    library.plan = fail
    with pytest.raises(StorageError, match="it is not known whether the store has it"):
        client.new_table_alterer(table).add_range_partition({"k": 10}, {"k": 20}).alter()
    for _ in range(30):
        client.list_tables()  # the late request is done meanwhile
    fresh = objects.client().table("t")
    fresh.upsert(rows(15))
    fresh.check().raise_if_bad()
    assert keys(objects.client().table("t")) == [1, 15]


def test_an_alteration_that_lost_the_race_removes_its_tablets(
    objects: ObjectTables, monkeypatch: pytest.MonkeyPatch
):
    """The next attempt has made others."""
    client, other = objects.client(), objects.client()
    table = new_ranges(client)
    theirs, create = other.table("t"), TableStore.create_tablet

    def overtaken(self: TableStore, place: object) -> object:
        monkeypatch.setattr(TableStore, "create_tablet", create)
        theirs.upsert(rows(1))
        return create(self, place)

    monkeypatch.setattr(TableStore, "create_tablet", overtaken)
    client.new_table_alterer(table).add_range_partition({"k": 10}, {"k": 20}).alter()
    store = client.table("t")._store
    folders = {path.name for path in store.storage.entries(store.place / "tablet")}
    assert folders == {entry.id for entry in store.newest().tablets}


def test_rows_that_another_process_has_purged_are_not_in_the_past(objects: ObjectTables):
    """Also not for one that knows a moment, and has the rows in memory."""
    table = objects.new_table()
    table.insert(rows(1, 2, 3))
    other = objects.client().table("t")
    moment = other.current_timestamp()
    assert keys(other, moment) == [1, 2, 3] and other.get(1, moment) is not None
    table.purge([{"k": 1}])
    assert other.get(1, moment) is None
    assert keys(other, moment) == [2, 3]
    assert other.get_many([{"k": 1}, {"k": 2}], moment).column("k").to_pylist() == [2]


@pytest.mark.parametrize("remove", ["purge", "maintain"])
def test_a_scan_that_was_planned_before_its_files_went_reads_newer_ones(
    objects: ObjectTables, remove: str
):
    """A purge removes files at once, and so does a collection without a grace time."""
    table = objects.new_table()
    table.insert(rows(1, 2, 3))
    scans = [objects.client().table("t").scan() for _ in range(2)]
    table.upsert(rows(2, v=7))
    if remove == "purge":
        table.purge([{"k": 9}, {"k": 2}])
    else:
        table.compact()
        table.maintain(grace_seconds=0)
    expected = [1, 3] if remove == "purge" else [1, 2, 3]
    assert sorted(scans[0].to_arrow().column("k").to_pylist()) == expected
    assert scans[1].count() == len(expected)


@pytest.mark.parametrize("is_soft", [True, False])
def test_a_table_whose_deletion_was_killed_takes_no_rows_once_it_is_removed(
    objects: ObjectTables, monkeypatch: pytest.MonkeyPatch, is_soft: bool
):
    """It has lost its name, and not yet its end, when the process dies."""
    client, writer = objects.client(), objects.client()
    objects.new_table(client)
    table = writer.table("t")
    table.upsert(rows(1))

    def die(*_: object, **__: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(ChainLog, "end", die)
        if is_soft:
            client.soft_delete_table("t", 1)
        else:
            client.delete_table("t")
    table.upsert(rows(2))  # nobody has removed it
    later = objects.client(clock=_Later())
    later.create_table("other", pa.schema([pa.field("k", pa.int64(), False)]), primary_key="k")
    with pytest.raises(TableNotFoundError, match="'t' .* was deleted|no table|was deleted"):
        table.upsert(rows(3))
    assert later.list_tables() == ["other"] and later.list_soft_deleted_tables() == []


class _Later(kudulite.model.hybrid_time.Clock):
    """A clock that is a minute ahead."""

    def now(self) -> int:
        return super().now() + (60_000_000 << 12)


def places(client: Client) -> set[str]:
    """The places of tables, with a name or without."""
    storage = client._environment.storage
    return {path.name for path in storage.entries(TABLES / ".tables") if len(path.name) == 32}


def abandon(objects: ObjectTables, library: FaultyLibrary, name: str) -> None:
    """Begin to create a table, and leave it at an object that has a text in its name."""
    library.plan = fault_in(name, "undone")
    with pytest.raises(StorageError):
        objects.client().create_table("lost", rows(1), primary_key="k")
    library.plan = no_faults


@pytest.mark.parametrize("left_at", [".tables/00000", "/manifest/"])
def test_what_a_killed_creation_has_left_is_removed_after_a_day(
    objects: ObjectTables, library: FaultyLibrary, monkeypatch: pytest.MonkeyPatch, left_at: str
):
    """By the next creation or deletion in the directory; a creation under way is left alone."""
    client = objects.client()
    objects.new_table(client)
    monkeypatch.setattr(object_storage, "LAST_ENTRY_SECONDS", -1.0)  # of those that are deleted
    before = places(client)
    abandon(objects, library, left_at)
    client.create_table("a", rows(1), primary_key="k")
    assert len(places(client)) == 3
    monkeypatch.setattr(object_storage, "HELD_SECONDS", 0.0)
    client.delete_table("a")
    assert places(client) == before
    assert client.list_tables() == ["t"]
    assert HELD_SECONDS == 24 * 3600


def test_a_creation_that_stood_still_for_a_day_begins_again(
    objects: ObjectTables, monkeypatch: pytest.MonkeyPatch
):
    """Its files are of nobody by then; it never names a table without files."""
    client, begin = objects.client(), TableStore.begin

    def late(self: TableStore, manifest: object) -> object:
        monkeypatch.setattr(TableStore, "begin", begin)
        published = self.chain.begin(manifest)
        with monkeypatch.context() as patch:
            patch.setattr(object_storage, "HELD_SECONDS", 0.0)
            objects.client().create_table("other", rows(1), primary_key="k")
        assert self.storage.name_place(self.folder, self.place)
        return published

    monkeypatch.setattr(TableStore, "begin", late)
    table = client.create_table("t", rows(1), primary_key="k")
    table.upsert(rows(1))
    assert keys(objects.client().table("t")) == [1]
    objects.client().table("t").check().raise_if_bad()


@pytest.mark.parametrize("fault", ["unanswered", "undone", "late"])
def test_a_publication_without_an_answer_keeps_both_tables(
    objects: ObjectTables, library: FaultyLibrary, fault: str
):
    """The new one has the name, or the old one; the other one can be recalled."""
    client = objects.client()
    objects.new_table(client).upsert(rows(1))
    staged = client.new_staging().create_table("t", rows(2), primary_key="k")
    staged.upsert(rows(2))
    numbers = sorted(p.stem for p in client._environment.storage.entries(TABLES / ".tables"))
    exchange = max(int(name) for name in numbers if name.isdecimal()) + 2

    def fail(kind: str, name: str) -> str:
        if kind == CREATE and name.endswith(f"/{exchange:020d}.json"):
            library.plan, library.next_gets = no_faults, [library.no_answer()]
            return fault
        return ""

    library.plan = fail
    with pytest.raises(StorageError, match="it is not known"):
        client.publish_table(staged, overwrite=True)
    for _ in range(30):
        client.list_tables()
    fresh = objects.client()
    (other,) = fresh.list_soft_deleted_tables()
    both = keys(fresh.table("t")), keys(fresh.recall_table(other.id, "other"))
    assert both == (([1], [2]) if fault == "undone" else ([2], [1]))
