"""The log of a table on disk: whether it has more behind an end, and its end after a crash.

While the table's lock is held no append is under way, so whole frames behind the durable end are of
a writer that died before it noted them as durable, or the lock file lost the note in a power
failure. They are written once more, fsynced, and count as written; the next append cuts a torn
frame off. So any process, after any crash, finds the same rows.

An fsync that failed, of the writer that died or of a recovery before, may have left the system with
pages that it takes for written. The next fsync of them succeeds and does nothing, unless they are
written again.

**Invariants**: the durable end advances after the fsync and before the safe timestamp, so all
records up to a safe timestamp lie before it.

**Threads**: any.
"""

import logging
from pathlib import Path

from kudulite.chain.manifest import Manifest
from kudulite.storage.names import LOG_FOLDER
from kudulite.storage.storage import Storage
from kudulite.storage.table_lock import TableLock
from kudulite.wal.frame_format import FRAME_HEADER_BYTES
from kudulite.wal.log_reader import read_log
from kudulite.wal.segment import SEGMENT_HEADER_BYTES, LogPosition, segment_path

_log = logging.getLogger(__name__)


def log_folder(table_folder: Path) -> Path:
    """Return the folder of a table's log."""
    return table_folder / LOG_FOLDER


def is_longer(storage: Storage, folder: Path, end: LogPosition) -> bool:
    """Whether there is more of the log in `folder` behind `end` than zeros."""
    if storage.exists(segment_path(folder, end.segment + 1)):
        return True
    path = segment_path(folder, end.segment)
    if end.segment == 0 or not storage.exists(path):
        return False
    _, (behind,) = storage.read_ranges(path, [(end.first_frame.offset, FRAME_HEADER_BYTES)])
    return any(behind)


def make_durable(
    storage: Storage, table_folder: Path, manifest: Manifest, lock: TableLock
) -> LogPosition:
    """Return where the table's log ends, everything before it durable; under the table's lock.

    Advances the durable end and the safe timestamp over records of a writer that died.
    Raises CorruptionError, StorageError.
    """
    folder, known = log_folder(table_folder), LogPosition(*lock.log_end)
    end = max(known, manifest.log_end, manifest.log_start)
    if is_longer(storage, folder, end):
        tail = read_log(storage, folder, manifest.table_id, end, None, durable_end=end)
        if tail.end > end:
            # Without records, too: a process may have died right after it rolled the log.
            first = end.first_frame
            for segment in range(first.segment, tail.end.segment + 1):
                offset = first.offset if segment == first.segment else SEGMENT_HEADER_BYTES
                length = tail.end.offset - offset if segment == tail.end.segment else None
                path = segment_path(folder, segment)
                _, (frames,) = storage.read_ranges(path, [(offset, length)])
                with storage.directory.open_append(path) as file:
                    if frames:
                        file.append(frames, offset)
                    file.sync()
            storage.sync([folder])
        if tail.commits:
            _log.info(
                "table %r: %d commits recovered from the log, behind the end that their writer"
                " noted",
                table_folder.name,
                len(tail.commits),
            )
        end = tail.end
        if end > known:
            lock.set_log_end(*end)
        if tail.commits:
            lock.advance_safe_timestamp(tail.commits[-1].timestamp)
    elif end > known:
        lock.set_log_end(*end)
    return end
