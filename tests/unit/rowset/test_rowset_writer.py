"""RowSetWriter: rows in pieces become the same rowsets as rows at once, in bounded memory."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kudulite.fs.file_system import FileSystem
from kudulite.model.encoded_key import encode_keys
from kudulite.model.schema import Schema
from kudulite.rowset import rowset_writer
from kudulite.rowset.rowset import RowImages, RowSetMeta
from kudulite.rowset.rowset_writer import RowSetWriter
from tests.support.tables.core_tables import patch_group_rows
from tests.support.tables.small_rowsets import schema_of

TEXT_BYTES = 200


def images(start: int, stop: int, schema: Schema) -> RowImages:
    """Rows with the keys start..stop and wide text, all in memory of Arrow's pool."""
    keys = pa.array(range(start, stop), pa.int64())
    text = pa.repeat("x" * TEXT_BYTES, stop - start)
    rows = pa.Table.from_arrays([keys, text], schema=schema.arrow_schema())
    return RowImages(encode_keys([keys], schema.key_types), rows)


def keys_of(folder: Path, meta: RowSetMeta) -> list[int]:
    """The keys in a rowset's base data."""
    (base,) = meta.base
    return pq.read_table(folder / meta.id / base.ref.name).column("k").to_pylist()


@pytest.fixture
def schema(monkeypatch) -> Schema:
    """A key and text; row groups of 100 rows, rowsets of 300."""
    patch_group_rows(monkeypatch, 100)
    monkeypatch.setattr(rowset_writer, "ROWSET_ROWS_MAX", 300)
    return schema_of("k", s="string")


@pytest.mark.parametrize("step", [1, 64, 100, 250, 730])
def test_rows_in_pieces_of_any_size_make_the_same_rowsets(tmp_path, schema, step):
    """A rowset ends at the border of a row group, wherever the pieces end."""
    with RowSetWriter(FileSystem(), tmp_path, schema) as writer:
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
    with RowSetWriter(FileSystem(), tmp_path, schema) as writer:
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
        with RowSetWriter(FileSystem(), tmp_path, schema) as writer:
            writer.add(images(0, 150, schema))
            raise ZeroDivisionError
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
