"""Full snapshots of which little differs: `overwrite` with `unchanged="skip"`, against a dict."""

import random

import pyarrow as pa
import pytest

import kudulite
from kudulite.errors import ConflictError, RowError
from tests.support.tables.core_tables import CoreTables, altered, stored
from tests.support.tables.typed_tables import ARRAYS, SCALARS, VALUES
from tests.support.tiers import tiered

SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.float64()), ("s", pa.string())])
TYPES = {name: kudulite.parse_type(str(kind)) for name, kind, _ in (*SCALARS, *ARRAYS)}


def rows(keys, value: float = 0.0, text: str | None = "x") -> pa.Table:
    """Rows of one value."""
    return pa.table({"k": [*keys], "v": [value] * len(keys), "s": [text] * len(keys)}, SCHEMA)


def changed_keys(table: kudulite.Table, since: int) -> list[int]:
    """The keys of the changes after a moment."""
    return sorted(row["k"] for row in table.changes(since).to_pylist())


@pytest.fixture
def table(core: CoreTables) -> kudulite.Table:
    """1,000 rows in two tablets."""
    client = core.client(small_write_rows_max=0)
    table = client.create_table("t", SCHEMA, primary_key="k", hash_partitions=[(["k"], 2)])
    table.upsert(rows(range(1000)))
    return table


def test_an_overwrite_leaves_equal_rows_and_deletes_absent_ones(table):
    """Only rows that differ are in the changes; an equal snapshot is no version."""
    moment, size = table.current_timestamp(), table.statistics.bytes_on_disk
    snapshot = pa.concat_tables([rows(range(10, 990)), rows(range(990, 1010), 1.0)])
    result = table.overwrite(snapshot, unchanged="skip")
    counts = result.inserted, result.updated, result.deleted, result.unchanged
    assert counts == (10, 10, 10, 980)
    assert changed_keys(table, moment) == [*range(10), *range(990, 1010)]
    assert table.statistics.bytes_on_disk < 3 * size
    assert stored(table) == stored_rows(snapshot)
    assert (table.versions()[0].operation, table.versions()[0].deleted) == ("overwrite", 10)
    again = table.overwrite(snapshot, unchanged="skip")
    assert (again.unchanged, again.version) == (1000, result.version)
    assert stored(table, moment) == stored_rows(rows(range(1000)))


def stored_rows(table: pa.Table) -> list[tuple]:
    """Rows as `stored` returns them."""
    return [tuple(row.values()) for row in table.to_pylist()]


def test_an_overwrite_by_no_rows_deletes_all(table):
    """As without the option, and rows in memory too."""
    session = kudulite.Session("manual")
    session.apply(table.new_upsert({"k": 5000, "v": 1.0}))
    session.flush()
    assert table.overwrite(rows([]), unchanged="skip").deleted == 1001
    assert stored(table) == []
    assert table.overwrite(rows([1]), unchanged="skip").inserted == 1


def test_columns_that_are_not_given_become_their_defaults(core):
    """Also where the row is there: an overwrite has new rows, with their immutable cells."""
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("v", kudulite.int64, default=3),
        kudulite.column("fixed", kudulite.string, mutable=False),
        kudulite.column("needed", kudulite.int32, nullable=False),
    ]
    table = core.client(small_write_rows_max=0).create_table("t", kudulite.schema(columns, "k"))
    table.insert([{"k": k, "v": k + 1, "fixed": "a", "needed": 1} for k in range(5)])
    given = [{"k": k, "fixed": "ab"[k % 2], "needed": 1} for k in range(5)]
    result = table.overwrite(given, unchanged="skip")
    assert (result.updated, result.unchanged) == (4, 1)
    assert stored(table) == [(k, 3, "ab"[k % 2], 1) for k in range(5)]
    with pytest.raises(RowError, match="needed"):
        table.overwrite(pa.table({"k": pa.array([1], pa.int32())}), unchanged="skip")


def test_a_row_that_is_given_twice_is_refused_or_the_last_one(table):
    """By one task or two, of rows that are there and new ones; as without the option."""
    for keys in ([1], [7000]):
        for parts in ([rows([*keys, *keys])], [rows(keys), rows(keys, 2.0)]):
            write = table.new_bulk_write("insert", overwrite=True, unchanged="skip")
            with pytest.raises(RowError, match="already present"):
                write.commit([write.stage(part, number) for number, part in enumerate(parts)])
            write.abort()
    write = table.new_bulk_write("upsert", overwrite=True, unchanged="skip")
    parts = [write.stage(rows([1, 2], 5.0), 0), write.stage(rows([2, 1, 9000]), 1)]
    write.commit(parts)
    assert stored(table) == stored_rows(rows([1, 2, 9000]))


def test_an_overwrite_forgets_the_deletes_of_ordered_writes(table):
    """Also one that finds all rows as they are: an older change is then written again."""
    table.apply([{"op": "D", "k": 1, "v": 9.0, "s": ""}], ordering_column="v")
    left = rows([k for k in range(1000) if k != 1])
    table.overwrite(left, unchanged="skip")
    table.apply([{"op": "U", "k": 1, "v": 8.0, "s": "late"}], ordering_column="v")
    assert table.get(1) == {"k": 1, "v": 8.0, "s": "late"}


def test_rows_of_an_ordered_write_that_differ_are_compared_cell_by_cell(table):
    """A newer change of the same text sets its ordering column; an equal one is no newer."""
    moment = table.current_timestamp()
    snapshot = pa.concat_tables([rows([1], 1.0), rows([2, 3]), rows([4], -1.0, "late")])
    result = table.upsert(snapshot, ordering_column="v", unchanged="skip")
    assert (result.updated, result.ignored, result.unchanged) == (1, 3, 0)
    assert changed_keys(table, moment) == [1]


def test_nulls_that_are_ignored_leave_cells_beside_equal_ones(table):
    """Whatever another writer sets meanwhile in a cell that is left."""
    write = table.new_bulk_write("upsert", ignore_null=True, unchanged="skip")
    staged = write.stage(pa.concat_tables([rows([1, 2], text=None), rows([3], 4.0, None)]))
    table.upsert(rows([1], 7.0, "other"))
    result = write.commit([staged])
    assert (result.updated, result.unchanged) == (2, 1)
    assert [table.get(k)["s"] for k in (1, 2, 3)] == ["other", "x", "x"]
    assert [table.get(k)["v"] for k in (1, 2, 3)] == [0.0, 0.0, 4.0]


def test_a_column_that_is_added_meanwhile_is_a_conflict(core, table):
    """Rows that stay would keep its cells, and new ones would not have them."""
    write = table.new_bulk_write("upsert", overwrite=True, unchanged="skip")
    staged = write.stage(rows([1]))
    altered(core.client(), "t", lambda alterer: alterer.add_column("w", "int32", default=1))
    with pytest.raises(ConflictError, match="the schema was altered"):
        write.commit([staged])
    write.abort()


def frame(rows_by_key: dict, schema: pa.Schema) -> pa.Table:
    """The rows of a dictionary, in any order."""
    found = list(rows_by_key.values())
    random.shuffle(found)
    return pa.Table.from_pylist(found, schema=schema)


@tiered("seed", range(25))
def test_snapshots_of_every_type_equal_a_dictionary(core, seed):
    """Rows, counts and changes, with and without the option, in one task or several.

    Cells are NaN, -0.0, NULL, decimals, texts, arrays and so on; equal is equal by `repr`.
    """
    choose = random.Random(seed)
    names = choose.sample(sorted(VALUES), 8)
    schema = pa.schema([("k", pa.int32()), *((name, TYPES[name].arrow) for name in names)])

    def cell(name: str):
        value = None if choose.random() < 0.2 else choose.choice(VALUES[name])
        return pa.scalar(value, TYPES[name].arrow).as_py()

    def row(key: int) -> dict:
        return {"k": key, **{name: cell(name) for name in names}}

    hashed = [(["k"], 3)] if choose.random() < 0.5 else None
    client = core.client(small_write_rows_max=0)
    table = client.create_table("t", schema, primary_key="k", hash_partitions=hashed)
    now = {key: row(key) for key in choose.sample(range(80), 40)}
    table.insert(frame(now, schema))
    for _ in range(4):
        before, moment, then = now, table.current_timestamp(), stored(table)
        now = {key: dict(row) for key, row in now.items()}
        for key in choose.sample(sorted(now), min(5, len(now))):
            name = choose.choice(names)
            now[key][name] = cell(name)
        for key in choose.sample(sorted(now), choose.choice([0, 3])):
            del now[key]
        now |= {key: row(key) for key in choose.sample(range(80), choose.choice([0, 4]))}
        options = {"overwrite": True} if choose.random() < 0.7 else {}
        if not options:
            now = before | now
        write = table.new_bulk_write("upsert", unchanged="skip", **options)
        given = frame(now, schema)
        cut = choose.randint(0, len(given))
        parts = [given.slice(0, cut), given.slice(cut)]
        result = write.commit([write.stage(part, number) for number, part in enumerate(parts)])
        expected = sorted((tuple(row.values()) for row in now.values()), key=lambda row: row[0])
        assert repr(sorted(stored(table), key=lambda row: row[0])) == repr(expected)
        both = before.keys() & now.keys()
        differ = {key for key in both if repr(before[key]) != repr(now[key])}
        changed = {*differ, *(before.keys() ^ now.keys())}
        assert set(changed_keys(table, moment)) == changed
        counts = result.inserted, result.updated, result.deleted, result.unchanged
        assert counts == (
            len(now.keys() - before.keys()),
            len(differ),
            len(before.keys() - now.keys()),
            len(both) - len(differ),
        )
        assert repr(stored(table, moment)) == repr(then)
        if choose.random() < 0.3:
            table.compact()
