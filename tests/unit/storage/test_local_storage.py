"""Durable steps: what exists is whole, what is published stays, damage is named with its path."""

import errno
import mmap
import os
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from kudulite.errors import CorruptionError, StorageError
from kudulite.storage.checked_json import decode_checked_json, encode_checked_json
from kudulite.storage.local_storage import LocalSource, LocalStorage
from kudulite.storage.storage import FileRef, read_verified, verify_file
from tests.support.doubles.killing_storage import HalfStorage, KilledError, KillingStorage


def test_a_finished_sink_describes_its_file(tmp_path: Path):
    """Length and CRC-32 are those of the bytes, however they were written."""
    with LocalStorage().open_sink(tmp_path / "a") as sink:
        assert sink.write(b"ab") == 2
        assert sink.write(memoryview(b"cde")) == 3
        assert sink.tell() == 5
        ref = sink.finish()
    assert ref == FileRef("a", 5, zlib.crc32(b"abcde"))
    assert FileRef.from_json(ref.to_json()) == ref
    verify_file(LocalStorage(), tmp_path / "a", ref)
    assert read_verified(LocalStorage(), tmp_path / "a", ref) == b"abcde"


def test_an_unfinished_sink_leaves_no_file(tmp_path: Path):
    """Leaving the block by an error removes what was written."""
    with pytest.raises(ZeroDivisionError), LocalStorage().open_sink(tmp_path / "a") as sink:
        sink.write(b"x")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_sink_never_takes_over_a_file(tmp_path: Path):
    """A name is used once."""
    LocalStorage().put(tmp_path / "a", b"1")
    with pytest.raises(StorageError, match="it exists") as caught:
        LocalStorage().open_sink(tmp_path / "a")
    assert caught.value.errno == errno.EEXIST


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path):
    """A folder that is there already is none."""
    path = tmp_path / "log"
    path.touch()
    with pytest.raises(StorageError, match="cannot create folder .*/log: .*a file is in the place"):
        LocalStorage().make_folder(path)
    path.unlink()
    for _ in range(2):
        LocalStorage().make_folder(path)


def test_publish_is_put_if_absent(tmp_path: Path):
    """The first of two wins; the loser is told, and leaves nothing."""
    assert LocalStorage().put_if_absent(tmp_path / "1.json", b"first")
    assert not LocalStorage().put_if_absent(tmp_path / "1.json", b"second")
    assert [path.name for path in tmp_path.iterdir()] == ["1.json"]
    assert (tmp_path / "1.json").read_bytes() == b"first"


def test_publish_is_lost_where_the_name_is_free_again(tmp_path: Path, monkeypatch):
    """The file that won was no version, and its writer has removed it at once."""

    def link(source: Path, target: Path) -> None:
        raise FileExistsError

    monkeypatch.setattr("os.link", link)
    assert not LocalStorage().put_if_absent(tmp_path / "a", b"x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error", [FileExistsError(), OSError(errno.EIO, ""), OSError(errno.ETIMEDOUT, "")]
)
def test_publish_is_won_where_the_reply_was_lost(tmp_path: Path, monkeypatch, error: OSError):
    """A network file system has linked it, and was asked again or gave up."""
    real = os.link

    def link(source: Path, target: Path) -> None:
        real(source, target)
        raise error

    monkeypatch.setattr("os.link", link)
    assert LocalStorage().put_if_absent(tmp_path / "a", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"


def test_publish_killed_before_any_step_shows_nothing_or_all(tmp_path: Path):
    """There is no moment at which a part of the content is visible."""
    counting = KillingStorage()
    counting.put_if_absent(tmp_path / "whole", b"content")
    for steps in range(counting.count):
        path = tmp_path / str(steps)
        with pytest.raises(KilledError):
            KillingStorage(steps).put_if_absent(path, b"content")
        assert not path.exists() or path.read_bytes() == b"content"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1], r"a: 4 bytes on disk, expected 5"),
        (lambda content: content + b"x", r"a: 6 bytes on disk, expected 5"),
        (lambda content: b"X" + content[1:], r"a: CRC 0x[0-9a-f]{8}, expected 0x"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage, message):
    """Truncated, longer, or flipped: the path, what was found, and what was expected."""
    ref = LocalStorage().put(tmp_path / "a", b"12345")
    (tmp_path / "a").write_bytes(damage(b"12345"))
    with pytest.raises(CorruptionError, match=message):
        verify_file(LocalStorage(), tmp_path / "a", ref)
    with pytest.raises(CorruptionError, match=message):
        read_verified(LocalStorage(), tmp_path / "a", ref)


def test_a_missing_file_is_a_storage_error_with_its_path(tmp_path: Path):
    """Not corruption: somebody removed it."""
    with pytest.raises(StorageError, match=r"cannot read .*/gone: it does not exist"):
        verify_file(LocalStorage(), tmp_path / "gone", FileRef("gone", 1, 1))


def test_an_append_file_grows_and_is_cut_back(tmp_path: Path):
    """Only what exists is opened; the size is the file's, whoever changed it."""
    path = tmp_path / "log"
    with pytest.raises(StorageError, match=r"cannot open .*/log: it does not exist"):
        LocalStorage().open_append(path)
    path.write_bytes(b"head")
    with LocalStorage().open_append(path) as file, LocalStorage().open_append(path) as other:
        file.append(b"12345678", 4)
        file.sync()
        assert path.read_bytes() == b"head12345678"
        assert file.size() == other.size() == 12
        other.cut(6)
        assert file.size() == 6
        assert file.read(2, 100) == b"ad12"
        assert file.read(100, 2) == b""
        file.close()


def test_a_double_can_stop_each_step_of_an_append_file(tmp_path: Path):
    """append, truncate and fsync are durable steps; nothing of a stopped one happens."""
    path = tmp_path / "log"
    path.write_bytes(b"head")
    with KillingStorage(0).open_append(path) as file:
        for step in (lambda: file.append(b"x", 4), lambda: file.cut(1), file.sync):
            with pytest.raises(KilledError):
                step()
    assert path.read_bytes() == b"head"
    counting = KillingStorage()
    with counting.open_append(path) as file:
        file.append(b"x", 4)
        file.cut(4)
        file.sync()
    assert counting.count == 3


def test_an_append_that_fails_half_way_is_a_storage_error(tmp_path: Path):
    """With the path and what to do; short writes alone are no failure."""
    path = tmp_path / "log"
    path.write_bytes(b"")
    disk = HalfStorage(None)
    with disk.open_append(path) as file:
        file.append(b"0123456789", 0)
        disk.error = OSError(errno.ENOSPC, "full")
        with pytest.raises(
            StorageError, match=r"append to .*/log: No space .*; free some"
        ) as caught:
            file.append(b"abcdef", 10)
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"0123456789abc"


def test_ranges_of_a_file_are_read_at_one_opening(tmp_path: Path):
    """Shorter where the file ends; without a length all that is left."""
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    ranges = [(0, 2), (8, 5), (7, None), (10, None), (99, 3)]
    assert LocalStorage().read_ranges(path, ranges) == (10, [b"01", b"89", b"789", b"", b""])
    with pytest.raises(StorageError, match=r"cannot read .*/gone: it does not exist") as caught:
        LocalStorage().read_ranges(tmp_path / "gone", [(0, 1)])
    assert caught.value.errno == errno.ENOENT


def test_a_metadata_file_with_another_number_is_damaged():
    """Still JSON, but not that of its checksum."""
    content = encode_checked_json({"version": 7})
    assert decode_checked_json(content, "x", "a manifest") == {"version": 7}
    with pytest.raises(CorruptionError, match="x: CRC 0x"):
        decode_checked_json(content.replace(b"7", b"8", 1), "x", "a manifest")


def test_an_open_folder_stays_the_same_one(tmp_path):
    """An open folder deletes its own files, also when another folder has its path."""
    path, moved = tmp_path / "f", tmp_path / "moved"
    path.mkdir()
    (path / "a").write_bytes(b"")
    with LocalStorage().directory.open_folder(path) as folder:
        assert folder.is_at_its_path()
        path.rename(moved)
        assert not folder.is_at_its_path()
        path.mkdir()
        (path / "a").write_bytes(b"")
        assert not folder.is_at_its_path()
        folder.delete("a")
        folder.delete("a")
    assert (list(moved.iterdir()), list(path.iterdir())) == ([], [path / "a"])
    with pytest.raises(StorageError, match="does not exist"):
        LocalStorage().directory.open_folder(tmp_path / "none")


def test_only_the_pages_of_a_map_are_given_back():
    """Other memory would be lost, also where it begins at a page."""
    memory = mmap.mmap(-1, 1 << 17)
    memory.write(b"x" * (1 << 17))
    source = LocalSource(pa.py_buffer(memory), is_map=False)
    assert source.content().address % mmap.PAGESIZE == 0
    source.release()
    assert source.content().to_pybytes() == b"x" * (1 << 17)
