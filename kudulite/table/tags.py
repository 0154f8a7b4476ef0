"""Tags: names of moments, which hold the ancient history mark back.

A tag changes no tablet; it is one entry of the next version.

**Invariants**: no version has a tag below its `history_start`: a tag is made only at or above the
mark of the version before, and a collection asks `is_mark_still_valid` of the version before.

**Threads**: any.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kudulite.chain.manifest import (
    MAINTENANCE_VERSIONS_MAX,
    USER_VERSIONS_MAX,
    Manifest,
    Origin,
    TableVersion,
)
from kudulite.errors import NotFoundError, OptionError, TimestampError, UsageError
from kudulite.model.hybrid_time import format_timestamp
from kudulite.model.types import is_unicode
from kudulite.storage.json_form import readable
from kudulite.table.publication import publish_alone
from kudulite.table.snapshot import check_not_ancient, choose_snapshot
from kudulite.table.table_store import TableStore

NAME_BYTES_MAX = 200
# Without a retention, another write makes the present ancient at once.
_RETRIES_MAX = 100


def make_tag(store: TableStore, name: str, at: Any) -> int:
    """Give the moment `at` (None is now) a name; return its HybridTime.

    An existing tag of this name may have the same moment. Raises UsageError for another moment,
    TimestampError, LockTimeoutError, StorageError.
    """
    is_name = isinstance(name, str) and name and is_unicode(name)
    if not is_name or len(name.encode()) > NAME_BYTES_MAX:
        raise UsageError(f"tag {name!r}: a name is a text of 1 to {NAME_BYTES_MAX} bytes of UTF-8")
    timestamp = choose_snapshot(store, at)
    for _ in range(0 if at is not None else _RETRIES_MAX):
        with suppress(TimestampError):
            _publish_tag(store, name, timestamp)
            return timestamp
        timestamp = choose_snapshot(store, None)
    _publish_tag(store, name, timestamp)
    return timestamp


def _publish_tag(store: TableStore, name: str, timestamp: int) -> None:
    def build(manifest: Manifest, now: int) -> Manifest | None:
        check_not_ancient(store, manifest, timestamp)
        found = manifest.tags.get(name, timestamp)
        if found != timestamp:
            raise UsageError(
                f"table {store.name!r}: tag {name!r} is at {format_timestamp(found)}; delete it"
                " first, or choose another name"
            )
        if name in manifest.tags:
            return None
        origin = Origin("tag", now, message=name)
        return manifest.successor(origin, tags={**manifest.tags, name: timestamp})

    publish_alone(store, f"tag {name!r}", build)


def delete_tag(store: TableStore, name: str) -> None:
    """Delete a tag; its moment stays readable for as long as the retention and other tags keep it.

    Raises NotFoundError listing the tags, LockTimeoutError, StorageError.
    """
    is_repeated = False

    def build(manifest: Manifest, now: int) -> Manifest | None:
        nonlocal is_repeated
        if name not in manifest.tags:
            if is_repeated:  # published, then superseded and removed before this looked for it
                return None
            listed = ", ".join(sorted(manifest.tags)) or "none"
            raise NotFoundError(f"table {store.name!r} has no tag {name!r}; tags: {listed}")
        is_repeated = True
        kept = {tag: moment for tag, moment in manifest.tags.items() if tag != name}
        origin = Origin("delete_tag", now, message=name)
        return manifest.successor(origin, tags=kept)

    publish_alone(store, f"deletion of tag {name!r}", build)


def moment_or_version(store: TableStore, moment: Any, version: int | None) -> Any:
    """Return a moment as it is given, or that of a version of the table, which stands for it.

    Raises OptionError where both are given, NotFoundError for a version that is not listed, and
    TimestampError where the time of the version is not known.
    """
    if isinstance(moment, TableVersion) and moment.version is not None and version is None:
        moment, version = None, moment.version
    if version is None:
        return moment
    if moment is not None:
        raise OptionError(
            f"table {store.name!r}: moment {moment!r} and version {version!r}: give one of them"
        )
    manifest = store.newest()
    listed = newest_versions(store, manifest)
    numbered = {one.version: one for one in listed if one.version is not None}
    is_number = isinstance(version, int) and not isinstance(version, bool)
    found = numbered.get(version) if is_number else None
    if found is None:
        numbers = f"{min(numbered)} to {max(numbered)}" if numbered else "none"
        raise NotFoundError(
            f"table {store.name!r} lists no version {version!r}, only the last {USER_VERSIONS_MAX}"
            f" of users and the last {MAINTENANCE_VERSIONS_MAX} of maintenance: {numbers}; give a"
            " number that versions() lists, or a moment"
        )
    start = manifest.versions.ordered_from
    if (start is None or version < start) and not _is_in_order(version, numbered):
        raise TimestampError(
            f"table {store.name!r}: the rows of version {version} ({found.operation}) are not known"
            f" by its timestamp {format_timestamp(found.timestamp)}: software before this one"
            " listed it, and its time may be before rows that it has, or after those of a later"
            " version; give another version, or the moment that you mean"
        )
    return found.timestamp


def _is_in_order(version: int, listed: Mapping[int, TableVersion]) -> bool:
    """Whether a version that older software listed has the time of its rows.

    A memory flush had the time of a row of its tablet, and other tablets may have had later rows.
    """
    found = listed[version]
    return found.operation != "memory flush" and all(
        one.timestamp < found.timestamp
        if number < version
        else one.timestamp > found.timestamp or one.operation == "memory flush"
        for number, one in listed.items()
        if number != version
    )


def newest_versions(store: TableStore, manifest: Manifest) -> list[TableVersion]:
    """Return the versions that `manifest` lists, newest first. Raises CorruptionError."""
    with readable(f"{store.folder}: version {manifest.version}", "a manifest"):
        return manifest.versions.newest_first()
