"""The driver of benchmarks/cluster.py: each part uses the cluster and compares every result.

Runs on the client, with the installed packages only. A part prints one line. A line of JSON asks
cluster.py to kill something, and its answer is read from standard input.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from cluster_session import (
    OPTIONS,
    SCHEMA,
    SETTINGS,
    TABLETS,
    WAREHOUSE,
    WORKERS,
    Memory,
    Part,
    Rows,
    answer,
    as_rows,
    ask,
    compare,
    front,
    load,
    made,
    opened,
    session,
    slowly,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import kudulite
import kudulite_spark
from kudulite.errors import RowError
from kudulite.storage.address import parse_address
from kudulite.table.environment import environment_at

# -- the parts; each returns what it has shown


def environments(spark: SparkSession, name: str) -> str:
    """Each worker has run tasks, in an environment of its own and without the checkout."""

    def where(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import kudulite

        for _ in batches:
            time.sleep(0.3)
            inode = os.stat(kudulite.__file__).st_ino
            found = [socket.gethostname(), kudulite.__file__, inode]
            yield pa.record_batch([pa.array([x]) for x in found], ["host", "file", "inode"])

    frame = spark.range(0, 8, 1, 8).mapInArrow(where, "host string, file string, inode long")
    rows = frame.distinct().collect()
    assert sorted(row.host for row in rows) == sorted(WORKERS), rows
    assert len({row.inode for row in rows} | {os.stat(kudulite.__file__).st_ino}) == 3
    assert all(row.file.startswith("/mnt/host/venv/") for row in rows)
    return "tasks ran on worker1 and worker2, each with its own packages"


def reads(spark: SparkSession, name: str) -> str:
    """Every kind of read equals the same rows as Spark computes them."""
    part = Part(spark, name)
    count = 100_000
    rows = spark.range(0, count, 1, 4).selectExpr("id AS k", "id % 1000 AS v", "'row ' || id AS s")
    part.save(kudulite_spark.repartition_for(rows, part.path))
    before = part.table.current_timestamp()
    part.save(rows.filter("k % 10 = 3").selectExpr("k", "-1L AS v", "'new' AS s"))
    part.save(rows.filter("k % 10 = 4").select("k"), operation="delete")
    new = rows.filter("k % 10 <> 4").selectExpr(
        "k", "if(k % 10 = 3, -1L, v) AS v", "if(k % 10 = 3, 'new', s) AS s"
    )
    frames = {"new": new, "old": rows}
    hashes: dict[tuple[str, str, str], tuple[int, int]] = {}

    def hashed(frame: DataFrame) -> tuple[int, int]:
        values = frame.select(F.xxhash64(*frame.columns).cast("decimal(38, 0)").alias("h"))
        count, total = values.agg(F.count("h"), F.sum("h")).first()
        return count, int(total or 0)

    def same(found: DataFrame, which: str, condition: str = "true") -> None:
        key = (which, condition, ",".join(found.columns))
        if key not in hashes:
            expected = frames[which].filter(condition).select(found.columns)
            hashes[key] = hashed(expected)
        assert hashed(found) == hashes[key] and hashes[key][0] > 0, key

    conditions = ("k < 1000", "v = -1 AND k > 50000", "s = 'new'", "k % 7 = 2 AND v < 90")
    shown = 0
    for is_on in (True, False):
        with front(spark, is_on):
            for condition in conditions:
                same(part.read().filter(condition).select("k", "s"), "new", condition)
                same(part.read().filter(condition), "new", condition)
                shown += 2
            same(part.read(), "new")
            same(load(spark, part.path, snapshotTimestamp=str(before)), "old")
            shown += 2
    past = kudulite_spark.read_table(spark, part.path, snapshot=before)
    same(past, "old")
    for condition in conditions:
        same(kudulite_spark.read_table(spark, part.path).filter(condition), "new", condition)
    changes = load(spark, part.path, startTimestamp=str(before))
    groups = changes.groupBy("_change_type").count().collect()
    counts = {row["_change_type"]: row["count"] for row in groups}
    assert counts == {"update_postimage": count // 10, "delete": count // 10}, counts
    return f"{shown + 6} reads of {count:,} rows have their count and hash, front and not"


def writes(spark: SparkSession, name: str) -> str:
    """All operations, all or nothing, with the front and without."""
    part = Part(spark, name)
    turns = 0
    for is_on in (True, False):
        first = 0 if is_on else 100_000
        with front(spark, is_on):
            for operation, keys in (
                ("insert", range(4000)),
                ("insert_ignore", range(3000, 5000)),
                ("upsert", range(4500, 6000)),
                ("upsert_ignore", range(5900, 6100)),
                ("update", range(100, 1100)),
                ("update_ignore", range(6000, 7000)),
                ("delete", range(500)),
                ("delete_ignore", range(400, 900)),
            ):
                part.write(operation, made((first + k for k in keys), operation))
                part.check()
                turns += 1
            failing = part.frame(made(range(first + 2000, first + 9000), "twice"))
            try:
                part.save(failing, operation="insert")
            except Exception as error:
                assert RowError.REASON_ALREADY_PRESENT in str(error), error
            else:
                raise AssertionError("keys were inserted twice")
            part.check()
            mixed = part.frame(made(range(first + 1000, first + 2000), "mixed"))
            mixed = mixed.withColumn("op", F.expr("if(k % 2 = 0, 'D', 'U')"))
            part.save(mixed, operationColumn="op")
            for key, cells in made(range(first + 1000, first + 2000), "mixed").items():
                if key % 2:
                    part.model[key] = cells
                else:
                    del part.model[key]
            part.check()
    part.model = made(range(500), "overwritten")
    part.save(part.frame(part.model), mode="overwrite")
    part.check()
    part.table.check().raise_if_bad()
    return f"{turns} operations, 2 mixed writes, 2 failed jobs and an overwrite equal a dictionary"


def streams(spark: SparkSession, name: str) -> str:
    """A stream of a table's changes into another table, exactly once, also if batches repeat."""
    source = Part(spark, name)
    # Only the driver uses the checkpoint of a query without a state.
    target, checkpoint = f"{source.path}_copy", Path(f"/mnt/host/{name}_checkpoint")
    repeated = 0
    for turn in range(4):
        source.write("upsert", made(range(turn * 300, turn * 300 + 1000), f"turn {turn}"))
        source.write("delete", made(range(turn * 300, turn * 300 + 50), ""))
        if turn:
            # As if the driver had been killed between the commit and its entry in the checkpoint.
            last = max(int(p.name) for p in (checkpoint / "commits").glob("[0-9]*"))
            for path in (checkpoint / "commits").glob(f"*{last}*"):
                path.unlink()
            repeated += 1
        changes = spark.readStream.format("kudulite").options(**OPTIONS)
        changes = changes.option("startTimestamp", "snapshot").option("maxRowsPerTrigger", 400)
        query = changes.load(source.path).writeStream.format("kudulite").options(**OPTIONS)
        query = query.option("operationColumn", "_change_type")
        query = query.option("primaryKey", "k").option("hashPartitions", "k:3")
        query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query.start(target).awaitTermination()
        source.check()
        compare(load(spark, target), source.model)
    batches = len(list((checkpoint / "commits").glob("[0-9]*")))
    opened(target).check().raise_if_bad()
    return f"{batches} batches, {repeated} of them run twice: the copy is the source"


def maintenance(spark: SparkSession, name: str) -> str:
    """Maintenance changes no row, now or in the past."""
    part = Part(spark, name)
    moments = []
    for turn in range(6):
        part.write("upsert", made(range(turn * 200, turn * 200 + 2000), f"turn {turn}"))
        moments.append((part.table.current_timestamp(), dict(part.model)))
    part.write("delete", made(range(300), ""))
    result = kudulite_spark.maintain(spark, part.path)
    part.check()
    for moment, model in moments:
        compare(load(spark, part.path, snapshotTimestamp=str(moment)), model)
    part.table.check().raise_if_bad()
    assert result.operations, "nothing was compacted"
    return f"{len(result.operations)} operations; now and {len(moments)} moments are the same"


def backups(spark: SparkSession, name: str) -> str:
    """A full and two incremental backups in a directory, restored on the cluster."""
    part = Part(spark, name)
    target = f"{WAREHOUSE}/{name}_set"
    models = []
    for turn in range(3):
        part.write("upsert", made(range(turn * 500, turn * 500 + 3000), f"turn {turn}"))
        part.write("delete_ignore", made(range(turn * 100, turn * 100 + 150), ""))
        kind = kudulite_spark.backup(spark, part.path, target, content_hash=True)
        models.append((kind, dict(part.model)))
    for number, (backup, model) in enumerate(models):
        place = f"{part.path}_restored{number}"
        kudulite_spark.restore(spark, target, place, at=backup.id)
        compare(load(spark, place), model)
        opened(place).check().raise_if_bad()
    return "a full and two incremental backups, each restored and compared"


def killed_executor(spark: SparkSession, name: str) -> str:
    """An executor is killed while a write has staged files; the job continues and loses no row."""
    return _killed(spark, name, "executor", "worker1")


def killed_worker(spark: SparkSession, name: str) -> str:
    """All processes of a worker's host are killed; the other one ends the job."""
    text = _killed(spark, name, "worker", "worker2")
    ask(start_worker="worker2")
    answer()
    return text


def _killed(spark: SparkSession, name: str, what: str, host: str) -> str:
    part = Part(spark, name)
    part.write("insert", made(range(2000), "first"))
    known = _open_writes(part)
    rows = made(range(1000, 9000), "second")
    staged, killed = list[int](), dict[str, Any]()

    def kill() -> None:
        staged.append(_wait_for_staged(part, known))
        ask(kill=what, host=host, application=spark.sparkContext.applicationId)
        killed.update(answer())

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    begin = time.time()
    part.save(slowly(part.frame(rows, 8), 2.0))
    end = time.time()
    killer.join()
    assert killed["killed"] and staged[0], (killed, staged)
    assert begin < killed["time"] < end, "killed after the write"
    part.model |= rows
    part.check()
    left = _open_writes(part) - known
    assert not left, f"staged files were left: {left}"
    part.write("upsert", made(range(500), "third"))
    part.check()
    part.table.check().raise_if_bad()
    moment = f"{staged[0]} files staged; the write took {end - begin:.0f} s"
    return f"{killed['killed']} killed with {moment}, all rows"


def _open_writes(part: Part) -> set[str]:
    """The names of the writes to a table that are under way."""
    address = parse_address(part.path, OPTIONS)
    storage = environment_at(address.storage).storage
    return {path.name for path in storage.entries(storage.place_of(address.path) / "writes")}


def _wait_for_staged(part: Part, known: set[str]) -> int:
    """Wait until a write, not one of `known`, has staged files of a task; their number."""
    address = parse_address(part.path, OPTIONS)
    storage = environment_at(address.storage).storage
    deadline = time.monotonic() + SECONDS_TO_STAGE
    while time.monotonic() < deadline:
        writes = tuple(f"{name[:16]}-" for name in _open_writes(part) - known)
        found = storage.names_below(storage.place_of(address.path) / "tablet").items()
        staged = [folder for folder, _ in found if folder.name.startswith(writes)]
        files = [name for folder, names in found if folder in staged for name in names]
        count = sum(name.endswith(".parquet") for name in files)
        if writes and count:
            return count
        time.sleep(0.05)
    return 0


def speculation(spark: SparkSession, name: str) -> str:
    """Copies of slow tasks write the same rows; those of one attempt are published."""
    part, attempts = Part(spark, name), Part(spark, f"{name}_attempts")
    path, options = attempts.path, OPTIONS

    def slow_on_one_host(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        number = context.attemptNumber()
        table = kudulite.open_table(path, storage_options=options)
        table.insert([{"k": context.partitionId() * 100 + number, "v": number}])
        # All rows are handed on first, so that both attempts stage.
        yield from batches
        time.sleep(8 if socket.gethostname() == "worker1" else 0.2)

    rows = made(range(8000), "speculated")
    frame = part.frame(rows, 8)
    part.save(frame.mapInArrow(slow_on_one_host, frame.schema))
    part.model = rows
    copies = sum(number > 0 for number, _ in as_rows(attempts.read().toArrow()).values())
    assert copies, "no task had a copy"
    part.check()
    time.sleep(9)  # the slow attempts end, or are stopped
    part.check()
    left = _open_writes(part)
    assert not left, f"staged files were left: {left}"
    part.table.check().raise_if_bad()
    return f"{copies} of 8 tasks had a copy; every row is there once"


def second_application(spark: SparkSession, name: str) -> str:
    """Two applications write at the same time: own keys, and keys that both upsert."""
    part = Part(spark, name)
    turns = 5
    command = [sys.executable, __file__, "--second", name, "--turns", str(turns)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "started\n", "the second application did not start"
        for turn in range(turns):
            part.save(part.frame(rows_of_turn(0, turn)))
        times = json.loads(other.stdout.readline())
    assert other.returncode == 0
    found = as_rows(part.read().select("k", "v", "s").toArrow())
    for writer in (0, 1):
        own = made(range(writer * 10_000, writer * 10_000 + turns * 500), f"writer {writer}")
        assert {k: c for k, c in found.items() if k // 10_000 == writer} == own
    # Each commit sets all shared keys, so one writer's last turn has won all of them.
    assert len({cells for k, cells in found.items() if k >= 90_000}) == 1, "a torn commit"
    assert sum(k >= 90_000 for k in found) == 100
    part.table.check().raise_if_bad()
    assert len(kudulite_spark.versions(spark, part.path).collect()) >= 2 * turns
    return f"{turns} writes of each, the second one's in {times:.0f} s: no row lost, none torn"


def rows_of_turn(writer: int, turn: int) -> Rows:
    """500 own keys, and 100 that all writers set."""
    first = writer * 10_000 + turn * 500
    shared = dict.fromkeys(range(90_000, 90_100), (turn, f"writer {writer}"))
    return made(range(first, first + 500), f"writer {writer}") | shared


def killed_driver(spark: SparkSession, name: str) -> str:
    """The driver of another application is killed: what it had committed is there, and whole."""
    kills, unacknowledged, chance = 3, 0, random.Random(name)
    for number in range(kills):
        part = Part(spark, f"{name}_{number}")
        command = [sys.executable, __file__, "--second", part.name, "--turns", "100"]
        with subprocess.Popen(
            [*command, "--each"], stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "started\n", "the second application did not start"
            assert other.stdout.readline() == "turn\n", "its first write failed"
            time.sleep(chance.uniform(0, 3))
            os.killpg(other.pid, signal.SIGKILL)  # its JVM, too
            turns = 1 + other.stdout.read().count("turn")
        found = as_rows(part.read().select("k", "v", "s").toArrow())
        if sum(k < 90_000 for k in found) > turns * 500:
            turns, unacknowledged = turns + 1, unacknowledged + 1
        for turn in range(turns):
            part.model |= rows_of_turn(1, turn)
        part.check()
        part.write("upsert", made(range(500), "after it"))
        part.check()
        part.table.check().raise_if_bad()
    return f"{kills} killed: every commit whole, {unacknowledged} of them not acknowledged before"


def run_second(name: str, turns: int, tells_each: bool) -> None:
    """The second application: as the first one, on the table that it has made."""
    spark = session("second", **{"spark.driver.memory": "512m"})
    spark.range(10).count()
    print("started", flush=True)
    part = Part.__new__(Part)
    part.spark, part.name, part.path = spark, name, f"{WAREHOUSE}/{name}"
    begin = time.perf_counter()
    for turn in range(turns):
        part.save(part.frame(rows_of_turn(1, turn)))
        if tells_each:
            print("turn", flush=True)
    print(json.dumps(time.perf_counter() - begin), flush=True)
    spark.stop()


def dynamic_allocation(spark: SparkSession, name: str) -> str:
    """Executors come with the work and are removed after it; writes and reads continue."""
    part = Part(spark, name)
    seen = set()
    for turn in range(2):
        part.write("upsert", made(range(turn * 300, turn * 300 + 1000), f"turn {turn}"))
        seen |= executors(spark)
        deadline = time.monotonic() + 120
        while executors(spark):
            assert time.monotonic() < deadline, "idle executors were not removed"
            time.sleep(0.5)
    assert len(seen) > 1, "the second write had no executor of its own"
    part.check()
    return f"{len(seen)} executors were started and removed; all rows"


def executors(spark: SparkSession) -> set[str]:
    """The executors that run, by address."""
    context: Any = spark.sparkContext._jsc.sc()
    found = context.getExecutorMemoryStatus().keys().iterator()
    names = set()
    while found.hasNext():
        names.add(str(found.next()))
    # The driver is among them, and its port is known.
    return {n for n in names if not n.startswith("client:")}


CONNECT = """
import sys
sys.argv = ["cluster_parts.py"]
from cluster_session import *
spark = SparkSession.builder.remote("sc://client:15002").getOrCreate()
kudulite_spark.register(spark)
part = Part(spark, {name!r})
for operation, first, last in (("insert", 0, 3000), ("update", 500, 900), ("delete", 0, 200)):
    part.write(operation, made(range(first, last), operation))
    part.check()
kudulite_spark.maintain(spark, part.path)
part.check()
compare(part.read().filter("k < 600"), {{k: c for k, c in part.model.items() if k < 600}})
part.table.check().raise_if_bad()
print(len(part.model))
"""


def _is_listening(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
        return True
    return False


def connect(_spark: None, name: str) -> str:
    """A Spark Connect server on the cluster, and a client without a JVM."""
    settings = {k: v for k, v in SETTINGS.items() if k != "spark.master"}
    pairs = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    command = [f"{os.environ['SPARK_HOME']}/bin/spark-submit", "--master", SETTINGS["spark.master"]]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", *pairs]
    command += ["--conf", "spark.connect.grpc.binding.address=client", "spark-internal"]
    logged = Path("connect.log")
    # The server counts as a daemon, whose memory is not spark.driver.memory.
    variables = {**os.environ, "SPARK_DAEMON_MEMORY": SETTINGS["spark.driver.memory"]}
    with logged.open("ab") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=variables)
    try:
        deadline = time.monotonic() + 180
        while not _is_listening("client", 15002):
            is_waiting = server.poll() is None and time.monotonic() < deadline
            assert is_waiting, f"the server did not start:\n{logged.read_text()[-3000:]}"
            time.sleep(0.5)
        done = subprocess.run(
            [sys.executable, "-c", CONNECT.format(name=name)],
            env={**os.environ, **{name.upper(): value for name, value in OPTIONS.items()}},
            capture_output=True,
            text=True,
        )
    finally:
        server.terminate()
        server.wait(60)
    assert done.returncode == 0, f"{done.stderr[-3000:]}\n{logged.read_text()[-3000:]}"
    return f"a client wrote, read and maintained {int(done.stdout.splitlines()[-1]):,} rows"


def memory(spark: SparkSession, name: str, size: int) -> str:
    """Write and read `size` rows; the memory of the driver's JVM and Python processes."""
    path = f"{WAREHOUSE}/{name}_{size}"
    kudulite_spark.create_table(
        spark, path, SCHEMA, primary_key=["k"], hash_partitions=[(["k"], TABLETS)]
    )
    rows = spark.range(0, size, 1, 4)
    rows = rows.selectExpr("id AS k", "id * 7 AS v", "'text ' || id % 1000 AS s")
    with Memory(spark) as used:
        begin = time.perf_counter()
        rows.write.format("kudulite").mode("append").options(**OPTIONS).save(path)
        written = time.perf_counter() - begin
        begin = time.perf_counter()
        expected = (size, 7 * size * (size - 1) // 2)
        for frame in (
            load(spark, path),
            kudulite_spark.read_table(spark, path),
        ):
            found = frame.selectExpr("count(s)", "sum(v)", "max(k)").first()
            assert tuple(found) == (*expected, size - 1), found
        read = (time.perf_counter() - begin) / 2
    kudulite.connect(WAREHOUSE, storage_options=OPTIONS).delete_table(f"{name}_{size}")
    return f"{size:>10,} rows, write {written:.0f} s, read {read:.0f} s; driver: {used.text}"


# -- running them

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.3",
}
ALLOCATION = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "2s",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
    "spark.dynamicAllocation.cachedExecutorIdleTimeout": "2s",
}
SECONDS_TO_STAGE = 120.0
# Parts with the same settings share a session.
PARTS: tuple[tuple[Callable[..., str], dict[str, str] | None], ...] = (
    (environments, {}),
    (reads, {}),
    (writes, {}),
    (streams, {}),
    (maintenance, {}),
    (backups, {}),
    (killed_executor, {}),
    (killed_worker, {}),
    (killed_driver, {}),
    (second_application, {}),
    (speculation, SPECULATION),
    (dynamic_allocation, ALLOCATION),
    (connect, None),
)


def main() -> None:
    """Run the parts; the first failure ends the run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=1)
    parser.add_argument("--parts", nargs="*", default=[])
    parser.add_argument("--sizes", nargs="*", type=int, default=[])
    parser.add_argument("--second")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--each", action="store_true")
    arguments = parser.parse_args()
    if arguments.second:
        run_second(arguments.second, arguments.turns, arguments.each)
        return
    spark: SparkSession | None = None
    current: dict[str, str] | None = None
    for part, settings in PARTS:
        if arguments.parts and part.__name__ not in arguments.parts:
            continue
        if part is backups and OPTIONS:
            print(f"{'backups':<27}  left out: they are in a directory that all hosts share")
            continue
        if spark is not None and settings != current:
            spark.stop()
            spark = None
        if spark is None and settings is not None:
            spark, current = session("cluster", **settings), settings
        begin = time.perf_counter()
        text = part(spark, f"{part.__name__}_{arguments.number}")
        seconds = time.perf_counter() - begin
        print(f"{part.__name__.replace('_', ' '):<20}{seconds:>5.0f} s  {text}", flush=True)
    if spark is not None:
        spark.stop()
    if arguments.sizes and (not arguments.parts or "memory" in arguments.parts):
        spark = session("memory")
        for size in arguments.sizes:
            print(f"{'memory':<28}{memory(spark, 'memory', size)}", flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
