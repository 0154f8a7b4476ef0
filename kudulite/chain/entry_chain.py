"""The chain of a table without a directory: versions and records of rows share the numbers.

    manifest/…041.json  version     manifest/…042.json  record: rows of one commit or more
    manifest/…043.json  version: of a bulk write; the rows of 042 stay in memory
    manifest/…044.json  record      manifest/…045.json  version: a flush of 042 and 044

A writer makes entry n + 1 from what it knows of all entries up to n, and creates it if its name is
free. If another writer was faster, it reads that entry and makes its own again. So the order of the
numbers is the order of all commits, and nothing else keeps writers apart: no lock, no lease, and no
clock. The timestamp of each entry is above that of the one before. So the newest entry's time is
the present: no later commit can be given a time up to it.

The rules of version_chain.py on numbers that were removed hold here for all entries:

    publishing   entry n + 1 is there if entry n still is after its creation
    finding      a walk upwards from entry n counts if n is still there at its end

Collections leave an entry for at least `ENTRY_SECONDS` after it was superseded. So where less than
a part of that has passed since this process has seen that n was the newest, n is there, and is not
asked for.

Where rows have to be gone at once, an entry is *erased*: its file gets another content, a record
without rows. Its CRC is not the one that the next entry names, so nobody follows it.

The log of the table is the records behind `log_start`, whose positions are their numbers.

**Invariants**: (1) entries are numbered without gaps and removed from the oldest on; (2) each entry
has the CRC of the one before it; (3) an entry's timestamp is above that of the one before.

**Threads**: any. `_entries` is replaced, never changed, and under the mutex never by older ones.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kudulite.chain.folder import hinted_version, how_to_recall
from kudulite.chain.manifest import Manifest
from kudulite.chain.record_entry import (
    RecordEntry,
    new_record_id,
    position_after,
    record_writer,
)
from kudulite.chain.version_chain import TableChain
from kudulite.errors import CorruptionError, StorageError, TableNotFoundError
from kudulite.model.hybrid_time import LOGICAL_BITS
from kudulite.storage.checked_json import stored_crc32
from kudulite.storage.names import HINT_NAME, soft_deleted_of, version_name
from kudulite.storage.storage import read_if_there

# At least so long after it was superseded an entry stays.
ENTRY_SECONDS = 3600.0
_SURE_SECONDS = ENTRY_SECONDS / 6
# Where so many looks end at an entry that is not there any more, something else is wrong.
_LOOKS_MAX = 100
# So many entries are read side by side where there may be more.
_READ_AT_ONCE, _READ_AT_ONCE_MOST = 8, 64
_RECENT_MAX = 32
_LATELY = 5_000_000 << LOGICAL_BITS  # 5 s
_WAIT_SECONDS_MAX = 2.0
_ASKED_SECONDS_MAX = 10.0

Entry = Manifest | RecordEntry
Moment = tuple[float, float]  # of two clocks, see `_now`


class StrayEntryError(Exception):
    """An entry does not follow the one before it, of which there may be two."""


@dataclass(frozen=True)
class Entries:
    """The chain up to the entry `number`: the newest version, and the records behind its log start.

    `crc32` and `timestamp` are those of the newest entry, and `seen` the moment, of two clocks, at
    which it was the newest. `recent` are the writers and times of the last records. Until the time
    `asked_until` of the first clock, this process lets another one publish a version.
    """

    manifest: Manifest
    number: int
    crc32: int
    timestamp: int
    records: tuple[RecordEntry, ...]
    seen: Moment = field(compare=False)
    recent: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    asked_until: float = field(default=0.0, compare=False)

    @staticmethod
    def of(manifest: Manifest, records: Iterable[RecordEntry], seen: Moment) -> Entries:
        """Return the chain up to a version, with the records between its log start and it."""
        kept, crc32 = tuple(records), manifest.file_crc32
        assert crc32 is not None
        stamps = [record.timestamp for record in kept]
        timestamp = max(manifest.timestamp, manifest.versions.timestamp, *stamps)
        return Entries(manifest, manifest.version, crc32, timestamp, kept, seen)

    @property
    def has_ended(self) -> bool:
        """Whether the table was deleted."""
        return any(record.is_end and record.number == self.number for record in self.records[-1:])

    def numbered(self, version: Manifest) -> Manifest:
        """Return a change of the newest version, with the number of the newest entry.

        So the version that follows it is the next entry.
        """
        return replace(version, version=self.number, file_crc32=self.crc32)

    def followed_by(self, entry: Entry, seen: Moment) -> Entries:
        """Return the chain up to the next entry. Raises StrayEntryError."""
        is_next = entry.previous_crc32 == self.crc32 and entry.table_id == self.manifest.table_id
        if not is_next or _is_erased(entry):
            raise StrayEntryError
        if isinstance(entry, Manifest):
            start = entry.log_start.segment
            kept = (record for record in self.records if record.number > start)
            found = Entries.of(entry, kept, seen)
            # The one that has asked may flush the memory first.
            is_of_user = [row[0] for row in entry.versions.users[-1:]] == [entry.version]
            return replace(
                found,
                timestamp=max(self.timestamp, found.timestamp),
                recent=self.recent,
                asked_until=0.0 if is_of_user else self.asked_until,
            )
        crc32 = entry.file_crc32
        assert crc32 is not None
        return replace(
            self,
            number=entry.number,
            crc32=crc32,
            timestamp=max(self.timestamp, entry.timestamp),
            records=(*self.records, entry),
            seen=seen,
            recent=(*self.recent[1 - _RECENT_MAX :], (entry.writer, entry.timestamp)),
            asked_until=self._asked_until(entry, seen),
        )

    def _asked_until(self, entry: RecordEntry, seen: Moment) -> float:
        if entry.writer == record_writer():
            return self.asked_until
        seconds = min(entry.asked_ms / 1000, _ASKED_SECONDS_MAX)
        return max(self.asked_until, seen[0] + seconds if seconds else 0.0)


def _number_of(entry: Entry) -> int:
    """Return the number of an entry."""
    return entry.number if isinstance(entry, RecordEntry) else entry.version


def _is_erased(entry: Entry) -> bool:
    return isinstance(entry, RecordEntry) and entry.is_erased


def _now() -> Moment:
    """Return the present of two clocks, because one of them may stand still, and one be set."""
    return time.monotonic(), time.time()


def _is_sure(since: Moment) -> bool:
    """Whether what was the newest entry at a moment is still there."""
    return all(0 <= now - then < _SURE_SECONDS for now, then in zip(_now(), since, strict=True))


@dataclass
class EntryChain(TableChain):
    """The versions and records of the table in `folder`."""

    _entries: Entries | None = field(default=None, repr=False)
    _appended: float = field(default=-_WAIT_SECONDS_MAX, repr=False)
    _mutex: threading.Lock = field(default_factory=threading.Lock, repr=False)

    # -- finding and reading

    def entries(self) -> Entries:
        """Return the chain up to its newest entry. Raises as `newest`."""
        for _ in range(_LOOKS_MAX):
            before = self._entries
            try:
                found = self._found_entries() if before is None else self._walked(before)
            except StrayEntryError:
                self._entries = None
                continue
            if found is not None:
                self._check_has_not_ended(found)
                return self.note(found)
        raise CorruptionError(
            f"{self.manifest_folder}: no entry is the newest; look at the files in it, and restore"
            " them from a copy of the table"
        )

    def _check_has_not_ended(self, found: Entries) -> None:
        """Raise TableNotFoundError where the table was deleted, unless it is read as such a one."""
        folder = self.table_folder or self.folder
        if found.has_ended and soft_deleted_of(folder.parent.name) is None:
            advice = how_to_recall(self.storage, folder.parent, self.name, found.manifest.table_id)
            raise TableNotFoundError(f"table {self.name!r} at {folder} was deleted{advice}")

    def _walked(self, before: Entries) -> Entries | None:
        """Return the chain with the entries after `before`; None where that must be listed."""
        found, count = before, 1
        while True:
            seen = _now()
            entries = self._entries_from(found.number + 1, count)
            for entry in entries:
                found = found.followed_by(entry, seen)
            if len(entries) < count:
                break
            count = min(max(_READ_AT_ONCE, 2 * count), _READ_AT_ONCE_MOST)
        if _is_sure(before.seen) or self.has(before.number):
            return replace(found, seen=seen)
        self._entries = None
        return None

    def _entries_from(self, number: int, count: int) -> list[Entry]:
        """Read entries from a number on, side by side, up to the first that is not there."""
        found = self.storage.side_by_side(self._entry, range(number, number + count))
        return [each for each in itertools.takewhile(lambda each: each is not None, found) if each]

    def _found_entries(self) -> Entries | None:
        """Return the chain up to its newest entry, of which nothing is known."""
        hinted = hinted_version(self.storage, self.folder)
        seen = _now()
        first = self._entries_from(hinted, _READ_AT_ONCE) if hinted > 0 else []
        if not first or not isinstance(first[0], Manifest):
            seen, first = _now(), self._entries_from(self._listed_version(), 1)
        manifest = self._version_at(first[0]) if first else None
        if manifest is None:
            return None
        self._check_is_same_table(manifest)
        start = manifest.log_start.segment
        count = max(0, manifest.version - start - 1)
        older = self._entries_from(start + 1, count)
        if len(older) < count or any(map(_is_erased, older)):
            return None
        records = (entry for entry in older if isinstance(entry, RecordEntry))
        found = Entries.of(manifest, records, seen)
        if first[0] is manifest:
            for entry in first[1:]:
                found = found.followed_by(entry, seen)
            if len(first) < _READ_AT_ONCE:
                return found
        return self._walked(found)

    def _entry(self, number: int) -> Entry | None:
        """Read an entry, None where there is none. Raises StorageError, CorruptionError."""
        path = self.path(number)
        content = read_if_there(self.storage, path)
        if content is None:
            return None
        entry: Entry = RecordEntry.decode(content, str(path)) or Manifest.decode(content, str(path))
        found = _number_of(entry)
        if found != number:
            raise CorruptionError(
                f"{path}: holds entry {found}, expected entry {number}; files were swapped or an"
                " older one was copied over it: restore the manifest folder"
            )
        return entry

    def _version_at(self, newest: Entry) -> Manifest | None:
        """Return the newest version at an entry, None where it was removed or erased meanwhile.

        Raises TableNotFoundError at the end of a deleted table.
        """
        if isinstance(newest, Manifest):
            return newest
        found = self._entry(newest.version)
        if isinstance(found, Manifest):
            return found
        if newest.is_end:
            folder = self.table_folder or self.folder
            raise TableNotFoundError(f"table {self.name!r} at {folder} was deleted")
        return None

    def note(self, found: Entries) -> Entries:
        """Keep the newest entries that any thread has found; return `found`."""
        with self._mutex:
            known = self._entries
            if known is not None and known.number > found.number:
                return found
            self._entries = found
        if known is None or known.manifest is not found.manifest:
            self._table_id = found.manifest.table_id
            self.on_newest(found.manifest)
        return found

    def crc32_of(self, version: int) -> int | None:
        """Return the CRC of an entry, None where there is none."""
        entry = self._entry(version)
        return None if entry is None else entry.file_crc32

    def pinned(self, version: int, crc32: int | None) -> Manifest:
        """Read a version, unless it has `crc32` and was the newest not long ago: it is there."""
        known = self._entries
        if known is not None and _is_sure(known.seen):
            newest = known.manifest
            if newest.version == version and newest.file_crc32 == crc32:
                return newest
        return self.at(version)

    def before(self, manifest: Manifest) -> Manifest | None:
        """Read the version before one, None if there is none: it was removed, or is a stray."""
        entry = self._entry(manifest.version - 1)
        if entry is None or entry.file_crc32 != manifest.previous_crc32:
            return None
        if isinstance(entry, Manifest):
            return entry
        found = None if entry.is_erased else self._entry(entry.version)
        return found if isinstance(found, Manifest) else None  # else it was erased

    def check_entry(self, version: int) -> None:
        """Read an entry and check that it follows the one before. Raises CorruptionError."""
        entry, path = self._entry(version), self.path(version)
        before = self._entry(version - 1)
        if isinstance(entry, RecordEntry):
            entry.decode_commits(str(path))
        if entry is None or before is None or _is_erased(entry) or _is_erased(before):
            return
        if before.file_crc32 != entry.previous_crc32:
            raise CorruptionError(
                f"{path}: follows an entry {version - 1} with another CRC than"
                f" {self.path(version - 1).name} has; files of two tables or of two copies were"
                " mixed: restore the manifest folder"
            )

    def remove(
        self,
        ages_seconds: Mapping[int, float],
        must_stay_before: Callable[[int], bool],
        delete: Callable[[str], None],
    ) -> int:
        """Remove entries from the oldest on that nobody needs; return how many.

        They are before the oldest version that is needed, and before its log start. One that was
        superseded less than `ENTRY_SECONDS` ago stays, as its number must not be free yet, but
        without its rows, and is no version any more.
        """
        oldest = self.newest()
        while oldest.version not in ages_seconds or must_stay_before(oldest.version):
            before = self.before(oldest)
            if before is None:
                break
            oldest = before
        last = min(oldest.log_start.segment, oldest.version - 1)
        pairs = itertools.pairwise(ages_seconds.items())
        found = [(number, age) for (number, _), (_, age) in pairs if number <= last]
        removed = [n for n, _ in itertools.takewhile(lambda each: each[1] >= ENTRY_SECONDS, found)]
        for number, _ in found[len(removed) :]:
            self._erase(number, oldest.version)
        for number in removed:
            delete(version_name(number))
        return len(removed)

    def _erase(self, number: int, version: int) -> None:
        """Put a record without rows in the place of an entry, unless it is there already."""
        entry = self._entry(number)
        if entry is None or _is_erased(entry):
            return
        erased = RecordEntry(
            table_id=entry.table_id,
            number=number,
            id=new_record_id(),
            version=version,
            timestamp=entry.timestamp,
            previous_crc32=entry.previous_crc32 or 0,
            commits="",
            is_erased=True,
        )
        self.storage.put_hint(self.path(number), erased.encode())

    def oldest(self) -> int:
        """Return the number of the oldest version that is there."""
        version = self.newest()
        while (before := self.before(version)) is not None:
            version = before
        return version.version

    def exists(self) -> bool:
        """Whether the folder holds a table."""
        try:
            self.entries()
        except TableNotFoundError:
            return False
        except CorruptionError:  # each use of the table raises it
            return bool(self.numbers())
        return True

    def newest(self) -> Manifest:
        """Return the newest version. Raises TableNotFoundError where there is none."""
        return self.entries().manifest

    def newest_at(self, timestamp: int) -> Manifest:
        """Return a version that shows all up to a settled moment, if possible without a look."""
        return self.entries_at(timestamp).manifest

    def entries_at(self, timestamp: int) -> Entries:
        """Return the chain up to a moment or later, without a look where it was seen that far."""
        known = self.last_entries()
        return known if known.timestamp >= timestamp else self.entries()

    @property
    def known(self) -> Manifest | None:
        """The newest version that was found last."""
        return None if self._entries is None else self._entries.manifest

    def last_entries(self) -> Entries:
        """Return what `entries` gave last; that was not long ago."""
        known = self._entries
        return known if known is not None and _is_sure(known.seen) else self.entries()

    # -- publishing

    def begin(self, manifest: Manifest) -> Manifest | None:
        """Publish version 1 of a new table; None where another one was created meanwhile."""
        manifest = replace(manifest, log_end=position_after(manifest.version))
        content = manifest.encode()
        if not self.storage.put_if_absent(self.path(manifest.version), content):
            return None
        published = replace(manifest, file_crc32=stored_crc32(content))
        self.note(Entries.of(published, (), _now()))
        return published

    def publish(self, before: Entries, manifest: Manifest) -> Entries | None:
        """Create the next entry, a version; None where another writer was faster."""
        assert manifest.previous_crc32 == before.crc32
        start = manifest.log_start
        if not any(each.commits for each in before.records if each.number > start.segment):
            start = max(start, position_after(before.number))  # a cold reader looks for no records
        manifest = replace(manifest, log_start=start, log_end=position_after(manifest.version))
        found = self._created(before, manifest)
        if found is not None:
            try:
                hint = self.path(manifest.version).with_name(HINT_NAME)
                self.storage.put_hint(hint, b"%d" % manifest.version)
            except StorageError:
                pass  # without the hint a missing newest version may stay unnoticed
        return found

    def append(
        self,
        before: Entries,
        commits: bytes,
        timestamp: int,
        *,
        is_end: bool = False,
        asked_ms: int = 0,
    ) -> Entries | None:
        """Create the next entry, a record; None where another writer was faster."""
        assert timestamp > before.timestamp
        record = RecordEntry(
            table_id=before.manifest.table_id,
            number=before.number + 1,
            id=new_record_id(),
            version=before.manifest.version,
            timestamp=timestamp,
            previous_crc32=before.crc32,
            commits=RecordEntry.text_of(commits),
            is_end=is_end,
            asked_ms=asked_ms,
        )
        made = self._created(before, record)
        if made is not None:
            self._appended = time.monotonic()
        return made

    def seconds_to_wait(self) -> float:
        """Return how long to let others go first.

        As many as have appended lately, each once, and one that has asked to publish a version,
        which takes longer than an append, and so would lose again and again.
        """
        known = self._entries
        left = 0.0 if known is None else known.asked_until - time.monotonic()
        if left > 0 or known is None or len(known.recent) < 2:
            return left
        last = known.recent[-1][1]
        recent = [(writer, stamp) for writer, stamp in known.recent if last - stamp < _LATELY]
        others = len({writer for writer, _ in recent} - {record_writer()})
        seconds = (last - recent[0][1] >> LOGICAL_BITS) / 1e6 / max(1, len(recent) - 1)
        wait_seconds = min(others * seconds, _WAIT_SECONDS_MAX)
        return self._appended + wait_seconds - time.monotonic()

    def _created(self, before: Entries, entry: Entry) -> Entries | None:
        number, content = before.number + 1, entry.encode()
        path = self.path(number)
        self.storage.check_refuses(self.path(before.number))
        if not self.storage.put_if_absent(path, content):
            return None
        entry = replace(entry, file_crc32=stored_crc32(content))
        if not self._is_in_chain(before, entry):
            self.storage.delete(path)
            self._entries = None
            return None
        return self.note(before.followed_by(entry, _now()))

    def _is_in_chain(self, before: Entries, entry: Entry) -> bool:
        """Whether an entry that was just created follows `before`, and is no stray."""
        if _is_sure(before.seen) or self.crc32_of(before.number) == before.crc32:
            return True
        # The entry before was removed: after this one was created, or long before that.
        number = _number_of(entry)
        after = self._entry(number + 1)
        if after is not None:
            return after.previous_crc32 == entry.file_crc32
        return self.numbers()[-1:] == [number]
