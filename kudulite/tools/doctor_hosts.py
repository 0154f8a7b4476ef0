"""Whether a shared directory is safe for tables on several hosts: they run doctor at the same time.

    kudulite doctor DIRECTORY --hosts 2        on each of the two hosts

The hosts meet in `DIRECTORY/.kudulite-doctor-hosts`, without a network: each writes a beat into a
file of its own until it sees as many beating files as hosts. The sorted names of these files are
the order of the hosts and name a new folder for everything that follows. In it, `exchange` is a
barrier: each host publishes a value and waits for those of all others.

    clocks     the hosts have the same time, to within seconds
    software   the same versions
    new names  a new name is seen on the other hosts, and soon
    bytes      synced bytes of a file that grows are seen by the other hosts
    locks      flock excludes the other hosts, and ends with the process that holds it
    counter    hosts that read and write one open file under its lock lose no update
    link       of hosts that publish the same name, one wins
    rename     a file that is replaced again and again is always there and whole
    removed    a file can be read to its end after another host has removed it

All files are removed at the end. A host that fails a check says so to the others, so each prints
the findings of all. Locks of a machine that loses its power cannot be tested: a network file system
gives them to others when its lease ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from kudulite.tools.doctor import Finding, FoundWrongError, expect

MEETING_FOLDER = ".kudulite-doctor-hosts"
WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.02
_BEATS_SEEN = 3  # of a file that another process writes, and not only left behind
_CLOCK_SECONDS_MAX = 2.0
_SEEN_SECONDS_MAX = 1.0
_COUNTS, _RACES, _REPLACEMENTS = 50, 20, 100
_RELEASE_SECONDS = 10.0

# Holds the lock of the file that is its argument until it is killed.
_HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "r+")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


class HostsError(Exception):
    """The hosts did not meet, or one of them stopped answering."""


class _OtherHostFailed(Exception):
    """Another host has left the check, and reports why."""


@dataclass
class Meeting:
    """This host among the others: `names` of all, in one order, and which of them is `own`."""

    folder: Path
    names: tuple[str, ...]
    own: int
    wait_seconds: float
    _check: str = "begin"
    _step: int = 0

    def begin(self, check: str) -> None:
        """Begin the steps of a check, for which failures on other hosts before do not count."""
        self._check, self._step = check, 0

    def leave(self) -> None:
        """Let the other hosts wait no longer for steps of the check that runs."""
        (self.folder / f"{self._check}-left-{self.own}").touch()

    def exchange(self, value: Any = None) -> list[Any]:
        """Return the values of all hosts, in their order, as soon as all have published theirs."""
        self._step += 1
        name = f"{self._check}-{self._step}-{self.own}"
        (self.folder / f".{name}").write_text(json.dumps(value))
        os.rename(self.folder / f".{name}", self.folder / name)
        return [self._value(host) for host in range(len(self.names))]

    def _value(self, host: int) -> Any:
        path = self.folder / f"{self._check}-{self._step}-{host}"
        left = self.folder / f"{self._check}-left-{host}"
        deadline = time.monotonic() + self.wait_seconds
        while True:
            has_left = left.exists()  # looked at first, because it is written last
            with contextlib.suppress(FileNotFoundError):
                return json.loads(path.read_text())
            if has_left:
                raise _OtherHostFailed
            if time.monotonic() > deadline:
                raise HostsError(
                    f"{self.names[host]} has not answered for {self.wait_seconds:g} s: it was"
                    f" stopped, or its files in {self.folder} are not seen here"
                )
            time.sleep(_POLL_SECONDS)

    def turns(self) -> Iterator[tuple[bool, Path]]:
        """Let each host lead once: whether this one does, and a path for the turn, on all hosts."""
        for leader in range(len(self.names)):
            self.exchange()
            yield leader == self.own, self.folder / f"{self._check}-of-{leader}"


def diagnose_hosts(path: Path, count: int, wait_seconds: float = WAIT_SECONDS) -> list[Finding]:
    """Test `path` together with `count - 1` other calls of this function, on other hosts.

    Returns the findings of all hosts. A check that fails on several hosts is one finding.
    """
    place = path / MEETING_FOLDER
    try:
        with contextlib.suppress(FileExistsError):
            place.mkdir()
        meeting = _meet(place, count, wait_seconds)
        findings = [_hosts_finding(meeting)]
        findings += [_run(name, check, meeting) for name, check in HOST_CHECKS.items()]
        _part(meeting)
    except HostsError as error:
        return [Finding("hosts", False, str(error))]
    except OSError as error:
        return [Finding("hosts", False, f"the hosts could not meet: {error}")]
    finally:
        with contextlib.suppress(OSError):
            place.rmdir()
    return findings


def _meet(place: Path, count: int, wait_seconds: float) -> Meeting:
    """Wait until `count` hosts write into the folder; files left by earlier calls do not change."""
    own = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    mine = place / f"beat-{own}"
    seen: dict[str, set[str]] = {}
    deadline = time.monotonic() + wait_seconds
    beat = 0
    try:
        while True:
            beat += 1
            mine.write_text(str(beat))
            for file in place.glob("beat-*"):
                with contextlib.suppress(FileNotFoundError):
                    seen.setdefault(file.name[5:], set()).add(file.read_text())
            alive = sorted(name for name, beats in seen.items() if len(beats) >= _BEATS_SEEN)
            if len(alive) > count:
                raise HostsError(f"{len(alive)} hosts instead of {count}: {', '.join(alive)}")
            if len(alive) == count:
                # Each beats on until all are here, because the others have to see enough beats.
                folder = place / hashlib.sha256(" ".join(alive).encode()).hexdigest()[:16]
                folder.mkdir(exist_ok=True)
                (folder / f"here-{own}").touch()
                if {f"here-{name}" for name in alive} <= set(os.listdir(folder)):
                    return Meeting(folder, tuple(alive), alive.index(own), wait_seconds)
            if time.monotonic() > deadline:
                others = ", ".join(sorted(set(alive) - {own})) or "no other host"
                raise HostsError(
                    f"waited {wait_seconds:g} s for {count} hosts and found {others}: run the same"
                    " command on each host at the same time, in the same shared directory"
                )
            time.sleep(_POLL_SECONDS)
    finally:
        mine.unlink(missing_ok=True)


def _part(meeting: Meeting) -> None:
    """Remove the files when no host needs them any more."""
    meeting.begin("end")
    meeting.exchange()
    (meeting.folder / f"gone-{meeting.own}").touch()
    deadline = time.monotonic() + meeting.wait_seconds
    # The first host removes the folder after all others, which wait for that: until then the folder
    # above it is not empty.
    while meeting.folder.exists() and time.monotonic() < deadline:
        gone = [name for name in _listed(meeting.folder) if name.startswith("gone-")]
        if meeting.own == 0 and len(gone) == len(meeting.names):
            shutil.rmtree(meeting.folder, ignore_errors=True)
        time.sleep(_POLL_SECONDS)


def _listed(folder: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return os.listdir(folder)
    return []


def _hosts_finding(meeting: Meeting) -> Finding:
    """Name the hosts; hosts with one kernel are containers or calls on the same machine."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = str(meeting.own)  # not Linux
    boots = meeting.exchange(boot)
    detail = ", ".join(meeting.names)
    if len(set(boots)) < len(boots):
        detail += ": of one machine, so locks between machines were not tested"
        return Finding("hosts", False, detail, is_warning=True)
    return Finding("hosts", True, detail)


def _run(name: str, check: Callable[[Meeting], str], meeting: Meeting) -> Finding:
    """Run a check on all hosts; what was wrong on any of them is in the finding of each."""
    meeting.begin(name)
    state, detail = "ok", ""
    try:
        detail = check(meeting)
    except _OtherHostFailed:
        pass
    except _WarningFound as warning:
        state, detail = "warning", str(warning)
    except (OSError, subprocess.SubprocessError, FoundWrongError) as error:
        state, detail = "wrong", f"{meeting.names[meeting.own]}: {error}"
        meeting.leave()
    meeting.begin(f"{name}-end")
    results = meeting.exchange([state, detail])
    for kind in ("wrong", "warning"):
        texts = sorted({text for found, text in results if found == kind})
        if texts:
            return Finding(name, False, "; ".join(texts), is_warning=kind == "warning")
    return Finding(name, True, detail)


class _WarningFound(Exception):
    """A check has ended on all hosts, with a result to know about; raised after its last step."""


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _clocks(meeting: Meeting) -> str:
    meeting.exchange()
    times = meeting.exchange(time.time())
    apart = max(times) - min(times)
    if apart > _CLOCK_SECONDS_MAX:
        raise _WarningFound(
            f"{apart:.1f} s apart: the one that is ahead sets the timestamps of all writers;"
            " synchronize them"
        )
    return f"at most {apart:.2f} s apart"


def _software(meeting: Meeting) -> str:
    own = f"kudulite {version('kudulite')}, pyarrow {version('pyarrow')}"
    versions: list[str] = meeting.exchange(f"{own}, Python {platform.python_version()}")
    if len(set(versions)) > 1:
        pairs = zip(meeting.names, versions, strict=True)
        raise _WarningFound("; ".join(f"{name}: {found}" for name, found in pairs))
    return versions[0]


def _names(meeting: Meeting) -> str:
    """All hosts begin an exchange together, so it takes as long as a new name takes to be seen."""
    slowest = 0.0
    for number in range(6):
        begin = time.perf_counter()
        meeting.exchange()
        if number:  # a host may be late for the first one
            slowest = max(slowest, time.perf_counter() - begin)
    if slowest > _SEEN_SECONDS_MAX:
        raise _WarningFound(f"seen after {slowest:.1f} s: readers see new rows that late")
    return f"seen within {slowest:.2f} s"


def _bytes(meeting: Meeting) -> str:
    for is_leader, path in meeting.turns():
        if is_leader:
            _write(path, b"a" * 5000)
        meeting.exchange()
        expect(path.read_bytes() == b"a" * 5000, "synced bytes of another host are not seen")
        meeting.exchange()
        if is_leader:
            with path.open("ab") as file:
                file.write(b"b" * 5000)
                file.flush()
                os.fsync(file.fileno())
        meeting.exchange()
        found = path.read_bytes()
        expect(found == b"a" * 5000 + b"b" * 5000, "appended bytes of another host are not seen")
    return "seen by the other hosts when they are synced"


def _locked(file: IO[Any], seconds: float) -> bool:
    """Take a lock; False if it was not to be had in time."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)


def _locks(meeting: Meeting) -> str:
    slowest = 0.0
    for is_leader, path in meeting.turns():
        if is_leader:
            _write(path, b"lock")
        meeting.exchange()
        with contextlib.ExitStack() as stack:
            holder = stack.enter_context(_holder(path)) if is_leader else None
            meeting.exchange()
            with path.open("r+b") as file:
                is_free = not is_leader and _locked(file, 0)
            expect(not is_free, "took a lock that another host holds")
            meeting.exchange()
            if holder is not None:
                holder.kill()
                holder.wait(_RELEASE_SECONDS)
        meeting.exchange()
        begin = time.perf_counter()
        with path.open("r+b") as file:
            is_free = _locked(file, _RELEASE_SECONDS)
        expect(is_free, "a lock outlived its killed process on another host")
        slowest = max(slowest, time.perf_counter() - begin)
    return f"exclude other hosts, and end {slowest:.2f} s after their process"


@contextlib.contextmanager
def _holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds a lock; it is killed at the end."""
    command = [sys.executable, "-c", _HOLD, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            expect(process.stdout.readline() == "held\n", "a process could not lock a new file")
            yield process
        finally:
            process.kill()


def _counter(meeting: Meeting) -> str:
    path = meeting.folder / "counted"
    if meeting.own == 0:
        _write(path, bytes(8))
    meeting.exchange()
    with path.open("r+b", buffering=0) as file:  # open all the time, as the lock of a tablet
        for _ in range(_COUNTS):
            expect(_locked(file, meeting.wait_seconds), "waited too long for a lock")
            number = int.from_bytes(os.pread(file.fileno(), 8, 0), "little")
            time.sleep(0.002)  # so that hosts without a lock lose updates
            os.pwrite(file.fileno(), (number + 1).to_bytes(8, "little"), 0)
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(0.001)
        meeting.exchange()
        expect(_locked(file, meeting.wait_seconds), "waited too long for a lock")
        found = int.from_bytes(os.pread(file.fileno(), 8, 0), "little")
        fcntl.flock(file, fcntl.LOCK_UN)
    expected = _COUNTS * len(meeting.names)
    expect(found == expected, f"{found} of {expected} updates under a lock are there")
    return f"all {expected} updates under a lock are there"


def _link(meeting: Meeting) -> str:
    own = meeting.folder / f"own-{meeting.own}"
    _write(own, str(meeting.own).encode())
    won = []
    for race in range(_RACES):
        meeting.exchange()
        with contextlib.suppress(FileExistsError):
            os.link(own, meeting.folder / f"won-{race}")
            won.append(race)
    wins = meeting.exchange(won)
    bad = 0
    for race in range(_RACES):
        winners = [str(host) for host, races in enumerate(wins) if race in races]
        bad += winners != [(meeting.folder / f"won-{race}").read_text()]
    expect(not bad, f"{bad} of {_RACES} names were not given to exactly one host")
    return f"gave each of {_RACES} names to one host"


def _rename(meeting: Meeting) -> str:
    for is_leader, path in meeting.turns():
        if is_leader:
            _write(path, b"000" * 100)
        meeting.exchange()
        number = 0
        while number < _REPLACEMENTS:
            if is_leader:
                number += 1
                _write(path.with_suffix(".new"), b"%03d" % number * 100)
                os.replace(path.with_suffix(".new"), path)
            else:
                content = path.read_bytes()
                number = int(content[:3] or b"-1")
                expect(content == b"%03d" % number * 100, "a file was torn while it was replaced")
    return "replaces a file that other hosts read"


def _removed(meeting: Meeting) -> str:
    problem = ""
    for is_leader, path in meeting.turns():
        if is_leader:
            _write(path, b"x" * 4_000_000)
        meeting.exchange()
        with path.open("rb", buffering=0) as file:
            meeting.exchange()
            if is_leader:
                path.unlink()
            meeting.exchange()
            try:
                is_whole = len(os.pread(file.fileno(), 4_000_000, 0)) == 4_000_000
                problem = problem or ("" if is_whole else "a part is missing")
            except OSError as error:
                problem = str(error)
    if problem:
        raise _WarningFound(
            f"a file that another host removes cannot be read to its end ({problem}): keep the"
            " grace time of maintain longer than the longest scan"
        )
    return "files can be read to their end"


HOST_CHECKS: dict[str, Callable[[Meeting], str]] = {
    "clocks": _clocks,
    "software": _software,
    "new names": _names,
    "bytes": _bytes,
    "locks of hosts": _locks,
    "counter": _counter,
    "link of hosts": _link,
    "rename of hosts": _rename,
    "removed": _removed,
}
