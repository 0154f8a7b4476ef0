"""Steps that compact and collect, with other steps in their gaps; see history_machine.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from history_looks import PlannedScan
from history_state import HistoryState

from kudulite.catalog.compaction import run_operation
from kudulite.catalog.manifest import TabletEntry
from kudulite.errors import StorageError
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.tablet.maintenance_policy import (
    CollectHistory,
    CompactColumns,
    CompactDeltas,
    CompactRowSets,
    Operation,
)

GAPS = ("read", "built", "carried", "locked", "published")
SWEEPS = ("maintain", "purge")
KINDS = ("minor", "minor_undo", "major", "merge", "collect")


@dataclass(frozen=True)
class Picks:
    """Which tablet, rowsets and files an operation is for, as numbers that fit any table."""

    tablet: int
    rowset: int
    first: int
    second: int


class CompactionSteps(HistoryState):
    """Operations of upkeep on files, picked at random."""

    counted: Counter[str]

    def _compact(
        self, client: int, kind: str, picked: Sequence[int], hooks: Mapping[str, Sequence]
    ) -> None:
        """One operation; the steps of `hooks` are taken in its gaps, by name."""
        picks = Picks(*picked)
        entries = self.manifest.tablets
        entry = entries[picks.tablet % len(entries)]
        operation = self._operation(entry, kind, picks)
        if operation is None:
            return

        def hook(gap: str) -> None:
            self.run(hooks.get(gap, ()))

        try:
            result = run_operation(self.tables[client]._store, entry.id, operation, hook)
        except StorageError:
            # Its input went without grace: it has to begin again, as a reader has.
            if not any(step[0] in SWEEPS for steps in hooks.values() for step in steps):
                raise
            return
        self.counted[f"{kind} published"] += result is not None

    def run(self, steps: Sequence) -> None:
        """Take steps; the machine's."""
        raise NotImplementedError

    def _operation(self, entry: TabletEntry, kind: str, picks: Picks) -> Operation | None:
        """The operation of a kind that numbers stand for; None where the tablet has none."""
        superblock = self.store.tablet(entry).superblock
        metas = [meta for meta in superblock.rowsets if meta.delete_timestamp is None]
        if kind == "collect":
            return CollectHistory()
        if not metas:
            return None
        meta = metas[picks.rowset % len(metas)]
        if kind == "merge":
            # A bit for each rowset; all of them now and then.
            chosen = [m for place, m in enumerate(metas) if picks.first >> place % 16 & 1]
            return CompactRowSets(tuple(m.id for m in (chosen or metas)))
        if kind == "major":
            ids = [column.id for column in self.manifest.schema.value_columns]
            some = [i for place, i in enumerate(ids) if picks.first >> place % 16 & 1]
            return CompactColumns((meta.id,), tuple(some or ids))
        return self._joined_files(metas, picks, is_undo=kind == "minor_undo")

    def _joined_files(
        self, metas: Sequence[RowSetMeta], picks: Picks, *, is_undo: bool
    ) -> CompactDeltas | None:
        """Adjacent delta files of a rowset that has several."""
        counts = [(meta, len(meta.undo if is_undo else meta.redo)) for meta in metas]
        several = [(meta, count) for meta, count in counts if count > 1]
        if not several:
            return None
        meta, count = several[picks.rowset % len(several)]
        start = picks.first % (count - 1)
        stop = start + 2 + picks.second % (count - start - 1)
        return CompactDeltas((meta.id,), start, stop, is_undo)

    def _compact_all(self, client: int) -> None:
        """Table.compact."""
        self.tables[client].compact()

    def _purge(self, client: int, numbers: Sequence[int]) -> None:
        """Erase keys, now and in the past; of other keys nothing changes."""
        keys = {self.setup.key(number) for number in numbers}
        rows = [dict(zip(self.setup.key_names, key, strict=True)) for key in sorted(keys)]
        self.tables[client].purge(rows)
        self.model.purge(keys)
        for planned in self.slots.values():
            if isinstance(planned, PlannedScan):
                planned.expected = {k: r for k, r in planned.expected.items() if k not in keys}
