"""doctor: a file system that does what tables need is safe, one that does not is not."""

import fcntl
import os

import pytest

from kudulite.tools import doctor
from tests.support.command_line import output, value


def test_this_file_system_is_safe_and_left_as_it_was(tmp_path):
    """Every check says what it found."""
    found = value("doctor", tmp_path)
    assert found["is_safe"] and found["verdict"].startswith("safe for tables")
    assert [finding["name"] for finding in found["findings"]] == ["kind", *doctor.CHECKS]
    assert list(tmp_path.iterdir()) == []
    text = output("doctor", tmp_path)
    assert "refuses an existing name" in text and str(tmp_path) in text
    output("doctor", tmp_path / "nothing", status=2)


def link_that_replaces(source, target):
    """A link that takes a name from who has it."""
    if os.path.exists(target):
        os.unlink(target)
    os.symlink(source, target)


@pytest.mark.parametrize(
    ("name", "place", "broken", "check"),
    [
        ("link", os, link_that_replaces, "link"),
        ("flock", fcntl, lambda file, kind: None, "locks"),
        ("rename", os, lambda source, target: None, "rename"),
        ("fdatasync", os, lambda descriptor: os.stat("/dev/null/none"), "fsync"),
        ("ftruncate", os, lambda descriptor, length: None, "append"),
    ],
)
def test_a_broken_promise_is_found(tmp_path, monkeypatch, name, place, broken, check):
    """And only that one is reported; the status is 1."""
    monkeypatch.setattr(place, name, broken)
    found = value("doctor", tmp_path, status=1)
    wrong = [f["name"] for f in found["findings"] if not f["is_ok"] and not f["is_warning"]]
    assert check in wrong and found["verdict"].startswith("NOT SAFE for tables: ")


@pytest.mark.parametrize(
    ("kind", "is_safe", "word"),
    [
        ("ext4", True, "safe"),
        ("nfs4", True, "every machine"),
        ("tmpfs", True, "reboot"),
        ("fuse.s3fs", False, "NOT SAFE"),
    ],
)
def test_known_kinds_are_judged(tmp_path, monkeypatch, kind, is_safe, word):
    """The kinds of file systems that cannot be tested from inside are known by name."""
    monkeypatch.setattr(doctor, "file_system_kind", lambda path: kind)
    monkeypatch.setattr(doctor, "CHECKS", {})
    found = doctor.diagnose(tmp_path)
    assert found.is_safe == is_safe and word in found.verdict
