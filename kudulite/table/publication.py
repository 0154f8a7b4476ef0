"""The next version of a table that changes no tablet, and the time of any next version."""

from collections.abc import Callable

from kudulite.chain.manifest import Manifest
from kudulite.storage.table_lock import TableLock
from kudulite.table.present import recover
from kudulite.table.table_store import TableStore


def publish_alone(
    store: TableStore, work: str, build: Callable[[Manifest, int], Manifest | None]
) -> Manifest | None:
    """Publish `build(newest, timestamp)`, which changes no tablet, as `TableStore.update` does.

    Raises ConflictError, LockTimeoutError, TableNotFoundError, StorageError.
    """
    with store.locked(work) as lock:

        def fit(manifest: Manifest) -> Manifest | None:
            return build(manifest, version_timestamp(store, manifest, lock))

        return store.update(fit, store.newest(), lock)


def version_timestamp(store: TableStore, newest: Manifest, lock: TableLock) -> int:
    """Return the timestamp of the version that is built on `newest`, whatever makes it.

    It is now, but above the version before and above each change that can be seen, in rowsets and
    in the log. Rows that are written from now on may be later. Raises TimestampError, StorageError.
    """
    used = max(newest.timestamp, newest.versions.timestamp, recover(store, lock).timestamp)
    return store.next_timestamp(used)
