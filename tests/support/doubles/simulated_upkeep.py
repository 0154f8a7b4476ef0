"""Tablets on paper: superblocks without files, and what maintenance operations would make of them.

Sizes are made up, so that a policy can be run to its end over many layouts in no time.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from kudulite.basefile.base_data import ROW_GROUP_ROWS
from kudulite.chain.manifest import Manifest, TabletEntry
from kudulite.chain.partition import PartitionSchema, TabletPartition
from kudulite.delta.delta_file import DeltaFileMeta
from kudulite.model.schema import Column, Schema
from kudulite.model.types import int64
from kudulite.rowset.rowset_meta import (
    BaseFileMeta,
    RowSetMeta,
    is_fully_ancient,
    without_ancient_undo,
)
from kudulite.storage.storage import FileRef
from kudulite.table.table_store import TableStore
from kudulite.tablet.maintenance_policy import (
    CollectHistory,
    CompactColumns,
    CompactDeltas,
    CompactRowSets,
    MaintenanceOperation,
)
from kudulite.tablet.superblock import Superblock
from kudulite.upkeep.compaction import OperationResult
from tests.support.tables.core_tables import ManualClock, environment

COLUMN_IDS = (2, 3, 4)  # beside the key, column 1
_names = itertools.count()


def file_ref(length: int) -> FileRef:
    """A file that is not there."""
    return FileRef(f"file-{next(_names)}", length, 0)


def delta_file(
    length: int = 1000,
    *,
    updates: dict[int, int] | None = None,
    deletes: int = 0,
    first: int = 1,
    last: int = 2,
) -> DeltaFileMeta:
    """A delta file with so many updates by column id, between two moments."""
    counts = updates or {}
    row_count = deletes + max(counts.values(), default=0)
    return DeltaFileMeta(file_ref(length), None, first, last, row_count, deletes, 0, counts)


def rowset(
    low: int,
    high: int,
    size: int = 1 << 20,
    rows: int = 1000,
    redo: Sequence[DeltaFileMeta] = (),
    undo: Sequence[DeltaFileMeta] = (),
    **fields: int,
) -> RowSetMeta:
    """A rowset over the keys `low` to `high` whose base data has `size` bytes."""
    return RowSetMeta(
        id=f"rowset-{next(_names)}",
        row_count=rows,
        key_min=low.to_bytes(8, "big"),
        key_max=high.to_bytes(8, "big"),
        base=(BaseFileMeta(file_ref(size), (1, *COLUMN_IDS)),),
        key_index=file_ref(0),
        bloom=file_ref(0),
        redo=tuple(redo),
        undo=tuple(undo),
        **fields,
    )


def tablet(*metas: RowSetMeta) -> Superblock:
    """A tablet of these rowsets."""
    return Superblock("tablet", metas)


def random_tablet(rng: random.Random, mark: int) -> Superblock:
    """A tablet as nobody would like to have it; the mark is between its moments."""
    return tablet(*(_random_rowset(rng, mark) for _ in range(rng.randrange(1, 14))))


def _random_rowset(rng: random.Random, mark: int) -> RowSetMeta:
    low, high = sorted((rng.randrange(1000), rng.randrange(1000)))
    rows = rng.choice([1, 10, 5000, ROW_GROUP_ROWS, 300_000, 1 << 20])
    size = max(100, int(rows * rng.choice([1, 20, 200]) * rng.uniform(0.5, 1)))
    left, redo = rows, []
    for _ in range(rng.choice([0, 0, 1, 3, 8])):
        deletes = rng.randrange(left) // 2 if left else 0
        left -= deletes
        redo.append(_random_delta(rng, mark, rows, deletes))
    undo = [_random_delta(rng, mark, rows, 0) for _ in range(rng.choice([0, 0, 1, 5]))]
    ended = {"delete_timestamp": rng.randrange(1, 2 * mark)} if rng.random() < 0.1 else {}
    return rowset(low, high, size, rows, redo, undo, **ended)


def _random_delta(rng: random.Random, mark: int, rows: int, deletes: int) -> DeltaFileMeta:
    first, last = sorted((rng.randrange(2 * mark), rng.randrange(2 * mark)))
    updates = {c: rng.randrange(rows) for c in COLUMN_IDS if rows > 1 and rng.random() < 0.6}
    length = 500 + 12 * (sum(updates.values()) + deletes)
    return delta_file(length, updates=updates, deletes=deletes, first=first, last=last)


def performed(
    superblock: Superblock,
    operation: MaintenanceOperation,
    mark: int,
    rng: random.Random | None = None,
) -> Superblock:
    """The tablet after an operation; with `rng` its files are larger or smaller than expected."""
    inputs = [meta for meta in superblock.rowsets if meta.id in operation.rowset_ids]
    assert len(inputs) == len(operation.rowset_ids), operation
    assert all(meta.delete_timestamp is None for meta in inputs), operation
    if isinstance(operation, CollectHistory):
        outputs = [
            without_ancient_undo(m, mark)
            for m in superblock.rowsets
            if not is_fully_ancient(m, mark)
        ]
        assert tuple(outputs) != superblock.rowsets, "nothing to collect"
        return replace(superblock, rowsets=tuple(outputs))
    if isinstance(operation, CompactRowSets):
        outputs = _merged(inputs, mark, rng)
    elif isinstance(operation, CompactColumns):
        outputs = [_columns_compacted(inputs[0], operation.column_ids, mark, rng)]
    else:
        assert isinstance(operation, CompactDeltas)
        outputs = [_deltas_joined(inputs[0], operation, mark, rng)]
    kept = [meta for meta in superblock.rowsets if meta.id not in operation.rowset_ids]
    return replace(superblock, rowsets=(*kept, *outputs))


def _merged(inputs: Sequence[RowSetMeta], mark: int, rng: random.Random | None) -> list[RowSetMeta]:
    """Rowsets side by side, cut at row groups; all deletes behind the mark are gone."""
    gone = sum(int(d.delete_count * _share(d, mark)) for meta in inputs for d in meta.redo)
    rows = sum(meta.row_count for meta in inputs) - gone
    low = min(int.from_bytes(meta.key_min, "big") for meta in inputs)
    high = max(int.from_bytes(meta.key_max, "big") for meta in inputs)
    limit = ROW_GROUP_ROWS * (8 if rng is None else rng.randrange(1, 9))
    count = -(-rows // limit)
    redo = [delta for meta in inputs for delta in meta.redo]
    deletes = sum(delta.delete_count for delta in redo) - gone
    size = sum(meta.base_bytes for meta in inputs) * _factor(rng)
    updates = [d for d in redo if d.update_counts and d.timestamp_max > mark]
    history = updates + [d for meta in inputs for d in meta.undo if d.timestamp_max > mark]
    outputs = []
    for index in range(count):
        here = min(limit, rows - index * limit)
        left = min(deletes, here)
        deletes -= left
        step = (high - low) / count
        delta = delta_file(500 + 12 * left, deletes=left, first=mark + 1, last=2 * mark)
        old = sum(d.ref.length for d in history) // count
        outputs.append(
            rowset(
                int(low + step * index) + (index > 0),
                max(int(low + step * (index + 1)), int(low + step * index) + (index > 0)),
                int(size * here / rows),
                here,
                (delta,) if left else (),
                (delta_file(old, first=mark + 1, last=2 * mark),) if old else (),
            )
        )
    return outputs


def _factor(rng: random.Random | None) -> float:
    return 1.0 if rng is None else rng.uniform(0.6, 1.4)


def _share(delta: DeltaFileMeta, mark: int) -> float:
    if delta.timestamp_max <= mark:
        return 1.0
    span = max(1, delta.timestamp_max - delta.timestamp_min)
    return min(1.0, max(0.0, (mark - delta.timestamp_min) / span))


def _columns_compacted(
    meta: RowSetMeta, column_ids: Sequence[int], mark: int, rng: random.Random | None
) -> RowSetMeta:
    left: dict[int, int] = {}
    for delta in meta.redo:
        for column_id, count in delta.update_counts.items():
            if column_id not in column_ids:
                left[column_id] = left.get(column_id, 0) + count
    assert any(c in d.update_counts for d in meta.redo for c in column_ids), "nothing to compact"
    deletes = sum(delta.delete_count for delta in meta.redo)
    first = min(delta.timestamp_min for delta in meta.redo)
    last = max(delta.timestamp_max for delta in meta.redo)
    length = int((500 + 12 * (sum(left.values()) + deletes)) * _factor(rng))
    rest = delta_file(length, updates=left, deletes=deletes, first=first, last=last)
    redo = (rest,) if left or deletes else ()
    undo = delta_file(sum(delta.ref.length for delta in meta.redo), first=first, last=last)
    return replace(meta, redo=redo, undo=(undo, *meta.undo) if last > mark else meta.undo)


def _deltas_joined(
    meta: RowSetMeta, operation: CompactDeltas, mark: int, rng: random.Random | None
) -> RowSetMeta:
    files = meta.undo if operation.is_undo else meta.redo
    joined = files[operation.start : operation.stop]
    assert len(joined) == operation.stop - operation.start >= 2, operation
    updates: dict[int, int] = {}
    for delta in joined:
        for column_id, count in delta.update_counts.items():
            updates[column_id] = updates.get(column_id, 0) + count
    one = delta_file(
        int(sum(delta.ref.length for delta in joined) * _factor(rng)),
        updates=updates,
        deletes=sum(delta.delete_count for delta in joined),
        first=min(delta.timestamp_min for delta in joined),
        last=max(delta.timestamp_max for delta in joined),
    )
    new = (*files[: operation.start], one, *files[operation.stop :])
    return replace(meta, undo=new) if operation.is_undo else replace(meta, redo=new)


MARK = 1000


class PaperTable(TableStore):
    """Tablets of the given rowsets, in an empty folder; the ancient history mark is MARK."""

    def __init__(self, folder: Path, *tablets: list[RowSetMeta]) -> None:
        super().__init__(folder, environment(clock=ManualClock()))
        self.performed: list[tuple[str, MaintenanceOperation]] = []
        self.superblocks: dict[str, Superblock] = {}
        entries = []
        for number, metas in enumerate(tablets):
            tablet_id = f"tablet-{number}"
            (folder / "tablet" / tablet_id).mkdir(parents=True)
            entry = TabletEntry(tablet_id, TabletPartition(number, ()), file_ref(1), timestamp=9999)
            self.superblocks[entry.superblock.name] = Superblock(tablet_id, tuple(metas))
            entries.append(entry)
        columns = [Column(1, "key", int64, nullable=False)]
        columns += [Column(number, f"c{number}", int64) for number in COLUMN_IDS]
        schema = Schema(tuple(columns), 1, 5)
        self.manifest = Manifest(
            table_id="table",
            version=1,
            schema=schema,
            partition=PartitionSchema.build(schema),
            tablets=tuple(entries),
            created=1,
            commit_id=uuid.uuid4().hex,
            history_start=MARK,
            history_seconds=1 << 40,
        )
        # For a test to act between what the manager sees and what it does.
        self.before_run: Callable[[str, MaintenanceOperation], None] = lambda tablet_id, work: None

    def newest(self) -> Manifest:
        """The manifest on paper."""
        return self.manifest

    def tablet(self, entry: TabletEntry) -> SimpleNamespace:
        """The attributes of a tablet that the manager needs."""
        return SimpleNamespace(superblock=self.superblocks[entry.superblock.name])

    def superblock(self, tablet_id: str) -> Superblock:
        """A tablet's newest superblock."""
        return self.superblocks[self.manifest.entry(tablet_id).superblock.name]

    def replace_tablet(self, superblock: Superblock) -> None:
        """Publish a superblock."""
        ref = file_ref(1)
        self.superblocks[ref.name] = superblock
        tablets = tuple(
            replace(entry, superblock=ref) if entry.id == superblock.tablet_id else entry
            for entry in self.manifest.tablets
        )
        version = self.manifest.version + 1
        self.manifest = replace(self.manifest, version=version, tablets=tablets)

    def run(
        self, store: TableStore, tablet_id: str, operation: MaintenanceOperation
    ) -> OperationResult:
        """In the place of `run_operation`."""
        assert store is self
        self.before_run(tablet_id, operation)
        before = self.superblock(tablet_id)
        after = performed(before, operation, MARK)
        self.replace_tablet(after)
        self.performed.append((tablet_id, operation))
        return OperationResult(
            self.manifest.version, len(before.rowsets), len(after.rowsets), 0, 0, 7
        )
