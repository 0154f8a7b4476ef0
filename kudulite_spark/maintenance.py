"""Maintenance of a table spread over the executors of a Spark cluster: `maintain`.

    driver     tablet ids ──▶ one row per tablet, one task per row
    executor   Table.maintain(tablet_ids=[one]): flush, compact, drop history
    driver     what is left is small: dropped ranges, the sweep

Several drivers, writers and readers may be at work meanwhile: a tablet that somebody else maintains
is left to him, and a task that is started twice finds nothing to do.
"""

from __future__ import annotations

from os import PathLike

from pyspark.sql import SparkSession

from kudulite import MaintenanceResult
from kudulite_spark.session import start_directory
from kudulite_spark.spread import run_spread
from kudulite_spark.table_path import absolute_path, open_table


def maintain(
    spark: SparkSession,
    path: str | PathLike[str],
    grace_seconds: float = 3600.0,
    staging_grace_seconds: float = 24 * 3600.0,
    *,
    budget_bytes: int | None = None,
    task_count: int | None = None,
) -> MaintenanceResult:
    """Maintain the table at `path` as `Table.maintain` does, its tablets side by side in tasks.

    `budget_bytes` is for each tablet. There are as many tasks as tablets, or `task_count`. Returns
    what all of them did together. Raises what a task raises, after Spark has tried it again."""
    place = absolute_path(path, start_directory(spark))
    table = open_table(place)

    def maintain_tablet(tablet_id: str) -> MaintenanceResult:
        mine = open_table(place)
        # One that was dropped since the driver looked has nothing to do.
        ids = [tablet_id] if tablet_id in mine.tablet_ids else []
        return mine.maintain(tablet_ids=ids, budget_bytes=budget_bytes)

    results = run_spread(spark, table.tablet_ids, maintain_tablet, task_count)
    # With no budget only what rewrites nothing is left to do.
    results.append(table.maintain(grace_seconds, staging_grace_seconds, budget_bytes=0))
    return _together(results)


def _together(results: list[MaintenanceResult]) -> MaintenanceResult:
    return MaintenanceResult(
        flushed_tablet_count=sum(result.flushed_tablet_count for result in results),
        operations=tuple(done for result in results for done in result.operations),
        busy_tablet_ids=tuple(sorted({t for result in results for t in result.busy_tablet_ids})),
        dropped_range_count=results[-1].dropped_range_count,
        swept=results[-1].swept,
    )
