"""Format of a frame: the bytes of one append to a segment of the log, with their checksums.

A frame at byte `offset` of a segment (segment.py):

    frame := magic[4]="KLWF"  payload_length:u32le  payload_crc32:u32le  header_crc32:u32le
             payload[payload_length]

The CRC of a frame's header is of the segment's salt[8], offset:u64le, and the 12 bytes before it.
So bytes that a user stored, or that an older file left on the disk, never look like a frame of this
place. All lengths are multiples of 8, so Arrow buffers are aligned in memory as they are in the
file. The payload of a table's log is commits (commit_format.py).

Worked example, the 8 bytes "payload." at byte 40 of a segment whose salt is 00010203a6760f75:

    4b4c5746 08000000 c32a4b63 7e0adff6 7061796c6f61642e

**Invariants**: a frame that is decoded was encoded for the same salt and offset.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from kudulite.errors import CorruptionError
from kudulite.storage.checked_json import check_crc32

FRAME_MAGIC = b"KLWF"
_FRAME_HEADER = struct.Struct("<4sIII")
_OFFSET = struct.Struct("<Q")
_CRC_BYTES = 4
FRAME_HEADER_BYTES = _FRAME_HEADER.size

ALIGNMENT_BYTES = 8
PAYLOAD_BYTES_MAX = 1 << 30
_PADDING = tuple(bytes(-length % ALIGNMENT_BYTES) for length in range(ALIGNMENT_BYTES))


def aligned(length: int) -> int:
    """Return the length with the padding that follows it."""
    return length + -length % ALIGNMENT_BYTES


def padding(length: int) -> bytes:
    """Return the zero bytes that follow `length` bytes."""
    return _PADDING[length % ALIGNMENT_BYTES]


def encode_frame(parts: Sequence[bytes], *, salt: bytes, offset: int) -> bytes:
    """Return the frame with these parts of its payload for byte `offset` of a segment."""
    payload = b"".join(parts)
    length = len(payload)
    assert 0 < length <= PAYLOAD_BYTES_MAX, f"a frame of {length} bytes"
    assert length % ALIGNMENT_BYTES == 0
    checked = FRAME_MAGIC + struct.pack("<II", length, zlib.crc32(payload))
    crc = _frame_header_crc(checked, salt=salt, offset=offset)
    return b"".join((checked, crc.to_bytes(_CRC_BYTES, "little"), payload))


def decode_frames(
    content: memoryview, *, salt: bytes, base: int
) -> tuple[list[tuple[int, int]], CorruptionError | None]:
    """Return the payloads [begin, end) of the frames that fill `content`, and None.

    `content` begins at byte `base` of the segment. If a frame is damaged or torn, return the
    payloads before it, and the error of `decode_frame`.
    """
    crc32, unpack, pack = zlib.crc32, _FRAME_HEADER.unpack_from, _OFFSET.pack
    payloads: list[tuple[int, int]] = []
    begin, whole, salt_crc = FRAME_HEADER_BYTES, len(content), crc32(salt)
    while begin <= whole:
        # A session may write a frame for each row, so the checks of a frame are one expression.
        at = begin - FRAME_HEADER_BYTES
        magic, length, payload_crc, header_crc = unpack(content, at)
        end = begin + length
        if (
            magic != FRAME_MAGIC
            or crc32(content[at : begin - _CRC_BYTES], crc32(pack(base + at), salt_crc))
            != header_crc
            or not 0 < length <= PAYLOAD_BYTES_MAX
            or length % ALIGNMENT_BYTES
            or end > whole
            or crc32(content[begin:end]) != payload_crc
        ):
            break
        payloads.append((begin, end))
        begin = end + FRAME_HEADER_BYTES
    at = begin - FRAME_HEADER_BYTES
    if at == whole:
        return payloads, None
    try:
        decode_frame(content, at, salt=salt, offset=base + at)
    except CorruptionError as error:
        return payloads, error
    raise AssertionError(f"frame at byte {base + at}: it is whole")


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
