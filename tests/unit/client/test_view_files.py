"""Texts of views in a directory of tables: the same on disk and in a store."""

from collections.abc import Callable
from pathlib import Path

import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.errors import CorruptionError, SchemaError, TableExistsError, TableNotFoundError
from kudulite.storage.object_storage import ObjectStorage
from tests.support.tables.core_tables import environment
from tests.support.tables.object_tables import ROOT, ObjectTables

# Returns a new client of the same directory.
Clients = Callable[[], Client]


@pytest.fixture(params=["directory", "store"])
def clients(request: pytest.FixtureRequest, tmp_path: Path) -> Clients:
    """Clients that share nothing but what is stored."""
    objects = ObjectTables()

    def client() -> Client:
        if request.param == "directory":
            return kudulite.connect(tmp_path / "tables", background_maintenance=False)
        return Client(ROOT / "tables", environment(ObjectStorage(objects.store, ROOT)))

    return client


def test_a_view_is_written_read_replaced_and_removed(clients: Clients):
    """Every client sees the newest text; names may have dots and spaces."""
    client = clients()
    assert client.list_views() == []
    for name in ("v", "a.b", "ü w"):
        client.write_view(name, f"é {name}")
    assert clients().list_views() == ["a.b", "v", "ü w"]
    with pytest.raises(TableExistsError, match="view 'v' exists in"):
        clients().write_view("v", "other")
    assert clients().read_view("v") == "é v"
    clients().write_view("v", "other", replace=True)
    client.write_view("new", "n", replace=True)
    assert [client.read_view(name) for name in ("v", "new", "a.b")] == ["other", "n", "é a.b"]
    clients().delete_view("a.b")
    assert client.list_views() == ["new", "v", "ü w"]
    for call in (client.read_view, client.delete_view):
        with pytest.raises(TableNotFoundError, match="no view 'a.b' in .*; views: new, v, ü w"):
            call("a.b")


def test_views_are_no_tables(clients: Clients):
    """A table may have the name of a view; neither is listed as the other, nor as a directory."""
    client = clients()
    client.write_view("t", "text")
    client.create_table("t", {"k": [1]}, primary_key="k", data=[{"k": 1}])
    client.create_table("u", {"k": [1]}, primary_key="k")
    assert (client.list_tables(), client.list_views()) == (["t", "u"], ["t"])
    assert client.list_directories() == []
    client.delete_table("t")
    assert clients().read_view("t") == "text"


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a\0b"])
def test_a_name_that_no_table_can_have_is_refused(clients: Clients, name: str):
    """By each call."""
    for call in (clients().read_view, clients().delete_view):
        with pytest.raises(SchemaError):
            call(name)
    with pytest.raises(SchemaError):
        clients().write_view(name, "x")
    assert clients().list_views() == []


def test_a_file_that_is_no_text_is_damage(tmp_path: Path):
    """The error names the view."""
    (tmp_path / "v.view").write_bytes(b"\xff")
    with pytest.raises(CorruptionError, match="view 'v' in .* is no text in UTF-8"):
        kudulite.connect(tmp_path).read_view("v")
