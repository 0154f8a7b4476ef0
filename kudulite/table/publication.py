"""The next version of a table that changes no tablet, and the time of any next version."""

from collections.abc import Callable

from kudulite.chain.manifest import Manifest
from kudulite.storage.tablet_lock import highest_safe_timestamp
from kudulite.table.table_store import TableStore


def publish_alone(
    store: TableStore, work: str, build: Callable[[Manifest], Manifest | None]
) -> Manifest | None:
    """Publish `build(newest)`, which changes no tablet, as `TableStore.update` does.

    Raises ConflictError, LockTimeoutError, TableNotFoundError, StorageError.
    """
    with store.lock_any(work) as (newest, _):
        return store.update(build, newest)


def version_timestamp(store: TableStore, newest: Manifest) -> int:
    """Return the timestamp of the version that is built on `newest`, whatever makes it.

    It is now, but above the version before and above each change that can be seen: in rowsets, and
    in the logs of all tablets. Rows that are written from now on may be later. The publisher asks
    again for each version on which it builds. Raises TimestampError, StorageError.
    """
    safe = highest_safe_timestamp([store.lock_path(entry.id) for entry in newest.tablets])
    return store.next_timestamp(max(newest.timestamp, newest.versions.timestamp, safe))
