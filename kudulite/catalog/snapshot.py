"""Choosing a snapshot time and settling it: from then on every read at it gives the same rows.

A time T is settled in a tablet if its `last` is T or above: all commits at or before T are
published, and no later one can get a timestamp ≤ T. If `last` is below T, the planner takes the
tablet's lock briefly and raises it. Only a time near the present needs that, so reading the past
takes no lock.

If `last` cannot be written (a read-only directory), the present is the newest change in the table,
found while shared locks keep writers out.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from kudulite.catalog.history import check_not_ancient
from kudulite.catalog.manifest import Manifest
from kudulite.catalog.table_store import TableStore
from kudulite.catalog.wal_tail import make_durable, read_tablet
from kudulite.errors import StorageError, TimestampError
from kudulite.mvcc.hybrid_time import LOGICAL_MASK, format_timestamp, parse_timestamp

_NOT_WRITABLE = (errno.EACCES, errno.EROFS, errno.EPERM)


def choose_snapshot(store: TableStore, at: Any) -> int:
    """Return the settled HybridTime of `at` (None is now), for all tablets of the table.

    Raises TimestampError for a time ahead of the clock or before the ancient history mark.
    """
    manifest = store.newest()
    ids = [tablet.id for tablet in manifest.tablets]
    now = _present(store, manifest, ids)
    timestamp = now if at is None else checked_timestamp(store, manifest, parse_timestamp(at), now)
    try:
        _settle_all(store, ids, timestamp)
    except StorageError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        newest = _newest_while_still(store, ids)
        return newest if at is None else timestamp
    return timestamp


def _newest_while_still(store: TableStore, tablet_ids: Iterable[str]) -> int:
    """Return when the table changed last, found while no write is under way in any tablet."""
    with ExitStack() as stack:
        for tablet_id in sorted(tablet_ids):
            stack.enter_context(store.lock(tablet_id, is_shared=True))
        return newest_change(store)


def newest_change(store: TableStore) -> int:
    """Return the newest timestamp of what is there now, not settled."""
    newest = store.newest()
    stamps = [read_tablet(store, entry).timestamp_max for entry in newest.tablets]
    return max(newest.timestamp, *stamps)


def _present(store: TableStore, manifest: Manifest, ids: Iterable[str]) -> int:
    """Return now, or the newest time seen in the table where its writers' clocks are ahead."""
    seen = max(store.last_timestamp(tablet_id) for tablet_id in ids)
    return max(store.environment.clock.now(), seen, manifest.timestamp)


def checked_timestamp(store: TableStore, manifest: Manifest, timestamp: int, now: int) -> int:
    """Return `timestamp` if it can be read. Raises TimestampError naming it and the limit."""
    if timestamp > now | LOGICAL_MASK:
        raise TimestampError(
            f"table {store.name!r}: snapshot {format_timestamp(timestamp)} is ahead of the clock,"
            f" which is at {format_timestamp(now)}"
        )
    check_not_ancient(store, manifest, timestamp)
    return timestamp


def _settle_all(store: TableStore, ids: list[str], timestamp: int) -> None:
    """Settle a time in `ids`, and in the tablets that an alteration added meanwhile.

    Tablets that are added later begin with the highest `last` of all others.
    """
    settled: set[str] = set()
    while left := [tablet_id for tablet_id in ids if tablet_id not in settled]:
        settle(store, left, timestamp)
        settled.update(left)
        ids = [tablet.id for tablet in store.newest().tablets]


def settle(store: TableStore, tablet_ids: Iterable[str], timestamp: int) -> None:
    """Make `timestamp` settled in the given tablets. Raises LockTimeoutError, StorageError."""
    for tablet_id in tablet_ids:
        if store.last_timestamp(tablet_id) < timestamp:
            with store.lock(tablet_id) as lock:
                lock.announce("snapshot")
                entry = store.newest().entry(tablet_id)
                if entry is not None:
                    make_durable(store, entry, lock)
                lock.lift_last_timestamp(timestamp)
