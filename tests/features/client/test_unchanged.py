"""`unchanged="skip"`: cells and rows that are equal to those of the table are not written."""

import random

import pyarrow as pa
import pytest

import kudulite
from kudulite.client.bulk_write import BulkWrite
from kudulite.errors import OptionError
from kudulite.table.table_store import TableStore
from tests.support.tables.core_tables import CoreTables, stored
from tests.support.tiers import tiered

SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.float64()), ("s", pa.string())])


def rows(keys, value: float = 0.0, text: str | None = "x") -> pa.Table:
    """Rows of one value."""
    return pa.table({"k": [*keys], "v": [value] * len(keys), "s": [text] * len(keys)}, SCHEMA)


@pytest.fixture
def table(core: CoreTables) -> kudulite.Table:
    """1,000 rows in two tablets."""
    client = core.client(small_write_rows_max=0)
    table = client.create_table("t", SCHEMA, primary_key="k", hash_partitions=[(["k"], 2)])
    table.upsert(rows(range(1000)))
    return table


def test_a_snapshot_changes_the_rows_that_differ(table):
    """They are counted apart, and only they are in the changes and in the files."""
    moment, size = table.current_timestamp(), table.statistics.bytes_on_disk
    snapshot = pa.concat_tables([rows(range(990)), rows(range(990, 1010), 1.0)])
    result = table.upsert(snapshot, unchanged="skip")
    assert (result.inserted, result.updated, result.unchanged) == (10, 10, 990)
    assert table.changes(moment).to_arrow().num_rows == 20
    assert table.statistics.bytes_on_disk < 3 * size
    assert stored(table)[-1] == (1009, 1.0, "x")
    version = table.version
    again = table.upsert(snapshot, unchanged="skip")
    assert (
        (again.updated, again.unchanged, again.version)
        == (0, 1010, version)
        == (
            0,
            1010,
            table.version,
        )
    )
    assert table.upsert(snapshot).updated == 1010


def test_equal_is_equal_in_every_bit(table):
    """NaN is NaN, NULL is NULL, and 0.0 is not -0.0."""
    table.upsert(rows([1], float("nan"), None))
    result = table.upsert(
        pa.concat_tables([rows([1], float("nan"), None), rows([2], -0.0)]), unchanged="skip"
    )
    assert (result.updated, result.unchanged) == (1, 1)
    assert repr(table.get(2)["v"]) == "-0.0"


def test_cells_that_are_equal_are_left_out(table):
    """An update of a row by two writers keeps the cells of both."""
    first = table.new_bulk_write("upsert", unchanged="skip")
    staged = first.stage([rows([1], 5.0)])
    assert table.upsert(rows([1], 0.0, "other"), unchanged="skip").updated == 1
    assert first.commit([staged]).updated == 1
    assert table.get(1) == {"k": 1, "v": 5.0, "s": "x"}  # the later write sets its whole row


def test_updates_and_mixed_batches_skip_too(table):
    """Deletes and inserts are as without the option."""
    result = table.update(rows([1, 2]).select(["k", "v"]), unchanged="skip")
    assert (result.updated, result.unchanged) == (0, 2)
    changes = [
        {"op": "U", "k": 1, "v": 0.0, "s": "x"},
        {"op": "U", "k": 2, "v": 3.0, "s": "x"},
        {"op": "D", "k": 3, "v": None, "s": None},
        {"op": "I", "k": 2000, "v": 0.0, "s": "x"},
    ]
    result = table.apply(changes, unchanged="skip")
    assert (result.inserted, result.updated, result.deleted, result.unchanged) == (1, 1, 1, 1)


def test_dicts_with_columns_of_their_own_skip_them(table):
    """A column that a dict lacks stays as it is."""
    result = table.upsert([{"k": 1, "v": 0.0}, {"k": 2, "s": "y"}], unchanged="skip")
    assert (result.updated, result.unchanged) == (1, 1)
    assert table.get(2) == {"k": 2, "v": 0.0, "s": "y"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unchanged": "keep"}, "unchanged is 'skip' or left out, not 'keep'"),
        ({"unchanged": True}, "unchanged is 'skip' or left out, not True"),
        ({"unchanged": "skip", "overwrite": 1}, "overwrite is True or False, not 1"),
    ],
)
def test_other_values_are_refused(table, options, message):
    """Before anything is written."""
    with pytest.raises(OptionError, match=message):
        table.upsert(rows([1]), **options)


@tiered("seed", range(30))
def test_the_rows_are_those_of_a_write_without_the_option(core, seed, monkeypatch):
    """Whatever other writers change between its staging and its commit, and compactions."""
    choose = random.Random(seed)
    client = core.client(small_write_rows_max=0)
    names, schema = ("skipped", "plain"), {"primary_key": "k", "hash_partitions": [(["k"], 2)]}
    tables = [client.create_table(name, SCHEMA, **schema) for name in names]
    for table in tables:
        table.upsert(rows(range(40)))

    def other_writes() -> list:
        kind = choose.choice(["upsert", "delete", "insert", "compact", "update"])
        keys, value = choose.sample(range(50), 5), float(choose.randint(0, 1))
        given = rows(keys, value, choose.choice("xy"))
        return {
            "upsert": [lambda t: t.upsert(given)],
            "update": [lambda t: t.update_ignore(given.select(["k", "s"]))],
            "delete": [lambda t: t.delete_ignore(given.select(["k"]))],
            "insert": [lambda t: t.insert_ignore(given)],
            "compact": [lambda t: t.upsert(given), lambda t: t.compact()],
        }[kind]

    for _ in range(4):
        operation = choose.choice(["upsert", "insert_ignore", "update_ignore", "delete_ignore"])
        options = dict[str, object]()
        if operation == "upsert":
            rules = [{}, {"overwrite": True}, {"ignore_null": True}, {"ordering_column": "v"}]
            options = choose.choice(rules) | choose.choice(rules)
        texts = ["x", "y", None] if options else ["x", "y"]
        parts = [
            pa.concat_tables(
                rows([key], float(choose.randint(0, 1)), choose.choice(texts))
                for key in choose.sample(range(50), 12)
            )
            for _ in range(choose.choice([1, 2]))
        ]
        between, under = other_writes(), other_writes()
        for table, unchanged in zip(tables, ("skip", None), strict=True):
            names = ["k"] if operation == "delete_ignore" else None
            write = table.new_bulk_write(operation, columns=names, unchanged=unchanged, **options)
            staged = [
                write.stage([part.select(names or SCHEMA.names)], at)
                for at, part in enumerate(parts)
            ]
            for action in between:
                action(table)
            plain = TableStore.locked

            def locked(self, work, *given, table=table, plain=plain, under=under, **options):
                if work.startswith("commit of write"):
                    monkeypatch.setattr(TableStore, "locked", plain)
                    for action in under:
                        action(table)
                return plain(self, work, *given, **options)

            monkeypatch.setattr(TableStore, "locked", locked)
            BulkWrite.commit(write, staged)
            monkeypatch.setattr(TableStore, "locked", plain)
        assert stored(tables[0]) == stored(tables[1]), (seed, operation, options)
