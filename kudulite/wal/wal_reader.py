"""Reading the log: every record after a position, up to the durable end or to the last whole frame.

A bad frame is *torn* when an append may have left it: it is the last frame of the last segment, no
frame begins after it, and no append has returned for it. A reader leaves a torn frame out; every
other bad frame is corruption.

**Threads**: a reader with an `end`: any, without a lock, because bytes before a durable end never
change. A reader without an `end`: the holder of the tablet's lock.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from kudulite.errors import CorruptionError, StorageError
from kudulite.model.schema import Schema
from kudulite.storage.file_system import read_ranges
from kudulite.wal.record_format import (
    FRAME_HEADER_BYTES,
    Record,
    RecordDecoder,
    decode_frame,
    find_frame_header,
)
from kudulite.wal.segment import (
    SEGMENT_HEADER_BYTES,
    WAL_BEGIN,
    SegmentHeader,
    WalPosition,
    decode_segment_header,
    list_segments,
    segment_path,
    tablet_id_of,
)


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
