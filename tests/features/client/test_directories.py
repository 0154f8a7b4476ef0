"""Directories in a directory of tables: the same on disk and in a store, seen by every client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.errors import TableExistsError, TableNotFoundError, UsageError
from kudulite.storage.object_storage import ObjectStorage
from tests.support.tables.core_tables import environment
from tests.support.tables.object_tables import ROOT, ObjectTables

# Returns a new client of the same directory of tables, or of the one of a name in it.
Clients = Callable[..., Client]


@pytest.fixture(params=["directory", "store"])
def clients(request: pytest.FixtureRequest, tmp_path: Path) -> Clients:
    """Clients that share nothing but what is stored."""
    objects = ObjectTables()

    def client(name: str = "") -> Client:
        if request.param == "directory":
            return kudulite.connect(tmp_path / "tables" / name, background_maintenance=False)
        storage = ObjectStorage(objects.store, ROOT)
        return Client(ROOT / "tables" / name, environment(storage))

    return client


def new_table(client: Client, name: str = "t") -> None:
    """A table of one row."""
    table = client.create_table(name, {"k": [1]}, primary_key="k", hash_partitions=[(["k"], 2)])
    table.insert([{"k": 1}])


def test_a_directory_is_made_listed_and_removed(clients: Clients):
    """Also before its first table and after its last one, and again."""
    client = clients()
    for _ in range(2):
        made = client.create_directory("db")
        assert clients().list_directories() == ["db"] and made.list_tables() == []
        new_table(made)
        assert clients("db").table("t").scan().count() == 1
        assert clients().list_tables() == []
        with pytest.raises(UsageError, match=r"tables/db is not empty, and so not removed: .*t"):
            clients().delete_directory("db")
        made.delete_table("t")
        assert clients().list_directories() == ["db"]
        clients().delete_directory("db")
        assert clients().list_directories() == []


def test_directories_are_no_tables_and_may_be_in_each_other(clients: Clients):
    """A table is not listed, and neither are hidden folders."""
    client = clients()
    new_table(client)
    new_table(client, "deleted")
    client.soft_delete_table("deleted", 1000)
    new_table(clients("a/b"))
    assert client.list_directories() == ["a"]
    assert clients("a").list_directories() == ["b"]
    for name in ("t", "a"):
        with pytest.raises(TableExistsError, match=f"tables/{name} exists"):
            client.create_directory(name)
    with pytest.raises(UsageError, match="is not empty, and so not removed: b"):
        client.delete_directory("a")
    clients("a/b").delete_table("t")
    clients("a").delete_directory("b")
    client.delete_directory("a")
    assert client.list_directories() == []
    for name in ("", "..", "a/b"):
        with pytest.raises(UsageError, match="is no name of a directory"):
            client.create_directory(name)


def test_a_table_that_is_made_brings_its_directory_back(clients: Clients):
    """A client that has a removed directory open may write to it; nothing is lost."""
    client = clients()
    stale = client.create_directory("db")
    assert stale.list_tables() == []
    clients().delete_directory("db")
    new_table(stale)
    assert clients().list_directories() == ["db"]
    assert clients("db").list_tables() == ["t"]


def test_a_staging_is_removed(clients: Clients):
    """As when a statement of SQL fails."""
    client = clients()
    staging = client.new_staging()
    new_table(staging)
    staging.delete_table("t")
    client.delete_directory(staging.root.name)
    storage = client._environment.storage
    left = [file.path.name for file in storage.files_below(client.root)]
    assert not [name for name in left if name.endswith(".parquet")]
    assert not storage.is_directory or not storage.exists(staging.root)


@pytest.mark.parametrize("name", ["nix", "file/x"])
def test_without_create_a_directory_must_be_there(tmp_path: Path, name: str):
    """And nothing is made."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TableNotFoundError, match=rf"no directory of tables at .*/{name}"):
        kudulite.connect(tmp_path / name, create=False)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert kudulite.connect(tmp_path, create=False).list_tables() == []
