"""Maintenance policy: the maintenance operations that a tablet needs, best first.

    CollectHistory    remove files that no legal read needs     always first: nothing is rewritten
    CompactRowSets    merge overlapping or small rowsets; or    score: the height saved, or the
                      rewrite one with many ancient deletes     share of such rows
    CompactColumns    updates of a rowset into base data        score: updates per base data, by
                                                                column, at least a tenth
    CompactDeltas     adjacent delta files into one             score: number of files / 1000

An operation is weighed against the bytes that it rewrites, so maintenance costs a bounded multiple
of the bytes written. A delta file or rowset is joined with smaller ones only when those add up to a
fair part of it, so sizes grow in steps and a byte is rewritten a few times per step. Deletes are no
reason to compact columns, because they remain in REDO.

The cost of a DiskRowSet beyond clean base data is estimated from its superblock entry alone:

    REDO     updates and deletes that every read applies; updates can become base data
    UNDO     history: read only by reads of the past, or by no legal read
    dead     deleted rows: kept for reads of the past, dropped once their DELETE is ancient

A change is ancient if its timestamp is at or before the ancient history mark. If a file has changes
on both sides of the mark, its ancient share is estimated by assuming that its timestamps are spread
evenly.

**Invariants**: (1) the result of an operation does not qualify for it again, so a pass ends; (2) a
tiny tablet needs nothing until it has a few files.

**Threads**: any; all functions are pure.

**Source**: Kudu util/maintenance_manager.cc and tablet_mm_ops.cc. The size steps for rowsets and
delta files are kudulite's own, because it flushes after two minutes, Kudu at a gigabyte.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kudulite.delta.delta_file import DeltaFileMeta
from kudulite.rowset.rowset_meta import RowSetMeta, is_fully_ancient, without_ancient_undo
from kudulite.rowset.rowset_writer import ROWSET_ROWS_MAX
from kudulite.tablet.compaction_policy import BUDGET_BYTES, RowSetExtent, choose_rowsets
from kudulite.tablet.superblock import Superblock
from kudulite.tablet.tombstones import is_ancient

# Smaller files or rowsets count as this many bytes: most of their cost is per file.
_SMALL_FILE_BYTES = 16 << 10
# At least this many delta files are joined, each at most `_DELTA_STEP` times as large as all
# newer ones together.
DELTA_FILES_MIN = 3
_DELTA_STEP = 4
_DELTA_FILE_SCORE = 1 / 1000
# Rowsets are merged if the ones that overlap others have at least an eighth of the others' bytes,
# or if the largest has at most eight times the bytes of the rest; small rowsets if there are three.
_ROWSET_STEP = 8
_SMALL_MERGE_BYTES = 8 << 20
_SMALL_MERGE_COUNT = 3
_MERGE_CHOICES_MAX = 32  # each takes half a second with five hundred rowsets
# Updates become base data if they reach this share of it, and this many bytes.
UPDATE_SHARE_MIN = 0.1
_UPDATE_BYTES_MIN = 64 << 10
# Rows deleted behind the ancient history mark are dropped if they reach this share of a rowset; a
# few rows, if they are half of it.
DEAD_SHARE_MIN, _DEAD_SHARE_SMALL = 0.1, 0.5
_DEAD_ROWS_MIN = 1000

# A rowset of this many bytes is not worth joining with its neighbours; Kudu's size of a rowset.
FULL_ROWSET_BYTES = 32 << 20


@dataclass(frozen=True)
class MaintenanceOperation:
    """A maintenance operation on a tablet's rowsets, given by their ids."""

    label: ClassVar[str]
    """Its name in the list of versions."""

    rowset_ids: tuple[str, ...]


@dataclass(frozen=True)
class CollectHistory(MaintenanceOperation):
    """Remove all UNDO files and tombstones behind the ancient history mark, and all rowsets that no
    legal read can see."""

    label = "history collection"

    rowset_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompactRowSets(MaintenanceOperation):
    """Merge rowsets into new ones that do not overlap; or rewrite one rowset, to drop rows deleted
    behind the ancient history mark."""

    label = "merging compaction"


@dataclass(frozen=True)
class CompactColumns(MaintenanceOperation):
    """Make the updates of some columns base data, and keep the old values as UNDO."""

    label = "major delta compaction"

    column_ids: tuple[int, ...]


@dataclass(frozen=True)
class CompactDeltas(MaintenanceOperation):
    """Join the adjacent REDO files [start, stop) of a rowset into one; or its UNDO files."""

    label = "minor delta compaction"

    start: int
    stop: int
    is_undo: bool = False


@dataclass(frozen=True)
class ScoredOperation:
    """An operation with the bytes that it rewrites, and the bytes that it frees at once.

    Operations that free bytes rank first, then those with the highest score.
    """

    operation: MaintenanceOperation
    score: float
    byte_count: int
    freed_bytes: int = 0

    @property
    def rank(self) -> tuple[int, float]:
        """The sort key: the best operation has the highest."""
        return self.freed_bytes, self.score


def scored_operations(
    superblock: Superblock,
    mark: int,
    column_ids: Collection[int],
    budget_bytes: int = BUDGET_BYTES,
) -> list[ScoredOperation]:
    """Return the operations that a tablet needs, best first; none if it is in good shape.

    `mark` is the ancient history mark, `column_ids` are those of the schema. An operation
    rewrites at most `budget_bytes`.
    """
    metas = [meta for meta in superblock.rowsets if meta.delete_timestamp is None]
    candidates = [*_collection(superblock, mark), *_merges(metas, budget_bytes)]
    for meta in metas:
        candidates += _dead_rows(meta, mark)
        candidates += _columns(meta, column_ids)
        candidates += _deltas(meta, meta.redo[::-1], is_undo=False)
        candidates += _deltas(meta, _joinable_undo(meta), is_undo=True)
    affordable = [scored for scored in candidates if scored.byte_count <= budget_bytes]
    return sorted(affordable, key=lambda scored: scored.rank, reverse=True)


def full_compaction(
    superblock: Superblock, mark: int, column_ids: Collection[int]
) -> list[MaintenanceOperation]:
    """Return the operations that bring a tablet to its best shape, at any cost; none if it is so.

    Afterwards no rowsets overlap, no two neighbours fit into one, no column has updates in REDO,
    and a rowset has at most one REDO file, and one UNDO file beside the one of inserts. The
    operations of a round concern different rowsets; several rounds may be needed. History behind
    the ancient history mark is removed first, delta files are joined last.
    """
    metas = [meta for meta in superblock.rowsets if meta.delete_timestamp is None]
    operations: list[MaintenanceOperation] = [
        scored.operation for scored in _collection(superblock, mark)
    ]
    if operations:
        return operations
    for group in _joined_groups(_overlapping_groups(metas)):
        ids = tuple(meta.id for meta in group)
        if len(group) > 1 or ancient_row_count(group[0], mark):
            operations.append(CompactRowSets(ids))
        else:
            operations += _cleaned(group[0], column_ids)
    return operations


def extents_of(metas: Sequence[RowSetMeta]) -> list[RowSetExtent]:
    """Return the rowsets as the compaction policy sees them."""
    return [
        RowSetExtent(meta.id, meta.key_min, meta.key_max, meta.bytes_on_disk, fullness(meta))
        for meta in metas
    ]


def _collection(superblock: Superblock, mark: int) -> Iterator[ScoredOperation]:
    freed = sum(collectable_bytes(meta, mark) for meta in superblock.rowsets)
    freed += sum(meta.ref.length for meta in superblock.tombstones if is_ancient(meta, mark))
    if freed:
        yield ScoredOperation(CollectHistory(), 0.0, 0, freed)


def _merges(metas: Sequence[RowSetMeta], budget_bytes: int) -> Iterator[ScoredOperation]:
    """Yield the best merge that is worth its bytes, if any.

    If a choice is not worth its bytes, the next one leaves out its largest rowsets.
    """
    extents = {extent.id: extent for extent in extents_of(metas)}
    without: set[str] = set()
    for _ in range(_MERGE_CHOICES_MAX):
        choice = choose_rowsets(list(extents.values()), budget_bytes, without)
        if choice is None:
            return
        inputs = [extents[rowset_id] for rowset_id in choice.rowset_ids]
        if _is_worth_its_bytes(inputs):
            byte_count = sum(extent.byte_count for extent in inputs)
            yield ScoredOperation(CompactRowSets(choice.rowset_ids), choice.quality, byte_count)
            return
        largest = max(extent.byte_count for extent in inputs)
        without |= {extent.id for extent in inputs if 2 * extent.byte_count >= largest}


def _is_worth_its_bytes(inputs: Sequence[RowSetExtent]) -> bool:
    """Whether a merge gains enough for the bytes that it rewrites.

    Either the overlapping bytes are a fair part of it, or no rowset is full and the largest is not
    much larger than the rest together.
    """
    sizes = [max(_SMALL_FILE_BYTES, extent.byte_count) for extent in inputs]
    total, largest = sum(sizes), max(sizes)
    if total < _SMALL_MERGE_BYTES and len(sizes) < _SMALL_MERGE_COUNT:
        return False
    if total <= (1 + _ROWSET_STEP) * (total - _side_by_side(inputs, sizes)):
        return True
    is_any_full = any(extent.fullness >= 1 for extent in inputs)
    return not is_any_full and largest <= _ROWSET_STEP * (total - largest)


def _side_by_side(extents: Sequence[RowSetExtent], sizes: Sequence[int]) -> int:
    """Return the largest total size of rowsets that do not overlap each other."""
    order = sorted(range(len(extents)), key=lambda index: extents[index].key_max)
    ends: list[bytes] = []
    most = [0]  # by the number of rowsets, in key order, to choose from
    for index in order:
        before = bisect_left(ends, extents[index].key_min)
        most.append(max(most[-1], most[before] + sizes[index]))
        ends.append(extents[index].key_max)
    return most[-1]


def _dead_rows(meta: RowSetMeta, mark: int) -> Iterator[ScoredOperation]:
    count = ancient_row_count(meta, mark)
    share = count / meta.row_count
    if share >= (DEAD_SHARE_MIN if count >= _DEAD_ROWS_MIN else _DEAD_SHARE_SMALL):
        yield ScoredOperation(CompactRowSets((meta.id,)), share, meta.bytes_on_disk)


def _columns(meta: RowSetMeta, column_ids: Collection[int]) -> Iterator[ScoredOperation]:
    sizes = update_bytes(meta, column_ids)
    if sum(sizes.values()) < _UPDATE_BYTES_MIN:
        return
    share = {
        column_id: max(
            size / column_bytes(meta, column_id),
            sum(delta.update_counts.get(column_id, 0) for delta in meta.redo) / meta.row_count,
        )
        for column_id, size in sizes.items()
    }
    worthy = tuple(sorted(c for c in sizes if share[c] >= UPDATE_SHARE_MIN))
    if worthy:
        redo_bytes = sum(delta.ref.length for delta in meta.redo)
        byte_count = redo_bytes + sum(column_bytes(meta, column_id) for column_id in worthy)
        score = min(1.0, max(share[column_id] for column_id in worthy))
        yield ScoredOperation(CompactColumns((meta.id,), worthy), score, byte_count)


def _deltas(
    meta: RowSetMeta, newest_first: Sequence[DeltaFileMeta], *, is_undo: bool
) -> Iterator[ScoredOperation]:
    """Yield the join of the newest run of delta files of about the same size, if there is one."""
    sizes = [max(_SMALL_FILE_BYTES, delta.ref.length) for delta in newest_first]
    for first in range(len(sizes)):
        stop, total = first + 1, sizes[first]
        while stop < len(sizes) and sizes[stop] <= _DELTA_STEP * total:
            total += sizes[stop]
            stop += 1
        if stop - first >= DELTA_FILES_MIN:
            operation = _join(meta, first, stop, is_undo=is_undo)
            score = min(1.0, (stop - first) * _DELTA_FILE_SCORE)
            byte_count = sum(delta.ref.length for delta in newest_first[first:stop])
            yield ScoredOperation(operation, score, byte_count)
            return


def _join(meta: RowSetMeta, first: int, stop: int, *, is_undo: bool) -> CompactDeltas:
    """Return the join of files [first, stop), newest first; a rowset lists REDO oldest first."""
    if is_undo:
        return CompactDeltas((meta.id,), first, stop, is_undo=True)
    return CompactDeltas((meta.id,), len(meta.redo) - stop, len(meta.redo) - first)


def _cleaned(meta: RowSetMeta, column_ids: Collection[int]) -> Iterator[MaintenanceOperation]:
    """Yield the next operation that removes a rowset's updates from REDO, or joins its files."""
    updated = tuple(sorted(update_bytes(meta, column_ids)))
    if updated:
        yield CompactColumns((meta.id,), updated)
    elif len(meta.redo) > 1:
        yield _join(meta, 0, len(meta.redo), is_undo=False)
    elif len(undo := _joinable_undo(meta)) > 1:
        yield _join(meta, 0, len(undo), is_undo=True)


def _joinable_undo(meta: RowSetMeta) -> Sequence[DeltaFileMeta]:
    """Return the UNDO files, newest first, without the oldest one if it has inserts only.

    A writer keeps inserts in their own file, because most reads of the past need no other.
    """
    oldest = meta.undo[-1:]
    is_inserts_only = any(delta.delete_count == delta.row_count for delta in oldest)
    return meta.undo[:-1] if is_inserts_only else meta.undo


def _overlapping_groups(metas: Sequence[RowSetMeta]) -> list[list[RowSetMeta]]:
    """Group the rowsets, in key order, so that rowsets of different groups do not overlap."""
    groups: list[list[RowSetMeta]] = []
    key_max = b""
    for meta in sorted(metas, key=lambda meta: meta.key_min):
        if groups and meta.key_min <= key_max:
            groups[-1].append(meta)
        else:
            groups.append([meta])
        key_max = max(key_max, meta.key_max)
    return groups


def _joined_groups(groups: Sequence[list[RowSetMeta]]) -> list[list[RowSetMeta]]:
    """Join neighbouring groups whose rows fit into one rowset."""
    joined: list[list[RowSetMeta]] = []
    room = 0.0
    for group in groups:
        need = sum(fullness(meta) for meta in group)
        if joined and need <= room:
            joined[-1] += group
            room -= need
        else:
            joined.append(list(group))
            room = 1.0 - need
    return joined


def collectable_bytes(meta: RowSetMeta, mark: int) -> int:
    """Return the bytes of files that no legal read needs: the whole rowset, or some UNDO files."""
    if is_fully_ancient(meta, mark):
        return meta.bytes_on_disk
    return meta.bytes_on_disk - without_ancient_undo(meta, mark).bytes_on_disk


def ancient_bytes(meta: RowSetMeta, mark: int) -> int:
    """Estimate the bytes of a rowset's history that no legal read needs."""
    if is_fully_ancient(meta, mark):
        return meta.bytes_on_disk
    return sum(int(delta.ref.length * _ancient_share(delta, mark)) for delta in meta.undo)


def dead_row_count(meta: RowSetMeta) -> int:
    """Return the number of deleted rows that are still stored."""
    return meta.row_count - meta.live_row_count


def ancient_row_count(meta: RowSetMeta, mark: int) -> int:
    """Estimate the number of rows deleted behind the mark: a merge compaction drops them."""
    return sum(int(delta.delete_count * _ancient_share(delta, mark)) for delta in meta.redo)


def update_bytes(meta: RowSetMeta, column_ids: Collection[int]) -> dict[int, int]:
    """Estimate the bytes of REDO by column, for each of `column_ids` that an update sets.

    The bytes of a file are spread evenly over its row ids and cells. Deletes are not counted: they
    stay in REDO when columns are compacted.
    """
    sizes: dict[int, int] = {}
    for delta in meta.redo:
        cell_count = delta.row_count + sum(delta.update_counts.values())
        for column_id, count in delta.update_counts.items():
            if column_id in column_ids and count:
                size = delta.ref.length * count // max(1, cell_count)
                sizes[column_id] = sizes.get(column_id, 0) + size
    return sizes


def column_bytes(meta: RowSetMeta, column_id: int) -> int:
    """Estimate the bytes of a column's base data: its share of the file if all columns were alike.

    A column that was added later counts as one bit per row.
    """
    for base in meta.base:
        if column_id in base.column_ids:
            return max(1, base.ref.length // len(base.column_ids))
    return max(1, meta.row_count // 8)


def fullness(meta: RowSetMeta) -> float:
    """Return how full a rowset is, from 0 to 1; a full one is not joined with its neighbours.

    A writer starts the next rowset at the end of a row group, for reasons of size that the entry
    does not record. A rowset with a whole number of row groups therefore counts as full.
    """
    if meta.row_count % meta.rows_per_group == 0:
        return 1.0
    return min(1.0, max(meta.bytes_on_disk / FULL_ROWSET_BYTES, meta.row_count / ROWSET_ROWS_MAX))


def _ancient_share(delta: DeltaFileMeta, mark: int) -> float:
    if delta.timestamp_max <= mark:
        return 1.0
    if delta.timestamp_min > mark:
        return 0.0
    return (mark - delta.timestamp_min) / (delta.timestamp_max - delta.timestamp_min)
