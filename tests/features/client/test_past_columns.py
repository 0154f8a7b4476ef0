"""Reads of the past have the columns of then; names mean the columns that had them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import kudulite
from kudulite import Client, ScanToken, Table
from kudulite.errors import (
    ColumnNotFoundError,
    ConflictError,
    TimestampError,
)
from kudulite.kudu.errors import KuduBadStatus
from kudulite.kudu.scanner import Scanner
from kudulite.upkeep.alter import forget_alterations
from tests.support.tables.core_tables import CoreTables, altered
from tests.support.tables.moved_columns import ROWS, renewed, rows_table, swapped

OTHER_KEYS = [{"k": k} for k in range(6)]


@pytest.fixture
def client(core: CoreTables) -> Client:
    """A client."""
    return core.client()


@pytest.fixture(params=["memory", "base"])
def table(client: Client, request: pytest.FixtureRequest) -> Table:
    """A table of two tablets, with its rows in memory or in base data."""
    made = rows_table(client)
    if request.param == "base":
        made.flush()
    return made


READS: dict[str, Callable[[Table, Any], list[dict]]] = {
    "scan": lambda table, at: table.scan(at=at).to_pylist(),
    "ordered": lambda table, at: table.scan(at=at, ordered=True).to_pylist(),
    "get": lambda table, at: [table.get(k, at=at) for k in range(6)],
    "get_many": lambda table, at: table.get_many(OTHER_KEYS, at=at).to_pylist(),
    "tokens": lambda table, at: [
        row for token in table.scan_tokens(at=at) for b in token.open() for row in b.to_pylist()
    ],
    "scanner": lambda table, at: [
        dict(zip(scanner.get_projection_schema().names, row, strict=True))
        for scanner in [Scanner(table).set_snapshot(at).open()]
        for row in scanner.read_all_tuples()
    ],
    "polars": lambda table, at: table.scan(at=at).to_polars().collect().to_dicts(),
    "duckdb": lambda table, at: table.scan(at=at).to_duckdb().to_arrow_table().to_pylist(),
    "changes": lambda table, at: [
        {name: row[name] for name in table.schema_at(at).names}
        for row in table.changes(0, at).to_pylist()
    ],
}


def by_key(rows: list[dict]) -> list[dict]:
    """Rows in key order."""
    return sorted(rows, key=lambda row: row["k"])


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("alter", [renewed, swapped])
def test_a_read_of_a_moment_has_its_columns(client, table, read, alter):
    """Before and after compactions, which keep the cells of dropped columns."""
    before = table.current_timestamp()
    table = alter(client)
    table.upsert([{"k": 0, "b": 77}, {"k": 9, "b": 78}])
    for _ in range(2):
        assert by_key(READS[read](table, before)) == ROWS
        now = {row["k"]: row for row in READS[read](table, table.current_timestamp())}
        assert now[0]["b"] == 77
        assert now[1] == {"k": 1, "b": 10, "a": "new"} or now[1] == {"k": 1, "b": 1, "a": 10}
        assert list(now[1]) == table.schema.names
        table.flush()
        table.compact()
    table.check().raise_if_bad()


def test_the_schema_is_that_of_the_moment(client, table):
    """With nullability and types of then, also of a column that was widened before its drop."""
    moments = [table.current_timestamp()]
    steps: list[Callable[[Any], object]] = [
        lambda alterer: alterer.alter_column("a").type(kudulite.int64),
        lambda alterer: alterer.alter_column("k", rename_to="key"),
        lambda alterer: alterer.drop_column("a"),
    ]
    for step in steps:
        table = altered(client, "t", step)
        moments.append(table.current_timestamp())
    table.upsert([{"key": 1, "b": 1}])
    table.compact()
    keys, types = ["k", "k", "key", "key"], [pa.int32(), pa.int64(), pa.int64(), None]
    for at, key, a_type in zip(moments, keys, types, strict=True):
        fields = [pa.field(key, pa.int64(), False), pa.field("b", pa.int32())]
        if a_type is not None:
            fields.insert(1, pa.field("a", a_type, False))
        found = table.scan(at=at, ordered=True).to_arrow()
        assert found.schema == table.schema_at(at).result_schema() == pa.schema(fields)
        if a_type is not None:
            assert found["a"].to_pylist() == list(range(6))
            assert table.scan("b", where="a = 4", at=at).to_pylist() == [{"b": 40}]
        assert table.get_many([{key: 3}], at=at).schema == found.schema
        assert table.get({key: 3}, at=at) == found.to_pylist()[3]
    assert table.scan(at=moments[0]).columns == list(table.schema_at(moments[0]).columns)


def test_a_name_of_another_moment_is_an_error_that_lists_both_columns(client, table):
    """The columns of the moment, and those of the table now."""
    before = table.current_timestamp()
    table = altered(client, "t", lambda alterer: alterer.alter_column("b", rename_to="c"))
    text = (
        "no column 'c'.*; columns: k, a, b; these are the columns at .*; the table now has k, a, c"
    )
    for read in (
        lambda: table.scan("c", at=before),
        lambda: table.scan(where="c = 1", at=before),
        lambda: table.changes(0, before, columns="c"),
    ):
        with pytest.raises(ColumnNotFoundError, match=text):
            read()


@pytest.mark.parametrize("alter", [renewed, swapped])
def test_reads_that_were_made_before_keep_their_columns(client, table, alter):
    """A scan, a token of another process, a scanner, a LazyFrame, a relation, and changes."""
    scan, changes = table.scan(), table.changes(0)
    tokens = [pickle.dumps(token) for token in table.scan_tokens(where=table["a"] < 3)]
    frame, relation = scan.to_polars(), scan.to_duckdb()
    table = alter(client)
    table.upsert([{"k": 0, "b": 77}])
    table.compact()
    assert by_key(scan.to_pylist()) == ROWS
    assert by_key(frame.collect().to_dicts()) == ROWS
    assert by_key(relation.to_arrow_table().to_pylist()) == ROWS
    assert [{n: row[n] for n in "kab"} for row in by_key(changes.to_pylist())] == ROWS
    opened = [batch for t in tokens for batch in ScanToken.from_bytes(t).open()]
    assert by_key([row for batch in opened for row in batch.to_pylist()]) == ROWS[:3]


def test_a_scanner_that_was_made_before_reads_now_by_id_or_says_why_not(client, table):
    """Its names are those of the schema that it was made with."""
    scanner, late = Scanner(table), Scanner(table).set_projected_column_names(["a"])
    altered(client, "t", lambda alterer: alterer.alter_column("a", rename_to="c"))
    altered(client, "t", lambda alterer: alterer.alter_column("b", rename_to="a"))
    assert sorted(scanner.open().read_all_tuples()) == [tuple(row.values()) for row in ROWS]
    altered(client, "t", lambda alterer: alterer.drop_column("c"))
    with pytest.raises(KuduBadStatus, match="the column 'a' of id 1, which was dropped at"):
        late.open()


def test_versions_that_ended_before_a_column_was_added_are_null_in_it(client, table):
    """The row never had its default; the version that was there when it was added has it."""
    table.upsert([{"k": 1, "a": 5, "b": 5}])
    table.delete([{"k": 2}])
    table = renewed(client)
    table.upsert([{"k": 1, "a": "set", "b": 6}, {"k": 2, "a": "again", "b": 0}])
    for _ in range(2):
        assert table.history(1)["a"].to_pylist() == [None, "new", "set"]
        assert table.history(2)["a"].to_pylist() == [None, None, "again"]
        assert table.history(3)["a"].to_pylist() == ["new"]
        assert table.history(3).schema.field("a").nullable
        table.compact()


def test_changes_have_the_columns_of_their_end_whatever_is_altered_later(client, table):
    """The same window gives the same changes."""
    start = table.current_timestamp()
    table.update([{"k": 1, "a": 50}])
    changes = table.changes(start, images="both")
    expected = changes.to_arrow()
    table = renewed(client)
    table.compact()
    assert table.changes(start, changes.end, images="both").to_arrow().equals(expected)
    assert expected["a"].to_pylist() == [1, 50]
    assert table.changes(start).count() == 0  # a change of a dropped column


def test_the_cells_of_a_dropped_column_go_when_no_legal_read_needs_them(core, client, table):
    """Once the drop is ancient: then also the names of then are unknown."""
    before = table.current_timestamp()
    table.tag("kept", before)
    scan = table.scan()
    table = altered(client, "t", lambda alterer: alterer.drop_column("a"))
    altered(client, "t", lambda alterer: alterer.set_history_retention(0))
    table.maintain(0)
    table.compact()
    assert by_key(table.scan(at=before).to_pylist()) == ROWS
    table.delete_tag("kept")
    table.upsert([{"k": 1, "b": 3}])
    forget_alterations(table._store)
    assert table._store.newest().schema_changes == ()
    with pytest.raises(TimestampError, match="before the ancient history mark"):
        table.scan(at=before)
    with pytest.raises((TimestampError, ConflictError)):
        scan.to_arrow()
    table.insert([{"k": k} for k in (-1, -2, 50, 51)])  # rowsets that overlap are merged
    table.compact()
    metas = [m for e in table._store.newest().tablets for m in table._store.tablet(e).rowsets]
    assert not any(1 in base.column_ids for rowset in metas for base in rowset.meta.base)


def test_a_purge_leaves_the_dropped_columns_of_other_rows(client, table):
    """And a copy of the table has them, too."""
    before = table.current_timestamp()
    table = renewed(client)
    table.purge([{"k": 3}])
    left = [row for row in ROWS if row["k"] != 3]
    assert by_key(table.scan(at=before).to_pylist()) == left
    table.copy_to(table.path.parent / "copy")
    assert by_key(client.table("copy").scan(at=before).to_pylist()) == left


def test_a_column_that_is_renamed_dropped_and_added_in_one_version_is_a_new_one(client, table):
    """Its name of before, or of within the alteration, gives it no values."""
    before = table.current_timestamp()

    def alter(alterer: Any) -> None:
        alterer.alter_column("a", rename_to="x")
        alterer.drop_column("x")
        alterer.add_column("x", kudulite.int32, default=7)

    table = altered(client, "t", alter)
    for _ in range(2):
        assert {row["x"] for row in table.scan().to_pylist()} == {7}
        assert by_key(table.scan(at=before).to_pylist()) == ROWS
        table.upsert([{"k": 0, "b": 0}])
        table.compact()
