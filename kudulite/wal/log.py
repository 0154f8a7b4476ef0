"""The write-ahead log of a tablet: segments of frames, read and appended.

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

Worked example, segment 1 of tablet "7f", random bytes 00010203; in it, at byte 40, a frame of the
8 bytes "payload.":

    6b7564756c77616c 02000000 0100000000000000 0000000000000000 00010203a6760f75 377543db
    4b4c5746 08000000 c32a4b63 7e0adff6 7061796c6f61642e

Positions are ordered as the log is. (0, 0) is a log without segments; the first segment is 1. A
position at or before the end of a segment's header means the segment's first frame.

A bad frame is *torn* when an append may have left it: it is the last frame of the last segment, no
frame begins after it, and no append has returned for it. A reader leaves a torn frame out; every
other bad frame is corruption. The last segment grows by zeros ahead of its frames, in steps of
`padding_bytes`: an append inside them changes no metadata of the file, so its fsync costs less.

**Invariants**: (1) bytes before `end` never change; (2) one append is one frame, which one fsync
makes durable before the next append begins; (3) a segment is followed by another only when it ends
exactly with its last frame, durably, so one with zeros at its end is the last; (4) after an append
that failed the log is unchanged, or the writer appends nothing before it has cut the failure off.

**Threads**: a writer: one at a time, which holds the tablet's lock. A reader with an `end`: any,
without a lock, because bytes before a durable end never change. A reader without an `end`: the
holder of the tablet's lock.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from kudulite.errors import CorruptionError, StorageError
from kudulite.fs.file_system import (
    AppendFile,
    FileSystem,
    check_crc32,
    check_format_version,
    exists,
    read_ranges,
    storage_error,
)
from kudulite.model.schema import Schema
from kudulite.wal.record_format import (
    FRAME_HEADER_BYTES,
    Record,
    RecordDecoder,
    decode_frame,
    encode_frame,
    encode_record,
    find_frame_header,
)

FORMAT_VERSION = 2  # on disk: a change of meaning raises it
SEGMENT_MAGIC = b"kudulwal"
SALT_BYTES = 8
_RANDOM_BYTES = 4
_SEGMENT_HEADER = struct.Struct("<8sIQQ8sI")
_CRC_BYTES = 4
SEGMENT_HEADER_BYTES = _SEGMENT_HEADER.size
SEGMENT_BYTES_MAX = 8 << 20  # not part of the format: a writer begins another segment then

_SEGMENT_NAME = re.compile(r"(\d{20})\.log")


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


def segment_name(segment: int) -> str:
    """Return the name of a segment's file."""
    return f"{segment:020d}.log"


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
    return sorted(int(match[1]) for name in names if (match := _SEGMENT_NAME.fullmatch(name)))


class WalTail(NamedTuple):
    """The records that were read, in the order of the log, and the position after them."""

    records: list[Record]
    end: WalPosition


def read_wal(
    folder: Path,
    start: WalPosition,
    end: WalPosition | None,
    schema: Schema | RecordDecoder,
    durable_end: WalPosition = WAL_BEGIN,
) -> WalTail:
    """Return the records from `start` to `end`, which are positions that a reader or writer gave.

    With `end`: exactly the frames up to it, none if it is not after `start`. Without `end`: all
    frames but a torn last one, and at least those up to `durable_end`. CorruptionError names the
    path and byte of the damage; a missing segment is corruption as well. A caller that reads often
    passes the same RecordDecoder each time, which saves 30 µs.
    """
    decoder = schema if isinstance(schema, RecordDecoder) else RecordDecoder(schema)
    first = start.first_frame
    if end is not None:
        if end.first_frame <= first:
            return WalTail([], start)
        return _read_segments(folder, first, end.first_frame, decoder)
    segments = [segment for segment in list_segments(folder) if segment >= first.segment]
    if segments:
        last = WalPosition(segments[-1], -1)
        tail = _read_segments(folder, first, last, decoder, durable_end=durable_end)
    elif start.offset > SEGMENT_HEADER_BYTES:
        raise _missing(segment_path(folder, first.segment), f"expected up to byte {start.offset}")
    else:
        tail = WalTail([], start)
    if tail.end.first_frame < durable_end.first_frame:
        raise CorruptionError(
            f"{segment_path(folder, tail.end.first_frame.segment)}: the log ends at byte"
            f" {tail.end.offset}, expected at least byte {durable_end.offset} of segment"
            f" {durable_end.segment}"
        )
    return tail


def _read_segments(
    folder: Path,
    start: WalPosition,
    end: WalPosition,
    decoder: RecordDecoder,
    durable_end: WalPosition = WAL_BEGIN,
) -> WalTail:
    """Read from `start` to `end`, whose offset is -1 for the end of the last segment."""
    records: list[Record] = []
    before: _Segment | None = None
    for number in range(start.segment, end.segment + 1):
        is_last = number == end.segment
        limit = end.offset if is_last and end.offset >= 0 else None
        offset = start.offset if number == start.segment else SEGMENT_HEADER_BYTES
        segment = _read_segment(segment_path(folder, number), number, offset, limit)
        if before is not None:
            before.check_closed(segment)
        torn_from = None
        if is_last and limit is None:
            torn_from = durable_end.offset if number == durable_end.segment else 0
        stop = segment.read_frames(records, decoder, torn_from)
        before = segment
    return WalTail(records, WalPosition(end.segment, stop))


def _missing(path: Path, expected: str) -> CorruptionError:
    return CorruptionError(f"{path}: the WAL segment is missing, {expected}")


@dataclass(frozen=True)
class _Segment:
    """The part of a segment that is read, from byte `base` on."""

    path: Path
    header: SegmentHeader
    base: int
    content: bytes
    file_length: int

    def check_closed(self, following: _Segment) -> None:
        """Raise CorruptionError unless this segment is as long as the following one says."""
        expected = following.header.previous_length
        if self.file_length != expected:
            raise CorruptionError(
                f"{self.path}: {self.file_length} bytes, expected {expected}, as"
                f" {following.path.name} says"
            )

    def read_frames(
        self, records: list[Record], decoder: RecordDecoder, torn_from: int | None
    ) -> int:
        """Add the records of all frames to `records`; return the byte where the frames end.

        A last frame from byte `torn_from` on may be torn; with None no frame may be.
        """
        view = memoryview(self.content)
        buffer = pa.py_buffer(self.content)
        position = 0
        while position < len(view):
            offset = self.base + position
            try:
                frame_end = decode_frame(view, position, salt=self.header.salt, offset=offset)
            except CorruptionError as error:
                if torn_from is not None and offset >= torn_from and self._is_last(position):
                    break
                raise CorruptionError(f"{self.path}: {error}") from error
            begin = position + FRAME_HEADER_BYTES
            try:
                records += decoder.decode_all(buffer.slice(begin, frame_end - begin))
            except CorruptionError as error:
                raise CorruptionError(f"{self.path}: frame at byte {offset}: {error}") from error
            position = frame_end
        return self.base + position

    def _is_last(self, position: int) -> bool:
        """Return whether no frame begins after the one at `position`."""
        salt = self.header.salt
        return find_frame_header(self.content, position + 1, salt=salt, base=self.base) is None


def _read_segment(path: Path, number: int, offset: int, limit: int | None) -> _Segment:
    """Read a segment from byte `offset` to `limit`, or to its end; the header is checked."""
    length = None if limit is None else limit - offset
    try:
        file_length, (head, content) = read_ranges(
            path, [(0, SEGMENT_HEADER_BYTES), (offset, length)]
        )
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        raise _missing(path, "but the log continues in it") from error
    try:
        header = decode_segment_header(head, number, tablet_id_of(path.parent))
    except CorruptionError as error:
        raise type(error)(f"{path}: {error}") from error
    if file_length < (least := max(offset, limit or 0)):
        raise CorruptionError(f"{path}: {file_length} bytes, expected at least {least}")
    return _Segment(path, header, offset, content, file_length)


class WalWriter:
    """Appends frames at `end`; keeps the last segment open until `close`."""

    def __init__(
        self,
        file_system: FileSystem,
        folder: Path,
        end: WalPosition = WAL_BEGIN,
        *,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        padding_bytes: int = 0,
    ) -> None:
        """Prepare to append at `end`, where `read_wal` found that the log ends.

        The folder is created by the first append.
        """
        self._file_system, self._folder = file_system, folder
        self.end = self._begin = end  # the positions of the next frame and of the last one
        self._segment_bytes_max, self._padding_bytes = segment_bytes_max, padding_bytes
        self._file: AppendFile | None = None
        self._padded_end = 0  # from `end` to here the file has zeros
        self._salt = b""
        self._may_be_dirty = False  # an append of this writer has not finished
        self._is_cut = False  # `is_current` has just found nothing after `end`
        self._must_roll = False  # a roll has not finished: the next segment may exist

    @property
    def is_current(self) -> bool:
        """Whether no process has appended a frame after `end`, torn or whole."""
        self._is_cut = False
        if self._file is not None:
            behind = self._file.read(self.end.offset, FRAME_HEADER_BYTES)
            if behind:  # the usual case; no segment follows one that ends with zeros
                self._is_cut = not any(behind)
                return self._is_cut
        if exists(segment_path(self._folder, self.end.segment + 1)):
            return False
        if self.end.segment == 0:
            return True
        offset = self.end.first_frame.offset
        path = segment_path(self._folder, self.end.segment)
        if not exists(path):
            return self.end.offset <= SEGMENT_HEADER_BYTES
        size, (behind,) = read_ranges(path, [(offset, FRAME_HEADER_BYTES)])
        return size >= offset and not any(behind)

    def append(self, records: Sequence[Record | bytes]) -> WalPosition:
        """Append one frame with all `records`, encoded or not; return the new end.

        The frame is durable then. Raises StorageError when the disk refuses, which leaves the log
        unchanged, and CorruptionError when the log is shorter than `end`.
        """
        encoded = [r if isinstance(r, bytes) else encode_record(r) for r in records]
        file = self._open()
        frame_bytes = FRAME_HEADER_BYTES + sum(map(len, encoded))
        if self._must_roll or self.end.offset + frame_bytes > self._segment_bytes_max:
            self.roll()
            file = self._open()
        if not self._is_cut:
            self._cut_tail(file)
        self._is_cut = False
        frame = encode_frame(encoded, salt=self._salt, offset=self.end.offset)
        end = WalPosition(self.end.segment, self.end.offset + len(frame))
        self._begin, self._may_be_dirty = self.end, True
        try:
            file.append(frame + self._zeros_behind(end.offset), self.end.offset)
            file.sync()
        except StorageError as error:
            self._take_back(file, error)
            raise
        self._may_be_dirty = False
        self.end = end
        return end

    def take_back(self) -> None:
        """Cut the last frame off again, durably. Raises StorageError."""
        self.end, self._may_be_dirty = self._begin, True
        self._cut_tail(self._open())

    def _zeros_behind(self, offset: int) -> bytes:
        """Return the padding to write after a frame that ends at `offset`; usually none."""
        if offset <= self._padded_end or not self._padding_bytes:
            return b""
        steps = -(-offset // self._padding_bytes)
        self._padded_end = max(offset, min(steps * self._padding_bytes, self._segment_bytes_max))
        return bytes(self._padded_end - offset)

    def roll(self) -> WalPosition:
        """Begin a new segment, unless the last one has no frame yet; return the new end."""
        file = self._open()
        if self.end.offset > SEGMENT_HEADER_BYTES:
            self._cut_tail(file, with_padding=True)
            # The next segment closes this one, even if creating it fails after it exists.
            self._must_roll = True
            self._create_segment(self.end.segment + 1, previous_length=self.end.offset)
            self._must_roll = False
        return self.end

    def close(self) -> None:
        """Close the segment's file; the next append opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> WalWriter:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _open(self) -> AppendFile:
        """Open the segment of `end`, creating it where it does not exist yet."""
        if self._file is None:
            end = self.end.first_frame
            path = segment_path(self._folder, end.segment)
            if self.end.offset <= SEGMENT_HEADER_BYTES and not exists(path):
                before = segment_path(self._folder, end.segment - 1)
                length = before.stat().st_size if exists(before) else 0
                self._create_segment(end.segment, previous_length=length)
            else:
                self._open_segment(end)
        assert self._file is not None
        return self._file

    def _open_segment(self, end: WalPosition) -> SegmentHeader:
        """Open the existing segment of `end` and take its salt."""
        path = segment_path(self._folder, end.segment)
        file = self._file_system.open_append(path)
        try:
            head = file.read(0, SEGMENT_HEADER_BYTES)
            header = decode_segment_header(head, end.segment, tablet_id_of(self._folder))
        except BaseException as error:
            file.close()
            if isinstance(error, CorruptionError):
                raise type(error)(f"{path}: {error}") from error
            raise
        self.close()
        self._file, self._salt, self.end, self._padded_end = file, header.salt, end, 0
        return header

    def _create_segment(self, segment: int, *, previous_length: int) -> None:
        """Create a segment, durably, and continue in it."""
        if segment == 1:
            # A process that made the folder may have been stopped at once.
            self._file_system.make_directory(self._folder)
            self._file_system.sync_directory(self._folder.parent)
        path = segment_path(self._folder, segment)
        header = SegmentHeader(segment, previous_length, new_salt(tablet_id_of(self._folder)))
        if not self._file_system.publish(path, encode_segment_header(header)):
            # A process that created it was stopped at once. Its name may not be durable yet.
            self._file_system.sync_directory(self._folder)
        found = self._open_segment(WalPosition(segment, SEGMENT_HEADER_BYTES))
        if found.previous_length != previous_length:
            self.close()
            raise CorruptionError(
                f"{path}: says that the segment before has {found.previous_length} bytes,"
                f" expected {previous_length}"
            )

    def _cut_tail(self, file: AppendFile, *, with_padding: bool = False) -> None:
        """Cut off, durably, a torn frame after `end`; zeros may stay."""
        offset = self.end.offset
        size = file.size()
        self._padded_end = size
        if size == offset:
            return
        if size < offset:
            raise CorruptionError(f"{file.path}: {size} bytes, expected at least {offset}")
        is_torn = self._may_be_dirty or any(file.read(offset, FRAME_HEADER_BYTES))
        if not is_torn and not with_padding:
            return
        assert self._may_be_dirty or not is_torn or not self._is_frame(file, size), (
            f"{file.path}: a frame at byte {offset} that the writer has not read"
        )
        file.cut(offset)
        file.sync()
        self._padded_end = offset
        self._may_be_dirty = False

    def _is_frame(self, file: AppendFile, size: int) -> bool:
        """Return whether a whole frame begins at `end`, so the caller has not read it."""
        offset = self.end.offset
        content = memoryview(file.read(offset, size - offset))
        try:
            decode_frame(content, 0, salt=self._salt, offset=offset)
        except CorruptionError:
            return False
        return True

    def _take_back(self, file: AppendFile, error: StorageError) -> None:
        """Cut off the bytes of a failed append."""
        try:
            self._cut_tail(file)
            self._may_be_dirty = False
        except StorageError as second:
            reason = os.strerror(error.errno) if error.errno else error.strerror
            raise StorageError(
                error.errno or 0,
                f"cannot append to {file.path}: {reason}; nor cut off the bytes written:"
                f" {second.strerror}; whether the rows were written is known when the log is read",
            ) from error
