"""Backups as Spark jobs: `backup` and `restore`, with the work spread over the executors.

    backup    driver: plan      executors: a Parquet file per piece    driver: manifest
    restore   driver: step      executors: stage a file each           driver: commit, next step
              …                 executors: hash the rows               driver: the table's name

All of them see the same directories. A task that is tried again, or started twice, does no harm,
and a job that was killed goes on when it is run again, here or as `kudulite.backup` and `.restore`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from os import PathLike
from typing import Any

from pyspark.sql import SparkSession

import kudulite
from kudulite import Backup, BackupPiece, RestoreStep, StagedTask, Table
from kudulite_spark.session import start_directory
from kudulite_spark.spread import run_spread
from kudulite_spark.table_path import absolute_path, open_table

_TASK_BYTES = 64 << 20


def backup(
    spark: SparkSession,
    path: str | PathLike[str],
    target: str | PathLike[str],
    *,
    full: bool | None = None,
    content_hash: bool = False,
    task_count: int | None = None,
) -> Backup:
    """Back the table at `path` up to the directory `target`, as `kudulite.backup` does.

    Pieces of about 64 MiB are read and written side by side, in as many tasks or `task_count`.
    Raises what planning raises, and what a task raises after Spark has tried it again."""
    base = start_directory(spark)
    table = open_table(absolute_path(path, base))
    where = absolute_path(target, base)
    with kudulite.begin_backup(table, where, full=full, content_hash=content_hash) as job:
        groups = kudulite.pack_tokens(job.pieces, _TASK_BYTES)
        run_spread(spark, groups, _run_pieces, task_count)
        return job.finish()


def restore(
    spark: SparkSession,
    target: str | PathLike[str],
    path: str | PathLike[str],
    *,
    at: Any = None,
    overwrite: bool = False,
    task_count: int | None = None,
) -> Table:
    """Make the table at `path` from the backups in `target`, as `kudulite.restore` does.

    The files of each backup are staged side by side, a task each or in `task_count` tasks, and
    committed by the driver. Raises what beginning raises, and what a task raises."""
    base = start_directory(spark)
    source, place = absolute_path(target, base), absolute_path(path, base)
    with kudulite.begin_restore(source, place, at=at, overwrite=overwrite) as job:
        for step in job.steps():
            work = partial(_stage, step)
            step.commit(run_spread(spark, range(step.task_count), work, task_count))
        sums = run_spread(spark, job.content_pieces(), _run_content, task_count)
        return job.finish(sums)


def _run_pieces(pieces: Sequence[BackupPiece]) -> None:
    for piece in pieces:
        piece.run()


def _stage(step: RestoreStep, index: int) -> StagedTask:
    return step.stage(index)


def _run_content(piece: Any) -> Any:
    return piece.run()
