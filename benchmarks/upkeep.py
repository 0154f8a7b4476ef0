"""The effect of maintenance: many small upserts, and reads of the past.

    python benchmarks/upkeep.py [--rows 1000000] [--tablets 4] [--upserts 10000] [--only PART …]

    small    many small upserts, with and without concurrent maintenance
    past     a scan as of before an upsert of 10 % of the rows, after each kind of compaction

Every figure is printed with that of a clean table of the same rows and the same run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from main_job import make_rows, seconds_in_turn

import kudulite
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.table.table_store import TableStore
from kudulite.tablet.maintenance_policy import (
    CompactColumns,
    CompactDeltas,
    CompactRowSets,
    MaintenanceOperation,
)
from kudulite.upkeep.compaction import run_operation

SCANNED = ["amount", "quantity", "name"]
PARTS = ("small", "past")


def scanning(table: kudulite.Table, at: int | None = None) -> Callable[[], object]:
    """Return a scan of three columns."""
    return lambda: table.scan(SCANNED, at=at).to_arrow()


def load(client: kudulite.Client, name: str, rows: pa.Table, tablets: int) -> kudulite.Table:
    """Return a new table of these rows."""
    table = client.create_table(
        name, rows.schema, primary_key=["id"], hash_partitions=[(["id"], tablets)]
    )
    table.insert(rows)
    return table


def rowsets_of(table: kudulite.Table) -> list[tuple[str, RowSetMeta]]:
    """Return (tablet id, rowset) of the newest version."""
    store = TableStore(table.path, table._store.environment)
    found = []
    for entry in store.newest().tablets:
        found += [(entry.id, meta) for meta in store.tablet(entry).superblock.rowsets]
    return found


def bytes_below(folder: Path) -> int:
    """Return the size of all files in a tree."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# -- small upserts


@contextmanager
def maintenance_running(table: kudulite.Table, pause_seconds: float) -> Iterator[list[int]]:
    """Maintain a table in a thread, as a process of its own would; yields operations done."""
    is_over, done = threading.Event(), [0]

    def maintain() -> None:
        while not is_over.wait(pause_seconds):
            done[0] += len(table.maintain(grace_seconds=10.0).operations)

    thread = threading.Thread(target=maintain)
    thread.start()
    try:
        yield done
    finally:
        is_over.set()
        thread.join()


def upsert_little(table: kudulite.Table, row_count: int, times: int, batch: int) -> list[float]:
    """Upsert up to `batch` random rows so many times; returns the seconds of each."""
    random, seconds = np.random.default_rng(11), []
    for number in range(times):
        some = np.unique(random.integers(0, int(row_count * 1.01), batch))
        rows = make_rows(len(some), some, number)
        start = time.perf_counter()
        table.upsert(rows)
        seconds.append(time.perf_counter() - start)
    return seconds


def run_small(root: Path, args: argparse.Namespace) -> None:
    """Print how a table does after many small upserts, with and without maintenance."""
    ids = np.arange(args.rows)
    client = kudulite.connect(str(root), background_maintenance=False)
    for is_maintained in (True, False):
        name = "maintained" if is_maintained else "left alone"
        table = load(client, name.replace(" ", "_"), make_rows(args.rows, ids, 1), args.tablets)
        start = time.perf_counter()
        if is_maintained:
            with maintenance_running(table, args.pause) as done:
                times = upsert_little(table, args.rows, args.upserts, args.batch)
            print(f"  maintenance operations beside the upserts: {done[0]}")
            table.maintain(grace_seconds=0.0)
        else:
            times = upsert_little(table, args.rows, args.upserts_alone, args.batch)
        total = time.perf_counter() - start
        clean = load(client, f"clean_{is_maintained}", table.scan().to_arrow(), args.tablets)
        report_small(name, table, clean, times, total, args)


def report_small(
    name: str,
    table: kudulite.Table,
    clean: kudulite.Table,
    times: list[float],
    total_seconds: float,
    args: argparse.Namespace,
) -> None:
    """Print one table's figures beside those of a clean one with the same rows."""
    found = seconds_in_turn({"dirty": scanning(table), "clean": scanning(clean)}, args.repeat)
    every = {"dirty": lambda: table.scan().to_arrow(), "clean": lambda: clean.scan().to_arrow()}
    whole = seconds_in_turn(every, args.repeat)
    metas = [meta for _, meta in rowsets_of(table)]
    deltas = sum(d.ref.length for meta in metas for d in (*meta.redo, *meta.undo))
    file_count = sum(len(meta.file_refs) for meta in metas) / args.tablets
    live, disk = bytes_below(clean.path), bytes_below(table.path)
    print(
        f"{name}: {len(times):,} upserts of {args.batch} rows in {total_seconds:.0f} s,"
        f" median {1e3 * statistics.median(times):.1f} ms, slowest {max(times):.2f} s"
    )
    print(
        f"  scan of 3 columns {found['dirty'] / found['clean']:.2f} x clean,"
        f" of all {whole['dirty'] / whole['clean']:.2f} x"
    )
    print(
        f"  rowsets {len(metas)}, files per tablet {file_count:.1f}, disk"
        f" {disk / (live + deltas):.2f} x (clean {live / 1e6:.0f} MB + deltas"
        f" {deltas / 1e6:.0f} MB)"
    )


# -- reads of the past


def run_past(root: Path, args: argparse.Namespace) -> None:
    """Print a scan before an upsert of 10 %, after each kind of compaction."""
    ids = np.arange(args.rows)
    client = kudulite.connect(str(root), background_maintenance=False)
    clean = load(client, "clean", make_rows(args.rows, ids, 1), args.tablets)
    random = np.random.default_rng(5)
    some = np.sort(random.choice(int(args.rows * 1.01), args.rows // 10, replace=False))
    kinds = ("none", "minor delta", "major delta", "merging")
    for kind in kinds:
        table = load(client, kind.replace(" ", "_"), make_rows(args.rows, ids, 1), args.tablets)
        before = table.current_timestamp()
        for half in np.array_split(some, 2):
            table.upsert(make_rows(len(half), half, 2))
        for tablet_id, operation in list(operations_of(table, kind)):
            assert run_operation(table._store, tablet_id, operation) is not None
        works = {"past": scanning(table, before), "now": scanning(table), "clean": scanning(clean)}
        found = seconds_in_turn(works, args.repeat)
        print(
            f"{kind:12s} scan before the upsert {found['past'] / found['clean']:.2f} x clean,"
            f" now {found['now'] / found['clean']:.2f} x"
        )


def operations_of(table: kudulite.Table, kind: str) -> Iterator[tuple[str, MaintenanceOperation]]:
    """Yield the operations of a kind for all rowsets, with their tablets."""
    columns = tuple(column.id for column in table.schema.value_columns)
    found = rowsets_of(table)
    if kind == "merging":
        for tablet_id in dict.fromkeys(tablet_id for tablet_id, _ in found):
            ids = tuple(meta.id for owner, meta in found if owner == tablet_id)
            yield tablet_id, CompactRowSets(ids)
        return
    for tablet_id, meta in found:
        if kind == "minor delta" and len(meta.redo) > 1:
            yield tablet_id, CompactDeltas((meta.id,), 0, len(meta.redo))
        elif kind == "major delta" and meta.redo:
            yield tablet_id, CompactColumns((meta.id,), columns)


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--tablets", type=int, default=4)
    parser.add_argument("--upserts", type=int, default=10_000)
    parser.add_argument(
        "--upserts-alone",
        type=int,
        default=2_000,
        help="without maintenance, where each costs more than the one before (default: 2000)",
    )
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--pause", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    args = parser.parse_args()
    runs = {"small": run_small, "past": run_past}
    for part in args.only:
        with tempfile.TemporaryDirectory() as folder:
            print(f"-- {part}: {args.rows:,} rows x 10 columns, {args.tablets} tablets")
            runs[part](Path(folder), args)


if __name__ == "__main__":
    main()
