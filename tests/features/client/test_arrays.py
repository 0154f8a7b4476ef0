"""Columns of arrays: what each way of writing stores and each way of reading gives."""

import numpy as np
import pyarrow as pa
import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.errors import KuduliteError, OptionError, RowError, SchemaError
from tests.support.tables.core_tables import CoreTables
from tests.support.tables.readings import every_reading


@pytest.fixture
def client(core: CoreTables) -> Client:
    """A client with table t (k | numbers array(int32), words array(varchar(3)), n)."""
    client = core.client()
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("numbers", kudulite.array(kudulite.int32)),
        kudulite.column("words", "array(varchar(3))", encoding="dict"),
        kudulite.column("n", kudulite.int64),
    ]
    client.create_table("t", kudulite.schema(columns, "k"))
    return client


def row(k: int, numbers=None, words=None, n=None) -> dict:
    """A row of the table."""
    return {"k": k, "numbers": numbers, "words": words, "n": n}


@pytest.mark.both
def test_rows_are_what_was_written_in_memory_in_deltas_and_after_compactions(client: Client):
    """Now and at every moment, with NULL, no elements, and elements that are NULL."""
    table = client.table("t")
    states = []

    def note(expected: list[dict]) -> None:
        states.append((table.current_timestamp(), expected))

    table.insert([row(1, [1, None], ["a", None]), row(2, [], []), row(3), row(4, [None], ["abc"])])
    rows = {r["k"]: r for r in every_reading(table)}
    assert rows[1] == row(1, [1, None], ["a", None]) and rows[2] == row(2, [], [])
    note(list(rows.values()))
    session = client.new_session()
    session.apply(table.new_upsert(row(2, [5], None, 7)))
    session.apply(table.new_update({"k": 3, "words": ("x", None)}))
    session.apply(table.new_insert(row(5, np.array([1, 2], np.int32), [])))
    session.flush()
    rows |= {2: row(2, [5], None, 7), 3: row(3, None, ["x", None]), 5: row(5, [1, 2], [])}
    assert every_reading(table) == list(rows.values())
    note(list(rows.values()))
    table.update({"k": [1, 5], "numbers": [None, []]})
    table.delete({"k": [4]})
    del rows[4]
    rows[1], rows[5] = rows[1] | {"numbers": None}, rows[5] | {"numbers": []}
    note(list(rows.values()))
    for change in (table.flush, table.compact, table.maintain):
        change()
        for moment, expected in states:
            assert every_reading(table, at=moment) == expected
    found = [version["numbers"] for version in table.history((1,)).to_pylist()]
    assert found == [[1, None], None]
    changes = table.changes(states[0][0], states[2][0]).to_arrow().sort_by("k").to_pylist()
    assert [(c["k"], c["_change_type"], c["numbers"]) for c in changes] == [
        (1, "update_postimage", None),
        (2, "update_postimage", [5]),
        (3, "update_postimage", None),
        (4, "delete", [None]),
        (5, "insert", []),
    ]
    table.purge([(1,)])
    assert [r["k"] for r in every_reading(table, at=states[0][0])] == [2, 3, 4]


@pytest.mark.both
def test_columns_of_arrays_are_added_renamed_and_dropped(client: Client):
    """Old rows show NULL."""
    table = client.table("t")
    table.insert([row(1, [1])])
    alterer = client.new_table_alterer(table)
    alterer.add_column("late", kudulite.array("double"))
    alterer.alter_column("numbers", rename_to="old")
    table = alterer.drop_column("words").alter()
    table.upsert([{"k": 2, "late": [0.5, None]}])
    table.compact()
    assert every_reading(table) == [
        {"k": 1, "old": [1], "n": None, "late": None},
        {"k": 2, "old": None, "n": None, "late": [0.5, None]},
    ]


@pytest.mark.both
def test_a_table_is_made_of_any_layout_of_lists(core: CoreTables):
    """As pandas, Polars and others have them."""
    data = pa.table(
        {
            "k": [1, 2],
            "large": pa.array([["a"], None], pa.large_list(pa.large_string())),
            "fixed": pa.array([[1, 2], [3, None]], pa.list_(pa.int16(), 2)),
        }
    )
    table = core.client().create_table("u", data.schema, primary_key="k")
    assert [str(c.type) for c in table.schema] == ["int64", "array(string)", "array(int16)"]
    table.insert(data)
    assert every_reading(table) == data.to_pylist()


REFUSED = {
    "equality": lambda t: t.scan(where=t["numbers"] == [1]),
    "in": lambda t: t.scan(where=t["numbers"].in_list([[1]])),
    "ordering": lambda t: t.upsert([row(1, [1])], ordering_column="numbers"),
    "a value": lambda t: t.upsert([row(1, ["a"])]),
    "a long element": lambda t: t.upsert(
        pa.table({"k": pa.array([1], pa.int32()), "words": [["abcd"]]})
    ),
    "a scalar": lambda t: t.new_insert(row(1, 5)),
    "an element": lambda t: t.new_insert(row(1, None, ["abcd"])),
    "a wide element": lambda t: t.new_insert(row(1, [2**31])),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_arrays_cannot_do_is_refused_by_name(client: Client, case):
    """The message names the column; nothing is written."""
    table = client.table("t")
    with pytest.raises((SchemaError, OptionError, RowError), match=r"'(numbers|words)'"):
        REFUSED[case](table)
    assert table.scan().count() == 0


@pytest.mark.parametrize(
    ("options", "layout"),
    [
        ({"default": [1]}, {}),
        ({"encoding": "rle"}, {}),
        ({}, {"primary_key": ["k", "l"]}),
        ({}, {"hash_partitions": [(["l"], 2)]}),
        ({}, {"range_partitions": {"columns": ["l"], "bounds": [[None, None]]}}),
    ],
)
def test_a_layout_that_arrays_cannot_have(core: CoreTables, options, layout):
    """No default, no key, no hash and no range partitions."""
    with pytest.raises(KuduliteError, match="'l'"):
        columns = [kudulite.column("k", kudulite.int32, nullable=False)]
        nullable = "primary_key" not in layout
        columns.append(kudulite.column("l", "array(int32)", nullable=nullable, **options))
        core.client().create_table(
            "u", kudulite.schema(columns, layout.pop("primary_key", ["k"])), **layout
        )
