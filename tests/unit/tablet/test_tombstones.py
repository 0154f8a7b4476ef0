"""An ordered delete leaves a tombstone. Older changes do not bring the row back."""

import shutil

import pyarrow as pa
import pytest

import kudulite
from kudulite.client.table import Table
from kudulite.errors import CorruptionError
from kudulite.tablet.superblock import Superblock
from kudulite.wal.segment import LOG_BEGIN, LogPosition
from tests.support.tables.core_tables import CoreTables, ManualClock, altered, files_below, stored

DAY = 24 * 3600
WEEK = 7 * DAY


@pytest.fixture
def clock() -> ManualClock:
    """The clock of the tests' tables."""
    return ManualClock()


@pytest.fixture
def table(core: CoreTables, clock: ManualClock) -> Table:
    """A table of one tablet: key k, a required column v, a nullable one n, the ordering seq."""
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("v", kudulite.string, nullable=False),
        kudulite.column("n", kudulite.int32),
        kudulite.column("seq", kudulite.int32),
    ]
    return core.client(clock=clock).create_table("t", kudulite.schema(columns, "k"))


def change(operation: str, key: int, seq: int, value: str | None = None) -> dict:
    """One change row; a delete has no cells."""
    is_delete = operation == "D"
    cell = None if is_delete else f"{key}@{seq}" if value is None else value
    return {"op": operation, "k": key, "v": cell, "n": None, "seq": seq}


def apply(table: Table, *changes: dict) -> kudulite.WriteResult:
    """Apply changes in one batch."""
    return table.apply(list(changes), ordering_column="seq")


def keys_of(table: Table) -> list[int]:
    """The keys that are there."""
    return [row[0] for row in stored(table)]


def superblocks(table: Table) -> list[Superblock]:
    """Those of the newest version."""
    store = table._store
    return [store.tablet(entry).superblock for entry in store.newest().tablets]


def tombstone_counts(table: Table) -> list[int]:
    """How many deletes each file has, oldest first."""
    return [meta.row_count for block in superblocks(table) for meta in block.tombstones]


def test_an_older_update_does_not_bring_a_deleted_row_back(table: Table):
    """A newer one does; its row then decides, and a delete that is older than it is dropped."""
    apply(table, change("I", 1, 1), change("I", 2, 1))
    apply(table, change("D", 1, 5))
    for seq in (1, 3, 5):
        assert apply(table, change("U", 1, seq)).ignored == 1
    table.compact()
    assert apply(table, change("I", 1, 4), change("U", 1, 2)).ignored == 2
    assert keys_of(table) == [2]
    assert apply(table, change("U", 1, 6)).inserted == 1
    assert apply(table, change("D", 1, 5)).ignored == 1
    assert stored(table) == [(1, "1@6", None, 6), (2, "2@1", None, 1)]


def test_a_delete_of_a_row_that_never_was_is_remembered_and_seen_by_nobody(table: Table):
    """No scan, count, lookup, change, history or statistic shows it."""
    table.upsert([{"k": 2, "v": "x"}])
    start = table.current_timestamp()
    result = apply(table, change("D", 1, 5))
    assert (result.deleted, result.ignored) == (0, 1)
    assert result.timestamp > start
    assert apply(table, change("U", 1, 5), change("I", 1, 4)).ignored == 2
    assert keys_of(table) == [2]
    assert table.scan().count() == table.get_many([(1,), (2,)]).num_rows == 1
    assert table.get(1) is None
    assert table.history(1).num_rows == 0
    assert table.changes(start, table.current_timestamp()).to_arrow().num_rows == 0
    assert table.scan(at=start).count() == 1
    assert superblocks(table)[0].rowsets[0].row_count == table.check().row_count == 1


def test_a_batch_that_changes_nothing_makes_no_version(table: Table):
    """A replay finds itself in the table, deletes included."""
    changes = [change("I", 1, 1), change("D", 2, 7), change("U", 3, 2), change("D", 3, 3)]
    apply(table, *changes)
    version = table.version
    for replayed in (changes, changes[::-1], changes[:2]):
        result = apply(table, *replayed)
        assert (result.version, result.ignored) == (version, len(replayed))
    assert keys_of(table) == [1]


def test_the_last_word_of_a_key_is_that_of_its_newest_delete(table: Table):
    """Deletes over several files, the higher value in the older one."""
    apply(table, change("D", 1, 9), change("D", 2, 1), change("D", 3, 1))
    table.upsert([{"k": 1, "v": "plain", "seq": 3}])
    assert apply(table, change("D", 1, 4)).deleted == 1
    assert apply(table, change("U", 1, 8)).ignored == 1
    apply(table, *[change("D", key, 2) for key in range(10, 30)])
    assert tombstone_counts(table) == [23]
    assert apply(table, change("U", 1, 9)).ignored == 1
    assert apply(table, change("U", 1, 10)).inserted == 1


def test_files_are_joined_as_they_come(table: Table):
    """Each is more than twice as long as all that came after it."""
    for key in range(60):
        apply(table, change("D", key, 1))
    counts = tombstone_counts(table)
    assert sum(counts) == 60
    assert all(count > 2 * sum(counts[at + 1 :]) for at, count in enumerate(counts))
    assert apply(table, *[change("U", key, 1) for key in range(60)]).ignored == 60
    assert apply(table, *[change("U", key, 2) for key in range(60)]).inserted == 60


def test_a_delete_is_remembered_for_the_retention_and_then_forgotten(table: Table, clock):
    """Maintenance drops what is behind the ancient history mark, and only that."""
    apply(table, change("D", 1, 5))
    clock.microseconds += (WEEK - DAY) * 1_000_000
    table.upsert([{"k": 9, "v": "x"}])
    table.maintain(grace_seconds=0)
    assert apply(table, change("U", 1, 4)).ignored == 1
    clock.microseconds += 2 * DAY * 1_000_000
    table.upsert([{"k": 9, "v": "y"}])
    assert tombstone_counts(table) == [1]
    table.maintain(grace_seconds=0)
    assert tombstone_counts(table) == []
    assert not [path for path in files_below(table.path) if path.name.startswith("tombstone")]
    assert apply(table, change("U", 1, 4)).inserted == 1


def test_a_newer_delete_takes_no_older_ones_past_the_retention(table: Table, clock):
    """Joining drops what is behind the mark; a file that is whole behind it just goes."""
    apply(table, change("D", 1, 5))
    clock.microseconds += (WEEK - DAY) * 1_000_000
    apply(table, change("D", 2, 5))
    assert tombstone_counts(table) == [2]
    clock.microseconds += 2 * DAY * 1_000_000
    apply(table, change("D", 3, 5))
    assert tombstone_counts(table) == [2]
    assert apply(table, change("U", 2, 5), change("U", 3, 5)).ignored == 2
    assert apply(table, change("U", 1, 4)).inserted == 1


@pytest.mark.parametrize("is_ancient", [False, True])
def test_the_mark_is_the_last_moment_whose_deletes_are_forgotten(table: Table, clock, is_ancient):
    """A tag holds the mark at the delete or at the moment before it."""
    table.upsert([{"k": 9, "v": "x"}])
    deleted = apply(table, change("D", 1, 5)).timestamp
    table.tag("held", deleted if is_ancient else deleted - 1)
    clock.microseconds += (WEEK + DAY) * 1_000_000
    table.upsert([{"k": 9, "v": "y"}])
    apply(table, change("D", 2, 5))
    assert tombstone_counts(table) == [1 if is_ancient else 2]
    table.maintain(grace_seconds=0)
    assert apply(table, change("U", 1, 4)).inserted == is_ancient


def test_writes_without_an_ordering_are_outside_of_it(table: Table):
    """A plain delete leaves nothing, a plain upsert revives, an overwrite forgets all deletes."""
    apply(table, change("I", 1, 5), change("I", 2, 5), change("D", 3, 5))
    table.delete([{"k": 1}])
    assert apply(table, change("U", 1, 4)).inserted == 1
    table.upsert([{"k": 3, "v": "plain", "seq": 2}])
    assert apply(table, change("U", 3, 3)).updated == 1
    apply(table, change("D", 2, 6))
    table.truncate()
    assert tombstone_counts(table) == []
    assert apply(table, change("U", 2, 1)).inserted == 1


def test_an_overwrite_by_changes_remembers_its_own_deletes(table: Table):
    """The changes are the table; what it held counts no more."""
    apply(table, change("I", 1, 9), change("D", 2, 9))
    changes = [change("U", 2, 1), change("D", 3, 4), change("U", 3, 3)]
    table.apply(changes, ordering_column="seq", overwrite=True)
    assert keys_of(table) == [2]
    assert apply(table, change("U", 3, 4)).ignored == 1


@pytest.mark.parametrize("is_delete_first", [False, True])
def test_a_commit_compares_with_what_came_since_it_was_staged(table: Table, is_delete_first: bool):
    """Staged before, committed after another ordered write of the same keys."""
    apply(table, change("I", 1, 1))
    delete, update = change("D", 1, 5), change("U", 1, 3)
    late, early = (update, delete) if is_delete_first else (delete, update)
    write = table.new_bulk_write(
        columns=["k", "v", "n", "seq"], operation_column="op", ordering_column="seq"
    )
    staged = write.stage([batch_of(table, late)])
    apply(table, early)
    apply(table, change("D", 7, 1))
    write.commit([staged])
    assert keys_of(table) == []
    assert apply(table, change("U", 1, 5), change("U", 7, 1)).ignored == 2


def batch_of(table: Table, row: dict):
    """A change row as Arrow, with the operation."""
    fields = [pa.field("op", pa.string()), *table.arrow_schema]
    return pa.Table.from_pylist([row], schema=pa.schema([f.with_nullable(True) for f in fields]))


def test_rows_in_the_log_count(table: Table, core: CoreTables):
    """A session's row that is not flushed yet is older or newer, too."""
    client = core.client(clock=table._store.environment.clock)
    session = client.new_session()
    other = client.table("t")
    session.apply(other.new_upsert({"k": 1, "v": "row", "seq": 5}))
    session.flush()
    assert apply(table, change("D", 1, 4)).ignored == 1
    assert apply(table, change("D", 1, 6)).deleted == 1
    session.apply(other.new_upsert({"k": 2, "v": "row", "seq": 5}))
    session.flush()
    table.flush()
    assert tombstone_counts(table) == [1]
    assert apply(table, change("U", 1, 5), change("U", 2, 4)).ignored == 2


def test_the_ordering_column_may_be_renamed_widened_and_dropped(core: CoreTables, clock):
    """Deletes are remembered by column; another column with the old name knows none of them."""
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("a", kudulite.int32),
        kudulite.column("b", kudulite.int32),
    ]
    client = core.client(clock=clock)
    table = client.create_table("t", kudulite.schema(columns, "k"))
    table.apply([{"op": "D", "k": 1, "a": 5}], ordering_column="a")
    assert table.apply([{"op": "U", "k": 1, "b": 4}], ordering_column="b").inserted == 1
    table.delete([{"k": 1}])
    table = altered(client, "t", lambda a: a.alter_column("a", "c").type(kudulite.int64))
    row = {"op": "U", "k": 1, "c": 5}
    assert table.apply([row], ordering_column="c").ignored == 1
    table.apply([{"op": "D", "k": 2, "c": 1 << 40}], ordering_column="c")
    assert table.apply([row], ordering_column="c").ignored == 1
    altered(client, "t", lambda a: a.drop_column("c"))
    table = altered(client, "t", lambda a: a.add_column("c", kudulite.int32))
    table.apply([{"op": "D", "k": 2, "c": 1}], ordering_column="c")
    assert tombstone_counts(table) == [1]
    assert table.apply([row], ordering_column="c").inserted == 1


def test_a_purge_takes_a_key_out_of_the_tombstones(table: Table):
    """Others stay; no file of the table names it any more."""
    apply(table, change("D", 1, 5), change("D", 2, 5))
    apply(table, *[change("D", key, 5) for key in range(3, 9)])
    before = files_below(table.path)
    table.purge([{"k": 1}])
    assert tombstone_counts(table) == [7]
    gone = [path.name for path in before - files_below(table.path)]
    assert [name for name in gone if name.startswith("tombstone")]
    assert apply(table, change("U", 2, 4)).ignored == 1
    assert apply(table, change("U", 1, 4)).inserted == 1


def test_a_copy_of_the_folder_remembers(table: Table, core: CoreTables):
    """As everything else a table knows."""
    apply(table, change("D", 1, 5))
    shutil.copytree(table.path, table.path.with_name("copy"))
    copy = core.client(clock=table._store.environment.clock).table("copy")
    assert apply(copy, change("U", 1, 4)).ignored == 1


def test_damaged_tombstones_are_found(table: Table, core: CoreTables):
    """By the check, and by an ordered write; plain reads and writes need none."""
    apply(table, change("D", 1, 5))
    (path,) = (p for p in files_below(table.path) if p.name.startswith("tombstone"))
    content = path.read_bytes()
    path.write_bytes(content[:-20] + b"\0" + content[-19:])
    fresh = core.client(clock=table._store.environment.clock).table("t")
    assert any(path.name in problem for problem in fresh.check().problems)
    with pytest.raises(CorruptionError, match=path.name):
        apply(fresh, change("U", 1, 4))
    fresh.upsert([{"k": 1, "v": "x"}])
    path.write_bytes(content)


def test_a_tombstone_that_has_changed_on_disk_is_damage(table: Table):
    """The value of its only delete, which no structure of the file can tell."""
    apply(table, change("D", 1, 0x1234567))
    (path,) = [path for path in files_below(table.path) if path.name.startswith("tombstone-")]
    content = path.read_bytes()
    at = content.index((0x1234567).to_bytes(4, "little"))
    path.write_bytes(content[:at] + b"\x68" + content[at + 1 :])
    with pytest.raises(CorruptionError, match=rf"{path.name}: CRC"):
        apply(table, change("U", 1, 5))
    path.write_bytes(content)
    assert apply(table, change("U", 1, 5)).ignored == 1


def test_a_superblock_of_format_version_2_is_read():
    """Version 2 had no tombstones, and the tablet had a log of its own."""
    content = b'{"format_version":2,"tablet_id":"a","wal_start":[3,40],"rowsets":[]}'
    block = Superblock("a", wal_start=LogPosition(3, 40))
    assert Superblock.decode(content, "s.json") == block
    assert (block.tombstones, block.log_start) == ((), LOG_BEGIN)


def test_deletes_alone_may_be_ordered(table: Table):
    """`delete` with an ordering column takes key and ordering, ignores the rest, and remembers."""
    apply(table, change("I", 1, 3), change("I", 2, 3))
    rows = [{"k": key, "v": "ignored", "seq": seq} for key, seq in ((1, 5), (2, 2), (3, 5))]
    result = table.delete(rows, ordering_column="seq")
    assert (result.deleted, result.ignored) == (1, 2)
    assert apply(table, change("U", 1, 4), change("U", 3, 4)).ignored == 2
    assert keys_of(table) == [2]
    with pytest.raises(kudulite.errors.OptionError, match="ordering column 'seq' must be"):
        table.delete([{"k": 2}], ordering_column="seq")
