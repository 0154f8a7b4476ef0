"""The newest state of a table: its newest version, and the rows of its log that follow it.

    log_start (manifest) ──── memory's `end` ──── durable end (lock file) ──── end of the file
          in rowsets   | in memory, catches up | an append under way, or of a writer that died

A reader takes everything that was acknowledged, without a lock, in this order:

    1  S, E  the safe timestamp and the durable end, from the lock file in this order
    2  V     the newest version
    3  the log up to the later of E and V's own `log_end`

The present is T, the latest of S, the time of V, and that of the last commit in this part of the
log. No later commit can be given a time up to T: a commit takes one above S, above that of the
version that it follows, and above those in the log. Each commit up to T is in V or in that part of
the log: a row write up to S lies before E, and one up to the time of V lies before V's `log_end`,
which was read under the lock that V was published under. So nobody is waited for. And all that is
in memory is up to T: a lookup, which reads all of it, and a scan show the same.

The log's rows of a tablet fit each later version of it, because a version that changes which of
its keys are live flushes its rows first (`log_start` of the superblock).

Once in a process, a reader looks for frames behind the durable end: a power failure may have taken
the note of it back. It recovers them under the lock (directory_log.py), unless the lock is held,
and the note is of this boot of this machine: then an append is under way.

Without a directory, one look at the chain gives all three: the newest version, the last record, and
the time of the newest entry (chain_log.py).

An operator may put an older copy of the table in its place. Memory is of the lock file beside its
log, and never longer than that log, nor of a newer version than there is; otherwise it is made
anew.

**Invariants**: memory is never ahead of the durable end, but where the lock file could not be
written.

**Threads**: any.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

from kudulite.chain.manifest import Manifest, TabletEntry
from kudulite.errors import CorruptionError, LockTimeoutError, StorageError, TableNotFoundError
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.table.table_log import Turn
from kudulite.table.table_memory import SupersededError, TableMemory
from kudulite.table.table_store import TableStore
from kudulite.table.upgrade import read_tablet_logs
from kudulite.tablet.mem_stores import MemStores
from kudulite.tablet.tablet import Tablet
from kudulite.wal.segment import LogPosition

# A file that is missing each time was not just superseded.
_LOOKS_MAX = 3

Result = TypeVar("Result")


class Present(NamedTuple):
    """The newest version, the log's rows of it, and the time up to which both are whole."""

    manifest: Manifest
    memory: TableMemory
    timestamp: int

    def stores(self, store: TableStore, entry: TabletEntry) -> MemStores | None:
        """Return the memory of a tablet of the version, None if it is empty.

        Raises SupersededError unless the version is still the newest.
        """
        if not self.memory.has_rows(entry.id, self.manifest.log_start):
            self.memory.check_follows(self.manifest)  # a newer version may have its rows
            return None
        return self.memory.stores(store.tablet(entry), self.manifest)


def read_tablet(store: TableStore, entry: TabletEntry, until: int = TIMESTAMP_MAX) -> Tablet:
    """Return a tablet with the durable rows of the log, at least up to a moment that is settled.

    It may be of a newer version: up to the safe timestamp both show the same rows. Raises as
    `present`.
    """
    entry, memory = caught_up_memory(store, entry, until)
    return store.tablet(entry) if memory is None else memory.tablet()


def caught_up_memory(
    store: TableStore, entry: TabletEntry, until: int = TIMESTAMP_MAX
) -> tuple[TabletEntry, MemStores | None]:
    """Return the tablet's newest entry, and its memory up to the durable end, or None if empty."""

    def of(found: Present) -> tuple[TabletEntry, MemStores | None]:
        newest = found.manifest.readable_entry(entry.id) or entry
        return newest, found.stores(store, newest)

    return of_present(store, of, until)


def read_tablets(store: TableStore) -> tuple[Present, list[Tablet]]:
    """Return the newest state, and all its tablets with their rows in memory, in order."""

    def of(found: Present) -> tuple[Present, list[Tablet]]:
        def tablet(entry: TabletEntry) -> Tablet:
            memory = found.stores(store, entry)
            return store.tablet(entry) if memory is None else memory.tablet()

        return found, store.storage.side_by_side(tablet, found.manifest.tablets)

    return of_present(store, of)


def listing(store: TableStore) -> Manifest:
    """Return the newest version, which also lists the commits of the log; see table_memory.py.

    Raises as `present`.
    """
    return of_present(store, lambda found: found.memory.listing(found.manifest))


def newest_commit(store: TableStore) -> int:
    """Return the time of the newest version or commit. Raises as `present`."""
    return of_present(store, lambda found: _newest_time(found.manifest, found.memory))


def of_present(
    store: TableStore, of: Callable[[Present], Result], until: int = TIMESTAMP_MAX
) -> Result:
    """Return what `of` makes of the newest state; again while a newer version comes first.

    Raises as `present`.
    """
    for left in reversed(range(_LOOKS_MAX)):
        while True:
            found = present(store, until)
            try:
                return of(found)
            except SupersededError:
                until = TIMESTAMP_MAX
                continue
            except StorageError as error:
                # A purge has removed the superblock of a version that is not the newest any more.
                is_newest = store.newest().version == found.manifest.version
                until = TIMESTAMP_MAX
                if error.errno != errno.ENOENT or (is_newest and not left):
                    raise
                break
    raise AssertionError("the last look returns or raises")


def present(store: TableStore, until: int = TIMESTAMP_MAX, *, is_still: bool = False) -> Present:
    """Return the newest state, as the head says, or one that has all up to a settled moment.

    `is_still`: no append is under way, so the whole log is read, even if its end could not be noted
    in the lock file. Raises CorruptionError for a damaged log, TableNotFoundError where the table
    was moved meanwhile.
    """
    for left in reversed(range(_LOOKS_MAX)):
        try:
            while True:
                with suppress(SupersededError):
                    return _present(store, until, is_still=is_still)
                until = TIMESTAMP_MAX
        except (CorruptionError, StorageError) as error:
            if not store.chain.exists():
                raise TableNotFoundError(
                    f"table {store.name!r} was moved or deleted during the call: {store.folder}"
                    " does not hold it any more"
                ) from error
            # A file is missing where a part of the log was superseded and removed, or the table
            # renamed and renamed back. Damage is found again.
            is_missing = isinstance(error, CorruptionError) or error.errno == errno.ENOENT
            if not left or not is_missing:
                raise
            until = TIMESTAMP_MAX
    raise AssertionError("the last look returns or raises")


def _present(store: TableStore, until: int, *, is_still: bool) -> Present:
    log = store.log
    state = log.look(until)
    manifest = state.manifest
    if manifest.has_tablet_logs:
        return _of_tablet_logs(store)
    is_known, memory = _known_memory(store, manifest, state.identity)
    if state.end is None:
        return _recovered(store)
    end = max(state.end, manifest.log_end, memory.end)
    if end > max(state.end, manifest.log_end) and log.is_rolled_back(end):
        return _recovered(store)
    if (is_still or not is_known) and log.is_longer(end):
        if is_still or not state.is_of_this_boot or _is_free(store):
            return _recovered(store)
    _catch_up(store, manifest, memory, end)
    store.environment.memories[store.memory_key] = memory
    return Present(manifest, memory, max(state.safe_timestamp, _newest_time(manifest, memory)))


def _newest_time(manifest: Manifest, memory: TableMemory) -> int:
    """Return the newest time of a version and of the log's commits behind it.

    Raises SupersededError if it is not the newest.
    """
    return max(manifest.timestamp, manifest.versions.timestamp, memory.timestamp(manifest))


def _is_free(store: TableStore) -> bool:
    """Whether nobody holds the table's lock."""
    try:
        with store.turn(is_shared=True, timeout_seconds=0.0):
            return True
    except LockTimeoutError:
        return False


def recover(store: TableStore, turn: Turn) -> Present:
    """Return the newest state with all that the log holds, in a turn.

    Raises CorruptionError, StorageError.
    """
    manifest = turn.newest()
    _, memory = _known_memory(store, manifest, turn.identity)
    if not store.log.is_settled(turn, memory):
        end = store.log.settle(turn, manifest)
        if memory.end > end:  # an older copy of the log was put in its place
            memory = TableMemory(manifest, turn.identity)
        _catch_up(store, manifest, memory, end)
    store.environment.memories[store.memory_key] = memory
    timestamp = max(turn.safe_timestamp, _newest_time(manifest, memory))
    return Present(manifest, memory, timestamp)


def _recovered(store: TableStore) -> Present:
    """Recover under the lock, or read the log where the lock file is not writable."""
    try:
        with store.locked("recovery") as turn:
            return recover(store, turn)
    except StorageError:
        if store.log.is_writable:
            raise
    with store.turn(is_shared=True) as turn:
        manifest = turn.newest()
        _, memory = _known_memory(store, manifest, turn.identity)
        start = memory.end
        tail = store.log.read(manifest.table_id, start, None)
        memory.add(tail.commits, start, tail.end)
    store.environment.memories[store.memory_key] = memory
    return Present(manifest, memory, _newest_time(manifest, memory))


def _known_memory(store: TableStore, manifest: Manifest, place: object) -> tuple[bool, TableMemory]:
    """Return whether this process has looked for the log of this table, and its memory.

    A new one where there is none yet, where another copy of the table was put in its place, and
    where the table was altered since: its log was empty then.
    """
    known = store.environment.memories.get(store.memory_key)
    if known is not None and (
        known.place != place
        # Another thread may have seen a version that was published just now.
        or (known.version > manifest.version and store.newest() is manifest)
    ):
        known = None
    if known is None or not known.is_of(manifest):
        is_known = known is not None and known.table_id == manifest.table_id
        return is_known, TableMemory(manifest, place)
    known.follow(manifest)
    return True, known


def _catch_up(store: TableStore, manifest: Manifest, memory: TableMemory, end: LogPosition) -> None:
    """Read the log up to `end`; the file is read before the mutex is taken."""
    while (start := memory.end).first_frame < end.first_frame:
        # The log before may be removed already.
        begin = max(start, manifest.log_start)
        tail = store.log.read(manifest.table_id, begin, end)
        memory.add(tail.commits, start, max(tail.end, end))


def _of_tablet_logs(store: TableStore) -> Present:
    """Read the logs of the tablets of a table of an older format."""
    timeout_seconds = store.environment.lock_timeout_seconds
    manifest, commits, safe = read_tablet_logs(store.chain, store.cache, timeout_seconds)
    if not manifest.has_tablet_logs:  # upgraded meanwhile
        return _present(store, TIMESTAMP_MAX, is_still=False)
    memory = TableMemory(manifest)
    if commits:
        memory.add(commits, memory.end, commits[-1].end)
    return Present(manifest, memory, max(safe, _newest_time(manifest, memory)))
