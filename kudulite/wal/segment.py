"""The write-ahead log of a tablet: its segments, what they are called, and positions in it.

    with the tablet's lock:
        if not writer.is_current:                          # others may have appended
            tail = read_wal(folder, writer.end, None, …)   # the caller applies its records
            writer = WalWriter(file_system, folder, tail.end)
        end = writer.append([changes])                     # durable when it returns

A segment is a header of 40 bytes, then frames:

    segment := header frame*
    header  := magic[8]="kudulwal"  format_version:u32le  segment:u64le  previous_length:u64le
               salt[8]  header_crc32:u32le (of the 36 bytes before it)
    salt    := random[4]  tablet_crc32:u32le (of the tablet's id); random[8] in format version 1

`record_format` describes frames and records. `previous_length` is the final length of the segment
before, 0 for the first. The checksum of a frame is also of the salt, which differs in each segment,
so bytes that a user stored, or that an older file left on the disk, never look like a frame of this
place.

Worked example: segment 1 of tablet "7f", random bytes 00010203; in it, at byte 40, a frame of the
8 bytes "payload.":

    6b7564756c77616c 02000000 0100000000000000 0000000000000000 00010203a6760f75 377543db
    4b4c5746 08000000 c32a4b63 7e0adff6 7061796c6f61642e

Positions are ordered as the log is. (0, 0) is a log without segments; the first segment is 1. A
position at or before the end of a segment's header means the segment's first frame.

**Invariants**: a segment is followed by another only when it ends exactly with its last frame,
durably, so one with zeros at its end is the last.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kudulite.errors import CorruptionError
from kudulite.storage.checked_json import check_crc32, check_format_version
from kudulite.storage.names import segment_name, segment_of
from kudulite.storage.storage_error import storage_error

FORMAT_VERSION = 2  # on disk: a change of meaning raises it
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


def new_salt(tablet_id: str) -> bytes:
    """Return the salt of a new segment of a tablet."""
    return os.urandom(_RANDOM_BYTES) + _tablet_crc(tablet_id)


def _tablet_crc(tablet_id: str) -> bytes:
    return zlib.crc32(os.fsencode(tablet_id)).to_bytes(_CRC_BYTES, "little")


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the first 40 bytes of a segment; the salt is one of `new_salt`."""
    assert len(header.salt) == SALT_BYTES
    fields = (FORMAT_VERSION, header.segment, header.previous_length, header.salt)
    unchecked = _SEGMENT_HEADER.pack(SEGMENT_MAGIC, *fields, 0)[:-_CRC_BYTES]
    return unchecked + zlib.crc32(unchecked).to_bytes(_CRC_BYTES, "little")


def decode_segment_header(content: bytes, segment: int, tablet_id: str) -> SegmentHeader:
    """Return the header at the start of the file of `segment`, with every field checked.

    Raises CorruptionError or FormatVersionError; the caller adds the path.
    """
    if len(content) < SEGMENT_HEADER_BYTES:
        raise CorruptionError(f"{len(content)} bytes, expected at least {SEGMENT_HEADER_BYTES}")
    content = content[:SEGMENT_HEADER_BYTES]
    magic, version, number, previous_length, salt, stored = _SEGMENT_HEADER.unpack(content)
    if magic != SEGMENT_MAGIC:
        raise CorruptionError(f"starts with {magic!r}, expected {SEGMENT_MAGIC!r}")
    check_crc32("header CRC", zlib.crc32(content[:-_CRC_BYTES]), stored)
    if version != 1:
        check_format_version("WAL segment", version, FORMAT_VERSION)
        if salt[_RANDOM_BYTES:] != _tablet_crc(tablet_id):
            raise CorruptionError(
                f"belongs to another tablet, expected tablet {tablet_id}; segments were swapped, or"
                " one was copied over another: restore the segment from a copy of the table"
            )
    if number != segment:
        raise CorruptionError(f"says it is segment {number}, expected {segment}")
    return SegmentHeader(number, previous_length, salt)


class WalPosition(NamedTuple):
    """Byte `offset` in the file of `segment`: the beginning of a frame, or of the next one."""

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
            or not all(type(number) is int and 0 <= number < 1 << 63 for number in value)
        ):
            raise CorruptionError(
                f"stored WAL position is {value!r}, expected [segment, offset], both 0 or more"
            )
        return WalPosition(*value)

    @property
    def first_frame(self) -> WalPosition:
        """The same position in the form in which equal positions compare equal."""
        return WalPosition(max(self.segment, 1), max(self.offset, SEGMENT_HEADER_BYTES))


WAL_BEGIN = WalPosition(0, 0)


def segment_path(folder: Path, segment: int) -> Path:
    """Return the file of one segment of the log in `folder`."""
    return folder / segment_name(segment)


def tablet_id_of(folder: Path) -> str:
    """Return the id of the tablet whose log is in `folder`: the name of the folder around it."""
    return folder.parent.name


def list_segments(folder: Path) -> list[int]:
    """Return the numbers of the existing segments, ascending; none without a folder."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise storage_error("list", folder, error) from error
    return sorted(found for name in names if (found := segment_of(name)) is not None)
