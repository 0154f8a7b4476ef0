"""The chain of versions and records: what follows what, races, strays, and what is collected."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from kudulite.chain import entry_chain
from kudulite.chain.entry_chain import ENTRY_SECONDS, EntryChain
from kudulite.chain.record_entry import RecordEntry
from kudulite.client.table import Table
from kudulite.errors import CorruptionError, TableNotFoundError
from kudulite.storage.names import version_name
from kudulite.table.table_store import TableStore
from tests.support.tables.core_tables import stored
from tests.support.tables.object_tables import ObjectTables, rows


def chain_of(table: Table) -> EntryChain:
    """The chain of a table's own store."""
    chain = table._store.chain
    assert isinstance(chain, EntryChain)
    return chain


def fresh(table: Table) -> EntryChain:
    """A chain that knows nothing yet."""
    return chain_of(Table(TableStore(table._store.folder, table._store.environment)))


def append(chain: EntryChain) -> int | None:
    """Append a record without rows; its number."""
    entries = chain.last_entries()
    made = chain.append(entries, b"", entries.timestamp + 1)
    return None if made is None else made.number


@pytest.fixture
def objects() -> ObjectTables:
    """A store in memory."""
    return ObjectTables()


@pytest.fixture
def table(objects: ObjectTables) -> Table:
    """An empty table: version 1."""
    return objects.new_table()


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let both clocks of the process jump."""
    now = [1000.0]
    monkeypatch.setattr(entry_chain, "_now", lambda: (now[0], now[0]))

    def later(seconds: float) -> None:
        now[0] += seconds

    return later


def test_versions_and_records_share_the_numbers(table: Table):
    """Each has the CRC of the one before, and a later time."""
    chain = chain_of(table)
    assert [append(chain), append(chain)] == [2, 3]
    table.upsert(rows(1))
    found = fresh(table).entries()
    assert (found.number, found.manifest.version) == (4, 4)
    assert append(chain) == 5
    entries = [chain._entry(number) for number in range(1, 6)]
    assert [isinstance(entry, RecordEntry) for entry in entries] == [False, True, True, False, True]
    for before, entry in itertools.pairwise(entries):
        assert entry is not None and before is not None
        assert entry.previous_crc32 == before.file_crc32
    assert fresh(table).entries() == chain.entries()


def test_who_comes_second_knows_it_and_sees_the_first(table: Table):
    """Nothing is written; the next attempt follows the first."""
    one, other = chain_of(table), fresh(table)
    before = other.entries()
    assert append(one) == 2
    assert other.append(before, b"", before.timestamp + 1) is None
    assert append(other) is None  # from what it knew
    assert other.entries().number == 2
    assert append(other) == 3


def test_of_many_threads_each_number_has_one_winner(table: Table):
    """They never lose more than the others win."""
    won: list[int] = []

    def run() -> None:
        chain = fresh(table)
        for _ in range(10):
            while (number := append(chain)) is None:
                chain.entries()
            won.append(number)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(2, 42))


def test_what_is_removed_is_found_missing_when_it_may_be(table: Table, old):
    """Within the time that entries stay it is not asked for; after it the chain is listed again."""
    late, chain = fresh(table), chain_of(table)
    late.entries()
    for _ in range(4):
        append(chain)
    for number in (1, 2, 3):
        if number > 1:
            chain.storage.delete(chain.path(number))
    old(ENTRY_SECONDS)
    chain.storage.delete(chain.path(1))
    with pytest.raises(CorruptionError, match="no entry is the newest"):
        late.entries()  # version 1 is gone, which a collection never removes


def test_a_writer_that_stood_still_makes_no_stray(table: Table, old):
    """Its number was removed and is free again."""
    late, chain = fresh(table), chain_of(table)
    before = late.entries()
    table.upsert(rows(1))
    table.upsert(rows(2))
    for number in (1, 2):
        chain.storage.delete(chain.path(number))
    old(ENTRY_SECONDS)
    assert late.append(before, b"", before.timestamp + 1) is None
    assert chain.numbers() == [3]
    assert append(late) == 4
    assert stored(Table(TableStore(table._store.folder, table._store.environment))) == [
        (1, 0),
        (2, 0),
    ]


def test_a_swapped_or_foreign_entry_is_damage(table: Table):
    """Of another number, another table, or with flipped bytes."""
    chain = chain_of(table)
    append(chain)
    append(chain)
    content = chain.storage.read(chain.path(2))
    chain.storage.put_hint(chain.path(3), content)
    with pytest.raises(CorruptionError, match="holds entry 2, expected entry 3"):
        fresh(table).entries()
    with pytest.raises(CorruptionError, match="holds entry 2"):
        chain.check_entry(3)
    chain.storage.put_hint(chain.path(3), content.replace(b'"number":2', b'"number":3'))
    with pytest.raises(CorruptionError, match="CRC"):
        fresh(table).entries()


def test_only_entries_that_nobody_needs_are_removed(table: Table):
    """Records that are in rowsets, before the oldest version that must stay.

    One that is young stays, without its rows, and nobody follows it.
    """
    chain = chain_of(table)
    append(chain)
    table.upsert(rows(1))  # version 3
    append(chain)
    ages = dict.fromkeys(chain.numbers(), 2 * ENTRY_SECONDS)
    assert chain.newest().log_start.segment == 2
    removed: list[str] = []
    assert chain.remove(ages, lambda _: True, removed.append) == 0
    assert chain.remove({1: 1e9, 2: 1e9, 3: 1.0, 4: 1.0}, lambda _: False, removed.append) == 1
    assert removed == [version_name(1)]
    assert chain.before(chain.newest()) is None  # entry 2 was erased
    assert fresh(table).entries() == chain.entries() and chain.oldest() == 3
    assert chain.remove(ages, lambda _: False, removed.append) == 2
    assert removed[1:] == [version_name(1), version_name(2)]


def test_rows_that_are_purged_are_in_no_entry(objects: ObjectTables):
    """Their numbers stay, and those who have seen them go on at the newest entry."""
    client = objects.client(small_write_rows_max=1000)
    table = objects.new_table(client)
    table.upsert(rows(1, 2, v=77))
    other = objects.client(small_write_rows_max=1000).table("t")
    assert stored(other) == [(1, 77), (2, 77)]
    report = table.purge(rows(1).select(["k"]))
    assert report.is_complete and report.row_count == 1
    chain = chain_of(table)
    assert chain.numbers()[0] == 1
    with_rows = [
        number
        for number in chain.numbers()
        if isinstance(entry := chain._entry(number), RecordEntry) and entry.commits
    ]
    assert with_rows == []
    assert chain.oldest() == chain.newest().version
    assert stored(other) == stored(objects.client().table("t")) == [(2, 77)]
    other.upsert(rows(3))
    assert stored(table) == [(2, 77), (3, 0)]
    assert table.check().problems == ()


def test_nobody_follows_the_end_of_a_deleted_table(table: Table):
    """A reader that has the table open is refused as well."""
    one, other = chain_of(table), fresh(table)
    other.entries()
    before = one.entries()
    assert one.append(before, b"", before.timestamp + 1, is_end=True) is not None
    with pytest.raises(TableNotFoundError, match="'t' at .* was deleted"):
        other.entries()
    with pytest.raises(TableNotFoundError):
        fresh(table).newest()


def test_an_own_entry_is_not_taken_for_a_stray_after_a_standstill(table: Table, old):
    """Others have followed it, and the entry before it was removed since."""
    late, chain = fresh(table), chain_of(table)
    before = late.entries()
    real = late.storage.put_if_absent

    def stand_still(path: object, content: bytes) -> bool:
        done = real(path, content)  # type: ignore[arg-type]
        assert done and late.storage.put_if_absent == stand_still
        del late.storage.put_if_absent
        table.upsert(rows(1))
        chain.storage.delete(chain.path(1))
        old(ENTRY_SECONDS)
        return True

    late.storage.put_if_absent = stand_still  # type: ignore[method-assign]
    made = late.append(before, b"", before.timestamp + 1)
    assert made is not None and made.number == 2
    assert fresh(table).entries().number == 3 and chain.numbers() == [2, 3]


def test_an_erased_entry_is_followed_by_nobody(table: Table):
    """A reader that meets it begins again at the newest entry."""
    behind, chain = fresh(table), chain_of(table)
    behind.entries()
    append(chain)
    table.upsert(rows(1))  # version 3
    chain._erase(2, 3)
    assert behind.entries() == fresh(table).entries()
    assert chain.before(chain.newest()) is None
