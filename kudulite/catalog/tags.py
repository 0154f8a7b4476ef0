"""Tags: moments with a name that stay readable past the retention, until the tag is deleted.

A tag changes no tablet; it is one entry of the next version. It holds the ancient history mark
back, so that all moments from the oldest tag on stay readable (history.py).

Threads: any.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kudulite.catalog.history import check_not_ancient
from kudulite.catalog.manifest import Manifest
from kudulite.catalog.publish import publish_alone
from kudulite.catalog.snapshot import choose_snapshot
from kudulite.catalog.table_store import TableStore
from kudulite.errors import NotFoundError, TimestampError, UsageError
from kudulite.mvcc.hybrid_time import format_timestamp

NAME_BYTES_MAX = 200
# The present becomes ancient at once where there is no retention and somebody else writes.
_RETRIES_MAX = 100


def make_tag(store: TableStore, name: str, at: Any) -> int:
    """Give the moment `at` (None is now) a name; return it as a settled HybridTime.

    A tag that has the name already is fine at the same moment. Raises UsageError for another one,
    TimestampError, LockTimeoutError, StorageError.
    """
    if not isinstance(name, str) or not name or len(name.encode()) > NAME_BYTES_MAX:
        raise UsageError(f"tag {name!r}: a name is a text of 1 to {NAME_BYTES_MAX} bytes")
    timestamp = choose_snapshot(store, at)
    for _ in range(0 if at is not None else _RETRIES_MAX):
        with suppress(TimestampError):
            _publish_tag(store, name, timestamp)
            return timestamp
        timestamp = choose_snapshot(store, None)
    _publish_tag(store, name, timestamp)
    return timestamp


def _publish_tag(store: TableStore, name: str, timestamp: int) -> None:
    def build(manifest: Manifest) -> Manifest | None:
        check_not_ancient(store, manifest, timestamp)
        found = manifest.tags.get(name, timestamp)
        if found != timestamp:
            raise UsageError(
                f"table {store.name!r}: tag {name!r} is at {format_timestamp(found)}; delete it"
                " first, or choose another name"
            )
        if name in manifest.tags:
            return None
        return _with_tags(manifest, {**manifest.tags, name: timestamp})

    publish_alone(store, f"tag {name!r}", build)


def delete_tag(store: TableStore, name: str) -> None:
    """Delete a tag; its moment stays readable for as long as the retention and other tags say.

    Raises NotFoundError listing the tags, LockTimeoutError, StorageError.
    """

    def build(manifest: Manifest) -> Manifest:
        if name not in manifest.tags:
            listed = ", ".join(sorted(manifest.tags)) or "none"
            raise NotFoundError(f"table {store.name!r} has no tag {name!r}; tags: {listed}")
        kept = {tag: moment for tag, moment in manifest.tags.items() if tag != name}
        return _with_tags(manifest, kept)

    publish_alone(store, f"deletion of tag {name!r}", build)


def _with_tags(manifest: Manifest, tags: Mapping[str, int]) -> Manifest:
    return manifest.successor(uuid.uuid4().hex, tags=tags)
