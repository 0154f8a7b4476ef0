"""Appending to a tablet's write-ahead log: one frame, one write, one fsync.

    with the tablet's lock:
        if not writer.is_current:                          # others may have appended
            tail = read_wal(folder, writer.end, None, …)   # the caller applies its records
            writer = WalWriter(file_system, folder, tail.end)
        end = writer.append([changes])                     # durable when it returns

The last segment grows by zeros ahead of its frames, in steps of `padding_bytes`: an append inside
them changes no metadata of the file, and its fsync costs less.

Invariants: (1) what is before `end` is never changed; (2) a segment is followed by another only
when it ends exactly with its last frame, durably; so one with zeros behind it is the last; (3)
after an append that failed the log is as it was, or the writer appends nothing before it has cut
off what the failure left.

Threads: one at a time, which holds the tablet's lock.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kudulite.errors import CorruptionError, StorageError
from kudulite.fs.file_system import AppendFile, FileSystem, read_ranges
from kudulite.wal.format import (
    FRAME_HEADER_BYTES,
    SALT_BYTES,
    SEGMENT_HEADER_BYTES,
    WAL_BEGIN,
    SegmentHeader,
    WalPosition,
    decode_frame,
    decode_segment_header,
    encode_frame,
    encode_segment_header,
    segment_path,
)
from kudulite.wal.record_format import Record, encode_record

SEGMENT_BYTES_MAX = 8 << 20


class WalWriter:
    """Appends frames at `end`; keeps the last segment open, so `close` it."""

    def __init__(
        self,
        file_system: FileSystem,
        folder: Path,
        end: WalPosition = WAL_BEGIN,
        *,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        padding_bytes: int = 0,
    ) -> None:
        """`end` is where `read_wal` found that the log ends. The folder is made when needed."""
        self._file_system = file_system
        self._folder = folder
        self._end = end
        self._segment_bytes_max = segment_bytes_max
        self._padding_bytes = padding_bytes
        self._file: AppendFile | None = None
        self._padded_end = 0  # up to here there are zeros behind `end`
        self._salt = b""
        self._may_be_dirty = False  # an append of this writer did not come to its end
        self._is_cut = False  # nothing is behind `end`, as was just seen
        self._must_roll = False  # a roll did not: the next segment may be there

    @property
    def end(self) -> WalPosition:
        """Where the next frame goes."""
        return self._end

    @property
    def is_current(self) -> bool:
        """Whether nothing has been appended behind `end`, by anybody, torn or whole."""
        self._is_cut = False
        if self._file is not None:
            behind = self._file.read(self._end.offset, FRAME_HEADER_BYTES)
            if behind:  # as mostly; if they are zeros no segment follows
                self._is_cut = not any(behind)
                return self._is_cut
        if segment_path(self._folder, self._end.segment + 1).exists():
            return False
        if self._end.segment == 0:
            return True
        offset = self._end.first_frame.offset
        path = segment_path(self._folder, self._end.segment)
        if not path.exists():
            return self._end.offset <= SEGMENT_HEADER_BYTES
        size, (behind,) = read_ranges(path, [(offset, FRAME_HEADER_BYTES)])
        return size >= offset and not any(behind)

    def append(self, records: Sequence[Record | bytes]) -> WalPosition:
        """Append one frame with all `records`, changes or what `encode_record` made of them.

        Returns the new end; the frame is durable. StorageError when the disk refuses: the log is
        as it was before. CorruptionError when it is shorter than it should be.
        """
        encoded = [r if isinstance(r, bytes) else encode_record(r) for r in records]
        file = self._open()
        frame_bytes = FRAME_HEADER_BYTES + sum(map(len, encoded))
        if self._must_roll or self._end.offset + frame_bytes > self._segment_bytes_max:
            self.roll()
            file = self._open()
        if not self._is_cut:
            self._cut_tail(file)
        self._is_cut = False
        frame = encode_frame(encoded, salt=self._salt, offset=self._end.offset)
        end = WalPosition(self._end.segment, self._end.offset + len(frame))
        self._may_be_dirty = True
        try:
            file.append(frame + self._zeros_behind(end.offset), self._end.offset)
            file.sync()
        except StorageError as error:
            self._take_back(file, error)
            raise
        self._may_be_dirty = False
        self._end = end
        return end

    def _zeros_behind(self, offset: int) -> bytes:
        """Return what to write behind a frame that ends at `offset`; mostly they are there."""
        if offset <= self._padded_end or not self._padding_bytes:
            return b""
        steps = -(-offset // self._padding_bytes)
        self._padded_end = max(offset, min(steps * self._padding_bytes, self._segment_bytes_max))
        return bytes(self._padded_end - offset)

    def roll(self) -> WalPosition:
        """Begin a new segment, unless the last one has no frame yet; return the new end."""
        file = self._open()
        if self._end.offset > SEGMENT_HEADER_BYTES:
            self._cut_tail(file, with_padding=True)
            # A next segment closes this one, whether or not its making is seen to succeed.
            self._must_roll = True
            self._create_segment(self._end.segment + 1, previous_length=self._end.offset)
            self._must_roll = False
        return self._end

    def close(self) -> None:
        """Give the descriptor back; the next append opens the segment again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> WalWriter:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _open(self) -> AppendFile:
        """Open the segment of `end`, making it where it is still to be made."""
        if self._file is None:
            end = self._end.first_frame
            path = segment_path(self._folder, end.segment)
            if self._end.offset <= SEGMENT_HEADER_BYTES and not path.exists():
                before = segment_path(self._folder, end.segment - 1)
                length = before.stat().st_size if before.exists() else 0
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
            header = decode_segment_header(file.read(0, SEGMENT_HEADER_BYTES), end.segment)
        except BaseException as error:
            file.close()
            if isinstance(error, CorruptionError):
                raise type(error)(f"{path}: {error}") from error
            raise
        self.close()
        self._file, self._salt, self._end, self._padded_end = file, header.salt, end, 0
        return header

    def _create_segment(self, segment: int, *, previous_length: int) -> None:
        """Create a segment, durably, and go on in it."""
        if not self._folder.exists():
            self._file_system.make_directory(self._folder)
            self._file_system.sync_directory(self._folder.parent)
        path = segment_path(self._folder, segment)
        header = SegmentHeader(segment, previous_length, os.urandom(SALT_BYTES))
        if not self._file_system.publish(path, encode_segment_header(header)):
            # Somebody was stopped right after he made it. Its name may not be durable yet.
            self._file_system.sync_directory(self._folder)
        found = self._open_segment(WalPosition(segment, SEGMENT_HEADER_BYTES))
        if found.previous_length != previous_length:
            self.close()
            raise CorruptionError(
                f"{path}: says that the segment before has {found.previous_length} bytes,"
                f" expected {previous_length}"
            )

    def _cut_tail(self, file: AppendFile, *, with_padding: bool = False) -> None:
        """Take away, durably, what a torn append left behind `end`; zeros may stay."""
        offset = self._end.offset
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
        """Whether a whole frame stands at `end`: the caller forgot to catch up."""
        offset = self._end.offset
        content = memoryview(file.read(offset, size - offset))
        try:
            decode_frame(content, 0, salt=self._salt, offset=offset)
        except CorruptionError:
            return False
        return True

    def _take_back(self, file: AppendFile, error: StorageError) -> None:
        """Cut off what a failed append wrote."""
        try:
            self._cut_tail(file)
            self._may_be_dirty = False
        except StorageError as second:
            reason = os.strerror(error.errno) if error.errno else error.strerror
            raise StorageError(
                error.errno or 0,
                f"cannot append to {file.path}: {reason}; nor take back what was written:"
                f" {second.strerror}; whether the rows are there shows when the log is read next",
            ) from error
