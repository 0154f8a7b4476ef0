"""Metrics of a table: what this process has done with it.

    table.metrics.rows_inserted          counters since the process began, times in seconds
    table.metrics.to_openmetrics()       the same as text for Prometheus, for an endpoint of yours
    kudulite metrics TABLE               the statistics of the table as such text: no process counts

A counter is a number of a plain object: the code that did the work adds to it. There is no lock
and no call, so counting costs less than a microsecond. Two threads that add at the same instant
may lose one of the two. A forked child continues with the numbers of its parent.

A commit or an fsync of the log that takes long is one line in the log of the process.

**Threads**: any.
"""

import logging
from dataclasses import dataclass, field, fields
from typing import Any

from kudulite.basefile.block_cache import CacheStatistics
from kudulite.shown.html import html_fields
from kudulite.shown.openmetrics import Family, openmetrics

SLOW_COMMIT_SECONDS = 5.0
SLOW_LOG_SECONDS = 1.0

_log = logging.getLogger(__name__)


def _counter(about: str) -> Any:
    return field(default=0, metadata={"about": about})


def _seconds(about: str) -> Any:
    return field(default=0.0, metadata={"about": about})


@dataclass
class TableMetrics:
    """The work that this process has done with a table since it began; times are in seconds.

    `bulk_writes` and `log_writes` are commits of files and records in the log; their rows are in
    `rows_inserted`, `rows_updated`, `rows_deleted` and `rows_ignored`. `scans` are reads of rows or
    tokens, `rows_scanned` the rows they returned, and `gets` lookups of one row. `block_cache` is
    of all tables of the process. `str(metrics)` has one line for each figure.
    """

    table: str = ""
    bulk_writes: int = _counter("commits of bulk writes")
    bulk_write_seconds: float = _seconds("time in commits of bulk writes")
    log_writes: int = _counter("records appended to logs, each with one fsync")
    log_bytes: int = _counter("bytes appended to logs")
    log_write_seconds: float = _seconds("time in appends to logs and their fsyncs")
    rows_inserted: int = _counter("rows inserted")
    rows_updated: int = _counter("rows updated")
    rows_deleted: int = _counter("rows deleted")
    rows_ignored: int = _counter("rows ignored by operations that ignore some")
    flushes: int = _counter("memory flushes")
    flush_seconds: float = _seconds("time in memory flushes")
    compactions: int = _counter("maintenance operations")
    compaction_seconds: float = _seconds("time in maintenance operations")
    compaction_bytes_written: int = _counter("bytes written by maintenance operations")
    garbage_files_removed: int = _counter("files removed by garbage collection")
    garbage_bytes_removed: int = _counter("bytes removed by garbage collection")
    scans: int = _counter("scans of rows or tokens that began")
    rows_scanned: int = _counter("rows that scans returned")
    gets: int = _counter("lookups of one row by its primary key")
    block_cache: CacheStatistics | None = None

    def __str__(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in vars(self).items())

    def _repr_html_(self) -> str:
        """Return the figures as an HTML table, for notebooks."""
        return html_fields(vars(self).items())

    def to_openmetrics(self) -> str:
        """Return the figures in the OpenMetrics text format, labelled with the table's name."""
        label = {"table": self.table}
        found = [
            Family(each.name, "counter", each.metadata["about"], ((label, vars(self)[each.name]),))
            for each in fields(self)
            if "about" in each.metadata
        ]
        if (cache := self.block_cache) is not None:
            counts = {"hits": cache.hit_count, "misses": cache.miss_count}
            counts["evictions"] = cache.eviction_count
            for name, count in counts.items():
                about = f"{name} of the block cache"
                found.append(Family(f"block_cache_{name}", "counter", about, (({}, count),)))
            about, size = "size of the block cache", cache.size_bytes
            found.append(Family("block_cache_bytes", "gauge", about, (({}, size),)))
        return openmetrics(found)


def warn_of_slow(table: str, work: str, seconds: float) -> None:
    """Log a slow operation, which may be the cause of a delay elsewhere."""
    _log.warning("table %r: %s took %.2f s", table, work, seconds)
