"""Looking after a table: the rows and their past stay, what reads pay for goes."""

import errno
import logging
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from kudulite.errors import StorageError, UsageError
from kudulite.storage.local_storage import LocalSink, LocalStorage
from kudulite.storage.storage_error import storage_error
from tests.support.doubles.planned_work import Planned
from tests.support.tables.core_tables import CoreTables, ManualClock, in_order, stored

SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int32()), ("w", pa.int32())])
DAY = 24 * 3600 * 1_000_000


def rows(keys, value: int) -> pa.Table:
    """Rows of these keys with one value."""
    keys = list(keys)
    return pa.table({"k": keys, "v": [value] * len(keys), "w": keys}, SCHEMA)


def neglected(core: CoreTables, **options):
    """A table of two tablets with a past, and its rows at each of its moments."""
    client = core.client(clock=ManualClock(), small_write_rows_max=50, **options)
    table = client.create_table("t", SCHEMA, primary_key="k", hash_partitions=[("k", 2)])
    moments = {}
    for step in range(1, 9):
        table._store.environment.clock.microseconds += 1000
        if step % 4 == 0:
            table.delete_ignore(rows(range(step, 400, 16), 0).select(["k"]))
        table.upsert(rows(range(step % 5, 400, 5), step))
        table.upsert(rows([1000 + step], step))  # in a log
        now = table.current_timestamp()
        moments[now] = stored(table, now)
    return table, moments


def expect_same(table, moments) -> None:
    """Every moment reads as before."""
    for moment, expected in moments.items():
        assert stored(table, moment) == expected


@pytest.mark.parametrize("work", ["maintain", "compact"])
def test_upkeep_changes_no_moment_and_a_second_one_finds_nothing(core: CoreTables, work: str):
    """Rowsets become one for each tablet, all updates base data."""
    table, moments = neglected(core)
    assert table.statistics.rowset_height > 2
    done = getattr(table, work)()
    assert done.flushed_tablet_count >= 1 and len(done.operations) >= 2
    expect_same(table, moments)
    figures = table.statistics
    assert (figures.rowset_count, figures.rowset_height) == (2, 1.0)
    version = table.version
    assert getattr(table, work)().operations == ()
    assert table.version == version


def test_what_a_column_compaction_is_for(core: CoreTables):
    """One column is updated over and over: it becomes base data, history stays."""
    client = core.client(clock=ManualClock())
    table = client.create_table("t", SCHEMA, primary_key="k")
    table.insert(rows(range(60_000), 0))
    moments = {table.current_timestamp(): stored(table)}
    values = [7919 * key % 2**31 for key in range(40_000)]  # such as do not compress
    table.update(pa.table({"k": range(40_000), "v": values}, pa.schema(list(SCHEMA)[:2])))
    kinds = [type(done.operation).__name__ for done in table.maintain().operations]
    assert kinds == ["CompactColumns"]
    assert (table.statistics.redo_file_count, table.statistics.undo_file_count) == (0, 1)
    expect_same(table, moments)


def test_history_goes_when_the_retention_is_over(core: CoreTables):
    """UNDO, rows that were deleted, and files that nobody refers to."""
    table, _ = neglected(core)
    before = stored(table)
    table.compact()
    clock = table._store.environment.clock
    assert table.statistics.undo_bytes > 0 and table.statistics.dead_row_count >= 0
    for _ in range(2):
        clock.microseconds += 30 * DAY
        table.upsert(rows([5000], 1))
    done = table.maintain(0, 0)
    kinds = [type(one.operation).__name__ for one in done.operations]
    assert "CollectHistory" in kinds or "CompactRowSets" in kinds
    figures = table.statistics
    assert (figures.ancient_bytes, figures.superseded_bytes) == (0, 0)
    assert in_order([*before, (5000, 1, 5000)]) == stored(table)


def test_maintain_of_some_tablets_leaves_the_others(core: CoreTables):
    """As a task of a larger job; no garbage is collected."""
    table, moments = neglected(core)
    first, second = table.tablet_ids
    done = table.maintain(0, 0, tablet_ids=[second])
    assert {one.tablet_id for one in done.operations} == {second}
    assert done.garbage.file_count == 0
    assert {one.tablet_id for one in table.maintain().operations} == {first}
    expect_same(table, moments)
    with pytest.raises(UsageError, match="has no tablet 'x'"):
        table.maintain(tablet_ids=["x"])


def test_writers_that_maintain_have_it_done_behind_their_back(core: CoreTables):
    """The scheduled work itself, on what the commits have left."""
    maintenance = Planned()
    table, moments = neglected(core, is_maintaining=True, maintenance=maintenance)
    for _, work, _ in maintenance.pieces:
        work()
    assert table.statistics.rowset_height == 1.0
    expect_same(table, moments)


def test_two_maintainers_and_a_writer_at_once(core: CoreTables):
    """All of them in threads of one process: nothing is lost, and all end."""
    table, moments = neglected(core)
    other = core.client(clock=table._store.environment.clock).table("t")
    errors: list[BaseException] = []
    written = []

    def attempt(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    def write():
        for step in range(5):
            table.upsert(rows(range(step, 400, 50), 100 + step))
            written.append(step)

    threads = [
        threading.Thread(target=attempt, args=(work,))
        for work in (table.maintain, write, other.maintain)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and written == [0, 1, 2, 3, 4]
    expect_same(table, moments)
    values = dict(row[:2] for row in stored(table))
    assert all(values[k] == 100 + step for step in range(5) for k in range(step, 400, 50))


def test_statistics_have_the_rows_and_bytes_of_the_log(core: CoreTables):
    """Until they are flushed; a new row and a changed one count."""
    table = core.client().create_table("t", SCHEMA, primary_key="k")
    table.insert(rows(range(100), 0))
    table.flush()
    before = table.statistics
    session = core.client().new_session()
    for key in (5, 1000):
        session.apply(table.new_upsert({"k": key, "v": 7}))
    session.flush()
    figures = table.statistics
    assert (before.unflushed_row_count, figures.unflushed_row_count) == (0, 2)
    assert figures.log_bytes > before.log_bytes
    table.flush()
    assert table.statistics.unflushed_row_count == 0


def test_each_operation_is_a_line_in_the_log_of_the_process(core: CoreTables, caplog):
    """With the table, the tablet, the operation, its time and its bytes."""
    table, _ = neglected(core)
    with caplog.at_level(logging.INFO, logger="kudulite"):
        done = table.maintain()
    lines = [line for line in caplog.messages if "rowsets" in line]
    assert len(lines) == len(done.operations) > 1
    for line, performed in zip(lines, done.operations, strict=True):
        label, result = performed.operation.label, performed.result
        assert f"table 't', tablet {performed.tablet_id}: {label} took" in line
        assert f"wrote {result.bytes_written} bytes; rowsets {result.rowset_count_before}" in line


class FullStorage(LocalStorage):
    """A disk with a few bytes left."""

    free: int | None = 100

    def free_bytes(self, folder: Path) -> int | None:
        """Return the bytes that are left."""
        return self.free


def test_a_merge_that_would_fill_the_disk_does_not_begin(core: CoreTables, caplog):
    """`maintain` does all other work. It is tried where the free space is not known."""
    disk = FullStorage()
    table, moments = neglected(core, storage=disk)
    with pytest.raises(
        StorageError, match=r"'t': the merge of .+ rowsets .* 100 are free; nothing"
    ):
        table.compact()
    with caplog.at_level(logging.WARNING, logger="kudulite"):
        done = table.maintain()
    assert "100 are free" in caplog.text
    assert not any("merging" in performed.operation.label for performed in done.operations)
    expect_same(table, moments)
    disk.free = None
    assert table.compact().operations
    expect_same(table, moments)


class FullDisk(LocalStorage):
    """While `is_full`, no file can be made."""

    is_full = False

    def open_sink(self, path: Path) -> LocalSink:
        """Create a new file, or raise StorageError."""
        if self.is_full:
            raise storage_error("create", path, OSError(errno.ENOSPC, ""), is_unchanged=True)
        return super().open_sink(path)


def test_maintenance_of_a_full_disk_collects_garbage(core: CoreTables):
    """Old files of the table may have filled the disk. Rows and moments stay."""
    storage = FullDisk()
    table, moments = neglected(core, storage=storage)
    table.compact()
    table.upsert(rows([5000], 1))  # in a log, to be flushed
    moments[table.current_timestamp()] = stored(table)
    assert table.statistics.superseded_bytes > 0
    storage.is_full = True
    with pytest.raises(StorageError, match="No space left"):
        table.maintain(grace_seconds=0)
    assert table.statistics.superseded_bytes == 0
    expect_same(table, moments)
    storage.is_full = False
    assert table.maintain().flushed_tablet_count == 1
    expect_same(table, moments)


@pytest.mark.parametrize("seconds", [-1, float("-inf"), float("nan"), "3600", None])
@pytest.mark.parametrize("name", ["grace_seconds", "staging_grace_seconds"])
def test_a_grace_time_is_a_number_of_seconds(core: CoreTables, name: str, seconds: object):
    """Of another one nothing is flushed, compacted or removed."""
    table, _ = neglected(core)
    table.compact()
    before = sorted(table.path.rglob("*"))
    with pytest.raises(UsageError, match=f"table 't': {name}=.*: expected a number of seconds"):
        table.maintain(**{name: seconds})
    assert sorted(table.path.rglob("*")) == before
    table.maintain(**{name: float("inf")})


def test_a_collection_leaves_strangers_beside_the_tablets(core: CoreTables):
    """A folder of a file server, a file of an operator; a tablet that no version has goes."""
    table = core.client().create_table("t", SCHEMA, primary_key="k")
    tablets = table.path / "tablet"
    for name in (".snapshot", "lost+found", "0" * 32):
        (tablets / name).mkdir()
        (tablets / name / "file").write_bytes(b"x")
    (tablets / "notes.txt").write_bytes(b"x")
    table.maintain(grace_seconds=0)
    left = {path.name for path in tablets.iterdir()}
    assert left == {*table.tablet_ids, ".snapshot", "lost+found", "notes.txt"}
