"""Planning a scan: snapshot, tablets that may match, and key ranges of similar size.

A piece of a plan is logical (tablet, key range, time), not a list of files. To read it, the newest
superblock of the tablet is opened and read at the plan's time, so pieces outlive compactions and
sweeps. Key ranges are cut at the first keys of row groups, where base data is cut too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from kudulite.catalog.history import partitions_to_read, tablet_at
from kudulite.catalog.manifest import Manifest, TabletEntry
from kudulite.catalog.partition import PartitionSchema
from kudulite.catalog.pruning import tablets_to_scan
from kudulite.catalog.table_store import TableStore
from kudulite.cfile.base_data import ROW_GROUP_ROWS
from kudulite.errors import SchemaError
from kudulite.model.predicate import BoundPredicates, Predicate, bind_predicates
from kudulite.model.schema import Schema
from kudulite.rowset.diff_spec import DiffSpec
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.rowset import RowSet
from kudulite.rowset.scan_spec import ScanSpec

Spec = TypeVar("Spec", ScanSpec, DiffSpec)

# [lower, upper) as encoded keys; None is unbounded.
KeyBounds = tuple[bytes | None, bytes | None]

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


def scan_spec(
    table: str,
    schema: Schema,
    columns: Sequence[str] | None,
    where: Sequence[Predicate],
    timestamp: int,
) -> ScanSpec:
    """Check names and predicates against the schema; bounds come from the key predicates.

    Raises ColumnNotFoundError and SchemaError.
    """
    names = tuple(schema.names if columns is None else columns)
    try:
        for name in names:
            schema.column(name)
        predicates = bind_predicates(where, schema)
    except SchemaError as error:
        raise type(error)(f"table {table!r}: {error}") from error
    lower, upper = predicates.key_bounds()
    return ScanSpec(schema, names, predicates, timestamp, lower, upper)


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
    """Return the tablets of a partitioning that predicates, bound to `schema`, leave.

    After a rename they leave all: partitions have the columns' new names, predicates the old ones.
    """
    if schema is not manifest.schema:
        return tablets
    return [tablets[index] for index in tablets_to_scan(partition, predicates)]


def plan_pieces(
    store: TableStore, manifest: Manifest, spec: ScanSpec, split_bytes: int
) -> list[ScanPiece]:
    """Return the pieces of a scan: every unpruned tablet with rows, cut near `split_bytes`.

    A tablet that a snapshot sees no rowset of gives no piece.
    """
    pieces: list[ScanPiece] = []
    for entry in entries_to_scan(store, manifest, spec):
        pieces += _tablet_pieces(store, entry, spec, split_bytes)
    return pieces


def _tablet_pieces(
    store: TableStore, entry: TabletEntry, spec: ScanSpec, split_bytes: int
) -> list[ScanPiece]:
    tablet = tablet_at(store, entry, spec.timestamp)
    share = max(1, len(set(spec.names) | set(spec.predicates.columns))) / len(spec.schema.columns)
    rowsets = tablet.visible(spec.timestamp).overlapping(spec.lower, spec.upper)
    return cut_pieces((entry.id,), rowsets, spec, share, split_bytes)


def cut_pieces(
    tablet_ids: tuple[str, ...],
    rowsets: Iterable[RowSet],
    spec: ScanSpec,
    share: float,
    split_bytes: int,
) -> list[ScanPiece]:
    """Sweep the first keys of all row groups in key order; cut where a piece is large enough.

    `share` is the part of base data that is read.
    """
    groups: list[tuple[bytes, int, int]] = []
    for rowset in rowsets:
        if not isinstance(rowset, DiskRowSet):
            rows = rowset.live_row_count(spec.timestamp)
            groups.append((rowset.key_min, rows * MEMORY_ROW_BYTES, rows))
            continue
        group_count = -(-rowset.meta.row_count // ROW_GROUP_ROWS)
        size = int(rowset.meta.base_bytes * share) // group_count + 1
        rows = rowset.meta.row_count // group_count
        if group_count == 1:
            groups.append((rowset.key_min, size, rows))
            continue
        for start in range(0, rowset.meta.row_count, ROW_GROUP_ROWS):
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
    return [piece for piece in pieces if _overlaps(piece, spec)]


def _overlaps(piece: ScanPiece, spec: ScanSpec) -> bool:
    below = spec.upper is not None and piece.lower is not None and piece.lower >= spec.upper
    above = spec.lower is not None and piece.upper is not None and piece.upper <= spec.lower
    return not below and not above


def narrowed(spec: Spec, lower: bytes | None, upper: bytes | None) -> Spec:
    """Return the scan within its bounds and [lower, upper) together."""
    return replace(
        spec, lower=tightest(max, spec.lower, lower), upper=tightest(min, spec.upper, upper)
    )


def tightest(choose: Callable[[list[bytes]], bytes], *bounds: bytes | None) -> bytes | None:
    """Return the tightest of several bounds by `choose` (max of lower ones, min of upper ones)."""
    given = [bound for bound in bounds if bound is not None]
    return choose(given) if given else None
