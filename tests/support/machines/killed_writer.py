"""A process that writes rows and is killed by the system at random moments, again and again.

Step n of the writer puts three rows of generation n into each of two tablets, sets generation n - 3
to n, and deletes generation n - 8; so what a tablet holds after n steps is known. A step is the
flush of a session, or one batch, whole or absent in both tablets; now and then the table is
flushed, too. The writer acknowledges each step through a pipe. After a kill both tablets must be at
the last acknowledged step, or both at the one after it; the next writer continues from there.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from tests.support.tables.core_tables import environment

TABLETS = 2
ROWS = 3  # of one generation in one tablet
CHANGED_AFTER, DELETED_AFTER = 3, 8
BATCH_EVERY, FLUSH_EVERY = 11, 23
STEPS_MAX = 5_000  # a writer that nobody kills ends by itself
ACKNOWLEDGEMENTS_MAX = 60
KILLS_ON_ONE_TABLE = 10  # without compaction a table gets slower
WAIT_SECONDS_MAX = 60.0
# pyarrow imports pandas, where it is, at the first conversion of Python objects.
PRELOADED = ["kudulite", "pandas", "tests.support.machines.killed_writer"]

Change = tuple[str, dict[str, int]]


@dataclass
class KillReport:
    """The counts of a run; `ahead` are the steps that were found without an acknowledgement."""

    kills: int = 0
    acknowledged: int = 0
    ahead: int = 0
    seconds_to_open_max: float = 0.0


def create(folder: Path) -> None:
    """The empty table: key (tablet, number), and the value `v`."""
    columns = [
        kudulite.column("tablet", kudulite.int8),
        kudulite.column("number", kudulite.int64),
        kudulite.column("v", kudulite.int64),
    ]
    bounds = [[number, number + 1] for number in range(TABLETS)]
    Client(folder, environment()).create_table(
        "t",
        kudulite.schema(columns, ["tablet", "number"]),
        range_partitions={"columns": ["tablet"], "bounds": bounds},
    )


def changes_of(step: int, tablet: int) -> list[Change]:
    """The changes of a step to a tablet."""
    changes: list[Change] = []
    for row in range(ROWS):
        key = {"tablet": tablet, "number": step * ROWS + row}
        changes.append(("insert", key | {"v": step}))
        if step > CHANGED_AFTER:
            key = {"tablet": tablet, "number": (step - CHANGED_AFTER) * ROWS + row}
            changes.append(("update", key | {"v": step}))
        if step > DELETED_AFTER:
            key = {"tablet": tablet, "number": (step - DELETED_AFTER) * ROWS + row}
            changes.append(("delete", key))
    return changes


def rows_after(step: int) -> list[tuple[int, int]]:
    """The (number, v) that a tablet holds after a step, in order."""
    rows = []
    for generation in range(max(1, step - DELETED_AFTER + 1), step + 1):
        changed = generation + CHANGED_AFTER
        value = changed if changed <= step else generation
        rows += [(generation * ROWS + row, value) for row in range(ROWS)]
    return rows


def step_of(table: Table) -> int:
    """At which step all tablets are. Raises AssertionError where they are at none."""
    steps = []
    for number in range(TABLETS):
        scan = table.scan(["number", "v"], where=table["tablet"] == number)
        found = sorted(zip(*scan.to_arrow().to_pydict().values(), strict=True))
        step = found[-1][0] // ROWS if found else 0
        expected = rows_after(step)
        assert found == expected, f"tablet {number}:\nfound    {found}\nexpected {expected}"
        steps.append(step)
    assert len(set(steps)) == 1, f"half of a step: {steps}"
    return steps[0]


def write(folder: Path, acknowledge: Callable[[int], object]) -> None:
    """Take steps until somebody kills this process."""
    client = Client(folder, environment())
    table, session = client.table("t"), client.new_session()
    reached = step_of(table)
    for step in range(reached + 1, reached + STEPS_MAX):
        changes = [change for number in range(TABLETS) for change in changes_of(step, number)]
        if step % BATCH_EVERY == 0:
            table.apply([{"op": name, "v": None, **row} for name, row in changes])
        else:
            for name, row in changes:
                session.apply(getattr(table, f"new_{name}")(row))
            session.flush()
        acknowledge(step)
        if step % FLUSH_EVERY == 0:
            table.flush()


def _child(folder: Path, pipe: Connection) -> None:
    try:
        write(folder, pipe.send)
    except BrokenPipeError:
        return  # whoever watched is gone


def _kill_once(folder: Path, chance: random.Random, context) -> int:
    """Start a writer and kill it; returns its last acknowledged step, 0 if there was none."""
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(folder, writer), daemon=True)
    process.start()
    writer.close()
    last = 0
    try:
        for _ in range(chance.randint(0, ACKNOWLEDGEMENTS_MAX)):
            assert reader.poll(WAIT_SECONDS_MAX), "the writer says nothing"
            last = reader.recv()
        time.sleep(chance.random() * 0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        while reader.poll():
            last = reader.recv()
    except EOFError:
        process.join()
    finally:
        reader.close()
    assert process.exitcode == -signal.SIGKILL, f"the writer ended with {process.exitcode}"
    return last


def _expect_acknowledged(folder: Path, last: int, report: KillReport) -> None:
    begin = time.perf_counter()
    table = Client(folder, environment()).table("t")
    scan = table.scan()
    rows = scan.to_arrow()
    seconds = time.perf_counter() - begin
    report.seconds_to_open_max = max(report.seconds_to_open_max, seconds)
    step = step_of(table)
    assert last <= step <= last + 1, (step, last)
    in_order = [("tablet", "ascending"), ("number", "ascending")]
    assert table.scan(at=scan.timestamp).to_arrow().sort_by(in_order) == rows.sort_by(in_order)
    report.ahead += step - last


def kill_again_and_again(
    folder: Path, kills: int, seed: int, progress: Callable[[KillReport], object] = lambda _: None
) -> KillReport:
    """Kill a writer so many times, on a new table now and then; AssertionError at any loss."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    chance = random.Random(seed)
    report = KillReport()
    for number in itertools.count():
        root = folder / str(number)
        root.mkdir(parents=True)
        create(root)
        known = 0
        for _ in range(min(KILLS_ON_ONE_TABLE, kills - report.kills)):
            before = known
            last = _kill_once(root, chance, context)
            known = max(known, last)
            _expect_acknowledged(root, known, report)
            known = step_of(Client(root, environment()).table("t"))
            report.kills += 1
            report.acknowledged += max(0, last - before)
            progress(report)
        Client(root, environment()).table("t").check().raise_if_bad()
        shutil.rmtree(root)
        if report.kills >= kills:
            return report
