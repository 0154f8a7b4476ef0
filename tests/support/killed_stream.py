"""A stream from one table into another that is killed by the system at random moments.

A process writes the source without a pause: rows one by one and batches, inserts, updates, deletes
and reinserts, and now and then upkeep. A driver, a process of its own with a Spark session, streams
the source's changes into the target with `operationColumn=_change_type`. These are strict: an
insert of a row that is there, or an update or delete of one that is not, fails the batch. So a row
that arrives twice stops the stream, and one that is lost does when it changes again; at the end the
two tables are compared row by row.

A kill hits the driver with all its children, or one of its Python workers. Spark then fails the
query, or runs the worker's task again; a driver whose query has ended is started anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import kudulite
import kudulite_spark
from kudulite import Client, Table

KEYS = 2_000
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("s", pa.string())])
MAX_ROWS = 400  # of a batch
SECONDS_BETWEEN_KILLS = (0.2, 6.0)
SECONDS_TO_END = 600.0


@dataclass
class StreamReport:
    """What a run saw."""

    kills: int = 0
    driver_kills: int = 0
    worker_kills: int = 0
    commits: int = 0
    batches: int = 0
    replays: int = 0
    replays_committed: int = 0
    rows: int = 0
    lost: int = 0
    surplus: int = 0
    different: int = 0
    staged: int = 0


def make_tables(folder: Path) -> Table:
    """The source, half full; the target is made by the stream."""
    client = _client(folder)
    layout: dict[str, Any] = {"primary_key": "k", "hash_partitions": [(["k"], 2)]}
    source = client.create_table("source", SCHEMA, **layout)
    source.insert(_rows(list(range(0, KEYS, 2)), 0))
    return source


def write_source(folder: Path, seed: int) -> None:
    """Write until the file `stop` is there; then say how many commits there were."""
    chance = random.Random(seed)
    client = _client(folder)
    table, session = client.table("source"), client.new_session()
    live = set(table.scan(["k"]).to_arrow().column(0).to_pylist())
    commits = 0
    while not (folder / "stop").exists():
        commits += 1
        keys = chance.sample(range(KEYS), chance.choice((1, 5, 40)))
        if chance.random() < 0.5:
            for key in keys[:5]:
                _write_row(table, session, key, live, commits, chance)
            session.flush()
        elif chance.random() < 0.4:
            table.delete_ignore(pa.table({"k": keys}))
            live.difference_update(keys)
        else:
            table.upsert(_rows(keys, commits))
            live.update(keys)
        if commits % 50 == 0:
            chance.choice((table.flush, table.compact, table.maintain))()
        time.sleep(0.02)
    (folder / "commits").write_text(str(commits))


def _write_row(
    table: Table, session: Any, key: int, live: set[int], number: int, chance: random.Random
) -> None:
    if key in live and chance.random() < 0.4:
        session.apply(table.new_delete({"k": key}))
        live.remove(key)
        return
    make = table.new_update if key in live else table.new_insert
    session.apply(make({"k": key, "v": number, "s": f"s{number}"}))
    live.add(key)


def run_driver(folder: Path) -> None:
    """Stream the source into the target until everything is there after `stop`; or until killed."""
    session = kudulite_spark.local_session("killed", options={"spark.task.maxFailures": "3"})
    reader = session.readStream.format("kudulite").option("startTimestamp", "snapshot")
    changes = reader.option("maxRowsPerTrigger", MAX_ROWS).load(str(folder / "source"))
    writer = changes.writeStream.format("kudulite").option("operationColumn", "_change_type")
    writer = writer.option("primaryKey", "k").option("hashPartitions", "k:3")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.start(str(folder / "target"))
    while query.isActive:
        (folder / "ready").touch()
        if (folder / "stop").exists():
            query.processAllAvailable()
            query.stop()
            (folder / "done").touch()
            return
        query.awaitTermination(1)
    (folder / "error").write_text(str(query.exception()))
    sys.exit(1)


def kill_again_and_again(
    folder: Path, kills: int, seed: int, progress: Callable[[StreamReport], object] = lambda _: None
) -> StreamReport:
    """Kill the stream so many times, let it catch up, and compare the tables."""
    chance = random.Random(seed)
    source = make_tables(folder)
    report = StreamReport()
    writer = _start(folder, f"write_source(folder, {seed})")
    driver = None
    try:
        while report.kills < kills:
            driver = _running(folder, driver)
            time.sleep(chance.uniform(*SECONDS_BETWEEN_KILLS))
            noted = _count(folder / "checkpoint" / "commits")
            if chance.random() < 0.5:
                _kill_tree(driver)
                report.driver_kills += 1
                report.replays += _count(folder / "checkpoint" / "offsets") > noted
                report.replays_committed += _is_committed(folder)
            elif not _kill_worker(driver, chance):
                continue
            else:
                report.worker_kills += 1
            report.kills += 1
            report.batches = noted
            progress(report)
        (folder / "stop").touch()
        _wait_for(folder / "commits", writer)
        report.commits = int((folder / "commits").read_text())
        end = time.monotonic() + SECONDS_TO_END
        while not (folder / "done").exists():
            assert time.monotonic() < end, "the stream does not catch up"
            driver = _running(folder, driver, is_ready=False)
            time.sleep(0.2)
    finally:
        for process in (writer, driver):
            if process is not None:
                _kill_tree(process)
    _compare(folder, source, report)
    return report


def _compare(folder: Path, source: Table, report: StreamReport) -> None:
    report.batches = _count(folder / "checkpoint" / "commits")
    target = _client(folder).table("target")
    for table in (source, target):
        table.check().raise_if_bad()
    one, other = ({r["k"]: r for r in t.scan().to_pylist()} for t in (source, target))
    report.rows = len(one)
    report.lost = len(one.keys() - other.keys())
    report.surplus = len(other.keys() - one.keys())
    report.different = sum(one[key] != other[key] for key in one.keys() & other.keys())
    report.staged = len(list((folder / "target" / "staging").iterdir()))


# -- processes


def _start(folder: Path, call: str) -> subprocess.Popen:
    """Start a function of this module in a process of its own session."""
    code = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent)]!r}\n"
        f"from pathlib import Path; from killed_stream import *\n"
        f"folder = Path({str(folder)!r}); {call}"
    )
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", code], stdout=log, stderr=log, start_new_session=True
        )


def _running(
    folder: Path, driver: subprocess.Popen | None, is_ready: bool = True
) -> subprocess.Popen:
    """Return a driver that runs, a new one where the last has ended."""
    if driver is not None and driver.poll() is None:
        return driver
    if driver is not None:
        _kill_tree(driver)  # what is left of it
    # A worker that was killed may take the query with it; nothing else may.
    error = folder / "error"
    if error.exists():
        text = error.read_text()
        assert "RowError" not in text and "ConflictError" not in text, text
        error.unlink()
    (folder / "ready").unlink(missing_ok=True)
    driver = _start(folder, "run_driver(folder)")
    if is_ready:
        _wait_for(folder / "ready", driver)
    return driver


def _wait_for(path: Path, process: subprocess.Popen) -> None:
    end = time.monotonic() + SECONDS_TO_END
    while not path.exists():
        assert time.monotonic() < end, f"no {path.name} from {process.args}"
        if process.poll() is not None and not path.exists():
            raise AssertionError(f"{path.name}: its process ended; see {path.parent / 'log'}")
        time.sleep(0.05)


def _tree(root: int) -> list[tuple[int, str]]:
    """The processes below one, with their command lines."""
    parents: dict[int, list[int]] = {}
    lines: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(stat[1]), []).append(int(entry.name))
                lines[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
    found, left = [], [root]
    while left:
        children = parents.get(left.pop(), [])
        left += children
        found += [(child, lines.get(child, "")) for child in children]
    return found


def _kill_tree(process: subprocess.Popen) -> None:
    """Kill a process and everything below it at once."""
    for pid in [process.pid, *(pid for pid, _ in _tree(process.pid))]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _kill_worker(driver: subprocess.Popen, chance: random.Random) -> bool:
    """Kill one of the Python processes that Spark has started; False where there is none."""
    workers = [pid for pid, line in _tree(driver.pid) if "pyspark" in line and "java" not in line]
    if not workers:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(chance.choice(workers), signal.SIGKILL)
    return True


# -- files


def _is_committed(folder: Path) -> bool:
    """Whether the target has a batch that the checkpoint does not know to be committed."""
    try:
        manifests = sorted((folder / "target" / "manifest").glob("*.json"))
        body = json.loads(manifests[-1].read_text().splitlines()[0])
        newest = max(body["applications"].values())
    except (IndexError, OSError, ValueError):
        return False
    return newest >= _count(folder / "checkpoint" / "commits")


def _count(folder: Path) -> int:
    """The number of batches that a part of a checkpoint knows."""
    try:
        return max((int(p.name) for p in folder.iterdir() if p.name.isdigit()), default=-1) + 1
    except OSError:
        return 0


def _client(folder: Path) -> Client:
    return kudulite.connect(folder, background_maintenance=False)


def _rows(keys: list[int], number: int) -> pa.Table:
    values = [number] * len(keys)
    return pa.table({"k": keys, "v": values, "s": [f"s{number}"] * len(keys)}, SCHEMA)
