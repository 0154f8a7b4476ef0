"""Planning a diff scan: the window, the tablets that may hold a change in it, and their pieces.

A window (start, end] is legal when both moments can be read: neither is before the ancient history
mark or ahead of the clock. `end` is settled, and with it `start`, so the same window gives the same
changes until the mark passes `start`.

A piece is logical, as that of a scan: a tablet, a key range and the window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kudulite.catalog.history import check_not_ancient, partitions_to_read, tablet_at
from kudulite.catalog.manifest import Manifest, TabletEntry
from kudulite.catalog.partition import PartitionSchema
from kudulite.catalog.scan_plan import ScanPiece, cut_pieces, unpruned
from kudulite.catalog.snapshot import choose_snapshot
from kudulite.catalog.table_store import TableStore
from kudulite.errors import SchemaError, TimestampError
from kudulite.mvcc.hybrid_time import format_timestamp, parse_timestamp
from kudulite.rowset.diff_spec import DiffSpec
from kudulite.rowset.rowset_diff import may_have_changed
from kudulite.rowset.scan_spec import ScanSpec
from kudulite.tablet.diff_scan import CHANGE_COLUMNS
from kudulite.tablet.tablet import Tablet


def choose_window(store: TableStore, start: Any, end: Any) -> tuple[int, int]:
    """Return the settled HybridTimes of a window; `end` None is now.

    Raises TimestampError for a moment ahead of the clock or before the ancient history mark, and
    when the window ends before it starts.
    """
    after = parse_timestamp(start)
    if end is not None and parse_timestamp(end) < after:
        raise TimestampError(
            f"table {store.name!r}: changes after {format_timestamp(after)} up to"
            f" {format_timestamp(parse_timestamp(end))} were asked for, which is earlier; give the"
            " older moment first"
        )
    up_to = choose_snapshot(store, end)
    if after > up_to:
        raise TimestampError(
            f"table {store.name!r}: changes after {format_timestamp(after)} were asked for, which"
            f" is ahead of the clock; it is at {format_timestamp(up_to)}"
        )
    check_not_ancient(store, store.newest(), after)
    return after, up_to


def diff_spec(
    scan: ScanSpec, *, table: str, start: int, column_ids: frozenset[int], with_before: bool
) -> DiffSpec:
    """Return the diff scan that begins at `start` and ends with `scan`; `table` is for errors.

    Raises SchemaError for a column with the name of one that changes have themselves.
    """
    for name in scan.names:
        if name in CHANGE_COLUMNS:
            raise SchemaError(
                f"table {table!r}: its column {name!r} has the name of a column that changes have"
                " themselves; leave it out with columns=[…], or rename it"
            )
    return DiffSpec(
        schema=scan.schema,
        names=scan.names,
        predicates=scan.predicates,
        start=start,
        end=scan.timestamp,
        column_ids=column_ids,
        with_before=with_before,
        lower=scan.lower,
        upper=scan.upper,
    )


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
    """A tablet and the encoded range columns of its rows, [lower, upper)."""

    entry: TabletEntry
    lower: bytes | None
    upper: bytes | None

    def may_share_a_key_with(self, other: _Place) -> bool:
        """Whether a key of one may be, or have been, in the other."""
        if self.entry.partition.buckets != other.entry.partition.buckets:
            return False
        is_below = self.upper is not None and other.lower is not None and self.upper <= other.lower
        is_above = self.lower is not None and other.upper is not None and self.lower >= other.upper
        return not is_below and not is_above


def _place_of(partition: PartitionSchema, entry: TabletEntry) -> _Place:
    if not partition.range_columns:
        return _Place(entry, None, None)
    return _Place(entry, *partition.encoded_range(entry.partition.range_index))


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
