"""Rows written one by one, durably, compared with an append and fsync of as many bytes; memory.

    python benchmarks/row_by_row.py [--rows 1000000 10000000] [--tablets 4] [--repeat 300]
    python benchmarks/row_by_row.py --rows --memory-rows 10000000

Half of the rows exist already. After each flush, as many bytes as a flush adds to the logs (the
median of some earlier flushes) are appended to a file beside the table, with an fsync. Compare the
ratio of the medians. With --memory-rows, a separate process inserts so many rows through a session
and prints its memory use.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from main_job import make_rows

import kudulite
from kudulite.storage.table_lock import read_lock_file

LOAD_ROWS = 1_000_000  # of one write, when the table is loaded
MANY = 1_000  # rows of a large flush
MANY_REPEAT = 30
WARM_UP = 20
TEXT_BYTES = 20
REPORTS = 10  # lines of the memory table


@dataclass
class Figures:
    """Seconds of flushes with the buffering before them (`applies`), and of appends of the same."""

    applies: list[float] = field(default_factory=list)
    flushes: list[float] = field(default_factory=list)
    appends: list[float] = field(default_factory=list)
    byte_counts: list[int] = field(default_factory=list)


class Journal:
    """A file that is appended to and fsynced."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def append(self, byte_count: int) -> float:
        """Append so many bytes durably; returns the seconds."""
        content = os.urandom(byte_count)
        begin = time.perf_counter()
        self._file.write(content)
        os.fsync(self._file.fileno())
        return time.perf_counter() - begin


def load(root: Path, row_count: int, tablets: int) -> kudulite.Table:
    """A table of so many rows of ten columns, their ids the even numbers."""
    first = make_rows(0, np.zeros(0, np.int64), 1)
    table = kudulite.connect(root, background_maintenance=False).create_table(
        f"rows_{row_count}", first.schema, primary_key="id", hash_partitions=[(["id"], tablets)]
    )
    for begin in range(0, row_count, LOAD_ROWS):
        ids = np.arange(begin, min(begin + LOAD_ROWS, row_count)) * 2
        table.insert(make_rows(len(ids), ids, begin))
    return table


def rows_to_upsert(row_count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Rows of random ids, half of which are in the table."""
    made = make_rows(1000, np.zeros(1000, np.int64), seed).to_pylist()
    chance = random.Random(seed)
    while True:
        for row in made:
            yield row | {"id": chance.randrange(row_count * 2)}


def log_bytes(table: kudulite.Table) -> int:
    """How long the durable part of the last segment of the table's log is."""
    end = read_lock_file(table.path / "lock").log_end
    return 0 if end is None else end[1]


def measure_flushes(
    table: kudulite.Table,
    rows: Iterator[dict[str, Any]],
    *,
    size: int,
    repeat: int,
    journal: Journal,
) -> Figures:
    """Flush `size` rows `repeat` times, each time followed by an append of the same bytes."""
    session = kudulite.connect(table.path.parent, background_maintenance=False).new_session()
    session.set_mutation_buffer_space(1 << 30)
    figures = Figures()
    for turn in range(repeat + WARM_UP):
        records = [next(rows) for _ in range(size)]
        # Only now: looking into the folders between flushes would cool the processor's caches.
        before = log_bytes(table) if turn < WARM_UP else 0
        begin = time.perf_counter()
        for record in records:
            session.apply(table.new_upsert(record))
        applied = time.perf_counter()
        session.flush()
        flushed = time.perf_counter()
        if turn < WARM_UP:
            # Less than nothing where a log went on in a new segment.
            figures.byte_counts.append(max(1, log_bytes(table) - before))
        appended = journal.append(int(statistics.median(figures.byte_counts)))
        if turn >= WARM_UP:
            figures.applies.append(applied - begin)
            figures.flushes.append(flushed - begin)
            figures.appends.append(appended)
    session.close()
    return figures


def run_table(root: Path, row_count: int, args: argparse.Namespace) -> list[str]:
    """Measure on a table of so many rows; returns the cells of its line."""
    table = load(root, row_count, args.tablets)
    rows = rows_to_upsert(row_count, seed=row_count)
    journal = Journal(root / "journal")
    one = measure_flushes(table, rows, size=1, repeat=args.repeat, journal=journal)
    many = measure_flushes(table, rows, size=MANY, repeat=MANY_REPEAT, journal=journal)
    one_flush, one_append = statistics.median(one.flushes), statistics.median(one.appends)
    many_flush, many_append = statistics.median(many.flushes), statistics.median(many.appends)
    return [
        f"{row_count:,}",
        f"{one_flush * 1e6:,.0f}",
        f"{sorted(one.flushes)[int(len(one.flushes) * 0.99)] * 1e6:,.0f}",
        f"{one_append * 1e6:,.0f}",
        f"{one_flush / one_append:.2f}",
        f"{statistics.median(one.byte_counts):,.0f}",
        f"{many_flush * 1e3:.1f}",
        f"{max(many.flushes) * 1e3:.1f}",
        f"{statistics.median(many.applies) * 1e3:.1f}",
        f"{many_append * 1e3:.1f}",
    ]


def print_lines(head: list[str], lines: Iterator[list[str]], width: int = 13) -> None:
    """Print a table as its lines come."""
    if head:
        print("".join(f"{name:>{width}}" for name in head))
    for line in lines:
        print("".join(f"{cell:>{width}}" for cell in line), flush=True)


def memory_mib(name: str) -> int:
    """A figure of this process: VmRSS (now) or VmHWM (highest)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) >> 10
    return 0


def insert_rows(root: Path, row_count: int) -> Iterator[list[str]]:
    """Insert rows through a session, 1,000 a flush; yields the cells of some lines."""
    columns = [
        kudulite.column("id", kudulite.int64),
        kudulite.column("amount", kudulite.double),
        kudulite.column("quantity", kudulite.int32),
        kudulite.column("text", kudulite.string),
    ]
    client = kudulite.connect(root, background_maintenance=False)
    table = client.create_table(
        "memory", kudulite.schema(columns, "id"), hash_partitions=[(["id"], 2)]
    )
    session = client.new_session()
    begin, longest = time.perf_counter(), 0.0
    for first in range(0, row_count, MANY):
        for number in range(first, min(first + MANY, row_count)):
            # An odd factor and a power of two: every id once, in no order.
            key = number * 0x9E3779B1 % (1 << 32)
            text = f"{key:0{TEXT_BYTES}d}"
            record = {"id": key, "amount": number / 4, "quantity": number % 1000, "text": text}
            session.apply(table.new_insert(record))
        flush = time.perf_counter()
        session.flush()
        longest = max(longest, time.perf_counter() - flush)
        done = first + MANY
        if done * REPORTS // row_count > first * REPORTS // row_count:
            seconds = time.perf_counter() - begin
            figures = (done, done / seconds, memory_mib("VmRSS"), memory_mib("VmHWM"))
            yield [*(f"{figure:,.0f}" for figure in figures), f"{longest * 1e3:,.0f}"]
    session.close()
    client.close()
    assert client.table("memory").scan().count() == row_count


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000_000, 10_000_000])
    parser.add_argument("--tablets", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=300)
    parser.add_argument("--memory-rows", type=int, default=0, help="insert so many rows")
    parser.add_argument("--folder", help="where the tables are made (default: the system's)")
    parser.add_argument("--memory-root", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_root:
        head = ["rows inserted", "rows/s", "MiB now", "MiB highest", "longest ms"]
        print_lines(head, insert_rows(Path(args.memory_root), args.memory_rows))
        return
    print(f"{args.tablets} tablets, {os.cpu_count()} cores; µs of one row, ms of {MANY:,} rows")
    head = ["table rows", "one row µs", "99 %", "append µs", "ratio", "bytes"]
    head += [f"{MANY:,} rows", "longest", "of it apply", "append ms"]
    for row_count in args.rows:
        with tempfile.TemporaryDirectory(prefix="kudulite-rows-", dir=args.folder) as root:
            print_lines(head, iter([run_table(Path(root), row_count, args)]))
        head = []
    if args.memory_rows:
        with tempfile.TemporaryDirectory(prefix="kudulite-rows-", dir=args.folder) as root:
            command = [sys.executable, __file__, "--memory-root", root]
            subprocess.run([*command, "--memory-rows", str(args.memory_rows)], check=True)


if __name__ == "__main__":
    main()
