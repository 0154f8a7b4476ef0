"""A table's rows in memory: those of its log, read by any threads, in any parts and order."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudulite.chain.manifest import Manifest
from kudulite.client.client import Client
from kudulite.model.encoded_key import encode_key, key_width
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.storage.local_storage import LocalStorage
from kudulite.table.memory_flush import flush_table
from kudulite.table.table_memory import SupersededError, TableMemory
from kudulite.table.table_store import TableStore
from kudulite.tablet.row_effects import RowOperation
from kudulite.tablet.tablet import Tablet
from kudulite.wal.commit_format import LoggedCommit
from kudulite.wal.log_reader import read_log
from kudulite.wal.record_format import RecordDecoder
from kudulite.wal.segment import LOG_BEGIN, LogPosition
from tests.support.tables.core_tables import CoreTables, altered, environment
from tests.support.tables.row_writes import MIDDLE, log_folder, new_table, op, write
from tests.support.tiers import examples

KEYS = (*range(4), *range(MIDDLE, MIDDLE + 4))
Rows = dict[int, tuple]
FLUSHES: list[list[RowOperation]] = [
    [op("upsert", 0, v=1), op("upsert", MIDDLE, v=1)],
    [op("upsert", 1, v=2), op("upsert", 0, v=2)],
    [op("delete", MIDDLE), op("insert", MIDDLE + 1, v=3)],
    [op("update", MIDDLE + 1, v=4)],
    [op("delete", 0), op("insert", MIDDLE, v=5), op("update", 1, w=5)],
    [op("insert", 0, v=6)],
]


class Logged:
    """A table of two tablets with `FLUSHES` in its log, and its rows after each of them."""

    def __init__(self, root: Path) -> None:
        table = new_table(Client(root, environment()), 2)
        self.store = TableStore(table.path, environment())
        self.manifest = self.store.newest()
        rows: Rows = {}
        self.stamps: list[int] = []
        self.states: list[Rows] = [{}]
        for flush in FLUSHES:
            self.stamps.append(write(table, *flush).timestamp)
            for operation in flush:
                k = operation.values["k"]
                if operation.operation.label == "delete":
                    del rows[k]
                else:
                    v, w = rows.get(k, (None, 7))
                    rows[k] = (operation.values.get("v", v), operation.values.get("w", w))
            self.states.append(dict(rows))
        self.commits = self.read(LOG_BEGIN)
        self.ends = [self.manifest.log_start, *(commit.end for commit in self.commits)]

    def read(self, start: LogPosition) -> list[LoggedCommit]:
        """The commits of the log from a position."""
        folder, table_id = log_folder(self.store), self.manifest.table_id
        return read_log(LocalStorage(), folder, table_id, start, None).commits

    def tablet(self, number: int) -> Tablet:
        """A tablet of the version without rows."""
        return self.store.tablet(self.manifest.tablets[number])

    def filled(self, memory: TableMemory, start: int, stop: int) -> None:
        """Let a memory take the commits [start, stop)."""
        memory.add(self.commits[start:stop], self.ends[start], self.ends[stop])

    def rows(self, memory: TableMemory, number: int, timestamp: int = TIMESTAMP_MAX) -> Rows:
        """The rows of a tablet in memory."""
        found = memory.stores(self.tablet(number), self.manifest)
        tablet = self.tablet(number) if found is None else found.tablet()
        return rows_of(self.manifest, tablet, timestamp)


def rows_of(manifest: Manifest, tablet: Tablet, timestamp: int = TIMESTAMP_MAX) -> Rows:
    """The rows that are found in a tablet, looked up one by one."""
    schema, found = manifest.schema, {}
    for k in KEYS:
        key = encode_key([k], schema.key_types)
        place = tablet.locate_one(key, key_width(schema.key_types), timestamp)
        if place is not None:
            rowset, rowid = place
            found[k] = tuple(rowset.read_row(rowid, schema.value_columns, timestamp))
    return found


def part(rows: Rows, number: int) -> Rows:
    """The rows of one tablet."""
    return {k: row for k, row in rows.items() if (k >= MIDDLE) == bool(number)}


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    """A log that no test changes."""
    yield Logged(tmp_path_factory.mktemp("table_memory"))


@settings(max_examples=examples(40))
@given(st.sets(st.integers(1, len(FLUSHES) - 1)), st.data())
def test_memory_has_the_rows_of_the_log_in_whatever_parts_it_is_read(logged: Logged, edges, data):
    """And whichever tablets are asked for in between; at each moment of the past, too."""
    memory = TableMemory(logged.manifest)
    for start, stop in itertools.pairwise(sorted({0, len(FLUSHES)} | edges)):
        logged.filled(memory, start, stop)
        assert memory.end == logged.ends[stop]
        for number in data.draw(st.sets(st.sampled_from([0, 1]))):
            assert logged.rows(memory, number) == part(logged.states[stop], number)
    for number in (0, 1):
        for timestamp, rows in zip(logged.stamps, logged.states[1:], strict=True):
            assert logged.rows(memory, number, timestamp) == part(rows, number)
            before = logged.states[logged.stamps.index(timestamp)]
            assert logged.rows(memory, number, timestamp - 1) == part(before, number)


def test_commits_that_another_thread_has_added_are_not_added_twice(logged: Logged):
    """Two may read the same part of the log; the slower one leaves memory as it is."""
    memory = TableMemory(logged.manifest)
    logged.filled(memory, 0, 3)
    logged.filled(memory, 0, 2)
    logged.filled(memory, 0, 5)
    assert memory.end == logged.ends[3]
    logged.filled(memory, 3, len(FLUSHES))
    for number in (0, 1):
        assert logged.rows(memory, number) == part(logged.states[-1], number)


def test_only_the_rows_of_tablets_that_are_asked_for_are_decoded(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
):
    """Each once."""
    decoded, plain = [], RecordDecoder.decode_rows

    def counted(decoder: RecordDecoder, timestamp: int, content: object) -> object:
        decoded.append(timestamp)
        return plain(decoder, timestamp, content)

    monkeypatch.setattr(RecordDecoder, "decode_rows", counted)
    memory = TableMemory(logged.manifest)
    logged.filled(memory, 0, len(FLUSHES))
    assert decoded == []
    for _ in range(2):
        logged.rows(memory, 1)
    tablet_id = logged.tablet(1).id
    expected = [commit.timestamp for commit in logged.commits if tablet_id in commit.parts]
    assert decoded == expected and 0 < len(decoded) < len(FLUSHES)


def test_a_tablet_without_rows_in_the_log_has_no_memory(logged: Logged):
    """Nor one all of whose rows are before the position that is asked for."""
    memory = TableMemory(logged.manifest)
    assert memory.stores(logged.tablet(0), logged.manifest) is None
    logged.filled(memory, 0, 2)
    for number, last in ((0, 2), (1, 1)):
        tablet_id = logged.tablet(number).id
        for place, end in enumerate(logged.ends[:3]):
            assert memory.has_rows(tablet_id, end) == (place < last)
    assert not memory.has_rows("unknown", LOG_BEGIN)


def test_stores_that_were_left_half_changed_are_made_again(logged: Logged):
    """From the rows, which stay encoded in memory until a rowset has them."""
    memory = TableMemory(logged.manifest)
    logged.filled(memory, 0, len(FLUSHES))
    torn = memory.writable_stores(logged.tablet(0), logged.manifest)
    torn.is_torn = True
    assert logged.rows(memory, 0) == part(logged.states[-1], 0)
    assert memory.writable_stores(logged.tablet(0), logged.manifest) is not torn


@pytest.mark.parametrize("ids", [[0], [1], [0, 1]])
def test_a_newer_version_takes_the_rows_of_its_rowsets_from_memory(tmp_path: Path, ids: list[int]):
    """Those of other tablets stay; what is appended after it comes on top, for both."""
    logged = Logged(tmp_path)
    store, memory = logged.store, TableMemory(logged.manifest)
    logged.filled(memory, 0, len(FLUSHES))
    for number in (0, 1):
        logged.rows(memory, number)
    flush_table(store, [logged.manifest.tablets[number].id for number in ids])
    newest = store.newest()
    memory.follow(newest)
    assert memory.end >= newest.log_start
    for number in (0, 1):
        tablet = store.tablet(newest.tablets[number])
        stores = memory.stores(tablet, newest)
        assert (stores is None) == (number in ids)
        shown = tablet if stores is None else stores.tablet()
        assert rows_of(newest, shown) == part(logged.states[-1], number)
    write(store, op("upsert", 2, v=8), op("upsert", MIDDLE + 2, v=8))
    (commit,) = logged.read(memory.end)
    memory.add([commit], memory.end, commit.end)
    expected = logged.states[-1] | {2: (8, 7), MIDDLE + 2: (8, 7)}
    for number in (0, 1):
        stores = memory.stores(store.tablet(newest.tablets[number]), newest)
        assert rows_of(newest, stores.tablet()) == part(expected, number)


def test_rows_of_an_older_version_are_not_to_be_had_any_more(tmp_path: Path):
    """They may be in rowsets that it lacks; an older version is followed by nobody."""
    logged = Logged(tmp_path)
    memory = TableMemory(logged.manifest)
    logged.filled(memory, 0, len(FLUSHES))
    flush_table(logged.store, [logged.manifest.tablets[0].id])
    newest = logged.store.newest()
    memory.follow(newest)
    memory.follow(logged.manifest)
    with pytest.raises(SupersededError):
        memory.stores(logged.tablet(1), logged.manifest)
    tablet = logged.store.tablet(newest.tablets[1])
    assert rows_of(newest, memory.stores(tablet, newest).tablet()) == part(logged.states[-1], 1)


def test_memory_is_of_one_table_and_one_schema(core: CoreTables):
    """A change of the schema has flushed the log before."""
    client = core.client()
    table = new_table(client)
    write(table, op("insert", 1))
    before = table._store.newest()
    memory = TableMemory(before)
    table.tag("x")
    assert memory.is_of(before) and memory.is_of(table._store.newest())
    assert memory.is_superseded_by(replace(before, table_id="other"))
    altered(client, "t", lambda alterer: alterer.add_column("x", "int8"))
    newest = table._store.newest()
    assert not memory.is_of(newest)
    assert not memory.is_of(replace(before, table_id="other"))


def test_memory_is_superseded_when_rowsets_have_all_of_it(logged: Logged):
    """Or more than it has read."""
    memory = TableMemory(logged.manifest)
    logged.filled(memory, 0, 3)
    for place, end in enumerate(logged.ends):
        newest = replace(logged.manifest, version=9, log_start=end)
        assert memory.is_superseded_by(newest) == (place >= 3)


POSITIONS = st.integers(0, 8).map(lambda number: LogPosition(1, 40 + 10 * number))


@settings(max_examples=examples(200))
@given(st.lists(st.sets(st.sampled_from("abc"), min_size=1), max_size=8), st.data())
def test_the_log_begins_behind_rows_that_are_all_in_rowsets(logged: Logged, commits, data):
    """At the last position before the first row that is in none; compared with every position."""
    ends = [LogPosition(1, 50 + 10 * number) for number in range(len(commits))]
    found = [
        LoggedCommit(number, None, dict.fromkeys(sorted(tablets), b""), end)
        for number, (tablets, end) in enumerate(zip(commits, ends, strict=True))
    ]
    memory = TableMemory(replace(logged.manifest, log_start=LogPosition(1, 40)))
    last = ends[-1] if ends else memory.end
    memory.add(found, memory.end, last)
    starts = data.draw(st.dictionaries(st.sampled_from("abc"), POSITIONS))
    unflushed = [c.end for c in found for t in c.parts if t in starts and c.end > starts[t]]
    listed = [c.end for c in found if c.parts.keys() & starts.keys()]
    before = [end for end in listed if end < min(unflushed)] if unflushed else [last]
    assert memory.flushed_end(starts) == max(before, default=LogPosition(1, 40))


def test_growth_is_the_bytes_of_all_stores(logged: Logged):
    """Before and after some of them have changed."""
    memory = TableMemory(logged.manifest)
    stores = []
    for number in (0, 1):
        logged.filled(memory, 3 * number, 3 * number + 3)
        stores.append(memory.writable_stores(logged.tablet(number), logged.manifest))
    first, second = (each.nbytes for each in stores)
    assert memory.growth([stores[0]]) == (0, first)
    assert memory.growth([stores[1]]) == (first, first + second)
    assert memory.growth([]) == (first + second, first + second)
