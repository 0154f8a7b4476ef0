"""Synthetic load: random upserts and deletes of one table, at a rate, for a while.

Rows are those of a machine room: an id, a host, a moment, a value and a note, drawn from a seed.
Writes are whole batches, or rows through a session that is flushed once per batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

import kudulite
from kudulite.errors import TableNotFoundError

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("host", pa.string()),
        pa.field("moment", pa.timestamp("us", "UTC")),
        pa.field("value", pa.float64()),
        pa.field("note", pa.string()),
    ]
)
_HOSTS = np.array([f"host-{number:03d}" for number in range(200)], object)


@dataclass(frozen=True)
class LoadSettings:
    """What load to make; `rows_per_second` 0 is as much as can be."""

    seconds: float = 10.0
    row_count_max: int | None = None
    rows_per_second: float = 0.0
    batch_rows: int = 1000
    key_count: int = 1_000_000
    delete_share: float = 0.05
    uses_sessions: bool = False
    tablet_count: int = 4
    seed: int = 0


@dataclass(frozen=True)
class LoadReport:
    """What a load did; milliseconds are of one write, from its begin until it was durable."""

    seconds: float
    write_count: int
    row_count: int
    delete_count: int
    rows_per_second: float
    milliseconds_median: float
    milliseconds_p99: float
    milliseconds_max: float
    table_row_count: int


def generate_load(path: str, settings: LoadSettings, say: Callable[[str], None]) -> LoadReport:
    """Write to the table at `path`, which is made if it is not there, until time or rows are up."""
    table = _table(path, settings.tablet_count)
    session = kudulite.Session("manual") if settings.uses_sessions else None
    random = np.random.default_rng(settings.seed)
    begin = time.perf_counter()
    latencies: list[float] = []
    rows = deletes = 0
    left = settings.row_count_max
    while time.perf_counter() - begin < settings.seconds and (left is None or rows < left):
        count = settings.batch_rows if left is None else min(settings.batch_rows, left - rows)
        delete_count = int(random.binomial(count, settings.delete_share))
        made = _rows(random, count - delete_count, settings.key_count)
        gone = pa.table({"id": random.integers(0, settings.key_count, delete_count)})
        start = time.perf_counter()
        _write(table, session, made, gone)
        latencies.append(time.perf_counter() - start)
        rows, deletes = rows + count, deletes + delete_count
        say(f"writing to {table.name}: {rows:,} rows in {time.perf_counter() - begin:.0f} s")
        _wait(begin, rows, settings)
    seconds = time.perf_counter() - begin
    found = 1000 * np.array(latencies or [0.0])
    return LoadReport(
        seconds=seconds,
        write_count=len(latencies),
        row_count=rows,
        delete_count=deletes,
        rows_per_second=rows / seconds if seconds else 0.0,
        milliseconds_median=float(np.median(found)),
        milliseconds_p99=float(np.quantile(found, 0.99)),
        milliseconds_max=float(found.max()),
        table_row_count=table.scan().count(),
    )


def _table(path: str, tablet_count: int) -> kudulite.Table:
    try:
        return kudulite.open_table(path)
    except TableNotFoundError:
        place = Path(path).absolute()
        client = kudulite.connect(place.parent, background_maintenance=False)
        hashed = [(["id"], tablet_count)] if tablet_count > 1 else None
        return client.create_table(place.name, SCHEMA, primary_key="id", hash_partitions=hashed)


def _rows(random: np.random.Generator, count: int, key_count: int) -> pa.Table:
    now = time.time_ns() // 1000
    columns = [
        pa.array(random.integers(0, key_count, count)),
        pa.array(_HOSTS[random.integers(0, len(_HOSTS), count)], pa.string()),
        pa.array(now - random.integers(0, 1_000_000, count)).cast(SCHEMA.field("moment").type),
        pa.array(random.normal(100, 15, count)),
        pa.array(random.integers(0, 1 << 40, count)).cast(pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _write(
    table: kudulite.Table, session: kudulite.Session | None, made: pa.Table, gone: pa.Table
) -> None:
    if session is None:
        if made.num_rows:
            table.upsert(made)
        if gone.num_rows:
            table.delete_ignore(gone)
        return
    for row in made.to_pylist():
        session.apply(table.new_upsert(row))
    for row in gone.to_pylist():
        session.apply(table.new_delete_ignore(row))
    session.flush()


def _wait(begin: float, rows: int, settings: LoadSettings) -> None:
    """Sleep until the rows written so far are due at the rate, but not past the end."""
    if settings.rows_per_second:
        due = min(rows / settings.rows_per_second, settings.seconds)
        time.sleep(max(0.0, begin + due - time.perf_counter()))
