"""The next version of a table that changes no tablet, and the time of any next version."""

from collections.abc import Callable

from kudulite.chain.manifest import Manifest
from kudulite.table.present import recover
from kudulite.table.table_log import Turn
from kudulite.table.table_store import TableStore


def publish_alone(
    store: TableStore, work: str, build: Callable[[Manifest, int], Manifest | None]
) -> Manifest | None:
    """Publish `build(newest, timestamp)`, which changes no tablet, as `TableStore.update` does.

    Raises ConflictError, LockTimeoutError, TableNotFoundError, StorageError.
    """

    def publish(turn: Turn) -> Manifest | None:
        def fit(manifest: Manifest) -> Manifest | None:
            return build(manifest, version_timestamp(store, manifest, turn))

        return store.update(fit, turn.newest(), turn)

    return store.in_turn(work, publish)


def version_timestamp(store: TableStore, newest: Manifest, turn: Turn) -> int:
    """Return the timestamp of the version that is built on `newest`, whatever makes it.

    It is now, but above the version before and above each change that can be seen, in rowsets and
    in the log. Rows that are written from now on may be later. Raises TimestampError, StorageError.
    """
    used = max(newest.timestamp, newest.versions.timestamp, recover(store, turn).timestamp)
    return store.next_timestamp(used)
