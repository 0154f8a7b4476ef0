"""What tests of streams share: a source that changes, and queries that run what is there."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import kudulite
from kudulite import Table

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
