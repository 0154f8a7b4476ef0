"""Reading the log: every commit after a position, up to the durable end or to the last whole frame.

A bad frame is *torn* when an append may have left it: it is the last frame of the last segment, no
frame begins after it, and no append has returned for it. A reader leaves a torn frame out; every
other bad frame is corruption.

**Threads**: a reader with an `end`: any, without a lock, because bytes before a durable end never
change. A reader without an `end`: the holder of the log's lock.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from kudulite.errors import CorruptionError, StorageError
from kudulite.storage.storage import Storage
from kudulite.wal.commit_format import LoggedCommit, decode_commits
from kudulite.wal.frame_format import FRAME_HEADER_BYTES, decode_frames, find_frame_header
from kudulite.wal.segment import (
    LOG_BEGIN,
    SEGMENT_HEADER_BYTES,
    LogPosition,
    SegmentHeader,
    decode_segment_header,
    list_segments,
    segment_path,
)

# Takes the first bytes of a segment and its number; returns its header, all of it checked.
HeaderDecoder = Callable[[bytes, int], SegmentHeader]
# Takes the content of a segment, a view of its bytes, the payload of a frame as [begin, end), and
# the position behind the frame.
PayloadDecoder = Callable[[pa.Buffer, memoryview, int, int, LogPosition], None]


class LogTail(NamedTuple):
    """The commits that were read, in the order of the log, and the position after them."""

    commits: list[LoggedCommit]
    end: LogPosition


def read_log(
    storage: Storage,
    folder: Path,
    table_id: str,
    start: LogPosition,
    end: LogPosition | None,
    durable_end: LogPosition = LOG_BEGIN,
) -> LogTail:
    """Return the commits from `start` to `end`, which are positions that a reader or writer gave.

    With `end`: exactly the frames up to it, none if it is not after `start`. Without `end`: all
    frames but a torn last one, and at least those up to `durable_end`. CorruptionError names the
    path and byte of the damage; a missing segment is corruption as well.
    """
    commits: list[LoggedCommit] = []
    frames = FrameReader(
        storage,
        folder,
        functools.partial(decode_segment_header, table_id=table_id),
        functools.partial(decode_commits, commits),
    )
    return LogTail(commits, frames.read(start, end, durable_end))


@dataclass(frozen=True)
class FrameReader:
    """Reads the frames of a log in `folder`, whose format the two decoders know."""

    storage: Storage
    folder: Path
    decode_header: HeaderDecoder
    decode_payload: PayloadDecoder

    def read(
        self, start: LogPosition, end: LogPosition | None, durable_end: LogPosition
    ) -> LogPosition:
        """Decode the frames that `read_log` describes; return where they end."""
        first = start.first_frame
        if end is not None:
            if end.first_frame <= first:
                return start
            return self._read_segments(first, end.first_frame, LOG_BEGIN)
        segments = [
            segment
            for segment in list_segments(self.storage, self.folder)
            if segment >= first.segment
        ]
        reached = start
        if segments:
            reached = self._read_segments(first, LogPosition(segments[-1], -1), durable_end)
        elif start.offset > SEGMENT_HEADER_BYTES:
            path = segment_path(self.folder, first.segment)
            raise _missing(path, f"expected up to byte {start.offset}")
        if reached.first_frame < durable_end.first_frame:
            raise CorruptionError(
                f"{segment_path(self.folder, reached.first_frame.segment)}: the log ends at byte"
                f" {reached.offset}, expected at least byte {durable_end.offset} of segment"
                f" {durable_end.segment}"
            )
        return reached

    def _read_segments(
        self, start: LogPosition, end: LogPosition, durable_end: LogPosition
    ) -> LogPosition:
        """Read from `start` to `end`, whose offset is -1 for the end of the last segment."""
        before: _Segment | None = None
        for number in range(start.segment, end.segment + 1):
            is_last = number == end.segment
            limit = end.offset if is_last and end.offset >= 0 else None
            offset = start.offset if number == start.segment else SEGMENT_HEADER_BYTES
            segment = self._read_segment(number, offset, limit)
            if before is not None:
                before.check_closed(segment)
            torn_from = None
            if is_last and limit is None:
                torn_from = durable_end.offset if number == durable_end.segment else 0
            stop = segment.read_frames(self.decode_payload, torn_from)
            before = segment
        return LogPosition(end.segment, stop)

    def _read_segment(self, number: int, offset: int, limit: int | None) -> _Segment:
        """Read a segment from byte `offset` to `limit`, or to its end; the header is checked."""
        path = segment_path(self.folder, number)
        length = None if limit is None else limit - offset
        try:
            file_length, (head, content) = self.storage.read_ranges(
                path, [(0, SEGMENT_HEADER_BYTES), (offset, length)]
            )
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            raise _missing(path, "but the log continues in it") from error
        try:
            header = self.decode_header(head, number)
        except CorruptionError as error:
            raise type(error)(f"{path}: {error}") from error
        if file_length < (least := max(offset, limit or 0)):
            raise CorruptionError(f"{path}: {file_length} bytes, expected at least {least}")
        return _Segment(path, header, offset, content, file_length)


def _missing(path: Path, expected: str) -> CorruptionError:
    return CorruptionError(
        f"{path}: the log segment is missing, {expected}; restore it from a copy of the table"
    )


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

    def read_frames(self, decode: PayloadDecoder, torn_from: int | None) -> int:
        """Decode the payload of each frame; return the byte where the frames end.

        A last frame from byte `torn_from` on may be torn; with None no frame may be.
        """
        view, buffer = memoryview(self.content), pa.py_buffer(self.content)
        payloads, error = decode_frames(view, salt=self.header.salt, base=self.base)
        end = payloads[-1][1] if payloads else 0
        if error is not None:
            is_torn = torn_from is not None and self.base + end >= torn_from and self._is_last(end)
            if not is_torn:
                raise CorruptionError(f"{self.path}: {error}") from error
        begin = 0
        try:
            for begin, stop in payloads:
                frame_end = LogPosition(self.header.segment, self.base + stop)
                decode(buffer, view, begin, stop, frame_end)
        except CorruptionError as wrong:
            offset = self.base + begin - FRAME_HEADER_BYTES
            raise CorruptionError(f"{self.path}: frame at byte {offset}: {wrong}") from wrong
        return self.base + end

    def _is_last(self, position: int) -> bool:
        """Return whether no frame begins after the one at `position`."""
        salt = self.header.salt
        return find_frame_header(self.content, position + 1, salt=salt, base=self.base) is None
