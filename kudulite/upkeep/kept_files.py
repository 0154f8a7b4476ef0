"""Kept files: the files of tablets, and the log's segments, that versions of a table refer to.

    newest version      its superblocks are those of opened tablets
    earlier versions    each superblock is read once, then only remembered by its files:
                        those that the newest one does not list, with the last version that has them

A superblock never changes, and its name is unique. Neighbouring versions share most of them, so a
version adds no more than the superblocks that it replaced. Versions are removed from the oldest on,
so a file is kept until the last version that has it is removed. All this is in the block cache:
without it the versions are read again.

**Invariants**: (1) the superblocks of all versions from the newest one seen down to the oldest one
are read, or noted to be read, before any file counts as unreferenced; (2) a version that was
removed meanwhile only keeps files longer.

**Threads**: any; an object belongs to one thread, and what they share is replaced, never changed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kudulite.chain.manifest import Manifest, TabletEntry, changed_entries
from kudulite.errors import StorageError
from kudulite.storage.names import (
    LOCK_NAME,
    MAINTENANCE_LOCK_NAME,
    ROWSET_FOLDER,
    TABLET_FOLDER,
    WAL_FOLDER,
    is_id,
)
from kudulite.storage.storage import FileRef
from kudulite.table.table_store import TableStore
from kudulite.tablet.superblock import Superblock, read_earlier_superblock

# The place of a file in a tablet is the id of its rowset, or this.
_TABLET = ""
# Of a remembered file: its name, its place in the map, and the last version.
_FILE_BYTES = 300
_VERSION_BYTES = 100

# Names of files by their folder.
Names = Mapping[Path, Sequence[str]]


@dataclass(frozen=True)
class TabletFiles:
    """Files of a tablet: names by folder, and all of the folder of its own log, if it has one."""

    names: Mapping[Path, set[str]]
    log_folder: Path | None

    def others(self, found: Names) -> Names:
        """Return the other names among those that were found, by folder, and empty folders."""
        others = {
            place: sorted(set(names) - self.names.get(place, set()))
            for place, names in found.items()
            if place != self.log_folder
        }
        return {place: names for place, names in others.items() if names or not found[place]}


def newest_files(store: TableStore, manifest: Manifest, tablet_id: str) -> TabletFiles:
    """Return the files of a tablet that one version refers to, the newest; and its locks."""
    newest = _newest_superblock(store, manifest, tablet_id)
    return _tablet_files(store, tablet_id, newest, (), manifest.has_tablet_logs)


def _newest_superblock(store: TableStore, manifest: Manifest, tablet_id: str) -> Superblock | None:
    entry = manifest.readable_entry(tablet_id)
    return None if entry is None else store.tablet(entry).superblock


def _tablet_files(
    store: TableStore,
    tablet_id: str,
    newest: Superblock | None,
    earlier: Iterable[tuple[str, str]],
    has_tablet_logs: bool,
) -> TabletFiles:
    locks = (LOCK_NAME, MAINTENANCE_LOCK_NAME) if has_tablet_logs else (MAINTENANCE_LOCK_NAME,)
    names = {_TABLET: set(locks)}
    if newest is not None:
        for place, found in _listed(newest):
            names.setdefault(place, set()).update(found)
    for place, name in earlier:
        names.setdefault(place, set()).add(name)
    folder = store.tablet_folder(tablet_id)
    rowsets = folder / ROWSET_FOLDER
    return TabletFiles(
        {
            (folder if place == _TABLET else rowsets / place): found
            for place, found in names.items()
        },
        folder / WAL_FOLDER if has_tablet_logs else None,
    )


def _listed(superblock: Superblock) -> Iterator[tuple[str, list[str]]]:
    """Yield the names of all files that a superblock needs, itself included, by their places."""
    own = [] if superblock.file is None else [superblock.file]
    refs = (*own, *superblock.base_refs, *superblock.tablet_file_refs)
    yield _TABLET, [ref.name for ref in refs]
    for meta in superblock.rowsets:
        yield meta.id, meta.file_names


@dataclass(frozen=True)
class _Earlier:
    """The superblocks of a tablet before its newest one, each with the last version that has it.

    `unread` are to be read, by name. Of the others there are their files, by place and name.
    """

    unread: Mapping[str, tuple[FileRef, int]] = field(default_factory=dict)
    files: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def since(self, oldest: int) -> _Earlier | None:
        """Return it without the superblocks that only versions before `oldest` have."""
        rest = _Earlier(
            {name: (ref, last) for name, (ref, last) in self.unread.items() if last >= oldest},
            {file: last for file, last in self.files.items() if last >= oldest},
        )
        return rest if rest.unread or rest.files else None


@dataclass(frozen=True)
class _Known:
    """The versions that were seen, by their CRCs, and what they had in the place of the newest."""

    newest: Manifest
    crc32s: Mapping[int, int | None] = field(default_factory=dict)
    segments: Mapping[int, int] = field(default_factory=dict)  # the first one, -1 of tablets' logs
    earlier: Mapping[str, _Earlier] = field(default_factory=dict)  # by tablet

    @property
    def nbytes(self) -> int:
        """Approximate memory, without the newest version."""
        files = sum(len(each.unread) + len(each.files) for each in self.earlier.values())
        return _FILE_BYTES * (files + len(self.earlier)) + _VERSION_BYTES * len(self.crc32s)


class KeptFiles:
    """The files that the versions of a table refer to, by tablet."""

    def __init__(self, store: TableStore, since: int = 1) -> None:
        """Read the versions that this process has not seen, and forget those that were removed.

        With `since`, no versions before this one.
        """
        self._store, self._since = store, since
        self._key = store.chain.manifest_folder, "kept files"
        known: _Known | None = store.cache.get(self._key)
        self._known = self._followed(known, store.newest())
        self._forget_removed()

    def read(self) -> None:
        """Add new versions."""
        self._known = self._followed(self._known, self._store.newest())

    def of_tablet(self, tablet_id: str) -> TabletFiles:
        """Return the files of a tablet that any version refers to. Raises as a read of them."""
        while True:
            before = self._known
            try:
                return self._of_tablet(tablet_id)
            except StorageError as error:
                if error.errno != errno.ENOENT:
                    raise
                # Another collection may have removed versions, and then their superblocks.
                self.read()
                self._forget_removed()
                if self._known is before:
                    raise

    @property
    def first_segment(self) -> int:
        """The first segment of the log that a version needs, -1 if one needs tablets' logs."""
        return min(self._known.segments.values())

    def unknown_tablets(self) -> list[Path]:
        """Return the folders of tablets that no version has; what is no tablet's is left alone."""
        known = {entry.id for entry in self._known.newest.readable_tablets}
        known |= self._known.earlier.keys()
        storage = self._store.storage
        found = storage.entries(self._store.place / TABLET_FOLDER)
        folders = [path for path in found if is_id(path.name) and path.name not in known]
        return [path for path in folders if storage.is_folder(path)]

    # -- versions

    def _followed(self, known: _Known | None, newest: Manifest) -> _Known:
        """Return what is known with the versions from the newest one down to the newest one known.

        Strays (version_chain.py) are left out. Where the newest one known is not met, it was
        removed, or is of another table: then the versions that were met are all.
        """
        crc32s: dict[int, int | None] = {}
        segments: dict[int, int] = {}
        unread: dict[str, dict[str, tuple[FileRef, int]]] = {}
        manifest: Manifest | None = newest
        while manifest is not None and not (known and _is_same(known.newest, manifest)):
            crc32s[manifest.version] = manifest.file_crc32
            segment = -1 if manifest.has_tablet_logs else manifest.log_start.segment
            segments[manifest.version] = segment
            before = self._version_before(manifest)
            for old in _replaced(before, manifest):
                last = manifest.version - 1
                unread.setdefault(old.id, {})[old.superblock.name] = old.superblock, last
            manifest = before
        if known is None or manifest is None:
            known = _Known(newest)
        elif not crc32s:
            return known
        earlier = dict(known.earlier)
        for tablet_id, refs in unread.items():
            each = earlier.get(tablet_id, _Earlier())
            earlier[tablet_id] = replace(each, unread={**each.unread, **refs})
        crc32s, segments = {**known.crc32s, **crc32s}, {**known.segments, **segments}
        return self._kept(_Known(newest, crc32s, segments, earlier))

    def _kept(self, known: _Known) -> _Known:
        if self._since == 1:
            self._store.cache.put(self._key, known, known.nbytes)
        return known

    def _version_before(self, manifest: Manifest) -> Manifest | None:
        """Read the version before one, None if there is none: it was removed, or is a stray."""
        version, chain = manifest.version - 1, self._store.chain
        if version < self._since:
            return None
        # One that this process has published.
        key = str(chain.path(version)), manifest.previous_crc32
        before: Manifest | None = self._store.cache.get(key)
        if before is not None and chain.crc32_of(version) == before.file_crc32:
            return before
        return chain.before(manifest)

    def _forget_removed(self) -> None:
        """Forget versions that a collection has removed: all before the oldest one there."""
        known, crc32_of = self._known, self._store.chain.crc32_of
        # One that is there may be a stray of its number.
        oldest = next(
            version
            for version in sorted(known.crc32s)
            if version == known.newest.version or crc32_of(version) == known.crc32s[version]
        )
        if oldest == min(known.crc32s):
            return
        crc32s = {version: crc32 for version, crc32 in known.crc32s.items() if version >= oldest}
        rest = {tablet_id: each.since(oldest) for tablet_id, each in known.earlier.items()}
        earlier = {tablet_id: each for tablet_id, each in rest.items() if each is not None}
        segments = {version: each for version, each in known.segments.items() if version >= oldest}
        self._known = self._kept(_Known(known.newest, crc32s, segments, earlier))

    # -- superblocks

    def _of_tablet(self, tablet_id: str) -> TabletFiles:
        newest = _newest_superblock(self._store, self._known.newest, tablet_id)
        earlier = self._known.earlier.get(tablet_id, _Earlier())
        if earlier.unread:
            earlier = self._read(tablet_id, earlier, newest)
            others = self._known.earlier
            self._known = self._kept(replace(self._known, earlier={**others, tablet_id: earlier}))
        has_tablet_logs = self.first_segment < 0
        return _tablet_files(self._store, tablet_id, newest, earlier.files, has_tablet_logs)

    def _read(self, tablet_id: str, earlier: _Earlier, newest: Superblock | None) -> _Earlier:
        """Return what is known of a tablet's superblocks when the unread ones have been read."""
        store, folder = self._store, self._store.tablet_folder(tablet_id)
        needed = {} if newest is None else {p: set(names) for p, names in _listed(newest)}
        files = dict[tuple[str, str], int]()
        # The latest version of a file counts. Superblocks are also the bases of later ones.
        for ref, last in sorted(earlier.unread.values(), key=lambda each: -each[1]):
            superblock = read_earlier_superblock(store.storage, folder, ref, store.cache)
            for place, names in _listed(superblock):
                for name in set(names) - needed.get(place, set()):
                    files.setdefault((place, name), last)
        return _Earlier({}, {**earlier.files, **files})


def _is_same(one: Manifest, other: Manifest) -> bool:
    return (one.version, one.file_crc32) == (other.version, other.file_crc32)


def _replaced(before: Manifest | None, manifest: Manifest) -> Iterator[TabletEntry]:
    """Yield the entries of a version that the next one has with another superblock, or not."""
    for old, new in () if before is None else changed_entries(before, manifest):
        if old is not None and (new is None or new.superblock != old.superblock):
            yield old
