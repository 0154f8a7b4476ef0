"""A table's rows in memory: what its log has behind the rowsets, sorted by tablet.

Every process that reads or writes the table builds the same memory from the same log. Commits are
sorted by tablet as they are read. Their rows are decoded, and applied to the stores of a tablet
(mem_stores.py), when that tablet is asked for; so a reader of one tablet pays for no other.

Commits of batches are in the list of versions, from here until a version's `log_start` is behind
them, which lists them itself from then on. So it is with the version of an application.

**Invariants**: (1) the rows of a tablet are in the order of the log, all of them up to `end`; (2)
each commit that is listed is in the manifest's list or in that of memory, and never in both.

**Threads**: any. The mutex protects the lists; that of a tablet's stores is never held when it is
taken.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

import pyarrow as pa

from kudulite.chain.manifest import USER_VERSIONS_MAX, Manifest
from kudulite.tablet.mem_stores import MemStores
from kudulite.tablet.tablet import Tablet
from kudulite.wal.commit_format import CommitInfo, LoggedCommit
from kudulite.wal.log_writer import LogWriter
from kudulite.wal.record_format import Record, RecordDecoder
from kudulite.wal.segment import LogPosition


class LoggedRows(NamedTuple):
    """The rows of one commit in one tablet, still encoded; `end` is behind it in the log."""

    end: LogPosition
    timestamp: int
    content: pa.Buffer


class ListedCommit(NamedTuple):
    """A commit that is in the list of versions; `end` is behind it in the log."""

    end: LogPosition
    timestamp: int
    info: CommitInfo


_end_of, _timestamp_of = attrgetter("end"), attrgetter("timestamp")


class SupersededError(Exception):
    """A caller has asked for rows of a version, and the memory is of a newer one by now."""


class TableMemory:
    """The rows that the log of a table has behind the rowsets of the newest version seen.

    `place` says where the log is: that of a copy of the table has another one.
    """

    def __init__(self, manifest: Manifest, place: object = None) -> None:
        self.table_id = manifest.table_id
        self.place = place
        self.schema = manifest.schema
        self.decoder = RecordDecoder(manifest.schema)
        self.end = manifest.log_start
        self.log: LogWriter | None = None  # of this process's last append; for the lock's holder
        self._manifest = manifest
        self._timestamp = 0  # of the last commit before `end`
        self._mutex = threading.Lock()
        self._rows: dict[str, list[LoggedRows]] = {}
        self._stores: dict[str, tuple[str, MemStores]] = {}  # with the superblock's name
        self._sizes: dict[str, int] = {}
        self._nbytes = 0
        self._commits: list[ListedCommit] = []  # the newest, as many as are listed
        self._applications: dict[str, int] = {}

    def is_of(self, manifest: Manifest) -> bool:
        """Whether a version is of this table, and has the schema of its rows."""
        return self.table_id == manifest.table_id and (
            self.schema is manifest.schema or self.schema == manifest.schema
        )

    @property
    def version(self) -> int:
        """The number of the newest version seen."""
        return self._manifest.version

    def is_superseded_by(self, newest: Manifest) -> bool:
        """Whether rowsets of a version have all that is in memory."""
        return (
            self.table_id != newest.table_id or self.end.first_frame <= newest.log_start.first_frame
        )

    def follow(self, manifest: Manifest) -> None:
        """Forget what a newer version has in rowsets."""
        if manifest is self._manifest:
            return
        with self._mutex:
            if manifest.version <= self._manifest.version:
                return
            start = manifest.log_start
            has_moved = start > self._manifest.log_start
            self._manifest, self.end = manifest, max(self.end, start)
            self.schema = manifest.schema  # an equal one
            for tablet_id, (name, _) in list(self._stores.items()):
                entry = manifest.entry(tablet_id)
                if entry is None or entry.superblock.name != name:
                    del self._stores[tablet_id]
                    self._nbytes -= self._sizes.pop(tablet_id, 0)
            if not has_moved:
                return
            self._commits = [each for each in self._commits if each.end > start]
            for tablet_id, rows in list(self._rows.items()):
                self._rows[tablet_id] = rows = [each for each in rows if each.end > start]
                if not rows:
                    del self._rows[tablet_id]

    def add(self, commits: Iterable[LoggedCommit], start: LogPosition, end: LogPosition) -> None:
        """Take the commits of the log between two positions, unless another thread has."""
        with self._mutex:
            if self.end != start:
                return
            for commit in commits:
                for tablet_id, content in commit.parts.items():
                    rows = LoggedRows(commit.end, commit.timestamp, content)
                    self._rows.setdefault(tablet_id, []).append(rows)
                self._timestamp = max(self._timestamp, commit.timestamp)
                if commit.info is not None:
                    self._list(commit, commit.info)
            self.end = end

    def _list(self, commit: LoggedCommit, info: CommitInfo) -> None:
        self._commits.append(ListedCommit(commit.end, commit.timestamp, info))
        del self._commits[:-USER_VERSIONS_MAX]
        if info.application_id is not None and info.application_version is not None:
            known = self._applications.get(info.application_id, info.application_version)
            self._applications[info.application_id] = max(known, info.application_version)

    def listing(self, manifest: Manifest, until: LogPosition | None = None) -> Manifest:
        """Return a version that also lists the commits of the log behind it, `until` a position.

        It has the newest version of each application, wherever its commit is. Raises
        SupersededError if memory is of a newer version.
        """
        with self._mutex:
            self.check_follows(manifest)
            start = manifest.log_start
            listed = [
                (timestamp, info)
                for end, timestamp, info in self._commits
                if start < end and (until is None or end <= until)
            ]
            applications = dict(manifest.applications)
            for name, version in self._applications.items():
                applications[name] = max(version, applications.get(name, version))
        versions = manifest.versions.with_commits(listed)
        return replace(manifest, versions=versions, applications=applications)

    def flushed(self, manifest: Manifest, start: LogPosition) -> Manifest:
        """Return a version whose rowsets have all rows of the log before `start`."""
        if start <= manifest.log_start:
            return manifest
        return replace(self.listing(manifest, start), log_start=start)

    def changes(self, tablet_id: str, since: int) -> Iterator[Record]:
        """Yield the records of a tablet that are in memory and were committed after `since`."""
        rows = self._rows.get(tablet_id, ())
        for each in rows[bisect_right(rows, since, key=_timestamp_of) :]:
            yield self.decoder.decode_rows(each.timestamp, each.content)

    def timestamp(self, manifest: Manifest) -> int:
        """Return the time of the last commit in memory, which a version is the newest to precede.

        Raises SupersededError if memory is of a newer version, which that commit may follow.
        """
        with self._mutex:
            self.check_follows(manifest)
            return self._timestamp

    @property
    def last_timestamp(self) -> int:
        """The time of the last commit that was read from the log, 0 without one."""
        return self._timestamp

    @property
    def first_timestamp(self) -> int:
        """The time of the first row that the log has behind the rowsets, 0 if there is none."""
        with self._mutex:
            return min((rows[0].timestamp for rows in self._rows.values() if rows), default=0)

    def has_rows(self, tablet_id: str, start: LogPosition) -> bool:
        """Whether the log has rows of a tablet behind a position."""
        rows = self._rows.get(tablet_id)
        return rows is not None and len(rows) > 0 and rows[-1].end > start

    def flushed_end(self, starts: Mapping[str, LogPosition]) -> LogPosition:
        """Return where the log begins to have rows that are in no rowset.

        `starts` are the positions up to which the rows of each tablet are in rowsets.
        """
        with self._mutex:
            listed = {tablet_id: self._rows.get(tablet_id, []) for tablet_id in starts}
            unflushed = [
                rows[place].end
                for tablet_id, rows in listed.items()
                if (place := bisect_right(rows, starts[tablet_id], key=_end_of)) < len(rows)
            ]
            if not unflushed:
                return self.end
            first = min(unflushed)
            before = [
                rows[place - 1].end
                for rows in listed.values()
                if (place := bisect_left(rows, first, key=_end_of))
            ]
            return max(before, default=self._manifest.log_start)

    def check_follows(self, manifest: Manifest) -> None:
        """Raise SupersededError where memory is of a newer version than this one."""
        if manifest.version < self._manifest.version:
            raise SupersededError

    def stores(self, tablet: Tablet, manifest: Manifest) -> MemStores | None:
        """Return the memory of a tablet of a version, with all its rows; None if there are none.

        Raises CorruptionError; SupersededError if the version is not the newest.
        """
        if not self.has_rows(tablet.id, manifest.log_start):
            self.check_follows(manifest)
            return None
        known = self.writable_stores(tablet, manifest)
        return known if known.row_count else None

    def writable_stores(self, tablet: Tablet, manifest: Manifest) -> MemStores:
        """Return the memory of a tablet of a version, with all its rows. Raises as `stores`."""
        known, rows = self._stores_and_rows(tablet, manifest)
        if rows:
            records = [self.decoder.decode_rows(each.timestamp, each.content) for each in rows]
            with known.mutex:
                if known.end < rows[-1].end:
                    left = bisect_right(rows, known.end, key=_end_of)
                    known.replay(records[left:], rows[-1].end)
        return known

    def _stores_and_rows(
        self, tablet: Tablet, manifest: Manifest
    ) -> tuple[MemStores, list[LoggedRows]]:
        """Return a tablet's stores, and the rows that they do not have yet."""
        superblock = tablet.superblock
        assert superblock.file is not None
        name = superblock.file.name
        with self._mutex:
            self.check_follows(manifest)
            of, known = self._stores.get(tablet.id, ("", None))
            rows = self._rows.get(tablet.id, [])
            if of != name or known is None or known.is_torn:
                start = max(manifest.log_start, superblock.log_start)
                if rows and rows[0].end <= start:
                    rows = self._rows[tablet.id] = [each for each in rows if each.end > start]
                known = MemStores(tablet, self.schema, start)
                self._stores[tablet.id] = name, known
            if not rows or rows[-1].end <= known.end:
                return known, []
            return known, rows[bisect_right(rows, known.end, key=_end_of) :]

    def growth(self, changed: Iterable[MemStores]) -> tuple[int, int]:
        """Return the bytes of all stores at the last call, and now that some have changed."""
        before = self._nbytes
        with self._mutex:
            for stores in changed:
                tablet_id, size = stores.base.id, stores.nbytes
                self._nbytes += size - self._sizes.get(tablet_id, 0)
                self._sizes[tablet_id] = size
        return before, self._nbytes
