"""Upgrade of a table of an older format, in which each tablet has a log and a lock of its own.

    1  the locks of all tablets, in the order of their ids     older software publishes nothing
    2  log/       one commit for each record of their logs, in order of time              durable
    3  lock       the highest safe timestamp of the tablets, and the end of log/
    4  a version of today's format                             older software refuses the table

The first writer does this. Until then a table is read as it is: a read takes the locks of all
tablets, shared, and has all that their logs hold. The logs and locks of the tablets stay until the
last version of an older format is removed. Older software that is slow may take such a lock after
the upgrade; it looks for the newest version then.

**Invariants**: before step 4 the table is as it was, so that an upgrade which was killed is begun
anew by the next writer.

**Threads**: any.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from kudulite.basefile.block_cache import BlockCache
from kudulite.chain.manifest import Manifest, Origin
from kudulite.chain.version_chain import TableChain, VersionChain
from kudulite.errors import StorageError
from kudulite.storage.names import LOCK_NAME, LOG_FOLDER, TABLET_FOLDER, WAL_FOLDER
from kudulite.storage.table_lock import TableLock, create_lock_file, read_lock_file
from kudulite.tablet.superblock import read_superblock
from kudulite.wal.commit_format import LoggedCommit, encode_commit
from kudulite.wal.log_writer import LogWriter
from kudulite.wal.record_format import RecordDecoder, encode_rows
from kudulite.wal.segment import LOG_BEGIN, LogPosition
from kudulite.wal.tablet_log import read_tablet_log

_FRAME_BYTES = 4 << 20


def upgrade(
    chain: VersionChain,
    cache: BlockCache,
    timeout_seconds: float,
    next_timestamp: Callable[[int], int],
) -> None:
    """Give the table one log and one lock, unless it has them by now.

    `next_timestamp` returns a time above one that was used. Raises LockTimeoutError, StorageError,
    CorruptionError.
    """
    with _locked_tablets(chain, timeout_seconds, is_shared=False) as newest:
        if not newest.has_tablet_logs:
            return
        commits, safe = _commits_of(chain, cache, newest)
        end = _write_log(chain, newest, commits)
        stamps = [commit.timestamp for commit in commits]
        used = max(safe, newest.timestamp, newest.versions.timestamp, *stamps)
        _write_lock(chain, end, used)

        def build(manifest: Manifest) -> Manifest:
            origin = Origin("upgrade", next_timestamp(used), is_maintenance=True)
            return manifest.successor(origin, log_start=LOG_BEGIN, log_end=end)

        chain.update(build, newest)


def read_tablet_logs(
    chain: TableChain, cache: BlockCache, timeout_seconds: float
) -> tuple[Manifest, list[LoggedCommit], int]:
    """Return the newest version, what its tablets' logs hold, and the highest safe timestamp.

    The version may be one of today's format, after an upgrade meanwhile: that has no such logs.
    """
    with _locked_tablets(chain, timeout_seconds, is_shared=True) as newest:
        return newest, *(_commits_of(chain, cache, newest) if newest.has_tablet_logs else ([], 0))


@contextmanager
def _locked_tablets(
    chain: TableChain, timeout_seconds: float, *, is_shared: bool
) -> Iterator[Manifest]:
    """Hold the locks of all tablets; give the newest version under them.

    Without locks if it has the format of today: its new tablets have none.
    """
    while True:
        newest = chain.newest()
        if not newest.has_tablet_logs:
            yield newest
            return
        with ExitStack() as stack:
            try:
                for tablet_id in sorted(entry.id for entry in newest.tablets):
                    path = _tablet_folder(chain, tablet_id) / LOCK_NAME
                    owner = f"table {chain.name!r}, tablet {tablet_id}: "
                    lock = TableLock(path, timeout_seconds, is_shared=is_shared, owner=owner)
                    stack.enter_context(lock)
                    if not is_shared:
                        lock.announce("upgrade of the format")
            except StorageError as error:
                if error.errno != errno.ENOENT or chain.newest() is newest:
                    raise
                continue  # garbage collection after an upgrade has removed it
            if chain.newest() is newest:
                yield newest
                return
        # An alteration that was waited for may have added or dropped tablets.


def _tablet_folder(chain: TableChain, tablet_id: str) -> Path:
    return chain.folder / TABLET_FOLDER / tablet_id


def _commits_of(
    chain: TableChain, cache: BlockCache, manifest: Manifest
) -> tuple[list[LoggedCommit], int]:
    """Return the records of all tablets' logs as commits, by time, and the safe timestamp."""
    storage, decoder = chain.storage, RecordDecoder(manifest.schema)
    found, safe = [], 0
    for entry in manifest.tablets:
        folder = _tablet_folder(chain, entry.id)
        state = read_lock_file(folder / LOCK_NAME)
        safe, durable_end = (
            max(safe, state.safe_timestamp),
            LogPosition(*state.log_end or LOG_BEGIN),
        )
        start = read_superblock(storage, folder, entry.superblock, cache).wal_start
        log = folder / WAL_FOLDER
        tail = read_tablet_log(storage, log, entry.id, start, None, decoder, durable_end)
        found += [(record.timestamp, entry.id, record) for record in tail.records]
    found.sort(key=lambda each: each[0])
    commits = [
        LoggedCommit(
            timestamp,
            None,
            {tablet_id: pa.py_buffer(encode_rows(record))},
            LogPosition(1, number),
        )
        for number, (timestamp, tablet_id, record) in enumerate(found, 1)
    ]
    return commits, safe


def _write_log(chain: VersionChain, manifest: Manifest, commits: list[LoggedCommit]) -> LogPosition:
    """Write the table's log anew, durable; return its end."""
    storage, folder = chain.storage, chain.folder / LOG_FOLDER
    storage.delete_below(folder)
    frame, size = list[bytes](), 0
    with LogWriter(storage, folder, manifest.table_id) as log:
        for commit in commits:
            parts = {tablet_id: bytes(rows) for tablet_id, rows in commit.parts.items()}
            content = encode_commit(commit.timestamp, parts)
            if frame and size + len(content) > _FRAME_BYTES:
                log.append(frame)
                frame, size = [], 0
            frame.append(content)
            size += len(content)
        if frame:
            log.append(frame)
        return log.end


def _write_lock(chain: VersionChain, end: LogPosition, safe: int) -> None:
    path = chain.folder / LOCK_NAME
    with suppress(StorageError):  # of an upgrade that was killed
        chain.storage.delete(path)
    create_lock_file(path)
    with TableLock(path, 0.0) as lock:
        lock.set_log_end(*end)
        lock.advance_safe_timestamp(safe)
    chain.storage.sync([chain.folder])
