"""FileCache: objects are read once from the store; nothing depends on the folder."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import random
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from kudulite.errors import CorruptionError, StorageError
from kudulite.storage import file_cache, object_reader
from kudulite.storage.file_cache import CachedSource, FileCache
from kudulite.storage.object_storage import ObjectStorage
from kudulite.storage.storage import FileRef
from tests.support.doubles.counting_library import CountingLibrary

ROOT = Path("memory:/bucket")
SMALL, LARGE = 50_000, 900_000


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> CountingLibrary:
    """The library, which counts."""
    return CountingLibrary.installed(monkeypatch)


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    """A folder for 4 MB, which does not exist yet."""
    return FileCache(tmp_path / "cache" / "of" / "objects", 4_000_000)


@pytest.fixture
def storage(cache: FileCache) -> ObjectStorage:
    """Objects in memory, with the cache."""
    return ObjectStorage(MemoryStore(), ROOT, cache=cache)


def content_of(length: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(length)


def put(storage: ObjectStorage, name: str, length: int) -> FileRef:
    return storage.put(ROOT / name, content_of(length))


def files_in(cache: FileCache) -> list[Path]:
    return sorted(cache.folder.iterdir()) if cache.folder.exists() else []


def whole(storage: ObjectStorage, ref: FileRef) -> bytes:
    return storage.open_whole(ROOT / ref.name, ref).content().to_pybytes()


def kept(storage: ObjectStorage, ref: FileRef) -> CachedSource:
    """Read enough of a large object, and wait until it is kept."""
    source = storage.open_ranges(ROOT / ref.name, ref)
    assert isinstance(source, CachedSource)
    assert source.read([(0, ref.length)])[0].to_pybytes() == content_of(ref.length)
    assert source.thread is not None
    source.thread.join()
    return source


@pytest.mark.parametrize("length", [0, 1, SMALL, LARGE])
def test_a_whole_object_is_read_once(
    storage: ObjectStorage, cache: FileCache, library: CountingLibrary, length: int
):
    """Also by another process, whose storage is pickled."""
    ref = put(storage, "a", length)
    library.clear()
    for other in (
        storage,
        storage,
        ObjectStorage(storage._store, ROOT, cache=pickle.loads(pickle.dumps(cache))),
    ):
        assert whole(other, ref) == content_of(length)
    assert library.counts == {"get": 1}
    (file,) = files_in(cache)
    assert file.stat().st_size == length and file.stat().st_mode & 0o777 == 0o600
    assert cache.folder.stat().st_mode & 0o777 == 0o700


def test_parts_of_a_large_object_are_ranges_until_half_of_it_was_asked_for(
    storage: ObjectStorage, cache: FileCache, library: CountingLibrary
):
    """Then it is fetched beside the reads, and mapped."""
    ref, content = put(storage, "a", LARGE), content_of(LARGE)
    source = storage.open_ranges(ROOT / "a", ref)
    assert isinstance(source, CachedSource)
    source.read([(LARGE - 8, LARGE), (0, LARGE // 4)])
    assert source.thread is None and files_in(cache) == []
    source = kept(storage, ref)
    library.clear()
    assert source.read([(5, 500)])[0].to_pybytes() == content[5:500]
    assert source.file([(9, 12)]).read() == content
    source.release()
    assert source.content().to_pybytes() == content
    assert storage.open_ranges(ROOT / "a", ref).read([(1, 4)])[0].to_pybytes() == content[1:4]
    assert library.requests == []


def test_files_that_are_gone_or_changed_are_read_again(
    storage: ObjectStorage, cache: FileCache, library: CountingLibrary
):
    """Removed with their folder, cut, made of other bytes, a folder in their place."""
    ref = put(storage, "a", SMALL)
    whole(storage, ref)
    (file,) = files_in(cache)

    def flip() -> None:
        file.write_bytes(b"x" * SMALL)

    def replace() -> None:
        file.unlink()
        file.mkdir()

    def remove_all() -> None:
        file.unlink()
        cache.folder.rmdir()

    for damage in (file.unlink, remove_all, lambda: os.truncate(file, 7), flip):
        damage()
        library.clear()
        assert whole(storage, ref) == content_of(SMALL)
        assert library.counts == {"get": 1}
        assert whole(storage, ref) == content_of(SMALL)
        assert library.counts == {"get": 1}
    replace()
    assert whole(storage, ref) == whole(storage, ref) == content_of(SMALL)


def test_a_map_outlives_its_file(storage: ObjectStorage, cache: FileCache):
    """Readers that have it are not disturbed."""
    ref = put(storage, "a", LARGE)
    source = kept(storage, ref)
    for file in files_in(cache):
        file.unlink()
    assert source.content().to_pybytes() == content_of(LARGE)


def test_the_folder_is_bounded_and_the_least_recently_used_files_leave(
    storage: ObjectStorage, cache: FileCache
):
    """An object of more than a quarter is not kept."""
    refs = [put(storage, str(number), 300_000) for number in range(40)]
    for number, ref in enumerate(refs):
        whole(storage, ref)
        whole(storage, refs[0])
        stamp = time.time() - 1_000 + number
        for file in files_in(cache):
            if file.stat().st_mtime > time.time() - 500:
                os.utime(
                    file, (stamp, stamp + (0.5 if f"-{refs[0].crc32:08x}" in file.name else 0))
                )
        assert sum(file.stat().st_size for file in files_in(cache)) <= cache.capacity_bytes
    assert len(files_in(cache)) >= 10
    before = files_in(cache)
    large = put(storage, "large", cache.capacity_bytes // 4 + 1)
    assert whole(storage, large) == content_of(large.length)
    assert files_in(cache) == before


def test_what_died_while_it_was_written_is_removed(storage: ObjectStorage, cache: FileCache):
    """After an hour: another process may be writing it."""
    cache.folder.mkdir(parents=True)
    old, new = cache.folder / ".old", cache.folder / ".new"
    for file in (old, new):
        file.write_bytes(b"x")
    os.utime(old, (1, 1))
    whole(storage, put(storage, "a", 10))
    assert not old.exists() and new.exists()


@pytest.mark.parametrize("call", ["mkdir", "open", "write", "fsync", "rename"])
def test_a_disk_that_refuses_is_no_cache(
    storage: ObjectStorage,
    cache: FileCache,
    monkeypatch: pytest.MonkeyPatch,
    library: CountingLibrary,
    call: str,
):
    """Objects are read from the store, for a minute without another try; nothing is left."""

    def refuse(*_given: object, **_named: object) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    ref, large = put(storage, "a", SMALL), put(storage, "b", LARGE)
    with monkeypatch.context() as patch:
        if call == "mkdir":
            patch.setattr(Path, "mkdir", refuse)
        elif call == "write":
            patch.setattr(file_cache.os, "fdopen", lambda number, *_a, **_n: _FullFile(number))
        else:
            patch.setattr(file_cache.os, call, refuse)
        library.clear()
        assert whole(storage, ref) == whole(storage, ref) == content_of(SMALL)
        kept(storage, large)
        assert library.counts == {"get": 2, "get_ranges": 1}
    assert files_in(cache) == []
    assert not cache.takes(ref)
    monkeypatch.setattr(cache, "_refused_until", 0.0)
    whole(storage, ref)
    assert len(files_in(cache)) == 1


class _FullFile:
    """A file on a full disk."""

    def __init__(self, number: int) -> None:
        self._number = number

    def write(self, _data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def __enter__(self) -> _FullFile:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._number)


def test_an_object_that_is_not_that_of_its_reference_is_not_kept(
    storage: ObjectStorage, cache: FileCache
):
    """Its reader compares the CRC, and says so."""
    ref = put(storage, "a", SMALL)
    wrong = FileRef("a", SMALL, ref.crc32 ^ 1)
    assert whole(storage, wrong) == content_of(SMALL)
    with pytest.raises(CorruptionError, match="50000 bytes on disk, expected 7"):
        storage.open_whole(ROOT / "a", FileRef("a", 7, 1))
    assert files_in(cache) == []


def test_an_error_of_the_store_leaves_nothing(storage: ObjectStorage, cache: FileCache):
    """The object was deleted while it was fetched in the background."""
    ref = put(storage, "a", LARGE)
    source = storage.open_ranges(ROOT / "a", ref)
    source.read([(LARGE - 8, LARGE)])
    storage.delete(ROOT / "a")
    with pytest.raises(StorageError, match="it does not exist"):
        source.read([(0, LARGE // 2)])
    assert isinstance(source, CachedSource) and source.thread is not None
    source.thread.join()
    assert files_in(cache) == []


def test_files_of_several_requests_are_whole(
    storage: ObjectStorage, cache: FileCache, monkeypatch: pytest.MonkeyPatch
):
    """A large object is fetched and written in parts."""
    monkeypatch.setattr(object_reader, "_REQUEST_BYTES", 100_000)
    kept(storage, put(storage, "a", LARGE))
    assert zlib.crc32(files_in(cache)[0].read_bytes()) == zlib.crc32(content_of(LARGE))


def test_many_processes_share_a_folder(tmp_path: Path):
    """Each reads what it should, while all write the same files and remove them."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    processes = [
        context.Process(target=_read_many, args=[tmp_path / "cache", seed, theirs])
        for seed in range(3)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        assert ours.poll(120) and ours.recv() == []
    for process in processes:
        process.join()
    sizes = [file.stat().st_size for file in (tmp_path / "cache").iterdir()]
    assert sum(sizes) <= 2 * 1_000_000


def _read_many(folder: Path, seed: int, answer: Any) -> None:
    storage = ObjectStorage(MemoryStore(), ROOT, cache=FileCache(folder, 1_000_000))
    lengths = [1, 500, 70_000, 200_000, 240_000, 100_000, 150_000]
    refs = [put(storage, f"n{number}", length) for number, length in enumerate(lengths)]
    picks, wrong = random.Random(seed), list[str]()

    def read() -> None:
        for _ in range(150):
            ref = picks.choice(refs)
            source = picks.choice([storage.open_whole, storage.open_ranges])(ROOT / ref.name, ref)
            if source.content().to_pybytes() != content_of(ref.length):
                wrong.append(ref.name)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answer.send(wrong)
