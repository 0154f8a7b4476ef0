"""Whether a file system is safe for tables: tries the calls that the engine relies on.

    atomic      rename replaces or moves in one step; link refuses an existing name
    durable     fsync of a file, of a growing file, and of a folder
    locked      flock excludes other processes, and ends with the process that holds it
    seen        another process sees written bytes, through read and through a memory map

All files are in a new folder, which is removed. An fsync that returns before the disk has the data
cannot be detected. Locks that hold on one machine only are found by `doctor_hosts`, if several
hosts run it together. File systems that are known for either are recognized by their kind.

**Source**: SQLite, "How To Corrupt An SQLite Database File", parts 2 and 4, on locks and syncs.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

_NETWORK_KINDS = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "lustre",
    "glusterfs",
    "fuse.glusterfs",
    "fuse.ceph",
)
_OBJECT_STORE = "keeps files in an object store: no links, no locks between machines"
_UNSAFE_KINDS = {
    "fuse.s3fs": _OBJECT_STORE,
    "fuse.goofys": _OBJECT_STORE,
    "fuse.gcsfuse": _OBJECT_STORE,
    "fuse.rclone": _OBJECT_STORE,
    "fuse.blobfuse": _OBJECT_STORE,
    "fuse.sshfs": "has locks that exclude processes of one mount only",
}
_MEMORY_KINDS = ("tmpfs", "ramfs")
_FSYNC_COUNT = 20
_CHILD_SECONDS = 30.0

# Each program runs in a process of its own, with the path as its argument, and prints its finding.
_TRY_LOCK = """
import fcntl, sys
with open(sys.argv[1]) as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("got")
    except OSError:
        print("refused")
"""
_HOLD_AND_DIE = """
import fcntl, os, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
os._exit(0)
"""
_READ = """
import sys
sys.stdout.write(open(sys.argv[1]).read())
"""


@dataclass(frozen=True)
class Finding:
    """The result of one check; with `is_warning` it is no reason against tables."""

    name: str
    is_ok: bool
    detail: str
    is_warning: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """The findings about the file system at `path`."""

    path: str
    kind: str
    is_safe: bool
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        """Return the result in one sentence."""
        if not self.is_safe:
            failed = ", ".join(f.name for f in self.findings if not f.is_ok and not f.is_warning)
            return f"NOT SAFE for tables: {failed}"
        warned = [f.detail for f in self.findings if not f.is_ok]
        return f"safe for tables, but: {'; '.join(warned)}" if warned else "safe for tables"

    def joined(self, findings: Iterable[Finding]) -> Diagnosis:
        """Return the diagnosis with more findings."""
        both = (*self.findings, *findings)
        is_safe = all(finding.is_ok or finding.is_warning for finding in both)
        return replace(self, is_safe=is_safe, findings=both)


def diagnose(path: Path, host_count: int = 1) -> Diagnosis:
    """Try the file system of the folder `path`; the files made for it are removed.

    With more hosts than one the caller adds the findings between them.
    """
    kind = file_system_kind(path)
    findings = [_kind_finding(kind, host_count)]
    with tempfile.TemporaryDirectory(prefix=".kudulite-doctor-", dir=path) as folder:
        for name, check in CHECKS.items():
            try:
                findings.append(Finding(name, True, check(Path(folder))))
            except (OSError, subprocess.SubprocessError, FoundWrongError) as error:
                findings.append(Finding(name, False, str(error)))
    return Diagnosis(str(path), kind, True, ()).joined(findings)


class FoundWrongError(Exception):
    """The file system breaks one of the rules."""


def expect(is_right: bool, message: str) -> None:
    """Raise FoundWrongError with the message unless a rule holds."""
    if not is_right:
        raise FoundWrongError(message)


def file_system_kind(path: Path) -> str:
    """Return the kind of the file system that holds `path`, or `unknown`."""
    place, best, kind = os.path.realpath(path), "", "unknown"
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, mount, found, *_ = line.split(" ")
            mount = mount.encode().decode("unicode_escape")
            is_above = place == mount or place.startswith(mount.rstrip("/") + "/")
            if is_above and len(mount) >= len(best):
                best, kind = mount, found
    return kind


def _kind_finding(kind: str, host_count: int) -> Finding:
    if kind in _UNSAFE_KINDS:
        return Finding("kind", False, f"{kind} {_UNSAFE_KINDS[kind]}")
    if kind in _NETWORK_KINDS and host_count == 1:
        detail = f"{kind} is a network file system: run doctor --hosts on every machine that will"
        detail += " use it, at the same time"
        return Finding("kind", False, detail, is_warning=True)
    if kind in _MEMORY_KINDS:
        return Finding("kind", False, f"{kind} is memory: it is lost at a reboot", is_warning=True)
    return Finding("kind", True, kind)


def _rename(folder: Path) -> str:
    (folder / "a").write_text("new")
    (folder / "b").write_text("old")
    os.rename(folder / "a", folder / "b")
    expect((folder / "b").read_text() == "new", "rename did not replace the file")
    expect(not (folder / "a").exists(), "rename left the old name")
    (folder / "tree").mkdir()
    (folder / "tree" / "leaf").write_text("leaf")
    os.rename(folder / "tree", folder / "moved")
    expect((folder / "moved" / "leaf").read_text() == "leaf", "a folder lost what was in it")
    return "replaces files, moves folders"


def _link(folder: Path) -> str:
    (folder / "one").write_text("one")
    (folder / "two").write_text("two")
    os.link(folder / "one", folder / "name")
    with suppress(FileExistsError):
        os.link(folder / "two", folder / "name")
        raise FoundWrongError("link replaced an existing name: two writers could both win")
    expect((folder / "name").read_text() == "one", "link changed an existing file")
    expect(os.path.samefile(folder / "one", folder / "name"), "a link is a different file")
    os.unlink(folder / "one")
    expect((folder / "name").read_text() == "one", "a link was lost with the first name")
    return "refuses an existing name"


def _fsync(folder: Path) -> str:
    begin = time.perf_counter()
    with (folder / "log").open("wb", buffering=0) as file:
        for _ in range(_FSYNC_COUNT):
            file.write(b"x" * 512)
            os.fdatasync(file.fileno())
        os.fsync(file.fileno())
    each = (time.perf_counter() - begin) / _FSYNC_COUNT
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return f"files and folders, {1000 * each:.2f} ms each"


def _append(folder: Path) -> str:
    descriptor = os.open(folder / "grown", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, b"a" * 1000, 0)
        os.pwrite(descriptor, b"b" * 1000, 1000)
        os.ftruncate(descriptor, 1500)
        os.fsync(descriptor)
        found = os.pread(descriptor, 4000, 0)
    finally:
        os.close(descriptor)
    expect(found == b"a" * 1000 + b"b" * 500, "a file is wrong after it grew and was cut")
    return "files grow and are cut"


def _locks(folder: Path) -> str:
    path = folder / "lock"
    path.write_text("")
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        expect(_child(_TRY_LOCK, path) == "refused", "another process took a held lock")
        with path.open() as second:
            with suppress(BlockingIOError):
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
                raise FoundWrongError("a lock does not exclude another opening of the file")
    expect(_child(_TRY_LOCK, path) == "got", "a lock was not released")
    _child(_HOLD_AND_DIE, path)
    expect(_child(_TRY_LOCK, path) == "got", "a lock outlived its process")
    return "exclude other processes, and end with their own"


def _memory_map(folder: Path) -> str:
    path = folder / "mapped"
    path.write_bytes(bytes(range(256)) * 64)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        expect(mapped[:] == bytes(range(256)) * 64, "a memory map shows other bytes")
        os.unlink(path)
        expect(mapped[256:512] == bytes(range(256)), "a map was lost with the file's name")
    return "show the file, also after its name was removed"


def _other_process(folder: Path) -> str:
    for number in range(3):
        (folder / "seen").write_text(f"text {number}")
        expect(
            _child(_READ, folder / "seen") == f"text {number}",
            "another process does not see written bytes",
        )
    return "see written bytes at once"


def _names(folder: Path) -> str:
    (folder / "Name").write_text("upper")
    (folder / "name").write_text("lower")
    expect((folder / "Name").read_text() == "upper", "two names that differ by case are one file")
    long = "n" * 200 + ".json"
    (folder / long).write_text("")
    expect(long in os.listdir(folder), "a long name was changed")
    return "keep their case and length"


CHECKS: dict[str, Callable[[Path], str]] = {
    "rename": _rename,
    "link": _link,
    "fsync": _fsync,
    "append": _append,
    "locks": _locks,
    "memory maps": _memory_map,
    "other processes": _other_process,
    "names": _names,
}


def _child(program: str, path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        timeout=_CHILD_SECONDS,
        check=True,
    )
    return done.stdout.strip()
