"""Format of a record: the rows that a commit changes in one tablet.

    rows   := row_count:u32le  column_count:u16le  codec:u8  zero:u8  body_length:u32le
              raw_length:u32le  column:u32le[column_count]  pad  body[body_length]  pad
    column := column id * 2 + (1 where the column has a mask)
    body   := codec 0: raw[raw_length] (body_length = raw_length); codec 1: raw as one LZ4 block
              codec 2: row* (row_codec.py; body_length = raw_length, all columns, no masks)
    raw    := op:u8[row_count] pad  mask*  message
    mask   := bit[row_count], first row in the lowest bit, which rows set the column; pad

`message` is an Arrow IPC RecordBatch message, uncompressed, without its schema: one array per
column, in the order of the layout and of the types of these ids in the table's schema. `pad` is
zero bytes up to a multiple of 8. A column without a mask is set by every row.

Worked example, DELETE (2) of one row; one column, id 0, without a mask; a body of 160 bytes, of
which the message is 152, from Arrow's continuation marker ffffffff to the key, int8 7:

    01000000 0100 00 00 a0000000 a0000000 00000000 00000000
    0200000000000000 ffffffff 88000000 … 0700000000000000

**Invariants**: RecordDecoder returns the changes that `encode_rows` encoded, at the timestamp of
their commit. For other bytes it raises CorruptionError or returns RowChanges with valid arrays.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from kudulite.errors import CorruptionError, KuduliteError, OutOfMemoryError
from kudulite.model.schema import Schema
from kudulite.storage.storage_error import is_out_of_memory
from kudulite.wal.frame_format import PAYLOAD_BYTES_MAX, aligned, padding
from kudulite.wal.row_codec import CHANGE_DELETE, RecordSizeError, RowChanges, RowCodec, RowList

Record = RowChanges | RowList

CODEC_NONE, CODEC_LZ4, CODEC_ROWS = 0, 1, 2  # on disk: do not renumber
COMPRESSED_FROM_BYTES = 4096  # not part of the format: below, LZ4 costs more than it saves
_LZ4_RATIO_MAX = 255  # no LZ4 block holds more; bounds the memory that a bad length requests
_FIXED = struct.Struct("<IHBBII")
_COLUMN_BYTES = 4


def encode_rows(changes: Record) -> bytes:
    """Return the bytes of a record, without its timestamp; their number is a multiple of 8.

    Raises RecordSizeError, and ValueError for a value of a RowList that does not fit its column.
    """
    if isinstance(changes, RowList):
        body = changes.codec.encode(changes.rows)
        entries = _without_masks(changes.codec.column_ids)
        return _joined(changes.row_count, entries, CODEC_ROWS, body, len(body))
    row_count = len(changes.ops)
    assert row_count > 0
    assert changes.is_set.keys() <= changes.columns.keys()
    ops = changes.ops.tobytes()
    assert len(ops) == row_count, "ops are uint8"
    raw_parts = [ops, padding(row_count)]
    entries = tuple(column_id * 2 + (column_id in changes.is_set) for column_id in changes.columns)
    if changes.is_set:
        masks = [changes.is_set[i] for i in changes.columns if i in changes.is_set]
        assert all(len(mask) == row_count for mask in masks)
        raw_parts.append(_encode_masks(masks))
    arrays = list(changes.columns.values())
    # The message omits the schema, and with it the names.
    batch = pa.RecordBatch.from_arrays(arrays, names=list(map(str, changes.columns)))
    assert batch.num_rows == row_count
    raw_parts.append(batch.serialize())
    raw = b"".join(raw_parts)
    body, codec = raw, CODEC_NONE
    if len(raw) >= COMPRESSED_FROM_BYTES:
        compressed = pa.compress(raw, codec="lz4_raw", asbytes=True)
        if len(compressed) < len(raw):
            body, codec = compressed, CODEC_LZ4
    return _joined(row_count, entries, codec, body, len(raw))


def _joined(
    row_count: int, entries: tuple[int, ...], codec: int, body: bytes, raw_length: int
) -> bytes:
    layout = _packed(entries)
    needed = _FIXED.size + len(layout) + aligned(max(len(body), raw_length))
    if needed > PAYLOAD_BYTES_MAX:
        raise RecordSizeError(f"{needed:,} bytes, at most {PAYLOAD_BYTES_MAX:,}")
    fixed = _FIXED.pack(row_count, len(entries), codec, 0, len(body), raw_length)
    return b"".join((fixed, layout, body, padding(len(body))))


@functools.lru_cache
def _without_masks(column_ids: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(column_id * 2 for column_id in column_ids)


@functools.lru_cache
def _packed(entries: tuple[int, ...]) -> bytes:
    """Return the columns of a record as they follow the fixed part, padded."""
    layout = struct.pack(f"<{len(entries)}I", *entries)
    return layout + padding(_FIXED.size + len(layout))


def _encode_masks(masks: Sequence[np.ndarray]) -> bytes:
    bits = np.packbits(masks, axis=1, bitorder="little")
    padded = np.zeros((len(masks), aligned(bits.shape[1])), np.uint8)
    padded[:, : bits.shape[1]] = bits
    return padded.tobytes()


@dataclass(frozen=True)
class _Layout:
    """The columns of a record, decoded: ids, whether each has a mask, and their Arrow types."""

    column_ids: tuple[int, ...]
    mask_ids: tuple[int, ...]
    arrow_schema: pa.Schema


class RecordDecoder:
    """Decodes the records of one table, in any thread; remembers decoded layouts.

    Arrays of an uncompressed record are views of its buffer.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._codec = RowCodec(schema)
        self._layouts: dict[bytes, _Layout] = {}

    def decode_rows(self, timestamp: int, content: pa.Buffer) -> Record:
        """Return the record whose rows fill `content`, at the timestamp of its commit.

        Raises CorruptionError.
        """
        view = memoryview(content).cast("B")  # those of Arrow are of signed bytes
        record, length = self.decode_rows_at(timestamp, content, view, 0)
        if length != len(view):
            raise CorruptionError(f"rows of {length} bytes, expected {len(view)}")
        return record

    def decode_rows_at(
        self, timestamp: int, content: pa.Buffer, view: memoryview, begin: int
    ) -> tuple[Record, int]:
        """Return (the record at byte `begin`, its length); `view` is of the bytes of `content`.

        Raises CorruptionError.
        """
        left = len(view) - begin
        if left < _FIXED.size:
            raise CorruptionError(f"{left} bytes, expected at least {_FIXED.size}")
        row_count, column_count, codec, zero, body_length, raw_length = _FIXED.unpack_from(
            view, begin
        )
        layout_end = _FIXED.size + column_count * _COLUMN_BYTES
        body_begin = aligned(layout_end)
        length = body_begin + aligned(body_length)
        if length > left:
            raise CorruptionError(f"{left} bytes, expected {length}")
        if row_count == 0 or column_count == 0 or zero != 0:
            raise CorruptionError(
                f"{row_count} rows, {column_count} columns, byte 7 is {zero};"
                " expected at least 1, at least 1, and 0"
            )
        layout = self._layout(bytes(view[begin + _FIXED.size : begin + layout_end]))
        if codec == CODEC_ROWS:
            if layout.column_ids != self._codec.column_ids or layout.mask_ids:
                raise CorruptionError(
                    f"rows of columns {list(layout.column_ids)}, expected those of the table"
                )
            if body_length != raw_length:
                raise CorruptionError(f"body of {body_length} bytes, expected {raw_length}")
            cells = view[begin + body_begin : begin + body_begin + body_length]
            return RowList(timestamp, self._codec.decode(cells, row_count), self._codec), length
        body = content.slice(begin + body_begin, body_length)
        raw = _raw_body(body, codec, raw_length)
        return _decode_raw(raw, layout, timestamp=timestamp, row_count=row_count), length

    def _layout(self, stored: bytes) -> _Layout:
        layout = self._layouts.get(stored)
        if layout is None:
            entries = struct.unpack(f"<{len(stored) // _COLUMN_BYTES}I", stored)
            layout = self._layouts[stored] = self._new_layout(entries)
        return layout

    def _new_layout(self, entries: Sequence[int]) -> _Layout:
        column_ids = tuple(entry >> 1 for entry in entries)
        if len(set(column_ids)) != len(column_ids):
            raise CorruptionError(f"column ids {list(column_ids)}, expected each once")
        fields = []
        for column_id in column_ids:
            column = self._schema.column_by_id(column_id)
            if column is None:
                known = ", ".join(str(known.id) for known in self._schema.columns)
                raise CorruptionError(f"column id {column_id}, expected one of {known}")
            fields.append((str(column_id), column.type.arrow))
        mask_ids = tuple(entry >> 1 for entry in entries if entry & 1)
        return _Layout(column_ids, mask_ids, pa.schema(fields))


def _raw_body(body: pa.Buffer, codec: int, raw_length: int) -> pa.Buffer:
    """Return the body uncompressed, its length checked."""
    if codec == CODEC_NONE:
        if body.size != raw_length:
            raise CorruptionError(f"body of {body.size} bytes, expected {raw_length}")
        return body
    if codec != CODEC_LZ4:
        raise CorruptionError(f"codec {codec}, expected {CODEC_NONE} or {CODEC_LZ4}")
    if raw_length > min(body.size * _LZ4_RATIO_MAX, PAYLOAD_BYTES_MAX):
        raise CorruptionError(f"{body.size} bytes of LZ4 for {raw_length} bytes")
    try:
        raw = pa.decompress(body, decompressed_size=raw_length, codec="lz4_raw")
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(f"{body.size} bytes are not LZ4", error) from error
    if raw.size != raw_length:
        raise CorruptionError(f"{raw.size} bytes in the LZ4 block, expected {raw_length}")
    return raw


def _unreadable(problem: str, error: Exception) -> KuduliteError:
    if is_out_of_memory(error):
        return OutOfMemoryError(f"not enough memory to read a record of the log: {error}")
    return CorruptionError(f"{problem}: {error}")


def _decode_raw(raw: pa.Buffer, layout: _Layout, *, timestamp: int, row_count: int) -> RowChanges:
    masks_begin = aligned(row_count)
    mask_bytes = aligned((row_count + 7) // 8)
    message_begin = masks_begin + len(layout.mask_ids) * mask_bytes
    if message_begin > raw.size:
        raise CorruptionError(
            f"{raw.size} bytes for {row_count} rows and {len(layout.mask_ids)} masks,"
            f" expected at least {message_begin}"
        )
    ops = np.frombuffer(raw, np.uint8, row_count)
    # For the usual few rows, max() of bytes takes a tenth of numpy's time.
    if max(ops.tobytes()) > CHANGE_DELETE:
        raise CorruptionError(f"change {ops.max()}, expected 0 to {CHANGE_DELETE}")
    is_set: dict[int, np.ndarray] = {}
    if layout.mask_ids:
        bits = np.frombuffer(raw, np.uint8, message_begin - masks_begin, masks_begin)
        bits = bits.reshape(len(layout.mask_ids), mask_bytes)
        masks = np.unpackbits(bits, axis=1, count=row_count, bitorder="little").view(np.bool_)
        is_set = dict(zip(layout.mask_ids, masks, strict=True))
    arrays = _decode_message(raw.slice(message_begin), layout.arrow_schema, row_count)
    return RowChanges(timestamp, ops, dict(zip(layout.column_ids, arrays, strict=True)), is_set)


def _decode_message(message: pa.Buffer, schema: pa.Schema, row_count: int) -> list[pa.Array]:
    try:
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        problem = f"{message.size} bytes are no Arrow message of {len(schema)} columns"
        raise _unreadable(problem, error) from error
    if batch.num_rows != row_count:
        raise CorruptionError(f"{batch.num_rows} rows of columns, expected {row_count}")
    # As children of one array: half the time of asking the batch for each column.
    arrays: list[pa.Array] = batch.to_struct_array().flatten()
    return arrays
