"""A tablet's memory: the same rows from the same log, whoever built it and in whatever steps."""

import itertools
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudulite.client.client import Client
from kudulite.errors import CorruptionError
from kudulite.model.encoded_key import encode_key, key_width
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.table.table_store import TableStore
from kudulite.tablet.mem_stores import IN_MEMROWSET, AppendedRecord, MemStores, TimedChanges
from kudulite.tablet.row_effects import RowOperation
from kudulite.tablet.tablet import Tablet
from kudulite.wal.record_format import encode_rows
from kudulite.wal.row_codec import RowChanges
from kudulite.wal.segment import LOG_BEGIN, LogPosition
from tests.support.tables.core_tables import environment
from tests.support.tables.row_writes import new_table, op
from tests.support.tiers import examples

KEYS = range(16)
ON_DISK = {k: (k, 7) for k in range(0, 16, 2)}  # in two rowsets; more keys than LOCATE_ARRAY_MIN
Rows = dict[int, tuple]


class Base:
    """A tablet on disk, and what the tests ask of memories on top of it."""

    def __init__(self, folder: Path) -> None:
        table = new_table(Client(folder, environment()))
        for part in (0, 2):
            table.insert([{"k": k, "v": k} for k in ON_DISK if k % 4 == part])
        store = TableStore(table.path, environment())
        self.schema = store.newest().schema
        self.tablet = store.tablet(store.newest().tablets[0])
        self.start = self.tablet.timestamp_max + 1

    def memory(self) -> MemStores:
        """A memory that holds nothing."""
        return MemStores(self.tablet, self.schema, LOG_BEGIN)

    def key(self, k: int) -> bytes:
        """A key as memory knows it."""
        return encode_key([k], self.schema.key_types)

    def rows(self, tablet: Tablet, timestamp: int = TIMESTAMP_MAX) -> Rows:
        """The rows that a reader finds, looked up one by one."""
        columns, width = self.schema.value_columns, key_width(self.schema.key_types)
        found = {}
        for k in KEYS:
            place = tablet.locate_one(self.key(k), width, timestamp)
            if place is not None:
                rowset, rowid = place
                found[k] = tuple(rowset.read_row(rowid, columns, timestamp))
        return found


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Base]:
    """Eight rows in two rowsets."""
    yield Base(tmp_path_factory.mktemp("mem_stores"))


class Log:
    """Flushes that were played one after the other on a memory: its records, and a model's rows."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self.memory = base.memory()
        self.records: list[RowChanges] = []
        self.versions: list[Rows] = [dict(ON_DISK)]

    def flush(self, *operations: RowOperation) -> None:
        """Play a flush and apply it, as a writer does."""
        keys = [self._base.key(operation.values["k"]) for operation in operations]
        places = self.memory.locate(keys)
        applier = self.memory.applier
        effects = applier.apply(operations, keys, [place is not None for place in places])
        if not effects.changes:
            return
        record = applier.record(effects, self._base.start + len(self.records))
        changed = [position for _, _, position in effects.changes]
        appended = AppendedRecord(
            record,
            [keys[p] for p in changed],
            [places[p] for p in changed],
            len(encode_rows(record)),
        )
        self.memory.apply([appended], self.end(1))
        self.records.append(record)
        rows = dict(self.versions[-1])
        for operation, outcome in zip(operations, effects.outcomes, strict=True):
            if not isinstance(outcome, str):
                _apply(rows, operation)
        self.versions.append(rows)

    def end(self, more: int = 0) -> LogPosition:
        """A position for the log's end; memory only compares positions."""
        return LogPosition(1, 1000 + len(self.records) + more)

    @cached_property
    def timestamps(self) -> list[int]:
        """The moments at which `versions` are valid."""
        return [self._base.start - 1 + number for number in range(len(self.versions))]


def _apply(rows: Rows, operation: RowOperation) -> None:
    values, label = operation.values, operation.operation.label
    k, is_there = values["k"], values["k"] in rows
    if label.startswith("delete"):
        rows.pop(k, None)
    elif label.startswith("upsert") or is_there == label.startswith("update"):
        v, w = rows.get(k, (None, 7))
        rows[k] = (values.get("v", v), values.get("w", w))


OPERATIONS = st.builds(
    lambda name, k, values: op(name, k, **({} if name == "delete" else values)),
    st.sampled_from(["insert", "upsert", "update_ignore", "update", "delete"]),
    st.sampled_from(KEYS),
    st.fixed_dictionaries({}, optional={"v": st.none() | st.integers(0, 99), "w": st.just(5)}),
)
FLUSHES = st.lists(st.lists(OPERATIONS, min_size=1, max_size=18), max_size=8)


# -- what readers see


@settings(max_examples=examples(40))
@given(FLUSHES)
def test_readers_see_each_flush_at_its_time(base: Base, flushes):
    """At every moment, before and after, by a view that was taken at the end."""
    log = Log(base)
    for flush in flushes:
        log.flush(*flush)
    tablet = log.memory.tablet()
    for timestamp, rows in zip(log.timestamps, log.versions, strict=True):
        assert base.rows(tablet, timestamp) == rows
    assert tablet.live_row_count == len(log.versions[-1])


@settings(max_examples=examples(40))
@given(FLUSHES)
def test_a_view_stays_as_it_was_taken(base: Base, flushes):
    """Later changes are visible only in views that are taken later."""
    log, views = Log(base), []
    for flush in flushes:
        views.append((log.memory.view(), log.versions[-1], log.end()))
        log.flush(*flush)
    for (position, timestamp, tablet), rows, end in views:
        assert base.rows(tablet) == rows
        assert position in (end, LOG_BEGIN)
        assert timestamp in (0, tablet.timestamp_max)


# -- replay


@settings(max_examples=examples(40))
@given(FLUSHES, st.data())
def test_replay_in_any_grouping_equals_applying_one_by_one(base: Base, flushes, data):
    """A process that catches up all at once, or with each record, has the same memory."""
    log = Log(base)
    for flush in flushes:
        log.flush(*flush)
    count = len(log.records)
    edges = sorted({0, count} | data.draw(st.sets(st.integers(0, count))))
    replayed = base.memory()
    for start, stop in itertools.pairwise(edges):
        replayed.replay(log.records[start:stop], LogPosition(1, 1000 + stop))
        assert base.rows(replayed.tablet()) == log.versions[stop]
    tablet = replayed.tablet()
    for timestamp, rows in zip(log.timestamps, log.versions, strict=True):
        assert base.rows(tablet, timestamp) == rows
    if count:
        for name in ("end", "row_count", "timestamp_min", "timestamp_max"):
            assert getattr(replayed, name) == getattr(log.memory, name), name
    keys = [base.key(k) for k in KEYS]
    assert replayed.locate(keys) == log.memory.locate(keys)


def test_a_replay_of_nothing_moves_the_end(base: Base):
    """A segment without frames."""
    memory = base.memory()
    memory.replay([], LogPosition(2, 40))
    assert (memory.end, memory.row_count) == (LogPosition(2, 40), 0)
    assert base.rows(memory.tablet()) == ON_DISK


def test_records_of_different_columns_are_joined(base: Base):
    """A column that one of them lacks is set by no row of it."""
    log = Log(base)
    log.flush(op("update", 0, v=1), op("update", 2, v=2, w=2))
    log.flush(op("delete", 4))
    log.flush(op("update", 6, w=6))
    changes = TimedChanges.of(log.records, base.schema)
    assert changes.timestamps.tolist() == [base.start] * 2 + [base.start + 1, base.start + 2]
    assert {at: mask.tolist() for at, mask in changes.is_set.items()} == {
        1: [True, True, False, False],
        2: [False, True, False, True],
    }
    assert changes.columns[2].to_pylist() == [None, 2, None, 6]


# -- a log that does not fit


def records_of(base: Base, *flushes: list[RowOperation]) -> list[RowChanges]:
    """The records of flushes."""
    log = Log(base)
    for flush in flushes:
        log.flush(*flush)
    return log.records


def test_a_log_that_does_not_fit_is_corruption(base: Base):
    """It inserts a row that is there, or changes one that is not; the error names the folder."""
    insert, delete = records_of(base, [op("insert", 1)], [op("delete", 1)])
    unfit = {
        "inserted twice": [insert, insert],
        "deleted unseen": [delete],
        "deleted twice": [insert, delete, delete],
        "deleted twice on disk": [*records_of(base, [op("delete", 0)])] * 2,
    }
    for what, records in unfit.items():
        for group in ([records], [[record] for record in records]):
            memory = base.memory()
            with pytest.raises(CorruptionError, match=str(base.tablet.folder)):
                for part in group:
                    memory.replay(part, memory.end)
            assert memory.row_count < len(records), what


def test_memory_that_was_left_half_way_says_so(base: Base, monkeypatch: pytest.MonkeyPatch):
    """An interrupt in the middle of a change: its end does not move, and it is of no use."""
    records = records_of(base, [op("insert", 1), op("update", 0, v=5)])
    memory = base.memory()
    start = memory.end

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(MemStores, "_delta_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        memory.replay(records, LogPosition(1, 1001))
    assert (memory.end, memory.is_torn) == (start, True)
    assert not base.memory().is_torn


# -- lookups


@settings(max_examples=examples(40))
@given(FLUSHES)
def test_one_key_is_found_where_many_are(base: Base, flushes):
    """Few keys are looked up one by one, many by array operations; repeats and any order."""
    log = Log(base)
    for flush in flushes:
        log.flush(*flush)
    keys = [base.key(k) for k in (*KEYS, *reversed(KEYS))]
    many = log.memory.locate(keys)
    assert many == [log.memory.locate([key])[0] for key in keys]
    assert [place is not None for place in many[: len(KEYS)]] == [
        k in log.versions[-1] for k in KEYS
    ]


def test_a_row_that_came_back_is_in_the_memrowset_for_good(base: Base):
    """A row of a rowset that was deleted never comes back there."""
    log = Log(base)
    (before,) = log.memory.locate([base.key(0)])
    assert before is not None and before[0] in [r.meta.id for r in base.tablet.disk_rowsets]
    places = []
    for operation in (op("update", 0, v=1), op("delete", 0), op("insert", 0), op("delete", 0)):
        log.flush(operation)
        places += log.memory.locate([base.key(0)])
    assert places == [before, None, IN_MEMROWSET, None]


def test_a_tablet_without_memory_shares_its_rowsets(base: Base):
    """Nothing is copied for a log that holds nothing; opened files are shared in any case."""
    memory = base.memory()
    assert memory.tablet() is base.tablet
    log = Log(base)
    log.flush(op("insert", 1))
    tablet = log.memory.tablet()
    assert tablet.disk_rowsets == base.tablet.disk_rowsets
    assert not isinstance(tablet.rowsets[-1], DiskRowSet)


def test_memory_counts_its_bytes(base: Base):
    """More with each change, in either store; nothing at first."""
    log, sizes = Log(base), []
    for operation in (op("insert", 1), op("update", 0, v=1), op("delete", 1), op("delete", 2)):
        log.flush(operation)
        sizes.append(log.memory.nbytes)
    assert base.memory().nbytes == 0
    assert sizes == sorted(set(sizes))
