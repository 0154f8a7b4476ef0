"""Work spread over the executors of a cluster: a function of one item, and a task for each item."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


def run_spread(
    spark: SparkSession,
    items: Sequence[T],
    work: Callable[[T], R],
    task_count: int | None = None,
) -> list[R]:
    """Return `work(item)` of each item, in order; items and results travel pickled.

    There are as many tasks as items, or `task_count`. Spark may run an item more than once, and
    gives one result of each. Raises what `work` raises, after Spark has tried it again."""
    if not items:
        return []
    numbers = spark.range(0, len(items), 1, task_count or len(items))

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = pickle.dumps(work(items[number]))
                columns = [pa.array([number], pa.int64()), pa.array([result], pa.binary())]
                yield pa.record_batch(columns, ["number", "result"])

    rows: list[Any] = numbers.mapInArrow(run, "number bigint, result binary").collect()
    found = {row.number: row.result for row in rows}
    return [pickle.loads(bytes(found[number])) for number in range(len(items))]
