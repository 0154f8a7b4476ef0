"""Alteration of a table: schema, range partitions, retention, owner, comment, in one version.

    1  take the table's lock                 no commit is under way, none can begin
    2  flush the log                         its records have the old schema
    3  make the new version's parts          schema, partitioning; folders of added tablets
    4  put-if-absent of the next manifest    the alteration

No row is rewritten. Files hold columns by id, and an id is never reused: a scan reads the columns
that a file has, and the read default of others. Writes prepared against the old schema are refused
at their commit, except where only columns without defaults were added: files simply lack these.

An alteration of the columns at T adds a change to the manifest's `schema_changes`. A read at S < T
has the columns of before T, under the names and types of then. Compactions keep the cells of
dropped columns for it. Once T is at or before the ancient history mark, the change leaves the
manifest, and compactions leave such cells out.

Dropping a range partition at T ends the rowsets of its tablets at T, and the tablets move to the
manifest's `dropped`, with the bounds of the range. A read at S < T includes them. Once T is at or
before the ancient history mark, the range leaves the manifest and garbage collection removes the
folders. Tablets that never had a row are left out at once.

T is above every timestamp used in the table and its safe timestamp, so no earlier read changes. All
later writes are after T.

**Invariants**: (1) a key is live at S in at most one tablet; (2) a range that is dropped and added
again in the same alteration is empty; (3) a dropped tablet never changes: the log has no rows of
it, and nothing writes, flushes or compacts it.

**Threads**: any.

**Source**: Kudu docs/design-docs/schema-change.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from kudulite.chain.manifest import (
    DroppedRange,
    Manifest,
    Origin,
    TabletEntry,
    checked_comment,
    checked_owner,
)
from kudulite.chain.partition import (
    HashSchema,
    PartitionSchema,
    RangeBounds,
    RangeWithHashSchema,
    TabletPartition,
)
from kudulite.chain.schema_history import SchemaChange
from kudulite.errors import (
    KuduliteError,
    NotSupportedError,
    SchemaError,
    StorageError,
    UsageError,
)
from kudulite.model.schema import Column, Schema
from kudulite.table.memory_flush import flushed_under_lock
from kudulite.table.publication import publish_alone, version_timestamp
from kudulite.table.snapshot import ancient_history_mark, is_mark_still_valid
from kudulite.table.table_log import LostRaceError, Turn
from kudulite.table.table_store import TableStore

HISTORY_SECONDS_MAX = 10_000_000_000  # more than 300 years


@dataclass(frozen=True)
class TableDraft:
    """Alterable parts of a table; methods return a new draft, or raise SchemaError."""

    schema: Schema
    hash_dimensions: HashSchema
    range_columns: tuple[str, ...]
    ranges: tuple[RangeWithHashSchema, ...]
    history_seconds: int
    owner: str | None = None
    comment: str | None = None
    dropped: frozenset[RangeBounds] = frozenset()

    @staticmethod
    def of(manifest: Manifest) -> TableDraft:
        """Return the draft of a version as it is."""
        partition = manifest.partition
        return TableDraft(
            schema=manifest.schema,
            hash_dimensions=partition.hash_dimensions,
            range_columns=partition.range_columns,
            ranges=partition.ranges,
            history_seconds=manifest.history_seconds,
            owner=manifest.owner,
            comment=manifest.comment,
        )

    def add_column(self, column: Column) -> TableDraft:
        """Add a column; rows that are there show its default."""
        return replace(self, schema=self.schema.with_column(column))

    def drop_column(self, name: str) -> TableDraft:
        """Drop a column; moments before keep it."""
        return replace(self, schema=self.schema.without_column(name))

    def change_column(self, name: str, fields: Mapping[str, Any]) -> TableDraft:
        """Set `fields` of a column, as `Schema.with_changed` takes them."""
        names = {name: fields.get("name", name)}
        return replace(
            self,
            schema=self.schema.with_changed(name, fields),
            hash_dimensions=tuple(dimension.renamed(names) for dimension in self.hash_dimensions),
            range_columns=tuple(names.get(column, column) for column in self.range_columns),
            ranges=tuple(given.renamed(names) for given in self.ranges),
        )

    def add_range(self, added: RangeWithHashSchema) -> TableDraft:
        """Add a range, which must not overlap with another."""
        return replace(self, ranges=(*self.ranges, added))

    def drop_range(self, dropped: RangeWithHashSchema) -> TableDraft:
        """Drop a range, given by its exact bounds."""
        ranges = tuple(given for given in self.ranges if given.bounds != dropped.bounds)
        if ranges == self.ranges:
            raise SchemaError(
                f"no range partition to drop from {dropped.lower} to {dropped.upper}: the bounds"
                " must be those of an existing one"
            )
        return replace(self, ranges=ranges, dropped=self.dropped | {dropped.bounds})

    def keep_history(self, seconds: int) -> TableDraft:
        """Set how long the past stays readable."""
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not 0 <= seconds <= HISTORY_SECONDS_MAX:
            raise UsageError(
                f"a history of {seconds!r} seconds: give a number from 0 to {HISTORY_SECONDS_MAX}"
            )
        return replace(self, history_seconds=int(seconds))

    def set_owner(self, owner: str) -> TableDraft:
        """Name the table's owner."""
        return replace(self, owner=checked_owner(owner))

    def set_comment(self, comment: str) -> TableDraft:
        """Set the table's comment; an empty one removes it."""
        return replace(self, comment=checked_comment(comment))


Step = Callable[[TableDraft], TableDraft]


def alter_table(
    store: TableStore,
    steps: Sequence[Step],
    check: Callable[[Manifest], None] = lambda newest: None,
) -> Manifest:
    """Publish the version that `steps` make of the newest, all or none of them.

    `check` is called with the version that is altered, and may raise. Raises SchemaError,
    NotSupportedError, LockTimeoutError, StorageError, ConflictError.
    """

    def publish(turn: Turn) -> Manifest:
        # Rowsets take over what the log holds: records are only read under the schema that they
        # were written under.
        newest = flushed_under_lock(store, turn.newest(), turn)
        check(newest)
        draft = TableDraft.of(newest)
        try:
            for step in steps:
                draft = step(draft)
            partition = _partition_of(draft, newest)
        except (SchemaError, NotSupportedError) as error:
            raise type(error)(f"table {store.name!r}: {error}") from error
        tablets = _Tablets(store, newest, turn)
        try:
            return tablets.publish(draft, partition, is_altered=bool(steps))
        except StorageError:
            raise  # the version may be there all the same, or will be
        except (KuduliteError, LostRaceError):
            tablets.undo()
            raise

    return store.in_turn("alteration", publish)


def _partition_of(draft: TableDraft, old: Manifest) -> PartitionSchema:
    """Return the partitioning of a draft."""
    if not draft.ranges:
        raise SchemaError("cannot drop the last range partition; add another in the same step")
    ranges = draft.ranges
    if not draft.range_columns:
        if ranges != old.partition.ranges or draft.dropped:
            raise SchemaError("the table has no range partition columns, so it has no ranges")
        ranges = ()
    return PartitionSchema.build(draft.schema, draft.hash_dimensions, draft.range_columns, ranges)


@dataclass
class _Tablets:
    """The tablets of the new version: those that stay, new empty ones, and those that end."""

    store: TableStore
    old: Manifest
    turn: Turn
    _created: tuple[TabletEntry, ...] = ()
    _timestamp: int = 0  # of the version

    def _settled(
        self, manifest: Manifest, dropped: Collection[RangeBounds]
    ) -> tuple[DroppedRange, ...]:
        """Choose the timestamp of the version that follows `manifest`, for all that needs it.

        Return the ranges that are dropped with rows, ended at it.
        """
        self._timestamp = version_timestamp(self.store, manifest, self.turn)
        ended = []
        for number, given in enumerate(self.old.partition.ranges):
            tablets = [e for e in self.old.tablets if e.partition.range_index == number]
            # The log has no rows of them: without rowsets no snapshot sees any.
            opened = [self.store.tablet(entry) for entry in tablets if given.bounds in dropped]
            if any(tablet.superblock.rowsets for tablet in opened):
                entries = tuple(self._ended(entry) for entry in tablets)
                ended.append(DroppedRange(given, self._timestamp, entries))
        return tuple(ended)

    def _ended(self, entry: TabletEntry) -> TabletEntry:
        """Write a superblock, durable but not published, in which the tablet has ended."""
        timestamp, old = self._timestamp, self.store.tablet(entry).superblock
        rowsets = tuple(
            replace(meta, delete_timestamp=timestamp) if meta.delete_timestamp is None else meta
            for meta in old.rowsets
        )
        place = TabletPartition(0, entry.partition.buckets)
        ended = replace(old, rowsets=rowsets)
        return self.store.with_superblock(replace(entry, partition=place), ended, timestamp)

    def of(
        self, partition: PartitionSchema, dropped: Collection[RangeBounds]
    ) -> tuple[TabletEntry, ...]:
        """Return the entries in the order of `partition`; a tablet is known by its place."""
        bounds = [given.bounds for given in self.old.partition.ranges]
        known = {
            (bounds[e.partition.range_index], e.partition.buckets): e
            for e in self.old.tablets
            if bounds[e.partition.range_index] not in dropped
        }
        entries = []
        for place in partition.tablets():
            entry = known.get((partition.ranges[place.range_index].bounds, place.buckets))
            if entry is None:
                entry = self.store.create_tablet(place)
                self._created += (entry,)
            entries.append(replace(entry, partition=place))
        if self._created:
            folder = self.store.tablet_folder(self._created[0].id).parent
            self.store.storage.sync([folder])
        return tuple(entries)

    def publish(
        self, draft: TableDraft, partition: PartitionSchema, *, is_altered: bool
    ) -> Manifest:
        """Publish the version that the draft describes, and return it.

        If nothing `is_altered`, the version has the flushed log only.
        """
        tablets = self.of(partition, draft.dropped)
        dropped: tuple[DroppedRange, ...] = ()
        start = self.old.history_start
        if draft.history_seconds > self.old.history_seconds:
            # History before the mark may be collected already: a longer retention begins here.
            start = ancient_history_mark(self.store, self.old)

        operation = "alter" if is_altered else "memory flush"
        columns = ((old.name, draft.schema.column_by_id(old.id)) for old in self.old.schema.columns)
        names = {name: column.name for name, column in columns if column is not None}

        def build(manifest: Manifest) -> Manifest:
            nonlocal dropped
            if manifest.versions.timestamp >= self._timestamp:
                dropped = self._settled(manifest, draft.dropped)
            past = manifest.dropped + dropped
            return manifest.successor(
                Origin(operation, self._timestamp, is_maintenance=not is_altered),
                schema=draft.schema,
                partition=partition,
                tablets=tablets,
                dropped=tuple(replace(each, range=each.range.renamed(names)) for each in past),
                schema_changes=manifest.schema_changes + self._schema_changes(draft.schema),
                history_seconds=draft.history_seconds,
                history_start=max(start, manifest.history_start),
                owner=draft.owner,
                comment=draft.comment,
            )

        published = self.store.update(build, self.old, self.turn)
        assert published is not None  # `build` never gives up
        return published

    def _schema_changes(self, schema: Schema) -> tuple[SchemaChange, ...]:
        """Return what reads of the past need to know of the new schema."""
        if (change := SchemaChange.of(self.old.schema, schema, self._timestamp)) is None:
            return ()
        return (change,)

    def undo(self) -> None:
        """Remove the created tablets of an alteration that is not published, and never will be."""
        # A tablet that cannot be removed is in no version; garbage collection removes it.
        with suppress(KuduliteError):
            for entry in self._created:
                self.store.storage.delete_below(self.store.tablet_folder(entry.id))


def forget_alterations(store: TableStore) -> int:
    """Publish a version without ancient dropped ranges and columns; return the number of ranges.

    Garbage collection then removes the tablets of the ranges, after the grace time, and compactions
    the cells of the columns. Raises LockTimeoutError, StorageError.
    """
    newest = store.newest()
    mark = ancient_history_mark(store, newest)
    if _without_ancient(newest, mark) is newest:
        return 0
    count = 0

    def build(manifest: Manifest, timestamp: int) -> Manifest | None:
        nonlocal count
        kept = _without_ancient(manifest, mark)
        count = len(manifest.dropped) - len(kept.dropped)
        if kept is manifest or not is_mark_still_valid(manifest, mark):
            return None
        start = max(manifest.history_start, mark)
        origin = Origin("history collection", timestamp, is_maintenance=True)
        return kept.successor(origin, history_start=start)

    return count if publish_alone(store, "history collection", build) is not None else 0


def _without_ancient(manifest: Manifest, mark: int) -> Manifest:
    """Return the version without what only moments before the ancient history mark need."""
    dropped = tuple(dropped for dropped in manifest.dropped if dropped.timestamp > mark)
    changes = tuple(change for change in manifest.schema_changes if change.until > mark)
    if (dropped, changes) == (manifest.dropped, manifest.schema_changes):
        return manifest
    return replace(manifest, dropped=dropped, schema_changes=changes)
