"""Load, change and read a lineitem table through Spark, kudulite beside Parquet and Delta.

    pip install psutil
    python benchmarks/spark_steps.py [--rows 2000000] [--only load changes clean dirty past commits]
    python benchmarks/spark_steps.py --delta io.delta:delta-spark_4.2_2.13:4.4.0    (or --delta-jar)

Each engine runs in a session of its own, local[2], in a process of its own:

    first     the first writes of 1,000 rows in a session, beside Parquet and `nothing`
    load      the table, beside `df.write.parquet` of the same DataFrame and `nothing`
    clean     count, aggregate, one key, all columns
    changes   upsert of 10 % at random, update of one column of 5 %, delete of 1 %
    dirty     the reads of `clean` again; `parquet` reads the same rows rewritten
    past      the aggregate as of before the changes, before and after maintenance
    commits   of 100 rows each, in turn with `nothing`

`nothing` is a data source in Python that drops its rows: what Spark itself takes for such a write.
Answers are compared with ones that numpy and pyarrow computed (`spark_steps_data`), all cells of
each state by a checksum. Figures are medians of seconds. `first` is the uncounted first round.
`CPU` is that of the driver, the JVM and the workers together. Memory is the largest sum over these
processes, sampled from outside; PSS counts shared pages once.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

import psutil
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from spark_steps_data import COMMIT_ROWS, KEY, UPDATED, Answers, make_files

import kudulite_spark

STEPS = ["first", "load", "clean", "changes", "dirty", "past", "commits"]
COMMITS = 10
Reader = Callable[[], DataFrame]


# -- Engines


class Kudulite:
    """Tables of kudulite, read by `read_table` and by the front."""

    name = "kudulite"

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.tablets = arguments.tablets

    def start(self, options: dict[str, str]) -> SparkSession:
        """Start the session."""
        spark = kudulite_spark.local_session("steps", options=options)
        return spark

    def load(self, frame: DataFrame, path: str) -> None:
        """Write a new table."""
        self._write(
            frame, path, primaryKey=",".join(KEY), hashPartitions=f"{KEY[0]}:{self.tablets}"
        )

    def change(self, operation: str, frame: DataFrame, path: str) -> None:
        """Upsert, update or delete the rows of a DataFrame."""
        self._write(frame, path, operation=operation)

    def _write(self, frame: DataFrame, path: str, **options: str) -> None:
        frame.write.format("kudulite").mode("append").options(**options).save(path)

    def moment(self, spark: SparkSession, path: str) -> Any:
        """Return what `readers` takes to read the table as it is now."""
        time.sleep(0.01)
        return datetime.datetime.now(datetime.UTC)

    def readers(self, spark: SparkSession, path: str, at: Any = None) -> dict[str, Reader]:
        """Return the ways of reading the table."""
        options = {} if at is None else {"snapshotTimestamp": at.isoformat()}
        return {
            "read_table": lambda: kudulite_spark.read_table(spark, path, snapshot=at),
            "front": lambda: spark.read.format("kudulite").options(**options).load(path),
        }

    def maintain(self, spark: SparkSession, path: str) -> None:
        """Compact the table."""
        kudulite_spark.maintain(spark, path)


class Parquet(Kudulite):
    """Spark's Parquet, which only appends: for the first writes of a session."""

    name = "parquet"

    def load(self, frame: DataFrame, path: str) -> None:
        """Write Parquet."""
        frame.write.mode("append").parquet(path)


class Nothing(Kudulite):
    """A data source in Python that drops its rows: Spark's own share of a write."""

    name = "nothing"

    def start(self, options: dict[str, str]) -> SparkSession:
        """Start the session."""
        spark = super().start(options)
        spark.dataSource.register(_nothing_source())
        return spark

    def load(self, frame: DataFrame, path: str) -> None:
        """Drop the rows."""
        frame.write.format("nothing").mode("append").save()


def _nothing_source() -> type[DataSource]:
    """Return the data source `nothing`; Spark pickles classes of a function by value."""

    class NothingWriter(DataSourceArrowWriter):
        def write(self, iterator: Any) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class NothingSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "nothing"

        def writer(self, schema: Any, overwrite: bool) -> NothingWriter:
            return NothingWriter()

    return NothingSource


def delta_options(package: str | None, jars: Sequence[str] = ()) -> dict[str, str]:
    """Return the settings of a session that knows Delta, of a Maven package or of jars."""
    options = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
    }
    if package:
        options["spark.jars.packages"] = package
    if jars:
        options["spark.jars"] = ",".join(jars)
    return options


class Delta(Kudulite):
    """Tables of Delta with deletion vectors."""

    name = "delta"

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.options = delta_options(arguments.delta, arguments.delta_jar or ())

    def start(self, options: dict[str, str]) -> SparkSession:
        """Start the session; raises if the jar cannot be found."""
        spark = kudulite_spark.local_session("steps", options={**options, **self.options})
        spark._jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(
            self.options["spark.sql.extensions"]
        )
        return spark

    def load(self, frame: DataFrame, path: str) -> None:
        """Write a new table."""
        frame.write.format("delta").mode("append").save(path)

    def change(self, operation: str, frame: DataFrame, path: str) -> None:
        """Merge the rows of a DataFrame."""
        frame.createOrReplaceTempView("changes")
        condition = " AND ".join(f"t.{name} = s.{name}" for name in KEY)
        actions = {
            "upsert": "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
            "update": f"WHEN MATCHED THEN UPDATE SET t.{UPDATED} = s.{UPDATED}",
            "delete": "WHEN MATCHED THEN DELETE",
        }
        frame.sparkSession.sql(
            f"MERGE INTO delta.`{path}` AS t USING changes AS s ON {condition} {actions[operation]}"
        )

    def moment(self, spark: SparkSession, path: str) -> Any:
        """Return the newest version."""
        return spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").first()["version"]

    def readers(self, spark: SparkSession, path: str, at: Any = None) -> dict[str, Reader]:
        """Return the one way of reading the table."""
        options = {} if at is None else {"versionAsOf": str(at)}
        return {"delta": lambda: spark.read.format("delta").options(**options).load(path)}

    def maintain(self, spark: SparkSession, path: str) -> None:
        """Rewrite small files and files with deleted rows."""
        spark.sql(f"OPTIMIZE delta.`{path}`")
        spark.sql(f"REORG TABLE delta.`{path}` APPLY (PURGE)")


ENGINES = {engine.name: engine for engine in (Kudulite, Parquet, Nothing, Delta)}


# -- Queries; each returns an answer, or None if Spark keeps the rows


def _count(frame: DataFrame, key: tuple[int, int]) -> Any:
    return frame.count()


def _aggregate(frame: DataFrame, key: tuple[int, int]) -> Any:
    sums = ["count(*)", "sum(l_quantity)", "sum(l_extendedprice)"]
    frame.createOrReplaceTempView("aggregated")
    text = f"SELECT l_returnflag, {', '.join(sums)} FROM aggregated GROUP BY l_returnflag"
    rows = frame.sparkSession.sql(text).collect()
    return {
        flag: (count, int(quantity * 100), int(cost * 100)) for flag, count, quantity, cost in rows
    }


def _one_key(frame: DataFrame, key: tuple[int, int]) -> Any:
    rows = frame.filter(f"{KEY[0]} = {key[0]} AND {KEY[1]} = {key[1]}").collect()
    assert len(rows) <= 1
    return tuple(rows[0]) if rows else None


def _all_columns(frame: DataFrame, key: tuple[int, int]) -> Any:
    frame.write.format("noop").mode("overwrite").save()


def _checksum(frame: DataFrame) -> int:
    names = ", ".join(frame.columns)
    return frame.selectExpr(f"sum(crc32(concat_ws('|', {names})))").first()[0]


QUERIES = {
    "count": _count,
    "aggregate": _aggregate,
    "one key": _one_key,
    "all columns": _all_columns,
}


# -- One engine's run, in a process of its own


@dataclass
class Figure:
    """Seconds of one step: of the counted rounds, and of the first one."""

    name: str
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    call: list[float] = field(default_factory=list)  # of the call that makes the DataFrame
    first: float | None = None

    def line(self) -> str:
        """Return the figure as text."""
        median = statistics.median
        text = f"{self.name:<44}{median(self.seconds):>9.3f} s {median(self.cpu):>9.3f} CPU"
        if self.call:
            text += f"   call {median(self.call):.3f}"
        return text if self.first is None else f"{text}   first {self.first:.3f}"


def _cpu_seconds() -> float:
    """Return the CPU time of this process and all below it."""
    total = 0.0
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        # Children that ended count for their parent.
        total += times.user + times.system + times.children_user + times.children_system
    return total


class Run:
    """The steps of one engine."""

    def __init__(
        self, engine: Any, folder: Path, answers: dict[str, Answers], arguments: argparse.Namespace
    ) -> None:
        self.engine, self.folder, self.answers = engine, folder, answers
        self.repeat, self.only = arguments.repeat, arguments.only
        options = {"spark.driver.memory": arguments.driver_memory}
        self.spark = engine.start(options)
        self.paths = [str(folder / f"{engine.name}-{i}") for i in range(self.repeat)]
        self.report: Callable[[str, Any], None] = lambda kind, content: None

    def frame(self, name: str) -> DataFrame:
        """Return a DataFrame of a Parquet file or folder beside the tables."""
        return self.spark.read.parquet(str(self.folder / name))

    def measured(self, figure: Figure, work: Callable[[], Any], is_counted: bool = True) -> Any:
        """Add the seconds of `work` to a figure."""
        cpu, start = _cpu_seconds(), time.perf_counter()
        result = work()
        seconds, cpu = time.perf_counter() - start, _cpu_seconds() - cpu
        if is_counted:
            figure.seconds.append(seconds)
            figure.cpu.append(cpu)
        else:
            figure.first = seconds
        return result

    def first(self) -> None:
        """Write small tables, in a session that has done nothing else."""
        rows = pq.read_table(self.folder / "source" / "0.parquet").slice(0, 1000)
        frame = self.spark.createDataFrame(rows.combine_chunks())
        for number in range(3):
            figure = Figure(f"{self.engine.name}: small write {number + 1} of a session")
            self.measured(figure, partial(self.engine.load, frame, f"{self.paths[0]}-s{number}"))
            self.report("figure", figure)

    def run(self) -> None:
        """Run all steps that were asked for; later ones need the tables of the earlier ones."""
        self.report("phase", "load")
        self.load()
        path, at = self.paths[-1], None
        if "clean" in self.only:
            self.report("phase", "clean")
            self.read("clean", path)
        if {"changes", "dirty", "past", "commits"} & set(self.only):
            at = self.engine.moment(self.spark, path)
            self.report("phase", "changes")
            self.change()
        if "dirty" in self.only:
            self.report("phase", "dirty")
            self.read("changed", path)
        if "past" in self.only:
            self.report("phase", "past")
            self.past(path, at)
        if "commits" in self.only:
            self.report("phase", "commits")
            self.commit(path)

    def load(self) -> None:
        """Load the table several times, in turn with Parquet and `nothing`."""
        frame, engine = self.frame("source"), self.engine
        small = frame.limit(1000)
        small.write.parquet(str(self.folder / "small"), mode="overwrite")
        engine.load(small, f"{self.paths[0]}-small")
        self.spark.dataSource.register(_nothing_source())
        names = engine.name, "df.write.parquet", "nothing"
        figure, parquet, floor = figures = [Figure(f"load: {name}") for name in names]
        copy = str(self.folder / "copy")
        for path in self.paths:
            self.measured(parquet, lambda: frame.write.parquet(copy, mode="overwrite"))
            self.measured(figure, partial(engine.load, frame, path))
            self.measured(floor, partial(Nothing.load, engine, frame, path))
        if "load" in self.only:
            for each in figures:
                self.report("figure", each)

    def change(self) -> None:
        """Change every table that was loaded."""
        for operation in ("upsert", "update", "delete"):
            frame = self.frame(f"{operation}.parquet")
            figure = Figure(f"{operation}: {self.engine.name}")
            for path in self.paths:
                work = partial(self.engine.change, operation, frame, path)
                self.measured(figure, work)
            if "changes" in self.only:
                self.report("figure", figure)

    def read(self, state: str, path: str) -> None:
        """Measure the four queries on one state, by each reader, with the call of the reader."""
        readers = self.engine.readers(self.spark, path)
        readers["parquet"] = lambda: self.frame("source" if state == "clean" else state)
        answers = self.answers[state]
        figures = {(q, r): Figure(f"{state}, {q}: {r}") for q in QUERIES for r in readers}
        for turn in range(self.repeat + 1):
            key, row = list(answers.rows.items())[turn % len(answers.rows)]
            expected = [answers.count, answers.aggregate, row, None]
            for (name, query), answer in zip(QUERIES.items(), expected, strict=True):
                for reader, call in readers.items():
                    figure = figures[name, reader]
                    work = partial(self._timed, call, query, figure, key)
                    found = self.measured(figure, work, turn > 0)
                    assert found == answer, f"{figure.name}: {found}, expected {answer}"
        for figure in figures.values():
            del figure.call[:1]
            self.report("figure", figure)
        for reader, call in readers.items():
            self.check(f"{state}: {reader}", call(), state)

    def _timed(self, call: Reader, query: Any, figure: Figure, key: tuple[int, int]) -> Any:
        start = time.perf_counter()
        frame = call()
        figure.call.append(time.perf_counter() - start)
        return query(frame, key)

    def check(self, name: str, frame: DataFrame, state: str) -> None:
        """Compare all cells of a state."""
        found = _checksum(frame)
        assert found == self.answers[state].checksum, f"{name}: checksum {found}"

    def past(self, path: str, at: Any) -> None:
        """Measure the aggregate as of before the changes, before and after maintenance."""
        self._past(path, at, "before maintenance")
        figure = Figure(f"maintenance: {self.engine.name}")
        self.measured(figure, partial(self.engine.maintain, self.spark, path))
        self.report("figure", figure)
        self._past(path, at, "after maintenance")
        for name, call in self.engine.readers(self.spark, path).items():
            self.check(f"changed, maintained: {name}", call(), "changed")

    def _past(self, path: str, at: Any, label: str) -> None:
        readers = self.engine.readers(self.spark, path, at)
        figures = {name: Figure(f"as of before, {label}: {name}") for name in readers}
        for turn in range(self.repeat + 1):
            for name, call in readers.items():
                work = partial(self._timed, call, _aggregate, figures[name], (0, 0))
                found = self.measured(figures[name], work, turn > 0)
                assert found == self.answers["clean"].aggregate, f"{figures[name].name}: {found}"
        for name, figure in figures.items():
            del figure.call[:1]
            self.report("figure", figure)
            self.check(figure.name, readers[name](), "clean")

    def commit(self, path: str) -> None:
        """Write few rows at a time."""
        rows = pq.read_table(self.folder / "commits.parquet").combine_chunks()
        figure = Figure(f"commit of {COMMIT_ROWS} rows: {self.engine.name}")
        floor = Figure(f"commit of {COMMIT_ROWS} rows: nothing")
        for number in range(COMMITS):
            part = rows.slice(number * COMMIT_ROWS, COMMIT_ROWS)
            frame = self.spark.createDataFrame(part).coalesce(1)
            self.measured(figure, partial(self.engine.change, "upsert", frame, path), number > 0)
            self.measured(floor, partial(Nothing.load, self.engine, frame, path), number > 0)
        self.report("figure", figure)
        self.report("figure", floor)
        for name, call in self.engine.readers(self.spark, path).items():
            self.check(f"grown: {name}", call(), "grown")


def _run_engine(
    name: str,
    is_first: bool,
    folder: Path,
    answers: dict[str, Answers],
    arguments: argparse.Namespace,
    queue: Any,
) -> None:
    """Run in a process of its own; everything is reported through the queue."""
    try:
        run = Run(ENGINES[name](arguments), folder, answers, arguments)
    except Exception as error:
        queue.put(("error", f"{name} is not measured, because its session does not start: {error}"))
        return
    run.report = lambda kind, content: queue.put((kind, content))
    try:
        run.report("phase", "first") if is_first else None
        run.first() if is_first else run.run()
    finally:
        run.spark.stop()


# -- The caller


class Memory:
    """The largest memory of a process and all below it, by phase."""

    def __init__(self, pid: int) -> None:
        self.process = psutil.Process(pid)
        self.phase = "start"
        self.peaks: dict[str, dict[str, int]] = {}

    def sample(self) -> None:
        """Add the memory of this moment."""
        sizes = dict.fromkeys(("PSS", "RSS", "driver", "JVM", "workers"), 0)
        try:
            processes = [self.process, *self.process.children(recursive=True)]
        except psutil.Error:
            return
        for process in processes:
            try:
                found = process.memory_full_info()
                is_java = process.name() == "java"
            except psutil.Error:
                continue
            role = "driver" if process is self.process else "JVM" if is_java else "workers"
            sizes["RSS"] += found.rss
            sizes["PSS"] += found.pss
            sizes[role] += found.pss
        if sizes["PSS"] > self.peaks.get(self.phase, {"PSS": 0})["PSS"]:
            self.peaks[self.phase] = sizes

    def lines(self) -> list[str]:
        """Return the peaks as text."""
        lines = []
        for phase, sizes in self.peaks.items():
            total, *roles = (f"{name} {size / 1e9:.2f}" for name, size in sizes.items())
            lines.append(f"{'memory, ' + phase:<44}{total} GB  {'  '.join(roles)}")
        return lines


def measure(
    name: str,
    is_first: bool,
    folder: Path,
    answers: dict[str, Answers],
    arguments: argparse.Namespace,
) -> None:
    """Run one engine in a process of its own and print its figures as they come."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(
        target=_run_engine, args=(name, is_first, folder, answers, arguments, queue)
    )
    process.start()
    memory = Memory(process.pid or 0)
    while process.is_alive() or not queue.empty():
        try:
            kind, content = queue.get(timeout=0.25)
        except Empty:
            memory.sample()
            continue
        if kind == "phase":
            memory.phase = content
        else:
            print(content.line() if kind == "figure" else content, flush=True)
    process.join()
    if not is_first:
        print("\n".join(memory.lines()), flush=True)
    if process.exitcode:
        raise SystemExit(f"{name} failed")


def main() -> None:
    """Make the rows and the answers, and run the engines one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--tablets", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=STEPS, default=STEPS)
    parser.add_argument("--driver-memory", default="1g", help="Spark's default, as for any user")
    parser.add_argument("--folder", type=Path, help="where to make the files; a new one inside it")
    parser.add_argument("--delta", metavar="PACKAGE", help="measure Delta: its Maven coordinates")
    parser.add_argument("--delta-jar", nargs="*", metavar="PATH", help="measure Delta: its jars")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kudulite-steps-", dir=arguments.folder))
    print(
        f"{arguments.rows:,} rows × 10 columns, {arguments.tablets} tablets, {os.cpu_count()} cores"
    )
    try:
        answers = make_files(folder, arguments.rows, COMMITS)
        if "first" in arguments.only:
            for name in ("parquet", "nothing", "kudulite"):
                measure(name, True, folder, answers, arguments)
        if set(arguments.only) - {"first"}:
            measure("kudulite", False, folder, answers, arguments)
            if arguments.delta or arguments.delta_jar:
                measure("delta", False, folder, answers, arguments)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
