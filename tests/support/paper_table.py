"""A table on paper: manifests and superblocks without data files, on which operations are played.

The manager of maintenance sees a store like any other; what it runs is `PaperTable.run`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from core_tables import ManualClock, environment
from simulated_upkeep import COLUMN_IDS, file_ref, performed

from kudulite.catalog.compaction import OperationResult
from kudulite.catalog.manifest import Manifest, TabletEntry
from kudulite.catalog.partition import PartitionSchema, TabletPartition
from kudulite.catalog.table_store import TableStore
from kudulite.model.schema import Column, Schema
from kudulite.model.types import int64
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.tablet.maintenance_policy import Operation
from kudulite.tablet.superblock import Superblock

MARK = 1000


class PaperTable(TableStore):
    """Tablets of the given rowsets, in an empty folder; the ancient history mark is MARK."""

    def __init__(self, folder: Path, *tablets: list[RowSetMeta]) -> None:
        super().__init__(folder, environment(clock=ManualClock()))
        self.performed: list[tuple[str, Operation]] = []
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
        self.before_run: Callable[[str, Operation], None] = lambda tablet_id, operation: None

    def newest(self) -> Manifest:
        """The manifest on paper."""
        return self.manifest

    def tablet(self, entry: TabletEntry) -> SimpleNamespace:
        """What the manager needs of a tablet."""
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

    def run(self, store: TableStore, tablet_id: str, operation: Operation) -> OperationResult:
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
