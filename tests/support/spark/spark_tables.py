"""Short reads and writes through Spark, settings of a session, and the state of a table."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import kudulite
from kudulite import Table
from kudulite.storage.names import write_of
from kudulite.table.environment import default_environment
from kudulite.table.open_writes import UPKEEP
from kudulite.table.table_store import TableStore
from tests.support.tables.core_tables import files_below, referenced_files

# For many queries of few rows: compiling and adapting each one takes longer than its rows.
SHORT_QUERIES = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def save(frame: DataFrame, path: Any, mode: str = "append", **options: Any) -> None:
    """Write a DataFrame with the source's options."""
    frame.write.format("kudulite").mode(mode).options(**options).save(str(path))


def load(spark: SparkSession, path: Any, **options: Any) -> DataFrame:
    """A new DataFrame of the table at `path`."""
    return spark.read.format("kudulite").options(**options).load(str(path))


@contextmanager
def configured(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Set settings of the session for a block, and then set them as they were."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


def make_table(path: Any, content: Any, types: dict[str, pa.DataType], **layout: Any) -> str:
    """Make a table with these rows, without Spark; returns its path."""
    data = pa.Table.from_pylist(
        [dict(zip(types, row, strict=True)) for row in content], schema=pa.schema(types.items())
    )
    place = Path(path)
    client = kudulite.connect(place.parent, background_maintenance=False)
    client.create_table(place.name, data.schema, **layout).upsert(data)
    return str(place)


def rows(frame: DataFrame) -> list[tuple]:
    """The rows of a DataFrame in order, NULL first."""
    return in_order(tuple(row) for row in frame.collect())


def in_order(found: Any) -> list[tuple]:
    """Rows as sorted tuples, NULL first."""
    return sorted((tuple(r) for r in found), key=lambda r: [(v is not None, v) for v in r])


def stored(path: Any, at: Any = None) -> list[tuple]:
    """The rows of the table at `path`, read without Spark, in order."""
    found = kudulite.open_table(str(path)).scan(at=at).to_arrow()
    return in_order(zip(*(column.to_pylist() for column in found.columns), strict=True))


def writes(table: Table) -> int:
    """How many writes and alterations the table has seen; flushes do not count."""
    return sum(one.operation != "memory flush" for one in table.versions())


def staged_files(path: Any) -> list[str]:
    """The files of uncommitted writes: their records, and those in tablets in no version.

    A worker that has committed flushes and maintains the table in the background. That is waited
    for, and the files that it has replaced are those of older versions.
    """
    table = Path(path)
    store = TableStore(table, default_environment())
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        in_tablets = [place for place in files_below(table / "tablet") if write_of(place.name)]
        records = list((table / "writes").rglob("*"))
        # The versions are read last: what a listed file was made for may be published by then.
        kept = {file for n in store.chain.numbers() for file in referenced_files(store, n)}
        staged = [*records, *(place for place in in_tablets if place not in kept)]
        if time.monotonic() > deadline or not any(map(_is_of_upkeep, records)):
            return sorted(map(str, staged))
        time.sleep(0.1)


def _is_of_upkeep(record: Path) -> bool:
    try:
        return json.loads(record.read_bytes())["work"] in UPKEEP
    except FileNotFoundError:  # it has ended
        return True


TYPES = pa.schema([("k", pa.int64()), ("s", pa.string())])
TIMEOUT_SECONDS = 120


def make_source(folder: Path, rows: int, name: str = "source") -> Table:
    """A table (k, s) of two tablets with rows 0, 1, …"""
    client = kudulite.connect(folder, background_maintenance=False)
    table = client.create_table(name, TYPES, primary_key="k", hash_partitions=[(["k"], 2)])
    if rows:
        table.upsert(given(range(rows), "first"))
    return table


def given(keys: Any, text: str) -> pa.Table:
    """Rows of these keys with one text."""
    keys = list(keys)
    return pa.table({"k": keys, "s": [text] * len(keys)}, TYPES)


def stream(spark: SparkSession, path: Any, **options: Any) -> DataFrame:
    """A streaming DataFrame of the table at `path`."""
    return spark.readStream.format("kudulite").options(**options).load(str(path))


def start(
    frame: DataFrame, target: Any, checkpoint: Any, mode: str = "append", **options: Any
) -> StreamingQuery:
    """Start a query into the table at `target` that ends with what there is now."""
    writer = frame.writeStream.format("kudulite").outputMode(mode).options(**options)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    return writer.start(str(target))


def run(frame: DataFrame, target: Any, checkpoint: Any, **options: Any) -> list[int]:
    """Run such a query to its end; returns the rows of each of its batches that had an offset."""
    query = start(frame, target, checkpoint, **options)
    assert query.awaitTermination(TIMEOUT_SECONDS), "the query does not end"
    return [p["numInputRows"] for p in query.recentProgress if "addBatch" in p["durationMs"]]


def error_of(query: StreamingQuery) -> str:
    """The error with which a query ends."""
    try:
        query.awaitTermination(TIMEOUT_SECONDS)
    except Exception as error:  # Spark's own class differs between its versions
        return str(error)
    raise AssertionError(f"the query ended without an error: {query.lastProgress}")


def same(one: Table, other: Table) -> bool:
    """Whether two tables have the same rows now."""
    left, right = (t.scan().to_arrow().sort_by("k") for t in (one, other))
    return left.equals(right)


def last_batch_is_not_noted(checkpoint: Path) -> int:
    """Make a checkpoint as of a kill just before the last batch was noted; returns its number."""
    noted = sorted(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    for path in (checkpoint / "commits").glob(f"*{noted[-1]}*"):  # and its checksum
        path.unlink()
    return noted[-1]
