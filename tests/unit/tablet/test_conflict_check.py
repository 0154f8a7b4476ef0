"""Fitting staged parts to a newer version: what a serial run in commit order would give."""

import random

import pyarrow as pa
import pytest

import kudulite
from kudulite.basefile import key_index
from kudulite.basefile.key_index import KeyIndex
from kudulite.errors import RowError
from tests.support.tables.core_tables import CoreTables, stored


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Batches of 16 keys in the key indexes, so that small ones have many."""
    monkeypatch.setattr(key_index, "BATCH_ROWS", 16)


@pytest.fixture
def table(core: CoreTables) -> kudulite.Table:
    """Key k, a nullable column, and one with a default."""
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("a", kudulite.int32),
        kudulite.column("d", kudulite.int32, default=7),
    ]
    table = core.client().create_table("t", kudulite.schema(columns, "k"))
    table.insert(rows([(1, 10, 10), (2, 20, 20)]))
    return table


def rows(found, names=("k", "a", "d")) -> pa.Table:
    """Rows as Arrow."""
    columns = zip(*found, strict=True)
    return pa.table({n: pa.array(c, pa.int32()) for n, c in zip(names, columns, strict=True)})


def test_a_null_under_ignore_null_does_not_bring_the_default_to_a_row_inserted_meanwhile(table):
    """The staged insert held the default; the row that is there now keeps its own value."""
    write = table.new_bulk_write("upsert", columns=["k", "d"], ignore_null=True)
    staged = write.stage([rows([(5, None)], ("k", "d"))])
    table.insert(rows([(5, 50, 51)]))
    write.commit([staged])
    assert stored(table)[-1] == (5, 50, 51)


def test_a_null_under_ignore_null_does_not_bring_the_default_over_an_earlier_task(table):
    """Two tasks insert the key; the later one leaves the cell alone."""
    write = table.new_bulk_write("upsert", columns=["k", "a", "d"], ignore_null=True)
    parts = [
        write.stage([rows([(5, 50, 51)])], 0),
        write.stage([rows([(5, 52, None)])], 1),
    ]
    result = write.commit(parts)
    assert stored(table)[-1] == (5, 52, 51)
    assert (result.inserted, result.updated) == (1, 1)


def test_a_key_only_upsert_inserts_a_row_that_was_deleted_meanwhile(table):
    """Upsert promises that the key is there when it is done."""
    write = table.new_bulk_write("upsert", columns=["k"])
    staged = write.stage([rows([(1,), (2,)], ("k",))])
    table.delete(rows([(1,)], ("k",)))
    result = write.commit([staged])
    assert stored(table) == [(1, None, 7), (2, 20, 20)]
    assert (result.inserted, result.updated) == (1, 1)


def test_an_all_null_upsert_inserts_a_row_that_was_deleted_meanwhile(table):
    """As above, for rows that set nothing because null leaves a cell alone."""
    write = table.new_bulk_write("upsert", columns=["k", "a"], ignore_null=True)
    staged = write.stage([rows([(1, None), (2, 21)], ("k", "a"))])
    table.delete(rows([(1,)], ("k",)))
    write.commit([staged])
    assert stored(table) == [(1, None, 7), (2, 21, 20)]


def test_an_all_null_update_of_a_row_that_was_deleted_meanwhile_is_refused(table):
    """Update of an absent key is a row error, whatever it would have set."""
    write = table.new_bulk_write("update", columns=["k", "a"], ignore_null=True)
    staged = write.stage([rows([(1, None)], ("k", "a"))])
    table.delete(rows([(1,)], ("k",)))
    with pytest.raises(RowError, match="not found"):
        write.commit([staged])
    write.abort()


@pytest.mark.parametrize("seed", range(12))
def test_tasks_that_repeat_keys_apply_in_order(table, seed):
    """Tasks of many batches of keys: apart, in a chain, one inside another, or all over."""
    choose = random.Random(seed)
    write = table.new_bulk_write("upsert")
    staged, written = [], {}
    for task in range(choose.randint(2, 5)):
        start, length = choose.randrange(400), choose.choice([1, 30, 200])
        keys = choose.sample(range(start, start + 2 * length), length)
        found = {key: (task, choose.randrange(100)) for key in keys}
        written |= found
        staged.append(write.stage([rows([(k, *cells) for k, cells in found.items()])], task))
    model = {1: (10, 10), 2: (20, 20)}
    if seed % 2:
        start = choose.randrange(300)
        meanwhile = dict.fromkeys(choose.sample(range(start, start + 200), 40), (-1, -1))
        table.upsert(rows([(key, *cells) for key, cells in meanwhile.items()]))
        model |= meanwhile
    model |= written
    write.commit(staged)
    assert stored(table) == [(key, *model[key]) for key in sorted(model)]


def test_a_key_of_two_tasks_fails_an_insert(table):
    """It is in the last batch of keys of one task and in the first one of another."""
    write = table.new_bulk_write("insert")
    staged = [
        write.stage([rows([(key, 0, 0) for key in keys])], task)
        for task, keys in enumerate((range(10, 111), range(110, 200)))
    ]
    with pytest.raises(RowError, match="110"):
        write.commit(staged)
    write.abort()
    assert len(stored(table)) == 2


def test_tasks_whose_keys_are_apart_are_committed_without_reading_the_keys(table, monkeypatch):
    """A commit of 20 million rows should not hold their keys."""
    write = table.new_bulk_write("upsert")
    staged = [
        write.stage([rows([(key, 0, 0) for key in range(start, start + 50)])], start)
        for start in (300, 100, 200)
    ]
    table.insert(rows([(1000, 0, 0)]))

    def open_index(index: KeyIndex) -> None:
        raise AssertionError(f"{index.path} was opened")

    with monkeypatch.context() as patch:
        patch.setattr(KeyIndex, "_open", open_index)
        write.commit(staged)
    assert len(stored(table)) == 153
