"""Ids of rows whose key is not unique, after a kill and a power failure at each durable step.

Whatever was under way: the rows are those of before or of after, and every later row has an id
above all that anybody could have seen.
"""

import itertools
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from kudulite.client.client import Client
from kudulite.upkeep.garbage_collection import collect_garbage
from tests.crash.test_power_loss import Expectation, PowerCase, lose_power
from tests.support.doubles.forgetful_disk import DiskState
from tests.support.doubles.killing_storage import KillingStorage, ran_to_its_end
from tests.support.machines.id_machine import ID, arrow, create, rows_of
from tests.support.tables.core_tables import CoreTables, environment, expect_clean
from tests.support.tiers import tiered

ROWS = [{"k": k, "v": k} for k in range(5)]
Rows = dict[tuple[int, int], int]


def filled(client: Client) -> None:
    """Rows in files and in the log, one of them deleted: that with the highest id."""
    table = create(client, "hashed")
    table.insert(ROWS * 30)
    session(client)
    numbers = table.tablet_index([{"k": k} for k in range(5)]).to_pylist()
    for tablet in set(numbers):
        own = [key for key in rows_of(table) if numbers[key[0]] == tablet]
        k, highest = max(own, key=lambda key: key[1])
        table.delete([{"k": k, ID: highest}])


def session(client: Client) -> None:
    """Rows through the log."""
    table, made = client.table("t"), client.new_session()
    for row in ROWS:
        made.apply(table.new_insert(row))
    made.flush()


def two_tasks(client: Client) -> None:
    """A bulk write with a task that runs twice."""
    write = client.table("t").new_bulk_write("insert", columns=["k", "v"])
    write.stage([arrow(ROWS)], 0)
    write.commit([write.stage([arrow(ROWS)], 0), write.stage([arrow(ROWS)], 1)])


def given(client: Client) -> None:
    """Ids from the caller, far above the others."""
    client.table("t").upsert([{"k": k, ID: 5_000, "v": 1} for k in range(5)] * 30)


def restored(client: Client) -> None:
    """The rows before the deletes, with their ids."""
    table = client.table("t")
    table.restore(table.versions()[-1].timestamp)


CASES: dict[str, Callable[[Client], object]] = {
    "session": session,
    "bulk insert": lambda client: client.table("t").insert(ROWS * 30),
    "two tasks": two_tasks,
    "flush": lambda client: client.table("t").flush(),
    "compact": lambda client: client.table("t").compact(),
    "given": given,
    "overwrite": lambda client: client.table("t").overwrite(ROWS),
    "restore": restored,
}


# Where ids are reserved or written, a process dies at many of the steps; elsewhere at some.
EVERY = {"session": 1, "bulk insert": 3, "two tasks": 3}


def opened(root: Path, storage: KillingStorage | None = None) -> Client:
    """A client that has seen nothing; batches of 100 rows go through the log."""
    given_system = {} if storage is None else {"storage": storage}
    return Client(root, environment(*given_system.values(), small_write_rows_max=100))


def unordered(rows: Rows) -> list[tuple[int, int]]:
    """The rows without their ids, which gaps may move."""
    return sorted((k, v) for (k, _), v in rows.items())


def expect_one_of(found: Rows, known: list[Rows]) -> None:
    """The rows of all tablets are of one state."""
    assert unordered(found) in map(unordered, known)


def expect_new_ids(root: Path, seen: Rows) -> None:
    """Rows of every kind of write get ids above all that was seen, and that are there."""
    client = opened(root)
    table = client.table("t")
    numbers = table.tablet_index([{"k": k} for k in range(5)]).to_pylist()
    for write in (session, CASES["bulk insert"], session):
        before = rows_of(table) | seen
        write(client)
        new = rows_of(table).keys() - before.keys()
        assert len(new) in (len(ROWS), 30 * len(ROWS))
        for tablet in set(numbers):
            highest = max(i for k, i in before if numbers[k] == tablet)
            assert min(i for k, i in new if numbers[k] == tablet) > highest
        seen = before
    table.check().raise_if_bad()


@pytest.mark.parametrize("how", ["exit", "error"])
@tiered(
    ("case", "every"), [("two tasks", 20), *((case, EVERY.get(case, 7)) for case in CASES)], quick=1
)
def test_no_id_is_given_twice_after_a_kill(core: CoreTables, case: str, every: int, how: str):
    """A child that ends at once, or an error that whatever handles errors sees."""
    base, new = core.root / "base", core.root / "new"
    filled(opened(base))
    shutil.copytree(base, new)
    old_rows = rows_of(opened(base).table("t"))
    CASES[case](opened(new))
    new_rows = rows_of(opened(new).table("t"))
    for steps in itertools.count(0, every if how == "exit" else 3 * every):
        root = core.root / f"{case}-{steps}"
        shutil.copytree(base, root)
        dying = KillingStorage(steps, exits=how == "exit")
        work = partial(CASES[case], opened(root, dying))
        is_done = ran_to_its_end(work, in_child=how == "exit")
        found = rows_of(opened(root).table("t"))
        expect_one_of(found, [new_rows] if is_done else [old_rows, new_rows])
        expect_new_ids(root, old_rows | found)
        collect_garbage(opened(root).table("t")._store, 0, 0)
        expect_clean(root)
        shutil.rmtree(root)
        if is_done:
            break
    assert steps >= (2 if case == "session" else 4)  # it appends, and fsyncs


def power_case(case: str, root: Path) -> PowerCase:
    """A case of above on a disk that forgets."""
    filled(opened(root / "db"))
    states = [rows_of(opened(root / "db").table("t"))]

    def expectation() -> Expectation:
        states.append(rows_of(opened(root / "db").table("t")))
        return expect

    def expect(lost: Path, state: DiskState) -> None:
        found = rows_of(opened(lost / "db").table("t"))
        expect_one_of(found, states[state.acknowledged :])
        expect_new_ids(lost / "db", states[0] | found)

    return PowerCase(lambda _: CASES[case](opened(root / "db")), expectation)


@tiered(("case", "count"), [("bulk insert", 4), *((case, 12) for case in CASES)], quick=1)
def test_no_id_is_given_twice_after_a_power_failure(core: CoreTables, case: str, count: int):
    """Acknowledged rows are there, and their ids are never given again."""
    assert lose_power(partial(power_case, case), core.root, count=count)
