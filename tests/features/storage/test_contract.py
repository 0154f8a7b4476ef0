"""The contract of a Storage: each implementation is in STORAGES and passes the same tests."""

import errno
import functools
import os
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from kudulite.errors import CorruptionError, LockTimeoutError, StorageError
from kudulite.storage.file_cache import FileCache
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.new_files import NewFiles
from kudulite.storage.object_storage import ObjectStorage
from kudulite.storage.storage import (
    MAPPED_BYTES_MIN,
    FileRef,
    Storage,
    check_length,
    is_taken,
    read_verified,
    verify_file,
)
from tests.support.doubles.faulty_storage import FaultyStorage
from tests.support.object_server import ObjectServer

SERVER = "objects of a server"
STORAGES: dict[str, Callable[[Path], Storage]] = {
    "directory": lambda _: LocalStorage(),
    "a double without faults": lambda _: FaultyStorage(LocalStorage()),
    "objects in memory": lambda root: ObjectStorage(MemoryStore(), root),
    "objects and a cache": lambda root: ObjectStorage(
        MemoryStore(), root, cache=FileCache(root.with_name(f"{root.name}-cache"), 64 << 20)
    ),
}


@pytest.fixture(params=[*STORAGES, pytest.param(SERVER, marks=pytest.mark.full)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """Each implementation."""
    if request.param == SERVER:
        server: ObjectServer = request.getfixturevalue("object_server")
        return ObjectStorage(server.store(tmp_path.name), tmp_path)
    return STORAGES[request.param](tmp_path)


@pytest.fixture
def folder(storage: Storage, tmp_path: Path) -> Path:
    """A place for names, made."""
    place = tmp_path / "above" / "place"
    storage.make_root(place)
    return place


LENGTHS = [0, 1, MAPPED_BYTES_MIN, MAPPED_BYTES_MIN + 1, 5 << 20]


@pytest.mark.parametrize("length", LENGTHS)
def test_every_way_of_reading_gives_what_was_put(storage: Storage, folder: Path, length: int):
    """Whole, by ranges, opened; length and reference."""
    content, path = os.urandom(length), folder / "new" / "a"
    ref = storage.put(path, content)
    assert ref == FileRef("a", length, zlib.crc32(content))
    assert storage.read(path) == read_verified(storage, path, ref) == content
    assert storage.length(path) == length
    assert storage.open(path, ref).read_buffer().to_pybytes() == content
    for opened in (storage.open_whole(path, ref), storage.open_ranges(path, ref)):
        assert opened.content().to_pybytes() == content
        parts = opened.read([(1, 5), (length - 3, length + 9)] if length > 3 else [(0, 9)])
        expected = [content[1:5], content[-3:]] if length > 3 else [content]
        assert [part.to_pybytes() for part in parts] == expected
        assert opened.file([(0, 1)]).read() == content
        opened.release()
        assert opened.content().to_pybytes() == content
    assert 0 <= storage.kept_bytes(ref) <= length
    whole, parts = storage.read_ranges(path, [(0, 3), (2, None), (length, 9), (length + 7, 1)])
    assert (whole, parts) == (length, [content[:3], content[2:], b"", b""])
    whole, parts = storage.read_ranges(path, [(-3, None), (-2, 1), (-length - 9, 4), (1, 0)])
    ends = [content[-3:], content[-2:][:1], content[:4], b""]
    assert (whole, parts, storage.read_ranges(path, [])) == (length, ends, (length, []))
    verify_file(storage, path, ref)
    check_length(storage, path, ref)
    storage.sync([folder, folder / "new"])


def test_a_sink_is_a_file_when_it_is_finished(storage: Storage, folder: Path):
    """One that is given up is none."""
    with storage.open_sink(folder / "a") as sink:
        assert (sink.write(b"ab"), sink.write(memoryview(b"c")), sink.tell()) == (2, 1, 3)
        assert sink.finish() == FileRef("a", 3, zlib.crc32(b"abc"))
    with pytest.raises(ZeroDivisionError), storage.open_sink(folder / "b") as sink:
        sink.write(b"x")
        raise ZeroDivisionError
    assert storage.entries(folder) == [folder / "a"]
    assert storage.read(folder / "a") == b"abc"


def test_a_name_is_put_once(storage: Storage, folder: Path):
    """The content that was there stays."""
    storage.put(folder / "a", b"first")
    with pytest.raises(StorageError, match="it exists") as refused:
        storage.put(folder / "a", b"second")
    assert refused.value.errno == errno.EEXIST
    assert not storage.put_if_absent(folder / "a", b"third")
    assert storage.read(folder / "a") == b"first"


@pytest.mark.parametrize("storage", ["directory", "a double without faults"], indirect=True)
def test_a_put_makes_one_folder_and_never_two(storage: Storage, folder: Path):
    """A late file of a table that was deleted does not bring its folders back."""
    storage.put(folder / "rowset" / "a", b"x")
    for put in (storage.put, storage.put_if_absent):
        with pytest.raises(StorageError) as refused:
            put(folder / "gone" / "rowset" / "a", b"x")
        assert refused.value.errno == errno.ENOENT
    with pytest.raises(StorageError):
        storage.put_if_absent(folder / "gone" / "a", b"x")
    assert storage.entries(folder) == [folder / "rowset"]


def test_one_of_many_is_the_first(storage: Storage, folder: Path):
    """The content is that of the one that was answered True, whole at every moment."""
    won: list[bytes] = []
    begin = threading.Barrier(8)

    def race(number: int) -> None:
        content = bytes([number]) * 10_000
        begin.wait()
        if storage.put_if_absent(folder / "1", content):
            won.append(content)

    threads = [threading.Thread(target=race, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [storage.read(folder / "1")] == won
    assert storage.entries(folder) == [folder / "1"]


def test_a_hint_is_replaced(storage: Storage, folder: Path):
    """It leaves no other file."""
    for content in (b"1", b"22"):
        storage.put_hint(folder / "hint", content)
        assert storage.read(folder / "hint") == content
    assert storage.entries(folder) == [folder / "hint"]


def test_names_are_listed_and_found(storage: Storage, folder: Path):
    """Below a folder, in it, and one by one; what is not there is empty, or None."""
    for name in ("b", "a/x", "a/y"):
        storage.put(folder / name, name.encode())
    assert storage.entries(folder) == [folder / "a", folder / "b"]
    assert storage.entries(folder / "b") == storage.entries(folder / "gone") == []
    below = {found.path: found.length for found in storage.files_below(folder)}
    assert below == {folder / "b": 1, folder / "a" / "x": 3, folder / "a" / "y": 3}
    assert all(-5 < found.age_seconds < 60 for found in storage.files_below(folder))
    names = {place: sorted(found) for place, found in storage.names_below(folder).items()}
    assert names == {folder: ["b"], folder / "a": ["x", "y"]}
    assert list(storage.files_below(folder / "gone")) == []
    assert storage.names_below(folder / "gone") == {}
    assert [is_taken(storage, folder / n) for n in ("a", "b", "gone", "b/x")] == [True, True, 0, 0]
    assert [storage.exists(folder / n) for n in ("b", "gone", "b/x")] == [True, False, False]
    assert [storage.is_folder(folder / n) for n in ("a", "b", "gone")] == [True, False, False]
    assert storage.identity(folder / "gone") is None
    assert storage.identity(folder / "b") == storage.identity(folder / "b") is not None


def check_identities(storage: Storage, folder: Path, first: bytes, second: bytes) -> None:
    storage.put(folder / "1", first)
    before = storage.identity(folder / "1")
    storage.put(folder / "keeps the first inode busy", b"")
    storage.delete(folder / "1")
    storage.put(folder / "other", b"")
    storage.put(folder / "1", second)
    assert storage.identity(folder / "1") not in (before, None)


def test_another_file_of_a_name_has_another_identity(storage: Storage, folder: Path):
    """A table was deleted and created again: its version 1 is another one."""
    check_identities(storage, folder, b"table 1", b"table 2")


@pytest.mark.parametrize("storage", STORAGES, indirect=True)
def test_another_file_of_equal_bytes_has_another_identity(storage: Storage, folder: Path):
    """On a server that knows an object by its bytes and its second it may have the same."""
    check_identities(storage, folder, b"same", b"same")


def test_what_is_gone_is_not_missed_by_a_delete(storage: Storage, folder: Path):
    """Files, empty folders, whole trees; a folder with a file in it stays."""
    storage.put(folder / "a" / "x", b"x")
    storage.delete_folder(folder / "a")
    assert storage.exists(folder / "a" / "x")
    storage.delete(folder / "a" / "x")
    storage.delete(folder / "a" / "x")
    storage.delete_folder(folder / "a")
    storage.delete_folder(folder / "a")
    storage.put(folder / "b" / "y", b"y")
    storage.make_folder(folder / "b" / "deep")
    storage.put(folder / "b" / "deep" / "z", b"z")
    storage.delete_below(folder / "b")
    storage.delete_below(folder / "b")
    assert list(storage.files_below(folder)) == []


@pytest.mark.parametrize("storage", STORAGES, indirect=True)
def test_a_folder_without_files_goes(storage: Storage, folder: Path):
    """Some servers list it for a while."""
    storage.put(folder / "a" / "x", b"x")
    storage.put(folder / "b" / "x", b"x")
    storage.delete(folder / "a" / "x")
    storage.delete_folder(folder / "a")
    storage.delete_below(folder / "b")
    assert storage.entries(folder) == []


def test_a_folder_is_no_entry_of_itself(storage: Storage, folder: Path):
    """Some servers keep an object for a folder whose files are gone, and so do their consoles."""
    storage.make_folder(folder / "a")
    storage.put(folder / "a" / "x", b"x")
    storage.delete(folder / "a" / "x")
    assert storage.entries(folder / "a") == []


def test_a_directory_of_tables_is_there_without_one(storage: Storage, folder: Path):
    """From its making to its removal, which is refused while something is in it."""
    root = folder / "root"
    assert not storage.is_root(root)
    for _ in range(2):
        storage.new_root(root)
        storage.new_root(root)
        assert storage.is_root(root) and storage.table_names(root) in ([], None)
        assert folder / "root" in storage.entries(folder)
        storage.put(root / "a", b"x")
        with pytest.raises(StorageError) as found:
            storage.delete_root(root)
        assert found.value.errno == errno.ENOTEMPTY
        storage.delete(root / "a")
        assert storage.is_root(root)
        storage.delete_root(root)
        assert not storage.is_root(root)
    assert storage.is_root(folder) or not storage.is_directory


@pytest.mark.parametrize("read", ["read", "length", "read_ranges", "open", "open_whole"])
def test_a_missing_file_is_named(storage: Storage, folder: Path, read: str):
    """ENOENT, by which callers know what another process has removed."""
    ref = FileRef("gone", 1, 1)
    more = {"read_ranges": [[(0, 1)]], "open": [ref], "open_whole": [ref]}
    with pytest.raises(StorageError, match="gone: it does not exist") as missing:
        getattr(storage, read)(folder / "gone", *more.get(read, []))
    assert missing.value.errno == errno.ENOENT
    with pytest.raises(StorageError, match="gone: it does not exist"):
        storage.open_ranges(folder / "gone", ref).read([(0, 1)])


def test_a_file_that_is_not_the_one_of_a_reference_is_damage(storage: Storage, folder: Path):
    """Another length, other bytes; a link, and a folder that is one."""
    ref = storage.put(folder / "a", b"abc")
    for wrong in (FileRef("a", 4, ref.crc32), FileRef("a", 3, ref.crc32 ^ 1)):
        for check in (read_verified, verify_file):
            with pytest.raises(CorruptionError, match=str(folder / "a")):
                check(storage, folder / "a", wrong)
    longer = FileRef("a", 4, ref.crc32)
    with pytest.raises(CorruptionError, match="3 bytes on disk, expected 4"):
        storage.open(folder / "a", longer)
    with pytest.raises(CorruptionError, match="3 bytes on disk, expected 4"):
        storage.open_ranges(folder / "a", longer).read([(0, 2)])


def test_work_side_by_side_is_in_order_and_its_first_error_is_raised(storage: Storage):
    """A prefetch is done or not."""
    done: list[int] = []

    def work(number: int) -> int:
        if number in (7, 9):
            raise ValueError(str(number))
        done.append(number)
        return -number

    assert storage.side_by_side(work, range(7)) == [0, -1, -2, -3, -4, -5, -6]
    assert storage.side_by_side(work, []) == []
    with pytest.raises(ValueError, match="7"):
        storage.side_by_side(work, range(5, 12))
    before = len(done)
    storage.prefetch(functools.partial(work, 1) for _ in range(3))
    assert len(done) - before in (0, 3)


def test_new_files_have_the_name_of_their_write(storage: Storage, folder: Path):
    """Each file has a name of its own; all are durable after one sync."""
    files = NewFiles(storage, "0123456789abcdef" * 2)
    rowset = files.new_rowset(folder)
    refs = [files.put(rowset, "redo", b"x"), files.put(rowset, "redo", b"x")]
    with files.sink(folder, "tombstone") as sink:
        sink.finish()
    files.sync()
    names = [rowset.name, *(ref.name.removeprefix("redo-") for ref in refs)]
    assert all(name.startswith("0123456789abcdef-") for name in names) and len(set(names)) == 3
    assert len(list(storage.files_below(folder))) == 3


def test_an_export_replaces_a_file_when_it_is_finished(storage: Storage, folder: Path):
    """One that is not finished leaves the other one, and nothing beside it."""
    storage.make_folders(folder)
    path = folder / "export"
    for content in (b"first", b"second"):
        with storage.open_replacing_sink(path) as sink:
            sink.write(content)
            ref = sink.finish()
        assert (ref.name, ref.length) == ("export", len(content))
        assert storage.read(path) == content
    with storage.open_replacing_sink(path) as sink:
        sink.write(b"third")
    assert storage.read(path) == b"second" and storage.entries(folder) == [path]


def test_a_lease_says_whether_others_are_kept_out(storage: Storage, folder: Path):
    """Where it says no, a second one is given."""
    storage.make_folders(folder)
    is_refused = False
    with storage.lease(folder / "lock", 0.0, "work") as is_alone:
        try:
            with storage.lease(folder / "lock", 0.0, "work"):
                pass
        except LockTimeoutError:
            is_refused = True
    assert is_alone == is_refused
