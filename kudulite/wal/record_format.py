"""Format of the write-ahead log inside of a segment (segment.py): frames of records.

A frame is what one append writes to a segment of the log, at byte `offset` of it:

    frame   := magic[4]="KLWF"  payload_length:u32le  payload_crc32:u32le  header_crc32:u32le
               payload[payload_length]
    payload := record+

The CRC of a frame's header is of the segment's salt[8], offset:u64le, and the 12 bytes before it.
All lengths are multiples of 8, so Arrow buffers are aligned in memory as they are in the file.

A record has the RowChanges of one flush in one tablet:

    record := timestamp:u64le  row_count:u32le  column_count:u16le  codec:u8  zero:u8
              body_length:u32le  raw_length:u32le  column:u32le[column_count]  pad
              body[body_length]  pad
    column := column id * 2 + (1 where the column has a mask)
    body   := codec 0: raw[raw_length] (body_length = raw_length); codec 1: raw as one LZ4 block
              codec 2: rows (row_codec.py; body_length = raw_length, all columns, no masks)
    raw    := op:u8[row_count] pad  mask*  message
    mask   := bit[row_count], first row in the lowest bit, which rows set the column; pad

`message` is an Arrow IPC RecordBatch message, uncompressed, without its schema: one array per
column, in the order of the layout and of the types of these ids in the table's schema. `pad` is
zero bytes up to a multiple of 8. A column without a mask is set by every row.

Worked example, timestamp 5, DELETE (2) of one row; one column, id 0, without a mask; a body of 160
bytes, of which the message is 152, from Arrow's continuation marker ffffffff to the key, int8 7:

    0500000000000000 01000000 0100 00 00 a0000000 a0000000 00000000 00000000
    0200000000000000 ffffffff 88000000 … 0700000000000000

**Invariants**: RecordDecoder returns the changes that `encode_record` encoded. For other bytes it
raises CorruptionError or returns RowChanges with valid arrays.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from kudulite.errors import CorruptionError, KuduliteError, OutOfMemoryError
from kudulite.model.schema import Schema
from kudulite.storage.checked_json import check_crc32
from kudulite.storage.storage_error import is_out_of_memory
from kudulite.wal.row_codec import CHANGE_DELETE, RecordSizeError, RowChanges, RowCodec, RowList

Record = RowChanges | RowList

FRAME_MAGIC = b"KLWF"
_FRAME_HEADER = struct.Struct("<4sIII")
_OFFSET = struct.Struct("<Q")
_CRC_BYTES = 4
FRAME_HEADER_BYTES = _FRAME_HEADER.size

ALIGNMENT_BYTES = 8
PAYLOAD_BYTES_MAX = 1 << 30  # of a frame, and so of a record
CODEC_NONE, CODEC_LZ4, CODEC_ROWS = 0, 1, 2  # on disk: do not renumber
COMPRESSED_FROM_BYTES = 4096  # not part of the format: below, LZ4 costs more than it saves
_LZ4_RATIO_MAX = 255  # no LZ4 block holds more; bounds the memory that a bad length requests
_FIXED = struct.Struct("<QIHBBII")
_COLUMN_BYTES = 4
_TIMESTAMP_MAX = (1 << 64) - 1
_PADDING = tuple(bytes(-length % ALIGNMENT_BYTES) for length in range(ALIGNMENT_BYTES))


def encode_frame(records: Sequence[bytes], *, salt: bytes, offset: int) -> bytes:
    """Return the frame of encoded records for byte `offset` of the segment with this salt."""
    payload = b"".join(records)
    length = len(payload)
    assert 0 < length <= PAYLOAD_BYTES_MAX, f"a frame of {length} bytes"
    assert length % ALIGNMENT_BYTES == 0
    checked = FRAME_MAGIC + struct.pack("<II", length, zlib.crc32(payload))
    crc = _frame_header_crc(checked, salt=salt, offset=offset)
    return b"".join((checked, crc.to_bytes(_CRC_BYTES, "little"), payload))


def decode_frame(content: memoryview, position: int, *, salt: bytes, offset: int) -> int:
    """Return the end of the frame at `position` of `content`, byte `offset` of the segment.

    Its payload begins after FRAME_HEADER_BYTES. CorruptionError for a damaged or torn frame.
    """
    length, stored = _decode_frame_header(content, position, salt=salt, offset=offset)
    begin = position + FRAME_HEADER_BYTES
    if length > len(content) - begin:
        raise CorruptionError(
            f"frame at byte {offset}: {len(content) - begin} bytes of payload, expected {length}"
        )
    found = zlib.crc32(content[begin : begin + length])
    check_crc32(f"frame at byte {offset}: payload CRC", found, stored)
    return begin + length


def find_frame_header(content: bytes, position: int, *, salt: bytes, base: int) -> int | None:
    """Return the position of the first frame header of this segment from `position` on, or None.

    `content` begins at byte `base` of the segment. Payloads are not checked.
    """
    view = memoryview(content)
    while (position := content.find(FRAME_MAGIC, position)) >= 0:
        try:
            _decode_frame_header(view, position, salt=salt, offset=base + position)
        except CorruptionError:
            position += 1
        else:
            return position
    return None


def _decode_frame_header(
    content: memoryview, position: int, *, salt: bytes, offset: int
) -> tuple[int, int]:
    """Return (payload length, payload CRC) of a frame, with its header checked."""
    left = len(content) - position
    if left < FRAME_HEADER_BYTES:
        raise CorruptionError(
            f"frame at byte {offset}: {left} bytes of header, expected {FRAME_HEADER_BYTES}"
        )
    magic, length, payload_crc, stored = _FRAME_HEADER.unpack_from(content, position)
    if magic != FRAME_MAGIC:
        raise CorruptionError(
            f"frame at byte {offset}: it starts with {magic!r}, expected {FRAME_MAGIC!r}"
        )
    checked = content[position : position + FRAME_HEADER_BYTES - _CRC_BYTES]
    found = _frame_header_crc(checked, salt=salt, offset=offset)
    check_crc32(f"frame at byte {offset}: header CRC", found, stored)
    if not 0 < length <= PAYLOAD_BYTES_MAX or length % ALIGNMENT_BYTES:
        raise CorruptionError(
            f"frame at byte {offset}: payload of {length} bytes, expected a multiple of"
            f" {ALIGNMENT_BYTES} up to {PAYLOAD_BYTES_MAX}"
        )
    return length, payload_crc


def _frame_header_crc(checked: bytes | memoryview, *, salt: bytes, offset: int) -> int:
    return zlib.crc32(checked, zlib.crc32(salt + _OFFSET.pack(offset)))


def _aligned(length: int) -> int:
    return length + -length % ALIGNMENT_BYTES


def encode_record(changes: Record) -> bytes:
    """Return the bytes of one record; their number is a multiple of 8.

    Raises RecordSizeError, and ValueError for a value of a RowList that does not fit its column.
    """
    if isinstance(changes, RowList):
        body = changes.codec.encode(changes.rows)
        entries = _without_masks(changes.codec.column_ids)
        return _framed(changes, entries, CODEC_ROWS, body, len(body))
    row_count = len(changes.ops)
    assert row_count > 0
    assert 0 <= changes.timestamp <= _TIMESTAMP_MAX
    assert changes.is_set.keys() <= changes.columns.keys()
    ops = changes.ops.tobytes()
    assert len(ops) == row_count, "ops are uint8"
    raw_parts = [ops, _PADDING[row_count % ALIGNMENT_BYTES]]
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
    return _framed(changes, entries, codec, body, len(raw))


def _framed(
    changes: Record, entries: tuple[int, ...], codec: int, body: bytes, raw_length: int
) -> bytes:
    layout = _packed(entries)
    needed = _FIXED.size + len(layout) + _aligned(max(len(body), raw_length))
    if needed > PAYLOAD_BYTES_MAX:
        raise RecordSizeError(f"{needed:,} bytes, at most {PAYLOAD_BYTES_MAX:,}")
    fixed = _FIXED.pack(
        changes.timestamp, changes.row_count, len(entries), codec, 0, len(body), raw_length
    )
    return b"".join((fixed, layout, body, _PADDING[len(body) % ALIGNMENT_BYTES]))


@functools.lru_cache
def _without_masks(column_ids: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(column_id * 2 for column_id in column_ids)


@functools.lru_cache
def _packed(entries: tuple[int, ...]) -> bytes:
    """Return the columns of a record as they follow its fixed part, padded."""
    layout = struct.pack(f"<{len(entries)}I", *entries)
    return layout + _PADDING[(_FIXED.size + len(layout)) % ALIGNMENT_BYTES]


def _encode_masks(masks: Sequence[np.ndarray]) -> bytes:
    bits = np.packbits(masks, axis=1, bitorder="little")
    padded = np.zeros((len(masks), _aligned(bits.shape[1])), np.uint8)
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

    def decode_all(self, content: pa.Buffer) -> list[Record]:
        """Return the records that fill `content`; CorruptionError names the byte of a bad one."""
        records: list[Record] = []
        position = 0
        view = memoryview(content).cast("B")  # those of Arrow are of signed bytes
        while position < len(view):
            try:
                changes, length = self._decode(content, view, position)
            except CorruptionError as error:
                raise CorruptionError(f"record at byte {position} of its frame: {error}") from error
            records.append(changes)
            position += length
        return records

    def _decode(self, content: pa.Buffer, view: memoryview, begin: int) -> tuple[Record, int]:
        """Return (the record at byte `begin`, its length)."""
        left = len(view) - begin
        if left < _FIXED.size:
            raise CorruptionError(f"{left} bytes, expected at least {_FIXED.size}")
        timestamp, row_count, column_count, codec, zero, body_length, raw_length = (
            _FIXED.unpack_from(view, begin)
        )
        layout_end = _FIXED.size + column_count * _COLUMN_BYTES
        body_begin = _aligned(layout_end)
        length = body_begin + _aligned(body_length)
        if length > left:
            raise CorruptionError(f"{left} bytes, expected {length}")
        if row_count == 0 or column_count == 0 or zero != 0:
            raise CorruptionError(
                f"{row_count} rows, {column_count} columns, byte 15 is {zero};"
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
    masks_begin = _aligned(row_count)
    mask_bytes = _aligned((row_count + 7) // 8)
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
