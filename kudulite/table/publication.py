"""Publishing the next version of a table, beside other publishers: put-if-absent, and again.

    build version n + 1 on the newest, n ──> name is free: published
               ↑                         └── name is taken: another version came first
               └──────────────────────────────────┘

The publisher holds the locks of the tablets that it changes, so versions that come first leave the
entries of these tablets alone. `TableStore.publish` makes one attempt.

**Threads**: any.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kudulite.chain.manifest import Manifest
from kudulite.errors import ConflictError, CorruptionError
from kudulite.storage.names import MANIFEST_FOLDER, version_name
from kudulite.storage.tablet_lock import highest_safe_timestamp
from kudulite.table.table_store import TableStore, newest_of

# Each lost race is another writer's success; so many in a row mean that something is wrong.
PUBLISH_ATTEMPTS_MAX = 1000
# So many without a newer version mean the same. A network file system may show one seconds late.
UNSEEN_ATTEMPTS_MAX = 250


def publish_next(
    store: TableStore, newest: Manifest, build: Callable[[Manifest], Manifest | None]
) -> Manifest | None:
    """Publish `build(newest)`; a lost race is tried again on the newer version.

    The caller holds the locks of the tablets that `build` changes, so their entries are still
    those of `newest`. `build` returns None to give up; so does this. Raises as `publish`, and
    CorruptionError.
    """
    table_id, changed = newest.table_id, 0
    for attempt in range(PUBLISH_ATTEMPTS_MAX):
        manifest = build(newest)
        if manifest is None:
            return None
        assert manifest.previous_crc32 == newest.file_crc32
        published = store.publish(manifest)
        if published is not None:
            return published
        newest = newest_of(store, table_id)
        if newest.version >= manifest.version:
            changed = attempt
        elif attempt - changed == UNSEEN_ATTEMPTS_MAX:
            raise CorruptionError(
                f"{store.folder / MANIFEST_FOLDER}: {version_name(manifest.version)} cannot be"
                f" created, because the name is taken, but the newest version is {newest.version};"
                " look at that file, and restore the manifest folder from a copy of the table"
            )
        time.sleep(min(0.02, 0.0005 * attempt))
    raise ConflictError(
        f"table {store.name!r}: {PUBLISH_ATTEMPTS_MAX} other versions were published meanwhile;"
        " write again"
    )


def publish_alone(
    store: TableStore, work: str, build: Callable[[Manifest], Manifest | None]
) -> Manifest | None:
    """Publish `build(newest)`, which changes no tablet, as `publish_next` does.

    Raises ConflictError, LockTimeoutError, TableNotFoundError, StorageError.
    """
    with store.lock_any(work) as (newest, _):
        return publish_next(store, newest, build)


def version_timestamp(store: TableStore, newest: Manifest) -> int:
    """Return the timestamp of the version that is built on `newest`, whatever makes it.

    It is now, but above the version before and above each change that can be seen: in rowsets, and
    in the logs of all tablets. Rows that are written from now on may be later. The publisher asks
    again for each version on which it builds. Raises TimestampError, StorageError.
    """
    safe = highest_safe_timestamp([store.lock_path(entry.id) for entry in newest.tablets])
    return store.next_timestamp(max(newest.timestamp, newest.versions.timestamp, safe))
