"""A compaction is built beside readers and writers; no reader can tell, now or in the past."""

import itertools
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from kudulite.client.table import Table
from kudulite.errors import TimestampError
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.table.table_store import TableStore
from kudulite.tablet.maintenance_policy import (
    CollectHistory,
    CompactColumns,
    CompactDeltas,
    CompactRowSets,
    MaintenanceOperation,
)
from kudulite.upkeep.compaction import OperationResult, run_operation
from kudulite.upkeep.garbage_collection import collect_garbage
from tests.support.tables.core_tables import (
    CoreTables,
    ManualClock,
    environment,
    files_below,
    stored,
)
from tests.support.tables.row_writes import entry_of, op, store_of, write
from tests.support.tiers import tiered

Versions = dict[int, list[tuple]]
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("w", pa.string())])
ROWS = 6


def rows(keys: range | list[int], v: int, w: str = "") -> pa.Table:
    """Rows of all three columns."""
    values = [{"k": k, "v": v + k, "w": f"{w}{k}"} for k in keys]
    return pa.Table.from_pylist(values, schema=SCHEMA)


class History:
    """One tablet of three rowsets with deltas on all of them, and what each moment showed."""

    def __init__(self, core: CoreTables, **options: object) -> None:
        self.client = core.client(**options)
        self.table = self.client.create_table("t", SCHEMA, primary_key=["k"])
        self.versions: Versions = {}
        for step in (
            lambda: self.table.insert(rows(range(0, 2 * ROWS, 2), 0, "a")),
            lambda: self.table.insert(rows(range(1, 2 * ROWS, 2), 0, "b")),
            lambda: self.table.update(rows([0, 1, 2, 5], 100).select(["k", "v"])),
            lambda: self.table.delete(rows([2, 3], 0).select(["k"])),
            lambda: self.table.upsert(rows([2, 4, 40], 200, "c")),
            lambda: self.table.update(rows([0, 2, 7], 300, "d").select(["k", "w"])),
        ):
            self.remember(step().timestamp)

    def remember(self, timestamp: int) -> None:
        """Remember what a moment and the one before it show."""
        for moment in (timestamp - 1, timestamp):
            self.versions[moment] = stored(self.table, moment)

    def other(self, **options: object) -> Table:
        """The table of another process, which has seen nothing."""
        parts = environment(clock=store_of(self.table).environment.clock, **options)
        return Table(TableStore(self.table.path, parts))

    def check(self) -> None:
        """The past is as it was, for this client and for one that has seen nothing."""
        for table in (self.table, self.other()):
            assert {at: stored(table, at) for at in self.versions} == self.versions
        self.table.check().raise_if_bad()

    @property
    def rowsets(self) -> list[RowSetMeta]:
        """The rowsets of the newest superblock."""
        store = store_of(self.table)
        return list(store.tablet(entry_of(self.table)).superblock.rowsets)

    def run(self, operation: MaintenanceOperation, hook: Callable[[str], None] | None = None):
        """Run an operation on the one tablet."""
        store = store_of(self.table)
        hooks = {} if hook is None else {"hook": hook}
        return run_operation(store, entry_of(self.table).id, operation, **hooks)

    def merge_all(self) -> MaintenanceOperation:
        """The operation that makes one rowset of all."""
        return CompactRowSets(tuple(meta.id for meta in self.rowsets))


@pytest.fixture
def history(core: CoreTables) -> History:
    """A tablet with a past."""
    return History(core)


def operations(history: History) -> dict[str, MaintenanceOperation]:
    """One operation of each kind that fits the tablet."""
    first = max(history.rowsets, key=lambda meta: len(meta.redo))
    column_ids = tuple(column.id for column in history.table.schema.value_columns)
    return {
        "deltas": CompactDeltas((first.id,), 0, len(first.redo)),
        "column": CompactColumns((first.id,), column_ids[:1]),
        "columns": CompactColumns((first.id,), column_ids),
        "rowsets": history.merge_all(),
    }


KINDS = ("deltas", "column", "columns", "rowsets")


@pytest.mark.parametrize("kind", KINDS)
def test_every_moment_shows_what_it_showed(history: History, kind: str):
    """And the operation does what it is for: fewer files."""
    before = history.rowsets
    result = history.run(operations(history)[kind])
    assert isinstance(result, OperationResult)
    assert result.version == history.table.version
    assert sum(len(meta.redo) for meta in history.rowsets) < sum(len(m.redo) for m in before)
    history.check()


def test_any_order_of_operations_shows_the_same(history: History):
    """One after the other, each on what the one before has made."""
    for kind in ("column", "deltas", "columns", "rowsets", "columns", "rowsets"):
        history.run(operations(history)[kind])
        history.check()
    assert len(history.rowsets) == 1


# In the quick tier each kind has one gap, and each gap a kind.
GAPS = ("read", "built", "carried")
QUICK = list(zip(KINDS, (*GAPS, "built"), strict=True))


@tiered(("kind", "gap"), itertools.product(KINDS, GAPS), quick=QUICK)
def test_what_is_written_meanwhile_is_kept(history: History, kind: str, gap: str):
    """By bulk writes, by rows through the log, flushed or not."""
    table = history.table

    def write_meanwhile(at: str) -> None:
        if at != gap:
            return
        history.remember(table.upsert(rows([0, 2, 9, 50], 400, "e")).timestamp)
        history.remember(table.delete(rows([4, 7], 0).select(["k"])).timestamp)
        history.remember(table.insert(rows([4], 500, "f")).timestamp)
        history.remember(write(table, op("upsert", 0, v=1), op("delete", 9)).timestamp)
        table.flush()
        history.remember(write(table, op("update", 5, v=9), op("insert", 9, v=1)).timestamp)

    assert history.run(operations(history)[kind], write_meanwhile) is not None
    history.check()
    table.flush()
    history.check()


@pytest.mark.parametrize("kind", KINDS)
def test_much_that_is_written_meanwhile_is_carried_over_before_the_lock(
    history: History, kind: str, monkeypatch: pytest.MonkeyPatch
):
    """In rounds, until little is left to do under the lock."""
    monkeypatch.setattr("kudulite.upkeep.compaction.CARRIED_ROWS_MAX", 0)

    def write_meanwhile(at: str) -> None:
        if at == "built":
            history.remember(history.table.update(rows([0, 1, 5, 6], 400, "e")).timestamp)

    assert history.run(operations(history)[kind], write_meanwhile) is not None
    history.check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncation_meanwhile_holds(history: History, kind: str):
    """The output for rowsets that have ended is dropped, or ended too."""

    def truncate(at: str) -> None:
        if at == "built":
            history.remember(history.table.truncate().timestamp)

    history.run(operations(history)[kind], truncate)
    assert stored(history.table) == []
    history.check()


def test_of_two_at_once_the_second_is_thrown_away(history: History):
    """With its files."""
    operation = history.merge_all()

    def merge_first(at: str) -> None:
        if at == "built":
            assert history.run(operation) is not None

    assert history.run(operation, merge_first) is None
    referenced = {name for meta in history.rowsets for name in meta.file_names}
    collect_garbage(store_of(history.table), grace_seconds=0)
    found = {path.name for path in files_below(history.table.path / "tablet")}
    assert referenced <= found
    history.check()


def test_a_collection_in_any_gap_takes_nothing_that_it_needs(history: History):
    """Neither what it reads, though another process has superseded that, nor what it has built."""

    def collect_at_once(at: str) -> None:
        if at != "locked":
            history.table.upsert([{"k": 1, "v": 5, "w": "x"}])
            collect_garbage(store_of(history.table), grace_seconds=0)

    before = history.table.version
    assert history.run(history.merge_all(), collect_at_once) is not None
    assert history.table.version > before
    history.table.check().raise_if_bad()


def test_one_whose_record_is_gone_gives_up(history: History):
    """Its files may be gone by then."""
    folder = history.table.path

    def ended(at: str) -> None:
        if at == "built":
            for record in (folder / "writes").iterdir():
                record.unlink()
            collect_garbage(store_of(history.table), grace_seconds=0)

    assert history.run(history.merge_all(), ended) is None
    history.check()
    assert history.run(history.merge_all()) is not None
    history.check()


def test_an_alteration_meanwhile_holds(history: History):
    """A dropped column is there in the past only; an added one shows its default."""

    def alter(at: str) -> None:
        if at == "built":
            alterer = history.client.new_table_alterer(history.table)
            alterer.drop_column("w")
            alterer.add_column("x", "int32", default=7)
            alterer.alter()

    assert history.run(history.merge_all(), alter) is not None
    now = [(k, v, 7) for k, v, _ in history.versions[max(history.versions)]]
    for _ in range(2):
        history.check()
        assert stored(history.table) == now
        history.run(history.merge_all())


@pytest.mark.parametrize("kind", KINDS)
def test_a_purge_before_it_reads_files_makes_it_do_nothing(history: History, kind: str):
    """The purge of another process leaves it the files, reports that, and has their rows erased."""
    operation, reports = operations(history)[kind], []

    def purge(at: str) -> None:
        if at == "read":
            # Waiting for it is in vain: it stands still.
            reports.append(history.other(lock_timeout_seconds=0.0).purge([1, 2, 5]))
            store_of(history.table).cache.clear()

    found = history.run(operation, purge)
    assert [len(report.pinned_by) for report in reports] == [1]
    gone = {1, 2, 5}
    history.versions = {
        at: [row for row in seen if row[0] not in gone] for at, seen in history.versions.items()
    }
    assert found is None
    history.check()
    assert history.table.purge([1, 2, 5]).is_complete


def test_an_operation_for_a_rowset_that_is_gone_does_nothing(history: History):
    """It was chosen for an older version."""
    old = operations(history)
    history.run(old["rowsets"])
    version = history.table.version
    for operation in old.values():
        assert history.run(operation) is None
    assert history.table.version == version


def test_history_behind_the_mark_goes_and_cannot_be_read(core: CoreTables):
    """The mark that was used stands in the version: no clock that is behind reads before it."""
    clock = ManualClock()
    history = History(core, clock=clock)
    alterer = history.client.new_table_alterer(history.table)
    alterer.set_history_retention(3600)
    alterer.alter()
    history.run(history.merge_all())
    assert any(meta.undo for meta in history.rowsets)
    clock.microseconds += 10_000_000_000
    newest = history.table.upsert(rows([0], 900)).timestamp
    clock.microseconds += 10_000_000_000
    history.run(history.merge_all())
    assert not any(meta.undo for meta in history.rowsets)
    with pytest.raises(TimestampError, match="ancient history mark"):
        history.table.scan(at=newest - 1).to_arrow()
    clock.microseconds -= 15_000_000_000
    with pytest.raises(TimestampError, match="ancient history mark"):
        history.table.scan(at=newest - 1).to_arrow()


def test_collection_drops_files_that_no_legal_moment_needs(core: CoreTables):
    """Nothing is rewritten: UNDO files and dead rowsets leave the superblock."""
    clock = ManualClock()
    history = History(core, clock=clock)
    history.run(history.merge_all())
    history.remember(history.table.overwrite(rows([1, 2], 0)).timestamp)
    alterer = history.client.new_table_alterer(history.table)
    alterer.set_history_retention(60)
    alterer.alter()
    assert history.run(CollectHistory()) is None
    clock.microseconds += 61_000_000
    history.table.upsert(rows([3], 0))
    clock.microseconds += 61_000_000
    now = stored(history.table)
    assert history.run(CollectHistory()) is not None
    assert not any(meta.undo or meta.delete_timestamp for meta in history.rowsets)
    assert stored(history.table) == now
    assert history.run(CollectHistory()) is None


def test_nothing_of_replaced_rowsets_and_older_versions_stays_in_the_cache(history: History):
    """Opened tablets keep the deltas that they merged, opened rowsets their keys."""
    store = store_of(history.table)
    assert stored(history.table)
    before = history.rowsets
    assert history.run(history.merge_all())
    assert stored(history.table)
    names, paths = set(), []
    for key in store.cache._entries:
        if isinstance(key, str):
            paths.append(key)
        elif str(key[1]).startswith("superblock-"):
            names.add(key[1])
    assert names == {entry_of(history.table).superblock.name}
    assert not any(meta.id in path for meta in before for path in paths)
    assert any(meta.id in path for meta in history.rowsets for path in paths)


def of_rowsets(store: TableStore, metas: list[RowSetMeta]) -> list[object]:
    """The keys in the cache that belong to files of some rowsets."""
    paths = [(key, key[0] if isinstance(key, tuple) else key) for key in store.cache._entries]
    return [key for key, path in paths if any(f"/{meta.id}/" in path for meta in metas)]


@pytest.mark.parametrize("reader", ["same client", "same table", "opened again"])
def test_blocks_of_replaced_files_leave_the_cache_of_a_reader(core: CoreTables, reader: str):
    """As soon as it reads the tablet, whichever process has compacted it; not those of others."""
    client = core.client()
    table = client.create_table("t", SCHEMA, primary_key=["k"])
    for first in range(2):
        table.insert(rows(range(first, 100, 2), first))
    store = store_of(table)
    before = list(store.tablet(entry_of(table)).superblock.rowsets)
    expected = table.get_many({"k": [2, 5]})
    table.update(pa.table({"k": [5], "v": expected["v"].take([1])}))
    assert table.get_many({"k": [2, 5]}) == expected
    assert {len(key) for key in of_rowsets(store, before) if isinstance(key, tuple)} == {3}
    (table if reader == "same client" else core.client().table("t")).compact()
    if reader == "opened again":
        table = client.table("t")
    assert table.get_many({"k": [2, 5]}) == expected
    now = list(store_of(table).tablet(entry_of(table)).superblock.rowsets)
    assert of_rowsets(store, [meta for meta in before if meta not in now]) == []
    assert of_rowsets(store, now)
    client.delete_table("t")
    assert of_rowsets(store, now) == []


def test_many_inputs_are_read_in_parts_of_row_groups(core: CoreTables):
    """A part has whole pages; the rows are the same, and so is the past."""
    count = 1 << 17
    table = core.client().create_table("t", SCHEMA, primary_key=["k"])
    numbers = np.arange(count) * 10
    values = {"k": numbers, "v": numbers % 977, "w": (numbers % 13).astype(str)}
    before = table.insert(pa.table(values, SCHEMA)).timestamp
    for first in range(1, 6):
        table.upsert(rows(list(range(first, 10 * count, 99_991)), first, "x"))
    table.update(pa.table({"k": numbers[::1000], "v": numbers[::1000]}))
    expected = table.scan(ordered=True).to_arrow()
    past = table.scan(at=before, ordered=True).to_arrow()
    columns = table.schema.columns
    base = store_of(table).tablet(entry_of(table)).disk_rowsets[0].base
    parts = list(base.parts(columns))
    assert [part.row_count for part in parts] == [count // 4] * 4
    read = [pa.record_batch(base.read(part, columns), schema=SCHEMA) for part in parts]
    assert pa.Table.from_batches(read).equals(pa.table(values, SCHEMA))
    table.compact()
    assert table.scan(ordered=True).to_arrow().equals(expected)
    assert table.scan(at=before, ordered=True).to_arrow().equals(past)
