"""The log of a table in a directory: segments of frames, under the table's lock.

A turn is an acquisition of the lock. While it is held no append is under way, so whole frames
behind the durable end are of a writer that died before it noted them as durable, or the lock file
lost the note in a power failure. They are written once more, fsynced, and count as written; the
next append cuts a torn frame off. So any process, after any crash, finds the same rows.

An fsync that failed, of the writer that died or of a recovery before, may have left the system with
pages that it takes for written. The next fsync of them succeeds and does nothing, unless they are
written again.

If the durable end cannot be advanced after an append, the commit is cut off again, so the caller
may write the rows again. If that is impossible, too, the error says that the rows are durable.

**Invariants**: the durable end advances after the fsync and before the safe timestamp, so all
records up to a safe timestamp lie before it.

**Threads**: any.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from kudulite.chain.manifest import Manifest
from kudulite.chain.version_chain import VersionChain
from kudulite.errors import StorageError
from kudulite.storage.names import LOCK_NAME, LOG_FOLDER, segment_of
from kudulite.storage.storage import Listed, Storage
from kudulite.storage.table_lock import TableLock, create_lock_file, read_lock_file
from kudulite.table.table_log import LogState, Turn
from kudulite.table.table_memory import TableMemory
from kudulite.wal.frame_format import FRAME_HEADER_BYTES
from kudulite.wal.log_reader import LogTail, read_log
from kudulite.wal.log_writer import LogWriter
from kudulite.wal.segment import SEGMENT_HEADER_BYTES, LogPosition, segment_path

_PADDING_BYTES = 64 << 10

_log = logging.getLogger(__name__)


class DirectoryTurn(TableLock):
    """The table's lock, with the versions that it protects."""

    chain: VersionChain

    def newest(self) -> Manifest:
        """Return the newest version."""
        return self.chain.newest()

    def newest_of(self, table_id: str) -> Manifest:
        """Return the newest version of a table. Raises ConflictError for another one."""
        return self.chain.newest_of(table_id)

    def renew(self) -> None:
        """Do nothing: nobody comes first while the lock is held."""

    def check_is_first(self) -> None:
        """Do nothing, for the same reason."""


@dataclass
class DirectoryLog:
    """The log of the table whose versions are in `chain`."""

    chain: VersionChain

    @property
    def storage(self) -> Storage:
        """The directory's storage."""
        return self.chain.storage

    @cached_property
    def lock_path(self) -> str:
        """The path of the table's lock file; as text, since every row written asks."""
        return str(self.chain.folder / LOCK_NAME)

    @cached_property
    def folder(self) -> Path:
        """The folder of the segments."""
        return self.chain.folder / LOG_FOLDER

    def create(self, safe_timestamp: int = 0) -> None:
        """Make the lock file."""
        create_lock_file(Path(self.lock_path))
        if safe_timestamp:
            with self.turn(0.0) as turn:
                turn.advance_safe_timestamp(safe_timestamp)

    def turn(
        self,
        timeout_seconds: float,
        *,
        is_shared: bool = False,
        stays_open: bool = False,
        has_looked: bool = False,
    ) -> DirectoryTurn:
        """Return the table's lock, for a `with`, whatever the caller has seen before."""
        turn = DirectoryTurn(
            self.lock_path,
            timeout_seconds,
            is_shared=is_shared,
            stays_open=stays_open,
            owner=f"table {self.chain.name!r}: ",
        )
        turn.chain = self.chain
        return turn

    # -- reading

    def look(self, until: int) -> LogState:
        """Read the lock file, then the newest version: in this order, see present.py."""
        state = read_lock_file(self.lock_path)
        end = None if state.log_end is None else LogPosition(*state.log_end)
        newest = self.chain.newest()
        return LogState(newest, state.safe_timestamp, end, state.is_of_this_boot, state.identity)

    def is_longer(self, end: LogPosition) -> bool:
        """Whether there is more of the log behind `end` than zeros."""
        storage = self.storage
        if storage.exists(segment_path(self.folder, end.segment + 1)):
            return True
        path = segment_path(self.folder, end.segment)
        if end.segment == 0 or not storage.exists(path):
            return False
        _, (behind,) = storage.read_ranges(path, [(end.first_frame.offset, FRAME_HEADER_BYTES)])
        return any(behind)

    def is_rolled_back(self, held: LogPosition) -> bool:
        """Whether the lock file does not note what memory holds, though it may be written.

        Memory may also be of another thread's commit since the caller has read the lock file.
        """
        noted = read_lock_file(self.lock_path).log_end
        return noted is not None and noted < held and self.is_writable

    @property
    def is_writable(self) -> bool:
        """Whether this process may write to the lock file."""
        return self.storage.directory.is_writable(self.lock_path)

    def read(self, table_id: str, start: LogPosition, end: LogPosition | None) -> LogTail:
        """Return the commits between two positions, or up to the last whole frame."""
        return read_log(self.storage, self.folder, table_id, start, end)

    # -- in a turn

    def is_settled(self, turn: Turn, memory: TableMemory) -> bool:
        """Whether this process has made the last append, or read it, and nothing is behind it."""
        log = memory.log
        return log is not None and memory.end == log.end == turn.log_end and log.is_current

    def settle(self, turn: Turn, manifest: Manifest) -> LogPosition:
        """Return where the log ends, everything before it durable.

        Advances the durable end and the safe timestamp over records of a writer that died.
        """
        assert isinstance(turn, DirectoryTurn)
        known = LogPosition(*turn.log_end)
        end = max(known, manifest.log_end, manifest.log_start)
        if self.is_longer(end):
            tail = read_log(
                self.storage, self.folder, manifest.table_id, end, None, durable_end=end
            )
            if tail.end > end:
                # Without records, too: a process may have died right after it rolled the log.
                self._write_again(end.first_frame, tail.end)
            if tail.commits:
                _log.info(
                    "table %r: %d commits recovered from the log, behind the end that their writer"
                    " noted",
                    self.chain.name,
                    len(tail.commits),
                )
            end = tail.end
            if end > known:
                turn.set_log_end(*end)
            if tail.commits:
                turn.advance_safe_timestamp(tail.commits[-1].timestamp)
        elif end > known:
            turn.set_log_end(*end)
        return end

    def _write_again(self, first: LogPosition, end: LogPosition) -> None:
        """Write the frames between two positions in their places again, durably."""
        for segment in range(first.segment, end.segment + 1):
            offset = first.offset if segment == first.segment else SEGMENT_HEADER_BYTES
            length = end.offset - offset if segment == end.segment else None
            path = segment_path(self.folder, segment)
            _, (frames,) = self.storage.read_ranges(path, [(offset, length)])
            with self.storage.directory.open_append(path) as file:
                if frames:
                    file.append(frames, offset)
                file.sync()
        self.storage.sync([self.folder])

    def append(
        self, turn: Turn, memory: TableMemory, commits: Sequence[bytes], timestamp: int
    ) -> LogPosition:
        """Append one frame with its fsync, and note its end and time in the lock file."""
        assert isinstance(turn, DirectoryTurn)
        log = memory.log
        if log is None or log.end != memory.end:
            log = memory.log = self._writer(memory, padding_bytes=_PADDING_BYTES)
        end = log.append(commits)
        try:
            turn.set_log_end(*end)
        except StorageError as error:
            try:
                log.take_back()
            except StorageError as second:
                raise StorageError(
                    error.errno or 0,
                    f"table {self.chain.name!r}: the rows are durable in the log, but"
                    f" {error.strerror}; nor can they be taken back: {second.strerror}; they are"
                    " there when the disk is: read before you write them again",
                ) from error
            raise
        with suppress(StorageError):  # a reader that needs it advances it under the lock
            turn.advance_safe_timestamp(timestamp)
        return end

    def _writer(self, memory: TableMemory, *, padding_bytes: int = 0) -> LogWriter:
        return LogWriter(
            self.storage, self.folder, memory.table_id, memory.end, padding_bytes=padding_bytes
        )

    def publish(
        self, turn: Turn, fit: Callable[[Manifest], Manifest | None], newest: Manifest
    ) -> Manifest | None:
        """Publish the next version as `VersionChain.update` does."""

        def fitted(manifest: Manifest) -> Manifest | None:
            found = fit(manifest)
            end = max(LogPosition(*turn.log_end), manifest.log_end)
            return None if found is None else replace(found, log_end=end)

        return self.chain.update(fitted, newest)

    def roll(self, turn: Turn, memory: TableMemory) -> None:
        """Continue the log in a new segment, so that the one before can be removed."""
        assert isinstance(turn, DirectoryTurn)
        with self._writer(memory) as log:
            memory.add((), memory.end, log.roll())
        turn.set_log_end(*memory.end)

    def fence(self, turn: Turn) -> None:
        """Do nothing: nobody else has a turn."""

    def end(self, turn: Turn, *, is_first: bool) -> None:
        """Do nothing: the table's folder was moved while the lock is held."""

    def refuse_all(self) -> None:
        """Do nothing, as `end`."""

    def resume(self, turn: Turn) -> bool:
        """Return False."""
        return False

    # -- upkeep

    def files_before(self, segment: int) -> list[Listed]:
        """Return the segments before one."""
        files = self.storage.files_below(self.folder)
        numbered = [(segment_of(file.path.name), file) for file in files]
        return [file for number, file in numbered if number is not None and number < segment]

    def has_grown_long(self) -> bool:
        """Return False: the memory that its rows take says when it should be flushed."""
        return False

    @property
    def nbytes(self) -> int:
        """The bytes of all segments."""
        return sum(file.length for file in self.storage.files_below(self.folder))
