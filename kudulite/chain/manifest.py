"""Manifest: one version of a table, in one file that is created once and never changed.

    manifest/00000000000000000007.json := body line, then {"crc32": CRC of the body line} line

The body names the schema, the partitioning, every tablet with its superblock (file, length, CRC),
the highest commit timestamp, and per application id the highest version committed for it. It also
has its own version number and the CRC of the version before it, so that a file with another
version's bytes is detected. Creating the file of number n + 1, if it is absent, is a commit.

It also lists the newest versions, with what made them, oldest first:

    {"users": [version, …], "maintenance": [version, …], "ordered_from": number}
    version := [number, timestamp, operation, inserted, updated, deleted, ignored, writer, message]

These are the last 100 of users, and the last 20 of maintenance. A commit in the table's log has no
number, and null in its place; the version whose `log_start` is behind it lists it, in the order of
timestamps. From version `ordered_from` on,
each timestamp is above that of the version before, and at or above that of each change that was
visible in its version. Software before this rule leaves the member out, also where it adds a
version to a list that has it.

`schema_changes` says how earlier schemas differ, for reads of the past (chain/schema_history.py):

    {"until": timestamp, "columns": [{"place": 1, "id": 1, …}, …], "added": [column id, …]}

Format version 1 had no tags and no dropped ranges; version 2 did not name the version before;
version 3 did not list versions; version 4 had none of the optional members, and version 5 no
changes of the schema. They have the form of today. Version 7 has the form of version 6: software
before it does not know the records of writes (table/open_writes.py), and must leave the table. Up
to version 7 each tablet has a log and a lock of its own (table/upgrade.py).
"""

from __future__ import annotations

import errno
import getpass
import socket
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from operator import index, itemgetter
from os import getpid, getuid
from pathlib import Path
from typing import Annotated, Any

from kudulite.chain.partition import (
    PartitionSchema,
    RangeWithHashSchema,
    TabletPartition,
    placed_schema,
)
from kudulite.chain.schema_history import SchemaChange, check_changes, schemas_before, with_dropped
from kudulite.errors import CorruptionError, FormatVersionError, SchemaError, StorageError
from kudulite.model.hybrid_time import TIMESTAMP_MAX, Timestamp
from kudulite.model.schema import Schema
from kudulite.model.types import is_unicode
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.storage.checked_json import (
    TRAILER_BYTES_MAX,
    decode_checked_json,
    encode_checked_json,
    stored_crc32,
)
from kudulite.storage.json_form import JsonForm, Stored, readable
from kudulite.storage.storage import FileRef, Storage
from kudulite.tablet.row_effects import NO_COUNTS, WriteCounts
from kudulite.wal.commit_format import CommitInfo
from kudulite.wal.segment import LOG_BEGIN, LogPosition

FORMAT_VERSION = 8
_VERSION_OF_TABLE_LOG = 8
OWNER_BYTES_MAX, COMMENT_BYTES_MAX = 128, 256
USER_VERSIONS_MAX, MAINTENANCE_VERSIONS_MAX = 100, 20
ROW_COUNTS = ("inserted", "updated", "deleted", "ignored")
_ROW_TYPES = (int, int, str, int, int, int, int, str, str)
_COMMIT_TYPES = (type(None), *_ROW_TYPES[1:])  # of a commit in the log
_WRITER_LENGTH_MAX = 100
HISTORY_SECONDS_DEFAULT = 7 * 24 * 3600


@dataclass(frozen=True)
class Origin:
    """The origin of a version: an operation at a HybridTime, its row counts, and a message.

    `is_maintenance`: the operation changed no row and nothing that a user sees.
    """

    operation: str
    timestamp: int
    counts: WriteCounts = NO_COUNTS
    message: str = ""
    is_maintenance: bool = False


@dataclass(frozen=True)
class TableVersion:
    """One version of a table: when it was made, by what operation and whom, and its row counts.

    `version` is None for a commit in the table's log, which makes no file of its own; it is read by
    its timestamp. `timestamp` is that of the commit, and the time at which any other version was
    published. It is at or above that of each change that was visible then, and above that of the
    version before, whatever the clocks say. So a scan at it shows the version's rows. `writer` is
    user@host:pid.
    """

    version: int | None
    timestamp: Timestamp
    operation: str
    inserted: int
    updated: int
    deleted: int
    ignored: int
    writer: str
    message: str

    def __repr__(self) -> str:
        counts = [(name, getattr(self, name)) for name in ROW_COUNTS]
        rows = ", ".join(f"{count} {name}" for name, count in counts if count)
        parts = (self.operation, rows, self.writer, self.message and repr(self.message))
        listed = "; ".join(part for part in parts if part)
        name = "commit" if self.version is None else f"version {self.version}"
        return f"<{name} {self.timestamp} {listed}>"

    @staticmethod
    def of(row: Sequence[Any]) -> TableVersion:
        """Build a version from its stored form. Raises ValueError or TypeError."""
        types = tuple(map(type, row))
        if types not in (_ROW_TYPES, _COMMIT_TYPES) or not 0 <= row[1] <= TIMESTAMP_MAX:
            raise ValueError(f"{row!r} in the list of versions")
        number, timestamp, *rest = row
        return TableVersion(number, Timestamp(timestamp), *rest)


Rows = tuple[tuple[Any, ...], ...]


def _timestamp_of(row: Sequence[Any]) -> int:
    """Return the timestamp of a version as it is stored, 0 for one of another form."""
    stamp = row[1] if len(row) > 1 else 0
    return stamp if isinstance(stamp, int) and stamp <= TIMESTAMP_MAX else 0


@dataclass(frozen=True)
class VersionList:
    """The newest versions as they are stored, oldest first: of users, and of maintenance.

    From `ordered_from` on their timestamps are in order, as the head says; None if none are.
    """

    users: Rows = ()
    maintenance: Rows = ()
    ordered_from: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        start = {} if self.ordered_from is None else {"ordered_from": self.ordered_from}
        return {"users": self.users, "maintenance": self.maintenance, **start}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> VersionList:
        """Build a list from its form; `newest_first` checks the versions in it."""
        users, maintenance = value["users"], value["maintenance"]
        start = None if value.get("ordered_from") is None else index(value["ordered_from"])
        return VersionList(tuple(map(tuple, users)), tuple(map(tuple, maintenance)), start)

    @cached_property
    def timestamp(self) -> int:
        """The highest timestamp of a version in the list, 0 without one."""
        return max(map(_timestamp_of, (*self.users, *self.maintenance)), default=0)

    def with_version(self, number: int, origin: Origin) -> VersionList:
        """Return the list with a newer version, and without the oldest if there are too many."""
        counts = origin.counts
        rows = (counts.inserted, counts.updated, counts.deleted, counts.ignored)
        row = (number, origin.timestamp, origin.operation, *rows, writer_name(), origin.message)
        users, maintenance = self.users, self.maintenance
        if origin.is_maintenance:
            maintenance = (*maintenance[1 - MAINTENANCE_VERSIONS_MAX :], row)
        else:
            users = (*users[1 - USER_VERSIONS_MAX :], row)
        start = number if self.ordered_from is None else self.ordered_from
        is_in_order = origin.timestamp > self.timestamp
        return VersionList(users, maintenance, start if is_in_order else None)

    def with_commits(self, commits: Iterable[tuple[int, CommitInfo]]) -> VersionList:
        """Return the list with commits of the log, each with its timestamp, in their places."""
        rows = []
        for timestamp, info in commits:
            counts = (info.inserted, info.updated, info.deleted, info.ignored)
            message = info.message or ""
            rows.append((None, timestamp, info.operation, *counts, info.writer or "", message))
        if not rows:
            return self
        users = sorted((*self.users, *rows), key=_timestamp_of)
        return replace(self, users=tuple(users[-USER_VERSIONS_MAX:]))

    def newest_first(self) -> list[TableVersion]:
        """Return the versions. Raises ValueError or TypeError for one of another form."""
        found = [TableVersion.of(row) for row in (*self.users, *self.maintenance)]
        numbered = [(one.version, one) for one in found if one.version is not None]
        placed = [(one.timestamp, 0, one) for one in found if one.version is None]
        newest = 0  # the order of numbers counts, also where older software listed other times
        for number, one in sorted(numbered, key=itemgetter(0)):
            newest = max(newest, one.timestamp)
            placed.append((Timestamp(newest), number, one))
        return [one for *_, one in sorted(placed, key=itemgetter(0, 1), reverse=True)]


@dataclass(frozen=True)
class TabletEntry(JsonForm):
    """One tablet in a manifest. `timestamp` is the newest of any change in it.

    `last_id` is at least every `auto_incrementing_id` that the tablet has given to a row of its
    files or promised to a write; see table/table_memory.py.
    """

    id: Annotated[str, Stored(name="tablet id")]
    partition: Annotated[TabletPartition, Stored(inline=True)]
    superblock: FileRef
    timestamp: int = 0
    live_row_count: int = 0
    bytes_on_disk: int = 0
    last_id: Annotated[int | None, Stored(may_be_none=True)] = None

    def with_superblock(
        self, ref: FileRef, rowsets: Iterable[RowSetMeta], timestamp: int
    ) -> TabletEntry:
        """Return the entry of the tablet with a newer superblock of these rowsets."""
        metas = list(rowsets)
        return replace(
            self,
            superblock=ref,
            timestamp=timestamp,
            live_row_count=sum(meta.live_row_count for meta in metas),
            bytes_on_disk=sum(meta.bytes_on_disk for meta in metas),
        )


@dataclass(frozen=True)
class DroppedRange:
    """A range partition that had rows when it was dropped: snapshots before `timestamp` see them.

    `tablets` are in the order of their buckets, each at its place in a partitioning that has this
    range alone. All their rowsets have ended. They are removed when `timestamp` becomes ancient.
    """

    range: RangeWithHashSchema
    timestamp: int
    tablets: tuple[TabletEntry, ...]


# A partitioning and its tablets, in its order.
PartitionedTablets = tuple[PartitionSchema, tuple[TabletEntry, ...]]


@dataclass(frozen=True, kw_only=True)
class Manifest(JsonForm):
    """One version of a table; `tablets` in the partition schema's order.

    `applications` maps an application id to the highest version committed for it. `commit_id` is
    the id of the write that made this version. Nothing before `history_start` can be read,
    even if the retention allows it: that history was collected, or was ancient when the retention
    was raised. `tags` are moments with a name that stay readable. `dropped` are ranges of the past;
    a key lies in one of `tablets` at most, and may lie in several of these. `versions` are the
    newest versions, this one included; empty for versions made by software that did not list them.
    `schema_changes` are those that a legal read may need, oldest first. `owner` and `comment` are
    texts of users, None if there is none.

    `log_start` and `log_end` are positions in the table's log: rows before the first are in
    rowsets, of all tablets. All records up to the version's timestamp are before the second.

    `previous_crc32` is the CRC of the version before, None for the first version of a table and in
    files of formats 1 and 2. `file_crc32` is the CRC of the file that this version was read from or
    written to; a change made in memory keeps it, because it identifies what was changed. So does
    `format_version`, the format of that file.
    """

    table_id: str
    version: int
    created: int
    commit_id: str
    previous_crc32: Annotated[int | None, Stored(may_be_absent=True)] = None
    schema: Schema
    partition: Annotated[PartitionSchema, Stored(is_text=True)]
    tablets: Annotated[tuple[TabletEntry, ...], Stored(is_text=True)]
    applications: Annotated[Mapping[str, int], Stored(is_signed=True)] = field(default_factory=dict)
    history_seconds: int = HISTORY_SECONDS_DEFAULT
    history_start: Annotated[int, Stored(may_be_absent=True)] = 0
    tags: Annotated[Mapping[str, int], Stored(may_be_absent=True)] = field(default_factory=dict)
    dropped: Annotated[tuple[DroppedRange, ...], Stored(is_kept=False)] = ()
    schema_changes: Annotated[tuple[SchemaChange, ...], Stored(is_kept=False)] = ()
    versions: Annotated[VersionList, Stored(may_be_absent=True)] = VersionList()
    owner: Annotated[str | None, Stored(may_be_none=True)] = None
    comment: Annotated[str | None, Stored(may_be_none=True)] = None
    log_start: Annotated[LogPosition, Stored(may_be_absent=True)] = LOG_BEGIN
    log_end: Annotated[LogPosition, Stored(may_be_absent=True)] = LOG_BEGIN
    file_crc32: Annotated[int | None, Stored(is_kept=False)] = field(default=None, compare=False)
    format_version: Annotated[int, Stored(is_kept=False)] = field(
        default=FORMAT_VERSION, compare=False
    )

    def successor(self, origin: Origin, commit_id: str | None = None, **changes: Any) -> Manifest:
        """Return the version that follows this one, with `changes` of its fields and a new id."""
        return replace(
            self,
            version=self.version + 1,
            commit_id=commit_id or uuid.uuid4().hex,
            previous_crc32=self.file_crc32,
            file_crc32=None,
            format_version=FORMAT_VERSION,
            versions=self.versions.with_version(self.version + 1, origin),
            **changes,
        )

    @property
    def has_tablet_logs(self) -> bool:
        """Whether each tablet has a log and a lock of its own, as in older formats."""
        return self.format_version < _VERSION_OF_TABLE_LOG

    @cached_property
    def timestamp(self) -> int:
        """The highest commit timestamp, or that of the creation."""
        stamps = [tablet.timestamp for tablet in self.tablets]
        stamps += [dropped.timestamp for dropped in self.dropped]
        stamps += [change.until for change in self.schema_changes]
        return max(
            self.created, self.history_start, *stamps
        )  # the tablets of its commits may be dropped

    @property
    def schema_since(self) -> int:
        """The moment from which snapshots have the schema; all later writes are after it."""
        return max(self.created, *(change.until for change in self.schema_changes[-1:]), 0)

    def schema_at(self, timestamp: int) -> Schema:
        """Return the schema that a snapshot has; `schema` itself if it is that of now."""
        found = self.schema
        for until, schema in self._earlier_schemas:
            if until <= timestamp:
                break
            found = schema
        return found

    @cached_property
    def _earlier_schemas(self) -> list[tuple[int, Schema]]:
        return schemas_before(self.schema_changes, self.schema)

    @cached_property
    def stored_schema(self) -> Schema:
        """The columns whose cells are kept: those of now, and dropped ones that reads may need."""
        return with_dropped(self.schema_changes, self.schema)

    def drop_of_column(self, column_id: int) -> int | None:
        """Return when a column was dropped, None if it is there or that is no longer known."""
        if self.schema.column_by_id(column_id) is not None:
            return None
        ids = [
            (change.until, {placed.column.id for placed in change.columns})
            for change in self.schema_changes
        ]
        return max((until for until, columns in ids if column_id in columns), default=None)

    def entry(self, tablet_id: str) -> TabletEntry | None:
        """Return a tablet's entry, None where this version does not have it, or has dropped it."""
        return self._entries.get(tablet_id)

    def readable_entry(self, tablet_id: str) -> TabletEntry | None:
        """Return the entry of a tablet of the newest state or of a dropped range, or None."""
        return self._entries.get(tablet_id) or self._dropped_entries.get(tablet_id)

    def with_entry(self, new: TabletEntry) -> Manifest:
        """Return the version with another entry of a tablet of its own or of a dropped range."""
        if new.id in self._entries:
            return replace(self, tablets=_replaced(self.tablets, new))
        dropped = tuple(replace(d, tablets=_replaced(d.tablets, new)) for d in self.dropped)
        return replace(self, dropped=dropped)

    @property
    def readable_tablets(self) -> tuple[TabletEntry, ...]:
        """The tablets of the newest state and of all dropped ranges."""
        return (*self.tablets, *self._dropped_entries.values())

    def partitions_at(self, timestamp: int) -> list[PartitionedTablets]:
        """Return the partitionings that a snapshot reads: the newest, and one per dropped range.

        A key is live at `timestamp` in one of them at most. Ranges that were dropped at or before
        `timestamp` are left out. Raises CorruptionError as `placed_tablets` does.
        """
        found = [(self.partition, self.placed_tablets)]
        found += [past for stamp, past in self._dropped_partitions if stamp > timestamp]
        return found

    @cached_property
    def placed_tablets(self) -> tuple[TabletEntry, ...]:
        """`tablets`, each at its place in the partitioning. Raises CorruptionError for others."""
        return self._placed((self.partition, self.tablets))[1]

    def _placed(self, given: PartitionedTablets) -> PartitionedTablets:
        partition, tablets = given
        if [tablet.partition for tablet in tablets] != partition.tablets():
            raise CorruptionError(
                f"version {self.version} of table {self.table_id} has {len(tablets)} tablets that"
                f" are not those of its partitioning, which has {partition.tablet_count}"
            )
        return given

    @cached_property
    def _entries(self) -> dict[str, TabletEntry]:
        return {entry.id: entry for entry in self.tablets}

    @cached_property
    def _dropped_entries(self) -> dict[str, TabletEntry]:
        return {entry.id: entry for dropped in self.dropped for entry in dropped.tablets}

    @cached_property
    def _dropped_partitions(self) -> list[tuple[int, PartitionedTablets]]:
        return [
            (
                dropped.timestamp,
                self._placed((self.partition.of_range(dropped.range), dropped.tablets)),
            )
            for dropped in self.dropped
        ]

    def encode(self) -> bytes:
        """Return the file's content."""
        dropped = [
            {
                "range": self.partition.range_to_json(dropped.range),
                "timestamp": dropped.timestamp,
                "tablets": [tablet.to_json() for tablet in dropped.tablets],
            }
            for dropped in self.dropped
        ]
        body = {"format_version": FORMAT_VERSION, **self.to_json(), "dropped": dropped}
        if self.schema_changes:
            body["schema_changes"] = [change.to_json() for change in self.schema_changes]
        return encode_checked_json(body)

    @staticmethod
    def decode(content: bytes, source: str) -> Manifest:
        """Build a manifest from the content of the file `source`.

        Raises FormatVersionError for a newer format, CorruptionError for anything unreadable.
        """
        body = decode_checked_json(content, source, "a manifest")
        with readable(source, "a manifest"):
            version = body["format_version"]
            if 1 <= version <= FORMAT_VERSION:
                crc32 = stored_crc32(content)
                return replace(_from_body(body), file_crc32=crc32, format_version=version)
        raise FormatVersionError(
            f"{source}: table of format version {version}, known: 1 to {FORMAT_VERSION};"
            " upgrade kudulite to open it"
        )


def checked_owner(owner: str) -> str:
    """Return the name of a table's owner. Raises SchemaError."""
    if not owner:
        raise SchemaError(f"owner {owner!r}: expected a name; leave it out if there is none")
    return _checked_text("owner", owner, OWNER_BYTES_MAX)


def checked_comment(comment: str) -> str | None:
    """Return the comment of a table, None for an empty one. Raises SchemaError."""
    return _checked_text("comment", comment, COMMENT_BYTES_MAX) or None


def _checked_text(what: str, text: str, bytes_max: int) -> str:
    if isinstance(text, str) and is_unicode(text) and len(text.encode()) <= bytes_max:
        return text
    found = f"{text[:20]!r}…" if isinstance(text, str) and len(text) > 20 else repr(text)
    raise SchemaError(f"{what} {found}: expected text of at most {bytes_max} bytes of UTF-8")


def crc32_at_end(storage: Storage, path: Path) -> int | None:
    """Return the CRC at the end of a version's file, None where there is no such file."""
    try:
        size, _ = storage.read_ranges(path, [])
        _, (end,) = storage.read_ranges(path, [(max(0, size - TRAILER_BYTES_MAX), None)])
    except StorageError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise
    return stored_crc32(end)


def writer_name() -> str:
    """Return who makes a version: user@host:pid."""
    return f"{_user_and_host()}:{getpid()}"


@lru_cache
def _user_and_host() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container may have no name for its user
        user = str(getuid())
    return f"{user}@{socket.gethostname()}"[:_WRITER_LENGTH_MAX]


def changed_entries(
    before: Manifest | None, now: Manifest
) -> list[tuple[TabletEntry | None, TabletEntry | None]]:
    """Return the readable entries of two versions that may differ, as pairs (before, now).

    None stands for a tablet that is not there. Pairs of one object are left out, so for a version
    that was built on the other one these are the few that it changed.
    """
    old = () if before is None else before.readable_tablets
    new = now.readable_tablets
    pairs = [(a, b) for a, b in zip(old, new, strict=False) if a is not b]
    if len(old) == len(new) and all(a.id == b.id for a, b in pairs):
        return [*pairs]
    earlier, later = ({entry.id: entry for entry in entries} for entries in (old, new))
    return [
        (earlier.get(tablet_id), later.get(tablet_id))
        for tablet_id in dict.fromkeys((*earlier, *later))
        if earlier.get(tablet_id) is not later.get(tablet_id)
    ]


def _replaced(entries: tuple[TabletEntry, ...], new: TabletEntry) -> tuple[TabletEntry, ...]:
    return tuple(new if old.id == new.id else old for old in entries)


def _from_body(body: dict[str, Any]) -> Manifest:
    placed = placed_schema(body)
    dropped = tuple(
        DroppedRange(
            placed["partition"].range_from_json(dropped["range"]),
            int(Timestamp(index(dropped["timestamp"]))),
            tuple(TabletEntry.from_json(tablet) for tablet in dropped["tablets"]),
        )
        for dropped in body.get("dropped", ())  # absent in version 1
    )
    changes = tuple(map(SchemaChange.from_json, body.get("schema_changes", ())))
    check_changes(changes, placed["schema"])
    return Manifest.from_json(body, dropped=dropped, schema_changes=changes, **placed)
