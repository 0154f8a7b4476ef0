"""The query box: one SQL query over the tables, with a limit of rows and of time.

DuckDB runs it on a connection that reads the tables of the directory only, writes nothing, and
installs nothing (client/sql.py). A query that takes longer than its time is interrupted. A result
that is cut says so on the page; a file that would be cut is refused, so that nobody takes a part
for the whole.

**Threads**: any; each query has a connection of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from kudulite.errors import OptionError, UsageError
from kudulite.model.hybrid_time import Timestamp
from kudulite.model.values import python_rows
from kudulite.ui.open_directory import OpenDirectory

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS_SHOWN_MAX = 1000
FILE_ROWS_MAX = 1_000_000
SECONDS_DEFAULT = 30.0
MEDIA_TYPES = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
_INTERRUPT_EVERY_SECONDS = 0.1


@dataclass(frozen=True)
class QueryPage:
    """The rows of a query; `is_cut` if there are more than are shown."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[list[Any]]
    is_cut: bool
    timestamp: Timestamp | None
    seconds: float


def query_page(directory: OpenDirectory, query: str, at: str, seconds: float) -> QueryPage:
    """Return the first rows of a query, which ends after so many seconds.

    Raises UsageError for a query that is refused or takes too long, and as `Client.sql`.
    """
    begin = time.perf_counter()
    rows, timestamp = _rows(directory, query, at, seconds, ROWS_SHOWN_MAX)
    shown = python_rows(rows.slice(0, ROWS_SHOWN_MAX))
    return QueryPage(
        tuple(rows.column_names),
        tuple(str(field.type) for field in rows.schema),
        [[*row.values()] for row in shown],
        len(rows) > ROWS_SHOWN_MAX,
        timestamp,
        time.perf_counter() - begin,
    )


def query_file(directory: OpenDirectory, query: str, at: str, seconds: float, form: str) -> bytes:
    """Return the rows of a query as a file of the form `csv` or `parquet`.

    Raises OptionError for another form and for a value that CSV cannot hold, UsageError for more
    than a million rows, and as `query_page`.
    """
    if form not in MEDIA_TYPES:
        raise OptionError(f"format {form!r}: known are {', '.join(MEDIA_TYPES)}")
    rows, _ = _rows(directory, query, at, seconds, FILE_ROWS_MAX)
    if len(rows) > FILE_ROWS_MAX:
        raise UsageError(
            f"the result has more than {FILE_ROWS_MAX:,} rows, the most that a file has here; add a"
            " LIMIT or a condition, or use `kudulite sql … --output FILE`"
        )
    sink = pa.BufferOutputStream()
    if form == "parquet":
        pq.write_table(rows, sink)
        return bytes(sink.getvalue())
    nested = [field.name for field in rows.schema if pa.types.is_nested(field.type)]
    if nested:
        raise OptionError(
            f"CSV cannot hold rows or arrays within rows: {', '.join(nested)}; leave them out of"
            " the SELECT, or take Parquet"
        )
    try:
        csv.write_csv(rows, sink)
    except pa.ArrowInvalid as error:
        raise OptionError(
            f"CSV cannot hold bytes that are no text: {error}; take Parquet, or cast the column"
        ) from error
    return bytes(sink.getvalue())


def _rows(
    directory: OpenDirectory, query: str, at: str, seconds: float, count: int
) -> tuple[pa.Table, Timestamp | None]:
    """Return at least `count` + 1 rows of a query, or all that it has, and their moment."""
    batches, found = [], 0
    with _ending_after(seconds) as connections:
        result = directory.sql(query, at or None, connections.append)
        reader = result.to_reader()
        for batch in reader:
            batches.append(batch)
            found += batch.num_rows
            if found > count:
                break
    return pa.Table.from_batches(batches, reader.schema), result.timestamp


@contextmanager
def _ending_after(seconds: float) -> Iterator[list[DuckDBPyConnection]]:
    """Interrupt the connections in the list if they are at work after so many seconds, and say so.

    Planning is part of the time, because some queries run then.
    """
    connections: list[DuckDBPyConnection] = []
    is_done, is_late = threading.Event(), threading.Event()

    def watch() -> None:
        if is_done.wait(seconds):
            return
        is_late.set()
        # An interrupt between two steps of a query is lost.
        while not is_done.wait(_INTERRUPT_EVERY_SECONDS):
            for connection in connections:
                connection.interrupt()

    watcher = threading.Thread(target=watch, name="kudulite-ui-query", daemon=True)
    watcher.start()
    try:
        yield connections
    except UsageError as error:
        if is_late.is_set():
            raise UsageError(
                f"the query was ended after {seconds:g} seconds, the most that it may take here;"
                " add a condition or a LIMIT, or run it with `kudulite sql`"
            ) from error
        raise
    finally:
        is_done.set()
        watcher.join()
