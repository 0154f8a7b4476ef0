"""RowSetWriter: rows in pieces become the same rowsets as rows at once, in bounded memory."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kudulite.basefile import base_data
from kudulite.model.encoded_key import encode_keys
from kudulite.model.schema import Schema
from kudulite.rowset import rowset_writer
from kudulite.rowset.row_images import RowImages
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.rowset.rowset_writer import RowSetWriter
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.new_files import NewFiles
from tests.support.tables.core_tables import patch_group_rows
from tests.support.tables.small_rowsets import schema_of

TEXT_BYTES = 200


def images(start: int, stop: int, schema: Schema, text_bytes: int = TEXT_BYTES) -> RowImages:
    """Rows with the keys start..stop and wide text, all in memory of Arrow's pool."""
    keys = pa.array(range(start, stop), pa.int64())
    text = pa.repeat("x" * text_bytes, stop - start)
    rows = pa.Table.from_arrays([keys, text], schema=schema.arrow_schema())
    return RowImages(encode_keys([keys], schema.key_types), rows)


def keys_of(folder: Path, meta: RowSetMeta) -> list[int]:
    """The keys in a rowset's base data."""
    (base,) = meta.base
    return pq.read_table(folder / meta.id / base.ref.name).column("k").to_pylist()


def row_group_sizes(folder: Path, meta: RowSetMeta) -> list[int]:
    """The rows of each row group of a rowset's base data."""
    (base,) = meta.base
    metadata = pq.read_metadata(folder / meta.id / base.ref.name)
    return [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]


@pytest.fixture
def schema(monkeypatch) -> Schema:
    """A key and text; row groups of 100 rows, rowsets of 300."""
    patch_group_rows(monkeypatch, 100)
    monkeypatch.setattr(rowset_writer, "ROWSET_ROWS_MAX", 300)
    return schema_of("k", s="string")


@pytest.mark.parametrize("step", [1, 64, 100, 250, 730])
def test_rows_in_pieces_of_any_size_make_the_same_rowsets(tmp_path, schema, step):
    """A rowset ends at the border of a row group, wherever the pieces end."""
    with RowSetWriter(NewFiles(LocalStorage()), tmp_path, schema) as writer:
        for start in range(0, 730, step):
            writer.add(images(start, min(730, start + step), schema))
        metas = writer.finish()
    assert [meta.row_count for meta in metas] == [300, 300, 130]
    assert [key for meta in metas for key in keys_of(tmp_path, meta)] == list(range(730))


def test_rows_that_are_written_are_freed(tmp_path, schema, monkeypatch):
    """Memory holds less than one row group, however many rows a rowset has."""
    monkeypatch.setattr(rowset_writer, "ROWSET_ROWS_MAX", 1 << 20)
    pool = pa.default_memory_pool()
    group_bytes = images(0, 100, schema).rows.nbytes
    held = []
    with RowSetWriter(NewFiles(LocalStorage()), tmp_path, schema) as writer:
        before = pool.bytes_allocated()
        for number in range(40):
            writer.add(images(100 * number, 100 * (number + 1), schema))
            held.append(pool.bytes_allocated() - before)
        (meta,) = writer.finish()
    assert meta.row_count == 4000
    # Parquet's writer keeps the footer and a few small buffers.
    assert held[-1] - held[0] < 3 * group_bytes, np.diff(held)


def test_leaving_early_removes_the_file_being_written(tmp_path, schema):
    """An error leaves no base data behind that was not finished."""
    with pytest.raises(ZeroDivisionError):
        with RowSetWriter(NewFiles(LocalStorage()), tmp_path, schema) as writer:
            writer.add(images(0, 150, schema))
            raise ZeroDivisionError
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_row_groups_follow_the_bytes_of_their_rows(tmp_path, schema, monkeypatch):
    """The first rows of a rowset decide; rows that become much wider begin another one."""
    patch_group_rows(monkeypatch, 64)
    for module in (base_data, rowset_writer):
        monkeypatch.setattr(module, "ROW_GROUP_BYTES", 20 * TEXT_BYTES)
    narrow = images(0, 100, schema_of("k", s="string"), 1)
    with RowSetWriter(NewFiles(LocalStorage()), tmp_path, schema) as writer:
        writer.add(narrow)
        writer.add(images(100, 220, schema))
        metas = writer.finish()
    groups = [row_group_sizes(tmp_path, meta) for meta in metas]
    assert groups == [[64], [16] * 9 + [12]]
    assert [meta.group_rows for meta in metas] == [None, 16]
    assert [key for meta in metas for key in keys_of(tmp_path, meta)] == list(range(220))


def test_a_table_of_wide_rows_reads_as_any_other(core, monkeypatch):
    """Ranges, lookups, changes and both compactions, over row groups of 4 rows with pages of 16."""
    patch_group_rows(monkeypatch, 64)
    for module in (base_data, rowset_writer):
        monkeypatch.setattr(module, "ROW_GROUP_BYTES", 4 * TEXT_BYTES + 100)
    names = pa.schema({"k": pa.int64(), "s": pa.string(), "n": pa.int32()})
    table = core.client("a", small_write_rows_max=0).create_table("t", names, primary_key="k")
    rows = {k: ("x" * TEXT_BYTES, k) for k in range(0, 200, 2)}

    def as_table(rows: dict) -> pa.Table:
        return pa.Table.from_pylist([{"k": k, "s": s, "n": n} for k, (s, n) in rows.items()], names)

    table.insert(as_table(rows))
    more = {k: ("y" * TEXT_BYTES, -k) for k in range(50, 90)}
    table.upsert(as_table(more))
    rows |= more
    table.update(pa.table({"k": [60, 61, 198], "n": pa.array([7, 7, 7], pa.int32())}))
    rows |= {k: (rows[k][0], 7) for k in (60, 61, 198)}
    table.delete(pa.table({"k": list(range(100, 120, 2))}))
    rows = {k: row for k, row in sorted(rows.items()) if not 100 <= k < 120}

    def check() -> None:
        assert table.scan(ordered=True).to_pylist() == as_table(rows).to_pylist()
        assert [table.get(k)["n"] for k in (0, 61, 198)] == [rows[k][1] for k in (0, 61, 198)]
        few = table.scan(where=[table["k"] >= 55, table["k"] < 63], ordered=True).to_arrow()
        assert few["n"].to_pylist() == [rows[k][1] for k in range(55, 63)]
        assert table.get_many(list(rows)).num_rows == len(rows)

    check()
    table.maintain()
    check()
