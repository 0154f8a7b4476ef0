"""Ranges with hash partitions of their own: every way in and out of a table, by a dictionary."""

import random
import shutil

import pyarrow as pa
import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import ConflictError, NotSupportedError, SchemaError
from tests.support.doubles.killing_storage import KillingStorage, ran_to_its_end
from tests.support.tables.core_tables import CoreTables, altered, environment, stored
from tests.support.tables.readings import every_reading
from tests.support.tiers import tiered

SCHEMA = pa.schema([("day", pa.int32()), ("id", pa.string()), ("v", pa.int64())])
KEY = ["day", "id"]
# Three tablets of days below 10, five of 10 to 19, two of 20 to 29 by another column.
BOUNDS = [[None, 10], [10, 20, [(["id"], 5, 7)]], [20, 30, [("day", 2)]]]
PLAIN = {
    "hash_partitions": [(["id"], 3)],
    "range_partitions": {"columns": ["day"], "bounds": BOUNDS},
}


def partitioned() -> kudulite.Partitioning:
    """The same in kudu-python's words."""
    ten = kudulite.RangePartition({"day": 10}, {"day": 20}).add_hash_partitions(["id"], 5, seed=7)
    twenty = kudulite.RangePartition(20, 29, upper_bound_type="inclusive")
    return (
        kudulite.Partitioning()
        .add_hash_partitions(["id"], 3)
        .set_range_partition_columns(["day"])
        .add_range_partition(None, 10)
        .add_custom_range_partition(twenty.add_hash_partitions("day", 2))
        .add_custom_range_partition(ten)
    )


def create(client: Client, name: str = "t") -> Table:
    """An empty table."""
    return client.create_table(name, SCHEMA, primary_key=KEY, **PLAIN)


def rows(days: range, value: int) -> list[dict]:
    """Four rows of each day."""
    return [{"day": day, "id": f"h{i}", "v": value} for day in days for i in range(4)]


def test_both_ways_to_say_it_make_one_partitioning(core: CoreTables):
    """In the order of the ranges; it prints as it is."""
    client = core.client()
    plain = create(client)
    made = client.create_table("u", SCHEMA, partitioned(), primary_key=KEY)
    assert made.partition_schema == plain.partition_schema
    assert made.tablet_count == 3 + 5 + 2
    assert made.partition_schema.describe_all() == [
        "hash(id) × 3",
        "day: [-∞, 10)",
        "day: [10, 20) hash(id) × 5",
        "day: [20, 30) hash(day) × 2",
    ]
    assert repr(partitioned()) == (
        "Partitioning(hash (id) in 3 buckets; range (day): None to 10, RangePartition(20 to 29 hash"
        " (day) in 2 buckets), RangePartition({'day': 10} to {'day': 20} hash (id) in 5 buckets))"
    )


@pytest.mark.parametrize(
    ("bounds", "kind", "problem"),
    [
        ([[0, 10, []]], NotSupportedError, r"has 0 hash dimensions and the table 1"),
        ([[0, 10, [("id", 2), ("day", 2)]]], NotSupportedError, r"has 2 hash dimensions"),
        ([[0, 10, [("v", 2)]]], SchemaError, "by column 'v', which is not in the primary key"),
        ([[0, 10, [("id", 1)]]], SchemaError, "at least 2 are needed"),
        (
            [[0, 10, ["id", 2]]],
            SchemaError,
            r"as the third value, as in \[0, 10, \[\(\['id'\], 4\)",
        ),
        ([[0, 10, [], 1]], SchemaError, r"expected \[lower, upper\], or \[lower, upper, \["),
        ([[0, 10, [("id", 4)]], [5, 15]], SchemaError, "overlap"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_no_table(core: CoreTables, bounds, kind, problem):
    """At creation, as in an alteration."""
    client = core.client()
    with pytest.raises(kind, match=problem):
        client.create_table(
            "t",
            SCHEMA,
            primary_key=KEY,
            hash_partitions=[("id", 3)],
            range_partitions={"columns": ["day"], "bounds": bounds},
        )
    assert client.list_tables() == []


def test_other_things_are_refused(core: CoreTables):
    """No range, splits beside it, and a table without range columns."""
    part = partitioned()
    with pytest.raises(SchemaError, match=r"\(1, 2\): expected a kudulite.RangePartition, as in"):
        part.add_custom_range_partition((1, 2))
    with pytest.raises(
        SchemaError, match="splits and ranges with hash partitions of their own can"
    ):
        core.client().create_table("t", SCHEMA, part.add_range_partition_split(5), primary_key=KEY)
    lone = kudulite.Partitioning().add_custom_range_partition(kudulite.RangePartition(0, 5))
    with pytest.raises(SchemaError, match="range partitions without range columns"):
        core.client().create_table("t", SCHEMA, lone, primary_key=KEY)
    table = create(core.client())
    with pytest.raises(NotSupportedError, match=r"'t': range partition day: \[30, 40\) has 0 hash"):
        altered(
            core.client(),
            "t",
            lambda a: a.add_custom_range_partition(kudulite.RangePartition(30, 40)),
        )
    assert table.version == 1


@pytest.mark.both
def test_rows_are_in_the_tablets_of_their_ranges(core: CoreTables):
    """By batch and session; scans read the tablets that they need, and no others."""
    table = create(core.client())
    table.insert(rows(range(5, 30), 1))
    session = core.client().new_session()
    for row in rows(range(12, 22), 2):
        session.apply(table.new_upsert(row))
    session.flush()
    expected = sorted(
        (d, f"h{i}", 2 if 12 <= d < 22 else 1) for d in range(5, 30) for i in range(4)
    )
    assert stored(table) == expected
    keys = [(day, host) for day, host, _ in expected]
    index = table.tablet_index(keys).to_pylist()
    for (day, _), number in zip(keys, index, strict=True):
        low, high = (0, 3) if day < 10 else (3, 8) if day < 20 else (8, 10)
        assert low <= number < high
    assert table.tablet_index([(30, "h0")]).to_pylist() == [-1]
    assert [tuple(row.values()) for row in every_reading(table)] == expected
    assert len(table.scan_tokens()) == len(set(index))
    assert {len(table.scan_tokens(where=f"day = 15 AND id = 'h{i}'")) for i in range(4)} == {1}
    assert len(table.scan_tokens(where="day < 10")) == 3
    assert len(table.scan_tokens(where="id = 'h0'")) == 1 + 1 + 2
    assert len(table.scan_tokens(where="day IN (20, 21)")) <= 2
    found = table.scan(where="id = 'h0' AND day >= 8 AND day <= 22", ordered=True).to_pylist()
    assert [(row["day"], row["v"]) for row in found] == [
        (d, v) for d, h, v in expected if h == "h0" and 8 <= d <= 22
    ]


def test_an_alteration_adds_and_drops_such_ranges(core: CoreTables):
    """Key columns may be renamed before, between and after; the past keeps its rows."""
    client = core.client()
    table = create(client)
    table.insert(rows(range(8, 25), 1))
    before, full = table.current_timestamp(), stored(table)

    def change(a: kudulite.TableAlterer) -> None:
        a.alter_column("id", rename_to="host")
        a.drop_range_partition(10, 20)
        again = kudulite.RangePartition(10, 20).add_hash_partitions(["day", "host"], 4)
        a.add_custom_range_partition(again)
        a.alter_column("host", rename_to="machine")
        a.add_custom_range_partition(
            kudulite.RangePartition(30, None).add_hash_partitions("machine", 2, seed=3)
        )

    table = altered(client, "t", change)
    assert table.partition_schema.describe_all() == [
        "hash(machine) × 3",
        "day: [-∞, 10)",
        "day: [10, 20) hash(day, machine) × 4",
        "day: [20, 30) hash(day) × 2",
        "day: [30, +∞) hash(machine) × 2",
    ]
    assert stored(table) == [row for row in full if not 10 <= row[0] < 20]
    assert stored(table, before) == full
    table.insert([{"day": d, "machine": "h1", "v": 9} for d in (10, 15, 19, 31)])
    assert stored(table, before) == full
    assert table.get((15, "h1"), at=before)["v"] == 1 and table.get((15, "h1"))["v"] == 9
    # The same keys are in other buckets of the range now: they are compared with each other.
    changed = {
        (row["day"], row["machine"]): row["_change_type"]
        for row in table.changes(before).to_arrow().to_pylist()
    }
    expected = {(d, f"h{i}"): "delete" for d in range(10, 20) for i in range(4)}
    expected |= dict.fromkeys([(10, "h1"), (15, "h1"), (19, "h1")], "update_postimage")
    assert changed == expected | {(31, "h1"): "insert"}
    assert [row["_change_type"] for row in table.history((15, "h1")).to_pylist()][-1] == "insert"
    table = altered(client, "t", lambda a: a.alter_column("machine", rename_to="id"))
    assert stored(table, before) == full
    table.restore(before)
    assert stored(table) == full
    table.maintain()
    table.compact()
    assert stored(core.client().table("t")) == full
    with pytest.raises(SchemaError, match=r"no range partition to drop from \(10,\) to \(15,\)"):
        altered(client, "t", lambda a: a.drop_range_partition(10, 15))


def test_a_write_that_was_planned_before_is_refused(core: CoreTables):
    """Its rows were split by other buckets."""
    client = core.client()
    table = create(client)
    write = table.new_bulk_write("upsert")
    staged = write.stage(pa.Table.from_pylist(rows(range(10, 20), 1), SCHEMA).to_batches())

    def change(a: kudulite.TableAlterer) -> None:
        own = kudulite.RangePartition(10, 20).add_hash_partitions("id", 2)
        a.drop_range_partition(10, 20).add_custom_range_partition(own)

    altered(client, "t", change)
    with pytest.raises(ConflictError, match="was altered during a write"):
        write.commit([staged])


def test_copies_and_backups_have_such_ranges(core: CoreTables):
    """Each increment restores to the partitioning of its time."""
    client, target = core.client(), core.root / "backups"
    table = create(client)
    table.insert(rows(range(5, 25), 1))
    made = [
        (kudulite.backup(table, target, content_hash=True), stored(table), table.partition_schema)
    ]

    def change(a: kudulite.TableAlterer) -> None:
        own = kudulite.RangePartition(10, 20).add_hash_partitions("day", 4)
        a.drop_range_partition(10, 20).add_custom_range_partition(own)
        a.add_custom_range_partition(kudulite.RangePartition(30, 40).add_hash_partitions("id", 6))

    table = altered(client, "t", change)
    table.upsert(rows(range(15, 35), 2))
    made.append((kudulite.backup(table, target), stored(table), table.partition_schema))
    table = altered(client, "t", lambda a: a.alter_column("id", rename_to="host"))
    table.delete([{"day": 33, "host": "h1"}])
    made.append((kudulite.backup(table, target), stored(table), table.partition_schema))
    assert [backup.kind for backup, *_ in made] == ["full", "incremental", "incremental"]
    for number, (backup, rows_then, partition) in enumerate(made):
        restored = kudulite.restore(target, client.root / f"r{number}", at=backup.id)
        assert stored(restored) == rows_then
        assert restored.partition_schema == partition
    for with_past in (True, False):
        table.copy_to(client.root / f"c{with_past}", with_past=with_past)
        copied = client.table(f"c{with_past}")
        assert (stored(copied), copied.partition_schema) == (stored(table), table.partition_schema)


def change_ranges(client: Client) -> None:
    """One range gets other hash partitions and loses its rows, and another one is added."""
    alterer = client.new_table_alterer(client.table("t")).drop_range_partition(10, 20)
    for low, buckets in ((10, 2), (30, 4)):
        own = kudulite.RangePartition(low, low + 10).add_hash_partitions(["day", "id"], buckets)
        alterer.add_custom_range_partition(own)
    alterer.alter()


@tiered("every", [8, 2], quick=1)
def test_a_process_killed_at_any_step_leaves_old_or_new_ranges(core: CoreTables, every: int):
    """With the rows of before in them, and those of the past; the next rows find their tablets."""
    base, steps, is_done = core.root / "base", 0, False
    table = create(Client(base, environment()))
    table.insert(rows(range(5, 25), 1))
    before, full = table.current_timestamp(), stored(table)
    fewer = [row for row in full if not 10 <= row[0] < 20]
    old = table.partition_schema
    while not is_done:
        root = core.root / f"{steps}"
        shutil.copytree(base, root)
        client = Client(root, environment(KillingStorage(steps, exits=True)))
        is_done = ran_to_its_end(lambda c=client: change_ranges(c), in_child=True)
        table = Client(root, environment()).table("t")
        is_new = table.partition_schema != old
        assert is_new or not is_done
        assert (stored(table), stored(table, before)) == (fewer if is_new else full, full)
        table.check().raise_if_bad()
        table.upsert(rows(range(5, 25), 2))
        assert stored(table) == [(day, host, 2) for day, host, _ in full]
        table.maintain(0, 0)
        assert len(list((table.path / "tablet").iterdir())) == len(
            table._store.newest().readable_tablets
        )
        shutil.rmtree(root)
        steps += every
    assert steps > 30


class RandomTable:
    """A table and a dictionary, changed together by chance."""

    def __init__(self, client: Client, seed: int) -> None:
        self.random = random.Random(seed)
        self.client = client
        self.table = create(client)
        self.rows: dict[tuple[int, str], int] = {}
        self.ranges: set[tuple[int, int]] = {(-100, 10), (10, 20), (20, 30)}
        self.past: list[tuple[int, dict]] = []

    def keys(self) -> list[tuple[int, str]]:
        """Some keys that a range covers."""
        days = [day for low, high in self.ranges for day in range(max(low, 0), high)]
        count = self.random.randint(1, 30)
        return [(self.random.choice(days), f"h{self.random.randrange(9)}") for _ in range(count)]

    def upsert(self) -> None:
        """A batch, in the log or in files."""
        chosen, value = dict.fromkeys(self.keys()), self.random.randrange(1000)
        self.table.upsert([{"day": d, "id": h, "v": value} for d, h in chosen])
        self.rows |= dict.fromkeys(chosen, value)

    def session(self) -> None:
        """Single operations."""
        session = self.client.new_session()
        for d, h in self.keys():
            if self.random.random() < 0.3:
                session.apply(self.table.new_delete_ignore({"day": d, "id": h}))
                self.rows.pop((d, h), None)
            else:
                value = self.random.randrange(1000)
                session.apply(self.table.new_upsert({"day": d, "id": h, "v": value}))
                self.rows[d, h] = value
        session.flush()

    def delete(self) -> None:
        """A batch of keys."""
        chosen = dict.fromkeys(self.keys())
        self.table.delete_ignore([{"day": d, "id": h} for d, h in chosen])
        for key in chosen:
            self.rows.pop(key, None)

    def alter(self) -> None:
        """A range is dropped, or added with other hash partitions, or both."""
        low = self.random.choice((10, 20, 30, 40))
        alterer = self.client.new_table_alterer(self.table)
        is_there = (low, low + 10) in self.ranges
        if is_there:
            alterer.drop_range_partition(low, low + 10)
            self.ranges.discard((low, low + 10))
            self.rows = {k: v for k, v in self.rows.items() if not low <= k[0] < low + 10}
        if not is_there or self.random.random() < 0.7:
            own = kudulite.RangePartition(low, low + 10)
            columns = self.random.choice((["id"], ["day"], ["id", "day"]))
            own.add_hash_partitions(columns, self.random.randint(2, 5), self.random.randrange(3))
            alterer.add_custom_range_partition(own)
            self.ranges.add((low, low + 10))
        self.table = alterer.alter()

    def restore(self) -> None:
        """The rows of a past moment that today's ranges cover become those of now."""
        if not self.past:
            return
        moment, rows_then = self.random.choice(self.past)
        covered = all(any(low <= d < high for low, high in self.ranges) for d, _ in rows_then)
        if covered:
            self.table.restore(moment)
            self.rows = dict(rows_then)

    def tidy(self) -> None:
        """Flush and compact."""
        self.random.choice((self.table.flush, self.table.compact, self.table.maintain))()

    def look(self) -> None:
        """Everything is as the dictionary has it, now and at past moments."""
        moment = self.table.current_timestamp()
        self.past.append((moment, dict(self.rows)))
        again = Client(self.client.root, self.client._environment).table("t")
        for at, expected in self.random.sample(self.past, min(3, len(self.past))) + self.past[-1:]:
            assert stored(again, at) == sorted((d, h, v) for (d, h), v in expected.items())
            for key in self.random.sample(sorted(expected), min(3, len(expected))):
                assert again.get(key, at=at)["v"] == expected[key]
                d, h = key
                found = again.scan(where=f"day = {d} AND id = '{h}'", at=at).to_pylist()
                assert [row["v"] for row in found] == [expected[key]]
        start, before = self.random.choice(self.past)
        found = {
            (row["day"], row["id"]): (row["_change_type"], row["v"])
            for row in again.changes(start, moment).to_arrow().to_pylist()
        }
        for key in before.keys() | self.rows.keys():
            old, new = before.get(key), self.rows.get(key)
            if old is None:
                assert found.pop(key) == ("insert", new)
            elif new is None:
                assert found.pop(key) == ("delete", old)
            elif old != new:
                assert found.pop(key) == ("update_postimage", new)
            elif key in found:
                assert found.pop(key) == ("update_postimage", new)
        assert not found


@tiered(("seed", "steps"), [(1, 9), *((seed, 60) for seed in range(2, 5))], quick=1)
def test_random_changes_are_those_of_a_dictionary(core: CoreTables, seed: int, steps: int):
    """Rows, past moments, lookups, pruned scans and changes."""
    machine = RandomTable(core.client(small_write_rows_max=seed % 2 * 20), seed)
    acts = (machine.upsert, machine.upsert, machine.session, machine.delete, machine.alter)
    for _ in range(steps):
        machine.random.choice((*acts, machine.tidy, machine.restore))()
        machine.look()
    every_reading(machine.table)
    every_reading(machine.table, at=machine.past[len(machine.past) // 2][0])
