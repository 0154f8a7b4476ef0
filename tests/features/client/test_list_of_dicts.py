"""Rows given as dicts: each sets its own columns, and leaves the others as they are."""

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

import kudulite
from kudulite.client.table import Table
from kudulite.errors import KuduliteError, RowError, SchemaError
from tests.support.tables.core_tables import CoreTables
from tests.support.tiers import tiered

COLUMNS = ("state", "score", "rank", "seq")
LENIENT = ("insert_ignore", "upsert", "upsert_ignore", "update_ignore", "delete_ignore")
PATHS = pytest.mark.parametrize("small", [True, False], ids=["log", "files"])


def new_table(core: CoreTables, name: str, *, small: bool = False, tablets: int = 1) -> Table:
    """A table with a default, a NOT NULL column that has one, and a client of its own."""
    columns = [
        kudulite.column("id", kudulite.int64),
        kudulite.column("state", kudulite.string),
        kudulite.column("score", kudulite.int64, default=5),
        kudulite.column("rank", kudulite.int64, nullable=False, default=3),
        kudulite.column("seq", kudulite.int64),
    ]
    partitioning = kudulite.Partitioning()
    if tablets > 1:
        partitioning.add_hash_partitions(["id"], tablets)
    client = core.client(name, small_write_rows_max=100 if small else 0)
    return client.create_table(name, kudulite.schema(columns, "id"), partitioning)


def three_rows(core: CoreTables, *, small: bool) -> Table:
    """A table with the rows 1 to 3."""
    table = new_table(core, "t", small=small)
    table.insert([{"id": i, "state": "new", "score": i, "rank": i, "seq": 0} for i in (1, 2, 3)])
    return table


def cells(table: Table) -> dict[int, tuple]:
    """The cells of each row by id, in the order of COLUMNS."""
    return {
        row["id"]: tuple(row[name] for name in COLUMNS)
        for row in table.scan(ordered=True).to_arrow().to_pylist()
    }


@PATHS
@pytest.mark.parametrize("operation", ["upsert", "update"])
def test_each_dict_sets_its_own_columns(core: CoreTables, operation: str, small: bool):
    """A key that a dict lacks leaves the cell; None sets NULL."""
    table = three_rows(core, small=small)
    write = getattr(table, operation)
    result = write([{"id": 1, "state": "paid"}, {"id": 2, "score": 7}, {"id": 3, "state": None}])
    assert result.updated == 3
    assert cells(table) == {1: ("paid", 1, 1, 0), 2: ("new", 7, 2, 0), 3: (None, 3, 3, 0)}


@PATHS
def test_new_rows_have_the_defaults_of_keys_that_their_dict_lacks(core: CoreTables, small: bool):
    """As rows of a session have; NULL is stored where it is given."""
    table = new_table(core, "t", small=small)
    table.insert([{"id": 1}, {"id": 2, "score": None}, {"id": 3, "rank": 1, "state": "x"}])
    table.upsert([{"id": 4, "state": "y"}, {"id": 5, "seq": 1}])
    assert cells(table) == {
        1: (None, 5, 3, None),
        2: (None, None, 3, None),
        3: ("x", 5, 1, None),
        4: ("y", 5, 3, None),
        5: (None, 5, 3, 1),
    }


@PATHS
def test_dicts_of_one_key_apply_in_their_order(core: CoreTables, small: bool):
    """Each sets its columns in the row that the one before has left."""
    table = three_rows(core, small=small)
    table.upsert([{"id": 1, "state": "a"}, {"id": 1, "score": 8}, {"id": 1, "state": "b"}])
    assert cells(table)[1] == ("b", 8, 1, 0)
    changes: list[dict[str, Any]] = [
        {"op": "U", "id": 2, "state": "c"},
        {"op": "D", "id": 1},
        {"op": "I", "id": 1, "rank": 9},
        {"op": "U", "id": 2, "rank": 6},
        {"op": "D", "id": 3, "state": "beside a delete"},
    ]
    table.apply(changes)
    assert cells(table) == {1: (None, 5, 9, None), 2: ("c", 2, 6, 0)}


def test_a_list_is_one_commit_or_nothing(core: CoreTables):
    """Also over several tablets: one version, and one refused row refuses all."""
    table = new_table(core, "t", tablets=4)
    table.insert([{"id": i} for i in range(20)])
    version, before = table.version, cells(table)
    with pytest.raises(RowError, match="not found"):
        table.update([*({"id": i, "score": 1} for i in range(20)), {"id": 99, "state": "x"}])
    assert (table.version, cells(table)) == (version, before)
    table.update([{"id": i, **({"score": 1} if i % 2 else {"rank": 1})} for i in range(20)])
    assert table.version == version + 1
    expected = {i: (None, 1, 3, None) if i % 2 else (None, 5, 1, None) for i in range(20)}
    assert cells(table) == expected


@PATHS
def test_a_null_in_a_not_null_column_is_refused_where_it_is_given(core: CoreTables, small: bool):
    """And a new row without a value for a column that has no default."""
    table = new_table(core, "t", small=small)
    with pytest.raises(RowError, match="column 'rank': 1 row refused: null"):
        table.upsert([{"id": 1, "rank": None}, {"id": 2, "state": "x"}])
    columns = [
        kudulite.column("id", kudulite.int64),
        kudulite.column("must", kudulite.int64, nullable=False),
        kudulite.column("may", kudulite.int64),
    ]
    client = core.client("n", small_write_rows_max=100 if small else 0)
    other = client.create_table("must", kudulite.schema(columns, "id"))
    other.insert([{"id": 1, "must": 1}])
    other.upsert([{"id": 1, "may": 2}, {"id": 2, "must": 2}])
    with pytest.raises(RowError, match=RowError.REASON_MISSING):
        other.upsert([{"id": 3, "may": 2}, {"id": 4, "must": 2}])
    with pytest.raises(RowError, match="key column 'id'"):
        other.upsert([{"may": 2}, {"id": 4, "must": 2}])
    assert other.get(1) == {"id": 1, "must": 1, "may": 2}


@PATHS
def test_ignore_null_holds_for_the_keys_that_a_dict_has(core: CoreTables, small: bool):
    """A null and a key that is not there both leave the cell."""
    table = three_rows(core, small=small)
    table.upsert([{"id": 1, "state": None, "score": 9}, {"id": 2, "rank": 8}], ignore_null=True)
    assert cells(table) == {1: ("new", 9, 1, 0), 2: ("new", 2, 8, 0), 3: ("new", 3, 3, 0)}


@PATHS
def test_dicts_without_an_immutable_column_are_not_refused(core: CoreTables, small: bool):
    """Only those that set it are, or leave it under an IGNORE operation."""
    columns = [
        kudulite.column("id", kudulite.int64),
        kudulite.column("born", kudulite.int64, mutable=False),
        kudulite.column("v", kudulite.int64),
    ]
    client = core.client("i", small_write_rows_max=100 if small else 0)
    table = client.create_table("i", kudulite.schema(columns, "id"))
    table.insert([{"id": 1, "born": 1, "v": 1}])
    table.upsert([{"id": 1, "v": 2}, {"id": 2, "born": 5}])
    assert table.get(1) == {"id": 1, "born": 1, "v": 2}
    with pytest.raises(RowError, match="immutable"):
        table.upsert([{"id": 1, "born": 2}, {"id": 2, "v": 5}])
    table.upsert_ignore([{"id": 1, "born": 7}, {"id": 2, "v": 6}])
    assert table.scan(ordered=True).to_arrow().to_pylist() == [
        {"id": 1, "born": 1, "v": 2},
        {"id": 2, "born": 5, "v": 6},
    ]


def test_an_overwrite_gives_defaults(core: CoreTables):
    """All its rows are new."""
    table = three_rows(core, small=False)
    table.overwrite([{"id": 1, "state": "x"}, {"id": 2, "score": 1}, {"id": 2, "rank": 2}])
    assert cells(table) == {1: ("x", 5, 3, None), 2: (None, 1, 2, None)}


def test_rows_that_are_numbered_may_set_different_columns(core: CoreTables):
    """The engine's ids do not depend on the columns that a dict sets."""
    columns = [
        kudulite.column("g", kudulite.int64),
        kudulite.column("a", kudulite.int64),
        kudulite.column("b", kudulite.int64, default=4),
    ]
    table = core.client("n").create_table("n", kudulite.schema(columns, "g", is_unique=False))
    table.insert([{"g": 1, "a": 1}, {"g": 1, "b": None}, {"g": 1, "b": 2}])
    rows = table.scan(["a", "b"], ordered=True).to_arrow().to_pylist()
    assert rows == [{"a": 1, "b": 4}, {"a": None, "b": None}, {"a": None, "b": 2}]
    ids = table.scan(["auto_incrementing_id"], ordered=True).to_arrow()[0].to_pylist()
    first, second, _ = ({"g": 1, "auto_incrementing_id": number} for number in ids)
    table.upsert([{**first, "b": 9}, {**second, "a": 8}])
    rows = table.scan(["a", "b"], ordered=True).to_arrow().to_pylist()
    assert rows == [{"a": 1, "b": 9}, {"a": 8, "b": None}, {"a": None, "b": 2}]


def test_ordered_dicts_of_one_key_apply_from_the_lowest_value_to_the_highest(core: CoreTables):
    """Each sets its own columns, in whatever order they are in the list, as in lists of their own;
    one below the row's value is outdated.
    """
    changes: list[dict[str, Any]] = [
        {"op": "U", "id": 1, "seq": 6, "state": "b"},
        {"op": "U", "id": 1, "seq": 5, "score": 8},
        {"op": "U", "id": 1, "seq": 4, "state": "a"},
        {"op": "D", "id": 2, "seq": 2},
        {"op": "U", "id": 2, "seq": 3, "score": 9},
        {"op": "U", "id": 3, "seq": 3, "state": "gone"},
        {"op": "D", "id": 3, "seq": 4},
    ]
    table = three_rows(core, small=False)
    table.apply(changes, ordering_column="seq")
    expected = {1: ("b", 8, 1, 6), 2: (None, 9, 3, 3)}
    assert cells(table) == expected
    result = table.apply(changes, ordering_column="seq")
    assert (result.ignored, cells(table)) == (len(changes), expected)
    table.upsert([{"id": 1, "seq": 1, "rank": 7}, {"id": 3, "seq": 4}], ordering_column="seq")
    assert cells(table) == expected
    other = new_table(core, "one_by_one")
    other.insert([{"id": i, "state": "new", "score": i, "rank": i, "seq": 0} for i in (1, 2, 3)])
    for change in sorted(changes, key=lambda change: change["seq"]):
        other.apply([change], ordering_column="seq")
    assert cells(other) == expected


def test_a_tie_compares_the_columns_that_a_dict_sets(core: CoreTables):
    """A change of the row's own ordering value does not lose to cells that it leaves."""
    table = new_table(core, "t")
    table.upsert([{"id": 1, "seq": 1, "state": "b"}, {"id": 2, "seq": 1}], ordering_column="seq")
    second = [{"id": 1, "seq": 1, "score": 7}, {"id": 2, "seq": 1, "state": "z"}]
    table.upsert(second, ordering_column="seq")
    assert cells(table) == {1: ("b", 7, 3, 1), 2: ("z", 5, 3, 1)}


def test_a_delete_takes_dicts_with_other_columns(core: CoreTables):
    """They are ignored, as in a delete of whole columns."""
    table = three_rows(core, small=False)
    assert table.delete([{"id": 1, "state": "x"}, {"id": 2}, {"id": 3, "note": 1}]).deleted == 3


def test_an_unknown_key_of_one_dict_is_named(core: CoreTables):
    """As a column of all."""
    table = three_rows(core, small=False)
    with pytest.raises(SchemaError, match="no column 'stat'"):
        table.upsert([{"id": 1, "state": "x"}, {"id": 2, "stat": "y"}])


def test_whole_columns_set_all_cells(core: CoreTables):
    """A null of Arrow, of a dict of columns, or of a dict in a list of equal dicts is NULL."""
    for number, data in enumerate(
        (
            pa.table({"id": [1, 2], "state": ["x", None], "score": [None, 1]}),
            {"id": [1, 2], "state": ["x", None], "score": [None, 1]},
            [{"id": 1, "state": "x", "score": None}, {"id": 2, "state": None, "score": 1}],
        )
    ):
        table = new_table(core, f"t{number}")
        table.insert([{"id": i, "state": "new", "score": i} for i in (1, 2)])
        table.upsert(data)
        assert cells(table) == {1: ("x", None, 3, None), 2: (None, 1, 3, None)}


def random_dicts(source: random.Random, count: int, *, with_seq: bool) -> list[dict[str, Any]]:
    """Dicts of few keys with random columns."""
    rows = []
    for number in range(count):
        row: dict[str, Any] = {"id": source.randrange(6), "op": source.choice(LENIENT)}
        names = source.sample(COLUMNS[:3], source.randrange(1, 4))
        row |= {name: source.choice([1, 2, 3]) for name in names}
        if "state" in row:
            row["state"] = source.choice(["a", "b", None])
        if with_seq:
            row["seq"] = number
        rows.append(row)
    return rows


def written_one_by_one(table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Write each dict as a list of its own."""
    for row in rows:
        getattr(table, row["op"])([{name: row[name] for name in row if name != "op"}])


@tiered("seed", range(20), quick=4)
def test_a_list_does_what_its_dicts_do_one_after_the_other(core: CoreTables, seed: int):
    """Of any operations on any keys; as one list through `apply`, or one of each operation."""
    source = random.Random(seed)
    plain = new_table(core, "plain", small=True)
    whole = new_table(core, "whole", tablets=source.choice([1, 3]))
    ordered = new_table(core, "ordered")
    for _ in range(3):
        rows = random_dicts(source, source.randrange(1, 12), with_seq=False)
        written_one_by_one(plain, rows)
        whole.apply(rows)
        assert cells(whole) == cells(plain), rows
    number = 0
    for _ in range(3):
        rows = random_dicts(source, source.randrange(1, 12), with_seq=True)
        rows = [{**row, "seq": (number := number + 1)} for row in rows]
        one_by_one = new_table(core, f"one{number}")
        one_by_one.insert(ordered.scan().to_arrow())
        for row in rows:
            one_by_one.apply([row], ordering_column="seq")
        ordered.apply(source.sample(rows, len(rows)), ordering_column="seq")
        assert cells(ordered) == cells(one_by_one), rows


@tiered("seed", range(10), quick=2)
@pytest.mark.parametrize("operation", ["insert", "upsert", "update"])
def test_small_lists_and_large_ones_are_the_same(core: CoreTables, seed: int, operation: str):
    """Through the log or through files: the same rows, or the same kind of error."""
    source = random.Random(seed)
    rows = random_dicts(source, 6, with_seq=False)
    given = [{name: row[name] for name in row if name != "op"} for row in rows]
    outcomes = []
    for small in (True, False):
        table = new_table(core, f"t{small}", small=small)
        table.insert([{"id": i, "state": "s"} for i in range(0 if operation == "insert" else 5)])
        try:
            getattr(table, operation)(given)
            outcomes.append(cells(table))
        except KuduliteError as error:
            outcomes.append(type(error))
    assert outcomes[0] == outcomes[1]
