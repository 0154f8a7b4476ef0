"""Computed writes: a key that changed after the rows were read fails the commit, no other does."""

import contextlib
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.errors import ConflictError, OptionError, RowError, TimestampError
from kudulite.tablet.operation import OPERATION_NAMES
from tests.support.tables.core_tables import CoreTables, ManualClock, altered, stored
from tests.support.tiers import tiered

SCHEMA = pa.schema(
    [pa.field("k", pa.int32(), nullable=False), ("v", pa.int64()), ("seq", pa.int64())]
)


@dataclass(frozen=True)
class Shop:
    """A client, and its table of two tablets with rows (k, 10 k, 0) for k in 0..9."""

    client: Client
    table: kudulite.Table

    def session(self, *changes: tuple[str, int, int]) -> None:
        """Write rows through the log; they stay in memory."""
        with self.client.new_session() as session:
            for kind, key, value in changes:
                row = {"k": key} if "delete" in kind else {"k": key, "v": value, "seq": 1}
                session.apply(getattr(self.table, f"new_{kind}")(row))
                session.flush()


def rows(*found: tuple[int, int]) -> pa.Table:
    """Rows as Arrow."""
    columns = [[k for k, _ in found], [v for _, v in found], [2] * len(found)]
    return pa.table(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA)


def open_shop(core: CoreTables, name: str = "root", **options) -> Shop:
    """The table, all rows on disk."""
    client = core.client(name, **options)
    table = client.create_table("t", SCHEMA, primary_key="k", hash_partitions=[(["k"], 2)])
    table.insert(rows(*((key, 10 * key) for key in range(10))))
    return Shop(client, table)


@pytest.fixture
def shop(core: CoreTables) -> Iterator[Shop]:
    """See `Shop`."""
    return open_shop(core)


def compacted(change: Callable[[Shop], object]) -> Callable[[Shop], None]:
    """A change, then a complete compaction."""

    def run(shop: Shop) -> None:
        change(shop)
        shop.table.compact()

    return run


def updated(shop: Shop) -> None:
    """By a bulk write, which leaves REDO."""
    shop.table.update(rows((3, 31)))


def replaced(shop: Shop) -> None:
    """Deleted and inserted again by two bulk writes."""
    shop.table.delete(rows((3, 0)))
    shop.table.insert(rows((3, 31)))


def updated_in_memory(shop: Shop) -> None:
    """A DeltaMemStore."""
    shop.session(("update", 3, 31))


def replaced_in_memory(shop: Shop) -> None:
    """A DeltaMemStore and a MemRowSet."""
    shop.session(("delete", 3, 0), ("insert", 3, 31))


def inserted(shop: Shop) -> None:
    """A key that was not there."""
    shop.table.insert(rows((20, 1)))


def inserted_in_memory(shop: Shop) -> None:
    """A MemRowSet with an older row, so that the key has an insert of its own in UNDO."""
    shop.session(("insert", 21, 1), ("insert", 20, 1), ("insert", 22, 1))


def came_and_went(shop: Shop) -> None:
    """A key that was not there is not there again."""
    shop.session(("insert", 20, 1), ("delete", 20, 0))


def deleted(shop: Shop) -> None:
    """By a bulk write."""
    shop.table.delete(rows((3, 0)))


def deleted_in_memory(shop: Shop) -> None:
    """By a session."""
    shop.session(("delete", 3, 0))


def flushed(shop: Shop) -> None:
    """Updated by a session, and flushed."""
    shop.session(("update", 3, 31))
    shop.table.flush()


def truncated(shop: Shop) -> None:
    """Every key, by the end of their rowsets."""
    shop.table.truncate()


CHANGES: dict[str, Callable[[Shop], object]] = {
    change.__name__: change
    for change in (
        updated,
        replaced_in_memory,
        inserted_in_memory,
        deleted,
        came_and_went,
        truncated,
        replaced,
        inserted,
        updated_in_memory,
        deleted_in_memory,
        flushed,
    )
}
CHANGES |= {
    f"{change.__name__}_compacted": compacted(change)
    for change in (updated, replaced, inserted, flushed, came_and_went, replaced_in_memory)
}
HARMLESS = {"compacted": compacted(lambda shop: None), **CHANGES}
HARMLESS |= {"nothing": lambda shop: None}
del HARMLESS["truncated"]
STEPS = ["commit", "begin", "stage"]


def written(
    shop: Shop, change: Callable[[Shop], object], step: str, found: pa.Table
) -> kudulite.WriteResult:
    """The result of a computed upsert; the change happens before its `step`."""

    def before(name: str) -> None:
        if name == step:
            change(shop)

    read_at = shop.table.current_timestamp()
    before("begin")
    write = shop.table.new_bulk_write("upsert", read_at=read_at)
    before("stage")
    staged = write.stage([found])
    before("commit")
    return write.commit([staged])


@tiered("step", STEPS, quick=1)
@pytest.mark.parametrize("change", CHANGES)
def test_a_key_that_changed_since_fails_the_write(shop, change, step):
    """Whenever the change happened, and wherever its row is; the error names the key."""
    expected = r"table 't': . rows? of the write changed .*: \(k\) = (3|20|3, 20)[;,]"
    with pytest.raises(ConflictError, match=expected):
        written(shop, CHANGES[change], step, rows((3, 301), (20, 201)))
    mine = {301, 201}
    assert mine.isdisjoint(value for _, value, _ in stored(shop.table))


@tiered("step", STEPS, quick=1)
@tiered("change", HARMLESS, quick=5)
def test_a_change_of_other_keys_is_none_of_its_business(shop, change, step):
    """Only keys of the write count, also where both keys are in one rowset."""
    result = written(shop, HARMLESS[change], step, rows((4, 401), (5, 501), (23, 231)))
    assert (result.inserted, result.updated) == (1, 2)
    found = {key: value for key, value, _ in stored(shop.table)}
    assert (found[4], found[5], found[23]) == (401, 501, 231)


@pytest.mark.parametrize("operation", OPERATION_NAMES)
def test_every_operation_is_checked(shop, operation):
    """Even where the change made the key absent, which is a RowError of other writes."""
    table, read_at = shop.table, shop.table.current_timestamp()
    keys = [(3, 301)] if "insert" not in operation else [(20, 201)]
    shop.session(("delete", 3, 0), ("insert", 20, 1))
    with pytest.raises(ConflictError, match=r"1 row of the write changed"):
        getattr(table, operation)(rows(*keys), read_at=read_at)


@pytest.mark.parametrize("ordering", [None, "seq"])
def test_mixed_and_ordered_writes_are_checked(shop, ordering):
    """Their operations are resolved at the commit."""
    table = shop.table
    batch = rows((3, 301), (4, 0)).append_column("op", pa.array(["U", "D"]))
    for change, is_refused in ((deleted_in_memory, True), (inserted, False)):
        read_at = table.current_timestamp()
        change(shop)
        if is_refused:
            with pytest.raises(ConflictError, match=r"\(k\) = 3; nothing"):
                table.apply(batch, ordering_column=ordering, read_at=read_at)
            shop.session(("insert", 3, 3))
        else:
            table.apply(batch, ordering_column=ordering, read_at=read_at)
    found = {key: value for key, value, _ in stored(table)}
    assert found[3] == 301 and 4 not in found


def test_a_computed_overwrite_is_refused_after_any_change(shop):
    """It deletes all rows, so it must have read them all; a compaction is no change."""
    table = shop.table
    for change in (updated, updated_in_memory, inserted):
        read_at = table.current_timestamp()
        change(shop)
        with pytest.raises(ConflictError, match=r"after the rows of this overwrite were read at"):
            table.overwrite(rows((1, 1)), read_at=read_at)
        assert len(stored(table)) >= 10
    read_at = table.current_timestamp()
    table.compact()
    table.overwrite(rows((1, 1)), read_at=read_at)
    assert stored(table) == [(1, 1, 2)]


def test_a_write_that_refused_a_row_has_changed_nothing(shop):
    """A key that an IGNORE operation ignored, and one hidden by the conflict check, stay as read.

    The hidden row was staged by a write that met an insert of the same key before its commit.
    """
    table = shop.table
    other = table.new_bulk_write("insert_ignore")
    staged = other.stage([rows((20, 9), (22, 9))])
    table.insert(rows((20, 1)))
    read_at = table.current_timestamp()
    assert other.commit([staged]).ignored == 1
    assert table.upsert(rows((20, 2)), read_at=read_at).updated == 1
    with pytest.raises(ConflictError, match=r"\(k\) = 22;"):
        table.upsert(rows((22, 2)), read_at=read_at)


def test_history_that_was_collected_since_fails_the_write(core):
    """It cannot be known which keys changed; the next attempt can."""
    clock = ManualClock()
    shop = open_shop(core, clock=clock)
    altered(shop.client, "t", lambda alterer: alterer.set_history_retention(1))
    read_at = shop.table.current_timestamp()
    clock.microseconds += 10_000_000
    shop.table.upsert(rows((7, 71)))
    clock.microseconds += 10_000_000
    write = shop.table.new_bulk_write("upsert", read_at=read_at)
    staged = write.stage([rows((3, 301))])
    shop.table.upsert(rows((8, 81)))
    clock.microseconds += 10_000_000
    shop.table.maintain(grace_seconds=3600)
    shop.table.compact()
    with pytest.raises(ConflictError, match="was collected up to .*; read them again"):
        write.commit([staged])
    assert shop.table.upsert(rows((3, 301)), read_at=shop.table.current_timestamp()).updated == 1


def test_a_moment_ahead_of_the_clock_is_refused(shop):
    """As for a scan."""
    with pytest.raises(TimestampError, match="ahead of the clock"):
        shop.table.upsert(rows((3, 301)), read_at="2099-01-01T00:00:00Z")
    with pytest.raises(OptionError, match="read_at"):
        shop.table.upsert(rows((3, 301)), read_as_of="2099-01-01T00:00:00Z")


def test_no_increment_is_lost(core):
    """Threads that read rows, add one, and write at the moment of the read; some by sessions."""
    shop = open_shop(core, small_write_rows_max=1000)
    table, conflicts = shop.table, []

    def add_one(count: int) -> None:
        while count:
            scan = table.scan(where=table["k"] < 3)
            read = scan.to_arrow()
            more = read.set_column(1, "v", pc.add(read["v"], 1))
            try:
                table.update(more, read_at=scan.timestamp)
                count -= 1
            except ConflictError:
                conflicts.append(1)

    def disturb() -> None:
        for number in range(5):
            shop.session(("upsert", 9, number), ("insert", 100 + number, 0))
            table.compact() if number == 4 else table.flush()

    threads = [threading.Thread(target=add_one, args=(4,)) for _ in range(3)]
    threads.append(threading.Thread(target=disturb))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {key: value for key, value, _ in stored(table)}
    assert [found[key] for key in range(3)] == [12, 22, 32]


@tiered("seed", range(20))
def test_a_write_fails_exactly_when_one_of_its_keys_changed(core, seed):
    """Random changes of others, in files and in memory, flushed and compacted, against a set."""
    choose = random.Random(seed)
    shop = open_shop(core, small_write_rows_max=choose.choice([0, 1000]))
    table, live = shop.table, set(range(10))
    for _ in range(8):
        read_at, changed = table.current_timestamp(), set()
        write, staged = None, None
        keys = choose.sample(range(16), choose.randint(1, 4))
        for _ in range(choose.randint(0, 4)):
            if write is None and choose.random() < 0.3:
                write = table.new_bulk_write("upsert", read_at=read_at)
            elif write is not None and staged is None and choose.random() < 0.5:
                with contextlib.suppress(ConflictError):
                    staged = write.stage([rows(*((key, seed) for key in keys))])
            key, kind = (
                choose.randrange(16),
                choose.choice(["insert", "update", "delete", "upsert"]),
            )
            takes = {"insert": key not in live, "upsert": True}.get(kind, key in live)
            if takes:
                changed.add(key)
                (live.discard if kind == "delete" else live.add)(key)
            operation = kind if kind == "upsert" else f"{kind}_ignore"
            if choose.random() < 0.5:
                shop.session((operation, key, choose.randrange(99)))
            else:
                getattr(table, operation)(rows((key, choose.randrange(99))))
            choose.choice([table.flush, table.compact, lambda: None, lambda: None])()
        write = write or table.new_bulk_write("upsert", read_at=read_at)
        try:
            staged = staged or write.stage([rows(*((key, seed) for key in keys))])
            write.commit([staged])
            assert changed.isdisjoint(keys), (seed, changed, keys)
            live.update(keys)
        except ConflictError:
            assert not changed.isdisjoint(keys), (seed, changed, keys)
            write.abort()
    assert {key for key, _, _ in stored(table)} == live


EVERY_TYPE = pa.schema(
    [
        pa.field("k", pa.int32(), nullable=False),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("d", pa.decimal128(30, 2)),
        ("l", pa.list_(pa.float64())),
        ("t", pa.list_(pa.string())),
    ]
)
# Pairs of cells that differ, by column; each may also be NULL.
CELLS = {
    "x": (0.0, -0.0, float("nan"), 1.5),
    "f": (0.0, -0.0, float("nan"), 1.5),
    "s": ("", "a", "b"),
    "b": (b"", b"a", b"\0"),
    "d": (Decimal("0.00"), Decimal("1.50"), Decimal("-1.50")),
    "l": ([], [None], [0.0], [-0.0], [float("nan")], [0.0, 1.0]),
    "t": ([], [None], [""], ["a", "b"], ["a", "c"]),
}


def updated_cells(staged: kudulite.StagedTask) -> int:
    """How many cells the staged files of a task set."""
    deltas = [delta for part in staged.tablets for delta in part.deltas]
    return sum(sum(delta.meta.update_counts.values()) for delta in deltas)


def test_a_computed_update_writes_only_the_cells_that_differ(core):
    """Whole rows of every pair of cells, NULL included: floats by their bits, lists by theirs."""
    table = core.client().create_table("t", EVERY_TYPE, primary_key="k", hash_partitions=[])
    for name, values in CELLS.items():
        pairs = list(itertools.product((None, *values), repeat=2))
        keys = range(len(pairs))
        both = [{"k": key, "s": "kept", name: old} for key, (old, _) in enumerate(pairs)]
        table.overwrite(pa.Table.from_pylist(both, EVERY_TYPE))
        rows = [{"k": key, "s": "kept", name: new} for key, (_, new) in enumerate(pairs)]
        if name == "s":
            rows = [{**row, name: new} for row, (_, new) in zip(rows, pairs, strict=True)]
        write = table.new_bulk_write("update", read_at=table.current_timestamp())
        staged = write.stage([pa.Table.from_pylist(rows, EVERY_TYPE)])
        assert updated_cells(staged) == len(pairs) - len(values) - 1, name
        assert write.commit([staged]).updated == len(pairs)
        found = [row[name] for row in table.scan(columns=["k", name], ordered=True).to_pylist()]
        assert list(map(repr, found)) == [repr(pairs[key][1]) for key in keys], name


def test_rows_that_do_not_differ_make_no_version(shop):
    """They count as updated, and an unequal one beside them is the only change."""
    table = shop.table
    same = rows((3, 30), (4, 40))
    table.flush()
    before = table.version
    assert table.update(same, read_at=table.current_timestamp()).updated == 2
    assert table.version == before
    moment = table.current_timestamp()
    both = rows((3, 31), (4, 40))
    assert table.update(both, read_at=moment).updated == 2
    assert [row["k"] for row in table.changes(moment).to_pylist()] == [3]


def test_a_computed_update_may_repeat_an_immutable_cell(core):
    """As it is; another value is refused, and so is one of a key that the write has twice."""
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("i", kudulite.string, mutable=False),
        kudulite.column("m", kudulite.string),
    ]
    table = core.client().create_table("t", kudulite.schema(columns, "k"), hash_partitions=[])
    old = [{"k": k, "i": "i", "m": "m"} for k in range(3)]
    table.insert([*old, {"k": 3, "i": None, "m": "m"}])
    new = [{**row, "m": "n"} for row in table.scan(ordered=True).to_pylist()]
    for operation in ("update", "upsert"):
        read_at = table.current_timestamp()
        for bad in ([{**new[0], "i": "j"}], [{**new[3], "i": "i"}], [new[0], new[0]]):
            with pytest.raises(RowError, match="immutable"):
                getattr(table, operation)([*bad, *new[1:3]], read_at=read_at)
        assert getattr(table, operation)(new, read_at=read_at).updated == 4
        assert table.scan(ordered=True).to_pylist() == new
        new = [{**row, "m": operation} for row in new]
    table.upsert([*new, {"k": 4, "i": "other", "m": "m"}], read_at=table.current_timestamp())
    assert len(table) == 5


@tiered("seed", range(30))
def test_repeated_keys_of_a_computed_write_apply_in_order(core, seed):
    """In one task and in several: a later row that is as it was undoes an earlier one."""
    choose = random.Random(seed)
    table = open_shop(core).table
    model = {key: (10 * key, 2) for key in range(10)}
    for _ in range(6):
        operation = choose.choice(["update_ignore", "upsert"])
        write = table.new_bulk_write(operation, read_at=table.current_timestamp())
        staged, after = [], dict(model)
        for task in range(choose.randint(1, 3)):
            found = []
            for key in choose.choices(range(12), k=choose.randint(1, 6)):
                row = choose.choice([model.get(key, (0, 0)), (10 * key, 2), (10 * key, 1)])
                found.append((key, *row))
                if key in model or operation == "upsert":
                    after[key] = row
            columns = dict(zip(SCHEMA.names, zip(*found, strict=True), strict=True))
            staged.append(write.stage([pa.table(columns, schema=SCHEMA)], task))
        write.commit(staged)
        model = after
        assert stored(table) == [(key, *model[key]) for key in sorted(model)], seed
        choose.choice([table.compact, table.flush, lambda: None])()


def merged(table: kudulite.Table, *tasks: list[tuple[str, int, int]]) -> kudulite.WriteResult:
    """The result of a MERGE with the operations, keys and values of each task."""
    fields = [*SCHEMA, pa.field("op", pa.string())]
    write = table.new_bulk_write(
        columns=SCHEMA.names, operation_column="op", read_at=table.current_timestamp()
    ).merging()
    staged = []
    for number, found in enumerate(tasks):
        cells = [(key, value, 2, operation) for operation, key, value in found]
        columns = [list(column) for column in zip(*cells, strict=True)]
        batch = pa.table(columns, schema=pa.schema(fields))
        staged.append(write.stage([batch], number))
        assert not staged[-1].operations, "the task has resolved them"
    return write.commit(staged)


@tiered("seed", range(30))
def test_a_merge_is_resolved_by_its_tasks(core, seed):
    """Random operations of keys that are each in one task; deletes may be in two."""
    choose = random.Random(seed)
    table = open_shop(core).table
    model = {key: 10 * key for key in range(10)}
    for _ in range(6):
        tasks: list[list[tuple[str, int, int]]] = [[] for _ in range(3)]
        for key in choose.sample(range(16), 8):
            value = choose.choice([10 * key, 7])
            if key not in model:
                operation = "insert"
                model[key] = value
            elif choose.random() < 0.5:
                operation = choose.choice(["update", "update_ignore"])
                model[key] = value
            else:
                operation = "delete_ignore"
                del model[key]
            count = choose.randint(1, 2) if operation == "delete_ignore" else 1
            for task in choose.choices(tasks, k=count):
                task.append((operation, key, value))
        merged(table, *filter(None, tasks))
        assert [(k, v) for k, v, _ in stored(table)] == sorted(model.items()), seed
        choose.choice([table.compact, table.flush, lambda: None])()


@pytest.mark.parametrize(
    "tasks",
    [
        [[("insert", 20, 1), ("insert", 20, 2)]],
        [[("insert", 20, 1), ("insert", 21, 1)], [("insert", 20, 1)]],
        [[("insert", 3, 1)]],
        [[("delete_ignore", 3, 0), ("insert", 3, 1)]],
        [[("insert", 3, 1)], [("delete_ignore", 3, 0)]],
        [[("delete_ignore", 3, 0)], [("update", 4, 1), ("insert", 3, 1)]],
    ],
)
def test_a_merge_that_inserts_a_key_that_is_there_writes_nothing(shop, tasks):
    """Or a key twice, in one task or in two, in any order."""
    before = stored(shop.table)
    with pytest.raises(RowError, match="key already present"):
        merged(shop.table, *tasks)
    assert stored(shop.table) == before


def test_a_merge_has_operations_of_its_own(shop):
    """Operations that SQL's MERGE does not have are refused."""
    for operation in ("upsert", "insert_ignore", "delete", "D"):
        with pytest.raises(OptionError, match="a MERGE has no operation .*; known: insert, update"):
            merged(shop.table, [(operation, 3, 1)])


@tiered("seed", range(30))
def test_a_merge_of_one_operation_changes_a_row_once(core, seed):
    """Two rows of one key are refused if they change its row, in one task or in several."""
    choose = random.Random(seed)
    table = open_shop(core).table
    model = {key: 10 * key for key in range(10)}
    for _ in range(8):
        operation = choose.choice(["upsert", "update_ignore", "delete_ignore"])
        write = table.new_bulk_write(operation, read_at=table.current_timestamp()).merging()
        keys = choose.choices(range(14), k=choose.randint(1, 5))
        changed = {key for key in keys if key in model or operation == "upsert"}
        tasks: list[list[tuple[int, int]]] = [[] for _ in range(2)]
        for key in keys:
            choose.choice(tasks).append((key, choose.choice([10 * key, 7])))
        given = [rows(*found) for found in tasks if found]
        if operation != "delete_ignore" and any(keys.count(key) > 1 for key in changed):
            repeated = {key for key in changed if keys.count(key) > 1}
            message = "more than one source row" if repeated & model.keys() else "already present"
            with pytest.raises(RowError, match=message):
                write.commit([write.stage([batch], at) for at, batch in enumerate(given)])
            write.abort()
        else:
            write.commit([write.stage([batch], at) for at, batch in enumerate(given)])
            new = {key: value for found in tasks for key, value in found if key in changed}
            model |= new
            if operation == "delete_ignore":
                model = {key: value for key, value in model.items() if key not in new}
        assert [(k, v) for k, v, _ in stored(table)] == sorted(model.items()), seed
        choose.choice([table.compact, table.flush, lambda: None])()


@pytest.mark.parametrize("operation", ["update_ignore", "delete_ignore"])
def test_a_merge_ignores_keys_that_no_range_covers(core, operation):
    """No row of them is there; an upsert of one is refused."""
    bounds = {"columns": ["k"], "bounds": [[0, 5], [5, 10]]}
    table = core.client("root").create_table("r", SCHEMA, primary_key="k", range_partitions=bounds)
    table.insert(rows((1, 10), (7, 70)))
    batch = rows((7, 1), (50, 2), (1, 3), (-1, 4), (2, 5))
    write = table.new_bulk_write(operation, read_at=table.current_timestamp()).merging()
    write.commit([write.stage([batch])])
    left = [(1, 3, 2), (7, 1, 2)] if operation == "update_ignore" else []
    assert stored(table) == left
    write = table.new_bulk_write("upsert", read_at=table.current_timestamp()).merging()
    with pytest.raises(RowError, match="no range partition covers the key"):
        write.stage([batch])
    write.abort()
