"""Columns of base data are compressed only where that makes them smaller."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kudulite.basefile.base_data import BaseDataFile, BaseDataWriter
from kudulite.model import types
from kudulite.model.schema import Column
from kudulite.storage.local_storage import LocalStorage

COLUMNS = [
    Column(1, "noise", types.int64),
    Column(2, "asked", types.int64, compression="zstd"),
    Column(3, "lists", types.array(types.int64)),
    Column(4, "ascending", types.int64),
    Column(5, "text", types.string, encoding="plain"),
    Column(6, "nothing", types.double),
    Column(7, "ends", types.string, encoding="plain"),
]


def make_table(row_count: int) -> pa.Table:
    """Rows with columns that cannot be compressed, and with some that can."""
    noise = np.random.default_rng(3).integers(-(1 << 60), 1 << 60, row_count)
    lists = pa.ListArray.from_arrays(np.arange(row_count + 1, dtype=np.int32), noise)
    text = [f"text number {number}" for number in range(row_count)]
    # In the middle there is nothing to be seen.
    ends = [None if row_count // 4 < at < 3 * row_count // 4 else t for at, t in enumerate(text)]
    arrays = [noise, noise, lists, np.arange(row_count) * 7, text, pa.nulls(row_count), ends]
    values = dict(zip((column.name for column in COLUMNS), arrays, strict=True))
    return pa.table(values).cast(pa.schema(column.arrow_field for column in COLUMNS))


@pytest.mark.parametrize(("row_count", "of_noise"), [(40_000, "UNCOMPRESSED"), (9_000, "ZSTD")])
def test_what_compression_makes_no_smaller_is_stored_without_it(tmp_path, row_count, of_noise):
    """Where there are enough rows to see it, and nobody has asked for compression."""
    table, path = make_table(row_count), tmp_path / "base.parquet"
    with LocalStorage().open_sink(path) as sink:
        with BaseDataWriter(sink, COLUMNS) as writer:
            writer.write(table)
            writer.close()
        ref = sink.finish()
    group = pq.read_metadata(path).row_group(0)
    codecs = [group.column(number).compression for number in range(7)]
    assert codecs == [of_noise, "ZSTD", of_noise, "ZSTD", "ZSTD", "ZSTD", "ZSTD"]
    file = BaseDataFile(LocalStorage(), path, ref)
    assert file.read([0], table.column_names).equals(table)
    rows = file.read_rows(8_000, 8_500, table.column_names)
    assert pa.table(rows, names=table.column_names).equals(table.slice(8_000, 500))
