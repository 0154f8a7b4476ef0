"""Operations whose requests to an object store are not answered, or before which the process dies.

Each request of an operation is done and not answered, or not done, or done later, when the program
has gone on; and perhaps some that follow it, as those that look into it. The table is old or new
then, whole, can be written to, and stays what it was found to be. For processes whose storage is
FAULTY (base_storage.py).
"""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path
from typing import Any

from kudulite.client.table import Table
from kudulite.errors import KuduliteError
from tests.support.doubles.base_storage import LIBRARY
from tests.support.doubles.faulty_library import ERRORS, Plan, no_faults
from tests.support.doubles.killing_storage import KilledError
from tests.support.tables.core_tables import CoreTables
from tests.support.tables.table_operations import OPERATIONS, copied, new_table, put, rows

# The last request of each operation is far below this.
REQUESTS_MAX = 2_000


def killed_at(number: int) -> tuple[Plan, list[str]]:
    """The plan of a process that is dead before a request, counted from 0."""
    count, made = itertools.count(-number), list[str]()

    def plan(kind: str, name: str) -> str:
        if next(count) < 0:
            return ""
        made.append(f"killed before {kind} {name}")
        raise KilledError(name)

    return plan, made


def at_request(number: int, choice: random.Random) -> tuple[Plan, list[str]]:
    """The plan with errors from a request on, counted from 0; and the list of those it has had."""
    count, made = itertools.count(-number), list[str]()
    length = choice.choice([1, 1, 1, 2, 3, 4])

    def plan(kind: str, name: str) -> str:
        if not 0 <= next(count) < length:
            return ""
        fault = choice.choice(ERRORS[kind])
        made.append(f"{fault} {kind} {name}")
        return fault

    return plan, made


def state(table: Table) -> list[dict[str, Any]]:
    """All rows."""
    return table.scan().to_arrow().sort_by("k").to_pylist()


def vary(table: Table, choice: random.Random) -> None:
    """Bring more rows, files and records into a table."""
    for _ in range(choice.randrange(5)):
        keys = choice.sample(range(100, 140), choice.randrange(1, 6))
        step, value = choice.choice(("put", "put", "upsert", "flush", "compact")), choice.random()
        if step == "put":
            put(table, keys, round(9 * value))
        elif step == "upsert":
            table.upsert(rows(keys, round(9 * value)))
        else:
            getattr(table, step)()


def lose_answers(
    root: Path, operation: str, seed: int, *, every: int = 1, is_killed: bool = False
) -> int:
    """Lose the answers of an operation, or kill it, at one request in `every`; returns how many."""
    core, choice = CoreTables(root), random.Random(seed)
    LIBRARY.plan = no_faults
    vary(new_table(core.client("made")), choice)
    old = state(core.client("made").table("t"))
    whole = copied(core, "whole").table("t")
    OPERATIONS[operation](whole)
    new, lost = state(whole), 0
    for number in range(choice.randrange(every), REQUESTS_MAX, every):
        table = copied(core, "again").table("t")
        LIBRARY.plan, made = killed_at(number) if is_killed else at_request(number, choice)
        try:
            OPERATIONS[operation](table)
            expected = [new]
        except (KuduliteError, KilledError):
            expected = [old, new]
        finally:
            LIBRARY.plan = no_faults
        if not made:
            return lost
        lost += 1 if is_killed else len(made)
        try:
            _expect(core, expected)
        except (AssertionError, KuduliteError) as error:
            error.add_note(f"{operation}, request {number}: {made}")
            raise
    raise AssertionError(f"{operation}: more than {REQUESTS_MAX} requests")


def _expect(core: CoreTables, expected: list[list[dict[str, Any]]]) -> None:
    """Look at the table `again`, write to it, and look again, by those that know nothing."""
    found = state(core.client("again").table("t"))
    assert found in expected
    core.client("again").table("t").upsert(rows(range(900, 905), 9))
    fresh = core.client("again").table("t")
    written = [row for row in state(fresh) if row["k"] < 900]
    assert written in expected and len(state(fresh)) == len(written) + 5
    # An old state may become new by a late request; a new one stays.
    assert written in (found, expected[-1])
    fresh.check().raise_if_bad()
    fresh.maintain(grace_seconds=0)
    fresh.check().raise_if_bad()
    assert [row for row in state(core.client("again").table("t")) if row["k"] < 900] == written
    shutil.rmtree(core.root / "again")
