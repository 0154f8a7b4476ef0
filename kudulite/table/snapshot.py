"""How far back a table can be read, and at which moment a read of it stands.

    ancient history mark = max(history_start, min(now - retention, newest commit, oldest tag))

History before the mark may be collected, so a read at T is legal while T >= mark. The mark rises
with the clock. `history_start` says what was collected: a collection up to a mark raises
`history_start` to that mark in the version that it publishes.

Every read checks two things. The mark, when the read is planned, so that the answer does not depend
on what has been collected already. And `history_start` of the versions that it uses, because a
collection may have been published in between: `partitions_to_read` and `tablet_at` check it.

The default is the present (present.py): it has everything that was acknowledged, and no lock is
taken. So is none for a moment before it. A moment after it, up to the clock's, needs a safe
timestamp that is as high: the planner advances it, briefly under the table's lock. Where the lock
file cannot be written (a read-only directory), such a moment is read while a shared lock has kept
writers out.

**Invariants**: `history_start` never falls.

**Threads**: any.

**Source**: Kudu tablet/tablet.cc, the ancient history mark; reads before it are refused there, too.
"""

import errno
from collections.abc import Sequence
from typing import Any

from kudulite.chain.manifest import Manifest, PartitionedTablets, TabletEntry
from kudulite.errors import StorageError, TimestampError
from kudulite.model.hybrid_time import (
    LOGICAL_BITS,
    LOGICAL_MASK,
    TIMESTAMP_MAX,
    Timestamp,
    format_timestamp,
    misread_number,
    parse_timestamp,
)
from kudulite.table.memory_flush import flush_table
from kudulite.table.present import present, read_tablet, read_tablets
from kudulite.table.table_store import TableStore
from kudulite.tablet.tablet import Tablet

_NOT_WRITABLE = (errno.EACCES, errno.EROFS, errno.EPERM)


def ancient_history_mark(store: TableStore, manifest: Manifest) -> int:
    """Return the HybridTime before which the past may no longer be whole.

    The newest state is no history: the mark is never after the newest commit.
    """
    age = manifest.history_seconds * 1_000_000 << LOGICAL_BITS
    held = min(manifest.tags.values(), default=manifest.timestamp)
    mark = min(store.environment.clock.now() - age, manifest.timestamp, held)
    return max(0, manifest.history_start, mark)


def is_mark_still_valid(manifest: Manifest, mark: int) -> bool:
    """Whether history up to `mark`, found on an older version, may still be collected.

    Asked for each version on which the next one is built: a tag may have been made meanwhile.
    """
    return all(moment >= mark for moment in manifest.tags.values())


def check_not_ancient(store: TableStore, manifest: Manifest, timestamp: int) -> None:
    """Raise TimestampError for a time before the ancient history mark, naming both."""
    _check_not_before(store, manifest, timestamp, ancient_history_mark(store, manifest))


def check_readable(store: TableStore, manifest: Manifest, timestamp: int, given: Any) -> None:
    """Raise TimestampError for a time before the table was created or before the AHM.

    `given` is the moment as the caller gave it, for the message.
    """
    mark = ancient_history_mark(store, manifest)
    misread = misread_number(given)
    if timestamp < manifest.created:
        raise TimestampError(
            f"table {store.name!r}: {format_timestamp(timestamp)} is before the table was created,"
            f" at {format_timestamp(manifest.created)}; it can be read from"
            f" {format_timestamp(max(mark, manifest.created))} on{misread}"
        )
    _check_not_before(store, manifest, timestamp, mark)


def moment_of(store: TableStore, manifest: Manifest, given: Any) -> int:
    """Return the HybridTime of a moment, of a version, or of the result of a write.

    Raises TimestampError, also for the name of a tag.
    """
    stamp = getattr(given, "timestamp", None)
    if isinstance(stamp, Timestamp):
        return stamp
    try:
        return parse_timestamp(given)
    except TimestampError as error:
        if not isinstance(given, str) or not manifest.tags:
            raise
        if given in manifest.tags:
            raise TimestampError(
                f"table {store.name!r}: {given!r} is the name of a tag, not a moment; write"
                f" table.tags[{given!r}], which is {format_timestamp(manifest.tags[given])}"
            ) from None
        raise TimestampError(
            f"table {store.name!r}: {error}; its tags are {', '.join(sorted(manifest.tags))}, and"
            " table.tags['name'] is the moment of a tag"
        ) from error


def tablet_at(store: TableStore, entry: TabletEntry, timestamp: int) -> Tablet:
    """Open a tablet with the rows of its log, to be read at `timestamp` and later moments.

    Raises TimestampError when history up to there was collected, CorruptionError, StorageError.
    """
    try:
        tablet = read_tablet(store, entry, timestamp)
    except StorageError:
        # A plan older than the grace time: the files may have been removed with their history.
        _check_collected(store, timestamp)
        raise
    _check_collected(store, timestamp)
    return tablet


def partitions_to_read(
    store: TableStore, manifest: Manifest, timestamp: int
) -> list[PartitionedTablets]:
    """Return the partitionings that a snapshot reads: the newest, and dropped ranges it sees.

    Raises TimestampError when the version has lost history that the snapshot needs: a dropped range
    would be missing without an error.
    """
    _check_not_before(store, manifest, timestamp, manifest.history_start)
    return manifest.partitions_at(timestamp)


def _check_collected(store: TableStore, timestamp: int) -> None:
    if timestamp == TIMESTAMP_MAX:
        return  # the newest state, whatever was collected
    manifest = store.chain.newest_at(timestamp)  # at least that which the tablet was opened from
    _check_not_before(store, manifest, timestamp, manifest.history_start)


def _check_not_before(store: TableStore, manifest: Manifest, timestamp: int, mark: int) -> None:
    if timestamp < mark:
        raise TimestampError(
            f"table {store.name!r}: snapshot {format_timestamp(timestamp)} is before the ancient"
            f" history mark {format_timestamp(mark)}; history is kept for"
            f" {manifest.history_seconds} s"
        )


def choose_snapshot(
    store: TableStore, at: Any, *, may_be_ancient: bool = False, has_looked: bool = False
) -> int:
    """Return the HybridTime of `at` (None is the present), up to which nothing more can be written.

    It looks for a newer version, because a purge changes the past, unless the caller `has_looked`.
    Raises TimestampError for a time ahead of the clock and, unless it `may_be_ancient`, before the
    table was created or before the ancient history mark.
    """
    manifest, _, now = present(store, at if has_looked else TIMESTAMP_MAX)
    if at is None:
        return now
    timestamp = moment_of(store, manifest, at)
    # The newest time seen in the table counts as now if its writers' clocks are ahead.
    clock = max(store.environment.clock.now(), now)
    if timestamp > clock | LOGICAL_MASK:
        raise TimestampError(
            f"table {store.name!r}: snapshot {format_timestamp(timestamp)} is ahead of the clock,"
            f" which is at {format_timestamp(clock)}"
        )
    if not may_be_ancient:
        check_readable(store, manifest, timestamp, at)
    if timestamp > now and not manifest.has_tablet_logs:
        _settle(store, timestamp)
    return timestamp


def common_present(stores: Sequence[TableStore]) -> int:
    """Return one settled moment of several tables, which shows all that each has acknowledged.

    The latest of their presents; the others are settled up to it, whatever this machine's clock
    says. Raises LockTimeoutError, StorageError.
    """
    side_by_side = stores[0].storage.side_by_side
    found = side_by_side(present, stores)
    latest = max(each.timestamp for each in found)
    behind = [
        store
        for store, each in zip(stores, found, strict=True)
        if each.timestamp < latest and not each.manifest.has_tablet_logs
    ]
    side_by_side(lambda store: _settle(store, latest), behind)
    return latest


def newest_change(store: TableStore) -> int:
    """Return the newest timestamp in the table; it is not made safe."""
    found, tablets = read_tablets(store)
    return max(found.manifest.timestamp, *(tablet.timestamp_max for tablet in tablets))


def _settle(store: TableStore, timestamp: int) -> None:
    """Advance the safe timestamp. Raises LockTimeoutError, StorageError."""
    try:
        advance_safe_timestamp(store, timestamp)
    except StorageError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        with store.turn(is_shared=True):
            present(store, is_still=True)


def advance_safe_timestamp(store: TableStore, timestamp: int) -> None:
    """Advance the table's safe timestamp. Raises LockTimeoutError, StorageError."""
    store.in_turn("snapshot", lambda turn: turn.advance_safe_timestamp(timestamp))
    if store.log.has_grown_long():  # by readers, where nobody writes
        flush_table(store)
