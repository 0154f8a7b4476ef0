"""Writes by condition: `update(where=…, set={…})` and `delete(where=…)`."""

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import kudulite
from kudulite.client.batch_writer import BatchWriter
from kudulite.client.computed_rows import with_cells
from kudulite.errors import ColumnNotFoundError, OptionError, SchemaError
from kudulite.model.cell import ConstantCell
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.tablet import resolve
from tests.support.tables.core_tables import CoreTables, altered, stored


@pytest.fixture
def table(core: CoreTables) -> kudulite.Table:
    """Rows (k, "red" or "blue", k) for k in 0..9, in two tablets."""
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("color", kudulite.string),
        kudulite.column("v", kudulite.int64, nullable=False),
    ]
    client = core.client()
    made = client.create_table("t", kudulite.schema(columns, "k"), hash_partitions=[(["k"], 2)])
    made.insert([{"k": k, "color": "red" if k % 2 else "blue", "v": k} for k in range(10)])
    return made


def test_an_update_sets_the_columns_of_the_rows_that_match(table):
    """In one version, with the count; None is null; other cells stay."""
    before = table.version
    result = table.update(where=[table["color"] == "red", table["k"] < 6], set={"color": None})
    assert (result.updated, result.inserted, result.deleted, result.ignored) == (3, 0, 0, 0)
    assert result.version == table.version == before + 1
    assert stored(table, result.timestamp)[:3] == [(0, "blue", 0), (1, None, 1), (2, "blue", 2)]
    assert table.update(where=table["color"].is_null(), set={"color": "x", "v": 70}).updated == 3
    assert [row for row in stored(table) if row[2] == 70] == [(k, "x", 70) for k in (1, 3, 5)]


def test_a_delete_removes_the_rows_that_match(table):
    """`()` is every row."""
    assert table.delete(where=table["v"] > 6).deleted == 3
    assert len(stored(table)) == 7
    assert table.update(where=(), set={"v": 1}).updated == 7
    assert table.delete(where=()).deleted == 7
    assert stored(table) == []


@pytest.mark.parametrize(
    "where",
    [
        "color = 'red' AND (v < 2 OR v > 8)",
        [("color", "=", "red"), ("v", "not in", [3, 5, 7])],
        lambda t: (t["color"] == "red") & ~((t["v"] > 1) & (t["v"] < 9)),
    ],
)
def test_a_condition_has_every_form_of_a_scan(table, where):
    """Text, tuples, operators."""
    given = where(table) if callable(where) else where
    assert table.update(where=given, set={"v": 50}).updated == 2
    assert [row[0] for row in stored(table) if row[2] == 50] == [1, 9]
    assert table.delete(where="v = 50 OR color IS NULL").deleted == 2


def test_no_match_is_no_version(table):
    """The result has zero counts, and the moment at which nothing matched."""
    before = table.version
    for result in (
        table.update(where=table["v"] > 60, set={"v": 0}),
        table.delete(where=table["v"] > 60),
    ):
        assert (result.updated, result.deleted, result.version) == (0, 0, before)
        assert stored(table, result.timestamp) == stored(table)
    assert table.version == before


def test_rows_of_a_session_match_too(core, table):
    """Rows in memory are rows."""
    table.flush()
    core.client().table("t").upsert([{"k": 50, "v": 5}, {"k": 51, "v": 5}])
    assert table.update(where=table["v"] == 5, set={"v": 6}).updated == 3


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda t: t.update(), OptionError, "update takes rows, or where=… together with set="),
        (lambda t: t.update(where=()), OptionError, "together with set="),
        (lambda t: t.update(where=(), set={}), OptionError, "together with set="),
        (lambda t: t.update(set={"v": 1}), OptionError, "together with set="),
        (lambda t: t.update([{"k": 1}], set={"v": 1}), OptionError, "rows or set=…, not both"),
        (lambda t: t.update([{"k": 1}], where=()), OptionError, "rows or where=…, not both"),
        (lambda t: t.delete(), OptionError, "delete takes rows, or where=…"),
        (lambda t: t.delete([{"k": 1}], where=()), OptionError, "rows or where=…, not both"),
        (lambda t: t.update(where=(), set=[("v", 1)]), OptionError, "set is a dict .*, not list"),
        (lambda t: t.update(where=(), set={"k": 1}), OptionError, "'k' is part of the primary key"),
        (lambda t: t.update(where=(), set={"v": "a"}), SchemaError, "column 'v'"),
        (lambda t: t.update(where=(), set={"v": None}), SchemaError, "'v' is NOT NULL"),
        (lambda t: t.update(where=(), set={"x": 1}), ColumnNotFoundError, "columns: k, color, v"),
        (
            lambda t: t.update(where=(), set={"v": 1}, ignore_null=True),
            OptionError,
            "option 'ignore_null' is for writes of rows; .* application_id, application_version",
        ),
        (lambda t: t.delete(where=(), overwrite=True), OptionError, "'overwrite' is for writes"),
        (lambda t: t.delete(where=(), wher=()), OptionError, "unknown option 'wher'"),
    ],
)
def test_a_call_that_cannot_be_right_is_refused(
    table: kudulite.Table, call: Callable[[Any], object], error: type[Exception], message: str
):
    """Before anything is read or written."""
    before = table.version
    with pytest.raises(error, match=message):
        call(table)
    assert table.version == before


def test_a_set_value_is_a_cell_of_its_column(core):
    """Of any type, in the forms that rows take; also an array."""
    cells = {
        "a": (kudulite.array(kudulite.int32), [1, None]),
        "b": (kudulite.binary, b"\0"),
        "d": (kudulite.decimal(5, 2), Decimal("1.50")),
        "t": (kudulite.unixtime_micros, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
        "f": (kudulite.float_, 0.5),
        "o": (kudulite.bool_, True),
        "y": (kudulite.date, datetime.date(2026, 1, 1)),
    }
    columns = [kudulite.column("k", kudulite.int32)]
    columns += [kudulite.column(name, kind) for name, (kind, _) in cells.items()]
    table = core.client().create_table("t", kudulite.schema(columns, "k"))
    table.insert([{"k": 1}])
    values = {name: value for name, (_, value) in cells.items()}
    assert table.update(where=(), set=values).updated == 1
    assert table.get(1) == {"k": 1, **values}
    assert table.update(where=(), set=dict.fromkeys(cells)).updated == 1
    assert table.get(1) == {"k": 1, **dict.fromkeys(cells)}


def test_an_application_version_is_written_once(table):
    """Also where nothing matches, so that a repetition is known."""
    options = {"application_id": "job", "application_version": 1}
    first = table.update(where=table["v"] > 60, set={"v": 0}, **options)
    assert (first.updated, first.skipped) == (0, False)
    table.upsert([{"k": 70, "v": 70}])
    assert table.update(where=table["v"] > 60, set={"v": 0}, **options).skipped
    assert table.get(70)["v"] == 70


def test_rows_that_another_writer_changes_are_read_again(table, monkeypatch):
    """The condition is evaluated anew: a row that no longer matches is left alone."""
    changes = [{"k": 3, "color": "green"}, {"k": 5, "v": 55}]
    plain = BatchWriter.run_bulk

    def run(self, write, batches, *rest):
        if changes:
            plain(self, table.new_bulk_write("upsert", ignore_null=True), [_all(changes.pop())])
        return plain(self, write, batches, *rest)

    monkeypatch.setattr(BatchWriter, "run_bulk", run)
    result = table.update(where=table["color"] == "red", set={"v": 100})
    assert result.updated == 4 and not changes
    found = {k: (color, v) for k, color, v in stored(table)}
    assert (found[3], found[5], found[1]) == (("green", 3), ("red", 100), ("red", 100))


def _all(row: dict[str, Any]) -> pa.Table:
    """One row with all columns."""
    schema = pa.schema({"k": pa.int32(), "color": pa.string(), "v": pa.int64()})
    return pa.Table.from_pylist([row], schema)


def test_a_write_beside_a_writer_of_its_rows_wins_the_second_time(table, monkeypatch):
    """It reads the rows that changed again, and leaves no record."""
    plain, values = BatchWriter.run_bulk, iter(range(100, 200))

    def run(self, write, batches, *rest):
        row = {"k": 3, "color": "red", "v": next(values)}
        plain(self, table.new_bulk_write("upsert"), [_all(row)])
        return plain(self, write, batches, *rest)

    monkeypatch.setattr(BatchWriter, "run_bulk", run)
    assert table.delete(where=table["color"] == "red").deleted == 5
    assert next(values) == 102
    assert list((table.path / "writes").iterdir()) == []


def test_an_altered_table_is_written_as_it_is_now(core, table):
    """A column that was added is set; names are those of now."""
    altered(core.client(), "t", lambda alterer: alterer.add_column("w", kudulite.int8))
    altered(core.client(), "t", lambda alterer: alterer.alter_column("v", rename_to="x"))
    assert table.update(where=table["x"] >= 8, set={"w": 1, "x": 0}).updated == 2


def test_a_large_constant_is_cut_into_small_batches():
    """A text of 1 MiB for 100,000 rows would be 100 GB."""
    batch = pa.record_batch({"k": pa.array(range(40))})
    cell = ConstantCell(pa.scalar("x" * (1 << 20)))
    parts = list(with_cells(iter([batch]), ["k"], {"s": cell}))
    assert sum(part.num_rows for part in parts) == 40
    assert max(part.nbytes for part in parts) <= 17 << 20


@pytest.mark.parametrize("cells_at_once", [1 << 20, 30])
def test_cells_of_an_update_are_compared_with_stored_ones_by_rowset(
    core, monkeypatch, cells_at_once
):
    """All columns of few rows are read at once, and some columns of many; equal cells are left."""
    names = [f"c{n}" for n in range(60)]
    types = [("k", pa.int64()), *((name, pa.int64()) for name in names)]
    table = core.client().create_table("wide", pa.schema(types), primary_key="k")
    table.insert(pa.table({"k": range(5), **{name: range(5) for name in names}}))
    table.flush()
    reads = []
    read_rows = DiskRowSet.read_rows

    def counted(rowset, rowids, columns, *rest, **more):
        reads.append(len(columns))
        return read_rows(rowset, rowids, columns, *rest, **more)

    monkeypatch.setattr(resolve, "_CELLS_MAX", cells_at_once)
    monkeypatch.setattr(DiskRowSet, "read_rows", counted)
    done = table.update(where="k >= 2", set={**dict.fromkeys(names, 3), "c59": 4})
    assert reads == ([60] if cells_at_once > 60 else [10] * 6)
    assert done.updated == 3
    expected = [{"k": k, **dict.fromkeys(names, k if k < 2 else 3)} for k in range(5)]
    for row in expected[2:]:
        row["c59"] = 4
    assert sorted(table.scan().to_pylist(), key=lambda row: row["k"]) == expected
