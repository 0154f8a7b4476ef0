"""Functions on a whole table: make it, maintain it, back it up, restore it, route rows to it.

    maintain    driver: tablet ids     tasks: maintain a tablet each    driver: garbage collection
    backup      driver: plan           tasks: write a file per piece    driver: manifest
    restore     driver: step           tasks: stage a file each         driver: commit, next step
                …                      tasks: hash the rows             driver: the table's name

`run_spread` hands the work over: one task for each item, one result of each. All processes see the
same directories. A task may run more than once: its second run finds nothing to do, or its file is
not used. Other drivers, readers and writers may work at the same time. A tablet that another
process maintains is skipped. A job that was killed continues when it is run again, from Spark or by
`kudulite.backup` and `kudulite.restore`.

`repartition_for` sends the rows of each tablet to one task before a write. A Python source cannot
ask Spark for that; the option `repartition` can, with the JVM extension. Without it every task
stages a little for every tablet, and a write of m tasks leaves up to m rowsets per tablet, which
overlap in key. With it each tablet gets one rowset, for the price of a shuffle. The rows of the
table are the same either way.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import kudulite
from kudulite import Backup, BackupPiece, MaintenanceResult, Moment, Schema, Table, open_table
from kudulite.errors import SchemaError
from kudulite_spark.options import (
    absolute_path,
    catalog_of,
    session_storage_options,
    table_in_session,
)
from kudulite_spark.session import activate, start_directory
from kudulite_spark.spark_versions import repartition_by
from kudulite_spark.types import find_name, spark_type, table_schema

_TASK_BYTES = 64 << 20

T = TypeVar("T")
R = TypeVar("R")


def create_table(
    spark: SparkSession,
    path: str | PathLike[str],
    schema: StructType | str | pa.Schema | Schema,
    primary_key: str | Sequence[str] | None = None,
    hash_partitions: Sequence[tuple[Sequence[str], int]] | None = None,
    range_partitions: Mapping[str, Any] | None = None,
    owner: str | None = None,
    comment: str | None = None,
) -> Table:
    """Make an empty table in the directory `path` and return it.

    `schema` is a Spark schema or its DDL text (`"id BIGINT, name VARCHAR(20)"`), an Arrow schema,
    or a kudulite schema, which has its own primary key. A relative path means the same table as in
    load(). `owner` and `comment` are texts. Raises TableExistsError."""
    place = absolute_path(path, start_directory(spark))
    client, name = catalog_of(place, session_storage_options(spark, place))
    if isinstance(schema, str):
        schema = StructType.fromDDL(schema)
    if isinstance(schema, StructType):
        schema, primary_key = table_schema(schema, primary_key or (), place), None
    return client.create_table(
        name,
        schema,
        primary_key=primary_key,
        hash_partitions=hash_partitions,
        range_partitions=range_partitions,
        owner=owner,
        comment=comment,
    )


def maintain(
    spark: SparkSession,
    path: str | PathLike[str],
    grace_seconds: float = 3600.0,
    staging_grace_seconds: float = 24 * 3600.0,
    *,
    budget_bytes: int | None = None,
    task_count: int | None = None,
) -> MaintenanceResult:
    """Maintain the table at `path` as `Table.maintain` does, one tablet per task.

    `budget_bytes` is for each tablet. There are as many tasks as tablets, or `task_count`. Returns
    one result for the whole table. An error of a task is raised after Spark's retries."""
    place = absolute_path(path, start_directory(spark))
    options = session_storage_options(spark, place)
    table = open_table(place, storage_options=options)

    def maintain_tablet(tablet_id: str) -> MaintenanceResult:
        mine = open_table(place, storage_options=options)
        # The tablet may have been dropped since the driver listed it.
        ids = [tablet_id] if tablet_id in mine.tablet_ids else []
        return mine.maintain(tablet_ids=ids, budget_bytes=budget_bytes)

    results = run_spread(spark, table.tablet_ids, maintain_tablet, task_count)
    # Without a budget nothing is rewritten: only garbage collection is left.
    results.append(table.maintain(grace_seconds, staging_grace_seconds, budget_bytes=0))
    return _together(results)


def _together(results: list[MaintenanceResult]) -> MaintenanceResult:
    return MaintenanceResult(
        flushed_tablet_count=sum(result.flushed_tablet_count for result in results),
        operations=tuple(done for result in results for done in result.operations),
        busy_tablet_ids=tuple(sorted({t for result in results for t in result.busy_tablet_ids})),
        dropped_range_count=results[-1].dropped_range_count,
        garbage=results[-1].garbage,
    )


def backup(
    spark: SparkSession,
    path: str | PathLike[str],
    target: str | PathLike[str],
    *,
    full: bool | None = None,
    content_hash: bool = False,
    task_count: int | None = None,
) -> Backup:
    """Back up the table at `path` to `target`, as `kudulite.backup` does.

    Both are paths or addresses, with the storage options that the session's settings have for each.
    Pieces of about 64 MiB are written in parallel, one per task or in `task_count` tasks. Raises
    the same errors as `kudulite.backup`; an error of a task is raised after Spark's retries."""
    base = start_directory(spark)
    table = table_in_session(spark, absolute_path(path, base))
    where = absolute_path(target, base)
    with kudulite.begin_backup(
        table,
        where,
        full=full,
        content_hash=content_hash,
        storage_options=session_storage_options(spark, where),
    ) as job:
        groups = kudulite.pack_tokens(job.pieces, _TASK_BYTES)
        run_spread(spark, groups, _run_pieces, task_count)
        return job.finish()


def restore(
    spark: SparkSession,
    target: str | PathLike[str],
    path: str | PathLike[str],
    *,
    at: Moment | None = None,
    overwrite: bool = False,
    task_count: int | None = None,
) -> Table:
    """Restore the table at `path` from the backups in `target`, as `kudulite.restore` does.

    Both are paths or addresses, with the storage options that the session's settings have for each.
    The files of each backup are staged in parallel, one per task or in `task_count` tasks, and
    committed by the driver. Raises the same errors as `kudulite.restore`."""
    base = start_directory(spark)
    source, place = absolute_path(target, base), absolute_path(path, base)
    with kudulite.begin_restore(
        source,
        place,
        at=at,
        overwrite=overwrite,
        storage_options=session_storage_options(spark, source),
        table_storage_options=session_storage_options(spark, place),
    ) as job:
        for step in job.steps():
            step.commit(run_spread(spark, range(step.task_count), step.stage, task_count))
        sums = run_spread(spark, job.content_pieces(), lambda piece: piece.run(), task_count)
        return job.finish(sums)


def _run_pieces(pieces: Sequence[BackupPiece]) -> None:
    for piece in pieces:
        piece.run()


def run_spread(
    spark: SparkSession,
    items: Sequence[T],
    work: Callable[[T], R],
    task_count: int | None = None,
) -> list[R]:
    """Return `work(item)` of each item, in order; items and results are pickled.

    There are as many tasks as items, or `task_count`. Spark may run an item more than once and
    returns one result of each. An error of `work` is raised after Spark's retries."""
    if not items:
        return []
    activate(spark)
    numbers = spark.range(0, len(items), 1, task_count or len(items))

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = pickle.dumps(work(items[number]))
                columns = [pa.array([number], pa.int64()), pa.array([result], pa.binary())]
                yield pa.record_batch(columns, ["number", "result"])

    rows = numbers.mapInArrow(run, "number bigint, result binary").collect()
    found = {row.number: row.result for row in rows}
    return [pickle.loads(bytes(found[number])) for number in range(len(items))]


# The columns of Delta's DESCRIBE HISTORY that a table can fill, and the exact moment.
_VERSIONS_SCHEMA = (
    "version BIGINT, timestamp TIMESTAMP, userId STRING, userName STRING, operation STRING,"
    " operationParameters MAP<STRING, STRING>, readVersion BIGINT, isBlindAppend BOOLEAN,"
    " operationMetrics MAP<STRING, STRING>, userMetadata STRING, engineInfo STRING,"
    " hybridTime BIGINT"
)


def versions(spark: SparkSession, path: str | PathLike[str]) -> DataFrame:
    """Return the newest versions of the table at `path`, newest first, as `Table.versions` does.

    The columns are those of Delta's DESCRIBE HISTORY: `userId` is the writer (user@host:pid),
    `userName` its user, `userMetadata` the message of the write. `operationMetrics` has
    `numInsertedRows`, `numUpdatedRows`, `numDeletedRows` and `numIgnoredRows`. `hybridTime` is the
    exact moment for `snapshotTimestamp`, of which `timestamp` has the microseconds. The columns
    `operationParameters`, `readVersion`, `isBlindAppend` and `engineInfo` are empty."""
    table = table_in_session(spark, absolute_path(path, start_directory(spark)))
    rows: list[tuple[Any, ...]] = [
        (
            found.version,
            found.timestamp.to_datetime(),
            found.writer,
            found.writer.partition("@")[0],
            found.operation,
            {},
            None,
            None,
            {
                "numInsertedRows": str(found.inserted),
                "numUpdatedRows": str(found.updated),
                "numDeletedRows": str(found.deleted),
                "numIgnoredRows": str(found.ignored),
            },
            found.message or None,
            None,
            int(found.timestamp),
        )
        for found in table.versions()
    ]
    return spark.createDataFrame(rows, _VERSIONS_SCHEMA)


def repartition_for(
    df: DataFrame, path: str | PathLike[str], task_count: int | None = None
) -> DataFrame:
    """Return the same rows with all rows of a tablet of the table at `path` in one partition.

    There are as many partitions as tablets by default; with fewer, each holds whole tablets. With
    PySpark 4.0 a partition may hold several tablets, and another one none. Rows that belong to no
    tablet (a NULL in the key, a key outside every range) are kept: the write refuses them and names
    them. Raises SchemaError if a key column is missing."""
    place = absolute_path(path, start_directory(df.sparkSession))
    options = session_storage_options(df.sparkSession, place)
    table = open_table(place, storage_options=options)
    schema = table.schema
    where = f"table {str(table.path)!r}: the DataFrame"
    own_names = {find_name(name, schema.names, where): name for name in df.columns}
    # Rows are numbered within their tablets: the number says nothing about the tablet.
    names = [name for name in schema.key_names if name != schema.auto_incrementing]
    missing = [name for name in names if name not in own_names]
    if missing:
        raise SchemaError(
            f"table {str(table.path)!r}: the DataFrame lacks key column {missing[0]!r}; the primary"
            f" key is ({', '.join(schema.key_names)})"
        )
    keys = [df[own_names[name]].try_cast(spark_type(schema.column(name).type)) for name in names]
    numbers = _tablet_numbers(str(table.path), names, options)
    return repartition_by(df, task_count or table.tablet_count, numbers, keys)


def _tablet_numbers(
    path: str, names: Sequence[str], options: Mapping[str, str]
) -> Callable[..., pa.Array]:
    """Return a function from key columns to the numbers of the rows' tablets, 0 for none."""

    def tablet_numbers(*keys: pa.Array) -> pa.Array:
        is_whole = np.logical_and.reduce([key.is_valid().to_numpy(False) for key in keys])
        rows = pa.table(list(keys), names=list(names)).filter(pa.array(is_whole))
        number = np.zeros(len(is_whole), dtype=np.int32)
        table = open_table(path, storage_options=options)
        number[is_whole] = table.tablet_index(rows).to_numpy().clip(0)
        return pa.array(number)

    return tablet_numbers
