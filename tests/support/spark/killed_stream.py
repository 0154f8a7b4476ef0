"""A stream from one table into another; both ends are killed by the system at random moments.

A process writes the source without a pause: rows one by one and batches, inserts, updates, deletes
and reinserts, and now and then upkeep. A driver, a process of its own with a Spark session, streams
the source's changes into the target with `operationColumn=_change_type`. These are strict: an
insert of a row that is there, or an update or delete of one that is not, fails the batch. So a row
that arrives twice stops the stream, and one that is lost does when it changes again. At the end the
tables are compared row by row, now and as of every batch: the target after a batch is the source at
the moment with which that batch ends.

A kill hits the driver with all its children, one of its Python processes (a worker, a planner, the
one that commits), or the source's writer. Most wait for a batch to be planned and then for a random
part of the time that a batch takes; some for the moment when the target has a batch that the
checkpoint does not know to be committed. Spark runs the task of a worker again or fails the query,
which the driver then starts anew; a driver that was killed is started anew, with batches bounded or
not.
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
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import kudulite
import kudulite_spark
from kudulite import Client, Table

ROOT = Path(__file__).parents[3]
KEYS = 2_000
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("s", pa.string())])
MAX_ROWS = 400  # of a bounded batch
BATCHES_BEFORE_A_KILL = 2
BATCHES_MISSED = 2  # whose commits came and went between two looks
SECONDS_TO_END = 300.0
SECONDS_OF_A_COMMIT = 0.3  # the writer waits so long, that the stream keeps up
OFFSETS, COMMITS = "checkpoint/offsets", "checkpoint/commits"
SETTINGS = {
    "spark.master": "local[2,3]",  # a task is tried three times
    "spark.sql.streaming.minBatchesToRetain": "100000",
    # No driver lives long enough for compiled code to pay.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
}
DRIVER, PART, WRITER = "driver", "Python process", "writer of the source"
# Python processes that a batch needs, but for the one that plans its write.
BUSY = {
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.python_streaming_sink_runner",
}
# What one kill of so many hits.
TARGETS = {DRIVER: 3, PART: 4, WRITER: 3}
# What the stream is doing when it is hit.
STARTING = "before the first batch of a start"
BETWEEN = "between batches"
PLANNED = "batch planned"
BEGUN = "write begun"
STAGED = "rows staged"
COMMITTED = "committed, not in the checkpoint"


@dataclass
class StreamReport:
    """The counts of a run."""

    kills: Counter = field(default_factory=Counter)  # by target
    phases: Counter = field(default_factory=Counter)  # of the stream, by target and phase
    parts: Counter = field(default_factory=Counter)  # Python processes, by their module
    failures: int = 0
    commits: int = 0
    batches: int = 0
    batches_compared: int = 0
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
    """Write until the file `stop` is there; each commit adds a byte to the file `commits`."""
    chance = random.Random(seed)
    client = _client(folder)
    table, session = client.table("source"), client.new_session()
    live = set(table.scan(["k"]).to_arrow().column(0).to_pylist())
    number = seed * 1_000_000
    while not (folder / "stop").exists():
        number += 1
        keys = chance.sample(range(KEYS), chance.choice((1, 5, 40)))
        if chance.random() < 0.5:
            for key in keys[:5]:
                _write_row(table, session, key, live, number, chance)
            session.flush()
        elif chance.random() < 0.4:
            table.delete_ignore(pa.table({"k": keys}))
            live.difference_update(keys)
        else:
            table.upsert(_rows(keys, number))
            live.update(keys)
        if number % 50 == 0:
            chance.choice((table.flush, table.compact, table.maintain))()
        with (folder / "commits").open("ab") as commits:
            commits.write(b".")
        time.sleep(SECONDS_OF_A_COMMIT)


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


def run_driver(folder: Path, seed: int) -> None:
    """Stream the source into the target, until all is there after `finish`; or until killed."""
    chance = random.Random(seed)
    session = kudulite_spark.local_session("killed", options=SETTINGS)
    while not (folder / "done").exists():
        try:
            _follow(_query(session, folder, chance.random() < 0.5), folder)
        except StreamingQueryException as error:
            with (folder / "failures").open("a") as failures:
                failures.write(json.dumps(str(error)) + "\n")


def _query(session: SparkSession, folder: Path, is_bounded: bool) -> StreamingQuery:
    reader = session.readStream.format("kudulite").option("startTimestamp", "snapshot")
    if is_bounded:
        reader = reader.option("maxRowsPerTrigger", MAX_ROWS)
    changes = reader.load(str(folder / "source"))
    writer = changes.writeStream.format("kudulite").option("operationColumn", "_change_type")
    writer = writer.option("primaryKey", "k").option("hashPartitions", "k:3")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    return writer.start(str(folder / "target"))


def _follow(query: StreamingQuery, folder: Path) -> None:
    (folder / "ready").touch()
    while not query.awaitTermination(1):
        if (folder / "finish").exists():
            query.processAllAvailable()
            query.stop()
            (folder / "done").touch()
            return


class Kills:
    """The processes of a run, and who is killed next."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self._chance = random.Random(seed)
        self._starts = 0
        self._first = 0  # batch of the driver that runs
        self._left: list[Path] = []  # records of the writes of drivers before
        self._writer: subprocess.Popen | None = None
        self._driver: subprocess.Popen | None = None
        self.report = StreamReport()

    def kill_next(self) -> str:
        """Kill one process, or the driver with all of its own; returns what was hit, and when."""
        self._run()
        target = self._chance.choices(list(TARGETS), list(TARGETS.values()))[0]
        self._wait_for_a_moment()
        assert self._driver is not None and self._writer is not None
        if target == WRITER:
            phase, told = self._phase(), "the writer"
            _kill_tree(self._writer)
        elif target == DRIVER:
            _kill_tree(self._driver)
            phase, told = self._phase(), "the driver"
            self.report.replays += _count(self._folder / OFFSETS) > _count(self._folder / COMMITS)
            self.report.replays_committed += phase == COMMITTED
        else:
            phase, told = self._phase(), _kill_part(self._driver, self._chance)
            if not told:
                return "no Python process there"
            self.report.parts[told] += 1
        self.report.kills[target] += 1
        self.report.phases[target, phase] += 1
        self.report.batches = _count(self._folder / COMMITS)
        return f"{told}: {phase}"

    def finish(self) -> None:
        """Let the writer end and the stream catch up."""
        self._run()
        assert self._writer is not None
        (self._folder / "stop").touch()
        self._writer.wait(SECONDS_TO_END)
        self.report.commits = (self._folder / "commits").stat().st_size
        (self._folder / "finish").touch()
        end = time.monotonic() + SECONDS_TO_END
        while not (self._folder / "done").exists():
            self._check(end, "the stream does not catch up")

    def stop(self) -> None:
        """Leave no process."""
        for process in (self._writer, self._driver):
            if process is not None:
                _kill_tree(process)

    def _run(self) -> None:
        """Have a writer, and a driver whose query has begun."""
        folder = self._folder
        self._starts += 1
        seed = self._seed * 1_000 + self._starts
        if self._writer is None or self._writer.poll() is not None:
            self._writer = _start(folder, f"write_source(folder, {seed})")
        if self._driver is None or self._driver.poll() is not None:
            (folder / "ready").unlink(missing_ok=True)
            self._first, self._left = _count(folder / COMMITS), _staged(folder)
            self._driver = _start(folder, f"run_driver(folder, {seed})")
        end = time.monotonic() + SECONDS_TO_END
        while not (folder / "ready").exists():
            self._check(end, "the driver does not start")

    def _wait_for_a_moment(self) -> None:
        """Wait until something is to be killed."""
        chance, folder = self._chance, self._folder
        moment = chance.choices(("batch", "committed", "any"), (5, 3, 2))[0]
        wanted = _count(folder / COMMITS)
        if chance.random() < 0.9:
            wanted += chance.randint(1, BATCHES_BEFORE_A_KILL)
        end = time.monotonic() + SECONDS_TO_END

        def is_there() -> bool:
            noted = _count(folder / COMMITS)
            if noted < wanted or moment == "any" or noted > wanted + BATCHES_MISSED:
                return noted >= wanted
            is_planned = _count(folder / OFFSETS) > noted
            return is_planned and (moment == "batch" or _is_committed(folder))

        while not is_there():
            self._check(end, f"no batch after {wanted}")
        if moment != "committed":
            time.sleep(chance.random() * _batch_seconds(folder))

    def _phase(self) -> str:
        folder, noted = self._folder, _count(self._folder / COMMITS)
        if _is_committed(folder):
            return COMMITTED
        if _count(folder / OFFSETS) > noted:
            writes = [path for path in _staged(folder) if path not in self._left]
            patterns = [f"target/tablet/*/rowset/{path.stem[:16]}-*" for path in writes]
            is_staged = any(list(folder.glob(pattern)) for pattern in patterns)
            return STAGED if is_staged else BEGUN if writes else PLANNED
        return BETWEEN if noted > self._first else STARTING

    def _check(self, end: float, told: str) -> None:
        """Wait a little; a process has ended by itself, a query failed unasked, or it is late."""
        time.sleep(0.005)
        folder = self._folder
        assert time.monotonic() < end, f"{told}; see {folder / 'log'}"
        for process in (self._writer, self._driver):
            is_bad = process is not None and (process.poll() or 0) != 0
            assert not is_bad, f"a process has ended; see {folder / 'log'}"
        with contextlib.suppress(FileNotFoundError):
            failures = (folder / "failures").read_text().splitlines()
            self.report.failures = len(failures)
            # A Python process that was killed may take the query with it; nothing else may.
            assert len(failures) <= self.report.kills[PART], failures[-1]
            told = failures[-1] if failures else ""
            assert "RowError" not in told and "ConflictError" not in told, told


def kill_again_and_again(
    folder: Path,
    kills: int,
    seed: int,
    progress: Callable[[StreamReport, str], object] = lambda _report, _told: None,
) -> StreamReport:
    """Kill the stream or its source's writer so many times, let it catch up, and compare."""
    source = make_tables(folder)
    run = Kills(folder, seed)
    try:
        while run.report.kills.total() < kills:
            progress(run.report, run.kill_next())
        run.finish()
    finally:
        run.stop()
    _compare(folder, source, run.report)
    return run.report


def _compare(folder: Path, source: Table, report: StreamReport) -> None:
    report.batches = _count(folder / COMMITS)
    target = _client(folder).table("target")
    for table in (source, target):
        table.check().raise_if_bad()
    one, other = ({r["k"]: r for r in t.scan().to_pylist()} for t in (source, target))
    report.rows = len(one)
    report.lost = len(one.keys() - other.keys())
    report.surplus = len(other.keys() - one.keys())
    report.different = sum(one[key] != other[key] for key in one.keys() & other.keys())
    report.staged = len(_staged(folder))
    for number, copied in _committed_batches(folder):
        end = json.loads((folder / OFFSETS / str(number)).read_text().splitlines()[-1])
        if "key" not in end:  # which is a part of the snapshot
            left, right = source.scan(at=end["timestamp"]), target.scan(at=copied)
            same = left.to_arrow().sort_by("k").equals(right.to_arrow().sort_by("k"))
            assert same, f"batch {number}: the target is not the source at {end['timestamp']}"
            report.batches_compared += 1


# -- processes


def _start(folder: Path, call: str) -> subprocess.Popen:
    """Start a function of this module in a process of its own session."""
    code = (
        f"import sys; sys.path[:0] = {[str(ROOT)]!r}\n"
        f"from pathlib import Path; from {__name__} import *\n"
        f"folder = Path({str(folder)!r}); {call}"
    )
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", code], stdout=log, stderr=log, start_new_session=True
        )


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
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGSTOP)  # it does no more while its children are looked for
    for pid in [process.pid, *(pid for pid, _ in _tree(process.pid))]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _kill_part(driver: subprocess.Popen, chance: random.Random) -> str:
    """Kill one of the Python processes that Spark has started; returns its module, or nothing.

    First a module is chosen: most processes of a driver only wait for a query to be planned."""
    parts: dict[str, list[int]] = {}
    for pid, line in _tree(driver.pid):
        modules = [word for word in line.split() if word.startswith("pyspark.")]
        if modules and "java" not in line:
            parts.setdefault(modules[-1], []).append(pid)
    if not parts:
        return ""
    module = chance.choice([*parts, *[name for name in parts if name in BUSY] * 4])
    with contextlib.suppress(ProcessLookupError):
        os.kill(chance.choice(parts[module]), signal.SIGKILL)
    return module


# -- files


def _manifests(folder: Path) -> list[Path]:
    return sorted((folder / "target" / "manifest").glob("*.json"))


def _batch_of(manifest: Path) -> tuple[int, int]:
    """The batch that a version of the target is of, or -1; and the moment of its newest rows."""
    body = json.loads(manifest.read_text().splitlines()[0])
    moment = max(tablet["timestamp"] for tablet in body["tablets"])
    return max(body["applications"].values(), default=-1), moment


def _committed_batches(folder: Path) -> Iterator[tuple[int, int]]:
    """Each batch that the target has, and the moment of the target just after it."""
    last = -1
    for manifest in _manifests(folder):
        number, moment = _batch_of(manifest)
        if number > last:
            yield number, moment
        last = number


def _is_committed(folder: Path) -> bool:
    """Whether the target has a batch that the checkpoint does not know to be committed."""
    try:
        return _batch_of(_manifests(folder)[-1])[0] >= _count(folder / COMMITS)
    except (IndexError, OSError, ValueError):
        return False


def _staged(folder: Path) -> list[Path]:
    try:
        return list((folder / "target" / "writes").iterdir())
    except OSError:
        return []


def _batch_seconds(folder: Path) -> float:
    """How long the last batch took, from its plan to its note in the checkpoint."""
    name = str(_count(folder / COMMITS) - 1)
    try:
        begin, end = ((folder / kind / name).stat().st_mtime for kind in (OFFSETS, COMMITS))
    except OSError:
        return 2.0
    return min(end - begin, 10.0)


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
