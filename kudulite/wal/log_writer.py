"""LogWriter: appends commits to a table's log, one frame and one fsync for each append.

    append  =  write: the frame is in the file, behind `end`     sync: it is durable, before `end`

The last segment grows by zeros ahead of its frames, in steps of `padding_bytes`: an append inside
them changes no metadata of the file, so its fsync costs less.

**Invariants**: (1) bytes before `end` never change, unless the last frame is taken back; (2) one
append is one frame, which one fsync makes durable before the next append begins; (3) after an
append that failed the log is unchanged, or the writer appends nothing before it has cut the failure
off; (4) a frame that was written and not synced is cut off before another is written.

**Threads**: one at a time, which holds the log's lock from before a `write` until after its `sync`.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import strerror
from pathlib import Path

from kudulite.errors import CorruptionError, StorageError
from kudulite.storage.open_file import AppendFile
from kudulite.storage.storage import Storage
from kudulite.wal.frame_format import FRAME_HEADER_BYTES, decode_frame, encode_frame
from kudulite.wal.segment import (
    LOG_BEGIN,
    SEGMENT_BYTES_MAX,
    SEGMENT_HEADER_BYTES,
    LogPosition,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
    new_salt,
    segment_path,
)


class LogWriter:
    """Appends frames at `end`; keeps the last segment open until `close`."""

    def __init__(
        self,
        storage: Storage,
        folder: Path,
        table_id: str,
        end: LogPosition = LOG_BEGIN,
        *,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        padding_bytes: int = 0,
    ) -> None:
        """Prepare to append at `end`, where `read_log` found that the log ends.

        The folder is created by the first append.
        """
        self._storage, self._folder, self._table_id = storage, folder, table_id
        self.end = self._begin = end  # the positions of the next frame and of the last one
        self._segment_bytes_max, self._padding_bytes = segment_bytes_max, padding_bytes
        self._written_end: LogPosition | None = None  # of a frame that is not synced yet
        self._file: AppendFile | None = None
        self._padded_end = 0  # from `end` to here the file has zeros
        self._salt = b""
        self._may_be_dirty = False  # an append of this writer has not finished
        self._is_cut = False  # `is_current` has just found nothing after `end`
        self._must_roll = False  # a roll has not finished: the next segment may exist

    @property
    def is_current(self) -> bool:
        """Whether no process has appended a frame after `end`, torn or whole.

        A segment that was removed or replaced since it was opened is looked at by its path.
        """
        self._is_cut = False
        if self._file is not None and not self._file.is_at_its_path():
            self.close()
        if self._file is not None:
            behind = self._file.read(self.end.offset, FRAME_HEADER_BYTES)
            if behind:  # the usual case; no segment follows one that ends with zeros
                self._is_cut = not any(behind)
                return self._is_cut
        if self._storage.exists(segment_path(self._folder, self.end.segment + 1)):
            return False
        if self.end.segment == 0:
            return True
        offset = self.end.first_frame.offset
        path = segment_path(self._folder, self.end.segment)
        if not self._storage.exists(path):
            return self.end.offset <= SEGMENT_HEADER_BYTES
        size, (behind,) = self._storage.read_ranges(path, [(offset, FRAME_HEADER_BYTES)])
        return size >= offset and not any(behind)

    def append(self, commits: Sequence[bytes]) -> LogPosition:
        """Append one frame with all `commits`, each of `encode_commit`; return the new end.

        The frame is durable then. Raises StorageError when the disk refuses, which leaves the log
        unchanged, and CorruptionError when the log is shorter than `end`.
        """
        self.write(commits)
        return self.sync()

    def write(self, commits: Sequence[bytes]) -> LogPosition:
        """Do the first half of `append`; return the end that the log has after `sync`.

        The frame is in the file then, but not durable and not before `end`, so no reader may see
        it. `take_back` and the next `write` cut it off. If the process ends instead, the next
        reader without an end finds it, as after a kill. Raises as `append`.
        """
        self._written_end = None
        file = self._open()
        frame_bytes = FRAME_HEADER_BYTES + sum(map(len, commits))
        if self._must_roll or self.end.offset + frame_bytes > self._segment_bytes_max:
            self.roll()
            file = self._open()
        if not self._is_cut:
            self._cut_tail(file)
        self._is_cut = False
        frame = encode_frame(commits, salt=self._salt, offset=self.end.offset)
        end = LogPosition(self.end.segment, self.end.offset + len(frame))
        self._begin, self._may_be_dirty = self.end, True
        try:
            file.append(frame + self._zeros_behind(end.offset), self.end.offset)
        except StorageError as error:
            self._take_back(file, error)
            raise
        self._written_end = end
        return end

    def sync(self) -> LogPosition:
        """Make the frame of the last `write` durable; return the new end. Raises StorageError."""
        file, end = self._file, self._written_end
        assert file is not None and end is not None, "nothing was written"
        self._written_end = None
        try:
            file.sync()
        except StorageError as error:
            self._take_back(file, error)
            raise
        self._may_be_dirty = False
        self.end = end
        return end

    def take_back(self) -> None:
        """Cut the last frame off again, durably, synced or not. Raises StorageError."""
        self._written_end = None
        self.end, self._may_be_dirty = self._begin, True
        self._cut_tail(self._open())

    def _zeros_behind(self, offset: int) -> bytes:
        """Return the padding to write after a frame that ends at `offset`; usually none."""
        if offset <= self._padded_end or not self._padding_bytes:
            return b""
        steps = -(-offset // self._padding_bytes)
        self._padded_end = max(offset, min(steps * self._padding_bytes, self._segment_bytes_max))
        return bytes(self._padded_end - offset)

    def roll(self) -> LogPosition:
        """Begin a new segment, unless the last one has no frame yet; return the new end."""
        self._written_end = None
        file = self._open()
        if self.end.offset > SEGMENT_HEADER_BYTES:
            self._cut_tail(file, with_padding=True)
            # The next segment closes this one, even if creating it fails after it exists.
            self._must_roll = True
            self._create_segment(self.end.segment + 1, previous_length=self.end.offset)
            self._must_roll = False
            self._begin = self.end  # no frame of this segment can be taken back
        return self.end

    def close(self) -> None:
        """Close the segment's file; the next write opens it again."""
        self._written_end = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _open(self) -> AppendFile:
        """Open the segment of `end`, creating it where it does not exist yet."""
        if self._file is None:
            end = self.end.first_frame
            path = segment_path(self._folder, end.segment)
            storage, is_new = self._storage, self.end.offset <= SEGMENT_HEADER_BYTES
            if is_new and not storage.exists(path):
                before = segment_path(self._folder, end.segment - 1)
                length = storage.length(before) if storage.exists(before) else 0
                self._create_segment(end.segment, previous_length=length)
            else:
                self._open_segment(end)
        assert self._file is not None
        return self._file

    def _open_segment(self, end: LogPosition) -> SegmentHeader:
        """Open the existing segment of `end` and take its salt."""
        path = segment_path(self._folder, end.segment)
        file = self._storage.directory.open_append(path)
        try:
            head = file.read(0, SEGMENT_HEADER_BYTES)
            header = decode_segment_header(head, end.segment, self._table_id)
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
            self._storage.make_folder(self._folder)
            self._storage.sync([self._folder.parent])
        path = segment_path(self._folder, segment)
        header = SegmentHeader(segment, previous_length, new_salt(self._table_id))
        if not self._storage.put_if_absent(path, encode_segment_header(header)):
            # A process that created it was stopped at once. Its name may not be durable yet.
            self._storage.sync([self._folder])
        found = self._open_segment(LogPosition(segment, SEGMENT_HEADER_BYTES))
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
            reason = strerror(error.errno) if error.errno else error.strerror
            raise StorageError(
                error.errno or 0,
                f"cannot append to {file.path}: {reason}; nor cut off the bytes written:"
                f" {second.strerror}; whether the rows were written is known when the log is read",
            ) from error
