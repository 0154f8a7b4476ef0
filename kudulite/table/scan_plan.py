"""Planning of scans and diff scans: tablets that may match, and key ranges of similar size.

A piece of a plan is logical (tablets, key range, moment or window), not a list of files. Reading
it opens the newest superblocks of the tablets, so pieces outlive compactions and garbage
collection. Key ranges are cut at the first keys of row groups, where base data is cut too.

The window (start, end] of a diff scan is legal when both moments can be read: neither is before the
ancient history mark or ahead of the clock. The safe timestamps advance to `end`, so the same window
gives the same changes until the mark passes `start`.

The columns of a plan are those of its moment, unless the caller gives a schema. A plan keeps their
ids, because a column may be renamed, dropped or widened before the plan is read. A renamed column
is read under its old name. A column that was dropped after the plan's moment is read from the cells
that the table keeps for the past. One that was dropped before the moment, or whose cells are gone,
is an error, even if another column has its name now. A widened one is read in the wider type, which
files may have, and returned in the planned type: at the plan's moment every value had it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from kudulite.chain.manifest import Manifest, TabletEntry
from kudulite.chain.partition import (
    HashSchema,
    KeyBounds,
    PartitionSchema,
    overlap,
    tablets_to_scan,
)
from kudulite.errors import ConflictError, TimestampError
from kudulite.model.condition import Condition
from kudulite.model.hybrid_time import (
    Timestamp,
    format_timestamp,
    misread_number,
    physical_microseconds,
)
from kudulite.model.predicate import BoundPredicates
from kudulite.model.schema import Column, Schema
from kudulite.model.types import ColumnType
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.rowset import RowSet
from kudulite.rowset.rowset_diff import may_have_changed
from kudulite.rowset.scan_spec import DiffSpec, ScanSpec
from kudulite.table.snapshot import (
    check_not_ancient,
    check_readable,
    choose_snapshot,
    moment_of,
    partitions_to_read,
    tablet_at,
)
from kudulite.table.table_store import TableStore
from kudulite.tablet.tablet import Tablet

Spec = TypeVar("Spec", ScanSpec, DiffSpec)

# The estimated size on disk of a row that is in a MemRowSet.
MEMORY_ROW_BYTES = 64


@dataclass(frozen=True)
class ScanPiece:
    """A key range [lower, upper) of tablets read together; None is unbounded.

    Sizes are estimates.
    """

    tablet_ids: tuple[str, ...]
    lower: bytes | None
    upper: bytes | None
    size_bytes: int
    row_count: int


def entries_to_scan(store: TableStore, manifest: Manifest, spec: ScanSpec) -> list[TabletEntry]:
    """Return the tablets that may hold a matching row, dropped ones last.

    Raises TimestampError when history up to the snapshot was collected.
    """
    return [
        entry
        for partition, tablets in partitions_to_read(store, manifest, spec.timestamp)
        for entry in unpruned(manifest, spec.schema, spec.predicates, partition, tablets)
    ]


def unpruned(
    manifest: Manifest,
    schema: Schema,
    predicates: BoundPredicates,
    partition: PartitionSchema,
    tablets: Sequence[TabletEntry],
) -> Sequence[TabletEntry]:
    """Return the tablets of a partitioning that may match predicates bound to `schema`.

    After a rename of a key column these are all: partitions have the new names, predicates the old
    ones.
    """
    if schema is not manifest.schema and schema.key_names != manifest.schema.key_names:
        return tablets
    return [tablets[index] for index in tablets_to_scan(partition, predicates)]


def plan_pieces(
    store: TableStore, manifest: Manifest, spec: ScanSpec, split_bytes: int
) -> list[ScanPiece]:
    """Return the pieces of a scan: every unpruned tablet with rows, cut near `split_bytes`.

    A tablet that a snapshot sees no rowset of gives no piece.
    """
    share = max(1, len(set(spec.names) | set(spec.predicates.columns))) / len(spec.schema.columns)
    pieces: list[ScanPiece] = []
    for entry in entries_to_scan(store, manifest, spec):
        tablet = tablet_at(store, entry, spec.timestamp)
        rowsets = tablet.visible(spec.timestamp).overlapping(spec.lower, spec.upper)
        pieces += cut_pieces((entry.id,), rowsets, spec, share, split_bytes)
    return pieces


def cut_pieces(
    tablet_ids: tuple[str, ...],
    rowsets: Iterable[RowSet],
    spec: ScanSpec,
    share: float,
    split_bytes: int,
) -> list[ScanPiece]:
    """Walk the first keys of all row groups in key order; cut where a piece is large enough.

    `share` is the part of base data that is read.
    """
    groups: list[tuple[bytes, int, int]] = []
    for rowset in rowsets:
        if not isinstance(rowset, DiskRowSet):
            rows = rowset.live_row_count(spec.timestamp)
            groups.append((rowset.key_min, rows * MEMORY_ROW_BYTES, rows))
            continue
        group_rows = rowset.meta.rows_per_group
        group_count = -(-rowset.meta.row_count // group_rows)
        size = int(rowset.meta.base_bytes * share) // group_count + 1
        rows = rowset.meta.row_count // group_count
        if group_count == 1:
            groups.append((rowset.key_min, size, rows))
            continue
        for start in range(0, rowset.meta.row_count, group_rows):
            groups.append((rowset.key_index.slice(start, start + 1)[0], size, rows))
    pieces: list[ScanPiece] = []
    for key, size, rows in sorted(groups):
        if pieces and (pieces[-1].size_bytes < split_bytes or key == pieces[-1].lower):
            last = pieces[-1]
            pieces[-1] = replace(
                last, size_bytes=last.size_bytes + size, row_count=last.row_count + rows
            )
            continue
        if pieces:
            pieces[-1] = replace(pieces[-1], upper=key)
        pieces.append(ScanPiece(tablet_ids, key if pieces else None, None, size, rows))
    bounds = spec.lower, spec.upper
    return [piece for piece in pieces if overlap((piece.lower, piece.upper), bounds)]


def narrowed(spec: Spec, lower: bytes | None, upper: bytes | None) -> Spec:
    """Return the scan within its bounds and [lower, upper) together."""
    return replace(
        spec, lower=tightest(max, spec.lower, lower), upper=tightest(min, spec.upper, upper)
    )


def tightest(choose: Callable[[list[bytes]], bytes], *bounds: bytes | None) -> bytes | None:
    """Return the tightest of several bounds by `choose` (max of lower ones, min of upper ones)."""
    given = [bound for bound in bounds if bound is not None]
    return choose(given) if given else None


def choose_window(store: TableStore, start: Any, end: Any) -> tuple[int, int]:
    """Return the HybridTimes of a window, safe in all tablets; `end` None is now.

    A start of 0 is the creation of the table: no row is older, and every commit is later. Raises
    TimestampError for a moment ahead of the clock or before the ancient history mark, for an end
    before the creation, and when the window ends before it starts.
    """
    if end is None:
        up_to = choose_snapshot(store, None)
        manifest = store.chain.last_seen()
    else:
        manifest = store.newest()
    after = moment_of(store, manifest, start)
    if misread_number(start):
        check_readable(store, manifest, after, start)
    if physical_microseconds(after) == 0:
        after = manifest.created
    if end is not None and (before := moment_of(store, manifest, end)) < after:
        check_readable(store, manifest, before, end)
        raise TimestampError(
            f"table {store.name!r}: changes after {format_timestamp(after)} up to"
            f" {format_timestamp(before)} were asked for, which is earlier; give the older moment"
            " first"
        )
    if end is not None:
        up_to = choose_snapshot(store, end)
    elif after > up_to and after <= store.environment.clock.now():
        up_to = choose_snapshot(store, Timestamp(after))  # nothing has changed since
    if after > up_to:
        raise TimestampError(
            f"table {store.name!r}: changes after {format_timestamp(after)} were asked for, which"
            f" is ahead of the clock; it is at {format_timestamp(up_to)}"
        )
    check_not_ancient(store, store.chain.last_seen(), after)
    return after, up_to


def entries_to_diff(
    store: TableStore, manifest: Manifest, spec: DiffSpec
) -> list[tuple[TabletEntry, ...]]:
    """Return the tablets that may hold a change of a key that matches, dropped ones as well.

    Tablets of one tuple may hold the same keys, and are read together. Raises TimestampError when
    history after the start of the window was collected.
    """
    found: list[_Place] = []
    for partition, tablets in partitions_to_read(store, manifest, spec.start):
        left = unpruned(manifest, spec.schema, spec.key_scan.predicates, partition, tablets)
        found += [_place_of(partition, entry) for entry in left]
    if not manifest.dropped:
        return [(place.entry,) for place in found]
    return [tuple(place.entry for place in group) for group in _overlapping(found)]


class _Place(NamedTuple):
    """A tablet, how its rows are hashed, and their bounds as encoded range columns."""

    entry: TabletEntry
    hash_dimensions: HashSchema
    bounds: KeyBounds

    def may_share_a_key_with(self, other: _Place) -> bool:
        """Whether a key of one may be, or have been, in the other."""
        may_be_same_bucket = (
            self.hash_dimensions != other.hash_dimensions
            or self.entry.partition.buckets == other.entry.partition.buckets
        )
        return may_be_same_bucket and overlap(self.bounds, other.bounds)


def _place_of(partition: PartitionSchema, entry: TabletEntry) -> _Place:
    number = entry.partition.range_index
    has_ranges = bool(partition.range_columns)
    bounds = partition.encoded_ranges[number] if has_ranges else (None, None)
    return _Place(entry, partition.hash_dimensions_of(number), bounds)


def _overlapping(places: Sequence[_Place]) -> list[list[_Place]]:
    """Return groups of places: no key of one group may be in another."""
    groups: list[list[_Place]] = []
    for place in places:
        own, others = [place], []
        for group in groups:
            if any(place.may_share_a_key_with(other) for other in group):
                own = [*group, *own]
            else:
                others.append(group)
        groups = [*others, own]
    return groups


def known_entries(manifest: Manifest, tablet_ids: Sequence[str]) -> list[TabletEntry] | None:
    """Return the entries of tablets, None when the manifest does not know one of them."""
    found = [manifest.readable_entry(tablet_id) for tablet_id in tablet_ids]
    known = [entry for entry in found if entry is not None]
    return known if len(known) == len(found) else None


def entries_of_key(manifest: Manifest, key: Mapping[str, Any]) -> list[TabletEntry]:
    """Return the tablets that hold, or held, a key's row."""
    found = [
        (tablets, partition.tablet_of_key(dict(key)))
        for partition, tablets in manifest.partitions_at(0)
    ]
    return [tablets[index] for tablets, index in found if index >= 0]


def open_tablets(store: TableStore, entries: Sequence[TabletEntry], spec: DiffSpec) -> list[Tablet]:
    """Open tablets to be read from the start of a window on."""
    return [tablet_at(store, entry, spec.start) for entry in entries]


def plan_diff_pieces(
    store: TableStore, manifest: Manifest, spec: DiffSpec, split_bytes: int
) -> list[ScanPiece]:
    """Return the pieces of a diff scan.

    Sizes are those of the rowsets with changes, on disk: what may have to be read. Tablets without
    a change in the window give no piece.
    """
    pieces: list[ScanPiece] = []
    for entries in entries_to_diff(store, manifest, spec):
        rowsets = [
            rowset
            for tablet in open_tablets(store, entries, spec)
            for rowset in tablet.rowsets
            if may_have_changed(rowset, spec)
        ]
        ids = tuple(entry.id for entry in entries)
        names = [column.name for column in spec.image_columns]
        share = max(1, len(names)) / len(spec.schema.columns)
        pieces += cut_pieces(ids, rowsets, spec.key_scan, share, split_bytes)
    return pieces


class PlannedColumn(NamedTuple):
    """The column that a name meant when the scan was planned."""

    name: str
    id: int
    type: ColumnType


ColumnIds = tuple[PlannedColumn, ...]


def planned_columns(
    schema: Schema, names: Sequence[str], conditions: Sequence[Condition]
) -> ColumnIds:
    """Return the key columns and those that a scan projects or compares, as they are."""
    wanted = {*schema.key_names, *names, *(name for found in conditions for name in found.columns)}
    return tuple(PlannedColumn(c.name, c.id, c.type) for c in schema.columns if c.name in wanted)


def readable_columns(
    table: str, columns: ColumnIds, timestamp: int, manifest: Manifest
) -> list[Column]:
    """Return planned columns, under their names, as a read at `timestamp` finds them in files.

    Raises ConflictError for one that was dropped by then, or whose cells are gone.
    """
    then, stored = manifest.schema_at(timestamp), manifest.stored_schema
    found = []
    for planned in columns:
        # A column that was added after the moment has its default in all rows.
        column, kept = then.column_by_id(planned.id), stored.column_by_id(planned.id)
        if kept is None or (column is None and planned.id < then.next_column_id):
            dropped = manifest.drop_of_column(planned.id)
            moment = "since then" if dropped is None else f"at {format_timestamp(dropped)}"
            raise ConflictError(
                f"table {table!r}: a read at {format_timestamp(timestamp)} was planned with the"
                f" column {planned.name!r} of id {planned.id}, which was dropped {moment}; plan it"
                f" again: the columns of that moment are {', '.join(then.names)}"
            )
        read = replace(column or kept, name=planned.name, type=kept.type, write_default=None)
        found.append(read)
    return found


def schema_as_planned(table: str, columns: ColumnIds, timestamp: int, manifest: Manifest) -> Schema:
    """Return a schema that has planned columns under the names they had, in the types of files.

    Raises ConflictError.
    """
    now = manifest.schema
    found = [(planned.name, now.column_by_id(planned.id)) for planned in columns]
    if all(column is not None and column.name == name for name, column in found):
        return now
    # Key columns are planned always, so that no other column can have an old name of theirs.
    read = readable_columns(table, columns, timestamp, manifest)
    return Schema(tuple(read), now.key_count, now.next_column_id)


def with_planned_types(now: Schema, columns: ColumnIds) -> Schema:
    """Return the schema with the types that planned columns had; the others stay as they are.

    For reading only: a write default may not be valid in the narrower type.
    """
    planned = {column.id: column.type for column in columns}
    found = tuple(_with_type(column, planned.get(column.id)) for column in now.columns)
    return now if found == now.columns else replace(now, columns=found)


def _with_type(column: Column, planned: ColumnType | None) -> Column:
    if planned is None or planned == column.type:
        return column
    return replace(column, type=planned, write_default=None)


def in_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch in the types of `schema`, which has the same columns, maybe none."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    if not batch.num_columns:  # a cast would lose the number of rows
        return batch.replace_schema_metadata(schema.metadata)
    if batch.schema.equals(schema):  # but for metadata: a cast takes as long as a small read
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    return batch.cast(schema)
