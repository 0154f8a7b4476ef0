"""doctor --hosts: hosts that share a directory find out together whether it is safe for all."""

import json
import os
import subprocess
import sys

import pytest

from kudulite.tools import doctor_hosts
from tests.support.command_line import value
from tests.support.tiers import tiered

# A call of the command as on another host: its name, and a line that breaks one of the calls.
HOST = """
import fcntl, os, pathlib, socket, sys, time
socket.gethostname = lambda: {name!r}
{broken}
from kudulite.tools.cli import app
app(["doctor", sys.argv[1], "--hosts", {count!r}, "--wait-seconds", "20", "--json"])
"""


def run_hosts(folder, *broken, count=None):
    """The findings of each host; `broken` has a line of code for each."""
    running = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                HOST.format(name=f"host{number}", broken=line, count=str(count or len(broken))),
                str(folder),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, line in enumerate(broken)
    ]
    results = [process.communicate(timeout=120) for process in running]
    assert all(process.returncode in (0, 1) for process in running), results
    return [json.loads(output) for output, _ in results]


def wrong(found):
    """The names of the checks that make a file system unsafe."""
    return [f["name"] for f in found["findings"] if not f["is_ok"] and not f["is_warning"]]


@tiered("count", [2, 3], quick=1)
def test_hosts_agree_that_a_directory_is_safe_and_leave_nothing(tmp_path, count):
    """Each prints every check, and names all hosts."""
    for found in run_hosts(tmp_path, *[""] * count):
        assert found["is_safe"] and wrong(found) == []
        names = [finding["name"] for finding in found["findings"]]
        assert names[-len(doctor_hosts.HOST_CHECKS) :] == list(doctor_hosts.HOST_CHECKS)
        (hosts,) = [f for f in found["findings"] if f["name"] == "hosts"]
        assert all(f"host{number}-" in hosts["detail"] for number in range(count))
        assert hosts["is_warning"] and "of one machine" in hosts["detail"]
    assert os.listdir(tmp_path) == []


# Replaces a file that exists, as if each host had names of its own.
LINK = """
def link(source, target):
    pathlib.Path(target).write_bytes(pathlib.Path(source).read_bytes())
os.link = link
"""
# Writes a file in place: another host sees a part of it.
REPLACE = """
def replace(source, target):
    content = pathlib.Path(source).read_bytes()
    with open(target, "wb", buffering=0) as file:
        for byte in content:
            file.write(bytes([byte]))
os.replace = replace
"""


@tiered(
    ("broken", "checks"),
    [
        ("fcntl.flock = lambda file, kind: None", {"locks", "locks of hosts", "counter"}),
        (LINK, {"link", "link of hosts"}),
        (REPLACE, {"rename of hosts"}),
    ],
    quick=1,
    ids=["flock", "link", "replace"],
)
def test_what_breaks_between_hosts_is_found_by_both(tmp_path, broken, checks):
    """Both say NOT SAFE for the checks between hosts, even if only one of them can see it."""
    both = run_hosts(tmp_path, broken, "")
    for found in both:
        between = {name for name in wrong(found) if name in doctor_hosts.HOST_CHECKS}
        # Whether updates are lost on a busy machine is a matter of time.
        assert between | {"counter"} == (checks | {"counter"}) - {"locks", "link"}
        assert not found["is_safe"] and "host0-" in str(found["findings"])
    assert {"locks", "link"} & checks <= set(wrong(both[0]))
    assert os.listdir(tmp_path) == []


@pytest.mark.full
def test_a_clock_that_is_ahead_is_a_warning(tmp_path):
    """The verdict names the difference."""
    ahead = "now = time.time; time.time = lambda: now() + 100"
    for found in run_hosts(tmp_path, ahead, ""):
        assert found["is_safe"] and "s apart: the one that is ahead" in found["verdict"]


def test_a_host_that_stays_away_is_named(tmp_path):
    """A host that finds no other, and files of a killed call, end with an error."""
    place = tmp_path / doctor_hosts.MEETING_FOLDER
    place.mkdir()
    (place / "beat-killed-1-2").write_text("7")
    found = value("doctor", tmp_path, "--hosts", 2, "--wait-seconds", 1, status=1)
    (hosts,) = [f for f in found["findings"] if f["name"] == "hosts"]
    assert "waited 1 s for 2 hosts and found no other host" in hosts["detail"]
    assert wrong(found) == ["hosts"]
    (place / "beat-killed-1-2").unlink()


@pytest.mark.full
def test_a_host_that_is_stopped_in_the_middle_is_named(tmp_path):
    """The others do not wait longer than they were asked to."""
    stop = """
import kudulite.tools.doctor_hosts as d
d.HOST_CHECKS["bytes"] = lambda meeting: os._exit(1)
"""
    running = run_stopped(tmp_path, stop)
    (hosts,) = [f for f in running["findings"] if f["name"] == "hosts"]
    assert "host0-" in hosts["detail"] and "has not answered for 3 s" in hosts["detail"]


def run_stopped(folder, line):
    """The findings of a host whose partner runs `line`."""
    text = HOST.replace('"20"', '"3"')
    running = [
        subprocess.Popen(
            [sys.executable, "-c", text.format(name=f"host{n}", broken=b, count="2"), str(folder)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for n, b in enumerate((line, ""))
    ]
    output, _ = running[1].communicate(timeout=120)
    running[0].communicate(timeout=120)
    return json.loads(output)
