"""Upkeep that dies before any one of its durable steps: every legal read is as before, or as after.

A table of two tablets has all that an operation can meet: base data, several REDO files, deletes,
rowsets from memory with UNDO, keys that were deleted and came back elsewhere, a log, and a clock
past the retention of the first writes. Every case runs once for each step, in a forked child that
ends at once, and for each third with an error that comes up through whatever handles errors. After
it: reopen, compare now and every remembered moment, check, run again, collect garbage, look for
files that nobody refers to.
"""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import TimestampError
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.storage.local_storage import LocalStorage
from kudulite.tablet.maintenance_policy import (
    CollectHistory,
    CompactColumns,
    CompactDeltas,
    CompactRowSets,
    MaintenanceOperation,
)
from kudulite.upkeep.alter import forget_alterations
from kudulite.upkeep.compaction import run_operation
from tests.support.doubles.killing_storage import KillingStorage, ran_to_its_end
from tests.support.tables.core_tables import (
    CoreTables,
    ManualClock,
    environment,
    expect_clean,
    stored,
)
from tests.support.tiers import tiered

MIDDLE = 100  # the first key of the second tablet
RETENTION_SECONDS = 10
BEGIN = 1_800_000_000_000_000
PURGED = (1, 3, 101)
TAG = "monday"
STEPS_ALL, STEPS_EACH, ERROR_EACH = 48, 31, 3

# What a reader sees at each moment: rows, or None where it is refused.
State = list[list[tuple] | None]


class Prepared:
    """A table's folder, its clock, and the moments that its readers know."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock(BEGIN)
        self.moments: list[int] = []
        client = self.client()
        self._fill(client)
        self.moments.append(client.table("t").current_timestamp())

    def client(self, storage: LocalStorage | None = None, root: Path | None = None) -> Client:
        """A client that has seen nothing."""
        return Client(root or self.root, environment(storage, self.clock))

    def state(self, root: Path) -> State:
        """The rows now and at each moment."""
        table = self.client(root=root).table("t")
        return [stored(table), *(_rows(table, moment) for moment in self.moments)]

    def _fill(self, client: Client) -> None:
        columns = [
            kudulite.column("k", kudulite.int32),
            kudulite.column("v", kudulite.int32),
            kudulite.column("w", kudulite.string),
        ]
        bounds = [[None, MIDDLE], [MIDDLE, 200]]
        table = client.create_table(
            "t",
            kudulite.schema(columns, "k"),
            range_partitions={"columns": ["k"], "bounds": bounds},
        )
        client.new_table_alterer(table).set_history_retention(RETENTION_SECONDS).alter()
        table = client.table("t")
        keys = [*range(10), *range(100, 110)]
        self._write(client, lambda: table.insert([{"k": k, "v": k, "w": "first"} for k in keys]))
        self._write(client, lambda: table.update([{"k": k, "v": k + 1} for k in keys]))
        self._write(client, lambda: table.delete([{"k": k} for k in (0, 1, 100, 101)]))
        self.clock.microseconds += RETENTION_SECONDS * 1_000_000
        self._write(client, lambda: table.update([{"k": k, "w": "later"} for k in keys[2:8]]))
        self._write(client, lambda: flush_rows(client, 50, (1, 3, 20, 101, 120)))
        self._write(client, table.flush)
        self._write(client, lambda: table.update([{"k": k, "v": k + 7} for k in (3, 20, 120)]))
        self._write(client, lambda: table.delete([{"k": 20}, {"k": 3}, {"k": 120}]))
        self._write(client, lambda: table.upsert([{"k": k, "v": 9} for k in (3, 21, 121)]))
        self.clock.microseconds += RETENTION_SECONDS * 600_000
        self._write(client, lambda: flush_rows(client, 60, (3, 4, 22, 105, 122)))

    def _write(self, client: Client, write: Callable[[], object]) -> None:
        write()
        self.moments.append(client.table("t").current_timestamp())
        self.clock.microseconds += 100_000


def flush_rows(client: Client, value: int, keys: Sequence[int]) -> None:
    """Upsert keys through a session."""
    table, session = client.table("t"), client.new_session()
    for key in keys:
        session.apply(table.new_upsert({"k": key, "v": value}))
    session.flush()


def _rows(table: Table, moment: int) -> list[tuple] | None:
    try:
        return stored(table, moment)
    except TimestampError:
        return None


def operate(make: Callable[[list[RowSetMeta]], MaintenanceOperation]) -> Callable[[Client], object]:
    """Run an operation on the first tablet; `make` is given its rowsets."""

    def run(client: Client) -> object:
        store = client.table("t")._store
        entry = store.newest().tablets[0]
        metas = store.tablet(entry).superblock.rowsets
        return run_operation(store, entry.id, make(list(metas)))

    return run


def minor(metas: list[RowSetMeta]) -> MaintenanceOperation:
    """Join all REDO files of the rowset that has most."""
    meta = max(metas, key=lambda meta: len(meta.redo))
    return CompactDeltas((meta.id,), 0, len(meta.redo))


def drop_range(client: Client) -> None:
    """Drop the range of the second tablet, unless it was dropped."""
    table = client.table("t")
    if table.tablet_count == 2:
        client.new_table_alterer(table).drop_range_partition(MIDDLE, 200).alter()


def forget(client: Client) -> None:
    """Give up what was dropped before the retention."""
    forget_alterations(client.table("t")._store)


def tag(client: Client) -> None:
    """Hold the present, unless that was done: a version is later than what it tags."""
    if TAG not in client.table("t").tags:
        client.table("t").tag(TAG)


def untag(client: Client) -> None:
    """Let it go, unless that was done."""
    if TAG in client.table("t").tags:
        client.table("t").delete_tag(TAG)


def nothing(prepared: Prepared) -> None:
    """The table as it is."""


def collected(prepared: Prepared) -> None:
    """The table without older versions: less to remove, so fewer steps."""
    prepared.client().table("t").maintain(0, 0)


def with_ancient_history(prepared: Prepared) -> None:
    """UNDO and dead rowsets that no legal read needs."""
    client = prepared.client()
    for operation in (CASES["major"], CASES["merge"]):
        operation[1](client)
    client.table("t").overwrite([{"k": k, "v": k} for k in range(6)])
    CASES["major"][1](client)
    prepared.clock.microseconds += RETENTION_SECONDS * 2_000_000
    for _ in range(2):
        prepared._write(client, lambda: client.table("t").update([{"k": 2, "v": 2}]))


def with_tag(prepared: Prepared) -> None:
    """A tag, past the retention."""
    tag(prepared.client())
    prepared.clock.microseconds += RETENTION_SECONDS * 2_000_000


def with_dropped_range(prepared: Prepared) -> None:
    """A dropped range, past the retention; its moments are not of this world any more."""
    drop_range(prepared.client())
    flush_rows(prepared.client(), 1, (1,))
    prepared.clock.microseconds += RETENTION_SECONDS * 2_000_000
    for value in (2, 3, 4):
        flush_rows(prepared.client(), value, (1,))
        prepared._write(prepared.client(), lambda: prepared.client().table("t").flush())


# name -> (what is there before, what dies)
CASES: dict[str, tuple[Callable[[Prepared], None], Callable[[Client], object]]] = {
    "minor": (nothing, operate(minor)),
    "major": (nothing, operate(lambda metas: CompactColumns((metas[0].id,), (1,)))),
    "merge": (nothing, operate(lambda metas: CompactRowSets(tuple(m.id for m in metas)))),
    "collect": (with_ancient_history, operate(lambda metas: CollectHistory())),
    "purge": (collected, lambda client: client.table("t").purge([{"k": k} for k in PURGED])),
    "drop range": (nothing, drop_range),
    "forget range": (with_dropped_range, forget),
    "tag": (nothing, tag),
    "untag": (with_tag, untag),
    "compact": (nothing, lambda client: client.table("t").compact()),
    "maintain": (nothing, lambda client: client.table("t").maintain(0, 0)),
}


def parts_of(case: str) -> list[Callable[[list[tuple] | None], list[tuple] | None]]:
    """The parts of the table that are old or new as a whole: for a purge, each tablet."""
    if "purge" not in case:
        return [lambda rows: rows]
    return [
        lambda rows: None if rows is None else [row for row in rows if row[0] < MIDDLE],
        lambda rows: None if rows is None else [row for row in rows if row[0] >= MIDDLE],
    ]


# In the quick tier two cases die at every third of the places.
QUICK = [("minor", 6), ("tag", 6)]


@pytest.mark.parametrize("how", ["exit", "error"])
@tiered(("case", "every"), [*QUICK, *((case, 1) for case in CASES)])
def test_upkeep_killed_at_any_step_leaves_old_or_new(
    core: CoreTables, case: str, every: int, how: str
):
    """Never anything between, at no legal moment; run again it comes to its end."""
    prepare, work = CASES[case]
    prepared = Prepared(core.root / "base")
    prepare(prepared)
    new = core.root / "new"
    shutil.copytree(prepared.root, new)
    counting = KillingStorage()
    work(prepared.client(counting, new))
    states = [prepared.state(prepared.root), prepared.state(new)]
    assert sum(rows is not None for rows in states[1]) > 2
    # Beyond these it is one removed file after the other.
    places = [n for n in range(counting.count) if n < STEPS_ALL or n % STEPS_EACH == 0]
    if how == "error":  # the same steps, of which some show whether errors are handled
        places = places[len(case) % ERROR_EACH :: ERROR_EACH]
    for steps in (*places[::every], counting.count):
        root = core.root / f"killed-{steps}"
        shutil.copytree(prepared.root, root)
        dying = KillingStorage(steps, exits=how == "exit")
        client = prepared.client(dying, root)
        is_done = ran_to_its_end(partial(work, client), in_child=how == "exit")
        for part in parts_of(case):
            found = [part(rows) for rows in prepared.state(root)]
            known = [[part(rows) for rows in state] for state in states[is_done:]]
            assert found in known, steps
        prepared.client(root=root).table("t").check().raise_if_bad()
        work(prepared.client(root=root))
        expect_clean(root, prepared.clock)
        assert prepared.state(root) == states[1], steps
        shutil.rmtree(root)
    assert is_done
