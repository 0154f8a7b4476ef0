"""The durable steps of each operation, in golden/durable_steps.txt: a lost fsync is a difference.

One table of one tablet goes through all operations. Identifiers are numbers in the order of their
appearance, and repeated writes to one file are one line. After a step was changed, delete the file,
run the test, which writes it, and read the difference.
"""

import itertools
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.tablet.maintenance_policy import (
    CollectHistory,
    CompactColumns,
    CompactDeltas,
    CompactRowSets,
    MaintenanceOperation,
)
from kudulite.upkeep.compaction import run_operation
from kudulite.upkeep.garbage_collection import collect_garbage
from tests.support.doubles.forgetful_disk import ForgetfulDisk, recording
from tests.support.tables.core_tables import CoreTables, ManualClock, altered, environment

GOLDEN = Path(__file__).parent / "golden" / "durable_steps.txt"
SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int32()), ("w", pa.string())])
BOUNDS = {"columns": ["k"], "bounds": [[None, 100]]}
RETENTION_SECONDS = 10
# Of a bulk write, or random as a whole.
IDENTIFIER = re.compile(r"[0-9a-f]{16}-?[0-9a-f]{16}")
# The order among neighbours of one of these kinds is that of random names, of the file system, and
# of the version of Python, whose `rmtree` has changed its order.
UNORDERED = (re.compile(r"  fsync +[^.]*$"), re.compile("  (unlink|rmdir) "))


class Place:
    """A directory with one table, a backup set and a clock that an operation may move."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.root, self.set = root, root / "set"
        self.client = Client(root / "db", environment(clock=self.clock))

    @property
    def table(self) -> Table:
        """The table."""
        return self.client.table("t")

    def create(self) -> None:
        """One tablet, for keys below 100."""
        self.client.create_table("t", SCHEMA, primary_key="k", range_partitions=BOUNDS)

    def create_numbered(self) -> None:
        """A table whose key is not unique."""
        columns = [kudulite.column("k", kudulite.int32)]
        self.client.create_table("n", kudulite.schema(columns, "k", is_unique=False))

    def flush_numbered(self) -> None:
        """Rows of a session are numbered in the log, and flushed."""
        table, session = self.client.table("n"), self.client.new_session()
        session.apply(table.new_insert({"k": 1}))
        session.flush()
        table.flush()

    def session(self, value: int, keys: Sequence[int] = (3, 30)) -> None:
        """Upsert keys through a session."""
        session = self.client.new_session()
        for key in keys:
            session.apply(self.table.new_upsert({"k": key, "v": value}))
        session.flush()

    def maintain(self, make: Callable[[list[RowSetMeta]], MaintenanceOperation]) -> None:
        """Run one operation on the first tablet."""
        store = self.table._store
        entry = store.newest().tablets[0]
        metas = list(store.tablet(entry).superblock.rowsets)
        run_operation(store, entry.id, make(metas))

    def collect_history(self) -> None:
        """The clock passes the retention first."""
        self.clock.microseconds += RETENTION_SECONDS * 3_000_000
        self.maintain(lambda metas: CollectHistory())

    def restore(self) -> None:
        """The newest version is taken back."""
        self.table.restore(self.table.versions()[1].timestamp)


def rows(keys: Sequence[int], value: int) -> list[dict]:
    """Rows of these keys."""
    return [{"k": key, "v": value, "w": "text"} for key in keys]


def most_deltas(metas: list[RowSetMeta]) -> RowSetMeta:
    """The rowset with most REDO files."""
    return max(metas, key=lambda meta: len(meta.redo))


def minor(metas: list[RowSetMeta]) -> MaintenanceOperation:
    """All REDO files of a rowset become one."""
    meta = most_deltas(metas)
    return CompactDeltas((meta.id,), 0, len(meta.redo))


OPERATIONS: dict[str, Callable[[Place], object]] = {
    "create a table": Place.create,
    "insert": lambda p: p.table.insert(rows(range(6), 1)),
    "update": lambda p: p.table.update([{"k": k, "v": 2} for k in range(3)]),
    "upsert of old and new rows": lambda p: p.table.upsert(rows(range(4, 8), 3)),
    "delete": lambda p: p.table.delete([{"k": 0}]),
    "mixed operations": lambda p: p.table.apply(
        [{"op": "update", "k": 1, "v": 9, "w": "x"}, {"op": "insert", "k": 8, "v": 9, "w": "x"}]
    ),
    "ordered operations": lambda p: p.table.apply(
        [{"op": "D", "k": 9, "v": 9, "w": ""}], ordering_column="v"
    ),
    "retention": lambda p: (
        p.client.new_table_alterer(p.table).set_history_retention(RETENTION_SECONDS).alter()
    ),
    "first session flush": lambda p: p.session(4),
    "next session flush": lambda p: p.session(5),
    "session flush of another process": lambda p: Place.session(Place(p.root), 6),
    "memory flush": lambda p: p.table.flush(),
    "minor compaction": lambda p: p.maintain(minor),
    "major compaction": lambda p: p.maintain(
        lambda metas: CompactColumns((most_deltas(metas).id,), (1,))
    ),
    "merging compaction": lambda p: p.maintain(
        lambda metas: CompactRowSets(tuple(meta.id for meta in metas))
    ),
    "tag": lambda p: p.table.tag("monday"),
    "delete a tag": lambda p: p.table.delete_tag("monday"),
    "add a column": lambda p: altered(p.client, "t", lambda a: a.add_column("x", kudulite.int64)),
    "add a range": lambda p: altered(p.client, "t", lambda a: a.add_range_partition(100, 200)),
    "drop a range": lambda p: altered(p.client, "t", lambda a: a.drop_range_partition(100, 200)),
    "overwrite": lambda p: p.table.overwrite([{"k": k, "v": 7, "w": "", "x": 1} for k in (1, 2)]),
    "overwrite of what differs": lambda p: p.table.overwrite(
        [{"k": k, "v": 8, "w": "", "x": 1} for k in (2, 3)], unchanged="skip"
    ),
    "restore a moment": Place.restore,
    "history collection": Place.collect_history,
    "garbage collection": lambda p: collect_garbage(p.table._store, 0, 0),
    "purge": lambda p: p.table.purge([{"k": 2}]),
    "first backup": lambda p: kudulite.backup(p.table, p.set),
    "incremental backup": lambda p: (p.session(8, (1,)), kudulite.backup(p.table, p.set)),
    "restore a backup": lambda p: kudulite.restore(p.set, p.root / "db" / "again"),
    "copy": lambda p: p.table.copy_to(p.root / "db" / "copy"),
    "rename": lambda p: p.client.rename_table("copy", "copied"),
    "soft deletion": lambda p: p.client.soft_delete_table("copied", 3600),
    "recall": lambda p: p.client.recall_table(p.client.list_soft_deleted_tables()[0].id),
    "delete a table": lambda p: p.client.delete_table("copied"),
    "create a table with a key that is not unique": Place.create_numbered,
    "insert of numbered rows": lambda p: p.client.table("n").insert([{"k": 1}, {"k": 1}]),
    "flush of numbered rows": Place.flush_numbered,
}


def trace_of(events: Sequence[tuple[str, ...]]) -> str:
    """One line for each event."""
    lines: list[str] = []
    for operation, *paths in events:
        line = f"  {operation:<8} {' → '.join(paths)}"
        if operation != "write" or not lines or lines[-1] != line:
            lines.append(line)
    shapes: dict[str, list[str]] = {}
    for line in lines:
        for found in IDENTIFIER.findall(line):
            shapes.setdefault(found, []).append(IDENTIFIER.sub("", line))
    known: dict[str, str] = {}

    def order(line: str) -> tuple[object, ...]:
        found = IDENTIFIER.findall(line)
        numbers = [known.get(identifier, "?") for identifier in found]
        return IDENTIFIER.sub("", line), [sorted(shapes[i]) for i in found], numbers

    def numbered(line: str) -> str:
        return IDENTIFIER.sub(lambda name: known.setdefault(name[0], f"<{len(known) + 1}>"), line)

    ordered: list[str] = []
    for kind, group in itertools.groupby(lines, _kind):
        if kind == len(UNORDERED):
            ordered += map(numbered, group)
            continue
        # Numbers are given in an order that does not depend on that of the neighbours: by the line
        # without identifiers, by the lines that have the same ones, by numbers that are given.
        rest, found = list(group), list[str]()
        while rest:
            rest.remove(line := min(rest, key=order))
            found.append(numbered(line))
        ordered += sorted(found)
    return "\n".join(ordered)


def _kind(line: str) -> int:
    return next((n for n, each in enumerate(UNORDERED) if each.match(line)), len(UNORDERED))


def test_every_operation_has_its_durable_steps(core: CoreTables):
    """In their order, with no fsync more or less."""
    root = core.root / "disk"
    root.mkdir()
    disk = ForgetfulDisk(root, lambda disk, operation: None)
    traces = []
    with recording(disk):
        place = Place(root)
        for name, operate in OPERATIONS.items():
            place.clock.microseconds += 1_000_000
            disk.events.clear()
            operate(place)
            traces.append(f"{name}\n{trace_of(disk.events)}\n")
    text = "\n".join(traces)
    if not GOLDEN.exists():
        GOLDEN.write_text(text)
        pytest.fail(f"{GOLDEN} was written; read it")
    assert text.split("\n\n") == GOLDEN.read_text().split("\n\n")


def test_a_trace_is_the_same_in_any_order_of_neighbours_that_have_none():
    """Identifiers get their numbers from the lines that have them, not from their order."""
    identifiers = map("{:032x}".format, itertools.count(10))
    removed = []
    for redo_count in (0, 2, 0, 1):
        folder = next(identifiers)
        names = ["base", "base", "bloom", *["redo"] * redo_count]
        removed += [("unlink", f"t/{folder}/{name}-{next(identifiers)}") for name in names]
        removed.append(("rmdir", f"t/{folder}"))
    choice, traces = random.Random(1), set()
    for _ in range(50):
        choice.shuffle(removed)
        traces.add(trace_of([("mkdir", "t/z"), *removed]))
    assert len(traces) == 1
