"""Durable steps: what exists is whole, what is published stays, damage is named with its path."""

import errno
import zlib
from pathlib import Path

import pytest
from killing_file_system import KilledError, KillingFileSystem

from kudulite.errors import CorruptionError, StorageError
from kudulite.fs.file_system import FileRef, FileSystem, verify_file


def test_a_finished_sink_describes_its_file(tmp_path: Path):
    """Length and CRC-32 are those of the bytes, however they were written."""
    with FileSystem().open_sink(tmp_path / "a") as sink:
        assert sink.write(b"ab") == 2
        assert sink.write(memoryview(b"cde")) == 3
        assert sink.tell() == 5
        ref = sink.finish()
    assert ref == FileRef("a", 5, zlib.crc32(b"abcde"))
    assert FileRef.from_json(ref.to_json()) == ref
    verify_file(tmp_path / "a", ref)
    assert FileSystem().read_verified(tmp_path / "a", ref) == b"abcde"


def test_an_unfinished_sink_leaves_no_file(tmp_path: Path):
    """Leaving the block by an error removes what was written."""
    with pytest.raises(ZeroDivisionError), FileSystem().open_sink(tmp_path / "a") as sink:
        sink.write(b"x")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_sink_never_takes_over_a_file(tmp_path: Path):
    """A name is used once."""
    FileSystem().write_file(tmp_path / "a", b"1")
    with pytest.raises(StorageError, match="it exists") as caught:
        FileSystem().open_sink(tmp_path / "a")
    assert caught.value.errno == errno.EEXIST


def test_publish_is_put_if_absent(tmp_path: Path):
    """The first of two wins; the loser is told, and leaves nothing."""
    assert FileSystem().publish(tmp_path / "1.json", b"first")
    assert not FileSystem().publish(tmp_path / "1.json", b"second")
    assert [path.name for path in tmp_path.iterdir()] == ["1.json"]
    assert (tmp_path / "1.json").read_bytes() == b"first"


def test_publish_killed_before_any_step_shows_nothing_or_all(tmp_path: Path):
    """There is no moment at which a part of the content is visible."""
    counting = KillingFileSystem()
    counting.publish(tmp_path / "whole", b"content")
    for steps in range(counting.count):
        path = tmp_path / str(steps)
        with pytest.raises(KilledError):
            KillingFileSystem(steps).publish(path, b"content")
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
    ref = FileSystem().write_file(tmp_path / "a", b"12345")
    (tmp_path / "a").write_bytes(damage(b"12345"))
    with pytest.raises(CorruptionError, match=message):
        verify_file(tmp_path / "a", ref)
    with pytest.raises(CorruptionError, match=message):
        FileSystem().read_verified(tmp_path / "a", ref)


def test_a_missing_file_is_a_storage_error_with_its_path(tmp_path: Path):
    """Not corruption: somebody removed it."""
    with pytest.raises(StorageError, match=r"cannot read .*/gone: it does not exist"):
        verify_file(tmp_path / "gone", FileRef("gone", 1, 1))
