"""A write in pieces: attempts, retries, aborts, application versions, and other processes."""

import pickle
import subprocess
import sys

import pyarrow as pa
import pytest

import kudulite
from kudulite.chain.manifest import Manifest
from kudulite.client import bulk_write
from kudulite.client.table import Table
from kudulite.errors import ConflictError, RowError, StorageError
from kudulite.storage.names import write_of
from kudulite.table.open_writes import OpenWrite
from kudulite.upkeep import garbage_collection
from kudulite.upkeep.garbage_collection import collect_garbage
from kudulite.writes.commit import Commit
from kudulite.writes.stager import Stager
from tests.support.tables.core_tables import CoreTables, files_below, referenced_files, stored


@pytest.fixture
def table(core: CoreTables) -> Table:
    """Three rows in two tablets."""
    columns = [kudulite.column("k", kudulite.int32), kudulite.column("v", kudulite.int32)]
    table = core.client().create_table(
        "t", kudulite.schema(columns, "k"), hash_partitions=[(["k"], 2)]
    )
    table.insert([{"k": k, "v": k} for k in range(3)])
    return table


def rows(*found: tuple) -> list[pa.RecordBatch]:
    """Rows as one batch."""
    keys, values = zip(*found, strict=True)
    return [pa.record_batch({"k": pa.array(keys, pa.int32()), "v": pa.array(values, pa.int32())})]


def staging(table: Table) -> list:
    """The records of writes, and their files in the tablets that nobody needs."""
    kept = referenced_files(table._store)
    in_tablets = [path for path in files_below(table.path / "tablet") if write_of(path.name)]
    return [*(table.path / "writes").rglob("*"), *(p for p in in_tablets if p not in kept)]


def test_nothing_is_visible_before_the_commit_and_all_at_it(table):
    """From one timestamp on; the record goes."""
    write = table.new_bulk_write()
    parts = [write.stage(rows((0, 10), (3, 30)), 0), write.stage(rows((4, 40)), 1)]
    assert len(stored(table)) == 3
    result = write.commit(parts)
    assert stored(table) == [(0, 10), (1, 1), (2, 2), (3, 30), (4, 40)]
    assert stored(table, result.timestamp - 1) == [(0, 0), (1, 1), (2, 2)]
    assert (result.inserted, result.updated, result.version) == (2, 1, 3)
    assert staging(table) == []


def test_only_the_attempts_that_are_handed_over_count(table):
    """A retried task, a speculative twin, a task that was killed in the middle."""
    write = table.new_bulk_write()
    write.stage(rows((0, 666), (9, 666)), 0)
    winner = write.stage(rows((0, 10)), 0)
    write.stage(rows((0, 777)), 0)

    def killed():
        yield from rows((1, 888))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write.stage(killed(), 1)
    write.commit([winner])
    assert stored(table) == [(0, 10), (1, 1), (2, 2)]
    assert staging(table)
    collect_garbage(table._store, 0)
    assert staging(table) == []


def test_of_a_key_in_several_tasks_the_later_task_wins(table):
    """By task index, whatever the order of staging and of handing over; later batches win too."""
    write = table.new_bulk_write()
    last = write.stage([*rows((0, 20), (7, 20)), *rows((7, 21))], 2)
    first = write.stage(rows((0, 10), (7, 10), (8, 10)), 1)
    result = write.commit([last, first])
    assert stored(table) == [(0, 20), (1, 1), (2, 2), (7, 21), (8, 10)]
    assert (result.inserted, result.updated) == (2, 4)


def test_inserts_of_one_key_in_two_tasks_are_refused(table):
    """Each task alone is right; together they are not."""
    write = table.new_bulk_write("insert")
    parts = [write.stage(rows((7, 1)), 0), write.stage(rows((7, 2), (8, 2)), 1)]
    with pytest.raises(RowError, match=r"'t': insert: 1 row refused: key already .*\(k\) = 7"):
        write.commit(parts)
    write.abort()
    assert (stored(table), staging(table)) == ([(0, 0), (1, 1), (2, 2)], [])


def test_a_write_without_rows_is_no_version(table):
    """No tasks, empty tasks, tasks of empty batches."""
    for parts in ([], [[]], [rows((1, 1))[0].slice(0, 0)]):
        write = table.new_bulk_write()
        result = write.commit([write.stage(p if isinstance(p, list) else [p]) for p in parts])
        assert (result.version, result.inserted, result.updated) == (2, 0, 0)
        assert stored(table, result.timestamp) == [(0, 0), (1, 1), (2, 2)]
    assert table.version == 2


def test_an_aborted_write_leaves_nothing_and_cannot_go_on(table):
    """Also when a task is in the middle of staging; a second abort is harmless."""
    before = files_below(table.path)
    write = table.new_bulk_write()
    part = write.stage(rows((0, 10)))

    def aborted_meanwhile():
        write.abort()
        yield from rows((1, 11))

    with pytest.raises((ConflictError, StorageError)):
        write.stage(aborted_meanwhile(), 1)
    write.abort()
    with pytest.raises(ConflictError, match="'t': write .* was aborted"):
        write.commit([part])
    assert files_below(table.path) == before
    assert staging(table) == []


def test_an_abort_while_the_commit_has_the_locks_ends_it(table, monkeypatch):
    """It is asked once more before it publishes; the abort cannot remove its files then."""
    monkeypatch.setattr(garbage_collection, "_ABORT_SECONDS", 0.01)
    before = files_below(table.path)
    write = table.new_bulk_write()
    part = write.stage(rows((0, 10)))
    check = Commit._check_overwritten

    def aborted(self: Commit, newest: Manifest) -> None:
        check(self, newest)
        write.abort()

    monkeypatch.setattr(Commit, "_check_overwritten", aborted)
    with pytest.raises(ConflictError, match="was aborted"):
        write.commit([part])
    assert stored(table) == [(0, 0), (1, 1), (2, 2)]
    collect_garbage(table._store)
    assert files_below(table.path) == before


@pytest.mark.parametrize("error", [None, RowError("a row"), KeyboardInterrupt()], ids=repr)
def test_a_task_that_ends_after_the_abort_removes_its_files(table, monkeypatch, error):
    """The abort could not see them. The task of a job that failed is interrupted, or fails, too."""
    before = files_below(table.path)
    write = table.new_bulk_write()
    original = Stager.stage

    def aborted_at_the_end(*arguments):
        staged = original(*arguments)
        monkeypatch.setattr(bulk_write, "collect_ended_writes", lambda *_: None)
        write.abort()
        monkeypatch.undo()
        if error is not None:
            raise error
        return staged

    monkeypatch.setattr(Stager, "stage", aborted_at_the_end)
    with pytest.raises(ConflictError if error is None else type(error)):
        write.stage(rows((0, 10), (9, 9)))
    assert files_below(table.path) == before


@pytest.mark.parametrize("key", [0, 9], ids=["an update", "an insert"])
def test_two_commits_of_one_write_at_once_are_one(table, monkeypatch, key):
    """The second one has the locks before the first one has ended the write."""
    write = table.new_bulk_write()
    part = write.stage(rows((key, 10)))
    with monkeypatch.context() as patch:
        patch.setattr(OpenWrite, "end", lambda _: None)
        write.commit([part])
    found, version = stored(table), table.version
    with pytest.raises(ConflictError, match="was committed already"):
        write.commit([part])
    assert (stored(table), table.version) == (found, version)
    assert table.check().problems == ()
    write.abort()
    assert stored(table) == found


def test_a_write_travels_between_processes(table):
    """Staged by another Python, from pickles of the write; committed here."""
    write = pickle.loads(pickle.dumps(table.new_bulk_write()))
    code = (
        "import sys, pickle, pyarrow as pa;"
        "write = pickle.load(sys.stdin.buffer);"
        "k = pa.array([5], pa.int32());"
        "part = write.stage([pa.record_batch({'k': k, 'v': k})], 3);"
        "sys.stdout.buffer.write(pickle.dumps(part))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(write), capture_output=True, check=True
    )
    part = pickle.loads(done.stdout)
    assert len(done.stdout) < 10_000
    write.commit([part])
    assert stored(table)[-1] == (5, 5)


def test_an_application_version_is_committed_once(table):
    """A stream's batch that is written again is skipped, and an older one too."""

    def write(app: str, version: int, value: int) -> kudulite.WriteResult:
        return table.upsert([{"k": 0, "v": value}], application_id=app, application_version=version)

    assert not write("a", 5, 50).skipped
    for version in (5, 4):
        result = write("a", version, 51)
        assert (result.skipped, result.updated, result.version) == (True, 0, 3)
    assert not write("b", 5, 52).skipped
    assert not write("a", 6, 53).skipped
    assert stored(table)[0] == (0, 53)
    assert staging(table) == []


def test_an_empty_batch_of_an_application_is_remembered(table):
    """Or its version would be written when it comes again with rows."""
    empty = table.arrow_schema.empty_table()
    table.upsert(empty, application_id="a", application_version=1)
    again = table.upsert([{"k": 0, "v": 9}], application_id="a", application_version=1)
    assert again.skipped
    assert stored(table)[0] == (0, 0)


def test_of_two_attempts_of_one_application_version_one_commits(table):
    """Staged side by side: the second finds the first committed."""
    writes = [table.new_bulk_write(application_id="a", application_version=1) for _ in range(2)]
    parts = [write.stage(rows((0, 10 + n))) for n, write in enumerate(writes)]
    results = [write.commit([part]) for write, part in zip(writes, parts, strict=True)]
    assert [result.skipped for result in results] == [False, True]
    assert stored(table)[0] == (0, 10)


def test_a_write_to_a_table_that_was_created_again_is_refused(core, table):
    """Its rows were resolved against another table."""
    write = table.new_bulk_write()
    part = write.stage(rows((0, 10)))
    client = core.client()
    schema = table.schema
    client.delete_table("t")
    client.create_table("t", schema)
    with pytest.raises(ConflictError, match="'t'"):
        write.commit([part])
    assert stored(client.table("t")) == []


def test_an_owner_has_one_write_at_a_time(table):
    """A new write removes the staged files of an earlier one of its owner, and no others."""
    old, other = table.new_bulk_write(owner="a"), table.new_bulk_write(owner="b")
    part, other_part = old.stage(rows((7, 7))), other.stage(rows((8, 8)))
    new = table.new_bulk_write(owner="a")
    with pytest.raises(ConflictError, match="was aborted, or removed"):
        old.commit([part])
    other.commit([other_part])
    new.commit([new.stage(rows((9, 9)))])
    assert stored(table)[3:] == [(8, 8), (9, 9)]
    assert staging(table) == []


def test_the_application_may_be_named_when_the_write_has_begun(table):
    """A version of it is committed once; rows that came with it are not refused the second time."""
    for number, is_skipped in ((1, False), (1, True), (2, False)):
        write = table.new_bulk_write("insert")
        named = pickle.loads(pickle.dumps(write)).for_application("stream", number)
        part = named.stage(rows((10 + number, 0)))
        assert named.commit([part]).skipped is is_skipped
    assert stored(table)[3:] == [(11, 0), (12, 0)]
    assert staging(table) == []
