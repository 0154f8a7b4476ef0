"""A power failure at any step of any operation: what was promised is there, nothing else is torn.

Each operation runs once on a disk that forgets (tests/support/doubles/forgetful_disk.py). Of every
step several states are made that a power failure may leave: without anything that was not fsynced,
with its names or its bytes only, with all of it, and with parts by chance. In each of them an
operation that had returned must be there; one that had not is there as a whole or not at all; the
table passes its check, reads as before at each moment, and takes the next write.
"""

import contextlib
import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import kudulite
from kudulite.client.client import Client
from kudulite.errors import TableExistsError
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.tablet.maintenance_policy import CompactDeltas, CompactRowSets, MaintenanceOperation
from kudulite.upkeep.compaction import run_operation
from tests.crash import test_kill_points as bulk_cases
from tests.crash import test_upgrade_kills as upgrade_cases
from tests.crash import test_upkeep_kills as upkeep_cases
from tests.crash import test_wal_kills as row_cases
from tests.support.doubles.forgetful_disk import (
    DiskState,
    ForgetfulDisk,
    StateTaker,
    recorded_states,
    recording,
    some_of,
)
from tests.support.doubles.killing_storage import KilledError
from tests.support.machines.killed_backups import World
from tests.support.tables import old_tables
from tests.support.tables.core_tables import (
    CoreTables,
    environment,
    expect_clean,
    files_below,
    stored,
)
from tests.support.tiers import tiered

# Checks a folder that a power failure has left.
Expectation = Callable[[Path, DiskState], None]


@dataclass(frozen=True)
class PowerCase:
    """An operation on a folder that is prepared; `expectation` is called when it has returned."""

    work: Callable[[ForgetfulDisk], object]
    expectation: Callable[[], Expectation]


def lose_power(
    make: Callable[[Path], PowerCase], folder: Path, *, count: int | None = None, seed: int = 0
) -> int:
    """Run a case, and expect so many of the states that it may leave; returns how many."""
    root = folder / "disk"
    root.mkdir(parents=True)
    case = make(root)
    states, events = recorded_states(root, case.work, seed=seed)
    expect = case.expectation()
    chosen = some_of(states, count, seed)
    for number, state in enumerate(chosen):
        place = folder / f"lost-{number}"
        state.write_to(place)
        try:
            expect(place, state)
        except BaseException as error:
            event = " ".join([*events, ("the end",)][state.event])
            error.add_note(f"power lost before event {state.event}, {event}; left: {state.mode}")
            raise
        shutil.rmtree(place)
    shutil.rmtree(root)
    return len(chosen)


# -- bulk writes; tables that are made, altered, renamed, deleted


def create_in_new_folder(client: Client) -> None:
    """A table in a directory that is made for it, in another one that is made."""
    bulk_cases.create(Client(client.root / "new" / "db", environment()))


def two_tasks(client: Client) -> None:
    """Two tasks upsert the same new key: one of them has to be rebased."""
    table = client.table("t")
    write = table.new_bulk_write("upsert")
    rows = [[{"k": 50, "v": value}, {"k": value, "v": value}] for value in (60, 61)]
    tasks = [
        write.stage(row_cases.table_of(table, part).to_batches(), task_index=number)
        for number, part in enumerate(rows)
    ]
    write.commit(tasks)


def restore_moment(client: Client) -> None:
    """The newest write is taken back."""
    table = client.table("t")
    table.restore(table.versions()[1].timestamp)


BULK_CASES = {
    **bulk_cases.CASES,
    "two tasks": (bulk_cases.filled, two_tasks),
    "restore moment": (bulk_cases.filled, restore_moment),
}


def bulk_case(name: str, root: Path) -> PowerCase:
    """The tables are old or new."""
    prepare, write = BULK_CASES[name]
    place = root / "db"
    prepare(Client(place, environment()))
    states = [bulk_cases.state(place)]

    def expectation() -> Expectation:
        states.append(bulk_cases.state(place))
        return expect

    def expect(lost: Path, state: DiskState) -> None:
        assert bulk_cases.state(lost / "db") in states[state.acknowledged :]
        bulk_cases.expect_whole_and_writable(lost / "db")
        expect_clean(lost / "db")

    return PowerCase(lambda _: write(Client(place, environment())), expectation)


def new_folder_case(root: Path) -> PowerCase:
    """The first table of a directory that did not exist is there when it has been made."""

    made = []

    def expectation() -> Expectation:
        made.append(bulk_cases.state(root / "new" / "db"))
        return expect

    def expect(lost: Path, state: DiskState) -> None:
        found = bulk_cases.state(lost / "new" / "db")
        assert found == made[0] or not (found or state.acknowledged)
        bulk_cases.expect_whole_and_writable(lost / "new" / "db")

    return PowerCase(lambda _: create_in_new_folder(Client(root, environment())), expectation)


def kept_case(recall: bool, root: Path) -> PowerCase:
    """A table that is soft-deleted or recalled has its name, or can be recalled, with all rows."""
    place = root / "db"
    client = Client(place, environment())
    bulk_cases.filled(client)
    expected = bulk_cases.state(place)
    if recall:
        client.soft_delete_table("t", 3600)

    def work(disk: ForgetfulDisk) -> None:
        working = Client(place, environment())
        if recall:
            working.recall_table(working.list_soft_deleted_tables()[0].id)
        else:
            working.soft_delete_table("t", 3600)

    def expect(lost: Path, state: DiskState) -> None:
        left = Client(lost / "db", environment())
        is_there, listed = left.table_exists("t"), left.list_soft_deleted_tables()
        assert len(listed) + is_there == 1
        assert not state.acknowledged or is_there == recall
        if not is_there:
            left.recall_table(listed[0].id)
        assert bulk_cases.state(lost / "db") == expected
        bulk_cases.expect_whole_and_writable(lost / "db")

    return PowerCase(work, lambda: expect)


def export_case(root: Path) -> PowerCase:
    """A Parquet file is the old one or the new one."""
    client, path = Client(root / "db", environment()), root / "rows.parquet"
    bulk_cases.filled(client)
    client.table("t").scan(where="k < 3").to_parquet(path)
    rows = [pq.read_table(path), client.table("t").scan().to_arrow()]

    def expect(lost: Path, state: DiskState) -> None:
        assert pq.read_table(lost / "rows.parquet") in rows[state.acknowledged :]

    return PowerCase(lambda _: client.table("t").scan().to_parquet(path), lambda: expect)


# -- rows through the log


def torn(client: Client) -> None:
    """A log whose last frame is torn."""
    row_cases.flushed(client)
    row_cases.run_killed(client.root, lambda killed: row_cases.flush_rows(killed, 4000), 0, "half")


ROW_CASES = {
    **row_cases.CASES,
    "a flush over a torn log": (torn, lambda client: row_cases.flush_rows(client, 5000)),
}


def row_case(name: str, root: Path) -> PowerCase:
    """Each session flush, and each batch, is whole or absent in all tablets; the past stays."""
    prepare, write = ROW_CASES[name]
    place = root / "db"
    prepare(row_cases.opened(place))
    before = row_cases.opened(place).table("t").current_timestamp()
    states = [stored(row_cases.opened(place).table("t"))]

    def work(disk: ForgetfulDisk) -> None:
        client = row_cases.opened(place)
        if name == "two flushes":
            row_cases.flush_rows(client, 5000)
            states.append(stored(row_cases.opened(place).table("t")))
            disk.acknowledge()
            row_cases.flush_rows(client, 6000)
        else:
            write(client)

    def expectation() -> Expectation:
        states.append(stored(row_cases.opened(place).table("t")))
        return expect

    def expect(lost: Path, state: DiskState) -> None:
        assert stored(row_cases.opened(lost / "db").table("t")) in states[state.acknowledged :]
        assert stored(row_cases.opened(lost / "db").table("t"), before) == states[0]
        row_cases.expect_whole_and_writable(lost / "db")

    return PowerCase(work, expectation)


# -- maintenance, purge, tags, dropped ranges


def merge_beside_a_write(client: Client) -> None:
    """Rows change while they are merged: the new rowset gets REDO of its own."""
    table = client.table("t")
    entry = table._store.newest().tablets[0]
    metas = table._store.tablet(entry).superblock.rowsets

    def write(gap: str) -> None:
        if gap == "built":
            client.table("t").update([{"k": 5, "v": 77}])

    run_operation(table._store, entry.id, CompactRowSets(tuple(m.id for m in metas)), write)


def with_undo(prepared: upkeep_cases.Prepared) -> None:
    """A rowset with several UNDO files."""
    client = prepared.client()
    for value in (1, 2):
        client.table("t").update([{"k": 4, "v": value}])
        upkeep_cases.CASES["major"][1](client)


def with_log(prepared: upkeep_cases.Prepared) -> None:
    """Rows that will be purged, and one of another tablet, are in the log only."""
    upkeep_cases.collected(prepared)
    client = prepared.client()
    prepared._write(client, lambda: upkeep_cases.flush_rows(client, 70, (3, 130)))


def join_undo(metas: list[RowSetMeta]) -> MaintenanceOperation:
    """All UNDO files of a rowset become one."""
    meta = max(metas, key=lambda meta: len(meta.undo))
    return CompactDeltas((meta.id,), 0, len(meta.undo), is_undo=True)


UPKEEP_CASES = {
    **upkeep_cases.CASES,
    "merge beside a write": (upkeep_cases.nothing, merge_beside_a_write),
    "undo": (with_undo, upkeep_cases.operate(join_undo)),
    "purge of a log": (with_log, upkeep_cases.CASES["purge"][1]),
}


def upkeep_case(name: str, root: Path) -> PowerCase:
    """Every legal moment reads as before or as after, and the operation can be run again."""
    prepare, operate = UPKEEP_CASES[name]
    prepared = upkeep_cases.Prepared(root / "db")
    prepare(prepared)
    states = [prepared.state(prepared.root)]
    tags = [set(prepared.client().table("t").tags)]

    def expectation() -> Expectation:
        states.append(prepared.state(prepared.root))
        tags.append(set(prepared.client().table("t").tags))
        return expect

    def expect(lost: Path, state: DiskState) -> None:
        place = lost / "db"
        # A record may come back; it has no rows, and nobody holds it.
        found = (path for path in files_below(lost) if path.parent.name != "writes")
        names = {path.relative_to(lost) for path in found}
        assert set(prepared.client(root=place).table("t").tags) in tags[state.acknowledged :]
        if "purge" in name and state.acknowledged:
            assert names <= {path.relative_to(root) for path in files_below(root)}
        for part in upkeep_cases.parts_of(name):
            found = [part(rows) for rows in prepared.state(place)]
            known = [[part(rows) for rows in each] for each in states[state.acknowledged :]]
            assert found in known
        prepared.client(root=place).table("t").check().raise_if_bad()
        operate(prepared.client(root=place))
        expect_clean(place, prepared.clock)
        assert prepared.state(place) == states[1]

    return PowerCase(lambda _: operate(prepared.client()), expectation)


# -- backups, restores, copies


def backup_case(full: bool, root: Path) -> PowerCase:
    """The backup is whole or not there, and can be taken again."""
    world = World(root)
    world.prepare()
    count = len(kudulite.list_backups(world.set))
    expected = stored(world.client.table("t"))

    def expect(lost: Path, state: DiskState) -> None:
        left = World(lost)
        found = kudulite.list_backups(left.set)
        assert len(found) in (count, count + 1)[state.acknowledged :]
        if len(found) == count:
            left.backup(full)
        assert not kudulite.verify_backups(left.set)
        assert stored(kudulite.restore(left.set, left.place)) == expected

    return PowerCase(lambda _: World(root).backup(full), lambda: expect)


def first_backup_case(root: Path) -> PowerCase:
    """The first backup makes the directory of its set."""
    world = World(root)
    table = world.client.create_table("t", small_schema(), primary_key="k")
    table.insert([{"k": 1, "v": 1}])

    def expect(lost: Path, state: DiskState) -> None:
        left = World(lost)
        if not state.acknowledged:
            left.backup(True)
        assert stored(kudulite.restore(left.set, left.place)) == [(1, 1)]

    return PowerCase(lambda _: World(root).backup(True), lambda: expect)


def small_schema() -> pa.Schema:
    """A key and a value."""
    return pa.schema([("k", pa.int32()), ("v", pa.int32())])


def restore_case(overwrite: bool, root: Path) -> PowerCase:
    """The restored table is whole or not there, and can be restored again."""
    world = World(root)
    world.prepare()
    world.backup(False)
    expected, old = stored(world.client.table("t")), [(1, 1)]
    if overwrite:
        made = world.client.create_table("copy", small_schema(), primary_key="k")
        made.insert([{"k": 1, "v": 1}])

    def expect(lost: Path, state: DiskState) -> None:
        left = World(lost)
        found = stored(left.client.table("copy")) if left.client.table_exists("copy") else None
        assert found == expected or (not state.acknowledged and found in (None, old))
        with contextlib.suppress(TableExistsError):
            left.restore(overwrite)
        table = kudulite.open_table(left.place)
        assert stored(table) == expected
        table.check().raise_if_bad()
        assert stored(left.client.table("t")) == expected

    return PowerCase(lambda _: World(root).restore(overwrite), lambda: expect)


def copy_case(with_past: bool, root: Path) -> PowerCase:
    """The copy is whole or not there; the table that is copied stays as it was."""
    world = World(root)
    world.prepare()
    expected = stored(world.client.table("t"))

    def copy(each: World) -> None:
        each.client.table("t").copy_to(each.place, with_past=with_past)

    def expect(lost: Path, state: DiskState) -> None:
        left = World(lost)
        if not left.client.table_exists("copy"):
            assert not state.acknowledged
            copy(left)
        for name in ("t", "copy"):
            table = left.client.table(name)
            assert stored(table) == expected
            table.check().raise_if_bad()

    return PowerCase(lambda _: copy(World(root)), lambda: expect)


# -- tables of older formats


def upgrade_case(name: str, root: Path) -> PowerCase:
    """The table is as it was or new, with all its moments, and takes the next write."""
    write, changes = upgrade_cases.WRITES[name]
    place = root / "db"
    old_tables.unpacked(place, old_tables.LOGGED)
    rows = old_tables.rows_of(old_tables.LOGGED)
    states = [rows, rows | changes]

    def expect(lost: Path, state: DiskState) -> None:
        upgrade_cases.expect_whole(lost / "db", states[state.acknowledged :])
        upgrade_cases.expect_writable(lost / "db")

    return PowerCase(lambda _: write(old_tables.client_of(place)), lambda: expect)


CASES: dict[str, Callable[[Path], PowerCase]] = {
    **{name: partial(bulk_case, name) for name in BULK_CASES},
    "create in a new directory": new_folder_case,
    "soft delete": partial(kept_case, False),
    "recall": partial(kept_case, True),
    "export": export_case,
    **{name: partial(row_case, name) for name in ROW_CASES},
    **{name: partial(upkeep_case, name) for name in UPKEEP_CASES},
    **{f"upgrade by {name}": partial(upgrade_case, name) for name in upgrade_cases.WRITES},
    "full backup": partial(backup_case, True),
    "incremental backup": partial(backup_case, False),
    "first backup": first_backup_case,
    "restore": partial(restore_case, False),
    "restore over a table": partial(restore_case, True),
    "copy": partial(copy_case, True),
    "copy of the present": partial(copy_case, False),
}


# -- a process is killed, another one writes, and then power is lost


class Killed:
    """Dies at an event, and takes states in its next life."""

    def __init__(self, event: int, taker: StateTaker) -> None:
        self._event, self._taker = event, taker
        self.is_dead = self.is_next = False

    def __call__(self, disk: ForgetfulDisk, operation: str) -> None:
        """Die, or take states once another process runs."""
        if self.is_next:
            if disk.acknowledged:
                self._taker(disk, operation)
        elif self.is_dead or len(disk.events) >= self._event:
            self.is_dead = True
            raise KilledError(operation)


def next_batch(client: Client) -> None:
    """Rows in both tablets, all or nothing."""
    row_cases.bulk(client)


# Name -> (what is there before, what dies); a session or a bulk write follows.
KILLED_CASES = {
    name: row_cases.CASES[name]
    for name in (
        "the first flush",
        "a flush over a log",
        "a flush of the table",
        "a small batch",
        "a small staged batch",
        "a bulk commit",
    )
}
NEXT = {
    "a session": lambda client: row_cases.flush_rows(client, 6000),
    "a small batch": row_cases.batch,
    "a bulk write": next_batch,
}


def lose_power_after_kill(
    case: str, following: str, folder: Path, *, every: int = 1, first: int = 0
) -> int:
    """Kill a process at events of its work; what the next one writes outlives a power failure.

    Returns how many states there were.
    """
    prepare, write = KILLED_CASES[case]
    base, count = folder / "base", 0
    base.mkdir(parents=True)
    prepare(row_cases.opened(base / "db"))
    for event in itertools.count(first, every):
        root = folder / "disk"
        shutil.copytree(base, root)
        taker = StateTaker(2, event)
        killed = Killed(event, taker)
        disk = ForgetfulDisk(root, killed)
        with recording(disk):
            with contextlib.suppress(KilledError):
                write(row_cases.opened(root / "db"))
            killed.is_next = True
            NEXT[following](row_cases.opened(root / "db"))
            disk.acknowledge()
        expected = stored(row_cases.opened(root / "db").table("t"))
        for number, state in enumerate(taker.states):
            place = folder / f"lost-{number}"
            state.write_to(place)
            found = stored(row_cases.opened(place / "db").table("t"))
            assert found == expected, (event, " ".join(disk.events[event]), state.mode)
            row_cases.expect_whole_and_writable(place / "db")
            shutil.rmtree(place)
            count += 1
        shutil.rmtree(root)
        if not killed.is_dead:
            break
    shutil.rmtree(base)
    return count


@tiered(
    ("case", "following", "every"),
    [
        ("the first flush", "a session", 13),
        *((case, following, 5) for case in KILLED_CASES for following in NEXT),
    ],
    quick=1,
)
def test_power_lost_after_a_kill_keeps_what_was_promised_since(
    core: CoreTables, case: str, following: str, every: int
):
    """A writer makes the steps of a killed process durable before it builds on them."""
    assert lose_power_after_kill(case, following, core.root, every=every) > 2


QUICK = ("upsert", "two flushes", "upgrade by session", "create in a new directory", "first backup")
QUICK_STATES, FULL_STATES = 5, 16


@tiered(
    ("case", "count"),
    [*((case, QUICK_STATES) for case in QUICK), *((case, FULL_STATES) for case in CASES)],
    quick=len(QUICK),
)
def test_power_lost_at_any_step_keeps_what_was_promised(core: CoreTables, case: str, count: int):
    """Every acknowledged operation is there; every other one is whole or absent."""
    assert lose_power(CASES[case], core.root, count=count)
