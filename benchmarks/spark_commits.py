"""Small commits by Spark: what one costs, and a stream of them whose processes are killed.

    python benchmarks/spark_commits.py commit [--rows 1000000] [--commits 30] [--batch 100]
    python benchmarks/spark_commits.py stream [--rows 5000000] [--batches 3600] [--batch 100]
        [--kills 20] [--seed 1]

    commit    `df.write` to Spark's sink `noop`, to a Python source that drops its rows, and to a
              maintained table with four operations; all take turns in one session
    stream    a streaming query inserts each batch; again and again all its processes are killed
              and a new one continues. At the end the rows are compared with the expected ones

The table has the even keys, by default in 8 tablets (--tablets). An insert has odd keys. In
`commit`, each delete has the keys that were inserted last, so that the table keeps its size.

The query of `stream` is in a child process with a session of processes of its own. A kill is
SIGKILL to all of them: the driver, Java, and the Python workers, which Spark puts into a process
group of their own. Each kill is in another part of the stream, at a random moment, at least a
second after the first batch of the start. The source gives the same rows when a batch is repeated.
A strict insert fails if the rows of a batch are written a second time. Ends with an error if a row
is missing, doubled or wrong. Both steps take --folder, the place for the table. Linux only.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from small_commits import file_count, line

import kudulite
import kudulite_spark

WARM_UP = 15  # rounds of `commit` that are not counted
SKIPPED = 5  # of `stream`, the first batches of each start that are not in a median
OTHERS = ("noop", "Python source")
OPERATIONS = ("upsert", "insert", "update", "delete")
TABLE = "t"
STRIDE = 7919  # spreads the keys of a batch over all keys
POLL_SECONDS = 0.5
PATIENCE_SECONDS = 180.0  # a child that has no new batch for so long is stuck

# -- the table


def even_rows(args: argparse.Namespace) -> pa.Table:
    """Return the rows at the start: `--rows` even keys, in order, with negative values."""
    numbers = np.arange(args.rows)
    return pa.table({"id": numbers * 2, "v": -1 - numbers})


def make_table(folder: Path, args: argparse.Namespace) -> Path:
    """Make the table, maintained, and return its folder."""
    rows = even_rows(args)
    with kudulite.connect(folder, background_maintenance=False) as client:
        table = client.create_table(
            TABLE,
            rows.schema,
            primary_key="id",
            hash_partitions=[(["id"], args.tablets)] if args.tablets > 1 else [],
        )
        table.insert(rows)
        table.maintain(grace_seconds=0.0)
        return table.path


def check(path: Path, expected: pa.Table) -> None:
    """Exit unless the table has exactly these rows."""
    table = kudulite.open_table(path)
    table.check().raise_if_bad()
    wanted, found = ordered(expected), ordered(table.scan().to_arrow())
    count, copies = len(found[0]), len(found[0]) - len(np.unique(found[0]))
    line("rows", f"{count:,}", f"expected {len(wanted[0]):,}; {copies:,} keys more than once")
    line("rows with odd keys", f"{np.count_nonzero(found[0] % 2):,}")
    line("sum of the values", f"{found[1].sum():,}", f"expected {wanted[1].sum():,}")
    if not np.array_equal(found, wanted):
        missing = np.setdiff1d(wanted[0], found[0])
        other = np.setdiff1d(found[0], wanted[0])
        sys.exit(
            f"wrong rows: {len(missing):,} keys are missing {missing[:5]}, {copies:,} are doubled,"
            f" {len(other):,} are too many {other[:5]}; with 0 of each, values differ"
        )
    print("the table has exactly the expected rows")


def ordered(rows: pa.Table) -> np.ndarray:
    """Return keys and values as int64[2, n], by key."""
    pair = np.stack([rows["id"].to_numpy(), rows["v"].to_numpy()])
    return pair[:, np.argsort(pair[0], kind="stable")]


# -- commits of a session


class DropWriter(DataSourceArrowWriter):
    """Reads its rows and drops them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Read all rows of a task."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


class DropSource(DataSource):
    """The least that a write to a Python source is."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "drop"

    def writer(self, schema: object, overwrite: bool) -> DropWriter:
        """Return the writer."""
        return DropWriter()


def commit(args: argparse.Namespace, folder: Path) -> None:
    """Writes of a few rows to `noop`, to a Python source that drops them, and to the table."""
    # The rows of a batch are `step` rows apart, so that they are in all parts of the table.
    step, rounds = args.rows // args.batch // 2 * 2, WARM_UP + args.commits
    if rounds > step // 2:
        sys.exit("too few --rows for so many --commits of such a --batch")
    path = make_table(folder, args)
    spark = kudulite_spark.local_session("kudulite commits")
    spark.dataSource.register(DropSource)
    times: dict[str, list[float]] = {name: [] for name in (*OTHERS, *OPERATIONS)}
    for number in range(rounds):
        for name in times:
            is_odd = name in ("insert", "delete")
            # An update has other rows than the upsert of its round.
            first = 2 * (number + step // 2 * (name == "update")) + is_odd
            keys = spark.range(first, first + 2 * step * args.batch, 2 * step, 1)
            times[name].append(write(keys.selectExpr("id", "id AS v"), name, path) * 1e3)
    spark.stop()
    times = {name: found[WARM_UP:] for name, found in times.items()}
    line("milliseconds", "median", "   fastest      90 %    - noop  - Python")
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, found in times.items():
        rest = f"{min(found):>10.1f}{np.quantile(found, 0.9):>10.1f}"
        if name in OPERATIONS:
            for other in OTHERS:
                rest += f"{medians[name] - medians[other]:>10.1f}"
        line(f"kudulite, {name}" if name in OPERATIONS else name, f"{medians[name]:.1f}", rest)
    numbers = np.arange(args.rows)
    is_new = (numbers < step * args.batch) & (numbers % step % (step // 2) < rounds)
    values = pa.array(np.where(is_new, numbers * 2, -1 - numbers))
    check(path, even_rows(args).set_column(1, "v", values))


def write(frame: DataFrame, name: str, path: Path) -> float:
    """Append the rows by one of the writes, and return the seconds that it takes."""
    if name in OPERATIONS:
        writer = frame.write.format("kudulite").option("operation", name).option("path", str(path))
    else:
        writer = frame.write.format("noop" if name == "noop" else DropSource.name())
    begin = time.perf_counter()
    writer.mode("append").save()
    return time.perf_counter() - begin


# -- a stream: the child


def follow(args: argparse.Namespace, folder: Path) -> None:
    """Run the query until the last batch, and note its progress and the files of the table."""
    own = str(folder / "spark")  # what a killed process leaves is removed with the folder
    spark = kudulite_spark.local_session(
        "kudulite stream",
        options={
            "spark.local.dir": own,
            "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={own} -XX:-UsePerfData",
            "spark.sql.streaming.numRecentProgressUpdates": "25",
        },
    )
    query = start_query(spark, args, folder)
    seen = -1
    with (
        open(progress_path(folder, args.start), "w", buffering=1) as progress,
        open(folder / "files", "a", buffering=1) as files,
    ):
        while seen < args.batches - 1:
            time.sleep(POLL_SECONDS)
            problem = query.exception()
            if problem is not None:
                sys.exit(f"the query has failed: {problem}")
            for found in query.recentProgress:
                if found["batchId"] > seen and "addBatch" in found["durationMs"]:
                    seen, rows, took = found["batchId"], found["numInputRows"], found["durationMs"]
                    progress.write(f"{seen} {rows} {took['triggerExecution']} {took['addBatch']}\n")
            files.write(f"{file_count(folder / TABLE)}\n")
    query.stop()
    spark.stop()


def start_query(spark: SparkSession, args: argparse.Namespace, folder: Path) -> StreamingQuery:
    """Start or continue the query: rows of numbers 0, 1, 2 …, each with a key of its own."""
    source = spark.readStream.format("rate-micro-batch").option("numPartitions", 1)
    rows = source.option("rowsPerBatch", args.batch).load()
    # Batches after the last are empty, so that the rows do not depend on the moment of the stop.
    rows = rows.where(f"value < {args.batches * args.batch}").selectExpr(
        f"2 * (value * {STRIDE} % {args.rows}) + 1 AS id", "value AS v"
    )
    sink = rows.writeStream.format("kudulite").option("operation", "insert").outputMode("append")
    sink = sink.option("checkpointLocation", str(folder / "checkpoint"))
    return sink.trigger(processingTime="0 seconds").start(str(folder / TABLE))


def progress_path(folder: Path, start: int) -> Path:
    """Return the file with a line for each batch of a start: id, rows, milliseconds twice."""
    return folder / f"progress-{start}"


# -- a stream: the parent


def stream(args: argparse.Namespace, folder: Path) -> None:
    """A streaming query of inserts, killed again and again; then the table's rows are checked."""
    count = args.batches * args.batch
    if count > args.rows or math.gcd(args.rows, STRIDE) != 1:
        sys.exit(f"--rows must be at least {count:,}, and no multiple of {STRIDE}")
    path = make_table(folder, args)
    (folder / "spark").mkdir()
    files = [file_count(path)]
    kills, seconds = run_and_kill(args, folder)
    line("files at the start", f"{files[0]:,}")
    files += [int(text) for text in (folder / "files").read_text().split()]
    line("files, the most seen", f"{max(files):,}", f"seen {len(files):,} times")
    line("files at the end", f"{file_count(path):,}")
    print_tenths(args, folder, kills + 1)
    line("kills", f"{kills:,}", f"{seconds:,.0f} s in all")
    values = np.arange(count)
    odd = pa.table({"id": 2 * (values * STRIDE % args.rows) + 1, "v": values})
    check(path, pa.concat_tables([even_rows(args), odd]))
    if kills < args.kills:
        sys.exit(f"the stream ended after {kills} of {args.kills} kills: choose more --batches")


def run_and_kill(args: argparse.Namespace, folder: Path) -> tuple[int, float]:
    """Start the child until it ends by itself; returns the number of kills, and the seconds."""
    chance = random.Random(args.seed)
    # One kill in each part of the stream, and none in its last tenth.
    part = 0.9 * args.batches / max(args.kills, 1)
    batches = [int((number + chance.random()) * part) for number in range(args.kills)]
    begin = time.perf_counter()
    for start, batch in enumerate([*batches, None]):
        child = start_child(args, folder, start)
        try:
            if not wait(child, progress_path(folder, start), batch):
                time.sleep(chance.random())
            has_ended = child.poll() is not None
        finally:
            kill(child)  # after the end, too: no worker may stay
        if has_ended:
            break
    if child.returncode:
        sys.exit(f"start {start} has failed:\n{(folder / 'log').read_text()[-5000:]}")
    return start, time.perf_counter() - begin


def start_child(args: argparse.Namespace, folder: Path, start: int) -> subprocess.Popen[bytes]:
    """Start this script as the child, in a session of processes of its own."""
    options = [f"--{name}={getattr(args, name)}" for name in ("rows", "batches", "batch")]
    options += [f"--folder={folder}", f"--start={start}"]
    with open(folder / "log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, __file__, "follow", *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "TMPDIR": str(folder / "spark")},
            start_new_session=True,
        )


def wait(child: subprocess.Popen[bytes], progress: Path, batch: int | None) -> bool:
    """Wait until a second after the first batch and until `batch`; True if the child ends before.

    Exits if the child makes no progress.
    """
    first, last, text = math.inf, time.perf_counter(), ""
    while child.poll() is None:
        time.sleep(0.1)
        now, before = time.perf_counter(), text
        text = progress.read_text() if progress.exists() else ""
        if text != before:
            first, last = min(first, now), now
        if now - last > PATIENCE_SECONDS:
            sys.exit(f"no batch for {now - last:.0f} s, after {len(text.splitlines())} batches")
        if batch is not None and now - first >= 1.0 and int(text.split()[-4]) >= batch:
            return False
    return True


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kill all processes of a child's session, and wait until they are gone."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    while left := processes_of(child.pid):
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended meanwhile
        time.sleep(0.01)
    child.wait()


def processes_of(session: int) -> list[int]:
    """Return the ids of the running processes of a session of processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, owner = path.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(owner) == session and state not in "ZX":
            found.append(int(path.parent.name))
    return found


def print_tenths(args: argparse.Namespace, folder: Path, starts: int) -> None:
    """Print the median time of a batch of each tenth, without the first batches of each start."""
    parts = [np.loadtxt(progress_path(folder, n), np.int64, ndmin=2) for n in range(starts)]
    batches = np.concatenate([part[SKIPPED:] for part in parts])
    batches = batches[batches[:, 0] < args.batches]
    medians = []
    for tenth in range(10):
        chosen = batches[batches[:, 0] * 10 // args.batches == tenth]
        if len(chosen):
            whole, work = np.median(chosen[:, 2:], axis=0)
            note = f"addBatch {work:,.0f} ms, {len(chosen):,} batches"
            line(f"a batch, median of tenth {tenth + 1}", f"{whole:,.0f} ms", note)
            medians.append(whole)
    if len(medians) == 10:
        line("last tenth / first", f"{medians[-1] / medians[0]:.2f}")


STREAM = {"rows": 5_000_000, "batches": 3_600, "batch": 100}
# With the options of each and what they are if they are not given. `follow` is the child's.
STEPS: dict[str, tuple[Callable[[argparse.Namespace, Path], None], dict[str, int]]] = {
    "commit": (commit, {"rows": 1_000_000, "commits": 30, "batch": 100}),
    "stream": (stream, STREAM | {"kills": 20, "seed": 1}),
    "follow": (follow, STREAM | {"start": 0}),
}


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = parser.add_subparsers(dest="name", required=True, metavar="STEP")
    for name, (run, options) in STEPS.items():
        one = names.add_parser(name, description=str(run.__doc__).splitlines()[0])
        for option, default in options.items():
            one.add_argument(f"--{option}", type=int, default=default)
        one.add_argument("--tablets", type=int, default=8)
        one.add_argument("--folder", help="where the table is made (default: the system's)")
    args = parser.parse_args()
    run = STEPS[args.name][0]
    if run is follow:
        run(args, Path(args.folder))
        return
    with tempfile.TemporaryDirectory(prefix="kudulite-spark-", dir=args.folder) as folder:
        run(args, Path(folder).resolve())


if __name__ == "__main__":
    main()
