"""Folders of tables in a store: names, moves and exchanges in one step each, races of both."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from kudulite.errors import CorruptionError, StorageError
from kudulite.storage.object_storage import LAST_ENTRY_SECONDS, ObjectStorage
from kudulite.storage.storage import Listed
from kudulite.storage.table_folders import FOLDERS_NAME, TableFolders
from kudulite.table.removal import discard_folder
from tests.support.tables.core_tables import environment

ROOT = Path("memory:/bucket/tables")


@pytest.fixture
def storage() -> ObjectStorage:
    """Objects in memory."""
    return ObjectStorage(MemoryStore(), ROOT.parent)


def make(storage: ObjectStorage, name: str) -> Path:
    """A table's folder with one object; its place."""
    place = storage.new_place(ROOT / name)
    storage.put(place / "manifest" / f"{1:020d}.json", name.encode())
    assert storage.name_place(ROOT / name, place)
    return place


def content(storage: ObjectStorage, name: str) -> bytes:
    """The object of a table's folder."""
    return storage.read(storage.place_of(ROOT / name) / "manifest" / f"{1:020d}.json")


def test_a_folder_has_a_place_as_soon_as_it_has_a_name(storage: ObjectStorage):
    """Before that, and without a table, its place is empty."""
    place = storage.new_place(ROOT / "a")
    assert storage.place_of(ROOT / "a") != place
    assert not storage.exists(ROOT / "a") and storage.entries(ROOT) == []
    make(storage, "a")
    assert content(storage, "a") == b"a"
    assert storage.exists(ROOT / "a") and storage.entries(ROOT) == [ROOT / "a"]
    other = storage.new_place(ROOT / "a")
    assert not storage.name_place(ROOT / "a", other)
    assert storage.entries(storage.place_of(ROOT / "b")) == []


def test_folders_are_moved_and_exchanged_in_one_step(storage: ObjectStorage):
    """Into hidden folders and out of them; objects stay where they are."""
    make(storage, "a")
    make(storage, "b")
    storage.move(ROOT / "a", ROOT / ".soft-deleted-1-2-x" / "a")
    assert storage.entries(ROOT) == [ROOT / ".soft-deleted-1-2-x", ROOT / "b"]
    assert storage.entries(ROOT / ".soft-deleted-1-2-x") == [ROOT / ".soft-deleted-1-2-x" / "a"]
    assert storage.exists(ROOT / ".soft-deleted-1-2-x") and not storage.exists(ROOT / "a")
    assert storage.exchange(ROOT / ".soft-deleted-1-2-x" / "a", ROOT / "b")
    assert content(storage, "b") == b"a" and content(storage, ".soft-deleted-1-2-x/a") == b"b"
    storage.move(ROOT / ".soft-deleted-1-2-x", ROOT / ".deleted-y")
    assert storage.entries(ROOT) == [ROOT / ".deleted-y", ROOT / "b"]
    with pytest.raises(StorageError) as error:
        storage.move(ROOT / "gone", ROOT / "c")
    assert error.value.errno == errno.ENOENT
    with pytest.raises(StorageError) as error:
        storage.move(ROOT / ".deleted-y", ROOT / "b")
    assert error.value.errno == errno.EEXIST
    with pytest.raises(StorageError, match="cannot exchange .*gone"):
        storage.exchange(ROOT / "gone", ROOT / "b")


def test_others_see_each_change_and_of_two_one_wins(storage: ObjectStorage):
    """Each process that lost makes its change of what the other has left."""
    stores = [ObjectStorage(storage._store, ROOT.parent) for _ in range(4)]
    made: list[str] = []

    def run(number: int) -> None:
        mine = stores[number]
        for turn in range(6):
            place = mine.new_place(ROOT / "x")
            if mine.name_place(ROOT / f"t{turn}", place):
                made.append(f"t{turn}")
            mine.name_place(ROOT / f"own-{number}-{turn}", place)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [f"t{turn}" for turn in range(6)]
    names = {path.name for path in storage.entries(ROOT)} or set()
    storage.place_of(ROOT / "x")
    names = {path.name for path in storage.entries(ROOT)}
    assert names == {*made, *(f"own-{n}-{turn}" for n in range(4) for turn in range(6))}


def test_superseded_files_go_and_the_last_entry_of_a_deleted_table_stays(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
):
    """For an hour each; then the name goes, too."""
    place = make(storage, "a")
    storage.put(place / "manifest" / f"{2:020d}.json", b"end")
    storage.put(place / "manifest" / "hint", b"2")
    storage.put(place / "tablet" / "x", b"rows")
    storage.move(ROOT / "a", ROOT / ".deleted-1")
    storage.delete_below(ROOT / ".deleted-1")
    assert [file.path.name for file in storage.files_below(place)] == [
        f"{1:020d}.json",
        f"{2:020d}.json",
    ]
    assert storage.exists(ROOT / ".deleted-1")

    real = storage.files_below

    def old(folder: Path, **options: bool) -> list[Listed]:
        return [Listed(f.path, f.length, 2 * LAST_ENTRY_SECONDS) for f in real(folder, **options)]

    listed = storage.listed
    monkeypatch.setattr(storage, "files_below", old)
    monkeypatch.setattr(
        storage,
        "listed",
        lambda folder: [Listed(f.path, f.length, 9999.0) for f in listed(folder)],
    )
    storage.delete_below(ROOT / ".deleted-1")
    assert not storage.exists(ROOT / ".deleted-1") and list(real(place)) == []
    numbers = [file.path.stem for file in listed(ROOT / FOLDERS_NAME)]
    assert numbers == [f"{3:020d}", "hint"]
    storage.delete(ROOT / FOLDERS_NAME / "hint")
    assert ObjectStorage(storage._store, ROOT.parent).table_names(ROOT) == []
    make(storage, "b")
    assert content(ObjectStorage(storage._store, ROOT.parent), "b") == b"b"


def test_a_damaged_list_is_an_error_that_names_it(storage: ObjectStorage):
    """Its CRC, its number, a name that is no place, a newer format."""
    make(storage, "a")
    path = ROOT / FOLDERS_NAME / f"{1:020d}.json"
    good = storage.read(path)
    storage.delete(ROOT / FOLDERS_NAME / "hint")
    for text in (good.replace(b'"a"', b'"b"'), b"{}", b""):
        storage.put_hint(path, text)
        with pytest.raises(CorruptionError, match="0001.json"):
            TableFolders(storage, ROOT).newest()
    storage.put_hint(ROOT / FOLDERS_NAME / f"{2:020d}.json", good)
    storage.put_hint(path, good)
    with pytest.raises(CorruptionError, match="number 1, expected 2"):
        TableFolders(storage, ROOT).newest()


def test_the_hint_is_a_copy_of_the_newest_list(storage: ObjectStorage):
    """A hint that is old or damaged is not used. If the newest list is lost, an error says so."""
    make(storage, "a")
    hint = ROOT / FOLDERS_NAME / "hint"
    older = storage.read(hint)
    make(storage, "b")
    newer = storage.read(hint)
    assert newer == storage.read(ROOT / FOLDERS_NAME / f"{2:020d}.json") != older
    for text in (newer, older, newer[:-1], b"2", b""):
        storage.put_hint(hint, text)
        assert TableFolders(storage, ROOT).table_names() == ["a", "b"]
    storage.put_hint(hint, newer)
    storage.delete(ROOT / FOLDERS_NAME / f"{2:020d}.json")
    with pytest.raises(CorruptionError, match="has number 1, but number 2 was there; put 0+2.json"):
        TableFolders(storage, ROOT).newest()
    storage.put(ROOT / FOLDERS_NAME / f"{2:020d}.json", newer)
    assert TableFolders(storage, ROOT).table_names() == ["a", "b"]


def test_a_table_is_moved_only_from_its_own_place(storage: ObjectStorage):
    """Another table may have got its folder meanwhile, which stays there."""
    gone = make(storage, "a")
    storage.move(ROOT / "a", ROOT / "b", gone)
    make(storage, "a")
    with pytest.raises(StorageError, match="does not exist") as found:
        storage.move(ROOT / "a", ROOT / "c", gone)
    assert found.value.errno == errno.ENOENT
    assert content(storage, "a") == b"a" and storage.entries(ROOT) == [ROOT / "a", ROOT / "b"]


def test_a_hidden_folder_has_no_list_of_its_own(storage: ObjectStorage):
    """Its tables are in the list of the directory, also for a caller that takes it for one."""
    storage.make_root(ROOT)
    hidden = ROOT / ".restore-a"
    make(storage, ".restore-a/table")
    storage.make_root(hidden)
    assert storage.entries(hidden) == [hidden / "table"] and storage.exists(hidden / "table")
    assert storage.table_names(hidden) == ["table"] and storage.table_names(ROOT) == []


def test_a_discarded_folder_takes_its_tables_along(storage: ObjectStorage):
    """A table that has another folder by then is kept."""
    storage.make_root(ROOT)
    hidden = ROOT / ".restore-a"
    make(storage, ".restore-a/one")
    make(storage, ".restore-a/two")
    storage.move(hidden / "two", ROOT / "two")
    for _ in range(2):
        discard_folder(hidden, ROOT, environment(storage))
    assert not storage.exists(hidden) and content(storage, "two") == b".restore-a/two"
