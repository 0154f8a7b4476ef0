"""An operator's drill with the command line alone: debt, a killed writer, damage, a restore."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.command_line import error, output, value

TABLETS, WRITES, ROWS = 50, 20, 1500


def figures(path: Path) -> dict:
    """The statistics of a table."""
    return json.loads(output("watch", path, "--count", 1, "--json"))["statistics"]


def neglected_table(folder: Path) -> Path:
    """A table of a thousand rowsets, made by writes without maintenance."""
    path = folder / "root" / "events"
    output(
        "create", path, "id:int64", "note:string", "--primary-key", "id", "--hash", f"id:{TABLETS}"
    )
    for number in range(WRITES):
        ids = pa.array(range(number, WRITES * ROWS, WRITES), pa.int64())
        pq.write_table(pa.table({"id": ids, "note": ["x"] * ROWS}), folder / "rows.parquet")
        output("load", path, folder / "rows.parquet")
    return path


SCRIPT = "from kudulite.tools.entry import main; main()"


def kill_a_writer(path: Path) -> None:
    """Kill a process that writes rows to a table of its own, as soon as some are durable."""
    arguments = ["loadgen", str(path), "--sessions", "--batch-rows", "10", "--seconds", "600"]
    writer = subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments])
    try:
        deadline = time.monotonic() + 120
        while not list(path.glob("manifest/*.json")) or not output(
            "scan", path, "--limit", 1, "--json"
        ):
            assert time.monotonic() < deadline and writer.poll() is None
            time.sleep(0.05)
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()


@pytest.mark.full
def test_a_neglected_table_is_maintained(tmp_path):
    """The debt is read from `watch`, paid by `maintain`, and `check` finds nothing."""
    path = neglected_table(tmp_path)
    before = figures(path)
    assert before["rowset_count"] == TABLETS * WRITES and before["rowset_height"] > 10
    found = value("maintain", path, "--grace-seconds", 0)
    assert found["operations"] and found["garbage"]["file_count"] >= TABLETS * WRITES
    after = figures(path)
    assert after["rowset_height"] == 1.0 and after["live_row_count"] == WRITES * ROWS
    assert after["superseded_bytes"] < before["bytes_on_disk"] / 100
    assert ": no problems" in output("check", path)


@pytest.mark.full
def test_a_killed_writer_loses_no_durable_row(tmp_path):
    """The next command reads its log; `flush` moves the rows to files.

    It is a process of its own, and so finds rows behind the end that the writer has noted.
    """
    path = tmp_path / "root" / "load"
    kill_a_writer(path)
    command = [sys.executable, "-c", SCRIPT, "scan", str(path), "--json", "--ordered"]
    rows = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert rows and ": no problems" in output("check", path)
    assert value("flush", path)["flushed_tablet_count"] > 0
    assert output("scan", path, "--json", "--ordered") == rows
    assert value("maintain", path)["busy_tablet_ids"] == []
    assert ": no problems" in output("check", path)


@pytest.mark.full
def test_a_wrong_load_is_undone(tmp_path):
    """The list of versions has the moment before it, and what was undone stays readable."""
    path = tmp_path / "root" / "t"
    output("create", path, "id:int64", "note:string", "--primary-key", "id")
    pq.write_table(pa.table({"id": range(4000), "note": ["x"] * 4000}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": range(2000, 6000), "note": ["wrong"] * 4000}), tmp_path / "b")
    output("load", path, tmp_path / "a.parquet")
    rows = output("scan", path, "--ordered", "--json")
    output("upsert", path, tmp_path / "b", "--format", "parquet")
    wrong, right = (version["time"] for version in value("versions", path)[:2])
    found = value("restore", path, "--to", right)
    assert (found["updated"], found["deleted"]) == (2000, 2000)
    assert output("scan", path, "--ordered", "--json") == rows
    undone = output("scan", path, "--where", "note = 'wrong'", "--at", wrong, "--json")
    assert len(undone.splitlines()) == 4000
    assert value("versions", path)[0]["operation"] == "restore"


@pytest.mark.full
def test_a_damaged_table_is_restored(tmp_path):
    """`check` names each damaged file; the backups are verified and give every row back."""
    path, target = tmp_path / "root" / "t", tmp_path / "backups"
    output("create", path, "id:int64", "note:string", "--primary-key", "id", "--hash", "id:4")
    pq.write_table(pa.table({"id": range(4000), "note": ["x"] * 4000}), tmp_path / "a.parquet")
    output("load", path, tmp_path / "a.parquet")
    output("backup", path, target)
    (tmp_path / "b.csv").write_text("id,note\n1,y\n5000,z\n")
    output("upsert", path, tmp_path / "b.csv")
    assert value("backup", path, target)["kind"] == "incremental"
    rows = output("scan", path, "--ordered", "--json")
    damaged = sorted(path.rglob("*.parquet"))[:3]
    for file in damaged:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(content)
    report = output("check", path, status=1)
    assert all(str(file) in report for file in damaged) and len(damaged) == 3
    assert len(value("backups", target, "--verify")) == 2
    assert "overwrite" in error("restore", target, path)
    output("restore", target, path, "--overwrite")
    assert ": no problems" in output("check", path)
    assert output("scan", path, "--ordered", "--json") == rows
