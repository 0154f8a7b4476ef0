"""Format of a segment of the write-ahead log: a header of 40 bytes, then frames.

    segment := header frame*
    header  := magic[8]="kudulwal"  format_version:u32le  segment:u64le  previous_length:u64le
               salt[8]  header_crc32:u32le (of the 36 bytes before it)
    frame   := magic[4]="KLWF"  payload_length:u32le  payload_crc32:u32le  header_crc32:u32le
               payload[payload_length]
    payload := record+ (see record_format)

One append is one frame, made durable by one fsync before the next may begin; so only the last frame
of the last segment can be torn. `previous_length` is the final length of the segment before, 0 for
the first: a segment that another follows is closed and has no torn end.

The CRC of a frame's header is of salt[8], offset:u64le (where the frame begins), and the 12 bytes
before it. `salt` is random in each segment: bytes that a user stored, or that an older file left on
the disk, never look like a frame of this place. Everything is a multiple of 8 bytes long, so Arrow
buffers are aligned in memory as they are in the file.

Worked example: segment 1, salt 0001020304050607; in it, at byte 40, a frame of the 8 bytes
"payload.":

    6b7564756c77616c 01000000 0100000000000000 0000000000000000 0001020304050607 cede8107
    4b4c5746 08000000 c32a4b63 c05e518e 7061796c6f61642e

Places in a write-ahead log, and the names of its segment files.

Positions are ordered as the log is. (0, 0) is a log that has no segment yet; the first segment is
1. A position at or before the end of a segment's header means its first frame.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kudulite.errors import CorruptionError, FormatVersionError

FORMAT_VERSION = 1  # on disk: a change of meaning raises it
SEGMENT_MAGIC = b"kudulwal"
FRAME_MAGIC = b"KLWF"
SALT_BYTES = 8
ALIGNMENT_BYTES = 8
PAYLOAD_BYTES_MAX = 1 << 30

_SEGMENT_HEADER = struct.Struct("<8sIQQ8sI")
_FRAME_HEADER = struct.Struct("<4sIII")
_OFFSET = struct.Struct("<Q")
_CRC_BYTES = 4
SEGMENT_HEADER_BYTES = _SEGMENT_HEADER.size
FRAME_HEADER_BYTES = _FRAME_HEADER.size

_SEGMENT_NAME = re.compile(r"(\d{20})\.log")


@dataclass(frozen=True)
class SegmentHeader:
    """What a segment says of itself: number, length of the one before it (0: none), salt."""

    segment: int
    previous_length: int
    salt: bytes


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The first 40 bytes of a segment."""
    assert len(header.salt) == SALT_BYTES
    fields = (FORMAT_VERSION, header.segment, header.previous_length, header.salt)
    unchecked = _SEGMENT_HEADER.pack(SEGMENT_MAGIC, *fields, 0)[:-_CRC_BYTES]
    return unchecked + zlib.crc32(unchecked).to_bytes(_CRC_BYTES, "little")


def decode_segment_header(content: bytes, segment: int) -> SegmentHeader:
    """The header at the start of the file of `segment`, everything checked.

    CorruptionError (FormatVersionError) says what differs; the caller adds the path.
    """
    if len(content) < SEGMENT_HEADER_BYTES:
        raise CorruptionError(f"{len(content)} bytes, expected at least {SEGMENT_HEADER_BYTES}")
    content = content[:SEGMENT_HEADER_BYTES]
    magic, version, number, previous_length, salt, stored = _SEGMENT_HEADER.unpack(content)
    if magic != SEGMENT_MAGIC:
        raise CorruptionError(f"starts with {magic!r}, expected {SEGMENT_MAGIC!r}")
    found = zlib.crc32(content[:-_CRC_BYTES])
    if found != stored:
        raise CorruptionError(f"header CRC {found:#010x}, expected {stored:#010x}")
    if version != FORMAT_VERSION:
        raise FormatVersionError(
            f"WAL segment of format version {version}, this kudulite reads {FORMAT_VERSION};"
            " upgrade to read it"
        )
    if number != segment:
        raise CorruptionError(f"says it is segment {number}, expected {segment}")
    return SegmentHeader(number, previous_length, salt)


def encode_frame(records: Sequence[bytes], *, salt: bytes, offset: int) -> bytes:
    """The frame of these encoded records, for byte `offset` of the segment with this salt."""
    payload = b"".join(records)
    length = len(payload)
    assert 0 < length <= PAYLOAD_BYTES_MAX, f"a frame of {length} bytes"
    assert length % ALIGNMENT_BYTES == 0
    checked = FRAME_MAGIC + struct.pack("<II", length, zlib.crc32(payload))
    crc = _frame_header_crc(checked, salt=salt, offset=offset)
    return b"".join((checked, crc.to_bytes(_CRC_BYTES, "little"), payload))


def decode_frame(content: memoryview, position: int, *, salt: bytes, offset: int) -> int:
    """The end, in `content`, of the frame at `position`, which is byte `offset` of the segment.

    Its payload begins FRAME_HEADER_BYTES after `position`. CorruptionError where the frame is not
    whole and right; it may be a torn one.
    """
    length, stored = _decode_frame_header(content, position, salt=salt, offset=offset)
    begin = position + FRAME_HEADER_BYTES
    if length > len(content) - begin:
        raise CorruptionError(
            f"frame at byte {offset}: {len(content) - begin} bytes of payload, expected {length}"
        )
    found = zlib.crc32(content[begin : begin + length])
    if found != stored:
        raise CorruptionError(
            f"frame at byte {offset}: payload CRC {found:#010x}, expected {stored:#010x}"
        )
    return begin + length


def find_frame_header(content: bytes, position: int, *, salt: bytes, base: int) -> int | None:
    """Where, at or after `position`, the header of a frame of this segment stands, or None.

    `content` begins at byte `base` of the segment. The payload is not looked at.
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
    """(payload length, payload CRC) of a frame, its header checked."""
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
    if found != stored:
        raise CorruptionError(
            f"frame at byte {offset}: header CRC {found:#010x}, expected {stored:#010x}"
        )
    if not 0 < length <= PAYLOAD_BYTES_MAX or length % ALIGNMENT_BYTES:
        raise CorruptionError(
            f"frame at byte {offset}: payload of {length} bytes, expected a multiple of"
            f" {ALIGNMENT_BYTES} up to {PAYLOAD_BYTES_MAX}"
        )
    return length, payload_crc


def _frame_header_crc(checked: bytes | memoryview, *, salt: bytes, offset: int) -> int:
    return zlib.crc32(checked, zlib.crc32(salt + _OFFSET.pack(offset)))


class WalPosition(NamedTuple):
    """Byte `offset` in the file of `segment`: where a frame begins, or where the next one will."""

    segment: int
    offset: int

    def to_json(self) -> list[int]:
        """Return the JSON form: segment, offset."""
        return [self.segment, self.offset]

    @staticmethod
    def from_json(value: Any) -> WalPosition:
        """Build a position from `to_json`'s form; CorruptionError if it is not one."""
        if (
            not isinstance(value, list)
            or len(value) != 2
            or not all(type(number) is int and number >= 0 for number in value)
        ):
            raise CorruptionError(
                f"stored WAL position is {value!r}, expected [segment, offset], both 0 or more"
            )
        return WalPosition(*value)

    @property
    def first_frame(self) -> WalPosition:
        """The same place in the one form in which equal places compare equal."""
        return WalPosition(max(self.segment, 1), max(self.offset, SEGMENT_HEADER_BYTES))


WAL_BEGIN = WalPosition(0, 0)


def segment_name(segment: int) -> str:
    """Return the name of a segment's file."""
    return f"{segment:020d}.log"


def segment_path(folder: Path, segment: int) -> Path:
    """Return the file of one segment of the log in `folder`."""
    return folder / segment_name(segment)


def list_segments(folder: Path) -> list[int]:
    """Return the numbers of the segments that are there, ascending; none without a folder."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for name in names if (match := _SEGMENT_NAME.fullmatch(name)))
