"""Overlays: base files with changed cells laid over them are the snapshot."""

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kudulite
from kudulite import Table
from kudulite.delta.delta_applier import DeltaApplier
from kudulite.reads.native_overlay import Overlay
from kudulite.reads.native_plan import plan_native
from kudulite.reads.native_scan import _LIMITS
from kudulite.table.read_request import ReadRequest, plan_rows
from tests.support.tables.typed_tables import random_table
from tests.support.tiers import by_tier, tiered


def multiset(rows: pa.Table) -> list[str]:
    """Rows that may hold NaN, in an order, to be compared."""
    return sorted(map(repr, rows.to_pylist()))


def rows_of_overlaid_plan(
    table: Table, moment: object, batch_rows: int | None, flag_type: pa.DataType
) -> pa.Table:
    """The rows of a plan with overlays, joined by position in Python."""
    read = plan_rows(table._store, ReadRequest.of(at=moment))
    plan = plan_native(read, lambda file: True, _LIMITS, with_overlays=True)
    parts = [plan.rows] + [
        pa.Table.from_batches([batch]) for token in plan.tokens for batch in token.open()
    ]
    for file in plan.files:
        overlay = Overlay([file], "kept", flag_type)
        beside = pa.Table.from_batches(overlay.read(overlay.schema.names, batch_rows))
        assert beside.num_rows == file.row_count
        stored, columns = pq.ParquetFile(file.path).read(), []
        for item in file.columns:
            values = stored[item.stored_name].to_pylist()
            names = overlay.names_of(item.column.name)
            if names is not None:
                flags, new = beside[names[0]].to_pylist(), beside[names[1]].to_pylist()
                values = [
                    n if is_new else v for v, is_new, n in zip(values, flags, new, strict=True)
                ]
            columns.append(pa.array(values, item.column.type.arrow))
        whole = pa.table(columns, schema=read.schema)
        parts.append(whole.filter(beside["kept"].combine_chunks().cast(pa.bool_())))
    return pa.concat_tables([part.cast(read.schema) for part in parts])


@tiered("seed", range(8), quick=[5])
def test_files_with_their_overlays_and_the_rest_are_the_snapshot(tmp_path, seed):
    """At every moment, with batches of any length, and flags of bits or bytes."""
    made = random_table(tmp_path / "t", seed, 6)
    made.update()
    made.stand_still()
    moments = made.random.sample(made.moments[1:], by_tier(2, 6))
    for number, moment in enumerate([*moments, None]):
        expected = multiset(made.table.scan(at=moment).to_arrow())
        flag_type = [pa.bool_(), pa.uint8()][number % 2]
        found = rows_of_overlaid_plan(made.table, moment, [None, 7, 16][number % 3], flag_type)
        assert multiset(found) == expected, (seed, moment)


def changed_table(path) -> tuple[Table, dict[int, dict]]:
    """1,000 rows in two tablets: upserted, updated in one column, also to NULL, and deleted."""
    rows = pa.table(
        {"id": range(1000), "price": [i / 4 for i in range(1000)], "note": ["x"] * 1000}
    )
    client = kudulite.connect(path, background_maintenance=False)
    table = client.create_table("t", rows.schema, primary_key="id", hash_partitions=[(["id"], 2)])
    table.insert(rows)
    table.flush()
    model = {row["id"]: row for row in rows.to_pylist()}
    upserted = [{"id": i, "price": -i, "note": f"u{i}"} for i in range(100, 200)]
    table.upsert(pa.Table.from_pylist(upserted, schema=rows.schema))
    table.flush()
    model |= {row["id"]: row for row in upserted}
    updated = [{"id": i, "price": None if i % 3 else i * 2.0} for i in range(150, 500, 7)]
    schema = pa.schema([rows.schema.field("id"), rows.schema.field("price")])
    table.update(pa.Table.from_pylist(updated, schema=schema))
    for row in updated:
        model[row["id"]] = model[row["id"]] | row
    table.flush()
    table.delete(pa.table({"id": range(0, 1000, 9)}))
    table.flush()
    return table, {i: row for i, row in model.items() if i % 9}


def plan_of(table: Table):
    """The plan of a native scan of all columns."""
    read = plan_rows(table._store, ReadRequest.of())
    return plan_native(read, lambda file: True, _LIMITS, with_overlays=True)


def test_only_the_columns_that_some_rows_change_are_overlaid(tmp_path):
    """Rows of an upsert and deleted rows are excluded; rows of the update stay in the files."""
    table, _ = changed_table(tmp_path)
    plan = plan_of(table)
    assert len(plan.files) == 2 and not plan.rows.num_rows
    for file in plan.files:
        assert [column.name for column in file.overlaid] == ["price"]
    excluded = sum(len(file.excluded) for file in plan.files)
    assert excluded == len({*range(100, 200), *range(0, 1000, 9)})
    names = ["id", "note"]
    read = plan_rows(table._store, ReadRequest.of(names))
    of_others = plan_native(read, lambda file: True, _LIMITS, with_overlays=True)
    assert not any(file.overlaid for file in of_others.files)


def test_engines_read_changed_tables_without_base_data_of_kudulite(tmp_path, monkeypatch):
    """A query without key columns needs deltas only, also in many small batches."""
    table, model = changed_table(tmp_path)
    expected = sorted((row["note"], row["price"]) for row in model.values() if row["price"])

    def refuse(self, *given):
        raise AssertionError("base data was read")

    for name in ("read", "gather", "read_some"):
        monkeypatch.setattr(f"kudulite.rowset.disk_rowset.BaseColumns.{name}", refuse)
    monkeypatch.setattr("kudulite.reads.native_scan.ROW_GROUP_ROWS", 64)
    monkeypatch.setattr("kudulite.tablet.tablet_scan.ROW_GROUP_ROWS", 16)
    relation = table.to_duckdb(duckdb.connect()).filter("price != 0").project("note, price")
    assert sorted(relation.fetchall()) == expected
    frame = table.to_polars().filter(pl.col("price") != 0).select("note", "price")
    for engine in ("in-memory", "streaming"):
        assert sorted(frame.collect(engine=engine).rows()) == expected


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_a_limit_and_a_count_of_overlaid_files(tmp_path, monkeypatch, threads):
    """Joins by position survive a query that wants few rows, no columns, or one of the keys."""
    monkeypatch.setattr("kudulite.reads.native_scan.READ_THREADS", threads)
    table, model = changed_table(tmp_path)
    rows = {tuple(row.values()) for row in model.values()}
    relation, frame = table.to_duckdb(duckdb.connect()), table.to_polars()
    assert relation.count("*").fetchall() == [(len(rows),)]
    assert frame.select(pl.len()).collect().item() == len(rows)
    for count in (1, 30, 5000):
        found = relation.limit(count).fetchall()
        assert len(found) == min(count, len(rows)) and set(found) <= rows
        for engine in ("in-memory", "streaming"):
            found = frame.head(count).collect(engine=engine).rows()
            assert len(found) == min(count, len(rows)) and set(found) <= rows
    assert relation.filter("id = 157").fetchall() == [tuple(model[157].values())]
    assert frame.filter(pl.col("id") == 157).collect().rows() == [tuple(model[157].values())]


def test_tables_of_the_user_do_not_hide_overlays(tmp_path):
    """Names that the query uses for itself may be names in the user's database."""
    table, model = changed_table(tmp_path)
    connection = duckdb.connect()
    for name in ("overlay", "stored", "kept", "duck", "text"):
        connection.execute(f"CREATE TABLE {name} (a int)")
    assert table.to_duckdb(connection).count("*").fetchall() == [(len(model),)]


def test_rows_of_deltas_alone_equal_the_rows_of_blocks(tmp_path, monkeypatch):
    """Reading deltas alone only skips base data; tokens give the same rows without it."""
    table, _ = changed_table(tmp_path)
    for names in (["price", "note"], ["id", "price"], ["note"]):
        plan = table.native_plan(names, limits=kudulite.NativeLimits(handed_bytes_max=0))
        found = [multiset(pa.Table.from_batches(token.open())) for token in plan.tokens]
        with monkeypatch.context() as patch:
            patch.setattr(DeltaApplier, "complete_cells", lambda self, types, rowids: None)
            blocks = [multiset(pa.Table.from_batches(token.open())) for token in plan.tokens]
        assert found == blocks and found
