"""Publishing the next version of a table: put-if-absent, again after each lost race."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from kudulite.catalog.manifest import Manifest, TabletEntry
from kudulite.catalog.table_store import TableStore
from kudulite.errors import ConflictError
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.tablet.tablet import ROWSET_FOLDER, Tablet

# Each lost race is another writer's success; this many in a row mean that something else is wrong.
PUBLISH_ATTEMPTS_MAX = 1000


def publish_next(
    store: TableStore, newest: Manifest, build: Callable[[Manifest], Manifest | None]
) -> Manifest | None:
    """Publish `build(newest)`; a lost race is tried again on the newer version.

    The caller holds the locks of the tablets that `build` changes, so their entries are still
    those of `newest`. `build` returns None to give up; so does this. Raises ConflictError when the
    table was deleted and created again, StorageError.
    """
    table_id = newest.table_id
    for attempt in range(PUBLISH_ATTEMPTS_MAX):
        manifest = build(newest)
        if manifest is None:
            return None
        assert manifest.previous_crc32 == newest.file_crc32
        published = store.publish(manifest)
        if published is not None:
            return published
        newest = store.newest()
        if newest.table_id != table_id:
            raise ConflictError(
                f"table {store.name!r} was deleted and created again during a write; write again"
                " to the new one"
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


def with_tablet(manifest: Manifest, new: TabletEntry, commit_id: str) -> Manifest:
    """Return the version after `manifest`, with another entry of one of its tablets."""
    return manifest.with_entry(new).successor(commit_id)


def are_there(rowsets: Sequence[RowSetMeta], base: Tablet) -> bool:
    """Whether all files are on disk that `rowsets` have and the tablet `base` does not.

    Files that are built without the lock look abandoned to a sweep with a short grace time.
    """
    known = {ref.name for rowset in base.disk_rowsets for ref in rowset.meta.file_refs}
    new = [(meta.id, ref.name) for meta in rowsets for ref in meta.file_refs]
    folder = base.folder / ROWSET_FOLDER
    return all(name in known or (folder / place / name).exists() for place, name in new)
