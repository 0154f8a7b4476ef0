"""How far back a table can be read: the ancient history mark, and the tags that hold it.

    ancient history mark = max(history_start, min(now - retention, newest commit, oldest tag))

What is older than the mark may be collected, so a read at T is legal while T >= mark. The mark
rises with the clock alone. `history_start` is what was really collected: whoever publishes files
without some history raises it to the mark that he used, in the same version.

A read checks twice: the mark when it is planned, so that the answer does not depend on what was
collected already; and `history_start` of the versions that it uses, since a collection may have
been published in between. All reads find their tablets with `partitions_to_read` and open them with
`tablet_at`, which check that.

Invariants: (1) a version in which a tag is below `history_start` is never published: a tag is made
only at or above the mark of the version before, and a collection asks `is_mark_still_valid` of the
version before; (2) `history_start` never sinks.

Source: Kudu tablet/tablet.cc, the ancient history mark; reads after it are refused there, too.
"""

from __future__ import annotations

from kudulite.catalog.manifest import Manifest, PartitionedTablets, TabletEntry
from kudulite.catalog.table_store import TableStore
from kudulite.catalog.wal_tail import read_tablet
from kudulite.errors import StorageError, TimestampError
from kudulite.mvcc.hybrid_time import LOGICAL_BITS, TIMESTAMP_MAX, format_timestamp
from kudulite.tablet.tablet import Tablet


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

    For who builds the next version of `manifest`, each time that a race for it was lost: a tag may
    have been made meanwhile.
    """
    return all(moment >= mark for moment in manifest.tags.values())


def check_not_ancient(store: TableStore, manifest: Manifest, timestamp: int) -> None:
    """Raise TimestampError for a time before the ancient history mark, naming both."""
    _check_not_before(store, manifest, timestamp, ancient_history_mark(store, manifest))


def tablet_at(store: TableStore, entry: TabletEntry, timestamp: int) -> Tablet:
    """Open a tablet with the rows of its log, to be read at `timestamp` and later moments.

    Raises TimestampError when history up to there was collected, CorruptionError, StorageError.
    """
    try:
        tablet = read_tablet(store, entry)
    except StorageError:
        # A plan that is older than the grace time: the files may have gone with their history.
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
    manifest = store.newest()  # at least the version that the tablet was opened from
    _check_not_before(store, manifest, timestamp, manifest.history_start)


def _check_not_before(store: TableStore, manifest: Manifest, timestamp: int, mark: int) -> None:
    if timestamp < mark:
        raise TimestampError(
            f"table {store.name!r}: snapshot {format_timestamp(timestamp)} is before the ancient"
            f" history mark {format_timestamp(mark)}; history is kept for"
            f" {manifest.history_seconds} s"
        )
