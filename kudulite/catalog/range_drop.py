"""Dropping a range partition that has rows: they end at one moment, and their past stays readable.

    drop at T    every rowset of the range's tablets gets delete_timestamp T; the tablets move to
                 the manifest's `dropped`, with the bounds of their range
    read at S    of the newest tablets, and of each dropped range with T > S (partitions_at)
    T <= mark    the range leaves the manifest, and the sweep removes its tablets' folders

T is above all timestamps used or settled in any tablet, so no moment that was read before shows
anything else. A range that is added later, with whatever bounds, has new, empty tablets whose
timestamps are above T.

Invariants: (1) a dropped tablet never changes: its log is empty, and nobody writes, flushes or
compacts it; (2) a key is live at S in one tablet at most.

Threads: any; `ended_range` under the locks of all tablets.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

from kudulite.catalog.history import ancient_history_mark, is_mark_still_valid
from kudulite.catalog.manifest import DroppedRange, Manifest, TabletEntry
from kudulite.catalog.partition import RangePartition, TabletPartition
from kudulite.catalog.publish import publish_alone
from kudulite.catalog.table_store import TableStore


def had_rows(store: TableStore, entry: TabletEntry) -> bool:
    """Whether a snapshot that is still readable may see rows of the tablet; its log is empty."""
    return bool(store.tablet(entry).superblock.rowsets)


def ended_range(
    store: TableStore, given: RangePartition, tablets: Sequence[TabletEntry], timestamp: int
) -> DroppedRange:
    """Write superblocks in which the range's tablets end at `timestamp`; published by nobody yet.

    They are durable. Raises StorageError.
    """
    ended = tuple(_ended(store, entry, timestamp) for entry in tablets)
    return DroppedRange(given, timestamp, ended)


def _ended(store: TableStore, entry: TabletEntry, timestamp: int) -> TabletEntry:
    old = store.tablet(entry).superblock
    rowsets = tuple(
        replace(meta, delete_timestamp=timestamp) if meta.delete_timestamp is None else meta
        for meta in old.rowsets
    )
    ref = store.write_superblock(replace(old, rowsets=rowsets))
    store.environment.file_system.sync_directory(store.tablet_folder(entry.id))
    place = TabletPartition(0, entry.partition.buckets)
    return replace(entry, partition=place).with_superblock(ref, rowsets, timestamp)


def without_ancient_ranges(manifest: Manifest, mark: int) -> Manifest:
    """Return the version without the ranges that no snapshot at or after `mark` sees."""
    kept = tuple(dropped for dropped in manifest.dropped if dropped.timestamp > mark)
    return manifest if len(kept) == len(manifest.dropped) else replace(manifest, dropped=kept)


def forget_dropped_ranges(store: TableStore) -> int:
    """Publish a version without the dropped ranges that are ancient; returns how many went.

    The sweep then removes their tablets, after the grace time. Raises LockTimeoutError,
    StorageError.
    """
    newest = store.newest()
    mark = ancient_history_mark(store, newest)
    if without_ancient_ranges(newest, mark) is newest:
        return 0
    count = 0

    def build(manifest: Manifest) -> Manifest | None:
        nonlocal count
        kept = without_ancient_ranges(manifest, mark)
        count = len(manifest.dropped) - len(kept.dropped)
        if not count or not is_mark_still_valid(manifest, mark):
            return None
        start = max(manifest.history_start, mark)
        return kept.successor(uuid.uuid4().hex, history_start=start)

    return count if publish_alone(store, "history collection", build) is not None else 0
