"""A held file is free when its process has died, and nobody finds it unlocked before."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kudulite.errors import StorageError
from kudulite.storage.held_file import HeldFile, is_held, remove_hidden, touch
from kudulite.storage.local_storage import LocalStorage

STORAGE = LocalStorage()


def test_a_file_is_held_until_it_is_closed_or_dropped(tmp_path: Path):
    """Any number of looks find it held, and the file stays."""
    path = tmp_path / "a"
    held = HeldFile(STORAGE, path, b"x")
    assert [is_held(path), is_held(path), path.read_bytes()] == [True, True, b"x"]
    held.close()
    assert not is_held(path)
    held = HeldFile(STORAGE, path, b"y")
    assert is_held(path)
    del held
    assert not is_held(path)
    assert list(tmp_path.iterdir()) == [path]
    assert not is_held(tmp_path / "none")


def test_a_file_that_was_let_go_stays_and_nobody_holds_it(tmp_path: Path):
    """A second time, or after the end, nothing happens."""
    path = tmp_path / "a"
    held = HeldFile(STORAGE, path, b"x")
    held.let_go(b"y")
    held.let_go(b"z")
    assert (is_held(path), path.read_bytes()) == (False, b"y")


def test_a_file_is_free_when_its_process_is_killed(tmp_path: Path):
    """Also one that two look at together."""
    path = tmp_path / "a"
    code = (
        "import sys, time, pathlib\n"
        "from kudulite.storage.held_file import HeldFile\n"
        "from kudulite.storage.local_storage import LocalStorage\n"
        "held = HeldFile(LocalStorage(), pathlib.Path(sys.argv[1]), b'x')\n"
        "print('made', flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"made\n"
    assert is_held(path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not is_held(path)


def test_a_forked_child_does_not_hold_the_file(tmp_path: Path):
    """The child closes its own descriptor. The file is free when the parent closes it."""
    path = tmp_path / "a"
    held = HeldFile(STORAGE, path, b"x")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        held.close()
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    assert is_held(path)
    held.close()
    deadline = time.monotonic() + 10
    while is_held(path) and time.monotonic() < deadline:
        time.sleep(0.01)  # the child begins to run
    assert not is_held(path)
    os.close(write)
    os.waitpid(child, 0)
    os.close(read)


def test_what_a_process_left_before_the_name_is_removed(tmp_path: Path):
    """Not that of one which is about to give it its name."""
    (tmp_path / ".dead").write_bytes(b"")
    alive = HeldFile(STORAGE, tmp_path / "a", b"")
    os.rename(tmp_path / "a", tmp_path / ".a")
    remove_hidden(tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / ".a"]
    alive.close()
    remove_hidden(tmp_path / "none")


def test_a_file_that_is_removed_before_it_is_locked_is_made_again(tmp_path: Path, monkeypatch):
    """A collection may remove the hidden file between its creation and its lock."""
    path, rename, left = tmp_path / "a", os.rename, [1, 1]

    def removed_first(source: Path, target: Path) -> None:
        if left:
            left.pop()
            source.unlink()
        rename(source, target)

    monkeypatch.setattr(os, "rename", removed_first)
    held = HeldFile(STORAGE, path, b"x")
    assert (is_held(path), path.read_bytes(), left) == (True, b"x", [])
    held.close()


def test_the_folder_must_be_there(tmp_path: Path):
    """It is that of a table, which may be moved."""
    with pytest.raises(StorageError, match="does not exist"):
        HeldFile(STORAGE, tmp_path / "none" / "a", b"")


def test_a_touch_says_whether_the_file_is_there(tmp_path: Path):
    """And makes it young."""
    path = tmp_path / "a"
    assert not touch(path)
    path.write_bytes(b"")
    os.utime(path, (0, 0))
    assert touch(path)
    assert path.stat().st_mtime > 0
    with contextlib.suppress(PermissionError):
        os.chmod(path, 0o400)
    assert touch(path)
