"""The tail of a log as readers and writers find it, whatever happened between two steps of theirs.

Every process finds the same rows: without the lock or with it, after errors, deaths, alterations.
"""

import errno
import gc

import pytest

import kudulite
from kudulite.chain.version_chain import VersionChain
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.delta.delta_mem_store import DeltaMemStore
from kudulite.errors import StorageError
from kudulite.model.encoded_key import encode_key
from kudulite.rowset.memrowset import MemRowSet
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.names import LOG_FOLDER
from kudulite.storage.table_lock import TableLock
from kudulite.table import present
from kudulite.table.present import caught_up_memory, read_tablet
from kudulite.tablet.mem_stores import IN_MEMROWSET, MemStores
from tests.support.tables.core_tables import CoreTables, descriptors_below, stored


def create(client: Client) -> Table:
    """An empty table of one tablet."""
    columns = [kudulite.column("k", kudulite.int32), kudulite.column("v", kudulite.int32)]
    return client.create_table("t", kudulite.schema(columns, "k"))


@pytest.fixture
def table(core: CoreTables) -> Table:
    """An empty table."""
    return create(core.client())


def put(table: Table, *keys: int, value: int = 0) -> None:
    """Upsert rows through the log."""
    session = kudulite.Session()
    for key in keys:
        session.apply(table.new_upsert({"k": key, "v": value}))
    session.flush()


class RollFailure(LocalStorage):
    """Refuses, once, to make the name of a log's next segment durable."""

    is_armed = False

    def before(self, operation: str, path) -> None:
        """Fail when a segment has just got its name."""
        if self.is_armed and operation == "fsync" and path.name == LOG_FOLDER:
            self.is_armed = False
            raise StorageError(errno.EIO, f"cannot fsync {path}")


@pytest.mark.parametrize("writer_is_new", [False, True])
def test_nothing_is_appended_to_a_segment_that_another_follows(core, writer_is_new):
    """Also when whoever made the next one was stopped before he could say so."""
    storage = RollFailure()
    table = create(core.client(storage=storage))
    put(table, 1)
    storage.is_armed = True
    with pytest.raises(StorageError):
        table.flush()
    if writer_is_new:
        table = core.client().table("t")
    for key in (2, 3):
        put(table, key)
    assert table.flush() == 1
    put(table, 4)
    for reader in (table, core.client().table("t")):
        assert [key for key, _ in stored(reader)] == [1, 2, 3, 4]


def test_a_reader_of_an_older_version_follows_a_commit(core, table):
    """The log behind the commit changes rows that only the newer version has."""
    put(table, 1)
    entry = table._store.newest().tablets[0]
    other = core.client().table("t")
    other.upsert([{"k": 5, "v": 5}])
    put(other, 5, value=6)
    tablet = read_tablet(table._store, entry)
    assert tablet.live_row_count == 2


def test_a_reader_of_an_older_version_follows_a_flush_in_another_thread(core, table, monkeypatch):
    """The rows of the log are in rowsets then, and none are in memory."""
    put(table, 1)
    entry = table._store.newest().tablets[0]
    other, older = core.client().table("t"), core.client().table("t")._store
    older.newest()
    other.flush()
    seen = present._known_memory

    def found(store, *arguments):
        result = seen(store, *arguments)
        store.chain._seen = older.chain._seen  # as another thread may leave it, which was slower
        return result

    monkeypatch.setattr(present, "_known_memory", found)
    assert read_tablet(table._store, entry).live_row_count == 1


@pytest.mark.parametrize("step", ["at", "_seen_as"])
def test_an_older_version_never_takes_the_place_of_a_newer_one(core, table, monkeypatch, step: str):
    """Of two threads that look for the newest version, the slower one may have found less."""
    store, other = table._store, core.client().table("t")
    store.newest()
    other.upsert([{"k": 1, "v": 1}])
    slow = getattr(VersionChain, step)

    def overtaken(*arguments):
        found = slow(*arguments)
        monkeypatch.undo()
        other.upsert([{"k": 2, "v": 2}])
        assert store.newest().version == 3
        return found

    monkeypatch.setattr(VersionChain, step, overtaken)
    assert store.newest().version == 2
    assert store.chain.last_seen().version == 3


@pytest.mark.parametrize(
    ("owner", "step"),
    [(MemRowSet, "apply"), (DeltaMemStore, "append"), (MemStores, "_apply")],
)
def test_memory_that_an_interrupt_left_half_changed_is_made_again(
    core, table, monkeypatch, owner, step
):
    """Its rows are in the log: durable, and read from there."""
    table.upsert([{"k": 1, "v": 1}])  # a bulk write: a rowset
    put(table, 2)
    whole = getattr(owner, step)

    def interrupted(*arguments):
        monkeypatch.undo()
        whole(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, step, interrupted)
    put(table, 1, 3, value=9)
    with pytest.raises(KeyboardInterrupt):
        stored(table)  # the first that needs them in the stores
    assert stored(table) == [(1, 9), (2, 0), (3, 9)]
    put(table, 1, 3, 4, value=10)
    assert stored(table) == stored(core.client().table("t")) == [(1, 10), (2, 0), (3, 10), (4, 10)]


def test_an_interrupt_of_a_writer_leaves_no_record_in_memory_twice(core, table, monkeypatch):
    """The record is in the log; whether memory has taken it is not known."""
    table.upsert([{"k": 1, "v": 1}])
    put(table, 2)
    count = MemStores._count

    def interrupted(*arguments):
        monkeypatch.undo()
        count(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(MemStores, "_count", interrupted)
    with pytest.raises(KeyboardInterrupt):
        put(table, 1, 3, value=9)
    assert stored(table) == [(1, 9), (2, 0), (3, 9)]
    put(table, 3, value=10)
    assert stored(table) == stored(core.client().table("t")) == [(1, 9), (2, 0), (3, 10)]


def test_a_reader_who_is_faster_than_the_writer_takes_no_record_in_twice(table, monkeypatch):
    """The record is durable, and found in the log, before the writer has put it into memory."""
    table.upsert([{"k": k, "v": k} for k in (1, 2)])
    put(table, 3)
    lift = TableLock.advance_safe_timestamp

    def overtaken(lock, timestamp):
        monkeypatch.undo()
        assert table.get(4) == {"k": 4, "v": 7}
        lift(lock, timestamp)

    monkeypatch.setattr(TableLock, "advance_safe_timestamp", overtaken)
    session = kudulite.Session()
    session.apply(table.new_insert({"k": 4, "v": 7}))
    session.apply(table.new_delete({"k": 1}))
    session.flush()
    put(table, 5)
    for _ in range(2):
        assert stored(table) == [(2, 2), (3, 0), (4, 7), (5, 0)]
        assert table.statistics.live_row_count == 4
        table.flush()


def test_a_writer_and_a_reader_in_one_memory_do_not_disturb_each_other(table, monkeypatch):
    """The reader puts records into the stores while the writer looks keys up, or measures."""
    table.upsert([{"k": 1, "v": 1}])
    table.upsert([{"k": 2, "v": 2}])  # another rowset
    put(table, 1, value=5)
    memory = caught_up_memory(table._store, table._store.newest().tablets[0])[1]
    memory.tablet()
    put(table, 2, 3, value=5)

    class Overtaken(dict):
        def __contains__(self, key):
            found = super().__contains__(key)
            memory.tablet()
            return found

    memory._waiting_locations = Overtaken(memory._waiting_locations)
    keys = [encode_key([k], memory.schema.key_types) for k in (3, 2, 1)]
    assert memory.locate(keys)[0] == IN_MEMROWSET
    assert None not in memory.locate(keys)
    table.flush()
    put(table, 1, value=6)
    memory = caught_up_memory(table._store, table._store.newest().tablets[0])[1]
    memory.tablet()
    put(table, 2, value=6)
    size = DeltaMemStore.nbytes.fget
    overtaken = property(lambda store: (memory.tablet(), size(store))[1])
    monkeypatch.setattr(DeltaMemStore, "nbytes", overtaken)
    assert memory.nbytes > 0


def test_flushes_leave_no_descriptor_open(table):
    """The log's last segment is open for the next append only as long as its memory is used."""
    counts = []
    gc.freeze()  # six collections of all that earlier tests left would take seconds
    for key in range(6):
        put(table, key)
        table.flush()
        gc.collect()
        counts.append(descriptors_below(table.path))
    gc.unfreeze()
    assert counts[-1] == counts[1]
