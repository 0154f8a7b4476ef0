"""Staging of a bulk write: memory does not grow with the number of batches."""

from collections.abc import Iterator

import pyarrow as pa

from kudulite.basefile import block_cache
from kudulite.writes import batch_pieces, stager

BATCH_ROWS = 1000


def batches(count: int, held: list[int]) -> Iterator[pa.RecordBatch]:
    """Batches in memory of Arrow's pool; notes the bytes there whenever one is asked for."""
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    for number in range(count):
        held.append(pool.bytes_allocated() - before)
        ids = pa.array(range(number, count * BATCH_ROWS, count), pa.int64())
        yield pa.record_batch({"id": ids, "text": pa.repeat("x" * 200, BATCH_ROWS)})


def test_a_load_from_a_reader_holds_the_batches_of_one_part(core, monkeypatch):
    """A part is staged and freed before the batches of the next one are collected."""
    schema = pa.schema({"id": pa.int64(), "text": pa.string()})
    table = core.client("a").create_table(
        "t", schema, primary_key="id", hash_partitions=[(["id"], 2)]
    )
    batch_bytes = next(batches(1, [])).nbytes
    monkeypatch.setattr(batch_pieces, "STAGE_BYTES_MAX", 4 * batch_bytes)
    held: list[int] = []
    reader = pa.RecordBatchReader.from_batches(schema, batches(40, held))
    assert table.insert(reader).inserted == 40 * BATCH_ROWS
    assert max(held) < 6 * batch_bytes, [size / batch_bytes for size in held]


def test_each_staged_chunk_of_a_write_returns_free_memory_to_the_system(core, monkeypatch):
    """It is free then, before the next one is collected."""
    sizes: list[int] = []
    monkeypatch.setattr(stager, "return_memory", sizes.append)
    schema = pa.schema({"id": pa.int64(), "text": pa.string()})
    table = core.client().create_table("t", schema, primary_key="id")
    rows = pa.Table.from_batches(batches(2, []))
    table.insert(rows)
    assert sizes == [rows.nbytes]
    monkeypatch.setattr(batch_pieces, "STAGE_BYTES_MAX", rows.nbytes)
    table.upsert(pa.RecordBatchReader.from_batches(schema, batches(4, [])))
    assert len(sizes) == 3 and sum(sizes[1:]) == 2 * rows.nbytes


def test_memory_is_returned_after_work_on_many_bytes_only(monkeypatch):
    """The C library is asked once; without glibc there is nobody to ask."""
    calls: list[int] = []
    monkeypatch.setattr(block_cache, "_malloc_trim", calls.append)
    block_cache.return_memory(block_cache.RETURN_BYTES_MIN - 1)
    assert calls == []
    block_cache.return_memory(block_cache.RETURN_BYTES_MIN)
    assert calls == [0]
    monkeypatch.setattr(block_cache, "_malloc_trim", None)
    block_cache.return_memory(block_cache.RETURN_BYTES_MIN)
