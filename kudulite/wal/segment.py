"""The write-ahead log of a table: its segments, what they are called, and positions in it.

    with the log's lock:
        if not writer.is_current:                          # others may have appended
            tail = read_log(storage, folder, table_id, writer.end, None)    # the caller applies it
            writer = LogWriter(storage, folder, table_id, tail.end)
        end = writer.append([encode_commit(…)])            # durable when it returns

A segment is a header of 40 bytes, then frames (frame_format.py):

    segment := header frame*
    header  := magic[8]="kudulwal"  format_version:u32le  segment:u64le  previous_length:u64le
               salt[8]  header_crc32:u32le (of the 36 bytes before it)
    salt    := random[4]  table_crc32:u32le (of the table's id)

`previous_length` is the final length of the segment before, 0 for the first. The salt differs in
each segment. Format versions 1 and 2 are of the logs that each tablet had (tablet_log.py).

Worked example: segment 1 of table "7f", random bytes 00010203:

    6b7564756c77616c 03000000 0100000000000000 0000000000000000 00010203a6760f75 2a88f6da

Positions are ordered as the log is. (0, 0) is a log without segments; the first segment is 1. A
position at or before the end of a segment's header means the segment's first frame.

**Invariants**: a segment is followed by another only when it ends exactly with its last frame,
durably, so one with zeros at its end is the last.
"""

from __future__ import annotations

import secrets
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kudulite.errors import CorruptionError
from kudulite.storage.checked_json import check_crc32, check_format_version
from kudulite.storage.names import segment_name, segment_of
from kudulite.storage.storage import Storage

FORMAT_VERSION = 3  # on disk: a change of meaning raises it
TABLET_LOG_VERSIONS = (1, 2)  # read by tablet_log.py
SEGMENT_MAGIC = b"kudulwal"
SALT_BYTES = 8
_RANDOM_BYTES = 4
_SEGMENT_HEADER = struct.Struct("<8sIQQ8sI")
_CRC_BYTES = 4
SEGMENT_HEADER_BYTES = _SEGMENT_HEADER.size
SEGMENT_BYTES_MAX = 8 << 20  # not part of the format: a writer begins another segment then


@dataclass(frozen=True)
class SegmentHeader:
    """A decoded header: number, length of the segment before (0: none), salt."""

    segment: int
    previous_length: int
    salt: bytes

    def check_owner(self, kind: str, owner_id: str) -> None:
        """Raise CorruptionError unless the segment is of this table, or of this tablet."""
        if self.salt[_RANDOM_BYTES:] != _owner_crc(owner_id):
            raise CorruptionError(
                f"belongs to another {kind}, expected {kind} {owner_id}; segments were swapped, or"
                " one was copied over another: restore the segment from a copy of the table"
            )

    def check_number(self, segment: int) -> None:
        """Raise CorruptionError unless this is the header of `segment`."""
        if self.segment != segment:
            raise CorruptionError(f"says it is segment {self.segment}, expected {segment}")


def new_salt(table_id: str) -> bytes:
    """Return the salt of a new segment of a table's log."""
    return secrets.token_bytes(_RANDOM_BYTES) + _owner_crc(table_id)


def _owner_crc(owner_id: str) -> bytes:
    return zlib.crc32(owner_id.encode()).to_bytes(_CRC_BYTES, "little")


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the first 40 bytes of a segment; the salt is one of `new_salt`."""
    assert len(header.salt) == SALT_BYTES
    fields = (FORMAT_VERSION, header.segment, header.previous_length, header.salt)
    unchecked = _SEGMENT_HEADER.pack(SEGMENT_MAGIC, *fields, 0)[:-_CRC_BYTES]
    return unchecked + zlib.crc32(unchecked).to_bytes(_CRC_BYTES, "little")


def decode_segment_header(content: bytes, segment: int, table_id: str) -> SegmentHeader:
    """Return the header at the start of the file of `segment`, with every field checked.

    Raises CorruptionError or FormatVersionError; the caller adds the path.
    """
    version, header = parse_segment_header(content)
    if version in TABLET_LOG_VERSIONS:
        raise CorruptionError(f"is of the log of a tablet, expected that of table {table_id}")
    check_format_version("log segment", version, FORMAT_VERSION)
    header.check_owner("table", table_id)
    header.check_number(segment)
    return header


def parse_segment_header(content: bytes) -> tuple[int, SegmentHeader]:
    """Return (format version, header) of a segment of any log, with the checksum checked.

    Raises CorruptionError. The fields of the header mean something in known versions only.
    """
    if len(content) < SEGMENT_HEADER_BYTES:
        raise CorruptionError(f"{len(content)} bytes, expected at least {SEGMENT_HEADER_BYTES}")
    content = content[:SEGMENT_HEADER_BYTES]
    magic, version, segment, previous_length, salt, stored = _SEGMENT_HEADER.unpack(content)
    if magic != SEGMENT_MAGIC:
        raise CorruptionError(f"starts with {magic!r}, expected {SEGMENT_MAGIC!r}")
    check_crc32("header CRC", zlib.crc32(content[:-_CRC_BYTES]), stored)
    return version, SegmentHeader(segment, previous_length, salt)


class LogPosition(NamedTuple):
    """Byte `offset` in the file of `segment`: the beginning of a frame, or of the next one."""

    segment: int
    offset: int

    def to_json(self) -> list[int]:
        """Return the JSON form: segment, offset."""
        return [self.segment, self.offset]

    @staticmethod
    def from_json(value: Any) -> LogPosition:
        """Build a position from `to_json`'s form; CorruptionError if it is not one."""
        if (
            not isinstance(value, list)
            or len(value) != 2
            or not all(type(number) is int and 0 <= number < 1 << 63 for number in value)
        ):
            raise CorruptionError(
                f"stored log position is {value!r}, expected [segment, offset], both 0 or more"
            )
        return LogPosition(*value)

    @property
    def first_frame(self) -> LogPosition:
        """The same position in the form in which equal positions compare equal."""
        return LogPosition(max(self.segment, 1), max(self.offset, SEGMENT_HEADER_BYTES))


LOG_BEGIN = LogPosition(0, 0)


def segment_path(folder: Path, segment: int) -> Path:
    """Return the file of one segment of the log in `folder`."""
    return folder / segment_name(segment)


def list_segments(storage: Storage, folder: Path) -> list[int]:
    """Return the numbers of the existing segments, ascending; none without a folder."""
    names = [path.name for path in storage.entries(folder)]
    return sorted(found for name in names if (found := segment_of(name)) is not None)
