"""Folders as they are found: paths of users, tables, damaged tables, and neither."""

from pathlib import Path

import pytest

import kudulite
from kudulite.chain import folder as folder_module
from kudulite.chain import version_chain
from kudulite.chain.folder import check_has_no_lost_table
from kudulite.errors import CorruptionError, TableExistsError
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.storage import Storage
from tests.support.tables.core_tables import CoreTables


@pytest.mark.parametrize("lost", ["*", "0*"])
def test_a_table_that_lost_its_manifest_is_damaged(core: CoreTables, lost):
    """With its hint or without: it is not absent, and no table is created in its place."""
    client = core.client()
    client.create_table("t", {"id": [1]}, primary_key="id").insert([{"id": 1}])
    folder = client.root / "t"
    for path in (folder / "manifest").glob(lost):
        path.unlink()
    for use in (
        lambda: kudulite.open_table(folder),
        lambda: client.table("t"),
        lambda: client.create_table("t", {"id": [1]}, primary_key="id"),
    ):
        with pytest.raises(CorruptionError, match="without its manifest: .*restore"):
            use()
    with pytest.warns(UserWarning, match="left out of the list of tables: .*/t: a table without"):
        assert client.list_tables() == []


@pytest.mark.parametrize("is_filled", [False, True], ids=["empty", "with rows"])
def test_a_creation_at_the_same_time_is_no_damage(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch, is_filled: bool
):
    """The table that another process creates between two looks exists, as its message says."""
    other, real = core.client(), folder_module.listed_versions
    for name in ("manifest", "tablet"):  # as the other has just begun
        (other.root / "t" / name).mkdir(parents=True)

    def listed_versions(storage: Storage, folder: Path) -> list[int]:
        monkeypatch.setattr(folder_module, "listed_versions", real)
        found = real(storage, folder)
        table = other.create_table("t", {"id": [1]}, primary_key="id")
        if is_filled:
            table.insert([{"id": 1}])
        return found

    monkeypatch.setattr(folder_module, "listed_versions", listed_versions)
    with pytest.raises(TableExistsError):
        core.client().create_table("t", {"id": [1]}, primary_key="id")
    assert other.table("t").scan().count() == int(is_filled)


def test_a_hint_of_a_deleted_table_is_none_of_the_next_one(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch
):
    """Its table was deleted, and another one created, between two looks at the folder."""
    other, real = core.client(), folder_module.hinted_version
    table = other.create_table("t", {"id": [1]}, primary_key="id")
    for value in range(3):
        table.upsert([{"id": value}])

    def hinted_version(storage: Storage, folder: Path) -> int:
        monkeypatch.setattr(version_chain, "hinted_version", real)
        found = real(storage, folder)
        other.delete_table("t")
        other.create_table("t", {"id": [1]}, primary_key="id")
        return found

    monkeypatch.setattr(version_chain, "hinted_version", hinted_version)
    assert core.client().table("t").version == 1


def test_a_creation_that_was_interrupted_is_no_damage(core: CoreTables):
    """Its folders are there, its first version is not: the next creation completes it."""
    client = core.client()
    client.create_table("t", {"id": [1]}, primary_key="id")
    folder = client.root / "t"
    for path in (folder / "manifest").iterdir():
        path.unlink()
    check_has_no_lost_table(LocalStorage(), folder)
    assert client.list_tables() == []
    client.create_table("t", {"id": [1]}, primary_key="id").insert([{"id": 1}])
    assert client.list_tables() == ["t"]
